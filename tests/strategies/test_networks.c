/* test_networks.c - real networks on the virtual host: the gradients of models/ through the strategies, byte
 * for byte. The virtual host itself knows no model: this is the callback that brings one. */
#include "entrain/model.h"
#include "ops/device.h"
#include "tests/network.h"
#include "tests/strategies/sim_rig.h"

/* Promise: Real networks end with the same bytes under solo, ring and ps-sync in virtual time. */

enum { BATCH = 4, MAX_INPUT = 784 };

typedef struct learner {
    en_schema schema;
    eni_device device;
    en_model *model;
    float *init;
    uint64_t last_batch; /* it has one sample less */
    double loss;         /* of the last gradient */
    float *trained;      /* (count) where the last run ended */
    eni_sim_problem problem;
} learner;

/* Inputs in [-1, 1), and targets that depend on them, all of the micro-batch's number. */
static void make_batch(const en_schema *schema, uint64_t micro_batch, int64_t n, float *x, void *target)
{
    const eni_rng_key key = {11, ENI_RNG_TEST, 0, micro_batch};
    const int64_t inputs = en_extent_count(schema->input);
    for (int64_t i = 0; i < n * inputs; i++)
        x[i] = (float)(2 * eni_rng_unit(&key, (uint64_t)i) - 1);
    for (int64_t i = 0; i < n; i++) {
        if (schema->loss != EN_OP_MSE) ((int32_t *)target)[i] = x[i * inputs] > 0;
        for (int64_t k = 0; schema->loss == EN_OP_MSE && k < schema->outputs; k++)
            ((float *)target)[i * schema->outputs + k] = x[i * inputs + k] * x[i * inputs + k + 1];
    }
}

static uint64_t samples_of(void *user, uint64_t micro_batch)
{
    const learner *l = user;
    return micro_batch == l->last_batch ? BATCH - 1 : BATCH;
}

static en_status gradient(void *user, int rank, uint64_t micro_batch, const float *param, float *grad)
{
    (void)rank;
    static _Alignas(64) float x[BATCH * MAX_INPUT], target[BATCH * 16];
    learner *l = user;
    en_score score;
    const int64_t n = (int64_t)samples_of(user, micro_batch);
    make_batch(&l->schema, micro_batch, n, x, target);
    const en_batch batch = {.n = n, .x = x, .target = target};
    assert_int_equal(en_model_forward(l->model, param, NULL, &batch), EN_OK);
    assert_int_equal(en_model_backward(l->model, param, grad, NULL, NULL), EN_OK);
    assert_int_equal(en_model_result(l->model, &score), EN_OK);
    l->loss = score.loss;
    return EN_OK;
}

static void learner_open(learner *l, const char *network)
{
    memset(l, 0, sizeof *l);
    assert_int_equal(en_schema_init(network_named(network), &l->schema), EN_OK);
    assert_int_equal(eni_device_open("ref", RIG_PLUGINS, 1, &l->device), EN_OK);
    assert_int_equal(en_model_new(&l->schema, l->device.ops, l->device.ctx, NULL, &l->model), EN_OK);
    l->init = calloc(l->schema.count, sizeof *l->init);
    l->trained = calloc(l->schema.count, sizeof *l->trained);
    en_schema_init_param(&l->schema, 3, l->init);
    l->problem = (eni_sim_problem){.count = l->schema.count,
                                   .tensors = l->schema.tensors,
                                   .ntensors = l->schema.ntensors,
                                   .init = l->init,
                                   .samples = samples_of,
                                   .grad = gradient,
                                   .user = l};
}

static void learner_close(learner *l)
{
    en_model_free(l->model);
    eni_device_close(&l->device);
    en_schema_fini(&l->schema);
    free(l->init);
    free(l->trained);
}

static void train(learner *l, const char *spec, int nranks, int nshards, uint64_t accumulate, uint64_t steps,
                  char *hex_out)
{
    rig r;
    rig_init(&r, spec, nranks, steps * (uint64_t)nranks * accumulate - 1); /* one rank has none in the end */
    l->last_batch = r.config.micro_batches - 1;
    r.config.problem = &l->problem;
    r.config.nshards = nshards;
    r.config.weights_out = l->trained;
    r.config.accumulate = accumulate;
    r.config.bucket_cap_bytes = l->schema.count; /* a quarter of the vector */
    if (nranks > 1) rig_slow(&r, 1, 3);
    memcpy(hex_out, rig_run(&r)->weights_sha256, ENI_DIGEST_HEX);
    rig_fini(&r);
}

/* The mean loss over micro-batches that no run has seen. */
static double loss_at(learner *l, const float *param)
{
    double sum = 0;
    float *grad = calloc(l->schema.count, sizeof *grad);
    for (uint64_t i = 0; i < 50; i++) {
        gradient(l, 0, 1000000 + i, param, grad);
        sum += l->loss;
    }
    free(grad);
    return sum / 50;
}

static void same_bytes(const char *network, int world, uint64_t steps)
{
    char solo[ENI_DIGEST_HEX], other[ENI_DIGEST_HEX];
    learner l;
    learner_open(&l, network);
    train(&l, "solo", 1, 1, (uint64_t)world, steps, solo);
    /* It learns, so the bytes below are not those of the beginning. */
    assert_true(loss_at(&l, l.trained) < 0.95 * loss_at(&l, l.init));
    train(&l, "ring", world, 1, 1, steps, other);
    assert_string_equal(solo, other);
    train(&l, "ps-sync", world, 1, 1, steps, other);
    assert_string_equal(solo, other);
    train(&l, "ps-sync", world, 3, 1, steps, other);
    assert_string_equal(solo, other);
    train(&l, "solo", 1, 1, 1, steps, solo);
    train(&l, "ps-async", 1, 3, 1, steps, other);
    assert_string_equal(solo, other);
    printf("PROMISE same bytes (virtual): %s on ref, W=%d, %llu steps: solo = ring = ps-sync (1, 3 shards)\n",
           network, world, (unsigned long long)steps);
    learner_close(&l);
}

static void toy(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++)
        same_bytes("toy", world, 200);
}

static void mlp(void **state)
{
    (void)state;
    same_bytes("mlp", 2, 25);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(toy), cmocka_unit_test(mlp)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
