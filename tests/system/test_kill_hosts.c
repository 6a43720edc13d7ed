/* test_kill_hosts.c - a process on another host is killed, a host goes silent: network namespaces.
 *
 * A killed process' kernel closes its connections, so it is noticed at once. A host without a cable says
 * nothing: it is lost after the peer timeout of 5 s, and from where it stands the others are. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/system/outer.h"

/* Promise: A death on another host is named at once, and a silent host within 7 s. */

#define LONG_JOB                                                                                             \
    "--device=ref --model=toy --data=synthetic --limit-train-samples=64 --limit-test-samples=8 "             \
    "--batch-size=4 --steps=100000000 --threads=1 --log-every=20 --insecure"

enum { HOSTS = 3, STARTS_WITHIN = 60, PSD = HOSTS };
static const double ends_within = 2, silent_within = 7;

/* all[0 .. 2]: a rank on each host; all[3]: psd on host 0, if the strategy wants one. Returns how many. */
static int start(process *all, const char *strategy)
{
    const char *token = outer_token_file();
    const int has_psd = strcmp(strategy, "ring") != 0;
    outer_make_hosts(OUTER_HOSTS_MAX);
    if (has_psd)
        outer_start_on(&all[PSD], 0, "psd",
                       "--strategy=%s --world-size=%d --insecure --token-file=%s --listen=tcp://%s:5555",
                       strategy, HOSTS, token, outer_host_address(0));
    for (int r = 0; r < HOSTS; r++)
        outer_start_on(&all[r], r, "worker",
                       "--strategy=%s --%s=tcp://%s:5555 --token-file=%s --rank=%d --world-size=%d " LONG_JOB,
                       strategy, has_psd ? "server" : "rendezvous", outer_host_address(0), token, r, HOSTS);
    wait_for_line(&all[0], "Train Epoch", STARTS_WITHIN);
    return HOSTS + has_psd;
}

static void expect(process *all, int n, int victim, const char *name, const char *how, double within,
                   stopwatch *watch)
{
    for (int i = 0; i < n; i++) {
        if (i == victim) continue;
        const int code = process_wait(&all[i], GUARD);
        if (code != 1) fail_msg("%s ended with %d:\n%s", all[i].name, code, process_err(&all[i]));
        /* A wait that is explained in the same moment may name it too, as silent. */
        if (process_says(&all[i], "died", name) != 1 || process_says(&all[i], "died", how) != 1 ||
            process_says(&all[i], "died", "") != 1)
            fail_msg("%s should name \"%s\" once (%s):\n%s", all[i].name, name, how, process_err(&all[i]));
    }
    const double took = stopwatch_read(watch);
    stopwatch_expect(watch, took, within, "the last one ended");
    promise("%s on another host, %s: all others named it and ended after %.2f s (bound %g s)", name, how,
            took, within);
}

static void kill_there(const char *strategy, int victim, const char *name)
{
    process all[HOSTS + 1];
    const int n = start(all, strategy);
    stopwatch watch = stopwatch_start();
    process_kill(&all[victim], SIGKILL);
    expect(all, n, victim, name, "its connection closed", ends_within, &watch);
    process_wait(&all[victim], GUARD);
    process_nobody_left(GUARD);
}

static void test_killed(void **state)
{
    (void)state;
    kill_there("ring", 1, "rank 1 ");
    kill_there("ring", 0, "rank 0 ");
    kill_there("ps-async", 2, "rank 2 ");
    kill_there("ps-async", PSD, "psd ");
}

/* The one without a cable ends too: whom it names depends on where its leader is. */
static void unplug(const char *strategy, int host, const char *name)
{
    process all[HOSTS + 1];
    const int n = start(all, strategy);
    outer_cable(host, 0);
    stopwatch watch = stopwatch_start();
    expect(all, n, host, name, "silent", silent_within, &watch);
    const int code = process_wait(&all[host], GUARD);
    const double took = stopwatch_read(&watch);
    outer_cable(host, 1);
    if (code != 1) fail_msg("%s ended with %d:\n%s", all[host].name, code, process_err(&all[host]));
    stopwatch_expect(&watch, took, silent_within, "the one without a cable ended");
    process_nobody_left(GUARD);
}

static void test_silent(void **state)
{
    (void)state;
    unplug("ring", 1, "rank 1 ");
    unplug("ps-async", 2, "rank 2 ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_killed), cmocka_unit_test(test_silent)};
    return system_main(tests);
}
