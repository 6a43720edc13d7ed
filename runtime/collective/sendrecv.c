/* sendrecv.c - sendrecvs over TCP: a vector to one rank, and one from another.
 *
 * Both halves count on their own links, so a rank that has no part in a sendrecv need not know of it, and one is
 * done whatever else is under way. The vectors of a link arrive in order.
 *
 * Order. Two partners make their sendrecvs and collectives in the same order. A vector may be sent before its
 * receiver has asked for it, and that then stops reading; so what the receiver still needs for earlier
 * collectives must have left, unless it has announced (READY) that it wants the vector. */
#include "runtime/collective/progress_engine.h"

static eni_pairs_inflight *pairs_of(const eni_coll *coll)
{
    return &((eni_progress_engine *)coll->state)->pairs;
}

void eni_pairs_start(eni_coll *coll)
{
    eni_pairs_inflight *all = pairs_of(coll);
    const uint64_t submitted = atomic_load_explicit(&all->pairs_submitted, memory_order_acquire);
    for (; all->nstarted < submitted; all->nstarted++) {
        const eni_pair *pair = eni_group_pair(coll, all->nstarted);
        const int rank = coll->config.rank, to = pair->op.to, from = pair->op.from;
        *eni_pair_at(all, all->nstarted) =
            (eni_pair_inflight){.pair = pair, .has_left = to == rank, .has_arrived = from == rank};
        if (from == rank) {
            eni_group_copy(coll, &pair->op);
            continue;
        }
        eni_stream *stream = &((eni_progress_engine *)coll->state)->streams[from];
        stream->nwanted++;
        stream->has_data = true; /* it will need to know what we are ready for */
    }
}

bool eni_pairs_end(eni_coll *coll)
{
    eni_pairs_inflight *all = pairs_of(coll);
    bool has_ended = false;
    for (uint64_t n = all->oldest; n < all->nstarted; n++) {
        eni_pair_inflight *s = eni_pair_at(all, n);
        if (s->is_done || !s->has_left || !s->has_arrived || s->nsending > 0) continue;
        s->is_done = has_ended = true;
        eni_group_trace_op(coll, s->pair->begin_ns, &s->pair->op);
        atomic_store_explicit(&all->pairs_done[n % ENI_COLL_DEPTH], n + 1, memory_order_release);
        eni_flag_add(&all->ndone);
    }
    while (all->oldest < all->nstarted && eni_pair_at(all, all->oldest)->is_done)
        all->oldest++;
    return has_ended;
}

/* ---- sending ---- */

static bool may_go(const eni_coll *coll, const eni_stream *stream, const eni_pair *pair)
{
    const eni_progress_engine *p = coll->state;
    if (pair->to_number < stream->peer_wants) return true;
    for (uint64_t seq = p->oldest; seq < pair->after; seq++)
        if (seq >= p->nstarted || p->inflight[seq % ENI_COLL_DEPTH].out[stream->peer].nleft > 0) return false;
    return true;
}

bool eni_pairs_next(eni_coll *coll, const eni_stream *stream, eni_frame *frame, const float **data_out)
{
    eni_pairs_inflight *all = pairs_of(coll);
    for (uint64_t n = all->oldest; n < all->nstarted; n++) {
        eni_pair_inflight *s = eni_pair_at(all, n);
        const eni_coll_op *op = &s->pair->op;
        if (s->has_left || op->to != stream->peer) continue;
        if (!may_go(coll, stream, s->pair)) return false;
        const uint64_t length = eni_segment_at(coll, op->count, s->sent);
        *frame = eni_frame_of(coll, s->pair->to_number, op);
        frame->after = s->pair->after;
        frame->hi = op->count;
        frame->at = s->sent;
        frame->n = (uint32_t)length;
        *data_out = eni_group_vector(coll, op) + s->sent;
        s->sent += length;
        s->has_left = s->sent == op->count; /* an empty vector is one frame */
        s->nsending++;
        return true;
    }
    return false;
}

void eni_pairs_left(eni_coll *coll, const eni_stream *stream)
{
    eni_pairs_inflight *all = pairs_of(coll);
    for (uint64_t n = all->oldest; n < all->nstarted; n++) {
        eni_pair_inflight *s = eni_pair_at(all, n);
        if (s->pair->op.to == stream->peer && s->pair->to_number == stream->tx.seq) s->nsending--;
    }
}

/* ---- receiving ---- */

eni_pair_inflight *eni_pairs_expected(const eni_coll *coll, int peer)
{
    eni_pairs_inflight *all = pairs_of(coll);
    for (uint64_t n = all->oldest; n < all->nstarted; n++) {
        eni_pair_inflight *s = eni_pair_at(all, n);
        if (!s->has_arrived && s->pair->op.from == peer) return s;
    }
    return NULL;
}

bool eni_pairs_accept(const eni_coll *coll, const eni_pair_inflight *s, const eni_frame *frame,
                      float **data_out)
{
    const eni_coll_op *op = &s->pair->op;
    *data_out = eni_arena_at(coll->arenas[coll->config.rank], op->slot_in, op->offset) + s->received;
    return frame->lo == 0 && frame->hi == op->count && frame->at == s->received &&
           frame->n == eni_segment_at(coll, op->count, s->received);
}

void eni_pairs_arrived(const eni_coll *coll, const eni_stream *stream)
{
    eni_pair_inflight *s = eni_pairs_expected(coll, stream->peer);
    s->received += stream->rx.n;
    s->has_arrived = s->received == s->pair->op.count;
}

const eni_coll_op *eni_pairs_need(const eni_coll *coll, int peer)
{
    eni_pairs_inflight *all = pairs_of(coll);
    for (uint64_t n = all->oldest; n < all->nstarted; n++) {
        const eni_pair_inflight *s = eni_pair_at(all, n);
        const eni_coll_op *op = &s->pair->op;
        if ((!s->has_arrived && op->from == peer) || (!s->has_left && op->to == peer)) return op;
    }
    return NULL;
}
