/* test_private.c - the all-reduce of private memory has the bits of one in the arena, for any length and
 * staging area; nothing outside that area is touched. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "bench/private.h"
#include "core/log.h"
#include "core/memory.h"
#include "tests/collective/group_fixture.h"

enum { MAX_RANKS = 4, MAX_COUNT = 250007, SLOT = 2 };

static int check_one(eni_coll *coll, const struct fixture *fixture, int rank, uint64_t count, uint64_t offset,
                     float **src)
{
    float *expected = src[MAX_RANKS], *data = src[MAX_RANKS + 1];
    uint64_t nsamples[MAX_RANKS];
    for (int r = 0; r < fixture->n; r++) {
        fixture_fill(src[r], r, count, count);
        nsamples[r] = (uint64_t)(r + 1) * 3;
    }
    eni_mean_ranks(expected, (const float *const *)src, nsamples, fixture->n, ENI_SUM_RANK, count, 0, count);
    memcpy(data, src[rank], count * sizeof *data);
    data[count] = 77;
    float *before = offset > 0 ? eni_arena_at(fixture->arenas[rank], SLOT, offset - 1) : NULL;
    if (before) *before = 78;
    *eni_arena_at(fixture->arenas[rank], SLOT + 1, 0) = 79;
    const eni_coll_op op = {.op = EN_ALLREDUCE,
                            .what = EN_GRAD,
                            .bucket = 5,
                            .slot = SLOT,
                            .offset = offset,
                            .count = count,
                            .nsamples = nsamples[rank]};
    CLUSTER_CHECK(private_allreduce(coll, &op, data) == EN_OK);
    CLUSTER_CHECK(memcmp(data, expected, count * sizeof *data) == 0);
    CLUSTER_CHECK(data[count] == 77 && (!before || *before == 78));
    CLUSTER_CHECK(*eni_arena_at(fixture->arenas[rank], SLOT + 1, 0) == 79);
    return 0;
}

static void keep_quiet(void *user, int level, const char *subsystem, const char *text)
{
    (void)subsystem, (void)text;
    if (level == ENI_LOG_ERROR) ++*(int *)user;
}

static int run_all(int rank, int n, cluster_board *board, void *user)
{
    struct fixture *fixture = user;
    const uint64_t counts[] = {0, 1, 17, 1000, PRIVATE_STAGE / 3, PRIVATE_STAGE / 3 + 1, MAX_COUNT};
    float *src[MAX_RANKS + 2];
    eni_coll *coll = fixture_group(fixture, rank, board, 1);
    CLUSTER_CHECK(coll && n <= MAX_RANKS);
    for (int r = 0; r < MAX_RANKS + 2; r++)
        src[r] = eni_alloc_array(MAX_COUNT + 1, sizeof *src[r]);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        if (check_one(coll, fixture, rank, counts[c], 16, src) != 0) return 1;
    if (check_one(coll, fixture, rank, 1000, FIXTURE_COUNT - 48, src) != 0) return 1; /* the smallest area */
    int errors = 0;
    eni_log_set_sink(keep_quiet, &errors);
    eni_coll_op op = {.op = EN_ALLREDUCE, .slot = SLOT, .offset = FIXTURE_COUNT - 47, .count = 1000};
    CLUSTER_CHECK(private_allreduce(coll, &op, src[0]) == EN_EINVAL);
    op.offset = UINT64_MAX;
    CLUSTER_CHECK(private_allreduce(coll, &op, src[0]) == EN_EINVAL);
    op.offset = 0;
    op.slot = FIXTURE_NSLOTS;
    CLUSTER_CHECK(private_allreduce(coll, &op, src[0]) == EN_EINVAL);
    op.slot = SLOT;
    op.op = EN_BCAST;
    CLUSTER_CHECK(private_allreduce(coll, &op, src[0]) == EN_EINVAL && errors == 4);
    eni_log_set_sink(NULL, NULL);
    eni_coll_close(coll);
    for (int r = 0; r < MAX_RANKS + 2; r++)
        eni_free(src[r]);
    return 0;
}

static void same_bits(void **state)
{
    (void)state;
    const struct {
        int way, n;
    } cases[] = {{0, 1}, {0, 2}, {0, 4}, {1, 3}, {3, 2}}; /* direct, naive, naive over TCP: rank order */
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct fixture fixture;
        struct cluster cluster;
        assert_int_equal(fixture_open(&fixture, &ways[cases[c].way], cases[c].n), 0);
        const int bad = cluster_run(&cluster, cases[c].n, run_all, &fixture, 60000);
        cluster_close(&cluster);
        fixture_close(&fixture);
        assert_int_equal(bad, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
