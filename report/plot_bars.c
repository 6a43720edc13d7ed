/* plot_bars.c - the figures of horizontal bars, a panel per setting: the parts of a step's time, bytes,
 * samples per worker. All settings of a figure share one axis, so that they can be compared. */
#include <math.h>
#include <string.h>

#include "core/try.h"
#include "report/html.h"
#include "report/plot.h"

/* Draws a panel per setting, or writes `absent` if there is nothing to show. */
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

/* A picture of many ranks has the first few; the CSV has all. */
enum { MANY_RANKS = 16, FEW_RANKS = 8 };

/* A simulated server has no times of its own. */
static bool has_time(const eni_role *role)
{
    double ns = 0;
    for (int p = 0; p < ENI_PHASES; p++)
        ns += role->ns[p];
    return ns > 0;
}

static bool is_drawn(const eni_run *run, int rank)
{
    return run->workers <= MANY_RANKS || rank < FEW_RANKS;
}

static void note_many(const eni_canvas *canvas)
{
    for (const eni_run *run = NULL; (run = eni_study_next(canvas->study, ENI_ANY, ENI_ANY, run)) != NULL;) {
        if (!(run->workers > MANY_RANKS)) continue;
        fprintf(canvas->page, "<p class=\"note\">Ranks 0 to %d of each arm.</p>\n", FEW_RANKS - 1);
        return;
    }
}

/* ---- the parts of a step's time, per role -------------------------------------------------------------- */

/* Data, compute, a slow rank's sleep (hatched: it is emulated), exposed exchange, wait, update. A strip along
 * the foot of compute is the exchange that it hid.
 *
 * The unit is milliseconds per global batch (all workers together), the same for every arm: an asynchronous
 * worker counts its own steps and psd counts none, but all of them spend time on those samples. */

/* Global batches covered by a role's times: a worker's are those of this process, as is its step count; a
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

/* Median over seeds of a role's milliseconds in a phase per global batch; NAN if no run has it. */
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

static void put_phases(eni_plot *plot, size_t setting, size_t arm, const char *role)
{
    const eni_study *study = plot->canvas->study;
    double from = 0;
    for (int p = 0; p < ENI_PHASES; p++) {
        double ms = phase_ms(study, setting, arm, role, p);
        if (ms > 0) ENI_PLOT_PUT(plot, plot->nrows, from, from + ms, p);
        from += isnan(ms) ? 0 : ms;
        if (p != ENI_PHASE_COMPUTE) continue;
        double hidden = fmin(phase_ms(study, setting, arm, role, ENI_PHASE_HIDDEN), ms);
        if (hidden > 0) ENI_PLOT_PUT(plot, plot->nrows, from - hidden, from, ENI_PHASE_HIDDEN);
    }
}

static en_status draw_steps(eni_canvas *canvas, size_t setting, double longest)
{
    const eni_study *study = canvas->study;
    eni_plot plot;
    EN_TRY(eni_plot_open(&plot, canvas, "steps-%zu", setting));
    eni_plot_title(&plot, "Time per global batch and role", setting, NULL);
    fprintf(plot.variables, "low = 0\nhigh = %.9g\n", 1.03 * longest);
    for (size_t a = 0; a < study->narms; a++) {
        const eni_run *run = eni_study_example(study, setting, a);
        for (size_t i = 0; run != NULL && i < run->nroles; i++) {
            const eni_role *role = &run->roles[i];
            if (!is_drawn(run, role->rank) || (run->simulated != NULL && !has_time(role))) continue;
            eni_plot_add_row(&plot, "%s · %s", study->arms[a].name, run->roles[i].name);
            put_phases(&plot, setting, a, run->roles[i].name);
        }
    }
    ENI_PLOT_PUT(&plot, 0, 0, 0, -1);
    return eni_plot_close(&plot, plot.nrows == 0 ? NULL : eni_figures_steps_gp);
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

static void put_steps(eni_csv *csv, const eni_study *study, const eni_run *run)
{
    for (size_t i = 0; i < run->nroles; i++) {
        const eni_role *role = &run->roles[i];
        eni_csv_run(csv, study, run);
        fputc(',', csv->file);
        eni_csv_text(csv, role->name);
        fputc(',', csv->file);
        eni_csv_text(csv, role->cores == NULL ? "" : role->cores);
        ENI_CSV_PUT(csv, role->cpu_seconds);
        for (int p = 0; p < ENI_PHASES; p++)
            fprintf(csv->file, ",%.0f", role->ns[p]);
        fprintf(csv->file, ",%.0f", role->hidden_ns);
        ENI_CSV_PUT(csv, batches_of(run, role), run->step_ms[0], run->step_ms[1], run->step_ms[2]);
    }
}

en_status eni_plot_steps(eni_canvas *canvas)
{
    const double longest = longest_ms(canvas->study);
    if (longest > 0) write_legend(canvas);
    EN_TRY(draw_panels(canvas, longest, "The runs have no times per role.", draw_steps));
    if (!(longest > 0)) return EN_OK;
    note_many(canvas);
    return eni_csv_write(canvas, "steps",
                         ENI_CSV_RUN
                         ",role,cores,cpu_seconds,data_ns,compute_ns,sleep_ns,exposed_exchange_ns,"
                         "wait_ns,update_ns,hidden_exchange_ns,global_batches,step_ms_p50,step_ms_p95,"
                         "step_ms_p99",
                         put_steps);
}

/* ---- bytes moved by a whole run, beside the algorithm's payload and its formula ------------------------- */

enum { KINDS = 4 };

static const struct {
    const char *name;
    eni_metric metric;
} kinds[KINDS] = {{"formula", eni_metric_theory_mb},
                  {"payload", eni_metric_payload_mb},
                  {"moved: sockets", eni_metric_wire_mb},
                  {"moved: memory", eni_metric_shm_mb}};

static en_status draw_bytes(eni_canvas *canvas, size_t setting, double most)
{
    const eni_study *study = canvas->study;
    eni_plot plot;
    EN_TRY(eni_plot_open(&plot, canvas, "bytes-%zu", setting));
    eni_plot_title(&plot, "Bytes", setting, NULL);
    fprintf(plot.variables, "low = 0\nhigh = %.9g\n", 1.2 * most);
    for (size_t a = 0; a < study->narms; a++) {
        if (a > 0) eni_plot_add_row(&plot, " ");
        for (int k = 0; k < KINDS; k++) {
            const eni_summary mb = eni_study_summary(study, setting, a, kinds[k].metric);
            eni_plot_add_row(&plot, k == 0 ? "%s · %s" : "%.0s%s", study->arms[a].name, kinds[k].name);
            if (mb.n > 0) ENI_PLOT_PUT(&plot, plot.nrows, mb.median, k, a + 1);
        }
    }
    return eni_plot_close(&plot, eni_figures_bytes_gp);
}

/* Names in one sentence the arms whose runs of the first setting move nothing over sockets or, though they
 * have a payload, do not record it (NCCL); otherwise prints nothing. */
static void name_arms(eni_canvas *canvas, const char *what, bool is_known)
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

static void put_bytes(eni_csv *csv, const eni_study *study, const eni_run *run)
{
    eni_csv_run(csv, study, run);
    ENI_CSV_PUT(csv, run->theory_bytes, run->payload_bytes, run->wire_bytes, run->shm_bytes,
                eni_metric_payload_ratio(run));
}

en_status eni_plot_bytes(eni_canvas *canvas)
{
    double most = 0;
    for (int k = 0; k < KINDS; k++)
        most = fmax(most, eni_study_summary(canvas->study, ENI_ANY, ENI_ANY, kinds[k].metric).max);
    EN_TRY(draw_panels(canvas, most, "The runs moved no bytes, or did not record them.", draw_bytes));
    if (most > 0) name_arms(canvas, "No bytes crossed a socket: ", true);
    if (most > 0)
        name_arms(canvas,
                  "Payload by the algorithm's count; the bytes on the wire cannot be measured: ", false);
    return eni_csv_write(canvas, "bytes",
                         ENI_CSV_RUN ",theory_bytes,payload_bytes,wire_bytes,shm_bytes,payload_to_theory",
                         put_bytes);
}

/* ---- samples applied per worker ------------------------------------------------------------------------ */

/* The computed ones as an outline: with claimed batches a fast worker does more, and a strategy that drops
 * work shows it here. */

/* Medians over seeds of the samples that one rank computed and applied; false if no run has them. */
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
    EN_TRY(eni_plot_open(&plot, canvas, "shares-%zu", setting));
    eni_plot_title(&plot, "Samples applied per worker", setting, NULL);
    fprintf(plot.variables, "low = 0\nhigh = %.9g\n", 1.25 * most / 1000);
    for (size_t a = 0; a < study->narms; a++) {
        const eni_run *run = eni_study_example(study, setting, a);
        for (size_t i = 0; run != NULL && i < run->nshares; i++) {
            double applied, computed;
            if (!is_drawn(run, run->shares[i].rank)) continue;
            eni_plot_add_row(&plot, "%s · rank %d", study->arms[a].name, run->shares[i].rank);
            if (share_of(study, setting, a, run->shares[i].rank, &applied, &computed))
                ENI_PLOT_PUT(&plot, plot.nrows, applied, computed, a + 1);
        }
    }
    return eni_plot_close(&plot, plot.nrows == 0 ? NULL : eni_figures_shares_gp);
}

static void put_shares(eni_csv *csv, const eni_study *study, const eni_run *run)
{
    for (const eni_rank_share *share = run->shares; share < run->shares + run->nshares; share++) {
        eni_csv_run(csv, study, run);
        ENI_CSV_PUT(csv, share->rank, share->computed, share->applied, share->steps);
    }
}

en_status eni_plot_shares(eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    double most = 0;
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;)
        for (size_t i = 0; i < run->nshares; i++)
            most = fmax(most, fmax(run->shares[i].applied, run->shares[i].computed));
    EN_TRY(draw_panels(canvas, most, "The runs did not record the samples of each worker.", draw_shares));
    note_many(canvas);
    return eni_csv_write(canvas, "shares", ENI_CSV_RUN ",rank,samples_computed,samples_applied,steps",
                         put_shares);
}
