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
    int has_bias;                 /* forward: it adds the bias */
    int is_plain;                 /* a kernel of our own: slow, but there */
    cublasLtMatmulDesc_t product; /* NULL: there is none, or it is plain */
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    uint64_t workspace_bytes;
    char name[48];
} eni_cuda_product;

/* Product `pass` of a layer with `rows` inputs of `cols` numbers each (of a convolution: windows):
 *
 *     FORWARD    y (rows, O) = x w^T, and the bias where cuBLASLt adds that: has_bias. The relu is not its:
 *                it makes 0 of what is not a number, and a model that has diverged would look well
 *     WEIGHTS    dw (O, cols) = dy^T x, float32; wants_db: with the sum of dy, or EN_EUNSUPPORTED
 *     DATA       dx (rows, cols) = dy w
 *
 * Chooses an algorithm and tries it once, on memory of its own. EN_EUNSUPPORTED, nothing logged: there is no
 * sum of dy; a product without one there always is. After a failure there is nothing to free. */
enum { ENI_CUDA_FORWARD, ENI_CUDA_WEIGHTS, ENI_CUDA_DATA, ENI_CUDA_PASSES };
en_status eni_cuda_product_init(const en_plan *plan, int pass, int64_t rows, int64_t cols, int wants_db,
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
