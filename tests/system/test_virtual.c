/* test_virtual.c - `entrain sim --model`: a network in virtual time ends with the bytes of a run on real ranks, and leaves the
 * same files. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/system/run.h"

/* Promise: a network in virtual time ends with the weights of a run on real ranks, byte for byte. */
/* Promise: a run in virtual time leaves the files of a run on real ranks, with the same results and the same curve over samples. */

#define COMMON                                                                                               \
    "--limit-train-samples=103 --limit-test-samples=16 --epochs=2 --batch-size=8 --device=ref --lr=0.02 "    \
    "--seed=3"

typedef struct virtual_case {
    const char *strategy, *network;
} virtual_case;

static const virtual_case cases[] = {
    {"ring", "--model=mlp --momentum=0.9 --data=synthetic"},
    {"ps-sync --shards=3", "--model=mlp --momentum=0.9 --data=synthetic"},
    {"hybrid:ps=fc1.weight", "--model=convnet --optimizer=adamw --data=synthetic"},
    {"hierarchical", "--model=mlp --nesterov --momentum=0.5 --data=synthetic"},
    {"grouped:period=4 --groups=2", "--model=mlp --lr-schedule=cosine --lr-warmup=40 --data=synthetic"},
    {"ring", "--model=resnet18:width=2,stem=cifar --data=synthetic --momentum=0.9 --augment=crop:32:4,flip"},
};

static void virtual_hash(const virtual_case *c, int workers, char hash_out[HASHES])
{
    process p;
    process_start(&p, "entrain", NULL, "sim -n %d --strategy=%s %s " COMMON " --json", workers, c->strategy,
                  c->network);
    const int code = process_wait(&p, 120);
    json_t *said = json_loads(process_out(&p), 0, NULL);
    if (code != 0 || said == NULL)
        fail_msg("sim, %s, %s: exit %d\n%s", c->strategy, c->network, code, process_err(&p));
    snprintf(hash_out, HASHES, "%s", text_at(said, "params_sha256"));
    json_decref(said);
}

static void virtual_is_real(void **state)
{
    char hash[HASHES];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int workers = 2; workers <= 4; workers++) {
            if (workers == 3 && strstr(cases[i].strategy, "groups=2") != NULL)
                continue; /* of two and of one */
            virtual_hash(&cases[i], workers, hash);
            json_t *real =
                train(120, "-n %d --strategy=%s %s " COMMON, workers, cases[i].strategy, cases[i].network);
            if (strcmp(hash, text_at(real, "params_sha256")) != 0)
                fail_msg("%s, %s, %d workers: %s in virtual time, %s on real ranks", cases[i].strategy,
                         cases[i].network, workers, hash, text_at(real, "params_sha256"));
            json_decref(real);
        }
    promise("ring, ps-sync, hybrid, hierarchical, grouped in virtual time = on real ranks, W = 2, 3, 4: mlp, "
            "convnet "
            "(AdamW), resnet18 (crops, running statistics), ragged ends");
}

/* ---- files ---- */

#define OF_BOTH "--model=mlp --data=synthetic --momentum=0.9 --eval-every=30 --holdout=20 --target=90 " COMMON

/* `entrain sim --out` with these flags. */
static void simulate(const char *out, const char *flags)
{
    process p;
    process_start(&p, "entrain", NULL, "sim --out=%s %s", out, flags);
    if (process_wait(&p, 120) != 0) fail_msg("sim %s\n%s", flags, process_err(&p));
}

static json_t *result_in(const char *dir)
{
    char path[600];
    snprintf(path, sizeof path, "%s/result.json", dir);
    json_t *result = json_load_file(path, 0, NULL);
    if (result == NULL) fail_msg("no %s", path);
    return result;
}

static void expect_same(const json_t *real, const json_t *virtual, const char *const *keys, const char *where)
{
    for (size_t i = 0; keys[i] != NULL; i++) {
        const json_t *a = json_object_get(real, keys[i]), *b = json_object_get(virtual, keys[i]);
        if (a != b && !json_equal(a, b)) /* both NULL: "bracket" of a point of the grid */
            fail_msg("%s: %s is %s on real ranks, %s in virtual time", where, keys[i],
                     json_dumps(a, JSON_ENCODE_ANY), json_dumps(b, JSON_ENCODE_ANY));
    }
}

static void expect_same_lines(const char *real, const char *virtual, const char *name,
                              const char *const *keys)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", real, name);
    json_t *a = read_lines(path);
    snprintf(path, sizeof path, "%s/%s", virtual, name);
    json_t *b = read_lines(path);
    assert_true(json_array_size(a) > 3);
    assert_int_equal(json_array_size(a), json_array_size(b));
    for (size_t i = 0; i < json_array_size(a); i++)
        expect_same(json_array_get(a, i), json_array_get(b, i), keys, path);
    json_decref(a);
    json_decref(b);
}

/* The members that do not depend on time or on what carries the vectors. */
static const char *const of_result[] = {
    "schema",          "strategy",     "strategy_options", "workers",
    "model",           "data",         "data_sha256",      "seed",
    "budget",          "holdout",      "target",           "device",
    "shards",          "buckets",      "batch_size",       "lr",
    "momentum",        "assign",       "per_worker",       "steps",
    "updates",         "train_loss",   "train_accuracy",   "test_loss",
    "init_sha256",     "order_sha256", "params_sha256",    "diverged",
    "test_accuracy",   "stragglers",   "theory_bytes",     "samples_computed",
    "samples_applied", "exit",         "payload_bytes",    NULL};
static const char *const of_point[] = {"samples",          "update",  "holdout_loss",
                                       "holdout_accuracy", "bracket", NULL};
static const char *const of_step[] = {"step",     "epoch",        "samples",       "nsamples",
                                      "update",   "base_version", "loss",          "lr",
                                      "accuracy", "schema",       "payload_bytes", NULL};

static void files_are_those_of_a_run(void **state)
{
    static const char *const strategies[] = {"ring", "ps-sync --shards=1"};
    char out[300], again[340], flags[700];
    (void)state;
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        snprintf(flags, sizeof flags, "-n 2 --strategy=%s " OF_BOTH, strategies[i]);
        snprintf(out, sizeof out, "%s/virtual-%zu", system_folder(), i);
        json_t *real = train(120, "%s", flags);
        simulate(out, flags);
        json_t *virtual = result_in(out);
        expect_same(real, virtual, of_result, strategies[i]);
        assert_null(json_object_get(real, "simulated"));
        assert_string_equal(text_at(virtual, "simulated.clock"), "virtual");
        expect_same_lines(train_out(), out, "eval.jsonl", of_point);
        expect_same_lines(train_out(), out, "metrics-0.jsonl", of_step);
        expect_same_lines(train_out(), out, "metrics-1.jsonl", of_step);

        /* its own config.yaml repeats it to the last event, that of the real run to the last byte of the weights */
        snprintf(again, sizeof again, "%s-again", out);
        snprintf(flags, sizeof flags, "--config=%s/config.yaml", out);
        simulate(again, flags);
        json_t *repeated = result_in(again);
        assert_string_equal(text_at(repeated, "simulated.log_sha256"),
                            text_at(virtual, "simulated.log_sha256"));
        json_decref(repeated);
        snprintf(again, sizeof again, "%s-real", out);
        snprintf(flags, sizeof flags, "-n 2 --shards=1 --config=%s/config.yaml", train_out());
        simulate(again, flags);
        repeated = result_in(again);
        assert_string_equal(text_at(repeated, "params_sha256"), text_at(real, "params_sha256"));
        json_decref(repeated);
        json_decref(virtual);
        json_decref(real);
    }
    promise(
        "ring, ps-sync, W = 2: result.json, eval.jsonl and metrics of a run in virtual time = those on real "
        "ranks, but for times and moved bytes");
}

/* More than 64 ranks share a file of metrics; the report reads it. */
static void many_ranks_share_a_file(void **state)
{
    char out[300], path[400];
    process p;
    (void)state;
    snprintf(out, sizeof out, "%s/many", system_folder());
    simulate(out,
             "-n 65 --strategy=ps-async --compute=exp:10ms --max-samples=1040 --model=mlp --data=synthetic "
             "--limit-train-samples=520 --limit-test-samples=16 --batch-size=8 --device=ref");
    snprintf(path, sizeof path, "%s/metrics-all.jsonl", out);
    json_t *lines = read_lines(path), *line;
    size_t i;
    double samples = 0;
    json_array_foreach(lines, i, line)
    {
        assert_in_range(json_integer_value(json_object_get(line, "rank")), 0, 64);
        samples += number_at(line, "nsamples");
    }
    assert_true(samples > 1039 && samples < 1041);
    json_decref(lines);
    process_start(&p, "entrain", NULL, "report %s", out);
    assert_int_equal(process_wait(&p, 60), 0);
    process_start(&p, "entrain", NULL, "sim -n 2 --steps=3 --model=mlp --data=synthetic --overwrite --out=%s",
                  out);
    assert_int_equal(process_wait(&p, 60), 0);
    assert_int_not_equal(access(path, F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(virtual_is_real),
                                       cmocka_unit_test(files_are_those_of_a_run),
                                       cmocka_unit_test(many_ranks_share_a_file)};
    return system_main(tests);
}
