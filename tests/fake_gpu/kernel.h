/* kernel.h - the words of CUDA C++ for kernels that g++ compiles for the simulated GPU (kernel.cc). Included
 * by force before everything else. NVIDIA's own headers bring the types and the conversions of bf16 and fp16;
 * here is the rest of what ops/cuda uses. A word that is missing is a compile error, not a surprise. */
#ifndef FAKE_GPU_KERNEL_H
#define FAKE_GPU_KERNEL_H

#include <cuda_runtime.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __forceinline__
#define __global__
#define __device__
#define __host__
#define __shared__ static /* blocks run one after the other */
#define __constant__
#define __launch_bounds__(...)
#define __forceinline__ inline

#define FAKE_GPU_WORD __attribute__((visibility("default")))

/* The running thread's; set by kernel.cc. */
FAKE_GPU_WORD extern uint3 threadIdx, blockIdx;
FAKE_GPU_WORD extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace fake_gpu
{
FAKE_GPU_WORD cudaError_t launch(const char *name, cudaStream_t stream, dim3 grid, dim3 block,
                                 std::function<void()> thread);
FAKE_GPU_WORD void barrier();
/* All threads of `mask` come by with a value of 8 bytes and go on with that of lane `from`. */
FAKE_GPU_WORD unsigned long long exchange(unsigned mask, unsigned long long value, int from);
/* The same, with a bit each: who said yes. */
FAKE_GPU_WORD unsigned ballot(unsigned mask, bool yes);
FAKE_GPU_WORD int lane();

template <class T> T shuffle(unsigned mask, T value, int from)
{
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    unsigned long long bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = exchange(mask, bits, from);
    memcpy(&value, &bits, sizeof value);
    return value;
}
} // namespace fake_gpu

/* The `kernel<<<grid, block, 0, stream>>>(args..)` of launch.h; arguments are copied now. */
#define fake_gpu_launch(stream, grid, block, kernel, ...)                                                    \
    fake_gpu::launch_named(#kernel, stream, grid, block, kernel, __VA_ARGS__)

namespace fake_gpu
{
template <class... P, class... A>
cudaError_t launch_named(const char *name, cudaStream_t stream, dim3 grid, dim3 block, void (*kernel)(P...),
                         A &&...args)
{
    std::tuple<std::decay_t<P>...> kept(static_cast<P>(std::forward<A>(args))...);
    return launch(name, stream, grid, block, [kernel, kept] { std::apply(kernel, kept); });
}
} // namespace fake_gpu

/* ---- threads of a block -------------------------------------------------------------------------------- */

inline void __syncthreads()
{
    fake_gpu::barrier();
}
inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    fake_gpu::ballot(mask, true);
}
inline void __threadfence()
{
}
inline void __threadfence_system()
{
#ifndef __SANITIZE_THREAD__ /* which knows of no fences; one thread runs all of a kernel, under a mutex */
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}
inline void __threadfence_block()
{
}

template <class T> T __shfl_sync(unsigned mask, T v, int lane, int width = 32)
{
    const int base = fake_gpu::lane() & ~(width - 1);
    return fake_gpu::shuffle(mask, v, base + (lane & (width - 1)));
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int with, int width = 32)
{
    const int me = fake_gpu::lane(), from = me ^ with;
    return fake_gpu::shuffle(mask, v, from / width > me / width ? me : from);
}
template <class T> T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32)
{
    const int me = fake_gpu::lane(), from = me + (int)by;
    return fake_gpu::shuffle(mask, v, from / width != me / width ? me : from);
}
template <class T> T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32)
{
    const int me = fake_gpu::lane(), from = me - (int)by;
    return fake_gpu::shuffle(mask, v, from < 0 || from / width != me / width ? me : from);
}
inline unsigned __ballot_sync(unsigned mask, int yes)
{
    return fake_gpu::ballot(mask, yes);
}
inline int __any_sync(unsigned mask, int yes)
{
    return fake_gpu::ballot(mask, yes) != 0;
}
inline int __all_sync(unsigned mask, int yes)
{
    return fake_gpu::ballot(mask, !yes) == 0;
}

/* ---- atomics: only one thread runs at a time ----------------------------------------------------------- */

#define FAKE_GPU_ATOMIC(name, result)                                                                        \
    template <class T> T name(T *at, std::common_type_t<T> v)                                                \
    {                                                                                                        \
        const T old = *at;                                                                                   \
        *at = result;                                                                                        \
        return old;                                                                                          \
    }
FAKE_GPU_ATOMIC(atomicAdd, (T)(old + v))
FAKE_GPU_ATOMIC(atomicSub, (T)(old - v))
FAKE_GPU_ATOMIC(atomicOr, (T)(old | v))
FAKE_GPU_ATOMIC(atomicAnd, (T)(old &v))
FAKE_GPU_ATOMIC(atomicExch, v)
FAKE_GPU_ATOMIC(atomicMax, old < v ? v : old)
FAKE_GPU_ATOMIC(atomicMin, v < old ? v : old)
#undef FAKE_GPU_ATOMIC
template <class T> T atomicCAS(T *at, std::common_type_t<T> expected, std::common_type_t<T> v)
{
    const T old = *at;
    if (old == expected) *at = v;
    return old;
}

/* ---- memory and arithmetic ----------------------------------------------------------------------------- */

template <class T> T __ldg(const T *p)
{
    return *p;
}
template <class T> T __ldcs(const T *p)
{
    return *p;
}
template <class T> T __ldcg(const T *p)
{
    return *p;
}
template <class T> void __stcs(T *p, T v)
{
    *p = v;
}
template <class T> void __stcg(T *p, T v)
{
    *p = v;
}

/* -ffp-contract=off: each is rounded by itself */
inline float __fmul_rn(float a, float b)
{
    return a * b;
}
inline float __fadd_rn(float a, float b)
{
    return a + b;
}
inline float __fsub_rn(float a, float b)
{
    return a - b;
}
inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
inline float __frcp_rn(float a)
{
    return 1.0f / a;
}
inline float __fsqrt_rn(float a)
{
    return std::sqrt(a);
}
inline float __fmaf_rn(float a, float b, float c)
{
    return std::fma(a, b, c);
}
inline double __dmul_rn(double a, double b)
{
    return a * b;
}
inline double __dadd_rn(double a, double b)
{
    return a + b;
}
inline float __fdividef(float a, float b)
{
    return a / b;
}
inline float __expf(float a)
{
    return std::exp(a);
}
inline float __logf(float a)
{
    return std::log(a);
}

inline unsigned __float_as_uint(float a)
{
    unsigned b;
    memcpy(&b, &a, 4);
    return b;
}
inline int __float_as_int(float a)
{
    int b;
    memcpy(&b, &a, 4);
    return b;
}
inline float __uint_as_float(unsigned a)
{
    float b;
    memcpy(&b, &a, 4);
    return b;
}
inline float __int_as_float(int a)
{
    float b;
    memcpy(&b, &a, 4);
    return b;
}
inline int __popc(unsigned a)
{
    return __builtin_popcount(a);
}
inline int __clz(int a)
{
    return a ? __builtin_clz((unsigned)a) : 32;
}
inline int __ffs(int a)
{
    return __builtin_ffs(a);
}

using std::isfinite;
using std::isinf;
using std::isnan;
using std::max;
using std::min;

#endif
