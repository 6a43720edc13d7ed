/* report.c - see report.h: load, judge, write the page and the CSVs, print the table. */
#include "report/report.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/files.h"
#include "core/log.h"
#include "core/try.h"
#include "report/plot.h"
#include "report/report_fair.h"
#include "report/report_page.h"
#include "report/report_study.h"
#include "report/report_verdict.h"
#include "report/table.h"

/* Closes `file` (open_memstream), whose writers ended with `st`, and writes it as OUT/NAME in one step: a
 * reader never sees half a report. */
static en_status replace(FILE *file, char **text, en_status st, const char *out, const char *name)
{
    char path[PATH_MAX];
    const bool is_whole = ferror(file) == 0;
    snprintf(path, sizeof path, "%s/%s", out, name);
    if ((fclose(file) != 0 || !is_whole) && st == EN_OK) st = EN_ENOMEM;
    if (st == EN_OK) st = eni_file_replace_text("report", path, *text);
    free(*text); /* open_memstream's */
    return st;
}

/* ---- the page ---- */

static en_status write_page(const eni_verdict *verdict, const eni_fairness *fairness, const char *out,
                            int extras)
{
    const eni_study *study = verdict->study;
    char plots[PATH_MAX], *text = NULL;
    size_t bytes;
    snprintf(plots, sizeof plots, "%s/plots", out);
    if (mkdir(plots, 0777) != 0 && errno != EEXIST)
        return eni_fail(EN_EIO, "report", "cannot create the folder %s: %s", plots, strerror(errno));
    FILE *page = open_memstream(&text, &bytes);
    if (page == NULL) return EN_ENOMEM;
    eni_canvas canvas = {.study = study,
                         .fairness = fairness,
                         .verdict = verdict,
                         .page = page,
                         .dir = plots,
                         .gnuplot = "gnuplot",
                         .formats = {(extras & ENI_REPORT_PDF) != 0, (extras & ENI_REPORT_PNG) != 0}};
    en_status st = eni_page_write(&canvas);
    if (st == EN_OK && canvas.gnuplot != NULL) st = eni_plot_legends(&canvas);
    return replace(page, &text, st, out, "report.html");
}

/* ---- CSV ---- */

/* A line per (setting, arm): medians over seeds with least and greatest, as in the page's table. */
static en_status write_table(const eni_study *study, const char *out)
{
    eni_csv csv;
    eni_row row = {0};
    EN_TRY(eni_csv_open(
        &csv, "setting,arm,runs,missed,updates,updates_min,updates_max,samples_per_s,"
              "samples_per_s_min,samples_per_s_max,target_s,target_s_min,target_s_max,"
              "target_s_censored,test_accuracy,test_accuracy_min,test_accuracy_max,wait,wait_min,wait_max,"
              "payload_ratio,payload_ratio_min,payload_ratio_max,wire_mb,wire_mb_min,"
              "wire_mb_max,staleness_mean,staleness_p50,staleness_p95,staleness_max,test_loss,test_loss_min,"
              "test_loss_max"));
    for (size_t next = 0; eni_row_next(study, &next, &row);) {
        eni_csv_names(&csv, study, row.setting, row.arm);
        fprintf(csv.file, ",%zu,%zu", row.nruns, row.nmissed);
        const eni_summary *const summaries[] = {&row.updates, &row.speed, &row.reach, &row.accuracy,
                                                &row.wait,    &row.ratio, &row.wire};
        for (size_t i = 0; i < sizeof summaries / sizeof *summaries; i++) {
            ENI_CSV_PUT(&csv, summaries[i]->median, summaries[i]->min, summaries[i]->max);
            if (summaries[i] == &row.reach) ENI_CSV_PUT(&csv, row.censored_t);
        }
        ENI_CSV_PUT(&csv, row.stale_mean, row.stale_p50, row.stale_p95, row.stale_max, row.loss.median,
                    row.loss.min, row.loss.max);
    }
    return eni_csv_close(&csv, out, "table", NULL);
}

/* A line per run, unrounded. */
static en_status write_runs(const eni_study *study, const char *out)
{
    eni_csv csv;
    EN_TRY(eni_csv_open(&csv, ENI_CSV_RUN
                        ",order,exit,workers,updates,steps,samples_computed,"
                        "samples_applied,samples_dropped,samples_per_s,train_s,target_s,target_s_low,"
                        "target_s_high,target_s_censored,target_samples,"
                        "test_accuracy,test_loss,lr,global_batch_size,payload_bytes,wire_bytes,"
                        "shm_bytes,theory_bytes,max_rss,staleness_mean,staleness_max,step_ms_p50,"
                        "step_ms_p95,step_ms_p99,outside,replaced"));
    for (const eni_run *run = study->runs; run < study->runs + study->nruns + study->nreplaced; run++) {
        eni_csv_run(&csv, study, run);
        fprintf(csv.file, ",%d,%d", run->order, run->exit);
        csv.is_blank = !run->is_complete;
        ENI_CSV_PUT(&csv, run->workers, run->updates, run->steps, run->samples_computed, run->samples_applied,
                    run->samples_dropped, run->samples_per_s, run->train_seconds, run->reach.t,
                    run->reach.low, run->reach.high, isinf(run->reach.t) ? run->last_t : NAN,
                    run->reach.samples, run->test_accuracy, run->test_loss, run->lr, run->global_batch_size,
                    run->payload_bytes, run->wire_bytes, run->shm_bytes, run->theory_bytes, run->max_rss,
                    run->staleness.mean, run->staleness.max, run->step_ms[0], run->step_ms[1],
                    run->step_ms[2]);
        csv.is_blank = false;
        ENI_CSV_PUT(&csv, run->outside);
        fprintf(csv.file, ",%d", run->is_replaced);
    }
    return eni_csv_close(&csv, out, "runs", NULL);
}

/* A line per pair of arms and setting: what was tested, and what is claimed (report_verdict.h). */
static en_status write_claims(const eni_verdict *verdict, const char *out)
{
    const eni_study *study = verdict->study;
    eni_csv csv;
    EN_TRY(eni_csv_open(&csv, "setting,arm,against,pairs,sooner,later,p,p_holm,least_effect,verdict,who"));
    for (size_t i = 0; i < verdict->n; i++) {
        const eni_comparison *comparison = &verdict->comparisons[i];
        eni_csv_names(&csv, study, comparison->setting, comparison->a);
        fputc(',', csv.file);
        eni_csv_name(&csv, study->arms[comparison->b].name);
        fprintf(csv.file, ",%zu,%zu,%zu", comparison->n, comparison->sooner, comparison->later);
        ENI_CSV_PUT(&csv, comparison->p, comparison->adjusted, eni_verdict_least(verdict, comparison));
        fprintf(csv.file, ",%s,", eni_verdict_found(comparison));
        if (comparison->found == ENI_COMPARISON_YES)
            eni_csv_name(&csv, study->arms[comparison->sign > 0 ? comparison->a : comparison->b].name);
    }
    return eni_csv_close(&csv, out, "comparisons", NULL);
}

/* ---- for programs, and for a paper ---- */

static json_t *json_of(double value)
{
    /* JSON has no infinity for a miss: `missed` counts them */
    return isfinite(value) ? json_real(value) : json_null();
}

/* The text may have been truncated within a letter. */
static json_t *json_of_text(const char *text)
{
    char letters[ENI_VERDICT_TEXT];
    json_t *value = json_string(text);
    if (value != NULL) return value;
    snprintf(letters, sizeof letters, "%s", text);
    for (char *at = letters; *at != 0; at++)
        if ((*at & 0x80) != 0) *at = '?';
    return json_string(letters);
}

static json_t *json_of_rules(const eni_fairness *fairness)
{
    json_t *rules = json_array();
    for (size_t i = 0; i < fairness->nrules; i++)
        json_array_append_new(rules, json_pack("{s:s, s:s, s:o}", "rule", fairness->rules[i].name, "mark",
                                               eni_fair_mark(fairness->rules[i].mark), "found",
                                               json_of_text(fairness->rules[i].text)));
    return rules;
}

static json_t *json_of_rows(const eni_study *study)
{
    json_t *rows = json_array();
    eni_row row = {0};
    for (size_t next = 0; eni_row_next(study, &next, &row);)
        json_array_append_new(
            rows,
            json_pack("{s:s, s:s, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "setting",
                      study->settings[row.setting].name, "arm", study->arms[row.arm].name, "runs",
                      (int)row.nruns, "missed", (int)row.nmissed, "target_s", json_of(row.reach.median),
                      "updates", json_of(row.updates.median), "samples_per_s", json_of(row.speed.median),
                      "test_accuracy", json_of(row.accuracy.median), "test_loss", json_of(row.loss.median),
                      "wait", json_of(row.wait.median), "staleness_mean", json_of(row.stale_mean)));
    return rows;
}

static json_t *json_of_comparisons(const eni_verdict *verdict)
{
    const eni_study *study = verdict->study;
    json_t *comparisons = json_array();
    for (size_t i = 0; i < verdict->n; i++) {
        const eni_comparison *c = &verdict->comparisons[i];
        const bool is_claimed = c->found == ENI_COMPARISON_YES;
        json_array_append_new(
            comparisons, json_pack("{s:s, s:[s, s], s:b, s:i, s:i, s:i, s:o, s:o, s:o, s:s, s:s?}", "setting",
                                   study->settings[c->setting].name, "arms", study->arms[c->a].name,
                                   study->arms[c->b].name, "primary", c->is_primary, "pairs", (int)c->n,
                                   "sooner", (int)c->sooner, "later", (int)c->later, "p", json_of(c->p),
                                   "p_holm", json_of(c->adjusted), "least_effect",
                                   json_of(eni_verdict_least(verdict, c)), "verdict", eni_verdict_found(c),
                                   "who", is_claimed ? study->arms[c->sign > 0 ? c->a : c->b].name : NULL));
    }
    return comparisons;
}

/* The page's texts and the table's numbers. */
static en_status write_json(const eni_verdict *verdict, const eni_fairness *fairness, const char *out)
{
    const eni_study *study = verdict->study;
    char path[PATH_MAX], text[ENI_VERDICT_TEXT];
    json_t *sentences = json_object();
    for (size_t c = 0; c < study->nsettings; c++) {
        eni_verdict_sentence(verdict, c, text, sizeof text);
        json_object_set_new(sentences, study->settings[c].name, json_of_text(text));
    }
    eni_verdict_primary(verdict, text, sizeof text);
    json_t *all = json_pack("{s:i, s:n, s:o, s:o, s:s, s:o, s:o, s:o, s:i}", "schema", 1, "target", "primary",
                            text[0] == 0 ? json_null() : json_of_text(text), "verdict", sentences, "fairness",
                            eni_fair_mark(fairness->nfail > 0 ? ENI_FAIL : ENI_PASS), "rules",
                            json_of_rules(fairness), "table", json_of_rows(study), "comparisons",
                            json_of_comparisons(verdict), "replaced", (int)study->nreplaced);
    eni_study_put_target(all, &study->target);
    char *dumped = json_dumps(all, JSON_INDENT(1) | JSON_REAL_PRECISION(12));
    json_decref(all);
    if (dumped == NULL)
        return eni_fail(EN_EFORMAT, "report", "a name in this study is not valid UTF-8, as JSON requires");
    snprintf(path, sizeof path, "%s/report.json", out);
    const en_status st = eni_file_replace_text("report", path, dumped);
    free(dumped); /* jansson's */
    return st;
}

static en_status write_latex(const eni_study *study, const char *out)
{
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    if (file == NULL) return EN_ENOMEM;
    eni_report_latex_table(study, file);
    return replace(file, &text, EN_OK, out, "table.tex");
}

/* ---- the table ---- */

/* Prints a text without control characters, between `before` and `behind`. */
static void print_text(FILE *out, const char *before, const char *text, const char *behind)
{
    fputs(before, out);
    eni_table_text(out, text);
    fputs(behind, out);
}

static en_status print_summary(const eni_verdict *verdict, const eni_fairness *fairness, FILE *out)
{
    const eni_study *study = verdict->study;
    char text[ENI_VERDICT_TEXT];
    EN_TRY(eni_report_print_table(study, out));
    if (fairness->same_bytes[0] != 0) print_text(out, "", fairness->same_bytes, "      ");
    eni_fair_line(fairness, text, sizeof text);
    print_text(out, "fairness: ", text, "\n\n");
    eni_verdict_primary(verdict, text, sizeof text);
    if (text[0] != 0) {
        print_text(out, "primary, ", study->settings[study->primary.setting].name, ": ");
        print_text(out, "", text, "\n\n");
    }
    for (size_t c = 0; c < study->nsettings; c++) {
        EN_TRY(eni_report_print_ranking(verdict, c, out));
        eni_verdict_sentence(verdict, c, text, sizeof text);
        print_text(out, "", study->settings[c].name, ": ");
        print_text(out, "", text, "\n\n");
    }
    eni_verdict_caveat(verdict, fairness, text, sizeof text);
    print_text(out, "", text, text[0] != 0 ? "\n" : "");
    if (fflush(out) == 0) return EN_OK;
    return eni_fail(EN_EIO, "report", "cannot print the table: %s", strerror(errno));
}

/* ---- the report ---- */

en_status eni_report(const char *const *dirs, size_t n, const char *out, eni_target target, FILE *table_out,
                     int extras)
{
    eni_study *study;
    EN_TRY(eni_study_load(dirs, n, target, &study));
    eni_fairness fairness;
    eni_fair_judge(study, &fairness);
    eni_verdict verdict;
    en_status st = eni_verdict_judge(study, &fairness, &verdict);
    if (st == EN_OK) st = write_page(&verdict, &fairness, out, extras);
    if (st == EN_OK) st = write_json(&verdict, &fairness, out);
    if (st == EN_OK && (extras & ENI_REPORT_LATEX) != 0) st = write_latex(study, out);
    const bool has_csv = (extras & ENI_REPORT_CSV) != 0;
    if (st == EN_OK && has_csv) st = write_table(study, out);
    if (st == EN_OK && has_csv) st = write_claims(&verdict, out);
    if (st == EN_OK && has_csv) st = write_runs(study, out);
    if (st == EN_OK) st = print_summary(&verdict, &fairness, table_out);
    eni_verdict_free(&verdict);
    eni_study_free(study);
    return st;
}
