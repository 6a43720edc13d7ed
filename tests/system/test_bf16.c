/* test_bf16.c - --precision=bf16 on the device cpu: the equalities of float32 hold, and what has no bf16 says so.
 *
 *     test_bf16 [refusals]         those alone, which every CPU can check */
#include <string.h>

#include "tests/system/outcome.h"

/* Promise: bf16 on a CPU: ring, ps-sync, hybrid and one process end with the same bytes, so do a pipeline and
 * its chunks on one device, and a run that is killed and resumed.
 * Promise: bf16 without its instructions, on ref, and fp16 on a CPU: one sentence and exit code 2. */

#define JOB                                                                                                  \
    "--device=cpu --data=synthetic --limit-train-samples=103 --limit-test-samples=64 --batch-size=4 "        \
    "--epochs=4 --lr-schedule=cosine --lr=0.02 --momentum=0.9 --nesterov --weight-decay=0.0005 "
#define BF16 "--precision=bf16 "

static const char *const networks[] = {"--model=convnet ", "--model=resnet18:width=8 --epochs=2 ",
                                       "--model=resnet18:width=4,stem=cifar --threads=2 --epochs=1 "};
enum { NETWORKS = sizeof networks / sizeof *networks };

static void test_equal(void **state)
{
    static const char *const ways[] = {"-n 2 --strategy=ring", "-n 2 --strategy=ring --allreduce=naive",
                                       "-n 2 --strategy=ps-sync --shards=3", "-n 2 --strategy=hybrid:auto"};
    (void)state;
    for (int k = 0; k < NETWORKS; k++) {
        const char *solo = train_hash(120, "-n 1 --strategy=solo --accumulate=2 " JOB BF16 "%s", networks[k]);
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
            assert_string_equal(solo, train_hash(120, "%s " JOB BF16 "%s", ways[i], networks[k]));
        const char *fp32 = train_hash(120, "-n 1 --strategy=solo --accumulate=2 " JOB "%s", networks[k]);
        assert_memory_not_equal(solo, fp32, 64); /* it is not float32 under another name */
        promise("same bytes, cpu, bf16, %s: ring direct = naive = ps-sync (3 shards) = hybrid = solo: sha256 "
                "%.8s..",
                networks[k], solo);
    }
}

static void test_stages(void **state)
{
    static const char *const ways[] = {"--parallel=pipeline --stages=2 --micro-batches=2",
                                       "--parallel=pipeline --stages=3 --micro-batches=2 --pipeline=gpipe"};
    (void)state;
    for (int k = 0; k < NETWORKS; k += 2) {
        const char *one = "-n 1 --strategy=solo ";
        const char *chunks = train_hash(120, "%s --micro-batches=2 " JOB BF16 "%s", one, networks[k]);
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
            assert_string_equal(chunks, train_hash(120, "%s %s " JOB BF16 "%s", one, ways[i], networks[k]));
        const char *plain = train_hash(120, "%s " JOB BF16 "%s", one, networks[k]);
        assert_string_equal(
            plain, train_hash(120, "%s --parallel=model --stages=2 " JOB BF16 "%s", one, networks[k]));
    }
}

/* What is recorded; and a checkpoint holds float32, which either precision takes on. */
static void test_record(void **state)
{
    char path[256];
    (void)state;
    json_t *r = train(60, "-n 2 --strategy=ring " JOB BF16 "--checkpoint-every=2epochs");
    assert_non_null(strstr(text_at(r, "environment.device"), "bf16"));
    json_decref(r);
    path_of_newest(train_out(), path);
    json_decref(train(60, "-n 2 --strategy=ring " JOB "--resume=%s", path));
}

static void test_evaluation(void **state)
{
    char file[256], seen[2][200];
    process p;
    (void)state;
    json_decref(train(60, "-n 1 --strategy=solo " JOB BF16 "--save=%s/saved.st", system_folder()));
    snprintf(file, sizeof file, "%s/saved.st", system_folder());
    for (int n = 1; n <= 2; n++) {
        process_start(&p, "entrain", NULL,
                      "eval -n %d --device=cpu --data=synthetic --limit-test-samples=64 --eval-batch-size=16 "
                      "--init=%s " BF16,
                      n, file);
        assert_int_equal(process_wait(&p, 60), 0);
        snprintf(seen[n - 1], sizeof seen[0], "%s", process_out(&p));
        assert_int_equal(process_says(&p, "bf16", "oneDNN"), 1);
    }
    assert_non_null(strstr(seen[0], "Average loss"));
    assert_string_equal(seen[0], seen[1]);
}

static void test_resumed(void **state)
{
    char out[160], flags[600];
    (void)state;
    for (int k = 0; k < 2; k++) {
        snprintf(flags, sizeof flags, "-n 2 --strategy=%s " JOB BF16 "%s", k == 0 ? "ring" : "ps-sync",
                 networks[k]);
        const char *expected = train_hash(120, "%s", flags);
        half_way(out, flags, 150);
        snprintf(flags + strlen(flags), sizeof flags - strlen(flags), " --resume=auto");
        json_decref(finish_run(out, expected, flags));
        promise("cpu, bf16, %s: killed and resumed: sha256 %.8s.. as undisturbed", networks[k], expected);
    }
}

/* ---- refusals ---- */

static void refuse(const char *env, const char *flags, const char *first, const char *second)
{
    process p;
    process_start(&p, "entrain", env, "%s", flags);
    const int code = process_wait(&p, 60);
    if (code != 2 || process_says(&p, first, second) != 1 || process_says(&p, "", "") != 1)
        fail_msg("%s entrain %s: exit %d, expected 2 and one line on %s and %s; it said:\n%s",
                 env == NULL ? "" : env, flags, code, first, second, process_err(&p));
}

static void test_refusals(void **state)
{
    static const char without[] = "DNNL_MAX_CPU_ISA=AVX2 ONEDNN_MAX_CPU_ISA=AVX2";
    char eval[256];
    (void)state;
    snprintf(eval, sizeof eval, "eval --device=cpu --init=%s/weights.st " BF16, system_folder());
    json_decref(train(60, "-n 1 --strategy=solo --device=ref --model=toy --steps=1 --save=%s/weights.st",
                      system_folder()));
    if (has_device("cpu")) {
        refuse(without, "run -n 2 --strategy=ring " JOB BF16, "avx512_bf16", "--device=cuda");
        refuse(without, "run -n 1 --strategy=solo --parallel=pipeline --stages=2 " JOB BF16, "avx512_bf16",
               "");
        snprintf(eval + strlen(eval), sizeof eval - strlen(eval), "--model=toy");
        refuse(without, eval, "avx512_bf16", "oneDNN uses");
    }
    refuse(NULL, "run -n 2 --strategy=ring --device=ref --model=toy --steps=1 " BF16, "ref", "--device=cpu");
    refuse(NULL, "run -n 1 --strategy=solo --device=cpu --model=toy --steps=1 --precision=fp16", "fp16",
           "--precision=bf16");
    promise("bf16 without avx512_bf16, on ref, and fp16 on a CPU: one sentence and exit code 2");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest refusals[] = {cmocka_unit_test(test_refusals)};
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equal), cmocka_unit_test(test_stages),
                                       cmocka_unit_test(test_record), cmocka_unit_test(test_evaluation),
                                       cmocka_unit_test(test_resumed)};
    if (argc > 1 && strcmp(argv[1], "refusals") == 0) return system_main(refusals);
    if (!has_device("cpu") || !has_bf16()) system_skip("this build or this CPU has no bf16 (avx512_bf16)");
    return system_main(tests);
}
