/* curve.c - snapshots are kept as they come (core/copies.h); at the end some are evaluated. */
#include "rank/curve.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

enum { GRID = 12 };

typedef struct entry {
    eni_point point; /* loss and accuracy once is_evaluated */
    bool is_evaluated, is_bracket;
} entry;

struct eni_curve {
    eni_curve_config config;
    FILE *file;         /* eval.jsonl, or NULL */
    bool has_past;      /* eval.jsonl begins with lines of an earlier run, whose weights are gone */
    bool is_kept;       /* a checkpoint may want the snapshots */
    eni_copies *copies; /* a block: the weights, then the state */
    entry *entries;     /* (n) at the end: of each copy */
    uint32_t n;
    uint64_t next; /* samples of the next point */
};

/* ---- points ---- */

/* Elements of a point: the weights, then the state. */
static uint64_t elements(const eni_curve *curve)
{
    return curve->config.count + curve->config.nstate;
}

/* Whether the killed run kept this copy before its checkpoint. */
static bool is_of_past(void *user, const eni_copy_note *note)
{
    const eni_curve_config *config = user;
    return note->samples <= config->resumed && eni_jsonl_is_before(note->t, config->resumed_t);
}

static bool is_empty(FILE *file)
{
    struct stat info;
    return fstat(fileno(file), &info) == 0 && info.st_size == 0;
}

/* Lines of points whose weights are at hand will be written again. */
static en_status open_folder(eni_curve *curve, const char *snapshots)
{
    eni_curve_config *config = &curve->config;
    char path[1024];
    uint64_t stays = config->resumed;
    if (config->resumed > 0)
        EN_TRY(eni_copies_load(curve->copies, is_of_past, config));
    else
        unlink(snapshots);
    curve->is_kept = eni_copies_count(curve->copies) > 0;
    if (curve->is_kept) {
        const uint64_t first = eni_copies_note(curve->copies, 0)->samples;
        stays = first > 0 ? first - 1 : 0;
    }
    snprintf(path, sizeof path, "%s/eval.jsonl", config->dir);
    EN_TRY(eni_jsonl_open(path, stays, config->resumed_t, &curve->file));
    curve->has_past = !is_empty(curve->file);
    return EN_OK;
}

en_status eni_curve_open(const eni_curve_config *config, eni_curve **curve_out)
{
    const bool has_folder = config->dir != NULL && config->dir[0] != 0;
    char snapshots[1024] = "";
    eni_curve *curve = eni_alloc(sizeof *curve);
    if (curve == NULL) return EN_ENOMEM;
    curve->config = *config;
    curve->next = config->every;
    eni_curve_skip(curve, config->resumed);
    if (has_folder) snprintf(snapshots, sizeof snapshots, "%s/snapshots", config->dir);
    en_status st = eni_copies_open(snapshots, NULL, elements(curve) * sizeof(float), &curve->copies);
    if (st == EN_OK && has_folder) st = open_folder(curve, snapshots);
    if (st != EN_OK)
        eni_curve_close(curve);
    else
        *curve_out = curve;
    return st;
}

uint64_t eni_curve_every(uint64_t every, uint64_t points, uint64_t samples, const eni_target *target)
{
    char text[ENI_TARGET_TEXT];
    if (every == 0 && points > 0) every = (samples + points - 1) / points;
    const uint64_t n = every == 0 ? 1 : (samples + every - 1) / every;
    if (target != NULL && eni_target_is_set(target) && n < ENI_REACH_IN_A_ROW)
        eni_warn("curve",
                 "--target=%s: it is reached by %d points of the curve in a row, but this run has %llu: give "
                 "--eval-every=%llu or less",
                 eni_target_text(target, "", ':', text), ENI_REACH_IN_A_ROW, (unsigned long long)n,
                 (unsigned long long)(samples / ENI_REACH_IN_A_ROW));
    return every;
}

bool eni_curve_is_due(const eni_curve *curve, uint64_t samples)
{
    return curve->config.every > 0 && samples >= curve->next;
}

uint32_t eni_curve_number(const eni_curve *curve, uint64_t samples)
{
    return curve->config.every > 0 ? (uint32_t)(samples / curve->config.every) : 0;
}

en_status eni_curve_add(eni_curve *curve, const eni_copy_note *note, const float *flat, const float *state)
{
    eni_copies *copies = curve->copies;
    const uint32_t n = eni_copies_count(copies);
    void *room;
    eni_curve_skip(curve, note->samples);
    if (!eni_copies_takes(copies, note->number)) return EN_OK;
    if (n > 0 && eni_copies_note(copies, n - 1)->samples == note->samples)
        eni_copies_forget(copies, n - 1, n);
    EN_TRY(eni_copies_add(copies, note, &room));
    if (room == NULL) return EN_OK;
    float *copy = room;
    memcpy(copy, flat, curve->config.count * sizeof(float));
    if (state != NULL) memcpy(copy + curve->config.count, state, curve->config.nstate * sizeof(float));
    return EN_OK;
}

void eni_curve_skip(eni_curve *curve, uint64_t samples)
{
    while (curve->config.every > 0 && curve->next <= samples)
        curve->next += curve->config.every;
}

void eni_curve_keep(eni_curve *curve)
{
    if (curve->config.dir == NULL || curve->config.dir[0] == 0) return;
    if (eni_copies_save(curve->copies))
        curve->is_kept = eni_copies_count(curve->copies) > 0;
    else
        eni_warn("curve",
                 "cannot write %s: a run resumed from this checkpoint will lack points of its curve; free "
                 "space there",
                 eni_copies_path(curve->copies));
}

void eni_curve_expect(eni_curve *curve, uint64_t n, uint64_t budget)
{
    eni_copies_expect(curve->copies, n, budget);
}

uint64_t eni_curve_left_out(const eni_curve *curve)
{
    return eni_copies_thinned(curve->copies);
}

/* ---- the end ---- */

static en_status evaluate(eni_curve *curve, uint32_t i, bool is_bracket, float *room)
{
    entry *e = &curve->entries[i];
    if (e->is_evaluated) return EN_OK;
    const float *flat = eni_copies_read(curve->copies, i, room);
    if (flat == NULL)
        return eni_fail(EN_EIO, "curve", "cannot read %s: its contents have changed",
                        eni_copies_path(curve->copies));
    const float *state = curve->config.nstate > 0 ? flat + curve->config.count : NULL;
    EN_TRY(curve->config.evaluate(curve->config.user, flat, state, &e->point.loss, &e->point.accuracy));
    e->is_evaluated = true;
    e->is_bracket = is_bracket;
    return EN_OK;
}

/* Evaluates the grid, with the initial weights, which are point 0. */
static en_status evaluate_grid(eni_curve *curve, float *room)
{
    const uint32_t first = curve->n > 0 && curve->entries[0].point.samples == 0, k = curve->n - first;
    const uint32_t step = eni_target_is_set(&curve->config.target) ? (k + GRID - 1) / GRID : 1;
    for (uint32_t i = 0; i < curve->n; i++) {
        const bool is_start = i < first, is_last = i + 1 == curve->n;
        if (is_start || is_last || (i - first + 1) % step == 0) EN_TRY(evaluate(curve, i, false, room));
    }
    return EN_OK;
}

/* The points to evaluate, as the rule takes them: `evals` and their numbers in `at`, both (n). */
static size_t list_evaluated(const eni_curve *curve, eni_eval *evals, uint32_t *at)
{
    size_t n = 0;
    for (uint32_t i = 0; i < curve->n; i++) {
        const entry *e = &curve->entries[i];
        if (!e->is_evaluated) continue;
        evals[n] =
            (eni_eval){(double)e->point.samples, e->point.t, e->point.loss, e->point.accuracy, e->is_bracket};
        at[n++] = i;
    }
    return n;
}

static en_status enclose_target(eni_curve *curve, eni_eval *evals, uint32_t *at, float *room,
                                eni_reach *reach_out)
{
    const eni_target *target = &curve->config.target;
    *reach_out = eni_reach_find(evals, list_evaluated(curve, evals, at), target);
    if (isinf(reach_out->t)) return EN_OK;
    for (uint32_t i = at[reach_out->from] + 1; i < at[reach_out->to]; i++)
        EN_TRY(evaluate(curve, i, true, room));
    *reach_out = eni_reach_find(evals, list_evaluated(curve, evals, at), target);
    return EN_OK;
}

static en_status evaluate_all(eni_curve *curve, eni_curve_end *end)
{
    float *room = eni_alloc_array(elements(curve), sizeof *room);
    eni_eval *evals = eni_alloc_array(curve->n, sizeof *evals);
    uint32_t *at = eni_alloc_array(curve->n, sizeof *at);
    en_status st = room == NULL || evals == NULL || at == NULL ? EN_ENOMEM : evaluate_grid(curve, room);
    if (st == EN_OK && eni_target_is_set(&curve->config.target))
        st = enclose_target(curve, evals, at, room, &end->reach);
    eni_free(at);
    eni_free(evals);
    eni_free(room);
    if (st == EN_OK) end->last = curve->entries[curve->n - 1].point;
    return st;
}

static void write_point(const eni_curve *curve, const entry *e)
{
    const eni_point *p = &e->point;
    const char *set = curve->config.set;
    char loss[32] = "null", accuracy[32] = "null"; /* JSON has no NaN */
    if (isfinite(p->loss)) snprintf(loss, sizeof loss, "%.9g", p->loss);
    if (isfinite(p->accuracy)) snprintf(accuracy, sizeof accuracy, "%.9g", p->accuracy);
    fprintf(curve->file,
            "{\"schema\":1,\"samples\":%" PRIu64 ",\"t\":%.6f,\"update\":%" PRIu64
            ",\"%s_loss\":%s,\"%s_accuracy\":%s%s}\n",
            p->samples, p->t, p->update, set, loss, set, accuracy, e->is_bracket ? ",\"bracket\":true" : "");
}

static en_status write_points(eni_curve *curve)
{
    char path[1024];
    for (uint32_t i = 0; i < curve->n; i++) {
        const entry *e = &curve->entries[i];
        if (!e->is_evaluated) continue;
        if (curve->file != NULL) write_point(curve, e);
        if (curve->config.on_point != NULL) curve->config.on_point(curve->config.user, &e->point);
    }
    if (curve->file == NULL) return EN_OK;
    FILE *file = curve->file;
    curve->file = NULL;
    snprintf(path, sizeof path, "%s/eval.jsonl", curve->config.dir);
    return eni_record_close("curve", path, file);
}

static en_status list_copies(eni_curve *curve)
{
    curve->n = eni_copies_count(curve->copies);
    curve->entries = eni_alloc_array(curve->n, sizeof *curve->entries);
    for (uint32_t i = 0; i < curve->n && curve->entries != NULL; i++) {
        const eni_copy_note *note = eni_copies_note(curve->copies, i);
        curve->entries[i].point = (eni_point){.samples = note->samples, .update = note->update, .t = note->t};
    }
    return curve->entries != NULL ? EN_OK : EN_ENOMEM;
}

en_status eni_curve_finish(eni_curve *curve, eni_curve_end *end_out)
{
    *end_out = (eni_curve_end){.last = {.loss = NAN, .accuracy = NAN}, .is_whole = !curve->has_past};
    EN_TRY(list_copies(curve));
    const en_status st = curve->n > 0 ? evaluate_all(curve, end_out) : EN_OK;
    EN_TRY(write_points(curve));
    if (st == EN_OK) curve->is_kept = false;
    return st;
}

void eni_curve_close(eni_curve *curve)
{
    if (curve == NULL) return;
    if (curve->file != NULL) fclose(curve->file);
    eni_copies_close(curve->copies, curve->is_kept);
    eni_free(curve->entries);
    eni_free(curve);
}
