/* product.c - the one file that speaks to cuBLASLt.
 *
 * Algorithms are the heuristic's first choice: nothing is timed, so that all ranks and all runs choose alike.
 */
#include "ops/cuda/product.h"

#include <stdio.h>
#include <string.h>

#include "runtime/core/try.h"

enum { MAX_WORKSPACE = 32 << 20, MIN_ALIGN = 16 };

cublasLtEpilogue_t eni_cuda_product_epilogue(const en_op *op)
{
    const int has_bias = (op->flags & EN_OP_BIAS) != 0;
    if (op->flags & EN_OP_FUSE_RELU) return has_bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    return has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static cudaDataType_t type_of(uint32_t dtype)
{
    return dtype == EN_BF16 ? CUDA_R_16BF : dtype == EN_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* A dense (rows, cols), column by column. */
static cublasStatus_t layout(cublasLtMatrixLayout_t *out, uint32_t dtype, int64_t rows, int64_t cols)
{
    return cublasLtMatrixLayoutCreate(out, type_of(dtype), (uint64_t)rows, (uint64_t)cols, rows);
}

static cublasStatus_t describe(const en_plan *plan, const eni_cuda_factors *f, eni_cuda_product *p)
{
    const int is_tf32 = plan->op.dtype == EN_F32 && plan->ctx->flags & EN_OPEN_TF32;
    const int32_t a = f->is_a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                  b = f->is_b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t bias = type_of(f->bias_dtype);
    const void *const somewhere =
        (const void *)(uintptr_t)ENI_CUDA_ALIGN; /* how the bias will lie; never read */
    cublasStatus_t st = cublasLtMatmulDescCreate(
        &p->product, is_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (st) return st;
    const struct {
        cublasLtMatmulDescAttributes_t name;
        const void *value;
        size_t size;
    } set[] = {{CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a},
               {CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b},
               {CUBLASLT_MATMUL_DESC_EPILOGUE, &f->epilogue, sizeof f->epilogue},
               {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias, sizeof bias},
               {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &somewhere, sizeof somewhere}};
    const int has_bias = f->epilogue != CUBLASLT_EPILOGUE_DEFAULT && f->epilogue != CUBLASLT_EPILOGUE_RELU;
    for (size_t i = 0; i < (has_bias ? 5 : 3) && !st; i++)
        st = cublasLtMatmulDescSetAttribute(p->product, set[i].name, set[i].value, set[i].size);
    const uint32_t dtype = plan->op.dtype;
    if (!st) st = f->is_a_transposed ? layout(&p->a, dtype, f->k, f->m) : layout(&p->a, dtype, f->m, f->k);
    if (!st) st = f->is_b_transposed ? layout(&p->b, dtype, f->n, f->k) : layout(&p->b, dtype, f->k, f->n);
    return st ? st : layout(&p->d, f->dtype, f->m, f->n);
}

/* Sums may be split and added in the workspace in float32, never in the output's own type. With
 * EN_OPEN_DETERMINISTIC only by a pass of its own, never in the order of arrival. */
static cublasStatus_t prefer(const en_plan *plan, cublasLtMatmulPreference_t preference)
{
    const int is_deterministic = (plan->ctx->flags & EN_OPEN_DETERMINISTIC) != 0;
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE |
                             (is_deterministic ? 0u : (uint32_t)CUBLASLT_REDUCTION_SCHEME_INPLACE);
    const size_t workspace = MAX_WORKSPACE;
    const uint32_t align = MIN_ALIGN;
    const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasStatus_t st = cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    if (!st)
        st = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                  &schemes, sizeof schemes);
    for (int i = 0; i < 4 && !st; i++)
        st = cublasLtMatmulPreferenceSetAttribute(preference, aligned[i], &align, sizeof align);
    return st;
}

static cublasStatus_t choose(const en_plan *plan, eni_cuda_product *p)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    int nfound = 0;
    memset(&found, 0, sizeof found);
    cublasStatus_t st = cublasLtMatmulPreferenceCreate(&preference);
    if (st) return st;
    st = prefer(plan, preference);
    if (!st)
        st = cublasLtMatmulAlgoGetHeuristic(plan->ctx->blas, p->product, p->a, p->b, p->d, p->d, preference,
                                            1, &found, &nfound);
    cublasLtMatmulPreferenceDestroy(preference);
    if (!st && nfound > 0) st = found.state;
    p->algo = found.algo;
    p->workspace_bytes = found.workspaceSize;
    return st ? st : nfound > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static const char *name_of(cublasLtEpilogue_t epilogue)
{
    switch (epilogue) {
    case CUBLASLT_EPILOGUE_BIAS: return "+bias";
    case CUBLASLT_EPILOGUE_RELU: return "+relu";
    case CUBLASLT_EPILOGUE_RELU_BIAS: return "+bias+relu";
    case CUBLASLT_EPILOGUE_BGRADB: return "+db";
    default: return "";
    }
}

en_status eni_cuda_product_init(const en_plan *plan, const eni_cuda_factors *factors,
                                eni_cuda_product *product)
{
    memset(product, 0, sizeof *product);
    cublasStatus_t st = describe(plan, factors, product);
    if (!st) st = choose(plan, product);
    if (!st) {
        snprintf(product->name, sizeof product->name, "cublaslt%s", name_of(factors->epilogue));
        return EN_OK;
    }
    eni_cuda_product_fini(product);
    const int is_refusal = st == CUBLAS_STATUS_NOT_SUPPORTED || st == CUBLAS_STATUS_INVALID_VALUE;
    return is_refusal ? EN_EUNSUPPORTED : eni_cuda_check_blas(plan->ctx, st, "planning a matrix product");
}

void eni_cuda_product_fini(eni_cuda_product *product)
{
    cublasLtMatrixLayout_t const layouts[] = {product->a, product->b, product->d};
    for (int i = 0; i < 3; i++)
        if (layouts[i]) cublasLtMatrixLayoutDestroy(layouts[i]);
    if (product->product) cublasLtMatmulDescDestroy(product->product);
    memset(product, 0, sizeof *product);
}

en_status eni_cuda_product_run(const en_plan *plan, const eni_cuda_product *product, const void *a,
                               const void *b, const void *bias, void *d, void *workspace, const char *doing)
{
    const float one = 1.0f, zero = 0.0f;
    if (bias)
        EN_TRY(eni_cuda_check_blas(plan->ctx,
                                   cublasLtMatmulDescSetAttribute(product->product,
                                                                  CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                                                  sizeof bias),
                                   doing));
    return eni_cuda_check_blas(plan->ctx,
                               cublasLtMatmul(plan->ctx->blas, product->product, &one, a, product->a, b,
                                              product->b, &zero, d, product->d, d, product->d, &product->algo,
                                              workspace, product->workspace_bytes, eni_cuda_stream(plan)),
                               doing);
}
