/* plot_curves.c - accuracy (loss, where there are no classes) over the training clock and over samples, side
 * by side: how fast it runs and how well it learns are two questions. A thin line per seed, a bold line for
 * the median. The accuracy is of the samples held out of training; of the test set where none were. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/try.h"
#include "report/html.h"
#include "report/plot.h"

enum { OVER_TIME, OVER_SAMPLES };

/* How high a point is: percent, or the loss of a regression; NAN: there is none. */
static double height_of(const eni_study *study, const eni_eval *eval)
{
    return study->has_classes ? 100 * eval->accuracy : eval->loss;
}

static bool has_points(const eni_study *study, const eni_run *run)
{
    for (size_t i = 0; i < run->nevals; i++)
        if (!isnan(height_of(study, &run->evals[i]))) return true;
    return false;
}

/* Numbers of the data block of one run ($r<index>) and of one arm's median ($m<arm>). */
static void print_run(eni_plot *plot, const eni_run *run, int over)
{
    fprintf(plot->script, "$r%td << EOD\n", run - plot->canvas->study->runs);
    for (size_t i = 0; i < run->nevals; i++) {
        const eni_eval *eval = &run->evals[i];
        const double height = height_of(plot->canvas->study, eval);
        if (isnan(height)) continue;
        fprintf(plot->script, "%.9g %.6g\n", over == OVER_TIME ? eval->t : eval->samples / 1000, height);
    }
    fputs("EOD\n", plot->script);
}

/* The i-th evaluation that every run of the study has alike; NULL behind the last. */
static const eni_eval *grid_at(const eni_run *run, size_t i)
{
    for (size_t e = 0; e < run->nevals; e++)
        if (!run->evals[e].is_bracket && i-- == 0) return &run->evals[e];
    return NULL;
}

/* Runs of one arm evaluate after the same numbers of samples, so the i-th evaluations belong together. */
static size_t print_median(eni_plot *plot, const eni_study *study, size_t setting, size_t arm, int over)
{
    double x[ENI_MAX_RUNS], y[ENI_MAX_RUNS];
    size_t printed = 0;
    fprintf(plot->script, "$m%zu << EOD\n", arm);
    for (size_t i = 0;; i++) {
        size_t n = 0, runs = 0;
        for (const eni_run *run = NULL; (run = eni_study_next(study, setting, arm, run)) != NULL;) {
            if (!run->is_complete) continue;
            const eni_eval *eval = grid_at(run, i);
            runs++;
            if (eval == NULL || isnan(height_of(study, eval))) continue;
            x[n] = over == OVER_TIME ? eval->t : eval->samples / 1000;
            y[n++] = height_of(study, eval);
        }
        if (n == 0 || n < runs) break;
        double across = eni_stats_median(x, n), up = eni_stats_median(y, n);
        fprintf(plot->script, "%.9g %.6g\n", across, up);
        printed++;
    }
    fputs("EOD\n", plot->script);
    return printed;
}

/* The least accuracy worth showing: the start at chance level would flatten everything else. */
static double floor_of(const eni_study *study)
{
    double least = 100 * study->target;
    if (!study->has_classes) return 0;
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;) {
        double all = run->nevals > 0 ? run->evals[run->nevals - 1].samples : 0;
        for (size_t i = 0; i < run->nevals; i++)
            if (run->evals[i].samples >= 0.1 * all && 100 * run->evals[i].accuracy < least)
                least = 100 * run->evals[i].accuracy;
    }
    return fmax(0, 10 * floor(least / 10));
}

static void print_curves(eni_plot *plot, const eni_study *study, size_t setting, const size_t medians[])
{
    bool is_real = eni_study_is_real(study, setting);
    fputs("plot ", plot->script);
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, ENI_ANY, run)) != NULL;) {
        const eni_arm *arm = &study->arms[run->arm];
        if (has_points(study, run))
            fprintf(plot->script, "$r%td using 1:2 with lines lw 0.8 dt %s lc rgb '#99%s', ",
                    run - study->runs, eni_plot_dash(arm), eni_plot_colour(arm) + 1);
    }
    for (size_t a = 0; a < study->narms; a++) {
        const eni_arm *arm = &study->arms[a];
        if (medians[a] == 0) continue;
        fprintf(plot->script, "$m%zu using 1:2 with linespoints lw 2.4 dt %s pt %d ps 0.62 lc rgb '%s', ", a,
                eni_plot_dash(arm), eni_plot_marker(arm, is_real), eni_plot_colour(arm));
    }
    fputs("NaN\n", plot->script);
}

static en_status draw_panel(eni_canvas *canvas, size_t setting, int over, double most_x)
{
    const eni_study *study = canvas->study;
    eni_plot plot;
    EN_TRY(eni_plot_open(&plot, canvas, 480, 320, "accuracy-%zu-%s", setting,
                         over == OVER_TIME ? "time" : "samples"));
    char what[32];
    snprintf(what, sizeof what, "%s %s", study->has_holdout ? "holdout" : "test",
             study->has_classes ? "accuracy" : "loss");
    eni_plot_label(&plot, "%s over %s, setting %s", what,
                   over == OVER_TIME ? "the training clock" : "samples", study->settings[setting].name);
    fprintf(plot.script,
            "set xlabel '%s'\nset ylabel '%s%s' offset 1,0\nset yrange [%g:*]\n"
            "set rmargin 2\n",
            over == OVER_TIME ? "training clock, s" : "samples, thousands", what,
            study->has_classes ? ", %" : "", floor_of(study));
    if (study->has_classes)
        fprintf(
            plot.script,
            "set arrow 1 from graph 0, first %g to graph 1, first %g nohead lc rgb '#3d4853' dt '-' lw 1\n"
            "set label 1 'target %g %%' at graph 0.985, first %g right offset 0,0.55 tc rgb '#3d4853' font "
            "',12'\n",
            100 * study->target, 100 * study->target, 100 * study->target, 100 * study->target);
    eni_plot_set_axis(&plot, 0, 1.02 * most_x);
    if (floor_of(study) > 0) eni_plot_cut_axis(&plot, false);
    size_t medians[ENI_MAX_ARMS];
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, ENI_ANY, run)) != NULL;)
        if (has_points(study, run)) print_run(&plot, run, over);
    for (size_t a = 0; a < study->narms; a++)
        medians[a] = print_median(&plot, study, setting, a, over);
    print_curves(&plot, study, setting, medians);
    return eni_plot_close(&plot);
}

static en_status draw_setting(eni_canvas *canvas, size_t setting)
{
    const eni_study *study = canvas->study;
    double most_t = 0, most_samples = 0;
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, ENI_ANY, run)) != NULL;) {
        if (!has_points(study, run)) continue;
        most_t = fmax(most_t, run->evals[run->nevals - 1].t);
        most_samples = fmax(most_samples, run->evals[run->nevals - 1].samples / 1000);
    }
    if (!(most_t > 0)) {
        eni_html_put(canvas->page, "%s: nothing was measured.", study->settings[setting].name);
        return EN_OK;
    }
    char kind[256];
    eni_study_kind(study, setting, kind, sizeof kind);
    eni_html_put(canvas->page, "<h3>%s <span class=\"kind\">%s</span></h3>\n<div class=\"panels\">\n",
                 study->settings[setting].name, kind);
    EN_TRY(draw_panel(canvas, setting, OVER_TIME, most_t));
    EN_TRY(draw_panel(canvas, setting, OVER_SAMPLES, most_samples));
    fputs("</div>\n", canvas->page);
    return EN_OK;
}

en_status eni_plot_curves(eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    for (size_t c = 0; c < study->nsettings; c++)
        EN_TRY(draw_setting(canvas, c));
    eni_csv csv;
    EN_TRY(eni_csv_open(&csv, ENI_CSV_RUN ",samples,seconds,set,loss,accuracy,bracket"));
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;)
        for (size_t i = 0; i < run->nevals; i++) {
            const eni_eval *eval = &run->evals[i];
            eni_csv_run(&csv, study, run);
            ENI_CSV_PUT(&csv, eval->samples, eval->t);
            fprintf(csv.file, ",%s", study->has_holdout ? "holdout" : "test");
            ENI_CSV_PUT(&csv, eval->loss, eval->accuracy, eval->is_bracket);
            fputc('\n', csv.file);
        }
    return eni_csv_close(&csv, canvas->dir, "accuracy", canvas->page);
}
