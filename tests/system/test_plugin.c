/* test_plugin.c - the example strategy, built as its README says, with one cc line and nothing of ours
 * linked, runs like the built-in ones; and what is said of strategies that judge weights of nobody. */
#include <stdio.h>
#include <string.h>

#include "tests/system/run.h"

/* Promise: The example strategy, built as its README says, runs like a built-in one. */

#define JOB "--device=ref --model=mlp " MADE_UP " --steps=40 --batch-size=4"

static void build(const char *plugin)
{
    process cc;
    process_start(&cc, "cc", NULL,
                  "-shared -fPIC -I" EN_SOURCE_DIR "/include " EN_SOURCE_DIR "/examples/localsgd.c -o %s",
                  plugin);
    int code = process_wait(&cc, 60);
    if (code == 127) system_skip("no program cc to build a plugin with");
    if (code != 0) fail_msg("cc ended with %d:\n%s", code, process_err(&cc));
    assert_string_equal(process_err(&cc), "");
}

static void test_localsgd(void **state)
{
    char plugin[128];
    (void)state;
    snprintf(plugin, sizeof plugin, "%s/localsgd.so", system_folder());
    build(plugin);
    json_t *r = train(60, "-n 2 --strategy=%s:period=8 " JOB, plugin);
    assert_string_equal(text_at(r, "strategy"), "localsgd");
    assert_non_null(strstr(text_at(r, "strategy_options"), "period=8"));
    double payload = number_at(r, "payload_bytes"), theory = number_at(r, "theory_bytes");
    assert_true(payload > 0);
    /* Averaged every 8 steps, so an eighth of a ring's bytes. */
    json_t *ring = train(60, "-n 2 --strategy=ring " JOB);
    assert_true(payload == number_at(ring, "payload_bytes") / 8);
    promise(
        "examples/localsgd by one cc line, period=8, 2 workers: trains, payload/theory %.4f, 1/8 of ring's",
        payload / theory);
    /* Averaging after every step is another algorithm than averaging every eighth. */
    const char *eight = train_hash(60, "-n 2 --strategy=%s:period=8 " JOB, plugin);
    assert_string_equal(text_at(r, "params_sha256"), eight);
    assert_string_not_equal(eight, train_hash(60, "-n 2 --strategy=%s:period=1 " JOB, plugin));
    json_decref(r);
    json_decref(ring);
}

/* Weights with which no rank has trained, and running statistics of rank 0's own: it is said, once. */
static void test_statistics_of_others(void **state)
{
    static const char of_mean[] = "localsgd judges the mean of all ranks' weights",
                      of_vector[] = "ema judges a vector of its own";
#define EMA EN_BUILD_DIR "/test/plugins/local.so@ema"
    char localsgd[140];
    const struct {
        const char *strategy, *flags;
        const char *says; /* NULL: nothing */
    } runs[] = {{localsgd, "-n 2 --bn-stats=rank0", of_mean},
                {localsgd, "-n 2 --bn-stats=recompute:16", NULL},
                {localsgd, "-n 2 --bn-stats=mean", NULL},
                {localsgd, "-n 1", NULL},
                {EMA, "-n 2", of_vector},
                {EMA, "-n 1", of_vector},
                {EMA, "-n 2 --bn-stats=recompute:16", NULL},
                {"ring", "-n 2", NULL}};
    (void)state;
    snprintf(localsgd, sizeof localsgd, "%s/localsgd.so", system_folder());
    build(localsgd);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        process p;
        process_start(&p, EN_BUILD_DIR "/entrain", NULL,
                      "run --quiet --threads=1 --device=ref --model=resnet18:width=2 " MADE_UP
                      " --steps=2 --batch-size=4 --strategy=%s %s",
                      runs[i].strategy, runs[i].flags);
        const int code = process_wait(&p, 60);
        const int said = process_says(&p, "with which no rank has trained", "--bn-stats=recompute:N");
        if (code != 0 || said != (runs[i].says != NULL) ||
            (said == 1 && process_says(&p, runs[i].says, "rank 0") != 1))
            fail_msg("%s %s: exit %d, and %d lines of statistics that fit other weights\n%s",
                     runs[i].strategy, runs[i].flags, code, said, process_err(&p));
    }
    promise(
        "weights with which no rank has trained, a mean or a vector, beside rank 0's running statistics: a "
        "warning with --bn-stats=recompute:N");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_localsgd),
                                       cmocka_unit_test(test_statistics_of_others)};
    return system_main(tests);
}
