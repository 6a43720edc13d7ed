/* statistics.h - the state of a rank: the running statistics of batch normalisation (entrain/model.h). It
 * lies on the trainer's device, outside buckets and weights: no strategy sees it. Every training forward of a
 * rank updates that rank's state. One process that plays W ranks (--accumulate) keeps W of them, one per
 * micro-batch. Compute thread only. */
#ifndef WORKER_STATISTICS_H
#define WORKER_STATISTICS_H

#include "worker/worker.h"

typedef struct eni_statistics eni_statistics;

/* Allocates it; nothing to do for a network without state. EN_ENOMEM. */
en_status eni_statistics_open(eni_worker *w);
void eni_statistics_close(eni_worker *w);

/* The state that a training forward of this micro-batch updates: device memory, or NULL. */
float *eni_state_of(const eni_worker *w, int64_t micro);

/* eni_trainer_ops.state, set_state and recompute. recompute uses the first whole batches of N training
 * samples (a smaller one where N is smaller); all batches count alike. */
en_status eni_statistics_get(void *worker, int64_t micro, float *state_out);
en_status eni_statistics_set(void *worker, int64_t micro, const float *state);
en_status eni_statistics_recompute(void *worker, const float *flat, float *state_out);

#endif
