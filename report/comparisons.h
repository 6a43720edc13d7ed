/* comparisons.h - which differences in the time to the target a study may claim: docs/measurement.md, "Claims".
 * Numbers in, numbers out; nothing here reads a file.
 *
 * The test is the two-sided exact signed-rank test (Wilcoxon 1945) of the logarithms of two arms' times,
 * paired by seed. Logarithms, since times differ by factors: with seconds, the seeds that happen to be slow
 * would take the high ranks. Under "no difference" the two times of a pair could be swapped, so every sign is
 * as likely as the other, whatever the noise: the p value is counted over all 2^k signs, given the ranks.
 * Equal sizes share their mean rank; pairs without a difference keep their (lowest) ranks and add nothing to
 * either sum (Pratt 1959), since to drop them can make a result clearer by adding ties. A miss is an infinite
 * time: the largest rank, with the sign of the arm that did not miss; two misses are no difference.
 *
 * Over m comparisons Holm's procedure holds the chance of any wrong claim to 5 % (Holm 1979). A primary
 * comparison is tested first and by itself, the others only if it is clear (fixed sequence, Maurer et al.
 * 1995). */
#ifndef REPORT_COMPARISONS_H
#define REPORT_COMPARISONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Most seeds of one arm in one setting that are looked at; the others are not. */
enum { ENI_COMPARISONS_SEEDS = 128 };

#define ENI_COMPARISONS_ALPHA 0.05

/* What is known of a comparison, worst first. */
enum {
    ENI_COMPARISON_FEW,         /* not enough seeds: nothing can be said */
    ENI_COMPARISON_FAILED,      /* a run failed: seeds that are left are no sample */
    ENI_COMPARISON_UNFAIR,      /* the fairness box has a FAIL that bears on the time */
    ENI_COMPARISON_BUSY,        /* other processes used the machine during one of its runs */
    ENI_COMPARISON_EXPLORATORY, /* the primary comparison is not clear, or it is apart */
    ENI_COMPARISON_NOT_SHOWN,
    ENI_COMPARISON_YES
};

/* One comparison: two arms in one setting. */
typedef struct eni_comparison {
    size_t setting, a, b; /* a < b */
    size_t seeds;         /* that the setting was given */
    bool is_planned;      /* may claim: it is the primary one or among the m of Holm's procedure */
    bool is_primary;
    /* The study compares with a baseline, and it is neither of the two: no more than exploratory. */
    bool is_apart;
    int bar; /* what stands in its way beside its numbers, the caller's: FAILED .. EXPLORATORY, or 0 */

    size_t n, sooner, later; /* pairs; those in which a came before b, after b */
    double p, adjusted;      /* exact; by Holm over the m (NAN: not planned) */
    int sign;                /* > 0: a is sooner by the signed ranks; < 0: b */
    int found;               /* ENI_COMPARISON_* */
} eni_comparison;

/* The one comparison that is tested by itself. */
typedef struct eni_primary {
    size_t setting, a, b;
} eni_primary;

/* Least number of seeds with which one of m comparisons can be clear: n >= 1 + log2(m / 0.05). 0 for m = 0. */
size_t eni_comparisons_seeds(size_t m);

/* How many entries eni_comparisons_plan writes: pairs of arms x settings. */
size_t eni_comparisons_count(size_t nsettings, size_t narms);

#define ENI_COMPARISONS_ALL SIZE_MAX /* no baseline: every arm is compared with every other */

/* Lists every pair of arms in every setting and says which may claim: those of settings with as many seeds as
 * their own pairs need, of these the ones with the arm `baseline` (or ENI_COMPARISONS_ALL), and the primary one (NULL:
 * none is named). For before the first run. */
void eni_comparisons_plan(const size_t *seeds, size_t nsettings, size_t narms, size_t baseline,
                          const eni_primary *primary, eni_comparison *claims_out);

/* How many of them are the m of Holm's procedure: planned, and not primary. */
size_t eni_comparisons_among(const eni_comparison *comparisons, size_t n);

/* The seeds that the plan needs for anything to be claimed of what is not primary; 0: nothing is planned. */
size_t eni_comparisons_need(const eni_comparison *comparisons, size_t n);

/* The seeds that a setting's own pairs need: those that are neither primary nor apart. 0: it has none. */
size_t eni_comparisons_own_seeds(const eni_comparison *comparisons, size_t n, size_t setting);

/* The plan in a sentence: "3 comparisons need 7 seeds: even has 7, slow has 3 of 7 (descriptive)." `settings`
 * are their names. "" without a comparison. */
void eni_comparisons_text(const eni_comparison *comparisons, size_t n, const char *const *settings,
                          char *text_out, size_t size);

/* Judges what was planned. times[(setting * narms + arm) * nseeds + seed]: seconds to the target, INFINITY
 * for a miss, NAN for a run that is not there, failed, or has no accuracy (no pair). */
void eni_comparisons_judge(eni_comparison *comparisons, size_t n, const double *times, size_t narms,
                           size_t nseeds);

/* The exact two-sided p value of n pairs (n <= ENI_COMPARISONS_SEEDS); pairs with a NAN count for nothing. The
 * sign of the sum of signed ranks, > 0 where a is sooner, goes to sign_out unless NULL. 1 without pairs. */
double eni_comparisons_p(const double *a, const double *b, size_t n, int *sign_out);

/* The least effect that could have been seen, as a factor: the ratio of times that, with the scatter of the
 * pairs' own ratios around their median, would have had a p value of at most `level`, whichever arm was
 * sooner. It is half the width of the signed-rank test's confidence interval, the larger half. NAN with a
 * miss or with too few pairs. */
double eni_comparisons_least(const double *a, const double *b, size_t n, double level);

#endif
