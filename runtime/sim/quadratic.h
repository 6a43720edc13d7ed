/* quadratic.h - a problem without a model: a noisy quadratic whose answers can be computed by hand.
 *
 *     loss(w) = 1/2 sum_i h_i (w_i - 1)^2        gradient of micro-batch m: h_i (w_i - 1 - noise * u_i(m))
 *
 * h_i spreads over [0.5, 1.5], u_i(m) is uniform in [-1, 1) by the counter-based generator: a function of
 * (seed, m, i), the same on every rank and in every strategy. Three tensors, so that there are buckets. */
#ifndef SIM_QUADRATIC_H
#define SIM_QUADRATIC_H

#include "runtime/sim/sim.h"

typedef struct eni_quadratic {
    uint64_t seed;
    double noise;
    uint64_t samples;    /* per micro-batch */
    uint64_t last_batch; /* the ragged one, with last_samples; UINT64_MAX: none */
    uint64_t last_samples;
    en_model_tensor tensors[3];
    float *init;             /* (count) zeros; owned */
    eni_sim_problem problem; /* for eni_sim_config */
} eni_quadratic;

/* A problem of `count` elements (at least 48). The object must not move afterwards. */
en_status eni_quadratic_init(eni_quadratic *quadratic, uint64_t count, uint64_t seed);

/* Safe on zeroed memory. */
void eni_quadratic_fini(eni_quadratic *quadratic);

/* The loss without noise; 0 at the optimum. */
double eni_quadratic_loss(const eni_quadratic *quadratic, const float *param);

#endif
