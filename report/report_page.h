/* report_page.h - the content of a report: report.html (verdict, fairness, table, figures, and how to
 * reproduce it), and the table of a comparison, whose numbers go to the terminal and into the page. */
#ifndef REPORT_REPORT_PAGE_H
#define REPORT_REPORT_PAGE_H

#include <stdio.h>

#include "report/plot.h"
#include "report/report_verdict.h"

/* Writes the whole page, page.html, to canvas->page, drawing the figures on the way (see plot.h). It is one
 * file without scripts and without links to other sites. */
en_status eni_page_write(eni_canvas *canvas);

/* ---- report_table.c: one row per (setting, arm), medians over seeds ------------------------------------ */

/* A row's numbers, each a median over seeds with its range; staleness: medians, but the greatest maximum. */
typedef struct eni_row {
    bool is_first;                       /* of its setting */
    size_t setting, arm, nruns, nmissed; /* runs; those that did not reach the target .. */
    double censored_t;                   /* .. and when the first of these ended; NAN: all reached it */
    char strategy[80];                   /* "ring [direct, shm]" */
    eni_summary updates, speed, reach, accuracy, loss, wait, ratio, wire;
    double stale_mean, stale_p50, stale_p95, stale_max;
} eni_row;

/* Fills the next row that has runs: begin with *next 0 and a zeroed row. false: no more. */
bool eni_row_next(const eni_study *study, size_t *next, eni_row *row);

/* Prints the table with its heads. */
en_status eni_report_print_table(const eni_study *study, FILE *out);

/* Prints the ranking of a setting's arms: time to the target, accuracy, speed, each with its interval. */
en_status eni_report_print_ranking(const eni_verdict *verdict, size_t setting, FILE *out);

/* The ranking as an HTML table. */
void eni_report_html_ranking(const eni_verdict *verdict, size_t setting, FILE *page);

/* Writes the table as HTML, with the ranges below the medians. */
void eni_report_html_table(const eni_study *study, FILE *page);

/* Writes the table as a LaTeX tabular: medians with their ranges. */
void eni_report_latex_table(const eni_study *study, FILE *out);

/* Writes what the runs recorded of single steps and the machine: quantiles of the step time, processor time
 * and memory; nothing if no run did. */
void eni_report_html_steps(const eni_study *study, FILE *page);

#endif
