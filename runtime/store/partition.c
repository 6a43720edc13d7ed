/* partition.c - the weights and counts of one partition. Contributions are staged in the order of their sum,
 * averaged, stepped and counted; a step writes a version buffer that nobody is reading. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/canary.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/store/store_impl.h"

/* ---- version buffers ---- */

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
    if (buffer == NULL) return NULL;
    atomic_init(&buffer->holders, 1);
    buffer->data = eni_alloc_array(count + ENI_CANARY, sizeof(float));
    if (buffer->data != NULL) return buffer;
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
    for (eni_version_buffer *next; first != NULL; first = next) {
        next = first->next;
        release(first);
    }
}

static bool is_acquired(const eni_version_buffer *buffer)
{
    return atomic_load_explicit(&buffer->holders, memory_order_acquire) > 1;
}

/* A version buffer that was released, or a new one. */
static eni_version_buffer *take_spare(eni_partition *part)
{
    for (eni_version_buffer **at = &part->buffer->next; *at != NULL; at = &(*at)->next) {
        eni_version_buffer *buffer = *at;
        if (is_acquired(buffer)) continue;
        *at = buffer->next;
        return buffer;
    }
    return eni_version_buffer_new(part->pub.count);
}

en_status eni_partition_own(eni_store *store, eni_partition *part, bool copies)
{
    if (part->buffer == NULL || !is_acquired(part->buffer)) return EN_OK;
    eni_version_buffer *spare = take_spare(part);
    if (spare == NULL) return EN_ENOMEM;
    if (copies) memcpy(spare->data, part->pub.w, (part->pub.count + ENI_CANARY) * sizeof(float));
    spare->next = part->buffer;
    part->buffer = spare;
    part->pub.w = spare->data;
    store->stats.moved++;
    return EN_OK;
}

eni_version_buffer *eni_store_acquire(eni_store *store, uint32_t bucket)
{
    const eni_partition *part = eni_store_partition(store, bucket);
    eni_version_buffer *buffer = part != NULL ? part->buffer : NULL;
    if (buffer != NULL) atomic_fetch_add_explicit(&buffer->holders, 1, memory_order_relaxed);
    return buffer;
}

void eni_store_release(void *weights, void *buffer)
{
    (void)weights;
    release(buffer);
}

/* ---- staging ---- */

/* The order of the sum: by rank, and within a rank by clock. */
static bool comes_before(const eni_call *a, const eni_call *b)
{
    if (a->msg.src != b->msg.src) return a->msg.src < b->msg.src;
    return a->msg.clock < b->msg.clock;
}

en_status eni_partition_stage(eni_store *store, eni_partition *part, eni_call *call, double weight)
{
    if (call->msg.data == NULL)
        return eni_fail(EN_EBUG, "store", "strategy %s: absorb() of a pull, which has no payload",
                        store->config.strategy->name);
    EN_TRY(eni_grow((void **)&part->staged, &part->staged_room, part->nstaged + 1, sizeof *part->staged));
    part->staged[part->nstaged++] = call;
    call->weight = store->last_weight = weight;
    call->is_staged = call->was_absorbed = true;
    if (part->dedupe[call->msg.src].staged++ == 0) part->pub.pending++;
    return EN_OK;
}

double eni_store_last_weight(const eni_store *store)
{
    return store->last_weight;
}

void eni_partition_unstage(eni_store *store, eni_partition *part, eni_call *call)
{
    uint32_t at = 0;
    while (part->staged[at] != call)
        at++;
    part->nstaged--;
    memmove(&part->staged[at], &part->staged[at + 1], (part->nstaged - at) * sizeof *part->staged);
    call->is_staged = false;
    if (--part->dedupe[call->msg.src].staged == 0) part->pub.pending--;
    if (!call->is_held && call != store->current) eni_store_call_retire(store, call);
}

/* Takes all contributions out. With a `status` other than EN_OK, it becomes the pending error of their calls
 * that wait for an answer. */
static void unstage_all(eni_store *store, eni_partition *part, en_status status)
{
    for (uint32_t i = 0; i < part->nstaged; i++) {
        eni_call *call = part->staged[i];
        call->is_staged = false;
        call->pending_error = status;
        part->dedupe[call->msg.src].staged = 0;
        if (!call->is_held && call != store->current) eni_store_call_retire(store, call);
    }
    part->nstaged = 0;
    part->pub.pending = 0;
    if (status != EN_OK) part->held.has_errors = true;
}

en_status eni_partition_count(eni_store *store, eni_call *call, uint64_t version, bool was_applied)
{
    eni_store_client_stats *stats = &store->client[call->msg.src].stats;
    const uint64_t behind = version - call->msg.base_version;
    call->met = version;
    call->is_counted = true;
    *(was_applied ? &stats->applied : &stats->dropped) += call->covered;
    if (!was_applied) return EN_OK;
    if (call->msg.nsamples == 0 && call->covered == 0) return EN_OK;
    EN_TRY(eni_histogram_add(&stats->staleness, behind));
    return call->is_steady ? eni_histogram_add(&stats->steady, behind) : EN_OK;
}

/* ---- the mean and the step ---- */

/* Sorts the staged contributions: by insertion; of many, which may be a million in virtual time, the ranks are in order
 * before. */
static void put_in_order(eni_store *store, eni_partition *part)
{
    enum { FEW = 64 };
    eni_call **by_rank = (eni_call **)(void *)store->mean.source; /* has the room, and is not in use yet */
    uint32_t place = 0;
    for (int32_t r = 0; part->nstaged > FEW && r < store->config.world; place += part->dedupe[r++].staged)
        part->dedupe[r].place = place;
    for (uint32_t i = 0; part->nstaged > FEW && i < part->nstaged; i++)
        by_rank[part->dedupe[part->staged[i]->msg.src].place++] = part->staged[i];
    if (part->nstaged > FEW) memcpy(part->staged, by_rank, part->nstaged * sizeof *by_rank);
    for (uint32_t i = 1; i < part->nstaged; i++) {
        eni_call *call = part->staged[i];
        for (place = i; place > 0 && comes_before(call, part->staged[place - 1]); place--)
            part->staged[place] = part->staged[place - 1];
        part->staged[place] = call;
    }
}

static en_status room_for_sources(eni_store *store, uint32_t n)
{
    uint32_t room = store->mean.room;
    EN_TRY(eni_grow((void **)&store->mean.source, &room, n, sizeof *store->mean.source));
    return eni_grow((void **)&store->mean.scale, &store->mean.room, n, sizeof *store->mean.scale);
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

/* The mean of the staged contributions, with a weight above 0: as eni_mean_ranks. The mean of one is that one, where it lies. */
static const float *mean_of_staged(eni_store *store, const eni_partition *part, uint64_t weight)
{
    const uint64_t count = part->pub.count, end = part->lo + count;
    const float inv = 1.0f / (float)weight;
    if (part->nstaged == 1 && part->staged[0]->weight == 1) return part->staged[0]->msg.data;
    if (store->config.sum_order == ENI_SUM_RANK) {
        mean_range(store, part, 0, inv, 0, count);
        return store->mean.sum;
    }
    const int world = store->config.world;
    for (int chunk = 0; chunk < world; chunk++) { /* chunks are of the whole bucket, whatever the shards */
        uint64_t lo = eni_slice_lo(part->whole, chunk, world),
                 hi = eni_slice_lo(part->whole, chunk + 1, world);
        if (lo < part->lo) lo = part->lo;
        if (hi > end) hi = end;
        if (lo < hi) mean_range(store, part, chunk, inv, lo - part->lo, hi - part->lo);
    }
    return store->mean.sum;
}

/* Weights in use are copied block by block, so that the step finds the copy in the cache. */
static en_status apply(eni_store *store, eni_partition *part, const float *mean)
{
    enum { BLOCK = 512 };
    const float *before = part->pub.w;
    EN_TRY(eni_partition_own(store, part, false));
    eni_hyper hyper = store->config.hyper;
    hyper.lr = eni_schedule_lr(&store->config.schedule, part->samples);
    hyper.step = part->steps;
    for (uint64_t lo = 0, n; lo < part->pub.count; lo += n) {
        float *slots[ENI_MAX_SLOTS] = {NULL}, *w = part->pub.w + lo;
        n = part->pub.w == before || part->pub.count - lo < BLOCK ? part->pub.count - lo : BLOCK;
        if (part->pub.w != before) memcpy(w, before + lo, n * sizeof *w);
        for (int i = 0; i < ENI_MAX_SLOTS; i++)
            if (part->slot[i] != NULL) slots[i] = part->slot[i] + lo;
        eni_step_range(store->config.optimizer, part->at + lo, w, slots, mean + lo, n, &hyper);
    }
    return EN_OK;
}

/* With EN_SYNCHRONOUS a step is that of all clients: otherwise there are several a round, and those who come later are stale. */
static en_status check_synchronous(eni_store *store, const eni_partition *part)
{
    if (part->pub.pending >= part->pub.nclients ||
        !eni_options_are_synchronous(store->config.strategy, store->config.options))
        return EN_OK;
    store->hook.verdict = EN_EBUG;
    snprintf(store->hook.said, sizeof store->hook.said,
             "%.40s sets EN_SYNCHRONOUS, but steps bucket %u (shard %u, version %llu) with the gradients of "
             "%u of %u clients: "
             "step when all have pushed (rule 6)",
             store->config.strategy->name, part->pub.bucket, part->pub.shard,
             (unsigned long long)part->pub.version, part->pub.pending, part->pub.nclients);
    return eni_fail(EN_EBUG, "store", "%s", store->hook.said);
}

/* Without any samples the step is only counted. */
en_status eni_partition_step(eni_store *store, eni_partition *part)
{
    if (part->nstaged == 0) return EN_OK;
    EN_TRY(check_synchronous(store, part));
    uint64_t samples = 0, weight = 0;
    for (uint32_t i = 0; i < part->nstaged; i++) {
        samples += part->staged[i]->msg.nsamples;
        weight += weight_of(part, part->staged[i]);
    }
    EN_TRY(room_for_sources(store, part->nstaged));
    put_in_order(store, part);
    const float *mean = weight > 0 ? mean_of_staged(store, part, weight) : NULL;
    const bool is_finite = mean == NULL || eni_all_finite(mean, part->pub.count);
    for (uint32_t i = 0; i < part->nstaged; i++)
        EN_TRY(eni_partition_count(store, part->staged[i], part->pub.version, is_finite));
    if (!is_finite) {
        store->stats.nonfinite++;
        unstage_all(store, part, EN_ENONFINITE);
        return EN_ENONFINITE;
    }
    if (mean != NULL) EN_TRY(apply(store, part, mean));
    part->steps++;
    part->samples += samples;
    part->pub.version++;
    store->stats.updates++;
    unstage_all(store, part, EN_OK);
    return EN_OK;
}

/* ---- clocks ---- */

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

void eni_partition_count_member(const eni_store *store, eni_partition *part, int32_t who)
{
    const eni_dedupe *dedupe = &part->dedupe[who];
    const bool is_active = store->client[who].presence == ENI_ACTIVE;
    part->pub.nclients = store->nactive;
    if (!is_active) {
        part->nstarted -= dedupe->pushes > 0;
        if (dedupe->clock == part->pub.min_clock && --part->nmin == 0) eni_partition_recount(store, part);
    } else if (dedupe->clock < part->pub.min_clock) {
        part->pub.min_clock = dedupe->clock;
        part->nmin = 1;
    } else {
        part->nmin += dedupe->clock == part->pub.min_clock;
    }
}
