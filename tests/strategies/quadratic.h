/* quadratic.h - a problem for tests: a noisy quadratic whose answers can be computed by hand.
 *
 *     loss(w) = 1/2 sum_i h_i (w_i - 1)^2        gradient of micro-batch m: h_i (w_i - 1 - noise * u_i(m))
 *
 * h_i spreads over [0.5, 1.5], u_i(m) is uniform in [-1, 1) by the counter-based generator: a function of
 * (seed, m, i), the same on every rank and in every strategy. Three tensors, so that there are buckets. */
#ifndef TESTS_STRATEGIES_QUADRATIC_H
#define TESTS_STRATEGIES_QUADRATIC_H

#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/rng.h"
#include "runtime/net/host_info.h"
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

enum { ENI_QUADRATIC_PERIOD = 11 };

static inline double eni_quadratic_curvature(uint64_t i)
{
    return 0.5 + (double)(i % ENI_QUADRATIC_PERIOD) / 10;
}

static inline uint64_t eni_quadratic_samples(void *quadratic, uint64_t micro_batch)
{
    const eni_quadratic *q = quadratic;
    return micro_batch == q->last_batch ? q->last_samples : q->samples;
}

static inline en_status eni_quadratic_gradient(void *quadratic, int rank, uint64_t micro_batch,
                                               const float *param, float *grad)
{
    (void)rank;
    const eni_quadratic *q = quadratic;
    const eni_rng_key key = {q->seed, ENI_RNG_SYNTHETIC, 0, micro_batch};
    double by[ENI_QUADRATIC_PERIOD];
    for (uint64_t k = 0; k < ENI_QUADRATIC_PERIOD; k++)
        by[k] = eni_quadratic_curvature(k);
    for (uint64_t i = 0, k = 0; i < q->problem.count; i++, k = k + 1 < ENI_QUADRATIC_PERIOD ? k + 1 : 0) {
        const double noise = q->noise != 0 ? q->noise * (2 * eni_rng_unit(&key, i) - 1) : 0;
        grad[i] = (float)(by[k] * ((double)param[i] - 1 - noise));
    }
    return EN_OK;
}

/* The loss without noise; 0 at the optimum. */
static inline double eni_quadratic_loss(const eni_quadratic *quadratic, const float *param)
{
    double loss = 0;
    for (uint64_t i = 0; i < quadratic->problem.count; i++) {
        const double d = (double)param[i] - 1;
        loss += 0.5 * eni_quadratic_curvature(i) * d * d;
    }
    return loss;
}

/* A problem of `count` elements (at least 48). The object must not move afterwards. */
static inline en_status eni_quadratic_init(eni_quadratic *quadratic, uint64_t count, uint64_t seed)
{
    eni_quadratic *q = quadratic;
    memset(q, 0, sizeof *q);
    if (count < 3 * ENI_LINE_FLOATS)
        return eni_fail(EN_EINVAL, "quadratic",
                        "%llu elements are too few for three tensors: expected at least %u",
                        (unsigned long long)count, 3 * ENI_LINE_FLOATS);
    q->seed = seed;
    q->noise = 0.5;
    q->samples = 8;
    q->last_batch = UINT64_MAX;
    q->init = eni_alloc_array(count, sizeof *q->init);
    if (q->init == NULL) return EN_ENOMEM;
    /* A large tensor in front, one line, and the rest. */
    const uint64_t first = count / 2 / ENI_LINE_FLOATS * ENI_LINE_FLOATS, second = first + ENI_LINE_FLOATS;
    q->tensors[0] = (en_model_tensor){.name = "a", .offset = 0, .count = first};
    q->tensors[1] = (en_model_tensor){.name = "b", .offset = first, .count = ENI_LINE_FLOATS};
    q->tensors[2] = (en_model_tensor){.name = "c", .offset = second, .count = count - second};
    q->problem = (eni_sim_problem){.count = count,
                                   .tensors = q->tensors,
                                   .ntensors = 3,
                                   .init = q->init,
                                   .samples = eni_quadratic_samples,
                                   .grad = eni_quadratic_gradient,
                                   .user = q,
                                   .threads = count >= 4096 ? eni_host_info_cores() : 1};
    return EN_OK;
}

/* Safe on zeroed memory. */
static inline void eni_quadratic_fini(eni_quadratic *quadratic)
{
    eni_free(quadratic->init);
    quadratic->init = NULL;
}

#endif
