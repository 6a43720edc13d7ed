/* socket.h - messages of wire.h over ZeroMQ: one ROUTER per shard in psd, one DEALER per shard in each
 * worker.
 *
 * A router or dealer belongs to one thread at a time. Nothing a peer sends is fatal: a message that is
 * malformed or has the wrong frames or length is dropped and counted; for a frame over the limit ZeroMQ
 * closes that connection before it allocates. EN_ETIMEOUT ("nothing yet") and EN_EINTR ("woken") are not
 * logged. ZeroMQ hides a peer's death: wait with the member's eventfd (member.h) at hand.
 *
 * Zero copy: a payload of at least ENI_ZEROCOPY_MIN bytes sent with a `release` is read by ZeroMQ's own
 * thread straight from the caller's memory; release(memory, hint) is called from that thread when it is done.
 * A smaller payload is copied, and release is called before send returns. So release runs exactly once per
 * send that was given one, also when send fails; it must be thread-safe and must not block. A NULL release:
 * always copied. A reply to a message says that its bytes have left, but release may come later still: wait
 * for release before unmapping the memory.
 *
 * A socket that was given an address beyond loopback puts a checksum on every payload. A checksum that is
 * there is always checked. */
#ifndef NET_SOCKET_H
#define NET_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/net/tcp.h"
#include "runtime/net/wire.h"

#define ENI_ZEROCOPY_MIN (UINT64_C(64) << 10)
#define ENI_ROUTE_MAX    32u

typedef struct eni_net eni_net;       /* the ZeroMQ context of a process; owned by its main */
typedef struct eni_router eni_router; /* a shard's socket in psd */
typedef struct eni_dealer eni_dealer; /* a worker's socket to one shard */

typedef void (*eni_release)(void *memory, void *hint);

/* ZeroMQ gets `threads` copying threads. One carries about 2 GB/s, and each connection belongs to one. */
en_status eni_net_open(int threads, eni_net **net_out);

/* Release every packet and close every socket first. Waits at most 2 s for unsent messages (0 s after
 * eni_net_abort). NULL is fine. */
void eni_net_close(eni_net *net);

/* The run is broken: sockets closed from now on drop what they have not sent. Any thread. */
void eni_net_abort(eni_net *net);

/* A message received. Zero it before its first use. */
typedef struct eni_packet {
    eni_header header;
    uint8_t route[ENI_ROUTE_MAX]; /* whom to answer (router only) */
    uint32_t route_bytes;
    int source;      /* router, HELLO: the connection's descriptor, for eni_router_admit; else -1 */
    bool is_damaged; /* the payload's checksum is not the header's: refuse it, do not read it */
    /* header.bytes raw bytes on a 4-byte boundary, valid until release; NULL without payload, and with
     * ENI_FLAG_SHM, when they are in the arena. Writable: it is yours */
    uint8_t *payload;
    uint64_t bytes; /* of payload */
    /* holds payload. A packet may be copied by assignment if one copy is released: so ownership moves */
    void *owner;
} eni_packet;

void eni_packet_free(void *owner);

/* Frees the payload and zeroes owner, payload and bytes. Twice is fine. Any thread. */
static inline void eni_packet_release(eni_packet *packet)
{
    if (packet->owner != NULL) eni_packet_free(packet->owner);
    packet->owner = NULL;
    packet->payload = NULL;
    packet->bytes = 0;
}

/* Counted at the transport. wire bytes are exact for ZMTP 3.1 with the NULL mechanism: every frame's body,
 * its 2 or 9 bytes of framing, and 107 bytes of greeting per connection and direction (docs/wire.md). */
typedef struct eni_socket_count {
    uint64_t messages_in, messages_out;
    uint64_t payload_in, payload_out;
    uint64_t wire_in, wire_out;
    uint64_t dropped; /* malformed, incomplete, or without a return route */
    uint64_t damaged; /* payloads with a wrong checksum */
    uint64_t evicted; /* connections closed because they did not show the token (eni_router_guard) */
} eni_socket_count;

/* Binds; EN_EDENIED beyond loopback unless is_insecure. *bound_out (may be NULL) has the real port.
 * `max_payload` is the largest payload accepted, at most ENI_BUCKET_MAX (0: that). */
en_status eni_router_open(eni_net *net, const eni_address *address, bool is_insecure, uint64_t max_payload,
                          eni_router **router_out, eni_address *bound_out);

/* From now on a new connection must be admitted within 5 s and 4,096 bytes, or it is closed: see guard.h. So
 * a client sends HELLO first, and nothing else until that is answered. `nrouters` of this process share its
 * descriptors. */
en_status eni_router_guard(eni_router *router, uint32_t nrouters);

/* The sender of this HELLO has shown the token. Does nothing without a guard. */
void eni_router_admit(eni_router *router, const eni_packet *hello);

/* One message. EN_OK: release it; EN_ETIMEOUT: none came within timeout_ms (0: only look); EN_EINTR: wake_fd
 * (negative: none) is readable and no message was waiting. */
en_status eni_router_recv(eni_router *router, int timeout_ms, int wake_fd, eni_packet *packet_out);

/* Sends header and payload to the client `to` came from. header->bytes must be the payload's, header->type
 * and all else the caller's choice. Never blocks: EN_EPEER when that client is gone, EN_ETIMEOUT when a
 * million messages to it are still unsent; both are counted as dropped and logged at debug level. */
en_status eni_router_send(eni_router *router, const eni_packet *to, const eni_header *header, void *payload,
                          eni_release release, void *hint);

void eni_router_count(const eni_router *router, eni_socket_count *count_out); /* any thread */
void eni_router_close(eni_router *router);                                    /* NULL is fine */

/* Connects in the background; returns at once. */
en_status eni_dealer_open(eni_net *net, const eni_address *shard, eni_dealer **dealer_out);

/* Sends. Blocks only without a connection or while 64 messages are unsent, until the deadline or abort_fd.
 * Deadline 0: only tries; EN_ETIMEOUT is not logged then. */
en_status eni_dealer_send(eni_dealer *dealer, const eni_header *header, void *payload, eni_release release,
                          void *hint, int64_t deadline_ns, int abort_fd);

/* One message if one is there; EN_ETIMEOUT if not. Never blocks. */
en_status eni_dealer_recv(eni_dealer *dealer, eni_packet *packet_out);

/* Waits until one of `n` dealers, at least one, has a message. It looks for 0.3 ms and then sleeps, or at once if
 * its last wait brought nothing. is_ready_out[i] is set for each. EN_OK; EN_ETIMEOUT at the deadline; EN_EPEER when
 * abort_fd (negative: none) is readable; EN_EINTR when wake_fd (negative: none) is. A message takes precedence over
 * all of these. */
en_status eni_dealer_poll(eni_dealer *const *dealers, size_t n, int64_t deadline_ns, int abort_fd,
                          int wake_fd, bool *is_ready_out);

void eni_dealer_count(const eni_dealer *dealer, eni_socket_count *count_out); /* any thread */
void eni_dealer_close(eni_dealer *dealer);                                    /* NULL is fine */

#endif
