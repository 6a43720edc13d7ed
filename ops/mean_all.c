/* mean_all.c - the mean of all ranks' vectors, written to all of them: loops over lines whose sums stay in
 * registers, with code of their own for two and for four ranks; see mean.h. */
#include "ops/mean.h"

#include <string.h>

#include "ops/multiversion.h"

/* STRIDE lines are summed side by side, so that the additions of one do not wait for each other. */
enum { LINE = sizeof(eni_line) / sizeof(float), STRIDE = 4, STEP = STRIDE * LINE };

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Sources and destinations are read and written at the same element, so a destination may be a source.
 * nsrc and ndst are constants where this is inlined, and then all pointers are in registers. */
ALWAYS_INLINE void mean_lines(float *const *dst, int ndst, const float *const *src, const float *scale,
                              int nsrc, float inv, uint64_t count)
{
    uint64_t i = 0;
    for (; i + STEP <= count; i += STEP) {
        eni_line sum[STRIDE];
        for (int s = 0; s < STRIDE; s++)
            sum[s] = *(const eni_line *)(src[0] + i + s * LINE) * scale[0];
        for (int k = 1; k < nsrc; k++)
            for (int s = 0; s < STRIDE; s++)
                sum[s] += *(const eni_line *)(src[k] + i + s * LINE) * scale[k];
        for (int s = 0; s < STRIDE; s++)
            sum[s] *= inv;
        for (int d = 0; d < ndst; d++)
            for (int s = 0; s < STRIDE; s++)
                *(eni_line *)(dst[d] + i + s * LINE) = sum[s];
    }
    for (; i < count; i++) {
        float sum = src[0][i] * scale[0];
        for (int k = 1; k < nsrc; k++)
            sum += src[k][i] * scale[k];
        for (int d = 0; d < ndst; d++)
            dst[d][i] = sum * inv;
    }
}

ENI_MULTIVERSION static void mean_any(float *const *dst, int ndst, const float *const *src,
                                      const float *scale, int nsrc, float inv, uint64_t count)
{
    mean_lines(dst, ndst, src, scale, nsrc, inv, count);
}

ENI_MULTIVERSION static void mean_2(float *const *dst, const float *const *src, const float *scale, float inv,
                                    uint64_t count)
{
    float *const to[] = {dst[0], dst[1]};
    const float *const from[] = {src[0], src[1]};
    const float by[] = {scale[0], scale[1]};
    mean_lines(to, 2, from, by, 2, inv, count);
}

ENI_MULTIVERSION static void mean_4(float *const *dst, const float *const *src, const float *scale, float inv,
                                    uint64_t count)
{
    float *const to[] = {dst[0], dst[1], dst[2], dst[3]};
    const float *const from[] = {src[0], src[1], src[2], src[3]};
    const float by[] = {scale[0], scale[1], scale[2], scale[3]};
    mean_lines(to, 4, from, by, 4, inv, count);
}

/* Elements [at, at + count), added from rank `first` on, around the ring. */
static void mean_all_from(int first, float *const *vectors, const uint64_t *nsamples, int world, uint64_t at,
                          uint64_t count)
{
    float *to[ENI_MEAN_MAX];
    const float *from[ENI_MEAN_MAX];
    float scale[ENI_MEAN_MAX];
    uint64_t samples = 0;
    int n = 0;
    for (int k = 0; k < world; k++) {
        const int rank = (first + k) % world;
        to[k] = vectors[rank] + at;
        if (nsamples[rank] == 0) continue;
        from[n] = to[k];
        scale[n++] = (float)nsamples[rank];
        samples += nsamples[rank];
    }
    const float inv = 1.0f / (float)samples;
    if (n == 0)
        for (int k = 0; k < world; k++)
            memset(to[k], 0, count * sizeof *to[k]);
    else if (n == 2 && world == 2)
        mean_2(to, from, scale, inv, count);
    else if (n == 4 && world == 4)
        mean_4(to, from, scale, inv, count);
    else
        mean_any(to, world, from, scale, n, inv, count);
}

void eni_mean_all(float *const *vectors, const uint64_t *nsamples, int world, eni_sum_order order,
                  uint64_t count, uint64_t lo, uint64_t hi)
{
    if (order == ENI_SUM_RANK) {
        mean_all_from(0, vectors, nsamples, world, 0, hi - lo);
        return;
    }
    for (int chunk = 0; chunk < world; chunk++) {
        uint64_t from = eni_slice_lo(count, chunk, world), to = eni_slice_lo(count, chunk + 1, world);
        if (from < lo) from = lo;
        if (to > hi) to = hi;
        if (from < to) mean_all_from(chunk, vectors, nsamples, world, from - lo, to - from);
    }
}
