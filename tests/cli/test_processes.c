/* test_processes.c - one function in several processes: they all end, a failing one fails all, and a signal ends one that
 * hangs. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/processes.h"
#include "core/log.h"

static void hush(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)level, (void)subsystem, (void)text;
}

static int writes(const eni_process *self)
{
    ((int *)self->shared)[self->rank] = self->n + self->rank;
    return 0;
}

static en_status run(int n, void **shared_out, int (*main)(const eni_process *self), int signal_fd)
{
    const eni_processes asked = {
        .who = "test", .n = n, .shared_bytes = 64, .main = main, .signal_fd = signal_fd};
    return eni_processes_run(&asked, shared_out);
}

static void test_processes(void **state)
{
    void *shared;
    (void)state;
    assert_int_equal(run(3, &shared, writes, -1), EN_OK);
    for (int r = 0; r < 3; r++)
        assert_int_equal(((int *)shared)[r], 3 + r);
    eni_processes_release(shared, 64);
    eni_processes_release(NULL, 64);
}

/* The others would wait without end. */
static int one_fails(const eni_process *self)
{
    while (self->rank != 1)
        poll(NULL, 0, 1000);
    return 1;
}

static int one_hangs(const eni_process *self)
{
    while (self->rank == 1)
        poll(NULL, 0, 1000);
    return 0;
}

static void test_failures(void **state)
{
    void *shared = NULL;
    (void)state;
    eni_log_set_sink(hush, NULL);
    assert_int_equal(run(3, &shared, one_fails, -1), EN_EPEER);
    const int told = eventfd(1, EFD_CLOEXEC);
    assert_int_equal(run(2, &shared, one_hangs, told), EN_EINTR);
    close(told);
    eni_log_set_sink(NULL, NULL);
    assert_null(shared);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* nobody is left */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_processes), cmocka_unit_test(test_failures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
