/* faults.c - which faults occur and when, the end of a run, and the stores' counts against those seen from
 * outside (faults.h). */
#include "runtime/sim/faults/faults.h"

#include <inttypes.h>
#include <stdlib.h>

#include "core/log.h"
#include "core/try.h"
#include "runtime/sim/faults/faults_impl.h"

enum { STREAM = 0x570a3000 }; /* of random numbers: different from every rank's */

static void time_is_up(void *sim_, void *unused)
{
    eni_sim *sim = sim_;
    (void)unused;
    eni_sim_fail(sim, EN_ETIMEOUT);
}

/* Draws the faults that have a time of their own. */
static void draw_faults(eni_sim *sim)
{
    eni_fault_state *w = sim->fault_state;
    const eni_fault_plan *plan = w->plan;
    for (int32_t i = 0; i < plan->cuts; i++) {
        const int64_t from = eni_faults_draw_ns(w, plan->quiet_ns);
        w->cut[i] = (eni_cut){.rank = (int32_t)eni_faults_draw(w, (uint64_t)sim->nranks),
                              .store = (int32_t)eni_faults_draw(w, (uint64_t)sim->stores.n),
                              .ways = 1 + (int32_t)eni_faults_draw(w, 3),
                              .from_ns = from,
                              .to_ns = from + eni_faults_draw_ns(w, plan->outage_ns)};
    }
    for (int32_t i = 0; i < plan->store_deaths; i++)
        eni_faults_post(sim, eni_faults_draw_ns(w, plan->quiet_ns), eni_faults_store_dies,
                        &sim->stores.all[eni_faults_draw(w, (uint64_t)sim->stores.n)]);
    for (int32_t i = 0; i < plan->rank_deaths; i++)
        eni_faults_post(sim, eni_faults_draw_ns(w, plan->quiet_ns), eni_faults_rank_dies,
                        &sim->ranks[eni_faults_draw(w, (uint64_t)sim->nranks)]);
    eni_faults_post(sim, plan->quiet_ns + plan->limit_ns, time_is_up, NULL);
}

static en_status open_kept(eni_sim *sim, eni_snapshot *kept)
{
    const size_t ranks = (size_t)sim->nranks;
    kept->seq = eni_sim_alloc(sim, ranks * sim->buckets->n * sizeof *kept->seq);
    kept->incarnation = eni_sim_alloc(sim, ranks * sizeof *kept->incarnation);
    kept->has_finished = eni_sim_alloc(sim, ranks);
    return kept->seq != NULL && kept->incarnation != NULL && kept->has_finished != NULL ? EN_OK : EN_ENOMEM;
}

static en_status open_faults(eni_sim *sim)
{
    const size_t stores = (size_t)sim->stores.n, ranks = (size_t)sim->nranks;
    eni_fault_state *w = sim->fault_state = eni_sim_alloc(sim, sizeof *w);
    if (w == NULL) return EN_ENOMEM;
    w->plan = sim->config->faults_config;
    w->figures = w->plan->figures;
    *w->figures = (eni_fault_stats){0};
    w->key = (eni_rng_key){.seed = w->plan->seed, .purpose = ENI_RNG_SIM, .rank = STREAM};
    w->fault = eni_sim_alloc(sim, stores * sizeof *w->fault);
    w->member = eni_sim_alloc(sim, ranks * sizeof *w->member);
    w->attempt = eni_sim_alloc(sim, ranks * stores * ((size_t)sim->buckets->n + 1) * sizeof *w->attempt);
    w->cut = eni_sim_alloc(sim, (size_t)w->plan->cuts * sizeof *w->cut);
    if (w->fault == NULL || w->member == NULL || w->attempt == NULL || w->cut == NULL) return EN_ENOMEM;
    for (size_t r = 0; r < ranks; r++)
        w->member[r] = (eni_presence_of){.incarnation = ENI_SIM_INCARNATION, .is_in = true};
    for (int32_t k = 0; k < sim->stores.n; k++) {
        eni_fault_saving *s = eni_sim_alloc(sim, sizeof *s);
        if (s == NULL) return EN_ENOMEM;
        *s = (eni_fault_saving){.store = k};
        EN_TRY(open_kept(sim, &w->fault[k].safe));
        EN_TRY(open_kept(sim, &w->fault[k].pending));
        EN_TRY(eni_faults_keep(sim, k, &w->fault[k].safe)); /* as psd does once all weights are there */
        eni_faults_post(sim, eni_faults_draw_ns(w, w->plan->save_ns), eni_faults_save, s);
    }
    draw_faults(sim);
    return sim->status;
}

static void close_faults(eni_sim *sim)
{
    eni_fault_state *w = sim->fault_state;
    for (int32_t k = 0; w != NULL && w->fault != NULL && k < sim->stores.n; k++) {
        free(w->fault[k].safe.bytes);
        free(w->fault[k].pending.bytes);
    }
}

static bool is_over(const eni_sim *sim)
{
    for (int32_t r = 0; r < sim->nranks; r++)
        if (sim->ranks[r].is_running || sim->ranks[r].is_dead || !eni_faults_is_done(&sim->ranks[r]))
            return false;
    return true;
}

static en_status check(eni_sim *sim)
{
    for (int32_t k = 0; sim->fault_state != NULL && k < sim->stores.n; k++) {
        const eni_fault_store *fault = &sim->fault_state->fault[k];
        uint64_t behind = 0, counted = 0;
        for (int32_t r = 0; r < sim->nranks; r++) {
            const eni_store_client_stats *stats = eni_store_client(sim->stores.all[k].core, r);
            behind += stats->staleness.sum;
            counted += stats->staleness.count;
            sim->fault_state->figures->applied += stats->applied;
        }
        if (!sim->fault_state->plan->steps_at_once || (behind == fault->behind && counted == fault->counted))
            continue;
        return eni_fail(EN_EBUG, "storm",
                        "store %d counted staleness %" PRIu64 " over %" PRIu64
                        " pushes, seen from outside %" PRIu64 " over %" PRIu64,
                        k, behind, counted, fault->behind, fault->counted);
    }
    return EN_OK;
}

const eni_sim_faults eni_faults = {.open = open_faults,
                                   .close = close_faults,
                                   .is_over = is_over,
                                   .check = check,
                                   .send = eni_faults_send,
                                   .at_store = eni_faults_at_store,
                                   .watch = eni_faults_watch};
