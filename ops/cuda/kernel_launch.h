/* kernel_launch.h - starts a kernel on a stream.
 *
 *     ENI_LAUNCH(ctx, relu_forward, blocks, threads, stream, x, y, count)    (an en_status)
 *
 * nvcc compiles the kernel for GPUs. Compiled by a C++ compiler (tests/fake_gpu), the same source runs on the
 * CPU, thread by thread: then the words of CUDA C++ come from FAKE_GPU_KERNELS, a header that the build
 * includes before everything else. */
#ifndef OPS_CUDA_LAUNCH_H
#define OPS_CUDA_LAUNCH_H

#include "ops/cuda/cuda.h"

#ifdef __CUDACC__
#define ENI_LAUNCH(ctx, kernel, grid, block, stream, ...)                                                    \
    (kernel<<<grid, block, 0, stream>>>(__VA_ARGS__), eni_cuda_check(ctx, cudaGetLastError(), #kernel))
#else
#define ENI_LAUNCH(ctx, kernel, grid, block, stream, ...)                                                    \
    eni_cuda_check(ctx, fake_gpu_launch(stream, dim3(grid), dim3(block), kernel, __VA_ARGS__), #kernel)
#endif

#endif
