/* staleness.c - a histogram that grows with its largest value; count, sum and maximum beside it. */
#include "runtime/store/staleness.h"

#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/log.h"
#include "core/try.h"

void eni_histogram_fini(eni_histogram *histogram)
{
    free(histogram->bin);
    *histogram = (eni_histogram){0};
}

/* Makes room for `value`, doubling, so that a slowly rising maximum does not allocate every time. */
static en_status histogram_grow(eni_histogram *histogram, uint64_t value)
{
    if (value < histogram->bins || histogram->bins == ENI_HISTOGRAM_MAX + 1) return EN_OK;
    uint64_t bins = histogram->bins ? histogram->bins : 8;
    while (bins <= value && bins < ENI_HISTOGRAM_MAX + 1)
        bins *= 2;
    uint64_t *bin = realloc(histogram->bin, bins * sizeof *bin);
    if (bin == NULL)
        return eni_fail(EN_ENOMEM, "staleness", "out of memory for a histogram of %llu bins",
                        (unsigned long long)bins);
    memset(bin + histogram->bins, 0, (bins - histogram->bins) * sizeof *bin);
    histogram->bin = bin;
    histogram->bins = (uint32_t)bins;
    return EN_OK;
}

en_status eni_histogram_add(eni_histogram *histogram, uint64_t value)
{
    EN_TRY(histogram_grow(histogram, value));
    histogram->bin[value < ENI_HISTOGRAM_MAX ? value : ENI_HISTOGRAM_MAX]++;
    histogram->count++;
    histogram->sum += value;
    if (value > histogram->max) histogram->max = value;
    return EN_OK;
}

en_status eni_histogram_merge(eni_histogram *into, const eni_histogram *from)
{
    if (from->count == 0) return EN_OK;
    EN_TRY(histogram_grow(into, from->max));
    for (uint32_t i = 0; i < from->bins && i < into->bins; i++)
        into->bin[i] += from->bin[i];
    into->count += from->count;
    into->sum += from->sum;
    if (from->max > into->max) into->max = from->max;
    return EN_OK;
}

double eni_histogram_mean(const eni_histogram *histogram)
{
    return histogram->count ? (double)histogram->sum / (double)histogram->count : 0;
}

uint64_t eni_histogram_quantile(const eni_histogram *histogram, double share)
{
    const double wanted = share * (double)histogram->count;
    uint64_t seen = 0;
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
    for (uint32_t v = 0; has_bins && v < h->bins; v++)
        if (h->bin[v] > 0)
            json_array_append_new(bins, json_pack("[I, I]", (json_int_t)v, (json_int_t)h->bin[v]));
    json_object_set_new(o, "histogram", bins);
    return o;
}
