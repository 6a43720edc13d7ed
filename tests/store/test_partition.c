/* test_partition.c - the arithmetic of a partition: the same bytes as ops/mean.h and ops/optimizer.h,
 * whatever the order of arrival, the number of shards, the sizes of batches. */
#include <malloc.h>
#include <math.h>

#include "tests/store/store_rig.h"

enum { WORLD = 3, BUCKETS = 3, ROUNDS = 12, MOST = 700 };
static const uint64_t counts[BUCKETS] = {MOST, 5, 64};

/* Samples of a rank in a round; now and then a rank has none, and in one round nobody has any. */
static uint64_t samples_of(int rank, int round)
{
    return round == 5 ? 0 : (uint64_t)((rank * 7 + round * 5) % 4) * 8;
}

/* The same training on whole vectors with nothing but ops/. */
static void reference(eni_sum_order order, uint32_t b, float *w)
{
    const eni_store_config config = rig_config(rig_strategy("ps-sync"), WORLD, counts, BUCKETS);
    float grad[WORLD][MOST], mean[MOST], momentum[MOST] = {0};
    float *slots[] = {momentum};
    uint64_t applied = 0;
    for (uint64_t i = 0; i < counts[b]; i++)
        w[i] = rig_weight(b, i);
    for (int t = 0; t < ROUNDS; t++) {
        const float *src[WORLD];
        uint64_t nsamples[WORLD], sum = 0;
        for (int r = 0; r < WORLD; r++) {
            src[r] = grad[r];
            sum += nsamples[r] = samples_of(r, t);
            for (uint64_t i = 0; i < counts[b]; i++)
                grad[r][i] = rig_gradient(r, (uint64_t)t, b, i);
        }
        if (sum == 0) continue; /* nothing moves, momentum neither; the step counts */
        eni_mean_ranks(mean, src, nsamples, WORLD, order, counts[b], 0, counts[b]);
        eni_hyper hyper = config.hyper;
        hyper.lr = eni_schedule_lr(&config.schedule, applied);
        hyper.step = (uint64_t)t;
        config.optimizer->step(w, slots, mean, counts[b], &hyper);
        applied += sum;
    }
}

/* One round of ps-sync on a shard; ranks arrive in an order that depends on the round. */
static void one_round(rig *r, const eni_store_config *config, int t)
{
    for (uint32_t b = 0; b < BUCKETS; b++) {
        const uint64_t count = eni_store_count(r->store, b);
        const uint64_t lo = eni_slice_lo(counts[b], config->shard, config->nshards);
        for (int k = 0; count > 0 && k < WORLD; k++) {
            const int rank = t % 2 ? (k + t) % WORLD : (WORLD - 1 - k + t) % WORLD;
            float grad[MOST];
            for (uint64_t i = 0; i < count; i++)
                grad[i] = rig_gradient(rank, (uint64_t)t, b, lo + i);
            if (samples_of(rank, t) == 0) grad[0] = NAN; /* contents of an empty batch do not count */
            rig_push_owned(r, rank, b, (uint64_t)t + 1, (uint64_t)t, samples_of(rank, t), grad, count);
            assert_int_equal(r->actions.n, k + 1 < WORLD ? 0 : WORLD);
        }
    }
}

static void check_against_reference(eni_sum_order order, int nshards)
{
    for (int shard = 0; shard < nshards; shard++) {
        eni_store_config config = rig_config(rig_strategy("ps-sync"), WORLD, counts, BUCKETS);
        config.shard = shard;
        config.nshards = nshards;
        config.sum_order = order;
        rig r = rig_new(&config);
        for (int t = 0; t < ROUNDS; t++)
            one_round(&r, &config, t);
        for (uint32_t b = 0; b < BUCKETS; b++) {
            float w[MOST];
            uint64_t version;
            reference(order, b, w);
            const uint64_t lo = eni_slice_lo(counts[b], shard, nshards), count = eni_store_count(r.store, b);
            if (count == 0) continue;
            const float *got = eni_store_weights(r.store, b, &version);
            assert_int_equal(version, ROUNDS);
            assert_memory_equal(got, w + lo, count * sizeof(float));
        }
        rig_free(&r);
    }
}

static void rounds_give_the_bytes_of_ops(void **state)
{
    (void)state;
    check_against_reference(ENI_SUM_RANK, 1);
}

static void rounds_follow_the_ring_s_rotation(void **state)
{
    (void)state;
    check_against_reference(ENI_SUM_RING, 1);
}

static void shards_change_nothing(void **state)
{
    (void)state;
    const int shards[] = {2, 3, 9};
    for (int i = 0; i < 3; i++) {
        check_against_reference(ENI_SUM_RANK, shards[i]);
        check_against_reference(ENI_SUM_RING, shards[i]);
    }
}

/* One round of ps-sync with what `what` says and these samples; the weights after it. */
static void push_round(uint32_t what, const uint64_t nsamples[WORLD], float w_out[MOST])
{
    eni_store_config config = rig_config(rig_strategy("ps-sync"), WORLD, counts, BUCKETS);
    config.schedule.warmup = 0; /* whose first step has the rate 0 */
    rig r = rig_new(&config);
    float data[WORLD][MOST];
    for (int rank = 0; rank < WORLD; rank++) {
        for (uint64_t i = 0; i < MOST; i++)
            data[rank][i] = rig_gradient(rank, 0, 0, i);
        rig_step(&r, (eni_store_event){.type = ENI_STORE_CALL,
                                       .client = rank,
                                       .incarnation = 1,
                                       .seq = 1,
                                       .kind = 1,
                                       .what = what,
                                       .nsamples = nsamples[rank],
                                       .payload = {.data = data[rank], .count = MOST}});
    }
    memcpy(w_out, eni_store_weights(r.store, 0, NULL), MOST * sizeof *w_out);
    rig_free(&r);
}

/* 8 samples of each are the same bytes as 1 of each: 8 is a power of two. */
static void a_delta_counts_each_client_once(void **state)
{
    (void)state;
    const uint64_t uneven[WORLD] = {4, 0, 20}, even[WORLD] = {8, 8, 8};
    float delta[MOST], weights[MOST], gradient[MOST], weighted[MOST];
    push_round(EN_DELTA, uneven, delta);
    push_round(EN_WEIGHTS, uneven, weights);
    push_round(EN_GRAD, even, gradient);
    push_round(EN_GRAD, uneven, weighted);
    assert_memory_equal(delta, gradient, sizeof delta);
    assert_memory_equal(weights, gradient, sizeof weights);
    assert_memory_not_equal(weighted, gradient, sizeof weighted);
}

static void more_shards_than_lines_leave_partitions_empty(void **state)
{
    (void)state;
    eni_store_config config = rig_config(rig_strategy("ps-sync"), WORLD, counts, BUCKETS);
    config.shard = 8;
    config.nshards = 9;
    rig r = rig_new(&config);
    assert_int_equal(eni_store_count(r.store, 1), 0); /* 5 elements: all on shard 1 */
    float g[5] = {0};
    rig_call(&r, 0, 1, 1, 0, 8, g, 5);
    assert_int_equal(rig_for(&r, 0)->type, ENI_STORE_REFUSE);
    rig_free(&r);
}

/* ---- not finite ---------------------------------------------------------------------------------------- */

static void a_mean_that_is_not_finite_changes_nothing(void **state)
{
    (void)state;
    const uint64_t count = 32;
    eni_store_config config = rig_config(rig_strategy("ps-sync"), 2, &count, 1);
    rig r = rig_new(&config);
    float before[32], good[32] = {1}, bad[32] = {0};
    memcpy(before, eni_store_weights(r.store, 0, NULL), sizeof before);
    bad[31] = INFINITY;
    rig_call(&r, 0, 0, 1, 0, 4, good, count);
    const uint64_t first = r.ticket;
    rig_call(&r, 1, 0, 1, 0, 4, bad, count);
    assert_int_equal(r.actions.n, 2); /* nobody is left waiting for a step that will not come */
    for (int32_t c = 0; c < 2; c++) {
        assert_int_equal(rig_for(&r, c)->type, ENI_STORE_REFUSE);
        assert_int_equal(rig_for(&r, c)->status, EN_ENONFINITE);
        assert_non_null(strstr(rig_for(&r, c)->text, "not finite"));
    }
    assert_int_equal(rig_for(&r, 0)->ticket, first);
    uint64_t version;
    assert_memory_equal(before, eni_store_weights(r.store, 0, &version), sizeof before);
    assert_int_equal(version, 0);
    assert_int_equal(rig_look(&r, 0)->samples, 0);
    assert_int_equal(eni_store_totals(r.store)->nonfinite, 1);
    assert_int_equal(eni_store_client(r.store, 0)->dropped, 4);
    assert_int_equal(eni_store_client(r.store, 0)->applied, 0);
    assert_int_equal(eni_store_client(r.store, 0)->staleness.count, 0);
    /* And the next round is as if it had not been. */
    rig_call(&r, 0, 0, 2, 0, 4, good, count);
    rig_call(&r, 1, 0, 2, 0, 4, good, count);
    assert_int_equal(rig_for(&r, 1)->type, ENI_STORE_REPLY);
    assert_int_equal(rig_for(&r, 1)->version, 1);
    rig_free(&r);
}

/* ---- the mean of one ------------------------------------------------------------------------------------ */

/* ps-async steps with each gradient alone, whatever its samples: the bytes of ops/, and nothing for a gradient
 * that is not finite. */
static void the_mean_of_one_is_that_one(void **state)
{
    (void)state;
    const uint64_t count = 37;
    eni_store_config config = rig_config(rig_strategy("ps-async"), 2, &count, 1);
    rig r = rig_new(&config);
    float w[37], mean[37], momentum[37] = {0}, grad[37], *slots[] = {momentum};
    memcpy(w, eni_store_weights(r.store, 0, NULL), sizeof w);
    uint64_t applied = 0, version = 0;
    for (uint64_t t = 0; t < 8; t++) {
        const uint64_t nsamples = 3 + t;
        const float *src = grad;
        for (uint64_t i = 0; i < count; i++)
            grad[i] = rig_gradient(0, t, 0, i);
        grad[0] = -0.0f;
        grad[1] = 1e-45f;
        if (t == 5) grad[36] = NAN;
        rig_call(&r, 0, 0, t + 1, version, nsamples, grad, count);
        assert_int_equal(rig_for(&r, 0)->type, t == 5 ? ENI_STORE_REFUSE : ENI_STORE_REPLY);
        if (t != 5) {
            eni_hyper hyper = config.hyper;
            hyper.lr = eni_schedule_lr(&config.schedule, applied);
            hyper.step = version;
            eni_mean_ranks(mean, &src, &nsamples, 1, ENI_SUM_RANK, count, 0, count);
            config.optimizer->step(w, slots, mean, count, &hyper);
            applied += nsamples;
        }
        assert_memory_equal(eni_store_weights(r.store, 0, &version), w, sizeof w);
    }
    assert_int_equal(version, 7);
    rig_free(&r);
}

/* ---- borrowed payloads --------------------------------------------------------------------------------- */

/* n-softsync with two gradients per step: a push is answered while its gradient is still staged. */
static en_status pair_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    en_status status = store->absorb(store, part, msg, 1);
    return status != EN_OK || part->pending < 2 ? status : store->step(store, part);
}

static const en_strategy pairs = {
    .abi = EN_STRATEGY_ABI,
    .size = sizeof(en_strategy),
    .name = "pairs",
    .flags = EN_STORE_ON_SERVERS | EN_PUSH_READ_ONLY,
    .on_push = pair_push,
};

/* The weights after one step on the gradients `a` of rank 0 and `b` of rank 1, 4 samples each. */
static void step_of_two(const eni_store_config *config, const float *a, const float *b, uint64_t count,
                        float *w)
{
    float mean[64], momentum[64] = {0};
    const float *src[] = {a, b};
    const uint64_t nsamples[] = {4, 4};
    float *slots[] = {momentum};
    eni_mean_ranks(mean, src, nsamples, 2, ENI_SUM_RANK, count, 0, count);
    eni_hyper hyper = config->hyper;
    hyper.lr = eni_schedule_lr(&config->schedule, 0);
    for (uint64_t i = 0; i < count; i++)
        w[i] = rig_weight(0, i);
    config->optimizer->step(w, slots, mean, count, &hyper);
}

static void count_release(void *owner)
{
    ++*(int *)owner;
}

static void borrowed_memory_may_change_after_the_answer(void **state)
{
    (void)state;
    const uint64_t count = 64;
    const eni_store_config config = rig_config(&pairs, 2, &count, 1);
    rig r = rig_new(&config);
    float mine[64], copy[64], other[64], want[64];
    for (int i = 0; i < 64; i++) {
        mine[i] = copy[i] = rig_gradient(0, 0, 0, (uint64_t)i);
        other[i] = rig_gradient(1, 0, 0, (uint64_t)i);
    }
    int released = 0;
    rig_step(&r, (eni_store_event){.type = ENI_STORE_CALL,
                                   .incarnation = 1,
                                   .seq = 1,
                                   .nsamples = 4,
                                   .payload = {mine, count, ENI_PAYLOAD_BORROWED, count_release, &released}});
    assert_int_equal(rig_for(&r, 0)->type, ENI_STORE_REPLY);
    assert_int_equal(released, 1);
    assert_int_equal(eni_store_totals(r.store)->detached, 1);
    for (int i = 0; i < 64; i++)
        mine[i] = NAN; /* the client computes its next gradient there */
    rig_call(&r, 1, 0, 1, 0, 4, other, count);
    step_of_two(&config, copy, other, count, want);
    assert_memory_equal(eni_store_weights(r.store, 0, NULL), want, sizeof want);
    rig_free(&r);
}

static void owned_payloads_are_never_copied(void **state)
{
    (void)state;
    const uint64_t count = 64;
    const eni_store_config config = rig_config(&pairs, 2, &count, 1);
    rig r = rig_new(&config);
    float g[64] = {1};
    rig_push_owned(&r, 0, 0, 1, 0, 4, g, count);
    rig_push_owned(&r, 1, 0, 1, 0, 4, g, count);
    assert_int_equal(eni_store_totals(r.store)->detached, 0);
    assert_int_equal(eni_store_totals(r.store)->updates, 1);
    rig_free(&r);
}

static void every_payload_is_released_once(void **state)
{
    (void)state;
    const uint64_t count = 64;
    eni_store_config config = rig_config(rig_strategy("ps-sync"), 2, &count, 1);
    rig r = rig_new(&config);
    float g[64] = {1};
    int released = 0;
    eni_store_event event = {.type = ENI_STORE_CALL,
                             .incarnation = 1,
                             .seq = 1,
                             .nsamples = 4,
                             .payload = {g, count, 0, count_release, &released}};
    rig_step(&r, event); /* held */
    assert_int_equal(released, 0);
    rig_step(&r, event); /* a repeat */
    assert_int_equal(released, 1);
    event.seq = 9;
    rig_step(&r, event); /* a gap */
    assert_int_equal(released, 2);
    event.bucket = 77;
    rig_step(&r, event);
    assert_int_equal(released, 3);
    event.client = 77;
    rig_step(&r, event);
    assert_int_equal(released, 4);
    rig_free(&r); /* the held one */
    assert_int_equal(released, 5);
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static void pushes_allocate_nothing_after_warm_up(void **state)
{
    (void)state;
    const uint64_t count = 64;
    const eni_store_config config = rig_config(rig_strategy("ps-async"), 2, &count, 1);
    rig r = rig_new(&config);
    float g[64] = {0};
    size_t used = 0;
    for (uint64_t t = 0; t < 1000; t++) {
        for (int32_t c = 0; c < 2; c++)
            rig_call(&r, c, 0, t + 1, t == 0 ? 0 : 2 * t - (c == 0), 4, g, count);
        const struct mallinfo2 now = mallinfo2();
        if (t == 10) used = now.uordblks + now.hblkhd;
        if (t > 10) assert_int_equal(now.uordblks + now.hblkhd, used);
    }
    rig_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_give_the_bytes_of_ops),
        cmocka_unit_test(rounds_follow_the_ring_s_rotation),
        cmocka_unit_test(shards_change_nothing),
        cmocka_unit_test(a_delta_counts_each_client_once),
        cmocka_unit_test(more_shards_than_lines_leave_partitions_empty),
        cmocka_unit_test(a_mean_that_is_not_finite_changes_nothing),
        cmocka_unit_test(the_mean_of_one_is_that_one),
        cmocka_unit_test(borrowed_memory_may_change_after_the_answer),
        cmocka_unit_test(owned_payloads_are_never_copied),
        cmocka_unit_test(every_payload_is_released_once),
        cmocka_unit_test(pushes_allocate_nothing_after_warm_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
