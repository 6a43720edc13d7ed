/* direct.c - collectives on one host by loads and stores: no copy that is not a result, no socket, no thread.
 *
 * Every rank has a control block in its arena: a ring of op slots, one per operation, and a counter. An
 * operation is
 *
 *     publish   write what I am at into my op slot, then set its flag: my vector may be read
 *     perform   when all flags of this operation are set: compare the op slots, do my share
 *     finish    set my counter: I read and write nobody's vectors any more
 *     settle    when all counters have come this far, the result is complete
 *
 * so an all-reduce costs two flag exchanges and 2p loads and stores per element, the least that p private
 * results can cost. Operations are performed and settled in the order of submit. An op slot is written again
 * ENI_COLL_DEPTH operations later, when its operation has settled, so no peer still reads it. */
#include <sched.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "ops/mean.h"
#include "runtime/collective/group.h"

typedef struct op_slot {
    _Alignas(ENI_LINE) eni_flag published; /* of operation seq: stamp(seq) */
    uint32_t bucket;
    uint16_t slot;
    uint8_t op, what;
    int32_t to, from;
    uint64_t offset, count, nsamples;
    uint8_t dtype;
    uint16_t step; /* of training, the low bits */
} op_slot;
_Static_assert(sizeof(op_slot) == ENI_LINE, "one line moves when a rank publishes");

typedef struct control_block {
    op_slot slots[ENI_COLL_DEPTH];
    _Alignas(ENI_LINE) eni_flag finished; /* stamp of the last operation finished */
    _Atomic uint32_t core;                /* that it was finished on */
} control_block;
_Static_assert(sizeof(control_block) <= ENI_AREA_BYTES, "a control block fits into its area");

typedef struct direct {
    uint64_t nperformed, nsettled; /* operations 0 .. n - 1 */
    uint32_t ntogether;            /* waits in a row for a rank on this core */
    int64_t left_ns;               /* when this rank last went to another core */
    float *scratch;                /* (max_count) naive only */
    const float *src[ENI_MEAN_MAX];
    float *dst[ENI_MEAN_MAX];
    float scale[ENI_MEAN_MAX];
    int whose[ENI_MEAN_MAX]; /* ranks of src */
    uint64_t nsamples[ENI_MEAN_MAX];
    control_block *blocks[ENI_MEAN_MAX];
} direct;

enum { SEQ_BITS = 40 }; /* a trillion operations an epoch */

static uint64_t stamp(const eni_coll *coll, uint64_t seq)
{
    return (uint64_t)coll->config.epoch << SEQ_BITS | (seq + 1);
}

static float *vector_of(const eni_coll *coll, int rank, const eni_coll_op *op)
{
    return eni_arena_at(coll->arenas[rank], op->slot, op->offset);
}

static en_status direct_open(eni_coll *coll)
{
    direct *d = eni_alloc(sizeof *d);
    if (d == NULL) return EN_ENOMEM;
    coll->state = d;
    for (int r = 0; r < coll->config.nranks; r++)
        d->blocks[r] = eni_arena_area(coll->arenas[r], coll->config.area);
    if (coll->config.algorithm != ENI_COLL_NAIVE) return EN_OK;
    d->scratch = eni_alloc_array(coll->config.max_count, sizeof(float));
    return d->scratch != NULL ? EN_OK : EN_ENOMEM;
}

static void direct_close(eni_coll *coll)
{
    direct *d = coll->state;
    if (d == NULL) return;
    eni_free(d->scratch);
    eni_free(d);
}

/* ---- publish and compare ---- */

static void publish(eni_coll *coll, uint64_t seq)
{
    direct *d = coll->state;
    const eni_coll_op *op = eni_group_op(coll, seq);
    op_slot *own = &d->blocks[coll->config.rank]->slots[seq % ENI_COLL_DEPTH];
    own->bucket = op->bucket;
    own->slot = (uint16_t)op->slot;
    own->op = (uint8_t)op->op;
    own->what = (uint8_t)op->what;
    own->to = op->to;
    own->from = op->from;
    own->offset = op->offset;
    own->count = op->count;
    own->nsamples = eni_group_weight(op);
    own->dtype = ENI_COLL_F32;
    own->step = (uint16_t)op->step;
    eni_flag_set(&own->published, stamp(coll, seq));
}

/* A sendrecv concerns two partners, everything else the whole group. */
static bool needs(const eni_coll_op *op, int partner, int rank)
{
    return op->op != ENI_COLL_SENDRECV || rank == partner;
}

/* The flag that a rank sets when it has published (or finished) operation seq. */
static inline eni_flag *flag_of(const direct *d, int rank, uint64_t seq, bool is_finish)
{
    control_block *block = d->blocks[rank];
    return is_finish ? &block->finished : &block->slots[seq % ENI_COLL_DEPTH].published;
}

/* The first rank that has not, or -1. */
static inline int first_behind(const eni_coll *coll, uint64_t seq, bool is_finish)
{
    const eni_coll_op *op = eni_group_op(coll, seq);
    for (int r = 0; r < coll->config.nranks; r++)
        if (needs(op, is_finish ? op->to : op->from, r) &&
            eni_flag_get(flag_of(coll->state, r, seq, is_finish)) < stamp(coll, seq))
            return r;
    return -1;
}

/* Checks that all ranks are at the same operation. Fills d->nsamples. */
static en_status compare(eni_coll *coll, uint64_t seq)
{
    direct *d = coll->state;
    const eni_coll_op *op = eni_group_op(coll, seq);
    const int rank = coll->config.rank;
    const eni_call_position ours = eni_group_position(coll->config.epoch, seq, op);
    for (int r = 0; r < coll->config.nranks; r++) {
        if (!needs(op, op->from, r)) continue;
        const op_slot *peer = &d->blocks[r]->slots[seq % ENI_COLL_DEPTH];
        const uint64_t at = eni_flag_get(&peer->published);
        const eni_call_position theirs = {.epoch = (uint32_t)(at >> SEQ_BITS),
                                          .seq = (at & ((UINT64_C(1) << SEQ_BITS) - 1)) - 1,
                                          .op = peer->op,
                                          .what = peer->what,
                                          .bucket = peer->bucket,
                                          .count = peer->count,
                                          .dtype = peer->dtype,
                                          .step = peer->step};
        EN_TRY(eni_group_agree(rank, &ours, r, &theirs));
        if (peer->slot != op->slot || peer->offset != op->offset ||
            (op->op == ENI_COLL_SENDRECV && peer->to != rank))
            return eni_fail(
                EN_EMISMATCH, "coll",
                "rank %d's #%llu %s of bucket %u is on vector %u at %llu for rank %d, rank %d's on "
                "vector %u at %llu: the ranks did not make the same calls",
                r, (unsigned long long)seq, eni_coll_op_name(op->op), op->bucket, peer->slot,
                (unsigned long long)peer->offset, peer->to, rank, op->slot, (unsigned long long)op->offset);
        d->nsamples[r] = peer->nsamples;
    }
    return EN_OK;
}

/* ---- perform ---- */

static void count_moved(eni_coll *coll, uint64_t sent, uint64_t received, uint64_t touched)
{
    eni_group_count(&coll->payload_sent, sent * sizeof(float));
    eni_group_count(&coll->payload_recv, received * sizeof(float));
    eni_group_count(&coll->shm_bytes, touched * sizeof(float));
}

/* Elements [lo, hi) of the mean of all ranks' vectors, to one rank. */
static void reduce_range(eni_coll *coll, const eni_coll_op *op, uint64_t lo, uint64_t hi, int to)
{
    direct *d = coll->state;
    const int n = coll->config.nranks;
    for (int r = 0; r < n; r++)
        d->src[r] = vector_of(coll, r, op) + lo;
    eni_mean_ranks(vector_of(coll, to, op) + lo, d->src, d->nsamples, n, coll->config.sum_order, op->count,
                   lo, hi);
}

/* The same to all of them: each is read once and written once. */
static void reduce_to_all(eni_coll *coll, const eni_coll_op *op, uint64_t lo, uint64_t hi)
{
    direct *d = coll->state;
    const int n = coll->config.nranks;
    for (int r = 0; r < n; r++)
        d->dst[r] = vector_of(coll, r, op) + lo;
    eni_mean_all(d->dst, d->nsamples, n, coll->config.sum_order, op->count, lo, hi);
}

/* Slice by slice: the others read mine of theirs, I read theirs of mine. */
static void perform_allreduce(eni_coll *coll, const eni_coll_op *op, bool to_all)
{
    const int n = coll->config.nranks, rank = coll->config.rank;
    const uint64_t others = (uint64_t)n - 1;
    const uint64_t lo = eni_slice_lo(op->count, rank, n), hi = eni_slice_lo(op->count, rank + 1, n);
    const uint64_t slice = hi - lo, rest = op->count - slice;
    if (to_all)
        reduce_to_all(coll, op, lo, hi);
    else
        reduce_range(coll, op, lo, hi, 0);
    if (to_all)
        count_moved(coll, rest + others * slice, rest + others * slice, 2 * others * slice);
    else if (rank == 0)
        count_moved(coll, rest, others * slice + rest, others * slice);
    else
        count_moved(coll, rest + slice, others * slice, others * slice + slice);
}

/* My slice of all gradients, in the order of the sum, to the function that averages it and steps the one copy
 * of the weights: nothing else is written. The others read my part of the weights in place, so each of them
 * has received it. In the ring's order it is chunk `rank`, whose sum begins there. */
static void perform_mean_step(eni_coll *coll, const eni_coll_op *op)
{
    direct *d = coll->state;
    const int n = coll->config.nranks, rank = coll->config.rank;
    const int first = coll->config.sum_order == ENI_SUM_RING ? rank : 0;
    const uint64_t others = (uint64_t)n - 1;
    const uint64_t lo = eni_slice_lo(op->count, rank, n), hi = eni_slice_lo(op->count, rank + 1, n);
    const uint64_t slice = hi - lo, rest = op->count - slice;
    eni_sources from = {.src = d->src, .scale = d->scale, .rank = d->whose};
    uint64_t samples = 0;
    for (int k = 0; k < n; k++) {
        const int r = (first + k) % n;
        if (d->nsamples[r] == 0) continue;
        d->src[from.n] = vector_of(coll, r, op) + lo;
        d->whose[from.n] = r;
        d->scale[from.n++] = (float)d->nsamples[r];
        samples += d->nsamples[r];
    }
    if (from.n > 0) from.inv = 1.0f / (float)samples;
    if (slice > 0 && from.n > 0) op->on_reduced(op->on_reduced_user, lo, hi, &from);
    count_moved(coll, rest + others * slice, rest + others * slice, others * slice + slice);
}

static void perform_reduce_scatter(eni_coll *coll, const eni_coll_op *op)
{
    const uint64_t others = (uint64_t)coll->config.nranks - 1, slice = op->hi - op->lo;
    reduce_range(coll, op, op->lo, op->hi, coll->config.rank);
    count_moved(coll, op->count - slice, others * slice, others * slice);
}

static void perform_allgather(eni_coll *coll, const eni_coll_op *op)
{
    const int n = coll->config.nranks, rank = coll->config.rank;
    const uint64_t others = (uint64_t)n - 1, slice = op->hi - op->lo;
    const float *own = vector_of(coll, rank, op) + op->lo;
    for (int r = 0; r < n; r++)
        if (r != rank) memcpy(vector_of(coll, r, op) + op->lo, own, slice * sizeof *own);
    count_moved(coll, others * slice, op->count - slice, others * slice);
}

static void perform_bcast(eni_coll *coll, const eni_coll_op *op)
{
    const uint64_t others = (uint64_t)coll->config.nranks - 1;
    if (coll->config.rank == 0) {
        count_moved(coll, others * op->count, 0, 0);
        return;
    }
    memcpy(eni_group_vector(coll, op), vector_of(coll, 0, op), op->count * sizeof(float));
    count_moved(coll, 0, op->count, op->count);
}

static void perform_sendrecv(eni_coll *coll, const eni_coll_op *op)
{
    float *in = eni_arena_at(coll->arenas[coll->config.rank], op->slot_in, op->offset);
    memmove(in, vector_of(coll, op->from, op), op->count * sizeof *in);
    const uint64_t moved = op->from == coll->config.rank ? 0 : op->count;
    count_moved(coll, moved, moved, moved);
}

static void note_samples(eni_coll *coll, uint64_t seq)
{
    const direct *d = coll->state;
    uint64_t samples = 0;
    for (int r = 0; r < coll->config.nranks; r++)
        samples += d->nsamples[r];
    eni_group_note_samples(coll, seq, samples);
}

/* Naive reads everything and sums alone, like the one over sockets; the result waits in the scratch until
 * all have read. */
static void perform_naive(eni_coll *coll, const eni_coll_op *op)
{
    direct *d = coll->state;
    const int n = coll->config.nranks;
    const uint64_t others = (uint64_t)n - 1;
    for (int r = 0; r < n; r++)
        d->src[r] = vector_of(coll, r, op);
    eni_mean_ranks(d->scratch, d->src, d->nsamples, n, coll->config.sum_order, op->count, 0, op->count);
    count_moved(coll, others * op->count, others * op->count, others * op->count);
}

static void perform(eni_coll *coll, const eni_coll_op *op)
{
    const direct *d = coll->state;
    if (d->scratch != NULL && eni_coll_is_reduction(op)) {
        perform_naive(coll, op);
        return;
    }
    switch (op->op) {
    case EN_ALLREDUCE: perform_allreduce(coll, op, true); break;
    case EN_REDUCE: perform_allreduce(coll, op, false); break;
    case EN_REDUCE_SCATTER: perform_reduce_scatter(coll, op); break;
    case EN_ALLGATHER: perform_allgather(coll, op); break;
    case EN_BCAST: perform_bcast(coll, op); break;
    case ENI_COLL_SENDRECV: perform_sendrecv(coll, op); break;
    case ENI_COLL_MEAN_STEP: perform_mean_step(coll, op); break;
    default: break; /* a barrier is its flags */
    }
}

/* ---- progress ---- */

static void settle(eni_coll *coll, uint64_t seq)
{
    direct *d = coll->state;
    const eni_coll_op *op = eni_group_op(coll, seq);
    if (d->scratch != NULL && eni_coll_is_reduction(op))
        memcpy(eni_group_vector(coll, op), d->scratch, op->count * sizeof(float));
    d->nsettled = seq + 1;
    eni_group_trace_op(coll, seq, op);
}

/* Two ranks that the kernel has put on one core while another is idle take turns there until its balancer
 * looks: neither is ever seen waiting, as both yield. So the waiting one moves to another of its allowed
 * cores, and then allows all of them again. At most every 10 ms: the other cores may be busy with something
 * else. */
static void leave_core(direct *d, int core)
{
    cpu_set_t may, others;
    if (eni_now_ns() < d->left_ns + 10 * ENI_MILLI) return;
    d->left_ns = eni_now_ns();
    if (sched_getaffinity(0, sizeof may, &may) != 0) return;
    others = may;
    CPU_CLR((size_t)core, &others);
    if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof others, &others) != 0) return;
    sched_setaffinity(0, sizeof may, &may);
}

/* How long to spin for a rank: not at all for one that needs this core. */
static int64_t spin_for(const eni_coll *coll, int rank)
{
    enum { CHANCE = 4 }; /* in a row */
    direct *d = coll->state;
    const int core = sched_getcpu();
    if (coll->spin_ns == 0) return 0;
    if (atomic_load_explicit(&d->blocks[rank]->core, memory_order_relaxed) != (uint32_t)core) {
        d->ntogether = 0;
        return coll->spin_ns;
    }
    if (++d->ntogether >= CHANCE && coll->config.rank > rank) leave_core(d, core); /* one of the two */
    return 0;
}

/* Performs and settles what can be without waiting. `nsubmitted` counts an operation being submitted. */
static en_status advance(eni_coll *coll, uint64_t nsubmitted)
{
    direct *d = coll->state;
    for (;;) {
        while (d->nsettled < d->nperformed && first_behind(coll, d->nsettled, true) < 0)
            settle(coll, d->nsettled);
        const uint64_t seq = d->nperformed;
        const bool scratch_is_busy = d->scratch != NULL && d->nsettled < d->nperformed;
        if (seq == nsubmitted || scratch_is_busy || first_behind(coll, seq, false) >= 0) return EN_OK;
        EN_TRY(compare(coll, seq));
        const eni_coll_op *op = eni_group_op(coll, seq);
        const int64_t begin_ns = eni_now_ns();
        perform(coll, op);
        if (eni_coll_is_reduction(op)) note_samples(coll, seq);
        const int64_t end_ns = eni_now_ns();
        coll->work_ns += end_ns - begin_ns;
        eni_group_trace(coll, "exchange", begin_ns, end_ns, op->bucket, op->count * sizeof(float));
        d->nperformed = seq + 1;
        control_block *own = d->blocks[coll->config.rank];
        atomic_store_explicit(&own->core, (uint32_t)sched_getcpu(), memory_order_relaxed);
        eni_flag_set(&own->finished, stamp(coll, seq));
    }
}

static en_status direct_submit(eni_coll *coll, uint64_t seq)
{
    publish(coll, seq);
    const en_status st = advance(coll, seq + 1);
    return st == EN_OK ? EN_OK : eni_group_fail(coll, st);
}

static bool direct_test(eni_coll *coll, uint64_t seq)
{
    const direct *d = coll->state;
    if (d->nsettled > seq) return true;
    if (eni_group_status(coll) != EN_OK) return false;
    const en_status st = advance(coll, coll->nsubmitted);
    if (st != EN_OK) eni_group_fail(coll, st);
    return d->nsettled > seq;
}

static en_status direct_wait(eni_coll *coll, uint64_t seq)
{
    direct *d = coll->state;
    for (;;) {
        EN_TRY(advance(coll, coll->nsubmitted));
        if (d->nsettled > seq) return EN_OK;
        const uint64_t oldest = d->nsettled; /* one rank's flag or counter decides the wait */
        const bool is_performed = oldest < d->nperformed;
        const int rank = first_behind(coll, oldest, is_performed);
        if (rank < 0) continue;
        EN_TRY(eni_flag_await(flag_of(d, rank, oldest, is_performed), stamp(coll, oldest),
                              spin_for(coll, rank), INT64_MAX, &coll->config.alive));
    }
}

const eni_engine eni_engine_direct = {
    .open = direct_open,
    .submit = direct_submit,
    .test = direct_test,
    .wait = direct_wait,
    .close = direct_close,
};
