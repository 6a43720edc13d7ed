/* world.c - what the files of this folder need of a run and of its ranks, and which calls none of them: memory of
 * the run, a rank that goes on, its vectors, its optimizer steps and its requests. */
#include "runtime/sim/world.h"

#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"

/* ---- memory of the run --------------------------------------------------------------------------------- */

struct eni_sim_block {
    eni_sim_block *next, *previous;
    _Alignas(ENI_LINE) char memory[];
};

void *eni_sim_alloc(eni_sim *sim, size_t bytes)
{
    eni_sim_block *block = eni_alloc(sizeof *block + bytes);
    if (!block) return NULL;
    block->next = sim->blocks;
    if (block->next) block->next->previous = block;
    sim->blocks = block;
    return block->memory;
}

void eni_sim_free(eni_sim *sim, void *memory)
{
    eni_sim_block *block = (eni_sim_block *)(void *)((char *)memory - offsetof(eni_sim_block, memory));
    if (block->next) block->next->previous = block->previous;
    if (block->previous)
        block->previous->next = block->next;
    else
        sim->blocks = block->next;
    eni_free(block);
}

void eni_sim_free_all(eni_sim *sim)
{
    while (sim->blocks)
        eni_sim_free(sim, sim->blocks->memory);
}

/* ---- a rank goes on ------------------------------------------------------------------------------------ */

/* A rank alone in the world takes the mean of its micro-batches (one, too) as a world of as many ranks would:
 * the same function, the same order, the same bytes. */
static void compute_gradient(eni_rank *rank)
{
    const eni_sim *sim = rank->sim;
    const eni_sim_problem *problem = sim->config->problem;
    uint64_t samples[ENI_MEAN_MAX] = {0};
    rank->nsamples = 0;
    for (uint64_t i = 0; i < rank->nbatches; i++) {
        float *to = sim->micro ? sim->micro[i] : rank->grad;
        samples[i] = problem->grad(problem->user, rank->world.rank, rank->first_batch + i, rank->param, to);
        rank->nsamples += samples[i];
    }
    if (rank->nbatches == 0) memset(rank->grad, 0, problem->count * sizeof(float));
    if (sim->micro && rank->nbatches > 0) {
        /* Bucket by bucket: a ring's order of the sum depends on where a bucket begins. */
        for (uint32_t b = 0; b < sim->buckets->n; b++) {
            const uint64_t lo = sim->buckets->bucket[b].lo, count = rank->buckets[b].count;
            const float *from[ENI_MEAN_MAX];
            for (uint64_t i = 0; i < sim->config->accumulate; i++)
                from[i] = sim->micro[i] + lo;
            eni_mean_ranks(rank->grad + lo, from, samples, (int)sim->config->accumulate,
                           sim->config->sum_order, count, 0, count);
        }
    }
    rank->result->samples += rank->nsamples;
}

void eni_rank_resume(void *sim_, void *rank_)
{
    eni_sim *sim = sim_;
    eni_rank *rank = rank_;
    if (rank->is_dead) {
        eni_fiber_free(rank->fiber);
        rank->fiber = NULL;
        return;
    }
    do {
        eni_fiber_resume(rank->fiber);
        if (!rank->wants_gradient) break;
        rank->wants_gradient = 0;
        compute_gradient(rank);
    } while (1);
    if (!eni_fiber_has_ended(rank->fiber)) return;
    rank->is_running = 0;
    sim->nrunning--;
    if (rank->status != EN_OK) eni_sim_fail(sim, rank->status);
}

/* ---- vectors ------------------------------------------------------------------------------------------- */

en_vec eni_rank_add_vector(eni_rank *rank, float *data, uint64_t count)
{
    if (rank->nvectors == rank->vectors_room) {
        const uint32_t room = rank->vectors_room ? 2 * rank->vectors_room : 8;
        eni_vector *vectors = realloc(rank->vectors, room * sizeof *vectors);
        if (!vectors) return 0;
        rank->vectors = vectors;
        rank->vectors_room = room;
    }
    eni_vector *v = &rank->vectors[rank->nvectors];
    *v = (eni_vector){.data = data, .count = count, .is_own = !data};
    if (!data) v->data = eni_alloc_array(count, sizeof *v->data);
    return v->data ? ++rank->nvectors : 0;
}

eni_vector *eni_rank_vector(eni_rank *rank, en_vec handle, uint64_t count)
{
    eni_vector *v = handle > 0 && handle <= rank->nvectors ? &rank->vectors[handle - 1] : NULL;
    if (v && (count == 0 || v->count == count)) return v;
    eni_error("rank", "strategy %s passes vector %u, which %s", rank->sim->config->strategy->name, handle,
              v ? "belongs to a bucket of another length" : "does not exist");
    eni_sim_fail(rank->sim, EN_EBUG);
    return NULL;
}

void eni_rank_note_write(eni_rank *rank, const float *data)
{
    const eni_buckets *buckets = rank->sim->buckets;
    for (uint32_t b = 0; b < buckets->n; b++)
        if (data == rank->grad + buckets->bucket[b].lo) rank->is_empty[b] = 0;
}

float *eni_rank_slot(eni_rank *rank, int i)
{
    const eni_sim *sim = rank->sim;
    if (i < 0 || i >= sim->optimizer->slots(&sim->config->hyper)) return NULL;
    if (!rank->slots[i]) rank->slots[i] = eni_alloc_array(sim->buckets->count, sizeof(float));
    return rank->slots[i];
}

/* ---- the optimizer ------------------------------------------------------------------------------------- */

float eni_rank_lr(const eni_rank *rank, uint32_t bucket)
{
    return eni_schedule_lr(&rank->sim->config->schedule, rank->samples[bucket]);
}

en_status eni_rank_step(eni_rank *rank, en_bucket *bucket, uint64_t nsamples)
{
    const eni_sim *sim = rank->sim;
    const uint64_t at = sim->buckets->bucket[bucket->id].lo + bucket->lo;
    float *slots[ENI_MAX_SLOTS] = {NULL};
    for (int i = 0; i < sim->optimizer->slots(&sim->config->hyper); i++) {
        float *data = eni_rank_slot(rank, i);
        if (!data) return EN_ENOMEM;
        slots[i] = data + at;
    }
    eni_hyper hyper = sim->config->hyper;
    hyper.lr = eni_rank_lr(rank, bucket->id);
    hyper.step = rank->steps_taken[bucket->id]++;
    if (!rank->is_empty[bucket->id])
        sim->optimizer->step(rank->param + at, slots, rank->grad + at, bucket->hi - bucket->lo, &hyper);
    rank->samples[bucket->id] += nsamples;
    return EN_OK;
}

/* ---- requests ------------------------------------------------------------------------------------------ */

/* A request is generation << 32 | slot + 1. */
eni_request *eni_rank_slot_of(eni_rank *rank, en_req request)
{
    const uint32_t slot = (uint32_t)request - 1;
    if (request == 0 || slot >= rank->nrequests) return NULL;
    eni_request *r = &rank->requests[slot];
    return r->generation == (uint32_t)(request >> 32) ? r : NULL;
}

eni_request *eni_rank_request(eni_rank *rank, en_req request)
{
    eni_request *r = eni_rank_slot_of(rank, request);
    return r && r->parts > 0 ? r : NULL;
}

en_req eni_rank_begin(eni_rank *rank, uint32_t parts, const char *doing, uint32_t bucket, int32_t dest)
{
    uint32_t slot = 0;
    while (slot < rank->nrequests && (rank->requests[slot].parts > 0 || rank->requests[slot].status != EN_OK))
        slot++;
    if (slot == rank->nrequests) {
        eni_request *requests = realloc(rank->requests, (slot + 1) * sizeof *requests);
        if (!requests) {
            eni_sim_fail(rank->sim, EN_ENOMEM);
            return 0;
        }
        rank->requests = requests;
        rank->requests[rank->nrequests++] = (eni_request){0};
    }
    eni_request *r = &rank->requests[slot];
    *r = (eni_request){
        .generation = r->generation + 1, .parts = parts, .doing = doing, .bucket = bucket, .dest = dest};
    return (en_req)r->generation << 32 | (slot + 1);
}

void eni_rank_part_done(eni_rank *rank, en_req request, en_status status)
{
    eni_request *r = eni_rank_request(rank, request);
    if (!r) return;
    if (r->status == EN_OK) r->status = status;
    if (--r->parts > 0 || rank->waiting != request) return;
    rank->waiting = 0;
    const en_status st =
        eni_event_queue_post(&rank->sim->queue, rank->sim->queue.now_ns, eni_rank_resume, rank->sim, rank);
    if (st != EN_OK) eni_sim_fail(rank->sim, st);
}
