/* plot_presence.c - which ranks took part in a run, and when: a row per rank, from its start to its end. For
 * runs whose ranks may come and go (--max-workers). */
#include <math.h>

#include "core/try.h"
#include "report/plot.h"

bool eni_plot_has_presence(const eni_canvas *canvas)
{
    for (const eni_run *run = NULL; (run = eni_study_next(canvas->study, ENI_ANY, ENI_ANY, run)) != NULL;)
        if (run->is_complete && run->npresent > 0) return true;
    return false;
}

static en_status draw(eni_canvas *canvas, const eni_run *run)
{
    double last = 0;
    eni_plot plot;
    EN_TRY(
        eni_plot_open(&plot, canvas, "presence-%zu-%zu-%lld", run->setting, run->arm, (long long)run->seed));
    eni_plot_title(&plot, "Ranks over time", run->setting, &canvas->study->arms[run->arm]);
    for (const eni_present *p = run->present; p < run->present + run->npresent; p++) {
        eni_plot_add_row(&plot, "rank %d", p->rank);
        ENI_PLOT_PUT(&plot, plot.nrows, p->from, p->to, p->end);
        last = fmax(last, p->to);
    }
    fprintf(plot.variables, "last = %.6g\nseed = '%lld'\n", last, (long long)run->seed);
    return eni_plot_close(&plot, eni_figures_presence_gp);
}

static void put_present(eni_csv *csv, const eni_study *study, const eni_run *run)
{
    static const char *const ends[] = {[ENI_STAYED] = "stayed", [ENI_LEFT] = "left", [ENI_WAS_LOST] = "lost"};
    for (size_t i = 0; run->is_complete && i < run->npresent; i++) {
        const eni_present *p = &run->present[i];
        eni_csv_run(csv, study, run);
        fprintf(csv->file, ",%d", p->rank);
        ENI_CSV_PUT(csv, p->from, p->to);
        fprintf(csv->file, ",%s", ends[p->end]);
    }
}

en_status eni_plot_presence(eni_canvas *canvas)
{
    fputs("<div class=\"panels\">\n", canvas->page);
    for (const eni_run *run = NULL; (run = eni_study_next(canvas->study, ENI_ANY, ENI_ANY, run)) != NULL;)
        if (run->is_complete && run->npresent > 0) EN_TRY(draw(canvas, run));
    fputs("</div>\n", canvas->page);
    return eni_csv_write(canvas, "presence", ENI_CSV_RUN ",rank,from_s,to_s,end", put_present);
}
