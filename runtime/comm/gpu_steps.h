/* gpu_steps.h - mean_step where gradients and weights lie on a GPU: the mean over all ranks and the optimizer's
 * step are put into the GPU's EXCHANGE queue behind the gradient, and the next forward behind them. The host
 * waits for nothing.
 *
 * Three ways to the same mean:
 *
 *     ALONE   a world of one: the mean of its own micro-batches (solo --accumulate=W)
 *     GROUP   one GPU per rank: NCCL adds the gradients in place, each rank steps its own weights
 *     SHARED  all ranks on one GPU, which NCCL refuses: each rank maps the others' gradients (CUDA IPC) and rank
 *             0's weights, and steps its slice of them. Who is ready, and who is done, travels through the flags
 *             of the direct engine (comm/direct.c: ENI_COLL_MEAN_STEP, whose `take` starts the kernel)
 *
 * ALONE and SHARED add in rank order: the bits of ops/mean.c and ops/optimizer.c, and so of psd. NCCL adds in an
 * order of its own; with two ranks there is only one.
 *
 * Only for strategies whose weights change through mean_step alone (EN_ONE_COPY), or through step in a world of
 * one (solo). Every other strategy runs on the host's vectors, to which gradients are copied bucket by bucket
 * (worker/vectors.h). Owned by the compute thread. */
#ifndef COMM_GPU_STEPS_H
#define COMM_GPU_STEPS_H

#include "entrain/device.h"
#include "ops/optimizer.h"
#include "runtime/comm/buckets.h"
#include "runtime/comm/coll.h"

enum { ENI_GPU_ALONE, ENI_GPU_GROUP, ENI_GPU_SHARED };

typedef struct eni_gpu_steps eni_gpu_steps;

/* Everything is borrowed and outlives the steps. Vectors are device memory of buckets->count floats each. */
typedef struct eni_gpu_steps_config {
    int way;
    int rank, nranks;
    const en_device *device;
    en_ctx *ctx;
    const eni_buckets *buckets;
    const eni_optimizer *optimizer;
    int nslots;
    float *param, *slot[ENI_MAX_SLOTS]; /* SHARED: rank 0's on all ranks */
    float *const *grads; /* (ngrads) ALONE: one per micro-batch; GROUP: this rank's; SHARED: all ranks', [rank] is
                            this rank's own */
    int ngrads;
    en_group *group;     /* GROUP */
    eni_alive alive;
} eni_gpu_steps_config;

en_status eni_gpu_steps_open(const eni_gpu_steps_config *config, eni_gpu_steps **steps_out);
void eni_gpu_steps_close(eni_gpu_steps *steps); /* NULL is fine */

/* Before the first submit of a step: its rates, and whose samples are behind which gradient: (ngrads) `samples`
 * of the own ones; `total` of all ranks, 0: not known here (GROUP: the ranks add theirs up on the GPU). Copied
 * to the device ahead of what the step enqueues. Does not block, unless the numbers of eight steps are under
 * way. */
en_status eni_gpu_steps_begin(eni_gpu_steps *steps, const eni_hyper *hyper, const uint64_t *samples,
                              uint64_t total);

/* While `is_replayed`, submit and wait count and enqueue nothing: the step is in a graph that is launched by
 * somebody else (worker/graph.h). ALONE and GROUP only. */
void eni_gpu_steps_replay(eni_gpu_steps *steps, int is_replayed);

/* ALONE, GROUP: puts mean and step of the bucket into EXCHANGE, behind what is in COMPUTE by now. */
en_status eni_gpu_steps_submit(eni_gpu_steps *steps, uint32_t bucket);

/* Orders COMPUTE behind them. */
en_status eni_gpu_steps_wait(eni_gpu_steps *steps, uint32_t bucket);

/* SHARED: an eni_coll_take for bucket-relative elements [lo, hi): runs the kernel on this slice and blocks until
 * it is done. What went wrong in it, eni_gpu_steps_status says. */
void eni_gpu_steps_take(eni_gpu_steps *steps, uint32_t bucket, uint64_t lo, uint64_t hi, const eni_sources *from);
en_status eni_gpu_steps_status(const eni_gpu_steps *steps);

#endif
