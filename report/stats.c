/* stats.c - median, quantiles, spread and the interval of a few numbers. */
#include "report/stats.h"

#include <math.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void eni_stats_sort(double *values, size_t n)
{
    if (n > 1) qsort(values, n, sizeof *values, by_value);
}

double eni_stats_median(double *values, size_t n)
{
    if (n == 0) return NAN;
    eni_stats_sort(values, n);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double eni_stats_quantile(const double *sorted, size_t n, double q)
{
    if (n == 0) return NAN;
    double place = q * (double)(n - 1);
    size_t below = (size_t)place;
    if (below + 1 >= n) return sorted[n - 1];
    return sorted[below] + (place - (double)below) * (sorted[below + 1] - sorted[below]);
}

eni_summary eni_stats_summary(double *values, size_t n)
{
    if (n == 0) return (eni_summary){0, NAN, NAN, NAN};
    double median = eni_stats_median(values, n);
    return (eni_summary){n, median, values[0], values[n - 1]};
}

eni_interval eni_stats_interval(double *values, size_t n)
{
    if (n == 0) return (eni_interval){NAN, NAN, 0};
    eni_stats_sort(values, n);

    /* P(fewer than k of n values lie below the median) is a binomial tail with p = 1/2. */
    size_t k = 1;
    double term = pow(0.5, (double)n), tail = term; /* P(0 below) = P(k - 1 or fewer) for k = 1 */
    double confidence = n == 1 ? 0 : 1 - 2 * tail;
    while (k < n / 2) {
        term = term * (double)(n - k + 1) / (double)k;
        if (1 - 2 * (tail + term) < 0.95) break;
        tail += term;
        confidence = 1 - 2 * tail;
        k++;
    }
    return (eni_interval){values[k - 1], values[n - k], confidence};
}
