/* weights.h - psd's weights in memory that the workers of its host can map.
 *
 * Where a strategy steps in rounds (EN_ROUNDS) nobody reads a bucket's weights while they change. So the
 * store's partitions lie in one memfd, laid out as the flat vector, and each worker maps it in place of its
 * own weights: a pull moves nothing. Sealed: nobody but this psd can write it (F_SEAL_FUTURE_WRITE), or
 * change its size. */
#ifndef SERVER_WEIGHTS_H
#define SERVER_WEIGHTS_H

#include <stdint.h>

#include "entrain/status.h"

typedef struct eni_weights eni_weights;

/* `elements` zeroes. EN_EUNSUPPORTED (logged as information): this kernel cannot seal it; EN_ENOMEM. */
en_status eni_weights_open(uint64_t elements, eni_weights **weights_out);

/* The vector, for psd's shards to write. */
float *eni_weights_vector(const eni_weights *weights);

/* To hand to workers; borrowed. NULL is fine: -1. */
int eni_weights_fd(const eni_weights *weights);

/* What workers have mapped stays there for them. NULL is fine. */
void eni_weights_close(eni_weights *weights);

#endif
