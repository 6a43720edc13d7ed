/* arena.c - makes, seals, hands out and maps the memfd of one rank. */
#include "runtime/collective/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

#define ARENA_MAGIC UINT64_C(0x31616e657261656e) /* "enarena1" */
enum { HEADER = 4096, HUGE_PAGE = 2 << 20, MAX_NSLOTS = 4096 };

/* The first bytes. The owner keeps its own copy of the shape: a peer may write here. */
typedef struct shape {
    uint64_t magic;
    uint64_t count;  /* elements of a slot */
    uint64_t stride; /* bytes from slot to slot */
    uint32_t nslots;
    uint32_t unused;
} shape;

/* The layout that (count, nslots) implies, the same in every process of this kernel. A slot has pages of its
 * own, so that others can be mapped over them. Large slots start on a huge page, so that the kernel may use some. */
static en_status shape_make(uint64_t count, uint32_t nslots, shape *shape_out, uint64_t *bytes_out)
{
    const uint64_t limit = UINT64_C(1) << 46; /* half of what a process can address */
    if (nslots == 0 || nslots > MAX_NSLOTS || count > limit / sizeof(float) / nslots)
        return eni_fail(EN_EINVAL, "arena", "%u vectors of %llu elements are more than a process can address",
                        nslots, (unsigned long long)count);
    const uint64_t used = count * sizeof(float), page = eni_page_bytes();
    const uint64_t stride = eni_round_up(used ? used : 1, used >= 2 * HUGE_PAGE ? HUGE_PAGE : page);
    *shape_out = (shape){ARENA_MAGIC, count, stride, nslots, 0};
    const uint64_t areas = (uint64_t)ENI_ARENA_AREAS * ENI_AREA_BYTES;
    *bytes_out = eni_round_up(HEADER + areas, stride % HUGE_PAGE ? page : HUGE_PAGE) + stride * nslots;
    return EN_OK;
}

/* Maps `bytes` of fd (-1: private memory), slots on their boundary. NULL with errno set on failure. */
static uint8_t *map_aligned(int fd, uint64_t bytes)
{
    const int flags = MAP_NORESERVE | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
    /* Room to choose an address that is a multiple of a huge page; the file then goes over the reservation. */
    uint8_t *room =
        mmap(NULL, bytes + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return NULL;
    uint8_t *base = (uint8_t *)(uintptr_t)eni_round_up((uintptr_t)room, HUGE_PAGE);
    const size_t before = (size_t)(base - room);
    if (before > 0) munmap(room, before);
    if (before < HUGE_PAGE) munmap(base + eni_round_up(bytes, eni_page_bytes()), HUGE_PAGE - before);
    if (mmap(base, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0) == MAP_FAILED) {
        munmap(base, bytes);
        return NULL;
    }
    return base;
}

en_status eni_arena_memory(const char *name, uint64_t bytes, int seals, int *fd_out)
{
    const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    *fd_out = fd;
    if (fd < 0 && (errno == ENOSYS || errno == EPERM))
        return eni_fail(EN_ENOMEM, "arena",
                        "cannot create shared memory: memfd_create failed (%s); allow it in the container's "
                        "seccomp filter",
                        strerror(errno));
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && (seals == 0 || fcntl(fd, F_ADD_SEALS, seals) == 0))
        return EN_OK;
    eni_error("arena",
              "cannot allocate %llu bytes of shared memory: %s; run with fewer ranks or a smaller model",
              (unsigned long long)bytes, strerror(errno));
    if (fd >= 0) close(fd);
    *fd_out = -1;
    return EN_ENOMEM;
}

/* Takes fd on success. */
static en_status arena_new(const shape *layout, uint64_t bytes, int fd, eni_arena **arena_out)
{
    eni_arena *arena = eni_alloc(sizeof *arena);
    if (arena == NULL) return EN_ENOMEM;
    *arena = (eni_arena){.base = map_aligned(fd, bytes),
                         .bytes = bytes,
                         .first = bytes - layout->stride * layout->nslots,
                         .stride = layout->stride,
                         .count = layout->count,
                         .nslots = layout->nslots,
                         .fd = fd};
    if (arena->base == NULL) {
        eni_error("arena", "cannot map %llu bytes: %s; use a smaller model or raise ulimit -v",
                  (unsigned long long)bytes, strerror(errno));
        eni_free(arena);
        return EN_ENOMEM;
    }
    /* Best effort: without huge pages large vectors are only slower. */
    if (layout->stride % HUGE_PAGE == 0) madvise(arena->base, bytes, MADV_HUGEPAGE);
    *arena_out = arena;
    return EN_OK;
}

en_status eni_arena_open(uint64_t count, uint32_t nslots, bool shared, eni_arena **arena_out)
{
    shape layout;
    uint64_t bytes;
    int fd = -1;
    EN_TRY(shape_make(count, nslots, &layout, &bytes));
    if (shared)
        EN_TRY(eni_arena_memory("entrain-arena", bytes, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, &fd));
    eni_arena *arena;
    const en_status st = arena_new(&layout, bytes, fd, &arena);
    if (st != EN_OK) {
        if (fd >= 0) close(fd);
        return st;
    }
    arena->is_private = !shared;
    memcpy(arena->base, &layout, sizeof layout);
    *arena_out = arena;
    return EN_OK;
}

en_status eni_arenas_open(uint64_t count, uint32_t nslots, int32_t n, eni_arena *arenas_out)
{
    shape layout;
    uint64_t bytes;
    EN_TRY(shape_make(count, nslots, &layout, &bytes));
    const bool is_large = layout.stride % HUGE_PAGE == 0;
    const uint64_t stride = is_large ? layout.stride : eni_round_up(count * sizeof(float), ENI_LINE);
    uint8_t *base = NULL;
    if (!__builtin_mul_overflow(stride * nslots, (uint64_t)n, &bytes)) base = map_aligned(-1, bytes);
    if (base == NULL)
        return eni_fail(EN_ENOMEM, "arena",
                        "cannot map the vectors of %d ranks, %u of %llu elements each: %s; simulate fewer "
                        "ranks, use a smaller model or raise ulimit -v",
                        n, nslots, (unsigned long long)count, strerror(errno));
    /* A huge page would be the memory of many ranks, most of it for vectors that no strategy asks for. */
    madvise(base, bytes, is_large ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    for (int32_t i = 0; i < n; i++)
        arenas_out[i] = (eni_arena){.base = base + stride * nslots * (uint64_t)i,
                                    .bytes = stride * nslots,
                                    .stride = stride,
                                    .count = count,
                                    .nslots = nslots,
                                    .fd = -1,
                                    .is_private = true};
    return EN_OK;
}

void eni_arenas_close(eni_arena *arenas, int32_t n)
{
    if (n > 0 && arenas[0].base != NULL) munmap(arenas[0].base, arenas[0].bytes * (uint64_t)n);
}

bool eni_arena_is_sealed(int fd, uint64_t *bytes_out)
{
    struct statfs where;
    struct stat file;
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstatfs(fd, &where) != 0 || where.f_type != TMPFS_MAGIC ||
        fstat(fd, &file) != 0)
        return false;
    *bytes_out = (uint64_t)file.st_size;
    return true;
}

/* A foreign fd must hold exactly what eni_arena_open would have made. */
static en_status foreign_check(int fd, uint64_t count, shape *layout_out, uint64_t *bytes_out)
{
    uint64_t there;
    shape said;
    if (!eni_arena_is_sealed(fd, &there))
        return eni_fail(EN_EPROTO, "arena", "a peer passed a descriptor that is not a sealed memfd");
    if (pread(fd, &said, sizeof said, 0) != (ssize_t)sizeof said || said.magic != ARENA_MAGIC)
        return eni_fail(EN_EPROTO, "arena", "a peer passed shared memory that is not an arena");
    if (said.count != count)
        return eni_fail(EN_EPROTO, "arena",
                        "a peer's vectors have %llu elements, ours %llu: the models differ",
                        (unsigned long long)said.count, (unsigned long long)count);
    if (shape_make(count, said.nslots, layout_out, bytes_out) != EN_OK || said.stride != layout_out->stride ||
        there != *bytes_out)
        return eni_fail(EN_EPROTO, "arena", "a peer's arena of %u vectors has an invalid size of %llu bytes",
                        said.nslots, (unsigned long long)there);
    return EN_OK;
}

en_status eni_arena_map(int fd, uint64_t count, eni_arena **arena_out)
{
    shape layout;
    uint64_t bytes;
    EN_TRY(foreign_check(fd, count, &layout, &bytes));
    EN_TRY(arena_new(&layout, bytes, fd, arena_out));
    (*arena_out)->fd = -1; /* borrowed: the mapping outlives it */
    return EN_OK;
}

int eni_arena_fd(const eni_arena *arena)
{
    return arena->fd;
}

bool eni_arena_can_alias(void)
{
    const size_t page = eni_page_bytes();
    void *one = mmap(NULL, page, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0), *two = MAP_FAILED;
    if (one != MAP_FAILED) two = mremap(one, 0, page, MREMAP_MAYMOVE);
    if (one != MAP_FAILED) munmap(one, page);
    if (two != MAP_FAILED) munmap(two, page);
    return two != MAP_FAILED;
}

/* mremap with a length of 0 maps the pages of a shared mapping a second time. It needs no descriptor, which a
 * mapped arena does not keep. */
en_status eni_arena_alias(eni_arena *arena, uint32_t slot, const eni_arena *source)
{
    void *to = eni_arena_at(arena, slot, 0);
    const uint64_t stride = arena->stride;
    if (mremap(eni_arena_at(source, slot, 0), 0, stride, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED)
        return eni_fail(EN_ENOMEM, "arena", "cannot map %llu bytes a second time: %s",
                        (unsigned long long)stride, strerror(errno));
    /* Best effort: if it fails, memory that nobody reads stays allocated. */
    if (arena->fd >= 0)
        (void)!fallocate(arena->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                         (off_t)((uint8_t *)to - arena->base), (off_t)stride);
    return EN_OK;
}

static uint64_t slot_bytes(const eni_arena *arena)
{
    return eni_round_up(arena->count * sizeof(float), eni_page_bytes());
}

/* Reading allocates a page of shared memory; for private memory it maps the common page of zeros until the
 * first write. */
void eni_arena_touch(const eni_arena *arena, uint32_t slot)
{
    volatile uint8_t *at = (volatile uint8_t *)eni_arena_at(arena, slot, 0);
    const uint64_t page = eni_page_bytes();
    for (uint64_t i = 0; i < slot_bytes(arena); i += page) {
        const uint8_t value = at[i];
        if (arena->is_private) at[i] = value;
    }
}

en_status eni_arena_cover(eni_arena *arena, uint32_t slot, int fd)
{
    const uint64_t bytes = slot_bytes(arena);
    uint64_t there;
    if (!eni_arena_is_sealed(fd, &there) || there < bytes)
        return eni_fail(EN_EPROTO, "arena",
                        "a peer passed a descriptor that is not a sealed memfd of %llu bytes",
                        (unsigned long long)bytes);
    if (mmap(eni_arena_at(arena, slot, 0), bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED)
        return EN_OK;
    return eni_fail(EN_ENOMEM, "arena", "cannot map %llu bytes over a slot: %s", (unsigned long long)bytes,
                    strerror(errno));
}

/* The slot's own memory is filled through a second mapping, which then replaces the cover in one call. */
en_status eni_arena_uncover(eni_arena *arena, uint32_t slot)
{
    const uint64_t bytes = slot_bytes(arena);
    uint8_t *at = (uint8_t *)eni_arena_at(arena, slot, 0);
    const off_t offset = at - arena->base;
    void *own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, arena->fd, offset);
    if (own != MAP_FAILED) {
        memcpy(own, at, arena->count * sizeof(float));
        munmap(own, bytes);
        if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, arena->fd, offset) != MAP_FAILED)
            return EN_OK;
    }
    return eni_fail(EN_ENOMEM, "arena", "cannot map %llu bytes of a slot again: %s",
                    (unsigned long long)bytes, strerror(errno));
}

void *eni_arena_area(const eni_arena *arena, int area)
{
    return arena->base + HEADER + (uint64_t)area * ENI_AREA_BYTES;
}

void eni_arena_close(eni_arena *arena)
{
    if (arena == NULL) return;
    munmap(arena->base, arena->bytes);
    if (arena->fd >= 0) close(arena->fd);
    eni_free(arena);
}
