/* test_model.c - the walk through the layers: gradients, their order, batch sizes, scores. */
#include "rig.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/rng.h"
#include "tests/network.h"

/* A new network is a few lines: this one has every kind of layer that the built-in ones do not combine. */
static const en_layer tiny_layers[] = {EN_CONV2D("conv1", 3, 3),
                                       EN_RELU_MAXPOOL(2),
                                       EN_CONV2D("conv2", 4, 2),
                                       EN_RELU,
                                       EN_MAXPOOL(2),
                                       EN_FLATTEN,
                                       EN_LINEAR_RELU("fc1", 6),
                                       EN_LINEAR("fc2", 5),
                                       EN_LOG_SOFTMAX,
                                       EN_NLL,
                                       EN_END};
static const en_network tiny = {.abi = EN_NETWORK_ABI,
                                .size = sizeof(en_network),
                                .name = "tiny",
                                .help = "a convnet of 229 weights",
                                .input = {1, 12, 12, 2},
                                .layers = tiny_layers};

/* ---- finite differences ------------------------------------------------------------------------------ */

static double loss_at(rig *r, const float *param, const en_batch *batch)
{
    en_score score;
    assert_int_equal(en_model_forward(r->model, param, NULL, batch), EN_OK);
    assert_int_equal(en_model_result(r->model, &score), EN_OK);
    return score.loss;
}

/* Every element of every tensor, by central differences. The loss is a float32 near 1, so a difference over
 * 2 h = 1/512 is good to about 6e-5. Where the slopes to the left and to the right differ, a relu or a max
 * changes sides in between and there is no derivative to compare with: such elements must be few. */
static void tensor_is_finite_difference(rig *r, const en_model_tensor *tensor, const en_batch *batch)
{
    const float h = 0x1p-10f;
    const double here = loss_at(r, r->param, batch);
    double largest = 0, worst = 0;
    uint64_t kinks = 0;
    for (uint64_t i = tensor->offset; i < tensor->offset + tensor->count; i++)
        largest = fmax(largest, fabs((double)r->grad[i]));
    for (uint64_t i = tensor->offset; i < tensor->offset + tensor->count; i++) {
        const float w = r->param[i];
        r->param[i] = w + h;
        const double right = (loss_at(r, r->param, batch) - here) / (double)h;
        r->param[i] = w - h;
        const double left = (here - loss_at(r, r->param, batch)) / (double)h;
        r->param[i] = w;
        if (fabs(right - left) > 0.008 * largest)
            kinks++;
        else
            worst = fmax(worst, fabs((right + left) / 2 - (double)r->grad[i]));
    }
    assert_true(largest > 0.01); /* a gradient of zeros proves nothing */
    if (!(worst < 6e-3 * largest) || kinks * 4 > tensor->count)
        fail_msg("%s: off by %g, largest %g, %llu kinks in %llu", tensor->name, worst, largest,
                 (unsigned long long)kinks, (unsigned long long)tensor->count);
}

static void gradients_are_finite_differences(const en_network *network)
{
    rig r;
    rig_open(&r, network, "ref");
    en_batch batch = batch_new(&r.schema, 2, 4);
    rig_step(&r, &batch);
    for (uint32_t t = 0; t < r.schema.ntensors; t++)
        tensor_is_finite_difference(&r, &r.schema.tensors[t], &batch);
    batch_free(&batch);
    rig_close(&r);
}

static void gradients_of_toy(void **state)
{
    (void)state;
    gradients_are_finite_differences(network_named("toy"));
}

static void gradients_of_a_new_network(void **state)
{
    (void)state;
    gradients_are_finite_differences(&tiny);
}

/* ---- the order of backward --------------------------------------------------------------------------- */

/* A device that writes down what is asked of it and asks the reference device. */
static struct {
    const en_device *inner;
    char lines[2048];
    int planned, allocated, without_dx;
} spy;

static void note(const char *what)
{
    const size_t at = strlen(spy.lines);
    snprintf(spy.lines + at, sizeof spy.lines - at, "%s ", what);
}

static en_status spy_plan(en_ctx *ctx, const en_op *op, en_plan **plan_out)
{
    spy.planned++;
    spy.without_dx += (op->flags & EN_OP_NO_DX) != 0;
    return spy.inner->plan(ctx, op, plan_out);
}

static en_status spy_alloc(en_ctx *ctx, uint64_t bytes, void **memory_out)
{
    spy.allocated++;
    return spy.inner->alloc(ctx, bytes, memory_out);
}

static en_status spy_weights(en_plan *plan, const en_args *args)
{
    note("dw");
    return spy.inner->backward_weights(plan, args);
}

static en_status spy_data(en_plan *plan, const en_args *args)
{
    note("dx");
    return spy.inner->backward_data(plan, args);
}

static en_device spy_on(const en_device *inner)
{
    en_device device = *inner;
    memset(&spy, 0, sizeof spy);
    spy.inner = inner;
    device.plan = spy_plan;
    device.alloc = spy_alloc;
    device.backward_weights = spy_weights;
    device.backward_data = spy_data;
    return device;
}

/* What on_ready saw: the gradients must be complete then, and not touched again. Nor are the weights read: it
 * spoils them, as a strategy that steps at once would. */
typedef struct witness {
    rig *r;
    float *seen; /* (schema.count) */
} witness;

static en_status on_ready(void *user, uint32_t first, uint32_t n)
{
    witness *w = user;
    char text[32];
    snprintf(text, sizeof text, "ready(%u,%u)", first, n);
    note(text);
    for (uint32_t t = first; t < first + n; t++) {
        const en_model_tensor *tensor = &w->r->schema.tensors[t];
        memcpy(w->seen + tensor->offset, w->r->grad + tensor->offset, tensor->count * sizeof(float));
        for (uint64_t i = tensor->offset; i < tensor->offset + tensor->count; i++)
            w->r->param[i] = NAN;
    }
    return EN_OK;
}

static void a_layer_is_ready_when_its_weights_are_not_read_again(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, &tiny, "ref");
    const en_device device = spy_on(r.device.ops);
    en_model *model;
    assert_int_equal(en_model_new(&r.schema, &device, r.device.ctx, NULL, &model), EN_OK);
    en_batch batch = batch_new(&r.schema, 4, 1);
    witness w = {&r, eni_alloc_array(r.schema.count, sizeof(float))};
    float *quiet = eni_alloc_array(r.schema.count, sizeof(float));
    for (uint64_t i = 0; i < r.schema.count; i++)
        w.seen[i] = r.grad[i] = quiet[i] = -77; /* padding must keep it */
    assert_int_equal(en_model_forward(model, r.param, NULL, &batch), EN_OK);
    assert_int_equal(en_model_backward(model, r.param, quiet, NULL, NULL), EN_OK);
    memset(spy.lines, 0, sizeof spy.lines);
    assert_int_equal(en_model_forward(model, r.param, NULL, &batch), EN_OK);
    assert_int_equal(en_model_backward(model, r.param, r.grad, on_ready, &w), EN_OK);
    assert_string_equal(spy.lines, "dx dx "                     /* nll, log-softmax */
                                   "dw dx ready(6,2) "          /* fc2 */
                                   "dw dx ready(4,2) dx dx dx " /* fc1, flatten, maxpool, relu */
                                   "dw dx ready(2,2) dx "       /* conv2, relu-maxpool */
                                   "dw ready(0,2) ");           /* conv1: its input's is not wanted */
    assert_int_equal(spy.without_dx, 1);
    assert_memory_equal(w.seen, r.grad, r.schema.count * sizeof(float));
    assert_memory_equal(quiet, r.grad, r.schema.count * sizeof(float));
    eni_free(quiet);
    eni_free(w.seen);
    batch_free(&batch);
    en_model_free(model);
    rig_close(&r);
}

static void a_prepared_step_allocates_nothing(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, &tiny, "ref");
    const en_device device = spy_on(r.device.ops);
    en_model *model;
    en_score score;
    assert_int_equal(en_model_new(&r.schema, &device, r.device.ctx, NULL, &model), EN_OK);
    en_batch batch = batch_new(&r.schema, 8, 1);
    const en_batch ragged = batch_part(&r.schema, &batch, 0, 3);
    assert_int_equal(en_model_prepare(model, 8, EN_MODEL_TRAIN), EN_OK);
    assert_int_equal(en_model_prepare(model, 3, EN_MODEL_TRAIN), EN_OK);
    assert_int_equal(en_model_prepare(model, 8, EN_MODEL_EVALUATE), EN_OK);
    const int planned = spy.planned, allocated = spy.allocated;
    assert_true(planned == 3 * 10 && allocated == 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(en_model_forward(model, r.param, NULL, &batch), EN_OK);
        assert_int_equal(en_model_backward(model, r.param, r.grad, NULL, NULL), EN_OK);
        assert_int_equal(en_model_forward(model, r.param, NULL, &ragged), EN_OK);
        assert_int_equal(en_model_backward(model, r.param, r.grad, NULL, NULL), EN_OK);
        assert_int_equal(en_model_evaluate(model, r.param, NULL, &batch, &score), EN_OK);
    }
    assert_int_equal(spy.planned, planned);
    assert_int_equal(spy.allocated, allocated);
    batch_free(&batch);
    en_model_free(model);
    rig_close(&r);
}

static en_status peer_died(void *user, uint32_t first, uint32_t n)
{
    (void)n;
    *(uint32_t *)user = first;
    return first == 4 ? EN_EPEER : EN_OK;
}

/* 3 x 3 windows and channels that the cpu computes by Winograd, whose weights are worth keeping. */
static const en_layer wide_layers[] = {
    EN_CONV2D("conv1", 24, 3), EN_RELU, EN_CONV2D("conv2", 16, 3), EN_FLATTEN, EN_LINEAR("fc", 5),
    EN_CROSS_ENTROPY,          EN_END};
static const en_network wide = {.abi = EN_NETWORK_ABI,
                                .size = sizeof(en_network),
                                .name = "wide",
                                .help = "two convolutions",
                                .input = {1, 16, 16, 16},
                                .layers = wide_layers};

/* Two batches for each of three weights. */
static void a_model_that_keeps_weights_has_the_same_gradients(void **state)
{
    enum { N = 6, BATCHES = 2, WEIGHTS = 3 };
    (void)state;
    rig r;
    en_model *keeps;
    const en_model_options options = {.size = sizeof options, .keeps_weights = 1};
    rig_open(&r, &wide, rig_device());
    if (!(r.device.ops->flags & EN_DEVICE_HOST)) {
        rig_close(&r);
        skip();
    }
    assert_int_equal(en_model_new(&r.schema, r.device.ops, r.device.ctx, &options, &keeps), EN_OK);
    float *grad = eni_alloc_array(r.schema.count, sizeof *grad);
    for (int i = 0; i < WEIGHTS * BATCHES; i++) {
        en_batch batch = batch_new(&r.schema, N, (uint64_t)i);
        if (i % BATCHES == 0) en_model_new_weights(keeps);
        rig_step(&r, &batch);
        assert_int_equal(en_model_forward(keeps, r.param, NULL, &batch), EN_OK);
        assert_int_equal(en_model_backward(keeps, r.param, grad, NULL, NULL), EN_OK);
        assert_memory_equal(grad, r.grad, r.schema.count * sizeof *grad);
        for (uint64_t k = 0; i % BATCHES == BATCHES - 1 && k < r.schema.count; k++)
            r.param[k] -= grad[k];
        batch_free(&batch);
    }
    eni_free(grad);
    en_model_free(keeps);
    rig_close(&r);
}

static void what_on_ready_returns_ends_backward(void **state)
{
    (void)state;
    rig r;
    uint32_t last = 99;
    rig_open(&r, &tiny, rig_device());
    en_batch batch = batch_new(&r.schema, 4, 1);
    rig_forward(&r, &batch);
    assert_int_equal(rig_backward(&r, peer_died, &last), EN_EPEER);
    assert_int_equal(last, 4);
    batch_free(&batch);
    rig_close(&r);
}

/* ---- batch sizes ------------------------------------------------------------------------------------- */

/* 10 samples = 7 and then 3: the mean gradient is the weighted mean of both. */
static void ragged_batches_add_up(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, &tiny, rig_device());
    en_batch whole = batch_new(&r.schema, 10, 5);
    const en_batch first = batch_part(&r.schema, &whole, 0, 7), second = batch_part(&r.schema, &whole, 7, 3);
    float *sum = eni_alloc_array(r.schema.count, sizeof *sum);
    double loss = 0.7 * rig_step(&r, &first);
    for (uint64_t i = 0; i < r.schema.count; i++)
        sum[i] = 0.7f * r.grad[i];
    loss += 0.3 * rig_step(&r, &second);
    for (uint64_t i = 0; i < r.schema.count; i++)
        sum[i] += 0.3f * r.grad[i];
    assert_true(fabs(rig_step(&r, &whole) - loss) < 1e-6);
    assert_true(relative_gap(sum, r.grad, r.schema.count) < 1e-6);
    eni_free(sum);
    batch_free(&whole);
    rig_close(&r);
}

/* More sizes than are kept: the oldest are planned again, with the same bits. */
static void any_number_of_sizes_works(void **state)
{
    (void)state;
    rig r;
    double loss[EN_MODEL_SIZES + 4];
    rig_open(&r, &tiny, rig_device());
    en_batch whole = batch_new(&r.schema, EN_MODEL_SIZES + 4, 6);
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t n = 1; n <= EN_MODEL_SIZES + 4; n++) {
            const en_batch part = batch_part(&r.schema, &whole, 0, n);
            const double now = rig_step(&r, &part);
            if (pass == 0) loss[n - 1] = now;
            assert_true(loss[n - 1] == now);
        }
    }
    batch_free(&whole);
    rig_close(&r);
}

static void misuse_is_refused(void **state)
{
    (void)state;
    rig r;
    en_score score;
    rig_open(&r, &tiny, "ref");
    en_batch batch = batch_new(&r.schema, 2, 6), empty = {.n = 0};
    eni_log_set_level(-1);
    assert_int_equal(en_model_backward(r.model, r.param, r.grad, NULL, NULL), EN_EBUG);
    assert_int_equal(en_model_result(r.model, &score), EN_EBUG);
    assert_int_equal(en_model_forward(r.model, r.param, NULL, &empty), EN_EINVAL);
    assert_int_equal(en_model_evaluate(r.model, r.param, NULL, &batch, &score), EN_OK);
    assert_int_equal(en_model_backward(r.model, r.param, r.grad, NULL, NULL), EN_EBUG);
    assert_int_equal(en_model_forward(r.model, r.param, NULL, &batch), EN_OK);
    for (int64_t n = 10; n < 10 + EN_MODEL_SIZES; n++) /* pushes the size of that forward out */
        assert_int_equal(en_model_prepare(r.model, n, EN_MODEL_TRAIN), EN_OK);
    assert_int_equal(en_model_backward(r.model, r.param, r.grad, NULL, NULL), EN_EBUG);
    eni_log_set_level(ENI_LOG_INFO);
    batch_free(&batch);
    rig_close(&r);
}

/* ---- scores ------------------------------------------------------------------------------------------ */

static void evaluation_is_forward_summed(void **state)
{
    (void)state;
    for (int i = 0; eni_network_at(i)->layers != NULL; i++) {
        rig r;
        rig_open(&r, eni_network_at(i), rig_device());
        en_batch batch = batch_new(&r.schema, 6, 8);
        rig_forward(&r, &batch);
        const en_score training = rig_result(&r), score = rig_evaluate(&r, &batch);
        assert_true(fabs(score.loss - 6 * training.loss) < 1e-5);
        assert_int_equal(score.correct, training.correct);
        batch_free(&batch);
        rig_close(&r);
    }
}

/* Training on one batch learns it by heart: the count of hits counts. */
static void a_batch_is_learnt_by_heart(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, &tiny, rig_device());
    en_batch batch = batch_new(&r.schema, 12, 9);
    const double before = rig_step(&r, &batch);
    for (int step = 0; step < 300; step++) {
        rig_step(&r, &batch);
        for (uint64_t i = 0; i < r.schema.count; i++)
            r.param[i] -= 0.2f * r.grad[i];
    }
    const en_score score = rig_evaluate(&r, &batch);
    assert_int_equal(score.correct, 12);
    assert_true(score.loss / 12 < 0.1 * before);
    batch_free(&batch);
    rig_close(&r);
}

/* ---- devices ----------------------------------------------------------------------------------------- */

static void gradients_agree_with_the_reference(void **state)
{
    (void)state;
    const en_network *networks[] = {network_named("toy"), network_named("mlp"), network_named("convnet"),
                                    &tiny};
    for (int i = 0; i < 4; i++) {
        rig here, ref;
        rig_open(&here, networks[i], rig_device());
        rig_open(&ref, networks[i], "ref");
        en_batch batch = batch_new(&ref.schema, 5, 4);
        const double loss = rig_step(&here, &batch), want = rig_step(&ref, &batch);
        assert_true(fabs(loss - want) < 0.1 * rig_tolerance() * fabs(want));
        for (uint32_t t = 0; t < ref.schema.ntensors; t++) {
            const en_model_tensor *tensor = &ref.schema.tensors[t];
            const double gap =
                relative_gap(here.grad + tensor->offset, ref.grad + tensor->offset, tensor->count);
            if (!(gap < rig_tolerance())) fail_msg("%s %s: %g", networks[i]->name, tensor->name, gap);
        }
        batch_free(&batch);
        rig_close(&here);
        rig_close(&ref);
    }
}

static void the_same_step_gives_the_same_bits(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, network_named("convnet"), rig_device());
    en_batch batch = batch_new(&r.schema, 9, 4);
    float *first = eni_alloc_array(r.schema.count, sizeof *first);
    rig_step(&r, &batch);
    memcpy(first, r.grad, r.schema.count * sizeof *first);
    memset(r.grad, 0, r.schema.count * sizeof *first);
    rig_step(&r, &batch);
    assert_memory_equal(first, r.grad, r.schema.count * sizeof *first);
    eni_free(first);
    batch_free(&batch);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    rig_choose_device(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_toy),
        cmocka_unit_test(gradients_of_a_new_network),
        cmocka_unit_test(a_layer_is_ready_when_its_weights_are_not_read_again),
        cmocka_unit_test(a_prepared_step_allocates_nothing),
        cmocka_unit_test(a_model_that_keeps_weights_has_the_same_gradients),
        cmocka_unit_test(what_on_ready_returns_ends_backward),
        cmocka_unit_test(ragged_batches_add_up),
        cmocka_unit_test(any_number_of_sizes_works),
        cmocka_unit_test(misuse_is_refused),
        cmocka_unit_test(evaluation_is_forward_summed),
        cmocka_unit_test(a_batch_is_learnt_by_heart),
        cmocka_unit_test(gradients_agree_with_the_reference),
        cmocka_unit_test(the_same_step_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
