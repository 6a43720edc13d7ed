/* records.c - opens and closes a rank's records during the run: trace, metrics, TensorBoard, the bar
 * (record.h) and the curve (curve.h). */
#include <stdio.h>
#include <unistd.h>

#include "core/log.h"
#include "core/try.h"
#include "rank/rank.h"

enum { TRACE_SPANS = 1 << 18 };
enum { BAR_EVERY = 10 }; /* steps whose scores a bar shows without plain lines */

static uint64_t resumed_samples(const eni_rank *self)
{
    return self->saving.is_resumed ? self->saving.past.samples : 0;
}

/* A batch claimed after the checkpoint may lie before others that are in it: then the clock decides which
 * records are of lost steps. 0: the samples decide. */
static double resumed_seconds(const eni_rank *self)
{
    return self->saving.is_resumed && self->job.is_claiming ? (double)self->saving.past.train_ns * 1e-9 : 0;
}

en_status eni_records_open_metrics(eni_rank *self)
{
    const char *dir = self->records.asked.out;
    if (dir == NULL) return EN_OK;
    if (self->world.rank == 0 && self->saving.is_resumed)
        EN_TRY(eni_recorder_cut(dir, self->world.nranks, resumed_samples(self), resumed_seconds(self)));
    EN_TRY(eni_recorder_open(dir, self->world.rank, resumed_samples(self), resumed_seconds(self),
                             &self->records.recorder));
    if (self->trainer.ops->gradient == NULL)
        eni_recorder_write_at_once(self->records.recorder); /* a program's */
    return EN_OK;
}

static en_status open_trace(eni_rank *self)
{
    char role[32];
    if (self->records.asked.trace == NULL) return EN_OK;
    snprintf(role, sizeof role, "rank %d", self->world.rank);
    self->records.trace = eni_trace_new(role, self->world.rank, TRACE_SPANS);
    return self->records.trace == NULL ? EN_ENOMEM : EN_OK;
}

/* FILE of rank 0, FILE.rankN of the others; `entrain run` merges them. */
static en_status write_trace(const eni_rank *self)
{
    char path[1024];
    if (self->records.trace == NULL) return EN_OK;
    if (self->world.rank == 0)
        snprintf(path, sizeof path, "%s", self->records.asked.trace);
    else
        snprintf(path, sizeof path, "%s.rank%d", self->records.asked.trace, self->world.rank);
    return eni_trace_write(self->records.trace, path);
}

/* ---- the curve ---- */

static en_status evaluate_point(void *user, const float *flat, const float *state, double *loss_out,
                                double *accuracy_out)
{
    eni_rank *self = user;
    const eni_trainer *trainer = &self->trainer;
    if (state != NULL && self->job.is_recomputed) {
        EN_TRY(trainer->ops->recompute(trainer->self, flat, self->job.state));
        state = self->job.state;
    }
    return trainer->ops->evaluate(trainer->self, ENI_JUDGED_CURVE, flat, state, loss_out, accuracy_out);
}

static void show_point(void *user, const eni_point *point)
{
    const eni_rank *self = user;
    eni_tensorboard_point(self->records.tensorboard, self->trainer.about.set, point);
}

static en_status open_curve(eni_rank *self)
{
    const eni_record_options *asked = &self->records.asked;
    const bool may_reach =
        self->world.rank == 0 && (self->trainer.about.has_accuracy || asked->target.is_loss);
    const uint64_t resumed = resumed_samples(self),
                   every = self->trainer.ops->evaluate == NULL
                               ? 0
                               : eni_curve_every(asked->eval_every, asked->eval_points,
                                                 self->job.plan.samples, may_reach ? &asked->target : NULL);
    if (every > 0) self->records.looks.points = (self->job.plan.samples - resumed + every - 1) / every;
    const eni_curve_config curve = {.dir = self->world.rank == 0 ? asked->out : NULL,
                                    .set = self->trainer.about.set,
                                    .count = self->job.schema.count,
                                    .nstate = self->job.schema.nstate,
                                    .every = every,
                                    .target = asked->target,
                                    /* at the very end the last point is made again */
                                    .resumed = resumed - (resumed > 0 && resumed == self->job.plan.samples),
                                    .resumed_t = resumed_seconds(self),
                                    .evaluate = evaluate_point,
                                    .on_point = show_point,
                                    .user = self};
    return eni_curve_open(&curve, &self->records.curve);
}

en_status eni_records_point_zero(eni_rank *self)
{
    const eni_record_options *asked = &self->records.asked;
    if (self->world.rank != 0 || self->saving.is_resumed || self->trainer.ops->evaluate == NULL ||
        (!eni_target_is_set(&asked->target) && !asked->eval_first))
        return EN_OK;
    return eni_curve_add(self->records.curve, &(eni_copy_note){0}, eni_rank_flat(self, ENI_SLOT_PARAM),
                         self->job.state);
}

/* ---- all of them ---- */

uint64_t eni_records_shown_every(const eni_rank *self)
{
    const eni_record_options *asked = &self->records.asked;
    const bool has_bar = self->asked.launcher_fd >= 0 || (!asked->is_quiet && isatty(STDERR_FILENO));
    const bool has_board = asked->tensorboard != NULL;
    if (asked->log_every > 0) return has_bar || has_board || !asked->is_quiet ? asked->log_every : 0;
    return has_board ? 1 : has_bar ? BAR_EVERY : 0;
}

en_status eni_records_open(eni_rank *self)
{
    const eni_record_options *asked = &self->records.asked;
    const eni_plan *plan = &self->job.plan;
    const bool is_first = self->world.rank == 0;
    EN_TRY(open_trace(self));
    if (is_first) EN_TRY(eni_records_open_metrics(self));
    if (is_first && asked->tensorboard != NULL)
        EN_TRY(eni_tensorboard_open(asked->tensorboard, resumed_samples(self), &self->records.tensorboard));
    self->records.bar = (eni_bar){.fd = self->asked.launcher_fd,
                                  .quiet = asked->is_quiet || !is_first,
                                  .total = plan->samples,
                                  .per_epoch = plan->epoch_samples,
                                  .has_lines = asked->log_every > 0};
    eni_bar_begin(&self->records.bar);
    if (is_first && plan->dropped_per_epoch + plan->dropped_at_end > 0)
        eni_info("worker", "%llu of %llu samples dropped per epoch, %llu at the end (--drop-last)",
                 (unsigned long long)plan->dropped_per_epoch, (unsigned long long)plan->train_samples,
                 (unsigned long long)plan->dropped_at_end);
    return open_curve(self);
}

en_status eni_records_close(eni_rank *self)
{
    eni_recorder *recorder = self->records.recorder;
    eni_tensorboard *board = self->records.tensorboard;
    self->records.recorder = NULL;
    self->records.tensorboard = NULL;
    const en_status st[] = {self->has_begun ? write_trace(self) : EN_OK, eni_recorder_close(recorder),
                            eni_tensorboard_close(board)};
    for (size_t i = 0; i < sizeof st / sizeof *st; i++)
        EN_TRY(st[i]);
    return EN_OK;
}

void eni_records_free(eni_rank *self)
{
    eni_curve_close(self->records.curve);
    eni_copies_close(self->records.looks.own, false);
    eni_recorder_free(self->records.recorder);
    eni_tensorboard_free(self->records.tensorboard);
    eni_trace_free(self->records.trace);
}
