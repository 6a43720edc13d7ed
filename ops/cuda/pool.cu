/* pool.cu - the largest value of each window, with or without relu: a byte per output has its position in the
 * window (ops/ref/pool.c). And the mean of each window, padding counted as zeros. A thread has up to four
 * neighbouring channels of one pixel:
 *
 *     forward    one output pixel: reads its window
 *     backward   one input pixel: adds the gradients of the windows over it, in ref's order; no atomics, and
 *                pixels that no window covers become 0 */
#include "ops/cuda/element.h"

enum { NOWHERE = 255 }; /* with relu: no value was positive */

/* K: the side of a square window that is known at compile time, or 0. */
template <typename T, int V, int K, int RELU>
__global__ void pool_forward(const T *x, T *y, uint8_t *saved, eni_window s, uint32_t count)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const uint32_t c = i % s.packs, pixel = i / s.packs;
    const uint32_t q = pixel % s.out_w, p = pixel / s.out_w % s.out_h, n = pixel / s.out_w / s.out_h;
    const int top = (int)(p * s.stride_h) - (int)s.pad_h, left = (int)(q * s.stride_w) - (int)s.pad_w;
    const int kh = K ? K : (int)s.kernel_h, kw = K ? K : (int)s.kernel_w;
    float best[V];
    uint8_t position[V];
    for (int k = 0; k < V; k++) {
        best[k] = -INFINITY;
        position[k] = NOWHERE;
    }
    for (int r = 0; r < kh; r++)
        for (int t = 0; t < kw; t++) {
            const int row = top + r, col = left + t;
            if (row < 0 || row >= (int)s.h || col < 0 || col >= (int)s.w) continue;
            const eni_pack<T, V> v =
                ((const eni_pack<T, V> *)x)[((n * s.h + (uint32_t)row) * s.w + (uint32_t)col) * s.packs + c];
            for (int k = 0; k < V; k++) {
                const float value = to_float(v.at[k]);
                if (position[k] != NOWHERE && !(value > best[k]) && value == value) continue;
                best[k] = value;
                position[k] = (uint8_t)(r * kw + t);
            }
        }
    eni_pack<T, V> to;
    eni_pack<uint8_t, V> positions;
    for (int k = 0; k < V; k++) {
        const bool is_blocked = RELU && best[k] <= 0.0f;
        from_float(is_blocked ? 0.0f : best[k], &to.at[k]);
        positions.at[k] = is_blocked ? (uint8_t)NOWHERE : position[k];
    }
    ((eni_pack<T, V> *)y)[i] = to;
    if (saved) ((eni_pack<uint8_t, V> *)saved)[i] = positions;
}

/* `part` is one over the positions of a window. */
template <typename T, int V>
__global__ void mean_forward(const T *x, T *y, float part, eni_window s, uint32_t count)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const uint32_t c = i % s.packs, pixel = i / s.packs;
    const uint32_t q = pixel % s.out_w, p = pixel / s.out_w % s.out_h, n = pixel / s.out_w / s.out_h;
    const int top = (int)(p * s.stride_h) - (int)s.pad_h, left = (int)(q * s.stride_w) - (int)s.pad_w;
    float sum[V] = {};
    for (int row = max(top, 0); row < min(top + (int)s.kernel_h, (int)s.h); row++)
        for (int col = max(left, 0); col < min(left + (int)s.kernel_w, (int)s.w); col++) {
            const eni_pack<T, V> v =
                ((const eni_pack<T, V> *)x)[((n * s.h + (uint32_t)row) * s.w + (uint32_t)col) * s.packs + c];
            for (int k = 0; k < V; k++)
                sum[k] += to_float(v.at[k]);
        }
    eni_pack<T, V> to;
    for (int k = 0; k < V; k++)
        from_float(sum[k] * part, &to.at[k]);
    ((eni_pack<T, V> *)y)[i] = to;
}

/* saved NULL: all positions of a window get `part` of its dy; else the saved one gets all, `part` 1. */
template <typename T, int V>
__global__ void pool_backward(const T *dy, const uint8_t *saved, T *dx, float part, eni_window s,
                              uint32_t count)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const uint32_t c = i % s.packs, pixel = i / s.packs;
    const uint32_t col = pixel % s.w + s.pad_w, row = pixel / s.w % s.h + s.pad_h, n = pixel / s.w / s.h;
    float sum[V] = {};
    /* The windows that cover (row, col), both counted from the edge of the padding. */
    const uint32_t first_p = row < s.kernel_h ? 0 : (row - s.kernel_h) / s.stride_h + 1;
    const uint32_t first_q = col < s.kernel_w ? 0 : (col - s.kernel_w) / s.stride_w + 1;
    for (uint32_t p = first_p; p < s.out_h && p * s.stride_h <= row; p++)
        for (uint32_t q = first_q; q < s.out_w && q * s.stride_w <= col; q++) {
            const uint32_t at = ((n * s.out_h + p) * s.out_w + q) * s.packs + c;
            const uint32_t here = (row - p * s.stride_h) * s.kernel_w + col - q * s.stride_w;
            const eni_pack<T, V> d = ((const eni_pack<T, V> *)dy)[at];
            eni_pack<uint8_t, V> positions;
            if (saved) positions = ((const eni_pack<uint8_t, V> *)saved)[at];
            for (int k = 0; k < V; k++)
                if (!saved || positions.at[k] == here) sum[k] += to_float(d.at[k]);
        }
    eni_pack<T, V> to;
    for (int k = 0; k < V; k++)
        from_float(sum[k] * part, &to.at[k]);
    ((eni_pack<T, V> *)dx)[i] = to;
}

template <typename T, int V, int K, int RELU>
static en_status run_forward(const en_plan *plan, const en_args *args)
{
    const int64_t count = en_extent_count(plan->y) / V;
    uint8_t *saved = plan->op.flags & EN_OP_FORWARD_ONLY ? NULL : (uint8_t *)args->saved;
    return ENI_RUN(plan, (pool_forward<T, V, K, RELU>), count, (const T *)args->x, (T *)args->y, saved,
                   eni_window_of(plan, V), (uint32_t)count);
}

template <typename T, int V> static en_status run_forward(const en_plan *plan, const en_args *args)
{
    const int64_t side = plan->op.kernel_h == plan->op.kernel_w ? plan->op.kernel_h : 0;
    if (plan->op.kind == EN_OP_RELU_MAXPOOL)
        return side == 2 ? run_forward<T, V, 2, 1>(plan, args) : run_forward<T, V, 0, 1>(plan, args);
    return side == 2   ? run_forward<T, V, 2, 0>(plan, args)
           : side == 3 ? run_forward<T, V, 3, 0>(plan, args)
                       : run_forward<T, V, 0, 0>(plan, args);
}

static float part_of(eni_window s)
{
    return 1.0f / ((float)s.kernel_h * (float)s.kernel_w);
}

template <typename T, int V> static en_status run_mean(const en_plan *plan, const en_args *args)
{
    const int64_t count = en_extent_count(plan->y) / V;
    const eni_window s = eni_window_of(plan, V);
    return ENI_RUN(plan, (mean_forward<T, V>), count, (const T *)args->x, (T *)args->y, part_of(s), s,
                   (uint32_t)count);
}

template <typename T, int V> static en_status run_backward(const en_plan *plan, const en_args *args)
{
    const int64_t count = en_extent_count(plan->op.x) / V;
    const bool is_mean = plan->op.kind == EN_OP_AVGPOOL;
    const eni_window s = eni_window_of(plan, V);
    return ENI_RUN(plan, (pool_backward<T, V>), count, (const T *)args->dy,
                   is_mean ? NULL : (const uint8_t *)args->saved, (T *)args->dx, is_mean ? part_of(s) : 1.0f,
                   s, (uint32_t)count);
}

/* Saves a byte per output: its position. */
static en_status prepare(en_plan *plan)
{
    if (!(plan->op.flags & EN_OP_FORWARD_ONLY)) plan->info.saved_bytes = (uint64_t)en_extent_count(plan->y);
    return EN_OK;
}

ENI_PACKED_CALL(forward, run_forward, plan->y.c)
ENI_PACKED_CALL(mean, run_mean, plan->y.c)
ENI_PACKED_CALL(backward, run_backward, plan->y.c)

const eni_cuda_kernel eni_cuda_pool = {prepare, NULL, forward, NULL, backward};
const eni_cuda_kernel eni_cuda_avgpool = {NULL, NULL, mean, NULL, backward};
