/* keys.c - the table: every key of every program, its type, default, range and help; before it the checks of texts, after it
 * the search by name. */
#include "config/keys.h"

#include <stdio.h>
#include <string.h>

#include "core/options.h"
#include "run/device_list.h"
#include "run/rank_groups.h"
#include "run/law.h"
#include "run/net_links.h"
#include "run/slowdown.h"
#include "run/units.h"

/* ---- checks of texts: eni_key_check ------------------------------------------------------------------- */

/* A key without a value may be a boolean option: the strategy knows. */
static const char *check_strategy(const char *text)
{
    static const char expected[] = "NAME or ./FILE.so, then :KEY=VALUE,.., such as ssp:bound=3";
    const char *colon = text + eni_spec_head(text);
    if (colon == text || strcmp(colon, ":") == 0) return expected;
    const size_t name = strcspn(text, ",=");
    const bool is_path = memchr(text, '/', name) != NULL; /* paths may have commas */
    if (!is_path && name < (size_t)(colon - text))
        return "NAME:KEY=VALUE,.. with a colon after the name, such as ssp:bound=3";
    for (const char *part = eni_spec_options(text); *part != '\0';) {
        size_t length = strcspn(part, ",");
        const char *mark = memchr(part, '=', length);
        if (length == 0 || mark == part || (mark != NULL && mark == part + length - 1)) return expected;
        part += length;
        if (*part == ',' && *++part == '\0') return expected;
    }
    return NULL;
}

static bool is_name(const char *text, size_t length)
{
    return length <= ENI_ARM_NAME &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") >= length;
}

static const char *check_arm(const char *text)
{
    const size_t name = eni_arm_name(text);
    if (name > 0 && !is_name(text, name))
        return "NAME=STRATEGY with a name of at most 40 letters, digits, '.', '_' and '-', such as "
               "tuned=ring:lr=0.1";
    return check_strategy(name > 0 ? text + name + 1 : text);
}

static const char *check_name(const char *text)
{
    if (strpbrk(text, ":=") == NULL) return NULL;
    return "names only, such as ring,ps-sync; use --arm=NAME:KEY=VALUE for options";
}

static const char *check_device(const char *text)
{
    eni_device_list list;
    const char *expected = eni_device_list_read(text, &list);
    if (expected != NULL || strcmp(list.kind, "auto") == 0 || strcmp(list.kind, "ref") == 0 ||
        strcmp(list.kind, "cpu") == 0 || eni_device_list_is_gpu(&list))
        return expected;
    return "auto, ref, cpu, cuda or cuda:INDEX";
}

static const char *check_split(const char *text)
{
    static const char expected[] = "NAME,.. with the first layer of each stage but the first, at most 63, as "
                                   "`entrain models NAME` lists them";
    int n = 1;
    for (const char *part = text; *part != '\0'; n++) {
        const size_t length = strcspn(part, ",");
        if (length == 0 || n == ENI_DEVICES_MAX) return expected;
        for (const char *other = text; other < part; other += strcspn(other, ",") + 1)
            if (strcspn(other, ",") == length && strncmp(other, part, length) == 0) return "each name once";
        part += length;
        if (*part == ',' && *++part == '\0') return expected;
    }
    return NULL;
}

const char *eni_check_endpoint(const char *text)
{
    static const char expected[] = "tcp://HOST:PORT with a port of 0 to 65535, such as tcp://127.0.0.1:5555";
    int64_t port;
    if (strncmp(text, "tcp://", 6) != 0) return expected;
    const char *host = text + 6, *colon = strrchr(host, ':');
    if (colon == NULL || colon == host || strcspn(host, " \t/") != strlen(host)) return expected;
    bool is_bracketed = host[0] == '[' && colon[-1] == ']' && colon - host > 2;
    if (!is_bracketed && memchr(host, ':', (size_t)(colon - host)) != NULL)
        return "an IPv6 address in brackets, such as tcp://[::1]:5555";
    return colon[1] != '+' && eni_parse_i64(colon + 1, &port) && port >= 0 && port <= 65535 ? NULL : expected;
}

static const char *check_rendezvous(const char *text)
{
    if (strcmp(text, "env://") == 0) return NULL;
    if (strncmp(text, "file:///", 8) == 0 && text[8] != '\0' && text[strlen(text) - 1] != '/') return NULL;
    const char *expected = eni_check_endpoint(text);
    if (expected == NULL) return NULL;
    return "tcp://HOST:PORT (such as tcp://127.0.0.1:23456), file:///PATH on a shared disk, or env:// "
           "for MASTER_ADDR and MASTER_PORT";
}

static const char *check_straggler(const char *text)
{
    int64_t rank;
    double factor;
    eni_slowdown slow;
    if (eni_straggler_parse(text, &rank, &factor)) return NULL;
    return eni_slowdown_read(text, &slow) == NULL ? "RANK:FACTOR, such as 1:3; all other stragglers are for "
                                                    "virtual time (`entrain sim`, `compare --virtual`)"
                                                  : "RANK:FACTOR with a factor of 1 to 1000, such as 1:3";
}

static const char *check_slowdown(const char *text)
{
    eni_slowdown slow;
    return eni_slowdown_read(text, &slow);
}

static const char *check_visit(const char *text)
{
    int64_t rank, at_ns;
    return eni_visit_parse(text, &rank, &at_ns) ? NULL : "RANK@TIME with a rank above 0, such as 2@500ms";
}

static const char *check_bn_stats(const char *text)
{
    bool is_mean;
    uint64_t n;
    if (eni_bn_stats_parse(text, &is_mean, &n)) return NULL;
    return "rank0, mean, or recompute:N with N training samples";
}

/* A path, and what a run has left, are read later. */
static const char *check_compute(const char *text)
{
    const bool is_file = strncmp(text, "from:", 5) == 0 || strncmp(text, "trace:", 6) == 0;
    return is_file || strpbrk(text, ":=;") == NULL ? NULL : eni_law_check(text);
}

static const char *check_server_time(const char *text)
{
    char law[ENI_LAW_TEXT];
    double ns_per_byte;
    const char *expected = eni_service_split(text, law, &ns_per_byte);
    return expected != NULL || law[0] == '\0' ? expected : eni_law_check(law);
}

static const char *check_net(const char *text)
{
    uint64_t rate;
    int64_t delay;
    if (eni_net_parse(text, &rate, &delay)) return NULL;
    if (eni_net_links_check(text) == NULL)
        return "one rate and delay for all, such as rate:200MB,delay:50us; links by rank are for virtual "
               "time (`entrain sim`, `compare --virtual`)";
    return "rate:RATE,delay:TIME, or either, such as rate:200MB,delay:50us or rate:1Gbit; a rate ends in B "
           "(bytes a second) or bit, a delay in s, ms or us";
}

static const char *check_count(const char *text)
{
    int64_t count;
    if (eni_parse_i64(text, &count) && count >= 1 && count <= 1024) return NULL;
    return "whole numbers from 1 to 1024, such as 1,2,4";
}

static const char *check_milestones(const char *text)
{
    int64_t amounts[ENI_AMOUNTS_MAX];
    if (eni_parse_amounts(text, amounts) > 0) return NULL;
    return "one to eight rising amounts above 0, such as 60epochs,80epochs or 600000,800000";
}

static const char *check_augment(const char *text)
{
    eni_transform t;
    if (eni_augment_parse(text, &t)) return NULL;
    return "none, crop:SIDE[:PAD], flip, or both, such as crop:32:4,flip; SIDE is 1 to 4096";
}

static const char *check_normalize(const char *text)
{
    eni_transform t;
    if (eni_normalize_parse(text, &t)) return NULL;
    return "MEAN:DEVIATION, or one of each per channel, with deviations above 0, such as "
           "0.4914,0.4822,0.4465:0.2023,0.1994,0.2010";
}

static const char *check_seed(const char *text)
{
    int64_t seed;
    return eni_parse_i64(text, &seed) && seed >= 0 ? NULL : "whole numbers from 0, such as 1,2,3 or 1..3";
}

static const char *check_setting(const char *text)
{
    const char *seeds = strchr(text, '@');
    size_t length = seeds == NULL ? strlen(text) : (size_t)(seeds - text);
    int64_t n = 1;
    int is_known = length == 4 && (strncmp(text, "even", 4) == 0 || strncmp(text, "slow", 4) == 0);
    if (is_known && (seeds == NULL || (eni_parse_i64(seeds + 1, &n) && n >= 1))) return NULL;
    return "even, slow, even,slow, or slow@1 for the first seed only";
}

static const char *check_primary(const char *text)
{
    char setting[32];
    int64_t a, b;
    if (eni_primary_parse(text, setting, &a, &b)) return NULL;
    return "SETTING:ARM:ARM with two arms numbered from 1, such as even:1:2";
}

static const char *check_tune(const char *text)
{
    double values[ENI_TUNE_MAX];
    if (strncmp(text, ENI_TUNED "=", sizeof ENI_TUNED) != 0)
        return "lr=V1,V2,..: the learning rate is the one key that can be tuned";
    return eni_tune_parse(text, values) > 0 ? NULL
                                            : "2 to 16 rising rates above 0, such as lr=0.005,0.01,0.02";
}

static const char *check_elastic(const char *text)
{
    eni_worker_range elastic;
    const char *expected = eni_worker_range_read(text, &elastic);
    if (expected == NULL && elastic.batch > 0)
        return "MIN..MAX, such as 2..8; give the samples of a step by --global-batch-size";
    return expected;
}

static const char *check_set(const char *text)
{
    const size_t name = strcspn(text, "=");
    const bool is_short = strlen(text) < ENI_SETTING_BYTES;
    if (name > 0 && text[name] == '=' && text[name + 1] != '\0' && is_name(text, name) && is_short)
        return NULL;
    return "--set.NAME=VALUE of at most 4,095 bytes, with a name of at most 40 letters, digits, '.', '_' and "
           "'-'";
}

static const char *check_help(const char *text)
{
    return strcmp(text, "all") == 0 || strcmp(text, "page") == 0 ? NULL : "--help or --help=all";
}

/* ---- the table ---------------------------------------------------------------------------------------- */

#define AT(field) offsetof(eni_config, field)

#define ON(program) (UINT32_C(1) << (program))
#define R           ON(ENI_RUN)
#define C           ON(ENI_COMPARE)
#define W           (ON(ENI_WORKER) | ON(ENI_RANK))
#define O           ON(ENI_WORKER) /* networks, data sets and devices: not of a program's own gradients */
#define P           ON(ENI_PSD)
#define E           (ON(ENI_EVAL) | ON(ENI_PREDICT))
#define K           ON(ENI_CHECK)
#define D           ON(ENI_DATA)
#define A           ON(ENI_ADVISE)
#define S           ON(ENI_SCALE)
#define V           ON(ENI_SIM) /* virtual time */
#define F           ON(ENI_CONFORM)
#define TRAIN       (R | C | W | A | S)
#define TRAIN_OURS  (R | C | O | A | S)
#define RUNS        (R | C | W | S) /* not advise, whose prediction has no model of it */
#define RUNS_OURS   (R | C | O | S)
#define LAUNCH      (R | C | K | S | E) /* start processes, as torchrun does, with the same flags in all of them */
#define ALL         (~UINT32_C(0))
#define COMMANDS    (~ON(ENI_RANK))

#define MATCH  ENI_KEY_MATCH
#define HIDDEN (ENI_KEY_HIDDEN | ENI_KEY_FLAG_ONLY)
#define ENV    ENI_KEY_FROM_ENV
#define CALL   ENI_KEY_CALL
#define STUDY  ENI_KEY_STUDY
#define FIRST  ENI_KEY_COMMON

#define BIG 4e18 /* counts of samples and steps; below 2^63 */

/* clang-format off */
/* One macro per type, with the differing fields first. `note` replaces the default in --help. */
#define BOOL(name, aliases, field, fallback, programs, flags, note, help)                                    \
    {GROUP, name, aliases, ENI_KEY_BOOL, AT(field), fallback, 0, 0, NULL, NULL, "on", programs, flags,       \
     note, help}
#define INT(name, aliases, field, fallback, min, max, unit, programs, flags, note, help)                     \
    {GROUP, name, aliases, ENI_KEY_INT, AT(field), fallback, min, max, unit, NULL, NULL, programs, flags,    \
     note, help}
#define REAL(name, aliases, field, fallback, min, max, unit, programs, flags, note, help)                    \
    {GROUP, name, aliases, ENI_KEY_REAL, AT(field), fallback, min, max, unit, NULL, NULL, programs,          \
     flags, note, help}
#define TIME(name, field, fallback, min, max, programs, flags, note, help)                                   \
    {GROUP, name, NULL, ENI_KEY_TIME, AT(field), fallback, min, max, "TIME", NULL, NULL, programs, flags,    \
     note, help}
#define AMOUNT(name, field, programs, flags, note, help)                                                     \
    {GROUP, name, NULL, ENI_KEY_AMOUNT, AT(field), "0", 0, BIG, "SAMPLES|Nepochs", NULL, NULL, programs,      \
     flags, note, help}
#define CHOICE(name, aliases, field, fallback, words, programs, flags, note, help)                           \
    {GROUP, name, aliases, ENI_KEY_CHOICE, AT(field), fallback, 0, 0, words, NULL, NULL, programs, flags,    \
     note, help}
#define TEXT(name, aliases, field, fallback, words, check, bare, programs, flags, note, help)                \
    {GROUP, name, aliases, ENI_KEY_TEXT, AT(field), fallback, 0, 0, words, check, bare, programs, flags,     \
     note, help}
#define LIST(name, aliases, field, fallback, words, check, programs, flags, note, help)                      \
    {GROUP, name, aliases, ENI_KEY_LIST, AT(field), fallback, 0, 0, words, check, NULL, programs, flags,        \
     note, help}

const eni_key eni_keys[] = {

#define GROUP "training"
    TEXT("strategy", NULL, strategy, "ring", "NAME[:KEY=VALUE,..]", check_strategy, NULL, R | W | P | V, STUDY | FIRST,
         NULL,
         "how the workers stay in step: a name from `entrain strategies`, or ./mine.so:key=value"),
    TEXT("model", NULL, model, "convnet", "NAME", NULL, NULL, TRAIN_OURS | E | V, MATCH | FIRST, NULL,
         "the network: a name from `entrain models`"),
    TEXT("data", NULL, data, "fashion-mnist", "NAME|FOLDER|URL", NULL, NULL, TRAIN_OURS | E | V, MATCH | FIRST,
         "fashion-mnist; synthetic for the model toy",
         "a name from `entrain data`, or a folder (or its URL, s3://BUCKET/PREFIX) with files in MNIST's or CIFAR's format"),
    TEXT("data-dir", NULL, data_dir, NULL, "FOLDER", NULL, NULL, TRAIN_OURS | E | V | D, 0,
         "where the package installs it",
         "the folder that holds the named data set on this host"),
    TEXT("data-endpoint", NULL, data_endpoint, NULL, "URL", NULL, NULL, TRAIN_OURS | E | D, STUDY, "the service's own",
         "the object storage of --data, --init, --resume, --save and --checkpoint-dir: https://HOST[:PORT]"),
    TEXT("data-keys", NULL, data_keys, NULL, "FILE", NULL, NULL, TRAIN_OURS | E | D, STUDY,
         "AWS_* or OSS_* variables, or the profile in the home folder", "a file of mode 0600 with the keys to object storage; none: anonymous access"),
    BOOL("clear-cache", NULL, clear_cache, "off", D, 0, NULL,
         "remove local copies of object storage, except those being downloaded"),
    TEXT("optimizer", NULL, optimizer, "sgd", "NAME", NULL, NULL, TRAIN | V, MATCH | FIRST, NULL,
         "sgd, adam or adamw, with PyTorch's formulas"),
    REAL("lr", "learning-rate", lr, "0.01", 0, 1e6, "REAL", TRAIN | V, MATCH | FIRST, "0.01; 0.001 for adam, adamw",
         "the learning rate"),
    REAL("momentum", NULL, momentum, "0.5", 0, 1, "REAL", TRAIN | V, MATCH | FIRST, NULL,
         "momentum of sgd"),
    BOOL("nesterov", NULL, nesterov, "off", TRAIN | V, MATCH, NULL,
         "Nesterov's momentum"),
    REAL("weight-decay", NULL, weight_decay, "0", 0, 1e6, "REAL", TRAIN | V, MATCH, "0; 0.01 for adamw",
         "this times the weights is added to the gradient; adamw: this times rate and weights is subtracted from the weights"),
    CHOICE("decay", NULL, decay, "all", "all|weights", TRAIN | V, MATCH, NULL,
           "the tensors that --weight-decay applies to; weights: all except biases and norms (one dimension)"),
    REAL("beta1", NULL, beta1, "0.9", 0, 0.999999, "REAL", TRAIN | V, MATCH, NULL,
         "adam, adamw: decay of the mean gradient"),
    REAL("beta2", NULL, beta2, "0.999", 0, 0.999999999, "REAL", TRAIN | V, MATCH, NULL,
         "adam, adamw: decay of the mean squared gradient"),
    REAL("eps", NULL, eps, "1e-08", 0, 1e6, "REAL", TRAIN | V, MATCH, NULL,
         "adam, adamw: added to the root of the mean square"),
    CHOICE("lr-schedule", NULL, lr_schedule, "constant", "constant|step|cosine|multistep|linear", TRAIN | V, MATCH, NULL,
           "how the learning rate changes with the samples applied; cosine, linear: falls to 0 by the run's end"),
    AMOUNT("lr-warmup", lr_warmup, TRAIN | V, MATCH, NULL,
           "global samples over which the rate rises linearly from 0"),
    AMOUNT("lr-step", lr_step, TRAIN | V, MATCH, NULL,
           "with --lr-schedule=step: global samples between two changes of the rate"),
    TEXT("lr-milestones", NULL, lr_milestones, NULL, "AMOUNT,..", check_milestones, NULL, TRAIN | V, MATCH, "none",
         "with --lr-schedule=multistep: the global samples at which the rate changes, such as 60epochs,80epochs (separated by + in --arm)"),
    REAL("lr-gamma", NULL, lr_gamma, "0.1", 0, 1e6, "REAL", TRAIN | V, MATCH, NULL,
         "with --lr-schedule=step, multistep: the factor by which the rate is multiplied"),
    CHOICE("lr-scale", NULL, lr_scale, "none", "none|linear|sqrt", TRAIN | V, MATCH, NULL,
           "multiplies the rate of synchronous strategies by the number of workers, or by its square root"),
    TEXT("init", NULL, init, NULL, "FILE", NULL, NULL, TRAIN | E | V, 0, "random from --seed",
         "weights to start from (safetensors)"),
    INT("seed", NULL, seed, "1", 0, 9e18, "INT", TRAIN | E | V | F, MATCH | STUDY | FIRST, NULL,
        "makes the run repeatable: initial weights, data order, injected delays"),
    REAL("clip-norm", NULL, clip_norm, "0", 0, 1e9, "REAL", R | C | S | ON(ENI_RANK), MATCH, "0: any",
         "of a program of your own (behind --): the mean gradient is made no longer than this, where ranks step with it (ring, solo)"),
    LIST("set", NULL, set, NULL, "NAME=VALUE", check_set, R | C | S | ON(ENI_RANK), MATCH | ENI_KEY_NAMED, "none",
         "a setting of the program's own (behind --), which it reads by en_rank_setting or entrain.setting; may be repeated"),

#undef GROUP
#define GROUP "amount and order"
    INT("batch-size", "batch b", batch_size, "64", 1, 1 << 24, "SAMPLES", TRAIN | V, MATCH | FIRST, NULL,
        "samples per worker and step"),
    INT("global-batch-size", "global-batch", global_batch_size, "0", 1, 1 << 30, "SAMPLES", TRAIN | V, 0,
        "--batch-size x workers",
        "samples per step over all workers"),
    INT("accumulate", NULL, accumulate, "1", 1, 1024, "N", RUNS | V, MATCH, NULL,
        "micro-batches per step with the strategy solo, as if N workers computed them"),
    INT("micro-batches", NULL, micro_batches, "0", 1, 1024, "M", RUNS_OURS, MATCH,
        "1; four per stage with a pipeline",
        "parts of a worker's batch, each with its own forward and backward; their mean is the gradient"),
    TEXT("bn-stats", NULL, bn_stats, "rank0", "rank0|mean|recompute:N", check_bn_stats, NULL, RUNS | V, MATCH, NULL,
        "which running statistics are evaluated and saved: rank 0's, the mean of all ranks', or new ones computed from the first N training samples"),
    INT("epochs", NULL, epochs, "0", 1, 1e9, "N", TRAIN | V, MATCH | FIRST, "1 unless --steps or --max-samples is given",
        "passes over the training samples, over all workers"),
    INT("steps", NULL, steps, "0", 1, BIG, "N", TRAIN | V, MATCH | FIRST, "no limit",
        "steps of all workers; the first limit reached ends the run"),
    INT("max-samples", NULL, max_samples, "0", 1, BIG, "SAMPLES", TRAIN | V, MATCH, "no limit",
        "samples over all workers"),
    INT("holdout", NULL, holdout, "0", 0, 4294967295.0, "SAMPLES", R | C | O | V, MATCH, "5000, or a tenth, in compare; else 0",
        "this many of the last training samples are held out, for curves and the time to target"),
    INT("limit-train-samples", NULL, limit_train_samples, "0", 1, 4294967295.0, "SAMPLES", TRAIN_OURS | V, MATCH,
        "all",
        "use only this many of the first training samples"),
    INT("limit-test-samples", NULL, limit_test_samples, "0", 1, 4294967295.0, "SAMPLES", TRAIN_OURS | E | V, MATCH,
        "all",
        "use only this many of the first test samples"),
    BOOL("shuffle", NULL, shuffle, "on", TRAIN | V, MATCH, NULL,
         "train on samples in random order; --no-shuffle: in the order of the files"),
    BOOL("reshuffle", NULL, reshuffle, "on", TRAIN | V, MATCH, NULL,
         "draw a new random order for each epoch; --no-reshuffle: use the first epoch's in all of them"),
    BOOL("drop-last", NULL, drop_last, "off", TRAIN | V, MATCH, NULL,
         "skip samples that do not fill a global batch; off: the last step of an epoch is smaller"),
    INT("resize", NULL, resize, "0", 0, ENI_SIDE_MAX, "N", TRAIN_OURS | E | V, MATCH, "as they are",
        "scale images to N x N pixels, as Pillow's bilinear filter does, for training and tests"),
    TEXT("augment", NULL, augment, "none", "crop:SIDE[:PAD],flip", check_augment, NULL, TRAIN_OURS | E | V, MATCH, NULL,
         "training images: PAD (0) black pixels around, a random crop of SIDE x SIDE, half of them mirrored"),
    BOOL("augment-test", NULL, augment_test, "off", TRAIN_OURS | E | V, MATCH, NULL,
         "augment test images too, each the same way every time; off: crop them at the centre"),
    TEXT("normalize", NULL, normalize, NULL, "M,M,M:S,S,S", check_normalize, NULL, TRAIN_OURS | E | V, MATCH, "those of the data set",
         "mean and standard deviation of each channel, or one pair for all: a pixel becomes (x / 255 - M) / S"),
    INT("loader-threads", "num-workers", loader_threads, "0", 0, 64, "N", TRAIN_OURS, 0,
        "1; 2 with --resize; with --device=cuda the rank's cores, at most 16",
        "threads per worker that prepare batches (N does not change them); at most two batches ahead where they are claimed"),
    CHOICE("assign", NULL, assign, "auto", "auto|claim|fixed", RUNS | V, MATCH,
           "fixed if synchronous, else claim",
           "how micro-batches are assigned: claimed by the next free rank, or fixed by rank"),

#undef GROUP
#define GROUP "files"
    TEXT("out", "o", out, NULL, "FOLDER", NULL, NULL, TRAIN | P | E | V | ON(ENI_REPORT), CALL | STUDY | FIRST, "none",
         "the folder of result.json, metrics, config.yaml and the report"),
    BOOL("overwrite", NULL, overwrite, "off", TRAIN | V, CALL | STUDY, NULL,
         "replace the run or study in --out, finished or not"),
    TEXT("save", NULL, save, NULL, "FILE|URL", NULL, NULL, R | W | V, CALL | STUDY | FIRST, "not saved",
         "where to save the final weights (safetensors, with PyTorch's names)"),
    AMOUNT("checkpoint-every", checkpoint_every, R | W, FIRST, "never",
           "global samples between two checkpoints"),
    TEXT("resume", NULL, resume, NULL, "auto|PATH", NULL, "auto", R | C | W, CALL | STUDY, "from the start",
         "resume from a checkpoint; auto: the newest in --out, if there is one; compare: do the missing runs"),
    TEXT("checkpoint-dir", NULL, checkpoint_dir, NULL, "FOLDER|URL", NULL, NULL, R | W, CALL, "OUT/checkpoints",
         "the folder of checkpoints, which keeps the two newest; a URL: they go to OUT/checkpoints and are uploaded, and all are kept there"),
    TEXT("tensorboard", NULL, tensorboard, NULL, "FOLDER", NULL, "auto", R | C | W, CALL,
         "none; OUT without a value",
         "event files for TensorBoard, one folder per run"),
    TEXT("trace", NULL, trace, NULL, "FILE", NULL, NULL, R | W | P, CALL | STUDY, "none",
         "a timeline of every step, for chrome://tracing or Perfetto"),
    BOOL("record-order", NULL, record_order, "off", R | P, CALL | STUDY, NULL,
         "note in --out in which order calls reach the servers, for `entrain sim --replay-order`"),

#undef GROUP
#define GROUP "compute and transport"
    INT("threads", NULL, threads, "0", 0, 4096, "N", TRAIN_OURS | E | V, 0, "cores / workers of this host; eval, predict: 1",
        "compute threads per worker or process"),
    TEXT("device", NULL, device, "auto", "auto|ref|cpu|cuda[:I],..", check_device, NULL, TRAIN_OURS | E | V | K, FIRST, NULL,
         "ref: plain loops, the same bits everywhere; cpu: oneDNN; cuda: a GPU, chosen by the rank on its host; "
         "several for --parallel: cpu:0,cpu:1, cuda:0,cuda:1 or cuda:all"),
    CHOICE("parallel", NULL, parallel, "none", "none|data|model|pipeline", RUNS_OURS, MATCH, NULL,
           "how a worker uses several devices; data: a replica on each; model, pipeline: a stage of the network on each, "
           "one after the other or all at once"),
    INT("stages", NULL, stages, "0", 1, ENI_DEVICES_MAX, "S", RUNS_OURS | ON(ENI_GPUS), MATCH, "one per device",
        "with --parallel=model, pipeline: the number of stages, of equal work, each on a device"),
    TEXT("split", NULL, split, NULL, "NAME,..", check_split, NULL, RUNS_OURS, MATCH, "by --stages",
         "with --parallel=model, pipeline: the layers that begin stages 1, 2, .., as `entrain models NAME` lists them"),
    CHOICE("pipeline", NULL, pipeline, "1f1b", "1f1b|gpipe", RUNS_OURS, MATCH, NULL,
           "with --parallel=pipeline: the order of work within a stage; gpipe: all forward, then all backward; 1f1b: alternating, "
           "which takes less memory"),
    BOOL("gpu-sharing", NULL, gpu_sharing, "off", RUNS_OURS | ON(ENI_GPUS), 0, NULL,
         "allow more workers than there are GPUs for, if each uses several; GPUs are then assigned round-robin"),
    CHOICE("precision", NULL, precision, "fp32", "fp32|bf16|fp16", TRAIN_OURS | E, MATCH, NULL,
           "the type in which a GPU, or a CPU that has bf16, multiplies; weights, gradients and sums are always 32-bit"),
    BOOL("tf32", NULL, tf32, "off", TRAIN_OURS | E, MATCH, NULL,
         "a GPU may round the factors of 32-bit products to 10 bits"),
    BOOL("deterministic", NULL, deterministic, "off", TRAIN_OURS | E, MATCH, NULL,
         "the same bits in every run on a GPU; always so on a CPU"),
    BOOL("graph", NULL, graph, "on", TRAIN_OURS, 0, NULL,
         "record a GPU's step once as a CUDA graph and replay it; --no-graph to compare"),
    CHOICE("data-on-device", NULL, data_on_device, "auto", "auto|on|off", TRAIN_OURS, 0,
           "on if the training images take at most a quarter of the GPU's free memory",
           "keep the training images as bytes on the GPU; off: copy each batch"),
    CHOICE("backend", "dist-backend", backend, "auto", "auto|host|nccl", RUNS_OURS | K, MATCH, NULL,
           "how gradients travel; host: through shared memory and TCP; nccl: between GPUs"),
    CHOICE("allreduce", NULL, allreduce, "auto", "auto|direct|ring|naive", RUNS | K, MATCH, NULL,
           "the all-reduce algorithm; direct: through shared memory; ring: over TCP; naive: all to all"),
    CHOICE("sum-order", NULL, sum_order, "rank", "rank|ring", RUNS | P | V, MATCH, NULL,
           "the order of additions in solo and ps-sync: ring gives the same bytes as a ring over TCP"),
    CHOICE("transport", NULL, transport, "auto", "auto|shm|tcp", TRAIN | P | K, MATCH, NULL,
           "shared memory between ranks on one host, or always TCP"),
    REAL("bucket-cap-mb", NULL, bucket_cap_mb, "1", 1e-3, 4096, "REAL|auto", TRAIN | V, MATCH, NULL,
         "the largest size of a gradient bucket, in MiB; auto: 1, or 1/128 of a larger model, 32 at most"),
    BOOL("overlap", NULL, overlap, "on", TRAIN, 0, NULL,
         "send buckets while backward still runs"),

#undef GROUP
#define GROUP "who takes part"
    INT("workers", "n nproc nproc-per-node local-world-size", workers, "2", 1, 1000000, "N", C, STUDY | FIRST, "one per GPU with --device=cuda; else 2",
        "workers, started on this host (at most 1024); with --virtual, simulated ones"),
    INT("workers", "n nproc nproc-per-node local-world-size", workers, "2", 1, 1024, "N", R | K | A | ON(ENI_GPUS) | ON(ENI_JOIN),
        STUDY | FIRST, "one per GPU with --device=cuda; else 2, 1 with the strategy solo",
        "workers; run and check start them on this host; join adds this many"),
    INT("workers", "n nproc nproc-per-node local-world-size", workers, "4", 1, 1000000, "N", V, STUDY | FIRST, NULL,
        "simulated workers"),
    INT("processes", "n nproc nproc-per-node local-world-size", processes, "0", 1, 64, "N", E, FIRST, "one per core",
        "processes that share the test set; the result does not depend on it"),
    INT("rank", NULL, rank, NULL, 0, 4095, "N|new", W, ENV | FIRST, "RANK",
        "the number of this worker; new: join a running run (--max-workers)"),
    INT("world-size", NULL, world_size, NULL, 1, 4096, "N", W | P, MATCH | ENV | FIRST, "WORLD_SIZE",
        "workers of the run"),
    INT("max-workers", NULL, max_workers, "0", 1, ENI_PLACES_MAX, "N", R | W | P, MATCH | STUDY, "no newcomers",
        "seats: the most workers at any one time; others can join during the run if the strategy claims micro-batches"),
    INT("local-rank", NULL, local_rank, NULL, 0, 4095, "N", W, ENV, "LOCAL_RANK, or detected",
        "the number of this worker on its host"),
    INT("local-size", "local-world-size", local_size, NULL, 0, 4096, "N", W | V, ENV, "LOCAL_WORLD_SIZE, or detected",
        "workers per host; 0: all on one; one machine can stand for several hosts, with --host-id or in virtual time"),
    TEXT("host-id", NULL, host_id, NULL, "TEXT", NULL, NULL, R | W | P | K, STUDY, "detected",
         "workers with the same text share memory"),
    TEXT("groups", NULL, groups, NULL, "N|0-1;2-3", eni_rank_groups_check, NULL, R | W | V, 0,
         "the ranks of a host",
         "groups of ranks, for strategies that use them: a number of groups of neighbours, or lists separated by ';'"),
    INT("nnodes", NULL, nnodes, "1", 1, 4096, "N", LAUNCH, STUDY, NULL,
        "hosts that run this command, each with its own --node-rank; for run and check"),
    INT("node-rank", NULL, node_rank, "0", 0, 4095, "N", LAUNCH, STUDY, NULL,
        "the number of this host"),
    TEXT("master-addr", NULL, master_addr, NULL, "HOST", NULL, NULL, LAUNCH, STUDY, "none",
         "with --nnodes: the address of host 0"),
    INT("master-port", NULL, master_port, "29500", 1, 65535, "PORT", LAUNCH, STUDY, NULL,
        "with --nnodes: the port on host 0 where the run meets"),
    TEXT("server", NULL, server, NULL, "tcp://HOST:PORT", eni_check_endpoint, NULL, W, FIRST, "none",
         "where psd listens"),
    TEXT("rendezvous", "init-method", rendezvous, "tcp://127.0.0.1:23456", "tcp://HOST:PORT",
         check_rendezvous, NULL, W, ENV | FIRST, NULL,
         "the rendezvous of all ranks; or file:///PATH on a shared disk, or env:// (MASTER_ADDR, MASTER_PORT)"),
    TEXT("init-method", NULL, init_method, NULL, "tcp://HOST:PORT", eni_check_endpoint, NULL, LAUNCH, STUDY,
         "any free port of this host", "the rendezvous: --master-addr and --master-port in one"),
    TEXT("listen", NULL, listen, "tcp://127.0.0.1:5555", "tcp://HOST:PORT", eni_check_endpoint, NULL, P, FIRST,
         NULL,
         "the address of this server; port 0: the kernel chooses"),
    TEXT("token-file", NULL, token_file, NULL, "FILE", NULL, NULL, R | W | P | K, ENV | STUDY, "ENTRAIN_TOKEN_FILE, or one per user and port",
         "the shared secret of all processes of the run (mode 0600)"),
    BOOL("insecure", NULL, insecure, "off", R | W | P | K, 0, NULL,
         "allow an address that other machines can reach, although traffic is not encrypted"),
    INT("shards", NULL, shards, "0", 0, 256, "N", R | C | P | K | S | V, 0, NULL,
        "parts of the server, each with a thread and a share of every bucket; 0: two for weights of 16 MiB and more"),
    INT("servers", NULL, servers, "1", 1, 64, "N", R | C | P | K | A | S, 0, NULL,
        "psd processes; each holds --shards parts of every bucket"),
    INT("server-rank", NULL, server_rank, "0", 0, 63, "N", P, 0, NULL,
        "the number of this psd among --servers; psd 0 leads the run"),
    TEXT("leader", NULL, leader, NULL, "tcp://HOST:PORT", eni_check_endpoint, NULL, P, 0, "none",
         "where psd 0 listens, for every other psd"),
    TEXT("state", NULL, state, NULL, "FOLDER", NULL, NULL, P, FIRST, "none: losing psd ends the run",
         "the folder from which psd recovers after a crash"),
    INT("state-every", NULL, state_every, "64", 1, BIG, "UPDATES", R | C | P, 0, NULL,
        "updates between two writes of psd's state; workers keep the pushes since the last one"),
    TIME("server-timeout", server_timeout_ns, "0s", 0, 86400, TRAIN, MATCH, "0s: losing psd ends the run",
         "how long workers wait for a lost psd to come back"),
    INT("server-restarts", NULL, server_restarts, "0", 0, 1e6, "N", R | C, 0, NULL,
        "how many times a lost psd is restarted; needs --server-timeout"),
    CHOICE("on-worker-loss", NULL, on_worker_loss, "fail", "fail|continue", TRAIN, MATCH, NULL,
           "fail: a lost worker ends the run; continue: the others go on, if the strategy can"),
    TEXT("elastic", NULL, elastic, NULL, "MIN..MAX", check_elastic, NULL, R, STUDY, "off: a lost worker ends the run",
         "after a loss, `entrain join` or `entrain leave`, the run resumes from a checkpoint with the workers that it then has"),
    INT("max-restarts", NULL, max_restarts, "3", 0, 1e6, "N", R, STUDY, NULL,
        "with --elastic: how many losses of workers a run survives by restarting"),
    TIME("peer-timeout", peer_timeout_ns, "5s", 0.1, 86400, TRAIN | P | K, 0, NULL,
         "a peer without a heartbeat for this long is dead"),
    TIME("join-timeout", join_timeout_ns, "60s", 0.1, 86400, TRAIN | P | K, 0, NULL,
         "how long to wait for all workers at the start"),
    TIME("hook-timeout", hook_timeout_ns, "30s", 0, 86400, TRAIN_OURS | E | P | V | F, 0, "30s; 0s: no limit",
         "a plugin function that does not return within this time ends the run"),

#undef GROUP
#define GROUP "emulation"
    LIST("straggler", NULL, straggler, NULL, "RANK:FACTOR", check_straggler, R | W | S, ENI_KEY_COMMAS | FIRST, "none",
         "slows a rank down with seeded sleeps; may be repeated"),
    TEXT("net", NULL, net, NULL, "rate:RATE,delay:TIME", check_net, NULL, R | W | A | S | P | K, 0, "as it is",
         "emulates a slower network, such as rate:200MB,delay:50us or rate:1Gbit"),
    LIST("straggler", NULL, straggler, NULL, "RANK:FACTOR", check_slowdown, C, ENI_KEY_COMMAS | FIRST, "none",
         "slows a rank down with seeded sleeps; may be repeated; with --virtual, also as `entrain sim --help` lists it"),
    TEXT("net", NULL, net, NULL, "rate:RATE,delay:TIME", eni_net_links_check, NULL, C, 0, "as it is",
         "emulates a slower network, such as rate:200MB,delay:50us or rate:1Gbit; with --virtual, also as `entrain sim --help` lists it"),

#undef GROUP
#define GROUP "comparison"
    LIST("arm", NULL, arm, NULL, "[NAME=]STRATEGY[:KEY=VALUE,..]", check_arm, C, FIRST, "none",
         "an arm to compare: a strategy with its options and with flags of the run, optionally named; repeat it for each arm"),
    LIST("strategies", NULL, strategies, NULL, "NAME,NAME,..", check_name, C, ENI_KEY_COMMAS | FIRST, "none",
         "shorthand for one --arm per name"),
    LIST("seeds", NULL, seeds, NULL, "INT,INT,..", check_seed, C, ENI_KEY_COMMAS | ENI_KEY_RANGES | FIRST, "--seed",
         "every arm runs once per seed: 1,2,3 or 1..3"),
    LIST("settings", NULL, settings, "even", "even,slow", check_setting, C, ENI_KEY_COMMAS | FIRST, "even; slow with --straggler",
         "the settings to compare in: even, and slow (rank 1 slowed 3x, or as --straggler says); slow@1: slow with the first seed only"),
    BOOL("csv", NULL, csv, "off", ON(ENI_REPORT), 0, NULL,
         "also write the tables as CSV"),
    BOOL("latex", NULL, latex, "off", ON(ENI_REPORT), 0, NULL,
         "also write the table for a paper, table.tex"),
    CHOICE("figures", NULL, figures, "svg", "svg|pdf|png", ON(ENI_REPORT), 0, NULL,
           "pdf, png: also write every figure in that format"),
    TEXT("primary", NULL, primary, NULL, "SETTING:ARM:ARM", check_primary, NULL, C, 0, "none",
         "the one comparison that is tested by itself and listed first; arms numbered from 1: even:1:2"),
    TEXT("baseline", NULL, baseline, NULL, "ARM", NULL, NULL, C, 0, "none: all pairs of arms",
         "the arm to compare all others with: fewer comparisons, which need fewer seeds"),
    TEXT("tune", NULL, tune, NULL, "lr=V1,V2,..", check_tune, NULL, C, FIRST, "none",
         "before the study, run each arm once with each learning rate, on a seed of its own; the arm takes the one with the lowest loss on held-out samples"),
    BOOL("virtual", NULL, is_virtual, "off", C, FIRST, NULL,
         "every run is one of `entrain sim`: in virtual time, with many workers, several runs at once"),
    BOOL("retry-busy", NULL, retry_busy, "off", C, 0, NULL,
         "at the end, repeat once, with all arms, each seed during which other processes used the machine"),

#undef GROUP
#define GROUP "scaling"
    {GROUP, "ranks", "n workers nproc nproc-per-node local-world-size", ENI_KEY_LIST, AT(ranks), "1,2", 0, 0, "N,N,..", check_count, NULL, S,
     ENI_KEY_COMMAS | FIRST, NULL, "numbers of workers, one row each"},
    {GROUP, "arms", "strategy", ENI_KEY_LIST, AT(scaled), "ring", 0, 0, "NAME,NAME,..", check_strategy, NULL, S,
     ENI_KEY_COMMAS | FIRST, NULL, "the strategies to scale"},
    INT("repeats", "r", repeats, "3", 1, 99, "N", S | A, FIRST, NULL,
        "runs of each row, interleaved; the table has the median"),
    BOOL("validate", NULL, validate, "on", A, FIRST, NULL,
         "compare the prediction with short runs of 1, 2 and 4 workers on this host"),

#undef GROUP
#define GROUP "virtual time"
    INT("elements", NULL, elements, "1000", 48, 1e8, "N", V, 0, NULL, "weights of the problem without --model"),
    INT("bucket-cap", NULL, bucket_cap, "1024", 64, 64 << 20, "BYTES", V, 0, NULL, "the largest bucket"),
    TEXT("compute", NULL, compute, "fixed:1ms", "LAW:MEAN[,SPREAD]", check_compute, NULL, V, FIRST, NULL,
         "how long a gradient takes: fixed:10ms, exp:10ms, lognormal:10ms,0.5 (sigma), pareto:10ms,2.5 (exponent), "
         "shifted-exp:10ms,6ms (minimum); per rank, such as 0-3=exp:10ms;4=fixed:40ms; a FILE with a time in seconds "
         "for each rank; from:OUT, drawn from the steps of a finished run; or trace:OUT or trace:FILE, its steps in order"),
    LIST("straggler", NULL, straggler, NULL, "RANKS:FACTOR", check_slowdown, V, ENI_KEY_COMMAS | FIRST, "none",
         "slow ranks: 1:4 or 0-9:3, always; transient:4:0.05:20, in each step with probability 0.05 for 20 steps; "
         "rotating:4:100, each rank in turn for 100 steps; or 0-3=rotating:4:100; may be repeated"),
    TEXT("net", NULL, net, NULL, "rate:RATE,delay:TIME", eni_net_links_check, NULL, V, 0, NULL,
         "each link; then, after ';', those of some: 8-15=rate:100Mbit,delay:20ms, servers=.., "
         "or machines=.., which the ranks of a machine (--local-size) share"),
    TEXT("server-time", NULL, server_time, NULL, "LAW|TIME[/MB]", check_server_time, NULL, V | C, 0, "no time",
         "how long a server works on a message, one at a time: 200us, exp:200us, 1ms/MB, 200us+1ms/MB"),
    TEXT("replay-order", NULL, replay_order, NULL, "OUT", NULL, NULL, V, 0, "the order of virtual time",
         "play the order of a run with --record-order and this --out: the same weights"),
    TEXT("compute", NULL, compute, "fixed:1ms", "LAW:MEAN[,SPREAD]", check_compute, NULL, C, 0, NULL,
         "with --virtual: how long a gradient takes, as `entrain sim --help` lists it"),
    LIST("join", NULL, join, NULL, "RANK@TIME", check_visit, V, ENI_KEY_COMMAS, "all ranks at the start",
         "when a rank joins, if the strategy claims micro-batches; may be repeated"),
    LIST("leave", NULL, leave, NULL, "RANK@TIME", check_visit, V, ENI_KEY_COMMAS, "no rank leaves",
         "when a rank leaves, after its step; may be repeated"),
    INT("events", NULL, events, "0", 0, 1e9, "LINES", V, 0, NULL, "lines of the event log to show"),
    BOOL("storm", NULL, storm, "off", V, 0, NULL,
         "inject faults: lost messages, stores and ranks that die; everything but the strategy is drawn from the seed"),
    INT("seeds", NULL, storms, "1", 1, 1e9, "N", V | F, FIRST, NULL, "with --storm, and for conform: number of seeds, from --seed on"),
    CHOICE("promise", NULL, promise, "auto", "auto|ends|may-drop|exact|at-once", V, 0, NULL,
           "what must hold under --storm; auto: a built-in strategy's promise, else ends"),

    TEXT("as", NULL, as, NULL, "STRATEGY[:KEY=VALUE,..]", check_strategy, NULL, F, FIRST, "the plugin's own name",
         "the strategy that the plugin claims to be, and the options of its reference"),

#undef GROUP
#define GROUP "output"
    BOOL("json", NULL, json, "off", ON(ENI_GPUS) | ON(ENI_PS) | V | F, 0, NULL,
         "print JSON, for programs"),
    INT("log-every", NULL, log_every, "10", 0, BIG, "STEPS", TRAIN, 0, NULL,
        "steps between two lines of progress; 0: no lines"),
    AMOUNT("eval-every", eval_every, TRAIN | V, MATCH, "see --eval-points",
           "global samples between two snapshots, for a curve evaluated after training"),
    BOOL("eval-first", NULL, eval_first, "off", R | C | W | V, MATCH, "off; with a target the curve begins there anyway",
         "start the curve with the initial weights"),
    INT("eval-points", NULL, eval_points, "0", 0, 10000, "N", R | C | W | V, MATCH,
        "48 with a target; else 0: the end only",
        "without --eval-every: number of points over the run"),
    {GROUP, "target", NULL, ENI_KEY_TARGET, AT(target), "0", 0, 0, "PERCENT|loss:VALUE", NULL, NULL, R | C | W | V | ON(ENI_REPORT), FIRST,
     "75 in compare, the folder's in report, else none",
     "report the time to this accuracy, or loss, of the holdout, or of the test set without one"},
    INT("eval-batch-size", NULL, eval_batch_size, "200", 1, 1 << 20, "SAMPLES", TRAIN_OURS | E, 0, NULL,
        "samples per step of the evaluation; the result does not depend on it"),
    CHOICE("log-level", NULL, log_level, "info", "error|warn|info|debug|trace", ALL, 0, NULL,
           "how much goes to stderr"),
    BOOL("verbose", "v", verbose, "off", K, FIRST, NULL,
         "also print tables: latency and bandwidth, an all-reduce by algorithm and size; with --net=rate:200mbit, its formulas"),
    BOOL("quiet", "q", quiet, "off", ALL, CALL | STUDY, NULL,
         "no progress, only the result"),
    TEXT("config", NULL, config, NULL, "FILE", NULL, NULL, COMMANDS, ENI_KEY_FLAG_ONLY | STUDY, "none",
         "a YAML file with the same keys, `lr: 0.1`; flags override it"),
    TEXT("help", "h", help, NULL, "all", check_help, "page", COMMANDS, ENI_KEY_FLAG_ONLY | STUDY | FIRST, "",
         "the most used flags; all: every flag"),
    BOOL("version", NULL, version, "off", COMMANDS, ENI_KEY_FLAG_ONLY | STUDY, "",
         "print the version"),

#undef GROUP
#define GROUP "internal"
    INT("listen-fd", NULL, listen_fd, NULL, 0, 1 << 20, "FD", W | P, HIDDEN, NULL,
        "an inherited socket that listens already"),
    INT("token-fd", NULL, token_fd, NULL, 0, 1 << 20, "FD", W | P, HIDDEN, NULL,
        "an inherited descriptor with the job token"),
    INT("result-fd", NULL, result_fd, NULL, 0, 1 << 20, "FD", W | P | V, HIDDEN, NULL,
        "an inherited pipe to the launcher"),
    INT("begin-ns", NULL, begin_ns, "0", 0, 9e18, "NS", W, HIDDEN, NULL, "start of this run by the launcher"),
    INT("out-fd", NULL, out_fd, NULL, 0, 1 << 20, "FD", W, HIDDEN, NULL,
        "the folder of --out, locked by the launcher for this run"),
    INT("data-fd", NULL, data_fd, NULL, 0, 1 << 20, "FD", O, HIDDEN, NULL,
        "the memory of the data set, which the launcher keeps between attempts of an elastic run"),
    TEXT("takes", NULL, takes, NULL, "MIN..MAX:SAMPLES", NULL, NULL, W | P, HIDDEN, NULL,
         "numbers of workers that can be requested (--elastic)"),
    TIME("gpu-timeout", gpu_timeout_ns, "300s", 0.1, 86400, R | O, HIDDEN, NULL,
         "a GPU that does not answer within this time ends the run; for tests"),
    BOOL("mute", NULL, mute, "off", R | W, HIDDEN, NULL, "no output for people: compare and scale report for their runs"),
    BOOL("check", NULL, check, "off", O, HIDDEN, NULL, "join, try the exchange, and leave"),
    TEXT("probe", NULL, probe, NULL, "call|copy|compute|MIN..MAX", NULL, NULL, O, HIDDEN, NULL, "with --check: what to measure"),
#undef GROUP
};
/* clang-format on */

const int eni_key_count = sizeof eni_keys / sizeof eni_keys[0];
_Static_assert(sizeof eni_keys / sizeof eni_keys[0] <= ENI_CONFIG_KEYS_MAX, "eni_config.origin is too short");

const eni_foreign eni_foreigns[] = {
    {"backend", "gloo", "for collectives on the CPU give --backend=host"},
    {"backend", "mpi", "for collectives on the CPU give --backend=host, which does not use MPI"},
    {"backend", "cpu", "for the CPU give --backend=host; --device=cpu chooses where to compute"},
    {"device", "gpu", "give --device=cuda, or cuda:1 for the second GPU"},
    {NULL, NULL, NULL},
};

const eni_program_info eni_programs[ENI_PROGRAMS] = {
    [ENI_RUN] = {"entrain run", "[FLAG ..] [-- PROGRAM ARGUMENT ..]",
                 "Trains one model with one strategy on several workers of this host.", 0, 0, ""},
    [ENI_COMPARE] =
        {"entrain compare", "--arm=.. --arm=.. [FLAG ..] [-- PROGRAM ARGUMENT ..]",
         "Runs several strategies on the same job, interleaved and with the same seeds, and compares them.",
         0, 0, "lr-scale=linear target=75"},
    [ENI_WORKER] = {"worker", "[FLAG ..]",
                    "One worker of a run: computes gradients and exchanges them by its strategy.", 0, 0, ""},
    [ENI_RANK] = {"a program (entrain/rank.h)", "", "A program of the user's as one worker of a run.", 0, 0,
                  "bucket-cap-mb=auto"},
    [ENI_PSD] = {"psd", "[FLAG ..]", "The parameter server: holds the weights in shards and updates them.", 0,
                 0, "strategy=ps-sync"},
    [ENI_EVAL] = {"entrain eval", "--init=FILE [-n N] [FLAG ..]",
                  "Evaluates saved weights on the test set: loss and accuracy.", 0, 0, ""},
    [ENI_PREDICT] =
        {"entrain predict", "--init=FILE [-n N] [FLAG ..]",
         "Predicts a class for each sample of the test set, as a line INDEX LABEL CLASS PROBABILITY.", 0, 0,
         ""},
    [ENI_CHECK] =
        {"entrain check", "[FLAG ..]",
         "Checks that processes can communicate: one all-reduce and one push-pull with a known sum.", 0, 0,
         ""},
    [ENI_REPORT] =
        {"entrain report", "FOLDER [FOLDER ..] [FLAG ..]",
         "Makes report.html from the files of runs; of several folders in the first one, or in --out.", 1, 8,
         ""},
    [ENI_STRATEGIES] = {"entrain strategies", "[NAME|FILE.so ..]",
                        "Lists strategies with options and papers.", 0, 64, ""},
    [ENI_MODELS] = {"entrain models", "[NAME ..]", "Lists models with layers and parameters.", 0, 64, ""},
    [ENI_DATA] = {"entrain data", "[NAME|FOLDER|URL ..]", "Lists data sets, or describes one.", 0, 64, ""},
    [ENI_PS] = {"entrain ps", "[--json]", "Lists this user's runs on this host.", 0, 0, ""},
    [ENI_STOP] = {"entrain stop", "RUN", "Ends a run that `entrain ps` lists, as Ctrl-C would.", 1, 1, ""},
    [ENI_ADVISE] =
        {"entrain advise", "-n N --net=rate:RATE,delay:TIME [FLAG ..]",
         "Measures this machine and predicts the step time of a ring and of 1 .. --servers servers.", 0, 0,
         "steps=80 limit-test-samples=64"},
    [ENI_SCALE] = {"entrain scale", "-n 1,2,4 --global-batch-size=64 [FLAG ..] [-- PROGRAM ARGUMENT ..]",
                   "Strong and weak scaling: real runs at several numbers of workers.", 0, 0,
                   "steps=100 limit-test-samples=64"},
    [ENI_SIM] =
        {"entrain sim", "[FLAG ..]",
         "Runs a strategy in virtual time, on a made-up problem or a network (--model), in one process.", 0,
         0,
         "workers=4 steps=100 lr=0.01 momentum=0 weight-decay=0 local-size=0 shards=1 "
         "net=rate:1000MB,delay:50us"},
    [ENI_GPUS] = {"entrain gpus", "[-n N] [--stages=S] [--json]",
                  "Lists this host's GPUs, how they are linked, and which rank uses which.", 0, 0, ""},
    [ENI_JOIN] = {"entrain join", "RUN [-n N]",
                  "Adds workers to an elastic run that `entrain ps` lists, from a checkpoint on.", 1, 1,
                  "workers=1"},
    [ENI_LEAVE] = {"entrain leave", "RUN RANK",
                   "Removes a worker from an elastic run that `entrain ps` lists, from a checkpoint on.", 2,
                   2, ""},
    [ENI_CONFORM] =
        {"entrain conform", "[STRATEGY[:KEY=VALUE,..]|./FILE.so ..] [--as=STRATEGY]",
         "Compares strategies with their papers: every decision and weight under random schedules.", 0, 64,
         "seeds=200"},
};

const char *eni_program_name(eni_program program)
{
    return program >= 0 && program < ENI_PROGRAMS ? eni_programs[program].name : "entrain";
}

static bool same_name(const char *known, size_t known_length, const char *name, size_t length)
{
    if (known_length != length) return false;
    for (size_t i = 0; i < length; i++)
        if (known[i] != (name[i] == '_' ? '-' : name[i])) return false;
    return true;
}

static bool goes_by(const eni_key *key, const char *name, size_t length)
{
    const size_t own = strlen(key->name);
    if ((key->flags & ENI_KEY_NAMED) != 0 && length > own + 1 && name[own] == '.') length = own;
    if (same_name(key->name, own, name, length)) return true;
    for (const char *alias = key->aliases; alias != NULL && *alias != '\0';) {
        size_t word = strcspn(alias, " ");
        if (same_name(alias, word, name, length)) return true;
        alias += word + strspn(alias + word, " ");
    }
    return false;
}

int eni_key_find(const char *name, size_t length)
{
    for (int k = 0; k < eni_key_count; k++)
        if (goes_by(&eni_keys[k], name, length)) return k;
    return -1;
}

int eni_key_named(const char *name)
{
    return eni_key_find(name, strlen(name));
}

int eni_key_find_for(eni_program program, const char *name, size_t length)
{
    for (int k = 0; k < eni_key_count; k++)
        if (eni_key_applies(&eni_keys[k], program) && goes_by(&eni_keys[k], name, length)) return k;
    return eni_key_find(name, length);
}

bool eni_key_applies(const eni_key *key, eni_program program)
{
    return (key->programs >> program & 1) != 0;
}

int eni_config_origin(const eni_config *config, const char *key)
{
    const int k = eni_key_find_for(config->program, key, strlen(key));
    return k < 0 ? ENI_FROM_DEFAULT : config->origin[k];
}

bool eni_config_is_given(const eni_config *config, const char *key)
{
    return eni_config_origin(config, key) != ENI_FROM_DEFAULT;
}

/* By its name: EN_ALONE is known only after a plugin is loaded, long after all flags are read. Any other strategy for one
 * process, a user's plugin, is refused with -n 2 by a message that asks for -n 1. */
bool eni_config_is_solo(const eni_config *config)
{
    return eni_spec_head(config->strategy) == 4 && strncmp(config->strategy, "solo", 4) == 0;
}

bool eni_config_takes(const eni_config *config, const char *key)
{
    return eni_key_applies(&eni_keys[eni_key_named(key)], config->program);
}

const char *eni_key_fallback(const eni_key *key, eni_program program, char word[64])
{
    size_t name = strlen(key->name);
    for (const char *own = eni_programs[program].defaults; *own != '\0';) {
        size_t length = strcspn(own, " ");
        if (length > name + 1 && length - name - 1 < 64 && own[name] == '=' &&
            strncmp(own, key->name, name) == 0) {
            memcpy(word, own + name + 1, length - name - 1);
            word[length - name - 1] = '\0';
            return word;
        }
        own += length + strspn(own + length, " ");
    }
    return key->fallback;
}

/* ---- suggestions for misspelt words -------------------------------------------------------------------- */

const char *eni_key_nearest(eni_program program, const char *word)
{
    const char *best = NULL;
    for (int k = 0; k < eni_key_count; k++) {
        const eni_key *key = &eni_keys[k];
        const bool is_there = eni_key_applies(key, program) && (key->flags & ENI_KEY_HIDDEN) == 0;
        if (is_there && eni_is_nearer(word, key->name, best)) best = key->name;
    }
    return best;
}

bool eni_word_nearest(const char *words, const char *word, char near_out[64])
{
    *near_out = '\0';
    while (*words != '\0') {
        char known[64];
        const size_t length = strcspn(words, "|");
        snprintf(known, sizeof known, "%.*s", (int)length, words);
        if (eni_is_nearer(word, known, *near_out == '\0' ? NULL : near_out)) memcpy(near_out, known, 64);
        words += length + (words[length] == '|');
    }
    return *near_out != '\0';
}
