/* host.h - the host of a strategy's worker half: it implements en_host on an arena and a transport, which is
 * the collectives and the store client, or in virtual time (runtime/sim) their model.
 *
 * One training step, as the worker drives it (compute thread only; nothing here is thread-safe):
 *
 *     eni_host_begin(host, step, nsamples, samples); before_step
 *     for each bucket as backward completes it:
 *         eni_host_submit(host, bucket);             submit; returns at once
 *     eni_host_finish(host);                         finish of every bucket, in submit order; after_step
 *
 * finish is finish_bucket for 0, 1, .. n - 1 and then end: a caller of the parts can use a bucket's new
 * weights as soon as they are there.
 *
 * After finish, the arena's param slot holds the weights of the next step. The host measures: staleness and
 * bytes are counted here and in the transport, alike for every strategy. */
#ifndef HOST_HOST_H
#define HOST_HOST_H

#include <stdbool.h>
#include <stdint.h>

#include "core/options.h"
#include "core/trace.h"
#include "core/wait_note.h"
#include "entrain/strategy.h"
#include "ops/mean.h"
#include "ops/optimizer.h"
#include "ops/schedule.h"
#include "plugin/hook.h"
#include "runtime/client/client.h"
#include "runtime/collective/arena.h"
#include "runtime/collective/coll.h"
#include "runtime/collective/gpu_steps.h"
#include "runtime/host/costs.h"
#include "runtime/spec/buckets.h"

typedef struct eni_host eni_host;

/* ---- the transport: what carries exchanges ---- */

/* Sockets with shared memory carry operations by direct calls (host_state.c), virtual time by this table
 * (runtime/sim/sim_rank.c). Everything else of a host is the same code on both. An operation is started and
 * then waited for, once; `test` is for a caller with other work meanwhile. One thread (in virtual time: one
 * fiber) calls a table. */
enum { ENI_OPERATION_COLL = 1, ENI_OPERATION_CALL = 2 };

typedef struct eni_operation {
    int kind;         /* ENI_OPERATION_* */
    uint64_t ticket;  /* the transport's own */
    int group;        /* COLL: EN_WORLD, EN_GROUP or EN_LEADERS */
    eni_coll_op coll; /* COLL */

    /* CALL */
    int32_t dest; /* EN_SERVERS, or the store inside a rank */
    uint32_t bucket, call_kind, what;
    int out, in;    /* slots of the arena, or ENI_SLOT_NONE */
    bool keeps_out; /* `out` stays as it is until the call is waited for: a transport need not copy it */
    uint64_t nsamples, covered; /* as eni_client_call */
    uint64_t step;

    /* Results, after wait. */
    int64_t waited_ns; /* blocked for others */
    uint64_t samples;  /* of a reduction: behind the contributions of all ranks; UINT64_MAX: not known */
    uint64_t version;  /* of the bucket at the store, as last received; also after start */
    double staleness;  /* of the push, the mean over the partitions; 0 where the store counts it itself */
} eni_operation;

typedef struct eni_transport {
    void *user;
    bool has_world;   /* collectives of all ranks */
    bool has_group;   /* of this rank's group; of this host's ranks where hosts meet at the servers only */
    bool has_leaders; /* of the first ranks of all groups; this is one */
    bool is_client;   /* this rank may call the servers */
    bool has_rank_stores; /* and those inside ranks */
    en_status (*start)(void *user, eni_operation *operation);
    bool (*test)(void *user, const eni_operation *operation); /* true: wait would not block. Makes progress */
    en_status (*wait)(void *user, eni_operation *operation);
    int64_t (*now_ns)(void *user);
    /* This rank's weights, flat, which may lie elsewhere as long as it only reads them. NULL: in the arena. */
    float *(*weights)(void *user, bool writes);
    /* Seconds of an operation (0: call, else EN_ALLREDUCE ..) on `bytes` bytes, as in en_host.cost. */
    double (*cost)(void *user, int op, uint64_t bytes);
} eni_transport;

/* ---- open and close ---- */

/* Pointers are borrowed and outlive the host. */
typedef struct eni_host_config {
    const en_strategy *strategy;
    const eni_options *options;
    eni_hook_guard *hooks; /* notified of every hook (plugin/hook.h); NULL: not watched */
    en_world world;
    uint64_t seed;
    const eni_buckets *buckets;
    eni_arena *arena; /* slots ENI_SLOT_PARAM, ENI_SLOT_GRAD, and room for strategy vectors */
    /* NULL: the world has one rank, and the worker has put the mean over its own micro-batches (eni_mean_ranks,
     * also of one) into grad before submit */
    eni_coll *coll;
    int coll_algorithm; /* ENI_COLL_* of coll */
    /* EN_USES_GROUPS: this rank's group; EN_LEADERS_ARE_CLIENTS: this host's ranks, without a coll; NULL: a
     * group of one, or the group is the world */
    eni_coll *group;
    int group_algorithm;
    eni_coll *leaders; /* EN_USES_GROUPS: the first ranks of all groups, if this is one; else NULL */
    int leaders_algorithm;
    bool has_own_groups; /* groups differ from hosts, so EN_LOCAL has none */
    eni_client *client;  /* NULL: no servers, or this rank is not their client */
    bool has_store;      /* servers have weights, whoever is their client */
    /* The caller steps, with the mean that a finished bucket's gradient is: EN_SHARED_PARAMS, not shared, or
     * a world of one. `optimizer` only counts, until eni_host_step_all. */
    bool steps_outside;
    /* The caller's own optimizer, in the strategy's step of a bucket, with the gradient that is there then. NULL: `optimizer`
     * steps, which otherwise only counts. */
    en_status (*step)(void *user, uint32_t bucket);
    void *step_user;
    const eni_optimizer *optimizer;
    eni_hyper hyper; /* momentum, weight decay, nesterov; lr comes from the schedule */
    eni_schedule schedule;
    eni_trace *trace;                      /* NULL: none */
    en_status (*alive_status)(void *user); /* why a call could not start, if a peer is the reason */
    void *alive_user;
    /* Written around every wait for others, so that a long one can be explained: "all-reduce", "push-pull",
     * the bucket's first tensor and bytes; a step's operations count 1, 2, .. alike on all ranks. NULL: not
     * written. */
    eni_wait_note *wait_note;
    /* The transport, copied. NULL: sockets and shared memory, by the groups and the client above; else those
     * are NULL, and the algorithms only serve coll_bytes. */
    const eni_transport *transport;
    /* For weights, optimizer state and gradients on a GPU: mean_step, and step in a world of one, are put
     * into its queues, and the arena is stale until they are copied there. Only for a strategy with
     * EN_SHARED_PARAMS and without a client, or in a world of one (coll is NULL); there lin, coll, sendrecv
     * and call are misuse. SHARED takes a coll that can share. NULL: they lie in the arena. */
    eni_gpu_steps *gpu;
    /* Measures for en_host.cost(), when the strategy first asks, in open or plan; NULL: every cost is NAN.
     * All ranks' strategies ask at the same point, as with collective calls. */
    en_status (*measure)(void *user, eni_costs *costs_out);
    void *measure_user;
} eni_host_config;

/* Runs the strategy's open and, for each bucket, plan. */
en_status eni_host_open(const eni_host_config *config, eni_host **host_out);

/* NULL is fine. Requests in progress are abandoned. */
void eni_host_close(eni_host *host);

/* Before the first step, with weights and optimizer state in place (init, resume). All ranks call it, and
 * wait for each other: if the strategy has EN_SHARED_PARAMS and the ranks share memory, they then share rank
 * 0's weights (unless they have their own, all alike) and optimizer state, and mean_step is one pass.
 * Otherwise it does nothing, as with steps_outside. Without the call every rank keeps its own. EN_OK, or as
 * eni_coll_share. */
en_status eni_host_share_step(eni_host *host, bool has_own_params);

/* Begins a step. `nsamples` are behind this rank's gradient; all ranks applied `samples_before` before it,
 * from which the learning rate of this rank's own steps follows. */
en_status eni_host_begin(eni_host *host, uint64_t step, uint64_t nsamples, uint64_t samples_before);

/* Before begin: the step's samples behind the gradients of all ranks of this host, and of all hosts; a
 * group's mean is pushed with them. If never called: every rank has as many as this one. With `gpu` and a
 * world of several: call it before every begin, `world` 0 where this rank cannot know (fp16). */
void eni_host_note_samples(eni_host *host, uint64_t local, uint64_t world);

/* Before begin, with `gpu` in a world of one: the samples of each micro-batch (as many as the steps have
 * gradients). Kept for this step only; never called: the first of them has all. */
void eni_host_note_micros(eni_host *host, const uint64_t *samples, int n);

en_status eni_host_submit(eni_host *host, uint32_t bucket);
en_status eni_host_finish(eni_host *host);

/* The same in parts. Buckets in ascending order, each once a step: anything else is EN_EBUG, logged. When it
 * returns, the bucket's weights in the arena are those of the next step, and nobody writes them before its
 * next submit, except the strategy's after_step, which may write any bucket. end: after all of them. */
en_status eni_host_finish_bucket(eni_host *host, uint32_t bucket);
en_status eni_host_end(eni_host *host);

/* With steps_outside, after the end of a step: takes it on all buckets, with what their gradients are by now. */
void eni_host_step_all(eni_host *host);

/* After the last step; `is_early`: the budget is not used up. EN_EBUG, logged: an operation was started
 * before the last two steps and never waited for; or gradients were not 0, but the weights are the initial
 * ones, and no store kept them so. */
en_status eni_host_over(eni_host *host, bool is_early);

/* Logs that a strategy with EN_REPLICATED has left different weights, and returns EN_EBUG: for the caller
 * that has compared all ranks' weights after the last step. */
en_status eni_host_not_replicated(const en_strategy *strategy);

/* The same if is_unchanged is true on every rank: a store that never steps. */
en_status eni_host_unchanged(const en_strategy *strategy);

/* The strategy's choice of the model to evaluate (EN_EVAL_*), and this rank's arena slot for it: the
 * vector's, or param. EN_EBUG, logged: the hook's answer is invalid. */
en_status eni_host_eval(eni_host *host, int *which_out, uint32_t *slot_out);

/* The strategy's theory; zeroed if it has none. `nranks`: for a world of that size; 0: for its own. */
void eni_host_theory(eni_host *host, int32_t nranks, en_theory *theory_out);

/* Measured since open, on the compute thread. */
typedef struct eni_host_counters {
    int64_t send_ns;   /* in submit, and working on an exchange in wait */
    int64_t wait_ns;   /* blocked for others */
    int64_t update_ns; /* optimizer steps and lin of this rank */
    /* An exchange of the step was under way while this rank computed: between its first request and the first
     * finish, less the times above. An upper bound: an exchange may have ended unnoticed. */
    int64_t hidden_ns;
    uint64_t version;      /* of bucket 0: updates seen by this rank */
    uint64_t base_version; /* of the weights that the last gradient was computed on */
    double staleness; /* of the last step's pushes, as the store measured it: the mean over the partitions */
    uint64_t steps;   /* optimizer steps on bucket 0 taken by this rank */
    float lr;         /* of the last step, or the server's next */
    uint32_t param_crc; /* of this rank's weights after the last step (eni_host_over); 0: not known */
    bool is_unchanged;  /* they are the initial ones, though a gradient was not 0 */
    /* GPUs, GROUP: bytes that the all-reduces sent, and received, by theory: NCCL's own are not visible. */
    double group_bytes;
} eni_host_counters;
void eni_host_count(const eni_host *host, eni_host_counters *counters_out);

/* ---- for checkpoints: what lies in the arena and beside it, between two steps ---- */

/* The vectors that the strategy has named, besides weights and optimizer state: their number, and each one's
 * name and arena slot. */
typedef struct eni_host_vector {
    const char *name;
    uint32_t slot;
} eni_host_vector;
int eni_host_vectors(const eni_host *host, eni_host_vector vectors_out[ENI_ARENA_NSLOTS]);

/* The number of arena slots in use, which are the first ones. */
uint32_t eni_host_slots(const eni_host *host);

/* How many slots the optimizer keeps in the arena; the first one is *first_out, the others follow. */
int eni_host_optimizer_slots(const eni_host *host, uint32_t *first_out);

/* The strategy's state: plain bytes, to be read or overwritten. */
void *eni_host_state(const eni_host *host, size_t *bytes_out);

/* Whether this rank has ever written its own weights: by an optimizer step, lin, a collective or a sendrecv.
 * If not, they are a store's answer. */
bool eni_host_writes_param(const eni_host *host);

/* Whether this rank has ever exchanged the bucket with a store; if not, only ranks change it. */
bool eni_host_is_called(const eni_host *host, uint32_t bucket);

/* Optimizer steps that this rank has taken on a bucket, and the range of it that the rank steps. */
uint64_t eni_host_steps_taken(const eni_host *host, uint32_t bucket);
void eni_host_set_steps_taken(eni_host *host, uint32_t bucket, uint64_t steps);
void eni_host_range(const eni_host *host, uint32_t bucket, uint64_t *lo_out, uint64_t *hi_out);

#endif
