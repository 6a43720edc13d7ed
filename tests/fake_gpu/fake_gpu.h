/* fake_gpu.h - the simulated GPU as its own libraries see it: cuBLASLt, cuDNN and NCCL put work into streams
 * through this. The product includes NVIDIA's headers.
 *
 *     build/fake/plugins/device_cuda.so      ops/cuda, compiled by gcc and g++
 *                  |  cudaMalloc, cudnnConvolutionForward, ..; fake_gpu_launch for its kernels (kernel.h)
 *                  |  its dlopen is fake_gpu_dlopen: libnccl is found in here
 *     build/fake/plugins/libfake_gpu.so      everything in this folder; exports what has C linkage or
 * FAKE_GPU_API
 *
 * Work is done late: when somebody waits or asks, by that thread, one piece at a time, in a seeded order that
 * only streams and events restrict. Device memory can be touched in a piece of work and nowhere else; a
 * pointer may be checked at any time. All calls may be made from any thread; those marked (locked) only
 * within a piece of work, and every other one never within one. */
#ifndef TESTS_FAKE_GPU_H
#define TESTS_FAKE_GPU_H

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#define FAKE_GPU_API __attribute__((visibility("default")))

namespace fake_gpu
{

/* ---- work -------------------------------------------------------------------------------------------- */

using Work = std::function<void()>;

/* Puts a piece of work into the stream, or into the graph that the stream is recording: then it runs once per
 * launch. `name`, a literal, is what errors and graph nodes are called. Its captured values must stay valid
 * as long as the graph does. cudaSuccess, or why not (a stream that was destroyed, a failed device). */
FAKE_GPU_API cudaError_t enqueue(cudaStream_t stream, const char *name, Work work);

/* Work that waits for something outside of this process's GPUs: a peer of a collective. When its turn has
 * come, begin() gives the function that is asked from then on, again and again (every 50 us or so, other work
 * in between), until it does not say not_yet. It must not block. failed: the stream goes on, as after
 * ncclCommAbort. (A graph calls begin() once per launch.) */
enum class Turn { done, not_yet, failed };
using Poll = std::function<Turn()>;
FAKE_GPU_API cudaError_t enqueue_polled(cudaStream_t stream, const char *name, std::function<Poll()> begin);

/* The device fails now, as after an illegal address in a kernel: the rest of the work is dropped, every later
 * call of the runtime returns this. (locked) */
FAKE_GPU_API void fail_device(cudaError_t error);

/* Goes on with pending work for a while, as a call of cudaEventQuery does. For functions of a library that
 * poll: ncclCommGetAsyncError. */
FAKE_GPU_API void progress();

/* Blocks until the stream's work is done (cudaStreamSynchronize without its checks). */
FAKE_GPU_API void drain(cudaStream_t stream);

/* ---- what is where ------------------------------------------------------------------------------------- */

/* 1 if [memory, memory + bytes) lies within one live allocation that the GPU reaches: cudaMalloc, opened IPC
 * memory, pinned host memory. Else complains on behalf of `who` and returns 0. bytes 0: always 1. */
FAKE_GPU_API int reaches(const char *who, const void *memory, size_t bytes);
/* The same, device memory alone. */
FAKE_GPU_API int is_device_memory(const char *who, const void *memory, size_t bytes);

FAKE_GPU_API int current_device();               /* of the calling thread, as index in this process */
FAKE_GPU_API int device_of(cudaStream_t stream); /* -1: no such stream */
FAKE_GPU_API bool is_capturing(cudaStream_t stream);
FAKE_GPU_API const unsigned char *uuid_of(int device); /* 16 bytes: the same GPU in every process */

/* The device's context is there from now on, as after a first cudaMalloc
 * (nvmlDeviceGetComputeRunningProcesses tells). */
FAKE_GPU_API void touch_context();

/* ---- odds and ends ---------------------------------------------------------------------------------------
 */

/* Prints "fake_gpu: WHO: .." on stderr: the first place that knows of wrong use says what is wrong. */
FAKE_GPU_API void complain(const char *who, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A switch from the environment, read at the first call and kept: "" where it is not set. */
FAKE_GPU_API const char *option(const char *name);
FAKE_GPU_API int64_t option_number(const char *name, int64_t otherwise);

} // namespace fake_gpu

#endif
