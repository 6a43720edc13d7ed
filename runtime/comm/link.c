#include "runtime/comm/link.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "runtime/core/clock.h"
#include "runtime/core/log.h"
#include "runtime/core/try.h"
#include "runtime/net/tcp.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are little-endian");

void eni_link_begin(eni_link *link, const eni_frame *frame, const float *data)
{
    link->tx = *frame;
    link->tx_data = data;
    link->tx_done = 0;
    link->tx_begin_ns = eni_now_ns();
    link->is_sending = 1;
}

/* The parts of header and payload that are still to go. */
static int tx_rest(eni_link *link, struct iovec rest[2])
{
    const size_t header = sizeof link->tx, payload = eni_frame_payload(&link->tx);
    int n = 0;
    if (link->tx_done < header)
        rest[n++] = (struct iovec){(uint8_t *)&link->tx + link->tx_done, header - link->tx_done};
    const size_t sent = link->tx_done > header ? link->tx_done - header : 0;
    if (sent < payload)
        rest[n++] = (struct iovec){(uint8_t *)(uintptr_t)link->tx_data + sent, payload - sent};
    return n;
}

en_status eni_link_push(eni_link *link, eni_coll *coll, int *gone_out)
{
    const size_t total = sizeof link->tx + eni_frame_payload(&link->tx);
    *gone_out = 0;
    while (link->tx_done < total) {
        struct iovec rest[2];
        struct msghdr message = {.msg_iov = rest, .msg_iovlen = (size_t)tx_rest(link, rest)};
        const ssize_t sent = sendmsg(link->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return EN_OK;
        if (sent < 0) {
            eni_debug("link", "rank %d cannot be sent to: %s", link->peer, strerror(errno));
            return EN_EPEER;
        }
        link->tx_done += (size_t)sent;
        eni_group_tally(&coll->wire_sent, (uint64_t)sent);
    }
    eni_group_tally(&coll->payload_sent, eni_frame_payload(&link->tx));
    link->is_sending = 0;
    *gone_out = 1;
    return EN_OK;
}

en_status eni_link_pull_header(eni_link *link, eni_coll *coll, int *have_out)
{
    size_t got = 0;
    *have_out = 0;
    while (link->rx_done < sizeof link->rx) {
        const en_status st = eni_tcp_recv_some(link->fd, (uint8_t *)&link->rx + link->rx_done,
                                               sizeof link->rx - link->rx_done, &got);
        if (st == EN_EPEER && link->rx_done == 0) { /* between two frames: an orderly end, or a death */
            close(link->fd);
            link->fd = -1;
            return EN_OK;
        }
        EN_TRY(st);
        if (got == 0) return EN_OK;
        if (link->rx_done == 0) link->rx_begin_ns = eni_now_ns();
        link->rx_done += got;
        eni_group_tally(&coll->wire_recv, got);
    }
    if (link->rx.magic != ENI_FRAME_MAGIC || link->rx.rank != link->peer) {
        eni_error("link", "rank %d sent %u bytes that are no frame of ours (magic %08x, rank %d)", link->peer,
                  (unsigned)sizeof link->rx, link->rx.magic, link->rx.rank);
        return EN_EPROTO;
    }
    *have_out = 1;
    return EN_OK;
}

en_status eni_link_pull_payload(eni_link *link, eni_coll *coll, int *have_out)
{
    const size_t total = sizeof link->rx + eni_frame_payload(&link->rx);
    *have_out = 0;
    while (link->rx_done < total) {
        size_t got = 0;
        uint8_t *to = (uint8_t *)link->rx_data + (link->rx_done - sizeof link->rx);
        EN_TRY(eni_tcp_recv_some(link->fd, to, total - link->rx_done, &got));
        if (got == 0) return EN_OK;
        link->rx_done += got;
        eni_group_tally(&coll->wire_recv, got);
    }
    eni_group_tally(&coll->payload_recv, eni_frame_payload(&link->rx));
    *have_out = 1;
    return EN_OK;
}
