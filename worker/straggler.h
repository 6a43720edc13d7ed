/* straggler.h - makes this rank slow, as a slower machine would be: --straggler=RANK:FACTOR.
 *
 * After each piece of compute (forward, the backward of one bucket) the rank sleeps (factor - 1) times what
 * the piece took, times a seeded factor in [0.9, 1.1]. Sleeping, not spinning: on a shared host a busy loop
 * would slow the others too. The injected time is logged and counted as compute. Emulated, and labelled so.
 */
#ifndef WORKER_STRAGGLER_H
#define WORKER_STRAGGLER_H

#include <stdint.h>

typedef struct eni_straggler {
    double factor; /* 1: none */
    uint64_t seed;
    int rank;
    uint64_t step, calls;
    int64_t slept_ns; /* in total */
    int64_t owed_ns;  /* not yet slept: below what a sleep resolves */
} eni_straggler;

void eni_straggler_begin_step(eni_straggler *straggler, uint64_t step);

/* To be called when a piece of compute that took `took_ns` has ended. */
void eni_straggler_after(eni_straggler *straggler, int64_t took_ns);

#endif
