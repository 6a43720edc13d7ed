/* test_table.c - columns line up by letters, not bytes; terminals get no control characters; numbers group.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "report/table.h"

static char *print(const char (*cells)[ENI_TABLE_TEXT], size_t nrows)
{
    static const eni_column columns[] = {{"name", false}, {"n", true}};
    char *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    eni_table_print(out, columns, 2, cells, nrows);
    fclose(out);
    return text;
}

static void columns_line_up(void **state)
{
    (void)state;
    const char cells[4][ENI_TABLE_TEXT] = {"grün", "14,900", "x", "7"};
    char *text = print(cells, 2);
    assert_string_equal(text, "name       n\n"
                              "grün  14,900\n"
                              "x          7\n");
    free(text);
}

static void control_characters_do_not_reach_the_terminal(void **state)
{
    (void)state;
    const char cells[2][ENI_TABLE_TEXT] = {"a\x1b[2Jb\xc2\x9b\n", "1"};
    char *text = print(cells, 1);
    assert_string_equal(text, "name      n\na?[2Jb??  1\n");
    free(text);
}

static void numbers_group_in_threes(void **state)
{
    (void)state;
    const struct {
        double value;
        const char *text;
    } cases[] = {{0, "0"},          {999, "999"},           {1000, "1,000"},
                 {14900, "14,900"}, {1234567, "1,234,567"}, {-1234, "-1,234"}};
    char text[32];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        eni_table_grouped(cases[i].value, ",", text, sizeof text);
        assert_string_equal(text, cases[i].text);
    }
    eni_table_grouped(1234567, ",", text, 6); /* too small: cut, never overrun */
    assert_true(strlen(text) < 6);
    assert_true(eni_table_significant(14873, 3) == 14900);
    assert_true(eni_table_significant(5.25, 3) == 5.25);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(columns_line_up),
                                       cmocka_unit_test(control_characters_do_not_reach_the_terminal),
                                       cmocka_unit_test(numbers_group_in_threes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
