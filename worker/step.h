/* step.h - one training step in progress: what train.c, the path of every step, and step_gpu.c, the gradient
 * on a GPU, share. */
#ifndef WORKER_STEP_H
#define WORKER_STEP_H

#include "worker/worker.h"

typedef struct eni_step_run {
    eni_worker *w;
    uint64_t step, epoch, nsamples, samples_before;
    uint32_t submitted; /* buckets that are the strategy's */
    int64_t mark_ns;    /* end of the last piece of compute */
    int64_t data_ns, compute_ns;
    double loss; /* sum over the samples */
    uint64_t correct;
    int set; /* GPU: where loss and correct will be (scores.h) */
} eni_step_run;

/* ---- train.c ---- */

void eni_step_compute_begins(eni_step_run *run);

/* A piece of compute has ended: its time, and a span of the trace. */
void eni_step_compute_ends(eni_step_run *run, const char *what);

/* The next micro-batch of this rank, on the device; blocks for the loader. */
en_status eni_step_next_batch(eni_step_run *run, const eni_batch **batch_out);

/* How many buckets are complete once backward is done with tensor `first` and all behind it. */
uint32_t eni_step_complete(const eni_step_run *run, uint32_t first);

/* The strategy's begin, with what the host wants to know of the step before it; `samples` of each of this
 * rank's `n` gradients (1, or accumulate). */
en_status eni_step_begin(eni_step_run *run, const uint64_t *samples, int n);

/* The mean of w->micro_grads, into the arena. */
void eni_step_average(eni_step_run *run, const uint64_t *nsamples);

/* ---- step_gpu.c ---- */

/* A slow rank on a GPU has marks around what it computes; on others nothing happens. */
en_status eni_lag_open(eni_worker *w);
void eni_lag_close(eni_worker *w);

/* From a batch on the device to all buckets submitted. */
en_status eni_step_on_gpu(eni_step_run *run, const eni_batch *batch);

#endif
