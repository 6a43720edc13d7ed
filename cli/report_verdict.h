/* report_verdict.h - one sentence per cell, from runs paired by seed; it claims what the pairs show, no more.
 *
 * A pair is two runs of one cell and one seed: same initial weights, same data order, so that their
 * difference is free of the variance of both (Bouthillier et al. 2021). "Sooner" needs the same sign in every
 * pair; otherwise the sentence says that there is no clear difference. A run that did not reach the target
 * stays in, as a time longer than its last evaluation. */
#ifndef CLI_REPORT_VERDICT_H
#define CLI_REPORT_VERDICT_H

#include "cli/report_fair.h"
#include "cli/report_study.h"

enum { ENI_VERDICT_TEXT = 1024 };

/* Arm `a` against arm `b` in one cell. */
typedef struct eni_pairs {
    size_t n;             /* seeds that both arms ran */
    size_t sooner, later; /* seeds in which a reached the target before, after b (a miss is later) */
    size_t b_missed;      /* seeds in which a reached the target and b did not */
    double ratio;         /* median over seeds of time(b) / time(a); NAN: never both sides known */
    bool is_bound;        /* the ratio is a lower bound: b missed the target in some seeds */
    eni_interval ratio_range;

    size_t nspeed, faster; /* pairs with samples/s; those in which a is faster */
    double speed_ratio;    /* median of samples/s(a) / samples/s(b) */

    size_t nacc, higher, lower;
    double points; /* median of accuracy(a) - accuracy(b), in percentage points */
    eni_interval points_range;
    bool has_same_weights; /* params_sha256 equal in all pairs */
} eni_pairs;

void eni_verdict_pairs(const eni_study *study, size_t cell, size_t a, size_t b, eni_pairs *pairs_out);

/* The arm that the sentence is about: least median time to the target (ties: more samples/s); when nobody has
 * a time, the one with the most samples/s. */
size_t eni_verdict_leader(const eni_study *study, size_t cell);

/* "ring reached 75 % 1.4 times sooner than ps-async (3 of 3 seeds; 2.1 s against 2.9 s), and ended 0.6 points
 * higher (paired: +0.3 to +0.9)." The cell's name is not part of it. Writes at most `size` bytes. */
void eni_verdict_sentence(const eni_study *study, const eni_fairness *fairness, size_t cell, char *text_out,
                          size_t size);

/* What the number of seeds is worth: "3 seeds: …", for below the sentences. */
void eni_verdict_caveat(const eni_study *study, const eni_fairness *fairness, char *text_out, size_t size);

/* "2.1 s", "> 5.2 s" for a censored time (`last_t`), "-" for NAN. */
void eni_verdict_seconds(double seconds, double last_t, char *text_out, size_t size);

/* The median time of an arm as text; a censored median names the least clock that all its runs passed. */
void eni_verdict_time(const eni_study *study, size_t cell, size_t arm, char *text_out, size_t size);

#endif
