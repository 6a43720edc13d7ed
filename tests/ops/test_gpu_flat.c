/* test_gpu_flat.c - mean, step, lin and the look for what is not finite: the bits of ops/mean.c and
 * ops/optimizer.c, in every branch, at every alignment. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/memory.h"
#include "ops/mean.h"
#include "ops/optimizer.h"
#include "tests/ops/gpu_rig.h"

enum { MOST = 4101, WORLD = 5, STEPS = 2 };

static gpu_rig rig;

typedef struct trial {
    uint64_t count, offset; /* offset: elements by which every vector misses 256 bytes */
    uint64_t samples[WORLD];
    int world, in_place, has_mean, has_step, has_total;
    eni_hyper hyper;
    const char *optimizer; /* NULL: sgd */
} trial;

/* The host's vectors, and the GPU's copies. */
typedef struct vectors {
    float source[WORLD][MOST + 8], w[MOST + 8], m[MOST + 8], square[MOST + 8], mean[MOST + 8];
    float *gpu_source[WORLD], *gpu_w, *gpu_m, *gpu_square, *gpu_mean, *gpu_total;
    en_gpu_rates *gpu_rates;
    en_gpu_adam *gpu_adam;
} vectors;

static vectors v;

static void compare(const trial *t, const char *what, const float *want, const float *memory)
{
    static float got[MOST + 8];
    gpu_get(&rig, got, memory, MOST + 8);
    if (memcmp(got, want, sizeof got) == 0) return;
    uint64_t i = 0;
    while (memcmp(&got[i], &want[i], sizeof *got) == 0)
        i++;
    fail_msg(
        "%s[%llu] is %a and should be %a: %llu elements at +%llu, world %d (%d %d %d %d %d), momentum %g, "
        "decay %g, nesterov %d, total %d",
        what, (unsigned long long)i, (double)got[i], (double)want[i], (unsigned long long)t->count,
        (unsigned long long)t->offset, t->world, (int)t->samples[0], (int)t->samples[1], (int)t->samples[2],
        (int)t->samples[3], (int)t->samples[4], (double)t->hyper.momentum, (double)t->hyper.weight_decay,
        t->hyper.nesterov, t->has_total);
}

static uint64_t sum_of(const trial *t)
{
    uint64_t sum = 0;
    for (int r = 0; r < t->world; r++)
        sum += eni_mean_weight(t->samples[r], t->world);
    return sum;
}

static const eni_optimizer *optimizer_of(const trial *t)
{
    return eni_optimizer_find(t->optimizer == NULL ? "sgd" : t->optimizer);
}

static void step_on_host(const trial *t)
{
    static float mean[MOST];
    const float *src[WORLD];
    float *slots[ENI_MAX_SLOTS] = {v.m + t->offset, v.square + t->offset};
    for (int r = 0; r < t->world; r++)
        src[r] = v.source[r] + t->offset;
    eni_mean_ranks(mean, src, t->samples, t->world, ENI_SUM_RANK, t->count, 0, t->count);
    if (t->has_mean) memcpy((t->in_place ? v.source[0] : v.mean) + t->offset, mean, t->count * sizeof *mean);
    if (!t->has_step || (t->has_total && sum_of(t) == 0)) return;
    optimizer_of(t)->step(v.w + t->offset, slots, mean, t->count, &t->hyper);
}

static void step_on_gpu(const trial *t)
{
    const float total = (float)sum_of(t);
    en_gpu_rates rates = {.lr = t->hyper.lr,
                          .momentum = t->hyper.momentum,
                          .weight_decay = t->hyper.weight_decay,
                          .nesterov = t->hyper.nesterov,
                          .inv = t->has_total ? NAN : 1.0f / total};
    const float *source[WORLD];
    en_gpu_adam adam = {0};
    const bool is_adam = optimizer_of(t)->adam != NULL;
    if (is_adam) optimizer_of(t)->adam(&t->hyper, &adam);
    GPU_OK(rig.ops->copy(rig.ctx, v.gpu_adam, &adam, sizeof adam, EN_COPY_IN));
    for (int r = 0; r < t->world; r++) {
        rates.scale[r] = (float)eni_mean_weight(t->samples[r], t->world);
        source[r] = v.gpu_source[r] + t->offset;
    }
    GPU_OK(rig.ops->copy(rig.ctx, v.gpu_rates, &rates, sizeof rates, EN_COPY_IN));
    GPU_OK(rig.ops->copy(rig.ctx, v.gpu_total, &total, sizeof total, EN_COPY_IN));
    const en_gpu_step step = {
        .size = sizeof step,
        .optimizer = t->has_step ? optimizer_of(t)->name : NULL,
        .nsources = t->world,
        .source = source,
        .mean = !t->has_mean ? NULL : (t->in_place ? v.gpu_source[0] : v.gpu_mean) + t->offset,
        .w = t->has_step ? v.gpu_w + t->offset : NULL,
        .slot = {t->has_step && optimizer_of(t)->slots(&t->hyper) > 0 ? v.gpu_m + t->offset : NULL,
                 is_adam ? v.gpu_square + t->offset : NULL},
        .count = t->count,
        .rates = v.gpu_rates,
        .total = t->has_total ? v.gpu_total : NULL,
        .adam = is_adam ? v.gpu_adam : NULL};
    GPU_OK(rig.gpu->mean_step(rig.ctx, EN_STREAM_COMPUTE, &step));
    memset(source, 0, sizeof source); /* it was read during the call */
}

static void send(float *memory, const float *values)
{
    GPU_OK(rig.ops->copy(rig.ctx, memory, values, sizeof v.w, EN_COPY_IN));
}

static void run(const trial *t, uint64_t seed)
{
    gpu_fill(v.w, MOST + 8, seed);
    gpu_fill(v.m, MOST + 8, seed + 1);
    gpu_fill(v.mean, MOST + 8, seed + 2);
    gpu_fill(v.square, MOST + 8, seed + 3);
    for (uint64_t i = 0; i < MOST + 8; i++)
        v.square[i] *= v.square[i];
    send(v.gpu_w, v.w), send(v.gpu_m, v.m), send(v.gpu_mean, v.mean), send(v.gpu_square, v.square);
    for (int i = 0; i < STEPS; i++) {
        for (int r = 0; r < t->world; r++) {
            gpu_fill(v.source[r], MOST + 8, seed + 10 * (uint64_t)(i + 1) + (uint64_t)r);
            send(v.gpu_source[r], v.source[r]);
        }
        step_on_host(t);
        step_on_gpu(t);
    }
    compare(t, "w", v.w, v.gpu_w);
    compare(t, "momentum", v.m, v.gpu_m);
    compare(t, "mean of squares", v.square, v.gpu_square);
    compare(t, "mean", v.mean, v.gpu_mean);
    for (int r = 0; r < t->world; r++)
        compare(t, "source", v.source[r], v.gpu_source[r]);
}

static const eni_hyper hypers[] = {
    {.lr = 0.01f},
    {.lr = 0.013f, .weight_decay = 5e-4f},
    {.lr = 0.1f, .momentum = 0.9f},
    {.lr = 0.1f, .momentum = 0.9f, .weight_decay = 1e-3f},
    {.lr = 0.07f, .momentum = 0.5f, .nesterov = 1},
    {.lr = 0.07f, .momentum = 0.87f, .weight_decay = 1e-2f, .nesterov = 1},
    {.lr = 0.07f, .nesterov = 1}, /* Nesterov needs momentum */
};
enum { HYPERS = sizeof hypers / sizeof *hypers };

static void every_branch_of_the_optimizer(void **state)
{
    (void)state;
    for (int h = 0; h < HYPERS; h++)
        for (int world = 1; world <= WORLD; world++)
            for (int total = 0; total < 2; total++) {
                const trial t = {.count = 1037,
                                 .samples = {64, 64, 63, 1, 17},
                                 .world = world,
                                 .has_step = 1,
                                 .has_total = total,
                                 .hyper = hypers[h]};
                run(&t, (uint64_t)(h * 100 + world));
            }
}

static void every_branch_of_adam(void **state)
{
    (void)state;
    static const char *const names[] = {"adam", "adamw"};
    for (int k = 0; k < 16; k++) {
        const trial t = {.count = k < 8 ? 1037 : 64,
                         .offset = k & 1,
                         .samples = {64, k & 4 ? 0 : 3, 17},
                         .world = 3,
                         .has_step = 1,
                         .has_mean = k & 4,
                         .has_total = k >= 8,
                         .optimizer = names[k / 2 % 2],
                         .hyper = {.lr = 0.013f,
                                   .weight_decay = k & 4 ? 1e-2f : 0,
                                   .beta1 = 0.9,
                                   .beta2 = 0.999,
                                   .eps = 1e-8,
                                   .step = (uint64_t)k * k}};
        run(&t, (uint64_t)(7000 + k));
    }
}

static void every_count_and_alignment(void **state)
{
    (void)state;
    const uint64_t counts[] = {1, 2, 3, 4, 5, 7, 8, 255, 256, 1023, 1024, MOST};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (uint64_t offset = 0; offset < 5; offset++) {
            const trial t = {.count = counts[c],
                             .offset = offset,
                             .samples = {3, 5},
                             .world = 2,
                             .has_mean = c % 2 == 0,
                             .in_place = offset % 2 == 1,
                             .has_step = 1,
                             .hyper = hypers[(c + offset) % HYPERS]};
            run(&t, counts[c] * 8 + offset);
        }
}

static void the_mean_alone(void **state)
{
    (void)state;
    for (int world = 1; world <= WORLD; world++)
        for (int in_place = 0; in_place < 2; in_place++) {
            const trial t = {.count = 515,
                             .samples = {7, 9, 64, 1, 2},
                             .world = world,
                             .has_mean = 1,
                             .in_place = in_place};
            run(&t, (uint64_t)(world * 2 + in_place));
        }
}

static void a_rank_without_samples_is_left_out(void **state)
{
    (void)state;
    for (int who = 0; who < 1 << 3; who++)
        for (int total = 0; total < 2; total++) {
            const trial t = {.count = 130,
                             .samples = {who & 1 ? 0 : 64, who & 2 ? 0 : 3, who & 4 ? 0 : 64},
                             .world = 3,
                             .has_mean = 1,
                             .has_step = 1,
                             .has_total = total,
                             .hyper = hypers[3]};
            run(&t, (uint64_t)who);
        }
}

/* It may hold anything: -0, infinity. It takes no part. */
static void what_is_left_out_is_not_read(void **state)
{
    (void)state;
    const float bad[4] = {INFINITY, NAN, -0.0f, 1.0f}, good[4] = {-0.0f, -0.0f, 1.0f, 2.0f};
    const en_gpu_rates rates = {.inv = 0.5f, .scale = {0.0f, 2.0f}};
    float *a = gpu_put(&rig, bad, 4), *b = gpu_put(&rig, good, 4), got[4];
    GPU_OK(rig.ops->copy(rig.ctx, v.gpu_rates, &rates, sizeof rates, EN_COPY_IN));
    const float *source[] = {a, b};
    const en_gpu_step step = {
        .size = sizeof step, .nsources = 2, .source = source, .mean = a, .count = 4, .rates = v.gpu_rates};
    GPU_OK(rig.gpu->mean_step(rig.ctx, EN_STREAM_COMPUTE, &step));
    gpu_get(&rig, got, a, 4);
    assert_memory_equal(got, good, sizeof got);
    rig.ops->free(rig.ctx, a);
    rig.ops->free(rig.ctx, b);
}

static void lin_is_that_of_the_host(void **state)
{
    (void)state;
    static float x[MOST], y[MOST + 8], got[MOST + 8];
    const float b_of[] = {0.0f, 1.0f, -0.37f};
    const uint64_t counts[] = {1, 4, 7, 1000, MOST - 4};
    for (size_t c = 0; c < 5; c++)
        for (int b = 0; b < 3; b++)
            for (uint64_t offset = 0; offset < 2; offset++) {
                gpu_fill(x, MOST, c + 1);
                gpu_fill(y, MOST + 8, c + 2);
                if (b == 0) y[offset] = NAN;
                float *gx = gpu_put(&rig, x, MOST), *gy = gpu_put(&rig, y, MOST + 8);
                GPU_OK(rig.gpu->lin(rig.ctx, EN_STREAM_COMPUTE, gy + offset, 0.3f, gx, b_of[b], counts[c]));
                eni_lin(y + offset, 0.3f, x, b_of[b], counts[c]);
                gpu_get(&rig, got, gy, MOST + 8);
                assert_memory_equal(got, y, sizeof got);
                rig.ops->free(rig.ctx, gx);
                rig.ops->free(rig.ctx, gy);
            }
}

static uint32_t look(float *memory, uint64_t offset, uint64_t count, uint32_t before)
{
    void *flag;
    uint32_t after = 77;
    GPU_OK(rig.ops->alloc(rig.ctx, sizeof after, &flag));
    GPU_OK(rig.ops->copy(rig.ctx, flag, &before, sizeof before, EN_COPY_IN));
    GPU_OK(rig.gpu->check_finite(rig.ctx, EN_STREAM_COMPUTE, memory + offset, count, flag));
    GPU_OK(rig.ops->copy(rig.ctx, &after, flag, sizeof after, EN_COPY_OUT));
    GPU_OK(rig.ops->sync(rig.ctx));
    rig.ops->free(rig.ctx, flag);
    return after;
}

static void what_is_not_finite_is_found(void **state)
{
    (void)state;
    static float x[MOST];
    const uint64_t places[] = {0, 3, 4, 1000, 4095, 4096, MOST - 1};
    const float bad[] = {INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < 7; i++)
        for (uint64_t offset = 0; offset < 2; offset++) {
            gpu_fill(x, MOST, i);
            x[1] = 3.4e38f, x[2] = 1e-45f; /* large and small, but numbers */
            float *clean = gpu_put(&rig, x, MOST);
            x[places[i]] = bad[i % 3];
            float *dirty = gpu_put(&rig, x, MOST);
            const uint32_t is_inside = places[i] >= offset;
            assert_int_equal(look(clean, offset, MOST - offset, 0), 0);
            assert_int_equal(look(clean, offset, MOST - offset, 1), 1); /* what was found before stays */
            assert_int_equal(look(dirty, offset, MOST - offset, 0), is_inside);
            if (places[i] > 0) assert_int_equal(look(dirty, 0, places[i], 0), 0); /* and not beyond the end */
            rig.ops->free(rig.ctx, clean);
            rig.ops->free(rig.ctx, dirty);
        }
}

static void what_it_does_not_know_is_refused(void **state)
{
    (void)state;
    const float *source[] = {v.gpu_source[0]};
    en_gpu_step step = {.size = sizeof step,
                        .optimizer = "lion",
                        .nsources = 1,
                        .source = source,
                        .w = v.gpu_w,
                        .count = 4,
                        .rates = v.gpu_rates};
    assert_int_equal(rig.gpu->mean_step(rig.ctx, EN_STREAM_COMPUTE, &step), EN_EUNSUPPORTED);
    assert_non_null(strstr(gpu_last_error(), "\"lion\""));
    step.optimizer = "adam"; /* without its numbers */
    assert_int_equal(rig.gpu->mean_step(rig.ctx, EN_STREAM_COMPUTE, &step), EN_EUNSUPPORTED);
    step.optimizer = "sgd";
    step.nsources = EN_GPU_SOURCES + 1;
    assert_int_equal(rig.gpu->mean_step(rig.ctx, EN_STREAM_COMPUTE, &step), EN_EUNSUPPORTED);
    step.nsources = 0;
    assert_int_equal(rig.gpu->mean_step(rig.ctx, EN_STREAM_COMPUTE, &step), EN_EUNSUPPORTED);
    step.nsources = 1;
    step.count = 0; /* nothing to do is fine */
    GPU_OK(rig.gpu->mean_step(rig.ctx, EN_STREAM_COMPUTE, &step));
    GPU_OK(rig.ops->sync(rig.ctx));
}

static int open_all(void **state)
{
    (void)state;
    void *memory;
    gpu_rig_open(&rig, 0, 0);
    for (int r = 0; r < WORLD; r++)
        v.gpu_source[r] = gpu_put(&rig, v.source[r], MOST + 8);
    v.gpu_w = gpu_put(&rig, v.w, MOST + 8);
    v.gpu_m = gpu_put(&rig, v.m, MOST + 8);
    v.gpu_mean = gpu_put(&rig, v.mean, MOST + 8);
    v.gpu_total = gpu_put(&rig, v.w, 1);
    GPU_OK(rig.ops->alloc(rig.ctx, sizeof(en_gpu_rates), &memory));
    v.gpu_rates = memory;
    GPU_OK(rig.ops->alloc(rig.ctx, sizeof(en_gpu_adam), &memory));
    v.gpu_adam = memory;
    v.gpu_square = gpu_put(&rig, v.square, MOST + 8);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    gpu_rig_close(&rig);
    return 0;
}

int main(int argc, char **argv)
{
    int ngpus;
    const int code = gpu_rig_find(&rig, argc, argv, &ngpus);
    if (code != 0) return code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_branch_of_the_optimizer),
        cmocka_unit_test(every_branch_of_adam),
        cmocka_unit_test(every_count_and_alignment),
        cmocka_unit_test(the_mean_alone),
        cmocka_unit_test(a_rank_without_samples_is_left_out),
        cmocka_unit_test(what_is_left_out_is_not_read),
        cmocka_unit_test(lin_is_that_of_the_host),
        cmocka_unit_test(what_is_not_finite_is_found),
        cmocka_unit_test(what_it_does_not_know_is_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
