/* test_hook.c - a guard that cannot be set up is gone, and nobody asks it at the exit; a name that was given is copied.
 * (tests/system/test_crash.c has what hooks do.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka needs the four above */
#include <cmocka.h>

#include "plugin/hook.h"

/* In place of the C library's, which has no room, or forgets. */
static int quick_exit_says = -1;
int at_quick_exit(void (*function)(void))
{
    (void)function;
    return quick_exit_says;
}

/* Into the pipe, if there is one. */
static void tell(void *user, const char *sentence)
{
    if (user != NULL) assert_int_equal(write(*(int *)user, sentence, strlen(sentence)), strlen(sentence));
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

/* Whoever gave it may have used the memory for something else by the time that the guard looks. */
static void a_name_is_copied_and_a_long_one_keeps_its_end(void **state)
{
    (void)state;
    for (int before = 0; before <= 250; before += 250) {
        char said[400] = "", name[300];
        int status = 0, ends[2];
        assert_int_equal(pipe(ends), 0);
        const pid_t pid = fork();
        if (pid == 0) {
            const eni_hook_guard_config config = {.tell = tell, .user = &ends[1]};
            quick_exit_says = 0;
            if (eni_hook_guard_begin(&config) == NULL) _exit(1);
            snprintf(name, sizeof name, "%0*d/mine.so", before, 0);
            eni_hook_enter_named("build", name);
            memset(name, '!', sizeof name);
            exit(7);
        }
        close(ends[1]);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
        const ssize_t n = read(ends[0], said, sizeof said - 1);
        close(ends[0]);
        const char *end = " exit(7)";
        assert_true(n > (ssize_t)strlen(end) && memmem(said, (size_t)n, "/mine.so", 8) != NULL);
        assert_string_equal(said + n - strlen(end), end);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_could_not_begin_is_not_asked_at_the_exit),
                                       cmocka_unit_test(a_name_is_copied_and_a_long_one_keeps_its_end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
