/* limits_message.c - limits of messages: bare ZeroMQ over TCP on loopback, with the frames of a push-pull and
 * without sums, checks or copies of ours. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "bench/limits.h"
#include "core/clock.h"
#include "core/memory.h"

enum {
    HEADER_BYTES = 100, /* about the wire size of a push's header */
    FRAME_BYTES = 1 << 20,
    TIMEOUT_MS = 20000
};

typedef struct channel {
    void *context, *socket;
} channel;

static int complain(const char *what)
{
    fprintf(stderr, "bench_limits: %s: %s\n", what, zmq_strerror(errno));
    return 1;
}

/* A socket whose waits have a limit. */
static int channel_open(int type, channel *c)
{
    const int none = 0, patience = TIMEOUT_MS;
    eni_memory_keep(); /* as psd and its workers do: no page faults for the blocks of messages */
    c->context = zmq_ctx_new();
    c->socket = c->context ? zmq_socket(c->context, type) : NULL;
    if (!c->socket) return complain("zmq_socket");
    zmq_setsockopt(c->socket, ZMQ_SNDHWM, &none, sizeof none);
    zmq_setsockopt(c->socket, ZMQ_RCVHWM, &none, sizeof none);
    zmq_setsockopt(c->socket, ZMQ_RCVTIMEO, &patience, sizeof patience);
    return 0;
}

/* Sends queued messages first: the last answer must reach its DEALER. */
static void channel_close(channel *c)
{
    zmq_close(c->socket);
    zmq_ctx_term(c->context);
}

static int bind_router(const limit_trial *t, channel *c)
{
    size_t bytes = sizeof t->board->endpoint;
    if (channel_open(ZMQ_ROUTER, c)) return 1;
    if (zmq_bind(c->socket, "tcp://127.0.0.1:*") != 0) return complain("zmq_bind");
    if (zmq_getsockopt(c->socket, ZMQ_LAST_ENDPOINT, t->board->endpoint, &bytes) != 0)
        return complain("zmq_getsockopt");
    atomic_store_explicit(&t->board->is_bound, 1, memory_order_release);
    return 0;
}

static int connect_dealer(const limit_trial *t, channel *c)
{
    const int64_t deadline_ns = eni_now_ns() + TIMEOUT_MS * ENI_MILLI;
    while (!atomic_load_explicit(&t->board->is_bound, memory_order_acquire)) {
        if (eni_now_ns() > deadline_ns) {
            fputs("bench_limits: the ROUTER does not listen\n", stderr);
            return 1;
        }
        eni_sleep_until(eni_now_ns() + ENI_MILLI);
    }
    if (channel_open(ZMQ_DEALER, c)) return 1;
    return zmq_connect(c->socket, t->board->endpoint) == 0 ? 0 : complain("zmq_connect");
}

/* ---- frames ---- */

static int send_copy(channel *c, const void *data, size_t bytes, int flags)
{
    return zmq_send(c->socket, data, bytes, flags) >= 0 ? 0 : complain("zmq_send");
}

/* Without a copy: `data` is not changed. */
static int send_in_place(channel *c, void *data, size_t bytes, int flags)
{
    zmq_msg_t message;
    if (zmq_msg_init_data(&message, data, bytes, NULL, NULL) != 0) return complain("zmq_msg_init_data");
    return zmq_msg_send(&message, c->socket, flags) >= 0 ? 0 : complain("zmq_msg_send");
}

static int receive(channel *c, zmq_msg_t *message)
{
    zmq_msg_init(message);
    return zmq_msg_recv(message, c->socket, 0) >= 0 ? 0 : complain("zmq_msg_recv");
}

static int drop(channel *c)
{
    zmq_msg_t message;
    if (receive(c, &message)) return 1;
    zmq_msg_close(&message);
    return 0;
}

/* The number of frames of at most 1 MB for the vector. */
static size_t frames_of(const limit_trial *t)
{
    return (t->bytes + FRAME_BYTES - 1) / FRAME_BYTES;
}

/* Where a frame begins: all are of about the same size, as the buckets of a push. */
static size_t frame_at(const limit_trial *t, size_t frame)
{
    return t->bytes / 64 * frame / frames_of(t) * 64;
}

/* ---- the DEALERs ---- */

/* Sends header and payload of every frame of the vector at once, then receives the answers. */
static int exchange(const limit_trial *t, channel *c, char *vector)
{
    static const char header[HEADER_BYTES];
    const size_t n = frames_of(t);
    for (size_t i = 0; i < n; i++) {
        const size_t lo = frame_at(t, i), hi = i + 1 < n ? frame_at(t, i + 1) : t->bytes;
        if (send_copy(c, header, sizeof header, ZMQ_SNDMORE) || send_in_place(c, vector + lo, hi - lo, 0))
            return 1;
    }
    for (size_t i = 0; i < 2 * n; i++)
        if (drop(c)) return 1;
    return 0;
}

static int dealer_main(const limit_trial *t, int rank)
{
    channel c;
    char *vector = limit_memory(t->bytes);
    if (!vector || connect_dealer(t, &c)) return 1;
    for (int i = -t->warmup; i < t->rounds; i++) {
        const int64_t begin_ns = eni_now_ns();
        if (exchange(t, &c, vector)) return 1;
        if (i >= 0) t->board->times[i][rank] = eni_now_ns() - begin_ns;
    }
    channel_close(&c);
    return 0;
}

/* ---- the ROUTERs ---- */

static size_t messages_in_all(const limit_trial *t)
{
    return (size_t)(t->warmup + t->rounds) * (size_t)t->processes * frames_of(t);
}

/* Returns identity, header and payload as they came. */
static int echo_serve(const limit_trial *t)
{
    channel c;
    if (bind_router(t, &c)) return 1;
    for (size_t i = 0; i < messages_in_all(t); i++)
        for (int part = 0; part < 3; part++) {
            zmq_msg_t message;
            if (receive(&c, &message)) return 1;
            if (zmq_msg_send(&message, c.socket, part < 2 ? ZMQ_SNDMORE : 0) < 0)
                return complain("zmq_msg_send");
        }
    channel_close(&c);
    return 0;
}

/* Answers a round when every DEALER has sent: a synchronous step cannot do with less. */
static int meeting_serve(const limit_trial *t)
{
    static zmq_msg_t held[LIMIT_PROCESSES * 3];
    channel c;
    if (bind_router(t, &c)) return 1;
    for (size_t done = 0; done < messages_in_all(t); done += (size_t)t->processes) {
        for (int i = 0; i < t->processes * 3; i++)
            if (receive(&c, &held[i])) return 1;
        for (int i = 0; i < t->processes * 3; i++)
            if (zmq_msg_send(&held[i], c.socket, i % 3 < 2 ? ZMQ_SNDMORE : 0) < 0)
                return complain("zmq_msg_send");
    }
    channel_close(&c);
    return 0;
}

static double both_ways(const limit_trial *t)
{
    return 2.0 * (double)t->bytes * t->processes;
}

const limit_kind limit_roundtrip = {.name = "roundtrip",
                                    .bytes = "4K",
                                    .processes = "1,2",
                                    .batch = 1,
                                    .unit = "gb_s",
                                    .what = "DEALERs to an echoing ROUTER and back, ZeroMQ over TCP",
                                    .main = dealer_main,
                                    .serve = echo_serve,
                                    .work = both_ways};

const limit_kind limit_meeting = {.name = "meeting",
                                  .bytes = "4K",
                                  .processes = "1,2",
                                  .batch = 1,
                                  .unit = "gb_s",
                                  .what = "the same; the ROUTER answers when all have sent",
                                  .main = dealer_main,
                                  .serve = meeting_serve,
                                  .work = both_ways};

const limit_kind limit_echo = {.name = "echo",
                               .bytes = "1724320,44726568",
                               .processes = "1,2",
                               .batch = 1,
                               .unit = "gb_s",
                               .what = "vectors there and back in frames of at most 1 MB, both ways counted",
                               .main = dealer_main,
                               .serve = echo_serve,
                               .work = both_ways};

/* ---- one way ---- */

enum { BATCH = 64 }; /* frames per round, so that the answer's cost is negligible */

static int one_way_main(const limit_trial *t, int rank)
{
    channel c;
    char *frame = limit_memory(t->bytes);
    if (!frame || connect_dealer(t, &c)) return 1;
    for (int i = -t->warmup; i < t->rounds; i++) {
        const int64_t begin_ns = eni_now_ns();
        for (int k = 0; k < BATCH; k++)
            if (send_in_place(&c, frame, t->bytes, 0)) return 1;
        if (drop(&c)) return 1;
        if (i >= 0) t->board->times[i][rank] = eni_now_ns() - begin_ns;
    }
    channel_close(&c);
    return 0;
}

/* Sends one byte back for every BATCH frames of a DEALER. DEALERs are distinguished by the fourth byte of the
 * identities that ZeroMQ assigns: a counter. */
static int one_way_serve(const limit_trial *t)
{
    int seen[256] = {0};
    channel c;
    if (bind_router(t, &c)) return 1;
    for (size_t i = 0; i < messages_in_all(t) * BATCH; i++) {
        unsigned char identity[256];
        const int bytes = zmq_recv(c.socket, identity, sizeof identity, 0);
        if (bytes < 1 || drop(&c)) return complain("zmq_recv");
        if (++seen[identity[bytes - 1]] % BATCH) continue;
        if (send_copy(&c, identity, (size_t)bytes, ZMQ_SNDMORE) || send_copy(&c, "", 1, 0)) return 1;
    }
    channel_close(&c);
    return 0;
}

static double one_way(const limit_trial *t)
{
    return (double)t->bytes * t->processes * BATCH;
}

const limit_kind limit_one_way = {.name = "one-way",
                                  .bytes = "1M",
                                  .processes = "1",
                                  .batch = BATCH,
                                  .unit = "gb_s",
                                  .what = "frames from DEALERs to a ROUTER",
                                  .main = one_way_main,
                                  .serve = one_way_serve,
                                  .work = one_way};
