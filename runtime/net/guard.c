/* guard.c - see guard.h.
 *
 * ZeroMQ reports the descriptor of a connection (monitor event ACCEPTED), but may close it at any time, and
 * the number may then mean another one. So we hold a duplicate, and know a connection by its inode. */
#include "runtime/net/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <linux/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"
#include "runtime/net/tcp.h"

enum {
    TICK_MS = 5,
    ADMITTED_MAX = 256,
    LEAST = 4,      /* pending connections, however few descriptors there are */
    ESTABLISHED = 1 /* the state of tcp(7), which linux/tcp.h does not name */
};

typedef struct newcomer {
    int fd; /* a duplicate */
    uint64_t inode;
    int64_t until_ns;
} newcomer;

struct eni_guard {
    void *router, *events;
    pthread_t thread;
    pthread_mutex_t lock; /* of the next four */
    newcomer newcomers[ENI_GUARD_MAX];
    uint32_t n, most;
    uint64_t admitted[ADMITTED_MAX]; /* inodes, the latest: their ACCEPTED may come after their HELLO */
    uint64_t nadmitted;
    atomic_uint_fast64_t evicted;
    eni_log_limit limit;
};

static uint64_t inode_of(int fd)
{
    struct stat about;
    return fd >= 0 && fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode) ? (uint64_t)about.st_ino : 0;
}

/* ---- under lock ---- */

static void forget(eni_guard *guard, uint32_t at)
{
    close(guard->newcomers[at].fd);
    guard->n--;
    memmove(&guard->newcomers[at], &guard->newcomers[at + 1], (guard->n - at) * sizeof guard->newcomers[0]);
}

static void evict(eni_guard *guard, uint32_t at, const char *why)
{
    atomic_fetch_add(&guard->evicted, 1); /* before the peer can see it */
    shutdown(guard->newcomers[at].fd, SHUT_RDWR);
    forget(guard, at);
    eni_log_every(&guard->limit, ENI_LOG_WARN, "guard", "closed a connection that %s without the job token",
                  why);
}

/* The index of a connection; n if it is not among them. */
static uint32_t find(const eni_guard *guard, uint64_t inode)
{
    uint32_t i = 0;
    while (i < guard->n && guard->newcomers[i].inode != inode)
        i++;
    return i;
}

static bool is_admitted(const eni_guard *guard, uint64_t inode)
{
    for (uint64_t i = 0; i < ADMITTED_MAX && i < guard->nadmitted; i++)
        if (guard->admitted[i] == inode) return true;
    return false;
}

/* Ends what has run out of time or bytes, and forgets connections that have ended. */
static void look_round(eni_guard *guard)
{
    const int64_t now_ns = eni_now_ns();
    for (uint32_t i = 0; i < guard->n;) {
        struct tcp_info info = {0};
        socklen_t bytes = sizeof info;
        const int fd = guard->newcomers[i].fd;
        const bool is_known = getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0;
        if (!is_known || info.tcpi_state != ESTABLISHED)
            forget(guard, i);
        else if (info.tcpi_bytes_received > ENI_GUARD_BYTES)
            evict(guard, i, "sent more than 4096 bytes");
        else if (now_ns >= guard->newcomers[i].until_ns)
            evict(guard, i, "stayed for 5 s");
        else
            i++;
    }
}

/* Whether a connection was made to the port of this endpoint. */
static bool came_to(int fd, const char *endpoint)
{
    const char *port = strrchr(endpoint, ':');
    const uint16_t own = eni_tcp_port(fd);
    return port != NULL && own != 0 && own == strtoul(port + 1, NULL, 10);
}

/* The descriptor may by now belong to a later connection: of this shard, then reported twice, or of another
 * part of this process, which is ignored. */
static void take_in(eni_guard *guard, int fd, const char *endpoint)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    while (copy < 0 && errno == EMFILE && guard->n > 0) {
        evict(guard, 0, "sent nothing while descriptors ran out");
        copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    }
    const uint64_t inode = inode_of(copy);
    if (inode == 0 || is_admitted(guard, inode) || find(guard, inode) < guard->n ||
        !came_to(copy, endpoint)) {
        if (copy >= 0) close(copy);
        return;
    }
    if (guard->n == guard->most) evict(guard, 0, "sent nothing while others connected");
    guard->newcomers[guard->n++] = (newcomer){copy, inode, eni_now_ns() + ENI_GUARD_TIMEOUT_NS};
}

/* ---- the thread ---- */

/* One event: [16 bits number, 32 bits value] [endpoint]. False: the last one. */
static bool take_event(eni_guard *guard)
{
    uint8_t head[6] = {0};
    char endpoint[256] = "";
    uint16_t event;
    int32_t value;
    while (zmq_recv(guard->events, head, sizeof head, ZMQ_DONTWAIT) < 0)
        if (errno != EINTR) return errno == EAGAIN;
    while (zmq_recv(guard->events, endpoint, sizeof endpoint - 1, 0) < 0)
        if (errno != EINTR) return false;
    memcpy(&event, head, sizeof event);
    memcpy(&value, head + 2, sizeof value);
    if (event == ZMQ_EVENT_MONITOR_STOPPED) return false;
    pthread_mutex_lock(&guard->lock);
    take_in(guard, value, endpoint);
    pthread_mutex_unlock(&guard->lock);
    return true;
}

static void *watch(void *user)
{
    eni_guard *guard = user;
    for (bool goes_on = true; goes_on;) {
        pthread_mutex_lock(&guard->lock);
        look_round(guard);
        const long wait_ms = guard->n > 0 ? TICK_MS : -1;
        pthread_mutex_unlock(&guard->lock);
        zmq_pollitem_t item = {guard->events, 0, ZMQ_POLLIN, 0};
        const int rc = zmq_poll(&item, 1, wait_ms);
        if (rc < 0 && errno != EINTR) return NULL;
        if (rc > 0) goes_on = take_event(guard);
    }
    return NULL;
}

/* Each takes a descriptor of ZeroMQ's and a duplicate. All routers together use at most a quarter of the
 * limit, which leaves room for files and members. */
static uint32_t most_of(uint32_t nrouters)
{
    struct rlimit files = {.rlim_cur = RLIM_INFINITY};
    (void)getrlimit(RLIMIT_NOFILE, &files);
    const uint64_t share = (uint64_t)files.rlim_cur / 8 / (nrouters > 0 ? nrouters : 1);
    return share < LEAST ? LEAST : share < ENI_GUARD_MAX ? (uint32_t)share : ENI_GUARD_MAX;
}

en_status eni_guard_start(void *context, void *router, uint32_t nrouters, eni_guard **guard_out)
{
    eni_guard *guard = eni_alloc(sizeof *guard);
    char name[64];
    if (guard == NULL) return EN_ENOMEM;
    guard->router = router;
    guard->most = most_of(nrouters);
    pthread_mutex_init(&guard->lock, NULL);
    snprintf(name, sizeof name, "inproc://guard-%p", (void *)guard);
    guard->events = zmq_socket(context, ZMQ_PAIR);
    if (guard->events == NULL ||
        zmq_socket_monitor(router, name, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_MONITOR_STOPPED) != 0 ||
        zmq_connect(guard->events, name) != 0) {
        eni_error("guard", "cannot watch a shard's connections: %s", zmq_strerror(errno));
        goto free_guard;
    }
    const int error = eni_thread_start(&guard->thread, watch, guard);
    if (error == 0) {
        *guard_out = guard;
        return EN_OK;
    }
    eni_error("guard", "cannot start the thread that watches a shard's connections: %s", strerror(error));
    zmq_socket_monitor(router, NULL, 0);
free_guard:
    if (guard->events != NULL) zmq_close(guard->events);
    pthread_mutex_destroy(&guard->lock);
    eni_free(guard);
    return EN_EIO;
}

void eni_guard_admit(eni_guard *guard, int fd)
{
    const uint64_t inode = inode_of(fd);
    if (inode == 0) return;
    pthread_mutex_lock(&guard->lock);
    guard->admitted[guard->nadmitted++ % ADMITTED_MAX] = inode;
    const uint32_t at = find(guard, inode);
    if (at < guard->n) forget(guard, at);
    pthread_mutex_unlock(&guard->lock);
}

uint64_t eni_guard_evicted(const eni_guard *guard)
{
    return atomic_load(&guard->evicted);
}

void eni_guard_stop(eni_guard *guard)
{
    if (guard == NULL) return;
    zmq_socket_monitor(guard->router, NULL, 0); /* the thread's last event */
    pthread_join(guard->thread, NULL);
    while (guard->n > 0)
        forget(guard, 0);
    zmq_close(guard->events);
    pthread_mutex_destroy(&guard->lock);
    eni_free(guard);
}
