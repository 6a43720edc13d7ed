/* pack.h - values as bytes, in msgpack: a writer (by msgpack-c), a reader for untrusted bytes, and records
 * whose fields one table writes and reads.
 *
 * The writer's buffer is either fixed memory of the caller's or grows on the heap. When it cannot take more,
 * is_failed is set and later writes do nothing: check once, at the end.
 *
 * The reader is a cursor that walks over the bytes once, without allocation; every call says what it accepts:
 * a type, a range, a longest length. So the walk is itself the pre-scan that msgpack-c's unpacker would need
 * before it could be trusted (five bytes make that one allocate 2 GiB; it has no limits in C), and nothing is
 * left to unpack after it. The first unexpected value makes the cursor bad; from then on every call returns 0
 * or "". */
#ifndef NET_PACK_H
#define NET_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct eni_pack {
    uint8_t *data;
    size_t bytes, capacity;
    bool is_fixed;
    bool is_failed;
} eni_pack;

/* A writer into the caller's memory. */
static inline eni_pack eni_pack_over(uint8_t *memory, size_t capacity)
{
    return (eni_pack){memory, 0, capacity, true, false};
}

/* A growing buffer starts zeroed; this frees and zeroes it. */
void eni_pack_fini(eni_pack *pack);

/* Appends raw bytes. */
void eni_pack_raw(eni_pack *pack, const void *data, size_t bytes);

/* Drops the first `bytes` bytes. */
void eni_pack_drop(eni_pack *pack, size_t bytes);

void eni_pack_array(eni_pack *pack, uint32_t n);
void eni_pack_uint(eni_pack *pack, uint64_t value);
void eni_pack_int(eni_pack *pack, int64_t value);
void eni_pack_str(eni_pack *pack, const char *text);
/* The same with '?' for control characters, truncated to 511 bytes. Readers refuse control characters in
 * texts, because texts end up in logs and on terminals. */
void eni_pack_text(eni_pack *pack, const char *text);
void eni_pack_bin(eni_pack *pack, const void *data, size_t bytes);

/* ---- reader ---- */

typedef struct eni_cursor {
    const uint8_t *at, *end;
    const char *why; /* NULL while good; else a static sentence */
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

/* An array of min .. max elements; returns their number. */
uint32_t eni_unpack_array(eni_cursor *cursor, uint32_t min, uint32_t max);

/* An integer in any msgpack width. `name` (static) becomes `why` if it is out of range. */
uint64_t eni_unpack_uint(eni_cursor *cursor, uint64_t max, const char *name);
int64_t eni_unpack_int(eni_cursor *cursor, int64_t min, int64_t max, const char *name);

/* A string of at most `max` bytes without a 0 in it; binary of at most `max` bytes. Borrowed from the input. */
eni_span eni_unpack_str(eni_cursor *cursor, size_t max, const char *name);
eni_span eni_unpack_bin(eni_cursor *cursor, size_t max, const char *name);

/* A string copied into `text_out`, 0-terminated; at most capacity - 1 bytes, none below space. */
void eni_unpack_text(eni_cursor *cursor, char *text_out, size_t capacity, const char *name);

/* Refuses bytes that are left. Returns whether the cursor is good. */
bool eni_cursor_finish(eni_cursor *cursor);

/* ---- records ---- */

typedef enum eni_field_kind {
    ENI_FIELD_UINT, /* uint32_t or uint64_t, 0 .. max */
    ENI_FIELD_INT,  /* int32_t or int64_t, min .. max */
    ENI_FIELD_BOOL,
    ENI_FIELD_TEXT,  /* a char array */
    ENI_FIELD_BYTES, /* a byte array, all of it */
    ENI_FIELD_BLOB,  /* an eni_span of at most `max` bytes; read: borrowed from the input */
    ENI_FIELD_OWN    /* written and read by the owner of the table */
} eni_field_kind;

/* Where a value lies in its record, and what is accepted for it. `why` (static) becomes the cursor's for a
 * value out of range. */
typedef struct eni_field {
    eni_field_kind kind;
    size_t offset, bytes;
    int64_t min;
    uint64_t max;
    const char *why;
} eni_field;

#define ENI_FIELD(kind, record, name, min, max, why)                                                         \
    {                                                                                                        \
        kind, offsetof(record, name), sizeof((record *)0)->name, min, max, why                               \
    }

/* One element. Not for ENI_FIELD_OWN. */
void eni_field_put(eni_pack *pack, const eni_field *field, const void *record);
void eni_field_get(eni_cursor *cursor, const eni_field *field, void *record);

/* `n` elements, one per field. */
void eni_fields_put(eni_pack *pack, const eni_field *fields, uint32_t n, const void *record);
void eni_fields_get(eni_cursor *cursor, const eni_field *fields, uint32_t n, void *record);

/* The same as an array of its own. */
void eni_record_put(eni_pack *pack, const eni_field *fields, uint32_t n, const void *record);
void eni_record_get(eni_cursor *cursor, const eni_field *fields, uint32_t n, void *record);

#endif
