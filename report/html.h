/* html.h - writes text into a page so that it cannot become markup. */
#ifndef REPORT_HTML_H
#define REPORT_HTML_H

#include <stddef.h>
#include <stdio.h>

/* Writes UTF-8 text with & < > " ' escaped and without control characters except newline and tab. Safe in
 * element content and in quoted attributes. */
void eni_html_text(FILE *page, const char *text);

/* Writes markup as it is, and its texts by eni_html_text: "<td>%s</td>". The conversions are %s, %.8s, %.*s,
 * %d, %zu and those of doubles. */
void eni_html_put(FILE *page, const char *markup, ...) __attribute__((format(printf, 2, 3)));

/* Begins a table: its frame and its column heads, "setting|=strategy<small>sum</small>|updates": separated by
 * '|', markup as it is, '=' before those of names. `class_name` may be NULL. Ends it and adds `behind`. */
void eni_html_table(FILE *page, const char *class_name, const char *heads);
void eni_html_table_end(FILE *page, const char *behind);

/* Writes "data:MIME;base64,…" (RFC 2397, RFC 4648). */
void eni_html_data_uri(FILE *page, const char *mime, const void *data, size_t bytes);

#endif
