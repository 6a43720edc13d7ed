/* store_impl.h - shared by the files of the store, and only by them. Each calls only those below it:
 *
 *     store_save.c       all of it as bytes, and back
 *     store.c            open, close, events, queries
 *     hooks.c            the strategy's hooks on a partition, and what they may call
 *     partition.c        a partition's numbers: staged, averaged, stepped, counted
 *     calls.c            the calls, their payloads, the actions */
#ifndef STORE_STORE_IMPL_H
#define STORE_STORE_IMPL_H

#include "runtime/store/store.h"

/* More unanswered calls of one client on one partition are refused: a client that pipelines needs two. */
enum { ENI_STORE_OUTSTANDING = 8 };
#define ENI_STATE_MAGIC "ENSTATE\n" /* the first bytes of a saved state; then its last */
#define ENI_STATE_END   "END\n"
/* More samples behind one push are refused: sums of them cannot overflow. */
#define ENI_STORE_SAMPLES_MAX (UINT64_C(1) << 40)

/* The event after which a held call is asked about again: EN_HOLD, EN_HOLD_VERSION, EN_HOLD_CLOCK. */
enum { ENI_WAITS_ANY, ENI_WAITS_VERSION, ENI_WAITS_CLOCK, ENI_WAITS };

/* One call, from its arrival until it is both answered and summed. Recycled, never freed before the end. */
typedef struct eni_call {
    struct eni_call *prev, *next; /* in part->held, by arrival; in store->idle only next */
    en_msg msg;
    eni_payload payload;
    float *pooled; /* buffer of a detached payload; NULL: it is where it arrived */
    uint64_t ticket, seq;
    int64_t since_ns;        /* its arrival; 0: before this process began */
    uint64_t covered;        /* samples, as in the event */
    uint64_t met;            /* is_counted: the version that it was applied to or dropped at */
    double weight;           /* as given to absorb() */
    en_status pending_error; /* not EN_OK: the mean that it was part of was refused */
    bool is_held;            /* in part->held */
    bool is_staged;          /* in part->staged */
    bool is_snapshot;        /* waits for INIT, not for the strategy */
    bool is_counted;         /* it is counted, and `met` is known */
    bool is_steady;          /* pushed while all joined clients were active */
    bool was_asked;          /* on_pull held it before */
    uint8_t waits_for;       /* with was_asked: ENI_WAITS_* */
    bool was_named;          /* logged as held for long */
    bool was_absorbed;       /* absorb() took it, whatever became of it since */
} eni_call;

/* How the last call of a client on a partition ended. */
typedef enum eni_outcome { ENI_HELD, ENI_WEIGHTS, ENI_DATA, ENI_REFUSED } eni_outcome;

/* A partition's record of one client: dedupe entry and clock, side by side so they move together. */
typedef struct eni_dedupe {
    uint64_t seq; /* of the last call taken in; 0: none */
    uint64_t clock;
    uint64_t pushes;      /* by this incarnation */
    uint32_t staged;      /* contributions waiting for a step */
    uint32_t place;       /* of the next one among those of all clients, while they are sorted */
    uint32_t outstanding; /* calls not answered */
    eni_outcome outcome;  /* of call `seq` */
    en_status status;     /* ENI_REFUSED: why */
    float **peer;         /* (strategy->peer_vecs) allocated on first use */
} eni_dedupe;

/* Copies for snapshots; not part of the store's state. */
typedef struct eni_frozen {
    float *slot[ENI_MAX_SLOTS];
    uint64_t version, steps, samples;
} eni_frozen;

/* The calls that wait for an answer. */
typedef struct eni_held {
    eni_call *first, *last;
    uint32_t nwaiting[ENI_WAITS];        /* those that on_pull was asked about, by waits_for */
    uint64_t asked_version, asked_clock; /* when it was asked about all of them that were due */
    bool has_errors;                     /* some may have a pending_error */
} eni_held;

typedef struct eni_partition {
    en_partition pub;           /* first: hooks hand back a pointer to it */
    uint64_t whole, lo;         /* elements of the bucket; where this partition starts in it */
    uint64_t at;                /* and in the flat vector; 0 if not configured */
    eni_version_buffer *buffer; /* holds pub.w; behind it those still in use. NULL: config.weights */
    bool is_initialised;
    bool is_used;            /* some client has called it */
    uint64_t steps, samples; /* optimizer steps and samples applied */
    float *slot[ENI_MAX_SLOTS];
    eni_frozen frozen;
    float *first;       /* the initial weights, kept only for peer() */
    void *state;        /* the strategy's */
    eni_dedupe *dedupe; /* (world) */
    uint32_t nmin;      /* active clients whose clock is pub.min_clock */
    uint32_t nstarted;  /* active clients that have pushed */
    eni_held held;
    eni_call **staged; /* as they came; a step sorts them by (rank, clock) */
    uint32_t nstaged, staged_room;
    bool has_timer;
    int64_t timer_ns;
    uint64_t hook_pushes; /* on_push runs in this process */
    uint64_t fired;       /* the event in which on_timer ran last: once per event, however it is set again */
} eni_partition;

typedef enum eni_presence { ENI_ABSENT, ENI_ACTIVE, ENI_FINISHED, ENI_LEFT } eni_presence;

typedef struct eni_client_record {
    uint64_t incarnation;
    eni_presence presence;
    eni_store_client_stats stats;
} eni_client_record;

/* The running hook of the strategy. */
typedef struct eni_store_hook {
    eni_partition *part; /* its; NULL: no hook runs */
    eni_call *call;      /* whose message it has; NULL: none */
    eni_hook_site place;
    float *behind[2];  /* the weights, its message: a canary; NULL: there is none */
    en_status verdict; /* logged already: EN_EBUG after misuse, EN_EINVAL; else EN_OK */
    char said[192];    /* the last misuse, which the caller is sent too */
} eni_store_hook;

/* The arguments of eni_mean, and its result. */
typedef struct eni_store_mean {
    float *sum;           /* (max_count) the accumulator */
    const float **source; /* (room) */
    float *scale;         /* (room) */
    uint32_t room;
} eni_store_mean;

/* Buffers of max_count for detached payloads. */
typedef struct eni_store_pool {
    float **free;
    uint32_t n, room, nmade; /* free ones, room for pointers, ever made */
} eni_store_pool;

struct eni_store {
    en_store table; /* first: hooks hand back a pointer to it */
    eni_store_config config;
    eni_partition *part;       /* (nbuckets) */
    eni_client_record *client; /* (world) */
    uint32_t nused;            /* partitions that some client has called */
    uint32_t nactive, nleft;   /* clients; nleft: finished or left */
    uint64_t max_count;        /* elements of the largest partition */
    eni_store_mean mean;
    uint64_t rand_index;
    uint64_t nevents;
    int64_t now_ns;     /* of the event in progress */
    int64_t look_ns;    /* eni_store_look has nothing to log before */
    int64_t timer_told; /* the last TIMER_AT; INT64_MAX: none */
    bool has_timers;    /* some hook has set one */
    eni_call *current;  /* the call whose on_push runs */
    bool did_touch;     /* in that hook */
    double last_weight; /* eni_store_last_weight */
    eni_store_hook hook;
    eni_store_pool pool;
    eni_call *idle;             /* recycled calls */
    eni_call *retired;          /* finished, but an action of the last step may point into their payload */
    eni_store_actions *actions; /* of the event in progress */
    eni_store_stats stats;
};

/* The partition of `bucket`. NULL: it is empty, or there is no such bucket. */
static inline const eni_partition *eni_store_partition(const eni_store *store, uint32_t bucket)
{
    if (bucket >= store->config.nbuckets || store->part[bucket].pub.count == 0) return NULL;
    return &store->part[bucket];
}

/* The vector that INIT and SNAPSHOT name by `kind`; NULL: the store does not have it. */
static inline float *eni_partition_vector(const eni_partition *part, uint32_t kind)
{
    if (kind == ENI_VECTOR_WEIGHTS || kind == ENI_VECTOR_FREEZE) return part->pub.w;
    return kind - ENI_VECTOR_SLOT < ENI_MAX_SLOTS ? part->slot[kind - ENI_VECTOR_SLOT] : NULL;
}

/* Marks the partition as called by a client. */
static inline void eni_partition_used(eni_store *store, eni_partition *part)
{
    store->nused += !part->is_used;
    part->is_used = true;
}

/* ---- calls.c ---- */

eni_call *eni_store_call_take(eni_store *store); /* NULL: out of memory (logged) */
/* Back to the idle ones, its payload released. */
void eni_store_call_give(eni_store *store, eni_call *call);
/* The same at the start of the next event. */
void eni_store_call_retire(eni_store *store, eni_call *call);
/* At the end of the store. */
void eni_store_call_free(eni_store *store, eni_call *call);
/* Its payload becomes a pooled copy of `raw` (count floats, not aligned). EN_ENOMEM. */
en_status eni_store_call_fill(eni_store *store, eni_call *call, const void *raw, uint64_t count);
/* The same, a copy of its own payload. */
en_status eni_store_call_detach(eni_store *store, eni_call *call);
/* Appends to the held calls; one that on_pull has held before (in a saved state) is asked about at the next event. */
void eni_partition_hold(eni_partition *part, eni_call *call);
/* Takes a call out of the held ones. */
void eni_partition_release(eni_partition *part, eni_call *call);
/* "rank 0 at clock 4, rank 1 at clock 5": the active clients with a held call, or without one. */
void eni_partition_list(const eni_store *store, const eni_partition *part, bool are_held, char *text_out,
                        size_t bytes);

/* Appends an action, zeroed. NULL: out of memory (logged). */
eni_store_action *eni_store_act(eni_store *store, eni_store_action_type type, int32_t client, uint64_t ticket,
                                uint32_t bucket);
/* Appends a REFUSE and counts it. */
en_status eni_store_refuse(eni_store *store, int32_t client, uint64_t ticket, uint32_t bucket,
                           en_status status, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* Refuses the event itself: `event` of `store`. */
#define REFUSE(status, ...)                                                                                  \
    eni_store_refuse(store, event->client, event->ticket, event->bucket, status, __VA_ARGS__)

/* ---- partition.c ---- */

/* Zeroed weights of `count` elements. NULL: out of memory (logged). */
eni_version_buffer *eni_version_buffer_new(uint64_t count);
float *eni_version_buffer_data(const eni_version_buffer *buffer);
/* Frees this one and those behind it; one in use is freed when it is released. NULL is fine. */
void eni_version_buffer_free_all(eni_version_buffer *first);
/* Before pub.w is written: if it is in use, pub.w becomes other memory, with a copy if it `copies`. */
en_status eni_partition_own(eni_store *store, eni_partition *part, bool copies);

/* Puts the call among the staged ones. EN_ENOMEM leaves it out. */
en_status eni_partition_stage(eni_store *store, eni_partition *part, eni_call *call, double weight);
/* Takes it out again, uncounted; recycled if it was answered. */
void eni_partition_unstage(eni_store *store, eni_partition *part, eni_call *call);
/* en_store.step. */
en_status eni_partition_step(eni_store *store, eni_partition *part);
/* Counts a push that meets weights of `version`: its samples, and if it was applied its staleness. */
en_status eni_partition_count(eni_store *store, eni_call *call, uint64_t version, bool was_applied);
/* Recomputes what depends on who is active: nclients, min_clock, and the counts behind them. */
void eni_partition_recount(const eni_store *store, eni_partition *part);
/* The same after one client has become active, or is no longer. */
void eni_partition_count_member(const eni_store *store, eni_partition *part, int32_t who);

/* ---- hooks.c ---- */

/* on_push, which the strategy must have. EN_EBUG after misuse, and for a status that hooks may not return. */
en_status eni_store_hook_push(eni_store *store, eni_partition *part, eni_call *call);
/* on_pull, which the strategy must have. */
en_status eni_store_hook_pull(eni_store *store, eni_partition *part, eni_call *call, int *verdict_out);
/* on_timer and on_member, if the strategy has them. */
en_status eni_store_hook_timer(eni_store *store, eni_partition *part);
en_status eni_store_hook_member(eni_store *store, eni_partition *part, int32_t who, int member);
/* The calls that hooks may make. */
extern const en_store eni_store_table;

#endif
