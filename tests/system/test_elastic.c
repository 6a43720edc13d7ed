/* test_elastic.c - an elastic run: workers die, come and go, and it ends with the bytes of a run that was told to change
 * at the same checkpoints; what it cannot do it says, and nothing of it is left behind. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/control/runs.h"
#include "tests/system/resumed.h"

/* Promise: Workers of ring and ps-sync die, join and leave, psd too: every sample of an epoch counts once,
 * with the bytes of runs by hand that change at the same checkpoints.
 * Promise: Three losses in a row, one during a restart, one beyond --max-restarts, and Ctrl-C during a
 * wait leave nothing behind.
 * Promise: All attempts of an elastic run read and hash the data set once; changed files, or a reader that
 * was killed, cause a new reading. */

/* 103 samples leave a ragged last step, 12 of a step are shared by 1, 2, 3 or 4. */
enum { TRAINED = 103 * 8, STEPS = 9 * 8, BATCH = 12 };
#define JOB                                                                                                  \
    "--device=ref --model=mlp --data=synthetic --limit-train-samples=103 --limit-test-samples=64 "           \
    "--global-batch-size=12 --epochs=8 --lr=0.02 --momentum=0.9 --nesterov --lr-schedule=multistep "         \
    "--lr-milestones=2epochs,5epochs"
/* Rank 0 takes some 50 to 100 ms a step, so that there is a run to disturb. */
#define SLOW_JOB    JOB " --straggler=0:60"
#define CHECKPOINTS " --checkpoint-every=36"

static const double soon = 1; /* a run that is called off ends within so many seconds */

/* ---- what happens to it ---- */

typedef enum kind { KILL, KILL_PSD, JOIN, LEAVE } kind;
typedef struct event {
    kind kind;
    int who;     /* rank, or so many more */
    int workers; /* then */
} event;

static void call(process *p, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void call(process *p, int code, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    process_start(p, "entrain", NULL, "%s", text);
    const int got = process_wait(p, GUARD);
    if (got != code) fail_msg("entrain %s: exit %d\n%s%s", text, got, process_out(p), process_err(p));
}

static pid_t child(const process *run, const char *word)
{
    const pid_t pid = process_child(run->pid, word);
    if (pid == 0) fail_msg("there is no %s\n%s", word, process_err(run));
    return pid;
}

static void disturb(const process *run, const event *e)
{
    char word[32];
    process p;
    snprintf(word, sizeof word, "--rank=%d", e->who);
    if (e->kind == KILL)
        assert_int_equal(kill(child(run, word), SIGKILL), 0);
    else if (e->kind == KILL_PSD)
        assert_int_equal(kill(child(run, "psd"), SIGKILL), 0);
    else if (e->kind == JOIN)
        call(&p, 0, "join %d -n %d", (int)run->pid, e->who);
    else
        call(&p, 0, "leave %d %d", (int)run->pid, e->who);
}

/* The leader of a run that trains, other than `before`; 0: there is none now. */
static int64_t leader_of(const process *run, int64_t before, int64_t *step_out)
{
    char folder[256];
    eni_run_status *runs;
    size_t n;
    int64_t leader = 0;
    snprintf(folder, sizeof folder, "%s/entrain", system_folder());
    if (eni_runs_list(folder, &runs, &n) != EN_OK) return 0;
    for (size_t i = 0; i < n; i++) {
        const char *launcher = eni_key_value_find(runs[i].attributes, runs[i].nattributes, "launcher");
        const int is_ours = launcher != NULL && atoi(launcher) == run->pid && runs[i].pid != before;
        if (!is_ours || runs[i].stage != ENI_RUN_RUNNING) continue;
        leader = runs[i].pid;
        *step_out = runs[i].rank[0].step;
    }
    eni_runs_free(runs, n);
    return leader;
}

static uint64_t furthest_step(const process *run)
{
    int64_t step = 0;
    leader_of(run, 0, &step);
    return step < 0 ? 0 : (uint64_t)step;
}

/* Until another life than that of this leader has saved. */
static int64_t wait_for_life(const process *run, const char *out, int64_t before)
{
    const double deadline = now_seconds() + GUARD;
    int64_t leader, step;
    while ((leader = leader_of(run, before, &step)) == 0)
        if (now_seconds() > deadline) fail_msg("it does not go on\n%s", process_err(run));
    assert_int_equal(wait_for_checkpoint(run, out, newest_checkpoint(out) + 1), 1);
    return leader;
}

static void disturb_all(const process *run, const char *out, const event *events, int n)
{
    for (int64_t i = 0, leader = 0; i < n; i++) {
        leader = wait_for_life(run, out, leader);
        disturb(run, &events[i]);
    }
}

static void expect_nothing_left(void)
{
    process_nobody_left(GUARD);
    assert_int_equal(files_left("entrain"), 0);
}

/* ---- what must come of it ---- */

/* How many workers went on from each checkpoint: of attempts from the same one the last counts. */
static size_t list_workers(const json_t *restarts, int workers[16])
{
    size_t i, n = 0;
    const json_t *restart;
    double last = -1;
    json_array_foreach(restarts, i, restart)
    {
        const double from = number_at(restart, "resumed_from_step");
        n += from != last;
        last = from;
        workers[n - 1] = (int)number_at(restart, "workers");
    }
    return n;
}

static void expect_bytes_of_runs_by_hand(const json_t *result, const char *strategy, int workers)
{
    char flags[500], expected[HASHES], found[HASHES];
    const json_t *paths = json_object_get(result, "resumed_from");
    int then[17] = {workers};
    assert_int_equal(json_array_size(paths), list_workers(json_object_get(result, "restarts"), then + 1));
    snprintf(flags, sizeof flags, "--strategy=%s " JOB, strategy);
    hashes_by_hand(flags, then, paths, expected);
    hashes_of(result, found);
    if (strcmp(expected, found) != 0) fail_msg("it ends with %s, runs by hand with %s", found, expected);
}

/* Each step once, at its rate, and its samples once over all who were there. */
static void expect_every_sample_once(const char *out, const char *undisturbed)
{
    char path[200];
    json_int_t nsamples = 0;
    snprintf(path, sizeof path, "%s/metrics-0.jsonl", undisturbed);
    json_t *wanted = read_lines(path);
    assert_int_equal(json_array_size(wanted), STEPS);
    for (int r = 0; r < 4; r++) {
        snprintf(path, sizeof path, "%s/metrics-%d.jsonl", out, r);
        json_t *lines = read_lines(path);
        if (r == 0) assert_int_equal(json_array_size(lines), STEPS);
        for (size_t i = 0; i < json_array_size(lines); i++) {
            const json_t *line = json_array_get(lines, i);
            nsamples += json_integer_value(json_object_get(line, "nsamples"));
            if (r > 0) continue;
            static const char *const keys[] = {"step", "epoch", "samples", "lr"};
            for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
                if (number_at(line, keys[k]) != number_at(json_array_get(wanted, i), keys[k]))
                    fail_msg("step %zu has %s, undisturbed %s", i, json_dumps(line, 0),
                             json_dumps(json_array_get(wanted, i), 0));
        }
        json_decref(lines);
    }
    assert_int_equal(nsamples, TRAINED);
    json_decref(wanted);
}

static void expect_restarts(const json_t *result, const event *events, int n, int workers)
{
    const json_t *restarts = json_object_get(result, "restarts");
    uint64_t repeated = 0;
    assert_int_equal(json_array_size(restarts), n);
    for (int i = 0; i < n; i++) {
        const json_t *r = json_array_get(restarts, (size_t)i);
        const int is_loss = events[i].kind == KILL || events[i].kind == KILL_PSD;
        assert_int_equal((int)number_at(r, "workers_before"), workers);
        workers = events[i].workers;
        assert_int_equal((int)number_at(r, "workers"), workers);
        assert_true(number_at(r, "at_step") >= number_at(r, "resumed_from_step"));
        assert_true(number_at(r, "seconds") > 0);
        assert_non_null(strstr(text_at(r, "reason"), is_loss ? "died" : "asked for"));
        if (!is_loss) assert_true(number_at(r, "at_step") == number_at(r, "resumed_from_step"));
        repeated += (uint64_t)(number_at(r, "at_step") - number_at(r, "resumed_from_step"));
    }
    assert_true(number_at(result, "repeated_samples") <= (double)(repeated * BATCH));
}

static json_t *elastic(const char *strategy, const event *events, int n)
{
    char out[160], undisturbed[160], text[700];
    process p;
    json_t *wanted = train(GUARD, "-n 4 --strategy=%s " JOB, strategy);
    snprintf(undisturbed, sizeof undisturbed, "%s", train_out());
    folder_for(out, "elastic");
    snprintf(text, sizeof text, "-n 4 --elastic=2..4 --max-restarts=9 --strategy=%s " SLOW_JOB CHECKPOINTS,
             strategy);
    begin_run(&p, out, text);
    disturb_all(&p, out, events, n);
    const int code = process_wait(&p, GUARD);
    if (code != 0) fail_msg("%s: exit %d\n%s", text, code, process_err(&p));
    expect_nothing_left();
    json_t *result = result_of(out);
    expect_restarts(result, events, n, 4);
    assert_string_equal(text_at(result, "order_sha256"), text_at(wanted, "order_sha256"));
    assert_int_equal((int)number_at(result, "samples_applied"), TRAINED);
    assert_int_equal((int)number_at(result, "samples_computed"), TRAINED);
    assert_string_equal(text_at(result, "exit"), "ok");
    expect_every_sample_once(out, undisturbed);
    expect_bytes_of_runs_by_hand(result, strategy, 4);
    json_decref(wanted);
    return result;
}

static double slowest(const json_t *result)
{
    double most = 0;
    size_t i;
    const json_t *r;
    json_array_foreach(json_object_get(result, "restarts"), i, r) most =
        number_at(r, "seconds") > most ? number_at(r, "seconds") : most;
    return most;
}

static void test_ring(void **state)
{
    (void)state;
    const event events[] = {{KILL, 1, 3}, {JOIN, 1, 4}, {LEAVE, 3, 3}, {LEAVE, 0, 2}};
    json_t *result = elastic("ring", events, 4);
    promise("--elastic, ring: 4 workers, one killed, 3, one joins, 4, two leave, 2: every sample once, the "
            "bytes of runs "
            "by hand; %.0f samples computed again, a restart took %.2f s at most",
            number_at(result, "repeated_samples"), slowest(result));
    json_decref(result);
}

static void test_ps_sync(void **state)
{
    (void)state;
    const event events[] = {{KILL, 1, 3}, {JOIN, 1, 4}, {KILL_PSD, 0, 4}};
    json_t *result = elastic("ps-sync", events, 3);
    promise("--elastic, ps-sync: 4 workers, one killed, 3, one joins, 4, psd killed, 4: every sample once, "
            "the bytes of "
            "runs by hand; a restart took %.2f s at most",
            slowest(result));
    json_decref(result);
}

/* Rank 0, which leads, too; and with fewer than the fewest that it may have, the lost one is replaced. */
static void test_three_losses_in_a_row(void **state)
{
    (void)state;
    const event events[] = {{KILL, 1, 3}, {KILL, 0, 2}, {KILL, 1, 2}};
    json_decref(elastic("ring", events, 3));
}

/* Steps that were taken since the checkpoint are taken again, and counted. */
static void test_repeated(void **state)
{
    char out[160];
    process p;
    (void)state;
    folder_for(out, "elastic");
    begin_run(&p, out,
              "-n 3 --elastic=2..3 --strategy=ring " JOB " --straggler=0:300 --checkpoint-every=2epochs");
    wait_for_life(&p, out, 0);
    const uint64_t saved = newest_checkpoint(out);
    const double deadline = now_seconds() + GUARD;
    while (furthest_step(&p) * BATCH <= saved + BATCH)
        if (now_seconds() > deadline) fail_msg("no step behind sample %d\n%s", (int)saved, process_err(&p));
    kill(child(&p, "--rank=1"), SIGKILL);
    const int code = process_wait(&p, GUARD);
    if (code != 0) fail_msg("exit %d\n%s", code, process_err(&p));
    json_t *result = result_of(out);
    const json_t *restart = json_array_get(json_object_get(result, "restarts"), 0);
    const double steps = number_at(restart, "at_step") - number_at(restart, "resumed_from_step");
    assert_true(steps >= 1);
    assert_true(number_at(result, "repeated_samples") > (steps - 1) * BATCH);
    assert_true(number_at(result, "repeated_samples") <= steps * BATCH);
    assert_int_equal((int)number_at(result, "samples_computed"), TRAINED);
    promise("a worker is killed %.0f steps behind the checkpoint: %.0f samples are computed again, and said "
            "to be",
            steps, number_at(result, "repeated_samples"));
    json_decref(result);
    expect_nothing_left();
}

/* Most of a restart was to read and to hash it. The last rank is alone, and would keep what it reads. */
static void test_the_data_set_is_read_once(void **state)
{
    char out[160];
    process p;
    (void)state;
    folder_for(out, "elastic");
    begin_run(&p, out, "-n 3 --elastic=1..3 --strategy=ring --log-level=debug " SLOW_JOB CHECKPOINTS);
    disturb_all(&p, out, (const event[]){{KILL, 1, 2}, {LEAVE, 1, 1}}, 2);
    const int code = process_wait(&p, GUARD);
    if (code != 0) fail_msg("exit %d\n%s", code, process_err(&p));
    assert_int_equal(process_says(&p, "dataset: ", "reading synthetic"), 1);
    assert_int_equal(process_says(&p, "dataset: ", "hashing synthetic"), 1);
    assert_int_equal(process_says(&p, "dataset: ", "mapped synthetic"), 3 + 2 + 1);
    promise("three lives of an elastic run read the data set once and hash it once");
    expect_nothing_left();
}

/* ---- losses that come at the wrong moment, and too many of them ---- */

/* The first process with this rank that is not `before`. */
static pid_t next_child(const process *run, const char *word, pid_t before)
{
    const double deadline = now_seconds() + GUARD;
    for (pid_t pid; now_seconds() < deadline;)
        if ((pid = process_child(run->pid, word)) != 0 && pid != before) return pid;
    fail_msg("no other %s has come\n%s", word, process_err(run));
    return 0;
}

/* Its leader. */
static int64_t begin_elastic(process *p, char out[160], const char *flags)
{
    char text[700];
    folder_for(out, "elastic");
    snprintf(text, sizeof text, "-n 4 --elastic=2..4 --strategy=ring " SLOW_JOB CHECKPOINTS " %s", flags);
    begin_run(p, out, text);
    return wait_for_life(p, out, 0);
}

static void test_a_loss_during_the_restart(void **state)
{
    char out[160];
    process p;
    (void)state;
    begin_elastic(&p, out, "");
    const pid_t first = child(&p, "--rank=1");
    kill(first, SIGKILL);
    kill(next_child(&p, "--rank=1", first), SIGKILL);
    const int code = process_wait(&p, GUARD);
    if (code != 0) fail_msg("exit %d\n%s", code, process_err(&p));
    expect_nothing_left();
    json_t *result = result_of(out);
    const json_t *restarts = json_object_get(result, "restarts");
    assert_int_equal(json_array_size(restarts), 2);
    assert_int_equal((int)number_at(json_array_get(restarts, 0), "workers"), 3);
    assert_int_equal((int)number_at(json_array_get(restarts, 1), "workers"), 2);
    for (size_t i = 0; i < 2; i++)
        assert_true(number_at(json_array_get(restarts, i), "resumed_from_step") > 0);
    expect_bytes_of_runs_by_hand(result, "ring", 4);
    json_decref(result);
}

static void test_more_losses_than_allowed(void **state)
{
    char out[160];
    process p;
    (void)state;
    const int64_t first = begin_elastic(&p, out, "--max-restarts=1 --global-batch-size=8");
    kill(child(&p, "--rank=1"), SIGKILL);
    wait_for_life(&p, out, first);
    assert_int_equal(process_says(&p, "with 2 workers", "3 workers cannot share out the 8 samples"), 1);
    kill(child(&p, "--rank=1"), SIGKILL);
    assert_int_equal(process_wait(&p, GUARD), 1);
    expect_nothing_left();
    if (process_says(&p, " E ", "") != 1 || process_says(&p, " E ", "--max-restarts=1: rank 1 ") != 1 ||
        process_says(&p, " E ", "checkpoints/checkpoint-") != 1)
        fail_msg("not one sentence with cause and checkpoint:\n%s", process_err(&p));
    json_t *result = result_of(out);
    assert_string_equal(text_at(result, "exit"), "failed");
    assert_int_equal(json_array_size(json_object_get(result, "restarts")), 1);
    json_decref(result);
    promise("a loss more than --max-restarts: one sentence with its cause and the last checkpoint, exit 1");
}

static void test_ctrl_c_while_it_waits(void **state)
{
    char out[160];
    process p;
    (void)state;
    int64_t leader = begin_elastic(&p, out, "--max-restarts=9");
    for (int i = 0; i < 4; i++) { /* the fourth time it waits for 4 s */
        if (i > 0) leader = wait_for_life(&p, out, leader);
        kill(child(&p, "--rank=1"), SIGKILL);
    }
    wait_for_line(&p, "going on in 4.0 s", GUARD);
    stopwatch watch = stopwatch_start();
    process_kill(&p, SIGINT);
    const int code = process_wait(&p, GUARD);
    const double took = stopwatch_read(&watch);
    if (code != 128 + SIGINT) fail_msg("exit %d\n%s", code, process_err(&p));
    stopwatch_expect(&watch, took, soon, "it ended");
    expect_nothing_left();
    promise("Ctrl-C while an elastic run waits to start again: exit 130 after %.2f s", took);
}

/* ---- what cannot be asked ---- */

static void expect_refused(const char *sentence, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void expect_refused(const char *sentence, const char *format, ...)
{
    char text[128];
    process p;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    call(&p, 2, "%s", text);
    if (process_says(&p, " E ", "") != 1 || process_says(&p, " E ", sentence) != 1)
        fail_msg("entrain %s: not one sentence with \"%s\":\n%s", text, sentence, process_err(&p));
}

static void test_what_cannot_be_asked(void **state)
{
    char out[160];
    process p;
    (void)state;
    begin_elastic(&p, out, "");
    const int run = (int)p.pid;
    expect_refused("it has 4 workers, and --elastic=2..4 lets it have 4 at most", "join %d -n 1", run);
    expect_refused("\"4\" is no rank of run", "leave %d 4", run);
    expect_refused("\"x\" is no rank of run", "leave %d x", run);
    expect_refused("there is no run \"999999999\"", "join 999999999");
    process_kill(&p, SIGTERM);
    assert_int_equal(process_wait(&p, GUARD), 143);
    folder_for(out, "elastic");
    begin_run(&p, out, "-n 3 --elastic=3..8 --strategy=ring " SLOW_JOB CHECKPOINTS);
    assert_int_equal(wait_for_checkpoint(&p, out, 1), 1);
    expect_refused(
        "5 workers cannot share out the 12 samples of a step (--global-batch-size) evenly: 3, 4, 6 can",
        "join %d -n 2", (int)p.pid);
    expect_refused("it cannot have fewer: 3, 4, 6 can", "leave %d 0", (int)p.pid);
    process_kill(&p, SIGTERM);
    assert_int_equal(process_wait(&p, GUARD), 143);
    folder_for(out, "elastic");
    begin_run(&p, out, "-n 3 --strategy=ring " SLOW_JOB CHECKPOINTS);
    assert_int_equal(wait_for_checkpoint(&p, out, 1), 1);
    expect_refused("was not started with --elastic", "join %d", (int)p.pid);
    process_kill(&p, SIGTERM);
    assert_int_equal(process_wait(&p, GUARD), 143);
    expect_nothing_left();
}

/* Ranks with weights of their own cannot become another number of ranks: the lost one is replaced. */
static void test_ranks_with_state(void **state)
{
    char out[160];
    process p;
    (void)state;
    folder_for(out, "elastic");
    begin_run(&p, out, "-n 3 --elastic=2..3 --strategy=grouped:period=5 --groups=3 " SLOW_JOB CHECKPOINTS);
    assert_int_equal(wait_for_checkpoint(&p, out, 1), 1);
    expect_refused("its ranks have state of their own", "leave %d 0", (int)p.pid);
    kill(child(&p, "--rank=2"), SIGKILL);
    const int code = process_wait(&p, GUARD);
    if (code != 0) fail_msg("exit %d\n%s", code, process_err(&p));
    json_t *result = result_of(out);
    char found[HASHES];
    hashes_of(result, found);
    assert_int_equal((int)number_at(json_array_get(json_object_get(result, "restarts"), 0), "workers"), 3);
    assert_string_equal(found, train_hash(GUARD, "-n 3 --strategy=grouped:period=5 --groups=3 " JOB));
    json_decref(result);
    expect_nothing_left();
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_ps_sync),
        cmocka_unit_test(test_three_losses_in_a_row),
        cmocka_unit_test(test_repeated),
        cmocka_unit_test(test_the_data_set_is_read_once),
        cmocka_unit_test(test_a_loss_during_the_restart),
        cmocka_unit_test(test_more_losses_than_allowed),
        cmocka_unit_test(test_ctrl_c_while_it_waits),
        cmocka_unit_test(test_what_cannot_be_asked),
        cmocka_unit_test(test_ranks_with_state),
    };
    return system_main(tests);
}
