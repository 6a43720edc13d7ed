#include "tests/collective/group_fixture.h"

#include <string.h>

#include "core/rng.h"

const struct way ways[NWAYS] = {
    {"direct over shm", ENI_COLL_DIRECT, ENI_OVER_SHM},
    {"naive over shm", ENI_COLL_NAIVE, ENI_OVER_SHM},
    {"ring over tcp", ENI_COLL_RING, ENI_OVER_TCP},
    {"naive over tcp", ENI_COLL_NAIVE, ENI_OVER_TCP},
};

int fixture_open(struct fixture *fixture, const struct way *way, int n)
{
    memset(fixture, 0, sizeof *fixture);
    fixture->n = n;
    fixture->way = way;
    fixture->segment = 1000;
    for (int r = 0; r < n; r++)
        if (eni_arena_open(FIXTURE_COUNT, FIXTURE_NSLOTS, 1, &fixture->arenas[r]) != EN_OK) return -1;
    return way->transport == ENI_OVER_TCP ? cluster_connect(n, fixture->pairs) : 0;
}

void fixture_close(struct fixture *fixture)
{
    for (int r = 0; r < fixture->n; r++)
        eni_arena_close(fixture->arenas[r]);
    if (fixture->way->transport == ENI_OVER_TCP) cluster_keep(fixture->n, fixture->pairs, -1);
}

eni_coll *fixture_group(struct fixture *fixture, int rank, cluster_board *board, uint32_t epoch)
{
    const int over_tcp = fixture->way->transport == ENI_OVER_TCP;
    if (over_tcp) cluster_keep(fixture->n, fixture->pairs, rank);
    const eni_coll_config config = {
        .rank = rank,
        .nranks = fixture->n,
        .epoch = epoch,
        .algorithm = fixture->way->algorithm,
        .transport = fixture->way->transport,
        .arenas = fixture->arenas,
        .area = ENI_AREA_WORLD,
        .sockets = over_tcp ? fixture->pairs[rank] : NULL,
        .segment = fixture->segment,
        .has_crc = fixture->has_crc,
        .shaper = fixture->shaper,
        .alive = {cluster_alive, board, -1},
        .trace = fixture->trace,
        .trace_user = fixture->trace_user,
    };
    eni_coll *coll = NULL;
    return eni_coll_open(&config, &coll) == EN_OK ? coll : NULL;
}

float fixture_value(int rank, uint64_t round, uint64_t i)
{
    const eni_rng_key key = {7, ENI_RNG_TEST, (uint32_t)rank, round};
    return (float)(2 * eni_rng_unit(&key, i) - 1);
}

void fixture_fill(float *vector, int rank, uint64_t round, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        vector[i] = fixture_value(rank, round, i);
}
