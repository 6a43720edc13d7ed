/* port.c - see port.h. */
#include "tests/port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { FIRST = 20000, COUNT = 12000, STRIDE = 47 }; /* no common divisor: every port has its turn */

/* The descriptor that holds the name; -1: another test has it. */
static int hold(int port)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const int n = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "test-port-%d", port);
    const socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&name, bytes) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* Whether nobody, test or not, is there. */
static int is_free(int port)
{
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int is_bound = fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0) close(fd);
    return is_bound;
}

int port_hold(int port)
{
    const int fd = hold(port);
    if (fd < 0 || is_free(port)) return fd;
    close(fd);
    return -1;
}

int port_take(int *hold_out)
{
    for (int i = 0; i < COUNT; i++) {
        const int port = FIRST + (int)(((long)getpid() + i) * STRIDE % COUNT), fd = port_hold(port);
        if (fd < 0) continue;
        *hold_out = fd;
        return port;
    }
    return -1;
}
