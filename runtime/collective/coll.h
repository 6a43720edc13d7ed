/* coll.h - collectives among a group of ranks: the mean of everybody's vector, and its relatives.
 *
 *     direct  shared memory, one host. Rank r owns slice r: it reads the slice from all ranks in rank order,
 *             and writes the mean to all. Two flag exchanges. Bytes per rank: 2 (n-1)/n of the vector.
 *     ring    plain TCP to two neighbours (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce"): chunk c
 *             starts at rank c and is summed on its way round, then the means go round once more. The same
 *             bytes, 2 (n-1) hops. The order of each sum is ENI_SUM_RING.
 *     naive   everybody sends everything to everybody and sums alone: (n-1) vectors per rank.
 *
 * direct also has the mean and what follows it in one pass (ENI_COLL_MEAN_STEP): the owner of a slice has a
 * function that reads it from all ranks and steps the one copy of the weights.
 *
 * All ranks of a group submit the same collectives in the same order; so none is ever negotiated. A sendrecv
 * concerns its partners only, who submit it at the same place among their collectives; any matching of ranks
 * will do. Every flag and every frame carries epoch, sequence, operation, bucket, count and training step: ranks
 * that disagree get EN_EMISMATCH with both sides named, never a sum.
 *
 * Progress. submit() returns at once. `direct` moves when its owner thread is inside submit, test or wait;
 * sockets are moved by a thread of their own, so that they send while backward still computes.
 *
 * Failure. A wait lasts as long as the peers are alive (eni_alive), in slices of at most 20 ms. After the
 * first failure the group is broken: every later call returns the same status, and the vectors of unfinished
 * operations have undefined contents. A new epoch opens a new group.
 *
 * One thread at a time may call into a group (the compute thread). */
#ifndef COLLECTIVE_COLL_H
#define COLLECTIVE_COLL_H

#include <stdbool.h>
#include <stdint.h>

#include "entrain/status.h"
#include "entrain/strategy.h"
#include "ops/mean.h"
#include "runtime/collective/arena.h"
#include "runtime/collective/sync.h"

struct eni_shaper; /* net/shaper.h */

typedef struct eni_coll eni_coll;

enum { ENI_COLL_AUTO, ENI_COLL_DIRECT, ENI_COLL_RING, ENI_COLL_NAIVE };
enum { ENI_OVER_SHM, ENI_OVER_TCP };

/* "auto", "direct", "ring", "naive"; else "unknown". */
const char *eni_coll_algorithm_name(int algorithm);

/* ---- what to use ---- */

typedef struct eni_coll_facts {
    int asked; /* ENI_COLL_* as the user wrote it */
    int nranks;
    int nhosts;         /* hosts that share memory within, never across */
    bool is_shaped;     /* --net: the network is emulated, so there must be one */
    const char *no_shm; /* why one host's ranks cannot share memory; NULL: they can */
    bool naive_in_shm;  /* measurements: naive uses shared memory if it can; runs: TCP */
} eni_coll_facts;

typedef struct eni_coll_choice {
    int algorithm; /* never ENI_COLL_AUTO */
    int transport; /* ENI_OVER_* */
    char why[160]; /* one clause for result.json: "2 ranks on one host share memory" */
} eni_coll_choice;

/* Pure: the same facts give the same choice on all ranks. EN_EINVAL, logged, if the request is impossible
 * (direct across hosts, direct with --net). */
en_status eni_coll_choose(const eni_coll_facts *facts, eni_coll_choice *choice_out);

/* ---- open ---- */

/* An interval on this rank's monotonic clock, for --trace. From the compute thread or the progress thread.
 * Names: the operation's ("all-reduce", submit to done); direct: "exchange" (this rank's share of the work);
 * TCP, per frame: "send", "receive", "add". */
typedef void (*eni_coll_trace)(void *user, const char *name, int64_t begin_ns, int64_t end_ns,
                               uint32_t bucket, uint64_t bytes);

typedef struct eni_coll_config {
    int rank, nranks;        /* in this group */
    uint32_t epoch;          /* of the membership */
    int algorithm;           /* ENI_COLL_DIRECT, RING or NAIVE, as chosen */
    int transport;           /* ENI_OVER_* */
    eni_sum_order sum_order; /* direct, naive; a ring has its own, which ENI_SUM_RING follows */

    /* (nranks) the ranks' arenas, all of one shape. Over TCP only [rank] is used, the others may be NULL.
     * Borrowed; they outlive the group. */
    eni_arena *const *arenas;
    int area; /* ENI_AREA_WORLD, GROUP or LEADERS: where the flags lie; one open group per area */

    /* (nranks) connected TCP sockets by rank, -1 if not connected; NULL over shared memory. ring needs
     * rank - 1 and rank + 1 (mod nranks: one socket if there are two ranks), naive and sendrecv every peer's.
     * Taken on success, still the caller's on failure. */
    const int *sockets;

    uint64_t segment;          /* elements per TCP frame; 0: 65536 (256 KiB) */
    bool has_crc;              /* a checksum in every TCP frame; else only between hosts */
    uint64_t max_count;        /* elements of the largest operation, for naive's scratch; 0: the arena's */
    struct eni_shaper *shaper; /* --net emulation, or NULL. Borrowed */
    eni_alive alive;
    eni_coll_trace trace; /* or NULL */
    void *trace_user;
} eni_coll_config;

/* Opens a group. All ranks call it, in any order, without waiting for each other. Allocates all that
 * operations need. Over TCP it starts the progress thread. EN_EINVAL for an invalid config (logged),
 * EN_ENOMEM. */
en_status eni_coll_open(const eni_coll_config *config, eni_coll **coll_out);

/* Ends the group. Orderly ends on TCP wait up to a second for the neighbours to have read everything.
 * NULL is fine. */
void eni_coll_close(eni_coll *coll);

/* ---- operations ---- */

/* Beside EN_ALLREDUCE (1) .. EN_BCAST (5). */
enum { ENI_COLL_SENDRECV = 6, ENI_COLL_BARRIER = 7, ENI_COLL_MEAN_STEP = 8 };

/* Averages elements [lo, hi) of the gradients and steps with the mean; `from` begins at element lo. Called
 * for this rank's slice, in one piece or, with `copies`, several, unless no rank has samples: then nothing
 * is stepped. On the thread inside submit, test or wait; must not call into the group. */
typedef void (*eni_coll_on_reduced)(void *user, uint64_t lo, uint64_t hi, const eni_sources *from);

typedef struct eni_coll_op {
    int op;          /* EN_ALLREDUCE, EN_REDUCE_SCATTER, EN_ALLGATHER, EN_REDUCE (to 0), EN_BCAST (from 0),
                        ENI_COLL_SENDRECV, ENI_COLL_BARRIER, ENI_COLL_MEAN_STEP (direct only) */
    int what;        /* EN_GRAD: the mean is weighted by nsamples; EN_DELTA, EN_WEIGHTS: it is not */
    uint32_t bucket; /* whose vector it is; for messages and traces */
    uint64_t step;   /* of training, the same on all ranks; 0 outside of steps */
    uint32_t slot;   /* works in place on [offset, offset + count) of this slot */
    uint64_t offset, count;
    uint64_t lo, hi;   /* EN_REDUCE_SCATTER, EN_ALLGATHER: this rank's range, relative to offset. The ranks'
                          ranges do not overlap. After a reduce-scatter only [lo, hi) is defined */
    uint64_t nsamples; /* behind this rank's contribution; 0: ignored, whatever it holds */
    /* ENI_COLL_SENDRECV: sends `slot` to rank `to`, receives into `slot_in` from `from`. The rank itself as `to`:
     * sends to nobody; as `from`: its own vector. */
    int to, from;
    uint32_t slot_in; /* ENI_COLL_SENDRECV: receives; ENI_COLL_MEAN_STEP with `copies`: what is copied */
    /* ENI_COLL_MEAN_STEP: takes the mean; the vectors stay as they are. All ranks may read what it writes on
     * one rank once the operation is done. With `copies`, what it has written of slot_in goes to all ranks'. */
    eni_coll_on_reduced on_reduced;
    void *on_reduced_user;
    bool copies;
} eni_coll_op;

/* "all-reduce"; for an unknown number "operation". */
static inline const char *eni_coll_op_name(int op)
{
    switch (op) {
    case EN_ALLREDUCE: return "all-reduce";
    case EN_REDUCE_SCATTER: return "reduce-scatter";
    case EN_ALLGATHER: return "all-gather";
    case EN_REDUCE: return "reduce";
    case EN_BCAST: return "broadcast";
    case ENI_COLL_SENDRECV: return "sendrecv";
    case ENI_COLL_BARRIER: return "barrier";
    case ENI_COLL_MEAN_STEP: return "all-reduce with a step";
    default: return "operation";
    }
}

/* Whether it leaves a mean of the ranks' vectors, on all of them or on one. */
static inline bool eni_coll_is_reduction(const eni_coll_op *op)
{
    return op->op == EN_ALLREDUCE || op->op == EN_REDUCE_SCATTER || op->op == EN_REDUCE;
}

/* Starts an operation on the owner's vectors; the op is copied. Until it is done the vectors belong to the
 * group: a failed or unfinished operation leaves them undefined, and so does EN_REDUCE on ranks other than 0.
 * *req_out is never 0. At most ENI_COLL_DEPTH may be unfinished (EN_EBUG, logged). */
#define ENI_COLL_DEPTH 256
en_status eni_coll_submit(eni_coll *coll, const eni_coll_op *op, uint64_t *req_out);

/* Whether it is done or has failed, so that wait does not block. Makes progress. */
bool eni_coll_test(eni_coll *coll, uint64_t req);

/* Waits until the operation is done on this rank: its result may be read, and its vectors written. Any
 * order, any number of times. EN_OK, EN_EPEER, EN_EMISMATCH, EN_EPROTO, or eni_alive's status. */
en_status eni_coll_wait(eni_coll *coll, uint64_t req);

/* The samples behind all ranks' contributions to a finished reduction. UINT64_MAX: not known; another kind of
 * operation; or more than ENI_COLL_KEPT operations ago. */
#define ENI_COLL_KEPT 1024
uint64_t eni_coll_samples(const eni_coll *coll, uint64_t req);

/* submit and wait. */
en_status eni_coll_run(eni_coll *coll, const eni_coll_op *op);

/* Whether the ranks can share one copy of a vector, and so use ENI_COLL_MEAN_STEP: direct, over shared
 * memory, where the kernel maps memory twice. The same on all ranks. */
bool eni_coll_can_share(const eni_coll *coll);

/* Makes rank 0's vector in this slot the only one: every process maps it as the slot of every arena, and the
 * others' memory is freed. Waits for all ranks, before and after. EN_EINVAL unless eni_coll_can_share, else
 * as eni_coll_wait; after EN_ENOMEM the group is unusable. */
en_status eni_coll_share(eni_coll *coll, uint32_t slot);

/* The first element of this rank's vector in a slot. */
float *eni_coll_slot(const eni_coll *coll, uint32_t slot);

/* ---- what was moved ---- */

typedef struct eni_coll_counters {
    uint64_t ops;
    uint64_t payload_sent, payload_recv; /* the algorithm's own bytes */
    uint64_t wire_sent, wire_recv;       /* sockets, headers included */
    /* Read from or written to another process's memory; a mean with its step counts the others' gradients,
     * and the weights once. */
    uint64_t shm_bytes;
    uint64_t wait_ns; /* spent blocked in eni_coll_wait */
} eni_coll_counters;

/* Since open. Any thread. */
void eni_coll_count(const eni_coll *coll, eni_coll_counters *counters_out);

/* Bytes a rank sends, on average over the ranks, per byte of the vector: the theory of payload_sent. */
double eni_coll_bytes(int algorithm, int op, int nranks);

#endif
