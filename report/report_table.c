/* report_table.c - the table and the ranking of a comparison, for the terminal and the page; see
 * report_page.h. */
#include "report/report_page.h"

#include <math.h>
#include <string.h>

#include "report/html.h"
#include "report/table.h"

/* ---- the numbers ------------------------------------------------------------------------------------- */

/* "ring [direct, shm]", "ps-async [shm]", "ssp:bound=2": the arm, how it sums, over what. */
static void name_strategy(const eni_study *study, size_t setting, size_t arm, char *text_out, size_t size)
{
    const eni_run *run = eni_study_example(study, setting, arm);
    const char *name = study->arms[arm].name, *algorithm = run == NULL ? NULL : run->algorithm;
    const char *transport = run == NULL ? NULL : run->transport;
    if (algorithm != NULL && (algorithm[0] == 0 || strcmp(algorithm, "none") == 0)) algorithm = NULL;
    if (transport != NULL && (transport[0] == 0 || strcmp(transport, "none") == 0)) transport = NULL;
    if (algorithm != NULL && transport != NULL)
        snprintf(text_out, size, "%.40s [%.16s, %.12s]", name, algorithm, transport);
    else if (algorithm != NULL || transport != NULL)
        snprintf(text_out, size, "%.40s [%.16s]", name, algorithm != NULL ? algorithm : transport);
    else
        snprintf(text_out, size, "%.40s", name);
}

bool eni_row_next(const eni_study *study, size_t *next, eni_row *row)
{
    while (*next < study->nsettings * study->narms) {
        const size_t setting = *next / study->narms, arm = (*next)++ % study->narms;
        const size_t nruns = eni_study_count(study, setting, arm);
        if (nruns == 0) continue;
        const bool is_first = row->nruns == 0 || row->setting != setting;
        *row = (eni_row){.setting = setting,
                         .arm = arm,
                         .nruns = nruns,
                         .is_first = is_first,
                         .updates = eni_study_summary(study, setting, arm, eni_metric_updates),
                         .speed = eni_study_summary(study, setting, arm, eni_metric_samples_per_s),
                         .reach = eni_study_summary(study, setting, arm, eni_metric_reach_t),
                         .accuracy = eni_study_summary(study, setting, arm, eni_metric_accuracy),
                         .wait = eni_study_summary(study, setting, arm, eni_metric_wait),
                         .ratio = eni_study_summary(study, setting, arm, eni_metric_payload_ratio),
                         .wire = eni_study_summary(study, setting, arm, eni_metric_wire_mb),
                         .stale_mean = eni_study_summary(study, setting, arm, eni_metric_stale_mean).median,
                         .stale_p50 = eni_study_summary(study, setting, arm, eni_metric_stale_p50).median,
                         .stale_p95 = eni_study_summary(study, setting, arm, eni_metric_stale_p95).median,
                         .stale_max = eni_study_summary(study, setting, arm, eni_metric_stale_max).max};
        name_strategy(study, setting, arm, row->strategy, sizeof row->strategy);
        row->nmissed = eni_study_missed(study, setting, arm, &row->censored_t);
        return true;
    }
    return false;
}

/* ---- as text ------------------------------------------------------------------------------------------- */

static const char *grouped(double value, char text[ENI_TABLE_TEXT])
{
    eni_table_grouped(value, ",", text, ENI_TABLE_TEXT);
    return text;
}

static void put_staleness(const eni_row *row, char *text_out, size_t size)
{
    if (isnan(row->stale_mean)) {
        snprintf(text_out, size, "-");
        return;
    }
    int used = row->stale_mean > 0 ? snprintf(text_out, size, "%.1f", row->stale_mean)
                                   : snprintf(text_out, size, "0");
    snprintf(text_out + used, size - (size_t)used, "/%.0f/%.0f/%.0f", row->stale_p50, row->stale_p95,
             row->stale_max);
}

/* "80.6 [80.5-80.7]"; one run: "80.6". */
static void put_accuracy(const eni_row *row, const char *dash, char *text_out, size_t size)
{
    if (row->accuracy.n == 0)
        snprintf(text_out, size, "-");
    else if (row->accuracy.n == 1)
        snprintf(text_out, size, "%.1f", 100 * row->accuracy.median);
    else
        snprintf(text_out, size, "%.1f [%.1f%s%.1f]", 100 * row->accuracy.median, 100 * row->accuracy.min,
                 dash, 100 * row->accuracy.max);
}

static void put(double value, const char *format, char *text_out, size_t size)
{
    if (isnan(value))
        snprintf(text_out, size, "-");
    else
        snprintf(text_out, size, format, value);
}

enum { RANKS_SHOWN = 4 };

/* Of each rank, "68/1 %"; of many the least and the most, "1-68 %"; of ranks that wait alike "9 %". A mean
 * would hide who waits for whom. */
static void put_wait(const eni_study *study, const eni_row *row, const char *dash, const char *percent,
                     char *text_out, size_t size)
{
    char each[64] = "";
    double least = INFINITY, most = -INFINITY;
    int ranks = 0;
    for (;; ranks++) {
        const double share = round(100 * eni_study_wait_of_rank(study, row->setting, row->arm, ranks));
        if (isnan(share)) break;
        least = fmin(least, share);
        most = fmax(most, share);
        const size_t used = strlen(each);
        if (ranks < RANKS_SHOWN)
            snprintf(each + used, sizeof each - used, "%s%.0f", ranks > 0 ? "/" : "", share);
    }
    if (ranks == 0)
        snprintf(text_out, size, "-");
    else if (!(most > least))
        snprintf(text_out, size, "%.0f%s", most, percent);
    else if (ranks <= RANKS_SHOWN)
        snprintf(text_out, size, "%s%s", each, percent);
    else
        snprintf(text_out, size, "%.0f%s%.0f%s", least, dash, most, percent);
}

static void put_name(eni_table *table, const char *name, int most)
{
    char text[ENI_TABLE_TEXT];
    snprintf(text, sizeof text, "%.*s", most, name);
    eni_table_trim(text);
    eni_table_put(table, "%s", text);
}

static void put_row(const eni_study *study, const eni_row *row, eni_table *table)
{
    char text[ENI_TABLE_TEXT];
    put_name(table, study->settings[row->setting].name, 40);
    put_name(table, row->strategy, 80);
    eni_table_put(table, "%s", grouped(row->updates.median, text));
    eni_table_put(table, "%s", grouped(eni_table_significant(row->speed.median, 3), text));
    eni_verdict_time(study, row->setting, row->arm, text, sizeof text);
    eni_table_put(table, "%s", text);
    put_accuracy(row, "-", text, sizeof text);
    eni_table_put(table, "%s", text);
    put_staleness(row, text, sizeof text);
    eni_table_put(table, "%s", text);
    put_wait(study, row, "-", " %", text, sizeof text);
    eni_table_put(table, "%s", text);
    put(row->ratio.median, "%.2f", text, sizeof text);
    eni_table_put(table, "%s", text);
    eni_table_put(table, "%s%s", grouped(row->wire.median, text), isnan(row->wire.median) ? "" : " MB");
}

en_status eni_report_print_table(const eni_study *study, FILE *out)
{
    char heads[200];
    eni_table table;
    eni_row row = {0};
    snprintf(
        heads, sizeof heads,
        "setting|strategy|>updates|>samples/s|>to %g %%|test acc|staleness mean/p50/p95/max|>wait by rank|"
        "payload/theory|>wire",
        100 * study->target);
    eni_table_begin(&table, heads);
    for (size_t next = 0; eni_row_next(study, &next, &row);)
        put_row(study, &row, &table);
    return eni_table_print(&table, out);
}

/* "3.1 s [2.9 to 3.4]" */
static void put_with_range(eni_table *table, const char *text, const char *range)
{
    eni_table_put(table, range[0] == 0 ? "%.40s" : "%.40s [%.46s]", text, range);
}

en_status eni_report_print_ranking(const eni_verdict *verdict, size_t setting, FILE *out)
{
    const eni_study *study = verdict->study;
    char heads[256], name[160];
    eni_table table;
    eni_rank_row rows[ENI_MAX_ARMS];
    size_t n = eni_verdict_rank(verdict, setting, rows);
    if (n < 2) return EN_OK;
    snprintf(name, sizeof name, "%s", study->settings[setting].name);
    for (char *bar = name; (bar = strchr(bar, '|')) != NULL;)
        *bar = '/'; /* which stands between heads */
    snprintf(heads, sizeof heads, "%s|to %g %%|test acc|samples/s|differs from the first", name,
             100 * study->target);
    eni_table_begin(&table, heads);
    for (size_t i = 0; i < n; i++) {
        put_name(&table, study->arms[rows[i].arm].name, 60);
        put_with_range(&table, rows[i].time, rows[i].time_range);
        put_with_range(&table, rows[i].accuracy, rows[i].accuracy_range);
        put_with_range(&table, rows[i].speed, rows[i].speed_range);
        eni_table_put(&table, "%s", rows[i].differs);
    }
    return eni_table_print(&table, out);
}

/* ---- as HTML ------------------------------------------------------------------------------------------- */

#define THIN "\xe2\x80\xaf" /* U+202F: thousands stand apart without a comma that means a point elsewhere */

static void cell_number(FILE *page, double median, double min, double max, size_t n,
                        double (*round_to)(double))
{
    char text[64], low[64], high[64];
    eni_table_grouped(round_to(median), THIN, text, sizeof text);
    eni_table_grouped(round_to(min), THIN, low, sizeof low);
    eni_table_grouped(round_to(max), THIN, high, sizeof high);
    fprintf(page, "<td>%s", text);
    if (n > 1 && strcmp(low, high) != 0) fprintf(page, "<small>%s–%s</small>", low, high);
    fputs("</td>", page);
}

static double to_one(double value)
{
    return value;
}

static double to_three_digits(double value)
{
    return eni_table_significant(value, 3);
}

static void cell_time(const eni_study *study, const eni_row *row, FILE *page)
{
    char text[64], low[64], high[64];
    eni_verdict_time(study, row->setting, row->arm, text, sizeof text);
    fputs("<td>", page);
    eni_html_text(page, text);
    if (row->nmissed > 0 && row->nruns > 1) {
        fprintf(page, "<small>missed in %zu of %zu</small>", row->nmissed, row->nruns);
    } else if (row->reach.n > 1) {
        eni_verdict_seconds(row->reach.min, 0, low, sizeof low);
        eni_verdict_seconds(row->reach.max, 0, high, sizeof high);
        low[strcspn(low, " ")] = 0;
        fprintf(page, "<small>%s–%s</small>", low, high);
    }
    fputs("</td>", page);
}

/* Of which setting and arm a row is; behind the arm what stands in brackets, "ring [direct, shm]", below it.
 */
static void begin_row(const eni_study *study, const eni_row *row, const char *strategy, FILE *page)
{
    fputs(row->is_first ? "<tr class=\"first\"><th scope=\"row\">" : "<tr><th scope=\"row\">", page);
    eni_html_text(page, study->settings[row->setting].name);
    if (strategy != NULL)
        fprintf(page, "<small>%s</small>", eni_study_is_real(study, row->setting) ? "real" : "emulated");
    fputs("</th><td class=\"name\">", page);
    eni_plot_swatch(page, &study->arms[row->arm], eni_study_is_real(study, row->setting));
    if (strategy == NULL) strategy = study->arms[row->arm].name;
    const char *how = strategy == row->strategy ? strstr(strategy, " [") : NULL;
    eni_html_printf(page, "%.*s", how == NULL ? (int)strlen(strategy) : (int)(how - strategy), strategy);
    if (how != NULL) fputs("<small>", page);
    if (how != NULL) eni_html_printf(page, "%.*s", (int)strcspn(how + 2, "]"), how + 2);
    fputs(how != NULL ? "</small></td>" : "</td>", page);
}

static void html_row(const eni_study *study, const eni_row *row, FILE *page)
{
    char text[ENI_TABLE_TEXT];
    begin_row(study, row, row->strategy, page);
    cell_number(page, row->updates.median, row->updates.min, row->updates.max, row->updates.n, to_one);
    cell_number(page, row->speed.median, row->speed.min, row->speed.max, row->speed.n, to_three_digits);
    cell_time(study, row, page);
    fputs("<td>", page);
    if (row->accuracy.n == 0) {
        fputs("-", page);
    } else {
        fprintf(page, "%.1f", 100 * row->accuracy.median);
        if (row->accuracy.n > 1)
            fprintf(page, "<small>%.1f–%.1f</small>", 100 * row->accuracy.min, 100 * row->accuracy.max);
    }
    put_staleness(row, text, sizeof text);
    char *rest = strchr(text, '/');
    if (rest != NULL) *rest++ = 0;
    fprintf(page, "</td><td>%s", text);
    if (rest != NULL) fprintf(page, "<small>%s</small>", rest);
    put_wait(study, row, "–", THIN "%", text, sizeof text);
    fprintf(page, "</td><td>%s</td>", text);
    put(row->ratio.median, "%.2f", text, sizeof text);
    fprintf(page, "<td>%s</td>", text);
    cell_number(page, row->wire.median, row->wire.min, row->wire.max, 1, to_one);
    fputs("</tr>\n", page);
}

void eni_report_html_table(const eni_study *study, FILE *page)
{
    char heads[400];
    eni_row row = {0};
    snprintf(
        heads, sizeof heads,
        "setting|=strategy<small>sum, transport</small>|updates|samples/s|to %g" THIN "%%|test acc<small>%%"
        "</small>|staleness<small>mean, p50/p95/max</small>|wait<small>by rank</small>|payload<small>/ theory"
        "</small>|wire<small>MB</small>",
        100 * study->target);
    eni_html_table(page, "main", heads);
    for (size_t next = 0; eni_row_next(study, &next, &row);)
        html_row(study, &row, page);
    eni_html_table_end(page);
    fputc('\n', page);
}

static void ranked_cell(FILE *page, const char *text, const char *range)
{
    fputs("<td>", page);
    eni_html_text(page, text);
    if (range[0] != 0) {
        fputs("<small>", page);
        eni_html_text(page, range);
        fputs("</small>", page);
    }
    fputs("</td>", page);
}

void eni_report_html_ranking(const eni_verdict *verdict, size_t setting, FILE *page)
{
    const eni_study *study = verdict->study;
    char heads[160];
    eni_rank_row rows[ENI_MAX_ARMS];
    size_t n = eni_verdict_rank(verdict, setting, rows);
    if (n < 2) return;
    snprintf(heads, sizeof heads,
             "arm|to %g" THIN "%%|test acc<small>%%</small>|samples/s|differs from the first",
             100 * study->target);
    eni_html_table(page, "rank", heads);
    for (size_t i = 0; i < n; i++) {
        fputs("<tr><th scope=\"row\">", page);
        eni_plot_swatch(page, &study->arms[rows[i].arm], eni_study_is_real(study, setting));
        eni_html_text(page, study->arms[rows[i].arm].name);
        fputs("</th>", page);
        ranked_cell(page, rows[i].time, rows[i].time_range);
        ranked_cell(page, rows[i].accuracy, rows[i].accuracy_range);
        ranked_cell(page, rows[i].speed, rows[i].speed_range);
        ranked_cell(page, rows[i].differs, "");
        fputs("</tr>\n", page);
    }
    eni_html_table_end(page);
    fputc('\n', page);
}

void eni_report_html_steps(const eni_study *study, FILE *page)
{
    static const struct {
        eni_metric metric;
        const char *format;
    } columns[] = {{eni_metric_step_p50, "%.1f"},
                   {eni_metric_step_p95, "%.1f"},
                   {eni_metric_step_p99, "%.1f"},
                   {eni_metric_cpu_seconds, "%.1f"},
                   {eni_metric_rss_mb, "%.0f"}};
    enum { COLUMNS = sizeof columns / sizeof columns[0] };
    bool is_known = false;
    eni_row row = {0};
    for (size_t r = 0; r < study->nruns; r++)
        for (size_t k = 0; k < COLUMNS; k++)
            is_known = is_known || !isnan(columns[k].metric(&study->runs[r]));
    if (!is_known) return;
    eni_html_table(
        page, "main",
        "setting|=strategy|step p50<small>ms</small>|p95<small>ms</small>|p99<small>ms</small>|processor"
        "<small>s, all roles</small>|memory<small>MB, max rss</small>");
    for (size_t next = 0; eni_row_next(study, &next, &row);) {
        begin_row(study, &row, NULL, page);
        for (size_t k = 0; k < COLUMNS; k++) {
            char text[32];
            put(eni_study_summary(study, row.setting, row.arm, columns[k].metric).median, columns[k].format,
                text, sizeof text);
            fprintf(page, "<td>%s</td>", text);
        }
        fputs("</tr>\n", page);
    }
    eni_html_table_end(page);
    fputc('\n', page);
}
