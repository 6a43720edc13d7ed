/* test_replay.c - what a client sends to a shard that comes back (client_step.h): first the last call that
 * was durable, then, each after the answer to the one before, those that were not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/client/client_step.h"

enum { COUNT = 4, KEEP = 8 };

static eni_client_state client;
static eni_client_actions actions;
static float gradient[COUNT];

static void step(const eni_client_event *event)
{
    assert_int_equal(eni_client_step(&client, event, &actions), EN_OK);
}

/* The only message that leaves in this step is the call with this seq. */
static void expect_sent(uint64_t seq)
{
    uint64_t sent = 0;
    int n = 0;
    for (uint32_t i = 0; i < actions.n; i++)
        if (actions.item[i].type == ENI_CLIENT_SEND) {
            assert_int_equal(actions.item[i].header.type, ENI_MSG_CALL);
            sent = actions.item[i].header.seq;
            n++;
        }
    assert_int_equal(n, 1);
    assert_int_equal(sent, seq);
}

static void shard_is_there(uint32_t epoch)
{
    step(&(eni_client_event){.type = ENI_CLIENT_RETURNED, .epoch = epoch});
}

static void call(void)
{
    const eni_header push = {.type = ENI_MSG_CALL, .kind = 1, .what = 1, .nsamples = 1};
    step(&(eni_client_event){.type = ENI_CLIENT_CALL, .message = &push, .payload = gradient});
}

static void answer(uint32_t epoch, uint64_t seq, uint64_t stable)
{
    const eni_header reply = {
        .type = ENI_MSG_REPLY, .epoch = epoch, .seq = seq, .version = seq, .stable = stable, .count = COUNT};
    step(&(eni_client_event){.type = ENI_CLIENT_ANSWER, .message = &reply});
}

static void a_replay_begins_with_the_last_stable_call(void **state)
{
    (void)state;
    assert_int_equal(eni_client_state_init(&client, 1, 1, 0, 1, KEEP), EN_OK);
    shard_is_there(1);
    eni_client_partition_at(&client, 0, 0)->count = COUNT;
    for (uint64_t seq = 1; seq <= 3; seq++) {
        call();
        expect_sent(seq);
        answer(1, seq, seq == 3 ? 2 : 0);
    }
    call();
    expect_sent(4);
    shard_is_there(2);
    expect_sent(2);
    answer(2, 2, 2);
    expect_sent(3);
    answer(2, 3, 2);
    expect_sent(4);
    answer(2, 4, 2);
    eni_client_state_fini(&client);
    eni_client_actions_fini(&actions);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_replay_begins_with_the_last_stable_call)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
