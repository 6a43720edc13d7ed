/* check.c - `entrain check`: can these processes reach each other? One all-reduce and one step of the
 * strategy with known sums, and a line per rank. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/collective/probe.h"
#include "worker/gpus.h"
#include "worker/vectors.h"

static void fill(const eni_worker *w, uint32_t slot, float value)
{
    float *v = eni_arena_at(w->rank.exchange.arena, slot, 0);
    for (uint64_t i = 0; i < w->rank.job.schema.count; i++)
        v[i] = value;
}

/* Every element of every bucket must be lower by `change` than it was (before NULL: than 0); the first that
 * is not is named. */
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

/* Rank r brings r + 1: the mean is (n + 1) / 2. */
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

/* As a step does; but nothing else is under way. */
static en_status send_out(eni_worker *w, uint32_t bucket)
{
    EN_TRY(eni_vectors_send_out(w, bucket));
    return eni_vectors_await(w, bucket);
}

/* One step of the strategy: all weights start equal, so after it they are lower by lr times the mean
 * gradient. */
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
    EN_TRY(eni_vectors_fetch_param(w)); /* what the next forward would read there */
    return expect(w, ENI_SLOT_GRAD, before, change, w->rank.job.strategy->name);
}

/* ---- --probe: every rank tells the launcher what it has measured (cli/watch.c) ---- */

static const int64_t allreduce_ns = 200 * ENI_MILLI, copy_ns = 60 * ENI_MILLI;
static const uint64_t copy_bytes = 32 << 20;

static void tell(const eni_worker *w, const char *what, double first, double second)
{
    char line[96];
    const int n = snprintf(line, sizeof line, "cost %s %.9g %.9g\n", what, first, second);
    if (w->config->result_fd < 0) return;
    ssize_t ignored = write((int)w->config->result_fd, line, (size_t)n);
    (void)ignored;
}

static void tell_curve(const eni_worker *w, const char *what, const eni_cost_curve *curve)
{
    for (int i = 0; i < curve->n; i++)
        tell(w, what, curve->point[i].bytes, curve->point[i].seconds);
}

/* What a call of the store takes: rank 0's figures are everybody's. */
static en_status probe_calls(eni_worker *w)
{
    eni_costs costs;
    EN_TRY(eni_exchange_measure(&w->rank, &costs));
    if (w->rank.world.rank == 0) tell_curve(w, "call", &costs.call);
    return EN_OK;
}

/* All ranks at once. */
static en_status probe_copies(eni_worker *w)
{
    float *from = eni_alloc(copy_bytes), *to = eni_alloc(copy_bytes);
    en_status st = from == NULL || to == NULL ? EN_ENOMEM : EN_OK;
    if (st == EN_OK) memset(from, 0, copy_bytes);
    if (st == EN_OK) st = eni_member_gather(w->rank.member, "copy", NULL, 0, NULL, INT64_MAX);
    const double move = st == EN_OK ? eni_probe_copy(to, from, copy_bytes, copy_ns) : 0;
    if (st == EN_OK) st = eni_member_gather(w->rank.member, "sum", NULL, 0, NULL, INT64_MAX);
    if (st == EN_OK) tell(w, "copy", move, eni_probe_sum(to, from, copy_bytes, copy_ns));
    eni_free(from);
    eni_free(to);
    return st;
}

/* By fours from MIN to MAX. How many; 0: --probe is something else. */
static int sizes_of(const eni_worker *w, uint64_t bytes[ENI_COST_POINTS])
{
    const char *probe = w->config->probe;
    unsigned long long size, most;
    int n = 0;
    if (probe == NULL || sscanf(probe, "%llu..%llu", &size, &most) != 2 || size < 4 || size % 4 != 0)
        return 0;
    for (; size <= most && size <= 1 << 30 && n < ENI_COST_POINTS; size *= 4)
        bytes[n++] = size;
    return n;
}

uint64_t eni_check_room(const eni_worker *w)
{
    uint64_t bytes[ENI_COST_POINTS];
    const int n = sizes_of(w, bytes);
    return n == 0 ? 0 : bytes[n - 1] / sizeof(float);
}

/* And what this rank sends in one of the largest. */
static en_status probe_allreduces(eni_worker *w)
{
    uint64_t bytes[ENI_COST_POINTS];
    eni_coll *coll = w->rank.exchange.all.coll;
    eni_coll_op mean = {.op = EN_ALLREDUCE, .what = EN_WEIGHTS, .slot = ENI_SLOT_GRAD, .nsamples = 1};
    eni_cost_curve curve;
    eni_coll_counters before, after;
    const int n = sizes_of(w, bytes);
    if (n == 0 || coll == NULL)
        return eni_fail(EN_EINVAL, "check",
                        "--probe=%s: write call, copy, or with two ranks or more bytes from 4 to 1 GiB, as "
                        "4096..65536",
                        w->config->probe);
    EN_TRY(eni_probe_allreduce(coll, ENI_SLOT_GRAD, bytes, n, allreduce_ns / n, &curve));
    tell_curve(w, "allreduce", &curve);
    mean.count = bytes[n - 1] / sizeof(float);
    eni_coll_count(coll, &before);
    EN_TRY(eni_coll_run(coll, &mean));
    eni_coll_count(coll, &after);
    tell(w, "sent", (double)bytes[n - 1], (double)(after.payload_sent - before.payload_sent));
    return EN_OK;
}

/* The gradients were numbers for the step: now they are zeros. */
static en_status probe(eni_worker *w)
{
    fill(w, ENI_SLOT_GRAD, 0);
    if (strcmp(w->config->probe, "call") == 0) return probe_calls(w);
    return strcmp(w->config->probe, "copy") == 0 ? probe_copies(w) : probe_allreduces(w);
}

/* Which GPU, and how its vectors travel. */
static void tell_gpu(const eni_worker *w, double step_us, char *text, size_t bytes)
{
    static const char *const ways[] = {
        [ENI_GPU_ALONE] = "alone", [ENI_GPU_GROUP] = "NCCL", [ENI_GPU_SHARED] = "CUDA IPC"};
    const eni_gpu_choice *choice = &w->gpu.choice;
    if (w->gpu.vectors == NULL) return;
    const en_gpu_facts *facts = &w->gpu.gpus->facts;
    snprintf(text, bytes, "; cuda:%d %.40s (%.12s), %s: step ok, %.0f us (%.150s)", (int)facts->index,
             facts->name, facts->uuid, eni_vectors_are_staged(w) ? "staged" : ways[choice->way], step_us,
             choice->why);
}

en_status eni_check(eni_worker *w)
{
    double reduce_us = 0, step_us = 0;
    char text[960];
    if (w->rank.exchange.all.coll != NULL) EN_TRY(try_all_reduce(w, &reduce_us));
    EN_TRY(try_step(w, &step_us));
    if (w->config->probe != NULL) EN_TRY(probe(w));
    if (w->rank.exchange.client != NULL) EN_TRY(eni_client_finished(w->rank.exchange.client));
    const bool is_nccl = eni_vectors_are_on_gpu(w) && w->gpu.choice.way == ENI_GPU_GROUP;
    size_t n = (size_t)snprintf(text, sizeof text, "[%d] world_size %d, rank %d, backend %s, %s at %s",
                                (int)getpid(), w->rank.world.nranks, w->rank.world.rank,
                                is_nccl ? "nccl" : "host", w->rank.host, w->rank.mesh.address);
    if (w->rank.exchange.all.coll != NULL)
        n += (size_t)snprintf(text + n, sizeof text - n, "; all-reduce %s (%s): sum ok, %.0f us",
                              eni_coll_algorithm_name(w->rank.exchange.all.choice.algorithm),
                              w->rank.exchange.all.choice.transport == ENI_OVER_SHM ? "shared memory" : "tcp",
                              reduce_us);
    if (w->rank.exchange.client != NULL)
        n += (size_t)snprintf(text + n, sizeof text - n, "; push-pull (%s): sum ok, %.0f us",
                              eni_client_is_shared(w->rank.exchange.client) ? "shared memory" : "tcp",
                              step_us);
    tell_gpu(w, step_us, text + n, sizeof text - n);
    if (w->config->probe == NULL) puts(text); /* who measures has said so already */
    fflush(stdout);
    EN_TRY(eni_member_gather(w->rank.member, "trained", NULL, 0, NULL, INT64_MAX));
    return eni_member_gather(w->rank.member, "result", NULL, 0, NULL, INT64_MAX);
}
