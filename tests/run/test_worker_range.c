/* test_worker_range.c - a range of numbers of workers: read, written, and which of them share out a batch. */
#include "run/worker_range.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void what_is_right_comes_back(void **state)
{
    (void)state;
    static const char *const texts[] = {"1..1", "2..8", "1..1024", "2..8:64", "3..3:1073741824"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char text[ENI_WORKER_RANGE_TEXT];
        eni_worker_range e;
        assert_null(eni_worker_range_read(texts[i], &e));
        eni_worker_range_text(&e, text);
        assert_string_equal(text, texts[i]);
    }
}

static void what_is_wrong_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",      "x",     "2",      "2..",    "..8",       "8..2",    "0..4",
        "2..0",  "2...8", "2-8",    "-1..4",  "+1..4",     "2..1025", "2..8 ",
        " 2..8", "2..8:", "2..8:0", "2..8:x", "2..8:64:1", "2..1e3",  "99999999999999..2"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        eni_worker_range e;
        const char *expected = eni_worker_range_read(texts[i], &e);
        if (expected == NULL) fail_msg("\"%s\" was read", texts[i]);
        assert_non_null(strstr(expected, "MIN..MAX"));
    }
}

static void numbers_that_fit(void **state)
{
    (void)state;
    const eni_worker_range e = {2, 8, 24};
    static const int32_t fit[] = {0, 0, 2, 3, 4, 4, 6, 6, 8, 8, 8};
    char text[64];
    for (int32_t most = -3; most < 0; most++)
        assert_int_equal(eni_worker_range_fit(&e, most), 0);
    for (int32_t most = 0; most <= 10; most++)
        assert_int_equal(eni_worker_range_fit(&e, most), fit[most]);
    eni_worker_range_list(&e, text, sizeof text);
    assert_string_equal(text, "2, 3, 4, 6, 8");
    const eni_worker_range none = {5, 5, 24};
    assert_int_equal(eni_worker_range_fit(&none, 8), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_right_comes_back),
                                       cmocka_unit_test(what_is_wrong_is_refused),
                                       cmocka_unit_test(numbers_that_fit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
