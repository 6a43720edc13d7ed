/* test_stages.c - what the stages of a rank keep, and what becomes of a rank of which one diverges, fails or is slow.
 * That they end with the bytes of one device is test_parallel.c's.
 *
 * Last: that they are at work at the same time.
 *
 * Stages are stopped in a forward or a backward by the device that they run on (held.h). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/system/held.h"
#include "tests/system/job.h"
#include "tests/system/run.h"

/* Promise: Stages keep what the schedule says: 1f1b min(M, S - s) chunks, gpipe M, recomputed to the byte
 * from two other runs.
 * Promise: A stage that fails or diverges ends the run with its own sentence, and a slow stage is named,
 * not the one that waits for it. */

#define SMALL    "--data=synthetic --threads=1 --limit-train-samples=64 --limit-test-samples=8 "
#define PIPELINE "--parallel=pipeline --stages=2 --micro-batches=4 --batch-size=8 "
#define HELD     "--device=cpu --model=toy " SMALL PIPELINE "--log-every=0 --steps=100000000 "

enum { STARTS_WITHIN = 60 };

/* ---- memory -------------------------------------------------------------------------------------------- */

enum { MOST = 4, CHUNKS = 8, ROWS = 3 };

/* Bytes of each stage's activations, gradients and what it hands over, of a run with chunks of ROWS samples. */
static void read_peaks(int nstages, const char *schedule, int nchunks, double peak_out[MOST])
{
    size_t s;
    json_t *stage;
    json_t *r =
        train(120,
              "-n 1 --strategy=solo --device=ref --model=resnet18:width=2,stem=cifar " SMALL
              "--eval-batch-size=1 --drop-last --steps=1 --parallel=pipeline --stages=%d --pipeline=%s "
              "--micro-batches=%d --batch-size=%d",
              nstages, schedule, nchunks, nchunks * ROWS);
    const json_t *stages = json_object_get(json_object_get(r, "pipeline"), "stage");
    assert_int_equal(json_array_size(stages), nstages);
    json_array_foreach(stages, s, stage) peak_out[s] = number_at(stage, "peak_bytes");
    json_decref(r);
}

/* A stage has memory that grows with the chunks that it keeps, and some that does not: two runs of gpipe, which keeps
 * all of 1 and of 2 chunks, tell both. Then 1f1b keeps min(M, S - s) of M, and gpipe M. */
static void expect_lives(int nstages)
{
    double one[MOST], two[MOST], gpipe[MOST], interleaved[MOST], sum = 0, sum_gpipe = 0;
    read_peaks(nstages, "gpipe", 1, one);
    read_peaks(nstages, "gpipe", 2, two);
    read_peaks(nstages, "gpipe", CHUNKS, gpipe);
    read_peaks(nstages, "1f1b", CHUNKS, interleaved);
    for (int s = 0; s < nstages; s++) {
        const double each = two[s] - one[s], fixed = one[s] - each;
        const int lives = CHUNKS < nstages - s ? CHUNKS : nstages - s;
        assert_true(each > 0 && fixed >= 0 && fixed < each); /* of which evaluation is a part */
        if (gpipe[s] != fixed + CHUNKS * each || interleaved[s] != fixed + lives * each)
            fail_msg("stage %d of %d: %.0f and %.0f bytes for each chunk; gpipe has %.0f, 1f1b %.0f", s,
                     nstages, fixed, each, gpipe[s], interleaved[s]);
        sum += interleaved[s];
        sum_gpipe += gpipe[s];
    }
    promise(
        "S = %d, M = %d: 1f1b keeps S - s chunks on stage s, gpipe M, to the byte: %.0f %% of gpipe's bytes",
        nstages, CHUNKS, 100 * sum / sum_gpipe);
}

static void test_memory(void **state)
{
    (void)state;
    for (int nstages = 2; nstages <= MOST; nstages++)
        expect_lives(nstages);
}

/* ---- one diverges -------------------------------------------------------------------------------------- */

/* Known once the last stage has had its forwards: then other stages are in the middle of their turns, and read and write
 * what the step has given them. */
static void expect_divergence(const char *flags)
{
    process p;
    process_start(&p, "entrain", NULL,
                  "run --quiet --log-level=warn --device=ref --model=convnet " SMALL
                  "--momentum=0 --lr=1000000 --steps=1000 %s",
                  flags);
    const int code = process_wait(&p, GUARD);
    if (code != 1 ||
        process_says(&p, " E ", "is not finite: training has diverged; try a smaller --lr") < 1 ||
        process_says(&p, "died", "") != 0)
        fail_msg(
            "%s: exit %d; it should end with 1 and the loss that is not finite, and not die; it said:\n%s",
            flags, code, process_err(&p));
    process_nobody_left(GUARD);
}

static void test_diverges(void **state)
{
    static const char *const ways[] = {
        "-n 1 --strategy=solo " PIPELINE,
        "-n 1 --strategy=solo --pipeline=gpipe " PIPELINE,
        "-n 1 --strategy=solo --micro-batches=4",
        "-n 1 --strategy=solo --parallel=model --stages=2",
        "-n 1 --strategy=solo --parallel=data --device=ref:0,ref:1 --batch-size=8",
        "-n 2 --strategy=ring " PIPELINE,
        "-n 2 --strategy=ps-sync " PIPELINE};
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        expect_divergence(ways[i]);
    promise(
        "a loss that is not finite ends pipelines, stages one after the other, replicas and chunks on one "
        "device: one sentence, exit 1, nobody is left");
}

/* ---- one fails ----------------------------------------------------------------------------------------- */

/* Stage `stage` of rank 1 fails in a turn, while rank 0 waits for its gradients. */
static void fail_in(const char *strategy, int stage, const char *turn)
{
    job j;
    char cause[64];
    snprintf(cause, sizeof cause, "cpu:%d has failed in %s, as it was told", stage, turn);
    job_run(&j, strategy, 2, HELD "--log-level=error");
    job_wait(&j, 1, -1, NULL, 1, STARTS_WITHIN);
    job_look(&j);
    held_fail(j.pid[1], stage, turn);
    const int code = process_wait(&j.run, GUARD);
    if (code != 1 || process_says(&j.run, cause, "") < 1 || process_says(&j.run, "died", "") != 0)
        fail_msg("%s: exit %d, and should be 1 with \"%s\"; it said:\n%s", strategy, code, cause,
                 process_err(&j.run));
    process_nobody_left(GUARD);
    assert_int_equal(sockets_left(j.sockets), 0);
}

static void test_fails(void **state)
{
    (void)state;
    fail_in("ring", 0, HELD_FORWARD);
    fail_in("ring", 1, HELD_FORWARD);
    fail_in("ring", 0, HELD_BACKWARD);
    fail_in("ps-sync", 1, HELD_BACKWARD);
    promise(
        "a stage whose device fails, in forward and backward, ends its rank with the device's sentence and "
        "all others: exit 1, nobody is left");
}

/* ---- one is slow --------------------------------------------------------------------------------------- */

/* Whom the rank names is the one that computes, not the one that waits for it. */
static void expect_explained(const char *schedule, int stage, const char *turn)
{
    job j;
    char expected[64];
    snprintf(expected, sizeof expected, "for its devices: stage %d: ", stage);
    job_run(&j, "ring", 2, HELD "--pipeline=%s", schedule);
    job_wait(&j, 1, -1, NULL, 1, STARTS_WITHIN);
    job_look(&j);
    held_stop(j.pid[1], stage, turn);
    const char *line = wait_for_line(&j.run, "rank 1 has waited", GUARD);
    if (strstr(line, expected) == NULL || strstr(line, " of 4 done") == NULL)
        fail_msg("%s, held in a %s of stage %d: \"%s\"", schedule, turn, stage, line);
    held_go_on(j.pid[1], stage, turn);
    process_kill(&j.run, SIGINT);
    assert_int_equal(process_wait(&j.run, GUARD), 128 + SIGINT);
    process_nobody_left(GUARD);
}

static void test_slow_is_explained(void **state)
{
    (void)state;
    expect_explained("1f1b", 0, HELD_FORWARD);
    expect_explained("gpipe", 1, HELD_BACKWARD);
    promise(
        "a stage that takes more than 5 s is named by its rank, whether others wait for its forward or its "
        "backward");
}

/* ---- it is a pipeline ---------------------------------------------------------------------------------- */

enum { STRIP_STEPS = 5 };

typedef struct turn {
    double begin, end;
    int is_forward;
} turn;

typedef struct rows {
    turn turns[2][STRIP_STEPS][2 * CHUNKS];
    int n[2][STRIP_STEPS];
} rows;

/* The rows "stage 0" and "stage 1" of rank 0. */
static void read_rows(const json_t *events, rows *r)
{
    json_int_t tid[2] = {-1, -1};
    size_t i;
    json_t *e;
    json_array_foreach(events, i, e)
    {
        const char *name = json_string_value(json_object_get(e, "name"));
        const json_t *args = json_object_get(e, "args");
        const json_int_t row = json_integer_value(json_object_get(e, "tid"));
        if (strcmp(name, "thread_name") == 0) {
            const char *is = json_string_value(json_object_get(args, "name"));
            if (strncmp(is, "stage ", 6) == 0) tid[is[6] - '0'] = row;
        }
        const json_int_t step = json_integer_value(json_object_get(args, "step"));
        for (int s = 0; s < 2; s++) {
            if (row != tid[s] || strcmp(json_string_value(json_object_get(e, "ph")), "X") != 0) continue;
            assert_true(step >= 0 && step < STRIP_STEPS && r->n[s][step] < 2 * CHUNKS);
            const double begin = number_at(e, "ts");
            r->turns[s][step][r->n[s][step]++] =
                (turn){begin, begin + number_at(e, "dur"), strncmp(name, "forward", 7) == 0};
        }
    }
    assert_true(tid[0] >= 0 && tid[1] >= 0);
}

/* Forwards of stage 1 in a step that pass beside anything of stage 0. */
static int count_beside(const rows *r, int step)
{
    int n = 0;
    for (int i = 0; i < 2 * CHUNKS; i++) {
        const turn *f = &r->turns[1][step][i];
        int is_beside = 0;
        for (int k = 0; k < 2 * CHUNKS; k++) {
            const turn *o = &r->turns[0][step][k];
            is_beside |= o->begin < f->end && f->begin < o->end;
        }
        n += f->is_forward && is_beside;
    }
    return n;
}

static int compare(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* The median step's, of a run whose stages sleep in each turn equally long, so that it does not depend on cores. */
static int median_beside(const char *schedule)
{
    char path[128];
    json_error_t error;
    rows r = {0};
    int beside[STRIP_STEPS];
    snprintf(path, sizeof path, "%s/trace.json", system_folder());
    json_t *result = train(120,
                           "-n 1 --strategy=solo --device=cpu --model=toy " SMALL
                           "--parallel=pipeline --stages=2 --pipeline=%s --micro-batches=%d --batch-size=%d "
                           "--steps=%d --trace=%s",
                           schedule, CHUNKS, CHUNKS, STRIP_STEPS, path);
    assert_true(number_at(result, "pipeline.bubble") > 0 && number_at(result, "pipeline.bubble") < 1);
    json_decref(result);
    json_t *trace = json_load_file(path, 0, &error);
    if (trace == NULL) fail_msg("%s: %s", path, error.text);
    read_rows(json_object_get(trace, "traceEvents"), &r);
    json_decref(trace);
    for (int step = 0; step < STRIP_STEPS; step++) {
        assert_int_equal(r.n[0][step], 2 * CHUNKS);
        assert_int_equal(r.n[1][step], 2 * CHUNKS);
        beside[step] = count_beside(&r, step);
    }
    qsort(beside, STRIP_STEPS, sizeof *beside, compare);
    return beside[STRIP_STEPS / 2];
}

/* One that ran its stages one after the other would pass every equality, and have none beside. */
static void test_is_a_pipeline(void **state)
{
    static const char *const schedules[] = {"1f1b", "gpipe"};
    (void)state;
    held_pace(true);
    for (int k = 0; k < 2; k++) {
        const int n = median_beside(schedules[k]);
        if (n < 6) fail_msg("%s: %d forwards of stage 1 pass beside a turn of stage 0", schedules[k], n);
        promise("%s, S = 2, M = 8: %d of 8 forwards of stage 1 pass beside a turn of stage 0", schedules[k],
                n);
    }
    held_pace(false);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {JOB_TEST(test_memory), JOB_TEST(test_diverges), JOB_TEST(test_fails),
                                       JOB_TEST(test_slow_is_explained), JOB_TEST(test_is_a_pipeline)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    held_begin();
    return system_main(tests);
}
