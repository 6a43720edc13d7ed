/* test_progress.c - a bar on a terminal, plain lines elsewhere, nothing when quiet, lines for a launcher. */
#include "rank/record.h"

#include <fcntl.h>
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

/* stderr goes to `fd` until wire_back. */
static int wire_to(int fd)
{
    int saved = dup(STDERR_FILENO);
    fflush(stderr);
    assert_true(saved >= 0 && dup2(fd, STDERR_FILENO) >= 0);
    return saved;
}

static void wire_back(int saved)
{
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
}

static void pipe_open(int fds[2])
{
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
}

static void pipe_close(int fds[2])
{
    close(fds[0]);
    close(fds[1]);
}

static double accuracy = NAN; /* of a network without classes */

/* Ten steps of 64 samples over two epochs, as rank 0 drives them. */
static void train(int fd, int quiet, uint64_t log_every)
{
    eni_bar bar = {.fd = fd, .quiet = quiet, .total = 640, .per_epoch = 320, .has_lines = log_every > 0};
    eni_bar_begin(&bar);
    for (uint64_t step = 0; step < 10; step++) {
        if (log_every > 0 && step % log_every == 0) eni_bar_score(&bar, (step + 1) * 64, 1.5, accuracy);
        eni_bar_step(&bar, step + 1, (step + 1) * 64);
    }
    eni_bar_done(&bar);
}

static void test_plain_lines(void **state)
{
    (void)state;
    char text[8192];
    int err[2];
    pipe_open(err);
    int saved = wire_to(err[1]);
    train(-1, 0, 4);
    wire_back(saved);
    said_all(err[1], err[0], text, sizeof text);
    pipe_close(err);
    assert_string_equal(text, "Train Epoch: 1 [64/320 (20%)]  Loss: 1.500000\n"
                              "Train Epoch: 1 [320/320 (100%)]  Loss: 1.500000\n"
                              "Train Epoch: 2 [256/320 (80%)]  Loss: 1.500000\n");
    pipe_open(err);
    accuracy = 0.625;
    saved = wire_to(err[1]);
    train(-1, 0, 10);
    wire_back(saved);
    accuracy = NAN;
    said_all(err[1], err[0], text, sizeof text);
    pipe_close(err);
    assert_string_equal(text, "Train Epoch: 1 [64/320 (20%)]  Loss: 1.500000  Accuracy: 62.50%\n");
}

static void test_launcher_lines(void **state)
{
    (void)state;
    char text[8192], said[8192];
    int lines[2], err[2];
    pipe_open(lines);
    pipe_open(err);
    int saved = wire_to(err[1]);
    train(lines[1], 1, 1);
    wire_back(saved);
    size_t spoken = said_all(err[1], err[0], said, sizeof said);
    said_all(lines[1], lines[0], text, sizeof text);
    pipe_close(lines);
    pipe_close(err);
    assert_int_equal(spoken, 0); /* quiet: nothing for people */
    int count = 0;
    unsigned long long samples = 0, total;
    double rate, loss;
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"), count++) {
        assert_int_equal(sscanf(line, "progress %llu %llu %lf %lf", &samples, &total, &rate, &loss), 4);
        assert_true(total == 640 && loss == 1.5 && rate > 0);
    }
    /* The first step and the last are always told; ten a second in between. */
    assert_true(count >= 2 && count < 10);
    assert_int_equal(samples, 640);
}

static void test_quiet_says_nothing(void **state)
{
    (void)state;
    char text[4096];
    int err[2];
    pipe_open(err);
    int saved = wire_to(err[1]);
    train(-1, 1, 1); /* quiet */
    train(-1, 0, 0); /* no lines wanted */
    wire_back(saved);
    size_t spoken = said_all(err[1], err[0], text, sizeof text);
    pipe_close(err);
    assert_int_equal(spoken, 0);
}

/* The launcher is gone: the run goes on. */
static void test_closed_launcher(void **state)
{
    (void)state;
    train(1 << 20, 1, 0);
}

static void test_bar_on_a_terminal(void **state)
{
    (void)state;
    char text[1 << 15];
    int master, slave;
    const struct winsize narrow = {.ws_row = 24, .ws_col = 64};
    if (openpty(&master, &slave, NULL, NULL, &narrow) != 0) skip(); /* no /dev/pts here */
    int saved = wire_to(slave);
    train(-1, 0, 1);
    wire_back(saved);
    size_t spoken = said_all(slave, master, text, sizeof text);
    close(slave);
    close(master);
    assert_true(spoken > 0);
    assert_null(strstr(text, "Train Epoch"));
    assert_non_null(strstr(text, "100 %"));
    assert_non_null(strstr(text, "loss 1.5000"));
    assert_true(text[0] == '\r' && text[spoken - 1] == '\n'); /* redrawn in place; its line ends */
    int columns = 0;
    for (size_t i = 0; i < spoken; i++) {
        if (text[i] == '\r')
            columns = 0;
        else if ((text[i] & 0xc0) != 0x80) /* not the rest of a UTF-8 character */
            columns++;
        assert_in_range(columns, 0,
                        63 + 3); /* what clears its rest; a line that wraps is not redrawn in place */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_lines),        cmocka_unit_test(test_launcher_lines),
        cmocka_unit_test(test_quiet_says_nothing), cmocka_unit_test(test_closed_launcher),
        cmocka_unit_test(test_bar_on_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
