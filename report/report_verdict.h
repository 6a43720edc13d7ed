/* report_verdict.h - per setting a ranking of the arms and one sentence, and which differences are claimed
 * (comparisons.h, docs/measurement.md).
 *
 * A pair is two runs of one setting and one seed: same initial weights, same data order, so that their
 * difference is free of the variance of both (Bouthillier et al. 2021). A run that did not reach the target
 * stays in, as a time longer than its last evaluation. */
#ifndef REPORT_REPORT_VERDICT_H
#define REPORT_REPORT_VERDICT_H

#include "report/comparisons.h"
#include "report/report_fair.h"
#include "report/report_study.h"

enum { ENI_VERDICT_TEXT = 1024, ENI_RANK_TEXT = 64 };

typedef struct eni_verdict {
    const eni_study *study;
    size_t n;
    eni_comparison *comparisons; /* (n) every pair of arms in every setting, owned */
} eni_verdict;

/* One arm in a ranking, as texts; "-" without a number, "" without an interval. */
enum { ENI_RANK_COLUMNS = 3 }; /* time to the target, accuracy, samples/s */

typedef struct eni_rank_cell {
    char text[ENI_RANK_TEXT], range[ENI_RANK_TEXT]; /* "3.1 s", "2.9 to 3.4 s"; "> 5.2 s" */
} eni_rank_cell;

typedef struct eni_rank_row {
    size_t arm;
    eni_rank_cell cells[ENI_RANK_COLUMNS];
    /* Differs from the baseline, or else the first: "yes", "not shown"; "-" or "baseline" for that arm
     * itself. */
    const char *differs;
} eni_rank_row;

/* Tests the comparisons that the study has planned. EN_ENOMEM. The caller frees with eni_verdict_free. */
en_status eni_verdict_judge(const eni_study *study, const eni_fairness *fairness, eni_verdict *verdict_out);
void eni_verdict_free(eni_verdict *verdict);

/* The finding in two or three words: "yes", "not shown", "too few seeds". */
const char *eni_verdict_found(const eni_comparison *comparison);

/* The greatest ratio of times that the scatter of the pairs could have hidden (eni_comparisons_least), at the
 * level at which this comparison was tested; NAN: not known. */
double eni_verdict_least(const eni_verdict *verdict, const eni_comparison *comparison);

/* The arms of a setting that ran, by median time (then: fewer misses, higher accuracy). Returns how many. */
size_t eni_verdict_rank(const eni_verdict *verdict, size_t setting, eni_rank_row rows_out[ENI_MAX_ARMS]);

/* "ring reached 75 % in 3.1 s instead of 4.1 s for ps-async (1.3x)." At most 25 words; the setting's name is
 * not part of it. Writes at most `size` bytes. */
void eni_verdict_sentence(const eni_verdict *verdict, size_t setting, char *text_out, size_t size);

/* The primary comparison in such a sentence, with its p value; "": the study has none. */
void eni_verdict_primary(const eni_verdict *verdict, char *text_out, size_t size);

/* The arm that a ranking's "differs" refers to: "the first" or "the baseline". */
const char *eni_verdict_from(const eni_verdict *verdict);

/* The text below the sentences: a FAIL, the seeds that the plan needed, the least effect that could have been
 * seen. */
void eni_verdict_caveat(const eni_verdict *verdict, const eni_fairness *fairness, char *text_out,
                        size_t size);

/* "2.1 s", "> 5.2 s" for a censored time (`last_t`), "-" for NAN. */
void eni_verdict_seconds(double seconds, double last_t, char *text_out, size_t size);

/* The median time of an arm as text; a censored median gives the least clock that all its runs passed. A
 * leading "≈ " says that the bracket of one of its runs is wider than 10 % of the time. */
void eni_verdict_time(const eni_study *study, size_t setting, size_t arm, char *text_out, size_t size);

#endif
