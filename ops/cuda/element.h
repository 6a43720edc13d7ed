/* element.h - what kernels need to be written once for three types: elements as float, packs of neighbours
 * that travel in one load, sums over a warp. For .cu files only.
 *
 * A pack of V elements lies on V * sizeof(T) bytes. Tensors begin on 256 bytes, so V fits where it divides
 * the number of elements between any two addresses that are used: the channels. */
#ifndef OPS_CUDA_ELEMENT_H
#define OPS_CUDA_ELEMENT_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/kernel_launch.h"

typedef __nv_bfloat16 eni_bf16;
typedef __half eni_f16;

enum { ENI_WARP = 32, ENI_BLOCK = 256 };

__device__ __forceinline__ float to_float(float v)
{
    return v;
}

__device__ __forceinline__ float to_float(eni_bf16 v)
{
    return __bfloat162float(v);
}

__device__ __forceinline__ float to_float(eni_f16 v)
{
    return __half2float(v);
}

__device__ __forceinline__ void from_float(float v, float *to)
{
    *to = v;
}

__device__ __forceinline__ void from_float(float v, eni_bf16 *to)
{
    *to = __float2bfloat16_rn(v);
}

__device__ __forceinline__ void from_float(float v, eni_f16 *to)
{
    *to = __float2half_rn(v);
}

template <typename T, int V> struct __align__(sizeof(T) * V) eni_pack
{
    T at[V];
};

/* max(v, 0) that lets pass what is not a number, as ref and PyTorch do. */
__device__ __forceinline__ float relu_of(float v)
{
    return v <= 0.0f ? 0.0f : v;
}

/* All lanes get the sum; each adds in the same order. */
__device__ __forceinline__ float warp_sum(float v)
{
    for (int step = ENI_WARP / 2; step > 0; step /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

__device__ __forceinline__ float warp_max(float v)
{
    for (int step = ENI_WARP / 2; step > 0; step /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
}

/* NULL stands for 1. */
__device__ __forceinline__ float scale_of(const float *loss_scale)
{
    return loss_scale ? *loss_scale : 1.0f;
}

/* The widest pack that divides a count. */
static inline int eni_pack_width(int64_t count)
{
    return count % 4 == 0 ? 4 : count % 2 == 0 ? 2 : 1;
}

static inline int64_t eni_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline uint32_t eni_blocks(int64_t work, int64_t per_block)
{
    return (uint32_t)((work + per_block - 1) / per_block);
}

#endif
