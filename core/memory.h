/* memory.h - zeroed, aligned memory. Out of memory is an error, never an abort. */
#ifndef CORE_MEMORY_H
#define CORE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "entrain/status.h"

#define ENI_LINE        64u /* one cache line; vectors, buckets, partitions and slices start on it */
#define ENI_LINE_FLOATS 16u /* the same in float32 elements */

static inline uint64_t eni_round_up(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* `bytes` zeroed bytes on a 64-byte boundary (bytes 0 gives a valid pointer), or NULL with the failure
 * logged. Freed with eni_free. */
void *eni_alloc(size_t bytes);

/* The same for who can do without: nothing is logged. */
void *eni_alloc_quietly(size_t bytes);

/* The same for count * size with an overflow check. */
void *eni_alloc_array(size_t count, size_t size);

/* The same on whole pages of its own, which a device may pin. Freed with eni_free. */
void *eni_alloc_pages(size_t bytes);

/* The bytes of a page: 4 KiB on x86-64, on arm64 4, 16 or 64, as the kernel was built. What is mapped at a place of its own
 * begins and ends on one. */
size_t eni_page_bytes(void);

/* Whether `bytes` more fit below the limit of ulimit -v, for a library (`who`) that would crash without them. They are
 * not taken. EN_ENOMEM with one sentence. */
en_status eni_memory_room(size_t bytes, const char *who);

/* NULL is fine. */
void eni_free(void *memory);

/* From now on what this process frees it keeps, and blocks of up to 32 MiB come from what was kept. A payload
 * that ZeroMQ receives lies in memory of its own: with glibc's thresholds that is given back to the system
 * after every message, and each of its pages is cleared and mapped again for the next. For programs; a
 * library has no say in its host's heap. Nothing where the C library is another. Any thread. */
void eni_memory_keep(void);

/* Gets along with the limits of this process, or says that it cannot. For programs, before their first thread.
 *
 * Where address space is limited (ulimit -v) all threads share one heap: else each that takes memory also takes 64 MB of
 * addresses for a heap of its own, and what is left for the rest is chance. (Nothing where the C library is another.)
 *
 * Stacks that are too small (ulimit -s) grow to 8 MiB, or as far as the hard limit allows. EN_EUNSUPPORTED, logged: that is
 * below 1 MiB, and libraries would end the process without a word. */
en_status eni_memory_limits(void);

/* Appends to a text in `bytes` of memory; what does not fit is cut. */
void eni_text_add(char *text, size_t bytes, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* A whole number with `group` between thousands: "14,900". For |value| < 1e15; "-" for NAN. */
void eni_text_grouped(double value, const char *group, char *text_out, size_t size);

/* A heap copy of a string, freed with eni_free; NULL when out of memory. */
char *eni_strdup(const char *text);

#endif
