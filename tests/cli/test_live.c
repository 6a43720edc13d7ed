/* test_live.c - a line per arm: redrawn in place on a terminal, printed once per finished run elsewhere. */
#include "cli/launcher/live.h"

#include <math.h>
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

#include "tests/said.h"

static char said[1 << 15];

/* Runs `body` with stderr on `fd`, then reads the output from `from`. */
static void hear(int fd, int from, void (*body)(void))
{
    int saved = dup(STDERR_FILENO);
    dup2(fd, STDERR_FILENO);
    body();
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    said_all(fd, from, said, sizeof said);
    close(fd);
    close(from);
}

static void hear_pipe(void (*body)(void))
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    hear(fds[1], fds[0], body);
}

static void compare(int is_quiet)
{
    static eni_live live;
    eni_live_init(&live, is_quiet);
    int ring = eni_live_add(&live, "even", "ring", 2), ps = eni_live_add(&live, "slow", "ps-async", 1);
    assert_true(ring == 0 && ps == 1);
    const eni_launch_progress half = {.samples = 500, .total = 1000, .rate = 1234, .loss = 0.5};
    eni_live_begin(&live, ring);
    eni_live_progress(&live, &half);
    eni_live_end(&live, 2000, 0.805, 0.6);
    eni_live_begin(&live, ps);
    eni_live_end(&live, 3000, 0.9, 0.4);
    eni_live_progress(&live, &half); /* no line is active: ignored */
    eni_live_end(&live, 1, 1, NAN);
    assert_int_equal(live.line[ring].runs_done, 1);
    assert_int_equal(live.line[ps].runs_done, 1);
}

static void compare_aloud(void)
{
    compare(0);
}

static void compare_quietly(void)
{
    compare(1);
}

static void test_a_line_per_finished_run(void **state)
{
    (void)state;
    hear_pipe(compare_aloud);
    char *end = strchr(said, '\n');
    assert_non_null(end);
    *end = 0;
    assert_non_null(strstr(said, "even"));
    assert_non_null(strstr(said, "ring"));
    assert_non_null(strstr(said, "1/2"));
    assert_non_null(strstr(said, "2000 samples/s"));
    assert_non_null(strstr(said, "test 80.5 %"));
    assert_null(strchr(said, '\033')); /* no cursor in a file */
    const char *second = end + 1;
    assert_non_null(strstr(second, "ps-async"));
    assert_non_null(strstr(second, "1/1"));
    assert_ptr_equal(strchr(second, '\n'), second + strlen(second) - 1); /* two lines, no more */
}

static void test_quiet(void **state)
{
    (void)state;
    hear_pipe(compare_quietly);
    assert_string_equal(said, "");
}

/* The widest line, in columns: escape sequences have none, a UTF-8 character has one. */
static int widest(const char *text)
{
    int most = 0, columns = 0;
    for (const char *c = text; *c; c++) {
        if (*c == '\033')
            c += strcspn(c, "hlAK"); /* as far as the letter that ends it */
        else if (*c == '\n' || *c == '\r')
            columns = 0;
        else if ((*c & 0xc0) != 0x80 && ++columns > most)
            most = columns;
    }
    return most;
}

/* A line that wraps would be left behind by the next redraw. */
static void test_redrawn_on_a_terminal(void **state)
{
    (void)state;
    int master, slave;
    const struct winsize size = {.ws_row = 24, .ws_col = 72};
    if (openpty(&master, &slave, NULL, NULL, &size) != 0) skip(); /* no /dev/pts here */
    hear(slave, master, compare_aloud);
    assert_non_null(strstr(said, "\033[2A")); /* up by as many lines as there are arms */
    assert_non_null(strstr(said, "test 90.0 %"));
    assert_in_range(widest(said), 60, 71);
}

static void compare_long_names(void)
{
    static eni_live live;
    const eni_launch_progress half = {.samples = 500, .total = 1000, .rate = 54321, .loss = 0.125};
    eni_live_init(&live, 0);
    for (int i = 0; i < 2; i++) { /* the second block is below the output after the first */
        const int line = eni_live_add(&live, "even", "./examples/localsgd.so:period=10", 1);
        eni_live_begin(&live, line);
        eni_live_progress(&live, &half);
        live.drawn_ns = 0;
        eni_live_progress(&live, &half);
        eni_live_end(&live, 54321, 0.775, 0.6);
        if (i == 0) fputs("\nAs predicted\n", stderr);
    }
}

/* A terminal would overwrite its last column with the end of a line that is too long: "loss 0.1%". */
static void test_figures_without_room_are_left_out(void **state)
{
    (void)state;
    int master, slave;
    const struct winsize size = {.ws_row = 24, .ws_col = 72};
    if (openpty(&master, &slave, NULL, NULL, &size) != 0) skip();
    hear(slave, master, compare_long_names);
    assert_in_range(widest(said), 60, 71);
    assert_non_null(strstr(said, "  54321 samples/s"));
    assert_non_null(strstr(said, "1/1  test 77.5 %"));
    assert_null(strstr(said, "loss"));
    assert_null(strstr(said, "2/1"));
    const char *second = strstr(said, "As predicted");
    assert_non_null(second);
    assert_true(strstr(second, "even") < strstr(second, "\033[1A")); /* drawn before it is drawn again */
}

static void test_too_many_lines(void **state)
{
    (void)state;
    static eni_live live;
    eni_live_init(&live, 1);
    for (int i = 0; i < ENI_LIVE_MAX; i++)
        assert_int_equal(eni_live_add(&live, "even",
                                      "a label that is longer than the room that there is for it"
                                      " in a line of a terminal",
                                      1),
                         i);
    assert_int_equal(eni_live_add(&live, "even", "ring", 1), -1);
    assert_int_equal(strlen(live.line[0].arm), sizeof live.line[0].arm - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_line_per_finished_run),
        cmocka_unit_test(test_quiet),
        cmocka_unit_test(test_redrawn_on_a_terminal),
        cmocka_unit_test(test_figures_without_room_are_left_out),
        cmocka_unit_test(test_too_many_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
