/* dataset.c - opens a set: which one is meant, where it comes from (dataset_make.h: read from files, made up, or
 * lent by another process), and whether it is what the model and the options ask for; see dataset.h. What is
 * done with an open set is in samples.c. */
#include "data/dataset.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "data/dataset_make.h"

typedef unsigned long long ull;

static const struct named {
    const char *name, *folder, *remedy, *help;
} table[] = {
    {"fashion-mnist", "/usr/share/datasets/fashion-mnist",
     "apt-get install dataset-fashion-mnist, or name the folder that holds it with --data-dir",
     "60,000 + 10,000 images of clothes, 28 x 28 grey, 10 classes (Debian: dataset-fashion-mnist)"},
    {"mnist", "/usr/share/datasets/mnist",
     "Debian does not package it: name the folder that holds its four IDX files with --data-dir",
     "60,000 + 10,000 handwritten digits, 28 x 28 grey, 10 classes"},
    {"synthetic", NULL, NULL, "made up from --seed in the shape that the model asks for"},
};
enum { NAMED = sizeof table / sizeof table[0] };

const char *eni_dataset_name_at(int i)
{
    return i >= 0 && i < NAMED ? table[i].name : NULL;
}

const char *eni_dataset_help_at(int i)
{
    return i >= 0 && i < NAMED ? table[i].help : NULL;
}

static const struct named *find_named(const char *name)
{
    for (int i = 0; i < NAMED; i++)
        if (strcmp(table[i].name, name) == 0) return &table[i];
    return NULL;
}

eni_data_want eni_data_want_of(const en_schema *schema)
{
    const en_extent *input = &schema->network->input;
    const int is_regression = schema->loss == EN_OP_MSE, outputs = (int)schema->outputs;
    return (eni_data_want){.height = (int)input->h,
                           .width = (int)input->w,
                           .channels = (int)input->c,
                           .classes = is_regression ? 0 : outputs,
                           .targets = is_regression ? outputs : 0};
}

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Where the files of a set are; NULL: it is made. */
static const char *folder_of(const eni_data_options *options)
{
    const struct named *named = find_named(options->name);
    if (named == NULL) return options->name;
    return named->folder != NULL && options->folder != NULL ? options->folder : named->folder;
}

/* NULL: a folder that has no name among ours. */
static en_status find_set(const eni_data_options *options, const struct named **named_out)
{
    *named_out = find_named(options->name);
    if (*named_out != NULL || is_folder(options->name)) return EN_OK;
    eni_error("dataset",
              "there is neither a set nor a folder \"%s\": --data takes fashion-mnist, mnist, "
              "synthetic or a folder with the four IDX files",
              options->name);
    return EN_ENOENT;
}

static const char *remedy_of(const struct named *named)
{
    return named != NULL ? named->remedy
                         : "a set is four files, {train,t10k}-{images-idx3,labels-idx1}-ubyte, plain or .gz";
}

static en_status read_named(const eni_data_options *options, eni_dataset *set)
{
    const struct named *named;
    EN_TRY(find_set(options, &named));
    snprintf(set->name, sizeof set->name, "%s", named != NULL ? named->name : "folder");
    eni_debug("dataset", "reading %s", set->name);
    if (named != NULL && named->folder == NULL) return eni_dataset_make(options, set);
    return eni_dataset_read_folder(folder_of(options), remedy_of(named), set);
}

en_status eni_dataset_train_size(const eni_data_options *options, uint64_t *size_out)
{
    const struct named *named;
    EN_TRY(find_set(options, &named));
    if (named == NULL || named->folder != NULL)
        return eni_dataset_folder_size(folder_of(options), remedy_of(named), size_out);
    *size_out = eni_dataset_made_size(options);
    return EN_OK;
}

static en_status refuse_limit(const eni_data_options *options, int split, uint64_t limit, uint64_t count)
{
    eni_error("dataset", "--limit-%s-samples %llu is more than the %llu samples of %s%s: give at most that",
              split == ENI_TRAIN ? "train" : "test", (ull)limit, (ull)count, options->name,
              split == ENI_TRAIN && options->holdout > 0 ? " that --holdout leaves" : "");
    return EN_EINVAL;
}

/* Before anything is read: what is left to train on must be worth it. */
static en_status check_holdout(const eni_data_options *options)
{
    uint64_t size;
    if (options->holdout == 0) return EN_OK;
    EN_TRY(eni_dataset_train_size(options, &size));
    if (options->holdout <= eni_dataset_most_held_out(size)) return EN_OK;
    eni_error("dataset",
              "--holdout=%llu is more than a tenth of the %llu training samples of %s: give at most %llu",
              (ull)options->holdout, (ull)size, options->name, (ull)eni_dataset_most_held_out(size));
    return EN_EINVAL;
}

en_status eni_dataset_check(const eni_data_options *options)
{
    uint64_t size;
    EN_TRY(check_holdout(options));
    EN_TRY(eni_dataset_train_size(options, &size));
    if (options->limit_train <= size - options->holdout) return EN_OK;
    return refuse_limit(options, ENI_TRAIN, options->limit_train, size - options->holdout);
}

/* The last ones; their memory stays that of the training samples. */
static void hold_out(uint64_t n, eni_dataset *set)
{
    eni_split *train = &set->split[ENI_TRAIN], *held = &set->split[ENI_HOLDOUT];
    const uint64_t rest = train->count - n;
    train->count = rest;
    held->count = n;
    if (train->images != NULL) held->images = train->images + rest * set->sample_floats;
    if (train->labels != NULL) held->labels = train->labels + rest;
    if (train->features != NULL) held->features = train->features + rest * set->sample_floats;
    if (train->targets != NULL) held->targets = train->targets + rest * (uint64_t)set->targets;
}

/* Real sets shrink to their limit; made-up ones were made at it. */
static en_status apply_limits(const eni_data_options *options, eni_dataset *set)
{
    const uint64_t limit[2] = {options->limit_train, options->limit_test};
    for (int s = ENI_TRAIN; s <= ENI_TEST; s++)
        set->split[s].read = set->split[s].count;
    if (options->holdout > set->split[ENI_TRAIN].count) return EN_EPROTO; /* a lent set is another one */
    if (options->holdout > 0) hold_out(options->holdout, set);
    for (int s = ENI_TRAIN; s <= ENI_TEST; s++) {
        if (limit[s] > set->split[s].count) return refuse_limit(options, s, limit[s], set->split[s].count);
        if (limit[s] > 0) set->split[s].count = limit[s];
    }
    return EN_OK;
}

static en_status check_labels(const eni_dataset *set)
{
    for (int s = 0; s < ENI_SPLITS; s++) {
        const eni_split *split = &set->split[s];
        for (uint64_t i = 0; split->labels != NULL && i < split->count; i++) {
            if (split->labels[i] < set->classes) continue;
            eni_error("dataset", "%s: label %u of %s sample %llu is not in 0 .. %d", set->name,
                      split->labels[i],
                      s == ENI_TRAIN  ? "training"
                      : s == ENI_TEST ? "test"
                                      : "held-out",
                      (ull)i, set->classes - 1);
            return EN_EFORMAT;
        }
    }
    return EN_OK;
}

static en_status check_want(const eni_data_want *want, const eni_dataset *set)
{
    int same = (want->height == 0 || want->height == set->height) &&
               (want->width == 0 || want->width == set->width) &&
               (want->channels == 0 || want->channels == set->channels) &&
               (want->classes == 0 || want->classes == set->classes) &&
               (want->targets == 0 || want->targets == set->targets);
    /* a vector model takes an image of as many values, flattened */
    int flat = want->height == 1 && want->width == 1 && want->targets == 0 &&
               (want->classes == 0 || want->classes == set->classes) &&
               (size_t)want->channels == set->sample_floats;
    if (same || flat) return EN_OK;
    eni_error(
        "dataset",
        "%s has samples of %d x %d x %d with %d classes and %d targets, the model takes %d x %d x %d with "
        "%d and %d: choose another --data or --model",
        set->name, set->height, set->width, set->channels, set->classes, set->targets, want->height,
        want->width, want->channels, want->classes, want->targets);
    return EN_EMISMATCH;
}

/* MNIST's mean and deviation for every set of images, Fashion-MNIST too: the job that this reader serves is
 * the MNIST convnet as published, whose PyTorch peer uses them for both. */
static void set_normalisation(eni_dataset *set)
{
    int is_image = set->classes > 0;
    set->mean = is_image ? 0.1307f : 0.0f;
    set->std = is_image ? 0.3081f : 1.0f;
    for (int pixel = 0; pixel < 256; pixel++) {
        float unit = (float)pixel / 255.0f;
        float centred = unit - set->mean;
        set->table[pixel] = centred / set->std;
    }
}

en_status eni_dataset_open(const eni_data_options *options, eni_dataset **dataset_out)
{
    en_status st;
    eni_dataset *set = eni_alloc(sizeof *set);
    if (set == NULL) return EN_ENOMEM;
    EN_TRY_GOTO(check_holdout(options), close_set);
    EN_TRY_GOTO(options->lent_fd != NULL ? eni_dataset_map(*options->lent_fd, set) : read_named(options, set), close_set);
    set->sample_floats = (size_t)set->height * (size_t)set->width * (size_t)set->channels;
    EN_TRY_GOTO(check_want(&options->want, set), close_set);
    EN_TRY_GOTO(apply_limits(options, set), close_set);
    EN_TRY_GOTO(check_labels(set), close_set);
    set_normalisation(set);
    *dataset_out = set;
    return EN_OK;
close_set:
    eni_dataset_close(set);
    return st;
}

/* ---- who has the same set ---- */

/* What the file is now, or that it is not there. */
static int describe_file(const char *folder, const char *name, char *text_out, size_t bytes)
{
    char path[PATH_MAX];
    struct stat s;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path || stat(path, &s) != 0)
        return 0;
    return snprintf(text_out, bytes, "%s %llu %llu %lld %lld.%09ld %lld.%09ld\n", name, (ull)s.st_dev,
                    (ull)s.st_ino, (long long)s.st_size, (long long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec,
                    (long long)s.st_ctim.tv_sec, s.st_ctim.tv_nsec);
}

void eni_dataset_identity(const eni_data_options *options, const char *scope, char hex_out[ENI_DIGEST_HEX])
{
    static const char *const files[] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                        "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};
    const eni_data_want *want = &options->want;
    const char *folder = folder_of(options);
    char text[4096], name[64];
    size_t at = (size_t)snprintf(text, 2048, "%.512s %u\n%.256s %llu %llu %llu %llu %d %d %d %d %d\n", scope,
                                 (unsigned)geteuid(), options->name, (ull)options->seed,
                                 (ull)options->holdout, (ull)options->limit_train, (ull)options->limit_test, want->height,
                                 want->width, want->channels, want->classes, want->targets);
    for (size_t i = 0; folder != NULL && i < 2 * sizeof files / sizeof *files; i++) {
        snprintf(name, sizeof name, "%s%s", files[i / 2], i % 2 ? "" : ".gz");
        at += (size_t)describe_file(folder, name, text + at, sizeof text - at);
    }
    eni_digest_of(text, at, hex_out);
}
