/* figures.h - parsing and statistics for benchmarks: sizes and lists from flags, medians and tails of times. */
#ifndef BENCH_FIGURES_H
#define BENCH_FIGURES_H

#include <stddef.h>
#include <stdint.h>

enum { FIGURES_MAX = 16 }; /* entries of a list */

typedef struct figures {
    uint64_t value[FIGURES_MAX];
    int n;
} figures;

typedef struct words {
    char *word[FIGURES_MAX]; /* into the text that was parsed */
    int n;
} words;

/* A positive number with an optional K, M or G (1024s, as in nccl-tests) and decimals: "4K", "1.7M"; 0 if
 * invalid. */
uint64_t figures_number(const char *text);

/* "1,2,4" and "4K,1.7M". 0 if an entry is not a number of at least `least`, or there are too many. */
int figures_list(const char *text, uint64_t least, figures *figures_out);

/* "a,b". Splits `text` in place at its commas; 0 for an empty word or too many. */
int figures_words(char *text, words *words_out);

/* Sorts `times` (n) in place; median and p99 (nearest rank) in microseconds. n >= 1. */
void figures_times(int64_t *times, size_t n, double *median_us_out, double *p99_us_out);

#endif
