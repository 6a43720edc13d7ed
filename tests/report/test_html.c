/* test_html.c - no text becomes markup; data URIs decode to what went in (vectors of RFC 4648). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "report/html.h"

static void text_cannot_become_markup(void **state)
{
    (void)state;
    char *text;
    size_t bytes;
    FILE *page = open_memstream(&text, &bytes);
    eni_html_text(page, "<script>alert(\"x\" & 'y')</script>\x01\x7f\xc2\x9b é");
    fclose(page);
    assert_string_equal(text, "&lt;script&gt;alert(&quot;x&quot; &amp; &#39;y&#39;)&lt;/script&gt; é");
    free(text);
}

static void base64_as_in_the_rfc(void **state)
{
    (void)state;
    const char *const cases[][2] = {{"", ""},
                                    {"f", "Zg=="},
                                    {"fo", "Zm8="},
                                    {"foo", "Zm9v"},
                                    {"foob", "Zm9vYg=="},
                                    {"fooba", "Zm9vYmE="},
                                    {"foobar", "Zm9vYmFy"}};
    char *text, long_one[769] = {0}; /* longer than one block of the encoder */
    size_t bytes;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char expected[64];
        FILE *page = open_memstream(&text, &bytes);
        eni_html_data_uri(page, "text/csv", cases[i][0], strlen(cases[i][0]));
        fclose(page);
        snprintf(expected, sizeof expected, "data:text/csv;base64,%s", cases[i][1]);
        assert_string_equal(text, expected);
        free(text);
    }
    FILE *page = open_memstream(&text, &bytes);
    eni_html_data_uri(page, "a/b", long_one, sizeof long_one);
    fclose(page);
    assert_int_equal(bytes, strlen("data:a/b;base64,") + 1026 + 2);
    assert_int_equal(strspn(text + strlen("data:a/b;base64,"), "A"), 1026);
    assert_string_equal(text + bytes - 2, "==");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(text_cannot_become_markup),
                                       cmocka_unit_test(base64_as_in_the_rfc)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
