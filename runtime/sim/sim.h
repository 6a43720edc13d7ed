/* sim.h - the virtual host: real strategies, real gradients, virtual time.
 *
 * A run of any number of workers and servers within one thread, but for gradients. Every rank is a fiber that runs the worker
 * half of the very .so that runs on real transport; every shard is the real store core (runtime/store/
 * store.h); means and optimizer steps are the real functions. Only time is simulated: computing takes the time
 * of the compute model, messages take that of the network model, and events happen in the order of
 * (virtual_ns, seq). So a run is a function of its configuration: the same log hash, the same weights.
 *
 *     rank (fiber)  --submit--> network model --> store core --> network model --> rank goes on
 *
 * Gradients are computed by a callback, on the scheduler's stack or on threads, on the weights that the rank has when its
 * step begins; its buckets then become ready one after the other over the step's compute time, in proportion
 * to their size.
 *
 * No fiber, queue or store outlives a call. Runs in different threads are independent. */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "core/digest.h"
#include "core/options.h"
#include "entrain/strategy.h"
#include "ops/mean.h"
#include "ops/optimizer.h"
#include "ops/schedule.h"
#include "plugin/hook.h"
#include "run/arrivals.h"
#include "run/law.h"
#include "run/net_links.h"
#include "run/slowdown.h"
#include "runtime/spec/buckets.h"
#include "runtime/store/staleness.h"

/* The training problem. */
typedef struct eni_sim_problem {
    uint64_t count; /* elements of the flat vector */
    const en_model_tensor *tensors;
    uint32_t ntensors;
    const float *init;                                     /* (count) initial weights of all ranks */
    uint64_t (*samples)(void *user, uint64_t micro_batch); /* in a micro-batch, > 0 */
    /* Gradient of the mean loss over one micro-batch: overwrites grad (count). A function of (micro_batch,
     * param) alone; `rank` only says for which rank. Anything but EN_OK ends the run with that status. */
    en_status (*grad)(void *user, int rank, uint64_t micro_batch, const float *param, float *grad);
    void *user;
    int threads; /* that may call grad at a time, each for another rank; 0: one, which called eni_sim_run */
} eni_sim_problem;

/* How long the gradient of one micro-batch takes: what the rank's law gives for (seed, rank, step), times the factors of all
 * slowdowns of that rank in that step. */
typedef struct eni_sim_compute {
    const eni_law *laws; /* (nlaws) of the first ranks, the last one of all others, too; none: no time */
    int32_t nlaws;
    const eni_slowdown *slow; /* (nslow) */
    int nslow;
} eni_sim_compute;

/* How long a server works on a message, one at a time: what its law gives, and a time for each byte of payload. */
typedef struct eni_sim_service {
    const eni_law *of_shard; /* (nshards) NULL: no time */
    double ns_per_byte;
} eni_sim_service;

/* A message takes latency + size/rate, and queues behind others on the sender's and on the receiver's link:
 * each is FIFO per direction, so what many workers send to one server arrives one after the other (in-cast).
 * A collective takes as long as a ring of its ranks and occupies its group for that time.
 *
 * Links may differ, and nodes (ranks, then shards) may share one to all others, as the ranks of a machine do. The latency is
 * the larger of those of the two links. */
typedef struct eni_sim_network {
    /* (nlinks) of the nodes, then shared ones; fewer: the last one is that of all other nodes, too; none: all arrives at once */
    const eni_net_link *links;
    int32_t nlinks;
    const int32_t *
        shared; /* (nodes) index of the link to nodes that have another one here; a node's own: its own index */
} eni_sim_network;

/* The assignment of micro-batches. FIXED: micro-batch t * W + rank in step t; CLAIM: the next one of the
 * global order. AUTO: CLAIM for a strategy with a store and without EN_SYNCHRONOUS, else FIXED, because the
 * ranks then make the same number of collective calls. */
enum { ENI_SIM_AUTO = 0, ENI_SIM_FIXED = 1, ENI_SIM_CLAIM = 2 };

/* The recorded order of a run on real ranks. */
typedef struct eni_sim_order {
    const eni_arrivals *arrivals; /* (nshards) */
    /* The micro-batches that rank r computed, if the strategy claims: from first[r] up to first[r + 1]. */
    const double *batches;
    const size_t *first; /* (nranks + 1) */
} eni_sim_order;

enum {
    ENI_SIM_STEP = 1,
    ENI_SIM_PUSH,
    ENI_SIM_REPLY,
    ENI_SIM_COLL,
    ENI_SIM_SENDRECV,
    ENI_SIM_FINISHED,
    ENI_SIM_TAKEN /* what a store has made of the PUSH before; with traces_taken, and not in log_sha256 */
};

/* One line of the event log, which is in order of time. */
typedef struct eni_sim_event {
    int64_t at_ns;
    uint32_t type;   /* ENI_SIM_* */
    int32_t rank;    /* its rank; COLL: the last to join */
    int32_t peer;    /* PUSH, REPLY: shard, or -1 - rank of a store on a rank; SENDRECV: the sender */
    uint32_t bucket; /* STEP, FINISHED: 0 */
    uint64_t clock;  /* STEP: step; PUSH, REPLY: the client's clock on the partition; COLL: op */
    /* STEP: micro-batch; PUSH: of the partition before; TAKEN: after; REPLY: of the weights sent */
    uint64_t version;
    uint64_t base; /* PUSH: of the weights that the gradient was computed on */
    double weight; /* TAKEN: with which on_push absorbed it; NAN: it did not */
} eni_sim_event;

/* A rank has ended a step, as a line of metrics-RANK.jsonl has it (rank/record.h). */
typedef struct eni_sim_step {
    struct eni_sim *sim;
    int32_t rank;
    uint64_t step, micro_batch; /* its first one */
    uint64_t samples, nsamples; /* of all ranks after it, as far as this one knows; its own */
    int64_t begin_ns, end_ns, send_ns, wait_ns, update_ns; /* the rest is computing */
    uint64_t version, base_version, payload_bytes;
    double staleness;
    float lr;
} eni_sim_step;

enum { ENI_SIM_RANKS_MAX = 1000000 };

/* Pointers are borrowed during the run. Zero is a default where the comment says so. */
typedef struct eni_sim_config {
    const en_strategy *strategy;
    const eni_options *options; /* NULL: all defaults of the strategy */
    eni_hook_guard *hooks;      /* notified of every hook (plugin/hook.h); NULL: not watched */
    const eni_sim_problem *problem;
    int32_t
        nranks; /* at most ENI_SIM_RANKS_MAX; 1,024 with EN_STORE_ON_RANKS, because each store knows each rank */
    int32_t nshards;       /* 0: 1 */
    int32_t local_size;    /* ranks per (virtual) machine; 0: all on one */
    const int32_t *groups; /* (nranks) run/rank_groups.h, for EN_USES_GROUPS; NULL: the ranks of a machine */
    uint64_t seed;
    uint64_t micro_batches;         /* the budget, over all ranks */
    uint64_t accumulate;            /* micro-batches per step, averaged by a rank alone in the world; 0: 1 */
    int assign;                     /* ENI_SIM_AUTO, .. */
    uint64_t bucket_cap_bytes;      /* 0: 25 MiB */
    const eni_optimizer *optimizer; /* NULL: sgd */
    eni_hyper hyper;
    eni_schedule schedule;
    eni_sum_order sum_order;
    eni_sim_compute compute;
    eni_sim_network network;
    eni_sim_service service;
    /* The virtual times at which a rank joins (0: from the beginning) and leaves, after the step that it is
     * in then (INT64_MAX: at the end); rank 0 does neither. NULL: none does. Only for ranks that claim, with
     * a store on servers. */
    const int64_t *join_ns, *leave_ns; /* (nranks) */
    const eni_sim_order *order; /* NULL: as virtual time has it. Needs EN_STORE_ON_SERVERS, without faults */
    uint64_t max_events; /* a run that has not ended by then is stuck; 0: 100 million without a gradient */
    void (*trace)(void *user, const eni_sim_event *event); /* NULL: none */
    void *trace_user;
    bool traces_taken; /* TAKEN, too */
    /* Called with the model that `eval` of the strategy names (count), at the start, after each eval_every samples
     * (0: none) and at the end. Anything but EN_OK ends the run with that status. NULL: nobody evaluates. */
    en_status (*evaluate)(void *user, uint64_t samples, int64_t virtual_ns, const float *param);
    void *evaluate_user;
    uint64_t eval_every;
    /* Called after each step of each rank. Anything but EN_OK ends the run with that status. NULL: nobody records. */
    en_status (*stepped)(void *user, const eni_sim_step *step);
    void *stepped_user;
    float *weights_out; /* (count): the model that `eval` names, at the end; NULL: not wanted */
    const struct eni_sim_faults *faults; /* world.h; NULL: nothing fails. Needs EN_STORE_ON_SERVERS */
    const void *faults_config;           /* for `faults`: an eni_fault_plan of runtime/sim/faults/faults.h */
} eni_sim_config;

typedef struct eni_sim_rank_result {
    uint64_t steps, samples;   /* computed */
    uint64_t sent, recv;       /* payload bytes */
    uint64_t pushes, holds;    /* per partition */
    uint64_t applied, dropped; /* samples that pushes covered, per partition */
    uint64_t clocks_ahead;     /* the most by which it was ahead when it was answered */
    eni_histogram staleness;   /* of its pushes while all ranks were active */
} eni_sim_rank_result;

typedef struct eni_sim_result {
    char weights_sha256[ENI_DIGEST_HEX]; /* of the model that `eval` names, flat */
    char log_sha256[ENI_DIGEST_HEX];     /* of the event log */
    int64_t virtual_ns;
    uint64_t events;
    uint64_t updates;                         /* optimizer steps and touches at the stores, per partition */
    uint64_t parts;                           /* partitions of the stores */
    uint64_t pushes, holds, applied, dropped; /* as above, over all ranks */
    uint64_t clocks_ahead;
    uint64_t sent, recv;
    eni_histogram staleness;
    bool has_equal_ranks; /* every rank's param has the same bytes */
    bool is_unchanged;    /* no rank's weights have changed, though gradients were not 0 */
    bool has_theory;
    en_theory theory; /* of rank 0's strategy */
    int32_t nranks;
    eni_sim_rank_result *rank; /* (nranks) */
    int32_t nstuck;
    char stuck[512]; /* the first few ranks that wait, and for what */
} eni_sim_result;

/* Runs until every rank has finished and the last message has arrived. Fills *result_out, which must be passed
 * to eni_sim_result_fini also after a failure.
 *
 * EN_ETIMEOUT, logged: ranks that can never finish (named in result_out->stuck); EN_EMISMATCH: ranks made
 * different collective calls; EN_EINVAL: a configuration that cannot run; EN_ENOMEM; or what a hook
 * returned. Blocks for as long as the gradients take. */
en_status eni_sim_run(const eni_sim_config *config, eni_sim_result *result_out);

/* While the run goes on, in `stepped`: the model that `eval` of the strategy names, into flat_out (count). */
void eni_sim_model(struct eni_sim *sim, float *flat_out);

/* Safe on zeroed memory. */
void eni_sim_result_fini(eni_sim_result *result);

#endif
