/* test_comparisons.c - the exact test against tables and another program, Holm's procedure, the plan; and what is
 * claimed of many thousand made-up studies, with and without an effect. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "core/rng.h"
#include "report/comparisons.h"

/* Promise: A study without an effect claims nothing beyond its error rate; arms that differ by 10 % are
 * told apart, and never the wrong way round. */

enum { MAX_CLAIMS = 64 };

static void is_near(double value, double expected)
{
    if (!(fabs(value - expected) < 1e-9 * expected)) fail_msg("%.17g instead of %.17g", value, expected);
}

/* ---- the test ------------------------------------------------------------------------------------------ */

/* p of times whose logarithms differ by `leads`; seed effects must not matter. */
static double p_of(const double *leads, size_t n)
{
    double a[ENI_COMPARISONS_SEEDS], b[ENI_COMPARISONS_SEEDS];
    for (size_t i = 0; i < n; i++) {
        a[i] = 1;
        b[i] = exp(leads[i]);
    }
    return eni_comparisons_p(a, b, n, NULL);
}

/* Ranks 1 .. n, those of sum `t` negative. */
static double p_of_sum(size_t n, size_t t)
{
    double leads[ENI_COMPARISONS_SEEDS];
    for (size_t rank = n; rank >= 1; rank--) {
        leads[rank - 1] = 0.01 * (double)rank * (rank <= t ? -1 : 1);
        if (rank <= t) t -= rank;
    }
    return p_of(leads, n);
}

/* Two-sided critical values at 5 %: the greatest sum of the rarer sign that is still clear (McCornack 1965,
 * table 2; Wilcoxon & Wilcox 1964). Below six there is none. */
static void critical_values_are_those_of_the_tables(void **state)
{
    (void)state;
    static const struct {
        size_t n, greatest;
    } table[] = {{6, 0},   {7, 2},   {8, 3},   {9, 5},   {10, 8},  {11, 10}, {12, 13}, {13, 17}, {14, 21},
                 {15, 25}, {16, 29}, {17, 34}, {18, 40}, {19, 46}, {20, 52}, {25, 89}, {30, 137}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assert_true(p_of_sum(table[i].n, table[i].greatest) <= 0.05);
        assert_true(p_of_sum(table[i].n, table[i].greatest + 1) > 0.05);
    }
    for (size_t n = 1; n < 6; n++)
        assert_true(p_of_sum(n, 0) > 0.05);
}

/* scipy 1.17.1: wilcoxon(log(b) - log(a), method="exact"). */
static void p_values_are_those_of_scipy(void **state)
{
    (void)state;
    is_near(eni_comparisons_p((double[]){2.14, 2.26, 3.9, 3.24, 2.74, 3.02},
                              (double[]){2.2565, 2.722, 4.6319, 3.2368, 2.7954, 3.011}, 6, NULL),
            0.15625);
    is_near(eni_comparisons_p((double[]){3.96, 2.41, 3.11, 2.97, 2.71, 3.18, 2.47, 3.6},
                              (double[]){4.456, 2.4983, 3.1475, 3.2693, 3.0924, 3.2768, 2.558, 4.0549}, 8,
                              NULL),
            0.0078125);
    is_near(eni_comparisons_p(
                (double[]){3.8, 2.43, 2.07, 2.4, 2.69, 2.94, 3.81, 3.39, 2.68, 2.03},
                (double[]){3.4418, 2.5648, 2.3811, 2.4657, 2.6262, 3.2104, 4.3044, 3.4585, 2.9737, 2.368}, 10,
                NULL),
            0.048828125);
    is_near(eni_comparisons_p((double[]){2.25, 3.48, 2.39, 2.12, 3.2, 3.79, 2.05, 3.61, 2.38, 2.19, 2.04,
                                         2.59, 3.45, 2.99, 3.71},
                              (double[]){2.4941, 3.3975, 2.8872, 2.4191, 3.5828, 4.1469, 2.3723, 3.3225,
                                         2.6594, 2.4446, 1.7967, 2.8198, 3.5373, 3.3983, 3.7323},
                              15, NULL),
            0.012451171875);
    double leads[ENI_COMPARISONS_SEEDS];
    for (int i = 0; i < 64; i++)
        leads[i] = (i % 4 == 0 ? -0.01 : 0.01) * (i + 1);
    is_near(p_of(leads, 50), 0.0021224348550905603);
    for (int i = 0; i < 64; i++)
        leads[i] = (i % 3 == 0 ? -0.01 : 0.01) * (i + 1);
    is_near(p_of(leads, 64), 0.029324211645737952);
    for (int i = 0; i < ENI_COMPARISONS_SEEDS; i++)
        leads[i] = 0.01 * (i + 1);
    is_near(p_of(leads, ENI_COMPARISONS_SEEDS), pow(0.5, ENI_COMPARISONS_SEEDS - 1));
}

/* scipy 1.17.1: wilcoxon(.., zero_method="pratt", method=PermutationMethod()), all signs enumerated. */
static void ties_share_ranks_and_zeros_keep_theirs(void **state)
{
    (void)state;
    is_near(p_of((double[]){0, 0, 1, 1, 2, 2, -1, 3}, 8), 0.125);
    is_near(p_of((double[]){1, 1, 1, 1, 1, 1}, 6), 0.03125);
    is_near(p_of((double[]){0, 1, 2, 3, 4, 5, -6}, 7), 0.34375);
    is_near(p_of((double[]){0, 0, 0, 5, 6, 7, 8, 9, 10}, 9), 0.03125);
    is_near(p_of((double[]){9, 9, 9, 1, 2, -3, 4, 0}, 8), 0.0625);
    is_near(p_of((double[]){0, 0, 0}, 3), 1);
    is_near(p_of(NULL, 0), 1);
}

/* A miss beats every ratio, and no number of it enters: the p value is that of the ranks. */
static void a_miss_is_the_largest_rank(void **state)
{
    (void)state;
    double a[] = {1, 1, 1, 1, 1, 1}, b[] = {1.5, 1.1, 1.2, INFINITY, 1.3, 1.4};
    int sign;
    is_near(eni_comparisons_p(a, b, 6, &sign), 0.03125);
    assert_true(sign > 0);
    is_near(eni_comparisons_p(b, a, 6, &sign), 0.03125);
    assert_true(sign < 0);
    /* the one who is sooner in five seeds misses in the sixth: ranks 15 against 6 */
    a[3] = INFINITY, b[3] = 1;
    is_near(eni_comparisons_p(a, b, 6, &sign), p_of((double[]){1, 2, 3, 4, 5, -6}, 6));
    /* two misses are no difference, and what is not there is no pair */
    b[3] = INFINITY;
    is_near(eni_comparisons_p(a, b, 6, NULL), 0.0625);
    b[3] = NAN;
    is_near(eni_comparisons_p(a, b, 6, NULL), 0.0625);
    /* at the target from the start: sooner than any other, equal to its like */
    is_near(eni_comparisons_p((double[]){0, 0, 0, 0, 0, 0}, b, 6, NULL), 0.0625);
    is_near(eni_comparisons_p((double[]){0, 0}, (double[]){0, 0}, 2, NULL), 1);
}

/* ---- the plan ------------------------------------------------------------------------------------------ */

static void seeds_that_m_comparisons_need(void **state)
{
    (void)state;
    assert_int_equal(eni_comparisons_seeds(1), 6);
    assert_int_equal(eni_comparisons_seeds(3), 7);
    assert_int_equal(eni_comparisons_seeds(6), 8);
    assert_int_equal(eni_comparisons_seeds(15), 10);
    assert_int_equal(eni_comparisons_seeds(0), 0);
    for (size_t m = 1; m < 500; m++)
        assert_int_equal(eni_comparisons_seeds(m), (size_t)ceil(1 + log2((double)m / 0.05)));
}

static void settings_with_too_few_seeds_are_not_among_the_m(void **state)
{
    (void)state;
    eni_comparison comparisons[MAX_CLAIMS];
    assert_int_equal(eni_comparisons_count(2, 3), 6);
    eni_comparisons_plan((size_t[]){7, 3}, 2, 3, ENI_COMPARISONS_ALL, NULL, comparisons);
    assert_int_equal(eni_comparisons_need(comparisons, 6), 7);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(comparisons[i].is_planned, comparisons[i].setting == 0);
    eni_comparisons_plan((size_t[]){7, 7}, 2, 3, ENI_COMPARISONS_ALL, NULL, comparisons);
    assert_int_equal(eni_comparisons_need(comparisons, 6), 8);
    eni_comparisons_plan((size_t[]){5}, 1, 2, ENI_COMPARISONS_ALL, NULL, comparisons);
    assert_int_equal(eni_comparisons_need(comparisons, 1), 0);
    /* six seeds are enough for the primary one, and for one other, not for two */
    eni_comparisons_plan((size_t[]){6}, 1, 3, ENI_COMPARISONS_ALL, &(eni_primary){0, 2, 0}, comparisons);
    assert_true(comparisons[1].is_primary && comparisons[1].a == 0 && comparisons[1].b == 2 &&
                comparisons[1].is_planned);
    assert_false(comparisons[0].is_planned || comparisons[2].is_planned);
    eni_comparisons_plan((size_t[]){7}, 1, 3, ENI_COMPARISONS_ALL, &(eni_primary){0, 0, 1}, comparisons);
    assert_true(comparisons[0].is_planned && comparisons[1].is_planned && comparisons[2].is_planned);
    assert_int_equal(eni_comparisons_need(comparisons, 3), 7);
}

/* All against one: k - 1 comparisons a setting, and so fewer seeds; the other pairs are looked at, not claimed. */
static void a_baseline_needs_fewer_seeds(void **state)
{
    (void)state;
    eni_comparison comparisons[MAX_CLAIMS];
    double times[2 * 4 * 7];
    eni_comparisons_plan((size_t[]){7, 7}, 2, 3, 1, NULL, comparisons);
    assert_int_equal(eni_comparisons_among(comparisons, 6), 4);
    assert_int_equal(eni_comparisons_need(comparisons, 6), 8);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(comparisons[i].is_apart, comparisons[i].a == 0 && comparisons[i].b == 2);
    /* what make demo has: seven seeds are enough for one, and then for the other three */
    eni_comparisons_plan((size_t[]){7, 7}, 2, 3, 0, &(eni_primary){1, 0, 2}, comparisons);
    assert_int_equal(eni_comparisons_among(comparisons, 6), 3);
    assert_int_equal(eni_comparisons_need(comparisons, 6), 7);
    for (size_t i = 0; i < 56; i++)
        times[i] = (1 + (double)(i / 7 % 3)) * (1 + 0.001 * (double)(i % 7) * (double)(1 + i / 7));
    eni_comparisons_judge(comparisons, 6, times, 3, 7);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(comparisons[i].found,
                         comparisons[i].is_apart ? ENI_COMPARISON_EXPLORATORY : ENI_COMPARISON_YES);
    /* a primary comparison without the baseline is one more, tested first */
    eni_comparisons_plan((size_t[]){7}, 1, 3, 0, &(eni_primary){0, 1, 2}, comparisons);
    assert_true(comparisons[2].is_primary && comparisons[2].is_planned && !comparisons[2].is_apart);
    assert_int_equal(eni_comparisons_among(comparisons, 3), 2);
}

/* Times of arms that differ by the factors `late`, and in each seed by a little more. */
static void make_times(double *times, const double *late, size_t narms, size_t nseeds)
{
    for (size_t a = 0; a < narms; a++)
        for (size_t s = 0; s < nseeds; s++)
            times[a * nseeds + s] = late[a] * (1 + 0.001 * (double)(s * (a + 1)));
}

/* Ten seeds; p values of 4/1024, 2/1024 and 2/1024, worked by hand. */
static void holm_adjusts_step_by_step(void **state)
{
    (void)state;
    double times[30];
    eni_comparison comparisons[3];
    make_times(times, (double[]){1, 1.1, 1.3}, 3, 10);
    times[10 + 0] = 0.99; /* 0:1 loses its smallest rank but a few */
    eni_comparisons_plan((size_t[]){10}, 1, 3, ENI_COMPARISONS_ALL, NULL, comparisons);
    eni_comparisons_judge(comparisons, 3, times, 3, 10);
    is_near(comparisons[0].p, 4.0 / 1024); /* T = 1 */
    is_near(comparisons[1].p, 2.0 / 1024);
    is_near(comparisons[2].p, 2.0 / 1024);
    is_near(comparisons[1].adjusted, 3 * 2.0 / 1024);
    is_near(comparisons[2].adjusted, 3 * 2.0 / 1024);
    is_near(comparisons[0].adjusted, 3 * 2.0 / 1024); /* 1 x 4/1024, but never below the one before */
    for (int i = 0; i < 3; i++)
        assert_true(comparisons[i].found == ENI_COMPARISON_YES && comparisons[i].sign > 0 &&
                    comparisons[i].n == 10);
    assert_int_equal(comparisons[0].sooner, 9);
    assert_int_equal(comparisons[0].later, 1);
}

static void what_stands_in_the_way_is_said(void **state)
{
    (void)state;
    double times[21];
    eni_comparison comparisons[3];
    make_times(times, (double[]){1, 1.1, 1.3}, 3, 7);
    eni_comparisons_plan((size_t[]){7}, 1, 3, ENI_COMPARISONS_ALL, NULL, comparisons);
    comparisons[1].bar = ENI_COMPARISON_BUSY;
    eni_comparisons_judge(comparisons, 3, times, 3, 7);
    assert_int_equal(comparisons[0].found, ENI_COMPARISON_YES);
    assert_int_equal(comparisons[1].found, ENI_COMPARISON_BUSY);
    eni_comparisons_plan((size_t[]){6}, 1, 3, ENI_COMPARISONS_ALL, NULL,
                         comparisons); /* as clear as can be, and too few */
    eni_comparisons_judge(comparisons, 3, times, 3, 7);
    for (int i = 0; i < 3; i++)
        assert_int_equal(comparisons[i].found, ENI_COMPARISON_FEW);
}

static void the_primary_comparison_opens_the_gate(void **state)
{
    (void)state;
    double times[21];
    eni_comparison comparisons[3];
    const eni_primary primary = {0, 0, 1};
    make_times(times, (double[]){1, 1.1, 1.3}, 3, 7);
    eni_comparisons_plan((size_t[]){7}, 1, 3, ENI_COMPARISONS_ALL, &primary, comparisons);
    eni_comparisons_judge(comparisons, 3, times, 3, 7);
    for (int i = 0; i < 3; i++)
        assert_int_equal(comparisons[i].found, ENI_COMPARISON_YES);
    is_near(comparisons[0].adjusted, 2.0 / 128); /* by itself, not among the three */
    is_near(comparisons[2].adjusted, 4.0 / 128);

    times[7 + 3] = 0.5; /* not clear: the others are clear by their numbers, and only exploratory */
    eni_comparisons_judge(comparisons, 3, times, 3, 7);
    assert_int_equal(comparisons[0].found, ENI_COMPARISON_NOT_SHOWN);
    assert_int_equal(comparisons[1].found, ENI_COMPARISON_EXPLORATORY);
    times[7 + 3] = 1.2;
    comparisons[0].bar = ENI_COMPARISON_BUSY; /* clear, but it cannot be claimed: the gate stays shut */
    eni_comparisons_judge(comparisons, 3, times, 3, 7);
    assert_int_equal(comparisons[0].found, ENI_COMPARISON_BUSY);
    assert_int_equal(comparisons[1].found, ENI_COMPARISON_EXPLORATORY);
}

/* Shifted by the least effect, the pairs' scatter is just clear; by less, it is not. */
static void the_least_effect_is_the_least(void **state)
{
    (void)state;
    const double scatter[] = {-0.05, -0.02, -0.01, 0, 0.01, 0.02, 0.03, 0.07};
    double a[8], b[8], leads[8];
    for (int i = 0; i < 8; i++) {
        a[i] = 2 + i;
        b[i] = a[i] * exp(0.4 + scatter[i]);
    }
    double least = eni_comparisons_least(a, b, 8, 0.05);
    for (int i = 0; i < 8; i++)
        leads[i] = log(least) - 1e-6 - (scatter[i] - 0.005);
    assert_true(p_of(leads, 8) > 0.05);
    for (int i = 0; i < 8; i++)
        leads[i] = log(least) + 1e-6 - (scatter[i] - 0.005);
    assert_true(p_of(leads, 8) <= 0.05);
    for (int i = 0; i < 8; i++)
        leads[i] = log(least) + 1e-6 + (scatter[i] - 0.005);
    assert_true(p_of(leads, 8) <= 0.05);
    assert_true(isnan(eni_comparisons_least(a, b, 5, 0.05)));
    assert_true(eni_comparisons_least(a, b, 8, 0.01) > least);
    assert_true(isnan(eni_comparisons_least(a, b, 8, 0.001)));
    b[2] = INFINITY;
    assert_true(isnan(eni_comparisons_least(a, b, 8, 0.05)));
    a[2] = INFINITY;
    assert_true(isnan(eni_comparisons_least(a, b, 8, 0.05)));
}

/* ---- made-up studies ----------------------------------------------------------------------------------- */

enum { STUDIES = 10000, MAX_ARMS = 6, MAX_SEEDS = 10 };

/* Normal variates, two of a number (Box & Muller 1958). */
typedef struct noise {
    eni_rng_key key;
    uint64_t at;
    double second;
} noise;

static double normal(noise *n)
{
    if (n->at++ % 2 == 1) return n->second;
    uint64_t bits = eni_rng_u64(&n->key, n->at);
    double radius = sqrt(-2 * log(((double)(bits >> 32) + 0.5) / 4294967296.0));
    double angle = 2 * 3.14159265358979323846 * (double)(bits & 0xffffffff) / 4294967296.0;
    n->second = radius * sin(angle);
    return radius * cos(angle);
}

/* One setting: what a seed costs is common to its arms (20 %), 3 % are each run's own. `late`: factors of the
 * arms, NULL for none. Ragged: a fifth of the seeds end before most arms are there, times are coarse so that
 * they tie, and some runs have no time. */
static void make_study(uint64_t study, size_t narms, size_t nseeds, const double *late, bool is_ragged,
                       double *times)
{
    noise n = {.key = {study, ENI_RNG_TEST, (uint32_t)(narms * 100 + nseeds), is_ragged}};
    for (size_t s = 0; s < nseeds; s++) {
        const double common = 0.2 * normal(&n),
                     limit = normal(&n) < -0.84 ? 3 * exp(common + 0.01) : INFINITY;
        for (size_t a = 0; a < narms; a++) {
            double t = 3 * exp(common + 0.03 * normal(&n)) * (late == NULL ? 1 : late[a]);
            if (is_ragged) t = t > limit ? INFINITY : round(20 * t) / 20;
            if (is_ragged && normal(&n) > 2.2) t = NAN;
            times[a * nseeds + s] = t;
        }
    }
}

static void judge(const double *times, size_t narms, size_t nseeds, const eni_primary *primary,
                  eni_comparison *comparisons, size_t n)
{
    eni_comparisons_plan(&nseeds, 1, narms, ENI_COMPARISONS_ALL, primary, comparisons);
    eni_comparisons_judge(comparisons, n, times, narms, nseeds);
}

static size_t count_found(const eni_comparison *comparisons, size_t n)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
        found += comparisons[i].found == ENI_COMPARISON_YES;
    return found;
}

/* Arms that are all alike: a study that claims anything is wrong, in at most 5 % (5.7 % of 10,000 leave 3
 * standard deviations for chance); none claims with too few seeds. */
static void without_an_effect_few_studies_claim(void **state)
{
    (void)state;
    const eni_primary primary = {0, 0, 1};
    size_t worst = 0, kinds = 0;
    for (size_t narms = 2; narms <= MAX_ARMS; narms++)
        for (size_t nseeds = 3; nseeds <= MAX_SEEDS; nseeds++)
            for (int is_ragged = 0; is_ragged < 2; is_ragged++) {
                size_t wrong = 0, wrong_with = 0, n = eni_comparisons_count(1, narms);
                for (uint64_t study = 0; study < STUDIES; study++) {
                    double times[MAX_ARMS * MAX_SEEDS];
                    eni_comparison comparisons[MAX_CLAIMS];
                    make_study(study, narms, nseeds, NULL, is_ragged, times);
                    judge(times, narms, nseeds, NULL, comparisons, n);
                    wrong += count_found(comparisons, n) > 0;
                    judge(times, narms, nseeds, &primary, comparisons, n);
                    wrong_with += count_found(comparisons, n) > 0;
                }
                const bool is_enough = (double)nseeds >= 1 + log2((double)n / 0.05);
                if (wrong > 570 || wrong_with > 570)
                    fail_msg("%zu arms, %zu seeds%s: %zu and %zu of %d claim", narms, nseeds,
                             is_ragged ? ", ragged" : "", wrong, wrong_with, STUDIES);
                assert_int_equal(wrong > 0, is_enough);
                assert_int_equal(wrong_with > 0, nseeds >= 6);
                if (wrong > worst) worst = wrong;
                if (wrong_with > worst) worst = wrong_with;
                kinds += 2;
            }
    printf("PROMISE a study without an effect claims nothing: at most %.2f %% of %d did, of %zu kinds\n",
           100.0 * (double)worst / STUDIES, STUDIES, kinds);
}

/* Two arms 10 % apart, a noise of 3 %, 8 seeds. */
static void an_effect_is_seen_and_never_the_wrong_way(void **state)
{
    (void)state;
    for (int is_ragged = 0; is_ragged < 2; is_ragged++) {
        size_t right = 0;
        for (uint64_t study = 0; study < STUDIES; study++) {
            double times[2 * MAX_SEEDS];
            eni_comparison comparison;
            make_study(study, 2, 8, (double[]){1, 1.1}, is_ragged, times);
            judge(times, 2, 8, NULL, &comparison, 1);
            if (comparison.found != ENI_COMPARISON_YES) continue;
            assert_true(comparison.sign > 0);
            right++;
        }
        if (!is_ragged) {
            assert_true(right >= 9 * STUDIES / 10);
            printf("PROMISE arms 10 %% apart are told apart: in %.1f %% of %d studies\n",
                   100.0 * (double)right / STUDIES, STUDIES);
        }
    }
}

/* One arm of four is slow: of the three that are alike, nothing is claimed but by chance. */
static void a_slow_arm_lends_no_claim_to_the_others(void **state)
{
    (void)state;
    size_t wrong = 0, right = 0;
    for (uint64_t study = 0; study < STUDIES; study++) {
        double times[4 * MAX_SEEDS];
        eni_comparison comparisons[6];
        make_study(study, 4, 10, (double[]){1, 1, 1, 1.2}, false, times);
        judge(times, 4, 10, NULL, comparisons, 6);
        bool is_wrong = false, is_right = true;
        for (int i = 0; i < 6; i++) {
            is_wrong = is_wrong || (comparisons[i].b < 3 && comparisons[i].found == ENI_COMPARISON_YES);
            is_right = is_right && (comparisons[i].b < 3 ||
                                    (comparisons[i].found == ENI_COMPARISON_YES && comparisons[i].sign > 0));
        }
        wrong += is_wrong;
        right += is_right;
    }
    assert_true(wrong <= 570 && wrong > 0);
    assert_true(right >= 9 * STUDIES / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(critical_values_are_those_of_the_tables),
                                       cmocka_unit_test(p_values_are_those_of_scipy),
                                       cmocka_unit_test(ties_share_ranks_and_zeros_keep_theirs),
                                       cmocka_unit_test(a_miss_is_the_largest_rank),
                                       cmocka_unit_test(seeds_that_m_comparisons_need),
                                       cmocka_unit_test(settings_with_too_few_seeds_are_not_among_the_m),
                                       cmocka_unit_test(a_baseline_needs_fewer_seeds),
                                       cmocka_unit_test(holm_adjusts_step_by_step),
                                       cmocka_unit_test(what_stands_in_the_way_is_said),
                                       cmocka_unit_test(the_primary_comparison_opens_the_gate),
                                       cmocka_unit_test(the_least_effect_is_the_least),
                                       cmocka_unit_test(without_an_effect_few_studies_claim),
                                       cmocka_unit_test(an_effect_is_seen_and_never_the_wrong_way),
                                       cmocka_unit_test(a_slow_arm_lends_no_claim_to_the_others)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
