/* report_fair.h - is the comparison fair? Rules that a program can check, each with PASS, WARN or FAIL.
 *
 * After MLPerf's closed division (same initial weights, same order, no run dropped) and Hoefler & Belli,
 * SC'15 (say what was measured, on what, and in which order). */
#ifndef REPORT_REPORT_FAIR_H
#define REPORT_REPORT_FAIR_H

#include "report/may_differ.h"

enum { ENI_MAX_RULES = 18, ENI_RULE_TEXT = ENI_FACT_TEXT };

typedef struct eni_rule {
    int mark;                 /* ENI_PASS, ENI_WARN or ENI_FAIL */
    const char *name;         /* "initial weights" */
    char text[ENI_RULE_TEXT]; /* the finding, short enough for the closing line of the table */
} eni_rule;

typedef struct eni_fairness {
    size_t nrules, nwarn, nfail;
    eni_rule rules[ENI_MAX_RULES];
    bool is_time_comparable;        /* no FAIL affects the time to the target: all do except a missing run */
    char same_bytes[ENI_RULE_TEXT]; /* "ring = ps-sync byte for byte (…)"; "": no arms must be equal */
} eni_fairness;

void eni_fair_judge(const eni_study *study, eni_fairness *fairness_out);

/* "PASS", "WARN" or "FAIL". */
const char *eni_fair_mark(int mark);

/* "PASS, 1 warning (psd shares 2 cores with 2 workers)": the box in one line. */
void eni_fair_line(const eni_fairness *fairness, char *text_out, size_t size);

/* Adds the CPUs of a list such as "0-1,4" to `set`; returns their number, -1 if it is not such a list. */
int eni_fair_cores(const char *list, uint64_t set[16]);

#endif
