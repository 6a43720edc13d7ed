/* batches.c - the micro-batches of a rank: their sizes, made-up ones before the clock begins, the loader of
 * the real ones. */
#include "worker/worker.h"

#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "ops/mean.h"
#include "rank/run.h"
#include "worker/gpu/prefetch.h"
#include "worker/parallel/team.h"
#include "worker/gpu/vectors.h"

enum { PASSES = 2 };

/* ---- which sizes ---- */

static int add_size(const eni_worker *w, uint64_t micro_batch, uint64_t *sizes, int n)
{
    eni_micro micro;
    if (eni_plan_micro(&w->rank.job.plan, micro_batch, &micro) != EN_OK || micro.count == 0) return n;
    for (int i = 0; i < n; i++)
        if (sizes[i] == micro.count) return n;
    sizes[n] = micro.count;
    return n + 1;
}

/* The sizes within a step differ by one at most; the first micro-batch is the largest, the last the
 * smallest. */
int eni_batch_sizes(const eni_worker *w, uint64_t sizes_out[ENI_BATCH_SIZES])
{
    const eni_plan *plan = &w->rank.job.plan;
    const uint64_t steps[3] = {0, plan->steps - 1, plan->epoch_steps > 0 ? plan->epoch_steps - 1 : 0};
    const bool has_all = w->rank.job.is_claiming || w->rank.job.accumulate > 1;
    const uint64_t rank = (uint64_t)w->rank.world.rank, first = has_all ? 0 : rank,
                   last = has_all ? plan->world - 1 : rank;
    int n = 0;
    for (int i = 0; i < 3; i++) {
        n = add_size(w, steps[i] * plan->world + first, sizes_out, n);
        n = add_size(w, steps[i] * plan->world + last, sizes_out, n);
    }
    return n;
}

/* ---- scratch ---- */

typedef struct scratch {
    eni_worker *w;
    float *x;
    void *target; /* int32 or float */
    float *grad;
    void *there[3]; /* on a GPU: the same three */
    en_event *done; /* on a GPU */
    /* of a pass that is timed */
    /* seconds until a bucket may leave, by bucket, summed over the passes; NULL if not asked for */
    double *ready;
    uint32_t complete; /* buckets */
    int64_t begin_ns;
} scratch;

static void make_up(const scratch *s, uint64_t n)
{
    const eni_dataset *d = s->w->dataset;
    for (uint64_t i = 0; i < n * d->sample_floats; i++)
        s->x[i] = (float)(i * 2654435761u % 1021) / 1021 - 0.3f;
    for (uint64_t i = 0; d->classes > 0 && i < n; i++)
        ((int32_t *)s->target)[i] = (int32_t)(i % (uint64_t)d->classes);
}

static en_status open_on_gpu(scratch *s, const uint64_t bytes[3])
{
    const eni_device *d = &s->w->device;
    const void *const here[2] = {s->x, s->target};
    for (int i = 0; i < 3; i++)
        EN_TRY(d->ops->alloc(d->ctx, bytes[i], &s->there[i]));
    for (int i = 0; i < 2; i++)
        EN_TRY(d->ops->copy(d->ctx, s->there[i], here[i], bytes[i], EN_COPY_IN));
    return d->ops->gpu->event_new(d->ctx, &s->done);
}

static en_status open_scratch(scratch *s, uint64_t n)
{
    const eni_worker *w = s->w;
    const uint64_t bytes[3] = {n * w->dataset->sample_floats * sizeof(float),
                               n * eni_dataset_target_bytes(w->dataset),
                               w->rank.job.schema.count * sizeof(float)};
    const bool is_on_gpu = w->device.ops->gpu != NULL;
    s->x = eni_alloc(bytes[0]);
    s->target = eni_alloc(bytes[1]);
    s->grad = is_on_gpu ? NULL : eni_alloc(bytes[2]);
    if (s->x == NULL || s->target == NULL || (!is_on_gpu && s->grad == NULL)) return EN_ENOMEM;
    make_up(s, n);
    return is_on_gpu ? open_on_gpu(s, bytes) : EN_OK;
}

/* A GPU that does not answer may still write to its memory, so that is not freed (gpu/vectors.h). */
static void close_scratch(scratch *s, en_status st)
{
    const eni_device *d = &s->w->device;
    for (int i = 0; i < 3 && st == EN_OK; i++)
        if (s->there[i] != NULL) d->ops->free(d->ctx, s->there[i]);
    if (s->done != NULL) d->ops->gpu->event_free(s->done);
    eni_free(s->grad);
    eni_free(s->target);
    eni_free(s->x);
}

/* ---- passes ---- */

static void note_ready(scratch *s, uint32_t bucket)
{
    if (bucket < ENI_COST_BUCKETS) s->ready[bucket] += (double)(eni_now_ns() - s->begin_ns) * 1e-9;
}

/* A bucket leaves when the layer before it begins backward, as in training; staged, when its gradient is
 * here. */
static en_status on_grad_ready(void *user, uint32_t first, uint32_t n)
{
    scratch *s = user;
    const eni_buckets *buckets = s->w->rank.job.buckets;
    (void)n;
    for (; s->complete < buckets->n && buckets->bucket[s->complete].first >= first; s->complete++) {
        if (eni_vectors_are_staged(s->w))
            EN_TRY(eni_vectors_send_out(s->w, s->complete));
        else
            note_ready(s, s->complete);
    }
    return EN_OK;
}

/* As after an exchange by the host. */
static en_status copy_weights_in(const eni_worker *w)
{
    return w->device.ops->copy(w->device.ctx, (void *)(uintptr_t)eni_vectors_param(w),
                               eni_arena_at(w->rank.exchange.arena, ENI_SLOT_PARAM, 0),
                               w->rank.job.schema.count * sizeof(float), EN_COPY_IN);
}

static en_status await_buckets(scratch *s)
{
    for (uint32_t b = 0; b < s->complete; b++) {
        EN_TRY(eni_vectors_await(s->w, b));
        note_ready(s, b);
    }
    return EN_OK;
}

static en_status pass(scratch *s, uint64_t n)
{
    eni_worker *w = s->w;
    const bool is_there = w->device.ops->gpu != NULL;
    const en_on_grad_ready hook = s->ready != NULL ? on_grad_ready : NULL;
    const bool is_staged = hook != NULL && eni_vectors_are_staged(w);
    const float *param = eni_vectors_param(w);
    const en_batch input = {
        .n = (int64_t)n, .x = is_there ? s->there[0] : s->x, .target = is_there ? s->there[1] : s->target};
    EN_TRY(eni_rank_alive(&w->rank));
    if (w->team != NULL) return eni_team_warm_up(w, &input, s->grad);
    if (is_staged) EN_TRY(copy_weights_in(w));
    EN_TRY(en_model_forward(w->model, param, NULL, &input));
    EN_TRY(en_model_backward(w->model, param, is_there ? s->there[2] : s->grad, hook, s));
    if (!is_there) return EN_OK;
    if (is_staged) EN_TRY(await_buckets(s));
    EN_TRY(w->device.ops->gpu->event_record(s->done, EN_STREAM_COMPUTE));
    return eni_gpu_wait(w, s->done, "the warm-up");
}

en_status eni_warm_up(eni_worker *w)
{
    uint64_t sizes[ENI_BATCH_SIZES], largest = 0;
    const int n = eni_batch_sizes(w, sizes);
    const int64_t begin = eni_now_ns();
    scratch s = {.w = w};
    for (int i = 0; i < n; i++)
        largest = sizes[i] > largest ? sizes[i] : largest;
    eni_member_note(w->rank.member, -1, "warm-up");
    en_status st = open_scratch(&s, largest);
    for (int i = 0; i < n * PASSES && st == EN_OK; i++)
        st = pass(&s, sizes[i / PASSES]);
    close_scratch(&s, st);
    eni_debug("worker", "warm after %.1f ms", (double)(eni_now_ns() - begin) * 1e-6);
    return st;
}

/* Whether any rank says so; all wait for all. */
static en_status agree(const eni_worker *w, bool own, bool *any_out)
{
    const eni_coll_op mean = {
        .op = EN_ALLREDUCE, .what = EN_WEIGHTS, .slot = ENI_SLOT_EVAL, .count = 1, .nsamples = 1};
    float *said = eni_arena_at(w->rank.exchange.arena, ENI_SLOT_EVAL, 0);
    *said = own;
    if (w->rank.exchange.all.coll != NULL) EN_TRY(eni_coll_run(w->rank.exchange.all.coll, &mean));
    *any_out = *said > 0;
    return EN_OK;
}

/* The ranks run in lock step, as in training: a round ends when the slowest rank has finished, so the mean
 * over the rounds includes what a busy machine adds to some of them. Rounds below 0 are not timed. */
en_status eni_time_batches(eni_worker *w, int64_t budget_ns, double *seconds_out,
                           double ready_out[ENI_COST_BUCKETS])
{
    const uint64_t n = w->rank.job.plan.batch;
    scratch s = {.w = w, .ready = ready_out};
    double own = 0;
    int64_t begin = 0;
    int round = -PASSES;
    bool is_over = false;
    en_status st = open_scratch(&s, n);
    for (; st == EN_OK && !is_over; round++) {
        if (round <= 0) {
            memset(ready_out, 0, ENI_COST_BUCKETS * sizeof *ready_out);
            own = 0;
            begin = eni_now_ns();
        }
        s.complete = 0;
        s.begin_ns = eni_now_ns();
        st = pass(&s, n);
        own += (double)(eni_now_ns() - s.begin_ns) * 1e-9;
        if (st == EN_OK) st = agree(w, round >= 0 && eni_now_ns() - begin > budget_ns, &is_over);
    }
    *seconds_out = (double)(eni_now_ns() - begin) * 1e-9 / round;
    for (int b = 0; b < ENI_COST_BUCKETS; b++)
        ready_out[b] /= own;
    close_scratch(&s, st);
    return st;
}

/* ---- the loader ---- */

static int loader_threads(const eni_worker *w)
{
    enum { FOR_A_GPU = 16 }; /* each has a batch in page-locked memory */
    if (w->config->loader_threads > 0) return (int)w->config->loader_threads;
    if (eni_device_is_gpu(w->config->device)) return w->threads < FOR_A_GPU ? w->threads : FOR_A_GPU;
    return w->config->resize > 0 ? 2 : 1;
}

en_status eni_start_loader(eni_worker *w, eni_loader_options *options)
{
    options->dataset = w->dataset;
    options->plan = &w->rank.job.plan;
    options->seed = (uint64_t)w->config->seed;
    options->order = w->rank.job.order;
    options->threads = loader_threads(w);
    options->first = w->rank.saving.first_micro + (uint64_t)w->rank.world.rank;
    options->stride = (uint64_t)w->rank.world.nranks;
    options->user = &w->rank;
    if (w->rank.job.is_claiming) options->claim = eni_run_claim;
    return eni_loader_start(options, &w->loader);
}

en_status eni_next_batch(eni_worker *w, eni_step_run *run, const eni_batch **batch_out)
{
    const int64_t begin_ns = eni_now_ns();
    en_status st;
    eni_member_note(w->rank.member, (int64_t)run->step, "data");
    do {
        const int64_t until = eni_now_ns() + ENI_SECOND / 2;
        st = w->gpu.prefetch != NULL ? eni_prefetch_next(w->gpu.prefetch, until, batch_out)
                                     : eni_loader_next(w->loader, until, batch_out);
        if (st == EN_ETIMEOUT) EN_TRY(eni_rank_alive(&w->rank));
    } while (st == EN_ETIMEOUT);
    if (st == EN_OK) eni_step_take(run, &(*batch_out)->micro, begin_ns);
    return st;
}

/* ---- the gradient of a step ---- */

/* A rank without samples takes part with a weight of zero. */
static en_status gradient_of_rank(eni_worker *w, eni_step_run *run, eni_compute_gradient compute)
{
    const eni_batch *batch;
    float *grad = eni_arena_at(w->rank.exchange.arena, ENI_SLOT_GRAD, 0);
    EN_TRY(eni_next_batch(w, run, &batch));
    EN_TRY(eni_step_begin(run, &batch->micro.count, 1));
    if (batch->micro.count > 0)
        EN_TRY(compute(w, run, batch, 0, grad, true));
    else
        memset(grad, 0,
               w->rank.job.schema.count * sizeof *grad); /* for strategies that step locally all the same */
    return eni_step_submit(run, w->rank.job.buckets->n);
}

static en_status gradient_of_one_process(eni_worker *w, eni_step_run *run, eni_compute_gradient compute)
{
    const eni_batch *batch;
    uint64_t nsamples[ENI_MEAN_MAX];
    for (int64_t i = 0; i < w->rank.job.accumulate; i++) {
        EN_TRY(eni_next_batch(w, run, &batch));
        nsamples[i] = batch->micro.count;
        if (batch->micro.count > 0) EN_TRY(compute(w, run, batch, i, w->rank.exchange.micros[i], false));
    }
    eni_step_average(&w->rank, nsamples);
    EN_TRY(eni_step_begin(run, nsamples, (int)w->rank.job.accumulate));
    return eni_step_submit(run, w->rank.job.buckets->n);
}

en_status eni_gradient(eni_worker *w, eni_step_run *run, eni_compute_gradient compute)
{
    return w->rank.exchange.micros == NULL ? gradient_of_rank(w, run, compute)
                                           : gradient_of_one_process(w, run, compute);
}
