/* sockets.h - a run on sockets of what `eni_sim_run` runs in virtual time: a thread per rank with its arena in shared memory,
 * groups of the direct all-reduce and a store client, and psd's shards behind real sockets: what a worker has, without its
 * model. */
#ifndef TESTS_HOST_SOCKETS_H
#define TESTS_HOST_SOCKETS_H

#include "run/arrivals.h"
#include "runtime/sim/sim.h"

enum { SOCKETS_RANKS = 4, SOCKETS_SHARDS = 2, SOCKETS_ELEMENTS = 200 /* most of each */ };

typedef struct sockets_outcome {
    float model[SOCKETS_ELEMENTS]; /* the one that `eval` names, at the end */
    en_theory theory;
    eni_arrivals arrivals; /* of the only shard, if ranks sleep */
} sockets_outcome;

/* What a configuration for virtual time has of strategy, problem, ranks, hosts, groups, shards, micro-batches and SGD counts here
 * too. `trace` gets the STEPs only, each on the thread of its rank. `slowest`: this rank sleeps longer than the others in its
 * steps; -1: no rank sleeps. */
en_status sockets_run(const eni_sim_config *config, int slowest, sockets_outcome *out);

#endif
