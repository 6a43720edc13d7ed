/* conv.cu - a convolution as a matrix product (conv.c): images to rows of windows, and the sum of windows
 * back to images. A thread has up to four neighbouring channels. */
#include "ops/cuda/element.h"

/* `count` packs of windows (N, P, Q, KH, KW, I). */
template <typename T, int V> __global__ void unfold(const T *x, T *windows, eni_window s, uint32_t count)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const uint32_t c = i % s.packs, tap = i / s.packs, at = tap / s.kernel_w / s.kernel_h;
    const uint32_t t = tap % s.kernel_w, r = tap / s.kernel_w % s.kernel_h;
    const uint32_t q = at % s.out_w, p = at / s.out_w % s.out_h, n = at / s.out_w / s.out_h;
    const int64_t row = (int64_t)p * s.stride_h + r - s.pad_h, col = (int64_t)q * s.stride_w + t - s.pad_w;
    eni_pack<T, V> v;
    if (row >= 0 && row < s.h && col >= 0 && col < s.w)
        v = ((const eni_pack<T, V> *)x)[((n * s.h + (uint32_t)row) * s.w + (uint32_t)col) * s.packs + c];
    else
        for (int k = 0; k < V; k++)
            from_float(0.0f, &v.at[k]);
    ((eni_pack<T, V> *)windows)[i] = v;
}

/* `count` packs of dx: each adds the values of all windows over its pixel, row by row. */
template <typename T, int V> __global__ void fold(const T *windows, T *dx, eni_window s, uint32_t count)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const uint32_t c = i % s.packs, pixel = i / s.packs;
    const uint32_t col = pixel % s.w + s.pad_w, row = pixel / s.w % s.h + s.pad_h, n = pixel / s.w / s.h;
    const uint32_t first_p = row < s.kernel_h ? 0 : (row - s.kernel_h) / s.stride_h + 1;
    const uint32_t first_q = col < s.kernel_w ? 0 : (col - s.kernel_w) / s.stride_w + 1;
    float sum[V] = {};
    for (uint32_t p = first_p; p < s.out_h && p * s.stride_h <= row; p++)
        for (uint32_t q = first_q; q < s.out_w && q * s.stride_w <= col; q++) {
            const uint32_t window = (n * s.out_h + p) * s.out_w + q;
            const uint32_t r = row - p * s.stride_h, t = col - q * s.stride_w;
            const eni_pack<T, V> v =
                ((const eni_pack<T, V> *)windows)[((window * s.kernel_h + r) * s.kernel_w + t) * s.packs + c];
            for (int k = 0; k < V; k++)
                sum[k] += to_float(v.at[k]);
        }
    eni_pack<T, V> to;
    for (int k = 0; k < V; k++)
        from_float(sum[k], &to.at[k]);
    ((eni_pack<T, V> *)dx)[i] = to;
}

template <typename T, int V> static en_status run_unfold(const en_plan *plan, const void *x, void *windows)
{
    const en_op *op = &plan->op;
    const int64_t count = plan->y.n * plan->y.h * plan->y.w * op->kernel_h * op->kernel_w * (op->x.c / V);
    return ENI_RUN(plan, (unfold<T, V>), count, (const T *)x, (T *)windows, eni_window_of(plan, V),
                   (uint32_t)count);
}

template <typename T, int V> static en_status run_fold(const en_plan *plan, const void *windows, void *dx)
{
    const int64_t count = en_extent_count(plan->op.x) / V;
    return ENI_RUN(plan, (fold<T, V>), count, (const T *)windows, (T *)dx, eni_window_of(plan, V),
                   (uint32_t)count);
}

en_status eni_cuda_unfold_x(const en_plan *plan, const void *x, void *windows)
{
    return ENI_PACKED(plan->op.dtype, plan->op.x.c, run_unfold, plan, x, windows);
}

en_status eni_cuda_fold_dx(const en_plan *plan, const void *windows, void *dx)
{
    return ENI_PACKED(plan->op.dtype, plan->op.x.c, run_fold, plan, windows, dx);
}
