/* test_scale.c - `entrain check -v`, `advise` and `scale`, small: they measure, run, print what they promise,
 * and leave nothing behind. That a figure is good is not tested: others use the machine too. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/system/run.h"

#define JOB "--device=ref --model=mlp " MADE_UP " --batch-size=4 --threads=1 --quiet"

static void expect_all(const char *text, const char *const *words)
{
    for (; *words != NULL; words++)
        if (strstr(text, *words) == NULL) fail_msg("no \"%s\" in:\n%s", *words, text);
}

static void test_check(void **state)
{
    static const char *const words[] = {
        "copy ",      "shared memory ", "TCP, loopback ", "push-pull ", "direct shm", "ring tcp",
        "auto picks", "  4 KB ",        " 64 MB ",        "direct\n",   NULL};
    process p;
    (void)state;
    process_start(&p, "entrain", NULL, "check -v");
    if (process_wait(&p, 120) != 0) fail_msg("%s", process_err(&p));
    expect_all(process_out(&p), words);
    process_nobody_left(5);
}

static void test_advise(void **state)
{
    static const char *const words[] = {
        "compute ", "Predicted for 16 workers",   "> ",           "ps-sync, 2 servers",
        "Best: ",   "Crossover with 2 servers: ", "predicted ms", "The largest error is ",
        NULL};
    process p;
    (void)state;
    process_start(&p, "entrain", NULL,
                  "advise -n 16 --net=rate:1gbit,delay:50us --servers=2 --steps=4 --repeats=1 " JOB);
    if (process_wait(&p, 120) != 0) fail_msg("%s", process_err(&p));
    expect_all(process_out(&p), words);
    process_start(&p, "entrain", NULL, "advise -n 3 --no-validate --transport=tcp " JOB);
    if (process_wait(&p, 120) != 0) fail_msg("%s", process_err(&p));
    assert_non_null(strstr(process_out(&p), "share this host, over TCP:"));
    assert_null(strstr(process_out(&p), "predicted ms"));
    process_nobody_left(5);
}

static void test_scale(void **state)
{
    char path[256];
    process p;
    (void)state;
    process_start(&p, "entrain", NULL,
                  "scale -n 1,2 --global-batch-size=8 --strategy=ring,ps-sync --repeats=2 --steps=5 "
                  "--out=%s/scale " JOB,
                  system_folder());
    if (process_wait(&p, 120) != 0) fail_msg("%s", process_err(&p));
    static const char *const words[] = {"Strong scaling", "Weak scaling", "speed-up",
                                        "efficiency",     "scale.csv",    NULL};
    expect_all(process_out(&p), words);
    snprintf(path, sizeof path, "%s/scale/scale.json", system_folder());
    json_t *json = json_load_file(path, 0, NULL), *row;
    size_t i;
    assert_int_equal(json_array_size(json_object_get(json, "rows")), 8);
    json_array_foreach(json_object_get(json, "rows"), i, row)
    {
        const int is_strong = strcmp(text_at(row, "scaling"), "strong") == 0;
        const double workers = number_at(row, "workers"), batch = number_at(row, "batch_size");
        assert_true(is_strong ? workers * batch == 8 : batch == 4);
        assert_true(number_at(row, "samples_per_s") > 0);
        assert_int_equal(json_array_size(json_object_get(row, "each")), 2);
        if (workers == 1) assert_true(number_at(row, "speedup") == 1 && number_at(row, "efficiency") == 1);
        assert_true(fabs(number_at(row, "speedup") / workers - number_at(row, "efficiency")) < 1e-9);
    }
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_check), cmocka_unit_test(test_advise),
                                       cmocka_unit_test(test_scale)};
    return system_main(tests);
}
