/* test_relay.c - several processes' messages about one cause are printed once; a failure record over the pipe. */
#include "cli/launcher/relay.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/control/control.h"

static eni_relay relay;
static int out[2], saved;

static int setup(void **state)
{
    (void)state;
    memset(&relay, 0, sizeof relay);
    saved = dup(STDERR_FILENO);
    return pipe(out) != 0 || dup2(out[1], STDERR_FILENO) < 0;
}

/* Ends the capture and returns its text. */
static const char *printed(void)
{
    static char text[8192];
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(out[1]);
    const ssize_t n = read(out[0], text, sizeof text - 1);
    text[n < 0 ? 0 : n] = 0;
    close(out[0]);
    return text;
}

static void test_once(void **state)
{
    (void)state;
    assert_true(eni_relay_take(&relay, "log 0 20 data 12:00:01.123 E b:0: no such set"));
    assert_true(eni_relay_take(&relay, "log 0 20 data 12:00:01.124 E b:1: no such set"));
    assert_true(eni_relay_take(&relay, "log 1 20 data 12:00:01.125 W b:1: another matter"));
    assert_false(eni_relay_take(&relay, "progress 1 2 3 4"));
    assert_false(eni_relay_take(&relay, "log 0 900 short"));
    assert_string_equal(printed(), "12:00:01.123 E b:0: no such set\n12:00:01.125 W b:1: another matter\n");
}

/* Each rank meets it at its own files, and the survivors repeat that; warnings of a run that goes on are each shown. */
static void test_a_full_disk_is_named_once(void **state)
{
    (void)state;
    eni_relay_take(
        &relay,
        "log 0 20 record 12:00:01.123 E b:1: cannot write o/metrics-1.jsonl: No space left on device");
    eni_relay_take(&relay,
                   "log 0 20 curve 12:00:01.124 E b:0: cannot write o/eval.jsonl: No space left on device");
    eni_relay_take(
        &relay,
        "log 0 20 member 12:00:01.125 E b:0: the run is broken: rank 1 (pid 7 on host b) gave up: cannot "
        "write o/metrics-1.jsonl: No space left on device");
    eni_relay_open(&relay, "", false);
    eni_relay_take(&relay,
                   "log 1 20 save 12:00:01.126 W b:0: no checkpoint at sample 8: No space left on device");
    eni_relay_take(&relay,
                   "log 1 20 save 12:00:01.127 W b:0: no checkpoint at sample 9: No space left on device");
    assert_string_equal(printed(),
                        "12:00:01.123 E b:1: cannot write o/metrics-1.jsonl: No space left on device\n"
                        "12:00:01.126 W b:0: no checkpoint at sample 8: No space left on device\n"
                        "12:00:01.127 W b:0: no checkpoint at sample 9: No space left on device\n");
}

static void test_the_launcher_names_the_failed(void **state)
{
    (void)state;
    eni_relay_take(
        &relay, "log 0 20 member 12:00:01.123 E b:0: the run is broken: rank 1 (pid 7 on host b) died: gone");
    eni_relay_take(&relay,
                   "log 0 20 member 12:00:01.124 E b:2: the run is broken: rank 3 (pid 9 on host b) gave up");
    eni_relay_take(&relay,
                   "log 0 20 leader 12:00:01.125 E psd: the run ends: rank 3 (pid 9 on host b) gave up");
    eni_relay_open(&relay, "rank 1 (pid 7 on host b) died at step 3: Killed (SIGKILL)", false);
    relay.is_muted = true;
    eni_relay_take(
        &relay, "log 0 20 member 12:00:02.125 E b:2: the run is broken: rank 0 (pid 6 on host b) died: gone");
    assert_string_equal(printed(),
                        "12:00:01.124 E b:2: the run is broken: rank 3 (pid 9 on host b) gave up\n");
}

static void test_failure(void **state)
{
    (void)state;
    const eni_death death = {.rank = -2,
                             .pid = 4121,
                             .step = 41,
                             .is_stopped = true,
                             .host = "b",
                             .phase = "weight broadcast",
                             .cause = "silent for 5.0 s"};
    eni_death read;
    char line[8192];
    eni_failure_write(out[1], &death);
    snprintf(line, sizeof line, "%s", printed());
    line[strcspn(line, "\n")] = 0;
    assert_true(eni_failure_read(line, &read));
    assert_int_equal(read.rank, -2);
    assert_int_equal(read.pid, 4121);
    assert_int_equal(read.step, 41);
    assert_true(read.is_stopped);
    assert_string_equal(read.phase, "weight broadcast");
    assert_string_equal(read.cause, "silent for 5.0 s");
    char damaged[] = "death\t1\tx\t3\t0\tb\tforward\tgone";
    assert_false(eni_failure_read(damaged, &read));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup(test_once, setup),
                                       cmocka_unit_test_setup(test_a_full_disk_is_named_once, setup),
                                       cmocka_unit_test_setup(test_the_launcher_names_the_failed, setup),
                                       cmocka_unit_test_setup(test_failure, setup)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
