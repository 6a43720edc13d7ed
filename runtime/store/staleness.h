/* staleness.h - a histogram of small whole numbers: how many versions old pushes were, how far clocks ran
 * ahead.
 *
 * Values up to ENI_HISTOGRAM_MAX have a bin each, larger ones share the last; count, sum and maximum are
 * exact whatever the value. Memory grows with the largest value seen, so a thousand clients that are never
 * stale cost nothing. Not thread-safe: it belongs to the store's owner. */
#ifndef STORE_STALENESS_H
#define STORE_STALENESS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "entrain/status.h"

enum { ENI_HISTOGRAM_MAX = 65535 };

typedef struct eni_histogram {
    uint64_t count, sum, max;
    uint64_t *bin; /* (bins) how often each value came; owned */
    uint32_t bins; /* values 0 .. bins-1 have a bin; those beyond have not come yet */
} eni_histogram;

/* Zeroed memory is an empty histogram. Frees the bins; safe on zeroed memory and twice. */
void eni_histogram_fini(eni_histogram *histogram);

/* Counts `value`. EN_ENOMEM (logged) leaves the histogram as it was; allocates only for a new maximum. */
en_status eni_histogram_add(eni_histogram *histogram, uint64_t value);

/* Adds the counts of `from` (another shard's, another partition's). EN_ENOMEM leaves `into` as it was. */
en_status eni_histogram_merge(eni_histogram *into, const eni_histogram *from);

/* The mean; 0 if empty. */
double eni_histogram_mean(const eni_histogram *histogram);

/* The least value that at least `share` (0 .. 1) of the counted ones do not exceed; 0 if empty. Beyond
 * ENI_HISTOGRAM_MAX it answers the maximum. */
uint64_t eni_histogram_quantile(const eni_histogram *histogram, double share);

/* As result.json has it: mean, quantiles, and with has_bins [value, count] of each bin. */
json_t *eni_histogram_json(const eni_histogram *histogram, bool has_bins);

#endif
