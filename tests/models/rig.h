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
    float *param, *grad; /* (schema.count), host memory */
    float *state;        /* (schema.nstate), of the device; NULL: the network has none */
    struct {             /* where the device's memory is not the host's */
        float *param, *grad, *loss_scale;
        void *x, *target, *registered;
        uint64_t x_bytes, target_bytes, registered_bytes;
    } there;
} rig;

/* Takes the device that the tests of this program run on from its arguments: NAME [PLUGINS]. "ref" if there
 * is none; "far" is far.h's; the folder of plugins is the build's unless it is given. Exits with 77 and a
 * reason when the device was not built, or there is no such device. */
void rig_choose_device(int argc, char **argv);

/* "ref", "cpu", "far" or "cuda". */
const char *rig_device(void);

/* How far a gradient in float32 may be off on it: of the largest value of its tensor. */
double rig_tolerance(void);

/* Opens `device` with one thread, initial weights of seed 1; fails the test if it cannot. */
void rig_open(rig *r, const en_network *network, const char *device);
/* With activations of a type, and a scale of the loss that is not taken for 1. */
void rig_open_as(rig *r, const en_network *network, const char *device, uint32_t dtype, float loss_scale);
/* With options of the network, for such data (NULL: its own), with so many threads on a device of the host. */
void rig_open_for(rig *r, const en_network *network, const char *options, const en_data_shape *data,
                  const char *device, int threads);
void rig_close(rig *r);

/* The network has no schema, its refusal says so, and nothing is left behind. */
void assert_refused(const en_network *network, const char *says);

/* The state, to host memory and from it. */
void rig_fetch_state(rig *r, float *state_out);
void rig_send_state(rig *r, const float *state);

/* A batch of n normal-looking samples and targets that depends on `seed` alone; batch_free frees. */
en_batch batch_new(const en_schema *schema, int64_t n, uint64_t seed);
void batch_free(en_batch *batch);

/* Samples [first, first + n) of a batch, without a copy. */
en_batch batch_part(const en_schema *schema, const en_batch *batch, int64_t first, int64_t n);

/* The model's calls with vectors and batches in host memory, wherever the device's is; what fails, fails the
 * test, but for backward, which fetches the gradient into r->grad whatever it returns. */
void rig_forward(rig *r, const en_batch *batch);
en_status rig_backward(rig *r, en_on_grad_ready on_ready, void *user);
en_score rig_result(rig *r);
en_score rig_evaluate(rig *r, const en_batch *batch);

/* Forward and backward; returns the mean loss. */
double rig_step(rig *r, const en_batch *batch);

/* The pieces of these: the batch and the weights on the device (on host devices where they are), and the
 * gradient back. */
en_batch rig_send_batch(rig *r, const en_batch *batch);
const float *rig_send_param(rig *r);
float *rig_grad(rig *r);
void rig_fetch_grad(rig *r);

/* Largest difference over the largest value of b, over a range. */
double relative_gap(const float *a, const float *b, uint64_t count);

#endif
