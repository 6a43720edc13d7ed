/* store.h - the parameter server as a pure function: step(state, event) -> actions.
 *
 * A store holds the partitions of one shard: part k of K of every bucket. It has no socket, no clock, no
 * thread: all input comes with the event, all output is actions. So the same code serves behind a socket
 * (server/shard.c), in virtual time (runtime/sim) and in a replay of recorded events, and the same events
 * always give the same actions and the same bytes.
 *
 *     CALL, INIT, SNAPSHOT  ->  +----------------------------+  ->  REPLY    weights or the edited payload
 *     MEMBER, TIMER         ->  | partitions, dedupe,        |  ->  REFUSE   with a status and a sentence
 *     (each with now_ns)        | staging, optimizer, hooks  |  ->  TIMER    send me TIMER at when_ns
 *                               +----------------------------+
 *
 * It hosts the store half of a strategy: on_push, on_pull, on_timer and on_member of strategy.h run inside
 * eni_store_step and see the world through the en_store table only.
 *
 * Partitions. The partition of bucket b on shard k is the range [eni_slice_lo(count, k, K),
 * eni_slice_lo(count, k + 1, K)) of the bucket. It may be empty; then it exists, but gets no messages.
 *
 * Identity. A call is (client, incarnation, seq, partition). seq counts 1, 2, .. per client and partition.
 *
 *     seq == last + 1    new: staged, clocked, and the dedupe entry moves with it
 *     seq == last        a repeat, never applied twice:
 *                            still held            its ticket replaces the old one
 *                            answered: weights     answered again with those of now and ENI_FLAG_REPEAT
 *                            answered: its data    refused, that payload is not kept
 *                            refused               refused again
 *     seq < last         refused as stale, unless that very call is still held (then as above). With
 *                        is_replay, and seq == last of a client that has finished: answered without data
 *     seq == 0           with is_replay: answered without data, for the answer's other fields
 *     seq > last + 1     refused as a gap
 *     older incarnation  refused: fenced
 *     newer incarnation  the client left and joined again: the old one's unanswered calls are dropped, its
 *                        answered ones stay staged; the clock starts at the least of the others
 *
 * The mean. step() adds the staged contributions in (rank, clock) order exactly as ops/mean.h does:
 * scale = (float)(weight * nsamples), inv = 1 / (float)(sum of nsamples), contributions of 0 samples left
 * out; of a single one scale = (float)weight, inv = 1. The weight that a strategy gives to absorb() scales
 * the numerator only: weight 0.5 on every contribution is half the mean gradient. With weight 1 the bytes are
 * those of eni_mean_ranks, hence of `ring` and `solo`. The learning rate is eni_schedule_lr(samples applied to
 * this partition before the step). If no contribution has samples, weights and optimizer state stay as they
 * are; the step is counted, and the version goes on, so that nobody waits.
 *
 * Not finite. The mean is made in an accumulator and checked before anything changes. If it is not finite
 * the contributions are dropped and counted, and the calls that brought them are refused with
 * EN_ENONFINITE, held ones too, unless the hook that called step() swallows the status.
 *
 * Payloads. The event brings one. It stays where it is, uncopied, until it is summed and its call is
 * answered. Once a call is answered its client may overwrite borrowed memory: a contribution that is still
 * staged then is first copied into a pooled buffer.
 *
 * Threads: a store belongs to one thread at a time. Nothing blocks. After warm-up (every client has called,
 * the largest staleness has been seen) a push allocates nothing. */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/options.h"
#include "entrain/strategy.h"
#include "ops/mean.h"
#include "ops/optimizer.h"
#include "ops/schedule.h"
#include "plugin/hook.h"
#include "runtime/store/staleness.h"

typedef struct eni_store eni_store;
typedef struct eni_version_buffer eni_version_buffer; /* weights of one version */

/* Selects the pushes after which the store checks whether on_push has written weights without touch, or made
 * them infinite or NaN. ALL also has a canary behind the weights, and behind payloads with room for one. A check costs a pass over the partition before and after. FIRST: the first 100 pushes
 * of each partition, and every 1,000th. */
typedef enum eni_store_watch { ENI_WATCH_NONE, ENI_WATCH_FIRST, ENI_WATCH_ALL } eni_store_watch;

/* All that is fixed before the first event. Pointers are borrowed and outlive the store, except for
 * bucket_counts, which is copied. */
typedef struct eni_store_config {
    const en_strategy *strategy;
    const eni_options *options; /* NULL: the strategy has none */
    eni_hook_guard *hooks;      /* notified of every hook; NULL: not watched */
    eni_store_watch watch;
    /* An on_pull that holds every client's call of a partition without a timer is EN_EBUG: clients make one
     * call of it at a time. A call held for 5 s while others are not is logged. false: neither. */
    bool judges_holds;
    const eni_optimizer *optimizer;
    eni_hyper hyper; /* lr and step are set per step */
    eni_schedule schedule;
    eni_sum_order sum_order;
    uint32_t nbuckets;
    const uint64_t *bucket_counts; /* (nbuckets) elements of the whole buckets */
    int32_t shard, nshards;
    /* Clients are ranks 0 .. world-1; those of a leader-only strategy never join. Also the W of ENI_SUM_RING. */
    int32_t world;
    uint64_t seed; /* of the run, for en_store.rand */
    /* Distinguishes the stores of one run in en_store.rand: psd's shard, or 0x10000 + rank for a store inside a
     * worker. */
    uint32_t stream;
    /* NULL: memory of the store's own. Else zeroed memory that others may read, laid out as the flat vector:
     * bucket b from element weight_offsets[b] on. */
    float *weights;
    const uint64_t *weight_offsets; /* (nbuckets) with `weights`, and with hyper.groups */
    /* Converts a held call's ticket when a state is loaded; NULL: it stays as it is. */
    uint64_t (*old_ticket)(uint64_t ticket);
} eni_store_config;

/* ---- events -------------------------------------------------------------------------------------------- */

enum {
    ENI_PAYLOAD_BORROWED = 1,  /* the client's memory: it may change once the call is answered */
    ENI_PAYLOAD_READ_ONLY = 2, /* mapped without write access: copied before hooks that may edit see it */
    ENI_PAYLOAD_HAS_ROOM = 4   /* for a canary (core/canary.h) behind its elements */
};

/* Float32 that an event brings. `release(owner)` is called exactly once, when the store no longer reads it;
 * NULL: nothing to release. */
typedef struct eni_payload {
    float *data; /* (count); NULL: none */
    uint64_t count;
    uint32_t flags; /* ENI_PAYLOAD_* */
    void (*release)(void *owner);
    void *owner;
} eni_payload;

typedef enum eni_store_event_type {
    /* payload: the vector of `kind` (ENI_VECTOR_*). The weights complete a partition's start, so slots come
     * before them, once per partition; later ones: answered, not applied. */
    ENI_STORE_INIT = 1,
    ENI_STORE_CALL, /* a push (payload) or a pure pull (none); answered by one REPLY or REFUSE, maybe later */
    ENI_STORE_SNAPSHOT, /* the vector of `kind`, past the strategy and its clocks; waits for INIT */
    ENI_STORE_MEMBER,   /* `member`: EN_MEMBER_JOINED, _FINISHED or _LEFT; for all partitions */
    ENI_STORE_TIMER,    /* now_ns has come */
} eni_store_event_type;

/* `kind` of INIT and SNAPSHOT: the weights; 1 + i: slot i of the optimizer; FREEZE (SNAPSHOT only): the
 * weights, and a copy of the present slots, from which later SNAPSHOTs of slots are answered until the next
 * FREEZE. So weights and slots that are requested one by one belong together, whatever others push in
 * between. */
enum { ENI_VECTOR_WEIGHTS = 0, ENI_VECTOR_SLOT = 1, ENI_VECTOR_FREEZE = 128 };

/* `kind` of MEMBER JOINED: the clock that a client begins with: the least of the others, partition by
 * partition, or `seq`. Several clients that join a run in progress need the latter, the same on all stores:
 * partitions and stores that choose for themselves may put A before B here and B before A there, and then
 * both wait for each other without end under a small bound. */
enum { ENI_JOIN_AT_LEAST = 0, ENI_JOIN_AT_CLOCK = 1 };

typedef struct eni_store_event {
    eni_store_event_type type;
    int64_t now_ns;       /* every event; never goes back */
    int32_t client;       /* INIT, CALL, SNAPSHOT, MEMBER: rank */
    uint64_t incarnation; /* CALL, MEMBER; ignored for INIT and SNAPSHOT */
    uint64_t ticket;      /* INIT, CALL, SNAPSHOT: names the waiting call; the action returns it */
    uint32_t bucket;      /* INIT, CALL, SNAPSHOT */
    uint32_t member;      /* MEMBER */
    /* CALL: seq to is_replay as in eni_header. INIT of weights that have a past: kind, seq: optimizer steps,
     * base_version: version, nsamples: samples behind them. */
    uint64_t seq;
    uint32_t kind, what; /* kind of MEMBER JOINED: ENI_JOIN_* */
    uint64_t base_version;
    uint64_t nsamples;
    /* CALL with a payload: samples that the client has computed since its last one of this bucket, to be counted
     * as applied or dropped. */
    uint64_t covered;
    eni_payload payload; /* CALL, INIT. The store owns it from here on, also when it refuses */
    /* CALL: base_version is from an earlier incarnation of this store, which may have known more
     * (store_save.h): the lower of it and the partition's version counts. */
    bool is_replay;
} eni_store_event;

/* ---- actions ------------------------------------------------------------------------------------------- */

typedef enum eni_store_action_type {
    ENI_STORE_REPLY = 1,
    ENI_STORE_REFUSE,
    /* A TIMER event is due at when_ns; replaces the last one (INT64_MAX: none is due). A TIMER event uses it up:
     * if more is due, there is a new TIMER_AT. */
    ENI_STORE_TIMER_AT,
} eni_store_action_type;

typedef struct eni_store_action {
    eni_store_action_type type;
    int32_t client;
    uint64_t ticket;
    uint32_t bucket;
    uint32_t flags;   /* REPLY: ENI_STORE_IS_* */
    uint64_t version; /* REPLY: of the weights; the client's next base_version */
    /* REPLY: the version that the push was applied to or dropped at: staleness is met minus its base_version.
     * `version` while it is not known, and without a push. */
    uint64_t met;
    /* REPLY: (count); NULL in the answers to INIT and to old replays. Read it before the next step: it points at
     * live weights or into the payload. */
    const float *data;
    uint64_t count;
    uint64_t steps, samples; /* REPLY to SNAPSHOT: optimizer steps and samples behind the vector */
    uint64_t clock;          /* .. and the least clock of the partition's clients; 0: it has none */
    int64_t when_ns;         /* TIMER_AT */
    en_status status;        /* REFUSE */
    char text[192];          /* REFUSE: one sentence */
} eni_store_action;

enum {
    ENI_STORE_IS_REPEAT = 1, /* ENI_FLAG_REPEAT on the wire */
    ENI_STORE_IS_DATA = 2,   /* ENI_FLAG_DATA: the edited payload, not weights */
};

/* Zeroed memory is an empty list. The caller owns it and reuses it for every step. */
typedef struct eni_store_actions {
    eni_store_action *item;
    uint32_t n, room;
} eni_store_actions;

/* Safe on zeroed memory. */
void eni_store_actions_fini(eni_store_actions *actions);

/* ---- statistics ---------------------------------------------------------------------------------------- */

/* Sums over this store's partitions. A push that every partition applies counts once per partition: divide by
 * eni_store_nused for figures per message of the model. */
typedef struct eni_store_client_stats {
    uint64_t pushes, pulls;       /* new calls with and without payload */
    uint64_t applied, dropped;    /* samples, as their pushes cover them */
    uint64_t holds;               /* calls that were not answered at once */
    uint64_t bytes_in, bytes_out; /* payload of calls */
    uint64_t bytes_beside;        /* payload of INIT and of snapshots: start, evaluation, checkpoints */
    uint64_t clocks_ahead;        /* the most by which an answered call was ahead of min_clock */
    /* Versions between the weights of a push and the weights it met when it was applied; dropped pushes, and
     * those without samples, do not count. */
    eni_histogram staleness;
    /* The same, only of pushes made while all joined clients were active: each has pushed on the partition
     * before, none has finished or left. */
    eni_histogram steady;
} eni_store_client_stats;

typedef struct eni_store_stats {
    uint64_t updates;   /* optimizer steps, summed over partitions */
    uint64_t touches;   /* weights written by a hook */
    uint64_t nonfinite; /* steps refused */
    uint64_t repeats, refused;
    uint64_t detached; /* payloads copied because they were answered while staged, or read-only */
    uint64_t moved;    /* weights copied because they were in use when they were to change */
} eni_store_stats;

/* ---- calls --------------------------------------------------------------------------------------------- */

/* A store without clients and with zero weights, not initialised. EN_EINVAL (logged): no strategy, shard out
 * of range, a strategy that needs more slots than there are; EN_ENOMEM. */
en_status eni_store_new(const eni_store_config *config, eni_store **store_out);

/* Releases every payload it holds. NULL is fine. */
void eni_store_free(eni_store *store);

/* Takes in one event. Overwrites the list with the actions to take, in order. EN_OK also when the answer is a
 * REFUSE; EN_ENOMEM (logged): the store cannot go on. */
en_status eni_store_step(eni_store *store, const eni_store_event *event, eni_store_actions *actions);

/* Between two events, as often as the caller likes: logs one call that on_pull has held for 5 s, and the
 * number of others, each call once. */
void eni_store_look(eni_store *store, int64_t now_ns);

/* Elements of the partition of `bucket`, 0 if it is empty or there is no such bucket. */
uint64_t eni_store_count(const eni_store *store, uint32_t bucket);

/* Partitions that some client has ever called: a strategy may keep the others elsewhere. */
uint32_t eni_store_nused(const eni_store *store);

/* The live weights of a partition (count), valid until the next step; NULL before INIT and for an empty
 * partition. version_out may be NULL. */
const float *eni_store_weights(const eni_store *store, uint32_t bucket, uint64_t *version_out);

/* The least clock of a partition's active clients; 0: it has none. */
uint64_t eni_store_least_clock(const eni_store *store, uint32_t bucket);

/* Acquires the buffer of a partition's live weights (those of eni_store_weights): their bytes stay unchanged,
 * beyond the next steps and the end of the store, until it is released, once for each call. NULL without a
 * buffer (config->weights; an empty partition). A write to weights in use goes to a copy; the store never
 * waits for a release. */
eni_version_buffer *eni_store_acquire(eni_store *store, uint32_t bucket);

/* Any thread. `weights` is ignored: this is an eni_release. */
void eni_store_release(void *weights, void *buffer);

/* Borrowed; they change with every step. client must be 0 .. world-1. */
const eni_store_stats *eni_store_totals(const eni_store *store);
const eni_store_client_stats *eni_store_client(const eni_store *store, int32_t client);

/* With which weight on_push absorbed the last push that was taken in; NAN: it did not, and may have touched the
 * weights, or dropped the push. */
double eni_store_last_weight(const eni_store *store);

/* Whether every partition that is not empty has its initial weights. */
bool eni_store_is_initialised(const eni_store *store);

#endif
