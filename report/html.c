/* html.c - text and attributes escaped, tables, data URIs. */
#include "report/html.h"

#include <stdarg.h>
#include <string.h>

void eni_html_text(FILE *page, const char *text)
{
    for (const unsigned char *at = (const unsigned char *)text; *at != 0; at++) {
        switch (*at) {
        case '&': fputs("&amp;", page); break;
        case '<': fputs("&lt;", page); break;
        case '>': fputs("&gt;", page); break;
        case '"': fputs("&quot;", page); break;
        case '\'': fputs("&#39;", page); break;
        default:
            if (at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0)
                at++; /* a C1 control character */
            else if ((*at >= 0x20 && *at != 0x7f) || *at == '\n' || *at == '\t')
                fputc(*at, page);
        }
    }
}

void eni_html_printf(FILE *page, const char *fmt, ...)
{
    char text[4096];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    eni_html_text(page, text);
}

void eni_html_table(FILE *page, const char *class_name, const char *heads)
{
    fputs("<div class=\"scroll\" tabindex=\"0\"><table", page);
    if (class_name != NULL) fprintf(page, " class=\"%s\"", class_name);
    fputs("><thead><tr>", page);
    while (*heads != 0) {
        const int length = (int)strcspn(heads, "|"), is_name = *heads == '=';
        fprintf(page, "<th scope=\"col\"%s>%.*s</th>", is_name ? " class=\"name\"" : "", length - is_name,
                heads + is_name);
        heads += length + (heads[length] == '|');
    }
    fputs("</tr></thead><tbody>\n", page);
}

void eni_html_table_end(FILE *page)
{
    fputs("</tbody></table></div>", page);
}

void eni_html_data_uri(FILE *page, const char *mime, const void *data, size_t bytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *in = data;
    fprintf(page, "data:%s;base64,", mime);
    for (size_t i = 0; i < bytes; i += 3) {
        size_t left = bytes - i;
        unsigned group = (unsigned)in[i] << 16;
        if (left > 1) group |= (unsigned)in[i + 1] << 8;
        if (left > 2) group |= in[i + 2];
        fputc(digits[group >> 18], page);
        fputc(digits[group >> 12 & 63], page);
        fputc(left > 1 ? digits[group >> 6 & 63] : '=', page);
        fputc(left > 2 ? digits[group & 63] : '=', page);
    }
}
