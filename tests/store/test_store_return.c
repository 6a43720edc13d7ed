/* test_store_return.c - clients that leave, come back and replay: what the fault test
 * (tests/sim/test_storm.c) found. */
#include "runtime/store/store_save.h"
#include "tests/store/store_rig.h"

enum { COUNT = 4 };
static const uint64_t count = COUNT;

/* Two clients a step, nobody waits: a push is answered while it is staged. */
static en_status pair_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    en_status status = store->absorb(store, part, msg, 1);
    return status != EN_OK || part->pending < 2 ? status : store->step(store, part);
}

static int at_once(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)store;
    (void)state;
    (void)part;
    (void)msg;
    return EN_REPLY_WEIGHTS;
}

static const en_strategy pairs = {
    .abi = EN_STRATEGY_ABI,
    .size = sizeof(en_strategy),
    .name = "pairs",
    .flags = EN_PUSH_READ_ONLY,
    .on_push = pair_push,
    .on_pull = at_once,
};

static rig begin(const char *name, int world)
{
    eni_store_config config =
        rig_config(strcmp(name, "pairs") ? rig_strategy(name) : &pairs, world, &count, 1);
    config.hyper = (eni_hyper){0};
    config.schedule = (eni_schedule){.kind = ENI_LR_CONSTANT, .base = 1};
    return rig_new(&config);
}

static void push(rig *r, int32_t client, uint64_t incarnation, uint64_t seq, uint64_t base, float value,
                 int is_replay)
{
    float grad[COUNT] = {value, value, value, value};
    rig_step(r, (eni_store_event){.type = ENI_STORE_CALL,
                                  .client = client,
                                  .incarnation = incarnation,
                                  .seq = seq,
                                  .kind = 1,
                                  .what = EN_GRAD,
                                  .base_version = base,
                                  .nsamples = 1,
                                  .covered = 1,
                                  .is_replay = is_replay,
                                  .payload = {.data = grad, .count = COUNT, .flags = ENI_PAYLOAD_BORROWED}});
}

static void what_was_answered_outlives_its_client(void **state)
{
    (void)state;
    rig r = begin("pairs", 3);
    const float before = eni_store_weights(r.store, 0, NULL)[0];
    push(&r, 0, 1, 1, 0, 2, 0);
    assert_int_equal(rig_for(&r, 0)->type, ENI_STORE_REPLY);
    rig_member(&r, 0, EN_MEMBER_LEFT, 1);
    rig_member(&r, 0, EN_MEMBER_JOINED, 2);
    push(&r, 1, 1, 1, 0, 4, 0);
    uint64_t version;
    assert_true(eni_store_weights(r.store, 0, &version)[0] == before - 3); /* the mean of both */
    assert_int_equal(version, 1);
    assert_int_equal(eni_store_client(r.store, 0)->applied, 1);
    assert_int_equal(eni_store_client(r.store, 0)->dropped, 0);
    push(&r, 0, 2, 1, 0, 4, 0); /* the next pair counts from nothing */
    push(&r, 0, 2, 2, 0, 4, 0);
    eni_store_weights(r.store, 0, &version);
    assert_int_equal(version, 1);
    rig_free(&r);
}

/* ps-sync: the answer was not given, so the push is forgotten with its client. */
static void what_was_not_answered_is_forgotten(void **state)
{
    (void)state;
    rig r = begin("ps-sync", 3);
    push(&r, 0, 1, 1, 0, 2, 0);
    rig_member(&r, 0, EN_MEMBER_LEFT, 1);
    assert_int_equal(eni_store_client(r.store, 0)->dropped, 1);
    rig_free(&r);
}

static void a_replay_is_met_at_the_version_there_is(void **state)
{
    (void)state;
    rig r = begin("ps-async", 2);
    push(&r, 0, 1, 1, 5, 1, 0);
    assert_int_equal(rig_for(&r, 0)->type, ENI_STORE_REFUSE);
    push(&r, 0, 1, 1, 5, 1, 1);
    assert_int_equal(rig_for(&r, 0)->type, ENI_STORE_REPLY);
    assert_int_equal(rig_for(&r, 0)->met, 0);
    push(&r, 1, 1, 1, 0, 1, 1); /* one that knows less than the store is as stale as it says */
    assert_int_equal(eni_store_client(r.store, 0)->staleness.max, 0);
    assert_int_equal(eni_store_client(r.store, 1)->staleness.max, 1);
    rig_free(&r);
}

static void who_joins_late_gets_the_clock_it_is_told(void **state)
{
    (void)state;
    rig r = begin("ssp", 2); /* bound 0: no options */
    for (uint64_t seq = 1; seq <= 3; seq++) {
        push(&r, 0, 1, seq, seq - 1, 1, 0);
        push(&r, 1, 1, seq, seq, 1, 0);
    }
    rig_member(&r, 1, EN_MEMBER_LEFT, 1);
    rig_step(&r, (eni_store_event){.type = ENI_STORE_MEMBER,
                                   .client = 1,
                                   .incarnation = 2,
                                   .member = EN_MEMBER_JOINED,
                                   .kind = ENI_JOIN_AT_CLOCK,
                                   .seq = 1});
    push(&r, 0, 1, 4, 6, 1, 0);
    assert_int_equal(r.actions.n, 0); /* three clocks ahead of rank 1 */
    for (uint64_t seq = 1; seq <= 3; seq++) {
        push(&r, 1, 2, seq, 0, 1, 0);
        assert_int_equal(rig_for(&r, 1)->type, ENI_STORE_REPLY);
        assert_int_equal(rig_for(&r, 0)->type, seq == 3 ? ENI_STORE_REPLY : 0);
    }
    rig_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_answered_outlives_its_client),
        cmocka_unit_test(what_was_not_answered_is_forgotten),
        cmocka_unit_test(a_replay_is_met_at_the_version_there_is),
        cmocka_unit_test(who_joins_late_gets_the_clock_it_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
