/* test_mean.c - the mean of gradients: the same bytes whole, in slices, and as a sum that travels a ring. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/rng.h"
#include "ops/mean.h"

enum { WORLD = 5, COUNT = 3333 };

static float source[WORLD][COUNT];
static const float *sources[WORLD];

static void fill(void)
{
    for (uint32_t r = 0; r < WORLD; r++) {
        const eni_rng_key key = {3, ENI_RNG_TEST, r, 0};
        for (uint64_t i = 0; i < COUNT; i++)
            source[r][i] =
                (float)((eni_rng_unit(&key, i) - 0.5) * exp(20 * eni_rng_unit(&key, COUNT + i) - 10));
        sources[r] = source[r];
    }
}

/* One element, written out: the rule of mean.h. */
static float mean_of(const uint64_t *nsamples, int first, uint64_t i)
{
    volatile float sum = 0; /* volatile: rounded to float at each step, whatever the compiler does */
    uint64_t samples = 0;
    int n = 0;
    for (int k = 0; k < WORLD; k++) {
        const int r = (first + k) % WORLD;
        if (nsamples[r] == 0) continue;
        volatile float product = source[r][i] * (float)nsamples[r];
        sum = n++ == 0 ? product : sum + product;
        samples += nsamples[r];
    }
    return sum * (1.0f / (float)samples);
}

static const uint64_t samples_of[][WORLD] = {{64, 64, 64, 64, 64}, {64, 64, 64, 64, 33}, {0, 64, 0, 7, 64},
                                             {0, 0, 0, 0, 3},      {1, 0, 0, 0, 0},      {5, 6, 0, 0, 0}};
enum { CASES = sizeof samples_of / sizeof *samples_of };

static void slices_tile_the_vector(void **state)
{
    (void)state;
    const uint64_t counts[] = {0, 1, 15, 16, 17, 100, 3333, 431080, UINT64_MAX / 2};
    for (int c = 0; c < 9; c++)
        for (int n = 1; n <= 70; n++) {
            assert_int_equal(eni_slice_lo(counts[c], 0, n), 0);
            assert_int_equal(eni_slice_lo(counts[c], n, n), counts[c]);
            for (int i = 0; i < n; i++) {
                const uint64_t lo = eni_slice_lo(counts[c], i, n), hi = eni_slice_lo(counts[c], i + 1, n);
                assert_true(lo <= hi && hi <= counts[c]);
                assert_true(lo % 16 == 0 || lo == counts[c]);
                assert_true(hi - lo <= counts[c] / (uint64_t)n + 17); /* even, but for the rounding */
            }
        }
    assert_int_equal(eni_slice_lo(100, 1, 3), 48); /* 33.3 up to a multiple of 16 */
    assert_int_equal(eni_slice_lo(3, 1, 4), 0);    /* fewer elements than slices: one slice has them all */
    assert_int_equal(eni_slice_lo(3, 2, 4), 3);
}

static void follows_the_rule(void **state)
{
    (void)state;
    static float dst[COUNT];
    for (int s = 0; s < CASES; s++) {
        eni_mean_ranks(dst, sources, samples_of[s], WORLD, ENI_SUM_RANK, COUNT, 0, COUNT);
        for (uint64_t i = 0; i < COUNT; i++)
            assert_true(dst[i] == mean_of(samples_of[s], 0, i));
        eni_mean_ranks(dst, sources, samples_of[s], WORLD, ENI_SUM_RING, COUNT, 0, COUNT);
        for (int c = 0; c < WORLD; c++)
            for (uint64_t i = eni_slice_lo(COUNT, c, WORLD); i < eni_slice_lo(COUNT, c + 1, WORLD); i++)
                assert_true(dst[i] == mean_of(samples_of[s], c, i));
    }
}

static void the_two_orders_differ(void **state)
{
    (void)state;
    static float rank[COUNT], ring[COUNT];
    eni_mean_ranks(rank, sources, samples_of[0], WORLD, ENI_SUM_RANK, COUNT, 0, COUNT);
    eni_mean_ranks(ring, sources, samples_of[0], WORLD, ENI_SUM_RING, COUNT, 0, COUNT);
    assert_memory_not_equal(rank, ring, sizeof rank); /* else the tests of the order test nothing */
}

static void no_samples_give_zero(void **state)
{
    (void)state;
    const uint64_t none[WORLD] = {0};
    float dst[40];
    memset(dst, 0xff, sizeof dst);
    eni_mean_ranks(dst, sources, none, WORLD, ENI_SUM_RANK, COUNT, 100, 140);
    for (int i = 0; i < 40; i++)
        assert_true(dst[i] == 0 && !signbit(dst[i]));
}

/* 0.1f * 15 * (1 / 15) is not 0.1f. */
static void one_rank_is_its_own_mean(void **state)
{
    (void)state;
    static float dst[COUNT];
    for (uint64_t samples = 1; samples < 70; samples++) {
        eni_mean_ranks(dst, sources, &samples, 1, ENI_SUM_RING, COUNT, 0, COUNT);
        assert_memory_equal(dst, source[0], sizeof dst);
    }
}

static void slices_equal_the_whole(void **state)
{
    (void)state;
    static float whole[COUNT], sliced[COUNT];
    for (int order = ENI_SUM_RANK; order <= ENI_SUM_RING; order++)
        for (int s = 0; s < CASES; s++)
            for (int parts = 1; parts <= 300; parts = parts * 2 + 1) {
                eni_mean_ranks(whole, sources, samples_of[s], WORLD, (eni_sum_order)order, COUNT, 0, COUNT);
                memset(sliced, 0xff, sizeof sliced);
                for (int p = 0; p < parts; p++) {
                    const uint64_t lo = eni_slice_lo(COUNT, p, parts), hi = eni_slice_lo(COUNT, p + 1, parts);
                    const float *at[WORLD];
                    for (int r = 0; r < WORLD; r++)
                        at[r] = source[r] + lo;
                    eni_mean_ranks(sliced + lo, at, samples_of[s], WORLD, (eni_sum_order)order, COUNT, lo,
                                   hi);
                }
                assert_memory_equal(whole, sliced, sizeof whole);
            }
}

/* As in a ring: the sum of chunk c starts at rank c and visits the ranks in turn. */
static void a_travelling_sum_equals_the_ring_order(void **state)
{
    (void)state;
    static float want[COUNT], travelling[COUNT];
    for (int s = 0; s < CASES; s++) {
        uint64_t samples = 0;
        for (int r = 0; r < WORLD; r++)
            samples += samples_of[s][r];
        for (int c = 0; c < WORLD; c++) {
            const uint64_t lo = eni_slice_lo(COUNT, c, WORLD), count = eni_slice_lo(COUNT, c + 1, WORLD) - lo;
            int n = 0;
            for (int k = 0; k < WORLD; k++) {
                const int r = (c + k) % WORLD;
                const float scale = (float)samples_of[s][r];
                if (samples_of[s][r] == 0) continue;
                if (n++ == 0)
                    eni_mean_first(travelling + lo, source[r] + lo, scale, count);
                else
                    eni_mean_add(travelling + lo, source[r] + lo, scale, count);
            }
            for (uint64_t i = 0; i < count; i++)
                travelling[lo + i] *= 1.0f / (float)samples;
        }
        eni_mean_ranks(want, sources, samples_of[s], WORLD, ENI_SUM_RING, COUNT, 0, COUNT);
        assert_memory_equal(want, travelling, sizeof want);
    }
}

/* Sources that come one after the other, the last one with the factor: the chunks of a batch. */
static void one_after_the_other(void **state)
{
    (void)state;
    static float want[COUNT], sum[COUNT];
    const float scale[WORLD] = {7, 7, 7, 6, 6};
    for (int n = 2; n <= WORLD; n++) {
        eni_mean(want, sources, scale, n, 1.0f / 33, COUNT);
        eni_mean_first(sum, source[0], scale[0], COUNT);
        for (int k = 1; k < n - 1; k++)
            eni_mean_add(sum, source[k], scale[k], COUNT);
        eni_mean_last(sum, source[n - 1], scale[n - 1], 1.0f / 33, COUNT);
        assert_memory_equal(want, sum, sizeof want);
    }
}

static void dst_may_be_a_source(void **state)
{
    (void)state;
    static float want[COUNT], inout[COUNT];
    const float scale[WORLD] = {1, 2, 3, 4, 5};
    for (int n = 1; n <= WORLD; n++)
        for (int r = 0; r < n; r++) {
            const float *mixed[WORLD];
            memcpy(mixed, sources, sizeof mixed);
            memcpy(inout, source[r], sizeof inout);
            mixed[r] = inout;
            eni_mean(want, sources, scale, n, 0.25f, COUNT);
            eni_mean(inout, mixed, scale, n, 0.25f, COUNT);
            assert_memory_equal(want, inout, sizeof want);
        }
}

static void not_finite_is_found_anywhere(void **state)
{
    (void)state;
    static float values[COUNT];
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    memcpy(values, source[0], sizeof values);
    assert_true(eni_all_finite(values, COUNT));
    assert_true(eni_all_finite(values, 0));
    for (uint64_t i = 0; i < COUNT; i++) {
        values[i] = bad[i % 4];
        assert_false(eni_all_finite(values, COUNT));
        assert_true(eni_all_finite(values, i)); /* and nothing behind the end counts */
        values[i] = 3.4e38f;
    }
    assert_true(eni_all_finite(values, COUNT));
}

static void lin_mixes_or_overwrites(void **state)
{
    (void)state;
    static float y[COUNT];
    memcpy(y, source[1], sizeof y);
    eni_lin(y, 0.3f, source[0], -2.0f, COUNT);
    for (int i = 0; i < COUNT; i++) {
        volatile float ax = 0.3f * source[0][i], by = -2.0f * source[1][i];
        assert_true(y[i] == ax + by);
    }
    for (int i = 0; i < COUNT; i++)
        y[i] = NAN;
    eni_lin(y, 3.0f, source[0], 0.0f, COUNT);
    for (int i = 0; i < COUNT; i++)
        assert_true(y[i] == 3.0f * source[0][i]);
    eni_lin(y, 1.0f, y, 1.0f, COUNT); /* in place on itself */
    for (int i = 0; i < COUNT; i++)
        assert_true(y[i] == 2 * (3.0f * source[0][i]));
}

int main(void)
{
    fill();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_tile_the_vector),
        cmocka_unit_test(follows_the_rule),
        cmocka_unit_test(the_two_orders_differ),
        cmocka_unit_test(no_samples_give_zero),
        cmocka_unit_test(one_rank_is_its_own_mean),
        cmocka_unit_test(slices_equal_the_whole),
        cmocka_unit_test(a_travelling_sum_equals_the_ring_order),
        cmocka_unit_test(one_after_the_other),
        cmocka_unit_test(dst_may_be_a_source),
        cmocka_unit_test(not_finite_is_found_anywhere),
        cmocka_unit_test(lin_mixes_or_overwrites),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
