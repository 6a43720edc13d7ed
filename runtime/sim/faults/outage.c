/* outage.c - deaths and returns: of stores, which come back from a saved state, and of ranks. */
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/try.h"
#include "runtime/sim/faults/faults_impl.h"
#include "runtime/store/store_save.h"

/* ---- saves --------------------------------------------------------------------------------------------- */

static en_status append(void *user, const void *data, size_t bytes)
{
    eni_snapshot *kept = user;
    if (kept->n + bytes > kept->room) {
        const size_t room = 2 * (kept->n + bytes);
        uint8_t *grown = realloc(kept->bytes, room);
        if (grown == NULL) return EN_ENOMEM;
        kept->bytes = grown;
        kept->room = room;
    }
    memcpy(kept->bytes + kept->n, data, bytes);
    kept->n += bytes;
    return EN_OK;
}

en_status eni_faults_keep(eni_sim *sim, int32_t k, eni_snapshot *kept)
{
    const eni_store *core = sim->stores.all[k].core;
    const eni_fault_store *fault = &sim->fault_state->fault[k];
    const uint32_t n = sim->buckets->n;
    kept->n = 0;
    EN_TRY(eni_store_save(core, append, kept));
    for (int32_t r = 0; r < sim->nranks; r++) {
        kept->incarnation[r] = eni_store_incarnation(core, r);
        kept->has_finished[r] = eni_store_has_finished(core, r);
        for (uint32_t b = 0; b < n; b++)
            kept->seq[(uint64_t)r * n + b] = eni_store_seq(core, r, b);
    }
    kept->behind = fault->behind;
    kept->counted = fault->counted;
    return EN_OK;
}

/* The write is over: the store comes back from this state from now on. */
static void save_ends(void *sim_, void *saving_)
{
    eni_sim *sim = sim_;
    const eni_fault_saving s = *(eni_fault_saving *)saving_;
    eni_fault_store *fault = &sim->fault_state->fault[s.store];
    eni_sim_free(sim, saving_);
    if (fault->write != s.write) return;
    const eni_snapshot old = fault->safe;
    fault->safe = fault->pending;
    fault->pending = old;
    fault->is_writing = false;
    sim->fault_state->figures->saves++;
}

void eni_faults_save(void *sim_, void *saving_)
{
    eni_sim *sim = sim_;
    const eni_fault_saving *s = saving_;
    eni_fault_state *w = sim->fault_state;
    eni_fault_store *fault = &w->fault[s->store];
    if (sim->stores.all[s->store].core != NULL && !fault->is_writing) {
        eni_fault_saving *end = eni_sim_alloc(sim, sizeof *end);
        const en_status st = end != NULL ? eni_faults_keep(sim, s->store, &fault->pending) : EN_ENOMEM;
        if (st != EN_OK) {
            eni_sim_fail(sim, st);
            return;
        }
        fault->is_writing = true;
        *end = (eni_fault_saving){s->store, ++fault->write};
        eni_faults_post(sim, eni_faults_draw_ns(w, w->plan->write_ns), save_ends, end);
    }
    eni_faults_post(sim, w->plan->save_ns / 2 + eni_faults_draw_ns(w, w->plan->save_ns), eni_faults_save,
                    saving_);
}

/* ---- the death of a store ------------------------------------------------------------------------------ */

/* A message of the leader: another incarnation of a store is there. */
typedef struct leader_word {
    int32_t rank, store;
    uint32_t epoch;
} leader_word;

static void word_arrives(void *sim_, void *word_)
{
    eni_sim *sim = sim_;
    const leader_word w = *(leader_word *)word_;
    eni_sim_free(sim, word_);
    eni_faults_new_epoch(sim, w.rank, w.store, w.epoch);
}

static en_status tell_ranks(eni_sim *sim, int32_t k)
{
    for (int32_t r = 0; r < sim->nranks; r++) {
        leader_word *w = eni_sim_alloc(sim, sizeof *w);
        if (w == NULL) return EN_ENOMEM;
        *w = (leader_word){r, k, sim->stores.all[k].epoch};
        eni_faults_post(sim,
                        sim->network.links[0].latency_ns +
                            eni_faults_draw_ns(sim->fault_state, sim->fault_state->plan->slow_ns),
                        word_arrives, w);
    }
    return EN_OK;
}

static en_status revive(eni_sim *sim, int32_t k)
{
    eni_fault_state *w = sim->fault_state;
    eni_fault_store *fault = &w->fault[k];
    eni_sim_store *store = &sim->stores.all[k];
    EN_TRY(eni_shards_renew(sim, k));
    EN_TRY(eni_store_load(store->core, fault->safe.bytes, fault->safe.n, sim->queue.now_ns));
    store->epoch++;
    fault->behind = fault->safe.behind;
    fault->counted = fault->safe.counted;
    eni_delivery_set_timer(store, eni_store_timer(store->core));
    for (int32_t r = 0; r < sim->nranks; r++)
        if (eni_delivery_is_client(&sim->ranks[r]))
            EN_TRY(eni_faults_member(store, r, w->member[r].incarnation,
                                     w->member[r].is_in ? EN_MEMBER_JOINED : EN_MEMBER_LEFT));
    return tell_ranks(sim, k);
}

static void store_returns(void *sim_, void *store_)
{
    eni_sim *sim = sim_;
    eni_sim_fail(sim, revive(sim, (int32_t)((eni_sim_store *)store_ - sim->stores.all)));
}

void eni_faults_store_dies(void *sim_, void *store_)
{
    eni_sim *sim = sim_;
    eni_sim_store *store = store_;
    eni_fault_state *w = sim->fault_state;
    const int32_t k = (int32_t)(store - sim->stores.all);
    eni_fault_store *fault = &w->fault[k];
    if (store->core == NULL) return;
    w->figures->store_deaths++;
    fault->is_writing = false;
    fault->write++;
    store->timer_ns = INT64_MAX;
    eni_store_free(store->core);
    store->core = NULL;
    eni_faults_post(sim, 1 + eni_faults_draw_ns(w, w->plan->outage_ns), store_returns, store);
}

/* ---- the death of a rank ------------------------------------------------------------------------------- */

static void member_everywhere(eni_sim *sim, int32_t r, uint32_t member)
{
    eni_fault_state *w = sim->fault_state;
    w->member[r].is_in = member == EN_MEMBER_JOINED;
    for (int32_t k = 0; k < sim->stores.n; k++) {
        if (sim->stores.all[k].core == NULL) continue; /* it learns of it when it returns */
        eni_sim_fail(sim, eni_faults_member(&sim->stores.all[k], r, w->member[r].incarnation, member));
    }
}

/* The least clock of the working ranks, as in heartbeats: the leader sends it to a late joiner. */
static uint64_t least_clock(const eni_sim *sim, int32_t joining)
{
    const eni_presence_of *member = sim->fault_state->member;
    uint64_t least = UINT64_MAX;
    for (int32_t r = 0; r < sim->nranks; r++) {
        const uint64_t clock = member[r].clock + sim->ranks[r].step;
        if (sim->ranks[r].is_running && clock < least) least = clock;
    }
    return least != UINT64_MAX ? least : member[joining].clock + sim->ranks[joining].step;
}

static void rank_returns(void *sim_, void *rank_)
{
    eni_sim *sim = sim_;
    eni_sim_rank *rank = rank_;
    const int32_t r = rank->world.rank;
    if (rank->fiber != NULL) { /* its last entry in the queue is still to come */
        eni_faults_post(sim, ENI_MILLI, rank_returns, rank);
        return;
    }
    sim->fault_state->member[r].incarnation++;
    sim->fault_state->member[r].clock = least_clock(sim, r);
    member_everywhere(sim, r, EN_MEMBER_JOINED);
    eni_sim_fail(sim, eni_sim_restart_rank(sim, r, sim->fault_state->member[r].incarnation));
}

static void rank_is_missed(void *sim_, void *rank_)
{
    eni_sim *sim = sim_;
    eni_sim_rank *rank = rank_;
    member_everywhere(sim, rank->world.rank, EN_MEMBER_LEFT);
    eni_faults_post(sim, 1 + eni_faults_draw_ns(sim->fault_state, sim->fault_state->plan->outage_ns),
                    rank_returns, rank);
}

void eni_faults_rank_dies(void *sim_, void *rank_)
{
    eni_sim *sim = sim_;
    eni_sim_rank *rank = rank_;
    if (!rank->is_running) return;
    sim->fault_state->figures->rank_deaths++;
    eni_faults_client_dies(rank);
    rank->is_running = false;
    rank->is_dead = true;
    sim->nrunning--;
    if (rank->waiting) { /* nothing will wake it */
        eni_fiber_free(rank->fiber);
        rank->fiber = NULL;
    }
    eni_faults_post(sim, 1 + eni_faults_draw_ns(sim->fault_state, sim->fault_state->plan->outage_ns / 2),
                    rank_is_missed, rank);
}
