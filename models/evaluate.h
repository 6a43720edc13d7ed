/* evaluate.h - a model on a whole set: every sample once, no padding, the ragged last batch as it is. */
#ifndef MODELS_EVALUATE_H
#define MODELS_EVALUATE_H

#include <stdint.h>

#include "entrain/model.h"

/* Writes samples [first, first + n) of the set, in the set's order: x (n, H, W, C), target as en_batch's. */
typedef void (*eni_set_fill)(void *user, uint64_t first, uint64_t n, float *x_out, void *target_out);

typedef struct eni_set {
    uint64_t count;        /* samples */
    uint64_t batch;        /* samples per forward pass */
    uint64_t sample_bytes; /* of x */
    uint64_t target_bytes; /* of one sample's target */
    eni_set_fill fill;
    void *user;
    en_status (*alive)(void *user); /* asked before every batch; what is not EN_OK ends it. NULL: go on */
    void *alive_user;
} eni_set;

typedef struct eni_set_score {
    double loss;     /* mean over the samples */
    double accuracy; /* share of correct predictions */
    uint64_t correct, count;
} eni_set_score;

/* Blocks. Allocates two buffers for one batch on the host; for host devices. */
en_status eni_model_evaluate_set(en_model *model, const float *param, const eni_set *set,
                                 eni_set_score *score_out);

#endif
