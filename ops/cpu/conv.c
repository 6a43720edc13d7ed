/* conv.c - convolution: oneDNN's three passes. Weights travel to the order that oneDNN picked, and back.
 * Where its backward passes would waste much, those of columns.c run. */
#include "core/try.h"
#include "ops/cpu/cpu.h"

static en_status reorder(const en_plan *plan, const eni_dnnl_pass *pass, dnnl_memory_t from, dnnl_memory_t to)
{
    if (!pass->reorder) return EN_OK;
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    return eni_cpu_execute(plan, pass->reorder, 2, args);
}

static en_status conv_forward(en_plan *plan, const en_args *args)
{
    const eni_dnnl_pass *pass = &plan->pass[ENI_FORWARD];
    EN_TRY(eni_cpu_aim(plan, pass, args->x, args->w, args->b, args->y, args->workspace));
    EN_TRY(reorder(plan, pass, pass->weights, pass->picked));
    const dnnl_exec_arg_t tensors[] = {{DNNL_ARG_SRC, pass->source},
                                       {DNNL_ARG_WEIGHTS, pass->picked},
                                       {DNNL_ARG_DST, pass->target},
                                       {DNNL_ARG_SCRATCHPAD, pass->scratch},
                                       {DNNL_ARG_BIAS, pass->bias}};
    EN_TRY(eni_cpu_execute(plan, pass->primitive, plan->op.flags & EN_OP_BIAS ? 5 : 4, tensors));
    if (plan->op.flags & EN_OP_FUSE_RELU) eni_cpu_relu_in_place(plan, args);
    return EN_OK;
}

static en_status conv_backward_weights(en_plan *plan, const en_args *args)
{
    const eni_dnnl_pass *pass = &plan->pass[ENI_BACKWARD_WEIGHTS];
    if (plan->op.flags & EN_OP_FUSE_RELU) eni_cpu_relu_mask(plan, args);
    if (plan->images > 0) return eni_cpu_columns_backward_weights(plan, args);
    EN_TRY(eni_cpu_aim(plan, pass, args->x, args->dw, args->db, args->dy, args->workspace));
    const dnnl_exec_arg_t tensors[] = {{DNNL_ARG_SRC, pass->source},
                                       {DNNL_ARG_DIFF_WEIGHTS, pass->picked},
                                       {DNNL_ARG_DIFF_DST, pass->target},
                                       {DNNL_ARG_SCRATCHPAD, pass->scratch},
                                       {DNNL_ARG_DIFF_BIAS, pass->bias}};
    EN_TRY(eni_cpu_execute(plan, pass->primitive, plan->op.flags & EN_OP_BIAS ? 5 : 4, tensors));
    return reorder(plan, pass, pass->picked, pass->weights);
}

static en_status conv_backward_data(en_plan *plan, const en_args *args)
{
    const eni_dnnl_pass *pass = &plan->pass[ENI_BACKWARD_DATA];
    if (plan->images > 0) return eni_cpu_columns_backward_data(plan, args);
    EN_TRY(eni_cpu_aim(plan, pass, args->dx, args->w, args->b, args->dy, args->workspace));
    EN_TRY(reorder(plan, pass, pass->weights, pass->picked));
    const dnnl_exec_arg_t tensors[] = {{DNNL_ARG_DIFF_SRC, pass->source},
                                       {DNNL_ARG_WEIGHTS, pass->picked},
                                       {DNNL_ARG_DIFF_DST, pass->target},
                                       {DNNL_ARG_SCRATCHPAD, pass->scratch}};
    return eni_cpu_execute(plan, pass->primitive, 4, tensors);
}

static en_status conv_prepare(en_plan *plan)
{
    if (plan->op.flags & EN_OP_FORWARD_ONLY || !eni_cpu_columns_fit(&plan->op))
        return eni_cpu_prepare_passes(plan);
    EN_TRY(eni_cpu_prepare_forward(plan));
    return eni_cpu_columns_prepare(plan);
}

const eni_cpu_kernel eni_cpu_conv = {
    .forward = conv_forward,
    .backward_weights = conv_backward_weights,
    .backward_data = conv_backward_data,
    .prepare = conv_prepare,
};
