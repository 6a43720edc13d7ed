/* message.h - the control connection: frames (u32 length, little endian, then that many bytes of msgpack),
 * and its messages, one struct for all. Each is one msgpack array whose first element is the type;
 * docs/wire.md has the bytes. A link never blocks and belongs to one thread. Private to leader and member,
 * and to their fuzz target. */
#ifndef CONTROL_MESSAGE_H
#define CONTROL_MESSAGE_H

#include <stdbool.h>

#include "runtime/control/control.h"
#include "runtime/net/pack.h"
#include "runtime/net/token.h"

#define ENI_FRAME_MAX (ENI_BLOB_MAX + 4096u) /* a blob and the fields around it */

typedef struct eni_link {
    int fd; /* owned; -1: closed */
    eni_pack in;
    size_t in_at; /* bytes of `in` that eni_link_next has handed out */
    eni_pack out;
} eni_link;

/* Takes the connected socket over. */
void eni_link_init(eni_link *link, int fd);

/* Closes. Safe twice. */
void eni_link_fini(eni_link *link);

/* Reads what has arrived, up to one longest frame. EN_EPEER at the end of the stream. */
en_status eni_link_read(eni_link *link);

/* The next complete frame, borrowed until the next read. EN_ETIMEOUT: not complete yet; EN_EPROTO: its length
 * is over the limit or 0. */
en_status eni_link_next(eni_link *link, eni_span *frame_out);

/* Sends as much as possible now. EN_OK even if something is left: see link->out.bytes. EN_EPEER (not logged)
 * when the link is closed or the other side has gone. */
en_status eni_link_flush(eni_link *link);

enum {
    /* member: its identity, key-values that must match, data for the others; again: a rejoin */
    ENI_CTL_JOIN = 1,
    ENI_CTL_HEARTBEAT = 2, /* both: progress, and whether it waits */
    ENI_CTL_CLAIM = 3,     /* rank: requests its micro-batch number `number`; answered by CLAIMED */
    ENI_CTL_GATHER = 4,    /* rank: number, tag, blob; answered by nranks + 1 GATHERED */
    ENI_CTL_BYE = 5,       /* rank: leaves in good order; answered by the same, which servers get too */
    ENI_CTL_ABORT = 6,     /* member: the run cannot go on: reason */
    ENI_CTL_DONE = 7,      /* rank: has all blobs of gather `number` */
    ENI_CTL_WAITING = 8,   /* rank: the operation, and how long it has waited; answered by NOTICE */
    ENI_CTL_STOP = 9,      /* member: requests an early end of the run: why */
    /* rank, to PAUSE: the last step that it may take before STOPPING or SAVING, and the last one before which
     * it was to save */
    ENI_CTL_PAUSED = 10,
    ENI_CTL_READY = 11, /* server, to SERVE: its shards */
    ENI_CTL_ADDED = 12, /* server, to ASK: number, tag, blob */
    ENI_CTL_SCORE = 13, /* rank: loss and hits of its samples of a step */
    ENI_CTL_WISH = 14,  /* anybody, in place of JOIN (ask.h): token, kind, number; answered by one message */
    ENI_CTL_SAVE = 15,  /* member: requests a checkpoint, and the run goes on */
    ENI_CTL_REFUSED = 16,  /* leader, instead of WELCOME: status, reason */
    ENI_CTL_PEER = 17,     /* leader, before WELCOME and SERVE: one for every rank */
    ENI_CTL_WELCOME = 18,  /* leader: the run begins, or goes on */
    ENI_CTL_CLAIMED = 19,  /* leader: an index, or none: the budget is used up */
    ENI_CTL_GATHERED = 20, /* leader: number, tag, index of count, blob */
    ENI_CTL_DEAD = 21,     /* leader: the first failed rank */
    ENI_CTL_ENDED = 22,    /* leader: status, reason */
    ENI_CTL_LEADER = 23,   /* leader, to a JOIN that may stay: its identity, so that its death has a name */
    ENI_CTL_NOTICE = 24,   /* leader, to WAITING: a sentence to log */
    ENI_CTL_PAUSE = 25,    /* leader: an early end is being chosen: why */
    ENI_CTL_STOPPING = 26, /* leader: the run ends before this step: why */
    ENI_CTL_LEFT = 27,     /* leader: a failed rank, but the run goes on */
    ENI_CTL_SERVE = 28,    /* leader, to a server: all are there, open the shards */
    ENI_CTL_RENEWED = 29,  /* leader, to ranks: servers came back, with these addresses */
    ENI_CTL_ASK = 30,      /* leader, to a server: requests its part of this gather */
    ENI_CTL_SCORED = 31,   /* leader, to rank 0: the same of all ranks */
    ENI_CTL_CAME = 32,     /* leader, to ranks: a newcomer has joined */
    ENI_CTL_WENT = 33,     /* leader, to ranks: one that was asked to leave has left in good order */
    ENI_CTL_LEAVE = 34,  /* leader: asks a rank to leave; its next claim has no index. Rank: asks to leave */
    ENI_CTL_SAVING = 35, /* leader, to ranks: all save before this step; in a run that claims rank 0, soon */
};

/* Whether the sender of a HEARTBEAT waits. */
enum {
    ENI_WAITS_NOT = 0,
    ENI_WAITS = 1,
    ENI_WAITS_SLOWED = 2 /* over an emulated network, or for a device: not taken for a deadlock */
};

#define ENI_WHAT_MAX 32u  /* with the terminating 0 */
#define ENI_NAME_MAX 128u /* with the terminating 0 */

/* Keys and values: `pair` when encoding, `raw` (checked, not yet copied) after decoding. */
typedef struct eni_key_value_list {
    const eni_key_value *pair;
    size_t n;
    eni_span raw;
} eni_key_value_list;

/* The table in message.c says which fields a type uses. */
typedef struct eni_message {
    uint32_t type;
    eni_token token;
    int32_t rank, nranks, server, nservers, to;
    int64_t pid, step, waited_ns;
    uint64_t born, incarnation, budget, index, samples, number, done, moves, bytes;
    int64_t amount; /* WISH */
    uint32_t epoch, status, count, op, waits, kind;
    bool has_index, has_time;
    char host[256], host_id[128], tag[ENI_TAG_MAX], phase[ENI_PHASE_MAX], reason[ENI_REASON_MAX];
    char what[ENI_WHAT_MAX], name[ENI_NAME_MAX];
    eni_key_value_list key_values, member_data;
    eni_span blob;
    eni_death death; /* DEAD, LEFT */
    eni_score score; /* SCORE, SCORED */
} eni_message;

/* A blob kept for gather `number`; 0: none, as in zeroed memory. */
typedef struct eni_kept {
    uint64_t number;
    uint8_t *data;
    size_t bytes;
    char tag[ENI_TAG_MAX];
} eni_kept;

/* Keeps a copy of the message's blob in place of the previous one. False if out of memory. */
bool eni_kept_fill(eni_kept *kept, const eni_message *message);
void eni_kept_fini(eni_kept *kept);

/* Appends the message as a frame to what the link will send. */
en_status eni_message_put(eni_link *link, const eni_message *message);

/* Decodes untrusted bytes into *out; spans are borrowed from them. EN_EPROTO, or EN_EVERSION for a JOIN of
 * another version, out->number; `why_out` (may be NULL) gets a static sentence. No allocation. */
en_status eni_message_get(const uint8_t *bytes, size_t length, eni_message *out, const char **why_out);

/* Copies decoded / given key-values into one block, freed with eni_free. */
en_status eni_key_values_take(const eni_key_value_list *list, const eni_key_value **key_values_out);
en_status eni_key_values_copy(const eni_key_value *key_values, size_t n,
                              const eni_key_value **key_values_out);

/* The message about a peer; its member data are borrowed. */
void eni_message_set_peer(eni_message *message, const eni_peer *peer);

/* Fills a peer with copies of host, host_id and member data; fini frees them. */
en_status eni_peer_init(eni_peer *peer, const eni_message *message);
en_status eni_peer_copy(eni_peer *peer, const eni_peer *of);
void eni_peer_fini(eni_peer *peer);

#endif
