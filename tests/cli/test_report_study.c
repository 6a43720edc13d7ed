/* test_report_study.c - the time to the target: the first evaluation at or above it, nothing interpolated. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/report_study.h"

static eni_eval evals[] = {{1000, 1.0, 1, 0.70},
                           {2000, 2.0, 1, 0.7499},
                           {3000, 3.0, 1, 0.75},
                           {4000, 4.0, 1, 0.74},
                           {5000, 5.0, 1, 0.80}};

static void the_first_evaluation_at_or_above(void **state)
{
    (void)state;
    eni_run run = {.is_complete = true, .evals = evals, .nevals = 5};
    eni_study_find_target(&run, 0.75);
    assert_true(run.reach_t == 3.0 && run.reach_samples == 3000 && run.last_t == 5.0);
    eni_study_find_target(&run, 0.76);
    assert_true(run.reach_t == 5.0);
}

static void a_miss_is_censored_at_the_last_evaluation(void **state)
{
    (void)state;
    eni_run run = {.is_complete = true, .evals = evals, .nevals = 4};
    eni_study_find_target(&run, 0.9);
    assert_true(isinf(run.reach_t) && isinf(run.reach_samples) && run.last_t == 4.0);
}

static void without_accuracy_there_is_no_time(void **state)
{
    (void)state;
    eni_eval losses[] = {{10, 1, 0.3, NAN}};
    eni_run run = {.is_complete = true, .evals = losses, .nevals = 1};
    eni_study_find_target(&run, 0.75);
    assert_true(isnan(run.reach_t));
}

static void a_failed_run_has_missed_it(void **state)
{
    (void)state;
    eni_run run = {.is_complete = false};
    eni_study_find_target(&run, 0.75);
    assert_true(isinf(run.reach_t) && run.last_t == 0);
}

static void waiting_counts_workers_only(void **state)
{
    (void)state;
    eni_role roles[] = {{.rank = 0, .ns = {1, 5, 0, 1, 2, 1}}, /* data, compute, sleep, exchange, wait, update */
                        {.rank = 1, .ns = {0, 3, 1, 0, 6, 0}},
                        {.rank = -1, .ns = {0, 0, 0, 0, 1000, 0}}};
    eni_run run = {.roles = roles, .nroles = 3};
    assert_true(fabs(eni_metric_wait(&run) - 8.0 / 20) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_first_evaluation_at_or_above),
                                       cmocka_unit_test(a_miss_is_censored_at_the_last_evaluation),
                                       cmocka_unit_test(without_accuracy_there_is_no_time),
                                       cmocka_unit_test(a_failed_run_has_missed_it),
                                       cmocka_unit_test(waiting_counts_workers_only)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
