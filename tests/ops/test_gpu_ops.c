/* test_gpu_ops.c - every operation of the cuda device against ref, in every type, over shapes that are odd in
 * every way: on the simulated GPU, or on a real one.
 *
 * |got - ref| <= tolerance * (the largest |ref|), ref on inputs rounded to the type:
 *
 *                                       f32       f32 with TF32   bf16      fp16
 *     conv2d, linear     y, dx          1e-5      2e-3            1e-2      2e-3
 *                        dw             2e-5      2e-3            1e-2      2e-3
 *                        db             2e-6      2e-3            2e-6      2e-6     (summed in float32)
 *     log_softmax, nll, cross_entropy, mse
 *                        y              2e-6      2e-6            2e-6      2e-6     (float32)
 *                        dx             2e-6      2e-6            4e-3      1e-3
 *     batchnorm          y, dx          1e-5      1e-5            8e-3      1e-3      (y of ref is rounded too:
 *                        dw, db, stats  4e-6      4e-6            4e-6      4e-6      a unit, not half of one)
 *     avgpool            y, dx          1e-6      1e-6            8e-3      1e-3
 *     relu, add, flatten, cast           exact
 *     maxpool, relu_maxpool              exact; dx 4e-3 and 1e-3 in 16 bits where windows overlap
 *
 * 16 bits: half a unit of bf16 is 2e-3 of a value, of fp16 5e-4; weights and biases are rounded before.
 * docs/gpu.md has this table. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/memory.h"
#include "tests/ops/gpu_trial.h"

/* Promise: On a GPU, a batch that is not finite leaves running statistics unchanged, in three types. */

static eni_device ref;
static gpu_rig plain, tf32, exact; /* exact: EN_OPEN_DETERMINISTIC */

enum { Y, DW, DB, DX, STATS };

static double tolerance(const gpu_trial *t, int what)
{
    const uint32_t kind = t->op.kind, dtype = t->op.dtype;
    const int is_16 = dtype != EN_F32, has_tf32 = t->rig == &tf32;
    if (kind == EN_OP_CONV2D || kind == EN_OP_LINEAR) {
        if (what == DB) return has_tf32 ? 2e-3 : 2e-6;
        if (is_16) return dtype == EN_BF16 ? 1e-2 : 2e-3;
        return has_tf32 ? 2e-3 : what == DW ? 2e-5 : 1e-5;
    }
    if (kind >= EN_OP_LOG_SOFTMAX && kind <= EN_OP_MSE)
        return what == Y || !is_16 ? 2e-6 : dtype == EN_BF16 ? 4e-3 : 1e-3;
    if (kind == EN_OP_BATCHNORM && what != Y && what != DX) return 4e-6;
    if (kind == EN_OP_BATCHNORM || kind == EN_OP_AVGPOOL)
        return dtype == EN_BF16 ? 8e-3 : dtype == EN_F16 ? 1e-3 : kind == EN_OP_AVGPOOL ? 1e-6 : 1e-5;
    const int overlaps = t->op.kernel_h > t->op.stride_h;
    if ((kind == EN_OP_MAXPOOL || kind == EN_OP_RELU_MAXPOOL) && what == DX && overlaps && is_16)
        return dtype == EN_BF16 ? 4e-3 : 1e-3;
    return 0.0;
}

static void compare(const gpu_trial *t, int what, const char *name, const float *got, const float *want,
                    int64_t count)
{
    double largest = 1e-6;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)want[i]));
    const double gap = tolerance(t, what) * largest;
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= gap))
            fail_msg("%s: %s[%lld] is %.9g, expected %.9g within %.3g", gpu_trial_name(t), name, (long long)i,
                     (double)got[i], (double)want[i], gap);
}

static void compare_tensor(const gpu_trial *t, int what, const char *name, int which, const float *want,
                           int64_t count)
{
    float *got = gpu_trial_floats(t, which);
    compare(t, what, name, got, want, count);
    eni_free(got);
}

/* Padding is as it was, and the batches are counted; those of ref are the test's too. */
static void compare_stats(const gpu_trial *t)
{
    const int64_t at = (const float *)(const void *)trial_batches(&t->want) - t->want.stats;
    int64_t batches;
    compare_tensor(t, STATS, "stats", GPU_STATS, t->want.stats, at);
    memcpy(&batches, (const char *)gpu_trial_bits(t, GPU_STATS) + (size_t)at * sizeof(float), sizeof batches);
    assert_int_equal(batches, *trial_batches(&t->want));
}

/* The loss itself is exact to one sample in what it counts. */
static void try_op(gpu_rig *rig, const en_op *op, uint64_t skew, float scale)
{
    gpu_trial t;
    gpu_trial_init(&t, rig, &ref, op, skew, scale);
    float *y = eni_alloc_array((size_t)t.want.ny, sizeof *y);
    assert_non_null(y);
    gpu_trial_run(&t, y);
    compare(&t, Y, "y", y, t.want.y, t.want.ny);
    eni_free(y);
    if (!(op->flags & EN_OP_FORWARD_ONLY)) {
        if (t.want.nw > 0) compare_tensor(&t, DW, "dw", GPU_DW, t.want.dw, t.want.nw);
        if (op->flags & EN_OP_BIAS) compare_tensor(&t, DB, "db", GPU_DB, t.want.db, t.want.nb);
        if (!(op->flags & EN_OP_NO_DX)) compare_tensor(&t, DX, "dx", GPU_DX, t.want.dx, t.want.nx);
    }
    if (op->flags & EN_OP_FUSE_RELU && !(op->flags & EN_OP_FORWARD_ONLY))
        compare_tensor(&t, Y, "dy", GPU_DY, t.want.dy, t.want.ny);
    if (t.want.nstats > 0) compare_stats(&t);
    gpu_trial_fini(&t);
}

static int has_type(const en_op *op, uint32_t dtype)
{
    return op->kind != EN_OP_NLL || dtype == EN_F32;
}

/* Cases beyond the fixed set of trial.h: large batches, small ones of many classes, and a cast. */
static const en_op *more_ops(int *count_out)
{
    static en_op ops[64];
    const uint32_t bias = EN_OP_BIAS, relu = EN_OP_FUSE_RELU;
    int n = 0;
    ops[n++] = conv_op((en_extent){5, 12, 12, 20}, 50, 5, 1, 0, bias | relu);
    ops[n++] = conv_op((en_extent){2, 9, 7, 50}, 20, 3, 2, 1, bias);
    ops[n++] = conv_op((en_extent){4, 7, 9, 1}, 6, 3, 1, 1, bias);
    ops[n++] = conv_op((en_extent){3, 5, 7, 3}, 8, 1, 1, 0, bias | relu);
    ops[n++] = conv_op((en_extent){300, 6, 6, 2}, 5, 3, 1, 0, bias); /* many parts of db */
    ops[n++] = conv_op((en_extent){2, 4, 4, 4}, 4, 3, 1, 1, relu);
    ops[n++] = linear_op(64, 500, 10, bias);
    ops[n++] = linear_op(5, 33, 7, bias | relu);
    ops[n++] = linear_op(1, 7, 130, bias | EN_OP_NO_DX);
    ops[n++] = linear_op(7, 12, 9, relu);
    ops[n++] = linear_op(1024, 20, 10, bias | relu);
    ops[n++] = linear_op(1025, 12, 70, bias | relu); /* more than one part of db */
    ops[n++] = linear_op(4096, 8, 10, bias);
    for (uint32_t kind = EN_OP_LOG_SOFTMAX; kind <= EN_OP_MSE; kind++) {
        ops[n++] = plain_op(kind, (en_extent){129, 1, 1, 10}); /* the first that takes two blocks */
        ops[n++] = plain_op(kind, (en_extent){5, 1, 1, 100});
        ops[n++] = plain_op(kind, (en_extent){4096, 1, 1, 3});
    }
    ops[n++] = plain_op(EN_OP_RELU, (en_extent){4096, 1, 1, 3});
    ops[n++] = plain_op(EN_OP_FLATTEN, (en_extent){5, 7, 7, 50});
    ops[n++] = plain_op(EN_OP_FLATTEN, (en_extent){2, 1, 40, 65});
    ops[n++] = pool_op(EN_OP_RELU_MAXPOOL, (en_extent){5, 9, 7, 50}, 2, 2, 0);
    ops[n++] = pool_op(EN_OP_RELU_MAXPOOL, (en_extent){1, 5, 5, 1}, 3, 2, 1);
    ops[n++] = pool_op(EN_OP_MAXPOOL, (en_extent){2, 7, 7, 6}, 2, 3, 1);
    ops[n++] = pool_op(EN_OP_MAXPOOL, (en_extent){3, 6, 5, 20}, 5, 1, 2);
    ops[n++] = batchnorm_op((en_extent){2, 2, 3, 130}, relu); /* tiles that are not full: packs of 2, of 4 */
    ops[n++] = batchnorm_op((en_extent){3, 3, 2, 300}, relu | EN_OP_FUSE_ADD);
    ops[n++] = batchnorm_op((en_extent){3, 9, 10, 128}, 0); /* parts of 64 rows, the last one shorter */
    ops[n++] = pool_op(EN_OP_MAXPOOL, (en_extent){2, 16, 15, 64}, 3, 2, 1);
    for (int64_t count = 1; count < 1000; count += 331) {
        ops[n] = plain_op(EN_OP_CAST, (en_extent){1, 1, 1, count});
        ops[n++].flags = EN_OP_NO_DX;
    }
    *count_out = n;
    return ops;
}

typedef void (*op_fn)(const en_op *op);

enum { LARGE = 30000 }; /* elements of y; larger ones are tried once, the simulated GPU takes its time */

static void for_all(op_fn body, int with_large)
{
    for (int set = 0; set < 2; set++) {
        int count;
        const en_op *ops = set ? more_ops(&count) : trial_ops(&count);
        for (int i = 0; i < count; i++)
            for (uint32_t dtype = EN_F32; dtype <= EN_F16; dtype++) {
                en_op op = ops[i];
                op.dtype = dtype;
                en_extent y = {0};
                assert_int_equal(en_op_output(&op, &y), EN_OK);
                if (has_type(&op, dtype) && (with_large || en_extent_count(y) <= LARGE)) body(&op);
            }
    }
}

static void agrees(const en_op *op)
{
    try_op(&plain, op, 0, 0.0f);
}

static void every_op_agrees_with_ref(void **state)
{
    (void)state;
    for_all(agrees, 1);
}

static void agrees_skewed(const en_op *op)
{
    try_op(&exact, op, 4, 0.0f);
}

/* Views of the flat vector may begin on any float. */
static void weights_on_bounds_of_four_bytes(void **state)
{
    (void)state;
    for_all(agrees_skewed, 0);
}

/* Memory that begins on 16 bytes is given to the libraries as it is; they may rely on 16 and no more. */
static void weights_on_bounds_of_sixteen_bytes(void **state)
{
    (void)state;
    const en_op ops[] = {linear_op(5, 12, 8, EN_OP_BIAS), linear_op(5, 12, 8, EN_OP_BIAS | EN_OP_FUSE_RELU),
                         conv_op((en_extent){2, 6, 6, 1}, 8, 3, 1, 0, EN_OP_BIAS)};
    for (int i = 0; i < 3; i++)
        try_op(&plain, &ops[i], 16, 0.0f);
}

static void agrees_scaled(const en_op *op)
{
    try_op(&plain, op, 0, 256.0f);
}

static void the_loss_scale_goes_in_and_comes_out(void **state)
{
    (void)state;
    for_all(agrees_scaled, 0);
}

static void agrees_in_tf32(const en_op *op)
{
    if (op->dtype == EN_F32) try_op(&tf32, op, 0, 0.0f);
}

/* Where a GPU has no TF32 the product is still cuBLASLt's. */
static void tf32_is_as_close_as_ten_bits(void **state)
{
    (void)state;
    const en_op linear = linear_op(5, 4, 3, EN_OP_BIAS);
    gpu_trial t;
    gpu_trial_init(&t, &tf32, &ref, &linear, 0, 0.0f);
    assert_memory_equal(t.info.forward, "cublaslt", 8);
    gpu_trial_fini(&t);
    for_all(agrees_in_tf32, 0);
}

/* 2048 and 504 times 3/32: what is added to 2048 in 16 bits, eight at a time, is lost (steps of 2 and 16). */
static void sums_are_of_32_bits(void **state)
{
    (void)state;
    for (uint32_t dtype = EN_BF16; dtype <= EN_F16; dtype++) {
        en_op op = linear_op(4, 512, 8, 0);
        op.dtype = dtype;
        gpu_trial t;
        gpu_trial_init(&t, &plain, &ref, &op, 0, 0.0f);
        for (int64_t i = 0; i < t.want.nx; i++)
            t.want.x[i] = i % 512 == 0 ? 2048.0f : i % 512 < 8 ? 0.0f : 0.09375f;
        for (int64_t i = 0; i < t.want.nw; i++)
            t.want.w[i] = 1.0f;
        gpu_trial_set(&t, GPU_X, t.want.x);
        gpu_trial_set(&t, GPU_W, t.want.w);
        float y[32];
        assert_int_equal(t.want.ny, 32);
        gpu_trial_run(&t, y);
        for (int i = 0; i < 32; i++)
            assert_float_equal(y[i], 2096.0f, 0.0f); /* 2095.25, rounded once */
        gpu_trial_fini(&t);
    }
}

static void assert_same(const gpu_trial *a, const gpu_trial *b, int which, const char *name)
{
    if (memcmp(gpu_trial_bits(a, which), gpu_trial_bits(b, which), a->tensor[which].bytes) != 0)
        fail_msg("%s: other bits in %s", gpu_trial_name(a), name);
}

static void same_bits(const en_op *op)
{
    gpu_trial a, b;
    gpu_trial_init(&a, &exact, &ref, op, 0, 0.0f);
    gpu_trial_init(&b, &exact, &ref, op, 0, 0.0f);
    float *y = eni_alloc_array(2 * (size_t)a.want.ny, sizeof *y);
    assert_non_null(y);
    gpu_trial_run(&a, y);
    gpu_trial_run(&b, NULL);
    gpu_trial_run(&b, y + a.want.ny); /* a second step on the same plan: nothing may linger */
    if (memcmp(y, y + a.want.ny, (size_t)a.want.ny * sizeof *y) != 0)
        fail_msg("%s: other bits in y", gpu_trial_name(&a));
    assert_same(&a, &b, GPU_DX, "dx");
    assert_same(&a, &b, GPU_DW, "dw");
    assert_same(&a, &b, GPU_DB, "db");
    assert_same(&a, &b, GPU_STATS, "stats");
    eni_free(y);
    gpu_trial_fini(&a);
    gpu_trial_fini(&b);
}

static void two_runs_give_the_same_bits(void **state)
{
    (void)state;
    for_all(same_bits, 0);
}

static void look_at_results(gpu_trial *t)
{
    const int results[] = {GPU_Y, GPU_DX, GPU_DW, GPU_DB};
    for (int i = 0; i < 4; i++)
        gpu_trial_look(t, results[i]);
}

/* Nothing that an operation does when it runs is forbidden in a capture. */
static void same_bits_captured(const en_op *op)
{
    gpu_trial a, b;
    en_capture *graph = NULL;
    gpu_trial_init(&a, &exact, &ref, op, 0, 2.0f);
    gpu_trial_init(&b, &exact, &ref, op, 0, 2.0f);
    gpu_trial_enqueue(&a);
    look_at_results(&a);
    GPU_OK(exact.gpu->capture_begin(exact.ctx));
    gpu_trial_enqueue(&b);
    GPU_OK(exact.gpu->capture_end(exact.ctx, &graph));
    GPU_OK(exact.gpu->launch(graph));
    GPU_OK(exact.gpu->launch(graph));
    look_at_results(&b);
    assert_same(&a, &b, GPU_Y, "y");
    assert_same(&a, &b, GPU_DX, "dx");
    assert_same(&a, &b, GPU_DW, "dw");
    assert_same(&a, &b, GPU_DB, "db");
    exact.gpu->graph_free(graph);
    gpu_trial_fini(&a);
    gpu_trial_fini(&b);
}

static void a_recording_gives_the_same_bits(void **state)
{
    (void)state;
    for_all(same_bits_captured, 0);
}

static void forward_only(const en_op *op)
{
    en_op eval = *op;
    eval.flags |= EN_OP_FORWARD_ONLY;
    gpu_trial t;
    gpu_trial_init(&t, &plain, &ref, &eval, 0, 0.0f);
    assert_int_equal(t.info.saved_bytes, 0);
    assert_string_equal(t.info.backward_weights, "");
    assert_string_equal(t.info.backward_data, "");
    gpu_trial_fini(&t);
    try_op(&plain, &eval, 0, 0.0f);
}

static void forward_only_saves_nothing(void **state)
{
    (void)state;
    for_all(forward_only, 0);
}

/* 1,049,000 rows: more than there are parts of the least size. Their mean is 2,000 deviations, which would be
 * lost if squares were summed as they are; and the first row, which gaps are from, lies 500 of them off. */
static void variances_survive_large_means(void **state)
{
    (void)state;
    const en_op op = batchnorm_op((en_extent){1, 1049, 1000, 1}, 0);
    gpu_trial t;
    trial want;
    gpu_trial_init(&t, &plain, &ref, &op, 0, 0.0f);
    trial_init(&want, &ref, &op, 7);
    for (int64_t i = 0; i < want.nx; i++)
        want.x[i] = i == 0 ? 1300.0f : 1000.0f + want.x[i];
    gpu_trial_set(&t, GPU_X, want.x);
    trial_run(&want);
    gpu_trial_run(&t, NULL);
    const float *stats = gpu_trial_bits(&t, GPU_STATS), var = *trial_var(&want);
    assert_float_equal(stats[0], want.stats[0], 1e-4f);
    assert_float_equal(stats[trial_var(&want) - want.stats], var, 1e-4f * var);
    trial_fini(&want);
    gpu_trial_fini(&t);
}

static int is_as_put(const gpu_trial *t, int which)
{
    const gpu_tensor *tensor = &t->tensor[which];
    const ptrdiff_t at = (const unsigned char *)gpu_trial_bits(t, which) - tensor->now;
    return memcmp(tensor->image + at, tensor->now + at, tensor->bytes) == 0;
}

/* One channel overflows: all running statistics stay as they are, and so does their count. */
static void a_batch_that_is_not_finite_moves_no_statistics(void **state)
{
    (void)state;
    const float bad[] = {INFINITY, -INFINITY, NAN, 0.0f};
    for (uint32_t dtype = EN_F32; dtype <= EN_F16; dtype++)
        for (int i = 0; i < 4; i++) {
            en_op op = batchnorm_op((en_extent){2, 3, 3, 20}, EN_OP_FUSE_RELU);
            op.dtype = dtype;
            gpu_trial t;
            float y[360];
            gpu_trial_init(&t, &plain, &ref, &op, 0, 0.0f);
            t.want.x[9 * 20 + 7] = bad[i];
            gpu_trial_set(&t, GPU_X, t.want.x);
            gpu_trial_run(&t, y);
            assert_int_equal(is_as_put(&t, GPU_STATS), !isfinite(bad[i]));
            for (int k = 0; k < 360; k++)
                if (isnan(y[k]) != (!isfinite(bad[i]) && k % 20 == 7))
                    fail_msg("%s: output %d is %g", gpu_trial_name(&t), k, (double)y[k]);
            gpu_trial_fini(&t);
        }
}

static void expect(gpu_trial *t, int what, const char *name, int which, const float *want)
{
    gpu_trial_look(t, which);
    compare_tensor(t, what, name, which, want, t->want.nx);
}

/* Where the contract allows it; and training needs no running statistics. */
static void results_may_lie_on_inputs(void **state)
{
    (void)state;
    const en_extent x = {3, 5, 7, 12};
    en_op ops[] = {plain_op(EN_OP_ADD, x), plain_op(EN_OP_ADD, x), batchnorm_op(x, EN_OP_FUSE_RELU),
                   batchnorm_op(x, EN_OP_FORWARD_ONLY)};
    ops[1].flags = EN_OP_FUSE_RELU;
    for (uint32_t dtype = EN_F32; dtype <= EN_F16; dtype++)
        for (int i = 0; i < 4; i++) {
            en_op op = ops[i];
            op.dtype = dtype;
            const int is_add = op.kind == EN_OP_ADD, is_eval = (op.flags & EN_OP_FORWARD_ONLY) != 0;
            gpu_trial t;
            gpu_trial_init(&t, &plain, &ref, &op, 0, 0.0f);
            const int onto = is_add || is_eval ? i == 0 ? GPU_X2 : GPU_X : GPU_Y;
            en_args args = gpu_trial_args(&t);
            void *const y[] = {
                [GPU_X] = (void *)(uintptr_t)args.x, [GPU_X2] = (void *)(uintptr_t)args.x2, [GPU_Y] = args.y};
            args.y = y[onto];
            if (!is_eval) args.stats = NULL;
            GPU_OK(plain.ops->forward(t.plan, &args));
            expect(&t, Y, "y", onto, t.want.y);
            gpu_trial_look(&t, GPU_STATS);
            assert_true(is_as_put(&t, GPU_STATS));
            if (!is_eval) {
                args.y = y[GPU_Y];
                args.dx = args.dy;
                gpu_trial_set(&t, GPU_Y, t.want.y);
                if (!is_add) GPU_OK(plain.ops->backward_weights(t.plan, &args));
                GPU_OK(plain.ops->backward_data(t.plan, &args));
                expect(&t, DX, "dx", GPU_DY, t.want.dx);
            }
            gpu_trial_fini(&t);
        }
}

/* A diverged model must show: relu and pooling pass on what is not a number, as PyTorch does. */
static void not_a_number_passes(void **state)
{
    (void)state;
    const en_op ops[] = {plain_op(EN_OP_RELU, (en_extent){1, 2, 2, 24}),
                         pool_op(EN_OP_RELU_MAXPOOL, (en_extent){1, 2, 2, 24}, 2, 2, 0),
                         pool_op(EN_OP_MAXPOOL, (en_extent){1, 2, 2, 24}, 2, 2, 0)};
    for (uint32_t dtype = EN_F32; dtype <= EN_F16; dtype++)
        for (int i = 0; i < 3; i++)
            for (int at = 0; at < 96; at += 5) {
                en_op op = ops[i];
                op.dtype = dtype;
                gpu_trial t;
                gpu_trial_init(&t, &plain, &ref, &op, 0, 0.0f);
                float values[96], y[96];
                memcpy(values, t.want.x, sizeof values);
                values[at] = NAN;
                gpu_trial_set(&t, GPU_X, values);
                const int where = op.kind == EN_OP_RELU ? at : at % 24;
                t.want.y[where] = NAN;
                gpu_trial_run(&t, y);
                if (!isnan(y[where])) fail_msg("%s: input %d is lost", gpu_trial_name(&t), at);
                float *dx = gpu_trial_floats(&t, GPU_DX);
                if (dx[at] != t.want.dy[where])
                    fail_msg("%s: input %d gets no gradient", gpu_trial_name(&t), at);
                eni_free(dx);
                gpu_trial_fini(&t);
            }
}

/* Nor does the relu of a layer hide it: one input that is not a number makes the outputs that see it such. */
static void not_a_number_passes_a_fused_relu(void **state)
{
    (void)state;
    const uint32_t relu = EN_OP_FUSE_RELU;
    const en_op ops[] = {linear_op(3, 8, 4, EN_OP_BIAS | relu), linear_op(3, 8, 4, relu),
                         conv_op((en_extent){3, 3, 3, 4}, 4, 3, 1, 0, EN_OP_BIAS | relu),
                         conv_op((en_extent){3, 3, 3, 4}, 4, 3, 1, 0, relu)};
    for (uint32_t dtype = EN_F32; dtype <= EN_F16; dtype++)
        for (int i = 0; i < 4; i++) {
            en_op op = ops[i];
            op.dtype = dtype;
            gpu_trial t;
            gpu_trial_init(&t, &plain, &ref, &op, 0, 0.0f);
            float y[12];
            assert_int_equal(t.want.ny, 12);   /* 3 samples, 4 outputs each */
            t.want.x[t.want.nx / 3 + 5] = NAN; /* of the second sample */
            gpu_trial_set(&t, GPU_X, t.want.x);
            gpu_trial_run(&t, y);
            for (int k = 0; k < 12; k++)
                if (!isnan(y[k]) != (k / 4 != 1))
                    fail_msg("%s: output %d is %g", gpu_trial_name(&t), k, (double)y[k]);
            gpu_trial_fini(&t);
        }
}

static void what_overflows_is_not_finite(void **state)
{
    (void)state;
    const en_op ops[] = {linear_op(2, 4, 3, EN_OP_BIAS),
                         conv_op((en_extent){1, 3, 3, 2}, 2, 3, 1, 0, EN_OP_BIAS)};
    for (int i = 0; i < 2; i++) {
        en_op op = ops[i];
        op.dtype = EN_F16;
        gpu_trial t;
        gpu_trial_init(&t, &plain, &ref, &op, 0, 1024.0f);
        for (int64_t k = 0; k < t.want.ny; k++)
            t.want.dy[k] = INFINITY;
        gpu_trial_set(&t, GPU_DY, t.want.dy);
        gpu_trial_run(&t, NULL);
        float *dw = gpu_trial_floats(&t, GPU_DW), *db = gpu_trial_floats(&t, GPU_DB);
        for (int64_t k = 0; k < t.want.nw; k++)
            assert_false(isfinite(dw[k]));
        for (int64_t k = 0; k < t.want.nb; k++)
            assert_false(isfinite(db[k]));
        eni_free(dw);
        eni_free(db);
        gpu_trial_fini(&t);
    }
}

static void agrees_if_small(const en_op *op)
{
    if (en_extent_count(op->x) <= 20000) try_op(&plain, op, 0, 0.0f);
}

static int is_refused(const char *word)
{
    const char *at_once = getenv("FAKE_CUBLAS_REFUSE"), *when_run = getenv("FAKE_CUBLAS_REFUSE_RUN");
    return (at_once && strstr(at_once, word)) || (when_run && strstr(when_run, word));
}

/* Features that the environment took from the libraries (tests/fake_gpu) are not used, and nothing else
 * changes. */
static void what_libraries_lack_is_done_otherwise(void **state)
{
    (void)state;
    if (!getenv("FAKE_CUDNN_REFUSE") || !is_refused("bgradb")) skip();
    if (!strstr(plain.ops->describe(plain.ctx), "Simulated")) skip(); /* a real one does not listen */
    const char *product = is_refused("default") ? "kernel" : "cublaslt";
    const en_op conv = conv_op((en_extent){2, 4, 4, 4}, 4, 3, 1, 1, EN_OP_BIAS | EN_OP_FUSE_RELU);
    const en_op linear = linear_op(5, 4, 3, EN_OP_BIAS);
    gpu_trial t;
    gpu_trial_init(&t, &plain, &ref, &conv, 0, 0.0f);
    const char *names[] = {t.info.forward, t.info.backward_weights, t.info.backward_data};
    for (int i = 0; i < 3; i++) {
        assert_memory_equal(names[i], "unfold:", 7);
        assert_string_equal(names[i] + 7, product);
    }
    gpu_trial_fini(&t);
    gpu_trial_init(&t, &plain, &ref, &linear, 0, 0.0f);
    assert_string_equal(t.info.forward, product);
    assert_string_equal(t.info.backward_weights, product);
    assert_string_equal(t.info.backward_data, product);
    gpu_trial_fini(&t);
    for_all(agrees_if_small, 0);
}

static void nonsense_is_refused(void **state)
{
    (void)state;
    en_op ops[] = {plain_op(0, (en_extent){1, 1, 1, 1}),
                   plain_op(EN_OP_KINDS, (en_extent){1, 1, 1, 1}),
                   plain_op(EN_OP_RELU, (en_extent){1, 0, 1, 1}),
                   plain_op(EN_OP_RELU, (en_extent){65536, 1024, 32, 1}), /* 2^31 elements */
                   conv_op((en_extent){1, 4, 4, 1}, 2, 5, 1, 0, 0),
                   pool_op(EN_OP_MAXPOOL, (en_extent){1, 40, 40, 1}, 16, 1, 0),
                   linear_op(1, 2, 3, 1u << 20),
                   plain_op(EN_OP_CAST, (en_extent){1, 1, 1, 4}), /* without EN_OP_NO_DX */
                   plain_op(EN_OP_NLL, (en_extent){2, 1, 1, 3}),
                   plain_op(EN_OP_RELU, (en_extent){1, 1, 1, 1}),
                   plain_op(EN_OP_RELU, (en_extent){1, 1, 1, 1})};
    const int count = sizeof ops / sizeof *ops;
    ops[count - 3].dtype = EN_BF16;
    ops[count - 2].dtype = EN_I32;
    ops[count - 1].size = 8;
    for (int i = 0; i < count; i++) {
        en_plan *made = NULL;
        assert_int_not_equal(plain.ops->plan(plain.ctx, &ops[i], &made), EN_OK);
        assert_null(made);
    }
}

static void calls_that_an_op_lacks_are_refused(void **state)
{
    (void)state;
    const en_op ops[] = {linear_op(2, 3, 4, EN_OP_NO_DX), linear_op(2, 3, 4, EN_OP_FORWARD_ONLY),
                         plain_op(EN_OP_RELU, (en_extent){1, 1, 1, 4})};
    const int has_dw[] = {1, 0, 0}, has_dx[] = {0, 0, 1};
    for (int i = 0; i < 3; i++) {
        gpu_trial t;
        gpu_trial_init(&t, &plain, &ref, &ops[i], 0, 0.0f);
        const en_args none = {.size = sizeof none};
        if (!has_dw[i]) assert_int_equal(plain.ops->backward_weights(t.plan, &none), EN_EUNSUPPORTED);
        if (!has_dx[i]) assert_int_equal(plain.ops->backward_data(t.plan, &none), EN_EUNSUPPORTED);
        assert_int_equal(t.info.backward_weights[0] != '\0', has_dw[i]);
        assert_int_equal(t.info.backward_data[0] != '\0', has_dx[i]);
        gpu_trial_fini(&t);
    }
}

int main(int argc, char **argv)
{
    int ngpus = 0;
    const int code = gpu_rig_find(&plain, argc, argv, &ngpus);
    if (code != 0) return code;
    tf32 = exact = plain;
    gpu_rig_open(&plain, 0, 0);
    gpu_rig_open(&tf32, 0, EN_OPEN_TF32);
    gpu_rig_open(&exact, 0, EN_OPEN_DETERMINISTIC);
    if (eni_device_open("ref", "", 1, &ref) != EN_OK) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_agrees_with_ref),
        cmocka_unit_test(weights_on_bounds_of_four_bytes),
        cmocka_unit_test(weights_on_bounds_of_sixteen_bytes),
        cmocka_unit_test(the_loss_scale_goes_in_and_comes_out),
        cmocka_unit_test(tf32_is_as_close_as_ten_bits),
        cmocka_unit_test(sums_are_of_32_bits),
        cmocka_unit_test(two_runs_give_the_same_bits),
        cmocka_unit_test(a_recording_gives_the_same_bits),
        cmocka_unit_test(forward_only_saves_nothing),
        cmocka_unit_test(variances_survive_large_means),
        cmocka_unit_test(a_batch_that_is_not_finite_moves_no_statistics),
        cmocka_unit_test(results_may_lie_on_inputs),
        cmocka_unit_test(not_a_number_passes),
        cmocka_unit_test(not_a_number_passes_a_fused_relu),
        cmocka_unit_test(what_overflows_is_not_finite),
        cmocka_unit_test(what_libraries_lack_is_done_otherwise),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(calls_that_an_op_lacks_are_refused),
    };
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    eni_device_close(&ref);
    gpu_rig_close(&exact);
    gpu_rig_close(&tf32);
    gpu_rig_close(&plain);
    return failed;
}
