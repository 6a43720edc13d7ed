/* strategy.h - the contract of a synchronisation strategy: gradients in, weights out.
 *
 * A strategy is one .c file with two halves and no library behind it:
 *
 *     cc -shared -fPIC -I<include> mine.c -o mine.so        entrain run --strategy=./mine.so:period=8
 *
 * Worker half. Each rank computes the gradient of the mean loss over its micro-batch, bucket by bucket, and calls
 * submit(bucket) as soon as a bucket is complete, while backward still runs. finish(bucket) comes later, in the order of
 * submit; after it, bucket->param has the weights of the next step. Hooks run on the rank's compute thread (in virtual time:
 * its fiber), one at a time, and may call the host only there. Host operations return a request at once and the host
 * progresses them; only wait() waits.
 *
 * Store half. Runs in psd, one thread per shard, or with EN_STORE_ON_RANKS beside every worker. Its unit is the partition
 * (bucket x shard). Hooks see host memory and never block.
 *
 * The plugin has no clock, random generator, thread, socket or file of its own: the host provides them. So one binary runs on
 * sockets, on a GPU and in virtual time, and a run can be replayed. Vectors change only through host calls, in call order; a
 * strategy holds handles, never tensor pointers.
 *
 * The host owns everything that it passes to a hook. Partitions and messages are valid inside the hook; buckets, the world and
 * texts for the run. Vectors hold float32, counts are in elements, times in nanoseconds.
 *
 * Errors. A hook returns EN_OK, or the reason to end the run: the host names hook, rank, step and bucket. A call that breaks
 * the contract is logged, does nothing, and its hook fails with EN_EBUG; a request for something that this host does not
 * support (a group, a word) fails in the same way with EN_EINVAL. EN_EPEER (a peer died) and EN_EINTR (the run was asked to
 * end) come from the host; pass them up unchanged, since they are not errors of the strategy. The host keeps the deadlines too
 * (--peer-timeout).
 *
 * Growth: `abi` is the major version, `size` the minor. Signatures stay; tables and structs grow at their end only, and no
 * reader reads beyond the size that the writer stated: there a hook is NULL, a field 0. docs/write-a-strategy.md lists the
 * changes. */
#ifndef ENTRAIN_STRATEGY_H
#define ENTRAIN_STRATEGY_H

#include <stddef.h>
#include <stdint.h>

#include "entrain/option.h"
#include "entrain/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EN_STRATEGY_ABI 2u

typedef uint32_t en_vec; /* a handle of one bucket-sized vector of this rank, valid for the run; 0: none */
typedef uint64_t en_req; /* a handle of an operation in progress; 0: already done */

enum { EN_REQS = 4 }; /* requests that the host keeps for a strategy per bucket and step */

/* The payload of an exchange. Codecs may change the first two. A mean of EN_GRAD is weighted by the ranks' nsamples; a mean of
 * EN_DELTA (the change of the weights over some steps) or EN_WEIGHTS counts each rank once. */
enum { EN_GRAD = 1, EN_DELTA = 2, EN_WEIGHTS = 3 };

/* Collective operations. "Reduce" is the mean over the group, added in rank order. */
enum { EN_ALLREDUCE = 1, EN_REDUCE_SCATTER = 2, EN_ALLGATHER = 3, EN_REDUCE = 4, EN_BCAST = 5 };

/* The ranks that take part: all active ranks; the ranks of this host; and with EN_USES_GROUPS the group of this rank, and the
 * first ranks of all groups, which alone may use EN_LEADERS. --groups defines the groups; the default is one group per host, so
 * that EN_LOCAL is EN_GROUP. Every rank is in exactly one. */
enum { EN_WORLD = 0, EN_LOCAL = 1, EN_GROUP = 2, EN_LEADERS = 3 };
enum { EN_SERVERS = -1 }; /* call(): the psd shards; a rank >= 0 is the store inside that worker */

/* Strategy flags. */
enum {
    EN_STORE_ON_SERVERS = 1,    /* needs psd */
    EN_STORE_ON_RANKS = 2,      /* every worker runs the store half too */
    EN_LEADERS_ARE_CLIENTS = 4, /* only local rank 0 of each host is a client of the servers */
    EN_REPLICATED = 8, /* param is equal on all ranks after finish: one copy per host would suffice */
    EN_STATIC = 16,    /* the same host calls every step: a CUDA graph may contain them */
    /* One update per step of the whole world: fixed assignment of data, and the learning rate scales with the world
     * (--lr-scale). */
    EN_SYNCHRONOUS = 32,
    /* The store half never writes msg->data: the host may pass memory that it does not own, and saves a copy. */
    EN_PUSH_READ_ONLY = 64,
    /* param and the optimizer's state change only through mean_step, and plan does not narrow its range: the ranks of a host
     * may map one copy of both. lin, step, coll, sendrecv and call must not write param. */
    EN_SHARED_PARAMS = 128,
    /* A partition's weights change only when every active client has pushed to it, calls are answered with weights, only call()
     * writes param, from submit to finish, and never sends it: a client may map the store's own weights. */
    EN_ROUNDS = 256,
    EN_ALONE = 512, /* for a world of one rank only */
    /* EN_GROUP and EN_LEADERS are available besides EN_WORLD. Not with EN_STORE_ON_SERVERS, EN_LEADERS_ARE_CLIENTS or
     * EN_SHARED_PARAMS. */
    EN_USES_GROUPS = 1024,
    /* EN_SYNCHRONOUS is true only while every option has its default. With other values (a bound, say) an update is one
     * client's, which --lr-scale leaves alone; the assignment of data stays fixed. */
    EN_SYNCHRONOUS_BY_DEFAULT = 2048
};

/* The model that the paper evaluates. The host snapshots it and evaluates off the clock. EN_EVAL_MEAN averages ranks at the
 * same step, so a run with claimed micro-batches (--assign) refuses it. */
enum { EN_EVAL_PARAM = 0, EN_EVAL_STORE = 1, EN_EVAL_MEAN = 2, EN_EVAL_VEC = 3 };

/* Answers of on_pull to a held call. */
enum {
    EN_REPLY_WEIGHTS = 0, /* the partition's current weights */
    EN_REPLY_DATA = 1,    /* msg->data as the hooks left it */
    EN_HOLD = 2,          /* no answer yet: asked again after the next push, member or timer event */
    /* The same, but of the pushes only those count that change the partition's version, or its min_clock: a host with
     * thousands of held calls asks each of them once a round. */
    EN_HOLD_VERSION = 3,
    EN_HOLD_CLOCK = 4
};

typedef struct en_world {
    uint32_t size;  /* sizeof(en_world) as the host knows it */
    uint32_t epoch; /* of the membership */
    int32_t rank, nranks, local_rank, nlocal, nhosts;
    /* This rank's group, as the group's lowest rank; position in it; size of it; number of groups. */
    int32_t group, group_rank, ngroup, ngroups;
} en_world;

/* A tensor, or the part of it in a bucket. */
typedef struct en_param {
    uint32_t size;
    uint32_t kind; /* 0 weight; 1 buffer (batch-norm statistics: not reduced) */
    const char *name;
    uint64_t offset;     /* elements from the bucket's start */
    uint64_t count;      /* elements of the tensor in this bucket */
    uint64_t rows, cols; /* of the whole tensor, flattened to a matrix (low-rank codecs) */
} en_param;

/* A contiguous range of the flat parameter vector. Frozen before step 0; the same buckets in the same order on every rank.
 * Aligned to 64 bytes (256 on a GPU). */
typedef struct en_bucket {
    uint32_t size;
    uint32_t id; /* 0, 1, .. in the order of submit: the model's last layers first */
    uint32_t nparams;
    const en_param *params;
    uint64_t count;    /* elements */
    uint64_t lo, hi;   /* the range that this rank's optimizer steps: [0, count), or as narrowed by plan */
    uint64_t step;     /* this rank's step: set by the host before submit */
    uint64_t nsamples; /* samples behind grad; 0: this rank had no batch, and grad is ignored */
    en_vec param;      /* weights */
    en_vec grad;       /* gradient of the mean loss over nsamples */
} en_bucket;

/* The paper's promises, in models (of bytes) per step and rank; printed beside the measurements. */
typedef struct en_theory {
    uint32_t size;
    double sent, recv;        /* payload */
    double max_clocks_behind; /* how far a rank may run ahead of the slowest; infinity: no bound */
    double staleness;         /* expected mean, in versions; negative: the paper does not say */
} en_theory;

/* ---- the host, as the worker half sees it ------------------------------------------------------------ */

typedef struct en_host en_host;
struct en_host {
    uint32_t abi, size;
    const en_world *world;

    /* The resolved value of an option of this strategy. An undeclared key is EN_EBUG. */
    double (*num)(en_host *, const char *key);
    const char *(*text)(en_host *, const char *key);

    uint64_t (*rand)(en_host *);  /* 64 uniform bits; a function of (seed, rank, step, calls in this step) */
    int64_t (*now_ns)(en_host *); /* monotonic; virtual time on the virtual host */
    void (*log)(en_host *, int level /* 0 error .. 4 trace */, const char *fmt, ...);

    /* A named vector of the bucket's length, zeroed; saved in checkpoints under this name. A new name only in open and plan, the
     * same on all ranks; a known one at any time. 0, logged: out of memory, or too late. */
    en_vec (*vec)(en_host *, const char *name, const en_bucket *like);
    /* Optimizer state i of the bucket, or 0; [lo, hi) only. */
    en_vec (*slot)(en_host *, const en_bucket *, int i);

    /* y = a*x + b*y; b == 0 ignores y's old contents. Both belong to one bucket. Ordered after earlier calls. */
    en_status (*lin)(en_host *, en_vec y, double a, en_vec x, double b);
    /* One optimizer step on [lo, hi) of bucket->param with bucket->grad as the mean gradient. Without samples behind it
     * (nsamples 0; a mean of ranks without samples) no weight changes, but the step counts; any other value that the strategy
     * wrote to grad is stepped. */
    en_status (*step)(en_host *, const en_bucket *);
    double (*lr)(en_host *); /* the rate step() would take now */

    /* Seconds of one operation (0: call) on this bucket, rank 0's value on all ranks. The first call measures (some 20 ms): call
     * it in open or plan, the same on all ranks. NAN: not known on this host. */
    double (*cost)(en_host *, int op, const en_bucket *);
    /* Bytes this rank sends for a collective, per byte of the vector, with the algorithm in use. */
    double (*coll_bytes)(en_host *, int op, int group);

    /* The next four start an operation and return. All-reduce of grad, then the optimizer step, in one pass if the host can. As
     * with step, no weight changes if no rank has samples. */
    en_req (*mean_step)(en_host *, const en_bucket *);
    /* A collective in place on inout. EN_REDUCE_SCATTER and EN_ALLGATHER work on the ranks' [lo, hi). All ranks of the group
     * must make the same calls in the same order. A vector that another group still uses is refused. If grad is a group's
     * mean, EN_GRAD over the leaders is weighted by the samples of each group. */
    en_req (*coll)(en_host *, int op, int group, int what, const en_bucket *, en_vec inout);
    /* Sends `out` to rank `to` and receives `in`, another vector, from rank `from`; EN_WORLD only so far. The rank itself
     * as `to`: nothing is sent; as `from`: `in` is a copy of `out`. Other ranks need not call it, so any ranks may meet.
     * Two partners exchange the same buckets in the same order, at the same place among their collectives of the world.
     * Done when both vectors have arrived; a partner that never comes ends the run. */
    en_req (*sendrecv)(en_host *, int group, int what, const en_bucket *, int to, en_vec out, int from,
                       en_vec in);
    /* One round trip with a store: sends `out` (0: no payload, a pure pull), receives into `in`. `kind`, 1 .. 255, is the
     * strategy's own; `word` becomes msg->word: must be 0 so far. */
    en_req (*call)(en_host *, int dest, uint32_t kind, int what, const en_bucket *, en_vec out, en_vec in,
                   uint64_t word);

    /* CPU: blocks until done. CUDA: orders the stream. Virtual time: switches the fiber. Request 0 is done. Every request must
     * be waited for in its step or the next. */
    en_status (*wait)(en_host *, en_req);
    /* The word of a call's answer, after its wait; 0 if it has none. */
    uint64_t (*answer)(en_host *, en_req);
};

/* ---- the store, as the store half sees it -------------------------------------------------------------- */

typedef struct en_partition {
    uint32_t size;
    uint32_t bucket, shard;
    uint32_t nclients;  /* clients that have neither left nor finished */
    uint32_t pending;   /* distinct clients with a staged contribution */
    uint64_t count;     /* elements; may be 0 (then no messages come) */
    uint64_t version;   /* optimizer steps or touches so far */
    uint64_t min_clock; /* the lowest clock of those clients; UINT64_MAX: no clients left */
    float *w;           /* (count) the weights; a hook that writes here calls touch() */
    uint32_t nranks;    /* of the run, whether active or not */
} en_partition;

typedef struct en_msg {
    uint32_t size;
    uint32_t kind; /* this, what and word: as given to call() */
    int32_t src;   /* client: rank */
    uint32_t what;
    uint64_t clock;        /* messages of this client to this partition so far, including this one */
    uint64_t base_version; /* the partition's version that this client last received */
    uint64_t nsamples; /* behind the gradient of the client's step, or of its group: the weight in the mean */
    float *data;       /* (count) the payload, which the hook may edit; NULL for a pure pull */
    uint64_t word;
} en_msg;

typedef struct en_store en_store;
struct en_store {
    uint32_t abi, size;
    double (*num)(en_store *, const char *key);
    const char *(*text)(en_store *, const char *key);
    uint64_t (*rand)(en_store *);
    int64_t (*now_ns)(en_store *);
    void (*log)(en_store *, int level, const char *fmt, ...);
    /* Stages weight * data for the partition's next step. In on_push only, at most once per message. */
    en_status (*absorb)(en_store *, const en_partition *, const en_msg *, double weight);
    /* Averages the staged contributions, in (rank, clock) order, EN_GRAD weighted by nsamples; one optimizer step; version + 1;
     * clears the stage. If no contribution has samples, weights and optimizer state do not change. A mean that is not finite is
     * dropped: EN_ENONFINITE. */
    en_status (*step)(en_store *, const en_partition *);
    /* The hook wrote part->w: version + 1. */
    void (*touch)(en_store *, const en_partition *);
    /* Vector i < peer_vecs kept for client src: (count), initially the initial weights. NULL: out of memory. */
    float *(*peer)(en_store *, const en_partition *, int32_t src, int i);
    /* on_timer is called once after delay_ns; a new timer replaces the partition's old one. */
    void (*timer)(en_store *, const en_partition *, int64_t delay_ns);
    /* The word of the answer to this message, from on_push or on_pull: must be 0 so far. */
    en_status (*answer)(en_store *, const en_msg *, uint64_t word);
};

/* ---- the strategy -------------------------------------------------------------------------------------- */

enum { EN_MEMBER_JOINED = 1, EN_MEMBER_FINISHED = 2, EN_MEMBER_LEFT = 3 }; /* events of on_member */

/* A NULL hook has a default: open, plan, before_step, after_step: nothing; finish: wait for all of req; eval: EN_EVAL_PARAM
 * (with a store: EN_EVAL_STORE); theory: no promises; on_push: absorb with weight 1 and step; on_pull: EN_REPLY_WEIGHTS. submit
 * is required. */
typedef struct en_strategy en_strategy;
struct en_strategy {
    uint32_t abi, size;
    const char *name;  /* [a-z0-9-]+ */
    const char *help;  /* one line */
    const char *paper; /* "author'year, section" */
    uint32_t flags;
    uint32_t peer_vecs;       /* vectors that each partition keeps per client */
    size_t state;             /* bytes of the worker half's state: a plain struct without pointers, zeroed */
    size_t partition_state;   /* the same per partition for the store half */
    const en_option *options; /* ends with an entry of size 0; NULL: none */
    const en_strategy *next;  /* another strategy in the same file, or NULL */

    /* Worker half. `state` points at `state` bytes. */
    en_status (*open)(en_host *, void *state);
    /* Each bucket, before step 0: narrows [*lo, *hi), the range that this rank steps, from [0, count). */
    en_status (*plan)(en_host *, void *state, const en_bucket *, uint64_t *lo, uint64_t *hi);
    en_status (*before_step)(en_host *, void *state, uint64_t step);
    /* During backward, which has finished with this bucket's grad and param: starts operations, or steps, but never waits. `req`
     * has EN_REQS requests, all 0; finish gets them. */
    en_status (*submit)(en_host *, void *state, const en_bucket *, en_req *req);
    en_status (*finish)(en_host *, void *state, const en_bucket *, const en_req *req); /* in submit order */
    en_status (*after_step)(en_host *, void *state, uint64_t step);
    /* EN_EVAL_*, the same for all buckets. */
    int (*eval)(en_host *, void *state, const en_bucket *, en_vec *vec_out);
    void (*theory)(en_host *, void *state, en_theory *theory_out);

    /* Store half. `state` points at this partition's `partition_state` bytes. A message that on_push neither absorbs nor touches
     * for is dropped; on_pull comes right after it, and again while the message is held. */
    en_status (*on_push)(en_store *, void *state, const en_partition *, const en_msg *);
    int (*on_pull)(en_store *, void *state, const en_partition *, const en_msg *);
    void (*on_timer)(en_store *, void *state, const en_partition *);
    void (*on_member)(en_store *, void *state, const en_partition *, int32_t who, int event);
};

/* The only symbol that a plugin exports. Returns NULL if it does not support that ABI. */
#define EN_STRATEGY_ENTRY "en_strategy_entry"
typedef const en_strategy *(*en_strategy_entry_fn)(uint32_t host_abi);

EN_EXPORT const en_strategy *en_strategy_entry(uint32_t host_abi);

#ifdef __cplusplus
}
#endif
#endif
