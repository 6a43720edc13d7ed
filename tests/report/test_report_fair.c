/* test_report_fair.c - each rule of the fairness box, made to hold and made to break. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "config/keys.h"
#include "report/may_differ.h"
#include "report/report_fair.h"
#include "tests/report/fixture.h"

/* Promise: Every key and every recorded fact is judged by its row in report/may_differ.c, where runs
 * differ and where they agree. */

static char dir[64];

static int setup(void **state)
{
    (void)state;
    fixture spec = fixture_demo();
    spec.has_trace = 0;
    fixture_folder(dir);
    fixture_write(dir, &spec);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_remove(dir);
    return 0;
}

static eni_fairness judge(void)
{
    eni_study *study;
    eni_fairness fairness;
    assert_int_equal(eni_study_load((const char *const[]){dir}, 1, (eni_target){0}, &study), EN_OK);
    eni_fair_judge(study, &fairness);
    eni_study_free(study);
    return fairness;
}

static const eni_rule *rule(const eni_fairness *fairness, const char *name)
{
    for (size_t i = 0; i < fairness->nrules; i++)
        if (strcmp(fairness->rules[i].name, name) == 0) return &fairness->rules[i];
    fail_msg("rule %s is missing", name);
    return NULL;
}

/* The rule has this mark, and its text the parts in "one|another". */
static void rule_is(const char *name, int mark, const char *parts)
{
    eni_fairness fairness = judge();
    const eni_rule *found = rule(&fairness, name);
    if (found->mark != mark || !fixture_has(found->text, parts))
        fail_msg("%s is %s: %s", name, eni_fair_mark(found->mark), found->text);
}

/* Changes one run's entry in the index: runs[i].key. */
static void set_entry(size_t i, const char *key, json_t *value)
{
    char path[128];
    snprintf(path, sizeof path, "%s/compare.json", dir);
    json_t *index = json_load_file(path, 0, NULL);
    assert_non_null(index);
    json_object_set_new(json_array_get(json_object_get(index, "runs"), i), key, value);
    assert_int_equal(json_dump_file(index, path, 0), 0);
    json_decref(index);
}

/* Changes one arm's entry in the index: arms[i].key. */
static void set_arm(size_t i, const char *key, json_t *value)
{
    char path[128];
    snprintf(path, sizeof path, "%s/compare.json", dir);
    json_t *index = json_load_file(path, 0, NULL);
    assert_non_null(index);
    json_object_set_new(json_array_get(json_object_get(index, "arms"), i), key, value);
    assert_int_equal(json_dump_file(index, path, 0), 0);
    json_decref(index);
}

static void the_demo_passes_with_one_warning(void **state)
{
    (void)state;
    eni_fairness fairness = judge();
    char line[256];
    eni_fair_line(&fairness, line, sizeof line);
    assert_string_equal(line, "PASS, 1 warning (psd shares 2 cores with 2 workers)");
    assert_true(fairness.is_time_comparable);
    assert_ptr_equal(strstr(fairness.same_bytes, "ring = ps-sync byte for byte (sha256 "),
                     fairness.same_bytes);
}

static void another_start_fails(void **state)
{
    (void)state;
    fixture_set(dir, "runs/even-2-s2/result.json", "init_sha256", json_string("77aa00112233"));
    rule_is("initial weights", ENI_FAIL, "77aa0011 in runs/even-2-s2");
    rule_is("data order", ENI_PASS, "over 12 runs");
}

/* One rule is broken, two rules are. */
static void a_count_has_its_plural(void **state)
{
    (void)state;
    char line[512];
    fixture_set(dir, "runs/even-2-s2/result.json", "init_sha256", json_string("77aa00112233"));
    eni_fairness fairness = judge();
    eni_fair_line(&fairness, line, sizeof line);
    assert_non_null(strstr(line, "FAIL, 1 rule broken ("));
    fixture_set(dir, "runs/even-2-s2/result.json", "order_sha256", json_string("77aa00112233"));
    fairness = judge();
    eni_fair_line(&fairness, line, sizeof line);
    assert_non_null(strstr(line, "FAIL, 2 rules broken ("));
}

static void another_order_fails(void **state)
{
    (void)state;
    fixture_set(dir, "runs/slow-0-s1/result.json", "order_sha256", json_string("123456789"));
    rule_is("data order", ENI_FAIL, "in runs/even-0-s1, 12345678 in runs/slow-0-s1");
}

static void a_missing_hash_warns(void **state)
{
    (void)state;
    fixture_set(dir, "runs/even-0-s1/result.json", "init_sha256", NULL);
    rule_is("initial weights", ENI_WARN, "no hash in 1 of 12 runs");
}

static void linear_scaling_is_judged_by_samples_per_update(void **state)
{
    (void)state;
    rule_is("learning rate", ENI_PASS,
            "ring 0.02 per 128 samples, ps-sync 0.02 per 128 samples, ps-async 0.01 per 64");
    for (int seed = 1; seed <= 3; seed++) {
        char file[64];
        snprintf(file, sizeof file, "runs/even-2-s%d/result.json", seed);
        fixture_set(dir, file, "lr", json_real(0.005));
    }
    rule_is("learning rate", ENI_WARN, "ps-async at 0.5 of the rule");
}

static void unscaled_rates_make_accuracy_incomparable(void **state)
{
    (void)state;
    fixture_set(dir, "compare.json", "lr_scale", json_string("none"));
    rule_is("learning rate", ENI_PASS, "not scaled, but proportional");
    fixture_set(dir, "runs/even-0-s1/result.json", "lr", json_real(0.01));
    rule_is("learning rate", ENI_FAIL, "ring 0.01 per 128 samples");
    eni_fairness fairness = judge();
    assert_false(fairness.is_time_comparable);
}

/* Records a sweep of three rates for each arm, of which the chosen one is given. */
static void tune(const int *chosen, const char *broken)
{
    for (size_t arm = 0; arm < 3; arm++) {
        json_t *sweep = json_array();
        for (int i = 0; i < 3; i++) {
            json_t *run = json_pack("{s:f, s:o}", "value", 0.01 * (i + 1), "loss",
                                    broken != NULL && arm == 0 && i == 2 ? json_null() : json_real(1));
            if (i == chosen[arm]) json_object_set_new(run, "chosen", json_true());
            if (broken != NULL) json_object_set_new(run, broken, json_true());
            json_array_append_new(sweep, run);
        }
        set_arm(arm, "sweep", sweep);
    }
    fixture_set(dir, "compare.json", "tune",
                json_pack("{s:s, s:[f, f, f], s:i, s:s}", "key", "lr", "values", 0.01, 0.02, 0.03, "seed", 0,
                          "setting", "even"));
}

static void arms_are_tuned_alike(void **state)
{
    (void)state;
    tune((const int[]){1, 1, 1}, NULL);
    rule_is("tuning", ENI_PASS, "each arm's rate from 0.01, 0.02, 0.03|held-out|seed 0, even|ps-async 0.02");
    tune((const int[]){1, 0, 2}, NULL);
    rule_is("tuning", ENI_WARN,
            "best at an end of 0.01, 0.02, 0.03, try beyond: ps-sync 0.01, ps-async 0.03");
    tune((const int[]){1, 1, 1}, "diverged"); /* a rate too high is a result */
    rule_is("tuning", ENI_PASS, "ring 0.02");
    tune((const int[]){1, 1, 1}, "cause");
    rule_is("tuning", ENI_WARN, "1 run of the sweeps failed");
    set_arm(0, "sweep", json_array());
    rule_is("tuning", ENI_WARN, "only 2 of 3 arms were tuned");
}

static void less_work_fails(void **state)
{
    (void)state;
    fixture_set(dir, "runs/even-2-s1/result.json", "samples_computed", json_integer(50000));
    rule_is("same budget", ENI_FAIL, "from 50,000 (ps-async in even) to 59,904");
    fixture_set(dir, "runs/even-2-s1/result.json", "samples_computed", json_integer(59840));
    rule_is("same budget", ENI_WARN, "from 59,840");
}

/* Work that a strategy drops, or that came after the last push, was done all the same. */
static void what_was_not_applied_was_computed(void **state)
{
    (void)state;
    rule_is("same budget", ENI_PASS, "59,904");
    fixture_set(dir, "runs/even-2-s1/result.json", "samples_applied", json_integer(50000));
    fixture_set(dir, "runs/even-2-s1/result.json", "samples_dropped", json_integer(9856));
    rule_is("same budget", ENI_PASS, "ps-async applied 50,000|dropped 9,856");
}

static void another_model_fails(void **state)
{
    (void)state;
    fixture_set(dir, "runs/even-1-s3/result.json", "model", json_string("mlp"));
    rule_is("same task", ENI_FAIL, "runs/even-1-s3");
}

static void running_statistics_are_named(void **state)
{
    (void)state;
    fixture_set(dir, "runs/even-0-s1/result.json", "bn_stats", json_string("rank0"));
    rule_is("same task", ENI_PASS, "running statistics by bn-stats rank0");
    fixture_set(dir, "runs/even-1-s3/result.json", "bn_stats", json_string("mean"));
    rule_is("same task", ENI_FAIL, "bn_stats: rank0 in runs/even-0-s1, mean in runs/even-1-s3");
}

/* ring's one run in the slow setting; ps-async's stays at 3.0. */
static void set_slowness(double measured)
{
    fixture_set(dir, "runs/slow-0-s1/result.json", "stragglers",
                json_pack("[{s:i, s:f, s:f, s:i, s:i}]", "rank", 1, "factor", 3.0, "factor_measured",
                          measured, "pieces", 1000, "late", 400));
}

static void slow_ranks_are_as_slow_in_every_arm(void **state)
{
    (void)state;
    rule_is("slow ranks", ENI_PASS, "3 |in slow: ");
    set_slowness(3.12);
    rule_is("slow ranks", ENI_PASS, " to 3.12");
    set_slowness(3.22);
    rule_is("slow ranks", ENI_WARN, "3.22 in ring");
    set_slowness(4.5);
    rule_is("slow ranks", ENI_FAIL, "3 |in slow: |4.50 in ring");
    set_slowness(2.5);
    rule_is("slow ranks", ENI_FAIL, "2.50 |in ring, ");
    fixture_set(dir, "runs/slow-0-s1/result.json", "stragglers", NULL);
    rule_is("slow ranks", ENI_WARN, "1 arm");
}

/* One rank slower and another faster than elsewhere do not cancel out. */
static void each_slow_rank_is_judged(void **state)
{
    static const char *const entry = "{s:i, s:f, s:f}";
    (void)state;
    for (size_t arm = 0; arm < 3; arm++) {
        char run[64];
        json_t *list = json_array();
        json_array_append_new(
            list, json_pack(entry, "rank", 0, "factor", 2.0, "factor_measured", arm == 1 ? 1.6 : 2.0));
        json_array_append_new(
            list, json_pack(entry, "rank", 1, "factor", 3.0, "factor_measured", arm == 1 ? 3.4 : 3.0));
        snprintf(run, sizeof run, "runs/slow-%zu-s1/result.json", arm);
        fixture_set(dir, run, "stragglers", list);
    }
    rule_is("slow ranks", ENI_FAIL, "2 |in slow: |1.60 |in ps-sync|2.00 in ring");
}

static void a_failed_run_is_a_dropped_seed(void **state)
{
    (void)state;
    set_entry(1, "exit", json_integer(1));
    rule_is("no seed dropped", ENI_FAIL, "1 of 12 runs failed: runs/even-1-s1 (exit 1)");
}

static void arms_in_blocks_warn(void **state)
{
    (void)state;
    rule_is("order of runs", ENI_PASS, "ring, ps-sync, ps-async, ring");
    const int blocks[9] = {0, 3, 6, 1, 4, 7, 2, 5, 8};
    for (size_t i = 0; i < 9; i++)
        set_entry(i, "order", json_integer(blocks[i]));
    rule_is("order of runs", ENI_WARN, "3 runs of ring in a row");
}

/* The fixture's ps-async has a mean staleness near 1, as two workers have: as momentum 0.5. */
static void asynchrony_is_shown_as_momentum(void **state)
{
    (void)state;
    rule_is("momentum", ENI_PASS, "ps-async|0.5");
    for (int seed = 1; seed <= 2; seed++) {
        char path[64];
        snprintf(path, sizeof path, "runs/even-2-s%d/result.json", seed);
        fixture_set(dir, path, "momentum", json_real(0.9));
    }
    rule_is("momentum", ENI_WARN, "0.9 beside|--momentum");
}

static void other_bytes_fail(void **state)
{
    (void)state;
    rule_is("same bytes", ENI_PASS, "ring = ps-sync|4 pairs");
    fixture_set(dir, "runs/even-1-s2/result.json", "params_sha256", json_string("deadbeef00"));
    rule_is("same bytes", ENI_FAIL, "ps-sync in even, seed 2: deadbeef");
    eni_fairness fairness = judge();
    assert_true(fixture_has(fairness.same_bytes, "ring and ps-sync|not"));
}

static void lists_of_cores(void **state)
{
    (void)state;
    uint64_t set[16] = {0};
    assert_int_equal(eni_fair_cores("0-1,4", set), 3);
    assert_true(set[0] == 0x13);
    const char *const bad[] = {"a", "1-", "3-1", "0;1", "-1", "0-99999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(eni_fair_cores(bad[i], set), -1);
}

/* The conditions omit the data set, which has its own name, not the flag's. */
static void what_is_done_to_images_is_named(void **state)
{
    (void)state;
    fixture_set(dir, "compare.json", "conditions",
                json_pack("{s:s, s:s, s:s}", "data", "cifar10", "augment", "crop:32:4,flip", "resize", "40"));
    const eni_fairness fairness = judge();
    assert_string_equal(rule(&fairness, "same conditions")->text, "augment crop:32:4,flip, resize 40");
}

/* Old studies do not record their conditions, and are not judged by them. */
static void arms_of_one_setting_share_its_conditions(void **state)
{
    (void)state;
    eni_fairness old = judge();
    for (size_t i = 0; i < old.nrules; i++)
        assert_string_not_equal(old.rules[i].name, "same conditions");
    fixture_set(dir, "compare.json", "conditions",
                json_pack("{s:s, s:s, s:n, s:n}", "workers", "2", "batch-size", "64", "net", "straggler"));
    rule_is("same conditions", ENI_PASS, "workers 2, batch-size 64");
    set_arm(2, "condition", json_pack("{s:s}", "net", "rate:1MB,delay:0s"));
    rule_is("same conditions", ENI_FAIL, "net: ring has none, ps-async has rate:1MB,delay:0s");
    set_arm(2, "condition", json_pack("{s:s, s:s}", "net", "rate:1MB,delay:0s", "batch-size", "32"));
    rule_is("same conditions", ENI_FAIL, "batch-size: ring has 64, ps-async has 32");
}

/* The straggler of a setting belongs to all its arms; an arm's own is a difference if the others lack it. */
static void a_straggler_of_one_arm_is_no_setting(void **state)
{
    (void)state;
    fixture_set(dir, "compare.json", "conditions", json_pack("{s:n}", "straggler"));
    rule_is("same conditions", ENI_PASS, "");
    set_arm(1, "condition", json_pack("{s:s}", "straggler", "1:3"));
    rule_is("same conditions", ENI_FAIL, "straggler: ring has none, ps-sync has 1:3");
    for (size_t i = 0; i < 3; i++) /* the same in all: a condition of the study */
        set_arm(i, "condition", json_pack("{s:s}", "straggler", "1:3"));
    rule_is("same conditions", ENI_PASS, "");
}

static void the_baseline_is_one_process(void **state)
{
    (void)state;
    fixture_set(
        dir, "compare.json", "conditions",
        json_pack("{s:s, s:s, s:s, s:s}", "workers", "2", "accumulate", "1", "threads", "0", "steps", "9"));
    set_arm(0, "strategy", json_string("solo"));
    set_arm(0, "alone", json_true());
    set_arm(0, "condition", json_pack("{s:s, s:s, s:s}", "workers", "1", "accumulate", "2", "threads", "1"));
    rule_is("same conditions", ENI_PASS, "workers 2");
    set_arm(0, "condition", json_pack("{s:s}", "steps", "8"));
    rule_is("same conditions", ENI_FAIL, "steps: ring has 8, ps-sync has 9");
}

static void a_busy_machine_is_named_with_its_runs(void **state)
{
    (void)state;
    for (size_t i = 0; i < 12; i++) {
        set_entry(i, "outside", json_real(0.004 * (double)i));
        set_entry(i, "load", json_real(0.5 + (double)i));
    }
    rule_is("quiet machine", ENI_PASS, "4.4 %|12 runs|0.5 to 11.5");
    set_entry(2, "outside", json_real(0.26));
    set_entry(4, "outside", json_real(0.0501));
    rule_is("quiet machine", ENI_WARN, "5 %|2 of 12 runs|runs/even-2-s1 26 %");
    set_entry(4, "outside", json_real(0.05));
    set_entry(2, "outside", json_null());
    rule_is("quiet machine", ENI_PASS, "5.0 %|11 runs|known in 1");
    for (size_t i = 0; i < 12; i++)
        set_entry(i, "outside", json_null());
    rule_is("quiet machine", ENI_WARN, "too short");
}

static void what_measuring_took_is_said(void **state)
{
    static const char *const runs[] = {"runs/even-2-s1/result.json", "runs/even-2-s2/result.json"};
    (void)state;
    for (size_t i = 0; i < 2; i++)
        fixture_set(dir, runs[i], "snapshots",
                    json_pack("{s:i, s:i, s:f, s:f, s:f}", "taken", 48, "left_out", 0, "clock_seconds",
                              0.01 * (double)i, "after_seconds", 1.5, "bytes_after", 38e6));
    rule_is("measuring", ENI_PASS, "moved 0 MB|1.5 s|38 MB");
    fixture_set(dir, runs[0], "snapshots", json_pack("{s:i, s:f}", "taken", 48, "bytes_on_clock", 5e6));
    rule_is("measuring", ENI_WARN, "moved 5 MB|in 1 of 2 runs");
    fixture_set(dir, runs[0], "snapshots", json_pack("{s:i, s:i}", "taken", 48, "left_out", 3));
    rule_is("measuring", ENI_WARN, "; 3 snapshots");
    fixture_set(dir, runs[0], "snapshots", json_pack("{s:f}", "clock_seconds", 1e3));
    rule_is("measuring", ENI_WARN, "moved 0 MB");
}

/* ---- the table: which runs may differ in which keys, in both directions (report/may_differ.h) ---- */

/* The i-th of names separated by blanks; false: there are fewer. */
static bool word_of(const char *names, size_t i, char word_out[64])
{
    for (; i > 0 && *names != 0; i--) {
        names += strcspn(names, " ");
        names += *names == ' ';
    }
    snprintf(word_out, 64, "%.*s", (int)strcspn(names, " "), names);
    return word_out[0] != 0;
}

/* A new key needs a row; and no row may name a key that does not exist, or that has another row. */
static void every_key_has_one_row(void **state)
{
    (void)state;
    char word[64];
    for (int k = 0; k < eni_key_count; k++) {
        const eni_key *key = &eni_keys[k];
        const bool is_of_runs = eni_key_applies(key, ENI_RUN) || eni_key_applies(key, ENI_COMPARE);
        if (!is_of_runs || (key->flags & ENI_KEY_HIDDEN) != 0) continue;
        if (eni_may_differ_find(false, key->name) == NULL)
            fail_msg("the key %s has no row in report/may_differ.c", key->name);
    }
    for (size_t i = 0; i < eni_may_differ_count; i++)
        for (size_t k = 0; word_of(eni_may_differ_table[i].names, k, word); k++) {
            const eni_may_differ *row = &eni_may_differ_table[i];
            if (eni_may_differ_find(row->rule != NULL, word) != row) fail_msg("%s has two rows", word);
            if (row->rule == NULL && eni_key_find(word, strlen(word)) < 0) fail_msg("%s is not a key", word);
        }
}

static int mark_of(const char *name)
{
    const eni_fairness fairness = judge();
    for (size_t i = 0; i < fairness.nrules; i++)
        if (strcmp(fairness.rules[i].name, name) == 0) return fairness.rules[i].mark;
    return -1; /* it does not apply */
}

static void expect_fact(const char *fact, const eni_may_differ *row, bool is_fine)
{
    const int mark = mark_of(row->rule), odd = row->then == ENI_THEN_WARN ? ENI_WARN : ENI_FAIL;
    if (is_fine ? mark > ENI_PASS : mark != odd) fail_msg("%s: %s is %d", fact, row->rule, mark);
}

static void expect(const char *what, const char *name, int mark)
{
    if (mark_of(name) != mark) fail_msg("%s: %s is %d, not %d", what, name, mark_of(name), mark);
}

static void give(size_t arm, const char *kind, const char *key, const char *value)
{
    set_arm(arm, kind, json_pack("{s:s}", key, value));
}

/* ring and ps-sync end with different bytes here: allowed, or not. */
static void try_key(const eni_may_differ *row, const char *key)
{
    if (row->who == ENI_ARMS) {
        const bool is_fine = row->then == ENI_THEN_OTHER_BYTES && strcmp(key, "strategy") != 0;
        give(0, "own", key, "x");
        give(1, "own", key, "x");
        expect(key, "same bytes", ENI_FAIL);
        give(1, "own", key, "y");
        expect(key, "same bytes", is_fine ? -1 : ENI_FAIL);
        expect(key, "same conditions", ENI_PASS);
        give(0, "own", "lr", "x");
        give(1, "own", "lr", "x");
        return;
    }
    fixture_set(dir, "compare.json", "conditions", json_pack("{s:s}", key, "x"));
    expect(key, "same conditions", ENI_PASS);
    give(1, "condition", key, "y");
    expect(key, "same conditions", ENI_FAIL);
    expect(key, "same bytes", -1);
    set_arm(1, "alone", json_true());
    expect(key, "same conditions", row->who == ENI_ALONE ? ENI_PASS : ENI_FAIL);
    expect(key, "same bytes", row->who == ENI_ALONE ? ENI_FAIL : -1);
    set_arm(1, "alone", json_false());
    set_arm(1, "condition", json_object());
}

static void every_key_is_judged_by_its_row(void **state)
{
    (void)state;
    char word[64];
    fixture_set(dir, "runs/even-1-s2/result.json", "params_sha256", json_string("deadbeef00"));
    fixture_set(dir, "compare.json", "conditions", json_object());
    for (size_t i = 0; i < eni_may_differ_count; i++)
        for (size_t k = 0; word_of(eni_may_differ_table[i].names, k, word); k++)
            if (eni_may_differ_table[i].rule == NULL && eni_may_differ_table[i].who != ENI_ANYBODY)
                try_key(&eni_may_differ_table[i], word);
}

/* In runs of an arm (-1: all) and a seed (0: all). */
static void record(const char *fact, int arm, int seed, bool is_other)
{
    static const char numbers[] = " workers global_batch_size lr target target_loss ";
    for (int setting = 0; setting < 2; setting++)
        for (int a = 0; a < 3; a++)
            for (int s = 1; s <= (setting == 0 ? 3 : 1); s++) {
                char file[64], padded[80], object[64] = "";
                const char *dot = strchr(fact, '.');
                if ((arm >= 0 && a != arm) || (seed > 0 && s != seed)) continue;
                snprintf(file, sizeof file, "runs/%s-%d-s%d/result.json", setting == 0 ? "even" : "slow", a,
                         s);
                snprintf(padded, sizeof padded, " %s ", fact);
                if (dot != NULL) memcpy(object, fact, (size_t)(dot - fact));
                json_t *value = strstr(numbers, padded) != NULL || strcmp(object, "pipeline") == 0
                                    ? json_real(is_other ? 0.5 : 0.25)
                                    : json_string(is_other ? "other0000" : "one000000");
                if (strcmp(object, "pipeline") == 0) {
                    json_decref(value);
                    fixture_set(dir, file, "bn_stats", json_string("rank0"));
                    value = json_pack("{s:i, s:i}", "stages", 1, "micro_batches", is_other ? 4 : 2);
                } else if (dot != NULL)
                    value = json_pack("{s:o}", dot + 1, value);
                fixture_set(dir, file, dot != NULL ? object : fact, value);
            }
}

/* One run; all of an arm; all of a seed; an arm that stands for all workers. */
static void try_fact(const eni_may_differ *row, const char *fact)
{
    record(fact, -1, 0, false);
    expect_fact(fact, row, true);
    record(fact, 1, 2, true);
    expect_fact(fact, row, false);
    record(fact, 1, 0, true);
    expect_fact(fact, row, row->who == ENI_ARMS);
    set_arm(1, "alone", json_true());
    expect_fact(fact, row, row->who == ENI_ARMS || row->who == ENI_ALONE);
    set_arm(1, "alone", json_false());
    record(fact, 1, 0, false);
    record(fact, -1, 2, true);
    expect_fact(fact, row, row->who == ENI_SEEDS);
    record(fact, -1, 0, false);
}

static void every_fact_is_judged_by_its_row(void **state)
{
    (void)state;
    char word[64];
    for (size_t i = 0; i < eni_may_differ_count; i++)
        for (size_t k = 0; word_of(eni_may_differ_table[i].names, k, word); k++)
            if (eni_may_differ_table[i].rule != NULL && eni_may_differ_table[i].rule[0] != 0)
                try_fact(&eni_may_differ_table[i], word);
}

/* They differ after the letters that fit into a message. */
static void long_facts_are_compared_to_their_ends(void **state)
{
    (void)state;
    char libraries[500];
    memset(libraries, 'x', sizeof libraries);
    libraries[499] = 0;
    for (int s = 1; s <= 3; s++) {
        char file[64];
        snprintf(file, sizeof file, "runs/even-0-s%d/result.json", s);
        fixture_set(dir, file, "groups", json_pack("[s, s]", libraries, s < 3 ? "1.0" : "1.1"));
    }
    rule_is("same task", ENI_FAIL, "in runs/even-0-s3");
    for (int s = 1; s <= 2; s++) {
        libraries[498] = (char)('0' + s);
        fixture_set(dir, s == 1 ? "runs/even-0-s1/result.json" : "runs/even-0-s2/result.json", "environment",
                    json_pack("{s:s}", "libraries", libraries));
    }
    rule_is("same machine", ENI_FAIL, "environment.libraries: ");
}

/* Synthetic data differs with each seed; files do not. */
static void made_up_data_goes_with_the_seed(void **state)
{
    (void)state;
    record("data_sha256", -1, 0, false);
    record("data_sha256", -1, 2, true);
    rule_is("same task", ENI_FAIL, "data_sha256: one00000 in runs/even-0-s1, other000 in runs/even-0-s2");
    for (int a = 0; a < 3; a++)
        for (int s = 1; s <= 3; s++) {
            char file[64];
            snprintf(file, sizeof file, "runs/even-%d-s%d/result.json", a, s);
            fixture_set(dir, file, "data", json_string("synthetic"));
            snprintf(file, sizeof file, "runs/slow-%d-s1/result.json", a);
            fixture_set(dir, file, "data", json_string("synthetic"));
        }
    rule_is("same task", ENI_PASS, "synthetic");
}

/* Each arm at the rate that suits it, as every reviewer asks. */
static void a_tuned_rate_per_arm_is_fair(void **state)
{
    (void)state;
    fixture_set(dir, "compare.json", "lr_scale", json_string("none"));
    for (int s = 1; s <= 3; s++) {
        char file[64];
        snprintf(file, sizeof file, "runs/even-2-s%d/result.json", s);
        fixture_set(dir, file, "lr", json_real(0.004));
    }
    rule_is("learning rate", ENI_FAIL, "not scaled");
    set_arm(2, "given", json_pack("[i, s, s]", 1, "momentum", "lr"));
    rule_is("learning rate", ENI_WARN, "1 of 3 arms|ring 0.02 per 128 samples, ");
    for (size_t a = 0; a < 3; a++)
        set_arm(a, "given", json_pack("[s]", "lr"));
    rule_is("learning rate", ENI_PASS, "each arm|ring 0.02 per 128 samples, ");
    /* the rates of two optimizers are not comparable */
    for (size_t a = 0; a < 3; a++) {
        set_arm(a, "given", json_array());
        give(a, "own", "optimizer", a == 2 ? "adam" : "sgd");
    }
    rule_is("learning rate", ENI_PASS, "not scaled, but proportional");
    give(0, "own", "optimizer", "rmsprop"); /* no two rates are compared */
    give(1, "own", "optimizer", "sgd");
    rule_is("learning rate", ENI_PASS, "not scaled: ");
    give(0, "own", "optimizer", "sgd");
    give(1, "own", "optimizer", "adam");
    rule_is("learning rate", ENI_FAIL, "not scaled");
}

static void threads_count_as_cores_do(void **state)
{
    (void)state;
    for (int a = 0; a < 3; a++) {
        char file[64];
        snprintf(file, sizeof file, "runs/even-%d-s1/result.json", a);
        fixture_set(dir, file, "threads", json_integer(8));
    }
    rule_is("cores per role", ENI_WARN, "2 workers of 8 threads|2 cores; psd|2 cores with 2 workers of");
}

/* Seed 2 was repeated: its first runs are mentioned, but not counted. */
static void a_replaced_run_is_counted_nowhere(void **state)
{
    (void)state;
    char path[128];
    eni_study *study;
    snprintf(path, sizeof path, "%s/compare.json", dir);
    json_t *index = json_load_file(path, 0, NULL), *runs = json_object_get(index, "runs");
    for (size_t i = 0; i < 12; i++)
        json_object_set_new(json_array_get(runs, i), "outside", json_real(i == 3 ? 0.3 : 0.01));
    for (size_t i = 3; i < 6; i++) {
        json_t *again = json_deep_copy(json_array_get(runs, i));
        json_object_set_new(again, "order", json_integer((json_int_t)(9 + i)));
        json_object_set_new(again, "outside", json_real(0.02));
        json_array_append_new(runs, again);
        json_object_set_new(json_array_get(runs, i), "replaced", json_true());
    }
    assert_int_equal(json_dump_file(index, path, 0), 0);
    json_decref(index);
    assert_int_equal(eni_study_load((const char *const[]){dir}, 1, (eni_target){0}, &study), EN_OK);
    assert_int_equal(study->nruns, 12);
    assert_int_equal(study->nreplaced, 3);
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;)
        assert_true(run->outside < 0.03);
    eni_study_free(study);
    rule_is("quiet machine", ENI_PASS, "2.0 %|12 runs|3 runs");
    rule_is("no seed dropped", ENI_PASS, "12 runs");
}

#define WITH_STUDY(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {WITH_STUDY(the_demo_passes_with_one_warning),
                                       WITH_STUDY(another_start_fails),
                                       WITH_STUDY(another_order_fails),
                                       WITH_STUDY(a_count_has_its_plural),
                                       WITH_STUDY(a_missing_hash_warns),
                                       WITH_STUDY(linear_scaling_is_judged_by_samples_per_update),
                                       WITH_STUDY(unscaled_rates_make_accuracy_incomparable),
                                       WITH_STUDY(less_work_fails),
                                       WITH_STUDY(what_was_not_applied_was_computed),
                                       WITH_STUDY(another_model_fails),
                                       WITH_STUDY(running_statistics_are_named),
                                       WITH_STUDY(slow_ranks_are_as_slow_in_every_arm),
                                       WITH_STUDY(each_slow_rank_is_judged),
                                       WITH_STUDY(what_measuring_took_is_said),
                                       WITH_STUDY(a_failed_run_is_a_dropped_seed),
                                       WITH_STUDY(arms_in_blocks_warn),
                                       cmocka_unit_test(every_key_has_one_row),
                                       WITH_STUDY(every_key_is_judged_by_its_row),
                                       WITH_STUDY(every_fact_is_judged_by_its_row),
                                       WITH_STUDY(long_facts_are_compared_to_their_ends),
                                       WITH_STUDY(made_up_data_goes_with_the_seed),
                                       WITH_STUDY(a_tuned_rate_per_arm_is_fair),
                                       WITH_STUDY(threads_count_as_cores_do),
                                       WITH_STUDY(a_replaced_run_is_counted_nowhere),
                                       WITH_STUDY(a_busy_machine_is_named_with_its_runs),
                                       WITH_STUDY(what_is_done_to_images_is_named),
                                       WITH_STUDY(arms_of_one_setting_share_its_conditions),
                                       WITH_STUDY(a_straggler_of_one_arm_is_no_setting),
                                       WITH_STUDY(the_baseline_is_one_process),
                                       WITH_STUDY(asynchrony_is_shown_as_momentum),
                                       WITH_STUDY(other_bytes_fail),
                                       WITH_STUDY(arms_are_tuned_alike),
                                       cmocka_unit_test(lists_of_cores)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
