/* mean_step.h - the mean of gradients and the optimizer's step in one loop: each gradient is read once,
 * weights and optimizer state are read and written once, and the mean exists only in registers.
 *
 * The same bits as eni_mean, then the optimizer's step. */
#ifndef OPS_MEAN_STEP_H
#define OPS_MEAN_STEP_H

#include "ops/optimizer.h"

/* What eni_mean takes: mean[i] = (sum over k of src[k][i] * scale[k]) * inv. n == 0: the mean is 0. */
typedef struct eni_sources {
    const float *const *src;
    const float *scale;
    int n;
    float inv;
    const int *rank; /* (n) whose each one is; NULL: not known. Not looked at here */
} eni_sources;

/* w, slots: (count), stepped in place; they overlap no source. Optimizers and rates as eni_optimizer.step.
 * Thread-safe, never allocates. */
void eni_mean_step(const eni_optimizer *optimizer, float *w, float *const *slots, const eni_sources *from,
                   uint64_t count, const eni_hyper *hyper);

#endif
