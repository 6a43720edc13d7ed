/* test_shard.c - one shard behind a real socket: a round of ps-sync, and everything that it must refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/crc32c.h"
#include "server/shard_impl.h"
#include "tests/server/shard_rig.h"

/* ---- tests --------------------------------------------------------------------------------------------- */

static void rounds_give_the_bytes_of_one_process(void **state)
{
    (void)state;
    enum { STEPS = 5 };
    rig *r = open_rig(NULL);
    float want[ELEMENTS];
    train_alone(WORLD, STEPS, want);
    hello(r, 0);
    hello(r, 1);
    say_init(r, 0);
    for (uint64_t t = 0; t < STEPS; t++)
        for (uint32_t b = 0; b < BUCKETS; b++) {
            say_push(r, (int)(t % 2), b, t);
            say_push(r, (int)((t + 1) % 2), b, t);
            for (int c = 0; c < WORLD; c++) {
                assert_int_equal(hear(r, c)->type, ENI_MSG_REPLY);
                assert_int_equal(r->heard.version, t + 1);
                assert_int_equal(r->heard.seq, t + 1);
                assert_int_equal(r->heard.bytes, counts[b] * sizeof(float));
                if (t + 1 == STEPS) assert_memory_equal(r->data, want + offsets[b], r->heard.bytes);
            }
        }
    close_rig(r);
}

static void a_finished_worker_releases_the_other(void **state)
{
    (void)state;
    rig *r = open_rig(NULL);
    hello(r, 0);
    hello(r, 1);
    say_init(r, 0);
    say_push(r, 0, 2, 0);
    const eni_header bye = header_of(1, ENI_MSG_FINISHED);
    say(r, 1, &bye, NULL);
    assert_int_equal(hear(r, 1)->type, ENI_MSG_GOODBYE);
    assert_int_equal(hear(r, 0)->type, ENI_MSG_REPLY);
    assert_int_equal(r->heard.version, 1);
    close_rig(r);
}

static void without_the_token_nothing_is_believed(void **state)
{
    (void)state;
    rig *r = open_rig(NULL);
    eni_header header = header_of(0, ENI_MSG_HELLO);
    say(r, 0, &header, NULL);
    expect_refused(r, 0, EN_EDENIED, "token");
    memset(header.text, 'a', 32);
    say(r, 0, &header, NULL);
    expect_refused(r, 0, EN_EDENIED, "token");
    eni_token_hex(&r->token, header.text);
    header.epoch = 2;
    say(r, 0, &header, NULL);
    expect_refused(r, 0, EN_EMEMBER, "epoch 2");
    say_push(r, 0, 0, 0);
    expect_refused(r, 0, EN_EDENIED, "HELLO");
    hello(r, 0);
    say_push(r, 1, 0, 0); /* rank 1 has not sent it */
    expect_refused(r, 1, EN_EDENIED, "HELLO");
    const eni_header other = header_of(0, ENI_MSG_FINISHED);
    say(r, 1, &other, NULL); /* over rank 1's connection, as rank 0 */
    expect_refused(r, 1, EN_EDENIED, "HELLO");
    close_rig(r);
}

static void what_makes_no_sense_is_refused_and_counted(void **state)
{
    (void)state;
    rig *r = open_rig(NULL);
    float g[MOST] = {0};
    hello(r, 0);
    hello(r, 1);
    say_init(r, 1); /* three refusals: not rank 0's */
    say_init(r, 0);
    eni_header header = call_of(0, 0, 0);
    header.bytes = 64;
    header.count = 16;
    say(r, 0, &header, g);
    expect_refused(r, 0, EN_EPROTO, "64 bytes");
    header = call_of(0, 2, 0);
    header.bucket = 77;
    say(r, 0, &header, g);
    expect_refused(r, 0, EN_EPROTO, "bucket 77");
    header = call_of(0, 0, 0);
    header.flags = ENI_FLAG_SHM; /* in memory that it never handed over */
    say(r, 0, &header, NULL);
    expect_refused(r, 0, EN_EPROTO, "slot 0");
    header = call_of(0, 0, 4);
    header.base_version = 0;
    say(r, 0, &header, g);
    expect_refused(r, 0, EN_EPROTO, "gap");
    header = header_of(0, ENI_MSG_WELCOME);
    say(r, 0, &header, NULL);
    expect_refused(r, 0, EN_EPROTO, "type 2");
    eni_shard_figures figures = {0};
    assert_int_equal(eni_shard_look(r->shard, copy_figures, &figures), EN_OK);
    assert_int_equal(figures.refused, 8);
    assert_int_equal(figures.refusals.payload, 3);
    say_push(r, 0, 0, 0); /* and the shard goes on */
    say_push(r, 1, 0, 0);
    assert_int_equal(hear(r, 0)->type, ENI_MSG_REPLY);
    close_rig(r);
}

/* Weights for rank 0's curve are kept under a number while training goes on, and returned later. */
static void weights_are_kept_when_rank_0_says_so(void **state)
{
    (void)state;
    rig *r = open_rig(NULL);
    eni_header header = header_of(0, ENI_MSG_SNAPSHOT);
    hello(r, 0);
    hello(r, 1);
    say_init(r, 0);
    header.kind = ENI_SNAPSHOT_KEEP;
    header.step = 7;
    say(r, 0, &header, NULL); /* not answered */
    for (int c = 0; c < WORLD; c++)
        say_push(r, c, 0, 0);
    for (int c = 0; c < WORLD; c++)
        assert_int_equal(hear(r, c)->version, 1);
    header.step = 8;
    say(r, 0, &header, NULL);
    header.kind = ENI_SNAPSHOT_KEPT;
    for (uint32_t b = 0; b < BUCKETS; b++) {
        header.bucket = b;
        header.step = 7;
        say(r, 0, &header, NULL);
        assert_int_equal(hear(r, 0)->version, 0);
        assert_int_equal(r->heard.bytes, counts[b] * sizeof(float));
        for (uint64_t i = 0; i < counts[b]; i++)
            assert_true(r->data[i] == weight_at(offsets[b] + i));
    }
    header.bucket = 0;
    header.step = 8;
    say(r, 0, &header, NULL);
    assert_int_equal(hear(r, 0)->version, 1);
    for (uint64_t gone = 7; gone <= 9;
         gone += 2) { /* the one before is freed, and the one after never existed */
        header.step = gone;
        say(r, 0, &header, NULL);
        assert_true(hear(r, 0)->version == ENI_KEPT_NOWHERE && r->heard.bytes == 0);
    }
    header.bucket = 77;
    say(r, 0, &header, NULL);
    expect_refused(r, 0, EN_EPROTO, "bucket 77");
    header.rank = 1;
    say(r, 1, &header, NULL);
    expect_refused(r, 1, EN_EPROTO, "rank 1");
    close_rig(r);
}

/* A wrong checksum: the payload is refused, counted, and not added; the same call with a right one is then
 * accepted. */
static void a_damaged_payload_is_never_added(void **state)
{
    (void)state;
    rig *r = open_rig(NULL);
    float g[MOST] = {0};
    hello(r, 0);
    hello(r, 1);
    say_init(r, 0);
    eni_header header = call_of(0, 0, 0);
    header.flags = ENI_FLAG_CRC;
    header.crc = eni_crc32c(0, g, header.bytes) ^ 1;
    say(r, 0, &header, g);
    expect_refused(r, 0, EN_EPROTO, "damaged");
    eni_shard_figures figures = {0};
    assert_int_equal(eni_shard_look(r->shard, copy_figures, &figures), EN_OK);
    assert_int_equal(figures.refusals.damaged, 1);
    header.crc ^= 1;
    say(r, 0, &header, g); /* no gap: the first one was never accepted */
    say_push(r, 1, 0, 0);
    assert_int_equal(hear(r, 0)->type, ENI_MSG_REPLY);
    close_rig(r);
}

/* Captured messages of an honest worker, sent again: over another connection they are refused, over its own
 * they are answered without being applied. */
static void a_replayed_frame_is_not_applied(void **state)
{
    (void)state;
    rig *r = open_rig(NULL);
    float g[MOST] = {1};
    hello(r, 0);
    hello(r, 1);
    say_init(r, 0);
    eni_header captured = call_of(0, 0, 0);
    say(r, 0, &captured, g);
    say_push(r, 1, 0, 0);
    const uint64_t version = hear(r, 0)->version;
    assert_int_equal(hear(r, 1)->version, version);
    say(r, 1, &captured, g);
    expect_refused(r, 1, EN_EDENIED, "HELLO");
    say(r, 0, &captured, g);
    const eni_header *again = hear(r, 0);
    assert_int_equal(again->type, ENI_MSG_REPLY);
    assert_true(again->flags & ENI_FLAG_REPEAT);
    assert_int_equal(again->version, version);
    eni_shard_figures figures = {0};
    assert_int_equal(eni_shard_look(r->shard, copy_figures, &figures), EN_OK);
    assert_int_equal(figures.refusals.unknown, 1);
    close_rig(r);
}

static void bytes_of_an_unauthenticated_peer_do_no_harm(void **state)
{
    (void)state;
    rig *r = open_rig(NULL);
    for (int i = 0; i < 4; i++) {
        int fd;
        uint8_t bytes[4096];
        for (size_t k = 0; k < sizeof bytes; k++)
            bytes[k] = (uint8_t)(k * 37 + (size_t)i);
        assert_int_equal(eni_tcp_connect(&r->address, eni_now_ns() + ENI_SECOND, -1, &fd), EN_OK);
        size_t done;
        (void)eni_tcp_send_some(fd, bytes, sizeof bytes, &done);
        close(fd);
    }
    hello(r, 0);
    close_rig(r);
}

static void an_emulated_wire_delays_by_what_it_says(void **state)
{
    (void)state;
    const int64_t delay_ns = 30 * ENI_MILLI;
    eni_shaper *mine = eni_shaper_new(0, delay_ns), *theirs = eni_shaper_new(0, delay_ns);
    rig *r = open_rig(theirs);
    hello(r, 0);
    say_init(r, 0);
    eni_header header = header_of(0, ENI_MSG_SNAPSHOT);
    const int64_t begin = eni_now_ns();
    header.deliver_ns = eni_shaper_send(mine, begin, 128);
    say(r, 0, &header, NULL);
    hear(r, 0);
    assert_true(eni_now_ns() - begin >= delay_ns);            /* held by the shard */
    assert_true(r->heard.deliver_ns - begin >= 2 * delay_ns); /* and to be held by the client */
    close_rig(r);
    eni_shaper_free(mine);
    eni_shaper_free(theirs);
}

/* Rank 0 hands over two messages at once, rank 1 one a tenth of a message later: it comes second, not third. */
static void a_sender_ahead_does_not_overtake_the_others(void **state)
{
    (void)state;
    const uint64_t rate = 1280; /* bytes a second: 100 ms for a message without payload */
    eni_shaper *nic[] = {eni_shaper_new(rate, 0), eni_shaper_new(rate, 0)}, *theirs = eni_shaper_new(rate, 0);
    rig *r = open_rig(theirs);
    hello(r, 0);
    hello(r, 1);
    say_init(r, 0);
    const int64_t begin = eni_now_ns();
    for (int i = 0; i < 3; i++) {
        const int c = i / 2;
        eni_header header = header_of(c, ENI_MSG_SNAPSHOT);
        header.deliver_ns = eni_shaper_send(nic[c], begin + 10 * ENI_MILLI * c, 128);
        say(r, c, &header, NULL);
    }
    hear(r, 0);
    const int64_t last = hear(r, 0)->deliver_ns;
    assert_true(hear(r, 1)->deliver_ns < last);
    close_rig(r);
    for (int c = 0; c < 2; c++)
        eni_shaper_free(nic[c]);
    eni_shaper_free(theirs);
}

/* A caller sets the attention flag and then writes to event_fd; the shard may have looked in between. */
static void an_idle_shard_uses_no_time(void **state)
{
    (void)state;
    rig *r = open_rig(NULL);
    const uint64_t one = 1;
    const int64_t deadline = eni_now_ns() + 30 * ENI_SECOND;
    struct timespec begin, end;
    hello(r, 0);
    atomic_store(&r->shard->attention, 1);
    while (atomic_load(&r->shard->attention) != 0 && eni_now_ns() < deadline)
        eni_sleep_until(eni_now_ns() + ENI_MILLI);
    assert_int_equal(atomic_load(&r->shard->attention), 0);
    assert_int_equal(write(r->shard->event_fd, &one, sizeof one), sizeof one);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    eni_sleep_until(eni_now_ns() + 200 * ENI_MILLI);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    const int64_t used = (end.tv_sec - begin.tv_sec) * ENI_SECOND + (end.tv_nsec - begin.tv_nsec);
    assert_true(used < 20 * ENI_MILLI);
    close_rig(r);
}

int main(void)
{
    eni_log_set_level(ENI_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_give_the_bytes_of_one_process),
        cmocka_unit_test(a_finished_worker_releases_the_other),
        cmocka_unit_test(without_the_token_nothing_is_believed),
        cmocka_unit_test(what_makes_no_sense_is_refused_and_counted),
        cmocka_unit_test(a_damaged_payload_is_never_added),
        cmocka_unit_test(weights_are_kept_when_rank_0_says_so),
        cmocka_unit_test(a_replayed_frame_is_not_applied),
        cmocka_unit_test(bytes_of_an_unauthenticated_peer_do_no_harm),
        cmocka_unit_test(an_emulated_wire_delays_by_what_it_says),
        cmocka_unit_test(a_sender_ahead_does_not_overtake_the_others),
        cmocka_unit_test(an_idle_shard_uses_no_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
