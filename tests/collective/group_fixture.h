/* group_fixture.h - arenas, sockets and vectors for tests of collectives: what a worker gets from the mesh.
 */
#ifndef TESTS_GROUP_FIXTURE_H
#define TESTS_GROUP_FIXTURE_H

#include "runtime/collective/coll.h"
#include "tests/cluster.h"

enum { FIXTURE_COUNT = 1 << 17, FIXTURE_NSLOTS = 8 }; /* elements and vectors of an arena */

struct way { /* one way to do a collective */
    const char *name;
    int algorithm, transport;
};

enum { NWAYS = 4 };
extern const struct way ways[NWAYS];

struct fixture {
    int n;
    const struct way *way;
    eni_arena *arenas[CLUSTER_MAX];
    int pairs[CLUSTER_MAX][CLUSTER_MAX];
    uint64_t segment;
    int has_crc;
    struct eni_shaper *shaper;
    eni_coll_trace trace;
    void *trace_user;
    void *test; /* the test's own */
};

/* Before the fork. 0 on success. */
int fixture_open(struct fixture *fixture, const struct way *way, int n);
void fixture_close(struct fixture *fixture);

/* In a rank: its group in `epoch`, with the board as control plane. NULL on failure. */
eni_coll *fixture_group(struct fixture *fixture, int rank, cluster_board *board, uint32_t epoch);

/* Element i of rank's vector in round `round`: in (-1, 1), the same in every process. */
float fixture_value(int rank, uint64_t round, uint64_t i);
void fixture_fill(float *vector, int rank, uint64_t round, uint64_t count);

#endif
