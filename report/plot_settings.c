/* plot_settings.c - the settings side by side: time to the target, final accuracy and samples/s, a marker per
 * seed (full: real, open: emulated), a bar at the median, a line for its interval. */
#include <math.h>

#include "core/try.h"
#include "report/plot.h"

typedef struct panel {
    const char *name, *title;
    eni_metric metric;
    bool from_zero;
} panel;

/* The axis: all runs with a margin, from zero where a ratio should be seen. */
static void find_range(const eni_study *study, const panel *what, double *low_out, double *high_out)
{
    double low = INFINITY, high = -INFINITY;
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;) {
        double value = what->metric(run);
        if (isinf(value)) value = run->last_t;
        if (value < low) low = value;
        if (value > high) high = value;
    }
    double air = fmax(0.1 * (high - low), 0.02 * fabs(high));
    *low_out = what->from_zero ? 0 : fmax(low - air, 0);
    *high_out = high + air;
}

/* The row of a setting of an arm: its runs, the ends of those that missed the target, interval and median. */
static void put_row(eni_plot *plot, const panel *what, size_t setting, size_t arm, double arrow)
{
    enum { RUN, MISSED, INTERVAL, MEDIAN };
    const eni_study *study = plot->canvas->study;
    const bool is_real = eni_study_is_real(study, setting);
    double values[ENI_MAX_RUNS];
    const size_t n = eni_study_values(study, setting, arm, what->metric, values);
    const eni_interval interval = eni_stats_interval(values, n);
    const eni_summary all = eni_study_summary(study, setting, arm, what->metric);
    eni_plot_add_row(plot, "%s · %s", study->arms[arm].name, study->settings[setting].name);
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, arm, run)) != NULL;) {
        const double value = what->metric(run);
        if (isfinite(value)) ENI_PLOT_PUT(plot, plot->nrows, arm + 1, is_real, RUN, value);
        if (isinf(value) && run->last_t > 0)
            ENI_PLOT_PUT(plot, plot->nrows, arm + 1, is_real, MISSED, run->last_t, arrow);
    }
    if (n > 1 && isfinite(interval.high))
        ENI_PLOT_PUT(plot, plot->nrows, arm + 1, is_real, INTERVAL, interval.low, interval.high);
    if (all.n > 1 && isfinite(all.median))
        ENI_PLOT_PUT(plot, plot->nrows, arm + 1, is_real, MEDIAN, all.median);
}

static en_status draw_panel(eni_canvas *canvas, const panel *what)
{
    const eni_study *study = canvas->study;
    double low, high;
    eni_plot plot;
    EN_TRY(eni_plot_open(&plot, canvas, "settings-%s", what->name));
    eni_plot_label(&plot, "%s", what->title);
    eni_plot_text(&plot, what->title, 64, "across");
    find_range(study, what, &low, &high);
    fprintf(plot.variables, "low = %.9g\nhigh = %.9g\n", low, high);
    for (size_t a = 0; a < study->narms; a++)
        for (size_t c = 0; c < study->nsettings; c++)
            put_row(&plot, what, c, a, 0.06 * (high - low));
    return eni_plot_close(&plot, eni_figures_settings_gp);
}

static void put_run(eni_csv *csv, const eni_study *study, const eni_run *run)
{
    eni_csv_run(csv, study, run);
    ENI_CSV_PUT(csv, run->reach.t, run->reach.samples, run->test_accuracy, eni_metric_samples_per_s(run),
                run->last_t, run->test_loss);
}

en_status eni_plot_settings(eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    char time_title[64], target[ENI_TARGET_TEXT];
    snprintf(time_title, sizeof time_title, "seconds to %s%s",
             eni_target_text(&study->target, " %", ' ', target), study->target.is_loss ? "" : " accuracy");
    const panel panels[] = {{"time", time_title, eni_metric_reach_t, true},
                            {"accuracy", study->has_classes ? "final test accuracy, %" : "final test loss",
                             study->has_classes ? eni_metric_accuracy_percent : eni_metric_loss, false},
                            {"speed", "samples/s, thousands", eni_metric_thousand_per_s, true}};
    fputs("<div class=\"panels three\">\n", canvas->page);
    for (size_t i = 0; i < sizeof panels / sizeof panels[0]; i++) {
        const double least = eni_study_summary(study, ENI_ANY, ENI_ANY, panels[i].metric).min;
        if (isfinite(least)) EN_TRY(draw_panel(canvas, &panels[i]));
    }
    fputs("</div>\n", canvas->page);
    return eni_csv_write(canvas, "settings",
                         ENI_CSV_RUN ",seconds_to_target,samples_to_target,test_accuracy,samples_per_s,"
                                     "last_evaluation_s,test_loss",
                         put_run);
}
