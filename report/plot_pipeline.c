/* plot_pipeline.c - one step of every arm whose ranks have several devices (--parallel): a row a stage, a box a forward or
 * backward of a chunk, and between boxes the bubble. From result.json's "pipeline" (docs/parallel.md). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/try.h"
#include "report/html.h"
#include "report/plot.h"

enum {
    WIDTH = 1000,
    ROW = 38,
    LETTER = 8,
    NARROW = 4
}; /* pixels; what is narrower than that is no more than its border */

static const struct {
    const char *name, *letter, *fill, *ink;
} ways[] = {{"forward", "F", "#9fc6e3", "#1c2733"}, {"backward", "B", "#0072b2", "#ffffff"}};
#define BUBBLE "#e4e8ec" /* as a wait is drawn elsewhere */

bool eni_plot_has_pipeline(const eni_study *study)
{
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;)
        if (run->is_complete && run->pipeline.nturns > 0) return true;
    return false;
}

static double length_of(const eni_strip *strip)
{
    double end = 0;
    for (size_t i = 0; i < strip->nturns; i++)
        end = fmax(end, strip->turns[i].end);
    return end;
}

/* The part of the drawn step in which its stages wait. */
static double bubble_of(const eni_strip *strip)
{
    double busy = 0;
    for (size_t i = 0; i < strip->nturns; i++)
        busy += strip->turns[i].end - strip->turns[i].begin;
    return 1 - busy / (strip->stages * length_of(strip));
}

/* "F3" where there is room for it, else "3", else nothing. */
static void label(eni_plot *plot, size_t at, const eni_strip_turn *turn, double pixels)
{
    const int digits = snprintf(NULL, 0, "%d", turn->chunk);
    if (pixels < LETTER * digits + 2) return;
    fprintf(plot->script,
            "set label %zu '%s%d' at first %.6g, first %d center front tc rgb '%s' font ',13'\n", at + 100,
            pixels < LETTER * (digits + 1) + 4 ? "" : ways[turn->is_backward].letter, turn->chunk,
            (turn->begin + turn->end) / 2, turn->stage + 1, ways[turn->is_backward].ink);
}

static en_status draw(eni_canvas *canvas, const eni_run *run)
{
    const eni_strip *strip = &run->pipeline;
    const double ms = length_of(strip);
    eni_plot plot;
    eni_plot_rows rows = {0};
    for (int s = 0; s < strip->stages; s++)
        eni_plot_add_row(&rows, strip->is_of_replicas ? "device %d" : "stage %d", s);
    EN_TRY(eni_plot_open(&plot, canvas, WIDTH, eni_plot_row_height(rows.n, ROW), "pipeline-%zu-%zu",
                         run->setting, run->arm));
    eni_plot_set_rows(&plot, &rows);
    eni_plot_title(&plot, "One step, stage by stage", run->setting, &canvas->study->arms[run->arm]);
    fprintf(plot.script,
            "set xlabel 'ms from the begin of the last full step of rank 0, seed %lld'\nset rmargin 2\n",
            (long long)run->seed);
    fprintf(plot.script, "set xrange [0:%.6g]\nset grid noxtics\n", ms);
    for (int s = 0; s < strip->stages; s++)
        fprintf(plot.script,
                "set object %d rectangle from first 0, first %.6g to first %.6g, first %.6g fs solid 1.0 "
                "noborder fc "
                "rgb '" BUBBLE "'\n",
                s + 1, s + 1 - 0.4, ms, s + 1 + 0.4);
    for (size_t i = 0; i < strip->nturns; i++) {
        const eni_strip_turn *turn = &strip->turns[i];
        const double pixels = (turn->end - turn->begin) / ms * (WIDTH - 100);
        fprintf(plot.script,
                "set object %zu rectangle from first %.6g, first %.6g to first %.6g, first %.6g fs solid 1.0 "
                "%s fc rgb '%s'\n",
                i + (size_t)strip->stages + 1, turn->begin, turn->stage + 1 - 0.4, turn->end,
                turn->stage + 1 + 0.4, pixels < NARROW ? "noborder" : "border lc rgb '#ffffff' lw 1",
                ways[turn->is_backward].fill);
        label(&plot, i, turn, pixels);
    }
    fputs("plot NaN\n", plot.script);
    return eni_plot_close(&plot);
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
                     ". Other processes took %.0f %% of the cores meanwhile: these are a busy machine's",
                     100 * run->outside);
    fputs(".</p>\n", page);
}

static void write_legend(FILE *page)
{
    fputs("<ul class=\"legend\">", page);
    for (int i = 0; i < 2; i++)
        fprintf(page, "<li><span class=\"box\" style=\"background:%s\"></span>%s: %s of a chunk</li>",
                ways[i].fill, ways[i].letter, ways[i].name);
    fputs("<li><span class=\"box\" style=\"background:" BUBBLE "\"></span>bubble</li></ul>\n", page);
}

static void csv_lines(eni_csv *csv, const eni_study *study, const eni_run *run)
{
    for (size_t i = 0; i < run->pipeline.nturns; i++) {
        const eni_strip_turn *turn = &run->pipeline.turns[i];
        eni_csv_run(csv, study, run);
        fprintf(csv->file, ",%d,%s,%d", turn->stage, ways[turn->is_backward].name, turn->chunk);
        ENI_CSV_PUT(csv, turn->begin, turn->end);
        fputc('\n', csv->file);
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

en_status eni_plot_pipeline(eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    eni_csv csv;
    write_legend(canvas->page);
    EN_TRY(eni_csv_open(&csv, ENI_CSV_RUN ",stage,turn,chunk,begin_ms,end_ms"));
    fputs("<div class=\"panels wide\">\n", canvas->page);
    for (size_t a = 0; a < study->narms; a++)
        for (size_t c = 0; c < study->nsettings; c++) {
            const eni_run *run = first_of(study, c, a);
            if (run == NULL) continue;
            csv_lines(&csv, study, run);
            fputs("<div>\n", canvas->page);
            const en_status st = draw(canvas, run);
            if (st != EN_OK) {
                fclose(csv.file);
                free(csv.text);
                return st;
            }
            describe(canvas->page, run);
            fputs("</div>\n", canvas->page);
        }
    fputs("</div>\n", canvas->page);
    return eni_csv_close(&csv, canvas->dir, "pipeline", canvas->page);
}
