/* sim_rank.c - one rank in virtual time: the transport of its host, and its training loop as linear code on a
 * fiber.
 *
 * A strategy calls the same host as on sockets (runtime/host), to the line. Only its transport differs: start
 * passes an operation to collectives.c or delivery.c, wait leaves the fiber until the event queue has ended
 * it, and the clock is the queue's. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/log.h"
#include "core/try.h"
#include "runtime/sim/world.h"

/* ---- the transport ------------------------------------------------------------------------------------- */

static en_status start(void *user, eni_operation *op)
{
    eni_sim_rank *rank = user;
    if (op->kind == ENI_OPERATION_COLL) return eni_exchange_start(rank, op->group, &op->coll, &op->ticket);
    op->version = eni_client_state_answered(&rank->client, op->bucket).version;
    return eni_delivery_call(rank, op, &op->ticket);
}

static bool test(void *user, const eni_operation *op)
{
    return eni_sim_rank_pending(user, op->ticket) == NULL;
}

/* The models of a curve are asked for between the ranks' steps, and theories at the end. */
static en_status refuse_wait(const eni_sim_rank *rank)
{
    const en_status st =
        eni_fail(EN_EBUG, "sim", "%s (rank %d) waits in eval or theory: they only answer; exchange in finish",
                 rank->sim->config->strategy->name, rank->world.rank);
    eni_sim_fail(rank->sim, st);
    return st;
}

static en_status wait(void *user, eni_operation *op)
{
    eni_sim_rank *rank = user;
    const int64_t begin = rank->sim->queue.now_ns;
    if (eni_sim_rank_pending(rank, op->ticket) != NULL) {
        if (!eni_fiber_is_running(rank->fiber)) return refuse_wait(rank);
        rank->waiting = op->ticket;
        eni_fiber_leave(rank->fiber);
    }
    eni_sim_pending *pending = eni_sim_rank_slot_of(rank, op->ticket);
    if (pending == NULL) return EN_OK;
    pending->is_reported = true;
    op->waited_ns = rank->sim->queue.now_ns - begin;
    op->samples = pending->samples;
    if (op->kind == ENI_OPERATION_CALL)
        op->version = eni_client_state_answered(&rank->client, op->bucket).version;
    return pending->status;
}

static int64_t now_ns(void *user)
{
    const eni_sim_rank *rank = user;
    return rank->sim->queue.now_ns;
}

static float *weights(void *user, bool writes)
{
    eni_sim_rank *rank = user;
    return writes ? eni_sim_rank_own(rank) : (float *)(uintptr_t)rank->param;
}

/* The models' time for an operation that has network and servers to itself. */
static double cost(void *user, int op, uint64_t vector_bytes)
{
    const eni_sim_rank *rank = user;
    const eni_sim *sim = rank->sim;
    const double bytes = (double)vector_bytes;
    const int32_t n = sim->nranks;
    if (op == 0 && sim->stores.n > 0) { /* all clients' vectors pass the shards' links, there and back */
        const eni_sim_service *service = &sim->config->service;
        const bool is_by_host = (sim->config->strategy->flags & EN_LEADERS_ARE_CLIENTS) != 0;
        const double clients = is_by_host ? rank->world.nhosts : n;
        const double shards = sim->stores.nshards > 0 ? sim->stores.nshards : 1;
        const double law = service->of_shard != NULL ? service->of_shard[0].mean_ns : 0;
        const double passes = bytes * (clients > shards ? clients / shards : 1);
        return ((double)eni_virtual_span(2 *
                                         eni_network_hop(&sim->network, 0, sim->stores.all[0].node, passes)) +
                passes * service->ns_per_byte + clients * law) *
               1e-9;
    }
    if (op == 0 || n == 1) return NAN; /* the run has no such operation */
    return (double)eni_virtual_span(eni_exchange_ns(sim, op, bytes, NULL)) * 1e-9;
}

static en_status alive(void *user)
{
    const eni_sim_rank *rank = user;
    return rank->sim->status;
}

/* Runs open and plan of the strategy, on the fiber. */
static en_status open_host(eni_sim_rank *rank)
{
    const eni_sim *sim = rank->sim;
    const uint32_t flags = sim->config->strategy->flags;
    const bool meets_at_servers = (flags & EN_LEADERS_ARE_CLIENTS) != 0;
    const bool has_groups = (flags & EN_USES_GROUPS) != 0;
    const eni_transport transport = {.user = rank,
                                     .has_world = sim->nranks > 1 && !meets_at_servers,
                                     .has_group = rank->world.ngroup > 1 && (meets_at_servers || has_groups),
                                     .has_leaders = has_groups,
                                     .is_client = sim->stores.nshards > 0 && eni_delivery_is_client(rank),
                                     .has_rank_stores = sim->stores.n > sim->stores.nshards,
                                     .start = start,
                                     .test = test,
                                     .wait = wait,
                                     .now_ns = now_ns,
                                     .weights = weights,
                                     .cost = cost};
    const eni_host_config config = {.strategy = sim->config->strategy,
                                    .options = sim->options,
                                    .hooks = sim->config->hooks,
                                    .world = rank->world,
                                    .seed = sim->config->seed,
                                    .buckets = sim->buckets,
                                    .arena = rank->arena,
                                    .coll_algorithm = ENI_COLL_DIRECT,
                                    .group_algorithm = ENI_COLL_DIRECT,
                                    .leaders_algorithm = ENI_COLL_DIRECT,
                                    .has_own_groups = sim->groups != sim->hosts,
                                    .has_store = sim->stores.n > 0,
                                    .optimizer = sim->config->optimizer,
                                    .hyper = sim->config->hyper,
                                    .schedule = sim->config->schedule,
                                    .alive_status = alive,
                                    .alive_user = rank,
                                    .transport = &transport};
    return eni_host_open(&config, &rank->host);
}

/* ---- which micro-batches, and how long they take ------------------------------------------------------- */

static bool has_to_leave(const eni_sim_rank *rank)
{
    const int64_t *leave_ns = rank->sim->config->leave_ns;
    return leave_ns != NULL && leave_ns[rank->world.rank] <= rank->sim->queue.now_ns;
}

/* Takes this step's micro-batches; none when the budget is used up. With a fixed assignment, a rank without one
 * in the last round still takes part in it, with 0 samples: the others may need it. */
static bool assign(eni_sim_rank *rank)
{
    eni_sim *sim = rank->sim;
    const uint64_t total = sim->config->micro_batches, per_step = sim->config->accumulate;
    const uint64_t ranks = (uint64_t)sim->nranks, self = (uint64_t)rank->world.rank;
    if (has_to_leave(rank)) return false;
    if (sim->claims && sim->config->order != NULL) {
        const eni_sim_order *order = sim->config->order;
        if (rank->step == order->first[self + 1] - order->first[self]) return false;
        rank->first_batch = (uint64_t)order->batches[order->first[self] + rank->step];
    } else if (sim->claims) {
        rank->first_batch = sim->next_batch;
        sim->next_batch += per_step;
        if (rank->first_batch >= total) return false;
    } else {
        const uint64_t round = rank->step * ranks * per_step;
        if (round >= total) return false;
        rank->first_batch = round + self * per_step;
    }
    const uint64_t left = rank->first_batch < total ? total - rank->first_batch : 0;
    rank->nbatches = left < per_step ? left : per_step;
    return true;
}

static int64_t compute_ns(const eni_sim_rank *rank)
{
    const eni_sim_compute *model = &rank->sim->config->compute;
    const int32_t r = rank->world.rank;
    const eni_rng_key key = {rank->sim->config->seed, ENI_RNG_SIM, (uint32_t)r, rank->step};
    static const eni_law none = {0};
    const int32_t last = model->nlaws - 1;
    const eni_law *law = last < 0 ? &none : &model->laws[r < last ? r : last];
    uint64_t *until = &rank->sim->gradients.slow_until[(size_t)r * (size_t)model->nslow];
    double factor = 1;
    for (int i = 0; i < model->nslow; i++)
        factor *= eni_slowdown_factor(&model->slow[i], &key, &until[i]);
    return eni_virtual_span(eni_law_draw(law, &key) * (double)rank->nbatches * factor);
}

static void ask(eni_sim_rank *rank, int what)
{
    rank->asks = what;
    eni_fiber_leave(rank->fiber);
}

static void sleep_until(eni_sim_rank *rank, int64_t at_ns)
{
    eni_sim *sim = rank->sim;
    eni_sim_post(sim, at_ns, eni_sim_rank_resume, rank);
    eni_fiber_leave(rank->fiber);
}

/* ---- the steps ----------------------------------------------------------------------------------------- */

static uint64_t count_of(const eni_sim *sim, uint32_t bucket)
{
    return sim->buckets->bucket[bucket].hi - sim->buckets->bucket[bucket].lo;
}

/* Backward completes bucket after bucket, each after its share of the step's time, and submits it. */
static en_status backward(eni_sim_rank *rank)
{
    const eni_sim *sim = rank->sim;
    const int64_t begin = sim->queue.now_ns, duration = compute_ns(rank);
    uint64_t done = 0, all = 0;
    for (uint32_t b = 0; b < sim->buckets->n; b++)
        all += count_of(sim, b);
    for (uint32_t b = 0; b < sim->buckets->n; b++) {
        done += count_of(sim, b);
        sleep_until(rank, begin + (int64_t)((double)duration * ((double)done / (double)all)));
        if (rank->job.is_computing) ask(rank, ENI_ASKS_RESULT);
        EN_TRY(eni_host_submit(rank->host, b));
    }
    return EN_OK;
}

static uint64_t samples_from(eni_sim *sim, uint64_t first, uint64_t n)
{
    return eni_sim_samples_before(sim, first + n) - eni_sim_samples_before(sim, first);
}

/* Sets what a rank knows before its step, as a worker does: its own samples, and those of its host if it
 * pushes for it. In an assigned step all ranks' samples follow from the plan. */
static en_status begin_step(eni_sim_rank *rank)
{
    eni_sim *sim = rank->sim;
    const uint64_t per_step = sim->config->accumulate, ranks = (uint64_t)sim->nranks;
    rank->nsamples = samples_from(sim, rank->first_batch, rank->nbatches);
    uint64_t before = eni_sim_samples_before(sim, rank->first_batch);
    if (!sim->claims) {
        const uint64_t round = rank->step * ranks * per_step;
        const uint64_t host = round + (uint64_t)(rank->world.rank - rank->world.local_rank) * per_step;
        before = eni_sim_samples_before(sim, round);
        if (sim->config->strategy->flags & EN_LEADERS_ARE_CLIENTS)
            eni_host_note_samples(rank->host,
                                  samples_from(sim, host, (uint64_t)rank->world.nlocal * per_step),
                                  samples_from(sim, round, ranks * per_step));
    }
    rank->result->samples += rank->nsamples;
    return eni_host_begin(rank->host, rank->step, rank->nsamples, before);
}

/* Samples of all ranks after the step, as a worker counts them (rank/step.h). */
static uint64_t samples_after(eni_sim_rank *rank)
{
    eni_sim *sim = rank->sim;
    const uint64_t round = (uint64_t)sim->nranks * sim->config->accumulate;
    return sim->claims ? eni_sim_samples_before(sim, rank->first_batch) + rank->nsamples
                       : eni_sim_samples_before(sim, (rank->step + 1) * round);
}

/* Has the step recorded, outside of the fiber: `begin` is when it began, `before` what the host had counted then. */
static void tell_step(eni_sim_rank *rank, int64_t begin, const eni_host_counters *before, uint64_t bytes)
{
    eni_host_counters now;
    eni_host_count(rank->host, &now);
    rank->done = (eni_sim_step){.sim = rank->sim,
                                .rank = rank->world.rank,
                                .step = rank->step,
                                .micro_batch = rank->first_batch,
                                .samples = samples_after(rank),
                                .nsamples = rank->nsamples,
                                .begin_ns = begin,
                                .end_ns = rank->sim->queue.now_ns,
                                .send_ns = now.send_ns - before->send_ns,
                                .wait_ns = now.wait_ns - before->wait_ns,
                                .update_ns = now.update_ns - before->update_ns,
                                .version = now.version,
                                .base_version = now.base_version,
                                .payload_bytes = rank->result->sent + rank->result->recv - bytes,
                                .staleness = now.staleness,
                                .lr = now.lr};
    ask(rank, ENI_ASKS_RECORD);
}

static en_status take_step(eni_sim_rank *rank)
{
    const int64_t begin = rank->sim->queue.now_ns;
    const uint64_t bytes = rank->result->sent + rank->result->recv;
    eni_host_counters before = {0};
    if (rank->sim->config->stepped != NULL) eni_host_count(rank->host, &before);
    eni_sim_log(rank->sim, (eni_sim_event){.type = ENI_SIM_STEP,
                                           .rank = rank->world.rank,
                                           .clock = rank->step,
                                           .version = rank->first_batch});
    EN_TRY(begin_step(rank));
    ask(rank, ENI_ASKS_GRADIENT);
    EN_TRY(backward(rank));
    EN_TRY(eni_host_finish(rank->host));
    if (rank->sim->config->stepped != NULL) tell_step(rank, begin, &before, bytes);
    rank->result->steps = ++rank->step;
    return EN_OK;
}

static en_status train(eni_sim_rank *rank)
{
    EN_TRY(open_host(rank));
    while (rank->sim->status == EN_OK && assign(rank))
        EN_TRY(take_step(rank));
    return rank->sim->status == EN_OK ? eni_host_over(rank->host, has_to_leave(rank)) : EN_OK;
}

void eni_sim_rank_body(void *rank_)
{
    eni_sim_rank *rank = rank_;
    rank->status = train(rank);
    if (rank->status == EN_ESTOP) rank->status = EN_OK; /* the end of the budget, passed up */
    /* All other failures were logged by their hooks. */
    const bool is_said = rank->status != EN_ENOMEM && rank->status != EN_EPEER && rank->status != EN_EINTR;
    if (!is_said && rank->sim->status == EN_OK)
        eni_error("rank", "strategy %s failed on rank %d in step %" PRIu64 ": %s",
                  rank->sim->config->strategy->name, rank->world.rank, rank->step,
                  en_status_str(rank->status));
    if (rank->status == EN_OK) eni_delivery_finished(rank);
}
