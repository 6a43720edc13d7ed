/* pack.h - writes msgpack (by msgpack-c) into a buffer of ours.
 *
 * The buffer is either fixed memory of the caller's or grows on the heap. When it cannot take more, is_failed
 * is set and later writes do nothing: check once, at the end. */
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

/* Over the caller's memory. */
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
/* The same with '?' in place of control characters, cut at 511 bytes: readers refuse them in texts, because
 * texts end up in logs and on terminals. */
void eni_pack_text(eni_pack *pack, const char *text);
void eni_pack_bin(eni_pack *pack, const void *data, size_t bytes);

#endif
