/* linear.c - y = x w^T + b: three matrix products of oneDNN, on weights in PyTorch's order. A convolution
 * with one window that covers the whole image is such a layer, too: an image is a row of x, and only the
 * weights that meet a pixel are used. The last blocks of a residual network are of this kind if images are
 * small: 3 x 3 on 1 x 1, where one weight in nine counts. */
#include <string.h>

#include "core/memory.h"
#include "core/try.h"
#include "ops/cpu/cpu.h"

/* Inputs of one output. */
static int64_t inputs(const en_op *op)
{
    return op->x.h * op->x.w * op->x.c;
}

/* A transposed factor is the same memory read the other way round. oneDNN's inner product would need weights
 * in its own order (a reorder costs more than it gains), or else takes a slower path that allocates in every
 * call. */
static en_status linear_prepare(en_plan *plan)
{
    const int64_t n = plan->op.x.n, in = inputs(&plan->op), out = plan->op.channels;
    const bool has_bias = (plan->op.flags & EN_OP_BIAS) != 0;
    const eni_product_shape shapes[ENI_PASSES] = {
        [ENI_FORWARD] = {.m = n, .n = out, .k = in, .is_b_transposed = true, .has_bias = has_bias},
        [ENI_BACKWARD_WEIGHTS] = {.m = out, .n = in, .k = n, .is_a_transposed = true},
        [ENI_BACKWARD_DATA] = {.m = n, .n = in, .k = out}};
    for (int which = 0; which < eni_cpu_passes(plan); which++) {
        eni_dnnl_primitive *product = &plan->product[which];
        EN_TRY(eni_dnnl_product_init(&plan->ctx->dnnl, &shapes[which], which, product));
        eni_cpu_describe_pass(plan, which, "", product->name, eni_cpu_workspace(product));
    }
    return EN_OK;
}

static en_status linear_forward(en_plan *plan, const en_args *args)
{
    const void *const at[] = {args->x, args->w, args->y, args->workspace, args->b};
    EN_TRY(eni_cpu_run(plan, args, &plan->product[ENI_FORWARD], at));
    eni_cpu_relu_in_place(plan, args);
    return EN_OK;
}

/* Outputs [from, to) of db[o] = sum over n of dy[n,o], sample by sample. */
static void bias_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    float *db = (float *)args->db + from;
    memset(db, 0, (size_t)(to - from) * sizeof *db);
    for (int64_t n = 0; n < plan->y.n; n++)
        eni_cpu_add(db, (const float *)args->dy + n * plan->y.c + from, to - from);
}

static en_status linear_backward_weights(en_plan *plan, const en_args *args)
{
    const void *const at[] = {args->dy, args->x, args->dw, args->workspace};
    eni_cpu_relu_mask(plan, args);
    if (plan->op.flags & EN_OP_BIAS) eni_cpu_split(plan, args, plan->y.c, 1024, bias_part);
    return eni_cpu_run(plan, args, &plan->product[ENI_BACKWARD_WEIGHTS], at);
}

static en_status linear_backward_data(en_plan *plan, const en_args *args)
{
    const void *const at[] = {args->dy, args->w, args->dx, args->workspace};
    return eni_cpu_run(plan, args, &plan->product[ENI_BACKWARD_DATA], at);
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
