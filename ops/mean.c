/* mean.c - the mean, block by block so that a block's sum stays in the cache, and two more loops over flat
 * vectors; see mean.h. */
#include "ops/mean.h"

#include <string.h>

#include "core/memory.h"
#include "ops/multiversion.h"

/* Sources are added block by block, so that the partial sum stays in the first-level cache and memory is
 * read once and written once, whatever the number of sources. */
enum { BLOCK = 1024 };

ENI_MULTIVERSION void eni_mean_first(float *restrict acc, const float *restrict src, float scale,
                                     uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        acc[i] = src[i] * scale;
}

ENI_MULTIVERSION void eni_mean_add(float *restrict acc, const float *restrict src, float scale,
                                   uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        acc[i] += src[i] * scale;
}

ENI_MULTIVERSION void eni_mean_last(float *acc, float inv, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        acc[i] *= inv;
}

/* Two sources, the commonest world: no partial sum to keep. dst may be a or b, hence no restrict. */
ENI_MULTIVERSION static void mean_of_two(float *dst, const float *a, const float *b, float scale_a,
                                         float scale_b, float inv, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        dst[i] = (a[i] * scale_a + b[i] * scale_b) * inv;
}

void eni_mean(float *dst, const float *const *src, const float *scale, int n, float inv, uint64_t count)
{
    if (n == 2) {
        mean_of_two(dst, src[0], src[1], scale[0], scale[1], inv, count);
        return;
    }
    _Alignas(ENI_LINE) float acc[BLOCK];
    for (uint64_t at = 0; at < count; at += BLOCK) {
        const uint64_t part = count - at < BLOCK ? count - at : BLOCK;
        eni_mean_first(acc, src[0] + at, scale[0], part);
        for (int k = 1; k < n; k++)
            eni_mean_add(acc, src[k] + at, scale[k], part);
        eni_mean_first(dst + at, acc, inv, part); /* dst = acc * inv */
    }
}

/* Elements [at, at + count) of dst, added from rank `first` on, around the ring. */
static void mean_from(int first, float *dst, const float *const *src, const uint64_t *nsamples, int world,
                      uint64_t at, uint64_t count)
{
    const float *from[ENI_MEAN_MAX];
    float scale[ENI_MEAN_MAX];
    uint64_t samples = 0;
    int n = 0;
    for (int k = 0; k < world; k++) {
        const int rank = (first + k) % world;
        if (nsamples[rank] == 0) continue;
        from[n] = src[rank] + at;
        scale[n++] = (float)nsamples[rank];
        samples += nsamples[rank];
    }
    if (n == 0)
        memset(dst + at, 0, count * sizeof *dst);
    else
        eni_mean(dst + at, from, scale, n, 1.0f / (float)samples, count);
}

void eni_mean_ranks(float *dst, const float *const *src, const uint64_t *nsamples, int world,
                    eni_sum_order order, uint64_t count, uint64_t lo, uint64_t hi)
{
    if (order == ENI_SUM_RANK) {
        mean_from(0, dst, src, nsamples, world, 0, hi - lo);
        return;
    }
    for (int chunk = 0; chunk < world; chunk++) {
        uint64_t from = eni_slice_lo(count, chunk, world), to = eni_slice_lo(count, chunk + 1, world);
        if (from < lo) from = lo;
        if (to > hi) to = hi;
        if (from < to) mean_from(chunk, dst, src, nsamples, world, from - lo, to - from);
    }
}

/* 1 if an exponent of the block is all ones (infinity or not a number). No early exit: it vectorises. */
ENI_MULTIVERSION static uint32_t has_nonfinite(const float *src, uint64_t count)
{
    uint32_t found = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &src[i], sizeof bits);
        found |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return found;
}

int eni_all_finite(const float *src, uint64_t count)
{
    for (uint64_t at = 0; at < count; at += BLOCK)
        if (has_nonfinite(src + at, count - at < BLOCK ? count - at : BLOCK)) return 0;
    return 1;
}

ENI_MULTIVERSION static void lin_set(float *y, float a, const float *x, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        y[i] = a * x[i];
}

ENI_MULTIVERSION static void lin_add(float *y, float a, const float *x, float b, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        y[i] = a * x[i] + b * y[i];
}

void eni_lin(float *y, float a, const float *x, float b, uint64_t count)
{
    if (b == 0.0f)
        lin_set(y, a, x, count);
    else
        lin_add(y, a, x, b, count);
}
