/* curve.c - snapshots into memory or a file at step boundaries; at the end some are evaluated. */
#include "rank/curve.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/crc32c.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

enum { MAX_STORED = 256, GRID = 12 };

typedef struct header {
    char magic[8];
    uint64_t count, samples, update;
    double t;
    uint32_t crc; /* of the fields before and the weights behind */
    uint32_t unused;
} header;
static const char magic[8] = "ENSNAP1";

typedef struct entry {
    eni_point point; /* loss and accuracy once is_evaluated */
    bool is_evaluated, is_bracket;
} entry;

struct eni_curve {
    eni_curve_config config;
    FILE *file;                 /* eval.jsonl, or NULL */
    bool has_past;              /* eval.jsonl begins with lines of an earlier run, whose weights are gone */
    char path[1024];            /* of the snapshots; "": without a name */
    int fd;                     /* of the snapshots; -1: there are none yet */
    bool is_kept;               /* a checkpoint may want them */
    entry *entries;             /* (n) in order of samples; room for `room` */
    uint32_t n, room, nspilled; /* the first nspilled are in the file, the others in `copy` */
    float *copy[MAX_STORED];    /* (capacity) in turns */
    uint32_t capacity;          /* copies that the byte budget allows, at least 1 */
    uint64_t next;              /* samples of the next point */
};

/* ---- the file of snapshots ---- */

/* Elements of a point: the weights, then the state. */
static uint64_t elements(const eni_curve *curve)
{
    return curve->config.count + curve->config.nstate;
}

static off_t record_bytes(const eni_curve *curve)
{
    return (off_t)(sizeof(header) + elements(curve) * sizeof(float));
}

static uint32_t checksum(const header *h, const float *flat)
{
    return eni_crc32c(eni_crc32c(0, h, offsetof(header, crc)), flat, h->count * sizeof(float));
}

enum { FROM_FILE, INTO_FILE };

/* All of it; false, with errno, where a disk is full or the file ends. */
static bool move_at(int way, int fd, void *data, size_t bytes, off_t at)
{
    for (char *place = data; bytes > 0;) {
        const ssize_t n = way == INTO_FILE ? pwrite(fd, place, bytes, at) : pread(fd, place, bytes, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        place += n;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

static bool has_file(eni_curve *curve)
{
    char nameless[] = "/tmp/entrain-snapshots-XXXXXX";
    if (curve->fd >= 0) return true;
    curve->fd = curve->path[0] != 0
                    ? open(curve->path, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666)
                    : mkostemp(nameless, O_CLOEXEC);
    if (curve->path[0] == 0 && curve->fd >= 0) unlink(nameless);
    return curve->fd >= 0;
}

/* All before `end`. False, with errno, when one could not be written; it and those behind it stay in memory.
 */
static bool spill(eni_curve *curve, uint32_t end)
{
    if (curve->nspilled < end && !has_file(curve)) return false;
    for (; curve->nspilled < end; curve->nspilled++) {
        const uint32_t i = curve->nspilled;
        const eni_point *p = &curve->entries[i].point;
        float *flat = curve->copy[i % curve->capacity];
        header h = {.count = elements(curve), .samples = p->samples, .update = p->update, .t = p->t};
        const off_t at = (off_t)i * record_bytes(curve);
        memcpy(h.magic, magic, sizeof h.magic);
        h.crc = checksum(&h, flat);
        if (!move_at(INTO_FILE, curve->fd, flat, h.count * sizeof(float), at + (off_t)sizeof h) ||
            !move_at(INTO_FILE, curve->fd, &h, sizeof h, at))
            return false;
    }
    return true;
}

static const char *name_of_file(const eni_curve *curve)
{
    return curve->path[0] != 0 ? curve->path : "snapshots into /tmp";
}

/* The weights of entry i, in `room` (elements) or where they are; NULL: the file does not have them any more. */
static const float *weights_of(const eni_curve *curve, uint32_t i, float *room)
{
    header h;
    const off_t at = (off_t)i * record_bytes(curve);
    if (i >= curve->nspilled) return curve->copy[i % curve->capacity];
    if (!move_at(FROM_FILE, curve->fd, &h, sizeof h, at) || memcmp(h.magic, magic, sizeof magic) != 0 ||
        h.count != elements(curve) ||
        !move_at(FROM_FILE, curve->fd, room, h.count * sizeof(float), at + (off_t)sizeof h) ||
        checksum(&h, room) != h.crc)
        return NULL;
    return room;
}

/* ---- points ---- */

static en_status append(eni_curve *curve, const eni_point *point)
{
    if (curve->n == curve->room) {
        const uint32_t room = curve->room == 0 ? 64 : 2 * curve->room;
        entry *grown = eni_alloc_array(room, sizeof *grown);
        if (grown == NULL) return EN_ENOMEM;
        if (curve->n > 0) memcpy(grown, curve->entries, curve->n * sizeof *grown);
        eni_free(curve->entries);
        curve->entries = grown;
        curve->room = room;
    }
    curve->entries[curve->n++] = (entry){.point = *point};
    return EN_OK;
}

static float *copy_at(eni_curve *curve, uint32_t i)
{
    i %= curve->capacity;
    if (curve->copy[i] == NULL) curve->copy[i] = eni_alloc_array(elements(curve), sizeof(float));
    return curve->copy[i];
}

/* What the killed run has kept, up to its checkpoint: a torn record ends it, and what is beyond goes. */
static en_status take_past(eni_curve *curve)
{
    header h;
    float *room = copy_at(curve, 0);
    if (room == NULL) return EN_ENOMEM;
    curve->fd = open(curve->path, O_RDWR | O_CLOEXEC);
    if (curve->fd < 0 && errno == ENOENT) return EN_OK;
    if (curve->fd < 0)
        return eni_fail(EN_EIO, "curve", "cannot open %s: %s; choose another --out", curve->path,
                        strerror(errno));
    curve->is_kept = true;
    while (move_at(FROM_FILE, curve->fd, &h, sizeof h, (off_t)curve->n * record_bytes(curve)) &&
           h.samples <= curve->config.resumed && eni_jsonl_is_before(h.t, curve->config.resumed_t)) {
        curve->nspilled = curve->n + 1;
        if (weights_of(curve, curve->n, room) == NULL) break;
        EN_TRY(append(curve, &(eni_point){.samples = h.samples, .update = h.update, .t = h.t}));
    }
    curve->nspilled = curve->n;
    if (ftruncate(curve->fd, (off_t)curve->n * record_bytes(curve)) == 0) return EN_OK;
    return eni_fail(EN_EIO, "curve", "cannot cut %s: %s; choose another --out", curve->path, strerror(errno));
}

static bool is_empty(FILE *file)
{
    struct stat info;
    return fstat(fileno(file), &info) == 0 && info.st_size == 0;
}

/* Lines of points whose weights are at hand will be written again. */
static en_status open_folder(eni_curve *curve)
{
    const eni_curve_config *config = &curve->config;
    char path[1024];
    uint64_t stays = config->resumed;
    snprintf(curve->path, sizeof curve->path, "%s/snapshots", config->dir);
    if (config->resumed > 0)
        EN_TRY(take_past(curve));
    else
        unlink(curve->path);
    if (curve->n > 0) stays = curve->entries[0].point.samples > 0 ? curve->entries[0].point.samples - 1 : 0;
    snprintf(path, sizeof path, "%s/eval.jsonl", config->dir);
    EN_TRY(eni_jsonl_open(path, stays, config->resumed_t, &curve->file));
    curve->has_past = !is_empty(curve->file);
    return EN_OK;
}

en_status eni_curve_open(const eni_curve_config *config, eni_curve **curve_out)
{
    eni_curve *curve = eni_alloc(sizeof *curve);
    if (curve == NULL) return EN_ENOMEM;
    curve->config = *config;
    curve->fd = -1;
    uint64_t fit = config->budget / (elements(curve) * sizeof(float) + 1);
    curve->capacity = fit < 1 ? 1 : fit > MAX_STORED ? MAX_STORED : (uint32_t)fit;
    curve->next = config->every;
    eni_curve_skip(curve, config->resumed);
    const en_status st = config->dir != NULL && config->dir[0] != 0 ? open_folder(curve) : EN_OK;
    if (st != EN_OK)
        eni_curve_close(curve);
    else
        *curve_out = curve;
    return st;
}

int eni_curve_is_due(const eni_curve *curve, uint64_t samples)
{
    return curve->config.every > 0 && samples >= curve->next;
}

en_status eni_curve_add(eni_curve *curve, uint64_t samples, uint64_t update, double t, const float *flat,
                        const float *state)
{
    if (curve->n > 0 && curve->entries[curve->n - 1].point.samples == samples) curve->n--;
    if (curve->nspilled > curve->n) curve->nspilled = curve->n;
    if (curve->n - curve->nspilled == curve->capacity && !spill(curve, curve->nspilled + 1))
        return eni_fail(EN_EIO, "curve",
                        "cannot write %s: %s; make room there, or give a larger --eval-every",
                        name_of_file(curve), strerror(errno));
    float *copy = copy_at(curve, curve->n);
    if (copy == NULL) return EN_ENOMEM;
    memcpy(copy, flat, curve->config.count * sizeof(float));
    if (state != NULL) memcpy(copy + curve->config.count, state, curve->config.nstate * sizeof(float));
    EN_TRY(append(curve, &(eni_point){.samples = samples, .update = update, .t = t}));
    eni_curve_skip(curve, samples);
    return EN_OK;
}

void eni_curve_skip(eni_curve *curve, uint64_t samples)
{
    while (curve->config.every > 0 && curve->next <= samples)
        curve->next += curve->config.every;
}

void eni_curve_keep(eni_curve *curve)
{
    if (curve->path[0] == 0) return;
    if (spill(curve, curve->n))
        curve->is_kept = curve->n > 0;
    else
        eni_warn("curve",
                 "cannot write %s: %s; a run that goes on from this checkpoint lacks points of its curve",
                 curve->path, strerror(errno));
}

/* ---- the end ---- */

static en_status evaluate(eni_curve *curve, uint32_t i, bool is_bracket, float *room)
{
    entry *e = &curve->entries[i];
    if (e->is_evaluated) return EN_OK;
    const float *flat = weights_of(curve, i, room);
    if (flat == NULL)
        return eni_fail(EN_EIO, "curve", "cannot read %s: what was written there has changed",
                        name_of_file(curve));
    const float *state = curve->config.nstate > 0 ? flat + curve->config.count : NULL;
    EN_TRY(curve->config.evaluate(curve->config.user, flat, state, &e->point.loss, &e->point.accuracy));
    e->is_evaluated = true;
    e->is_bracket = is_bracket;
    return EN_OK;
}

/* The initial weights are point 0, and of the grid. */
static en_status evaluate_grid(eni_curve *curve, float *room)
{
    const uint32_t first = curve->n > 0 && curve->entries[0].point.samples == 0, k = curve->n - first;
    const uint32_t step = curve->config.target > 0 ? (k + GRID - 1) / GRID : 1;
    for (uint32_t i = 0; i < curve->n; i++) {
        const bool is_start = i < first, is_last = i + 1 == curve->n;
        if (is_start || is_last || (i - first + 1) % step == 0) EN_TRY(evaluate(curve, i, false, room));
    }
    return EN_OK;
}

/* Those that are evaluated, as the rule takes them: `evals` and their numbers in `at`, both (n). */
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
    const double target = curve->config.target;
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
    if (st == EN_OK && curve->config.target > 0) st = enclose_target(curve, evals, at, room, &end->reach);
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

en_status eni_curve_finish(eni_curve *curve, eni_curve_end *end_out)
{
    *end_out = (eni_curve_end){.last = {.loss = NAN, .accuracy = NAN}, .is_whole = !curve->has_past};
    const en_status st = curve->n > 0 ? evaluate_all(curve, end_out) : EN_OK;
    EN_TRY(write_points(curve));
    if (st == EN_OK) curve->is_kept = false;
    return st;
}

void eni_curve_close(eni_curve *curve)
{
    if (curve == NULL) return;
    if (curve->file != NULL) fclose(curve->file);
    if (curve->fd >= 0) close(curve->fd);
    if (curve->fd >= 0 && curve->path[0] != 0 && !curve->is_kept) unlink(curve->path);
    for (int i = 0; i < MAX_STORED; i++)
        eni_free(curve->copy[i]);
    eni_free(curve->entries);
    eni_free(curve);
}
