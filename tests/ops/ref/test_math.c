/* test_math.c - ref's own exp and log: as good as libm's, and known bits. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ops/ref/ref.h"

static double units_apart(double got, double want)
{
    return fabs(got - want) / (fabs(want) * DBL_EPSILON);
}

static void exp_is_within_two_units(void **state)
{
    (void)state;
    double worst = 0;
    for (double x = -707; x < 709; x += 0.0137)
        worst = fmax(worst, units_apart(eni_ref_exp(x), exp(x)));
    for (double x = -1; x < 1; x += 0.00011)
        worst = fmax(worst, units_apart(eni_ref_exp(x), exp(x)));
    print_message("exp: %.2f units at worst\n", worst);
    assert_true(worst <= 2);
}

static void log_is_within_two_units(void **state)
{
    (void)state;
    double worst = 0;
    for (double x = 1e-300; x < 1e300; x *= 1.037)
        worst = fmax(worst, units_apart(eni_ref_log(x), log(x)));
    for (double x = 0.5; x < 40; x += 0.0013)
        if (x != 1) worst = fmax(worst, units_apart(eni_ref_log(x), log(x)));
    print_message("log: %.2f units at worst\n", worst);
    assert_true(worst <= 2);
}

static void edges(void **state)
{
    (void)state;
    assert_true(eni_ref_exp(0) == 1);
    assert_true(eni_ref_exp(-INFINITY) == 0);
    assert_true(eni_ref_exp(INFINITY) == INFINITY);
    assert_true(isnan(eni_ref_exp(NAN)));
    assert_true(eni_ref_log(1) == 0);
    assert_true(units_apart(eni_ref_log(DBL_MIN), log(DBL_MIN)) <= 2);
    assert_true(units_apart(eni_ref_log(DBL_MAX), log(DBL_MAX)) <= 2);
    assert_true(isnan(eni_ref_log(NAN)));
}

/* The same on every machine: a change of these is a change of every stored hash. */
static void known_bits(void **state)
{
    (void)state;
    assert_true(eni_ref_exp(1) == 0x1.5bf0a8b14576ap+1);
    assert_true(eni_ref_exp(-0.1) == 0x1.cf46d99d52b3ap-1);
    assert_true(eni_ref_log(10) == 0x1.26bb1bbb55516p+1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(exp_is_within_two_units),
                                       cmocka_unit_test(log_is_within_two_units), cmocka_unit_test(edges),
                                       cmocka_unit_test(known_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
