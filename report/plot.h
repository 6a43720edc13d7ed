/* plot.h - one picture: C writes variables and data, a figure's gnuplot script (report/figures) draws them in a child
 * process, and its SVG goes into a page.
 *
 *     eni_plot plot;
 *     EN_TRY(eni_plot_open(&plot, canvas, "steps-%d", 0));
 *     fprintf(plot.variables, "high = %.9g\n", ms);
 *     ENI_PLOT_PUT(&plot, row, from, to);
 *     EN_TRY(eni_plot_close(&plot, eni_figures_steps_gp));
 *
 * gnuplot, so that a figure can be checked: each script stays, with its data, in DIR/plots beside its CSV. */
#ifndef REPORT_PLOT_H
#define REPORT_PLOT_H

#include <stdio.h>

#include "report/report_study.h"

/* Formats of a figure: those of files, and the page's own. */
enum { ENI_PLOT_PDF, ENI_PLOT_PNG, ENI_PLOT_FORMATS, ENI_PLOT_SVG = ENI_PLOT_FORMATS };

/* Shared by all figures of one report. */
typedef struct eni_canvas {
    const eni_study *study;
    const struct eni_fairness *fairness; /* for the page; no figure uses it */
    const struct eni_verdict *verdict;
    FILE *page;                     /* the HTML being written */
    char *dir;                      /* DIR/plots */
    const char *gnuplot;            /* program, looked up in PATH; NULL after it failed to start or to end */
    bool formats[ENI_PLOT_FORMATS]; /* each figure also as DIR/NAME.pdf, as DIR/NAME.png */
    size_t nfailed;                 /* pictures that gnuplot failed to draw; the page has a note instead */
} eni_canvas;

/* A script being written. Its variables begin with arms (the number), colour, dash and marker of each, and
 * phase (the colour of each). `rows` and their labels are set by eni_plot_add_row. All arrays count from 1. */
typedef struct eni_plot {
    eni_canvas *canvas;
    char name[64];
    char label[400];        /* for screen readers */
    FILE *variables, *data; /* in memory; text from outside goes into `variables` only by eni_plot_text */
    char *text[2];
    size_t bytes[2], nrows, widest; /* rows, and letters of the longest label */
} eni_plot;

/* Starts a script. The name: [a-z0-9-]+, unique in the page. */
en_status eni_plot_open(eni_plot *plot, eni_canvas *canvas, const char *name, ...)
    __attribute__((format(printf, 3, 4)));

/* Sets the picture's name for screen readers. */
void eni_plot_label(eni_plot *plot, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Sets the label to `what`, the setting and its kind, and shows the rest without `what` as the title: "even
 * (real)"; preceded by the arm unless NULL: "ps-async, even (real)". */
void eni_plot_title(eni_plot *plot, const char *what, size_t setting, const eni_arm *arm);

/* Sets a variable ("label[%zu]", 3) to a text, truncated to `letters`. */
void eni_plot_text(eni_plot *plot, const char *text, size_t letters, const char *variable, ...)
    __attribute__((format(printf, 4, 5)));

/* Adds a row, from top to bottom, to a plot with labelled rows. */
void eni_plot_add_row(eni_plot *plot, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Adds a line to the data. */
void eni_plot_put(eni_plot *plot, const double *values, size_t n);
#define ENI_PLOT_PUT(plot, ...)                                                                              \
    eni_plot_put(plot, (const double[]){__VA_ARGS__}, sizeof((const double[]){__VA_ARGS__}) / sizeof(double))

/* Runs gnuplot on the variables, the data and the figure's script (deadline 20 s) and writes the picture into
 * the page; if gnuplot fails, a note takes its place and one warning is logged. A canvas without a page gets
 * only the files of its formats, or EN_EIO. No script (NULL): no picture. Frees the plot in any case. EN_EIO
 * if a file cannot be written, EN_ENOMEM. Blocks. */
en_status eni_plot_close(eni_plot *plot, const char *script);

/* The scripts, report/figures/NAME.gp, and the page's own texts; see en_embed in cmake/Entrain.cmake. */
extern const char eni_figures_common_gp[], eni_figures_curves_gp[], eni_figures_steps_gp[],
    eni_figures_settings_gp[], eni_figures_staleness_gp[], eni_figures_bytes_gp[], eni_figures_timeline_gp[],
    eni_figures_pipeline_gp[], eni_figures_presence_gp[], eni_figures_shares_gp[], eni_figures_legend_gp[],
    eni_page_css[], eni_page_html[];

/* Prints text as a gnuplot string that cannot be closed from inside (single quotes doubled; backquotes, which
 * run a shell, and control characters replaced), truncated to `letters`. */
void eni_plot_quote(FILE *script, const char *text, size_t letters);

/* The data of a figure, as CSV (RFC 4180). */
typedef struct eni_csv {
    FILE *file;
    char *text;
    size_t bytes;
    bool has_lines; /* behind the head */
    bool is_blank;  /* numbers are left empty: the run has none */
} eni_csv;

/* Starts it with the line of column names. */
en_status eni_csv_open(eni_csv *csv, const char *head);
/* Begin a line. The first columns of a run's line, and their values: setting, arm, seed, kind ("real", "emulated", "simulated") and
 * what was emulated, empty if nothing was. Several slow ranks: "0;2". */
#define ENI_CSV_RUN "setting,arm,seed,kind,straggler_rank,straggler_factor,net_bytes_per_s,net_delay_s"
void eni_csv_run(eni_csv *csv, const eni_study *study, const eni_run *run);
/* Or the names of a setting and an arm. */
void eni_csv_names(eni_csv *csv, const eni_study *study, size_t setting, size_t arm);
void eni_csv_text(eni_csv *csv, const char *text);
/* Writes a name for cut and awk: commas become ';', blanks and quotes '_'. */
void eni_csv_name(eni_csv *csv, const char *name);
/* Each number with a comma before it: whole ones exactly, others as "%.9g"; nothing for NAN, inf for a censored time. */
void eni_csv_put(eni_csv *csv, const double *values, size_t n);
#define ENI_CSV_PUT(csv, ...)                                                                                \
    eni_csv_put(csv, (const double[]){__VA_ARGS__}, sizeof((const double[]){__VA_ARGS__}) / sizeof(double))
/* Writes DIR/NAME.csv, and a download link with the data inside into the page (NULL: none); frees. */
en_status eni_csv_close(eni_csv *csv, const char *dir, const char *name, FILE *page);
/* Writes a whole CSV: its head, and the lines that `put` writes for each run of the study. */
en_status eni_csv_write(const eni_canvas *canvas, const char *name, const char *head,
                        void (*put)(eni_csv *csv, const eni_study *study, const eni_run *run));

/* A picture as gnuplot printed it: text for SVG, followed by a 0; freed with eni_free. */
typedef struct eni_picture {
    char *data;
    size_t bytes;
} eni_picture;

/* Runs `gnuplot` on `script` and returns its output, which must begin with or contain `mark` ("<svg",
 * "%PDF"); else no picture, and a reason. Exposed for its test. */
eni_picture eni_plot_run(const char *gnuplot, const char *script, size_t bytes, const char *mark,
                         int64_t timeout_ns, char *reason_out, size_t reason_size);

/* Writes the legends, which the page has as text, as legend-arms and legend-phases in DIR/plots, in each
 * format. EN_EIO, logged, if gnuplot fails. Blocks like eni_plot_run. */
en_status eni_plot_legends(const eni_canvas *canvas);

/* Writes gnuplot's SVG into a page: no XML head, no titles, each id with `prefix` in front (several pictures
 * share one page), an accessible name. */
void eni_plot_embed(FILE *page, const char *svg, const char *prefix, const char *label);

/* ---- style (plot_style.c) ------------------------------------------------------------------------------ */

/* Writes the variables that every script has: colours (Okabe & Ito 2008), dashes and markers of the arms, and the
 * colours of the phases. */
void eni_plot_style(const eni_study *study, FILE *variables);

/* Each phase of a step. */
typedef struct eni_plot_phase {
    const char *name, *colour; /* "wait", "#e4e8ec"; of a sleep hatched, since it is emulated */
} eni_plot_phase;
extern const eni_plot_phase eni_plot_phases[ENI_PHASES];

/* Writes the arm's marker as a small inline SVG, open when not real. */
void eni_plot_swatch(FILE *page, const eni_arm *arm, bool is_real);
/* A line of legend: the arms or phases that the figure shows (NULL: all). */
void eni_plot_arm_legend(const eni_canvas *canvas, const bool shown[]);
void eni_plot_phase_legend(const eni_canvas *canvas, const bool shown[], bool with_hidden);

/* ---- figures, in the page's order; each writes its panels and its CSV link ----------------------------- */

en_status eni_plot_curves(eni_canvas *canvas);    /* plot_curves.c: accuracy over time and over samples */
en_status eni_plot_steps(eni_canvas *canvas);     /* plot_bars.c: where a step's time goes, per role */
en_status eni_plot_settings(eni_canvas *canvas);  /* plot_settings.c: settings side by side, a dot a seed */
en_status eni_plot_staleness(eni_canvas *canvas); /* plot_staleness.c: histogram per worker */
en_status eni_plot_bytes(eni_canvas *canvas);     /* plot_bars.c: payload, wire, shared memory, theory */
en_status eni_plot_timeline(eni_canvas *canvas);  /* plot_timeline.c: one step of workers and psd */
en_status eni_plot_pipeline(eni_canvas *canvas);  /* plot_pipeline.c: one step, a row a stage */
bool eni_plot_has_pipeline(const eni_canvas *canvas); /* whether some run has one */
en_status eni_plot_presence(eni_canvas *canvas);      /* plot_presence.c: ranks that came and went */
bool eni_plot_has_presence(const eni_canvas *canvas); /* whether some run has any */
en_status eni_plot_shares(eni_canvas *canvas);        /* plot_bars.c: samples applied per worker */

/* ---- one step of a run's trace.json, which core/trace.h writes (plot_timeline.c) ----------------------- */

enum { ENI_TRACE_LANES = 32 };

/* A thread of a process, a line of the picture. */
typedef struct eni_trace_lane {
    long pid, tid;
    char name[80]; /* "rank 0 compute" */
} eni_trace_lane;

typedef struct eni_trace_part {
    size_t lane;
    double begin, end; /* ms from the step's begin; may reach over its edges */
    int phase;         /* ENI_PHASE_*, ENI_PHASE_HIDDEN; -1: something else */
    char name[32];
} eni_trace_part;

typedef struct eni_trace_step {
    long step;
    double ms; /* from the first begin to the last end of rank 0's spans of this step */
    size_t nlanes, nparts;
    eni_trace_lane lanes[ENI_TRACE_LANES]; /* workers by rank, then the servers */
    eni_trace_part *parts;                 /* longest first, so that nested spans are drawn on top */
} eni_trace_step;

/* Reads `path` and cuts out the step of median length, leaving out the first fifth of the steps (start-up).
 * EN_ENOENT (not logged) without a trace or a step in it; EN_EFORMAT, EN_EIO and EN_ENOMEM logged.
 * Freed with eni_trace_step_fini. */
en_status eni_trace_step_load(const char *path, eni_trace_step *step_out);
void eni_trace_step_fini(eni_trace_step *step);

#endif
