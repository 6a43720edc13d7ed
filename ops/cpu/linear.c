/* linear.c - y = x w^T + b: three matrix products of oneDNN, on weights in PyTorch's order. */
#include <string.h>

#include "core/try.h"
#include "ops/cpu/cpu.h"
#include "ops/multiversion.h"

/* A transposed factor is the same memory read the other way round. oneDNN's inner product would want weights in
 * an order of its own (a reorder costs more than it gains), or else takes a slower way that allocates in every
 * call. */
static en_status linear_prepare(en_plan *plan)
{
    const int64_t n = plan->op.x.n, in = plan->op.x.c, out = plan->op.channels;
    const int has_bias = (plan->op.flags & EN_OP_BIAS) != 0;
    const eni_product_shape shapes[ENI_PASSES] = {
        [ENI_FORWARD] = {.m = n, .n = out, .k = in, .is_b_transposed = 1, .has_bias = has_bias},
        [ENI_BACKWARD_WEIGHTS] = {.m = out, .n = in, .k = n, .is_a_transposed = 1},
        [ENI_BACKWARD_DATA] = {.m = n, .n = in, .k = out}};
    for (int which = 0; which < eni_cpu_passes(plan); which++) {
        eni_dnnl_primitive *product = &plan->product[which];
        EN_TRY(eni_dnnl_product_init(&plan->ctx->dnnl, &shapes[which], product));
        eni_cpu_describe_pass(plan, which, "", product->name, product->scratch_bytes);
    }
    return EN_OK;
}

static en_status linear_forward(en_plan *plan, const en_args *args)
{
    const void *const at[] = {args->x, args->w, args->y, args->workspace, args->b};
    EN_TRY(eni_cpu_run(plan, &plan->product[ENI_FORWARD], at));
    eni_cpu_relu_in_place(plan, args);
    return EN_OK;
}

/* sum += x, elementwise. */
ENI_MULTIVERSION static void add(float *restrict sum, const float *restrict x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        sum[i] += x[i];
}

/* Outputs [from, to) of db[o] = sum over n of dy[n,o], sample by sample. */
static void bias_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    float *db = (float *)args->db + from;
    memset(db, 0, (size_t)(to - from) * sizeof *db);
    for (int64_t n = 0; n < plan->y.n; n++)
        add(db, (const float *)args->dy + n * plan->y.c + from, to - from);
}

static en_status linear_backward_weights(en_plan *plan, const en_args *args)
{
    const void *const at[] = {args->dy, args->x, args->dw, args->workspace};
    eni_cpu_relu_mask(plan, args);
    if (plan->op.flags & EN_OP_BIAS) eni_cpu_split(plan, args, plan->y.c, 1024, bias_part);
    return eni_cpu_run(plan, &plan->product[ENI_BACKWARD_WEIGHTS], at);
}

static en_status linear_backward_data(en_plan *plan, const en_args *args)
{
    const void *const at[] = {args->dy, args->w, args->dx, args->workspace};
    return eni_cpu_run(plan, &plan->product[ENI_BACKWARD_DATA], at);
}

const eni_cpu_kernel eni_cpu_linear = {
    .forward = linear_forward,
    .backward_weights = linear_backward_weights,
    .backward_data = linear_backward_data,
    .prepare = linear_prepare,
};
