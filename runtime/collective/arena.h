/* arena.h - one rank's vectors and flags in one block of memory that other processes can map.
 *
 *     [header: 4 KiB] [areas: ENI_ARENA_AREAS x ENI_AREA_BYTES] [slot 0] [slot 1] .. [slot nslots - 1]
 *
 * A slot is one flat vector of the model: all tensors, bucket after bucket. A bucket is a range of elements
 * of every slot, so (slot, offset, count) names a vector of a bucket in this process and in every other.
 *
 * A shared arena is a memfd: it has no name, leaves no file behind, is not limited by the size of /dev/shm,
 * and is gone with its last process. It cannot be resized (F_SEAL_SHRINK, F_SEAL_GROW), so a peer that maps
 * it cannot be made to fault. It is sparse: a reserved slot that nobody touches costs no memory. A private
 * arena is plain memory of this process: a world of one rank, the virtual host. */
#ifndef COLLECTIVE_ARENA_H
#define COLLECTIVE_ARENA_H

#include <stdbool.h>
#include <stdint.h>

#include "entrain/status.h"

/* The slots with a fixed meaning. */
enum {
    ENI_SLOT_PARAM = 0,   /* weights */
    ENI_SLOT_GRAD = 1,    /* gradient */
    ENI_SLOT_INBOX = 2,   /* psd's replies */
    ENI_SLOT_FREE = 3,    /* the first of the strategy's vectors and the optimizer's state */
    ENI_ARENA_NSLOTS = 32 /* what a worker reserves */
};

/* Areas of ENI_AREA_BYTES zeroed bytes for flags; each has one user. */
enum {
    ENI_AREA_WORLD = 0,   /* eni_coll of all ranks */
    ENI_AREA_GROUP = 1,   /* eni_coll of a group of ranks: this host's, or one of --groups */
    ENI_AREA_STORE = 2,   /* store clients */
    ENI_AREA_LEADERS = 3, /* eni_coll of the first ranks of all groups */
    ENI_ARENA_AREAS = 4
};
#define ENI_AREA_BYTES 36864u

typedef struct eni_arena { /* private to arena.c, except for the inline functions below */
    uint8_t *base;
    uint64_t bytes;
    uint64_t first, stride; /* bytes to slot 0, and from slot to slot */
    uint64_t count;         /* elements of a slot */
    uint32_t nslots;
    int fd;          /* -1: private, or mapped from another process */
    bool is_private; /* nobody else has it */
} eni_arena;

/* A new arena of `nslots` slots of `count` elements each, everything zero. `shared`: a memfd, else private
 * memory. EN_EINVAL for sizes that overflow, EN_ENOMEM when the machine refuses; both logged. */
en_status eni_arena_open(uint64_t count, uint32_t nslots, bool shared, eni_arena **arena_out);

/* `n` private arenas side by side in one mapping, without areas, and with slots that begin on a line, not on a page: the
 * ranks of the virtual host. Fills arenas_out (n), which eni_arenas_close closes. EN_EINVAL, EN_ENOMEM as above. */
en_status eni_arenas_open(uint64_t count, uint32_t nslots, int32_t n, eni_arena *arenas_out);

/* Safe on zeroed memory. */
void eni_arenas_close(eni_arena *arenas, int32_t n);

/* Maps the arena behind `fd`, which came from another process and is not trusted: it must be a sealed memfd
 * whose header says `count` elements and at least 1 slot, and whose size agrees. Borrows fd (the caller may
 * close it right after). EN_EPROTO, logged, for anything else. Reads and writes through it are the other
 * process's memory. */
en_status eni_arena_map(int fd, uint64_t count, eni_arena **arena_out);

/* The memfd to pass to other processes; -1 for a private or a mapped arena. Borrowed. */
int eni_arena_fd(const eni_arena *arena);

static inline uint64_t eni_arena_count(const eni_arena *arena)
{
    return arena->count;
}

static inline uint32_t eni_arena_nslots(const eni_arena *arena)
{
    return arena->nslots;
}

/* The address of element `offset` of a slot; 64-byte aligned when offset is a multiple of 16. The caller
 * keeps slot < nslots and offset <= count. */
static inline float *eni_arena_at(const eni_arena *arena, uint32_t slot, uint64_t offset)
{
    return (float *)(void *)(arena->base + arena->first + arena->stride * slot) + offset;
}

/* Makes every page of a slot present and mapped in this process, contents kept, so that its first use costs
 * no page fault. Private arena: only while nobody else writes it. */
void eni_arena_touch(const eni_arena *arena, uint32_t slot);

/* Whether eni_arena_alias works here: not every kernel can map memory twice (qemu's emulation cannot). */
bool eni_arena_can_alias(void);

/* Maps `source`'s slot over `arena`'s in this process: the same memory at two addresses. Both are shared and
 * of one shape. The memory that the owner of `arena` had there is freed. EN_ENOMEM, logged. */
en_status eni_arena_alias(eni_arena *arena, uint32_t slot, const eni_arena *source);

/* Whether fd, which came from another process, is a memfd that cannot shrink and has ordinary pages (touching
 * a missing huge page of MFD_HUGETLB kills the process); *bytes_out is its size. */
bool eni_arena_is_sealed(int fd, uint64_t *bytes_out);

/* A memfd of `bytes` zeros with these seals (fcntl(2); 0: none yet, but it can be sealed). EN_ENOMEM, logged. */
en_status eni_arena_memory(const char *name, uint64_t bytes, int seals, int *fd_out);

/* Maps `count` elements of another process's memory over a slot, in this process and for reading only. `fd`
 * is borrowed and not trusted: EN_EPROTO, logged, unless it is a memfd of that size, sealed against
 * shrinking. Other processes that map the arena still see the slot's own memory. EN_ENOMEM, logged. */
en_status eni_arena_cover(eni_arena *arena, uint32_t slot, int fd);

/* Removes the cover again. The slot's own memory then holds what was read there until now, also for a thread
 * that reads it meanwhile. Only for a covered slot, by the arena's owner. EN_ENOMEM, logged. */
en_status eni_arena_uncover(eni_arena *arena, uint32_t slot);

/* Area `area`: ENI_AREA_BYTES on a boundary of 4 KiB. */
void *eni_arena_area(const eni_arena *arena, int area);

/* Unmaps, and closes the memfd if this is its owner. NULL is fine. */
void eni_arena_close(eni_arena *arena);

#endif
