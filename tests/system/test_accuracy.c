/* test_accuracy.c - one epoch of Fashion-MNIST with two workers learns what PyTorch learns with the same
 * global batch, and asynchronously what a sequential loop with a delay of one learns.
 *
 * tests/goldens/accuracy.json says what PyTorch reached from the same initial weights in the same order of
 * samples (tools/make_accuracy_goldens.py). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/system/run.h"

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

static const char *golden_text(const char *key, int i)
{
    return json_string_value(json_array_get(json_object_get(golden, key), (size_t)i));
}

/* The run of a seed in test accuracy; hash_out: its weights. */
static double run(const char *strategy, double lr, int i, char hash_out[72])
{
    json_int_t seed = json_integer_value(json_array_get(json_object_get(golden, "seeds"), (size_t)i));
    json_t *r = train(RUN_WITHIN, "-n 2 --strategy=%s --lr=%g --seed=%d " JOB, strategy, lr, (int)seed);
    /* The comparison is of like with like. */
    assert_string_equal(text_at(r, "init_sha256"), golden_text("init_sha256", i));
    assert_string_equal(text_at(r, "order_sha256"), golden_text("order_sha256", i));
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

/* ps-sync is the ring's twin on a whole epoch too; that its median is the ring's follows. */
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

/* No two asynchronous runs are alike: one accuracy has a spread of a point, so a median of three may miss by
 * chance. Then more seeds decide. */
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
