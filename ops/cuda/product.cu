/* product.cu - a plain matrix product, for cases without cuBLASLt: tiles of 16 x 16 through shared memory. */
#include "ops/cuda/element.h"
#include "ops/cuda/product.h"

enum { SIDE = 16 };

typedef struct product_shape {
    uint32_t m, n, k, tiles_m;
    size_t a_row, a_col, b_row, b_col; /* from one row, or column, of op(A) and op(B) to the next */
} product_shape;

/* D (m, n) column by column, one block per tile. */
template <typename T, typename D> __global__ void multiply(const T *a, const T *b, D *d, product_shape s)
{
    __shared__ float a_tile[SIDE][SIDE + 1], b_tile[SIDE][SIDE + 1];
    const uint32_t x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    const uint32_t row = blockIdx.x % s.tiles_m * SIDE, col = blockIdx.x / s.tiles_m * SIDE;
    float sum = 0.0f;
    for (uint32_t l = 0; l < s.k; l += SIDE) {
        const bool has_a = row + x < s.m && l + y < s.k, has_b = l + x < s.k && col + y < s.n;
        a_tile[y][x] = has_a ? to_float(a[(row + x) * s.a_row + (l + y) * s.a_col]) : 0.0f;
        b_tile[y][x] = has_b ? to_float(b[(l + x) * s.b_row + (col + y) * s.b_col]) : 0.0f;
        __syncthreads();
        for (uint32_t k = 0; k < SIDE; k++)
            sum += a_tile[k][x] * b_tile[y][k];
        __syncthreads();
    }
    if (row + x < s.m && col + y < s.n) from_float(sum, d + (size_t)(col + y) * s.m + row + x);
}

template <typename T, typename D>
static en_status run(const en_plan *plan, const eni_cuda_factors *f, const void *a, const void *b, void *d)
{
    product_shape s;
    s.m = (uint32_t)f->m;
    s.n = (uint32_t)f->n;
    s.k = (uint32_t)f->k;
    s.tiles_m = eni_blocks(f->m, SIDE);
    s.a_row = f->is_a_transposed ? (size_t)f->k : 1;
    s.a_col = f->is_a_transposed ? 1 : (size_t)f->m;
    s.b_row = f->is_b_transposed ? (size_t)f->n : 1;
    s.b_col = f->is_b_transposed ? 1 : (size_t)f->k;
    return ENI_LAUNCH(plan->ctx, (multiply<T, D>), s.tiles_m * eni_blocks(f->n, SIDE), SIDE * SIDE,
                      eni_cuda_stream(plan), (const T *)a, (const T *)b, (D *)d, s);
}

template <typename T>
static en_status run(const en_plan *plan, const eni_cuda_factors *f, const void *a, const void *b, void *d)
{
    return f->dtype == EN_F32 ? run<T, float>(plan, f, a, b, d) : run<T, T>(plan, f, a, b, d);
}

en_status eni_cuda_product_plain(const en_plan *plan, const eni_cuda_factors *f, const void *a, const void *b,
                                 void *d)
{
    return ENI_TYPED(plan->op.dtype, run, plan, f, a, b, d);
}
