/* report_page.h - report.html: verdict, fairness, table, figures, and what is needed to do it again. */
#ifndef REPORT_REPORT_PAGE_H
#define REPORT_REPORT_PAGE_H

#include <stdio.h>

#include "report/plot.h"
#include "report/report_verdict.h"

/* Writes the whole page to canvas->page, drawing the figures on the way (see plot.h). The page is one file:
 * no script, no link that leaves it. */
en_status eni_page_write(eni_canvas *canvas, const eni_fairness *fairness, const eni_verdict *verdict);

/* report_sections.c: the parts that are text. */
void eni_page_verdict(const eni_canvas *canvas, const eni_fairness *fairness, const eni_verdict *verdict);
void eni_page_fairness(const eni_canvas *canvas, const eni_fairness *fairness);
void eni_page_pairs(const eni_canvas *canvas, const eni_verdict *verdict); /* every arm against every other, below the table */
en_status eni_page_reproduce(const eni_canvas *canvas);

#endif
