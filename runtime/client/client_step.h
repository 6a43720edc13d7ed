/* client_step.h - a client of the parameter server as a pure function: step(state, event) -> actions.
 *
 * It has no socket, no clock and no thread: all input comes with the event, all output is actions. So the
 * same code runs on sockets and shared memory (client.c) and in virtual time with messages that are lost,
 * duplicated and delayed and with stores that die (runtime/sim/faults).
 *
 *     CALL, FINISH     ->  +-----------------------------------+  ->  SEND       this message to that shard
 *     ANSWER           ->  | partition: seq, version, durable, |  ->  COMPLETE   this call has its answer
 *     RETURNED         ->  |            retransmit queue       |  ->  REFUSED    by a shard, with a reason
 *     OVERDUE, ASK     ->  | shard: epoch, replays, goodbye    |  ->  RECOVERED  nothing is left to replay
 *                          +-----------------------------------+
 *
 * A partition (bucket x shard) has at most one call in flight. The n-th CALL on it has seq n; an answer
 * belongs to the call in flight if its epoch and seq match; late and duplicate answers are dropped.
 *
 * With `keep` every CALL and INIT is copied into the partition's retransmit queue, until the shard reports in
 * an answer that it is on its disk (`stable`). A shard that comes back has a new epoch: its partitions replay
 * what they kept, each after the answer to the one before; the shard recognises by seq which are new to it. A
 * new call joins the queue. If the last one replayed is the call in flight, its answer is that call's answer.
 *
 *     queue:   #7 -> #8 -> #9 -> #10      durable up to 6 when the shard died
 *                    ^replay      ^last, in flight
 *
 * The last durable call stays in the queue and is replayed first: the saved state may have it in a round that
 * must be repeated, and later calls must not get into that round (store_save.h). This is upstream backup
 * (Hwang'05): producers keep what a consumer has not secured. */
#ifndef CLIENT_CLIENT_STEP_H
#define CLIENT_CLIENT_STEP_H

#include <stdbool.h>

#include "runtime/net/wire.h"

/* ---- state: read by all, written by eni_client_step only ----------------------------------------------- */

/* A call that a shard may not have on its disk, with its payload. Reused within its partition. */
typedef struct eni_client_kept {
    struct eni_client_kept *next;
    uint64_t order;      /* 1, 2, .. in its partition: INIT has no seq */
    uint32_t base_epoch; /* of the incarnation that gave base_version */
    eni_header header;
    float *data; /* (count) owned; NULL: never needed */
} eni_client_kept;

typedef struct eni_client_partition {
    /* Elements, relative to the bucket, set by the caller that makes the shard known; count 0: empty. */
    uint64_t lo, count;
    uint64_t seq;        /* of the last call */
    uint64_t awaited;    /* the seq that the answer must carry; 0 for anything but a call */
    uint64_t version;    /* of the last answer: what the next gradient is computed on */
    uint32_t base_epoch; /* of the incarnation that gave `version` */
    uint64_t behind;     /* staleness of the last push that was answered */
    uint64_t past_version, past_steps, past_samples; /* of the last snapshot, or for the next INIT */
    uint64_t least_clock;                            /* of the partition's clients, as of the last snapshot */
    bool in_flight, is_push, is_snapshot, is_aside;

    /* with `keep` */
    eni_client_kept *first, *last, *idle; /* the queue, oldest first; ready for reuse */
    uint32_t nkept;
    uint64_t order;          /* of the last one */
    uint64_t durable;        /* calls up to this seq are on the shard's disk */
    eni_client_kept *replay; /* its answer is awaited; those after it are not sent yet */
    eni_header snapshot;     /* in flight, or waits for the end of the replay; type 0: none */
    bool is_asking;          /* for the seq up to which it is durable */
} eni_client_partition;

typedef enum eni_client_goodbye {
    ENI_CLIENT_NO_GOODBYE,
    ENI_CLIENT_GOODBYE,        /* the shard knows that no more calls come */
    ENI_CLIENT_GOODBYE_DURABLE /* and has all of them on its disk */
} eni_client_goodbye;

typedef struct eni_client_shard {
    uint32_t epoch;
    uint32_t replaying; /* partitions */
    eni_client_goodbye goodbye;
    eni_client_partition *parts; /* (nbuckets) since it has been there once; NULL: it is not known */
} eni_client_shard;

typedef struct eni_client_state {
    int32_t rank;
    uint64_t incarnation;
    uint32_t nbuckets, keep;
    int nshards;
    bool is_finishing;
    uint32_t replaying;       /* partitions, of all shards */
    eni_client_shard *shards; /* (nshards) */
} eni_client_state;

/* Only of a known shard. */
static inline eni_client_partition *eni_client_partition_at(const eni_client_state *state, uint32_t bucket,
                                                            int shard)
{
    return &state->shards[shard].parts[bucket];
}

/* `keep`: calls per partition to keep at most; 0: none, then no shard can come back. EN_ENOMEM. */
en_status eni_client_state_init(eni_client_state *state, uint32_t nbuckets, int nshards, int32_t rank,
                                uint64_t incarnation, uint32_t keep);
/* Safe on zeroed memory. */
void eni_client_state_fini(eni_client_state *state);

/* ---- events -------------------------------------------------------------------------------------------- */

typedef enum eni_client_event_type {
    /* (bucket, shard): `message` of type CALL, INIT or SNAPSHOT has kind, what, nsamples, covered, step;
     * there is room (eni_client_has_room), and no call in flight */
    ENI_CLIENT_CALL = 1,
    /* `message`: REPLY, REFUSED or GOODBYE, as it arrived */
    ENI_CLIENT_ANSWER,
    /* (shard): its incarnation with this `epoch` is there; the first one makes it known, another one has lost
     * all messages under way */
    ENI_CLIENT_RETURNED,
    /* (bucket, shard): the answer is late: resends the awaited message. Bucket ENI_CLIENT_ALL: FINISHED. For
     * transports that lose messages; needs `keep` */
    ENI_CLIENT_OVERDUE,
    /* (bucket, shard): no room: asks how far the partition is durable */
    ENI_CLIENT_ASK,
    /* `message` has kind and step: sent to every shard, not answered. Sent to none while one is behind with
     * replays, because it would keep old weights */
    ENI_CLIENT_KEEP,
    /* no more calls come: FINISHED goes to every shard, after its replays */
    ENI_CLIENT_FINISH
} eni_client_event_type;

#define ENI_CLIENT_ALL UINT32_MAX

typedef struct eni_client_event {
    eni_client_event_type type;
    uint32_t bucket;
    int shard;
    uint32_t epoch;
    const eni_header *message;
    float *payload; /* CALL: (the partition's count) or NULL. Copied if kept; else valid until COMPLETE */
    bool is_aside;  /* CALL: a look at the store's weights, on which no gradient will be computed */
} eni_client_event;

/* ---- actions ------------------------------------------------------------------------------------------- */

typedef enum eni_client_action_type {
    ENI_CLIENT_SEND = 1,
    ENI_CLIENT_COMPLETE, /* by the ANSWER of this step: its vector is the call's */
    ENI_CLIENT_REFUSED,  /* `message` says why. is_call: it refuses the call in flight, which is over */
    ENI_CLIENT_RECOVERED
} eni_client_action_type;

typedef struct eni_client_action {
    eni_client_action_type type;
    uint32_t bucket;
    int shard;
    bool is_call;
    bool is_first;     /* SEND: the call of this step: `payload` is the caller's memory */
    bool is_replay;    /* SEND: a kept call */
    float *payload;    /* SEND: (header.count), valid until the next step; NULL: none */
    eni_header header; /* SEND: complete but for deliver_ns and what shared memory adds */
} eni_client_action;

/* Zeroed memory is an empty list. The caller owns it and reuses it for every step. */
typedef struct eni_client_actions {
    eni_client_action *item;
    uint32_t n, room;
} eni_client_actions;

void eni_client_actions_fini(eni_client_actions *actions);

/* ---- calls --------------------------------------------------------------------------------------------- */

/* Takes in one event. Overwrites the list with the actions to take, in order. EN_EPROTO (logged): an invalid
 * answer; EN_EBUG (logged): a second call on a partition; EN_ENOMEM. */
en_status eni_client_step(eni_client_state *state, const eni_client_event *event,
                          eni_client_actions *actions);

/* Whether one more call of this type can be kept. */
bool eni_client_has_room(const eni_client_state *state, const eni_client_partition *partition, uint32_t type);

/* Drops a partition's oldest call, because its shard saves nothing. */
void eni_client_drop_first(eni_client_partition *partition);

/* The store's last answers on a bucket. */
typedef struct eni_client_answer {
    uint64_t version; /* the least over its partitions */
    double staleness; /* versions between the weights the last push was computed on and those it met: the
                         mean over the partitions. 0 before the first push */
} eni_client_answer;
eni_client_answer eni_client_state_answered(const eni_client_state *state, uint32_t bucket);

#endif
