/* plot_presence.c - who took part in a run, and when: a row for each rank, from where it came to where it ended. Of runs
 * whose ranks may come and go (--max-workers). */
#include <math.h>
#include <stdlib.h>

#include "core/try.h"
#include "report/html.h"
#include "report/plot.h"

enum { WIDTH = 720, ROW = 26 }; /* pixels */

static const struct {
    const char *name, *fill, *text;
} ends[] = {[ENI_STAYED] = {"stayed", "#9fc6e3", "stayed to the end"},
            [ENI_LEFT] = {"left", "#0072b2", "left, as it was asked to"},
            [ENI_WAS_LOST] = {"lost", "#d55e00", "was lost"}};

bool eni_plot_has_presence(const eni_study *study)
{
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;)
        if (run->is_complete && run->npresent > 0) return true;
    return false;
}

static en_status draw(eni_canvas *canvas, const eni_run *run)
{
    double end = 0;
    eni_plot plot;
    eni_plot_rows rows = {0};
    for (size_t i = 0; i < run->npresent; i++) {
        eni_plot_add_row(&rows, "rank %d", run->present[i].rank);
        end = fmax(end, run->present[i].to);
    }
    EN_TRY(eni_plot_open(&plot, canvas, WIDTH, eni_plot_row_height(rows.n, ROW), "presence-%zu-%zu-%lld",
                         run->setting, run->arm, (long long)run->seed));
    eni_plot_set_rows(&plot, &rows);
    eni_plot_title(&plot, "Who took part", run->setting, &canvas->study->arms[run->arm]);
    fprintf(plot.script, "set xlabel 'seconds on the training clock, seed %lld'\nset rmargin 2\n",
            (long long)run->seed);
    fprintf(plot.script, "set xrange [0:%.6g]\nset grid noytics xtics\n", end);
    for (size_t i = 0; i < rows.n; i++) {
        const eni_present *p = &run->present[i];
        fprintf(plot.script,
                "set object %zu rectangle from first %.6g, first %.6g to first %.6g, first %.6g fs solid 1.0 "
                "noborder fc rgb '%s'\n",
                i + 1, p->from, (double)i + 1 - 0.32, p->to, (double)i + 1 + 0.32, ends[p->end].fill);
    }
    fputs("plot NaN\n", plot.script);
    return eni_plot_close(&plot);
}

static void write_legend(FILE *page)
{
    fputs("<ul class=\"legend\">", page);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        fprintf(page, "<li><span class=\"box\" style=\"background:%s\"></span>%s</li>", ends[i].fill,
                ends[i].text);
    fputs("</ul>\n", page);
}

en_status eni_plot_presence(eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    eni_csv csv;
    en_status st = EN_OK;
    write_legend(canvas->page);
    EN_TRY(eni_csv_open(&csv, ENI_CSV_RUN ",rank,from_s,to_s,end"));
    fputs("<div class=\"panels\">\n", canvas->page);
    for (const eni_run *run = NULL;
         st == EN_OK && (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;) {
        if (!run->is_complete || run->npresent == 0) continue;
        for (size_t i = 0; i < run->npresent; i++) {
            const eni_present *p = &run->present[i];
            eni_csv_run(&csv, study, run);
            fprintf(csv.file, ",%d", p->rank);
            ENI_CSV_PUT(&csv, p->from, p->to);
            fprintf(csv.file, ",%s\n", ends[p->end].name);
        }
        st = draw(canvas, run);
    }
    fputs("</div>\n", canvas->page);
    if (st == EN_OK) return eni_csv_close(&csv, canvas->dir, "presence", canvas->page);
    fclose(csv.file);
    free(csv.text);
    return st;
}
