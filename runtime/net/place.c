/* place.c - see place.h. */
#include "runtime/net/place.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
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

/* The name of the interface that has this address. */
static void find_interface(const struct sockaddr *name, char interface_out[32])
{
    struct ifaddrs *list;
    interface_out[0] = '\0';
    if (getifaddrs(&list) != 0) return;
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != name->sa_family) continue;
        bool is_v4 = name->sa_family == AF_INET;
        const void *a = is_v4 ? (const void *)&((const struct sockaddr_in *)name)->sin_addr
                              : (const void *)&((const struct sockaddr_in6 *)name)->sin6_addr;
        const void *b = is_v4 ? (const void *)&((const struct sockaddr_in *)i->ifa_addr)->sin_addr
                              : (const void *)&((const struct sockaddr_in6 *)i->ifa_addr)->sin6_addr;
        if (memcmp(a, b, is_v4 ? sizeof(struct in_addr) : sizeof(struct in6_addr)) != 0) continue;
        snprintf(interface_out, 32, "%s", i->ifa_name);
        break;
    }
    freeifaddrs(list);
}

/* connect(2) on a datagram socket chooses the route and thereby our address, and sends nothing. */
static en_status address_towards(const struct addrinfo *to, eni_own_address *own_out)
{
    struct sockaddr_storage name;
    socklen_t bytes = sizeof name;
    int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool is_found = fd >= 0 && connect(fd, to->ai_addr, to->ai_addrlen) == 0 &&
                    getsockname(fd, (struct sockaddr *)&name, &bytes) == 0 &&
                    getnameinfo((struct sockaddr *)&name, bytes, own_out->host, ENI_HOST_MAX, NULL, 0,
                                NI_NUMERICHOST) == 0;
    if (fd >= 0) close(fd);
    if (!is_found) return EN_EIO;
    find_interface((struct sockaddr *)&name, own_out->interface);
    return EN_OK;
}

en_status eni_place_address(const eni_address *remote, eni_own_address *own_out)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_DGRAM}, *list;
    int error = getaddrinfo(remote->host, "9", &hints, &list); /* any port: nothing is sent */
    if (error != 0) {
        eni_error("place",
                  "no such host '%s': %s; is the name right, does /etc/hosts or the name server know it?",
                  remote->host, gai_strerror(error));
        return EN_ENOENT;
    }
    en_status st = EN_EIO;
    for (struct addrinfo *to = list; to != NULL && st != EN_OK; to = to->ai_next)
        st = address_towards(to, own_out);
    freeaddrinfo(list);
    if (st != EN_OK)
        eni_error("place", "no route to %s from this machine (`ip route get` shows the way)", remote->host);
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
