/* quadratic.c - the noisy quadratic: gradients in closed form, noise by the counter-based generator. */
#include "runtime/sim/quadratic.h"

#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/rng.h"
#include "runtime/net/host_info.h"

enum { PERIOD = 11, WORTH_THREADS = 4096 /* elements; fewer take less than the change of threads */ };

static double curvature(uint64_t i)
{
    return 0.5 + (double)(i % PERIOD) / 10;
}

static uint64_t samples_of(void *quadratic, uint64_t micro_batch)
{
    const eni_quadratic *q = quadratic;
    return micro_batch == q->last_batch ? q->last_samples : q->samples;
}

static en_status gradient_of(void *quadratic, int rank, uint64_t micro_batch, const float *param, float *grad)
{
    (void)rank;
    const eni_quadratic *q = quadratic;
    const eni_rng_key key = {q->seed, ENI_RNG_SYNTHETIC, 0, micro_batch};
    double by[PERIOD];
    for (uint64_t k = 0; k < PERIOD; k++)
        by[k] = curvature(k);
    for (uint64_t i = 0, k = 0; i < q->problem.count; i++, k = k + 1 < PERIOD ? k + 1 : 0) {
        const double noise = q->noise != 0 ? q->noise * (2 * eni_rng_unit(&key, i) - 1) : 0;
        grad[i] = (float)(by[k] * ((double)param[i] - 1 - noise));
    }
    return EN_OK;
}

double eni_quadratic_loss(const eni_quadratic *quadratic, const float *param)
{
    double loss = 0;
    for (uint64_t i = 0; i < quadratic->problem.count; i++) {
        const double d = (double)param[i] - 1;
        loss += 0.5 * curvature(i) * d * d;
    }
    return loss;
}

en_status eni_quadratic_init(eni_quadratic *quadratic, uint64_t count, uint64_t seed)
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
                                   .samples = samples_of,
                                   .grad = gradient_of,
                                   .user = q,
                                   .threads = count >= WORTH_THREADS ? eni_host_info_cores() : 1};
    return EN_OK;
}

void eni_quadratic_fini(eni_quadratic *quadratic)
{
    eni_free(quadratic->init);
    quadratic->init = NULL;
}
