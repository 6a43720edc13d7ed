/* tcp.h - plain TCP with deadlines: listen, connect, accept, send and receive.
 *
 * Every descriptor made here is non-blocking, close-on-exec and has TCP_NODELAY. SO_SNDBUF is left alone:
 * setting it switches the kernel's own sizing off. A deadline is a point on the monotonic clock
 * (core/clock.h). `abort_fd` (negative: none) ends any wait early when it becomes readable: pass
 * eni_member_fd(), so that a death anywhere in the run ends the wait with EN_EPEER. All calls may be made
 * from any thread; one thread at a time may send on a descriptor and one receive. Failures are logged here,
 * except that a peer's disappearance is logged at debug level only: the control plane names the first failed
 * rank, and that line should be the error. */
#ifndef NET_TCP_H
#define NET_TCP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "entrain/status.h"

#define ENI_HOST_MAX     256u
#define ENI_ADDRESS_TEXT 272u /* "tcp://" host ":" port, terminated */

typedef struct eni_address {
    char host[ENI_HOST_MAX]; /* a name or a number; IPv6 without brackets */
    uint16_t port;           /* 0: the kernel chooses (listen only) */
} eni_address;

/* Parses "tcp://host:port", "host:port" or "[v6]:port". EN_EINVAL, logged with the text and the remedy. */
en_status eni_address_parse(const char *text, eni_address *address_out);

/* Writes "tcp://host:port". */
void eni_address_format(const eni_address *address, char text_out[ENI_ADDRESS_TEXT]);

/* Whether the host is a loopback address or name: 127.0.0.0/8, ::1, localhost. No look-up. */
bool eni_address_is_loopback(const eni_address *address);

/* Whether it means all interfaces of this host (0.0.0.0, ::), which other hosts cannot connect to. */
bool eni_address_is_anywhere(const eni_address *address);

/* Listens. On success *fd_out is the caller's, and *bound_out (may be NULL) has the host as given and the
 * real port. EN_EDENIED for an address beyond loopback unless `is_insecure`: nothing here is encrypted yet.
 * EN_EIO for a busy port (the message has a remedy) or an address that is not this machine's. */
en_status eni_tcp_listen(const eni_address *address, bool is_insecure, int *fd_out, eni_address *bound_out);

/* Prepares an inherited listening socket for the calls here and returns its address. EN_EINVAL if it does not
 * listen. It stays the caller's. */
en_status eni_tcp_adopt(int listen_fd, eni_address *address_out);

/* Connects, trying again every 50 ms while refused or unreachable, until the deadline: ranks may start in any
 * order. Logs after 5 s, and every 30 s, what it tries. EN_ETIMEOUT is logged with the last failure (refused,
 * no route, no answer), the number of attempts and the time. EN_ENOENT at once for a name that does not
 * exist. *fd_out is the caller's. */
en_status eni_tcp_connect(const eni_address *address, int64_t deadline_ns, int abort_fd, int *fd_out);

/* One attempt over all addresses of the name, at most 3 s for each. EN_EIO, not logged: *error_out is an
 * errno, 0 for a silent name server. EN_ENOENT as above; EN_EPEER: abort_fd. */
en_status eni_tcp_attempt(const eni_address *address, int64_t deadline_ns, int abort_fd, int *fd_out,
                          int *error_out);

/* The meaning of that errno and the remedy: "connection refused, nobody listens there; .." */
const char *eni_tcp_failure(int error);

/* Logs why `tries` attempts since since_ns have failed, the last one with `error`. */
void eni_tcp_explain(int level, const eni_address *address, int error, int tries, int64_t since_ns);

/* Accepts a connection that waits in the kernel's queue; never blocks, logs nothing. 0 and *fd_out; else an
 * errno, EAGAIN if none waits. */
int eni_tcp_accept_now(int listen_fd, int *fd_out);

/* Waits for one connection. EN_ETIMEOUT is not logged: the caller knows for whom it waited. */
en_status eni_tcp_accept(int listen_fd, int64_t deadline_ns, int abort_fd, int *fd_out);

/* Sends exactly `bytes`; blocks until they are sent. EN_EPEER: the other side closed, or abort_fd became
 * readable. After anything but EN_OK the stream is broken and can only be closed. */
en_status eni_tcp_send(int fd, const void *data, size_t bytes, int64_t deadline_ns, int abort_fd);

/* Sends or receives as many bytes as possible without blocking. *done_out may be 0: poll(2) and call again.
 * EN_EPEER when the other side closed. */
en_status eni_tcp_send_some(int fd, const void *data, size_t bytes, size_t *done_out);
en_status eni_tcp_recv_some(int fd, void *data_out, size_t bytes, size_t *done_out);

/* Waits until fd has one of the poll(2) `events`. EN_OK, EN_ETIMEOUT (not logged), EN_EPEER (abort_fd). */
en_status eni_tcp_wait(int fd, short events, int64_t deadline_ns, int abort_fd);

/* The port that a socket of this process is bound to; 0 if it is not a TCP socket. */
uint16_t eni_tcp_port(int fd);

/* Whether a connected socket certainly stays on this host: AF_UNIX, or the other end has a loopback address.
 * Both ends agree. */
bool eni_tcp_is_local(int fd);

/* Bytes that the kernel counted on this process' open, connected TCP sockets (TCP_INFO of every socket in
 * /proc/self/fd): application bytes without TCP/IP headers, with retransmissions on the sending side. A
 * socket that was closed is not in the sum. The oracle for the wire_bytes counters of socket.h. */
typedef struct eni_tcp_totals {
    uint64_t sent, received;
    uint32_t sockets;
} eni_tcp_totals;
en_status eni_tcp_count(eni_tcp_totals *totals_out);

#endif
