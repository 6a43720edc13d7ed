/* device.c - the tables of the cuda device (entrain/device.h, entrain/gpu.h), a context's lifetime, memory. A
 * context is a GPU, three streams and the handles of two libraries. The streams do not wait for CUDA's
 * default stream, which nobody here uses. */
#include "entrain/device.h"

#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "ops/cuda/cuda.h"
#include "ops/ref/ref.h"

/* CUDA allocates small pieces from blocks of 2 MiB, and a process that opens one piece by its handle sees the
 * whole block. Memory that may be shared has blocks of its own. */
enum { BLOCK_BYTES = 2 << 20 };

/* EXCHANGE has priority over the others: a rank that finishes an exchange late holds up the other ranks. */
static en_status open_streams(en_ctx *ctx)
{
    int least = 0, greatest = 0;
    EN_TRY(eni_cuda_check(ctx, cudaDeviceGetStreamPriorityRange(&least, &greatest),
                          "querying stream priorities"));
    for (int q = 0; q < EN_STREAMS; q++) {
        const int priority = q == EN_STREAM_EXCHANGE ? greatest : least;
        EN_TRY(eni_cuda_check(ctx,
                              cudaStreamCreateWithPriority(&ctx->stream[q], cudaStreamNonBlocking, priority),
                              "opening a stream"));
    }
    return EN_OK;
}

static en_status open_libraries(en_ctx *ctx)
{
    EN_TRY(eni_cuda_check_blas(ctx, cublasLtCreate(&ctx->blas), "opening cuBLASLt"));
    EN_TRY(eni_cuda_check_dnn(ctx, cudnnCreate(&ctx->dnn), "opening cuDNN"));
    return eni_cuda_check_dnn(ctx, cudnnSetStream(ctx->dnn, ctx->stream[EN_STREAM_COMPUTE]), "opening cuDNN");
}

/* The first call that allocates memory on the GPU: a driver makes its own context here, which can fail for
 * lack of memory, or because the GPU is reserved for one process. */
static en_status open_gpu(en_ctx *ctx)
{
    const cudaError_t error = cudaSetDevice(ctx->index);
    if (error == cudaSuccess) return EN_OK;
    (void)cudaGetLastError();
    if (error == cudaErrorDevicesUnavailable)
        eni_error("cuda",
                  "%s is in exclusive mode and in use by another process: wait for it, pick another with "
                  "--device=cuda:I, or have an administrator run nvidia-smi -c 0",
                  ctx->name);
    else if (error == cudaErrorMemoryAllocation)
        eni_error("cuda", "%s has no memory left for a context: \"entrain gpus\" shows who uses it",
                  ctx->name);
    else
        eni_error("cuda", "opening %s failed: CUDA error %d, %s; see nvidia-smi, or use --device=cpu",
                  ctx->name, (int)error, cudaGetErrorString(error));
    return error == cudaErrorMemoryAllocation ? EN_ENOMEM : EN_EUNSUPPORTED;
}

static void describe(en_ctx *ctx, const en_gpu_facts *facts)
{
    int driver = 0, runtime = 0;
    const int dnn = (int)cudnnGetVersion();
    (void)cudaDriverGetVersion(&driver), (void)cudaRuntimeGetVersion(&runtime);
    snprintf(ctx->name, sizeof ctx->name, "cuda:%d (%s)", ctx->index, facts->name);
    snprintf(ctx->description, sizeof ctx->description,
             "%s, compute capability %d.%d, %llu MiB, CUDA %d.%d (driver %d.%d), cuDNN %d.%d%s%s",
             facts->name, facts->major, facts->minor, (unsigned long long)(facts->memory_bytes >> 20),
             runtime / 1000, runtime % 1000 / 10, driver / 1000, driver % 1000 / 10, dnn / 10000,
             dnn % 10000 / 100, ctx->flags & EN_OPEN_TF32 ? ", TF32" : "",
             ctx->flags & EN_OPEN_DETERMINISTIC ? ", deterministic" : "");
}

static void cuda_close(en_ctx *ctx)
{
    if (!ctx || ctx->is_hung) return; /* a GPU that hangs may still reach its memory until the process ends */
    (void)cudaSetDevice(ctx->index);
    for (int q = 0; q < EN_STREAMS; q++)
        if (ctx->stream[q]) (void)cudaStreamSynchronize(ctx->stream[q]);
    if (ctx->dnn) (void)cudnnDestroy(ctx->dnn);
    if (ctx->blas) (void)cublasLtDestroy(ctx->blas);
    eni_cuda_staging_close(ctx);
    eni_cuda_registered_close(ctx);
    eni_cuda_events_close(ctx);
    for (int q = 0; q < EN_STREAMS; q++)
        if (ctx->stream[q]) (void)cudaStreamDestroy(ctx->stream[q]);
    (void)cudaGetLastError();
    eni_free(ctx);
}

static en_status check_config(const en_device_config *config, int32_t count)
{
    if (config->index >= 0 && config->index < count) return EN_OK;
    return eni_fail(
        EN_EINVAL, "cuda",
        "cuda:%d: this process sees %d GPU%s, numbered from 0 (CUDA_VISIBLE_DEVICES hides the others)",
        config->index, count, count == 1 ? "" : "s");
}

static en_status cuda_open(const en_device_config *config, en_ctx **ctx_out)
{
    eni_ref_log_to(config->host);
    int32_t count = 0;
    EN_TRY(eni_cuda_count(config->host, &count));
    EN_TRY(check_config(config, count));
    en_gpu_facts facts = {.size = sizeof facts};
    EN_TRY(eni_cuda_facts(config->host, config->index, &facts));

    en_ctx *ctx = eni_alloc(sizeof *ctx);
    if (!ctx) return EN_ENOMEM;
    ctx->index = config->index;
    ctx->flags = config->flags;
    ctx->cores = facts.cores > 0 ? facts.cores : 1;
    describe(ctx, &facts);
    en_status st = EN_OK;
    EN_TRY_GOTO(open_gpu(ctx), close);
    EN_TRY_GOTO(open_streams(ctx), close);
    EN_TRY_GOTO(eni_cuda_events_open(ctx), close);
    EN_TRY_GOTO(open_libraries(ctx), close);
    *ctx_out = ctx;
    return EN_OK;
close:
    cuda_close(ctx);
    return st;
}

static const char *cuda_describe(en_ctx *ctx)
{
    return ctx->description;
}

static void log_no_memory(const en_ctx *ctx, uint64_t bytes)
{
    size_t free_bytes = 0, total = 0;
    (void)cudaMemGetInfo(&free_bytes, &total);
    (void)cudaGetLastError();
    eni_error("cuda",
              "%s has no %llu MiB left: %llu of its %llu MiB are free; use a smaller --batch or fewer "
              "workers per GPU (\"entrain gpus\" shows who uses the rest)",
              ctx->name, (unsigned long long)((bytes + (1 << 20) - 1) >> 20),
              (unsigned long long)(free_bytes >> 20), (unsigned long long)(total >> 20));
}

static void cuda_free(en_ctx *ctx, void *memory)
{
    if (!memory || ctx->is_hung || eni_cuda_select(ctx) != EN_OK) return; /* it would wait forever */
    (void)eni_cuda_check(ctx, cudaFree(memory), "freeing memory");
}

/* Zeroed before it is returned, not merely in COMPUTE: any stream may use it next. */
static en_status cuda_alloc(en_ctx *ctx, uint64_t bytes, void **memory_out)
{
    EN_TRY(eni_cuda_select(ctx));
    if (ctx->is_capturing)
        return eni_cuda_fail(ctx, "CUDA", (int)cudaErrorStreamCaptureUnsupported, "memory was requested",
                             "capturing");
    void *memory = NULL;
    bytes = bytes == 0                   ? ENI_CUDA_ALIGN
            : bytes >= EN_GPU_EXPORT_MIN ? eni_round_up(bytes, BLOCK_BYTES)
                                         : bytes;
    const cudaError_t error = cudaMalloc(&memory, bytes);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        log_no_memory(ctx, bytes);
        return EN_ENOMEM;
    }
    EN_TRY(eni_cuda_check(ctx, error, "allocating memory"));
    const cudaStream_t stream = ctx->stream[EN_STREAM_PREFETCH];
    en_status st = eni_cuda_check(ctx, cudaMemsetAsync(memory, 0, bytes, stream), "zeroing memory");
    if (st == EN_OK) st = eni_cuda_finish(ctx, stream, "zeroing memory");
    if (st != EN_OK) {
        cuda_free(ctx, memory);
        return st;
    }
    *memory_out = memory;
    return EN_OK;
}

static bool is_registered(const en_ctx *ctx, const char *memory, uint64_t bytes)
{
    while (bytes > 0) {
        const uint64_t part = eni_cuda_registered_part(ctx, memory, bytes);
        if (part == 0) return false;
        memory += part;
        bytes -= part;
    }
    return true;
}

/* Page-locked memory is copied directly, other memory piece by piece through the context's own. */
static en_status cuda_copy(en_ctx *ctx, void *dst, const void *src, uint64_t bytes, int direction)
{
    const void *host = direction == EN_COPY_IN ? src : dst;
    if (direction == EN_COPY_ON || is_registered(ctx, host, bytes))
        return eni_cuda_stream_copy(ctx, EN_STREAM_COMPUTE, dst, src, bytes, direction);
    return eni_cuda_staging_copy(ctx, dst, src, bytes, direction);
}

static en_status cuda_zero(en_ctx *ctx, void *dst, uint64_t bytes)
{
    return eni_cuda_stream_zero(ctx, EN_STREAM_COMPUTE, dst, bytes);
}

static en_status cuda_sync(en_ctx *ctx)
{
    EN_TRY(eni_cuda_select(ctx));
    EN_TRY(eni_cuda_staging_drain(ctx));
    for (int q = 0; q < EN_STREAMS; q++)
        EN_TRY(eni_cuda_finish(ctx, ctx->stream[q], "waiting for the GPU"));
    return EN_OK;
}

static en_status cuda_free_bytes(en_ctx *ctx, uint64_t *bytes_out)
{
    size_t bytes = 0, total;
    EN_TRY(eni_cuda_select(ctx));
    EN_TRY(eni_cuda_check(ctx, cudaMemGetInfo(&bytes, &total), "querying its memory"));
    *bytes_out = bytes;
    return EN_OK;
}

/* ---- memory of another process on the same GPU ---- */

/* Processes exchange handles. Some containers refuse to create or to open one (without a shared IPC
 * namespace, say): that is not an error here, and the caller picks another way. */
_Static_assert(sizeof(cudaIpcMemHandle_t) == EN_GPU_HANDLE, "a CUDA IPC handle fits into ours");

static en_status refuse(en_ctx *ctx, cudaError_t error, const char *doing)
{
    (void)cudaGetLastError();
    eni_debug("cuda", "%s on %s: CUDA error %d, %s", doing, ctx->name, (int)error, cudaGetErrorString(error));
    return EN_EUNSUPPORTED;
}

static en_status export_memory(en_ctx *ctx, void *memory, uint8_t handle_out[EN_GPU_HANDLE])
{
    EN_TRY(eni_cuda_select(ctx));
    cudaIpcMemHandle_t handle;
    const cudaError_t error = cudaIpcGetMemHandle(&handle, memory);
    if (error != cudaSuccess) return refuse(ctx, error, "sharing memory with another process");
    memcpy(handle_out, &handle, sizeof handle);
    return EN_OK;
}

static en_status import_memory(en_ctx *ctx, const uint8_t handle[EN_GPU_HANDLE], void **memory_out)
{
    EN_TRY(eni_cuda_select(ctx));
    cudaIpcMemHandle_t given;
    memcpy(&given, handle, sizeof given);
    const cudaError_t error = cudaIpcOpenMemHandle(memory_out, given, cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess) return refuse(ctx, error, "opening memory of another process");
    return EN_OK;
}

static void release_memory(en_ctx *ctx, void *memory)
{
    if (!memory || eni_cuda_select(ctx) != EN_OK) return;
    if (cudaIpcCloseMemHandle(memory) != cudaSuccess) (void)cudaGetLastError();
}

/* ---- the tables ---------------------------------------------------------------------------------------- */

static const struct en_gpu gpu = {
    .size = sizeof gpu,
    .count = eni_cuda_count,
    .facts = eni_cuda_facts,
    .event_new = eni_cuda_event_new,
    .event_free = eni_cuda_event_free,
    .event_record = eni_cuda_event_record,
    .wait_event = eni_cuda_wait_event,
    .poll = eni_cuda_poll,
    .copy = eni_cuda_stream_copy,
    .zero = eni_cuda_stream_zero,
    .register_memory = eni_cuda_register_memory,
    .unregister_memory = eni_cuda_unregister_memory,
    .mean_step = eni_cuda_mean_step,
    .lin = eni_cuda_lin,
    .check_finite = eni_cuda_check_finite,
    .capture_begin = eni_cuda_capture_begin,
    .capture_end = eni_cuda_capture_end,
    .launch = eni_cuda_launch,
    .graph_free = eni_cuda_graph_free,
    .export_memory = export_memory,
    .import_memory = import_memory,
    .release_memory = release_memory,
    .group_id = eni_cuda_group_id,
    .group_open = eni_cuda_group_open,
    .group_sum = eni_cuda_group_sum,
    .group_broadcast = eni_cuda_group_broadcast,
    .group_poll = eni_cuda_group_poll,
    .group_abort = eni_cuda_group_abort,
    .group_close = eni_cuda_group_close,
    .group_version = eni_cuda_group_version,
    .timer_new = eni_cuda_timer_new,
    .elapsed = eni_cuda_elapsed,
    .pixels = eni_cuda_pixels,
    .free_bytes = cuda_free_bytes,
};

static const en_device cuda = {
    .abi = EN_DEVICE_ABI,
    .size = sizeof cuda,
    .name = "cuda",
    .help = "NVIDIA GPUs: cuBLASLt, cuDNN, and kernels of our own",
    .flags = 0,
    .align = ENI_CUDA_ALIGN,
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .sync = cuda_sync,
    .plan = eni_cuda_plan,
    .plan_free = eni_cuda_plan_free,
    .plan_info = eni_cuda_plan_info,
    .forward = eni_cuda_forward,
    .backward_weights = eni_cuda_backward_weights,
    .backward_data = eni_cuda_backward_data,
    .gpu = &gpu,
};

__attribute__((visibility("default"))) const en_device *en_device_entry(uint32_t host_abi);

const en_device *en_device_entry(uint32_t host_abi)
{
    return host_abi == EN_DEVICE_ABI ? &cuda : NULL;
}
