/* test_table.c - columns line up by letters, not bytes; terminals get no control characters; numbers group.
 */
#include <pty.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/memory.h"
#include "report/table.h"
#include "tests/said.h"

static char *print(const char *const *cells, size_t n)
{
    char *text;
    size_t bytes;
    eni_table table;
    FILE *out = open_memstream(&text, &bytes);
    eni_table_begin(&table, "name|>n");
    for (size_t i = 0; i < n; i++)
        eni_table_put(&table, "%s", cells[i]);
    assert_int_equal(eni_table_print(&table, out), EN_OK);
    fclose(out);
    return text;
}

static void columns_line_up(void **state)
{
    (void)state;
    const char *const cells[] = {"grün", "14,900", "x", "7"};
    char *text = print(cells, 4);
    assert_string_equal(text, "name       n\n"
                              "grün  14,900\n"
                              "x          7\n");
    free(text);
}

/* In a terminal of `columns`. */
static void in_a_terminal(unsigned short columns, const char *expected)
{
    const struct winsize size = {.ws_row = 24, .ws_col = columns};
    char said[512];
    eni_table table;
    int master, slave;
    if (openpty(&master, &slave, NULL, NULL, &size) != 0) skip(); /* no /dev/pts here */
    FILE *out = fdopen(slave, "w");
    eni_table_begin(&table, "name|>alpha|>beta|note");
    for (int i = 0; i < 4; i++)
        eni_table_put(&table, "%s", ((const char *const[]){"ring", "1", "22", "fast"})[i]);
    assert_int_equal(eni_table_print(&table, out), EN_OK);
    fflush(out);
    said_all(slave, master, said, sizeof said);
    assert_string_equal(said, expected);
    fclose(out);
    close(master);
}

static void a_narrow_terminal_gets_the_last_columns_below(void **state)
{
    (void)state;
    in_a_terminal(23, "name  alpha  beta  note\r\nring      1    22  fast\r\n");
    in_a_terminal(22, "name alpha beta note\r\nring     1   22 fast\r\n");
    in_a_terminal(16, "name alpha beta\r\nring     1   22\r\n\r\nname note\r\nring fast\r\n");
}

static void control_characters_do_not_reach_the_terminal(void **state)
{
    (void)state;
    const char *const cells[] = {"a\x1b[2Jb\xc2\x9b\n", "1"};
    char *text = print(cells, 2);
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
        eni_text_grouped(cases[i].value, ",", text, sizeof text);
        assert_string_equal(text, cases[i].text);
    }
    eni_text_grouped(1234567, ",", text, 6); /* too small: cut, never overrun */
    assert_true(strlen(text) < 6);
    assert_true(eni_table_significant(14873, 3) == 14900);
    assert_true(eni_table_significant(5.25, 3) == 5.25);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(columns_line_up),
                                       cmocka_unit_test(a_narrow_terminal_gets_the_last_columns_below),
                                       cmocka_unit_test(control_characters_do_not_reach_the_terminal),
                                       cmocka_unit_test(numbers_group_in_threes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
