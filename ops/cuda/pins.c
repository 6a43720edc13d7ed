/* pins.c - host memory that the GPU reaches.
 *
 * CUDA registers whole pages, and a page once; callers pin what they have, and two of them may share a page.
 * So what is registered are runs of pages, and a run stays for as long as any range that was pinned touches
 * it:
 *
 *     pages     |     |     |     |     |     |
 *     pinned      [ A       ] [  B    ]              B shares a page with A
 *     runs      [    run of A     ][ B's ]           each registered by one call, both held by B
 *
 * A copy must stay within one run: CUDA refuses one that begins in one registration and ends in the next. */
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "ops/cuda/cuda.h"

typedef struct run {
    uintptr_t lo, hi; /* page edges */
    int users;        /* ranges that touch it */
} run;

typedef struct range {
    uintptr_t lo, hi;
} range;

struct eni_cuda_pins {
    run *runs;
    range *ranges;
    int nruns, nranges, run_room, range_room;
};

static int touches(const run *r, const range *p)
{
    return p->lo < r->hi && r->lo < p->hi;
}

uint64_t eni_cuda_pinned_part(const en_ctx *ctx, const void *memory, uint64_t bytes)
{
    const uintptr_t at = (uintptr_t)memory;
    for (int i = 0; ctx->pins && i < ctx->pins->nruns; i++) {
        const run *r = &ctx->pins->runs[i];
        if (at >= r->lo && at < r->hi) return r->hi - at < bytes ? r->hi - at : bytes;
    }
    return 0;
}

/* Room for one more element of `size` bytes. */
static en_status grow(void **array, int used, int *room, size_t size)
{
    if (used < *room) return EN_OK;
    const int wanted = *room ? *room * 2 : 16;
    void *larger = eni_alloc_array((size_t)wanted, size);
    if (!larger) return EN_ENOMEM;
    if (used) memcpy(larger, *array, (size_t)used * size);
    eni_free(*array);
    *array = larger;
    *room = wanted;
    return EN_OK;
}

static void drop_run(eni_cuda_pins *pins, int i)
{
    if (cudaHostUnregister((void *)pins->runs[i].lo) != cudaSuccess)
        (void)cudaGetLastError(); /* the device has failed, which somebody has said; the pages end with us */
    pins->runs[i] = pins->runs[--pins->nruns];
}

static void drop_unused(eni_cuda_pins *pins)
{
    for (int i = pins->nruns - 1; i >= 0; i--)
        if (pins->runs[i].users == 0) drop_run(pins, i);
}

static en_status register_run(en_ctx *ctx, uintptr_t lo, uintptr_t hi)
{
    eni_cuda_pins *pins = ctx->pins;
    EN_TRY(grow((void **)&pins->runs, pins->nruns, &pins->run_room, sizeof *pins->runs));
    const cudaError_t error = cudaHostRegister((void *)lo, hi - lo, cudaHostRegisterPortable);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        eni_error("cuda", "page-locking %llu KiB of host memory for %s failed: CUDA error %d, %s",
                  (unsigned long long)((hi - lo) >> 10), ctx->name, (int)error, cudaGetErrorString(error));
        return EN_EUNSUPPORTED;
    }
    pins->runs[pins->nruns++] = (run){lo, hi, 0};
    return EN_OK;
}

/* Registers the pages of [lo, hi) that are in no run yet. */
static en_status register_gaps(en_ctx *ctx, uintptr_t lo, uintptr_t hi)
{
    while (lo < hi) {
        uintptr_t next = hi, skip = 0;
        for (int i = 0; i < ctx->pins->nruns; i++) {
            const run *r = &ctx->pins->runs[i];
            if (r->lo <= lo && lo < r->hi) skip = r->hi;
            if (r->lo > lo && r->lo < next) next = r->lo;
        }
        if (!skip) EN_TRY(register_run(ctx, lo, next));
        lo = skip ? skip : next;
    }
    return EN_OK;
}

en_status eni_cuda_pin(en_ctx *ctx, void *memory, uint64_t bytes)
{
    if (bytes == 0) return EN_OK;
    EN_TRY(eni_cuda_select(ctx));
    if (!ctx->pins && !(ctx->pins = eni_alloc(sizeof *ctx->pins))) return EN_ENOMEM;
    eni_cuda_pins *pins = ctx->pins;
    EN_TRY(grow((void **)&pins->ranges, pins->nranges, &pins->range_room, sizeof *pins->ranges));

    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)memory;
    const en_status st = register_gaps(ctx, at / page * page, (at + bytes + page - 1) / page * page);
    if (st != EN_OK) {
        drop_unused(pins);
        return st;
    }
    const range pinned = {at, at + bytes};
    for (int i = 0; i < pins->nruns; i++)
        pins->runs[i].users += touches(&pins->runs[i], &pinned);
    pins->ranges[pins->nranges++] = pinned;
    return EN_OK;
}

void eni_cuda_unpin(en_ctx *ctx, void *memory)
{
    eni_cuda_pins *pins = ctx->pins;
    for (int i = 0; pins && i < pins->nranges; i++) {
        if (pins->ranges[i].lo != (uintptr_t)memory) continue;
        for (int k = 0; k < pins->nruns; k++)
            pins->runs[k].users -= touches(&pins->runs[k], &pins->ranges[i]);
        pins->ranges[i] = pins->ranges[--pins->nranges];
        if (ctx->is_hung) return;
        (void)eni_cuda_select(ctx);
        drop_unused(pins);
        return;
    }
}

void eni_cuda_pins_close(en_ctx *ctx)
{
    if (!ctx->pins) return;
    while (ctx->pins->nruns > 0)
        drop_run(ctx->pins, 0);
    eni_free(ctx->pins->runs);
    eni_free(ctx->pins->ranges);
    eni_free(ctx->pins);
    ctx->pins = NULL;
}
