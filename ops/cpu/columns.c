/* columns.c - convolutions as products of matrices ("im2col", Chellapilla et al. 2006). The window of an
 * output pixel is a row of one matrix, KH * KW * C long:
 *
 *     y (pixels, O)             = columns of x (pixels, window)  w^T (window, O)
 *     dw (O, window)           += dy^T (O, pixels)  columns of x (pixels, window)
 *     columns (pixels, window)  = dy (pixels, O)  w (O, window), and each row is added to its window of dx
 *
 * A row's order is (KH, KW, C): neighbours in x stay neighbours. A last column of ones adds b in the first
 * product, and gives db in the second.
 *
 * Two kinds of convolution come here, each because of a weakness of oneDNN:
 *
 * - 1 x 1 with a stride, all three passes. oneDNN's backward pass by weights writes past its own workspace
 * unless the channels are a multiple of its block: wrong gradients, or a crash (uxlfoundation/oneDNN issue
 * 6035). - Channels that fill registers badly, the two backward passes. oneDNN works on 16 channels at a
 * time, so 20 inputs and 50 outputs cost as much as 32 and 64; in a row of the matrix 16 at a time fit almost
 * without rest.
 *
 * A thread takes one chunk at a time: a few images, so that their rows stay in its cache. dw is summed in
 * shares of the chunks, and the shares are added in order. Chunks and shares follow from the shape alone, and
 * each product runs on one thread, so the bits do not depend on the number of threads. */
#include <string.h>

#include "core/memory.h"
#include "core/try.h"
#include "ops/cpu/cpu.h"
#include "ops/multiversion.h"

enum {
    LANES = 16,              /* floats in a register */
    CHUNK_BYTES = 512 << 10, /* of its rows: part of a second-level cache */
    CHUNK_PIXELS = 512,      /* fewer do not pay for reading the weights */
    CHUNKS = 16,             /* if there are enough pixels: work for as many threads */
    SHARE_PIXELS = 512,      /* fewer do not pay for a sum of their own */
    SHARES = 16,
    MIN_OUTPUTS = 32, /* a column is written once and read for each output: fewer do not pay for it */
};

static int64_t padded(int64_t count)
{
    return (int64_t)eni_round_up((uint64_t)count, LANES);
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t window(const en_op *op)
{
    return op->kernel_h * op->kernel_w * op->x.c;
}

/* The window, and a one if there is a bias. */
static int64_t row_used(const en_op *op)
{
    return window(op) + (op->flags & EN_OP_BIAS ? 1 : 0);
}

/* Floats in a row: whole registers, padded with zeros. */
static int64_t row_length(const en_op *op)
{
    return padded(row_used(op));
}

bool eni_cpu_columns_fit(const en_op *op)
{
    return op->kernel_h * op->kernel_w == 1 && (op->stride_h > 1 || op->stride_w > 1);
}

bool eni_cpu_columns_backward_fit(const en_op *op)
{
    const int64_t work = op->x.c * op->channels, padded_work = padded(op->x.c) * padded(op->channels);
#ifndef __x86_64__
    return false; /* oneDNN's sgemm may be plain loops there */
#endif
    return op->channels >= MIN_OUTPUTS && window(op) >= 8 * LANES && padded_work * 4 >= work * 5;
}

/* ---- chunks and shares ---- */

static int64_t image_pixels(const en_plan *plan)
{
    return plan->y.h * plan->y.w;
}

/* Images in a chunk; the last chunk may have fewer. */
static int64_t chunk_images(const en_plan *plan)
{
    const int64_t pixels = image_pixels(plan);
    const int64_t fit = CHUNK_BYTES / (pixels * row_length(&plan->op) * (int64_t)sizeof(float));
    const int64_t wanted = larger(eni_cpu_parts(plan->y.n, CHUNKS), eni_cpu_parts(CHUNK_PIXELS, pixels));
    return smaller(larger(smaller(fit, wanted), 1), plan->y.n);
}

static int64_t chunks(const en_plan *plan)
{
    return eni_cpu_parts(plan->y.n, chunk_images(plan));
}

static int64_t shares(const en_plan *plan)
{
    const int64_t worth = larger(plan->y.n * image_pixels(plan) / SHARE_PIXELS, 1);
    return smaller(worth, smaller(SHARES, chunks(plan)));
}

/* Threads that have work in a pass. */
static int64_t workers(const en_plan *plan, int which)
{
    return smaller(plan->ctx->threads, which == ENI_BACKWARD_WEIGHTS ? shares(plan) : chunks(plan));
}

/* ---- the workspace: w in the matrix's order, or a sum of dw for each share; then the rows of each worker ---- */

static int64_t weights_floats(const en_plan *plan)
{
    return plan->op.channels * row_length(&plan->op);
}

static int64_t rows_floats(const en_plan *plan)
{
    return chunk_images(plan) * image_pixels(plan) * row_length(&plan->op);
}

static int64_t sums(const en_plan *plan, int which)
{
    return which == ENI_BACKWARD_WEIGHTS ? shares(plan) : 1;
}

static float *weights_of(const en_plan *plan, const en_args *args, int64_t share)
{
    return (float *)args->workspace + share * weights_floats(plan);
}

static float *rows_of(const en_plan *plan, const en_args *args, int which, int64_t worker)
{
    return weights_of(plan, args, sums(plan, which)) + worker * rows_floats(plan);
}

/* device.c recognises products that allocate in each call by "gemm:jit". */
void eni_cpu_columns_describe(en_plan *plan, int which)
{
    const int64_t floats =
        sums(plan, which) * weights_floats(plan) + workers(plan, which) * rows_floats(plan);
    eni_cpu_describe_pass(plan, which, "columns:", "gemm:jit", (uint64_t)floats * sizeof(float));
}

/* ---- between images and rows ---- */

/* Clips a window's row of KW * C values, which starts at `at`, perhaps outside, to an image's row of `width`
 * values: [from, to). */
static inline void clip(int64_t at, int64_t span, int64_t width, int64_t *from, int64_t *to)
{
    *from = at < 0 ? (-at < span ? -at : span) : 0;
    *to = at + span > width ? (width > at ? width - at : 0) : span;
    if (*to < *from) *to = *from;
}

ENI_MULTIVERSION static void gather_image(float *restrict row, const float *restrict image, const en_op *op,
                                          int64_t h, int64_t w)
{
    const int64_t width = op->x.w * op->x.c, span = op->kernel_w * op->x.c, end = window(op),
                  length = row_length(op);
    for (int64_t pixel = 0; pixel < h * w; pixel++, row += length) {
        const int64_t top = pixel / w * op->stride_h - op->pad_h;
        const int64_t left = (pixel % w * op->stride_w - op->pad_w) * op->x.c;
        int64_t from, to;
        clip(left, span, width, &from, &to);
        for (int64_t ky = 0; ky < op->kernel_h; ky++) {
            const bool is_inside = top + ky >= 0 && top + ky < op->x.h;
            const int64_t at = (top + ky) * width + left;
            float *part = row + ky * span;
            const int64_t begin = is_inside ? from : span, stop = is_inside ? to : span;
            for (int64_t k = 0; k < begin; k++)
                part[k] = 0.0f;
            for (int64_t k = begin; k < stop; k++)
                part[k] = image[at + k];
            for (int64_t k = stop; k < span; k++)
                part[k] = 0.0f;
        }
        for (int64_t k = end; k < length; k++)
            row[k] = k < row_used(op) ? 1.0f : 0.0f;
    }
}

ENI_MULTIVERSION static void add_image(float *restrict image, const float *restrict row, const en_op *op,
                                       int64_t h, int64_t w)
{
    const int64_t width = op->x.w * op->x.c, span = op->kernel_w * op->x.c, length = row_length(op);
    memset(image, 0, (size_t)(op->x.h * width) * sizeof *image);
    for (int64_t pixel = 0; pixel < h * w; pixel++, row += length) {
        const int64_t top = pixel / w * op->stride_h - op->pad_h;
        const int64_t left = (pixel % w * op->stride_w - op->pad_w) * op->x.c;
        int64_t from, to;
        clip(left, span, width, &from, &to);
        for (int64_t ky = 0; ky < op->kernel_h; ky++) {
            if (top + ky < 0 || top + ky >= op->x.h) continue;
            const int64_t at = (top + ky) * width + left;
            const float *part = row + ky * span;
            for (int64_t k = from; k < to; k++)
                image[at + k] += part[k];
        }
    }
}

/* ---- weights: (O, I, KH, KW) to (O, KH, KW, I) and back, of outputs [from, to) ---- */

static void weights_in(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const en_op *op = &plan->op;
    const int64_t taps = op->kernel_h * op->kernel_w, c = op->x.c, length = row_length(op);
    const float *w = (const float *)args->w + from * taps * c;
    float *row = weights_of(plan, args, 0) + from * length;
    for (int64_t o = from; o < to; o++, w += taps * c, row += length) {
        for (int64_t tap = 0; tap < taps; tap++)
            for (int64_t i = 0; i < c; i++)
                row[tap * c + i] = w[i * taps + tap];
        memset(row + taps * c, 0, (size_t)(length - taps * c) * sizeof *row);
        if (op->flags & EN_OP_BIAS && args->b != NULL) row[taps * c] = ((const float *)args->b)[o];
    }
}

/* Adds the shares of dw. */
static void weights_out(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const en_op *op = &plan->op;
    const int64_t taps = op->kernel_h * op->kernel_w, c = op->x.c, length = row_length(op);
    float *dw = (float *)args->dw + from * taps * c;
    for (int64_t o = from; o < to; o++, dw += taps * c) {
        float *row = weights_of(plan, args, 0) + o * length;
        for (int64_t share = 1; share < shares(plan); share++)
            eni_cpu_add(row, row + share * weights_floats(plan), length);
        for (int64_t i = 0; i < c; i++)
            for (int64_t tap = 0; tap < taps; tap++)
                dw[i * taps + tap] = row[tap * c + i];
        if (op->flags & EN_OP_BIAS) ((float *)args->db)[o] = row[taps * c];
    }
}

/* ---- a pass ---- */

/* The facts of a pass that its parts need, behind the arguments, which eni_cpu_split hands on. */
typedef struct pass {
    en_args args; /* first */
    eni_cpu_products *products;
} pass;

/* Some images, on one thread. */
typedef struct chunk {
    const pass *pass;
    int64_t first, images, pixels; /* pixels: of all its images */
    float *rows;                   /* (pixels, row) */
} chunk;

static chunk chunk_at(const en_plan *plan, const en_args *args, int64_t i, float *rows)
{
    const int64_t first = i * chunk_images(plan), images = smaller(chunk_images(plan), plan->y.n - first);
    return (chunk){(const pass *)(const void *)args, first, images, images * image_pixels(plan), rows};
}

static void gather(const en_plan *plan, const chunk *c)
{
    const int64_t each = en_extent_count(plan->op.x) / plan->op.x.n;
    const int64_t rows = image_pixels(plan) * row_length(&plan->op);
    const float *x = (const float *)c->pass->args.x + c->first * each;
    for (int64_t n = 0; n < c->images; n++)
        gather_image(c->rows + n * rows, x + n * each, &plan->op, plan->y.h, plan->y.w);
}

/* The chunks of workers [from, to): one, or all of one thread. */
static void forward_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const int64_t count = chunks(plan), each = workers(plan, ENI_FORWARD), row = row_length(&plan->op);
    const eni_cpu_factor w = {weights_of(plan, args, 0), row, .is_turned = true};
    for (int64_t i = count * from / each; i < count * to / each; i++) {
        const chunk c = chunk_at(plan, args, i, rows_of(plan, args, ENI_FORWARD, from));
        const eni_cpu_factor rows = {c.rows, row, .is_turned = false};
        gather(plan, &c);
        float *y = (float *)args->y + c.first * image_pixels(plan) * plan->y.c;
        eni_cpu_multiply(c.pass->products, c.pixels, plan->y.c, row_used(&plan->op), rows, w, y, plan->y.c,
                         false);
    }
}

/* The same, with dx. */
static void data_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const int64_t count = chunks(plan), all = workers(plan, ENI_BACKWARD_DATA), row = row_length(&plan->op);
    const int64_t pixels = image_pixels(plan), each = en_extent_count(plan->op.x) / plan->op.x.n;
    const eni_cpu_factor w = {weights_of(plan, args, 0), row, .is_turned = false};
    for (int64_t i = count * from / all; i < count * to / all; i++) {
        const chunk c = chunk_at(plan, args, i, rows_of(plan, args, ENI_BACKWARD_DATA, from));
        const eni_cpu_factor dy = {(const float *)args->dy + c.first * pixels * plan->y.c, plan->y.c,
                                   .is_turned = false};
        eni_cpu_multiply(c.pass->products, c.pixels, row, plan->y.c, dy, w, c.rows, row, false);
        for (int64_t n = 0; n < c.images; n++)
            add_image((float *)args->dx + (c.first + n) * each, c.rows + n * pixels * row, &plan->op,
                      plan->y.h, plan->y.w);
    }
}

/* The shares of workers [from, to), each a sum over its chunks. */
static void weights_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const int64_t count = chunks(plan), all = shares(plan), each = workers(plan, ENI_BACKWARD_WEIGHTS);
    const int64_t row = row_length(&plan->op);
    float *rows = rows_of(plan, args, ENI_BACKWARD_WEIGHTS, from);
    for (int64_t share = all * from / each; share < all * to / each; share++) {
        const int64_t begin = count * share / all;
        for (int64_t i = begin; i < count * (share + 1) / all; i++) {
            const chunk c = chunk_at(plan, args, i, rows);
            const float *dy = (const float *)args->dy + c.first * image_pixels(plan) * plan->y.c;
            const eni_cpu_factor turned_dy = {dy, plan->y.c, .is_turned = true},
                                 columns = {rows, row, .is_turned = false};
            gather(plan, &c);
            eni_cpu_multiply(c.pass->products, plan->y.c, row, c.pixels, turned_dy, columns,
                             weights_of(plan, args, share), row, i > begin);
        }
    }
}

/* A pass over its workers, without the work on the weights. */
static en_status run_part(const en_plan *plan, const en_args *args, int which, eni_cpu_part_fn part)
{
    eni_cpu_products products;
    const pass p = {*args, &products};
    eni_cpu_products_begin(&products);
    eni_cpu_split(plan, &p.args, workers(plan, which), 1, part);
    return eni_cpu_products_end(&products);
}

en_status eni_cpu_columns_backward_weights(en_plan *plan, const en_args *args)
{
    EN_TRY(run_part(plan, args, ENI_BACKWARD_WEIGHTS, weights_part));
    eni_cpu_split(plan, args, plan->op.channels, 1, weights_out);
    return EN_OK;
}

en_status eni_cpu_columns_backward_data(en_plan *plan, const en_args *args)
{
    en_args without_bias = *args;
    without_bias.b = NULL; /* not read here */
    eni_cpu_split(plan, &without_bias, plan->op.channels, 1, weights_in);
    return run_part(plan, args, ENI_BACKWARD_DATA, data_part);
}

/* ---- convolutions with all passes here ---- */

static en_status columns_forward(en_plan *plan, const en_args *args)
{
    eni_cpu_split(plan, args, plan->op.channels, 1, weights_in);
    EN_TRY(run_part(plan, args, ENI_FORWARD, forward_part));
    eni_cpu_relu_in_place(plan, args);
    return EN_OK;
}

static en_status columns_backward_weights(en_plan *plan, const en_args *args)
{
    eni_cpu_relu_mask(plan, args);
    return eni_cpu_columns_backward_weights(plan, args);
}

static en_status columns_prepare(en_plan *plan)
{
    for (int which = 0; which < eni_cpu_passes(plan); which++)
        eni_cpu_columns_describe(plan, which);
    return EN_OK;
}

const eni_cpu_kernel eni_cpu_columns = {
    .forward = columns_forward,
    .backward_weights = columns_backward_weights,
    .backward_data = eni_cpu_columns_backward_data,
    .prepare = columns_prepare,
};
