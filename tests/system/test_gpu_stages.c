/* test_gpu_stages.c - one network on several GPUs ends with the bytes of one GPU, says what it does without, and ends
 * with a sentence when one of them fails.
 *
 * Vectors are staged through the host here, and on one GPU they are not: mean and step are rounded alike on both. On
 * the simulated GPUs every run has another order of work. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/system/gpu.h"
#include "tests/system/outcome.h"

/* Promise: One network on two GPUs ends with the bytes of one GPU: pipelines, stage after stage, replicas;
 * a GPU that fails or hangs is named. */

/* Two epochs, of which the last step has fewer samples than chunks. */
#define JOB                                                                                                  \
    "--deterministic --data=synthetic --limit-train-samples=14 --limit-test-samples=7 --eval-batch-size=4 "  \
    "--lr=0.02 --momentum=0.9 --nesterov --weight-decay=0.0005 --epochs=2 "
#define MLP    "--model=mlp " JOB
#define RESNET "--model=resnet18:width=1,stem=cifar --resize=16 " JOB
#define ENDLESS                                                                                              \
    "--device=cuda --model=mlp --data=synthetic --limit-train-samples=64 --limit-test-samples=8 "            \
    "--batch-size=4 --steps=100000 --parallel=pipeline --stages=2 --micro-batches=2 "

/* Whether there are so many; of simulated ones there are. */
static int has_gpus(int n)
{
    char text[8];
    snprintf(text, sizeof text, "%d", n);
    gpu_fake("FAKE_GPUS", text);
    const int found = gpu_count();
    if (found < n) print_message("%d GPUs: what takes %d is not run\n", found, n);
    return found >= n;
}

static outcome run_of(int w, int nstages, const char *job, const char *flags)
{
    gpu_next_seed();
    return outcome_of(w, nstages, job, flags);
}

/* ---- equalities ---------------------------------------------------------------------------------------- */

static void expect_pipelines(const char *job)
{
    static const char *const ways[] = {"--device=cuda:0,cuda:1", "--stages=2 --pipeline=gpipe",
                                       "--device=cuda:1,cuda:0 --pipeline=gpipe", "--stages=2"};
    char flags[160];
    outcome base = run_of(1, 1, job, "--strategy=solo --batch-size=6 --micro-batches=3 --device=cuda:0");
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        snprintf(flags, sizeof flags,
                 "--strategy=solo --batch-size=6 --micro-batches=3 --parallel=pipeline %s", ways[i]);
        outcome o = run_of(1, 2, job, flags);
        expect_same(&base, &o, flags);
    }
    outcome played = run_of(1, 0, job, "--strategy=solo --batch-size=2 --accumulate=3 --device=cuda:0");
    assert_memory_equal(base.hashes, played.hashes, 64); /* its running statistics saw other batches */
    outcome_forget(&played);
    outcome_forget(&base);
}

static void test_pipelines(void **state)
{
    (void)state;
    if (!has_gpus(2)) return;
    expect_pipelines(MLP);
    expect_pipelines(RESNET);
    promise(
        "%s, two of them: pipelines of 2 stages, both schedules, named GPUs and slices = --micro-batches on "
        "one (weights, momentum, running statistics, every loss) = --accumulate on one (weights)",
        gpu_is_simulated() ? "the simulated GPU" : "a GPU");
}

static void test_model_parallel(void **state)
{
    static const char *const jobs[] = {MLP "--batch-size=6", RESNET "--batch-size=6"};
    (void)state;
    if (!has_gpus(2)) return;
    for (int k = 0; k < 2; k++) {
        outcome plain = run_of(1, 0, jobs[k], "--strategy=solo --device=cuda:0");
        outcome staged = run_of(1, 0, jobs[k], "--strategy=solo --device=cuda:0 --backend=host --no-graph");
        expect_same(&plain, &staged, "staged");
        outcome o = run_of(1, 2, jobs[k], "--strategy=solo --parallel=model --stages=2");
        expect_same(&plain, &o, "--parallel=model");
        outcome_forget(&plain);
    }
    promise("--parallel=model on two GPUs = one GPU, where its vectors stay there and where they are staged");
}

static void test_replicas(void **state)
{
    (void)state;
    if (!has_gpus(2)) return;
    outcome ranks = run_of(2, 0, MLP, "--strategy=ring --batch-size=3 --backend=host");
    outcome o = run_of(1, 2, MLP, "--strategy=solo --parallel=data --device=cuda:all --batch-size=6");
    expect_vectors(&ranks, &o, "--parallel=data");
    outcome_forget(&ranks);
    ranks = run_of(2, 0, RESNET, "--strategy=ring --batch-size=3 --backend=host");
    o = run_of(1, 2, RESNET, "--strategy=solo --parallel=data --device=cuda:0,cuda:1 --batch-size=6");
    expect_vectors(&ranks, &o, "--parallel=data");
    outcome_forget(&ranks);
    promise("--parallel=data on all of two GPUs = ring -n 2, staged");
}

static void test_ranks(void **state)
{
    static const char *const strategies[] = {"ring", "ps-sync"};
    char flags[160];
    (void)state;
    if (!has_gpus(4)) return;
    outcome base = run_of(2, 1, MLP, "--strategy=ring --batch-size=4 --micro-batches=2");
    for (int k = 0; k < 2; k++) {
        snprintf(flags, sizeof flags,
                 "--strategy=%s --batch-size=4 --micro-batches=2 --parallel=pipeline --stages=2",
                 strategies[k]);
        outcome o = run_of(2, 2, MLP, flags);
        expect_same(&base, &o, flags);
    }
    outcome_forget(&base);
    promise(
        "two ranks with two GPUs each, ring and ps-sync = two ranks with one each: weights and every loss");
}

/* ---- each stage has its own GPU ------------------------------------------------------------------------ */

/* How many processes have a context on each of `n` GPUs. */
static void count_users(int n, json_int_t *users_out)
{
    process p;
    json_error_t error;
    process_start(&p, "entrain", NULL, "gpus --json");
    if (process_wait(&p, GUARD) != 0) fail_msg("entrain gpus --json: %s", process_err(&p));
    json_t *list = json_loads(process_out(&p), 0, &error);
    if (list == NULL) fail_msg("entrain gpus --json: %s", error.text);
    const json_t *gpus = json_object_get(list, "gpus");
    assert_int_equal(json_array_size(gpus), n);
    for (int i = 0; i < n; i++)
        users_out[i] = json_integer_value(json_object_get(json_array_get(gpus, (size_t)i), "nusers"));
    json_decref(list);
}

static void expect_users(const char *flags, const json_int_t *expected)
{
    process p;
    json_int_t users[4];
    process_start(&p, "entrain", NULL, "run " ENDLESS "--log-every=1 %s", flags);
    wait_for_line(&p, "Loss:", GUARD);
    count_users(4, users);
    for (int i = 0; i < 4; i++)
        if (users[i] != expected[i])
            fail_msg("%s: cuda:%d has %d users, not %d", flags, i, (int)users[i], (int)expected[i]);
    process_kill(&p, SIGINT);
    assert_int_equal(process_wait(&p, GUARD), 128 + SIGINT);
    process_nobody_left(GUARD);
}

static void test_own_gpus(void **state)
{
    static const json_int_t named[] = {0, 1, 0, 1}, slice[] = {1, 1, 0, 0}, slices[] = {1, 1, 1, 1};
    (void)state;
    if (!gpu_is_simulated()) return; /* in a container the driver may not tell */
    gpu_fake("FAKE_GPUS", "4");
    expect_users("-n 1 --strategy=solo --device=cuda:3,cuda:1", named);
    expect_users("-n 1 --strategy=solo", slice);
    expect_users("-n 2 --strategy=ring", slices);
    promise(
        "each stage has a context on the GPU that was named, or that its rank's slice has, and on no other");
}

/* ---- what it says -------------------------------------------------------------------------------------- */

static void expect_said(const char *flags, const char *what)
{
    process p;
    process_start(&p, "entrain", NULL, "run --quiet --strategy=solo --batch-size=4 --steps=2 " MLP "%s",
                  flags);
    const int code = process_wait(&p, GUARD);
    if (code != 0 || process_says(&p, "staged through the host", what) != 1 ||
        process_says(&p, "staged through the host", "no graph and no NCCL") != 1)
        fail_msg("%s: exit %d; rank 0 should say once that \"%s\" has no graph and no NCCL:\n%s", flags, code,
                 what, process_err(&p));
}

static void test_limits_are_said(void **state)
{
    (void)state;
    if (!has_gpus(2)) return;
    expect_said("--device=cuda --parallel=pipeline --stages=2 --micro-batches=2", "several GPUs");
    expect_said("--device=cuda:all --parallel=data", "several GPUs");
    expect_said("--device=cuda --micro-batches=2", "cut into chunks");
}

static void refuse(const char *flags, const char *cause, const char *remedy)
{
    process p;
    process_start(&p, "entrain", NULL, "run --quiet --batch-size=4 --steps=2 " MLP "%s", flags);
    const int code = process_wait(&p, GUARD);
    if (code != 2 || process_says(&p, cause, remedy) != 1 || process_says(&p, "", "") != 1)
        fail_msg("%s: exit %d, and should be 2 with one line on \"%s\" and \"%s\"; it said:\n%s", flags, code,
                 cause, remedy, process_err(&p));
    process_nobody_left(GUARD);
}

static void test_refusals(void **state)
{
    (void)state;
#define TWO "--device=cuda --parallel=pipeline --stages=2 "
    refuse("-n 1 --strategy=solo --precision=fp16 " TWO, "\"fp16\"", "--precision=bf16");
    refuse("-n 2 --strategy=ring --backend=nccl " TWO, "\"nccl\"", "--backend=host");
    if (!gpu_is_simulated()) return;
    gpu_fake("FAKE_GPUS", "3");
    refuse("-n 2 --strategy=ring " TWO, "enough for 1 of its 2 ranks", "--gpu-sharing");
    refuse("-n 1 --strategy=solo --device=cuda --parallel=pipeline --split=fc2,fc3,fc4",
           "a rank needs 4 GPUs", "has 3");
    refuse("-n 1 --strategy=solo --parallel=data --device=cuda:0,cuda:3", "cuda:3", "cuda:0 to cuda:2");
    refuse("-n 2 --strategy=ring --parallel=model --device=cuda:0,cuda:1", "the GPUs of one rank",
           "--gpu-sharing");
    gpu_fake("FAKE_GPUS", "1");
    refuse("-n 1 --strategy=solo " TWO, "a rank needs 2 GPUs", "");
    promise("fp16 and NCCL with stages, and more stages than a rank's slice has GPUs: one sentence, exit 2");
}

/* ---- a GPU that fails ---------------------------------------------------------------------------------- */

/* Of two ranks with two stages each: each process counts its own kernels, so both meet it, and one is first. */
static void fail_in(const char *ways, const char *cause, const char *place)
{
    process p;
    gpu_next_seed();
    process_start(&p, "entrain", NULL, "run --quiet --log-level=warn --gpu-timeout=3s %s " ENDLESS, ways);
    const int code = process_wait(&p, GUARD);
    if (code != 1 || process_says(&p, cause, place) < 1)
        fail_msg("%s: exit %d, and should be 1 with \"%s\" and \"%s\"; it said:\n%s", ways, code, cause,
                 place, process_err(&p));
    process_nobody_left(GUARD);
}

static void test_gpu_fails(void **state)
{
    (void)state;
    if (!gpu_is_simulated()) return;
    gpu_fake("FAKE_GPUS", "4");
    gpu_fake("FAKE_GPU_FAIL_AT", "400");
    fail_in("-n 1 --strategy=solo", "CUDA error", "cuda:");
    fail_in("-n 2 --strategy=ring", "CUDA error", "cuda:");
    fail_in("-n 2 --strategy=ps-sync", "CUDA error", "cuda:");
    gpu_fake("FAKE_GPU_FAIL_AT", NULL);
    gpu_fake("FAKE_GPU_HANG_AT", "400");
    fail_in("-n 1 --strategy=solo", "has not answered for 3 s", "stage ");
    fail_in("-n 2 --strategy=ring", "has not answered for 3 s", "stage ");
    promise(
        "a GPU of a stage that fails or hangs ends the run: one sentence names it, exit 1, nobody is left");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {GPU_TEST(test_pipelines), GPU_TEST(test_model_parallel),
                                       GPU_TEST(test_replicas),  GPU_TEST(test_ranks),
                                       GPU_TEST(test_own_gpus),  GPU_TEST(test_limits_are_said),
                                       GPU_TEST(test_refusals),  GPU_TEST(test_gpu_fails)};
    outcome_on("cuda");
    gpu_begin(argc, argv);
    return system_main(tests);
}
