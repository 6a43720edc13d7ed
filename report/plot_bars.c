/* plot_bars.c - the figures of horizontal bars, a panel a setting: where a step's time goes, bytes, samples a
 * worker. All settings of a figure share one axis, or "even beside slow" would mislead. */
#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "core/try.h"
#include "report/html.h"
#include "report/plot.h"
#include "report/table.h"

typedef struct bars_panel {
    const char *name, *title, *across; /* "bytes", "Bytes", "MB in a run" */
    int row_height;                    /* pixels */
} bars_panel;

/* Opens that of a setting, and its data. */
static en_status open_panel(eni_plot *plot, eni_canvas *canvas, const bars_panel *p, size_t setting,
                            const eni_plot_rows *rows, double most)
{
    const int height = eni_plot_row_height(rows->n, p->row_height) + 26;
    EN_TRY(eni_plot_open(plot, canvas, 480, height, "%s-%zu", p->name, setting));
    eni_plot_set_rows(plot, rows);
    eni_plot_title(plot, p->title, setting, NULL);
    fprintf(plot->script, "set xlabel '%s'\nset rmargin 2\n", p->across);
    eni_plot_set_axis(plot, 0, most);
    fputs("$d << EOD\n", plot->script);
    return EN_OK;
}

/* A panel per setting; `absent` in their place where there is nothing to show. */
static en_status draw_panels(eni_canvas *canvas, double most, const char *absent,
                             en_status (*draw)(eni_canvas *canvas, size_t setting, double most))
{
    if (!(most > 0)) {
        fprintf(canvas->page, "<p class=\"absent\">%s</p>\n", absent);
        return EN_OK;
    }
    fputs("<div class=\"panels\">\n", canvas->page);
    for (size_t c = 0; c < canvas->study->nsettings; c++)
        EN_TRY(draw(canvas, c, most));
    fputs("</div>\n", canvas->page);
    return EN_OK;
}

/* ---- where the time of a step goes, per role ----------------------------------------------------------- */

/* Data, compute, a slow rank's sleep (hatched: it is emulated), exposed exchange, wait, update. A strip along
 * the foot of compute is the exchange that it hid.
 *
 * The unit is milliseconds per global batch (all workers together), the same for every arm: an asynchronous
 * worker makes steps of its own, and psd makes none, but all of them spend time on those samples. */

/* Global batches that a role's times cover: a worker's are those of this process, as its step count; a
 * server's cover the whole run. */
static double batches_of(const eni_run *run, const eni_role *role)
{
    double steps = 0;
    size_t workers = 0;
    for (size_t i = 0; i < run->nroles && role->rank >= 0; i++) {
        if (run->roles[i].rank < 0) continue;
        steps += run->roles[i].steps;
        workers++;
    }
    return steps > 0 ? steps / (double)workers : run->samples_computed / run->global_batch_size;
}

/* Median over seeds of a role's milliseconds in a phase per global batch; NAN when no run gives it. */
static double phase_ms(const eni_study *study, size_t setting, size_t arm, const char *role, int phase)
{
    double values[ENI_MAX_RUNS];
    size_t n = 0;
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, arm, run)) != NULL;) {
        for (size_t i = 0; run->is_complete && i < run->nroles; i++) {
            double batches = batches_of(run, &run->roles[i]);
            double ns = phase == ENI_PHASE_HIDDEN ? run->roles[i].hidden_ns : run->roles[i].ns[phase];
            if (strcmp(run->roles[i].name, role) == 0 && batches > 0) values[n++] = ns / batches / 1e6;
        }
    }
    return eni_stats_median(values, n);
}

static double longest_ms(const eni_study *study)
{
    double longest = 0;
    for (size_t c = 0; c < study->nsettings; c++)
        for (size_t a = 0; a < study->narms; a++) {
            const eni_run *run = eni_study_example(study, c, a);
            for (size_t i = 0; run != NULL && i < run->nroles; i++) {
                double ms = 0;
                for (int p = 0; p < ENI_PHASES; p++)
                    ms += phase_ms(study, c, a, run->roles[i].name, p);
                if (ms > longest) longest = ms;
            }
        }
    return longest;
}

static void print_phases(eni_plot *plot, size_t setting, size_t arm, const char *role, size_t row)
{
    const eni_study *study = plot->canvas->study;
    double from = 0;
    for (int p = 0; p < ENI_PHASES; p++) {
        double ms = phase_ms(study, setting, arm, role, p);
        if (ms > 0) fprintf(plot->script, "%zu %.6g %.6g %d\n", row, from, from + ms, p);
        from += isnan(ms) ? 0 : ms;
        if (p != ENI_PHASE_COMPUTE) continue;
        double hidden = fmin(phase_ms(study, setting, arm, role, ENI_PHASE_HIDDEN), ms);
        if (hidden > 0)
            fprintf(plot->script, "%zu %.6g %.6g %d\n", row, from - hidden, from, ENI_PHASE_HIDDEN);
    }
}

static en_status draw_steps(eni_canvas *canvas, size_t setting, double longest)
{
    const eni_study *study = canvas->study;
    eni_plot plot;
    eni_plot_rows rows = {0};
    for (size_t a = 0; a < study->narms; a++) {
        const eni_run *run = eni_study_example(study, setting, a);
        for (size_t i = 0; run != NULL && i < run->nroles; i++)
            eni_plot_add_row(&rows, "%s · %s", study->arms[a].name, run->roles[i].name);
    }
    if (rows.n == 0) return EN_OK;
    const bars_panel how = {"steps", "Time per global batch and role", "ms per global batch", 24};
    EN_TRY(open_panel(&plot, canvas, &how, setting, &rows, 1.03 * longest));
    size_t row = 0;
    for (size_t a = 0; a < study->narms; a++) {
        const eni_run *run = eni_study_example(study, setting, a);
        for (size_t i = 0; run != NULL && i < run->nroles; i++)
            print_phases(&plot, setting, a, run->roles[i].name, ++row);
    }
    fputs("0 0 0 -1\nEOD\nplot ", plot.script);
    for (int p = 0; p < ENI_PHASES; p++)
        fprintf(plot.script,
                "$d using (($2+$3)/2):($4==%d?$1:NaN):2:3:($1-0.36):($1+0.36) with boxxyerror lw 0.6 fs %s "
                "border lc rgb '#5b6875' fc rgb '%s', ",
                p, eni_plot_phases[p].fill, eni_plot_phases[p].colour);
    fprintf(
        plot.script,
        "$d using (($2+$3)/2):($4==%d?$1:NaN):2:3:($1+0.14):($1+0.35) with boxxyerror fs solid 1.0 noborder "
        "fc rgb '%s'\n",
        ENI_PHASE_HIDDEN, eni_plot_phases[ENI_PHASE_EXCHANGE].colour);
    return eni_plot_close(&plot);
}

static void write_legend(const eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    bool shown[ENI_PHASES] = {false}, with_hidden = false;
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;)
        for (size_t i = 0; i < run->nroles; i++) {
            const eni_role *role = &run->roles[i];
            for (int p = 0; p < ENI_PHASES; p++)
                shown[p] = shown[p] || role->ns[p] > 0;
            with_hidden = with_hidden || role->hidden_ns > 0;
        }
    eni_plot_phase_legend(canvas, shown, with_hidden);
}

en_status eni_plot_steps(eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    double longest = longest_ms(study);
    eni_csv csv;
    if (longest > 0) write_legend(canvas);
    EN_TRY(draw_panels(canvas, longest, "The runs give no times per role.", draw_steps));
    if (!(longest > 0)) return EN_OK;
    EN_TRY(eni_csv_open(&csv, ENI_CSV_RUN
                        ",role,cores,cpu_seconds,data_ns,compute_ns,sleep_ns,exposed_exchange_ns,"
                        "wait_ns,update_ns,hidden_exchange_ns,global_batches,step_ms_p50,step_ms_p95,"
                        "step_ms_p99"));
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;)
        for (size_t i = 0; i < run->nroles; i++) {
            const eni_role *role = &run->roles[i];
            eni_csv_run(&csv, study, run);
            fputc(',', csv.file);
            eni_csv_text(&csv, role->name);
            fputc(',', csv.file);
            eni_csv_text(&csv, role->cores == NULL ? "" : role->cores);
            ENI_CSV_PUT(&csv, role->cpu_seconds);
            for (int p = 0; p < ENI_PHASES; p++)
                fprintf(csv.file, ",%.0f", role->ns[p]);
            fprintf(csv.file, ",%.0f", role->hidden_ns);
            ENI_CSV_PUT(&csv, batches_of(run, role), run->step_ms[0], run->step_ms[1], run->step_ms[2]);
            fputc('\n', csv.file);
        }
    return eni_csv_close(&csv, canvas->dir, "steps", canvas->page);
}

/* ---- bytes moved by a whole run, beside the algorithm's own count and its formula ---------------------- */

enum { THEORY, PAYLOAD, WIRE, SHM, KINDS };

static const struct {
    const char *name, *style;
    eni_metric metric;
} kinds[KINDS] = {{"formula", "fs empty border lc rgb '#3d4853'", eni_metric_theory_mb},
                  {"payload", "fs solid 1 noborder", eni_metric_payload_mb},
                  {"moved: sockets", "fs pattern 4 border lc rgb '#3d4853'", eni_metric_wire_mb},
                  {"moved: memory", "fs solid 0.35 noborder", eni_metric_shm_mb}};

static en_status draw_bytes(eni_canvas *canvas, size_t setting, double most)
{
    const eni_study *study = canvas->study;
    eni_plot plot;
    eni_plot_rows rows = {0};
    for (size_t a = 0; a < study->narms; a++) {
        if (a > 0) eni_plot_add_row(&rows, " ");
        for (int k = 0; k < KINDS; k++)
            eni_plot_add_row(&rows, k == 0 ? "%s · %s" : "%.0s%s", study->arms[a].name, kinds[k].name);
    }
    const bars_panel how = {"bytes", "Bytes", "MB in a run, all processes", 20};
    EN_TRY(open_panel(&plot, canvas, &how, setting, &rows, 1.2 * most));
    for (size_t a = 0; a < study->narms; a++)
        for (size_t k = 0; k < KINDS; k++) {
            eni_summary mb = eni_study_summary(study, setting, a, kinds[k].metric);
            if (mb.n > 0)
                fprintf(plot.script, "%zu %.6g %zu\n", (KINDS + 1) * a + k + 1, mb.median, KINDS * a + k);
        }
    fputs("EOD\nplot ", plot.script);
    for (size_t a = 0; a < study->narms; a++)
        for (size_t k = 0; k < KINDS; k++)
            fprintf(plot.script,
                    "$d using ($2/2):($3==%zu?$1:NaN):(0):2:($1-0.36):($1+0.36) with boxxyerror lw 0.8 %s fc "
                    "rgb '%s', ",
                    KINDS * a + k, kinds[k].style,
                    k == THEORY ? "#3d4853" : eni_plot_colour(&study->arms[a]));
    fputs("$d using 2:1:(sprintf($2<10?'%.1f':'%.0f',$2)) with labels left offset 0.4,0 tc rgb '#3d4853' "
          "font ',12'\n",
          plot.script);
    return eni_plot_close(&plot);
}

/* One sentence about the arms whose runs of the first setting move nothing over sockets, or do not say (NCCL)
 * though they have a payload; none if there is no such arm. */
static void say_of_arms(eni_canvas *canvas, const char *what, bool is_known)
{
    const eni_study *study = canvas->study;
    bool is_first = true;
    for (size_t a = 0; a < study->narms; a++) {
        const eni_summary wire = eni_study_summary(study, 0, a, eni_metric_wire_mb);
        const bool has_payload = eni_study_summary(study, 0, a, eni_metric_payload_mb).n > 0;
        if (is_known ? wire.n == 0 || wire.max > 0 : wire.n > 0 || !has_payload) continue;
        fprintf(canvas->page, "%s%s", is_first ? "<p class=\"note\">" : ", ", is_first ? what : "");
        eni_html_text(canvas->page, study->arms[a].name);
        is_first = false;
    }
    if (!is_first) fputs(".</p>\n", canvas->page);
}

en_status eni_plot_bytes(eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    double most = 0;
    eni_csv csv;
    for (int k = 0; k < KINDS; k++)
        most = fmax(most, eni_study_summary(study, ENI_ANY, ENI_ANY, kinds[k].metric).max);
    EN_TRY(draw_panels(canvas, most, "The runs moved no byte, or do not say.", draw_bytes));
    if (most > 0) say_of_arms(canvas, "No byte crossed a socket: ", true);
    if (most > 0)
        say_of_arms(canvas,
                    "Payload as the algorithm has it; what went over the wire cannot be seen: ", false);
    EN_TRY(
        eni_csv_open(&csv, ENI_CSV_RUN ",theory_bytes,payload_bytes,wire_bytes,shm_bytes,payload_to_theory"));
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;) {
        eni_csv_run(&csv, study, run);
        ENI_CSV_PUT(&csv, run->theory_bytes, run->payload_bytes, run->wire_bytes, run->shm_bytes,
                    eni_metric_payload_ratio(run));
        fputc('\n', csv.file);
    }
    return eni_csv_close(&csv, canvas->dir, "bytes", canvas->page);
}

/* ---- samples applied per worker ------------------------------------------------------------------------ */

/* The computed ones as an outline: with claimed batches a fast worker does more, and a strategy that drops
 * work shows it here. */

/* Medians over seeds of what one rank computed and applied; false when no run says. */
static bool share_of(const eni_study *study, size_t setting, size_t arm, int rank, double *applied_out,
                     double *computed_out)
{
    double applied[ENI_MAX_RUNS], computed[ENI_MAX_RUNS];
    size_t napplied = 0, ncomputed = 0;
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, arm, run)) != NULL;) {
        for (size_t i = 0; run->is_complete && i < run->nshares; i++) {
            if (run->shares[i].rank != rank) continue;
            if (!isnan(run->shares[i].applied)) applied[napplied++] = run->shares[i].applied;
            if (!isnan(run->shares[i].computed)) computed[ncomputed++] = run->shares[i].computed;
            break;
        }
    }
    *applied_out = eni_stats_median(applied, napplied);
    *computed_out = ncomputed > 0 ? eni_stats_median(computed, ncomputed) : *applied_out;
    return napplied > 0;
}

static en_status draw_shares(eni_canvas *canvas, size_t setting, double most)
{
    const eni_study *study = canvas->study;
    eni_plot plot;
    eni_plot_rows rows = {0};
    for (size_t a = 0; a < study->narms; a++) {
        const eni_run *run = eni_study_example(study, setting, a);
        for (size_t i = 0; run != NULL && i < run->nshares; i++)
            eni_plot_add_row(&rows, "%s · rank %d", study->arms[a].name, run->shares[i].rank);
    }
    if (rows.n == 0) return EN_OK;
    const bars_panel how = {"shares", "Samples applied per worker", "thousand samples (outline: computed)",
                            24};
    EN_TRY(open_panel(&plot, canvas, &how, setting, &rows, 1.25 * most / 1000));
    size_t row = 0;
    for (size_t a = 0; a < study->narms; a++) {
        const eni_run *run = eni_study_example(study, setting, a);
        for (size_t i = 0; run != NULL && i < run->nshares; i++) {
            double applied, computed;
            char text[32];
            row++;
            if (!share_of(study, setting, a, run->shares[i].rank, &applied, &computed)) continue;
            eni_text_grouped(applied, " ", text, sizeof text);
            fprintf(plot.script, "%zu %.9g %.9g %zu \"%s\"\n", row, applied / 1000, computed / 1000, a, text);
        }
    }
    fputs("EOD\nplot ", plot.script);
    for (size_t a = 0; a < study->narms; a++)
        fprintf(plot.script,
                "$d using ($2/2):($4==%zu?$1:NaN):(0):2:($1-0.34):($1+0.34) with boxxyerror fs solid 0.85 "
                "noborder fc rgb '%s', ",
                a, eni_plot_colour(&study->arms[a]));
    fputs("$d using ($3/2):1:(0):3:($1-0.34):($1+0.34) with boxxyerror lw 0.8 fs empty border lc rgb "
          "'#3d4853' fc rgb '#3d4853', "
          "$d using 3:1:5 with labels left offset 0.5,0 tc rgb '#3d4853' font ',12'\n",
          plot.script);
    return eni_plot_close(&plot);
}

en_status eni_plot_shares(eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    double most = 0;
    eni_csv csv;
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;)
        for (size_t i = 0; i < run->nshares; i++)
            most = fmax(most, fmax(run->shares[i].applied, run->shares[i].computed));
    EN_TRY(draw_panels(canvas, most, "The runs do not say what each worker did.", draw_shares));
    EN_TRY(eni_csv_open(&csv, ENI_CSV_RUN ",rank,samples_computed,samples_applied,steps"));
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;)
        for (size_t i = 0; i < run->nshares; i++) {
            const eni_rank_share *share = &run->shares[i];
            eni_csv_run(&csv, study, run);
            ENI_CSV_PUT(&csv, share->rank, share->computed, share->applied, share->steps);
            fputc('\n', csv.file);
        }
    return eni_csv_close(&csv, canvas->dir, "shares", canvas->page);
}
