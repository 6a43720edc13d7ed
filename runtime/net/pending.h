/* pending.h - holds connections that have not identified themselves yet.
 *
 * A listening socket is open to all processes of this host, or of the network. A peer that connects and stays
 * silent must not keep out later ones: up to ENI_PENDING_MAX connections wait at a time, each for its
 * timeout; beyond that the longest silent one is dropped. Our own processes send their hello right after they
 * connect. One thread at a time. */
#ifndef NET_PENDING_H
#define NET_PENDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/log.h"
#include "entrain/status.h"

enum { ENI_PENDING_MAX = 64, ENI_HELLO_MAX = 64 };

typedef struct eni_pending_peer {
    int fd;
    int64_t until_ns;
    size_t bytes;
    uint8_t said[ENI_HELLO_MAX];
} eni_pending_peer;

/* Fill in the first four and zero the rest. */
typedef struct eni_pending {
    int listen_fd;
    size_t hello;   /* bytes, 1 .. ENI_HELLO_MAX */
    bool is_packet; /* a hello is one message of exactly this length (SOCK_SEQPACKET) */
    int64_t timeout_ns;
    uint32_t n;
    uint64_t dropped; /* closed before their hello was complete */
    eni_pending_peer peer[ENI_PENDING_MAX];
    eni_log_limit limit;
    int64_t say_short_ns; /* core/files.h */
} eni_pending;

/* The next connection whose hello is complete: *fd_out, non-blocking, is the caller's; `said_out` has the
 * hello, of which only the length has been checked. EN_ETIMEOUT (not logged); EN_EPEER (abort_fd); EN_EIO
 * when the listening socket is broken. */
en_status eni_pending_next(eni_pending *pending, int64_t deadline_ns, int abort_fd, int *fd_out,
                           void *said_out);

/* Closes all connections that still wait; listen_fd stays open. */
void eni_pending_close(eni_pending *pending);

#endif
