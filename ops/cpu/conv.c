/* conv.c - convolution: oneDNN's three passes, with weights copied to and from the order that oneDNN picked.
 * Backward passes that oneDNN would waste much on run in columns.c, most 3 x 3 in winograd.c, and 1 x 1 with
 * a stride in columns.c. In bf16 all but the last of these run here, on factors that are rounded first. */
#include "core/try.h"
#include "ops/cpu/cpu.h"

static en_status run_pass(const en_plan *plan, const en_args *args, int which, const void *source,
                          const void *weights, const void *target, const void *scratch, const void *bias)
{
    const eni_dnnl_conv *pass = &plan->pass[which];
    const int comes_out = which == ENI_BACKWARD_WEIGHTS;
    const void *picked = pass->picked ? pass->picked : weights;
    const void *const at[] = {source, picked, target, scratch, bias};
    const void *const in[] = {weights, picked}, *const out[] = {picked, weights};
    if (pass->picked && !comes_out && !eni_cpu_is_same_w(args))
        EN_TRY(eni_cpu_run(plan, args, &pass->reorder, in));
    EN_TRY(eni_cpu_run(plan, args, &pass->run, at));
    if (pass->picked && comes_out) EN_TRY(eni_cpu_run(plan, args, &pass->reorder, out));
    return pass->picked ? eni_cpu_canary_check(args, &pass->run, pass->picked, pass->picked_bytes) : EN_OK;
}

static en_status conv_forward(en_plan *plan, const en_args *args)
{
    void *area = args->workspace;
    const void *x = eni_cpu_factor_in(plan, args->x, en_extent_count(plan->op.x), &area);
    EN_TRY(run_pass(plan, args, ENI_FORWARD, x, args->w, args->y, area, args->b));
    eni_cpu_relu_in_place(plan, args);
    return EN_OK;
}

static en_status conv_backward_weights(en_plan *plan, const en_args *args)
{
    void *area = args->workspace;
    eni_cpu_relu_mask(plan, args);
    if (plan->has_columns) return eni_cpu_columns_backward_weights(plan, args);
    const void *x = eni_cpu_factor_in(plan, args->x, en_extent_count(plan->op.x), &area);
    const void *dy = eni_cpu_factor_in(plan, args->dy, en_extent_count(plan->y), &area);
    return run_pass(plan, args, ENI_BACKWARD_WEIGHTS, x, args->dw, dy, area, args->db);
}

static en_status conv_backward_data(en_plan *plan, const en_args *args)
{
    void *area = args->workspace;
    if (plan->has_columns) return eni_cpu_columns_backward_data(plan, args);
    const void *dy = eni_cpu_factor_in(plan, args->dy, en_extent_count(plan->y), &area);
    return run_pass(plan, args, ENI_BACKWARD_DATA, args->dx, args->w, dy, area, NULL);
}

static en_status conv_prepare(en_plan *plan)
{
    const uint64_t x = eni_cpu_factor_bytes(plan, en_extent_count(plan->op.x)),
                   dy = eni_cpu_factor_bytes(plan, en_extent_count(plan->y));
    const uint64_t factors[ENI_PASSES] = {
        [ENI_FORWARD] = x, [ENI_BACKWARD_WEIGHTS] = x + dy, [ENI_BACKWARD_DATA] = dy};
    plan->has_columns = !plan->ctx->dnnl.is_bf16 && eni_cpu_columns_backward_fit(&plan->op);
    for (int which = 0; which < eni_cpu_passes(plan); which++) {
        eni_dnnl_conv *pass = &plan->pass[which];
        if (plan->has_columns && which != ENI_FORWARD) {
            eni_cpu_columns_describe(plan, which);
            continue;
        }
        EN_TRY(eni_dnnl_conv_init(&plan->ctx->dnnl, &plan->op, which, pass));
        if (pass->picked) eni_cpu_canary_set(pass->picked, pass->picked_bytes);
        eni_cpu_describe_pass(plan, which, "", pass->run.name,
                              factors[which] + eni_cpu_workspace(&pass->run));
    }
    return EN_OK;
}

const eni_cpu_kernel eni_cpu_conv = {
    .forward = conv_forward,
    .backward_weights = conv_backward_weights,
    .backward_data = conv_backward_data,
    .prepare = conv_prepare,
};
