/* skewed.c - the problem of `entrain sim` without --model (skewed.h). */
#include "runtime/sim/skewed.h"

#include <math.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/rng.h"
#include "runtime/net/host_info.h"

enum {
    KINDS = ENI_SKEWED_KINDS,
    SAMPLES = 8,         /* of a micro-batch */
    WORTH_THREADS = 4096 /* elements; fewer take less than the change of threads */
};

/* u of part p at element i is (5 p + 3 i) mod 16, as a number in (0, 1): 16 neighbouring parts have all of them. */
static double place(uint64_t part, uint64_t i)
{
    return ((double)((5 * part + 3 * i) % KINDS) + 0.5) / KINDS;
}

static double weight(double u)
{
    const double square = (1 - u) * (1 - u);
    return 0.1 + 6 * square * square;
}

/* One part's term at w, and in *slope_out its derivative. */
static double term(double u, double w, double *slope_out)
{
    const double d = w - (1 - 4 * u * u), root = sqrt(1 + d * d);
    *slope_out = weight(u) * d / root;
    return weight(u) * (root - 1);
}

static double mean_term(const eni_skewed *s, uint64_t i, double w, double *slope_out)
{
    double sum = 0, slope;
    *slope_out = 0;
    for (uint64_t kind = 0; kind < KINDS; kind++) {
        if (s->share[kind] == 0) continue;
        sum += s->share[kind] * term(place(kind, i), w, &slope);
        *slope_out += s->share[kind] * slope;
    }
    return sum;
}

static uint64_t samples_of(void *skewed, uint64_t micro_batch)
{
    (void)skewed, (void)micro_batch;
    return SAMPLES;
}

static en_status gradient_of(void *skewed, int rank, uint64_t micro_batch, const float *param, float *grad)
{
    (void)rank;
    const eni_skewed *s = skewed;
    const eni_rng_key key = {s->seed, ENI_RNG_SYNTHETIC, 0, micro_batch};
    double slope;
    for (uint64_t i = 0; i < s->problem.count; i++) {
        const double u = place(micro_batch % s->parts, i);
        (void)term(u, (double)param[i], &slope);
        grad[i] = (float)(slope - weight(u) * s->noise * (2 * eni_rng_unit(&key, i) - 1));
    }
    return EN_OK;
}

/* The minimum of a convex function between -3 and 1, by bisection of its slope. */
static double minimum(const eni_skewed *s, uint64_t i)
{
    double lo = -3, hi = 1, slope;
    while ((lo + hi) / 2 > lo && (lo + hi) / 2 < hi) {
        (void)mean_term(s, i, (lo + hi) / 2, &slope);
        *(slope < 0 ? &lo : &hi) = (lo + hi) / 2;
    }
    return mean_term(s, i, lo, &slope);
}

double eni_skewed_loss(const eni_skewed *s, const float *param)
{
    double loss = 0, slope;
    for (uint64_t i = 0; i < s->problem.count; i++)
        loss += mean_term(s, i, (double)param[i], &slope) - s->least[i % KINDS];
    return loss;
}

en_status eni_skewed_init(eni_skewed *s, uint64_t count, uint64_t seed, uint64_t parts)
{
    /* A large tensor in front, one line, and the rest. */
    const uint64_t first = count / 2 / ENI_LINE_FLOATS * ENI_LINE_FLOATS, second = first + ENI_LINE_FLOATS;
    memset(s, 0, sizeof *s);
    if (count < 3 * ENI_LINE_FLOATS)
        return eni_fail(EN_EINVAL, "sim", "%llu elements are too few for three tensors: give at least %u",
                        (unsigned long long)count, 3 * ENI_LINE_FLOATS);
    s->seed = seed;
    s->parts = parts;
    s->noise = 0.5;
    if ((s->init = eni_alloc_array(count, sizeof *s->init)) == NULL) return EN_ENOMEM;
    for (uint64_t kind = 0; kind < KINDS; kind++)
        s->share[kind] = (double)(parts / KINDS + (kind < parts % KINDS)) / (double)parts;
    for (uint64_t i = 0; i < KINDS; i++)
        s->least[i] = minimum(s, i);
    s->tensors[0] = (en_model_tensor){.name = "a", .offset = 0, .count = first};
    s->tensors[1] = (en_model_tensor){.name = "b", .offset = first, .count = ENI_LINE_FLOATS};
    s->tensors[2] = (en_model_tensor){.name = "c", .offset = second, .count = count - second};
    s->problem = (eni_sim_problem){.count = count,
                                   .tensors = s->tensors,
                                   .ntensors = 3,
                                   .init = s->init,
                                   .samples = samples_of,
                                   .grad = gradient_of,
                                   .user = s,
                                   .threads = count >= WORTH_THREADS ? eni_host_info_cores() : 1};
    return EN_OK;
}

void eni_skewed_fini(eni_skewed *s)
{
    eni_free(s->init);
    s->init = NULL;
}
