/* test_staleness.c - the age of gradients when they are applied: by theory, and as psd counts it. */
#include <math.h>

#include "tests/system/run.h"

/* Promise: ps-async's mean staleness is W - 1, and ssp keeps its bound. */

/* Compute must dominate: a step of some milliseconds, so that the order of pushes is the workers' pace. */
#define JOB                                                                                                  \
    "--device=ref --model=mlp --data=synthetic --limit-train-samples=12800 --limit-test-samples=64 "         \
    "--batch-size=16"

/* Between two pushes of a worker all others together push W-1 times on average, whatever their paces. */
static void test_async(void **state)
{
    static const char *const paces[] = {"even", "one 4x slower"};
    (void)state;
    for (int w = 2; w <= 4; w += 2)
        for (int is_slow = 0; is_slow <= 1; is_slow++) {
            json_t *r = train(120, "-n %d --strategy=ps-async --steps=%d %s " JOB, w, 800 / w,
                              is_slow ? "--straggler=1:4" : "");
            double mean = number_at(r, "staleness_steady.mean"),
                   count = number_at(r, "staleness_steady.count"),
                   slow = json_number_value(
                       json_object_get(json_array_get(json_object_get(r, "per_worker"), 1), "steps"));
            assert_true(fabs(mean - (w - 1)) <= 0.05 * (w - 1));
            assert_true(count >= 400); /* else the mean says little */
            /* The straggler was slow: it claimed fewer micro-batches than its share. */
            if (is_slow) assert_true(slow < 0.75 * 800 / w);
            assert_true(number_at(r, "updates") == 800 / w * w);
            promise("staleness of ps-async, W = %d, %s: mean %.3f over %.0f partition updates while all are "
                    "active, "
                    "expected %d (5 %%)",
                    w, paces[is_slow], mean, count, w - 1);
            json_decref(r);
        }
}

/* A worker that begins clock c while the slowest has finished m is c - m ahead. */
static void test_ssp(void **state)
{
    (void)state;
    for (int bound = 0; bound <= 3; bound++) {
        json_t *r =
            train(120, "-n 2 --strategy=ssp:bound=%d --assign=fixed --steps=60 --straggler=1:4 " JOB, bound);
        double holds = number_at(r, "holds"), ahead = number_at(r, "max_clocks_ahead");
        assert_true(holds > 0);
        assert_true(ahead == bound);
        promise("ssp:bound=%d under a 4x straggler: %.0f holds, at most %.0f clocks ahead", bound, holds,
                ahead);
        json_decref(r);
    }
}

/* The same measure is not constant: without a bound the fast worker runs away. */
static void test_without_bound(void **state)
{
    (void)state;
    json_t *r = train(120, "-n 2 --strategy=ps-async --assign=fixed --steps=60 --straggler=1:4 " JOB);
    assert_true(number_at(r, "max_clocks_ahead") > 3);
    assert_true(number_at(r, "holds") == 0);
    json_decref(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_async), cmocka_unit_test(test_ssp),
                                       cmocka_unit_test(test_without_bound)};
    return system_main(tests);
}
