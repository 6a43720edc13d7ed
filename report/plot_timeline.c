/* plot_timeline.c - one step of every arm, workers and psd on one clock, from the trace of its first run:
 * reads the step from trace.json, then draws it. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/json.h"
#include "core/memory.h"
#include "core/trace.h"
#include "core/try.h"
#include "report/plot.h"

enum { MAX_STEPS = 1 << 20, MAX_PROCESSES = 64, MAX_PARTS = 4096 };

/* The phase of a span: that of the first of these words in its name; or -1. */
static int phase_of(const char *name)
{
    static const struct {
        int phase;
        const char *words[11];
    } phases[] = {
        {ENI_PHASE_WAIT, {"wait", "hold", "idle"}},
        {ENI_PHASE_SLEEP, {"sleep"}},
        {ENI_PHASE_DATA, {"data", "load", "batch"}},
        {ENI_PHASE_COMPUTE, {"forward", "backward", "compute", "loss"}},
        {ENI_PHASE_UPDATE, {"update", "absorb", "apply", "optimizer"}},
        {ENI_PHASE_EXCHANGE,
         {"push", "pull", "reduce", "gather", "exchange", "send", "receive", "add", "reply", "swap"}}};
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++)
        for (const char *const *word = phases[i].words; *word != NULL; word++)
            if (strstr(name, *word) != NULL) return phases[i].phase;
    return -1;
}

/* ---- spans --------------------------------------------------------------------------------------------- */

typedef struct drawn_span {
    const char *name;  /* borrowed from the JSON */
    double begin, end; /* ms */
    long pid, tid, step;
} drawn_span;

typedef struct process {
    long pid;
    const char *role; /* borrowed from the JSON */
} process;

typedef struct trace {
    json_t *root;
    drawn_span *spans;
    size_t nspans, nprocesses;
    process processes[MAX_PROCESSES];
} trace;

static void take_event(eni_json *reader, trace *t, const json_t *event, size_t i)
{
    eni_json_at(reader, "traceEvents[%zu]", i);
    if (!json_is_object(event)) {
        eni_json_fail(reader, "%s should be an object", reader->where);
        return;
    }
    const char *name = eni_json_need_text(reader, event, "name");
    const char *kind = eni_json_need_text(reader, event, "ph");
    if (reader->status != EN_OK) return;
    long pid = (long)json_integer_value(json_object_get(event, "pid"));
    const json_t *args = json_object_get(event, "args");
    if (strcmp(kind, "M") == 0 && strcmp(name, "process_name") == 0 && t->nprocesses < MAX_PROCESSES) {
        const char *role = json_string_value(json_object_get(args, "name"));
        if (role != NULL) t->processes[t->nprocesses++] = (process){pid, role};
        return;
    }
    if (strcmp(kind, "X") != 0) return;
    double begin = eni_json_need_number(reader, event, "ts") / 1e3;
    double length = eni_json_need_number(reader, event, "dur") / 1e3;
    const json_t *step = json_object_get(args, "step");
    t->spans[t->nspans++] = (drawn_span){name,
                                         begin,
                                         begin + length,
                                         pid,
                                         (long)json_integer_value(json_object_get(event, "tid")),
                                         json_is_integer(step) ? (long)json_integer_value(step) : -1};
}

static en_status load_trace(eni_json *reader, trace *t)
{
    t->root = eni_json_load(reader);
    json_t *events = eni_json_need_array(reader, t->root, "traceEvents", SIZE_MAX);
    EN_TRY(reader->status);
    t->spans = eni_alloc_array(json_array_size(events), sizeof *t->spans);
    if (t->spans == NULL) return EN_ENOMEM;
    for (size_t i = 0; i < json_array_size(events) && reader->status == EN_OK; i++)
        take_event(reader, t, json_array_get(events, i), i);
    return reader->status;
}

/* NULL: not named in the trace. */
static const char *role_of(const trace *t, long pid)
{
    const char *role = NULL;
    for (size_t i = 0; i < t->nprocesses; i++)
        if (t->processes[i].pid == pid) role = t->processes[i].role;
    return role;
}

/* ---- the step ------------------------------------------------------------------------------------------ */

typedef struct window {
    double begin, end;
    long step;
} window;

static int by_length(const void *a, const void *b)
{
    const window *x = a, *y = b;
    double p = x->end - x->begin, q = y->end - y->begin;
    return (p > q) - (p < q);
}

/* The window of rank 0's step of median length (asynchronous ranks number their own steps) among those after
 * the first fifth; false if absent. */
static bool choose_window(const trace *t, window *window_out)
{
    long last = -1;
    for (size_t i = 0; i < t->nspans; i++)
        if (t->spans[i].step > last && t->spans[i].step < MAX_STEPS) last = t->spans[i].step;
    if (last < 0) return false;
    window *windows = eni_alloc_array((size_t)last + 1, sizeof *windows);
    if (windows == NULL) return false;
    for (long s = 0; s <= last; s++)
        windows[s] = (window){INFINITY, -INFINITY, s};
    for (size_t i = 0; i < t->nspans; i++) {
        const drawn_span *s = &t->spans[i];
        const char *role = role_of(t, s->pid);
        if (s->step < 0 || s->step > last || s->tid != ENI_TRACE_COMPUTE) continue;
        if (role == NULL || strcmp(role, "rank 0") != 0) continue;
        windows[s->step].begin = fmin(windows[s->step].begin, s->begin);
        windows[s->step].end = fmax(windows[s->step].end, s->end);
    }
    size_t n = 0;
    for (long s = (last + 1) / 5; s <= last; s++)
        if (windows[s].end > windows[s].begin) windows[n++] = windows[s];
    qsort(windows, n, sizeof *windows, by_length);
    if (n > 0) *window_out = windows[n / 2];
    eni_free(windows);
    return n > 0;
}

static size_t lane_of(const trace *t, eni_trace_step *step, const drawn_span *s)
{
    for (size_t i = 0; i < step->nlanes; i++)
        if (step->lanes[i].pid == s->pid && step->lanes[i].tid == s->tid) return i;
    if (step->nlanes == ENI_TRACE_LANES) return ENI_TRACE_LANES;
    eni_trace_lane *lane = &step->lanes[step->nlanes];
    char row[ENI_TRACE_ROW_TEXT];
    const char *role = role_of(t, s->pid);
    *lane = (eni_trace_lane){.pid = s->pid, .tid = s->tid};
    if (role == NULL) eni_text_add(lane->name, sizeof lane->name, "process %ld", s->pid);
    if (role != NULL) eni_text_add(lane->name, sizeof lane->name, "%.39s", role);
    if (s->tid != ENI_TRACE_COMPUTE)
        eni_text_add(lane->name, sizeof lane->name, " %s", eni_trace_row((int)s->tid, row));
    return step->nlanes++;
}

static int by_part_length(const void *a, const void *b)
{
    const eni_trace_part *x = a, *y = b;
    double p = x->end - x->begin, q = y->end - y->begin;
    return (p < q) - (p > q);
}

static int by_part_begin(const void *a, const void *b)
{
    const eni_trace_part *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Sorts servers after workers, and the threads of a process in order. */
static int by_lane(const void *a, const void *b)
{
    const eni_trace_lane *x = a, *y = b;
    bool p = strncmp(x->name, "rank ", 5) == 0, q = strncmp(y->name, "rank ", 5) == 0;
    if (p != q) return q - p;
    if (x->pid != y->pid) return x->pid < y->pid ? -1 : 1;
    return (x->tid > y->tid) - (x->tid < y->tid);
}

/* Adds `part` from `begin` to `end` as another part, if there is room. */
static void add_piece(eni_trace_step *step, eni_trace_part part, double begin, double end, int phase)
{
    if (end <= begin || step->nparts == MAX_PARTS) return;
    part.begin = begin;
    part.end = end;
    part.phase = phase;
    step->parts[step->nparts++] = part;
}

/* Marks an exchange as hidden while another thread of its rank computes, or sleeps as if it did. */
static void find_hidden(eni_trace_step *step)
{
    const size_t n = step->nparts;
    qsort(step->parts, n, sizeof *step->parts, by_part_begin);
    for (size_t i = 0; i < n; i++) {
        const eni_trace_part part = step->parts[i];
        const eni_trace_lane *lane = &step->lanes[part.lane];
        double at = fmax(part.begin, 0);
        const double end = fmin(part.end, step->ms);
        if (part.phase != ENI_PHASE_EXCHANGE || lane->tid == ENI_TRACE_COMPUTE) continue;
        for (size_t k = 0; k < n && at < end; k++) {
            const eni_trace_part *c = &step->parts[k];
            const eni_trace_lane *other = &step->lanes[c->lane];
            const bool computes = c->phase == ENI_PHASE_COMPUTE || c->phase == ENI_PHASE_SLEEP;
            if (!computes || other->pid != lane->pid || other->tid != ENI_TRACE_COMPUTE || c->end <= at)
                continue;
            add_piece(step, part, at, fmin(c->begin, end), ENI_PHASE_EXCHANGE);
            add_piece(step, part, fmax(at, c->begin), fmin(c->end, end), ENI_PHASE_HIDDEN);
            at = fmin(c->end, end);
        }
        step->parts[i].begin = at; /* the remainder */
        step->parts[i].end = fmax(at, end);
    }
}

static en_status cut(const trace *t, const window *w, eni_trace_step *step)
{
    step->parts = eni_alloc_array(MAX_PARTS, sizeof *step->parts);
    if (step->parts == NULL) return EN_ENOMEM;
    for (int pass = 0; pass < 2; pass++) { /* first the lanes, then the parts that refer to them */
        for (size_t i = 0; i < t->nspans && step->nparts < MAX_PARTS; i++) {
            const drawn_span *s = &t->spans[i];
            if (s->end <= w->begin || s->begin >= w->end || strcmp(s->name, "step") == 0) continue;
            size_t lane = lane_of(t, step, s);
            if (pass == 0 || lane == ENI_TRACE_LANES) continue;
            eni_trace_part *part = &step->parts[step->nparts++];
            *part = (eni_trace_part){lane, s->begin - w->begin, s->end - w->begin, phase_of(s->name), ""};
            snprintf(part->name, sizeof part->name, "%s", s->name);
        }
        if (pass == 0) qsort(step->lanes, step->nlanes, sizeof *step->lanes, by_lane);
    }
    step->step = w->step;
    step->ms = w->end - w->begin;
    find_hidden(step);
    qsort(step->parts, step->nparts, sizeof *step->parts, by_part_length);
    while (step->nparts > 0 && step->parts[step->nparts - 1].end <= step->parts[step->nparts - 1].begin)
        step->nparts--;
    return EN_OK;
}

en_status eni_trace_step_load(const char *path, eni_trace_step *step_out)
{
    memset(step_out, 0, sizeof *step_out);
    if (access(path, F_OK) != 0) return EN_ENOENT;
    eni_json reader = {.who = "report", .path = path};
    trace t = {0};
    window w;
    en_status st;
    EN_TRY_GOTO(load_trace(&reader, &t), drop);
    EN_TRY_GOTO(choose_window(&t, &w) ? EN_OK : EN_ENOENT, drop);
    EN_TRY_GOTO(cut(&t, &w, step_out), drop);
drop:
    json_decref(t.root);
    eni_free(t.spans);
    if (st != EN_OK) eni_trace_step_fini(step_out);
    return st;
}

void eni_trace_step_fini(eni_trace_step *step)
{
    eni_free(step->parts);
    memset(step, 0, sizeof *step);
}

/* ---- the picture --------------------------------------------------------------------------------------- */

static en_status draw(eni_canvas *canvas, const eni_run *run, const eni_trace_step *step)
{
    char what[64];
    eni_plot plot;
    snprintf(what, sizeof what, "Step %ld of seed %lld", step->step, (long long)run->seed);
    EN_TRY(eni_plot_open(&plot, canvas, "timeline-%zu-%zu", run->setting, run->arm));
    eni_plot_title(&plot, what, run->setting, &canvas->study->arms[run->arm]);
    fprintf(plot.variables, "step = %ld\nseed = '%lld'\nms = %.6g\n", step->step, (long long)run->seed,
            step->ms);
    for (size_t i = 0; i < step->nlanes; i++)
        eni_plot_add_row(&plot, "%s", step->lanes[i].name);
    for (const eni_trace_part *part = step->parts; part < step->parts + step->nparts; part++)
        ENI_PLOT_PUT(&plot, part->lane + 1, part->begin, part->end, part->phase);
    return eni_plot_close(&plot, eni_figures_timeline_gp);
}

static void csv_lines(eni_csv *csv, const eni_study *study, const eni_run *run, const eni_trace_step *step)
{
    for (size_t i = 0; i < step->nparts; i++) {
        const eni_trace_part *part = &step->parts[i];
        eni_csv_run(csv, study, run);
        fprintf(csv->file, ",%ld,", step->step);
        eni_csv_text(csv, step->lanes[part->lane].name);
        fputc(',', csv->file);
        eni_csv_text(csv, part->name);
        fprintf(csv->file, ",%s,%.6g,%.6g",
                part->phase < 0                   ? ""
                : part->phase == ENI_PHASE_HIDDEN ? "hidden exchange"
                                                  : eni_plot_phases[part->phase].name,
                part->begin, part->end);
    }
}

/* The first run of (setting, arm) that left a trace. */
static en_status load_first(const eni_study *study, size_t setting, size_t arm, eni_trace_step *step_out,
                            const eni_run **run_out)
{
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, arm, run)) != NULL;) {
        if (!run->is_complete) continue;
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s/trace.json", run->root, run->dir);
        en_status st = eni_trace_step_load(path, step_out);
        if (st == EN_ENOENT) continue;
        *run_out = run;
        return st;
    }
    return EN_ENOENT;
}

en_status eni_plot_timeline(eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    size_t ndrawn = 0;
    en_status st = EN_OK;
    eni_csv csv;
    EN_TRY(eni_csv_open(&csv, ENI_CSV_RUN ",step,lane,span,phase,begin_ms,end_ms"));
    fputs("<div class=\"panels\">\n", canvas->page);
    for (size_t i = 0; i < study->narms * study->nsettings && st == EN_OK; i++) {
        eni_trace_step step;
        const eni_run *run;
        st = load_first(study, i % study->nsettings, i / study->nsettings, &step, &run);
        if (st == EN_OK) {
            csv_lines(&csv, study, run, &step);
            st = draw(canvas, run, &step);
            eni_trace_step_fini(&step);
            ndrawn++;
        } else if (st == EN_ENOENT) {
            st = EN_OK;
        }
    }
    fputs("</div>\n", canvas->page);
    if (ndrawn == 0)
        fputs(
            "<p class=\"absent\">No run left a trace (<code>--trace</code>), so no timeline is shown.</p>\n",
            canvas->page);
    const en_status closed = eni_csv_close(&csv, canvas->dir, "timeline", canvas->page);
    return st == EN_OK ? closed : st;
}
