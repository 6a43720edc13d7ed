/* unpack.h - reads msgpack that an unauthenticated peer may have written.
 *
 * A cursor walks over the bytes once, without allocation, and every call says what it will accept: a type, a
 * range, a longest length. So the walk is itself the pre-scan that msgpack-c's unpacker would need before it
 * could be trusted (five bytes make that one allocate 2 GiB; it has no limits in C), and nothing is left to
 * unpack after it. The first thing that is not as asked makes the cursor bad; from then on every call returns
 * 0 or "". */
#ifndef NET_UNPACK_H
#define NET_UNPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct eni_cursor {
    const uint8_t *at, *end;
    const char *why; /* NULL while good; then a static sentence */
} eni_cursor;

typedef struct eni_span {
    const uint8_t *data;
    size_t bytes;
} eni_span;

/* `bytes` may be NULL when length is 0. */
static inline eni_cursor eni_cursor_make(const uint8_t *bytes, size_t length)
{
    static const uint8_t nothing[1];
    if (length == 0) bytes = nothing;
    return (eni_cursor){bytes, bytes + length, NULL};
}

/* Marks the cursor bad unless it already is. */
void eni_cursor_refuse(eni_cursor *cursor, const char *why);

/* An array of exactly / at most so many elements; returns their number. */
uint32_t eni_unpack_array(eni_cursor *cursor, uint32_t min, uint32_t max);

/* An integer in any msgpack width. `name` (static) is what `why` will say when it is out of range. */
uint64_t eni_unpack_uint(eni_cursor *cursor, uint64_t max, const char *name);
int64_t eni_unpack_int(eni_cursor *cursor, int64_t min, int64_t max, const char *name);

/* A string of at most `max` bytes without a 0 in it; binary of at most `max` bytes. Borrowed from the input.
 */
eni_span eni_unpack_str(eni_cursor *cursor, size_t max, const char *name);
eni_span eni_unpack_bin(eni_cursor *cursor, size_t max, const char *name);

/* A string copied into `text_out`, 0-terminated; at most capacity - 1 bytes, none below space. */
void eni_unpack_text(eni_cursor *cursor, char *text_out, size_t capacity, const char *name);

/* Nothing may be left. Returns whether all was well. */
bool eni_cursor_finish(eni_cursor *cursor);

#endif
