/* report.h - `entrain report DIR`: reads what a comparison left on disk and shows it.
 *
 * The main path is eni_report: load the study, judge it (fairness, verdict), draw the plots, write the page,
 * print the table. Nothing here starts a run, and nothing here changes a run folder. */
#ifndef REPORT_REPORT_H
#define REPORT_REPORT_H

#include <stdio.h>

#include "entrain/status.h"
#include "run/reach.h"

/* Files that a report may write beside the page. */
enum {
    ENI_REPORT_CSV = 1,  /* `out`/table.csv, comparisons.csv and runs.csv */
    ENI_REPORT_PDF = 2,  /* `out`/plots/NAME.pdf for each figure; EN_EIO if gnuplot cannot */
    ENI_REPORT_PNG = 4,  /* the same as NAME.png */
    ENI_REPORT_LATEX = 8 /* `out`/table.tex: the table of the page as a tabular, without packages */
};

/* The numbers of a comparison as CSV (RFC 4180), for spreadsheets and other programs:
 *
 *     table.csv        a line per (setting, arm): medians over seeds with least and greatest, as in the page
 *     comparisons.csv  a line per pair of arms and setting: the test and its verdict (report_verdict.h)
 *     runs.csv         a line per run, unrounded
 *
 * Seconds, bytes (MB where the name says so) and fractions, never percent; an empty field is a number that a
 * run does not have, inf the time to a target that it did not reach. */

/* Reads compare.json in each of `dirs` (n, at most ENI_MERGED_MAX) and the run folders it names (or, without a compare.json,
 * the folder itself as one run): several appear on one page, with settings, rankings and tests of each by itself, and the
 * curves over samples together. Writes `out`/report.html and, for programs, report.json: verdict, rules of the fairness box, comparisons and
 * medians (both replaced as a whole, never half-written), and `out`/plots: for each plot
 * NAME.csv (the data) and NAME*.gp (the gnuplot script); and prints the table, the verdict of each setting
 * and the fairness line to `table_out`. Without a working gnuplot the page is written all the same, with a
 * note and the CSV in each plot's place, and a warning is logged.
 *
 * `out` is an existing folder, usually the first of `dirs`; files are written there only. `target` of the reported times; none:
 * the first folder's own.
 *
 * Blocks: reads files, and runs one gnuplot after the other, each with a deadline of 20 s. Main thread.
 * EN_EFORMAT for a malformed file (logged once: file, place, what is expected), EN_ENOENT, EN_EIO,
 * EN_ENOMEM. */
en_status eni_report(const char *const *dirs, size_t n, const char *out, eni_target target, FILE *table_out,
                     int extras);

#endif
