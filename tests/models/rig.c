/* rig.c - see rig.h. */
#include "rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/rng.h"
#include "far.h"
#include "tests/mentions.h"

static const char *chosen = "ref", *plugins = EN_BUILD_DIR "/plugins";

/* ---- the device -------------------------------------------------------------------------------------- */

static void end_early(const char *why)
{
    printf("SKIP: %s\n", why);
    exit(77);
}

static void check_gpu(void)
{
    const en_device *table;
    int32_t n = 0;
    eni_log_set_level(-1);
    if (eni_device_load(chosen, plugins, &table) != EN_OK) end_early("the device library cannot be loaded");
    if (table->gpu->count(eni_device_host(), &n) != EN_OK || n == 0) end_early("there is no GPU");
    eni_log_set_level(ENI_LOG_INFO);
}

void rig_choose_device(int argc, char **argv)
{
    char path[512];
    if (argc > 1) chosen = argv[1];
    if (argc > 2) plugins = argv[2];
    if (strcmp(chosen, "ref") == 0 || strcmp(chosen, "far") == 0) return;
    snprintf(path, sizeof path, "%s/device_%s.so", plugins, chosen);
    if (access(path, R_OK) != 0) end_early("this device is not part of the build");
    if (strcmp(chosen, "cuda") == 0) check_gpu();
}

const char *rig_device(void)
{
    return chosen;
}

double rig_tolerance(void)
{
    return strcmp(chosen, "cuda") == 0 ? 5e-5 : 1e-5;
}

static void open_device(const char *name, int threads, eni_device *device)
{
    const int is_gpu = strcmp(name, "cuda") == 0;
    if (strcmp(name, "cpu-bf16") == 0) {
        const eni_device_options how = {.plugin_dir = plugins, .threads = threads, .flags = EN_OPEN_BF16};
        assert_int_equal(eni_device_open_with("cpu", &how, device), EN_OK);
        return;
    }
    if (!is_gpu && strcmp(name, "far") != 0) {
        assert_int_equal(eni_device_open(name, plugins, threads, device), EN_OK);
        return;
    }
    device->ops = far_device();
    if (is_gpu) assert_int_equal(eni_device_load(name, plugins, &device->ops), EN_OK);
    const en_device_config config = {
        .size = sizeof config, .threads = 1, .host = eni_device_host(), .flags = EN_OPEN_DETERMINISTIC};
    assert_int_equal(device->ops->open(&config, &device->ctx), EN_OK);
}

/* ---- memory of the device ---------------------------------------------------------------------------- */

static void reserve(void **memory, uint64_t *bytes, uint64_t wanted, rig *r)
{
    if (bytes != NULL && *bytes >= wanted) return;
    r->device.ops->free(r->device.ctx, *memory);
    assert_int_equal(r->device.ops->alloc(r->device.ctx, wanted, memory), EN_OK);
    if (bytes != NULL) *bytes = wanted;
}

static void reserve_registered(rig *r, uint64_t bytes)
{
    const en_gpu *gpu = r->device.ops->gpu;
    if (r->there.registered_bytes >= bytes) return;
    if (r->there.registered != NULL) gpu->unregister_memory(r->device.ctx, r->there.registered);
    eni_free(r->there.registered);
    r->there.registered = eni_alloc_pages(bytes);
    r->there.registered_bytes = bytes;
    assert_non_null(r->there.registered);
    assert_int_equal(gpu->register_memory(r->device.ctx, r->there.registered, bytes), EN_OK);
}

static void send(rig *r, void *dst, const void *src, uint64_t bytes)
{
    reserve_registered(r, bytes);
    memcpy(r->there.registered, src, bytes);
    assert_int_equal(r->device.ops->copy(r->device.ctx, dst, r->there.registered, bytes, EN_COPY_IN), EN_OK);
    assert_int_equal(r->device.ops->sync(r->device.ctx), EN_OK);
}

/* ---- the rig ----------------------------------------------------------------------------------------- */

void rig_send_state(rig *r, const float *state)
{
    const uint64_t bytes = r->schema.nstate * sizeof(float);
    if (r->device.ops->gpu != NULL)
        send(r, r->state, state, bytes);
    else
        memcpy(r->state, state, bytes);
}

static void open_state(rig *r)
{
    const uint64_t bytes = r->schema.nstate * sizeof(float);
    float *first = eni_alloc(bytes);
    assert_non_null(first);
    en_schema_init_state(&r->schema, first);
    reserve((void **)&r->state, NULL, bytes, r);
    rig_send_state(r, first);
    eni_free(first);
}

/* The schema is there. */
static void open_schema(rig *r, const char *device, int threads, uint32_t dtype, float loss_scale)
{
    open_device(device, threads, &r->device);
    r->param = eni_alloc_array(r->schema.count, sizeof *r->param);
    r->grad = eni_alloc_array(r->schema.count, sizeof *r->grad);
    assert_non_null(r->param);
    assert_non_null(r->grad);
    en_schema_init_param(&r->schema, 1, r->param);
    if (r->schema.nstate > 0) open_state(r);
    if (r->device.ops->gpu != NULL) {
        reserve((void **)&r->there.param, NULL, r->schema.count * sizeof(float), r);
        reserve((void **)&r->there.grad, NULL, r->schema.count * sizeof(float), r);
    }
    if (loss_scale != 1) {
        reserve((void **)&r->there.loss_scale, NULL, sizeof loss_scale, r);
        send(r, r->there.loss_scale, &loss_scale, sizeof loss_scale);
    }
    const en_model_options options = {
        .size = sizeof options, .dtype = dtype, .loss_scale = r->there.loss_scale};
    assert_int_equal(en_model_new(&r->schema, r->device.ops, r->device.ctx, &options, &r->model), EN_OK);
}

void rig_open_for(rig *r, const en_network *network, const char *options, const en_data_shape *data,
                  const char *device, int threads)
{
    *r = (rig){0};
    assert_int_equal(en_schema_init_for(network, options, data, &r->schema), EN_OK);
    open_schema(r, device, threads, EN_F32, 1);
}

void rig_fetch_state(rig *r, float *state_out)
{
    const uint64_t bytes = r->schema.nstate * sizeof(float);
    if (r->device.ops->gpu != NULL) reserve_registered(r, bytes);
    void *to = r->device.ops->gpu != NULL ? r->there.registered : (void *)state_out;
    assert_int_equal(r->device.ops->copy(r->device.ctx, to, r->state, bytes, EN_COPY_OUT), EN_OK);
    assert_int_equal(r->device.ops->sync(r->device.ctx), EN_OK);
    if (to != state_out) memcpy(state_out, to, bytes);
}

void rig_open(rig *r, const en_network *network, const char *device)
{
    rig_open_for(r, network, NULL, NULL, device, 1);
}

void rig_open_as(rig *r, const en_network *network, const char *device, uint32_t dtype, float loss_scale)
{
    *r = (rig){0};
    assert_int_equal(en_schema_init(network, &r->schema), EN_OK);
    open_schema(r, device, 1, dtype, loss_scale);
}

void rig_close(rig *r)
{
    const en_device *ops = r->device.ops;
    en_model_free(r->model);
    en_schema_fini(&r->schema);
    void *const memory[] = {r->state,   r->there.param, r->there.grad, r->there.loss_scale,
                            r->there.x, r->there.target};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        ops->free(r->device.ctx, memory[i]);
    if (r->there.registered != NULL) ops->gpu->unregister_memory(r->device.ctx, r->there.registered);
    eni_device_close(&r->device);
    eni_free(r->there.registered);
    eni_free(r->param);
    eni_free(r->grad);
}

/* ---- batches ----------------------------------------------------------------------------------------- */

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
    return (uint64_t)en_extent_count(schema->input);
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
    eni_free(batch->x);
    eni_free(batch->target);
}

en_batch batch_part(const en_schema *schema, const en_batch *batch, int64_t first, int64_t n)
{
    const int64_t per_target = schema->loss == EN_OP_MSE ? schema->outputs : 1; /* both of 4 bytes */
    return (en_batch){.n = n,
                      .x = batch->x + (uint64_t)first * sample_floats(schema),
                      .target = (const float *)batch->target + first * per_target};
}

/* ---- steps ------------------------------------------------------------------------------------------- */

en_batch rig_send_batch(rig *r, const en_batch *batch)
{
    const uint64_t n = (uint64_t)batch->n, x_bytes = n * sample_floats(&r->schema) * sizeof(float),
                   wanted = r->schema.loss == EN_OP_MSE ? (uint64_t)r->schema.outputs : 1,
                   target_bytes = n * wanted * sizeof(float);
    if (r->device.ops->gpu == NULL) return *batch;
    reserve(&r->there.x, &r->there.x_bytes, x_bytes, r);
    reserve(&r->there.target, &r->there.target_bytes, target_bytes, r);
    send(r, r->there.x, batch->x, x_bytes);
    send(r, r->there.target, batch->target, target_bytes);
    return (en_batch){.n = batch->n, .x = r->there.x, .target = r->there.target};
}

const float *rig_send_param(rig *r)
{
    if (r->device.ops->gpu == NULL) return r->param;
    send(r, r->there.param, r->param, r->schema.count * sizeof(float));
    return r->there.param;
}

float *rig_grad(rig *r)
{
    return r->device.ops->gpu == NULL ? r->grad : r->there.grad;
}

void rig_fetch_grad(rig *r)
{
    const uint64_t bytes = r->schema.count * sizeof(float);
    if (r->device.ops->gpu == NULL) return;
    reserve_registered(r, bytes);
    assert_int_equal(
        r->device.ops->copy(r->device.ctx, r->there.registered, r->there.grad, bytes, EN_COPY_OUT), EN_OK);
    assert_int_equal(r->device.ops->sync(r->device.ctx), EN_OK);
    memcpy(r->grad, r->there.registered, bytes);
}

void rig_forward(rig *r, const en_batch *batch)
{
    const en_batch there = rig_send_batch(r, batch);
    assert_int_equal(en_model_forward(r->model, rig_send_param(r), r->state, &there), EN_OK);
}

en_status rig_backward(rig *r, en_on_grad_ready on_ready, void *user)
{
    const float *param = r->device.ops->gpu == NULL ? r->param : r->there.param;
    const en_status st = en_model_backward(r->model, param, rig_grad(r), on_ready, user);
    rig_fetch_grad(r);
    return st;
}

en_score rig_result(rig *r)
{
    en_score score;
    assert_int_equal(en_model_result(r->model, &score), EN_OK);
    return score;
}

en_score rig_evaluate(rig *r, const en_batch *batch)
{
    en_score score;
    const en_batch there = rig_send_batch(r, batch);
    assert_int_equal(en_model_evaluate(r->model, rig_send_param(r), r->state, &there, &score), EN_OK);
    return score;
}

double rig_step(rig *r, const en_batch *batch)
{
    rig_forward(r, batch);
    assert_int_equal(rig_backward(r, NULL, NULL), EN_OK);
    return rig_result(r).loss;
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

/* ---- refusals ---- */

static void keep_line(void *user, int level, const char *subsystem, const char *text)
{
    (void)level, (void)subsystem;
    snprintf(user, 256, "%s", text);
}

void assert_refused(const en_network *network, const char *says)
{
    char line[256] = "";
    en_schema schema = {0};
    eni_log_set_sink(keep_line, line);
    const en_status st = en_schema_init(network, &schema);
    eni_log_set_sink(NULL, NULL);
    assert_int_equal(st, EN_EINVAL);
    if (!mentions(line, says)) fail_msg("\"%s\" is not in \"%s\"", says, line);
    assert_null(schema.nodes);
    assert_null(schema.tensors);
}
