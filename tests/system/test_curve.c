/* test_curve.c - the curve of whole runs: which points are evaluated, what a kill leaves of it, and the clock
 * that runs on while it is made.
 *
 * Which points have to be there is worked out here from a run of the same seed that evaluates all. */
#include <dirent.h>
#include <math.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/system/resumed.h"

/* Promise: A curve's points are the grid and the bracket of its target, also for a run that was killed.
 * Promise: The clock of ps-async goes on while rank 0 takes snapshots or saves.
 * Promise: No tensor moves for a snapshot while the clock runs: eight strategies send as many bytes with
 * 30 points as with one.
 * Promise: Local SGD over a slow wire takes as long with 48 snapshots as with one; psd's copies are ring's points.
 * Promise: The mean's curve of a run that was killed and resumed is that of an undisturbed run. */

enum { POINTS = 48, GRID_STEP = 4, HELD = 400, BUDGET = 1920 };

/* Learns slowly enough to cross a target in the middle. */
#define JOB                                                                                                  \
    "-n 2 --strategy=ring --device=ref --model=mlp --data=synthetic --limit-test-samples=100 "               \
    "--batch-size=8 "                                                                                        \
    "--max-samples=1920 --lr=0.002 --limit-train-samples=960 --holdout=400 --eval-points=48 "

typedef struct point {
    double samples, loss, accuracy;
    bool is_bracket;
} point;

typedef struct curve {
    point at[POINTS + 2];
    int n;
} curve;

static curve read_curve(const char *out, const char *set)
{
    char path[200], loss[40], accuracy[40];
    curve c = {.n = 0};
    size_t i;
    json_t *line;
    snprintf(path, sizeof path, "%s/eval.jsonl", out);
    snprintf(loss, sizeof loss, "%s_loss", set);
    snprintf(accuracy, sizeof accuracy, "%s_accuracy", set);
    json_t *lines = read_lines(path);
    assert_true(json_array_size(lines) <= POINTS + 2);
    json_array_foreach(lines, i, line) c.at[c.n++] =
        (point){number_at(line, "samples"), number_at(line, loss), number_at(line, accuracy),
                json_is_true(json_object_get(line, "bracket"))};
    json_decref(lines);
    return c;
}

static void expect_equal(const curve *found, const curve *expected)
{
    for (int i = 0; i < found->n && i < expected->n; i++) {
        const point *a = &found->at[i], *b = &expected->at[i];
        if (a->samples == b->samples && a->loss == b->loss && a->accuracy == b->accuracy &&
            a->is_bracket == b->is_bracket)
            continue;
        fail_msg("point %d: %g samples, %g, %g, bracket %d, not %g, %g, %g, %d", i, a->samples, a->loss,
                 a->accuracy, a->is_bracket, b->samples, b->loss, b->accuracy, b->is_bracket);
    }
    assert_int_equal(found->n, expected->n);
}

/* All points, and what a run with that target has to evaluate of them. `all` begins with the initial weights.
 */
static curve choose(const curve *all, double target)
{
    curve chosen = {.n = 0};
    int first = -1;
    for (int g = GRID_STEP; g + 2 * GRID_STEP <= POINTS && first < 0; g += GRID_STEP)
        if (all->at[g].accuracy >= target && all->at[g + GRID_STEP].accuracy >= target &&
            all->at[g + 2 * GRID_STEP].accuracy >= target)
            first = g;
    for (int i = 0; i <= POINTS; i++) {
        const bool is_grid = i % GRID_STEP == 0, is_bracket = !is_grid && i > first - GRID_STEP && i < first;
        if (!is_grid && !(first > 0 && is_bracket)) continue;
        chosen.at[chosen.n] = all->at[i];
        chosen.at[chosen.n++].is_bracket = is_bracket;
    }
    assert_true(first > GRID_STEP && first < POINTS - 2 * GRID_STEP); /* else nothing is shown */
    assert_int_equal(chosen.n, 1 + POINTS / GRID_STEP + GRID_STEP - 1);
    return chosen;
}

/* With a target of a thousandth nothing is left to choose, but its bracket; all others come from a run
 * without. */
static curve all_points(char params[72])
{
    json_t *r = train(60, JOB);
    curve rest = read_curve(train_out(), "holdout"), all = {.n = 1};
    snprintf(params, 72, "%s", text_at(r, "params_sha256"));
    assert_int_equal((int)number_at(r, "holdout"), HELD);
    json_decref(r);
    assert_int_equal(rest.n, POINTS);
    for (int i = 0; i < rest.n; i++) {
        assert_true(rest.at[i].samples >= (i + 1) * BUDGET / POINTS && !rest.at[i].is_bracket);
        all.at[all.n++] = rest.at[i];
    }
    json_decref(train(60, JOB "--target=0.1"));
    all.at[0] = read_curve(train_out(), "holdout").at[0];
    assert_true(all.at[0].samples == 0);
    return all;
}

static void test_grid_and_bracket(void **state)
{
    (void)state;
    char params[72], flags[1024], out[160];
    const curve all = all_points(params);
    json_decref(train(60, JOB "--eval-first"));
    const curve from_zero = read_curve(train_out(), "holdout");
    expect_equal(&from_zero, &all);
    const double target = floor(1000 * all.at[5 * GRID_STEP].accuracy) / 1000;
    const curve expected = choose(&all, target);
    json_t *r = train(60, JOB "--target=%g", 100 * target);
    const curve found = read_curve(train_out(), "holdout");
    expect_equal(&found, &expected);
    assert_string_equal(text_at(r, "params_sha256"), params); /* evaluation changes nothing */
    assert_true(number_at(r, "target") == target);
    snprintf(flags, sizeof flags, "%s/snapshots", train_out());
    assert_int_equal(access(flags, F_OK), -1);
    json_decref(r);

    snprintf(flags, sizeof flags, "%s--target=%g", JOB, 100 * target);
    half_way(out, flags, 300); /* killed: its copies are in a file */
    snprintf(flags + strlen(flags), sizeof flags - strlen(flags), " --checkpoint-every=640 --resume=auto");
    json_decref(finish_run(out, params, flags));
    const curve resumed = read_curve(out, "holdout");
    expect_equal(&resumed, &expected);
    snprintf(flags, sizeof flags, "%s/snapshots", out);
    assert_int_equal(access(flags, F_OK), -1);
    promise("a grid of %d of %d points and the bracket of the target: as a run that evaluates all says; also "
            "killed and resumed",
            POINTS / GRID_STEP, POINTS);
}

/* ---- what looking costs ---- */

#define LOCALSGD EN_BUILD_DIR "/plugins/localsgd.so:period=8"
#define SMALL                                                                                                \
    "-n 2 --device=ref --data=synthetic --limit-train-samples=480 --limit-test-samples=20 "                  \
    "--max-samples=480 "                                                                                     \
    "--batch-size=4 "

/* Payload of all ranks outside of steps, but for what made whole models of snapshots after training. */
static double beside(const json_t *r)
{
    double sum = -number_at(r, "snapshots.bytes_after");
    for (size_t rank = 0; rank < 2; rank++)
        sum += number_at(json_array_get(json_object_get(r, "roles"), rank), "payload_beside_steps");
    return sum;
}

static size_t points_of(const char *out)
{
    char path[200];
    snprintf(path, sizeof path, "%s/eval.jsonl", out);
    json_t *lines = read_lines(path);
    const size_t n = json_array_size(lines);
    json_decref(lines);
    return n;
}

static void test_no_tensor_moves_for_a_snapshot(void **state)
{
    static const char *const runs[] = {"--strategy=ring --model=mlp",
                                       "--strategy=ps-sync --shards=2 --model=mlp",
                                       "--strategy=ps-sync --transport=tcp --model=mlp",
                                       "--strategy=ssp:bound=2 --model=mlp",
                                       "--strategy=" LOCALSGD " --model=mlp",
                                       "--strategy=grouped:period=4 --groups=2 --model=mlp",
                                       "--strategy=" LOCALSGD " --model=resnet18:width=2 --bn-stats=mean",
                                       "--strategy=ps-sync --model=resnet18:width=2 --bn-stats=mean"};
    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        const char *budget = strstr(runs[i], "resnet18") != NULL ? "--steps=6" : "";
        const size_t points = strstr(runs[i], "resnet18") != NULL ? 3 : 30;
        const bool is_claiming = strstr(runs[i], "ssp") != NULL; /* its ranks are never at the same step */
        json_t *few = train(60, SMALL "%s %s --eval-points=1", runs[i], budget);
        json_t *many = train(60, SMALL "%s %s --eval-points=%zu", runs[i], budget, points);
        if (number_at(few, "payload_bytes") != number_at(many, "payload_bytes") ||
            beside(few) != beside(many))
            fail_msg("%s: %g and %g bytes in steps, %g and %g beside them", runs[i],
                     number_at(few, "payload_bytes"), number_at(many, "payload_bytes"), beside(few),
                     beside(many));
        assert_true(number_at(many, "snapshots.left_out") == 0);
        assert_in_range(points_of(train_out()), is_claiming ? 2 : points, points + is_claiming);
        if (!is_claiming) assert_string_equal(text_at(few, "params_sha256"), text_at(many, "params_sha256"));
        json_decref(many);
        json_decref(few);
    }
    promise("no tensor moves for a snapshot while the clock runs: bytes with 30 points are those with 1");
}

/* Where the wire is slow, looking would be all that a run does. */
static void test_no_time_goes_by_for_a_snapshot(void **state)
{
    double ratio = 1e9;
    (void)state;
    for (int round = 0; round < 3 && ratio > 1.5; round++) {
        double seconds[2];
        for (int i = 0; i < 2; i++) {
            json_t *r =
                train(60, SMALL "--model=mlp --strategy=" LOCALSGD " --net=rate:200mbit --eval-points=%d",
                      i == 0 ? 1 : 48);
            seconds[i] = number_at(r, "train_seconds");
            json_decref(r);
        }
        if (seconds[1] / seconds[0] < ratio) ratio = seconds[1] / seconds[0];
    }
    promise("local SGD over 200 Mbit/s: 48 snapshots take %.2f times the time of one", ratio);
    assert_true(ratio <= 1.5);
}

/* psd's copies are those that ring's ranks make of the same weights. */
static void test_the_curve_of_a_server(void **state)
{
    (void)state;
    json_decref(train(60, SMALL "--model=mlp --strategy=ring --eval-points=30"));
    const curve expected = read_curve(train_out(), "test");
    json_decref(train(60, SMALL "--model=mlp --strategy=ps-sync --shards=2 --eval-points=30"));
    const curve found = read_curve(train_out(), "test");
    expect_equal(&found, &expected);
}

/* Where the model is the mean of all ranks a checkpoint makes points of what they keep: one that goes on has them. */
static void test_the_curve_of_a_mean_resumed(void **state)
{
    static const char *const models[] = {
        "--model=mlp --max-samples=960 --eval-points=40",
        "--model=resnet18:width=2 --bn-stats=mean --max-samples=160 --eval-points=5"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char out[160], flags[1024], hashes[HASHES];
        const int every = i == 0 ? 96 : 64;
        snprintf(flags, sizeof flags,
                 "-n 2 --device=ref --data=synthetic --limit-train-samples=480 --limit-test-samples=20 "
                 "--batch-size=8 "
                 "--strategy=" LOCALSGD " %s",
                 models[i]);
        json_t *calm = train(60, "%s", flags);
        const curve expected = read_curve(train_out(), "test");
        hashes_of(calm, hashes);
        assert_true(number_at(calm, "snapshots.bytes_on_clock") == 0);
        json_decref(calm);
        half_way(out, flags, (uint64_t)every);
        snprintf(flags + strlen(flags), sizeof flags - strlen(flags), " --checkpoint-every=%d --resume=auto",
                 every);
        json_t *resumed = finish_run(out, hashes, flags);
        assert_true(number_at(resumed, "snapshots.bytes_on_clock") > 0); /* at the checkpoints */
        json_decref(resumed);
        const curve found = read_curve(out, "test");
        expect_equal(&found, &expected);
    }
}

/* Of that process; how many were not empty. */
static int empty_snapshots(int pid)
{
    char path[300], target[300];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *folder = opendir(path);
    for (struct dirent *e; folder != NULL && (e = readdir(folder)) != NULL;) {
        struct stat info;
        snprintf(path, sizeof path, "/proc/%d/fd/%s", pid, e->d_name);
        const ssize_t length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = 0;
        if (strstr(target, "entrain-snapshots-") == NULL || stat(path, &info) != 0 || info.st_size == 0)
            continue;
        assert_int_equal(truncate(path, 0), 0);
        n++;
    }
    if (folder != NULL) closedir(folder);
    return n;
}

/* More points than lie in memory, and what is in a rank's file goes: the run ends well, without those points. */
static void test_lost_copies_are_left_out(void **state)
{
    (void)state;
    char out[160], path[64];
    int child, n = 0;
    process p;
    folder_for(out, "lost");
    process_start(&p, "entrain", NULL,
                  "run --quiet --threads=1 --out=%s " SMALL "--model=mlp --strategy=" LOCALSGD
                  " --max-samples=6000 --eval-every=8",
                  out);
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)p.pid, (int)p.pid);
    while (n == 0) {
        FILE *children = fopen(path, "re");
        while (n == 0 && children != NULL && fscanf(children, "%d", &child) == 1)
            n = empty_snapshots(child);
        if (children != NULL) fclose(children);
        if (poll(&(struct pollfd){.fd = p.pidfd, .events = POLLIN}, 1, 1) > 0)
            fail_msg("no snapshots\n%s", process_err(&p));
    }
    if (process_wait(&p, 60) != 0) fail_msg("%s", process_err(&p));
    json_t *r = result_of(out);
    const double left_out = number_at(r, "snapshots.left_out"), taken = number_at(r, "snapshots.taken");
    assert_true(left_out >= 1 && left_out < taken && taken == 750);
    assert_in_range(points_of(out), (int)(taken - left_out), (int)(taken - left_out) + 1);
    json_decref(r);
}

/* A holdout changes what is trained on: no run goes on with another one. */
static void test_another_holdout_is_refused(void **state)
{
    (void)state;
    char out[160];
    process p;
    half_way(out, "-n 2 --strategy=ring " COMMON " --holdout=300", 40);
    process_start(&p, "entrain", NULL,
                  "run --quiet --threads=1 --out=%s -n 2 --strategy=ring " COMMON
                  " --holdout=301 --checkpoint-every=8 --resume=auto",
                  out);
    assert_int_equal(process_wait(&p, 60), 2);
    if (strstr(process_err(&p), "holdout 300") == NULL || strstr(process_err(&p), "has 301") == NULL)
        fail_msg("%s", process_err(&p));
}

/* Two points are never three in a row: the run says so before, and by what it would do. */
static void test_too_few_points_are_told(void **state)
{
    (void)state;
    process p;
    process_start(&p, "entrain", NULL, "run --quiet " JOB "--target=10");
    assert_int_equal(process_wait(&p, 60), 0);
    assert_null(strstr(process_err(&p), "--target"));
    process_start(&p, "entrain", NULL, "run --quiet " JOB "--target=10 --eval-every=1000");
    assert_int_equal(process_wait(&p, 60), 0);
    if (strstr(process_err(&p), "this run has 2: give --eval-every=640 or less") == NULL)
        fail_msg("%s", process_err(&p));
}

/* ---- the clock ---- */

/* When this rank's own clock began, in seconds on rank 0's: they leave their meeting one after the other, and have one zero
 * all the same. */
static double zero_of(const json_t *r, int rank)
{
    const json_t *role = json_array_get(json_object_get(r, "roles"), (size_t)rank);
    assert_int_equal((int)number_at(role, "rank"), rank);
    assert_true(number_at(role, "clock_begin_ns") == number_at(r, "clock.begin_ns"));
    return 1e-9 * (number_at(role, "clock_begin_ns") - number_at(r, "clock.begin_ns"));
}

/* What the run takes is what lies between begin and end, less the spans that are recorded. */
static void expect_clock(const json_t *r)
{
    double seconds = 1e-9 * (number_at(r, "clock.end_ns") - number_at(r, "clock.begin_ns"));
    const json_t *paused = json_object_get(json_object_get(r, "clock"), "paused"), *span;
    size_t i;
    assert_true(json_is_array(paused));
    json_array_foreach(paused, i, span) seconds -=
        json_number_value(json_array_get(span, 1)) - json_number_value(json_array_get(span, 0));
    assert_true(fabs(seconds - number_at(r, "train_seconds")) < 2e-6);
}

/* Every step of a rank is before the end, none lies in or across a span that the clock leaves out, and all of
 * them together are no longer than the rank had. How many there are. */
static int expect_on_clock(const json_t *r, int rank)
{
    const double seconds = number_at(r, "train_seconds"), zero = zero_of(r, rank),
                 slack = 2e-6; /* of six digits */
    const json_t *paused = json_object_get(json_object_get(r, "clock"), "paused"), *span;
    double sum = 0, previous = zero;
    char path[200];
    size_t i, k;
    json_t *line;
    snprintf(path, sizeof path, "%s/metrics-%d.jsonl", train_out(), rank);
    json_t *lines = read_lines(path);
    json_array_foreach(lines, i, line)
    {
        const double to = number_at(line, "t") + zero, took = 1e-9 * number_at(line, "step_ns");
        if (to > seconds + slack || to - took < previous - slack)
            fail_msg("rank %d has a step from %.6f to %.6f s, behind one until %.6f, of a run of %.6f s",
                     rank, to - took, to, previous, seconds);
        json_array_foreach(paused, k,
                           span) if (to > json_number_value(json_array_get(span, 0)) + slack &&
                                     to - took < json_number_value(json_array_get(span, 1)) - slack)
            fail_msg("rank %d has a step at %.6f s, while the clock stood still", rank, to);
        sum += took;
        previous = to;
    }
    if (sum > seconds - zero + slack)
        fail_msg("rank %d: %.6f s of steps in a run of %.6f s", rank, sum, seconds);
    const int n = (int)json_array_size(lines);
    json_decref(lines);
    return n;
}

/* Nobody waits for rank 0 while it copies; so the clock must not either. */
static void test_the_clock_goes_on(void **state)
{
    static const struct {
        const char *flags;
        size_t least, most;
    } runs[] = {{"--eval-points=10 --assign=fixed", 10, 10},
                {"--eval-points=200 --assign=fixed", 200, 200},
                {"--eval-points=200 --checkpoint-every=2000", 4, 200}}; /* where rank 0 had a step */
    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char path[200];
        json_t *r = train(60,
                          "-n 2 --strategy=ps-async --model=mlp --data=synthetic --limit-train-samples=8000 "
                          "--limit-test-samples=50 --epochs=2 --batch-size=16 %s",
                          runs[i].flags);
        expect_clock(r);
        const int steps = expect_on_clock(r, 0) + expect_on_clock(r, 1);
        assert_int_equal(steps, 1000);
        snprintf(path, sizeof path, "%s/eval.jsonl", train_out());
        json_t *points = read_lines(path);
        assert_in_range(json_array_size(points), runs[i].least, runs[i].most);
        promise("ps-async, %s: %d steps, %zu points, all within the %.3f s of the clock", runs[i].flags,
                steps, json_array_size(points), number_at(r, "train_seconds"));
        json_decref(points);
        json_decref(r);
    }
}

static void expect_time_to_rise(const char *out, const char *name)
{
    char path[200];
    double t = 0;
    size_t i;
    json_t *line;
    snprintf(path, sizeof path, "%s/%s", out, name);
    json_t *lines = read_lines(path);
    json_array_foreach(lines, i, line)
    {
        if (number_at(line, "t") < t)
            fail_msg("%s: %g samples at %.6f s, behind %.6f s", name, number_at(line, "samples"),
                     number_at(line, "t"), t);
        t = number_at(line, "t");
    }
    assert_true(json_array_size(lines) > 4);
    json_decref(lines);
}

/* Rank 0 claims, and is slow: what it does after a checkpoint was claimed before much that is in it. */
static void test_claimed_steps_behind_a_checkpoint_go(void **state)
{
    static const char flags[] =
        "-n 2 --strategy=ps-async --device=ref --model=mlp --data=synthetic "
        "--limit-test-samples=100 --batch-size=8 --limit-train-samples=1600 --eval-points=48 "
        "--straggler=0:10 --checkpoint-every=700 --resume=auto ";
    (void)state;
    char out[160];
    process p;
    folder_for(out, "claimed");
    for (int epochs = 1; epochs <= 2; epochs++) {
        process_start(&p, "entrain", NULL, "run --quiet --threads=1 --out=%s --epochs=%d %s", out, epochs,
                      flags);
        if (process_wait(&p, 60) != 0) fail_msg("%s", process_err(&p));
    }
    expect_time_to_rise(out, "eval.jsonl");
    expect_time_to_rise(out, "metrics-0.jsonl");
}

/* Samples of all ranks in steps that ended by `t` on the clock. */
static double computed_by(double t)
{
    double sum = 0;
    for (int rank = 0; rank < 2; rank++) {
        char path[200];
        size_t i;
        json_t *line;
        snprintf(path, sizeof path, "%s/metrics-%d.jsonl", train_out(), rank);
        json_t *lines = read_lines(path);
        json_array_foreach(lines, i, line) if (number_at(line, "t") <= t) sum += number_at(line, "nsamples");
        json_decref(lines);
    }
    return sum;
}

/* While a slow rank 0 computes one batch, rank 1 pushes ten. A step that has not ended by then may have been
 * pushed, and one that has ended on rank 1 since may not be in the store: two batches a rank either way. */
static void test_samples_of_a_claimed_point(void **state)
{
    enum { BATCH = 8 };
    char path[200];
    size_t i;
    json_t *line;
    double worst = 0;
    (void)state;
    json_t *r =
        train(60,
              "-n 2 --strategy=ps-async --device=ref --model=mlp --data=synthetic --limit-test-samples=100 "
              "--batch-size=%d --limit-train-samples=1600 --eval-every=160 --straggler=0:10",
              BATCH);
    json_decref(r);
    snprintf(path, sizeof path, "%s/eval.jsonl", train_out());
    json_t *lines = read_lines(path);
    assert_true(json_array_size(lines) >= 5);
    json_array_foreach(lines, i, line)
    {
        const double off = fabs(number_at(line, "samples") - computed_by(number_at(line, "t")));
        if (off > worst) worst = off;
    }
    json_decref(lines);
    promise("ps-async, rank 0 ten times slower: a point's samples are within %g of what had been computed",
            worst);
    assert_true(worst <= 4 * BATCH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_tensor_moves_for_a_snapshot),
                                       cmocka_unit_test(test_no_time_goes_by_for_a_snapshot),
                                       cmocka_unit_test(test_the_curve_of_a_server),
                                       cmocka_unit_test(test_the_curve_of_a_mean_resumed),
                                       cmocka_unit_test(test_lost_copies_are_left_out),
                                       cmocka_unit_test(test_samples_of_a_claimed_point),
                                       cmocka_unit_test(test_grid_and_bracket),
                                       cmocka_unit_test(test_another_holdout_is_refused),
                                       cmocka_unit_test(test_too_few_points_are_told),
                                       cmocka_unit_test(test_claimed_steps_behind_a_checkpoint_go),
                                       cmocka_unit_test(test_the_clock_goes_on)};
    return system_main(tests);
}
