/* naive.c - whole vectors over TCP, straight to their destinations: each rank's to every other, which sums
 * alone in rank order: p (p - 1) vectors on the wire, the baseline, with the bits of `direct`. */
#include "core/memory.h"
#include "runtime/collective/progress_engine.h"

/* Where the vector of `peer` arrives. */
static float *scratch_of(const eni_coll *coll, int peer)
{
    const eni_progress_engine *p = coll->state;
    return p->scratch + (size_t)peer * eni_round_up(coll->config.max_count, ENI_LINE_FLOATS);
}

/* Whether `rank` sends to `peer`, or (to_us) receives from it. A reduce-scatter sends whole vectors: nobody
 * knows the others' ranges. */
static bool goes(const eni_coll_op *op, int rank, int peer, bool to_us)
{
    if (rank == peer) return false;
    switch (op->op) {
    case EN_REDUCE: return (to_us ? rank : peer) == 0;
    case EN_BCAST: return (to_us ? peer : rank) == 0;
    default: return true;
    }
}

static void naive_start(eni_coll *coll, eni_inflight *inflight)
{
    const eni_coll_op *op = inflight->op;
    const int rank = coll->config.rank;
    const bool is_part = op->op == EN_ALLGATHER;
    for (int r = 0; r < coll->config.nranks; r++) {
        inflight->out[r] = (eni_coll_message){.lo = is_part ? op->lo : 0,
                                              .hi = is_part ? op->hi : op->count,
                                              .nleft = goes(op, rank, r, false)};
        inflight->in[r] = (eni_coll_message){.hi = op->count, .nleft = goes(op, rank, r, true)};
    }
}

static bool naive_next(eni_coll *coll, eni_inflight *inflight, int peer, eni_frame *frame,
                       const float **data_out)
{
    eni_coll_message *message = &inflight->out[peer];
    if (message->nleft == 0) return false;
    const uint64_t length = message->hi - message->lo, n = eni_segment_at(coll, length, message->at);
    frame->lo = message->lo;
    frame->hi = message->hi;
    frame->at = message->at;
    frame->n = (uint32_t)n;
    frame->nsamples = eni_group_weight(inflight->op);
    *data_out = inflight->vector + message->lo + message->at;
    message->at += n;
    message->nleft = message->at < length;
    return true;
}

static bool naive_accept(eni_coll *coll, eni_inflight *inflight, int peer, const eni_frame *frame,
                         float **data_out)
{
    eni_coll_message *message = &inflight->in[peer];
    if (message->nleft == 0) return false;
    if (inflight->op->op == EN_ALLGATHER && message->at == 0 && frame->lo <= frame->hi &&
        frame->hi <= message->hi) {
        message->lo = frame->lo; /* the others' ranges arrive with the frames */
        message->hi = frame->hi;
    }
    if (frame->lo != message->lo || frame->hi != message->hi || frame->at != message->at ||
        frame->n != eni_segment_at(coll, message->hi - message->lo, message->at))
        return false;
    float *base = eni_coll_is_reduction(inflight->op) ? scratch_of(coll, peer) : inflight->vector;
    *data_out = base + message->lo + message->at;
    return true;
}

static void naive_arrived(eni_coll *coll, eni_inflight *inflight, int peer, const eni_frame *frame,
                          float *data)
{
    (void)coll, (void)data;
    eni_coll_message *message = &inflight->in[peer];
    message->at += frame->n;
    message->nsamples = frame->nsamples;
    message->nleft = message->at < message->hi - message->lo;
}

/* All vectors have arrived, and ours has left. */
static void naive_end(eni_coll *coll, eni_inflight *inflight)
{
    const int n = coll->config.nranks, rank = coll->config.rank;
    const float *src[ENI_MEAN_MAX];
    uint64_t nsamples[ENI_MEAN_MAX];
    const bool is_mine = inflight->op->op != EN_REDUCE || rank == 0;
    if (!eni_coll_is_reduction(inflight->op) || !is_mine) return;
    uint64_t samples = 0;
    for (int r = 0; r < n; r++) {
        src[r] = r == rank ? inflight->vector : scratch_of(coll, r);
        nsamples[r] = r == rank ? eni_group_weight(inflight->op) : inflight->in[r].nsamples;
        samples += nsamples[r];
    }
    eni_group_note_samples(coll, inflight->seq, samples);
    eni_mean_ranks(inflight->vector, src, nsamples, n, coll->config.sum_order, inflight->op->count, 0,
                   inflight->op->count);
}

const eni_algorithm eni_naive_algorithm = {
    .is_exclusive = true,
    .start = naive_start,
    .next = naive_next,
    .accept = naive_accept,
    .arrived = naive_arrived,
    .end = naive_end,
};
