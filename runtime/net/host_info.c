/* host_info.c - names and addresses of this host, its cores and memory, and who owns a port of it. */
#include "runtime/net/host_info.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <ifaddrs.h>
#include <msgpack.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "core/digest.h"
#include "core/files.h"
#include "core/log.h"

void eni_host_info_name(char host_out[ENI_HOST_MAX])
{
    if (gethostname(host_out, ENI_HOST_MAX) != 0 || host_out[0] == '\0') {
        snprintf(host_out, ENI_HOST_MAX, "localhost");
        return;
    }
    host_out[ENI_HOST_MAX - 1] = '\0';
    for (char *c = host_out; *c != '\0'; c++)
        if ((unsigned char)*c <= ' ' || *c == 0x7f) *c = '?'; /* it goes into log lines and messages */
}

en_status eni_host_info_id(const char *override, char id_out[ENI_HOST_ID_MAX])
{
    if (override != NULL && override[0] != '\0') {
        if (strlen(override) >= ENI_HOST_ID_MAX)
            return eni_fail(EN_EINVAL, "host_info", "--host-id is longer than %u characters",
                            ENI_HOST_ID_MAX - 1);
        snprintf(id_out, ENI_HOST_ID_MAX, "%s", override);
        return EN_OK;
    }
    char boot[ENI_HOST_MAX];
    struct stat net = {0};
    if (!eni_file_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot)) eni_host_info_name(boot);
    if (stat("/proc/self/ns/net", &net) != 0)
        eni_debug("host_info", "no /proc/self/ns/net: %s", strerror(errno));
    snprintf(id_out, ENI_HOST_ID_MAX, "%.64s/%llu/%u", boot, (unsigned long long)net.st_ino,
             (unsigned)geteuid());
    return EN_OK;
}

const char *eni_host_info_apart(const char *id_a, const char *id_b)
{
    unsigned long long net_a, net_b;
    unsigned user_a, user_b;
    const size_t boot = strcspn(id_a, "/");
    if (boot != strcspn(id_b, "/") || strncmp(id_a, id_b, boot) != 0) return NULL;
    if (sscanf(id_a + boot, "/%llu/%u", &net_a, &user_a) != 2) return NULL;
    if (sscanf(id_b + boot, "/%llu/%u", &net_b, &user_b) != 2) return NULL;
    return net_a != net_b ? "in another network namespace" : user_a != user_b ? "of another user" : NULL;
}

static const void *bytes_of(const struct sockaddr *name, size_t *bytes_out)
{
    bool is_v4 = name->sa_family == AF_INET;
    *bytes_out = is_v4 ? sizeof(struct in_addr) : sizeof(struct in6_addr);
    return is_v4 ? (const void *)&((const struct sockaddr_in *)name)->sin_addr
                 : (const void *)&((const struct sockaddr_in6 *)name)->sin6_addr;
}

static bool is_same_host(const struct sockaddr *a, const struct sockaddr *b)
{
    size_t bytes;
    if (a->sa_family != b->sa_family) return false;
    const void *other = bytes_of(b, &bytes);
    return memcmp(bytes_of(a, &bytes), other, bytes) == 0;
}

bool eni_host_info_is_loopback(const struct sockaddr *name)
{
    size_t bytes;
    const uint8_t *address = bytes_of(name, &bytes);
    if (name->sa_family == AF_INET) return address[0] == 127;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)name)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
}

/* The name of the interface that has this address. */
static void find_interface(const struct sockaddr *name, char interface_out[32])
{
    struct ifaddrs *list;
    interface_out[0] = '\0';
    if (getifaddrs(&list) != 0) return;
    for (const struct ifaddrs *i = list; i != NULL && interface_out[0] == '\0'; i = i->ifa_next)
        if (i->ifa_addr != NULL && is_same_host(name, i->ifa_addr))
            snprintf(interface_out, 32, "%s", i->ifa_name);
    freeifaddrs(list);
}

/* connect(2) on a datagram socket chooses the route and so our address, and sends nothing. */
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
    own_out->is_loopback = eni_host_info_is_loopback((struct sockaddr *)&name);
    own_out->is_remote_here = own_out->is_loopback || is_same_host((struct sockaddr *)&name, to->ai_addr);
    return EN_OK;
}

en_status eni_host_info_no_host(const char *host, const char *why)
{
    const char *scope = strchr(host, '%');
    if (scope != NULL)
        return eni_fail(
            EN_ENOENT, "host_info",
            "no such host '%s': this machine has no interface %s (`ip link` lists them); an fe80::/10 "
            "address is valid on one link only, and each rank reads it with this interface name: use "
            "addresses of another network if hosts name their interfaces differently",
            host, scope + 1);
    return eni_fail(EN_ENOENT, "host_info",
                    "no such host '%s': %s; check the name, /etc/hosts and the name server", host, why);
}

en_status eni_host_info_address(const eni_address *remote, eni_own_address *own_out)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_DGRAM}, *list;
    int error = getaddrinfo(remote->host, "9", &hints, &list); /* any port: nothing is sent */
    if (error != 0) return eni_host_info_no_host(remote->host, gai_strerror(error));
    en_status st = EN_EIO;
    for (struct addrinfo *to = list; to != NULL && st != EN_OK; to = to->ai_next)
        st = address_towards(to, own_out);
    const bool is_own = eni_host_info_is_loopback(list->ai_addr);
    freeaddrinfo(list);
    struct in6_addr v6;
    /* Without %scope. */
    const bool lacks_scope = inet_pton(AF_INET6, remote->host, &v6) == 1 && IN6_IS_ADDR_LINKLOCAL(&v6);
    if (st == EN_OK) return EN_OK;
    return eni_fail(
        EN_EINVAL, "host_info", "no route to %s from this machine: %s", remote->host,
        is_own
            ? "its loopback interface is down, as in a new network namespace; enable it (`ip link set lo up`)"
        : lacks_scope
            ? "an fe80::/10 address needs an interface, such as fe80::1%eth0"
            : "use an address on a network that both machines share (`ip route get` shows the route)");
}

int eni_host_info_addresses(eni_address *addresses_out, int max)
{
    struct ifaddrs *list;
    int n = 0;
    if (getifaddrs(&list) != 0) {
        eni_warn("host_info", "cannot list this machine's addresses: %s", strerror(errno));
        return 0;
    }
    for (const struct ifaddrs *i = list; i != NULL && n < max; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET || (i->ifa_flags & IFF_UP) == 0)
            continue;
        size_t bytes;
        const uint8_t *address = bytes_of(i->ifa_addr, &bytes);
        bool is_link_local = address[0] == 169 && address[1] == 254;
        if (is_link_local || eni_host_info_is_loopback(i->ifa_addr)) continue;
        addresses_out[n] = (eni_address){.port = 0};
        if (inet_ntop(AF_INET, address, addresses_out[n].host, ENI_HOST_MAX) != NULL) n++;
    }
    freeifaddrs(list);
    return n;
}

/* The quota of one cgroup in cores, rounded up; INT32_MAX without one. Version 2 has both numbers in one
 * file. */
static int quota_of(const char *folder, bool is_v2)
{
    char path[1500], line[64];
    long long quota, period;
    snprintf(path, sizeof path, "%s/%s", folder, is_v2 ? "cpu.max" : "cpu.cfs_quota_us");
    if (!eni_file_line(path, line, sizeof line)) return INT32_MAX;
    int n = sscanf(line, "%lld %lld", &quota, &period);
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    if (!is_v2 && n == 1 && eni_file_line(path, line, sizeof line)) n += sscanf(line, "%lld", &period);
    if (n != 2 || quota <= 0 || period <= 0) return INT32_MAX;
    const long long cores = (quota + period - 1) / period;
    return cores < INT32_MAX ? (int)cores : INT32_MAX;
}

/* The least quota of a cgroup and its ancestors. A container may see its own cgroup as the root but get the
 * path that the host uses; a folder that is missing has no quota. */
static int quota_above(const char *root, const char *path, bool is_v2)
{
    char folder[1400];
    const int base = snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s", root, is_v2 ? "" : "/cpu");
    snprintf(folder + base, sizeof folder - (size_t)base, "%s", path);
    int least = quota_of(folder, is_v2);
    for (char *end; (end = strrchr(folder + base, '/')) != NULL;) {
        *end = '\0';
        const int next = quota_of(folder, is_v2);
        if (next < least) least = next;
    }
    return least;
}

/* A line is ID:CONTROLLERS:PATH; version 2 has no controllers. */
int eni_host_info_quota(const char *root)
{
    char path[1024], line[1024];
    int least = INT32_MAX;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *controllers = strchr(line, ':'),
             *at = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (at == NULL) continue;
        at[strcspn(at, "\n")] = '\0';
        *at++ = *controllers = ',';
        const bool is_v2 = at - controllers == 2;
        const bool has_cpu = memmem(controllers, (size_t)(at - controllers), ",cpu,", 5) != NULL;
        const int next = is_v2 || has_cpu ? quota_above(root, at, is_v2) : INT32_MAX;
        if (next < least) least = next;
    }
    if (file != NULL) fclose(file);
    return least;
}

int eni_host_info_cores(void)
{
    cpu_set_t set;
    int mask = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int quota = eni_host_info_quota("");
    int cores = mask < quota ? mask : quota;
    return cores < 1 ? 1 : cores;
}

uint64_t eni_host_info_memory(void)
{
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* "AMD EPYC 7B13"; "" where the kernel has another name for it. */
static void cpu_name(char *name_out, size_t bytes)
{
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "re");
    name_out[0] = '\0';
    while (file != NULL && name_out[0] == '\0' && fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(name_out, bytes, "%s", colon + 2);
    }
    if (file != NULL) fclose(file);
}

static const char *instruction_set(const struct utsname *system)
{
#if defined(__x86_64__)
    (void)system;
    return __builtin_cpu_supports("avx512f") ? "avx512"
           : __builtin_cpu_supports("avx2")  ? "avx2"
           : __builtin_cpu_supports("avx")   ? "avx"
                                             : "sse2";
#else
    return system->machine;
#endif
}

void eni_host_info_facts(const char *version, eni_host_info_tell tell, void *user)
{
    char text[256];
    int major = 0, minor = 0, patch = 0;
    struct utsname system;
    struct tm utc;
    const time_t now = time(NULL);
    const char *commit = strchr(version, '+');
    uname(&system);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    tell(user, NULL, "date", text);
    tell(user, NULL, "version", version);
    tell(user, NULL, "commit", commit == NULL ? "unknown" : commit + 1);
    cpu_name(text, sizeof text);
    tell(user, NULL, "cpu", text);
    tell(user, NULL, "instruction_set", instruction_set(&system));
    tell(user, NULL, "kernel", system.release);
#if defined(__clang__)
    tell(user, NULL, "compiler", __VERSION__);
#else
    tell(user, NULL, "compiler", "gcc " __VERSION__);
#endif
    zmq_version(&major, &minor, &patch);
    snprintf(text, sizeof text, "%d.%d.%d", major, minor, patch);
    tell(user, "libraries", "ZeroMQ", text);
    tell(user, "libraries", "msgpack-c", msgpack_version());
    tell(user, "libraries", "OpenSSL", eni_digest_library());
}

/* ---- who owns a port: /proc/net/tcp gives the socket's inode, /proc/PID/fd its process ---- */

/* The inode and owner of the socket that listens on the port; 0: none in this table. */
static unsigned long listener(const char *table, uint16_t port, unsigned *uid_out)
{
    char line[512];
    unsigned long inode = 0;
    FILE *file = fopen(table, "re");
    while (file != NULL && inode == 0 && fgets(line, sizeof line, file) != NULL) {
        unsigned local_port, state, uid;
        unsigned long here; /* sl local:port remote:port state queues timer retransmits uid timeout inode */
        int n = sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %u %*d %lu",
                       &local_port, &state, &uid, &here);
        if (n != 4 || local_port != port || state != 0x0a) continue;
        inode = here;
        *uid_out = uid;
    }
    if (file != NULL) fclose(file);
    return inode;
}

static bool holds(const char *pid, const char *socket_name)
{
    char path[300], link[64];
    bool is_found = false;
    snprintf(path, sizeof path, "/proc/%s/fd", pid);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir != NULL && !is_found && (e = readdir(dir)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%s/fd/%.32s", pid, e->d_name);
        ssize_t length = readlink(path, link, sizeof link - 1);
        if (length < 0) continue;
        link[length] = '\0';
        is_found = strcmp(link, socket_name) == 0;
    }
    if (dir != NULL) closedir(dir);
    return is_found;
}

/* The command line, its words separated by blanks and its program without folders. */
static void read_command(const char *pid, char *text_out, size_t bytes)
{
    char path[300];
    snprintf(path, sizeof path, "/proc/%s/cmdline", pid);
    FILE *file = fopen(path, "re");
    size_t length = file == NULL ? 0 : fread(text_out, 1, bytes - 1, file);
    if (file != NULL) fclose(file);
    text_out[length] = '\0';
    const char *slash = strrchr(text_out, '/'); /* of the first word: it ends at the first 0 */
    size_t cut = slash == NULL ? 0 : (size_t)(slash + 1 - text_out);
    memmove(text_out, text_out + cut, length + 1 - cut);
    length -= cut;
    while (length > 0 && text_out[length - 1] == '\0')
        length--;
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text_out[i] < ' ' || text_out[i] == 0x7f) text_out[i] = ' ';
}

void eni_host_info_port_owner(uint16_t port, char text_out[200])
{
    char socket_name[64], command[128];
    unsigned uid = 0;
    unsigned long inode = listener("/proc/net/tcp", port, &uid);
    if (inode == 0) inode = listener("/proc/net/tcp6", port, &uid);
    if (inode == 0) {
        snprintf(text_out, 200, "a process that does not listen (or has just ended)");
        return;
    }
    snprintf(text_out, 200, "a process of user %u (`ss -ltnp` as that user or root shows which)", uid);
    snprintf(socket_name, sizeof socket_name, "socket:[%lu]", inode);
    DIR *dir = opendir("/proc");
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] < '1' || e->d_name[0] > '9' || !holds(e->d_name, socket_name)) continue;
        read_command(e->d_name, command, sizeof command);
        snprintf(text_out, 200, "pid %.16s (%s)", e->d_name, command);
        break;
    }
    if (dir != NULL) closedir(dir);
}
