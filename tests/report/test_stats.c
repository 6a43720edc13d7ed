/* test_stats.c - medians, quantiles, and the exact interval for a median against its definition. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/rng.h"
#include "report/stats.h"

static void medians_of_known_values(void **state)
{
    (void)state;
    double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2}, one[] = {7}, censored[] = {INFINITY, 2, 1};
    assert_true(eni_stats_median(odd, 3) == 2);
    assert_true(eni_stats_median(even, 4) == 2.5);
    assert_true(eni_stats_median(one, 1) == 7);
    assert_true(eni_stats_median(censored, 3) == 2);
    assert_true(isnan(eni_stats_median(NULL, 0)));
}

/* Two of three runs missed the target: the median run missed it too. */
static void a_censored_majority_makes_the_median_infinite(void **state)
{
    (void)state;
    double values[] = {INFINITY, 2, INFINITY};
    eni_summary s = eni_stats_summary(values, 3);
    assert_true(isinf(s.median) && s.min == 2 && isinf(s.max));
}

static void quantiles_of_known_values(void **state)
{
    (void)state;
    const double sorted[] = {1, 2, 3, 4, 5};
    assert_true(eni_stats_quantile(sorted, 5, 0) == 1);
    assert_true(eni_stats_quantile(sorted, 5, 0.5) == 3);
    assert_true(fabs(eni_stats_quantile(sorted, 5, 0.95) - 4.8) < 1e-12);
    assert_true(eni_stats_quantile(sorted, 5, 1) == 5);
    assert_true(isnan(eni_stats_quantile(sorted, 0, 0.5)));
}

/* The table in Conover: n = 5 covers 93.75 % with the range, n = 6 96.9 %, n = 9 takes the second values. */
static void intervals_of_known_sizes(void **state)
{
    (void)state;
    double three[] = {0.9, 0.3, 0.6}, six[] = {6, 5, 4, 3, 2, 1}, nine[] = {9, 8, 7, 6, 5, 4, 3, 2, 1};
    eni_interval i = eni_stats_interval(three, 3);
    assert_true(i.low == 0.3 && i.high == 0.9 && i.confidence == 0.75);
    i = eni_stats_interval(six, 6);
    assert_true(i.low == 1 && i.high == 6 && fabs(i.confidence - 0.96875) < 1e-12);
    i = eni_stats_interval(nine, 9);
    assert_true(i.low == 2 && i.high == 8 && fabs(i.confidence - 0.9609375) < 1e-12);
    double one[] = {1};
    assert_true(eni_stats_interval(one, 1).confidence == 0);
}

/* Checks the interval's coverage: the share of samples of a uniform variable whose interval holds 1/2. */
static void the_interval_covers_what_it_says(void **state)
{
    (void)state;
    enum { TRIES = 20000 };
    const size_t sizes[] = {3, 6, 9, 15};
    for (size_t k = 0; k < 4; k++) {
        size_t hits = 0;
        double confidence = 0;
        for (uint64_t t = 0; t < TRIES; t++) {
            eni_rng_key key = {t, ENI_RNG_TEST, (uint32_t)sizes[k], 0};
            double values[15];
            for (size_t i = 0; i < sizes[k]; i++)
                values[i] = eni_rng_unit(&key, i);
            eni_interval interval = eni_stats_interval(values, sizes[k]);
            hits += interval.low <= 0.5 && interval.high >= 0.5;
            confidence = interval.confidence;
        }
        assert_true(fabs((double)hits / TRIES - confidence) < 0.012);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(medians_of_known_values),
                                       cmocka_unit_test(a_censored_majority_makes_the_median_infinite),
                                       cmocka_unit_test(quantiles_of_known_values),
                                       cmocka_unit_test(intervals_of_known_sizes),
                                       cmocka_unit_test(the_interval_covers_what_it_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
