/* hooks.c - the strategy's store half: calls its hooks, serves what they call (the en_store table), and holds
 * them to the contract. A breach fails the hook in one line with its site; data that it may not write is const
 * (entrain/strategy.h). */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/canary.h"
#include "core/crc32c.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/try.h"
#include "runtime/store/store_impl.h"

/* ---- the contract ---- */

/* Logs a misuse by the running hook, after its site, and makes it fail. */
__attribute__((format(printf, 2, 3))) static void misuse(eni_store *store, const char *fmt, ...)
{
    char place[160], text[320];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    store->hook.verdict = EN_EBUG;
    if (store->hook.part == NULL)
        snprintf(place, sizeof place, "%s, outside of a hook,", store->config.strategy->name);
    else
        eni_hook_site_text(&store->hook.place, place, sizeof place);
    snprintf(store->hook.said, sizeof store->hook.said, "%.100s %.90s", place, text);
    eni_error("store", "%s %s", place, text);
}

/* Whether `part` is that of the running hook; else misuse of `operation`. */
static bool knows(eni_store *store, const char *operation, const en_partition *part)
{
    if (store->hook.part != NULL && part == &store->hook.part->pub) return true;
    misuse(store, "called %s with a partition that is not the hook's", operation);
    return false;
}

/* ---- the table: what a hook may call ---- */

static eni_store *table_store(en_store *table)
{
    return (eni_store *)table;
}

static bool has_key(eni_store *store, const char *operation, const char *key, bool is_text)
{
    if (key == NULL)
        misuse(store, "called %s without a key", operation);
    else if (store->config.options != NULL && !eni_options_has(store->config.options, key, is_text))
        misuse(store, "called %s for '%s', which its table of options does not declare as a %s", operation,
               key, is_text ? "text" : "number");
    else
        return true;
    return false;
}

static double table_num(en_store *table, const char *key)
{
    eni_store *store = table_store(table);
    return has_key(store, "num", key, false)
               ? eni_options_num(store->config.options, key, store->config.world)
               : 0;
}

static const char *table_text(en_store *table, const char *key)
{
    eni_store *store = table_store(table);
    return has_key(store, "text", key, true) ? eni_options_text(store->config.options, key) : "";
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
    eni_store *store = table_store(table);
    eni_hook_leave(store->config.hooks); /* its reader may be slow */
    eni_log(level, store->config.strategy->name, "%s", text);
    if (store->hook.part != NULL) eni_hook_enter(store->config.hooks, &store->hook.place);
}

static en_status table_absorb(en_store *table, const en_partition *part, const en_msg *msg, double weight)
{
    eni_store *store = table_store(table);
    eni_call *call = store->current;
    if (!knows(store, "absorb", part)) return EN_EBUG;
    if (call == NULL || msg != &call->msg || call->was_absorbed || !isfinite(weight)) {
        misuse(store, "called absorb with weight %g: call it in on_push, with its message, once", weight);
        return EN_EBUG;
    }
    return eni_partition_stage(store, store->hook.part, call, weight);
}

static en_status table_step(en_store *table, const en_partition *part)
{
    eni_store *store = table_store(table);
    return knows(store, "step", part) ? eni_partition_step(store, store->hook.part) : EN_EBUG;
}

static void table_touch(en_store *table, const en_partition *part)
{
    eni_store *store = table_store(table);
    if (!knows(store, "touch", part)) return;
    store->hook.part->pub.version++;
    store->stats.touches++;
    store->did_touch = true;
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
    eni_dedupe *dedupe = &store->hook.part->dedupe[src];
    if (dedupe->peer == NULL && (dedupe->peer = eni_alloc_array(vecs, sizeof *dedupe->peer)) == NULL)
        return NULL;
    if (dedupe->peer[i] == NULL) {
        dedupe->peer[i] = eni_alloc_array(pub->count, sizeof(float));
        if (dedupe->peer[i] != NULL)
            memcpy(dedupe->peer[i], store->hook.part->first, pub->count * sizeof(float));
    }
    return dedupe->peer[i];
}

static void table_timer(en_store *table, const en_partition *pub, int64_t delay_ns)
{
    eni_store *store = table_store(table);
    eni_partition *part = store->hook.part;
    if (!knows(store, "timer", pub)) return;
    if (delay_ns < 0) delay_ns = 0;
    part->has_timer = store->has_timers = true;
    part->timer_ns = delay_ns < INT64_MAX - store->now_ns ? store->now_ns + delay_ns : INT64_MAX - 1;
}

static en_status table_answer(en_store *table, const en_msg *msg, uint64_t word)
{
    eni_store *store = table_store(table);
    if (store->hook.call == NULL || msg != &store->hook.call->msg) {
        misuse(store, "called answer without its message: call it in on_push or on_pull");
        return EN_EBUG;
    }
    if (word == 0) return EN_OK;
    misuse(store, "called answer with word %llu, which is not supported yet: use 0",
           (unsigned long long)word);
    store->hook.verdict = EN_EINVAL;
    return EN_EINVAL;
}

const en_store eni_store_table = {
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

/* ---- hooks ---- */

/* A hook may write the weights, except with EN_ROUNDS: then only a step does, which makes them its own. */
static en_status begin_hook(eni_store *store, const char *hook, eni_partition *part, eni_call *call,
                            int32_t client)
{
    if (!(store->config.strategy->flags & EN_ROUNDS)) EN_TRY(eni_partition_own(store, part, true));
    store->hook = (eni_store_hook){.part = part,
                                   .call = call,
                                   .place = {.hook = hook,
                                             .plugin = store->config.strategy->name,
                                             .number = {{"shard", part->pub.shard},
                                                        {"bucket", part->pub.bucket},
                                                        {"version", (int64_t)part->pub.version},
                                                        {client >= 0 ? "rank" : NULL, client}}}};
    const bool has_room =
        call != NULL && call->msg.data != NULL && call->payload.flags & ENI_PAYLOAD_HAS_ROOM;
    if (store->config.watch == ENI_WATCH_ALL && part->buffer != NULL)
        store->hook.behind[0] = part->pub.w + part->pub.count;
    if (store->config.watch == ENI_WATCH_ALL && has_room)
        store->hook.behind[1] = call->msg.data + part->pub.count;
    for (int i = 0; i < 2; i++)
        if (store->hook.behind[i] != NULL) eni_canary_put(store->hook.behind[i], ENI_CANARY);
    eni_hook_enter(store->config.hooks, &store->hook.place);
    return EN_OK;
}

static en_status end_hook(eni_store *store)
{
    eni_hook_leave(store->config.hooks);
    for (int i = 0; i < 2; i++) {
        const float *behind = store->hook.behind[i];
        const uint64_t count = store->hook.part->pub.count,
                       beyond = behind != NULL ? eni_canary_written(behind) : ENI_CANARY;
        if (beyond < ENI_CANARY)
            misuse(store, "has written element %llu of %s, which have %llu",
                   (unsigned long long)(count + beyond), i == 0 ? "the weights" : "its message's elements",
                   (unsigned long long)count);
    }
    store->hook.part = NULL;
    store->hook.call = NULL;
    return store->hook.verdict;
}

static bool is_watched(const eni_store *store, eni_partition *part)
{
    enum { FIRST = 100, EVERY = 1000 };
    const uint64_t n = part->hook_pushes++;
    return store->config.watch == ENI_WATCH_ALL ||
           (store->config.watch == ENI_WATCH_FIRST && (n < FIRST || n % EVERY == 0));
}

static uint32_t crc_of(const eni_partition *part)
{
    return eni_crc32c(0, part->pub.w, part->pub.count * sizeof(float));
}

static bool all_finite(const eni_partition *part, const eni_call *call)
{
    return eni_all_finite(part->pub.w, part->pub.count) &&
           (call->msg.data == NULL || eni_all_finite(call->msg.data, part->pub.count));
}

/* After on_push: the weights must be unchanged, unless a step or touch has announced a change, and finite. */
static void check_weights(eni_store *store, const eni_partition *part, uint64_t version, uint32_t crc,
                          bool was_finite)
{
    if (part->pub.version == version && crc_of(part) != crc)
        misuse(store, "has written the weights without calling touch");
    else if (was_finite && store->did_touch && !eni_all_finite(part->pub.w, part->pub.count))
        misuse(store, "has left a weight that is not finite");
}

en_status eni_store_hook_push(eni_store *store, eni_partition *part, eni_call *call)
{
    EN_TRY(begin_hook(store, "on_push", part, call, call->msg.src));
    const bool watches = is_watched(store, part);
    const uint64_t version = part->pub.version;
    const uint32_t crc = watches ? crc_of(part) : 0;
    const bool was_finite = watches && all_finite(part, call); /* else the run diverges, not by the hook */
    en_status st = store->config.strategy->on_push(&store->table, part->state, &part->pub, &call->msg);
    if (st < 0 || st > EN_EBUG || st == EN_ESTOP || st == EN_EINTR || st == EN_EPEER || st == EN_EMEMBER) {
        misuse(store, "returned %d, which only the host may return", st);
        st = EN_EBUG;
    }
    if (watches && store->hook.verdict == EN_OK) check_weights(store, part, version, crc, was_finite);
    const en_status judged = end_hook(store);
    return judged != EN_OK ? judged : st;
}

en_status eni_store_hook_pull(eni_store *store, eni_partition *part, eni_call *call, int *verdict_out)
{
    EN_TRY(begin_hook(store, "on_pull", part, call, call->msg.src));
    const int verdict = store->config.strategy->on_pull(&store->table, part->state, &part->pub, &call->msg);
    if (verdict < EN_REPLY_WEIGHTS || verdict > EN_HOLD_CLOCK)
        misuse(
            store,
            "returned %d, which is not an answer; expected EN_REPLY_WEIGHTS, EN_REPLY_DATA or one of EN_HOLD",
            verdict);
    *verdict_out = verdict;
    return end_hook(store);
}

en_status eni_store_hook_timer(eni_store *store, eni_partition *part)
{
    const en_strategy *strategy = store->config.strategy;
    if (strategy->on_timer == NULL) return EN_OK;
    EN_TRY(begin_hook(store, "on_timer", part, NULL, -1));
    strategy->on_timer(&store->table, part->state, &part->pub);
    return end_hook(store);
}

en_status eni_store_hook_member(eni_store *store, eni_partition *part, int32_t who, int member)
{
    const en_strategy *strategy = store->config.strategy;
    if (strategy->on_member == NULL) return EN_OK;
    EN_TRY(begin_hook(store, "on_member", part, NULL, who));
    strategy->on_member(&store->table, part->state, &part->pub, who, member);
    return end_hook(store);
}
