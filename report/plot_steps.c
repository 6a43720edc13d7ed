/* plot_steps.c - where the time of a step goes, per role: data, compute, a slow rank's sleep (hatched: it is
 * emulated), exposed exchange, wait, update. A strip along the foot of compute is the exchange that it hid.
 *
 * The unit is milliseconds per global batch (all workers together), the same for every arm: an
 * asynchronous worker makes steps of its own, and psd makes none, but all of them spend time on those
 * samples. */
#include <math.h>
#include <string.h>

#include "core/try.h"
#include "report/html.h"
#include "report/plot.h"

/* Global batches that a role's times cover: a worker's are those of this process, as its step count; a server's
 * cover the whole run. */
static double batches_of(const eni_run *run, const eni_role *role)
{
    if (role->rank < 0) return run->samples_computed / run->global_batch_size;
    double steps = 0;
    size_t workers = 0;
    for (size_t i = 0; i < run->nroles; i++) {
        if (run->roles[i].rank < 0) continue;
        steps += run->roles[i].steps;
        workers++;
    }
    return steps > 0 ? steps / (double)workers : run->samples_computed / run->global_batch_size;
}

/* Behind compute, not beside it: no phase of its own. */
enum { HIDDEN = ENI_PHASES };

/* Median over seeds of a role's milliseconds in a phase per global batch; NAN when no run gives it. */
static double phase_ms(const eni_study *study, size_t setting, size_t arm, const char *role, int phase)
{
    double values[ENI_MAX_RUNS];
    size_t n = 0;
    for (size_t r = 0; r < study->nruns; r++) {
        const eni_run *run = &study->runs[r];
        if (run->setting != setting || run->arm != arm || !run->is_complete) continue;
        for (size_t i = 0; i < run->nroles; i++) {
            double batches = batches_of(run, &run->roles[i]);
            double ns = phase == HIDDEN ? run->roles[i].hidden_ns : run->roles[i].ns[phase];
            if (strcmp(run->roles[i].name, role) == 0 && batches > 0) values[n++] = ns / batches / 1e6;
        }
    }
    return eni_stats_median(values, n);
}

static double total_ms(const eni_study *study, size_t setting, size_t arm, const char *role)
{
    double sum = 0;
    for (int p = 0; p < ENI_PHASES; p++)
        sum += phase_ms(study, setting, arm, role, p);
    return sum;
}

/* The longest bar of the report: all settings share one axis, or "even beside slow" would mislead. */
static double longest_ms(const eni_study *study)
{
    double longest = 0;
    for (size_t c = 0; c < study->nsettings; c++)
        for (size_t a = 0; a < study->narms; a++) {
            const eni_run *run = eni_study_example(study, c, a);
            for (size_t i = 0; run != NULL && i < run->nroles; i++) {
                double ms = total_ms(study, c, a, run->roles[i].name);
                if (ms > longest) longest = ms;
            }
        }
    return longest;
}

static en_status draw_setting(eni_canvas *canvas, size_t setting, double longest)
{
    const eni_study *study = canvas->study;
    eni_plot_rows rows = {0};
    char name[64];
    for (size_t a = 0; a < study->narms; a++) {
        const eni_run *run = eni_study_example(study, setting, a);
        for (size_t i = 0; run != NULL && i < run->nroles; i++)
            eni_plot_add_row(&rows, "%s · %s", study->arms[a].name, run->roles[i].name);
    }
    if (rows.n == 0) return EN_OK;
    snprintf(name, sizeof name, "steps-%zu", setting);
    eni_plot plot;
    EN_TRY(eni_plot_open(&plot, canvas, name, 480, eni_plot_row_height(rows.n, 24) + 26));
    eni_plot_set_rows(&plot, &rows);
    fputs("set xlabel 'ms per global batch'\nset rmargin 2\n", plot.script);
    eni_plot_set_axis(&plot, 0, 1.03 * longest);
    eni_plot_title(&plot, "Time per global batch and role", setting, NULL);
    fputs("$d << EOD\n", plot.script);
    size_t row = 0;
    for (size_t a = 0; a < study->narms; a++) {
        const eni_run *run = eni_study_example(study, setting, a);
        for (size_t i = 0; run != NULL && i < run->nroles; i++) {
            double from = 0;
            row++;
            for (int p = 0; p < ENI_PHASES; p++) {
                double ms = phase_ms(study, setting, a, run->roles[i].name, p);
                if (ms > 0) fprintf(plot.script, "%zu %.6g %.6g %d\n", row, from, from + ms, p);
                from += isnan(ms) ? 0 : ms;
                if (p != ENI_PHASE_COMPUTE) continue;
                double hidden = fmin(phase_ms(study, setting, a, run->roles[i].name, HIDDEN), ms);
                if (hidden > 0) fprintf(plot.script, "%zu %.6g %.6g %d\n", row, from - hidden, from, HIDDEN);
            }
        }
    }
    fputs("0 0 0 -1\nEOD\nplot ", plot.script);
    for (int p = 0; p < ENI_PHASES; p++)
        fprintf(plot.script,
                "$d using (($2+$3)/2):($4==%d?$1:NaN):2:3:($1-0.36):($1+0.36) with boxxyerror lw 0.6 fs %s border "
                "lc rgb '#5b6875' fc rgb '%s', ",
                p, eni_plot_phase_fill(p), eni_plot_phase_colour(p));
    fprintf(plot.script,
            "$d using (($2+$3)/2):($4==%d?$1:NaN):2:3:($1+0.14):($1+0.35) with boxxyerror fs solid 1.0 noborder "
            "fc rgb '%s'\n",
            HIDDEN, eni_plot_phase_colour(ENI_PHASE_EXCHANGE));
    return eni_plot_close(&plot);
}

static en_status write_csv(eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    eni_csv csv;
    EN_TRY(eni_csv_open(&csv,
                        ENI_CSV_RUN ",role,cores,cpu_seconds,data_ns,compute_ns,sleep_ns,exposed_exchange_ns,"
                        "wait_ns,update_ns,hidden_exchange_ns,global_batches,step_ms_p50,step_ms_p95,"
                        "step_ms_p99"));
    for (size_t r = 0; r < study->nruns; r++) {
        const eni_run *run = &study->runs[r];
        for (size_t i = 0; i < run->nroles; i++) {
            const eni_role *role = &run->roles[i];
            eni_csv_run(&csv, study, run);
            eni_csv_text(&csv, role->name);
            fputc(',', csv.file);
            eni_csv_text(&csv, role->cores == NULL ? "" : role->cores);
            fputc(',', csv.file);
            eni_csv_number(&csv, role->cpu_seconds);
            for (int p = 0; p < ENI_PHASES; p++)
                fprintf(csv.file, ",%.0f", role->ns[p]);
            fprintf(csv.file, ",%.0f,", role->hidden_ns);
            eni_csv_number(&csv, batches_of(run, role));
            for (int q = 0; q < 3; q++) {
                fputc(',', csv.file);
                eni_csv_number(&csv, run->step_ms[q]);
            }
            fputc('\n', csv.file);
        }
    }
    return eni_csv_close(&csv, canvas, "steps");
}

static void write_legend(const eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    bool shown[ENI_PHASES] = {false}, with_hidden = false;
    for (size_t r = 0; r < study->nruns; r++)
        for (size_t i = 0; i < study->runs[r].nroles; i++) {
            const eni_role *role = &study->runs[r].roles[i];
            for (int p = 0; p < ENI_PHASES; p++)
                shown[p] = shown[p] || role->ns[p] > 0;
            with_hidden = with_hidden || role->hidden_ns > 0;
        }
    eni_plot_phase_legend(canvas, shown, with_hidden);
}

en_status eni_plot_steps(eni_canvas *canvas)
{
    double longest = longest_ms(canvas->study);
    if (!(longest > 0)) {
        fputs("<p class=\"absent\">The runs give no times per role.</p>\n", canvas->page);
        return EN_OK;
    }
    write_legend(canvas);
    fputs("<div class=\"panels\">\n", canvas->page);
    for (size_t c = 0; c < canvas->study->nsettings; c++)
        EN_TRY(draw_setting(canvas, c, longest));
    fputs("</div>\n", canvas->page);
    return write_csv(canvas);
}
