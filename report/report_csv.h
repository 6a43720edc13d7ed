/* report_csv.h - the numbers of a comparison as CSV (RFC 4180), for spreadsheets and other programs.
 *
 *     table.csv   a line per (cell, arm): medians over seeds with least and greatest, as in the page's table
 *     claims.csv  a line per pair of arms and setting: what was tested, and what is claimed (report_verdict.h)
 *     runs.csv    a line per run, unrounded
 *
 * Seconds, bytes (MB where the name says so) and fractions, never percent; an empty field is a number that a
 * run does not have, inf the time to a target that was not reached. */
#ifndef REPORT_REPORT_CSV_H
#define REPORT_REPORT_CSV_H

#include "report/report_verdict.h"

/* Writes them into the study's folder. EN_EIO, EN_ENOMEM, logged. */
en_status eni_report_csv(const eni_verdict *verdict);

#endif
