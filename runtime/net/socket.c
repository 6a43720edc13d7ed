/* socket.c - the ZeroMQ context, and what routers and dealers share: options, frames, counters; see socket.h.
 */
#include "runtime/net/socket.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <zmq.h>

#include "core/crc32c.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/slice.h"
#include "core/try.h"
#include "runtime/net/socket_state.h"

/* A sender of requests is slowed down by a shard that is behind; an answer must never be dropped, and there
 * is at most one per partition and client under way. */
enum { REQUESTS_UNREAD = 64, ANSWERS_UNREAD = 1 << 20 };

/* What a sender may have in the kernel on its way to a socket of this host, where there is no distance to
 * fill: the kernel's own limit of 4 MB is more than a cache holds, and the receiver's copy finds it in
 * memory. To another host the kernel knows best. */
enum { LOOPBACK_UNREAD = 512 << 10 };

enum { HANDSHAKE_MS = 3000, RECONNECT_MS = 100, RECONNECT_MAX_MS = 2000, LINGER_MS = 2000 };

/* What eni_packet.owner points to. Recycled. */
typedef struct holder {
    struct holder *next; /* among the idle ones */
    eni_net *net;
    zmq_msg_t message;
    uint8_t *copy; /* (room) the payload where ZeroMQ's memory was not aligned */
    uint64_t room;
} holder;

struct eni_net {
    void *context;
    atomic_bool is_aborted, has_crc;
    pthread_mutex_t lock; /* of idle: packets are released by any thread */
    holder *idle;
};

en_status eni_net_open(int io_threads, eni_net **net_out)
{
    eni_net *net = eni_alloc(sizeof *net);
    if (net == NULL) return EN_ENOMEM;
    net->context = zmq_ctx_new();
    if (net->context == NULL) {
        eni_error("socket", "cannot make a ZeroMQ context: %s", zmq_strerror(errno));
        eni_free(net);
        return EN_ENOMEM;
    }
    pthread_mutex_init(&net->lock, NULL);
    zmq_ctx_set(net->context, ZMQ_IO_THREADS, io_threads < 1 ? 1 : io_threads);
    zmq_ctx_set(net->context, ZMQ_MAX_MSGSZ, INT32_MAX);
    *net_out = net;
    return EN_OK;
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

void eni_net_use_crc(eni_net *net)
{
    atomic_store(&net->has_crc, true);
}

static en_status set_int(void *zmq, int option, int value)
{
    if (zmq_setsockopt(zmq, option, &value, sizeof value) == 0) return EN_OK;
    eni_error("socket", "ZeroMQ refuses option %d = %d: %s", option, value, zmq_strerror(errno));
    return EN_EIO;
}

static en_status set_options(void *zmq, int type, const eni_address *address, uint64_t max_payload)
{
    int64_t max_frame =
        (int64_t)(max_payload == 0 || max_payload > ENI_BUCKET_MAX ? ENI_BUCKET_MAX : max_payload);
    if (max_frame < (int64_t)ENI_HEADER_MAX) max_frame = ENI_HEADER_MAX;
    if (zmq_setsockopt(zmq, ZMQ_MAXMSGSIZE, &max_frame, sizeof max_frame) != 0) {
        eni_error("socket", "ZeroMQ refuses a limit of %lld bytes: %s", (long long)max_frame,
                  zmq_strerror(errno));
        return EN_EIO;
    }
    EN_TRY(set_int(zmq, ZMQ_SNDHWM, type == ZMQ_ROUTER ? ANSWERS_UNREAD : REQUESTS_UNREAD));
    EN_TRY(set_int(zmq, ZMQ_RCVHWM, type == ZMQ_ROUTER ? REQUESTS_UNREAD : ANSWERS_UNREAD));
    EN_TRY(set_int(zmq, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS));
    EN_TRY(set_int(zmq, ZMQ_IPV6, 1));
    if (eni_address_is_loopback(address)) EN_TRY(set_int(zmq, ZMQ_SNDBUF, LOOPBACK_UNREAD));
    if (type == ZMQ_ROUTER) return set_int(zmq, ZMQ_ROUTER_MANDATORY, 1);
    EN_TRY(set_int(zmq, ZMQ_IMMEDIATE, 1)); /* do not queue for a connection that may never be */
    EN_TRY(set_int(zmq, ZMQ_RECONNECT_IVL, RECONNECT_MS));
    return set_int(zmq, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS);
}

en_status eni_socket_open(eni_net *net, int type, const eni_address *address, uint64_t max_payload,
                          eni_socket *socket_out)
{
    eni_slice_ask(1); /* for ZeroMQ's own threads: the first socket of a context starts them */
    void *zmq = zmq_socket(net->context, type);
    eni_slice_ask(0);
    if (zmq == NULL) {
        eni_error("socket", "cannot make a ZeroMQ socket: %s", zmq_strerror(errno));
        return EN_EIO;
    }
    en_status st = set_options(zmq, type, address, max_payload);
    if (st != EN_OK) {
        zmq_close(zmq);
        return st;
    }
    socket_out->zmq = zmq;
    socket_out->net = net;
    socket_out->has_crc = atomic_load(&net->has_crc) || !eni_address_is_loopback(address);
    return EN_OK;
}

void *eni_socket_context(const eni_socket *socket)
{
    return socket->net->context;
}

void eni_socket_close(eni_socket *socket)
{
    if (socket->zmq == NULL) return;
    set_int(socket->zmq, ZMQ_LINGER, atomic_load(&socket->net->is_aborted) ? 0 : LINGER_MS);
    zmq_close(socket->zmq);
    socket->zmq = NULL;
}

void eni_socket_endpoint(const eni_address *address, char text_out[ENI_ADDRESS_TEXT])
{
    eni_address plain = *address;
    if (strcmp(plain.host, "localhost") == 0) memcpy(plain.host, "127.0.0.1", sizeof "127.0.0.1");
    eni_address_format(&plain, text_out);
}

void eni_meter_add(atomic_uint_fast64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static uint64_t meter_get(const atomic_uint_fast64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

void eni_meter_read(const eni_socket_meter *meter, eni_socket_count *count_out)
{
    *count_out = (eni_socket_count){
        .messages_in = meter_get(&meter->messages_in),
        .messages_out = meter_get(&meter->messages_out),
        .payload_in = meter_get(&meter->payload_in),
        .payload_out = meter_get(&meter->payload_out),
        .wire_in = meter_get(&meter->wire_in),
        .wire_out = meter_get(&meter->wire_out),
        .dropped = meter_get(&meter->dropped),
        .damaged = meter_get(&meter->damaged),
    };
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

static void hold_release(void *owner)
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

void eni_packet_release(eni_packet *packet)
{
    if (packet->owner != NULL) hold_release(packet->owner);
    packet->owner = NULL;
    packet->payload = NULL;
    packet->bytes = 0;
}

/* Receives the next frame of the message into an initialised zmq_msg. EN_ETIMEOUT when there is none. */
static en_status next_frame(eni_socket *socket, zmq_msg_t *frame)
{
    while (zmq_msg_recv(frame, socket->zmq, ZMQ_DONTWAIT) < 0) {
        if (errno == EAGAIN) return EN_ETIMEOUT;
        if (errno == EINTR) continue;
        eni_error("socket", "receive failed: %s", zmq_strerror(errno));
        return EN_EIO;
    }
    return EN_OK;
}

/* Throws the rest of a multipart message away. */
static void drain(eni_socket *socket, zmq_msg_t *frame)
{
    while (zmq_msg_more(frame) && next_frame(socket, frame) == EN_OK)
        eni_meter_add(&socket->meter.wire_in, frame_bytes(zmq_msg_size(frame)));
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

bool eni_socket_has_payload(const eni_header *header)
{
    return header->bytes > 0 && (header->flags & ENI_FLAG_SHM) == 0;
}

static en_status drop(eni_socket *socket, zmq_msg_t *frame, eni_packet *packet, const char *why)
{
    drain(socket, frame);
    eni_packet_release(packet);
    eni_meter_add(&socket->meter.dropped, 1);
    eni_debug("socket", "dropped a message: %s", why);
    return EN_EPROTO;
}

/* All frames of one message, the first of which is already in `frame`. */
static en_status take_frames(eni_socket *socket, bool has_route, zmq_msg_t *frame, eni_packet *packet)
{
    const char *why = "it has no header";
    if (has_route) {
        packet->route_bytes = (uint32_t)zmq_msg_size(frame);
        if (packet->route_bytes == 0 || packet->route_bytes > ENI_ROUTE_MAX || !zmq_msg_more(frame))
            return drop(socket, frame, packet, "its route is too long, or it is empty");
        memcpy(packet->route, zmq_msg_data(frame), packet->route_bytes);
        EN_TRY(next_frame(socket, frame));
    }
    eni_meter_add(&socket->meter.wire_in, frame_bytes(zmq_msg_size(frame)));
    if (eni_header_decode(zmq_msg_data(frame), zmq_msg_size(frame), &packet->header, &why) != EN_OK)
        return drop(socket, frame, packet, why);
    if (has_route && packet->header.type == ENI_MSG_HELLO) packet->source = zmq_msg_get(frame, ZMQ_SRCFD);
    bool has_payload = eni_socket_has_payload(&packet->header);
    if (has_payload != zmq_msg_more(frame))
        return drop(socket, frame, packet, "it has not the frames it should");
    if (!has_payload) return EN_OK;
    EN_TRY(next_frame(socket, frame));
    eni_meter_add(&socket->meter.wire_in, frame_bytes(zmq_msg_size(frame)));
    if (zmq_msg_more(frame)) return drop(socket, frame, packet, "it has too many frames");
    if (zmq_msg_size(frame) != packet->header.bytes)
        return drop(socket, frame, packet, "its payload has another length than its header says");
    EN_TRY(hold_payload(socket->net, frame, packet));
    packet->is_damaged = (packet->header.flags & ENI_FLAG_CRC) != 0 &&
                         eni_crc32c(0, packet->payload, packet->bytes) != packet->header.crc;
    if (packet->is_damaged) eni_meter_add(&socket->meter.damaged, 1);
    return EN_OK;
}

en_status eni_socket_take(eni_socket *socket, bool has_route, eni_packet *packet_out)
{
    zmq_msg_t frame;
    eni_packet packet;
    packet.owner = NULL;
    packet.payload = NULL;
    packet.bytes = 0;
    packet.route_bytes = 0;
    packet.source = -1;
    packet.is_damaged = false;
    zmq_msg_init(&frame);
    en_status st = next_frame(socket, &frame);
    if (st == EN_OK) st = take_frames(socket, has_route, &frame, &packet);
    zmq_msg_close(&frame);
    if (st != EN_OK) return st;
    eni_meter_add(&socket->meter.messages_in, 1);
    eni_meter_add(&socket->meter.payload_in, packet.bytes);
    *packet_out = packet;
    return EN_OK;
}

/* Encodes, with a checksum where there is something to check. */
static size_t encode(const eni_socket *socket, const eni_header *header, const void *payload, uint8_t *bytes)
{
    if (!socket->has_crc || payload == NULL) return eni_header_encode(header, bytes);
    eni_header checked = *header;
    checked.flags |= ENI_FLAG_CRC;
    checked.crc = eni_crc32c(0, payload, header->bytes);
    return eni_header_encode(&checked, bytes);
}

en_status eni_socket_put_header(eni_socket *socket, const eni_header *header, const void *payload,
                                bool has_more)
{
    uint8_t bytes[ENI_HEADER_MAX];
    size_t length = encode(socket, header, has_more ? payload : NULL, bytes);
    int flags = ZMQ_DONTWAIT | (has_more ? ZMQ_SNDMORE : 0);
    while (zmq_send(socket->zmq, bytes, length, flags) < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN) return EN_ETIMEOUT;
        eni_error("socket", "send failed: %s", zmq_strerror(errno));
        return EN_EIO;
    }
    eni_meter_add(&socket->meter.wire_out, frame_bytes(length));
    if (!has_more) eni_meter_add(&socket->meter.messages_out, 1);
    return EN_OK;
}

/* The payload as a ZeroMQ message: lent when it is long and somebody wants to hear of its return, else
 * copied. From here on `release` has happened or belongs to the message. */
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
    eni_error("socket", "out of memory for a payload of %llu bytes", (unsigned long long)bytes);
    return EN_ENOMEM;
}

en_status eni_socket_put_payload(eni_socket *socket, void *payload, uint64_t bytes, eni_release release,
                                 void *hint)
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
    eni_meter_add(&socket->meter.messages_out, 1);
    eni_meter_add(&socket->meter.payload_out, bytes);
    eni_meter_add(&socket->meter.wire_out, frame_bytes(bytes));
    return EN_OK;
}

/* libzmq is not built with ThreadSanitizer, which sees its recv(2) and malloc but not the lock-free queue
 * over which a message then passes to our thread, and calls every message a race. So it is told to forget
 * what uninstrumented libraries do; what our own code reads and writes it still checks. */
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
