/* dealer.c - a worker's socket to one shard; see socket.h. */
#include <errno.h>
#include <zmq.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/net/socket_state.h"

enum { POLL_CAP_MS = 60000, DEALERS_MAX = 256 };

struct eni_dealer {
    eni_socket socket;
    bool is_greeted; /* a message went out, so there is a connection */
};

en_status eni_dealer_open(eni_net *net, const eni_address *shard, uint64_t max_payload,
                          eni_dealer **dealer_out)
{
    char text[ENI_ADDRESS_TEXT];
    eni_dealer *dealer = eni_alloc(sizeof *dealer);
    if (dealer == NULL) return EN_ENOMEM;
    en_status st;
    eni_socket_endpoint(shard, text);
    EN_TRY_GOTO(eni_socket_open(net, ZMQ_DEALER, shard, max_payload, &dealer->socket), close_dealer);
    if (zmq_connect(dealer->socket.zmq, text) != 0) {
        eni_error("dealer", "cannot connect to %s: %s", text, zmq_strerror(errno));
        EN_TRY_GOTO(EN_EIO, close_dealer);
    }
    *dealer_out = dealer;
    return EN_OK;
close_dealer:
    eni_dealer_close(dealer);
    return st;
}

/* Waits until the socket takes a message. */
static en_status wait_writable(eni_dealer *dealer, int64_t deadline_ns, int abort_fd)
{
    zmq_pollitem_t items[2] = {{dealer->socket.zmq, 0, ZMQ_POLLOUT, 0}, {NULL, abort_fd, ZMQ_POLLIN, 0}};
    int ms = eni_ms_left(deadline_ns, POLL_CAP_MS);
    int n = zmq_poll(items, abort_fd >= 0 ? 2 : 1, ms);
    if (n < 0 && errno != EINTR) {
        eni_error("dealer", "poll failed: %s", zmq_strerror(errno));
        return EN_EIO;
    }
    if (n > 0 && items[1].revents != 0) return EN_EPEER;
    if (n > 0 || ms > 0) return EN_OK;
    if (deadline_ns == 0) return EN_ETIMEOUT; /* the caller only tried */
    eni_error("dealer", "psd did not take a message before the deadline");
    return EN_ETIMEOUT;
}

static en_status put_header(eni_dealer *dealer, const eni_header *header, const void *payload,
                            bool has_payload, int64_t deadline_ns, int abort_fd)
{
    for (;;) {
        en_status st = eni_socket_put_header(&dealer->socket, header, payload, has_payload);
        if (st != EN_ETIMEOUT) return st;
        EN_TRY(wait_writable(dealer, deadline_ns, abort_fd));
    }
}

en_status eni_dealer_send(eni_dealer *dealer, const eni_header *header, void *payload, eni_release release,
                          void *hint, int64_t deadline_ns, int abort_fd)
{
    bool has_payload = eni_socket_has_payload(header);
    en_status st = put_header(dealer, header, payload, has_payload, deadline_ns, abort_fd);
    if (st == EN_OK && !dealer->is_greeted) {
        dealer->is_greeted = true;
        eni_meter_add(&dealer->socket.meter.wire_in, ENI_ZMTP_GREETING);
        eni_meter_add(&dealer->socket.meter.wire_out, ENI_ZMTP_GREETING);
    }
    if (st == EN_OK && has_payload)
        return eni_socket_put_payload(&dealer->socket, payload, header->bytes, release, hint);
    if (release != NULL) release(payload, hint);
    return st;
}

en_status eni_dealer_recv(eni_dealer *dealer, eni_packet *packet_out)
{
    en_status st;
    do
        st = eni_socket_take(&dealer->socket, false, packet_out);
    while (st == EN_EPROTO);
    return st;
}

/* Fills the items: the dealers first, then whatever descriptors there are. Returns their number. */
static int fill_items(eni_dealer *const *dealers, size_t n, int abort_fd, int wake_fd, zmq_pollitem_t *items)
{
    int used = 0;
    for (size_t i = 0; i < n; i++)
        items[used++] = (zmq_pollitem_t){dealers[i]->socket.zmq, 0, ZMQ_POLLIN, 0};
    if (abort_fd >= 0) items[used++] = (zmq_pollitem_t){NULL, abort_fd, ZMQ_POLLIN, 0};
    if (wake_fd >= 0) items[used++] = (zmq_pollitem_t){NULL, wake_fd, ZMQ_POLLIN, 0};
    return used;
}

en_status eni_dealer_poll(eni_dealer *const *dealers, size_t n, int64_t deadline_ns, int abort_fd,
                          int wake_fd, bool *is_ready_out)
{
    zmq_pollitem_t items[DEALERS_MAX + 2];
    if (n > DEALERS_MAX) {
        eni_error("dealer", "%zu dealers: at most %d are possible", n, DEALERS_MAX);
        return EN_EINVAL;
    }
    int used = fill_items(dealers, n, abort_fd, wake_fd, items);
    for (;;) {
        int ms = eni_ms_left(deadline_ns, POLL_CAP_MS);
        int rc = zmq_poll(items, used, ms);
        if (rc < 0 && errno != EINTR) {
            eni_error("dealer", "poll failed: %s", zmq_strerror(errno));
            return EN_EIO;
        }
        bool is_any = false;
        for (size_t i = 0; i < n; i++) {
            is_ready_out[i] = rc > 0 && (items[i].revents & ZMQ_POLLIN) != 0;
            is_any |= is_ready_out[i];
        }
        if (is_any) return EN_OK;
        if (rc > 0) return abort_fd >= 0 && items[n].revents != 0 ? EN_EPEER : EN_EINTR;
        if (ms == 0) return EN_ETIMEOUT;
    }
}

void eni_dealer_count(const eni_dealer *dealer, eni_socket_count *count_out)
{
    eni_meter_read(&dealer->socket.meter, count_out);
}

void eni_dealer_close(eni_dealer *dealer)
{
    if (dealer == NULL) return;
    eni_socket_close(&dealer->socket);
    eni_free(dealer);
}
