/* buckets.h - divides the flat parameter vector into buckets: the unit of every exchange.
 *
 *     flat vector   | conv1.w | b | conv2.w | b |   fc1.w (over the cap)    | b | fc2.w | b |
 *     buckets       |            3              |   2    |   1    |            0            |
 *                                                                  <- backward goes this way
 *
 * Backward completes the last tensors first, so buckets are made from the end of the vector to its start and
 * numbered in that order: bucket 0 leaves while the gradients of the others are still computed (PyTorch DDP,
 * Li'20, section 3.2.3). Every rank makes the same buckets from the same table: they are a pure function of
 * table and cap. */
#ifndef SPEC_BUCKETS_H
#define SPEC_BUCKETS_H

#include <stdint.h>

#include "entrain/model.h"
#include "entrain/strategy.h"

/* A contiguous range [lo, hi) of the flat vector, on 16-float edges (except the end of the vector). */
typedef struct eni_bucket_range {
    uint64_t lo, hi;
    uint32_t first, last; /* the tensors that touch it, by index in the table, both included */
    uint32_t nparams;
    en_param *params; /* (nparams), ascending offsets within the bucket */
} eni_bucket_range;

/* The frozen plan. Backward goes from the last tensor to the first, so bucket i is complete as soon as the
 * gradient of tensor bucket[i].first is:
 *
 *     after the gradient of tensor t:   while (next < n && bucket[next].first >= t) submit(next++); */
typedef struct eni_buckets {
    uint32_t n;
    uint64_t count;           /* elements of the flat vector */
    eni_bucket_range *bucket; /* in the order of submit */
} eni_buckets;

/* Makes the plan for a vector of `count` elements and buckets of at most cap_bytes (at least 64).
 *
 * Tensors ascend, do not overlap, and start on 16 floats; a gap between two tensors is padding (zero gradient,
 * zero weight) and belongs to the former. A strategy sees each tensor as a matrix, with a row for each index of
 * its outermost dimension, shape[0] unless it has an order of its own (one row where it has no shape).
 *
 * A bucket closes when the next tensor would exceed the cap. A tensor over the cap is split into near-equal
 * pieces on 16-float edges, each its own bucket, so no message exceeds the cap. Padding between two tensors
 * counts.
 *
 * Buffers (batch-norm statistics) have no gradient and are not reduced: they lie in no bucket, and close the
 * open one. A model that puts all buffers behind all weights gets the fewest buckets. All weights, with
 * their padding, are covered exactly once.
 *
 * The table outlives the plan, which refers to its names. EN_EINVAL, logged: an invalid table, or one without
 * weights; EN_ENOMEM. */
en_status eni_buckets_new(const en_model_tensor *tensors, uint32_t ntensors, uint64_t count,
                          uint64_t cap_bytes, eni_buckets **buckets_out);

/* NULL is fine. */
void eni_buckets_free(eni_buckets *buckets);

/* Fills in the plan's part of an en_bucket: size, id, params, count, and [lo, hi) = [0, count); the rest is
 * zeroed. The params are the plan's. */
void eni_buckets_fill(const eni_buckets *buckets, uint32_t id, en_bucket *bucket_out);

#endif
