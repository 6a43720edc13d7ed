/* progress_engine.c - the engine over TCP: the progress thread, and the calls of the compute thread.
 *
 * submit raises a number and wakes the thread. The thread starts operations, receives frames, sends frames
 * and ends operations until nothing moves; then it looks at who is alive, and sleeps in ppoll until a socket
 * is ready, something is submitted or a frame of an emulated network is due. wait sleeps on the flag of
 * completed operations. */
#include "runtime/collective/progress_engine.h"

#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/crc32c.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"
#include "core/slice.h"
#include "core/try.h"
#include "runtime/net/shaper.h"
#include "runtime/net/tcp.h"

#define LINGER_NS ENI_SECOND

/* ---- frames: out and in, never blocking ---- */

/* Sending is one writev straight from the vector; receiving goes straight to where the payload belongs. */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are little-endian");

/* CRC of the header, to be continued over the payload. */
static uint32_t checksum(eni_frame frame)
{
    frame.crc = 0;
    return eni_crc32c(0, &frame, sizeof frame);
}

/* Starts sending; the payload stays in place until stream_push reports the frame sent. */
static void stream_begin(eni_stream *stream, const eni_frame *frame, const float *data)
{
    stream->tx = *frame;
    if (stream->has_crc) stream->tx.crc = eni_crc32c(checksum(*frame), data, eni_frame_payload(frame));
    stream->tx_data = data;
    stream->tx_done = 0;
    stream->tx_begin_ns = eni_now_ns();
    stream->is_sending = true;
}

/* The parts of header and payload that are still to go. */
static int tx_rest(eni_stream *stream, struct iovec rest[2])
{
    const size_t header = sizeof stream->tx, payload = eni_frame_payload(&stream->tx);
    int n = 0;
    if (stream->tx_done < header)
        rest[n++] = (struct iovec){(uint8_t *)&stream->tx + stream->tx_done, header - stream->tx_done};
    const size_t sent = stream->tx_done > header ? stream->tx_done - header : 0;
    if (sent < payload)
        rest[n++] = (struct iovec){(uint8_t *)(uintptr_t)stream->tx_data + sent, payload - sent};
    return n;
}

/* Sends what the socket takes; is_sending ends when the frame has left. EN_EPEER when the connection broke. */
static en_status stream_push(eni_stream *stream, eni_coll *coll)
{
    while (stream->tx_done < eni_frame_bytes(&stream->tx)) {
        struct iovec rest[2];
        struct msghdr message = {.msg_iov = rest, .msg_iovlen = (size_t)tx_rest(stream, rest)};
        const ssize_t sent = sendmsg(stream->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return EN_OK;
        if (sent < 0) {
            eni_debug("stream", "cannot send to rank %d: %s", stream->peer, strerror(errno));
            return EN_EPEER;
        }
        stream->tx_done += (size_t)sent;
        eni_group_count(&coll->wire_sent, (uint64_t)sent);
    }
    eni_group_count(&coll->payload_sent, eni_frame_payload(&stream->tx));
    stream->is_sending = false;
    return EN_OK;
}

/* Reads towards a complete header, which is in stream->rx once rx_done covers it. An orderly end between two
 * frames closes the stream and is EN_OK: the caller knows whether it came too early. */
static en_status stream_pull_header(eni_stream *stream, eni_coll *coll)
{
    size_t got = 0;
    while (stream->rx_done < sizeof stream->rx) {
        const en_status st = eni_tcp_recv_some(stream->fd, (uint8_t *)&stream->rx + stream->rx_done,
                                               sizeof stream->rx - stream->rx_done, &got);
        if (st == EN_EPEER && stream->rx_done == 0) { /* between two frames: an orderly end, or a death */
            close(stream->fd);
            stream->fd = -1;
            return EN_OK;
        }
        EN_TRY(st);
        if (got == 0) return EN_OK;
        if (stream->rx_done == 0) stream->rx_begin_ns = eni_now_ns();
        stream->rx_done += got;
        eni_group_count(&coll->wire_recv, got);
    }
    const bool is_known = stream->rx.type == ENI_FRAME_DATA || stream->rx.type == ENI_FRAME_READY;
    if (stream->rx.magic != ENI_FRAME_MAGIC || stream->rx.rank != stream->peer || !is_known)
        return eni_fail(EN_EPROTO, "stream",
                        "rank %d sent %u bytes that are not a valid frame (magic %08x, rank %d, type %u)",
                        stream->peer, (unsigned)sizeof stream->rx, stream->rx.magic, stream->rx.rank,
                        stream->rx.type);
    stream->rx_crc = stream->has_crc ? checksum(stream->rx) : 0;
    return EN_OK;
}

/* Reads the payload of stream->rx into stream->rx_data, as far as it is there. */
static en_status stream_pull_payload(eni_stream *stream, eni_coll *coll)
{
    const size_t total = eni_frame_bytes(&stream->rx);
    while (stream->rx_done < total) {
        size_t got = 0;
        uint8_t *to = (uint8_t *)stream->rx_data + (stream->rx_done - sizeof stream->rx);
        EN_TRY(eni_tcp_recv_some(stream->fd, to, total - stream->rx_done, &got));
        if (got == 0) return EN_OK;
        if (stream->has_crc)
            stream->rx_crc = eni_crc32c(stream->rx_crc, to, got); /* while it is in the cache */
        stream->rx_done += got;
        eni_group_count(&coll->wire_recv, got);
    }
    eni_group_count(&coll->payload_recv, eni_frame_payload(&stream->rx));
    return EN_OK;
}

/* Checks the checksum of a complete frame. EN_EPROTO, logged. */
static en_status stream_check(const eni_stream *stream)
{
    if (stream->rx_crc == stream->rx.crc) return EN_OK;
    return eni_fail(EN_EPROTO, "stream",
                    "a frame of rank %d (#%llu, bucket %u, %u elements at %llu) was damaged in transit: "
                    "checksum %08x, expected %08x; nothing was added; check memory, network card and cable",
                    stream->peer, (unsigned long long)stream->rx.seq, stream->rx.bucket, stream->rx.n,
                    (unsigned long long)stream->rx.at, stream->rx_crc, stream->rx.crc);
}

/* ---- the engine ---- */

static eni_inflight *inflight_of(const eni_progress_engine *p, uint64_t seq)
{
    return &p->inflight[seq % ENI_COLL_DEPTH];
}

/* ---- operations ---- */

static eni_call_position half_position(const eni_coll *coll, const eni_pair_inflight *s)
{
    return eni_group_half(coll->config.epoch, s->pair->from_number, s->pair->after, &s->pair->op);
}

/* Whether something is still to be received from a rank; or to be sent to it. */
static bool is_awaited(const eni_inflight *inflight, int peer)
{
    return inflight->in[peer].nleft > 0;
}

static bool is_needed(const eni_inflight *inflight, int peer)
{
    return inflight->out[peer].nleft > 0 || is_awaited(inflight, peer);
}

static void inflight_start_all(eni_coll *coll)
{
    eni_progress_engine *p = coll->state;
    const uint64_t submitted = atomic_load_explicit(&p->submitted, memory_order_acquire);
    for (; p->nstarted < submitted; p->nstarted++) {
        eni_inflight *inflight = inflight_of(p, p->nstarted);
        inflight->op = eni_group_op(coll, p->nstarted);
        inflight->seq = p->nstarted;
        inflight->vector = eni_group_vector(coll, inflight->op);
        inflight->algorithm =
            coll->config.algorithm == ENI_COLL_NAIVE ? &eni_naive_algorithm : &eni_ring_algorithm;
        inflight->nsending = 0;
        inflight->is_done = false;
        memset(inflight->out, 0, 2 * (size_t)coll->config.nranks * sizeof *inflight->out);
        inflight->algorithm->start(coll, inflight);
    }
}

static bool inflight_is_complete(const eni_coll *coll, const eni_inflight *inflight)
{
    if (inflight->nsending > 0) return false;
    for (int r = 0; r < coll->config.nranks; r++)
        if (is_needed(inflight, r)) return false;
    return true;
}

/* Ends complete operations; reports them to the compute thread in the order of submit. */
static void inflight_end_all(eni_coll *coll)
{
    eni_progress_engine *p = coll->state;
    for (uint64_t seq = p->oldest; seq < p->nstarted; seq++) {
        eni_inflight *inflight = inflight_of(p, seq);
        if (inflight->is_done || !inflight_is_complete(coll, inflight)) continue;
        if (inflight->algorithm->end != NULL) inflight->algorithm->end(coll, inflight);
        inflight->is_done = true;
        eni_group_trace_op(coll, coll->begin_ns[seq % ENI_COLL_DEPTH], inflight->op);
    }
    const uint64_t before = p->oldest;
    while (p->oldest < p->nstarted && inflight_of(p, p->oldest)->is_done)
        p->oldest++;
    if (p->oldest > before) eni_flag_set(&p->completed, p->oldest);
}

/* ---- sending ---- */

/* Announces to a peer that it may send ahead; only while there is something ahead of what it may send anyway. */
static bool ready_next(eni_coll *coll, eni_stream *stream, eni_frame *frame)
{
    const eni_progress_engine *p = coll->state;
    const uint64_t under_way = p->nstarted - p->oldest;
    const bool is_news = (under_way > 1 && stream->told_ready < p->nstarted) ||
                         (under_way > 0 && stream->told_wanted < stream->nwanted);
    if (!stream->has_data || stream->told_ready == UINT64_MAX || !is_news) return false;
    stream->told_ready = p->nstarted;
    stream->told_wanted = stream->nwanted;
    *frame = (eni_frame){.magic = ENI_FRAME_MAGIC,
                         .type = ENI_FRAME_READY,
                         .epoch = coll->config.epoch,
                         .rank = coll->config.rank,
                         .seq = p->nstarted,
                         .wanted = stream->nwanted};
    return true;
}

/* The next frame of a collective for this link: of the oldest, or of one that the peer is ready for. */
static bool collective_next(eni_coll *coll, eni_stream *stream, eni_frame *frame, const float **data_out)
{
    eni_progress_engine *p = coll->state;
    for (uint64_t seq = p->oldest; seq < p->nstarted; seq++) {
        if (seq > p->oldest && seq >= stream->peer_ready) return false;
        eni_inflight *inflight = inflight_of(p, seq);
        *frame = eni_frame_of(coll, seq, inflight->op);
        if (inflight->is_done || !inflight->algorithm->next(coll, inflight, stream->peer, frame, data_out))
            continue;
        inflight->nsending++;
        return true;
    }
    return false;
}

static bool data_next(eni_coll *coll, eni_stream *stream, eni_frame *frame, const float **data_out)
{
    if (!eni_pairs_next(coll, stream, frame, data_out) && !collective_next(coll, stream, frame, data_out))
        return false;
    frame->deliver_ns = eni_shaper_send(coll->config.shaper, eni_now_ns(), eni_frame_bytes(frame));
    return true;
}

static void frame_is_gone(eni_coll *coll, eni_stream *stream)
{
    if (stream->tx.type != ENI_FRAME_DATA) return;
    if (stream->tx.op == ENI_COLL_SENDRECV)
        eni_pairs_left(coll, stream);
    else
        inflight_of(coll->state, stream->tx.seq)->nsending--;
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
            stream_begin(stream, &frame, data);
        }
        const en_status st = stream_push(stream, coll);
        if (st != EN_OK && stream->tx.type == ENI_FRAME_READY) {
            /* the peer has finished and needs no READY */
            stream->told_ready = UINT64_MAX;
            stream->is_sending = false;
            return EN_OK;
        }
        EN_TRY(st);
        if (stream->is_sending) return EN_OK;
        frame_is_gone(coll, stream);
    }
}

/* ---- receiving ---- */

static eni_call_position header_position(const eni_frame *header)
{
    const uint64_t after = header->op == ENI_COLL_SENDRECV ? header->after : 0;
    return (eni_call_position){header->epoch,  header->seq,   after,         header->op,      header->what,
                               header->bucket, header->count, header->dtype, header->training};
}

/* The same for a vector that no sendrecv has asked for yet: one that is still to come does so after all
 * collectives so far, and so must its sender. */
static en_status vector_is_due(const eni_coll *coll, const eni_stream *stream, bool *is_due_out)
{
    const eni_progress_engine *p = coll->state;
    const eni_call_position theirs = header_position(&stream->rx);
    *is_due_out = eni_pairs_expected(coll, stream->peer) != NULL;
    for (uint64_t seq = p->oldest; seq < p->nstarted && !*is_due_out; seq++) {
        const eni_inflight *inflight = inflight_of(p, seq);
        const bool is_before = !inflight->is_done && is_awaited(inflight, stream->peer);
        if (!is_before && theirs.after > seq) continue;
        const eni_call_position ours = eni_group_position(coll->config.epoch, seq, inflight->op);
        return eni_group_disagree(coll->config.rank, &ours, stream->peer, &theirs);
    }
    return EN_OK;
}

/* Whether the collective of a data header can be received now; if not, the link pauses until it can. Its
 * sender's earlier data must have come by then, or the pause would never end: EN_EMISMATCH. */
static en_status header_is_due(const eni_coll *coll, const eni_stream *stream, bool *is_due_out)
{
    const eni_progress_engine *p = coll->state;
    const eni_frame *header = &stream->rx;
    const bool is_started = header->seq < p->nstarted;
    *is_due_out =
        is_started && (header->seq <= p->oldest || !inflight_of(p, header->seq)->algorithm->is_exclusive);
    if (*is_due_out) return EN_OK;
    const eni_call_position theirs = header_position(header);
    for (uint64_t seq = p->oldest; seq < (is_started ? header->seq : p->nstarted); seq++) {
        const eni_inflight *inflight = inflight_of(p, seq);
        if (inflight->is_done || !is_awaited(inflight, stream->peer)) continue;
        const eni_call_position ours = eni_group_position(coll->config.epoch, seq, inflight->op);
        return eni_group_agree(coll->config.rank, &ours, stream->peer, &theirs);
    }
    const eni_pair_inflight *earlier = is_started ? NULL : eni_pairs_expected(coll, stream->peer);
    if (earlier == NULL || earlier->pair->after > header->seq) return EN_OK;
    const eni_call_position ours = half_position(coll, earlier);
    return eni_group_disagree(coll->config.rank, &ours, stream->peer, &theirs);
}

/* Where the payload of a frame goes (NULL: the link's scratch); *is_expected_out false: nobody awaits it.
 * EN_EMISMATCH, logged, if the ranks are not at the same place. */
static en_status frame_target(eni_coll *coll, const eni_stream *stream, bool *is_expected_out,
                              float **data_out)
{
    eni_progress_engine *p = coll->state;
    const eni_frame *header = &stream->rx;
    const eni_call_position theirs = header_position(header);
    if (header->op == ENI_COLL_SENDRECV) {
        const eni_pair_inflight *s = eni_pairs_expected(coll, stream->peer);
        const eni_call_position ours = half_position(coll, s);
        EN_TRY(eni_group_agree(coll->config.rank, &ours, stream->peer, &theirs));
        *is_expected_out = eni_pairs_accept(coll, s, header, data_out);
        return EN_OK;
    }
    const uint64_t seq = header->seq < p->oldest ? p->oldest : header->seq;
    eni_inflight *inflight = inflight_of(p, seq);
    if (seq < p->nstarted) {
        const eni_call_position ours = eni_group_position(coll->config.epoch, seq, inflight->op);
        EN_TRY(eni_group_agree(coll->config.rank, &ours, stream->peer, &theirs));
    }
    *is_expected_out = seq == header->seq && !inflight->is_done &&
                       inflight->algorithm->accept(coll, inflight, stream->peer, header, data_out);
    return EN_OK;
}

/* Takes a data header: sets rx_data. */
static en_status header_accept(eni_coll *coll, eni_stream *stream)
{
    const eni_frame *header = &stream->rx;
    float *data = NULL;
    bool is_expected = false;
    EN_TRY(frame_target(coll, stream, &is_expected, &data));
    if (header->deliver_ns != 0 && coll->config.shaper == NULL)
        return eni_fail(EN_EMISMATCH, "coll",
                        "rank %d emulates a network and rank %d does not: use the same --net on both",
                        stream->peer, coll->config.rank);
    if (!is_expected)
        return eni_fail(EN_EMISMATCH, "coll",
                        "rank %d sent step %d, elements %llu to %llu at %llu (%u of them) of #%llu %s, which "
                        "rank %d does not expect: the algorithm, segment size or range differs",
                        stream->peer, header->step, (unsigned long long)header->lo,
                        (unsigned long long)header->hi, (unsigned long long)header->at, header->n,
                        (unsigned long long)header->seq, eni_coll_op_name(header->op), coll->config.rank);
    stream->has_data = true;
    stream->rx_data = data != NULL ? data : stream->scratch;
    return EN_OK;
}

static void payload_arrived(eni_coll *coll, eni_stream *stream)
{
    float *data = stream->rx_data;
    stream->rx_data = NULL;
    stream->rx_done = 0;
    stream->rx_hold_ns = 0;
    eni_group_trace(coll, "receive", stream->rx_begin_ns, eni_now_ns(), stream->rx.bucket,
                    eni_frame_payload(&stream->rx));
    if (stream->rx.op == ENI_COLL_SENDRECV) {
        eni_pairs_arrived(coll, stream);
        return;
    }
    eni_inflight *inflight = inflight_of(coll->state, stream->rx.seq);
    inflight->algorithm->arrived(coll, inflight, stream->peer, &stream->rx, data);
}

/* A READY frame is of this epoch and has no payload. */
static en_status ready_check(const eni_coll *coll, const eni_stream *stream)
{
    const eni_frame *header = &stream->rx;
    if (header->epoch == coll->config.epoch && header->n == 0) return stream_check(stream);
    return eni_fail(EN_EMISMATCH, "coll", "rank %d is ready in epoch %u, but rank %d is in epoch %u",
                    stream->peer, header->epoch, coll->config.rank, coll->config.epoch);
}

/* One step of receiving; *went_out false: nothing more can be done now. */
static en_status stream_receive_step(eni_coll *coll, eni_stream *stream, bool *went_out)
{
    bool is_due;
    *went_out = false;
    if (stream->rx_hold_ns > 0) { /* complete, but still on the emulated network */
        if (eni_now_ns() < stream->rx_hold_ns) return EN_OK;
        payload_arrived(coll, stream);
        *went_out = true;
        return EN_OK;
    }
    if (stream->rx_data == NULL) {
        if (stream->rx_done < sizeof stream->rx) {
            EN_TRY(stream_pull_header(stream, coll));
            if (stream->rx_done < sizeof stream->rx) return EN_OK;
        }
        if (stream->rx.type == ENI_FRAME_READY) {
            EN_TRY(ready_check(coll, stream));
            if (stream->rx.seq > stream->peer_ready) stream->peer_ready = stream->rx.seq;
            if (stream->rx.wanted > stream->peer_wants) stream->peer_wants = stream->rx.wanted;
            stream->rx_done = 0;
            *went_out = true;
            return EN_OK;
        }
        EN_TRY(stream->rx.op == ENI_COLL_SENDRECV ? vector_is_due(coll, stream, &is_due)
                                                  : header_is_due(coll, stream, &is_due));
        if (!is_due) return EN_OK;
        EN_TRY(header_accept(coll, stream));
    }
    const size_t bytes = eni_frame_bytes(&stream->rx);
    EN_TRY(stream_pull_payload(stream, coll));
    if (stream->rx_done < bytes) return EN_OK;
    EN_TRY(stream_check(stream));
    stream->rx_hold_ns = eni_shaper_recv(coll->config.shaper, stream->rx.deliver_ns, bytes);
    if (stream->rx_hold_ns <= eni_now_ns()) payload_arrived(coll, stream);
    *went_out = true;
    return EN_OK;
}

/* A peer that has closed is dead if an operation still needs it; else it has finished and we have not. */
static en_status closed_streams(eni_coll *coll)
{
    const eni_progress_engine *p = coll->state;
    for (int r = 0; r < coll->config.nranks; r++) {
        const eni_stream *stream = &p->streams[r];
        if (stream->fd >= 0 || stream->peer < 0) continue;
        const eni_coll_op *op = eni_pairs_need(coll, r);
        if (op != NULL) {
            eni_debug("coll", "rank %d closed its connection before a sendrecv of bucket %u was done", r,
                      op->bucket);
            return EN_EPEER;
        }
        for (uint64_t seq = p->oldest; seq < p->nstarted; seq++) {
            const eni_inflight *inflight = inflight_of(p, seq);
            if (inflight->is_done || !is_needed(inflight, r)) continue;
            eni_debug("coll", "rank %d closed its connection before #%llu %s of bucket %u was done", r,
                      (unsigned long long)seq, eni_coll_op_name(inflight->op->op), inflight->op->bucket);
            return EN_EPEER;
        }
    }
    return EN_OK;
}

/* Starts what was submitted, sends, receives and completes until nothing moves. Never blocks. It takes one
 * frame from everybody at a time: what has just arrived is sent on before it leaves the cache. */
static en_status advance(eni_coll *coll)
{
    eni_progress_engine *p = coll->state;
    inflight_start_all(coll);
    eni_pairs_start(coll); /* after the collectives: it knows of all that came before one that is here */
    for (;;) {
        const uint64_t before = p->oldest;
        bool went = false, goes;
        for (int r = 0; r < coll->config.nranks; r++) {
            if (p->streams[r].fd < 0) continue;
            EN_TRY(stream_receive_step(coll, &p->streams[r], &goes));
            went |= goes;
        }
        for (int r = 0; r < coll->config.nranks; r++)
            if (p->streams[r].fd >= 0) EN_TRY(stream_send(coll, &p->streams[r]));
        inflight_end_all(coll);
        went |= eni_pairs_end(coll);
        if (!went && p->oldest == before) return closed_streams(coll);
    }
}

/* ---- the thread ---- */

/* Wakes the thread only when the rest of a payload is there. A failure to set it only costs wake-ups. */
static void lowat_set(eni_stream *stream)
{
    enum { MOST = 256 << 10 };
    const bool has_rest = stream->rx_data != NULL && stream->rx_hold_ns == 0;
    const size_t rest = has_rest ? eni_frame_bytes(&stream->rx) - stream->rx_done : 1;
    const int want = rest < MOST ? (int)rest : MOST;
    if (want == stream->lowat) return;
    stream->lowat = want;
    setsockopt(stream->fd, SOL_SOCKET, SO_RCVLOWAT, &want, sizeof want);
}

static bool is_busy(const eni_progress_engine *p)
{
    return p->oldest < p->nstarted || p->pairs.oldest < p->pairs.nstarted;
}

/* Fills in the descriptors to wait for. Returns until when. */
static int64_t polls_fill(eni_coll *coll)
{
    eni_progress_engine *p = coll->state;
    int64_t until_ns = is_busy(p) ? eni_now_ns() + ENI_ALIVE_SLICE_MS * ENI_MILLI : INT64_MAX;
    p->polls[0] = (struct pollfd){.fd = p->wake_fd, .events = POLLIN};
    p->polls[1] = (struct pollfd){.fd = is_busy(p) ? coll->config.alive.fd : -1, .events = POLLIN};
    for (int r = 0; r < coll->config.nranks; r++) {
        eni_stream *stream = &p->streams[r];
        if (stream->fd >= 0) lowat_set(stream);
        const bool is_held = stream->rx_hold_ns > 0;
        const bool is_stalled = stream->rx_data == NULL && stream->rx_done == sizeof stream->rx;
        const short events =
            (short)((is_held || is_stalled ? 0 : POLLIN) | (stream->is_sending ? POLLOUT : 0));
        p->polls[2 + r] = (struct pollfd){.fd = events ? stream->fd : -1, .events = events};
        if (is_held && stream->rx_hold_ns < until_ns) until_ns = stream->rx_hold_ns;
    }
    return until_ns;
}

static void progress_sleep(eni_coll *coll)
{
    eni_progress_engine *p = coll->state;
    const int64_t until_ns = polls_fill(coll);
    int64_t left_ns = until_ns - eni_now_ns();
    if (left_ns < 0) left_ns = 0;
    const struct timespec left = eni_timespec(left_ns);
    ppoll(p->polls, (nfds_t)coll->config.nranks + 2, until_ns == INT64_MAX ? NULL : &left, NULL);
    uint64_t count;
    if (p->polls[0].revents && read(p->wake_fd, &count, sizeof count) < 0) return; /* another's wake */
}

/* An orderly end: what we sent must be with the peer's kernel, and what it sent must be read, or our close
 * would be a reset that can overtake our last frames. */
static void stream_linger(const eni_stream *stream, int64_t deadline_ns)
{
    enum { LOOK_MS = 2 };
    struct pollfd end = {.fd = stream->fd, .events = POLLIN};
    char drain[4096];
    int unacknowledged = 1;
    shutdown(stream->fd, SHUT_WR);
    while (unacknowledged > 0 && eni_now_ns() < deadline_ns) {
        if (poll(&end, 1, LOOK_MS) > 0 && recv(stream->fd, drain, sizeof drain, MSG_DONTWAIT) <= 0) return;
        if (ioctl(stream->fd, SIOCOUTQ, &unacknowledged) != 0) return;
    }
}

static void *progress_main(void *argument)
{
    eni_coll *coll = argument;
    eni_progress_engine *p = coll->state;
    en_status st = EN_OK;
    eni_slice_ask(1); /* every core may be computing */
    while (st == EN_OK && !atomic_load(&p->is_stopping)) {
        st = advance(coll);
        if (st == EN_OK && is_busy(p)) st = eni_alive_status(&coll->config.alive);
        if (st == EN_OK) progress_sleep(coll);
    }
    if (st == EN_OK) {
        const int64_t deadline_ns = eni_now_ns() + LINGER_NS;
        for (int r = 0; r < coll->config.nranks; r++)
            if (p->streams[r].fd >= 0) stream_linger(&p->streams[r], deadline_ns);
        return NULL;
    }
    const en_status word = eni_alive_status(&coll->config.alive);
    eni_group_fail(coll, st == EN_EPEER && word != EN_OK ? word : st);
    eni_flag_set(&p->completed, ENI_PROGRESS_FAILED);
    eni_flag_set(&p->pairs.ndone, ENI_PROGRESS_FAILED);
    for (int r = 0; r < coll->config.nranks; r++) /* so that the neighbours do not wait for us */
        if (p->streams[r].fd >= 0) shutdown(p->streams[r].fd, SHUT_RDWR);
    return NULL;
}

static en_status thread_start(eni_coll *coll)
{
    eni_progress_engine *p = coll->state;
    const int error = eni_thread_start(&p->thread, progress_main, coll);
    if (error != 0)
        return eni_fail(EN_ENOMEM, "coll", "cannot start the progress thread: %s", strerror(error));
    p->is_started = true;
    return EN_OK;
}

/* ---- the engine ---- */

static en_status progress_alloc(eni_coll *coll)
{
    const eni_coll_config *config = &coll->config;
    const size_t n = (size_t)config->nranks;
    eni_progress_engine *p = eni_alloc(sizeof *p);
    if (p == NULL) return EN_ENOMEM;
    coll->state = p;
    p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    p->inflight = eni_alloc_array(ENI_COLL_DEPTH, sizeof *p->inflight);
    p->streams = eni_alloc_array(n, sizeof *p->streams);
    p->polls = eni_alloc_array(n + 2, sizeof *p->polls);
    p->chunks = eni_alloc_array(ENI_COLL_DEPTH * n, sizeof *p->chunks);
    p->hops = eni_alloc_array(ENI_COLL_DEPTH * n * 2, sizeof *p->hops);
    p->messages = eni_alloc_array(ENI_COLL_DEPTH * n * 2, sizeof *p->messages);
    p->segment = eni_alloc_array(config->segment, sizeof(float));
    const size_t nscratch = config->algorithm == ENI_COLL_NAIVE ? n : 0;
    p->scratch = eni_alloc_array(nscratch, eni_round_up(config->max_count, ENI_LINE_FLOATS) * sizeof(float));
    if (p->wake_fd < 0 || p->inflight == NULL || p->streams == NULL || p->polls == NULL ||
        p->chunks == NULL || p->hops == NULL || p->messages == NULL || p->segment == NULL ||
        p->scratch == NULL)
        return eni_fail(EN_ENOMEM, "coll", "out of memory for the operations of %zu ranks", n);
    return EN_OK;
}

static en_status progress_open(eni_coll *coll)
{
    const int n = coll->config.nranks;
    EN_TRY(progress_alloc(coll));
    eni_progress_engine *p = coll->state;
    for (int i = 0; i < ENI_COLL_DEPTH; i++) {
        p->inflight[i].chunks = p->chunks + (size_t)i * (size_t)n;
        p->inflight[i].hops = p->hops + (size_t)i * 2 * (size_t)n;
        p->inflight[i].out = p->messages + (size_t)i * 2 * (size_t)n;
        p->inflight[i].in = p->inflight[i].out + n;
    }
    for (int r = 0; r < n; r++) {
        const int fd = r == coll->config.rank ? -1 : coll->config.sockets[r];
        p->streams[r].fd = fd;
        p->streams[r].peer = fd < 0 ? -1 : r;
        p->streams[r].has_crc = fd >= 0 && (coll->config.has_crc || !eni_tcp_is_local(fd));
        p->streams[r].scratch = p->segment; /* only the ring's left neighbour uses it */
    }
    coll->config.sockets = NULL; /* the caller's array */
    return thread_start(coll);
}

/* Whether every peer of this operation is connected. */
static en_status streams_check(const eni_coll *coll, const eni_coll_op *op)
{
    const eni_progress_engine *p = coll->state;
    const int n = coll->config.nranks, rank = coll->config.rank;
    const bool is_sendrecv = op->op == ENI_COLL_SENDRECV, is_ring = coll->config.algorithm == ENI_COLL_RING;
    for (int r = 0; r < n; r++) {
        const bool is_partner = is_sendrecv ? r == op->to || r == op->from
                                : is_ring   ? r == (rank + 1) % n || r == (rank + n - 1) % n
                                            : 1;
        if (r == rank || !is_partner || p->streams[r].peer == r) continue;
        return eni_fail(EN_EUNSUPPORTED, "coll",
                        "rank %d has no connection to rank %d, which the %s of bucket %u needs", rank, r,
                        eni_coll_op_name(op->op), op->bucket);
    }
    return EN_OK;
}

static en_status progress_submit(eni_coll *coll, uint64_t seq)
{
    eni_progress_engine *p = coll->state;
    EN_TRY(streams_check(coll, eni_group_op(coll, seq)));
    atomic_store_explicit(&p->submitted, seq + 1, memory_order_release);
    eventfd_write(p->wake_fd, 1);
    return EN_OK;
}

static bool progress_test(eni_coll *coll, uint64_t seq)
{
    const eni_progress_engine *p = coll->state;
    const uint64_t completed = eni_flag_get(&p->completed);
    return completed != ENI_PROGRESS_FAILED && completed > seq;
}

static en_status progress_wait(eni_coll *coll, uint64_t seq)
{
    eni_progress_engine *p = coll->state;
    const eni_alive forever = {.fd = -1}; /* the progress thread watches, and says ENI_PROGRESS_FAILED */
    EN_TRY(eni_flag_await(&p->completed, seq + 1, 0, INT64_MAX, &forever));
    return eni_group_status(coll);
}

static en_status progress_submit_pair(eni_coll *coll, uint64_t n)
{
    eni_progress_engine *p = coll->state;
    EN_TRY(streams_check(coll, &eni_group_pair(coll, n)->op));
    atomic_store_explicit(&p->pairs.pairs_submitted, n + 1, memory_order_release);
    eventfd_write(p->wake_fd, 1);
    return EN_OK;
}

static bool progress_test_pair(eni_coll *coll, uint64_t n)
{
    eni_progress_engine *p = coll->state;
    return atomic_load_explicit(&p->pairs.pairs_done[n % ENI_COLL_DEPTH], memory_order_acquire) > n;
}

static en_status progress_wait_pair(eni_coll *coll, uint64_t n)
{
    eni_progress_engine *p = coll->state;
    const eni_alive forever = {.fd = -1}; /* as in progress_wait */
    for (;;) {
        const uint64_t ndone = eni_flag_get(&p->pairs.ndone);
        if (progress_test_pair(coll, n)) return EN_OK;
        if (ndone == ENI_PROGRESS_FAILED) return eni_group_status(coll);
        EN_TRY(eni_flag_await(&p->pairs.ndone, ndone + 1, 0, INT64_MAX, &forever));
    }
}

static void progress_close(eni_coll *coll)
{
    eni_progress_engine *p = coll->state;
    if (p == NULL) return;
    if (p->is_started) {
        atomic_store(&p->is_stopping, true);
        eventfd_write(p->wake_fd, 1);
        pthread_join(p->thread, NULL);
    }
    for (int r = 0; p->streams != NULL && p->is_started && r < coll->config.nranks; r++)
        if (p->streams[r].fd >= 0) close(p->streams[r].fd);
    if (p->wake_fd >= 0) close(p->wake_fd);
    eni_free(p->inflight);
    eni_free(p->streams);
    eni_free(p->polls);
    eni_free(p->chunks);
    eni_free(p->hops);
    eni_free(p->messages);
    eni_free(p->segment);
    eni_free(p->scratch);
    eni_free(p);
}

const eni_engine eni_engine_tcp = {
    .open = progress_open,
    .submit = progress_submit,
    .test = progress_test,
    .wait = progress_wait,
    .submit_pair = progress_submit_pair,
    .test_pair = progress_test_pair,
    .wait_pair = progress_wait_pair,
    .close = progress_close,
};
