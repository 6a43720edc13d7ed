/* gpu_steps.h - mean_step where gradients and weights lie on a GPU: the mean over all ranks and the
 * optimizer's step are put into the GPU's EXCHANGE stream behind the gradient, and the next forward behind
 * them. Where the host need not wait it does not.
 *
 * Three ways to the same mean:
 *
 *     ALONE   a world of one: the mean of its own micro-batches (solo --accumulate=W)
 *     GROUP   one GPU per rank: NCCL adds the gradients in place, each rank steps its own weights
 *     SHARED  all ranks on one GPU, which NCCL refuses: each rank maps the others' gradients (CUDA IPC) and
 *             rank 0's weights, and steps its slice of them. Who is ready, and who is done, travels through
 *             the flags of the direct engine (collective/direct.c: ENI_COLL_MEAN_STEP, whose `take`
 *             starts the kernel)
 *
 *     ALONE, GROUP   COMPUTE   rates | forward, backward b0 . b1 .            | forward ..
 *                    EXCHANGE                             '-> mean b0, step '-> mean b1, step -'
 *     SHARED         host      polls b0's event, tells the others; once all have told: take, polls, is done
 *
 * ALONE and SHARED add in the order of ops/mean.h: the bits of eni_mean and the optimizer, and so of psd.
 * NCCL adds in an order of its own; with two ranks there is only one. A step in which nobody has samples
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

/* How long a GPU may take for what depends on no other rank. Zeroed: for ever. */
typedef struct eni_gpu_timeout {
    int64_t ns; /* 0: for ever */
    /* It has taken longer: says so in a sentence, `what` being what is waited for ("its gradient"). */
    void (*tell)(void *user, const char *what);
    void *user;
} eni_gpu_timeout;

/* What is pointed to is borrowed and outlives the steps, but for `grads` itself, which is copied. Vectors are
 * device memory of buckets->count floats each. */
typedef struct eni_gpu_steps_config {
    int way;
    int rank, nranks;
    const en_device *device;
    en_ctx *ctx;
    const eni_buckets *buckets;
    const eni_optimizer *optimizer;
    const eni_param_groups *groups; /* of the rates that begin is given; NULL: none */
    eni_sum_order sum_order;        /* ALONE; of SHARED the group's, and NCCL has its own */
    int nslots;
    float *param, *slot[ENI_MAX_SLOTS]; /* SHARED: rank 0's on all ranks */
    float *const *grads;     /* (ngrads) ALONE: one per micro-batch; GROUP: this rank's; SHARED: all ranks',
                                [rank] is this rank's own */
    int ngrads;              /* at most EN_GPU_SOURCES */
    en_group *group;         /* GROUP */
    eni_alive alive;         /* of the run; asked in every wait */
    eni_gpu_timeout timeout; /* with every wait; zeroed for GROUP, whose work waits for all ranks' */
} eni_gpu_steps_config;

/* EN_EINVAL for a config that does not fit, EN_ENOMEM; logged. */
en_status eni_gpu_steps_open(const eni_gpu_steps_config *config, eni_gpu_steps **steps_out);
void eni_gpu_steps_close(eni_gpu_steps *steps); /* NULL is fine */

int eni_gpu_steps_way(const eni_gpu_steps *steps);

/* Before the first submit of a step: its rates, and whose samples are behind which gradient: `samples` of the
 * own ones (ALONE: ngrads, else 1); `total` of all ranks, 0: not known here (GROUP: the ranks add theirs up
 * on the GPU; then it is unknown on all of them). Copied to the device ahead of what the step enqueues in
 * COMPUTE. Does not block, unless the numbers of eight steps are under way. Never inside a capture. */
en_status eni_gpu_steps_begin(eni_gpu_steps *steps, const eni_hyper *hyper, const uint64_t *samples,
                              uint64_t total);

/* While `is_replayed`, submit and wait count and enqueue nothing: the step is in a graph that is launched by
 * somebody else (worker/gpu/trainer_gpu.c). ALONE, GROUP: only for steps whose total is known and in which every
 * gradient has samples: begin says EN_EBUG, logged, of another. SHARED: submit is then called only for a
 * bucket whose gradient is there (its caller has waited for the graph's own event), and the others hear of it
 * at once. */
void eni_gpu_steps_replay(eni_gpu_steps *steps, bool is_replayed);

/* The bucket's gradient is what COMPUTE has by now. ALONE, GROUP: puts mean and step into EXCHANGE. SHARED:
 * notes the place. */
en_status eni_gpu_steps_submit(eni_gpu_steps *steps, uint32_t bucket);

/* ALONE, GROUP: orders COMPUTE behind mean and step. */
en_status eni_gpu_steps_wait(eni_gpu_steps *steps, uint32_t bucket);

/* SHARED: whether the gradient submitted is there: EN_OK, EN_ETIMEOUT (not yet). With `may_block`, waits for
 * it: EN_OK, or what alive says. */
en_status eni_gpu_steps_ready(eni_gpu_steps *steps, uint32_t bucket, bool may_block);

/* SHARED: an eni_coll_on_reduced for bucket-relative elements [lo, hi): runs the kernel on this slice and
 * blocks until it is done. from->rank says whose each source is, of one at least; from->src is not looked at.
 * What went wrong in it, eni_gpu_steps_status says. */
void eni_gpu_steps_take(eni_gpu_steps *steps, uint32_t bucket, uint64_t lo, uint64_t hi,
                        const eni_sources *from);
en_status eni_gpu_steps_status(const eni_gpu_steps *steps);

/* Blocks until an event of this context is reached, for whoever must wait behind what the steps have
 * enqueued: NCCL never ends by itself when a peer is gone. EN_OK; or what alive or the group says: then the
 * group has been aborted, so that the streams run dry, and the device's sync returns; EN_EIO when the timeout
 * is over. */
en_status eni_gpu_steps_await(eni_gpu_steps *steps, en_event *event, const char *what);

/* The same where there is no group: polls until the event is reached, alive says otherwise or timeout (NULL:
 * for ever) is over: EN_EIO, told. It yields, then sleeps for ever longer, up to 0.2 ms. */
en_status eni_gpu_await(const en_gpu *gpu, en_event *event, const eni_alive *alive,
                        const eni_gpu_timeout *timeout, const char *what);

#endif
