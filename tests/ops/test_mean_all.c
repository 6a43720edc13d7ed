/* test_mean_all.c - the mean in place in all vectors has the bits of eni_mean_ranks in every one of them, for
 * any number of ranks, order, samples, length and range. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/rng.h"
#include "ops/mean.h"

enum { MAX_WORLD = 9, COUNT = 1000, NPATTERNS = 5, AROUND = 3 };

static float source[MAX_WORLD][COUNT];

static void fill(void)
{
    for (uint32_t r = 0; r < MAX_WORLD; r++) {
        const eni_rng_key key = {5, ENI_RNG_TEST, r, 0};
        for (uint64_t i = 0; i < COUNT; i++)
            source[r][i] = (float)(eni_rng_unit(&key, i) - 0.5) / (float)(1 + i % 37);
    }
}

/* Even, ragged, some ranks without any, rank 0 alone, none. */
static uint64_t samples_of(int pattern, int rank)
{
    const uint64_t r = (uint64_t)rank;
    return pattern == 0   ? 64
           : pattern == 1 ? 64 - 7 * r
           : pattern == 2 ? (r % 2 == 1 ? 0 : 3 + r)
           : pattern == 3 ? r == 0
                          : 0;
}

static void check(int world, int pattern, eni_sum_order order, uint64_t count, uint64_t lo, uint64_t hi)
{
    static float vector[MAX_WORLD][COUNT + 2 * AROUND], expected[COUNT];
    float *at[MAX_WORLD];
    const float *from[MAX_WORLD];
    uint64_t nsamples[MAX_WORLD];
    for (int r = 0; r < world; r++) {
        nsamples[r] = samples_of(pattern, r);
        from[r] = source[r] + lo;
        at[r] = vector[r] + AROUND;
        memset(vector[r], 0x55, sizeof vector[r]);
        memcpy(at[r], from[r], (hi - lo) * sizeof(float));
    }
    eni_mean_ranks(expected, from, nsamples, world, order, count, lo, hi);
    eni_mean_all(at, nsamples, world, order, count, lo, hi);
    for (int r = 0; r < world; r++) {
        unsigned char edge[AROUND * sizeof(float)];
        memset(edge, 0x55, sizeof edge);
        assert_memory_equal(at[r], expected, (hi - lo) * sizeof(float));
        assert_memory_equal(vector[r], edge, sizeof edge);
        assert_memory_equal(at[r] + (hi - lo), edge, sizeof edge);
    }
}

static void same_bits_in_all(void **state)
{
    (void)state;
    const uint64_t counts[] = {0, 1, 15, 16, 17, 63, 64, 65, 129, 777, COUNT};
    fill();
    for (int world = 1; world <= MAX_WORLD; world++)
        for (int pattern = 0; pattern < NPATTERNS; pattern++)
            for (int order = ENI_SUM_RANK; order <= ENI_SUM_RING; order++)
                for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                    check(world, pattern, (eni_sum_order)order, counts[c], 0, counts[c]);
                    check(world, pattern, (eni_sum_order)order, counts[c], counts[c] / 3,
                          counts[c] - counts[c] / 4);
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits_in_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
