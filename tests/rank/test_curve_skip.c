/* test_curve_skip.c - the curve of a rank that takes part in making the model but does not keep it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rank/curve.h"

static en_status must_not_evaluate(void *user, const float *flat, const float *state, double *loss_out,
                                   double *accuracy_out)
{
    (void)state;
    (void)flat, (void)loss_out, (void)accuracy_out;
    ++*(int *)user;
    return EN_EBUG;
}

/* Room for one copy only: if skipping stored anything, a file would have to be made. */
static void a_skipped_point_costs_nothing_and_the_next_is_due(void **state)
{
    (void)state;
    int evaluations = 0;
    eni_curve_config config = {.count = 4, .every = 100, .evaluate = must_not_evaluate, .user = &evaluations};
    eni_curve *curve;
    eni_curve_end end;
    assert_int_equal(eni_curve_open(&config, &curve), EN_OK);
    for (uint64_t samples = 100; samples <= 1000; samples += 100) {
        assert_true(eni_curve_is_due(curve, samples));
        eni_curve_skip(curve, samples);
        assert_false(eni_curve_is_due(curve, samples + 99));
    }
    eni_curve_skip(curve, 1250); /* a long step passes several points */
    assert_false(eni_curve_is_due(curve, 1299));
    assert_true(eni_curve_is_due(curve, 1300));
    assert_int_equal(eni_curve_finish(curve, &end), EN_OK);
    assert_int_equal(evaluations, 0);
    eni_curve_close(curve);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_skipped_point_costs_nothing_and_the_next_is_due)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
