/* kernels.c - the operations that are kernels of our own alone: what each wants saved, and as workspace. */
#include "ops/cuda/kernels.h"

static en_status pool_prepare(en_plan *plan)
{
    if (!(plan->op.flags & EN_OP_FORWARD_ONLY)) plan->info.saved_bytes = (uint64_t)en_extent_count(plan->y);
    return EN_OK;
}

/* Two floats per block. */
static en_status loss_prepare(en_plan *plan)
{
    plan->info.workspace_bytes = ENI_LOSS_BLOCKS * 2 * sizeof(float);
    return EN_OK;
}

static en_status cross_entropy_prepare(en_plan *plan)
{
    if (!(plan->op.flags & EN_OP_FORWARD_ONLY))
        plan->info.saved_bytes = (uint64_t)en_extent_count(plan->op.x) * sizeof(float);
    return loss_prepare(plan);
}

const eni_cuda_kernel eni_cuda_relu = {.forward = eni_cuda_relu_forward,
                                       .backward_data = eni_cuda_relu_backward};

const eni_cuda_kernel eni_cuda_cast = {.forward =
                                           eni_cuda_cast_forward}; /* op_plan.c: never has a backward */

const eni_cuda_kernel eni_cuda_pool = {
    .prepare = pool_prepare, .forward = eni_cuda_pool_forward, .backward_data = eni_cuda_pool_backward};

const eni_cuda_kernel eni_cuda_flatten = {.forward = eni_cuda_flatten_forward,
                                          .backward_data = eni_cuda_flatten_backward};

const eni_cuda_kernel eni_cuda_log_softmax = {.forward = eni_cuda_log_softmax_forward,
                                              .backward_data = eni_cuda_log_softmax_backward};

const eni_cuda_kernel eni_cuda_nll = {
    .prepare = loss_prepare, .forward = eni_cuda_nll_forward, .backward_data = eni_cuda_nll_backward};

const eni_cuda_kernel eni_cuda_cross_entropy = {.prepare = cross_entropy_prepare,
                                                .forward = eni_cuda_cross_entropy_forward,
                                                .backward_data = eni_cuda_cross_entropy_backward};

const eni_cuda_kernel eni_cuda_mse = {
    .prepare = loss_prepare, .forward = eni_cuda_mse_forward, .backward_data = eni_cuda_mse_backward};
