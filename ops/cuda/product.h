/* product.h - a matrix product by cuBLASLt: planned once, run many times. */
#ifndef OPS_CUDA_PRODUCT_H
#define OPS_CUDA_PRODUCT_H

#include "ops/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The factors, in cuBLASLt's terms: D (m, n) = op(A) op(B), all three dense and column by column, so that our
 * row by row (rows, cols) is its (cols, rows). A and B have the plan's type. */
typedef struct eni_cuda_factors {
    int64_t m, n, k;
    bool is_a_transposed, is_b_transposed;
    uint32_t dtype; /* of D */
    cublasLtEpilogue_t epilogue;
    uint32_t bias_dtype; /* of the vector that the epilogue reads or writes beside D */
} eni_cuda_factors;

typedef struct eni_cuda_product {
    eni_cuda_factors factors;
    bool has_bias;                /* forward: it adds the bias */
    bool is_plain;                /* our own kernel: slow, but always supported */
    cublasLtMatmulDesc_t product; /* NULL after a failure, or if plain */
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    uint64_t workspace_bytes;
    char name[48];
} eni_cuda_product;

/* Product `pass` of a layer with `rows` inputs of `cols` numbers each (for a convolution: windows):
 *
 *     FORWARD    y (rows, O) = x w^T, and the bias if cuBLASLt adds it: has_bias. Not the relu:
 *                its relu turns NaN into 0, and a model that has diverged would look healthy
 *     WEIGHTS    dw (O, cols) = dy^T x, float32; wants_db: with the sum of dy, or EN_EUNSUPPORTED
 *     DATA       dx (rows, cols) = dy w
 *
 * Chooses an algorithm and tries it once, on memory of its own. EN_EUNSUPPORTED, nothing logged: no product
 * with a sum of dy; without one there always is a product. After a failure there is nothing to free. */
enum { ENI_CUDA_FORWARD, ENI_CUDA_WEIGHTS, ENI_CUDA_DATA, ENI_CUDA_PASSES };
en_status eni_cuda_product_init(const en_plan *plan, int pass, int64_t rows, int64_t cols, bool wants_db,
                                eni_cuda_product *product);
void eni_cuda_product_fini(eni_cuda_product *product); /* safe on zeroed memory */

/* All addresses are aligned to 16 bytes. bias: the epilogue's vector, or NULL. */
en_status eni_cuda_product_run(const en_plan *plan, const eni_cuda_product *product, const void *a,
                               const void *b, const void *bias, void *d, void *workspace, const char *doing);

/* product.cu: a plain product, nothing in the epilogue. */
en_status eni_cuda_product_plain(const en_plan *plan, const eni_cuda_factors *factors, const void *a,
                                 const void *b, void *d);

#ifdef __cplusplus
}
#endif
#endif
