/* product.h - a matrix product by cuBLASLt: planned once, run many times. */
#ifndef OPS_CUDA_PRODUCT_H
#define OPS_CUDA_PRODUCT_H

#include "ops/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is to be multiplied, in cuBLASLt's terms: D (m, n) = op(A) op(B), all three dense and column by
 * column, so that our row by row (rows, cols) is its (cols, rows). A and B have the plan's type. */
typedef struct eni_cuda_factors {
    int64_t m, n, k;
    int is_a_transposed, is_b_transposed;
    uint32_t dtype; /* of D */
    cublasLtEpilogue_t epilogue;
    uint32_t bias_dtype; /* of what the epilogue reads or writes beside D */
} eni_cuda_factors;

typedef struct eni_cuda_product {
    eni_cuda_factors factors;
    int is_plain;                 /* a kernel of our own: slow, but there */
    cublasLtMatmulDesc_t product; /* NULL: there is none, or it is plain */
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    uint64_t workspace_bytes;
    char name[48];
} eni_cuda_product;

/* What does the bias that the op asks for. Its relu is not cuBLASLt's: that makes 0 of what is not a number,
 * and a model that has diverged would look well. */
cublasLtEpilogue_t eni_cuda_product_epilogue(const en_op *op);

/* Chooses an algorithm and tries it once, on memory of its own. EN_EUNSUPPORTED, nothing logged: cuBLASLt
 * does not have this epilogue; a product without one there always is. After a failure there is nothing to
 * free. */
en_status eni_cuda_product_init(const en_plan *plan, const eni_cuda_factors *factors,
                                eni_cuda_product *product);
void eni_cuda_product_fini(eni_cuda_product *product); /* safe on zeroed memory */

/* All addresses on 16 bytes. bias: what the epilogue wants, or NULL. */
en_status eni_cuda_product_run(const en_plan *plan, const eni_cuda_product *product, const void *a,
                               const void *b, const void *bias, void *d, void *workspace, const char *doing);

/* product.cu: a plain product, nothing in the epilogue. */
en_status eni_cuda_product_plain(const en_plan *plan, const eni_cuda_factors *factors, const void *a,
                                 const void *b, void *d);

#ifdef __cplusplus
}
#endif
#endif
