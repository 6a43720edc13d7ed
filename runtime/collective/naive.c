/* naive.c - everybody sends everything to everybody over TCP, and sums alone in rank order: p (p - 1) vectors
 * on the wire. What the others are measured against; the bits are those of `direct`. */
#include <string.h>

#include "core/memory.h"
#include "runtime/collective/pump.h"

/* Where the vector of `peer` arrives. */
static float *scratch_of(const eni_coll *coll, int peer)
{
    const eni_pump *p = coll->state;
    return p->scratch + (size_t)peer * eni_round_up(coll->config.max_count, ENI_LINE_FLOATS);
}

/* Who sends to whom. A reduce-scatter sends whole vectors: nobody knows the others' ranges. */
static int sends(const eni_coll_op *op, int from, int to)
{
    if (op->op == EN_REDUCE) return to == 0;
    if (op->op == EN_BCAST) return from == 0;
    return 1;
}

static void naive_start(eni_coll *coll, eni_flight *flight)
{
    const eni_coll_op *op = flight->op;
    const int rank = coll->config.rank;
    const int is_part = op->op == EN_ALLGATHER;
    for (int r = 0; r < coll->config.nranks; r++) {
        flight->out[r] = (eni_leg){.lo = is_part ? op->lo : 0, .hi = is_part ? op->hi : op->count};
        flight->out[r].is_needed = r != rank && sends(op, rank, r);
        flight->in[r] = (eni_leg){.lo = 0, .hi = op->count};
        flight->in[r].is_needed = r != rank && sends(op, r, rank);
    }
}

static int naive_next(eni_coll *coll, eni_flight *flight, int peer, eni_frame *frame, const float **data_out)
{
    eni_leg *leg = &flight->out[peer];
    if (!leg->is_needed || leg->is_done) return 0;
    const uint64_t length = leg->hi - leg->lo, n = eni_segment_at(coll, length, leg->at);
    frame->lo = leg->lo;
    frame->hi = leg->hi;
    frame->at = leg->at;
    frame->n = (uint32_t)n;
    frame->nsamples = eni_group_weight(flight->op);
    *data_out = flight->vector + leg->lo + leg->at;
    leg->at += n;
    leg->is_done = leg->at == length;
    return 1;
}

static int naive_accept(eni_coll *coll, eni_flight *flight, int peer, const eni_frame *frame,
                        float **data_out)
{
    eni_leg *leg = &flight->in[peer];
    if (!leg->is_needed || leg->is_done) return 0;
    if (flight->op->op == EN_ALLGATHER && leg->at == 0 && frame->lo <= frame->hi && frame->hi <= leg->hi) {
        leg->lo = frame->lo; /* the others' ranges arrive with the frames */
        leg->hi = frame->hi;
    }
    if (frame->lo != leg->lo || frame->hi != leg->hi || frame->at != leg->at ||
        frame->n != eni_segment_at(coll, leg->hi - leg->lo, leg->at))
        return 0;
    float *base = eni_coll_is_reduction(flight->op) ? scratch_of(coll, peer) : flight->vector;
    *data_out = base + leg->lo + leg->at;
    return 1;
}

static void naive_arrived(eni_coll *coll, eni_flight *flight, int peer, const eni_frame *frame, float *data)
{
    (void)coll, (void)data;
    eni_leg *leg = &flight->in[peer];
    leg->at += frame->n;
    leg->nsamples = frame->nsamples;
    leg->is_done = leg->at == leg->hi - leg->lo;
}

static int naive_awaits(const eni_coll *coll, const eni_flight *flight, int peer)
{
    (void)coll;
    const eni_leg *in = &flight->in[peer];
    return in->is_needed && !in->is_done;
}

static int naive_needs(const eni_coll *coll, const eni_flight *flight, int peer)
{
    const eni_leg *out = &flight->out[peer];
    return (out->is_needed && !out->is_done) || naive_awaits(coll, flight, peer);
}

/* All vectors are here, and ours has left. */
static void naive_end(eni_coll *coll, eni_flight *flight)
{
    const int n = coll->config.nranks, rank = coll->config.rank;
    const float *src[ENI_MEAN_MAX];
    uint64_t nsamples[ENI_MEAN_MAX];
    const int is_mine = flight->op->op != EN_REDUCE || rank == 0;
    if (!eni_coll_is_reduction(flight->op) || !is_mine) return;
    uint64_t samples = 0;
    for (int r = 0; r < n; r++) {
        src[r] = r == rank ? flight->vector : scratch_of(coll, r);
        nsamples[r] = r == rank ? eni_group_weight(flight->op) : flight->in[r].nsamples;
        samples += nsamples[r];
    }
    eni_group_note_samples(coll, flight->seq, samples);
    eni_mean_ranks(flight->vector, src, nsamples, n, coll->config.sum_order, flight->op->count, 0,
                   flight->op->count);
}

const eni_course eni_naive_course = {
    .is_exclusive = 1,
    .start = naive_start,
    .next = naive_next,
    .accept = naive_accept,
    .arrived = naive_arrived,
    .awaits = naive_awaits,
    .needs = naive_needs,
    .end = naive_end,
};
