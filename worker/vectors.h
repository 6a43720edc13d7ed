/* vectors.h - where a rank's weights and gradients are, and how they get to where they are needed.
 *
 *     on the host     the device computes in the arena itself: nothing to do
 *     staged          model | weights, gradient on the GPU        strategy | weights, gradient in the arena, pinned
 *                     a finished bucket's gradient is copied out while backward runs; its new weights are copied
 *                     in, and the next forward begins behind them
 *     on the GPU      the strategy's mean_step works there (comm/gpu_steps.h); the arena sees them when somebody
 *                     asks: a snapshot, a checkpoint, the end
 *
 * Which of the three: comm/gpu_choose.h. Compute thread only. */
#ifndef WORKER_VECTORS_H
#define WORKER_VECTORS_H

#include "worker/worker.h"

/* After the exchange's vectors are in place and before the first step: takes device memory, pins the arena. */
en_status eni_vectors_open(eni_worker *w);
void eni_vectors_close(eni_worker *w);

/* What the model reads and writes: device addresses. `micro` < accumulate. */
const float *eni_vectors_param(const eni_worker *w);
float *eni_vectors_grad(const eni_worker *w, int64_t micro);

/* Staged: puts the copy of a bucket's gradient behind backward; blocks until it has arrived (asking whether the
 * run is alive); puts the copy of its new weights in front of the next forward. */
en_status eni_vectors_send_out(eni_worker *w, uint32_t bucket);
en_status eni_vectors_await(eni_worker *w, uint32_t bucket);
en_status eni_vectors_take_in(eni_worker *w, uint32_t bucket);

/* On the GPU: the arena's param and optimizer slots become what the GPU has; blocks. The other way round, after
 * something on the host has changed them (init, resume). Nothing to do on the host, or staged (bring). */
en_status eni_vectors_bring(eni_worker *w);
en_status eni_vectors_send(eni_worker *w);

#endif
