/* rig.h - a network on a device with its vectors and made-up batches: what every test of models starts from.
 */
#ifndef TESTS_MODELS_RIG_H
#define TESTS_MODELS_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "entrain/model.h"
#include "ops/device.h"

typedef struct rig {
    eni_device device;
    en_schema schema;
    en_model *model;
    float *param, *grad; /* (schema.count) */
} rig;

/* Takes the device that the tests of this program run on from its arguments: "ref" if there is none. Exits
 * with 77 and a reason when the device was not built. */
void rig_choose_device(int argc, char **argv);

/* "ref" or "cpu". */
const char *rig_device(void);

/* Opens `device` with one thread, initial weights of seed 1; fails the test if it cannot. */
void rig_open(rig *r, const en_network *network, const char *device);
void rig_close(rig *r);

/* A batch of n normal-looking samples and targets that depends on `seed` alone; batch_free frees. */
en_batch batch_new(const en_schema *schema, int64_t n, uint64_t seed);
void batch_free(en_batch *batch);

/* Samples [first, first + n) of a batch, without a copy. */
en_batch batch_part(const en_schema *schema, const en_batch *batch, int64_t first, int64_t n);

/* Forward and backward; returns the mean loss. */
double rig_step(rig *r, const en_batch *batch);

/* Largest difference over the largest value of b, over a range. */
double relative_gap(const float *a, const float *b, uint64_t count);

#endif
