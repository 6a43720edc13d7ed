/* tcp.c - addresses, bytes, connections and counts of TCP sockets. linux/tcp.h has the byte counters, and
 * cannot be included together with netinet/tcp.h. */
#include "runtime/net/tcp.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"
#include "runtime/net/host_info.h"

/* ---- the text of addresses ---- */

/* Splits "host:port" and "[v6]:port"; false when it is neither. The pointers are into `text`. */
static bool split(const char *text, const char **host, size_t *host_bytes, const char **port)
{
    /* of names, numbers, IPv6 with %scope; or * for all */
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:%*";
    if (text[0] == '[') {
        const char *close = strchr(text, ']');
        if (close == NULL || close[1] != ':') return false;
        *host = text + 1;
        *host_bytes = (size_t)(close - text - 1);
        *port = close + 2;
    } else {
        const char *colon = strchr(text, ':');
        if (colon == NULL || strchr(colon + 1, ':') != NULL) return false;
        *host = text;
        *host_bytes = (size_t)(colon - text);
        *port = colon + 1;
    }
    return *host_bytes > 0 && *host_bytes < ENI_HOST_MAX && strspn(*host, letters) >= *host_bytes;
}

static bool parse_port(const char *text, uint16_t *port_out)
{
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 5 || text[digits] != '\0') return false;
    long port = strtol(text, NULL, 10);
    if (port > UINT16_MAX) return false;
    *port_out = (uint16_t)port;
    return true;
}

/* Logs how to write an IPv6 address that lacks its brackets; false if it is not one. */
static bool lacks_brackets(const char *text, const char *rest)
{
    char host[INET6_ADDRSTRLEN];
    struct in6_addr v6;
    const char *colon = strrchr(rest, ':');
    const int bytes = colon == NULL ? 0 : (int)(colon - rest);
    if (bytes >= (int)sizeof host) return false;
    snprintf(host, sizeof host, "%.*s", bytes, rest);
    if (inet_pton(AF_INET6, host, &v6) != 1) return false;
    eni_error("address", "'%.300s': an IPv6 address needs brackets: write tcp://[%s]%s", text, host, colon);
    return true;
}

en_status eni_address_parse(const char *text, eni_address *address_out)
{
    static const char scheme[] = "tcp://";
    const char *rest = strncmp(text, scheme, strlen(scheme)) == 0 ? text + strlen(scheme) : text;
    const char *host, *port_text;
    size_t host_bytes;
    uint16_t port;
    const bool is_split = split(rest, &host, &host_bytes, &port_text);
    if (!is_split && lacks_brackets(text, rest)) return EN_EINVAL;
    if (!is_split || !parse_port(port_text, &port))
        return eni_fail(EN_EINVAL, "address",
                        "'%.300s' is not an address: write tcp://HOST:PORT, for example tcp://127.0.0.1:5555",
                        text);
    if (host_bytes == 1 && host[0] == '*') { /* ZeroMQ's way to say all interfaces */
        host = "0.0.0.0";
        host_bytes = strlen(host);
    }
    eni_address address = {.port = port};
    memcpy(address.host, host, host_bytes);
    struct in_addr short_form, full;
    if (inet_aton(address.host, &short_form) != 0 && inet_pton(AF_INET, address.host, &full) != 1) {
        char read_as[INET_ADDRSTRLEN];
        inet_ntop(AF_INET, &short_form, read_as, sizeof read_as);
        return eni_fail(EN_EINVAL, "address",
                        "'%.300s': the host '%.64s' would be read as the address %s; write an address with "
                        "four numbers, or a name",
                        text, address.host, read_as);
    }
    *address_out = address;
    return EN_OK;
}

void eni_address_format(const eni_address *address, char text_out[ENI_ADDRESS_TEXT])
{
    bool is_v6 = strchr(address->host, ':') != NULL;
    snprintf(text_out, ENI_ADDRESS_TEXT, is_v6 ? "tcp://[%s]:%u" : "tcp://%s:%u", address->host,
             address->port);
}

bool eni_address_is_loopback(const eni_address *address)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, address->host, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, address->host, &v6) == 1)
        return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
    return strcmp(address->host, "localhost") == 0;
}

bool eni_address_is_anywhere(const eni_address *address)
{
    return strcmp(address->host, "0.0.0.0") == 0 || strcmp(address->host, "::") == 0;
}

/* ---- bytes: waits, sends and receives ---- */

enum { POLL_CAP_MS = 60000 };

en_status eni_tcp_wait(int fd, short events, int64_t deadline_ns, int abort_fd)
{
    struct pollfd set[2] = {{fd, events, 0}, {abort_fd, POLLIN, 0}};
    for (;;) {
        int ms = eni_ms_left(deadline_ns, POLL_CAP_MS);
        int n = poll(set, 2, ms);
        if (n < 0 && errno != EINTR)
            return eni_fail(EN_EIO, "tcp", "poll on descriptor %d failed: %s", fd, strerror(errno));
        if (n > 0 && set[1].revents != 0) return EN_EPEER;
        if (n > 0) return EN_OK;
        if (ms == 0) return EN_ETIMEOUT;
    }
}

/* Maps an errno of send or recv to a status, and logs it. */
static en_status failure(const char *verb, int error)
{
    switch (error) {
    case ECONNRESET:
    case EPIPE:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ECONNABORTED: eni_debug("tcp", "%s: %s", verb, strerror(error)); return EN_EPEER;
    default: eni_error("tcp", "cannot %s over TCP: %s", verb, strerror(error)); return EN_EIO;
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

en_status eni_tcp_send(int fd, const void *data, size_t bytes, int64_t deadline_ns, int abort_fd)
{
    const uint8_t *at = data;
    size_t done = 0;
    while (done < bytes) {
        size_t n = 0;
        en_status st = eni_tcp_send_some(fd, at + done, bytes - done, &n);
        if (st == EN_OK && n == 0) st = eni_tcp_wait(fd, POLLOUT, deadline_ns, abort_fd);
        if (st == EN_ETIMEOUT || st == EN_EPEER)
            eni_log(st == EN_ETIMEOUT ? ENI_LOG_ERROR : ENI_LOG_DEBUG, "tcp",
                    "sent only %zu of %zu bytes before %s", done, bytes,
                    st == EN_ETIMEOUT ? "the deadline" : "the peer was gone");
        EN_TRY(st);
        done += n;
    }
    return EN_OK;
}

/* ---- connections: listen, connect, accept ---- */

enum { LISTEN_BACKLOG = 512 };
static const int64_t retry_ns = 50 * ENI_MILLI; /* between attempts while nobody listens */
/* One unanswered attempt; after that a new SYN may fare better. */
static const int64_t attempt_ns = 3 * ENI_SECOND;

/* The list is freed with freeaddrinfo. */
static en_status resolve(const eni_address *address, int flags, struct addrinfo **list_out)
{
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    char port[8];
    snprintf(port, sizeof port, "%u", address->port);
    int error = getaddrinfo(address->host, port, &hints, list_out);
    if (error == 0) return EN_OK;
    if (error == EAI_AGAIN) return EN_ETIMEOUT; /* the name server did not answer: try again */
    return eni_host_info_no_host(address->host, gai_strerror(error));
}

static void set_option(int fd, int level, int option)
{
    int one = 1;
    if (setsockopt(fd, level, option, &one, sizeof one) != 0)
        eni_warn("tcp", "setsockopt %d of level %d: %s", option, level, strerror(errno));
}

bool eni_tcp_is_local(int fd)
{
    struct sockaddr_storage name;
    socklen_t bytes = sizeof name;
    if (getpeername(fd, (struct sockaddr *)&name, &bytes) != 0) return false;
    return name.ss_family == AF_UNIX || eni_host_info_is_loopback((struct sockaddr *)&name);
}

uint16_t eni_tcp_port(int fd)
{
    struct sockaddr_in6 own = {0}; /* sockaddr_in has the port at the same offset */
    socklen_t bytes = sizeof own;
    if (getsockname(fd, (struct sockaddr *)&own, &bytes) != 0) return 0;
    return own.sin6_family == AF_INET || own.sin6_family == AF_INET6 ? ntohs(own.sin6_port) : 0;
}

static en_status listen_failed(const eni_address *address, int error)
{
    char owner[200];
    if (error == EADDRINUSE) {
        eni_host_info_port_owner(address->port, owner);
        eni_error(
            "tcp",
            "port %u on %s is in use by %s: stop that process, give another port, or port 0 for any free one",
            address->port, address->host, owner);
    } else if (error == EADDRNOTAVAIL) {
        eni_error("tcp", "%s is not an address of this machine (`ip addr` lists them)", address->host);
    } else {
        eni_error("tcp", "cannot listen on %s port %u: %s", address->host, address->port, strerror(error));
    }
    return EN_EIO;
}

en_status eni_tcp_listen(const eni_address *address, bool is_insecure, int *fd_out, eni_address *bound_out)
{
    struct addrinfo *list;
    EN_TRY(resolve(address, AI_PASSIVE, &list));
    struct sockaddr_storage name = {0};
    socklen_t bytes = list->ai_addrlen;
    memcpy(&name, list->ai_addr, bytes);
    freeaddrinfo(list);
    if (!is_insecure && !eni_host_info_is_loopback((struct sockaddr *)&name))
        return eni_fail(EN_EDENIED, "tcp",
                        "will not listen on %s: traffic beyond loopback is not encrypted yet; add --insecure "
                        "on a network you trust",
                        address->host);
    int fd = socket(name.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return listen_failed(address, errno);
    set_option(fd, SOL_SOCKET, SO_REUSEADDR);
    if (bind(fd, (struct sockaddr *)&name, bytes) != 0 || listen(fd, LISTEN_BACKLOG) != 0) {
        int error = errno;
        close(fd);
        return listen_failed(address, error);
    }
    if (bound_out != NULL) {
        *bound_out = *address;
        bound_out->port = eni_tcp_port(fd);
    }
    *fd_out = fd;
    return EN_OK;
}

en_status eni_tcp_adopt(int listen_fd, eni_address *address_out)
{
    int is_listening = 0;
    socklen_t bytes = sizeof is_listening;
    struct sockaddr_storage name;
    socklen_t name_bytes = sizeof name;
    eni_address address = {.port = eni_tcp_port(listen_fd)};
    if (getsockopt(listen_fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &bytes) != 0 || !is_listening ||
        getsockname(listen_fd, (struct sockaddr *)&name, &name_bytes) != 0 ||
        getnameinfo((struct sockaddr *)&name, name_bytes, address.host, sizeof address.host, NULL, 0,
                    NI_NUMERICHOST) != 0)
        return eni_fail(EN_EINVAL, "tcp", "descriptor %d is not a listening socket", listen_fd);
    int flags = fcntl(listen_fd, F_GETFL);
    if (flags < 0 || fcntl(listen_fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        fcntl(listen_fd, F_SETFD, FD_CLOEXEC) != 0)
        return eni_fail(EN_EIO, "tcp", "cannot set up descriptor %d: %s", listen_fd, strerror(errno));
    *address_out = address;
    return EN_OK;
}

/* On loopback a connection to a free port of the ephemeral range can connect to itself (RFC 793, simultaneous
 * open). */
static bool met_itself(int fd)
{
    struct sockaddr_storage a = {0}, b = {0};
    socklen_t a_bytes = sizeof a, b_bytes = sizeof b;
    return getsockname(fd, (struct sockaddr *)&a, &a_bytes) == 0 &&
           getpeername(fd, (struct sockaddr *)&b, &b_bytes) == 0 && a_bytes == b_bytes &&
           memcmp(&a, &b, a_bytes) == 0;
}

/* One attempt. EN_EIO: *error_out says why, the caller may try again; EN_EPEER: aborted. */
static en_status attempt(const struct addrinfo *to, int64_t deadline_ns, int abort_fd, int *fd_out,
                         int *error_out)
{
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        *error_out = errno;
        return EN_EIO;
    }
    set_option(fd, IPPROTO_TCP, TCP_NODELAY);
    int error = connect(fd, to->ai_addr, to->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
        en_status st = eni_tcp_wait(fd, POLLOUT, deadline_ns, abort_fd);
        socklen_t bytes = sizeof error;
        if (st == EN_EPEER) {
            close(fd);
            return st;
        }
        error = ETIMEDOUT;
        if (st == EN_OK && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
    }
    if (error == 0 && met_itself(fd)) error = ECONNREFUSED;
    if (error == 0) {
        *fd_out = fd;
        return EN_OK;
    }
    close(fd);
    *error_out = error;
    return EN_EIO;
}

en_status eni_tcp_attempt(const eni_address *address, int64_t deadline_ns, int abort_fd, int *fd_out,
                          int *error_out)
{
    struct addrinfo *list;
    en_status st = resolve(address, 0, &list);
    if (st == EN_ETIMEOUT) {
        *error_out = 0;
        return EN_EIO;
    }
    EN_TRY(st);
    st = EN_EIO;
    for (struct addrinfo *to = list; to != NULL && st == EN_EIO; to = to->ai_next) {
        int64_t until = eni_now_ns() + attempt_ns;
        st = attempt(to, until < deadline_ns ? until : deadline_ns, abort_fd, fd_out, error_out);
    }
    freeaddrinfo(list);
    return st;
}

const char *eni_tcp_failure(int error)
{
    switch (error) {
    case 0: return "the name server did not answer";
    case ECONNREFUSED: return "connection refused, nobody listens there; is psd, or rank 0, running?";
    case EHOSTUNREACH:
    case ENETUNREACH: return "no route to that host; is it on this network (`ip route get` shows the route)?";
    case ETIMEDOUT: return "no answer; is the host up, does a firewall drop the port?";
    default: return strerror(error);
    }
}

void eni_tcp_explain(int level, const eni_address *address, int error, int tries, int64_t since_ns)
{
    char text[ENI_ADDRESS_TEXT];
    eni_address_format(address, text);
    eni_log(level, "tcp", "cannot connect to %s (%d tries in %.1f s): %s", text, tries,
            (double)(eni_now_ns() - since_ns) / (double)ENI_SECOND, eni_tcp_failure(error));
}

en_status eni_tcp_connect(const eni_address *address, int64_t deadline_ns, int abort_fd, int *fd_out)
{
    int64_t begin = eni_now_ns(), tell = begin + 5 * ENI_SECOND;
    for (int tries = 1;; tries++) {
        int error = 0;
        en_status st = eni_tcp_attempt(address, deadline_ns, abort_fd, fd_out, &error);
        if (st != EN_EIO) return st;
        int64_t now = eni_now_ns();
        if (now + retry_ns >= deadline_ns) {
            eni_tcp_explain(ENI_LOG_ERROR, address, error, tries, begin);
            return EN_ETIMEOUT;
        }
        if (now > tell) {
            eni_tcp_explain(ENI_LOG_WARN, address, error, tries, begin);
            tell = now + 30 * ENI_SECOND;
        }
        st = eni_tcp_wait(-1, 0, now + retry_ns, abort_fd);
        if (st != EN_ETIMEOUT) return st;
    }
}

int eni_tcp_accept_now(int listen_fd, int *fd_out)
{
    const int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return errno == EINTR || errno == ECONNABORTED || errno == EPROTO ? EAGAIN : errno;
    const int one = 1; /* AF_UNIX does not have this option */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    *fd_out = fd;
    return 0;
}

en_status eni_tcp_accept(int listen_fd, int64_t deadline_ns, int abort_fd, int *fd_out)
{
    for (;;) {
        EN_TRY(eni_tcp_wait(listen_fd, POLLIN, deadline_ns, abort_fd));
        const int error = eni_tcp_accept_now(listen_fd, fd_out);
        if (error == 0) return EN_OK;
        if (error != EAGAIN) return eni_fail(EN_EIO, "tcp", "accept failed: %s", strerror(error));
    }
}

/* ---- the kernel's counts of this process' sockets ---- */

static bool is_tcp(int fd)
{
    int protocol = 0;
    socklen_t bytes = sizeof protocol;
    return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &bytes) == 0 && protocol == IPPROTO_TCP;
}

static void add_socket(int fd, eni_tcp_totals *totals)
{
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;
    struct sockaddr_storage peer;
    socklen_t peer_bytes = sizeof peer;
    if (!is_tcp(fd) || getpeername(fd, (struct sockaddr *)&peer, &peer_bytes) != 0) return;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return;
    /* Linux before 4.19. */
    if (bytes < offsetof(struct tcp_info, tcpi_bytes_sent) + sizeof info.tcpi_bytes_sent) return;
    totals->sent += info.tcpi_bytes_sent;
    totals->received += info.tcpi_bytes_received;
    totals->sockets++;
}

en_status eni_tcp_count(eni_tcp_totals *totals_out)
{
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL) return eni_fail(EN_EIO, "tcp", "cannot read /proc/self/fd: %s", strerror(errno));
    *totals_out = (eni_tcp_totals){0};
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        if (entry->d_name[0] != '.') add_socket((int)strtol(entry->d_name, NULL, 10), totals_out);
    closedir(folder);
    return EN_OK;
}
