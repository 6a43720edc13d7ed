/* store_partition.c - one partition of a store, from a call to the new weights:
 *
 *     calls     taken when an event brings one, held until it is answered; one may stay staged after that, and
 *               is given back at once or (retired) when the next event begins, because an action may point
 *               into its payload. A payload that must outlive its event is copied into a pooled buffer
 *     numbers   contributions are staged in the order of their sum, averaged, stepped and booked, on a
 *               version buffer that nobody reads; the counts that depend on who is active
 *     hooks     the strategy's store half is called, is answered what it asks (the en_store table), and is
 *               held to the contract: what a hook may not do fails it in one line with its place. What it may
 *               not write is const (entrain/strategy.h). It calls no other file of the store */
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/crc32c.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/try.h"
#include "runtime/store/store_impl.h"

/* A call that is held for so long is named; the next line comes so much later. */
static const int64_t long_ns = 5 * ENI_SECOND, next_ns = 30 * ENI_SECOND;

en_status eni_store_grow(void **array, uint32_t *room, uint32_t wanted, size_t size)
{
    if (wanted <= *room) return EN_OK;
    uint32_t more = *room ? *room : 8;
    while (more < wanted)
        more *= 2;
    void *grown = realloc(*array, more * size);
    if (!grown) return eni_fail(EN_ENOMEM, "store", "out of memory for %u entries of %zu bytes", more, size);
    *array = grown;
    *room = more;
    return EN_OK;
}

/* ---- calls --------------------------------------------------------------------------------------------- */

/* Releases what a call holds; the call itself stays. */
static void call_empty(eni_store *store, eni_call *call)
{
    if (call->payload.release) call->payload.release(call->payload.owner);
    call->payload = (eni_payload){0};
    if (call->pooled) store->pool.free[store->pool.n++] = call->pooled; /* room: made when the buffer was */
    call->pooled = NULL;
}

eni_call *eni_store_call_take(eni_store *store)
{
    eni_call *call = store->idle;
    if (!call) return eni_alloc(sizeof *call);
    store->idle = call->next;
    *call = (eni_call){0};
    return call;
}

void eni_store_call_give(eni_store *store, eni_call *call)
{
    call_empty(store, call);
    call->next = store->idle;
    store->idle = call;
}

void eni_store_call_retire(eni_store *store, eni_call *call)
{
    call->next = store->retired;
    store->retired = call;
}

void eni_store_call_free(eni_store *store, eni_call *call)
{
    call_empty(store, call);
    eni_free(call);
}

void eni_partition_hold(eni_partition *part, eni_call *call)
{
    call->is_held = 1;
    call->next = NULL;
    call->prev = part->held_last;
    if (part->held_last)
        part->held_last->next = call;
    else
        part->held_first = call;
    part->held_last = call;
}

void eni_partition_release(eni_partition *part, eni_call *call)
{
    if (call->prev)
        call->prev->next = call->next;
    else
        part->held_first = call->next;
    if (call->next)
        call->next->prev = call->prev;
    else
        part->held_last = call->prev;
    call->prev = call->next = NULL;
    call->is_held = 0;
}

/* ---- calls that are held for long ---------------------------------------------------------------------- */

static bool is_held(const eni_partition *part, int32_t client)
{
    for (const eni_call *call = part->held_first; call != NULL; call = call->next)
        if (call->msg.src == client && !call->is_snapshot) return true;
    return false;
}

void eni_partition_list(const eni_store *store, const eni_partition *part, bool are_held, char *text_out,
                        size_t bytes)
{
    size_t n = 0;
    text_out[0] = '\0';
    for (int32_t r = 0; r < store->config.world && n < bytes; r++)
        if (store->client[r].presence == ENI_ACTIVE && is_held(part, r) == are_held)
            n += (size_t)snprintf(text_out + n, bytes - n, "%srank %d at clock %llu", n > 0 ? ", " : "", r,
                                  (unsigned long long)part->dedupe[r].clock);
}

/* *of_out: where it is held. NULL: none is for so long that has not been named. */
static const eni_call *longest_held(eni_store *store, int64_t now_ns, uint32_t *n_out,
                                    const eni_partition **of_out)
{
    const eni_call *longest = NULL;
    *n_out = 0;
    for (uint32_t b = 0; b < store->config.nbuckets; b++)
        for (eni_call *call = store->part[b].held_first; call != NULL; call = call->next) {
            if (!call->was_asked || call->was_named) continue;
            if (call->since_ns == 0) call->since_ns = now_ns;
            const int64_t due_ns = call->since_ns + long_ns;
            if (due_ns > now_ns) {
                if (due_ns < store->look_ns) store->look_ns = due_ns;
                continue;
            }
            call->was_named = 1;
            ++*n_out;
            if (longest != NULL && longest->since_ns <= call->since_ns) continue;
            longest = call;
            *of_out = &store->part[b];
        }
    return longest;
}

void eni_store_look(eni_store *store, int64_t now_ns)
{
    char others[160], more[48] = "";
    uint32_t n;
    const eni_partition *part;
    if (!store->config.judges_holds || now_ns < store->look_ns) return;
    store->look_ns = now_ns + long_ns;
    const eni_call *call = longest_held(store, now_ns, &n, &part);
    if (call == NULL) return;
    store->look_ns = now_ns + next_ns;
    eni_partition_list(store, part, false, others, sizeof others);
    if (n > 1) snprintf(more, sizeof more, ", and %u more call%s", n - 1, n == 2 ? "" : "s");
    eni_info("store",
             "on_pull of %s (shard %u, bucket %u, version %llu) has held the %s of rank %d at clock "
             "%llu for %.1f s%s; not held: %s",
             store->config.strategy->name, part->pub.shard, part->pub.bucket,
             (unsigned long long)part->pub.version, call->msg.data != NULL ? "push" : "pull", call->msg.src,
             (unsigned long long)call->msg.clock, (double)(now_ns - call->since_ns) / (double)ENI_SECOND,
             more, others[0] != '\0' ? others : "nobody, a timer is set");
}

/* ---- payloads ------------------------------------------------------------------------------------------ */

/* A buffer of max_count elements, and room in the pool for the day when it comes back. */
static float *pool_take(eni_store *store)
{
    if (store->pool.n > 0) return store->pool.free[--store->pool.n];
    const uint32_t made = store->pool.nmade + 1;
    if (eni_store_grow((void **)&store->pool.free, &store->pool.room, made, sizeof *store->pool.free) !=
        EN_OK)
        return NULL;
    float *buffer = eni_alloc_array(store->max_count, sizeof(float));
    if (buffer) store->pool.nmade++;
    return buffer;
}

en_status eni_store_call_detach(eni_store *store, eni_call *call)
{
    float *copy = pool_take(store);
    if (!copy) return EN_ENOMEM;
    memcpy(copy, call->msg.data, call->payload.count * sizeof(float));
    if (call->payload.release) call->payload.release(call->payload.owner);
    call->payload = (eni_payload){.data = copy, .count = call->payload.count};
    call->pooled = copy;
    call->msg.data = copy;
    store->stats.detached++;
    return EN_OK;
}

en_status eni_store_call_fill(eni_store *store, const eni_partition *part, eni_call *call, const void *raw)
{
    float *copy = pool_take(store);
    if (!copy) return EN_ENOMEM;
    memcpy(copy, raw, part->pub.count * sizeof(float));
    call->payload = (eni_payload){.data = copy, .count = part->pub.count};
    call->pooled = copy;
    call->msg.data = copy;
    return EN_OK;
}

/* ---- actions ------------------------------------------------------------------------------------------- */

eni_store_action *eni_store_act(eni_store *store, eni_store_action_type type, int32_t client, uint64_t ticket,
                                uint32_t bucket)
{
    eni_store_actions *actions = store->actions;
    if (actions->n == actions->room) {
        const uint32_t room = actions->room ? 2 * actions->room : 16;
        eni_store_action *item = realloc(actions->item, room * sizeof *item);
        if (!item) {
            eni_error("store", "out of memory for %u actions", room);
            return NULL;
        }
        actions->item = item;
        actions->room = room;
    }
    eni_store_action *action = &actions->item[actions->n++];
    *action = (eni_store_action){.type = type, .client = client, .ticket = ticket, .bucket = bucket};
    return action;
}

en_status eni_store_refuse(eni_store *store, int32_t client, uint64_t ticket, uint32_t bucket,
                           en_status status, const char *fmt, ...)
{
    eni_store_action *action = eni_store_act(store, ENI_STORE_REFUSE, client, ticket, bucket);
    if (!action) return EN_ENOMEM;
    va_list args;
    va_start(args, fmt);
    vsnprintf(action->text, sizeof action->text, fmt, args);
    va_end(args);
    action->status = status;
    store->stats.refused++;
    return EN_OK;
}

/* ---- version buffers ----------------------------------------------------------------------------------- */

/* Weights that another thread reads while the store goes on. An answer need not be copied into a
 * message: the message points at the weights themselves, and the step that would change them writes another
 * copy.
 *
 *     acquire  ->  the buffer of version 7 has a reader: a message being sent
 *     step     ->  7 is in use: the step works on a copy, the partition's buffer now; 7 waits behind it
 *     release  ->  7 is free for the next step that finds its buffer in use
 *
 * Where clients have received before they push again, as in rounds, a step finds nothing in use. */

struct eni_version_buffer {
    atomic_uint holders; /* the store, and its readers: the last one frees it */
    float *data;         /* (the partition's count) */
    struct eni_version_buffer *next;
};

eni_version_buffer *eni_version_buffer_new(uint64_t count)
{
    eni_version_buffer *buffer = eni_alloc(sizeof *buffer);
    if (!buffer) return NULL;
    atomic_init(&buffer->holders, 1);
    buffer->data = eni_alloc_array(count, sizeof(float));
    if (buffer->data) return buffer;
    eni_free(buffer);
    return NULL;
}

float *eni_version_buffer_data(const eni_version_buffer *buffer)
{
    return buffer->data;
}

static void release(eni_version_buffer *buffer)
{
    if (atomic_fetch_sub_explicit(&buffer->holders, 1, memory_order_acq_rel) > 1) return;
    eni_free(buffer->data);
    eni_free(buffer);
}

void eni_version_buffer_free_all(eni_version_buffer *first)
{
    for (eni_version_buffer *next; first; first = next) {
        next = first->next;
        release(first);
    }
}

static int is_acquired(const eni_version_buffer *buffer)
{
    return atomic_load_explicit(&buffer->holders, memory_order_acquire) > 1;
}

/* A version buffer that was released, or a new one. */
static eni_version_buffer *take_spare(eni_partition *part)
{
    for (eni_version_buffer **at = &part->buffer->next; *at; at = &(*at)->next) {
        eni_version_buffer *buffer = *at;
        if (is_acquired(buffer)) continue;
        *at = buffer->next;
        return buffer;
    }
    return eni_version_buffer_new(part->pub.count);
}

en_status eni_partition_own(eni_store *store, eni_partition *part)
{
    if (!part->buffer || !is_acquired(part->buffer)) return EN_OK;
    eni_version_buffer *spare = take_spare(part);
    if (!spare) return EN_ENOMEM;
    memcpy(spare->data, part->pub.w, part->pub.count * sizeof(float));
    spare->next = part->buffer;
    part->buffer = spare;
    part->pub.w = spare->data;
    store->stats.moved++;
    return EN_OK;
}

eni_version_buffer *eni_store_acquire(eni_store *store, uint32_t bucket)
{
    const eni_partition *part = eni_store_partition(store, bucket);
    eni_version_buffer *buffer = part ? part->buffer : NULL;
    if (buffer) atomic_fetch_add_explicit(&buffer->holders, 1, memory_order_relaxed);
    return buffer;
}

void eni_store_release(void *weights, void *buffer)
{
    (void)weights;
    release(buffer);
}

/* ---- staging ------------------------------------------------------------------------------------------- */

/* The order of the sum: by rank, and within a rank by clock. */
static int comes_before(const eni_call *a, const eni_call *b)
{
    if (a->msg.src != b->msg.src) return a->msg.src < b->msg.src;
    return a->msg.clock < b->msg.clock;
}

en_status eni_partition_stage(eni_store *store, eni_partition *part, eni_call *call, double weight)
{
    if (!call->msg.data)
        return eni_fail(EN_EBUG, "store", "strategy %s: absorb() of a pull, which carries nothing",
                        store->config.strategy->name);
    EN_TRY(
        eni_store_grow((void **)&part->staged, &part->staged_room, part->nstaged + 1, sizeof *part->staged));
    uint32_t at = part->nstaged++;
    for (; at > 0 && comes_before(call, part->staged[at - 1]); at--)
        part->staged[at] = part->staged[at - 1];
    part->staged[at] = call;
    call->weight = weight;
    call->is_staged = call->was_absorbed = 1;
    if (part->dedupe[call->msg.src].staged++ == 0) part->pub.pending++;
    return EN_OK;
}

void eni_partition_unstage(eni_store *store, eni_partition *part, eni_call *call)
{
    uint32_t at = 0;
    while (part->staged[at] != call)
        at++;
    part->nstaged--;
    memmove(&part->staged[at], &part->staged[at + 1], (part->nstaged - at) * sizeof *part->staged);
    call->is_staged = 0;
    if (--part->dedupe[call->msg.src].staged == 0) part->pub.pending--;
    if (!call->is_held && call != store->current) eni_store_call_retire(store, call);
}

/* Takes all contributions out. `status` not EN_OK: the calls that wait for an answer have it as their pending
 * error. */
static void unstage_all(eni_store *store, eni_partition *part, en_status status)
{
    for (uint32_t i = 0; i < part->nstaged; i++) {
        eni_call *call = part->staged[i];
        call->is_staged = 0;
        call->pending_error = status;
        part->dedupe[call->msg.src].staged = 0;
        if (!call->is_held && call != store->current) eni_store_call_retire(store, call);
    }
    part->nstaged = 0;
    part->pub.pending = 0;
}

en_status eni_partition_count(eni_store *store, eni_call *call, uint64_t version, int was_applied)
{
    eni_store_client_stats *stats = &store->client[call->msg.src].stats;
    const uint64_t behind = version - call->msg.base_version;
    call->met = version;
    call->is_counted = 1;
    *(was_applied ? &stats->applied : &stats->dropped) += call->covered;
    if (!was_applied) return EN_OK;
    if (call->msg.nsamples == 0 && call->covered == 0) return EN_OK;
    EN_TRY(eni_histogram_add(&stats->staleness, behind));
    return call->is_steady ? eni_histogram_add(&stats->steady, behind) : EN_OK;
}

/* ---- the mean and the step ----------------------------------------------------------------------------- */

static en_status room_for_sources(eni_store *store, uint32_t n)
{
    uint32_t room = store->mean.room;
    EN_TRY(eni_store_grow((void **)&store->mean.source, &room, n, sizeof *store->mean.source));
    return eni_store_grow((void **)&store->mean.scale, &store->mean.room, n, sizeof *store->mean.scale);
}

/* In the mean: deltas and weights count each client once. */
static uint64_t weight_of(const eni_partition *part, const eni_call *call)
{
    if (call->msg.what == EN_DELTA || call->msg.what == EN_WEIGHTS) return 1;
    return eni_mean_weight(call->msg.nsamples, (int)part->nstaged);
}

/* Elements [lo, hi) of the partition, summed from the first contribution of rank `rank` on, around. */
static void mean_range(eni_store *store, const eni_partition *part, int32_t rank, float inv, uint64_t lo,
                       uint64_t hi)
{
    uint32_t start = 0, n = 0;
    while (start < part->nstaged && part->staged[start]->msg.src < rank)
        start++;
    for (uint32_t k = 0; k < part->nstaged; k++) {
        const eni_call *call = part->staged[(start + k) % part->nstaged];
        if (weight_of(part, call) == 0) continue;
        store->mean.source[n] = call->msg.data + lo;
        store->mean.scale[n++] = (float)(call->weight * (double)weight_of(part, call));
    }
    eni_mean(store->mean.sum + lo, store->mean.source, store->mean.scale, (int)n, inv, hi - lo);
}

/* store->mean.sum = the mean of what is staged, which weighs something; the bits of eni_mean_ranks. */
static void mean_of_staged(eni_store *store, const eni_partition *part, uint64_t weight)
{
    const uint64_t count = part->pub.count, end = part->lo + count;
    const float inv = 1.0f / (float)weight;
    if (store->config.sum_order == ENI_SUM_RANK) {
        mean_range(store, part, 0, inv, 0, count);
        return;
    }
    const int world = store->config.world;
    for (int chunk = 0; chunk < world; chunk++) { /* chunks are of the whole bucket, whatever the shards */
        uint64_t lo = eni_slice_lo(part->whole, chunk, world),
                 hi = eni_slice_lo(part->whole, chunk + 1, world);
        if (lo < part->lo) lo = part->lo;
        if (hi > end) hi = end;
        if (lo < hi) mean_range(store, part, chunk, inv, lo - part->lo, hi - part->lo);
    }
}

/* Books the contributions that a step has used (or, not finite, lost). */
static en_status count_staged(eni_store *store, const eni_partition *part, int was_applied)
{
    for (uint32_t i = 0; i < part->nstaged; i++)
        EN_TRY(eni_partition_count(store, part->staged[i], part->pub.version, was_applied));
    return EN_OK;
}

static en_status apply_mean(eni_store *store, eni_partition *part)
{
    EN_TRY(eni_partition_own(store, part));
    eni_hyper hyper = store->config.hyper;
    hyper.lr = eni_schedule_lr(&store->config.schedule, part->samples);
    hyper.step = part->steps;
    eni_step_range(store->config.optimizer, part->at, part->pub.w, part->slot, store->mean.sum,
                   part->pub.count, &hyper);
    return EN_OK;
}

/* Where nobody has samples the step is counted, and nothing else. */
en_status eni_partition_step(eni_store *store, eni_partition *part)
{
    if (part->nstaged == 0) return EN_OK;
    uint64_t samples = 0, weight = 0;
    for (uint32_t i = 0; i < part->nstaged; i++) {
        samples += part->staged[i]->msg.nsamples;
        weight += weight_of(part, part->staged[i]);
    }
    if (weight > 0) EN_TRY(room_for_sources(store, part->nstaged));
    if (weight > 0) mean_of_staged(store, part, weight);
    const int is_finite = weight == 0 || eni_all_finite(store->mean.sum, part->pub.count);
    EN_TRY(count_staged(store, part, is_finite));
    if (!is_finite) {
        store->stats.nonfinite++;
        unstage_all(store, part, EN_ENONFINITE);
        return EN_ENONFINITE;
    }
    if (weight > 0) EN_TRY(apply_mean(store, part));
    part->steps++;
    part->samples += samples;
    part->pub.version++;
    store->stats.updates++;
    unstage_all(store, part, EN_OK);
    return EN_OK;
}

/* ---- clocks -------------------------------------------------------------------------------------------- */

void eni_partition_recount(const eni_store *store, eni_partition *part)
{
    part->pub.nclients = store->nactive;
    part->pub.min_clock = UINT64_MAX;
    part->nmin = part->nstarted = 0;
    for (int32_t r = 0; r < store->config.world; r++) {
        const eni_dedupe *dedupe = &part->dedupe[r];
        if (store->client[r].presence != ENI_ACTIVE) continue;
        part->nstarted += dedupe->pushes > 0;
        if (dedupe->clock < part->pub.min_clock) {
            part->pub.min_clock = dedupe->clock;
            part->nmin = 0;
        }
        part->nmin += dedupe->clock == part->pub.min_clock;
    }
}

/* ---- the contract -------------------------------------------------------------------------------------- */

/* Logs what the hook that runs has done, with its place in front, and makes it fail. */
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
        eni_hook_place_text(&store->hook.place, place, sizeof place);
    snprintf(store->hook.said, sizeof store->hook.said, "%.100s %.90s", place, text);
    eni_error("store", "%s %s", place, text);
}

/* 1 if `part` is the one whose hook runs; else misuse of `operation`. */
static int knows(eni_store *store, const char *operation, const en_partition *part)
{
    if (store->hook.part != NULL && part == &store->hook.part->pub) return 1;
    misuse(store, "called %s with a partition that is not the hook's", operation);
    return 0;
}

/* ---- the table: what a hook may ask -------------------------------------------------------------------- */

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
    return has_key(store, "num", key, false) ? eni_options_num(store->config.options, key) : 0;
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
    eni_hook_leave(store->config.hooks); /* whoever reads it may take his time */
    eni_log(level, store->config.strategy->name, "%s", text);
    if (store->hook.part != NULL) eni_hook_enter(store->config.hooks, &store->hook.place);
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
    eni_dedupe *dedupe = &store->hook.part->dedupe[src];
    if (!dedupe->peer && !(dedupe->peer = eni_alloc_array(vecs, sizeof *dedupe->peer))) return NULL;
    if (!dedupe->peer[i]) {
        dedupe->peer[i] = eni_alloc_array(pub->count, sizeof(float));
        if (dedupe->peer[i]) memcpy(dedupe->peer[i], store->hook.part->first, pub->count * sizeof(float));
    }
    return dedupe->peer[i];
}

static void table_timer(en_store *table, const en_partition *pub, int64_t delay_ns)
{
    eni_store *store = table_store(table);
    eni_partition *part = store->hook.part;
    if (!knows(store, "timer", pub)) return;
    if (delay_ns < 0) delay_ns = 0;
    part->has_timer = store->has_timers = 1;
    part->timer_ns = delay_ns < INT64_MAX - store->now_ns ? store->now_ns + delay_ns : INT64_MAX - 1;
}

static en_status table_answer(en_store *table, const en_msg *msg, uint64_t word)
{
    eni_store *store = table_store(table);
    if (store->hook.call == NULL || msg != &store->hook.call->msg) {
        misuse(store, "called answer without its message: it belongs into on_push and on_pull");
        return EN_EBUG;
    }
    if (word == 0) return EN_OK;
    misuse(store, "called answer with the word %llu, which nothing carries yet: give 0",
           (unsigned long long)word);
    store->hook.verdict = EN_EINVAL;
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
    store->hook = (eni_store_hook){.part = part,
                                   .call = call,
                                   .place = {.hook = hook,
                                             .plugin = store->config.strategy->name,
                                             .number = {{"shard", part->pub.shard},
                                                        {"bucket", part->pub.bucket},
                                                        {"version", (int64_t)part->pub.version},
                                                        {client >= 0 ? "rank" : NULL, client}}}};
    eni_hook_enter(store->config.hooks, &store->hook.place);
    return EN_OK;
}

static en_status end_hook(eni_store *store)
{
    eni_hook_leave(store->config.hooks);
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

/* After on_push: the weights as they were, or as a step or touch has told of. */
static void check_weights(eni_store *store, const eni_partition *part, uint64_t version, uint32_t crc,
                          bool was_finite)
{
    if (part->pub.version == version && crc_of(part) != crc)
        misuse(store, "has written the weights and not called touch");
    else if (was_finite && store->did_touch && !eni_all_finite(part->pub.w, part->pub.count))
        misuse(store, "has left a weight that is not finite");
}

en_status eni_store_hook_push(eni_store *store, eni_partition *part, eni_call *call)
{
    EN_TRY(begin_hook(store, "on_push", part, call, call->msg.src));
    const bool watches = is_watched(store, part);
    const uint64_t version = part->pub.version;
    const uint32_t crc = watches ? crc_of(part) : 0;
    const bool was_finite =
        watches && all_finite(part, call); /* else the run diverges, and not by the hook */
    en_status st = store->config.strategy->on_push(&store->table, part->state, &part->pub, &call->msg);
    if (st < 0 || st > EN_EBUG || st == EN_ESTOP || st == EN_EINTR || st == EN_EPEER || st == EN_EMEMBER) {
        misuse(store, "returned %d, which only the host may say", st);
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
