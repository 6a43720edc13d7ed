/* device.c - the table of the reference device. */
#include <string.h>

#include "core/memory.h"
#include "ops/device.h"
#include "ops/ref/ref.h"

struct en_ctx {
    int unused; /* plain loops on the caller's thread need no state */
};

struct en_plan {
    en_op op;
    const eni_ref_kernel *kernel;
};

static en_status ref_open(const en_device_config *config, en_ctx **ctx_out)
{
    (void)config;
    en_ctx *ctx = eni_alloc(sizeof *ctx);
    if (!ctx) return EN_ENOMEM;
    *ctx_out = ctx;
    return EN_OK;
}

static void ref_close(en_ctx *ctx)
{
    eni_free(ctx);
}

static const char *ref_describe(en_ctx *ctx)
{
    (void)ctx;
    return "plain loops in double precision, one thread, the same bits on every machine";
}

static en_status ref_plan(en_ctx *ctx, const en_op *op, en_plan **plan_out)
{
    (void)ctx;
    en_status st = eni_ref_check(op, "ref");
    if (st != EN_OK) return st;
    en_plan *plan = eni_alloc(sizeof *plan);
    if (!plan) return EN_ENOMEM;
    *plan = (en_plan){.op = eni_ref_as_conv(op), .kernel = eni_ref_kernel_find(op->kind)};
    *plan_out = plan;
    return EN_OK;
}

static void ref_plan_free(en_plan *plan)
{
    eni_free(plan);
}

static void ref_plan_info(const en_plan *plan, en_plan_info *info_out)
{
    const en_op *op = &plan->op;
    const eni_ref_kernel *kernel = plan->kernel;
    const int trains = !(op->flags & EN_OP_FORWARD_ONLY), has_dx = trains && !(op->flags & EN_OP_NO_DX);
    en_plan_info info = {.size = sizeof info, .forward = "loops"};
    info.saved_bytes = trains && kernel->saved_bytes ? kernel->saved_bytes(op) : 0;
    info.workspace_bytes = kernel->workspace_bytes ? kernel->workspace_bytes(op) : 0;
    if (trains && kernel->backward_weights) strcpy(info.backward_weights, "loops");
    if (has_dx) strcpy(info.backward_data, "loops");
    eni_ref_give_info(&info, info_out);
}

static en_status ref_forward(en_plan *plan, const en_args *args)
{
    return plan->kernel->forward(&plan->op, args);
}

static en_status ref_backward_weights(en_plan *plan, const en_args *args)
{
    if (!plan->kernel->backward_weights || plan->op.flags & EN_OP_FORWARD_ONLY) return EN_EUNSUPPORTED;
    return plan->kernel->backward_weights(&plan->op, args);
}

static en_status ref_backward_data(en_plan *plan, const en_args *args)
{
    if (plan->op.flags & (EN_OP_FORWARD_ONLY | EN_OP_NO_DX)) return EN_EUNSUPPORTED;
    return plan->kernel->backward_data(&plan->op, args);
}

static const en_device ref = {
    .abi = EN_DEVICE_ABI,
    .size = sizeof ref,
    .name = "ref",
    .help = "plain loops: slow, exact, the same bits on every machine",
    .flags = EN_DEVICE_HOST,
    .align = ENI_LINE,
    .open = ref_open,
    .close = ref_close,
    .describe = ref_describe,
    .alloc = eni_ref_alloc,
    .free = eni_ref_free,
    .copy = eni_ref_copy,
    .zero = eni_ref_zero,
    .sync = eni_ref_sync,
    .plan = ref_plan,
    .plan_free = ref_plan_free,
    .plan_info = ref_plan_info,
    .forward = ref_forward,
    .backward_weights = ref_backward_weights,
    .backward_data = ref_backward_data,
    .gpu = NULL,
};

const en_device *eni_ref_device(void)
{
    return &ref;
}
