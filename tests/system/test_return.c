/* test_return.c - psd is killed and comes back: the run ends as if nothing had happened.
 *
 *     test_system_return                  a few kills of each kind
 *     test_system_return many 500 SEED    so many of the oracle's, for a night
 *     test_system_return calls            at every system call that writes a state */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/system/oracle.h"
#include "tests/system/run.h"

/* Promise: psd is killed and comes back: every push counts exactly once, also those of newcomers.
 * Promise: Copies for a curve that a killed psd held are left out of the curve and counted, and the run
 * goes on. */

/* ---- the oracle ---------------------------------------------------------------------------------------- */

static void holds(const oracle_plan *plan)
{
    oracle_outcome o;
    oracle_run(plan, &o);
    if (o.missing || o.double_)
        print_error(
            "%s, seed %llu: %llu indices miss a push, %llu have one too many, of %llu pushes after %d "
            "kills\n",
            plan->strategy, (unsigned long long)plan->seed, (unsigned long long)o.missing,
            (unsigned long long)o.double_, (unsigned long long)o.pushes, o.kills);
    assert_int_equal(o.missing, 0);
    assert_int_equal(o.double_, 0);
    assert_int_equal(o.psd_code, 0);
    promise(
        "%-12s %4d kills of psd, %7llu pushes, each in the weights exactly once; back after at most %.2f s",
        plan->strategy, o.kills, (unsigned long long)o.pushes, o.worst_return);
}

static void every_push_counts_once_async(void **state)
{
    (void)state;
    holds(&(oracle_plan){.strategy = "ps-async", .state_every = 8, .kills = 5, .seed = 1, .is_shared = 1});
}

static void every_push_counts_once_ssp(void **state)
{
    (void)state;
    holds(&(oracle_plan){.strategy = "ssp:bound=2", .state_every = 16, .kills = 5, .seed = 2});
}

static void killed_while_it_recovers(void **state)
{
    (void)state;
    holds(&(oracle_plan){
        .strategy = "ps-async", .state_every = 4, .kills = 10, .nested = 5, .seed = 3, .is_shared = 1});
}

/* ---- at every system call that writes a state -----------------------------------------------------------
 */

static int has_strace(void)
{
    return system("strace -f -o /dev/null true >/dev/null 2>&1") == 0;
}

/* The calls of one life: run file, then two shards' states, again and again. */
static int killed_at(const char *call, int first, int last)
{
    int killed = 0;
    for (int n = first; n <= last; n++) {
        char strace[128];
        oracle_outcome o;
        snprintf(strace, sizeof strace, "-e trace=%s -e inject=%s:signal=KILL:when=%d", call, call, n);
        oracle_run(&(oracle_plan){.strategy = "ps-async",
                                  .state_every = 4,
                                  .seed = (uint64_t)n,
                                  .is_shared = n % 2,
                                  .strace = strace},
                   &o);
        if (o.missing || o.double_ || o.psd_code || o.kills != 1)
            print_error("%s number %d: killed %d times, %llu missing, %llu double, psd ended with %d\n", call,
                        n, o.kills, (unsigned long long)o.missing, (unsigned long long)o.double_, o.psd_code);
        assert_int_equal(o.missing + o.double_, 0);
        assert_int_equal(o.psd_code, 0);
        killed += o.kills;
    }
    return killed;
}

static void sweep(int share)
{
    if (!has_strace()) {
        print_message("SKIP: strace is not installed, or ptrace is not permitted here\n");
        skip();
    }
    int killed = killed_at("writev", 1, 10 / share) + killed_at("fsync", 1, 20 / share) +
                 killed_at("renameat", 1, 10 / share);
    assert_int_equal(killed, 10 / share + 20 / share + 10 / share);
    promise("psd killed at each of %d calls of writev, fsync and renameat that write a state: each push once",
            killed);
}

static void killed_at_the_first_calls(void **state)
{
    (void)state;
    sweep(5);
}

static void killed_at_every_call(void **state)
{
    (void)state;
    sweep(1);
}

/* A state that cannot be written costs a warning, nothing else. */
static void a_disk_that_fails_once(void **state)
{
    (void)state;
    static const char *const faults[] = {"-e trace=fsync -e inject=fsync:error=EIO:when=5",
                                         "-e trace=writev -e inject=writev:error=ENOSPC:when=3",
                                         "-e trace=renameat -e inject=renameat:error=ENOSPC:when=3"};
    if (!has_strace()) skip();
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        oracle_outcome o;
        oracle_run(
            &(oracle_plan){.strategy = "ssp:bound=2", .state_every = 4, .seed = i, .strace = faults[i]}, &o);
        assert_int_equal(o.kills, 0);
        assert_in_range(o.warnings, 1,
                        2); /* strace counts by thread: each shard's snapshot writer meets it once */
        assert_int_equal(o.missing + o.double_, 0);
        assert_int_equal(o.psd_code, 0);
    }
    promise("EIO of fsync, ENOSPC of write and of rename: one warning a shard, serving goes on");
}

/* ---- whole runs ---------------------------------------------------------------------------------------- */

#define RUN                                                                                                  \
    "-n 2 --strategy=ps-sync --shards=2 --model=mlp --data=synthetic --limit-train-samples=6400 "            \
    "--limit-test-samples=64 --batch-size=16 --threads=1 --quiet"

static int has_ended(const process *p)
{
    return poll(&(struct pollfd){.fd = p->pidfd, .events = POLLIN}, 1, 0) > 0;
}

#define SAVED "server-state/shard-1.1" /* once psd has saved what it has */
#define AGAIN                                                                                                \
    "server-state/shard-1.0" /* .. and again, some updates later: rank 0 has had points of its curve kept */

/* Kills the launcher's psd `times` times, from the moment when that file is in its folder, each after its state has moved
 * on. */
static void kill_psd_of(const process *entrain, const char *folder, const char *file, int times)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    const double deadline = now_seconds() + GUARD * SLOWNESS;
    while (access(path, F_OK) != 0 && now_seconds() < deadline && !has_ended(entrain))
        usleep(2000);
    for (int i = 0; i < times; i++) {
        const pid_t psd = process_child(entrain->pid, "psd");
        if (psd > 0) kill(psd, SIGKILL);
        const double again = now_seconds() + GUARD * SLOWNESS;
        while (process_says(entrain, "psd is back", "") < 2 * (i + 1) && now_seconds() < again &&
               !has_ended(entrain))
            usleep(2000);
    }
}

static void expect_undisturbed_hash(const char *optimizer, const char *file)
{
    char folder[256], path[300];
    process entrain;
    const char *calm = train_hash(60 * SLOWNESS, RUN " %s", optimizer);
    snprintf(folder, sizeof folder, "%s/killed%s%zu", system_folder(), optimizer, strlen(file));
    process_start(&entrain, "entrain", NULL,
                  "run " RUN
                  " %s --straggler=0:8 --server-restarts=9 --server-timeout=20s --state-every=4 --out=%s "
                  "--eval-points=100",
                  optimizer, folder); /* slow enough not to end before it was killed */
    kill_psd_of(&entrain, folder, file, 3);
    assert_int_equal(process_wait(&entrain, 120 * SLOWNESS), 0);
    assert_true(process_says(&entrain, "starting it again", "") >= 1);
    snprintf(path, sizeof path, "%s/result.json", folder);
    json_t *result = json_load_file(path, 0, NULL);
    assert_non_null(result);
    assert_string_equal(text_at(result, "params_sha256"), calm);
    /* the copies that a killed psd had are left out, and counted */
    const double left_out = number_at(result, "snapshots.left_out");
    json_t *points = (snprintf(path, sizeof path, "%s/eval.jsonl", folder), read_lines(path));
    if (strcmp(file, AGAIN) == 0) assert_true(left_out >= 1); /* else it may have had none */
    assert_int_equal((int)json_array_size(points) + (int)left_out, 100);
    json_decref(points);
    json_decref(result);
    snprintf(path, sizeof path, "%s/server-state", folder);
    assert_int_not_equal(access(path, F_OK), 0);
    promise("ps-sync with %s, psd killed %d times%s: the hash of the undisturbed run", optimizer,
            process_says(&entrain, "starting it again", ""),
            strcmp(file, AGAIN) == 0 ? "" : ", first while the ranks connect");
    process_nobody_left(2);
}

static void a_momentum_run_ends_with_the_undisturbed_hash(void **state)
{
    (void)state;
    expect_undisturbed_hash("--momentum=0.9", AGAIN);
}

static void an_adamw_run_ends_with_the_undisturbed_hash(void **state)
{
    (void)state;
    expect_undisturbed_hash("--optimizer=adamw", AGAIN);
}

/* rank 0 has made its file, and no rank needs to have a connection to psd. */
static void killed_while_the_ranks_connect(void **state)
{
    (void)state;
    expect_undisturbed_hash("--momentum=0.9", "metrics-0.jsonl");
}

/* A push covers several micro-batches, and some are dropped: what psd has counted when it is killed comes
 * from its state, what it had not is pushed again, and neither is counted twice. */
static void every_sample_counts_once(void **state)
{
    (void)state;
    static const char *const keys[] = {"samples_computed", "samples_applied", "samples_dropped"};
    const char *run = "-n 2 --strategy=" EN_BUILD_DIR "/test/plugins/local.so@downpour:period=3,drop=5 "
                      "--assign=fixed --shards=2 --model=mlp --data=synthetic --limit-train-samples=6400 "
                      "--limit-test-samples=64 --batch-size=16 --lr=0.001 --threads=1";
    char folder[256], path[300];
    process entrain;
    json_t *calm = train(60 * SLOWNESS, "%s", run);
    snprintf(folder, sizeof folder, "%s/counted", system_folder());
    process_start(&entrain, "entrain", NULL,
                  "run %s --quiet --straggler=0:8 --server-restarts=9 --server-timeout=20s --state-every=4 "
                  "--out=%s",
                  run, folder);
    kill_psd_of(&entrain, folder, SAVED, 3);
    assert_int_equal(process_wait(&entrain, 120 * SLOWNESS), 0);
    assert_true(process_says(&entrain, "starting it again", "") >= 1);
    snprintf(path, sizeof path, "%s/result.json", folder);
    json_t *result = json_load_file(path, 0, NULL);
    assert_non_null(result);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (number_at(result, keys[i]) != number_at(calm, keys[i]))
            fail_msg("%s: %.0f, and %.0f where nobody was killed", keys[i], number_at(result, keys[i]),
                     number_at(calm, keys[i]));
    /* 200 steps a rank: 66 pushes, of which 13 are dropped, and two steps behind the last. */
    assert_true(number_at(calm, "samples_applied") == 2 * 53 * 3 * 16);
    assert_true(number_at(calm, "samples_dropped") == 2 * 13 * 3 * 16);
    json_decref(calm);
    json_decref(result);
    promise("downpour with n_push = 3, psd killed %d times: every sample is counted once",
            process_says(&entrain, "starting it again", ""));
    process_nobody_left(2);
}

static void flags_that_do_not_go_together(void **state)
{
    (void)state;
    static const char *const lines[][2] = {
        {"--strategy=ring --servers=2", "ring keeps nothing on a server"},
        {"--strategy=ps-sync --server-restarts=2", "--server-restarts=2 needs --server-timeout"},
        {"--strategy=ps-sync --server-timeout=5s", "needs --server-restarts"},
        {"--strategy=ps-sync --servers=2 --server-restarts=2 --server-timeout=5s", "--servers=2"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        process p;
        process_start(&p, "entrain", NULL, "run -n 2 --data=synthetic --limit-train-samples=64 %s",
                      lines[i][0]);
        assert_int_equal(process_wait(&p, 10 * SLOWNESS), 2);
        assert_int_equal(process_says(&p, lines[i][1], ""), 1);
    }
    process_nobody_left(2);
}

/* ---- ranks that come and go meanwhile ------------------------------------------------------------------- */

/* Two of four places are taken at first. */
static void ranks_come_and_go(int trials, uint64_t first_seed)
{
    uint64_t pushes = 0, ahead = 0;
    int joined = 0, died = 0, kills = 0;
    for (int i = 0; i < trials; i++) {
        static const char *const strategies[] = {"ps-async", "ssp:bound=2", "ssp:bound=0"};
        const uint64_t bound = i % 3 == 1 ? 2 : 0;
        oracle_outcome o;
        oracle_run(&(oracle_plan){.strategy = strategies[i % 3],
                                  .state_every = 1 << (i % 5),
                                  .kills = 1,
                                  .joins = 3,
                                  .deaths = 1,
                                  .seed = first_seed + (uint64_t)i,
                                  .is_shared = i % 2},
                   &o);
        if (o.missing || o.double_ || o.psd_code || (i % 3 > 0 && o.clocks_ahead > bound))
            fail_msg("%s, seed %llu: %llu indices miss a push, %llu have one too many, psd ended with %d, "
                     "%llu clocks "
                     "ahead",
                     strategies[i % 3], (unsigned long long)first_seed + (unsigned long long)i,
                     (unsigned long long)o.missing, (unsigned long long)o.double_, o.psd_code,
                     (unsigned long long)o.clocks_ahead);
        pushes += o.pushes, joined += o.joined, died += o.died, kills += o.kills;
        if (i % 3 == 1 && o.clocks_ahead > ahead) ahead = o.clocks_ahead;
    }
    promise("%d runs of ps-async and ssp with 2 of 4 places taken: %d ranks came at random moments, %d of "
            "them died, psd "
            "%d times: each of %llu pushes is in the weights exactly once; the bound of 2 held (%llu)",
            trials, joined, died, kills, (unsigned long long)pushes, (unsigned long long)ahead);
}

static void newcomers_push_once(void **state)
{
    (void)state;
    ranks_come_and_go(20, 1);
}

/* ---- many ---------------------------------------------------------------------------------------------- */

static int wanted;
static uint64_t seed;

static void many(void **state)
{
    (void)state;
    ranks_come_and_go(2 * wanted / 5, seed + 1000);
    static const char *const strategies[] = {"ps-async", "ssp:bound=3"};
    for (int done = 0, i = 0; done < wanted; i++, done += 50)
        holds(&(oracle_plan){.strategy = strategies[i % 2],
                             .state_every = 1 << (i % 7),
                             .kills = wanted - done < 50 ? wanted - done : 50,
                             .nested = i % 3 == 2 ? 5 : 0,
                             .seed = seed + (uint64_t)i,
                             .is_shared = i / 2 % 2});
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_push_counts_once_async),
        cmocka_unit_test(every_push_counts_once_ssp),
        cmocka_unit_test(killed_while_it_recovers),
        cmocka_unit_test(newcomers_push_once),
        cmocka_unit_test(killed_at_the_first_calls),
        cmocka_unit_test(a_disk_that_fails_once),
        cmocka_unit_test(a_momentum_run_ends_with_the_undisturbed_hash),
        cmocka_unit_test(an_adamw_run_ends_with_the_undisturbed_hash),
        cmocka_unit_test(killed_while_the_ranks_connect),
        cmocka_unit_test(every_sample_counts_once),
        cmocka_unit_test(flags_that_do_not_go_together),
    };
    const struct CMUnitTest night[] = {cmocka_unit_test(many)};
    const struct CMUnitTest calls[] = {cmocka_unit_test(killed_at_every_call)};
    if (argc == 2 && strcmp(argv[1], "calls") == 0) return system_main(calls);
    if (argc < 3 || strcmp(argv[1], "many") != 0) return system_main(tests);
    wanted = atoi(argv[2]);
    seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    return system_main(night);
}
