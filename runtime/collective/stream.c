#include "runtime/collective/stream.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/crc32c.h"
#include "core/log.h"
#include "core/try.h"
#include "runtime/net/tcp.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are little-endian");

/* Of the header; the payload's follows on. */
static uint32_t checksum(eni_frame frame)
{
    frame.crc = 0;
    return eni_crc32c(0, &frame, sizeof frame);
}

void eni_stream_begin(eni_stream *stream, const eni_frame *frame, const float *data)
{
    stream->tx = *frame;
    if (stream->has_crc) stream->tx.crc = eni_crc32c(checksum(*frame), data, eni_frame_payload(frame));
    stream->tx_data = data;
    stream->tx_done = 0;
    stream->tx_begin_ns = eni_now_ns();
    stream->is_sending = 1;
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

en_status eni_stream_push(eni_stream *stream, eni_coll *coll, int *gone_out)
{
    const size_t total = sizeof stream->tx + eni_frame_payload(&stream->tx);
    *gone_out = 0;
    while (stream->tx_done < total) {
        struct iovec rest[2];
        struct msghdr message = {.msg_iov = rest, .msg_iovlen = (size_t)tx_rest(stream, rest)};
        const ssize_t sent = sendmsg(stream->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return EN_OK;
        if (sent < 0) {
            eni_debug("stream", "rank %d cannot be sent to: %s", stream->peer, strerror(errno));
            return EN_EPEER;
        }
        stream->tx_done += (size_t)sent;
        eni_group_tally(&coll->wire_sent, (uint64_t)sent);
    }
    eni_group_tally(&coll->payload_sent, eni_frame_payload(&stream->tx));
    stream->is_sending = 0;
    *gone_out = 1;
    return EN_OK;
}

en_status eni_stream_pull_header(eni_stream *stream, eni_coll *coll, int *have_out)
{
    size_t got = 0;
    *have_out = 0;
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
        eni_group_tally(&coll->wire_recv, got);
    }
    const int is_known = stream->rx.type == ENI_FRAME_DATA || stream->rx.type == ENI_FRAME_READY;
    if (stream->rx.magic != ENI_FRAME_MAGIC || stream->rx.rank != stream->peer || !is_known) {
        eni_error("stream", "rank %d sent %u bytes that are no frame of ours (magic %08x, rank %d, type %u)",
                  stream->peer, (unsigned)sizeof stream->rx, stream->rx.magic, stream->rx.rank,
                  stream->rx.type);
        return EN_EPROTO;
    }
    stream->rx_crc = stream->has_crc ? checksum(stream->rx) : 0;
    *have_out = 1;
    return EN_OK;
}

en_status eni_stream_pull_payload(eni_stream *stream, eni_coll *coll, int *have_out)
{
    const size_t total = sizeof stream->rx + eni_frame_payload(&stream->rx);
    *have_out = 0;
    while (stream->rx_done < total) {
        size_t got = 0;
        uint8_t *to = (uint8_t *)stream->rx_data + (stream->rx_done - sizeof stream->rx);
        EN_TRY(eni_tcp_recv_some(stream->fd, to, total - stream->rx_done, &got));
        if (got == 0) return EN_OK;
        if (stream->has_crc)
            stream->rx_crc = eni_crc32c(stream->rx_crc, to, got); /* while it is in the cache */
        stream->rx_done += got;
        eni_group_tally(&coll->wire_recv, got);
    }
    eni_group_tally(&coll->payload_recv, eni_frame_payload(&stream->rx));
    *have_out = 1;
    return EN_OK;
}

en_status eni_stream_check(const eni_stream *stream)
{
    if (stream->rx_crc == stream->rx.crc) return EN_OK;
    eni_error(
        "stream",
        "what rank %d sent of #%llu for bucket %u (%u elements at %llu) was damaged on its way: checksum "
        "%08x, should be %08x: memory, network card or cable; nothing was added",
        stream->peer, (unsigned long long)stream->rx.seq, stream->rx.bucket, stream->rx.n,
        (unsigned long long)stream->rx.at, stream->rx_crc, stream->rx.crc);
    return EN_EPROTO;
}
