/* table.h - a table of texts that lines up in a terminal. */
#ifndef REPORT_TABLE_H
#define REPORT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "entrain/status.h"

enum { ENI_TABLE_COLS = 16, ENI_TABLE_TEXT = 96 };

/* Cells are put one after the other, row by row, and printed when all are there. */
typedef struct eni_table {
    FILE *cells; /* in memory, each ended by a 0; the heads first; NULL: out of memory */
    char *text;
    size_t bytes, ncols;
    bool is_right[ENI_TABLE_COLS];
} eni_table;

/* The heads: "setting|>updates", '|' between them, '>' before those of numbers, which stand flush right. */
void eni_table_begin(eni_table *table, const char *heads);
void eni_table_put(eni_table *table, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Prints it with two blanks between columns and none at a line's end, and frees it. Where `out` is a terminal
 * that is too narrow, one blank has to do, and columns that still have no room follow below, beside the texts
 * that the rows begin with. Widths count what a terminal shows (UTF-8 letters, not bytes; double-width signs
 * are not expected). Control characters, which a terminal would obey, are shown as '?'. EN_ENOMEM. */
en_status eni_table_print(eni_table *table, FILE *out);

/* Prints one text without control characters. */
void eni_table_text(FILE *out, const char *text);

/* A letter that a size limit has cut in half goes as a whole. */
void eni_table_trim(char *text);

/* Letters that `text` takes in a terminal. */
size_t eni_table_width(const char *text);

/* The value rounded to `digits` significant digits (14873 -> 14900). */
double eni_table_significant(double value, int digits);

#endif
