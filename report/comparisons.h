/* comparisons.h - which differences in the time to the target a study may claim: docs/measurement.md, "Claims".
 * Numbers in, numbers out; nothing here reads a file.
 *
 * The test is the two-sided exact signed-rank test (Wilcoxon 1945) of the logarithms of two arms' times,
 * paired by seed. Logarithms, since times differ by factors: with seconds, the seeds that happen to be slow
 * would take the high ranks. Under "no difference" the two times of a pair could be swapped, so every sign is
 * as likely as the other, whatever the noise: the p value is counted over all 2^k signs, given the ranks.
 * Equal sizes share their mean rank; pairs without a difference keep their (lowest) ranks and add nothing to
 * either sum (Pratt 1959), since dropping them can make a result clearer by adding ties. A miss counts as an
 * infinite time: it gets the largest rank, with the sign of the arm that did not miss; two misses are a tie.
 *
 * Over m comparisons Holm's procedure holds the chance of any wrong claim to 5 % (Holm 1979). A primary
 * comparison is tested first and by itself, the others only if it is clear (fixed sequence, Maurer et al.
 * 1995). */
#ifndef REPORT_COMPARISONS_H
#define REPORT_COMPARISONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Seeds of one arm in one setting beyond these are ignored. */
enum { ENI_COMPARISONS_SEEDS = 128 };

#define ENI_COMPARISONS_ALPHA 0.05

/* The finding of a comparison, worst first. */
enum {
    ENI_COMPARISON_FEW,         /* not enough seeds: no conclusion */
    ENI_COMPARISON_FAILED,      /* a run failed: the remaining seeds are not a sample */
    ENI_COMPARISON_UNFAIR,      /* a FAIL of the fairness box affects the time */
    ENI_COMPARISON_BUSY,        /* other processes used the machine during one of its runs */
    ENI_COMPARISON_EXPLORATORY, /* the primary comparison is not clear, or is_apart */
    ENI_COMPARISON_NOT_SHOWN,
    ENI_COMPARISON_YES
};

/* One comparison: two arms in one setting. */
typedef struct eni_comparison {
    size_t setting, a, b; /* a < b */
    size_t seeds;         /* planned for the setting */
    bool is_planned;      /* may claim: the primary one, or among the m of Holm's procedure */
    bool is_primary;
    /* The study has a baseline, and it is neither of the two: at most exploratory. */
    bool is_apart;
    int bar; /* set by the caller: the reason why nothing may be claimed, FAILED .. EXPLORATORY, or 0 */

    size_t n, sooner, later; /* pairs; pairs in which a came before b, after b */
    double p, adjusted;      /* exact; by Holm over the m (NAN: not planned) */
    int sign;                /* > 0: a is sooner by the signed ranks; < 0: b */
    int found;               /* ENI_COMPARISON_* */
} eni_comparison;

/* The one comparison that is tested by itself. */
typedef struct eni_primary {
    size_t setting, a, b;
} eni_primary;

/* The least number of seeds with which one of m comparisons can be clear: n >= 1 + log2(m / 0.05). 0 if m =
 * 0. */
size_t eni_comparisons_seeds(size_t m);

/* The number of entries that eni_comparisons_plan writes: pairs of arms x settings. */
size_t eni_comparisons_count(size_t nsettings, size_t narms);

#define ENI_COMPARISONS_ALL SIZE_MAX /* no baseline: all pairs of arms are compared */

/* Lists every pair of arms in every setting and says which may claim: those in settings with enough seeds for
 * their own pairs and, if there is a `baseline` (else ENI_COMPARISONS_ALL), with that arm; and the primary
 * one (NULL: none). For use before the first run. */
void eni_comparisons_plan(const size_t *seeds, size_t nsettings, size_t narms, size_t baseline,
                          const eni_primary *primary, eni_comparison *claims_out);

/* The m of Holm's procedure: comparisons that are planned and not primary. */
size_t eni_comparisons_among(const eni_comparison *comparisons, size_t n);

/* The seeds without which the plan can claim nothing beyond the primary comparison; 0: nothing is planned. */
size_t eni_comparisons_need(const eni_comparison *comparisons, size_t n);

/* The seeds that a setting's own pairs need: those that are neither primary nor apart. 0: no such pairs. */
size_t eni_comparisons_own_seeds(const eni_comparison *comparisons, size_t n, size_t setting);

/* The plan in a sentence: "3 comparisons need 7 seeds: even has 7, slow has 3 of 7 (descriptive)."
 * `settings`: their names. "" without a comparison. */
void eni_comparisons_text(const eni_comparison *comparisons, size_t n, const char *const *settings,
                          char *text_out, size_t size);

/* Judges the plan. times[(setting * narms + arm) * nseeds + seed]: seconds to the target, INFINITY for a
 * miss, NAN for a run that is absent, failed, or has no accuracy (no pair). */
void eni_comparisons_judge(eni_comparison *comparisons, size_t n, const double *times, size_t narms,
                           size_t nseeds);

/* The exact two-sided p value of n pairs (n <= ENI_COMPARISONS_SEEDS), ignoring pairs with a NAN. *sign_out
 * (or NULL) is the sign of the sum of signed ranks, > 0 if a is sooner. 1 without pairs. */
double eni_comparisons_p(const double *a, const double *b, size_t n, int *sign_out);

/* The least effect that could have been seen, as a factor: the ratio of times that, with the scatter of the
 * pairs' own ratios around their median, would have had a p value of at most `level`, whichever arm was
 * sooner. It is the larger half of the width of the signed-rank test's confidence interval. NAN with a miss
 * or with too few pairs. */
double eni_comparisons_least(const double *a, const double *b, size_t n, double level);

#endif
