/* sim.c - one run of the virtual host: set-up, the loop over the queue, the result (sim.h). */
#include "runtime/sim/sim.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "run/rank_groups.h"
#include "runtime/net/host_info.h"
#include "runtime/sim/world.h"

enum {
    STACK_BYTES = 256 * 1024, /* committed as touched; a hook that logs needs some KB of it */
    LEAST_BYTES = 16 * 1024,  /* of a rank, besides its vectors */
    DEFAULT_CAP = 25 << 20,   /* as --bucket-cap-mb */
    STUCK_EVENTS = 100000000  /* that bring no gradient */
};

/* ---- set-up -------------------------------------------------------------------------------------------- */

static bool has_store(const eni_sim_config *c)
{
    return (c->strategy->flags & (EN_STORE_ON_SERVERS | EN_STORE_ON_RANKS)) != 0;
}

/* Whether the gradients of a rank are averaged with no other rank's. */
static bool is_alone(const eni_sim_config *c)
{
    return c->nranks == 1 && !has_store(c);
}

static en_status check(const eni_sim_config *c)
{
    const char *why = NULL;
    const uint32_t flags = c->strategy->flags;
    if (c->nranks < 1 || c->nranks > ENI_SIM_RANKS_MAX)
        why = "expected 1 to 1000000 ranks";
    else if (c->nranks > 1024 && flags & EN_STORE_ON_RANKS)
        why = "each of its stores on the ranks knows each rank: at most 1024 of them";
    else if (c->nshards < 1 || c->nshards > 1024)
        why = "expected 1 to 1024 shards";
    else if (c->local_size < 1 || c->nranks % c->local_size != 0)
        why = "the ranks per host do not divide the number of ranks";
    else if (c->accumulate < 1 || c->accumulate > ENI_MEAN_MAX)
        why = "expected 1 to 1024 micro-batches per step";
    else if (c->accumulate > 1 && !is_alone(c))
        why = "several micro-batches per step need a single rank without a store";
    else if (c->faults != NULL && (flags & (EN_STORE_ON_SERVERS | EN_STORE_ON_RANKS)) != EN_STORE_ON_SERVERS)
        why = "faults need a strategy with a store on servers (EN_STORE_ON_SERVERS): without one a lost "
              "message or rank ends the run";
    else if (c->order != NULL && (c->faults != NULL || !(flags & EN_STORE_ON_SERVERS)))
        why = "--replay-order plays what reaches servers; give the strategy of the recorded run";
    if (why == NULL) return EN_OK;
    return eni_fail(EN_EINVAL, "sim",
                    "cannot simulate %s with %d ranks, %d of them per host, %d shards and %" PRIu64
                    " micro-batches per step: %s",
                    c->strategy->name, c->nranks, c->local_size, c->nshards, c->accumulate, why);
}

/* A rank needs its weights, a gradient that is computed or on its way, and a stack. A run that does not fit would be killed
 * half-way. */
static en_status check_memory(const eni_sim_config *c)
{
    const double each = 2 * (double)c->problem->count * sizeof(float) + LEAST_BYTES,
                 has = (double)eni_host_info_memory();
    if (each * c->nranks <= has) return EN_OK;
    return eni_fail(EN_EINVAL, "sim",
                    "%d ranks with %" PRIu64
                    " weights each need %.1f GB of memory, and this machine has %.1f GB: "
                    "give -n %.0f or fewer, or a smaller model",
                    c->nranks, c->problem->count, each * c->nranks * 1e-9, has * 1e-9, floor(has / each));
}

/* The configuration with its defaults filled in. */
static eni_sim_config resolve(const eni_sim_config *given)
{
    eni_sim_config c = *given;
    if (c.nshards == 0) c.nshards = 1;
    if (c.local_size == 0) c.local_size = c.nranks;
    if (c.accumulate == 0) c.accumulate = 1;
    if (c.bucket_cap_bytes == 0) c.bucket_cap_bytes = DEFAULT_CAP;
    if (c.optimizer == NULL) c.optimizer = eni_optimizer_find("sgd");
    return c;
}

static float *new_flat(eni_sim *sim)
{
    return eni_sim_alloc(sim, sim->config->problem->count * sizeof(float));
}

static void open_rank(eni_sim *sim, int32_t index)
{
    eni_sim_rank *rank = &sim->ranks[index];
    rank->sim = sim;
    rank->result = &sim->result->rank[index];
    rank->arena = &sim->memory.arenas[index];
    rank->param = sim->config->problem->init;
    rank->grad = eni_arena_at(rank->arena, ENI_SLOT_GRAD, 0);
    rank->fiber = eni_fiber_new(sim->memory.stacks, index, eni_sim_rank_body, rank);
}

/* Sets each rank's place in the world, and reserves the memory of all. */
static en_status open_ranks(eni_sim *sim)
{
    const size_t n = (size_t)sim->nranks;
    en_world *worlds = eni_sim_alloc(sim, n * sizeof *worlds);
    sim->ranks = eni_sim_alloc(sim, n * sizeof *sim->ranks);
    sim->memory.arenas = eni_sim_alloc(sim, n * sizeof *sim->memory.arenas);
    sim->result->rank = eni_alloc_array(n, sizeof *sim->result->rank);
    if (worlds == NULL || sim->ranks == NULL || sim->memory.arenas == NULL || sim->result->rank == NULL)
        return EN_ENOMEM;
    sim->result->nranks = sim->nranks;
    for (int32_t r = 0; r < sim->nranks; r++)
        worlds[r] = (en_world){.size = sizeof *worlds, .rank = r, .nranks = sim->nranks};
    eni_rank_groups_place_all(sim->hosts, sim->groups, sim->nranks, worlds);
    for (int32_t r = 0; r < sim->nranks; r++)
        sim->ranks[r].world = worlds[r];
    eni_sim_free(sim, worlds);
    EN_TRY(eni_arenas_open(sim->config->problem->count, ENI_ARENA_NSLOTS, sim->nranks, sim->memory.arenas));
    EN_TRY(eni_stacks_open(sim->nranks, STACK_BYTES, &sim->memory.stacks));
    for (int32_t r = 0; r < sim->nranks; r++)
        open_rank(sim, r);
    return EN_OK;
}

static en_status start_rank(eni_sim *sim, int32_t index, uint64_t incarnation)
{
    EN_TRY(eni_delivery_open_client(&sim->ranks[index], incarnation));
    sim->ranks[index].is_running = true;
    sim->nrunning++;
    return eni_event_queue_post(&sim->queue, 0, eni_sim_rank_resume, sim, &sim->ranks[index]);
}

/* ---- ranks that join later ---- */

/* The rank's weights are here: it joins, unless all micro-batches are given out already. */
static void come_in(void *sim_, void *rank_)
{
    eni_sim *sim = sim_;
    eni_sim_rank *rank = rank_;
    if (sim->next_batch >= sim->config->micro_batches) return;
    en_status st = start_rank(sim, rank->world.rank, ENI_SIM_INCARNATION);
    if (st == EN_OK) st = eni_shards_join(rank);
    eni_sim_fail(sim, st);
}

static void ask_for_weights(void *sim_, void *rank)
{
    eni_sim *sim = sim_;
    const double bytes = (double)sim->buckets->count * sizeof(float);
    const double hop =
        eni_network_hop(&sim->network, ((eni_sim_rank *)rank)->world.rank, sim->stores.all[0].node, bytes);
    eni_sim_post(sim, sim->queue.now_ns + eni_virtual_span(2 * hop), come_in, rank);
}

static en_status check_visits(const eni_sim *sim)
{
    const eni_sim_config *c = sim->config;
    if (c->join_ns == NULL && c->leave_ns == NULL) return EN_OK;
    if (!sim->claims || !(c->strategy->flags & EN_STORE_ON_SERVERS) || c->faults != NULL)
        return eni_fail(
            EN_EINVAL, "sim",
            "%s: ranks cannot join or leave during the run, because each takes part in every step; use "
            "ps-async or ssp",
            c->strategy->name);
    if ((c->join_ns == NULL || c->join_ns[0] == 0) && (c->leave_ns == NULL || c->leave_ns[0] == INT64_MAX))
        return EN_OK;
    return eni_fail(EN_EINVAL, "sim",
                    "rank 0 takes part from beginning to end: name another rank to join or leave");
}

static en_status cut_ranks(eni_sim *sim)
{
    const eni_sim_config *c = sim->config;
    sim->hosts = eni_sim_alloc(sim, (size_t)sim->nranks * sizeof *sim->hosts);
    if (sim->hosts == NULL) return EN_ENOMEM;
    bool has_own_groups = false;
    for (int32_t r = 0; r < sim->nranks; r++) {
        sim->hosts[r] = r - r % c->local_size;
        has_own_groups |= c->groups != NULL && c->groups[r] != sim->hosts[r];
    }
    sim->groups = has_own_groups ? c->groups : sim->hosts;
    return EN_OK;
}

static en_status open_world(eni_sim *sim)
{
    const eni_sim_config *c = sim->config;
    const uint32_t flags = c->strategy->flags;
    const size_t n = (size_t)c->nranks;
    sim->nranks = c->nranks;
    EN_TRY(cut_ranks(sim));
    sim->claims = c->assign == ENI_SIM_CLAIM ||
                  (c->assign == ENI_SIM_AUTO && has_store(c) && !(flags & EN_SYNCHRONOUS));
    EN_TRY(check_visits(sim));
    sim->options = c->options;
    if (sim->options == NULL) {
        EN_TRY(eni_options_new(c->strategy, NULL, &sim->own_options));
        sim->options = sim->own_options;
    }
    EN_TRY(eni_buckets_new(c->problem->tensors, c->problem->ntensors, c->problem->count, c->bucket_cap_bytes,
                           &sim->buckets));
    EN_TRY(eni_network_init(&sim->network, &c->network, sim->nranks + c->nshards));
    sim->means.scratch = new_flat(sim);
    sim->means.from = eni_sim_alloc(sim, n * sizeof *sim->means.from);
    sim->means.weight = eni_sim_alloc(sim, n * sizeof *sim->means.weight);
    sim->exchanges.groups = eni_sim_alloc(sim, (2 + n) * sizeof *sim->exchanges.groups);
    sim->exchanges.sendrecvs = eni_sim_alloc(sim, n * sizeof(eni_sendrecv *));
    sim->gradients.slow_until =
        eni_sim_alloc(sim, n * (size_t)c->compute.nslow * sizeof *sim->gradients.slow_until);
    if (sim->means.scratch == NULL || sim->means.from == NULL || sim->means.weight == NULL ||
        sim->exchanges.groups == NULL || sim->exchanges.sendrecvs == NULL ||
        sim->gradients.slow_until == NULL)
        return EN_ENOMEM;
    if (is_alone(c)) {
        sim->gradients.micro = eni_sim_alloc(sim, c->accumulate * sizeof(float *));
        if (sim->gradients.micro == NULL) return EN_ENOMEM;
        for (uint64_t i = 0; i < c->accumulate; i++)
            if ((sim->gradients.micro[i] = new_flat(sim)) == NULL) return EN_ENOMEM;
    }
    EN_TRY(open_ranks(sim));
    EN_TRY(eni_shards_open(sim));
    EN_TRY(eni_replay_check(sim));
    EN_TRY(eni_gradients_open(sim));
    if (c->faults != NULL) EN_TRY(c->faults->open(sim));
    for (int32_t r = 0; r < sim->nranks; r++)
        EN_TRY(eni_sim_comes_later(sim, r)
                   ? eni_event_queue_post(&sim->queue, c->join_ns[r], ask_for_weights, sim, &sim->ranks[r])
                   : start_rank(sim, r, ENI_SIM_INCARNATION));
    return EN_OK;
}

static void close_rank(eni_sim_rank *rank)
{
    eni_gradients_await(rank);
    eni_fiber_free(rank->fiber);
    eni_host_close(rank->host);
    eni_delivery_close_client(rank);
    free(rank->pending);
}

en_status eni_sim_restart_rank(eni_sim *sim, int32_t index, uint64_t incarnation)
{
    eni_sim_rank *rank = &sim->ranks[index];
    close_rank(rank);
    memset(rank->arena->base, 0, rank->arena->bytes);
    *rank = (eni_sim_rank){.world = rank->world};
    open_rank(sim, index);
    return start_rank(sim, index, incarnation);
}

static void close_world(eni_sim *sim)
{
    if (sim->config->faults != NULL) sim->config->faults->close(sim);
    eni_gradients_close(sim);
    eni_shards_close(sim); /* gives back the payloads that it holds, so before the blocks */
    for (int32_t r = 0; sim->ranks != NULL && r < sim->nranks; r++)
        close_rank(&sim->ranks[r]);
    eni_client_actions_fini(&sim->client_actions);
    if (sim->memory.arenas != NULL) eni_arenas_close(sim->memory.arenas, sim->nranks);
    eni_stacks_close(sim->memory.stacks);
    free(sim->gradients.samples_before);
    eni_sim_free_all(sim);
    eni_network_fini(&sim->network);
    eni_event_queue_fini(&sim->queue);
    eni_buckets_free(sim->buckets);
    eni_options_free(sim->own_options);
}

static bool is_over(const eni_sim *sim)
{
    return sim->config->faults != NULL ? sim->config->faults->is_over(sim)
                                       : sim->nrunning == 0 && sim->in_flight == 0;
}

/* ---- the model ------------------------------------------------------------------------------------------ */

static void mean_of_ranks(eni_sim *sim, float *flat_out)
{
    const uint64_t count = sim->buckets->count;
    for (int32_t r = 0; r < sim->nranks; r++) {
        sim->means.from[r] = sim->ranks[r].param;
        sim->means.weight[r] = 1;
    }
    eni_mean_ranks(flat_out, sim->means.from, sim->means.weight, sim->nranks, ENI_SUM_RANK, count, 0, count);
}

/* The model that the strategy's paper evaluates, into scratch. */
static void collect_model(eni_sim *sim)
{
    eni_sim_rank *rank = &sim->ranks[0];
    const uint64_t bytes = sim->config->problem->count * sizeof(float);
    int model = EN_EVAL_PARAM;
    uint32_t slot = ENI_SLOT_PARAM;
    memcpy(sim->means.scratch, rank->param, bytes); /* also the elements outside of buckets */
    if (rank->host != NULL && eni_host_eval(rank->host, &model, &slot) != EN_OK) model = EN_EVAL_PARAM;
    for (uint32_t b = 0; model == EN_EVAL_VEC && b < sim->buckets->n; b++) {
        const eni_bucket_range *range = &sim->buckets->bucket[b];
        memcpy(sim->means.scratch + range->lo, eni_sim_rank_at(rank, slot, b),
               (range->hi - range->lo) * sizeof(float));
    }
    if (model == EN_EVAL_STORE) eni_shards_collect(sim, sim->means.scratch);
    if (model == EN_EVAL_MEAN) mean_of_ranks(sim, sim->means.scratch);
}

void eni_sim_model(eni_sim *sim, float *flat_out)
{
    eni_gradients_await_all(sim); /* the caller may read what gradients change */
    collect_model(sim);
    memcpy(flat_out, sim->means.scratch, sim->config->problem->count * sizeof *flat_out);
}

static en_status evaluate(eni_sim *sim)
{
    const eni_sim_config *c = sim->config;
    if (c->evaluate == NULL) return EN_OK;
    eni_gradients_await_all(sim); /* evaluating may use what gradients change */
    EN_TRY(sim->status);
    collect_model(sim);
    EN_TRY(sim->status);
    return c->evaluate(c->evaluate_user, sim->gradients.samples, sim->queue.now_ns, sim->means.scratch);
}

/* ---- the loop ------------------------------------------------------------------------------------------ */

static void name_the_stuck(eni_sim *sim)
{
    eni_sim_result *out = sim->result;
    size_t at = 0;
    for (int32_t r = 0; r < sim->nranks; r++) {
        eni_sim_rank *rank = &sim->ranks[r];
        if (!rank->is_running) continue;
        const eni_sim_pending *request = eni_sim_rank_pending(rank, rank->waiting);
        if (++out->nstuck > 4) continue;
        char with[32] = "";
        if (request != NULL && request->dest >= 0)
            snprintf(with, sizeof with, " with rank %d", request->dest);
        else if (request != NULL && request->dest == EN_SERVERS)
            snprintf(with, sizeof with, " at the servers");
        const int n = snprintf(out->stuck + at, sizeof out->stuck - at,
                               "%srank %d in step %" PRIu64 " waits for %s on bucket %u%s", at ? "; " : "", r,
                               rank->step, request != NULL ? request->doing : "its time",
                               request != NULL ? request->bucket : 0, with);
        at += n > 0 && at + (size_t)n < sizeof out->stuck ? (size_t)n : 0;
    }
}

static en_status too_late(const eni_sim *sim)
{
    return eni_fail(EN_EINVAL, "sim",
                    "%s: the run passes the end of virtual time, 36 years: give shorter times (--compute, "
                    "--straggler, --net), or fewer steps",
                    sim->config->strategy->name);
}

static en_status loop(eni_sim *sim)
{
    eni_event_queue_entry entry;
    const uint64_t most = sim->config->max_events;
    uint64_t *events = &sim->result->events, due = sim->config->eval_every, samples = 0, since = 0;
    eni_sim_fail(sim, evaluate(sim));
    while (sim->status == EN_OK && !is_over(sim) && *events < (most > 0 ? most : since + STUCK_EVENTS) &&
           eni_event_queue_take(&sim->queue, &entry)) {
        if (entry.at_ns >= ENI_VIRTUAL_END_NS) return too_late(sim);
        entry.happen(entry.user, entry.subject);
        (*events)++;
        if (sim->gradients.samples != samples) since = *events;
        samples = sim->gradients.samples;
        if (due == 0 || sim->gradients.samples < due || sim->status != EN_OK) continue;
        due += ((sim->gradients.samples - due) / sim->config->eval_every + 1) * sim->config->eval_every;
        eni_sim_fail(sim, evaluate(sim));
    }
    const bool has_limit =
        sim->config->faults != NULL; /* of faults: EN_ETIMEOUT, and nothing has been said yet */
    if (sim->status != EN_OK && !(has_limit && sim->status == EN_ETIMEOUT)) return sim->status;
    EN_TRY(eni_replay_end(sim));
    if (sim->status == EN_OK && is_over(sim)) return evaluate(sim);
    name_the_stuck(sim);
    return eni_fail(EN_ETIMEOUT, "sim", "%s: after %" PRIu64 " events %d of %d ranks cannot finish: %s",
                    sim->config->strategy->name, *events, sim->result->nstuck, sim->nranks,
                    sim->result->stuck);
}

/* ---- the result ---------------------------------------------------------------------------------------- */

static en_status add_client(eni_sim_result *out, int32_t r, const eni_store_client_stats *stats)
{
    eni_sim_rank_result *rank = &out->rank[r];
    rank->pushes += stats->pushes;
    rank->holds += stats->holds;
    rank->applied += stats->applied;
    rank->dropped += stats->dropped;
    if (stats->clocks_ahead > rank->clocks_ahead) rank->clocks_ahead = stats->clocks_ahead;
    return eni_histogram_merge(&rank->staleness, &stats->steady);
}

static en_status sum_up(eni_sim *sim)
{
    eni_sim_result *out = sim->result;
    eni_host_counters counters;
    out->virtual_ns = sim->queue.now_ns;
    for (int32_t k = 0; k < sim->stores.n; k++) {
        if (sim->stores.all[k].core == NULL) continue; /* the run ended while it was down */
        const eni_store_stats *totals = eni_store_totals(sim->stores.all[k].core);
        out->updates += totals->updates + totals->touches;
        out->parts += eni_store_nused(sim->stores.all[k].core);
        for (int32_t r = 0; r < sim->nranks; r++)
            EN_TRY(add_client(out, r, eni_store_client(sim->stores.all[k].core, r)));
    }
    out->has_equal_ranks = out->is_unchanged = true;
    for (int32_t r = 0; r < sim->nranks; r++) {
        const eni_sim_rank_result *rank = &out->rank[r];
        out->pushes += rank->pushes;
        out->holds += rank->holds;
        out->applied += rank->applied;
        out->dropped += rank->dropped;
        out->sent += rank->sent;
        out->recv += rank->recv;
        if (rank->clocks_ahead > out->clocks_ahead) out->clocks_ahead = rank->clocks_ahead;
        EN_TRY(eni_histogram_merge(&out->staleness, &rank->staleness));
        if (memcmp(sim->ranks[r].param, sim->ranks[0].param, sim->buckets->count * sizeof(float)) != 0)
            out->has_equal_ranks = false;
        if (sim->ranks[r].host != NULL) eni_host_count(sim->ranks[r].host, &counters);
        if (sim->ranks[r].host == NULL || !counters.is_unchanged) out->is_unchanged = false;
    }
    return EN_OK;
}

/* Copies the final model into scratch, and the strategy's theory. */
static void collect(eni_sim *sim)
{
    const eni_sim_rank *rank = &sim->ranks[0];
    const uint64_t bytes = sim->config->problem->count * sizeof(float);
    collect_model(sim);
    eni_digest_of(sim->means.scratch, bytes, sim->result->weights_sha256);
    if (sim->config->weights_out != NULL) memcpy(sim->config->weights_out, sim->means.scratch, bytes);
    sim->result->has_theory = rank->host != NULL && sim->config->strategy->theory != NULL;
    if (sim->result->has_theory) eni_host_theory(rank->host, 0, &sim->result->theory);
}

en_status eni_sim_run(const eni_sim_config *config, eni_sim_result *result_out)
{
    const eni_sim_config resolved = resolve(config);
    eni_sim sim = {.config = &resolved, .result = result_out};
    memset(result_out, 0, sizeof *result_out);
    EN_TRY(check(&resolved));
    EN_TRY(check_memory(&resolved));
    en_status st = EN_OK;
    eni_digest_begin(&sim.log);
    EN_TRY_GOTO(open_world(&sim), close_world);
    st = loop(&sim);
    if (st == EN_OK && resolved.faults != NULL) st = resolved.faults->check(&sim);
    const en_status summed = sum_up(&sim);
    collect(&sim);
    if (st == EN_OK) st = summed;
    if (st == EN_OK && config->strategy->flags & EN_REPLICATED && !sim.claims && !result_out->has_equal_ranks)
        st = eni_host_not_replicated(config->strategy);
    if (st == EN_OK && result_out->is_unchanged && resolved.faults == NULL)
        st = eni_host_unchanged(config->strategy);
close_world:
    eni_digest_end(&sim.log, result_out->log_sha256);
    close_world(&sim);
    return st;
}

void eni_sim_result_fini(eni_sim_result *result)
{
    for (int32_t r = 0; result->rank != NULL && r < result->nranks; r++)
        eni_histogram_fini(&result->rank[r].staleness);
    eni_histogram_fini(&result->staleness);
    eni_free(result->rank);
    result->rank = NULL;
}
