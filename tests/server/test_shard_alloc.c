/* test_shard_alloc.c - a push-pull through a shard's socket: neither the shard nor the client allocates once
 * it is warm, and a long run does not grow. ZeroMQ's own allocations are a block for each frame over 33 bytes
 * that it sends, and those for receiving; with a ring it has nothing to do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "runtime/client/client.h"
#include "server/shard.h"
#include "tests/allocations.h"

enum { ELEMENTS = 1024 + 32768, KEY_VALUES = 20, PARTITIONS = 2, WARM = 200, ROUNDS = 1000, TRIES = 5 };

static const eni_key_value key_values[KEY_VALUES] = {{"strategy-name", "ps-sync"},
                                                     {"strategy-options", ""},
                                                     {"buckets", "1024,32768"},
                                                     {"bucket-offsets", "32768,0"},
                                                     {"elements", "33792"},
                                                     {"optimizer", "sgd"},
                                                     {"momentum", "0.9"},
                                                     {"weight-decay", "0"},
                                                     {"nesterov", "0"},
                                                     {"lr", "0.1"},
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

static eni_bucket_range ranges[PARTITIONS] = {{.lo = 32768, .hi = ELEMENTS}, {.lo = 0, .hi = 32768}};
static const eni_buckets buckets = {.n = PARTITIONS, .count = ELEMENTS, .bucket = ranges};

/* One shard with one client, in this process. */
typedef struct rig {
    eni_net *net;
    eni_setup setup;
    eni_arenas *arenas;
    eni_shard *shard;
    eni_token token;
    eni_arena *arena;
    eni_client *client;
} rig;

static void never(void *user, const char *reason)
{
    (void)user, (void)reason;
    abort();
}

static void open_client(rig *r, const eni_address *address, int is_shared)
{
    char text[ENI_ADDRESS_TEXT];
    const eni_endpoints psd = {.epoch = 1,
                               .shards = 1,
                               .servers = is_shared,
                               .tcp = {text},
                               .arena_sockets = {eni_arenas_name(r->arenas)}};
    eni_address_format(address, text);
    assert_int_equal(eni_arena_open(ELEMENTS, ENI_ARENA_NSLOTS, 1, &r->arena), EN_OK);
    const eni_client_config config = {.net = r->net,
                                      .psd = &psd,
                                      .arena = r->arena,
                                      .buckets = &buckets,
                                      .token = &r->token,
                                      .incarnation = 1,
                                      .wake_fd = -1,
                                      .join_deadline_ns = eni_now_ns() + 10 * ENI_SECOND};
    assert_int_equal(eni_client_open(&config, &r->client), EN_OK);
    assert_int_equal(eni_client_is_shared(r->client), is_shared);
}

static void call_all(rig *r, uint32_t type, int in_slot, uint64_t step)
{
    const int out_slot = type == ENI_MSG_CALL ? ENI_SLOT_GRAD : ENI_SLOT_PARAM;
    const uint32_t kind = type == ENI_MSG_CALL, what = kind ? EN_GRAD : EN_WEIGHTS;
    for (uint32_t b = 0; b < PARTITIONS; b++)
        assert_int_equal(eni_client_call(r->client, b, out_slot, in_slot,
                                         &(eni_header){.type = type,
                                                       .kind = kind,
                                                       .what = what,
                                                       .nsamples = kind,
                                                       .covered = kind,
                                                       .step = step}),
                         EN_OK);
    for (uint32_t b = 0; b < PARTITIONS; b++)
        assert_int_equal(eni_client_wait(r->client, b), EN_OK);
}

static void do_rounds(rig *r, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        call_all(r, ENI_MSG_CALL, ENI_SLOT_PARAM, i);
}

static rig *open_rig(int is_shared)
{
    static const uint8_t everybody[] = {1};
    rig *r = calloc(1, sizeof *r);
    char why[ENI_REASON_MAX];
    eni_address address;
    eni_token_make(&r->token);
    eni_memory_keep(); /* as psd does */
    assert_int_equal(eni_net_open(1, &r->net), EN_OK);
    assert_int_equal(
        eni_setup_read(en_strategy_entry(EN_STRATEGY_ABI), key_values, KEY_VALUES, &r->setup, why), EN_OK);
    const eni_arenas_config arenas = {
        .nranks = 1, .epoch = 1, .elements = ELEMENTS, .token = r->token, .own_shards = 1, .nshards = 1};
    assert_int_equal(eni_arenas_start(&arenas, &r->arenas), EN_OK);
    const eni_shard_config config = {.net = r->net,
                                     .listen = {.host = "127.0.0.1"},
                                     .setup = &r->setup,
                                     .nshards = 1,
                                     .nranks = 1,
                                     .is_client = everybody,
                                     .epoch = 1,
                                     .incarnation = 1,
                                     .token = r->token,
                                     .arenas = r->arenas,
                                     .on_failure = never};
    assert_int_equal(eni_shard_start(&config, &r->shard, &address), EN_OK);
    open_client(r, &address, is_shared);
    call_all(r, ENI_MSG_INIT, ENI_SLOT_NONE, 0);
    do_rounds(r, WARM);
    return r;
}

static void close_rig(rig *r)
{
    assert_int_equal(eni_client_finished(r->client), EN_OK);
    eni_client_close(r->client);
    eni_shard_stop(r->shard);
    eni_arenas_stop(r->arenas);
    eni_net_close(r->net);
    eni_arena_close(r->arena);
    eni_setup_fini(&r->setup);
    free(r);
}

static void count(const char *transport, int is_shared)
{
    rig *r = open_rig(is_shared);
    allocations some = {.own = 1};
    for (int i = 0; i < TRIES && some.own > 0; i++) { /* the first may have more under way at once */
        allocations_begin();
        do_rounds(r, ROUNDS);
        some = allocations_end();
    }
    print_message("%s: %d push-pulls: %ld allocations of ours, %ld of ZeroMQ, %ld freed\n", transport,
                  ROUNDS * PARTITIONS, some.own, some.foreign, some.freed);
    assert_int_equal(some.own, 0);
    if (is_shared) /* by ring: ZeroMQ has nothing to do */
        assert_int_equal(some.foreign, 0);
    else
        assert_true(some.foreign > 0); /* else the count would miss libraries */
    close_rig(r);
}

static void through_messages(void **state)
{
    (void)state;
    count("messages", 0);
}

static void through_shared_memory(void **state)
{
    (void)state;
    count("shared memory", 1);
}

/* Pages that this process holds now. */
static long resident_kb(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*d %ld", &pages), 1);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* EN_PUSH_PULLS of them, half of 4 KB and half of 128 KB; the first tenth is warm-up. */
static void does_not_grow(int is_shared)
{
    const uint64_t rounds = EN_PUSH_PULLS / PARTITIONS;
    rig *r = open_rig(is_shared);
    do_rounds(r, rounds / 10);
    const long before = resident_kb();
    do_rounds(r, rounds - rounds / 10);
    const long after = resident_kb();
    print_message("%d push-pulls: %ld KB after a tenth of them, %ld KB after all\n", EN_PUSH_PULLS, before,
                  after);
    assert_true(after - before <= 1024); /* at 1e6 a byte each would show */
    close_rig(r);
}

static void it_does_not_grow(void **state)
{
    (void)state;
    does_not_grow(0);
}

static void nor_in_shared_memory(void **state)
{
    (void)state;
    does_not_grow(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(through_messages), cmocka_unit_test(through_shared_memory),
        cmocka_unit_test(it_does_not_grow), cmocka_unit_test(nor_in_shared_memory)};
    eni_log_set_level(ENI_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
