/* staleness.h - a histogram of small whole numbers: how many versions old pushes were, how far clocks ran
 * ahead.
 *
 * Values up to ENI_HISTOGRAM_MAX have a bin each, larger ones share the last; count, sum and maximum are
 * exact whatever the value. Only bins that are not empty take memory: a client of thousands is stale by thousands of
 * versions, but pushes some hundred times. Not thread-safe: it belongs to the store's owner. */
#ifndef STORE_STALENESS_H
#define STORE_STALENESS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "entrain/status.h"

enum { ENI_HISTOGRAM_MAX = 65535 };

/* How often a value came. */
typedef struct eni_histogram_value {
    uint64_t count;
    uint32_t value;
} eni_histogram_value;

typedef struct eni_histogram {
    uint64_t count, sum, max;
    uint32_t n, room;
    eni_histogram_value *item; /* (n) ascending; owned */
} eni_histogram;

/* Zeroed memory is an empty histogram. Safe on zeroed memory and twice. */
void eni_histogram_fini(eni_histogram *histogram);

/* Counts `value`. EN_ENOMEM (logged) leaves the histogram as it was; allocates only for a new value. */
en_status eni_histogram_add(eni_histogram *histogram, uint64_t value);

/* Adds `times` to the bin of `value` (at most ENI_HISTOGRAM_MAX) alone: count, sum and max are the caller's, who reads a
 * histogram back. EN_ENOMEM, logged. */
en_status eni_histogram_put(eni_histogram *histogram, uint32_t value, uint64_t times);

/* How often `value` (at most ENI_HISTOGRAM_MAX) came, and the number of bins from 0 on that hold all values: a power of
 * two from 8 on, 0 if empty. */
uint64_t eni_histogram_at(const eni_histogram *histogram, uint32_t value);
uint32_t eni_histogram_bins(const eni_histogram *histogram);

/* Adds the counts of `from` (another shard's, another partition's). EN_ENOMEM, logged: `into` is then
 * of no use. */
en_status eni_histogram_merge(eni_histogram *into, const eni_histogram *from);

/* The mean; 0 if empty. */
double eni_histogram_mean(const eni_histogram *histogram);

/* The least value that at least `share` (0 .. 1) of the counted ones do not exceed; 0 if empty. Beyond
 * ENI_HISTOGRAM_MAX it answers the maximum. */
uint64_t eni_histogram_quantile(const eni_histogram *histogram, double share);

/* As result.json has it: mean, quantiles, and with has_bins [value, count] of each bin. */
json_t *eni_histogram_json(const eni_histogram *histogram, bool has_bins);

#endif
