/* statistics.h - the state of a rank: what batch normalisation learns of the data (entrain/model.h). It lies on
 * the trainer's device, outside buckets and weights: no strategy sees it.
 *
 * Every training forward of a rank moves that rank's state. One process that plays W ranks (--accumulate) keeps W
 * of them, a micro-batch each. Compute thread only. */
#ifndef WORKER_STATISTICS_H
#define WORKER_STATISTICS_H

#include "worker/worker.h"

typedef struct eni_statistics eni_statistics;

/* Takes the memory and starts it: means 0, variances 1. Nothing to do for a network without. EN_ENOMEM. */
en_status eni_statistics_open(eni_worker *w);
void eni_statistics_close(eni_worker *w);

/* What a training forward of this micro-batch moves: device memory, or NULL. */
float *eni_state_of(const eni_worker *w, int64_t micro);

/* The state that goes with weights which are judged or saved: host memory until the next call, or NULL. Blocks. */
en_status eni_state_on_host(eni_worker *w, const float **state_out);

#endif
