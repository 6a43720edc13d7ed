/* relu.cu - what works element by element: relu, the bias and relu behind a convolution, casts. */
#include "ops/cuda/element.h"

enum { PACK = 4 }; /* elements of a thread */

/* y may be x: each thread reads its pack before it writes it. */
template <typename X, typename Y, int RELU> __global__ void copy_as(const X *x, Y *y, uint32_t count)
{
    const uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) * PACK;
    if (i + PACK <= count) {
        const eni_pack<X, PACK> from = *(const eni_pack<X, PACK> *)(x + i);
        eni_pack<Y, PACK> to;
        for (int k = 0; k < PACK; k++) {
            const float v = to_float(from.at[k]);
            from_float(RELU ? relu_of(v) : v, &to.at[k]);
        }
        *(eni_pack<Y, PACK> *)(y + i) = to;
        return;
    }
    for (uint32_t k = i; k < count; k++) {
        const float v = to_float(x[k]);
        from_float(RELU ? relu_of(v) : v, y + k);
    }
}

template <typename T> __global__ void relu_backward(const T *y, const T *dy, T *dx, uint32_t count)
{
    const uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) * PACK;
    if (i + PACK <= count) {
        const eni_pack<T, PACK> at = *(const eni_pack<T, PACK> *)(y + i);
        eni_pack<T, PACK> d = *(const eni_pack<T, PACK> *)(dy + i);
        for (int k = 0; k < PACK; k++)
            if (to_float(at.at[k]) <= 0.0f) from_float(0.0f, &d.at[k]);
        *(eni_pack<T, PACK> *)(dx + i) = d;
        return;
    }
    for (uint32_t k = i; k < count; k++)
        from_float(to_float(y[k]) <= 0.0f ? 0.0f : to_float(dy[k]), dx + k);
}

template <typename T, int V>
__global__ void bias_relu(T *y, const float *b, uint32_t packs, uint32_t channels, int relu)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= packs) return;
    const uint32_t c = i % (channels / V) * V;
    eni_pack<T, V> v = ((eni_pack<T, V> *)y)[i];
    for (int k = 0; k < V; k++) {
        const float sum = to_float(v.at[k]) + (b ? b[c + k] : 0.0f);
        from_float(relu ? relu_of(sum) : sum, &v.at[k]);
    }
    ((eni_pack<T, V> *)y)[i] = v;
}

template <typename X, typename Y, int RELU>
static en_status run_copy(const en_plan *plan, const en_args *args)
{
    const int64_t count = en_extent_count(plan->op.x);
    return ENI_LAUNCH(plan->ctx, (copy_as<X, Y, RELU>), eni_blocks(count, ENI_BLOCK * PACK), ENI_BLOCK,
                      eni_cuda_stream(plan), (const X *)args->x, (Y *)args->y, (uint32_t)count);
}

template <typename T> static en_status run_backward(const en_plan *plan, const en_args *args)
{
    const int64_t count = en_extent_count(plan->op.x);
    return ENI_LAUNCH(plan->ctx, relu_backward<T>, eni_blocks(count, ENI_BLOCK * PACK), ENI_BLOCK,
                      eni_cuda_stream(plan), (const T *)args->y, (const T *)args->dy, (T *)args->dx,
                      (uint32_t)count);
}

template <typename T, int V>
static en_status run_bias(const en_plan *plan, const en_args *args, const float *b)
{
    const int64_t packs = en_extent_count(plan->y) / V;
    return ENI_RUN(plan, (bias_relu<T, V>), packs, (T *)args->y, b, (uint32_t)packs, (uint32_t)plan->y.c,
                   (plan->op.flags & EN_OP_FUSE_RELU) != 0);
}

template <typename T> static en_status run_bias(const en_plan *plan, const en_args *args, const float *b)
{
    return ENI_PACKED(plan->y.c, T, run_bias, plan, args, b);
}

template <typename T> static en_status run_relu(const en_plan *plan, const en_args *args)
{
    return run_copy<T, T, 1>(plan, args);
}

template <typename T> static en_status run_cast(const en_plan *plan, const en_args *args)
{
    return run_copy<float, T, 0>(plan, args);
}

static en_status relu(en_plan *plan, const en_args *args)
{
    return ENI_TYPED(plan->op.dtype, run_relu, plan, args);
}

static en_status relu_back(en_plan *plan, const en_args *args)
{
    return ENI_TYPED(plan->op.dtype, run_backward, plan, args);
}

static en_status cast(en_plan *plan, const en_args *args)
{
    return ENI_TYPED(plan->op.dtype, run_cast, plan, args);
}

const eni_cuda_kernel eni_cuda_relu = {NULL, NULL, relu, NULL, relu_back};
const eni_cuda_kernel eni_cuda_cast = {NULL, NULL, cast, NULL, NULL}; /* op_plan.c: never has a backward */

en_status eni_cuda_bias_relu(const en_plan *plan, const en_args *args, int has_bias)
{
    const float *b = plan->op.flags & EN_OP_BIAS && !has_bias ? (const float *)args->b : NULL;
    if (!b && !(plan->op.flags & EN_OP_FUSE_RELU)) return EN_OK;
    return ENI_TYPED(plan->op.dtype, run_bias, plan, args, b);
}
