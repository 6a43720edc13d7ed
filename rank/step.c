/* step.c - a training step on a rank: from the samples to its record.
 *
 * Between submit and finish the strategy decides (strategies/), and the host carries it out
 * (runtime/host/host.c); the trainer computes the gradient. */
#include "rank/step.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"
#include "ops/mean.h"
#include "rank/rank.h"

/* ---- the clock, and what moved ---- */

/* A run that was resumed goes on counting. */
static int64_t clock_at(const eni_rank *self, int64_t now)
{
    const eni_stats *t = &self->records.stats;
    return t->before_ns + (t->clock_begin_ns == 0 ? 0 : now - t->clock_begin_ns);
}

int64_t eni_train_clock(const eni_rank *self)
{
    return clock_at(self, eni_now_ns());
}

double eni_train_seconds(const eni_rank *self, int64_t now_ns)
{
    return (double)clock_at(self, now_ns) * 1e-9;
}

static void add(eni_moved *moved, uint64_t sent, uint64_t received, uint64_t wire, uint64_t shm)
{
    moved->payload_sent += sent;
    moved->payload_received += received;
    moved->wire += wire;
    moved->shm += shm;
}

static void add_coll(const eni_coll *coll, eni_moved *moved)
{
    eni_coll_counters c;
    if (coll == NULL) return;
    eni_coll_count(coll, &c);
    add(moved, c.payload_sent, c.payload_recv, c.wire_sent + c.wire_recv, c.shm_bytes);
}

eni_moved eni_count_moved(const eni_rank *self)
{
    eni_moved moved = {0};
    add_coll(self->exchange.all.coll, &moved);
    add_coll(self->exchange.group.coll, &moved);
    add_coll(self->exchange.leaders.coll, &moved);
    if (self->exchange.client != NULL) {
        eni_client_counters c;
        eni_client_count(self->exchange.client, &c);
        add(&moved, c.payload_sent, c.payload_received, c.wire_bytes, c.shm_bytes);
    }
    if (self->exchange.host != NULL) {
        eni_host_counters c;
        eni_host_count(self->exchange.host, &c);
        const uint64_t bytes = (uint64_t)(c.group_bytes + 0.5);
        add(&moved, bytes, bytes, 0, 0);
    }
    return moved;
}

/* ---- the strategy's part ---- */

void eni_step_open(eni_rank *self, eni_step_run *run_out)
{
    *run_out = (eni_step_run){
        .rank = self, .step = self->step, .moved = eni_count_moved(self), .begin_ns = eni_now_ns()};
    eni_host_count(self->exchange.host, &run_out->counters);
}

void eni_step_take(eni_step_run *run, const eni_micro *micro, int64_t begin_ns)
{
    const eni_rank *self = run->rank;
    const int64_t end_ns = eni_now_ns();
    run->data_ns += end_ns - begin_ns;
    run->epoch = micro->epoch;
    run->plan_step = micro->step;
    run->micro_batch = micro->index;
    run->samples_before = eni_plan_samples_before(&self->job.plan, micro->step);
    if (self->job.is_claiming) run->samples_before += micro->rank * micro->count;
    eni_trace_span(self->records.trace, ENI_TRACE_COMPUTE, "data", begin_ns, end_ns, (int64_t)run->step, -1,
                   0);
}

/* The samples of a step on this host (fixed assignment). */
static en_status local_samples(const eni_rank *self, uint64_t step, uint64_t *samples_out)
{
    const eni_rank_group *g = &self->exchange.group;
    eni_micro micro;
    *samples_out = 0;
    for (int i = 0; i < g->info.nranks; i++) {
        EN_TRY(eni_plan_micro(&self->job.plan, step * self->job.plan.world + (uint64_t)g->peers[i].rank,
                              &micro));
        *samples_out += micro.count;
    }
    return EN_OK;
}

/* A rank that pushes for others pushes with their samples, which are known because all are assigned. Steps on
 * the trainer's own vectors take the mean over all samples; if some may turn out not to count, the total is
 * not known. */
static en_status note_samples(const eni_step_run *run, const uint64_t *samples, int n)
{
    const eni_rank *self = run->rank;
    const bool has_steps = self->trainer.steps != NULL, is_one = self->world.nranks == 1;
    const bool is_host = eni_rank_has_leaders(self) && self->exchange.group.coll != NULL;
    uint64_t local = 0, world;
    if (has_steps && is_one) eni_host_note_micros(self->exchange.host, samples, n);
    if (!is_host && (!has_steps || is_one)) return EN_OK;
    world = self->trainer.may_drop ? 0 : eni_plan_step_samples(&self->job.plan, run->step);
    if (is_host) EN_TRY(local_samples(self, run->step, &local));
    eni_host_note_samples(self->exchange.host, local, world);
    return EN_OK;
}

en_status eni_step_begin(eni_step_run *run, const uint64_t *samples, int n)
{
    uint64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += samples[i];
    EN_TRY(note_samples(run, samples, n));
    return eni_host_begin(run->rank->exchange.host, run->step, sum, run->samples_before);
}

void eni_step_average(eni_rank *self, const uint64_t *nsamples)
{
    const eni_job *job = &self->job;
    const float *source[ENI_MEAN_MAX];
    for (uint32_t b = 0; b < job->buckets->n; b++) {
        const uint64_t lo = job->buckets->bucket[b].lo, count = job->buckets->bucket[b].hi - lo;
        for (int64_t i = 0; i < job->accumulate; i++)
            source[i] = self->exchange.micros[i] + lo;
        eni_mean_ranks(eni_arena_at(self->exchange.arena, ENI_SLOT_GRAD, lo), source, nsamples,
                       (int)job->accumulate, self->exchange.asked.sum_order, count, 0, count);
    }
}

en_status eni_step_submit(eni_step_run *run, uint32_t end)
{
    while (run->submitted < end)
        EN_TRY(eni_host_submit(run->rank->exchange.host, run->submitted++));
    return EN_OK;
}

uint32_t eni_step_complete(const eni_step_run *run, uint32_t first)
{
    const eni_buckets *buckets = run->rank->job.buckets;
    uint32_t complete = run->submitted;
    while (complete < buckets->n && buckets->bucket[complete].first >= first)
        complete++;
    return complete;
}

void eni_step_compute_begins(eni_step_run *run)
{
    run->mark_ns = eni_now_ns();
}

void eni_step_compute_ends(eni_step_run *run, const char *what)
{
    const int64_t now = eni_now_ns();
    run->compute_ns += now - run->mark_ns;
    eni_trace_span(run->rank->records.trace, ENI_TRACE_COMPUTE, what, run->mark_ns, now, (int64_t)run->step,
                   -1, 0);
    run->mark_ns = now;
}

/* In double and in the order of tensors: the same on all ranks, and for all buckets. Four sums, so that an addition
 * need not wait for the one before. */
static double square_of(const float *x, uint64_t n)
{
    double sum[4] = {0};
    uint64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; k++)
            sum[k] += (double)x[i + (uint64_t)k] * (double)x[i + (uint64_t)k];
    for (; i < n; i++)
        sum[0] += (double)x[i] * (double)x[i];
    return sum[0] + sum[1] + sum[2] + sum[3];
}

void eni_step_clip(eni_rank *self)
{
    const en_schema *schema = &self->job.schema;
    float *grad = eni_arena_at(self->exchange.arena, ENI_SLOT_GRAD, 0);
    double square = 0;
    for (uint32_t t = 0; t < schema->ntensors; t++)
        square += square_of(grad + schema->tensors[t].offset, schema->tensors[t].count);
    const float factor = (float)(self->job.clip_norm / (sqrt(square) + 1e-6));
    if (!(factor >= 1))
        for (uint64_t i = 0; i < schema->count; i++)
            grad[i] *= factor;
    if (!self->trainer.steps_itself) eni_host_step_all(self->exchange.host);
}

/* ---- after the step ---- */

uint64_t eni_step_samples(const eni_step_run *run)
{
    const eni_rank *self = run->rank;
    return run->samples_before +
           (self->job.is_claiming ? run->nsamples : eni_plan_step_samples(&self->job.plan, run->step));
}

static const char diverged[] =
    "the loss of %s is not finite: training has diverged; try a smaller --lr than %g";

static const char *name_step(uint64_t step, char text[32])
{
    if (step == ENI_STEP_FINAL) return "the final weights";
    snprintf(text, 32, "step %llu", (unsigned long long)step);
    return text;
}

en_status eni_step_check_finite(uint64_t step, double loss, double lr)
{
    char what[32];
    return isfinite(loss) ? EN_OK : eni_fail(EN_ENONFINITE, "train", diverged, name_step(step, what), lr);
}

/* fp16 drops gradients that overflow, so its weights may be sound all the same: one warning. */
en_status eni_step_check_loss(eni_rank *self, uint64_t step, double loss)
{
    const double lr = self->job.schedule.base;
    char what[32];
    if (!self->trainer.may_drop || isfinite(loss)) return eni_step_check_finite(step, loss, lr);
    if (!self->records.stats.has_diverged) eni_warn("train", diverged, name_step(step, what), lr);
    self->records.stats.has_diverged = true;
    return EN_OK;
}

/* Notes the costs of the step, from the host's counters before and after it. */
static void note_step(eni_step_run *run)
{
    const eni_host_counters *before = &run->counters;
    eni_rank *self = run->rank;
    eni_stats *t = &self->records.stats;
    eni_host_counters after;
    const eni_moved *was = &run->moved, now = eni_count_moved(self),
                    moved = {now.payload_sent - was->payload_sent,
                             now.payload_received - was->payload_received, now.wire - was->wire,
                             now.shm - was->shm};
    int64_t end = eni_now_ns();
    eni_host_count(self->exchange.host, &after);
    const eni_step s = {.t = eni_train_seconds(self, end),
                        .step = run->step,
                        .epoch = run->epoch,
                        .micro_batch = run->micro_batch,
                        .samples = eni_step_samples(run),
                        .nsamples = run->nsamples,
                        .update = after.version,
                        .base_version = after.base_version,
                        .lr = after.lr,
                        .step_ns = end - run->begin_ns,
                        .data_ns = run->data_ns,
                        .compute_ns = run->compute_ns,
                        .send_ns = after.send_ns - before->send_ns,
                        .wait_ns = after.wait_ns - before->wait_ns,
                        .update_ns = after.update_ns - before->update_ns,
                        .payload_bytes = moved.payload_sent + moved.payload_received,
                        .wire_bytes = moved.wire,
                        .staleness = after.staleness};
    self->records.deferred = (eni_deferred_step){.is_there = true,
                                                 .step = s,
                                                 .set = run->set,
                                                 .loss = run->loss,
                                                 .correct = run->correct,
                                                 .plan_step = run->plan_step};
    t->sum.steps++;
    t->sum.samples += run->nsamples;
    add(&t->moved, moved.payload_sent, moved.payload_received, moved.wire, moved.shm);
    t->step_ns += s.step_ns;
    t->data_ns += s.data_ns;
    t->compute_ns += s.compute_ns;
    t->send_ns += s.send_ns;
    t->wait_ns += s.wait_ns;
    t->update_ns += s.update_ns;
    t->hidden_ns += after.hidden_ns - before->hidden_ns;
}

/* ---- for display: loss and accuracy over all ranks ---- */

static void show(eni_rank *self, const eni_score *score)
{
    const double n = (double)score->covered, loss = score->loss / n,
                 accuracy = self->trainer.about.has_accuracy ? (double)score->hits / n : NAN;
    const uint64_t samples = eni_plan_samples_before(&self->job.plan, score->step) + score->total;
    eni_bar_score(&self->records.bar, samples, loss, accuracy);
    eni_tensorboard_score(self->records.tensorboard, samples, eni_train_seconds(self, eni_now_ns()), loss,
                          accuracy);
}

void eni_step_show(eni_rank *self)
{
    eni_score score;
    while (self->world.rank == 0 && eni_member_next_score(self->member, &score))
        show(self, &score);
}

/* Not every step's: scores that are not shown are not sent. */
static void tell_score(eni_rank *self, const eni_deferred_step *d)
{
    const uint64_t every = self->records.shown_every;
    const eni_score score = {.step = d->plan_step,
                             .total = eni_plan_step_samples(&self->job.plan, d->plan_step),
                             .covered = d->step.nsamples,
                             .hits = d->correct,
                             .loss = d->loss};
    if (every == 0 || d->plan_step % every != 0 || d->step.nsamples == 0) return;
    if (self->world.nranks == 1)
        show(self, &score);
    else
        eni_member_tell_score(self->member, &score);
}

en_status eni_step_settle(eni_rank *self, bool may_wait)
{
    const eni_trainer *trainer = &self->trainer;
    eni_deferred_step *deferred = &self->records.deferred;
    eni_stats *t = &self->records.stats;
    eni_step *s = &deferred->step;
    if (!deferred->is_there) return EN_OK;
    if (trainer->ops->score != NULL)
        EN_TRY(
            trainer->ops->score(trainer->self, deferred->set, may_wait, &deferred->loss, &deferred->correct));
    deferred->is_there = false;
    s->loss = s->nsamples > 0 ? (float)(deferred->loss / (double)s->nsamples) : 0;
    s->correct = deferred->correct;
    s->accuracy =
        trainer->about.has_accuracy && s->nsamples > 0 ? (double)s->correct / (double)s->nsamples : NAN;
    if (s->nsamples > 0) {
        if (t->first_loss == 0) t->first_loss = s->loss;
        t->newest_loss = s->loss;
    }
    eni_recorder_add(self->records.recorder, s);
    if (self->records.asked.log_every < 2 || (t->sum.steps - 1) % self->records.asked.log_every == 0)
        eni_tensorboard_step(self->records.tensorboard, s);
    if (s->epoch + 1 >=
        (self->job.plan.samples + self->job.plan.epoch_samples - 1) / self->job.plan.epoch_samples) {
        t->sum.last_loss += deferred->loss;
        t->sum.last_correct += deferred->correct;
        t->sum.last_samples += s->nsamples;
    }
    eni_member_note_samples(self->member, t->sum.samples);
    tell_score(self, deferred);
    eni_step_show(self);
    if (self->world.rank == 0) eni_bar_step(&self->records.bar, t->sum.steps, s->samples);
    return eni_step_check_loss(self, s->step, deferred->loss);
}

/* If losses come late, the previous step is recorded now, and this one in the next. This step is charged with
 * the wait for it, in which the GPU catches up. */
en_status eni_step_close(eni_step_run *run)
{
    eni_rank *self = run->rank;
    eni_stats *t = &self->records.stats;
    if (self->trainer.late > 0) {
        eni_step_compute_begins(run);
        EN_TRY(eni_step_settle(self, true));
        eni_step_compute_ends(run, "gpu");
    }
    note_step(run);
    if (self->trainer.late == 0) EN_TRY(eni_step_settle(self, true));
    if (t->startup_ns == 0) t->startup_ns = eni_startup_ns(self->records.asked.begin_ns);
    return EN_OK;
}
