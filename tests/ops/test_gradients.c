/* test_gradients.c - ref against the definitions: each operation once more, in double and straight from its
 * formula, and ref's gradients against central differences of that. PyTorch's definitions (which of equal
 * values a pooling picks, how running statistics move) are in tests/goldens/ops.json, by
 * tools/make_goldens.py. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/ops/trial.h"

/* Promise: Batch normalisation, with its running statistics, and pooling are PyTorch's. */

static eni_device ref;

/* The tensors of a trial in double. y is written by formula(). */
typedef struct exact {
    const trial *t;
    double *x, *w, *b, *y, *x2;
} exact;

static double at(const exact *e, int64_t n, int64_t h, int64_t w, int64_t c)
{
    const en_extent x = e->t->op.x;
    if (h < 0 || h >= x.h || w < 0 || w >= x.w) return -INFINITY;
    return e->x[((n * x.h + h) * x.w + w) * x.c + c];
}

/* One output of a convolution; a linear layer is one with a window of one place. */
static double conv_at(const exact *e, int64_t n, int64_t p, int64_t q, int64_t o)
{
    const en_op *op = &e->t->op;
    const int is_conv = op->kind == EN_OP_CONV2D;
    const int64_t kh = is_conv ? op->kernel_h : 1, kw = is_conv ? op->kernel_w : 1;
    double sum = op->flags & EN_OP_BIAS ? e->b[o] : 0;
    for (int64_t i = 0; i < op->x.c; i++)
        for (int64_t r = 0; r < kh; r++)
            for (int64_t s = 0; s < kw; s++) {
                const double x =
                    at(e, n, p * op->stride_h + r - op->pad_h, q * op->stride_w + s - op->pad_w, i);
                if (x != -INFINITY) sum += x * e->w[((o * op->x.c + i) * kh + r) * kw + s];
            }
    return op->flags & EN_OP_FUSE_RELU ? fmax(sum, 0) : sum;
}

static double pool_at(const exact *e, int64_t n, int64_t p, int64_t q, int64_t c)
{
    const en_op *op = &e->t->op;
    double best = op->kind == EN_OP_RELU_MAXPOOL ? 0 : -INFINITY;
    for (int64_t r = 0; r < op->kernel_h; r++)
        for (int64_t s = 0; s < op->kernel_w; s++)
            best =
                fmax(best, at(e, n, p * op->stride_h + r - op->pad_h, q * op->stride_w + s - op->pad_w, c));
    return best;
}

/* Padding counts as zeros. */
static double average_at(const exact *e, int64_t n, int64_t p, int64_t q, int64_t c)
{
    const en_op *op = &e->t->op;
    const int64_t h = op->kernel_h ? op->kernel_h : op->x.h, w = op->kernel_w ? op->kernel_w : op->x.w;
    double sum = 0;
    for (int64_t r = 0; r < h; r++)
        for (int64_t s = 0; s < w; s++) {
            const double x = at(e, n, p * op->stride_h + r - op->pad_h, q * op->stride_w + s - op->pad_w, c);
            if (x != -INFINITY) sum += x;
        }
    return sum / (double)(h * w);
}

/* Mean and biased variance of a channel, of the batch. */
static void moments(const exact *e, int64_t c, double *mean, double *var)
{
    const int64_t channels = e->t->op.x.c, pixels = e->t->nx / channels;
    *mean = *var = 0;
    for (int64_t i = 0; i < pixels; i++)
        *mean += e->x[i * channels + c] / (double)pixels;
    for (int64_t i = 0; i < pixels; i++)
        *var += pow(e->x[i * channels + c] - *mean, 2) / (double)pixels;
}

static double batchnorm_at(const exact *e, int64_t n, int64_t p, int64_t q, int64_t c)
{
    const en_op *op = &e->t->op;
    double mean = (double)e->t->stats[c], var = (double)trial_var(e->t)[c];
    if (!(op->flags & EN_OP_FORWARD_ONLY)) moments(e, c, &mean, &var);
    double y = e->w[c] * (at(e, n, p, q, c) - mean) / sqrt(var + (double)op->eps) + e->b[c];
    if (op->flags & EN_OP_FUSE_ADD) y += e->x2[((n * op->x.h + p) * op->x.w + q) * op->x.c + c];
    return op->flags & EN_OP_FUSE_RELU ? fmax(y, 0) : y;
}

static double sum_at(const exact *e, int64_t n, int64_t p, int64_t q, int64_t c)
{
    const en_op *op = &e->t->op;
    const double sum = at(e, n, p, q, c) + e->x2[((n * op->x.h + p) * op->x.w + q) * op->x.c + c];
    return op->flags & EN_OP_FUSE_RELU ? fmax(sum, 0) : sum;
}

static double log_softmax_at(const exact *e, int64_t n, int64_t k)
{
    const int64_t c = e->t->op.x.c;
    double sum = 0;
    for (int64_t j = 0; j < c; j++)
        sum += exp(e->x[n * c + j]);
    return e->x[n * c + k] - log(sum);
}

static double loss(const exact *e)
{
    const en_op *op = &e->t->op;
    const int32_t *label = e->t->target;
    double sum = 0;
    if (op->kind == EN_OP_MSE) {
        for (int64_t i = 0; i < e->t->nx; i++)
            sum += pow(e->x[i] - (double)((float *)e->t->target)[i], 2);
        return sum / (double)e->t->nx;
    }
    for (int64_t n = 0; n < op->x.n; n++)
        sum -= op->kind == EN_OP_NLL ? e->x[n * op->x.c + label[n]] : log_softmax_at(e, n, label[n]);
    return sum / (double)op->x.n;
}

static double output_at(const exact *e, int64_t n, int64_t p, int64_t q, int64_t c)
{
    const en_op *op = &e->t->op;
    const int64_t places = op->x.h * op->x.w;
    switch (op->kind) {
    case EN_OP_CONV2D:
    case EN_OP_LINEAR: return conv_at(e, n, p, q, c);
    case EN_OP_RELU: return fmax(at(e, n, p, q, c), 0);
    case EN_OP_MAXPOOL:
    case EN_OP_RELU_MAXPOOL: return pool_at(e, n, p, q, c);
    case EN_OP_FLATTEN: return at(e, n, c % places / op->x.w, c % op->x.w, c / places);
    case EN_OP_LOG_SOFTMAX: return log_softmax_at(e, n, c);
    case EN_OP_BATCHNORM: return batchnorm_at(e, n, p, q, c);
    case EN_OP_ADD: return sum_at(e, n, p, q, c);
    case EN_OP_AVGPOOL: return average_at(e, n, p, q, c);
    default: return c == 0 ? loss(e) : 0;
    }
}

/* The function to differentiate: sum of dy * y, for a loss its value. */
static int gives_loss(uint32_t kind)
{
    return kind == EN_OP_NLL || kind == EN_OP_CROSS_ENTROPY || kind == EN_OP_MSE;
}

static double objective(exact *e)
{
    const en_extent y = e->t->y_extent;
    const int is_loss = gives_loss(e->t->op.kind);
    double sum = 0;
    int64_t i = 0;
    for (int64_t n = 0; n < y.n; n++)
        for (int64_t p = 0; p < y.h; p++)
            for (int64_t q = 0; q < y.w; q++)
                for (int64_t c = 0; c < y.c; c++, i++) {
                    e->y[i] = output_at(e, n, p, q, c);
                    sum += e->y[i] * (is_loss ? (double)(c == 0) : (double)e->t->dy[i]);
                }
    return sum;
}

static double *to_double(const float *from, int64_t count)
{
    double *to = calloc((size_t)count + 1, sizeof *to);
    assert_non_null(to);
    for (int64_t i = 0; i < count; i++)
        to[i] = (double)from[i];
    return to;
}

/* Central differences in each of `count` variables against `gradient`. */
static void check_gradient(exact *e, const char *what, double *variable, const float *gradient, int64_t count)
{
    const double step = 1e-5;
    for (int64_t i = 0; i < count; i++) {
        const double old = variable[i];
        variable[i] = old + step;
        const double above = objective(e);
        variable[i] = old - step;
        const double below = objective(e);
        variable[i] = old;
        const double want = (above - below) / (2 * step);
        if (!(fabs((double)gradient[i] - want) <= 2e-6 * fmax(1, fabs(want))))
            fail_msg("%s: %s[%lld] is %.9g, central difference %.9g", trial_name(e->t), what, (long long)i,
                     (double)gradient[i], want);
    }
}

static void check(const en_op *op)
{
    trial t;
    trial_init(&t, &ref, op, 11);
    exact e = {&t,
               to_double(t.x, t.nx),
               to_double(t.w, t.nw),
               to_double(t.b, t.nb),
               to_double(t.dy, t.ny),
               to_double(t.x2, t.nx)};
    trial_run(&t); /* masks dy where relu is fused: the objective's dy is then the masked one, with equal
                      gradient */
    objective(&e);
    for (int64_t i = 0; i < t.ny; i++) {
        if (gives_loss(op->kind) && i == 1) continue; /* correct samples: see below */
        if (!(fabs((double)t.y[i] - e.y[i]) <= 1e-6 * fmax(1, fabs(e.y[i]))))
            fail_msg("%s: y[%lld] is %.9g, by definition %.9g", trial_name(&t), (long long)i, (double)t.y[i],
                     e.y[i]);
    }
    if (!(op->flags & EN_OP_FORWARD_ONLY)) {
        check_gradient(&e, "dx", e.x, t.dx, t.nx);
        check_gradient(&e, "dw", e.w, t.dw, t.nw);
        if (op->flags & EN_OP_BIAS) check_gradient(&e, "db", e.b, t.db, t.nb);
        if (op->kind == EN_OP_ADD) check_gradient(&e, "dx as that of x2", e.x2, t.dx, t.nx);
        if (op->flags & EN_OP_FUSE_ADD) check_gradient(&e, "dy as that of x2", e.x2, t.dy, t.nx);
    }
    free(e.x), free(e.w), free(e.b), free(e.y), free(e.x2);
    trial_fini(&t);
}

static void convolutions(void **state)
{
    (void)state;
    const en_op ops[] = {conv_op((en_extent){2, 5, 6, 3}, 4, 3, 1, 0, EN_OP_BIAS),
                         conv_op((en_extent){2, 6, 5, 2}, 3, 3, 2, 1, EN_OP_BIAS | EN_OP_FUSE_RELU),
                         conv_op((en_extent){1, 7, 7, 1}, 2, 5, 1, 2, 0),
                         conv_op((en_extent){1, 4, 4, 2}, 2, 1, 3, 0, EN_OP_BIAS)};
    for (int i = 0; i < 4; i++)
        check(&ops[i]);
}

static void rectangular_windows(void **state)
{
    (void)state;
    en_op ops[] = {conv_op((en_extent){1, 6, 7, 2}, 2, 2, 1, 0, EN_OP_BIAS),
                   pool_op(EN_OP_MAXPOOL, (en_extent){1, 6, 7, 2}, 2, 1, 0)};
    for (int i = 0; i < 2; i++) {
        ops[i].kernel_w = 3, ops[i].stride_h = 2, ops[i].pad_w = 1;
        check(&ops[i]);
    }
}

static void linear_layers(void **state)
{
    (void)state;
    const en_op ops[] = {linear_op(3, 7, 5, EN_OP_BIAS), linear_op(4, 6, 9, EN_OP_BIAS | EN_OP_FUSE_RELU),
                         linear_op(1, 1, 1, 0)};
    for (int i = 0; i < 3; i++)
        check(&ops[i]);
}

static void relu_and_pools(void **state)
{
    (void)state;
    const en_op ops[] = {plain_op(EN_OP_RELU, (en_extent){2, 3, 4, 5}),
                         pool_op(EN_OP_MAXPOOL, (en_extent){2, 5, 4, 3}, 2, 2, 0),
                         pool_op(EN_OP_MAXPOOL, (en_extent){1, 6, 5, 2}, 3, 2, 1),
                         pool_op(EN_OP_RELU_MAXPOOL, (en_extent){2, 6, 7, 3}, 2, 2, 0),
                         pool_op(EN_OP_RELU_MAXPOOL, (en_extent){1, 5, 5, 2}, 3, 1, 0)};
    for (int i = 0; i < 5; i++)
        check(&ops[i]);
}

static void batch_normalisation(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t flags =
            (i & 1 ? EN_OP_FUSE_RELU : 0) | (i & 2 ? EN_OP_FUSE_ADD : 0) | (i & 4 ? EN_OP_FORWARD_ONLY : 0);
        const en_op large = batchnorm_op((en_extent){2, 3, 2, 5}, flags);
        const en_op small = batchnorm_op((en_extent){2, 1, 1, 3}, flags);
        check(&large);
        check(&small);
    }
}

static void sums_and_means(void **state)
{
    (void)state;
    en_op ops[] = {plain_op(EN_OP_ADD, (en_extent){2, 3, 1, 4}), plain_op(EN_OP_ADD, (en_extent){2, 3, 1, 4}),
                   pool_op(EN_OP_AVGPOOL, (en_extent){2, 3, 4, 3}, 0, 0, 0),
                   pool_op(EN_OP_AVGPOOL, (en_extent){1, 6, 5, 2}, 3, 2, 1),
                   pool_op(EN_OP_AVGPOOL, (en_extent){2, 7, 7, 1}, 2, 3, 1)};
    ops[1].flags = EN_OP_FUSE_RELU;
    for (int i = 0; i < 5; i++)
        check(&ops[i]);
}

/* x, x2, dy may be what y, dx are written over. */
static void what_may_be_in_place_is(void **state)
{
    (void)state;
    en_op ops[] = {plain_op(EN_OP_ADD, (en_extent){2, 3, 1, 4}), plain_op(EN_OP_ADD, (en_extent){2, 3, 1, 4}),
                   batchnorm_op((en_extent){2, 3, 1, 4}, EN_OP_FUSE_RELU | EN_OP_FUSE_ADD)};
    ops[1].flags = EN_OP_FUSE_RELU;
    for (int i = 0; i < 3; i++) {
        trial a, b;
        trial_init(&a, &ref, &ops[i], 11);
        trial_init(&b, &ref, &ops[i], 11);
        trial_run(&a);
        en_args args = trial_args(&b);
        args.dx = args.dy;
        if (ops[i].kind == EN_OP_ADD) args.y = b.x2;
        assert_int_equal(ref.ops->forward(b.plan, &args), EN_OK);
        if (b.nw > 0) assert_int_equal(ref.ops->backward_weights(b.plan, &args), EN_OK);
        assert_int_equal(ref.ops->backward_data(b.plan, &args), EN_OK);
        assert_memory_equal(args.y, a.y, (size_t)a.ny * sizeof(float));
        assert_memory_equal(args.dx, a.dx, (size_t)a.nx * sizeof(float));
        trial_fini(&a);
        trial_fini(&b);
    }
}

/* ---- what PyTorch makes of the same numbers -------------------------------------------------------------- */

static int64_t integer(const json_t *facts, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(facts, key));
}

/* The numbers under a key; false without them. */
static bool read_numbers(const json_t *facts, const char *key, float *to, int64_t count)
{
    const json_t *list = json_object_get(facts, key);
    if (list == NULL) return false;
    assert_int_equal(json_array_size(list), count);
    for (int64_t i = 0; i < count; i++)
        to[i] = (float)json_number_value(json_array_get(list, (size_t)i));
    return true;
}

static void compare(const json_t *facts, const trial *t, const char *key, const float *got, int64_t count)
{
    float *want = calloc((size_t)count + 1, sizeof *want);
    assert_non_null(want);
    if (read_numbers(facts, key, want, count)) assert_close(key, t, got, want, count, 2e-7);
    free(want);
}

static void check_golden(const json_t *facts)
{
    const en_extent x = {integer(facts, "n"), integer(facts, "h"), integer(facts, "w"), integer(facts, "c")};
    en_op op = pool_op((uint32_t)integer(facts, "kind"), x, integer(facts, "kernel"),
                       integer(facts, "stride"), integer(facts, "pad"));
    if (op.kind == EN_OP_BATCHNORM) op = batchnorm_op(x, (uint32_t)integer(facts, "flags"));
    trial t;
    trial_init(&t, &ref, &op, 1);
    assert_true(read_numbers(facts, "x", t.x, t.nx));
    (void)read_numbers(facts, "dy", t.dy, t.ny);
    if (t.nw > 0) {
        assert_true(read_numbers(facts, "weight", t.w, t.nw) && read_numbers(facts, "bias", t.b, t.nb));
        assert_true(read_numbers(facts, "mean", t.stats, t.nb) &&
                    read_numbers(facts, "var", trial_var(&t), t.nb));
        *trial_batches(&t) = integer(facts, "batches");
    }
    trial_run(&t);
    compare(facts, &t, "y", t.y, t.ny);
    compare(facts, &t, "dx", t.dx, t.nx);
    compare(facts, &t, "dw", t.dw, t.nw);
    compare(facts, &t, "db", t.db, t.nb);
    if (t.nw > 0) {
        compare(facts, &t, "mean_then", t.stats, t.nb);
        compare(facts, &t, "var_then", trial_var(&t), t.nb);
        assert_int_equal(*trial_batches(&t), integer(facts, "batches_then"));
    }
    trial_fini(&t);
}

static void pytorch_gives_the_same(void **state)
{
    (void)state;
    json_error_t error;
    json_t *goldens = json_load_file(EN_SOURCE_DIR "/tests/goldens/ops.json", 0, &error);
    assert_non_null(goldens);
    const char *name;
    json_t *facts;
    assert_true(json_object_size(goldens) >= 6);
    json_object_foreach(goldens, name, facts) check_golden(facts);
    json_decref(goldens);
}

static void flatten_and_losses(void **state)
{
    (void)state;
    check(&(en_op){.size = sizeof(en_op), .kind = EN_OP_FLATTEN, .dtype = EN_F32, .x = {2, 3, 4, 5}});
    for (uint32_t kind = EN_OP_LOG_SOFTMAX; kind <= EN_OP_MSE; kind++) {
        const en_op op = plain_op(kind, (en_extent){5, 1, 1, 7});
        check(&op);
    }
}

static void correct_samples_are_counted(void **state)
{
    (void)state;
    const uint32_t kinds[] = {EN_OP_NLL, EN_OP_CROSS_ENTROPY};
    for (int i = 0; i < 2; i++) {
        const en_op op = plain_op(kinds[i], (en_extent){4, 1, 1, 3});
        const float x[] = {-1, -2, -3, -3, -1, -2, -2, -2, -4, -2, -2, -4};
        const int32_t labels[] = {0, 2, 0, 1}; /* right; wrong; a tie that the first wins: right, wrong */
        trial t;
        trial_init(&t, &ref, &op, 1);
        for (int k = 0; k < 12; k++)
            t.x[k] = x[k];
        for (int k = 0; k < 4; k++)
            ((int32_t *)t.target)[k] = labels[k];
        trial_run(&t);
        assert_true(t.y[1] == 2.0f);
        trial_fini(&t);
    }
}

/* Logits far apart neither overflow nor lose the loss. */
static void large_logits_are_stable(void **state)
{
    (void)state;
    const en_op op = plain_op(EN_OP_CROSS_ENTROPY, (en_extent){1, 1, 1, 3});
    trial t;
    trial_init(&t, &ref, &op, 1);
    t.x[0] = 1e4f, t.x[1] = -1e4f, t.x[2] = 0;
    ((int32_t *)t.target)[0] = 2;
    trial_run(&t);
    assert_true(t.y[0] == 1e4f && t.dx[0] == 1.0f && t.dx[1] == 0.0f && t.dx[2] == -1.0f);
    trial_fini(&t);
}

int main(void)
{
    assert_int_equal(eni_device_open("ref", "", 1, &ref), EN_OK);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions),
        cmocka_unit_test(rectangular_windows),
        cmocka_unit_test(linear_layers),
        cmocka_unit_test(relu_and_pools),
        cmocka_unit_test(batch_normalisation),
        cmocka_unit_test(sums_and_means),
        cmocka_unit_test(what_may_be_in_place_is),
        cmocka_unit_test(pytorch_gives_the_same),
        cmocka_unit_test(flatten_and_losses),
        cmocka_unit_test(correct_samples_are_counted),
        cmocka_unit_test(large_logits_are_stable),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    eni_device_close(&ref);
    return failed;
}
