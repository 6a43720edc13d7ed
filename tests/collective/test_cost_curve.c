/* test_cost_curve.c - what lies between measured points, and the line through them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "runtime/collective/probe.h"

static void near(double value, double expected)
{
    if (!(fabs(value - expected) <= 1e-9 * fabs(expected))) fail_msg("%g, not %g", value, expected);
}

static void test_between(void **state)
{
    (void)state;
    eni_cost_curve c = {0};
    assert_true(isnan(eni_cost_at(&c, 1)));
    eni_cost_add(&c, 300, 3);
    near(eni_cost_at(&c, 30), 3);  /* a latency at least */
    near(eni_cost_at(&c, 600), 6); /* one point: in proportion */
    eni_cost_add(&c, 100, 2);      /* in any order */
    near(eni_cost_at(&c, 100), 2);
    near(eni_cost_at(&c, 200), 2.5);
    near(eni_cost_at(&c, 50), 2);
    near(eni_cost_at(&c, 500), 4); /* goes on with the last slope */
    eni_cost_add(&c, 300, 1);      /* a second measurement replaces the first */
    assert_int_equal(c.n, 2);
    near(eni_cost_at(&c, 500), 1); /* and never falls below the last point */
}

static void test_full(void **state)
{
    (void)state;
    eni_cost_curve c = {0};
    for (int i = 0; i < ENI_COST_POINTS + 3; i++)
        eni_cost_add(&c, i + 1, i + 1);
    assert_int_equal(c.n, ENI_COST_POINTS);
    near(eni_cost_at(&c, ENI_COST_POINTS), ENI_COST_POINTS);
}

static void test_line(void **state)
{
    (void)state;
    double alpha, beta;
    eni_cost_curve c = {0};
    eni_cost_line(&c, &alpha, &beta);
    assert_true(isnan(alpha) && isnan(beta));
    eni_cost_add(&c, 1e6, 1e-3);
    eni_cost_line(&c, &alpha, &beta);
    near(beta, 1e-9);
    assert_true(alpha >= 0 && alpha < 1e-15);
    c = (eni_cost_curve){0};
    for (double bytes = 4096; bytes < 1e8; bytes *= 8)
        eni_cost_add(&c, bytes, 2e-5 + 3e-10 * bytes);
    eni_cost_line(&c, &alpha, &beta);
    assert_true(fabs(alpha - 2e-5) < 1e-9 && fabs(beta - 3e-10) < 1e-15);
    c = (eni_cost_curve){0}; /* a constant, and one that falls: no bandwidth below zero */
    eni_cost_add(&c, 100, 2);
    eni_cost_add(&c, 200, 1);
    eni_cost_line(&c, &alpha, &beta);
    assert_true(alpha >= 0 && beta >= 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_between), cmocka_unit_test(test_full),
                                       cmocka_unit_test(test_line)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
