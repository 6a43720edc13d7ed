/* sendrecv.c - one vector to one rank and one from another, over TCP. */
#include <string.h>

#include "runtime/collective/pump.h"

static float *sendrecv_target(const eni_coll *coll, const eni_flight *flight)
{
    return eni_arena_at(coll->arenas[coll->config.rank], flight->op->slot_in, flight->op->offset);
}

static void sendrecv_start(eni_coll *coll, eni_flight *flight)
{
    const eni_coll_op *op = flight->op;
    const int rank = coll->config.rank;
    flight->out[op->to] = (eni_leg){.hi = op->count, .is_needed = op->to != rank};
    flight->in[op->from] = (eni_leg){.hi = op->count, .is_needed = op->from != rank};
    if (op->from == rank) memmove(sendrecv_target(coll, flight), flight->vector, op->count * sizeof(float));
}

static int sendrecv_next(eni_coll *coll, eni_flight *flight, int peer, eni_frame *frame,
                         const float **data_out)
{
    eni_leg *leg = &flight->out[flight->op->to];
    if (peer != flight->op->to || !leg->is_needed || leg->is_done) return 0;
    const uint64_t n = eni_segment_at(coll, leg->hi, leg->at);
    frame->hi = leg->hi;
    frame->at = leg->at;
    frame->n = (uint32_t)n;
    *data_out = flight->vector + leg->at;
    leg->at += n;
    leg->is_done = leg->at == leg->hi;
    return 1;
}

static int sendrecv_accept(eni_coll *coll, eni_flight *flight, int peer, const eni_frame *frame,
                           float **data_out)
{
    const eni_leg *leg = &flight->in[flight->op->from];
    if (peer != flight->op->from || !leg->is_needed || leg->is_done) return 0;
    if (frame->hi != leg->hi || frame->at != leg->at || frame->n != eni_segment_at(coll, leg->hi, leg->at))
        return 0;
    *data_out = sendrecv_target(coll, flight) + leg->at;
    return 1;
}

static void sendrecv_arrived(eni_coll *coll, eni_flight *flight, int peer, const eni_frame *frame,
                             float *data)
{
    (void)coll, (void)data;
    eni_leg *leg = &flight->in[peer];
    leg->at += frame->n;
    leg->is_done = leg->at == leg->hi;
}

static int sendrecv_awaits(const eni_coll *coll, const eni_flight *flight, int peer)
{
    (void)coll;
    const eni_leg *in = &flight->in[peer];
    return peer == flight->op->from && in->is_needed && !in->is_done;
}

static int sendrecv_needs(const eni_coll *coll, const eni_flight *flight, int peer)
{
    const eni_leg *out = &flight->out[peer];
    return (peer == flight->op->to && out->is_needed && !out->is_done) || sendrecv_awaits(coll, flight, peer);
}

const eni_course eni_sendrecv_course = {
    .start = sendrecv_start,
    .next = sendrecv_next,
    .accept = sendrecv_accept,
    .arrived = sendrecv_arrived,
    .awaits = sendrecv_awaits,
    .needs = sendrecv_needs,
};
