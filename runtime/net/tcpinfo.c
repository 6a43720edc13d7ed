/* tcpinfo.c - what the kernel counted on this process' TCP sockets; see tcp.h. A file of its own because
 * linux/tcp.h, which has the byte counters, cannot stand beside netinet/tcp.h. */
#include <dirent.h>
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "core/log.h"
#include "runtime/net/tcp.h"

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
    if (bytes < offsetof(struct tcp_info, tcpi_bytes_sent) + sizeof info.tcpi_bytes_sent)
        return; /* Linux < 4.19 */
    totals->sent += info.tcpi_bytes_sent;
    totals->received += info.tcpi_bytes_received;
    totals->sockets++;
}

en_status eni_tcp_count(eni_tcp_totals *totals_out)
{
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL) {
        eni_error("tcp", "cannot read /proc/self/fd: %s", strerror(errno));
        return EN_EIO;
    }
    *totals_out = (eni_tcp_totals){0};
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        if (entry->d_name[0] != '.') add_socket((int)strtol(entry->d_name, NULL, 10), totals_out);
    closedir(folder);
    return EN_OK;
}
