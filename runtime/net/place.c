/* place.c - see place.h. */
#include "runtime/net/place.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/core/log.h"

void eni_place_host(char host_out[ENI_HOST_MAX])
{
    if (gethostname(host_out, ENI_HOST_MAX) != 0 || host_out[0] == '\0') {
        snprintf(host_out, ENI_HOST_MAX, "localhost");
        return;
    }
    host_out[ENI_HOST_MAX - 1] = '\0';
    for (char *c = host_out; *c != '\0'; c++)
        if ((unsigned char)*c <= ' ' || *c == 0x7f) *c = '?'; /* it goes into log lines and messages */
}

/* The first line of a small file without its newline; false when there is none. */
static bool read_line(const char *path, char *line_out, size_t bytes)
{
    FILE *file = fopen(path, "re");
    bool has_line = file != NULL && fgets(line_out, (int)bytes, file) != NULL;
    if (file != NULL) fclose(file);
    if (has_line) line_out[strcspn(line_out, "\n")] = '\0';
    return has_line;
}

en_status eni_place_host_id(const char *override, char id_out[ENI_HOST_ID_MAX])
{
    if (override != NULL && override[0] != '\0') {
        if (strlen(override) >= ENI_HOST_ID_MAX) {
            eni_error("place", "--host-id is longer than %u characters", ENI_HOST_ID_MAX - 1);
            return EN_EINVAL;
        }
        snprintf(id_out, ENI_HOST_ID_MAX, "%s", override);
        return EN_OK;
    }
    char boot[ENI_HOST_MAX];
    struct stat net = {0};
    if (!read_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot)) eni_place_host(boot);
    if (stat("/proc/self/ns/net", &net) != 0) eni_debug("place", "no /proc/self/ns/net: %s", strerror(errno));
    snprintf(id_out, ENI_HOST_ID_MAX, "%.64s/%llu/%u", boot, (unsigned long long)net.st_ino,
             (unsigned)geteuid());
    return EN_OK;
}

/* connect(2) on a datagram socket chooses the route and thereby our address, and sends nothing. */
static en_status local_address(const struct addrinfo *to, char host_out[ENI_HOST_MAX])
{
    struct sockaddr_storage name;
    socklen_t bytes = sizeof name;
    int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool is_found =
        fd >= 0 && connect(fd, to->ai_addr, to->ai_addrlen) == 0 &&
        getsockname(fd, (struct sockaddr *)&name, &bytes) == 0 &&
        getnameinfo((struct sockaddr *)&name, bytes, host_out, ENI_HOST_MAX, NULL, 0, NI_NUMERICHOST) == 0;
    if (fd >= 0) close(fd);
    return is_found ? EN_OK : EN_EIO;
}

en_status eni_place_address(const eni_address *remote, char host_out[ENI_HOST_MAX])
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_DGRAM}, *list;
    int error = getaddrinfo(remote->host, "9", &hints, &list); /* any port: nothing is sent */
    if (error != 0) {
        eni_error("place", "no address for host '%s': %s", remote->host, gai_strerror(error));
        return EN_ENOENT;
    }
    en_status st = EN_EIO;
    for (struct addrinfo *to = list; to != NULL && st != EN_OK; to = to->ai_next)
        st = local_address(to, host_out);
    freeaddrinfo(list);
    if (st != EN_OK) eni_error("place", "this machine has no route to %s", remote->host);
    return st;
}

/* Cores that cgroup v2 lets us use, rounded up; INT32_MAX without a limit. Only the own cgroup's file is
 * read: in a container that is where the limit stands. */
static int quota_cores(void)
{
    char line[64];
    long long quota, period;
    if (!read_line("/sys/fs/cgroup/cpu.max", line, sizeof line)) return INT32_MAX;
    if (sscanf(line, "%lld %lld", &quota, &period) != 2 || quota <= 0 || period <= 0) return INT32_MAX;
    long long cores = (quota + period - 1) / period;
    return cores < INT32_MAX ? (int)cores : INT32_MAX;
}

int eni_place_cores(void)
{
    cpu_set_t set;
    int mask = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int quota = quota_cores();
    int cores = mask < quota ? mask : quota;
    return cores < 1 ? 1 : cores;
}
