/* test_figures.c - sizes, lists and quantiles as the benches read and print them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/figures.h"

static void sizes_have_units_and_decimals(void **state)
{
    (void)state;
    assert_int_equal(figures_number("4096"), 4096);
    assert_int_equal(figures_number("4K"), 4096);
    assert_int_equal(figures_number("4k"), 4096);
    assert_int_equal(figures_number("1.5M"), 3 << 19);
    assert_int_equal(figures_number("2G"), UINT64_C(2) << 30);
}

static void what_is_no_size_is_zero(void **state)
{
    (void)state;
    static const char *const bad[] = {"",  "K",   "4Q",  "4KB",  "-4",   "+4",
                                      "0", "0.3", "inf", "0x10", "1e15", " 4"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(figures_number(bad[i]), 0);
}

static void a_list_is_all_right_or_refused(void **state)
{
    (void)state;
    figures list;
    assert_true(figures_list("1,2K,3", 1, &list));
    assert_int_equal(list.n, 3);
    assert_int_equal(list.value[1], 2048);
    assert_false(figures_list("8,4", 5, &list));
    assert_false(figures_list("1,,2", 1, &list));
    assert_false(figures_list("", 1, &list));
    assert_false(figures_list("1,2,", 1, &list));
    assert_false(figures_list("1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17", 1, &list));
}

static void words_are_cut_at_commas(void **state)
{
    (void)state;
    char text[] = "ring,ssp:bound=2";
    words list;
    assert_true(figures_words(text, &list));
    assert_int_equal(list.n, 2);
    assert_string_equal(list.word[1], "ssp:bound=2");
}

static void quantiles_are_of_the_sorted_times(void **state)
{
    (void)state;
    int64_t times[200];
    double median, p99;
    for (int i = 0; i < 200; i++)
        times[i] = (int64_t)(200 - i) * 1000; /* 1 .. 200 us, backwards */
    figures_times(times, 200, &median, &p99);
    assert_true(median == 101 && p99 == 198);
    figures_times(times, 2, &median, &p99);
    assert_true(median == 2 && p99 == 2);
    figures_times(times, 1, &median, &p99);
    assert_true(median == 1 && p99 == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_have_units_and_decimals),     cmocka_unit_test(what_is_no_size_is_zero),
        cmocka_unit_test(a_list_is_all_right_or_refused),    cmocka_unit_test(words_are_cut_at_commas),
        cmocka_unit_test(quantiles_are_of_the_sorted_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
