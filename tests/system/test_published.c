/* test_published.c - the published strategies whose order of arrival is their own, on real ranks: what they drop, gather and send
 * is what their papers say. (Where the order is fixed, test_virtual compares bytes.) */
#include <math.h>
#include <string.h>

#include "tests/system/run.h"

/* Promise: The published asynchronous strategies keep their rules on real ranks.
 * Promise: Words of help and papers find strategies. */

#define JOB                                                                                                  \
    "--device=ref --model=mlp --data=synthetic --limit-train-samples=1200 --limit-test-samples=64 "          \
    "--batch-size=16 --lr=0.02"

/* 3 workers, one of them four times slower, 300 micro-batches. It has learnt, and no sample is unaccounted for. */
static json_t *learn(const char *strategy, const char *flags)
{
    json_t *r = train(120, "-n 3 --strategy=%s --steps=100 --straggler=2:4 %s " JOB, strategy, flags);
    if (!(number_at(r, "test_accuracy") > 0.9)) fail_msg("%s: %g", strategy, number_at(r, "test_accuracy"));
    assert_true(fabs(number_at(r, "payload_bytes") / number_at(r, "theory_bytes") - 1) < 0.02);
    return r;
}

static void test_ringmaster(void **state)
{
    (void)state;
    json_t *r = learn("ringmaster:threshold=2", "--momentum=0.5");
    const double dropped = number_at(r, "samples_dropped");
    assert_true(number_at(r, "staleness.max") <= 1 && dropped > 0);
    assert_true(number_at(r, "samples_applied") + dropped == number_at(r, "samples_computed"));
    promise(
        "ringmaster:threshold=2 on 3 ranks, one 4x slower: delays at most 1, %.0f of %.0f samples dropped",
        dropped, number_at(r, "samples_computed"));
    json_decref(r);
}

/* Every third gradient is a step; the last may be of fewer. */
static void test_softsync(void **state)
{
    (void)state;
    json_t *r = learn("softsync:splits=1", "--lr=0.1 --momentum=0.5");
    assert_true(number_at(r, "updates") == 100 && number_at(r, "samples_dropped") == 0);
    assert_true(fabs(number_at(r, "staleness_steady.mean") - 2.0 / 3) < 0.1);
    promise("softsync:splits=1 on 3 ranks, one 4x slower: 100 steps of 300 gradients, mean staleness %.3f, "
            "(W - 1) / c = "
            "0.667",
            number_at(r, "staleness_steady.mean"));
    json_decref(r);
}

static void test_those_that_step_on_all(void **state)
{
    (void)state;
    static const char *const strategies[] = {"delay-adaptive", "dc-asgd", "dc-asgd:adaptive,lambda0=0.1"};
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        json_t *r = learn(strategies[i], "--momentum=0.5");
        assert_true(number_at(r, "updates") == 300 && number_at(r, "samples_dropped") == 0);
        json_decref(r);
    }
}

/* Exchanges at steps 0, 5, 10, .. of each worker; the warning is of the world. */
static void test_easgd(void **state)
{
    (void)state;
    json_t *r = train(120, "-n 3 --strategy=easgd:period=5,momentum=0.5 --steps=100 --momentum=0 " JOB);
    const double share = number_at(r, "payload_bytes") / number_at(r, "theory_bytes");
    assert_true(number_at(r, "test_accuracy") > 0.9);
    assert_true(number_at(r, "updates") >= 60 && number_at(r, "updates") <= 63);
    assert_true(share >= 0.99 && share < 1.06); /* the first exchange of each worker is at its step 0 */
    promise("easgd:period=5 on 3 ranks: %.0f exchanges in 300 steps, payload/theory %.3f",
            number_at(r, "updates"), share);
    json_decref(r);
}

static void test_easgd_warns(void **state)
{
    process p;
    (void)state;
    process_start(&p, "entrain", NULL,
                  "run --quiet --threads=1 -n 3 --strategy=easgd:alpha=0.6 --steps=2 " JOB);
    assert_int_equal(process_wait(&p, 60), 0);
    if (strstr(process_err(&p), "2 / (W + 1) = 0.5") == NULL) fail_msg("%s", process_err(&p));
}

/* The words of the papers, and of those who look for them. */
static void test_words_find_them(void **state)
{
    (void)state;
    static const struct {
        const char *words, *strategy;
    } of[] = {{"'local SGD'", "local-sgd"},
              {"post-local", "local-sgd"},
              {"DiLoCo", "diloco"},
              {"staleness-aware", "softsync"},
              {"gossip", "d-psgd"},
              {"Ringmaster", "ringmaster"},
              {"'elastic averaging'", "easgd"},
              {"eamsgd", "easgd"},
              {"'delay compensated'", "dc-asgd"},
              {"Lian", "d-psgd"},
              {"bmuf", "slowmo"},
              {"decentralized", "d-psgd"},
              {"Mishchenko", "delay-adaptive"},
              {"n-softsync", "softsync"},
              {"asynchronous", "ringmaster"}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char line[32];
        process p;
        snprintf(line, sizeof line, "\n%s ", of[i].strategy);
        process_start(&p, "entrain", NULL, "strategies %s", of[i].words);
        const int code = process_wait(&p, 30);
        if (code != 0 || strstr(process_out(&p), line) == NULL)
            fail_msg("%s: exit %d, no %s in\n%s%s", of[i].words, code, of[i].strategy, process_out(&p),
                     process_err(&p));
    }
    promise("`entrain strategies WORDS`: %d words find their strategies", (int)(sizeof of / sizeof *of));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ringmaster),
                                       cmocka_unit_test(test_softsync),
                                       cmocka_unit_test(test_those_that_step_on_all),
                                       cmocka_unit_test(test_easgd),
                                       cmocka_unit_test(test_easgd_warns),
                                       cmocka_unit_test(test_words_find_them)};
    return system_main(tests);
}
