/* test_refused_calls.c - an old kernel, or the filter of a container, refuses a system call: other calls do the work, or one
 * sentence refuses it; no living process is reported as gone, and none waits forever. */
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/system/job.h"

#define TOY                                                                                                  \
    "--model=toy --data=synthetic --device=ref --threads=1 --batch-size=4 --limit-train-samples=64 "         \
    "--limit-test-samples=8 --log-every=0 "

enum { STARTS_WITHIN = 60 };
static const char *const errors[] = {"ENOSYS", "EPERM"};

/* The kernel refuses `calls` to it and to all that it starts. */
static void start_without(process *p, int error, const char *calls, const char *command)
{
    process_start(p, "test_refuse_calls", NULL, "%s %s entrain %s", errors[error], calls, command);
}

/* `entrain stop` reaches the run, and returns after its end. */
static void test_stop_without_pidfd(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        job j = {.strategy = "ring", .n = 2, .is_run = 1};
        process stop;
        char command[32];
        start_without(&j.run, e, "pidfd_open,pidfd_send_signal",
                      "run -n 2 --strategy=ring --steps=100000000 --log-level=error " TOY);
        job_wait(&j, 1, -1, NULL, 1, STARTS_WITHIN);
        snprintf(command, sizeof command, "stop %d", (int)j.run.pid);
        start_without(&stop, e, "pidfd_open,pidfd_send_signal", command);
        assert_int_equal(process_wait(&stop, GUARD), 0);
        assert_int_equal(process_wait(&j.run, 1), 128 + SIGTERM);
        process_nobody_left(GUARD);
    }
}

/* The process that clears up after the run waits for the end of a pipe: it must not hold the pipe's other end itself. */
static void test_run_without_newer_calls(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        process p;
        start_without(&p, e, "pidfd_open,close_range,preadv2,sched_setattr,sched_getattr",
                      "run -n 2 --strategy=ps-sync --server-restarts=1 --server-timeout=5s --steps=20 " TOY);
        if (process_wait(&p, GUARD) != 0) fail_msg("%s:\n%s", errors[e], process_err(&p));
        process_nobody_left(GUARD);
    }
}

static int descriptors_of(pid_t pid)
{
    char path[64];
    int n = -2; /* "." and ".." */
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    if (dir == NULL) return -1;
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

/* It outlives the launcher, so it must not hold the launcher's output, a lock or a port, for which others wait. */
static void test_who_clears_up_holds_nothing(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        job j = {.strategy = "ps-sync", .n = 2, .is_run = 1};
        start_without(
            &j.run, e, "close_range",
            "run -n 2 --strategy=ps-sync --server-restarts=1 --server-timeout=5s --steps=100000000 " TOY);
        job_wait(&j, 1, -1, NULL, 1, STARTS_WITHIN);
        const pid_t keeper = process_child(j.run.pid, "run"); /* a fork, which has the launcher's arguments */
        assert_true(keeper > 0);
        const double deadline = now_seconds() + GUARD;
        while (descriptors_of(keeper) != 1 && now_seconds() < deadline)
            poll(NULL, 0, 10);
        assert_int_equal(descriptors_of(keeper), 1); /* the pipe */
        process_kill(&j.run, SIGTERM);
        assert_int_equal(process_wait(&j.run, GUARD), 128 + SIGTERM);
        process_nobody_left(GUARD);
    }
}

static void test_no_shared_memory(void **state)
{
    static const char *const strategies[] = {"ring", "ps-sync", "solo"};
    (void)state;
    for (int e = 0; e < 2; e++)
        for (int s = 0; s < 3; s++) {
            process p;
            char command[512];
            snprintf(command, sizeof command, "run -n %d --strategy=%s --steps=20 " TOY, s < 2 ? 2 : 1,
                     strategies[s]);
            start_without(&p, e, "memfd_create", command);
            assert_int_equal(process_wait(&p, GUARD) != 0, s < 2); /* one rank shares nothing */
            assert_int_equal(process_says(&p, "memfd_create", "") > 0, s < 2);
            process_nobody_left(GUARD);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        JOB_TEST(test_stop_without_pidfd),
        JOB_TEST(test_run_without_newer_calls),
        JOB_TEST(test_who_clears_up_holds_nothing),
        JOB_TEST(test_no_shared_memory),
    };
    return system_main(tests);
}
