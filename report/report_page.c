/* report_page.c - report.html from its head to its foot: verdict, fairness box, table, pairs, figures, how to
 * do it again; see report_page.h. */
#include "report/report_page.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "report/html.h"

/* ---- its figures ---- */

enum { NO_LEGEND, ARM_LEGEND, PHASE_LEGEND };

typedef struct figure {
    const char *id, *title, *lede;
    int legend;
    en_status (*draw)(eni_canvas *canvas);
    bool (*is_there)(const eni_study *study); /* NULL: always */
} figure;

static const figure figures[] = {
    {"accuracy", "Learning over time and over samples",
     "The left picture asks how soon, the right one how well a sample is used. A thin line is one seed, the "
     "bold one their median. All ranks start their clocks together, after a warm-up on made-up samples, and "
     "the "
     "clock does not stop before the last has ended; evaluation comes later. Two strokes: the axis is cut.",
     ARM_LEGEND, eni_plot_curves},
    {"steps", "Where a step’s time goes",
     "Milliseconds that each role spends for one global batch, the same unit in every bar. Exposed exchange "
     "is the part that backward does not hide; the strip at the foot of compute is the time in which an "
     "exchange was under way behind it. Medians over seeds, one axis for all settings.",
     NO_LEGEND, eni_plot_steps},
    {"cells", "Even beside slow",
     "Every marker is one run: a full one is real, an open one emulated. The bar stands at the median, the "
     "line covers its interval; an "
     "arrow starts at the end of a run that missed the target. Two strokes: the axis is cut.",
     ARM_LEGEND, eni_plot_settings},
    {"staleness", "Staleness per worker",
     "Versions between the weights that a gradient was computed on and the weights it was applied to. The "
     "mean over all pushes is close to W − 1 by identity; how it spreads over the workers is not.",
     NO_LEGEND, eni_plot_staleness},
    {"bytes", "Bytes: what the formula says, and what moved",
     "Theory is the strategy’s formula, payload the vectors as its algorithm hands them on. What moved "
     "stands below: through sockets, with all headers, and in shared memory, what one process read from or "
     "wrote to another’s. The two differ in shared memory: nobody copies what it can read in place, and "
     "what is written by one and read by another counts twice. All of it is the training steps’: what "
     "carried weights at the start, to evaluation and into checkpoints is payload_beside_steps of each role "
     "in result.json. Medians over seeds.",
     ARM_LEGEND, eni_plot_bytes},
    {"timeline", "One step on the clock",
     "The step of median length, as the trace of one run shows it. White spans belong to no phase.",
     PHASE_LEGEND, eni_plot_timeline},
    {"pipeline", "One step on several devices",
     "A row is a stage, or with <code>--parallel=data</code> a device; a box is what it computes of one "
     "chunk of rank 0’s "
     "batch. Measured is the part of all steps in which stages wait, the wait of the whole pass included; "
     "predicted is that of the "
     "schedule with the mean times of each stage; ideal that of equal stages.",
     NO_LEGEND, eni_plot_pipeline, eni_plot_has_pipeline},
    {"presence", "Who took part",
     "With <code>--max-workers</code> ranks come and go while the run goes on. A bar is a rank from where it "
     "came to where its "
     "part ended; its number is never given twice.",
     NO_LEGEND, eni_plot_presence, eni_plot_has_presence},
    {"shares", "Samples per worker",
     "With claimed batches a fast worker does more of the same work. A bar is what updates covered that were "
     "applied; an outline that reaches beyond its bar is work computed and not applied: dropped, or "
     "behind the last push of its worker.",
     ARM_LEGEND, eni_plot_shares},
};

/* ---- its style ---- */

/* System fonts, one column of text, figures two abreast where there is room. */
static const char *const style[] = {
    ":root{color-scheme:light;--ink:#1c2733;--soft:#566270;--line:#dde2e7;--paper:#fff;",
    "--tint:#f6f8f9;--pass:#0b6b4b;--warn:#8a5a00;--fail:#a3231a}\n",
    "*{box-sizing:border-box}\n",
    "html{-webkit-text-size-adjust:100%}\n",
    "body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,",
    "\"Segoe UI\",Roboto,\"Noto Sans\",\"Liberation Sans\",sans-serif}\n",
    "main{max-width:70rem;margin:0 auto;padding:3rem 1.5rem 4rem;overflow-wrap:anywhere}\n",
    "h1{font-size:1.25rem;font-weight:600;margin:.1rem 0 1.6rem;color:var(--soft)}\n",
    "h2{font-size:1.375rem;line-height:1.25;font-weight:650;margin:0 0 .35rem;letter-spacing:-.01em}\n",
    "h3{font-size:1rem;font-weight:650;margin:1.5rem 0 .25rem}\n",
    "section{margin-top:3.5rem}\n",
    "p{margin:.3rem 0 .8rem}\n",
    "code,pre{font-family:ui-monospace,\"SF Mono\",Menlo,Consolas,\"Liberation Mono\",monospace;",
    "font-size:.875em}\n",
    ".eyebrow{margin:0;font-size:.875rem;color:var(--soft)}\n",
    ".lede{max-width:46rem;color:var(--soft)}\n",
    ".note{max-width:46rem;font-size:.9375rem;color:var(--soft)}\n",
    ".verdicts{margin:0 0 1.2rem}\n",
    ".verdicts>div{display:grid;grid-template-columns:8.5rem 1fr;gap:0 1.5rem;padding:1.25rem 0;",
    "border-top:1px solid var(--line)}\n",
    ".verdicts>div:last-child{border-bottom:1px solid var(--line)}\n",
    ".verdicts dt{font-weight:650;font-size:1.125rem;line-height:1.8}\n",
    ".verdicts dd{margin:0;min-width:0;font-size:1.5rem;line-height:1.4;letter-spacing:-.012em;",
    "text-wrap:pretty;overflow-wrap:anywhere}\n",
    ".verdicts .scroll{margin:0 0 .8rem;padding:0}.rank{line-height:1.5;overflow-wrap:normal}",
    ".rank thead th,.rank small,.rank td:last-child{white-space:normal}\n",
    ".rank tbody th{white-space:normal;overflow-wrap:anywhere;min-width:5.5rem}\n",
    ".verdicts b{font-weight:650;white-space:nowrap}.verdicts b.long{white-space:normal}\n",
    ".kind{font-weight:400;font-size:.8125rem;color:var(--soft);line-height:1.35}\n",
    "dt .kind{display:block}\n",
    "h3 .kind{margin-left:.5em}\n",
    ".mark{display:inline-block;font-size:.75rem;font-weight:700;letter-spacing:.05em;line-height:1;",
    "padding:.3em .5em;border-radius:.25em;color:#fff;vertical-align:.12em;text-align:center;",
    "min-width:3.6em}\n",
    ".pass{background:var(--pass)}.warn{background:var(--warn)}.fail{background:var(--fail)}\n",
    ".alarm{color:var(--fail);font-weight:600}\n",
    ".box{background:var(--tint);border:1px solid var(--line);border-radius:.5rem;",
    "padding:1.4rem 1.5rem 1.1rem;margin-top:2rem}\n",
    ".count{font-size:1rem;font-weight:400;color:var(--soft);margin-left:.3em}\n",
    ".rules{list-style:none;margin:.8rem 0 0;padding:0}\n",
    ".rules li{display:grid;grid-template-columns:3.6rem 9.5rem 1fr;gap:0 .9rem;align-items:baseline;",
    "padding:.32rem 0;font-size:.9375rem}\n",
    ".rules .rule{font-weight:600}\n",
    ".rules .found{overflow-wrap:anywhere}\n",
    ".scroll{overflow-x:auto;margin:.8rem -1.5rem 0;padding:0 1.5rem}\n",
    "table{border-collapse:collapse;width:100%;font-size:.9375rem;",
    "font-variant-numeric:tabular-nums lining-nums}\n",
    "th,td{text-align:right;vertical-align:baseline;padding:.5rem .7rem;white-space:nowrap}\n",
    "th:first-child,td:first-child{padding-left:0}th:last-child,td:last-child{padding-right:0}\n",
    "thead th{vertical-align:bottom;font-weight:600;font-size:.8125rem;color:var(--soft);",
    "border-bottom:1.5px solid var(--ink)}\n",
    "tbody th,.name,thead th:first-child{text-align:left}\n",
    "tbody th{font-weight:600}\n",
    "tbody tr+tr>*{border-top:1px solid var(--line)}\n",
    ".main tbody tr:not(.first) th{color:transparent}.main tbody tr:not(.first) th small{",
    "color:transparent}\n",
    ".main tbody tr:not(.first) th{border-top-color:transparent}\n",
    ".main tbody tr:not(:first-child).first>*{border-top:1.5px solid var(--soft)}\n",
    "small{display:block;font-size:.78rem;font-weight:400;color:var(--soft);line-height:1.3}\n",
    ".swatch{width:.8em;height:.8em;margin-right:.45em;vertical-align:-.04em;overflow:visible}\n",
    ".name small{margin-left:1.25em}thead .name small{margin-left:0}\n",
    ".legend{list-style:none;margin:.2rem 0 .6rem;padding:0;display:flex;flex-wrap:wrap;",
    "gap:.2rem 1.4rem;font-size:.9375rem}\n",
    ".legend .box{display:inline-block;width:.95em;height:.95em;padding:0;margin:0 .45em 0 0;",
    "border-radius:0;border:1px solid #5b6875;vertical-align:-.12em}\n",
    ".panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));",
    "gap:1rem 2rem;align-items:start}\n",
    ".panels.three{grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr))}.panel{min-width:0;max-"
    "width:33rem}\n",
    ".panels.wide{grid-template-columns:minmax(0,1fr)}.wide .panel{max-width:none}\n",
    ".panel svg{display:block;width:100%;height:auto}\n",
    ".panel svg text{font-family:system-ui,-apple-system,\"Segoe UI\",Roboto,\"Noto Sans\",",
    "\"Liberation Sans\",sans-serif}\n",
    ".csv{font-size:.8125rem;margin:.5rem 0 0}\n",
    "a{color:inherit;text-decoration-color:#9aa5b0;text-underline-offset:.2em}\n",
    ".absent{color:var(--soft);border-left:3px solid var(--line);padding-left:.8rem}\n",
    "details{margin:1rem 0}summary{cursor:pointer;font-weight:600;font-size:.9375rem}\n",
    "pre{background:var(--tint);border:1px solid var(--line);border-radius:.4rem;padding:.8rem 1rem;",
    "margin:.4rem 0;white-space:pre-wrap;overflow-wrap:anywhere}\n",
    ".facts{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1.2rem;margin:.3rem 0;",
    "font-size:.9375rem}\n",
    ".facts dt{color:var(--soft)}.facts dd{margin:0;overflow-wrap:anywhere}\n",
    "footer{margin-top:4rem;font-size:.8125rem;color:var(--soft)}\n",
    "@media(max-width:40rem){main{padding:1.5rem 1rem "
    "3rem}.verdicts>div{grid-template-columns:minmax(0,1fr)}",
    ".verdicts dd{font-size:1.25rem}.rank{font-size:.8125rem}.rank th,.rank td{padding:.4rem .3rem}",
    ".box{padding:1rem}.rules li{grid-template-columns:3.6rem 1fr}",
    ".rules .found{grid-column:2}.scroll{margin-left:-1rem;margin-right:-1rem;padding:0 1rem}section{",
    "margin-top:2.5rem}dt .kind{display:inline;margin-left:.5em}.facts{grid-template-columns:1fr}",
    ".facts dd{margin-bottom:.4rem}}\n",
    "@media print{main{max-width:none;padding:0}.panel,.box{break-inside:avoid}}\n",
};

/* ---- the page ---- */

static void write_head(const eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    FILE *page = canvas->page;
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Entrain report: ",
          page);
    for (size_t a = 0; a < study->narms; a++)
        eni_html_put(page, a > 0 ? ", %s" : "%s", study->arms[a].name);
    fputs("</title>\n<style>\n", page);
    for (size_t i = 0; i < sizeof style / sizeof style[0]; i++)
        fputs(style[i], page);
    fputs("</style>\n</head>\n<body>\n<main>\n", page);
}

/* ---- verdict ----------------------------------------------------------------------------------------- */

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

/* The sentence with the arms' names in bold, so that they are found at a glance, and broken in two only where a phone
 * has no room for all of one. */
static void write_sentence(FILE *page, const eni_study *study, const char *text)
{
    enum { LINE = 28 }; /* letters of 20 px beside each other on 400 */
    for (const char *at = text; *at != 0;) {
        size_t longest = 0;
        for (size_t a = 0; a < study->narms && (at == text || at[-1] == ' '); a++) {
            size_t n = strlen(study->arms[a].name);
            bool is_here = strncmp(at, study->arms[a].name, n) == 0 && strchr(" ,;.", at[n]) != NULL;
            if (is_here && n > longest) longest = n;
        }
        if (longest > 0) fputs(longest > LINE ? "<b class=\"long\">" : "<b>", page);
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

static void write_verdict(const eni_canvas *canvas, const eni_fairness *fairness, const eni_verdict *verdict)
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
    char caveat[ENI_VERDICT_TEXT];
    eni_verdict_caveat(verdict, fairness, caveat, sizeof caveat);
    if (caveat[0] != 0 || fairness->same_bytes[0] != 0)
        eni_html_put(page, "<p class=\"note\">%s%s%s</p>\n", fairness->same_bytes,
                     fairness->same_bytes[0] != 0 ? ". " : "", caveat);
    fputs("</header>\n", page);
}

/* ---- fairness ---------------------------------------------------------------------------------------- */

static void write_fairness(const eni_canvas *canvas, const eni_fairness *fairness)
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
        eni_html_put(page,
                     "<li><b class=\"mark %s\">%s</b><span class=\"rule\">%s</span><span class=\"found\">%s"
                     "</span></li>\n",
                     classes[rule->mark], eni_fair_mark(rule->mark), rule->name, rule->text);
    }
    fputs("</ul>\n</section>\n", page);
}

/* ---- pairs ------------------------------------------------------------------------------------------- */

/* A cell of a table; "-" where there is no number. */
static void write_number(FILE *page, const char *format, double value)
{
    fputs("<td>", page);
    if (isfinite(value))
        fprintf(page, format, value);
    else
        fputs("-", page);
    fputs("</td>", page);
}

static void write_pair(const eni_canvas *canvas, const eni_verdict *verdict, const eni_claim *claim)
{
    const eni_study *study = canvas->study;
    FILE *page = canvas->page;
    eni_html_put(page, "<tr><th scope=\"row\">%s</th><td class=\"name\">",
                 study->settings[claim->setting].name);
    eni_plot_swatch(page, &study->arms[claim->a], true);
    eni_html_put(page, "%s against ", study->arms[claim->a].name);
    eni_plot_swatch(page, &study->arms[claim->b], true);
    eni_html_put(page, "%s</td><td>%zu</td><td>%zu</td><td>%zu</td>", study->arms[claim->b].name, claim->n,
                 claim->sooner, claim->later);
    write_number(page, "%.4f", claim->p);
    write_number(page, claim->is_primary ? "primary" : "%.4f", claim->adjusted);
    write_number(page, "%.2fx", ceil(100 * eni_verdict_least(verdict, claim)) / 100);
    eni_html_put(page, "<td>%s</td></tr>\n", eni_verdict_found(claim));
}

static void write_pairs(const eni_canvas *canvas, const eni_verdict *verdict)
{
    bool is_any = false;
    for (size_t i = 0; i < verdict->n; i++)
        is_any = is_any || verdict->claims[i].n > 0;
    if (!is_any) return;
    fputs("<details><summary>Every pair of arms, paired by seed</summary>\n<p class=\"lede\">Time to the "
          "target: the exact two-sided signed-rank test of the logarithms; a miss is the largest rank, two "
          "misses are a tie. Holm’s p is over all comparisons that may claim, and 0.05 is the limit. The "
          "least effect is the ratio of times that the scatter of these pairs could have hidden.</p>\n",
          canvas->page);
    eni_html_table(canvas->page, NULL,
                   "setting|=arms|pairs|first sooner|later|p|p (Holm)|least effect|claim");
    for (size_t i = 0; i < verdict->n; i++)
        if (verdict->claims[i].n > 0) write_pair(canvas, verdict, &verdict->claims[i]);
    eni_html_table_end(canvas->page, "</details>");
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
    for (const char *quote; (quote = strchr(word, '\'')) != NULL; word = quote + 1)
        eni_html_put(page, "%.*s%s", (int)(quote - word), word, "'\\''");
    eni_html_put(page, "%s%s", word, "'");
}

/* The length of "--out=" or 0; "-o" and "--out" alone have their folder in the next word: then *is_next is
 * set. */
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

static void write_environment(const eni_canvas *canvas)
{
    json_t *environment = json_object_get(canvas->study->index, "environment");
    const char *key;
    json_t *value;
    if (!json_is_object(environment) || json_object_size(environment) == 0) return;
    fputs("<h3>Environment</h3>\n<dl class=\"facts\">\n", canvas->page);
    json_object_foreach(environment, key, value)
    {
        eni_html_put(canvas->page, "<dt>%s</dt><dd>", key);
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
            return eni_fail(EN_EIO, "report", "cannot open %s: %s", path, strerror(errno));
        }
        size_t n = fread(text, 1, sizeof text - 1, file);
        fclose(file);
        text[n] = 0;
        eni_html_put(
            canvas->page,
            "<details><summary>Configuration of %s (%s/config.yaml)</summary><pre>%s%s</pre></details>\n",
            study->arms[a].name, run->dir, text, n == sizeof text - 1 ? "\n… (cut here)" : "");
    }
    return EN_OK;
}

/* Threads per worker, the most memory that the roles had together, and what other processes took. */
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

static void write_runs(const eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    FILE *page = canvas->page;
    const size_t nall = study->nruns + study->nreplaced;
    fprintf(page, "<details><summary>%s%zu run%s in the order of the starts, with hashes",
            nall == 1 ? "" : "All ", nall, nall == 1 ? "" : "s");
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
                     run->is_replaced        ? "made again"
                     : run->emulated != NULL ? run->emulated
                     : run->is_complete      ? "real"
                                             : "failed");
    }
    eni_html_table_end(page, "</details>");
}

static en_status write_reproduce(const eni_canvas *canvas)
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

/* ---- the whole --------------------------------------------------------------------------------------- */

static en_status write_figure(eni_canvas *canvas, const figure *f)
{
    FILE *page = canvas->page;
    const char *title = f->title;
    if (f->is_there != NULL && !f->is_there(canvas->study)) return EN_OK;
    if (strcmp(f->id, "cells") == 0 && canvas->study->nsettings == 1) title = "Run by run";
    fprintf(page, "<section id=\"%s\">\n<h2>%s</h2>\n<p class=\"lede\">%s</p>\n", f->id, title, f->lede);
    if (f->legend == ARM_LEGEND) eni_plot_arm_legend(canvas, NULL);
    if (f->legend == PHASE_LEGEND) eni_plot_phase_legend(canvas, NULL, true);
    EN_TRY(f->draw(canvas));
    if (f->draw == eni_plot_steps) eni_report_html_steps(canvas->study, page);
    fputs("</section>\n", page);
    return EN_OK;
}

/* Snapshots are evaluated for one target, and gone after that. */
static void write_other_target(const eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;) {
        if (!eni_study_bracket_is_of_grid(run, study->target)) continue;
        fprintf(canvas->page,
                "<p class=\"lede\">These runs were evaluated for a target of %g %%: around %g %% only the "
                "grid is known, so the two that enclose a time are points of the grid.</p>\n",
                100 * run->evaluated_for, 100 * study->target);
        return;
    }
}

en_status eni_page_write(eni_canvas *canvas, const eni_fairness *fairness, const eni_verdict *verdict)
{
    write_head(canvas);
    write_verdict(canvas, fairness, verdict);
    write_fairness(canvas, fairness);
    fputs("<section id=\"table\">\n<h2>The numbers</h2>\n<p class=\"lede\">Medians over seeds, the range "
          "below. The target counts as reached at the first of three evaluations in a row at or above it; "
          "the time is interpolated between the two snapshots that enclose it.</p>\n",
          canvas->page);
    write_other_target(canvas);
    eni_report_html_table(canvas->study, canvas->page);
    write_pairs(canvas, verdict);
    fputs("</section>\n", canvas->page);
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++)
        EN_TRY(write_figure(canvas, &figures[i]));
    EN_TRY(write_reproduce(canvas));
    fprintf(canvas->page,
            "<footer>Written by <code>entrain report</code> %s.</footer>\n</main>\n</body>\n</html>\n",
            EN_VERSION);
    return EN_OK;
}
