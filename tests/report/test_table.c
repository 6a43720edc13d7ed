/* test_table.c - columns line up by letters, not bytes; terminals get no control characters; numbers group.
 */
#include <poll.h>
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

static size_t read_some(int fd, char *to, size_t room)
{
    const ssize_t n = read(fd, to, room);
    return n > 0 ? (size_t)n : 0;
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
    size_t n = 0; /* a terminal hands over what it has, which may be a line at a time */
    struct pollfd p = {.fd = master, .events = POLLIN};
    while (n < strlen(expected) && poll(&p, 1, 10000) > 0)
        n += read_some(master, said + n, sizeof said - 1 - n);
    fclose(out); /* and then the rest, if there is any, up to the end */
    for (size_t more = 1; more > 0; n += more)
        more = read_some(master, said + n, sizeof said - 1 - n);
    said[n] = 0;
    assert_string_equal(said, expected);
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
