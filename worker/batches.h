/* batches.h - the micro-batches of a rank: what both trainers do with them beside computing. */
#ifndef WORKER_BATCHES_H
#define WORKER_BATCHES_H

#include "worker/worker.h"

enum { ENI_BATCH_SIZES = 6 };

/* The sizes of the micro-batches that the plan may hand to this rank, each once: full ones, and those of
 * ragged steps. How many. */
int eni_batch_sizes(const eni_worker *w, uint64_t sizes_out[ENI_BATCH_SIZES]);

/* Every rank computes before the clock of the run begins, so that no arm has its first touches, kernels and
 * caches in the weights and not on the clock: forward and backward of each batch size of the run, on made-up
 * pixels and into scratch. No loader, no random number, no hook of a strategy takes part: the run ends with
 * the same bytes without it. Once the exchange is open. */
en_status eni_warm_up(eni_worker *w);

/* Starts w->loader. `options`: how its memory is taken; the rest is filled in here. */
en_status eni_start_loader(eni_worker *w, eni_loader_options *options);

/* The next micro-batch of this rank, on the device that computes it; tells the step. Blocks for the loader,
 * as long as the run is alive. */
en_status eni_next_batch(eni_worker *w, eni_step_run *run, const eni_batch **batch_out);

/* A world of one without servers: its micro-batches (one, or --accumulate=W) are averaged as W ranks would
 * be, in rank order, by the same function: w->micro_grads into the arena's gradient. */
void eni_average_micros(eni_worker *w, const uint64_t *nsamples);

#endif
