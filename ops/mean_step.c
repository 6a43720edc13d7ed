/* mean_step.c - mean and step in one loop: the mean of a line stays in registers until the weights have been
 * stepped with it; see mean_step.h. */
#include "ops/mean_step.h"

#include <string.h>

#include "core/memory.h"
#include "ops/mean.h"
#include "ops/multiversion.h"

/* SGD as ops/optimizer.c has it, case by case, in the same order of operations. */
enum { MOMENTUM = 1, DECAY = 2, NESTEROV = 4 };

enum { LINE = sizeof(eni_line) / sizeof(float), STRIDE = 2, BLOCK = 1024 };

#define ALWAYS_INLINE static inline __attribute__((always_inline))

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
