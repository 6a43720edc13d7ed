/* test_hook.c - a guard that cannot be set up is gone, and nobody asks it at the exit. (tests/system/test_crash.c has what
 * hooks do.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka needs the four above */
#include <cmocka.h>

#include "core/hook.h"

/* In place of the C library's, which has no room. */
int at_quick_exit(void (*function)(void))
{
    (void)function;
    return -1;
}

static void tell(void *user, const char *sentence)
{
    (void)user, (void)sentence;
}

static void what_could_not_begin_is_not_asked_at_the_exit(void **state)
{
    (void)state;
    int status = 0;
    const pid_t pid = fork();
    if (pid == 0) {
        const eni_hook_guard_config config = {.tell = tell};
        exit(eni_hook_guard_begin(&config) == NULL && eni_hook_guard_now() == NULL ? 7 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_could_not_begin_is_not_asked_at_the_exit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
