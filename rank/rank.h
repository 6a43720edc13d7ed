/* rank.h - one rank of a run: its identity, the training that all ranks have agreed on, the exchange of
 * vectors, records and checkpoints. Models, data sets and devices belong to its trainer (trainer.h).
 *
 *     rank.c        alive, deadlines, the time since the start
 *     run.h         the run, call by call: read this first
 *     step.h        one training step
 *     join.c        token, leader, control connection: who takes part; and how it leaves, in good order or not
 *     exchange.c    arena, collectives, store client, the strategy's host: the exchange of vectors
 *     save.h        checkpoints, and resuming from one
 *     records.c     records during the run: opens record.h and curve.h
 *     snapshot.h    the models of the curve
 *     straggler.h   makes a rank slow
 *     result.c      the report at the end; run_facts.h has the members that simulated runs have too
 *     shutdown.h    how the user, or a death, ends it
 *
 * Opened in stages, because the trainer is opened in between:
 *
 *     eni_rank_join -> trainer.open -> eni_rank_connect -> trainer.connect -> eni_rank_start -> trainer.start
 *
 * One compute thread owns all of it. Other threads are inside their objects: the control connection, ZeroMQ's
 * I/O, the progress thread of a TCP ring, the thread that writes a checkpoint. */
#ifndef RANK_RANK_H
#define RANK_RANK_H

#include "core/trace.h"
#include "data/plan.h"
#include "entrain/model.h"
#include "rank/checkpoint.h"
#include "rank/curve.h"
#include "rank/rank_options.h"
#include "rank/record.h"
#include "rank/shutdown.h"
#include "rank/snapshot.h"
#include "rank/step.h"
#include "rank/trainer.h"
#include "runtime/client/client.h"
#include "runtime/collective/coll.h"
#include "runtime/collective/mesh.h"
#include "runtime/control/leader.h"
#include "runtime/control/member.h"
#include "runtime/host/host.h"
#include "runtime/net/host_info.h"

/* The training, the same on all ranks. */
typedef struct eni_job {
    const en_strategy *strategy;
    eni_options *options;
    eni_hook_guard *hooks; /* of this process: notified of the strategy's hooks; NULL: not watched */
    en_schema schema;
    eni_plan plan;
    eni_buckets *buckets;
    const eni_optimizer *optimizer;
    eni_hyper hyper;
    eni_param_groups *groups; /* hyper.groups, owned; NULL: none */
    eni_schedule schedule;
    eni_rate_points *points; /* schedule.points, owned; NULL: none */
    double clip_norm;        /* of the mean gradient; 0: any */
    bool is_claiming;        /* the next micro-batch is claimed, not assigned */
    int64_t accumulate;
    double momentum, weight_decay; /* as given: `hyper` has them in float */
    uint64_t seed;
    eni_order order;
    float *init;  /* --init, until the exchange has it; NULL: none */
    float *state; /* (schema.nstate) running statistics: the first, then those judged last; NULL: none */
    float *
        states; /* (plan.world, schema.nstate) with is_mean or has_own, of all ranks or micro-batches; else NULL */
    const char *bn_stats;        /* --bn-stats */
    bool is_mean, is_recomputed; /* of it */
    bool has_own;                /* the state has tensors of kind EN_TENSOR_OWN */
    char schema_sha256[ENI_DIGEST_HEX], data_sha256[ENI_DIGEST_HEX];
    char init_sha256[ENI_DIGEST_HEX], order_sha256[ENI_DIGEST_HEX], points_sha256[ENI_DIGEST_HEX];
} eni_job;

/* Ranks that exchange without a server: all of them, or some by themselves. */
typedef struct eni_rank_group {
    eni_world_info info; /* nranks, rank and peers of it; nranks 0: the group does not exist */
    eni_peer *peers;     /* copies for some of the ranks, which own nothing */
    eni_arena **arenas;  /* (nranks), or NULL */
    bool is_borrowing;   /* arenas are mapped by the group of all ranks */
    int *sockets;        /* (nranks), or NULL; owned by coll once it is open */
    eni_coll_choice choice;
    eni_coll *coll; /* NULL: a group of one, or not needed by the strategy */
} eni_rank_group;

/* The exchange of vectors. */
typedef struct eni_exchange {
    eni_exchange_options asked;
    eni_shaper *shaper;
    eni_arena *arena;
    /* (accumulate) flat gradients of one step's micro-batches, in a process that plays several ranks; else NULL */
    float **micros;
    /* group: of this rank, by default this host's; leaders: the first ranks of groups */
    eni_rank_group all, group, leaders;
    eni_net *net;
    eni_endpoints *endpoints; /* of the servers, as of now */
    eni_client *client;
    eni_host *host; /* the strategy's */
} eni_exchange;

/* A step that is taken but not recorded yet: its loss is on its way from a GPU. */
typedef struct eni_deferred_step {
    bool is_there;
    eni_step step; /* except loss and correct */
    int set;       /* number of its scores (trainer.score) */
    double loss;   /* sum over the samples */
    uint64_t correct;
    uint64_t plan_step; /* whose samples they are (data/plan.h) */
} eni_deferred_step;

/* Sums of this rank over the whole run, for result.json. */
typedef struct eni_stats {
    eni_tally sum;
    int64_t data_ns, compute_ns, send_ns, wait_ns, update_ns, step_ns;
    int64_t hidden_ns; /* of compute_ns: an exchange was under way meanwhile (eni_host_counters) */
    int64_t clock_begin_ns, clock_end_ns; /* when all began together (0: not yet); when the last had ended */
    int64_t train_ns, eval_ns;
    int64_t startup_ns;             /* eni_startup_ns at the end of this process's first step; 0: not yet */
    int64_t before_ns;              /* on the training clock when its own begins */
    uint64_t begin_steps;           /* `sum.steps` when this process began; the *_ns are of those since */
    eni_moved moved;                /* by training steps alone */
    bool has_diverged;              /* a loss was not finite: logged once */
    double first_loss, newest_loss; /* of this process's first step, and of the one recorded last: means */
} eni_stats;

/* Records during the run. */
typedef struct eni_records {
    eni_record_options asked;
    eni_stats stats;
    eni_deferred_step deferred;
    eni_trace *trace;
    eni_recorder *recorder;
    eni_tensorboard *tensorboard; /* rank 0, with --tensorboard */
    eni_bar bar;
    uint64_t shown_every; /* steps between the scores that all ranks send for rank 0's display; 0: none */
    eni_curve *curve;
    eni_looks looks;
    int out_fd;         /* rank 0: the folder of --out, which is this run's alone (config/outputs.h); -1 */
    bool has_result;    /* result.json is written */
    bool is_concluding; /* training is over: remaining evaluations may be omitted */
} eni_records;

/* Checkpoints: future ones, and the one that this run resumes. */
typedef struct eni_saving {
    eni_save_options asked;
    struct eni_saver *saver; /* save.h; NULL without --checkpoint-every */
    eni_checkpoint past;     /* is_resumed: the one that this run resumes */
    char past_path[1024];
    bool is_resumed;
    uint64_t first_step, first_micro; /* where this process begins */
    uint64_t carried;                 /* samples of the past that no rank's stats have */
    uint64_t nwritten, nfailed;       /* rank 0: checkpoints of this process */
    char last_path[1100];             /* of the last one that was written; "" */
} eni_saving;

typedef struct eni_rank_token {
    eni_token value;
    char path[512]; /* written by us as leader; removed at the end */
    int lock;       /* on it while we live; -1: none */
} eni_rank_token;

struct eni_rank {
    eni_join_options asked;
    const char *version;    /* of this program, for records */
    eni_shutdown *shutdown; /* how the user or a death ends it; set before the rank is opened */
    /* EN_OK, or the reason for which every wait ends: EN_EINTR of `shutdown`, else the member's. */
    atomic_int ended;
    int abort_fd; /* of `shutdown`: readable once every wait is to end */

    /* who takes part */
    char host[ENI_HOST_MAX], host_id[ENI_HOST_ID_MAX];
    eni_rank_token token;
    eni_leader *leader; /* rank 0 of a run without servers */
    eni_mesh mesh;
    eni_member *member;
    const eni_world_info *info;
    en_world world;      /* with --max-workers nranks is the maximum */
    int32_t nfirst;      /* ranks that the run begins with */
    bool is_newcomer;    /* it joins a run in progress, and then knows its rank */
    int32_t *groups;     /* (world.nranks) run/rank_groups.h; NULL: not joined yet */
    bool has_own_groups; /* they are not the ranks of each host */

    eni_job job;
    eni_exchange exchange;
    eni_trainer trainer;
    eni_records records;
    eni_saving saving;
    uint64_t step;  /* in progress */
    bool has_begun; /* training has */
};

/* Whether weights live on servers, with rank 0 as a client; and the others, or the first of every host. */
static inline bool eni_rank_has_store(const eni_rank *self)
{
    return (self->job.strategy->flags & EN_STORE_ON_SERVERS) != 0;
}

/* Whether hosts meet at the servers, and ranks only inside their host. */
static inline bool eni_rank_has_leaders(const eni_rank *self)
{
    return (self->job.strategy->flags & EN_LEADERS_ARE_CLIENTS) != 0;
}

/* Whether EN_GROUP and EN_LEADERS exist. */
static inline bool eni_rank_uses_groups(const eni_rank *self)
{
    return (self->job.strategy->flags & EN_USES_GROUPS) != 0;
}

/* --max-workers: ranks come and go, and meet only at the store. */
static inline bool eni_rank_has_seats(const eni_rank *self)
{
    return self->nfirst < self->world.nranks;
}

/* A flat vector of this rank, by its slot in the arena. */
static inline float *eni_rank_flat(const eni_rank *self, uint32_t slot)
{
    return eni_arena_at(self->exchange.arena, slot, 0);
}

/* Whether there is nobody to exchange with. */
static inline bool eni_rank_is_alone(const eni_rank *self)
{
    return self->world.nranks == 1 && !eni_rank_has_store(self);
}

/* ---- rank.c ---- */

/* EN_OK while the run may go on; EN_EINTR when the user has waited long enough for its end; EN_EPEER and such
 * from the control plane. Cheap; any thread; `rank` is the eni_rank. */
en_status eni_rank_alive(void *rank);

/* The deadline of an answer from a leader that answers within `timeout_ns`, once it is back. */
int64_t eni_rank_answer_by(const eni_rank *self, int64_t timeout_ns);

/* Before anything is opened. */
void eni_rank_init(eni_rank *self);

/* Nanoseconds since `begin_ns`, when a launcher began this run; 0: since this process started (/proc), or 0. */
int64_t eni_startup_ns(int64_t begin_ns);

/* For every bucket, one after the other: a collective of which `like` has all but bucket, offset and count (a
 * NULL group has nobody); a call of the store, all under way at once, from and to slots of the arena. */
en_status eni_rank_collect(eni_rank *self, eni_coll *coll, const eni_coll_op *like);
en_status eni_rank_call_store(eni_rank *self, uint32_t message, uint32_t kind, uint32_t from, uint32_t to);

/* ---- join.c ---- */

/* Listens, joins, fills host .. world. The leader compares the settings that must be equal on all ranks:
 * EN_EMISMATCH, logged with both values. Blocks until all are there, --join-timeout at most. */
en_status eni_rank_join(eni_rank *self);

/* The cause behind `st`, with which the run has ended on this rank: EN_EPEER for a death, EN_EINTR if the
 * user stopped it. Waits for the leader's report for two seconds at most. */
en_status eni_rank_cause(eni_rank *self, en_status st);

/* Before anything is closed: if this rank is the first to know the cause, reports it; ends our waits. */
void eni_rank_give_up(eni_rank *self, en_status st);

/* As the leader, removes the token: no rank of this run looks for it any more, and one of the same process' next run must not find
 * it. Before the last gather, without which no rank leaves. */
void eni_rank_close_door(const eni_rank *self);

/* Says goodbye, and as the leader waits for the others', and frees its port. */
en_status eni_rank_bye(eni_rank *self);

/* Closes the control connection, the listening sockets, and the leader with its token. */
void eni_rank_leave(eni_rank *self);

/* ---- exchange.c ---- */

/* After the join, with an arena: opens groups and the client, and starts all ranks from rank 0's weights. */
en_status eni_rank_connect(eni_rank *self);
/* For a newcomer ready for its first step: gets the present weights; the store counts it from then on. */
en_status eni_rank_come_in(eni_rank *self);
/* Once the trainer is connected: opens the strategy, restores its state, shares what can be shared. */
en_status eni_rank_start(eni_rank *self);
void eni_exchange_close(eni_rank *self);

/* The costs of the exchange of a bucket (host/costs.h); all ranks together, before the first step or with
 * gradients that are all zero. `rank` is the eni_rank. */
en_status eni_exchange_measure(void *rank, eni_costs *costs_out);

enum { ENI_SLOT_EVAL = ENI_ARENA_NSLOTS - 1 }; /* of the arena: a snapshot (step.h) */

/* ---- records.c ---- */

/* Once the trainer is open, in a folder of this run's own: opens all records, and rank 0's metrics; the other
 * ranks' once rank 0's weights are here, because the folder is rank 0's. EN_EIO, logged. */
en_status eni_records_open(eni_rank *self);
en_status eni_records_open_metrics(eni_rank *self);

/* Before the join: the value for eni_records.shown_every, as far as this rank shows anything. */
uint64_t eni_records_shown_every(const eni_rank *self);

/* With --eval-first, or a target, the initial weights are the first point of the curve. */
en_status eni_records_point_zero(eni_rank *self);

/* At the end of a run that ends well: flushes, so that a full disk shows. The curve is result.c's. */
en_status eni_records_close(eni_rank *self);

/* Frees all that is still open: of a run that has failed. Nothing is logged. */
void eni_records_free(eni_rank *self);

/* ---- result.c ---- */

/* Gathers all figures; rank 0 writes result.json and prints. A stopped run evaluates nothing. */
en_status eni_result(eni_rank *self);

/* Removes an earlier run's results from --out: they would pass for ours if we were killed. */
void eni_result_clear(const eni_rank *self);

/* Writes what rank 0 knows of a run that ended early: who took part, and why it ended. Does nothing on other
 * ranks, without --out, or when there is a result already. Any thread. */
void eni_result_cut_short(const eni_rank *self, const char *exit, const char *cause);

#endif
