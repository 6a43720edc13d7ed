/* plot_bytes.c - bytes moved by a whole run, beside the algorithm's own count and its formula. */
#include <math.h>

#include "core/try.h"
#include "report/html.h"
#include "report/plot.h"

enum { THEORY, PAYLOAD, WIRE, SHM, KINDS };

static double theory_mb(const eni_run *run)
{
    return run->theory_bytes / 1e6;
}

static double payload_mb(const eni_run *run)
{
    return run->payload_bytes / 1e6;
}

static const struct {
    const char *name, *style;
    eni_metric metric;
} kinds[KINDS] = {{"formula", "fs empty border lc rgb '#3d4853'", theory_mb},
                  {"payload", "fs solid 1 noborder", payload_mb},
                  {"moved: sockets", "fs pattern 4 border lc rgb '#3d4853'", eni_metric_wire_mb},
                  {"moved: memory", "fs solid 0.35 noborder", eni_metric_shm_mb}};

static double most_mb(const eni_study *study)
{
    double most = 0;
    for (size_t r = 0; r < study->nruns; r++)
        for (int k = 0; k < KINDS; k++)
            most = fmax(most, kinds[k].metric(&study->runs[r]));
    return most;
}

static en_status draw_setting(eni_canvas *canvas, size_t setting, double most)
{
    const eni_study *study = canvas->study;
    char name[64];
    eni_plot_rows rows = {0};
    for (size_t a = 0; a < study->narms; a++) {
        if (a > 0) eni_plot_add_row(&rows, " ");
        for (int k = 0; k < KINDS; k++)
            eni_plot_add_row(&rows, k == 0 ? "%s · %s" : "%.0s%s", study->arms[a].name, kinds[k].name);
    }
    snprintf(name, sizeof name, "bytes-%zu", setting);
    eni_plot plot;
    EN_TRY(eni_plot_open(&plot, canvas, name, 480, eni_plot_row_height(rows.n, 20) + 26));
    eni_plot_set_rows(&plot, &rows);
    eni_plot_title(&plot, "Bytes", setting, NULL);
    fprintf(plot.script, "set xlabel 'MB in a run, all processes'\nset rmargin 2\n");
    eni_plot_set_axis(&plot, 0, 1.2 * most);
    fputs("$d << EOD\n", plot.script);
    for (size_t a = 0; a < study->narms; a++)
        for (int k = 0; k < KINDS; k++) {
            eni_summary mb = eni_study_summary(study, setting, a, kinds[k].metric);
            if (mb.n == 0) continue;
            fprintf(plot.script, "%zu %.6g %zu\n", (KINDS + 1) * a + (size_t)k + 1, mb.median,
                    KINDS * a + (size_t)k);
        }
    fputs("EOD\nplot ", plot.script);
    for (size_t a = 0; a < study->narms; a++)
        for (int k = 0; k < KINDS; k++)
            fprintf(plot.script,
                    "$d using ($2/2):($3==%zu?$1:NaN):(0):2:($1-0.36):($1+0.36) with boxxyerror lw 0.8 %s fc "
                    "rgb '%s', ",
                    KINDS * a + (size_t)k, kinds[k].style,
                    k == THEORY ? "#3d4853" : eni_plot_colour(&study->arms[a]));
    fputs("$d using 2:1:(sprintf($2<10?'%.1f':'%.0f',$2)) with labels left offset 0.4,0 tc rgb '#3d4853' "
          "font ',12'\n",
          plot.script);
    return eni_plot_close(&plot);
}

/* One sentence about the arms of which something holds; none if it holds of none. */
static void say_of_arms(eni_canvas *canvas, const char *what,
                        bool (*holds)(const eni_study *study, size_t arm))
{
    const eni_study *study = canvas->study;
    bool is_first = true;
    for (size_t a = 0; a < study->narms; a++) {
        if (!holds(study, a)) continue;
        fputs(is_first ? "<p class=\"note\">" : ", ", canvas->page);
        if (is_first) fputs(what, canvas->page);
        eni_html_text(canvas->page, study->arms[a].name);
        is_first = false;
    }
    if (!is_first) fputs(".</p>\n", canvas->page);
}

static bool has_no_socket(const eni_study *study, size_t arm)
{
    const eni_summary wire = eni_study_summary(study, 0, arm, eni_metric_wire_mb);
    return wire.n > 0 && !(wire.max > 0);
}

/* Runs of the first setting that say payload and nothing of the wire: NCCL. */
static bool is_unseen(const eni_study *study, size_t arm)
{
    return eni_study_summary(study, 0, arm, payload_mb).n > 0 &&
           eni_study_summary(study, 0, arm, eni_metric_wire_mb).n == 0;
}

en_status eni_plot_bytes(eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    double most = most_mb(study);
    if (!(most > 0)) {
        fputs("<p class=\"absent\">The runs moved no byte, or do not say.</p>\n", canvas->page);
    } else {
        fputs("<div class=\"panels\">\n", canvas->page);
        for (size_t c = 0; c < study->nsettings; c++)
            EN_TRY(draw_setting(canvas, c, most));
        fputs("</div>\n", canvas->page);
        say_of_arms(canvas, "No byte crossed a socket: ", has_no_socket);
        say_of_arms(canvas,
                    "Payload as the algorithm has it; what went over the wire cannot be seen: ", is_unseen);
    }
    eni_csv csv;
    EN_TRY(eni_csv_open(
        &csv, ENI_CSV_RUN ",theory_bytes,payload_bytes,wire_bytes,shm_bytes,payload_to_theory"));
    for (size_t r = 0; r < study->nruns; r++) {
        const eni_run *run = &study->runs[r];
        const double values[] = {run->theory_bytes, run->payload_bytes, run->wire_bytes, run->shm_bytes,
                                 eni_metric_payload_ratio(run)};
        eni_csv_run(&csv, study, run);
        for (size_t v = 0; v < 5; v++) {
            if (v > 0) fputc(',', csv.file);
            eni_csv_number(&csv, values[v]);
        }
        fputc('\n', csv.file);
    }
    return eni_csv_close(&csv, canvas, "bytes");
}
