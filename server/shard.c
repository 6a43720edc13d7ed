/* shard.c - a shard's thread and its lifetime.
 *
 * The thread waits for one thing (a message in a ring, a message at the socket, a timer, attention), handles
 * it and waits again; before it blocks it checks what has become durable. Other threads ask by
 * eni_shard_look, _leave, _set_epoch and _stop, which leave their request under the lock and call for
 * attention. */
#include "server/shard.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/slice.h"
#include "core/try.h"
#include "server/shard_impl.h"

/* ---- messages without a socket ------------------------------------------------------------------------- */

/* Messages by ring (client/shm_ring.h): a shard polls for them while there is traffic, and needs its doorbell
 * once it sleeps. */

enum {
    AT_ONCE = 64,     /* messages, before anything else gets its turn */
    LINGER_US = 1000, /* how long it polls after the last one */
    /* if a yield takes longer than this, polling takes the core from a thread that works */
    CROWDED_US = 50,
    SOCKET_EVERY = 32, /* polls of the rings between two of the socket */
    /* the longest that it blocks, in case a worker consumed a ring of the doorbell that was not for it */
    IDLE_MS = 1000
};

/* The memory belongs to `rank`, which showed the token when it handed it over, and sent HELLO. */
static bool is_believed(const eni_shard *shard, int32_t rank, const eni_header *h)
{
    return h->rank == rank && eni_shard_is_meant(shard, h) && shard->route[rank].bytes > 0 &&
           h->type != ENI_MSG_HELLO && (h->bytes == 0 || h->flags & ENI_FLAG_SHM);
}

static void refuse(eni_shard *shard, int32_t rank, const char *why)
{
    const eni_packet to = {.header = {.rank = rank}, .source = ENI_SHARD_RING};
    shard->figures.refusals.unknown++;
    eni_shard_refuse(shard, &to, EN_EPROTO, "invalid message posted by rank %d: %s", rank, why);
}

/* Takes one message of this rank. False if the ring is empty. */
static bool take_one(eni_shard *shard, int32_t rank)
{
    eni_packet packet = {.source = ENI_SHARD_RING};
    const char *why = "this rank may not send it";
    const en_status st =
        eni_shm_ring_take(eni_shard_ring(shard, rank), (uint32_t)shard->config.index, &packet.header, &why);
    if (st == EN_ETIMEOUT) return false;
    if (st == EN_OK && is_believed(shard, rank, &packet.header))
        eni_shard_handle(shard, &packet);
    else
        refuse(shard, rank, why);
    return true;
}

/* Handles messages that clients have posted to their rings, at most so many that sockets are not kept
 * waiting. Returns how many. */
static int poll_rings(eni_shard *shard)
{
    int n = 0, before;
    do {
        before = n;
        for (int32_t r = 0; r < shard->config.nranks && shard->status == EN_OK; r++) {
            eni_shm_ring *ring = eni_shard_ring(shard, r);
            if (ring == NULL) continue;
            eni_shm_ring_sleep(ring, (uint32_t)shard->config.index, 0);
            n += take_one(shard, r);
        }
    } while (n > before && n < AT_ONCE && shard->status == EN_OK);
    if (n > 0) shard->posted_ns = eni_now_ns();
    return n;
}

/* Announces that it sleeps, and looks once more. */
static bool fall_asleep(eni_shard *shard)
{
    bool is_asked = false;
    shard->posted_ns = 0;
    for (int32_t r = 0; r < shard->config.nranks; r++) {
        eni_shm_ring *ring = eni_shard_ring(shard, r);
        if (ring == NULL) continue;
        eni_shm_ring_sleep(ring, (uint32_t)shard->config.index, 1);
        is_asked |= eni_shm_ring_has_message(ring, (uint32_t)shard->config.index);
    }
    return !is_asked;
}

/* After that: how long to wait at the socket, in ms; 0: only look; -1: poll the rings again. Yields while
 * clients posted recently; after that a client that posts rings the doorbell. */
static int rest(eni_shard *shard, bool was_busy)
{
    if (was_busy || ++shard->nlooks % SOCKET_EVERY == 0) return 0; /* clients on other hosts get their turn */
    if (shard->posted_ns == 0) return fall_asleep(shard) ? IDLE_MS : -1;
    const int64_t begin = eni_now_ns();
    sched_yield();
    const int64_t end = eni_now_ns();
    shard->figures.wait_ns += end - begin;
    if (end - shard->posted_ns < LINGER_US * ENI_MICRO && end - begin < CROWDED_US * ENI_MICRO) return -1;
    return fall_asleep(shard) ? IDLE_MS : -1;
}

/* Clears its doorbell, which may have rung. */
static void wake_up(eni_shard *shard)
{
    uint64_t rings;
    const struct iovec to = {&rings, sizeof rings};
    const int fd = shard->doorbell_fd;
    /* O_NONBLOCK belongs to all that share the descriptor, and the workers do. */
    ssize_t n = 0;
    while (fd >= 0 && (n = preadv2(fd, &to, 1, -1, RWF_NOWAIT)) < 0 && errno == EINTR) {
    }
    if (n < 0 && errno != EAGAIN && poll(&(struct pollfd){fd, POLLIN, 0}, 1, 0) == 1) /* preadv2 is refused */
        (void)!read(fd, &rings, sizeof rings);
}

/* ---- the thread ---------------------------------------------------------------------------------------- */

/* The store may answer, so it is called without the lock. */
static void take_leavers(eni_shard *shard)
{
    for (int32_t r = 0; r < shard->config.nranks; r++) {
        pthread_mutex_lock(&shard->lock);
        const bool is_leaving = shard->asked.is_leaving[r];
        shard->asked.is_leaving[r] = false;
        pthread_mutex_unlock(&shard->lock);
        if (is_leaving) eni_shard_lose(shard, r);
    }
}

/* Serves requests of other threads. False: stop. */
static bool attend(eni_shard *shard)
{
    if (!atomic_exchange(&shard->attention, 0)) return true;
    take_leavers(shard);
    eni_router_count(shard->router, &shard->figures.wire);
    pthread_mutex_lock(&shard->lock);
    const bool is_stopping = shard->asked.is_stopping;
    if (shard->asked.next_epoch) {
        shard->config.epoch = shard->asked.next_epoch;
        shard->asked.next_epoch = 0;
        memset(shard->route, 0, (size_t)shard->config.nranks * sizeof *shard->route);
        pthread_cond_broadcast(&shard->done);
    }
    if (shard->asked.visit) {
        shard->asked.visit(shard->asked.visit_user, shard->store, &shard->figures);
        shard->asked.visit = NULL;
        pthread_cond_broadcast(&shard->done);
    }
    pthread_mutex_unlock(&shard->lock);
    return !is_stopping;
}

/* Arms the timer for the next delayed message or store timer. In nanoseconds, since poll's milliseconds would
 * make an emulated wire slower than specified. */
static void arm(eni_shard *shard)
{
    int64_t when = shard->timer_ns;
    if (shard->delays.n > 0 && shard->delays.list[shard->delays.n - 1].ready_ns < when)
        when = shard->delays.list[shard->delays.n - 1].ready_ns;
    if (when == INT64_MAX) return;
    if (when < 1) when = 1; /* 0 would disarm */
    const struct itimerspec at = {.it_value = {when / ENI_SECOND, when % ENI_SECOND}};
    timerfd_settime(shard->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

/* Empties a non-blocking timerfd or eventfd. */
static void drain(int fd)
{
    uint64_t count;
    while (read(fd, &count, sizeof count) < 0 && errno == EINTR) {
    }
}

/* Takes a message from the socket if one is there or arrives in time. Messages that the same client posted to
 * its ring before come first. */
static en_status serve_socket(eni_shard *shard, int timeout_ms)
{
    eni_packet packet = {0};
    if (timeout_ms > 0) arm(shard);
    const int64_t begin = eni_now_ns();
    const en_status st = eni_router_recv(shard->router, timeout_ms, shard->wake_fd, &packet);
    shard->figures.wait_ns += eni_now_ns() - begin;
    if (st == EN_EINTR) { /* or they would wake us forever */
        drain(shard->timer_fd);
        drain(shard->event_fd); /* the writer has set shard->attention before */
        wake_up(shard);
    }
    if (st != EN_OK) return st == EN_ETIMEOUT || st == EN_EINTR ? EN_OK : st;
    poll_rings(shard);
    if (shard->status == EN_OK)
        eni_shard_take(shard, &packet);
    else
        eni_packet_release(&packet);
    return shard->status;
}

/* Waits for one thing to do and does it. */
static en_status serve_once(eni_shard *shard)
{
    eni_shard_tend(shard); /* before blocking: a client may wait for what has become durable */
    const bool was_busy = poll_rings(shard) > 0;
    if (shard->status == EN_OK) {
        const int timeout_ms = rest(shard, was_busy);
        if (timeout_ms >= 0) EN_TRY(serve_socket(shard, timeout_ms));
    }
    const int64_t now = eni_now_ns();
    EN_TRY(shard->status);
    eni_shard_take_delayed(shard, now);
    EN_TRY(shard->status);
    eni_shard_tick(shard, now);
    return shard->status;
}

static void *run_shard(void *user)
{
    eni_shard *shard = user;
    en_status st = EN_OK;
    eni_slice_ask(1); /* workers wait for it, and compute on the same cores */
    eni_hook_thread_begin(shard->config.setup->store.hooks);
    while (st == EN_OK && attend(shard) && (st = shard->status) == EN_OK)
        st = serve_once(shard);
    eni_hook_thread_end(shard->config.setup->store.hooks);
    if (st == EN_OK) return NULL;
    char reason[ENI_REASON_MAX], why[ENI_REASON_MAX - 40];
    if (!eni_log_last_error(why, sizeof why)) snprintf(why, sizeof why, "%s", en_status_str(st));
    snprintf(reason, sizeof reason, "shard %d of psd cannot go on: %s", shard->config.index, why);
    shard->config.on_failure(shard->config.user, reason);
    return NULL;
}

/* ---- asking a shard ------------------------------------------------------------------------------------ */

/* Waits, under lock, until the thread has served the request. */
static en_status await_attention(eni_shard *shard)
{
    const struct timespec deadline = eni_timespec(eni_now_ns() + 5 * ENI_SECOND);
    int failed = 0;
    eni_shard_call_attention(shard);
    while ((shard->asked.visit || shard->asked.next_epoch) && failed == 0)
        failed = pthread_cond_clockwait(&shard->done, &shard->lock, CLOCK_MONOTONIC, &deadline);
    const bool was_done = shard->asked.visit == NULL && !shard->asked.next_epoch;
    shard->asked.visit = NULL;
    shard->asked.next_epoch = 0;
    if (was_done) return EN_OK;
    return eni_fail(EN_ETIMEOUT, "shard", "shard %d did not answer within 5 s", shard->config.index);
}

en_status eni_shard_look(eni_shard *shard, eni_shard_visit visit, void *user)
{
    pthread_mutex_lock(&shard->lock);
    shard->asked.visit = visit;
    shard->asked.visit_user = user;
    const en_status st = await_attention(shard);
    pthread_mutex_unlock(&shard->lock);
    return st;
}

en_status eni_shard_set_epoch(eni_shard *shard, uint32_t epoch)
{
    pthread_mutex_lock(&shard->lock);
    shard->asked.next_epoch = epoch;
    const en_status st = await_attention(shard);
    pthread_mutex_unlock(&shard->lock);
    return st;
}

void eni_shard_leave(eni_shard *shard, int32_t rank)
{
    if (rank < 0 || rank >= shard->config.nranks) return;
    pthread_mutex_lock(&shard->lock);
    shard->asked.is_leaving[rank] = true;
    eni_shard_call_attention(shard);
    pthread_mutex_unlock(&shard->lock);
}

/* ---- lifetime ------------------------------------------------------------------------------------------ */

static int watch(int epoll_fd, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

static en_status open_wake(eni_shard *shard)
{
    shard->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    shard->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    shard->wake_fd = epoll_create1(EPOLL_CLOEXEC);
    if (shard->event_fd >= 0 && shard->timer_fd >= 0 && shard->wake_fd >= 0 &&
        watch(shard->wake_fd, shard->event_fd) == 0 && watch(shard->wake_fd, shard->timer_fd) == 0 &&
        (shard->doorbell_fd < 0 || watch(shard->wake_fd, shard->doorbell_fd) == 0))
        return EN_OK;
    return eni_fail(EN_EIO, "shard", "cannot create the descriptors that wake shard %d: raise ulimit -n",
                    shard->config.index);
}

static en_status open_store(eni_shard *shard)
{
    const eni_shard_config *config = &shard->config;
    eni_store_config store = config->setup->store;
    store.shard = config->index;
    store.nshards = config->nshards;
    store.world = config->nranks;
    store.stream = (uint32_t)config->index;
    store.weights = config->weights ? config->weights->vector : NULL;
    store.old_ticket = eni_shard_old_ticket;
    return eni_store_new(&store, &shard->store);
}

static uint64_t largest_partition(const eni_shard *shard)
{
    uint64_t most = 0;
    for (uint32_t b = 0; b < shard->config.setup->store.nbuckets; b++)
        if (eni_store_count(shard->store, b) > most) most = eni_store_count(shard->store, b);
    return most * sizeof(float);
}

static void close_shard(eni_shard *shard)
{
    eni_shard_save_close(shard);
    for (uint32_t i = 0; i < shard->delays.n; i++)
        eni_packet_release(&shard->delays.list[i].packet);
    eni_store_free(shard->store); /* returns boxes, so before them */
    eni_store_actions_fini(&shard->actions);
    for (eni_box *box = shard->idle, *next; box; box = next) {
        next = box->next;
        eni_free(box);
    }
    (void)eni_arrivals_close(&shard->config.arrivals); /* logged; a file without its last line is not read */
    eni_copies_close(shard->kept.copies, false);
    eni_free(shard->kept.room);
    eni_router_close(shard->router);
    if (shard->wake_fd >= 0) close(shard->wake_fd);
    if (shard->timer_fd >= 0) close(shard->timer_fd);
    if (shard->event_fd >= 0) close(shard->event_fd);
    pthread_cond_destroy(&shard->done);
    pthread_mutex_destroy(&shard->lock);
    eni_free(shard->asked.is_leaving);
    eni_free(shard->delays.list);
    eni_free(shard->route);
    eni_free(shard);
}

en_status eni_shard_start(const eni_shard_config *config, eni_shard **shard_out, eni_address *bound_out)
{
    eni_shard *shard = eni_alloc(sizeof *shard);
    if (shard == NULL) return EN_ENOMEM;
    shard->config = *config;
    if (config->nfirst == 0) shard->config.nfirst = config->nranks;
    shard->handed = eni_arenas_handed_over(config->arenas);
    shard->doorbell_fd = eni_arenas_doorbell_fd(config->arenas, config->index);
    shard->timer_ns = INT64_MAX;
    shard->event_fd = shard->timer_fd = shard->wake_fd = -1;
    pthread_mutex_init(&shard->lock, NULL);
    pthread_cond_init(&shard->done, NULL);
    en_status st = EN_ENOMEM;
    bool was_loaded = false;
    shard->route = eni_alloc_array((size_t)config->nranks, sizeof *shard->route);
    shard->asked.is_leaving = eni_alloc_array((size_t)config->nranks, sizeof *shard->asked.is_leaving);
    if (shard->route == NULL || shard->asked.is_leaving == NULL) goto close_shard;
    EN_TRY_GOTO(open_wake(shard), close_shard);
    EN_TRY_GOTO(open_store(shard), close_shard);
    EN_TRY_GOTO(eni_shard_save_open(shard, &was_loaded), close_shard);
    EN_TRY_GOTO(eni_router_open(config->net, &config->listen, config->is_insecure, largest_partition(shard),
                                &shard->router, bound_out),
                close_shard);
    EN_TRY_GOTO(eni_router_guard(shard->router, (uint32_t)config->nown), close_shard);
    if (!was_loaded) eni_shard_join_all(shard);
    EN_TRY_GOTO(shard->status, close_shard);
    if (pthread_create(&shard->thread, NULL, run_shard, shard) != 0) {
        eni_error("shard", "cannot start the thread of shard %d", config->index);
        st = EN_EIO;
        goto close_shard;
    }
    *shard_out = shard;
    return EN_OK;

close_shard:
    close_shard(shard);
    return st;
}

void eni_shard_stop(eni_shard *shard)
{
    if (shard == NULL) return;
    pthread_mutex_lock(&shard->lock);
    shard->asked.is_stopping = true;
    eni_shard_call_attention(shard);
    pthread_mutex_unlock(&shard->lock);
    pthread_join(shard->thread, NULL);
    close_shard(shard);
}
