/* optimizer.c - the optimizers, each a loop over a range of the flat vector, and their rate (optimizer.h). */
#include "ops/optimizer.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "ops/multiversion.h"

/* SGD as torch.optim.SGD, dampening 0:
 *
 *     d = g + weight_decay * w
 *     m = momentum * m + d          (a first step from m = 0 gives m = d, as PyTorch's)
 *     w = w - lr * m                or, Nesterov:  w - lr * (d + momentum * m)
 *
 * One loop for each case that is used: the loops are bound by memory, so a case must not touch a vector
 * that it does not need. PyTorch leaves the decay term out when it is 0, and so do we: 0 * inf is not 0. */

ENI_MULTIVERSION static void sgd_plain(float *restrict w, const float *restrict g, uint64_t count, float lr)
{
    for (uint64_t i = 0; i < count; i++)
        w[i] -= lr * g[i];
}

ENI_MULTIVERSION static void sgd_plain_decay(float *restrict w, const float *restrict g, uint64_t count,
                                             float lr, float decay)
{
    for (uint64_t i = 0; i < count; i++)
        w[i] -= lr * (g[i] + decay * w[i]);
}

ENI_MULTIVERSION static void sgd_momentum(float *restrict w, float *restrict m, const float *restrict g,
                                          uint64_t count, float lr, float mu)
{
    for (uint64_t i = 0; i < count; i++) {
        m[i] = mu * m[i] + g[i];
        w[i] -= lr * m[i];
    }
}

ENI_MULTIVERSION static void sgd_momentum_decay(float *restrict w, float *restrict m, const float *restrict g,
                                                uint64_t count, float lr, float mu, float decay)
{
    for (uint64_t i = 0; i < count; i++) {
        m[i] = mu * m[i] + (g[i] + decay * w[i]);
        w[i] -= lr * m[i];
    }
}

ENI_MULTIVERSION static void sgd_nesterov(float *restrict w, float *restrict m, const float *restrict g,
                                          uint64_t count, float lr, float mu)
{
    for (uint64_t i = 0; i < count; i++) {
        m[i] = mu * m[i] + g[i];
        w[i] -= lr * (g[i] + mu * m[i]);
    }
}

ENI_MULTIVERSION static void sgd_nesterov_decay(float *restrict w, float *restrict m, const float *restrict g,
                                                uint64_t count, float lr, float mu, float decay)
{
    for (uint64_t i = 0; i < count; i++) {
        const float d = g[i] + decay * w[i];
        m[i] = mu * m[i] + d;
        w[i] -= lr * (d + mu * m[i]);
    }
}

static int sgd_slots(const eni_hyper *hyper)
{
    return hyper->momentum != 0.0f;
}

static void sgd_step(float *w, float *const *slots, const float *g, uint64_t count, const eni_hyper *hyper)
{
    const float lr = hyper->lr, mu = hyper->momentum, decay = hyper->weight_decay;
    const int decays = decay != 0.0f;
    float *m = mu != 0.0f ? slots[0] : NULL;
    if (!m && !decays)
        sgd_plain(w, g, count, lr);
    else if (!m)
        sgd_plain_decay(w, g, count, lr, decay);
    else if (!hyper->nesterov && !decays)
        sgd_momentum(w, m, g, count, lr, mu);
    else if (!hyper->nesterov)
        sgd_momentum_decay(w, m, g, count, lr, mu, decay);
    else if (!decays)
        sgd_nesterov(w, m, g, count, lr, mu);
    else
        sgd_nesterov_decay(w, m, g, count, lr, mu, decay);
}

const eni_optimizer eni_sgd = {
    .name = "sgd",
    .formula = "d = g + wd*w; m = mu*m + d; w -= lr*m, or lr*(d + mu*m) with Nesterov (torch.optim.SGD)",
    .slots = sgd_slots,
    .slot_names = {"momentum_buffer"},
    .step = sgd_step,
};

static const eni_optimizer *const optimizers[] = {&eni_sgd};
enum { OPTIMIZERS = sizeof optimizers / sizeof *optimizers };

const eni_optimizer *eni_optimizer_find(const char *name)
{
    for (int i = 0; i < OPTIMIZERS; i++)
        if (strcmp(optimizers[i]->name, name) == 0) return optimizers[i];
    return NULL;
}

/* ---- the learning rate --------------------------------------------------------------------------------- */

const char *const eni_schedule_names[ENI_SCHEDULES] = {"constant", "step", "cosine"};

float eni_schedule_lr(const eni_schedule *schedule, uint64_t samples)
{
    double lr = schedule->base;
    switch (schedule->kind) {
    case ENI_LR_CONSTANT: break;
    case ENI_LR_STEP:
        if (schedule->step_samples > 0)
            lr *= pow(schedule->gamma, (double)(samples / schedule->step_samples));
        break;
    case ENI_LR_COSINE: {
        double done = schedule->total > 0 ? (double)samples / (double)schedule->total : 0;
        lr *= 0.5 * (1 + cos(acos(-1.0) * (done < 1 ? done : 1)));
        break;
    }
    }
    if (samples < schedule->warmup) lr *= (double)samples / (double)schedule->warmup;
    return (float)lr;
}
