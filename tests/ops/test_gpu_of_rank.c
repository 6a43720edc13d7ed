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

/* "-": refused; else the first GPU of each rank. */
static void test_slices(void **state)
{
    static const struct {
        int ngpus, n, nlocal, is_shared;
        const char *first;
    } rows[] = {{4, 1, 2, 0, "02"}, {2, 1, 3, 0, "010"}, {4, 2, 1, 0, "0"},   {4, 2, 2, 0, "02"},
                {5, 2, 2, 0, "02"}, {8, 2, 2, 0, "02"},  {8, 3, 2, 0, "03"},  {8, 4, 2, 0, "04"},
                {8, 8, 1, 0, "0"},  {4, 2, 3, 0, "---"}, {4, 2, 3, 1, "020"}, {5, 2, 5, 1, "02020"},
                {2, 2, 2, 0, "--"}, {2, 2, 3, 1, "000"}, {1, 2, 1, 0, "-"},   {1, 2, 1, 1, "-"},
                {0, 2, 1, 1, "-"},  {4, 0, 1, 1, "-"},   {3, 2, 1, 0, "0"},   {8, 2, 4, 1, "0246"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int r = 0; r < rows[i].nlocal; r++) {
            const int first = rows[i].first[r] == '-' ? -1 : rows[i].first[r] - '0';
            const int got =
                eni_gpu_slice(r, rows[i].nlocal, rows[i].ngpus, rows[i].n, rows[i].is_shared != 0);
            if (got != first) fail_msg("row %zu, rank %d: %d, not %d", i, r, got, first);
        }
    assert_int_equal(eni_gpu_slice(-1, 2, 4, 2, true), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_slice_each), cmocka_unit_test(test_turns),
                                       cmocka_unit_test(test_none), cmocka_unit_test(test_slices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
