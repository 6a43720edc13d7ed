/* oracle.h - is every push in the weights exactly once, however often psd is killed?
 *
 * SGD with rate 1 and without momentum on weights that begin at 0; the push number s of rank r to bucket b is
 * the unit vector at index hash(r, s, b), worth one sample. A weight is then minus the number of pushes that
 * hit it: whole numbers below 2^24, exact in float32 whatever their order. A lost push shows as well as a
 * doubled one, and no tolerance is needed. (After reliability tests of Jepsen's kind; Kingsbury'13.)
 *
 * Workers are threads with the real member and client; psd is the real program, killed by SIGKILL. */
#ifndef TESTS_SYSTEM_ORACLE_H
#define TESTS_SYSTEM_ORACLE_H

#include <stdint.h>

typedef struct oracle_plan {
    const char *strategy; /* "ps-async", "ssp:bound=2", .. */
    int state_every;
    int kills;          /* of psd, at random moments */
    int nested;         /* at most, more of them right after a start, while it recovers */
    int is_shared;      /* payloads through shared memory */
    uint64_t seed;      /* of the moments */
    const char *strace; /* arguments for strace around the second incarnation of psd; NULL: none */
    int joins;  /* ranks that join at random moments while two others push: four may live at one time */
    int deaths; /* of these, the ones that die, each in the middle of a push */
} oracle_plan;

typedef struct oracle_outcome {
    uint64_t pushes;           /* answered, over all ranks and buckets */
    uint64_t missing, double_; /* indices with too few or too many of them */
    int kills;                 /* that hit a living psd */
    double worst_return;       /* seconds from a start of psd to the next answer to every rank */
    int psd_code;              /* how the last psd ended */
    int warnings;              /* of a psd under strace: states that could not be written */
    int joined, died;          /* ranks */
    uint64_t clocks_ahead;     /* of the slowest, at most, that an answered call was */
} oracle_outcome;

/* Fails the cmocka test when a worker ends with an error. */
void oracle_run(const oracle_plan *plan, oracle_outcome *outcome_out);

#endif
