/* straggler.h - makes this rank slow, as a slower machine would be: --straggler=RANK:FACTOR.
 *
 * A piece of compute (forward, the backward from one submit to the next; on a GPU all of a step) lasts factor
 * x draw x the processor time that it takes awake: the rank sleeps for the rest. So what others do on its
 * cores changes nothing while it fits. Awake, since a rank that wakes up finds cold caches, and would be
 * slowed for that, too. So one step of sixteen is measured:
 *
 *     step 14   forward  sleep  backward  sleep              as all others
 *     step 15   forward  sleep .......  backward             its whole sleep at once, then awake ..
 *     step 16   forward  backward  sleep .......             .. to here: what these pieces take counts
 *
 * Each step but the first, which the warm-up leaves awake, is as long as it is to be; what the first owes is spread
 * over those that follow. What a sleep, or another process, has made too long is taken back from later sleeps, and a
 * piece whose computing alone was too long is counted as late. The draw is seeded, in [0.9, 1.1].
 *
 * Sleeping, not spinning: on a shared host a busy loop would slow the others too. What was slept is a span of its own
 * in the trace, and counted as compute. Emulated, and labelled so. */
#ifndef WORKER_STRAGGLER_H
#define WORKER_STRAGGLER_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ENI_STRAGGLER_EVERY = 16,   /* steps from one sample to the next */
    ENI_STRAGGLER_KEPT = 5,     /* samples of a piece */
    ENI_STRAGGLER_PIECES = 256, /* of a step; those behind them count what they took themselves */
};

typedef struct eni_straggler_samples {
    int64_t ns[ENI_STRAGGLER_KEPT];
    size_t n; /* so far */
} eni_straggler_samples;

typedef struct eni_straggler {
    double factor; /* 1: none; then nothing here does anything */
    uint64_t seed;
    int rank;
    uint64_t step, draws;
    int piece, npieces_of_step; /* of this step, so far; of the last one, 0: there was none */
    eni_straggler_samples samples[ENI_STRAGGLER_PIECES];
    int64_t cpu_mark_ns; /* processor time of the compute thread when the piece began */
    int64_t owed_ns;     /* since the last sleep; below 0: slept ahead */
    int64_t carried_ns;  /* to be spread over later sleeps; below 0: too long so far */

    /* all together */
    uint64_t npieces, nlate;
    int64_t slept_ns, wall_ns, took_ns;
} eni_straggler;

/* On the compute thread, once: its sleeps become exact. */
void eni_straggler_open(eni_straggler *straggler);

void eni_straggler_begin_step(eni_straggler *straggler, uint64_t step);

/* A piece begins on the compute thread. */
void eni_straggler_begins(eni_straggler *straggler);

/* The piece that began at `begin_ns` (monotonic) has been computed; sleeps, and returns for how long. The next piece
 * begins. */
int64_t eni_straggler_ends(eni_straggler *straggler, int64_t begin_ns);

/* The same for who measures what it took in another way (a GPU). */
int64_t eni_straggler_took(eni_straggler *straggler, int64_t begin_ns, int64_t took_ns);

/* Wall time of its pieces over the time that they take awake; 0: there were none. */
double eni_straggler_factor(const eni_straggler *straggler);

/* Into a rank's report of itself. */
void eni_straggler_report(const eni_straggler *straggler, json_t *report);

#endif
