/* element.h - the means to write kernels once for three types: elements as float, packs of neighbours in one
 * load, sums over a warp, windows over an image; and how a kernel is started. For .cu files only. A pack of V
 * elements is aligned to V * sizeof(T) bytes. Tensors are aligned to 256 bytes, so V fits if it divides the number of
 * elements between any two addresses in use: the channels. */
#ifndef OPS_CUDA_ELEMENT_H
#define OPS_CUDA_ELEMENT_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/cuda.h"

/* Starts a kernel on a stream (an en_status):
 *
 *     ENI_LAUNCH(ctx, relu_forward, blocks, threads, stream, x, y, count)
 *     ENI_RUN(plan, relu_forward, count, x, y, count)           a thread for each of `count`, in COMPUTE
 *
 * nvcc compiles the kernel for GPUs. Compiled by a C++ compiler (tests/fake_gpu), the same source runs on the
 * CPU, thread by thread: then the words of CUDA C++ come from FAKE_GPU_KERNELS, a header that the build
 * includes before everything else. */
#ifdef __CUDACC__
#define ENI_LAUNCH(ctx, kernel, grid, block, stream, ...)                                                    \
    (kernel<<<grid, block, 0, stream>>>(__VA_ARGS__), eni_cuda_check(ctx, cudaGetLastError(), #kernel))
#else
#define ENI_LAUNCH(ctx, kernel, grid, block, stream, ...)                                                    \
    eni_cuda_check(ctx, fake_gpu_launch(stream, dim3(grid), dim3(block), kernel, __VA_ARGS__), #kernel)
#endif
#define ENI_RUN(plan, kernel, count, ...)                                                                    \
    ENI_LAUNCH((plan)->ctx, kernel, eni_blocks(count, ENI_BLOCK), ENI_BLOCK, eni_cuda_stream(plan),          \
               __VA_ARGS__)

/* run<T>(..) for a type, and run<T, V>(..) for a type and packs of V if V divides `count`: 4 or 2, else 1. */
#define ENI_TYPED(dtype, run, ...)                                                                           \
    ((dtype) == EN_BF16  ? run<eni_bf16>(__VA_ARGS__)                                                        \
     : (dtype) == EN_F16 ? run<eni_f16>(__VA_ARGS__)                                                         \
                         : run<float>(__VA_ARGS__))
#define ENI_PACKED_AS(count, T, run, ...)                                                                    \
    ((count) % 4 == 0   ? run<T, 4>(__VA_ARGS__)                                                             \
     : (count) % 2 == 0 ? run<T, 2>(__VA_ARGS__)                                                             \
                        : run<T, 1>(__VA_ARGS__))
#define ENI_PACKED(dtype, count, run, ...)                                                                   \
    ((dtype) == EN_BF16  ? ENI_PACKED_AS(count, eni_bf16, run, __VA_ARGS__)                                  \
     : (dtype) == EN_F16 ? ENI_PACKED_AS(count, eni_f16, run, __VA_ARGS__)                                   \
                         : ENI_PACKED_AS(count, float, run, __VA_ARGS__))

/* A call of an eni_cuda_kernel: run<T>(plan, args) for the plan's type, and run<T, V>(plan, args) for packs of it. */
#define ENI_TYPED_CALL(call, run)                                                                            \
    static en_status call(en_plan *plan, const en_args *args)                                                \
    {                                                                                                        \
        return ENI_TYPED(plan->op.dtype, run, plan, args);                                                   \
    }
#define ENI_PACKED_CALL(call, run, count)                                                                    \
    static en_status call(en_plan *plan, const en_args *args)                                                \
    {                                                                                                        \
        return ENI_PACKED(plan->op.dtype, count, run, plan, args);                                           \
    }

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

/* max(v, 0); NaN passes, as in ref and PyTorch. */
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

static inline int64_t eni_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline uint32_t eni_blocks(int64_t work, int64_t per_block)
{
    return (uint32_t)((work + per_block - 1) / per_block);
}

/* Windows over an image. */
typedef struct eni_window {
    uint32_t h, w, out_h, out_w, packs; /* packs of channels per pixel */
    uint32_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
} eni_window;

/* The windows of an operation with packs of `width` channels. A window of size 0 is the whole image. */
static inline eni_window eni_window_of(const en_plan *plan, int width)
{
    const en_op *op = &plan->op;
    eni_window s;
    s.h = (uint32_t)op->x.h;
    s.w = (uint32_t)op->x.w;
    s.out_h = (uint32_t)plan->y.h;
    s.out_w = (uint32_t)plan->y.w;
    s.packs = (uint32_t)(op->x.c / width);
    const bool is_all = op->kernel_h == 0;
    s.kernel_h = is_all ? s.h : (uint32_t)op->kernel_h;
    s.kernel_w = is_all ? s.w : (uint32_t)op->kernel_w;
    s.stride_h = is_all ? s.h : (uint32_t)eni_least(op->stride_h, INT32_MAX / 2);
    s.stride_w = is_all ? s.w : (uint32_t)eni_least(op->stride_w, INT32_MAX / 2);
    s.pad_h = is_all ? 0 : (uint32_t)op->pad_h;
    s.pad_w = is_all ? 0 : (uint32_t)op->pad_w;
    return s;
}

#endif
