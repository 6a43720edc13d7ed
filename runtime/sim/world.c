/* world.c - what the other files of this folder share: the memory of the run, resuming a rank, the addresses of
 * its vectors, and its operations in progress. It calls none of them. */
#include "runtime/sim/world.h"

#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"

/* ---- memory of the run --------------------------------------------------------------------------------- */

struct eni_sim_block {
    eni_sim_block *next, *previous;
    eni_version_buffer *held;
    _Alignas(ENI_LINE) char memory[];
};

void *eni_sim_alloc(eni_sim *sim, size_t bytes)
{
    eni_sim_block *block = eni_alloc(sizeof *block + bytes);
    if (block == NULL) return NULL;
    block->next = sim->memory.blocks;
    if (block->next != NULL) block->next->previous = block;
    sim->memory.blocks = block;
    return block->memory;
}

static eni_sim_block *block_of(void *memory)
{
    return (eni_sim_block *)(void *)((char *)memory - offsetof(eni_sim_block, memory));
}

eni_version_buffer **eni_sim_held(void *memory)
{
    return &block_of(memory)->held;
}

void eni_sim_free(eni_sim *sim, void *memory)
{
    eni_sim_block *block = block_of(memory);
    if (block->held != NULL) eni_store_release(NULL, block->held);
    if (block->next != NULL) block->next->previous = block->previous;
    if (block->previous != NULL)
        block->previous->next = block->next;
    else
        sim->memory.blocks = block->next;
    eni_free(block);
}

void eni_sim_free_all(eni_sim *sim)
{
    while (sim->memory.blocks != NULL)
        eni_sim_free(sim, sim->memory.blocks->memory);
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
    while (rank->asks != ENI_ASKS_NOTHING) {
        if (rank->asks == ENI_ASKS_RESULT) {
            eni_gradients_await(rank);
        } else if (rank->asks == ENI_ASKS_RECORD) {
            eni_gradients_await(rank);
            eni_sim_fail(sim, sim->config->stepped(sim->config->stepped_user, &rank->done));
        } else {
            eni_sim_fail(sim, eni_gradients_begin(rank));
            sim->gradients.samples += rank->nsamples;
        }
        rank->asks = ENI_ASKS_NOTHING;
        if (sim->status != EN_OK) return;
        eni_fiber_resume(rank->fiber);
    }
    if (!eni_fiber_has_ended(rank->fiber)) return;
    rank->is_running = false;
    sim->nrunning--;
    eni_sim_fail(sim, rank->status);
}

/* ---- vectors and samples ------------------------------------------------------------------------------- */

void eni_sim_rank_share(eni_sim_rank *rank, const float *param, eni_sim_message *answer)
{
    if (rank->answer != NULL) eni_sim_free(rank->sim, rank->answer);
    rank->param = param;
    rank->answer = answer;
}

float *eni_sim_rank_own(eni_sim_rank *rank)
{
    float *own = eni_arena_at(rank->arena, ENI_SLOT_PARAM, 0);
    if (rank->param == own) return own;
    memcpy(own, rank->param, rank->sim->config->problem->count * sizeof *own);
    eni_sim_rank_share(rank, own, NULL);
    return own;
}

float *eni_sim_rank_at(eni_sim_rank *rank, uint32_t slot, uint32_t bucket)
{
    if (slot == ENI_SLOT_PARAM) eni_sim_rank_own(rank);
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
