/* bells.c - see bells.h. */
#include "runtime/client/bells.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
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

/* One lane's part; the rings follow: (slots) to the lane, (slots) to the client. Each word has one writer. */
typedef struct box {
    _Alignas(LINE) _Atomic uint64_t asked; /* by the client */
    _Alignas(LINE) _Atomic uint64_t answered;
    _Atomic uint32_t is_asleep;
    _Alignas(LINE) _Atomic uint64_t heard; /* by the client */
} box;

/* What one side knows of a lane without the other: never read from the memory. */
typedef struct side {
    uint64_t asked, heard;    /* the client's */
    uint64_t taken, answered; /* the lane's */
    int kick_fd;              /* the client's; -1: the lane has no bell */
    int is_asleep, is_broken; /* the lane's */
} side;

struct eni_bells {
    uint8_t *base; /* page 0: the flag; then a box a lane */
    uint64_t bytes;
    uint32_t nlanes, slots;
    uint64_t unanswered; /* of all lanes: the client's */
    uint64_t seen;       /* of the flag: the client's */
    int fd;              /* the client's; else -1 */
    int is_mine;         /* to unmap */
    int is_patient;      /* the client's: it has slept in vain, and need not look closely at each new try */
    side side[];         /* (nlanes) */
};

static uint64_t box_bytes(uint32_t slots)
{
    return eni_round_up(sizeof(box) + 2 * (uint64_t)slots * sizeof(slot), PAGE);
}

static uint64_t all_bytes(uint32_t nlanes, uint32_t slots)
{
    return PAGE + nlanes * box_bytes(slots);
}

static eni_flag *flag_of(const eni_bells *bells)
{
    return (eni_flag *)(void *)bells->base;
}

static box *box_of(const eni_bells *bells, uint32_t lane)
{
    return (box *)(void *)(bells->base + PAGE + lane * box_bytes(bells->slots));
}

static slot *slot_of(const eni_bells *bells, uint32_t lane, int is_answer, uint64_t number)
{
    slot *first = (slot *)(void *)(box_of(bells, lane) + 1);
    return first + (is_answer ? bells->slots : 0) + number % bells->slots;
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
        *why_out = "it is longer than its place";
        return EN_EPROTO;
    }
    memcpy(bytes, s->bytes, length);
    return eni_header_decode(bytes, length, header_out, why_out);
}

/* ---- the client's side ---- */

int eni_bells_fd(const eni_bells *bells)
{
    return bells->fd;
}

uint32_t eni_bells_slots(const eni_bells *bells)
{
    return bells->slots;
}

void eni_bells_set_kick(eni_bells *bells, uint32_t lane, int fd)
{
    bells->side[lane].kick_fd = fd;
}

int eni_bells_may_ask(const eni_bells *bells, uint32_t lane)
{
    const side *own = &bells->side[lane];
    return own->kick_fd >= 0 && own->asked - own->heard < bells->slots;
}

/* Sequentially consistent, as the lane's: a lane that says it sleeps looks at `asked` after that. */
void eni_bells_ask(eni_bells *bells, uint32_t lane, const eni_header *header)
{
    const uint64_t one = 1;
    side *own = &bells->side[lane];
    box *b = box_of(bells, lane);
    put(slot_of(bells, lane, 0, own->asked++), header);
    bells->unanswered++;
    atomic_store(&b->asked, own->asked);
    if (!atomic_load(&b->is_asleep)) return;
    struct pollfd room = {.fd = own->kick_fd, .events = POLLOUT}; /* others have it, and may have filled it */
    if (poll(&room, 1, 0) == 1)
        while (write(own->kick_fd, &one, sizeof one) < 0 && errno == EINTR) {
        }
}

en_status eni_bells_hear(eni_bells *bells, uint32_t lane, eni_header *header_out)
{
    side *own = &bells->side[lane];
    const char *why = "it answered what was not asked";
    const uint64_t answered = atomic_load_explicit(&box_of(bells, lane)->answered, memory_order_acquire);
    if (answered == own->heard) return EN_ETIMEOUT;
    en_status st = EN_EPROTO;
    if (answered - own->heard <= own->asked - own->heard)
        st = get(slot_of(bells, lane, 1, own->heard), header_out, &why);
    own->heard++;
    bells->unanswered -= bells->unanswered > 0;
    atomic_store_explicit(&box_of(bells, lane)->heard, own->heard, memory_order_release);
    if (st != EN_OK) eni_error("bells", "an answer of lane %u makes no sense: %s", lane, why);
    return st;
}

uint64_t eni_bells_unanswered(const eni_bells *bells)
{
    return bells->unanswered;
}

en_status eni_bells_await(eni_bells *bells, const eni_alive *alive)
{
    const en_status st =
        eni_flag_await(flag_of(bells), bells->seen + 1, bells->is_patient ? -ENI_MILLI : 0, alive);
    bells->is_patient = st != EN_OK;
    if (st == EN_OK) bells->seen = eni_flag_get(flag_of(bells));
    return st;
}

/* ---- the lanes' side ---- */

en_status eni_bells_take(eni_bells *bells, uint32_t lane, eni_header *header_out, const char **why_out)
{
    side *own = &bells->side[lane];
    if (own->is_broken) return EN_ETIMEOUT;
    const uint64_t asked = atomic_load(&box_of(bells, lane)->asked);
    if (asked == own->taken) return EN_ETIMEOUT;
    if (asked - own->taken > bells->slots) {
        own->is_broken = 1;
        *why_out = "more has been asked than there is room for";
        return EN_EMISMATCH;
    }
    return get(slot_of(bells, lane, 0, own->taken++), header_out, why_out);
}

int eni_bells_is_asked(const eni_bells *bells, uint32_t lane)
{
    const side *own = &bells->side[lane];
    return !own->is_broken && atomic_load(&box_of(bells, lane)->asked) != own->taken;
}

en_status eni_bells_answer(eni_bells *bells, uint32_t lane, const eni_header *header)
{
    side *own = &bells->side[lane];
    box *b = box_of(bells, lane);
    const uint64_t heard = atomic_load_explicit(&b->heard, memory_order_acquire);
    if (own->answered - heard >= bells->slots) return EN_ETIMEOUT; /* or it says nonsense: its own loss */
    put(slot_of(bells, lane, 1, own->answered++), header);
    atomic_store_explicit(&b->answered, own->answered, memory_order_release);
    eni_flag_add(flag_of(bells));
    return EN_OK;
}

void eni_bells_sleep(eni_bells *bells, uint32_t lane, int is_asleep)
{
    if (bells->side[lane].is_asleep == is_asleep) return;
    bells->side[lane].is_asleep = is_asleep;
    atomic_store(&box_of(bells, lane)->is_asleep, (uint32_t)is_asleep);
}

/* ---- life ---- */

static eni_bells *bells_new(uint32_t nlanes, uint32_t slots)
{
    eni_bells *bells = eni_alloc(sizeof *bells + nlanes * sizeof *bells->side);
    if (!bells) return NULL;
    bells->nlanes = nlanes;
    bells->slots = slots;
    bells->bytes = all_bytes(nlanes, slots);
    bells->fd = -1;
    for (uint32_t k = 0; k < nlanes; k++)
        bells->side[k] = (side){.kick_fd = -1, .is_asleep = 1};
    return bells;
}

static en_status map(eni_bells *bells, int fd)
{
    void *at = mmap(NULL, bells->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        eni_error("bells", "cannot map %llu bytes: %s", (unsigned long long)bells->bytes, strerror(errno));
        return EN_ENOMEM;
    }
    bells->base = at;
    bells->is_mine = 1;
    return EN_OK;
}

en_status eni_bells_open(uint32_t nlanes, uint32_t cells, eni_bells **bells_out)
{
    uint32_t slots = FEWEST_SLOTS;
    if (nlanes > ENI_BELLS_LANES || cells > ENI_BELLS_SLOTS) return EN_EUNSUPPORTED;
    while (slots < cells)
        slots *= 2;
    eni_bells *bells = bells_new(nlanes, slots);
    if (!bells) return EN_ENOMEM;
    en_status st = EN_ENOMEM;
    bells->fd = memfd_create("entrain-bells", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (bells->fd < 0 || ftruncate(bells->fd, (off_t)bells->bytes) != 0 ||
        fcntl(bells->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        eni_error("bells", "cannot make %llu bytes of shared memory: %s", (unsigned long long)bells->bytes,
                  strerror(errno));
        goto close_bells;
    }
    EN_TRY_GOTO(map(bells, bells->fd), close_bells);
    for (uint32_t k = 0; k < nlanes; k++) /* it has not looked yet, and may be asleep */
        atomic_init(&box_of(bells, k)->is_asleep, 1);
    *bells_out = bells;
    return EN_OK;
close_bells:
    eni_bells_close(bells);
    return st;
}

en_status eni_bells_map(int fd, uint32_t nlanes, uint32_t slots, eni_bells **bells_out)
{
    uint64_t there;
    if (nlanes == 0 || nlanes > ENI_BELLS_LANES || slots == 0 || slots > ENI_BELLS_SLOTS ||
        !eni_arena_is_sealed(fd, &there) || there != all_bytes(nlanes, slots)) {
        eni_error("bells",
                  "a peer passed a descriptor that is not a sealed memfd for %u messages to %u lanes", slots,
                  nlanes);
        return EN_EPROTO;
    }
    eni_bells *bells = bells_new(nlanes, slots);
    if (!bells) return EN_ENOMEM;
    const en_status st = map(bells, fd);
    if (st == EN_OK)
        *bells_out = bells;
    else
        eni_bells_close(bells);
    return st;
}

en_status eni_bells_over(eni_bells *bells, eni_bells **bells_out)
{
    eni_bells *other = bells_new(bells->nlanes, bells->slots);
    if (!other) return EN_ENOMEM;
    other->base = bells->base;
    *bells_out = other;
    return EN_OK;
}

void eni_bells_close(eni_bells *bells)
{
    if (!bells) return;
    for (uint32_t k = 0; k < bells->nlanes; k++)
        if (bells->side[k].kick_fd >= 0) close(bells->side[k].kick_fd);
    if (bells->is_mine) munmap(bells->base, bells->bytes);
    if (bells->fd >= 0) close(bells->fd);
    eni_free(bells);
}
