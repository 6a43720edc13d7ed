/* test_client_step.c - the client's state machine, event by event: what it sends, what it takes for an
 * answer, what it keeps, replays and asks. One partition on one shard; the fault tests
 * (tests/sim/test_storm.c) do the rest. */
#include "runtime/client/client_step.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/log.h"

enum { KEEP = 3, EPOCH = 4, COUNT = 2 };

static eni_client_state state;
static eni_client_actions actions;
static float vector[COUNT];

static en_status step(eni_client_event event)
{
    return eni_client_step(&state, &event, &actions);
}

static void returned(uint32_t epoch)
{
    assert_int_equal(step((eni_client_event){.type = ENI_CLIENT_RETURNED, .epoch = epoch}), EN_OK);
}

static void open_state(uint32_t keep)
{
    assert_int_equal(eni_client_state_init(&state, 1, 1, 7, 9, keep), EN_OK);
    returned(EPOCH);
    eni_client_partition_at(&state, 0, 0)->count = COUNT;
    assert_int_equal(actions.n, 1);
    assert_int_equal(actions.item[0].type, ENI_CLIENT_RECOVERED);
}

static int close_state(void **unused)
{
    (void)unused;
    eni_client_state_fini(&state);
    eni_client_actions_fini(&actions);
    return 0;
}

static void call(uint32_t type, float value)
{
    const eni_header message = {.type = type, .kind = 1, .nsamples = 8};
    vector[0] = vector[1] = value;
    assert_int_equal(step((eni_client_event){.type = ENI_CLIENT_CALL,
                                             .message = &message,
                                             .payload = type == ENI_MSG_SNAPSHOT ? NULL : vector}),
                     EN_OK);
}

static en_status answer(uint32_t type, uint32_t epoch, uint64_t seq, uint64_t stable)
{
    const eni_header message = {.type = type, .epoch = epoch, .seq = seq, .version = seq, .stable = stable};
    return step((eni_client_event){.type = ENI_CLIENT_ANSWER, .message = &message});
}

static void reply(uint32_t epoch, uint64_t seq, uint64_t stable)
{
    assert_int_equal(answer(ENI_MSG_REPLY, epoch, seq, stable), EN_OK);
}

/* The i-th action sends call `seq` with this flag and payload. */
static void expect_send(uint32_t i, uint64_t seq, uint32_t epoch, uint32_t flags, float value)
{
    assert_true(i < actions.n);
    const eni_client_action *a = &actions.item[i];
    assert_int_equal(a->type, ENI_CLIENT_SEND);
    assert_int_equal(a->header.type, ENI_MSG_CALL);
    assert_int_equal(a->header.seq, seq);
    assert_int_equal(a->header.epoch, epoch);
    assert_int_equal(a->header.flags, flags);
    assert_int_equal(a->header.rank, 7);
    assert_int_equal(a->header.incarnation, 9);
    assert_true(a->payload[0] == value && a->payload[1] == value);
}

static void expect(eni_client_action_type type)
{
    assert_int_equal(actions.n, 1);
    assert_int_equal(actions.item[0].type, type);
}

static void an_answer_is_that_of_the_call_in_flight(void **unused)
{
    (void)unused;
    open_state(0);
    call(ENI_MSG_CALL, 5);
    expect_send(0, 1, EPOCH, 0, 5);
    assert_true(actions.item[0].is_first && actions.item[0].payload == vector);
    reply(EPOCH, 2, 0); /* to nothing */
    assert_int_equal(actions.n, 0);
    reply(EPOCH - 1, 1, 0); /* of the previous incarnation */
    assert_int_equal(actions.n, 0);
    reply(EPOCH, 1, 0);
    expect(ENI_CLIENT_COMPLETE);
    reply(EPOCH, 1, 0); /* doubled */
    assert_int_equal(actions.n, 0);
    call(ENI_MSG_CALL, 6);
    assert_int_equal(actions.item[0].header.base_version, 1);
    assert_null(eni_client_partition_at(&state, 0, 0)->first); /* nothing is kept */
}

static void what_makes_no_sense_is_an_error(void **unused)
{
    (void)unused;
    open_state(KEEP);
    const eni_header message = {.type = ENI_MSG_CALL},
                     other = {.type = ENI_MSG_REPLY, .epoch = EPOCH, .bucket = 3};
    call(ENI_MSG_CALL, 1);
    assert_int_equal(step((eni_client_event){.type = ENI_CLIENT_CALL, .message = &message}), EN_EBUG);
    assert_int_equal(step((eni_client_event){.type = ENI_CLIENT_ANSWER, .message = &other}), EN_EPROTO);
    assert_int_equal(answer(ENI_MSG_CALL, EPOCH, 1, 0), EN_EPROTO);
}

static void a_refusal_ends_the_call_that_it_names(void **unused)
{
    (void)unused;
    open_state(KEEP);
    call(ENI_MSG_CALL, 1);
    reply(EPOCH, 1, 0);
    call(ENI_MSG_CALL, 2);
    assert_int_equal(answer(ENI_MSG_REFUSED, EPOCH, 1, 0), EN_OK); /* a copy of call 1 came late */
    assert_int_equal(actions.n, 0);
    assert_int_equal(answer(ENI_MSG_REFUSED, EPOCH, 2, 0), EN_OK);
    expect(ENI_CLIENT_REFUSED);
    assert_true(actions.item[0].is_call);
    assert_int_equal(answer(ENI_MSG_REFUSED, EPOCH, 0, 0), EN_OK); /* of the connection */
    expect(ENI_CLIENT_REFUSED);
    assert_false(actions.item[0].is_call);
}

/* The last durable call is replayed too, each call after the answer to the one before. */
static void a_shard_that_came_back_gets_what_it_may_not_have(void **unused)
{
    (void)unused;
    open_state(KEEP + 1);
    for (uint64_t seq = 1; seq <= 3; seq++) {
        call(ENI_MSG_CALL, (float)seq);
        reply(EPOCH, seq, seq == 3 ? 2 : 0);
    }
    call(ENI_MSG_CALL, 4);
    returned(EPOCH + 1);
    assert_int_equal(actions.n, 1);
    expect_send(0, 2, EPOCH + 1, ENI_FLAG_REPLAY, 2);
    assert_int_equal(state.replaying, 1);
    reply(EPOCH + 1, 4, 0); /* not yet asked */
    assert_int_equal(actions.n, 0);
    reply(EPOCH + 1, 2, 2);
    expect_send(0, 3, EPOCH + 1, ENI_FLAG_REPLAY, 3);
    reply(EPOCH + 1, 2, 2); /* doubled */
    assert_int_equal(actions.n, 0);
    reply(EPOCH + 1, 3, 2);
    expect_send(0, 4, EPOCH + 1, ENI_FLAG_REPLAY, 4);
    reply(EPOCH + 1, 4, 2);
    assert_int_equal(actions.n, 2);
    assert_int_equal(actions.item[0].type, ENI_CLIENT_COMPLETE);
    assert_int_equal(actions.item[1].type, ENI_CLIENT_RECOVERED);
    call(ENI_MSG_CALL, 5);
    expect_send(0, 5, EPOCH + 1, 0, 5); /* its weights are this incarnation's */
}

static void a_new_call_waits_for_the_replay(void **unused)
{
    (void)unused;
    open_state(KEEP);
    call(ENI_MSG_CALL, 1);
    reply(EPOCH, 1, 0);
    returned(EPOCH + 1);
    expect_send(0, 1, EPOCH + 1, ENI_FLAG_REPLAY, 1);
    call(ENI_MSG_CALL, 2);
    assert_int_equal(actions.n, 0);
    vector[0] = vector[1] = 99; /* it was copied */
    returned(EPOCH + 2);        /* and once more */
    expect_send(0, 1, EPOCH + 2, ENI_FLAG_REPLAY, 1);
    reply(EPOCH + 2, 1, 0);
    expect_send(0, 2, EPOCH + 2, ENI_FLAG_REPLAY, 2);
}

static void a_snapshot_waits_for_the_replay(void **unused)
{
    (void)unused;
    open_state(KEEP);
    call(ENI_MSG_CALL, 1);
    reply(EPOCH, 1, 0);
    call(ENI_MSG_SNAPSHOT, 0);
    returned(EPOCH + 1);
    expect_send(0, 1, EPOCH + 1, ENI_FLAG_REPLAY, 1);
    reply(EPOCH + 1, 1, 1);
    assert_int_equal(actions.n, 2);
    assert_int_equal(actions.item[0].header.type, ENI_MSG_SNAPSHOT);
    reply(EPOCH + 1, 0, 1);
    expect(ENI_CLIENT_COMPLETE);
}

static void without_room_it_asks_how_far_all_is_durable(void **unused)
{
    (void)unused;
    open_state(KEEP);
    const eni_client_partition *part = eni_client_partition_at(&state, 0, 0);
    for (uint64_t seq = 1; seq <= KEEP; seq++) {
        assert_true(eni_client_has_room(&state, part, ENI_MSG_CALL));
        call(ENI_MSG_CALL, 1);
        reply(EPOCH, seq, 0);
    }
    assert_false(eni_client_has_room(&state, part, ENI_MSG_CALL));
    assert_true(eni_client_has_room(&state, part, ENI_MSG_SNAPSHOT));
    assert_int_equal(step((eni_client_event){.type = ENI_CLIENT_ASK}), EN_OK);
    expect(ENI_CLIENT_SEND);
    assert_int_equal(actions.item[0].header.seq, 0);
    assert_int_equal(actions.item[0].header.flags, ENI_FLAG_REPLAY);
    assert_int_equal(step((eni_client_event){.type = ENI_CLIENT_ASK}), EN_OK);
    assert_int_equal(actions.n, 0); /* once */
    reply(EPOCH, 0, KEEP);
    assert_int_equal(actions.n, 0);
    assert_true(eni_client_has_room(&state, part, ENI_MSG_CALL));
    assert_int_equal(part->nkept, 1); /* the last durable one */
}

static void what_is_overdue_is_sent_again(void **unused)
{
    (void)unused;
    open_state(KEEP);
    assert_int_equal(step((eni_client_event){.type = ENI_CLIENT_OVERDUE}), EN_OK);
    assert_int_equal(actions.n, 0);
    call(ENI_MSG_CALL, 1);
    vector[0] = vector[1] = 99;
    assert_int_equal(step((eni_client_event){.type = ENI_CLIENT_OVERDUE}), EN_OK);
    expect_send(0, 1, EPOCH, 0, 1);
    reply(EPOCH, 1, 0);
    assert_int_equal(step((eni_client_event){.type = ENI_CLIENT_OVERDUE}), EN_OK);
    assert_int_equal(actions.n, 0);
}

static void finish(void)
{
    assert_int_equal(step((eni_client_event){.type = ENI_CLIENT_FINISH}), EN_OK);
}

static void finished_is_said_after_the_replay_and_until_all_is_durable(void **unused)
{
    (void)unused;
    open_state(KEEP);
    call(ENI_MSG_CALL, 1);
    reply(EPOCH, 1, 0);
    returned(EPOCH + 1);
    finish();
    assert_int_equal(actions.n, 0);
    reply(EPOCH + 1, 1, 0);
    assert_int_equal(actions.n, 2);
    assert_int_equal(actions.item[1].header.type, ENI_MSG_FINISHED);
    assert_int_equal(answer(ENI_MSG_GOODBYE, EPOCH + 1, 0, 0), EN_OK);
    assert_int_equal(state.shards[0].goodbye, ENI_CLIENT_GOODBYE);
    returned(EPOCH + 2); /* it had not got it onto its disk */
    assert_int_equal(state.shards[0].goodbye, ENI_CLIENT_NO_GOODBYE);
    reply(EPOCH + 2, 1, 1);
    assert_int_equal(answer(ENI_MSG_GOODBYE, EPOCH + 2, 0, 1), EN_OK);
    assert_int_equal(state.shards[0].goodbye, ENI_CLIENT_GOODBYE_DURABLE);
    returned(EPOCH + 3);
    expect(ENI_CLIENT_RECOVERED); /* nothing to come back for */
}

#define TEST(function) cmocka_unit_test_teardown(function, close_state)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_answer_is_that_of_the_call_in_flight),
        TEST(what_makes_no_sense_is_an_error),
        TEST(a_refusal_ends_the_call_that_it_names),
        TEST(a_shard_that_came_back_gets_what_it_may_not_have),
        TEST(a_new_call_waits_for_the_replay),
        TEST(a_snapshot_waits_for_the_replay),
        TEST(without_room_it_asks_how_far_all_is_durable),
        TEST(what_is_overdue_is_sent_again),
        TEST(finished_is_said_after_the_replay_and_until_all_is_durable),
    };
    eni_log_set_level(ENI_LOG_ERROR - 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
