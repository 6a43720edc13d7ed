/* test_accuracy.c - one epoch of Fashion-MNIST with two workers learns what PyTorch learns with the same
 * global batch, and asynchronously what a sequential loop with a delay of one learns.
 *
 *     test_accuracy resnet18       two epochs of 20,000 images with resnet18:width=8, seed by seed
 *     test_accuracy bf16           a third of an epoch in bf16 and in float32, seed by seed
 *     test_accuracy photographs    the same with the cifar stem on patches of photographs: of which is it?
 *
 * tests/goldens/accuracy.json says what PyTorch reached from the same initial weights in the same order of
 * samples (tools/make_accuracy_goldens.py). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/system/run.h"

/* Promise: One epoch with two workers learns what PyTorch learns with the same global batch.
 * Promise: bf16 on a CPU learns what float32 learns: the mean of three paired differences of accuracy is within
 * 1 point.
 * Promise: resnet18:width=8 learns what PyTorch's learns: the mean of five paired differences of accuracy
 * is within 1 point (soak).
 * Promise: resnet18:width=8,stem=cifar tells patches of ten photographs apart as well as PyTorch's does:
 * within 2 points, three pairs (soak). */

enum { FEW = 3, SEEDS = 9, RUN_WITHIN = 600 }; /* seconds; an idle machine needs 8 */

#define JOB "--device=cpu --batch-size=64 --epochs=1 --momentum=0.5"

static json_t *golden;

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, int n)
{
    double sorted[SEEDS];
    memcpy(sorted, values, (size_t)n * sizeof *values);
    qsort(sorted, (size_t)n, sizeof *sorted, compare);
    return sorted[n / 2];
}

static const char *text_in(const json_t *facts, const char *key, size_t i)
{
    return json_string_value(json_array_get(json_object_get(facts, key), i));
}

/* The test accuracy of a seed's run; hash_out: of its weights. */
static double run(const char *strategy, double lr, int i, char hash_out[72])
{
    json_int_t seed = json_integer_value(json_array_get(json_object_get(golden, "seeds"), (size_t)i));
    json_t *r = train(RUN_WITHIN, "-n 2 --strategy=%s --lr=%g --seed=%d " JOB, strategy, lr, (int)seed);
    /* Both start from the same weights, in the same order of samples. */
    assert_string_equal(text_at(r, "init_sha256"), text_in(golden, "init_sha256", (size_t)i));
    assert_string_equal(text_at(r, "order_sha256"), text_in(golden, "order_sha256", (size_t)i));
    assert_true(number_at(r, "samples_applied") == 60000);
    double accuracy = number_at(r, "test_accuracy");
    strcpy(hash_out, text_at(r, "params_sha256"));
    json_decref(r);
    return accuracy;
}

/* Ours minus theirs, medians of the first n seeds. */
static double gap_to(const char *job, const double *ours, int n)
{
    const json_t *list = json_object_get(json_object_get(golden, job), "accuracy");
    double theirs[SEEDS];
    assert_true(json_array_size(list) >= (size_t)n);
    for (int i = 0; i < n; i++)
        theirs[i] = json_number_value(json_array_get(list, (size_t)i));
    return median(ours, n) - median(theirs, n);
}

static void expect_near(const char *what, const double *ours, int n, const char *job)
{
    double gap = gap_to(job, ours, n);
    if (!(fabs(gap) <= 0.01))
        fail_msg("%s: median of %d seeds %.4f, PyTorch %.4f", what, n, median(ours, n),
                 median(ours, n) - gap);
    promise("accuracy after one epoch, W = 2, median of %d seeds: %s %.2f %%, PyTorch %.2f %%, gap %+.2f "
            "points (1)",
            n, what, 100 * median(ours, n), 100 * (median(ours, n) - gap), 100 * gap);
}

/* ps-sync equals ring over a whole epoch too, so it has the ring's median. */
static void test_synchronous(void **state)
{
    double ring[FEW];
    char hash[72], first_hash[72];
    (void)state;
    for (int i = 0; i < FEW; i++) {
        ring[i] = run("ring", 0.02, i, hash);
        if (i == 0) strcpy(first_hash, hash);
    }
    run("ps-sync", 0.02, 0, hash);
    assert_string_equal(hash, first_hash);
    expect_near("ring = ps-sync", ring, FEW, "sync");
    promise("same bytes on Fashion-MNIST: ring = ps-sync over a whole epoch, cpu, W = 2: sha256 %.8s..",
            hash);
}

/* Asynchronous runs differ: an accuracy has a spread of a point, so a median of three may miss by chance.
 * More seeds then decide. */
static void test_asynchronous(void **state)
{
    double async[SEEDS];
    char hash[72];
    int n = 0;
    (void)state;
    while (n < FEW || (n < SEEDS && fabs(gap_to("delayed", async, n)) > 0.01)) {
        async[n] = run("ps-async", 0.01, n, hash);
        if (++n > FEW && n % 2 == 0) { /* an odd number has a middle */
            async[n] = run("ps-async", 0.01, n, hash);
            n++;
        }
    }
    expect_near("ps-async, against a sequential loop with delay 1", async, n, "delayed");
}

/* Pairs: the same initial weights, order and pixels, so only rounding differs, and chance. */
static void expect_pairs(const char *job, const char *data, double points)
{
    const json_t *theirs = json_object_get(golden, job);
    const size_t n = json_array_size(json_object_get(theirs, "seeds"));
    double sum = 0;
    assert_true(n >= 3);
    for (size_t i = 0; i < n; i++) {
        const int seed = (int)json_integer_value(json_array_get(json_object_get(theirs, "seeds"), i));
        json_t *r = train(RUN_WITHIN,
                          "-n 1 --strategy=solo --device=cpu --data=%s --model=%s --limit-train-samples=%d "
                          "--epochs=%d --batch-size=%d --lr=%g --momentum=%g --lr-schedule=cosine --seed=%d",
                          data, text_at(theirs, "model"), (int)number_at(theirs, "samples"),
                          (int)number_at(theirs, "epochs"), (int)number_at(theirs, "batch"),
                          number_at(theirs, "lr"), number_at(theirs, "momentum"), seed);
        const json_t *pixels = json_object_get(theirs, "data_sha256");
        if (pixels != NULL && strcmp(json_string_value(pixels), text_at(r, "data_sha256")) != 0)
            system_skip("these are other pixels than those of tests/goldens/accuracy.json: another Pillow?");
        assert_string_equal(text_at(r, "init_sha256"), text_in(theirs, "init_sha256", i));
        assert_string_equal(text_at(r, "order_sha256"), text_in(theirs, "order_sha256", i));
        const double ours = number_at(r, "test_accuracy"),
                     other = json_number_value(json_array_get(json_object_get(theirs, "accuracy"), i));
        promise("accuracy of %s, %s, seed %d: %.2f %%, PyTorch %.2f %%, %+.2f points",
                text_at(theirs, "model"), job, seed, 100 * ours, 100 * other, 100 * (ours - other));
        sum += ours - other;
        json_decref(r);
    }
    promise("accuracy of %s, %s, mean of %d paired differences to PyTorch: %+.2f points (%g)",
            text_at(theirs, "model"), job, (int)n, 100 * sum / (double)n, points);
    assert_true(fabs(sum / (double)n) <= points / 100);
}

static void test_resnet18(void **state)
{
    (void)state;
    expect_pairs("resnet18", "fashion-mnist", 1);
}

static void test_photographs(void **state)
{
    (void)state;
    char folder[4096];
    process maker;
    snprintf(folder, sizeof folder, "%s/photos", system_folder());
    process_start(&maker, EN_PYTHON, NULL, "%s/tools/make_cifar.py --photos %s", EN_SOURCE_DIR, folder);
    if (process_wait(&maker, RUN_WITHIN) != 0) system_skip("make_cifar.py --photos: %s", process_err(&maker));
    expect_pairs("photographs", folder, 2);
}

/* Pairs of our own: the same weights at first, the same samples, so only the rounding of factors differs. */
static void test_bf16(void **state)
{
    static const char *const networks[] = {
        "--model=convnet --limit-train-samples=20000 --lr=0.02",
        "--model=resnet18:width=8 --limit-train-samples=8000 --lr=0.05 --bn-stats=recompute:2000"};
    (void)state;
    for (int k = 0; k < 2; k++) {
        double sum = 0;
        for (int seed = 1; seed <= FEW; seed++) {
            double accuracy[2];
            for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
                json_t *r = train(RUN_WITHIN,
                                  "-n 2 --strategy=ring " JOB " --lr-schedule=linear --seed=%d %s "
                                  "--precision=%s",
                                  seed, networks[k], is_bf16 ? "bf16" : "fp32");
                accuracy[is_bf16] = number_at(r, "test_accuracy");
                json_decref(r);
            }
            promise("%s, seed %d: %.2f %% in bf16, %.2f %% in fp32", networks[k], seed, 100 * accuracy[1],
                    100 * accuracy[0]);
            assert_true(accuracy[1] > 0.6); /* 10 classes */
            sum += accuracy[1] - accuracy[0];
        }
        promise("%s, bf16 to fp32, mean of %d paired differences: %+.2f points (1)", networks[k], FEW,
                100 * sum / FEW);
        assert_true(fabs(sum / FEW) <= 0.01);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_synchronous),
                                       cmocka_unit_test(test_asynchronous)};
    const struct CMUnitTest of_bf16[] = {cmocka_unit_test(test_bf16)};
    const struct CMUnitTest of_resnet[] = {cmocka_unit_test(test_resnet18)};
    const struct CMUnitTest of_photographs[] = {cmocka_unit_test(test_photographs)};
    if (!has_device("cpu")) system_skip("device cpu is not built here (oneDNN is missing)");
    if (argc > 1 && strcmp(argv[1], "bf16") == 0) {
        if (!has_bf16()) system_skip("this CPU has no bf16 (avx512_bf16)");
        return system_main(of_bf16);
    }
    golden = json_load_file(EN_SOURCE_DIR "/tests/goldens/accuracy.json", 0, NULL);
    if (golden == NULL) {
        fprintf(stderr, "tests/goldens/accuracy.json cannot be read\n");
        return 1;
    }
    if (argc > 1 && strcmp(argv[1], "resnet18") == 0) return system_main(of_resnet);
    if (argc > 1 && strcmp(argv[1], "photographs") == 0) return system_main(of_photographs);
    return system_main(tests);
}
