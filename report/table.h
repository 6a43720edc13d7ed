/* table.h - a table of texts that lines up in a terminal. */
#ifndef REPORT_TABLE_H
#define REPORT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { ENI_TABLE_COLS = 16, ENI_TABLE_TEXT = 96 };

typedef struct eni_column {
    const char *head;
    bool is_right; /* numbers: flush right */
} eni_column;

/* Prints `head` and rows x ncols texts with two blanks between columns and none at a line's end. Widths count
 * what a terminal shows (UTF-8 letters, not bytes; double-width signs are not expected). Control characters,
 * which a terminal would obey, are shown as '?'. cells[row * ncols + col]. */
void eni_table_print(FILE *out, const eni_column *columns, size_t ncols, const char (*cells)[ENI_TABLE_TEXT],
                     size_t nrows);

/* Prints one text without control characters. */
void eni_table_text(FILE *out, const char *text);

/* A letter that a size limit has cut in half goes as a whole. */
void eni_table_trim(char *text);

/* Letters that `text` takes in a terminal. */
size_t eni_table_width(const char *text);

/* A whole number with `group` between thousands: "14,900". For |value| < 1e15; "-" for NAN. */
void eni_table_grouped(double value, const char *group, char *text_out, size_t size);

/* The value rounded to `digits` significant digits (14873 -> 14900). */
double eni_table_significant(double value, int digits);

#endif
