/* gpu_steps.h - mean_step where gradients and weights lie on a GPU: the mean over all ranks and the
 * optimizer's step are put into the GPU's EXCHANGE stream behind the gradient, and the next forward behind
 * them. The host waits only where it must.
 *
 * Three ways to the same mean:
 *
 *     ALONE   a world of one: the mean of its own micro-batches (solo --accumulate=W)
 *     GROUP   one GPU per rank: NCCL adds the gradients in place, each rank steps its own weights
 *     SHARED  all ranks on one GPU, which NCCL refuses: each rank maps the others' gradients (CUDA IPC) and
 *             rank 0's weights, and steps its slice of them. Flags of the direct engine say which rank is
 *             ready, and which is done (collective/direct.c: ENI_COLL_MEAN_STEP, whose `take` starts the
 *             kernel)
 *
 *     ALONE, GROUP   COMPUTE   rates | forward, backward b0 . b1 .            | forward ..
 *                    EXCHANGE                             '-> mean b0, step '-> mean b1, step -'
 *     SHARED         host      polls b0's event, signals the others; once all have: take, polls, is done
 *
 * ALONE and SHARED add in the order of ops/mean.h: the bits of eni_mean and the optimizer, and so of psd.
 * NCCL adds in an order of its own; with two ranks there is only one. A step in which no rank has samples
 * changes nothing (strategy.h, mean_step): GROUP finds that out on the GPU, where the total is.
 *
 * Only for strategies whose weights change through mean_step alone (EN_SHARED_PARAMS), or through step in a
 * world of one (solo). Every other strategy runs on the host's vectors, to which gradients are copied bucket
 * by bucket (worker/gpu/vectors.h). Owned by the compute thread. Driven by host/host.h, which calls begin ..
 * take: the worker opens it, hands it to the host (eni_host_config.gpu), switches replay, and closes it after
 * the host. */
#ifndef COLLECTIVE_GPU_STEPS_H
#define COLLECTIVE_GPU_STEPS_H

#include <stdbool.h>

#include "entrain/device.h"
#include "ops/mean.h"
#include "runtime/collective/sync.h"
#include "runtime/spec/buckets.h"

enum { ENI_GPU_ALONE, ENI_GPU_GROUP, ENI_GPU_SHARED };

typedef struct eni_gpu_steps eni_gpu_steps;

/* How long a GPU may take for work that depends on no other rank. Zeroed: no limit. */
typedef struct eni_gpu_timeout {
    int64_t ns; /* 0: no limit */
    /* Logs that it has taken longer; `what` was waited for ("its gradient"). */
    void (*tell)(void *user, const char *what);
    void *user;
} eni_gpu_timeout;

/* Pointers are borrowed and outlive the steps, except for the array `grads`, which is copied. Vectors are
 * device memory of buckets->count floats each. */
typedef struct eni_gpu_steps_config {
    int way;
    int rank, nranks;
    const en_device *device;
    en_ctx *ctx;
    const eni_buckets *buckets;
    const eni_optimizer *optimizer;
    const eni_param_groups *groups; /* of the rates that begin is given; NULL: none */
    eni_sum_order sum_order;        /* ALONE; SHARED: the group's; NCCL has its own */
    int nslots;
    float *param, *slot[ENI_MAX_SLOTS]; /* SHARED: rank 0's on all ranks */
    /* (ngrads) ALONE: one per micro-batch; GROUP: this rank's; SHARED: all ranks', [rank] is this rank's. */
    float *const *grads;
    int ngrads;              /* at most EN_GPU_SOURCES */
    en_group *group;         /* GROUP */
    eni_alive alive;         /* of the run; asked in every wait */
    eni_gpu_timeout timeout; /* with every wait; zeroed for GROUP, whose work waits for all ranks' */
} eni_gpu_steps_config;

/* EN_EINVAL for a config that does not fit, EN_ENOMEM; logged. */
en_status eni_gpu_steps_open(const eni_gpu_steps_config *config, eni_gpu_steps **steps_out);
void eni_gpu_steps_close(eni_gpu_steps *steps); /* NULL is fine */

int eni_gpu_steps_way(const eni_gpu_steps *steps);

/* Before the first submit of a step: its rates, and the samples behind each gradient: `samples` of this
 * rank's (ALONE: ngrads, else 1); `total` of all ranks, 0: not known here (GROUP: the ranks add theirs up on
 * the GPU; then it is unknown on all of them). Copied to the device ahead of what the step enqueues in
 * COMPUTE. Blocks only while the numbers of eight steps are under way. Never inside a capture. */
en_status eni_gpu_steps_begin(eni_gpu_steps *steps, const eni_hyper *hyper, const uint64_t *samples,
                              uint64_t total);

/* While `is_replayed`, submit and wait count and enqueue nothing: the step is in a graph that
 * worker/gpu/trainer_gpu.c launches. ALONE, GROUP: only for steps whose total is known and in which every
 * gradient has samples; for others begin returns EN_EBUG, logged. SHARED: submit is then called only for a
 * bucket whose gradient is there (its caller has waited for the graph's own event), and the others learn of
 * it at once. */
void eni_gpu_steps_replay(eni_gpu_steps *steps, bool is_replayed);

/* The bucket's gradient is complete where COMPUTE now stands. ALONE, GROUP: puts mean and step into EXCHANGE.
 * SHARED: records the position. */
en_status eni_gpu_steps_submit(eni_gpu_steps *steps, uint32_t bucket);

/* ALONE, GROUP: orders COMPUTE behind mean and step. */
en_status eni_gpu_steps_wait(eni_gpu_steps *steps, uint32_t bucket);

/* SHARED: whether the submitted gradient is there: EN_OK, EN_ETIMEOUT (not yet). With `may_block`, waits for
 * it: EN_OK, or the status of alive. */
en_status eni_gpu_steps_ready(eni_gpu_steps *steps, uint32_t bucket, bool may_block);

/* SHARED: an eni_coll_on_reduced for bucket-relative elements [lo, hi): runs the kernel on this slice and
 * blocks until it is done. from->rank names the rank of each source, at least one; from->src is ignored.
 * Errors show in eni_gpu_steps_status. */
void eni_gpu_steps_take(eni_gpu_steps *steps, uint32_t bucket, uint64_t lo, uint64_t hi,
                        const eni_sources *from);
en_status eni_gpu_steps_status(const eni_gpu_steps *steps);

/* Blocks until an event of this context is reached, for a wait behind work of the steps: NCCL never ends by
 * itself when a peer is gone. EN_OK; or the status of alive or of the group: then the group has been aborted,
 * so that the streams run dry and the device's sync returns; EN_EIO after the timeout. */
en_status eni_gpu_steps_await(eni_gpu_steps *steps, en_event *event, const char *what);

/* The same without a group: polls until the event is reached, alive reports a failure or timeout (NULL: no
 * limit) expires: EN_EIO, logged. Yields, then sleeps longer and longer, up to 0.2 ms. */
en_status eni_gpu_await(const en_gpu *gpu, en_event *event, const eni_alive *alive,
                        const eni_gpu_timeout *timeout, const char *what);

#endif
