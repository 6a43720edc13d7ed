/* test_threads.c - a step of whole networks on the device cpu with one to four threads: the same bytes again and
 * again, and the gradient and the running statistics that ref computes.
 *
 *     test_threads [quick|all [PLUGINS]]      all: every width and batch, and 200 steps of each in place of 20
 *
 * Two devices that each go forward and back cannot be held to a narrow bound: batch normalisation over few pixels
 * makes of a forward pass that is right to 1e-6 a gradient that is off by up to 3e-4 (7x7 stem, last images of 1x1),
 * and a value within rounding of 0 may be on the other side of a relu. So ref goes back over what the cpu's own
 * forward left, through the same relus, and each operation's forward is compared by itself, on the same inputs. */
#include "rig.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "ops/ref/ref.h"
#include "tests/network.h"

/* Promise: At the end of a step, whole networks have the same bytes again and again with 1 to 4 threads,
 * and ref's gradients to 1e-5 of a tensor's largest value. */

/* TSan cannot see the barriers of libgomp and reports every hand-over of an OpenMP loop as a race. */
#if defined(__SANITIZE_THREAD__)
enum { THREADS = 1 };
#else
enum { THREADS = 4 };
#endif

/* Sums of products are in another order, of up to 9 * 512 of them. */
#define FORWARD_OFF 5e-6
/* Through all layers, of the tensor's largest value; and of the network's, since a tensor whose true gradient is 0 (a
 * scale in front of a normalisation, in resnet18 of width 1) has nothing but what did not cancel. */
#define GRADIENT_OFF 1e-5
#define NETWORK_OFF  2e-6

static bool is_all;

/* ---- forward on the cpu, back on ref ------------------------------------------------------------------- */

static const en_device *cpu; /* of the rig in use */
static eni_device ref;

/* An operation on both. */
struct en_plan {
    en_plan *on_cpu, *on_ref; /* theirs */
    en_op op;
    int64_t ny;
    float *y, *stats;     /* ref's */
    uint64_t saved_bytes; /* the cpu's, which lie in front of ref's */
};

static en_status mixed_plan(en_ctx *ctx, const en_op *op, en_plan **plan_out)
{
    en_extent y = {0};
    en_plan_info info = {.size = sizeof info};
    en_plan *plan = eni_alloc(sizeof *plan);
    assert_non_null(plan);
    assert_int_equal(en_op_output(op, &y), EN_OK);
    plan->op = *op;
    plan->ny = en_extent_count(y);
    plan->y = eni_alloc_array((size_t)plan->ny, sizeof *plan->y);
    plan->stats = eni_alloc_array((size_t)en_op_stats(op), sizeof *plan->stats);
    assert_true(plan->y != NULL && plan->stats != NULL);
    assert_int_equal(cpu->plan(ctx, op, &plan->on_cpu), EN_OK);
    assert_int_equal(ref.ops->plan(ref.ctx, op, &plan->on_ref), EN_OK);
    cpu->plan_info(plan->on_cpu, &info);
    plan->saved_bytes = eni_round_up(info.saved_bytes, ENI_LINE);
    *plan_out = plan;
    return EN_OK;
}

static void mixed_plan_free(en_plan *plan)
{
    cpu->plan_free(plan->on_cpu);
    ref.ops->plan_free(plan->on_ref);
    eni_free(plan->y);
    eni_free(plan->stats);
    eni_free(plan);
}

static void mixed_plan_info(const en_plan *plan, en_plan_info *info_out)
{
    en_plan_info its = {.size = sizeof its};
    cpu->plan_info(plan->on_cpu, info_out);
    ref.ops->plan_info(plan->on_ref, &its);
    info_out->saved_bytes = plan->saved_bytes + its.saved_bytes;
    if (its.workspace_bytes > info_out->workspace_bytes) info_out->workspace_bytes = its.workspace_bytes;
}

static en_args for_ref(const en_plan *plan, const en_args *args)
{
    en_args its = *args;
    if (args->saved != NULL) its.saved = (unsigned char *)args->saved + plan->saved_bytes;
    return its;
}

/* A mean is judged by the deviation: values around 0 have one that is what did not cancel. */
static void statistics_are_near(const en_plan *plan, const en_args *args)
{
    const eni_running got = eni_ref_running(&plan->op, args->stats),
                      want = eni_ref_running(&plan->op, plan->stats);
    assert_int_equal(*got.batches, *want.batches);
    for (int64_t k = 0; k < plan->op.channels; k++) {
        const double var = (double)want.var[k], mean_gap = fabs((double)got.mean[k] - (double)want.mean[k]),
                     var_gap = fabs((double)got.var[k] - var);
        if (!(mean_gap < FORWARD_OFF * sqrt(var) && var_gap < FORWARD_OFF * var))
            fail_msg("%s: channel %d has a running mean that is off by %g, a variance by %g of %g",
                     args->label, (int)k, mean_gap, var_gap, var);
    }
}

static void forward_is_near(const en_plan *plan, const en_args *args)
{
    const double gap = relative_gap(args->y, plan->y, (uint64_t)plan->ny);
    if (!(gap < FORWARD_OFF)) fail_msg("%s: y is off by %g", args->label, gap);
    if (args->stats != NULL) statistics_are_near(plan, args);
}

/* ref first: a sum of gradients is done in place. */
static en_status mixed_forward(en_plan *plan, const en_args *args)
{
    en_args its = for_ref(plan, args);
    its.y = plan->y;
    if (args->stats != NULL) {
        memcpy(plan->stats, args->stats, (size_t)en_op_stats(&plan->op) * sizeof(float));
        its.stats = plan->stats;
    }
    assert_int_equal(ref.ops->forward(plan->on_ref, &its), EN_OK);
    const en_status st = cpu->forward(plan->on_cpu, args);
    forward_is_near(plan, args);
    return st;
}

static en_status mixed_weights(en_plan *plan, const en_args *args)
{
    const en_args its = for_ref(plan, args);
    return ref.ops->backward_weights(plan->on_ref, &its);
}

static en_status mixed_data(en_plan *plan, const en_args *args)
{
    const en_args its = for_ref(plan, args);
    return ref.ops->backward_data(plan->on_ref, &its);
}

static en_device mixed_of(const en_device *device)
{
    en_device mixed = *device;
    cpu = device;
    mixed.plan = mixed_plan;
    mixed.plan_free = mixed_plan_free;
    mixed.plan_info = mixed_plan_info;
    mixed.forward = mixed_forward;
    mixed.backward_weights = mixed_weights;
    mixed.backward_data = mixed_data;
    return mixed;
}

/* ---- a step -------------------------------------------------------------------------------------------- */

typedef struct work {
    const char *network, *options;
    en_data_shape data; /* zeros: the network's own */
} work;

/* Gradient, and state behind it. */
static size_t outcome_bytes(const rig *r)
{
    return (r->schema.count + r->schema.nstate) * sizeof(float);
}

/* One step of initial weights and statistics; outcome_out has outcome_bytes. */
static void step(rig *r, en_model *model, const en_batch *batch, const float *first_state, float *outcome_out)
{
    const size_t state_bytes = r->schema.nstate * sizeof(float);
    memset(outcome_out, 0, outcome_bytes(r));
    if (state_bytes > 0) memcpy(r->state, first_state, state_bytes);
    assert_int_equal(en_model_forward(model, r->param, r->state, batch), EN_OK);
    assert_int_equal(en_model_backward(model, r->param, outcome_out, NULL, NULL), EN_OK);
    if (state_bytes > 0) memcpy(outcome_out + r->schema.count, r->state, state_bytes);
}

static double largest_of(const float *values, uint64_t count)
{
    double largest = 0;
    for (uint64_t i = 0; i < count; i++)
        if (!(fabs((double)values[i]) <= largest)) largest = fabs((double)values[i]);
    return largest;
}

static void gradient_is_near(const rig *r, const char *what, const float *got, const float *want)
{
    const double network = largest_of(want, r->schema.count);
    assert_true(network > 0.01); /* a gradient of zeros proves nothing */
    for (uint32_t t = 0; t < r->schema.ntensors; t++) {
        const en_model_tensor *tensor = &r->schema.tensors[t];
        const float *mine = got + tensor->offset, *its = want + tensor->offset;
        const double largest = largest_of(its, tensor->count),
                     gap = largest > 0 ? relative_gap(mine, its, tensor->count) * largest
                                       : largest_of(mine, tensor->count);
        if (!(gap <= GRADIENT_OFF * largest + NETWORK_OFF * network))
            fail_msg("%s: %s is off by %g, its largest value is %g", what, tensor->name, gap, largest);
    }
}

/* The gradient of ref, and then the same bytes as often as is asked. */
static void steps_are_right(const work *w, int64_t n, int threads, int repeats)
{
    rig r;
    en_model *model;
    char what[128];
    snprintf(what, sizeof what, "%s:%s, batch %d, %d threads", w->network, w->options ? w->options : "",
             (int)n, threads);
    rig_open_for(&r, network_named(w->network), w->options, w->data.height > 0 ? &w->data : NULL, "cpu",
                 threads);
    const en_device mixed = mixed_of(r.device.ops);
    assert_int_equal(en_model_new(&r.schema, &mixed, r.device.ctx, NULL, &model), EN_OK);
    en_batch batch = batch_new(&r.schema, n, 3);
    float *first_state = eni_alloc_array(r.schema.nstate, sizeof *first_state),
          *want = eni_alloc(outcome_bytes(&r)), *got = eni_alloc(outcome_bytes(&r)),
          *again = eni_alloc(outcome_bytes(&r));
    if (r.schema.nstate > 0) memcpy(first_state, r.state, r.schema.nstate * sizeof *first_state);
    step(&r, model, &batch, first_state, want);
    step(&r, r.model, &batch, first_state, got);
    for (int i = 1; i < repeats; i++) {
        step(&r, r.model, &batch, first_state, again);
        if (memcmp(again, got, outcome_bytes(&r)) != 0) fail_msg("%s: step %d has other bytes", what, i);
    }
    gradient_is_near(&r, what, got, want);
    assert_memory_equal(got + r.schema.count, want + r.schema.count, r.schema.nstate * sizeof *got);
    eni_free(first_state);
    eni_free(want);
    eni_free(got);
    eni_free(again);
    batch_free(&batch);
    en_model_free(model);
    rig_close(&r);
}

/* ---- networks -------------------------------------------------------------------------------------------- */

enum { FEW = 20, MANY = 200 }; /* steps */

static void networks_without_statistics(void **state)
{
    static const work networks[] = {{.network = "mlp"}, {.network = "convnet"}};
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int64_t n = 1; n <= 8; n += is_all ? 1 : 4)
            for (int threads = 1; threads <= THREADS; threads++)
                steps_are_right(&networks[i], n, threads, is_all ? MANY : FEW);
}

/* A stem, and images for it: large enough that the last ones are not of one pixel. */
typedef struct stem {
    const char *name;
    int64_t pixels;
} stem;

static const stem cifar = {"cifar", 32}, small = {"cifar", 16}, imagenet = {"imagenet", 64};

static void resnet18_is_right(const stem *of, int width, int64_t n, int threads, int repeats)
{
    char options[64];
    snprintf(options, sizeof options, "stem=%s,width=%d", of->name, width);
    steps_are_right(&(work){"resnet18", options, {of->pixels, of->pixels, 3, 10}}, n, threads, repeats);
}

/* Of widths that blocks of 8 or 16 channels do not divide. Nearly each of them found what oneDNN's 1x1 convolutions
 * with a stride wrote past their workspace, with AVX-512 or with AVX2. */
static void resnet18_of_some_widths(void **state)
{
    static const struct {
        const stem *stem;
        int width, n, threads;
    } some[] = {{&cifar, 3, 1, 3},     {&cifar, 3, 2, 4}, {&cifar, 4, 1, 2},    {&cifar, 4, 4, 3},
                {&cifar, 6, 1, 2},     {&cifar, 8, 2, 1}, {&cifar, 8, 1, 2},    {&cifar, 8, 1, 4},
                {&cifar, 8, 2, 4},     {&cifar, 8, 5, 3}, {&imagenet, 1, 2, 2}, {&imagenet, 4, 1, 3},
                {&imagenet, 12, 1, 2}, {&small, 1, 1, 1}};
    (void)state;
    if (is_all) skip();
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        resnet18_is_right(some[i].stem, some[i].width, some[i].n,
                          some[i].threads < THREADS ? some[i].threads : THREADS, FEW);
}

static void resnet18_of_all_widths(void **state)
{
    static const int widths[] = {1, 2, 3, 4, 6, 8, 12, 16, 64};
    (void)state;
    if (!is_all) skip();
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int64_t n = 1; n <= 8; n++)
            for (int threads = 1; threads <= THREADS; threads++) {
                const int repeats = widths[i] < 16 ? MANY : FEW; /* a wide one takes a second */
                resnet18_is_right(&cifar, widths[i], n, threads, repeats);
                resnet18_is_right(&small, widths[i], n, threads, repeats);
                resnet18_is_right(&imagenet, widths[i], n, threads, repeats);
            }
}

int main(int argc, char **argv)
{
    char *device[] = {argv[0], "cpu", argc > 2 ? argv[2] : NULL};
    is_all = argc > 1 && strcmp(argv[1], "all") == 0;
    rig_choose_device(argc > 2 ? 3 : 2, device);
    assert_int_equal(eni_device_open("ref", "", 1, &ref), EN_OK);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(networks_without_statistics),
        cmocka_unit_test(resnet18_of_some_widths),
        cmocka_unit_test(resnet18_of_all_widths),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    eni_device_close(&ref);
    return failed;
}
