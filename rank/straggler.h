/* straggler.h - makes this rank slow, as a slower machine would be: --straggler=RANK:FACTOR.
 *
 * A piece of compute (forward, the backward from one submit to the next; on a GPU the whole step) lasts
 * factor x draw x the processor time that it takes awake: the rank sleeps for the rest. So other processes on
 * its cores change nothing while the piece fits. Awake, since a rank that wakes up finds cold caches, and
 * would be slowed for that, too. So one step of sixteen is measured:
 *
 *     step 14   forward  sleep  backward  sleep              as all others
 *     step 15   forward  sleep .......  backward             its whole sleep at once, then awake ..
 *     step 16   forward  backward  sleep .......             .. to here: the times of these pieces count
 *
 * Each step has its intended length, except the first, which the warm-up leaves awake; its debt is spread
 * over later steps. Excess time of a sleep, or by another process, is taken off later sleeps, and a piece
 * whose computing alone was too long is counted as late. The draw is seeded, in [0.9, 1.1].
 *
 * Sleeping, not spinning: on a shared host a busy loop would slow the others too. A sleep has its own span in
 * the trace and counts as compute. Emulated, and labelled so. */
#ifndef RANK_STRAGGLER_H
#define RANK_STRAGGLER_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ENI_STRAGGLER_EVERY = 16,   /* steps from one sample to the next */
    ENI_STRAGGLER_KEPT = 5,     /* samples of a piece */
    ENI_STRAGGLER_PIECES = 256, /* of a step; later ones count their own time */
};

typedef struct eni_straggler_samples {
    int64_t ns[ENI_STRAGGLER_KEPT];
    size_t n; /* so far */
} eni_straggler_samples;

typedef struct eni_straggler {
    double factor; /* 1: not slow, and nothing here does anything */
    uint64_t seed;
    int rank;
    uint64_t step, draws;
    int piece, npieces_of_step; /* so far in this step; in the last one, 0 before there was one */
    eni_straggler_samples samples[ENI_STRAGGLER_PIECES];
    int64_t cpu_mark_ns; /* processor time of the compute thread when the piece began */
    int64_t owed_ns;     /* since the last sleep; below 0: slept ahead */
    int64_t carried_ns;  /* to be spread over later sleeps; below 0: excess so far */

    /* totals */
    uint64_t npieces, nlate;
    int64_t slept_ns, wall_ns, took_ns;
} eni_straggler;

typedef struct eni_rank eni_rank;

/* The straggler that this rank is by the run's --straggler, once its number is known; says so. */
eni_straggler eni_straggler_of(const eni_rank *rank);

/* Once, on the compute thread: makes its sleeps exact. */
void eni_straggler_open(eni_straggler *straggler);

void eni_straggler_begin_step(eni_straggler *straggler, uint64_t step);

/* A piece begins on the compute thread. */
void eni_straggler_begins(eni_straggler *straggler);

/* The piece that began at `begin_ns` (monotonic) is computed: sleeps, and returns for how long. The next one
 * begins. */
int64_t eni_straggler_ends(eni_straggler *straggler, int64_t begin_ns);

/* The same if the caller has measured the time in another way (a GPU). */
int64_t eni_straggler_took(eni_straggler *straggler, int64_t begin_ns, int64_t took_ns);

/* Wall time of its pieces over the time that they take awake; 0 without pieces. */
double eni_straggler_factor(const eni_straggler *straggler);

/* Adds its figures to a rank's report. */
void eni_straggler_report(const eni_straggler *straggler, json_t *report);

#endif
