/* key_values.h - a small model's JOIN, and the weights after rounds of ps-sync on it. */
#ifndef TESTS_SERVER_KEY_VALUES_H
#define TESTS_SERVER_KEY_VALUES_H

#include <stdint.h>

#include "ops/mean.h"
#include "ops/optimizer.h"
#include "ops/schedule.h"
#include "runtime/control/control.h"

/* Buckets are numbered from the end of the flat vector. */
enum { BUCKETS = 3, ELEMENTS = 784, MOST = 700 };
static const uint64_t counts[BUCKETS] = {700, 5, 64};
static const uint64_t offsets[BUCKETS] = {84, 64, 0};

enum { KEY_VALUES = 20 };
static const eni_key_value good_key_values[KEY_VALUES] = {{"strategy-name", "ps-sync"},
                                                          {"strategy-options", ""},
                                                          {"buckets", "700,5,64"},
                                                          {"bucket-offsets", "84,64,0"},
                                                          {"elements", "784"},
                                                          {"optimizer", "sgd"},
                                                          {"momentum", "0.9"},
                                                          {"weight-decay", "0.001"},
                                                          {"nesterov", "1"},
                                                          {"lr", "0.1"},
                                                          {"lr-schedule", "step"},
                                                          {"lr-warmup", "30"},
                                                          {"lr-step", "100"},
                                                          {"lr-gamma", "0.5"},
                                                          {"total-samples", "320"},
                                                          {"sum-order", "rank"},
                                                          {"seed", "9007199254740993"},
                                                          {"budget", "40"},
                                                          {"net-rate", "0"},
                                                          {"net-delay", "0"}};

static inline float weight_at(uint64_t element)
{
    return (float)(element % 97) * 0.01f - 0.5f;
}

static inline float gradient_at(int rank, uint64_t step, uint64_t element)
{
    return (float)((element * 31 + step * 17 + (uint64_t)rank * 57) % 101) * 0.03f - 1.5f;
}

enum { SAMPLES = 8 }; /* of every micro-batch */

/* The flat vector after `steps` rounds of `world` ranks, by ops/ alone. */
static inline void train_alone(int world, uint64_t steps, float *w)
{
    static float grad[8][ELEMENTS], mean[ELEMENTS], momentum[ELEMENTS];
    const eni_schedule schedule = {
        .kind = ENI_LR_STEP, .base = 0.1, .gamma = 0.5, .step_samples = 100, .warmup = 30, .total = 320};
    const float *src[8];
    uint64_t nsamples[8];
    float *slots[] = {momentum};
    for (uint64_t i = 0; i < ELEMENTS; i++) {
        w[i] = weight_at(i);
        momentum[i] = 0;
    }
    for (uint64_t t = 0; t < steps; t++) {
        for (int r = 0; r < world; r++) {
            for (uint64_t i = 0; i < ELEMENTS; i++)
                grad[r][i] = gradient_at(r, t, i);
            src[r] = grad[r];
            nsamples[r] = SAMPLES;
        }
        const eni_hyper hyper = {.lr = eni_schedule_lr(&schedule, t * SAMPLES * (uint64_t)world),
                                 .momentum = 0.9f,
                                 .weight_decay = 0.001f,
                                 .nesterov = 1,
                                 .step = t};
        for (int b = 0; b < BUCKETS; b++) {
            const float *at[8];
            for (int r = 0; r < world; r++)
                at[r] = src[r] + offsets[b];
            float *slot[] = {slots[0] + offsets[b]};
            eni_mean_ranks(mean, at, nsamples, world, ENI_SUM_RANK, counts[b], 0, counts[b]);
            eni_optimizer_find("sgd")->step(w + offsets[b], slot, mean, counts[b], &hyper);
        }
    }
}

#endif
