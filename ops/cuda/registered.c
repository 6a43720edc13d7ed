/* registered.c - host memory that the GPU reaches.
 *
 * CUDA registers whole pages, and a page once; callers register ranges, and two of them may share a page. So
 * runs of pages are registered, and a run stays as long as any registered range touches it:
 *
 *     pages     |     |     |     |     |     |
 *     registered  [ A       ] [  B    ]              B shares a page with A
 *     runs      [    run of A     ][ B's ]           each registered by one call, both held by B
 *
 * A copy must stay within one run: CUDA refuses one that begins in one registration and ends in the next. */
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "ops/cuda/cuda.h"

typedef struct range {
    uintptr_t lo, hi;
} range;

struct eni_cuda_registered {
    range *runs; /* between page edges */
    range *ranges;
    int nruns, nranges, run_room, range_room;
};

uint64_t eni_cuda_registered_part(const en_ctx *ctx, const void *memory, uint64_t bytes)
{
    const uintptr_t at = (uintptr_t)memory;
    for (int i = 0; ctx->registered && i < ctx->registered->nruns; i++) {
        const range *r = &ctx->registered->runs[i];
        if (at >= r->lo && at < r->hi) return r->hi - at < bytes ? r->hi - at : bytes;
    }
    return 0;
}

static void drop_run(eni_cuda_registered *held, int i)
{
    if (cudaHostUnregister((void *)held->runs[i].lo) != cudaSuccess)
        /* the device has failed, which has been logged; the pages end with the process */
        (void)cudaGetLastError();
    held->runs[i] = held->runs[--held->nruns];
}

static bool is_used(const eni_cuda_registered *held, const range *r)
{
    for (int i = 0; i < held->nranges; i++)
        if (held->ranges[i].lo < r->hi && r->lo < held->ranges[i].hi) return true;
    return false;
}

static void drop_unused(eni_cuda_registered *held)
{
    for (int i = held->nruns - 1; i >= 0; i--)
        if (!is_used(held, &held->runs[i])) drop_run(held, i);
}

static en_status register_run(en_ctx *ctx, uintptr_t lo, uintptr_t hi)
{
    eni_cuda_registered *held = ctx->registered;
    EN_TRY(eni_cuda_grow((void **)&held->runs, held->nruns, &held->run_room, sizeof *held->runs));
    const cudaError_t error = cudaHostRegister((void *)lo, hi - lo, cudaHostRegisterPortable);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return eni_fail(
            EN_EUNSUPPORTED, "cuda", "page-locking %llu KiB of host memory for %s failed: CUDA error %d, %s",
            (unsigned long long)((hi - lo) >> 10), ctx->name, (int)error, cudaGetErrorString(error));
    }
    held->runs[held->nruns++] = (range){lo, hi};
    return EN_OK;
}

/* Registers the pages of [lo, hi) that are not in a run yet. */
static en_status register_gaps(en_ctx *ctx, uintptr_t lo, uintptr_t hi)
{
    while (lo < hi) {
        uintptr_t next = hi, skip = 0;
        for (int i = 0; i < ctx->registered->nruns; i++) {
            const range *r = &ctx->registered->runs[i];
            if (r->lo <= lo && lo < r->hi) skip = r->hi;
            if (r->lo > lo && r->lo < next) next = r->lo;
        }
        if (!skip) EN_TRY(register_run(ctx, lo, next));
        lo = skip ? skip : next;
    }
    return EN_OK;
}

en_status eni_cuda_register_memory(en_ctx *ctx, void *memory, uint64_t bytes)
{
    if (bytes == 0) return EN_OK;
    EN_TRY(eni_cuda_select(ctx));
    if (!ctx->registered && !(ctx->registered = eni_alloc(sizeof *ctx->registered))) return EN_ENOMEM;
    eni_cuda_registered *held = ctx->registered;
    EN_TRY(eni_cuda_grow((void **)&held->ranges, held->nranges, &held->range_room, sizeof *held->ranges));

    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)memory;
    const en_status st = register_gaps(ctx, at / page * page, (at + bytes + page - 1) / page * page);
    if (st != EN_OK) {
        drop_unused(held);
        return st;
    }
    held->ranges[held->nranges++] = (range){at, at + bytes};
    return EN_OK;
}

void eni_cuda_unregister_memory(en_ctx *ctx, void *memory)
{
    eni_cuda_registered *held = ctx->registered;
    for (int i = 0; held && i < held->nranges; i++) {
        if (held->ranges[i].lo != (uintptr_t)memory) continue;
        held->ranges[i] = held->ranges[--held->nranges];
        if (ctx->is_hung) return;
        (void)eni_cuda_select(ctx);
        drop_unused(held);
        return;
    }
}

void eni_cuda_registered_close(en_ctx *ctx)
{
    if (!ctx->registered) return;
    while (ctx->registered->nruns > 0)
        drop_run(ctx->registered, 0);
    eni_free(ctx->registered->runs);
    eni_free(ctx->registered->ranges);
    eni_free(ctx->registered);
    ctx->registered = NULL;
}
