/* test_refused.c - a member that has shown the token and then breaks the protocol: it is named, and the run
 * ends, whatever it sent. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "crew.h"
#include "runtime/control/message.h"

/* Rank 1 by hand: JOIN as a member would send it. */
static eni_link join_by_hand_with(const crew *c, const eni_key_value *said, uint32_t nsaid)
{
    eni_link link;
    int fd;
    eni_message join = {.type = ENI_CTL_JOIN,
                        .token = c->config.token,
                        .rank = 1,
                        .nranks = 2,
                        .pid = 4711,
                        .host = "x",
                        .host_id = "x/1",
                        .key_values = {.pair = said, .n = nsaid}};
    assert_int_equal(eni_tcp_connect(eni_leader_address(c->leader), crew_soon(), -1, &fd), EN_OK);
    eni_link_init(&link, fd);
    assert_int_equal(eni_message_put(&link, &join), EN_OK);
    assert_int_equal(eni_tcp_send(fd, link.out.data, link.out.bytes, crew_soon(), -1), EN_OK);
    eni_pack_drop(&link.out, link.out.bytes);
    return link;
}

static eni_link join_by_hand(const crew *c)
{
    return join_by_hand_with(c, NULL, 0);
}

/* It may be the last one: the end of the stream is read with it. */
static eni_message await_message(eni_link *link, uint32_t type)
{
    eni_message m = {0};
    eni_span frame;
    for (en_status st = EN_OK;; st = eni_link_read(link)) {
        while (eni_link_next(link, &frame) == EN_OK) {
            assert_int_equal(eni_message_get(frame.data, frame.bytes, &m, NULL), EN_OK);
            if (m.type == type) return m;
        }
        assert_int_equal(st, EN_OK);
        assert_int_equal(eni_tcp_wait(link->fd, POLLIN, crew_soon(), -1), EN_OK);
    }
}

/* Waits until it is declared lost, or disconnected. */
static void hang_up_when_told(eni_link *link)
{
    eni_message m = {0};
    eni_span frame;
    en_status st = EN_OK;
    while (st == EN_OK && m.type != ENI_CTL_DEAD) {
        assert_int_equal(eni_tcp_wait(link->fd, POLLIN, crew_soon(), -1), EN_OK);
        st = eni_link_read(link);
        while (m.type != ENI_CTL_DEAD && eni_link_next(link, &frame) == EN_OK)
            assert_int_equal(eni_message_get(frame.data, frame.bytes, &m, NULL), EN_OK);
    }
    eni_link_fini(link);
}

static void *open_hand(void *argument)
{
    crew_hand *hand = argument;
    hand->status = eni_member_open(&hand->config, &hand->member);
    return NULL;
}

/* A run of rank 0 and a rank 1 that sends these bytes, right after WELCOME or (is_early) before it. */
static void assert_refused(const void *bytes, size_t length, bool is_early, const char *words)
{
    crew c;
    crew_init(&c, 2);
    assert_true(crew_start(&c));
    eni_link link = join_by_hand(&c);
    await_message(&link, ENI_CTL_LEADER);
    if (!is_early) {
        pthread_create(&c.hand[0].thread, NULL, open_hand, &c.hand[0]);
        await_message(&link, ENI_CTL_WELCOME);
        pthread_join(c.hand[0].thread, NULL);
    }
    assert_int_equal(eni_tcp_send(link.fd, bytes, length, crew_soon(), -1), EN_OK);
    hang_up_when_told(&link);
    assert_int_equal(eni_leader_wait(c.leader, crew_soon(), -1), EN_EPEER);
    assert_true(eni_leader_outcome(c.leader).has_death);
    const eni_death death = eni_leader_outcome(c.leader).death;
    assert_int_equal(death.rank, 1);
    assert_int_equal(death.pid, 4711);
    if (!crew_has(death.cause, words)) fail_msg("%s, not: %s", death.cause, words);
    if (!is_early) assert_int_equal(eni_member_verdict(c.hand[0].member, crew_soon()), EN_EPEER);
    crew_fini(&c);
}

static void say(const eni_message *m, bool is_early, const char *words)
{
    eni_link link;
    eni_link_init(&link, -1);
    assert_int_equal(eni_message_put(&link, m), EN_OK);
    assert_refused(link.out.data, link.out.bytes, is_early, words);
    eni_link_fini(&link);
}

static void what_is_not_due_is_refused(void **state)
{
    (void)state;
    static const char not_due[] = "unexpected message";
    const eni_message cases[] = {{.type = ENI_CTL_CLAIMED},  {.type = ENI_CTL_WELCOME, .nranks = 2},
                                 {.type = ENI_CTL_ADDED},    {.type = ENI_CTL_READY},
                                 {.type = ENI_CTL_STOPPING}, {.type = ENI_CTL_JOIN, .nranks = 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        eni_message m = cases[i];
        m.blob = (eni_span){(const uint8_t *)"", 0};
        say(&m, false, not_due);
    }
    say(&(eni_message){.type = ENI_CTL_CLAIM, .number = 1}, true, not_due);
    say(&(eni_message){.type = ENI_CTL_HEARTBEAT}, true, not_due);
    say(&(eni_message){.type = ENI_CTL_BYE}, true, not_due);
}

static void numbers_out_of_order_are_refused(void **state)
{
    (void)state;
    const eni_span nothing = {(const uint8_t *)"", 0};
    say(&(eni_message){.type = ENI_CTL_CLAIM, .number = 2}, false, "claim*order");
    say(&(eni_message){.type = ENI_CTL_CLAIM, .number = UINT64_MAX}, false, "claim*order");
    say(&(eni_message){.type = ENI_CTL_GATHER, .number = 2, .blob = nothing}, false, "gather*order");
    say(&(eni_message){.type = ENI_CTL_GATHER, .number = 0, .blob = nothing}, false, "gather*order");
    say(&(eni_message){.type = ENI_CTL_DONE, .number = 1}, false, "blobs");
}

static void broken_bytes_are_refused(void **state)
{
    (void)state;
    static const uint8_t unknown[] = {2, 0, 0, 0, 0x91, 99}, too_long[] = {0xff, 0xff, 0xff, 0x7f, 1},
                         empty[] = {0, 0, 0, 0}, not_msgpack[] = {3, 0, 0, 0, 0xc1, 0xc1, 0xc1},
                         half[] = {2, 0, 0, 0, 0x92, 3};
    for (int early = 0; early < 2; early++) {
        assert_refused(unknown, sizeof unknown, early, "type*unknown");
        assert_refused(too_long, sizeof too_long, early, "framing");
        assert_refused(empty, sizeof empty, early, "framing");
        assert_refused(not_msgpack, sizeof not_msgpack, early, "invalid message");
        assert_refused(half, sizeof half, early, "invalid message");
    }
}

/* A claim may be repeated, and gets the same answer. */
static void a_repeated_claim_gets_the_same_answer(void **state)
{
    (void)state;
    crew c;
    uint64_t index;
    crew_init(&c, 2);
    c.config.budget = 9;
    assert_true(crew_start(&c));
    eni_link link = join_by_hand(&c);
    pthread_create(&c.hand[0].thread, NULL, open_hand, &c.hand[0]);
    await_message(&link, ENI_CTL_WELCOME);
    pthread_join(c.hand[0].thread, NULL);
    for (int i = 0; i < 3; i++) {
        eni_message m = {.type = ENI_CTL_CLAIM, .number = 1}, answer;
        eni_span frame;
        assert_int_equal(eni_message_put(&link, &m), EN_OK);
        assert_int_equal(eni_link_flush(&link), EN_OK);
        do {
            while (eni_link_next(&link, &frame) != EN_OK) {
                assert_int_equal(eni_tcp_wait(link.fd, POLLIN, crew_soon(), -1), EN_OK);
                assert_int_equal(eni_link_read(&link), EN_OK);
            }
            assert_int_equal(eni_message_get(frame.data, frame.bytes, &answer, NULL), EN_OK);
        } while (answer.type != ENI_CTL_CLAIMED);
        assert_true(answer.has_index);
        assert_int_equal(answer.number, 1);
        assert_int_equal(answer.index, 0);
        assert_int_equal(eni_member_claim(c.hand[0].member, &index, crew_soon()), EN_OK);
        assert_int_equal(index, 1 + i);
    }
    eni_link_fini(&link);
    crew_fini(&c);
}

/* The token is right, but a name is not text. */
static void assert_join_refused(const eni_key_value *said, const char *words)
{
    crew c;
    crew_init(&c, 2);
    assert_true(crew_start(&c));
    eni_link link = join_by_hand_with(&c, said, 1);
    eni_message refused = await_message(&link, ENI_CTL_REFUSED);
    assert_int_equal(refused.status, EN_EINVAL);
    if (!crew_has(refused.reason, words)) fail_msg("%s, not: %s", refused.reason, words);
    eni_link_fini(&link);
    crew_join(&c, 0, 2); /* its connection is free for our own ranks */
    assert_int_equal(c.hand[0].status, EN_OK);
    assert_int_equal(c.hand[1].status, EN_OK);
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

static void names_that_are_no_text_are_refused(void **state)
{
    (void)state;
    static const char line[] = "tensor a\n09:00:00.000 E psd: no line of ours\x1b[2J";
    assert_join_refused(&(eni_key_value){line, "number 0, shape (1)"}, "control character");
    assert_join_refused(&(eni_key_value){"tensor \xc3(", "number 0, shape (1)"}, "UTF-8");
    assert_join_refused(&(eni_key_value){"tensor a", "number 0\rshape (1)"}, "value of \"tensor a\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_due_is_refused), cmocka_unit_test(numbers_out_of_order_are_refused),
        cmocka_unit_test(names_that_are_no_text_are_refused), cmocka_unit_test(broken_bytes_are_refused),
        cmocka_unit_test(a_repeated_claim_gets_the_same_answer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
