/* optimizer.c - the optimizers, each a loop over a range of the flat vector; groups (optimizer.h). */
#include "ops/optimizer.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "ops/multiversion.h"
#include "ops/numbers.h"

/* The mean and SGD in one loop: sums stay in registers. SGD as torch.optim.SGD, dampening 0:
 *
 *     d = g + weight_decay * w
 *     m = momentum * m + d          (a first step from m = 0 gives m = d, as PyTorch's)
 *     w = w - lr * m                or, Nesterov:  w - lr * (d + momentum * m)
 *
 * One loop for each case that is used: the loops are bound by memory, so a case must not touch a vector that
 * it does not need. PyTorch leaves the decay term out when it is 0, and so do we: 0 * inf is not 0. */

enum { MOMENTUM = 1, DECAY = 2, NESTEROV = 4 };

/* Lines go by address: the calling convention of a value depends on the machine version. */
ENI_ALWAYS_INLINE void mean_of(eni_line *mean, const eni_sources *from, int n, uint64_t i)
{
    eni_line sum = *(const eni_line *)(from->src[0] + i) * from->scale[0];
    for (int k = 1; k < n; k++)
        sum += *(const eni_line *)(from->src[k] + i) * from->scale[k];
    *mean = sum * from->inv;
}

ENI_ALWAYS_INLINE void step_line(float *w_at, float *m_at, const eni_line *mean, int kind, float lr, float mu,
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
ENI_ALWAYS_INLINE void sgd_lines(float *w, float *m, const eni_sources *given, int n, int kind,
                                 uint64_t count, const eni_hyper *hyper)
{
    enum { STRIDE = 2, LINE = ENI_LINE_FLOATS };
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

ENI_ALWAYS_INLINE void sgd_cases(float *w, float *m, const eni_sources *from, int n, int kind, uint64_t count,
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

static int sgd_slots(const eni_hyper *hyper)
{
    return hyper->momentum != 0.0f;
}

static int kind_of(const eni_hyper *hyper)
{
    const int has_momentum = sgd_slots(hyper);
    return (has_momentum ? MOMENTUM : 0) | (hyper->weight_decay != 0.0f ? DECAY : 0) |
           (has_momentum && hyper->nesterov ? NESTEROV : 0);
}

static void sgd_mean_step(float *w, float *const *slots, const eni_sources *from, uint64_t count,
                          const eni_hyper *hyper)
{
    const int kind = kind_of(hyper);
    float *m = sgd_slots(hyper) ? slots[0] : NULL;
    if (from->n == 2)
        sgd_2(w, m, from, kind, count, hyper);
    else
        sgd_any(w, m, from, kind, count, hyper);
}

/* A gradient is the mean of one source with weight 1: g * 1 * 1 is g, and the compiler knows it. */
ENI_MULTIVERSION static void sgd_1(float *w, float *m, const float *g, int kind, uint64_t count,
                                   const eni_hyper *hyper)
{
    const float one = 1;
    const eni_sources alone = {.src = &g, .scale = &one, .n = 1, .inv = 1};
    sgd_cases(w, m, &alone, 1, kind, count, hyper);
}

static void sgd_step(float *w, float *const *slots, const float *g, uint64_t count, const eni_hyper *hyper)
{
    sgd_1(w, sgd_slots(hyper) ? slots[0] : NULL, g, kind_of(hyper), count, hyper);
}

static const eni_optimizer sgd = {
    .name = "sgd",
    .slots = sgd_slots,
    .slot_names = {"momentum_buffer"},
    .step = sgd_step,
    .mean_step = sgd_mean_step,
};

/* ---- Adam ----------------------------------------------------------------------------------------------
 *
 * As torch.optim.Adam and AdamW, operation by operation (t = steps taken, this one included):
 *
 *     adam:  d = g + weight_decay * w             adamw:  w = w * (1 - lr * weight_decay), d = g
 *     m = m + (d - m) * (1 - beta1)
 *     v = v * beta2 + ((1 - beta2) * d) * d
 *     w = w - (lr / (1 - beta1^t) * m) / (sqrt(v) / sqrt(1 - beta2^t) + eps)
 *
 * Roots and quotients are exact on every machine, as products and sums are. pow() need not be:
 * hence eni_power. */

static void adam_of(const eni_hyper *hyper, en_gpu_adam *adam_out)
{
    const uint64_t t = hyper->step + 1;
    *adam_out = (en_gpu_adam){.decay = hyper->weight_decay,
                              .keep = 1,
                              .take_mean = (float)(1 - hyper->beta1),
                              .keep_square = (float)hyper->beta2,
                              .take_square = (float)(1 - hyper->beta2),
                              .rate = (float)((double)hyper->lr / (1 - eni_power(hyper->beta1, t))),
                              .root = (float)sqrt(1 - eni_power(hyper->beta2, t)),
                              .eps = (float)hyper->eps};
}

static void adamw_of(const eni_hyper *hyper, en_gpu_adam *adam_out)
{
    adam_of(hyper, adam_out);
    adam_out->keep = (float)(1 - (double)hyper->lr * (double)hyper->weight_decay);
    adam_out->decay = 0;
}

/* `has_decay` is a constant where this is inlined. */
ENI_ALWAYS_INLINE void adam_all(float *restrict w, float *restrict m, float *restrict v,
                                const float *restrict g, uint64_t count, int has_decay, const en_gpu_adam *a)
{
    const en_gpu_adam r = *a;
    for (uint64_t i = 0; i < count; i++) {
        float d = g[i];
        if (has_decay) d += r.decay * w[i];
        m[i] += (d - m[i]) * r.take_mean;
        v[i] = v[i] * r.keep_square + r.take_square * d * d;
        w[i] = w[i] * r.keep - r.rate * m[i] / (sqrtf(v[i]) / r.root + r.eps);
    }
}

ENI_MULTIVERSION static void adam_loop(float *w, float *m, float *v, const float *g, uint64_t count,
                                       const en_gpu_adam *a)
{
    if (a->decay != 0.0f)
        adam_all(w, m, v, g, count, 1, a);
    else
        adam_all(w, m, v, g, count, 0, a);
}

static int adam_slots(const eni_hyper *hyper)
{
    (void)hyper;
    return 2;
}

static void adam_step(float *w, float *const *slots, const float *g, uint64_t count, const eni_hyper *hyper)
{
    en_gpu_adam adam;
    adam_of(hyper, &adam);
    adam_loop(w, slots[0], slots[1], g, count, &adam);
}

static void adamw_step(float *w, float *const *slots, const float *g, uint64_t count, const eni_hyper *hyper)
{
    en_gpu_adam adam;
    adamw_of(hyper, &adam);
    adam_loop(w, slots[0], slots[1], g, count, &adam);
}

static const eni_optimizer adam = {
    .name = "adam",
    .slots = adam_slots,
    .slot_names = {"exp_avg", "exp_avg_sq"},
    .step = adam_step,
    .adam = adam_of,
};

static const eni_optimizer adamw = {
    .name = "adamw",
    .slots = adam_slots,
    .slot_names = {"exp_avg", "exp_avg_sq"},
    .step = adamw_step,
    .adam = adamw_of,
};

static const eni_optimizer *const optimizers[] = {&sgd, &adam, &adamw};
enum { OPTIMIZERS = sizeof optimizers / sizeof *optimizers };

const eni_optimizer *eni_optimizer_find(const char *name)
{
    for (int i = 0; i < OPTIMIZERS; i++)
        if (strcmp(optimizers[i]->name, name) == 0) return optimizers[i];
    return NULL;
}

/* ---- groups -------------------------------------------------------------------------------------------- */

uint64_t eni_group_end(const eni_param_groups *groups, uint64_t at, uint64_t hi, uint32_t *group_out)
{
    *group_out = 0;
    if (groups == NULL) return hi;
    uint32_t from = 0, to = groups->nedges; /* the last edge not behind `at` is in [from, to) */
    while (to - from > 1) {
        const uint32_t middle = (from + to) / 2;
        if (groups->edge[middle].lo <= at)
            from = middle;
        else
            to = middle;
    }
    *group_out = groups->edge[from].group;
    return to < groups->nedges && groups->edge[to].lo < hi ? groups->edge[to].lo : hi;
}

eni_hyper eni_group_rates(const eni_hyper *run, uint32_t group)
{
    eni_hyper rates = *run;
    rates.groups = NULL;
    if (run->groups == NULL) return rates;
    rates.lr *= run->groups->group[group].lr_factor;
    rates.weight_decay = run->groups->group[group].weight_decay;
    return rates;
}

void eni_step_range(const eni_optimizer *optimizer, uint64_t at, float *w, float *const *slots,
                    const float *g, uint64_t count, const eni_hyper *hyper)
{
    uint32_t group;
    for (uint64_t lo = 0, hi; lo < count; lo = hi) {
        float *slots_at[ENI_MAX_SLOTS] = {NULL};
        hi = eni_group_end(hyper->groups, at + lo, at + count, &group) - at;
        for (int i = 0; i < ENI_MAX_SLOTS; i++)
            if (slots[i] != NULL) slots_at[i] = slots[i] + lo;
        const eni_hyper rates = eni_group_rates(hyper, group);
        optimizer->step(w + lo, slots_at, g + lo, hi - lo, &rates);
    }
}

eni_param_groups *eni_groups_new(void)
{
    eni_param_groups *groups = eni_alloc(sizeof *groups);
    if (groups != NULL) groups->edge = eni_alloc_array(ENI_GROUP_EDGES, sizeof *groups->edge);
    if (groups != NULL && groups->edge != NULL) return groups;
    eni_groups_free(groups);
    return NULL;
}

void eni_groups_free(eni_param_groups *groups)
{
    if (groups != NULL) eni_free(groups->edge);
    eni_free(groups);
}

bool eni_groups_add(eni_param_groups *groups, uint64_t lo, uint32_t group)
{
    if (groups->nedges > 0 && groups->edge[groups->nedges - 1].group == group) return true;
    if (groups->nedges == ENI_GROUP_EDGES) return false;
    groups->edge[groups->nedges++] = (eni_group_edge){lo, group};
    return true;
}

char *eni_groups_text(const eni_param_groups *groups)
{
    const size_t room = (size_t)groups->ngroups * 40 + (size_t)groups->nedges * 32 + 1;
    char *text = eni_alloc(room);
    size_t used = 0;
    for (uint32_t i = 0; text != NULL && i < groups->ngroups; i++)
        used += (size_t)snprintf(text + used, room - used, "%s%.9g:%.9g", i > 0 ? "," : "",
                                 (double)groups->group[i].lr_factor, (double)groups->group[i].weight_decay);
    for (uint32_t i = 0; text != NULL && i < groups->nedges; i++)
        used += (size_t)snprintf(text + used, room - used, "%c%" PRIu64 ":%u", i > 0 ? ',' : '/',
                                 groups->edge[i].lo, groups->edge[i].group);
    return text;
}

static bool read_group(const char **text, eni_param_group *group)
{
    return eni_read_rate(text, &group->lr_factor) && *(*text)++ == ':' &&
           eni_read_rate(text, &group->weight_decay);
}

static bool read_edge(const char **text, eni_group_edge *edge)
{
    uint64_t group;
    if (!eni_read_whole(text, &edge->lo) || *(*text)++ != ':' || !eni_read_whole(text, &group)) return false;
    edge->group = group < ENI_PARAM_GROUPS_MAX ? (uint32_t)group : ENI_PARAM_GROUPS_MAX;
    return true;
}

static bool read_groups(const char *text, eni_param_groups *groups)
{
    for (char mark = ','; mark == ','; mark = *text++)
        if (groups->ngroups == ENI_PARAM_GROUPS_MAX ||
            !read_group(&text, &groups->group[groups->ngroups++]) || (*text != ',' && *text != '/'))
            return false;
    for (char mark = ','; mark == ','; mark = *text++) {
        eni_group_edge *edge = &groups->edge[groups->nedges];
        if (groups->nedges == ENI_GROUP_EDGES || !read_edge(&text, edge) || edge->group >= groups->ngroups ||
            (groups->nedges == 0 ? edge->lo != 0 : edge->lo <= edge[-1].lo) || (*text != ',' && *text != 0))
            return false;
        groups->nedges++;
    }
    return true;
}

eni_param_groups *eni_groups_parse(const char *text)
{
    eni_param_groups *groups = eni_groups_new();
    if (groups == NULL || read_groups(text, groups)) return groups;
    eni_groups_free(groups);
    return NULL;
}
