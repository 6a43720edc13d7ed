/* traffic.c - what the comm thread does while it is awake: it starts operations, receives frames, sends
 * frames and ends operations, until nothing moves. */
#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"
#include "runtime/collective/pump.h"
#include "runtime/net/shaper.h"

static eni_flight *flight_of(const eni_pump *p, uint64_t seq)
{
    return &p->flights[seq % ENI_COLL_DEPTH];
}

static eni_place_in_run flight_place(const eni_coll *coll, const eni_flight *flight)
{
    return eni_group_place(coll, flight->seq, flight->op);
}

/* ---- operations ---- */

static void flight_start(eni_coll *coll, uint64_t seq)
{
    eni_pump *p = coll->state;
    eni_flight *flight = flight_of(p, seq);
    flight->op = eni_group_op(coll, seq);
    flight->seq = seq;
    flight->vector = eni_group_vector(coll, flight->op);
    flight->course = flight->op->op == ENI_COLL_SENDRECV        ? &eni_sendrecv_course
                     : coll->config.algorithm == ENI_COLL_NAIVE ? &eni_naive_course
                                                                : &eni_ring_course;
    flight->nsending = flight->is_done = 0;
    flight->course->start(coll, flight);
}

static void flights_start(eni_coll *coll)
{
    eni_pump *p = coll->state;
    const uint64_t submitted = atomic_load_explicit(&p->submitted, memory_order_acquire);
    while (p->nstarted < submitted)
        flight_start(coll, p->nstarted++);
}

static int flight_is_complete(const eni_coll *coll, const eni_flight *flight)
{
    if (flight->nsending > 0) return 0;
    for (int r = 0; r < coll->config.nranks; r++)
        if (flight->course->needs(coll, flight, r)) return 0;
    return 1;
}

/* Ends what is complete; tells the compute thread in the order of submit. */
static void flights_end(eni_coll *coll)
{
    eni_pump *p = coll->state;
    for (uint64_t seq = p->oldest; seq < p->nstarted; seq++) {
        eni_flight *flight = flight_of(p, seq);
        if (flight->is_done || !flight_is_complete(coll, flight)) continue;
        if (flight->course->end) flight->course->end(coll, flight);
        flight->is_done = 1;
        eni_group_trace(coll, eni_group_op_name(flight->op->op), coll->begin_ns[seq % ENI_COLL_DEPTH],
                        eni_now_ns(), flight->op->bucket, flight->op->count * sizeof(float));
    }
    const uint64_t before = p->oldest;
    while (p->oldest < p->nstarted && flight_of(p, p->oldest)->is_done)
        p->oldest++;
    if (p->oldest > before) eni_flag_set(&p->completed, p->oldest);
}

/* ---- sending ---- */

/* Tells a peer that it may send ahead; only while there is something ahead of what it may send anyway. */
static int ready_next(eni_coll *coll, eni_stream *stream, eni_frame *frame)
{
    const eni_pump *p = coll->state;
    if (!stream->has_data || p->nstarted - p->oldest < 2 || stream->told_ready >= p->nstarted) return 0;
    stream->told_ready = p->nstarted;
    *frame = (eni_frame){.magic = ENI_FRAME_MAGIC,
                         .type = ENI_FRAME_READY,
                         .epoch = coll->config.epoch,
                         .rank = coll->config.rank,
                         .seq = p->nstarted};
    return 1;
}

/* The next frame for this link: of the oldest operation, or of one that the peer is ready for. */
static int data_next(eni_coll *coll, eni_stream *stream, eni_frame *frame, const float **data_out)
{
    eni_pump *p = coll->state;
    for (uint64_t seq = p->oldest; seq < p->nstarted; seq++) {
        if (seq > p->oldest && seq >= stream->peer_ready) return 0;
        eni_flight *flight = flight_of(p, seq);
        const eni_coll_op *op = flight->op;
        *frame = (eni_frame){.magic = ENI_FRAME_MAGIC,
                             .type = ENI_FRAME_DATA,
                             .dtype = ENI_COLL_F32,
                             .op = (uint8_t)op->op,
                             .what = (uint8_t)op->what,
                             .epoch = coll->config.epoch,
                             .rank = coll->config.rank,
                             .seq = seq,
                             .count = op->count,
                             .bucket = op->bucket,
                             .training = (uint16_t)op->step};
        if (flight->is_done || !flight->course->next(coll, flight, stream->peer, frame, data_out)) continue;
        flight->nsending++;
        frame->deliver_ns =
            eni_shaper_send(coll->config.shaper, eni_now_ns(), sizeof *frame + eni_frame_payload(frame));
        return 1;
    }
    return 0;
}

static void frame_is_gone(eni_coll *coll, eni_stream *stream)
{
    if (stream->tx.type != ENI_FRAME_DATA) return;
    flight_of(coll->state, stream->tx.seq)->nsending--;
    eni_group_trace(coll, "send", stream->tx_begin_ns, eni_now_ns(), stream->tx.bucket,
                    eni_frame_payload(&stream->tx));
}

static en_status stream_send(eni_coll *coll, eni_stream *stream)
{
    for (;;) {
        eni_frame frame;
        const float *data = NULL;
        if (!stream->is_sending) {
            if (!ready_next(coll, stream, &frame) && !data_next(coll, stream, &frame, &data)) return EN_OK;
            eni_stream_begin(stream, &frame, data);
        }
        int is_gone;
        const en_status st = eni_stream_push(stream, coll, &is_gone);
        if (st != EN_OK &&
            stream->tx.type == ENI_FRAME_READY) { /* it has finished and needs to know nothing */
            stream->told_ready = UINT64_MAX;
            stream->is_sending = 0;
            return EN_OK;
        }
        EN_TRY(st);
        if (!is_gone) return EN_OK;
        frame_is_gone(coll, stream);
    }
}

/* ---- receiving ---- */

static eni_place_in_run header_place(const eni_frame *header)
{
    return (eni_place_in_run){header->epoch,  header->seq,   header->op,    header->what,
                              header->bucket, header->count, header->dtype, header->training};
}

/* Whether the operation of a data header can be received now; if not, the link stands still until it can.
 * What its sender owed us before must have come by then, or that would be for ever: EN_EMISMATCH. */
static en_status header_is_due(const eni_coll *coll, const eni_stream *stream, int *is_due_out)
{
    const eni_pump *p = coll->state;
    const eni_frame *header = &stream->rx;
    const int is_started = header->seq < p->nstarted;
    *is_due_out =
        is_started && (header->seq <= p->oldest || !flight_of(p, header->seq)->course->is_exclusive);
    if (*is_due_out) return EN_OK;
    const eni_place_in_run theirs = header_place(header);
    for (uint64_t seq = p->oldest; seq < (is_started ? header->seq : p->nstarted); seq++) {
        const eni_flight *flight = flight_of(p, seq);
        if (flight->is_done || !flight->course->awaits(coll, flight, stream->peer)) continue;
        const eni_place_in_run ours = flight_place(coll, flight);
        return eni_group_agree(coll->config.rank, &ours, stream->peer, &theirs);
    }
    return EN_OK;
}

/* Takes a data header: sets rx_data. */
static en_status header_accept(eni_coll *coll, eni_stream *stream)
{
    eni_pump *p = coll->state;
    const eni_frame *header = &stream->rx;
    const uint64_t seq = header->seq < p->oldest ? p->oldest : header->seq;
    eni_flight *flight = flight_of(p, seq);
    const eni_place_in_run theirs = header_place(header);
    if (seq < p->nstarted) {
        const eni_place_in_run ours = flight_place(coll, flight);
        EN_TRY(eni_group_agree(coll->config.rank, &ours, stream->peer, &theirs));
    }
    if (header->deliver_ns != 0 && !coll->config.shaper) {
        eni_error("coll", "rank %d emulates a network (--net), rank %d does not", stream->peer,
                  coll->config.rank);
        return EN_EMISMATCH;
    }
    float *data = NULL;
    const int is_expected = seq == header->seq && !flight->is_done &&
                            flight->course->accept(coll, flight, stream->peer, header, &data);
    if (!is_expected) {
        eni_error("coll",
                  "rank %d sent step %d, elements %llu to %llu at %llu (%u of them) of #%llu %s, which rank "
                  "%d does not expect: another algorithm, segment size or range",
                  stream->peer, header->step, (unsigned long long)header->lo, (unsigned long long)header->hi,
                  (unsigned long long)header->at, header->n, (unsigned long long)header->seq,
                  eni_group_op_name(header->op), coll->config.rank);
        return EN_EMISMATCH;
    }
    stream->has_data = 1;
    stream->rx_data = data ? data : stream->scratch;
    return EN_OK;
}

static void payload_arrived(eni_coll *coll, eni_stream *stream)
{
    eni_flight *flight = flight_of(coll->state, stream->rx.seq);
    float *data = stream->rx_data;
    stream->rx_data = NULL;
    stream->rx_done = 0;
    stream->rx_hold_ns = 0;
    eni_group_trace(coll, "receive", stream->rx_begin_ns, eni_now_ns(), stream->rx.bucket,
                    eni_frame_payload(&stream->rx));
    flight->course->arrived(coll, flight, stream->peer, &stream->rx, data);
}

/* A READY frame is of this epoch and has no payload. */
static en_status ready_check(const eni_coll *coll, const eni_stream *stream)
{
    const eni_frame *header = &stream->rx;
    if (header->epoch == coll->config.epoch && header->n == 0) return eni_stream_check(stream);
    eni_error("coll", "rank %d says in epoch %u that it is ready, rank %d is in epoch %u", stream->peer,
              header->epoch, coll->config.rank, coll->config.epoch);
    return EN_EMISMATCH;
}

/* One step of receiving; *went_out 0: nothing more can be done now. */
static en_status stream_receive_step(eni_coll *coll, eni_stream *stream, int *went_out)
{
    int have = 0, is_due;
    *went_out = 0;
    if (stream->rx_hold_ns > 0) { /* complete; the emulated network has it */
        if (eni_now_ns() < stream->rx_hold_ns) return EN_OK;
        payload_arrived(coll, stream);
        *went_out = 1;
        return EN_OK;
    }
    if (!stream->rx_data) {
        if (stream->rx_done < sizeof stream->rx) {
            EN_TRY(eni_stream_pull_header(stream, coll, &have));
            if (!have) return EN_OK;
        }
        if (stream->rx.type == ENI_FRAME_READY) {
            EN_TRY(ready_check(coll, stream));
            if (stream->rx.seq > stream->peer_ready) stream->peer_ready = stream->rx.seq;
            stream->rx_done = 0;
            *went_out = 1;
            return EN_OK;
        }
        EN_TRY(header_is_due(coll, stream, &is_due));
        if (!is_due) return EN_OK;
        EN_TRY(header_accept(coll, stream));
    }
    EN_TRY(eni_stream_pull_payload(stream, coll, &have));
    if (!have) return EN_OK;
    EN_TRY(eni_stream_check(stream));
    const uint64_t bytes = sizeof stream->rx + eni_frame_payload(&stream->rx);
    stream->rx_hold_ns = eni_shaper_recv(coll->config.shaper, stream->rx.deliver_ns, bytes);
    if (stream->rx_hold_ns <= eni_now_ns()) payload_arrived(coll, stream);
    *went_out = 1;
    return EN_OK;
}

/* Receives from everybody, one frame each: what has just arrived is sent on before it leaves the cache. */
static en_status streams_receive(eni_coll *coll, int *went_out)
{
    eni_pump *p = coll->state;
    *went_out = 0;
    for (int r = 0; r < coll->config.nranks; r++) {
        int went = 0;
        if (p->streams[r].fd >= 0) EN_TRY(stream_receive_step(coll, &p->streams[r], &went));
        *went_out |= went;
    }
    return EN_OK;
}

/* A peer that has closed is dead if an operation still needs it; else it has finished and we have not. */
static en_status closed_streams(eni_coll *coll)
{
    const eni_pump *p = coll->state;
    for (int r = 0; r < coll->config.nranks; r++) {
        const eni_stream *stream = &p->streams[r];
        if (stream->fd >= 0 || stream->peer < 0) continue;
        for (uint64_t seq = p->oldest; seq < p->nstarted; seq++) {
            const eni_flight *flight = flight_of(p, seq);
            if (flight->is_done || !flight->course->needs(coll, flight, r)) continue;
            eni_debug("coll", "rank %d closed its connection before #%llu %s of bucket %u was done", r,
                      (unsigned long long)seq, eni_group_op_name(flight->op->op), flight->op->bucket);
            return EN_EPEER;
        }
    }
    return EN_OK;
}

en_status eni_traffic_advance(eni_coll *coll)
{
    eni_pump *p = coll->state;
    flights_start(coll);
    for (;;) {
        const uint64_t before = p->oldest;
        int went;
        EN_TRY(streams_receive(coll, &went));
        for (int r = 0; r < coll->config.nranks; r++)
            if (p->streams[r].fd >= 0) EN_TRY(stream_send(coll, &p->streams[r]));
        flights_end(coll);
        if (!went && p->oldest == before) return closed_streams(coll);
    }
}
