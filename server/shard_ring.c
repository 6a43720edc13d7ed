/* shard_ring.c - messages without a socket (client/shm_ring.h): a shard looks for them while something has just
 * happened, and needs its doorbell once it goes to sleep. */
#include <errno.h>
#include <sched.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/clock.h"
#include "server/shard_impl.h"

enum {
    AT_ONCE = 64,     /* messages, before anything else has its turn */
    LINGER_US = 1000, /* it looks for so long after the last one */
    CROWDED_US = 50,  /* who yields and gets the core back later than this takes it from somebody who works */
    SOCKET_EVERY = 32, /* idle looks at the ring, between two at the socket */
    IDLE_MS = 1000     /* an idle shard blocks no longer, should a worker take a ring of the doorbell that was not its own */
};

static eni_shm_ring *ring_of(const eni_shard *shard, int32_t rank)
{
    return eni_arenas_ring(shard->config.arenas, rank);
}

/* The memory is that of `rank`, which showed the token when it handed it over, and said HELLO. */
static int is_believed(const eni_shard *shard, int32_t rank, const eni_header *h)
{
    return h->rank == rank && h->epoch == shard->config.epoch && h->incarnation == shard->config.incarnation &&
           (int32_t)h->shard == shard->config.index && shard->route[rank].bytes > 0 &&
           h->type != ENI_MSG_HELLO && (h->bytes == 0 || h->flags & ENI_FLAG_SHM);
}

static void refuse(eni_shard *shard, int32_t rank, const char *why)
{
    const eni_packet to = {.header = {.rank = rank}, .source = ENI_SHARD_RING};
    shard->figures.refusals.unknown++;
    eni_shard_refuse(shard, &to, EN_EPROTO, "rank %d posted a message that is none: %s", rank, why);
}

/* One message of this rank's. 0: there was none. */
static int take_one(eni_shard *shard, int32_t rank)
{
    eni_packet packet = {.source = ENI_SHARD_RING};
    const char *why = "it is not this rank's to send";
    const en_status st =
        eni_shm_ring_take(ring_of(shard, rank), (uint32_t)shard->config.index, &packet.header, &why);
    if (st == EN_ETIMEOUT) return 0;
    if (st == EN_OK && is_believed(shard, rank, &packet.header))
        eni_shard_handle(shard, &packet);
    else
        refuse(shard, rank, why);
    return 1;
}

int eni_shard_poll_ring(eni_shard *shard)
{
    int n = 0, before;
    do {
        before = n;
        for (int32_t r = 0; r < shard->config.nranks && shard->status == EN_OK; r++) {
            eni_shm_ring *ring = ring_of(shard, r);
            if (!ring) continue;
            eni_shm_ring_sleep(ring, (uint32_t)shard->config.index, 0);
            n += take_one(shard, r);
        }
    } while (n > before && n < AT_ONCE && shard->status == EN_OK);
    if (n > 0) shard->posted_ns = eni_now_ns();
    return n;
}

/* Says that it sleeps, and looks once more. */
static int fall_asleep(eni_shard *shard)
{
    int is_asked = 0;
    shard->posted_ns = 0;
    for (int32_t r = 0; r < shard->config.nranks; r++) {
        eni_shm_ring *ring = ring_of(shard, r);
        if (!ring) continue;
        eni_shm_ring_sleep(ring, (uint32_t)shard->config.index, 1);
        is_asked |= eni_shm_ring_has_message(ring, (uint32_t)shard->config.index);
    }
    return !is_asked;
}

int eni_shard_rest(eni_shard *shard, int was_busy)
{
    if (was_busy || ++shard->nlooks % SOCKET_EVERY == 0) return 0; /* those on other hosts have their turn */
    if (shard->posted_ns == 0) return fall_asleep(shard) ? IDLE_MS : -1;
    const int64_t begin = eni_now_ns();
    sched_yield();
    const int64_t end = eni_now_ns();
    shard->figures.wait_ns += end - begin;
    if (end - shard->posted_ns < LINGER_US * ENI_MICRO && end - begin < CROWDED_US * ENI_MICRO) return -1;
    return fall_asleep(shard) ? IDLE_MS : -1;
}

void eni_shard_wake_up(eni_shard *shard)
{
    uint64_t rings;
    const struct iovec to = {&rings, sizeof rings};
    const int fd = eni_arenas_doorbell_fd(shard->config.arenas, shard->config.index);
    /* O_NONBLOCK belongs to whoever has the descriptor, and the workers have it. */
    while (fd >= 0 && preadv2(fd, &to, 1, -1, RWF_NOWAIT) < 0 && errno == EINTR) {
    }
}
