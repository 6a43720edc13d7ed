/* sampler.h - which sample stands at a position of an epoch: a function of (seed, epoch, position) alone.
 *
 * Shuffled, an epoch is a Fisher-Yates permutation (Durstenfeld 1964) whose draws are counter-based numbers
 * of (seed, ENI_RNG_ORDER, epoch): every process that knows the seed builds the same one, and an epoch can
 * be built without the epochs before it. It is built when the first position of an epoch is asked for (about
 * 1 ms for 60,000 samples). One thread at a time. */
#ifndef DATA_SAMPLER_H
#define DATA_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/digest.h"
#include "data/plan.h"
#include "entrain/status.h"

typedef struct eni_sampler eni_sampler;

/* For an epoch of `count` samples; 4 * count bytes. shuffle false: the file's order. NULL when out of memory.
 */
eni_sampler *eni_sampler_new(uint64_t count, uint64_t seed, bool shuffle);
void eni_sampler_free(eni_sampler *sampler); /* NULL is fine */

/* The samples of a micro-batch: indices_out (micro->count). Never allocates. */
void eni_sampler_indices(eni_sampler *sampler, const eni_micro *micro, uint32_t *indices_out);

/* order_sha256 of a run: over the sample index (little-endian, 4 bytes) of every position of every step, in
 * the global order; so equal for equal W*B, whatever W. Of a longer run the first ENI_ORDER_POSITIONS_MAX
 * positions are hashed and then the number of samples (8 bytes): all else follows from the same seed, and a
 * run without an end in sight must begin all the same. EN_ENOMEM. Costs the permutation of each epoch. */
enum { ENI_ORDER_POSITIONS_MAX = 1 << 24 }; /* 280 epochs of MNIST; 0.3 s */
en_status eni_sampler_order_sha256(const eni_plan *plan, uint64_t seed, bool shuffle,
                                   char hex_out[ENI_DIGEST_HEX]);

#endif
