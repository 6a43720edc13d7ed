/* mean_all.h - the mean of all ranks' vectors, in place in all of them: one pass over memory.
 *
 * The same bits as eni_mean_ranks, copied to every rank. But each element is read once from every rank and
 * written once to every rank, and its sum lives in a register: what an all-reduce in shared memory does. */
#ifndef OPS_MEAN_ALL_H
#define OPS_MEAN_ALL_H

#include "ops/mean.h"

/* Elements [lo, hi) of a bucket of `count`: vectors[r] points at element lo of rank r's. Arguments, order and
 * left out ranks as eni_mean_ranks; those are written too. The vectors do not overlap. Thread-safe, never
 * allocates. */
void eni_mean_all(float *const *vectors, const uint64_t *nsamples, int world, eni_sum_order order,
                  uint64_t count, uint64_t lo, uint64_t hi);

#endif
