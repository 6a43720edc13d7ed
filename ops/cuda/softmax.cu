/* softmax.cu - log-softmax over the channels, a warp per sample. y and dy are float32 whatever x is. */
#include "ops/cuda/element.h"

enum { WARPS = 4 }; /* of a block */

template <typename T>
__global__ void log_softmax_forward(const T *x, float *y, uint32_t samples, uint32_t classes)
{
    const uint32_t n = blockIdx.x * WARPS + threadIdx.x / ENI_WARP, lane = threadIdx.x % ENI_WARP;
    if (n >= samples) return;
    const T *row = x + (size_t)n * classes;
    float largest = -INFINITY, sum = 0.0f;
    for (uint32_t k = lane; k < classes; k += ENI_WARP)
        largest = fmaxf(largest, to_float(row[k]));
    largest = warp_max(largest);
    for (uint32_t k = lane; k < classes; k += ENI_WARP)
        sum += expf(to_float(row[k]) - largest);
    const float log_sum = logf(warp_sum(sum));
    for (uint32_t k = lane; k < classes; k += ENI_WARP)
        y[(size_t)n * classes + k] = to_float(row[k]) - largest - log_sum;
}

/* dx = dy - softmax(x) * sum(dy), softmax(x) = exp(y). */
template <typename T>
__global__ void log_softmax_backward(const float *y, const float *dy, T *dx, uint32_t samples,
                                     uint32_t classes)
{
    const uint32_t n = blockIdx.x * WARPS + threadIdx.x / ENI_WARP, lane = threadIdx.x % ENI_WARP;
    if (n >= samples) return;
    const size_t row = (size_t)n * classes;
    float sum = 0.0f;
    for (uint32_t k = lane; k < classes; k += ENI_WARP)
        sum += dy[row + k];
    sum = warp_sum(sum);
    for (uint32_t k = lane; k < classes; k += ENI_WARP)
        from_float(dy[row + k] - expf(y[row + k]) * sum, dx + row + k);
}

template <typename T> static en_status run_forward(const en_plan *plan, const en_args *args)
{
    const uint32_t samples = (uint32_t)plan->op.x.n, classes = (uint32_t)plan->op.x.c;
    return ENI_LAUNCH(plan->ctx, log_softmax_forward<T>, eni_blocks(samples, WARPS), WARPS * ENI_WARP,
                      eni_cuda_stream(plan), (const T *)args->x, (float *)args->y, samples, classes);
}

template <typename T> static en_status run_backward(const en_plan *plan, const en_args *args)
{
    const uint32_t samples = (uint32_t)plan->op.x.n, classes = (uint32_t)plan->op.x.c;
    return ENI_LAUNCH(plan->ctx, log_softmax_backward<T>, eni_blocks(samples, WARPS), WARPS * ENI_WARP,
                      eni_cuda_stream(plan), (const float *)args->y, (const float *)args->dy, (T *)args->dx,
                      samples, classes);
}

ENI_TYPED_CALL(forward, run_forward)
ENI_TYPED_CALL(backward, run_backward)

const eni_cuda_kernel eni_cuda_log_softmax = {NULL, NULL, forward, NULL, backward};
