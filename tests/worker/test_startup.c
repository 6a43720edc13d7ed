/* test_startup.c - the age of this process and of the one that started it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/core/clock.h"
#include "worker/worker.h"

static void age_counts_from_the_start(void **state)
{
    (void)state;
    const int64_t before = eni_startup_ns(false);
    assert_true(before > 0 && before < 600 * ENI_SECOND); /* not since the machine started */
    assert_int_equal(prctl(PR_SET_NAME, "a) 1 2 (3"), 0);
    assert_true(eni_startup_ns(false) >= before);
}

static void a_launched_process_counts_from_its_launcher(void **state)
{
    (void)state;
    int status;
    const int64_t before = eni_startup_ns(false);
    const pid_t pid = fork();
    if (pid == 0) {
        const int64_t own = eni_startup_ns(false), launcher = eni_startup_ns(true);
        _exit(own > 0 && launcher >= own && launcher >= before ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(age_counts_from_the_start),
                                       cmocka_unit_test(a_launched_process_counts_from_its_launcher)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
