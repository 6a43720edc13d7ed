/* test_report_verdict.c - the ranking and the sentence claim only what is allowed: clear, open, too few seeds,
 * misses, busy machines, failed and diverged arms, one arm; numbers agree, and no sentence is long. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "report/report_verdict.h"

enum { SEEDS = 10, ARMS = 6 };

/* A study of one setting; run (arm, seed) is runs[arm * nseeds + seed]. */
static struct small_study {
    eni_study study;
    eni_run runs[ARMS * SEEDS];
    int64_t seeds[SEEDS];
    bool is_fair;
} s;

static void init(size_t narms, size_t nseeds)
{
    static const char *const names[ARMS] = {"ring", "ps-async", "ps-sync", "ssp", "solo", "hybrid"};
    memset(&s, 0, sizeof s);
    s.is_fair = true;
    s.study = (eni_study){.target = {.value = 0.75},
                          .has_classes = true,
                          .nsettings = 1,
                          .narms = narms,
                          .nruns = narms * nseeds,
                          .nseeds = nseeds,
                          .runs = s.runs,
                          .seeds = s.seeds,
                          .baseline = ENI_COMPARISONS_ALL};
    s.study.settings[0] = (eni_setting_spec){.name = "even", .seeds = nseeds};
    for (size_t a = 0; a < narms; a++) {
        s.study.arms[a].name = names[a];
        for (size_t i = 0; i < nseeds; i++) {
            s.seeds[i] = (int64_t)i + 1;
            s.runs[a * nseeds + i] = (eni_run){.arm = a,
                                               .seed = (int64_t)i + 1,
                                               .is_complete = true,
                                               .last_t = 5.2,
                                               .samples_per_s = 14873 + 1000 * (double)a,
                                               .test_accuracy = 0.807,
                                               .outside = NAN};
        }
    }
}

/* The arm's times are t, and slightly more in each later seed. */
static void set_times(size_t arm, double t)
{
    for (size_t i = 0; i < s.study.nseeds; i++)
        s.runs[arm * s.study.nseeds + i].reach.t = t * (1 + 0.002 * (double)i);
}

static void set_all_times(const double *t)
{
    for (size_t a = 0; a < s.study.narms; a++)
        set_times(a, t[a]);
}

static void judge(eni_verdict *verdict_out)
{
    const eni_fairness fairness = {.is_time_comparable = s.is_fair, .nfail = !s.is_fair};
    assert_int_equal(eni_verdict_judge(&s.study, &fairness, verdict_out), EN_OK);
}

/* Also rejects ratios with 0 or nan, infinities, and a claim's words outside a claim. */
static void sentence_is(const char *expected)
{
    char text[ENI_VERDICT_TEXT];
    eni_verdict verdict;
    judge(&verdict);
    eni_verdict_sentence(&verdict, 0, text, sizeof text);
    eni_verdict_free(&verdict);
    assert_string_equal(text, expected);
    size_t words = 1;
    for (const char *at = text; *at != 0; at++)
        words += *at == ' ';
    assert_true(words <= 25);
}

static void differs_is(size_t place, size_t arm, const char *expected)
{
    eni_verdict verdict;
    eni_rank_row rows[ENI_MAX_ARMS];
    judge(&verdict);
    assert_true(eni_verdict_rank(&verdict, 0, rows) > place);
    assert_int_equal(rows[place].arm, arm);
    assert_string_equal(rows[place].differs, expected);
    eni_verdict_free(&verdict);
}

static void a_clear_win(void **state)
{
    (void)state;
    init(2, 6);
    set_all_times((double[]){3.1, 4.1});
    sentence_is("ring reached 75 % in 3.1 s instead of 4.1 s for ps-async (1.3x).");
    differs_is(0, 0, "-");
    differs_is(1, 1, "yes");
    set_all_times((double[]){4.1, 3.1});
    sentence_is("ps-async reached 75 % in 3.1 s instead of 4.1 s for ring (1.3x).");
}

/* Three of three pairs, and then a target that was reached at once. */
static void too_few_seeds_claim_nothing(void **state)
{
    (void)state;
    init(2, 3);
    set_all_times((double[]){3.1, 4.1});
    sentence_is("ring reached 75 % in 3.1 s, ps-async in 4.1 s; too few seeds to say (3 of 6).");
    differs_is(1, 1, "too few seeds");
    init(2, 1);
    set_all_times((double[]){0.93, 0});
    sentence_is("ps-async reached 75 % in 0.00 s, ring in 0.93 s; too few seeds to say (1 of 6).");
    init(3, 6);
    set_all_times((double[]){3, 4, 5});
    sentence_is("ring reached 75 % in 3.0 s, ps-async in 4.0 s; too few seeds to say (6 of 7).");
}

static void a_tie_claims_nothing(void **state)
{
    (void)state;
    init(2, 6);
    set_all_times((double[]){3.1, 3.2});
    s.runs[2].reach.t = 3.3;
    sentence_is("ring reached 75 % in 3.1 s, ps-async in 3.2 s; no difference shown.");
    differs_is(1, 1, "not shown");
}

/* 3.10 s and 3.13 s are equal with one digit: both get another. */
static void numbers_that_differ_look_different(void **state)
{
    (void)state;
    init(2, 6);
    set_all_times((double[]){3.1, 3.13});
    sentence_is("ring reached 75 % in 3.12 s instead of 3.15 s for ps-async (1.01x).");
    set_all_times((double[]){3.1, 3.1001});
    sentence_is("ring reached 75 % in 3.115 s instead of 3.116 s for ps-async.");
    set_all_times((double[]){0, 3.1}); /* no ratio with zero */
    sentence_is("ring reached 75 % in 0.00 s instead of 3.1 s for ps-async.");
}

static void a_miss_is_not_dropped(void **state)
{
    (void)state;
    init(2, 6);
    set_all_times((double[]){3.1, INFINITY});
    sentence_is("ring reached 75 % in 3.1 s, ps-async not within its 5.2 s.");
    set_times(1, 4.1);
    s.runs[6].reach.t = INFINITY;
    sentence_is("ring reached 75 % in 3.1 s instead of 4.1 s for ps-async (1.3x).");
    s.runs[0].reach.t = INFINITY; /* two misses are a tie: five pairs are not enough */
    sentence_is("ring reached 75 % in 3.1 s, ps-async in 4.1 s; no difference shown.");
    init(2, 3);
    set_all_times((double[]){3.1, INFINITY});
    sentence_is("ring reached 75 % in 3.1 s, ps-async not within its 5.2 s; too few seeds to say (3 of 6).");
}

/* Ten pairs are clear although the medians are the other way round: then the medians are not printed. */
static void medians_do_not_contradict_the_pairs(void **state)
{
    (void)state;
    init(2, 10);
    const double ring[] = {1, 1, 1, 1, 5.0, 5.0, 9, 9, 9, 9};
    const double late[] = {2, 2, 2, 2, 4.9, 4.9, 12, 12, 12, 12};
    for (size_t i = 0; i < 10; i++) {
        s.runs[i].reach.t = ring[i] * (1 + 0.0001 * (double)i);
        s.runs[10 + i].reach.t = late[i];
    }
    sentence_is("ring reached 75 % sooner than ps-async in 8 of 10 seeds.");
}

static void several_arms_fit_in_one_sentence(void **state)
{
    (void)state;
    init(3, 7);
    set_all_times((double[]){3.1, 4.1, 3.2});
    s.runs[2 * 7].reach.t = 3.0;
    sentence_is(
        "ring reached 75 % in 3.1 s instead of 4.1 s for ps-async (1.3x); ps-sync not shown to differ.");
    set_all_times((double[]){3.1, 4.1, 5});
    sentence_is("ring reached 75 % in 3.1 s instead of 4.1 s for ps-async (1.3x), sooner than ps-sync too.");
    init(6, 10);
    set_all_times((double[]){3.1, 4.1, 5, 6, 3.2, 3.3});
    for (size_t a = 4; a < 6; a++)
        s.runs[a * 10].reach.t = s.runs[a * 10 + 1].reach.t = 3.0;
    s.runs[4 * 10 + 2].reach.t = s.runs[5 * 10 + 2].reach.t = 2.9;
    sentence_is(
        "ring reached 75 % in 3.1 s instead of 4.1 s for ps-async (1.3x), sooner than 2 others too; 2 "
        "others not shown to differ.");
    differs_is(1, 4, "not shown");
    differs_is(5, 3, "yes");
}

static void a_busy_machine_an_unfair_or_failed_run_claim_nothing(void **state)
{
    (void)state;
    init(2, 6);
    set_all_times((double[]){3.1, 4.1});
    s.runs[9].outside = 0.051;
    sentence_is(
        "ring reached 75 % in 3.1 s, ps-async in 4.1 s; not shown: other processes used the machine.");
    differs_is(1, 1, "not shown: other processes used the machine");
    s.runs[9].outside = 0.049;
    sentence_is("ring reached 75 % in 3.1 s instead of 4.1 s for ps-async (1.3x).");
    s.is_fair = false;
    sentence_is("ring reached 75 % in 3.1 s, ps-async in 4.1 s; not shown: the fairness box has a FAIL.");
    s.is_fair = true;
    s.runs[9].is_complete = false;
    sentence_is("ring reached 75 % in 3.1 s, ps-async in 4.1 s; not shown: runs failed or are missing.");
    for (size_t i = 6; i < 12; i++)
        s.runs[i].is_complete = false;
    sentence_is("ring reached 75 % in 3.1 s, ps-async failed; not shown: runs failed or are missing.");
}

/* A failed arm does not cost the others their claims. */
static void a_failed_arm_costs_the_others_nothing(void **state)
{
    (void)state;
    init(3, 7);
    set_all_times((double[]){3.1, 4.1, 5});
    for (size_t i = 14; i < 21; i++)
        s.runs[i] =
            (eni_run){.arm = 2, .seed = s.runs[i].seed, .exit = 1, .reach.t = INFINITY, .test_accuracy = NAN};
    sentence_is(
        "ring reached 75 % in 3.1 s instead of 4.1 s for ps-async (1.3x); ps-sync not shown to differ.");
    differs_is(2, 2, "not shown: runs failed");
    s.study.settings[0].seeds = 6; /* even with few seeds, the failure is reported */
    differs_is(2, 2, "not shown: runs failed");
    /* nor does an arm that diverged: it missed */
    init(3, 7);
    set_all_times((double[]){3.1, 4.1, INFINITY});
    for (size_t i = 14; i < 21; i++) {
        s.runs[i].test_accuracy = 0.1;
        s.runs[i].test_loss = NAN;
    }
    sentence_is("ring reached 75 % in 3.1 s instead of 4.1 s for ps-async (1.3x), sooner than ps-sync too.");
}

static void the_primary_comparison_comes_first(void **state)
{
    (void)state;
    init(3, 6);
    set_all_times((double[]){3.1, 4.1, 3.0});
    s.study.has_primary = true;
    s.study.primary = (eni_primary){0, 0, 1};
    sentence_is(
        "ring reached 75 % in 3.1 s instead of 4.1 s for ps-async (1.3x); ps-sync not shown to differ.");
    init(3, 7);
    set_all_times((double[]){3.1, 4.1, 3.0});
    s.study.has_primary = true;
    s.study.primary = (eni_primary){0, 1, 0};
    s.runs[0].reach.t = s.runs[1].reach.t = 9;
    s.runs[2 * 7].reach.t = s.runs[2 * 7 + 1].reach.t = 3;
    sentence_is(
        "ps-sync reached 75 % in 3.0 s, ring in 3.1 s; exploratory, as the primary comparison is not clear.");
    differs_is(2, 1, "exploratory");
    init(
        3,
        5); /* the primary one is not among those that need seeds: two need 7, or 6 with a baseline for one */
    set_all_times((double[]){3.1, 4.1, 3.0});
    s.study.has_primary = true;
    s.study.primary = (eni_primary){0, 0, 1};
    s.study.baseline = 0;
    sentence_is("ps-sync reached 75 % in 3.0 s, ring in 3.1 s; too few seeds to say (5 of 6).");
}

static void the_primary_sentence_is(const char *expected)
{
    char text[ENI_VERDICT_TEXT];
    eni_verdict verdict;
    judge(&verdict);
    eni_verdict_primary(&verdict, text, sizeof text);
    eni_verdict_free(&verdict);
    assert_string_equal(text, expected);
}

/* In a separate sentence, about these two alone. */
static void the_primary_comparison_has_its_p(void **state)
{
    (void)state;
    init(3, 6);
    set_all_times((double[]){3.1, 4.1, 3.0});
    the_primary_sentence_is("");
    s.study.has_primary = true;
    s.study.primary = (eni_primary){0, 0, 1};
    the_primary_sentence_is("ring reached 75 % in 3.1 s instead of 4.1 s for ps-async (1.3x), p = 0.031.");
    s.runs[0].reach.t = 9;
    the_primary_sentence_is("ring reached 75 % in 3.1 s, ps-async in 4.1 s; no difference shown, p = 0.53.");
    s.runs[2].outside = 0.2;
    the_primary_sentence_is(
        "ring reached 75 % in 3.1 s, ps-async in 4.1 s; not shown: other processes used the "
        "machine, p = 0.53.");
}

/* All are compared with ring, whichever is first. */
static void arms_are_compared_with_the_baseline(void **state)
{
    (void)state;
    init(4, 7);
    s.study.baseline = 0;
    set_all_times((double[]){4.1, 3.1, 4.2, 3.5});
    s.runs[2 * 7].reach.t = s.runs[2 * 7 + 1].reach.t = 3;
    sentence_is(
        "ps-async reached 75 % in 3.1 s instead of 4.1 s for ring (1.3x), ssp sooner too; ps-sync not "
        "shown to differ from ring.");
    set_times(3, 5);
    sentence_is(
        "ps-async reached 75 % in 3.1 s instead of 4.1 s for ring (1.3x); ssp later; ps-sync not shown to "
        "differ from ring.");
    set_times(3, 3.5);
    differs_is(0, 1, "yes");
    differs_is(1, 3, "yes");
    differs_is(2, 0, "baseline");
    differs_is(3, 2, "not shown");
    s.runs[7].reach.t = 9;
    s.runs[8].reach.t =
        9; /* the first one is not clear: does not mention the second, which was not compared with it */
    s.runs[3 * 7].reach.t = s.runs[3 * 7 + 1].reach.t = 9;
    sentence_is("ps-async reached 75 % in 3.1 s, ring in 4.1 s; no difference shown.");
}

/* Each planned claim is reported, also if the primary one is of two other arms, or the baseline won. */
static void no_claim_is_left_out(void **state)
{
    (void)state;
    init(4, 7);
    s.study.baseline = 0;
    s.study.has_primary = true;
    s.study.primary = (eni_primary){0, 1, 2};
    set_all_times((double[]){4.1, 3.1, 3.5, 5});
    sentence_is("ps-async reached 75 % in 3.1 s instead of 4.1 s for ring (1.3x), ps-sync sooner too; ssp "
                "later than ring.");
    the_primary_sentence_is("ps-async reached 75 % in 3.1 s instead of 3.5 s for ps-sync (1.1x), p = 0.016.");
    s.study.primary = (eni_primary){0, 0, 3};
    sentence_is("ring reached 75 % in 4.1 s instead of 5.0 s for ssp (1.2x); 2 others sooner still.");
    set_times(2, 6);
    sentence_is(
        "ring reached 75 % in 4.1 s instead of 5.0 s for ssp (1.2x), sooner than ps-sync too; ps-async "
        "sooner still.");
}

/* `report --target`: clear differences at a target that was chosen afterwards are not claimed. */
static void another_target_is_exploratory(void **state)
{
    (void)state;
    init(2, 6);
    set_all_times((double[]){3.1, 4.1});
    s.study.index = json_pack("{s:f}", "target", 0.75);
    sentence_is("ring reached 75 % in 3.1 s instead of 4.1 s for ps-async (1.3x).");
    s.study.target.value = 0.8;
    sentence_is(
        "ring reached 80 % in 3.1 s, ps-async in 4.1 s; exploratory, as the study planned another target.");
    differs_is(1, 1, "exploratory");
    json_decref(s.study.index);
}

static void ugly_studies_say_what_they_can(void **state)
{
    (void)state;
    init(2, 2);
    set_all_times((double[]){INFINITY, INFINITY});
    sentence_is("no arm reached 75 % within its budget.");
    s.runs[0].reach.t = 3;
    sentence_is("no arm reached 75 % in most of its runs.");
    set_all_times((double[]){NAN, NAN});
    sentence_is("no run has an accuracy, so times cannot be compared.");
    for (size_t i = 0; i < 4; i++)
        s.runs[i].is_complete = false;
    sentence_is("no run ended well, so there is nothing to compare.");
    init(1, 1);
    set_times(0, 3.1);
    sentence_is("ring reached 75 % in 3.1 s; nothing to compare with.");
    set_times(0, INFINITY);
    sentence_is("ring did not reach 75 % within its 5.2 s; nothing to compare with.");
    set_times(0, NAN);
    sentence_is("ring ran without an accuracy; nothing to compare with.");
    s.study.nruns = 0;
    sentence_is("no run ended well, so there is nothing to compare.");
}

static void rows_have_exact_intervals(void **state)
{
    (void)state;
    init(2, 9);
    set_all_times((double[]){3.1, 4.1});
    for (size_t i = 0; i < 9; i++) {
        s.runs[i].reach.t = 3 + 0.1 * (double)i;
        s.runs[i].test_accuracy = 0.8 + 0.001 * (double)i;
        s.runs[i].reach.low = s.runs[i].reach.t - 0.1;
        s.runs[i].reach.high = s.runs[i].reach.t;
    }
    for (size_t i = 0; i < 4; i++)
        s.runs[9 + i].reach.t = INFINITY;
    eni_verdict verdict;
    eni_rank_row rows[ENI_MAX_ARMS];
    judge(&verdict);
    assert_int_equal(eni_verdict_rank(&verdict, 0, rows), 2);
    assert_string_equal(rows[0].cells[0].text, "3.4 s");
    assert_string_equal(rows[0].cells[0].range, "3.1 to 3.7 s"); /* nine: the second and the last but one */
    assert_string_equal(rows[0].cells[1].text, "80.4");
    assert_string_equal(rows[0].cells[1].range, "80.1 to 80.7");
    assert_string_equal(rows[0].cells[2].text, "14,900");
    assert_string_equal(rows[1].cells[0].range, "4.1 to > 5.2 s");
    eni_verdict_free(&verdict);
    s.runs[8].reach.low = s.runs[8].reach.t * 0.85; /* a snapshot too few */
    judge(&verdict);
    eni_verdict_rank(&verdict, 0, rows);
    assert_string_equal(rows[0].cells[0].text, "≈ 3.4 s");
    eni_verdict_free(&verdict);
}

static void the_plan_and_the_least_effect_are_said(void **state)
{
    (void)state;
    init(3, 7);
    set_all_times((double[]){3.1, 4.1, 5});
    for (size_t i = 0; i < 7; i++) {
        s.runs[i].reach.t *= i % 2 == 0 ? 1.02 : 0.98;
        s.runs[14 + i].outside = 0.3;
    }
    char text[ENI_VERDICT_TEXT];
    const eni_fairness fairness = {.is_time_comparable = true};
    eni_verdict verdict;
    judge(&verdict);
    eni_verdict_caveat(&verdict, &fairness, text, sizeof text);
    assert_string_equal(
        text, "3 comparisons need 7 seeds: even has 7. Least effect that could have been seen: even "
              "1.05x. Ranges contain the true median with a confidence of 98 % (even).");
    eni_verdict_free(&verdict);
    s.study.has_primary = true;
    s.study.primary = (eni_primary){0, 0, 1};
    s.study.settings[0].seeds = 6;
    judge(&verdict);
    eni_verdict_caveat(&verdict, &fairness, text, sizeof text);
    assert_non_null(strstr(text, "The primary comparison needs 6 seeds: even has 6 of 7 (descriptive)."));
    eni_verdict_free(&verdict);
}

static void the_text_never_overruns(void **state)
{
    (void)state;
    init(2, 6);
    set_all_times((double[]){2, 3});
    eni_verdict verdict;
    judge(&verdict);
    const eni_fairness fairness = {.nfail = 1};
    for (size_t size = 1; size < 200; size++) {
        char text[201];
        memset(text, '#', sizeof text);
        eni_verdict_sentence(&verdict, 0, text, size);
        assert_true(strlen(text) < size && text[size] == '#');
        eni_verdict_caveat(&verdict, &fairness, text, size);
        assert_true(strlen(text) < size && text[size] == '#');
    }
    eni_verdict_free(&verdict);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_clear_win),
                                       cmocka_unit_test(too_few_seeds_claim_nothing),
                                       cmocka_unit_test(a_tie_claims_nothing),
                                       cmocka_unit_test(numbers_that_differ_look_different),
                                       cmocka_unit_test(a_miss_is_not_dropped),
                                       cmocka_unit_test(medians_do_not_contradict_the_pairs),
                                       cmocka_unit_test(several_arms_fit_in_one_sentence),
                                       cmocka_unit_test(a_busy_machine_an_unfair_or_failed_run_claim_nothing),
                                       cmocka_unit_test(a_failed_arm_costs_the_others_nothing),
                                       cmocka_unit_test(the_primary_comparison_comes_first),
                                       cmocka_unit_test(no_claim_is_left_out),
                                       cmocka_unit_test(another_target_is_exploratory),
                                       cmocka_unit_test(the_primary_comparison_has_its_p),
                                       cmocka_unit_test(arms_are_compared_with_the_baseline),
                                       cmocka_unit_test(ugly_studies_say_what_they_can),
                                       cmocka_unit_test(rows_have_exact_intervals),
                                       cmocka_unit_test(the_plan_and_the_least_effect_are_said),
                                       cmocka_unit_test(the_text_never_overruns)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
