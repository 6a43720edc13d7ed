/* shm_ring.c - a slot and a counter each way, an eventfd for a sleeping shard, a flag for the client. */
#include "runtime/client/shm_ring.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/collective/arena.h"

enum { PAGE = 4096, LINE = 64, MESSAGE = 512, FEWEST_SLOTS = 16 };

/* A header in its bytes: at most 27 numbers of 9 bytes and a text of 257. */
typedef struct slot {
    uint32_t length;
    uint8_t bytes[MESSAGE - sizeof(uint32_t)];
} slot;

/* One shard's part; the rings follow: (slots) to the shard, (slots) to the client. Each word has one writer. */
typedef struct box {
    _Alignas(LINE) _Atomic uint64_t asked; /* by the client */
    _Alignas(LINE) _Atomic uint64_t answered;
    _Atomic uint32_t is_asleep;
    _Alignas(LINE) _Atomic uint64_t heard; /* by the client */
} box;

/* One side's own counters of a shard, never read from the shared memory. */
typedef struct side {
    uint64_t asked, heard;     /* the client's */
    uint64_t taken, answered;  /* the shard's */
    int doorbell_fd;           /* the client's; -1: the shard has no doorbell */
    bool is_asleep, is_broken; /* the shard's */
} side;

struct eni_shm_ring {
    uint8_t *base; /* page 0: the flag; then a box a shard */
    uint64_t bytes;
    uint32_t nshards, slots;
    uint64_t unanswered; /* of all shards: the client's */
    uint64_t seen;       /* of the flag: the client's */
    int fd;              /* the client's; else -1 */
    bool is_patient;     /* the client's: its last wait ended without an answer, so the next sleeps at once */
    side side[];         /* (nshards) */
};

static uint64_t box_bytes(uint32_t slots)
{
    return eni_round_up(sizeof(box) + 2 * (uint64_t)slots * sizeof(slot), PAGE);
}

static uint64_t all_bytes(uint32_t nshards, uint32_t slots)
{
    return PAGE + nshards * box_bytes(slots);
}

static eni_flag *flag_of(const eni_shm_ring *ring)
{
    return (eni_flag *)(void *)ring->base;
}

static box *box_of(const eni_shm_ring *ring, uint32_t shard)
{
    return (box *)(void *)(ring->base + PAGE + shard * box_bytes(ring->slots));
}

static slot *slot_of(const eni_shm_ring *ring, uint32_t shard, bool is_answer, uint64_t number)
{
    slot *first = (slot *)(void *)(box_of(ring, shard) + 1);
    return first + (is_answer ? ring->slots : 0) + number % ring->slots;
}

/* ---- messages ---- */

static void put(slot *s, const eni_header *header)
{
    uint8_t bytes[ENI_HEADER_MAX];
    const size_t length = eni_header_encode(header, bytes);
    s->length = (uint32_t)length;
    memcpy(s->bytes, bytes, length < sizeof s->bytes ? length : sizeof s->bytes);
}

/* The other side may change the slot at any time. */
static en_status get(const slot *s, eni_header *header_out, const char **why_out)
{
    uint8_t bytes[sizeof s->bytes];
    const uint32_t length = *(const volatile uint32_t *)&s->length;
    if (length > sizeof bytes) {
        *why_out = "it is longer than a slot";
        return EN_EPROTO;
    }
    memcpy(bytes, s->bytes, length);
    return eni_header_decode(bytes, length, header_out, why_out);
}

/* ---- the client's side ---- */

int eni_shm_ring_fd(const eni_shm_ring *ring)
{
    return ring->fd;
}

uint32_t eni_shm_ring_slots(const eni_shm_ring *ring)
{
    return ring->slots;
}

void eni_shm_ring_set_doorbell(eni_shm_ring *ring, uint32_t shard, int fd)
{
    ring->side[shard].doorbell_fd = fd;
}

bool eni_shm_ring_may_post(const eni_shm_ring *ring, uint32_t shard)
{
    const side *own = &ring->side[shard];
    return own->doorbell_fd >= 0 && own->asked - own->heard < ring->slots;
}

/* Sequentially consistent, as the shard's: a shard that announces its sleep checks `asked` after that. */
void eni_shm_ring_post(eni_shm_ring *ring, uint32_t shard, const eni_header *header)
{
    side *own = &ring->side[shard];
    box *b = box_of(ring, shard);
    put(slot_of(ring, shard, false, own->asked++), header);
    ring->unanswered++;
    atomic_store(&b->asked, own->asked);
    if (!atomic_load(&b->is_asleep)) return;
    struct pollfd room = {.fd = own->doorbell_fd, .events = POLLOUT}; /* others may have filled it */
    if (poll(&room, 1, 0) == 1) eventfd_write(own->doorbell_fd, 1);
}

en_status eni_shm_ring_poll(eni_shm_ring *ring, uint32_t shard, eni_header *header_out)
{
    side *own = &ring->side[shard];
    const char *why = "more answers than calls";
    const uint64_t answered = atomic_load_explicit(&box_of(ring, shard)->answered, memory_order_acquire);
    if (answered == own->heard) return EN_ETIMEOUT;
    en_status st = EN_EPROTO;
    if (answered - own->heard <= own->asked - own->heard)
        st = get(slot_of(ring, shard, true, own->heard), header_out, &why);
    own->heard++;
    ring->unanswered -= ring->unanswered > 0;
    atomic_store_explicit(&box_of(ring, shard)->heard, own->heard, memory_order_release);
    if (st != EN_OK) eni_error("shm_ring", "invalid answer of shard %u: %s", shard, why);
    return st;
}

uint64_t eni_shm_ring_unanswered(const eni_shm_ring *ring)
{
    return ring->unanswered;
}

en_status eni_shm_ring_await(eni_shm_ring *ring, int64_t until_ns, const eni_alive *alive)
{
    const en_status st =
        eni_flag_await(flag_of(ring), ring->seen + 1, ring->is_patient ? -ENI_MILLI : 0, until_ns, alive);
    ring->is_patient = st != EN_OK;
    if (st == EN_OK) ring->seen = eni_flag_get(flag_of(ring));
    return st;
}

/* ---- the shards' side ---- */

en_status eni_shm_ring_take(eni_shm_ring *ring, uint32_t shard, eni_header *header_out, const char **why_out)
{
    side *own = &ring->side[shard];
    if (own->is_broken) return EN_ETIMEOUT;
    const uint64_t asked = atomic_load(&box_of(ring, shard)->asked);
    if (asked == own->taken) return EN_ETIMEOUT;
    if (asked - own->taken > ring->slots) {
        own->is_broken = true;
        *why_out = "more messages than the ring has room for";
        return EN_EMISMATCH;
    }
    return get(slot_of(ring, shard, false, own->taken++), header_out, why_out);
}

bool eni_shm_ring_has_message(const eni_shm_ring *ring, uint32_t shard)
{
    const side *own = &ring->side[shard];
    return !own->is_broken && atomic_load(&box_of(ring, shard)->asked) != own->taken;
}

en_status eni_shm_ring_answer(eni_shm_ring *ring, uint32_t shard, const eni_header *header)
{
    side *own = &ring->side[shard];
    box *b = box_of(ring, shard);
    const uint64_t heard = atomic_load_explicit(&b->heard, memory_order_acquire);
    if (own->answered - heard >= ring->slots) return EN_ETIMEOUT; /* or its counter is invalid */
    put(slot_of(ring, shard, true, own->answered++), header);
    atomic_store_explicit(&b->answered, own->answered, memory_order_release);
    eni_flag_add(flag_of(ring));
    return EN_OK;
}

void eni_shm_ring_sleep(eni_shm_ring *ring, uint32_t shard, bool is_asleep)
{
    if (ring->side[shard].is_asleep == is_asleep) return;
    ring->side[shard].is_asleep = is_asleep;
    atomic_store(&box_of(ring, shard)->is_asleep, (uint32_t)is_asleep);
}

/* ---- open and close ---- */

static eni_shm_ring *ring_new(uint32_t nshards, uint32_t slots)
{
    eni_shm_ring *ring = eni_alloc(sizeof *ring + nshards * sizeof *ring->side);
    if (ring == NULL) return NULL;
    ring->nshards = nshards;
    ring->slots = slots;
    ring->bytes = all_bytes(nshards, slots);
    ring->fd = -1;
    for (uint32_t k = 0; k < nshards; k++)
        ring->side[k] = (side){.doorbell_fd = -1, .is_asleep = true};
    return ring;
}

static en_status map(eni_shm_ring *ring, int fd)
{
    void *at = mmap(NULL, ring->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return eni_fail(EN_ENOMEM, "shm_ring", "cannot map %llu bytes: %s", (unsigned long long)ring->bytes,
                        strerror(errno));
    ring->base = at;
    return EN_OK;
}

en_status eni_shm_ring_open(uint32_t nshards, uint32_t parts, eni_shm_ring **ring_out)
{
    uint32_t slots = FEWEST_SLOTS;
    if (nshards > ENI_SHM_RING_SHARDS || parts > ENI_SHM_RING_SLOTS) return EN_EUNSUPPORTED;
    while (slots <= parts && slots < ENI_SHM_RING_SLOTS) /* one more than a step has calls */
        slots *= 2;
    eni_shm_ring *ring = ring_new(nshards, slots);
    if (ring == NULL) return EN_ENOMEM;
    en_status st =
        eni_arena_memory("entrain-ring", ring->bytes, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, &ring->fd);
    if (st == EN_OK) st = map(ring, ring->fd);
    if (st != EN_OK) {
        eni_shm_ring_close(ring);
        return st;
    }
    for (uint32_t k = 0; k < nshards; k++) /* it has not looked yet, and may be asleep */
        atomic_init(&box_of(ring, k)->is_asleep, 1);
    *ring_out = ring;
    return EN_OK;
}

en_status eni_shm_ring_map(int fd, uint32_t nshards, uint32_t slots, eni_shm_ring **ring_out)
{
    uint64_t there;
    if (nshards == 0 || nshards > ENI_SHM_RING_SHARDS || slots == 0 || slots > ENI_SHM_RING_SLOTS ||
        !eni_arena_is_sealed(fd, &there) || there != all_bytes(nshards, slots))
        return eni_fail(EN_EPROTO, "shm_ring",
                        "a peer passed a descriptor that is not a sealed memfd for %u messages to %u shards",
                        slots, nshards);
    eni_shm_ring *ring = ring_new(nshards, slots);
    if (ring == NULL) return EN_ENOMEM;
    const en_status st = map(ring, fd);
    if (st == EN_OK)
        *ring_out = ring;
    else
        eni_shm_ring_close(ring);
    return st;
}

void eni_shm_ring_close(eni_shm_ring *ring)
{
    if (ring == NULL) return;
    for (uint32_t k = 0; k < ring->nshards; k++)
        if (ring->side[k].doorbell_fd >= 0) close(ring->side[k].doorbell_fd);
    if (ring->base != NULL) munmap(ring->base, ring->bytes);
    if (ring->fd >= 0) close(ring->fd);
    eni_free(ring);
}
