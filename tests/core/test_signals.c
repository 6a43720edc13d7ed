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

static void signals_have_names(void **state)
{
    (void)state;
    assert_string_equal(eni_signal_name(SIGSEGV), "SEGV");
    assert_string_equal(eni_signal_words(SIGSEGV), "Segmentation fault");
    assert_null(eni_signal_name(0));
    assert_null(eni_signal_words(1000));
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

static void one_of_several_ends(void **state)
{
    (void)state;
    pid_t children[3] = {0};
    int which = -1, status = 0;
    for (int i = 1; i < 3; i++) {
        children[i] = eni_signals_fork(SIGKILL);
        if (children[i] == 0 && i == 2) _exit(5);
        while (children[i] == 0)
            pause();
    }
    assert_int_equal(eni_signals_await_any(children, 3, -1, INT64_MAX, &which, &status), EN_OK);
    assert_int_equal(which, 2);
    assert_int_equal(WEXITSTATUS(status), 5);
    children[2] = 0;
    assert_int_equal(eni_signals_await_any(children, 3, -1, eni_now_ns() + ENI_MILLI, &which, &status),
                     EN_ETIMEOUT);
    kill(children[1], SIGKILL);
    assert_int_equal(eni_signals_await_any(children, 3, -1, INT64_MAX, &which, &status), EN_OK);
    assert_true(which == 1 && WIFSIGNALED(status));
}

/* A child ends with its parent, and cannot be killed by a request for a checkpoint. */
static void a_child_ends_with_us(void **state)
{
    (void)state;
    int ends[2], status = 0;
    char byte = 0;
    assert_int_equal(pipe(ends), 0);
    const pid_t parent = fork();
    if (parent == 0) {
        const pid_t child = eni_signals_fork(SIGKILL);
        if (child == 0) {
            sigset_t mask;
            sigprocmask(SIG_SETMASK, NULL, &mask);
            byte = (char)(sigismember(&mask, SIGUSR1) == 1 && sigismember(&mask, SIGTERM) == 0);
            raise(SIGUSR1);
            if (write(ends[1], &byte, 1) != 1) _exit(1);
            for (;;)
                pause();
        }
        _exit(read(ends[0], &byte, 1) == 1 ? 7 + byte : 1); /* it is ready */
    }
    close(ends[1]);
    assert_int_equal(eni_signals_await(parent, -1, INT64_MAX, &status), EN_OK);
    assert_int_equal(WEXITSTATUS(status), 8);
    assert_int_equal(read(ends[0], &byte, 1), 0); /* the child's end is closed, too */
    close(ends[0]);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_streams_are_opened), cmocka_unit_test(signals_have_names),
        cmocka_unit_test(a_thread_takes_no_signals), cmocka_unit_test(one_of_several_ends),
        cmocka_unit_test(a_child_ends_with_us),      cmocka_unit_test(the_first_that_comes_ends_the_wait)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
