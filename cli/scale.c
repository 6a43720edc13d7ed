/* scale.c - `entrain scale`: the same job at several numbers of workers, with a fixed global batch (strong scaling)
 * and with a fixed batch per worker (weak scaling). Every row comes from real runs, interleaved: other load on the machine
 * affects all rows alike.
 *
 *     speed-up    rate / rate of the first row (Amdahl 1967 for strong, Gustafson 1988 for weak scaling)
 *     efficiency  speed-up / (workers / workers of the first row) */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/trial.h"
#include "config/outputs.h"
#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "report/stats.h"
#include "report/table.h"
#include "run/units.h"
#include "runtime/net/host_info.h"

enum { REPEATS_MAX = 99 };

typedef struct row {
    bool is_strong;
    const char *strategy;
    int64_t workers, batch;
    double rates[REPEATS_MAX];
    int n;
    eni_summary rate; /* samples per second */
    double step_ms, speedup, efficiency;
    bool is_crowded; /* more ranks than cores */
    int line;        /* of the live display */
} row;

typedef struct scaling {
    const eni_command_context *context;
    const char *dir;
    row *rows;
    int nrows, cores;
    int64_t repeats;
    eni_trials trials;
    double outside;   /* share of all cores that other processes took; NAN: not known */
    bool is_doubtful; /* no conclusion may be drawn */
} scaling;

/* `-n 2,2` is measured once. */
static bool has_row(const scaling *s, bool is_strong, const char *strategy, int64_t workers)
{
    for (const row *r = s->rows; r < s->rows + s->nrows; r++)
        if (r->is_strong == is_strong && r->workers == workers && strcmp(r->strategy, strategy) == 0)
            return true;
    return false;
}

/* EN_EINVAL, logged: a global batch cannot be split. */
static en_status make_rows(scaling *s)
{
    const eni_config *c = s->context->config;
    const bool has_global = c->global_batch_size > 0;
    const int64_t global = has_global ? c->global_batch_size : c->batch_size;
    const int64_t each = has_global && !eni_config_is_given(c, "batch-size") ? global : c->batch_size;
    for (int strong = 1; strong >= 0; strong--)
        for (int a = 0; a < c->scaled.count; a++)
            for (int i = 0; i < c->ranks.count; i++) {
                int64_t workers = 1;
                eni_parse_i64(c->ranks.item[i], &workers);
                if (global % workers != 0)
                    return eni_fail(
                        EN_EINVAL, "scale",
                        "a global batch of %lld cannot be split into %lld equal parts; give another "
                        "--global-batch-size, or other numbers to -n",
                        (long long)global, (long long)workers);
                if (has_row(s, strong, c->scaled.item[a], workers)) continue;
                s->rows[s->nrows++] = (row){.is_strong = strong,
                                            .strategy = c->scaled.item[a],
                                            .workers = workers,
                                            .batch = strong ? global / workers : each,
                                            .is_crowded = workers > s->cores};
            }
    return EN_OK;
}

/* Before the first run, not in the middle: for example, a straggler that only the larger rows have. */
static en_status check_rows(const scaling *s)
{
    for (int i = 0; i < s->nrows; i++) {
        const eni_trial trial = {.strategy = s->rows[i].strategy, .workers = s->rows[i].workers};
        EN_TRY(eni_trial_check(s->context, &trial));
    }
    return EN_OK;
}

/* ---- running ---- */

static en_status run_row(scaling *s, row *r, int repeat)
{
    char dir[1024], name[48];
    double rate, step;
    const eni_trial trial = {.strategy = r->strategy,
                             .workers = r->workers,
                             .batch = r->batch,
                             .threads = s->context->config->threads};
    snprintf(name, sizeof name, "%.24s", r->strategy);
    for (char *c = name; *c != 0; c++)
        if (*c == '/' || *c == ':' || *c == '=') *c = '-';
    snprintf(dir, sizeof dir, "%s/%s-%s-n%lld-%d", s->dir, r->is_strong ? "strong" : "weak", name,
             (long long)r->workers, repeat);
    EN_TRY(eni_trials_run(&s->trials, r->line, s->context, &trial, dir, &rate, &step));
    r->rates[r->n++] = rate;
    if (r->line < 0 && !s->context->config->quiet) /* more rows than live lines */
        fprintf(stderr, "%s %s, %lld worker%s: %.0f samples/s\n", r->is_strong ? "strong" : "weak",
                r->strategy, (long long)r->workers, r->workers == 1 ? "" : "s", rate);
    return EN_OK;
}

static en_status run_all(scaling *s)
{
    char name[64];
    eni_trials_begin(&s->trials, s->context->config->quiet);
    for (row *r = s->rows; r < s->rows + s->nrows; r++) {
        snprintf(name, sizeof name, "%.40s, %lld worker%s", r->strategy, (long long)r->workers,
                 r->workers == 1 ? "" : "s");
        r->line = eni_live_add(&s->trials.live, r->is_strong ? "strong" : "weak", name, (int)s->repeats);
    }
    for (int repeat = 0; repeat < s->repeats; repeat++)
        for (int i = 0; i < s->nrows; i++)
            EN_TRY(run_row(s, &s->rows[i], repeat));
    return EN_OK;
}

static void conclude(scaling *s)
{
    const row *first = NULL;
    for (int i = 0; i < s->nrows; i++) {
        row *r = &s->rows[i];
        double rates[REPEATS_MAX];
        memcpy(rates, r->rates, sizeof rates);
        eni_trials_note(&s->trials, rates, (size_t)r->n);
        r->rate = eni_stats_summary(rates, (size_t)r->n);
        if (first == NULL || first->is_strong != r->is_strong || strcmp(first->strategy, r->strategy) != 0)
            first = r;
        r->step_ms = 1e3 * (double)(r->batch * r->workers) / r->rate.median;
        r->speedup = r->rate.median / first->rate.median;
        r->efficiency = r->speedup * (double)first->workers / (double)r->workers;
    }
}

/* ---- showing ---- */

static void put_row(const row *r, eni_table *table)
{
    char text[ENI_TABLE_TEXT];
    eni_text_grouped(eni_table_significant(r->rate.median, 4), ",", text, sizeof text);
    eni_table_put(table, "%s|%lld%s|%lld|%lld|%.2f|%s", r->strategy, (long long)r->workers,
                  r->is_crowded ? " *" : "  ", (long long)r->batch, (long long)(r->batch * r->workers),
                  r->step_ms, text);
    if (r->n < 2)
        eni_table_put(table, "-");
    else
        eni_table_put(table, "%+.1f %+.1f %%", 100 * (r->rate.min / r->rate.median - 1),
                      100 * (r->rate.max / r->rate.median - 1));
    eni_table_put(table, "%.2f|%.0f %%", r->speedup, 100 * r->efficiency);
}

static en_status show(const scaling *s, bool is_strong)
{
    eni_table table;
    eni_table_begin(&table,
                    "strategy|>workers|>batch|>global|>step ms|>samples/s|>spread|>speed-up|>efficiency");
    for (int i = 0; i < s->nrows; i++)
        if (s->rows[i].is_strong == is_strong) put_row(&s->rows[i], &table);
    printf("\n%s\n\n", is_strong ? "Strong scaling: one global batch, split"
                                 : "Weak scaling: every worker its own batch");
    return eni_table_print(&table, stdout);
}

static en_status write_csv(const scaling *s)
{
    char path[1100];
    snprintf(path, sizeof path, "%s/scale.csv", s->dir);
    FILE *file = eni_file_open(path, "w");
    if (file == NULL) return eni_fail(EN_EIO, "scale", "cannot write %s: %s", path, strerror(errno));
    fputs(
        "scaling,strategy,workers,cores,batch,global_batch,step_ms,samples_per_s,least,most,repeats,speedup,"
        "efficiency\n",
        file);
    for (int i = 0; i < s->nrows; i++) {
        const row *r = &s->rows[i];
        fprintf(file, "%s,%s,%lld,%d,%lld,%lld,%.4f,%.2f,%.2f,%.2f,%d,%.4f,%.4f\n",
                r->is_strong ? "strong" : "weak", r->strategy, (long long)r->workers, s->cores,
                (long long)r->batch, (long long)(r->batch * r->workers), r->step_ms, r->rate.median,
                r->rate.min, r->rate.max, r->n, r->speedup, r->efficiency);
    }
    const bool is_whole = ferror(file) == 0;
    if (fclose(file) == 0 && is_whole) return EN_OK;
    return eni_fail(EN_EIO, "scale", "cannot write %s: %s", path, strerror(errno));
}

static en_status write_json(const scaling *s)
{
    char path[1100];
    json_t *rows = json_array(), *argv = eni_json_texts(s->context->argv, s->context->argc);
    for (int i = 0; i < s->nrows; i++) {
        const row *r = &s->rows[i];
        json_t *rates = json_array();
        for (int k = 0; k < r->n; k++)
            json_array_append_new(rates, json_real(r->rates[k]));
        json_array_append_new(
            rows, json_pack("{s:s, s:s, s:I, s:I, s:f, s:f, s:o, s:f, s:f, s:b}", "scaling",
                            r->is_strong ? "strong" : "weak", "strategy", r->strategy, "workers",
                            (json_int_t)r->workers, "batch_size", (json_int_t)r->batch, "step_ms", r->step_ms,
                            "samples_per_s", r->rate.median, "each", rates, "speedup", r->speedup,
                            "efficiency", r->efficiency, "more_ranks_than_cores", r->is_crowded));
    }
    json_t *all = json_pack("{s:i, s:o, s:i, s:o, s:o, s:b}", "schema", 1, "argv", argv, "cores", s->cores,
                            "rows", rows, "outside", isnan(s->outside) ? json_null() : json_real(s->outside),
                            "is_conclusive", !s->is_doubtful);
    char *text = eni_json_dump(all, JSON_INDENT(1));
    snprintf(path, sizeof path, "%s/scale.json", s->dir);
    const en_status st = eni_file_replace_text("scale", path, text);
    json_decref(all);
    free(text); /* jansson's */
    return st;
}

static en_status scale(scaling *s)
{
    bool is_any_crowded = false;
    char doubt[256];
    EN_TRY(make_rows(s));
    EN_TRY(check_rows(s));
    eni_live_network(s->context->config, "\n");
    EN_TRY(run_all(s));
    s->outside = eni_trials_outside(&s->trials);
    conclude(s);
    EN_TRY(show(s, true));
    EN_TRY(show(s, false));
    for (int i = 0; i < s->nrows; i++)
        is_any_crowded |= s->rows[i].is_crowded;
    if (is_any_crowded)
        printf("\n* more workers than the %d core%s: no speed-up is possible\n", s->cores,
               s->cores == 1 ? "" : "s");
    s->is_doubtful = s->repeats < 2 || eni_trials_doubt(&s->trials, s->outside, doubt, sizeof doubt);
    if (s->repeats < 2) /* not even a quiet machine would help */
        snprintf(doubt, sizeof doubt,
                 "No conclusion is drawn: with one run per row the spread is unknown; give --repeats=3.");
    if (s->is_doubtful) printf("\n%s\n", doubt);
    if (s->context->config->out == NULL) return EN_OK;
    EN_TRY(write_csv(s));
    EN_TRY(write_json(s));
    printf("\n%s/scale.csv, %s/scale.json\n", s->dir, s->dir);
    return EN_OK;
}

en_status eni_command_scale(const eni_command_context *context)
{
    const eni_config *c = context->config;
    char own[64] = "";
    int out_fd = -1;
    scaling s = {.context = context, .dir = c->out, .cores = eni_host_info_cores(), .repeats = c->repeats};
    s.rows = eni_alloc_array((size_t)(2 * c->scaled.count * c->ranks.count), sizeof *s.rows);
    en_status st = s.rows == NULL ? EN_ENOMEM : EN_OK;
    if (st == EN_OK && c->out == NULL) {
        st = eni_trial_folder(own);
        s.dir = own;
    } else if (st == EN_OK) {
        st = eni_out_take(c, c->out, ENI_OUT_TRIALS, &out_fd);
        if (st == EN_OK) st = eni_out_clear(out_fd, c->out);
    }
    if (st == EN_OK) st = scale(&s);
    if (own[0] != 0) eni_trial_remove(own);
    if (out_fd >= 0) close(out_fd);
    eni_free(s.rows);
    return st;
}
