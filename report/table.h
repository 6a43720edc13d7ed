/* table.h - a table of texts, aligned for a terminal. */
#ifndef REPORT_TABLE_H
#define REPORT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "entrain/status.h"

enum { ENI_TABLE_COLS = 16, ENI_TABLE_TEXT = 96 };

/* Cells are added one after the other, row by row, and printed when all are present. */
typedef struct eni_table {
    FILE *cells; /* in memory, each ended by a 0; the heads first; NULL: out of memory */
    char *text;
    size_t bytes, ncols;
    bool is_right[ENI_TABLE_COLS];
} eni_table;

/* The heads: "setting|>updates", separated by '|', '>' before those of numbers, which are right-aligned. */
void eni_table_begin(eni_table *table, const char *heads);
/* One cell, or several that '|' separates in the format: "%d|%.2f ms|%s". */
void eni_table_put(eni_table *table, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Prints it with two blanks between columns and none at the end of a line, and frees it. If `out` is a
 * terminal that is too narrow, one blank separates columns, and those that still do not fit follow below,
 * beside the texts that the rows begin with. Widths count the columns of a terminal (UTF-8 letters, not
 * bytes; double-width characters are not expected). Control characters, which a terminal would obey, are
 * shown as '?'. EN_ENOMEM. */
en_status eni_table_print(eni_table *table, FILE *out);

/* Prints a text without control characters. */
void eni_table_text(FILE *out, const char *text);

/* Removes a letter that a size limit has split. */
void eni_table_trim(char *text);

/* Terminal columns of `text`. */
size_t eni_table_width(const char *text);

/* The value rounded to `digits` significant digits (14873 -> 14900). */
double eni_table_significant(double value, int digits);

#endif
