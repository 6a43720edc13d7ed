/* columns.c - the backward passes of a convolution as products of matrices ("im2col", Chellapilla et al.
 * 2006).
 *
 * oneDNN's own backward kernels work on 16 channels at a time: 20 inputs and 50 outputs cost what 32 and 64
 * would. Here the window of an output pixel is a row of one matrix, KH * KW * C long, in which 16 at a time
 * fit almost without rest:
 *
 *     dw (O, window)      += dy^T (O, pixels)  columns of x (pixels, window)
 *     columns (pixels, window) = dy (pixels, O)  w (O, window), and each row is added to its window of dx
 *
 * The pixels of a few images at a time, so that the matrix stays in the cache. In a row the window's order is
 * (KH, KW, C): what lies side by side in x stays so. A last column of ones makes db of the same product. */
#include <string.h>

#include "core/memory.h"
#include "core/try.h"
#include "ops/cpu/cpu.h"
#include "ops/multiversion.h"

enum {
    LANES = 16,              /* floats of a register */
    CHUNK_BYTES = 512 << 10, /* of the matrix, per thread: a part of a second-level cache */
    MIN_OUTPUTS = 32, /* a column is written once and read for each output: too few do not pay for it */
};

static int64_t padded(int64_t count)
{
    return (int64_t)eni_round_up((uint64_t)count, LANES);
}

static int64_t window(const en_op *op)
{
    return op->kernel_h * op->kernel_w * op->x.c;
}

/* Elements of a row of the matrix: the window, the one, and nothing of interest up to a whole register. Rows
 * with a gap between them would make oneDNN pick a product that allocates, rows that end anywhere a slower
 * one. */
static int64_t row_length(const en_op *op)
{
    return padded(window(op) + 1);
}

int eni_cpu_columns_fit(const en_op *op)
{
    const int64_t work = op->x.c * op->channels, padded_work = padded(op->x.c) * padded(op->channels);
    return op->channels >= MIN_OUTPUTS && window(op) >= 8 * LANES && padded_work * 4 >= work * 5;
}

/* Images of a chunk: as many as the cache takes, and a divisor of the batch. */
static int64_t chunk_images(const en_plan *plan)
{
    const int64_t image_bytes = plan->y.h * plan->y.w * row_length(&plan->op) * (int64_t)sizeof(float);
    int64_t images = (int64_t)CHUNK_BYTES * plan->ctx->threads / image_bytes;
    if (images > plan->y.n) images = plan->y.n;
    while (images > 1 && plan->y.n % images != 0)
        images--;
    return images > 1 ? images : 1;
}

/* ---- the workspace: the matrix of a chunk, the weights in its order, oneDNN's scratch ---- */

static int64_t matrix_floats(const en_plan *plan)
{
    return plan->images * plan->y.h * plan->y.w * row_length(&plan->op);
}

static int64_t weights_floats(const en_plan *plan)
{
    return plan->op.channels * row_length(&plan->op);
}

static float *matrix(const en_args *args)
{
    return args->workspace;
}

static float *weights(const en_plan *plan, const en_args *args)
{
    return matrix(args) + matrix_floats(plan);
}

static void *scratch(const en_plan *plan, const en_args *args)
{
    return weights(plan, args) + weights_floats(plan);
}

/* ---- prepare ---- */

static en_status prepare_pass(en_plan *plan, int which)
{
    const en_op *op = &plan->op;
    const int64_t pixels = plan->images * plan->y.h * plan->y.w, is_weights = which == ENI_BACKWARD_WEIGHTS;
    const eni_product_shape shape = {.m = is_weights ? op->channels : pixels,
                                     .n = row_length(op),
                                     .k = is_weights ? pixels : op->channels,
                                     .is_a_transposed = (int)is_weights,
                                     .adds = (int)is_weights};
    eni_dnnl_primitive *product = &plan->product[which];
    EN_TRY(eni_dnnl_product_init(&plan->ctx->dnnl, &shape, product));
    eni_cpu_describe_pass(plan, which, "columns:", product->name,
                          (uint64_t)(matrix_floats(plan) + weights_floats(plan)) * sizeof(float) +
                              product->scratch_bytes);
    return EN_OK;
}

en_status eni_cpu_columns_prepare(en_plan *plan)
{
    plan->images = chunk_images(plan);
    EN_TRY(prepare_pass(plan, ENI_BACKWARD_WEIGHTS));
    return plan->op.flags & EN_OP_NO_DX ? EN_OK : prepare_pass(plan, ENI_BACKWARD_DATA);
}

/* ---- between images and the matrix ---- */

/* The arguments as a chunk sees them that starts at image `first`. */
static en_args chunk_at(const en_plan *plan, const en_args *args, int64_t first)
{
    const en_extent x = plan->op.x, y = plan->y;
    en_args chunk = *args;
    if (args->x) chunk.x = (const float *)args->x + first * x.h * x.w * x.c;
    if (args->dx) chunk.dx = (float *)args->dx + first * x.h * x.w * x.c;
    chunk.dy = (float *)args->dy + first * y.h * y.w * y.c;
    return chunk;
}

/* The part [from, to) of a window's row of KW * C values that lies inside an image's row of `width` values;
 * the window starts at `at`, which may be outside. */
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
            const int is_inside = top + ky >= 0 && top + ky < op->x.h;
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
            row[k] = k == end ? 1.0f : 0.0f;
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

/* Images [from, to) of a chunk. */
static void gather_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const en_extent x = plan->op.x, y = plan->y;
    const int64_t stride = row_length(&plan->op);
    for (int64_t n = from; n < to; n++)
        gather_image(matrix(args) + n * y.h * y.w * stride, (const float *)args->x + n * x.h * x.w * x.c,
                     &plan->op, y.h, y.w);
}

static void add_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const en_extent x = plan->op.x, y = plan->y;
    const int64_t stride = row_length(&plan->op);
    for (int64_t n = from; n < to; n++)
        add_image((float *)args->dx + n * x.h * x.w * x.c, matrix(args) + n * y.h * y.w * stride, &plan->op,
                  y.h, y.w);
}

/* ---- weights: (O, I, KH, KW) to (O, KH, KW, I) and back ---- */

static void weights_in(const en_plan *plan, const en_args *args)
{
    const int64_t taps = plan->op.kernel_h * plan->op.kernel_w, c = plan->op.x.c,
                  stride = row_length(&plan->op);
    const float *from = args->w;
    float *to = weights(plan, args);
    for (int64_t o = 0; o < plan->op.channels; o++, from += taps * c, to += stride) {
        for (int64_t tap = 0; tap < taps; tap++)
            for (int64_t i = 0; i < c; i++)
                to[tap * c + i] = from[i * taps + tap];
        for (int64_t k = taps * c; k < stride; k++)
            to[k] = 0.0f;
    }
}

static void weights_out(const en_plan *plan, const en_args *args)
{
    const int64_t taps = plan->op.kernel_h * plan->op.kernel_w, c = plan->op.x.c,
                  stride = row_length(&plan->op);
    const float *from = weights(plan, args);
    float *to = args->dw;
    for (int64_t o = 0; o < plan->op.channels; o++, from += stride, to += taps * c) {
        for (int64_t i = 0; i < c; i++)
            for (int64_t tap = 0; tap < taps; tap++)
                to[i * taps + tap] = from[tap * c + i];
        if (plan->op.flags & EN_OP_BIAS) ((float *)args->db)[o] = from[taps * c];
    }
}

/* ---- run ---- */

en_status eni_cpu_columns_backward_weights(en_plan *plan, const en_args *args)
{
    float *sum = weights(plan, args);
    void *columns = matrix(args), *space = scratch(plan, args);
    memset(sum, 0, (size_t)weights_floats(plan) * sizeof *sum);
    for (int64_t first = 0; first < plan->y.n; first += plan->images) {
        const en_args chunk = chunk_at(plan, args, first);
        eni_cpu_split(plan, &chunk, plan->images, 1, gather_part);
        const void *const at[] = {chunk.dy, columns, sum, space};
        EN_TRY(eni_cpu_run(plan, &plan->product[ENI_BACKWARD_WEIGHTS], at));
    }
    weights_out(plan, args);
    return EN_OK;
}

en_status eni_cpu_columns_backward_data(en_plan *plan, const en_args *args)
{
    void *w = weights(plan, args), *columns = matrix(args), *space = scratch(plan, args);
    weights_in(plan, args);
    for (int64_t first = 0; first < plan->y.n; first += plan->images) {
        const en_args chunk = chunk_at(plan, args, first);
        const void *const at[] = {chunk.dy, w, columns, space};
        EN_TRY(eni_cpu_run(plan, &plan->product[ENI_BACKWARD_DATA], at));
        eni_cpu_split(plan, &chunk, plan->images, 1, add_part);
    }
    return EN_OK;
}
