/* slowdown.h - which ranks are slow, in which steps, and by how much: --straggler. Pure functions.
 *
 *     1:4, 0-9:3                always: rank 1 takes 4 times as long, ranks 0 to 9 take 3 times as long
 *     transient:4:0.05:20       in each step, with probability 0.05, a rank becomes 4 times as slow for 20 steps
 *     rotating:4:100            one rank is 4 times as slow for 100 of its steps, then the next one
 *     0-7=transient:4:0.05:20   the same among these ranks
 *
 * Only the first form, of a single rank, is for real ranks, which sleep (units.h: eni_straggler_parse). */
#ifndef RUN_SLOWDOWN_H
#define RUN_SLOWDOWN_H

#include <stddef.h>
#include <stdint.h>

#include "core/rng.h"

typedef enum eni_slowdown_kind { ENI_SLOW_ALWAYS, ENI_SLOW_TRANSIENT, ENI_SLOW_ROTATING } eni_slowdown_kind;

typedef struct eni_slowdown {
    eni_slowdown_kind kind;
    int32_t lo, hi; /* ranks; hi ENI_SLOW_ALL: to the last */
    double factor;
    double chance;  /* TRANSIENT: that it begins in a step */
    uint64_t steps; /* TRANSIENT: its length; ROTATING: of each rank's turn */
} eni_slowdown;

enum { ENI_SLOW_ALL = INT32_MAX, ENI_SLOW_STEPS = 1000 };

/* NULL if `text` has one of the forms above, else the expected form. */
const char *eni_slowdown_read(const char *text, eni_slowdown *out);

/* The factor of key's rank in key's step: 1 or more. TRANSIENT takes index 2 of the stream, and is asked in each step, from 0
 * on; *until is its own, for this rank. hi is a rank. */
double eni_slowdown_factor(const eni_slowdown *slow, const eni_rng_key *key, uint64_t *until);

/* "4 times as slow for 20 steps, begun with probability 0.05". */
void eni_slowdown_text(const eni_slowdown *slow, char *text_out, size_t bytes);

#endif
