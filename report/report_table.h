/* report_table.h - the table of a comparison: one row per (setting, arm), medians over seeds. The same
 * numbers go to the terminal and into the page. */
#ifndef REPORT_REPORT_TABLE_H
#define REPORT_REPORT_TABLE_H

#include <stdio.h>

#include "report/report_verdict.h"

/* A row's numbers, each a median over seeds with its range; staleness: medians, but the greatest maximum. */
typedef struct eni_row {
    size_t setting, arm, nruns, nmissed; /* runs; those that did not reach the target .. */
    double censored_t;                   /* .. and when the first of these ended; NAN: all reached it */
    char strategy[80];                   /* "ring [direct, shm]" */
    eni_summary updates, speed, reach, accuracy, wait, ratio, wire;
    double stale_mean, stale_p50, stale_p95, stale_max;
} eni_row;

void eni_row_fill(const eni_study *study, size_t setting, size_t arm, eni_row *row_out);

/* Prints the table with its heads. */
en_status eni_report_print_table(const eni_study *study, FILE *out);

/* Prints the ranking of a setting's arms: time to the target, accuracy, speed, each with its interval. */
void eni_report_print_ranking(const eni_verdict *verdict, size_t setting, FILE *out);

/* The same as an HTML table. */
void eni_report_html_ranking(const eni_verdict *verdict, size_t setting, FILE *page);

/* Writes it as an HTML table, with the ranges below the medians. */
void eni_report_html_table(const eni_study *study, FILE *page);

/* Writes what the runs say of single steps and of the machine's use: quantiles of the step time, processor
 * time and memory; nothing when no run says any of it. */
void eni_report_html_steps(const eni_study *study, FILE *page);

#endif
