/* graph.h - a step that is captured once and replayed: one call in place of hundreds.
 *
 *     steps 0 1 2      put in call by call: libraries load kernels, choose algorithms, take memory
 *     step 3, step 4   captured, once for each input buffer (prefetch.h), and launched
 *     from then on     launched
 *
 * Only full batches are alike; a ragged one is put in call by call. What changes from step to step (rates,
 * loss scale, the batch) lies in device memory that the capture reads. What the device refuses to capture is
 * put in call by call for ever, and said once. Compute thread only. */
#ifndef WORKER_GRAPH_H
#define WORKER_GRAPH_H

#include "worker/worker.h"

typedef struct eni_graphs eni_graphs;

en_status eni_graphs_open(eni_worker *w); /* w->gpu.graphs; nothing on host devices */
void eni_graphs_close(eni_worker *w);

/* Once a step: 1 if it is to be launched: then eni_graphs_launch does it. */
int eni_graphs_is_due(eni_worker *w, int is_full_batch);

/* Captures what `enqueue` puts in if there is no capture yet, and launches it. *is_launched_out 0: the device
 * refuses, and nothing was done. */
en_status eni_graphs_launch(eni_worker *w, int buffer, en_status (*enqueue)(void *user), void *user,
                            int *is_launched_out);

/* For result.json: steps launched, and why no more of them; "" where all full batches are. */
uint64_t eni_graphs_count(const eni_worker *w);
const char *eni_graphs_why_not(const eni_worker *w);

#endif
