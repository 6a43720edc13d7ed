/* math.c - exp and log in plain arithmetic: libm's differ between machines and versions in the last bit. */
#include <stdint.h>
#include <string.h>

#include "ops/ref/ref.h"

/* ln 2 in two parts: the first has 21 trailing zero bits, so k * LN2_HI is exact for every exponent k. */
#define LN2_HI   0x1.62e42feep-1
#define LN2_LO   0x1.a39ef35793c76p-33
#define INV_LN2  0x1.71547652b82fep+0
#define SQRT_TWO 0x1.6a09e667f3bcdp+0

/* 2^k for -1022 <= k <= 1023. */
static double power_of_two(int64_t k)
{
    const uint64_t bits = (uint64_t)(k + 1023) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* exp(x) = 2^k exp(r), |r| <= ln(2) / 2, by the Taylor series, whose 14th term is below 2^-57. */
double eni_ref_exp(double x)
{
    if (x != x) return x;
    if (x > 709.0) return power_of_two(1023) * 4.0; /* infinity */
    if (x < -708.0) return 0.0;
    const double scaled = x * INV_LN2;
    const int64_t k = (int64_t)(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
    const double r = (x - (double)k * LN2_HI) - (double)k * LN2_LO;
    double sum = 1.0;
    for (int i = 14; i >= 1; i--)
        sum = 1.0 + sum * r / i;
    return sum * power_of_two(k);
}

/* log(x) = k ln 2 + 2 atanh(s), s = (m - 1) / (m + 1), x = 2^k m, sqrt(1/2) < m <= sqrt(2). */
double eni_ref_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int64_t k = (int64_t)(bits >> 52) - 1023;
    double m = x * power_of_two(k > 0 ? -k + 1 : -k) * (k > 0 ? 0.5 : 1.0);
    if (m > SQRT_TWO) {
        m *= 0.5;
        k++;
    }
    const double s = (m - 1.0) / (m + 1.0), s2 = s * s;
    double sum = 0.0;
    for (int i = 25; i >= 3; i -= 2)
        sum = (sum + 1.0 / i) * s2;
    return (double)k * LN2_HI + (2.0 * s + (2.0 * s * sum + (double)k * LN2_LO));
}
