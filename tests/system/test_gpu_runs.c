/* test_gpu_runs.c - more of a run on a GPU: 16-bit precision trains, every strategy ends, a killed run
 * resumes with the same bytes, and a message names a device that fails or is full. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/system/gpu.h"
#include "tests/system/resumed.h"

/* Promise: bf16 and fp16 train, and a killed run resumes with the same bytes. */

#define SMALL                                                                                                \
    "--device=cuda --model=mlp --data=synthetic --limit-train-samples=64 --limit-test-samples=32 "           \
    "--batch-size=8 --lr=0.05 "

/* ---- precision ---- */

/* The mean loss of the first and the last three steps of rank 0. */
static void expect_learned(const char *what)
{
    char path[200];
    double first = 0, last = 0;
    snprintf(path, sizeof path, "%s/metrics-0.jsonl", train_out());
    json_t *lines = read_lines(path);
    const size_t n = json_array_size(lines);
    assert_true(n >= 12);
    for (size_t i = 0; i < 3; i++) {
        first += number_at(json_array_get(lines, i), "loss") / 3;
        last += number_at(json_array_get(lines, n - 1 - i), "loss") / 3;
    }
    json_decref(lines);
    if (!(last < first * 0.8)) fail_msg("%s: the loss went from %g to %g", what, first, last);
    promise("%s%s: the loss falls from %.3f to %.3f", what, gpu_is_simulated() ? " (simulated)" : "", first,
            last);
}

static void test_precision(void **state)
{
    static const char *const ways[] = {"--precision=bf16", "--precision=fp16", "--precision=fp16 --no-graph",
                                       "--tf32"};
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        gpu_next_seed();
        json_decref(train(120, "-n 1 --strategy=solo --steps=32 %s " SMALL, ways[i]));
        expect_learned(ways[i]);
    }
    for (size_t i = 0; i < 2; i++)
        json_decref(
            train(120, "-n 2 --strategy=%s --steps=16 %s " SMALL, i == 0 ? "ring" : "ps-sync", ways[i]));
    expect_learned("fp16, 2 ranks, ps-sync");
}

/* One sample a batch: its gradient times 65536 is more than fp16 holds. The step counts without it. */
static void test_overflow(void **state)
{
    static const char *const ways[] = {"-n 1 --strategy=solo", "-n 1 --strategy=solo --no-graph",
                                       "-n 2 --strategy=ring", "-n 2 --strategy=ps-sync"};
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        gpu_next_seed();
        json_t *r = train(
            120, "%s --steps=16 --precision=fp16 --deterministic " SMALL " --batch-size=1 --lr=0.1", ways[i]);
        const double overflows = number_at(r, "gpu.overflows");
        if (overflows < 1) fail_msg("%s: nothing has overflown, so nothing is tested", ways[i]);
        if (!(number_at(r, "test_loss") < 1e6))
            fail_msg("%s: a test loss of %g", ways[i], number_at(r, "test_loss"));
        json_decref(r);
    }
    promise("fp16: a gradient that overflows is left out of its step, the scale is halved, training goes on");
}

/* ---- every strategy ---- */

static void test_every_strategy(void **state)
{
    static const char *const ways[] = {
        "ps-async", "ssp:bound=1", "hybrid:ps=fc1.*", "hierarchical", "grouped:period=3 --groups=2", "ring"};
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        for (int graph = 0; graph < 2; graph++) {
            gpu_next_seed();
            json_t *r = train(120, "-n 2 --strategy=%s --steps=12 %s " SMALL, ways[i],
                              graph ? "--graph" : "--no-graph");
            assert_string_equal(text_at(r, "exit"), "ok");
            assert_true(number_at(r, "samples_applied") > 0);
            json_decref(r);
        }
    promise("ps-async, ssp, hybrid, hierarchical, grouped and ring end on %s, with and without graph",
            gpu_is_simulated() ? "the simulated GPU" : "a GPU");
}

/* Micro-batches of another size than the recorded one, an evaluation and a checkpoint in between. */
static void test_interrupted_steps(void **state)
{
    (void)state;
    const char *plain = train_hash(120, "-n 2 --strategy=ring --deterministic --steps=20 " SMALL);
    char flags[256];
    snprintf(flags, sizeof flags,
             "-n 2 --strategy=ring --deterministic --steps=20 --eval-every=48 --checkpoint-every=64 "
             "--checkpoint-dir=%s/between " SMALL,
             system_folder());
    assert_string_equal(plain, train_hash(120, "%s", flags));
}

/* Without -n: a worker for each GPU, and the number is recorded. */
static void test_worker_for_each(void **state)
{
    char path[200], text[1 << 14];
    (void)state;
    if (!gpu_is_simulated()) return;
    gpu_fake("FAKE_GPUS", "3");
    setenv("CUDA_VISIBLE_DEVICES", "2,0", 1);
    json_t *r = train(120, "--strategy=ring --steps=4 " SMALL);
    unsetenv("CUDA_VISIBLE_DEVICES");
    assert_true(number_at(r, "workers") == 2);
    json_decref(r);
    snprintf(path, sizeof path, "%s/config.yaml", train_out());
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    assert_non_null(strstr(text, "\nworld-size: 2 # flag\n"));
}

/* Without capture the device launches call by call, and result.json says why. */
static void test_no_capture(void **state)
{
    static const char *const ways[] = {"-n 1 --strategy=solo", "-n 2 --strategy=ring",
                                       "-n 2 --strategy=ps-sync", "-n 2 --strategy=ring --precision=fp16"};
    (void)state;
    if (!gpu_is_simulated()) return;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        json_t *r = train(120, "%s --deterministic --steps=12 " SMALL, ways[i]);
        char expected[80];
        snprintf(expected, sizeof expected, "%s", text_at(r, "params_sha256"));
        if (json_is_false(json_object_get(json_object_get(r, "gpu"), "graph")))
            fail_msg("%s: no graph", ways[i]);
        json_decref(r);
        gpu_fake("FAKE_GPU_NO_CAPTURE", "1");
        r = train(120, "%s --deterministic --steps=12 " SMALL, ways[i]);
        gpu_fake("FAKE_GPU_NO_CAPTURE", NULL);
        assert_string_equal(expected, text_at(r, "params_sha256"));
        assert_true(json_is_false(json_object_get(json_object_get(r, "gpu"), "graph")));
        assert_non_null(strstr(text_at(r, "gpu.no_graph_because"), "capture"));
        json_decref(r);
    }
    json_t *staged = train(120, "-n 1 --strategy=solo --backend=host --steps=6 " SMALL);
    assert_non_null(strstr(text_at(staged, "gpu.no_graph_because"), "host"));
    json_decref(staged);
    promise("a GPU that cannot record a step ends with the same bytes without a graph");
}

/* ---- check ---- */

/* `entrain check` with this many ranks ends well, and `n` lines name the GPU and this way. */
static void check(int nranks, const char *flags, const char *way, int n)
{
    char expected[64];
    int found = 0;
    process p;
    process_start(&p, "entrain", NULL, "check -n %d --device=cuda %s", nranks, flags);
    if (process_wait(&p, 60) != 0) fail_msg("check -n %d %s:\n%s", nranks, flags, process_err(&p));
    snprintf(expected, sizeof expected, "), %s: step ok", way);
    for (const char *at = process_out(&p); (at = strstr(at, expected)) != NULL; at++)
        found++;
    if (found != n || strstr(process_out(&p), "; cuda:0 ") == NULL)
        fail_msg("check -n %d %s: \"%s\" %d times, not %d:\n%s", nranks, flags, way, found, n,
                 process_out(&p));
    process_nobody_left(5);
}

static void test_check(void **state)
{
    (void)state;
    gpu_next_seed();
    check(1, "", "alone", 1);
    check(1, "", "staged", 1);
    check(2, "--backend=host", "staged", 4);
    if (!gpu_is_simulated()) return;
    check(2, "", "CUDA IPC", 2);
    gpu_fake("FAKE_GPU_NO_IPC", "1");
    check(2, "", "staged", 4);
    gpu_fake("FAKE_GPU_NO_IPC", NULL);
    gpu_fake("FAKE_GPUS", "2");
    check(2, "", "NCCL", 2);
    check(3, "", "staged", 6); /* two share one, the third has its own */
    promise("entrain check --device=cuda tries staging and what ring would use, and names GPU and way");
}

/* ---- killed and resumed ---- */

#define LASTING                                                                                              \
    "--device=cuda --deterministic --model=mlp " MADE_UP                                                     \
    " --epochs=2 --batch-size=4 --lr=0.02 --momentum=0.9 --nesterov"

static void resume(const char *ways)
{
    char text[700], out[160], path[256], again[160];
    gpu_next_seed();
    snprintf(text, sizeof text, "%s " LASTING, ways);
    const char *expected = train_hash(120, "%s", text);
    half_way(out, text, 48); /* of 206 */
    path_of_newest(out, path);
    folder_for(again, "again");
    gpu_next_seed();
    snprintf(text, sizeof text, "%s " LASTING " --resume=%s", ways, path);
    json_decref(finish_run(again, expected, text));
}

static void test_resumed(void **state)
{
    (void)state;
    resume("-n 1 --strategy=solo --accumulate=2");
    resume("-n 2 --strategy=ring");
    resume("-n 2 --strategy=ring --backend=host --no-graph");
    resume("-n 2 --strategy=ps-sync");
    promise("killed on %s and resumed: the undisturbed bytes (solo, ring both ways, ps-sync)",
            gpu_is_simulated() ? "the simulated GPU" : "a GPU");
}

/* ---- a device that fails ---- */

static void test_device_fails(void **state)
{
    process p;
    (void)state;
    if (!gpu_is_simulated()) return;
    process_start(&p, "entrain", "FAKE_GPU_FAIL_AT=208", /* of which 8 are the warm-up's */
                  "run --quiet --log-level=warn -n 2 --strategy=ring --steps=1000 " SMALL);
    assert_int_equal(process_wait(&p, 60), 1);
    if (process_says(&p, "CUDA", "cuda:0") < 1)
        fail_msg("it should name the error and the GPU:\n%s", process_err(&p));
    if (process_names(&p, "rank", "CUDA error", "(pid") < 1)
        fail_msg("the others should hear the cause:\n%s", process_err(&p));
    if (process_says(&p, "finish of ring", "") != 0)
        fail_msg("the strategy is not to blame:\n%s", process_err(&p));
    process_nobody_left(5);
}

/* Kernels that never end, in work that waits for no other rank: the run ends in time, and so do processes.
 * The time is one that no machine is too busy for. */
static void test_device_hangs(void **state)
{
    static const char *const ways[][2] = {
        {"-n 1 --strategy=solo", "loss"},
        {"-n 1 --strategy=solo --eval-every=8 --eval-batch-size=4 --steps=1", "evaluation"},
        {"-n 2 --strategy=ring", " rank "},
        {"-n 2 --strategy=ps-sync", "gradient"},
        {"-n 2 --strategy=ring --precision=fp16", "fp16"}};
    process p;
    (void)state;
    if (!gpu_is_simulated()) return;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        /* the warm-up has eight kernels; the only step ends with the 14th or so, and eight batches are
         * evaluated, of two or so */
        const int is_eval = strstr(ways[i][0], "eval") != NULL;
        gpu_next_seed();
        gpu_fake("FAKE_GPU_HANG_AT", is_eval ? "22" : "312"); /* with fp16 step 24 ends with the 309th */
        process_start(&p, "entrain", NULL,
                      "run --quiet --log-level=warn --gpu-timeout=3s --steps=1000 " SMALL " %s", ways[i][0]);
        const int code = process_wait(&p, 60);
        if (code != 1 || process_says(&p, " 3 s", ways[i][1]) < 1 || process_says(&p, "cuda:0", "step") < 1)
            fail_msg("%s: exit %d; it should say that cuda:0 does not answer, and \"%s\":\n%s", ways[i][0],
                     code, ways[i][1], process_err(&p));
        process_nobody_left(5);
    }
    promise(
        "a GPU that hangs ends the run (solo, ring, ps-sync, fp16): one sentence names GPU, step and what "
        "was waited for");
}

/* With NCCL a rank cannot know whether its own GPU hangs or another's: the wait is explained, and the user
 * decides. */
static void test_group_hangs(void **state)
{
    process p;
    (void)state;
    if (!gpu_is_simulated()) return;
    gpu_fake("FAKE_GPUS", "2");
    gpu_fake("FAKE_GPU_HANG_AT", "308");
    process_start(&p, "entrain", NULL,
                  "run --quiet --gpu-timeout=3s -n 2 --strategy=ring --steps=1000 " SMALL);
    wait_for_line(&p, "NCCL #1", 60);
    if (process_says(&p, "NCCL #1", " s") < 1) fail_msg("it should say how long:\n%s", process_err(&p));
    process_kill(&p, SIGINT);
    assert_int_equal(process_wait(&p, 20), 130);
    process_nobody_left(5);
}

static void test_device_is_full(void **state)
{
    process p;
    (void)state;
    if (!gpu_is_simulated()) return;
    process_start(&p, "entrain", "FAKE_GPU_OOM_AFTER=100000",
                  "run --quiet --log-level=warn -n 1 --strategy=solo --steps=10 " SMALL);
    const int code = process_wait(&p, 60);
    if (code == 0 || code > 2 || process_says(&p, "cuda:0", "memory") + process_says(&p, "cuda:0", "MiB") < 1)
        fail_msg("exit %d; it should say that the GPU's memory is full:\n%s", code, process_err(&p));
    process_nobody_left(5);
}

/* ---- what a batch takes, for advise ---- */

static void test_advise(void **state)
{
    double alone, each, crowded;
    process p;
    (void)state;
    process_start(&p, "entrain", NULL, "advise --no-validate --quiet -n 2 --bucket-cap-mb=0.2 " SMALL);
    if (process_wait(&p, 120) != 0) fail_msg("%s", process_err(&p));
    const char *at = strstr(process_out(&p), "compute ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "compute %lf ms%*[^,], %lf%*[^,], %lf", &alone, &each, &crowded), 3);
    assert_true(alone > 0 && each > 0 && crowded > 0);
    assert_non_null(strstr(at, "5 buckets"));
    process_nobody_left(5);
}

/* ---- a GPU that others use ---- */

static void test_others_are_told(void **state)
{
    process first;
    (void)state;
    process_start(&first, "entrain", NULL, "run --quiet -n 2 --strategy=ring --steps=100000000 " SMALL);
    wait_for_line(&first, "vectors", 60);
    json_t *r = train(60, "-n 1 --strategy=solo --steps=4 " SMALL);
    const json_t *others = json_object_get(json_object_get(r, "gpu"), "others");
    if (gpu_is_simulated() || !json_is_null(others)) /* in a container the driver may not tell */
        assert_true(json_integer_value(others) >= 1);
    json_decref(r);
    process_kill(&first, SIGINT);
    assert_int_equal(process_wait(&first, 20), 130);
    process_nobody_left(5);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {GPU_TEST(test_precision),       GPU_TEST(test_overflow),
                                       GPU_TEST(test_every_strategy),  GPU_TEST(test_interrupted_steps),
                                       GPU_TEST(test_worker_for_each), GPU_TEST(test_no_capture),
                                       GPU_TEST(test_check),           GPU_TEST(test_resumed),
                                       GPU_TEST(test_device_fails),    GPU_TEST(test_device_hangs),
                                       GPU_TEST(test_group_hangs),     GPU_TEST(test_device_is_full),
                                       GPU_TEST(test_advise),          GPU_TEST(test_others_are_told)};
    gpu_begin(argc, argv);
    return system_main(tests);
}
