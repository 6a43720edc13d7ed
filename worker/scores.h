/* scores.h - loss and hits of a step on a GPU, read when they have come: a step later, so that the GPU never
 * waits for the host.
 *
 *     COMPUTE   forward 0 | backward 0 | fetch -> set 0 | event 0   forward 1 | .. fetch -> set 1 | event 1
 *     host                                                               '- waits for event 0, reads set 0
 *
 * Two sets, used in turns; a set has a pair of numbers for each micro-batch. Compute thread only. */
#ifndef WORKER_SCORES_H
#define WORKER_SCORES_H

#include "worker/worker.h"

typedef struct eni_scores eni_scores;

en_status eni_scores_open(eni_worker *w); /* w->gpu.scores; nothing on host devices */
void eni_scores_close(eni_worker *w);

/* Where the model puts the numbers of a micro-batch of `nsamples` in this step (en_model_fetch). */
void eni_scores_begin(eni_scores *scores, int set);
float *eni_scores_pair(eni_scores *scores, uint64_t nsamples);

/* All fetches of the step are in COMPUTE by now. */
en_status eni_scores_end(eni_scores *scores);

/* Blocks until the numbers of that set are there. `loss_out`: the sum over the samples. Called off: EN_EINTR
 * and such, as eni_worker_alive. */
en_status eni_scores_read(eni_worker *w, int set, double *loss_out, uint64_t *correct_out);
/* 1 if they are there. */
int eni_scores_are_there(const eni_worker *w, int set);

#endif
