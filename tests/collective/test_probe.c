/* test_probe.c - measurements end, are positive, leave zeros as zeros, and make as many rounds on all ranks.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/memory.h"
#include "runtime/collective/probe.h"
#include "tests/collective/group_fixture.h"

enum { RANKS = 3, SIZES = 3 };

static int probes(int rank, int n, cluster_board *board, void *user)
{
    struct fixture *fixture = user;
    eni_coll *coll = fixture_group(fixture, rank, board, 1);
    static const uint64_t bytes[SIZES] = {4, 4096, 65536};
    eni_cost_curve curve;
    eni_coll_counters count;
    (void)n;
    CLUSTER_CHECK(coll != NULL);
    CLUSTER_CHECK(eni_probe_allreduce(coll, 1, bytes, SIZES, ENI_MILLI, &curve) == EN_OK);
    CLUSTER_CHECK(curve.n == SIZES);
    for (int i = 0; i < SIZES; i++)
        CLUSTER_CHECK(curve.point[i].bytes == (double)bytes[i] && curve.point[i].seconds > 0);
    const float *v = eni_coll_slot(coll, 1);
    for (int i = 0; i < 16384; i++)
        CLUSTER_CHECK(v[i] == 0 && !signbit(v[i]));
    /* the number of operations is the same everywhere: its mean is its own */
    eni_coll_count(coll, &count);
    *eni_coll_slot(coll, 2) = (float)count.ops;
    const eni_coll_op op = {.op = EN_ALLREDUCE, .what = EN_WEIGHTS, .slot = 2, .count = 1, .nsamples = 1};
    CLUSTER_CHECK(eni_coll_run(coll, &op) == EN_OK);
    CLUSTER_CHECK(*eni_coll_slot(coll, 2) == (float)count.ops);
    eni_coll_close(coll);
    return 0;
}

static void test_among_ranks(void **state)
{
    (void)state;
    for (int i = 0; i < NWAYS; i++) {
        struct fixture fixture;
        struct cluster cluster;
        assert_int_equal(fixture_open(&fixture, &ways[i], RANKS), 0);
        assert_int_equal(cluster_run(&cluster, RANKS, probes, &fixture, 60000), 0);
        fixture_close(&fixture);
        cluster_close(&cluster);
    }
}

static void test_one_core(void **state)
{
    (void)state;
    enum { BYTES = 1 << 16 };
    float *a = eni_alloc(BYTES), *b = eni_alloc(BYTES);
    a[5] = 3;
    const double copy = eni_probe_copy(b, a, BYTES, ENI_MILLI);
    assert_true(copy > 0 && copy < 1e-3);
    assert_true(b[5] == 3); /* it did copy */
    const double sum = eni_probe_sum(b, a, BYTES, ENI_MILLI);
    assert_true(sum > 0 && sum < 1e-3);
    assert_true(b[5] >= 6); /* it did add */
    eni_free(a);
    eni_free(b);
}

static void test_median(void **state)
{
    (void)state;
    double odd[] = {3, 1, 2}, one[] = {7};
    assert_true(eni_probe_median(odd, 3) == 2 && eni_probe_median(one, 1) == 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_among_ranks), cmocka_unit_test(test_one_core),
                                       cmocka_unit_test(test_median)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
