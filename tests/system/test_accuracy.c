/* test_accuracy.c - one epoch of Fashion-MNIST with two workers learns what PyTorch learns with the same
 * global batch, and asynchronously what a sequential loop with a delay of one learns.
 *
 * tests/goldens/accuracy.json says what PyTorch reached from the same initial weights in the same order of
 * samples (tools/make_accuracy_goldens.py). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/system/run.h"

enum { SEEDS = 3 };

#define JOB "--device=cpu --batch-size=64 --epochs=1 --momentum=0.5"

static json_t *golden;

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values)
{
    double sorted[SEEDS];
    memcpy(sorted, values, sizeof sorted);
    qsort(sorted, SEEDS, sizeof *sorted, compare);
    return sorted[SEEDS / 2];
}

static const char *golden_text(const char *key, int i)
{
    return json_string_value(json_array_get(json_object_get(golden, key), (size_t)i));
}

/* The run of a seed in test accuracy; hash_out: its weights. */
static double run(const char *strategy, double lr, int i, char hash_out[72])
{
    json_int_t seed = json_integer_value(json_array_get(json_object_get(golden, "seeds"), (size_t)i));
    json_t *r = train(150, "-n 2 --strategy=%s --lr=%g --seed=%d " JOB, strategy, lr, (int)seed);
    /* The comparison is of like with like. */
    assert_string_equal(text_at(r, "init_sha256"), golden_text("init_sha256", i));
    assert_string_equal(text_at(r, "order_sha256"), golden_text("order_sha256", i));
    assert_true(number_at(r, "samples_applied") == 60000);
    double accuracy = number_at(r, "test_accuracy");
    strcpy(hash_out, text_at(r, "params_sha256"));
    json_decref(r);
    return accuracy;
}

static void expect_near(const char *what, const double *ours, const char *job)
{
    const json_t *reference = json_object_get(golden, job);
    double theirs = number_at(reference, "median"), gap = median(ours) - theirs;
    if (!(fabs(gap) <= 0.01))
        fail_msg("%s: median %.4f (%.4f %.4f %.4f), PyTorch %.4f", what, median(ours), ours[0], ours[1],
                 ours[2], theirs);
    promise(
        "accuracy after one epoch, W = 2, median of 3 seeds: %s %.2f %% (%.2f %.2f %.2f), reference %.2f %%, "
        "gap %+.2f points (1)",
        what, 100 * median(ours), 100 * ours[0], 100 * ours[1], 100 * ours[2], 100 * theirs, 100 * gap);
}

/* ps-sync is the ring's twin on the whole epoch too, so that its median is the ring's. */
static void test_synchronous(void **state)
{
    double ring[SEEDS], sync[SEEDS];
    char ring_hash[72], sync_hash[72];
    (void)state;
    for (int i = 0; i < SEEDS; i++) {
        ring[i] = run("ring", 0.02, i, ring_hash);
        sync[i] = run("ps-sync", 0.02, i, sync_hash);
        assert_string_equal(ring_hash, sync_hash);
    }
    expect_near("ring", ring, "sync");
    expect_near("ps-sync", sync, "sync");
    promise("same bytes on Fashion-MNIST: ring = ps-sync over a whole epoch, cpu, W = 2, 3 seeds");
}

static void test_asynchronous(void **state)
{
    double async[SEEDS];
    char hash[72];
    (void)state;
    for (int i = 0; i < SEEDS; i++)
        async[i] = run("ps-async", 0.01, i, hash);
    expect_near("ps-async", async, "delayed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_synchronous),
                                       cmocka_unit_test(test_asynchronous)};
    if (!has_device("cpu")) system_skip("device cpu is not built here (oneDNN is missing)");
    golden = json_load_file(EN_SOURCE_DIR "/tests/goldens/accuracy.json", 0, NULL);
    if (golden == NULL) {
        fprintf(stderr, "tests/goldens/accuracy.json cannot be read\n");
        return 1;
    }
    return system_main(tests);
}
