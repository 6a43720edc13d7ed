/* batchnorm.c - batch normalisation as defined (include/entrain/op.h), sums and arithmetic in double. The
 * mean first, then the variance around it: two passes over x, so that nothing is lost if the mean is
 * large. */
#include <math.h>
#include <string.h>

#include "ops/ref/ref.h"

/* (C) each: of forward, and of backward_weights for backward_data. In `saved`; without a backward the first
 * two are in the workspace. */
typedef struct norm_values {
    double *mean, *inverse; /* of the deviation: 1 / sqrt(var + eps) */
    double *db, *dw;
} norm_values;

static norm_values values_of(const en_op *op, const en_args *args)
{
    double *at = op->flags & EN_OP_FORWARD_ONLY ? args->workspace : args->saved;
    const int64_t c = op->channels;
    return (norm_values){at, at + c, at + 2 * c, at + 3 * c};
}

static uint64_t batchnorm_saved(const en_op *op)
{
    return (uint64_t)op->channels * 4 * sizeof(double);
}

static uint64_t batchnorm_workspace(const en_op *op)
{
    return op->flags & EN_OP_FORWARD_ONLY ? (uint64_t)op->channels * 2 * sizeof(double) : 0;
}

static int64_t pixels_of(const en_op *op)
{
    return op->x.n * op->x.h * op->x.w;
}

/* ---- running statistics -------------------------------------------------------------------------------- */

eni_running eni_ref_running(const en_op *op, float *stats)
{
    const int64_t padded = (en_op_stats(op) - 16) / 2;
    return (eni_running){stats, stats + padded, (int64_t *)(void *)(stats + 2 * padded)};
}

void eni_ref_move_running(const en_op *op, float *stats, const double *mean, const double *var)
{
    const double count = (double)pixels_of(op), unbiased = count / (count - 1), part = (double)op->momentum;
    if (stats == NULL) return;
    for (int64_t k = 0; k < op->channels; k++)
        if (!isfinite((float)mean[k]) || !isfinite((float)(var[k] * unbiased))) return;
    const eni_running running = eni_ref_running(op, stats);
    for (int64_t k = 0; k < op->channels; k++) {
        running.mean[k] = (float)((1 - part) * (double)running.mean[k] + part * mean[k]);
        running.var[k] = (float)((1 - part) * (double)running.var[k] + part * var[k] * unbiased);
    }
    ++*running.batches;
}

/* ---- forward ------------------------------------------------------------------------------------------- */

/* Mean and biased variance over the pixels. */
static void take_moments(const en_op *op, const float *x, double *mean, double *var)
{
    const int64_t c = op->channels, pixels = pixels_of(op);
    memset(mean, 0, (size_t)c * sizeof *mean);
    memset(var, 0, (size_t)c * sizeof *var);
    for (int64_t at = 0; at < pixels; at++)
        for (int64_t k = 0; k < c; k++)
            mean[k] += (double)x[at * c + k];
    for (int64_t k = 0; k < c; k++)
        mean[k] /= (double)pixels;
    for (int64_t at = 0; at < pixels; at++)
        for (int64_t k = 0; k < c; k++) {
            const double gap = (double)x[at * c + k] - mean[k];
            var[k] += gap * gap;
        }
    for (int64_t k = 0; k < c; k++)
        var[k] /= (double)pixels;
}

static en_status batchnorm_forward(const en_op *op, const en_args *args)
{
    const norm_values has = values_of(op, args);
    const int64_t c = op->channels, pixels = pixels_of(op);
    const float *x = args->x, *x2 = op->flags & EN_OP_FUSE_ADD ? args->x2 : NULL, *w = args->w, *b = args->b;
    float *y = args->y;
    if (op->flags & EN_OP_FORWARD_ONLY) {
        const eni_running running = eni_ref_running(op, args->stats);
        for (int64_t k = 0; k < c; k++) {
            has.mean[k] = (double)running.mean[k];
            has.inverse[k] = (double)running.var[k];
        }
    } else {
        take_moments(op, x, has.mean, has.inverse);
        eni_ref_move_running(op, args->stats, has.mean, has.inverse);
    }
    for (int64_t k = 0; k < c; k++)
        has.inverse[k] = 1 / sqrt(has.inverse[k] + (double)op->eps);
    for (int64_t at = 0; at < pixels; at++)
        for (int64_t k = 0; k < c; k++) {
            const int64_t i = at * c + k;
            const double normal = ((double)x[i] - has.mean[k]) * has.inverse[k];
            y[i] = (float)(normal * (double)w[k] + (double)b[k] + (x2 != NULL ? (double)x2[i] : 0.0));
        }
    if (op->flags & EN_OP_FUSE_RELU) eni_ref_clamp(y, y, pixels * c);
    return EN_OK;
}

/* ---- backward ------------------------------------------------------------------------------------------ */

static en_status batchnorm_backward_weights(const en_op *op, const en_args *args)
{
    const norm_values has = values_of(op, args);
    const int64_t c = op->channels, pixels = pixels_of(op);
    const float *x = args->x, *dy = args->dy;
    float *dw = args->dw, *db = args->db;
    if (op->flags & EN_OP_FUSE_RELU) eni_ref_mask(args->dy, args->dy, args->y, pixels * c);
    memset(has.db, 0, (size_t)c * sizeof *has.db);
    memset(has.dw, 0, (size_t)c * sizeof *has.dw);
    for (int64_t at = 0; at < pixels; at++)
        for (int64_t k = 0; k < c; k++) {
            const int64_t i = at * c + k;
            has.db[k] += (double)dy[i];
            has.dw[k] += (double)dy[i] * (((double)x[i] - has.mean[k]) * has.inverse[k]);
        }
    for (int64_t k = 0; k < c; k++) {
        db[k] = (float)has.db[k];
        dw[k] = (float)has.dw[k];
    }
    return EN_OK;
}

static en_status batchnorm_backward_data(const en_op *op, const en_args *args)
{
    const norm_values has = values_of(op, args);
    const int64_t c = op->channels, pixels = pixels_of(op);
    const float *x = args->x, *dy = args->dy, *w = args->w;
    float *dx = args->dx;
    for (int64_t at = 0; at < pixels; at++)
        for (int64_t k = 0; k < c; k++) {
            const int64_t i = at * c + k;
            const double normal = ((double)x[i] - has.mean[k]) * has.inverse[k];
            const double gap = (double)dy[i] - (has.db[k] + normal * has.dw[k]) / (double)pixels;
            dx[i] = (float)((double)w[k] * has.inverse[k] * gap);
        }
    return EN_OK;
}

const eni_ref_kernel eni_ref_batchnorm = {.forward = batchnorm_forward,
                                          .backward_weights = batchnorm_backward_weights,
                                          .backward_data = batchnorm_backward_data,
                                          .saved_bytes = batchnorm_saved,
                                          .workspace_bytes = batchnorm_workspace};
