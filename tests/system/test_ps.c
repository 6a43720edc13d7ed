/* test_ps.c - `entrain ps` and `entrain stop`; and runs that continue after the loss of a rank. */
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/system/job.h"
#include "tests/system/run.h"

/* Promise: entrain ps and entrain stop show and end a run, and ps-async goes on without a lost rank. */

#define TOY                                                                                                  \
    "--model=toy --data=synthetic --device=ref --threads=1 --batch-size=4 --limit-train-samples=64 "         \
    "--limit-test-samples=8 --log-every=0 --log-level=error "
#define ENDLESS TOY "--steps=100000000 "

enum { STARTS_WITHIN = 60 };

/* The line of `entrain ps` that begins with this number. */
static void ps_line(long run, char line_out[512])
{
    process ps;
    char number[32], text[8192];
    snprintf(number, sizeof number, "%ld", run);
    process_start(&ps, "entrain", NULL, "ps");
    assert_int_equal(process_wait(&ps, GUARD), 0);
    snprintf(text, sizeof text, "%s", process_out(&ps));
    line_out[0] = 0;
    for (char *save, *line = strtok_r(text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save))
        if (strncmp(line + strspn(line, " "), number, strlen(number)) == 0)
            snprintf(line_out, 512, "%s", line);
}

static json_t *json_of(const char *words)
{
    process p;
    json_error_t error;
    process_start(&p, "entrain", NULL, "%s --json", words);
    assert_int_equal(process_wait(&p, GUARD), 0);
    json_t *all = json_loads(process_out(&p), 0, &error);
    if (all == NULL) fail_msg("entrain %s --json: %s", words, error.text);
    return all;
}

/* The output for programs, about the run with this number. */
static void expect_in_json(long run, const char *strategy, const char *out)
{
    json_t *all = json_of("ps"), *one, *mine = NULL;
    size_t i;
    json_array_foreach(json_object_get(all, "runs"), i,
                       one) if (json_integer_value(json_object_get(one, "run")) == run) mine = one;
    assert_non_null(mine);
    assert_string_equal(json_string_value(json_object_get(mine, "strategy")), strategy);
    assert_string_equal(json_string_value(json_object_get(mine, "out")), out);
    assert_int_equal(json_integer_value(json_object_get(mine, "workers")), 3);
    assert_true(json_integer_value(json_object_get(mine, "step")) >= 1);
    json_decref(all);
}

static void test_sim_as_json(void **state)
{
    (void)state;
    json_t *all = json_of("sim --strategy=ps-async --workers=4 --steps=20");
    const json_t *theory = json_object_get(all, "theory"), *staleness = json_object_get(all, "staleness");
    assert_true(json_number_value(json_object_get(all, "loss")) <
                json_number_value(json_object_get(all, "loss_before")));
    assert_true(json_number_value(json_object_get(theory, "staleness")) == 3);
    assert_int_equal(json_integer_value(json_object_get(staleness, "p50")), 3);
    assert_int_equal(json_array_size(json_object_get(all, "steps")), 4);
    json_decref(all);
}

static void expect_words(const char *line, const char *const *words)
{
    for (; *words != NULL; words++)
        if (strstr(line, *words) == NULL) fail_msg("\"%s\" lacks \"%s\"", line, *words);
}

static void stop(long run, int expected)
{
    process p;
    process_start(&p, "entrain", NULL, "stop %ld", run);
    const int code = process_wait(&p, GUARD);
    if (code != expected) fail_msg("entrain stop ended with %d:\n%s", code, process_err(&p));
    char number[24];
    snprintf(number, sizeof number, "%ld", run);
    if (expected == 0 && !text_has(process_out(&p), number)) fail_msg("it said: %s", process_out(&p));
}

static void test_run(void **state)
{
    static const char *const strategies[] = {"ring", "ps-async"};
    (void)state;
    for (size_t s = 0; s < 2; s++) {
        job j;
        char line[512], out[128];
        snprintf(out, sizeof out, "%s/ps%zu", system_folder(), s);
        job_run(&j, strategies[s], 3, "%s --out=%s", ENDLESS, out);
        job_wait(&j, 1, -1, NULL, 1, STARTS_WITHIN);
        ps_line(j.run.pid, line);
        expect_words(line, (const char *[]){strategies[s], "toy", " 3 ", out, "%", NULL});
        expect_in_json(j.run.pid, strategies[s], out);
        const double begin = now_seconds();
        stop(j.run.pid, 0);
        const double took = now_seconds() - begin;
        assert_int_equal(process_wait(&j.run, GUARD), 128 + SIGTERM);
        process_nobody_left(GUARD);
        ps_line(j.run.pid, line);
        assert_string_equal(line, "");
        promise("entrain stop, %s: ended after %.2f s", strategies[s], took);
    }
}

/* By hand the run's number is its leader's pid. */
static void test_by_hand(void **state)
{
    job j;
    char line[512];
    (void)state;
    job_by_hand(&j, "ps-sync", 2, "%s", ENDLESS);
    job_all_ranks(&j);
    job_wait(&j, 1, -1, NULL, 1, STARTS_WITHIN);
    ps_line(j.psd.pid, line);
    expect_words(line, (const char *[]){"ps-sync", "toy", " 2 ", NULL});
    process_kill(&j.psd, SIGSTOP);
    stopwatch watch = stopwatch_start(); /* the signal may take a moment */
    do
        ps_line(j.psd.pid, line);
    while (strstr(line, " stopped ") == NULL && stopwatch_read(&watch) < GUARD);
    expect_words(line, (const char *[]){"ps-sync", " stopped ", NULL});
    process_kill(&j.psd, SIGCONT);
    stop(j.psd.pid, 0);
    for (int who = JOB_PSD; who < 2; who++) {
        process *p = job_process(&j, who);
        const int code = process_wait(p, GUARD);
        if (code != 128 + SIGTERM) fail_msg("%s ended with %d:\n%s", p->name, code, process_err(p));
    }
}

static void test_unknown(void **state)
{
    process p;
    (void)state;
    stop(1, 2);
    process_start(&p, "entrain", NULL, "stop nonsense");
    assert_int_equal(process_wait(&p, 10), 2);
    assert_int_equal(process_names(&p, "nonsense", "entrain ps", ""), 1);
}

/* ---- --on-worker-loss ---------------------------------------------------------------------------------- */

static json_t *result_of(const char *out)
{
    char path[160];
    json_error_t error;
    snprintf(path, sizeof path, "%s/result.json", out);
    json_t *result = json_load_file(path, 0, &error);
    if (result == NULL) fail_msg("%s: %s", path, error.text);
    return result;
}

/* Rank 1 of three is killed in its first step, which would last for a minute: so the run cannot end before.
 * The others finish the budget, and report the loss. */
static void go_on(const char *strategy, int servers)
{
    enum { BATCH = 64, SAMPLES = 60 * BATCH };
    job j;
    char out[128];
    snprintf(out, sizeof out, "%s/loss-%.3s-%d", system_folder(), strategy, servers);
    job_run(&j, strategy, 3,
            "%s --model=mlp --batch-size=%d --limit-train-samples=256 --max-samples=%d --straggler=1:1000 "
            "--log-level=warn --on-worker-loss=continue --servers=%d --out=%s",
            TOY, BATCH, SAMPLES, servers, out);
    job_wait(&j, 1, ENI_RANK_ACTIVE, "forward backward", 0, STARTS_WITHIN);
    job_wait(&j, 0, -1, NULL, 1, STARTS_WITHIN);
    job_look(&j);
    assert_int_equal(kill(j.pid[1], SIGKILL), 0);
    const int code = process_wait(&j.run, GUARD);
    if (code != 0) fail_msg("%s ended with %d:\n%s", strategy, code, process_err(&j.run));
    if (process_says(&j.run, "rank 1 ", "(SIGKILL)") != 1)
        fail_msg("%s should say once who was lost:\n%s", strategy, process_err(&j.run));
    json_t *result = result_of(out);
    assert_string_equal(text_at(result, "exit"), "ok");
    const json_t *lost = json_object_get(result, "lost");
    assert_int_equal(json_array_size(lost), 1);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(lost, 0), "rank")), 1);
    const double applied = number_at(result, "samples_applied");
    if (applied < SAMPLES - 5 * BATCH || applied > SAMPLES) fail_msg("%g samples were applied", applied);
    promise("%s on %d servers goes on without rank 1: %g of %d samples applied", strategy, servers, applied,
            SAMPLES);
    json_decref(result);
    process_nobody_left(GUARD);
}

/* In quick steps: a rank that has done its part is killed, and the others continue. */
static void go_on_in_quick_steps(const char *strategy)
{
    job j;
    char out[128];
    snprintf(out, sizeof out, "%s/quick-%.3s", system_folder(), strategy);
    job_run(&j, strategy, 3, "%s --log-level=warn --on-worker-loss=continue --out=%s", ENDLESS, out);
    job_wait(&j, 1, -1, NULL, 100, STARTS_WITHIN);
    job_look(&j);
    assert_int_equal(kill(j.pid[1], SIGKILL), 0);
    wait_for_line(&j.run, "(SIGKILL)", GUARD);
    const int64_t step = job_step(&j, 0);
    job_wait(&j, 0, -1, NULL, step + 1000, GUARD);
    process_kill(&j.run, SIGINT);
    const int code = process_wait(&j.run, GUARD);
    if (code != 128 + SIGINT) fail_msg("%s ended with %d:\n%s", strategy, code, process_err(&j.run));
    json_t *result = result_of(out);
    assert_string_equal(text_at(result, "exit"), "interrupted");
    assert_int_equal(json_array_size(json_object_get(result, "lost")), 1);
    json_decref(result);
    process_nobody_left(GUARD);
}

static void test_goes_on(void **state)
{
    (void)state;
    go_on("ps-async", 1);
    go_on("ssp:bound=2", 1);
    go_on("ssp:bound=2", 2); /* each server has to hear of it */
    go_on_in_quick_steps("ps-async");
    go_on_in_quick_steps("ssp:bound=2");
}

/* Rank 1 dies between joining and its first step, where the others wait for the data that it would have
 * passed to them. */
static void test_a_death_while_it_starts(void **state)
{
    job j;
    (void)state;
    job_by_hand(&j, "ps-async", 3, "%s --steps=20 --on-worker-loss=continue", TOY);
    job_rank(&j, 0); /* hands the data set to the others */
    job_wait(&j, 0, ENI_RANK_JOINED, NULL, -1, STARTS_WITHIN);
    job_rank(&j, 1);
    job_wait(&j, 1, ENI_RANK_JOINED, NULL, -1, STARTS_WITHIN);
    process_kill(&j.rank[1], SIGSTOP);
    job_rank(&j, 2);
    job_wait(&j, 0, ENI_RANK_ACTIVE, NULL, -1, STARTS_WITHIN);
    process_kill(&j.rank[1], SIGKILL);
    process_wait(&j.rank[1], GUARD);
    for (int r = 0; r < 3; r += 2) {
        const int code = process_wait(&j.rank[r], GUARD / 2);
        if (code != 1 || process_says(&j.rank[r], "rank 1 ", SAYS_DIED) != 1)
            fail_msg("rank %d: exit %d\n%s", r, code, process_err(&j.rank[r]));
    }
    assert_int_equal(process_wait(&j.psd, GUARD), 1);
    process_nobody_left(GUARD);
}

/* A strategy that cannot be saved is refused before the first step, not when the first checkpoint is due. */
static void test_what_cannot_be_saved(void **state)
{
    static const char *const strategies[][2] = {{EN_BUILD_DIR "/test/plugins/local.so@easgd", "easgd"},
                                                {"hierarchical:bound=0", "options"}};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        process p;
        process_start(&p, "entrain", NULL,
                      "run -n 2 --strategy=%s %s --steps=20 --checkpoint-every=1000000 --out=%s/unsaved-%zu",
                      strategies[i][0], TOY, system_folder(), i);
        assert_int_equal(process_wait(&p, GUARD), 2);
        assert_int_equal(process_names(&p, "--checkpoint-every=1000000", strategies[i][1], ""), 1);
        process_nobody_left(GUARD);
    }
}

/* A mean of all ranks' weights needs a common step of all ranks: it is refused without one. */
static void test_mean_of_ranks_that_claim(void **state)
{
    static const char *const flags[] = {"", "--on-worker-loss=continue --assign=fixed", "--assign=fixed"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        process p;
        process_start(&p, "entrain", NULL,
                      "run -n 2 --strategy=" EN_BUILD_DIR "/test/plugins/local.so@easgd-mean %s --steps=4 %s",
                      TOY, flags[i]);
        const int code = process_wait(&p, GUARD);
        const int said = process_names(&p, "easgd-mean", "--assign=fixed", "");
        if (code != (i < 2 ? 2 : 0) || (said == 0) != (i == 2))
            fail_msg("%s: exit %d\n%s", flags[i], code, process_err(&p));
        process_nobody_left(GUARD);
    }
}

static void test_cannot_go_on(void **state)
{
    static const char *const strategies[] = {"ring", "ps-sync"};
    (void)state;
    for (size_t s = 0; s < 2; s++) {
        process p;
        process_start(&p, "entrain", NULL, "run -n 2 --strategy=%s --on-worker-loss=continue %s",
                      strategies[s], ENDLESS);
        assert_int_equal(process_wait(&p, GUARD), 2);
        if (process_says(&p, "--on-worker-loss=continue", strategies[s]) != 1)
            fail_msg("it should say once why not:\n%s", process_err(&p));
    }
}

/* The file that `entrain ps` reads is not written by the thread that sends the leader's heartbeats. */
static void test_slow_disk(void **state)
{
    process p;
    (void)state;
    process_start(&p, "/usr/bin/strace", NULL,
                  "-f -qq --seccomp-bpf -o /dev/null -e trace=/rename -e "
                  "inject=/rename:delay_enter=3000000:when=2 " EN_BUILD_DIR
                  "/entrain run -n 2 --strategy=ring --peer-timeout=1s --quiet --straggler=0:1000 "
                  "--steps=1000 " TOY);
    const int code = process_wait(&p, GUARD);
    if (code == 127 || process_says(&p, "ptrace", "") > 0) system_skip("strace cannot trace here");
    if (code != 0) fail_msg("it ended with %d:\n%s", code, process_err(&p));
    promise("a disk that takes 3 s for a rename: no heartbeat is late, the run goes on");
}

int main(void)
{
    const struct CMUnitTest tests[] = {JOB_TEST(test_run),
                                       JOB_TEST(test_by_hand),
                                       JOB_TEST(test_unknown),
                                       JOB_TEST(test_goes_on),
                                       JOB_TEST(test_cannot_go_on),
                                       JOB_TEST(test_a_death_while_it_starts),
                                       JOB_TEST(test_what_cannot_be_saved),
                                       JOB_TEST(test_mean_of_ranks_that_claim),
                                       JOB_TEST(test_slow_disk),
                                       JOB_TEST(test_sim_as_json)};
    return system_main(tests);
}
