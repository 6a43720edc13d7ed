/* ipc_memory.c - memory of another process on the same GPU. A handle is what travels; some containers refuse
 * to make one, or to open it (without a shared IPC namespace, say): that is no error here, but the caller's
 * choice of another way. */
#include <string.h>

#include "core/log.h"
#include "core/try.h"
#include "ops/cuda/cuda.h"

_Static_assert(sizeof(cudaIpcMemHandle_t) == EN_GPU_HANDLE, "a handle of CUDA's is a handle of ours");

static en_status refuse(en_ctx *ctx, cudaError_t error, const char *doing)
{
    (void)cudaGetLastError();
    eni_debug("cuda", "%s on %s: CUDA error %d, %s", doing, ctx->name, (int)error, cudaGetErrorString(error));
    return EN_EUNSUPPORTED;
}

en_status eni_cuda_export_memory(en_ctx *ctx, void *memory, uint8_t handle_out[EN_GPU_HANDLE])
{
    EN_TRY(eni_cuda_select(ctx));
    cudaIpcMemHandle_t handle;
    const cudaError_t error = cudaIpcGetMemHandle(&handle, memory);
    if (error != cudaSuccess) return refuse(ctx, error, "sharing memory with another process");
    memcpy(handle_out, &handle, sizeof handle);
    return EN_OK;
}

en_status eni_cuda_import_memory(en_ctx *ctx, const uint8_t handle[EN_GPU_HANDLE], void **memory_out)
{
    EN_TRY(eni_cuda_select(ctx));
    cudaIpcMemHandle_t given;
    memcpy(&given, handle, sizeof given);
    const cudaError_t error = cudaIpcOpenMemHandle(memory_out, given, cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess) return refuse(ctx, error, "opening memory of another process");
    return EN_OK;
}

void eni_cuda_release_memory(en_ctx *ctx, void *memory)
{
    if (!memory || eni_cuda_select(ctx) != EN_OK) return;
    if (cudaIpcCloseMemHandle(memory) != cudaSuccess) (void)cudaGetLastError();
}
