/* staging.c - copies from and to host memory that is not page-locked: CUDA would block, or read it later than
 * the caller expects. They go through a page-locked area that is filled from front to back:
 *
 *     [ in: copied here at the call | out: lands here, is copied on at drain | ..          free ]
 *
 * When it is full, or at a sync, the host waits for COMPUTE, copies the outgoing data on, and empties it. For
 * copies outside the step: a checkpoint, an evaluation, the first weights. */
#include <string.h>

#include "core/memory.h"
#include "core/try.h"
#include "ops/cuda/cuda.h"

enum { STAGING_BYTES = 4 << 20, STAGING_OUTS = 256, STAGING_STEP = 64 };

struct eni_cuda_staging {
    char *memory; /* (STAGING_BYTES), page-locked */
    uint64_t used;
    int nouts;
    struct out {
        void *dst;
        uint64_t at, bytes;
    } out[STAGING_OUTS]; /* in flight */
};

static en_status open_staging(en_ctx *ctx)
{
    EN_TRY(eni_cuda_select(ctx));
    if (ctx->is_capturing)
        return eni_cuda_fail(ctx, "CUDA", (int)cudaErrorStreamCaptureUnsupported,
                             "its host memory is not page-locked", "capturing a copy");
    if (ctx->staging) return EN_OK;
    eni_cuda_staging *staging = eni_alloc(sizeof *staging);
    if (!staging) return EN_ENOMEM;
    const cudaError_t error = cudaHostAlloc((void **)&staging->memory, STAGING_BYTES, cudaHostAllocDefault);
    if (error != cudaSuccess) {
        eni_free(staging);
        return eni_cuda_check(ctx, error, "allocating page-locked memory");
    }
    ctx->staging = staging;
    return EN_OK;
}

en_status eni_cuda_staging_drain(en_ctx *ctx)
{
    eni_cuda_staging *staging = ctx->staging;
    if (!staging || staging->used == 0) return EN_OK;
    const en_status st = eni_cuda_finish(ctx, ctx->stream[EN_STREAM_COMPUTE], "waiting for a copy");
    for (int i = 0; st == EN_OK && i < staging->nouts; i++)
        memcpy(staging->out[i].dst, staging->memory + staging->out[i].at, staging->out[i].bytes);
    staging->used = 0;
    staging->nouts = 0;
    return st;
}

/* Takes up to `bytes` of the area; returns how many, at least 1. */
static en_status take(en_ctx *ctx, uint64_t bytes, char **at_out, uint64_t *part_out)
{
    if (ctx->staging->used == STAGING_BYTES || ctx->staging->nouts == STAGING_OUTS)
        EN_TRY(eni_cuda_staging_drain(ctx));
    eni_cuda_staging *staging = ctx->staging;
    const uint64_t room = STAGING_BYTES - staging->used;
    *part_out = bytes < room ? bytes : room;
    *at_out = staging->memory + staging->used;
    staging->used += eni_round_up(*part_out, STAGING_STEP);
    return EN_OK;
}

en_status eni_cuda_staging_copy(en_ctx *ctx, void *dst, const void *src, uint64_t bytes, int direction)
{
    const cudaStream_t stream = ctx->stream[EN_STREAM_COMPUTE];
    EN_TRY(open_staging(ctx));
    eni_cuda_staging *staging = ctx->staging;
    for (uint64_t done = 0, part; done < bytes; done += part) {
        char *at, *to = (char *)dst + done;
        const char *from = (const char *)src + done;
        EN_TRY(take(ctx, bytes - done, &at, &part));
        if (direction == EN_COPY_IN) {
            memcpy(at, from, part);
            EN_TRY(eni_cuda_check(ctx, cudaMemcpyAsync(to, at, part, cudaMemcpyHostToDevice, stream),
                                  "copying to the GPU"));
        } else {
            EN_TRY(eni_cuda_check(ctx, cudaMemcpyAsync(at, from, part, cudaMemcpyDeviceToHost, stream),
                                  "copying from the GPU"));
            staging->out[staging->nouts++] = (struct out){to, (uint64_t)(at - staging->memory), part};
        }
    }
    return EN_OK;
}

void eni_cuda_staging_close(en_ctx *ctx)
{
    if (!ctx->staging) return;
    (void)cudaFreeHost(ctx->staging->memory);
    eni_free(ctx->staging);
    ctx->staging = NULL;
}
