/* test_devices.c - every operation on the cpu device against ref, over shapes that are odd in every way. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/ops/trial.h"

/* Promise: Our own loops on the cpu device give the same bits with one thread and with four.
 * Promise: In bf16 a CPU rounds factors to nearest, ties to even; NaN stays NaN, and sums are float32.
 * Promise: A batch that is not finite leaves running statistics unchanged, and evaluation writes none. */

static eni_device ref, cpu, cpu2, cpu4; /* with one, two and four threads */

/* TSan cannot see the barriers of libgomp and reports every hand-over of an OpenMP loop as a race. */
#if defined(__SANITIZE_THREAD__)
enum { TWO = 1, FOUR = 1 };
#else
enum { TWO = 2, FOUR = 4 };
#endif

/* Sums of products are rounded in another order by oneDNN, and those of batch normalisation are kept in float for a
 * while; everything else is the same arithmetic. */
static double tolerance(const en_op *op)
{
    return op->kind == EN_OP_CONV2D || op->kind == EN_OP_LINEAR || op->kind == EN_OP_BATCHNORM ? 5e-6 : 0.0;
}

/* The running statistics; the padding between them is NaN. */
static void compare_stats(const trial *got, const trial *want, double gap)
{
    if (got->nstats == 0) return;
    assert_close("running mean", got, got->stats, want->stats, got->nb, gap);
    assert_close("running variance", got, trial_var(got), trial_var(want), got->nb, gap);
    assert_int_equal(*trial_batches(got), 42);
    assert_int_equal(*trial_batches(want), 42);
}

static void compare(const en_op *op, const eni_device *device, double gap)
{
    trial want, got;
    trial_init(&want, &ref, op, 7);
    trial_init(&got, device, op, 7);
    trial_run(&want);
    trial_run(&got);
    assert_close("y", &got, got.y, want.y, got.ny, gap);
    if (got.nw > 0) assert_close("dw", &got, got.dw, want.dw, got.nw, gap);
    if (op->flags & EN_OP_BIAS) assert_close("db", &got, got.db, want.db, got.nb, gap);
    if (!(op->flags & EN_OP_NO_DX)) assert_close("dx", &got, got.dx, want.dx, got.nx, gap);
    compare_stats(&got, &want, gap);
    trial_fini(&want);
    trial_fini(&got);
}

static void every_op_agrees_with_ref(void **state)
{
    (void)state;
    int count;
    const en_op *ops = trial_ops(&count);
    for (int i = 0; i < count; i++) {
        compare(&ops[i], &cpu, tolerance(&ops[i]));
        compare(&ops[i], &cpu2, tolerance(&ops[i]));
    }
}

static void expect_no_reference_loops(const eni_device *device)
{
    int count;
    const en_op *ops = trial_ops(&count);
    for (int i = 0; i < count; i++) {
        trial t;
        trial_init(&t, device, &ops[i], 1);
        const char *names[] = {t.info.forward, t.info.backward_weights, t.info.backward_data};
        assert_string_not_equal(names[0], "");
        if (t.nw > 0) assert_string_not_equal(names[1], "");
        for (int k = 0; k < 3; k++)
            if (strncmp(names[k], "ref", 3) == 0) fail_msg("%s: oneDNN picked %s", trial_name(&t), names[k]);
        trial_fini(&t);
    }
}

static void onednn_never_picks_its_reference_loops(void **state)
{
    (void)state;
    expect_no_reference_loops(&cpu);
}

/* A factor of 1 leaves the other one, rounded. */
static void expect_rounded(const eni_device *device, uint32_t given, uint32_t rounded)
{
    const en_op op = linear_op(3, 1, 1, 0);
    trial t;
    trial_init(&t, device, &op, 1);
    for (int i = 0; i < 3; i++)
        memcpy(&t.x[i], &given, sizeof given);
    t.w[0] = 1.0f;
    trial_run(&t);
    for (int i = 0; i < 3; i++) {
        uint32_t got;
        memcpy(&got, &t.y[i], sizeof got);
        const bool is_nan = (rounded & 0x7fffffff) > 0x7f800000;
        if (is_nan ? !isnan(t.y[i]) : got != rounded)
            fail_msg("%08x becomes %08x, not %08x", given, got, rounded);
    }
    trial_fini(&t);
}

/* sweep --bf16 holds it to the bounds of float32, on factors that need no rounding. */
static void in_bf16_factors_are_rounded(void **state)
{
    static const uint32_t pairs[][2] = {
        {0x3f800000, 0x3f800000},
        {0x3f808000, 0x3f800000}, /* half way: to the even one, below .. */
        {0x3f818000, 0x3f820000},
        {0x3f808001, 0x3f810000}, /* .. or above; just more than half way */
        {0xbf807fff, 0xbf800000},
        {0x7f7fffff, 0x7f800000}, /* the largest float is nearer to 2^128: infinite */
        {0xff800000, 0xff800000},
        {0x7f800001, 0x7fc00000}}; /* a NaN by its last bit alone */
    (void)state;
    eni_device device;
    int count;
    const en_op *ops = trial_ops(&count);
    if (!open_cpu_bf16(&device, TWO)) skip();
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        expect_rounded(&device, pairs[i][0], pairs[i][1]);
    expect_no_reference_loops(&device);
    for (int i = 0; i < count; i++) {
        en_op op = ops[i];
        const bool is_product = op.kind == EN_OP_CONV2D || op.kind == EN_OP_LINEAR;
        if (is_product) op.flags &= ~(uint32_t)EN_OP_FUSE_RELU; /* near 0 it may be open on one side alone */
        compare(&op, &device, is_product ? 8e-3 : tolerance(&op)); /* two factors of 2^-9 */
    }
    eni_device_close(&device);
}

static void forward_only_gives_the_same_output(void **state)
{
    (void)state;
    const eni_device *devices[] = {&ref, &cpu};
    int count;
    const en_op *ops = trial_ops(&count);
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < count; i++) {
            en_op eval = ops[i];
            if (eval.kind == EN_OP_BATCHNORM) continue; /* by other statistics: see below */
            eval.flags |= EN_OP_FORWARD_ONLY;
            trial train, test;
            trial_init(&train, devices[d], &ops[i], 3);
            trial_init(&test, devices[d], &eval, 3);
            assert_int_equal(test.info.saved_bytes, 0);
            trial_run(&train);
            trial_run(&test);
            assert_memory_equal(train.y, test.y, (size_t)train.ny * sizeof(float));
            trial_fini(&train);
            trial_fini(&test);
        }
}

static void two_runs_give_the_same_bits(void **state)
{
    (void)state;
    const eni_device *devices[] = {&ref, &cpu, &cpu2};
    int count;
    const en_op *ops = trial_ops(&count);
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < count; i++) {
            trial a, b;
            trial_init(&a, devices[d], &ops[i], 5);
            trial_init(&b, devices[d], &ops[i], 5);
            trial_run(&a);
            trial_run(&b);
            trial_run(&b); /* a second step on the same plan: nothing may linger */
            assert_memory_equal(a.y, b.y, (size_t)a.ny * sizeof(float));
            assert_memory_equal(a.dx, b.dx, (size_t)a.nx * sizeof(float));
            assert_memory_equal(a.dw, b.dw, (size_t)a.nw * sizeof(float));
            assert_memory_equal(a.db, b.db, (size_t)a.nb * sizeof(float));
            trial_fini(&a);
            trial_fini(&b);
        }
}

static bool is_onednn(const en_op *op)
{
    trial t;
    trial_init(&t, &cpu, op, 1);
    const bool is_winograd = strncmp(t.info.forward, "winograd:", 9) == 0;
    trial_fini(&t);
    return (op->kind == EN_OP_CONV2D || op->kind == EN_OP_LINEAR) && !is_winograd;
}

/* Holds for our own loops, whatever they sum; oneDNN's bits depend on the threads. */
static void four_threads_give_the_bits_of_one(void **state)
{
    (void)state;
    int count;
    const en_op *ops = trial_ops(&count);
    for (int i = 0; i < count; i++) {
        if (is_onednn(&ops[i])) continue;
        trial a, b;
        trial_init(&a, &cpu, &ops[i], 5);
        trial_init(&b, &cpu4, &ops[i], 5);
        trial_run(&a);
        trial_run(&b);
        assert_memory_equal(a.y, b.y, (size_t)a.ny * sizeof(float));
        assert_memory_equal(a.dy, b.dy, (size_t)a.ny * sizeof(float));
        assert_memory_equal(a.dx, b.dx, (size_t)a.nx * sizeof(float));
        assert_memory_equal(a.dw, b.dw, (size_t)a.nw * sizeof(float));
        assert_memory_equal(a.db, b.db, (size_t)a.nb * sizeof(float));
        assert_memory_equal(a.stats, b.stats, (size_t)a.nstats * sizeof(float));
        trial_fini(&a);
        trial_fini(&b);
    }
}

/* Where they are kept, the weights themselves are not read again. */
static void kept_weights_give_the_same_bits(void **state)
{
    (void)state;
    const eni_device *devices[] = {&ref, &cpu, &cpu2};
    int count, nkept = 0;
    const en_op *ops = trial_ops(&count);
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < count; i++) {
            trial a, b;
            trial_init(&a, devices[d], &ops[i], 5);
            trial_init(&b, devices[d], &ops[i], 5);
            trial_run(&a);
            if (b.info.kept_bytes > 0) nkept++;
            b.kept = trial_guarded(&b, "kept", b.info.kept_bytes);
            trial_run(&b);
            b.is_same_w = 1;
            for (int64_t k = 0; b.info.kept_bytes > 0 && k < b.nw; k++)
                b.w[k] = NAN;
            trial_run(&b);
            assert_memory_equal(a.y, b.y, (size_t)a.ny * sizeof(float));
            assert_memory_equal(a.dx, b.dx, (size_t)a.nx * sizeof(float));
            assert_memory_equal(a.dw, b.dw, (size_t)a.nw * sizeof(float));
            trial_fini(&a);
            trial_fini(&b);
        }
#ifdef __x86_64__
    assert_true(nkept > 0);
#endif
}

/* Far from 0 the variance is the difference of numbers that are alike, if it is taken so. */
static void a_large_mean_leaves_the_variance(void **state)
{
    (void)state;
    const eni_device *devices[] = {&cpu, &cpu4};
    const en_op op = batchnorm_op((en_extent){3, 33, 32, 9}, 0);
    for (int d = 0; d < 2; d++) {
        trial want, got;
        trial_init(&want, &ref, &op, 3);
        trial_init(&got, devices[d], &op, 3);
        for (int64_t i = 0; i < want.nx; i++)
            got.x[i] = want.x[i] += (float)(1000 * (i % 9));
        for (int k = 0; k < 9; k++)
            trial_var(&got)[k] = trial_var(&want)[k] = 0.0f;
        trial_run(&want);
        trial_run(&got);
        for (int k = 0; k < 9; k++) {
            const double gap = (double)trial_var(&got)[k] / (double)trial_var(&want)[k] - 1;
            if (!(fabs(gap) < 1e-6)) fail_msg("variance of channel %d is off by %g", k, gap);
        }
        assert_close("y", &got, got.y, want.y, got.ny, 1e-3); /* half a unit of 8,000 is 1e-3 deviations */
        trial_fini(&want);
        trial_fini(&got);
    }
}

/* The statistics of training are those of the batch; of evaluation the running ones, which nothing changes. */
static void evaluation_reads_the_statistics_alone(void **state)
{
    (void)state;
    const eni_device *devices[] = {&ref, &cpu, &cpu2};
    trial want, t;
    for (int d = 0; d < 3; d++)
        for (uint32_t fused = 0; fused < 4; fused++) {
            const en_op op = batchnorm_op((en_extent){3, 33, 32, 19}, EN_OP_FORWARD_ONLY |
                                                                          (fused & 1 ? EN_OP_FUSE_RELU : 0) |
                                                                          (fused & 2 ? EN_OP_FUSE_ADD : 0));
            trial_init(&want, &ref, &op, 3);
            trial_init(&t, devices[d], &op, 3);
            assert_int_equal(t.info.saved_bytes, 0);
            trial_run(&want);
            trial_run(&t);
            assert_close("y", &t, t.y, want.y, t.ny, tolerance(&op));
            trial_fini(&want);
            trial_init(&want, &ref, &op, 3);
            assert_memory_equal(t.stats, want.stats, (size_t)t.nstats * sizeof(float));
            en_args args = trial_args(&want);
            args.y = want.x; /* in place */
            assert_int_equal(devices[d]->ops->forward(t.plan, &args), EN_OK);
            assert_memory_equal(want.x, t.y, (size_t)t.ny * sizeof(float));
            trial_fini(&want);
            trial_fini(&t);
        }
}

/* One overflow would poison the running statistics permanently. */
static void statistics_stay_where_a_batch_is_not_finite(void **state)
{
    (void)state;
    const eni_device *devices[] = {&ref, &cpu, &cpu2};
    const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f}; /* the last: its square is too large */
    const en_op op = batchnorm_op((en_extent){2, 40, 30, 5}, 0);
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < 4; i++) {
            trial before, t;
            trial_init(&before, devices[d], &op, 3);
            trial_init(&t, devices[d], &op, 3);
            t.x[op.x.c * 1100 + 3] = bad[i];
            trial_run(&t);
            assert_memory_equal(t.stats, before.stats, (size_t)t.nstats * sizeof(float));
            for (int64_t k = 0; k < t.ny; k++) {
                if (k % op.x.c != 3) assert_true(isfinite(t.y[k]) && isfinite(t.dx[k]));
                if (k % op.x.c == 3 && i < 3) assert_true(isnan(t.y[k]));
            }
            trial_fini(&before);
            trial_fini(&t);
        }
}

static void statistics_may_be_left_out(void **state)
{
    (void)state;
    const eni_device *devices[] = {&ref, &cpu};
    const en_op op = batchnorm_op((en_extent){2, 4, 3, 5}, 0);
    for (int d = 0; d < 2; d++) {
        trial want, t;
        trial_init(&want, devices[d], &op, 3);
        trial_init(&t, devices[d], &op, 3);
        trial_run(&want);
        en_args args = trial_args(&t);
        args.stats = NULL;
        assert_int_equal(t.device->ops->forward(t.plan, &args), EN_OK);
        assert_memory_equal(t.y, want.y, (size_t)t.ny * sizeof(float));
        trial_fini(&want);
        trial_fini(&t);
    }
}

/* A diverged model must show: relu and pooling pass what is not a number on, as PyTorch does. */
static void not_a_number_passes(void **state)
{
    (void)state;
    const eni_device *devices[] = {&ref, &cpu};
    const en_op ops[] = {plain_op(EN_OP_RELU, (en_extent){1, 2, 2, 24}),
                         pool_op(EN_OP_RELU_MAXPOOL, (en_extent){1, 2, 2, 24}, 2, 2, 0),
                         pool_op(EN_OP_MAXPOOL, (en_extent){1, 2, 2, 24}, 2, 2, 0),
                         linear_op(1, 96, 24, EN_OP_FUSE_RELU)};
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 4; i++)
            for (int at = 0; at < 96; at++) {
                trial t;
                trial_init(&t, devices[d], &ops[i], 5);
                t.x[at] = NAN;
                trial_run(&t);
                const int where = ops[i].kind == EN_OP_RELU ? at : at % 24;
                if (!isnan(t.y[where])) fail_msg("%s: input %d is lost", trial_name(&t), at);
                if (ops[i].kind != EN_OP_LINEAR && t.dx[at] != t.dy[where])
                    fail_msg("%s: input %d gets no gradient", trial_name(&t), at);
                trial_fini(&t);
            }
}

/* Every input of 3 x 3 windows in turn, among equal values: the same choice as ref's, and the same gradient. */
static void overlapping_windows_choose_as_ref_does(void **state)
{
    (void)state;
    const en_op op = pool_op(EN_OP_MAXPOOL, (en_extent){1, 5, 6, 9}, 3, 2, 1);
    for (int at = 0; at < 5 * 6 * 9; at++) {
        trial want, got;
        trial_init(&want, &ref, &op, 5);
        trial_init(&got, &cpu, &op, 5);
        for (int64_t i = 0; i < want.nx; i++)
            got.x[i] = want.x[i] = i == at ? NAN : i % 2 == 0 ? -INFINITY : truncf(2 * want.x[i]);
        trial_run(&want);
        trial_run(&got);
        assert_memory_equal(got.saved, want.saved, (size_t)want.info.saved_bytes);
        assert_memory_equal(got.y, want.y, (size_t)want.ny * sizeof(float));
        assert_memory_equal(got.dx, want.dx, (size_t)want.nx * sizeof(float));
        trial_fini(&want);
        trial_fini(&got);
    }
}

static void nonsense_is_refused(void **state)
{
    (void)state;
    const eni_device *devices[] = {&ref, &cpu};
    en_op ops[] = {plain_op(0, (en_extent){1, 1, 1, 1}),
                   plain_op(EN_OP_KINDS, (en_extent){1, 1, 1, 1}),
                   plain_op(EN_OP_RELU, (en_extent){1, 0, 1, 1}),
                   plain_op(EN_OP_RELU, (en_extent){INT64_MAX, 2, 1, 1}),
                   linear_op(4, 3, 0, 0),
                   conv_op((en_extent){1, 4, 4, 1}, 2, 5, 1, 0, 0),
                   conv_op((en_extent){1, 4, 4, 1}, 2, 3, 0, 0, 0),
                   conv_op((en_extent){1, 4, 4, 1}, 2, 3, 1, -1, 0),
                   pool_op(EN_OP_MAXPOOL, (en_extent){1, 40, 40, 1}, 16, 1, 0),
                   pool_op(EN_OP_MAXPOOL, (en_extent){1, 4, 4, 1}, 2, 2, 2),
                   plain_op(EN_OP_NLL, (en_extent){2, 2, 1, 3}),
                   linear_op(1, INT64_MAX / 64, 1000, 0),
                   linear_op(1, 2, 3, 1u << 20),
                   conv_op((en_extent){1, 4, 4, 1}, 2, 3, 1, INT64_MAX / 2, 0),
                   conv_op((en_extent){1, 4, 4, 1}, INT64_MAX / 64, 3, 1, 0, 0),
                   batchnorm_op((en_extent){1, 1, 1, 4}, 0), /* one value a channel has no variance */
                   batchnorm_op((en_extent){2, 2, 2, 4}, 1u << 20),
                   pool_op(EN_OP_AVGPOOL, (en_extent){1, 4, 4, 1}, 2, 2, 2),
                   batchnorm_op((en_extent){2, 2, 2, 4}, 0),
                   batchnorm_op((en_extent){2, 2, 2, 4}, 0),
                   batchnorm_op((en_extent){2, 2, 2, 4}, 0),
                   plain_op(EN_OP_ADD, (en_extent){2, 2, 2, 4}),
                   plain_op(EN_OP_RELU, (en_extent){1, 1, 1, 1}),
                   plain_op(EN_OP_RELU, (en_extent){1, 1, 1, 1}),
                   plain_op(EN_OP_RELU, (en_extent){1, 1, 1, 1})};
    const int count = sizeof ops / sizeof *ops;
    ops[count - 7].flags = 0;
    ops[count - 6].channels = 3;
    ops[count - 5].eps = NAN;
    ops[count - 4].flags = EN_OP_FUSE_ADD;
    ops[count - 3].flags = EN_OP_FUSE_RELU;
    ops[count - 2].dtype = EN_BF16;
    ops[count - 1].size = 8;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < count; i++) {
            en_plan *plan = NULL;
            assert_int_not_equal(devices[d]->ops->plan(devices[d]->ctx, &ops[i], &plan), EN_OK);
            assert_null(plan);
        }
}

static void calls_that_an_op_lacks_are_refused(void **state)
{
    (void)state;
    const eni_device *devices[] = {&ref, &cpu};
    const en_op ops[] = {linear_op(2, 3, 4, EN_OP_NO_DX), linear_op(2, 3, 4, EN_OP_FORWARD_ONLY),
                         plain_op(EN_OP_RELU, (en_extent){1, 1, 1, 4})};
    const int has_dw[] = {1, 0, 0}, has_dx[] = {0, 0, 1};
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 3; i++) {
            trial t;
            trial_init(&t, devices[d], &ops[i], 1);
            const en_args none = {.size = sizeof none};
            const en_device *table = devices[d]->ops;
            if (!has_dw[i]) assert_int_equal(table->backward_weights(t.plan, &none), EN_EUNSUPPORTED);
            if (!has_dx[i]) assert_int_equal(table->backward_data(t.plan, &none), EN_EUNSUPPORTED);
            assert_int_equal(t.info.backward_weights[0] != '\0', has_dw[i]);
            assert_int_equal(t.info.backward_data[0] != '\0', has_dx[i]);
            trial_fini(&t);
        }
}

static void a_label_out_of_range_is_refused(void **state)
{
    (void)state;
    const eni_device *devices[] = {&ref, &cpu};
    const uint32_t kinds[] = {EN_OP_NLL, EN_OP_CROSS_ENTROPY};
    const int32_t bad[] = {-1, 10, INT32_MAX, INT32_MIN};
    for (int d = 0; d < 2; d++)
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < 4; i++) {
                trial t;
                const en_op op = plain_op(kinds[k], (en_extent){4, 1, 1, 10});
                trial_init(&t, devices[d], &op, 1);
                ((int32_t *)t.target)[3] = bad[i];
                const en_args args = trial_args(&t);
                assert_int_equal(devices[d]->ops->forward(t.plan, &args), EN_EINVAL);
                trial_fini(&t);
            }
}

int main(void)
{
    assert_int_equal(eni_device_open("ref", "", 1, &ref), EN_OK);
    if (!open_cpu(&cpu, 1)) {
        print_message("skipped: this build has no cpu device (libdnnl-dev)\n");
        return 77;
    }
    if (!open_cpu(&cpu2, TWO) || !open_cpu(&cpu4, FOUR)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_agrees_with_ref),
        cmocka_unit_test(onednn_never_picks_its_reference_loops),
        cmocka_unit_test(in_bf16_factors_are_rounded),
        cmocka_unit_test(forward_only_gives_the_same_output),
        cmocka_unit_test(two_runs_give_the_same_bits),
        cmocka_unit_test(four_threads_give_the_bits_of_one),
        cmocka_unit_test(kept_weights_give_the_same_bits),
        cmocka_unit_test(a_large_mean_leaves_the_variance),
        cmocka_unit_test(evaluation_reads_the_statistics_alone),
        cmocka_unit_test(statistics_stay_where_a_batch_is_not_finite),
        cmocka_unit_test(statistics_may_be_left_out),
        cmocka_unit_test(not_a_number_passes),
        cmocka_unit_test(overlapping_windows_choose_as_ref_does),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(calls_that_an_op_lacks_are_refused),
        cmocka_unit_test(a_label_out_of_range_is_refused),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    eni_device_close(&cpu4);
    eni_device_close(&cpu2);
    eni_device_close(&cpu);
    eni_device_close(&ref);
    return failed;
}
