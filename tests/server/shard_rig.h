/* shard_rig.h - one shard behind a real socket, two clients' dealers, and helpers for their messages. */
#ifndef TESTS_SERVER_SHARD_RIG_H
#define TESTS_SERVER_SHARD_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/log.h"
#include "runtime/net/tcp.h"
#include "server/shard.h"
#include "tests/server/key_values.h"

enum { WORLD = 2 };

typedef struct rig {
    eni_net *net;
    eni_setup setup;
    eni_arenas *arenas;
    eni_shard *shard;
    eni_address address;
    eni_token token;
    eni_dealer *dealer[WORLD];
    eni_header heard; /* the last message */
    float data[MOST];
} rig;

static const uint8_t everybody[WORLD] = {1, 1};

static inline void never(void *user, const char *reason)
{
    (void)user;
    (void)reason;
    abort(); /* a shard of these tests has no reason to fail */
}

static inline rig *open_rig(eni_shaper *shaper)
{
    rig *r = calloc(1, sizeof *r);
    char why[ENI_REASON_MAX];
    eni_token_make(&r->token);
    assert_int_equal(eni_net_open(1, &r->net), EN_OK);
    assert_int_equal(
        eni_setup_read(en_strategy_entry(EN_STRATEGY_ABI), good_key_values, KEY_VALUES, &r->setup, why),
        EN_OK);
    const eni_arenas_config arenas = {
        .nranks = WORLD, .epoch = 1, .elements = ELEMENTS, .token = r->token, .own_shards = 1, .nshards = 1};
    assert_int_equal(eni_arenas_start(&arenas, &r->arenas), EN_OK);
    const eni_shard_config config = {
        .net = r->net,
        .listen = {.host = "127.0.0.1"},
        .setup = &r->setup,
        .nshards = 1,
        .nranks = WORLD,
        .is_client = everybody,
        .epoch = 1,
        .incarnation = 1,
        .token = r->token,
        .arenas = r->arenas,
        .shaper = shaper,
        .on_failure = never,
    };
    assert_int_equal(eni_shard_start(&config, &r->shard, &r->address), EN_OK);
    for (int c = 0; c < WORLD; c++)
        assert_int_equal(eni_dealer_open(r->net, &r->address, &r->dealer[c]), EN_OK);
    return r;
}

static inline void close_rig(rig *r)
{
    for (int c = 0; c < WORLD; c++)
        eni_dealer_close(r->dealer[c]);
    eni_shard_stop(r->shard);
    eni_arenas_stop(r->arenas);
    eni_net_close(r->net);
    eni_setup_fini(&r->setup);
    free(r);
}

static inline eni_header header_of(int32_t rank, uint32_t type)
{
    return (eni_header){.type = type, .epoch = 1, .rank = rank, .dtype = ENI_DTYPE_F32, .incarnation = 1};
}

static inline void say(rig *r, int c, const eni_header *header, float *data)
{
    const int64_t deadline = eni_now_ns() + 5 * ENI_SECOND;
    assert_int_equal(eni_dealer_send(r->dealer[c], header, data, NULL, NULL, deadline, -1), EN_OK);
}

/* Waits for the next message to client c. */
static const eni_header *hear(rig *r, int c)
{
    bool is_ready;
    eni_packet packet = {0};
    assert_int_equal(eni_dealer_poll(&r->dealer[c], 1, eni_now_ns() + 5 * ENI_SECOND, -1, -1, &is_ready),
                     EN_OK);
    assert_int_equal(eni_dealer_recv(r->dealer[c], &packet), EN_OK);
    r->heard = packet.header;
    if (packet.bytes > 0) memcpy(r->data, packet.payload, packet.bytes);
    eni_packet_release(&packet);
    return &r->heard;
}

static inline void hello(rig *r, int c)
{
    eni_header header = header_of(c, ENI_MSG_HELLO);
    eni_token_hex(&r->token, header.text);
    say(r, c, &header, NULL);
    assert_int_equal(hear(r, c)->type, ENI_MSG_WELCOME);
}

static inline void say_init(rig *r, int c)
{
    for (uint32_t b = 0; b < BUCKETS; b++) {
        float w[MOST];
        for (uint64_t i = 0; i < counts[b]; i++)
            w[i] = weight_at(offsets[b] + i);
        eni_header header = header_of(c, ENI_MSG_INIT);
        header.bucket = b;
        header.count = counts[b];
        header.bytes = counts[b] * sizeof(float);
        say(r, c, &header, w);
        assert_int_equal(hear(r, c)->type, c == 0 ? ENI_MSG_REPLY : ENI_MSG_REFUSED);
    }
}

static inline eni_header call_of(int c, uint32_t bucket, uint64_t step)
{
    eni_header header = header_of(c, ENI_MSG_CALL);
    header.kind = 1;
    header.what = 1;
    header.bucket = bucket;
    header.seq = step + 1;
    header.base_version = step;
    header.nsamples = header.covered = SAMPLES;
    header.count = counts[bucket];
    header.bytes = counts[bucket] * sizeof(float);
    return header;
}

static inline void say_push(rig *r, int c, uint32_t bucket, uint64_t step)
{
    float g[MOST];
    const eni_header header = call_of(c, bucket, step);
    for (uint64_t i = 0; i < counts[bucket]; i++)
        g[i] = gradient_at(c, step, offsets[bucket] + i);
    say(r, c, &header, g);
}

static inline void expect_refused(rig *r, int c, en_status status, const char *part)
{
    assert_int_equal(hear(r, c)->type, ENI_MSG_REFUSED);
    assert_int_equal(r->heard.status, status);
    if (!strstr(r->heard.text, part)) fail_msg("'%s' not in '%s'", part, r->heard.text);
}

/* Reads a shard's figures: an eni_shard_visit. */
static inline void copy_figures(void *user, const eni_store *store, const eni_shard_figures *figures)
{
    assert_non_null(store);
    *(eni_shard_figures *)user = *figures;
}

#endif
