/* linear.c - y = x w^T + b: three matrix products of oneDNN, on weights in PyTorch's order. */
#include <string.h>

#include "core/try.h"
#include "ops/cpu/cpu.h"
#include "ops/multiversion.h"

static en_status linear_forward(en_plan *plan, const en_args *args)
{
    const eni_dnnl_pass *pass = &plan->pass[ENI_FORWARD];
    EN_TRY(eni_cpu_aim(plan, pass, args->x, args->w, args->b, args->y, args->workspace));
    const dnnl_exec_arg_t tensors[] = {{DNNL_ARG_SRC, pass->source},
                                       {DNNL_ARG_WEIGHTS, pass->weights},
                                       {DNNL_ARG_DST, pass->target},
                                       {DNNL_ARG_SCRATCHPAD, pass->scratch},
                                       {DNNL_ARG_BIAS, pass->bias}};
    EN_TRY(eni_cpu_execute(plan, pass->primitive, plan->op.flags & EN_OP_BIAS ? 5 : 4, tensors));
    if (plan->op.flags & EN_OP_FUSE_RELU) eni_cpu_relu_in_place(plan, args);
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
    const eni_dnnl_pass *pass = &plan->pass[ENI_BACKWARD_WEIGHTS];
    if (plan->op.flags & EN_OP_FUSE_RELU) eni_cpu_relu_mask(plan, args);
    if (plan->op.flags & EN_OP_BIAS) eni_cpu_split(plan, args, plan->y.c, 1024, bias_part);
    EN_TRY(eni_cpu_aim(plan, pass, args->x, args->dw, args->db, args->dy, args->workspace));
    const dnnl_exec_arg_t tensors[] = {{DNNL_ARG_SRC, pass->target},
                                       {DNNL_ARG_WEIGHTS, pass->source},
                                       {DNNL_ARG_DST, pass->weights},
                                       {DNNL_ARG_SCRATCHPAD, pass->scratch}};
    return eni_cpu_execute(plan, pass->primitive, 4, tensors);
}

static en_status linear_backward_data(en_plan *plan, const en_args *args)
{
    const eni_dnnl_pass *pass = &plan->pass[ENI_BACKWARD_DATA];
    EN_TRY(eni_cpu_aim(plan, pass, args->dx, args->w, args->b, args->dy, args->workspace));
    const dnnl_exec_arg_t tensors[] = {{DNNL_ARG_SRC, pass->target},
                                       {DNNL_ARG_WEIGHTS, pass->weights},
                                       {DNNL_ARG_DST, pass->source},
                                       {DNNL_ARG_SCRATCHPAD, pass->scratch}};
    return eni_cpu_execute(plan, pass->primitive, 4, tensors);
}

const eni_cpu_kernel eni_cpu_linear = {
    .forward = linear_forward,
    .backward_weights = linear_backward_weights,
    .backward_data = linear_backward_data,
    .prepare = eni_cpu_prepare_passes,
};
