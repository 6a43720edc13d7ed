/* group.h - what is inside an eni_coll: the common part, and the engine that moves the bytes.
 *
 * coll.c checks an operation and numbers it; the engine does the rest. There are two: direct.c (flags and
 * loads and stores in shared memory) and progress_engine.c (sockets and a thread). group.c has what they and
 * coll.c share, below all of them. Private to runtime/collective. */
#ifndef COLLECTIVE_GROUP_H
#define COLLECTIVE_GROUP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "core/clock.h"
#include "runtime/collective/coll.h"

/* The calls of an engine. Collectives have their numbers, the same on all ranks: op is coll->ops[seq %
 * ENI_COLL_DEPTH]. A rank's sendrecvs have numbers of its own: coll->pairs[n % ENI_COLL_DEPTH]. close also
 * follows a failed open. */
typedef struct eni_engine {
    en_status (*open)(eni_coll *coll);
    en_status (*submit)(eni_coll *coll, uint64_t seq);
    bool (*test)(eni_coll *coll, uint64_t seq);
    en_status (*wait)(eni_coll *coll, uint64_t seq);
    en_status (*submit_pair)(eni_coll *coll, uint64_t n);
    bool (*test_pair)(eni_coll *coll, uint64_t n);
    en_status (*wait_pair)(eni_coll *coll, uint64_t n);
    void (*close)(eni_coll *coll);
} eni_engine;

extern const eni_engine eni_engine_direct; /* shared memory: direct and naive */
extern const eni_engine eni_engine_tcp;    /* ring, naive and sendrecv */

/* A sendrecv: its two halves are on two directed links, each with numbers of its own, so that a rank which
 * has no part in it need not know of it. */
typedef struct eni_pair {
    eni_coll_op op;
    uint64_t after;       /* collectives submitted before: the same on both ends of a link */
    uint64_t to_number;   /* of the vectors from this rank to op.to */
    uint64_t from_number; /* of those from op.from to this rank */
    int64_t begin_ns;
} eni_pair;

struct eni_coll {
    eni_coll_config config;
    eni_arena **arenas;       /* (nranks) own copy of config.arenas; entries may be NULL over TCP */
    const eni_engine *engine; /* NULL: a group of one */
    void *state;              /* the engine's */
    bool can_share;           /* eni_coll_can_share */
    int64_t work_ns;          /* inside submit, test and wait, so far: not waiting. 0 where a thread works */
    int64_t spin_ns;          /* how long a wait may spin: 0 when ranks share cores */
    uint64_t nsubmitted;      /* operations 0 .. nsubmitted - 1 were submitted */
    _Atomic int status;       /* the first failure, kept */
    eni_coll_op ops[ENI_COLL_DEPTH];
    int64_t begin_ns[ENI_COLL_DEPTH]; /* when submitted */
    uint64_t npairs;                  /* sendrecvs submitted; they are not among nsubmitted */
    eni_pair pairs[ENI_COLL_DEPTH];
    uint64_t *nsent, *nwanted;       /* (nranks) vectors that they send to each rank, and want from it */
    uint64_t samples[ENI_COLL_KEPT]; /* behind all contributions, of operations that are done */

    _Atomic uint64_t payload_sent, payload_recv, wire_sent, wire_recv, shm_bytes, wait_ns;
};

/* The unfinished operation of this number. */
static inline const eni_coll_op *eni_group_op(const eni_coll *coll, uint64_t seq)
{
    return &coll->ops[seq % ENI_COLL_DEPTH];
}

static inline const eni_pair *eni_group_pair(const eni_coll *coll, uint64_t n)
{
    return &coll->pairs[n % ENI_COLL_DEPTH];
}

/* This rank's vector of an operation. */
static inline float *eni_group_vector(const eni_coll *coll, const eni_coll_op *op)
{
    return eni_arena_at(coll->arenas[coll->config.rank], op->slot, op->offset);
}

/* The half of a sendrecv with the rank itself. */
static inline void eni_group_copy(const eni_coll *coll, const eni_coll_op *op)
{
    if (op->slot_in == op->slot) return;
    memcpy(eni_arena_at(coll->arenas[coll->config.rank], op->slot_in, op->offset), eni_group_vector(coll, op),
           op->count * sizeof(float));
}

/* The weight of this rank's contribution: its samples, or 1 where the mean is unweighted. */
static inline uint64_t eni_group_weight(const eni_coll_op *op)
{
    return op->what == EN_GRAD ? op->nsamples : 1;
}

/* Records the weight of all contributions to operation seq, before it is done. */
static inline void eni_group_note_samples(eni_coll *coll, uint64_t seq, uint64_t samples)
{
    coll->samples[seq % ENI_COLL_KEPT] = samples;
}

static inline void eni_group_count(_Atomic uint64_t *counter, uint64_t more)
{
    atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

/* Keeps the group's first failure, and returns it. Any thread. */
en_status eni_group_fail(eni_coll *coll, en_status st);

static inline en_status eni_group_status(const eni_coll *coll)
{
    return atomic_load_explicit(&coll->status, memory_order_acquire);
}

/* An interval for --trace; nothing without a hook. */
static inline void eni_group_trace(const eni_coll *coll, const char *name, int64_t begin_ns, int64_t end_ns,
                                   uint32_t bucket, uint64_t bytes)
{
    if (coll->config.trace != NULL)
        coll->config.trace(coll->config.trace_user, name, begin_ns, end_ns, bucket, bytes);
}

/* The interval of a whole operation that ends now. */
static inline void eni_group_trace_op(const eni_coll *coll, int64_t begin_ns, const eni_coll_op *op)
{
    if (coll->config.trace != NULL)
        eni_group_trace(coll, eni_coll_op_name(op->op), begin_ns, eni_now_ns(), op->bucket,
                        op->count * sizeof(float));
}

/* A rank's position, for messages: flags and frames carry it. */
typedef struct eni_call_position {
    uint32_t epoch;
    uint64_t seq;   /* of the group's collectives, or of the vectors on a link */
    uint64_t after; /* a sendrecv: collectives before it; else 0 */
    int op, what;
    uint32_t bucket;
    uint64_t count;
    int dtype;     /* ENI_COLL_F32 */
    uint16_t step; /* of training: its low 16 bits, enough to distinguish neighbouring steps */
} eni_call_position;

enum { ENI_COLL_F32 = 1 }; /* the only element type so far; the number used on the wire to psd */

/* A rank's position at operation seq. */
static inline eni_call_position eni_group_position(uint32_t epoch, uint64_t seq, const eni_coll_op *op)
{
    return (eni_call_position){.epoch = epoch,
                               .seq = seq,
                               .op = op->op,
                               .what = op->what,
                               .bucket = op->bucket,
                               .count = op->count,
                               .dtype = ENI_COLL_F32,
                               .step = (uint16_t)op->step};
}

/* A rank's position at its half of a sendrecv: the n-th vector on a link. */
static inline eni_call_position eni_group_half(uint32_t epoch, uint64_t n, uint64_t after,
                                               const eni_coll_op *op)
{
    eni_call_position half = eni_group_position(epoch, n, op);
    half.after = after;
    return half;
}

/* Logs both sides in one sentence. Returns EN_EMISMATCH. */
en_status eni_group_disagree(int rank, const eni_call_position *ours, int peer,
                             const eni_call_position *theirs);

/* EN_OK if both are at the same position. */
static inline en_status eni_group_agree(int rank, const eni_call_position *ours, int peer,
                                        const eni_call_position *theirs)
{
    if (ours->epoch == theirs->epoch && ours->seq == theirs->seq && ours->op == theirs->op &&
        ours->after == theirs->after && ours->what == theirs->what && ours->bucket == theirs->bucket &&
        ours->count == theirs->count && ours->dtype == theirs->dtype && ours->step == theirs->step)
        return EN_OK;
    return eni_group_disagree(rank, ours, peer, theirs);
}

#endif
