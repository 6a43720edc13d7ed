/* pending.c - an array of silent connections; when it is full, the longest silent one is dropped. */
#include "runtime/net/pending.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/files.h"
#include "core/try.h"
#include "runtime/net/tcp.h"

enum { WAIT_CAP_MS = 60000 };
static const int64_t turn_ns = 100 * ENI_MILLI;  /* the least time that a connection may stay, in any crowd */
static const int64_t breath_ns = 10 * ENI_MILLI; /* the pause when this process is out of descriptors */

static void leave(eni_pending *pending, uint32_t at)
{
    pending->n--;
    memmove(&pending->peer[at], &pending->peer[at + 1], (pending->n - at) * sizeof pending->peer[0]);
}

static void drop(eni_pending *pending, uint32_t at, const char *why)
{
    close(pending->peer[at].fd);
    leave(pending, at);
    pending->dropped++;
    eni_log_every(&pending->limit, ENI_LOG_WARN, "pending", "closed a connection that %s", why);
}

void eni_pending_close(eni_pending *pending)
{
    while (pending->n > 0)
        close(pending->peer[--pending->n].fd);
}

/* Whether one more can be accepted, if need be in place of the oldest once that has had turn_ns: one of ours
 * may be interrupted between its connect and its hello. Meanwhile others wait in the kernel's queue. */
static bool has_room(const eni_pending *pending)
{
    return pending->n < ENI_PENDING_MAX ||
           pending->peer[0].until_ns - pending->timeout_ns + turn_ns <= eni_now_ns();
}

/* Accepts the connections that wait; drops the oldest when the array is full. EN_ETIMEOUT: no descriptor is
 * left. */
static en_status let_in(eni_pending *pending)
{
    while (has_room(pending)) {
        int fd;
        const int error = eni_tcp_accept_now(pending->listen_fd, &fd);
        if (error == EAGAIN) return EN_OK;
        const bool is_short =
            error != 0 && eni_files_are_short(error, "this process", &pending->say_short_ns);
        if (error != 0 && !is_short) return eni_fail(EN_EIO, "pending", "accept failed: %s", strerror(error));
        if (pending->n == ENI_PENDING_MAX || (is_short && pending->n > 0))
            drop(pending, 0, "sent nothing while others connected");
        if (is_short) return EN_ETIMEOUT;
        pending->peer[pending->n++] =
            (eni_pending_peer){.fd = fd, .until_ns = eni_now_ns() + pending->timeout_ns};
    }
    return EN_OK;
}

/* Reads a peer's hello. 1: all of it; 0: not yet; -1: the peer has gone, or sent something else. */
static int hear(const eni_pending *pending, eni_pending_peer *peer)
{
    const size_t room = pending->is_packet ? pending->hello : pending->hello - peer->bytes;
    const int flags = MSG_DONTWAIT | (pending->is_packet ? MSG_TRUNC : 0); /* a packet's real length */
    const ssize_t n = recv(peer->fd, peer->said + peer->bytes, room, flags);
    if (n < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
    if (n == 0 || (pending->is_packet && (size_t)n != pending->hello)) return -1;
    peer->bytes += (size_t)n;
    return peer->bytes == pending->hello;
}

/* Looks at all peers. Returns the descriptor of one whose hello is complete, or -1. */
static int look_round(eni_pending *pending, void *said_out)
{
    const int64_t now_ns = eni_now_ns();
    for (uint32_t i = 0; i < pending->n;) {
        eni_pending_peer *peer = &pending->peer[i];
        const int heard = hear(pending, peer);
        if (heard > 0) {
            const int fd = peer->fd;
            memcpy(said_out, peer->said, pending->hello);
            leave(pending, i);
            return fd;
        }
        if (heard < 0)
            drop(pending, i, "sent something other than a hello");
        else if (now_ns >= peer->until_ns)
            drop(pending, i, "sent nothing");
        else
            i++;
    }
    return -1;
}

/* Waits until a peer connects or sends, a peer's timeout ends, or the deadline. */
static en_status wait(const eni_pending *pending, int64_t deadline_ns, int abort_fd)
{
    const bool is_open = has_room(pending);
    struct pollfd polls[ENI_PENDING_MAX + 2] = {{.fd = is_open ? pending->listen_fd : -1, .events = POLLIN},
                                                {.fd = abort_fd, .events = POLLIN}};
    int64_t until_ns = deadline_ns;
    if (!is_open && eni_now_ns() + turn_ns < until_ns) until_ns = eni_now_ns() + turn_ns;
    for (uint32_t i = 0; i < pending->n; i++) {
        polls[2 + i] = (struct pollfd){.fd = pending->peer[i].fd, .events = POLLIN};
        if (pending->peer[i].until_ns < until_ns) until_ns = pending->peer[i].until_ns;
    }
    if (poll(polls, pending->n + 2, eni_ms_left(until_ns, WAIT_CAP_MS)) < 0 && errno != EINTR) return EN_EIO;
    if (abort_fd >= 0 && polls[1].revents != 0) return EN_EPEER;
    return EN_OK;
}

en_status eni_pending_next(eni_pending *pending, int64_t deadline_ns, int abort_fd, int *fd_out,
                           void *said_out)
{
    for (;;) {
        EN_TRY(wait(pending, deadline_ns, abort_fd));
        int fd = look_round(pending, said_out); /* before new peers push it out */
        en_status st = fd < 0 ? let_in(pending) : EN_OK;
        if (fd < 0) fd = look_round(pending, said_out);
        if (fd >= 0) {
            *fd_out = fd;
            return EN_OK;
        }
        if (st == EN_ETIMEOUT) st = eni_tcp_wait(-1, 0, eni_now_ns() + breath_ns, abort_fd);
        if (st != EN_OK && st != EN_ETIMEOUT) return st;
        if (eni_now_ns() >= deadline_ns) return EN_ETIMEOUT;
    }
}
