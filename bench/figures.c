#include "bench/figures.h"

#include <stdlib.h>
#include <string.h>

uint64_t figures_number(const char *text)
{
    char *end;
    /* strtod accepts "inf", "0x1p3", signs */
    if (*text < '0' || *text > '9' || strpbrk(text, "xX")) return 0;
    const double value = strtod(text, &end);
    const char *units = "KMG", *unit = *end ? strchr(units, *end & ~0x20) : NULL;
    if (*end && (!unit || end[1])) return 0;
    const double scaled = value * (double)(UINT64_C(1) << (unit ? 10 * (unit - units + 1) : 0));
    return scaled >= 1 && scaled < 1e15 ? (uint64_t)scaled : 0;
}

int figures_words(char *text, words *words_out)
{
    words_out->n = 0;
    for (char *word = text;;) {
        char *comma = strchr(word, ',');
        if (comma) *comma = 0;
        if (*word == 0 || words_out->n == FIGURES_MAX) return 0;
        words_out->word[words_out->n++] = word;
        if (!comma) return 1;
        word = comma + 1;
    }
}

int figures_list(const char *text, uint64_t least, figures *figures_out)
{
    char copy[256];
    words list;
    if (strlen(text) >= sizeof copy) return 0;
    strcpy(copy, text);
    if (!figures_words(copy, &list)) return 0;
    figures_out->n = list.n;
    for (int i = 0; i < list.n; i++) {
        figures_out->value[i] = figures_number(list.word[i]);
        if (figures_out->value[i] < least) return 0;
    }
    return 1;
}

static int compare_ns(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

void figures_times(int64_t *times, size_t n, double *median_us_out, double *p99_us_out)
{
    qsort(times, n, sizeof *times, compare_ns);
    *median_us_out = (double)times[n / 2] / 1e3;
    *p99_us_out = (double)times[(n * 99 + 99) / 100 - 1] / 1e3;
}
