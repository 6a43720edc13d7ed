/* canary.h - known bits behind a vector that foreign code may write: they show a write beyond its end, and in it what was
 * left out. */
#ifndef CORE_CANARY_H
#define CORE_CANARY_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { ENI_CANARY = 16 }; /* elements behind the vector */

/* A NaN that nobody computes. Also of a sum with it: that keeps the bits of a NaN. */
static inline bool eni_is_canary(const float *value)
{
    const uint32_t bits = 0x7fc0ca4eu;
    return memcmp(value, &bits, sizeof bits) == 0;
}

static inline void eni_canary_put(float *at, uint64_t count)
{
    const uint32_t bits = 0x7fc0ca4eu;
    for (uint64_t i = 0; i < count; i++)
        memcpy(&at[i], &bits, sizeof bits);
}

/* The first of ENI_CANARY elements that was written; ENI_CANARY: none. */
static inline uint64_t eni_canary_written(const float *at)
{
    uint64_t i = 0;
    while (i < ENI_CANARY && eni_is_canary(&at[i]))
        i++;
    return i;
}

#endif
