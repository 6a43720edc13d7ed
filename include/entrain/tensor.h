/* tensor.h - element types and extents: how devices and models describe shapes. */
#ifndef ENTRAIN_TENSOR_H
#define ENTRAIN_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element types. Values are part of the ABI and of the wire: append, never renumber. Those from EN_F64 on are only stored
 * (rank.h's memories); no device computes with them. */
enum {
    EN_F32 = 1,
    EN_BF16 = 2,
    EN_F16 = 3,
    EN_I32 = 4,
    EN_U8 = 5,
    EN_I64 = 6,
    EN_F64 = 7,
    EN_BOOL = 8, /* a byte, 0 or 1 */
    EN_I8 = 9,
    EN_I16 = 10,
    EN_U16 = 11,
    EN_U32 = 12,
    EN_U64 = 13
};

/* Bytes of one element; 0 for an unknown type. */
static inline size_t en_dtype_bytes(uint32_t dtype)
{
    switch (dtype) {
    case EN_F64:
    case EN_I64:
    case EN_U64: return 8;
    case EN_F32:
    case EN_I32:
    case EN_U32: return 4;
    case EN_BF16:
    case EN_F16:
    case EN_I16:
    case EN_U16: return 2;
    case EN_BOOL:
    case EN_I8:
    case EN_U8: return 1;
    default: return 0;
    }
}

/* The extent of an activation, always stored as (N, H, W, C), C fastest. A matrix (N, C) has h = w = 1. */
typedef struct en_extent {
    int64_t n, h, w, c;
} en_extent;

/* Elements of an extent; 0 if a side is not positive or the product overflows. */
static inline int64_t en_extent_count(en_extent e)
{
    const int64_t side[4] = {e.n, e.h, e.w, e.c};
    int64_t count = 1;
    for (int i = 0; i < 4; i++) {
        if (side[i] <= 0 || count > INT64_MAX / 8 / side[i]) return 0;
        count *= side[i];
    }
    return count;
}

#ifdef __cplusplus
}
#endif
#endif
