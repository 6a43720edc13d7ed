/* crc32c.c - CRC-32C by ISA-L on any processor; by our own folding with AVX-512. */
#include "core/crc32c.h"

#include <isa-l/crc.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

/* ISA-L 2.30 takes the length as an int. Its CRC carries no complement at either end. */
static uint32_t by_library(uint32_t crc, const void *bytes, size_t length)
{
    enum { AT_ONCE = 1 << 30 };
    uint8_t *at = (uint8_t *)(uintptr_t)bytes; /* not written to; the prototype lacks the const */
    crc = ~crc;
    for (; length > AT_ONCE; at += AT_ONCE, length -= AT_ONCE)
        crc = crc32_iscsi(at, AT_ONCE, crc);
    return ~crc32_iscsi(at, (int)length, crc);
}

#if defined(__x86_64__) && defined(__GNUC__)
/* Gopal et al. 2009, "Fast CRC computation for generic polynomials using PCLMULQDQ": 256 bytes stand for all
 * before them. They are moved over the next 256 by multiplying their 64-bit halves by x^(2048 + 32) and
 * x^(2048 - 32) modulo the polynomial (bits reflected), without carries. The remaining bytes have the same CRC
 * as the whole, and ISA-L computes it. Needs 256 bytes at least. Prefetches the next page explicitly, because
 * the hardware prefetcher stops at page boundaries: 16 GB/s from memory instead of 13. */
__attribute__((target("avx512f,vpclmulqdq"))) static uint32_t by_folding(uint32_t crc, const void *bytes,
                                                                         size_t length)
{
    enum { PARTS = 4, PART = 64, BLOCK = PARTS * PART, AHEAD = 4096 };
    const __m512i far = _mm512_broadcast_i32x4(_mm_set_epi64x(0xb9e02b86, 0xdcb17aa4));
    const uint8_t *at = bytes;
    uint8_t rest[BLOCK];
    __m512i part[PARTS];
    for (int i = 0; i < PARTS; i++)
        part[i] = _mm512_loadu_si512(at + PART * i);
    const __m512i begin = _mm512_maskz_set1_epi32(1, (int)~crc);
    part[0] = _mm512_xor_si512(part[0], begin);
    for (at += BLOCK, length -= BLOCK; length >= BLOCK; at += BLOCK, length -= BLOCK)
        for (int i = 0; i < PARTS; i++) {
            __builtin_prefetch((const void *)((uintptr_t)at + AHEAD + (size_t)PART * (size_t)i));
            const __m512i low = _mm512_clmulepi64_epi128(part[i], far, 0x00);
            const __m512i high = _mm512_clmulepi64_epi128(part[i], far, 0x11);
            const __m512i next = _mm512_loadu_si512(at + PART * i);
            part[i] = _mm512_ternarylogic_epi64(low, high, next, 0x96); /* the sum of all three */
        }
    for (int i = 0; i < PARTS; i++)
        _mm512_storeu_si512(rest + PART * i, part[i]);
    return by_library(by_library(~0u, rest, sizeof rest), at, length);
}
#endif

uint32_t eni_crc32c(uint32_t crc, const void *bytes, size_t length)
{
#if defined(__x86_64__) && defined(__GNUC__)
    enum { WORTH_IT = 1024 };
    if (length >= WORTH_IT && __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f"))
        return by_folding(crc, bytes, length);
#endif
    return by_library(crc, bytes, length);
}
