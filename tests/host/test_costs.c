/* test_costs.c - what a bucket's exchange costs, measured among three ranks: the same figures on all of them,
 * and gradients that are as they were. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/try.h"
#include "runtime/host/costs.h"
#include "tests/collective/group_fixture.h"

enum { RANKS = 3, COUNT = FIXTURE_COUNT };

static const en_model_tensor tensors[] = {
    {.name = "a", .offset = 0, .count = 65536, .ndim = 2, .shape = {256, 256}},
    {.name = "b", .offset = 65536, .count = 16, .ndim = 2, .shape = {1, 16}},
    {.name = "c", .offset = 65552, .count = 1024, .ndim = 2, .shape = {32, 32}}};

typedef struct sharing {
    eni_coll *coll;
    eni_arena *arena;
    int calls;
} sharing;

/* By a broadcast: the control plane's part is not this test's. */
static en_status share(void *user, void *bytes, size_t length)
{
    sharing *s = user;
    float *room = eni_arena_at(s->arena, 4, 0);
    memcpy(room, bytes, length);
    const eni_coll_op op = {
        .op = EN_BCAST, .what = EN_WEIGHTS, .slot = 4, .count = (length + 3) / 4, .nsamples = 1};
    EN_TRY(eni_coll_run(s->coll, &op));
    memcpy(bytes, room, length);
    s->calls++;
    return EN_OK;
}

static int measures(int rank, int n, cluster_board *board, void *user)
{
    struct fixture *fixture = user;
    eni_arena *arena = fixture->arenas[rank];
    sharing s = {.coll = fixture_group(fixture, rank, board, 1), .arena = arena};
    eni_buckets *buckets;
    eni_costs costs, first;
    CLUSTER_CHECK(s.coll != NULL);
    CLUSTER_CHECK(eni_buckets_new(tensors, 3, 66576, 65536, &buckets) == EN_OK);
    const eni_costs_config config = {.rank = rank,
                                     .nranks = n,
                                     .buckets = buckets,
                                     .coll = s.coll,
                                     .optimizer = eni_optimizer_find("sgd"),
                                     .share = share,
                                     .user = &s};
    CLUSTER_CHECK(eni_costs_measure(&config, &costs) == EN_OK);
    CLUSTER_CHECK(s.calls == 2);
    CLUSTER_CHECK(costs.allreduce.n >= 2 && costs.call.n == 0); /* no client */
    for (int i = 0; i < costs.allreduce.n; i++)
        CLUSTER_CHECK(costs.allreduce.point[i].seconds > 0);
    const float *grad = eni_arena_at(arena, ENI_SLOT_GRAD, 0);
    for (int i = 0; i < 66576; i++)
        CLUSTER_CHECK(grad[i] == 0 && !signbit(grad[i]));
    first = costs; /* rank 0's, which all have */
    CLUSTER_CHECK(share(&s, &first, sizeof first) == EN_OK);
    CLUSTER_CHECK(memcmp(&first, &costs, sizeof costs) == 0);
    eni_coll_close(s.coll);
    eni_buckets_free(buckets);
    return 0;
}

static void test_measures(void **state)
{
    (void)state;
    for (int i = 0; i < NWAYS; i++) {
        struct fixture fixture;
        struct cluster cluster;
        assert_int_equal(fixture_open(&fixture, &ways[i], RANKS), 0);
        assert_int_equal(cluster_run(&cluster, RANKS, measures, &fixture, 60000), 0);
        fixture_close(&fixture);
        cluster_close(&cluster);
    }
}

static void test_of(void **state)
{
    (void)state;
    eni_costs costs = {0};
    assert_true(isnan(eni_costs_of(&costs, 0, 4, 4096)));
    assert_true(isnan(eni_costs_of(&costs, EN_ALLREDUCE, 4, 4096)));
    assert_true(isnan(eni_costs_of(&costs, 77, 4, 4096)));
    assert_true(eni_costs_of(&costs, EN_ALLREDUCE, 1, 4096) == 0); /* alone: the identity */
    eni_cost_add(&costs.allreduce, 4096, 2);
    eni_cost_add(&costs.call, 4096, 5);
    assert_true(eni_costs_of(&costs, EN_ALLREDUCE, 4, 4096) == 2);
    assert_true(eni_costs_of(&costs, EN_ALLGATHER, 4, 4096) == 1); /* half of the bytes */
    assert_true(eni_costs_of(&costs, 0, 4, 4096) == 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_measures), cmocka_unit_test(test_of)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
