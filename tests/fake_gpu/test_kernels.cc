/* Kernels of the simulated GPU: threads, barriers, shuffles, drawn orders, and what is wrong in them.
 * Compiled like a .cu of ops/cuda. */
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstddef>
#include <cstdint>

extern "C" {
#include <cmocka.h>
}

#include "tests/fake_gpu/rig.h"

#define LAUNCH(kernel, grid, block, stream, ...)                                                             \
    FINE(fake_gpu_launch(stream, dim3(grid), dim3(block), kernel, __VA_ARGS__))

namespace
{

struct Rig {
    cudaStream_t stream;
    float *x, *y, *host;
};

constexpr int count = 1000;

Rig open_rig()
{
    Rig r;
    FINE(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
    FINE(cudaMalloc((void **)&r.x, count * sizeof(float)));
    FINE(cudaMalloc((void **)&r.y, count * sizeof(float)));
    FINE(cudaMallocHost((void **)&r.host, count * sizeof(float)));
    for (int i = 0; i < count; i++)
        r.host[i] = (float)i;
    FINE(cudaMemcpyAsync(r.x, r.host, count * sizeof(float), cudaMemcpyHostToDevice, r.stream));
    return r;
}

/* The first n floats of y. */
const float *read(Rig &r, int n)
{
    FINE(cudaMemcpyAsync(r.host, r.y, (size_t)n * sizeof(float), cudaMemcpyDeviceToHost, r.stream));
    FINE(cudaStreamSynchronize(r.stream));
    return r.host;
}

template <class T, int N> __global__ void twice(const T *__restrict__ x, T *__restrict__ y, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[i] = __fmul_rn((T)N, x[i]);
}

int elementwise(void *)
{
    Rig r = open_rig();
    LAUNCH((twice<float, 2>), (count + 127) / 128, 128, r.stream, r.x, r.y, count);
    const float *y = read(r, count);
    for (int i = 0; i < count; i++)
        CLAIM(y[i] == 2 * (float)i);
    return 0;
}

/* y[block] = sum of the block's part of x: shuffles within warps, shared memory between them. */
__global__ void __launch_bounds__(256) sum(const float *x, float *y, int n)
{
    __shared__ float part[8];
    const unsigned t = threadIdx.x;
    const int i = (int)(blockIdx.x * blockDim.x + t);
    float v = i < n ? x[i] : 0.0f;
    for (int k = 16; k > 0; k /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, k);
    if (t % 32 == 0) part[t / 32] = v;
    __syncthreads();
    if (t == 0) {
        float all = 0;
        for (unsigned w = 0; w < blockDim.x / 32; w++)
            all += part[w];
        y[blockIdx.x] = all;
    }
}

int block_sums(void *)
{
    Rig r = open_rig();
    LAUNCH(sum, 4, 256, r.stream, r.x, r.y, count);
    const float *y = read(r, 4);
    for (int b = 0; b < 4; b++) {
        float wanted = 0;
        for (int i = 256 * b; i < std::min(count, 256 * b + 256); i++)
            wanted += (float)i;
        CLAIM(y[b] == wanted);
    }
    return 0;
}

/* Lanes that ended do not hold the others up; the last warp is not full. */
__global__ void tails(float *y, int n)
{
    const int t = (int)threadIdx.x;
    if (t % 32 >= 20) return;
    const float down = __shfl_down_sync(0x000fffffu, (float)t, 4);
    const float of_3 = __shfl_sync(0x000fffffu, (float)t, 3, 8);
    __syncthreads();
    const unsigned odd = __ballot_sync(0x000fffffu, t % 2);
    if (t < n) y[t] = down + 1000 * of_3 + (odd == (t / 32 == 1 ? 0xaau : 0xaaaaau) ? 0.5f : 0.25f);
}

int partial_warps(void *)
{
    Rig r = open_rig();
    LAUNCH(tails, 1, 40, r.stream, r.y, 40);
    const float *y = read(r, 40);
    for (int t = 0; t < 16; t++)
        CLAIM(y[t] == (float)(t + 4 + 1000 * (t / 8 * 8 + 3)) + 0.5f);
    for (int t = 32; t < 36; t++)
        CLAIM(y[t] == (float)(t + 4 + 1000 * 35) + 0.5f);
    return 0;
}

/* Shared memory without the barrier: thread 0 may be first. */
__global__ void no_barrier(float *y)
{
    __shared__ float all[64];
    all[threadIdx.x] = (float)threadIdx.x;
    if (threadIdx.x == 0) {
        float s = 0;
        for (int i = 0; i < 64; i++)
            s += all[i];
        *y = s;
    }
    all[threadIdx.x] = 0;
}

int race(void *)
{
    Rig r = open_rig();
    LAUNCH(no_barrier, 1, 64, r.stream, r.y);
    return read(r, 1)[0] == 64 * 63 / 2 ? 0 : 7;
}

/* Floats added in the order in which blocks come. */
__global__ void add_up(const float *x, float *y)
{
    atomicAdd(y, 1.0f / (1.0f + x[blockIdx.x]));
}

int atomics(void *user)
{
    Rig r = open_rig();
    FINE(cudaMemsetAsync(r.y, 0, 4, r.stream));
    LAUNCH(add_up, count, 1, r.stream, r.x, r.y);
    float in_order = 0;
    for (int i = 0; i < count; i++)
        in_order += 1.0f / (1.0f + (float)i);
    const float got = read(r, 1)[0];
    CLAIM(std::abs(got - in_order) < 1e-3f);
    (void)user;
    return got == in_order ? 0 : 7;
}

__global__ void half_wait(float *y)
{
    if (threadIdx.x < 16)
        __shfl_xor_sync(0xffffffffu, 1.0f, 1);
    else
        __syncthreads();
    *y = 1;
}

int deadlock(void *)
{
    Rig r = open_rig();
    LAUNCH(half_wait, 1, 32, r.stream, r.y);
    CLAIM(cudaStreamSynchronize(r.stream) == cudaErrorLaunchFailure);
    CLAIM(cudaMemsetAsync(r.y, 0, 4, r.stream) == cudaErrorLaunchFailure); /* permanently */
    CLAIM(cudaGetLastError() == cudaErrorLaunchFailure);
    CLAIM(cudaGetLastError() == cudaErrorLaunchFailure);
    return 0;
}

__global__ void beyond(float *x, int n)
{
    x[n + (int)threadIdx.x] = 1;
}

int out_of_bounds(void *)
{
    signal(SIGSEGV, SIG_DFL);
    Rig r = open_rig();
    LAUNCH(beyond, 1, 64, r.stream, r.x, count);
    FINE(cudaStreamSynchronize(r.stream));
    return 0;
}

int bad_grids(void *)
{
    Rig r = open_rig();
    CLAIM(fake_gpu_launch(r.stream, dim3(1), dim3(2048), add_up, r.x, r.y) == cudaErrorInvalidConfiguration);
    CLAIM(fake_gpu_launch(r.stream, dim3(0), dim3(32), add_up, r.x, r.y) == cudaErrorInvalidConfiguration);
    CLAIM(fake_gpu_launch(r.stream, dim3(1, 70000), dim3(32), add_up, r.x, r.y) ==
          cudaErrorInvalidConfiguration);
    return 0;
}

int fails_as_asked(void *)
{
    Rig r = open_rig();
    LAUNCH(add_up, 1, 1, r.stream, r.x, r.y);
    FINE(cudaStreamSynchronize(r.stream));
    LAUNCH(add_up, 1, 1, r.stream, r.x, r.y);
    CLAIM(cudaStreamSynchronize(r.stream) == cudaErrorIllegalAddress);
    return 0;
}

/* A word in pinned memory that a kernel counts up is seen by a host that only asks. */
__global__ void count_up(volatile unsigned *word)
{
    *word = *word + 1;
    __threadfence_system();
}

int pinned_word(void *)
{
    Rig r = open_rig();
    unsigned *word, *on_device;
    FINE(cudaHostAlloc((void **)&word, sizeof *word, cudaHostAllocMapped));
    FINE(cudaHostGetDevicePointer((void **)&on_device, word, 0));
    *word = 0;
    LAUNCH(count_up, 1, 1, r.stream, on_device);
    CLAIM(*(volatile unsigned *)word == 0);
    while (*(volatile unsigned *)word == 0)
        CLAIM(cudaStreamQuery(r.stream) != cudaErrorUnknown);
    return *word == 1 ? 0 : 7;
}

void fine(int (*body)(void *))
{
    assert_int_equal(count_fine(8, body, NULL), 8);
}

void test_threads_and_blocks(void **)
{
    fine(elementwise);
    fine(block_sums);
    fine(partial_warps);
    fine(pinned_word);
}

void test_races_show(void **)
{
    const int raced = count_fine(16, race, NULL), added = count_fine(16, atomics, NULL);
    assert_true(raced < 16);
    assert_true(added < 16);
}

void test_what_is_wrong_is_found(void **)
{
    fine(deadlock);
    fine(bad_grids);
    assert_int_equal(in_child(out_of_bounds, NULL), 128 + SIGSEGV);
    setenv("FAKE_GPU_FAIL_AT", "2", 1);
    fine(fails_as_asked);
    unsetenv("FAKE_GPU_FAIL_AT");
}

} // namespace

int main()
{
    setenv("FAKE_GPU_PAUSE_MS", "30000", 1);
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_and_blocks),
        cmocka_unit_test(test_races_show),
        cmocka_unit_test(test_what_is_wrong_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
