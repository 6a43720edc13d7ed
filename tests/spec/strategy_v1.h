/* strategy_v1.h - entrain/strategy.h as it was in version 1, kept to build what a host of today must refuse. Below it is as
 * it was:
 *
 * strategy.h - the contract of a synchronisation strategy: gradients in, weights out.
 *
 * A strategy is one .c file with two halves and no library behind it:
 *
 *     cc -shared -fPIC -I<include> mine.c -o mine.so        worker --strategy=./mine.so:period=8
 *
 * Worker half. Each rank computes the gradient of the mean loss over its micro-batch, bucket by bucket, and
 * calls submit(bucket) as soon as a bucket is complete, while backward still runs. finish(bucket) comes
 * later, in the order of submit; after it, bucket->param holds the weights of the next step. Hooks run on
 * the rank's compute thread (in virtual time: its fiber), one at a time. Host operations return a request
 * at once and the host progresses them; only wait() waits.
 *
 * Store half. It runs in psd, one lane per shard, or with EN_STORE_ON_RANKS on a lane in every worker. Its
 * unit is the cell (bucket x shard). Hooks never block, see host memory, and are pure: no clock but the
 * host's, no random numbers but the host's, no I/O.
 *
 * The plugin owns no clock, no random generator, no thread, no socket and no file: the host lends them. So
 * one binary runs on sockets, on a GPU and in virtual time, and a run can be replayed. Contents of vectors
 * change only through host calls, in call order; a strategy holds handles, never tensor pointers.
 *
 * Deadlines belong to the host too (--peer-timeout, by heartbeat). Three statuses are not errors of the
 * strategy and are passed up unchanged: EN_EPEER (a peer died), EN_EMEMBER (the world changed: the step is
 * done again), EN_ESTOP (the sample budget is used up).
 *
 * Growth: `abi` is the major version, `size` the minor: tables and structs only grow at their end, and a
 * reader never touches a field beyond the size that the writer stated. */
#ifndef ENTRAIN_STRATEGY_H
#define ENTRAIN_STRATEGY_H

#include <stddef.h>
#include <stdint.h>

#include "entrain/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EN_STRATEGY_ABI 1u

typedef uint32_t en_vec; /* names one bucket-sized vector on the rank's device; 0: none. The same value after
                            save and load, and in a copied (simulated) rank */
typedef uint64_t en_req; /* names an operation in progress; 0: already done */

/* What an exchange carries. Codecs touch the first two only. */
enum { EN_GRAD = 1, EN_DELTA = 2, EN_WEIGHTS = 3 };

/* Collective operations. "Reduce" is the mean over ranks, added in rank order and weighted by the ranks'
 * nsamples (for EN_WEIGHTS: unweighted). */
enum { EN_ALLREDUCE = 1, EN_REDUCE_SCATTER = 2, EN_ALLGATHER = 3, EN_REDUCE = 4, EN_BCAST = 5 };

enum { EN_WORLD = 0, EN_LOCAL = 1 }; /* all active ranks; the ranks of this host */
enum { EN_SERVERS = -1 };            /* call(): the psd shards; a rank >= 0 is the store inside that worker */

/* Strategy flags. */
enum {
    EN_STORE_ON_SERVERS = 1,    /* needs psd */
    EN_STORE_ON_RANKS = 2,      /* every worker runs a lane with the store half */
    EN_LEADERS_ARE_CLIENTS = 4, /* only local rank 0 of each host is a client of the servers */
    EN_REPLICATED = 8,          /* param is equal on all ranks after finish: one copy per host would do */
    EN_STATIC = 16,             /* the same host calls every step: a CUDA graph may contain them */
    EN_SYNCHRONOUS = 32,        /* one update per step of the whole world: fixed assignment of data, and the
                                   learning rate scales with the world (--lr-scale) */
    EN_PUSH_READ_ONLY = 64,     /* the store half never writes msg->data: the host may hand it memory that is
                                   not its own, and saves a copy */
    EN_ONE_COPY = 128,          /* param and the optimizer's state change only through mean_step, and [lo, hi)
                                   stays [0, count): so the ranks of a host may map one copy of both. lin, step,
                                   coll, swap and call must not write param */
    EN_ROUNDS = 256 /* a cell's weights change only when every active client has pushed to it, calls
                       are answered with weights, and only call() writes param, between a bucket's
                       submit and the end of its finish, and none sends it: so a client may map the
                       store's own weights in place of a copy */
};

/* The model that the paper evaluates. The host snapshots it and evaluates off the clock. */
enum { EN_EVAL_PARAM = 0, EN_EVAL_STORE = 1, EN_EVAL_MEAN = 2, EN_EVAL_VEC = 3 };

/* What on_pull answers a held call with. */
enum {
    EN_REPLY_WEIGHTS = 0, /* the cell's weights of this moment */
    EN_REPLY_DATA = 1,    /* msg->data as the hooks left it */
    EN_HOLD = 2           /* nothing yet: asked again after the next push, member or timer event */
};

typedef struct en_world {
    uint32_t size;  /* sizeof(en_world) as the host knows it */
    uint32_t epoch; /* of the membership */
    int32_t rank, nranks, local_rank, nlocal, nhosts;
} en_world;

/* One tensor, or the part of it, that lies in a bucket. */
typedef struct en_param {
    uint32_t size;
    uint32_t kind; /* 0 weight; 1 buffer (batch-norm statistics: not reduced) */
    const char *name;
    uint64_t offset;     /* elements from the bucket's start */
    uint64_t count;      /* elements of the tensor that lie in this bucket */
    uint64_t rows, cols; /* of the whole tensor, flattened to a matrix (low-rank codecs) */
} en_param;

/* A contiguous range of the flat parameter vector. Frozen before step 0; the same buckets in the same order
 * on every rank. Starts on 64 bytes (256 on a GPU). Owned by the host. */
typedef struct en_bucket {
    uint32_t size;
    uint32_t id; /* 0, 1, .. in the order of submit: the model's last layers first */
    uint32_t nparams;
    const en_param *params;
    uint64_t count;    /* elements */
    uint64_t lo, hi;   /* the range whose optimizer step this rank takes; plan() may narrow [0, count) */
    uint64_t step;     /* this rank's step: set by the host before submit */
    uint64_t nsamples; /* samples behind grad; 0: this rank had no batch, grad's contents do not count */
    en_vec param;      /* weights */
    en_vec grad;       /* gradient of the mean loss over nsamples */
    en_req req[3];     /* the strategy's: requests of this bucket in progress */
} en_bucket;

/* A named option, declared by the strategy, checked by the host: --strategy=ssp:bound=3. */
enum { EN_OPT_REAL = 0, EN_OPT_INT = 1, EN_OPT_BOOL = 2, EN_OPT_TEXT = 3 };
typedef struct en_option {
    uint32_t size; /* 0 ends the list */
    uint32_t type;
    const char *key, *help;
    double value, min, max; /* default and range; infinity is written inf */
    const char *text;       /* default of a text option */
} en_option;

/* What the paper promises, in units of the model's bytes, per step and rank. The host prints it beside what
 * it measured. */
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

    /* The resolved value of an option of this strategy. An undeclared key is a bug and logs an error. */
    double (*num)(en_host *, const char *key);
    const char *(*text)(en_host *, const char *key);

    uint64_t (*rand)(en_host *);  /* 64 uniform bits; a function of (seed, rank, step, calls in this step) */
    int64_t (*now_ns)(en_host *); /* monotonic; virtual time on the virtual host */
    void (*log)(en_host *, int level /* 0 error .. 4 trace */, const char *fmt, ...);

    /* A named vector of the bucket's length, zeroed; only in open and plan; in the checkpoint under this
     * name. 0 when there is no room (logged). The same order of calls on all ranks. */
    en_vec (*vec)(en_host *, const char *name, const en_bucket *like);
    /* Optimizer state i of the bucket, or 0; [lo, hi) only. */
    en_vec (*slot)(en_host *, const en_bucket *, int i);

    /* y = a*x + b*y; b == 0 ignores y's old contents. Both of one bucket. Ordered after earlier calls. */
    en_status (*lin)(en_host *, en_vec y, double a, en_vec x, double b);
    /* One optimizer step on [lo, hi) of bucket->param with bucket->grad as the mean gradient. If it is known
     * that no sample is behind it (this rank's own, nsamples 0; a mean of ranks of which none has samples),
     * weights and optimizer state stay as they are; the step is counted. Whatever else the strategy has put
     * into grad is stepped. */
    en_status (*step)(en_host *, en_bucket *);
    double (*lr)(en_host *); /* the rate step() would take now */

    /* Seconds of one operation on this bucket, probed before step 0; rank 0's figure on all ranks. op 0:
     * call. The first question measures (some 20 ms, all ranks together): ask in open or plan, alike on all
     * ranks. NAN: this host cannot tell, or the run has no such operation. */
    double (*cost)(en_host *, int op, const en_bucket *);
    /* Bytes this rank sends for a collective, per byte of the vector, with the algorithm in use
     * (ring and direct all-reduce: 2(n-1)/n; naive: n-1). For theory(). */
    double (*coll_bytes)(en_host *, int op, int group);

    /* All-reduce of grad, then the optimizer step, in one pass where the host can. As with step, nothing
     * moves where no rank has samples. */
    en_req (*mean_step)(en_host *, en_bucket *);
    /* A collective in place on inout. EN_REDUCE_SCATTER and EN_ALLGATHER work on the ranks' [lo, hi). All
     * ranks of the group make the same calls in the same order. */
    en_req (*coll)(en_host *, int op, int group, int what, en_bucket *, en_vec inout);
    /* Sends `out` to rank `to` and receives `in` from rank `from`; both sides call it. */
    en_req (*swap)(en_host *, int to, en_vec out, int from, en_vec in, en_bucket *);
    /* One round trip with a store: sends `out` (0: nothing, a pure pull), receives into `in`. `kind` is the
     * strategy's own word for the message, 1 .. 255. */
    en_req (*call)(en_host *, int dest, uint32_t kind, int what, en_bucket *, en_vec out, en_vec in);

    /* CPU: blocks until done. CUDA: orders the stream. Virtual time: switches the fiber. 0 is done. */
    en_status (*wait)(en_host *, en_req);

    const void *(*extension)(en_host *, const char *id); /* NULL: this host does not have it */
};

/* ---- the store, as the store half sees it -------------------------------------------------------------- */

typedef struct en_cell {
    uint32_t size;
    uint32_t bucket, shard;
    uint32_t nclients;  /* clients that have neither left nor finished */
    uint32_t pending;   /* distinct clients with a staged contribution */
    uint64_t count;     /* elements; may be 0 (then no messages come) */
    uint64_t version;   /* optimizer steps or touches so far */
    uint64_t min_clock; /* the least clock of those clients; UINT64_MAX: none is left */
    float *w;           /* (count) the weights; a hook that writes here calls touch() */
} en_cell;

typedef struct en_msg {
    uint32_t size;
    uint32_t kind; /* as given to call() */
    int32_t src;   /* client: rank */
    uint32_t what;
    uint64_t clock;        /* messages of this client to this cell so far, this one included */
    uint64_t base_version; /* the cell's version that this client last received */
    uint64_t nsamples; /* behind the gradient of the client's step, or of its group: the weight in the mean */
    float *data;       /* (count) the payload, the hook may edit it; NULL for a pure pull */
} en_msg;

typedef struct en_store en_store;
struct en_store {
    uint32_t abi, size;
    double (*num)(en_store *, const char *key);
    const char *(*text)(en_store *, const char *key);
    uint64_t (*rand)(en_store *);
    int64_t (*now_ns)(en_store *);
    void (*log)(en_store *, int level, const char *fmt, ...);
    /* Stages weight * data for the next step of this cell. Inside on_push only, at most once per message. */
    en_status (*absorb)(en_store *, en_cell *, const en_msg *, double weight);
    /* Mean of what is staged, added in (rank, clock) order and weighted by nsamples; one optimizer step;
     * version + 1; nothing stays staged. Where nothing staged has samples, weights and optimizer state stay
     * as they are. A mean that is not finite is dropped: EN_ENONFINITE. */
    en_status (*step)(en_store *, en_cell *);
    /* The hook wrote cell->w: version + 1. */
    void (*touch)(en_store *, en_cell *);
    /* Vector i < peer_vecs that the cell keeps for client src: (count), the initial weights at first. */
    float *(*peer)(en_store *, en_cell *, int32_t src, int i);
    /* on_timer is called once after delay_ns; a new timer replaces the cell's old one. */
    void (*timer)(en_store *, en_cell *, int64_t delay_ns);
};

/* Events of on_member. */
enum { EN_MEMBER_JOINED = 1, EN_MEMBER_FINISHED = 2, EN_MEMBER_LEFT = 3 };

/* ---- the strategy -------------------------------------------------------------------------------------- */

/* A hook that is NULL has a default: open, plan, before_step, after_step, on_world: nothing; finish: wait
 * for req[0..2]; eval: EN_EVAL_PARAM (with a store: EN_EVAL_STORE); theory: nothing promised; on_push:
 * absorb with weight 1 and step; on_pull: EN_REPLY_WEIGHTS. submit has none. */
typedef struct en_strategy en_strategy;
struct en_strategy {
    uint32_t abi, size;
    const char *name;  /* [a-z0-9-]+ */
    const char *help;  /* one line */
    const char *paper; /* "author'year, section" */
    uint32_t flags;
    uint32_t peer_vecs;       /* vectors that each cell keeps per client */
    size_t state;             /* bytes of the worker half's state: a plain struct without pointers, zeroed */
    size_t cell_state;        /* the same per cell for the store half */
    const en_option *options; /* ends with an entry of size 0; NULL: none */
    const en_strategy *next;  /* another strategy in the same file, or NULL */

    /* Worker half. `state` points at `state` bytes. */
    en_status (*open)(en_host *, void *state);
    en_status (*plan)(en_host *, void *state, en_bucket *); /* each bucket, before step 0 */
    en_status (*before_step)(en_host *, void *state, uint64_t step);
    /* During backward: starts, never waits. Backward reads neither grad nor param of this bucket any more, so
     * a strategy that steps locally may do so here. */
    en_status (*submit)(en_host *, void *state, en_bucket *);
    en_status (*finish)(en_host *, void *state, en_bucket *); /* in submit order */
    en_status (*after_step)(en_host *, void *state, uint64_t step);
    en_status (*on_world)(en_host *, void *state, const en_world *);
    int (*eval)(en_host *, void *state, const en_bucket *,
                en_vec *vec_out); /* EN_EVAL_*, same for all buckets */
    void (*theory)(en_host *, void *state, en_theory *theory_out);

    /* Store half. `state` points at this cell's `cell_state` bytes. */
    en_status (*on_push)(en_store *, void *state, en_cell *,
                         en_msg *); /* neither absorb nor touch: dropped */
    int (*on_pull)(en_store *, void *state, en_cell *,
                   en_msg *); /* right after on_push, and again while held */
    void (*on_timer)(en_store *, void *state, en_cell *);
    void (*on_member)(en_store *, void *state, en_cell *, int32_t who, int event);
};

/* The one symbol that a plugin exports. Returns NULL if it cannot serve that ABI. */
#define EN_STRATEGY_ENTRY "en_strategy_entry"
typedef const en_strategy *(*en_strategy_entry_fn)(uint32_t host_abi);

#if defined(__GNUC__)
#define EN_EXPORT __attribute__((visibility("default")))
#else
#define EN_EXPORT
#endif
EN_EXPORT const en_strategy *en_strategy_entry(uint32_t host_abi);

#ifdef __cplusplus
}
#endif
#endif
