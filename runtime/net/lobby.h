/* lobby.h - where connections wait that have not said who they are.
 *
 * A listening socket is open to all of this host, or of the network. Whoever connects and stays silent must
 * not keep out who comes after him: up to ENI_LOBBY_MAX connections wait at a time, each for its patience,
 * and when they are more the one that has been silent for longest goes. Who belongs here says his greeting
 * right after he has connected. One thread at a time. */
#ifndef NET_LOBBY_H
#define NET_LOBBY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/log.h"
#include "entrain/status.h"

enum { ENI_LOBBY_MAX = 64, ENI_GREETING_MAX = 64 };

typedef struct eni_guest {
    int fd;
    int64_t until_ns;
    size_t bytes;
    uint8_t said[ENI_GREETING_MAX];
} eni_guest;

/* Fill in the first four and zero the rest. */
typedef struct eni_lobby {
    int listen_fd;
    size_t greeting; /* bytes, 1 .. ENI_GREETING_MAX */
    bool is_packet;  /* a greeting is one message of exactly so many bytes (SOCK_SEQPACKET) */
    int64_t patience_ns;
    uint32_t n;
    uint64_t dropped; /* closed before they had said anything of that length */
    eni_guest guest[ENI_LOBBY_MAX];
    eni_log_limit limit;
} eni_lobby;

/* The next connection whose greeting is complete: *fd_out, non-blocking, is the caller's, `said_out` has the
 * greeting. Nothing of it has been checked but its length. EN_ETIMEOUT (not logged); EN_EPEER (abort_fd);
 * EN_EIO when the listening socket is broken. */
en_status eni_lobby_next(eni_lobby *lobby, int64_t deadline_ns, int abort_fd, int *fd_out, void *said_out);

/* Closes everybody who still waits; listen_fd stays. */
void eni_lobby_close(eni_lobby *lobby);

#endif
