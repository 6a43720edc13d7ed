/* step.h - a training step of a rank: its samples, the strategy's input, its record.
 *
 *     eni_step_open                        counters before
 *     trainer.gradient  -> eni_step_take   these samples         (once for each micro-batch)
 *                       -> eni_step_begin  the strategy begins
 *                       -> eni_step_submit bucket by bucket
 *     trainer.finish    -> the strategy's finish
 *     eni_step_close                       counters after; a record
 *
 * A step whose loss comes late (a GPU's, one step later) is recorded when it has come. Compute thread. */
#ifndef RANK_STEP_H
#define RANK_STEP_H

#include "data/plan.h"
#include "runtime/host/host.h"

typedef struct eni_rank eni_rank;

/* Bytes that this rank's transports have moved. */
typedef struct eni_moved {
    uint64_t payload_sent, payload_received; /* the algorithm's own */
    uint64_t wire, shm;
} eni_moved;

typedef struct eni_step_run {
    eni_rank *rank;
    uint64_t step, epoch, nsamples, samples_before;
    uint64_t micro_batch; /* the last one taken */
    uint64_t plan_step;   /* whose samples; with claims a rank does not take part in every step of the plan */
    uint32_t submitted;   /* buckets passed to the strategy */
    int64_t begin_ns;
    int64_t mark_ns; /* end of the last piece of compute */
    int64_t data_ns, compute_ns;
    double loss; /* sum over the samples, where the trainer knows it at once */
    uint64_t correct;
    int set;                    /* else: their number for trainer.score */
    eni_host_counters counters; /* before the step */
    eni_moved moved;            /* the same */
} eni_step_run;

/* Step `self->step` begins on this rank. */
void eni_step_open(eni_rank *self, eni_step_run *run_out);

/* The trainer has the next micro-batch at hand; it has waited since `begin_ns`. */
void eni_step_take(eni_step_run *run, const eni_micro *micro, int64_t begin_ns);

/* The strategy's begin, after what the host needs to know of the step; `samples` that count of each of this
 * rank's `n` gradients (1, or accumulate). */
en_status eni_step_begin(eni_step_run *run, const uint64_t *samples, int n);

/* Submits the buckets up to `end` (exclusive) that have not left yet: their gradient is in place. */
en_status eni_step_submit(eni_step_run *run, uint32_t end);

/* A world of one without servers: averages its micro-batches (one, or --accumulate=W) as W ranks would, in rank
 * order, by the same function: exchange.micros into the arena's gradient. nsamples: (accumulate). */
void eni_step_average(eni_rank *self, const uint64_t *nsamples);

/* The number of buckets that are complete once backward is done with tensor `first` and all behind it. */
uint32_t eni_step_complete(const eni_step_run *run, uint32_t first);

/* A piece of compute begins; it has ended: its time, and a span of the trace. */
void eni_step_compute_begins(eni_step_run *run);
void eni_step_compute_ends(eni_step_run *run, const char *what);

/* Ends a run that has diverged, in one sentence for all strategies: EN_ENONFINITE. A trainer that knows the
 * loss before backward asks before a bucket leaves; else it is found when the step is recorded, and for the
 * last steps when the final weights are evaluated. */
#define ENI_STEP_FINAL UINT64_MAX
en_status eni_step_check_loss(eni_rank *self, uint64_t step, double loss);
en_status eni_step_check_finite(uint64_t step, double loss, double lr); /* the same without a rank */

/* The host has left the mean gradient (steps_outside): makes it no longer than clip_norm, as PyTorch's clip_grad_norm_,
 * and steps with it, unless the trainer does. */
void eni_step_clip(eni_rank *self);

/* The step is done: it is counted, and recorded once its loss is there. */
en_status eni_step_close(eni_step_run *run);

/* Passes loss and accuracy over all ranks, as far as they have come, to the bar of rank 0. */
void eni_step_show(eni_rank *self);

/* Records the steps that wait for their loss: blocks for it, or, `may_wait` false, only if it is there. */
en_status eni_step_settle(eni_rank *self, bool may_wait);

/* Global samples after this step: all of a synchronous step, else as far as this rank knows. */
uint64_t eni_step_samples(const eni_step_run *run);

/* Nanoseconds on the training clock so far, those before a resume included. */
int64_t eni_train_clock(const eni_rank *self);
/* Seconds on it at a moment of eni_now_ns. */
double eni_train_seconds(const eni_rank *self, int64_t now_ns);

/* Bytes that all transports have moved since they were opened. */
eni_moved eni_count_moved(const eni_rank *self);

#endif
