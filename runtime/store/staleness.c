/* staleness.c - a histogram: a sorted list of a few values, then bins that grow with the largest value; count, sum and
 * maximum beside them. */
#include "runtime/store/staleness.h"

#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/log.h"
#include "core/try.h"

enum { FEW = 256, FIRST_BINS = 8 };

void eni_histogram_fini(eni_histogram *histogram)
{
    free(histogram->bin);
    free(histogram->few);
    *histogram = (eni_histogram){0};
}

static en_status grow(void **array, uint64_t n, size_t size)
{
    void *grown = realloc(*array, n * size);
    if (grown == NULL)
        return eni_fail(EN_ENOMEM, "staleness", "out of memory for a histogram of %llu bins",
                        (unsigned long long)n);
    *array = grown;
    return EN_OK;
}

/* Doubled, so that a slowly rising maximum does not allocate every time. */
static uint32_t bins_for(uint64_t max)
{
    uint64_t bins = FIRST_BINS;
    while (bins <= max && bins < ENI_HISTOGRAM_MAX + 1)
        bins *= 2;
    return (uint32_t)bins;
}

static en_status grow_bins(eni_histogram *h, uint64_t value)
{
    const uint32_t bins = bins_for(value);
    if (bins <= h->bins) return EN_OK;
    EN_TRY(grow((void **)&h->bin, bins, sizeof *h->bin));
    memset(h->bin + h->bins, 0, (bins - h->bins) * sizeof *h->bin);
    h->bins = bins;
    return EN_OK;
}

en_status eni_histogram_spread(eni_histogram *h)
{
    if (h->few == NULL) return EN_OK;
    EN_TRY(grow_bins(h, h->few[h->nfew - 1].value));
    for (uint32_t i = 0; i < h->nfew; i++)
        h->bin[h->few[i].value] = h->few[i].count;
    free(h->few);
    h->few = NULL;
    h->nfew = h->few_room = 0;
    return EN_OK;
}

/* The position of `value` in the list, or where it belongs. */
static uint32_t find(const eni_histogram *h, uint32_t value)
{
    uint32_t lo = 0, hi = h->nfew;
    while (lo < hi) {
        const uint32_t mid = (lo + hi) / 2;
        if (h->few[mid].value < value)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static en_status add_to_few(eni_histogram *h, uint32_t value, uint64_t times)
{
    const uint32_t at = find(h, value);
    if (at == h->nfew || h->few[at].value != value) {
        if (h->nfew == h->few_room) {
            const uint32_t room = h->few_room > 0 ? 2 * h->few_room : FIRST_BINS;
            EN_TRY(grow((void **)&h->few, room, sizeof *h->few));
            h->few_room = room;
        }
        memmove(&h->few[at + 1], &h->few[at], (h->nfew++ - at) * sizeof *h->few);
        h->few[at] = (eni_histogram_value){.value = value};
    }
    h->few[at].count += times;
    return EN_OK;
}

/* Counts a value below or equal to ENI_HISTOGRAM_MAX. */
static en_status count(eni_histogram *h, uint32_t value, uint64_t times)
{
    if (h->bin == NULL && h->nfew < FEW) return add_to_few(h, value, times);
    EN_TRY(eni_histogram_spread(h));
    EN_TRY(grow_bins(h, value));
    h->bin[value] += times;
    return EN_OK;
}

en_status eni_histogram_add(eni_histogram *histogram, uint64_t value)
{
    EN_TRY(count(histogram, value < ENI_HISTOGRAM_MAX ? (uint32_t)value : ENI_HISTOGRAM_MAX, 1));
    histogram->count++;
    histogram->sum += value;
    if (value > histogram->max) histogram->max = value;
    return EN_OK;
}

en_status eni_histogram_merge(eni_histogram *into, const eni_histogram *from)
{
    for (uint32_t i = 0; i < from->nfew; i++)
        EN_TRY(count(into, from->few[i].value, from->few[i].count));
    for (uint32_t i = 0; i < from->bins; i++)
        if (from->bin[i] > 0) EN_TRY(count(into, i, from->bin[i]));
    into->count += from->count;
    into->sum += from->sum;
    if (from->max > into->max) into->max = from->max;
    return EN_OK;
}

uint64_t eni_histogram_at(const eni_histogram *histogram, uint32_t value)
{
    if (histogram->few == NULL) return value < histogram->bins ? histogram->bin[value] : 0;
    const uint32_t at = find(histogram, value);
    return at < histogram->nfew && histogram->few[at].value == value ? histogram->few[at].count : 0;
}

uint32_t eni_histogram_bins(const eni_histogram *histogram)
{
    return histogram->few != NULL ? bins_for(histogram->few[histogram->nfew - 1].value) : histogram->bins;
}

double eni_histogram_mean(const eni_histogram *histogram)
{
    return histogram->count ? (double)histogram->sum / (double)histogram->count : 0;
}

uint64_t eni_histogram_quantile(const eni_histogram *histogram, double share)
{
    const double wanted = share * (double)histogram->count;
    uint64_t seen = 0;
    for (uint32_t i = 0; i < histogram->nfew && histogram->few[i].value < ENI_HISTOGRAM_MAX; i++) {
        seen += histogram->few[i].count;
        if ((double)seen >= wanted) return histogram->few[i].value;
    }
    for (uint32_t i = 0; i < histogram->bins && i < ENI_HISTOGRAM_MAX; i++) {
        seen += histogram->bin[i];
        if (seen > 0 && (double)seen >= wanted) return i;
    }
    return histogram->max;
}

json_t *eni_histogram_json(const eni_histogram *h, bool has_bins)
{
    json_t *o = json_object(), *bins = json_array();
    eni_json_set_number(o, "mean", eni_histogram_mean(h));
    ENI_JSON_SET_INTS(o, {"p50", eni_histogram_quantile(h, 0.50)}, {"p95", eni_histogram_quantile(h, 0.95)},
                      {"p99", eni_histogram_quantile(h, 0.99)}, {"max", h->max}, {"count", h->count},
                      {"sum", h->sum});
    const uint32_t last = h->max < ENI_HISTOGRAM_MAX ? (uint32_t)h->max : ENI_HISTOGRAM_MAX;
    for (uint32_t v = 0; has_bins && v <= last; v++)
        if (eni_histogram_at(h, v) > 0)
            json_array_append_new(bins,
                                  json_pack("[I, I]", (json_int_t)v, (json_int_t)eni_histogram_at(h, v)));
    json_object_set_new(o, "histogram", bins);
    return o;
}
