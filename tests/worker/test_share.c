/* test_share.c - who waits for the data set of another process waits for none that is stopped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "worker/worker.h"

static void nobody_waits_for_a_stopped_reader(void **state)
{
    (void)state;
    char run[64];
    snprintf(run, sizeof run, "test_share %d", (int)getpid());
    eni_config config = {.peer_timeout_ns = ENI_SECOND / 2, .rendezvous = run};
    const eni_data_options options = {
        .name = "synthetic", .limit_train = 8, .limit_test = 8, .want = {1, 1, 4, .classes = 2}};
    eni_worker first = {.config = &config, .rank = {.version = "1", .abort_fd = -1}}, second = first;
    int status;
    const pid_t pid = fork();
    if (pid == 0) {
        if (eni_share_open(&first, &options) != EN_OK) _exit(1);
        raise(SIGSTOP);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    const int64_t begin = eni_now_ns();
    assert_int_equal(eni_share_open(&second, &options), EN_EPEER);
    assert_true(eni_now_ns() - begin <
                30 * ENI_SECOND); /* twice that would be the wait for one that is only slow */
    assert_null(second.dataset);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(eni_share_open(&second, &options), EN_OK); /* the name is free */
    eni_share_close(second.share);
    eni_dataset_close(second.dataset);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nobody_waits_for_a_stopped_reader)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
