/* unfold.c - a convolution as one matrix product: see unfold.h. */
#include "ops/cuda/unfold.h"

#include "core/memory.h"
#include "core/try.h"
#include "ops/cuda/kernels.h"

static int64_t rows_of(const en_plan *plan)
{
    return plan->y.n * plan->y.h * plan->y.w;
}

static int64_t cols_of(const en_plan *plan)
{
    return plan->op.kernel_h * plan->op.kernel_w * plan->op.x.c;
}

static en_status init(const en_plan *plan, const eni_cuda_factors *factors, eni_cuda_unfold *unfold)
{
    const uint64_t rows = (uint64_t)rows_of(plan), cols = (uint64_t)cols_of(plan);
    *unfold = (eni_cuda_unfold){0};
    if (rows > (uint64_t)INT32_MAX / cols) return EN_EUNSUPPORTED; /* kernels count in 32 bits */
    EN_TRY(eni_cuda_product_init(plan, factors, &unfold->product));
    unfold->product_at = eni_round_up(rows * cols * en_dtype_bytes(plan->op.dtype), ENI_CUDA_ALIGN);
    unfold->bytes = unfold->product_at + unfold->product.workspace_bytes;
    return EN_OK;
}

en_status eni_cuda_unfold_forward_init(const en_plan *plan, eni_cuda_unfold *unfold)
{
    eni_cuda_factors factors = {.m = plan->op.channels,
                                .n = rows_of(plan),
                                .k = cols_of(plan),
                                .is_a_transposed = 1,
                                .dtype = plan->op.dtype,
                                .epilogue = eni_cuda_product_epilogue(&plan->op),
                                .bias_dtype = plan->op.dtype};
    en_status st = init(plan, &factors, unfold);
    unfold->is_fused = st == EN_OK;
    if (st != EN_EUNSUPPORTED) return st;
    factors.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return init(plan, &factors, unfold);
}

en_status eni_cuda_unfold_weights_init(const en_plan *plan, eni_cuda_unfold *unfold)
{
    const eni_cuda_factors factors = {.m = cols_of(plan),
                                      .n = plan->op.channels,
                                      .k = rows_of(plan),
                                      .is_b_transposed = 1,
                                      .dtype = EN_F32,
                                      .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
                                      .bias_dtype = EN_F32};
    return init(plan, &factors, unfold);
}

en_status eni_cuda_unfold_data_init(const en_plan *plan, eni_cuda_unfold *unfold)
{
    const eni_cuda_factors factors = {.m = cols_of(plan),
                                      .n = rows_of(plan),
                                      .k = plan->op.channels,
                                      .dtype = plan->op.dtype,
                                      .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
                                      .bias_dtype = plan->op.dtype};
    return init(plan, &factors, unfold);
}

void eni_cuda_unfold_fini(eni_cuda_unfold *unfold)
{
    eni_cuda_product_fini(&unfold->product);
    *unfold = (eni_cuda_unfold){0};
}

en_status eni_cuda_unfold_forward(const en_plan *plan, const eni_cuda_unfold *unfold, const void *x,
                                  const void *w, const void *b, void *y, void *workspace)
{
    EN_TRY(eni_cuda_unfold_x(plan, x, workspace));
    return eni_cuda_product_run(plan, &unfold->product, w, workspace, unfold->is_fused ? b : NULL, y,
                                (char *)workspace + unfold->product_at, "forward of conv2d");
}

en_status eni_cuda_unfold_weights(const en_plan *plan, const eni_cuda_unfold *unfold, const void *x,
                                  const void *dy, void *dw, void *workspace)
{
    EN_TRY(eni_cuda_unfold_x(plan, x, workspace));
    return eni_cuda_product_run(plan, &unfold->product, workspace, dy, NULL, dw,
                                (char *)workspace + unfold->product_at, "backward_weights of conv2d");
}

en_status eni_cuda_unfold_data(const en_plan *plan, const eni_cuda_unfold *unfold, const void *w,
                               const void *dy, void *dx, void *workspace)
{
    EN_TRY(eni_cuda_product_run(plan, &unfold->product, w, dy, NULL, workspace,
                                (char *)workspace + unfold->product_at, "backward_data of conv2d"));
    return eni_cuda_fold_dx(plan, workspace, dx);
}
