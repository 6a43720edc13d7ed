/* guarded.c - see guarded.h. */
#include "tests/ops/guarded.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { PAGE = 4096, MOST_BLOCKS = 1 << 15, GAP_BYTE = 0xa5 };

typedef struct block {
    const char *name;
    unsigned char *map, *pages, *start; /* from the guard in front; what may be touched; the block */
    size_t map_bytes, page_bytes, bytes;
    bool is_read_only;
} block;

/* By the address where they start, in places that follow each other where several would have one. */
static block blocks[MOST_BLOCKS];
static int nblocks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char damage[200]; /* of a block that is gone */

static block *place_of(const void *start)
{
    size_t at = ((uintptr_t)start * 0x9e3779b97f4a7c15u) >> 49;
    while (blocks[at].start != NULL && blocks[at].start != start)
        at = (at + 1) % MOST_BLOCKS;
    return &blocks[at];
}

/* Those behind it that would not be found any more move up. */
static void forget(block *gone)
{
    size_t hole = (size_t)(gone - blocks);
    *gone = (block){0};
    for (size_t at = (hole + 1) % MOST_BLOCKS; blocks[at].start != NULL; at = (at + 1) % MOST_BLOCKS) {
        const block moved = blocks[at];
        blocks[at] = (block){0};
        *place_of(moved.start) = moved;
    }
    nblocks--;
}

static size_t round_up(size_t value, size_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* Without malloc: it may be called from there. */
static _Noreturn void give_up(const char *why)
{
    (void)!write(STDERR_FILENO, why, strlen(why));
    _exit(1);
}

static block map_block(const char *name, size_t bytes, size_t align)
{
    block b = {.name = name, .bytes = bytes, .page_bytes = round_up(round_up(bytes, align), PAGE)};
    const size_t slack = align > PAGE ? align : 0;
    b.map_bytes = b.page_bytes + slack + 2 * PAGE;
    b.map = mmap(NULL, b.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b.map == MAP_FAILED) give_up("no memory between guards\n");
    const uintptr_t first = (uintptr_t)b.map + PAGE;
    b.pages = (unsigned char *)(slack > 0 ? round_up(first, align) : first);
    b.start = b.pages + b.page_bytes - round_up(bytes, align);
    if (b.page_bytes > 0 && mprotect(b.pages, b.page_bytes, PROT_READ | PROT_WRITE) != 0)
        give_up("no memory between guards\n");
    return b;
}

/* The bytes in front of a block and behind it. */
static size_t gap_of(const block *b, int is_behind)
{
    const size_t front = (size_t)(b->start - b->pages);
    return is_behind ? b->page_bytes - front - b->bytes : front;
}

void *guarded_new(const char *name, size_t bytes, size_t align)
{
    const block b = map_block(name, bytes, align);
    memset(b.pages, GAP_BYTE, gap_of(&b, 0));
    memset(b.start, 0xff, bytes);
    memset(b.start + bytes, GAP_BYTE, gap_of(&b, 1));
    pthread_mutex_lock(&lock);
    if (++nblocks == MOST_BLOCKS) give_up("too many guarded blocks\n");
    *place_of(b.start) = b;
    pthread_mutex_unlock(&lock);
    return b.start;
}

static bool is_gap_written(const unsigned char *at, size_t bytes)
{
    unsigned char whole[64];
    memset(whole, GAP_BYTE, sizeof whole);
    for (; bytes >= sizeof whole; at += sizeof whole, bytes -= sizeof whole)
        if (memcmp(at, whole, sizeof whole) != 0) return true;
    return memcmp(at, whole, bytes) != 0;
}

static bool is_damaged(const block *b)
{
    for (int is_behind = 0; is_behind < 2; is_behind++) {
        const unsigned char *at = is_behind ? b->start + b->bytes : b->pages;
        if (!is_gap_written(at, gap_of(b, is_behind))) continue;
        snprintf(damage, sizeof damage, "it writes %s %s of %zu bytes", is_behind ? "behind" : "in front of",
                 b->name, b->bytes);
        return true;
    }
    return false;
}

const char *guarded_damage(const void *start)
{
    if (start != NULL && damage[0] == '\0') (void)is_damaged(place_of(start));
    return damage[0] == '\0' ? NULL : damage;
}

/* False: no block starts there. */
static bool give_back(void *start)
{
    pthread_mutex_lock(&lock);
    block *b = place_of(start);
    const block gone = *b;
    if (gone.start != NULL) {
        if (damage[0] == '\0') (void)is_damaged(b);
        forget(b);
    }
    pthread_mutex_unlock(&lock);
    if (gone.start != NULL) munmap(gone.map, gone.map_bytes);
    return gone.start != NULL;
}

void guarded_free(void *start)
{
    if (start != NULL && !give_back(start)) give_up("what is given back was never taken\n");
}

void guarded_fill(void *start)
{
    memset(start, 0xff, place_of(start)->bytes);
}

void guarded_protect(void *start, bool is_writable)
{
    block *b = place_of(start);
    if (b->is_read_only == !is_writable || b->page_bytes == 0) return;
    if (mprotect(b->pages, b->page_bytes, is_writable ? PROT_READ | PROT_WRITE : PROT_READ) != 0)
        give_up("cannot protect a block\n");
    b->is_read_only = !is_writable;
}

/* ---- who touched what -------------------------------------------------------------------------------------- */

static char *crash_text;
static size_t crash_size;
static int crash_status;

static const char *verb(const void *context)
{
#ifdef __x86_64__
    const ucontext_t *at = context;
    return at->uc_mcontext.gregs[REG_ERR] & 2 ? "writes" : "reads";
#else
    (void)context;
    return "touches";
#endif
}

static void describe(const unsigned char *at, const void *context)
{
    for (int i = 0; i < MOST_BLOCKS; i++) {
        const block *b = &blocks[i];
        if (b->start == NULL || at < b->map || at >= b->map + b->map_bytes) continue;
        const bool is_front = at < b->start, is_inside = !is_front && at < b->start + b->bytes;
        const long away = is_front ? (long)(b->start - at) : (long)(at - (b->start + b->bytes));
        if (is_inside)
            snprintf(crash_text, crash_size, "it %s %s, which it may only read", verb(context), b->name);
        else
            snprintf(crash_text, crash_size, "it %s %ld bytes %s %s of %zu bytes", verb(context), away,
                     is_front ? "in front of" : "behind the end of", b->name, b->bytes);
        return;
    }
    snprintf(crash_text, crash_size, "it %s address %p, which is nobody's, and crashes", verb(context),
             (const void *)at);
}

/* snprintf with no %f and no locale takes no lock and no memory in glibc, and the process is lost anyhow. */
static void on_crash(int number, siginfo_t *info, void *context)
{
    (void)number;
    describe(info->si_addr, context);
    _exit(crash_status);
}

void guarded_catch(char *text, size_t size, int status)
{
    struct sigaction action = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO};
    crash_text = text;
    crash_size = size;
    crash_status = status;
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
}

/* ---- the memory of libraries -------------------------------------------------------------------------------- */

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

static atomic_bool is_for_libraries, was_for_libraries;

extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *memory);

void guarded_libraries(bool is_guarded)
{
    is_for_libraries = is_guarded;
    if (is_guarded) was_for_libraries = true;
}

#pragma GCC visibility push(default) /* so that the libraries find these */

int posix_memalign(void **memory_out, size_t alignment, size_t bytes)
{
    void *memory = is_for_libraries ? guarded_new("memory that a library took", bytes, alignment)
                                    : __libc_memalign(alignment, bytes);
    if (memory == NULL) return ENOMEM;
    *memory_out = memory;
    return 0;
}

void free(void *memory)
{
    if (memory == NULL || (was_for_libraries && give_back(memory))) return;
    __libc_free(memory);
}

#pragma GCC visibility pop

#else

void guarded_libraries(bool is_guarded)
{
    (void)is_guarded;
}

#endif
