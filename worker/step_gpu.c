/* step_gpu.c - the gradient of one step on a GPU. First all of it is put into the GPU's streams, call by call
 * or as a capture (graph.h); then the host does what is its own:
 *
 *     put in     forward | backward, each finished bucket on its way | loss     (and the next batch:
 * prefetch.h) the host   staged: waits for each gradient, submits it; fp16: looks whether anything overflowed
 *
 * On the GPU (vectors.h) a bucket is submitted while it is put in, which enqueues its step; with fp16 not
 * before the flag is known. */
#include <stddef.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"
#include "worker/graph.h"
#include "worker/prefetch.h"
#include "worker/scaler.h"
#include "worker/scores.h"
#include "worker/step.h"
#include "worker/vectors.h"

/* One micro-batch on its way into the streams. */
typedef struct work {
    eni_step_run *run;
    const eni_batch *batch;
    int64_t micro;
    float *pair;       /* where its loss goes */
    uint32_t complete; /* buckets whose gradient is in COMPUTE */
    int is_captured;   /* the hooks of the strategy follow later */
} work;

static int is_staged(const eni_worker *w)
{
    return eni_vectors_where(w) == ENI_VECTORS_STAGED;
}

/* Its micro-batches are averaged: on the host where vectors are staged, else by the steps on the GPU. */
static int is_alone(const eni_worker *w)
{
    return w->world.nranks == 1 && !eni_worker_has_store(w);
}

/* The strategy's calls are the same in every step and enqueue only: they may be part of the capture. */
static int is_strategy_captured(const eni_worker *w)
{
    const eni_gpu_steps *steps = eni_vectors_steps(w);
    return steps != NULL && eni_gpu_steps_way(steps) != ENI_GPU_SHARED && w->scaler == NULL &&
           (w->strategy->flags & EN_STATIC) != 0;
}

/* ---- a slow rank: what the GPU takes ---- */

en_status eni_lag_open(eni_worker *w)
{
    const en_gpu *gpu = w->device.ops->gpu;
    if (w->straggler.factor <= 1) return EN_OK;
    if (gpu->size <= offsetof(en_gpu, elapsed)) {
        eni_error("worker",
                  "--straggler: this library of the device %s cannot tell what the GPU takes; use the one "
                  "that came with this program",
                  w->device.ops->name);
        return EN_EUNSUPPORTED;
    }
    for (int i = 0; i < 2; i++)
        EN_TRY(gpu->timer_new(w->device.ctx, &w->lag[i]));
    return EN_OK;
}

void eni_lag_close(eni_worker *w)
{
    for (int i = 0; i < 2 && !w->is_stuck && w->lag[i] != NULL; i++)
        w->device.ops->gpu->event_free(w->lag[i]);
}

static en_status lag_event(eni_worker *w, int is_end)
{
    return w->lag[is_end] == NULL ? EN_OK
                                  : w->device.ops->gpu->event_record(w->lag[is_end], EN_STREAM_COMPUTE);
}

/* ---- putting in ---- */

/* A bucket's gradient is complete. */
static en_status let_go(work *k, uint32_t bucket)
{
    eni_worker *w = k->run->w;
    if (is_staged(w)) return is_alone(w) ? EN_OK : eni_vectors_send_out(w, bucket);
    if (w->scaler != NULL || w->accumulate > 1) return EN_OK; /* not before all of the step is known */
    if (k->is_captured)
        return is_strategy_captured(w) ? eni_gpu_steps_submit(eni_vectors_steps(w), bucket) : EN_OK;
    k->run->submitted++;
    return eni_host_submit(w->strategy_host, bucket);
}

static en_status let_go_until(work *k, uint32_t end)
{
    if (k->complete == end) return EN_OK;
    eni_step_compute_ends(k->run, "enqueue");
    while (k->complete < end)
        EN_TRY(let_go(k, k->complete++));
    eni_step_compute_begins(k->run);
    return EN_OK;
}

static en_status on_grad_ready(void *user, uint32_t first, uint32_t n)
{
    work *k = user;
    (void)n;
    return k->run->w->config->overlap ? let_go_until(k, eni_step_complete(k->run, first)) : EN_OK;
}

static en_status put_in(work *k)
{
    eni_worker *w = k->run->w;
    const eni_batch *b = k->batch;
    const float *param = eni_vectors_param(w);
    float *grad = eni_vectors_grad(w, k->micro);
    const en_batch input = {.n = (int64_t)b->micro.count,
                            .x = b->x,
                            .target = b->labels != NULL ? (const void *)b->labels : (const void *)b->targets};
    k->complete = 0;
    EN_TRY(en_model_forward(w->model, param, &input));
    EN_TRY(en_model_backward(w->model, param, grad, on_grad_ready, k));
    EN_TRY(let_go_until(k, w->buckets->n));
    EN_TRY(en_model_fetch(w->model, k->pair));
    if (w->scaler != NULL) EN_TRY(eni_scaler_check(w, k->micro, grad));
    return is_staged(w) && is_alone(w) ? eni_vectors_send_micro(w, k->micro) : EN_OK;
}

/* What of the step a capture has: all of it, up to the weights of the next. */
static en_status put_in_captured(void *user)
{
    work *k = user;
    eni_worker *w = k->run->w;
    k->is_captured = 1;
    if (is_strategy_captured(w)) eni_gpu_steps_replay(eni_vectors_steps(w), 0);
    EN_TRY(put_in(k));
    for (uint32_t b = 0; is_strategy_captured(w) && b < w->buckets->n; b++)
        EN_TRY(eni_gpu_steps_wait(eni_vectors_steps(w), b));
    return eni_vectors_join(w);
}

/* Forward and backward of one micro-batch into the streams; `is_due`: as a capture, if the device can. */
static en_status compute(work *k, int is_due)
{
    eni_step_run *run = k->run;
    eni_worker *w = run->w;
    eni_gpu_steps *steps = is_strategy_captured(w) ? eni_vectors_steps(w) : NULL;
    int is_launched = 0;
    eni_member_note(w->member, (int64_t)run->step, "forward");
    run->nsamples += k->batch->micro.count;
    k->pair = eni_scores_pair(w->scores, k->batch->micro.count);
    eni_step_compute_begins(run);
    if (k->micro == 0) EN_TRY(lag_event(w, 0));
    if (is_due)
        EN_TRY(eni_graphs_launch(w, eni_prefetch_buffer(w->prefetch), put_in_captured, k, &is_launched));
    if (steps != NULL) eni_gpu_steps_replay(steps, is_launched);
    k->is_captured = 0;
    if (!is_launched) EN_TRY(put_in(k));
    EN_TRY(lag_event(w, 1));
    EN_TRY(eni_prefetch_done(w->prefetch));
    eni_step_compute_ends(run, "enqueue");
    return EN_OK;
}

/* ---- the host's part ---- */

/* All of a step is one piece of a slow rank: what it took is the device's time. */
static en_status lag(eni_step_run *run, int64_t begin_ns)
{
    eni_worker *w = run->w;
    double loss;
    uint64_t correct;
    int64_t took;
    if (w->lag[0] == NULL || run->nsamples == 0) return EN_OK;
    EN_TRY(eni_scores_read(w, run->set, &loss, &correct)); /* behind both events */
    EN_TRY(w->device.ops->gpu->elapsed(w->lag[0], w->lag[1], &took));
    eni_straggler_took(&w->straggler, begin_ns, took);
    eni_step_compute_ends(run, "straggler");
    return EN_OK;
}

static en_status await_bucket(eni_step_run *run, uint32_t bucket)
{
    eni_step_compute_begins(run);
    EN_TRY(eni_vectors_await(run->w, bucket));
    eni_step_compute_ends(run, "gpu");
    return EN_OK;
}

static en_status submit_rest(eni_step_run *run, int is_sent_out)
{
    eni_worker *w = run->w;
    eni_member_note(w->member, (int64_t)run->step, "backward");
    while (run->submitted < w->buckets->n) {
        if (is_sent_out) EN_TRY(await_bucket(run, run->submitted));
        EN_TRY(eni_host_submit(w->strategy_host, run->submitted++));
    }
    return EN_OK;
}

/* fp16: which gradients count is known once the GPU has looked at all of them. What does not count is zero,
 * for those who read it all the same. */
static en_status drop_overflown(eni_step_run *run, uint64_t *samples, int is_sent_out)
{
    eni_worker *w = run->w;
    eni_step_compute_begins(run);
    EN_TRY(eni_scaler_await(w));
    for (uint32_t b = 0; is_sent_out && b < w->buckets->n; b++)
        EN_TRY(eni_vectors_await(w, b)); /* nothing comes after the zeros */
    EN_TRY(eni_vectors_await_micros(w));
    eni_step_compute_ends(run, "gpu");
    for (int64_t i = 0; i < w->accumulate; i++) {
        if (!eni_scaler_has_overflown(w->scaler, i)) continue;
        w->tally.overflown += samples[i];
        samples[i] = 0;
        EN_TRY(eni_vectors_zero_grad(w, i));
    }
    return EN_OK;
}

/* ---- a step ---- */

/* With a full batch on every rank: a capture may hold a collective, and NCCL wants each captured by all ranks
 * or by none. So no rank may decide by its own batch alone. */
static int is_full_step(const eni_worker *w, const eni_batch *batch)
{
    return batch->micro.count == w->plan.batch &&
           eni_plan_step_samples(&w->plan, batch->micro.step) == w->plan.global_batch;
}

/* One micro-batch: its buckets leave while backward runs. */
static en_status gradient_of_rank(eni_step_run *run, const eni_batch *batch)
{
    eni_worker *w = run->w;
    work k = {.run = run, .batch = batch};
    uint64_t n = batch->micro.count;
    const int is_due = n > 0 && eni_graphs_is_due(w, is_full_step(w, batch));
    const int is_sent_out = n > 0 && is_staged(w);
    if (eni_vectors_steps(w) != NULL && eni_gpu_steps_way(eni_vectors_steps(w)) != ENI_GPU_SHARED)
        eni_gpu_steps_replay(eni_vectors_steps(w), is_due && is_strategy_captured(w));
    if (w->scaler == NULL) EN_TRY(eni_step_begin(run, &n, 1));
    const int64_t begin_ns = eni_now_ns();
    if (n > 0)
        EN_TRY(compute(&k, is_due));
    else
        EN_TRY(eni_vectors_zero_grad(w, 0)); /* for strategies that step locally all the same */
    EN_TRY(eni_scores_end(w->scores));
    EN_TRY(eni_prefetch_ahead(w->prefetch));
    EN_TRY(lag(run, begin_ns));
    if (w->scaler != NULL) {
        if (n > 0) EN_TRY(drop_overflown(run, &n, is_sent_out));
        EN_TRY(eni_step_begin(run, &n, 1));
    }
    return submit_rest(run, is_sent_out);
}

/* All micro-batches of a world of one; then their mean. */
static en_status gradient_of_one_process(eni_step_run *run, const eni_batch *batch)
{
    eni_worker *w = run->w;
    uint64_t samples[ENI_MEAN_MAX];
    const int64_t begin_ns = eni_now_ns();
    for (int64_t i = 0; i < w->accumulate; i++) {
        if (i > 0) EN_TRY(eni_step_next_batch(run, &batch));
        work k = {.run = run, .batch = batch, .micro = i};
        samples[i] = batch->micro.count;
        if (samples[i] > 0) EN_TRY(compute(&k, 0));
        EN_TRY(eni_prefetch_ahead(w->prefetch));
    }
    EN_TRY(eni_scores_end(w->scores));
    EN_TRY(lag(run, begin_ns));
    if (w->scaler != NULL) EN_TRY(drop_overflown(run, samples, 0));
    if (is_staged(w)) {
        eni_step_compute_begins(run);
        EN_TRY(eni_vectors_await_micros(w));
        eni_step_average(run, samples);
        eni_step_compute_ends(run, "gpu");
    }
    EN_TRY(eni_step_begin(run, samples, (int)w->accumulate));
    return submit_rest(run, 0);
}

en_status eni_step_on_gpu(eni_step_run *run, const eni_batch *batch)
{
    eni_worker *w = run->w;
    /* a capture writes where it did when it was made: by the input buffer */
    w->score_set = w->accumulate > 1 ? 1 - w->score_set : eni_prefetch_buffer(w->prefetch);
    run->set = w->score_set;
    eni_scores_begin(w->scores, run->set);
    eni_scaler_begin(w->scaler);
    if (w->accumulate > 1 || (is_staged(w) && is_alone(w))) return gradient_of_one_process(run, batch);
    return gradient_of_rank(run, batch);
}
