/* test_client_version.c - what a push says it was computed on, and what its answer says it met. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "runtime/client/client.h"
#include "tests/client/fake_shard.h"

enum { COUNT = 64 };

/* Two shards that echo, one bucket, payloads by message. */
typedef struct scene {
    eni_net *net, *psd_net;
    shard shard[SHARDS];
    char text[SHARDS][ENI_ADDRESS_TEXT];
    eni_endpoints psd;
    eni_token token;
    eni_arena *arena;
    eni_buckets *buckets;
    eni_client *client;
} scene;

static void start_shard(scene *s, int k)
{
    const eni_address any = {.host = "127.0.0.1", .port = 0};
    eni_address bound;
    shard *l = &s->shard[k];
    l->index = k;
    l->buckets = s->buckets;
    eni_token_hex(&s->token, l->token);
    assert_int_equal(eni_router_open(s->psd_net, &any, false, 0, &l->router, &bound), EN_OK);
    eni_address_format(&bound, s->text[k]);
    s->psd.tcp[k] = s->text[k];
    assert_int_equal(pthread_create(&l->thread, NULL, shard_main, l), 0);
}

static void open_scene(scene *s)
{
    static const en_model_tensor tensor = {
        .name = "w", .offset = 0, .count = COUNT, .ndim = 2, .shape = {8, 8}};
    memset(s, 0, sizeof *s);
    eni_token_make(&s->token);
    assert_int_equal(eni_net_open(1, &s->net), EN_OK);
    assert_int_equal(eni_net_open(1, &s->psd_net), EN_OK);
    assert_int_equal(eni_arena_open(COUNT, 6, 1, &s->arena), EN_OK);
    assert_int_equal(eni_buckets_new(&tensor, 1, COUNT, 131072, &s->buckets), EN_OK);
    for (int k = 0; k < SHARDS; k++)
        start_shard(s, k);
    s->psd.shards = SHARDS;
    s->psd.epoch = 1;
    eni_client_config config = {.net = s->net,
                                .psd = &s->psd,
                                .arena = s->arena,
                                .buckets = s->buckets,
                                .token = &s->token,
                                .wake_fd = -1,
                                .join_deadline_ns = eni_now_ns() + 10 * ENI_SECOND};
    assert_int_equal(eni_client_open(&config, &s->client), EN_OK);
}

static void close_scene(scene *s)
{
    eni_client_close(s->client);
    for (int k = 0; k < SHARDS; k++) {
        atomic_store(&s->shard[k].is_stopping, 1);
        pthread_join(s->shard[k].thread, NULL);
        eni_router_close(s->shard[k].router);
    }
    eni_net_close(s->net);
    eni_net_close(s->psd_net);
    eni_arena_close(s->arena);
    eni_buckets_free(s->buckets);
}

static void push(scene *s)
{
    assert_int_equal(
        eni_client_call(
            s->client, 0, ENI_SLOT_GRAD, ENI_SLOT_PARAM,
            &(eni_header){.type = ENI_MSG_CALL, .kind = ECHO, .what = EN_GRAD, .nsamples = 1, .covered = 1}),
        EN_OK);
    assert_int_equal(eni_client_wait(s->client, 0), EN_OK);
}

static void snapshot(scene *s, int slot)
{
    assert_int_equal(eni_client_call(s->client, 0, ENI_SLOT_NONE, slot,
                                     &(eni_header){.type = ENI_MSG_SNAPSHOT, .what = EN_WEIGHTS}),
                     EN_OK);
    assert_int_equal(eni_client_wait(s->client, 0), EN_OK);
}

/* Weights that are only evaluated are not what the next gradient is computed on: rank 0's pushes looked
 * fresher than they were after every point of the accuracy curve. */
static void a_look_aside_does_not_make_a_gradient_fresher(void **state)
{
    (void)state;
    scene s;
    open_scene(&s);
    push(&s); /* version 1 */
    snapshot(&s, ENI_SLOT_FREE);
    snapshot(&s, ENI_SLOT_FREE);
    assert_int_equal(eni_client_answered(s.client, 0).version, 1);
    push(&s); /* version 4 */
    for (int k = 0; k < SHARDS; k++)
        assert_int_equal(atomic_load(&s.shard[k].base[0]), 1);
    snapshot(&s, ENI_SLOT_PARAM); /* as at the start of a run */
    assert_int_equal(eni_client_answered(s.client, 0).version, 5);
    push(&s);
    for (int k = 0; k < SHARDS; k++)
        assert_int_equal(atomic_load(&s.shard[k].base[0]), 5);
    close_scene(&s);
}

/* The second shard's partition was met by three more versions than the first's; a shard that says nothing is
 * at 0.
 */
static void staleness_is_what_the_shards_say(void **state)
{
    (void)state;
    scene s;
    open_scene(&s);
    push(&s);
    assert_true(eni_client_answered(s.client, 0).staleness == 0);
    atomic_store(&s.shard[0].met_ahead, 2);
    atomic_store(&s.shard[1].met_ahead, 5);
    push(&s);
    assert_true(eni_client_answered(s.client, 0).staleness == 3.5);
    snapshot(&s, ENI_SLOT_FREE); /* no push: nothing changes */
    assert_true(eni_client_answered(s.client, 0).staleness == 3.5);
    close_scene(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_look_aside_does_not_make_a_gradient_fresher),
                                       cmocka_unit_test(staleness_is_what_the_shards_say)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
