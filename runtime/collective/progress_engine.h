/* progress_engine.h - the progress thread of a group over TCP, and the algorithms that it runs.
 *
 * The thread owns the sockets and every operation in flight. An algorithm (ring.c, naive.c) decides what a
 * collective sends to whom and what it does with arriving data; it never touches a socket and never waits.
 * Sendrecvs are apart (sendrecv.c): they have other numbers, and an end of their own.
 *
 * Order. On every link the oldest unfinished collective goes first. Data of a later one is sent only to a
 * rank that has announced (READY) that it has submitted it. So a receiver that meets an operation which it
 * has not submitted yet may simply stop reading: nothing that it needs can be behind.
 * Private to runtime/collective. */
#ifndef COLLECTIVE_PROGRESS_ENGINE_H
#define COLLECTIVE_PROGRESS_ENGINE_H

#include <poll.h>
#include <pthread.h>

#include "runtime/collective/group.h"

/* ---- a TCP connection between two ranks ---- */

/* A frame is a header of 88 bytes, little-endian, and up to one segment of float32. */

#define ENI_FRAME_MAGIC 0x314c4f43u /* "COL1" */

enum { ENI_FRAME_DATA = 1, ENI_FRAME_READY = 2 };

typedef struct eni_frame {
    uint32_t magic;
    uint8_t type;  /* ENI_FRAME_* */
    uint8_t dtype; /* DATA: ENI_COLL_F32 */
    uint8_t op, what;
    uint32_t epoch;
    int32_t rank;   /* the sender */
    uint64_t seq;   /* DATA: of the collective, or of the vector on its link; READY: collectives submitted */
    uint64_t count; /* elements of the whole operation */
    uint32_t bucket;
    int16_t step;      /* of the ring; 0 elsewhere */
    uint16_t training; /* step of training, the low bits */
    uint64_t lo, hi;   /* the range that this payload belongs to, within the operation */
    uint64_t at;       /* first element of the payload, within [lo, hi] */
    union {
        uint64_t nsamples; /* behind the payload; of a sum: so far. Ring, step 0: not yet multiplied */
        uint64_t after;    /* a sendrecv: collectives that the sender has submitted before */
        uint64_t wanted;   /* READY: vectors that the sender has asked for on this link */
    };
    int64_t deliver_ns; /* --net emulation: not before this time; 0: at once */
    uint32_t n;         /* elements of the payload */
    uint32_t crc;       /* CRC-32C of the header with a crc of 0, then the payload; 0 where it is not used */
} eni_frame;
_Static_assert(sizeof(eni_frame) == 88, "no padding: the struct is the wire format");

typedef struct eni_stream {
    int fd; /* -1: none, or the peer has closed in good order */
    int peer;
    bool has_crc;                     /* both sides fill in and check the checksum */
    bool has_data;                    /* the peer has sent data, so it needs our READY */
    uint64_t peer_ready;              /* collectives the peer has announced as submitted */
    uint64_t peer_wants;              /* and vectors from us */
    uint64_t told_ready, told_wanted; /* as last announced to it */
    uint64_t nwanted;                 /* vectors that sendrecvs so far want from it */

    bool is_sending;
    eni_frame tx;
    const float *tx_data;
    size_t tx_done; /* bytes of header and payload */
    int64_t tx_begin_ns;

    eni_frame rx;
    size_t rx_done;     /* bytes of header and payload */
    uint32_t rx_crc;    /* of what has arrived of the frame; 0 where it is not used */
    float *rx_data;     /* NULL: the header is not complete, or not accepted yet */
    int64_t rx_hold_ns; /* > 0: complete, but the emulated network delivers it then */
    int64_t rx_begin_ns;
    int lowat;      /* SO_RCVLOWAT, as set by the progress thread; 0: not yet */
    float *scratch; /* (segment) for payloads that are added, not stored */
} eni_stream;

static inline size_t eni_frame_payload(const eni_frame *frame)
{
    return (size_t)frame->n * sizeof(float);
}

/* With the header. */
static inline size_t eni_frame_bytes(const eni_frame *frame)
{
    return sizeof *frame + eni_frame_payload(frame);
}

/* ---- operations in flight ---- */

typedef struct eni_chunk { /* a range of the operation that travels round the ring */
    uint64_t lo, hi;
    uint64_t nsamples; /* behind this rank's copy of the sum */
} eni_chunk;

typedef struct eni_hop {     /* a step of the ring: how much of its chunk was sent on, and has arrived */
    uint64_t sent, received; /* elements */
    bool is_sent, is_received;
} eni_hop;

typedef struct eni_coll_message { /* sent to or received from one peer */
    uint64_t lo, hi, at;          /* elements [lo, hi), `at` of them are done */
    uint64_t nsamples;
    int nleft; /* 0: complete (ring: steps to go) */
} eni_coll_message;

typedef struct eni_inflight { /* an operation in progress */
    const eni_coll_op *op;
    uint64_t seq;
    const struct eni_algorithm *algorithm;
    float *vector;
    int nsending; /* frames handed to links that have not left */
    bool is_done;

    int first_step, last_step;       /* ring */
    int nearest_step, farthest_step; /* only these can have something to send */
    eni_hop *hops;                   /* (2 nranks - 1) by step + 1 */
    eni_chunk *chunks;               /* (nranks) */
    eni_coll_message *out, *in;      /* (nranks) ring: nleft only; zeroed before start */
} eni_inflight;

typedef struct eni_pair_inflight { /* one in progress */
    const eni_pair *pair;
    uint64_t sent, received; /* elements: handed to the link, and here */
    int nsending;
    bool has_left, has_arrived, is_done; /* has_left: all frames were handed to the link */
} eni_pair_inflight;

typedef struct eni_pairs_inflight {
    /* Between the compute thread and the progress thread. */
    _Atomic uint64_t pairs_submitted;
    eni_flag ndone;                              /* or ENI_PROGRESS_FAILED */
    _Atomic uint64_t pairs_done[ENI_COLL_DEPTH]; /* 1 + number of the last that had this place */
    /* The progress thread's. */
    uint64_t nstarted, oldest;
    eni_pair_inflight at[ENI_COLL_DEPTH];
} eni_pairs_inflight;

static inline eni_pair_inflight *eni_pair_at(eni_pairs_inflight *all, uint64_t n)
{
    return &all->at[n % ENI_COLL_DEPTH];
}

typedef struct eni_algorithm {
    bool is_exclusive; /* receives only while it is the oldest: it uses scratch of the group's */

    void (*start)(eni_coll *coll, eni_inflight *inflight);

    /* The next frame for `peer`, if one can go now: fills step, lo, hi, at, n, nsamples and the payload's
     * address, advances the operation, and returns true. */
    bool (*next)(eni_coll *coll, eni_inflight *inflight, int peer, eni_frame *frame, const float **data_out);

    /* A header of this operation arrived. Sets where the payload goes (NULL: the link's scratch); false if
     * the algorithm does not expect it now. */
    bool (*accept)(eni_coll *coll, eni_inflight *inflight, int peer, const eni_frame *frame,
                   float **data_out);

    /* The payload is complete. */
    void (*arrived)(eni_coll *coll, eni_inflight *inflight, int peer, const eni_frame *frame, float *data);

    void (*end)(eni_coll *coll, eni_inflight *inflight); /* may be NULL */
} eni_algorithm;

#define ENI_PROGRESS_FAILED UINT64_MAX /* value of completed that wakes every waiter */

typedef struct eni_progress_engine {
    /* Between the compute thread and the progress thread. */
    _Atomic uint64_t submitted; /* operations 0 .. n - 1 are in coll->ops */
    eni_flag completed;         /* operations 0 .. n - 1 are done, or ENI_PROGRESS_FAILED */
    atomic_bool is_stopping;
    int wake_fd; /* eventfd: submitted or is_stopping changed */
    bool is_started;
    pthread_t thread;

    /* The progress thread's. */
    uint64_t nstarted, oldest; /* operations oldest .. nstarted - 1 are in flight, done ones among them */
    eni_inflight *inflight;    /* (ENI_COLL_DEPTH) */
    eni_stream *streams;       /* (nranks); [rank] and missing ones have fd -1 */
    struct pollfd *polls;      /* (2 + nranks) */
    float *segment;            /* (segment) ring only: for sums on their way */
    float *scratch;            /* (nranks, max_count) naive only */
    eni_chunk *chunks;
    eni_hop *hops;
    eni_coll_message *messages;
    eni_pairs_inflight pairs;
} eni_progress_engine;

extern const eni_algorithm eni_ring_algorithm, eni_naive_algorithm;

/* The header of a frame of an operation; the range is still to come. */
static inline eni_frame eni_frame_of(const eni_coll *coll, uint64_t seq, const eni_coll_op *op)
{
    return (eni_frame){.magic = ENI_FRAME_MAGIC,
                       .type = ENI_FRAME_DATA,
                       .dtype = ENI_COLL_F32,
                       .op = (uint8_t)op->op,
                       .what = (uint8_t)op->what,
                       .epoch = coll->config.epoch,
                       .rank = coll->config.rank,
                       .seq = seq,
                       .count = op->count,
                       .bucket = op->bucket,
                       .training = (uint16_t)op->step};
}

/* ---- sendrecvs, on the progress thread (sendrecv.c) ---- */

/* Starts what was submitted: after the collectives. */
void eni_pairs_start(eni_coll *coll);

/* Reports those that are done. Whether there were any. */
bool eni_pairs_end(eni_coll *coll);

/* The next frame on this link, if one can go now; and one that has left. */
bool eni_pairs_next(eni_coll *coll, const eni_stream *stream, eni_frame *frame, const float **data_out);
void eni_pairs_left(eni_coll *coll, const eni_stream *stream);

/* The one that the next vector from a rank is for, or NULL; whether it expects this frame, and where the payload
 * goes; the payload is complete. */
eni_pair_inflight *eni_pairs_expected(const eni_coll *coll, int peer);
bool eni_pairs_accept(const eni_coll *coll, const eni_pair_inflight *s, const eni_frame *frame,
                      float **data_out);
void eni_pairs_arrived(const eni_coll *coll, const eni_stream *stream);

/* One that still needs this rank, or NULL. */
const eni_coll_op *eni_pairs_need(const eni_coll *coll, int peer);

/* Elements of the next frame at `at` of a range of `length`. */
static inline uint64_t eni_segment_at(const eni_coll *coll, uint64_t length, uint64_t at)
{
    const uint64_t left = length - at;
    return left < coll->config.segment ? left : coll->config.segment;
}

#endif
