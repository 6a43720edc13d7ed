/* pump.c - the engine over TCP: the comm thread's life and sleep, and the calls of the compute thread.
 *
 * submit raises a number and wakes the thread. The thread lets traffic.c move whatever can move, looks at
 * who is alive, and sleeps in ppoll until a socket is ready, something is submitted or a frame of an emulated
 * network is due. wait sleeps on the flag of completed operations. */
#include "runtime/collective/pump.h"

#include <linux/sockios.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "core/turns.h"
#include "runtime/net/tcp.h"

#define LINGER_NS ENI_SECOND

/* ---- the thread ---- */

/* The bytes without which waking up is of no use: the rest of a payload. If it cannot be set, that costs
 * wakes. */
static void lowat_set(eni_stream *stream)
{
    enum { MOST = 256 << 10 };
    const size_t total = sizeof stream->rx + eni_frame_payload(&stream->rx);
    const size_t rest = stream->rx_data && stream->rx_hold_ns == 0 ? total - stream->rx_done : 1;
    const int want = rest < MOST ? (int)rest : MOST;
    if (want == stream->lowat) return;
    stream->lowat = want;
    setsockopt(stream->fd, SOL_SOCKET, SO_RCVLOWAT, &want, sizeof want);
}

/* What to wait for, and until when. */
static int64_t polls_fill(eni_coll *coll)
{
    eni_pump *p = coll->state;
    int64_t until_ns = p->oldest < p->nstarted ? eni_now_ns() + ENI_ALIVE_SLICE_MS * ENI_MILLI : INT64_MAX;
    p->polls[0] = (struct pollfd){.fd = p->wake_fd, .events = POLLIN};
    p->polls[1] =
        (struct pollfd){.fd = p->oldest < p->nstarted ? coll->config.alive.fd : -1, .events = POLLIN};
    for (int r = 0; r < coll->config.nranks; r++) {
        eni_stream *stream = &p->streams[r];
        if (stream->fd >= 0) lowat_set(stream);
        const int is_held = stream->rx_hold_ns > 0;
        const int is_stalled = !stream->rx_data && stream->rx_done == sizeof stream->rx;
        const short events =
            (short)((is_held || is_stalled ? 0 : POLLIN) | (stream->is_sending ? POLLOUT : 0));
        p->polls[2 + r] = (struct pollfd){.fd = events ? stream->fd : -1, .events = events};
        if (is_held && stream->rx_hold_ns < until_ns) until_ns = stream->rx_hold_ns;
    }
    return until_ns;
}

static void pump_sleep(eni_coll *coll)
{
    eni_pump *p = coll->state;
    const int64_t until_ns = polls_fill(coll);
    int64_t left_ns = until_ns - eni_now_ns();
    if (left_ns < 0) left_ns = 0;
    const struct timespec left = {(time_t)(left_ns / ENI_SECOND), (long)(left_ns % ENI_SECOND)};
    ppoll(p->polls, (nfds_t)coll->config.nranks + 2, until_ns == INT64_MAX ? NULL : &left, NULL);
    uint64_t count;
    if (p->polls[0].revents && read(p->wake_fd, &count, sizeof count) < 0) return; /* somebody else's wake */
}

/* The end in good order: what we sent must be with the peer's kernel, and what it sent must be read, or our
 * close would be a reset that can overtake our last frames. */
static void stream_linger(const eni_stream *stream, int64_t deadline_ns)
{
    enum { LOOK_MS = 2 };
    struct pollfd end = {.fd = stream->fd, .events = POLLIN};
    char drain[4096];
    int unacknowledged = 1;
    shutdown(stream->fd, SHUT_WR);
    while (unacknowledged > 0 && eni_now_ns() < deadline_ns) {
        if (poll(&end, 1, LOOK_MS) > 0 && recv(stream->fd, drain, sizeof drain, MSG_DONTWAIT) <= 0) return;
        if (ioctl(stream->fd, SIOCOUTQ, &unacknowledged) != 0) return;
    }
}

static void pump_linger(eni_coll *coll)
{
    eni_pump *p = coll->state;
    const int64_t deadline_ns = eni_now_ns() + LINGER_NS;
    for (int r = 0; r < coll->config.nranks; r++)
        if (p->streams[r].fd >= 0) stream_linger(&p->streams[r], deadline_ns);
}

static void *pump_main(void *argument)
{
    eni_coll *coll = argument;
    eni_pump *p = coll->state;
    en_status st = EN_OK;
    eni_turns_ask(1); /* every core may be computing */
    while (st == EN_OK && !atomic_load(&p->is_stopping)) {
        st = eni_traffic_advance(coll);
        if (st == EN_OK && p->oldest < p->nstarted) st = eni_alive_status(&coll->config.alive);
        if (st == EN_OK) pump_sleep(coll);
    }
    if (st == EN_OK) {
        pump_linger(coll);
        return NULL;
    }
    const en_status word = eni_alive_status(&coll->config.alive);
    eni_group_fail(coll, st == EN_EPEER && word != EN_OK ? word : st);
    eni_flag_set(&p->completed, ENI_PUMP_FAILED);
    for (int r = 0; r < coll->config.nranks; r++) /* so that the neighbours do not wait for us */
        if (p->streams[r].fd >= 0) shutdown(p->streams[r].fd, SHUT_RDWR);
    return NULL;
}

static en_status thread_start(eni_coll *coll)
{
    eni_pump *p = coll->state;
    sigset_t all, before;
    sigfillset(&all); /* signals are for the main thread */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&p->thread, NULL, pump_main, coll);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        eni_error("coll", "cannot start the comm thread: %s", strerror(error));
        return EN_ENOMEM;
    }
    p->is_started = 1;
    return EN_OK;
}

/* ---- the engine ---- */

static en_status pump_alloc(eni_coll *coll)
{
    const eni_coll_config *config = &coll->config;
    const size_t n = (size_t)config->nranks;
    eni_pump *p = eni_alloc(sizeof *p);
    if (!p) return EN_ENOMEM;
    coll->state = p;
    p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    p->flights = eni_alloc_array(ENI_COLL_DEPTH, sizeof *p->flights);
    p->streams = eni_alloc_array(n, sizeof *p->streams);
    p->polls = eni_alloc_array(n + 2, sizeof *p->polls);
    p->chunks = eni_alloc_array(ENI_COLL_DEPTH * n, sizeof *p->chunks);
    p->hops = eni_alloc_array(ENI_COLL_DEPTH * n * 2, sizeof *p->hops);
    p->legs = eni_alloc_array(ENI_COLL_DEPTH * n * 2, sizeof *p->legs);
    p->segment = eni_alloc_array(config->segment, sizeof(float));
    if (config->algorithm == ENI_COLL_NAIVE)
        p->scratch = eni_alloc_array(n, eni_round_up(config->max_count, ENI_LINE_FLOATS) * sizeof(float));
    const int has_scratch = config->algorithm != ENI_COLL_NAIVE || p->scratch;
    if (p->wake_fd < 0 || !p->flights || !p->streams || !p->polls || !p->chunks || !p->hops || !p->legs ||
        !p->segment || !has_scratch) {
        eni_error("coll", "no memory for the operations of %zu ranks", n);
        return EN_ENOMEM;
    }
    return EN_OK;
}

static en_status pump_open(eni_coll *coll)
{
    const int n = coll->config.nranks;
    EN_TRY(pump_alloc(coll));
    eni_pump *p = coll->state;
    for (int i = 0; i < ENI_COLL_DEPTH; i++) {
        p->flights[i].chunks = p->chunks + (size_t)i * (size_t)n;
        p->flights[i].hops = p->hops + (size_t)i * 2 * (size_t)n;
        p->flights[i].out = p->legs + (size_t)i * 2 * (size_t)n;
        p->flights[i].in = p->flights[i].out + n;
    }
    for (int r = 0; r < n; r++) {
        const int fd = r == coll->config.rank ? -1 : coll->config.sockets[r];
        p->streams[r].fd = fd;
        p->streams[r].peer = fd < 0 ? -1 : r;
        p->streams[r].has_crc = fd >= 0 && (coll->config.has_crc || !eni_tcp_is_local(fd));
        p->streams[r].scratch = p->segment; /* only the ring's left neighbour uses it */
    }
    coll->config.sockets = NULL; /* the caller's array */
    return thread_start(coll);
}

/* Whether there is a connection to everybody that this operation talks to. */
static en_status streams_check(const eni_coll *coll, const eni_coll_op *op)
{
    const eni_pump *p = coll->state;
    const int n = coll->config.nranks, rank = coll->config.rank;
    const int is_sendrecv = op->op == ENI_COLL_SENDRECV, is_ring = coll->config.algorithm == ENI_COLL_RING;
    for (int r = 0; r < n; r++) {
        const int is_partner = is_sendrecv ? r == op->to || r == op->from
                               : is_ring   ? r == (rank + 1) % n || r == (rank + n - 1) % n
                                           : 1;
        if (r == rank || !is_partner || p->streams[r].peer == r) continue;
        eni_error("coll", "rank %d has no connection to rank %d, which the %s of bucket %u needs", rank, r,
                  eni_group_op_name(op->op), op->bucket);
        return EN_EUNSUPPORTED;
    }
    return EN_OK;
}

static en_status pump_submit(eni_coll *coll, uint64_t seq)
{
    eni_pump *p = coll->state;
    EN_TRY(streams_check(coll, eni_group_op(coll, seq)));
    atomic_store_explicit(&p->submitted, seq + 1, memory_order_release);
    eventfd_write(p->wake_fd, 1);
    return EN_OK;
}

static int pump_test(eni_coll *coll, uint64_t seq)
{
    const eni_pump *p = coll->state;
    const uint64_t completed = eni_flag_get(&p->completed);
    return completed != ENI_PUMP_FAILED && completed > seq;
}

static en_status pump_wait(eni_coll *coll, uint64_t seq)
{
    eni_pump *p = coll->state;
    const eni_alive forever = {.fd = -1}; /* the comm thread watches the peers, and says ENI_PUMP_FAILED */
    EN_TRY(eni_flag_await(&p->completed, seq + 1, 0, &forever));
    return eni_group_status(coll);
}

static void pump_close(eni_coll *coll)
{
    eni_pump *p = coll->state;
    if (!p) return;
    if (p->is_started) {
        atomic_store(&p->is_stopping, 1);
        eventfd_write(p->wake_fd, 1);
        pthread_join(p->thread, NULL);
    }
    for (int r = 0; p->streams && p->is_started && r < coll->config.nranks; r++)
        if (p->streams[r].fd >= 0) close(p->streams[r].fd);
    if (p->wake_fd >= 0) close(p->wake_fd);
    eni_free(p->flights);
    eni_free(p->streams);
    eni_free(p->polls);
    eni_free(p->chunks);
    eni_free(p->hops);
    eni_free(p->legs);
    eni_free(p->segment);
    eni_free(p->scratch);
    eni_free(p);
}

const eni_engine eni_pump_engine = {pump_open, pump_submit, pump_test, pump_wait, pump_close};
