/* plot_pipeline.c - one step of every arm whose ranks have several devices (--parallel): a row per stage, a
 * box per forward or backward of a chunk, and the bubble between boxes. From result.json's "pipeline"
 * (docs/parallel.md). */
#include <math.h>
#include <stdio.h>

#include "core/try.h"
#include "report/html.h"
#include "report/plot.h"

static double length_of(const eni_strip *strip)
{
    double end = 0;
    for (size_t i = 0; i < strip->nturns; i++)
        end = fmax(end, strip->turns[i].end);
    return end;
}

/* The share of the drawn step in which its stages wait. */
static double bubble_of(const eni_strip *strip)
{
    double busy = 0;
    for (size_t i = 0; i < strip->nturns; i++)
        busy += strip->turns[i].end - strip->turns[i].begin;
    return 1 - busy / (strip->stages * length_of(strip));
}

static en_status draw(eni_canvas *canvas, const eni_run *run)
{
    const eni_strip *strip = &run->pipeline;
    eni_plot plot;
    EN_TRY(eni_plot_open(&plot, canvas, "pipeline-%zu-%zu", run->setting, run->arm));
    eni_plot_title(&plot, "One step, stage by stage", run->setting, &canvas->study->arms[run->arm]);
    fprintf(plot.variables, "ms = %.6g\nseed = '%lld'\n", length_of(strip), (long long)run->seed);
    for (int s = 0; s < strip->stages; s++)
        eni_plot_add_row(&plot, strip->is_of_replicas ? "device %d" : "stage %d", s);
    for (const eni_strip_turn *turn = strip->turns; turn < strip->turns + strip->nturns; turn++)
        ENI_PLOT_PUT(&plot, turn->stage + 1, turn->begin, turn->end, turn->is_backward, turn->chunk);
    return eni_plot_close(&plot, eni_figures_pipeline_gp);
}

static void write_percent(FILE *page, const char *name, double share)
{
    if (!isnan(share)) eni_html_put(page, ", %s %.1f %%", name, 100 * share);
}

/* bubble: measured 18.2 %, predicted 17.4 %, ideal 11.1 % */
static void describe(FILE *page, const eni_run *run)
{
    const eni_strip *strip = &run->pipeline;
    eni_html_put(page, "<p class=\"note\"><b>bubble: measured %.1f %%</b>", 100 * strip->bubble);
    write_percent(page, "predicted", strip->bubble_predicted);
    write_percent(page, "ideal", strip->bubble_ideal);
    eni_html_put(page, "; of the step above %.1f %%. ", 100 * bubble_of(strip));
    if (strip->is_of_replicas)
        eni_html_put(page, "%d devices with the whole network each", strip->stages);
    else
        eni_html_put(page, "%d stages, %.0f micro-batches, %s", strip->stages, strip->micro_batches,
                     strip->schedule == NULL ? "?" : strip->schedule);
    for (size_t i = 0; i < json_array_size(strip->cuts); i++) {
        const char *cut = json_string_value(json_array_get(strip->cuts, i));
        eni_html_put(page, "%s%s", i > 0 ? ", " : "; cut before ", cut == NULL ? "?" : cut);
    }
    if (run->outside > ENI_BUSY_SHARE)
        eni_html_put(page,
                     ". Other processes took %.0f %% of the cores meanwhile: these are from a busy machine",
                     100 * run->outside);
    fputs(".</p>\n", page);
}

static void csv_lines(eni_csv *csv, const eni_study *study, const eni_run *run)
{
    for (size_t i = 0; i < run->pipeline.nturns; i++) {
        const eni_strip_turn *turn = &run->pipeline.turns[i];
        eni_csv_run(csv, study, run);
        fprintf(csv->file, ",%d,%s,%d", turn->stage, turn->is_backward ? "backward" : "forward", turn->chunk);
        ENI_CSV_PUT(csv, turn->begin, turn->end);
    }
}

/* The first run of (setting, arm) that has a strip. */
static const eni_run *first_of(const eni_study *study, size_t setting, size_t arm)
{
    const eni_run *run = NULL;
    while ((run = eni_study_next(study, setting, arm, run)) != NULL)
        if (run->is_complete && run->pipeline.nturns > 0) return run;
    return NULL;
}

bool eni_plot_has_pipeline(const eni_canvas *canvas)
{
    return first_of(canvas->study, ENI_ANY, ENI_ANY) != NULL;
}

en_status eni_plot_pipeline(eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    const size_t n = study->narms * study->nsettings;
    const eni_run *run;
    eni_csv csv;
    fputs("<div class=\"panels wide\">\n", canvas->page);
    for (size_t i = 0; i < n; i++) {
        if ((run = first_of(study, i % study->nsettings, i / study->nsettings)) == NULL) continue;
        fputs("<div>\n", canvas->page);
        EN_TRY(draw(canvas, run));
        describe(canvas->page, run);
        fputs("</div>\n", canvas->page);
    }
    fputs("</div>\n", canvas->page);
    EN_TRY(eni_csv_open(&csv, ENI_CSV_RUN ",stage,turn,chunk,begin_ms,end_ms"));
    for (size_t i = 0; i < n; i++)
        if ((run = first_of(study, i % study->nsettings, i / study->nsettings)) != NULL)
            csv_lines(&csv, study, run);
    return eni_csv_close(&csv, canvas->dir, "pipeline", canvas->page);
}
