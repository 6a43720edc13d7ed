/* test_gpu_refusal.c - what cannot run on this machine's GPUs is refused in one sentence, with exit code 2,
 * before anything is trained. */
#include <stdio.h>
#include <string.h>

#include "tests/system/gpu.h"

/* Promise: A missing or old driver, a missing NCCL and a GPU that is not there cause one sentence and exit
 * 2. */

#define SHORT                                                                                                \
    "--model=mlp --data=synthetic --limit-train-samples=64 --limit-test-samples=8 --steps=5 --quiet "        \
    "--log-level=warn"

/* Everything that stderr has is about `cause` and has the remedy; several ranks may find it, and the leader
 * may add that the run ends. */
static void refuse(const char *env, const char *program, const char *flags, const char *cause,
                   const char *remedy)
{
    process p;
    process_start(&p, program, env, "%s", flags);
    const int code = process_wait(&p, 60), n = process_says(&p, cause, remedy);
    if (code != 2 || n < 1)
        fail_msg("%s %s %s: exit %d, expected 2 and \"%s\" with \"%s\"; it said:\n%s", env == NULL ? "" : env,
                 program, flags, code, cause, remedy, process_err(&p));
    if (process_says(&p, "", "") != n + process_says(&p, "the run ends", ""))
        fail_msg("%s %s: one sentence is enough; it said:\n%s", program, flags, process_err(&p));
    process_nobody_left(5);
}

static void test_no_gpu(void **state)
{
    (void)state;
    if (!gpu_is_simulated()) {
        refuse("CUDA_VISIBLE_DEVICES=", "entrain", "run -n 1 --strategy=solo --device=cuda " SHORT, "GPU",
               "");
        return;
    }
    refuse("FAKE_GPU_DRIVER=none", "entrain", "gpus", "driver", "");
    refuse("FAKE_GPU_DRIVER=none", "entrain", "run -n 1 --strategy=solo --device=cuda " SHORT, "driver",
           "--device=cpu");
    refuse("FAKE_GPU_DRIVER=none", "entrain", "run -n 2 --strategy=ring --device=cuda " SHORT, "driver",
           "--device=cpu");
    refuse("FAKE_GPU_DRIVER=old", "entrain", "run -n 1 --strategy=solo --device=cuda " SHORT, "driver", "");
    refuse("FAKE_GPUS=0", "entrain", "run -n 1 --strategy=solo --device=cuda " SHORT, "GPU", "");
    promise("no driver, an old driver, no GPU: one sentence and exit code 2");
}

static void test_wrong_gpu(void **state)
{
    (void)state;
    refuse(NULL, "entrain", "run -n 1 --strategy=solo --device=cuda:77 " SHORT, "cuda:77", "");
    refuse(NULL, "entrain", "run -n 2 --strategy=ring --device=cuda:77 " SHORT, "cuda:77", "");
    refuse(NULL, "entrain", "run -n 1 --strategy=solo --device=cuda:x " SHORT, "cuda:x", "");
    refuse(NULL, "entrain", "run -n 1 --strategy=solo --device=gpu " SHORT, "--device", "cuda");
}

/* Who starts several processes asks before it starts any: one line, whatever n is. */
static void refuse_once(const char *env, const char *flags, const char *cause)
{
    process p;
    process_start(&p, "entrain", env, "%s", flags);
    const int code = process_wait(&p, 60);
    if (code != 2 || process_says(&p, cause, "") != 1 || process_says(&p, "", "") != 1)
        fail_msg("%s entrain %s: exit %d, expected 2 and one line on \"%s\"; it said:\n%s",
                 env == NULL ? "" : env, flags, code, cause, process_err(&p));
    if (process_out(&p)[0] != 0) fail_msg("entrain %s: it has begun:\n%s", flags, process_out(&p));
    process_nobody_left(5);
}

static void test_once(void **state)
{
    const char *none = gpu_is_simulated() ? "FAKE_GPU_DRIVER=none" : "CUDA_VISIBLE_DEVICES=";
    const char *cause = gpu_is_simulated() ? "driver" : "GPU";
    char compare[256];
    (void)state;
    snprintf(compare, sizeof compare, "compare --arm=ring --arm=ps-sync --device=cuda --out=%s/never " SHORT,
             system_folder());
    refuse_once(none, "run -n 4 --strategy=ring --device=cuda " SHORT, cause);
    refuse_once(none, "run -n 4 --strategy=ps-sync --device=cuda " SHORT, cause);
    refuse_once(none, "check -n 4 --device=cuda", cause);
    refuse_once(none, compare, cause);
    if (files_left("never") != 0) fail_msg("compare has made its folder");
    refuse_once(NULL, "run -n 4 --strategy=ps-sync --device=cuda:99 " SHORT, "cuda:99");
    refuse_once(NULL, "check -n 4 --device=cuda:99", "cuda:99");
    promise("run, compare and check -n 4 without a usable GPU: one line, exit code 2, nothing is started");
}

static void test_wrong_precision(void **state)
{
    (void)state;
    refuse(NULL, "entrain", "run -n 1 --strategy=solo --device=ref --precision=bf16 " SHORT, "bf16", "cuda");
    refuse(NULL, "entrain", "run -n 1 --strategy=solo --device=ref --precision=fp16 " SHORT, "fp16", "cuda");
    refuse(NULL, "entrain", "run -n 1 --strategy=solo --device=cuda --precision=fp8 " SHORT, "fp8", "bf16");
}

static void test_nccl(void **state)
{
    (void)state;
    if (gpu_is_simulated()) {
        refuse("FAKE_GPUS=1", "entrain", "run -n 2 --strategy=ring --device=cuda --backend=nccl " SHORT,
               "NCCL", "");
        refuse("FAKE_GPUS=2 FAKE_NCCL=none", "entrain",
               "run -n 2 --strategy=ring --device=cuda --backend=nccl " SHORT, "NCCL", "");
    }
    refuse(NULL, "entrain", "run -n 2 --strategy=ring --device=ref --backend=nccl " SHORT, "nccl", "cuda");
    refuse(NULL, "entrain", "run -n 2 --strategy=ps-sync --device=cuda --backend=nccl " SHORT, "nccl", "");
    promise("a GPU that is not there, bf16 on a CPU, NCCL for ranks that share a GPU: one sentence and exit "
            "code 2");
}

/* Asked for nothing special, ranks that NCCL cannot pair train all the same. */
static void test_falls_back(void **state)
{
    (void)state;
    if (!gpu_is_simulated()) return;
    gpu_fake("FAKE_GPUS", "2");
    gpu_fake("FAKE_NCCL", "none");
    json_decref(train(60, "-n 2 --strategy=ring --device=cuda " SHORT));
    gpu_fake("FAKE_NCCL", NULL);
    json_decref(
        train(60, "-n 3 --strategy=ring --device=cuda " SHORT)); /* two share one, the third has its own */
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {GPU_TEST(test_no_gpu), GPU_TEST(test_wrong_gpu),
                                       GPU_TEST(test_once),   GPU_TEST(test_wrong_precision),
                                       GPU_TEST(test_nccl),   GPU_TEST(test_falls_back)};
    gpu_begin(argc, argv);
    return system_main(tests);
}
