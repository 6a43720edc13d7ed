/* test_store_version.c - acquired weights keep their bytes whatever the store does, and the store computes
 * the same.
 */
#include "tests/store/store_rig.h"

enum { WORLD = 2, COUNT = 100, ROUNDS = 20 };

static const uint64_t counts[2] = {COUNT, 0};

static void push(rig *r, int32_t client, uint64_t seq, uint64_t base)
{
    float gradient[COUNT];
    for (uint64_t i = 0; i < COUNT; i++)
        gradient[i] = rig_gradient(client, seq, 0, i);
    rig_push_owned(r, client, 0, seq, base, 1, gradient, COUNT);
}

static void in_rounds_only_the_step_looks(void **state)
{
    (void)state;
    const eni_store_config config = rig_config(rig_strategy("ps-sync"), WORLD, counts, 1);
    rig r = rig_new(&config);
    float before[COUNT];
    const float *first = eni_store_weights(r.store, 0, NULL);
    memcpy(before, first, sizeof before);
    eni_version_buffer *held = eni_store_acquire(r.store, 0);
    assert_non_null(held);
    push(&r, 0, 1, 0);
    assert_ptr_equal(eni_store_weights(r.store, 0, NULL),
                     first); /* nothing was stepped, nothing was copied */
    push(&r, 1, 1, 0);
    assert_ptr_not_equal(eni_store_weights(r.store, 0, NULL), first);
    assert_ptr_equal(rig_for(&r, 0)->data, eni_store_weights(r.store, 0, NULL));
    assert_memory_equal(first, before, sizeof before);
    assert_int_equal(eni_store_totals(r.store)->moved, 1);
    eni_store_release(NULL, held);
    rig_free(&r);
}

static void what_came_back_in_time_is_stepped_in_place(void **state)
{
    (void)state;
    const eni_store_config config = rig_config(rig_strategy("ps-sync"), WORLD, counts, 1);
    rig r = rig_new(&config);
    const float *first = eni_store_weights(r.store, 0, NULL);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        push(&r, 0, round, round - 1);
        push(&r, 1, round, round - 1);
        eni_version_buffer *held[2] = {eni_store_acquire(r.store, 0), eni_store_acquire(r.store, 0)};
        eni_store_release(NULL, held[0]);
        eni_store_release(NULL, held[1]);
    }
    assert_ptr_equal(eni_store_weights(r.store, 0, NULL), first);
    assert_int_equal(eni_store_totals(r.store)->moved, 0);
    rig_free(&r);
}

/* Two version buffers take turns, and no third is made: what is back is used again. */
static void what_comes_back_is_used_again(void **state)
{
    (void)state;
    const eni_store_config config = rig_config(rig_strategy("ps-async"), WORLD, counts, 1);
    rig r = rig_new(&config);
    const float *seen[2] = {eni_store_weights(r.store, 0, NULL), NULL};
    eni_version_buffer *held = eni_store_acquire(r.store, 0);
    for (uint64_t seq = 1; seq <= ROUNDS; seq++) {
        push(&r, 0, seq, seq - 1);
        const float *now = eni_store_weights(r.store, 0, NULL);
        if (seq == 1) seen[1] = now;
        assert_ptr_equal(now, seen[seq % 2]);
        eni_store_release(NULL, held);
        held = eni_store_acquire(r.store, 0);
    }
    assert_int_equal(eni_store_totals(r.store)->moved, ROUNDS);
    eni_store_release(NULL, held);
    rig_free(&r);
}

/* The same pushes with buffers held that last 0 to 3 of them, and without any. */
static void the_sums_are_the_same(void **state)
{
    (void)state;
    const eni_store_config config = rig_config(rig_strategy("ps-async"), WORLD, counts, 1);
    rig plain = rig_new(&config), sharing = rig_new(&config);
    eni_version_buffer *held[4] = {0};
    float kept[4][COUNT];
    const float *seen[4];
    for (uint64_t seq = 1; seq <= ROUNDS; seq++)
        for (int32_t client = 0; client < WORLD; client++) {
            const uint64_t n = 2 * seq + (uint64_t)client, slot = n * n / 3 % 4;
            push(&plain, client, seq, 0);
            push(&sharing, client, seq, 0);
            const float *now = eni_store_weights(sharing.store, 0, NULL);
            assert_memory_equal(now, eni_store_weights(plain.store, 0, NULL), sizeof kept[0]);
            if (held[slot]) {
                assert_memory_equal(seen[slot], kept[slot], sizeof kept[slot]);
                eni_store_release(NULL, held[slot]);
            }
            held[slot] = eni_store_acquire(sharing.store, 0);
            seen[slot] = now;
            memcpy(kept[slot], now, sizeof kept[slot]);
        }
    assert_true(eni_store_totals(sharing.store)->moved > 0);
    rig_free(&plain);
    rig_free(&sharing);
    for (int i = 0; i < 4; i++) /* buffers outlive the store */
        if (held[i]) {
            assert_memory_equal(seen[i], kept[i], sizeof kept[i]);
            eni_store_release(NULL, held[i]);
        }
}

/* A strategy of its own that moves the weights by hand. */
static en_status by_hand(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state, (void)msg;
    for (uint64_t i = 0; i < part->count; i++)
        part->w[i] += 1;
    store->touch(store, part);
    return EN_OK;
}

static void a_hook_writes_a_copy_too(void **state)
{
    (void)state;
    const en_strategy strategy = {.abi = EN_STRATEGY_ABI,
                                  .size = sizeof strategy,
                                  .name = "by-hand",
                                  .flags = EN_STORE_ON_SERVERS,
                                  .on_push = by_hand};
    const eni_store_config config = rig_config(&strategy, WORLD, counts, 1);
    rig r = rig_new(&config);
    const float *first = eni_store_weights(r.store, 0, NULL);
    const float before = first[7];
    eni_version_buffer *held = eni_store_acquire(r.store, 0);
    push(&r, 0, 1, 0);
    assert_int_equal(rig_for(&r, 0)->type, ENI_STORE_REPLY);
    assert_true(first[7] == before);
    assert_true(eni_store_weights(r.store, 0, NULL)[7] == before + 1);
    eni_store_release(NULL, held);
    rig_free(&r);
}

static void what_is_not_the_stores_cannot_be_lent(void **state)
{
    (void)state;
    static float weights[COUNT];
    static const uint64_t offsets[2] = {0, COUNT};
    eni_store_config config = rig_config(rig_strategy("ps-sync"), WORLD, counts, 2);
    config.weights = weights;
    config.weight_offsets = offsets;
    rig r = rig_new(&config);
    assert_null(eni_store_acquire(r.store, 0));
    assert_null(eni_store_acquire(r.store, 1)); /* empty */
    assert_null(eni_store_acquire(r.store, 2)); /* no such bucket */
    rig_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_rounds_only_the_step_looks),
        cmocka_unit_test(what_came_back_in_time_is_stepped_in_place),
        cmocka_unit_test(what_comes_back_is_used_again),
        cmocka_unit_test(the_sums_are_the_same),
        cmocka_unit_test(a_hook_writes_a_copy_too),
        cmocka_unit_test(what_is_not_the_stores_cannot_be_lent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
