/* test_graph.c - networks that branch: gradients that meet, memory that is given back, builders that are wrong. */
#include "rig.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "core/rng.h"
#include "models/memory_plan.h"
#include "models/prepared.h"
#include "models/registry.h"

#define NETWORK(name_, ...)                                                                                  \
    {                                                                                                        \
        .abi = EN_NETWORK_ABI, .size = sizeof(en_network), .name = (name_), .help = "of a test", __VA_ARGS__ \
    }

/* ---- networks that branch ---- */

/* An output with three readers, one of them twice; sums with and without relu; a batch normalisation that adds. */
static en_at build_forked(en_graph *g, en_at x)
{
    en_at y = en_batchnorm_relu(g, en_conv(g, x, "conv1", 4, 3, 1, 1), "bn1");
    en_at left = en_conv_bias(g, y, "left", 4, 3, 1, 1), right = en_conv(g, y, "right", 4, 1, 1, 0);
    en_at sum = en_add(g, left, en_add_relu(g, right, y));
    sum = en_batchnorm_add_relu(g, en_conv(g, sum, "conv2", 4, 3, 1, 1), y, "bn2");
    sum = en_add(g, sum, sum);
    sum = en_avgpool(g, en_maxpool(g, sum, 3, 2, 1), 2, 1, 0);
    en_at flat = en_flatten(g, sum);
    return en_cross_entropy(g, en_add(g, en_linear(g, flat, "a", 3), en_linear(g, flat, "b", 3)));
}

/* The batch itself has two readers; a view is read twice; a relu stands alone. */
static en_at build_views(en_graph *g, en_at x)
{
    en_at a = en_flatten(g, en_global_mean(g, en_relu(g, en_conv_bias(g, x, "one", 3, 3, 1, 0))));
    en_at b = en_flatten(g, en_global_mean(g, en_conv_bias(g, x, "two", 3, 3, 2, 0)));
    en_at sum = en_add(g, a, b);
    en_at y = en_linear_relu(g, sum, "fc1", 3);
    return en_nll(g, en_log_softmax(g, en_add_relu(g, en_add(g, y, sum), en_linear(g, a, "fc2", 3))));
}

static const en_network forked = NETWORK("forked", .input = {1, 6, 6, 2}, .build = build_forked);
static const en_network views = NETWORK("views", .input = {1, 7, 7, 2}, .build = build_views);

static double loss_at(rig *r, const en_batch *batch)
{
    rig_forward(r, batch);
    return rig_result(r).loss;
}

/* By central differences; where the slopes left and right differ a relu or a max changes sides in between, and
 * there is nothing to compare with: such elements must be few. */
static void tensor_is_finite_difference(rig *r, const en_model_tensor *tensor, const en_batch *batch)
{
    const float h = 0x1p-11f;
    const double here = loss_at(r, batch);
    double largest = 0, worst = 0;
    uint64_t kinks = 0;
    for (uint64_t i = tensor->offset; i < tensor->offset + tensor->count; i++)
        largest = fmax(largest, fabs((double)r->grad[i]));
    for (uint64_t i = tensor->offset; i < tensor->offset + tensor->count; i++) {
        const float w = r->param[i];
        r->param[i] = w + h;
        const double right = (loss_at(r, batch) - here) / (double)h;
        r->param[i] = w - h;
        const double left = (here - loss_at(r, batch)) / (double)h;
        r->param[i] = w;
        if (fabs(right - left) > 0.02 * fmax(largest, 0.1))
            kinks++;
        else
            worst = fmax(worst, fabs((right + left) / 2 - (double)r->grad[i]));
    }
    if (!(worst < 0.012 * fmax(largest, 0.1)) || kinks * 3 > tensor->count)
        fail_msg("%s: off by %g, largest %g, %llu kinks in %llu", tensor->name, worst, largest,
                 (unsigned long long)kinks, (unsigned long long)tensor->count);
}

static void gradients_are_finite_differences(const en_network *network)
{
    rig r;
    rig_open(&r, network, rig_device());
    en_batch batch = batch_new(&r.schema, 5, 4);
    rig_step(&r, &batch);
    float *grad = eni_alloc_array(r.schema.count, sizeof *grad);
    assert_non_null(grad);
    memcpy(grad, r.grad, r.schema.count * sizeof *grad);
    rig_step(&r, &batch);
    assert_memory_equal(grad, r.grad, r.schema.count * sizeof *grad); /* the same bits again */
    for (uint32_t t = 0; t < r.schema.ntensors; t++)
        tensor_is_finite_difference(&r, &r.schema.tensors[t], &batch);
    eni_free(grad);
    batch_free(&batch);
    rig_close(&r);
}

static void gradients_that_meet_add_up(void **state)
{
    (void)state;
    gradients_are_finite_differences(&forked);
}

static void views_and_the_batch_may_be_read_twice(void **state)
{
    (void)state;
    gradients_are_finite_differences(&views);
}

/* ---- random graphs ---- */

typedef struct recipe {
    uint64_t seed;
    uint64_t draws;
} recipe;

static recipe drawn; /* a builder gets nothing but the graph */

static uint64_t draw(uint64_t bound)
{
    const eni_rng_key key = {.seed = drawn.seed, .purpose = ENI_RNG_TEST, .rank = 9};
    return eni_rng_below(&key, drawn.draws++, bound);
}

/* Any earlier node of the same extent, or the last. */
static en_at pick(const en_graph *g, const en_at *nodes, int n, en_at like)
{
    const en_extent want = en_extent_at(g, like);
    for (int tries = 0; tries < 8; tries++) {
        const en_at at = nodes[draw((uint64_t)n)];
        const en_extent e = en_extent_at(g, at);
        if (e.h == want.h && e.w == want.w && e.c == want.c) return at;
    }
    return like;
}

static en_at build_random(en_graph *g, en_at x)
{
    enum { MOST = 24 };
    en_at nodes[MOST + 2] = {en_conv(g, x, "first", 1 + (int64_t)draw(6), 3, 1, 1)};
    int n = 1;
    for (const int wanted = 2 + (int)draw(MOST - 2); n < wanted; n++) {
        const en_at at = nodes[n - 1 - (int)draw(n > 3 ? 3 : (uint64_t)n)], last = nodes[n - 1];
        const char *name = g->name(g, "n%d", n);
        const en_extent e = en_extent_at(g, at);
        int64_t stride;
        switch (draw(8)) {
        case 0:
        case 1:
            stride = e.h > 4 ? 1 + (int64_t)draw(2)
                             : 1; /* before the channels: compilers differ in the order of arguments */
            nodes[n] = en_conv(g, at, name, 1 + (int64_t)draw(6), 3, stride, 1);
            break;
        case 2: nodes[n] = en_batchnorm_relu(g, at, name); break;
        case 3: nodes[n] = en_batchnorm_add_relu(g, last, pick(g, nodes, n, last), name); break;
        case 4: nodes[n] = en_add_relu(g, last, pick(g, nodes, n, last)); break;
        case 5: nodes[n] = en_add(g, at, at); break;
        case 6: nodes[n] = en_relu(g, at); break;
        default: nodes[n] = e.h > 3 ? en_maxpool(g, at, 3, 2, 1) : en_batchnorm(g, at, name);
        }
    }
    /* What nobody has read so far is added up at the end. */
    en_at sum = -1;
    for (int i = 0; i < n; i++) {
        const en_at leaf =
            en_linear(g, en_flatten(g, en_global_mean(g, nodes[i])), g->name(g, "leaf%d", i), 3);
        sum = sum < 0 ? leaf : en_add(g, sum, leaf);
    }
    return en_cross_entropy(g, sum);
}

static const en_network random_network = NETWORK("random", .input = {1, 8, 8, 2}, .build = build_random);

/* What each value held when it was written must be there when it is last read: gradients of the plan with its
 * shared memory are those of a plan where no two values share. */
static void memory_is_tight(const eni_prepared *p)
{
    if (p->bytes > p->bytes_live + p->bytes_live * 15 / 100 + 64 * 64)
        fail_msg("seed %llu: %llu bytes, %llu live", (unsigned long long)drawn.seed,
                 (unsigned long long)p->bytes, (unsigned long long)p->bytes_live);
}

static void random_graphs_fit_tightly(void **state)
{
    (void)state;
    const int count = strcmp(rig_device(), "ref") == 0 ? 2000 : 20;
    rig r;
    rig_open(&r, &forked, rig_device());
    for (int i = 0; i < count; i++) {
        en_schema schema;
        eni_prepared p = {0};
        drawn = (recipe){.seed = (uint64_t)i};
        assert_int_equal(en_schema_init(&random_network, &schema), EN_OK);
        for (int mode = EN_MODEL_TRAIN; mode <= EN_MODEL_EVALUATE; mode++) {
            const en_model_options whole = {.dtype = EN_F32, .end = schema.nnodes, .in_flight = 1};
            assert_int_equal(eni_prepare(&schema, r.device.ops, r.device.ctx, &whole, 3, mode, &p), EN_OK);
            memory_is_tight(&p);
            eni_prepared_fini(&p, r.device.ops, r.device.ctx);
        }
        en_schema_fini(&schema);
    }
    rig_close(&r);
}

static void random_graphs_have_right_gradients(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        rig r;
        drawn = (recipe){.seed = 100 + seed};
        rig_open(&r, &random_network, rig_device());
        en_batch batch = batch_new(&r.schema, 4, seed);
        rig_step(&r, &batch);
        for (uint32_t t = 0; t < r.schema.ntensors; t += 3)
            tensor_is_finite_difference(&r, &r.schema.tensors[t], &batch);
        batch_free(&batch);
        rig_close(&r);
    }
}

/* ---- the plan alone ---- */

static void no_two_live_values_overlap(void **state)
{
    (void)state;
    enum { MOST = 200, PLANS = 10000 };
    static eni_lifetime v[MOST];
    for (uint64_t seed = 0; seed < PLANS; seed++) {
        const eni_rng_key key = {.seed = seed, .purpose = ENI_RNG_TEST};
        const uint32_t n = 1 + (uint32_t)eni_rng_below(&key, 0, seed % 10 == 0 ? MOST : 30);
        uint64_t bytes;
        for (uint32_t i = 0; i < n; i++) {
            const int32_t first = (int32_t)eni_rng_below(&key, 1 + 3 * (uint64_t)i, 60);
            v[i] = (eni_lifetime){.bytes = eni_rng_below(&key, 2 + 3 * (uint64_t)i, 5000),
                                  .first = first,
                                  .last = first + (int32_t)eni_rng_below(&key, 3 + 3 * (uint64_t)i, 40)};
        }
        assert_int_equal(eni_memory_plan(v, n, 64, &bytes), EN_OK);
        for (uint32_t i = 0; i < n; i++) {
            if (v[i].bytes == 0) continue;
            assert_true(v[i].offset % 64 == 0 && v[i].offset + v[i].bytes <= bytes);
            for (uint32_t k = 0; k < i; k++) {
                const bool together = v[i].first <= v[k].last && v[k].first <= v[i].last && v[k].bytes > 0;
                const bool overlap =
                    v[i].offset < v[k].offset + v[k].bytes && v[k].offset < v[i].offset + v[i].bytes;
                if (together && overlap)
                    fail_msg("seed %llu: values %u and %u", (unsigned long long)seed, i, k);
            }
        }
    }
}

/* ---- builders that are wrong ---- */

static en_at foreign(en_graph *g, en_at x)
{
    (void)x;
    return en_mse(g, en_linear(g, 77, "fc", 3));
}

static en_at passes_nothing_on(en_graph *g, en_at x)
{
    (void)g, (void)x;
    return -1;
}

static en_at unread(en_graph *g, en_at x)
{
    (void)en_linear(g, x, "left-over", 3);
    return en_mse(g, en_linear(g, x, "fc", 3));
}

static en_at unlike(en_graph *g, en_at x)
{
    return en_mse(g, en_add(g, en_linear(g, x, "a", 3), en_linear(g, x, "b", 4)));
}

static en_at asks(en_graph *g, en_at x)
{
    return en_mse(g, en_linear(g, x, "fc", (int64_t)g->num(g, "depth")));
}

static en_at refuses(en_graph *g, en_at x)
{
    (void)x;
    return g->refuse(g, "width=%d: it has to be even", 7);
}

static en_at too_many(en_graph *g, en_at x)
{
    for (int i = 0; i < 5000; i++)
        x = en_relu(g, x);
    return en_mse(g, en_linear(g, x, "fc", 3));
}

static en_at no_such_operation(en_graph *g, en_at x)
{
    return en_plain(g, 4000, 0, x, -1);
}

static void wrong_builders_are_named(void **state)
{
    (void)state;
    const struct {
        en_at (*build)(en_graph *, en_at);
        const char *says;
    } cases[] = {{foreign, "fc (linear)|node 77|0 (the batch) to 0"},
                 {passes_nothing_on, "builder|-1"},
                 {unread, "left-over (linear)"},
                 {unlike, "node 3 (add)|(1, 1, 4)|(1, 1, 3)"},
                 {asks, "option depth|number"},
                 {refuses, "wrong|width=7: it has to be even"},
                 {too_many, "4095"},
                 {no_such_operation, "operation|kind 4000"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const en_network network = NETWORK("wrong", .input = {1, 1, 1, 4}, .build = cases[i].build);
        assert_refused(&network, cases[i].says);
    }
}

/* ---- resnet18 ---- */

static void resnet18_has_the_tensors_of_torchvision(void **state)
{
    (void)state;
    const struct {
        const char *options;
        uint64_t weights;
        en_data_shape data;
    } cases[] = {{"classes=10,stem=cifar", 11173962, {32, 32, 3, 10}},
                 {NULL, 11181642, {32, 32, 3, 10}},
                 {"classes=1000", 11689512, {224, 224, 3, 10}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        en_schema s;
        assert_int_equal(en_schema_init_for(&eni_resnet18, cases[i].options, &cases[i].data, &s), EN_OK);
        assert_int_equal(s.nweights, cases[i].weights);
        assert_int_equal(s.ntensors, 62);
        assert_int_equal(s.nbuffers, 60);
        assert_string_equal(s.tensors[0].name, "conv1.weight");
        assert_string_equal(s.buffers[59].name, "layer4.1.bn2.num_batches_tracked");
        assert_string_equal(s.tensors[61].name, "fc.bias");
        en_schema_fini(&s);
    }
}

int main(int argc, char **argv)
{
    rig_choose_device(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_that_meet_add_up),
        cmocka_unit_test(views_and_the_batch_may_be_read_twice),
        cmocka_unit_test(random_graphs_fit_tightly),
        cmocka_unit_test(random_graphs_have_right_gradients),
        cmocka_unit_test(no_two_live_values_overlap),
        cmocka_unit_test(wrong_builders_are_named),
        cmocka_unit_test(resnet18_has_the_tensors_of_torchvision),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
