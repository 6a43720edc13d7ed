/* op_plan.c - one operation: finds its kernel, and calls it.
 *
 * Launches of one forward and backward of the convnet (models/registry.c), f32; in brackets with bf16:
 *
 *     conv1      1 cuDNN (+1 weights to 16 bits)      + 1 sums of dy, 1 cuDNN, 1 dw and db out
 *     pool1      1                                    + 1
 *     conv2      1 weights, 1 cuDNN                   + 1 sums of dy, 1 cuDNN, 1 dw and db out, 1 cuDNN
 *     pool2      1                                    + 1
 *     flatten    1                                    + 1
 *     fc1        1 cuBLASLt, 1 relu (+1 weights)      + 1 mask and sums of dy, 1 cuBLASLt, 1 cuBLASLt
 *     fc2        1 cuBLASLt (+1 weights)              + 1 cuBLASLt, 1 cuBLASLt
 *     softmax    1                                    + 1
 *     nll        1                                    + 1
 *
 * 11 forward and 17 backward (14 and 17, and one cast of the input), counting each call of a library as one.
 * --deterministic adds one: the product then does not sum fc2's dy. A loss scale adds three: fc1 and fc2 then
 * copy dw out, and fc2 as with --deterministic. Samples above 128 add one to nll, above 1024 one to fc1.
 *
 * Residual networks also have:
 *
 *     conv without bias   1 weights, 1 cuDNN          + 1 cuDNN, 1 dw out, 1 cuDNN
 *       1 x 1, f32        1 cuDNN                     + 1 cuDNN, 1 cuDNN
 *     batch norm          1 moments of parts, 1 of all, 1 y and the running statistics (evaluation: 1)
 *                                                     + 1 mask and sums of parts, 1 dw and db, 1 dx
 *       with add and relu the same
 *     add                 1                           + 1 (0 where dx is dy and there is no relu)
 *     average pool        1                           + 1 */
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "ops/cuda/cuda.h"
#include "ops/ref/ref.h"

static const eni_cuda_kernel *const kernels[EN_OP_KINDS] = {
    [EN_OP_CONV2D] = &eni_cuda_conv,
    [EN_OP_LINEAR] = &eni_cuda_linear,
    [EN_OP_RELU] = &eni_cuda_relu,
    [EN_OP_MAXPOOL] = &eni_cuda_pool,
    [EN_OP_RELU_MAXPOOL] = &eni_cuda_pool,
    [EN_OP_FLATTEN] = &eni_cuda_flatten,
    [EN_OP_LOG_SOFTMAX] = &eni_cuda_log_softmax,
    [EN_OP_NLL] = &eni_cuda_nll,
    [EN_OP_CROSS_ENTROPY] = &eni_cuda_cross_entropy,
    [EN_OP_MSE] = &eni_cuda_mse,
    [EN_OP_CAST] = &eni_cuda_cast,
    [EN_OP_BATCHNORM] = &eni_cuda_batchnorm,
    [EN_OP_ADD] = &eni_cuda_add,
    [EN_OP_AVGPOOL] = &eni_cuda_avgpool,
};

static bool has_type(const en_op *op)
{
    if (op->kind == EN_OP_NLL) return op->dtype == EN_F32;
    return op->dtype == EN_F32 || op->dtype == EN_BF16 || op->dtype == EN_F16;
}

static en_status check(const en_op *op)
{
    EN_TRY(eni_ref_check_size(op, "cuda"));
    if (op->kind >= EN_OP_KINDS || !kernels[op->kind] || !has_type(op))
        return eni_fail(
            EN_EUNSUPPORTED, "cuda",
            "no operation of kind %u on type %u; expected kinds 1 to %d on float32, bfloat16 or float16",
            op->kind, op->dtype, EN_OP_KINDS - 1);
    EN_TRY(eni_ref_check_sense(op, "cuda"));
    if (op->kind == EN_OP_CAST && !(op->flags & (EN_OP_NO_DX | EN_OP_FORWARD_ONLY)))
        return eni_fail(EN_EUNSUPPORTED, "cuda", "a cast has no backward: set the flag EN_OP_NO_DX");
    /* Kernels and cuDNN count in 32 bits. */
    const int64_t nx = en_extent_count(op->x), ny = en_extent_count(eni_ref_output(op)),
                  nw = en_op_weights(op);
    const int64_t largest = nx > ny ? nx : ny;
    if (largest > INT32_MAX || nw > INT32_MAX)
        return eni_fail(EN_EUNSUPPORTED, "cuda",
                        "a tensor of %lld elements in op %u is too large (at most %d); use a smaller batch",
                        (long long)(largest > nw ? largest : nw), op->kind, INT32_MAX);
    return EN_OK;
}

en_status eni_cuda_plan(en_ctx *ctx, const en_op *op, en_plan **plan_out)
{
    EN_TRY(check(op));
    EN_TRY(eni_cuda_select(ctx));
    en_plan *plan = eni_alloc(sizeof *plan);
    if (!plan) return EN_ENOMEM;
    *plan = (en_plan){.op = *op, .y = eni_ref_output(op), .ctx = ctx, .kernel = kernels[op->kind]};
    plan->info.size = sizeof plan->info;
    const en_status st = plan->kernel->prepare ? plan->kernel->prepare(plan) : EN_OK;
    if (st != EN_OK) {
        eni_cuda_plan_free(plan);
        return st;
    }
    *plan_out = plan;
    return EN_OK;
}

void eni_cuda_plan_free(en_plan *plan)
{
    if (!plan) return;
    if (plan->kernel->discard) plan->kernel->discard(plan);
    eni_free(plan);
}

static void name_pass(char name[48])
{
    if (name[0] == '\0') memcpy(name, "kernel", sizeof "kernel");
}

void eni_cuda_plan_info(const en_plan *plan, en_plan_info *info_out)
{
    const uint32_t flags = plan->op.flags;
    const bool trains = !(flags & EN_OP_FORWARD_ONLY), has_dx = trains && !(flags & EN_OP_NO_DX);
    en_plan_info info = plan->info;
    name_pass(info.forward);
    if (trains && plan->kernel->backward_weights) name_pass(info.backward_weights);
    if (has_dx) name_pass(info.backward_data);
    eni_ref_give_info(&info, info_out);
}

en_status eni_cuda_forward(en_plan *plan, const en_args *args)
{
    EN_TRY(eni_cuda_select(plan->ctx));
    return plan->kernel->forward(plan, args);
}

en_status eni_cuda_backward_weights(en_plan *plan, const en_args *args)
{
    if (!plan->kernel->backward_weights || plan->op.flags & EN_OP_FORWARD_ONLY) return EN_EUNSUPPORTED;
    EN_TRY(eni_cuda_select(plan->ctx));
    return plan->kernel->backward_weights(plan, args);
}

en_status eni_cuda_backward_data(en_plan *plan, const en_args *args)
{
    if (plan->op.flags & (EN_OP_FORWARD_ONLY | EN_OP_NO_DX)) return EN_EUNSUPPORTED;
    EN_TRY(eni_cuda_select(plan->ctx));
    return plan->kernel->backward_data(plan, args);
}
