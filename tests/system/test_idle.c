/* test_idle.c - who waits costs nothing: with one rank stopped, the others and psd take less than a hundredth
 * of a core. Processor time is counted, so the load of the machine does not matter. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/system/process.h"

/* Promise: A rank or psd that waits uses less than a hundredth of a core. */

#define ENDLESS                                                                                              \
    "--model=toy --data=synthetic --device=ref --threads=1 --batch-size=4 --limit-train-samples=64 "         \
    "--limit-test-samples=8 --log-every=1 --steps=100000000 --peer-timeout=60s --epochs=100000000 "

enum { WINDOW_MS = 2000, SETTLE_MS = 200, STARTS_WITHIN = 60 };
static const double most = 0.01; /* of a core */

/* Processor time of all threads of a process, in seconds. */
static double cpu_of(pid_t pid)
{
    clockid_t id;
    struct timespec t;
    assert_int_equal(clock_getcpuclockid(pid, &id), 0);
    assert_int_equal(clock_gettime(id, &t), 0);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Who waits for the rank that is stopped: the launcher, rank 0, and psd if there is one. */
static void waiting_is_free(const char *strategy, int has_psd)
{
    static const char *const names[] = {"entrain", "rank 0", "psd"};
    process run;
    process_start(&run, "entrain", NULL, "run -n 2 " ENDLESS "--strategy=%s", strategy);
    wait_for_line(&run, "Train Epoch", STARTS_WITHIN);
    const pid_t stopped = process_child(run.pid, "--rank=1");
    const pid_t pids[] = {run.pid, process_child(run.pid, "--rank=0"),
                          has_psd ? process_child(run.pid, "psd") : 0};
    assert_true(stopped > 0 && pids[1] > 0 && (pids[2] > 0 || !has_psd));
    assert_int_equal(kill(stopped, SIGSTOP), 0);
    poll(NULL, 0, SETTLE_MS);
    double before[3] = {0};
    for (int i = 0; i < 2 + has_psd; i++)
        before[i] = cpu_of(pids[i]);
    const double begin = now_seconds();
    poll(NULL, 0, WINDOW_MS); /* what is measured is a time */
    for (int i = 0; i < 2 + has_psd; i++) {
        const double share = (cpu_of(pids[i]) - before[i]) / (now_seconds() - begin);
        promise("%s: %s waits at %.2f %% of a core, at most %.0f %%", strategy, names[i], 100 * share,
                100 * most);
        assert_true(share <= most * SLOWNESS);
    }
    process_kill(&run, SIGKILL);
    kill(stopped, SIGCONT);
    process_wait(&run, 10);
    process_nobody_left(10);
}

static void ring(void **state)
{
    (void)state;
    waiting_is_free("ring", 0);
}

static void ring_over_tcp(void **state)
{
    (void)state;
    waiting_is_free("ring --transport=tcp", 0);
}

static void ps_sync(void **state)
{
    (void)state;
    waiting_is_free("ps-sync", 1);
}

static void ps_sync_over_tcp(void **state)
{
    (void)state;
    waiting_is_free("ps-sync --transport=tcp", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ring), cmocka_unit_test(ring_over_tcp),
                                       cmocka_unit_test(ps_sync), cmocka_unit_test(ps_sync_over_tcp)};
    return system_main(tests);
}
