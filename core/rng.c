/* rng.c - ten rounds of Philox on (seed, purpose, rank, step, index), and numbers made from its output. */
#include "core/rng.h"

__extension__ typedef unsigned __int128 wide; /* a GNU extension */

static void philox_round(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    uint64_t a = (uint64_t)0xD2511F53u * c[0];
    uint64_t b = (uint64_t)0xCD9E8D57u * c[2];
    uint32_t c0 = (uint32_t)(b >> 32) ^ c[1] ^ k0;
    uint32_t c2 = (uint32_t)(a >> 32) ^ c[3] ^ k1;
    c[1] = (uint32_t)b;
    c[3] = (uint32_t)a;
    c[0] = c0;
    c[2] = c2;
}

/* Folds the parts of a key that do not fit the 128-bit counter into the 64-bit Philox key (splitmix64's
 * finalizer, Steele et al. 2014). */
static uint64_t fold(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xBF58476D1CE4E5B9);
    x ^= x >> 27;
    x *= UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static uint64_t philox(const eni_rng_key *key, uint64_t index, uint32_t lane)
{
    uint64_t k = fold(key->seed + UINT64_C(0x9E3779B97F4A7C15) * key->purpose);
    k ^= (uint64_t)lane << 32 | key->rank;
    uint32_t c[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)key->step,
                     (uint32_t)(key->step >> 32)};
    uint32_t k0 = (uint32_t)k, k1 = (uint32_t)(k >> 32);
    for (int i = 0; i < 10; i++) {
        philox_round(c, k0, k1);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (uint64_t)c[1] << 32 | c[0];
}

uint64_t eni_rng_u64(const eni_rng_key *key, uint64_t index)
{
    return philox(key, index, 0);
}

uint64_t eni_rng_below(const eni_rng_key *key, uint64_t index, uint64_t bound)
{
    for (uint32_t lane = 1;; lane++) {
        wide product = (wide)philox(key, index, lane) * bound;
        uint64_t low = (uint64_t)product;
        if (low >= bound || low >= -bound % bound) return (uint64_t)(product >> 64);
    }
}

double eni_rng_unit(const eni_rng_key *key, uint64_t index)
{
    return (double)(philox(key, index, 0) >> 11) * 0x1p-53;
}
