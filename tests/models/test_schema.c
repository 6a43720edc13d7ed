/* test_schema.c - tensors, places, and initial weights: what all ranks must have alike. */
#include "rig.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "models/formats/weights.h"
#include "tests/network.h"

static void convnet_has_the_tensors_of_pytorch(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t ndim;
        int64_t shape[4];
        uint64_t offset;
    } want[] = {{"conv1.weight", 4, {20, 1, 5, 5}, 0},    {"conv1.bias", 1, {20}, 512},
                {"conv2.weight", 4, {50, 20, 5, 5}, 544}, {"conv2.bias", 1, {50}, 25552},
                {"fc1.weight", 2, {500, 800}, 25616},     {"fc1.bias", 1, {500}, 425616},
                {"fc2.weight", 2, {10, 500}, 426128},     {"fc2.bias", 1, {10}, 431136}};
    en_schema schema;
    assert_int_equal(en_schema_init(network_named("convnet"), &schema), EN_OK);
    assert_int_equal(schema.ntensors, 8);
    for (uint32_t t = 0; t < 8; t++) {
        const en_model_tensor *tensor = &schema.tensors[t];
        assert_string_equal(tensor->name, want[t].name);
        assert_int_equal(tensor->ndim, want[t].ndim);
        assert_memory_equal(tensor->shape, want[t].shape, want[t].ndim * sizeof(int64_t));
        assert_int_equal(tensor->offset, want[t].offset);
        assert_int_equal(tensor->kind, EN_TENSOR_WEIGHT);
    }
    assert_int_equal(schema.count, 431152);
    assert_int_equal(schema.nweights, 431080); /* what PyTorch counts */
    assert_int_equal(schema.outputs, 10);
    assert_int_equal(schema.loss, EN_OP_NLL);
    en_schema_fini(&schema);
    en_schema_fini(&schema);
}

static void every_network_is_well_formed(void **state)
{
    (void)state;
    int n = 0;
    for (const en_network *network; (network = eni_network_at(n)) != NULL; n++) {
        en_schema schema;
        assert_ptr_equal(network_named(network->name), network);
        assert_int_equal(en_schema_init(network, &schema), EN_OK);
        uint64_t end = 0;
        for (uint32_t t = 0; t < schema.ntensors; t++) {
            const en_model_tensor *tensor = &schema.tensors[t];
            assert_true(tensor->offset % ENI_LINE_FLOATS == 0);
            assert_true(tensor->offset >= end && tensor->offset < end + ENI_LINE_FLOATS);
            end = tensor->offset + tensor->count;
        }
        assert_int_equal(schema.count, eni_round_up(end, ENI_LINE_FLOATS));
        en_schema_fini(&schema);
    }
    assert_int_equal(n, 4);
    assert_null(network_named("resnet-9000"));
    assert_null(eni_network_at(-1));
}

/* Hashes of the initial weights of seed 1, through the memory of the device: the start of every comparison.
 */
static void initial_weights_never_change(void **state)
{
    (void)state;
    static const struct {
        const char *network, *sha256;
    } want[] = {{"toy", "1c7c4ab902bc3093dc41d9d2ae9917d82a5773190037d40c7bb02ebd3f592e8b"},
                {"mlp", "afcd4c38c5f5d1633a3f6f371344ca77a57fa98ccd45d31807d26b9700a5994d"},
                {"convnet", "4c7fa3c66bb63e2a47393a3dbe963b1d7f20bb525207ff3a94bf0d5256a8f691"}};
    for (int i = 0; i < 3; i++) {
        rig r;
        char hex[ENI_DIGEST_HEX];
        rig_open(&r, network_named(want[i].network), rig_device());
        const uint64_t bytes = r.schema.count * sizeof(float);
        const float *there = rig_send_param(&r);
        assert_int_equal(r.device.ops->copy(r.device.ctx, rig_grad(&r), there, bytes, EN_COPY_ON), EN_OK);
        rig_fetch_grad(&r);
        assert_int_equal(eni_weights_digest(&r.schema, r.grad, hex), EN_OK);
        assert_string_equal(hex, want[i].sha256);
        rig_close(&r);
    }
}

static void initial_weights_are_uniform_within_their_bound(void **state)
{
    (void)state;
    en_schema schema;
    assert_int_equal(en_schema_init(network_named("convnet"), &schema), EN_OK);
    float *param = eni_alloc_array(schema.count, sizeof *param);
    memset(param, 0xff, schema.count * sizeof *param); /* the padding too must be overwritten */
    en_schema_init_param(&schema, 7, param);
    uint64_t end = 0;
    for (uint32_t t = 0; t < schema.ntensors; t++) {
        const en_model_tensor *tensor = &schema.tensors[t];
        const float *w = param + tensor->offset;
        const double bound = 1 / sqrt((double)tensor->fan_in), n = (double)tensor->count;
        double sum = 0, squares = 0;
        for (; end < tensor->offset; end++)
            assert_true(param[end] == 0);
        for (uint64_t i = 0; i < tensor->count; i++) {
            assert_true(fabs((double)w[i]) <= bound);
            sum += (double)w[i];
            squares += (double)w[i] * (double)w[i];
        }
        /* five standard errors of the mean, and of the variance of a uniform distribution */
        assert_true(fabs(sum / n) < 5 * bound / sqrt(3 * n));
        assert_true(fabs(squares / n / (bound * bound) - 1.0 / 3) < 5 * sqrt(4.0 / 45 / n));
        end += tensor->count;
    }
    for (; end < schema.count; end++)
        assert_true(param[end] == 0);
    eni_free(param);
    en_schema_fini(&schema);
}

static void nonsense_is_refused_by_name(void **state)
{
    (void)state;
    static const en_layer no_loss[] = {EN_LINEAR("fc", 3), EN_END};
    static const en_layer early_loss[] = {EN_LINEAR("fc", 3), EN_MSE, EN_RELU, EN_END};
    static const en_layer twice[] = {EN_LINEAR("fc", 3), EN_LINEAR("fc", 3), EN_MSE, EN_END};
    static const en_layer unnamed[] = {EN_LINEAR(NULL, 3), EN_MSE, EN_END};
    static const en_layer slot[] = {EN_LINEAR("fc", 3), EN_LINEAR("optimizer.momentum_buffer/fc", 3), EN_MSE,
                                    EN_END};
    static const en_layer of_rank[] = {EN_LINEAR("rank.0/param/fc", 3), EN_MSE, EN_END};
    static const en_layer too_small[] = {EN_CONV2D("conv", 3, 5), EN_FLATTEN, EN_MSE, EN_END};
    static const en_layer no_stride[] = {
        {EN_OP_CONV2D, EN_OP_BIAS, "conv", 3, 3, 0, 0}, EN_FLATTEN, EN_MSE, EN_END};
    static const en_layer odd_pad[] = {
        {EN_OP_CONV2D, EN_OP_BIAS, "conv", 3, 3, 1, -1}, EN_FLATTEN, EN_MSE, EN_END};
    static const en_layer image[] = {EN_LINEAR("fc", 3), EN_MSE, EN_END};
    static const en_layer no_weights[] = {EN_RELU, EN_MSE, EN_END};
    static const en_layer huge[] = {EN_LINEAR("fc", INT64_MAX / 2), EN_MSE, EN_END};
    static const en_layer nothing[] = {EN_END};
    const struct {
        const en_layer *layers;
        en_extent input;
        const char *says;
    } cases[] = {
        {no_loss, {1, 1, 1, 4}, "fc (linear)|loss"},
        {early_loss, {1, 1, 1, 4}, "node 3 (relu)|mse"},
        {twice, {1, 1, 1, 4}, "fc.weight"},
        {unnamed, {1, 1, 1, 4}, "name"},
        {slot, {1, 1, 1, 4}, "optimizer.momentum_buffer/fc (linear)|checkpoint"},
        {of_rank, {1, 1, 1, 4}, "rank.0/param/fc (linear)|checkpoint"},
        {too_small, {1, 4, 4, 1}, "conv (conv2d)|(4, 4, 1)"},
        {no_stride, {1, 8, 8, 1}, "stride"},
        {odd_pad, {1, 8, 8, 1}, "padding"},
        {image, {1, 4, 4, 1}, "fc (linear)|(4, 4, 1)"},
        {no_weights, {1, 1, 1, 4}, "weights"},
        {huge, {1, 1, 1, 4}, "at least 1"},
        {nothing, {1, 1, 1, 4}, "batch"},
        {image, {2, 1, 1, 4}, "2 samples"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const en_network network = {.abi = EN_NETWORK_ABI,
                                    .size = sizeof(en_network),
                                    .name = "odd",
                                    .help = "",
                                    .input = cases[i].input,
                                    .layers = cases[i].layers};
        assert_refused(&network, cases[i].says);
    }
}

int main(int argc, char **argv)
{
    rig_choose_device(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convnet_has_the_tensors_of_pytorch),
        cmocka_unit_test(every_network_is_well_formed),
        cmocka_unit_test(initial_weights_never_change),
        cmocka_unit_test(initial_weights_are_uniform_within_their_bound),
        cmocka_unit_test(nonsense_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
