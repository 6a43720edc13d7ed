/* test_interrupt.c - Ctrl-C, SIGTERM, `entrain stop`: the run ends within a second wherever it is, blames
 * nobody, and leaves a result that says "interrupted". */
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/net/process.h"
#include "tests/system/job.h"
#include "tests/system/run.h"

/* Promise: Ctrl-C, SIGTERM and entrain stop end a run within 1 s, with a result and a checkpoint.
 * Promise: A program started with SIGCHLD ignored, SIGTERM blocked or SIGINT ignored runs and ends as it
 * should. */

#define TOY                                                                                                  \
    "--model=toy --data=synthetic --device=ref --threads=1 --batch-size=4 --limit-train-samples=64 "         \
    "--limit-test-samples=8 --log-every=0 --log-level=error "
#define ENDLESS TOY "--steps=100000000 "
#define CONVNET "--model=convnet --data=synthetic --device=ref --threads=1 --log-every=0 --log-level=error "

enum { STARTS_WITHIN = 60 };
static const double ends_within = 1;

static int nout;

static const char *next_out(void)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/out%d", system_folder(), nout++);
    return path;
}

static json_t *result_of(const char *out)
{
    char path[160];
    json_error_t error;
    snprintf(path, sizeof path, "%s/result.json", out);
    json_t *result = json_load_file(path, 0, &error);
    if (result == NULL) fail_msg("%s: %s", path, error.text);
    return result;
}

static void expect_interrupted(const char *out)
{
    json_t *result = result_of(out);
    assert_string_equal(text_at(result, "exit"), "interrupted");
    json_decref(result);
}

static void expect_no_blame(const process *p)
{
    if (process_says(p, "died", "") + process_says(p, "broken", "") + process_says(p, " E ", "") != 0)
        fail_msg("nobody is to blame, but it said:\n%s", process_err(p));
}

/* Returns the seconds that it took. */
static double interrupt_run(job *j, int signal_number)
{
    job_look(j);
    stopwatch watch = stopwatch_start();
    process_kill(&j->run, signal_number);
    const int code = process_wait(&j->run, GUARD);
    process_nobody_left(GUARD);
    const double took = stopwatch_read(&watch);
    if (code != 128 + signal_number) fail_msg("it ended with %d:\n%s", code, process_err(&j->run));
    stopwatch_expect(&watch, took, ends_within, "it ended");
    expect_no_blame(&j->run);
    assert_int_equal(sockets_left(j->sockets), 0);
    assert_int_equal(files_left("entrain"), 0);
    return took;
}

/* ---- in quick steps: the early end in good order ------------------------------------------------------- */

/* The weights are saved, and the result has everybody's figures: it is no abort. */
static void stop_in_steps(const char *strategy, int signal_number)
{
    job j;
    char out[128], saved[160];
    snprintf(out, sizeof out, "%s", next_out());
    snprintf(saved, sizeof saved, "%s.safetensors", out);
    job_run(&j, strategy, 3, "%s --out=%s --save=%s", ENDLESS, out, saved);
    job_wait(&j, 1, -1, NULL, 1, STARTS_WITHIN);
    const double took = interrupt_run(&j, signal_number);
    expect_interrupted(out);
    if (access(saved, R_OK) != 0) fail_msg("%s: no weights were saved", strategy);
    json_t *result = result_of(out);
    assert_true(number_at(result, "steps") > 0);
    if (json_object_get(result, "params_sha256") == NULL) fail_msg("%s was aborted, not ended", strategy);
    json_decref(result);
    promise(
        "signal %d to entrain run, %s: exit %d, \"interrupted\", weights saved, after %.2f s (bound %g s)",
        signal_number, strategy, 128 + signal_number, took, ends_within);
}

static void test_in_steps(void **state)
{
    (void)state;
    stop_in_steps("ring", SIGINT);
    stop_in_steps("ps-sync", SIGTERM);
    stop_in_steps("ps-async", SIGINT);
    stop_in_steps("ssp:bound=1", SIGINT);
}

/* ---- what the caller left us -------------------------------------------------------------------------- */

/* Ignored, SIGCHLD takes the exit codes of children with it; this is kept over exec. */
static void test_children_are_waited_for(void **state)
{
    process good, bad;
    (void)state;
    signal(SIGCHLD, SIG_IGN);
    process_start(&good, "entrain", NULL, "run -n 2 --strategy=ring --steps=3 %s", TOY);
    process_start(&bad, "entrain", "AWS_ACCESS_KEY_ID=a AWS_SECRET_ACCESS_KEY=b",
                  "run -n 2 --strategy=ring --data=s3://bucket/p --data-endpoint=http://127.0.0.1:1");
    signal(SIGCHLD, SIG_DFL);
    assert_int_equal(process_wait(&good, GUARD), 0);
    assert_int_equal(process_wait(&bad, GUARD), 1);
    process_nobody_left(GUARD);
}

/* A blocked signal still ends a run. */
static void test_blocked_signals_are_heard(void **state)
{
    process p;
    (void)state;
    process_start(&p, "/usr/bin/env", NULL,
                  "--block-signal=TERM,CHLD %s/entrain run -n 2 --strategy=ring --model=toy --data=synthetic "
                  "--device=ref --threads=1 --limit-train-samples=64 --log-every=1 --steps=100000000",
                  EN_BUILD_DIR);
    wait_for_line(&p, "Train Epoch", STARTS_WITHIN);
    process_kill(&p, SIGTERM);
    assert_int_equal(process_wait(&p, GUARD), 128 + SIGTERM);
    process_nobody_left(GUARD);
}

/* A shell starts its background jobs so: Ctrl-C is for the one in front. Of two signals that wait, SIGINT would be
 * taken first. */
static void test_an_ignored_signal_stays_ignored(void **state)
{
    job j;
    (void)state;
    signal(SIGINT, SIG_IGN);
    job_run(&j, "ps-sync", 2, "%s", ENDLESS);
    signal(SIGINT, SIG_DFL);
    job_wait(&j, 1, -1, NULL, 1, STARTS_WITHIN);
    process_kill(&j.run, SIGINT);
    interrupt_run(&j, SIGTERM);
}

/* ---- Ctrl-Z ---------------------------------------------------------------------------------------------- */

static void all_become(const job *j, eni_process_state state)
{
    const double deadline = now_seconds() + GUARD;
    for (int who = JOB_LAUNCHER; who < j->n; who++) {
        const pid_t pid = who == JOB_PSD && !j->has_psd ? 0 : job_pid(j, who);
        while (pid > 0 && eni_process_look(pid, eni_process_born(pid)) != state)
            if (now_seconds() > deadline)
                fail_msg("process %d of the run is not in state %d", who, (int)state);
    }
}

/* It stops whole, for longer than a peer may be silent, and goes on as if nothing had been. */
static void test_ctrl_z(void **state)
{
    static const char *const strategies[] = {"ring", "ps-sync"};
    (void)state;
    for (int s = 0; s < 2; s++) {
        job j;
        job_run(&j, strategies[s], 2, "%s --peer-timeout=300ms", ENDLESS);
        job_wait(&j, 1, -1, NULL, 1, STARTS_WITHIN);
        job_look(&j);
        process_kill(&j.run, SIGTSTP);
        all_become(&j, ENI_PROCESS_STOPPED);
        const int64_t step = job_step(&j, 1);
        assert_int_equal(poll(&(struct pollfd){.fd = j.run.pidfd, .events = POLLIN}, 1, 600), 0);
        process_kill(&j.run, SIGCONT);
        job_wait(&j, 1, -1, NULL, step + 100, STARTS_WITHIN);
        interrupt_run(&j, SIGTERM);
    }
}

/* ---- where it hurts ------------------------------------------------------------------------------------ */

/* The second of two hosts never comes. */
static void test_in_join(void **state)
{
    job j;
    (void)state;
    job_run(&j, "ps-sync", 2, "--nnodes=2 --node-rank=0 --master-addr=127.0.0.1 --master-port=%d %s",
            free_port(), ENDLESS);
    job_wait(&j, 1, ENI_RANK_JOINED, NULL, -1, STARTS_WITHIN);
    promise("Ctrl-C while joining: after %.2f s", interrupt_run(&j, SIGINT));
}

/* A step takes many seconds: it is not waited for. */
static void test_in_a_long_step(void **state)
{
    job j;
    char out[128];
    (void)state;
    snprintf(out, sizeof out, "%s", next_out());
    job_run(&j, "ring", 2,
            "%s --batch-size=768 --limit-train-samples=8192 --steps=50 --limit-test-samples=8 --out=%s",
            CONVNET, out);
    job_wait(&j, 0, -1, "forward backward", 0, STARTS_WITHIN);
    const double took = interrupt_run(&j, SIGINT);
    expect_interrupted(out);
    promise("Ctrl-C in a step of several seconds: after %.2f s, \"interrupted\"", took);
}

static void test_in_evaluation(void **state)
{
    job j;
    char out[128];
    (void)state;
    snprintf(out, sizeof out, "%s", next_out());
    job_run(&j, "ps-sync", 2,
            "%s --batch-size=4 --steps=2 --limit-train-samples=64 --limit-test-samples=20000 "
            "--eval-batch-size=16 "
            "--out=%s",
            CONVNET, out);
    job_wait(&j, 0, -1, "evaluation", 0, STARTS_WITHIN);
    const double took = interrupt_run(&j, SIGINT);
    expect_interrupted(out);
    promise("Ctrl-C in the last evaluation: after %.2f s, \"interrupted\"", took);
}

/* Rank 1 is in its first step, which lasts for a minute; rank 0 has done the rest and is at the end. */
static void test_in_the_last_gather(void **state)
{
    job j;
    char out[128];
    (void)state;
    snprintf(out, sizeof out, "%s", next_out());
    job_run(&j, "ps-async", 2,
            "%s --model=convnet --batch-size=16 --max-samples=160 --straggler=1:1000 --out=%s", TOY, out);
    job_wait(&j, 0, -1, "finish", 0, STARTS_WITHIN);
    const double took = interrupt_run(&j, SIGINT);
    expect_interrupted(out);
    promise("Ctrl-C while a rank waits in the last gather: after %.2f s, \"interrupted\"", took);
}

/* ---- by hand: the terminal sends it to all at once ----------------------------------------------------- */

static void test_by_hand(void **state)
{
    static const char *const strategies[] = {"ring", "ps-async"};
    (void)state;
    for (size_t s = 0; s < 2; s++) {
        job j;
        char out[128];
        snprintf(out, sizeof out, "%s", next_out());
        job_by_hand(&j, strategies[s], 2, "%s --out=%s", ENDLESS, out);
        job_all_ranks(&j);
        job_wait(&j, 1, -1, NULL, 1, STARTS_WITHIN);
        job_look(&j);
        stopwatch watch = stopwatch_start();
        for (int who = j.has_psd ? JOB_PSD : 0; who < 2; who++)
            process_kill(job_process(&j, who), SIGINT);
        for (int who = j.has_psd ? JOB_PSD : 0; who < 2; who++) {
            process *p = job_process(&j, who);
            const int code = process_wait(p, GUARD);
            if (code != 128 + SIGINT) fail_msg("%s ended with %d:\n%s", p->name, code, process_err(p));
            expect_no_blame(p);
        }
        const double took = stopwatch_read(&watch);
        stopwatch_expect(&watch, took, ends_within, "all ended");
        promise("Ctrl-C by hand, %s: all ended with 130 after %.2f s", strategies[s], took);
        expect_interrupted(out);
        process_nobody_left(GUARD);
        assert_int_equal(sockets_left(j.sockets), 0);
        assert_int_equal(files_left("entrain"), 0);
    }
}

/* Only one of them hears it: the wish is everybody's. */
static void test_one_rank(void **state)
{
    job j;
    char out[128];
    (void)state;
    snprintf(out, sizeof out, "%s", next_out());
    job_by_hand(&j, "ring", 3, "%s --out=%s", ENDLESS, out);
    job_all_ranks(&j);
    job_wait(&j, 1, -1, NULL, 1, STARTS_WITHIN);
    stopwatch watch = stopwatch_start();
    process_kill(&j.rank[2], SIGINT);
    for (int r = 0; r < 3; r++) {
        const int code = process_wait(&j.rank[r], GUARD);
        if (code != (r == 2 ? 130 : 143))
            fail_msg("rank %d ended with %d:\n%s", r, code, process_err(&j.rank[r]));
        expect_no_blame(&j.rank[r]);
    }
    const double took = stopwatch_read(&watch);
    stopwatch_expect(&watch, took, ends_within, "all ended");
    expect_interrupted(out);
}

/* ---- a run that fails says so too ---------------------------------------------------------------------- */

static void test_failed(void **state)
{
    job j;
    char out[128];
    (void)state;
    snprintf(out, sizeof out, "%s", next_out());
    job_run(&j, "ring", 3, "%s --out=%s", ENDLESS, out);
    job_wait(&j, 1, -1, NULL, 1, STARTS_WITHIN);
    job_look(&j);
    assert_int_equal(kill(j.pid[1], SIGKILL), 0);
    assert_int_equal(process_wait(&j.run, GUARD), 1);
    json_t *result = result_of(out);
    assert_string_equal(text_at(result, "exit"), "failed");
    if (strstr(text_at(result, "cause"), "rank 1 ") == NULL)
        fail_msg("the cause is %s", text_at(result, "cause"));
    json_decref(result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {JOB_TEST(test_in_steps),
                                       JOB_TEST(test_in_join),
                                       JOB_TEST(test_in_a_long_step),
                                       JOB_TEST(test_in_evaluation),
                                       JOB_TEST(test_in_the_last_gather),
                                       JOB_TEST(test_by_hand),
                                       JOB_TEST(test_one_rank),
                                       JOB_TEST(test_failed),
                                       JOB_TEST(test_children_are_waited_for),
                                       JOB_TEST(test_blocked_signals_are_heard),
                                       JOB_TEST(test_an_ignored_signal_stays_ignored),
                                       JOB_TEST(test_ctrl_z)};
    return system_main(tests);
}
