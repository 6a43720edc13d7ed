/* store.c - a store's life, and the questions it answers. What happens in between is store_step.c. */
#include "runtime/store/store.h"

#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/store/store_impl.h"

static en_status check_config(const eni_store_config *config)
{
    if (!config->strategy || !config->optimizer) {
        eni_error("store", "a store needs a strategy and an optimizer");
        return EN_EINVAL;
    }
    if (config->world < 1 || config->nshards < 1 || config->shard < 0 || config->shard >= config->nshards) {
        eni_error("store", "shard %d of %d for %d clients makes no sense", config->shard, config->nshards,
                  config->world);
        return EN_EINVAL;
    }
    const int slots = config->optimizer->slots(&config->hyper);
    if (slots < 0 || slots > ENI_MAX_SLOTS) {
        eni_error("store", "optimizer %s asks for %d slots, at most %d are possible", config->optimizer->name,
                  slots, ENI_MAX_SLOTS);
        return EN_EINVAL;
    }
    return EN_OK;
}

/* Everything of one partition that its size decides. */
static en_status partition_init(eni_store *store, eni_partition *part, uint32_t bucket)
{
    const eni_store_config *config = &store->config;
    const uint64_t whole = config->bucket_counts[bucket];
    const uint64_t hi = eni_slice_lo(whole, config->shard + 1, config->nshards);
    part->whole = whole;
    part->lo = eni_slice_lo(whole, config->shard, config->nshards);
    part->pub = (en_partition){
        .size = sizeof(en_partition),
        .bucket = bucket,
        .shard = (uint32_t)config->shard,
        .count = hi - part->lo,
        .min_clock = UINT64_MAX,
    };
    if (part->pub.count == 0) return EN_OK;
    store->npartitions++;
    if (part->pub.count > store->max_count) store->max_count = part->pub.count;
    part->dedupe = eni_alloc_array((size_t)config->world, sizeof *part->dedupe);
    part->state = eni_alloc(config->strategy->partition_state);
    if (!config->weights) part->buffer = eni_version_buffer_new(part->pub.count);
    if (!part->dedupe || !part->state || (!config->weights && !part->buffer)) return EN_ENOMEM;
    part->pub.w = config->weights ? config->weights + config->weight_offsets[bucket] + part->lo
                                  : eni_version_buffer_data(part->buffer);
    for (int i = 0; i < config->optimizer->slots(&config->hyper); i++)
        if (!(part->slot[i] = eni_alloc_array(part->pub.count, sizeof(float)))) return EN_ENOMEM;
    if (config->strategy->peer_vecs > 0)
        if (!(part->first = eni_alloc_array(part->pub.count, sizeof(float)))) return EN_ENOMEM;
    return EN_OK;
}

en_status eni_store_new(const eni_store_config *config, eni_store **store_out)
{
    EN_TRY(check_config(config));
    en_status st = EN_ENOMEM;
    eni_store *store = eni_alloc(sizeof *store);
    if (!store) return EN_ENOMEM;
    store->config = *config;
    store->timer_told = INT64_MAX;
    eni_store_fill_table(store);
    uint64_t *counts = eni_alloc_array(config->nbuckets, sizeof *counts);
    store->config.bucket_counts = counts;
    store->part = eni_alloc_array(config->nbuckets, sizeof *store->part);
    store->client = eni_alloc_array((size_t)config->world, sizeof *store->client);
    if (!counts || !store->part || !store->client) goto free_store;
    for (uint32_t b = 0; b < config->nbuckets; b++) {
        counts[b] = config->bucket_counts[b];
        EN_TRY_GOTO(partition_init(store, &store->part[b], b), free_store);
    }
    st = EN_ENOMEM;
    if (!(store->mean = eni_alloc_array(store->max_count, sizeof(float)))) goto free_store;
    *store_out = store;
    return EN_OK;

free_store:
    eni_store_free(store);
    return st;
}

static void free_calls(eni_store *store, eni_call *first)
{
    while (first) {
        eni_call *next = first->next;
        eni_store_call_free(store, first);
        first = next;
    }
}

static void partition_fini(eni_store *store, eni_partition *part)
{
    /* A staged call that was answered is in no other list. */
    for (uint32_t i = 0; i < part->nstaged; i++)
        if (!part->staged[i]->is_held) eni_store_call_free(store, part->staged[i]);
    free_calls(store, part->held_first);
    free(part->staged);
    for (int32_t r = 0; part->dedupe && r < store->config.world; r++) {
        for (uint32_t i = 0; part->dedupe[r].peer && i < store->config.strategy->peer_vecs; i++)
            eni_free(part->dedupe[r].peer[i]);
        eni_free(part->dedupe[r].peer);
    }
    eni_free(part->dedupe);
    eni_free(part->state);
    eni_version_buffer_free_all(part->buffer);
    eni_free(part->first);
    for (int i = 0; i < ENI_MAX_SLOTS; i++) {
        eni_free(part->slot[i]);
        eni_free(part->frozen[i]);
    }
}

void eni_store_free(eni_store *store)
{
    if (!store) return;
    for (uint32_t b = 0; store->part && b < store->config.nbuckets; b++)
        partition_fini(store, &store->part[b]);
    free_calls(store, store->retired);
    free_calls(store, store->idle);
    for (uint32_t i = 0; i < store->npool; i++)
        eni_free(store->pool[i]);
    free(store->pool);
    for (int32_t r = 0; store->client && r < store->config.world; r++) {
        eni_histogram_fini(&store->client[r].stats.staleness);
        eni_histogram_fini(&store->client[r].stats.steady);
    }
    eni_free(store->client);
    eni_free(store->part);
    eni_free((void *)store->config.bucket_counts);
    eni_free(store->mean);
    free(store->source);
    free(store->scale);
    eni_free(store);
}

void eni_store_actions_fini(eni_store_actions *actions)
{
    free(actions->item);
    *actions = (eni_store_actions){0};
}

/* ---- questions ----------------------------------------------------------------------------------------- */

uint64_t eni_store_count(const eni_store *store, uint32_t bucket)
{
    const eni_partition *part = eni_store_partition(store, bucket);
    return part ? part->pub.count : 0;
}

uint32_t eni_store_npartitions(const eni_store *store)
{
    return store->npartitions;
}

uint32_t eni_store_nused(const eni_store *store)
{
    return store->nused;
}

const float *eni_store_weights(const eni_store *store, uint32_t bucket, uint64_t *version_out)
{
    const eni_partition *part = eni_store_partition(store, bucket);
    if (!part || !part->is_initialised) return NULL;
    if (version_out) *version_out = part->pub.version;
    return part->pub.w;
}

const float *eni_store_slot(const eni_store *store, uint32_t bucket, int i)
{
    const eni_partition *part = eni_store_partition(store, bucket);
    return part && i >= 0 && i < ENI_MAX_SLOTS ? part->slot[i] : NULL;
}

uint64_t eni_store_samples(const eni_store *store, uint32_t bucket)
{
    const eni_partition *part = eni_store_partition(store, bucket);
    return part ? part->samples : 0;
}

const eni_store_stats *eni_store_totals(const eni_store *store)
{
    return &store->stats;
}

const eni_store_client_stats *eni_store_client(const eni_store *store, int32_t client)
{
    return &store->client[client].stats;
}

int eni_store_is_initialised(const eni_store *store)
{
    for (uint32_t b = 0; b < store->config.nbuckets; b++)
        if (store->part[b].pub.count > 0 && !store->part[b].is_initialised) return 0;
    return 1;
}
