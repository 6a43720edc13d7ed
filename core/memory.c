/* memory.c - zeroed, aligned blocks with overflow checks; text helpers. */
#include "core/memory.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "core/log.h"

enum { HUGE_PAGE = 2 << 20 };

/* Allocates `bytes`, rounded up to whole units and aligned to one. */
static void *take_quietly(size_t bytes, size_t unit)
{
    void *memory = NULL;
    size_t rounded = bytes == 0 ? unit : eni_round_up(bytes, unit);
    const bool is_large = rounded >= 2 * (size_t)HUGE_PAGE;
    if (rounded < bytes || posix_memalign(&memory, is_large ? HUGE_PAGE : unit, rounded) != 0) return NULL;
    if (is_large) madvise(memory, rounded & ~((size_t)HUGE_PAGE - 1), MADV_HUGEPAGE);
    return memset(memory, 0, rounded);
}

static void *take(size_t bytes, size_t unit)
{
    void *memory = take_quietly(bytes, unit);
    if (memory == NULL)
        eni_error(
            "memory",
            "cannot allocate %zu bytes of memory; reduce the model, batch or data set, or raise ulimit -v",
            bytes);
    return memory;
}

void *eni_alloc_quietly(size_t bytes)
{
    return take_quietly(bytes, ENI_LINE);
}

void *eni_alloc(size_t bytes)
{
    return take(bytes, ENI_LINE);
}

size_t eni_page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

void *eni_alloc_pages(size_t bytes)
{
    return take(bytes, eni_page_bytes());
}

void *eni_alloc_array(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        eni_error("memory", "cannot allocate %zu x %zu bytes; reduce the model, batch or data set", count,
                  size);
        return NULL;
    }
    return eni_alloc(bytes);
}

en_status eni_memory_room(size_t bytes, const char *who)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return EN_OK;
    void *room = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return eni_fail(EN_ENOMEM, "memory",
                        "%s needs %zu MB of address space, more than ulimit -v (%llu MB) leaves: raise it",
                        who, bytes >> 20, (unsigned long long)limit.rlim_cur >> 20);
    munmap(room, bytes);
    return EN_OK;
}

en_status eni_grow(void **array, uint32_t *room, uint32_t wanted, size_t size)
{
    if (wanted <= *room) return EN_OK;
    uint32_t more = *room > 0 ? *room : 8;
    while (more < wanted)
        more = more > UINT32_MAX / 2 ? wanted : 2 * more;
    void *grown = size <= PTRDIFF_MAX / more ? realloc(*array, more * size) : NULL;
    if (grown == NULL)
        return eni_fail(EN_ENOMEM, "memory", "out of memory for %u entries of %zu bytes", more, size);
    *array = grown;
    *room = more;
    return EN_OK;
}

void eni_free(const void *memory)
{
    free((void *)(uintptr_t)memory);
}

/* The kernel checks the limit as the first thread's stack grows; the C library has read it for all others. */
static en_status raise_stack(void)
{
    static const rlim_t needed = 1 << 20, wanted = 8 << 20;
    struct rlimit limit;
    pthread_attr_t threads;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= needed) return EN_OK;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    if (limit.rlim_cur < needed || setrlimit(RLIMIT_STACK, &limit) != 0)
        return eni_fail(EN_EUNSUPPORTED, "memory",
                        "ulimit -s allows a stack of %llu KiB, but at least %llu are needed: raise it "
                        "(ulimit -s %llu, or \"stack\" in /etc/security/limits.conf)",
                        (unsigned long long)limit.rlim_max >> 10, (unsigned long long)needed >> 10,
                        (unsigned long long)wanted >> 10);
    if (pthread_getattr_default_np(&threads) != 0) return EN_OK;
    if (pthread_attr_setstacksize(&threads, limit.rlim_cur) == 0) (void)pthread_setattr_default_np(&threads);
    pthread_attr_destroy(&threads);
    return EN_OK;
}

en_status eni_memory_limits(void)
{
#ifdef __GLIBC__
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) mallopt(M_ARENA_MAX, 1);
#endif
    return raise_stack();
}

void eni_memory_keep(void)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 32 << 20); /* glibc's upper limit */
    mallopt(M_TRIM_THRESHOLD, INT32_MAX);
#endif
}

void eni_text_add(char *text, size_t bytes, const char *fmt, ...)
{
    const size_t used = strlen(text);
    va_list args;
    va_start(args, fmt);
    vsnprintf(text + used, bytes - used, fmt, args);
    va_end(args);
}

void eni_text_grouped(double value, const char *group, char *text_out, size_t size)
{
    if (isnan(value) || fabs(value) >= 1e15) {
        snprintf(text_out, size, "-");
        return;
    }
    char digits[32];
    int n = snprintf(digits, sizeof digits, "%.0f", fabs(value));
    size_t at = 0;
    if (value <= -0.5 && size > 1) text_out[at++] = '-';
    for (int i = 0; i < n && at + strlen(group) + 2 <= size; i++) {
        if (i > 0 && (n - i) % 3 == 0) at += (size_t)snprintf(text_out + at, size - at, "%s", group);
        text_out[at++] = digits[i];
    }
    text_out[at] = 0;
}

char *eni_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = eni_alloc(bytes);
    return copy == NULL ? NULL : memcpy(copy, text, bytes);
}
