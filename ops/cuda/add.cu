/* add.cu - the sum of two tensors, with or without relu; y may be one of them. */
#include "ops/cuda/element.h"

template <typename T, int V>
__global__ void add_forward(const T *x, const T *x2, T *y, uint32_t packs, int relu)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= packs) return;
    eni_pack<T, V> v = ((const eni_pack<T, V> *)x)[i];
    const eni_pack<T, V> with = ((const eni_pack<T, V> *)x2)[i];
    for (int k = 0; k < V; k++) {
        const float sum = to_float(v.at[k]) + to_float(with.at[k]);
        from_float(relu ? relu_of(sum) : sum, &v.at[k]);
    }
    ((eni_pack<T, V> *)y)[i] = v;
}

template <typename T, int V> static en_status run(const en_plan *plan, const en_args *args)
{
    const int64_t packs = en_extent_count(plan->y) / V;
    return ENI_RUN(plan, (add_forward<T, V>), packs, (const T *)args->x, (const T *)args->x2, (T *)args->y,
                   (uint32_t)packs, (int)(plan->op.flags & EN_OP_FUSE_RELU));
}

ENI_PACKED_CALL(forward, run, en_extent_count(plan->y))

static en_status backward(en_plan *plan, const en_args *args)
{
    if (plan->op.flags & EN_OP_FUSE_RELU) return eni_cuda_relu.backward_data(plan, args);
    if (args->dx == args->dy) return EN_OK;
    return eni_cuda_stream_copy(plan->ctx, EN_STREAM_COMPUTE, args->dx, args->dy,
                                (uint64_t)en_extent_count(plan->y) * en_dtype_bytes(plan->op.dtype),
                                EN_COPY_ON);
}

const eni_cuda_kernel eni_cuda_add = {NULL, NULL, forward, NULL, backward};
