/* worker_range.c - reads, writes and searches a range of worker counts. */
#include "run/worker_range.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

enum { MOST = 1024 };

/* Digits only, up to the limit; leaves *at after them. */
static bool number(const char **at, int64_t limit, int64_t *value_out)
{
    const size_t digits = strspn(*at, "0123456789");
    if (digits == 0 || digits > 12) return false;
    *value_out = strtoll(*at, NULL, 10);
    *at += digits;
    return *value_out >= 1 && *value_out <= limit;
}

const char *eni_worker_range_read(const char *text, eni_worker_range *elastic_out)
{
    static const char expected[] = "MIN..MAX with whole numbers from 1 to 1024, MIN <= MAX, such as 2..8";
    int64_t min, max, batch = 0;
    if (!number(&text, MOST, &min) || strncmp(text, "..", 2) != 0) return expected;
    text += 2;
    if (!number(&text, MOST, &max) || max < min) return expected;
    if (*text == ':') {
        text++;
        if (!number(&text, INT64_C(1) << 30, &batch)) return expected;
    }
    if (*text != '\0') return expected;
    *elastic_out = (eni_worker_range){(int32_t)min, (int32_t)max, batch};
    return NULL;
}

void eni_worker_range_text(const eni_worker_range *elastic, char text_out[ENI_WORKER_RANGE_TEXT])
{
    const int n = snprintf(text_out, ENI_WORKER_RANGE_TEXT, "%d..%d", elastic->min, elastic->max);
    if (elastic->batch > 0)
        snprintf(text_out + n, ENI_WORKER_RANGE_TEXT - (size_t)n, ":%" PRId64, elastic->batch);
}

int32_t eni_worker_range_fit(const eni_worker_range *elastic, int32_t most)
{
    int32_t workers = most < elastic->max ? most : elastic->max;
    while (workers >= elastic->min && elastic->batch % workers != 0)
        workers--;
    return workers >= elastic->min ? workers : 0;
}

void eni_worker_range_why(const eni_worker_range *elastic, int32_t wanted, int32_t workers, char *text_out,
                          size_t bytes)
{
    text_out[0] = '\0';
    if (workers < wanted)
        snprintf(text_out, bytes,
                 "; %d workers cannot evenly share the %" PRId64 " samples of a step (--global-batch-size)",
                 (int)wanted, elastic->batch);
}

void eni_worker_range_list(const eni_worker_range *elastic, char *text_out, size_t bytes)
{
    text_out[0] = '\0';
    for (int32_t n = elastic->min; n <= elastic->max; n++)
        if (elastic->batch % n == 0)
            eni_text_add(text_out, bytes, "%s%d", text_out[0] == '\0' ? "" : ", ", n);
}
