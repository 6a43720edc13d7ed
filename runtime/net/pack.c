/* pack.c - values as bytes and back (pack.h).
 *
 * msgpack-c writes into the buffer's memory, each value in its shortest format; the reader walks over format
 * bytes (https://github.com/msgpack/msgpack/blob/master/spec.md). */
#include "runtime/net/pack.h"

#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

void eni_pack_fini(eni_pack *pack)
{
    if (!pack->is_fixed) free(pack->data);
    *pack = (eni_pack){0};
}

static bool reserve(eni_pack *pack, size_t bytes)
{
    if (pack->capacity - pack->bytes >= bytes) return true;
    if (pack->is_fixed) return false;
    size_t capacity = pack->capacity == 0 ? 256 : pack->capacity;
    while (capacity - pack->bytes < bytes)
        capacity *= 2;
    uint8_t *data = realloc(pack->data, capacity);
    if (data == NULL) return false;
    pack->data = data;
    pack->capacity = capacity;
    return true;
}

void eni_pack_raw(eni_pack *pack, const void *data, size_t bytes)
{
    if (pack->is_failed || bytes == 0) return;
    if (!reserve(pack, bytes)) {
        pack->is_failed = true;
        return;
    }
    memcpy(pack->data + pack->bytes, data, bytes);
    pack->bytes += bytes;
}

void eni_pack_drop(eni_pack *pack, size_t bytes)
{
    if (bytes == 0) return;
    memmove(pack->data, pack->data + bytes, pack->bytes - bytes);
    pack->bytes -= bytes;
}

static int append(void *pack, const char *data, size_t bytes)
{
    eni_pack_raw(pack, data, bytes);
    return 0; /* the buffer records the failure in is_failed */
}

static msgpack_packer packer(eni_pack *pack)
{
    return (msgpack_packer){pack, append};
}

void eni_pack_array(eni_pack *pack, uint32_t n)
{
    msgpack_packer p = packer(pack);
    msgpack_pack_array(&p, n);
}

void eni_pack_uint(eni_pack *pack, uint64_t value)
{
    msgpack_packer p = packer(pack);
    msgpack_pack_uint64(&p, value);
}

void eni_pack_int(eni_pack *pack, int64_t value)
{
    msgpack_packer p = packer(pack);
    msgpack_pack_int64(&p, value);
}

void eni_pack_str(eni_pack *pack, const char *text)
{
    msgpack_packer p = packer(pack);
    msgpack_pack_str_with_body(&p, text, strlen(text));
}

void eni_pack_text(eni_pack *pack, const char *text)
{
    char clean[511];
    const size_t n = strnlen(text, sizeof clean);
    for (size_t i = 0; i < n; i++)
        clean[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i];
    msgpack_packer p = packer(pack);
    msgpack_pack_str_with_body(&p, clean, n);
}

void eni_pack_bin(eni_pack *pack, const void *data, size_t bytes)
{
    msgpack_packer p = packer(pack);
    msgpack_pack_bin_with_body(&p, data, bytes);
}

/* ---- reader ---- */

void eni_cursor_refuse(eni_cursor *cursor, const char *why)
{
    if (cursor->why == NULL) cursor->why = why;
    cursor->at = cursor->end;
}

/* The next `n` bytes, or NULL. */
static const uint8_t *take(eni_cursor *cursor, size_t n)
{
    if (cursor->why != NULL || (size_t)(cursor->end - cursor->at) < n) {
        eni_cursor_refuse(cursor, "it ends in the middle of a value");
        return NULL;
    }
    const uint8_t *bytes = cursor->at;
    cursor->at += n;
    return bytes;
}

/* `n` big-endian bytes (1, 2, 4 or 8) as a number. */
static uint64_t big_endian(eni_cursor *cursor, size_t n)
{
    const uint8_t *bytes = take(cursor, n);
    uint64_t value = 0;
    for (size_t i = 0; bytes != NULL && i < n; i++)
        value = value << 8 | bytes[i];
    return value;
}

static uint8_t next_format(eni_cursor *cursor)
{
    const uint8_t *byte = take(cursor, 1);
    return byte == NULL ? 0xc1 : *byte; /* 0xc1 is the one format byte that msgpack never uses */
}

uint32_t eni_unpack_array(eni_cursor *cursor, uint32_t min, uint32_t max)
{
    uint8_t format = next_format(cursor);
    uint64_t n = 0;
    if ((format & 0xf0) == 0x90)
        n = format & 0x0f;
    else if (format == 0xdc)
        n = big_endian(cursor, 2);
    else if (format == 0xdd)
        n = big_endian(cursor, 4);
    else
        eni_cursor_refuse(cursor, "expected an array");
    if (cursor->why == NULL && (n < min || n > max))
        eni_cursor_refuse(cursor, "an array has the wrong length");
    if (cursor->why == NULL && n > (size_t)(cursor->end - cursor->at))
        eni_cursor_refuse(cursor, "an array is longer than the message");
    return cursor->why == NULL ? (uint32_t)n : 0;
}

/* An integer of any width as magnitude and sign: a negative one as -1 - value, so that all of int64 fits. */
static uint64_t integer(eni_cursor *cursor, bool *is_negative_out)
{
    uint8_t format = next_format(cursor);
    *is_negative_out = false;
    if (format <= 0x7f) return format;
    if (format >= 0xe0) {
        *is_negative_out = true;
        return 0xffu - format;
    }
    if (format >= 0xcc && format <= 0xcf) return big_endian(cursor, (size_t)1 << (format - 0xcc));
    if (format >= 0xd0 && format <= 0xd3) {
        size_t n = (size_t)1 << (format - 0xd0);
        uint64_t value = big_endian(cursor, n);
        uint64_t sign = UINT64_C(1) << (8 * n - 1);
        if ((value & sign) == 0) return value;
        *is_negative_out = true;
        return ~value & (sign - 1);
    }
    eni_cursor_refuse(cursor, "expected an integer");
    return 0;
}

uint64_t eni_unpack_uint(eni_cursor *cursor, uint64_t max, const char *name)
{
    bool is_negative;
    uint64_t value = integer(cursor, &is_negative);
    if (is_negative || value > max) eni_cursor_refuse(cursor, name);
    return cursor->why == NULL ? value : 0;
}

int64_t eni_unpack_int(eni_cursor *cursor, int64_t min, int64_t max, const char *name)
{
    bool is_negative;
    uint64_t value = integer(cursor, &is_negative);
    if (value > INT64_MAX) eni_cursor_refuse(cursor, name);
    if (cursor->why != NULL) return 0;
    int64_t result = is_negative ? -1 - (int64_t)value : (int64_t)value;
    if (result < min || result > max) eni_cursor_refuse(cursor, name);
    return cursor->why == NULL ? result : 0;
}

/* `n` bytes of a string or binary; at most `max` are accepted. */
static eni_span body(eni_cursor *cursor, uint64_t n, size_t max, const char *name)
{
    if (cursor->why == NULL && n > max) eni_cursor_refuse(cursor, name);
    const uint8_t *data = cursor->why == NULL ? take(cursor, n) : NULL;
    return data == NULL ? (eni_span){(const uint8_t *)"", 0} : (eni_span){data, n};
}

eni_span eni_unpack_str(eni_cursor *cursor, size_t max, const char *name)
{
    uint8_t format = next_format(cursor);
    uint64_t n = 0;
    if ((format & 0xe0) == 0xa0)
        n = format & 0x1f;
    else if (format >= 0xd9 && format <= 0xdb)
        n = big_endian(cursor, (size_t)1 << (format - 0xd9));
    else
        eni_cursor_refuse(cursor, "expected a string");
    eni_span span = body(cursor, n, max, name);
    if (memchr(span.data, 0, span.bytes) != NULL) {
        eni_cursor_refuse(cursor, "a string contains a zero byte");
        return (eni_span){(const uint8_t *)"", 0};
    }
    return span;
}

eni_span eni_unpack_bin(eni_cursor *cursor, size_t max, const char *name)
{
    uint8_t format = next_format(cursor);
    uint64_t n = 0;
    if (format >= 0xc4 && format <= 0xc6)
        n = big_endian(cursor, (size_t)1 << (format - 0xc4));
    else
        eni_cursor_refuse(cursor, "expected binary");
    return body(cursor, n, max, name);
}

void eni_unpack_text(eni_cursor *cursor, char *text_out, size_t capacity, const char *name)
{
    eni_span span = eni_unpack_str(cursor, capacity - 1, name);
    for (size_t i = 0; i < span.bytes; i++)
        if (span.data[i] < 0x20 || span.data[i] == 0x7f)
            eni_cursor_refuse(cursor, "a text contains control characters");
    if (cursor->why != NULL) span.bytes = 0;
    memcpy(text_out, span.data, span.bytes);
    text_out[span.bytes] = '\0';
}

bool eni_cursor_finish(eni_cursor *cursor)
{
    if (cursor->why == NULL && cursor->at != cursor->end)
        eni_cursor_refuse(cursor, "bytes are left after the end of the message");
    return cursor->why == NULL;
}

/* ---- records ---- */

static uint64_t load(const eni_field *field, const void *record)
{
    const uint8_t *at = (const uint8_t *)record + field->offset;
    uint32_t narrow;
    uint64_t wide;
    if (field->bytes == sizeof narrow) {
        memcpy(&narrow, at, sizeof narrow);
        return field->kind == ENI_FIELD_INT ? (uint64_t)(int64_t)(int32_t)narrow : narrow;
    }
    memcpy(&wide, at, sizeof wide);
    return wide;
}

static void store(const eni_field *field, void *record, uint64_t value)
{
    uint8_t *at = (uint8_t *)record + field->offset;
    const uint32_t narrow = (uint32_t)value;
    if (field->bytes == sizeof narrow)
        memcpy(at, &narrow, sizeof narrow);
    else
        memcpy(at, &value, sizeof value);
}

void eni_field_put(eni_pack *pack, const eni_field *field, const void *record)
{
    const void *at = (const uint8_t *)record + field->offset;
    const eni_span *span = at;
    switch (field->kind) {
    case ENI_FIELD_UINT: eni_pack_uint(pack, load(field, record)); return;
    case ENI_FIELD_INT: eni_pack_int(pack, (int64_t)load(field, record)); return;
    case ENI_FIELD_BOOL: eni_pack_uint(pack, *(const bool *)at); return;
    case ENI_FIELD_TEXT: eni_pack_text(pack, at); return;
    case ENI_FIELD_BYTES: eni_pack_bin(pack, at, field->bytes); return;
    case ENI_FIELD_BLOB: eni_pack_bin(pack, span->data, span->bytes); return;
    case ENI_FIELD_OWN: return;
    }
}

void eni_field_get(eni_cursor *cursor, const eni_field *field, void *record)
{
    void *at = (uint8_t *)record + field->offset;
    switch (field->kind) {
    case ENI_FIELD_UINT: store(field, record, eni_unpack_uint(cursor, field->max, field->why)); return;
    case ENI_FIELD_INT:
        store(field, record, (uint64_t)eni_unpack_int(cursor, field->min, (int64_t)field->max, field->why));
        return;
    case ENI_FIELD_BOOL: *(bool *)at = eni_unpack_uint(cursor, 1, field->why) != 0; return;
    case ENI_FIELD_TEXT: eni_unpack_text(cursor, at, field->bytes, field->why); return;
    case ENI_FIELD_BYTES: {
        const eni_span span = eni_unpack_bin(cursor, field->bytes, field->why);
        if (span.bytes != field->bytes)
            eni_cursor_refuse(cursor, field->why);
        else
            memcpy(at, span.data, span.bytes);
        return;
    }
    case ENI_FIELD_BLOB: *(eni_span *)at = eni_unpack_bin(cursor, field->max, field->why); return;
    case ENI_FIELD_OWN: return;
    }
}

/* flatten: inlines msgpack-c's functions into one loop whose position in the buffer stays in a register,
 * which halves the time of a message's header. */
__attribute__((flatten)) void eni_fields_put(eni_pack *pack, const eni_field *fields, uint32_t n,
                                             const void *record)
{
    for (uint32_t i = 0; i < n; i++)
        eni_field_put(pack, &fields[i], record);
}

void eni_fields_get(eni_cursor *cursor, const eni_field *fields, uint32_t n, void *record)
{
    for (uint32_t i = 0; i < n; i++)
        eni_field_get(cursor, &fields[i], record);
}

void eni_record_put(eni_pack *pack, const eni_field *fields, uint32_t n, const void *record)
{
    eni_pack_array(pack, n);
    eni_fields_put(pack, fields, n, record);
}

void eni_record_get(eni_cursor *cursor, const eni_field *fields, uint32_t n, void *record)
{
    eni_unpack_array(cursor, n, n);
    eni_fields_get(cursor, fields, n, record);
}
