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
 * ENI_COLL_DEPTH operations later, when its operation has settled, so no peer still reads it.
 *
 * A sendrecv waits for nobody but its partners. The sender publishes its vector in a send slot, addressed; the
 * receiver walks over the sender's slots to the next one that is for it, copies, and marks it as taken. */
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
    uint64_t offset, count, nsamples;
    uint8_t dtype;
    uint16_t step; /* of training, the low bits */
} op_slot;
_Static_assert(sizeof(op_slot) == ENI_LINE, "one line moves when a rank publishes");

typedef struct send_slot {                 /* a vector from its owner to another rank */
    _Alignas(ENI_LINE) eni_flag published; /* send_stamp; the same in taken, once the receiver has it */
    eni_flag taken;
    uint32_t bucket;
    uint16_t slot, step;
    uint8_t what, dtype;
    uint32_t after; /* the low bits */
    uint64_t offset, count;
} send_slot;
_Static_assert(sizeof(send_slot) == ENI_LINE, "one line moves when a vector is published");

typedef struct control_block {
    op_slot slots[ENI_COLL_DEPTH];
    send_slot sends[ENI_COLL_DEPTH];
    _Alignas(ENI_LINE) eni_flag finished; /* stamp of the last operation finished */
    _Atomic uint32_t core;                /* that it was finished on */
} control_block;
_Static_assert(sizeof(control_block) <= ENI_AREA_BYTES, "a control block fits into its area");

typedef struct pair_state {
    bool is_received, is_sent;
} pair_state;

typedef struct pair_states {
    uint64_t n, oldest; /* sendrecvs so far; all before the oldest are done */
    pair_state state[ENI_COLL_DEPTH];
} pair_states;

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
    pair_states pairs;
    uint64_t next_send[ENI_MEAN_MAX]; /* of each rank's send slots, the next to look at */
    uint64_t nreceived[ENI_MEAN_MAX]; /* vectors from each rank */
} direct;

enum { SEQ_BITS = 40 }; /* a trillion operations an epoch */

static uint64_t stamp(const eni_coll *coll, uint64_t seq)
{
    return (uint64_t)coll->config.epoch << SEQ_BITS | (seq + 1);
}

/* A send slot's flags: epoch, number and destination, of which the number grows in an epoch. */
enum { SEND_BITS = 36, TO_BITS = 10 };
_Static_assert(ENI_MEAN_MAX <= 1 << TO_BITS, "a rank is a destination");

static uint64_t send_stamp(const eni_coll *coll, uint64_t n, int to)
{
    return (uint64_t)coll->config.epoch << (SEND_BITS + TO_BITS) | (n + 1) << TO_BITS | (uint64_t)to;
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
    own->offset = op->offset;
    own->count = op->count;
    own->nsamples = eni_group_weight(op);
    own->dtype = ENI_COLL_F32;
    own->step = (uint16_t)op->step;
    eni_flag_set(&own->published, stamp(coll, seq));
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
    for (int r = 0; r < coll->config.nranks; r++)
        if (eni_flag_get(flag_of(coll->state, r, seq, is_finish)) < stamp(coll, seq)) return r;
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
        if (peer->slot != op->slot || peer->offset != op->offset)
            return eni_fail(EN_EMISMATCH, "coll",
                            "rank %d's #%llu %s of bucket %u is on vector %u at %llu, rank %d's on vector %u "
                            "at %llu: the ranks did not make the same calls",
                            r, (unsigned long long)seq, eni_coll_op_name(op->op), op->bucket, peer->slot,
                            (unsigned long long)peer->offset, rank, op->slot, (unsigned long long)op->offset);
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

/* Elements [lo, hi) of my vector to the others'. */
static void copy_to_others(const eni_coll *coll, uint32_t slot, uint64_t lo, uint64_t hi)
{
    const int rank = coll->config.rank;
    const float *own = eni_arena_at(coll->arenas[rank], slot, lo);
    for (int r = 0; r < coll->config.nranks; r++)
        if (r != rank) memcpy(eni_arena_at(coll->arenas[r], slot, lo), own, (hi - lo) * sizeof *own);
}

/* My slice of all gradients, in the order of the sum, to the function that averages it and steps. Then the
 * others read my part of the weights in place, or get a copy of it, piece by piece out of the cache. In the
 * ring's order the slice is chunk `rank`, whose sum begins there. */
static void perform_mean_step(eni_coll *coll, const eni_coll_op *op)
{
    enum { PIECE = 32768 };
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
    for (uint64_t at = lo, count; at < hi && from.n > 0; at += count) {
        count = op->copies && hi - at > PIECE ? PIECE : hi - at;
        op->on_reduced(op->on_reduced_user, at, at + count, &from);
        if (op->copies) copy_to_others(coll, op->slot_in, op->offset + at, op->offset + at + count);
        for (int k = 0; k < from.n; k++)
            d->src[k] += count;
    }
    count_moved(coll, rest + others * slice, rest + others * slice,
                others * slice + (op->copies ? others : 1) * slice);
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
    eni_group_trace_op(coll, coll->begin_ns[seq % ENI_COLL_DEPTH], op);
}

/* ---- sendrecvs ---- */

/* The oldest vector from a rank to this one that was not taken, or NULL: none has been published. */
static send_slot *next_send(const eni_coll *coll, int from)
{
    direct *d = coll->state;
    uint64_t *at = &d->next_send[from];
    for (;;) {
        send_slot *slot = &d->blocks[from]->sends[*at % ENI_COLL_DEPTH];
        const uint64_t stamp = eni_flag_get(&slot->published);
        const uint64_t n = (stamp >> TO_BITS & ((UINT64_C(1) << SEND_BITS) - 1)) - 1;
        if (stamp < send_stamp(coll, *at, 0)) return NULL;
        if (stamp >> (SEND_BITS + TO_BITS) != coll->config.epoch) return slot; /* receive() says so */
        if (n != *at) /* written again: what it held was not for us, or it would still be there */
            *at = n - ENI_COLL_DEPTH + 1;
        else if ((stamp & ((1u << TO_BITS) - 1)) == (uint64_t)coll->config.rank)
            return slot;
        else
            ++*at;
    }
}

static en_status receive(eni_coll *coll, const eni_pair *pair, send_slot *slot)
{
    direct *d = coll->state;
    const eni_coll_op *op = &pair->op;
    const int rank = coll->config.rank, from = op->from;
    const uint64_t stamp = eni_flag_get(&slot->published);
    const eni_call_position ours =
        eni_group_half(coll->config.epoch, pair->from_number, (uint32_t)pair->after, op);
    const eni_call_position theirs = {.epoch = (uint32_t)(stamp >> (SEND_BITS + TO_BITS)),
                                      .seq = pair->from_number,
                                      .after = slot->after,
                                      .op = ENI_COLL_SENDRECV,
                                      .what = slot->what,
                                      .bucket = slot->bucket,
                                      .count = slot->count,
                                      .dtype = slot->dtype,
                                      .step = slot->step};
    EN_TRY(eni_group_agree(rank, &ours, from, &theirs));
    memcpy(eni_arena_at(coll->arenas[rank], op->slot_in, op->offset),
           eni_arena_at(coll->arenas[from], slot->slot, slot->offset), op->count * sizeof(float));
    count_moved(coll, 0, op->count, op->count);
    d->next_send[from]++;
    d->nreceived[from]++;
    eni_flag_set(&slot->taken, stamp);
    return EN_OK;
}

static send_slot *own_send(const eni_coll *coll, uint64_t n)
{
    const direct *d = coll->state;
    return &d->blocks[coll->config.rank]->sends[n % ENI_COLL_DEPTH];
}

static bool pair_is_done(const direct *d, uint64_t n)
{
    const pair_state *state = &d->pairs.state[n % ENI_COLL_DEPTH];
    return n < d->pairs.oldest || (state->is_received && state->is_sent);
}

/* Moves both halves of a sendrecv as far as they go without waiting. The vectors of a rank come in order. */
static en_status pair_advance(eni_coll *coll, uint64_t n)
{
    direct *d = coll->state;
    const eni_pair *pair = eni_group_pair(coll, n);
    pair_state *state = &d->pairs.state[n % ENI_COLL_DEPTH];
    const bool is_next = !state->is_received && pair->from_number == d->nreceived[pair->op.from];
    send_slot *slot = is_next ? next_send(coll, pair->op.from) : NULL;
    if (slot != NULL) {
        EN_TRY(receive(coll, pair, slot));
        state->is_received = true;
    }
    if (!state->is_sent && eni_flag_get(&own_send(coll, n)->taken) >= send_stamp(coll, n, 0)) {
        state->is_sent = true;
        count_moved(coll, pair->op.count, 0, 0);
    }
    if (pair_is_done(d, n)) eni_group_trace_op(coll, pair->begin_ns, &pair->op);
    return EN_OK;
}

static en_status pairs_advance(eni_coll *coll)
{
    direct *d = coll->state;
    for (uint64_t n = d->pairs.oldest; n < d->pairs.n; n++)
        if (!pair_is_done(d, n)) EN_TRY(pair_advance(coll, n));
    while (d->pairs.oldest < d->pairs.n && pair_is_done(d, d->pairs.oldest))
        d->pairs.oldest++;
    return EN_OK;
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
    EN_TRY(pairs_advance(coll));
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

/* One flag decides a wait, and wakes it. With more under way, others may need this rank before that flag is
 * set, so the wait is cut into slices. */
static en_status await(eni_coll *coll, eni_flag *flag, uint64_t want, int rank, bool has_more)
{
    const int64_t until_ns = has_more ? eni_now_ns() + 2 * ENI_MILLI : INT64_MAX;
    const en_status st = eni_flag_await(flag, want, spin_for(coll, rank), until_ns, &coll->config.alive);
    return st == EN_ETIMEOUT && has_more ? EN_OK : st;
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
        EN_TRY(await(coll, flag_of(d, rank, oldest, is_performed), stamp(coll, oldest), rank,
                     d->pairs.oldest < d->pairs.n));
    }
}

static en_status direct_submit_pair(eni_coll *coll, uint64_t n)
{
    direct *d = coll->state;
    const eni_pair *pair = eni_group_pair(coll, n);
    const eni_coll_op *op = &pair->op;
    const int rank = coll->config.rank;
    send_slot *own = own_send(coll, n);
    own->bucket = op->bucket;
    own->slot = (uint16_t)op->slot;
    own->step = (uint16_t)op->step;
    own->what = (uint8_t)op->what;
    own->dtype = ENI_COLL_F32;
    own->after = (uint32_t)pair->after;
    own->offset = op->offset;
    own->count = op->count;
    eni_flag_set(&own->published, send_stamp(coll, n, op->to)); /* also to nobody: the others look at all */
    if (op->from == rank) eni_group_copy(coll, op);
    d->pairs.state[n % ENI_COLL_DEPTH] = (pair_state){op->from == rank, op->to == rank};
    d->pairs.n = n + 1;
    const en_status st = advance(coll, coll->nsubmitted);
    return st == EN_OK ? EN_OK : eni_group_fail(coll, st);
}

static bool direct_test_pair(eni_coll *coll, uint64_t n)
{
    const direct *d = coll->state;
    if (pair_is_done(d, n)) return true;
    if (eni_group_status(coll) != EN_OK) return false;
    const en_status st = advance(coll, coll->nsubmitted);
    if (st != EN_OK) eni_group_fail(coll, st);
    return pair_is_done(d, n);
}

static en_status direct_wait_pair(eni_coll *coll, uint64_t n)
{
    direct *d = coll->state;
    for (;;) {
        EN_TRY(advance(coll, coll->nsubmitted));
        if (pair_is_done(d, n)) return EN_OK;
        const eni_coll_op *op = &eni_group_pair(coll, n)->op;
        const bool is_received = d->pairs.state[n % ENI_COLL_DEPTH].is_received;
        const bool has_more = d->nsettled < coll->nsubmitted || d->pairs.oldest + 1 < d->pairs.n;
        const uint64_t next = d->next_send[op->from];
        send_slot *slot =
            is_received ? own_send(coll, n) : &d->blocks[op->from]->sends[next % ENI_COLL_DEPTH];
        EN_TRY(await(coll, is_received ? &slot->taken : &slot->published,
                     send_stamp(coll, is_received ? n : next, 0), is_received ? op->to : op->from, has_more));
    }
}

const eni_engine eni_engine_direct = {
    .open = direct_open,
    .submit = direct_submit,
    .test = direct_test,
    .wait = direct_wait,
    .submit_pair = direct_submit_pair,
    .test_pair = direct_test_pair,
    .wait_pair = direct_wait_pair,
    .close = direct_close,
};
