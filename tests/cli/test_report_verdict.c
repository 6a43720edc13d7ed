/* test_report_verdict.c - the sentence claims what the pairs show: clear win, tie, one seed, misses, rates.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cli/report_verdict.h"

enum { MAX_SEEDS = 6 };

/* A study of two arms in one cell, from times to the target (INFINITY: missed) and final accuracies. */
typedef struct small_study {
    eni_study study;
    eni_run runs[2 * MAX_SEEDS];
    int64_t seeds[MAX_SEEDS];
} small_study;

static void init(small_study *s, size_t nseeds, const double ring_t[], const double async_t[],
                 const double ring_acc[], const double async_acc[])
{
    memset(s, 0, sizeof *s);
    s->study = (eni_study){.target = 0.75,
                           .ncells = 1,
                           .narms = 2,
                           .nruns = 2 * nseeds,
                           .nseeds = nseeds,
                           .runs = s->runs,
                           .seeds = s->seeds};
    s->study.cells[0].name = "even";
    s->study.arms[0].name = "ring";
    s->study.arms[1].name = "ps-async";
    for (size_t i = 0; i < nseeds; i++) {
        s->seeds[i] = (int64_t)i + 1;
        for (size_t a = 0; a < 2; a++)
            s->runs[2 * i + a] = (eni_run){.arm = a,
                                           .seed = (int64_t)i + 1,
                                           .is_complete = true,
                                           .last_t = 5,
                                           .reach_t = a == 0 ? ring_t[i] : async_t[i],
                                           .samples_per_s = 1000 + 500.0 * (double)a,
                                           .test_accuracy = a == 0 ? ring_acc[i] : async_acc[i]};
    }
}

static void sentence_is(const small_study *s, bool is_comparable, const char *expected)
{
    char text[ENI_VERDICT_TEXT];
    eni_fairness fairness = {.is_accuracy_comparable = is_comparable};
    eni_verdict_sentence(&s->study, &fairness, 0, text, sizeof text);
    assert_string_equal(text, expected);
}

static void a_clear_win(void **state)
{
    (void)state;
    small_study s;
    init(&s, 3, (double[]){2.0, 2.1, 2.2}, (double[]){2.8, 2.94, 3.1}, (double[]){0.806, 0.809, 0.803},
         (double[]){0.800, 0.800, 0.800});
    sentence_is(
        &s, true,
        "ring reached 75 % 1.4 times sooner than ps-async (3 of 3 seeds; medians 2.1 s against 2.9 s), and "
        "ended 0.6 points higher than ps-async (paired: +0.3 to +0.9).");
}

static void a_tie_claims_nothing(void **state)
{
    (void)state;
    small_study s;
    init(&s, 3, (double[]){2.0, 2.1, 2.3}, (double[]){2.1, 2.2, 2.2}, (double[]){0.806, 0.801, 0.803},
         (double[]){0.803, 0.805, 0.803});
    sentence_is(
        &s, true,
        "ring reached 75 % in 2.1 s, with no clear difference from ps-async (sooner in 2 of 3 seeds; medians "
        "2.1 s against 2.2 s), and ended with no clear difference in accuracy from ps-async (paired: "
        "-0.4 to +0.3).");
}

static void one_seed_says_so(void **state)
{
    (void)state;
    small_study s;
    init(&s, 1, (double[]){8.6}, (double[]){6.0}, (double[]){0.806}, (double[]){0.801});
    sentence_is(
        &s, true,
        "ps-async reached 75 % 1.4 times sooner than ring (6.0 s against 8.6 s), and ended 0.5 points "
        "lower than ring; one seed cannot tell chance from effect.");
}

/* ps-async missed the target in one seed: the run stays in, its ratio is a bound. */
static void a_miss_is_not_dropped(void **state)
{
    (void)state;
    small_study s;
    init(&s, 3, (double[]){2.0, 2.0, 2.0}, (double[]){3.0, INFINITY, 3.0}, (double[]){0.80, 0.80, 0.80},
         (double[]){0.78, 0.74, 0.79});
    sentence_is(&s, true,
                "ring reached 75 % at least 1.5 times sooner than ps-async (3 of 3 seeds; medians 2.0 s "
                "against 3.0 s, "
                "which missed it in 1), and ended 2.0 points higher than ps-async (paired: +1.0 to +6.0).");
}

static void nobody_reached_it(void **state)
{
    (void)state;
    small_study s;
    init(&s, 2, (double[]){INFINITY, INFINITY}, (double[]){INFINITY, INFINITY}, (double[]){0.7, 0.7},
         (double[]){0.6, 0.6});
    sentence_is(
        &s, true,
        "no arm reached 75 % within the budget; ps-async trained 1.5 times as fast as ring (faster in "
        "2 of 2 seeds).");
}

static void unscaled_rates_are_not_compared(void **state)
{
    (void)state;
    small_study s;
    init(&s, 2, (double[]){2, 2}, (double[]){3, 3}, (double[]){0.8, 0.8}, (double[]){0.7, 0.7});
    sentence_is(
        &s, false,
        "ps-async trained 1.5 times as fast as ring (faster in 2 of 2 seeds); accuracy not comparable "
        "(rates not scaled).");
}

static void failed_runs_leave_no_claim(void **state)
{
    (void)state;
    small_study s;
    init(&s, 1, (double[]){INFINITY}, (double[]){INFINITY}, (double[]){NAN}, (double[]){NAN});
    s.runs[0].is_complete = s.runs[1].is_complete = false;
    sentence_is(&s, true, "no run ended well: nothing to say.");
}

static void equal_weights_are_named(void **state)
{
    (void)state;
    small_study s;
    init(&s, 2, (double[]){2, 2}, (double[]){3, 3}, (double[]){0.8, 0.8}, (double[]){0.8, 0.8});
    for (size_t i = 0; i < 4; i++)
        s.runs[i].params_sha256 = i < 2 ? "aa" : "bb";
    sentence_is(&s, true,
                "ring reached 75 % 1.5 times sooner than ps-async (2 of 2 seeds; medians 2.0 s against 3.0 "
                "s), and ended "
                "with the same weights as ps-async.");
}

static void pairs_count_and_bound(void **state)
{
    (void)state;
    small_study s;
    init(&s, 3, (double[]){2, INFINITY, 4}, (double[]){4, 3, INFINITY}, (double[]){0.8, 0.7, 0.8},
         (double[]){0.7, 0.8, 0.8});
    eni_pairs p;
    eni_verdict_pairs(&s.study, 0, 0, 1, &p);
    assert_int_equal(p.n, 3);
    assert_int_equal(p.sooner, 2);
    assert_int_equal(p.later, 1);
    assert_int_equal(p.b_missed, 1);
    assert_true(p.is_bound && p.ratio_range.low == 1.25 && p.ratio_range.high == 2);
    assert_int_equal(p.higher, 1);
    assert_int_equal(p.lower, 1);
}

static void the_text_never_overruns(void **state)
{
    (void)state;
    small_study s;
    init(&s, 2, (double[]){2, 2}, (double[]){3, 3}, (double[]){0.8, 0.8}, (double[]){0.7, 0.7});
    eni_fairness fairness = {.is_accuracy_comparable = true};
    for (size_t size = 1; size < 200; size++) {
        char text[201];
        memset(text, '#', sizeof text);
        eni_verdict_sentence(&s.study, &fairness, 0, text, size);
        assert_true(strlen(text) < size && text[size] == '#');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_clear_win),
                                       cmocka_unit_test(a_tie_claims_nothing),
                                       cmocka_unit_test(one_seed_says_so),
                                       cmocka_unit_test(a_miss_is_not_dropped),
                                       cmocka_unit_test(nobody_reached_it),
                                       cmocka_unit_test(unscaled_rates_are_not_compared),
                                       cmocka_unit_test(failed_runs_leave_no_claim),
                                       cmocka_unit_test(equal_weights_are_named),
                                       cmocka_unit_test(pairs_count_and_bound),
                                       cmocka_unit_test(the_text_never_overruns)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
