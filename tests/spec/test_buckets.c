/* test_buckets.c - all weights once, nothing over the cap, edges on 16 floats, in the order of backward. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/log.h"
#include "core/rng.h"
#include "runtime/spec/buckets.h"
#include "tests/heard.h"

enum { TENSORS = 12 };

/* A table of tensors with these sizes, each on 16 floats; returns the length of the vector. */
static uint64_t lay_out(en_model_tensor *tensors, const uint64_t *counts, uint32_t n)
{
    uint64_t at = 0;
    for (uint32_t t = 0; t < n; t++) {
        tensors[t] = (en_model_tensor){.name = "t", .offset = at, .count = counts[t]};
        at = (at + counts[t] + 15) / 16 * 16;
    }
    return at;
}

/* Every promise of the header, for one plan. */
static void check_plan(const en_model_tensor *tensors, uint32_t n, uint64_t count, uint64_t cap_bytes)
{
    eni_buckets *plan = NULL;
    assert_int_equal(eni_buckets_new(tensors, n, count, cap_bytes, &plan), EN_OK);
    uint64_t end = count, covered = 0;
    for (uint32_t b = 0; b < plan->n; b++) {
        const eni_bucket_range *range = &plan->bucket[b];
        en_bucket bucket;
        assert_int_equal(range->hi, end); /* no hole, no overlap, from the end to the start */
        assert_true(range->lo < range->hi);
        assert_int_equal(range->lo % 16, 0);
        assert_true((range->hi - range->lo) * 4 <= cap_bytes);
        assert_true(b == 0 || range->first <= plan->bucket[b - 1].first);
        end = range->lo;
        eni_buckets_fill(plan, b, &bucket);
        assert_int_equal(bucket.count, range->hi - range->lo);
        assert_int_equal(bucket.id, b);
        for (uint32_t p = 0; p < bucket.nparams; p++) {
            assert_true(bucket.params[p].offset + bucket.params[p].count <= bucket.count);
            covered += bucket.params[p].count;
        }
        /* Complete with `first`, not before: first touches the range, the tensor in front of it does not. */
        assert_true(tensors[range->first].offset < range->hi);
        assert_true(range->first == 0 || tensors[range->first].offset <= range->lo);
    }
    assert_int_equal(end, 0);
    for (uint32_t t = 0; t < n; t++)
        covered -= tensors[t].count;
    assert_int_equal(covered, 0);
    eni_buckets_free(plan);
}

static void any_table_any_cap(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 400; seed++) {
        const eni_rng_key key = {seed, ENI_RNG_TEST, 0, 0};
        en_model_tensor tensors[TENSORS];
        uint64_t counts[TENSORS];
        const uint32_t n = 1 + (uint32_t)eni_rng_below(&key, 0, TENSORS);
        for (uint32_t t = 0; t < n; t++)
            counts[t] = 1 + eni_rng_below(&key, t + 1, seed % 3 ? 100 : 5000);
        const uint64_t count = lay_out(tensors, counts, n);
        check_plan(tensors, n, count, 64 + eni_rng_below(&key, 50, 8000));
    }
}

static void the_convnet_at_one_megabyte(void **state)
{
    (void)state;
    static const uint64_t counts[] = {500, 20, 25000, 50, 400000, 500, 5000, 10};
    en_model_tensor tensors[8];
    eni_buckets *plan = NULL;
    const uint64_t count = lay_out(tensors, counts, 8);
    assert_int_equal(eni_buckets_new(tensors, 8, count, 1 << 20, &plan), EN_OK);
    /* fc1.bias .. fc2 | fc1.weight in two halves | the convolutions */
    assert_int_equal(plan->n, 4);
    assert_int_equal(plan->bucket[0].first, 5);
    assert_int_equal(plan->bucket[0].last, 7);
    assert_int_equal(plan->bucket[1].first, 4);
    assert_int_equal(plan->bucket[2].first, 4);
    assert_int_equal(plan->bucket[1].hi - plan->bucket[1].lo, 200000);
    assert_int_equal(plan->bucket[2].hi - plan->bucket[2].lo, 200000);
    assert_int_equal(plan->bucket[3].first, 0);
    assert_int_equal(plan->bucket[3].last, 3);
    eni_buckets_free(plan);
    check_plan(tensors, 8, count, 1 << 20);
    check_plan(tensors, 8, count, 64 << 20);
}

static void buffers_lie_in_no_bucket(void **state)
{
    (void)state;
    static const uint64_t counts[] = {40, 7, 30, 8, 8};
    en_model_tensor tensors[5];
    eni_buckets *plan = NULL;
    const uint64_t count = lay_out(tensors, counts, 5);
    tensors[1].kind = tensors[3].kind = tensors[4].kind = EN_TENSOR_BUFFER;
    assert_int_equal(eni_buckets_new(tensors, 5, count, 1 << 20, &plan), EN_OK);
    assert_int_equal(plan->n, 2);
    assert_int_equal(plan->bucket[0].first, 2);
    assert_int_equal(plan->bucket[0].lo, 64);
    assert_int_equal(plan->bucket[0].hi, 96);
    assert_int_equal(plan->bucket[1].last, 0);
    assert_int_equal(plan->bucket[1].hi, 48);
    eni_buckets_free(plan);
}

static void odd_tables_are_refused(void **state)
{
    (void)state;
    heard said = {0};
    eni_buckets *plan = NULL;
    eni_log_set_sink(hear, &said);
    const en_model_tensor good = {.name = "w", .offset = 0, .count = 20};
    en_model_tensor pair[2] = {good, {.name = "v", .offset = 16, .count = 5}};
    assert_int_equal(eni_buckets_new(pair, 2, 64, 1024, &plan), EN_EINVAL); /* overlap */
    pair[1].offset = 33;
    assert_int_equal(eni_buckets_new(pair, 2, 64, 1024, &plan), EN_EINVAL); /* off the line */
    pair[1].offset = 32;
    assert_int_equal(eni_buckets_new(pair, 2, 36, 1024, &plan), EN_EINVAL); /* beyond the vector */
    pair[1].count = UINT64_MAX - 8;
    assert_int_equal(eni_buckets_new(pair, 2, 64, 1024, &plan), EN_EINVAL); /* would wrap */
    pair[1].count = 0;
    assert_int_equal(eni_buckets_new(pair, 2, 64, 1024, &plan), EN_EINVAL); /* empty */
    pair[0].kind = EN_TENSOR_BUFFER;
    assert_int_equal(eni_buckets_new(pair, 1, 64, 1024, &plan), EN_EINVAL); /* no weight */
    assert_int_equal(eni_buckets_new(&good, 1, 32, 63, &plan), EN_EINVAL);  /* the cap */
    assert_int_equal(said.lines, 7);
    assert_null(plan);
    eni_log_set_sink(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_table_any_cap),
        cmocka_unit_test(the_convnet_at_one_megabyte),
        cmocka_unit_test(buffers_lie_in_no_bucket),
        cmocka_unit_test(odd_tables_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
