/* The en_store table: what a strategy's store half may ask of its host. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/store/store_impl.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/rng.h"

static eni_store *table_store(en_store *table)
{
    return (eni_store *)table;
}

static int has_key(en_store *table, const char *operation, const char *key)
{
    if (!key) eni_store_misuse(table_store(table), "called %s without a key", operation);
    return key != NULL;
}

static double table_num(en_store *table, const char *key)
{
    const eni_options *options = table_store(table)->config.options;
    return options && has_key(table, "num", key) ? eni_options_num(options, key) : 0;
}

static const char *table_text(en_store *table, const char *key)
{
    const eni_options *options = table_store(table)->config.options;
    return options && has_key(table, "text", key) ? eni_options_text(options, key) : "";
}

static uint64_t table_rand(en_store *table)
{
    eni_store *store = table_store(table);
    const eni_rng_key key = {
        .seed = store->config.seed,
        .purpose = ENI_RNG_STRATEGY,
        .rank = 0x80000000u | store->config.stream, /* workers have the lower half */
    };
    return eni_rng_u64(&key, store->rand_index++);
}

static int64_t table_now_ns(en_store *table)
{
    return table_store(table)->now_ns;
}

static void table_log(en_store *table, int level, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    eni_log(level, table_store(table)->config.strategy->name, "%s", text);
}

static en_status table_absorb(en_store *table, en_cell *cell, const en_msg *msg, double weight)
{
    eni_store *store = table_store(table);
    eni_call *call = store->current;
    if (!eni_store_knows(store, "absorb", cell)) return EN_EBUG;
    if (!call || msg != &call->msg || call->was_absorbed || !isfinite(weight)) {
        eni_store_misuse(
            store, "called absorb with weight %g: it belongs into on_push, with its message, once", weight);
        return EN_EBUG;
    }
    return eni_cell_stage(store, (eni_cell *)cell, call, weight);
}

static en_status table_step(en_store *table, en_cell *cell)
{
    eni_store *store = table_store(table);
    return eni_store_knows(store, "step", cell) ? eni_cell_step(store, (eni_cell *)cell) : EN_EBUG;
}

static void table_touch(en_store *table, en_cell *cell)
{
    eni_store *store = table_store(table);
    if (!eni_store_knows(store, "touch", cell)) return;
    cell->version++;
    store->stats.touches++;
    store->did_touch = 1;
}

static float *table_peer(en_store *table, en_cell *pub, int32_t src, int i)
{
    eni_store *store = table_store(table);
    const uint32_t vecs = store->config.strategy->peer_vecs;
    if (!eni_store_knows(store, "peer", pub)) return NULL;
    if (src < 0 || src >= store->config.world || i < 0 || (uint32_t)i >= vecs) {
        eni_store_misuse(store, "asked for peer vector %d of client %d: it declared %u for %d clients", i,
                         src, vecs, store->config.world);
        return NULL;
    }
    eni_seat *seat = &((eni_cell *)pub)->seat[src];
    if (!seat->peer && !(seat->peer = eni_alloc_array(vecs, sizeof *seat->peer))) return NULL;
    if (!seat->peer[i]) {
        seat->peer[i] = eni_alloc_array(pub->count, sizeof(float));
        if (seat->peer[i]) memcpy(seat->peer[i], ((eni_cell *)pub)->first, pub->count * sizeof(float));
    }
    return seat->peer[i];
}

static void table_timer(en_store *table, en_cell *pub, int64_t delay_ns)
{
    eni_store *store = table_store(table);
    eni_cell *cell = (eni_cell *)pub;
    if (!eni_store_knows(store, "timer", pub)) return;
    if (delay_ns < 0) delay_ns = 0;
    cell->has_timer = store->has_timers = 1;
    cell->timer_ns = delay_ns < INT64_MAX - store->now_ns ? store->now_ns + delay_ns : INT64_MAX - 1;
}

void eni_store_fill_table(eni_store *store)
{
    store->table = (en_store){
        .abi = EN_STRATEGY_ABI,
        .size = sizeof(en_store),
        .num = table_num,
        .text = table_text,
        .rand = table_rand,
        .now_ns = table_now_ns,
        .log = table_log,
        .absorb = table_absorb,
        .step = table_step,
        .touch = table_touch,
        .peer = table_peer,
        .timer = table_timer,
    };
}
