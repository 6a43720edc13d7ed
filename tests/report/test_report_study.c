/* test_report_study.c - when the target counts as reached: the first of three points of the grid in a row,
 * and the two snapshots that enclose the moment. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "report/report_study.h"

enum { MOST = 32 };

/* A run whose grid has these accuracies in percent, a point a second and 1,000 samples, behind initial
 * weights of 10 %. */
static eni_run run_of(eni_eval evals[MOST], const double *percent, size_t n)
{
    evals[0] = (eni_eval){.accuracy = 0.1};
    for (size_t i = 0; i < n; i++)
        evals[i + 1] = (eni_eval){1000.0 * (double)(i + 1), (double)(i + 1), 1, percent[i] / 100, false};
    return (eni_run){.is_complete = true, .evals = evals, .nevals = n + 1, .evaluated_for.value = NAN};
}

static void find(eni_run *run, double accuracy)
{
    eni_study_find_target(run, &(eni_target){.value = accuracy});
}

#define RUN_OF(evals, ...)                                                                                   \
    run_of(evals, (const double[]){__VA_ARGS__}, sizeof((const double[]){__VA_ARGS__}) / sizeof(double))

static bool is(double value, double expected)
{
    return fabs(value - expected) < 1e-9;
}

static void the_first_of_three_in_a_row(void **state)
{
    (void)state;
    eni_eval evals[MOST];
    eni_run run = RUN_OF(evals, 60, 70, 80, 74, 76, 70, 77, 78, 75, 76);
    find(&run, 0.75);
    assert_true(run.reach.low == 6 && run.reach.high == 7 && run.last_t == 10);
    assert_true(is(run.reach.t, 6 + 5.0 / 7) && is(run.reach.samples, 6000 + 5000.0 / 7));
}

/* It touched 80 % once and ended at 71 %: not reached. */
static void one_good_moment_is_none(void **state)
{
    (void)state;
    eni_eval evals[MOST];
    eni_run run = RUN_OF(evals, 60, 70, 74, 80, 80, 74, 73, 72, 71);
    find(&run, 0.75);
    assert_true(isinf(run.reach.t) && isinf(run.reach.samples) && run.last_t == 9);
    assert_false(eni_study_bracket_is_wide(&run));
}

static void three_at_the_very_end_are_enough_and_two_are_not(void **state)
{
    (void)state;
    eni_eval evals[MOST];
    eni_run run = RUN_OF(evals, 60, 70, 70, 80, 80, 80);
    find(&run, 0.75);
    assert_true(is(run.reach.t, 3.5));
    run = RUN_OF(evals, 60, 70, 70, 70, 80, 80);
    find(&run, 0.75);
    assert_true(isinf(run.reach.t));
    run = RUN_OF(evals, 60, 70, 70, 75, 75, 75); /* at the target is reached */
    find(&run, 0.75);
    assert_true(is(run.reach.t, 4));
}

/* The initial weights are point 0. */
static void a_crossing_before_the_first_point(void **state)
{
    (void)state;
    eni_eval evals[MOST];
    eni_run run = RUN_OF(evals, 80, 85, 90);
    find(&run, 0.75);
    assert_true(run.reach.low == 0 && run.reach.high == 1 && is(run.reach.t, 65.0 / 70));
    evals[0].accuracy = 0.9; /* trained before */
    find(&run, 0.75);
    assert_true(run.reach.t == 0 && run.reach.samples == 0 && run.reach.low == 0 && run.reach.high == 0);
    run.evals++; /* a folder without point 0: any time before its first point */
    run.nevals--;
    find(&run, 0.75);
    assert_true(run.reach.t == 1 && run.reach.low == 0 && run.reach.high == 1 &&
                eni_study_bracket_is_wide(&run));
}

/* The bracket is the first snapshot in between at or above the target and the one before it; they are not part of
 * the grid. */
static void the_bracket_is_that_of_the_snapshots(void **state)
{
    (void)state;
    eni_eval evals[] = {{0, 0, 1, 0.1, false},      {1000, 1, 1, 0.7, false},    {1250, 1.25, 1, 0.72, true},
                        {1500, 1.5, 1, 0.78, true}, {1750, 1.75, 1, 0.74, true}, {2000, 2, 1, 0.8, false},
                        {3000, 3, 1, 0.8, false}};
    eni_run run = {.is_complete = true, .evals = evals, .nevals = 7};
    find(&run, 0.75);
    assert_true(isinf(run.reach.t)); /* with those of the bracket it would be three */
    evals[2].is_bracket = false;
    evals[2].accuracy = 0.7;
    eni_eval more[8];
    for (int i = 0; i < 7; i++)
        more[i] = evals[i];
    more[7] = (eni_eval){4000, 4, 1, 0.8, false};
    run = (eni_run){.is_complete = true, .evals = more, .nevals = 8};
    find(&run, 0.75);
    assert_true(run.reach.low == 1.25 && run.reach.high == 1.5);
    assert_true(is(run.reach.t, 1.25 + 0.25 * 5 / 8) && is(run.reach.samples, 1250 + 250.0 * 5 / 8));
    assert_true(eni_study_bracket_is_wide(&run)); /* 0.25 of 1.41 s */
}

static void a_wide_bracket(void **state)
{
    (void)state;
    eni_eval evals[MOST];
    eni_run run = RUN_OF(evals, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60, 90, 90, 90);
    find(&run, 0.75);
    assert_true(is(run.reach.t, 10.5) && !eni_study_bracket_is_wide(&run));
    run = RUN_OF(evals, 60, 60, 60, 60, 60, 60, 60, 60, 74, 90, 90, 90);
    find(&run, 0.75);
    assert_true(run.reach.low == 9 && eni_study_bracket_is_wide(&run));
}

static void a_diverged_run_breaks_the_row(void **state)
{
    (void)state;
    eni_eval evals[MOST];
    eni_run run = RUN_OF(evals, 60, 80, 80, NAN, 80, 80);
    find(&run, 0.75);
    assert_true(isinf(run.reach.t));
    run = RUN_OF(evals, 60, NAN, 80, 80, 80); /* nothing to interpolate with: the end of the bracket */
    find(&run, 0.75);
    assert_true(run.reach.t == 3 && run.reach.low == 2 && run.reach.high == 3);
}

static void a_miss_is_censored_at_the_last_evaluation(void **state)
{
    (void)state;
    eni_eval evals[MOST];
    eni_run run = RUN_OF(evals, 60, 70, 71, 72);
    find(&run, 0.9);
    assert_true(isinf(run.reach.t) && isinf(run.reach.samples) && run.last_t == 4.0);
}

static void without_accuracy_there_is_no_time(void **state)
{
    (void)state;
    eni_eval losses[] = {{10, 1, 0.3, NAN, false}};
    eni_run run = {.is_complete = true, .evals = losses, .nevals = 1};
    find(&run, 0.75);
    assert_true(isnan(run.reach.t));
}

static void a_failed_run_has_missed_it(void **state)
{
    (void)state;
    eni_run run = {.is_complete = false};
    find(&run, 0.75);
    assert_true(isinf(run.reach.t) && run.last_t == 0);
}

static void another_target_has_the_bracket_of_the_grid(void **state)
{
    (void)state;
    eni_eval evals[MOST];
    eni_run run = RUN_OF(evals, 60, 80, 80, 80);
    find(&run, 0.7);
    assert_false(
        eni_study_bracket_is_of_grid(&run, &(eni_target){.value = 0.7})); /* not recorded in an old folder */
    run.evaluated_for.value = 0.75;
    assert_true(eni_study_bracket_is_of_grid(&run, &(eni_target){.value = 0.7}));
    assert_false(eni_study_bracket_is_of_grid(&run, &(eni_target){.value = 0.75}));
    find(&run, 0.95);
    assert_false(eni_study_bracket_is_of_grid(&run, &(eni_target){.value = 0.95})); /* there is no bracket */
}

/* 3, 2.6, 2.4, 2.2, 2: it is at 2.5 half way from the second to the third; a loss that is not there counts as above. */
static void a_loss_falls_to_its_target(void **state)
{
    (void)state;
    static const double losses[] = {3, NAN, 2.4, 2.6, 2.4, 2.2, 2};
    eni_eval evals[7];
    for (size_t i = 0; i < 7; i++)
        evals[i] = (eni_eval){1000.0 * (double)i, (double)i, losses[i], NAN, false};
    eni_run run = {.is_complete = true, .evals = evals, .nevals = 7};
    eni_study_find_target(&run, &(eni_target){2.5, true});
    assert_true(run.reach.low == 3 && run.reach.high == 4 && is(run.reach.t, 3.5));
    eni_study_find_target(&run, &(eni_target){1.5, true});
    assert_true(isinf(run.reach.t));
    find(&run, 0.75);
    assert_true(isnan(run.reach.t)); /* it has no accuracy */
}

static void waiting_counts_workers_only(void **state)
{
    (void)state;
    eni_role roles[] = {
        {.rank = 0, .ns = {1, 5, 0, 1, 2, 1}}, /* data, compute, sleep, exchange, wait, update */
        {.rank = 1, .ns = {0, 3, 1, 0, 6, 0}},
        {.rank = -1, .ns = {0, 0, 0, 0, 1000, 0}}};
    eni_run run = {.roles = roles, .nroles = 3};
    assert_true(fabs(eni_metric_wait(&run) - 8.0 / 20) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_of_three_in_a_row),
        cmocka_unit_test(one_good_moment_is_none),
        cmocka_unit_test(three_at_the_very_end_are_enough_and_two_are_not),
        cmocka_unit_test(a_crossing_before_the_first_point),
        cmocka_unit_test(the_bracket_is_that_of_the_snapshots),
        cmocka_unit_test(a_wide_bracket),
        cmocka_unit_test(a_diverged_run_breaks_the_row),
        cmocka_unit_test(a_miss_is_censored_at_the_last_evaluation),
        cmocka_unit_test(without_accuracy_there_is_no_time),
        cmocka_unit_test(a_failed_run_has_missed_it),
        cmocka_unit_test(another_target_has_the_bracket_of_the_grid),
        cmocka_unit_test(a_loss_falls_to_its_target),
        cmocka_unit_test(waiting_counts_workers_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
