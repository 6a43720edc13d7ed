/* test_coll_ops.c - the other operations, many at once, late ranks, small worlds, counters, the emulated net.
 */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/memory.h"
#include "runtime/net/shaper.h"
#include "tests/collective/group_fixture.h"

enum { N = 3, COUNT = 5000 };

/* Runs `main` on n ranks by each way in turn. */
static void by_every_way(cluster_main main, int n)
{
    for (int w = 0; w < NWAYS; w++) {
        struct fixture fixture;
        struct cluster cluster;
        assert_int_equal(fixture_open(&fixture, &ways[w], n), 0);
        const int bad = cluster_run(&cluster, n, main, &fixture, 60000);
        if (bad) fprintf(stderr, "%s\n", ways[w].name);
        cluster_close(&cluster);
        fixture_close(&fixture);
        assert_int_equal(bad, 0);
    }
}

static void by_every_way_in_1_2_4(cluster_main main)
{
    by_every_way(main, 1);
    by_every_way(main, 2);
    by_every_way(main, 4);
}

/* Uneven ranges with gaps: rank 1 has none. */
static void range_of(int rank, eni_coll_op *op)
{
    op->lo = rank == 0 ? 0 : rank == 1 ? 1777 : 1800;
    op->hi = rank == 0 ? 1777 : rank == 1 ? 1777 : op->count - 3;
}

static int ranges(int rank, int n, cluster_board *board, void *user)
{
    struct fixture *fixture = user;
    eni_coll *coll = fixture_group(fixture, rank, board, 1);
    CLUSTER_CHECK(coll);
    float *vector = eni_arena_at(fixture->arenas[rank], 1, 0);
    fixture_fill(vector, rank, 0, COUNT);
    eni_coll_op op = {.op = EN_REDUCE_SCATTER, .what = EN_GRAD, .slot = 1, .count = COUNT, .nsamples = 2};
    range_of(rank, &op);
    CLUSTER_CHECK(eni_coll_run(coll, &op) == EN_OK);
    for (uint64_t i = op.lo; i < op.hi; i++) {
        double sum = 0;
        for (int r = 0; r < n; r++)
            sum += (double)fixture_value(r, 0, i);
        const double gap = (double)vector[i] - sum / n;
        CLUSTER_CHECK(gap < 1e-6 && gap > -1e-6);
    }

    fixture_fill(vector, rank, 1, COUNT);
    op.op = EN_ALLGATHER;
    op.what = EN_WEIGHTS;
    CLUSTER_CHECK(eni_coll_run(coll, &op) == EN_OK);
    for (uint64_t i = 0; i < COUNT; i++) {
        int owner = rank; /* what belongs to nobody stays */
        for (int r = 0; r < n; r++) {
            eni_coll_op theirs = {.count = COUNT};
            range_of(r, &theirs);
            if (i >= theirs.lo && i < theirs.hi) owner = r;
        }
        CLUSTER_CHECK(vector[i] == fixture_value(owner, 1, i));
    }
    eni_coll_close(coll);
    return 0;
}

static void reduce_scatter_and_allgather(void **state)
{
    (void)state;
    by_every_way(ranges, N);
}

static int rooted(int rank, int n, cluster_board *board, void *user)
{
    struct fixture *fixture = user;
    eni_coll *coll = fixture_group(fixture, rank, board, 1);
    CLUSTER_CHECK(coll);
    float *vector = eni_arena_at(fixture->arenas[rank], 1, 0);
    fixture_fill(vector, rank, 0, COUNT);
    eni_coll_op op = {.op = EN_REDUCE, .what = EN_WEIGHTS, .slot = 1, .count = COUNT};
    CLUSTER_CHECK(eni_coll_run(coll, &op) == EN_OK);
    for (uint64_t i = 0; rank == 0 && i < COUNT; i++) {
        double sum = 0;
        for (int r = 0; r < n; r++)
            sum += (double)fixture_value(r, 0, i);
        const double gap = (double)vector[i] - sum / n;
        CLUSTER_CHECK(gap < 1e-6 && gap > -1e-6);
    }
    fixture_fill(vector, rank, 1, COUNT);
    op.op = EN_BCAST;
    CLUSTER_CHECK(eni_coll_run(coll, &op) == EN_OK);
    for (uint64_t i = 0; i < COUNT; i++)
        CLUSTER_CHECK(vector[i] == fixture_value(0, 1, i));
    op.op = ENI_COLL_BARRIER;
    CLUSTER_CHECK(eni_coll_run(coll, &op) == EN_OK);
    eni_coll_close(coll);
    return 0;
}

static void reduce_broadcast_barrier(void **state)
{
    (void)state;
    by_every_way_in_1_2_4(rooted);
}

/* How many samples are behind a reduction, on whoever has its result. */
static int counts_samples(int rank, int n, cluster_board *board, void *user)
{
    static const int ops[] = {EN_ALLREDUCE, EN_REDUCE_SCATTER, EN_REDUCE, EN_BCAST};
    struct fixture *fixture = user;
    eni_coll *coll = fixture_group(fixture, rank, board, 1);
    CLUSTER_CHECK(coll);
    for (int i = 0; i < 8; i++) {
        const int op_kind = ops[i / 2], has_samples = i % 2;
        const uint64_t all = has_samples ? (uint64_t)(n * (n - 1) / 2) * 3 : 0;
        eni_coll_op op = {.op = op_kind, .what = EN_GRAD, .slot = 1, .count = COUNT};
        op.nsamples = has_samples ? (uint64_t)rank * 3 : 0;
        op.hi = rank == n - 1 ? COUNT : 0;
        uint64_t req;
        CLUSTER_CHECK(eni_coll_submit(coll, &op, &req) == EN_OK && eni_coll_wait(coll, req) == EN_OK);
        if (op_kind == EN_BCAST)
            CLUSTER_CHECK(eni_coll_samples(coll, req) == UINT64_MAX);
        else if (op_kind != EN_REDUCE || rank == 0)
            CLUSTER_CHECK(eni_coll_samples(coll, req) == all);
        CLUSTER_CHECK(eni_coll_samples(coll, req + 1) == UINT64_MAX);
    }
    eni_coll_close(coll);
    return 0;
}

static void samples_behind_a_reduction(void **state)
{
    (void)state;
    by_every_way_in_1_2_4(counts_samples);
}

/* A ring of sendrecvs (D-PSGD): to the right from the left and the other way, both under way at once. */
static int sendrecvs(int rank, int n, cluster_board *board, void *user)
{
    struct fixture *fixture = user;
    const int right = (rank + 1) % n, left = (rank + n - 1) % n;
    eni_coll *coll = fixture_group(fixture, rank, board, 1);
    CLUSTER_CHECK(coll);
    for (uint64_t round = 0; round < 20; round++) {
        fixture_fill(eni_arena_at(fixture->arenas[rank], 1, 0), rank, round, COUNT);
        uint64_t req[2];
        const eni_coll_op a = {.op = ENI_COLL_SENDRECV,
                               .what = EN_WEIGHTS,
                               .slot = 1,
                               .count = COUNT,
                               .to = right,
                               .from = left,
                               .slot_in = 2};
        const eni_coll_op b = {.op = ENI_COLL_SENDRECV,
                               .what = EN_WEIGHTS,
                               .slot = 1,
                               .count = COUNT,
                               .to = left,
                               .from = right,
                               .slot_in = 3};
        CLUSTER_CHECK(eni_coll_submit(coll, &a, &req[0]) == EN_OK);
        CLUSTER_CHECK(eni_coll_submit(coll, &b, &req[1]) == EN_OK);
        CLUSTER_CHECK(eni_coll_wait(coll, req[1]) == EN_OK);
        CLUSTER_CHECK(eni_coll_wait(coll, req[0]) == EN_OK);
        for (uint64_t i = 0; i < COUNT; i += 7) {
            CLUSTER_CHECK(*eni_arena_at(fixture->arenas[rank], 2, i) == fixture_value(left, round, i));
            CLUSTER_CHECK(*eni_arena_at(fixture->arenas[rank], 3, i) == fixture_value(right, round, i));
        }
    }
    eni_coll_close(coll);
    return 0;
}

static void sendrecv_with_neighbours(void **state)
{
    (void)state;
    by_every_way_in_1_2_4(sendrecvs);
}

/* A round of sendrecvs: whom each rank sends to, and receives from; itself: nobody. The same on all ranks. */
static void draw_matching(uint64_t *state, int n, int to[], int from[])
{
    for (int r = 0; r < n; r++)
        to[r] = from[r] = r;
    for (int r = 0; r < n; r++) {
        *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        const int other = (int)(*state >> 33) % n;
        if (*state >> 62 == 0 || other == r || from[other] != other) continue;
        to[r] = other;
        from[other] = r;
    }
}

/* Random matchings of any number of ranks, with all-reduces between them: many under way, of which each rank waits
 * in an order of its own. A rank with neither partner makes no call. */
static int matchings(int rank, int n, cluster_board *board, void *user)
{
    enum { ROUNDS = 60, AT_ONCE = 6, PART = 4000 };
    struct fixture *fixture = user;
    eni_coll *coll = fixture_group(fixture, rank, board, 1);
    uint64_t state = (uint64_t)n, own = (uint64_t)rank + 1;
    CLUSTER_CHECK(coll);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t req[AT_ONCE + 1] = {0};
        int to[CLUSTER_MAX], from[CLUSTER_MAX], source[AT_ONCE];
        const int mean_at = (int)(round % (AT_ONCE + 4)); /* in some rounds there is none */
        fixture_fill(eni_arena_at(fixture->arenas[rank], 1, 0), rank, round, AT_ONCE * PART);
        fixture_fill(eni_arena_at(fixture->arenas[rank], 3, 0), rank, round, PART);
        for (int i = 0; i < AT_ONCE; i++) {
            const eni_coll_op mean = {.op = EN_ALLREDUCE, .what = EN_WEIGHTS, .slot = 3, .count = PART};
            if (i == mean_at) CLUSTER_CHECK(eni_coll_submit(coll, &mean, &req[AT_ONCE]) == EN_OK);
            draw_matching(&state, n, to, from);
            source[i] = from[rank];
            if (to[rank] == rank && from[rank] == rank) continue;
            const eni_coll_op op = {.op = ENI_COLL_SENDRECV,
                                    .what = EN_WEIGHTS,
                                    .bucket = (uint32_t)i,
                                    .slot = 1,
                                    .offset = (uint64_t)i * PART,
                                    .count = i == 3 ? 0 : PART,
                                    .to = to[rank],
                                    .from = from[rank],
                                    .slot_in = 2};
            CLUSTER_CHECK(eni_coll_submit(coll, &op, &req[i]) == EN_OK);
        }
        own = own * 6364136223846793005u + 1;
        for (int k = 0; k <= AT_ONCE; k++) {
            const int i = (k + (int)(own >> 40) % (AT_ONCE + 1)) % (AT_ONCE + 1);
            if (req[i] == 0) continue;
            CLUSTER_CHECK(eni_coll_wait(coll, req[i]) == EN_OK && eni_coll_test(coll, req[i]));
            for (uint64_t j = 0; i < AT_ONCE && i != 3 && j < PART; j += 7)
                CLUSTER_CHECK(*eni_arena_at(fixture->arenas[rank], 2, (uint64_t)i * PART + j) ==
                              fixture_value(source[i], round, (uint64_t)i * PART + j));
        }
    }
    eni_coll_close(coll);
    return 0;
}

/* The same in many frames with checksums. */
static void in_small_frames(cluster_main main, int n)
{
    for (int w = 2; w < NWAYS; w++) {
        struct fixture fixture;
        struct cluster cluster;
        assert_int_equal(fixture_open(&fixture, &ways[w], n), 0);
        fixture.segment = 500;
        fixture.has_crc = 1;
        const int bad = cluster_run(&cluster, n, main, &fixture, 60000);
        cluster_close(&cluster);
        fixture_close(&fixture);
        assert_int_equal(bad, 0);
    }
}

static void sendrecv_by_any_matching(void **state)
{
    (void)state;
    by_every_way(matchings, 2);
    by_every_way(matchings, 3);
    by_every_way(matchings, 5);
    in_small_frames(matchings, 3);
}

/* A sendrecv is done when its partner has come, whatever was begun before it: rank 0 waits for the second first,
 * and the first comes after something that rank 0 does then. */
static int out_of_order(int rank, int n, cluster_board *board, void *user)
{
    struct fixture *fixture = user;
    eni_coll *coll = fixture_group(fixture, rank, board, 1);
    (void)n;
    CLUSTER_CHECK(coll);
    for (int round = 0; round < 20; round++) {
        eni_coll_op op = {
            .op = ENI_COLL_SENDRECV, .what = EN_WEIGHTS, .slot = 1, .count = COUNT, .slot_in = 2};
        uint64_t req[3];
        op.to = op.from = rank == 0 ? 1 : 0;
        if (rank == 0) {
            CLUSTER_CHECK(eni_coll_submit(coll, &op, &req[0]) == EN_OK);
            op.to = op.from = 2;
            op.slot_in = 3;
            CLUSTER_CHECK(eni_coll_submit(coll, &op, &req[1]) == EN_OK);
            CLUSTER_CHECK(eni_coll_wait(coll, req[1]) == EN_OK);
            CLUSTER_CHECK(eni_coll_submit(coll, &op, &req[2]) == EN_OK);
            CLUSTER_CHECK(eni_coll_wait(coll, req[0]) == EN_OK && eni_coll_wait(coll, req[2]) == EN_OK);
        } else if (rank == 2) {
            CLUSTER_CHECK(eni_coll_run(coll, &op) == EN_OK && eni_coll_run(coll, &op) == EN_OK);
            op.to = op.from = 1; /* only now may rank 1 come */
            CLUSTER_CHECK(eni_coll_run(coll, &op) == EN_OK);
        } else {
            op.to = op.from = 2;
            CLUSTER_CHECK(eni_coll_run(coll, &op) == EN_OK);
            op.to = op.from = 0;
            CLUSTER_CHECK(eni_coll_run(coll, &op) == EN_OK);
        }
    }
    eni_coll_close(coll);
    return 0;
}

static void sendrecvs_end_in_any_order(void **state)
{
    (void)state;
    by_every_way(out_of_order, 3);
}

/* Buckets of different lengths in one vector, all submitted before any is waited for, by ranks that arrive at
 * different times: rank r first does r milliseconds of something else. */
static int buckets(int rank, int n, cluster_board *board, void *user)
{
    enum { NBUCKETS = 60 };
    struct fixture *fixture = user;
    eni_coll *coll = fixture_group(fixture, rank, board, 1);
    CLUSTER_CHECK(coll);
    for (uint64_t round = 0; round < 3; round++) {
        uint64_t req[NBUCKETS], offset = 0;
        eni_sleep_until(eni_now_ns() + rank * ENI_MILLI);
        for (uint32_t b = 0; b < NBUCKETS; b++) {
            const uint64_t count = b * 37;
            float *vector = eni_arena_at(fixture->arenas[rank], 1, offset);
            for (uint64_t i = 0; i < count; i++)
                vector[i] = (float)(rank + 1);
            const eni_coll_op op = {.op = EN_ALLREDUCE,
                                    .what = EN_GRAD,
                                    .bucket = b,
                                    .slot = 1,
                                    .offset = offset,
                                    .count = count,
                                    .nsamples = 1};
            CLUSTER_CHECK(eni_coll_submit(coll, &op, &req[b]) == EN_OK);
            offset += eni_round_up(count, 16);
        }
        for (int b = NBUCKETS - 1; b >= 0; b--)
            CLUSTER_CHECK(eni_coll_wait(coll, req[b]) == EN_OK);
        offset = 0;
        const float mean = (float)(n * (n + 1) / 2) * (1.0f / (float)n);
        for (uint32_t b = 0; b < NBUCKETS; b++) {
            for (uint64_t i = 0; i < b * 37; i++)
                CLUSTER_CHECK(*eni_arena_at(fixture->arenas[rank], 1, offset + i) == mean);
            offset += eni_round_up(b * 37, 16);
        }
    }
    eni_coll_close(coll);
    return 0;
}

static void many_buckets_in_flight(void **state)
{
    (void)state;
    by_every_way(buckets, 2);
    by_every_way(buckets, 4);
}

/* Rank 0 submits both buckets and then waits, the others wait for the first before they submit the second.
 * What rank 0 has for the second must not stand in the way of what it still owes to the first. */
static int between(int rank, int n, cluster_board *board, void *user)
{
    struct fixture *fixture = user;
    (void)n;
    eni_coll *coll = fixture_group(fixture, rank, board, 1);
    CLUSTER_CHECK(coll);
    const eni_coll_op a = {.op = EN_ALLREDUCE, .what = EN_WEIGHTS, .slot = 1, .count = COUNT};
    const eni_coll_op b = {.op = EN_ALLREDUCE, .what = EN_WEIGHTS, .slot = 2, .count = COUNT, .bucket = 1};
    for (int round = 0; round < 30; round++) {
        uint64_t req[2];
        CLUSTER_CHECK(eni_coll_submit(coll, &a, &req[0]) == EN_OK);
        if (rank > 0) CLUSTER_CHECK(eni_coll_wait(coll, req[0]) == EN_OK);
        CLUSTER_CHECK(eni_coll_submit(coll, &b, &req[1]) == EN_OK);
        CLUSTER_CHECK(eni_coll_wait(coll, req[0]) == EN_OK);
        CLUSTER_CHECK(eni_coll_wait(coll, req[1]) == EN_OK);
    }
    eni_coll_close(coll);
    return 0;
}

static void a_rank_that_waits_in_between(void **state)
{
    (void)state;
    by_every_way(between, 2);
    by_every_way(between, 3);
}

/* Bytes that malloc has given out and not got back, in all threads. Pages would say less: the kernel counts
 * them in heaps, one for each core. */
static size_t in_use(void)
{
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

/* Twenty at a time, and no more than it takes: on a busy machine every meeting of the ranks costs
 * milliseconds. */
static int small_ones(int rank, int n, cluster_board *board, void *user)
{
    struct fixture *fixture = user;
    eni_coll *coll = fixture_group(fixture, rank, board, 1);
    CLUSTER_CHECK(coll);
    enum { AT_ONCE = 20, OPS = 2000, WARM = 400 };
    size_t before = 0;
    for (int i = 0; i < OPS; i += AT_ONCE) {
        uint64_t req[AT_ONCE];
        if (i == WARM) before = in_use();
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            const eni_coll_op op = {.op = EN_ALLREDUCE,
                                    .what = EN_WEIGHTS,
                                    .slot = 1,
                                    .bucket = k,
                                    .offset = 16 * k,
                                    .count = 10};
            CLUSTER_CHECK(eni_coll_submit(coll, &op, &req[k]) == EN_OK);
        }
        for (int k = 0; k < AT_ONCE; k++)
            CLUSTER_CHECK(eni_coll_wait(coll, req[k]) == EN_OK);
    }
    CLUSTER_CHECK(in_use() < before + OPS - WARM); /* not a byte each */
    eni_coll_counters counters;
    eni_coll_count(coll, &counters);
    CLUSTER_CHECK(counters.ops == OPS && n == 2);
    eni_coll_close(coll);
    return 0;
}

static void many_small_ones_do_not_grow(void **state)
{
    (void)state;
    by_every_way(small_ones, 2);
}

/* Bytes against theory: exact for direct and naive, where the slices are even. */
static int counted(int rank, int n, cluster_board *board, void *user)
{
    struct fixture *fixture = user;
    const uint64_t count = 16 * 1000 * (uint64_t)n, rounds = 3;
    const double vectors = (double)(rounds * count * sizeof(float));
    const int over_shm = fixture->way->transport == ENI_OVER_SHM;
    eni_coll *coll = fixture_group(fixture, rank, board, 1);
    CLUSTER_CHECK(coll);
    const eni_coll_op op = {.op = EN_ALLREDUCE, .what = EN_GRAD, .slot = 1, .count = count, .nsamples = 1};
    for (uint64_t i = 0; i < rounds; i++)
        CLUSTER_CHECK(eni_coll_run(coll, &op) == EN_OK);
    eni_coll_counters moved;
    eni_coll_count(coll, &moved);
    const double theory = eni_coll_bytes(fixture->way->algorithm, EN_ALLREDUCE, n) * vectors;
    CLUSTER_CHECK((double)moved.payload_sent == theory && (double)moved.payload_recv == theory);
    CLUSTER_CHECK((moved.shm_bytes > 0) == over_shm && (moved.wire_sent == 0) == over_shm);
    if (!over_shm) {
        CLUSTER_CHECK((double)moved.wire_sent > theory && (double)moved.wire_sent < theory * 1.05);
        CLUSTER_CHECK(moved.wire_recv > moved.payload_recv);
    }
    eni_coll_close(coll);
    return 0;
}

static void bytes_are_the_theory(void **state)
{
    (void)state;
    by_every_way(counted, 2);
    by_every_way(counted, 4);
}

/* Flags left over from epoch 1 say nothing in epoch 2, which numbers its operations from the start. */
static int two_epochs(int rank, int n, cluster_board *board, void *user)
{
    struct fixture *fixture = user;
    (void)n;
    float *vector = eni_arena_at(fixture->arenas[rank], 1, 0);
    for (uint32_t epoch = 1; epoch <= 2; epoch++) {
        eni_coll *coll = fixture_group(fixture, rank, board, epoch);
        CLUSTER_CHECK(coll);
        for (int i = 0; i < 3; i++) {
            if (epoch == 2 && rank == 1) eni_sleep_until(eni_now_ns() + 5 * ENI_MILLI);
            vector[0] = (float)(rank + i);
            const eni_coll_op op = {.op = EN_ALLREDUCE, .what = EN_WEIGHTS, .slot = 1, .count = 1};
            CLUSTER_CHECK(eni_coll_run(coll, &op) == EN_OK);
            CLUSTER_CHECK(vector[0] == (float)i + 0.5f);
        }
        eni_coll_close(coll);
    }
    return 0;
}

static void a_new_epoch_starts_afresh(void **state)
{
    (void)state;
    struct fixture fixture;
    struct cluster cluster;
    assert_int_equal(fixture_open(&fixture, &ways[0], 2), 0);
    const int bad = cluster_run(&cluster, 2, two_epochs, &fixture, 60000);
    cluster_close(&cluster);
    fixture_close(&fixture);
    assert_int_equal(bad, 0);
}

/* A vector of 0.5 MB by a ring of two at 20 MB/s and 2 ms. From my start my half of the sums takes 12.5 ms to
 * leave and 2 ms to arrive, and the last mean that depends on it 2 ms to come back. (All in all it is 27 ms,
 * but the neighbour may have started a little earlier.) Without the emulation it would take less than one. */
static int shaped(int rank, int n, cluster_board *board, void *user)
{
    struct fixture *fixture = user;
    (void)n;
    fixture->shaper = eni_shaper_new(20000000, 2 * ENI_MILLI);
    eni_coll *coll = fixture_group(fixture, rank, board, 1);
    CLUSTER_CHECK(coll);
    const eni_coll_op barrier = {.op = ENI_COLL_BARRIER};
    CLUSTER_CHECK(eni_coll_run(coll, &barrier) == EN_OK);
    const eni_coll_op op = {.op = EN_ALLREDUCE, .what = EN_WEIGHTS, .slot = 1, .count = 125000};
    const int64_t begin_ns = eni_now_ns();
    CLUSTER_CHECK(eni_coll_run(coll, &op) == EN_OK);
    const double ms = (double)(eni_now_ns() - begin_ns) / 1e6;
    CLUSTER_CHECK(ms >= 16.5 && ms < 2000);
    eni_coll_close(coll);
    eni_shaper_free(fixture->shaper);
    return 0;
}

static void the_emulated_network_takes_its_time(void **state)
{
    (void)state;
    struct fixture fixture;
    struct cluster cluster;
    assert_int_equal(fixture_open(&fixture, &ways[2], 2), 0);
    const int bad = cluster_run(&cluster, 2, shaped, &fixture, 60000);
    cluster_close(&cluster);
    fixture_close(&fixture);
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reduce_scatter_and_allgather), cmocka_unit_test(reduce_broadcast_barrier),
        cmocka_unit_test(samples_behind_a_reduction),   cmocka_unit_test(sendrecv_with_neighbours),
        cmocka_unit_test(sendrecv_by_any_matching),     cmocka_unit_test(sendrecvs_end_in_any_order),
        cmocka_unit_test(many_buckets_in_flight),       cmocka_unit_test(a_rank_that_waits_in_between),
        cmocka_unit_test(many_small_ones_do_not_grow),  cmocka_unit_test(bytes_are_the_theory),
        cmocka_unit_test(a_new_epoch_starts_afresh),    cmocka_unit_test(the_emulated_network_takes_its_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
