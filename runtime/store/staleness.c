/* staleness.c - a histogram: the values that came, sorted; count, sum and maximum beside them. */
#include "runtime/store/staleness.h"

#include <string.h>

#include "core/json.h"
#include "core/memory.h"
#include "core/try.h"

void eni_histogram_fini(eni_histogram *histogram)
{
    eni_free(histogram->item);
    *histogram = (eni_histogram){0};
}

/* The position of `value`, or where it belongs. */
static uint32_t find(const eni_histogram *h, uint32_t value)
{
    uint32_t lo = 0, hi = h->n;
    while (lo < hi) {
        const uint32_t mid = (lo + hi) / 2;
        if (h->item[mid].value < value)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

en_status eni_histogram_put(eni_histogram *h, uint32_t value, uint64_t times)
{
    const uint32_t at = find(h, value);
    if (times == 0) return EN_OK;
    if (at == h->n || h->item[at].value != value) {
        EN_TRY(eni_grow((void **)&h->item, &h->room, h->n + 1, sizeof *h->item));
        memmove(&h->item[at + 1], &h->item[at], (h->n++ - at) * sizeof *h->item);
        h->item[at] = (eni_histogram_value){.value = value};
    }
    h->item[at].count += times;
    return EN_OK;
}

en_status eni_histogram_add(eni_histogram *histogram, uint64_t value)
{
    EN_TRY(eni_histogram_put(histogram, value < ENI_HISTOGRAM_MAX ? (uint32_t)value : ENI_HISTOGRAM_MAX, 1));
    histogram->count++;
    histogram->sum += value;
    if (value > histogram->max) histogram->max = value;
    return EN_OK;
}

en_status eni_histogram_merge(eni_histogram *into, const eni_histogram *from)
{
    for (uint32_t i = 0; i < from->n; i++)
        EN_TRY(eni_histogram_put(into, from->item[i].value, from->item[i].count));
    into->count += from->count;
    into->sum += from->sum;
    if (from->max > into->max) into->max = from->max;
    return EN_OK;
}

uint64_t eni_histogram_at(const eni_histogram *histogram, uint32_t value)
{
    const uint32_t at = find(histogram, value);
    return at < histogram->n && histogram->item[at].value == value ? histogram->item[at].count : 0;
}

uint32_t eni_histogram_bins(const eni_histogram *histogram)
{
    uint32_t bins = histogram->n > 0 ? 8 : 0;
    while (bins > 0 && bins <= histogram->item[histogram->n - 1].value)
        bins *= 2;
    return bins;
}

double eni_histogram_mean(const eni_histogram *histogram)
{
    return histogram->count ? (double)histogram->sum / (double)histogram->count : 0;
}

uint64_t eni_histogram_quantile(const eni_histogram *histogram, double share)
{
    const double wanted = share * (double)histogram->count;
    uint64_t seen = 0;
    for (uint32_t i = 0; i < histogram->n && histogram->item[i].value < ENI_HISTOGRAM_MAX; i++) {
        seen += histogram->item[i].count;
        if ((double)seen >= wanted) return histogram->item[i].value;
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
    for (uint32_t i = 0; has_bins && i < h->n; i++)
        json_array_append_new(
            bins, json_pack("[I, I]", (json_int_t)h->item[i].value, (json_int_t)h->item[i].count));
    json_object_set_new(o, "histogram", bins);
    return o;
}
