/* test_coll_alloc.c - collectives in shared memory allocate nothing once a group is open: not in an
 * all-reduce, not in one with its step, not in one of private memory. This program's malloc counts calls;
 * they end in glibc's own functions. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "bench/private.h"
#include "tests/collective/group_fixture.h"

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

static atomic_long allocations;

void *malloc(size_t bytes)
{
    allocations++;
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t size)
{
    allocations++;
    return __libc_calloc(n, size);
}

void *realloc(void *old, size_t bytes)
{
    allocations++;
    return __libc_realloc(old, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    allocations++;
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory_out, size_t alignment, size_t bytes)
{
    allocations++;
    *memory_out = __libc_memalign(alignment, bytes);
    return *memory_out ? 0 : ENOMEM;
}

enum { RANKS = 3, COUNT = 100000, ROUNDS = 5 };

static void take(void *user, uint64_t lo, uint64_t hi, const eni_sources *from)
{
    (void)lo, (void)hi, (void)from;
    ++*(int *)user;
}

static int run_all(int rank, int n, cluster_board *board, void *user)
{
    static float data[COUNT];
    (void)n;
    int taken = 0;
    const long closed = allocations;
    eni_coll *coll = fixture_group(user, rank, board, 1);
    CLUSTER_CHECK(coll && allocations > closed); /* it counts */
    eni_coll_op op = {.op = EN_ALLREDUCE, .what = EN_WEIGHTS, .slot = 1, .count = COUNT};
    eni_coll_op step = op;
    step.op = ENI_COLL_MEAN_STEP;
    step.on_reduced = take;
    step.on_reduced_user = &taken;
    const long open = allocations;
    for (int i = 0; i < ROUNDS; i++) {
        CLUSTER_CHECK(eni_coll_run(coll, &op) == EN_OK);
        CLUSTER_CHECK(eni_coll_run(coll, &step) == EN_OK);
        CLUSTER_CHECK(private_allreduce(coll, &op, data) == EN_OK);
    }
    CLUSTER_CHECK(taken == ROUNDS && allocations == open);
    eni_coll_close(coll);
    return 0;
}

static void nothing_is_allocated(void **state)
{
    (void)state;
    struct fixture fixture;
    struct cluster cluster;
    assert_int_equal(fixture_open(&fixture, &ways[0], RANKS), 0);
    const int bad = cluster_run(&cluster, RANKS, run_all, &fixture, 60000);
    fixture_close(&fixture);
    cluster_close(&cluster);
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_allocated)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
