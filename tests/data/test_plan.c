/* test_plan.c - budgets, shards, ragged steps and the order of samples. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/log.h"
#include "data/plan.h"

static void hush(void *user, int level, const char *subsystem, const char *text)
{
    (void)level;
    (void)subsystem;
    (void)text;
    ++*(int *)user;
}

static eni_plan make(eni_plan_options options)
{
    eni_plan plan;
    assert_int_equal(eni_plan_make(&options, &plan), EN_OK);
    return plan;
}

static void budgets(void **state)
{
    (void)state;
    eni_plan p = make((eni_plan_options){.train_samples = 60000, .world = 2, .batch = 64, .epochs = 1});
    assert_true(p.steps == 469 && p.micro_batches == 938 && p.samples == 60000 && p.dropped_per_epoch == 0);
    p = make(
        (eni_plan_options){.train_samples = 60000, .world = 2, .batch = 64, .epochs = 2, .drop_last = true});
    assert_true(p.steps == 936 && p.samples == 2 * 59904 && p.dropped_per_epoch == 96);
    p = make((eni_plan_options){.train_samples = 60000, .world = 2, .batch = 64, .steps = 470});
    assert_true(p.steps == 470 && p.samples == 60128);
    p = make((eni_plan_options){.train_samples = 60000, .world = 2, .batch = 64, .max_samples = 1000});
    assert_true(p.steps == 8 && p.samples == 1000 && eni_plan_step_samples(&p, 7) == 104);
    p = make((eni_plan_options){
        .train_samples = 60000, .world = 2, .batch = 64, .max_samples = 1000, .drop_last = true});
    assert_true(p.steps == 7 && p.samples == 896 && p.dropped_at_end == 104);
    /* the first limit that is reached */
    p = make((eni_plan_options){
        .train_samples = 100, .world = 3, .batch = 7, .epochs = 3, .steps = 4, .max_samples = 250});
    assert_true(p.steps == 4 && p.samples == 84);
}

static void bad_budgets_are_refused(void **state)
{
    (void)state;
    static const eni_plan_options bad[] = {
        {.train_samples = 10, .world = 1, .batch = 1},
        {.train_samples = 0, .world = 1, .batch = 1, .epochs = 1},
        {.train_samples = UINT64_C(1) << 33, .world = 1, .batch = 1, .epochs = 1},
        {.train_samples = 10, .world = 0, .batch = 1, .epochs = 1},
        {.train_samples = 10, .world = 1, .batch = 0, .epochs = 1},
        {.train_samples = 10, .world = UINT64_C(1) << 40, .batch = UINT64_C(1) << 40, .epochs = 1},
        {.train_samples = 10, .world = 2, .batch = 6, .epochs = 1, .drop_last = true},
        {.train_samples = 10, .world = 1, .batch = 6, .max_samples = 5, .drop_last = true},
        {.train_samples = UINT32_MAX, .world = 1, .batch = 1, .epochs = UINT64_MAX / 2},
    };
    int lines = 0;
    eni_plan plan;
    eni_log_set_sink(hush, &lines);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(eni_plan_make(&bad[i], &plan), EN_EINVAL);
    eni_log_set_sink(NULL, NULL);
    assert_int_equal(lines, sizeof bad / sizeof bad[0]);
}

/* Every position of every epoch is computed exactly once, sizes differ by at most one, steps do not straddle.
 */
static void check_cover(const eni_plan *p)
{
    uint8_t *seen = calloc(p->train_samples, 1);
    uint64_t epoch = 0, total = 0, step_total = 0;
    assert_non_null(seen);
    for (uint64_t m = 0; m < p->micro_batches; m++) {
        eni_micro micro, first;
        assert_int_equal(eni_plan_micro(p, m, &micro), EN_OK);
        assert_int_equal(eni_plan_micro(p, m - m % p->world, &first), EN_OK);
        if (micro.epoch != epoch) {
            assert_int_equal(step_total, p->epoch_samples);
            memset(seen, 0, p->train_samples);
            epoch = micro.epoch;
            step_total = 0;
        }
        assert_true(micro.rank == m % p->world && micro.step == m / p->world && micro.epoch == first.epoch);
        assert_true(micro.count <= p->batch && first.count - micro.count <= 1);
        if (micro.rank == 0) assert_int_equal(eni_plan_samples_before(p, micro.step), total);
        for (uint64_t i = 0; i < micro.count; i++) {
            uint64_t position = micro.position + i * micro.stride;
            assert_true(position < p->epoch_samples && !seen[position]);
            seen[position] = 1;
        }
        total += micro.count;
        step_total += micro.count;
    }
    assert_int_equal(total, p->samples);
    eni_micro none;
    assert_int_equal(eni_plan_micro(p, p->micro_batches, &none), EN_ESTOP);
    free(seen);
}

static void shards_are_disjoint_and_complete(void **state)
{
    (void)state;
    static const uint64_t counts[] = {1, 7, 96, 100, 1000};
    for (size_t n = 0; n < sizeof counts / sizeof counts[0]; n++)
        for (uint64_t world = 1; world <= 5; world++)
            for (uint64_t batch = 1; batch <= 16; batch += 5)
                for (int drop = 0; drop < 2; drop++) {
                    eni_plan_options o = {.train_samples = counts[n],
                                          .world = world,
                                          .batch = batch,
                                          .epochs = 3,
                                          .drop_last = drop};
                    if (drop && counts[n] < world * batch) continue;
                    eni_plan p = make(o);
                    check_cover(&p);
                    o.max_samples = counts[n] + counts[n] / 2 + 1;
                    p = make(o);
                    check_cover(&p);
                }
}

/* In a step with fewer samples than workers, the last workers have none. */
static void a_ragged_step(void **state)
{
    (void)state;
    eni_plan p = make((eni_plan_options){.train_samples = 18, .world = 4, .batch = 4, .epochs = 1});
    uint64_t sizes[8];
    eni_micro micro;
    for (uint64_t m = 0; m < 8; m++) {
        assert_int_equal(eni_plan_micro(&p, m, &micro), EN_OK);
        sizes[m] = micro.count;
    }
    assert_true(sizes[3] == 4 && sizes[4] == 1 && sizes[5] == 1 && sizes[6] == 0 && sizes[7] == 0);
}

/* Where a run that is resumed begins: a step that begins there, or none; and what is left to hand out. */
static void positions(void **state)
{
    (void)state;
    uint64_t step;
    for (uint64_t batch = 1; batch <= 7; batch++) {
        eni_plan p = make((eni_plan_options){.train_samples = 103, .world = 2, .batch = batch, .epochs = 3});
        uint64_t t = 0;
        for (uint64_t samples = 0; samples <= p.samples; samples++) {
            int is_edge = eni_plan_samples_before(&p, t) == samples;
            assert_int_equal(eni_plan_step_at(&p, samples, &step), is_edge ? EN_OK : EN_ENOENT);
            if (is_edge) assert_int_equal(step, t++);
            uint64_t m = eni_plan_micro_at(&p, samples), before = 0;
            eni_micro micro;
            for (uint64_t i = 0; i < m; i++) {
                assert_int_equal(eni_plan_micro(&p, i, &micro), EN_OK);
                before += micro.count;
            }
            assert_true(before <= samples);
            if (eni_plan_micro(&p, m, &micro) == EN_OK && micro.count > 0)
                assert_true(before + micro.count > samples);
        }
        assert_int_equal(eni_plan_micro_at(&p, p.samples), p.micro_batches);
        assert_int_equal(eni_plan_step_at(&p, p.samples + 1, &step), EN_ENOENT);
    }
}

static void an_epoch_is_a_permutation(void **state)
{
    (void)state;
    enum { N = 1009 };
    static uint32_t order[3][N];
    uint8_t seen[N];
    eni_sampler *sampler = eni_sampler_new(N, 42, ENI_ORDER_EACH_EPOCH);
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        eni_micro all = {.epoch = epoch, .stride = 1, .count = N};
        eni_sampler_indices(sampler, &all, order[epoch]);
        memset(seen, 0, sizeof seen);
        for (int i = 0; i < N; i++) {
            assert_true(order[epoch][i] < N && !seen[order[epoch][i]]);
            seen[order[epoch][i]] = 1;
        }
    }
    assert_memory_not_equal(order[0], order[1], sizeof order[0]);
    /* epoch 1 again, without the epochs before it, by another process so to speak */
    eni_sampler *other = eni_sampler_new(N, 42, ENI_ORDER_EACH_EPOCH);
    static uint32_t again[N];
    eni_micro all = {.epoch = 1, .stride = 1, .count = N};
    eni_sampler_indices(other, &all, again);
    assert_memory_equal(again, order[1], sizeof again);
    eni_sampler_indices(sampler, &all, again); /* and backwards */
    assert_memory_equal(again, order[1], sizeof again);
    eni_sampler_free(sampler);
    eni_sampler_free(other);
}

/* Over many seeds each sample is as often first as any other. */
static void the_shuffle_has_no_bias(void **state)
{
    (void)state;
    enum { N = 10, SEEDS = 20000 };
    int first[N] = {0};
    double chi2 = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        uint32_t sample;
        eni_micro one = {.stride = 1, .count = 1};
        eni_sampler *sampler = eni_sampler_new(N, seed, ENI_ORDER_EACH_EPOCH);
        eni_sampler_indices(sampler, &one, &sample);
        first[sample]++;
        eni_sampler_free(sampler);
    }
    for (int i = 0; i < N; i++) {
        double gap = first[i] - (double)SEEDS / N;
        chi2 += gap * gap / ((double)SEEDS / N);
    }
    assert_true(chi2 < 27.9); /* 9 degrees of freedom, p = 0.001 */
}

static void no_shuffle_keeps_the_order(void **state)
{
    (void)state;
    uint32_t indices[3];
    eni_plan p = make((eni_plan_options){.train_samples = 20, .world = 3, .batch = 3, .epochs = 2});
    eni_sampler *sampler = eni_sampler_new(20, 1, ENI_ORDER_FILE);
    eni_micro micro;
    assert_int_equal(eni_plan_micro(&p, 13, &micro), EN_OK); /* step 4: of epoch 1, rank 1 */
    assert_true(micro.epoch == 1 && micro.count == 3);
    eni_sampler_indices(sampler, &micro, indices);
    assert_true(indices[0] == 10 && indices[1] == 13 && indices[2] == 16);
    eni_sampler_free(sampler);
}

/* Without it every epoch has the order that the first one has with it. */
static void no_reshuffle_keeps_the_first_order(void **state)
{
    (void)state;
    uint32_t first[20], indices[20];
    eni_plan p = make((eni_plan_options){.train_samples = 20, .world = 1, .batch = 20, .epochs = 3});
    eni_sampler *sampler = eni_sampler_new(20, 1, ENI_ORDER_EACH_EPOCH),
                *once = eni_sampler_new(20, 1, ENI_ORDER_ONCE);
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        eni_micro micro;
        assert_int_equal(eni_plan_micro(&p, epoch, &micro), EN_OK);
        eni_sampler_indices(sampler, &micro, epoch == 0 ? first : indices);
        if (epoch > 0) assert_memory_not_equal(indices, first, sizeof first);
        eni_sampler_indices(once, &micro, indices);
        assert_memory_equal(indices, first, sizeof first);
    }
    eni_sampler_free(sampler);
    eni_sampler_free(once);
}

/* The samples of a step, as a set, do not depend on how W * B is split; nor does the order's hash. */
static void the_order_does_not_depend_on_the_workers(void **state)
{
    (void)state;
    static const uint64_t splits[][2] = {{1, 24}, {2, 12}, {3, 8}, {4, 6}, {24, 1}};
    char hash[5][ENI_DIGEST_HEX], other[ENI_DIGEST_HEX];
    static uint8_t step_of[5][1000];
    for (int s = 0; s < 5; s++) {
        eni_plan p = make((eni_plan_options){
            .train_samples = 1000, .world = splits[s][0], .batch = splits[s][1], .epochs = 1});
        eni_sampler *sampler = eni_sampler_new(1000, 7, ENI_ORDER_EACH_EPOCH);
        for (uint64_t m = 0; m < p.micro_batches; m++) {
            eni_micro micro;
            uint32_t indices[24];
            assert_int_equal(eni_plan_micro(&p, m, &micro), EN_OK);
            eni_sampler_indices(sampler, &micro, indices);
            for (uint64_t i = 0; i < micro.count; i++)
                step_of[s][indices[i]] = (uint8_t)micro.step;
        }
        eni_sampler_free(sampler);
        assert_int_equal(eni_sampler_order_sha256(&p, 7, ENI_ORDER_EACH_EPOCH, hash[s]), EN_OK);
        assert_memory_equal(step_of[s], step_of[0], sizeof step_of[0]);
        assert_string_equal(hash[s], hash[0]);
        assert_int_equal(eni_sampler_order_sha256(&p, 8, ENI_ORDER_EACH_EPOCH, other), EN_OK);
        assert_string_not_equal(other, hash[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(budgets),
        cmocka_unit_test(bad_budgets_are_refused),
        cmocka_unit_test(shards_are_disjoint_and_complete),
        cmocka_unit_test(a_ragged_step),
        cmocka_unit_test(positions),
        cmocka_unit_test(an_epoch_is_a_permutation),
        cmocka_unit_test(the_shuffle_has_no_bias),
        cmocka_unit_test(no_shuffle_keeps_the_order),
        cmocka_unit_test(no_reshuffle_keeps_the_first_order),
        cmocka_unit_test(the_order_does_not_depend_on_the_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
