/* world.c - what the other files of this folder share: the memory of the run, resuming a rank, the addresses of
 * its vectors, and its operations in progress. It calls none of them. */
#include "runtime/sim/world.h"

#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

/* ---- memory of the run --------------------------------------------------------------------------------- */

struct eni_sim_block {
    eni_sim_block *next, *previous;
    _Alignas(ENI_LINE) char memory[];
};

void *eni_sim_alloc(eni_sim *sim, size_t bytes)
{
    eni_sim_block *block = eni_alloc(sizeof *block + bytes);
    if (block == NULL) return NULL;
    block->next = sim->blocks;
    if (block->next != NULL) block->next->previous = block;
    sim->blocks = block;
    return block->memory;
}

void eni_sim_free(eni_sim *sim, void *memory)
{
    eni_sim_block *block = (eni_sim_block *)(void *)((char *)memory - offsetof(eni_sim_block, memory));
    if (block->next != NULL) block->next->previous = block->previous;
    if (block->previous != NULL)
        block->previous->next = block->next;
    else
        sim->blocks = block->next;
    eni_free(block);
}

void eni_sim_free_all(eni_sim *sim)
{
    while (sim->blocks != NULL)
        eni_sim_free(sim, sim->blocks->memory);
}

/* ---- the event trace ----------------------------------------------------------------------------------- */

void eni_sim_log(eni_sim *sim, eni_sim_event event)
{
    const eni_sim_config *config = sim->config;
    event.at_ns = sim->queue.now_ns;
    /* Field by field: a struct may have padding. */
    const uint64_t words[] = {(uint64_t)event.at_ns,
                              event.type,
                              (uint64_t)(int64_t)event.rank,
                              (uint64_t)(int64_t)event.peer,
                              event.bucket,
                              event.clock,
                              event.version,
                              event.base};
    eni_digest_add(&sim->log, words, sizeof words);
    if (config->trace != NULL) config->trace(config->trace_user, &event);
}

/* ---- events -------------------------------------------------------------------------------------------- */

void eni_sim_post(eni_sim *sim, int64_t at_ns, void (*happen)(void *sim, void *subject), void *subject)
{
    eni_sim_fail(sim, eni_event_queue_post(&sim->queue, at_ns, happen, sim, subject));
}

/* ---- a rank goes on ------------------------------------------------------------------------------------ */

/* A rank alone in the world takes the mean of its micro-batches (one, too) as a world of as many ranks would:
 * the same function, the same order, the same bytes. */
static en_status compute_gradient(eni_sim_rank *rank)
{
    const eni_sim *sim = rank->sim;
    const eni_sim_problem *problem = sim->config->problem;
    uint64_t samples[ENI_MEAN_MAX] = {0};
    for (uint64_t i = 0; i < rank->nbatches; i++) {
        float *to = sim->gradients.micro != NULL ? sim->gradients.micro[i] : rank->grad;
        samples[i] = problem->samples(problem->user, rank->first_batch + i);
        EN_TRY(problem->grad(problem->user, rank->world.rank, rank->first_batch + i, rank->param, to));
    }
    if (rank->nbatches == 0) memset(rank->grad, 0, problem->count * sizeof(float));
    if (sim->gradients.micro == NULL || rank->nbatches == 0) return EN_OK;
    /* Bucket by bucket: a ring's order of the sum depends on where a bucket begins. */
    for (uint32_t b = 0; b < sim->buckets->n; b++) {
        const uint64_t lo = sim->buckets->bucket[b].lo, count = sim->buckets->bucket[b].hi - lo;
        const float *from[ENI_MEAN_MAX];
        for (uint64_t i = 0; i < sim->config->accumulate; i++)
            from[i] = sim->gradients.micro[i] + lo;
        eni_mean_ranks(rank->grad + lo, from, samples, (int)sim->config->accumulate, sim->config->sum_order,
                       count, 0, count);
    }
    return EN_OK;
}

void eni_sim_rank_resume(void *sim_, void *rank_)
{
    eni_sim *sim = sim_;
    eni_sim_rank *rank = rank_;
    if (rank->is_dead) {
        eni_fiber_free(rank->fiber);
        rank->fiber = NULL;
        return;
    }
    eni_fiber_resume(rank->fiber);
    while (rank->wants_gradient || rank->has_stepped) {
        eni_sim_fail(sim, rank->has_stepped ? sim->config->stepped(sim->config->stepped_user, &rank->done)
                                            : compute_gradient(rank));
        if (sim->status != EN_OK) return;
        if (rank->wants_gradient) sim->gradients.samples += rank->nsamples;
        rank->wants_gradient = rank->has_stepped = false;
        eni_fiber_resume(rank->fiber);
    }
    if (!eni_fiber_has_ended(rank->fiber)) return;
    rank->is_running = false;
    sim->nrunning--;
    eni_sim_fail(sim, rank->status);
}

/* ---- vectors and samples ------------------------------------------------------------------------------- */

float *eni_sim_rank_at(const eni_sim_rank *rank, uint32_t slot, uint32_t bucket)
{
    return eni_arena_at(rank->arena, slot, rank->sim->buckets->bucket[bucket].lo);
}

uint64_t eni_sim_samples_before(eni_sim *sim, uint64_t micro_batch)
{
    const eni_sim_problem *problem = sim->config->problem;
    const uint64_t m = micro_batch < sim->config->micro_batches ? micro_batch : sim->config->micro_batches;
    if (m >= sim->gradients.n) {
        const uint64_t room = 2 * m + 64;
        uint64_t *sums = realloc(sim->gradients.samples_before, room * sizeof *sums);
        if (sums == NULL) {
            eni_sim_fail(sim, EN_ENOMEM);
            return 0;
        }
        if (sim->gradients.n == 0) sums[sim->gradients.n++] = 0;
        for (; sim->gradients.n < room; sim->gradients.n++) {
            const uint64_t last = sim->gradients.n - 1;
            sums[sim->gradients.n] = sums[last] + problem->samples(problem->user, last);
        }
        sim->gradients.samples_before = sums;
    }
    return sim->gradients.samples_before[m];
}

/* ---- operations ---------------------------------------------------------------------------------------- */

/* A ticket is generation << 32 | slot + 1. */
eni_sim_pending *eni_sim_rank_slot_of(eni_sim_rank *rank, uint64_t ticket)
{
    const uint32_t slot = (uint32_t)ticket - 1;
    if (ticket == 0 || slot >= rank->npending) return NULL;
    eni_sim_pending *p = &rank->pending[slot];
    return p->generation == (uint32_t)(ticket >> 32) && !p->is_reported ? p : NULL;
}

eni_sim_pending *eni_sim_rank_pending(eni_sim_rank *rank, uint64_t ticket)
{
    eni_sim_pending *p = eni_sim_rank_slot_of(rank, ticket);
    return p != NULL && p->parts > 0 ? p : NULL;
}

uint64_t eni_sim_rank_begin(eni_sim_rank *rank, uint32_t parts, const char *doing, uint32_t bucket,
                            int32_t dest)
{
    uint32_t slot = 0;
    while (slot < rank->npending && !rank->pending[slot].is_reported)
        slot++;
    if (slot == rank->npending) {
        eni_sim_pending *pending = realloc(rank->pending, (slot + 1) * sizeof *pending);
        if (pending == NULL) {
            eni_sim_fail(rank->sim, EN_ENOMEM);
            return 0;
        }
        rank->pending = pending;
        rank->pending[rank->npending++] = (eni_sim_pending){0};
    }
    eni_sim_pending *p = &rank->pending[slot];
    *p = (eni_sim_pending){.generation = p->generation + 1,
                           .parts = parts,
                           .samples = UINT64_MAX,
                           .doing = doing,
                           .bucket = bucket,
                           .dest = dest};
    return (uint64_t)p->generation << 32 | (slot + 1);
}

void eni_sim_rank_part_done(eni_sim_rank *rank, uint64_t ticket, en_status status)
{
    eni_sim_pending *p = eni_sim_rank_pending(rank, ticket);
    if (p == NULL) return;
    if (p->status == EN_OK) p->status = status;
    if (--p->parts > 0 || rank->waiting != ticket) return;
    rank->waiting = 0;
    eni_sim_post(rank->sim, rank->sim->queue.now_ns, eni_sim_rank_resume, rank);
}
