/* plot_staleness.c - how old the weights were that gradients were computed on: a histogram per worker, since
 * the mean alone is W-1 by identity and hides the slow worker's. All seeds of a setting are added up. */
#include <math.h>

#include "core/try.h"
#include "report/html.h"
#include "report/plot.h"

enum { MAX_WORKERS = 8, MAX_BINS = 64 };

typedef struct histogram {
    double count[MAX_WORKERS][MAX_BINS], pushes[MAX_WORKERS]; /* the last bin counts everything above */
    size_t nworkers, nbins;
    bool is_per_worker;
} histogram;

static void add(histogram *h, size_t worker, const eni_staleness *from)
{
    if (worker >= MAX_WORKERS) return;
    if (worker + 1 > h->nworkers) h->nworkers = worker + 1;
    for (size_t i = 0; i < from->nbins; i++) {
        size_t bin = from->bins[i].value < MAX_BINS - 1 ? (size_t)from->bins[i].value : MAX_BINS - 1;
        h->count[worker][bin] += from->bins[i].count;
        h->pushes[worker] += from->bins[i].count;
        if (from->bins[i].count > 0 && bin + 1 > h->nbins) h->nbins = bin + 1;
    }
}

static histogram collect(const eni_study *study, size_t setting, size_t arm)
{
    histogram h = {0};
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, arm, run)) != NULL;) {
        if (!run->is_complete) continue;
        h.is_per_worker = run->nworkers_stale > 0 && run->nworkers_stale <= MAX_WORKERS;
        if (!h.is_per_worker) add(&h, 0, &run->staleness);
        for (size_t w = 0; h.is_per_worker && w < run->nworkers_stale; w++)
            add(&h, w, &run->worker_stale[w]);
    }
    return h;
}

static double tallest(const histogram *h)
{
    double most = 0;
    for (size_t w = 0; w < h->nworkers; w++)
        for (size_t b = 0; b < h->nbins; b++)
            if (h->pushes[w] > 0) most = fmax(most, 100 * h->count[w][b] / h->pushes[w]);
    return most;
}

static en_status draw(eni_canvas *canvas, size_t setting, size_t arm, const histogram *h)
{
    eni_plot plot;
    EN_TRY(eni_plot_open(&plot, canvas, "staleness-%zu-%zu", setting, arm));
    eni_plot_title(&plot, "Staleness", setting, &canvas->study->arms[arm]);
    fprintf(plot.variables,
            "arm = %zu\nworkers = %zu\nbins = %zu\nis_cut = %d\nis_per_worker = %d\ntop = %.4g\n", arm + 1,
            h->nworkers, h->nbins, h->nbins == MAX_BINS, h->is_per_worker, 1.3 * tallest(h));
    for (size_t w = 0; w < h->nworkers; w++)
        for (size_t b = 0; b < h->nbins; b++)
            if (h->count[w][b] > 0) ENI_PLOT_PUT(&plot, w, b, 100 * h->count[w][b] / h->pushes[w]);
    return eni_plot_close(&plot, eni_figures_staleness_gp);
}

static void put_bins(eni_csv *csv, const eni_study *study, const eni_run *run, const eni_staleness *from)
{
    for (size_t i = 0; i < from->nbins; i++) {
        eni_csv_run(csv, study, run);
        fprintf(csv->file, from->rank < 0 ? ",all" : ",%d", from->rank);
        ENI_CSV_PUT(csv, from->bins[i].value, from->bins[i].count);
    }
}

static void put_run(eni_csv *csv, const eni_study *study, const eni_run *run)
{
    put_bins(csv, study, run, &run->staleness);
    for (size_t w = 0; w < run->nworkers_stale; w++)
        put_bins(csv, study, run, &run->worker_stale[w]);
}

en_status eni_plot_staleness(eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    size_t nfresh = 0, nunknown = 0;
    bool shown[ENI_MAX_ARMS] = {false};
    for (size_t c = 0; c < study->nsettings; c++)
        for (size_t a = 0; a < study->narms; a++)
            shown[a] = shown[a] || collect(study, c, a).nbins > 1;
    eni_plot_arm_legend(canvas, shown);
    fputs("<div class=\"panels\">\n", canvas->page);
    for (size_t c = 0; c < study->nsettings; c++)
        for (size_t a = 0; a < study->narms; a++) {
            histogram h = collect(study, c, a);
            nunknown += h.nbins == 0;
            nfresh += h.nbins == 1;
            if (h.nbins > 1) EN_TRY(draw(canvas, c, a, &h));
        }
    fputs("</div>\n", canvas->page);
    for (size_t c = 0; c < study->nsettings && nfresh > 0; c++) {
        bool is_first = true;
        for (size_t a = 0; a < study->narms; a++) {
            histogram h = collect(study, c, a);
            if (h.nbins != 1) continue;
            if (is_first)
                eni_html_put(canvas->page,
                             "<p class=\"note\">No stale gradients in %s: ", study->settings[c].name);
            eni_html_put(canvas->page, is_first ? "%s" : ", %s", study->arms[a].name);
            is_first = false;
        }
        if (!is_first) fputs(" (every gradient was computed on the newest weights).</p>\n", canvas->page);
    }
    if (nunknown == study->nsettings * study->narms)
        fputs("<p class=\"absent\">The runs have no histogram of staleness.</p>\n", canvas->page);
    return eni_csv_write(canvas, "staleness", ENI_CSV_RUN ",rank,staleness,pushes", put_run);
}
