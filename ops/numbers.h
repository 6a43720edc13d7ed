/* numbers.h - numbers of the optimizer and of its schedules: a power, and how their texts are read. */
#ifndef OPS_NUMBERS_H
#define OPS_NUMBERS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* base^n in double, by squaring: the same bits on every machine, which pow() does not promise. */
static inline double eni_power(double base, uint64_t n)
{
    double result = 1;
    for (; n > 0; n >>= 1, base *= base)
        if (n & 1) result *= base;
    return result;
}

/* A rate of 0 to 1e6, and a whole number, at the start of a text, which is advanced. Not "0x1p3", "inf" or "+1". */
static inline bool eni_read_rate(const char **text, float *rate)
{
    char *end;
    const char *const begin = *text, *const plain_end = begin + strspn(begin, "0123456789.e+-");
    *rate = strtof(begin, &end);
    *text = end;
    return *begin >= '0' && *begin <= '9' && end == plain_end && *rate <= 1e6f;
}

static inline bool eni_read_whole(const char **text, uint64_t *whole)
{
    char *end;
    const char *const begin = *text;
    *whole = strtoull(begin, &end, 10);
    *text = end;
    return *begin >= '0' && *begin <= '9' && end - begin < 20; /* all of 19 digits fit */
}

#endif
