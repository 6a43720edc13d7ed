/* host.h - the host of a strategy's worker half: what en_host promises, kept with an arena and a transport:
 * the collectives and the store client, or in virtual time (runtime/sim) their model.
 *
 * One training step, as the worker drives it (compute thread only; nothing here is thread-safe):
 *
 *     eni_host_begin(host, step, nsamples, samples); before_step
 *     for each bucket as backward completes it:
 *         eni_host_submit(host, bucket);             submit; returns at once
 *     eni_host_finish(host);                         finish of every bucket, in submit order; after_step
 *
 * finish is finish_bucket for 0, 1, .. n - 1 and then end: for who carries a bucket's new weights on as soon
 * as they are there.
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
 * then waited for, once; `test` is for who has something else to do meanwhile. One thread (in virtual time:
 * one fiber) calls a table. */
enum { ENI_OPERATION_COLL = 1, ENI_OPERATION_CALL = 2 };

typedef struct eni_operation {
    int kind;         /* ENI_OPERATION_* */
    uint64_t ticket;  /* the transport's own */
    int group;        /* COLL: EN_WORLD, EN_GROUP or EN_LEADERS */
    eni_coll_op coll; /* COLL */

    /* CALL */
    int32_t dest; /* EN_SERVERS, or the store inside a rank */
    uint32_t bucket, call_kind, what;
    int out, in;                /* slots of the arena, or ENI_SLOT_NONE */
    uint64_t nsamples, covered; /* as eni_client_call */
    uint64_t step;

    /* Answers, after wait. */
    int64_t waited_ns; /* blocked for others */
    uint64_t samples;  /* of a reduction: behind the contributions of all ranks; UINT64_MAX: not known */
    uint64_t version;  /* of the bucket at the store, as last received; also after start */
    double staleness;  /* of the push, the mean over the partitions; 0 where the store counts it itself */
} eni_operation;

typedef struct eni_transport {
    void *user;
    bool has_world;       /* collectives of all ranks */
    bool has_group;       /* of this rank's group: of this host's where hosts meet at the servers only */
    bool has_leaders;     /* of the first ranks of all groups; this is one */
    bool is_client;       /* this rank may call the servers */
    bool has_rank_stores; /* and those inside ranks */
    en_status (*start)(void *user, eni_operation *operation);
    bool (*test)(void *user, const eni_operation *operation); /* true: wait would not block. Makes progress */
    en_status (*wait)(void *user, eni_operation *operation);
    int64_t (*now_ns)(void *user);
    /* Seconds of an operation (0: call, else EN_ALLREDUCE ..) on `bytes` bytes, as en_host.cost has it. */
    double (*cost)(void *user, int op, uint64_t bytes);
} eni_transport;

/* ---- life ---- */

/* Everything is borrowed and outlives the host. */
typedef struct eni_host_config {
    const en_strategy *strategy;
    const eni_options *options;
    eni_hook_guard *hooks; /* told of every hook (plugin/hook.h); NULL: nobody watches */
    en_world world;
    uint64_t seed;
    const eni_buckets *buckets;
    eni_arena *arena;   /* slots ENI_SLOT_PARAM, ENI_SLOT_GRAD, and room for strategy vectors */
    eni_coll *coll;     /* NULL: the world has one rank, and the worker has put the mean over its own
                           micro-batches (eni_mean_ranks, also of one) into grad before submit */
    int coll_algorithm; /* ENI_COLL_* of coll */
    eni_coll *group;    /* EN_USES_GROUPS: those of this rank's group; EN_LEADERS_ARE_CLIENTS: of this host,
                           and no coll; NULL: there is one, or the group is the world */
    int group_algorithm;
    eni_coll *leaders; /* EN_USES_GROUPS: the first ranks of all groups, of which this is one; else NULL */
    int leaders_algorithm;
    bool has_own_groups; /* groups are not the ranks of each host, so that none is EN_LOCAL's */
    eni_client *client;  /* NULL: no servers, or this rank is no client of them */
    bool has_store;      /* servers have weights, whoever is their client */
    const eni_optimizer *optimizer;
    eni_hyper hyper; /* momentum, weight decay, nesterov; lr comes from the schedule */
    eni_schedule schedule;
    eni_trace *trace;                      /* NULL: none */
    en_status (*alive_status)(void *user); /* why a call could not start, if a peer is the reason */
    void *alive_user;
    /* Written around every wait for others, so that a long one can be explained: "all-reduce", "push-pull",
     * the bucket's first tensor and bytes; a step's operations count 1, 2, .. alike on all ranks. NULL:
     * nobody wants to know. */
    eni_wait_note *wait_note;
    /* What carries exchanges, copied. NULL: sockets and shared memory, by the groups and the client above;
     * else those are NULL, and algorithms only say what coll_bytes counts. */
    const eni_transport *transport;
    /* Where weights, optimizer state and gradients lie on a GPU: mean_step, and step in a world of one, are
     * put into its queues, and the arena has old values until somebody copies them there. Only for a strategy
     * with EN_SHARED_PARAMS and without a client, or in a world of one (coll is NULL); there lin, coll,
     * sendrecv and call are misuse. SHARED takes a coll that can share. NULL: they lie in the arena. */
    eni_gpu_steps *gpu;
    /* Measures for en_host.cost(), when the strategy first asks, in open or plan; NULL: every cost is NAN.
     * All ranks' strategies ask alike, as they make the same collective calls. */
    en_status (*measure)(void *user, eni_costs *costs_out);
    void *measure_user;
} eni_host_config;

/* Runs the strategy's open and, for each bucket, plan. */
en_status eni_host_open(const eni_host_config *config, eni_host **host_out);

/* NULL is fine. Requests in progress are abandoned. */
void eni_host_close(eni_host *host);

/* Before the first step, with weights and optimizer state in place (init, resume). All ranks call it, and
 * wait for each other: where the strategy says EN_SHARED_PARAMS and the ranks share memory, rank 0's weights
 * and optimizer state become everybody's, and mean_step is one pass. Elsewhere nothing happens. Without the
 * call every rank keeps its own. EN_OK, or as eni_coll_share. */
en_status eni_host_share_params(eni_host *host);

/* `nsamples` lie behind this rank's gradient; `samples_before` were applied by all ranks before this step:
 * the learning rate of a step that this rank takes follows from it. */
en_status eni_host_begin(eni_host *host, uint64_t step, uint64_t nsamples, uint64_t samples_before);

/* Before begin: samples of the step behind the gradients of all ranks of this host, and of all hosts. What
 * stands for a group's mean is pushed with them. Never called: as many as this rank's on every rank. With
 * `gpu` and a world of several: call it before every begin, `world` 0 where this rank cannot know (fp16). */
void eni_host_note_samples(eni_host *host, uint64_t local, uint64_t world);

/* Before begin, with `gpu` in a world of one: the samples of each micro-batch (as many as the steps have
 * gradients). Kept for this step only; never called: the first of them has all. */
void eni_host_note_micros(eni_host *host, const uint64_t *samples, int n);

en_status eni_host_submit(eni_host *host, uint32_t bucket);
en_status eni_host_finish(eni_host *host);

/* The same in parts. Buckets in ascending order, each once a step: anything else is EN_EBUG, logged. When it
 * returns, the bucket's weights in the arena are those of the next step, and nobody writes them before its
 * next submit; but after_step may, of any bucket, if the strategy has one. end: after all of them. */
en_status eni_host_finish_bucket(eni_host *host, uint32_t bucket);
en_status eni_host_end(eni_host *host);

/* After the last step, `is_early` if that is not the budget's. EN_EBUG, logged: an operation was started before
 * the last two steps and never waited for; or gradients were not 0, and the weights are those of the
 * beginning though no store kept them so. */
en_status eni_host_over(eni_host *host, bool is_early);

/* EN_EBUG and its sentence, for whoever has compared all ranks' weights after the last step: a strategy with
 * EN_REPLICATED has left them different. */
en_status eni_host_not_replicated(const en_strategy *strategy);

/* The same where every rank counts is_unchanged: a store that never steps. */
en_status eni_host_unchanged(const en_strategy *strategy);

/* What the strategy says of the model to evaluate (EN_EVAL_*), and which arena slot this rank has of it: the
 * vector's, or param. EN_EBUG, logged: its hook answered what makes no sense. */
en_status eni_host_eval(eni_host *host, int *which_out, uint32_t *slot_out);

/* The strategy's promise; zeroed where it promises nothing. `nranks`: of a world of so many; 0: of its own. */
void eni_host_theory(eni_host *host, int32_t nranks, en_theory *theory_out);

/* Measured since open, on the compute thread. */
typedef struct eni_host_counters {
    int64_t send_ns;   /* in submit, and working on an exchange in wait */
    int64_t wait_ns;   /* blocked for others */
    int64_t update_ns; /* optimizer steps and lin of this rank */
    int64_t hidden_ns; /* an exchange of the step was under way while this rank computed: between its first
                          request and the first finish, less what stands above. What had ended by then
                          without this rank having looked counts too: at most so much was hidden */
    uint64_t version;  /* of bucket 0: updates seen by this rank */
    uint64_t base_version; /* of the weights that the last gradient was computed on */
    double staleness; /* of the last step's pushes, as the store measured it: the mean over the partitions */
    uint64_t steps;   /* optimizer steps on bucket 0 taken by this rank */
    float lr;         /* of the last step, or what the server would take */
    uint32_t param_crc; /* of this rank's weights after the last step (eni_host_over); 0: not known */
    bool is_unchanged;  /* they are those of the beginning, though a gradient was not 0 */
    double group_bytes; /* GPUs, GROUP: what the all-reduces have sent, by the algorithm, and received as
                           much: what NCCL itself sends is not to be seen */
} eni_host_counters;
void eni_host_count(const eni_host *host, eni_host_counters *counters_out);

/* ---- for checkpoints: what lies in the arena and beside it, between two steps ---- */

/* The vectors that the strategy has named, beside weights and optimizer state: how many, and each one's name
 * and arena slot. */
typedef struct eni_host_vector {
    const char *name;
    uint32_t slot;
} eni_host_vector;
int eni_host_vectors(const eni_host *host, eni_host_vector vectors_out[ENI_ARENA_NSLOTS]);

/* How many slots of the arena are in use: those below this one. */
uint32_t eni_host_slots(const eni_host *host);

/* How many slots the optimizer keeps in the arena; the first one is *first_out, the others follow. */
int eni_host_optimizer_slots(const eni_host *host, uint32_t *first_out);

/* The strategy's state: plain bytes, to be read or overwritten. */
void *eni_host_state(const eni_host *host, size_t *bytes_out);

/* Whether this rank has ever written its own weights: by an optimizer step, lin, a collective or a sendrecv. If not:
 * they are what a store answered. */
bool eni_host_writes_param(const eni_host *host);

/* Whether this rank has ever exchanged the bucket with a store; if not, what becomes of it, becomes of it in the
 * ranks. */
bool eni_host_is_called(const eni_host *host, uint32_t bucket);

/* Optimizer steps that this rank has taken on a bucket, and the range of it that the rank steps. */
uint64_t eni_host_steps_taken(const eni_host *host, uint32_t bucket);
void eni_host_set_steps_taken(eni_host *host, uint32_t bucket, uint64_t steps);
void eni_host_range(const eni_host *host, uint32_t bucket, uint64_t *lo_out, uint64_t *hi_out);

#endif
