/* test_shard_answers.c - three things that a shard's answers must be: of one version, though others push
 * while they are sent; to questions of this incarnation of psd; and no promise beyond what is on disk. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/log.h"
#include "server/shard.h"

enum { WORLD = 2, ELEMENTS = 1 << 20, ROUNDS = 8, PAIRS = 20, EPOCH = 2 };

static const eni_key_value pairs[PAIRS] = {{"strategy-name", "ps-async"},
                                           {"strategy-options", ""},
                                           {"buckets", "1048576"},
                                           {"bucket-offsets", "0"},
                                           {"elements", "1048576"},
                                           {"optimizer", "sgd"},
                                           {"momentum", "0"},
                                           {"weight-decay", "0"},
                                           {"nesterov", "0"},
                                           {"lr", "1"},
                                           {"lr-schedule", "constant"},
                                           {"lr-warmup", "0"},
                                           {"lr-step", "0"},
                                           {"lr-gamma", "1"},
                                           {"total-samples", "320"},
                                           {"sum-order", "rank"},
                                           {"seed", "1"},
                                           {"budget", "40"},
                                           {"net-rate", "0"},
                                           {"net-delay", "0"}};

typedef struct rig {
    eni_net *net;
    eni_setup setup;
    eni_arenas *arenas;
    eni_shard *shard;
    eni_address address;
    eni_token token;
    eni_dealer *dealer[WORLD];
    float *vector;
} rig;

static void never(void *user, const char *reason)
{
    (void)user;
    fail_msg("the shard fails: %s", reason);
}

static const en_strategy *ps_async(void)
{
    const en_strategy *s = en_strategy_entry(EN_STRATEGY_ABI);
    while (strcmp(s->name, "ps-async") != 0)
        s = s->next;
    return s;
}

static eni_header header_of(int32_t rank, uint32_t type)
{
    return (eni_header){.type = type, .epoch = EPOCH, .rank = rank, .dtype = ENI_DTYPE_F32, .incarnation = 1};
}

static void say(rig *r, int c, const eni_header *header)
{
    float *payload = header->bytes > 0 ? r->vector : NULL;
    assert_int_equal(
        eni_dealer_send(r->dealer[c], header, payload, NULL, NULL, eni_now_ns() + 20 * ENI_SECOND, -1),
        EN_OK);
}

static eni_packet hear(rig *r, int c)
{
    bool is_ready;
    eni_packet packet = {0};
    assert_int_equal(eni_dealer_poll(&r->dealer[c], 1, eni_now_ns() + 20 * ENI_SECOND, -1, -1, &is_ready),
                     EN_OK);
    assert_int_equal(eni_dealer_recv(r->dealer[c], &packet), EN_OK);
    return packet;
}

static void expect(rig *r, int c, uint32_t type)
{
    eni_packet packet = hear(r, c);
    assert_int_equal(packet.header.type, type);
    eni_packet_release(&packet);
}

/* `state`: where the shard's states go, or NULL. */
static rig *open_rig_with(const eni_state *state)
{
    static const uint8_t everybody[WORLD] = {1, 1};
    rig *r = calloc(1, sizeof *r);
    char why[ENI_REASON_MAX];
    eni_token_make(&r->token);
    r->vector = calloc(ELEMENTS, sizeof *r->vector);
    assert_int_equal(eni_net_open(1, &r->net), EN_OK);
    assert_int_equal(eni_setup_read(ps_async(), pairs, PAIRS, &r->setup, why), EN_OK);
    const eni_arenas_config arenas = {
        .nranks = WORLD, .epoch = 1, .elements = ELEMENTS, .token = r->token, .own_shards = 1, .nshards = 1};
    assert_int_equal(eni_arenas_start(&arenas, &r->arenas), EN_OK);
    const eni_shard_config config = {.net = r->net,
                                     .listen = {.host = "127.0.0.1"},
                                     .setup = &r->setup,
                                     .nshards = 1,
                                     .nranks = WORLD,
                                     .is_client = everybody,
                                     .epoch = EPOCH,
                                     .incarnation = 1,
                                     .token = r->token,
                                     .arenas = r->arenas,
                                     .state = state,
                                     .state_every = 1000,
                                     .on_failure = never};
    assert_int_equal(eni_shard_start(&config, &r->shard, &r->address), EN_OK);
    for (int c = 0; c < WORLD; c++) {
        assert_int_equal(eni_dealer_open(r->net, &r->address, &r->dealer[c]), EN_OK);
        eni_header header = header_of(c, ENI_MSG_HELLO);
        eni_token_hex(&r->token, header.text);
        say(r, c, &header);
        expect(r, c, ENI_MSG_WELCOME);
    }
    eni_header init = header_of(0, ENI_MSG_INIT);
    init.count = ELEMENTS;
    init.bytes = (uint64_t)ELEMENTS * sizeof(float);
    say(r, 0, &init);
    expect(r, 0, ENI_MSG_REPLY);
    return r;
}

static rig *open_rig(void)
{
    return open_rig_with(NULL);
}

static void close_rig(rig *r)
{
    for (int c = 0; c < WORLD; c++)
        eni_dealer_close(r->dealer[c]);
    eni_shard_stop(r->shard);
    eni_arenas_stop(r->arenas);
    eni_net_close(r->net);
    eni_setup_fini(&r->setup);
    free(r->vector);
    free(r);
}

static void push(rig *r, int c, uint64_t seq, uint64_t base)
{
    eni_header header = header_of(c, ENI_MSG_CALL);
    header.kind = header.what = 1;
    header.seq = seq;
    header.base_version = base;
    header.nsamples = 1;
    header.count = ELEMENTS;
    header.bytes = (uint64_t)ELEMENTS * sizeof(float);
    say(r, c, &header);
}

/* All gradients are -1 and the rate is 1, so version v is v everywhere. */
static uint64_t expect_one_version(rig *r, int c)
{
    eni_packet packet = hear(r, c);
    assert_int_equal(packet.header.type, ENI_MSG_REPLY);
    const uint64_t version = packet.header.version;
    for (uint64_t i = 0; i < ELEMENTS; i++) {
        float value;
        memcpy(&value, (const char *)packet.payload + i * sizeof value, sizeof value);
        if (value != (float)version)
            fail_msg("element %d of version %d is %g", (int)i, (int)version, (double)value);
    }
    eni_packet_release(&packet);
    return version;
}

/* Several calls of both are under way, so that the next step is taken while an answer leaves. */
static void an_answer_is_of_one_version(void **state)
{
    (void)state;
    rig *r = open_rig();
    uint64_t last = 0;
    for (uint64_t i = 0; i < ELEMENTS; i++)
        r->vector[i] = -1;
    for (uint64_t seq = 1; seq <= ROUNDS; seq++)
        for (int c = 0; c < WORLD; c++)
            push(r, c, seq, 0);
    for (uint64_t seq = 1; seq <= ROUNDS; seq++)
        for (int c = 0; c < WORLD; c++) {
            const uint64_t version = expect_one_version(r, c);
            if (version > last) last = version;
        }
    assert_int_equal(last, WORLD * ROUNDS);
    close_rig(r);
}

/* It was sent to the previous incarnation of psd, and comes over a connection that this one believes. */
static void a_call_of_an_earlier_incarnation_is_refused(void **state)
{
    (void)state;
    rig *r = open_rig();
    eni_header header = header_of(0, ENI_MSG_CALL);
    header.epoch = EPOCH - 1;
    header.kind = 1;
    header.seq = 1;
    header.count = ELEMENTS;
    say(r, 0, &header);
    expect(r, 0, ENI_MSG_REFUSED);
    header.epoch = EPOCH;
    say(r, 0, &header);
    expect(r, 0, ENI_MSG_REPLY);
    close_rig(r);
}

/* What has been taken in is not yet what survives psd. */
static void an_answer_promises_what_is_on_disk(void **state)
{
    char folder[] = "/tmp/entrain-test-XXXXXX";
    eni_state *disk;
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(eni_state_open(folder, &disk), EN_OK);
    rig *r = open_rig_with(disk);
    push(r, 0, 1, 0);
    eni_packet packet = hear(r, 0);
    assert_int_equal(packet.header.type, ENI_MSG_REPLY);
    assert_int_equal(packet.header.seq, 1);
    assert_int_equal(packet.header.stable, 0);
    eni_packet_release(&packet);
    close_rig(r);
    eni_state_clear(disk);
    eni_state_close(disk);
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_of_one_version),
        cmocka_unit_test(a_call_of_an_earlier_incarnation_is_refused),
        cmocka_unit_test(an_answer_promises_what_is_on_disk),
    };
    eni_log_set_level(ENI_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
