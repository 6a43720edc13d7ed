/* test_mean_step.c - the mean and the step in one loop have the bits of one after the other, for any number
 * of sources, any kind of SGD, any length, and for an optimizer that has no loop of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "core/rng.h"
#include "ops/mean.h"

enum { MAX_SOURCES = 9, COUNT = 2500 };

static float source[MAX_SOURCES][COUNT], start_w[COUNT], start_m[COUNT];

static void fill(float *vector, uint32_t which)
{
    const eni_rng_key key = {11, ENI_RNG_TEST, which, 0};
    for (uint64_t i = 0; i < COUNT; i++)
        vector[i] = (float)(eni_rng_unit(&key, i) - 0.5) / (float)(1 + i % 29);
}

static void check(const eni_optimizer *optimizer, int n, const eni_hyper *hyper, uint64_t count)
{
    static float w[COUNT], m[COUNT], expected_w[COUNT], expected_m[COUNT], mean[COUNT];
    const float *src[MAX_SOURCES];
    float scale[MAX_SOURCES], total = 0, *slots[ENI_MAX_SLOTS] = {m}, *expected_slots[ENI_MAX_SLOTS] = {NULL};
    for (int k = 0; k < n; k++) {
        src[k] = source[k];
        scale[k] = (float)(64 - 7 * k);
        total += scale[k];
    }
    const eni_sources from = {src, scale, n, n > 0 ? 1 / total : 0};
    memcpy(w, start_w, sizeof w);
    memcpy(m, start_m, sizeof m);
    memcpy(expected_w, w, sizeof w);
    memcpy(expected_m, m, sizeof m);
    memset(mean, 0, sizeof mean);
    if (n > 0) eni_mean(mean, src, scale, n, from.inv, count);
    if (hyper->momentum != 0) expected_slots[0] = expected_m;
    if (hyper->momentum == 0) slots[0] = NULL;
    optimizer->step(expected_w, expected_slots, mean, count, hyper);
    eni_mean_step(optimizer, w, slots, &from, count, hyper);
    assert_memory_equal(w, expected_w, sizeof w);
    assert_memory_equal(m, expected_m, sizeof m);
}

static void same_bits(void **state)
{
    (void)state;
    const uint64_t counts[] = {0, 1, 15, 16, 17, 31, 32, 33, 1000, 1024, 1025, COUNT};
    const eni_optimizer *sgd = eni_optimizer_find("sgd");
    eni_optimizer copy = *sgd; /* the same step, block by block */
    copy.mean_step = NULL;
    for (uint32_t k = 0; k < MAX_SOURCES; k++)
        fill(source[k], k);
    fill(start_w, 20);
    fill(start_m, 21);
    for (int n = 0; n <= MAX_SOURCES; n++)
        for (int kind = 0; kind < 8; kind++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                const eni_hyper hyper = {.lr = 0.1f,
                                         .momentum = kind & 1 ? 0.9f : 0,
                                         .weight_decay = kind & 2 ? 0.01f : 0,
                                         .nesterov = kind >> 2};
                check(sgd, n, &hyper, counts[c]);
                check(&copy, n, &hyper, counts[c]);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
