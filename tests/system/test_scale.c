/* test_scale.c - `entrain check -v`, `advise` and `scale`, small: they measure, run, print their figures, and leave nothing
 * behind. No figure is judged, since other processes use the machine too. */
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/system/run.h"

#define LOUD "--device=ref --model=mlp " MADE_UP " --batch-size=4 --threads=1"
#define JOB  LOUD " --quiet"

static void expect_all(const char *text, const char *const *words)
{
    for (; *words != NULL; words++)
        if (strstr(text, *words) == NULL) fail_msg("no \"%s\" in:\n%s", *words, text);
}

static void test_check(void **state)
{
    static const char *const words[] = {"copy ",   "push-pull ", "GB/s",     "direct shm", "ring tcp",
                                        "  4 KB ", " 64 MB ",    "direct\n", NULL};
    process p;
    (void)state;
    process_start(&p, "entrain", NULL, "check -v --net=rate:200mbit,delay:2ms");
    if (process_wait(&p, 120) != 0) fail_msg("%s", process_err(&p));
    expect_all(process_out(&p), words);
    /* bytes are those of the algorithm, and no network is faster than its rate and delay; 1 MB takes this one 41.94 ms */
    const char *at = strstr(process_out(&p), "p(p-1)V/beta+d\n");
    assert_non_null(at);
    at = strchr(at, '\n');
    for (int ranks = 2; ranks <= 8; ranks *= 2) {
        double n, f[7];
        int used = 0;
        const double ring = 2.0 * (ranks - 1) / ranks, naive = ranks - 1, v = 41.943, d = 2;
        assert_int_equal(sscanf(at, "%lf %lf %lf %lf %lf %lf %lf %lf%n", &n, f, f + 1, f + 2, f + 3, f + 4,
                                f + 5, f + 6, &used),
                         8);
        const double expected[] = {
            ring, 0, ring * v + 2 * naive * d, naive, 0, naive * v + d, ranks * naive * v + d};
        for (int i = 0; i < 7; i++)
            assert_true(expected[i] == 0 || fabs(f[i] / expected[i] - 1) < 0.01);
        assert_true(n == ranks && f[1] > 0.95 * f[2] && f[4] > 0.95 * f[5]);
        at += used;
    }
    process_nobody_left(5);
}

static void test_advise(void **state)
{
    static const char *const words[] = {"compute ",  "16 workers", "ps-sync, 2 servers",
                                        "predicted", " %",         NULL};
    process p;
    (void)state;
    process_start(&p, "entrain", NULL,
                  "advise -n 16 --net=rate:1gbit,delay:50us --servers=2 --steps=4 --repeats=1 " JOB);
    if (process_wait(&p, 120) != 0) fail_msg("%s", process_err(&p));
    expect_all(process_out(&p), words);
    const char *conclusion = strstr(process_out(&p), "Best");
    if (conclusion == NULL) /* others have used the machine meanwhile */
        assert_non_null(strstr(process_out(&p), "conclusion"));
    else
        assert_non_null(strstr(conclusion, "Crossover"));
    process_start(&p, "entrain", NULL, "advise -n 3 --no-validate --transport=tcp " JOB);
    if (process_wait(&p, 120) != 0) fail_msg("%s", process_err(&p));
    assert_non_null(strstr(process_out(&p), "over TCP"));
    assert_null(strstr(process_out(&p), "predicted"));
    process_nobody_left(5);
}

/* ---- a busy machine ---- */

enum { BURNERS_MAX = 64 };

/* Starts a process that computes for each core, none of them the command's. */
static int burn(pid_t pid_out[BURNERS_MAX])
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int n = 0;
    for (; n < cores && n < BURNERS_MAX; n++) {
        pid_out[n] = fork();
        assert_true(pid_out[n] >= 0);
        if (pid_out[n] > 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (volatile int i = 0;; i = i + 1) {
        }
    }
    return n;
}

/* The same figures and progress, one sentence in place of the conclusion, and no failure. */
static void test_busy(void **state)
{
    static const char busy[] = "conclusion";
    pid_t pid[BURNERS_MAX];
    process p, piped;
    (void)state;
    const int n = burn(pid);
    process_start(&p, "entrain", NULL, "advise -n 2 --steps=4 --repeats=1 " LOUD);
    const int advised = process_wait(&p, 240);
    char *figures = strdup(process_out(&p)), *lines = strdup(process_err(&p));
    process_start(&p, "entrain", NULL, "scale -n 1,2 --repeats=2 --steps=100 " LOUD);
    const int scaled = process_wait(&p, 240);
    process_start(&piped, "entrain", NULL,
                  "run -n 1 --strategy=solo --parallel=pipeline --stages=2 --device=ref --model=mlp " MADE_UP
                  " --batch-size=32 --steps=100");
    const int ran = process_wait(&piped, 240);
    for (int i = 0; i < n; i++) {
        kill(pid[i], SIGKILL);
        waitpid(pid[i], NULL, 0);
    }
    if (advised != 0) fail_msg("%s", lines);
    if (scaled != 0) fail_msg("%s", process_err(&p));
    expect_all(figures, (const char *const[]){"2 workers", "predicted", busy, NULL});
    assert_null(strstr(figures, "Best"));
    assert_null(strstr(figures, "Crossover"));
    assert_null(strstr(figures, "> ")); /* and none is marked */
    if (ran != 0) fail_msg("%s", process_err(&piped));
    expect_all(process_out(&piped), (const char *const[]){"bubble", " % of the cores", NULL});
    expect_all(lines, (const char *const[]){" 7/7", "ps-sync, 4 workers", " 1/1", NULL});
    expect_all(process_out(&p), (const char *const[]){"speed-up", busy, NULL});
    expect_all(process_err(&p), (const char *const[]){"strong", "weak", "ring, 2 workers", " 2/2", NULL});
    free(figures);
    free(lines);
    process_nobody_left(5);
}

static void test_scale(void **state)
{
    char path[256];
    process p;
    (void)state;
    process_start(&p, "entrain", NULL,
                  "scale -n 1,2,2,1 --global-batch-size=8 --strategy=ring,ps-sync,ring --repeats=2 --steps=5 "
                  "--out=%s/scale " JOB,
                  system_folder());
    if (process_wait(&p, 120) != 0) fail_msg("%s", process_err(&p));
    static const char *const words[] = {"Strong", "Weak", "speed-up", "efficiency", "scale.csv", NULL};
    expect_all(process_out(&p), words);
    snprintf(path, sizeof path, "%s/scale/scale.json", system_folder());
    json_t *json = json_load_file(path, 0, NULL), *row;
    size_t i;
    double widest = 0;
    assert_int_equal(json_array_size(json_object_get(json, "rows")), 8); /* a repeated name is run once */
    assert_true(json_is_boolean(json_object_get(json, "is_conclusive")));
    json_array_foreach(json_object_get(json, "rows"), i, row)
    {
        const int is_strong = strcmp(text_at(row, "scaling"), "strong") == 0;
        const double workers = number_at(row, "workers"), batch = number_at(row, "batch_size");
        assert_true(is_strong ? workers * batch == 8 : batch == 4);
        assert_true(number_at(row, "samples_per_s") > 0);
        const json_t *each = json_object_get(row, "each");
        assert_int_equal(json_array_size(each), 2);
        const double a = json_number_value(json_array_get(each, 0)),
                     b = json_number_value(json_array_get(each, 1));
        const double spread = fabs(a - b) / ((a + b) / 2);
        if (spread > widest) widest = spread;
        if (workers == 1) assert_true(number_at(row, "speedup") == 1 && number_at(row, "efficiency") == 1);
        assert_true(fabs(number_at(row, "speedup") / workers - number_at(row, "efficiency")) < 1e-9);
    }
    const bool is_conclusive = json_is_true(json_object_get(json, "is_conclusive"));
    assert_true(widest <= 0.2 || !is_conclusive); /* whatever else the machine did */
    assert_true((strstr(process_out(&p), "conclusion") == NULL) == is_conclusive);
    json_decref(json);
    /* the strong rows are the same training: ring with 2 x 4 samples is ring with 1 x 8 */
    snprintf(path, sizeof path, "%s/scale/strong-ring-n2-0/result.json", system_folder());
    json = json_load_file(path, 0, NULL);
    assert_true(number_at(json, "global_batch_size") == 8);
    json_decref(json);
    snprintf(path, sizeof path, "%s/scale/scale.csv", system_folder());
    FILE *csv = fopen(path, "r");
    assert_non_null(csv);
    int lines = 0;
    for (int c; (c = fgetc(csv)) != EOF;)
        lines += c == '\n';
    fclose(csv);
    assert_int_equal(lines, 9);
    process_nobody_left(5);
}

/* One run has no spread: it does not show how far runs differ. */
static void test_one_run_of_each(void **state)
{
    char path[256];
    process p;
    (void)state;
    process_start(&p, "entrain", NULL, "scale -n 1 --repeats=1 --steps=5 --out=%s/once " JOB,
                  system_folder());
    if (process_wait(&p, 120) != 0) fail_msg("%s", process_err(&p));
    assert_null(strstr(process_out(&p), "+0.0"));
    expect_all(process_out(&p), (const char *const[]){"spread", "conclusion", "--repeats=3", NULL});
    snprintf(path, sizeof path, "%s/once/scale.json", system_folder());
    json_t *json = json_load_file(path, 0, NULL);
    assert_true(json_is_false(json_object_get(json, "is_conclusive")));
    json_decref(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_check), cmocka_unit_test(test_advise),
                                       cmocka_unit_test(test_scale), cmocka_unit_test(test_busy),
                                       cmocka_unit_test(test_one_run_of_each)};
    return system_main(tests);
}
