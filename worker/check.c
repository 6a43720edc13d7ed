/* check.c - `entrain check`: can these processes reach each other? One all-reduce and one step of the
 * strategy with known sums; each rank prints a line. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "worker/gpu/gpus.h"
#include "worker/gpu/vectors.h"

static void fill(const eni_worker *w, uint32_t slot, float value)
{
    float *v = eni_arena_at(w->rank.exchange.arena, slot, 0);
    for (uint64_t i = 0; i < w->rank.job.schema.count; i++)
        v[i] = value;
}

/* Every element of every bucket must be `change` below `before` (NULL: below 0); names the first that is
 * not. */
static en_status expect(const eni_worker *w, uint32_t slot, const float *before, float change,
                        const char *what)
{
    const float *found = eni_arena_at(w->rank.exchange.arena, slot, 0);
    for (uint32_t b = 0; b < w->rank.job.buckets->n; b++)
        for (uint64_t i = w->rank.job.buckets->bucket[b].lo; i < w->rank.job.buckets->bucket[b].hi; i++) {
            const float expected = before == NULL ? -change : before[i] - change;
            const float scale = before == NULL ? fabsf(expected) : 1 + fabsf(expected);
            if (fabsf(found[i] - expected) <= 1e-5f * scale) continue;
            if (before == NULL)
                return eni_fail(EN_EPROTO, "check", "%s: element %" PRIu64 " is %g and should be %g", what, i,
                                (double)found[i], (double)expected);
            return eni_fail(EN_EPROTO, "check", "%s: weight %" PRIu64 " of %g became %g and should be %g",
                            what, i, (double)before[i], (double)found[i], (double)expected);
        }
    return EN_OK;
}

/* Rank r contributes r + 1, so the mean is (n + 1) / 2. */
static en_status try_all_reduce(eni_worker *w, double *us_out)
{
    const float mean = (float)(w->rank.world.nranks + 1) / 2;
    const eni_coll_op op = {.op = EN_ALLREDUCE, .what = EN_WEIGHTS, .slot = ENI_SLOT_EVAL, .nsamples = 1};
    fill(w, ENI_SLOT_EVAL, (float)(w->rank.world.rank + 1));
    int64_t begin = eni_now_ns();
    EN_TRY(eni_rank_collect(&w->rank, w->rank.exchange.all.coll, &op));
    *us_out = (double)(eni_now_ns() - begin) * 1e-3;
    return expect(w, ENI_SLOT_EVAL, NULL, -mean, "the all-reduce");
}

/* As in a step, but nothing else is in flight. */
static en_status send_out(eni_worker *w, uint32_t bucket)
{
    EN_TRY(eni_vectors_send_out(w, bucket));
    return eni_vectors_await(w, bucket);
}

/* One step of the strategy: all weights start equal and drop by lr times the mean gradient. */
static en_status try_step(eni_worker *w, double *us_out)
{
    const float change = (float)w->rank.job.schedule.base * (float)(w->rank.world.nranks + 1) / 2;
    const float *before = eni_arena_at(w->rank.exchange.arena, ENI_SLOT_EVAL, 0);
    memcpy(eni_arena_at(w->rank.exchange.arena, ENI_SLOT_EVAL, 0),
           eni_arena_at(w->rank.exchange.arena, ENI_SLOT_PARAM, 0), w->rank.job.schema.count * sizeof(float));
    fill(w, ENI_SLOT_GRAD, (float)(w->rank.world.rank + 1));
    EN_TRY(eni_vectors_send_grad(w));
    int64_t begin = eni_now_ns();
    if (eni_vectors_are_on_gpu(w) && w->rank.world.nranks > 1)
        eni_host_note_samples(w->rank.exchange.host, 0, (uint64_t)w->rank.world.nranks);
    EN_TRY(eni_host_begin(w->rank.exchange.host, 0, 1, 0));
    for (uint32_t b = 0; b < w->rank.job.buckets->n; b++) {
        if (eni_vectors_are_staged(w)) EN_TRY(send_out(w, b));
        EN_TRY(eni_host_submit(w->rank.exchange.host, b));
    }
    EN_TRY(eni_vectors_finish(w, NULL));
    EN_TRY(eni_vectors_bring(w, false));
    *us_out = (double)(eni_now_ns() - begin) * 1e-3;
    EN_TRY(expect(w, ENI_SLOT_PARAM, before, change, w->rank.job.strategy->name));
    if (!eni_vectors_are_staged(w)) return EN_OK;
    EN_TRY(eni_vectors_fetch_param(w)); /* what the next forward would read */
    return expect(w, ENI_SLOT_GRAD, before, change, w->rank.job.strategy->name);
}

/* This rank's GPU, and how its vectors travel. */
static void describe_gpu(const eni_worker *w, double step_us, char *text, size_t bytes)
{
    static const char *const ways[] = {
        [ENI_GPU_ALONE] = "alone", [ENI_GPU_GROUP] = "NCCL", [ENI_GPU_SHARED] = "CUDA IPC"};
    const eni_gpu_choice *choice = &w->gpu.choice;
    if (w->gpu.vectors == NULL) return;
    const en_gpu_facts *facts = &w->gpu.gpus->facts;
    eni_text_add(text, bytes, "; cuda:%d %.40s (%.12s), %s: step ok, %.0f us (%.150s)", (int)facts->index,
                 facts->name, facts->uuid, eni_vectors_are_staged(w) ? "staged" : ways[choice->way], step_us,
                 choice->why);
}

static en_status try_all(eni_worker *w)
{
    double reduce_us = 0, step_us = 0;
    char text[960];
    if (w->rank.exchange.all.coll != NULL) EN_TRY(try_all_reduce(w, &reduce_us));
    EN_TRY(try_step(w, &step_us));
    const bool is_nccl = eni_vectors_are_on_gpu(w) && w->gpu.choice.way == ENI_GPU_GROUP;
    snprintf(text, sizeof text, "[%d] world_size %d, rank %d, backend %s, %s at %s", (int)getpid(),
             w->rank.world.nranks, w->rank.world.rank, is_nccl ? "nccl" : "host", w->rank.host,
             w->rank.mesh.address);
    if (w->rank.exchange.all.coll != NULL)
        eni_text_add(text, sizeof text, "; all-reduce %s (%s): sum ok, %.0f us",
                     eni_coll_algorithm_name(w->rank.exchange.all.choice.algorithm),
                     w->rank.exchange.all.choice.transport == ENI_OVER_SHM ? "shared memory" : "tcp",
                     reduce_us);
    if (w->rank.exchange.client != NULL)
        eni_text_add(text, sizeof text, "; push-pull (%s): sum ok, %.0f us",
                     eni_client_is_shared(w->rank.exchange.client) ? "shared memory" : "tcp", step_us);
    describe_gpu(w, step_us, text, sizeof text);
    puts(text);
    fflush(stdout);
    return EN_OK;
}

en_status eni_check(eni_worker *w)
{
    EN_TRY(w->config->probe != NULL ? eni_measure(w) : try_all(w));
    if (w->rank.exchange.client != NULL) EN_TRY(eni_client_finished(w->rank.exchange.client));
    EN_TRY(eni_member_gather(w->rank.member, "trained", NULL, 0, NULL, INT64_MAX));
    return eni_member_gather(w->rank.member, "result", NULL, 0, NULL, INT64_MAX);
}
