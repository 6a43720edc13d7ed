/* report_page.c - report.html: page.html with its slots filled; see report_page.h. */
#include "report/report_page.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/files.h"
#include "core/log.h"
#include "core/try.h"
#include "report/html.h"

/* ---- head and verdict -------------------------------------------------------------------------------- */

static en_status write_arms(eni_canvas *canvas)
{
    for (size_t a = 0; a < canvas->study->narms; a++)
        eni_html_put(canvas->page, a > 0 ? ", %s" : "%s", canvas->study->arms[a].name);
    return EN_OK;
}

static void write_task(const eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    const eni_run *run = eni_study_example(study, ENI_ANY, ENI_ANY);
    fputs("<p class=\"eyebrow\">Entrain", canvas->page);
    if (run != NULL)
        eni_html_put(canvas->page, " · %s on %s · %g worker%s · global batch %g",
                     run->model ? run->model : "?", run->data ? run->data : "?", run->workers,
                     run->workers > 1 ? "s" : "", run->global_batch_size);
    eni_html_put(canvas->page, " · %zu run%s</p>\n<h1>", study->nruns, study->nruns == 1 ? "" : "s");
    for (size_t a = 0; a < study->narms; a++)
        eni_html_put(canvas->page, "%s%s",
                     a == 0                  ? ""
                     : a + 1 == study->narms ? " and "
                                             : ", ",
                     study->arms[a].name);
    fputs(study->narms > 1 ? ", compared</h1>\n" : "</h1>\n", canvas->page);
}

/* Writes the sentence with the arms' names in bold, so that they are easy to find; long ones may be broken. */
static void write_sentence(FILE *page, const eni_study *study, const char *text)
{
    enum { LINE = 28 }; /* letters of 20 px in a line of 400 px */
    for (const char *at = text; *at != 0;) {
        size_t longest = 0;
        for (size_t a = 0; a < study->narms && (at == text || at[-1] == ' '); a++) {
            size_t n = strlen(study->arms[a].name);
            bool is_here = strncmp(at, study->arms[a].name, n) == 0 && strchr(" ,;.", at[n]) != NULL;
            if (is_here && n > longest) longest = n;
        }
        if (longest > 0) fputs(longest > LINE ? "<b class=\"long\">" : "<b>", page);
        const size_t n = longest > 0 ? longest : strcspn(at, " ") + (strchr(at, ' ') != NULL);
        eni_html_put(page, "%.*s", (int)n, at);
        if (longest > 0) fputs("</b>", page);
        at += n;
    }
}

static en_status write_verdict(eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    const eni_fairness *fairness = canvas->fairness;
    const eni_verdict *verdict = canvas->verdict;
    FILE *page = canvas->page;
    write_task(canvas);
    if (eni_study_simulated(study) > 0)
        fprintf(page,
                "<p class=\"note\"><b>Simulated.</b> %s in virtual time: weights, losses and accuracies are "
                "computed, seconds follow from <code>--compute</code> and <code>--net</code>.</p>\n",
                eni_study_simulated(study) == study->nsettings ? "All runs are" : "Some runs are");
    if (fairness->nfail > 0)
        fprintf(page,
                "<p class=\"alarm\"><b class=\"mark fail\">FAIL</b> %zu fairness rule%s broken: see the box "
                "below before using the numbers.</p>\n",
                fairness->nfail, fairness->nfail == 1 ? " is" : "s are");
    fputs("<dl class=\"verdicts\">\n", page);
    char text[ENI_VERDICT_TEXT], kind[256];
    eni_verdict_primary(verdict, text, sizeof text);
    if (text[0] != 0) {
        eni_html_put(page, "<div><dt>primary<span class=\"kind\">%s</span></dt><dd>",
                     study->settings[study->primary.setting].name);
        write_sentence(page, study, text);
        fputs("</dd></div>\n", page);
    }
    for (size_t c = 0; c < study->nsettings; c++) {
        eni_verdict_sentence(verdict, c, text, sizeof text);
        eni_study_kind(study, c, kind, sizeof kind);
        eni_html_put(page, "<div><dt>%s<span class=\"kind\">%s</span></dt><dd>", study->settings[c].name,
                     kind);
        eni_report_html_ranking(verdict, c, page);
        write_sentence(page, study, text);
        fputs("</dd></div>\n", page);
    }
    fputs("</dl>\n", page);
    eni_verdict_caveat(verdict, fairness, text, sizeof text);
    if (text[0] != 0 || fairness->same_bytes[0] != 0)
        eni_html_put(page, "<p class=\"note\">%s%s%s</p>\n", fairness->same_bytes,
                     fairness->same_bytes[0] != 0 ? ". " : "", text);
    return EN_OK;
}

/* ---- fairness ---------------------------------------------------------------------------------------- */

static en_status write_fairness(eni_canvas *canvas)
{
    static const char *const classes[] = {"pass", "warn", "fail"};
    const eni_fairness *fairness = canvas->fairness;
    FILE *page = canvas->page;
    int worst = fairness->nfail > 0 ? ENI_FAIL : ENI_PASS;
    fprintf(page, "<section id=\"fairness\" class=\"box\">\n<h2>Fairness: <b class=\"mark %s\">%s</b>",
            classes[worst], eni_fair_mark(worst));
    if (fairness->nwarn > 0)
        fprintf(page, " <span class=\"count\">%zu warning%s</span>", fairness->nwarn,
                fairness->nwarn == 1 ? "" : "s");
    fputs("</h2>\n<ul class=\"rules\">\n", page);
    for (size_t i = 0; i < fairness->nrules; i++) {
        const eni_rule *rule = &fairness->rules[i];
        eni_html_put(page,
                     "<li><b class=\"mark %s\">%s</b><span class=\"rule\">%s</span><span class=\"found\">%s"
                     "</span></li>\n",
                     classes[rule->mark], eni_fair_mark(rule->mark), rule->name, rule->text);
    }
    fputs("</ul>\n</section>\n", page);
    return EN_OK;
}

/* ---- numbers ----------------------------------------------------------------------------------------- */

/* A cell of a table; "-" without a number. */
static void write_number(FILE *page, const char *format, double value)
{
    fputs("<td>", page);
    fprintf(page, isfinite(value) ? format : "-", value);
    fputs("</td>", page);
}

/* Snapshots are evaluated for one target, and then deleted. */
static en_status write_table(eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    char then[ENI_TARGET_TEXT], now[ENI_TARGET_TEXT];
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;) {
        if (!eni_study_bracket_is_of_grid(run, &study->target)) continue;
        fprintf(canvas->page,
                "<p class=\"lede\">These runs were evaluated for a target of %s: near %s only "
                "grid points are known, so both points that enclose a time are from the grid.</p>\n",
                eni_target_text(&run->evaluated_for, " %", ' ', then),
                eni_target_text(&study->target, " %", ' ', now));
        break;
    }
    eni_report_html_table(study, canvas->page);
    return EN_OK;
}

static bool has_pairs(const eni_canvas *canvas)
{
    for (size_t i = 0; i < canvas->verdict->n; i++)
        if (canvas->verdict->comparisons[i].n > 0) return true;
    return false;
}

static void write_pair(const eni_canvas *canvas, const eni_comparison *comparison)
{
    const eni_study *study = canvas->study;
    FILE *page = canvas->page;
    eni_html_put(page, "<tr><th scope=\"row\">%s</th><td class=\"name\">",
                 study->settings[comparison->setting].name);
    eni_plot_swatch(page, &study->arms[comparison->a], true);
    eni_html_put(page, "%s against ", study->arms[comparison->a].name);
    eni_plot_swatch(page, &study->arms[comparison->b], true);
    eni_html_put(page, "%s</td><td>%zu</td><td>%zu</td><td>%zu</td>", study->arms[comparison->b].name,
                 comparison->n, comparison->sooner, comparison->later);
    write_number(page, "%.4f", comparison->p);
    write_number(page, comparison->is_primary ? "primary" : "%.4f", comparison->adjusted);
    write_number(page, "%.2fx", ceil(100 * eni_verdict_least(canvas->verdict, comparison)) / 100);
    eni_html_put(page, "<td>%s</td></tr>\n", eni_verdict_found(comparison));
}

static en_status write_pairs(eni_canvas *canvas)
{
    const eni_verdict *verdict = canvas->verdict;
    eni_html_table(canvas->page, NULL,
                   "setting|=arms|pairs|first sooner|later|p|p (Holm)|least effect|verdict");
    for (size_t i = 0; i < verdict->n; i++)
        if (verdict->comparisons[i].n > 0) write_pair(canvas, &verdict->comparisons[i]);
    eni_html_table_end(canvas->page, "");
    return EN_OK;
}

/* ---- figures ----------------------------------------------------------------------------------------- */

static en_status write_legend_of_arms(eni_canvas *canvas)
{
    eni_plot_arm_legend(canvas, NULL);
    return EN_OK;
}

static en_status write_legend_of_phases(eni_canvas *canvas)
{
    eni_plot_phase_legend(canvas, NULL, true);
    return EN_OK;
}

static en_status write_steps(eni_canvas *canvas)
{
    EN_TRY(eni_plot_steps(canvas));
    eni_report_html_steps(canvas->study, canvas->page);
    return EN_OK;
}

static en_status write_title_of_settings(eni_canvas *canvas)
{
    fputs(canvas->study->nsettings == 1 ? "Run by run" : "Settings side by side", canvas->page);
    return EN_OK;
}

/* ---- to reproduce it --------------------------------------------------------------------------------- */

/* One word of a command line, quoted for a shell if necessary. */
static void write_word(FILE *page, const char *word)
{
    static const char *const plain =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./=:,+@%";
    if (word[0] != 0 && strspn(word, plain) == strlen(word)) {
        eni_html_text(page, word);
        return;
    }
    eni_html_text(page, "'");
    for (const char *quote; (quote = strchr(word, '\'')) != NULL; word = quote + 1)
        eni_html_put(page, "%.*s%s", (int)(quote - word), word, "'\\''");
    eni_html_put(page, "%s%s", word, "'");
}

/* The length of "--out=" or 0; after "-o" and "--out" alone the folder is the next word: then *is_next is
 * set. */
static size_t out_flag(const char *word, bool *is_next)
{
    *is_next = strcmp(word, "--out") == 0 || strcmp(word, "-o") == 0;
    return strncmp(word, "--out=", 6) == 0 ? 6 : strncmp(word, "-o=", 3) == 0 ? 3 : 0;
}

/* Replaces the folder: the original line would refer to the study's own. */
static void write_line(FILE *page, const json_t *argv)
{
    bool is_folder = false, has_folder = false;
    for (size_t i = 0; i < json_array_size(argv); i++) {
        const char *word = json_string_value(json_array_get(argv, i));
        if (word == NULL) word = "?";
        if (strcmp(word, "--overwrite") == 0) continue;
        if (i > 0) fputc(' ', page);
        const bool is_value = is_folder;
        const size_t flag = out_flag(word, &is_folder);
        write_word(page, word);
        if (flag == 0 && !is_value) continue;
        fputs("-again", page);
        has_folder = true;
    }
    if (!has_folder) fputs(" --out=again", page);
}

static en_status write_command(eni_canvas *canvas)
{
    const json_t *argv = json_object_get(canvas->study->index, "argv"),
                 *more = json_object_get(canvas->study->index, "more");
    if (!json_is_array(argv)) return EN_OK;
    fputs("<h3>Command</h3>\n<pre>", canvas->page);
    write_line(canvas->page, argv);
    for (size_t i = 0; i < json_array_size(more); i++) {
        fputc('\n', canvas->page);
        write_line(canvas->page, json_object_get(json_array_get(more, i), "argv"));
    }
    fputs("</pre>\n", canvas->page);
    return EN_OK;
}

static void write_value(FILE *page, const json_t *value)
{
    const char *key;
    json_t *part;
    bool is_first = true;
    if (json_is_string(value)) {
        eni_html_text(page, json_string_value(value));
        return;
    }
    if (json_is_object(value)) { /* libraries, for example: "oneDNN 2.6, ZeroMQ 4.3.4" */
        json_object_foreach((json_t *)value, key, part)
        {
            eni_html_put(page, "%s%s ", is_first ? "" : ", ", key);
            write_value(page, part);
            is_first = false;
        }
        return;
    }
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    eni_html_text(page, text == NULL ? "?" : text);
    free(text);
}

static en_status write_environment(eni_canvas *canvas)
{
    json_t *environment = json_object_get(canvas->study->index, "environment");
    const char *key;
    json_t *value;
    if (!json_is_object(environment) || json_object_size(environment) == 0) return EN_OK;
    fputs("<h3>Environment</h3>\n<dl class=\"facts\">\n", canvas->page);
    json_object_foreach(environment, key, value)
    {
        eni_html_put(canvas->page, "<dt>%s</dt><dd>", key);
        write_value(canvas->page, value);
        fputs("</dd>\n", canvas->page);
    }
    fputs("</dl>\n", canvas->page);
    return EN_OK;
}

/* The resolved configuration of the first complete run of each arm, as written by its worker. */
static en_status write_configurations(eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    for (size_t a = 0; a < study->narms; a++) {
        const eni_run *run = eni_study_example(study, ENI_ANY, a);
        if (run == NULL) continue;
        char path[PATH_MAX], text[16384];
        snprintf(path, sizeof path, "%s/%s/config.yaml", run->root, run->dir);
        FILE *file = eni_file_open(path, "r");
        if (file == NULL) return eni_fail(EN_EIO, "report", "cannot open %s: %s", path, strerror(errno));
        size_t n = fread(text, 1, sizeof text - 1, file);
        fclose(file);
        text[n] = 0;
        eni_html_put(
            canvas->page,
            "<details><summary>Configuration of %s (%s/config.yaml)</summary><pre>%s%s</pre></details>\n",
            study->arms[a].name, run->dir, text, n == sizeof text - 1 ? "\n… (truncated)" : "");
    }
    return EN_OK;
}

/* Threads per worker, the total peak memory of the roles, and the share that other processes took. */
static void write_machine(FILE *page, const eni_run *run)
{
    const json_t *threads = json_object_get(run->result, "threads"),
                 *roles = json_object_get(run->result, "roles");
    json_t *role;
    size_t i;
    double bytes = 0;
    json_array_foreach(roles, i, role) bytes += json_number_value(json_object_get(role, "max_rss"));
    write_number(page, "%.0f", threads == NULL ? NAN : json_number_value(threads));
    write_number(page, "%.0f", bytes > 0 ? bytes / 1e6 : NAN);
    write_number(page, "%.1f", 100 * run->outside);
}

static const char *text_or_dash(const char *text)
{
    return text == NULL ? "-" : text;
}

static en_status write_runs(eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    FILE *page = canvas->page;
    const size_t nall = study->nruns + study->nreplaced;
    fprintf(page, "<details><summary>%s%zu run%s in order of start, with hashes", nall == 1 ? "" : "All ",
            nall, nall == 1 ? "" : "s");
    if (study->nreplaced > 0) fprintf(page, "; the last %zu are not counted", study->nreplaced);
    fputs("</summary>\n", page);
    eni_html_table(
        page, NULL,
        "run|=folder|started|seed|exit|threads|memory<small>MB, all roles</small>|others<small>% of cores"
        "</small>|initial|order|weights|kind");
    for (const eni_run *run = study->runs; run < study->runs + nall; run++) {
        eni_html_put(page, "<tr><th scope=\"row\">%zu</th><td class=\"name\">%s</td><td>%s</td>",
                     (size_t)(run - study->runs) + 1, run->dir, text_or_dash(run->started));
        fprintf(page, "<td>%" PRId64 "</td><td>%d</td>", run->seed, run->exit);
        write_machine(page, run);
        eni_html_put(page,
                     "<td><code>%.8s</code></td><td><code>%.8s</code></td><td><code>%.8s</code></td><td>%s</"
                     "td></tr>\n",
                     text_or_dash(run->init_sha256), text_or_dash(run->order_sha256),
                     text_or_dash(run->params_sha256),
                     run->is_replaced         ? "repeated"
                     : run->simulated != NULL ? "simulated"
                     : run->emulated != NULL  ? run->emulated
                     : run->is_complete       ? "real"
                                              : "failed");
    }
    eni_html_table_end(page, "</details>");
    return EN_OK;
}

/* ---- the whole page ----------------------------------------------------------------------------------- */

/* The slots: what replaces {{NAME}} in page.html, and whether {{if ..}} to the next {{end}} is kept. */
static const struct page_slot {
    const char *name;
    en_status (*write)(eni_canvas *canvas);
    bool (*is_there)(const eni_canvas *canvas);
    const char *text;
} slots[] = {{"css", .text = eni_page_css},
             {"arms", write_arms},
             {"verdict", write_verdict},
             {"fairness", write_fairness},
             {"table", write_table},
             {"if pairs", .is_there = has_pairs},
             {"pairs", write_pairs},
             {"legend of arms", write_legend_of_arms},
             {"legend of phases", write_legend_of_phases},
             {"curves", eni_plot_curves},
             {"steps", write_steps},
             {"title of settings", write_title_of_settings},
             {"settings", eni_plot_settings},
             {"staleness", eni_plot_staleness},
             {"bytes", eni_plot_bytes},
             {"timeline", eni_plot_timeline},
             {"if pipeline", .is_there = eni_plot_has_pipeline},
             {"pipeline", eni_plot_pipeline},
             {"if presence", .is_there = eni_plot_has_presence},
             {"presence", eni_plot_presence},
             {"shares", eni_plot_shares},
             {"command", write_command},
             {"environment", write_environment},
             {"runs", write_runs},
             {"configurations", write_configurations},
             {"version", .text = EN_VERSION},
             {"end"}};

static const struct page_slot *slot_of(const char *name, size_t length)
{
    size_t i = 0;
    while (i + 1 < sizeof slots / sizeof *slots &&
           (strlen(slots[i].name) != length || strncmp(slots[i].name, name, length) != 0))
        i++;
    return &slots[i];
}

en_status eni_page_write(eni_canvas *canvas)
{
    static const char end[] = "{{end}}";
    const char *text = eni_page_html;
    for (const char *at; (at = strstr(text, "{{")) != NULL;) {
        const size_t n = strcspn(at + 2, "}");
        const struct page_slot *slot = slot_of(at + 2, n);
        fwrite(text, 1, (size_t)(at - text), canvas->page);
        text = at + 2 + n + 2;
        if (slot->text != NULL) fputs(slot->text, canvas->page);
        if (slot->write != NULL) EN_TRY(slot->write(canvas));
        if (slot->is_there != NULL && !slot->is_there(canvas)) text = strstr(text, end) + strlen(end);
    }
    fputs(text, canvas->page);
    return EN_OK;
}
