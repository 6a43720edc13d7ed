/* sendrecv.c - one vector to one rank and one from another, over TCP. */
#include <string.h>

#include "runtime/collective/progress_engine.h"

static float *sendrecv_target(const eni_coll *coll, const eni_inflight *inflight)
{
    return eni_arena_at(coll->arenas[coll->config.rank], inflight->op->slot_in, inflight->op->offset);
}

static void sendrecv_start(eni_coll *coll, eni_inflight *inflight)
{
    const eni_coll_op *op = inflight->op;
    const int rank = coll->config.rank;
    inflight->out[op->to] = (eni_transfer){.hi = op->count, .is_needed = op->to != rank};
    inflight->in[op->from] = (eni_transfer){.hi = op->count, .is_needed = op->from != rank};
    if (op->from == rank)
        memmove(sendrecv_target(coll, inflight), inflight->vector, op->count * sizeof(float));
}

static int sendrecv_next(eni_coll *coll, eni_inflight *inflight, int peer, eni_frame *frame,
                         const float **data_out)
{
    eni_transfer *transfer = &inflight->out[inflight->op->to];
    if (peer != inflight->op->to || !transfer->is_needed || transfer->is_done) return 0;
    const uint64_t n = eni_segment_at(coll, transfer->hi, transfer->at);
    frame->hi = transfer->hi;
    frame->at = transfer->at;
    frame->n = (uint32_t)n;
    *data_out = inflight->vector + transfer->at;
    transfer->at += n;
    transfer->is_done = transfer->at == transfer->hi;
    return 1;
}

static int sendrecv_accept(eni_coll *coll, eni_inflight *inflight, int peer, const eni_frame *frame,
                           float **data_out)
{
    const eni_transfer *transfer = &inflight->in[inflight->op->from];
    if (peer != inflight->op->from || !transfer->is_needed || transfer->is_done) return 0;
    if (frame->hi != transfer->hi || frame->at != transfer->at ||
        frame->n != eni_segment_at(coll, transfer->hi, transfer->at))
        return 0;
    *data_out = sendrecv_target(coll, inflight) + transfer->at;
    return 1;
}

static void sendrecv_arrived(eni_coll *coll, eni_inflight *inflight, int peer, const eni_frame *frame,
                             float *data)
{
    (void)coll, (void)data;
    eni_transfer *transfer = &inflight->in[peer];
    transfer->at += frame->n;
    transfer->is_done = transfer->at == transfer->hi;
}

static int sendrecv_awaits(const eni_coll *coll, const eni_inflight *inflight, int peer)
{
    (void)coll;
    const eni_transfer *in = &inflight->in[peer];
    return peer == inflight->op->from && in->is_needed && !in->is_done;
}

static int sendrecv_needs(const eni_coll *coll, const eni_inflight *inflight, int peer)
{
    const eni_transfer *out = &inflight->out[peer];
    return (peer == inflight->op->to && out->is_needed && !out->is_done) ||
           sendrecv_awaits(coll, inflight, peer);
}

const eni_algorithm eni_sendrecv_algorithm = {
    .start = sendrecv_start,
    .next = sendrecv_next,
    .accept = sendrecv_accept,
    .arrived = sendrecv_arrived,
    .awaits = sendrecv_awaits,
    .needs = sendrecv_needs,
};
