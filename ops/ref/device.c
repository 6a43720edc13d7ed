/* device.c - the table of the reference device. */
#include "core/log.h"
#include "core/memory.h"
#include "ops/device.h"
#include "ops/ref/ref.h"

/* Plain loops on the caller's thread need no state. */
struct en_ctx {
    int unused;
};

struct en_plan {
    en_op op;
    const eni_ref_kernel *kernel;
};

static en_status ref_open(const en_device_config *config, en_ctx **ctx_out)
{
    static en_ctx one;
    if (config->flags & EN_OPEN_BF16)
        return eni_fail(EN_EUNSUPPORTED, "ref",
                        "the device ref has no bf16, since it computes in double precision; omit "
                        "--precision=bf16, or give --device=cpu or cuda");
    *ctx_out = &one;
    return EN_OK;
}

static void ref_close(en_ctx *ctx)
{
    (void)ctx;
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
    en_plan_info info;
    eni_ref_describe(&plan->op, &info);
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
