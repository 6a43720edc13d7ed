/* context.c - needed by every other file: selecting a context's GPU on the calling thread, and logging the
 * libraries' errors with the GPU's name. Only the first error of a context is logged; after that CUDA answers
 * every call with the same one. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "ops/cuda/cuda.h"

en_status eni_cuda_fail(en_ctx *ctx, const char *library, int code, const char *text, const char *doing)
{
    bool *said = ctx->is_capturing ? &ctx->is_capture_broken : &ctx->has_failed;
    if (!*said)
        eni_log(ctx->is_capturing ? ENI_LOG_WARN : ENI_LOG_ERROR, "cuda", "%s: %s error %d, %s, on %s", doing,
                library, code, text, ctx->name);
    *said = true;
    return ctx->is_capturing ? EN_EUNSUPPORTED : EN_EIO;
}

static const char *text_of(cudaError_t error)
{
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorUnsupportedPtxVersion)
        return "this build has no code for it (cmake -DCMAKE_CUDA_ARCHITECTURES=.. names the GPUs to build "
               "for)";
    return cudaGetErrorString(error);
}

en_status eni_cuda_check(en_ctx *ctx, cudaError_t error, const char *doing)
{
    if (error == cudaSuccess) return ctx->has_failed ? EN_EIO : EN_OK;
    (void)cudaGetLastError(); /* otherwise the next launch would report it */
    if (error == cudaErrorMemoryAllocation)
        return eni_fail(EN_ENOMEM, "cuda", "%s: out of memory on %s", doing, ctx->name);
    return eni_cuda_fail(ctx, "CUDA", (int)error, text_of(error), doing);
}

en_status eni_cuda_select(en_ctx *ctx)
{
    return eni_cuda_check(ctx, cudaSetDevice(ctx->index), "selecting the GPU");
}

en_status eni_cuda_check_dnn(en_ctx *ctx, cudnnStatus_t status, const char *doing)
{
    if (status == CUDNN_STATUS_SUCCESS) return ctx->has_failed ? EN_EIO : EN_OK;
    return eni_cuda_fail(ctx, "cuDNN", (int)status, cudnnGetErrorString(status), doing);
}

en_status eni_cuda_check_blas(en_ctx *ctx, cublasStatus_t status, const char *doing)
{
    if (status == CUBLAS_STATUS_SUCCESS) return ctx->has_failed ? EN_EIO : EN_OK;
    return eni_cuda_fail(ctx, "cuBLASLt", (int)status, cublasLtGetStatusString(status), doing);
}

en_status eni_cuda_grow(void **array, int used, int *room, size_t size)
{
    if (used < *room) return EN_OK;
    const int wanted = *room > 0 ? *room * 2 : 16;
    void *larger = eni_alloc_array((size_t)wanted, size);
    if (larger == NULL) return EN_ENOMEM;
    if (used > 0) memcpy(larger, *array, (size_t)used * size);
    eni_free(*array);
    *array = larger;
    *room = wanted;
    return EN_OK;
}

void eni_cuda_say(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    eni_error("cuda", "%s", text);
}
