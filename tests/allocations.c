/* allocations.c - see allocations.h. Every call ends in glibc's own function. */
#include "tests/allocations.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *memory);

extern const char __executable_start[], etext[]; /* the linker's: the program's own code */

static atomic_int is_counting;
static atomic_long own, foreign, freed, largest;

static void count(size_t bytes, const void *caller)
{
    if (!is_counting) return;
    if ((const char *)caller >= __executable_start && (const char *)caller < etext)
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
    own = foreign = freed = largest = 0;
    is_counting = 1;
}

allocations allocations_end(void)
{
    is_counting = 0;
    return (allocations){own, foreign, freed, largest};
}
