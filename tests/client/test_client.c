/* test_client.c - the worker's side of the server against shards that answer late, twice, wrong or never.
 *
 * Two shards are two threads with a real router each; what a shard does with a call is the call's kind. */
#include "runtime/client/client.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/log.h"
#include "runtime/net/fdpass.h"
#include "tests/client/fake_shard.h"

enum { COUNT = 16 + 32768 + 64, WEIGHT_BYTES = (COUNT * 4 + 4095) / 4096 * 4096 };

/* From the end: bucket 0 is c, 1 is the big one (sent without a copy), 2 is a: too short for two shards. */
enum { C, BIG, A };
static const en_model_tensor tensors[] = {
    {.name = "a", .offset = 0, .count = 16, .ndim = 2, .shape = {4, 4}},
    {.name = "big", .offset = 16, .count = 32768, .ndim = 2, .shape = {256, 128}},
    {.name = "c", .offset = 32784, .count = 64, .ndim = 2, .shape = {8, 8}}};

/* ---- psd's door for arenas ---- */

static struct scene {
    eni_net *net, *psd_net;
    shard shard[SHARDS];
    char endpoint_text[SHARDS][ENI_ADDRESS_TEXT];
    eni_endpoints psd;
    char door_name[ENI_FDPASS_NAME];
    int door_fd;
    int32_t door_answer;
    int weights_fd; /* of psd; -1: it offers none */
    float *weights;
    pthread_t door;
    eni_arena *mapped;
    eni_token token;
    eni_arena *arena;
    eni_buckets *buckets;
    eni_client_config config;
    eni_client *client;
    atomic_int peers; /* an en_status */
    int errors;
    char said[512];
} s;

static void *door_main(void *user)
{
    (void)user;
    eni_arena_hello hello;
    int fd, fds[ENI_FDPASS_MAX];
    size_t nfds, bytes;
    int64_t until = eni_now_ns() + 10 * ENI_SECOND;
    if (eni_fdpass_accept(s.door_fd, &s.token, until, -1, &fd) != EN_OK) return NULL;
    eni_arena_answer answer = {.status = EN_EPROTO};
    if (eni_fdpass_recv(fd, fds, &nfds, &hello, sizeof hello, &bytes, until, -1) == EN_OK) {
        if (nfds == 2 && bytes == sizeof hello) /* these shards take no ring */
            answer.status = (int32_t)eni_arena_map(fds[0], hello.count, &s.mapped);
        for (size_t i = 0; i < nfds; i++)
            close(fds[i]);
        for (int k = 0; k < SHARDS; k++)
            s.shard[k].arena = s.mapped; /* before HELLO, so before the shard reads it */
        if (s.door_answer != EN_OK) answer.status = s.door_answer;
        answer.has_weights = s.weights_fd >= 0;
        eni_fdpass_send(fd, &s.weights_fd, answer.has_weights, &answer, sizeof answer, until, -1);
    }
    close(fd);
    return NULL;
}

/* ---- the scene ---- */

static void listen_in(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)subsystem;
    if (level != ENI_LOG_ERROR) return;
    s.errors++;
    snprintf(s.said, sizeof s.said, "%s", text);
}

static en_status alive(void *user)
{
    (void)user;
    return (en_status)atomic_load(&s.peers);
}

static int setup(void **state)
{
    (void)state;
    memset(&s, 0, sizeof s);
    s.door_fd = s.weights_fd = -1;
    eni_log_set_sink(listen_in, NULL);
    eni_token_make(&s.token);
    const eni_address any = {.host = "127.0.0.1", .port = 0};
    if (eni_net_open(1, &s.net) != EN_OK || eni_net_open(1, &s.psd_net) != EN_OK) return -1;
    if (eni_arena_open(COUNT, 6, 1, &s.arena) != EN_OK) return -1;
    if (eni_buckets_new(tensors, 3, COUNT, 131072, &s.buckets) != EN_OK || s.buckets->n != BUCKETS) return -1;
    for (int k = 0; k < SHARDS; k++) {
        eni_address bound;
        s.shard[k].index = k;
        s.shard[k].buckets = s.buckets;
        eni_token_hex(&s.token, s.shard[k].token);
        if (eni_router_open(s.psd_net, &any, false, 0, &s.shard[k].router, &bound) != EN_OK) return -1;
        eni_address_format(&bound, s.endpoint_text[k]);
        s.psd.tcp[k] = s.endpoint_text[k];
        if (pthread_create(&s.shard[k].thread, NULL, shard_main, &s.shard[k]) != 0) return -1;
    }
    s.psd.shards = SHARDS;
    s.psd.epoch = 1;
    s.config = (eni_client_config){.net = s.net,
                                   .psd = &s.psd,
                                   .arena = s.arena,
                                   .buckets = s.buckets,
                                   .token = &s.token,
                                   .rank = 0,
                                   .incarnation = 5,
                                   .alive = alive,
                                   .wake_fd = -1,
                                   .join_deadline_ns = eni_now_ns() + 10 * ENI_SECOND};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    eni_client_close(s.client);
    for (int k = 0; k < SHARDS; k++) {
        atomic_store(&s.shard[k].is_stopping, 1);
        pthread_join(s.shard[k].thread, NULL);
        eni_router_close(s.shard[k].router);
    }
    eni_net_close(s.net);
    eni_net_close(s.psd_net);
    if (s.door_fd >= 0) pthread_join(s.door, NULL);
    if (s.door_fd >= 0) close(s.door_fd);
    if (s.weights_fd >= 0) close(s.weights_fd);
    if (s.weights != NULL) munmap(s.weights, WEIGHT_BYTES);
    eni_arena_close(s.mapped);
    eni_buckets_free(s.buckets);
    eni_arena_close(s.arena);
    eni_log_set_sink(NULL, NULL);
    return 0;
}

static void open_client(void)
{
    assert_int_equal(eni_client_open(&s.config, &s.client), EN_OK);
}

static void open_door(int32_t answer)
{
    s.door_answer = answer;
    assert_int_equal(eni_fdpass_listen(s.door_name, &s.door_fd), EN_OK);
    assert_int_equal(pthread_create(&s.door, NULL, door_main, NULL), 0);
    s.psd.arena_sockets[0] = s.door_name;
    s.psd.servers = 1;
}

/* grad of `bucket` counts from `first`; param is cleared. */
static void prepare(uint32_t bucket, float first)
{
    for (uint64_t i = s.buckets->bucket[bucket].lo; i < s.buckets->bucket[bucket].hi; i++) {
        *eni_arena_at(s.arena, ENI_SLOT_GRAD, i) = first + (float)(i % 1000);
        *eni_arena_at(s.arena, ENI_SLOT_PARAM, i) = -1;
    }
}

static en_status call(uint32_t bucket, uint32_t kind)
{
    return eni_client_call(
        s.client, bucket, ENI_SLOT_GRAD, ENI_SLOT_PARAM,
        &(eni_header){.type = ENI_MSG_CALL, .kind = kind, .what = 1, .nsamples = 8, .covered = 8, .step = 3});
}

/* param of `bucket` is twice what prepare left in grad. */
static void expect_doubled(uint32_t bucket, float first)
{
    for (uint64_t i = s.buckets->bucket[bucket].lo; i < s.buckets->bucket[bucket].hi; i++)
        if (*eni_arena_at(s.arena, ENI_SLOT_PARAM, i) != 2 * (first + (float)(i % 1000)))
            fail_msg("bucket %u, element %llu is %g", bucket, (unsigned long long)i,
                     (double)*eni_arena_at(s.arena, ENI_SLOT_PARAM, i));
}

/* ---- tests ---- */

static void round_trip_of_all(void)
{
    for (uint32_t b = 0; b < BUCKETS; b++) {
        prepare(b, (float)b);
        assert_int_equal(call(b, ECHO), EN_OK);
    }
    for (uint32_t b = BUCKETS; b-- > 0;)
        assert_int_equal(eni_client_wait(s.client, b), EN_OK);
    for (uint32_t b = 0; b < BUCKETS; b++)
        expect_doubled(b, (float)b);
}

static void test_payloads_by_message(void **state)
{
    (void)state;
    open_client();
    assert_false(eni_client_is_shared(s.client));
    round_trip_of_all();
    eni_client_counters count;
    eni_client_count(s.client, &count);
    assert_int_equal(count.payload_sent, COUNT * sizeof(float));
    assert_int_equal(count.payload_received, COUNT * sizeof(float));
    assert_int_equal(count.shm_bytes, 0);
    assert_true(count.wire_bytes > 2 * COUNT * sizeof(float));
    assert_true(count.wait_ns > 0);
    /* shard 1 has no part of a bucket of 16: nothing was sent for it */
    assert_int_equal(atomic_load(&s.shard[0].calls) + atomic_load(&s.shard[1].calls), 5);
    assert_int_equal(atomic_load(&s.shard[0].nsamples), 8);
    assert_int_equal(atomic_load(&s.shard[0].step), 3);
}

static void test_payloads_through_memory(void **state)
{
    (void)state;
    open_door(EN_OK);
    open_client();
    assert_true(eni_client_is_shared(s.client));
    round_trip_of_all();
    eni_client_counters count;
    eni_client_count(s.client, &count);
    assert_int_equal(count.payload_sent, COUNT * sizeof(float));
    assert_int_equal(count.payload_received, COUNT * sizeof(float));
    assert_int_equal(count.shm_bytes, 2 * COUNT * sizeof(float));
    assert_true(count.wire_bytes < 8192); /* headers only */
}

/* psd's weights, with `elements` in each place of param as prepare leaves it. */
static void offer_weights(void)
{
    s.weights_fd = memfd_create("weights", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(s.weights_fd, WEIGHT_BYTES), 0);
    assert_int_equal(fcntl(s.weights_fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    s.weights = mmap(NULL, WEIGHT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, s.weights_fd, 0);
    assert_true(s.weights != MAP_FAILED);
    for (int k = 0; k < SHARDS; k++)
        s.shard[k].weights = s.weights;
}

static void test_weights_are_read_where_psd_has_them(void **state)
{
    (void)state;
    bool is_mapped;
    offer_weights();
    open_door(EN_OK);
    open_client();
    for (uint32_t b = 0; b < BUCKETS; b++)
        prepare(b, (float)b);
    assert_int_equal(eni_client_map_weights(s.client, &is_mapped), EN_OK);
    assert_true(is_mapped);
    for (uint32_t b = 0; b < BUCKETS; b++)
        assert_int_equal(call(b, ECHO), EN_OK);
    for (uint32_t b = BUCKETS; b-- > 0;)
        assert_int_equal(eni_client_wait(s.client, b), EN_OK);
    for (uint32_t b = 0; b < BUCKETS; b++)
        expect_doubled(b, (float)b);
    assert_memory_equal(s.weights, eni_arena_at(s.arena, ENI_SLOT_PARAM, 0), COUNT * sizeof(float));
    assert_true(*eni_arena_at(s.mapped, ENI_SLOT_PARAM, 0) == -1); /* nothing was copied */
    eni_client_counters count;
    eni_client_count(s.client, &count);
    assert_int_equal(count.payload_received, COUNT * sizeof(float)); /* it counts all the same */
    assert_int_equal(count.shm_bytes, 2 * COUNT * sizeof(float));
    /* another slot gets a copy */
    assert_int_equal(eni_client_call(s.client, C, ENI_SLOT_NONE, ENI_SLOT_FREE,
                                     &(eni_header){.type = ENI_MSG_SNAPSHOT, .what = 3}),
                     EN_OK);
    assert_int_equal(eni_client_wait(s.client, C), EN_OK);
    assert_true(*eni_arena_at(s.arena, ENI_SLOT_FREE, s.buckets->bucket[C].lo + 1) == 1);
    /* weights that psd does not show where it said */
    assert_int_equal(call(C, COPY), EN_OK);
    assert_int_equal(eni_client_wait(s.client, C), EN_EPROTO);
    assert_non_null(strstr(s.said, "EN_ROUNDS"));
}

static void test_no_weights_to_map(void **state)
{
    (void)state;
    bool is_mapped = true;
    open_door(EN_OK);
    open_client();
    assert_int_equal(eni_client_map_weights(s.client, &is_mapped), EN_OK);
    assert_false(is_mapped);
    round_trip_of_all();
}

static void test_a_closed_door(void **state)
{
    (void)state;
    open_door(EN_ENOMEM);
    assert_int_equal(eni_client_open(&s.config, &s.client), EN_ENOMEM);
    assert_non_null(strstr(s.said, "map"));
    s.client = NULL;
}

static void test_versions(void **state)
{
    (void)state;
    open_client();
    assert_int_equal(eni_client_answered(s.client, C).version, 0);
    for (uint64_t i = 1; i <= 3; i++) {
        prepare(C, 0);
        assert_int_equal(call(C, ECHO), EN_OK);
        assert_int_equal(eni_client_wait(s.client, C), EN_OK);
        assert_int_equal(eni_client_answered(s.client, C).version, i);
        assert_int_equal(atomic_load(&s.shard[1].base[C]), i - 1); /* what it was computed on */
    }
    assert_int_equal(eni_client_answered(s.client, A).version, 0);
}

static void test_pull_init_and_snapshot(void **state)
{
    (void)state;
    open_client();
    assert_int_equal(eni_client_call(s.client, C, ENI_SLOT_PARAM, ENI_SLOT_NONE,
                                     &(eni_header){.type = ENI_MSG_INIT, .what = 3}),
                     EN_OK);
    assert_int_equal(eni_client_wait(s.client, C), EN_OK);
    assert_int_equal(atomic_load(&s.shard[0].inits) + atomic_load(&s.shard[1].inits), 2);
    prepare(C, 0);
    assert_int_equal(eni_client_call(s.client, C, ENI_SLOT_NONE, ENI_SLOT_PARAM,
                                     &(eni_header){.type = ENI_MSG_SNAPSHOT, .what = 3}),
                     EN_OK);
    assert_int_equal(eni_client_wait(s.client, C), EN_OK);
    const float *param = eni_arena_at(s.arena, ENI_SLOT_PARAM, s.buckets->bucket[C].lo);
    assert_true(param[0] == 0 && param[31] == 31 && param[32] == 0 && param[63] == 31); /* two partitions */
    assert_int_equal(
        eni_client_call(
            s.client, C, ENI_SLOT_GRAD, ENI_SLOT_NONE,
            &(eni_header){.type = ENI_MSG_CALL, .kind = ECHO, .what = 1, .nsamples = 8, .covered = 8}),
        EN_OK);
    assert_int_equal(eni_client_wait(s.client, C), EN_OK); /* a push whose answer nobody wants */
    assert_true(param[31] == 31);
}

static void test_out_of_order(void **state)
{
    (void)state;
    open_client();
    prepare(C, 5);
    prepare(BIG, 7);
    assert_int_equal(call(C, HOLD), EN_OK);
    assert_int_equal(call(BIG, ECHO), EN_OK); /* answered first */
    assert_int_equal(eni_client_wait(s.client, C), EN_OK);
    expect_doubled(C, 5);
    assert_int_equal(eni_client_wait(s.client, BIG), EN_OK);
    assert_int_equal(eni_client_wait(s.client, BIG), EN_OK); /* nothing in progress: at once */
    expect_doubled(BIG, 7);
}

static void test_no_second_call_in_flight(void **state)
{
    (void)state;
    open_client();
    prepare(C, 5);
    assert_int_equal(call(C, HOLD), EN_OK);
    assert_int_equal(call(C, ECHO), EN_EBUG);
    assert_non_null(strstr(s.said, "in progress"));
    prepare(BIG, 1);
    assert_int_equal(call(BIG, ECHO), EN_OK); /* frees the held one */
    assert_int_equal(eni_client_wait(s.client, C), EN_OK);
    expect_doubled(C, 5);
    assert_int_equal(eni_client_wait(s.client, BIG), EN_OK);
}

static void test_an_old_answer_is_not_taken(void **state)
{
    (void)state;
    open_client();
    prepare(C, 1);
    assert_int_equal(call(C, TWICE), EN_OK);
    assert_int_equal(eni_client_wait(s.client, C), EN_OK);
    prepare(C, 2);
    assert_int_equal(call(C, ECHO), EN_OK); /* the first's answer comes again before this one's */
    assert_int_equal(eni_client_wait(s.client, C), EN_OK);
    expect_doubled(C, 2);
    assert_int_equal(eni_client_answered(s.client, C).version, 2);
}

static void expect_failure(uint32_t kind, en_status status, const char *text)
{
    open_client();
    prepare(C, 1);
    assert_int_equal(call(C, kind), EN_OK);
    assert_int_equal(eni_client_wait(s.client, C), status);
    if (strstr(s.said, text) == NULL) fail_msg("said: %s", s.said);
}

static void test_refused(void **state)
{
    (void)state;
    expect_failure(REFUSE, EN_EMISMATCH, "not on a Sunday");
}

static void test_wrong_length(void **state)
{
    (void)state;
    expect_failure(SHORT, EN_EPROTO, "124 bytes of bucket 0");
    assert_non_null(strstr(s.said, "128"));
}

static void test_memory_that_was_not_shared(void **state)
{
    (void)state;
    expect_failure(LIE, EN_EPROTO, "shared memory");
}

static void test_a_bucket_that_is_not(void **state)
{
    (void)state;
    expect_failure(NOWHERE, EN_EPROTO, "bucket 99");
}

/* An emulated wire: the message is here, its contents are not yet. */
static void test_late_answers(void **state)
{
    (void)state;
    open_client();
    prepare(C, 1);
    prepare(BIG, 2);
    int64_t begin = eni_now_ns();
    assert_int_equal(call(C, LATE), EN_OK);
    assert_int_equal(call(BIG, ECHO), EN_OK);
    assert_int_equal(eni_client_wait(s.client, BIG), EN_OK);
    if (eni_now_ns() - begin < LATE_MS * ENI_MILLI) /* else this machine was asleep */
        assert_true(*eni_arena_at(s.arena, ENI_SLOT_PARAM, s.buckets->bucket[C].lo) == -1);
    assert_int_equal(eni_client_wait(s.client, C), EN_OK);
    assert_true(eni_now_ns() - begin >= LATE_MS * ENI_MILLI);
    expect_doubled(C, 1);
    expect_doubled(BIG, 2);
}

/* What is left undelivered at the end is dropped, not leaked. */
static void test_closed_with_late_answers(void **state)
{
    (void)state;
    open_client();
    prepare(C, 1);
    prepare(A, 1);
    assert_int_equal(call(C, LATE), EN_OK);
    assert_int_equal(call(A, ECHO), EN_OK);
    assert_int_equal(eni_client_wait(s.client, A), EN_OK);
}

static void test_the_shaper_stamps(void **state)
{
    (void)state;
    s.config.shaper = eni_shaper_new(0, 3 * ENI_MILLI);
    open_client();
    prepare(C, 1);
    int64_t begin = eni_now_ns();
    assert_int_equal(call(C, ECHO), EN_OK);
    assert_int_equal(eni_client_wait(s.client, C), EN_OK);
    assert_true(atomic_load(&s.shard[0].deliver_ns) >= begin + 3 * ENI_MILLI);
    eni_client_close(s.client);
    s.client = NULL;
    eni_shaper_free(s.config.shaper);
}

static void test_a_dead_peer_ends_the_wait(void **state)
{
    (void)state;
    open_client();
    prepare(C, 1);
    assert_int_equal(call(C, MUTE), EN_OK);
    atomic_store(&s.peers, EN_EPEER);
    assert_int_equal(eni_client_wait(s.client, C), EN_EPEER);
}

static void test_finished(void **state)
{
    (void)state;
    open_client();
    assert_int_equal(eni_client_finished(s.client), EN_OK);
    assert_int_equal(atomic_load(&s.shard[0].nfinished), 1);
    assert_int_equal(atomic_load(&s.shard[1].nfinished), 1);
}

static uint64_t once(void *user)
{
    (void)user;
    return 1;
}

static en_status where_it_was(void *user, const eni_endpoints **psd_out)
{
    (void)user;
    *psd_out = &s.psd;
    return EN_OK;
}

/* psd was killed and came back while this rank had joined and was not its client yet: it is found once. */
static void test_a_psd_that_came_back_before_open(void **state)
{
    (void)state;
    eni_client_counters counters;
    s.config.keep = 2;
    s.config.generation = once;
    s.config.locate = where_it_was;
    open_client();
    prepare(C, 1);
    assert_int_equal(call(C, ECHO), EN_OK);
    assert_int_equal(eni_client_wait(s.client, C), EN_OK);
    expect_doubled(C, 1);
    eni_client_count(s.client, &counters);
    assert_int_equal(counters.returns, 1);
}

static void test_unwelcome(void **state)
{
    (void)state;
    atomic_store(&s.shard[1].is_unwelcoming, 1);
    s.config.join_deadline_ns = eni_now_ns() + 2 * ENI_SECOND; /* the other shard has time for its word */
    assert_int_equal(eni_client_open(&s.config, &s.client), EN_ETIMEOUT);
    assert_non_null(strstr(s.said, "1 of 2 shards"));
    s.client = NULL;
}

static void test_wrong_token(void **state)
{
    (void)state;
    eni_token other;
    eni_token_make(&other);
    s.config.token = &other;
    assert_int_equal(eni_client_open(&s.config, &s.client), EN_EMISMATCH);
    s.client = NULL;
    eni_client_close(NULL);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_payloads_by_message),
        TEST(test_payloads_through_memory),
        TEST(test_weights_are_read_where_psd_has_them),
        TEST(test_no_weights_to_map),
        TEST(test_a_closed_door),
        TEST(test_versions),
        TEST(test_pull_init_and_snapshot),
        TEST(test_out_of_order),
        TEST(test_no_second_call_in_flight),
        TEST(test_an_old_answer_is_not_taken),
        TEST(test_refused),
        TEST(test_wrong_length),
        TEST(test_memory_that_was_not_shared),
        TEST(test_a_bucket_that_is_not),
        TEST(test_late_answers),
        TEST(test_closed_with_late_answers),
        TEST(test_the_shaper_stamps),
        TEST(test_a_dead_peer_ends_the_wait),
        TEST(test_finished),
        TEST(test_a_psd_that_came_back_before_open),
        TEST(test_unwelcome),
        TEST(test_wrong_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
