/* host_memory.c - the memory calls of a host device: what other devices do with streams, libc does at once.
 */
#include "core/memory.h"

#include <string.h>

#include "ops/ref/ref.h"

en_status eni_ref_alloc(en_ctx *ctx, uint64_t bytes, void **memory_out)
{
    (void)ctx;
    void *memory = eni_alloc(bytes);
    if (!memory) return EN_ENOMEM;
    *memory_out = memory;
    return EN_OK;
}

void eni_ref_free(en_ctx *ctx, void *memory)
{
    (void)ctx;
    eni_free(memory);
}

en_status eni_ref_copy(en_ctx *ctx, void *dst, const void *src, uint64_t bytes, int direction)
{
    (void)ctx, (void)direction;
    memcpy(dst, src, bytes);
    return EN_OK;
}

en_status eni_ref_zero(en_ctx *ctx, void *dst, uint64_t bytes)
{
    (void)ctx;
    memset(dst, 0, bytes);
    return EN_OK;
}

en_status eni_ref_sync(en_ctx *ctx)
{
    (void)ctx;
    return EN_OK;
}
