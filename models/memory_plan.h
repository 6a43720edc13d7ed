/* memory_plan.h - lays out the values of a step: each has a size and a lifetime from first to last use, and values with
 * overlapping lifetimes do not overlap in memory.
 *
 * Greedy by size (Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020): the
 * largest first, each into the lowest gap among the placed values whose lifetimes overlap its own. Pure arithmetic. */
#ifndef MODELS_MEMORY_PLAN_H
#define MODELS_MEMORY_PLAN_H

#include <stdint.h>

#include "entrain/status.h"

typedef struct eni_lifetime {
    uint64_t bytes;      /* 0: takes no memory, offset 0 */
    int32_t first, last; /* uses, in the order of calls; both included */
    uint64_t offset;     /* out: from the start of the memory, a multiple of `align` */
} eni_lifetime;

/* Places all `n` values; *bytes_out is their total memory. EN_ENOMEM. */
en_status eni_memory_plan(eni_lifetime *values, uint32_t n, uint64_t align, uint64_t *bytes_out);

#endif
