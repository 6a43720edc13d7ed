/* test_clock.c - the zero of a run's clock, and ranks that are slow by the factor of their flag. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/system/run.h"

/* Promise: No sample is off the clock, all ranks begin within milliseconds, and the warm-up changes no
 * byte.
 * Promise: A slow rank is as slow as asked in every strategy, and its steps are alike. */

/* Figures of single milliseconds: other work makes them worse, never better, so the best of some rounds
 * counts. */
enum { ROUNDS = 10, MAX_STEPS = 4096 };

/* A step of some milliseconds, with pieces that are longer than a sleep is exact. */
static const char *job(void)
{
    return has_device("cpu") ? "--device=cpu --model=mlp --data=synthetic --limit-train-samples=25600 "
                               "--limit-test-samples=8 --batch-size=64"
                             : "--device=ref --model=mlp --data=synthetic --limit-train-samples=25600 "
                               "--limit-test-samples=8 --batch-size=4";
}

static const json_t *role_of(const json_t *result, int rank)
{
    size_t i;
    json_t *role;
    json_array_foreach(json_object_get(result, "roles"), i, role)
    {
        const json_t *number = json_object_get(role, "rank");
        if (number != NULL && json_integer_value(number) == rank) return role;
    }
    fail_msg("no report of rank %d", rank);
    return NULL;
}

static json_t *metrics_of(int rank)
{
    char path[160];
    snprintf(path, sizeof path, "%s/metrics-%d.jsonl", train_out(), rank);
    return read_lines(path);
}

/* ---- time zero ----------------------------------------------------------------------------------------- */

typedef struct zero {
    double late_ms;  /* the rank whose first step began last after its own zero */
    double apart_ms; /* of the ranks' zeros */
} zero;

/* Asserts the facts that hold on any machine, and returns the figures of milliseconds. */
static zero look_at_zero(const json_t *r, int nranks)
{
    zero z = {0};
    double counted = 0;
    const double begin = number_at(r, "clock.begin_ns"), end = number_at(r, "clock.end_ns");
    assert_true(number_at(r, "warmup_samples") == 0);
    assert_true(begin > 0 && fabs(end - begin - 1e9 * number_at(r, "train_seconds")) < 1e3);
    assert_true(json_is_array(json_object_get(json_object_get(r, "clock"), "paused")));
    for (int rank = 0; rank < nranks; rank++) {
        const json_t *role = role_of(r, rank);
        json_t *lines = metrics_of(rank);
        size_t i;
        json_t *line;
        assert_true(json_array_size(lines) > 0);
        assert_true(number_at(role, "steps") ==
                    (double)json_array_size(lines)); /* all of them are on the clock */
        json_array_foreach(lines, i, line) counted += number_at(line, "nsamples");
        const json_t *first = json_array_get(lines, 0);
        const double late = 1e3 * number_at(first, "t") - 1e-6 * number_at(first, "step_ns");
        const double apart = 1e-6 * fabs(number_at(role, "clock_begin_ns") - begin);
        assert_true(late > -0.01); /* t has six digits */
        assert_true(apart == 0 && number_at(json_array_get(lines, json_array_size(lines) - 1), "t") <=
                                      number_at(r, "train_seconds") + 1e-6);
        z.late_ms = fmax(z.late_ms, late);
        z.apart_ms = fmax(z.apart_ms, apart);
        json_decref(lines);
    }
    assert_true(counted == number_at(r, "samples_computed"));
    return z;
}

/* A case that once made a comparison wrong: the steps of rank 0 decided when the clock begins. */
static void test_all_begin_together(void **state)
{
    static const char *const strategies[] = {"ring", "ps-sync", "ps-async", "ssp:bound=2", "hierarchical"};
    (void)state;
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        zero best = {1e9, 1e9};
        for (int round = 0; round < ROUNDS && (best.late_ms > 5 || best.apart_ms > 5); round++) {
            json_t *r =
                train(60, "-n 2 --strategy=%s --straggler=0:10 --max-samples=6400 %s", strategies[i], job());
            const zero z = look_at_zero(r, 2);
            best.late_ms = fmin(best.late_ms, z.late_ms);
            best.apart_ms = fmin(best.apart_ms, z.apart_ms);
            json_decref(r);
        }
        assert_true(best.late_ms <= 5 && best.apart_ms <= 5);
        promise("%s, rank 0 ten times slower: no sample is off the clock, the ranks' zeros are %.2f ms "
                "apart, first "
                "steps begin within %.2f ms",
                strategies[i], best.apart_ms, best.late_ms);
    }
}

static void test_alone(void **state)
{
    (void)state;
    json_t *r = train(60, "-n 1 --strategy=solo --accumulate=3 --max-samples=2000 %s", job());
    look_at_zero(r, 1);
    json_decref(r);
}

/* The clock continues from the checkpoint's time, though the run warms up again. */
static void test_resumed(void **state)
{
    (void)state;
    char folder[128];
    snprintf(folder, sizeof folder, "%s/checkpoints", system_folder());
    json_t *first =
        train(60, "-n 2 --strategy=ring --max-samples=3200 --checkpoint-every=1600 --checkpoint-dir=%s %s",
              folder, job());
    json_t *second = train(60, "-n 2 --strategy=ring --max-samples=6400 --resume=auto --checkpoint-dir=%s %s",
                           folder, job());
    json_t *lines = metrics_of(0);
    const json_t *line = json_array_get(lines, 0);
    const double before = number_at(second, "train_seconds") -
                          1e-9 * (number_at(second, "clock.end_ns") - number_at(second, "clock.begin_ns"));
    assert_true(before > 0 && before < number_at(first, "train_seconds"));
    assert_true(number_at(line, "t") - 1e-9 * number_at(line, "step_ns") > before - 1e-5);
    assert_true(number_at(second, "warmup_samples") == 0);
    json_decref(lines);
    json_decref(second);
    json_decref(first);
}

/* Recorded before there was a warm-up. `ref` has the same bits on every machine. */
static void test_same_bytes(void **state)
{
    static const struct {
        const char *flags, *hash;
    } runs[] = {
        {"-n 2 --strategy=ring", "bc82c9e0bd978f7c2f5eecf0d8b338a799c24392a464b2dfaa5781faf632119e"},
        {"-n 2 --strategy=ps-sync", "bc82c9e0bd978f7c2f5eecf0d8b338a799c24392a464b2dfaa5781faf632119e"},
        {"-n 1 --strategy=solo --accumulate=3",
         "6045faa3502b4136afe475d88b53dd16bfd1efc7b0ed81130e8ffb5fe5cefcad"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        assert_string_equal(train_hash(60,
                                       "%s --device=ref --model=mlp " MADE_UP
                                       " --batch-size=4 --steps=60 --lr=0.02 --momentum=0.9",
                                       runs[i].flags),
                            runs[i].hash);
}

/* ---- slow ranks ---------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The time that rank 0 alone computes in a step: the mean, or the median, which interrupted steps do not
 * move. */
static double compute_ms(const char *flags, int is_mean)
{
    static double ms[MAX_STEPS];
    double sum = 0;
    size_t i, n = 0;
    json_t *line;
    json_decref(train(60, "-n 1 --strategy=solo --max-samples=%d %s %s", has_device("cpu") ? 25600 : 800,
                      job(), flags));
    json_t *lines = metrics_of(0);
    json_array_foreach(lines, i, line) if (n < MAX_STEPS) ms[n++] = 1e-6 * number_at(line, "compute_ns");
    json_decref(lines);
    for (i = 0; i < n; i++)
        sum += ms[i];
    qsort(ms, n, sizeof *ms, compare);
    return is_mean ? sum / (double)n : ms[n / 2];
}

/* Measured from outside, by that rank's own steps, not by its figures. Without the flag a step takes longer
 * where others have the core, so its median counts; with it the steps that follow make up for a long one, so
 * the mean counts. The least of some rounds counts for both; where others had the machine in each round, it
 * cannot be judged. */
static void test_slow_by_the_factor(void **state)
{
    double plain = 1e9, slow = 1e9, least_others = 1;
    (void)state;
    for (int i = 0; i < ROUNDS && (i == 0 || fabs(slow / plain / 3 - 1) > 0.05); i++) {
        stopwatch watch = stopwatch_start();
        plain = fmin(plain, compute_ms("", 0));
        slow = fmin(slow, compute_ms("--straggler=0:3", 1));
        const double took = stopwatch_read(&watch);
        least_others = fmin(least_others, watch.others / took);
    }
    const int is_right = fabs(slow / plain / 3 - 1) <= 0.05;
    if (!is_right && least_others < 0.05)
        fail_msg("--straggler=0:3 is %.2f times as slow: %.3f ms a step instead of %.3f", slow / plain, slow,
                 plain);
    promise("--straggler=0:3 computes %.3f ms a step alone instead of %.3f: %.2f times%s", slow, plain,
            slow / plain, is_right ? " (5 %)" : "; others had the machine");
}

/* The measured factor closest to the flag's, of some rounds. */
static double measured(const char *flags, int rank, double asked)
{
    double best = 0;
    for (int i = 0; i < ROUNDS && fabs(best / asked - 1) > 0.025; i++) {
        json_t *r = train(60, "%s --straggler=%d:%g --max-samples=%d %s", flags, rank, asked,
                          has_device("cpu") ? 12800 : 800, job());
        const json_t *list = json_object_get(r, "stragglers"), *slow = json_array_get(list, 0),
                     *role = role_of(r, rank);
        assert_int_equal(json_array_size(list), 1);
        assert_true(number_at(slow, "rank") == rank && number_at(slow, "factor") == asked);
        assert_true(number_at(slow, "pieces") >= 2 * number_at(role, "steps"));
        assert_true(number_at(slow, "late") <= number_at(slow, "pieces"));
        const double factor = number_at(slow, "factor_measured"),
                     slept = number_at(role, "straggler_slept_ns");
        assert_true(factor == number_at(role, "straggler_factor"));
        assert_true(slept > 0 && slept < number_at(role, "compute_ns"));
        if (fabs(factor / asked - 1) < fabs(best / asked - 1)) best = factor;
        json_decref(r);
    }
    return best;
}

static void test_as_slow_in_every_strategy(void **state)
{
    static const struct {
        const char *flags;
        int rank;
    } arms[] = {{"-n 2 --strategy=ring", 1},
                {"-n 2 --strategy=ps-async", 1},
                {"-n 2 --strategy=ring --allreduce=ring", 1},
                {"-n 2 --strategy=ps-sync --no-overlap", 1},
                {"-n 2 --strategy=hierarchical", 1},
                {"-n 2 --strategy=ring --bucket-cap-mb=0.1", 0},
                {"-n 1 --strategy=solo --accumulate=2", 0}};
    char list[400] = "";
    double least = 1e9, most = 0;
    (void)state;
    for (size_t i = 0; i < sizeof arms / sizeof *arms; i++) {
        const double factor = measured(arms[i].flags, arms[i].rank, 3);
        least = fmin(least, factor);
        most = fmax(most, factor);
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%.3f (%s)", i > 0 ? ", " : "", factor,
                 strstr(arms[i].flags, "strategy=") + strlen("strategy="));
    }
    if (most / least - 1 > 0.05 || fabs(least / 3 - 1) > 0.05) fail_msg("1:3 came out as %s", list);
    promise("--straggler=1:3 came out as %s", list);
}

/* Measured step by step, from outside. The least of some rounds counts, as others make single steps longer;
 * where they had the machine in each round, it cannot be judged. */
static void test_steps_are_alike(void **state)
{
    double p95 = 1e9, p99 = 1e9, least_others = 1;
    (void)state;
    for (int round = 0; round < 4 && (p95 > 1.15 || p99 > 1.25); round++) {
        static double ms[MAX_STEPS];
        size_t i, n = 0;
        json_t *line;
        stopwatch watch = stopwatch_start();
        json_decref(train(60, "-n 1 --strategy=solo --straggler=0:3 --steps=160 %s --batch-size=%d", job(),
                          has_device("cpu") ? 512 : 8));
        const double took = stopwatch_read(&watch);
        json_t *lines = metrics_of(0);
        json_array_foreach(lines, i, line) if (n < MAX_STEPS) ms[n++] = 1e-6 * number_at(line, "compute_ns");
        json_decref(lines);
        qsort(ms, n, sizeof *ms, compare);
        p95 = fmin(p95, ms[n * 95 / 100] / ms[n / 2]);
        p99 = fmin(p99, ms[n * 99 / 100] / ms[n / 2]);
        least_others = fmin(least_others, watch.others / took);
    }
    const int is_right = p95 <= 1.15 && p99 <= 1.25;
    promise("--straggler=0:3: p95 of what a step computes is %.2f times the median, p99 %.2f times%s", p95,
            p99, is_right ? "" : "; others had the machine");
    assert_true(is_right || least_others >= 0.05);
}

/* Sleeps have spans of their own: all of them, and no span of computation holds a part of one. */
static void test_sleeps_are_traced(void **state)
{
    (void)state;
    json_t *r = train(60, "-n 1 --strategy=solo --straggler=0:3 --max-samples=%d --trace=%s/trace.json %s",
                      has_device("cpu") ? 6400 : 400, system_folder(), job());
    char path[160];
    snprintf(path, sizeof path, "%s/trace.json", system_folder());
    json_t *trace = json_load_file(path, 0, NULL), *span;
    double slept = 0, computed = 0;
    size_t i;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, span)
    {
        const char *name = text_at(span, "name");
        if (strcmp(name, "sleep") == 0) slept += 1e3 * number_at(span, "dur");
        if (strcmp(name, "forward") == 0 || strcmp(name, "backward") == 0)
            computed += 1e3 * number_at(span, "dur");
    }
    const double all = number_at(role_of(r, 0), "compute_ns"),
                 said = number_at(role_of(r, 0), "straggler_slept_ns");
    assert_true(said > 0.3 * all && slept >= said && slept < 1.02 * said);
    assert_true(fabs(computed + slept - all) < 0.02 * all);
    json_decref(trace);
    json_decref(r);
}

static void test_nobody_is_slow(void **state)
{
    (void)state;
    json_t *r = train(60, "-n 2 --strategy=ring --straggler=1:1 --max-samples=1280 %s", job());
    assert_int_equal(json_array_size(json_object_get(r, "stragglers")), 0);
    for (int rank = 0; rank < 2; rank++) {
        assert_true(number_at(role_of(r, rank), "straggler_slept_ns") == 0);
        assert_true(number_at(role_of(r, rank), "straggler_pieces") == 0);
        assert_null(json_object_get(role_of(r, rank), "straggler_factor"));
    }
    json_decref(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_begin_together),
                                       cmocka_unit_test(test_alone),
                                       cmocka_unit_test(test_resumed),
                                       cmocka_unit_test(test_same_bytes),
                                       cmocka_unit_test(test_slow_by_the_factor),
                                       cmocka_unit_test(test_as_slow_in_every_strategy),
                                       cmocka_unit_test(test_steps_are_alike),
                                       cmocka_unit_test(test_sleeps_are_traced),
                                       cmocka_unit_test(test_nobody_is_slow)};
    return system_main(tests);
}
