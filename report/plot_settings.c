/* plot_settings.c - the settings beside each other ("even beside slow"): time to the target, final accuracy
 * and samples/s, a marker per seed (full: real, open: emulated), a bar at the median, a line over its interval. */
#include <math.h>

#include "core/try.h"
#include "report/html.h"
#include "report/plot.h"

typedef struct panel {
    const char *name, *title;
    eni_metric metric;
    bool from_zero;
} panel;

/* The axis: all runs and some air, from zero where a ratio is to be seen. */
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

/* One row per (arm, setting), the settings of an arm next to each other. */
static void print_points(eni_plot *plot, const eni_study *study, const panel *what)
{
    for (size_t a = 0; a < study->narms; a++)
        for (size_t c = 0; c < study->nsettings; c++) {
            const size_t row = a * study->nsettings + c + 1;
            fprintf(plot->script, "$p%zu << EOD\n", row);
            for (const eni_run *run = NULL; (run = eni_study_next(study, c, a, run)) != NULL;)
                if (isfinite(what->metric(run))) fprintf(plot->script, "%.9g %zu\n", what->metric(run), row);
            fprintf(plot->script, "EOD\n$c%zu << EOD\n",
                    row); /* censored: an arrow from the last evaluation on */
            for (const eni_run *run = NULL; (run = eni_study_next(study, c, a, run)) != NULL;)
                if (isinf(what->metric(run)) && run->last_t > 0)
                    fprintf(plot->script, "%.9g %zu\n", run->last_t, row);
            double values[ENI_MAX_RUNS];
            const size_t n = eni_study_values(study, c, a, what->metric, values);
            const eni_interval interval = eni_stats_interval(values, n);
            eni_summary all = eni_study_summary(study, c, a, what->metric);
            fputs("EOD\n", plot->script);
            if (n > 1 && isfinite(interval.high))
                fprintf(plot->script,
                        "set arrow from first %.9g, first %zu to first %.9g, first %zu heads back size "
                        "screen 0.012,90 lw 1.2 lc rgb '%s'\n",
                        interval.low, row, interval.high, row, eni_plot_colour(&study->arms[a]));
            if (all.n > 1 && isfinite(all.median))
                fprintf(plot->script,
                        "set arrow from first %.9g, first %zu-0.36 to first %.9g, first %zu+0.36 nohead "
                        "front lw 2.2 lc rgb '%s'\n",
                        all.median, row, all.median, row, eni_plot_colour(&study->arms[a]));
        }
}

static en_status draw_panel(eni_canvas *canvas, const panel *what)
{
    const eni_study *study = canvas->study;
    eni_plot_rows rows = {0};
    for (size_t a = 0; a < study->narms; a++)
        for (size_t c = 0; c < study->nsettings; c++)
            eni_plot_add_row(&rows, "%s · %s", study->arms[a].name, study->settings[c].name);
    eni_plot plot;
    EN_TRY(eni_plot_open(&plot, canvas, 370, eni_plot_row_height(rows.n, 26), "cells-%s", what->name));
    eni_plot_set_rows(&plot, &rows);
    fprintf(plot.script, "set xlabel '%s'\nset rmargin 2\n", what->title);
    double low, high;
    find_range(study, what, &low, &high);
    eni_plot_set_axis(&plot, low, high);
    if (low > 0) eni_plot_cut_axis(&plot, true);
    print_points(&plot, study, what);
    fputs("plot ", plot.script);
    for (size_t a = 0; a < study->narms; a++)
        for (size_t c = 0; c < study->nsettings; c++) {
            const size_t row = a * study->nsettings + c + 1;
            const eni_arm *arm = &study->arms[a];
            fprintf(plot.script,
                    "$p%zu using 1:2 with points pt %d ps 0.95 lw 1.5 lc rgb '%s', $c%zu using "
                    "1:2:(%.6g):(0) with vectors filled head size screen 0.018,22 lw 1.5 lc rgb '%s', ",
                    row, eni_plot_marker(arm, eni_study_is_real(study, c)), eni_plot_colour(arm), row,
                    0.06 * (high - low), eni_plot_colour(arm));
        }
    fputs("NaN\n", plot.script);
    eni_plot_label(&plot, "%s", what->title);
    return eni_plot_close(&plot);
}

en_status eni_plot_settings(eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    char time_title[64];
    snprintf(time_title, sizeof time_title, "seconds to %g %% accuracy", 100 * study->target);
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
    eni_csv csv;
    EN_TRY(eni_csv_open(&csv, ENI_CSV_RUN ",seconds_to_target,samples_to_target,test_accuracy,samples_per_s,"
                                          "last_evaluation_s,test_loss"));
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;) {
        eni_csv_run(&csv, study, run);
        ENI_CSV_PUT(&csv, run->reach.t, run->reach.samples, run->test_accuracy, eni_metric_samples_per_s(run),
                    run->last_t, run->test_loss);
        fputc('\n', csv.file);
    }
    return eni_csv_close(&csv, canvas->dir, "cells", canvas->page);
}
