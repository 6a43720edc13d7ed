/* test_coll_exact.c - every all-reduce gives the bits that ops/mean.h promises, on every rank, for any number
 * of ranks, any length and any distribution of samples. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/memory.h"
#include "tests/collective/group_fixture.h"

enum { MAX_RANKS = 5, MAX_COUNT = 100003, NPATTERNS = 4 };

/* Samples behind rank r's contribution: even, ragged, one rank without any, none at all. */
static uint64_t samples_of(int pattern, int rank)
{
    switch (pattern) {
    case 0: return 64;
    case 1: return 64 - 7 * (uint64_t)rank;
    case 2: return rank == 1 ? 0 : 3;
    default: return 0;
    }
}

struct job {
    uint64_t count, round;
    int pattern, what;
};

static int is_close_to_exact(const struct job *job, int n, const float *mean, float *const *src)
{
    long double total = 0;
    for (int r = 0; r < n; r++)
        total += job->what != EN_GRAD ? 1 : samples_of(job->pattern, r);
    for (uint64_t i = 0; i < job->count && total > 0; i++) {
        long double sum = 0, magnitude = 0;
        for (int r = 0; r < n; r++) {
            const long double share =
                (long double)src[r][i] * (job->what != EN_GRAD ? 1 : samples_of(job->pattern, r)) / total;
            sum += share;
            magnitude += fabsl(share);
        }
        if (fabsl(mean[i] - sum) > 1e-6L * magnitude) return 0;
    }
    return 1;
}

static int check_one(eni_coll *coll, struct fixture *fixture, int rank, const struct job *job, float **src,
                     float *expected)
{
    const int n = fixture->n;
    uint64_t nsamples[MAX_RANKS];
    for (int r = 0; r < n; r++) {
        fixture_fill(src[r], r, job->round, job->count);
        nsamples[r] = job->what != EN_GRAD ? 1 : samples_of(job->pattern, r);
    }
    const eni_sum_order order = fixture->way->algorithm == ENI_COLL_RING ? ENI_SUM_RING : ENI_SUM_RANK;
    eni_mean_ranks(expected, (const float *const *)src, nsamples, n, order, job->count, 0, job->count);

    const uint64_t offset = 16 * (job->round % 3); /* the elements around it are not to be touched */
    float *vector = eni_arena_at(fixture->arenas[rank], 1, offset);
    memcpy(vector, src[rank], job->count * sizeof *vector);
    if (job->what == EN_GRAD && samples_of(job->pattern, rank) == 0 && job->count > 0) vector[0] = NAN;
    vector[job->count] = 77;
    const eni_coll_op op = {.op = EN_ALLREDUCE,
                            .what = job->what,
                            .bucket = 3,
                            .slot = 1,
                            .offset = offset,
                            .count = job->count,
                            .nsamples = samples_of(job->pattern, rank)};
    CLUSTER_CHECK(eni_coll_run(coll, &op) == EN_OK);
    CLUSTER_CHECK(memcmp(vector, expected, job->count * sizeof *vector) == 0);
    CLUSTER_CHECK(vector[job->count] == 77);
    CLUSTER_CHECK(is_close_to_exact(job, n, vector, src));
    return 0;
}

static int run_all(int rank, int n, cluster_board *board, void *user)
{
    struct fixture *fixture = user;
    const uint64_t counts[] = {0, 1, (uint64_t)n - 1, 15, 16, 17, 16 * (uint64_t)n + 1, 1000, MAX_COUNT};
    float *src[MAX_RANKS], *expected = eni_alloc_array(MAX_COUNT, sizeof *expected);
    for (int r = 0; r < n; r++)
        src[r] = eni_alloc_array(MAX_COUNT, sizeof *src[r]);
    eni_coll *coll = fixture_group(fixture, rank, board, 1);
    CLUSTER_CHECK(coll);
    uint64_t round = 0;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int pattern = 0; pattern < NPATTERNS; pattern++, round++) {
            if (counts[c] == MAX_COUNT && pattern % 2 == 0) continue; /* generating it is what takes time */
            const int what = pattern == 3 ? EN_GRAD + (int)(c % 3) : EN_GRAD;
            const struct job job = {counts[c], round, pattern, what};
            if (check_one(coll, fixture, rank, &job, src, expected) != 0) {
                fprintf(stderr, "%s, %d ranks, %llu elements, pattern %d\n", fixture->way->name, n,
                        (unsigned long long)counts[c], pattern);
                return 1;
            }
        }
    eni_coll_close(coll);
    for (int r = 0; r < n; r++)
        eni_free(src[r]);
    eni_free(expected);
    return 0;
}

static void every_way_every_length(void **state)
{
    (void)state;
    for (int w = 0; w < NWAYS; w++)
        for (int n = 1; n <= MAX_RANKS; n++) {
            struct fixture fixture;
            struct cluster cluster;
            assert_int_equal(fixture_open(&fixture, &ways[w], n), 0);
            const int bad = cluster_run(&cluster, n, run_all, &fixture, 60000);
            cluster_close(&cluster);
            fixture_close(&fixture);
            assert_int_equal(bad, 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_way_every_length)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
