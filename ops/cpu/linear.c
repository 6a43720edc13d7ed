/* linear.c - y = x w^T + b: three matrix products of oneDNN, on weights in PyTorch's order. A convolution
 * with one window that covers the whole image is such a layer, too: an image is a row of x, and only the
 * weights that meet a pixel are used. The last blocks of a residual network are of this kind if images are
 * small: 3 x 3 on 1 x 1, where one weight in nine counts. In bf16 1 x 1 with a stride is one, too: the pixels
 * that it meets are the rows of x (float32 has columns.c). */
#include <string.h>

#include "core/memory.h"
#include "core/try.h"
#include "ops/cpu/cpu.h"

/* Inputs of one output. */
static int64_t inputs(const en_op *op)
{
    return eni_cpu_columns_fit(op) ? op->x.c : op->x.h * op->x.w * op->x.c;
}

static bool has_stride(const en_plan *plan)
{
    return plan->ctx->dnnl.is_bf16 && eni_cpu_columns_fit(&plan->op);
}

static int64_t rows(const en_plan *plan)
{
    return plan->y.n * plan->y.h * plan->y.w;
}

/* The bytes of the factors of a pass, rounded; of a convolution with a stride also the rows of dx. */
static uint64_t factors_bytes(const en_plan *plan, int which)
{
    const uint64_t x = eni_cpu_factor_bytes(plan, rows(plan) * inputs(&plan->op)),
                   w = eni_cpu_factor_bytes(plan, plan->op.channels * inputs(&plan->op)),
                   dy = eni_cpu_factor_bytes(plan, rows(plan) * plan->op.channels);
    if (which == ENI_BACKWARD_DATA) return dy + w + (has_stride(plan) ? 2 * x : 0);
    return which == ENI_FORWARD ? x + w : dy + x;
}

/* A transposed factor is the same memory read the other way round. oneDNN's inner product would need weights
 * in its own order (a reorder costs more than it gains), or else takes a slower path that allocates in every
 * call. */
static en_status linear_prepare(en_plan *plan)
{
    const int64_t n = rows(plan), in = inputs(&plan->op), out = plan->op.channels;
    const bool has_bias = (plan->op.flags & EN_OP_BIAS) != 0;
    const eni_product_shape shapes[ENI_PASSES] = {
        [ENI_FORWARD] = {.m = n, .n = out, .k = in, .is_b_transposed = true, .has_bias = has_bias},
        [ENI_BACKWARD_WEIGHTS] = {.m = out, .n = in, .k = n, .is_a_transposed = true},
        [ENI_BACKWARD_DATA] = {.m = n, .n = in, .k = out}};
    for (int which = 0; which < eni_cpu_passes(plan); which++) {
        eni_dnnl_primitive *product = &plan->product[which];
        EN_TRY(eni_dnnl_product_init(&plan->ctx->dnnl, &shapes[which], which, product));
        eni_cpu_describe_pass(plan, which, "", product->name,
                              factors_bytes(plan, which) + eni_cpu_workspace(product));
    }
    return EN_OK;
}

/* ---- the rows of x, which are x itself but for a stride ---- */

/* The pixel of x that row `row` of y meets; -1 in the padding. */
static int64_t pixel_of(const en_plan *plan, int64_t row)
{
    const en_op *op = &plan->op;
    const en_extent x = op->x, y = plan->y;
    const int64_t h = row / y.w % y.h * op->stride_h - op->pad_h, w = row % y.w * op->stride_w - op->pad_w;
    const bool is_inside = h >= 0 && h < x.h && w >= 0 && w < x.w;
    return is_inside ? (row / (y.h * y.w) * x.h + h) * x.w + w : -1;
}

/* Rows [from, to) of the rounded x, to y. */
static void gather_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const int64_t c = plan->op.x.c;
    for (int64_t row = from; row < to; row++) {
        const int64_t pixel = pixel_of(plan, row);
        uint16_t *at = (uint16_t *)args->y + row * c;
        if (pixel < 0)
            memset(at, 0, (size_t)c * sizeof *at);
        else
            eni_cpu_round(at, (const float *)args->x + pixel * c, c);
    }
}

/* The pixels of images [from, to) of dx, from the rows in y; no two rows meet the same one. */
static void scatter_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const int64_t c = plan->op.x.c, image = plan->op.x.h * plan->op.x.w * c, each = plan->y.h * plan->y.w;
    memset((float *)args->dx + from * image, 0, (size_t)((to - from) * image) * sizeof(float));
    for (int64_t row = from * each; row < to * each; row++) {
        const int64_t pixel = pixel_of(plan, row);
        if (pixel < 0) continue;
        memcpy((float *)args->dx + pixel * c, (const float *)args->y + row * c, (size_t)c * sizeof(float));
    }
}

/* As eni_cpu_factor_in. */
static const void *rows_in(const en_plan *plan, const en_args *args, void **area)
{
    const int64_t count = rows(plan) * inputs(&plan->op);
    const en_args to = {.x = args->x, .y = *area};
    if (!has_stride(plan)) return eni_cpu_factor_in(plan, args->x, count, area);
    eni_cpu_split(plan, &to, rows(plan), 1, gather_part);
    *area = (char *)*area + eni_cpu_factor_bytes(plan, count);
    return to.y;
}

/* ---- the passes ---- */

static en_status linear_forward(en_plan *plan, const en_args *args)
{
    void *area = args->workspace;
    const void *x = rows_in(plan, args, &area);
    const void *w = eni_cpu_factor_in(plan, args->w, plan->op.channels * inputs(&plan->op), &area);
    const void *const at[] = {x, w, args->y, area, args->b};
    EN_TRY(eni_cpu_run(plan, args, &plan->product[ENI_FORWARD], at));
    eni_cpu_relu_in_place(plan, args);
    return EN_OK;
}

/* Outputs [from, to) of db[o] = sum over n of dy[n,o], sample by sample. */
static void bias_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    float *db = (float *)args->db + from;
    memset(db, 0, (size_t)(to - from) * sizeof *db);
    for (int64_t n = 0; n < rows(plan); n++)
        eni_cpu_add(db, (const float *)args->dy + n * plan->y.c + from, to - from);
}

static en_status linear_backward_weights(en_plan *plan, const en_args *args)
{
    void *area = args->workspace;
    eni_cpu_relu_mask(plan, args);
    if (plan->op.flags & EN_OP_BIAS) eni_cpu_split(plan, args, plan->y.c, 1024, bias_part);
    const void *dy = eni_cpu_factor_in(plan, args->dy, rows(plan) * plan->y.c, &area);
    const void *x = rows_in(plan, args, &area);
    const void *const at[] = {dy, x, args->dw, area};
    return eni_cpu_run(plan, args, &plan->product[ENI_BACKWARD_WEIGHTS], at);
}

static en_status linear_backward_data(en_plan *plan, const en_args *args)
{
    const int64_t in = inputs(&plan->op);
    void *area = args->workspace;
    const void *dy = eni_cpu_factor_in(plan, args->dy, rows(plan) * plan->y.c, &area);
    const void *w = eni_cpu_factor_in(plan, args->w, plan->op.channels * in, &area);
    const en_args scatter = {.dx = args->dx, .y = area};
    if (has_stride(plan)) area = (char *)area + 2 * eni_cpu_factor_bytes(plan, rows(plan) * in);
    const void *const at[] = {dy, w, has_stride(plan) ? scatter.y : args->dx, area};
    EN_TRY(eni_cpu_run(plan, args, &plan->product[ENI_BACKWARD_DATA], at));
    if (has_stride(plan)) eni_cpu_split(plan, &scatter, plan->y.n, 1, scatter_part);
    return EN_OK;
}

const eni_cpu_kernel eni_cpu_linear = {
    .forward = linear_forward,
    .backward_weights = linear_backward_weights,
    .backward_data = linear_backward_data,
    .prepare = linear_prepare,
};

/* ---- a convolution of one window: copies its weights to (O, H, W, C), and dw back ---- */

bool eni_cpu_one_window_fit(const en_op *op)
{
    const en_extent y = eni_ref_output(op);
    return y.h == 1 && y.w == 1 && op->x.h + op->pad_h <= op->kernel_h && op->x.w + op->pad_w <= op->kernel_w;
}

/* Whole lines. */
static int64_t taken_floats(const en_op *op)
{
    return (int64_t)eni_round_up((uint64_t)(op->channels * inputs(op)), ENI_LINE / sizeof(float));
}

/* The index of the weight of output o, channel 0 that meets pixel (h, w); the next channel's is KH * KW
 * higher. */
static int64_t tap_of(const en_op *op, int64_t o, int64_t h, int64_t w)
{
    return (o * op->x.c * op->kernel_h + h + op->pad_h) * op->kernel_w + w + op->pad_w;
}

static void weights_in(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const en_op *op = &plan->op;
    const int64_t taps = op->kernel_h * op->kernel_w;
    float *taken = (float *)args->workspace + from * inputs(op);
    for (int64_t o = from; o < to; o++)
        for (int64_t p = 0; p < op->x.h * op->x.w; p++, taken += op->x.c) {
            const float *w = (const float *)args->w + tap_of(op, o, p / op->x.w, p % op->x.w);
            for (int64_t c = 0; c < op->x.c; c++)
                taken[c] = w[c * taps];
        }
}

static void dw_out(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const en_op *op = &plan->op;
    const int64_t taps = op->kernel_h * op->kernel_w, each = op->x.c * taps;
    const float *taken = (const float *)args->workspace + from * inputs(op);
    memset((float *)args->dw + from * each, 0, (size_t)((to - from) * each) * sizeof(float));
    for (int64_t o = from; o < to; o++)
        for (int64_t p = 0; p < op->x.h * op->x.w; p++, taken += op->x.c) {
            float *dw = (float *)args->dw + tap_of(op, o, p / op->x.w, p % op->x.w);
            for (int64_t c = 0; c < op->x.c; c++)
                dw[c * taps] = taken[c];
        }
}

/* The arguments of the linear layer: the copied weights lie in front of the workspace. */
static en_args linear_args(const en_plan *plan, const en_args *args)
{
    en_args linear = *args;
    linear.w = linear.dw = args->workspace;
    linear.workspace = (float *)args->workspace + taken_floats(&plan->op);
    return linear;
}

static en_status one_window_prepare(en_plan *plan)
{
    EN_TRY(linear_prepare(plan));
    plan->info.workspace_bytes += (uint64_t)taken_floats(&plan->op) * sizeof(float);
    return EN_OK;
}

static en_status one_window_forward(en_plan *plan, const en_args *args)
{
    const en_args linear = linear_args(plan, args);
    eni_cpu_split(plan, args, plan->op.channels, 1, weights_in);
    return linear_forward(plan, &linear);
}

static en_status one_window_backward_weights(en_plan *plan, const en_args *args)
{
    const en_args linear = linear_args(plan, args);
    EN_TRY(linear_backward_weights(plan, &linear));
    eni_cpu_split(plan, args, plan->op.channels, 1, dw_out);
    return EN_OK;
}

static en_status one_window_backward_data(en_plan *plan, const en_args *args)
{
    const en_args linear = linear_args(plan, args);
    eni_cpu_split(plan, args, plan->op.channels, 1, weights_in);
    return linear_backward_data(plan, &linear);
}

const eni_cpu_kernel eni_cpu_one_window = {
    .forward = one_window_forward,
    .backward_weights = one_window_backward_weights,
    .backward_data = one_window_backward_data,
    .prepare = one_window_prepare,
};
