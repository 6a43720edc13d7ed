/* html.c - escaped text and attributes, tables, data URIs. */
#include "report/html.h"

#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "core/digest.h"

static void put_text(FILE *page, const char *text, int most)
{
    for (const unsigned char *at = (const unsigned char *)text; most-- > 0 && *at != 0; at++) {
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

void eni_html_text(FILE *page, const char *text)
{
    put_text(page, text, INT_MAX);
}

void eni_html_put(FILE *page, const char *markup, ...)
{
    va_list args;
    va_start(args, markup);
    while (*markup != 0) {
        char how[16]; /* "%.1f" */
        const size_t plain = strcspn(markup, "%");
        fwrite(markup, 1, plain, page);
        if (markup[plain] == 0) break;
        const size_t bytes = 1 + strcspn(markup + plain + 1, "sdugf%") + 1;
        snprintf(how, sizeof how, "%.*s", (int)bytes, markup + plain);
        markup += plain + bytes;
        const int star = strchr(how, '*') != NULL ? va_arg(args, int)
                         : how[1] == '.'          ? atoi(how + 2)
                                                  : INT_MAX;
        switch (markup[-1]) {
        case 's': put_text(page, va_arg(args, const char *), star); break;
        case 'd': fprintf(page, how, va_arg(args, int)); break;
        case 'u': fprintf(page, how, va_arg(args, size_t)); break;
        case '%': fputc('%', page); break;
        default: fprintf(page, how, va_arg(args, double));
        }
    }
    va_end(args);
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

void eni_html_table_end(FILE *page, const char *behind)
{
    fprintf(page, "</tbody></table></div>%s\n", behind);
}

void eni_html_data_uri(FILE *page, const char *mime, const void *data, size_t bytes)
{
    fprintf(page, "data:%s;base64,", mime);
    eni_base64_write(page, data, bytes);
}
