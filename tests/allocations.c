/* allocations.c - see allocations.h. Every call ends in glibc's own function. */
#include "tests/allocations.h"

#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *memory);

extern const char __executable_start[], etext[]; /* the linker's: the program's own code */

enum { MOST_PLUGINS = 16 };

static atomic_int is_counting;
static atomic_long own, foreign, freed, largest;
static struct {
    uintptr_t from, to;
} plugin[MOST_PLUGINS];
static int nplugins;

/* Remembers where a plugin of this build lies. */
static int see_library(struct dl_phdr_info *library, size_t size, void *user)
{
    (void)size, (void)user;
    if (strncmp(library->dlpi_name, EN_BUILD_DIR, strlen(EN_BUILD_DIR)) != 0) return 0;
    for (int i = 0; i < library->dlpi_phnum && nplugins < MOST_PLUGINS; i++) {
        const ElfW(Phdr) *part = &library->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
        plugin[nplugins].from = library->dlpi_addr + part->p_vaddr;
        plugin[nplugins].to = plugin[nplugins].from + part->p_memsz;
        nplugins++;
    }
    return 0;
}

static int is_ours(const void *caller)
{
    if ((const char *)caller >= __executable_start && (const char *)caller < etext) return 1;
    for (int i = 0; i < nplugins; i++)
        if ((uintptr_t)caller >= plugin[i].from && (uintptr_t)caller < plugin[i].to) return 1;
    return 0;
}

static void count(size_t bytes, const void *caller)
{
    if (!is_counting) return;
    if (is_ours(caller))
        own++;
    else
        foreign++;
    if ((long)bytes > largest) largest = (long)bytes;
}
#define COUNT(bytes) count(bytes, __builtin_return_address(0))

#pragma GCC visibility push(default) /* so that the libraries find these */

void *malloc(size_t bytes)
{
    COUNT(bytes);
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t size)
{
    COUNT(n * size);
    return __libc_calloc(n, size);
}

void *realloc(void *old, size_t bytes)
{
    COUNT(bytes);
    if (is_counting && old) freed++;
    return __libc_realloc(old, bytes);
}

void *memalign(size_t alignment, size_t bytes);
void *memalign(size_t alignment, size_t bytes)
{
    COUNT(bytes);
    return __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    COUNT(bytes);
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory_out, size_t alignment, size_t bytes)
{
    COUNT(bytes);
    void *memory = __libc_memalign(alignment, bytes);
    if (!memory) return ENOMEM;
    *memory_out = memory;
    return 0;
}

void free(void *memory)
{
    if (is_counting && memory) freed++;
    __libc_free(memory);
}

#pragma GCC visibility pop

void allocations_begin(void)
{
    nplugins = 0;
    dl_iterate_phdr(see_library, NULL);
    own = foreign = freed = largest = 0;
    is_counting = 1;
}

allocations allocations_end(void)
{
    is_counting = 0;
    return (allocations){own, foreign, freed, largest};
}
