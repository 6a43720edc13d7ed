/* store_hooks.c - the strategy's store half: calls its hooks, answers what they ask (the en_store table), and
 * holds them to the contract: what a hook may not do fails it in one line with its place. What it may not
 * write is const (entrain/strategy.h). */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/try.h"
#include "runtime/store/store_impl.h"

/* ---- the contract -------------------------------------------------------------------------------------- */

/* Logs what the hook that runs has done, with its place in front, and makes it fail. */
__attribute__((format(printf, 2, 3))) static void misuse(eni_store *store, const char *fmt, ...)
{
    char text[320];
    const eni_partition *part = store->hook_part;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    store->verdict = EN_EBUG;
    if (store->hook == NULL) {
        eni_error("store", "%s, outside of a hook, %s", store->config.strategy->name, text);
        return;
    }
    eni_error("store", "%s of %s (shard %u, bucket %u, version %llu, rank %d) %s", store->hook,
              store->config.strategy->name, part->pub.shard, part->pub.bucket,
              (unsigned long long)part->pub.version, store->hook_client, text);
}

/* 1 if `part` is the one whose hook runs; else misuse of `operation`. */
static int knows(eni_store *store, const char *operation, const en_partition *part)
{
    if (store->hook != NULL && part == &store->hook_part->pub) return 1;
    misuse(store, "called %s with a partition that is not the hook's", operation);
    return 0;
}

/* ---- the table: what a hook may ask -------------------------------------------------------------------- */

static eni_store *table_store(en_store *table)
{
    return (eni_store *)table;
}

static int has_key(en_store *table, const char *operation, const char *key)
{
    if (!key) misuse(table_store(table), "called %s without a key", operation);
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

static en_status table_absorb(en_store *table, const en_partition *part, const en_msg *msg, double weight)
{
    eni_store *store = table_store(table);
    eni_call *call = store->current;
    if (!knows(store, "absorb", part)) return EN_EBUG;
    if (!call || msg != &call->msg || call->was_absorbed || !isfinite(weight)) {
        misuse(store, "called absorb with weight %g: it belongs into on_push, with its message, once",
               weight);
        return EN_EBUG;
    }
    return eni_partition_stage(store, store->hook_part, call, weight);
}

static en_status table_step(en_store *table, const en_partition *part)
{
    eni_store *store = table_store(table);
    return knows(store, "step", part) ? eni_partition_step(store, store->hook_part) : EN_EBUG;
}

static void table_touch(en_store *table, const en_partition *part)
{
    eni_store *store = table_store(table);
    if (!knows(store, "touch", part)) return;
    store->hook_part->pub.version++;
    store->stats.touches++;
    store->did_touch = 1;
}

static float *table_peer(en_store *table, const en_partition *pub, int32_t src, int i)
{
    eni_store *store = table_store(table);
    const uint32_t vecs = store->config.strategy->peer_vecs;
    if (!knows(store, "peer", pub)) return NULL;
    if (src < 0 || src >= store->config.world || i < 0 || (uint32_t)i >= vecs) {
        misuse(store, "asked for peer vector %d of client %d: it declared %u for %d clients", i, src, vecs,
               store->config.world);
        return NULL;
    }
    eni_dedupe *dedupe = &store->hook_part->dedupe[src];
    if (!dedupe->peer && !(dedupe->peer = eni_alloc_array(vecs, sizeof *dedupe->peer))) return NULL;
    if (!dedupe->peer[i]) {
        dedupe->peer[i] = eni_alloc_array(pub->count, sizeof(float));
        if (dedupe->peer[i]) memcpy(dedupe->peer[i], store->hook_part->first, pub->count * sizeof(float));
    }
    return dedupe->peer[i];
}

static void table_timer(en_store *table, const en_partition *pub, int64_t delay_ns)
{
    eni_store *store = table_store(table);
    eni_partition *part = store->hook_part;
    if (!knows(store, "timer", pub)) return;
    if (delay_ns < 0) delay_ns = 0;
    part->has_timer = store->has_timers = 1;
    part->timer_ns = delay_ns < INT64_MAX - store->now_ns ? store->now_ns + delay_ns : INT64_MAX - 1;
}

static en_status table_answer(en_store *table, const en_msg *msg, uint64_t word)
{
    eni_store *store = table_store(table);
    if (store->hook_call == NULL || msg != &store->hook_call->msg) {
        misuse(store, "called answer without its message: it belongs into on_push and on_pull");
        return EN_EBUG;
    }
    if (word == 0) return EN_OK;
    misuse(store, "called answer with the word %llu, which nothing carries yet: give 0",
           (unsigned long long)word);
    store->verdict = EN_EINVAL;
    return EN_EINVAL;
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
        .answer = table_answer,
    };
}

/* ---- hooks --------------------------------------------------------------------------------------------- */

/* A hook may write the weights, but where they change in rounds only a step does, and that looks itself. */
static en_status begin_hook(eni_store *store, const char *hook, eni_partition *part, eni_call *call,
                            int32_t client)
{
    if (!(store->config.strategy->flags & EN_ROUNDS)) EN_TRY(eni_partition_own(store, part));
    store->hook = hook;
    store->hook_part = part;
    store->hook_call = call;
    store->hook_client = client;
    store->verdict = EN_OK;
    return EN_OK;
}

static en_status end_hook(eni_store *store)
{
    store->hook = NULL;
    store->hook_part = NULL;
    store->hook_call = NULL;
    return store->verdict;
}

en_status eni_store_hook_push(eni_store *store, eni_partition *part, eni_call *call)
{
    EN_TRY(begin_hook(store, "on_push", part, call, call->msg.src));
    en_status st = store->config.strategy->on_push(&store->table, part->state, &part->pub, &call->msg);
    if (st < 0 || st > EN_EBUG || st == EN_ESTOP || st == EN_EINTR || st == EN_EPEER || st == EN_EMEMBER) {
        misuse(store, "returned %d, which only the host may say", st);
        st = EN_EBUG;
    }
    const en_status judged = end_hook(store);
    return judged != EN_OK ? judged : st;
}

en_status eni_store_hook_pull(eni_store *store, eni_partition *part, eni_call *call, int *verdict_out)
{
    EN_TRY(begin_hook(store, "on_pull", part, call, call->msg.src));
    const int verdict = store->config.strategy->on_pull(&store->table, part->state, &part->pub, &call->msg);
    if (verdict != EN_REPLY_WEIGHTS && verdict != EN_REPLY_DATA && verdict != EN_HOLD)
        misuse(store, "returned %d, which is no answer; EN_REPLY_WEIGHTS, EN_REPLY_DATA and EN_HOLD are",
               verdict);
    *verdict_out = verdict;
    return end_hook(store);
}

en_status eni_store_hook_timer(eni_store *store, eni_partition *part)
{
    const en_strategy *strategy = store->config.strategy;
    if (!strategy->on_timer) return EN_OK;
    EN_TRY(begin_hook(store, "on_timer", part, NULL, -1));
    strategy->on_timer(&store->table, part->state, &part->pub);
    return end_hook(store);
}

en_status eni_store_hook_member(eni_store *store, eni_partition *part, int32_t who, int member)
{
    const en_strategy *strategy = store->config.strategy;
    if (!strategy->on_member) return EN_OK;
    EN_TRY(begin_hook(store, "on_member", part, NULL, who));
    strategy->on_member(&store->table, part->state, &part->pub, who, member);
    return end_hook(store);
}
