/* plot_curves.c - accuracy (loss, without classes) over the training clock and over samples, side by side:
 * speed and learning are two questions. A thin line per seed, a bold line for the median. The accuracy is of
 * the samples held out of training; of the test set without a holdout. */
#include <math.h>

#include "core/try.h"
#include "report/html.h"
#include "report/plot.h"

enum { OVER_TIME, OVER_SAMPLES };

/* A point's value: percent, or the loss of a regression; NAN if it has none. */
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

/* Begins the line of another run or, after those, of an arm's median. */
static void begin_line(eni_plot *plot, size_t *nlines, size_t setting, size_t arm)
{
    if (*nlines > 0) fputs("\n\n", plot->data);
    fprintf(plot->variables, "line_arm[%zu] = %zu\nline_open[%zu] = %d\n", *nlines + 1, arm + 1, *nlines + 1,
            !eni_study_is_real(plot->canvas->study, setting));
    ++*nlines;
}

static double across_of(const eni_eval *eval, int over)
{
    return over == OVER_TIME ? eval->t : eval->samples / 1000;
}

static void put_run(eni_plot *plot, const eni_run *run, int over)
{
    for (size_t i = 0; i < run->nevals; i++) {
        const double height = height_of(plot->canvas->study, &run->evals[i]);
        if (!isnan(height)) ENI_PLOT_PUT(plot, across_of(&run->evals[i], over), height);
    }
}

/* The i-th evaluation that all runs of the study share; NULL after the last. */
static const eni_eval *grid_at(const eni_run *run, size_t i)
{
    for (size_t e = 0; e < run->nevals; e++)
        if (!run->evals[e].is_bracket && i-- == 0) return &run->evals[e];
    return NULL;
}

/* Runs of one arm evaluate after the same numbers of samples, so the i-th evaluations belong together. */
static void put_median(eni_plot *plot, size_t *nlines, size_t setting, size_t arm, int over)
{
    const eni_study *study = plot->canvas->study;
    double x[ENI_MAX_RUNS], y[ENI_MAX_RUNS];
    for (size_t i = 0;; i++) {
        size_t n = 0, runs = 0;
        for (const eni_run *run = NULL; (run = eni_study_next(study, setting, arm, run)) != NULL;) {
            if (!run->is_complete) continue;
            const eni_eval *eval = grid_at(run, i);
            runs++;
            if (eval == NULL || isnan(height_of(study, eval))) continue;
            x[n] = across_of(eval, over);
            y[n++] = height_of(study, eval);
        }
        if (n == 0 || n < runs) return;
        if (i == 0) begin_line(plot, nlines, setting, arm);
        ENI_PLOT_PUT(plot, eni_stats_median(x, n), eni_stats_median(y, n));
    }
}

/* The least accuracy worth showing: the start at chance level would flatten everything else. */
static double floor_of(const eni_study *study)
{
    double least = 100 * study->target.value;
    if (!study->has_classes) return 0;
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;) {
        double all = run->nevals > 0 ? run->evals[run->nevals - 1].samples : 0;
        for (size_t i = 0; i < run->nevals; i++)
            if (run->evals[i].samples >= 0.1 * all && 100 * run->evals[i].accuracy < least)
                least = 100 * run->evals[i].accuracy;
    }
    return fmax(0, 10 * floor(least / 10));
}

/* ENI_ANY: the medians of all settings. */
static en_status draw_panel(eni_canvas *canvas, size_t setting, int over, double most_x)
{
    const eni_study *study = canvas->study;
    const bool is_shared = setting == ENI_ANY;
    const size_t most = study->nruns + study->nsettings * study->narms;
    const char *axis = over == OVER_TIME ? "time" : "samples";
    size_t nlines = 0;
    char what[32], target[ENI_TARGET_TEXT], name[24] = "all";
    eni_plot plot;
    if (!is_shared) snprintf(name, sizeof name, "%zu", setting);
    EN_TRY(eni_plot_open(&plot, canvas, "accuracy-%s-%s", name, axis));
    snprintf(what, sizeof what, "%s %s", study->has_holdout ? "holdout" : "test",
             study->has_classes ? "accuracy" : "loss");
    eni_plot_label(&plot, "%s over %s, setting %s", what, over == OVER_TIME ? "the training clock" : axis,
                   is_shared ? "by setting" : study->settings[setting].name);
    eni_plot_text(&plot, what, sizeof what, "what");
    eni_plot_text(&plot, eni_target_text(&study->target, " %", ' ', target), sizeof target, "target_text");
    fprintf(plot.variables,
            "low = 0\nhigh = %.9g\nbottom = %g\ntarget = %g\nhas_target = %d\nhas_classes = %d\nis_over_time "
            "= %d\n"
            "array line_arm[%zu]\narray line_open[%zu]\n",
            1.02 * most_x, floor_of(study), study->target.value * (study->target.is_loss ? 1 : 100),
            study->has_classes || study->target.is_loss, study->has_classes, over == OVER_TIME, most, most);
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, ENI_ANY, run)) != NULL;) {
        if (is_shared || !has_points(study, run)) continue;
        begin_line(&plot, &nlines, setting, run->arm);
        put_run(&plot, run, over);
    }
    fprintf(plot.variables, "runs = %zu\n", nlines);
    for (size_t c = 0; c < study->nsettings; c++)
        for (size_t a = 0; a < study->narms && (is_shared || c == setting); a++)
            put_median(&plot, &nlines, c, a, over);
    fprintf(plot.variables, "lines = %zu\n", nlines);
    return eni_plot_close(&plot, eni_figures_curves_gp);
}

/* The greatest time and number of samples (thousands) of a setting's curves; false if it has none. */
static bool ends_of(const eni_study *study, size_t setting, double *t_out, double *samples_out)
{
    *t_out = *samples_out = 0;
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, ENI_ANY, run)) != NULL;) {
        if (!has_points(study, run)) continue;
        *t_out = fmax(*t_out, run->evals[run->nevals - 1].t);
        *samples_out = fmax(*samples_out, run->evals[run->nevals - 1].samples / 1000);
    }
    return *t_out > 0;
}

/* A page of several studies: what a sample teaches does not depend on whose clock ran. */
static en_status draw_shared(eni_canvas *canvas)
{
    double most_t, most_samples;
    if (canvas->study->ndirs < 2 || !ends_of(canvas->study, ENI_ANY, &most_t, &most_samples)) return EN_OK;
    fputs("<h3>All settings over samples <span class=\"kind\">medians; full markers: real, open: emulated or "
          "simulated</span></h3>\n<div class=\"panels\">\n",
          canvas->page);
    EN_TRY(draw_panel(canvas, ENI_ANY, OVER_SAMPLES, most_samples));
    fputs("</div>\n", canvas->page);
    return EN_OK;
}

static en_status draw_setting(eni_canvas *canvas, size_t setting)
{
    const eni_study *study = canvas->study;
    double most_t, most_samples;
    if (!ends_of(study, setting, &most_t, &most_samples)) {
        eni_html_put(canvas->page, "%s: no measurements.", study->settings[setting].name);
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

static void put_evals(eni_csv *csv, const eni_study *study, const eni_run *run)
{
    for (size_t i = 0; i < run->nevals; i++) {
        const eni_eval *eval = &run->evals[i];
        eni_csv_run(csv, study, run);
        ENI_CSV_PUT(csv, eval->samples, eval->t);
        fprintf(csv->file, ",%s", study->has_holdout ? "holdout" : "test");
        ENI_CSV_PUT(csv, eval->loss, eval->accuracy, eval->is_bracket);
    }
}

en_status eni_plot_curves(eni_canvas *canvas)
{
    for (size_t c = 0; c < canvas->study->nsettings; c++)
        EN_TRY(draw_setting(canvas, c));
    EN_TRY(draw_shared(canvas));
    return eni_csv_write(canvas, "accuracy", ENI_CSV_RUN ",samples,seconds,set,loss,accuracy,bracket",
                         put_evals);
}
