/* lobby.c - see lobby.h. */
#include "runtime/net/lobby.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/try.h"
#include "runtime/net/tcp.h"

enum { WAIT_CAP_MS = 60000 };
static const int64_t turn_ns = 100 * ENI_MILLI;  /* who is let in may stay so long, in any crowd */
static const int64_t breath_ns = 10 * ENI_MILLI; /* when this process is out of descriptors */

static void leave(eni_lobby *lobby, uint32_t at)
{
    lobby->n--;
    memmove(&lobby->guest[at], &lobby->guest[at + 1], (lobby->n - at) * sizeof lobby->guest[0]);
}

static void drop(eni_lobby *lobby, uint32_t at, const char *why)
{
    close(lobby->guest[at].fd);
    leave(lobby, at);
    lobby->dropped++;
    eni_log_every(&lobby->limit, ENI_LOG_WARN, "lobby", "closed a connection that %s", why);
}

void eni_lobby_close(eni_lobby *lobby)
{
    while (lobby->n > 0) {
        close(lobby->guest[0].fd);
        leave(lobby, 0);
    }
}

/* Whether one more can be let in, if need be for the oldest, who has had his turn. Who belongs here may be
 * interrupted between his connect and his greeting; until then others wait in the kernel's queue. */
static bool has_room(const eni_lobby *lobby)
{
    return lobby->n < ENI_LOBBY_MAX ||
           lobby->guest[0].until_ns - lobby->patience_ns + turn_ns <= eni_now_ns();
}

/* Lets in who waits at the door; when it is full, the oldest goes. EN_ETIMEOUT: no descriptor is left. */
static en_status let_in(eni_lobby *lobby)
{
    while (has_room(lobby)) {
        const int fd = accept4(lobby->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        const int error = errno;
        if (fd < 0 && (error == EAGAIN || error == EINTR || error == ECONNABORTED || error == EPROTO))
            return EN_OK;
        const int is_short =
            fd < 0 && (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM);
        if (fd < 0 && !is_short) {
            eni_error("lobby", "accept failed: %s", strerror(error));
            return EN_EIO;
        }
        if (lobby->n == ENI_LOBBY_MAX || (is_short && lobby->n > 0))
            drop(lobby, 0, "said nothing while others came");
        if (is_short) return EN_ETIMEOUT;
        const int one = 1; /* AF_UNIX has no such option, and needs none */
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        lobby->guest[lobby->n++] = (eni_guest){.fd = fd, .until_ns = eni_now_ns() + lobby->patience_ns};
    }
    return EN_OK;
}

/* Reads what a guest says. 1: all of it; 0: not yet; -1: he has gone, or says something else. */
static int hear(const eni_lobby *lobby, eni_guest *guest)
{
    const size_t room = lobby->is_packet ? lobby->greeting : lobby->greeting - guest->bytes;
    const int flags = MSG_DONTWAIT | (lobby->is_packet ? MSG_TRUNC : 0); /* tells a packet's real length */
    const ssize_t n = recv(guest->fd, guest->said + guest->bytes, room, flags);
    if (n < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
    if (n == 0 || (lobby->is_packet && (size_t)n != lobby->greeting)) return -1;
    guest->bytes += (size_t)n;
    return guest->bytes == lobby->greeting;
}

/* Looks at everybody. Returns the descriptor of one who has said all, or -1. */
static int look_round(eni_lobby *lobby, void *said_out)
{
    const int64_t now_ns = eni_now_ns();
    for (uint32_t i = 0; i < lobby->n;) {
        eni_guest *guest = &lobby->guest[i];
        const int heard = hear(lobby, guest);
        if (heard > 0) {
            const int fd = guest->fd;
            memcpy(said_out, guest->said, lobby->greeting);
            leave(lobby, i);
            return fd;
        }
        if (heard < 0)
            drop(lobby, i, "did not say what is said here");
        else if (now_ns >= guest->until_ns)
            drop(lobby, i, "said nothing");
        else
            i++;
    }
    return -1;
}

/* Until somebody comes or speaks, somebody's patience ends, or the deadline. */
static en_status wait(const eni_lobby *lobby, int64_t deadline_ns, int abort_fd)
{
    const bool is_open = has_room(lobby);
    struct pollfd polls[ENI_LOBBY_MAX + 2] = {{.fd = is_open ? lobby->listen_fd : -1, .events = POLLIN},
                                              {.fd = abort_fd, .events = POLLIN}};
    int64_t until_ns = deadline_ns;
    if (!is_open && eni_now_ns() + turn_ns < until_ns) until_ns = eni_now_ns() + turn_ns;
    for (uint32_t i = 0; i < lobby->n; i++) {
        polls[2 + i] = (struct pollfd){.fd = lobby->guest[i].fd, .events = POLLIN};
        if (lobby->guest[i].until_ns < until_ns) until_ns = lobby->guest[i].until_ns;
    }
    if (poll(polls, lobby->n + 2, eni_ms_left(until_ns, WAIT_CAP_MS)) < 0 && errno != EINTR) return EN_EIO;
    if (abort_fd >= 0 && polls[1].revents != 0) return EN_EPEER;
    return EN_OK;
}

en_status eni_lobby_next(eni_lobby *lobby, int64_t deadline_ns, int abort_fd, int *fd_out, void *said_out)
{
    for (;;) {
        EN_TRY(wait(lobby, deadline_ns, abort_fd));
        int fd = look_round(lobby, said_out); /* who has spoken does not make room for others */
        en_status st = fd < 0 ? let_in(lobby) : EN_OK;
        if (fd < 0) fd = look_round(lobby, said_out);
        if (fd >= 0) {
            *fd_out = fd;
            return EN_OK;
        }
        if (st == EN_ETIMEOUT) st = eni_tcp_wait(-1, 0, eni_now_ns() + breath_ns, abort_fd);
        if (st != EN_OK && st != EN_ETIMEOUT) return st;
        if (eni_now_ns() >= deadline_ns) return EN_ETIMEOUT;
    }
}
