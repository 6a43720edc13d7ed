/* mean.h - the one function that averages gradients, for every mode. `ring`, `ps-sync` and `solo
 * --accumulate` end with the same bytes because all of them average here: each contribution is multiplied by
 * its scale, the products are added in the order given, and the sum is multiplied by `inv` once. Built with
 * -ffp-contract=off, so no machine fuses the multiply and the add. The mean over samples of W ranks is
 * scale[r] = (float)nsamples[r], inv = 1 / (float)sum(nsamples). The caller leaves out a rank without
 * samples; it does not contribute a zero. In a world of one the mean is the one rank's contribution, bit for
 * bit, and both factors are 1: x * w * (1 / w) is not x for every w. */
#ifndef OPS_MEAN_H
#define OPS_MEAN_H

#include <stdint.h>

#include "core/memory.h"
#include "ops/optimizer.h"

/* The order in which contributions are added. */
typedef enum eni_sum_order {
    ENI_SUM_RANK, /* 0, 1, .. W-1 everywhere: direct, naive, ps-sync, solo */
    ENI_SUM_RING, /* chunk c of a bucket starts at rank c, as in a ring all-reduce over TCP */
} eni_sum_order;

/* The edges of slice i of n of `count` elements: multiples of 16 elements (64 bytes) except the end of the
 * last; slices may be empty, and are for count < 16 * n. lo_i = round16(count * i / n). */
static inline uint64_t eni_slice_lo(uint64_t count, int i, int n)
{
    if (i >= n) return count;
    const uint64_t u = (uint64_t)i, parts = (uint64_t)n;
    const uint64_t exact = count / parts * u + count % parts * u / parts; /* count * u / parts, no overflow */
    const uint64_t lo = eni_round_up(exact, ENI_LINE_FLOATS);
    return lo < count ? lo : count;
}

/* The weight of a contribution of `nsamples` among `n`: scale is it, as float, and inv 1 over the sum. */
static inline uint64_t eni_mean_weight(uint64_t nsamples, int n)
{
    return n == 1 && nsamples > 0 ? 1 : nsamples;
}

/* dst[i] = (sum over k of src[k][i] * scale[k]) * inv, overwrites. n >= 1. dst may be one of src (the same
 * pointer, not a shifted one). Thread-safe, never allocates. */
void eni_mean(float *dst, const float *const *src, const float *scale, int n, float inv, uint64_t count);

/* The mean over W ranks of elements [lo, hi) of a bucket of `count` elements: src[r] and dst point at
 * element lo, nsamples[r] == 0 leaves rank r out. All zero: dst is set to 0. W == 1: dst = src[0]. `order` as above; with
 * ENI_SUM_RING chunk c is slice c of W of the whole bucket, and the addition starts at rank c and goes
 * c, c+1, .. (mod W). Any W. */
void eni_mean_ranks(float *dst, const float *const *src, const uint64_t *nsamples, int world,
                    eni_sum_order order, uint64_t count, uint64_t lo, uint64_t hi);

/* The ranks of a real run, and the most W of what follows. */
#define ENI_MEAN_MAX 1024

/* The mean of all ranks' vectors, in place in all of them: the bits of eni_mean_ranks, but each element is
 * read once from every rank and written once to every rank, and its sum lives in a register, as an all-reduce
 * in shared memory needs it. Elements [lo, hi) of a bucket of `count`: vectors[r] points at element lo of
 * rank r's. Arguments, order and left out ranks as eni_mean_ranks; those are written too. The vectors do not
 * overlap. Thread-safe, never allocates. */
void eni_mean_all(float *const *vectors, const uint64_t *nsamples, int world, eni_sum_order order,
                  uint64_t count, uint64_t lo, uint64_t hi);

/* The mean of gradients and the optimizer's step in one loop: each gradient is read once, weights and
 * optimizer state are read and written once, and the mean exists only in registers. The bits of eni_mean,
 * then the optimizer's step. w, slots: (count), stepped in place; they overlap no source. Optimizers and
 * rates as eni_optimizer.step. Thread-safe, never allocates. */
void eni_mean_step(const eni_optimizer *optimizer, float *w, float *const *slots, const eni_sources *from,
                   uint64_t count, const eni_hyper *hyper);

/* The same, split at the edges of hyper->groups: everything begins with element `at` of the flat vector. */
void eni_mean_step_range(const eni_optimizer *optimizer, uint64_t at, float *w, float *const *slots,
                         const eni_sources *from, uint64_t count, const eni_hyper *hyper);

/* The steps of a mean whose sources come one after the other (a hop of a ring, the chunks of a batch). first: acc =
 * src * scale, overwrites; add: acc += src * scale; last: acc = (acc + src * scale) * inv. The same bits as eni_mean
 * in the same order. The vectors do not overlap. */
void eni_mean_first(float *acc, const float *src, float scale, uint64_t count);
void eni_mean_add(float *acc, const float *src, float scale, uint64_t count);
void eni_mean_last(float *acc, const float *src, float scale, float inv, uint64_t count);

/* Whether every element is finite. */
bool eni_all_finite(const float *src, uint64_t count);

/* y = a * x + b * y; b == 0 overwrites y whatever it held (NaN too). */
void eni_lin(float *y, float a, const float *x, float b, uint64_t count);

#endif
