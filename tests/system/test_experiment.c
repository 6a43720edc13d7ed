/* test_experiment.c - a run in virtual time leaves the files of a run on real ranks, and so does a study of them. */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/system/run.h"

/* Promise: a run in virtual time leaves the files of a run on real ranks, with the same results and the same curve over samples. */
/* Promise: Running statistics of a run in virtual time, rank 0's or the mean of all, are those of real ranks, byte for byte. */
/* Promise: `entrain compare --virtual` makes the study of `entrain compare`, and a page with both keeps their times apart. */

#define COMMON                                                                                               \
    "--limit-train-samples=103 --limit-test-samples=16 --epochs=2 --batch-size=8 --device=ref --lr=0.02 "    \
    "--seed=3"

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

static void run_entrain(int expected, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void run_entrain(int expected, const char *format, ...)
{
    char words[1024];
    process p;
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    process_start(&p, "entrain", NULL, "%s", words);
    const int code = process_wait(&p, 200);
    if (code != expected) fail_msg("entrain %s: exit %d\n%s", words, code, process_err(&p));
}

static json_t *json_in(const char *dir, const char *name)
{
    char path[600];
    json_error_t error;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    json_t *all = json_load_file(path, 0, &error);
    if (all == NULL) fail_msg("%s: %s", path, error.text);
    return all;
}

static bool page_has(const char *dir, const char *text)
{
    char path[600], *line = NULL;
    size_t room = 0;
    bool has = false;
    snprintf(path, sizeof path, "%s/report.html", dir);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (!has && getline(&line, &room, file) > 0)
        has = strstr(line, text) != NULL;
    free(line);
    fclose(file);
    return has;
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
    static const char *const strategies[] = {
        "-n 2 --strategy=ring", "-n 2 --strategy=ps-sync --shards=1", "-n 1 --strategy=solo --accumulate=2",
        "-n 2 --strategy=hybrid --shards=1", "-n 4 --strategy=grouped:period=4 --groups=2 --eval-first"};
    char out[300], again[340], flags[700];
    (void)state;
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        snprintf(flags, sizeof flags, "%s " OF_BOTH, strategies[i]);
        snprintf(out, sizeof out, "%s/virtual-%zu", system_folder(), i);
        json_t *real = train(120, "%s", flags);
        simulate(out, flags);
        json_t *virtual = result_in(out);
        expect_same(real, virtual, of_result, strategies[i]);
        assert_null(json_object_get(real, "simulated"));
        assert_string_equal(text_at(virtual, "simulated.clock"), "virtual");
        expect_same_lines(train_out(), out, "eval.jsonl", of_point);
        expect_same_lines(train_out(), out, "metrics-0.jsonl", of_step);
        if (number_at(real, "workers") > 1) expect_same_lines(train_out(), out, "metrics-1.jsonl", of_step);

        /* its own config.yaml repeats it to the last event, that of the real run to the last byte of the weights */
        snprintf(again, sizeof again, "%s-again", out);
        snprintf(flags, sizeof flags, "--config=%s/config.yaml", out);
        simulate(again, flags);
        json_t *repeated = result_in(again);
        assert_string_equal(text_at(repeated, "simulated.log_sha256"),
                            text_at(virtual, "simulated.log_sha256"));
        json_decref(repeated);
        snprintf(again, sizeof again, "%s-real", out);
        snprintf(flags, sizeof flags, "%s --config=%s/config.yaml", strategies[i], train_out());
        simulate(again, flags);
        repeated = result_in(again);
        assert_string_equal(text_at(repeated, "params_sha256"), text_at(real, "params_sha256"));
        json_decref(repeated);
        json_decref(virtual);
        json_decref(real);
    }
    promise("ring, ps-sync, solo, grouped: result.json, eval.jsonl and metrics of a run in virtual time = "
            "those on real "
            "ranks, but for times and moved bytes");
}

#define NORMED                                                                                               \
    "--model=resnet18:width=8,stem=cifar --data=synthetic --momentum=0.9 --limit-train-samples=26 "          \
    "--limit-test-samples=8 --epochs=2 --batch-size=4 --device=cpu --threads=1 --lr=0.02 --seed=3 "          \
    "--eval-every=13 --holdout=6 --eval-first "

/* Of one process, too, which keeps those of each of its micro-batches. */
static void statistics_are_those_of_a_run(void **state)
{
    static const char *const cases[] = {
        "-n 2 --strategy=ring --bn-stats=mean", "-n 3 --strategy=ring --bn-stats=mean",
        "-n 3 --strategy=ps-sync --shards=1",   "-n 2 --strategy=ps-sync --shards=1 --bn-stats=mean",
        "-n 1 --strategy=solo --accumulate=3",  "-n 1 --strategy=solo --accumulate=3 --bn-stats=mean"};
    static const char *const of_state[] = {"params_sha256", "buffers_sha256", "bn_stats",
                                           "test_loss",     "test_accuracy",  NULL};
    char out[300], flags[700];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(flags, sizeof flags, "%s " NORMED, cases[i]);
        snprintf(out, sizeof out, "%s/normed-%zu", system_folder(), i);
        json_t *real = train(120, "%s", flags);
        simulate(out, flags);
        json_t *virtual = result_in(out);
        assert_non_null(json_object_get(real, "buffers_sha256"));
        expect_same(real, virtual, of_state, cases[i]);
        expect_same_lines(train_out(), out, "eval.jsonl", of_point);
        json_decref(virtual);
        json_decref(real);
    }
    run_entrain(2, "sim -n 2 " NORMED "--bn-stats=recompute:8");
    run_entrain(2, "sim -n 2 --strategy=ps-async " NORMED "--bn-stats=mean");
    promise("resnet18:width=8: running statistics of rank 0 and their mean, at each point of the curve, = on "
            "real "
            "ranks: ring (W = 2, 3), ps-sync, solo");
}

/* The ranks that join and leave, and when, as on real ranks. */
static void who_came_and_went(void **state)
{
    static const char *const ends[] = {"stayed", "left", "stayed"};
    char out[300];
    (void)state;
    snprintf(out, sizeof out, "%s/visits", system_folder());
    simulate(out,
             "-n 4 --strategy=ps-async --compute=fixed:10ms --net=none --join=2@45ms,3@10s --leave=1@25ms "
             "--model=mlp --data=synthetic --limit-test-samples=16 --max-samples=240 --batch-size=8 "
             "--device=ref");
    json_t *result = result_in(out);
    const json_t *presence = json_object_get(result, "presence"), *one;
    const double from[] = {0, 0, 0.045}, to[] = {0.17, 0.03, 0.17};
    size_t i;
    assert_int_equal(json_array_size(presence), 3); /* rank 3 came too late */
    json_array_foreach(presence, i, one)
    {
        assert_int_equal(number_at(one, "rank"), i);
        assert_string_equal(text_at(one, "end"), ends[i]);
        assert_float_equal(number_at(one, "from_s"), from[i], 1e-6);
        assert_float_equal(number_at(one, "to_s"), to[i], 1e-6);
    }
    assert_int_equal(number_at(result, "workers"), 2); /* that began */
    assert_true(json_is_null(json_object_get(result, "staleness_theory")));
    json_decref(result);
    run_entrain(0, "report %s", out);
    assert_true(page_has(out, "rank 2"));
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

/* ---- a study ---- */

#define STUDY                                                                                                \
    "--model=mlp --data=synthetic --limit-train-samples=600 --limit-test-samples=50 --batch-size=8 "         \
    "--device=ref --quiet --arm=ring --arm=ps-sync --arm=ps-async:lr=0.005 "

/* Stragglers and links that only virtual time has; an arm may have its own. */
static void laws_of_a_study(void **state)
{
    char dir[300], run[400];
    (void)state;
    snprintf(dir, sizeof dir, "%s/laws", system_folder());
    run_entrain(
        0,
        "compare --virtual -n 3 --model=mlp --data=synthetic --limit-train-samples=400 --device=ref --quiet "
        "--batch-size=8 --holdout=50 --settings=even,slow --straggler=transient:4:0.2:3,2:2 "
        "--compute=fixed:500ms --net=rate:1Gbit,delay:50us;0-1=rate:10MB,delay:1ms "
        "--arm=ring --arm=own=ring:straggler=rotating:3:5 --out=%s",
        dir);
    json_t *study = json_in(dir, "compare.json");
    assert_string_equal(json_string_value(json_object_get(
                            json_array_get(json_object_get(study, "settings"), 1), "straggler")),
                        "transient:4:0.2:3,2:2");
    json_decref(study);
    double seconds[4];
    static const char *const runs[] = {"even-ring", "slow-ring", "even-own", "slow-own"};
    for (size_t i = 0; i < 4; i++) {
        snprintf(run, sizeof run, "%s/runs/%s-s1", dir, runs[i]);
        json_t *result = result_in(run);
        seconds[i] = number_at(result, "train_seconds");
        assert_non_null(strstr(text_at(result, "simulated.net"), "0-1=rate:10MB"));
        json_decref(result);
    }
    assert_true(seconds[1] > 1.5 * seconds[0]);
    assert_true(seconds[2] > 1.5 * seconds[0]);
    assert_float_equal(seconds[3], seconds[2], 0); /* its own, in every setting */
}

/* Three arms and three seeds; run again, whatever the number of cores, the results are the same. */
static void a_study_in_virtual_time(void **state)
{
    char dir[300], again[300];
    (void)state;
    snprintf(dir, sizeof dir, "%s/study", system_folder());
    snprintf(again, sizeof again, "%s/study-threads", system_folder());
    run_entrain(0, "compare --virtual -n 4 --compute=lognormal:10ms,0.5 --seeds=1..3 " STUDY "--out=%s", dir);
    run_entrain(
        0, "compare --virtual -n 4 --compute=lognormal:10ms,0.5 --seeds=1..3 --threads=2 " STUDY "--out=%s",
        again); /* one at a time */
    json_t *study = json_in(dir, "compare.json"), *report = json_in(dir, "report.json");
    const json_t *runs = json_object_get(study, "runs");
    assert_true(json_is_true(json_object_get(study, "simulated")));
    assert_int_equal(json_array_size(runs), 9);
    for (size_t i = 0; i < 9; i++) {
        const char *run = json_string_value(json_object_get(json_array_get(runs, i), "dir"));
        assert_int_equal(json_integer_value(json_object_get(json_array_get(runs, i), "exit")), 0);
        char one[400], other[400];
        snprintf(one, sizeof one, "%s/%s", dir, run);
        snprintf(other, sizeof other, "%s/%s", again, run);
        json_t *a = result_in(one), *b = result_in(other);
        assert_string_equal(text_at(a, "params_sha256"), text_at(b, "params_sha256"));
        assert_string_equal(text_at(a, "simulated.log_sha256"), text_at(b, "simulated.log_sha256"));
        json_decref(a);
        json_decref(b);
    }
    assert_int_equal(json_array_size(json_object_get(report, "table")), 3);
    assert_string_equal(text_at(report, "fairness"), "PASS");
    assert_true(page_has(dir, "All runs are in virtual time"));
    run_entrain(0,
                "compare --virtual --resume -n 4 --compute=lognormal:10ms,0.5 --seeds=1..3 " STUDY "--out=%s",
                dir);
    json_decref(study);
    json_decref(report);
    promise("compare --virtual: 3 arms, 3 seeds, the same events on one core as on several");
}

/* The study of real ranks beside it: settings and tests of each, one curve over samples. */
static void a_page_of_both(void **state)
{
    static const char *const both[] = {"even", "even, simulated"};
    char virtual[300], real[300], page[300];
    (void)state;
    snprintf(virtual, sizeof virtual, "%s/study", system_folder());
    snprintf(real, sizeof real, "%s/study-real", system_folder());
    snprintf(page, sizeof page, "%s/page", system_folder());
    run_entrain(0, "compare -n 4 --seeds=1,2 --threads=1 " STUDY "--out=%s", real);
    run_entrain(0, "report %s %s --out=%s", real, virtual, page);
    json_t *report = json_in(page, "report.json");
    const json_t *rows = json_object_get(report, "table"), *rules = json_object_get(report, "rules"), *entry;
    assert_int_equal(json_array_size(rows), 6);
    size_t i, nrows[2] = {0}, npairs[2] = {0};
    for (size_t s = 0; s < 2; s++) {
        assert_non_null(json_object_get(json_object_get(report, "verdict"), both[s]));
        json_array_foreach(rows, i, entry) nrows[s] += strcmp(text_at(entry, "setting"), both[s]) == 0;
        json_array_foreach(json_object_get(report, "comparisons"), i, entry) npairs[s] +=
            strcmp(text_at(entry, "setting"), both[s]) == 0;
        assert_int_equal(nrows[s], 3);
        assert_int_equal(npairs[s], 3);
    }
    const char *found = NULL;
    json_array_foreach(rules, i, entry) if (strcmp(text_at(entry, "rule"), "one page") == 0) found =
        text_at(entry, "found");
    assert_non_null(found);
    /* ring and ps-sync, seeds 1 and 2: the same bytes on real ranks and in virtual time */
    assert_non_null(strstr(found, "9 of 15 runs are in virtual time"));
    assert_non_null(strstr(found, "of 6 pairs of one arm and seed, 6 begin alike"));
    assert_non_null(strstr(found, "4 with the same weights"));
    assert_true(page_has(page, "Some runs are in virtual time") &&
                page_has(page, "All settings over samples"));
    json_decref(report);
    run_entrain(2, "report %s %s", real, real);
    snprintf(page, sizeof page, "%s/virtual-0", system_folder());
    run_entrain(0, "report %s %s --out=%s/runs", page, train_out(),
                system_folder()); /* two folders of one run */
    promise(
        "report of a study and a simulated one: two rankings, two families of tests, one curve over samples");
}

/* The sweep chooses before the study, which then has the chosen rates; a rate that ends its run is no choice. */
static void a_sweep_in_virtual_time(void **state)
{
    char dir[300], run[400];
    (void)state;
    snprintf(dir, sizeof dir, "%s/tuned", system_folder());
    run_entrain(
        0,
        "compare --virtual -n 2 --model=mlp --data=synthetic --limit-train-samples=400 --device=ref --quiet "
        "--batch-size=8 --arm=ring --arm=ps-async --tune=lr=0.01,1000000 --lr-scale=none --out=%s",
        dir);
    json_t *study = json_in(dir, "compare.json");
    for (size_t arm = 0; arm < 2; arm++) {
        const json_t *entry = json_array_get(json_object_get(study, "arms"), arm),
                     *sweep = json_object_get(entry, "sweep");
        assert_int_equal(json_array_size(sweep), 2);
        assert_true(json_is_true(json_object_get(json_array_get(sweep, 0), "chosen")));
        assert_true(json_is_true(json_object_get(json_array_get(sweep, 1), "diverged")));
        assert_true(json_number_value(json_object_get(entry, "lr")) == 0.01);
        snprintf(run, sizeof run, "%s/runs/even-%s-s1", dir, arm == 0 ? "ring" : "ps-async");
        json_t *result = result_in(run);
        assert_true(json_number_value(json_object_get(result, "lr")) == 0.01);
        json_decref(result);
    }
    json_decref(study);
}

/* A run that fails costs no other run; a signal ends all. */
static void a_failure_and_a_signal(void **state)
{
    char dir[300];
    process p;
    (void)state;
    snprintf(dir, sizeof dir, "%s/failing", system_folder());
    run_entrain(
        1,
        "compare --virtual -n 2 --model=mlp --data=synthetic --limit-train-samples=400 --device=ref --quiet "
        "--batch-size=8 --arm=ring --arm=bad=ring:lr=1000000 --out=%s",
        dir);
    json_t *study = json_in(dir, "compare.json");
    const json_t *runs = json_object_get(study, "runs"), *run;
    size_t i, nfailed = 0;
    json_array_foreach(runs, i, run)
    {
        const bool is_bad = strcmp(json_string_value(json_object_get(run, "arm")), "bad") == 0;
        assert_int_equal(json_integer_value(json_object_get(run, "exit")), is_bad);
        if (is_bad) assert_non_null(strstr(json_string_value(json_object_get(run, "cause")), "not finite"));
        nfailed += is_bad;
    }
    assert_int_equal(nfailed, 1);
    json_decref(study);
    snprintf(dir, sizeof dir, "%s/interrupted", system_folder());
    process_start(&p, "entrain", NULL, "compare --virtual -n 8 --epochs=1000 --seeds=1..3 " STUDY "--out=%s",
                  dir);
    char first[500];
    snprintf(first, sizeof first, "%s/runs", dir);
    for (int tries = 0; access(first, F_OK) != 0 && tries < 2000; tries++)
        usleep(10000);
    process_kill(&p, SIGINT);
    assert_int_equal(process_wait(&p, 20), 130);
    process_nobody_left(5);
}

/* A file that reaches `ulimit -f` is an error of the run, and not the end of its process. */
static void a_file_has_a_limit(void **state)
{
    struct rlimit before, limit;
    char out[300];
    (void)state;
    snprintf(out, sizeof out, "%s/limit", system_folder());
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = (struct rlimit){1 << 16, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    run_entrain(1, "sim -n 1 --strategy=solo --model=toy --device=ref --steps=400 --out=%s", out);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    json_t *result = result_in(out);
    assert_non_null(strstr(text_at(result, "cause"), "metrics-0.jsonl"));
    json_decref(result);
}

static void what_has_no_meaning(void **state)
{
    static const char *const lines[] = {"compare --virtual --arm=ring --arm=ps-sync --transport=tcp",
                                        "compare --virtual --arm=ring --servers=2",
                                        "compare --virtual --arm=ring --device=cuda",
                                        "compare --arm=ring --compute=exp:10ms",
                                        "compare --arm=ring -n 2000",
                                        "compare --arm=ring --straggler=transient:4:0.05:20",
                                        "compare --arm=ring --straggler=0-1:3",
                                        "compare --arm=ring --net=rate:1Gbit;1=rate:10MB",
                                        "compare --arm=a=ring:straggler=0-1:3",
                                        "compare --virtual --arm=ring --straggler=fast:4",
                                        "sim --trace=x",
                                        "sim --tensorboard",
                                        "sim --checkpoint-every=9"};
    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        run_entrain(2, "%s --data=synthetic --out=%s/none", lines[i], system_folder());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_those_of_a_run), cmocka_unit_test(statistics_are_those_of_a_run),
        cmocka_unit_test(many_ranks_share_a_file),  cmocka_unit_test(who_came_and_went),
        cmocka_unit_test(laws_of_a_study),          cmocka_unit_test(a_study_in_virtual_time),
        cmocka_unit_test(a_page_of_both),           cmocka_unit_test(a_sweep_in_virtual_time),
        cmocka_unit_test(a_failure_and_a_signal),   cmocka_unit_test(a_file_has_a_limit),
        cmocka_unit_test(what_has_no_meaning)};
    return system_main(tests);
}
