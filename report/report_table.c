/* report_table.c - the table and the ranking of a comparison, for the terminal and the page; see
 * report_page.h. */
#include "report/report_page.h"

#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "report/html.h"
#include "report/table.h"

/* ---- the numbers ------------------------------------------------------------------------------------- */

/* "ring [direct, shm]", "ps-async [shm]", "ssp:bound=2": the arm, its all-reduce, its transport. */
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
                         .loss = eni_study_summary(study, setting, arm, eni_metric_loss),
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

/* ---- the cells of a row -------------------------------------------------------------------------------- */

#define THIN "\xe2\x80\xaf" /* U+202F separates thousands; a comma is a decimal point elsewhere */

/* Number formats of a terminal and of a page. */
typedef struct letters {
    const char *group, *dash, *percent;
} letters;

static const letters of_terminal = {",", "-", " %"}, of_page = {THIN, "–", THIN "%"};

enum { UPDATES, SPEED, TIME, QUALITY, STALENESS, WAIT, RATIO, WIRE, CELLS };

/* A number, and the text below or after it: usually its range over the seeds; "": none. */
typedef struct cell {
    char text[ENI_TABLE_TEXT], small[ENI_TABLE_TEXT];
} cell;

static void put(double value, const char *format, char text_out[ENI_TABLE_TEXT])
{
    if (isnan(value))
        snprintf(text_out, ENI_TABLE_TEXT, "-");
    else
        snprintf(text_out, ENI_TABLE_TEXT, format, value);
}

static void put_count(const eni_summary *of, int digits, const letters *how, cell *c)
{
    char low[40], high[40];
    eni_text_grouped(eni_table_significant(of->median, digits), how->group, c->text, sizeof c->text);
    eni_text_grouped(eni_table_significant(of->min, digits), how->group, low, sizeof low);
    eni_text_grouped(eni_table_significant(of->max, digits), how->group, high, sizeof high);
    if (of->n > 1 && strcmp(low, high) != 0)
        snprintf(c->small, sizeof c->small, "%s%s%s", low, how->dash, high);
}

static void put_time(const eni_study *study, const eni_row *row, const letters *how, cell *c)
{
    char low[40], high[40];
    eni_verdict_time(study, row->setting, row->arm, c->text, sizeof c->text);
    eni_verdict_seconds(row->reach.min, 0, low, sizeof low);
    eni_verdict_seconds(row->reach.max, 0, high, sizeof high);
    low[strcspn(low, " ")] = 0;
    if (row->nmissed > 0 && row->nruns > 1)
        snprintf(c->small, sizeof c->small, "missed in %zu of %zu", row->nmissed, row->nruns);
    else if (row->reach.n > 1)
        snprintf(c->small, sizeof c->small, "%s%s%s", low, how->dash, high);
}

enum { RANKS_SHOWN = 4 };

/* Per rank, "68/1 %"; for many ranks the least and the most, "1-68 %"; for ranks that wait alike "9 %". A mean
 * would hide which rank waits. */
static void put_wait(const eni_study *study, const eni_row *row, const letters *how, cell *c)
{
    char each[64] = "";
    double least = INFINITY, most = -INFINITY;
    int ranks = 0;
    for (;; ranks++) {
        const double share = round(100 * eni_study_wait_of_rank(study, row->setting, row->arm, ranks));
        if (isnan(share)) break;
        least = fmin(least, share);
        most = fmax(most, share);
        if (ranks < RANKS_SHOWN) eni_text_add(each, sizeof each, "%s%.0f", ranks > 0 ? "/" : "", share);
    }
    if (ranks == 0)
        snprintf(c->text, sizeof c->text, "-");
    else if (!(most > least))
        snprintf(c->text, sizeof c->text, "%.0f%s", most, how->percent);
    else if (ranks <= RANKS_SHOWN)
        snprintf(c->text, sizeof c->text, "%s%s", each, how->percent);
    else
        snprintf(c->text, sizeof c->text, "%.0f%s%.0f%s", least, how->dash, most, how->percent);
}

static void put_quality(const eni_summary *of, double unit, const char *format, const letters *how, cell *c)
{
    char low[ENI_TABLE_TEXT], high[ENI_TABLE_TEXT];
    put(unit * of->median, format, c->text);
    put(unit * of->min, format, low);
    put(unit * of->max, format, high);
    if (of->n > 1) snprintf(c->small, sizeof c->small, "%.40s%s%.40s", low, how->dash, high);
}

static void fill_cells(const eni_study *study, const eni_row *row, const letters *how, cell cells[CELLS])
{
    enum { ALL_DIGITS = 17 };
    memset(cells, 0, CELLS * sizeof *cells);
    put_count(&row->updates, ALL_DIGITS, how, &cells[UPDATES]);
    put_count(&row->speed, 3, how, &cells[SPEED]);
    put_time(study, row, how, &cells[TIME]);
    if (study->has_classes)
        put_quality(&row->accuracy, 100, "%.1f", how, &cells[QUALITY]);
    else
        put_quality(&row->loss, 1, "%.3g", how, &cells[QUALITY]);
    put(row->stale_mean, row->stale_mean > 0 ? "%.1f" : "%.0f", cells[STALENESS].text);
    if (!isnan(row->stale_mean))
        snprintf(cells[STALENESS].small, ENI_TABLE_TEXT, "%.0f/%.0f/%.0f", row->stale_p50, row->stale_p95,
                 row->stale_max);
    put_wait(study, row, how, &cells[WAIT]);
    put(row->ratio.median, "%.2f", cells[RATIO].text);
    put_count(&row->wire, ALL_DIGITS, how, &cells[WIRE]);
}

/* ---- as text ------------------------------------------------------------------------------------------- */

static void put_name(eni_table *table, const char *name, int most)
{
    char text[ENI_TABLE_TEXT];
    snprintf(text, sizeof text, "%.*s", most, name);
    eni_table_trim(text);
    eni_table_put(table, "%s", text);
}

static void put_row(const eni_study *study, const eni_row *row, eni_table *table)
{
    static const char *const with_small[CELLS] = {[QUALITY] = "%s [%s]", [STALENESS] = "%s/%s"};
    cell cells[CELLS];
    fill_cells(study, row, &of_terminal, cells);
    put_name(table, study->settings[row->setting].name, 40);
    put_name(table, row->strategy, 80);
    for (int i = 0; i < CELLS; i++)
        if (with_small[i] != NULL && cells[i].small[0] != 0)
            eni_table_put(table, with_small[i], cells[i].text, cells[i].small);
        else
            eni_table_put(table, "%s%s", cells[i].text, i == WIRE && !isnan(row->wire.median) ? " MB" : "");
}

en_status eni_report_print_table(const eni_study *study, FILE *out)
{
    char heads[200], target[ENI_TARGET_TEXT];
    eni_table table;
    eni_row row = {0};
    snprintf(heads, sizeof heads,
             "setting|strategy|>updates|>samples/s|>to %s|test %s|staleness mean/p50/p95/max|>wait by rank|"
             "payload/theory|>wire",
             eni_target_text(&study->target, " %", ' ', target), study->has_classes ? "acc" : "loss");
    eni_table_begin(&table, heads);
    for (size_t next = 0; eni_row_next(study, &next, &row);)
        put_row(study, &row, &table);
    return eni_table_print(&table, out);
}

en_status eni_report_print_ranking(const eni_verdict *verdict, size_t setting, FILE *out)
{
    const eni_study *study = verdict->study;
    char heads[256], name[160], target[ENI_TARGET_TEXT];
    eni_table table;
    eni_rank_row rows[ENI_MAX_ARMS];
    size_t n = eni_verdict_rank(verdict, setting, rows);
    if (n < 2) return EN_OK;
    snprintf(name, sizeof name, "%s", study->settings[setting].name);
    for (char *bar = name; (bar = strchr(bar, '|')) != NULL;)
        *bar = '/'; /* '/' separates heads */
    snprintf(heads, sizeof heads, "%s|to %s|test %s|samples/s|differs from %s", name,
             eni_target_text(&study->target, " %", ' ', target), study->has_classes ? "acc" : "loss",
             eni_verdict_from(verdict));
    eni_table_begin(&table, heads);
    for (size_t i = 0; i < n; i++) {
        put_name(&table, study->arms[rows[i].arm].name, 60);
        for (const eni_rank_cell *c = rows[i].cells; c < rows[i].cells + ENI_RANK_COLUMNS; c++)
            eni_table_put(&table, c->range[0] == 0 ? "%.40s" : "%.40s [%.46s]", c->text, c->range);
        eni_table_put(&table, "%s", rows[i].differs);
    }
    return eni_table_print(&table, out);
}

/* ---- as HTML ------------------------------------------------------------------------------------------- */

/* Begins a row with its setting and arm; a text in brackets after the arm, "ring [direct, shm]", below it. */
static void begin_row(const eni_study *study, const eni_row *row, const char *strategy, FILE *page)
{
    const bool is_real = eni_study_is_real(study, row->setting);
    eni_html_put(page,
                 row->is_first ? "<tr class=\"first\"><th scope=\"row\">%s" : "<tr><th scope=\"row\">%s",
                 study->settings[row->setting].name);
    if (strategy != NULL) eni_html_put(page, "<small>%s</small>", eni_study_word(study, row->setting));
    fputs("</th><td class=\"name\">", page);
    eni_plot_swatch(page, &study->arms[row->arm], is_real);
    if (strategy == NULL) strategy = study->arms[row->arm].name;
    const char *how = strategy == row->strategy ? strstr(strategy, " [") : NULL;
    eni_html_put(page, "%.*s", how == NULL ? (int)strlen(strategy) : (int)(how - strategy), strategy);
    if (how != NULL) eni_html_put(page, "<small>%.*s</small>", (int)strcspn(how + 2, "]"), how + 2);
    fputs("</td>", page);
}

static void html_row(const eni_study *study, const eni_row *row, FILE *page)
{
    cell cells[CELLS];
    fill_cells(study, row, &of_page, cells);
    begin_row(study, row, row->strategy, page);
    for (int i = 0; i < CELLS; i++)
        eni_html_put(page,
                     cells[i].small[0] == 0 || i == WIRE ? "<td>%s</td>" : "<td>%s<small>%s</small></td>",
                     cells[i].text, cells[i].small);
    fputs("</tr>\n", page);
}

/* Escapes what LaTeX would interpret, or print as another letter. */
static void latex_text(const char *text, FILE *out)
{
    for (; *text != 0; text++)
        if (strchr("&%$#_{}", *text) != NULL)
            fprintf(out, "\\%c", *text);
        else if (strchr("<>|", *text) != NULL)
            fprintf(out, "$%c$", *text);
        else if (strchr("~^\\", *text) != NULL)
            fprintf(out, "\\text%s{}",
                    *text == '~'   ? "asciitilde"
                    : *text == '^' ? "asciicircum"
                                   : "backslash");
        else if (strncmp(text, "≈ ", strlen("≈ ")) == 0) {
            fputs("$\\approx$", out);
            text += strlen("≈ ") - 1;
        } else
            fputc((unsigned char)*text < ' ' ? ' ' : *text, out);
}

void eni_report_latex_table(const eni_study *study, FILE *out)
{
    cell cells[CELLS];
    eni_row row = {0};
    char target[ENI_TARGET_TEXT];
    fprintf(out,
            "\\begin{tabular}{llrrrrrrrr}\n\\hline\nsetting & strategy & updates & samples/s & to %s & "
            "test %s & staleness & wait & payload/theory & MB\\\\\n\\hline\n",
            eni_target_text(&study->target, "\\,\\%", ' ', target), study->has_classes ? "acc" : "loss");
    for (size_t next = 0; eni_row_next(study, &next, &row);) {
        fill_cells(study, &row, &of_terminal, cells);
        latex_text(study->settings[row.setting].name, out);
        fputs(" & ", out);
        latex_text(study->arms[row.arm].name, out);
        for (int i = 0; i < CELLS; i++) {
            fputs(" & ", out);
            latex_text(cells[i].text, out);
            if (cells[i].small[0] == 0 || i == WIRE) continue;
            fputs(" {\\footnotesize ", out);
            latex_text(cells[i].small, out);
            fputc('}', out);
        }
        fputs("\\\\\n", out);
    }
    fputs("\\hline\n\\end{tabular}\n", out);
}

static const char *head_of_quality(const eni_study *study)
{
    return study->has_classes ? "test acc<small>%</small>" : "test loss";
}

void eni_report_html_table(const eni_study *study, FILE *page)
{
    char heads[400], target[ENI_TARGET_TEXT];
    eni_row row = {0};
    snprintf(heads, sizeof heads,
             "setting|=strategy<small>sum, transport</small>|updates|samples/s|to %s"
             "|%s|staleness<small>mean, p50/p95/max</small>|wait<small>by rank</small>|payload<small>/ theory"
             "</small>|wire<small>MB</small>",
             eni_target_text(&study->target, THIN "%", ' ', target), head_of_quality(study));
    eni_html_table(page, "main", heads);
    for (size_t next = 0; eni_row_next(study, &next, &row);)
        html_row(study, &row, page);
    eni_html_table_end(page, "");
}

void eni_report_html_ranking(const eni_verdict *verdict, size_t setting, FILE *page)
{
    const eni_study *study = verdict->study;
    char heads[192], target[ENI_TARGET_TEXT];
    eni_rank_row rows[ENI_MAX_ARMS];
    size_t n = eni_verdict_rank(verdict, setting, rows);
    if (n < 2) return;
    snprintf(heads, sizeof heads, "arm|to %s|%s|samples/s|differs from %s",
             eni_target_text(&study->target, THIN "%", ' ', target), head_of_quality(study),
             eni_verdict_from(verdict));
    eni_html_table(page, "rank", heads);
    for (size_t i = 0; i < n; i++) {
        fputs("<tr><th scope=\"row\">", page);
        eni_plot_swatch(page, &study->arms[rows[i].arm], eni_study_is_real(study, setting));
        eni_html_put(page, "%s</th>", study->arms[rows[i].arm].name);
        for (const eni_rank_cell *c = rows[i].cells; c < rows[i].cells + ENI_RANK_COLUMNS; c++)
            eni_html_put(page, c->range[0] == 0 ? "<td>%s</td>" : "<td>%s<small>%s</small></td>", c->text,
                         c->range);
        eni_html_put(page, "<td>%s</td></tr>\n", rows[i].differs);
    }
    eni_html_table_end(page, "");
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
    for (size_t k = 0; k < COLUMNS; k++)
        is_known = is_known || eni_study_summary(study, ENI_ANY, ENI_ANY, columns[k].metric).n > 0;
    if (!is_known) return;
    eni_html_table(
        page, "main",
        "setting|=strategy|step p50<small>ms</small>|p95<small>ms</small>|p99<small>ms</small>|processor"
        "<small>s, all roles</small>|memory<small>MB, max rss</small>");
    for (size_t next = 0; eni_row_next(study, &next, &row);) {
        begin_row(study, &row, NULL, page);
        for (size_t k = 0; k < COLUMNS; k++) {
            char text[ENI_TABLE_TEXT];
            put(eni_study_summary(study, row.setting, row.arm, columns[k].metric).median, columns[k].format,
                text);
            fprintf(page, "<td>%s</td>", text);
        }
        fputs("</tr>\n", page);
    }
    eni_html_table_end(page, "");
}
