/* evaluation.h - evaluates a model on a whole set: every sample once, no padding, the ragged last batch as it is.
 *
 *     host device   fill | forward | fill | forward | ..
 *
 *     GPU, host     fill | fill           | fill           | fill      two registered buffers alternate: the
 *          stream           [copy, forward]  [copy, forward]  ..       next batch is made meanwhile
 *
 * The same sums in the same order on both. */
#ifndef MODELS_EVALUATION_H
#define MODELS_EVALUATION_H

#include <stdbool.h>
#include <stdint.h>

#include "entrain/model.h"
#include "ops/device.h"

/* Writes samples [first, first + n) of the set, in the set's order: x (n, H, W, C), target as en_batch's. */
typedef void (*eni_set_fill)(void *user, uint64_t first, uint64_t n, float *x_out, void *target_out);

typedef struct eni_set {
    uint64_t count;        /* samples */
    uint64_t batch;        /* samples per forward pass */
    uint64_t sample_bytes; /* of x */
    uint64_t target_bytes; /* of one sample's target */
    eni_set_fill fill;
    void *user;
    /* The number of the next batch, for processes that share a set; at the end the number of batches or more. NULL: one
     * batch after the other. */
    uint64_t (*next)(void *user);
    /* After each batch: its first sample, its size, mean loss and hits, and the network's outputs (n, outputs): logits or
     * log-probabilities. May be NULL. */
    void (*take)(void *user, uint64_t first, uint64_t n, const float pair[2], const float *outputs);
    /* Asked before every batch and while waiting for a GPU; a status other than EN_OK ends the evaluation. NULL: go on,
     * for a minute a batch. */
    en_status (*alive)(void *user);
    void *alive_user;
    /* With alive: a GPU that takes longer for a batch (0: no limit) is reported with alive_user: EN_EIO. */
    int64_t timeout_ns;
    void (*tell)(void *user, const char *what);
} eni_set;

typedef struct eni_set_score {
    double loss;     /* mean over the samples */
    double accuracy; /* share of correct predictions */
    uint64_t correct, count;
} eni_set_score;

/* Buffers for one set, reusable. The model's thread. */
typedef struct eni_evaluation eni_evaluation;

/* Allocates all memory that evaluations of this set need, on host and device. The model is borrowed, and must be closed
 * later. takes_host_param: eni_evaluation_run gets weights and state in host memory, else addresses on the model's device
 * (the same on a host device). */
en_status eni_evaluation_open(en_model *model, const eni_set *set, bool takes_host_param,
                              eni_evaluation **evaluation_out);

/* Blocks. Reads `param` (schema->count) and `state` (schema->nstate; NULL if the model has none) after the work enqueued
 * in COMPUTE before. */
en_status eni_evaluation_run(eni_evaluation *evaluation, const float *param, const float *state,
                             eni_set_score *score_out);

void eni_evaluation_close(eni_evaluation *evaluation); /* NULL is fine */

/* Open, run and close in one call; param and state are host memory. */
en_status eni_model_evaluate_set(en_model *model, const float *param, const float *state, const eni_set *set,
                                 eni_set_score *score_out);

/* ---- model.c: what an evaluation needs of an en_model beyond entrain/model.h ---- */

/* Enqueues forward and loss of one batch, in a size of its own for evaluation. The result: en_model_fetch. */
en_status eni_model_forward_only(en_model *model, const float *param, const float *state,
                                 const en_batch *batch);

/* Enqueues the copy of the input of the last forward's loss, (n, outputs), to the host: as en_model_fetch. For a float32
 * model. */
en_status eni_model_outputs(en_model *model, float *outputs);

/* Device memory of all prepared sizes, in bytes. */
uint64_t eni_model_bytes(const en_model *model);

/* The model's schema and device; both borrowed. */
const en_schema *eni_model_device(const en_model *model, eni_device *device_out);

#endif
