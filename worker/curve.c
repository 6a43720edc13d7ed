/* curve.c - see curve.h. */
#include "worker/curve.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/core/clock.h"
#include "runtime/core/log.h"
#include "runtime/core/memory.h"
#include "runtime/core/try.h"
#include "worker/lines.h"

enum { MAX_STORED = 256 };

typedef struct stored {
    eni_point point;
    float *flat;
} stored;

struct eni_curve {
    eni_curve_config config;
    FILE *file;
    stored stored[MAX_STORED];
    uint32_t nstored, capacity; /* capacity: what the byte budget allows, at least 1 */
    uint64_t next;              /* samples of the next point */
    eni_point last;
};

en_status eni_curve_open(const eni_curve_config *config, eni_curve **curve_out)
{
    eni_curve *curve = eni_alloc(sizeof *curve);
    if (curve == NULL) return EN_ENOMEM;
    curve->config = *config;
    uint64_t fit = config->budget / (config->count * sizeof(float) + 1);
    curve->capacity = fit < 1 ? 1 : fit > MAX_STORED ? MAX_STORED : (uint32_t)fit;
    curve->next = config->every;
    eni_curve_skip(curve, config->resumed);
    if (config->dir != NULL && config->dir[0] != 0) {
        char path[1024];
        snprintf(path, sizeof path, "%s/eval.jsonl", config->dir);
        en_status st = eni_lines_open(path, config->resumed, &curve->file);
        if (st != EN_OK) {
            eni_free(curve);
            return st;
        }
    }
    *curve_out = curve;
    return EN_OK;
}

int eni_curve_is_due(const eni_curve *curve, uint64_t samples)
{
    return curve->config.every > 0 && samples >= curve->next;
}

static void write_point(FILE *file, const eni_point *p)
{
    char loss[32] = "null"; /* JSON has no NaN */
    if (isfinite(p->loss)) snprintf(loss, sizeof loss, "%.9g", p->loss);
    fprintf(file,
            "{\"schema\":1,\"samples\":%" PRIu64 ",\"t\":%.6f,\"update\":%" PRIu64
            ",\"test_loss\":%s,\"test_accuracy\":%.9g}\n",
            p->samples, p->t, p->update, loss, p->accuracy);
}

static en_status evaluate_stored(eni_curve *curve)
{
    for (uint32_t i = 0; i < curve->nstored; i++) {
        eni_point *p = &curve->stored[i].point;
        EN_TRY(curve->config.evaluate(curve->config.user, curve->stored[i].flat, &p->loss, &p->accuracy));
        curve->last = *p;
        if (curve->file != NULL) write_point(curve->file, p);
        if (curve->config.on_point != NULL) curve->config.on_point(curve->config.user, p);
    }
    curve->nstored = 0;
    return EN_OK;
}

en_status eni_curve_add(eni_curve *curve, uint64_t samples, uint64_t update, double t, const float *flat,
                        int64_t *evaluated_ns_out)
{
    *evaluated_ns_out = 0;
    /* The final model may fall on the last point of the curve: it takes its place. */
    if (curve->nstored > 0 && curve->stored[curve->nstored - 1].point.samples == samples) curve->nstored--;
    if (curve->nstored == curve->capacity) {
        int64_t begin = eni_now_ns();
        EN_TRY(evaluate_stored(curve));
        *evaluated_ns_out = eni_now_ns() - begin;
    }
    stored *s = &curve->stored[curve->nstored];
    if (s->flat == NULL) s->flat = eni_alloc_array(curve->config.count, sizeof(float));
    if (s->flat == NULL) return EN_ENOMEM;
    memcpy(s->flat, flat, curve->config.count * sizeof(float));
    s->point = (eni_point){.samples = samples, .update = update, .t = t};
    curve->nstored++;
    eni_curve_skip(curve, samples);
    return EN_OK;
}

void eni_curve_skip(eni_curve *curve, uint64_t samples)
{
    while (curve->config.every > 0 && curve->next <= samples)
        curve->next += curve->config.every;
}

en_status eni_curve_flush(eni_curve *curve, int64_t *evaluated_ns_out)
{
    int64_t begin = eni_now_ns();
    EN_TRY(evaluate_stored(curve));
    if (curve->file != NULL) fflush(curve->file);
    *evaluated_ns_out = eni_now_ns() - begin;
    return EN_OK;
}

en_status eni_curve_finish(eni_curve *curve, eni_point *last_out)
{
    EN_TRY(evaluate_stored(curve));
    if (last_out != NULL) *last_out = curve->last;
    if (curve->file == NULL) return EN_OK;
    int failed = ferror(curve->file);
    failed |= fclose(curve->file) != 0;
    curve->file = NULL;
    if (failed) eni_error("curve", "cannot write eval.jsonl in %s: %s", curve->config.dir, strerror(errno));
    return failed ? EN_EIO : EN_OK;
}

void eni_curve_close(eni_curve *curve)
{
    if (curve == NULL) return;
    if (curve->file != NULL) fclose(curve->file);
    for (int i = 0; i < MAX_STORED; i++)
        eni_free(curve->stored[i].flat);
    eni_free(curve);
}
