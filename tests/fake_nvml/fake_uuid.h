/* fake_uuid.h - the uuid of a simulated GPU, from its index and FAKE_GPU_MACHINE: tests that run side by side and must not
 * see each other name machines of their own. The driver's library and CUDA's double (tests/fake_gpu) agree on it. */
#ifndef TESTS_FAKE_UUID_H
#define TESTS_FAKE_UUID_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static inline uint64_t fake_hash(const char *text, uint64_t seed)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325) ^ seed * UINT64_C(0x9e3779b97f4a7c15);
    for (; *text != 0; text++)
        h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    h ^= h >> 29;
    h *= UINT64_C(0xbf58476d1ce4e5b9);
    return h ^ h >> 32;
}

static inline void fake_uuid(const char *machine, int index, unsigned char uuid_out[16])
{
    char name[256];
    snprintf(name, sizeof name, "%s:%d", machine, index);
    const uint64_t half[2] = {fake_hash(name, 1), fake_hash(name, 2)};
    memcpy(uuid_out, half, sizeof half);
}

#endif
