/* product.c - the only file that calls cuBLASLt. It takes the heuristic's first choice of algorithm, and
 * nothing is timed: all ranks and all runs choose alike. */
#include "ops/cuda/product.h"

#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

enum { MAX_WORKSPACE = 32 << 20, MIN_ALIGN = 16 };

static cudaDataType_t type_of(uint32_t dtype)
{
    return dtype == EN_BF16 ? CUDA_R_16BF : dtype == EN_F16 ? CUDA_R_16F : CUDA_R_32F;
}

static bool has_bias(cublasLtEpilogue_t epilogue)
{
    return epilogue != CUBLASLT_EPILOGUE_DEFAULT;
}

/* A dense (rows, cols), column by column. */
static cublasStatus_t layout(cublasLtMatrixLayout_t *out, uint32_t dtype, int64_t rows, int64_t cols)
{
    return cublasLtMatrixLayoutCreate(out, type_of(dtype), (uint64_t)rows, (uint64_t)cols, rows);
}

static cublasStatus_t describe(const en_plan *plan, const eni_cuda_factors *f, bool is_tf32,
                               eni_cuda_product *p)
{
    const int32_t a = f->is_a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                  b = f->is_b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t bias = type_of(f->bias_dtype);
    const void *const somewhere = (const void *)(uintptr_t)MIN_ALIGN; /* the bias's alignment; never read */
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
    for (size_t i = 0; i < (has_bias(f->epilogue) ? 5 : 3) && !st; i++)
        st = cublasLtMatmulDescSetAttribute(p->product, set[i].name, set[i].value, set[i].size);
    const uint32_t dtype = plan->op.dtype;
    if (!st) st = f->is_a_transposed ? layout(&p->a, dtype, f->k, f->m) : layout(&p->a, dtype, f->m, f->k);
    if (!st) st = f->is_b_transposed ? layout(&p->b, dtype, f->n, f->k) : layout(&p->b, dtype, f->k, f->n);
    return st ? st : layout(&p->d, f->dtype, f->m, f->n);
}

/* Sums may be split, and are added in float32: in the workspace, by a separate pass, or in D, if that is
 * float32; but with EN_OPEN_DETERMINISTIC not in D, where they may be added in order of arrival. */
static cublasStatus_t prefer(const en_plan *plan, uint32_t dtype, cublasLtMatmulPreference_t preference)
{
    const bool is_in_place = dtype == EN_F32 && !(plan->ctx->flags & EN_OPEN_DETERMINISTIC);
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE |
                             (is_in_place ? (uint32_t)CUBLASLT_REDUCTION_SCHEME_INPLACE : 0u);
    const size_t workspace = MAX_WORKSPACE;
    const uint32_t align = MIN_ALIGN;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t size;
    } set[] = {{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
               {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align, sizeof align},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align, sizeof align},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align, sizeof align},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align, sizeof align}};
    cublasStatus_t st = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < sizeof set / sizeof *set && !st; i++)
        st = cublasLtMatmulPreferenceSetAttribute(preference, set[i].name, set[i].value, set[i].size);
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
    st = prefer(plan, p->factors.dtype, preference);
    if (!st)
        st = cublasLtMatmulAlgoGetHeuristic(plan->ctx->blas, p->product, p->a, p->b, p->d, p->d, preference,
                                            1, &found, &nfound);
    cublasLtMatmulPreferenceDestroy(preference);
    if (!st && nfound > 0) st = found.state;
    p->algo = found.algo;
    p->workspace_bytes = found.workspaceSize;
    return st ? st : nfound > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static cublasStatus_t multiply(const en_plan *plan, const eni_cuda_product *p, const void *a, const void *b,
                               const void *bias, void *d, void *workspace)
{
    const float one = 1.0f, zero = 0.0f;
    if (bias) {
        const cublasStatus_t st =
            cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
        if (st) return st;
    }
    return cublasLtMatmul(plan->ctx->blas, p->product, &one, a, p->a, b, p->b, &zero, d, p->d, d, p->d,
                          &p->algo, workspace, p->workspace_bytes, eni_cuda_stream(plan));
}

/* Once, on zeros: the heuristic's choice may still be refused at run time. *status_out: cuBLASLt's answer. */
static en_status try_once(const en_plan *plan, const eni_cuda_product *p, cublasStatus_t *status_out)
{
    const eni_cuda_factors *f = &p->factors;
    const int64_t counts[] = {f->m * f->k, f->k * f->n, f->m * f->n, f->m > f->n ? f->m : f->n};
    uint64_t at[5], bytes = 0;
    for (int i = 0; i < 5; i++) {
        at[i] = bytes;
        if (i < 4) bytes += eni_round_up((uint64_t)counts[i] * sizeof(float), ENI_CUDA_ALIGN);
    }
    bytes += p->workspace_bytes;
    const char *doing = "memory to try a matrix product on";
    void *memory = NULL;
    EN_TRY(eni_cuda_check(plan->ctx, cudaMalloc(&memory, bytes), doing));
    char *of = memory;
    en_status st = eni_cuda_check(plan->ctx, cudaMemsetAsync(memory, 0, bytes, eni_cuda_stream(plan)), doing);
    if (st == EN_OK)
        *status_out = multiply(plan, p, of + at[0], of + at[1], has_bias(f->epilogue) ? of + at[3] : NULL,
                               of + at[2], of + at[4]);
    if (st == EN_OK) st = eni_cuda_finish(plan->ctx, eni_cuda_stream(plan), doing);
    if (!plan->ctx->is_hung) cudaFree(memory);
    return st;
}

static en_status take_plain(const eni_cuda_factors *f, eni_cuda_product *product)
{
    eni_info("cuda", "cuBLASLt has no product of (%lld, %lld) and (%lld, %lld): using ours, which is slow",
             (long long)f->m, (long long)f->k, (long long)f->k, (long long)f->n);
    *product = (eni_cuda_product){.factors = *f, .is_plain = true, .name = "kernel"};
    return EN_OK;
}

/* EN_EUNSUPPORTED, nothing logged, nothing to free: cuBLASLt does not support this. */
static en_status take_library(const en_plan *plan, const eni_cuda_factors *factors, bool is_tf32,
                              eni_cuda_product *product)
{
    *product = (eni_cuda_product){.factors = *factors};
    cublasStatus_t status = describe(plan, factors, is_tf32, product);
    en_status st = EN_OK;
    if (!status) status = choose(plan, product);
    if (!status) st = try_once(plan, product, &status);
    if (st == EN_OK && !status) {
        snprintf(product->name, sizeof product->name, "cublaslt%s",
                 factors->epilogue == CUBLASLT_EPILOGUE_BIAS     ? "+bias"
                 : factors->epilogue == CUBLASLT_EPILOGUE_BGRADB ? "+db"
                                                                 : "");
        return EN_OK;
    }
    eni_cuda_product_fini(product);
    return st != EN_OK ? st : EN_EUNSUPPORTED;
}

/* TF32 is optional: GPUs without it use 32 bits. */
static en_status take(const en_plan *plan, const eni_cuda_factors *factors, eni_cuda_product *product)
{
    const bool is_tf32 = plan->op.dtype == EN_F32 && plan->ctx->flags & EN_OPEN_TF32;
    en_status st = take_library(plan, factors, is_tf32, product);
    if (st == EN_EUNSUPPORTED && is_tf32) st = take_library(plan, factors, false, product);
    if (st != EN_EUNSUPPORTED || factors->epilogue != CUBLASLT_EPILOGUE_DEFAULT) return st;
    return take_plain(factors, product);
}

/* cuBLASLt reads our rows as columns:
 *
 *     y^T  (O, rows)    = w^T' (O, cols)    x^T (cols, rows)
 *     dw^T (cols, O)    = x^T  (cols, rows) dy^T' (rows, O)
 *     dx^T (cols, rows) = w^T  (cols, O)    dy^T (O, rows) */
en_status eni_cuda_product_init(const en_plan *plan, int pass, int64_t rows, int64_t cols, bool wants_db,
                                eni_cuda_product *product)
{
    const int64_t out = plan->op.channels;
    eni_cuda_factors f = {.m = cols, .n = rows, .k = out, .dtype = plan->op.dtype};
    f.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    if (pass == ENI_CUDA_FORWARD) {
        f.m = out, f.k = cols;
        f.is_a_transposed = true;
        if (plan->op.flags & EN_OP_BIAS) f.epilogue = CUBLASLT_EPILOGUE_BIAS;
    } else if (pass == ENI_CUDA_WEIGHTS) {
        f.n = out, f.k = rows;
        f.is_b_transposed = true;
        f.dtype = EN_F32;
        if (wants_db) f.epilogue = CUBLASLT_EPILOGUE_BGRADB;
    }
    f.bias_dtype = f.dtype;
    const en_status st = take(plan, &f, product);
    product->has_bias = st == EN_OK && f.epilogue == CUBLASLT_EPILOGUE_BIAS;
    if (st != EN_EUNSUPPORTED || f.epilogue != CUBLASLT_EPILOGUE_BIAS) return st;
    f.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return take(plan, &f, product);
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
    if (product->is_plain) return eni_cuda_product_plain(plan, &product->factors, a, b, d);
    return eni_cuda_check_blas(plan->ctx, multiply(plan, product, a, b, bias, d, workspace), doing);
}
