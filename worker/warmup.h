/* warmup.h - every rank computes before the clock of the run begins, so that no arm has its first touches,
 * kernels and caches in the weights and not on the clock: forward and backward of each batch size of the run,
 * on made-up pixels and into scratch. No loader, no random number, no hook of a strategy takes part: the run
 * ends with the same bytes without it. */
#ifndef WORKER_WARMUP_H
#define WORKER_WARMUP_H

#include "worker/worker.h"

enum { ENI_BATCH_SIZES = 6 };

/* The sizes of the micro-batches that the plan may hand to this rank, each once: full ones, and those of
 * ragged steps. How many. */
int eni_batch_sizes(const eni_worker *w, uint64_t sizes_out[ENI_BATCH_SIZES]);

/* Once the exchange is open. */
en_status eni_warm_up(eni_worker *w);

#endif
