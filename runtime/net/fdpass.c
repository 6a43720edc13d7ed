/* fdpass.c - see fdpass.h. One SOCK_SEQPACKET message per send, so that descriptors and blob stay together. */
#include "runtime/net/fdpass.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/files.h"
#include "core/log.h"
#include "core/try.h"
#include "runtime/net/pending.h"
#include "runtime/net/tcp.h"

enum { SOCKET_FLAGS = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK };
static const int64_t handshake_ns = ENI_SECOND; /* how long an unauthenticated peer may hold up an accept */
static const int64_t retry_ns = 5 * ENI_MILLI;  /* while there is no room: in a queue, or for a descriptor */

/* Abstract names start with a zero byte and end with the length; they are not 0-terminated. */
static socklen_t make_name(const char *name, struct sockaddr_un *address_out)
{
    *address_out = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t bytes = strnlen(name, ENI_FDPASS_NAME);
    memcpy(address_out->sun_path + 1, name, bytes);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes);
}

en_status eni_fdpass_claim(const char *name, int *fd_out)
{
    struct sockaddr_un address;
    socklen_t bytes = make_name(name, &address);
    int fd = socket(AF_UNIX, SOCKET_FLAGS, 0);
    *fd_out = -1;
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, bytes) == 0 && listen(fd, SOMAXCONN) == 0) {
        *fd_out = fd;
        return EN_OK;
    }
    const int code = errno;
    if (fd >= 0) close(fd);
    if (code == EADDRINUSE) return EN_OK;
    return eni_fail(EN_EIO, "fdpass", "cannot listen on a Unix socket: %s", strerror(code));
}

en_status eni_fdpass_listen(char name_out[ENI_FDPASS_NAME], int *fd_out)
{
    eni_token random;
    char hex[ENI_TOKEN_HEX];
    eni_token_make(&random);
    eni_token_hex(&random, hex);
    snprintf(name_out, ENI_FDPASS_NAME, "entrain-%s", hex);
    EN_TRY(eni_fdpass_claim(name_out, fd_out));
    return *fd_out >= 0 ? EN_OK : EN_EIO;
}

/* Checks that the peer is a process of our user. `pid_out` may be NULL. */
static en_status check_user(int fd, int64_t *pid_out)
{
    struct ucred peer = {0};
    socklen_t bytes = sizeof peer;
    const bool is_known = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0;
    if (pid_out != NULL) *pid_out = peer.pid;
    if (is_known && peer.uid == geteuid()) return EN_OK;
    eni_warn("fdpass", "refused process %ld of user %u: descriptors are passed to user %u only",
             (long)peer.pid, (unsigned)peer.uid, (unsigned)geteuid());
    return EN_EDENIED;
}

/* Checks user and token of a peer that has sent one, and answers with one byte. */
static en_status admit(int fd, const eni_token *shown, const eni_token *token)
{
    EN_TRY(check_user(fd, NULL));
    bool is_right = eni_token_equal(shown, token);
    if (send(fd, is_right ? "y" : "n", 1, MSG_NOSIGNAL) != 1) return EN_EPEER;
    return is_right ? EN_OK : EN_EDENIED;
}

en_status eni_fdpass_accept(int listen_fd, const eni_token *token, int64_t deadline_ns, int abort_fd,
                            int *fd_out)
{
    eni_pending pending = {listen_fd, sizeof token->bytes, true, handshake_ns, .n = 0};
    eni_token shown;
    int fd;
    en_status st;
    for (;;) {
        st = eni_pending_next(&pending, deadline_ns, abort_fd, &fd, shown.bytes);
        if (st != EN_OK) break;
        st = admit(fd, &shown, token);
        if (st == EN_OK) {
            *fd_out = fd;
            break;
        }
        close(fd);
        eni_log_every(&pending.limit, ENI_LOG_WARN, "fdpass", "dropped a connection: %s", en_status_str(st));
    }
    eni_pending_close(&pending); /* our own peers among them connect again */
    return st;
}

/* Connects, waiting while the listener's queue is full. */
static en_status knock(int fd, const char *name, int64_t deadline_ns, int abort_fd)
{
    struct sockaddr_un address;
    socklen_t bytes = make_name(name, &address);
    while (connect(fd, (struct sockaddr *)&address, bytes) != 0) {
        if (errno != EAGAIN && errno != EINTR) return EN_ENOENT; /* EAGAIN: the listener's queue is full */
        int64_t again = eni_now_ns() + retry_ns;
        en_status st = eni_tcp_wait(-1, 0, again < deadline_ns ? again : deadline_ns, abort_fd);
        if (st != EN_ETIMEOUT || eni_now_ns() >= deadline_ns) return st;
    }
    return EN_OK;
}

static void close_all(int *fds, size_t nfds)
{
    for (size_t i = 0; i < nfds; i++) {
        close(fds[i]);
        fds[i] = -1;
    }
}

/* One attempt. EN_EPEER with *again_out: closed without an answer, because others connected before we had
 * sent the token. */
static en_status attempt(int fd, const char *name, const eni_token *token, int64_t deadline_ns, int abort_fd,
                         bool *again_out)
{
    char answer = 0;
    int fds[ENI_FDPASS_MAX];
    size_t nfds, bytes;
    *again_out = false;
    en_status st = knock(fd, name, deadline_ns, abort_fd);
    if (st == EN_ENOENT)
        eni_error("fdpass",
                  "cannot reach a process that reports this host's identity (unix socket @%.47s: %s): it has "
                  "ended, or it runs on another machine with a copy of this one's boot id, such as a cloned "
                  "virtual machine; give each machine its own --host-id, or reboot one of them",
                  name, strerror(errno));
    EN_TRY(st);
    EN_TRY(check_user(fd, NULL));
    *again_out = true;
    if (send(fd, token->bytes, sizeof token->bytes, MSG_NOSIGNAL) != (ssize_t)sizeof token->bytes)
        return EN_EPEER;
    EN_TRY(eni_fdpass_recv(fd, fds, &nfds, &answer, 1, &bytes, deadline_ns, abort_fd));
    close_all(fds, nfds); /* no process of ours sends any here */
    *again_out = false;
    if (answer == 'y') return EN_OK;
    return eni_fail(EN_EDENIED, "fdpass", "the process behind @%.47s rejected this run's job token", name);
}

en_status eni_fdpass_connect(const char *name, const eni_token *token, int64_t deadline_ns, int abort_fd,
                             int *fd_out)
{
    for (;;) {
        bool is_again;
        int fd = socket(AF_UNIX, SOCKET_FLAGS, 0);
        if (fd < 0) return eni_fail(EN_EIO, "fdpass", "cannot create a Unix socket: %s", strerror(errno));
        en_status st = attempt(fd, name, token, deadline_ns, abort_fd, &is_again);
        if (st == EN_OK) {
            *fd_out = fd;
            return EN_OK;
        }
        close(fd);
        if (st != EN_EPEER || !is_again || eni_now_ns() >= deadline_ns) return st;
        st = eni_tcp_wait(-1, 0, eni_now_ns() + retry_ns, abort_fd); /* EN_EPEER: aborted */
        if (st != EN_ETIMEOUT) return st;
    }
}

typedef union control_space {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(ENI_FDPASS_MAX * sizeof(int))];
} control_space;

en_status eni_fdpass_send(int fd, const int *fds, size_t nfds, const void *blob, size_t bytes,
                          int64_t deadline_ns, int abort_fd)
{
    if (nfds > ENI_FDPASS_MAX || bytes == 0 || bytes > ENI_FDPASS_BLOB)
        return eni_fail(EN_EINVAL, "fdpass",
                        "cannot pass %zu descriptors and %zu bytes: the limits are 0 .. %u and 1 .. %u", nfds,
                        bytes, ENI_FDPASS_MAX, ENI_FDPASS_BLOB);
    control_space control = {0};
    struct iovec part = {(void *)(uintptr_t)blob, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (nfds > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(head), fds, nfds * sizeof(int));
    }
    for (;;) {
        ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (n == (ssize_t)bytes) return EN_OK;
        if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) return EN_EPEER;
        if (n >= 0 || (errno != EAGAIN && errno != EINTR))
            return eni_fail(EN_EIO, "fdpass", "cannot pass %zu descriptors: %s", nfds, strerror(errno));
        EN_TRY(eni_tcp_wait(fd, POLLOUT, deadline_ns, abort_fd));
    }
}

/* Copies the descriptors out of a message; all of them now belong to us. */
static size_t collect(struct msghdr *message, int fds_out[ENI_FDPASS_MAX])
{
    size_t nfds = 0;
    for (size_t i = 0; i < ENI_FDPASS_MAX; i++)
        fds_out[i] = -1;
    for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head != NULL; head = CMSG_NXTHDR(message, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
        size_t n = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n && nfds < ENI_FDPASS_MAX; i++, nfds++)
            memcpy(&fds_out[nfds], CMSG_DATA(head) + i * sizeof(int), sizeof(int));
    }
    return nfds;
}

en_status eni_fdpass_recv(int fd, int fds_out[ENI_FDPASS_MAX], size_t *nfds_out, void *blob_out,
                          size_t capacity, size_t *bytes_out, int64_t deadline_ns, int abort_fd)
{
    control_space control = {0};
    struct iovec part = {blob_out, capacity};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t n;
    for (;;) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
        if (n >= 0) break;
        if (errno == ECONNRESET) return EN_EPEER;
        if (errno != EAGAIN && errno != EINTR)
            return eni_fail(EN_EIO, "fdpass", "cannot receive descriptors: %s", strerror(errno));
        EN_TRY(eni_tcp_wait(fd, POLLIN, deadline_ns, abort_fd));
    }
    size_t nfds = collect(&message, fds_out);
    const bool is_cut = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
    if (n > 0 && !is_cut) {
        *nfds_out = nfds;
        *bytes_out = (size_t)n;
        return EN_OK;
    }
    close_all(fds_out, nfds);
    if (!is_cut) return EN_EPEER; /* our messages have at least one byte; this is the end, or not ours */
    return eni_fail(EN_EPROTO, "fdpass", "a message does not fit into %zu bytes and %u descriptors", capacity,
                    ENI_FDPASS_MAX);
}

void eni_fdpass_serve(int listen_fd, int fd, int stop_fd)
{
    int64_t say_short_ns = 0;
    while (eni_tcp_wait(listen_fd, POLLIN, INT64_MAX, stop_fd) != EN_EPEER) {
        int peer;
        const int error = eni_tcp_accept_now(listen_fd, &peer);
        if (error != 0) {
            eni_files_are_short(error, "the rank that has read the data", &say_short_ns);
            eni_tcp_wait(-1, 0, eni_now_ns() + retry_ns, stop_fd);
            continue;
        }
        if (check_user(peer, NULL) == EN_OK)
            eni_fdpass_send(peer, &fd, 1, "", 1, eni_now_ns() + handshake_ns, stop_fd);
        close(peer);
    }
}

en_status eni_fdpass_ask(const char *name, int64_t deadline_ns, int abort_fd, int *fd_out, int64_t *pid_out)
{
    int fds[ENI_FDPASS_MAX];
    size_t nfds, bytes;
    char blob;
    const int fd = socket(AF_UNIX, SOCKET_FLAGS, 0);
    *pid_out = 0;
    en_status st = fd < 0 ? EN_EIO : knock(fd, name, deadline_ns, abort_fd);
    if (st == EN_OK) st = check_user(fd, pid_out);
    if (st == EN_OK) st = eni_fdpass_recv(fd, fds, &nfds, &blob, 1, &bytes, deadline_ns, abort_fd);
    if (fd >= 0) close(fd);
    EN_TRY(st);
    if (nfds != 1) {
        close_all(fds, nfds);
        return EN_EPROTO;
    }
    *fd_out = fds[0];
    return EN_OK;
}
