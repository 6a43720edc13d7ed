/* test_rng.c - counter-based numbers: repeatable, independent of each other, without bias. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/rng.h"

static void same_key_same_number(void **state)
{
    (void)state;
    eni_rng_key key = {42, ENI_RNG_TEST, 3, 7};
    assert_int_equal(eni_rng_u64(&key, 5), eni_rng_u64(&key, 5));
}

static void every_part_of_the_key_matters(void **state)
{
    (void)state;
    eni_rng_key base = {42, ENI_RNG_TEST, 3, 7};
    uint64_t value = eni_rng_u64(&base, 5);
    eni_rng_key other[] = {{43, ENI_RNG_TEST, 3, 7},
                           {42, ENI_RNG_INIT, 3, 7},
                           {42, ENI_RNG_TEST, 4, 7},
                           {42, ENI_RNG_TEST, 3, 8}};
    for (int i = 0; i < 4; i++)
        assert_int_not_equal(eni_rng_u64(&other[i], 5), value);
    assert_int_not_equal(eni_rng_u64(&base, 6), value);
}

static void below_is_uniform(void **state)
{
    (void)state;
    eni_rng_key key = {1, ENI_RNG_TEST, 0, 0};
    enum { BINS = 10, DRAWS = 100000 };
    int count[BINS] = {0};
    for (uint64_t i = 0; i < DRAWS; i++)
        count[eni_rng_below(&key, i, BINS)]++;
    double chi2 = 0;
    for (int b = 0; b < BINS; b++)
        chi2 += pow(count[b] - DRAWS / BINS, 2) / (DRAWS / BINS);
    assert_true(chi2 < 27.9); /* chi-squared, 9 degrees of freedom, p = 0.001 */
}

static void unit_has_mean_half(void **state)
{
    (void)state;
    eni_rng_key key = {9, ENI_RNG_TEST, 0, 0};
    double sum = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        double u = eni_rng_unit(&key, i);
        assert_true(u >= 0 && u < 1);
        sum += u;
    }
    assert_true(fabs(sum / 100000 - 0.5) < 0.005);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_key_same_number), cmocka_unit_test(every_part_of_the_key_matters),
        cmocka_unit_test(below_is_uniform), cmocka_unit_test(unit_has_mean_half)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
