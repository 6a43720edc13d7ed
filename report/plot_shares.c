/* plot_shares.c - samples applied per worker, with the computed ones as an outline: with claimed batches a
 * fast worker does more, and a strategy that drops work shows it here. */
#include <math.h>

#include "core/try.h"
#include "report/html.h"
#include "report/plot.h"
#include "report/table.h"

/* Medians over seeds of what one rank computed and applied; false when no run says. */
static bool share_of(const eni_study *study, size_t setting, size_t arm, int rank, double *applied_out,
                     double *computed_out)
{
    double applied[ENI_MAX_RUNS], computed[ENI_MAX_RUNS];
    size_t napplied = 0, ncomputed = 0;
    for (size_t r = 0; r < study->nruns; r++) {
        const eni_run *run = &study->runs[r];
        if (run->setting != setting || run->arm != arm || !run->is_complete) continue;
        for (size_t i = 0; i < run->nshares; i++) {
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

static double most_samples(const eni_study *study)
{
    double most = 0;
    for (size_t r = 0; r < study->nruns; r++)
        for (size_t i = 0; i < study->runs[r].nshares; i++)
            most = fmax(most, fmax(study->runs[r].shares[i].applied, study->runs[r].shares[i].computed));
    return most;
}

static en_status draw_setting(eni_canvas *canvas, size_t setting, double most)
{
    const eni_study *study = canvas->study;
    char name[64];
    eni_plot_rows rows = {0};
    for (size_t a = 0; a < study->narms; a++) {
        const eni_run *run = eni_study_example(study, setting, a);
        for (size_t i = 0; run != NULL && i < run->nshares; i++)
            eni_plot_add_row(&rows, "%s · rank %d", study->arms[a].name, run->shares[i].rank);
    }
    if (rows.n == 0) return EN_OK;
    snprintf(name, sizeof name, "shares-%zu", setting);
    eni_plot plot;
    EN_TRY(eni_plot_open(&plot, canvas, name, 480, eni_plot_row_height(rows.n, 24) + 26));
    eni_plot_set_rows(&plot, &rows);
    eni_plot_title(&plot, "Samples applied per worker", setting, NULL);
    fprintf(plot.script, "set xlabel 'thousand samples (outline: computed)'\nset rmargin 2\n");
    eni_plot_set_axis(&plot, 0, 1.25 * most / 1000);
    fputs("$d << EOD\n", plot.script);
    size_t row = 0;
    for (size_t a = 0; a < study->narms; a++) {
        const eni_run *run = eni_study_example(study, setting, a);
        for (size_t i = 0; run != NULL && i < run->nshares; i++) {
            double applied, computed;
            char text[32];
            row++;
            if (!share_of(study, setting, a, run->shares[i].rank, &applied, &computed)) continue;
            eni_table_grouped(applied, " ", text, sizeof text);
            fprintf(plot.script, "%zu %.9g %.9g %zu \"%s\"\n", row, applied / 1000, computed / 1000, a, text);
        }
    }
    fputs("EOD\nplot ", plot.script);
    for (size_t a = 0; a < study->narms; a++)
        fprintf(plot.script,
                "$d using ($2/2):($4==%zu?$1:NaN):(0):2:($1-0.34):($1+0.34) with boxxyerror fs solid 0.85 "
                "noborder fc "
                "rgb '%s', ",
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
    double most = most_samples(study);
    if (!(most > 0)) {
        fputs("<p class=\"absent\">The runs do not say what each worker did.</p>\n", canvas->page);
    } else {
        fputs("<div class=\"panels\">\n", canvas->page);
        for (size_t c = 0; c < study->nsettings; c++)
            EN_TRY(draw_setting(canvas, c, most));
        fputs("</div>\n", canvas->page);
    }
    eni_csv csv;
    EN_TRY(eni_csv_open(&csv, ENI_CSV_RUN ",rank,samples_computed,samples_applied,steps"));
    for (size_t r = 0; r < study->nruns; r++) {
        const eni_run *run = &study->runs[r];
        for (size_t i = 0; i < run->nshares; i++) {
            eni_csv_run(&csv, study, run);
            fprintf(csv.file, "%d,", run->shares[i].rank);
            eni_csv_number(&csv, run->shares[i].computed);
            fputc(',', csv.file);
            eni_csv_number(&csv, run->shares[i].applied);
            fputc(',', csv.file);
            eni_csv_number(&csv, run->shares[i].steps);
            fputc('\n', csv.file);
        }
    }
    return eni_csv_close(&csv, canvas, "shares");
}
