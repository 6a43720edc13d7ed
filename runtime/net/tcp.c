/* tcp.c - moving bytes: waits, sends and receives; see tcp.h. Connections are made in connect.c. */
#include "runtime/net/tcp.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"

enum { POLL_CAP_MS = 60000 };

en_status eni_tcp_wait(int fd, short events, int64_t deadline_ns, int abort_fd)
{
    struct pollfd set[2] = {{fd, events, 0}, {abort_fd, POLLIN, 0}};
    for (;;) {
        int ms = eni_ms_left(deadline_ns, POLL_CAP_MS);
        int n = poll(set, 2, ms);
        if (n < 0 && errno != EINTR) {
            eni_error("tcp", "poll on descriptor %d failed: %s", fd, strerror(errno));
            return EN_EIO;
        }
        if (n > 0 && set[1].revents != 0) return EN_EPEER;
        if (n > 0) return EN_OK;
        if (ms == 0) return EN_ETIMEOUT;
    }
}

/* What an errno of send or recv means. */
static en_status failure(const char *verb, int error)
{
    switch (error) {
    case ECONNRESET:
    case EPIPE:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ECONNABORTED: eni_debug("tcp", "%s: %s", verb, strerror(error)); return EN_EPEER;
    default: eni_error("tcp", "%s failed: %s", verb, strerror(error)); return EN_EIO;
    }
}

en_status eni_tcp_send_some(int fd, const void *data, size_t bytes, size_t *done_out)
{
    ssize_t n;
    do
        n = send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return failure("send", errno);
    *done_out = n < 0 ? 0 : (size_t)n;
    return EN_OK;
}

en_status eni_tcp_recv_some(int fd, void *data_out, size_t bytes, size_t *done_out)
{
    ssize_t n;
    do
        n = recv(fd, data_out, bytes, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return failure("receive", errno);
    if (n == 0 && bytes > 0) return EN_EPEER;
    *done_out = n < 0 ? 0 : (size_t)n;
    return EN_OK;
}

/* Logs a deadline that passed in the middle of a transfer. */
static en_status late(const char *verb, size_t done, size_t bytes, en_status st)
{
    if (st == EN_ETIMEOUT)
        eni_error("tcp", "%s only %zu of %zu bytes before the deadline", verb, done, bytes);
    if (st == EN_EPEER)
        eni_debug("tcp", "%s only %zu of %zu bytes before the peer was gone", verb, done, bytes);
    return st;
}

en_status eni_tcp_send(int fd, const void *data, size_t bytes, int64_t deadline_ns, int abort_fd)
{
    const uint8_t *at = data;
    size_t done = 0;
    while (done < bytes) {
        size_t n = 0;
        en_status st = eni_tcp_send_some(fd, at + done, bytes - done, &n);
        if (st == EN_OK && n == 0) st = eni_tcp_wait(fd, POLLOUT, deadline_ns, abort_fd);
        if (st != EN_OK) return late("sent", done, bytes, st);
        done += n;
    }
    return EN_OK;
}

en_status eni_tcp_recv(int fd, void *data_out, size_t bytes, int64_t deadline_ns, int abort_fd)
{
    uint8_t *at = data_out;
    size_t done = 0;
    while (done < bytes) {
        size_t n = 0;
        en_status st = eni_tcp_recv_some(fd, at + done, bytes - done, &n);
        if (st == EN_OK && n == 0) st = eni_tcp_wait(fd, POLLIN, deadline_ns, abort_fd);
        if (st != EN_OK) return late("received", done, bytes, st);
        done += n;
    }
    return EN_OK;
}
