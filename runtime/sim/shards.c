/* shards.c - the stores of a run: one per shard on the servers, or one per rank, as the strategy's flags say. */
#include <string.h>

#include "core/memory.h"
#include "core/try.h"
#include "runtime/sim/world.h"

/* Adds a store's clients, then its partitions' initial weights, as if all had happened before the start. */
static en_status fill_store(eni_sim_store *store, int32_t shard, int32_t nshards)
{
    eni_sim *sim = store->sim;
    const float *init = sim->config->problem->init;
    for (int32_t r = 0; r < sim->nranks; r++) {
        if (!eni_delivery_is_client(&sim->ranks[r]) || eni_sim_comes_later(sim, r)) continue;
        EN_TRY(eni_delivery_handle(store, &(eni_store_event){.type = ENI_STORE_MEMBER,
                                                             .client = r,
                                                             .incarnation = ENI_SIM_INCARNATION,
                                                             .member = EN_MEMBER_JOINED}));
    }
    for (uint32_t b = 0; b < sim->buckets->n; b++) {
        const eni_bucket_range *range = &sim->buckets->bucket[b];
        const uint64_t count = range->hi - range->lo, lo = eni_slice_lo(count, shard, nshards);
        const uint64_t part = eni_slice_lo(count, shard + 1, nshards) - lo;
        if (part == 0) continue;
        const eni_payload payload = {.data = (float *)(uintptr_t)(init + range->lo + lo),
                                     .count = part,
                                     .flags = ENI_PAYLOAD_READ_ONLY};
        EN_TRY(eni_delivery_handle(
            store, &(eni_store_event){.type = ENI_STORE_INIT, .bucket = b, .payload = payload}));
    }
    return EN_OK;
}

/* An empty core. */
static en_status new_core(eni_sim *sim, int32_t index)
{
    const bool is_shard = index < sim->stores.nshards;
    uint64_t *counts = eni_alloc_array(sim->buckets->n, sizeof *counts);
    if (counts == NULL) return EN_ENOMEM;
    for (uint32_t b = 0; b < sim->buckets->n; b++)
        counts[b] = sim->buckets->bucket[b].hi - sim->buckets->bucket[b].lo;
    const eni_store_config config = {
        .strategy = sim->config->strategy,
        .options = sim->options,
        .hooks = sim->config->hooks,
        .watch = ENI_WATCH_ALL,
        .judges_holds = sim->config->faults == NULL, /* a rank that died may come back */
        .optimizer = sim->config->optimizer,
        .hyper = sim->config->hyper,
        .schedule = sim->config->schedule,
        .sum_order = sim->config->sum_order,
        .nbuckets = sim->buckets->n,
        .bucket_counts = counts,
        .shard = is_shard ? index : 0,
        .nshards = is_shard ? sim->stores.nshards : 1,
        .world = sim->nranks,
        .seed = sim->config->seed,
        .stream = is_shard ? (uint32_t)index : 0x10000u + (uint32_t)sim->stores.all[index].node};
    const en_status st = eni_store_new(&config, &sim->stores.all[index].core);
    eni_free(counts);
    return st;
}

static en_status open_store(eni_sim *sim, int32_t index)
{
    const bool is_shard = index < sim->stores.nshards;
    eni_sim_store *store = &sim->stores.all[index];
    *store = (eni_sim_store){.sim = sim,
                             .node = is_shard ? sim->nranks + index : index - sim->stores.nshards,
                             .peer = is_shard ? index : sim->stores.nshards - index - 1,
                             .timer_ns = INT64_MAX};
    EN_TRY(new_core(sim, index));
    return fill_store(store, is_shard ? index : 0, is_shard ? sim->stores.nshards : 1);
}

en_status eni_shards_renew(eni_sim *sim, int32_t store)
{
    eni_store_free(sim->stores.all[store].core);
    sim->stores.all[store].core = NULL;
    return new_core(sim, store);
}

en_status eni_shards_open(eni_sim *sim)
{
    const uint32_t flags = sim->config->strategy->flags;
    sim->stores.nshards = flags & EN_STORE_ON_SERVERS ? sim->config->nshards : 0;
    sim->stores.n = sim->stores.nshards + (flags & EN_STORE_ON_RANKS ? sim->nranks : 0);
    sim->stores.all = eni_sim_alloc(sim, (size_t)sim->stores.n * sizeof *sim->stores.all);
    en_status st = sim->stores.all != NULL ? EN_OK : EN_ENOMEM;
    for (int32_t k = 0; k < sim->stores.n && st == EN_OK; k++)
        st = open_store(sim, k);
    return st;
}

/* Stores on ranks are replicas: the model is their mean. */
static void mean_of_stores(const eni_sim *sim, float *flat_out)
{
    for (uint32_t b = 0; b < sim->buckets->n; b++) {
        const eni_bucket_range *range = &sim->buckets->bucket[b];
        for (int32_t k = 0; k < sim->stores.n; k++) { /* one on each rank */
            sim->means.from[k] = eni_store_weights(sim->stores.all[k].core, b, NULL);
            sim->means.weight[k] = 1;
        }
        eni_mean_ranks(flat_out + range->lo, sim->means.from, sim->means.weight, sim->stores.n, ENI_SUM_RANK,
                       range->hi - range->lo, 0, range->hi - range->lo);
    }
}

void eni_shards_collect(const eni_sim *sim, float *flat_out)
{
    if (sim->stores.nshards == 0) {
        mean_of_stores(sim, flat_out);
        return;
    }
    for (uint32_t b = 0; b < sim->buckets->n; b++) {
        const eni_bucket_range *range = &sim->buckets->bucket[b];
        for (int32_t k = 0; k < sim->stores.nshards; k++) {
            const eni_store *core = sim->stores.all[k].core; /* NULL: the run ended while it was down */
            const float *weights = core != NULL ? eni_store_weights(core, b, NULL) : NULL;
            if (weights == NULL) continue;
            memcpy(flat_out + range->lo + eni_slice_lo(range->hi - range->lo, k, sim->stores.nshards),
                   weights, eni_store_count(sim->stores.all[k].core, b) * sizeof(float));
        }
    }
}

en_status eni_shards_join(eni_sim_rank *rank)
{
    eni_sim *sim = rank->sim;
    uint64_t clock = 0;
    eni_shards_collect(sim, eni_sim_rank_own(rank));
    for (uint32_t b = 0; b < sim->buckets->n; b++)
        for (int32_t k = 0; k < sim->stores.nshards; k++) {
            const eni_store *core = sim->stores.all[k].core;
            const uint64_t least = eni_store_least_clock(core, b);
            if (least > clock) clock = least;
            (void)eni_store_weights(core, b, &eni_client_partition_at(&rank->client, b, k)->version);
        }
    for (int32_t k = 0; k < sim->stores.nshards; k++)
        EN_TRY(eni_delivery_handle(&sim->stores.all[k], &(eni_store_event){.type = ENI_STORE_MEMBER,
                                                                           .client = rank->world.rank,
                                                                           .incarnation = ENI_SIM_INCARNATION,
                                                                           .member = EN_MEMBER_JOINED,
                                                                           .kind = ENI_JOIN_AT_CLOCK,
                                                                           .seq = clock}));
    return EN_OK;
}

void eni_shards_close(eni_sim *sim)
{
    for (int32_t k = 0; sim->stores.all != NULL && k < sim->stores.n; k++)
        eni_store_free(sim->stores.all[k].core);
    eni_store_actions_fini(&sim->stores.actions);
}
