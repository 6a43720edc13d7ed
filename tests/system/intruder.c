#include "tests/system/intruder.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "runtime/net/wire.h"
#include "tests/system/process.h"

enum { PORTS = 32, SOCKETS = 16, NAME = 64, TIMEOUT_MS = 20, MISSES = 3 };

struct intruder {
    pthread_t thread;
    pthread_mutex_t lock; /* of the next four */
    pid_t victim[INTRUDER_VICTIMS];
    uint64_t resident[INTRUDER_VICTIMS]; /* when it was added */
    int nvictims;
    intruder_report report;
    atomic_int is_stopping;

    eni_token token; /* the confused member's, or a wrong one */
    int has_token;
    int port[PORTS], nports;
    int misses[PORTS], now; /* connections that no ZeroMQ answered; the port that is attacked */
    char name[SOCKETS][NAME];
    int nnames;
    int idle[INTRUDER_IDLE], nidle; /* connections that say nothing, in turn over all ports */
    unsigned random;
};

/* ---- what there is to attack --------------------------------------------------------------------------- */

static void learn_port(intruder *me, int port)
{
    for (int i = 0; i < me->nports; i++)
        if (me->port[i] == port) return;
    if (me->nports < PORTS) me->port[me->nports++] = port;
}

/* The inodes of a process' sockets. */
static int inodes_of(pid_t pid, unsigned long *inode, int room)
{
    char path[64], link[64];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *fds = opendir(path);
    for (const struct dirent *entry; fds && n < room && (entry = readdir(fds));) {
        const ssize_t length = readlinkat(dirfd(fds), entry->d_name, link, sizeof link - 1);
        if (length <= 0) continue;
        link[length] = 0;
        if (sscanf(link, "socket:[%lu]", &inode[n]) == 1) n++;
    }
    if (fds) closedir(fds);
    return n;
}

/* Its listening TCP ports in one table of the kernel: ZeroMQ's are in that of IPv6. */
static void learn_ports(intruder *me, pid_t pid, const char *table_path)
{
    static unsigned long inode[8192];
    const int n = inodes_of(pid, inode, 8192);
    char line[512];
    FILE *table = fopen(table_path, "r");
    while (table && fgets(line, sizeof line, table)) {
        unsigned port, state;
        unsigned long of;
        if (sscanf(line, " %*d: %*[^:]:%x %*[^:]:%*x %x %*s %*s %*s %*s %*s %lu", &port, &state, &of) != 3)
            continue;
        for (int i = 0; state == 10 && i < n; i++) /* TCP_LISTEN */
            if (inode[i] == of) learn_port(me, (int)port);
    }
    if (table) fclose(table);
}

static void learn_names(intruder *me, pid_t pid)
{
    char names[4096];
    process_sockets(pid, names, sizeof names);
    for (char *name = strtok(names, "\n"); name && me->nnames < SOCKETS; name = strtok(NULL, "\n")) {
        int is_known = 0;
        if (*name == '@') name++;
        for (int i = 0; i < me->nnames; i++)
            is_known |= strcmp(me->name[i], name) == 0;
        if (!is_known) snprintf(me->name[me->nnames++], NAME, "%s", name);
    }
}

static uint64_t resident_of(pid_t pid)
{
    char path[64];
    unsigned long pages = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%*u %lu", &pages) != 1) pages = 0;
    if (file) fclose(file);
    return (uint64_t)pages * 4096;
}

static void look_round(intruder *me)
{
    pthread_mutex_lock(&me->lock);
    for (int i = 0; i < me->nvictims; i++) {
        const uint64_t now = resident_of(me->victim[i]);
        if (now > me->resident[i] && now - me->resident[i] > me->report.growth)
            me->report.growth = now - me->resident[i];
        learn_ports(me, me->victim[i], "/proc/net/tcp");
        learn_ports(me, me->victim[i], "/proc/net/tcp6");
        learn_names(me, me->victim[i]);
    }
    me->report.ports = me->nports;
    me->report.sockets = me->nnames;
    pthread_mutex_unlock(&me->lock);
}

/* ---- connections --------------------------------------------------------------------------------------- */

static unsigned roll(intruder *me, unsigned n)
{
    me->random = me->random * 1664525u + 1013904223u;
    return (me->random >> 8) % n;
}

static int dial(intruder *me, int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    if (fd < 0) return -1;
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0 &&
        (errno != EINPROGRESS || poll(&ready, 1, TIMEOUT_MS) != 1)) {
        close(fd);
        return -1;
    }
    me->report.connections++;
    return fd;
}

/* Sends while the other side accepts, and reads its answers. 0: it closed. */
static int say(intruder *me, int fd, const void *bytes, size_t n)
{
    char ignored[4096];
    for (size_t done = 0; done < n;) {
        struct pollfd ready = {.fd = fd, .events = POLLOUT | POLLIN};
        const ssize_t sent = send(fd, (const char *)bytes + done, n - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            done += (size_t)sent;
            me->report.bytes += (uint64_t)sent;
            continue;
        }
        if (errno != EAGAIN || poll(&ready, 1, TIMEOUT_MS) != 1) return 0;
        if (ready.revents & POLLIN && recv(fd, ignored, sizeof ignored, MSG_DONTWAIT) == 0) return 0;
    }
    return 1;
}

static int hear(int fd, void *bytes, size_t n)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    for (size_t done = 0; done < n;) {
        if (poll(&ready, 1, TIMEOUT_MS) != 1) return 0;
        const ssize_t got = recv(fd, (char *)bytes + done, n - done, MSG_DONTWAIT);
        if (got <= 0) return 0;
        done += (size_t)got;
    }
    return 1;
}

static void put_u32(uint8_t *at, uint32_t value) /* little endian, as the control frames */
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

/* ---- attacks on a TCP port: each knows nothing of what listens there ------------------------------------
 */

static void noise(intruder *me, int fd)
{
    uint8_t bytes[65536];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)roll(me, 256);
    say(me, fd, bytes, sizeof bytes);
}

static void control_bombs(intruder *me, int fd)
{
    static const uint8_t bomb[] = {0xdd, 4, 0, 0, 0}, map[] = {0xdf, 255, 255, 255, 255},
                         bin[] = {0x92, 1, 0xc6, 255, 255, 255, 255};
    static const uint8_t *const all[] = {bomb, map, bin};
    static const size_t sizes[] = {sizeof bomb, sizeof map, sizeof bin};
    const unsigned which = roll(me, 3);
    uint8_t frame[64];
    put_u32(frame, (uint32_t)sizes[which]);
    memcpy(frame + 4, all[which], sizes[which]);
    say(me, fd, frame, 4 + sizes[which]);
}

static void control_lengths(intruder *me, int fd)
{
    static const uint32_t lengths[] = {0, UINT32_MAX, 1052673, 1052672, 4097};
    uint8_t head[4];
    char body[8192];
    memset(body, 0x91, sizeof body);
    put_u32(head, lengths[roll(me, 5)]);
    if (say(me, fd, head, sizeof head)) say(me, fd, body, sizeof body); /* and never the rest */
}

/* A JOIN like a member's, with a token that is not this run's. */
static void control_join(intruder *me, int fd)
{
    uint8_t frame[128] = {0};
    uint8_t *at = frame + 4;
    *at++ = 0x9c; /* 12 elements */
    *at++ = 1;    /* JOIN */
    memcpy(at, "\xce\x45\x4e\x43\x31", 5);
    at += 5;
    *at++ = (uint8_t)(1 + roll(me, 3)); /* the version */
    *at++ = 0xc4;
    *at++ = 16;
    for (int i = 0; i < 16; i++)
        *at++ = (uint8_t)roll(me, 256);
    memcpy(at, "\x01\x02\x05\xa1h\xa1h\x00\x90\x90", 10); /* rank 1 of 2, pid 5, hosts, new, no pairs */
    at += 10;
    put_u32(frame, (uint32_t)(at - frame - 4));
    say(me, fd, frame, (size_t)(at - frame));
    uint8_t answer[64];
    hear(fd, answer, sizeof answer);
}

/* The greeting of a data connection, token wrong. */
static void mesh_greeting(intruder *me, int fd)
{
    uint8_t hello[28] = {0x31, 0x4d, 0x4e, 0x45, 1, 0, 0, 0, 1, 0, 0, 0};
    for (size_t i = 12; i < sizeof hello; i++)
        hello[i] = (uint8_t)roll(me, 256);
    say(me, fd, hello, sizeof hello - (roll(me, 2) ? 0 : 5)); /* or nearly all of it */
}

/* ---- as a ZeroMQ client */

/* Greeting and READY as DEALER with an identity of `n` bytes. 0: the other side does not speak ZMTP. */
static int zmtp_open(intruder *me, int fd, size_t n)
{
    uint8_t greeting[64] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
    uint8_t ready[512] = {4, 0, 5, 'R', 'E', 'A', 'D', 'Y', 11}, theirs[256];
    size_t at = 9;
    memcpy(ready + at, "Socket-Type\0\0\0\6DEALER\10Identity\0\0", 11 + 4 + 6 + 1 + 8 + 2);
    at += 32;
    ready[at++] = 0;
    ready[at++] = (uint8_t)n;
    memset(ready + at, 0, n); /* a zero in front: like one that ZeroMQ makes itself */
    if (n >= 5) ready[at + 4] = (uint8_t)roll(me, 256);
    at += n;
    ready[1] = (uint8_t)(at - 2);
    if (at - 2 > 255) { /* a long command */
        memmove(ready + 9, ready + 2, at - 2);
        ready[0] = 6;
        memset(ready + 1, 0, 8);
        ready[7] = (uint8_t)((at - 2) >> 8);
        ready[8] = (uint8_t)(at - 2);
        at += 7;
    }
    const int is_open = say(me, fd, greeting, sizeof greeting) && hear(fd, theirs, 64) &&
                        say(me, fd, ready, at) && hear(fd, theirs, 43);
    me->misses[me->now] = is_open ? -1000000 : me->misses[me->now] + 1;
    return is_open;
}

static int zmtp_frame(intruder *me, int fd, const void *bytes, size_t n, int has_more)
{
    uint8_t head[9] = {(uint8_t)(has_more | (n > 255 ? 2 : 0)), (uint8_t)n};
    if (n > 255)
        for (int i = 0; i < 8; i++)
            head[1 + i] = (uint8_t)((uint64_t)n >> 8 * (7 - i));
    return say(me, fd, head, n > 255 ? 9 : 2) && say(me, fd, bytes, n);
}

/* A header of some member, wrong in at least one of epoch, incarnation, rank and token. */
static eni_header header_of(intruder *me, uint32_t type)
{
    eni_header h = {
        .type = type, .epoch = 1 + roll(me, 2), .rank = (int32_t)roll(me, 3), .dtype = ENI_DTYPE_F32};
    h.incarnation = UINT64_C(0xdead000000000000) + roll(me, 3);
    h.seq = roll(me, 4) == 0 ? UINT64_MAX : roll(me, 1000); /* repeated, out of order, ahead */
    h.what = 1;
    h.nsamples = 4;
    if (type == ENI_MSG_HELLO) eni_token_hex(&me->token, h.text);
    return h;
}

static int zmtp_message(intruder *me, int fd, const eni_header *header, const void *payload, size_t n)
{
    uint8_t bytes[ENI_HEADER_MAX];
    const size_t length = eni_header_encode(header, bytes);
    if (!zmtp_frame(me, fd, bytes, length, payload != NULL)) return 0;
    return payload == NULL || zmtp_frame(me, fd, payload, n, 0);
}

/* HELLO with its own token, then calls all the same, and the end of another client's call. */
static void shard_impostor(intruder *me, int fd)
{
    float poison[208];
    if (!zmtp_open(me, fd, roll(me, 2) ? 5 : 0)) return;
    if (roll(me, 2)) {
        const eni_header hello = header_of(me, ENI_MSG_HELLO);
        zmtp_message(me, fd, &hello, NULL, 0);
    }
    for (size_t i = 0; i < 208; i++)
        poison[i] = 1e30f;
    for (int i = 0; i < 3; i++) {
        eni_header call = header_of(me, i == 2 ? ENI_MSG_INIT : ENI_MSG_CALL);
        call.count = 208;
        call.bytes = sizeof poison;
        zmtp_message(me, fd, &call, poison, sizeof poison);
    }
    const eni_header bye = header_of(me, ENI_MSG_FINISHED);
    zmtp_message(me, fd, &bye, NULL, 0);
    uint8_t answer[512];
    hear(fd, answer, sizeof answer);
}

/* Headers that are cut off, too long, of another version, or bombs; payloads that are not announced. */
static void shard_malformed(intruder *me, int fd)
{
    uint8_t bytes[ENI_HEADER_MAX + 64] = {0};
    if (!zmtp_open(me, fd, roll(me, 2) ? 255 : 1)) return;
    const eni_header h = header_of(me, ENI_MSG_CALL);
    const size_t length = eni_header_encode(&h, bytes);
    zmtp_frame(me, fd, bytes, roll(me, (unsigned)length), 0);
    zmtp_frame(me, fd, "\xdd\4\0\0", 5, 0);
    zmtp_frame(me, fd, bytes, length, 1);
    zmtp_frame(me, fd, "x", 1, 1);
    zmtp_frame(me, fd, "y", 1, 0);
    bytes[8] = 1;
    zmtp_frame(me, fd, bytes, length, 0);
    zmtp_frame(me, fd, bytes, 300, 0);
}

static void shard_oversized(intruder *me, int fd)
{
    static const uint8_t huge[9] = {2, 0x40, 0, 0, 0, 0, 0, 0, 0};
    if (zmtp_open(me, fd, 0) && say(me, fd, huge, sizeof huge)) noise(me, fd);
}

/* A message that never ends: no option of ZeroMQ bounds it. */
static void shard_endless(intruder *me, int fd)
{
    static const uint8_t zeros[60000];
    const double until = now_seconds() + 0.2;
    const size_t n = roll(me, 2) ? 1 : sizeof zeros;
    if (!zmtp_open(me, fd, 0)) return;
    while (now_seconds() < until && zmtp_frame(me, fd, zeros, n, 1)) {
    }
}

/* Half a message, and then silence for a while. */
static void shard_half(intruder *me, int fd)
{
    uint8_t bytes[ENI_HEADER_MAX];
    if (!zmtp_open(me, fd, 0)) return;
    const eni_header h = header_of(me, ENI_MSG_CALL);
    zmtp_frame(me, fd, bytes, eni_header_encode(&h, bytes), 1);
}

/* ---- the campaign -------------------------------------------------------------------------------------- */

/* One byte now and then of a valid message; or no byte at all. */
static void keep_idle(intruder *me)
{
    static const uint8_t greeting[12] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0};
    const int n = me->nidle < INTRUDER_IDLE ? INTRUDER_IDLE / 4 : 20;
    for (int i = 0; i < n && me->nports > 0; i++) {
        const int at = me->nidle % INTRUDER_IDLE;
        if (me->nidle >= INTRUDER_IDLE && me->idle[at] >= 0) close(me->idle[at]);
        me->idle[at] = dial(me, me->port[me->nidle % me->nports]);
        if (me->idle[at] >= 0 && at % 2) say(me, me->idle[at], greeting, 1 + roll(me, 12));
        me->nidle++;
    }
}

/* An abstract socket: silent, a wrong token, half of one, too much. */
static void attack_name(intruder *me, const char *name)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const size_t n = strlen(name);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    char bytes[4000];
    memcpy(to.sun_path + 1, name, n);
    if (fd < 0) return;
    if (connect(fd, (struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)) ==
        0) {
        static const size_t sizes[] = {16, 7, 17, sizeof bytes};
        const unsigned which = roll(me, 5);
        memset(bytes, (int)roll(me, 256), sizeof bytes);
        if (which < 4) say(me, fd, bytes, sizes[which]);
        me->report.connections++;
    }
    const int at = me->nidle % INTRUDER_IDLE; /* it stays open for a while */
    if (me->nidle >= INTRUDER_IDLE && me->idle[at] >= 0) close(me->idle[at]);
    me->idle[at] = fd;
    me->nidle++;
}

static void attack_port(intruder *me, int at)
{
    static void (*const attacks[])(intruder *, int) = {
        noise,          control_bombs,   control_lengths, control_join,  mesh_greeting,
        shard_impostor, shard_malformed, shard_oversized, shard_endless, shard_half};
    const size_t on_shards = 5; /* the last ones need a ZeroMQ to talk to */
    me->now = at;
    for (size_t i = 0; i < sizeof attacks / sizeof *attacks && !me->is_stopping; i++) {
        if (i >= sizeof attacks / sizeof *attacks - on_shards && me->misses[at] >= MISSES) return;
        const int fd = dial(me, me->port[at]);
        if (fd < 0) return;
        attacks[i](me, fd);
        close(fd);
        me->report.attacks++;
    }
}

static void *campaign(void *user)
{
    intruder *me = user;
    while (!me->is_stopping) {
        look_round(me);
        keep_idle(me);
        for (int i = 0; i < me->nports && !me->is_stopping; i++)
            attack_port(me, i);
        for (int i = 0; i < me->nnames; i++)
            attack_name(me, me->name[i]);
        poll(NULL, 0, 1); /* the machine is not his alone */
    }
    return NULL;
}

intruder *intruder_start(const eni_token *token)
{
    intruder *me = calloc(1, sizeof *me);
    struct rlimit files;
    assert_non_null(me);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    pthread_mutex_init(&me->lock, NULL);
    me->random = 1;
    me->has_token = token != NULL;
    if (token != NULL) me->token = *token;
    assert_int_equal(pthread_create(&me->thread, NULL, campaign, me), 0);
    return me;
}

void intruder_add(intruder *me, pid_t victim)
{
    pthread_mutex_lock(&me->lock);
    assert_true(me->nvictims < INTRUDER_VICTIMS);
    me->resident[me->nvictims] = resident_of(victim);
    me->victim[me->nvictims++] = victim;
    pthread_mutex_unlock(&me->lock);
}

uint64_t intruder_attacks(intruder *me)
{
    return me->report.attacks;
}

intruder_report intruder_stop(intruder *me)
{
    me->is_stopping = 1;
    pthread_join(me->thread, NULL);
    for (int i = 0; i < INTRUDER_IDLE && i < me->nidle; i++)
        if (me->idle[i] >= 0) close(me->idle[i]);
    const intruder_report report = me->report;
    pthread_mutex_destroy(&me->lock);
    free(me);
    return report;
}
