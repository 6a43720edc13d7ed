/* vectors.h - where a rank's weights and gradients are, and how they get to where they are needed.
 *
 *     on the host   the device computes in the arena itself: w->gpu.vectors is NULL, nothing is done
 *
 *     staged        the model has weights and gradient on the GPU, the strategy in the arena, registered: a
 *                   finished bucket's gradient is copied out while backward runs; its new weights are
 *                   copied in, and the next forward begins behind them
 *
 *     on the GPU    the strategy's mean_step works there (collective/gpu_steps.h); the arena sees the weights
 *                   when somebody asks: a snapshot, a checkpoint, the end
 *
 * Which of the three: collective/gpu_choose.h. Staged, the host waits for each gradient before it submits it,
 * because who reads it cannot wait for an event of this GPU; on the GPU that is the business of the steps:
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

/* Before the strategy is opened: takes device memory, meets the other ranks' GPUs; sets the trainer's steps
 * where vectors stay on the GPU. */
en_status eni_vectors_open(void *worker);
/* Once all that the arena holds is in place and it is mapped as it will be: registers it, and sends it. */
en_status eni_vectors_start(void *worker);
/* After the last step of a run that ends well: nobody reads another's memory any more or waits for another's
 * GPU, so that all may go. */
en_status eni_vectors_leave(void *worker);
/* What waits on the GPU for a peer who is gone goes on. */
void eni_vectors_abort(void *worker);
/* Before anything on the GPU is closed: waits for what is under way, but not for ever. A GPU that does not
 * answer keeps its memory until the process ends (w->gpu.is_stuck). */
void eni_vectors_settle(eni_worker *w);
/* Safe on a worker that has none. */
void eni_vectors_close(eni_worker *w);

/* Weights and gradients stay on a GPU. */
bool eni_vectors_are_on_gpu(const eni_worker *w);
/* They are staged. */
static inline bool eni_vectors_are_staged(const eni_worker *w)
{
    return w->gpu.vectors != NULL && w->gpu.choice.vectors == ENI_VECTORS_STAGED;
}

/* What the model reads: a device address, on the host the arena's. */
const float *eni_vectors_param(const eni_worker *w);
/* On a GPU, what it writes; `micro` < accumulate; staged there is one gradient for all of them. */
float *eni_vectors_grad(const eni_worker *w, int64_t micro);
/* Makes it zero, on the GPU and, staged, in the arena: for a rank that has no samples in this step. */
en_status eni_vectors_zero_grad(eni_worker *w, int64_t micro);

/* See above. send_out enqueues, behind what is in COMPUTE by now; await blocks until the gradient is where
 * the strategy finds it. */
en_status eni_vectors_send_out(eni_worker *w, uint32_t bucket);
en_status eni_vectors_await(eni_worker *w, uint32_t bucket);
/* In a captured step, at its end: what was put into EXCHANGE comes back to COMPUTE. */
en_status eni_vectors_join(eni_worker *w);

/* Staged, in a world of one: the same for the whole gradient of one of its micro-batches, to be averaged on
 * the host (w->micro_grads). The next backward begins behind it. await_micros: all of them are there. */
en_status eni_vectors_send_micro(eni_worker *w, int64_t micro);
en_status eni_vectors_await_micros(eni_worker *w);

/* Ends a step: the strategy's finish of every bucket, and the weights to where the next forward reads them. */
en_status eni_vectors_finish(void *worker, eni_step_run *run);
/* Staged, after before_step: a strategy that has one may have changed the weights there. */
en_status eni_vectors_begun(eni_worker *w);

/* On the GPU: the arena's weights (and, with `and_slots`, the optimizer's) become what the GPU has; blocks.
 * Nothing to do on the host, or staged. */
en_status eni_vectors_bring(void *worker, bool and_slots);
/* For `entrain check`: the arena's gradient becomes that of the GPU (of a rank in a world of several or of
 * the only micro-batch), and, staged, is zero in the arena; and, staged, the weights that the GPU has go
 * where the arena has its gradient. Both block. */
en_status eni_vectors_send_grad(eni_worker *w);
en_status eni_vectors_fetch_param(eni_worker *w);

/* Blocks until the device has reached the event, as long as the run, and the group of GPUs, is alive. `what`
 * is what this rank needs it for ("a gradient"). A GPU that has not answered for five minutes ends the run,
 * with EN_EIO and a sentence; but in a group, where it may wait for another rank's: there long waits are
 * explained as those of collectives are (member.h). */
en_status eni_gpu_wait(eni_worker *w, en_event *event, const char *what);
/* The same in numbers, for others who wait. */
eni_gpu_timeout eni_gpu_timeout_of(eni_worker *w);

/* Host memory that the device reaches, zeroed; NULL when it cannot be had (logged). */
void *eni_gpu_host_alloc(eni_worker *w, uint64_t bytes);
void eni_gpu_host_free(eni_worker *w, void *memory);

#endif
