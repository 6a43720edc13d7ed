/* lane.c - a lane's thread and its life.
 *
 * The thread waits for one thing (a message in a ring, a message at the socket, a timer, attention), does it and waits
 * again; before it blocks it looks at what has become durable. Other threads ask by eni_lane_look, _leave,
 * _set_epoch and _stop, which leave their wish under the lock and call for attention. */
#include "server/lane.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "core/turns.h"
#include "server/lane_save.h"

/* ---- the thread ---------------------------------------------------------------------------------------- */

/* The store may answer to this, so it hears of it without the lock. */
static void take_leavers(eni_lane *lane)
{
    for (int32_t r = 0; r < lane->config.nranks; r++) {
        pthread_mutex_lock(&lane->lock);
        const int is_leaving = lane->is_leaving[r];
        lane->is_leaving[r] = 0;
        pthread_mutex_unlock(&lane->lock);
        if (is_leaving) eni_lane_lose(lane, r);
    }
}

/* Looks at what other threads ask for. 0: to stop. */
static int attend(eni_lane *lane)
{
    if (!atomic_exchange(&lane->attention, 0)) return 1;
    take_leavers(lane);
    eni_router_count(lane->router, &lane->figures.wire);
    pthread_mutex_lock(&lane->lock);
    const int is_stopping = lane->is_stopping;
    if (lane->next_epoch) {
        lane->config.epoch = lane->next_epoch;
        lane->next_epoch = 0;
        memset(lane->route, 0, (size_t)lane->config.nranks * sizeof *lane->route);
        pthread_cond_broadcast(&lane->done);
    }
    if (lane->visit) {
        lane->visit(lane->visit_user, lane->store, &lane->figures);
        lane->visit = NULL;
        pthread_cond_broadcast(&lane->done);
    }
    pthread_mutex_unlock(&lane->lock);
    return !is_stopping;
}

/* Arms the timer for the next late message or store timer. Nanoseconds count: poll's milliseconds would
 * make an emulated wire slower than it says. */
static void arm(eni_lane *lane)
{
    int64_t when = lane->timer_ns;
    if (lane->nlate > 0 && lane->late[lane->nlate - 1].ready_ns < when)
        when = lane->late[lane->nlate - 1].ready_ns;
    if (when == INT64_MAX) return;
    if (when < 1) when = 1; /* 0 would disarm */
    const struct itimerspec at = {.it_value = {when / ENI_SECOND, when % ENI_SECOND}};
    timerfd_settime(lane->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

/* Empties a non-blocking timerfd or eventfd. */
static void drain(int fd)
{
    uint64_t count;
    while (read(fd, &count, sizeof count) < 0 && errno == EINTR) {
    }
}

/* Takes a message from the socket if one is there or comes in time. What the same client has posted to its ring
 * before it sent this comes first. */
static en_status serve_socket(eni_lane *lane, int timeout_ms)
{
    eni_packet packet = {0};
    if (timeout_ms > 0) arm(lane);
    const int64_t begin = eni_now_ns();
    const en_status st = eni_router_recv(lane->router, timeout_ms, lane->wake_fd, &packet);
    lane->figures.wait_ns += eni_now_ns() - begin;
    if (st == EN_EINTR) { /* or they would wake us for ever */
        drain(lane->timer_fd);
        drain(lane->event_fd); /* whoever wrote has set lane->attention before */
        eni_lane_wake_up(lane);
    }
    if (st != EN_OK) return st == EN_ETIMEOUT || st == EN_EINTR ? EN_OK : st;
    eni_lane_poll_ring(lane);
    if (lane->status == EN_OK)
        eni_lane_take(lane, &packet);
    else
        eni_packet_release(&packet);
    return lane->status;
}

/* Waits for one thing to do and does it. */
static en_status serve_once(eni_lane *lane)
{
    eni_lane_save_tend(lane); /* before we block: what has become durable may be waited for */
    const int was_busy = eni_lane_poll_ring(lane) > 0;
    if (lane->status == EN_OK) {
        const int timeout_ms = eni_lane_rest(lane, was_busy);
        if (timeout_ms >= 0) EN_TRY(serve_socket(lane, timeout_ms));
    }
    const int64_t now = eni_now_ns();
    EN_TRY(lane->status);
    eni_lane_take_late(lane, now);
    EN_TRY(lane->status);
    eni_lane_tick(lane, now);
    return lane->status;
}

static void *run_lane(void *user)
{
    eni_lane *lane = user;
    en_status st = EN_OK;
    eni_turns_ask(1); /* workers wait for it, and compute on the same cores */
    while (st == EN_OK && attend(lane) && (st = lane->status) == EN_OK)
        st = serve_once(lane);
    if (st == EN_OK) return NULL;
    char reason[ENI_REASON_MAX];
    snprintf(reason, sizeof reason, "shard %d of psd cannot go on: %s", lane->config.shard,
             en_status_str(st));
    lane->config.on_failure(lane->config.user, reason);
    return NULL;
}

/* ---- asking a lane ------------------------------------------------------------------------------------- */

/* Under lock: until the thread has done what was asked. */
static en_status await_attention(eni_lane *lane)
{
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += 5;
    int failed = 0;
    eni_lane_call_attention(lane);
    while ((lane->visit || lane->next_epoch) && failed == 0)
        failed = pthread_cond_timedwait(&lane->done, &lane->lock, &deadline);
    const int was_done = !lane->visit && !lane->next_epoch;
    lane->visit = NULL;
    lane->next_epoch = 0;
    if (was_done) return EN_OK;
    eni_error("lane", "shard %d did not answer within 5 s", lane->config.shard);
    return EN_ETIMEOUT;
}

en_status eni_lane_look(eni_lane *lane, eni_lane_visit visit, void *user)
{
    pthread_mutex_lock(&lane->lock);
    lane->visit = visit;
    lane->visit_user = user;
    const en_status st = await_attention(lane);
    pthread_mutex_unlock(&lane->lock);
    return st;
}

en_status eni_lane_set_epoch(eni_lane *lane, uint32_t epoch)
{
    pthread_mutex_lock(&lane->lock);
    lane->next_epoch = epoch;
    const en_status st = await_attention(lane);
    pthread_mutex_unlock(&lane->lock);
    return st;
}

void eni_lane_leave(eni_lane *lane, int32_t rank)
{
    if (rank < 0 || rank >= lane->config.nranks) return;
    pthread_mutex_lock(&lane->lock);
    lane->is_leaving[rank] = 1;
    eni_lane_call_attention(lane);
    pthread_mutex_unlock(&lane->lock);
}

/* ---- life ---------------------------------------------------------------------------------------------- */

static int watch(int epoll_fd, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

static en_status open_wake(eni_lane *lane)
{
    lane->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    lane->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    lane->wake_fd = epoll_create1(EPOLL_CLOEXEC);
    const int doorbell_fd = eni_arenas_doorbell_fd(lane->config.arenas, lane->config.shard);
    if (lane->event_fd >= 0 && lane->timer_fd >= 0 && lane->wake_fd >= 0 &&
        watch(lane->wake_fd, lane->event_fd) == 0 && watch(lane->wake_fd, lane->timer_fd) == 0 &&
        (doorbell_fd < 0 || watch(lane->wake_fd, doorbell_fd) == 0))
        return EN_OK;
    eni_error("lane", "cannot make the descriptors that wake shard %d: is the limit of open files too low?",
              lane->config.shard);
    return EN_EIO;
}

static en_status open_store(eni_lane *lane)
{
    const eni_lane_config *config = &lane->config;
    const eni_setup *setup = config->setup;
    const eni_store_config store = {
        .strategy = config->strategy,
        .options = setup->options,
        .optimizer = setup->optimizer,
        .hyper = setup->hyper,
        .schedule = setup->schedule,
        .sum_order = setup->sum_order,
        .nbuckets = setup->nbuckets,
        .bucket_counts = setup->counts,
        .shard = config->shard,
        .nshards = config->nshards,
        .world = config->nranks,
        .seed = setup->seed,
        .stream = (uint32_t)config->shard,
        .weights = config->weights ? eni_weights_vector(config->weights) : NULL,
        .weight_offsets = setup->offsets,
        .old_ticket = eni_lane_old_ticket,
    };
    return eni_store_new(&store, &lane->store);
}

static uint64_t largest_cell(const eni_lane *lane)
{
    uint64_t most = 0;
    for (uint32_t b = 0; b < lane->config.setup->nbuckets; b++)
        if (eni_store_count(lane->store, b) > most) most = eni_store_count(lane->store, b);
    return most * sizeof(float);
}

static void open_lock(eni_lane *lane)
{
    pthread_condattr_t clock;
    pthread_mutex_init(&lane->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&lane->done, &clock);
    pthread_condattr_destroy(&clock);
}

static void close_lane(eni_lane *lane)
{
    eni_lane_save_close(lane);
    for (uint32_t i = 0; i < lane->nlate; i++)
        eni_packet_release(&lane->late[i].packet);
    eni_store_free(lane->store); /* gives boxes back, so before them */
    eni_store_actions_fini(&lane->actions);
    for (eni_box *box = lane->idle, *next; box; box = next) {
        next = box->next;
        eni_free(box);
    }
    eni_router_close(lane->router);
    if (lane->wake_fd >= 0) close(lane->wake_fd);
    if (lane->timer_fd >= 0) close(lane->timer_fd);
    if (lane->event_fd >= 0) close(lane->event_fd);
    pthread_cond_destroy(&lane->done);
    pthread_mutex_destroy(&lane->lock);
    eni_free(lane->is_leaving);
    free(lane->late);
    eni_free(lane->route);
    eni_free(lane);
}

en_status eni_lane_start(const eni_lane_config *config, eni_lane **lane_out, eni_address *bound_out)
{
    eni_lane *lane = eni_alloc(sizeof *lane);
    if (!lane) return EN_ENOMEM;
    lane->config = *config;
    lane->timer_ns = INT64_MAX;
    lane->event_fd = lane->timer_fd = lane->wake_fd = -1;
    open_lock(lane);
    en_status st = EN_ENOMEM;
    int was_loaded = 0;
    lane->route = eni_alloc_array((size_t)config->nranks, sizeof *lane->route);
    lane->is_leaving = eni_alloc_array((size_t)config->nranks, sizeof *lane->is_leaving);
    if (!lane->route || !lane->is_leaving) goto close_lane;
    EN_TRY_GOTO(open_wake(lane), close_lane);
    EN_TRY_GOTO(open_store(lane), close_lane);
    EN_TRY_GOTO(eni_lane_save_open(lane, &was_loaded), close_lane);
    EN_TRY_GOTO(eni_router_open(config->net, &config->listen, config->is_insecure, largest_cell(lane),
                                &lane->router, bound_out),
                close_lane);
    EN_TRY_GOTO(eni_router_guard(lane->router), close_lane);
    if (!was_loaded) eni_lane_join_all(lane);
    EN_TRY_GOTO(lane->status, close_lane);
    if (pthread_create(&lane->thread, NULL, run_lane, lane) != 0) {
        eni_error("lane", "cannot start the thread of shard %d", config->shard);
        st = EN_EIO;
        goto close_lane;
    }
    *lane_out = lane;
    return EN_OK;

close_lane:
    close_lane(lane);
    return st;
}

void eni_lane_stop(eni_lane *lane)
{
    if (!lane) return;
    pthread_mutex_lock(&lane->lock);
    lane->is_stopping = 1;
    eni_lane_call_attention(lane);
    pthread_mutex_unlock(&lane->lock);
    pthread_join(lane->thread, NULL);
    close_lane(lane);
}
