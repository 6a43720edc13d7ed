/* table.c - see table.h. */
#include "report/table.h"

#include <math.h>
#include <string.h>

/* The bytes of the letter at `text` that stand for a control character (C0, DEL, or C1 as UTF-8), or 0. */
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

static void print_cell(FILE *out, const char *text, size_t width, bool is_right, bool is_last)
{
    int pad = (int)(width - eni_table_width(text));
    if (is_right) fprintf(out, "%*s", pad, "");
    eni_table_text(out, text);
    if (!is_last) fprintf(out, "%*s", is_right ? 2 : pad + 2, "");
}

void eni_table_print(FILE *out, const eni_column *columns, size_t ncols, const char (*cells)[ENI_TABLE_TEXT],
                     size_t nrows)
{
    size_t width[ENI_TABLE_COLS];
    for (size_t c = 0; c < ncols; c++) {
        width[c] = eni_table_width(columns[c].head);
        for (size_t r = 0; r < nrows; r++) {
            size_t wanted = eni_table_width(cells[r * ncols + c]);
            if (wanted > width[c]) width[c] = wanted;
        }
    }
    for (size_t c = 0; c < ncols; c++)
        print_cell(out, columns[c].head, width[c], columns[c].is_right, c + 1 == ncols);
    fputc('\n', out);
    for (size_t r = 0; r < nrows; r++) {
        for (size_t c = 0; c < ncols; c++)
            print_cell(out, cells[r * ncols + c], width[c], columns[c].is_right, c + 1 == ncols);
        fputc('\n', out);
    }
}

void eni_table_grouped(double value, const char *group, char *text_out, size_t size)
{
    if (isnan(value) || fabs(value) >= 1e15) {
        snprintf(text_out, size, "-");
        return;
    }
    char digits[32];
    int n = snprintf(digits, sizeof digits, "%.0f", fabs(value));
    size_t at = 0;
    if (value <= -0.5 && size > 1) text_out[at++] = '-';
    for (int i = 0; i < n && at + strlen(group) + 2 <= size; i++) {
        if (i > 0 && (n - i) % 3 == 0) at += (size_t)snprintf(text_out + at, size - at, "%s", group);
        text_out[at++] = digits[i];
    }
    text_out[at] = 0;
}

double eni_table_significant(double value, int digits)
{
    if (value == 0 || !isfinite(value)) return value;
    double unit = pow(10, floor(log10(fabs(value))) - digits + 1);
    return unit < 1 ? value : round(value / unit) * unit;
}
