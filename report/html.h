/* html.h - writing text into a page so that nothing in it can become markup. */
#ifndef REPORT_HTML_H
#define REPORT_HTML_H

#include <stddef.h>
#include <stdio.h>

/* Writes UTF-8 text with & < > " ' escaped and control characters left out (newline and tab stay). Safe in
 * element content and in quoted attributes. */
void eni_html_text(FILE *page, const char *text);

/* printf of markup, which is written as it stands, its texts by eni_html_text: "<td>%s</td>", with what a page
 * has use for: %s, %.8s, %.*s, %d, %zu, doubles. */
void eni_html_put(FILE *page, const char *markup, ...) __attribute__((format(printf, 2, 3)));

/* Begins a table: its frame, and the heads of its columns, "setting|=strategy<small>sum</small>|updates": '|'
 * between them, markup as it stands, '=' before those that are names. `class_name` may be NULL. Ends it, with the markup `behind` it. */
void eni_html_table(FILE *page, const char *class_name, const char *heads);
void eni_html_table_end(FILE *page, const char *behind);

/* Writes "data:MIME;base64,…" (RFC 2397, RFC 4648). */
void eni_html_data_uri(FILE *page, const char *mime, const void *data, size_t bytes);

#endif
