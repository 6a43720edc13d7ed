/* mean.c - the mean in three shapes, all with the same bits (mean.h): block by block, so that a block's sum
 * stays in the cache; of all ranks' vectors, written to all of them, and with the optimizer's step, where
 * sums stay in registers; and two more loops over flat vectors. */
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

/* ---- all ranks at once -------------------------------------------------------------------------------- */

/* Some lines are summed side by side, so that the additions of one do not wait for each other. */
enum { LINE = sizeof(eni_line) / sizeof(float) };

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Sources and destinations are read and written at the same element, so a destination may be a source.
 * nsrc and ndst are constants where this is inlined, and then all pointers are in registers. */
ALWAYS_INLINE void mean_lines(float *const *dst, int ndst, const float *const *src, const float *scale,
                              int nsrc, float inv, uint64_t count)
{
    enum { STRIDE = 4, STEP = STRIDE * LINE };
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

/* Elements [at, at + count) of each dst, added from rank `first` on, around the ring. */
static void mean_from(int first, float *const *dst, int ndst, const float *const *src,
                      const uint64_t *nsamples, int world, uint64_t at, uint64_t count)
{
    float *to[ENI_MEAN_MAX];
    const float *from[ENI_MEAN_MAX];
    float scale[ENI_MEAN_MAX];
    uint64_t samples = 0;
    int n = 0;
    for (int k = 0; k < ndst; k++)
        to[k] = dst[k] + at;
    for (int k = 0; k < world; k++) {
        const int rank = (first + k) % world;
        if (nsamples[rank] == 0) continue;
        from[n] = src[rank] + at;
        scale[n++] = (float)nsamples[rank];
        samples += nsamples[rank];
    }
    const float inv = 1.0f / (float)samples;
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

/* ---- the mean and the optimizer's step ------------------------------------------------------------------
 */

/* SGD as ops/optimizer.c has it, case by case, in the same order of operations. */
enum { MOMENTUM = 1, DECAY = 2, NESTEROV = 4 };

/* Lines go by address: how one is handed over by value depends on the machine version. */
ALWAYS_INLINE void mean_of(eni_line *mean, const eni_sources *from, int n, uint64_t i)
{
    eni_line sum = *(const eni_line *)(from->src[0] + i) * from->scale[0];
    for (int k = 1; k < n; k++)
        sum += *(const eni_line *)(from->src[k] + i) * from->scale[k];
    *mean = sum * from->inv;
}

ALWAYS_INLINE void step_line(float *w_at, float *m_at, const eni_line *mean, int kind, float lr, float mu,
                             float decay)
{
    const eni_line w = *(eni_line *)w_at;
    eni_line d = *mean;
    if (kind & DECAY) d += decay * w;
    if (kind & MOMENTUM) {
        const eni_line m = mu * *(eni_line *)m_at + d;
        *(eni_line *)m_at = m;
        if (kind & NESTEROV)
            d += mu * m;
        else
            d = m;
    }
    *(eni_line *)w_at = w - lr * d;
}

/* n and kind are constants where this is inlined. */
ALWAYS_INLINE void sgd_lines(float *w, float *m, const eni_sources *given, int n, int kind, uint64_t count,
                             const eni_hyper *hyper)
{
    enum { STRIDE = 2 };
    const float lr = hyper->lr, mu = hyper->momentum, decay = hyper->weight_decay;
    const eni_sources from = *given;
    uint64_t i = 0;
    for (; i + STRIDE * LINE <= count; i += STRIDE * LINE) {
        eni_line g[STRIDE];
        for (int s = 0; s < STRIDE; s++)
            mean_of(&g[s], &from, n, i + (uint64_t)s * LINE);
        for (int s = 0; s < STRIDE; s++)
            step_line(w + i + s * LINE, m + (kind & MOMENTUM ? i + (uint64_t)s * LINE : 0), &g[s], kind, lr,
                      mu, decay);
    }
    for (; i < count; i++) { /* as above, one by one */
        float g = from.src[0][i] * from.scale[0];
        for (int k = 1; k < n; k++)
            g += from.src[k][i] * from.scale[k];
        g *= from.inv;
        if (kind & DECAY) g += decay * w[i];
        if (kind & MOMENTUM) {
            m[i] = mu * m[i] + g;
            g = kind & NESTEROV ? g + mu * m[i] : m[i];
        }
        w[i] -= lr * g;
    }
}

ALWAYS_INLINE void sgd_cases(float *w, float *m, const eni_sources *from, int n, int kind, uint64_t count,
                             const eni_hyper *hyper)
{
    switch (kind) {
    case 0: sgd_lines(w, m, from, n, 0, count, hyper); break;
    case DECAY: sgd_lines(w, m, from, n, DECAY, count, hyper); break;
    case MOMENTUM: sgd_lines(w, m, from, n, MOMENTUM, count, hyper); break;
    case MOMENTUM | DECAY: sgd_lines(w, m, from, n, MOMENTUM | DECAY, count, hyper); break;
    case MOMENTUM | NESTEROV: sgd_lines(w, m, from, n, MOMENTUM | NESTEROV, count, hyper); break;
    default: sgd_lines(w, m, from, n, MOMENTUM | DECAY | NESTEROV, count, hyper); break;
    }
}

ENI_MULTIVERSION static void sgd_any(float *w, float *m, const eni_sources *from, int kind, uint64_t count,
                                     const eni_hyper *hyper)
{
    sgd_cases(w, m, from, from->n, kind, count, hyper);
}

ENI_MULTIVERSION static void sgd_2(float *w, float *m, const eni_sources *from, int kind, uint64_t count,
                                   const eni_hyper *hyper)
{
    const float *const src[] = {from->src[0], from->src[1]};
    const float scale[] = {from->scale[0], from->scale[1]};
    const eni_sources two = {.src = src, .scale = scale, .n = 2, .inv = from->inv};
    sgd_cases(w, m, &two, 2, kind, count, hyper);
}

/* Any other optimizer, and a step without gradients: block by block, so that the mean stays in the cache. */
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
    const int has_momentum = hyper->momentum != 0.0f;
    const int kind = (has_momentum ? MOMENTUM : 0) | (hyper->weight_decay != 0.0f ? DECAY : 0) |
                     (has_momentum && hyper->nesterov ? NESTEROV : 0);
    if (optimizer != &eni_sgd || from->n == 0)
        blocks(optimizer, w, slots, from, count, hyper);
    else if (from->n == 2)
        sgd_2(w, has_momentum ? slots[0] : NULL, from, kind, count, hyper);
    else
        sgd_any(w, has_momentum ? slots[0] : NULL, from, kind, count, hyper);
}

/* ---- other loops --------------------------------------------------------------------------------------- */

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
