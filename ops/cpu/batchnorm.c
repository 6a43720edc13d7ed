/* batchnorm.c - batch normalisation in as few passes over memory as possible. Forward reads x for its
 * moments, then x again for y. backward_weights reads x, y, dy and masks dy while it sums; backward_data
 * reads x and dy once more. All other data are numbers per channel. Sums go over fixed pieces of pixels, in
 * float inside a piece and in double over the pieces, added in order, so the bits do not depend on the
 * threads. Moments inside a piece are those of a few pixels at a time, merged as by Chan, Golub and LeVeque
 * (1979), of numbers less the piece's first pixel: nothing cancels, however far the mean is from 0. */
#include <math.h>
#include <string.h>

#include "ops/cpu/cpu.h"
#include "ops/multiversion.h"

enum {
    PIECE = 1024, /* pixels */
    BLOCK = 512   /* channels at a time */
};

/* (C) each; in `saved`. Without a backward the first two are in the workspace. */
typedef struct norm_terms {
    float *mean, *scale;           /* y = (x - mean) scale + b */
    float *inverse, *shift, *tilt; /* dx = (dy - shift - (x - mean) tilt) scale; scale = w inverse */
} norm_terms;

/* In the workspace. */
typedef struct norm_sums {
    double *first, *second; /* (C): over all pieces */
    float *pieces;          /* (pieces, 2, C) */
} norm_sums;

static int64_t padded(const en_plan *plan)
{
    return (plan->op.channels + 15) / 16 * 16;
}

static int64_t pixels_of(const en_plan *plan)
{
    return plan->op.x.n * plan->op.x.h * plan->op.x.w;
}

static int64_t pieces_of(const en_plan *plan)
{
    return eni_cpu_parts(pixels_of(plan), PIECE);
}

static norm_terms terms_of(const en_plan *plan, const en_args *args)
{
    float *at = plan->op.flags & EN_OP_FORWARD_ONLY ? args->workspace : args->saved;
    const int64_t c = padded(plan);
    return (norm_terms){at, at + c, at + 2 * c, at + 3 * c, at + 4 * c};
}

static norm_sums sums_of(const en_plan *plan, const en_args *args)
{
    double *at = args->workspace;
    const int64_t c = padded(plan);
    return (norm_sums){at, at + c, (float *)(at + 2 * c)};
}

static en_status batchnorm_prepare(en_plan *plan)
{
    const uint64_t c = (uint64_t)padded(plan), partial = (uint64_t)(pieces_of(plan) * plan->op.channels);
    if (plan->op.flags & EN_OP_FORWARD_ONLY) {
        plan->info.workspace_bytes = 2 * c * sizeof(float);
        return EN_OK;
    }
    plan->info.saved_bytes = 5 * c * sizeof(float);
    plan->info.workspace_bytes = 2 * c * sizeof(double) + 2 * partial * sizeof(float);
    return EN_OK;
}

/* ---- sums of a piece ----------------------------------------------------------------------------------- */

ENI_ALWAYS_INLINE float square(float a)
{
    return a * a;
}

/* Merges `n` pixels with known mean and squared gaps into the `before` pixels of a piece. */
ENI_ALWAYS_INLINE void join(float *mean, float *gaps, float its_mean, float its_gaps, float n, float before)
{
    const float way = its_mean - *mean;
    *mean += way * (n / (before + n));
    *gaps += its_gaps + way * (before * n / (before + n)) * way;
}

/* Up to BLOCK channels of a piece, c from one pixel to the next: means, less the first pixel, and sums of
 * squared gaps to them. Eight pixels are summed in memory order, which the processor prefetches, and read
 * again from its first-level cache. */
ENI_MULTIVERSION_SHORT static void piece_moments(float *restrict mean, float *restrict gaps,
                                                 const float *restrict first, int64_t pixels, int64_t c,
                                                 int64_t channels)
{
    const float *restrict x = first;
    float m[BLOCK];
    int64_t at = 0;
    memset(mean, 0, (size_t)channels * sizeof *mean);
    memset(gaps, 0, (size_t)channels * sizeof *gaps);
    for (; at + 8 <= pixels; at += 8, x += 8 * c) {
        memset(m, 0, (size_t)channels * sizeof *m);
        for (int64_t i = 0; i < 8; i++)
            for (int64_t k = 0; k < channels; k++)
                m[k] += (x[i * c + k] - first[k]) * 0.125f;
        for (int64_t k = 0; k < channels; k++) {
            const float o = first[k], its = m[k];
            const float upper = (square(x[k] - o - its) + square(x[c + k] - o - its)) +
                                (square(x[2 * c + k] - o - its) + square(x[3 * c + k] - o - its));
            const float lower = (square(x[4 * c + k] - o - its) + square(x[5 * c + k] - o - its)) +
                                (square(x[6 * c + k] - o - its) + square(x[7 * c + k] - o - its));
            join(&mean[k], &gaps[k], its, upper + lower, 8.0f, (float)at);
        }
    }
    for (; at < pixels; at++, x += c)
        for (int64_t k = 0; k < channels; k++)
            join(&mean[k], &gaps[k], x[k] - first[k], 0.0f, 1.0f, (float)at);
}

static void moments_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const int64_t c = plan->op.channels, all = pixels_of(plan);
    for (int64_t i = from; i < to; i++) {
        const int64_t at = i * PIECE, pixels = all - at < PIECE ? all - at : PIECE;
        const float *x = (const float *)args->x + at * c;
        float *mean = sums_of(plan, args).pieces + 2 * i * c;
        for (int64_t k = 0; k < c; k += BLOCK)
            piece_moments(mean + k, mean + c + k, x + k, pixels, c, c - k < BLOCK ? c - k : BLOCK);
    }
}

/* Adds dy, and dy (x - mean). Zeroes dy first where y is not positive, if there is a relu. */
ENI_ALWAYS_INLINE void piece_gradients(float *restrict db, float *restrict dw, float *restrict dy,
                                       const float *restrict x, const float *restrict y,
                                       const float *restrict mean, int64_t pixels, int64_t c, bool has_relu)
{
    memset(db, 0, (size_t)c * sizeof *db);
    memset(dw, 0, (size_t)c * sizeof *dw);
    for (int64_t at = 0; at < pixels; at++, x += c, y += c, dy += c)
        for (int64_t k = 0; k < c; k++) {
            const float d = has_relu && y[k] <= 0.0f ? 0.0f : dy[k];
            if (has_relu) dy[k] = d;
            db[k] += d;
            dw[k] += d * (x[k] - mean[k]);
        }
}

ENI_MULTIVERSION_SHORT static void piece_sums(float *db, float *dw, float *dy, const float *x, const float *y,
                                              const float *mean, int64_t pixels, int64_t c, bool has_relu)
{
    if (has_relu)
        piece_gradients(db, dw, dy, x, y, mean, pixels, c, true);
    else
        piece_gradients(db, dw, dy, x, y, mean, pixels, c, false);
}

static void gradients_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const int64_t c = plan->op.channels, all = pixels_of(plan);
    const norm_terms has = terms_of(plan, args);
    const bool has_relu = (plan->op.flags & EN_OP_FUSE_RELU) != 0;
    float *pieces = sums_of(plan, args).pieces;
    for (int64_t i = from; i < to; i++) {
        const int64_t at = i * PIECE, pixels = all - at < PIECE ? all - at : PIECE;
        const float *x = (const float *)args->x + at * c, *y = has_relu ? (const float *)args->y + at * c : x;
        piece_sums(pieces + 2 * i * c, pieces + (2 * i + 1) * c, (float *)args->dy + at * c, x, y, has.mean,
                   pixels, c, has_relu);
    }
}

/* sum += by x, in double. */
ENI_MULTIVERSION_SHORT static void add_scaled(double *restrict sum, double by, const float *restrict x,
                                              int64_t c)
{
    for (int64_t k = 0; k < c; k++)
        sum[k] += by * (double)x[k];
}

/* ---- forward ------------------------------------------------------------------------------------------- */

/* Mean and biased variance of the batch, from those of its pieces. */
static void join_moments(const en_plan *plan, const float *x, const norm_sums *of)
{
    const int64_t c = plan->op.channels, all = pixels_of(plan), pieces = pieces_of(plan);
    memset(of->first, 0, (size_t)c * sizeof(double));
    memset(of->second, 0, (size_t)c * sizeof(double));
    for (int64_t i = 0; i < pieces; i++) {
        const double part = (double)(i < pieces - 1 ? PIECE : all - i * PIECE) / (double)all;
        add_scaled(of->first, part, x + i * PIECE * c, c);
        add_scaled(of->first, part, of->pieces + 2 * i * c, c);
    }
    for (int64_t i = 0; i < pieces; i++) {
        const double pixels = (double)(i < pieces - 1 ? PIECE : all - i * PIECE);
        const float *first = x + i * PIECE * c, *mean = of->pieces + 2 * i * c, *gaps = mean + c;
        for (int64_t k = 0; k < c; k++) {
            const double way = (double)first[k] + (double)mean[k] - of->first[k];
            of->second[k] += ((double)gaps[k] + pixels * way * way) / (double)all;
        }
    }
}

/* The branches vanish when this is inlined. y may be x. */
ENI_ALWAYS_INLINE void scale_rows(float *y, const float *x, const float *x2, const float *mean,
                                  const float *scale, const float *b, int64_t pixels, int64_t c, bool adds,
                                  bool has_relu)
{
    for (int64_t at = 0; at < pixels; at++, x += c, x2 += c, y += c)
#pragma GCC ivdep
        for (int64_t k = 0; k < c; k++) {
            float value = (x[k] - mean[k]) * scale[k] + b[k];
            if (adds) value += x2[k];
            y[k] = has_relu && value <= 0.0f ? 0.0f : value;
        }
}

ENI_MULTIVERSION_SHORT static void normalise(float *y, const float *x, const float *x2, const float *mean,
                                             const float *scale, const float *b, int64_t pixels, int64_t c,
                                             uint32_t flags)
{
    switch (flags & (EN_OP_FUSE_ADD | EN_OP_FUSE_RELU)) {
    case 0: scale_rows(y, x, x, mean, scale, b, pixels, c, 0, 0); break;
    case EN_OP_FUSE_RELU: scale_rows(y, x, x, mean, scale, b, pixels, c, 0, 1); break;
    case EN_OP_FUSE_ADD: scale_rows(y, x, x2, mean, scale, b, pixels, c, 1, 0); break;
    default: scale_rows(y, x, x2, mean, scale, b, pixels, c, 1, 1);
    }
}

static void normalise_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const norm_terms has = terms_of(plan, args);
    const int64_t c = plan->op.channels, at = from * c;
    const float *x = (const float *)args->x + at, *x2 = plan->op.flags & EN_OP_FUSE_ADD ? args->x2 : args->x;
    normalise((float *)args->y + at, x, x2 + at, has.mean, has.scale, args->b, to - from, c, plan->op.flags);
}

/* A second thread does not pay below this many pixels. */
static int64_t grain(const en_plan *plan)
{
    return plan->op.channels < 4096 ? 4096 / plan->op.channels : 1;
}

/* The factors of channel k, for forward and for backward. */
static void set_scale(const en_plan *plan, const en_args *args, int64_t k, double mean, double var)
{
    const norm_terms has = terms_of(plan, args);
    const double inverse = 1 / sqrt(var + (double)plan->op.eps);
    has.mean[k] = (float)mean;
    has.scale[k] = (float)((double)((const float *)args->w)[k] * inverse);
    if (!(plan->op.flags & EN_OP_FORWARD_ONLY)) has.inverse[k] = (float)inverse;
}

static en_status batchnorm_forward(en_plan *plan, const en_args *args)
{
    if (plan->op.flags & EN_OP_FORWARD_ONLY) {
        const eni_running running = eni_ref_running(&plan->op, args->stats);
        for (int64_t k = 0; k < plan->op.channels; k++)
            set_scale(plan, args, k, (double)running.mean[k], (double)running.var[k]);
    } else {
        const norm_sums of = sums_of(plan, args);
        eni_cpu_split(plan, args, pieces_of(plan), 1, moments_part);
        join_moments(plan, args->x, &of);
        eni_ref_move_running(&plan->op, args->stats, of.first, of.second);
        for (int64_t k = 0; k < plan->op.channels; k++)
            set_scale(plan, args, k, of.first[k], of.second[k]);
    }
    eni_cpu_split(plan, args, pixels_of(plan), grain(plan), normalise_part);
    return EN_OK;
}

/* ---- backward ------------------------------------------------------------------------------------------ */

static en_status batchnorm_backward_weights(en_plan *plan, const en_args *args)
{
    const int64_t c = plan->op.channels;
    const double pixels = (double)pixels_of(plan);
    const norm_terms has = terms_of(plan, args);
    const norm_sums of = sums_of(plan, args);
    float *db = args->db, *dw = args->dw;
    eni_cpu_split(plan, args, pieces_of(plan), 1, gradients_part);
    memset(of.first, 0, (size_t)c * sizeof(double));
    memset(of.second, 0, (size_t)c * sizeof(double));
    for (int64_t i = 0; i < pieces_of(plan); i++) {
        add_scaled(of.first, 1, of.pieces + 2 * i * c, c);
        add_scaled(of.second, 1, of.pieces + (2 * i + 1) * c, c);
    }
    for (int64_t k = 0; k < c; k++) {
        const double inverse = (double)has.inverse[k];
        db[k] = (float)of.first[k];
        dw[k] = (float)(of.second[k] * inverse);
        has.shift[k] = (float)(of.first[k] / pixels);
        has.tilt[k] = (float)(of.second[k] * inverse * inverse / pixels);
    }
    return EN_OK;
}

/* dx may be dy. */
ENI_MULTIVERSION_SHORT static void input_gradient(float *dx, const float *dy, const float *x,
                                                  const norm_terms *has, int64_t pixels, int64_t c)
{
    const float *mean = has->mean, *scale = has->scale, *shift = has->shift, *tilt = has->tilt;
    for (int64_t at = 0; at < pixels; at++, dx += c, dy += c, x += c)
#pragma GCC ivdep
        for (int64_t k = 0; k < c; k++)
            dx[k] = (dy[k] - shift[k] - (x[k] - mean[k]) * tilt[k]) * scale[k];
}

static void input_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const norm_terms has = terms_of(plan, args);
    const int64_t c = plan->op.channels, at = from * c;
    input_gradient((float *)args->dx + at, (const float *)args->dy + at, (const float *)args->x + at, &has,
                   to - from, c);
}

static en_status batchnorm_backward_data(en_plan *plan, const en_args *args)
{
    eni_cpu_split(plan, args, pixels_of(plan), grain(plan), input_part);
    return EN_OK;
}

const eni_cpu_kernel eni_cpu_batchnorm = {
    .forward = batchnorm_forward,
    .backward_weights = batchnorm_backward_weights,
    .backward_data = batchnorm_backward_data,
    .prepare = batchnorm_prepare,
};
