/* bf16.c - float32 tensors as factors of bf16 products. A number is rounded each time that a product reads it:
 * that takes a tenth of the product's own time or less, and the kept tensors stay what all other operations
 * read. */
#include <string.h>

#include "core/memory.h"
#include "ops/cpu/cpu.h"
#include "ops/multiversion.h"

enum { GRAIN = 4096 }; /* a second thread does not pay below this many elements */

/* Elementwise and without branches, so that it vectorises. */
ENI_MULTIVERSION void eni_cpu_round(uint16_t *restrict to, const float *restrict x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        const uint32_t is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
        const uint32_t nearest = bits + 0x7fffU + (bits >> 16 & 1), quiet = bits | 0x400000U;
        to[i] = (uint16_t)((is_nan ? quiet : nearest) >> 16);
    }
}

/* x to y, of elements [from, to). */
static void round_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    (void)plan;
    eni_cpu_round((uint16_t *)args->y + from, (const float *)args->x + from, to - from);
}

uint64_t eni_cpu_factor_bytes(const en_plan *plan, int64_t count)
{
    if (!plan->ctx->dnnl.is_bf16) return 0;
    return eni_round_up((uint64_t)count * sizeof(uint16_t), ENI_LINE);
}

const void *eni_cpu_factor_in(const en_plan *plan, const void *x, int64_t count, void **area)
{
    const en_args args = {.x = x, .y = *area};
    if (!plan->ctx->dnnl.is_bf16) return x;
    eni_cpu_split(plan, &args, count, GRAIN, round_part);
    *area = (char *)*area + eni_cpu_factor_bytes(plan, count);
    return args.y;
}
