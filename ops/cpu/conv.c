/* conv.c - convolution and linear layers, which are the same to oneDNN: three passes over (source, weights,
 * bias, target). */
#include <stdio.h>

#include "ops/cpu/cpu.h"
#include "runtime/core/try.h"

/* Points a view at the tensor of this run. Steps mostly run on the same memory: then nothing happens. */
static en_status aim(dnnl_memory_t view, const void *data)
{
    void *old;
    dnnl_status_t status = dnnl_memory_get_data_handle(view, &old);
    if (status == dnnl_success && old != data) status = dnnl_memory_set_data_handle(view, (void *)data);
    return status == dnnl_success ? EN_OK : eni_dnnl_check(status, "aiming a view");
}

static en_status execute(const en_plan *plan, dnnl_primitive_t primitive, int nargs,
                         const dnnl_exec_arg_t *args)
{
    dnnl_status_t status = dnnl_primitive_execute(primitive, plan->ctx->dnnl.stream, nargs, args);
    return status == dnnl_success ? EN_OK : eni_dnnl_check(status, "running a primitive");
}

static en_status reorder(const en_plan *plan, const eni_dnnl_pass *pass, dnnl_memory_t from, dnnl_memory_t to)
{
    if (!pass->reorder) return EN_OK;
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    return execute(plan, pass->reorder, 2, args);
}

static en_status aim_pass(const en_plan *plan, const eni_dnnl_pass *pass, const void *source,
                          const void *weights, const void *bias, const void *target, void *workspace)
{
    EN_TRY(aim(pass->source, source));
    EN_TRY(aim(pass->weights, weights));
    EN_TRY(aim(pass->target, target));
    EN_TRY(aim(pass->scratch, workspace));
    return plan->op.flags & EN_OP_BIAS ? aim(pass->bias, bias) : EN_OK;
}

static en_status conv_forward(en_plan *plan, const en_args *args)
{
    const eni_dnnl_pass *pass = &plan->pass[ENI_FORWARD];
    EN_TRY(aim_pass(plan, pass, args->x, args->w, args->b, args->y, args->workspace));
    EN_TRY(reorder(plan, pass, pass->weights, pass->picked));
    const dnnl_exec_arg_t tensors[] = {{DNNL_ARG_SRC, pass->source},
                                       {DNNL_ARG_WEIGHTS, pass->picked},
                                       {DNNL_ARG_DST, pass->target},
                                       {DNNL_ARG_SCRATCHPAD, pass->scratch},
                                       {DNNL_ARG_BIAS, pass->bias}};
    EN_TRY(execute(plan, pass->primitive, plan->op.flags & EN_OP_BIAS ? 5 : 4, tensors));
    if (plan->op.flags & EN_OP_FUSE_RELU) eni_cpu_relu_in_place(plan, args);
    return EN_OK;
}

static en_status conv_backward_weights(en_plan *plan, const en_args *args)
{
    const eni_dnnl_pass *pass = &plan->pass[ENI_BACKWARD_WEIGHTS];
    if (plan->op.flags & EN_OP_FUSE_RELU) eni_cpu_relu_mask(plan, args);
    EN_TRY(aim_pass(plan, pass, args->x, args->dw, args->db, args->dy, args->workspace));
    const dnnl_exec_arg_t tensors[] = {{DNNL_ARG_SRC, pass->source},
                                       {DNNL_ARG_DIFF_WEIGHTS, pass->picked},
                                       {DNNL_ARG_DIFF_DST, pass->target},
                                       {DNNL_ARG_SCRATCHPAD, pass->scratch},
                                       {DNNL_ARG_DIFF_BIAS, pass->bias}};
    EN_TRY(execute(plan, pass->primitive, plan->op.flags & EN_OP_BIAS ? 5 : 4, tensors));
    return reorder(plan, pass, pass->picked, pass->weights);
}

static en_status conv_backward_data(en_plan *plan, const en_args *args)
{
    const eni_dnnl_pass *pass = &plan->pass[ENI_BACKWARD_DATA];
    EN_TRY(aim(pass->source, args->dx));
    EN_TRY(aim(pass->weights, args->w));
    EN_TRY(aim(pass->target, args->dy));
    EN_TRY(aim(pass->scratch, args->workspace));
    EN_TRY(reorder(plan, pass, pass->weights, pass->picked));
    const dnnl_exec_arg_t tensors[] = {{DNNL_ARG_DIFF_SRC, pass->source},
                                       {DNNL_ARG_WEIGHTS, pass->picked},
                                       {DNNL_ARG_DIFF_DST, pass->target},
                                       {DNNL_ARG_SCRATCHPAD, pass->scratch}};
    return execute(plan, pass->primitive, 4, tensors);
}

/* Creates the passes that the flags leave. On failure the plan's owner frees what was made. */
static en_status conv_prepare(en_plan *plan)
{
    char *const names[ENI_PASSES] = {plan->info.forward, plan->info.backward_weights,
                                     plan->info.backward_data};
    const uint32_t flags = plan->op.flags;
    for (int which = 0; which < ENI_PASSES; which++) {
        if (which != ENI_FORWARD && flags & EN_OP_FORWARD_ONLY) break;
        if (which == ENI_BACKWARD_DATA && flags & EN_OP_NO_DX) break;
        eni_dnnl_pass *pass = &plan->pass[which];
        EN_TRY(eni_dnnl_pass_init(&plan->ctx->dnnl, &plan->op, which, pass));
        if (pass->scratch_bytes > plan->info.workspace_bytes)
            plan->info.workspace_bytes = pass->scratch_bytes;
        snprintf(names[which], sizeof plan->info.forward, "%s", pass->name);
    }
    return EN_OK;
}

const eni_cpu_kernel eni_cpu_conv = {
    .forward = conv_forward,
    .backward_weights = conv_backward_weights,
    .backward_data = conv_backward_data,
    .prepare = conv_prepare,
};
