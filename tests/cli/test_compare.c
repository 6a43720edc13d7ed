/* test_compare.c - `entrain compare` with the real programs: which runs, in which order, and their record in
 * compare.json. */
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/commands.h"
#include "config/folders.h"
#include "core/log.h"
#include "report/may_differ.h"
#include "report/report.h"
#include "report/report_fair.h"

/* Promise: A key or a recorded fact without a row in report/may_differ.c is found. */

static struct scene {
    char dir[32], plugins[4096], said[2048];
    int signal_fd;
} s;

static void listen_in(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)level, (void)subsystem;
    size_t used = strlen(s.said);
    snprintf(s.said + used, sizeof s.said - used, "%s\n", text);
}

static int setup(void **state)
{
    (void)state;
    s = (struct scene){.dir = "/tmp/entrain-compare-XXXXXX", .signal_fd = -1};
    eni_log_set_sink(listen_in, NULL);
    return mkdtemp(s.dir) != NULL && eni_folder_plugins(s.plugins, sizeof s.plugins) == EN_OK ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *at)
{
    (void)info, (void)type, (void)at;
    return remove(path);
}

static int teardown(void **state)
{
    (void)state;
    eni_log_set_sink(NULL, NULL);
    return nftw(s.dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static en_status compare_as(const char *const *flags, eni_config *config_out);

static en_status compare(const char *const *flags)
{
    eni_config config;
    en_status st = compare_as(flags, &config);
    eni_config_fini(&config);
    return st;
}

/* The caller finis the configuration. */
static en_status compare_as(const char *const *flags, eni_config *config_out)
{
    char out[64], *argv[40] = {(char *)(uintptr_t) "compare"};
    static const char *const common[] = {"--model=toy",
                                         "--data=synthetic",
                                         "--device=ref",
                                         "--threads=1",
                                         "--batch-size=4",
                                         "--limit-train-samples=64",
                                         "--limit-test-samples=8",
                                         "--steps=2",
                                         "--quiet",
                                         "-n",
                                         "2"};
    int argc = 1;
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        argv[argc++] = (char *)(uintptr_t)common[i];
    for (int i = 0; flags[i] != NULL; i++)
        argv[argc++] = (char *)(uintptr_t)flags[i];
    snprintf(out, sizeof out, "--out=%s", s.dir);
    argv[argc++] = out;
    eni_config config;
    assert_int_equal(eni_config_parse(ENI_COMPARE, argc, argv, &config), EN_OK);
    eni_command_context context = {
        .config = &config, .plugin_dir = s.plugins, .signal_fd = s.signal_fd, .argc = argc, .argv = argv};
    fflush(stdout);
    int saved = dup(STDOUT_FILENO), saved_error = dup(STDERR_FILENO);
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    en_status st = eni_command_compare(&context);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    dup2(saved_error, STDERR_FILENO);
    close(saved);
    close(saved_error);
    close(null);
    *config_out = config;
    return st;
}

static json_t *load(const char *relative)
{
    char path[256];
    json_error_t error;
    snprintf(path, sizeof path, "%s/%s", s.dir, relative);
    json_t *json = json_load_file(path, 0, &error);
    if (json == NULL) fail_msg("%s: %s", path, error.text);
    return json;
}

static json_t *load_first_line(const char *relative)
{
    char path[256];
    json_error_t error;
    snprintf(path, sizeof path, "%s/%s", s.dir, relative);
    json_t *json = json_load_file(path, JSON_DISABLE_EOF_CHECK, &error);
    if (json == NULL) fail_msg("%s: %s", path, error.text);
    return json;
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (text == NULL) fail_msg("no %s", key);
    return text;
}

struct expected {
    const char *setting, *arm;
    int seed;
};

static void expect_run(const json_t *run, int order, const struct expected *e)
{
    char relative[128];
    assert_string_equal(text_of(run, "setting"), e->setting);
    assert_string_equal(text_of(run, "arm"), e->arm);
    assert_int_equal(json_integer_value(json_object_get(run, "seed")), e->seed);
    assert_int_equal(json_integer_value(json_object_get(run, "order")), order);
    assert_int_equal(json_integer_value(json_object_get(run, "exit")), 0);
    assert_int_equal(strlen(text_of(run, "started")), strlen("2026-01-01T00:00:00Z"));
    snprintf(relative, sizeof relative, "%s/result.json", text_of(run, "dir"));
    json_t *result = load(relative);
    assert_int_equal(json_integer_value(json_object_get(result, "seed")), e->seed);
    assert_string_equal(text_of(result, "strategy"), e->arm);
    const json_t *emulated = json_object_get(json_object_get(result, "environment"), "emulated");
    assert_int_equal(json_array_size(emulated), strcmp(e->setting, "slow") == 0);
    json_decref(result);
    /* a timeline of the first seed only, in one file */
    char path[256];
    snprintf(path, sizeof path, "%s/%s/trace.json", s.dir, text_of(run, "dir"));
    assert_int_equal(access(path, F_OK) == 0, e->seed == 11);
    strcat(path, ".rank1");
    assert_int_equal(access(path, F_OK), -1);
}

static void test_runs_are_interleaved(void **state)
{
    (void)state;
    static const struct expected expected[] = {
        {"even", "ring", 11},
        {"even", "ps-sync", 11}, /* seed 11 in both settings; the first arm rotates */
        {"slow", "ps-sync", 11},
        {"slow", "ring", 11}, /* */
        {"even", "ps-sync", 12},
        {"even", "ring", 12}, /* slow@1: seed 12 in one */
    };
    assert_int_equal(compare((const char *[]){"--arm=ring", "--arm=ps-sync", "--seeds=11,12",
                                              "--settings=even,slow@1", "--straggler=1:1.5", NULL}),
                     EN_OK);
    assert_string_equal(s.said, "");
    json_t *index = load("compare.json"), *runs = json_object_get(index, "runs");
    assert_int_equal(json_array_size(runs), 6);
    for (int i = 0; i < 6; i++)
        expect_run(json_array_get(runs, (size_t)i), i, &expected[i]);
    assert_int_equal(json_integer_value(json_object_get(index, "schema")), 2);
    assert_true(json_number_value(json_object_get(index, "target")) == 0.75); /* the default of --target */
    const json_t *settings = json_object_get(index, "settings"), *arms = json_object_get(index, "arms");
    assert_int_equal(json_array_size(settings), 2);
    assert_true(json_is_null(json_object_get(json_array_get(settings, 0), "straggler")));
    assert_string_equal(text_of(json_array_get(settings, 1), "straggler"), "1:1.5");
    assert_int_equal(json_array_size(arms), 2);
    assert_string_equal(text_of(json_array_get(arms, 1), "strategy"), "ps-sync");
    assert_int_equal(json_array_size(json_object_get(index, "seeds")), 2);
    assert_true(json_array_size(json_object_get(index, "argv")) > 10);
    assert_non_null(json_object_get(index, "environment"));
    json_decref(index);
    /* equal start for all arms of a seed, whatever the strategy */
    json_t *ring = load("runs/even-ring-s11/result.json"), *ps = load("runs/even-ps-sync-s11/result.json");
    assert_string_equal(text_of(ring, "init_sha256"), text_of(ps, "init_sha256"));
    assert_string_equal(text_of(ring, "order_sha256"), text_of(ps, "order_sha256"));
    assert_string_equal(text_of(ring, "params_sha256"), text_of(ps, "params_sha256"));
    json_decref(ring);
    json_decref(ps);
}

static void test_what_would_overwrite_is_refused(void **state)
{
    (void)state;
    assert_int_equal(compare((const char *[]){"--arm=ring", "--arm=ring", NULL}), EN_EINVAL);
    assert_non_null(strstr(s.said, "once"));
    assert_int_equal(compare((const char *[]){"--arm=ring", "--settings=even,even@1", NULL}), EN_EINVAL);
    assert_non_null(strstr(s.said, "twice"));
}

/* Otherwise a report would show 0 % for it. */
static void test_a_regression_has_no_accuracy(void **state)
{
    (void)state;
    assert_int_equal(compare((const char *[]){"--arm=ring", NULL}), EN_OK);
    json_t *result = load("runs/even-ring-s1/result.json"),
           *point = load_first_line("runs/even-ring-s1/eval.jsonl");
    assert_true(json_is_real(json_object_get(result, "test_loss")));
    assert_true(json_is_null(json_object_get(result, "test_accuracy")));
    assert_true(json_is_real(json_object_get(point, "holdout_loss")));
    assert_true(json_is_null(json_object_get(point, "holdout_accuracy")));
    json_decref(point);
    json_decref(result);
}

static void test_data_that_no_run_could_have_is_refused(void **state)
{
    (void)state;
    assert_int_equal(compare((const char *[]){"--arm=ring", "--holdout=1001", NULL}), EN_EINVAL);
    assert_non_null(strstr(s.said, "--holdout=1001"));
}

/* The planned claims are recorded with the first run: here only the primary comparison. */
static void test_the_plan_is_recorded(void **state)
{
    (void)state;
    assert_int_equal(
        compare((const char *[]){"--arm=ring", "--arm=ps-sync", "--arm=ring:lr=0.02", "--seeds=1",
                                 "--settings=even,slow", "--primary=slow:3:2", NULL}),
        EN_OK);
    json_t *index = load("compare.json"), *comparisons = json_object_get(index, "plan");
    const json_t *primary = json_object_get(comparisons, "primary"), *arms = json_object_get(primary, "arms");
    assert_true(json_number_value(json_object_get(comparisons, "alpha")) == 0.05);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(comparisons, "seeds"), "slow")), 1);
    assert_int_equal(json_integer_value(json_object_get(comparisons, "seeds_needed")), 6);
    assert_int_equal(json_array_size(json_object_get(comparisons, "comparisons")), 1);
    assert_true(json_equal(json_array_get(json_object_get(comparisons, "comparisons"), 0), primary));
    assert_string_equal(text_of(primary, "setting"), "slow");
    assert_string_equal(json_string_value(json_array_get(arms, 0)), "ps-sync");
    assert_string_equal(json_string_value(json_array_get(arms, 1)), "ring:lr=0.02");
    json_decref(index);
}

static void test_a_primary_comparison_that_is_not_there(void **state)
{
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "%s/compare.json", s.dir);
    assert_int_equal(compare((const char *[]){"--arm=ring", "--arm=ps-sync", "--primary=slow:1:2", NULL}),
                     EN_EINVAL);
    assert_non_null(strstr(s.said, "--primary: "));
    assert_non_null(strstr(s.said, "setting slow"));
    assert_int_equal(compare((const char *[]){"--arm=ring", "--arm=ps-sync", "--primary=even:1:3", NULL}),
                     EN_EINVAL);
    assert_non_null(strstr(s.said, "arm 3"));
    assert_non_null(strstr(s.said, "1 to 2"));
    assert_int_equal(access(path, F_OK), -1); /* before the first run */
}

static void test_nothing_to_compare(void **state)
{
    (void)state;
    assert_int_equal(compare((const char *[]){NULL}), EN_EINVAL);
    assert_non_null(strstr(s.said, "--arm="));
}

/* ---- given values are applied, or refused ---- */

static void expect_emulated(const char *run, const char *const *expected)
{
    char relative[128];
    snprintf(relative, sizeof relative, "runs/%s/result.json", run);
    json_t *result = load(relative);
    const json_t *emulated = json_object_get(json_object_get(result, "environment"), "emulated");
    size_t n = 0;
    for (; expected[n] != NULL; n++)
        assert_string_equal(json_string_value(json_array_get(emulated, n)), expected[n]);
    assert_int_equal(json_array_size(emulated), n);
    json_decref(result);
}

/* The text of a rule, as the report judges the folder. */
static int judged(const char *rule, char text_out[ENI_RULE_TEXT])
{
    eni_study *study;
    eni_fairness fairness;
    int mark = -1;
    assert_int_equal(eni_study_load((const char *const[]){s.dir}, 1, (eni_target){0}, &study), EN_OK);
    eni_fair_judge(study, &fairness);
    for (size_t i = 0; i < fairness.nrules; i++)
        if (strcmp(fairness.rules[i].name, rule) == 0) {
            mark = fairness.rules[i].mark;
            snprintf(text_out, ENI_RULE_TEXT, "%s", fairness.rules[i].text);
        }
    eni_study_free(study);
    return mark;
}

static void test_stragglers_run_and_are_recorded(void **state)
{
    (void)state;
    char text[ENI_RULE_TEXT] = "";
    assert_int_equal(compare((const char *[]){"--arm=ring", "--arm=ring:straggler=0:2", "--straggler=0:1.5",
                                              "--straggler=1:2", NULL}),
                     EN_OK);
    json_t *index = load("compare.json");
    const json_t *settings = json_object_get(index, "settings"), *arms = json_object_get(index, "arms");
    assert_int_equal(json_array_size(settings), 1); /* --straggler alone is the setting slow */
    assert_string_equal(text_of(json_array_get(settings, 0), "name"), "slow");
    assert_string_equal(text_of(json_array_get(settings, 0), "straggler"), "0:1.5,1:2");
    assert_int_equal(json_object_size(json_object_get(json_array_get(arms, 0), "condition")), 0);
    assert_string_equal(text_of(json_object_get(json_array_get(arms, 1), "condition"), "straggler"), "0:2");
    json_decref(index);
    expect_emulated("slow-ring-s1", (const char *[]){"straggler 0:1.5", "straggler 1:2", NULL});
    expect_emulated("slow-ring-straggler-0-2-s1", (const char *[]){"straggler 0:2", NULL});
    assert_int_equal(judged("same conditions", text), ENI_FAIL);
    assert_string_equal(text, "straggler: ring has 0:1.5,1:2, ring:straggler=0:2 has 0:2");
}

static void test_an_arm_is_slow_in_every_setting(void **state)
{
    (void)state;
    char text[ENI_RULE_TEXT] = "";
    assert_int_equal(
        compare((const char *[]){"--arm=ring", "--arm=ring:straggler=1:2", "--settings=even,slow", NULL}),
        EN_OK);
    expect_emulated("even-ring-s1", (const char *[]){NULL});
    expect_emulated("slow-ring-s1", (const char *[]){"straggler 1:3", NULL});
    expect_emulated("even-ring-straggler-1-2-s1", (const char *[]){"straggler 1:2", NULL});
    expect_emulated("slow-ring-straggler-1-2-s1", (const char *[]){"straggler 1:2", NULL});
    assert_int_equal(judged("same conditions", text), ENI_FAIL);
    assert_string_equal(text, "straggler: ring has none, ring:straggler=1:2 has 1:2");
}

static void test_what_cannot_be_applied_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *flags[4], *part[2];
    } refused[] = {
        {{"--arm=ring", "--straggler=1:2", "--settings=even", NULL}, {"\"1:2\"", "--settings=even,slow"}},
        {{"--arm=ring", "--settings=slow", "-n", "1"}, {"\"1:3\"", "arm ring with 1 worker"}},
        {{"--arm=ring", "--arm=solo", "--settings=slow", NULL}, {"\"1:3\"", "arm solo with 1 worker"}},
        {{"--arm=ring:straggler=2:3", NULL}, {"\"2:3\"", "from 0 to 1"}},
        {{"--arm=ring", "--seed=3", "--seeds=1,2", NULL}, {"--seed: \"3\"", "--seeds"}},
        {{"--arm=ring", "--server-timeout=9s", NULL}, {"ring", "--server-timeout"}},
        {{"--arm=ring", "--target=0", NULL}, {"--target=0", "above 0"}},
        {{"--arm=ring:nnodes=2", NULL}, {"ring", "nnodes"}},
        {{"--arm=ring:trace=/tmp/t", NULL}, {"ring", "trace"}},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const char *flags[5] = {NULL};
        memcpy(flags, refused[i].flags, sizeof refused[i].flags);
        s.said[0] = 0;
        assert_int_equal(compare(flags), EN_EINVAL);
        for (int k = 0; k < 2; k++)
            if (strstr(s.said, refused[i].part[k]) == NULL)
                fail_msg("%s lacks %s", s.said, refused[i].part[k]);
    }
    char path[64];
    snprintf(path, sizeof path, "%s/compare.json", s.dir);
    assert_int_equal(access(path, F_OK), -1); /* before anything has begun */
}

/* Keys of the condition that are recorded if they are set. */
static en_status keep_told(void *user, const char *key, const char *value, bool is_reported)
{
    json_t *into = user;
    const eni_who who = eni_who_may_differ(key);
    if (is_reported && who != ENI_ARMS && who != ENI_ANYBODY)
        json_object_set_new(into, key, json_string(value == NULL ? "" : value));
    return EN_OK;
}

static en_status keep_all(void *user, const char *key, const char *value, bool is_reported)
{
    (void)is_reported;
    return keep_told(user, key, value, true);
}

/* The configuration that a run's worker has resolved, from its file. */
static json_t *resolved(const char *run)
{
    char file[128];
    eni_config config;
    json_t *keys = json_object();
    snprintf(file, sizeof file, "--config=%s/runs/%s/config.yaml", s.dir, run);
    char *argv[] = {(char *)(uintptr_t) "worker", file, (char *)(uintptr_t) "--rank=0"};
    assert_int_equal(eni_config_parse(ENI_WORKER, 3, argv, &config), EN_OK);
    eni_config_each(&config, keep_all, keys);
    eni_config_fini(&config);
    return keys;
}

static void test_every_condition_reaches_every_run(void **state)
{
    (void)state;
    eni_config given;
    const char *const flags[] = {"--arm=ring",
                                 "--arm=ps-sync",
                                 "--straggler=0:1.5,1:2",
                                 "--max-samples=24",
                                 "--no-shuffle",
                                 "--drop-last",
                                 "--no-graph",
                                 "--deterministic",
                                 "--transport=tcp",
                                 "--net=delay:100us",
                                 "--eval-every=8",
                                 "--target=60",
                                 "--eval-batch-size=100",
                                 "--peer-timeout=7s",
                                 "--join-timeout=50s",
                                 "--epochs=3",
                                 "--limit-test-samples=9",
                                 "--seed=5",
                                 "--tf32",
                                 NULL};
    assert_int_equal(compare_as(flags, &given), EN_OK);
    json_t *told = json_object(), *value, *index = load("compare.json");
    const json_t *conditions = json_object_get(index, "conditions");
    eni_config_each(&given, keep_told, told);
    assert_true(json_object_size(told) >= 20);
    const char *const runs[] = {"slow-ring-s5", "slow-ps-sync-s5"};
    for (size_t i = 0; i < 2; i++) {
        json_t *keys = resolved(runs[i]);
        const char *key;
        json_object_foreach(told, key, value)
        {
            const char *name = strcmp(key, "workers") == 0 ? "world-size" : key;
            if (!json_equal(value, json_object_get(keys, name)))
                fail_msg("%s of %s is %s", key, runs[i], json_string_value(json_object_get(keys, name)));
            if (strcmp(key, "straggler") != 0 && !json_equal(value, json_object_get(conditions, key)))
                fail_msg("%s is not recorded", key); /* stragglers are the setting's */
        }
        json_decref(keys);
    }
    json_decref(told);
    json_decref(index);
    eni_config_fini(&given);
}

/* Without -n, too: the strategy alone would have one worker. */
static void test_solo_stands_for_all_workers(void **state)
{
    (void)state;
    char text[ENI_RULE_TEXT] = "";
    assert_int_equal(compare((const char *[]){"--arm=solo", "--arm=ring", NULL}), EN_OK);
    json_t *solo = load("runs/even-solo-s1/result.json"), *ring = load("runs/even-ring-s1/result.json");
    assert_int_equal(json_integer_value(json_object_get(solo, "workers")), 1);
    assert_string_equal(text_of(solo, "params_sha256"), text_of(ring, "params_sha256"));
    assert_int_equal(judged("same conditions", text), ENI_PASS);
    json_decref(solo);
    json_decref(ring);
}

/* ---- runs that fail ---- */

/* A failed run costs no other: all are run, the report is written, and the exit code says that one failed. */
static void test_a_failed_run_costs_no_other(void **state)
{
    (void)state;
    char path[64], text[ENI_RULE_TEXT] = "";
    /* Errors that can be found early are refused before the first arm trains; only a worker finds this one. */
    assert_int_equal(compare((const char *[]){"--arm=ring", "--arm=no-such", NULL}), EN_ENOENT);
    assert_int_equal(compare((const char *[]){"--arm=ring", "--arm=ssp:bond=3", NULL}), EN_EINVAL);
    s.said[0] = 0;
    assert_int_equal(compare((const char *[]){"--arm=ring:assign=claim", "--arm=ring", "--seeds=1,2", NULL}),
                     EN_EPEER);
    assert_non_null(strstr(s.said, "2 of 4 runs failed, even-ring-assign-claim-s1 first"));
    json_t *index = load("compare.json"), *runs = json_object_get(index, "runs"), *run;
    size_t i;
    assert_int_equal(json_array_size(runs), 4);
    json_array_foreach(runs, i, run)
    {
        const bool is_good = strcmp(text_of(run, "arm"), "ring") == 0;
        assert_int_equal(json_integer_value(json_object_get(run, "exit")), is_good ? 0 : 1);
        if (is_good)
            assert_null(json_object_get(run, "cause"));
        else
            assert_non_null(strstr(text_of(run, "cause"), "claim"));
    }
    json_decref(index);
    snprintf(path, sizeof path, "%s/report.html", s.dir);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(judged("no seed dropped", text), ENI_FAIL);
    assert_non_null(strstr(text, "claim"));
}

/* As Ctrl-C in the first run: no second run is started, and the first can be reported. */
static void test_an_interruption_ends_it(void **state)
{
    (void)state;
    s.signal_fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_int_equal(compare((const char *[]){"--arm=ring", "--arm=ps-sync", NULL}), EN_EINTR);
    close(s.signal_fd);
    assert_non_null(strstr(s.said, "1 of 2 runs; `entrain report"));
    json_t *index = load("compare.json");
    assert_int_equal(json_array_size(json_object_get(index, "runs")), 1);
    assert_string_equal(text_of(json_array_get(json_object_get(index, "runs"), 0), "cause"), "interrupted");
    json_decref(index);
    FILE *null = fopen("/dev/null", "w");
    assert_int_equal(eni_report((const char *const[]){s.dir}, 1, s.dir, (eni_target){0}, null, 0), EN_OK);
    fclose(null);
}

/* ---- the machine ---- */

static void test_the_machine_is_recorded(void **state)
{
    (void)state;
    static const char *const texts[] = {"date",   "version",  "commit", "cpu", "instruction_set",
                                        "kernel", "compiler", "device"};
    assert_int_equal(compare((const char *[]){"--arm=ring", NULL}), EN_OK);
    json_t *index = load("compare.json"), *result = load("runs/even-ring-s1/result.json");
    const json_t *both[] = {json_object_get(index, "environment"), json_object_get(result, "environment")};
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
            text_of(both[k], texts[i]);
        text_of(json_object_get(both[k], "libraries"), "ZeroMQ");
        assert_true(json_integer_value(json_object_get(both[k], "memory")) > 1 << 26);
        assert_true(json_integer_value(json_object_get(both[k], "cores")) >= 1);
    }
    const json_t *run = json_array_get(json_object_get(index, "runs"), 0);
    const json_t *outside = json_object_get(run, "outside"); /* null: such a run is too short for it */
    assert_true(json_is_null(outside) || (json_real_value(outside) >= 0 && json_real_value(outside) <= 1));
    assert_true(json_number_value(json_object_get(run, "load")) >= 0);
    json_decref(index);
    json_decref(result);
}

/* Every recorded key is judged or exempted by report/may_differ.c. */
static void test_every_fact_has_a_row(void **state)
{
    (void)state;
    const char *key, *part;
    json_t *value, *inner;
    assert_int_equal(compare((const char *[]){"--arm=ps-async", "--straggler=1:1.5", NULL}), EN_OK);
    json_t *result = load("runs/slow-ps-async-s1/result.json");
    json_object_foreach(result, key, value)
    {
        if (eni_may_differ_find(true, key) == NULL) fail_msg("%s of result.json has no row", key);
        if (strcmp(key, "environment") != 0) continue;
        json_object_foreach(value, part, inner)
        {
            char name[64];
            snprintf(name, sizeof name, "environment.%s", part);
            if (eni_may_differ_find(true, name) == NULL) fail_msg("%s of result.json has no row", name);
        }
    }
    json_decref(result);
}

/* An arm's name is its label and its folder; the keys that its text sets are recorded. */
static void test_an_arm_has_a_name(void **state)
{
    (void)state;
    assert_int_equal(compare((const char *[]){"--arm=tuned=ring:lr=0.02", "--arm=ring", "--lr=0.02", NULL}),
                     EN_OK);
    json_t *index = load("compare.json"), *arms = json_object_get(index, "arms");
    assert_string_equal(text_of(json_array_get(arms, 0), "name"), "tuned");
    assert_string_equal(text_of(json_array_get(arms, 0), "strategy"), "ring");
    json_t *given = json_pack("[s]", "lr");
    assert_true(json_equal(json_object_get(json_array_get(arms, 0), "given"), given));
    assert_int_equal(json_array_size(json_object_get(json_array_get(arms, 1), "given")), 0);
    json_decref(given);
    json_decref(index);
    json_decref(load("runs/even-tuned-s1/result.json"));
    assert_int_equal(compare((const char *[]){"--arm=a=ring", "--arm=a=ps-sync", NULL}), EN_EINVAL);
    assert_non_null(strstr(s.said, "--arm="));
}

static json_t *run_at(const json_t *index, size_t i)
{
    return json_array_get(json_object_get(index, "runs"), i);
}

/* A study of two seeds on a quiet machine, except for one run. */
static void make_one_busy(const char *path)
{
    json_t *index = load("compare.json"), *runs = json_object_get(index, "runs");
    for (size_t i = 0; i < 4; i++) {
        json_object_set_new(run_at(index, i), "outside", json_real(i == 3 ? 0.2 : 0));
        json_object_del(run_at(index, i), "replaced");
    }
    while (json_array_size(runs) > 4) /* this machine was busy */
        json_array_remove(runs, 4);
    assert_int_equal(json_dump_file(index, path, 0), 0);
    json_decref(index);
}

/* Its seed is repeated, once, with all arms; busy or not, these runs count from then on. */
static void test_a_busy_seed_is_made_again(void **state)
{
    (void)state;
    char path[64];
    const char *flags[] = {"--arm=ring", "--arm=ps-sync", "--seeds=1,2", "--retry-busy", "--resume", NULL};
    snprintf(path, sizeof path, "%s/compare.json", s.dir);
    assert_int_equal(compare(flags), EN_OK);
    make_one_busy(path);
    s.signal_fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_int_equal(compare(flags), EN_EINTR);
    close(s.signal_fd);
    s.signal_fd = -1;
    assert_non_null(strstr(s.said, "5 of 6 runs"));
    json_t *index;
    for (int turn = 0; turn < 2; turn++) { /* the second time, only the report is left to do */
        char report[64];
        s.said[0] = 0;
        assert_int_equal(compare(flags), EN_OK);
        assert_int_equal(strstr(s.said, "seed 2 in even") != NULL, turn == 0);
        snprintf(report, sizeof report, "%s/report.html", s.dir);
        assert_int_equal(unlink(report), 0);
        index = load("compare.json");
        assert_int_equal(json_array_size(json_object_get(index, "runs")), 6);
        for (size_t i = 0; i < 6; i++) {
            const bool is_of_two = json_integer_value(json_object_get(run_at(index, i), "seed")) == 2;
            assert_int_equal(json_is_true(json_object_get(run_at(index, i), "again")), i >= 4);
            assert_int_equal(json_is_true(json_object_get(run_at(index, i), "replaced")), is_of_two && i < 4);
        }
        json_object_set_new(run_at(index, 5), "outside", json_real(0.3)); /* it is not repeated again */
        assert_int_equal(json_dump_file(index, path, 0), 0);
        json_decref(index);
    }
    json_decref(load("runs/even-ring-s2-again/result.json"));
}

static void test_a_study_of_another_schema_is_refused(void **state)
{
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "%s/compare.json", s.dir);
    json_t *index = json_pack("{s:i, s:[{s:s}]}", "schema", 1, "cells", "name", "even");
    assert_int_equal(json_dump_file(index, path, 0), 0);
    json_decref(index);
    assert_int_equal(compare((const char *[]){"--arm=ring", "--resume", NULL}), EN_EINVAL);
    assert_non_null(strstr(s.said, "schema is 1"));
}

/* A repeated run does not count as another run. */
static void test_failed_runs_are_of_those_that_count(void **state)
{
    (void)state;
    char path[64];
    const char *flags[] = {"--arm=ring", "--arm=ring:assign=claim", "--seeds=1,2", "--retry-busy", "--resume",
                           NULL};
    snprintf(path, sizeof path, "%s/compare.json", s.dir);
    assert_int_equal(compare(flags), EN_EPEER);
    make_one_busy(path);
    s.said[0] = 0;
    assert_int_equal(compare(flags), EN_EPEER);
    assert_non_null(strstr(s.said, "seed 2 in even"));
    assert_non_null(strstr(s.said, "2 of 4 runs failed"));
}

static void test_a_baseline_is_an_arm(void **state)
{
    (void)state;
    assert_int_equal(
        compare((const char *[]){"--arm=a=ring", "--arm=ps-sync", "--arm=ring", "--baseline=a", NULL}),
        EN_OK);
    json_t *index = load("compare.json");
    assert_string_equal(text_of(json_object_get(index, "plan"), "baseline"), "a");
    json_decref(index);
    assert_int_equal(compare((const char *[]){"--arm=a=ring", "--baseline=ring", NULL}), EN_EINVAL);
    assert_non_null(strstr(s.said, "--baseline: \"ring\""));
}

/* ---- each arm takes the best rate of a sweep ---- */

static json_t *sweep_of(const json_t *index, size_t arm)
{
    return json_object_get(json_array_get(json_object_get(index, "arms"), arm), "sweep");
}

/* Continued, it does not sweep again: the sweep's folders, removed, stay away, and the last run is made with the chosen rate. */
static void test_each_arm_is_tuned(void **state)
{
    (void)state;
    char path[64], text[ENI_RULE_TEXT] = "", run[128];
    const char *flags[] = {"--arm=ring",           "--arm=ps-sync", "--seeds=0,1", "--steps=8",
                           "--tune=lr=0.001,0.02", "--resume",      NULL};
    snprintf(path, sizeof path, "%s/compare.json", s.dir);
    assert_int_equal(compare(flags), EN_OK);
    assert_string_equal(s.said, "");
    json_t *index = load("compare.json"), *tune = json_object_get(index, "tune");
    assert_int_equal(json_integer_value(json_object_get(tune, "seed")), 2);
    assert_string_equal(text_of(tune, "setting"), "even");
    assert_int_equal(json_array_size(json_object_get(index, "runs")), 4); /* without the sweeps */
    for (size_t arm = 0; arm < 2; arm++) {
        const json_t *sweep = sweep_of(index, arm), *best = json_array_get(sweep, 1);
        char dir[80];
        snprintf(dir, sizeof dir, "runs/tune-%s-0.02", arm == 0 ? "ring" : "ps-sync");
        assert_string_equal(text_of(best, "dir"), dir);
        assert_int_equal(json_array_size(sweep), 2);
        snprintf(run, sizeof run, "%s/result.json", dir);
        json_t *result = load(run), *point;
        assert_int_equal(json_integer_value(json_object_get(result, "seed")), 2);
        snprintf(run, sizeof run, "%s/eval.jsonl", dir);
        point = load(run); /* one look */
        assert_true(json_equal(json_object_get(point, "holdout_loss"), json_object_get(best, "loss")));
        json_decref(point);
        json_decref(result);
        assert_true(json_is_true(json_object_get(best, "chosen")));
        snprintf(run, sizeof run, "%s/%s", s.dir, dir);
        assert_int_equal(nftw(run, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
    }
    assert_int_equal(judged("tuning", text), ENI_WARN);
    assert_non_null(strstr(text, "best at an end of 0.001, 0.02, try beyond: ring 0.02, ps-sync 0.02"));
    assert_int_equal(judged("learning rate", text), ENI_PASS);
    json_array_remove(json_object_get(index, "runs"), 3);
    assert_int_equal(json_dump_file(index, path, 0), 0);
    json_decref(index);
    assert_int_equal(compare(flags), EN_OK);
    assert_int_equal(access(run, F_OK), -1);
    index = load("compare.json");
    assert_int_equal(json_array_size(json_object_get(index, "runs")), 4);
    json_decref(index);
    json_t *result = load("runs/even-ring-s1/result.json");
    assert_true(json_number_value(json_object_get(result, "lr")) == 0.04); /* scaled by two workers */
    json_decref(result);
}

static void test_a_sweep_may_be_interrupted(void **state)
{
    (void)state;
    const char *flags[] = {"--arm=ring", "--arm=ps-sync", "--tune=lr=0.001,0.02", "--resume", NULL};
    s.signal_fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_int_equal(compare(flags), EN_EINTR);
    close(s.signal_fd);
    s.signal_fd = -1;
    json_t *index = load("compare.json");
    assert_int_equal(json_array_size(sweep_of(index, 0)), 0); /* an interrupted run is no result */
    json_decref(index);
    assert_int_equal(compare(flags), EN_OK);
    index = load("compare.json");
    assert_int_equal(json_array_size(sweep_of(index, 1)), 2);
    json_decref(index);
    flags[2] = "--tune=lr=0.001,0.04";
    assert_int_equal(compare(flags), EN_EINVAL);
    assert_non_null(strstr(s.said, "tune.values.2 is 0.02 there and 0.04 here"));
}

static void test_an_arm_without_a_rate_is_named(void **state)
{
    (void)state;
    const char *flags[] = {"--arm=ring", "--steps=8", "--tune=lr=1000,100000", "--resume", NULL};
    for (int turn = 0; turn < 2; turn++) {
        s.said[0] = 0;
        assert_int_equal(compare(flags), EN_EPEER);
        assert_non_null(strstr(s.said, "no rate for the arm ring"));
    }
    json_t *index = load("compare.json"); /* the rank that ended it has said so to the launcher */
    for (size_t i = 0; i < 2; i++) {
        const json_t *run = json_array_get(sweep_of(index, 0), i);
        assert_true(json_is_true(json_object_get(run, "diverged")));
    }
    json_decref(index);
}

static void test_arms_are_tuned_alike_or_not_at_all(void **state)
{
    (void)state;
    assert_int_equal(
        compare((const char *[]){"--arm=ring", "--arm=b=ring:lr=0.1", "--tune=lr=0.01,0.02", NULL}),
        EN_EINVAL);
    assert_non_null(strstr(s.said, "b has lr=0.1 of its own"));
    assert_int_equal(compare((const char *[]){"--arm=ring", "--lr=0.1", "--tune=lr=0.01,0.02", NULL}),
                     EN_EINVAL);
    assert_non_null(strstr(s.said, "--lr=0.1"));
    assert_int_equal(compare((const char *[]){"--arm=ring", "--holdout=0", "--tune=lr=0.01,0.02", NULL}),
                     EN_EINVAL);
    assert_non_null(strstr(s.said, "--holdout=0"));
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_runs_are_interleaved),
        TEST(test_what_would_overwrite_is_refused),
        TEST(test_every_fact_has_a_row),
        TEST(test_an_arm_has_a_name),
        TEST(test_a_busy_seed_is_made_again),
        TEST(test_a_study_of_another_schema_is_refused),
        TEST(test_failed_runs_are_of_those_that_count),
        TEST(test_a_baseline_is_an_arm),
        TEST(test_a_regression_has_no_accuracy),
        TEST(test_data_that_no_run_could_have_is_refused),
        TEST(test_nothing_to_compare),
        TEST(test_stragglers_run_and_are_recorded),
        TEST(test_an_arm_is_slow_in_every_setting),
        TEST(test_what_cannot_be_applied_is_refused),
        TEST(test_every_condition_reaches_every_run),
        TEST(test_solo_stands_for_all_workers),
        TEST(test_a_failed_run_costs_no_other),
        TEST(test_an_interruption_ends_it),
        TEST(test_the_machine_is_recorded),
        TEST(test_the_plan_is_recorded),
        TEST(test_each_arm_is_tuned),
        TEST(test_a_sweep_may_be_interrupted),
        TEST(test_an_arm_without_a_rate_is_named),
        TEST(test_arms_are_tuned_alike_or_not_at_all),
        TEST(test_a_primary_comparison_that_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
