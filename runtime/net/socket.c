/* socket.c - the ZeroMQ context; options, frames and counters that routers and dealers share; then the router
 * and the dealer. */
#include "runtime/net/socket.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <zmq.h>

#include "core/clock.h"
#include "core/crc32c.h"
#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/slice.h"
#include "core/try.h"
#include "runtime/net/guard.h"

/* ZMTP 3.1, NULL mechanism: 64 bytes of greeting, and a READY command of 43 bytes that names the socket's
 * type and an empty identity. Each way. */
#define ZMTP_GREETING 107u

/* The counters, in the order of eni_socket_count. */
enum { MESSAGES_IN, MESSAGES_OUT, PAYLOAD_IN, PAYLOAD_OUT, WIRE_IN, WIRE_OUT, DROPPED, DAMAGED, METERS };
_Static_assert(offsetof(eni_socket_count, damaged) == DAMAGED * sizeof(uint64_t), "the order of the counts");

typedef struct message_socket {
    void *zmq;
    int fd;       /* readable when ZeroMQ's threads have told this socket something: perhaps of a message */
    eni_net *net; /* borrowed; outlives us */
    bool has_crc; /* puts a checksum on what it sends: beyond loopback */
    _Atomic uint64_t meter[METERS];
} message_socket;

/* A shard that is behind slows senders of requests down; an answer must never be dropped, and at most one per
 * partition and client is under way. */
enum { REQUESTS_UNREAD = 64, ANSWERS_UNREAD = 1 << 20 };

/* The send buffer in the kernel for a peer on this host, where the wire itself holds nothing: the kernel's
 * limit of 4 MB is more than a cache holds, so the receiver would copy from memory. For another host the
 * kernel chooses best. */
enum { LOOPBACK_UNREAD = 512 << 10 };

enum { HANDSHAKE_MS = 3000, RECONNECT_MS = 100, RECONNECT_MAX_MS = 2000, LINGER_MS = 2000 };

/* The target of eni_packet.owner. Recycled. */
typedef struct holder {
    struct holder *next; /* among the idle ones */
    eni_net *net;
    zmq_msg_t message;
    uint8_t *copy; /* (room) the payload, if ZeroMQ's memory was not aligned */
    uint64_t room;
} holder;

struct eni_net {
    void *context;
    atomic_bool is_aborted;
    pthread_mutex_t lock; /* of idle: packets are released by any thread */
    holder *idle;
};

/* ZeroMQ starts its threads with its first socket, and ends the process if it gets no thread or no memory. */
static en_status start_threads(eni_net *net)
{
    enum { ROOM = 8 << 20 };
    EN_TRY(eni_threads_need(zmq_ctx_get(net->context, ZMQ_IO_THREADS) + 1, "ZeroMQ"));
    EN_TRY(eni_memory_room(ROOM, "ZeroMQ"));
    void *first = zmq_socket(net->context, ZMQ_PAIR);
    if (first == NULL)
        return eni_fail(EN_EIO, "socket", "ZeroMQ cannot open a socket: %s", zmq_strerror(errno));
    zmq_close(first);
    return EN_OK;
}

en_status eni_net_open(int threads, eni_net **net_out)
{
    eni_net *net = eni_alloc(sizeof *net);
    if (net == NULL) return EN_ENOMEM;
    net->context = zmq_ctx_new();
    if (net->context == NULL) {
        eni_error("socket", "cannot create a ZeroMQ context: %s", zmq_strerror(errno));
        eni_free(net);
        return EN_ENOMEM;
    }
    pthread_mutex_init(&net->lock, NULL);
    zmq_ctx_set(net->context, ZMQ_MAX_MSGSZ, INT32_MAX);
    zmq_ctx_set(net->context, ZMQ_IO_THREADS, threads);
    const en_status st = start_threads(net);
    if (st == EN_OK)
        *net_out = net;
    else
        eni_net_close(net);
    return st;
}

void eni_net_close(eni_net *net)
{
    if (net == NULL) return;
    while (zmq_ctx_term(net->context) != 0 && errno == EINTR) {
    }
    for (holder *hold = net->idle, *next; hold != NULL; hold = next) {
        next = hold->next;
        eni_free(hold->copy);
        eni_free(hold);
    }
    pthread_mutex_destroy(&net->lock);
    eni_free(net);
}

void eni_net_abort(eni_net *net)
{
    atomic_store(&net->is_aborted, true);
}

static en_status set_int(void *zmq, int option, int value)
{
    if (zmq_setsockopt(zmq, option, &value, sizeof value) == 0) return EN_OK;
    return eni_fail(EN_EIO, "socket", "ZeroMQ rejects option %d = %d: %s", option, value,
                    zmq_strerror(errno));
}

/* A socket with a ZAP domain refuses peers that speak ZMTP 1 or 2. Their handshake ends in an assertion of
 * libzmq (zmtp_engine.cpp, process_routing_id_msg) if the ROUTER is being closed meanwhile: a stranger could
 * abort psd. No ZAP handler is registered, so ZMTP 3 works as without a domain. */
static en_status set_router_options(void *zmq)
{
    static const char domain[] = "entrain";
    if (zmq_setsockopt(zmq, ZMQ_ZAP_DOMAIN, domain, sizeof domain - 1) != 0)
        return eni_fail(EN_EIO, "socket", "ZeroMQ rejects a ZAP domain: %s", zmq_strerror(errno));
    return set_int(zmq, ZMQ_ROUTER_MANDATORY, 1);
}

static en_status set_options(void *zmq, int type, const eni_address *address, uint64_t max_payload)
{
    int64_t max_frame =
        (int64_t)(max_payload == 0 || max_payload > ENI_BUCKET_MAX ? ENI_BUCKET_MAX : max_payload);
    if (max_frame < (int64_t)ENI_HEADER_MAX) max_frame = ENI_HEADER_MAX;
    if (zmq_setsockopt(zmq, ZMQ_MAXMSGSIZE, &max_frame, sizeof max_frame) != 0)
        return eni_fail(EN_EIO, "socket", "ZeroMQ rejects a limit of %lld bytes: %s", (long long)max_frame,
                        zmq_strerror(errno));
    EN_TRY(set_int(zmq, ZMQ_SNDHWM, type == ZMQ_ROUTER ? ANSWERS_UNREAD : REQUESTS_UNREAD));
    EN_TRY(set_int(zmq, ZMQ_RCVHWM, type == ZMQ_ROUTER ? REQUESTS_UNREAD : ANSWERS_UNREAD));
    EN_TRY(set_int(zmq, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS));
    EN_TRY(set_int(zmq, ZMQ_IPV6, 1));
    if (eni_address_is_loopback(address)) EN_TRY(set_int(zmq, ZMQ_SNDBUF, LOOPBACK_UNREAD));
    if (type == ZMQ_ROUTER) return set_router_options(zmq);
    EN_TRY(set_int(zmq, ZMQ_IMMEDIATE, 1)); /* do not queue for a connection that may never exist */
    EN_TRY(set_int(zmq, ZMQ_RECONNECT_IVL, RECONNECT_MS));
    return set_int(zmq, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS);
}

static en_status socket_open(eni_net *net, int type, const eni_address *address, uint64_t max_payload,
                             message_socket *socket_out)
{
    eni_slice_ask(true); /* for ZeroMQ's own threads: the first socket of a context starts them */
    void *zmq = zmq_socket(net->context, type);
    eni_slice_ask(false);
    if (zmq == NULL)
        return eni_fail(EN_EIO, "socket", "cannot create a ZeroMQ socket: %s", zmq_strerror(errno));
    size_t bytes = sizeof socket_out->fd;
    en_status st = set_options(zmq, type, address, max_payload);
    if (st == EN_OK && zmq_getsockopt(zmq, ZMQ_FD, &socket_out->fd, &bytes) != 0)
        st = eni_fail(EN_EIO, "socket", "ZeroMQ has no descriptor to wait for: %s", zmq_strerror(errno));
    if (st != EN_OK) {
        zmq_close(zmq);
        return st;
    }
    socket_out->zmq = zmq;
    socket_out->net = net;
    socket_out->has_crc = !eni_address_is_loopback(address);
    return EN_OK;
}

static void socket_close(message_socket *socket)
{
    if (socket->zmq == NULL) return;
    set_int(socket->zmq, ZMQ_LINGER, atomic_load(&socket->net->is_aborted) ? 0 : LINGER_MS);
    zmq_close(socket->zmq);
    socket->zmq = NULL;
}

static void socket_endpoint(const eni_address *address, char text_out[ENI_ADDRESS_TEXT])
{
    eni_address plain = *address;
    if (strcmp(plain.host, "localhost") == 0) memcpy(plain.host, "127.0.0.1", sizeof "127.0.0.1");
    eni_address_format(&plain, text_out);
}

static void meter_add(message_socket *socket, int meter, uint64_t n)
{
    atomic_fetch_add_explicit(&socket->meter[meter], n, memory_order_relaxed);
}

static void meter_read(const message_socket *socket, eni_socket_count *count_out)
{
    uint64_t n[METERS];
    for (int i = 0; i < METERS; i++)
        n[i] = atomic_load_explicit(&socket->meter[i], memory_order_relaxed);
    *count_out = (eni_socket_count){0};
    memcpy(count_out, n, sizeof n);
}

/* A frame on the wire: a flags byte, a length of 1 or 8 bytes, the body. */
static uint64_t frame_bytes(uint64_t body)
{
    return body + (body > 255 ? 9 : 2);
}

static holder *hold_take(eni_net *net)
{
    pthread_mutex_lock(&net->lock);
    holder *hold = net->idle;
    if (hold != NULL) net->idle = hold->next;
    pthread_mutex_unlock(&net->lock);
    if (hold == NULL) hold = eni_alloc(sizeof *hold);
    if (hold != NULL) hold->net = net;
    return hold;
}

void eni_packet_free(void *owner)
{
    holder *hold = owner;
    eni_net *net = hold->net;
    zmq_msg_close(&hold->message);
    pthread_mutex_lock(&net->lock);
    hold->next = net->idle;
    net->idle = hold;
    pthread_mutex_unlock(&net->lock);
}

/* Room for a copy of a payload. */
static en_status hold_room(holder *hold, uint64_t bytes)
{
    if (hold->room >= bytes) return EN_OK;
    eni_free(hold->copy);
    hold->room = 0;
    hold->copy = eni_alloc(bytes);
    if (hold->copy == NULL) return EN_ENOMEM;
    hold->room = bytes;
    return EN_OK;
}

/* Receives the next frame of the message into an initialised zmq_msg. EN_ETIMEOUT if none is there. */
static en_status next_frame(message_socket *socket, zmq_msg_t *frame)
{
    while (zmq_msg_recv(frame, socket->zmq, ZMQ_DONTWAIT) < 0) {
        if (errno == EAGAIN) return EN_ETIMEOUT;
        if (errno == EINTR) continue;
        return eni_fail(EN_EIO, "socket", "receive failed: %s", zmq_strerror(errno));
    }
    return EN_OK;
}

/* Throws the rest of a multipart message away. */
static void drain(message_socket *socket, zmq_msg_t *frame)
{
    while (zmq_msg_more(frame) && next_frame(socket, frame) == EN_OK)
        meter_add(socket, WIRE_IN, frame_bytes(zmq_msg_size(frame)));
}

/* Moves the frame into the packet as its payload. Tensors are float32: a frame that ZeroMQ keeps in the
 * middle of its receive buffer (below 8 KiB) may lie on any byte, and is copied. */
static en_status hold_payload(eni_net *net, zmq_msg_t *frame, eni_packet *packet)
{
    holder *hold = hold_take(net);
    if (hold == NULL) return EN_ENOMEM;
    zmq_msg_init(&hold->message);
    zmq_msg_move(&hold->message, frame);
    packet->bytes = zmq_msg_size(&hold->message);
    packet->payload = zmq_msg_data(&hold->message);
    packet->owner = hold;
    if ((uintptr_t)packet->payload % sizeof(float) == 0) return EN_OK;
    if (hold_room(hold, packet->bytes) != EN_OK) {
        eni_packet_release(packet);
        return EN_ENOMEM;
    }
    packet->payload = memcpy(hold->copy, packet->payload, packet->bytes);
    return EN_OK;
}

static bool socket_has_payload(const eni_header *header)
{
    return header->bytes > 0 && (header->flags & ENI_FLAG_SHM) == 0;
}

static en_status drop(message_socket *socket, zmq_msg_t *frame, eni_packet *packet, const char *why)
{
    drain(socket, frame);
    eni_packet_release(packet);
    meter_add(socket, DROPPED, 1);
    eni_debug("socket", "dropped a message: %s", why);
    return EN_EPROTO;
}

/* Takes all frames of one message, the first of which is already in `frame`. */
static en_status take_frames(message_socket *socket, bool has_route, zmq_msg_t *frame, eni_packet *packet)
{
    const char *why = "it has no header";
    if (has_route) {
        packet->route_bytes = (uint32_t)zmq_msg_size(frame);
        if (packet->route_bytes == 0 || packet->route_bytes > ENI_ROUTE_MAX || !zmq_msg_more(frame))
            return drop(socket, frame, packet, "its route is empty or too long");
        memcpy(packet->route, zmq_msg_data(frame), packet->route_bytes);
        EN_TRY(next_frame(socket, frame));
    }
    meter_add(socket, WIRE_IN, frame_bytes(zmq_msg_size(frame)));
    if (eni_header_decode(zmq_msg_data(frame), zmq_msg_size(frame), &packet->header, &why) != EN_OK)
        return drop(socket, frame, packet, why);
    if (has_route && packet->header.type == ENI_MSG_HELLO) packet->source = zmq_msg_get(frame, ZMQ_SRCFD);
    bool has_payload = socket_has_payload(&packet->header);
    if (has_payload != zmq_msg_more(frame))
        return drop(socket, frame, packet, "the number of its frames does not match its header");
    if (!has_payload) return EN_OK;
    EN_TRY(next_frame(socket, frame));
    meter_add(socket, WIRE_IN, frame_bytes(zmq_msg_size(frame)));
    if (zmq_msg_more(frame)) return drop(socket, frame, packet, "it has too many frames");
    if (zmq_msg_size(frame) != packet->header.bytes)
        return drop(socket, frame, packet, "the length of its payload does not match its header");
    EN_TRY(hold_payload(socket->net, frame, packet));
    packet->is_damaged = (packet->header.flags & ENI_FLAG_CRC) != 0 &&
                         eni_crc32c(0, packet->payload, packet->bytes) != packet->header.crc;
    if (packet->is_damaged) meter_add(socket, DAMAGED, 1);
    return EN_OK;
}

/* Receives one message if there is one; skips invalid ones. */
static en_status socket_take(message_socket *socket, bool has_route, eni_packet *packet_out)
{
    zmq_msg_t frame;
    eni_packet packet;
    en_status st;
    do {
        packet.owner = NULL;
        packet.payload = NULL;
        packet.bytes = 0;
        packet.route_bytes = 0;
        packet.source = -1;
        packet.is_damaged = false;
        zmq_msg_init(&frame);
        st = next_frame(socket, &frame);
        if (st == EN_OK) st = take_frames(socket, has_route, &frame, &packet);
        zmq_msg_close(&frame);
    } while (st == EN_EPROTO);
    EN_TRY(st);
    meter_add(socket, MESSAGES_IN, 1);
    meter_add(socket, PAYLOAD_IN, packet.bytes);
    *packet_out = packet;
    return EN_OK;
}

/* Encodes, with a checksum if the socket sends them and there is a payload. */
static size_t encode(const message_socket *socket, const eni_header *header, const void *payload,
                     uint8_t *bytes)
{
    if (!socket->has_crc || payload == NULL) return eni_header_encode(header, bytes);
    eni_header checked = *header;
    checked.flags |= ENI_FLAG_CRC;
    checked.crc = eni_crc32c(0, payload, header->bytes);
    return eni_header_encode(&checked, bytes);
}

static en_status socket_put_header(message_socket *socket, const eni_header *header, const void *payload,
                                   bool has_more)
{
    uint8_t bytes[ENI_HEADER_MAX];
    size_t length = encode(socket, header, has_more ? payload : NULL, bytes);
    int flags = ZMQ_DONTWAIT | (has_more ? ZMQ_SNDMORE : 0);
    while (zmq_send(socket->zmq, bytes, length, flags) < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN) return EN_ETIMEOUT;
        return eni_fail(EN_EIO, "socket", "send failed: %s", zmq_strerror(errno));
    }
    meter_add(socket, WIRE_OUT, frame_bytes(length));
    if (!has_more) meter_add(socket, MESSAGES_OUT, 1);
    return EN_OK;
}

/* Makes a ZeroMQ message of the payload: without a copy if it is long and has a `release`, else copied. After
 * this `release` has been called or belongs to the message. */
static en_status make_payload(zmq_msg_t *frame, void *payload, uint64_t bytes, eni_release release,
                              void *hint)
{
    if (release != NULL && bytes >= ENI_ZEROCOPY_MIN &&
        zmq_msg_init_data(frame, payload, bytes, release, hint) == 0)
        return EN_OK;
    int rc = zmq_msg_init_size(frame, bytes);
    if (rc == 0) memcpy(zmq_msg_data(frame), payload, bytes);
    if (release != NULL) release(payload, hint);
    if (rc == 0) return EN_OK;
    return eni_fail(EN_ENOMEM, "socket", "out of memory for a payload of %llu bytes",
                    (unsigned long long)bytes);
}

static en_status socket_put_payload(message_socket *socket, void *payload, uint64_t bytes,
                                    eni_release release, void *hint)
{
    zmq_msg_t frame;
    EN_TRY(make_payload(&frame, payload, bytes, release, hint));
    while (zmq_msg_send(&frame, socket->zmq, ZMQ_DONTWAIT) < 0) {
        if (errno == EINTR) continue;
        eni_error("socket", "cannot send a payload of %llu bytes: %s", (unsigned long long)bytes,
                  zmq_strerror(errno));
        zmq_msg_close(&frame);
        return EN_EIO;
    }
    meter_add(socket, MESSAGES_OUT, 1);
    meter_add(socket, PAYLOAD_OUT, bytes);
    meter_add(socket, WIRE_OUT, frame_bytes(bytes));
    return EN_OK;
}

/* ---- router: a shard's socket in psd ---- */

struct eni_router {
    message_socket socket;
    eni_guard *guard; /* NULL if unguarded */
};

static en_status bind_router(eni_router *router, const eni_address *address, eni_address *bound_out)
{
    char text[ENI_ADDRESS_TEXT];
    size_t bytes = sizeof text;
    socket_endpoint(address, text);
    if (zmq_bind(router->socket.zmq, text) != 0)
        return eni_fail(EN_EIO, "router", "cannot listen on %s: %s", text, zmq_strerror(errno));
    if (bound_out == NULL) return EN_OK;
    if (zmq_getsockopt(router->socket.zmq, ZMQ_LAST_ENDPOINT, text, &bytes) != 0)
        return eni_fail(EN_EIO, "router", "ZeroMQ does not report its port: %s", zmq_strerror(errno));
    return eni_address_parse(text, bound_out);
}

en_status eni_router_open(eni_net *net, const eni_address *address, bool is_insecure, uint64_t max_payload,
                          eni_router **router_out, eni_address *bound_out)
{
    if (!is_insecure && !eni_address_is_loopback(address))
        return eni_fail(EN_EDENIED, "router",
                        "will not listen on %s: traffic beyond loopback is not encrypted yet; add --insecure "
                        "on a network you trust",
                        address->host);
    eni_router *router = eni_alloc(sizeof *router);
    if (router == NULL) return EN_ENOMEM;
    en_status st;
    EN_TRY_GOTO(socket_open(net, ZMQ_ROUTER, address, max_payload, &router->socket), close_router);
    EN_TRY_GOTO(bind_router(router, address, bound_out), close_router);
    *router_out = router;
    return EN_OK;
close_router:
    eni_router_close(router);
    return st;
}

en_status eni_router_guard(eni_router *router, uint32_t nrouters)
{
    return eni_guard_start(router->socket.net->context, router->socket.zmq, nrouters, &router->guard);
}

void eni_router_admit(eni_router *router, const eni_packet *hello)
{
    if (router->guard != NULL) eni_guard_admit(router->guard, hello->source);
}

static en_status take(eni_router *router, eni_packet *packet_out)
{
    const en_status st = socket_take(&router->socket, true, packet_out);
    if (st == EN_OK && packet_out->header.type == ENI_MSG_HELLO) { /* the first message of a connection */
        meter_add(&router->socket, WIRE_IN, ZMTP_GREETING);
        meter_add(&router->socket, WIRE_OUT, ZMTP_GREETING);
    }
    return st;
}

en_status eni_router_recv(eni_router *router, int timeout_ms, int wake_fd, eni_packet *packet_out)
{
    int64_t deadline_ns = eni_now_ns() + timeout_ms * ENI_MILLI;
    struct pollfd fds[2] = {{router->socket.fd, POLLIN, 0},
                            {wake_fd, POLLIN, 0}}; /* a negative one is skipped */
    for (;;) {
        en_status st = take(router, packet_out);
        if (st != EN_ETIMEOUT) return st;
        int ms = eni_ms_left(deadline_ns, timeout_ms);
        int n = poll(fds, 2, ms);
        if (n < 0 && errno != EINTR) return eni_fail(EN_EIO, "router", "poll failed: %s", strerror(errno));
        if (n > 0 && fds[0].revents != 0) continue;
        if (n > 0) return EN_EINTR;
        if (ms == 0) return EN_ETIMEOUT;
    }
}

/* Sends the routing id, which ROUTER strips again. */
static en_status put_route(eni_router *router, const eni_packet *to)
{
    while (zmq_send(router->socket.zmq, to->route, to->route_bytes, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0) {
        if (errno == EINTR) continue;
        if (errno != EHOSTUNREACH && errno != EAGAIN)
            return eni_fail(EN_EIO, "router", "send failed: %s", zmq_strerror(errno));
        meter_add(&router->socket, DROPPED, 1);
        eni_debug("router", "dropped a reply: %s",
                  errno == EAGAIN ? "its client does not read" : "its client is gone");
        return errno == EAGAIN ? EN_ETIMEOUT : EN_EPEER;
    }
    return EN_OK;
}

en_status eni_router_send(eni_router *router, const eni_packet *to, const eni_header *header, void *payload,
                          eni_release release, void *hint)
{
    bool has_payload = socket_has_payload(header);
    en_status st = put_route(router, to);
    if (st == EN_OK) st = socket_put_header(&router->socket, header, payload, has_payload);
    if (st == EN_OK && has_payload)
        return socket_put_payload(&router->socket, payload, header->bytes, release, hint);
    if (release != NULL) release(payload, hint);
    return st;
}

void eni_router_count(const eni_router *router, eni_socket_count *count_out)
{
    meter_read(&router->socket, count_out);
    if (router->guard != NULL) count_out->evicted = eni_guard_evicted(router->guard);
}

void eni_router_close(eni_router *router)
{
    if (router == NULL) return;
    eni_guard_stop(router->guard);
    socket_close(&router->socket);
    eni_free(router);
}

/* ---- dealer: a worker's socket to one shard ---- */

enum { POLL_CAP_MS = 60000, DEALERS_MAX = 256, LINGER_NS = 300000, CROWDED_NS = 50000 };

struct eni_dealer {
    message_socket socket;
    bool is_greeted; /* a message was sent, so there is a connection */
    bool is_patient; /* the last wait that began with this dealer brought nothing: the next sleeps at once */
};

en_status eni_dealer_open(eni_net *net, const eni_address *shard, eni_dealer **dealer_out)
{
    char text[ENI_ADDRESS_TEXT];
    eni_dealer *dealer = eni_alloc(sizeof *dealer);
    if (dealer == NULL) return EN_ENOMEM;
    en_status st;
    socket_endpoint(shard, text);
    EN_TRY_GOTO(socket_open(net, ZMQ_DEALER, shard, 0, &dealer->socket), close_dealer);
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
    if (n < 0 && errno != EINTR) return eni_fail(EN_EIO, "dealer", "poll failed: %s", zmq_strerror(errno));
    if (n > 0 && items[1].revents != 0) return EN_EPEER;
    if (n > 0 || ms > 0) return EN_OK;
    if (deadline_ns == 0) return EN_ETIMEOUT; /* the caller only tried */
    return eni_fail(EN_ETIMEOUT, "dealer",
                    "psd did not accept a message in time: check its host's load and the network");
}

static en_status send_header(eni_dealer *dealer, const eni_header *header, const void *payload,
                             bool has_payload, int64_t deadline_ns, int abort_fd)
{
    for (;;) {
        en_status st = socket_put_header(&dealer->socket, header, payload, has_payload);
        if (st != EN_ETIMEOUT) return st;
        EN_TRY(wait_writable(dealer, deadline_ns, abort_fd));
    }
}

en_status eni_dealer_send(eni_dealer *dealer, const eni_header *header, void *payload, eni_release release,
                          void *hint, int64_t deadline_ns, int abort_fd)
{
    bool has_payload = socket_has_payload(header);
    en_status st = send_header(dealer, header, payload, has_payload, deadline_ns, abort_fd);
    if (st == EN_OK && !dealer->is_greeted) {
        dealer->is_greeted = true;
        meter_add(&dealer->socket, WIRE_IN, ZMTP_GREETING);
        meter_add(&dealer->socket, WIRE_OUT, ZMTP_GREETING);
    }
    if (st == EN_OK && has_payload)
        return socket_put_payload(&dealer->socket, payload, header->bytes, release, hint);
    if (release != NULL) release(payload, hint);
    return st;
}

en_status eni_dealer_recv(eni_dealer *dealer, eni_packet *packet_out)
{
    return socket_take(&dealer->socket, false, packet_out);
}

/* Also takes in what ZeroMQ's threads have told the socket, so that its descriptor shows what comes next. */
static bool has_message(const eni_dealer *dealer)
{
    int events = 0;
    size_t bytes = sizeof events;
    return zmq_getsockopt(dealer->socket.zmq, ZMQ_EVENTS, &events, &bytes) == 0 && (events & ZMQ_POLLIN) != 0;
}

/* Sets is_ready_out[i] for each dealer with a message. Whether there is one. */
static bool look_round(eni_dealer *const *dealers, size_t n, bool *is_ready_out)
{
    bool is_any = false;
    for (size_t i = 0; i < n; i++)
        is_any |= is_ready_out[i] = has_message(dealers[i]);
    return is_any;
}

/* Looks for some time before it sleeps: to wake a core that has gone idle takes longer than a small message does. A yield that
 * takes long shows that others need this core. */
static bool linger(eni_dealer *const *dealers, size_t n, int64_t deadline_ns, bool *is_ready_out)
{
    const int64_t latest_ns = eni_now_ns() + LINGER_NS,
                  until_ns = latest_ns < deadline_ns ? latest_ns : deadline_ns;
    for (;;) {
        if (look_round(dealers, n, is_ready_out)) return true;
        const int64_t now_ns = eni_now_ns();
        if (now_ns >= until_ns) return false;
        sched_yield();
        if (eni_now_ns() - now_ns > CROWDED_NS) return false;
    }
}

en_status eni_dealer_poll(eni_dealer *const *dealers, size_t n, int64_t deadline_ns, int abort_fd,
                          int wake_fd, bool *is_ready_out)
{
    struct pollfd fds[DEALERS_MAX + 2]; /* abort, wake, the dealers */
    if (n == 0 || n > DEALERS_MAX)
        return eni_fail(EN_EINVAL, "dealer", "cannot wait for %zu dealers: the limit is %d", n, DEALERS_MAX);
    fds[0] = (struct pollfd){abort_fd, POLLIN, 0}; /* a negative one is skipped */
    fds[1] = (struct pollfd){wake_fd, POLLIN, 0};
    for (size_t i = 0; i < n; i++)
        fds[2 + i] = (struct pollfd){dealers[i]->socket.fd, POLLIN, 0};
    const bool was_patient = dealers[0]->is_patient;
    dealers[0]->is_patient = false;
    if (linger(dealers, n, was_patient ? 0 : deadline_ns, is_ready_out)) return EN_OK;
    for (;;) { /* zmq_poll would look twice each time */
        const int ms = eni_ms_left(deadline_ns, POLL_CAP_MS);
        if (poll(fds, n + 2, ms) < 0 && errno != EINTR)
            return eni_fail(EN_EIO, "dealer", "poll failed: %s", strerror(errno));
        if (look_round(dealers, n, is_ready_out)) return EN_OK;
        if (fds[0].revents != 0) return EN_EPEER;
        if (fds[1].revents != 0) return EN_EINTR;
        dealers[0]->is_patient = ms == 0;
        if (ms == 0) return EN_ETIMEOUT;
    }
}

void eni_dealer_count(const eni_dealer *dealer, eni_socket_count *count_out)
{
    meter_read(&dealer->socket, count_out);
}

void eni_dealer_close(eni_dealer *dealer)
{
    if (dealer == NULL) return;
    socket_close(&dealer->socket);
    eni_free(dealer);
}

/* libzmq is not built with ThreadSanitizer, which sees its recv(2) and malloc but not the lock-free queue
 * that hands a message to our thread, and so reports every message as a race. It must ignore uninstrumented
 * libraries; the reads and writes of our own code are still checked. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ENI_HAS_TSAN
#endif
#elif defined(__SANITIZE_THREAD__)
#define ENI_HAS_TSAN
#endif
#ifdef ENI_HAS_TSAN
const char *__tsan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void)
{
    return "ignore_noninstrumented_modules=1";
}
#endif
