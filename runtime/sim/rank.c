/* rank.c - one rank's training loop in virtual time, as linear code on a fiber. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/log.h"
#include "core/rng.h"
#include "core/try.h"
#include "runtime/sim/world.h"

/* ---- which micro-batches, and how long they take ------------------------------------------------------- */

/* Takes this step's micro-batches; none when the budget is used up. A rank of a fixed assignment that has
 * none in the last round still takes part in it, with 0 samples: the others may need it. */
static int assign(eni_rank *rank)
{
    eni_sim *sim = rank->sim;
    const uint64_t total = sim->config->micro_batches, per_step = sim->config->accumulate;
    const uint64_t ranks = (uint64_t)sim->nranks, self = (uint64_t)rank->world.rank;
    if (sim->claims) {
        rank->first_batch = sim->next_batch;
        sim->next_batch += per_step;
        if (rank->first_batch >= total) return 0;
    } else {
        const uint64_t round = rank->step * ranks * per_step;
        if (round >= total) return 0;
        rank->first_batch = round + self * per_step;
    }
    const uint64_t left = rank->first_batch < total ? total - rank->first_batch : 0;
    rank->nbatches = left < per_step ? left : per_step;
    return 1;
}

/* Noise of mean 1, a function of (seed, rank, step). */
static double noise(const eni_rank *rank)
{
    const eni_sim_compute *model = &rank->sim->config->compute;
    const eni_rng_key key = {rank->sim->config->seed, ENI_RNG_SIM, (uint32_t)rank->world.rank, rank->step};
    if (model->noise == ENI_SIM_EXPONENTIAL) return -log1p(-eni_rng_unit(&key, 0));
    if (model->noise != ENI_SIM_LOGNORMAL) return 1;
    /* Box & Muller'58; 1 - u is never 0. */
    const double radius = sqrt(-2 * log1p(-eni_rng_unit(&key, 0)));
    const double normal = radius * cos(2 * acos(-1.0) * eni_rng_unit(&key, 1));
    return exp(model->sigma * normal - model->sigma * model->sigma / 2);
}

static int64_t compute_ns(const eni_rank *rank)
{
    const eni_sim_compute *model = &rank->sim->config->compute;
    const double factor = model->factor ? model->factor[rank->world.rank] : 1;
    return (int64_t)((double)model->mean_ns * (double)rank->nbatches * factor * noise(rank));
}

static void ask_for_gradient(eni_rank *rank)
{
    rank->wants_gradient = 1;
    eni_fiber_leave(rank->fiber);
}

static void sleep_until(eni_rank *rank, int64_t at_ns)
{
    eni_sim *sim = rank->sim;
    const en_status st = eni_event_queue_post(&sim->queue, at_ns, eni_rank_resume, sim, rank);
    if (st != EN_OK) eni_sim_fail(sim, st);
    eni_fiber_leave(rank->fiber);
}

/* ---- the steps ----------------------------------------------------------------------------------------- */

/* Backward completes bucket after bucket, each after its share of the step's time, and submits it. */
static en_status backward(eni_rank *rank)
{
    const eni_sim *sim = rank->sim;
    const en_strategy *strategy = sim->config->strategy;
    const int64_t begin = sim->queue.now_ns, duration = compute_ns(rank);
    uint64_t done = 0, all = 0;
    for (uint32_t b = 0; b < sim->buckets->n; b++)
        all += rank->buckets[b].count;
    for (uint32_t b = 0; b < sim->buckets->n; b++) {
        en_bucket *bucket = &rank->buckets[b];
        done += bucket->count;
        sleep_until(rank, begin + (int64_t)((double)duration * ((double)done / (double)all)));
        bucket->step = rank->step;
        bucket->nsamples = rank->grad_samples[b] = rank->nsamples;
        rank->is_empty[b] = rank->nsamples == 0;
        rank->uncovered[b] += rank->nsamples;
        memset(bucket->req, 0, sizeof bucket->req);
        EN_TRY(strategy->submit(&rank->host, rank->state, bucket));
    }
    return EN_OK;
}

/* The default of finish. */
static en_status wait_for_all(eni_rank *rank, const en_bucket *bucket)
{
    for (int i = 0; i < 3; i++)
        EN_TRY(rank->host.wait(&rank->host, bucket->req[i]));
    return EN_OK;
}

static en_status take_step(eni_rank *rank)
{
    const en_strategy *s = rank->sim->config->strategy;
    eni_event_trace_add(&rank->sim->events, &(eni_sim_event){.at_ns = rank->sim->queue.now_ns,
                                                          .type = ENI_SIM_STEP,
                                                          .rank = rank->world.rank,
                                                          .clock = rank->step,
                                                          .version = rank->first_batch});
    rank->rand_calls = 0;
    if (s->before_step) EN_TRY(s->before_step(&rank->host, rank->state, rank->step));
    ask_for_gradient(rank);
    EN_TRY(backward(rank));
    for (uint32_t b = 0; b < rank->sim->buckets->n; b++) {
        en_bucket *bucket = &rank->buckets[b];
        EN_TRY(s->finish ? s->finish(&rank->host, rank->state, bucket) : wait_for_all(rank, bucket));
    }
    if (s->after_step) EN_TRY(s->after_step(&rank->host, rank->state, rank->step));
    rank->result->steps = ++rank->step;
    return EN_OK;
}

static en_status train(eni_rank *rank)
{
    const en_strategy *s = rank->sim->config->strategy;
    rank->may_make_vectors = 1;
    if (s->open) EN_TRY(s->open(&rank->host, rank->state));
    for (uint32_t b = 0; s->plan && b < rank->sim->buckets->n; b++)
        EN_TRY(s->plan(&rank->host, rank->state, &rank->buckets[b]));
    rank->may_make_vectors = 0;
    if (s->theory && rank->world.rank == 0) {
        rank->sim->result->theory.size = sizeof(en_theory);
        s->theory(&rank->host, rank->state, &rank->sim->result->theory);
        rank->sim->result->has_theory = 1;
    }
    while (rank->sim->status == EN_OK && assign(rank))
        EN_TRY(take_step(rank));
    return EN_OK;
}

void eni_rank_body(void *rank_)
{
    eni_rank *rank = rank_;
    rank->status = train(rank);
    if (rank->status == EN_ESTOP) rank->status = EN_OK; /* the end of the budget, passed up */
    if (rank->status != EN_OK && rank->sim->status == EN_OK)
        eni_error("rank", "strategy %s failed on rank %d in step %" PRIu64 ": %s",
                  rank->sim->config->strategy->name, rank->world.rank, rank->step,
                  en_status_str(rank->status));
    if (rank->status == EN_OK) eni_delivery_finished(rank);
}
