/* relu.cu - elementwise operations: relu, the bias and relu after a convolution, casts. */
#include "ops/cuda/element.h"

/* y = x as another type, with a bias if given, and a relu; y may be x. A thread has a pack. */
template <typename X, typename Y, int V>
__global__ void copy_as(const X *x, Y *y, const float *b, uint32_t packs, uint32_t channels, int relu)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= packs) return;
    const float *bias = b ? b + i % (channels / V) * V : NULL;
    const eni_pack<X, V> from = ((const eni_pack<X, V> *)x)[i];
    eni_pack<Y, V> to;
    for (int k = 0; k < V; k++) {
        const float v = bias ? to_float(from.at[k]) + bias[k] : to_float(from.at[k]);
        from_float(relu ? relu_of(v) : v, &to.at[k]);
    }
    ((eni_pack<Y, V> *)y)[i] = to;
}

template <typename T, int V> __global__ void relu_backward(const T *y, const T *dy, T *dx, uint32_t packs)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= packs) return;
    const eni_pack<T, V> at = ((const eni_pack<T, V> *)y)[i];
    eni_pack<T, V> d = ((const eni_pack<T, V> *)dy)[i];
    for (int k = 0; k < V; k++)
        if (to_float(at.at[k]) <= 0.0f) from_float(0.0f, &d.at[k]);
    ((eni_pack<T, V> *)dx)[i] = d;
}

template <typename X, typename Y, int V>
static en_status run_copy(const en_plan *plan, const void *x, void *y, const float *b, int relu)
{
    const int64_t packs = en_extent_count(plan->y) / V;
    return ENI_RUN(plan, (copy_as<X, Y, V>), packs, (const X *)x, (Y *)y, b, (uint32_t)packs,
                   (uint32_t)plan->y.c, relu);
}

template <typename T, int V> static en_status run_relu(const en_plan *plan, const en_args *args)
{
    return run_copy<T, T, V>(plan, args->x, args->y, NULL, 1);
}

template <typename T, int V> static en_status run_backward(const en_plan *plan, const en_args *args)
{
    const int64_t packs = en_extent_count(plan->op.x) / V;
    return ENI_RUN(plan, (relu_backward<T, V>), packs, (const T *)args->y, (const T *)args->dy, (T *)args->dx,
                   (uint32_t)packs);
}

template <typename T, int V> static en_status run_cast(const en_plan *plan, const en_args *args)
{
    return run_copy<float, T, V>(plan, args->x, args->y, NULL, 0);
}

template <typename T, int V>
static en_status run_bias(const en_plan *plan, const en_args *args, const float *b)
{
    return run_copy<T, T, V>(plan, args->y, args->y, b, (plan->op.flags & EN_OP_FUSE_RELU) != 0);
}

ENI_PACKED_CALL(relu, run_relu, en_extent_count(plan->y))
ENI_PACKED_CALL(relu_back, run_backward, en_extent_count(plan->y))
ENI_PACKED_CALL(cast, run_cast, en_extent_count(plan->y))

const eni_cuda_kernel eni_cuda_relu = {NULL, NULL, relu, NULL, relu_back};
const eni_cuda_kernel eni_cuda_cast = {NULL, NULL, cast, NULL, NULL}; /* op_plan.c: never has a backward */

en_status eni_cuda_bias_relu(const en_plan *plan, const en_args *args, bool has_bias)
{
    const float *b = plan->op.flags & EN_OP_BIAS && !has_bias ? (const float *)args->b : NULL;
    if (!b && !(plan->op.flags & EN_OP_FUSE_RELU)) return EN_OK;
    return ENI_PACKED(plan->op.dtype, plan->y.c, run_bias, plan, args, b);
}
