/* plot_timeline.c - one step of every arm, workers and psd on one clock, from the trace of its first run. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "core/try.h"
#include "report/html.h"
#include "report/plot.h"
#include "report/plot_trace.h"

static en_status draw(eni_canvas *canvas, const eni_run *run, const eni_trace_step *step)
{
    const eni_study *study = canvas->study;
    char name[64], what[64];
    eni_plot_rows rows = {0};
    for (size_t i = 0; i < step->nlanes; i++)
        eni_plot_add_row(&rows, "%s", step->lanes[i].name);
    snprintf(name, sizeof name, "timeline-%zu-%zu", run->setting, run->arm);
    snprintf(what, sizeof what, "Step %ld of seed %lld", step->step, (long long)run->seed);
    eni_plot plot;
    EN_TRY(eni_plot_open(&plot, canvas, name, 480, eni_plot_row_height(rows.n, 26) + 26));
    eni_plot_set_rows(&plot, &rows);
    eni_plot_title(&plot, what, run->setting, &study->arms[run->arm]);
    fprintf(plot.script,
            "set xlabel 'ms from the begin of step %ld, seed %lld'\n"
            "set xrange [0:%.6g]\nset rmargin 2\nset style fill solid 1.0 border lc rgb '#5b6875'\n",
            step->step, (long long)run->seed, step->ms);
    /* Rectangles, not a data plot: their order is the order of drawing, nested spans come last. */
    for (size_t i = 0; i < step->nparts; i++) {
        const eni_trace_part *part = &step->parts[i];
        fprintf(plot.script,
                "set object %zu rectangle from first %.6g, first %.6g to first %.6g, first %.6g fs %s "
                "border lc "
                "rgb '#5b6875' fc rgb '%s' lw 0.6\n",
                i + 1, fmax(part->begin, 0), (double)part->lane + 1 - 0.34, fmin(part->end, step->ms),
                (double)part->lane + 1 + 0.34, part->phase < 0 ? "solid 1.0" : eni_plot_phase_fill(part->phase),
                part->phase < 0 ? "#ffffff" : eni_plot_phase_colour(part->phase));
    }
    fputs("plot NaN\n", plot.script);
    return eni_plot_close(&plot);
}

static void csv_lines(eni_csv *csv, const eni_study *study, const eni_run *run, const eni_trace_step *step)
{
    for (size_t i = 0; i < step->nparts; i++) {
        const eni_trace_part *part = &step->parts[i];
        eni_csv_run(csv, study, run);
        fprintf(csv->file, "%ld,", step->step);
        eni_csv_text(csv, step->lanes[part->lane].name);
        fputc(',', csv->file);
        eni_csv_text(csv, part->name);
        fprintf(csv->file, ",%s,%.6g,%.6g\n", part->phase < 0 ? "" : eni_plot_phase_name(part->phase),
                part->begin, part->end);
    }
}

/* The first run of (setting, arm) that left a trace. */
static en_status load_first(const eni_study *study, size_t setting, size_t arm, eni_trace_step *step_out,
                            const eni_run **run_out)
{
    for (size_t r = 0; r < study->nruns; r++) {
        const eni_run *run = &study->runs[r];
        if (run->setting != setting || run->arm != arm || !run->is_complete) continue;
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s/trace.json", study->dir, run->dir);
        en_status st = eni_trace_step_load(path, step_out);
        if (st == EN_ENOENT) continue;
        *run_out = run;
        return st;
    }
    return EN_ENOENT;
}

en_status eni_plot_timeline(eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    size_t ndrawn = 0;
    eni_csv csv;
    EN_TRY(eni_csv_open(&csv, ENI_CSV_RUN ",step,lane,span,phase,begin_ms,end_ms"));
    fputs("<div class=\"panels\">\n", canvas->page);
    for (size_t a = 0; a < study->narms; a++)
        for (size_t c = 0; c < study->nsettings; c++) {
            eni_trace_step step;
            const eni_run *run;
            en_status st = load_first(study, c, a, &step, &run);
            if (st == EN_ENOENT) continue;
            if (st == EN_OK) {
                csv_lines(&csv, study, run, &step);
                st = draw(canvas, run, &step);
                eni_trace_step_fini(&step);
            }
            if (st != EN_OK) {
                fclose(csv.file);
                free(csv.text);
                return st;
            }
            ndrawn++;
        }
    fputs("</div>\n", canvas->page);
    if (ndrawn == 0)
        fputs(
            "<p class=\"absent\">No run left a trace (<code>--trace</code>), so there is no timeline.</p>\n",
            canvas->page);
    return eni_csv_close(&csv, canvas, "timeline");
}
