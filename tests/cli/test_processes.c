/* test_processes.c - one function in several processes: they all end, a failing one fails all, and one that hangs is
 * killed. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/processes.h"
#include "core/clock.h"
#include "core/log.h"

static void hush(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)level, (void)subsystem, (void)text;
}

static int meets(const eni_process *self)
{
    int times = 0, *seen = self->shared;
    for (int i = 0; i < 3; i++) {
        seen[self->rank] = i + 1;
        if (eni_processes_meet(self, &times)) return 1;
        for (int r = 0; r < self->n; r++)
            if (seen[r] < i + 1) return 1;
        if (eni_processes_meet(self, &times)) return 1;
    }
    return 0;
}

static en_status run(int n, void **shared_out, int (*main)(const eni_process *self), int64_t left_ns)
{
    const eni_processes asked = {.who = "test",
                                 .n = n,
                                 .shared_bytes = 64,
                                 .main = main,
                                 .deadline_ns = eni_now_ns() + left_ns,
                                 .signal_fd = -1};
    return eni_processes_run(&asked, shared_out);
}

static void test_processes(void **state)
{
    void *shared;
    (void)state;
    assert_int_equal(run(3, &shared, meets, 20 * ENI_SECOND), EN_OK);
    for (int r = 0; r < 3; r++)
        assert_int_equal(((int *)shared)[r], 3);
    eni_processes_release(shared, 64);
    eni_processes_release(NULL, 64);
}

static int one_fails(const eni_process *self)
{
    int times = 0;
    if (self->rank == 1) return 1;
    eni_processes_meet(self, &times); /* would wait for ever */
    return 0;
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
    assert_int_equal(run(3, &shared, one_fails, 20 * ENI_SECOND), EN_EPEER);
    assert_int_equal(run(2, &shared, one_hangs, ENI_SECOND / 5), EN_ETIMEOUT);
    eni_log_set_sink(NULL, NULL);
    assert_null(shared);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* nobody is left */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_processes), cmocka_unit_test(test_failures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
