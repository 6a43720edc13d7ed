/* storm.c - the life of a storm: which faults there are and when, its end, and what the stores counted against
 * what was seen from outside (storm.h). */
#include "runtime/sim/faults/storm.h"

#include <inttypes.h>
#include <stdlib.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/sim/faults/weather.h"

enum { STREAM = 0x570a3000 }; /* of the random numbers: no rank's */

static void time_is_up(void *sim_, void *unused)
{
    eni_sim *sim = sim_;
    (void)unused;
    eni_sim_fail(sim, EN_ETIMEOUT);
}

/* Draws the faults that have a time of their own. */
static void plan(eni_sim *sim)
{
    eni_weather *w = sim->weather;
    const eni_storm *storm = w->storm;
    for (int32_t i = 0; i < storm->cuts; i++) {
        const int64_t from = eni_weather_draw_ns(w, storm->calm_ns);
        w->cut[i] = (eni_cut){.rank = (int32_t)eni_weather_draw(w, (uint64_t)sim->nranks),
                              .store = (int32_t)eni_weather_draw(w, (uint64_t)sim->nstores),
                              .ways = 1 + (int32_t)eni_weather_draw(w, 3),
                              .from_ns = from,
                              .to_ns = from + eni_weather_draw_ns(w, storm->outage_ns)};
    }
    for (int32_t i = 0; i < storm->store_deaths; i++)
        eni_weather_post(sim, eni_weather_draw_ns(w, storm->calm_ns), eni_weather_store_dies,
                         &sim->stores[eni_weather_draw(w, (uint64_t)sim->nstores)]);
    for (int32_t i = 0; i < storm->rank_deaths; i++)
        eni_weather_post(sim, eni_weather_draw_ns(w, storm->calm_ns), eni_weather_rank_dies,
                         &sim->ranks[eni_weather_draw(w, (uint64_t)sim->nranks)]);
    eni_weather_post(sim, storm->calm_ns + storm->limit_ns, time_is_up, NULL);
}

static en_status open_kept(const eni_sim *sim, eni_kept *kept)
{
    kept->seq = eni_alloc_array((size_t)sim->nranks * sim->buckets->n, sizeof *kept->seq);
    kept->incarnation = eni_alloc_array((size_t)sim->nranks, sizeof *kept->incarnation);
    return kept->seq && kept->incarnation ? EN_OK : EN_ENOMEM;
}

static en_status open_storm(eni_sim *sim)
{
    const size_t stores = (size_t)sim->nstores, ranks = (size_t)sim->nranks;
    eni_weather *w = sim->weather = eni_alloc(sizeof *w);
    if (!w) return EN_ENOMEM;
    w->storm = sim->config->faults_config;
    w->figures = w->storm->figures;
    *w->figures = (eni_storm_figures){0};
    w->key = (eni_rng_key){.seed = w->storm->seed, .purpose = ENI_RNG_SIM, .rank = STREAM};
    w->haven = eni_alloc_array(stores, sizeof *w->haven);
    w->member = eni_alloc_array(ranks, sizeof *w->member);
    w->envoy = eni_alloc_array(ranks * stores * sim->buckets->n, sizeof(eni_envoy *));
    w->farewell = eni_alloc_array(ranks * stores, sizeof *w->farewell);
    w->cut = eni_alloc_array((size_t)w->storm->cuts, sizeof *w->cut);
    if (!w->haven || !w->member || !w->envoy || !w->farewell || !w->cut) return EN_ENOMEM;
    for (size_t r = 0; r < ranks; r++)
        w->member[r] = (eni_presence_of){.incarnation = ENI_SIM_INCARNATION, .is_in = 1};
    for (int32_t k = 0; k < sim->nstores; k++) {
        eni_saving *s = eni_sim_alloc(sim, sizeof *s);
        if (!s) return EN_ENOMEM;
        *s = (eni_saving){.store = k};
        EN_TRY(open_kept(sim, &w->haven[k].safe));
        EN_TRY(open_kept(sim, &w->haven[k].pending));
        EN_TRY(
            eni_weather_keep(sim, k, &w->haven[k].safe)); /* as psd does once all initial weights are there */
        eni_weather_post(sim, eni_weather_draw_ns(w, w->storm->save_ns), eni_weather_save, s);
    }
    plan(sim);
    return sim->status;
}

static void close_kept(eni_kept *kept)
{
    free(kept->bytes);
    eni_free(kept->seq);
    eni_free(kept->incarnation);
}

static void close_storm(eni_sim *sim)
{
    eni_weather *w = sim->weather;
    if (!w) return;
    for (int32_t k = 0; w->haven && k < sim->nstores; k++) {
        close_kept(&w->haven[k].safe);
        close_kept(&w->haven[k].pending);
    }
    eni_free(w->haven);
    eni_free(w->member);
    eni_free(w->envoy);
    eni_free(w->farewell);
    eni_free(w->cut);
    eni_free(w);
    sim->weather = NULL;
}

static int is_over(const eni_sim *sim)
{
    for (int32_t r = 0; r < sim->nranks; r++)
        if (sim->ranks[r].is_running || sim->ranks[r].is_dead || !eni_envoy_is_done(sim, r)) return 0;
    return 1;
}

static en_status check(eni_sim *sim)
{
    for (int32_t k = 0; sim->weather && k < sim->nstores; k++) {
        const eni_haven *haven = &sim->weather->haven[k];
        uint64_t behind = 0, counted = 0;
        for (int32_t r = 0; r < sim->nranks; r++) {
            const eni_store_client_stats *stats = eni_store_client(sim->stores[k].core, r);
            behind += stats->staleness.sum;
            counted += stats->staleness.count;
            sim->weather->figures->applied += stats->applied;
        }
        if (!sim->weather->storm->steps_at_once || (behind == haven->behind && counted == haven->counted))
            continue;
        eni_error("storm",
                  "store %d counted staleness %" PRIu64 " over %" PRIu64 " pushes, seen from outside %" PRIu64
                  " over %" PRIu64,
                  k, behind, counted, haven->behind, haven->counted);
        return EN_EBUG;
    }
    return EN_OK;
}

const eni_sim_faults eni_storm_faults = {.open = open_storm,
                                         .close = close_storm,
                                         .is_over = is_over,
                                         .check = check,
                                         .call = eni_envoy_call,
                                         .finished = eni_envoy_finished,
                                         .reply = eni_envoy_reply};
