/* report_page.c - see report_page.h. */
#include "report/report_page.h"

#include <string.h>

#include "core/try.h"
#include "report/html.h"
#include "report/report_table.h"

/* ---- its figures ---- */

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
     ARM_LEGEND, eni_plot_settings},
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

/* ---- its style ---- */

/* System fonts, one column of text, figures two abreast where there is room. */
static const char *const style[] = {
    ":root{color-scheme:light;--ink:#1c2733;--soft:#566270;--line:#dde2e7;--paper:#fff;",
    "--tint:#f6f8f9;--pass:#0b6b4b;--warn:#8a5a00;--fail:#a3231a}\n",
    "*{box-sizing:border-box}\n",
    "html{-webkit-text-size-adjust:100%}\n",
    "body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,",
    "\"Segoe UI\",Roboto,\"Noto Sans\",\"Liberation Sans\",sans-serif}\n",
    "main{max-width:70rem;margin:0 auto;padding:3rem 1.5rem 4rem}\n",
    "h1{font-size:1.25rem;font-weight:600;margin:.1rem 0 1.6rem;color:var(--soft)}\n",
    "h2{font-size:1.375rem;line-height:1.25;font-weight:650;margin:0 0 .35rem;letter-spacing:-.01em}\n",
    "h3{font-size:1rem;font-weight:650;margin:1.5rem 0 .25rem}\n",
    "section{margin-top:3.5rem}\n",
    "p{margin:.3rem 0 .8rem}\n",
    "code,pre{font-family:ui-monospace,\"SF Mono\",Menlo,Consolas,\"Liberation Mono\",monospace;",
    "font-size:.875em}\n",
    ".eyebrow{margin:0;font-size:.875rem;color:var(--soft)}\n",
    ".lede{max-width:46rem;color:var(--soft)}\n",
    ".note{max-width:46rem;font-size:.9375rem;color:var(--soft)}\n",
    ".verdicts{margin:0 0 1.2rem}\n",
    ".verdicts>div{display:grid;grid-template-columns:8.5rem 1fr;gap:0 1.5rem;padding:1.25rem 0;",
    "border-top:1px solid var(--line)}\n",
    ".verdicts>div:last-child{border-bottom:1px solid var(--line)}\n",
    ".verdicts dt{font-weight:650;font-size:1.125rem;line-height:1.8}\n",
    ".verdicts dd{margin:0;min-width:0;font-size:1.5rem;line-height:1.4;letter-spacing:-.012em;",
    "text-wrap:pretty;overflow-wrap:anywhere}\n",
    ".verdicts .scroll{margin:0 0 .8rem;padding:0}.rank{line-height:1.5;overflow-wrap:normal}",
    ".rank thead th,.rank small,.rank td:last-child{white-space:normal}\n",
    ".verdicts "
    "b{font-weight:650;white-space:nowrap}.kind{font-weight:400;font-size:.8125rem;color:var(--soft);line-"
    "height:1.35}\n",
    "dt .kind{display:block}\n",
    "h3 .kind{margin-left:.5em}\n",
    ".mark{display:inline-block;font-size:.75rem;font-weight:700;letter-spacing:.05em;line-height:1;",
    "padding:.3em .5em;border-radius:.25em;color:#fff;vertical-align:.12em;text-align:center;",
    "min-width:3.6em}\n",
    ".pass{background:var(--pass)}.warn{background:var(--warn)}.fail{background:var(--fail)}\n",
    ".alarm{color:var(--fail);font-weight:600}\n",
    ".box{background:var(--tint);border:1px solid var(--line);border-radius:.5rem;",
    "padding:1.4rem 1.5rem 1.1rem;margin-top:2rem}\n",
    ".count{font-size:1rem;font-weight:400;color:var(--soft);margin-left:.3em}\n",
    ".rules{list-style:none;margin:.8rem 0 0;padding:0}\n",
    ".rules li{display:grid;grid-template-columns:3.6rem 9.5rem 1fr;gap:0 .9rem;align-items:baseline;",
    "padding:.32rem 0;font-size:.9375rem}\n",
    ".rules .rule{font-weight:600}\n",
    ".rules .found{overflow-wrap:anywhere}\n",
    ".scroll{overflow-x:auto;margin:.8rem -1.5rem 0;padding:0 1.5rem}\n",
    "table{border-collapse:collapse;width:100%;font-size:.9375rem;",
    "font-variant-numeric:tabular-nums lining-nums}\n",
    "th,td{text-align:right;vertical-align:baseline;padding:.5rem .7rem;white-space:nowrap}\n",
    "th:first-child,td:first-child{padding-left:0}th:last-child,td:last-child{padding-right:0}\n",
    "thead th{vertical-align:bottom;font-weight:600;font-size:.8125rem;color:var(--soft);",
    "border-bottom:1.5px solid var(--ink)}\n",
    "tbody th,.name,thead th:first-child{text-align:left}\n",
    "tbody th{font-weight:600}\n",
    "tbody tr+tr>*{border-top:1px solid var(--line)}\n",
    ".main tbody tr:not(.first) th{color:transparent}.main tbody tr:not(.first) th small{",
    "color:transparent}\n",
    ".main tbody tr:not(.first) th{border-top-color:transparent}\n",
    ".main tbody tr:not(:first-child).first>*{border-top:1.5px solid var(--soft)}\n",
    "small{display:block;font-size:.78rem;font-weight:400;color:var(--soft);line-height:1.3}\n",
    ".swatch{width:.8em;height:.8em;margin-right:.45em;vertical-align:-.04em;overflow:visible}\n",
    ".name small{margin-left:1.25em}thead .name small{margin-left:0}\n",
    ".legend{list-style:none;margin:.2rem 0 .6rem;padding:0;display:flex;flex-wrap:wrap;",
    "gap:.2rem 1.4rem;font-size:.9375rem}\n",
    ".legend .box{display:inline-block;width:.95em;height:.95em;padding:0;margin:0 .45em 0 0;",
    "border-radius:0;border:1px solid #5b6875;vertical-align:-.12em}\n",
    ".panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));",
    "gap:1rem 2rem;align-items:start}\n",
    ".panels.three{grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr))}.panel{min-width:0;max-"
    "width:33rem}\n",
    ".panel svg{display:block;width:100%;height:auto}\n",
    ".panel svg text{font-family:system-ui,-apple-system,\"Segoe UI\",Roboto,\"Noto Sans\",",
    "\"Liberation Sans\",sans-serif}\n",
    ".csv{font-size:.8125rem;margin:.5rem 0 0}\n",
    "a{color:inherit;text-decoration-color:#9aa5b0;text-underline-offset:.2em}\n",
    ".absent{color:var(--soft);border-left:3px solid var(--line);padding-left:.8rem}\n",
    "details{margin:1rem 0}summary{cursor:pointer;font-weight:600;font-size:.9375rem}\n",
    "pre{background:var(--tint);border:1px solid var(--line);border-radius:.4rem;padding:.8rem 1rem;",
    "margin:.4rem 0;white-space:pre-wrap;overflow-wrap:anywhere}\n",
    ".facts{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1.2rem;margin:.3rem 0;",
    "font-size:.9375rem}\n",
    ".facts dt{color:var(--soft)}.facts dd{margin:0;overflow-wrap:anywhere}\n",
    "footer{margin-top:4rem;font-size:.8125rem;color:var(--soft)}\n",
    "@media(max-width:40rem){main{padding:1.5rem 1rem 3rem}.verdicts>div{grid-template-columns:minmax(0,1fr)}",
    ".verdicts dd{font-size:1.25rem}.rank{font-size:.8125rem}.rank th,.rank td{padding:.4rem .3rem}",
    ".box{padding:1rem}.rules li{grid-template-columns:3.6rem 1fr}",
    ".rules .found{grid-column:2}.scroll{margin-left:-1rem;margin-right:-1rem;padding:0 1rem}section{",
    "margin-top:2.5rem}dt .kind{display:inline;margin-left:.5em}.facts{grid-template-columns:1fr}",
    ".facts dd{margin-bottom:.4rem}}\n",
    "@media print{main{max-width:none;padding:0}.panel,.box{break-inside:avoid}}\n",
};

static void write_style(FILE *page)
{
    for (size_t i = 0; i < sizeof style / sizeof style[0]; i++)
        fputs(style[i], page);
}

/* ---- the page ---- */

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
    write_style(page);
    fputs("</style>\n</head>\n<body>\n<main>\n", page);
}

static en_status write_figure(eni_canvas *canvas, const figure *f)
{
    FILE *page = canvas->page;
    const char *title = f->title;
    if (strcmp(f->id, "cells") == 0 && canvas->study->nsettings == 1) title = "Run by run";
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
