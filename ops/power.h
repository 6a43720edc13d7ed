/* power.h - base^n in double, by squaring: the same bits on every machine, which pow() does not promise. */
#ifndef OPS_POWER_H
#define OPS_POWER_H

#include <stdint.h>

static inline double eni_power(double base, uint64_t n)
{
    double result = 1;
    for (; n > 0; n >>= 1, base *= base)
        if (n & 1) result *= base;
    return result;
}

#endif
