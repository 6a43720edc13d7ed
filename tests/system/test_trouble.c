/* test_trouble.c - a process is killed, the user interrupts, somebody is told nonsense: everybody ends, soon,
 * with a word about the cause, and leaves nothing behind. */
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/system/bad_files.h"
#include "tests/system/run.h"

/* Promise: A kill, an interrupt or a data file cut short ends a run soon, names the cause and leaves
 * nothing. */

/* Endless for the purposes of this test, with quick steps; rank 0 tells of the first. */
#define ENDLESS                                                                                              \
    "--log-every=100000 --device=ref --model=toy --limit-test-samples=8 --batch-size=4 --threads=1 "         \
    "--steps=10000000"

enum { ENDS_WITHIN = 5, STARTS_WITHIN = 60 };

/* Training is under way: rank 0 has made a step, and it would not without the others. */
static void wait_for_steps(const process *p)
{
    wait_for_line(p, "Loss:", STARTS_WITHIN);
}

/* Says who died: a line or two that name it, and none that blames anybody else. */
static void expect_blame(const process *p, const char *victim)
{
    int n = process_says(p, victim, "died");
    if (n < 1 || n > 2 || process_says(p, "", "died") != n)
        fail_msg("%s should name \"%s\" and nobody else; it said:\n%s", p->name, victim, process_err(p));
}

/* ---- by hand ------------------------------------------------------------------------------------------- */

/* Kills one of the processes in mid-run; all the others end with 1, naming it. */
static void kill_and_expect(process *all, int n, int victim, const char *what, const char *name)
{
    char sockets[4096];
    size_t used = 0;
    for (int i = 0; i < n; i++) {
        process_sockets(all[i].pid, sockets + used, sizeof sockets - used);
        used += strlen(sockets + used);
    }
    stopwatch watch = stopwatch_start();
    process_kill(&all[victim], SIGKILL);
    assert_int_equal(process_wait(&all[victim], GUARD), 128 + SIGKILL);
    for (int i = 0; i < n; i++) {
        if (i == victim) continue;
        int code = process_wait(&all[i], GUARD);
        if (code != 1) fail_msg("%s ended with %d:\n%s", all[i].name, code, process_err(&all[i]));
        expect_blame(&all[i], name);
    }
    double took = stopwatch_read(&watch);
    stopwatch_expect(&watch, took, ENDS_WITHIN, "all others ended");
    process_nobody_left(GUARD);
    assert_int_equal(sockets_left(sockets), 0);
    promise(
        "%s killed: all others ended with 1 after %.2f s, naming %sas the first; no process, no socket left",
        what, took, name);
}

static void start_psd(process *psd, char address_out[64])
{
    process_start(psd, "psd", NULL, "--strategy=ps-sync --world-size=2 --listen=tcp://127.0.0.1:0");
    const char *line = wait_for_line(psd, "--server=", STARTS_WITHIN);
    assert_int_equal(sscanf(strstr(line, "--server="), "--server=%63s", address_out), 1);
}

/* 0 and 1: ranks; 2: psd. */
static void kill_at_server(int victim, const char *what, const char *name)
{
    process all[3];
    char address[64];
    start_psd(&all[2], address);
    for (int r = 0; r < 2; r++)
        process_start(&all[r], "worker", NULL,
                      "--strategy=ps-sync --server=%s --rank=%d --world-size=2 " ENDLESS, address, r);
    wait_for_steps(&all[0]);
    kill_and_expect(all, 3, victim, what, name);
    /* The token's file goes with whoever wrote it; SIGKILL leaves nobody to do it. */
    assert_int_equal(files_left("entrain"), victim == 2 ? 1 : 0);
}

static void kill_in_ring(int victim, const char *what, const char *name)
{
    process all[3];
    int port = free_port();
    for (int r = 0; r < 3; r++)
        process_start(&all[r], "worker", NULL,
                      "--strategy=ring --rendezvous=tcp://127.0.0.1:%d --rank=%d --world-size=3 " ENDLESS,
                      port, r);
    wait_for_steps(&all[0]);
    kill_and_expect(all, 3, victim, what, name);
}

static void clear_tokens(void)
{
    char path[128], command_path[160];
    process rm;
    snprintf(path, sizeof path, "%s/entrain", system_folder());
    snprintf(command_path, sizeof command_path, "-rf %s", path);
    process_start(&rm, "/bin/rm", NULL, "%s", command_path);
    assert_int_equal(process_wait(&rm, 10), 0);
}

static void test_killed_by_hand(void **state)
{
    (void)state;
    kill_at_server(1, "worker of ps-sync", "rank 1 ");
    kill_at_server(0, "rank 0 of ps-sync", "rank 0 ");
    kill_at_server(2, "psd", "psd ");
    clear_tokens();
    kill_in_ring(1, "worker of a ring", "rank 1 ");
    kill_in_ring(0, "rank 0 of a ring", "rank 0 ");
    clear_tokens();
}

/* ---- under entrain run --------------------------------------------------------------------------------- */

static void kill_under_run(const char *strategy, const char *word, const char *name)
{
    process run;
    process_start(&run, "entrain", NULL, "run -n 2 --strategy=%s " ENDLESS, strategy);
    wait_for_steps(&run);
    pid_t victim = process_child(run.pid, word);
    assert_true(victim > 0);
    stopwatch watch = stopwatch_start();
    assert_int_equal(kill(victim, SIGKILL), 0);
    assert_int_equal(process_wait(&run, GUARD), 1);
    process_nobody_left(GUARD);
    double took = stopwatch_read(&watch);
    stopwatch_expect(&watch, took, ENDS_WITHIN, "all others ended");
    if (process_says(&run, name, "Killed (SIGKILL)") != 1)
        fail_msg("the launcher should name %s:\n%s", name, process_err(&run));
    if (process_says(&run, "", "died") != process_says(&run, name, "died"))
        fail_msg("nobody should be blamed but %s:\n%s", name, process_err(&run));
    assert_int_equal(files_left("entrain"), 0); /* tokens travel by descriptor */
    promise("entrain run, %s, %skilled: exit 1 after %.2f s, no process, no file left", strategy, name, took);
}

/* Ranks read the files of a set where they lie: the sentence has the file, whichever thread has met its end. */
static void test_data_is_cut(void **state)
{
    process run;
    char path[160];
    (void)state;
    write_cifar("cut", 200, 10);
    process_start(&run, "entrain", NULL,
                  "run -n 2 --strategy=ring --data=%s/cut --model=resnet18:width=2 --resize=8 --device=ref "
                  "--threads=1 --batch-size=4 --log-every=100000 --steps=10000000",
                  system_folder());
    wait_for_steps(&run);
    snprintf(path, sizeof path, "%s/cut/data_batch_2.bin", system_folder());
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(process_wait(&run, GUARD), 1);
    process_nobody_left(GUARD);
    if (process_says(&run, "died",
                     "/cut/data_batch_2.bin was cut, or cannot be read, while it was mapped (SIGBUS)") != 1)
        fail_msg("the file should be named:\n%s", process_err(&run));
    promise("a data file that is cut under a run ends it, and is named");
}

static void test_killed_under_run(void **state)
{
    (void)state;
    kill_under_run("ps-async", "psd", "psd ");
    kill_under_run("ps-async", "--rank=0", "rank 0 ");
    kill_under_run("ps-sync", "--rank=1", "rank 1 ");
    kill_under_run("ring", "--rank=0", "rank 0 ");
    kill_under_run("ring", "--rank=1", "rank 1 ");
}

static void interrupt(const char *strategy, int signal_number)
{
    process run;
    process_start(&run, "entrain", NULL, "run -n 2 --strategy=%s " ENDLESS, strategy);
    wait_for_steps(&run);
    stopwatch watch = stopwatch_start();
    process_kill(&run, signal_number);
    assert_int_equal(process_wait(&run, GUARD), 128 + signal_number);
    process_nobody_left(GUARD);
    const double took = stopwatch_read(&watch);
    stopwatch_expect(&watch, took, ENDS_WITHIN, "the run ended");
    assert_int_equal(process_says(&run, "", "died"), 0); /* nobody is to blame */
    promise("%s to entrain run, %s: exit %d after %.2f s, no process left",
            signal_number == SIGINT ? "Ctrl-C" : "SIGTERM", strategy, 128 + signal_number, took);
}

static void test_interrupted(void **state)
{
    (void)state;
    interrupt("ring", SIGINT);
    interrupt("ps-sync", SIGINT);
    interrupt("ps-async", SIGTERM);
}

/* ---- long waits -------------------------------------------------------------------------------------- */

/* One rank is stopped for a while: the others say for whom they wait and why, in a step; it says nothing when
 * it goes on. Nobody is lost. */
static void test_wait_explained(void **state)
{
    static const char *const strategies[] = {"ring", "ps-sync"};
    (void)state;
    for (int s = 0; s < 2; s++) {
        process run;
        process_start(&run, "entrain", NULL, "run -n 2 --peer-timeout=60s --strategy=%s " ENDLESS,
                      strategies[s]);
        wait_for_steps(&run);
        const pid_t stopped = process_child(run.pid, "--rank=1");
        assert_true(stopped > 0);
        assert_int_equal(kill(stopped, SIGSTOP), 0);
        const char *line = wait_for_line(&run, ": 1 of 2 ranks; waiting ", GUARD);
        char is_of[48];
        snprintf(is_of, sizeof is_of, "%s #1 (net1.weight", s == 0 ? "all-reduce" : "push-pull");
        if (strstr(line, is_of) == NULL || strstr(line, "for rank 1 (") == NULL ||
            strstr(line, ": stopped (SIGSTOP or Ctrl-Z)") == NULL ||
            atof(strstr(line, "; waiting ") + 10) < 5)
            fail_msg("the wait should be explained; it said: %s", line);
        promise("a wait under %s is explained: %s", strategies[s], line);
        if (s == 1) wait_for_line(&run, "has held the push of rank 0 at clock ", GUARD);
        assert_int_equal(kill(stopped, SIGCONT), 0);
        assert_int_equal(kill(run.pid, SIGINT), 0);
        assert_int_equal(process_wait(&run, GUARD), 130);
        assert_int_equal(process_says(&run, "waiting ", ""), 1);
        process_nobody_left(GUARD);
    }
}

/* The terminal is closed: an early end like any other, not a run torn apart. */
static void test_hung_up(void **state)
{
    (void)state;
    process run;
    static char text[1 << 16];
    char folder[160], path[200];
    snprintf(folder, sizeof folder, "%s/hung-up", system_folder());
    process_start(&run, "entrain", NULL, "run -n 2 --strategy=ps-sync --out=%s " ENDLESS, folder);
    wait_for_steps(&run);
    assert_int_equal(kill(run.pid, SIGHUP), 0);
    assert_int_equal(process_wait(&run, GUARD), 128 + SIGHUP);
    process_nobody_left(GUARD);
    snprintf(path, sizeof path, "%s/result.json", folder);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    assert_non_null(strstr(text, "\"exit\": \"interrupted\""));
}

/* The launcher itself is killed: its children must not train on. */
static void test_launcher_killed(void **state)
{
    (void)state;
    process run;
    process_start(&run, "entrain", NULL, "run -n 2 --strategy=ps-async " ENDLESS);
    wait_for_steps(&run);
    process_kill(&run, SIGKILL);
    assert_int_equal(process_wait(&run, GUARD), 128 + SIGKILL);
    process_nobody_left(GUARD);
}

/* The folder of psd's state, as psd was told it. */
static void state_of(pid_t psd, char folder_out[256])
{
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)psd);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    const size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    folder_out[0] = 0;
    for (size_t at = 0; at < n; at += strlen(text + at) + 1)
        if (strncmp(text + at, "--state=", 8) == 0) snprintf(folder_out, 256, "%s", text + at + 8);
    assert_int_equal(strncmp(folder_out, "/tmp/entrain-state-", 19), 0);
}

/* Neither is the state of a psd that could have come back left behind. */
static void test_launcher_killed_with_state(void **state)
{
    (void)state;
    process run;
    char folder[256];
    process_start(&run, "entrain", NULL,
                  "run -n 2 --strategy=ps-sync --server-restarts=1 --server-timeout=10s " ENDLESS);
    wait_for_steps(&run);
    state_of(process_child(run.pid, "psd"), folder);
    assert_int_equal(access(folder, F_OK), 0);
    process_kill(&run, SIGKILL);
    assert_int_equal(process_wait(&run, GUARD), 128 + SIGKILL);
    process_nobody_left(GUARD);
    assert_int_not_equal(access(folder, F_OK), 0);
}

/* ---- a run that diverges -------------------------------------------------------------------------------- */

/* Whatever keeps the ranks in step: 1, and the same sentence. With so few steps that no step's own loss shows it, the
 * final weights' does. */
static void test_diverged(void **state)
{
    static const struct {
        const char *strategy;
        int workers, steps;
        const char *says;
    } runs[] = {{"solo", 1, 600, "the loss of step "},
                {"ring", 2, 600, "the loss of step "},
                {"ps-sync", 2, 600, "the loss of step "},
                {"ps-async", 2, 600, "the loss of step "},
                {"ssp:bound=2", 2, 600, "the loss of step "},
                {"hierarchical", 2, 600, "the loss of step "},
                {"hybrid:auto", 2, 600, "the loss of step "},
                {"plugins/localsgd.so:period=8", 2, 600, "the loss of step "},
                {"ring", 2, 10, "the loss of the final weights "}};
    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char strategy[1024];
        process p;
        const bool is_file = strchr(runs[i].strategy, '/') != NULL;
        snprintf(strategy, sizeof strategy, "%s%s%s", is_file ? EN_BUILD_DIR : "", is_file ? "/" : "",
                 runs[i].strategy);
        process_start(&p, "entrain", NULL,
                      "run -q -n %d --strategy=%s --model=toy --data=synthetic --device=ref --threads=1 "
                      "--limit-train-samples=5000 --limit-test-samples=50 --steps=%d --lr=10",
                      runs[i].workers, strategy, runs[i].steps);
        const int code = process_wait(&p, GUARD);
        if (code != 1) fail_msg("%s diverged and ended with %d:\n%s", strategy, code, process_err(&p));
        if (process_says(&p, runs[i].says,
                         "is not finite: training has diverged; try a smaller --lr than 10") < 1)
            fail_msg("%s should say that it diverged; it said:\n%s", strategy, process_err(&p));
    }
    process_nobody_left(GUARD);
}

/* A loss that is still a number: the run ends well, and says so. One that learns says nothing. */
static void test_grown(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        process p;
        char path[256];
        json_t *result;
        snprintf(path, sizeof path, "%s/grown%d/result.json", system_folder(), e);
        process_start(&p, "entrain", NULL,
                      "run -q -n 1 --strategy=solo --model=toy --data=synthetic --device=ref --threads=1 "
                      "--batch-size=16 "
                      "--limit-test-samples=8 --steps=10 --lr=%g --out=%s/grown%d",
                      e == 0 ? 5 : 0.01, system_folder(), e);
        assert_int_equal(process_wait(&p, GUARD), 0);
        assert_int_equal(
            process_says(&p, "the training loss has grown from 0.85", "try a smaller --lr than 5"), e == 0);
        assert_int_equal(process_says(&p, " W ", ""), e == 0);
        assert_non_null(result = json_load_file(path, 0, NULL));
        assert_int_equal(json_is_true(json_object_get(result, "diverged")), e == 0);
        json_decref(result);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_by_hand),  cmocka_unit_test(test_killed_under_run),
        cmocka_unit_test(test_data_is_cut),     cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_launcher_killed), cmocka_unit_test(test_launcher_killed_with_state),
        cmocka_unit_test(test_wait_explained),  cmocka_unit_test(test_diverged),
        cmocka_unit_test(test_grown),           cmocka_unit_test(test_hung_up)};
    return system_main(tests);
}
