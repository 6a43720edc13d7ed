/* test_gpu_overflow.c - fp16: a gradient that is too large for its type is left out, the same way on every
 * path, and the loss scale that follows from it outlives the process. Batches of one sample and a scale of
 * 65536 overflow within the first steps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/system/gpu.h"

/* Promise: A gradient that overflows in fp16 is left out of its step, with the same bytes on every path. */

#define HALF                                                                                                 \
    "--device=cuda --deterministic --precision=fp16 --model=mlp --data=synthetic --limit-train-samples=50 "  \
    "--limit-test-samples=32 --batch-size=1 --epochs=2 --lr=0.05 --momentum=0.9 "

/* What was computed was applied, or left out and counted. */
static double expect_counted(const json_t *r)
{
    const double overflows = number_at(r, "gpu.overflows");
    assert_true(number_at(r, "samples_dropped") == overflows); /* one sample a batch */
    assert_true(number_at(r, "samples_applied") == 100 - overflows);
    return overflows;
}

/* Each rank halves its own scale with each of its own overflows. */
static void expect_scales(const json_t *r, int nranks)
{
    double overflows = 0;
    for (int i = 0; i < nranks; i++) {
        const json_t *gpu = json_object_get(json_array_get(json_object_get(r, "roles"), (size_t)i), "gpu");
        const double own = number_at(gpu, "overflows");
        double scale = 65536;
        for (int k = 0; k < (int)own; k++)
            scale /= 2;
        assert_true(number_at(gpu, "loss_scale") == scale); /* too short a run for it to grow */
        overflows += own;
    }
    assert_true(overflows == number_at(r, "gpu.overflows"));
}

static void test_the_same_everywhere(void **state)
{
    static const char *const ways[] = {"ring", "ring --no-graph", "ring --backend=host",
                                       "ring --backend=host --no-graph --no-overlap", "ps-sync"};
    char first[80] = "";
    double overflows = 0;
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        gpu_next_seed();
        json_t *r = train(120, "-n 2 --strategy=%s " HALF, ways[i]);
        overflows = expect_counted(r);
        expect_scales(r, 2);
        if (overflows < 1) fail_msg("%s: nothing overflowed, so nothing was tested", ways[i]);
        if (i == 0) snprintf(first, sizeof first, "%s", text_at(r, "params_sha256"));
        assert_string_equal(first, text_at(r, "params_sha256"));
        json_decref(r);
    }
    promise("fp16, 2 ranks: %.0f gradients overflow and are left out, the same bytes in %zu ways%s",
            overflows, sizeof ways / sizeof *ways, gpu_is_simulated() ? " (simulated)" : "");
}

static void test_one_process(void **state)
{
    (void)state;
    char first[80] = "";
    for (int i = 0; i < 2; i++) {
        gpu_next_seed();
        json_t *r = train(120, "-n 1 --strategy=solo %s " HALF, i == 0 ? "--graph" : "--no-graph");
        assert_true(expect_counted(r) >= 1);
        expect_scales(r, 1);
        if (i == 0) snprintf(first, sizeof first, "%s", text_at(r, "params_sha256"));
        assert_string_equal(first, text_at(r, "params_sha256"));
        json_decref(r);
    }
}

/* Weights too large for fp16 overflow in every rank, whatever the scale: then no step moves anything,
 * momentum and weight decay neither, and nobody waits for a step that does not come. */
static void test_nobody_counts(void **state)
{
    static const char *const ways[] = {"-n 2 --strategy=ring",
                                       "-n 2 --strategy=ring --no-graph",
                                       "-n 2 --strategy=ring --backend=host",
                                       "-n 2 --strategy=ps-sync",
                                       "-n 1 --strategy=solo --accumulate=2",
                                       "-n 1 --strategy=solo --accumulate=2 --backend=host",
                                       "-n 2 --strategy=ring --backend=nccl"};
    int tried = 0;
    static const char large[] = "--device=cuda --deterministic --model=mlp --data=synthetic --batch-size=1 "
                                "--limit-train-samples=6 --limit-test-samples=32 --lr=1000 --momentum=0.9 "
                                "--weight-decay=0.01 ";
    char folder[200], first[80];
    (void)state;
    snprintf(folder, sizeof folder, "%s/large", system_folder());
    json_t *r = train(120, "-n 2 --strategy=ring --epochs=1 --checkpoint-every=6 --checkpoint-dir=%s %s",
                      folder, large);
    snprintf(first, sizeof first, "%s", text_at(r, "params_sha256"));
    json_decref(r);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const int is_nccl = strstr(ways[i], "nccl") != NULL;
        if (is_nccl) gpu_fake("FAKE_GPUS", "2");
        if (is_nccl && gpu_count() < 2) continue;
        gpu_next_seed();
        r = train(120, "%s --epochs=2 --precision=fp16 --resume=%s/checkpoint-000000000006.safetensors %s",
                  ways[i], folder, large);
        if (number_at(r, "samples_dropped") != 6 || number_at(r, "updates") != 6 ||
            strcmp(first, text_at(r, "params_sha256")) != 0)
            fail_msg("%s: %.0f samples were left out of 6, %.0f updates, weights %s, before the overflows %s",
                     ways[i], number_at(r, "samples_dropped"), number_at(r, "updates"),
                     text_at(r, "params_sha256"), first);
        tried++;
        json_decref(r);
    }
    gpu_fake("FAKE_GPUS", NULL);
    promise("fp16, every gradient overflows: weights and momentum stay as they are in %d ways%s", tried,
            gpu_is_simulated() ? " (simulated)" : "");
}

/* From the middle of the run on: without the scale in the checkpoint it would overflow once more. */
static void test_resumed(void **state)
{
    char folder[200], first[80];
    (void)state;
    snprintf(folder, sizeof folder, "%s/half", system_folder());
    json_t *r = train(120, "-n 2 --strategy=ring --checkpoint-every=50 --checkpoint-dir=%s " HALF, folder);
    const double overflows = expect_counted(r);
    snprintf(first, sizeof first, "%s", text_at(r, "params_sha256"));
    json_decref(r);
    gpu_next_seed();
    r = train(120, "-n 2 --strategy=ring --resume=%s/checkpoint-000000000050.safetensors " HALF, folder);
    assert_string_equal(first, text_at(r, "params_sha256"));
    assert_true(expect_counted(r) == overflows);
    expect_scales(r, 2);
    json_decref(r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {GPU_TEST(test_the_same_everywhere), GPU_TEST(test_one_process),
                                       GPU_TEST(test_nobody_counts), GPU_TEST(test_resumed)};
    gpu_begin(argc, argv);
    return system_main(tests);
}
