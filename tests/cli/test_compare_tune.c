/* test_compare_tune.c - which run of a sweep wins. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cli/compare_tune.h"
#include "core/log.h"
#include "tests/report/fixture.h"

/* Promise: A sweep of `compare --tune` chooses by the loss on held-out samples, never by the test set. */

static void lowest_loss_wins(void **state)
{
    (void)state;
    static const struct {
        const char *sweep;
        double chosen; /* 0: none */
    } cases[] = {
        {"[{'value':1,'loss':0.5},{'value':2,'loss':0.4},{'value':3,'loss':0.6}]", 2},
        {"[{'value':1,'loss':0.5},{'value':2,'loss':0.5}]", 1}, /* the first of equals */
        {"[{'value':1,'loss':null,'diverged':true},{'value':2,'loss':9}]", 2},
        {"[{'value':1,'loss':3},{'value':2,'loss':null,'cause':'killed'}]", 1},
        {"[{'value':1,'loss':null},{'value':2,'loss':null,'diverged':true}]", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[200];
        double value = 0;
        size_t nchosen = 0;
        snprintf(text, sizeof text, "%s", cases[i].sweep);
        for (char *quote; (quote = strchr(text, '\'')) != NULL;)
            *quote = '"';
        json_t *sweep = json_loads(text, 0, NULL), *run;
        assert_non_null(sweep);
        assert_int_equal(eni_tune_choose(sweep, &value), cases[i].chosen > 0);
        assert_true(value == cases[i].chosen);
        for (size_t k = 0; (run = json_array_get(sweep, k)) != NULL; k++) {
            if (!json_is_true(json_object_get(run, "chosen"))) continue;
            nchosen++;
            assert_true(json_number_value(json_object_get(run, "value")) == value);
        }
        assert_int_equal(nchosen, cases[i].chosen > 0);
        json_decref(sweep);
    }
}

static double loss_at(const json_t *sweep, size_t i)
{
    return json_number_value(json_object_get(json_array_get(sweep, i), "loss"));
}

static void heard(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)level, (void)subsystem, (void)text;
}

static void a_run_is_recorded_by_its_last_held_out_loss(void **state)
{
    (void)state;
    char dir[64];
    const fixture spec = fixture_demo();
    eni_log_set_sink(heard, NULL);
    fixture_folder(dir);
    fixture_write(dir, &spec);
    fixture_text(dir, "runs/even-0-s1/eval.jsonl",
                 "{\"samples\":1,\"t\":1,\"holdout_loss\":0.1,\"holdout_accuracy\":0.9,\"test_loss\":7}\n"
                 "{\"samples\":2,\"t\":2,\"holdout_loss\":0.3,\"holdout_accuracy\":0.8,\"test_loss\":8}\n");
    fixture_set(dir, "runs/even-1-s1/result.json", "diverged", json_true());
    json_t *sweep = json_array();
    eni_tune_add(sweep, 0.4, dir, "runs/even-2-s1", EN_ENONFINITE, "the loss of step 1 is not finite");
    eni_tune_add(sweep, 0.1, dir, "runs/even-0-s1", EN_OK, "");
    eni_tune_add(sweep, 0.3, dir, "runs/nowhere", EN_EPEER, "killed by signal 9");
    eni_tune_add(sweep, 0.2, dir, "runs/even-1-s1", EN_OK, "");
    assert_int_equal(json_array_size(sweep), 4); /* in the order of values */
    assert_true(loss_at(sweep, 0) == 0.3);
    for (size_t i = 1; i < 4; i++) {
        const json_t *run = json_array_get(sweep, i);
        assert_true(json_is_null(json_object_get(run, "loss")));
        assert_int_equal(json_is_true(json_object_get(run, "diverged")), i != 2);
    }
    assert_true(eni_tune_has(sweep, 0.3));
    assert_false(eni_tune_has(sweep, 0.5));
    json_decref(sweep);
    fixture_remove(dir);
    eni_log_set_sink(NULL, NULL);
}

static void a_sweep_has_a_seed_of_its_own(void **state)
{
    (void)state;
    static const struct {
        const char *flag;
        int64_t seed;
    } cases[] = {
        {"--seeds=1..3", 0}, {"--seeds=2,0,1", 3}, {"--seeds=0,2", 1}, {"--seed=0", 1}, {"--seed=5", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char flag[32], *argv[] = {flag, flag, NULL};
        eni_config config;
        snprintf(flag, sizeof flag, "%s", cases[i].flag);
        assert_int_equal(eni_config_parse(ENI_COMPARE, 2, argv, &config), EN_OK);
        assert_int_equal(eni_tune_seed(&config), cases[i].seed);
        eni_config_fini(&config);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lowest_loss_wins),
                                       cmocka_unit_test(a_run_is_recorded_by_its_last_held_out_loss),
                                       cmocka_unit_test(a_sweep_has_a_seed_of_its_own)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
