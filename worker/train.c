/* train.c - the main path: one training step, from a batch to the weights of the next step.
 *
 *     batch  ->  forward  ->  backward, layer by layer; each finished bucket is submitted to the strategy
 *            ->  finish: the strategy's exchange ends, param holds the next weights  ->  record
 *
 * What happens between submit and finish is the strategy's business (strategies/), carried out by the host
 * (runtime/host/host.c). On a GPU the same path is put into queues (step_gpu.c), and where nothing waits for the
 * GPU in between (vectors.h) a step is recorded when its loss comes, which is one step later. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "ops/mean.h"
#include "worker/prefetch.h"
#include "worker/save.h"
#include "worker/scores.h"
#include "worker/step.h"
#include "worker/vectors.h"

void eni_step_compute_begins(eni_step_run *run)
{
    run->mark_ns = eni_now_ns();
}

void eni_step_compute_ends(eni_step_run *run, const char *what)
{
    const int64_t now = eni_now_ns();
    run->compute_ns += now - run->mark_ns;
    eni_trace_span(run->w->trace, ENI_TRACE_COMPUTE, what, run->mark_ns, now, (int64_t)run->step, -1, 0);
    run->mark_ns = now;
}

/* On the host it is this rank that computes: it may be a slow one, and has to look it. */
static void compute_begins(eni_step_run *run)
{
    eni_straggler_begins(&run->w->straggler);
    eni_step_compute_begins(run);
}

static void compute_ends(eni_step_run *run, const char *what)
{
    eni_straggler_ends(&run->w->straggler, run->mark_ns);
    eni_step_compute_ends(run, what);
}

/* ---- submit, while backward runs ---- */

static en_status submit_until(eni_step_run *run, uint32_t end)
{
    while (run->submitted < end)
        EN_TRY(eni_host_submit(run->w->strategy_host, run->submitted++));
    return EN_OK;
}

uint32_t eni_step_complete(const eni_step_run *run, uint32_t first)
{
    const eni_buckets *buckets = run->w->buckets;
    uint32_t complete = run->submitted;
    while (complete < buckets->n && buckets->bucket[complete].first >= first)
        complete++;
    return complete;
}

/* Backward is done with tensors [first, first + n) and all behind them. The buckets that lie there leave: from
 * submit on nobody but the strategy touches a bucket, and it may change the weights at once. */
static en_status on_grad_ready(void *user, uint32_t first, uint32_t n)
{
    eni_step_run *run = user;
    const uint32_t complete = eni_step_complete(run, first);
    (void)n;
    if (!run->w->config->overlap || complete == run->submitted) return EN_OK;
    compute_ends(run, "backward");
    EN_TRY(submit_until(run, complete));
    compute_begins(run);
    return EN_OK;
}

/* ---- the gradient ---- */

static en_status forward_backward(eni_step_run *run, const eni_batch *batch, float *grad,
                                  en_on_grad_ready on_ready)
{
    eni_worker *w = run->w;
    const float *param = eni_arena_at(w->arena, ENI_SLOT_PARAM, 0);
    en_batch input = {.n = (int64_t)batch->micro.count,
                      .x = batch->x,
                      .target =
                          batch->labels != NULL ? (const void *)batch->labels : (const void *)batch->targets};
    en_score score;
    eni_member_note(w->member, (int64_t)run->step, "forward");
    compute_begins(run);
    EN_TRY(en_model_forward(w->model, param, &input));
    compute_ends(run, "forward");
    eni_member_note(w->member, (int64_t)run->step, "backward");
    EN_TRY(en_model_backward(w->model, param, grad, on_ready, run));
    compute_ends(run, "backward");
    EN_TRY(en_model_result(w->model, &score));
    run->nsamples += batch->micro.count;
    run->loss += score.loss * (double)batch->micro.count;
    run->correct += (uint64_t)score.correct;
    return EN_OK;
}

/* A world of one without servers: its micro-batches (one, or --accumulate=W) are averaged as W ranks would
 * be, in rank order, by the same function. */
void eni_step_average(eni_step_run *run, const uint64_t *nsamples)
{
    eni_worker *w = run->w;
    const float *source[ENI_MEAN_MAX];
    for (uint32_t b = 0; b < w->buckets->n; b++) {
        uint64_t lo = w->buckets->bucket[b].lo, count = w->buckets->bucket[b].hi - lo;
        for (int64_t i = 0; i < w->accumulate; i++)
            source[i] = w->micro_grads[i] + lo;
        eni_mean_ranks(eni_arena_at(w->arena, ENI_SLOT_GRAD, lo), source, nsamples, (int)w->accumulate,
                       (eni_sum_order)w->config->sum_order, count, 0, count);
    }
}

en_status eni_step_next_batch(eni_step_run *run, const eni_batch **batch_out)
{
    eni_worker *w = run->w;
    int64_t begin = eni_now_ns();
    eni_member_note(w->member, (int64_t)run->step, "data");
    en_status st;
    do {
        const int64_t until = eni_now_ns() + ENI_SECOND / 2;
        st = w->prefetch != NULL ? eni_prefetch_next(w->prefetch, until, batch_out) : eni_loader_next(w->loader, until, batch_out);
        if (st == EN_ETIMEOUT) EN_TRY(eni_worker_alive(w));
    } while (st == EN_ETIMEOUT);
    int64_t end = eni_now_ns();
    run->data_ns += end - begin;
    eni_trace_span(w->trace, ENI_TRACE_COMPUTE, "data", begin, end, (int64_t)run->step, -1, 0);
    return st;
}

/* Who pushes for others pushes with their samples; all are assigned, so nobody needs to ask. Steps on GPUs take
 * the mean over all samples: with fp16 nobody knows whose will not count. */
static en_status note_samples(eni_step_run *run, const uint64_t *samples, int n)
{
    eni_worker *w = run->w;
    const int is_on_gpu = eni_worker_is_on_gpu(w);
    uint64_t local = 0, world;
    if (is_on_gpu && w->world.nranks == 1) eni_host_note_micros(w->strategy_host, samples, n);
    if (w->local.coll == NULL && (!is_on_gpu || w->world.nranks == 1)) return EN_OK;
    world = w->scaler != NULL ? 0 : eni_plan_step_samples(&w->plan, run->step);
    if (w->local.coll != NULL) EN_TRY(eni_local_group_samples(w, run->step, &local));
    eni_host_note_samples(w->strategy_host, local, world);
    return EN_OK;
}

en_status eni_step_begin(eni_step_run *run, const uint64_t *samples, int n)
{
    uint64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += samples[i];
    EN_TRY(note_samples(run, samples, n));
    EN_TRY(eni_host_begin(run->w->strategy_host, run->step, sum, run->samples_before));
    return eni_vectors_begun(run->w);
}

/* One micro-batch of this rank; its buckets leave while backward runs. A rank without samples takes part with
 * a weight of zero. */
static en_status gradient_of_rank(eni_step_run *run, const eni_batch *batch)
{
    eni_worker *w = run->w;
    EN_TRY(eni_step_begin(run, &batch->micro.count, 1));
    float *grad = eni_arena_at(w->arena, ENI_SLOT_GRAD, 0);
    if (batch->micro.count > 0)
        EN_TRY(forward_backward(run, batch, grad, on_grad_ready));
    else
        memset(grad, 0, w->schema.count * sizeof *grad); /* for strategies that step locally all the same */
    return submit_until(run, w->buckets->n);
}

static en_status gradient_of_one_process(eni_step_run *run, const eni_batch *batch)
{
    eni_worker *w = run->w;
    uint64_t nsamples[ENI_MEAN_MAX];
    for (int64_t i = 0; i < w->accumulate; i++) {
        if (i > 0) EN_TRY(eni_step_next_batch(run, &batch));
        nsamples[i] = batch->micro.count;
        if (batch->micro.count > 0) EN_TRY(forward_backward(run, batch, w->micro_grads[i], NULL));
    }
    eni_step_average(run, nsamples);
    EN_TRY(eni_step_begin(run, nsamples, (int)w->accumulate));
    return submit_until(run, w->buckets->n);
}

/* ---- after the step ---- */

/* A run that was resumed goes on counting. */
static int64_t clock_at(const eni_worker *w, int64_t now)
{
    const eni_tally *t = &w->tally;
    return t->before_ns + (t->clock_begin_ns == 0 ? 0 : now - t->clock_begin_ns);
}

int64_t eni_train_clock(const eni_worker *w)
{
    return clock_at(w, eni_now_ns());
}

static double clock_seconds(const eni_worker *w, int64_t now)
{
    return (double)clock_at(w, now) * 1e-9;
}

eni_moved eni_count_moved(const eni_worker *w)
{
    eni_moved moved = {0};
    if (w->coll != NULL) {
        eni_coll_counters c;
        eni_coll_count(w->coll, &c);
        moved = (eni_moved){c.payload_sent, c.payload_recv, c.wire_sent + c.wire_recv, c.shm_bytes};
    }
    if (w->local.coll != NULL) {
        eni_coll_counters c;
        eni_coll_count(w->local.coll, &c);
        moved.payload_sent += c.payload_sent;
        moved.payload_received += c.payload_recv;
        moved.wire += c.wire_sent + c.wire_recv;
        moved.shm += c.shm_bytes;
    }
    if (w->client != NULL) {
        eni_client_counters c;
        eni_client_count(w->client, &c);
        moved.payload_sent += c.payload_sent;
        moved.payload_received += c.payload_received;
        moved.wire += c.wire_bytes;
        moved.shm += c.shm_bytes;
    }
    if (w->strategy_host != NULL) {
        eni_host_counters c;
        eni_host_count(w->strategy_host, &c);
        moved.payload_sent += (uint64_t)(c.group_bytes + 0.5);
        moved.payload_received += (uint64_t)(c.group_bytes + 0.5);
    }
    return moved;
}

/* Global samples after this step: of a synchronous step all its samples, else as far as this rank knows. */
static uint64_t samples_after(const eni_step_run *run)
{
    const eni_worker *w = run->w;
    return run->samples_before +
           (w->is_claiming ? run->nsamples : eni_plan_step_samples(&w->plan, run->step));
}

static void warn_if_diverged(eni_worker *w, const eni_step *s)
{
    if (isfinite(s->loss) || w->tally.has_diverged) return;
    w->tally.has_diverged = 1;
    eni_warn("train", "the loss of step %llu is not finite: training has diverged; try a smaller --lr than %g",
             (unsigned long long)s->step, w->schedule.base);
}

/* What the step cost, from the host's counters before and after it. */
static void note_step(eni_step_run *run, int64_t begin, const eni_host_counters *before,
                      const eni_moved *moved_before)
{
    eni_worker *w = run->w;
    eni_tally *t = &w->tally;
    eni_host_counters after;
    eni_moved now = eni_count_moved(w), moved = {now.payload_sent - moved_before->payload_sent,
                                                 now.payload_received - moved_before->payload_received,
                                                 now.wire - moved_before->wire, now.shm - moved_before->shm};
    int64_t end = eni_now_ns();
    eni_host_count(w->strategy_host, &after);
    const eni_step s = {.t = clock_seconds(w, end),
                        .step = run->step,
                        .epoch = run->epoch,
                        .samples = samples_after(run),
                        .nsamples = run->nsamples,
                        .update = after.version,
                        .base_version = after.base_version,
                        .lr = after.lr,
                        .step_ns = end - begin,
                        .data_ns = run->data_ns,
                        .compute_ns = run->compute_ns,
                        .send_ns = after.send_ns - before->send_ns,
                        .wait_ns = after.wait_ns - before->wait_ns,
                        .update_ns = after.update_ns - before->update_ns,
                        .payload_bytes = moved.payload_sent + moved.payload_received,
                        .wire_bytes = moved.wire,
                        .staleness = after.staleness};
    w->late = (eni_late_step){.is_there = 1, .step = s, .set = run->set, .loss = run->loss, .correct = run->correct};
    t->steps++;
    t->samples += run->nsamples;
    t->moved.payload_sent += moved.payload_sent;
    t->moved.payload_received += moved.payload_received;
    t->moved.wire += moved.wire;
    t->moved.shm += moved.shm;
    t->step_ns += s.step_ns;
    t->data_ns += s.data_ns;
    t->compute_ns += s.compute_ns;
    t->send_ns += s.send_ns;
    t->wait_ns += s.wait_ns;
    t->update_ns += s.update_ns;
    t->hidden_ns += after.hidden_ns - before->hidden_ns;
}

/* The step that waits for its loss is recorded. On a GPU this blocks until the loss is there. */
static en_status conclude_step(eni_worker *w)
{
    eni_late_step *late = &w->late;
    eni_tally *t = &w->tally;
    eni_step *s = &late->step;
    if (!late->is_there) return EN_OK;
    if (w->scores != NULL) EN_TRY(eni_scores_read(w, late->set, &late->loss, &late->correct));
    late->is_there = 0;
    s->loss = s->nsamples > 0 ? (float)(late->loss / (double)s->nsamples) : 0;
    s->correct = late->correct;
    warn_if_diverged(w, s);
    eni_recorder_add(w->recorder, s);
    if (w->config->log_every < 2 || (t->steps - 1) % (uint64_t)w->config->log_every == 0)
        eni_board_step(w->board, s);
    if (s->epoch + 1 >= (w->plan.samples + w->plan.epoch_samples - 1) / w->plan.epoch_samples) {
        t->last_loss += late->loss;
        t->last_correct += late->correct;
        t->last_samples += s->nsamples;
    }
    eni_member_note_samples(w->member, t->samples);
    if (w->world.rank == 0) eni_progress_step(&w->progress, s->step, s->samples, s->loss);
    return EN_OK;
}

/* Nothing waits for the GPU in between: the step before this one is recorded now, this one in the next. */
static int is_recorded_late(const eni_worker *w)
{
    return eni_worker_is_on_gpu(w);
}

en_status eni_train_settle(eni_worker *w)
{
    EN_TRY(conclude_step(w));
    return eni_vectors_bring(w, 1);
}

/* ---- snapshots ---- */

static en_status average_into_eval(eni_worker *w)
{
    for (uint32_t b = 0; b < w->buckets->n && w->coll != NULL; b++) {
        const eni_bucket_range *range = &w->buckets->bucket[b];
        eni_coll_op op = {.op = EN_ALLREDUCE,
                          .what = EN_WEIGHTS,
                          .bucket = b,
                          .slot = ENI_SLOT_EVAL,
                          .offset = range->lo,
                          .count = range->hi - range->lo,
                          .nsamples = 1};
        EN_TRY(eni_coll_run(w->coll, &op));
    }
    return EN_OK;
}

en_status eni_snapshot(eni_worker *w)
{
    uint32_t slot;
    int which;
    EN_TRY(eni_host_eval(w->strategy_host, &which, &slot));
    EN_TRY(eni_vectors_bring(w, 0));
    memcpy(eni_arena_at(w->arena, ENI_SLOT_EVAL, 0), eni_arena_at(w->arena, slot, 0),
           w->schema.count * sizeof(float));
    if (which == EN_EVAL_MEAN) return average_into_eval(w);
    if (which != EN_EVAL_STORE || w->client == NULL) return EN_OK;
    for (uint32_t b = 0; b < w->buckets->n; b++)
        EN_TRY(eni_client_call(w->client, ENI_MSG_SNAPSHOT, b, 0, EN_WEIGHTS, ENI_SLOT_NONE, ENI_SLOT_EVAL, 0,
                               0));
    for (uint32_t b = 0; b < w->buckets->n; b++)
        EN_TRY(eni_client_wait(w->client, b));
    return EN_OK;
}

/* What the weights of this snapshot have seen. Where batches are claimed, `samples` is how far rank 0's own batch
 * was; a slow rank 0 is far behind what the others have pushed since, so the store's count is taken. */
static uint64_t samples_of_snapshot(const eni_worker *w, int which, uint64_t samples)
{
    eni_partition_past past;
    if (!w->is_claiming || which != EN_EVAL_STORE || w->client == NULL) return samples;
    eni_client_past(w->client, 0, 0, &past);
    return past.samples < w->plan.samples ? past.samples : w->plan.samples;
}

/* Rank 0 keeps the curve; a model that is a mean over ranks needs everybody at the same step, but is
 * kept and evaluated once. */
static en_status maybe_snapshot(eni_worker *w, uint64_t samples)
{
    uint32_t slot;
    int which;
    EN_TRY(eni_host_eval(w->strategy_host, &which, &slot));
    int is_collective = which == EN_EVAL_MEAN && w->coll != NULL;
    if (!eni_curve_is_due(w->curve, samples) || (w->world.rank != 0 && !is_collective)) return EN_OK;
    const int64_t end = eni_now_ns(); /* of the step: what follows is on the clock too */
    eni_host_counters now;
    EN_TRY(conclude_step(w));
    eni_member_note(w->member, (int64_t)w->tally.steps, "snapshot");
    EN_TRY(eni_snapshot(w));
    eni_host_count(w->strategy_host, &now);
    if (w->world.rank == 0)
        EN_TRY(eni_curve_add(w->curve, samples_of_snapshot(w, which, samples), now.version, clock_seconds(w, end),
                             eni_arena_at(w->arena, ENI_SLOT_EVAL, 0)));
    eni_curve_skip(w->curve, samples);
    return EN_OK;
}

/* ---- the run ---- */

/* Of this step it takes the time in which the GPU is ahead of nobody. */
static en_status conclude_last(eni_step_run *run)
{
    eni_step_compute_begins(run);
    EN_TRY(conclude_step(run->w));
    eni_step_compute_ends(run, "gpu");
    return EN_OK;
}

/* A run that ends before its time: what has come by now is recorded, nothing is waited for. */
static void conclude_if_there(eni_worker *w)
{
    if (w->late.is_there && w->scores != NULL && !eni_scores_are_there(w, w->late.set)) return;
    en_status ignored = conclude_step(w);
    (void)ignored;
}

static en_status train_step(eni_worker *w, uint64_t step)
{
    eni_host_counters before;
    eni_moved moved = eni_count_moved(w);
    int64_t begin = eni_now_ns();
    const eni_batch *batch;
    eni_step_run run = {.w = w, .step = step};
    w->step = step;
    eni_host_count(w->strategy_host, &before);
    EN_TRY(eni_step_next_batch(&run, &batch));
    run.epoch = batch->micro.epoch;
    run.samples_before = eni_plan_samples_before(&w->plan, batch->micro.step);
    if (w->is_claiming) run.samples_before += batch->micro.rank * batch->micro.count;
    eni_straggler_begin_step(&w->straggler, step);
    if (w->vectors != NULL)
        EN_TRY(eni_step_on_gpu(&run, batch));
    else if (w->micro_grads == NULL)
        EN_TRY(gradient_of_rank(&run, batch));
    else
        EN_TRY(gradient_of_one_process(&run, batch));
    eni_member_note(w->member, (int64_t)step, "exchange");
    EN_TRY(eni_vectors_finish(w));
    if (is_recorded_late(w)) EN_TRY(conclude_last(&run));
    note_step(&run, begin, &before, &moved);
    if (!is_recorded_late(w)) EN_TRY(conclude_step(w));
    if (w->tally.startup_ns == 0) w->tally.startup_ns = eni_startup_ns(w->config->begin_ns);
    uint64_t samples = samples_after(&run);
    EN_TRY(maybe_snapshot(w, samples));
    return eni_save_step(w, samples);
}

/* Zero on the clock of each rank: all leave together. What they did to get here is on nobody's. */
static en_status start_clock(eni_worker *w)
{
    eni_member_note(w->member, -1, "start of training");
    EN_TRY(eni_member_gather(w->member, "begin", NULL, 0, NULL, INT64_MAX));
    w->tally.clock_begin_ns = eni_now_ns();
    return EN_OK;
}

en_status eni_train(eni_worker *w)
{
    en_status st = start_clock(w);
    for (uint64_t step = w->first_step; st == EN_OK; step++) {
        st = eni_worker_alive(w);
        if (st == EN_OK && !w->is_claiming) st = eni_member_enter(w->member, step); /* or all end before it */
        if (st == EN_OK) st = train_step(w, step);
    }
    if (st == EN_ESTOP) EN_TRY(conclude_step(w));
    if (st != EN_ESTOP) conclude_if_there(w);
    eni_progress_done(&w->progress);
    if (st != EN_ESTOP) return st;
    w->is_concluding = 1;
    /* The budget is used up. Nobody takes part in exchanges any more; the clock stops when all are here. */
    eni_member_note(w->member, (int64_t)w->tally.steps, "finish");
    if (w->client != NULL) EN_TRY(eni_client_finished(w->client));
    EN_TRY(eni_member_gather(w->member, "trained", NULL, 0, NULL, INT64_MAX));
    w->tally.clock_end_ns = eni_now_ns();
    w->tally.train_ns = clock_at(w, w->tally.clock_end_ns);
    return eni_save_finish(w);
}
