/* test_signals.c - what is inherited is put in order, and a child is waited for. */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka needs the four above */
#include <cmocka.h>

#include "core/clock.h"
#include "core/signals.h"

static void closed_streams_are_opened(void **state)
{
    (void)state;
    int status = 0;
    const pid_t pid = fork();
    if (pid == 0) {
        close(STDIN_FILENO);
        close(STDERR_FILENO);
        const int fd = eni_signals_open();
        _exit(fd > STDERR_FILENO && fcntl(STDIN_FILENO, F_GETFD) == 0 && fcntl(STDERR_FILENO, F_GETFD) == 0
                  ? 7
                  : 1);
    }
    assert_int_equal(eni_signals_await(pid, -1, INT64_MAX, &status), EN_OK);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static void the_first_that_comes_ends_the_wait(void **state)
{
    (void)state;
    int status = 0, ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    const int signals = eventfd(0, 0); /* as good as a signalfd */
    const pid_t pid = fork();
    if (pid == 0) {
        close(ends[1]);
        while (read(ends[0], &byte, 1) > 0) {
        }
        _exit(3);
    }
    assert_int_equal(eni_signals_await(pid, signals, eni_now_ns() + 20 * ENI_MILLI, &status), EN_ETIMEOUT);
    assert_int_equal(eventfd_write(signals, 1), 0);
    assert_int_equal(eni_signals_await(pid, signals, INT64_MAX, &status), EN_EINTR);
    close(ends[1]);
    assert_int_equal(eni_signals_await(pid, -1, INT64_MAX, &status), EN_OK);
    assert_int_equal(WEXITSTATUS(status), 3);
    close(ends[0]);
    close(signals);
}

static void *tell_mask(void *mask_out)
{
    pthread_sigmask(SIG_SETMASK, NULL, mask_out);
    return NULL;
}

static void a_thread_takes_no_signals(void **state)
{
    (void)state;
    sigset_t its, ours;
    pthread_t thread;
    assert_int_equal(eni_thread_start(&thread, tell_mask, &its), 0);
    pthread_join(thread, NULL);
    pthread_sigmask(SIG_SETMASK, NULL, &ours);
    assert_true(sigismember(&its, SIGTERM) == 1 && sigismember(&its, SIGUSR1) == 1);
    assert_true(sigismember(&ours, SIGTERM) == 0 && sigismember(&ours, SIGUSR1) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(closed_streams_are_opened),
                                       cmocka_unit_test(a_thread_takes_no_signals),
                                       cmocka_unit_test(the_first_that_comes_ends_the_wait)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
