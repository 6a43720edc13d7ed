/* test_machine.c - the processor time of other processes: the arithmetic, and a process that is not our descendant; and
 * when runs support no conclusion. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/launcher/machine.h"
#include "cli/trial.h"
#include "core/clock.h"

static const eni_machine begin = {.used = 1000, .own = 40, .ns = 7 * ENI_SECOND, .cores = 2};

static eni_machine later(double used, double own, double seconds)
{
    return (eni_machine){begin.used + used, begin.own + own, begin.ns + (int64_t)(seconds * 1e9), 2};
}

static void others_are_what_is_not_ours(void **state)
{
    (void)state;
    eni_machine end = later(8, 6, 10);
    assert_true(fabs(eni_machine_outside(&begin, &end) - 2.0 / 20) < 1e-12);
    end = later(6, 6.1, 10); /* rounding: never negative */
    assert_true(eni_machine_outside(&begin, &end) == 0);
    end = later(30, 1, 10);
    assert_true(eni_machine_outside(&begin, &end) == 1);
}

static void too_short_or_silent_is_not_known(void **state)
{
    (void)state;
    eni_machine end = later(1, 0.5, 0.59);
    assert_true(isnan(eni_machine_outside(&begin, &end)));
    end = later(1, 0.5, 0.61);
    assert_false(isnan(eni_machine_outside(&begin, &end)));
    end = later(0, 1.5, 10); /* a sandbox's /proc/stat */
    assert_true(isnan(eni_machine_outside(&begin, &end)));
    eni_machine unknown = {.ns = begin.ns};
    end = later(1, 0.5, 10);
    assert_true(isnan(eni_machine_outside(&unknown, &end)));
}

/* Burns this much processor time, however long that takes. */
static void burn(double seconds)
{
    volatile double sink = 0;
    const eni_machine before = eni_machine_now();
    for (eni_machine now = before; now.own - before.own < seconds; now = eni_machine_now())
        for (int i = 0; i < 1000000; i++)
            sink = sink + i;
}

/* We wait for its child; the process that burns is not a descendant of ours, unlike a run's processes. */
static void start_outsider(double seconds, int ended)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (fork() == 0) {
            burn(seconds);
            if (write(ended, "x", 1) != 1) _exit(1);
        }
        _exit(0);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static void a_process_of_ours_and_one_of_others(void **state)
{
    (void)state;
    const double seconds = 0.5;
    int ended[2];
    char byte;
    const eni_machine first = eni_machine_now();
    if (first.cores == 0 || first.used <= 0) skip(); /* no /proc/stat to look at */
    assert_int_equal(pipe(ended), 0);
    start_outsider(seconds, ended[1]);
    assert_int_equal(read(ended[0], &byte, 1), 1);
    const eni_machine second = eni_machine_now();
    assert_true(second.own - first.own < 0.5 * seconds);
    assert_true(second.used - first.used - (second.own - first.own) > 0.8 * seconds);
    const pid_t child = fork();
    if (child == 0) {
        burn(seconds);
        _exit(0);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
    const eni_machine third = eni_machine_now();
    assert_true(third.own - second.own > 0.9 * seconds);
    close(ended[0]);
    close(ended[1]);
}

/* For advise and scale: runs of one kind that differ by more than a fifth, or a machine with other load. */
static void doubtful_runs_conclude_nothing(void **state)
{
    (void)state;
    eni_trials trials = {.spread = 0};
    char text[256] = "";
    eni_trials_note(&trials, (double[]){110, 90, 100}, 3); /* 20 % */
    assert_false(eni_trials_doubt(&trials, 0.05, text, sizeof text));
    assert_false(eni_trials_doubt(&trials, NAN, text, sizeof text));
    assert_string_equal(text, "");
    assert_true(eni_trials_doubt(&trials, 0.06, text, sizeof text));
    assert_non_null(strstr(text, "other processes took 6 %"));
    assert_non_null(strstr(text, "5 %)"));
    eni_trials_note(&trials, (double[]){100, 121, 100}, 3);
    assert_true(eni_trials_doubt(&trials, NAN, text, sizeof text));
    assert_non_null(strstr(text, "differ by 21 %"));
    assert_non_null(strstr(text, "20 %)"));
    eni_trials_note(&trials, (double[]){5, 5}, 2); /* the widest counts */
    assert_true(eni_trials_doubt(&trials, 0, text, sizeof text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(doubtful_runs_conclude_nothing),
        cmocka_unit_test(others_are_what_is_not_ours),
        cmocka_unit_test(too_short_or_silent_is_not_known),
        cmocka_unit_test(a_process_of_ours_and_one_of_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
