/* router.c - a shard's socket in psd; see socket.h. */
#include <errno.h>
#include <zmq.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/net/guard.h"
#include "runtime/net/socket_state.h"

struct eni_router {
    eni_socket socket;
    eni_guard *guard; /* NULL: none */
};

static en_status bind_router(eni_router *router, const eni_address *address, eni_address *bound_out)
{
    char text[ENI_ADDRESS_TEXT];
    size_t bytes = sizeof text;
    eni_socket_endpoint(address, text);
    if (zmq_bind(router->socket.zmq, text) != 0) {
        eni_error("router", "cannot listen on %s: %s", text, zmq_strerror(errno));
        return EN_EIO;
    }
    if (bound_out == NULL) return EN_OK;
    if (zmq_getsockopt(router->socket.zmq, ZMQ_LAST_ENDPOINT, text, &bytes) != 0) {
        eni_error("router", "ZeroMQ does not tell its port: %s", zmq_strerror(errno));
        return EN_EIO;
    }
    return eni_address_parse(text, bound_out);
}

en_status eni_router_open(eni_net *net, const eni_address *address, bool is_insecure, uint64_t max_payload,
                          eni_router **router_out, eni_address *bound_out)
{
    if (!is_insecure && !eni_address_is_loopback(address)) {
        eni_error(
            "router",
            "will not listen on %s: beyond loopback nothing is encrypted yet; on a network you trust, add "
            "--insecure",
            address->host);
        return EN_EDENIED;
    }
    eni_router *router = eni_alloc(sizeof *router);
    if (router == NULL) return EN_ENOMEM;
    en_status st;
    EN_TRY_GOTO(eni_socket_open(net, ZMQ_ROUTER, address, max_payload, &router->socket), close_router);
    EN_TRY_GOTO(bind_router(router, address, bound_out), close_router);
    *router_out = router;
    return EN_OK;
close_router:
    eni_router_close(router);
    return st;
}

en_status eni_router_guard(eni_router *router)
{
    return eni_guard_start(eni_socket_context(&router->socket), router->socket.zmq, &router->guard);
}

void eni_router_admit(eni_router *router, const eni_packet *hello)
{
    if (router->guard != NULL) eni_guard_admit(router->guard, hello->source);
}

/* One message if there is one; wrong ones are passed over. */
static en_status take(eni_router *router, eni_packet *packet_out)
{
    en_status st;
    do
        st = eni_socket_take(&router->socket, true, packet_out);
    while (st == EN_EPROTO);
    if (st == EN_OK && packet_out->header.type == ENI_MSG_HELLO) { /* the first message of a connection */
        eni_meter_add(&router->socket.meter.wire_in, ENI_ZMTP_GREETING);
        eni_meter_add(&router->socket.meter.wire_out, ENI_ZMTP_GREETING);
    }
    return st;
}

en_status eni_router_recv(eni_router *router, int timeout_ms, int wake_fd, eni_packet *packet_out)
{
    int64_t deadline_ns = eni_now_ns() + timeout_ms * ENI_MILLI;
    zmq_pollitem_t items[2] = {{router->socket.zmq, 0, ZMQ_POLLIN, 0}, {NULL, wake_fd, ZMQ_POLLIN, 0}};
    for (;;) {
        en_status st = take(router, packet_out);
        if (st != EN_ETIMEOUT) return st;
        int ms = eni_ms_left(deadline_ns, timeout_ms);
        int n = zmq_poll(items, wake_fd >= 0 ? 2 : 1, ms);
        if (n < 0 && errno != EINTR) {
            eni_error("router", "poll failed: %s", zmq_strerror(errno));
            return EN_EIO;
        }
        if (n > 0 && (items[0].revents & ZMQ_POLLIN) != 0) continue;
        if (n > 0) return EN_EINTR;
        if (ms == 0) return EN_ETIMEOUT;
    }
}

/* The routing id, which ROUTER takes off again. */
static en_status put_route(eni_router *router, const eni_packet *to)
{
    while (zmq_send(router->socket.zmq, to->route, to->route_bytes, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0) {
        if (errno == EINTR) continue;
        if (errno != EHOSTUNREACH && errno != EAGAIN) {
            eni_error("router", "send failed: %s", zmq_strerror(errno));
            return EN_EIO;
        }
        eni_meter_add(&router->socket.meter.dropped, 1);
        eni_debug("router", "dropped a reply: %s",
                  errno == EAGAIN ? "its client does not read" : "its client is gone");
        return errno == EAGAIN ? EN_ETIMEOUT : EN_EPEER;
    }
    return EN_OK;
}

en_status eni_router_send(eni_router *router, const eni_packet *to, const eni_header *header, void *payload,
                          eni_release release, void *hint)
{
    bool has_payload = eni_socket_has_payload(header);
    en_status st = put_route(router, to);
    if (st == EN_OK) st = eni_socket_put_header(&router->socket, header, payload, has_payload);
    if (st == EN_OK && has_payload)
        return eni_socket_put_payload(&router->socket, payload, header->bytes, release, hint);
    if (release != NULL) release(payload, hint);
    return st;
}

void eni_router_count(const eni_router *router, eni_socket_count *count_out)
{
    eni_meter_read(&router->socket.meter, count_out);
    if (router->guard != NULL) count_out->evicted = eni_guard_evicted(router->guard);
}

void eni_router_close(eni_router *router)
{
    if (router == NULL) return;
    eni_guard_stop(router->guard);
    eni_socket_close(&router->socket);
    eni_free(router);
}
