/* report_sections.c - the parts of the page that are text: verdict, fairness box, pairs, how to do it again.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "report/html.h"
#include "report/report_page.h"
#include "report/report_table.h"
#include "report/report_verdict.h"

/* ---- verdict ----------------------------------------------------------------------------------------- */

static void write_task(const eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    const eni_run *run = NULL;
    for (size_t i = 0; i < study->nruns && run == NULL; i++)
        if (study->runs[i].is_complete) run = &study->runs[i];
    fputs("<p class=\"eyebrow\">Entrain", canvas->page);
    if (run != NULL)
        eni_html_printf(canvas->page, " · %s on %s · %g workers · global batch %g",
                        run->model ? run->model : "?", run->data ? run->data : "?", run->workers,
                        run->global_batch_size);
    eni_html_printf(canvas->page, " · %zu run%s", study->nruns, study->nruns == 1 ? "" : "s");
    fputs("</p>\n<h1>", canvas->page);
    for (size_t a = 0; a < study->narms; a++) {
        fputs(a == 0 ? "" : a + 1 == study->narms ? " and " : ", ", canvas->page);
        eni_html_text(canvas->page, study->arms[a].name);
    }
    fputs(study->narms > 1 ? ", compared</h1>\n" : "</h1>\n", canvas->page);
}

/* The sentence with the arms' names in bold, so that they are found at a glance and never broken in two. */
static void write_sentence(FILE *page, const eni_study *study, const char *text)
{
    for (const char *at = text; *at != 0;) {
        size_t longest = 0;
        for (size_t a = 0; a < study->narms && (at == text || at[-1] == ' '); a++) {
            size_t n = strlen(study->arms[a].name);
            bool is_here = strncmp(at, study->arms[a].name, n) == 0 && strchr(" ,;.", at[n]) != NULL;
            if (is_here && n > longest) longest = n;
        }
        if (longest > 0) fputs("<b>", page);
        size_t n = longest > 0 ? longest : strcspn(at, " ") + (strchr(at, ' ') != NULL);
        char word[256];
        for (size_t done = 0; done < n; done += strlen(word)) {
            size_t part = n - done < sizeof word ? n - done : sizeof word - 1;
            memcpy(word, at + done, part);
            word[part] = 0;
            eni_html_text(page, word);
        }
        if (longest > 0) fputs("</b>", page);
        at += n;
    }
}

void eni_page_verdict(const eni_canvas *canvas, const eni_fairness *fairness, const eni_verdict *verdict)
{
    const eni_study *study = canvas->study;
    FILE *page = canvas->page;
    fputs("<header id=\"verdict\">\n", page);
    write_task(canvas);
    if (fairness->nfail > 0)
        fprintf(page,
                "<p class=\"alarm\"><b class=\"mark fail\">FAIL</b> %zu fairness rule%s broken: see the box "
                "below before you use a number.</p>\n",
                fairness->nfail, fairness->nfail == 1 ? " is" : "s are");
    fputs("<dl class=\"verdicts\">\n", page);
    for (size_t c = 0; c < study->nsettings; c++) {
        char text[ENI_VERDICT_TEXT], kind[256];
        eni_verdict_sentence(verdict, c, text, sizeof text);
        eni_study_kind(study, c, kind, sizeof kind);
        fputs("<div><dt>", page);
        eni_html_text(page, study->settings[c].name);
        fputs("<span class=\"kind\">", page);
        eni_html_text(page, kind);
        fputs("</span></dt><dd>", page);
        eni_report_html_ranking(verdict, c, page);
        write_sentence(page, study, text);
        fputs("</dd></div>\n", page);
    }
    fputs("</dl>\n", page);
    char caveat[ENI_VERDICT_TEXT];
    eni_verdict_caveat(verdict, fairness, caveat, sizeof caveat);
    if (caveat[0] != 0 || fairness->same_bytes[0] != 0) {
        fputs("<p class=\"note\">", page);
        if (fairness->same_bytes[0] != 0) eni_html_printf(page, "%s. ", fairness->same_bytes);
        eni_html_text(page, caveat);
        fputs("</p>\n", page);
    }
    fputs("</header>\n", page);
}

/* ---- fairness ---------------------------------------------------------------------------------------- */

void eni_page_fairness(const eni_canvas *canvas, const eni_fairness *fairness)
{
    static const char *const classes[] = {"pass", "warn", "fail"};
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
        fprintf(page, "<li><b class=\"mark %s\">%s</b><span class=\"rule\">%s</span><span class=\"found\">",
                classes[rule->mark], eni_fair_mark(rule->mark), rule->name);
        eni_html_text(page, rule->text);
        fputs("</span></li>\n", page);
    }
    fputs("</ul>\n</section>\n", page);
}

/* ---- pairs ------------------------------------------------------------------------------------------- */

static void write_pair(const eni_canvas *canvas, const eni_verdict *verdict, const eni_claim *claim)
{
    const eni_study *study = canvas->study;
    FILE *page = canvas->page;
    double least = eni_verdict_least(verdict, claim);
    fputs("<tr><th scope=\"row\">", page);
    eni_html_text(page, study->settings[claim->setting].name);
    fputs("</th><td class=\"name\">", page);
    eni_plot_swatch(page, &study->arms[claim->a], true);
    eni_html_printf(page, "%s against ", study->arms[claim->a].name);
    eni_plot_swatch(page, &study->arms[claim->b], true);
    eni_html_text(page, study->arms[claim->b].name);
    fprintf(page, "</td><td>%zu</td><td>%zu</td><td>%zu</td><td>%.4f</td>", claim->n, claim->sooner, claim->later,
            claim->p);
    if (claim->is_primary)
        fputs("<td>primary</td>", page);
    else if (isnan(claim->adjusted))
        fputs("<td>-</td>", page);
    else
        fprintf(page, "<td>%.4f</td>", claim->adjusted);
    if (isnan(least))
        fputs("<td>-</td>", page);
    else
        fprintf(page, "<td>%.2fx</td>", ceil(100 * least) / 100);
    fprintf(page, "<td>%s</td></tr>\n", eni_verdict_found(claim));
}

void eni_page_pairs(const eni_canvas *canvas, const eni_verdict *verdict)
{
    bool is_any = false;
    for (size_t i = 0; i < verdict->n; i++)
        is_any = is_any || verdict->claims[i].n > 0;
    if (!is_any) return;
    fputs("<details><summary>Every pair of arms, paired by seed</summary>\n<p class=\"lede\">Time to the target: "
          "the exact two-sided signed-rank test of the logarithms; a miss is the largest rank, two misses are a "
          "tie. Holm’s p is over all comparisons that may claim, and 0.05 is the limit. The least effect is the "
          "ratio of times that the scatter of these pairs could have hidden.</p>\n"
          "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th scope=\"col\">setting</th><th scope=\"col\" "
          "class=\"name\">arms</th><th scope=\"col\">pairs</th><th scope=\"col\">first sooner</th><th "
          "scope=\"col\">later</th><th scope=\"col\">p</th><th scope=\"col\">p (Holm)</th><th "
          "scope=\"col\">least effect</th><th scope=\"col\">claim</th></tr></thead><tbody>\n",
          canvas->page);
    for (size_t i = 0; i < verdict->n; i++)
        if (verdict->claims[i].n > 0) write_pair(canvas, verdict, &verdict->claims[i]);
    fputs("</tbody></table></div></details>\n", canvas->page);
}

/* ---- do it again ------------------------------------------------------------------------------------- */

/* One word of a command line, quoted for a shell when it needs to be. */
static void write_word(FILE *page, const char *word)
{
    static const char *const plain =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./=:,+@%";
    if (word[0] != 0 && strspn(word, plain) == strlen(word)) {
        eni_html_text(page, word);
        return;
    }
    eni_html_text(page, "'");
    for (char letter[2] = {0}; *word != 0; word++) {
        letter[0] = *word;
        if (*word == '\'')
            eni_html_text(page, "'\\''");
        else if ((*word & 0x80) != 0)
            fputc(*word, page);
        else
            eni_html_text(page, letter);
    }
    eni_html_text(page, "'");
}

/* The length of "--out=" or 0; "-o" and "--out" alone have their folder in the next word: then *is_next is set. */
static size_t out_flag(const char *word, bool *is_next)
{
    *is_next = strcmp(word, "--out") == 0 || strcmp(word, "-o") == 0;
    return strncmp(word, "--out=", 6) == 0 ? 6 : strncmp(word, "-o=", 3) == 0 ? 3 : 0;
}

/* Into a folder of its own: pasted as it was, the line would ask for the study's. */
static void write_command(const eni_canvas *canvas)
{
    const json_t *argv = json_object_get(canvas->study->index, "argv");
    bool is_folder = false, has_folder = false;
    if (!json_is_array(argv)) return;
    fputs("<h3>Command</h3>\n<pre>", canvas->page);
    for (size_t i = 0; i < json_array_size(argv); i++) {
        const char *word = json_string_value(json_array_get(argv, i));
        if (word == NULL) word = "?";
        if (strcmp(word, "--overwrite") == 0) continue;
        if (i > 0) fputc(' ', canvas->page);
        const bool is_value = is_folder;
        const size_t flag = out_flag(word, &is_folder);
        write_word(canvas->page, word);
        if (flag == 0 && !is_value) continue;
        fputs("-again", canvas->page);
        has_folder = true;
    }
    if (!has_folder) fputs(" --out=again", canvas->page);
    fputs("</pre>\n", canvas->page);
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
    if (json_is_object(value)) { /* libraries and such: "oneDNN 2.6, ZeroMQ 4.3.4" */
        json_object_foreach((json_t *)value, key, part)
        {
            eni_html_printf(page, "%s%s ", is_first ? "" : ", ", key);
            write_value(page, part);
            is_first = false;
        }
        return;
    }
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    eni_html_text(page, text == NULL ? "?" : text);
    free(text);
}

static void write_environment(const eni_canvas *canvas)
{
    json_t *environment = json_object_get(canvas->study->index, "environment");
    const char *key;
    json_t *value;
    if (!json_is_object(environment) || json_object_size(environment) == 0) return;
    fputs("<h3>Environment</h3>\n<dl class=\"facts\">\n", canvas->page);
    json_object_foreach(environment, key, value)
    {
        fputs("<dt>", canvas->page);
        eni_html_text(canvas->page, key);
        fputs("</dt><dd>", canvas->page);
        write_value(canvas->page, value);
        fputs("</dd>\n", canvas->page);
    }
    fputs("</dl>\n", canvas->page);
}

/* The resolved configuration of the first complete run of each arm, as the worker wrote it. */
static en_status write_configs(const eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    for (size_t a = 0; a < study->narms; a++) {
        const eni_run *run = eni_study_example(study, 0, a);
        if (run == NULL) continue;
        char path[PATH_MAX], text[16384];
        snprintf(path, sizeof path, "%s/%s/config.yaml", study->dir, run->dir);
        FILE *file = fopen(path, "re");
        if (file == NULL) {
            if (errno == ENOENT) continue; /* an older run; nothing depends on it */
            eni_error("report", "cannot open %s: %s", path, strerror(errno));
            return EN_EIO;
        }
        size_t n = fread(text, 1, sizeof text - 1, file);
        fclose(file);
        text[n] = 0;
        fputs("<details><summary>Configuration of ", canvas->page);
        eni_html_printf(canvas->page, "%s (%s/config.yaml)", study->arms[a].name, run->dir);
        fputs("</summary><pre>", canvas->page);
        eni_html_text(canvas->page, text);
        if (n == sizeof text - 1) fputs("\n… (cut here)", canvas->page);
        fputs("</pre></details>\n", canvas->page);
    }
    return EN_OK;
}

static void write_hash(FILE *page, const char *hash)
{
    fputs("<td><code>", page);
    eni_html_printf(page, "%.8s", hash == NULL ? "-" : hash);
    fputs("</code></td>", page);
}

static void write_number(FILE *page, const char *format, double value)
{
    fputs("<td>", page);
    if (isfinite(value))
        fprintf(page, format, value);
    else
        fputs("-", page);
    fputs("</td>", page);
}

/* Threads per worker, the most memory that the roles had together, and what other processes took. */
static void write_machine(FILE *page, const eni_run *run)
{
    const json_t *threads = json_object_get(run->result, "threads"), *roles = json_object_get(run->result, "roles");
    json_t *role;
    size_t i;
    double bytes = 0;
    json_array_foreach(roles, i, role) bytes += json_number_value(json_object_get(role, "max_rss"));
    write_number(page, "%.0f", threads == NULL ? NAN : json_number_value(threads));
    write_number(page, "%.0f", bytes > 0 ? bytes / 1e6 : NAN);
    write_number(page, "%.1f", 100 * run->outside);
}

static void write_runs(const eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    FILE *page = canvas->page;
    fprintf(
        page,
        "<details><summary>All %zu runs in the order of their starts, with their hashes</summary>\n"
        "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th scope=\"col\">run</th><th scope=\"col\" "
        "class=\"name\">folder</th><th scope=\"col\">started</th><th scope=\"col\">seed</th><th "
        "scope=\"col\">exit"
        "</th><th scope=\"col\">threads</th><th scope=\"col\">memory<small>MB, all roles</small></th>"
        "<th scope=\"col\">others<small>%% of cores</small></th><th scope=\"col\">initial</th><th scope=\"col\">order</th><th scope=\"col\">weights</th>"
        "<th scope=\"col\">kind</th></tr></thead><tbody>\n",
        study->nruns);
    for (size_t r = 0; r < study->nruns; r++) {
        const eni_run *run = &study->runs[r];
        fprintf(page, "<tr><th scope=\"row\">%zu</th><td class=\"name\">", r + 1);
        eni_html_text(page, run->dir);
        fputs("</td><td>", page);
        eni_html_text(page, run->started == NULL ? "-" : run->started);
        fprintf(page, "</td><td>%" PRId64 "</td><td>%d</td>", run->seed, run->exit);
        write_machine(page, run);
        write_hash(page, run->init_sha256);
        write_hash(page, run->order_sha256);
        write_hash(page, run->params_sha256);
        fputs("<td>", page);
        eni_html_text(page, run->emulated == NULL ? run->is_complete ? "real" : "failed" : run->emulated);
        fputs("</td></tr>\n", page);
    }
    fputs("</tbody></table></div></details>\n", page);
}

en_status eni_page_reproduce(const eni_canvas *canvas)
{
    fputs("<section id=\"reproduce\">\n<h2>To do it again</h2>\n", canvas->page);
    write_command(canvas);
    write_environment(canvas);
    fputs("<h3>Runs and configuration</h3>\n", canvas->page);
    write_runs(canvas);
    en_status st = write_configs(canvas);
    fputs("</section>\n", canvas->page);
    return st;
}
