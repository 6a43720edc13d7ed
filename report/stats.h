/* stats.h - the few statistics that a comparison of three seeds can support: medians, quantiles, and an exact
 * interval for a median. No normal distribution is assumed.
 *
 * Why not a bootstrap: resampling 3 values can give only 10 different multisets, so its "95 %" covers far
 * less. The interval of order statistics is exact for every n and states its true coverage. */
#ifndef REPORT_STATS_H
#define REPORT_STATS_H

#include <stddef.h>

/* Median, least and greatest of n values. n = 0: all NAN. */
typedef struct eni_summary {
    size_t n;
    double median, min, max;
} eni_summary;

/* A confidence interval for the median of the population of n values. */
typedef struct eni_interval {
    double low, high;
    double confidence; /* the exact coverage, for instance 0.75 for the range of 3 values */
} eni_interval;

/* Sorts `values` ascending, +infinity (a censored time) last. No NAN. */
void eni_stats_sort(double *values, size_t n);

/* The median; for an even count the mean of the middle two. Reorders `values`; +infinity is allowed. */
double eni_stats_median(double *values, size_t n);

/* The q-quantile of sorted values by linear interpolation (Hyndman & Fan 1996, type 7); NAN for n = 0. */
double eni_stats_quantile(const double *sorted, size_t n, double q);

/* Summary of `values`, which it reorders. */
eni_summary eni_stats_summary(double *values, size_t n);

/* The narrowest interval [x(k), x(n+1-k)] of order statistics that covers the median with at least 95 % or,
 * if n is too small for that (n < 6), the whole range with its coverage: 1 - 2^(1-n). (Conover, Practical
 * Nonparametric Statistics, 3rd ed., section 3.2.) Reorders `values`. */
eni_interval eni_stats_interval(double *values, size_t n);

#endif
