/* hosts.c - see hosts.h. */
#include "bench/hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "runtime/net/tcp.h"
#include "tests/recv_all.h"

enum { DEADLINE_S = 10 };

int hosts_enter(const char *prefix, int rank)
{
    char path[256];
    snprintf(path, sizeof path, "/run/netns/%s-%d", prefix, rank);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const int bad = fd < 0 || setns(fd, CLONE_NEWNET) != 0;
    if (bad) fprintf(stderr, "cannot enter %s: %s (see bench/namespaces.sh)\n", path, strerror(errno));
    if (fd >= 0) close(fd);
    return bad ? -1 : 0;
}

static eni_address address_of(const char *prefix, int rank, int port)
{
    eni_address address = {.port = (uint16_t)port};
    if (prefix)
        snprintf(address.host, sizeof address.host, "10.78.0.%d", rank + 1);
    else
        snprintf(address.host, sizeof address.host, "127.0.0.1");
    return address;
}

static int connect_lower(const char *prefix, int rank, int lower, hosts_board *board, int64_t deadline_ns,
                         int *fd_out)
{
    int port;
    while ((port = atomic_load(&board->port[lower])) == 0 && eni_now_ns() < deadline_ns)
        sched_yield();
    const eni_address address = address_of(prefix, lower, port);
    return eni_tcp_connect(&address, deadline_ns, -1, fd_out) != EN_OK ||
           eni_tcp_send(*fd_out, &rank, sizeof rank, deadline_ns, -1) != EN_OK;
}

static int accept_higher(int listener, int rank, int n, int64_t deadline_ns, int *sockets)
{
    int fd, from;
    if (eni_tcp_accept(listener, deadline_ns, -1, &fd) != EN_OK) return -1;
    if (recv_all(fd, &from, sizeof from, deadline_ns, -1) != EN_OK || from <= rank || from >= n ||
        sockets[from] >= 0) {
        close(fd);
        return -1;
    }
    sockets[from] = fd;
    return 0;
}

int hosts_connect(const char *prefix, int rank, int n, hosts_board *board, int *sockets_out)
{
    const int64_t deadline_ns = eni_now_ns() + DEADLINE_S * ENI_SECOND;
    const eni_address any = address_of(prefix, rank, 0);
    eni_address bound;
    int listener;
    if (eni_tcp_listen(&any, true, &listener, &bound) != EN_OK) return -1;
    atomic_store(&board->port[rank], bound.port);
    int bad = 0;
    for (int r = 0; r < n; r++)
        sockets_out[r] = -1;
    for (int r = 0; r < rank && !bad; r++)
        bad = connect_lower(prefix, rank, r, board, deadline_ns, &sockets_out[r]);
    for (int r = rank + 1; r < n && !bad; r++)
        bad = accept_higher(listener, rank, n, deadline_ns, sockets_out);
    close(listener);
    if (bad) fprintf(stderr, "rank %d could not connect to all others\n", rank);
    return bad ? -1 : 0;
}
