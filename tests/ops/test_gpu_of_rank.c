/* test_gpu_of_rank.c - slices where there are enough GPUs, turns where there are not. */
#include "ops/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_a_slice_each(void **state)
{
    (void)state;
    for (int ngpus = 1; ngpus <= 16; ngpus++)
        for (int nlocal = 1; nlocal <= ngpus; nlocal++) {
            const int slice = ngpus / nlocal;
            for (int r = 0; r < nlocal; r++) {
                assert_int_equal(eni_gpu_of_rank(r, nlocal, ngpus), r * slice);
                assert_true(r * slice + slice <= ngpus); /* its slice is its own */
            }
        }
}

static void test_turns(void **state)
{
    static const int of_two[] = {0, 1, 0, 1, 0};
    (void)state;
    for (int r = 0; r < 5; r++) {
        assert_int_equal(eni_gpu_of_rank(r, 5, 2), of_two[r]);
        assert_int_equal(eni_gpu_of_rank(r, 5, 1), 0);
    }
    assert_int_equal(eni_gpu_of_rank(2, 3, 2), 0);
}

static void test_none(void **state)
{
    (void)state;
    assert_int_equal(eni_gpu_of_rank(0, 1, 0), -1);
    assert_int_equal(eni_gpu_of_rank(0, 0, 4), -1);
    assert_int_equal(eni_gpu_of_rank(-1, 2, 4), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_slice_each), cmocka_unit_test(test_turns),
                                       cmocka_unit_test(test_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
