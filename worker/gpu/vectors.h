/* vectors.h - the placement of a rank's weights and gradients, and their copies to where they are needed.
 *
 *     on the host   the device computes in the arena itself: w->gpu.vectors is NULL, nothing is done
 *
 *     staged        the model has weights and gradient on the GPU, the strategy in the arena, registered: a
 *                   finished bucket's gradient is copied out while backward runs; its new weights are
 *                   copied in, and the next forward begins after them
 *
 *     on the GPU    the strategy's mean_step works there (collective/gpu_steps.h); the arena sees the weights
 *                   on request: a snapshot, a checkpoint, the end
 *
 * collective/gpu_choose.h picks one of the three. Staged, the host waits for each gradient before it submits
 * it, because its readers cannot wait for an event of this GPU; on the GPU the steps do that:
 *
 *     staged        send_out(b) | await(b) | submit(b) ... finish: finish_bucket(b), its weights in
 *     on the GPU                             submit(b) ... finish
 *
 * Compute thread only. */
#ifndef WORKER_GPU_VECTORS_H
#define WORKER_GPU_VECTORS_H

#include "runtime/collective/gpu_choose.h"
#include "runtime/collective/gpu_steps.h"
#include "worker/worker.h"

typedef struct eni_vectors eni_vectors;

/* Before the strategy is opened: allocates device memory, exchanges handles with the other ranks' GPUs; sets
 * the trainer's steps if vectors stay on the GPU. */
en_status eni_vectors_open(void *worker);
/* Once the arena is complete and mapped for good: registers it, and copies it to the GPU. */
en_status eni_vectors_start(void *worker);
/* After the last step of a run that ends well: from here on nobody reads another's memory or waits for
 * another's GPU, so all may close. */
en_status eni_vectors_leave(void *worker);
/* Releases work on the GPU that waits for a lost peer. */
void eni_vectors_abort(void *worker);
/* Before anything on the GPU is closed: waits, with a deadline, for work in flight. A GPU that does not
 * answer keeps its memory until the process ends (w->gpu.is_stuck). */
void eni_vectors_settle(eni_worker *w);
/* Safe on a worker without vectors. */
void eni_vectors_close(eni_worker *w);

/* Weights and gradients stay on a GPU. */
bool eni_vectors_are_on_gpu(const eni_worker *w);
/* They are staged. */
static inline bool eni_vectors_are_staged(const eni_worker *w)
{
    return w->gpu.vectors != NULL && w->gpu.choice.vectors == ENI_VECTORS_STAGED;
}

/* The weights that the model reads: a device address; on the host the arena's. */
const float *eni_vectors_param(const eni_worker *w);
/* The gradient that the model writes on a GPU; `micro` < accumulate; staged there is one gradient for all. */
float *eni_vectors_grad(const eni_worker *w, int64_t micro);
/* Zeroes it on the GPU and, staged, in the arena: for a rank without samples in this step. */
en_status eni_vectors_zero_grad(eni_worker *w, int64_t micro);

/* See above. send_out enqueues the copy after the work in COMPUTE; await blocks until the gradient is where
 * the strategy reads it. */
en_status eni_vectors_send_out(eni_worker *w, uint32_t bucket);
en_status eni_vectors_await(eni_worker *w, uint32_t bucket);
/* At the end of a captured step: joins EXCHANGE back into COMPUTE. */
en_status eni_vectors_join(eni_worker *w);

/* Staged, in a world of one: the same for the whole gradient of one of its micro-batches, to be averaged on
 * the host (exchange.micros). The next backward begins after it. await_micros: all of them are there. */
en_status eni_vectors_send_micro(eni_worker *w, int64_t micro);
en_status eni_vectors_await_micros(eni_worker *w);

/* Ends a step: finishes every bucket of the strategy, and copies the weights to the next forward. */
en_status eni_vectors_finish(void *worker, eni_step_run *run);
/* Staged, after before_step: copies in the weights, which that hook may have changed. */
en_status eni_vectors_begun(eni_worker *w);

/* On the GPU: copies its weights (and, with `and_slots`, the optimizer's) to the arena; blocks. Nothing to do
 * on the host, or staged. */
en_status eni_vectors_bring(void *worker, bool and_slots);
/* For `entrain check`. send_grad: copies the arena's gradient to the GPU (of a rank in a world of several or
 * of the only micro-batch), and, staged, zeroes it in the arena. fetch_param, staged: copies the GPU's
 * weights to the arena's gradient. Both block. */
en_status eni_vectors_send_grad(eni_worker *w);
en_status eni_vectors_fetch_param(eni_worker *w);

/* Blocks until the device has reached the event, as long as the run and the group of GPUs are alive. `what`
 * is what the rank waits for ("a gradient"). A GPU that has not answered for five minutes ends the run with
 * EN_EIO, logged; but not in a group, where it may wait for another rank's GPU: long waits there are
 * explained as those of collectives are (member.h). */
en_status eni_gpu_wait(eni_worker *w, en_event *event, const char *what);
/* The same limits in numbers, for others who wait. */
eni_gpu_timeout eni_gpu_timeout_of(eni_worker *w);

/* Host memory that the device reaches, zeroed; NULL if it cannot be allocated (logged). */
void *eni_gpu_host_alloc(eni_worker *w, uint64_t bytes);
void eni_gpu_host_free(eni_worker *w, void *memory);

#endif
