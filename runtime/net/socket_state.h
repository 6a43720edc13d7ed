/* socket_state.h - what router.c and dealer.c share: one ZeroMQ socket with its counters. Private. */
#ifndef NET_SOCKET_STATE_H
#define NET_SOCKET_STATE_H

#include <stdatomic.h>

#include "runtime/net/socket.h"

/* ZMTP 3.1, NULL mechanism: 64 bytes of greeting, and a READY command of 43 bytes that names the socket's
 * type and an empty identity. Each way. */
#define ENI_ZMTP_GREETING 107u

typedef struct eni_socket_meter {
    atomic_uint_fast64_t messages_in, messages_out, payload_in, payload_out, wire_in, wire_out, dropped,
        damaged;
} eni_socket_meter;

typedef struct eni_socket {
    void *zmq;
    eni_net *net; /* borrowed; outlives us */
    bool has_crc; /* puts a checksum on what it sends */
    eni_socket_meter meter;
} eni_socket;

/* Makes a ROUTER or DEALER with every option that both need. */
en_status eni_socket_open(eni_net *net, int type, const eni_address *address, uint64_t max_payload,
                          eni_socket *socket_out);
/* The socket's ZeroMQ context. */
void *eni_socket_context(const eni_socket *socket);
void eni_socket_close(eni_socket *socket);

/* One message if there is one. EN_ETIMEOUT: none; EN_EPROTO: one came, was wrong, and is dropped. */
en_status eni_socket_take(eni_socket *socket, bool has_route, eni_packet *packet_out);

/* Sends the header's frame, with a checksum of `payload` where this socket has one, without blocking.
 * EN_ETIMEOUT: it does not go now. `has_more` announces a payload.
 */
en_status eni_socket_put_header(eni_socket *socket, const eni_header *header, const void *payload,
                                bool has_more);

/* Sends the payload's frame and sees to `release`. The queue that took the header takes it too. */
en_status eni_socket_put_payload(eni_socket *socket, void *payload, uint64_t bytes, eni_release release,
                                 void *hint);

/* Whether this header travels with a payload frame. */
bool eni_socket_has_payload(const eni_header *header);

void eni_meter_add(atomic_uint_fast64_t *counter, uint64_t n);
void eni_meter_read(const eni_socket_meter *meter, eni_socket_count *count_out);

/* "tcp://host:port" for ZeroMQ, which wants a number where we also take localhost. */
void eni_socket_endpoint(const eni_address *address, char text_out[ENI_ADDRESS_TEXT]);

#endif
