/* report_page.c - see report_page.h. */
#include "report/report_page.h"

#include <string.h>

#include "report/html.h"
#include "report/report_table.h"
#include "core/try.h"

enum { NO_LEGEND, ARM_LEGEND, PHASE_LEGEND };

typedef struct figure {
    const char *id, *title, *lede;
    int legend;
    en_status (*draw)(eni_canvas *canvas);
} figure;

static const figure figures[] = {
    {"accuracy", "Accuracy over time and over samples",
     "The left picture asks how soon, the right one how well a sample is used. A thin line is one seed, the "
     "bold one their median. All ranks start their clocks together, after a warm-up on made-up samples, and the "
     "clock does not stop before the last has ended; evaluation comes later. Two strokes: the axis is cut.",
     ARM_LEGEND, eni_plot_curves},
    {"steps", "Where a step’s time goes",
     "Milliseconds that each role spends for one global batch, the same unit in every bar. Exposed exchange is "
     "the part that backward does not hide; the strip at the foot of compute is the time in which an exchange was "
     "under way behind it. Medians over seeds, one axis for all settings.",
     NO_LEGEND, eni_plot_steps},
    {"cells", "Even beside slow",
     "Every marker is one run: a full one is real, an open one emulated. The bar stands at the median; an "
     "arrow starts at the end of a run that missed the target. Two strokes: the axis is cut.",
     ARM_LEGEND, eni_plot_cells},
    {"staleness", "Staleness per worker",
     "Versions between the weights that a gradient was computed on and the weights it was applied to. The "
     "mean over all pushes is close to W − 1 by identity; how it spreads over the workers is not.",
     NO_LEGEND, eni_plot_staleness},
    {"bytes", "Bytes: what the formula says, and what moved",
     "Theory is the strategy’s formula, payload the vectors as its algorithm hands them on. What moved stands "
     "below: through sockets, with all headers, and in shared memory, what one process read from or wrote to "
     "another’s. The two differ in shared memory: nobody copies what it can read in place, and what is written "
     "by one and read by another counts twice. All of it is the training steps’: what carried weights at the "
     "start, to evaluation and into checkpoints is payload_beside_steps of each role in result.json. Medians over "
     "seeds.",
     ARM_LEGEND, eni_plot_bytes},
    {"timeline", "One step on the clock",
     "The step of median length, as the trace of one run shows it. White spans belong to no phase.",
     PHASE_LEGEND, eni_plot_timeline},
    {"shares", "Samples per worker",
     "With claimed batches a fast worker does more of the same work. A bar is what updates covered that were "
     "applied; an outline that reaches beyond its bar is work computed and not applied: dropped, or "
     "behind the last push of its worker.",
     ARM_LEGEND, eni_plot_shares},
};

static void write_head(const eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    FILE *page = canvas->page;
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Entrain report: ",
          page);
    for (size_t a = 0; a < study->narms; a++) {
        if (a > 0) fputs(", ", page);
        eni_html_text(page, study->arms[a].name);
    }
    fputs("</title>\n<style>\n", page);
    eni_html_style(page);
    fputs("</style>\n</head>\n<body>\n<main>\n", page);
}

static en_status write_figure(eni_canvas *canvas, const figure *f)
{
    FILE *page = canvas->page;
    const char *title = f->title;
    if (strcmp(f->id, "cells") == 0 && canvas->study->ncells == 1) title = "Run by run";
    fprintf(page, "<section id=\"%s\">\n<h2>%s</h2>\n<p class=\"lede\">%s</p>\n", f->id, title, f->lede);
    if (f->legend == ARM_LEGEND) eni_plot_arm_legend(canvas, NULL);
    if (f->legend == PHASE_LEGEND) eni_plot_phase_legend(canvas, NULL, false);
    EN_TRY(f->draw(canvas));
    if (f->draw == eni_plot_steps) eni_report_html_steps(canvas->study, page);
    fputs("</section>\n", page);
    return EN_OK;
}

/* Snapshots are evaluated for one target, and gone after that. */
static void write_other_target(const eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    for (size_t i = 0; i < study->nruns; i++) {
        if (!eni_study_bracket_is_of_grid(&study->runs[i], study->target)) continue;
        fprintf(canvas->page,
                "<p class=\"lede\">These runs were evaluated for a target of %g %%: around %g %% only the grid is "
                "known, so the two that enclose a time are points of the grid.</p>\n",
                100 * study->runs[i].evaluated_for, 100 * study->target);
        return;
    }
}

en_status eni_page_write(eni_canvas *canvas, const eni_fairness *fairness, const eni_verdict *verdict)
{
    write_head(canvas);
    eni_page_verdict(canvas, fairness, verdict);
    eni_page_fairness(canvas, fairness);
    fputs("<section id=\"table\">\n<h2>The numbers</h2>\n<p class=\"lede\">Medians over seeds, the range "
          "below. The target counts as reached at the first of three evaluations in a row at or above it; the time "
          "is interpolated between the two snapshots that enclose it.</p>\n",
          canvas->page);
    write_other_target(canvas);
    eni_report_html_table(canvas->study, canvas->page);
    eni_page_pairs(canvas, verdict);
    fputs("</section>\n", canvas->page);
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++)
        EN_TRY(write_figure(canvas, &figures[i]));
    EN_TRY(eni_page_reproduce(canvas));
    fprintf(canvas->page,
            "<footer>Written by <code>entrain report</code> %s.</footer>\n</main>\n</body>\n</html>\n",
            EN_VERSION);
    return EN_OK;
}
