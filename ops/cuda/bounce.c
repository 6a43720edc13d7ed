/* bounce.c - copies from and to host memory that is not page-locked, which CUDA would make wait, or read
 * later than the caller thinks. They go through a page-locked area that is filled from front to back:
 *
 *     [ in: copied here at the call | out: lands here, is handed on at drain | ..          free ]
 *
 * When it is full, or at a sync, COMPUTE is waited for, what came out is handed on, and it is empty again.
 * For what is not in the step: a checkpoint, an evaluation, a first set of weights. */
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "ops/cuda/cuda.h"

enum { BOUNCE_BYTES = 4 << 20, BOUNCE_OUTS = 256, BOUNCE_STEP = 64 };

struct eni_cuda_bounce {
    char *memory; /* (BOUNCE_BYTES), page-locked */
    uint64_t used;
    int nouts;
    struct out {
        void *dst;
        uint64_t at, bytes;
    } out[BOUNCE_OUTS]; /* under way */
};

static en_status open_bounce(en_ctx *ctx)
{
    EN_TRY(eni_cuda_select(ctx));
    if (ctx->is_capturing)
        return eni_cuda_fail(ctx, "CUDA", (int)cudaErrorStreamCaptureUnsupported,
                             "its host memory is not page-locked", "recording a copy");
    if (ctx->bounce) return EN_OK;
    eni_cuda_bounce *bounce = eni_alloc(sizeof *bounce);
    if (!bounce) return EN_ENOMEM;
    const cudaError_t error = cudaHostAlloc((void **)&bounce->memory, BOUNCE_BYTES, cudaHostAllocDefault);
    if (error != cudaSuccess) {
        eni_free(bounce);
        return eni_cuda_check(ctx, error, "taking page-locked memory");
    }
    ctx->bounce = bounce;
    return EN_OK;
}

en_status eni_cuda_bounce_drain(en_ctx *ctx)
{
    eni_cuda_bounce *bounce = ctx->bounce;
    if (!bounce || bounce->used == 0) return EN_OK;
    const en_status st = eni_cuda_finish(ctx, ctx->queue[EN_QUEUE_COMPUTE], "waiting for a copy");
    for (int i = 0; st == EN_OK && i < bounce->nouts; i++)
        memcpy(bounce->out[i].dst, bounce->memory + bounce->out[i].at, bounce->out[i].bytes);
    bounce->used = 0;
    bounce->nouts = 0;
    return st;
}

/* Takes up to `bytes` of the area: how many, 1 at least. */
static en_status take(en_ctx *ctx, uint64_t bytes, char **at_out, uint64_t *part_out)
{
    if (ctx->bounce->used == BOUNCE_BYTES || ctx->bounce->nouts == BOUNCE_OUTS)
        EN_TRY(eni_cuda_bounce_drain(ctx));
    eni_cuda_bounce *bounce = ctx->bounce;
    const uint64_t room = BOUNCE_BYTES - bounce->used;
    *part_out = bytes < room ? bytes : room;
    *at_out = bounce->memory + bounce->used;
    bounce->used += eni_round_up(*part_out, BOUNCE_STEP);
    return EN_OK;
}

en_status eni_cuda_bounce_in(en_ctx *ctx, void *dst, const void *src, uint64_t bytes)
{
    EN_TRY(open_bounce(ctx));
    for (uint64_t done = 0; done < bytes;) {
        uint64_t part;
        char *at;
        EN_TRY(take(ctx, bytes - done, &at, &part));
        memcpy(at, (const char *)src + done, part);
        EN_TRY(eni_cuda_check(ctx,
                              cudaMemcpyAsync((char *)dst + done, at, part, cudaMemcpyHostToDevice,
                                              ctx->queue[EN_QUEUE_COMPUTE]),
                              "copying to the GPU"));
        done += part;
    }
    return EN_OK;
}

en_status eni_cuda_bounce_out(en_ctx *ctx, void *dst, const void *src, uint64_t bytes)
{
    EN_TRY(open_bounce(ctx));
    for (uint64_t done = 0; done < bytes;) {
        uint64_t part;
        char *at;
        EN_TRY(take(ctx, bytes - done, &at, &part));
        EN_TRY(eni_cuda_check(ctx,
                              cudaMemcpyAsync(at, (const char *)src + done, part, cudaMemcpyDeviceToHost,
                                              ctx->queue[EN_QUEUE_COMPUTE]),
                              "copying from the GPU"));
        eni_cuda_bounce *bounce = ctx->bounce;
        bounce->out[bounce->nouts++] =
            (struct out){(char *)dst + done, (uint64_t)(at - bounce->memory), part};
        done += part;
    }
    return EN_OK;
}

void eni_cuda_bounce_close(en_ctx *ctx)
{
    if (!ctx->bounce) return;
    (void)cudaFreeHost(ctx->bounce->memory);
    eni_free(ctx->bounce);
    ctx->bounce = NULL;
}
