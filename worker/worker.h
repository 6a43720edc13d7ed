/* worker.h - one rank of a run: everything it holds, in the order in which it is opened.
 *
 *     main.c      flags, signals, exit code
 *     worker.c    opens what is below, runs, closes it in reverse
 *     inputs.c    what it can find wrong before it meets anybody
 *     join.c      token, leader, control connection: who takes part
 *     open_gpu.c     the same for a device that is a GPU
 *     exchange.c     arena, collectives, store client: how vectors travel
 *     local_group.c  collectives inside one of several hosts
 *     warmup.h    computes before the clock begins
 *     train.c     the steps: read this first
 *     step_gpu.c  the same on a GPU; vectors.h, prefetch.h, scores.h, graph.h, scaler.h
 *     share.c     the data set, once a host
 *     startup.c   how long the first step took to come
 *     check.c     `entrain check` in place of training
 *     curve.c     snapshots, and which are evaluated
 *     evaluate.c  on which set, and with what
 *     save.h      checkpoints, and how a run goes on from one
 *     result.c    what is reported at the end
 *
 * One compute thread owns all of it. Other threads are inside their objects: the loader, the control
 * connection, ZeroMQ's I/O, the progress thread of a TCP ring. */
#ifndef WORKER_WORKER_H
#define WORKER_WORKER_H

#include "config/config.h"
#include "core/trace.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "data/plan.h"
#include "entrain/model.h"
#include "ops/device.h"
#include "runtime/client/client.h"
#include "runtime/client/endpoints.h"
#include "runtime/collective/coll.h"
#include "runtime/collective/gpu_choose.h"
#include "runtime/collective/mesh.h"
#include "runtime/control/leader.h"
#include "runtime/control/member.h"
#include "runtime/host/host.h"
#include "runtime/net/host_info.h"
#include "worker/board.h"
#include "worker/checkpoint.h"
#include "worker/curve.h"
#include "worker/ending.h"
#include "worker/progress.h"
#include "worker/record.h"
#include "worker/straggler.h"

/* Bytes that this rank's transports have moved. */
typedef struct eni_moved {
    uint64_t payload_sent, payload_received; /* the algorithm's own */
    uint64_t wire, shm;
} eni_moved;

/* Sums of this rank over the whole run, for result.json. */
typedef struct eni_tally {
    uint64_t steps, samples;             /* computed by this rank */
    uint64_t last_samples, last_correct; /* of the last epoch */
    uint64_t overflown;                  /* fp16: samples whose gradient did not count (scaler.h) */
    double last_loss;                    /* sum over the samples of the last epoch */
    int64_t data_ns, compute_ns, send_ns, wait_ns, update_ns, step_ns;
    int64_t hidden_ns;      /* of compute_ns: an exchange was under way behind it (eni_host_counters) */
    int64_t clock_begin_ns; /* when all began together; 0: not yet */
    int64_t clock_end_ns;   /* when the last rank had ended */
    int64_t train_ns, eval_ns;
    int64_t startup_ns;     /* eni_startup_ns at the end of this process's first step; 0: there was none */
    int64_t before_ns;      /* on the training clock of the runs that this one goes on from */
    uint64_t begin_steps;   /* `steps` when this process began; the *_ns are of those since */
    eni_moved moved;        /* by training steps: without the broadcast of the start and without snapshots */
    int has_diverged;       /* a loss was not finite: said once */
} eni_tally;

/* The ranks of this host by themselves: local_group.c. */
typedef struct eni_local_group {
    eni_world_info info; /* nranks, rank and peers of this host; nranks 0: there is no such group */
    eni_peer *peers;     /* (nranks) copies, of which nothing is owned */
    eni_arena **arenas;  /* (nranks), or NULL */
    int *sockets;        /* (nranks), or NULL; owned by coll once it is open */
    eni_coll_choice choice;
    eni_coll *coll; /* NULL: this rank is alone on its host, or hosts do not matter to the strategy */
} eni_local_group;

typedef struct eni_share eni_share;

typedef struct eni_worker {
    const eni_config *config;
    char **argv;
    int argc;
    const char *version;    /* of this program: all ranks' must be equal */
    const char *plugin_dir; /* strategies and devices */
    eni_ending *ending;     /* how the user or a death ends it; set before eni_worker_run */
    int abort_fd;           /* of `ending`: readable once every wait is to end */

    /* what is trained: the same on all ranks */
    const en_strategy *strategy;
    eni_options *options;
    en_schema schema;
    eni_dataset *dataset;
    eni_share *share; /* of it, with the other ranks of this host, until all have joined; NULL: another one's, or none */
    eni_plan plan;
    eni_buckets *buckets;
    const eni_optimizer *optimizer;
    eni_hyper hyper;
    eni_schedule schedule;
    float *init;     /* --init, until the exchange has it; NULL: none */
    int is_claiming; /* the next micro-batch is claimed, not assigned */
    int64_t accumulate;

    /* how it computes */
    int threads;
    eni_device device;
    en_model *model;
    struct eni_judge *judge; /* evaluate.c; NULL: `model` itself */

    /* who takes part */
    char host[ENI_HOST_MAX], host_id[ENI_HOST_ID_MAX];
    eni_token token;
    char token_path[512]; /* written by us as leader; removed at the end */
    int token_lock;       /* on it while we live; -1: none */
    int out_fd;           /* rank 0: the folder of --out, which is this run's alone (config/outputs.h); -1 */
    eni_leader *leader;   /* rank 0 of a run without servers */
    eni_mesh mesh;
    eni_member *member;
    const eni_world_info *info;
    en_world world;

    /* how vectors travel */
    eni_shaper *shaper;
    eni_arena *arena;
    eni_arena **arenas; /* (nranks), or NULL */
    int *sockets;       /* (nranks), or NULL; owned by coll once it is open */
    eni_coll *coll;
    eni_coll_choice choice;
    eni_local_group local;
    eni_net *net;
    eni_endpoints *endpoints; /* of the servers, as of now */
    eni_client *client;
    eni_waits waits; /* the strategy's, told to the member */
    eni_host *strategy_host;

    /* the run */
    eni_loader *loader;
    float *
        *micro_grads; /* (accumulate) flat gradients of one step's micro-batches; NULL: one, in the arena */
    /* on a GPU; NULL on the host */
    struct eni_gpus *gpus;       /* gpus.h */
    eni_gpu_choice gpu;          /* where vectors lie */
    struct eni_vectors *vectors; /* vectors.h */
    struct eni_prefetch *prefetch;       /* prefetch.h */
    struct eni_scores *scores;   /* scores.h */
    struct eni_graphs *graphs;   /* graph.h */
    struct eni_evaluation *evaluation[ENI_SPLITS]; /* models/evaluate.h, by set; rank 0 of a run on GPUs */
    struct eni_scaler *scaler;   /* scaler.h; NULL but with fp16 */
    en_event *lag[2];             /* of a slow rank: step.h */
    int score_set;               /* of the step in progress */
    uint64_t step;               /* in progress */
    int is_stuck;                /* it does not answer: what it may still write is not freed */
    eni_late_step late;
    eni_straggler straggler;
    eni_trace *trace;
    eni_recorder *recorder;
    eni_board *board; /* rank 0, with --tensorboard */
    eni_progress progress;
    eni_curve *curve;
    struct eni_saver *saver; /* save.h; NULL without --checkpoint-every */
    eni_checkpoint past;     /* is_resumed: what this run goes on from */
    char past_path[1024];
    int is_resumed;
    uint64_t first_step, first_micro; /* where this process begins */
    uint64_t carried;                 /* samples of the past that no rank's tally has */
    int has_result; /* result.json is written */
    int is_concluding; /* training is over: what is left to evaluate may be left out */
    char schema_sha256[ENI_DIGEST_HEX], data_sha256[ENI_DIGEST_HEX];
    char init_sha256[ENI_DIGEST_HEX], order_sha256[ENI_DIGEST_HEX];
    eni_tally tally;
    int has_begun; /* training has */
} eni_worker;

/* Weights live on servers. Then rank 0 is a client of theirs; the others are too, or the first of every host. */
static inline int eni_worker_has_store(const eni_worker *w)
{
    return (w->strategy->flags & EN_STORE_ON_SERVERS) != 0;
}

/* Hosts meet at the servers, and ranks inside their host only. */
static inline int eni_worker_has_leaders(const eni_worker *w)
{
    return (w->strategy->flags & EN_LEADERS_ARE_CLIENTS) != 0;
}

/* Weights and gradients stay on a GPU (vectors.h). */
static inline int eni_worker_is_on_gpu(const eni_worker *w)
{
    return w->gpu.vectors == ENI_VECTORS_ON_GPU;
}

/* EN_OK while the run may go on; EN_EINTR when the user has waited long enough for its end; EN_EPEER and such
 * from the control plane. Cheap; any thread; `worker` is the eni_worker. */
en_status eni_worker_alive(void *worker);

/* worker.c: the whole life of a rank. Returns what main turns into the exit code. */
en_status eni_worker_run(eni_worker *worker);

/* worker.c: what must be done before the process ends without its compute thread, which is inside a long
 * kernel. On any thread; `code` is the exit code to come. */
void eni_worker_abandon(eni_worker *worker, int code);

/* refuse.c: EN_EINVAL, logged, for a flag that only a GPU could follow where there is none. */
en_status eni_refuse_without_gpu(const eni_config *config);

/* inputs.c: the files and folders that the command names; reads --init into `init`. EN_EINVAL and what
 * eni_weights_load says. */
en_status eni_inputs_check(eni_worker *w);

/* join.c: listens, joins, fills host .. world. `key-values` are built here from the config and the schema. */
en_status eni_worker_join(eni_worker *worker);
void eni_worker_leave(eni_worker *worker);

/* local_group.c: opens it if this host has two ranks or more; copies the leader's weights to the others; how
 * many samples a step has on this host (fixed assignment). */
en_status eni_local_group_open(eni_worker *worker, eni_coll_trace trace, int64_t deadline);
en_status eni_local_group_spread(eni_worker *worker);
en_status eni_local_group_samples(const eni_worker *worker, uint64_t step, uint64_t *samples_out);
void eni_local_group_close(eni_worker *worker);

/* open_gpu.c; on a host device nothing happens. open: after the join, this rank's GPU and the model on it.
 * loader, open_feed: before and after the loader starts. close: once nothing is under way there, before the memory
 * that the GPU reaches. */
en_status eni_gpu_open(eni_worker *worker);
void eni_gpu_loader(eni_worker *worker, eni_loader_options *options);
en_status eni_gpu_open_prefetch(eni_worker *worker);
void eni_gpu_close(eni_worker *worker);

/* exchange.c: --allreduce as ENI_COLL_*, and why the command forbids shared memory; NULL: it does not. */
int eni_exchange_asked(const eni_config *config);
const char *eni_exchange_no_shm(const eni_config *config);

/* exchange.c */
en_status eni_exchange_open(eni_worker *worker);
void eni_exchange_close(eni_worker *worker);

/* exchange.c: what the exchange of a bucket takes (host/costs.h); all ranks together, before the first step or
 * with gradients that are all zero. `worker` is the eni_worker. */
en_status eni_exchange_measure(void *worker, eni_costs *costs_out);

/* train.c: from equal weights on all ranks to the end of the budget. */
en_status eni_train(eni_worker *worker);

/* The weights that the strategy names, copied into slot ENI_SLOT_EVAL of the arena; with EN_EVAL_MEAN all
 * ranks must call it at the same step. */
enum { ENI_SLOT_EVAL = ENI_ARENA_NSLOTS - 1 };
en_status eni_snapshot(eni_worker *worker);

/* train.c: nanoseconds on the training clock so far, those before a resume included. */
int64_t eni_train_clock(const eni_worker *worker);

/* train.c: the last step is recorded, and the arena has what a GPU has: before a checkpoint. */
en_status eni_train_settle(eni_worker *worker);

/* share.c: opens `dataset`, from the rank of this host that has read it or, as the first, for all; errors as
 * eni_dataset_open, and EN_EINTR. close: nobody will ask any more; NULL is fine. */
en_status eni_share_open(eni_worker *worker, const eni_data_options *options);
void eni_share_close(eni_share *share);

/* startup.c: nanoseconds since `begin_ns`, when a launcher began this run; 0: none did, and it is since this process
 * started, on a grid of 10 ms, or 0 where /proc does not say. */
int64_t eni_startup_ns(int64_t begin_ns);

/* train.c: what all transports have moved since they were opened. */
eni_moved eni_count_moved(const eni_worker *worker);

/* evaluate.c, at rank 0. The set that the curve is of: ENI_HOLDOUT where there is one, else ENI_TEST. */
int eni_evaluate_curve_set(const eni_worker *worker);
/* On a GPU: takes what evaluations need, before step 0. Nothing to do on the host. */
en_status eni_evaluate_open(eni_worker *worker);
/* Loss and accuracy of `flat` on the set of the curve, and on the test set; each an eni_evaluate. On a host, with all
 * its cores. */
en_status eni_evaluate_curve(void *worker, const float *flat, double *loss_out, double *accuracy_out);
en_status eni_evaluate_test(void *worker, const float *flat, double *loss_out, double *accuracy_out);
void eni_evaluate_close(eni_worker *worker); /* before the device */

/* check.c: in place of training: known sums through the exchange, and a line on stdout. */
en_status eni_check(eni_worker *worker);

/* result.c: gathers everybody's figures; rank 0 writes result.json and prints the last lines. After a wish to
 * end early nothing is evaluated. */
en_status eni_result(eni_worker *worker);

/* result_rank.c: this rank's figures as JSON, to be freed with free(); NULL: no memory. */
char *eni_rank_report(const eni_worker *worker);

/* result.c: takes away what an earlier run left in --out: it would pass for ours if we were killed. */
void eni_result_clear(const eni_worker *worker);

/* result.c: what rank 0 can say of a run that has no such end: who took part, and why it ended. Nothing on
 * other ranks, without --out, or when there is a result already. Any thread. */
void eni_result_cut_short(const eni_worker *worker, const char *exit, const char *cause);

#endif
