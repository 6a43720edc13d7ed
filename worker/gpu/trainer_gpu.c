/* trainer_gpu.c - the gradient of one step on a GPU. First all of it is put into the GPU's streams, call by
 * call or as a capture; then the host does its part:
 *
 *     put in     forward | backward, each finished bucket on its way | loss     (and the next batch: batches.c)
 *     the host   staged: waits for each gradient, submits it; fp16: looks whether anything overflowed
 *
 * On the GPU (vectors.h) a bucket is submitted while it is put in, which enqueues its step; with fp16 not
 * before the flag is known. There nothing waits for the GPU in between: a step's loss comes one step
 * later. */
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>

#include "core/clock.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/evaluation.h"
#include "worker/gpu/gpus.h"
#include "worker/gpu/images.h"
#include "worker/gpu/prefetch.h"
#include "worker/gpu/scaler.h"
#include "worker/statistics.h"
#include "worker/gpu/vectors.h"
#include "worker/worker.h"

/* A sleep of Linux lasts 50 us longer than requested, which is a quarter of a small network's step. */
static const unsigned long timer_slack_ns = 1000;

/* ---- loss and hits of a step, read one step later, so that the GPU never waits for the host ----
 *
 *     COMPUTE   forward 0 | backward 0 | fetch -> set 0 | event 0   forward 1 | .. fetch -> set 1 | event 1
 *     host                                                               '- waits for event 0, reads set 0
 *
 * Two sets, used alternately; a set has a pair of numbers for each micro-batch. */

typedef struct score_set {
    float (*pair)[2];   /* (accumulate) registered: mean loss, hits */
    uint64_t *nsamples; /* (accumulate) samples behind each pair */
    int n;
    en_event *event;
} score_set;

/* A step's buffers beside the vectors. */
typedef struct eni_step_on_gpu {
    const en_gpu *gpu;
    score_set scores[2];
    int set; /* of the step in progress */

    en_capture *graph[2]; /* by input buffer */
    int neager;           /* full batches enqueued call by call so far */
    uint64_t nlaunched;
    const char *why_not; /* why it cannot have graphs; "" if it may */

    en_event *lag[2]; /* of a slow rank: where its time begins and ends; else NULL */
} eni_step_on_gpu;

static en_status open_scores(eni_worker *w, score_set *set)
{
    const uint64_t n = (uint64_t)w->rank.job.accumulate;
    set->nsamples = eni_alloc_array(n, sizeof *set->nsamples);
    set->pair = eni_gpu_host_alloc(w, n * sizeof *set->pair);
    if (set->pair == NULL || set->nsamples == NULL) return EN_ENOMEM;
    return w->device.ops->gpu->event_new(w->device.ctx, &set->event);
}

static float *scores_pair(eni_step_on_gpu *step, uint64_t nsamples)
{
    score_set *set = &step->scores[step->set];
    set->nsamples[set->n] = nsamples;
    return set->pair[set->n++];
}

static en_status scores_end(const eni_step_on_gpu *step)
{
    return step->gpu->event_record(step->scores[step->set].event, EN_STREAM_COMPUTE);
}

static en_status scores_read(eni_worker *w, int at, double *loss_out, uint64_t *correct_out)
{
    const score_set *set = &w->gpu.step->scores[at];
    *loss_out = 0;
    *correct_out = 0;
    EN_TRY(eni_gpu_wait(w, set->event, "its loss"));
    for (int i = 0; i < set->n; i++) {
        *loss_out += (double)set->pair[i][0] * (double)set->nsamples[i];
        *correct_out += (uint64_t)set->pair[i][1];
    }
    return EN_OK;
}

/* ---- a step that is captured once and replayed: one call in place of hundreds ----
 *
 *     steps 0 1 2      enqueued call by call: libraries load kernels, choose algorithms, allocate
 *     step 3, step 4   captured, once for each input buffer (prefetch.h), and launched
 *     from then on     launched
 *
 * Only full batches are alike; a ragged one is enqueued call by call. Values that change from step to step
 * (rates, loss scale, the batch) lie in device memory that the capture reads. A step that the device cannot
 * capture is always enqueued call by call; a message says so once. */

enum { EAGER_STEPS = 3 };

static const char *obstacle(const eni_worker *w)
{
    if (!w->config->graph) return "--no-graph";
    if (w->config->straggler.count > 0) return "--straggler"; /* only the computing is to be timed */
    if (w->rank.job.accumulate > 1) return "--accumulate";    /* each micro-batch has its own gradient */
    if (!eni_vectors_are_on_gpu(w) && w->rank.world.nranks == 1 && !eni_rank_has_store(&w->rank))
        return "the host averages its gradient"; /* staged, as with --accumulate */
    return "";
}

static bool graphs_is_due(eni_worker *w, bool is_full_batch)
{
    eni_step_on_gpu *g = w->gpu.step;
    if (!is_full_batch || g->why_not[0] != 0) return false;
    if (g->neager == EAGER_STEPS) return true;
    g->neager++;
    return false;
}

/* The capture ends in any case: later calls are executed, not captured. */
static en_status record(eni_worker *w, int buffer, en_status (*enqueue)(void *user), void *user)
{
    eni_step_on_gpu *g = w->gpu.step;
    const int64_t begin = eni_now_ns();
    EN_TRY(g->gpu->capture_begin(w->device.ctx));
    const en_status put_in = enqueue(user);
    const en_status ended = g->gpu->capture_end(w->device.ctx, &g->graph[buffer]);
    if (put_in == EN_OK && ended == EN_OK) {
        eni_debug("graph", "input buffer %d: the step was captured in %.1f ms", buffer,
                  (double)(eni_now_ns() - begin) * 1e-6);
        return EN_OK;
    }
    if (ended == EN_OK) g->gpu->graph_free(g->graph[buffer]); /* incomplete */
    g->graph[buffer] = NULL;
    return put_in != EN_OK && put_in != EN_EUNSUPPORTED ? put_in : ended != EN_OK ? ended : put_in;
}

static en_status graphs_launch(eni_worker *w, int buffer, en_status (*enqueue)(void *user), void *user,
                               bool *is_launched_out)
{
    eni_step_on_gpu *g = w->gpu.step;
    *is_launched_out = false;
    if (g->graph[buffer] == NULL) {
        const en_status st = record(w, buffer, enqueue, user);
        if (st == EN_EUNSUPPORTED) {
            g->why_not = "the device cannot capture this step";
            eni_info("graph",
                     "rank %d: the device cannot capture a step of this model: its calls are made one by one",
                     w->rank.world.rank);
            return EN_OK;
        }
        EN_TRY(st);
    }
    EN_TRY(g->gpu->launch(g->graph[buffer]));
    g->nlaunched++;
    *is_launched_out = true;
    return EN_OK;
}

/* One micro-batch on its way into the streams. */
typedef struct work {
    eni_worker *w;
    eni_step_run *run;
    const eni_batch *batch;
    int64_t micro;
    float *pair;       /* destination of its loss */
    uint32_t complete; /* buckets whose gradient is enqueued in COMPUTE */
    bool is_captured;  /* the strategy's hooks follow later */
} work;

/* The strategy's calls are the same in every step and only enqueue: they may be part of the capture. */
static bool is_strategy_captured(const eni_worker *w)
{
    const eni_gpu_steps *steps = w->rank.trainer.steps;
    return steps != NULL && eni_gpu_steps_way(steps) != ENI_GPU_SHARED && w->gpu.scaler == NULL &&
           (w->rank.job.strategy->flags & EN_STATIC) != 0;
}

/* ---- a slow rank: what the GPU takes ---- */

static en_status open_lag(eni_worker *w, eni_step_on_gpu *step)
{
    if (w->straggler.factor <= 1) return EN_OK;
    if (step->gpu->size <= offsetof(en_gpu, elapsed))
        return eni_fail(EN_EUNSUPPORTED, "worker",
                        "--straggler: this build of the device %s cannot measure the GPU's time; use the one "
                        "that came with this program",
                        w->device.ops->name);
    for (int i = 0; i < 2; i++)
        EN_TRY(step->gpu->timer_new(w->device.ctx, &step->lag[i]));
    return EN_OK;
}

static en_status lag_event(eni_worker *w, bool is_end)
{
    const eni_step_on_gpu *step = w->gpu.step;
    return step->lag[is_end] == NULL ? EN_OK : step->gpu->event_record(step->lag[is_end], EN_STREAM_COMPUTE);
}

/* ---- opening and closing ---- */

static en_status open_step(eni_worker *w)
{
    eni_step_on_gpu *step = eni_alloc(sizeof *step);
    if (step == NULL) return EN_ENOMEM;
    w->gpu.step = step;
    step->gpu = w->device.ops->gpu;
    step->why_not = obstacle(w);
    EN_TRY(open_scores(w, &step->scores[0]));
    EN_TRY(open_scores(w, &step->scores[1]));
    return open_lag(w, step);
}

/* Before the vectors: graphs hold the group's communicator, and events of the vectors. */
static void close_graphs(const eni_worker *w)
{
    eni_step_on_gpu *step = w->gpu.step;
    for (int i = 0; step != NULL && !w->gpu.is_stuck && i < 2; i++)
        step->gpu->graph_free(step->graph[i]);
}

static void close_step(eni_worker *w)
{
    eni_step_on_gpu *step = w->gpu.step;
    if (step == NULL || w->gpu.is_stuck) return;
    for (int i = 0; i < 2; i++) {
        eni_gpu_host_free(w, step->scores[i].pair);
        eni_free(step->scores[i].nsamples);
        step->gpu->event_free(step->scores[i].event);
        if (step->lag[i] != NULL) step->gpu->event_free(step->lag[i]);
    }
    eni_free(step);
    w->gpu.step = NULL;
}

/* ---- enqueueing ---- */

/* A bucket's gradient is complete. */
static en_status let_go(work *k, uint32_t bucket)
{
    eni_worker *w = k->w;
    if (eni_vectors_are_staged(w))
        return eni_rank_is_alone(&w->rank) ? EN_OK : eni_vectors_send_out(w, bucket);
    if (w->gpu.scaler != NULL || w->rank.job.accumulate > 1)
        return EN_OK; /* not before the whole step is known */
    if (k->is_captured)
        return is_strategy_captured(w) ? eni_gpu_steps_submit(w->rank.trainer.steps, bucket) : EN_OK;
    return eni_step_submit(k->run, bucket + 1);
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
    return k->w->config->overlap ? let_go_until(k, eni_step_complete(k->run, first)) : EN_OK;
}

static en_status put_in(work *k)
{
    eni_worker *w = k->w;
    const eni_batch *b = k->batch;
    const float *param = eni_vectors_param(w);
    float *grad = eni_vectors_grad(w, k->micro);
    const en_batch input = {.n = (int64_t)b->micro.count, .x = b->x, .target = b->target};
    k->complete = 0;
    EN_TRY(en_model_forward(w->model, param, eni_state_of(w, k->micro), &input));
    EN_TRY(en_model_backward(w->model, param, grad, on_grad_ready, k));
    EN_TRY(let_go_until(k, w->rank.job.buckets->n));
    EN_TRY(en_model_fetch(w->model, k->pair));
    if (w->gpu.scaler != NULL) EN_TRY(eni_scaler_check(w, k->micro, grad));
    return eni_vectors_are_staged(w) && eni_rank_is_alone(&w->rank) ? eni_vectors_send_micro(w, k->micro)
                                                                    : EN_OK;
}

/* The captured part of the step: all of it, up to the weights of the next. */
static en_status put_in_captured(void *user)
{
    work *k = user;
    eni_worker *w = k->w;
    k->is_captured = true;
    if (is_strategy_captured(w)) eni_gpu_steps_replay(w->rank.trainer.steps, 0);
    EN_TRY(put_in(k));
    for (uint32_t b = 0; is_strategy_captured(w) && b < w->rank.job.buckets->n; b++)
        EN_TRY(eni_gpu_steps_wait(w->rank.trainer.steps, b));
    return eni_vectors_join(w);
}

/* Enqueues forward and backward of one micro-batch; `is_due`: as a capture, if the device can. */
static en_status compute(work *k, bool is_due)
{
    eni_step_run *run = k->run;
    eni_worker *w = k->w;
    eni_gpu_steps *steps = is_strategy_captured(w) ? w->rank.trainer.steps : NULL;
    bool is_launched = false;
    eni_member_note(w->rank.member, (int64_t)run->step, "forward");
    run->nsamples += k->batch->micro.count;
    k->pair = scores_pair(w->gpu.step, k->batch->micro.count);
    eni_step_compute_begins(run);
    if (k->micro == 0) EN_TRY(lag_event(w, false));
    if (is_due)
        EN_TRY(graphs_launch(w, eni_prefetch_buffer(w->gpu.prefetch), put_in_captured, k, &is_launched));
    if (steps != NULL) eni_gpu_steps_replay(steps, is_launched);
    k->is_captured = false;
    if (!is_launched) EN_TRY(put_in(k));
    EN_TRY(lag_event(w, true));
    EN_TRY(eni_prefetch_done(w->gpu.prefetch));
    eni_step_compute_ends(run, "enqueue");
    return EN_OK;
}

/* ---- the host's part ---- */

/* The whole step is one piece of a slow rank; it took the device's time. */
static en_status lag(eni_worker *w, eni_step_run *run, int64_t begin_ns)
{
    double loss;
    uint64_t correct;
    int64_t took;
    const eni_step_on_gpu *step = w->gpu.step;
    if (step->lag[0] == NULL || run->nsamples == 0) return EN_OK;
    EN_TRY(scores_read(w, run->set, &loss, &correct)); /* after both events */
    EN_TRY(step->gpu->elapsed(step->lag[0], step->lag[1], &took));
    eni_step_compute_ends(run, "gpu");
    if (eni_straggler_took(&w->straggler, begin_ns, took) > 0) eni_step_compute_ends(run, "sleep");
    return EN_OK;
}

static en_status await_bucket(eni_worker *w, eni_step_run *run, uint32_t bucket)
{
    eni_step_compute_begins(run);
    EN_TRY(eni_vectors_await(w, bucket));
    eni_step_compute_ends(run, "gpu");
    return EN_OK;
}

static en_status submit_rest(eni_worker *w, eni_step_run *run, bool is_sent_out)
{
    eni_member_note(w->rank.member, (int64_t)run->step, "backward");
    while (run->submitted < w->rank.job.buckets->n) {
        if (is_sent_out) EN_TRY(await_bucket(w, run, run->submitted));
        EN_TRY(eni_step_submit(run, run->submitted + 1));
    }
    return EN_OK;
}

/* fp16: the gradients that count are known once the GPU has checked all of them. The others become zero, for
 * readers that use them all the same. */
static en_status drop_overflown(eni_worker *w, eni_step_run *run, uint64_t *samples, bool is_sent_out)
{
    eni_step_compute_begins(run);
    EN_TRY(eni_scaler_await(w));
    for (uint32_t b = 0; is_sent_out && b < w->rank.job.buckets->n; b++)
        EN_TRY(eni_vectors_await(w, b)); /* so that nothing is written after the zeros */
    EN_TRY(eni_vectors_await_micros(w));
    eni_step_compute_ends(run, "gpu");
    for (int64_t i = 0; i < w->rank.job.accumulate; i++) {
        if (w->gpu.scaler->flags[i] == 0) continue;
        w->gpu.overflown += samples[i];
        samples[i] = 0;
        EN_TRY(eni_vectors_zero_grad(w, i));
    }
    return EN_OK;
}

/* ---- a step ---- */

static en_status begin(eni_worker *w, eni_step_run *run, const uint64_t *samples, int n)
{
    EN_TRY(eni_step_begin(run, samples, n));
    return eni_vectors_begun(w);
}

/* Whether every rank has a full batch: a capture may hold a collective, which NCCL wants captured by all
 * ranks or by none, so no rank may decide by its own batch alone. */
static bool is_full_step(const eni_worker *w, const eni_batch *batch)
{
    return batch->micro.count == w->rank.job.plan.batch &&
           eni_plan_step_samples(&w->rank.job.plan, batch->micro.step) == w->rank.job.plan.global_batch;
}

/* One micro-batch: its buckets leave while backward runs. */
static en_status gradient_of_rank(eni_worker *w, eni_step_run *run, const eni_batch *batch)
{
    work k = {.w = w, .run = run, .batch = batch};
    uint64_t n = batch->micro.count;
    const bool is_due = n > 0 && graphs_is_due(w, is_full_step(w, batch));
    const bool is_sent_out = n > 0 && eni_vectors_are_staged(w);
    if (w->rank.trainer.steps != NULL && eni_gpu_steps_way(w->rank.trainer.steps) != ENI_GPU_SHARED)
        eni_gpu_steps_replay(w->rank.trainer.steps, is_due && is_strategy_captured(w));
    if (w->gpu.scaler == NULL) EN_TRY(begin(w, run, &n, 1));
    const int64_t begin_ns = eni_now_ns();
    if (n > 0)
        EN_TRY(compute(&k, is_due));
    else
        EN_TRY(eni_vectors_zero_grad(w, 0)); /* for strategies that step locally all the same */
    EN_TRY(scores_end(w->gpu.step));
    EN_TRY(eni_prefetch_ahead(w->gpu.prefetch));
    EN_TRY(lag(w, run, begin_ns));
    if (w->gpu.scaler != NULL) {
        if (n > 0) EN_TRY(drop_overflown(w, run, &n, is_sent_out));
        EN_TRY(begin(w, run, &n, 1));
    }
    return submit_rest(w, run, is_sent_out);
}

/* All micro-batches of a world of one, then their mean. */
static en_status gradient_of_one_process(eni_worker *w, eni_step_run *run, const eni_batch *batch)
{
    uint64_t samples[ENI_MEAN_MAX];
    const int64_t begin_ns = eni_now_ns();
    for (int64_t i = 0; i < w->rank.job.accumulate; i++) {
        if (i > 0) EN_TRY(eni_next_batch(w, run, &batch));
        work k = {.w = w, .run = run, .batch = batch, .micro = i};
        samples[i] = batch->micro.count;
        if (samples[i] > 0) EN_TRY(compute(&k, false));
        EN_TRY(eni_prefetch_ahead(w->gpu.prefetch));
    }
    EN_TRY(scores_end(w->gpu.step));
    EN_TRY(lag(w, run, begin_ns));
    if (w->gpu.scaler != NULL) EN_TRY(drop_overflown(w, run, samples, false));
    if (eni_vectors_are_staged(w)) {
        eni_step_compute_begins(run);
        EN_TRY(eni_vectors_await_micros(w));
        eni_step_average(&w->rank, samples);
        eni_step_compute_ends(run, "gpu");
    }
    EN_TRY(begin(w, run, samples, (int)w->rank.job.accumulate));
    return submit_rest(w, run, false);
}

static en_status gradient(void *self, eni_step_run *run)
{
    eni_worker *w = self;
    eni_step_on_gpu *step = w->gpu.step;
    const eni_batch *batch;
    EN_TRY(eni_next_batch(w, run, &batch));
    eni_straggler_begin_step(&w->straggler, run->step);
    /* a capture writes where it did when it was recorded: by the input buffer */
    step->set = w->rank.job.accumulate > 1 ? 1 - step->set : eni_prefetch_buffer(w->gpu.prefetch);
    step->scores[step->set].n = 0;
    run->set = step->set;
    for (int64_t i = 0; w->gpu.scaler != NULL && i < w->gpu.scaler->nmicros; i++)
        w->gpu.scaler->flags[i] = 0; /* a micro-batch without samples is not checked */
    if (w->rank.job.accumulate > 1 || (eni_vectors_are_staged(w) && eni_rank_is_alone(&w->rank)))
        return gradient_of_one_process(w, run, batch);
    return gradient_of_rank(w, run, batch);
}

static en_status score(void *self, int set, bool may_wait, double *loss_out, uint64_t *correct_out)
{
    eni_worker *w = self;
    const eni_step_on_gpu *step = w->gpu.step;
    if (!may_wait && step->gpu->poll(step->scores[set].event) != EN_OK) return EN_ETIMEOUT;
    return scores_read(w, set, loss_out, correct_out);
}

/* ---- after the join ---- */

static en_status gather(void *user, const char *tag, const void *blob, size_t bytes, eni_blobs *blobs_out)
{
    return eni_member_gather(user, tag, blob, bytes, blobs_out, INT64_MAX);
}

/* The same result on all ranks. */
static en_status choose_vectors(eni_worker *w)
{
    static const int backend[] = {[ENI_BACKEND_AUTO] = ENI_GPU_BACKEND_AUTO,
                                  [ENI_BACKEND_HOST] = ENI_GPU_BACKEND_HOST,
                                  [ENI_BACKEND_NCCL] = ENI_GPU_BACKEND_NCCL};
    const eni_config *c = w->config;
    const eni_gpu_facts_of_run facts = {.strategy_flags = w->rank.job.strategy->flags,
                                        .is_solo = (w->rank.job.strategy->flags & EN_ALONE) != 0,
                                        .has_store = eni_rank_has_store(&w->rank),
                                        .accumulate = (int)w->rank.job.accumulate,
                                        .backend = backend[c->backend],
                                        .allreduce = w->rank.exchange.asked.allreduce,
                                        .is_shaped = c->net != NULL,
                                        .no_shm = w->rank.exchange.asked.no_shm};
    EN_TRY(eni_gpus_choose(w->gpu.gpus, w->device.ctx, &facts, &w->gpu.choice));
    eni_log(w->rank.world.rank == 0 && !c->check ? ENI_LOG_INFO : ENI_LOG_DEBUG, "gpu", "vectors %s: %s",
            eni_vectors_are_on_gpu(w) ? "stay on the GPU" : "are staged through the host", w->gpu.choice.why);
    return EN_OK;
}

static en_status open_context(eni_worker *w)
{
    const eni_config *c = w->config;
    const eni_gpus_config gpus = {.spec = c->device,
                                  .device = w->device.ops,
                                  .host = eni_device_host(),
                                  .world = w->rank.world,
                                  .info = w->rank.info,
                                  .gather = gather,
                                  .user = w->rank.member};
    EN_TRY(eni_gpus_open(&gpus, &w->gpu.gpus));
    const en_device_config config = {.size = sizeof config,
                                     .index = w->gpu.gpus->facts.index,
                                     .threads = w->threads,
                                     .host = eni_device_host(),
                                     .flags = eni_config_open_flags(c)};
    return w->device.ops->open(&config, &w->device.ctx);
}

static void describe(eni_worker *w)
{
    eni_trainer *t = &w->rank.trainer;
    const bool is_on_gpu = eni_vectors_are_on_gpu(w);
    t->about.machine = w->device.ops->describe(w->device.ctx);
    t->late = is_on_gpu;
    t->may_drop = w->gpu.scaler != NULL;
    t->why = w->gpu.choice.why;
    if (is_on_gpu && w->gpu.choice.way != ENI_GPU_ALONE)
        t->carrier = w->gpu.choice.way == ENI_GPU_GROUP ? "nccl" : "cuda-ipc";
}

static en_status open_trainer(void *self)
{
    eni_worker *w = self;
    (void)prctl(PR_SET_TIMERSLACK, timer_slack_ns); /* of this thread, which waits for the GPU */
    EN_TRY(open_context(w));
    EN_TRY(choose_vectors(w));
    EN_TRY(eni_scaler_open(w));
    EN_TRY(open_step(w));
    describe(w);
    const en_model_options options = {.size = sizeof options,
                                      .dtype = eni_config_dtype(w->config),
                                      .loss_scale = w->gpu.scaler == NULL ? NULL : w->gpu.scaler->there};
    return en_model_new(&w->rank.job.schema, w->device.ops, w->device.ctx, &options, &w->model);
}

/* ---- batches ---- */

static en_status register_memory(void *user, void *memory, uint64_t bytes)
{
    const eni_device *d = user;
    return d->ops->gpu->register_memory(d->ctx, memory, bytes);
}

static void unregister_memory(void *user, void *memory)
{
    const eni_device *d = user;
    d->ops->gpu->unregister_memory(d->ctx, memory);
}

static en_status await(void *user, en_event *event)
{
    return eni_gpu_wait(user, event, "a batch to be copied");
}

static en_status open_prefetch(eni_worker *w)
{
    const eni_dataset *d = w->dataset;
    const uint64_t count = d->split[ENI_TRAIN].count;
    const eni_prefetch_config config = {.device = w->device.ops,
                                        .ctx = w->device.ctx,
                                        .loader = w->loader,
                                        .rows =
                                            w->rank.job.plan.batch < count ? w->rank.job.plan.batch : count,
                                        .sample_bytes = d->sample_floats * sizeof(float),
                                        .pixels = w->gpu.form == ENI_FORM_FLOATS ? NULL : &w->gpu.pixels,
                                        .raw_bytes = eni_dataset_sample_bytes(d, w->gpu.form),
                                        .target_bytes = eni_dataset_target_bytes(d),
                                        .await = await,
                                        .user = w};
    return eni_prefetch_open(&config, &w->gpu.prefetch);
}

static en_status warm_up(void *self)
{
    eni_worker *w = self;
    eni_loader_options options = {.hold = 2,
                                  .register_memory = register_memory,
                                  .unregister_memory = unregister_memory,
                                  .pin_user = &w->device};
    EN_TRY(eni_warm_up(w));
    EN_TRY(eni_images_open(w));
    options.form = w->gpu.form;
    EN_TRY(eni_start_loader(w, &options));
    EN_TRY(open_prefetch(w));
    return eni_gpus_report(w->gpu.gpus);
}

/* ---- result.json about GPUs ---- */

static json_t *describe_gpu(const en_gpu_facts *facts)
{
    json_t *gpu = json_object();
    eni_json_set_text(gpu, "name", facts->name);
    eni_json_set_int(gpu, "index", (uint64_t)facts->index);
    eni_json_set_text(gpu, "uuid", facts->uuid);
    return gpu;
}

static void report_rank(void *self, json_t *report)
{
    const eni_worker *w = self;
    eni_straggler_report(&w->straggler, report);
    if (w->gpu.vectors == NULL) return;
    const en_gpu_facts *facts = &w->gpu.gpus->facts;
    const eni_scaler *scaler = w->gpu.scaler;
    eni_gpus_use use;
    eni_gpus_look(w->gpu.gpus, &use);
    json_t *gpu = describe_gpu(facts);
    eni_json_set_int(gpu, "memory_bytes", facts->memory_bytes);
    eni_json_set_int(gpu, "own_bytes", use.own_bytes); /* 0: the driver does not report it */
    json_object_set_new(gpu, "others", use.is_known ? json_integer(use.others) : json_null());
    eni_json_set_int(gpu, "graph_steps", w->gpu.step->nlaunched);
    eni_json_set_text(gpu, "no_graph_because", w->gpu.step->why_not);
    eni_json_set_int(gpu, "copied_bytes", w->gpu.copied);
    eni_json_set_text(gpu, "data", eni_images_form(w));
    if (scaler != NULL) {
        eni_json_set_int(gpu, "overflows", scaler->scale.overflows);
        eni_json_set_int(gpu, "samples_overflown", w->gpu.overflown);
        eni_json_set_number(gpu, "loss_scale", (double)scaler->scale.scale);
    }
    json_object_set_new(report, "gpu", gpu);
}

/* Over the ranks. */
static void add_sums(const json_t *reports, json_t *gpu)
{
    size_t i;
    json_t *r;
    json_int_t overflows = 0, others = 0;
    bool is_fp16 = false, is_known = false;
    json_array_foreach(reports, i, r)
    {
        const json_t *own = json_object_get(r, "gpu");
        const json_int_t seen = json_integer_value(json_object_get(own, "others"));
        is_fp16 |= json_object_get(own, "overflows") != NULL;
        overflows += json_integer_value(json_object_get(own, "overflows"));
        is_known |= json_is_integer(json_object_get(own, "others"));
        others = seen > others ? seen : others;
    }
    if (is_fp16) json_object_set_new(gpu, "overflows", json_integer(overflows));
    /* not 0: timings are unreliable; null: the driver does not report it */
    json_object_set_new(gpu, "others", is_known ? json_integer(others) : json_null());
}

static void report_run(void *self, const json_t *reports, json_t *result)
{
    const eni_worker *w = self;
    static const char *const precisions[] = {"fp32", "bf16", "fp16"};
    const eni_config *c = w->config;
    if (w->gpu.vectors == NULL) return;
    json_t *gpu = describe_gpu(&w->gpu.gpus->facts);
    eni_json_set_text(gpu, "precision", precisions[c->precision]);
    json_object_set_new(gpu, "tf32", json_boolean(c->tf32));
    json_object_set_new(gpu, "deterministic", json_boolean(c->deterministic));
    json_object_set_new(gpu, "graph", json_boolean(w->gpu.step->nlaunched > 0));
    eni_json_set_text(gpu, "no_graph_because", w->gpu.step->why_not);
    eni_json_set_text(gpu, "vectors", eni_vectors_are_on_gpu(w) ? "gpu" : "staged");
    eni_json_set_text(gpu, "why", w->gpu.choice.why);
    add_sums(reports, gpu);
    json_object_set_new(result, "gpu", gpu);
}

/* ---- the end ---- */

void eni_gpu_close(eni_worker *w)
{
    if (w->device.ctx == NULL || w->device.ops->gpu == NULL) return;
    eni_vectors_settle(w);
    close_graphs(w);
    eni_vectors_close(w);
    close_step(w);
    eni_scaler_close(w);
    if (w->gpu.is_stuck) return;
    for (int s = 0; s < ENI_SPLITS; s++)
        eni_evaluation_close(w->gpu.evaluation[s]);
    eni_prefetch_close(w->gpu.prefetch);
    eni_images_close(w);
}

const eni_trainer_ops eni_trainer_gpu = {.open = open_trainer,
                                         .connect = eni_vectors_open,
                                         .start = eni_vectors_start,
                                         .warm_up = warm_up,
                                         .gradient = gradient,
                                         .finish = eni_vectors_finish,
                                         .score = score,
                                         .bring = eni_vectors_bring,
                                         .state = eni_statistics_get,
                                         .set_state = eni_statistics_set,
                                         .recompute = eni_statistics_recompute,
                                         .evaluate = eni_evaluate_weights,
                                         .scale = eni_scaler_facts,
                                         .set_scale = eni_scaler_resume,
                                         .report_rank = report_rank,
                                         .report_run = report_run,
                                         .leave = eni_vectors_leave,
                                         .abort = eni_vectors_abort};
