/* table.c - collects the cells of a table, then prints columns as wide as their widest cell. */
#include "report/table.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"

/* The bytes at `text` that form a control character (C0, DEL, or C1 as UTF-8), or 0. */
static size_t control_bytes(const unsigned char *text)
{
    if (text[0] < 0x20 || text[0] == 0x7f) return 1;
    return text[0] == 0xc2 && text[1] >= 0x80 && text[1] < 0xa0 ? 2 : 0;
}

void eni_table_text(FILE *out, const char *text)
{
    for (const unsigned char *at = (const unsigned char *)text; *at != 0;) {
        size_t bytes = control_bytes(at);
        fputc(bytes > 0 ? '?' : *at, out);
        at += bytes > 0 ? bytes : 1;
    }
}

size_t eni_table_width(const char *text)
{
    size_t width = 0;
    for (const unsigned char *at = (const unsigned char *)text; *at != 0; at++)
        width += (*at & 0xc0) != 0x80;
    return width;
}

void eni_table_trim(char *text)
{
    size_t n = strlen(text), tail = 0;
    while (tail < n && tail < 3 && ((unsigned char)text[n - 1 - tail] & 0xc0) == 0x80)
        tail++;
    if (tail == n) return;
    unsigned char head = (unsigned char)text[n - 1 - tail];
    size_t wanted = head >= 0xf0 ? 3 : head >= 0xe0 ? 2 : head >= 0xc0 ? 1 : 0;
    if (wanted != tail) text[n - 1 - tail] = 0;
}

void eni_table_begin(eni_table *table, const char *heads)
{
    *table = (eni_table){0};
    table->cells = open_memstream(&table->text, &table->bytes);
    for (bool is_last = false; !is_last && table->ncols < ENI_TABLE_COLS; table->ncols++) {
        const size_t length = strcspn(heads, "|");
        const bool is_right = *heads == '>';
        table->is_right[table->ncols] = is_right;
        eni_table_put(table, "%.*s", (int)length - is_right, heads + is_right);
        is_last = heads[length] == 0;
        heads += length + 1;
    }
}

void eni_table_put(eni_table *table, const char *fmt, ...)
{
    enum { SEPARATOR = 0x1f }; /* ASCII's: a text may have a '|' */
    char cells[256], *text = NULL;
    va_list args;
    const bool has_several = strchr(fmt, '|') != NULL;
    snprintf(cells, sizeof cells, "%s", fmt);
    for (char *bar = cells; (bar = strchr(bar, '|')) != NULL;)
        *bar = SEPARATOR;
    va_start(args, fmt);
    const int bytes = table->cells != NULL ? vasprintf(&text, cells, args) : -1;
    va_end(args);
    for (char *at = text; has_several && bytes >= 0 && (at = strchr(at, SEPARATOR)) != NULL;)
        *at++ = 0;
    if (bytes >= 0) fwrite(text, 1, (size_t)bytes + 1, table->cells);
    if (bytes >= 0) free(text);
}

/* Prints the first `keys` columns, and those from `first` to before `last`. */
static void print_part(const eni_table *table, FILE *out, const size_t *width, size_t gap, size_t keys,
                       size_t first, size_t last)
{
    const char *const end = table->text + table->bytes;
    size_t col = 0;
    for (const char *at = table->text; at < end; at += strlen(at) + 1, col = (col + 1) % table->ncols) {
        const int pad = (int)(width[col] - eni_table_width(at));
        const bool is_last = col + 1 == last;
        if (col >= keys && (col < first || col >= last)) continue;
        if (table->is_right[col]) fprintf(out, "%*s", pad, "");
        eni_table_text(out, at);
        const int blanks = is_last ? 0 : table->is_right[col] ? (int)gap : pad + (int)gap;
        fprintf(out, "%*s%s", blanks, "", is_last ? "\n" : "");
    }
}

en_status eni_table_print(eni_table *table, FILE *out)
{
    size_t width[ENI_TABLE_COLS] = {0}, col = 0, all = 0, beside = 0, keys = 0, last;
    const size_t room = (size_t)eni_terminal_columns(out);
    if (table->cells == NULL || fclose(table->cells) != 0) {
        free(table->text);
        return EN_ENOMEM;
    }
    const char *const end = table->text + table->bytes;
    for (const char *at = table->text; at < end; at += strlen(at) + 1, col = (col + 1) % table->ncols)
        if (eni_table_width(at) > width[col]) width[col] = eni_table_width(at);
    for (size_t c = 0; c < table->ncols; c++)
        all += width[c] + 2;
    const size_t gap = all - 2 > room ? 1 : 2;
    while (keys < table->ncols && (keys == 0 || !table->is_right[keys])) /* up to the first number */
        keys++;
    if (keys == table->ncols) keys = table->ncols > 1; /* none */
    for (size_t c = 0; c < keys; c++)
        beside += width[c] + gap;
    for (size_t first = keys; first < table->ncols; first = last) {
        size_t used = beside + width[first];
        for (last = first + 1; last < table->ncols && used + gap + width[last] <= room; last++)
            used += gap + width[last];
        if (first > keys) fputc('\n', out);
        print_part(table, out, width, gap, keys, first, last);
    }
    free(table->text);
    return EN_OK;
}

double eni_table_significant(double value, int digits)
{
    if (value == 0 || !isfinite(value)) return value;
    double unit = pow(10, floor(log10(fabs(value))) - digits + 1);
    return unit < 1 ? value : round(value / unit) * unit;
}
