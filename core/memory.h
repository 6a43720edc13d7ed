/* memory.h - zeroed, aligned memory. Running out of memory is an error, never an abort. */
#ifndef CORE_MEMORY_H
#define CORE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "entrain/status.h"

#define ENI_LINE        64u /* one cache line: alignment of vectors, buckets, partitions and slices */
#define ENI_LINE_FLOATS 16u /* the same in float32 elements */

static inline uint64_t eni_round_up(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* `bytes` zeroed bytes on a 64-byte boundary (bytes 0 gives a valid pointer), or NULL with the failure
 * logged. Freed with eni_free. */
void *eni_alloc(size_t bytes);

/* The same for optional memory: nothing is logged. */
void *eni_alloc_quietly(size_t bytes);

/* The same for count * size with an overflow check. */
void *eni_alloc_array(size_t count, size_t size);

/* Makes room for `wanted` entries of `size` bytes in an array that has *room and may move: at least doubles it. New entries
 * are not zeroed. EN_ENOMEM, logged: the array stays as it is. Freed with eni_free; NULL with a room of 0 is empty. */
en_status eni_grow(void **array, uint32_t *room, uint32_t wanted, size_t size);

/* As eni_alloc, on whole pages of its own, which a device may pin. Freed with eni_free. */
void *eni_alloc_pages(size_t bytes);

/* The page size: 4 KiB on x86-64; 4, 16 or 64 KiB on arm64, depending on the kernel. Mappings at fixed addresses must
 * start and end on a page. */
size_t eni_page_bytes(void);

/* Whether `bytes` more fit below ulimit -v, for a library (`who`) that would crash otherwise. Does not keep them.
 * EN_ENOMEM, logged. */
en_status eni_memory_room(size_t bytes, const char *who);

/* NULL is fine. */
void eni_free(const void *memory);

/* Keeps freed memory in the process, and serves blocks of up to 32 MiB from it. ZeroMQ receives each payload into a
 * block of its own: with glibc's thresholds that is returned to the system after every message, and each of its
 * pages is cleared and mapped again for the next. For programs; a library does not tune its host's heap. Does
 * nothing with other C libraries. Any thread. */
void eni_memory_keep(void);

/* Adapts the process to its limits, or fails. For programs, before their first thread.
 *
 * With limited address space (ulimit -v) all threads share one heap: otherwise each thread that allocates reserves 64 MB
 * of addresses for its own heap, and little may be left for the rest. (Does nothing with other C libraries.)
 *
 * Raises a small stack limit (ulimit -s) to 8 MiB, or to the hard limit. EN_EUNSUPPORTED, logged: that is below 1 MiB,
 * where libraries would crash without a message. */
en_status eni_memory_limits(void);

/* Appends to a text in `bytes` of memory; truncates. */
void eni_text_add(char *text, size_t bytes, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* An integer with `group` between thousands: "14,900". For |value| < 1e15; "-" for NAN. */
void eni_text_grouped(double value, const char *group, char *text_out, size_t size);

/* A heap copy of a string, freed with eni_free; NULL when out of memory. */
char *eni_strdup(const char *text);

#endif
