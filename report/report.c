/* report.c - see report.h: load, judge, write the page, print the table. */
#include "report/report.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "report/plot.h"
#include "report/report_csv.h"
#include "report/report_fair.h"
#include "report/report_page.h"
#include "report/report_study.h"
#include "report/report_table.h"
#include "report/report_verdict.h"
#include "report/table.h"
#include "core/log.h"
#include "core/try.h"

static en_status make_plots_folder(const char *path)
{
    if (mkdir(path, 0777) == 0 || errno == EEXIST) return EN_OK;
    eni_error("report", "cannot make the folder %s: %s", path, strerror(errno));
    return EN_EIO;
}

/* Writes beside the page and renames over it: a reader never sees half a report. */
static en_status write_page(const eni_verdict *verdict, const eni_fairness *fairness, int extras)
{
    const eni_study *study = verdict->study;
    char plots[PATH_MAX], path[PATH_MAX], unfinished[PATH_MAX];
    snprintf(plots, sizeof plots, "%s/plots", study->dir);
    snprintf(path, sizeof path, "%s/report.html", study->dir);
    snprintf(unfinished, sizeof unfinished, "%s/report.html.part", study->dir);
    EN_TRY(make_plots_folder(plots));
    FILE *page = fopen(unfinished, "we");
    if (page == NULL) {
        eni_error("report", "cannot write %s: %s", unfinished, strerror(errno));
        return EN_EIO;
    }
    eni_canvas canvas = {.study = study,
                         .page = page,
                         .dir = plots,
                         .gnuplot = "gnuplot",
                         .wants_pdf = (extras & ENI_REPORT_PDF) != 0};
    en_status st = eni_page_write(&canvas, fairness, verdict);
    if (st == EN_OK && canvas.wants_pdf && canvas.gnuplot != NULL) st = eni_plot_pdf_legends(&canvas);
    int failed = ferror(page);
    if (fclose(page) != 0) failed = 1;
    if (st == EN_OK && (failed || rename(unfinished, path) != 0)) {
        eni_error("report", "cannot write %s: %s", path, strerror(errno));
        st = EN_EIO;
    }
    if (st != EN_OK) unlink(unfinished);
    return st;
}

static en_status print_summary(const eni_verdict *verdict, const eni_fairness *fairness, FILE *out)
{
    const eni_study *study = verdict->study;
    char text[ENI_VERDICT_TEXT];
    EN_TRY(eni_report_print_table(study, out));
    if (fairness->same_bytes[0] != 0) {
        eni_table_text(out, fairness->same_bytes);
        fputs("      ", out);
    }
    eni_fair_line(fairness, text, sizeof text);
    fputs("fairness: ", out);
    eni_table_text(out, text);
    fputs("\n\n", out);
    for (size_t c = 0; c < study->ncells; c++) {
        eni_report_print_ranking(verdict, c, out);
        eni_verdict_sentence(verdict, c, text, sizeof text);
        eni_table_text(out, study->cells[c].name);
        fputs(": ", out);
        eni_table_text(out, text);
        fputs("\n\n", out);
    }
    eni_verdict_caveat(verdict, fairness, text, sizeof text);
    eni_table_text(out, text);
    if (text[0] != 0) fputc('\n', out);
    if (fflush(out) == 0) return EN_OK;
    eni_error("report", "cannot print the table: %s", strerror(errno));
    return EN_EIO;
}

en_status eni_report(const char *dir, double target, FILE *table_out, int extras)
{
    eni_study *study;
    EN_TRY(eni_study_load(dir, target, &study));
    eni_fairness fairness;
    eni_fair_judge(study, &fairness);
    eni_verdict verdict;
    en_status st = eni_verdict_judge(study, &fairness, &verdict);
    if (st == EN_OK) st = write_page(&verdict, &fairness, extras);
    if (st == EN_OK && extras & ENI_REPORT_CSV) st = eni_report_csv(&verdict);
    if (st == EN_OK) st = print_summary(&verdict, &fairness, table_out);
    eni_verdict_free(&verdict);
    eni_study_free(study);
    return st;
}
