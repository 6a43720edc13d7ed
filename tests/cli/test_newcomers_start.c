/* test_newcomers_start.c - if not all newcomers can be started, waits only for those that were. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/find_run.h"
#include "core/log.h"
#include "runtime/net/process.h"

static int nforks;

/* Replaces the C library's: allows one process. */
pid_t fork(void)
{
    if (nforks++ == 0) return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    errno = EAGAIN;
    return -1;
}

static void keep(void *user, int level, const char *subsystem, const char *text)
{
    (void)level, (void)subsystem;
    strncpy(user, text, 255);
}

/* This process is the run's leader and its only rank: a newcomer is this program again, which ends at once. */
static void one_of_three(void **state)
{
    char said[256] = "";
    eni_run_rank rank = {.rank = 0, .pid = getpid(), .born = eni_process_born(getpid())};
    const eni_run_status run = {.pid = rank.pid, .born = rank.born, .rank = &rank, .nrank = 1};
    (void)state;
    eni_log_set_sink(keep, said);
    alarm(20); /* it must not wait for a process that was never started */
    assert_int_equal(eni_newcomers_start(&run, 3, -1), EN_EIO);
    alarm(0);
    eni_log_set_sink(NULL, NULL);
    assert_int_equal(nforks, 2);
    assert_non_null(strstr(said, strerror(EAGAIN)));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_of_three)};
    if (strcmp(argv[argc - 1], "--rank=new") == 0) return 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
