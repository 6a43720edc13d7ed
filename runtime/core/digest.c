/* digest.c - see digest.h. */
#include "runtime/core/digest.h"

#include <sodium.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "runtime/core/memory.h"

enum { BLOCK = 64 };

struct eni_digest {
    crypto_hash_sha256_state state;
    int has_instructions;
};

/* libsodium has SHA-256 in C only: 300 MB/s. Where the processor has instructions for it, whole blocks are theirs. */
#if defined(__x86_64__) && defined(__GNUC__)
static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static int find_instructions(void)
{
    unsigned a, b, c, d;
    return __builtin_cpu_supports("sse4.1") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA) != 0;
}

/* Gulley et al. 2013, "Intel SHA Extensions". The instructions want the eight words of the state as ABEF and CDGH,
 * do two rounds each, and extend the message by four words at a time. */
__attribute__((target("sha,sse4.1"))) static void compress(uint32_t state[8], const uint8_t *block, size_t n)
{
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i *words = (__m128i *)(void *)state;
    const __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128(words), 0xb1);
    const __m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128(words + 1), 0x1b);
    __m128i abef = _mm_alignr_epi8(badc, hgfe, 8), cdgh = _mm_blend_epi16(hgfe, badc, 0xf0);
    for (; n > 0; n--, block += BLOCK) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[4];
        for (int i = 0; i < 4; i++)
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)block + i), big_endian);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            const __m128i k = _mm_loadu_si128((const __m128i *)(const void *)round_constants + i);
            const __m128i now = w[i & 3], last = w[(i + 3) & 3], sum = _mm_add_epi32(now, k);
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
            const __m128i part = _mm_add_epi32(_mm_sha256msg1_epu32(now, w[(i + 1) & 3]),
                                               _mm_alignr_epi8(last, w[(i + 2) & 3], 4));
            w[i & 3] = _mm_sha256msg2_epu32(part, last);
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128(words, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128(words + 1, _mm_alignr_epi8(dchg, feba, 8));
}
#else
static int find_instructions(void)
{
    return 0;
}

static void compress(uint32_t state[8], const uint8_t *block, size_t n)
{
    (void)state, (void)block, (void)n;
}
#endif

eni_digest *eni_digest_new(void)
{
    eni_digest *digest = eni_alloc(sizeof *digest);
    if (digest == NULL) return NULL;
    crypto_hash_sha256_init(&digest->state);
    digest->has_instructions = find_instructions();
    return digest;
}

/* What does not fill a block, and the end, is libsodium's: it counts bits, and holds the rest of a block. */
void eni_digest_add(eni_digest *digest, const void *data, size_t bytes)
{
    crypto_hash_sha256_state *state = &digest->state;
    const uint8_t *at = data;
    const size_t held = (size_t)(state->count >> 3) % BLOCK, missing = held > 0 ? BLOCK - held : 0;
    if (digest->has_instructions && bytes >= missing + BLOCK) {
        if (missing > 0) crypto_hash_sha256_update(state, at, missing);
        const size_t blocks = (bytes - missing) / BLOCK;
        compress(state->state, at + missing, blocks);
        state->count += (uint64_t)blocks * BLOCK * 8;
        at += missing + blocks * BLOCK;
        bytes -= missing + blocks * BLOCK;
    }
    crypto_hash_sha256_update(state, at, bytes);
}

void eni_digest_take(eni_digest *digest, char hex_out[ENI_DIGEST_HEX])
{
    unsigned char hash[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_final(&digest->state, hash);
    sodium_bin2hex(hex_out, ENI_DIGEST_HEX, hash, sizeof hash);
    eni_free(digest);
}

void eni_digest_free(eni_digest *digest)
{
    eni_free(digest);
}

void eni_digest_of(const void *data, size_t bytes, char hex_out[ENI_DIGEST_HEX])
{
    unsigned char hash[crypto_hash_sha256_BYTES];
    crypto_hash_sha256(hash, data, bytes);
    sodium_bin2hex(hex_out, ENI_DIGEST_HEX, hash, sizeof hash);
}

void eni_random_bytes(void *memory_out, size_t bytes)
{
    randombytes_buf(memory_out, bytes);
}

const char *eni_digest_library(void)
{
    return sodium_version_string();
}
