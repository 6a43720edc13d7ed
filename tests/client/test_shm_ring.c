/* test_shm_ring.c - messages without a socket: they arrive once and in order, a shard that sleeps is woken,
 * and what a client writes there is believed no more than what comes from a socket.
 *
 * The shard of most tests is a real thread on the client's own mapping, so that ThreadSanitizer sees both. */
#include "runtime/client/shm_ring.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/log.h"

enum { SHARDS = 2, PARTITIONS = 20, SLOTS = 32, ROUNDS = 20000 };

typedef struct shard {
    eni_shm_ring *ring;
    uint32_t number;
    int doorbell_fd;
    atomic_int is_stopping, sleeps;
    uint64_t taken;
    pthread_t thread;
} shard;

static struct scene {
    eni_shm_ring *client;
    shard shard[SHARDS];
} s;

static en_status await(void)
{
    static const eni_alive everybody;
    return eni_shm_ring_await(s.client, eni_now_ns() + 20 * ENI_SECOND, &everybody);
}

static eni_header question(uint64_t seq)
{
    return (eni_header){.type = ENI_MSG_CALL, .bucket = (uint32_t)(seq % PARTITIONS), .seq = seq, .kind = 1};
}

static int setup(void **state)
{
    (void)state;
    memset(&s, 0, sizeof s);
    if (eni_shm_ring_open(SHARDS, PARTITIONS, &s.client) != EN_OK) return -1;
    for (uint32_t k = 0; k < SHARDS; k++) {
        s.shard[k].number = k;
        s.shard[k].doorbell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        eni_shm_ring_set_doorbell(s.client, k, dup(s.shard[k].doorbell_fd));
        if (eni_shm_ring_map(eni_shm_ring_fd(s.client), SHARDS, eni_shm_ring_slots(s.client),
                             &s.shard[k].ring) != EN_OK)
            return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int k = 0; k < SHARDS; k++) {
        eni_shm_ring_close(s.shard[k].ring);
        close(s.shard[k].doorbell_fd);
    }
    eni_shm_ring_close(s.client);
    return 0;
}

/* ---- a shard that answers every message, and sleeps as soon as there is none ---- */

static int answer_all(shard *l)
{
    eni_header header;
    const char *why;
    int n = 0;
    for (en_status st; (st = eni_shm_ring_take(l->ring, l->number, &header, &why)) != EN_ETIMEOUT; n++) {
        if (st != EN_OK || header.seq != l->taken + 1) return -1; /* each once, in order */
        l->taken++;
        header.type = ENI_MSG_REPLY;
        header.version = 2 * header.seq;
        if (eni_shm_ring_answer(l->ring, l->number, &header) != EN_OK) return -1;
    }
    return n;
}

static void *run_shard(void *user)
{
    shard *l = user;
    uint64_t rings;
    while (!atomic_load(&l->is_stopping)) {
        eni_shm_ring_sleep(l->ring, l->number, 0);
        const int n = answer_all(l);
        if (n < 0) return l;
        if (n > 0) continue;
        eni_shm_ring_sleep(l->ring, l->number, 1);
        if (eni_shm_ring_has_message(l->ring, l->number)) continue;
        struct pollfd wait = {.fd = l->doorbell_fd, .events = POLLIN};
        atomic_fetch_add(&l->sleeps, 1);
        if (poll(&wait, 1, 20000) != 1) return l; /* a doorbell was forgotten */
        (void)!read(l->doorbell_fd, &rings, sizeof rings);
    }
    return NULL;
}

static void start_shards(void)
{
    for (int k = 0; k < SHARDS; k++)
        assert_int_equal(pthread_create(&s.shard[k].thread, NULL, run_shard, &s.shard[k]), 0);
}

static void stop_shards(void)
{
    const uint64_t one = 1;
    for (int k = 0; k < SHARDS; k++) {
        void *failed;
        atomic_store(&s.shard[k].is_stopping, 1);
        assert_int_equal(write(s.shard[k].doorbell_fd, &one, sizeof one), sizeof one);
        pthread_join(s.shard[k].thread, &failed);
        assert_null(failed);
    }
}

/* ---- tests ---- */

static void every_message_arrives_once_and_in_order(void **state)
{
    (void)state;
    uint64_t asked[SHARDS] = {0}, heard[SHARDS] = {0};
    start_shards();
    while (heard[0] + heard[1] < 2 * ROUNDS) {
        for (uint32_t k = 0; k < SHARDS; k++)
            while (asked[k] < ROUNDS && eni_shm_ring_may_post(s.client, k)) {
                const eni_header header = question(++asked[k]);
                eni_shm_ring_post(s.client, k, &header);
                if (asked[k] % 7 == 0) break; /* bursts of all lengths */
            }
        assert_true(eni_shm_ring_unanswered(s.client) == asked[0] + asked[1] - heard[0] - heard[1]);
        eni_header header;
        uint64_t before = heard[0] + heard[1];
        for (uint32_t k = 0; k < SHARDS; k++)
            for (en_status st; (st = eni_shm_ring_poll(s.client, k, &header)) != EN_ETIMEOUT;) {
                assert_int_equal(st, EN_OK);
                assert_int_equal(header.type, ENI_MSG_REPLY);
                assert_true(header.seq == ++heard[k] && header.version == 2 * header.seq);
            }
        if (before == heard[0] + heard[1] && eni_shm_ring_unanswered(s.client) > 0)
            assert_int_equal(await(), EN_OK);
    }
    assert_int_equal(eni_shm_ring_unanswered(s.client), 0);
    stop_shards();
}

/* One message at a time: the shard sleeps before nearly every one. */
static void who_sleeps_is_woken(void **state)
{
    (void)state;
    eni_header header;
    start_shards();
    for (uint64_t seq = 1; seq <= 50; seq++) {
        const int64_t until = eni_now_ns() + 20 * ENI_SECOND;
        while (atomic_load(&s.shard[1].sleeps) < (int)seq) /* counts itself, then sleeps */
            assert_true(eni_now_ns() < until);
        const eni_header ask = question(seq);
        eni_shm_ring_post(s.client, 1, &ask);
        while (eni_shm_ring_poll(s.client, 1, &header) == EN_ETIMEOUT)
            assert_int_equal(await(), EN_OK);
        assert_true(header.seq == seq);
    }
    stop_shards();
}

static en_status is_dead(void *user)
{
    (void)user;
    return EN_EPEER;
}

static void the_wait_ends_when_nobody_lives(void **state)
{
    (void)state;
    const eni_alive dead = {is_dead, NULL, -1}, everybody = {0};
    const eni_header ask = question(1);
    eni_shm_ring_post(s.client, 0, &ask);
    assert_int_equal(eni_shm_ring_await(s.client, INT64_MAX, &dead), EN_EPEER);
    assert_int_equal(eni_shm_ring_await(s.client, eni_now_ns(), &everybody), EN_ETIMEOUT);
}

static void there_is_room_for_every_partition(void **state)
{
    (void)state;
    eni_header header;
    const char *why;
    assert_int_equal(eni_shm_ring_slots(s.client), SLOTS);
    for (uint64_t seq = 1; seq <= SLOTS; seq++) {
        assert_true(eni_shm_ring_may_post(s.client, 0));
        header = question(seq);
        eni_shm_ring_post(s.client, 0, &header);
    }
    assert_false(eni_shm_ring_may_post(s.client, 0));
    assert_true(eni_shm_ring_may_post(s.client, 1));
    eni_shm_ring *theirs = s.shard[0].ring;
    for (uint64_t seq = 1; seq <= SLOTS; seq++) {
        assert_int_equal(eni_shm_ring_take(theirs, 0, &header, &why), EN_OK);
        assert_int_equal(eni_shm_ring_answer(theirs, 0, &header), EN_OK);
    }
    assert_int_equal(eni_shm_ring_answer(theirs, 0, &header), EN_ETIMEOUT); /* nobody reads */
    assert_false(eni_shm_ring_may_post(s.client, 0));
    assert_int_equal(eni_shm_ring_poll(s.client, 0, &header), EN_OK);
    assert_true(eni_shm_ring_may_post(s.client, 0));
}

/* The largest header has room; a text that is as long as can be comes whole. */
static void the_largest_header_fits(void **state)
{
    (void)state;
    eni_header in = {.type = ENI_MSG_REFUSED, .flags = 63, .epoch = UINT32_MAX, .rank = 65535};
    eni_header out;
    const char *why;
    in.bucket = in.shard = in.crc = in.slot = in.into = UINT32_MAX;
    in.kind = in.status = 255;
    in.incarnation = in.seq = in.base_version = in.version = in.stable = in.nsamples = in.step = UINT64_MAX;
    in.deliver_ns = INT64_MAX;
    memset(in.text, 'x', sizeof in.text - 1);
    eni_shm_ring_post(s.client, 0, &in);
    assert_int_equal(eni_shm_ring_take(s.shard[0].ring, 0, &out, &why), EN_OK);
    assert_string_equal(out.text, in.text);
    assert_true(out.seq == UINT64_MAX && out.into == UINT32_MAX);
}

/* ---- who writes nonsense ---- */

/* The words of shm_ring.c's layout, as somebody who means harm would find them. */
static uint8_t *raw(void)
{
    static const size_t bytes = 4096 + SHARDS * ((192 + 2 * SLOTS * 512 + 4095) / 4096 * 4096);
    uint8_t *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, eni_shm_ring_fd(s.client), 0);
    assert_true(at != MAP_FAILED);
    return at;
}

static void bad_bytes_are_told_and_passed_over(void **state)
{
    (void)state;
    uint8_t *memory = raw(), *slot = memory + 4096 + 192;
    eni_shm_ring *theirs = s.shard[0].ring;
    eni_header header;
    const char *why = NULL;
    for (int i = 0; i < 3; i++) {
        const eni_header ask = question((uint64_t)i + 1);
        eni_shm_ring_post(s.client, 0, &ask);
    }
    const uint32_t endless = UINT32_MAX;
    memcpy(slot, &endless, sizeof endless); /* longer than its place */
    memset(slot + 512 + 4, 0xc1, 20);       /* no header */
    assert_int_equal(eni_shm_ring_take(theirs, 0, &header, &why), EN_EPROTO);
    assert_non_null(strstr(why, "slot"));
    assert_int_equal(eni_shm_ring_take(theirs, 0, &header, &why), EN_EPROTO);
    assert_int_equal(eni_shm_ring_take(theirs, 0, &header, &why), EN_OK);
    assert_true(header.seq == 3);
    assert_int_equal(eni_shm_ring_take(theirs, 0, &header, &why), EN_ETIMEOUT);
}

static void a_counter_that_lies_ends_it(void **state)
{
    (void)state;
    uint64_t *asked = (uint64_t *)(void *)(raw() + 4096);
    eni_shm_ring *theirs = s.shard[0].ring;
    eni_header header;
    const char *why;
    const eni_header ask = question(1);
    eni_shm_ring_post(s.client, 0, &ask);
    assert_int_equal(*asked, 1);
    *asked = SLOTS + 1;
    assert_int_equal(eni_shm_ring_take(theirs, 0, &header, &why), EN_EMISMATCH);
    *asked = 1;
    assert_int_equal(eni_shm_ring_take(theirs, 0, &header, &why), EN_ETIMEOUT); /* too late */
    assert_false(eni_shm_ring_has_message(theirs, 0));
}

static void an_answer_to_nothing_is_refused(void **state)
{
    (void)state;
    eni_header header = question(1);
    eni_log_set_level(-1);
    assert_int_equal(eni_shm_ring_answer(s.shard[0].ring, 0, &header), EN_OK);
    assert_int_equal(eni_shm_ring_poll(s.client, 0, &header), EN_EPROTO);
    eni_log_set_level(ENI_LOG_INFO);
}

static void unauthenticated_peers_are_refused(void **state)
{
    (void)state;
    eni_shm_ring *ring = NULL;
    const int plain = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING), mine = eni_shm_ring_fd(s.client);
    eni_log_set_level(-1);
    assert_int_equal(ftruncate(plain, 1 << 20), 0);
    assert_int_equal(eni_shm_ring_map(plain, SHARDS, SLOTS, &ring),
                     EN_EPROTO); /* could be cut off under us */
    assert_int_equal(eni_shm_ring_map(mine, SHARDS + 1, SLOTS, &ring), EN_EPROTO);
    assert_int_equal(eni_shm_ring_map(mine, SHARDS, 2 * SLOTS, &ring), EN_EPROTO);
    assert_int_equal(eni_shm_ring_map(mine, SHARDS, 0, &ring), EN_EPROTO);
    assert_int_equal(eni_shm_ring_map(mine, SHARDS, UINT32_MAX, &ring), EN_EPROTO);
    assert_int_equal(eni_shm_ring_map(mine, UINT32_MAX, SLOTS, &ring), EN_EPROTO);
    assert_null(ring);
    eni_log_set_level(ENI_LOG_INFO);
    close(plain);
    assert_int_equal(eni_shm_ring_map(mine, SHARDS, SLOTS, &ring), EN_OK);
    const eni_header ask = question(1);
    eni_header header;
    const char *why;
    eni_shm_ring_post(s.client, 1, &ask);
    assert_int_equal(eni_shm_ring_take(ring, 1, &header, &why), EN_OK); /* through a mapping of its own */
    eni_shm_ring_close(ring);
    assert_int_equal(eni_shm_ring_open(SHARDS, ENI_SHM_RING_SLOTS + 1, &ring), EN_EUNSUPPORTED);
    assert_int_equal(eni_shm_ring_open(ENI_SHM_RING_SHARDS + 1, 1, &ring), EN_EUNSUPPORTED);
    eni_shm_ring_close(NULL);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_message_arrives_once_and_in_order),
        TEST(who_sleeps_is_woken),
        TEST(the_wait_ends_when_nobody_lives),
        TEST(there_is_room_for_every_partition),
        TEST(the_largest_header_fits),
        TEST(bad_bytes_are_told_and_passed_over),
        TEST(a_counter_that_lies_ends_it),
        TEST(an_answer_to_nothing_is_refused),
        TEST(unauthenticated_peers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
