/* group.h - what is inside an eni_coll: the common part, and the engine that moves the bytes.
 *
 * coll.c checks an operation and numbers it; the engine does the rest. There are two: direct.c (flags and
 * loads and stores in shared memory) and progress.c (sockets and a thread). group.c has what they and coll.c
 * share, below all of them. Private to runtime/collective. */
#ifndef COLLECTIVE_GROUP_H
#define COLLECTIVE_GROUP_H

#include <stdatomic.h>

#include "runtime/collective/coll.h"

typedef struct eni_engine {
    en_status (*open)(eni_coll *coll);
    en_status (*submit)(eni_coll *coll, uint64_t seq); /* coll->ops[seq % ENI_COLL_DEPTH] */
    int (*test)(eni_coll *coll, uint64_t seq);         /* 1: done. Makes progress */
    en_status (*wait)(eni_coll *coll, uint64_t seq);
    void (*close)(eni_coll *coll); /* also after a failed open */
} eni_engine;

extern const eni_engine eni_direct_engine; /* shared memory: direct, and naive over arenas */
extern const eni_engine eni_tcp_engine;    /* TCP: ring and naive */

struct eni_coll {
    eni_coll_config config;
    eni_arena **arenas;       /* (nranks) own copy of config.arenas; entries may be NULL over TCP */
    const eni_engine *engine; /* NULL: a group of one */
    void *state;              /* the engine's */
    int64_t work_ns;          /* inside submit, test and wait, so far: not waiting. 0 where a thread works */
    int64_t spin_ns;          /* how long a wait may spin: 0 when ranks share cores */
    uint64_t nsubmitted;      /* operations 0 .. nsubmitted - 1 were submitted */
    _Atomic int status;       /* the first failure, kept */
    eni_coll_op ops[ENI_COLL_DEPTH];
    int64_t begin_ns[ENI_COLL_DEPTH]; /* when submitted */
    uint64_t samples[ENI_COLL_KEPT];  /* behind all contributions, of operations that are done */

    _Atomic uint64_t payload_sent, payload_recv, wire_sent, wire_recv, shm_bytes, wait_ns;
};

/* The operation with this number, of those that are not finished. */
static inline const eni_coll_op *eni_group_op(const eni_coll *coll, uint64_t seq)
{
    return &coll->ops[seq % ENI_COLL_DEPTH];
}

/* This rank's vector of an operation. */
static inline float *eni_group_vector(const eni_coll *coll, const eni_coll_op *op)
{
    return eni_arena_at(coll->arenas[coll->config.rank], op->slot, op->offset);
}

/* What this rank's contribution weighs: its samples, or 1 where the mean is unweighted. */
static inline uint64_t eni_group_weight(const eni_coll_op *op)
{
    return op->what == EN_GRAD ? op->nsamples : 1;
}

/* What all contributions to operation seq weigh together: before it is done. */
static inline void eni_group_note_samples(eni_coll *coll, uint64_t seq, uint64_t samples)
{
    coll->samples[seq % ENI_COLL_KEPT] = samples;
}

static inline void eni_group_tally(_Atomic uint64_t *counter, uint64_t more)
{
    atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

/* The group's first failure, which stays. Returns it. Any thread. */
en_status eni_group_fail(eni_coll *coll, en_status st);
en_status eni_group_status(const eni_coll *coll);

/* An interval for --trace; nothing without a hook. */
void eni_group_trace(const eni_coll *coll, const char *name, int64_t begin_ns, int64_t end_ns,
                     uint32_t bucket, uint64_t bytes);

/* "all-reduce"; for an unknown number "operation". */
const char *eni_group_op_name(int op);

/* What a rank says it is at, for messages: flags and frames carry it. */
typedef struct eni_place_in_run {
    uint32_t epoch;
    uint64_t seq;
    int op, what;
    uint32_t bucket;
    uint64_t count;
    int dtype;     /* ENI_COLL_F32 */
    uint16_t step; /* of training: its low 16 bits, which tell neighbouring steps apart */
} eni_place_in_run;

enum { ENI_COLL_F32 = 1 }; /* what all vectors are so far; as on the wire to psd */

/* Where this rank is at operation seq. */
eni_place_in_run eni_group_place(const eni_coll *coll, uint64_t seq, const eni_coll_op *op);

/* EN_OK if both are at the same place; else logs both sides in one sentence and returns EN_EMISMATCH. */
en_status eni_group_agree(int rank, const eni_place_in_run *ours, int peer, const eni_place_in_run *theirs);

#endif
