/* replay.h - what a run with --record-order has left in its --out, for the virtual host. */
#ifndef VIRTUAL_REPLAY_H
#define VIRTUAL_REPLAY_H

#include "runtime/sim/sim.h"

typedef struct eni_virtual_replay {
    eni_sim_order order;
    int32_t nshards, nranks;
    eni_arrivals *arrivals; /* (nshards) */
    uint64_t **batches;     /* (nranks) */
    uint64_t *nbatches;     /* (nranks) */
} eni_virtual_replay;

/* Reads OUT/arrivals-SHARD.txt and OUT/metrics-RANK.jsonl. To be closed also after a failure: EN_EINVAL, EN_ENOENT, logged;
 * EN_ENOMEM. */
en_status eni_virtual_replay_open(const char *out, int32_t nshards, int32_t nranks,
                                  eni_virtual_replay *replay);

/* Whether these weights are those that the run ended with, by the params_sha256 of its result.json: else EN_EMISMATCH,
 * logged, as without the file. */
en_status eni_virtual_replay_verify(const char *out, const char *params_sha256);

/* Safe on zeroed memory. */
void eni_virtual_replay_close(eni_virtual_replay *replay);

#endif
