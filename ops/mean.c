/* mean.c - the mean in three forms, all with the same bits (mean.h): block by block, so that a block's sum
 * stays in the cache; of all ranks' vectors, written to all of them, and with the optimizer's step, where
 * sums stay in registers (optimizer.c); and two more loops over flat vectors. */
#include "ops/mean.h"

#include <string.h>

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

ENI_MULTIVERSION void eni_mean_last(float *restrict acc, const float *restrict src, float scale, float inv,
                                    uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        acc[i] = (acc[i] + src[i] * scale) * inv;
}

/* Two sources, the most common world: no partial sum to keep. dst may be a or b, hence no restrict. */
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

/* ---- all ranks at once -------------------------------------------------------------------------------- */

/* Sources and destinations are read and written at the same element, so a destination may be a source. Some
 * lines are summed side by side, so that the additions of one do not wait for each other.
 * nsrc and ndst are constants where this is inlined, and then all pointers are in registers. */
ENI_ALWAYS_INLINE void mean_lines(float *const *dst, int ndst, const float *const *src, const float *scale,
                                  int nsrc, float inv, uint64_t count)
{
    enum { STRIDE = 4, LINE = ENI_LINE_FLOATS, STEP = STRIDE * LINE };
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

/* The same for one dst and any number of ranks: no array of them on the stack. */
static void mean_of_many(int first, float *dst, const float *const *src, const uint64_t *nsamples, int world,
                         uint64_t at, uint64_t count)
{
    _Alignas(ENI_LINE) float acc[BLOCK];
    uint64_t sum = 0;
    for (int r = 0; r < world; r++)
        sum += eni_mean_weight(nsamples[r], world);
    if (sum == 0) memset(dst + at, 0, count * sizeof *dst);
    for (uint64_t i = at; i < at + count && sum > 0; i += BLOCK) {
        const uint64_t part = at + count - i < BLOCK ? at + count - i : BLOCK;
        bool is_first = true;
        for (int k = 0; k < world; k++) {
            const int r = (first + k) % world;
            if (nsamples[r] == 0) continue;
            (is_first ? eni_mean_first : eni_mean_add)(acc, src[r] + i, (float)nsamples[r], part);
            is_first = false;
        }
        eni_mean_first(dst + i, acc, 1.0f / (float)sum, part);
    }
}

/* Elements [at, at + count) of each dst, added from rank `first` on, around the ring. */
static void mean_from(int first, float *const *dst, int ndst, const float *const *src,
                      const uint64_t *nsamples, int world, uint64_t at, uint64_t count)
{
    if (world > ENI_MEAN_MAX && ndst == 1) {
        mean_of_many(first, dst[0], src, nsamples, world, at, count);
        return;
    }
    float *to[ENI_MEAN_MAX];
    const float *from[ENI_MEAN_MAX];
    float scale[ENI_MEAN_MAX];
    uint64_t sum = 0;
    int n = 0;
    for (int k = 0; k < ndst; k++)
        to[k] = dst[k] + at;
    for (int k = 0; k < world; k++) {
        const int rank = (first + k) % world;
        if (nsamples[rank] == 0) continue;
        from[n] = src[rank] + at;
        const uint64_t weight = eni_mean_weight(nsamples[rank], world);
        scale[n++] = (float)weight;
        sum += weight;
    }
    const float inv = 1.0f / (float)sum;
    if (n == 0)
        for (int k = 0; k < ndst; k++)
            memset(to[k], 0, count * sizeof *to[k]);
    else if (ndst == 1)
        eni_mean(to[0], from, scale, n, inv, count);
    else if (n == 2 && ndst == 2)
        mean_2(to, from, scale, inv, count);
    else if (n == 4 && ndst == 4)
        mean_4(to, from, scale, inv, count);
    else
        mean_any(to, ndst, from, scale, n, inv, count);
}

static void mean_in_order(eni_sum_order order, float *const *dst, int ndst, const float *const *src,
                          const uint64_t *nsamples, int world, uint64_t count, uint64_t lo, uint64_t hi)
{
    if (order == ENI_SUM_RANK) {
        mean_from(0, dst, ndst, src, nsamples, world, 0, hi - lo);
        return;
    }
    for (int chunk = 0; chunk < world; chunk++) {
        uint64_t from = eni_slice_lo(count, chunk, world), to = eni_slice_lo(count, chunk + 1, world);
        if (from < lo) from = lo;
        if (to > hi) to = hi;
        if (from < to) mean_from(chunk, dst, ndst, src, nsamples, world, from - lo, to - from);
    }
}

void eni_mean_ranks(float *dst, const float *const *src, const uint64_t *nsamples, int world,
                    eni_sum_order order, uint64_t count, uint64_t lo, uint64_t hi)
{
    mean_in_order(order, &dst, 1, src, nsamples, world, count, lo, hi);
}

void eni_mean_all(float *const *vectors, const uint64_t *nsamples, int world, eni_sum_order order,
                  uint64_t count, uint64_t lo, uint64_t hi)
{
    mean_in_order(order, vectors, world, (const float *const *)vectors, nsamples, world, count, lo, hi);
}

/* ---- the mean and the optimizer's step ---- */

/* For an optimizer without such a loop, or a step without gradients: block by block, so that the mean stays
 * in the cache. */
static void blocks(const eni_optimizer *optimizer, float *w, float *const *slots, const eni_sources *from,
                   uint64_t count, const eni_hyper *hyper)
{
    _Alignas(ENI_LINE) float mean[BLOCK];
    const float *src[ENI_MEAN_MAX];
    memset(mean, 0, sizeof mean);
    for (uint64_t at = 0; at < count; at += BLOCK) {
        const uint64_t part = count - at < BLOCK ? count - at : BLOCK;
        float *slots_at[ENI_MAX_SLOTS] = {NULL};
        for (int i = 0; i < ENI_MAX_SLOTS; i++)
            if (slots[i]) slots_at[i] = slots[i] + at;
        for (int k = 0; k < from->n; k++)
            src[k] = from->src[k] + at;
        if (from->n > 0) eni_mean(mean, src, from->scale, from->n, from->inv, part);
        optimizer->step(w + at, slots_at, mean, part, hyper);
    }
}

void eni_mean_step(const eni_optimizer *optimizer, float *w, float *const *slots, const eni_sources *from,
                   uint64_t count, const eni_hyper *hyper)
{
    if (optimizer->mean_step != NULL && from->n > 0)
        optimizer->mean_step(w, slots, from, count, hyper);
    else
        blocks(optimizer, w, slots, from, count, hyper);
}

void eni_mean_step_range(const eni_optimizer *optimizer, uint64_t at, float *w, float *const *slots,
                         const eni_sources *from, uint64_t count, const eni_hyper *hyper)
{
    const float *src[ENI_MEAN_MAX];
    eni_sources part = *from;
    uint32_t group;
    part.src = src;
    for (uint64_t lo = 0, hi; lo < count; lo = hi) {
        float *slots_at[ENI_MAX_SLOTS] = {NULL};
        hi = eni_group_end(hyper->groups, at + lo, at + count, &group) - at;
        for (int i = 0; i < ENI_MAX_SLOTS; i++)
            if (slots[i]) slots_at[i] = slots[i] + lo;
        for (int k = 0; k < from->n; k++)
            src[k] = from->src[k] + lo;
        const eni_hyper rates = eni_group_rates(hyper, group);
        eni_mean_step(optimizer, w + lo, slots_at, &part, hi - lo, &rates);
    }
}

/* ---- other loops --------------------------------------------------------------------------------------- */

/* Whether an exponent of the block is all ones (infinity or not a number). No early exit: it vectorises. */
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

bool eni_all_finite(const float *src, uint64_t count)
{
    for (uint64_t at = 0; at < count; at += BLOCK)
        if (has_nonfinite(src + at, count - at < BLOCK ? count - at : BLOCK)) return false;
    return true;
}

ENI_MULTIVERSION void eni_lin(float *y, float a, const float *x, float b, uint64_t count)
{
    if (b == 0.0f)
        for (uint64_t i = 0; i < count; i++)
            y[i] = a * x[i];
    else
        for (uint64_t i = 0; i < count; i++)
            y[i] = a * x[i] + b * y[i];
}
