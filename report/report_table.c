/* report_table.c - see report_table.h. */
#include "report/report_table.h"

#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "report/html.h"
#include "report/plot.h"
#include "report/report_verdict.h"
#include "report/table.h"

/* ---- the numbers ------------------------------------------------------------------------------------- */

static double stale_mean(const eni_run *run)
{
    return run->is_complete ? run->staleness.mean : NAN;
}

static double stale_p50(const eni_run *run)
{
    return run->is_complete ? run->staleness.p50 : NAN;
}

static double stale_p95(const eni_run *run)
{
    return run->is_complete ? run->staleness.p95 : NAN;
}

static double stale_max(const eni_run *run)
{
    return run->is_complete ? run->staleness.max : NAN;
}

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

void eni_row_fill(const eni_study *study, size_t setting, size_t arm, eni_row *row_out)
{
    *row_out = (eni_row){.setting = setting,
                         .arm = arm,
                         .nruns = eni_study_count(study, setting, arm),
                         .updates = eni_study_summary(study, setting, arm, eni_metric_updates),
                         .speed = eni_study_summary(study, setting, arm, eni_metric_samples_per_s),
                         .reach = eni_study_summary(study, setting, arm, eni_metric_reach_t),
                         .accuracy = eni_study_summary(study, setting, arm, eni_metric_accuracy),
                         .wait = eni_study_summary(study, setting, arm, eni_metric_wait),
                         .ratio = eni_study_summary(study, setting, arm, eni_metric_payload_ratio),
                         .wire = eni_study_summary(study, setting, arm, eni_metric_wire_mb),
                         .stale_mean = eni_study_summary(study, setting, arm, stale_mean).median,
                         .stale_p50 = eni_study_summary(study, setting, arm, stale_p50).median,
                         .stale_p95 = eni_study_summary(study, setting, arm, stale_p95).median,
                         .stale_max = eni_study_summary(study, setting, arm, stale_max).max};
    name_strategy(study, setting, arm, row_out->strategy, sizeof row_out->strategy);
    row_out->nmissed = eni_study_missed(study, setting, arm, &row_out->censored_t);
}

/* ---- as text ------------------------------------------------------------------------------------------- */

enum {
    COL_SETTING,
    COL_STRATEGY,
    COL_UPDATES,
    COL_SPEED,
    COL_REACH,
    COL_ACCURACY,
    COL_STALENESS,
    COL_WAIT,
    COL_RATIO,
    COL_WIRE,
    COLS
};

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

/* Of each rank, "68/1 %"; of many the least and the most, "1-68 %"; of ranks that wait alike "9 %". A mean would
 * hide who waits for whom. */
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
        if (ranks < RANKS_SHOWN) snprintf(each + used, sizeof each - used, "%s%.0f", ranks > 0 ? "/" : "", share);
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

/* Letters that were cut in half by a size limit would break the line: they go. */
static void trim_letter(char *text)
{
    size_t n = strlen(text), tail = 0;
    while (tail < n && tail < 3 && ((unsigned char)text[n - 1 - tail] & 0xc0) == 0x80)
        tail++;
    if (tail == n) return;
    unsigned char head = (unsigned char)text[n - 1 - tail];
    size_t wanted = head >= 0xf0 ? 3 : head >= 0xe0 ? 2 : head >= 0xc0 ? 1 : 0;
    if (wanted != tail) text[n - 1 - tail] = 0;
}

static void fill_cells(const eni_study *study, const eni_row *row, char (*cells)[ENI_TABLE_TEXT])
{
    snprintf(cells[COL_SETTING], ENI_TABLE_TEXT, "%.40s", study->settings[row->setting].name);
    snprintf(cells[COL_STRATEGY], ENI_TABLE_TEXT, "%s", row->strategy);
    eni_table_grouped(row->updates.median, ",", cells[COL_UPDATES], ENI_TABLE_TEXT);
    eni_table_grouped(eni_table_significant(row->speed.median, 3), ",", cells[COL_SPEED], ENI_TABLE_TEXT);
    eni_verdict_time(study, row->setting, row->arm, cells[COL_REACH], ENI_TABLE_TEXT);
    put_accuracy(row, "-", cells[COL_ACCURACY], ENI_TABLE_TEXT);
    put_staleness(row, cells[COL_STALENESS], ENI_TABLE_TEXT);
    put_wait(study, row, "-", " %", cells[COL_WAIT], ENI_TABLE_TEXT);
    put(row->ratio.median, "%.2f", cells[COL_RATIO], ENI_TABLE_TEXT);
    char megabytes[32];
    eni_table_grouped(row->wire.median, ",", megabytes, sizeof megabytes);
    snprintf(cells[COL_WIRE], ENI_TABLE_TEXT, isnan(row->wire.median) ? "-" : "%s MB", megabytes);
    trim_letter(cells[COL_SETTING]);
    trim_letter(cells[COL_STRATEGY]);
}

en_status eni_report_print_table(const eni_study *study, FILE *out)
{
    char target[32];
    snprintf(target, sizeof target, "to %g %%", 100 * study->target);
    const eni_column columns[COLS] = {{"setting", false},
                                      {"strategy", false},
                                      {"updates", true},
                                      {"samples/s", true},
                                      {target, true},
                                      {"test acc", false},
                                      {"staleness mean/p50/p95/max", false},
                                      {"wait by rank", true},
                                      {"payload/theory", false},
                                      {"wire", true}};
    size_t nrows = 0;
    char(*cells)[ENI_TABLE_TEXT] = eni_alloc_array(study->nsettings * study->narms * COLS, ENI_TABLE_TEXT);
    if (cells == NULL) return EN_ENOMEM;
    for (size_t c = 0; c < study->nsettings; c++)
        for (size_t a = 0; a < study->narms; a++) {
            eni_row row;
            if (eni_study_count(study, c, a) == 0) continue;
            eni_row_fill(study, c, a, &row);
            fill_cells(study, &row, &cells[COLS * nrows++]);
        }
    eni_table_print(out, columns, COLS, (const char(*)[ENI_TABLE_TEXT])cells, nrows);
    eni_free(cells);
    return EN_OK;
}

enum { RANK_COLS = 5 };

/* "3.1 s [2.9 to 3.4]" */
static void put_with_range(const char *text, const char *range, char *text_out)
{
    snprintf(text_out, ENI_TABLE_TEXT, range[0] == 0 ? "%.40s" : "%.40s [%.46s]", text, range);
}

void eni_report_print_ranking(const eni_verdict *verdict, size_t setting, FILE *out)
{
    const eni_study *study = verdict->study;
    char target[32], cells[ENI_MAX_ARMS * RANK_COLS][ENI_TABLE_TEXT];
    snprintf(target, sizeof target, "to %g %%", 100 * study->target);
    const eni_column columns[RANK_COLS] = {{study->settings[setting].name, false},
                                           {target, false},
                                           {"test acc", false},
                                           {"samples/s", false},
                                           {"differs from the first", false}};
    eni_rank_row rows[ENI_MAX_ARMS];
    size_t n = eni_verdict_rank(verdict, setting, rows);
    if (n < 2) return;
    for (size_t i = 0; i < n; i++) {
        char(*line)[ENI_TABLE_TEXT] = &cells[i * RANK_COLS];
        snprintf(line[0], ENI_TABLE_TEXT, "%.60s", study->arms[rows[i].arm].name);
        trim_letter(line[0]);
        put_with_range(rows[i].time, rows[i].time_range, line[1]);
        put_with_range(rows[i].accuracy, rows[i].accuracy_range, line[2]);
        put_with_range(rows[i].speed, rows[i].speed_range, line[3]);
        snprintf(line[4], ENI_TABLE_TEXT, "%s", rows[i].differs);
    }
    eni_table_print(out, columns, RANK_COLS, (const char(*)[ENI_TABLE_TEXT])cells, n);
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

static void html_row(const eni_study *study, const eni_row *row, bool is_first, FILE *page)
{
    char text[ENI_TABLE_TEXT], kind[256];
    bool is_real = eni_study_is_real(study, row->setting);
    eni_study_kind(study, row->setting, kind, sizeof kind);
    fputs(is_first ? "<tr class=\"first\"><th scope=\"row\">" : "<tr><th scope=\"row\">", page);
    eni_html_text(page, study->settings[row->setting].name);
    fputs("<small>", page);
    eni_html_text(page, is_real ? "real" : "emulated");
    fputs("</small></th><td class=\"name\">", page);
    eni_plot_swatch(page, &study->arms[row->arm], is_real);
    const char *how = strstr(row->strategy, " [");
    eni_html_printf(page, "%.*s", how == NULL ? 80 : (int)(how - row->strategy), row->strategy);
    if (how != NULL) fputs("<small>", page);
    if (how != NULL) eni_html_printf(page, "%.*s", (int)strcspn(how + 2, "]"), how + 2);
    if (how != NULL) fputs("</small>", page);
    fputs("</td>", page);
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
    fprintf(
        page,
        "<div class=\"scroll\" tabindex=\"0\"><table class=\"main\"><thead><tr><th scope=\"col\">setting</th>"
        "<th scope=\"col\" class=\"name\">strategy<small>sum, transport</small></th>"
        "<th scope=\"col\">updates</th><th scope=\"col\">samples/s</th><th scope=\"col\">to %g" THIN "%%</th>"
        "<th scope=\"col\">test acc<small>%%</small></th><th scope=\"col\">staleness<small>mean, p50/p95/max"
        "</small></th><th scope=\"col\">wait<small>by rank</small></th><th scope=\"col\">payload<small>/ theory</small></th>"
        "<th scope=\"col\">wire<small>MB</small></th></tr></thead><tbody>\n",
        100 * study->target);
    for (size_t c = 0; c < study->nsettings; c++) {
        bool is_first = true;
        for (size_t a = 0; a < study->narms; a++) {
            eni_row row;
            if (eni_study_count(study, c, a) == 0) continue;
            eni_row_fill(study, c, a, &row);
            html_row(study, &row, is_first, page);
            is_first = false;
        }
    }
    fputs("</tbody></table></div>\n", page);
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
    eni_rank_row rows[ENI_MAX_ARMS];
    size_t n = eni_verdict_rank(verdict, setting, rows);
    if (n < 2) return;
    fprintf(
        page,
        "<div class=\"scroll\" tabindex=\"0\"><table class=\"rank\"><thead><tr><th scope=\"col\">arm</th>"
        "<th scope=\"col\">to %g" THIN "%%</th><th scope=\"col\">test acc<small>%%</small></th>"
        "<th scope=\"col\">samples/s</th><th scope=\"col\">differs from the first</th></tr></thead><tbody>\n",
        100 * study->target);
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
    fputs("</tbody></table></div>\n", page);
}

static double step_p50(const eni_run *run)
{
    return run->step_ms[0];
}

static double step_p95(const eni_run *run)
{
    return run->step_ms[1];
}

static double step_p99(const eni_run *run)
{
    return run->step_ms[2];
}

static double cpu_seconds(const eni_run *run)
{
    double sum = run->nroles > 0 ? 0 : NAN;
    for (size_t i = 0; i < run->nroles; i++)
        sum += run->roles[i].cpu_seconds;
    return sum;
}

static double rss_mb(const eni_run *run)
{
    return run->max_rss / 1e6;
}

void eni_report_html_steps(const eni_study *study, FILE *page)
{
    static const struct {
        eni_metric metric;
        const char *format;
    } columns[] = {
        {step_p50, "%.1f"}, {step_p95, "%.1f"}, {step_p99, "%.1f"}, {cpu_seconds, "%.1f"}, {rss_mb, "%.0f"}};
    enum { COLUMNS = sizeof columns / sizeof columns[0] };
    bool is_known = false;
    for (size_t r = 0; r < study->nruns; r++)
        for (size_t k = 0; k < COLUMNS; k++)
            is_known = is_known || !isnan(columns[k].metric(&study->runs[r]));
    if (!is_known) return;
    fputs("<div class=\"scroll\" tabindex=\"0\"><table class=\"main\"><thead><tr><th scope=\"col\">setting</th>"
          "<th scope=\"col\" class=\"name\">strategy</th><th scope=\"col\">step p50<small>ms</small></th>"
          "<th scope=\"col\">p95<small>ms</small></th><th scope=\"col\">p99<small>ms</small></th>"
          "<th scope=\"col\">processor<small>s, all roles</small></th>"
          "<th scope=\"col\">memory<small>MB, max rss</small></th></tr></thead><tbody>\n",
          page);
    for (size_t c = 0; c < study->nsettings; c++) {
        bool is_first = true;
        for (size_t a = 0; a < study->narms; a++) {
            if (eni_study_count(study, c, a) == 0) continue;
            fputs(is_first ? "<tr class=\"first\"><th scope=\"row\">" : "<tr><th scope=\"row\">", page);
            is_first = false;
            eni_html_text(page, study->settings[c].name);
            fputs("</th><td class=\"name\">", page);
            eni_plot_swatch(page, &study->arms[a], eni_study_is_real(study, c));
            eni_html_text(page, study->arms[a].name);
            fputs("</td>", page);
            for (size_t k = 0; k < COLUMNS; k++) {
                char text[32];
                put(eni_study_summary(study, c, a, columns[k].metric).median, columns[k].format, text,
                    sizeof text);
                fprintf(page, "<td>%s</td>", text);
            }
            fputs("</tr>\n", page);
        }
    }
    fputs("</tbody></table></div>\n", page);
}
