/* test_netns.c - several hosts: network namespaces, each with an interface and a loopback of its own. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/system/outer.h"

/* Promise: Runs over several hosts (network namespaces) end with the bytes of one process. */

#define LONG_JOB                                                                                             \
    "--device=ref --model=mlp --data=synthetic --limit-train-samples=64 --limit-test-samples=8 "             \
    "--batch-size=4 --lr=0.001 --steps=1000000 --threads=1 --log-every=20"

/* A ring over TCP adds in the ring's order: one process can do that too. */
static void ring_on_hosts(int n, const char *how)
{
    process ranks[OUTER_HOSTS_MAX];
    const char *out = outer_folder();
    const char *expected =
        train_hash(60, "-n 1 --strategy=solo --accumulate=%d --sum-order=ring " OUTER_JOB, n);
    outer_make_hosts(OUTER_HOSTS_MAX);
    for (int r = n - 1; r >= 0; r--)
        outer_start_on(&ranks[r], r, "worker",
                       "--strategy=ring %s --insecure --rank=%d --world-size=%d --out=%s " OUTER_ALONE
                       " " OUTER_JOB,
                       how, r, n, out);
    for (int r = 0; r < n; r++) {
        outer_expect_end(&ranks[r], 0);
        char place[64]; /* the address on the route, and its interface, in one line */
        snprintf(place, sizeof place, ": %s via eth0", outer_host_address(r));
        if (process_says(&ranks[r], place, "10.77.0.1:") + process_says(&ranks[r], "all interfaces", "") != 1)
            fail_msg("rank %d does not say its address:\n%s", r, process_err(&ranks[r]));
    }
    outer_expect_hash(out, expected);
    promise("ring over TCP on %d hosts (network namespaces), %s: the bytes of one process", n, how);
}

static void test_ring(void **state)
{
    char how[300];
    (void)state;
    snprintf(how, sizeof how, "--rendezvous=tcp://%s:23456 --token-file=%s", outer_host_address(0),
             outer_token_file());
    ring_on_hosts(2, how);
    ring_on_hosts(4, how);
}

/* The file brings address and token; rank 0 listens on all its interfaces. */
static void test_ring_by_file(void **state)
{
    char how[200], path[160];
    (void)state;
    snprintf(path, sizeof path, "%s/meet", system_folder());
    snprintf(how, sizeof how, "--rendezvous=file://%s", path);
    ring_on_hosts(4, how);
    assert_int_not_equal(access(path, F_OK), 0);
}

static void serve_hosts(const char *listen, const char *expected)
{
    process psd, ranks[3];
    const char *token = outer_token_file(), *out = outer_folder();
    outer_start_on(
        &psd, 0, "psd",
        "--strategy=ps-sync --world-size=3 --shards=2 --insecure --token-file=%s --listen=tcp://%s:5555",
        token, listen);
    for (int r = 0; r < 3; r++) /* beside psd, and two on another host */
        outer_start_on(&ranks[r], r > 0, "worker",
                       "--strategy=ps-sync --server=tcp://%s:5555 --insecure --token-file=%s --rank=%d "
                       "--world-size=3 --out=%s " OUTER_ALONE " " OUTER_JOB,
                       outer_host_address(0), token, r, out);
    for (int r = 0; r < 3; r++)
        outer_expect_end(&ranks[r], 0);
    outer_expect_end(&psd, 0);
    outer_expect_hash(out, expected);
    promise(
        "ps-sync, psd at tcp://%s:5555, one worker beside it and two on another host: the bytes of one host",
        listen);
}

static void test_server(void **state)
{
    (void)state;
    const char *expected = train_hash(60, "-n 3 --strategy=ps-sync --shards=2 " OUTER_JOB);
    outer_make_hosts(OUTER_HOSTS_MAX);
    serve_hosts(outer_host_address(0), expected);
    serve_hosts("*", expected);
}

static void start_nodes(process *nodes, int n, const char *flags)
{
    for (int k = n - 1; k >= 0; k--)
        outer_start_on(&nodes[k], k, "entrain",
                       "run --nnodes=%d --nproc-per-node=2 --node-rank=%d --master-addr=%s --insecure "
                       "--token-file=%s %s",
                       n, k, outer_host_address(0), outer_token_file(), flags);
}

static void test_entrain_run(void **state)
{
    static const char *const same[][2] = {
        {"ring", "-n 1 --strategy=solo --accumulate=4 --sum-order=ring"},
        {"ps-sync", "-n 4 --strategy=ps-sync"},
        {"grouped:period=2", "-n 4 --strategy=grouped:period=2 --groups=2 --transport=tcp"}};
    (void)state;
    outer_make_hosts(OUTER_HOSTS_MAX);
    for (int s = 0; s < 3; s++) {
        process nodes[2];
        char flags[512];
        const char *out = outer_folder(), *expected = train_hash(60, "%s " OUTER_JOB, same[s][1]);
        snprintf(flags, sizeof flags, "--strategy=%s --out=%s " OUTER_ALONE " " OUTER_JOB, same[s][0], out);
        start_nodes(nodes, 2, flags);
        for (int k = 0; k < 2; k++)
            outer_expect_end(&nodes[k], 0);
        outer_expect_hash(out, expected);
    }
    promise("entrain run --nnodes=2 --nproc-per-node=2 on two hosts, ring, ps-sync and grouped, a host a "
            "group: the "
            "bytes of one host");
}

/* As two clones of a virtual machine: one host identity, and no memory that both reach. */
static void test_clones(void **state)
{
    static const char *const ids[][2] = {{"clone", "clone"}, {"clone-a", "clone-b"}};
    (void)state;
    outer_make_hosts(OUTER_HOSTS_MAX);
    for (int i = 0; i < 2; i++) {
        process nodes[2];
        for (int k = 1; k >= 0; k--)
            outer_start_on(&nodes[k], k, "entrain",
                           "run --nnodes=2 -n 1 --node-rank=%d --master-addr=%s --insecure --token-file=%s "
                           "--strategy=ring --host-id=%s " OUTER_ALONE " " OUTER_JOB,
                           k, outer_host_address(0), outer_token_file(), ids[i][k]);
        const int code = process_wait(&nodes[1], GUARD), first = process_wait(&nodes[0], GUARD);
        const int says =
            process_says(&nodes[1], "the same host identity as this one", "a --host-id of its own");
        if ((code == 0) != (i == 1) || (first == 0) != (i == 1) || says != (i == 0))
            fail_msg("--host-id=%s and %s: exit %d and %d:\n%s%s", ids[i][0], ids[i][1], first, code,
                     process_err(&nodes[0]), process_err(&nodes[1]));
    }
    promise("two machines with one host identity: told, with --host-id as the remedy, which works");
}

/* One host's launcher is killed: its ranks die with it, and the other host's run ends by the control plane.
 */
static void test_host_is_lost(void **state)
{
    process nodes[2];
    char flags[256];
    (void)state;
    outer_make_hosts(OUTER_HOSTS_MAX);
    snprintf(flags, sizeof flags, "--strategy=ring " LONG_JOB);
    start_nodes(nodes, 2, flags);
    wait_for_line(&nodes[0], "Train Epoch", 60);
    stopwatch watch = stopwatch_start();
    process_kill(&nodes[1], SIGKILL);
    int code = process_wait(&nodes[0], GUARD);
    double seconds = stopwatch_read(&watch);
    stopwatch_expect(&watch, seconds, 2, "host 0 ended");
    assert_int_equal(process_wait(&nodes[1], GUARD), 128 + SIGKILL);
    if (code == 0 || process_says(&nodes[0], "rank 2", "") + process_says(&nodes[0], "rank 3", "") == 0)
        fail_msg("host 0 ended with %d and named neither rank 2 nor rank 3:\n%s", code,
                 process_err(&nodes[0]));
    process_nobody_left(GUARD);
    promise("entrain run on one of two hosts is killed: the other ends with %d after %.2f s and names a rank "
            "of it",
            code, seconds);
}

/* ---- what cannot work says why ---- */

static void refuse(int host, double within, const char *first, const char *second, const char *flags)
{
    process p;
    stopwatch watch = stopwatch_start();
    outer_start_on(&p, host, "worker", "--strategy=ring --world-size=2 %s " OUTER_ALONE " " OUTER_JOB, flags);
    int code = process_wait(&p, GUARD);
    double seconds = stopwatch_read(&watch);
    stopwatch_expect(&watch, seconds, within, flags);
    if (code == 0 || process_says(&p, first, second) < 1)
        fail_msg("%s: exit %d after %.1f s, expected one line with \"%s\" and \"%s\":\n%s", flags, code,
                 seconds, first, second, process_err(&p));
}

static void test_addresses(void **state)
{
    char flags[512];
    const char *token = outer_token_file();
    (void)state;
    outer_make_hosts(OUTER_HOSTS_MAX);
    const struct {
        const char *address, *first, *second;
        double within;
    } to[] = {{"10.77.0.1:7", "cannot connect to tcp://10.77.0.1:7", "refused, nobody listens there", 3},
              {"10.99.0.1:7", "no route to 10.99.0.1", "give an address", 1},
              {"nowhere.invalid:7", "no such host 'nowhere.invalid'", "/etc/hosts", 5},
              {"5:7", "'5' would be read as the address 0.0.0.5", "four numbers", 1}};
    for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
        snprintf(flags, sizeof flags,
                 "--rank=1 --rendezvous=tcp://%s --insecure --join-timeout=1s --token-file=%s", to[i].address,
                 token);
        refuse(1, to[i].within, to[i].first, to[i].second, flags);
    }
    refuse(1, 5, "no such host 'fe80::1%nowhere'", "has no interface nowhere",
           "--rank=1 --rendezvous=tcp://[fe80::1%nowhere]:7 --insecure --join-timeout=1s");
    refuse(1, 5, "no route to fe80::1 from this machine", "as fe80::1%eth0",
           "--rank=1 --rendezvous=tcp://[fe80::1]:7 --insecure --join-timeout=1s");
    outer_cable(2, 0); /* nobody says no */
    snprintf(flags, sizeof flags,
             "--rank=1 --rendezvous=tcp://%s:7 --insecure --join-timeout=2s --token-file=%s",
             outer_host_address(2), token);
    refuse(1, 8, "cannot connect to tcp://10.77.0.3:7", "no answer at all", flags);
    outer_cable(2, 1);
    refuse(1, 1, "no token for tcp://10.77.0.1:7, which is another host", "--token-file=FILE",
           "--rank=1 --rendezvous=tcp://10.77.0.1:7 --insecure");
    refuse(0, 1, "will not listen on 10.77.0.1", "--insecure", "--rank=0 --rendezvous=tcp://10.77.0.1:7");
    promise("refused, no route, no name, no answer, a number as name, no token, no --insecure: told apart");
}

/* In a new network namespace nothing is up, and a run on one host meets at 127.0.0.1. */
static void test_no_loopback(void **state)
{
    process p;
    const char *unshare = outer_tool("unshare");
    (void)state;
    outer_make_hosts(OUTER_HOSTS_MAX); /* we may */
    if (unshare == NULL) skip();
    for (int i = 0; i < 2; i++) {
        process_start(&p, unshare, NULL,
                      "-n " EN_BUILD_DIR "/entrain run -n 2 --strategy=%s " OUTER_ALONE " " OUTER_JOB,
                      i == 0 ? "ring" : "ps-sync");
        const int code = process_wait(&p, GUARD);
        if (code != 2 || process_says(&p, "loopback interface is down", "ip link set lo up") < 1)
            fail_msg("without lo: exit %d\n%s", code, process_err(&p));
        process_nobody_left(5);
    }
    promise("a network namespace without loopback: one sentence, exit 2");
}

/* Rank 0 leads by a file, but for its own host only. */
static void test_loopback_between_hosts(void **state)
{
    process zero;
    char flags[256];
    (void)state;
    outer_make_hosts(OUTER_HOSTS_MAX);
    snprintf(flags, sizeof flags, "--rendezvous=file://%s/meet-loopback", system_folder());
    outer_start_on(&zero, 0, "worker",
                   "--strategy=ring --world-size=2 --rank=0 %s " OUTER_ALONE " " OUTER_JOB, flags);
    wait_for_line(&zero, "leads at", 20);
    snprintf(flags + strlen(flags), sizeof flags - strlen(flags), " --rank=1");
    refuse(1, 5, "rank 0 is on another host", "listens on its loopback only", flags);
    process_kill(&zero, SIGTERM);
    assert_int_not_equal(process_wait(&zero, 10), 0);
}

/* Rank 1 takes part by localhost beside a rank of another host. */
static void test_mixed_addresses(void **state)
{
    process ranks[3];
    const char *token = outer_token_file();
    const char *const address[] = {"0.0.0.0", "127.0.0.1", "10.77.0.1"};
    (void)state;
    outer_make_hosts(OUTER_HOSTS_MAX);
    for (int r = 0; r < 3; r++)
        outer_start_on(&ranks[r], r == 2, "worker",
                       "--strategy=ring --world-size=3 --rank=%d --rendezvous=tcp://%s:2222 --insecure "
                       "--token-file=%s " OUTER_ALONE " " OUTER_JOB,
                       r, address[r], token);
    assert_int_not_equal(process_wait(&ranks[2], 30), 0);
    if (process_says(&ranks[2], "rank 1 on", "takes part by its loopback (127.0.0.1)") != 1)
        fail_msg("rank 2 does not name rank 1:\n%s", process_err(&ranks[2]));
    for (int r = 0; r < 2; r++)
        assert_int_not_equal(process_wait(&ranks[r], 30), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ring),
                                       cmocka_unit_test(test_ring_by_file),
                                       cmocka_unit_test(test_server),
                                       cmocka_unit_test(test_entrain_run),
                                       cmocka_unit_test(test_clones),
                                       cmocka_unit_test(test_host_is_lost),
                                       cmocka_unit_test(test_addresses),
                                       cmocka_unit_test(test_no_loopback),
                                       cmocka_unit_test(test_loopback_between_hosts),
                                       cmocka_unit_test(test_mixed_addresses)};
    return system_main(tests);
}
