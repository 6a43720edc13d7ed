/* outcome.h - the outcome of a run, and whether it equals another run's. */
#ifndef TESTS_SYSTEM_OUTCOME_H
#define TESTS_SYSTEM_OUTCOME_H

#include "tests/system/resumed.h"

typedef struct outcome {
    char hashes[HASHES];
    unsigned char *vectors; /* all tensors of its last checkpoint: momentum is there too */
    size_t bytes;
    json_t *losses; /* and accuracies, rank by rank, step by step */
    double test_loss;
} outcome;

/* All runs from now on have --device=DEVICE, unless their flags name another one. */
void outcome_on(const char *device);

/* The outcome of `entrain run -n W` with these flags, of two epochs; `nstages`: the stages that result.json
 * must have, 0: none. */
outcome outcome_of(int w, int nstages, const char *job, const char *flags);
void outcome_forget(outcome *o);

/* The same weights, statistics, last checkpoint and test loss; forgets `o`. With expect_same also each rank's loss and
 * accuracy of each step. */
void expect_vectors(const outcome *base, outcome *o, const char *what);
void expect_same(const outcome *base, outcome *o, const char *what);

#endif
