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

/* Everything of one cell that its size decides. */
static en_status cell_init(eni_store *store, eni_cell *cell, uint32_t bucket)
{
    const eni_store_config *config = &store->config;
    const uint64_t whole = config->bucket_counts[bucket];
    const uint64_t hi = eni_slice_lo(whole, config->shard + 1, config->nshards);
    cell->whole = whole;
    cell->lo = eni_slice_lo(whole, config->shard, config->nshards);
    cell->pub = (en_cell){
        .size = sizeof(en_cell),
        .bucket = bucket,
        .shard = (uint32_t)config->shard,
        .count = hi - cell->lo,
        .min_clock = UINT64_MAX,
    };
    if (cell->pub.count == 0) return EN_OK;
    store->ncells++;
    if (cell->pub.count > store->max_count) store->max_count = cell->pub.count;
    cell->seat = eni_alloc_array((size_t)config->world, sizeof *cell->seat);
    cell->state = eni_alloc(config->strategy->cell_state);
    if (!config->weights) cell->edition = eni_edition_new(cell->pub.count);
    if (!cell->seat || !cell->state || (!config->weights && !cell->edition)) return EN_ENOMEM;
    cell->pub.w = config->weights ? config->weights + config->weight_offsets[bucket] + cell->lo
                                  : eni_edition_data(cell->edition);
    for (int i = 0; i < config->optimizer->slots(&config->hyper); i++)
        if (!(cell->slot[i] = eni_alloc_array(cell->pub.count, sizeof(float)))) return EN_ENOMEM;
    if (config->strategy->peer_vecs > 0)
        if (!(cell->first = eni_alloc_array(cell->pub.count, sizeof(float)))) return EN_ENOMEM;
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
    store->cell = eni_alloc_array(config->nbuckets, sizeof *store->cell);
    store->client = eni_alloc_array((size_t)config->world, sizeof *store->client);
    if (!counts || !store->cell || !store->client) goto free_store;
    for (uint32_t b = 0; b < config->nbuckets; b++) {
        counts[b] = config->bucket_counts[b];
        EN_TRY_GOTO(cell_init(store, &store->cell[b], b), free_store);
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

static void cell_fini(eni_store *store, eni_cell *cell)
{
    /* A staged call that was answered is in no other list. */
    for (uint32_t i = 0; i < cell->nstaged; i++)
        if (!cell->staged[i]->is_held) eni_store_call_free(store, cell->staged[i]);
    free_calls(store, cell->held_first);
    free(cell->staged);
    for (int32_t r = 0; cell->seat && r < store->config.world; r++) {
        for (uint32_t i = 0; cell->seat[r].peer && i < store->config.strategy->peer_vecs; i++)
            eni_free(cell->seat[r].peer[i]);
        eni_free(cell->seat[r].peer);
    }
    eni_free(cell->seat);
    eni_free(cell->state);
    eni_edition_free_all(cell->edition);
    eni_free(cell->first);
    for (int i = 0; i < ENI_MAX_SLOTS; i++) {
        eni_free(cell->slot[i]);
        eni_free(cell->frozen[i]);
    }
}

void eni_store_free(eni_store *store)
{
    if (!store) return;
    for (uint32_t b = 0; store->cell && b < store->config.nbuckets; b++)
        cell_fini(store, &store->cell[b]);
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
    eni_free(store->cell);
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
    const eni_cell *cell = eni_store_cell(store, bucket);
    return cell ? cell->pub.count : 0;
}

uint32_t eni_store_ncells(const eni_store *store)
{
    return store->ncells;
}

uint32_t eni_store_nused(const eni_store *store)
{
    return store->nused;
}

const float *eni_store_weights(const eni_store *store, uint32_t bucket, uint64_t *version_out)
{
    const eni_cell *cell = eni_store_cell(store, bucket);
    if (!cell || !cell->is_initialised) return NULL;
    if (version_out) *version_out = cell->pub.version;
    return cell->pub.w;
}

const float *eni_store_slot(const eni_store *store, uint32_t bucket, int i)
{
    const eni_cell *cell = eni_store_cell(store, bucket);
    return cell && i >= 0 && i < ENI_MAX_SLOTS ? cell->slot[i] : NULL;
}

uint64_t eni_store_samples(const eni_store *store, uint32_t bucket)
{
    const eni_cell *cell = eni_store_cell(store, bucket);
    return cell ? cell->samples : 0;
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
        if (store->cell[b].pub.count > 0 && !store->cell[b].is_initialised) return 0;
    return 1;
}
