/* rig.c - see rig.h. */
#include "rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/core/memory.h"
#include "runtime/core/rng.h"

static const char *chosen = "ref";

void rig_choose_device(int argc, char **argv)
{
    if (argc > 1) chosen = argv[1];
    if (strcmp(chosen, "ref") == 0) return;
    char path[512];
    snprintf(path, sizeof path, EN_BUILD_DIR "/plugins/device_%s.so", chosen);
    if (access(path, R_OK) == 0) return;
    printf("SKIP: the device %s is not part of this build\n", chosen);
    exit(77);
}

const char *rig_device(void)
{
    return chosen;
}

void rig_open(rig *r, const en_network *network, const char *device)
{
    *r = (rig){0};
    assert_int_equal(eni_device_open(device, EN_BUILD_DIR "/plugins", 1, &r->device), EN_OK);
    assert_int_equal(en_schema_init(network, &r->schema), EN_OK);
    assert_int_equal(en_model_new(&r->schema, r->device.ops, r->device.ctx, NULL, &r->model), EN_OK);
    r->param = eni_alloc_array(r->schema.count, sizeof *r->param);
    r->grad = eni_alloc_array(r->schema.count, sizeof *r->grad);
    assert_non_null(r->param);
    assert_non_null(r->grad);
    en_schema_init_param(&r->schema, 1, r->param);
}

void rig_close(rig *r)
{
    en_model_free(r->model);
    en_schema_fini(&r->schema);
    eni_device_close(&r->device);
    eni_free(r->param);
    eni_free(r->grad);
}

/* Sum of four uniform numbers: near enough to a normal distribution of variance 1. */
static float normal(const eni_rng_key *key, uint64_t i)
{
    double sum = 0;
    for (uint64_t k = 0; k < 4; k++)
        sum += eni_rng_unit(key, 4 * i + k) - 0.5;
    return (float)(sum * sqrt(3));
}

static uint64_t sample_floats(const en_schema *schema)
{
    return (uint64_t)en_extent_count(schema->network->input);
}

en_batch batch_new(const en_schema *schema, int64_t n, uint64_t seed)
{
    const eni_rng_key x_key = {.seed = seed, .purpose = ENI_RNG_TEST};
    const eni_rng_key target_key = {.seed = seed, .purpose = ENI_RNG_TEST, .rank = 1};
    const uint64_t floats = (uint64_t)n * sample_floats(schema), outputs = (uint64_t)(n * schema->outputs);
    float *x = eni_alloc_array(floats, sizeof *x), *wanted = eni_alloc_array(outputs, sizeof *wanted);
    assert_non_null(x);
    assert_non_null(wanted);
    for (uint64_t i = 0; i < floats; i++)
        x[i] = normal(&x_key, i);
    if (schema->loss == EN_OP_MSE) {
        for (uint64_t i = 0; i < outputs; i++)
            wanted[i] = normal(&target_key, i);
    } else {
        int32_t *label = (int32_t *)wanted;
        for (uint64_t i = 0; i < (uint64_t)n; i++)
            label[i] = (int32_t)eni_rng_below(&target_key, i, (uint64_t)schema->outputs);
    }
    return (en_batch){.n = n, .x = x, .target = wanted};
}

void batch_free(en_batch *batch)
{
    eni_free((void *)(uintptr_t)batch->x);
    eni_free((void *)(uintptr_t)batch->target);
}

en_batch batch_part(const en_schema *schema, const en_batch *batch, int64_t first, int64_t n)
{
    const int64_t per_target = schema->loss == EN_OP_MSE ? schema->outputs : 1; /* both of 4 bytes */
    return (en_batch){.n = n,
                      .x = batch->x + (uint64_t)first * sample_floats(schema),
                      .target = (const float *)batch->target + first * per_target};
}

double rig_step(rig *r, const en_batch *batch)
{
    en_score score;
    assert_int_equal(en_model_forward(r->model, r->param, batch), EN_OK);
    assert_int_equal(en_model_backward(r->model, r->param, r->grad, NULL, NULL), EN_OK);
    assert_int_equal(en_model_result(r->model, &score), EN_OK);
    return score.loss;
}

double relative_gap(const float *a, const float *b, uint64_t count)
{
    double gap = 0, scale = 0;
    for (uint64_t i = 0; i < count; i++) {
        const double difference = fabs((double)a[i] - (double)b[i]);
        if (!(difference <= gap)) gap = difference; /* a NaN stays */
        scale = fmax(scale, fabs((double)b[i]));
    }
    return scale > 0 ? gap / scale : gap;
}
