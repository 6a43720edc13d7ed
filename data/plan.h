/* plan.h - which samples a run applies, in which order and by whom: arithmetic, without a thread; and the
 * sampler, which holds an epoch.
 *
 * An epoch is a sequence of N positions; the sampler says which sample stands at a position. Epochs follow
 * each other, and a step never straddles two of them. A full step takes W*B positions, B per worker; the last
 * step of an epoch, and the last of the run, may take fewer (n, "ragged"). Worker r takes every W-th:
 *
 *     positions    s*WB                                    s*WB + n        (step s of its epoch)
 *                  | 0 1 .. W-1 | 0 1 .. W-1 | ...  | 0 1 |                worker
 *
 * so sample i of worker r is position s*WB + i*W + r, and the workers of a ragged step have ceil((n - r) / W)
 * samples each: sizes differ by at most one, and are 0 for r >= n. Means are weighted by nsamples, so the
 * ragged step is the mean over its n samples, exactly. Nothing is lost. With --drop-last such steps are left
 * out instead, and `dropped_per_epoch` and `dropped_at_end` say what that costs.
 *
 * Micro-batches are numbered m = t*W + r, t the global step. With fixed assignment rank r runs m = r, r+W,
 * ..; with claims the store hands out 0, 1, 2, .. to whoever asks; solo --accumulate=W runs all of them in
 * order. Each number is the same samples for everybody. The order of positions does not depend on W, so runs
 * with equal W*B take the same steps.
 *
 * Budgets count samples applied over all workers. The first that is reached ends the run:
 * --epochs=E is E times the samples of an epoch, --steps=N is N steps (N*W micro-batches), --max-samples=N is
 * N samples; where that ends inside a step, the step is ragged (with --drop-last: left out). */
#ifndef DATA_PLAN_H
#define DATA_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "core/digest.h"
#include "entrain/status.h"

typedef struct eni_plan_options {
    uint64_t train_samples;              /* N, 1 .. 2^32-1 */
    uint64_t world;                      /* W >= 1; for solo: --accumulate */
    uint64_t batch;                      /* B >= 1 */
    uint64_t epochs, steps, max_samples; /* 0: no such limit; one must be given */
    bool drop_last;
} eni_plan_options;

typedef struct eni_plan {
    uint64_t train_samples, world, batch, global_batch; /* N, W, B, W*B */
    uint64_t epoch_samples;                             /* N, or less with drop_last */
    uint64_t epoch_steps;                               /* steps of a whole epoch */
    uint64_t samples;                                   /* of the run, over all workers */
    uint64_t steps;                                     /* of the run */
    uint64_t micro_batches;                             /* steps * W; in a ragged step some may be empty */
    uint64_t dropped_per_epoch, dropped_at_end;         /* samples, 0 without drop_last */
} eni_plan;

typedef struct eni_micro {
    uint64_t index; /* m */
    uint64_t step;  /* t, over the whole run */
    uint64_t epoch;
    uint64_t rank;     /* r: m = t*W + r */
    uint64_t position; /* of its first sample in the epoch */
    uint64_t stride;   /* W: sample i stands at position + i * stride */
    uint64_t count;    /* samples, 0 .. B */
} eni_micro;

/* EN_EINVAL, logged: no budget, a zero, an overflow, or nothing left to train on with drop_last. */
en_status eni_plan_make(const eni_plan_options *options, eni_plan *plan_out);

/* Micro-batch m; EN_ESTOP (not logged) for m >= micro_batches. */
en_status eni_plan_micro(const eni_plan *plan, uint64_t m, eni_micro *micro_out);

/* Chunk c of n of a micro-batch, which has sample k in chunk k mod n, as the ranks share a step: a micro-batch of its
 * own. */
static inline eni_micro eni_micro_chunk(const eni_micro *micro, uint64_t n, uint64_t c)
{
    eni_micro chunk = *micro;
    chunk.position += c * micro->stride;
    chunk.stride *= n;
    chunk.count = c < micro->count ? (micro->count - c + n - 1) / n : 0;
    return chunk;
}

/* Samples of all steps before step t (t <= steps): what the learning rate is a function of. */
uint64_t eni_plan_samples_before(const eni_plan *plan, uint64_t step);

/* Samples of step t over all workers. */
uint64_t eni_plan_step_samples(const eni_plan *plan, uint64_t step);

/* The step that begins when `samples` samples are applied. EN_ENOENT (not logged): none does, the position is
 * inside a step of this W*B, or beyond the run. */
en_status eni_plan_step_at(const eni_plan *plan, uint64_t samples, uint64_t *step_out);

/* The first micro-batch to hand out when `samples` are applied, in whatever order: the ones before it hold at
 * most that many samples, and one more would hold more. */
uint64_t eni_plan_micro_at(const eni_plan *plan, uint64_t samples);

/* ---- the sampler: which sample stands at a position of an epoch, a function of (seed, epoch, position)
 * alone ----
 *
 * Shuffled, an epoch is a Fisher-Yates permutation (Durstenfeld 1964) whose draws are counter-based numbers
 * of (seed, ENI_RNG_ORDER, epoch): every process that knows the seed builds the same one, and an epoch can
 * be built without the epochs before it. It is built when the first position of an epoch is asked for (about
 * 1 ms for 60,000 samples). One thread at a time. */
typedef struct eni_sampler eni_sampler;

/* The file's order; a new permutation every epoch; that of the first epoch in all of them. */
typedef enum eni_order { ENI_ORDER_FILE, ENI_ORDER_EACH_EPOCH, ENI_ORDER_ONCE } eni_order;

/* For an epoch of `count` samples; 4 * count bytes. NULL when out of memory. */
eni_sampler *eni_sampler_new(uint64_t count, uint64_t seed, eni_order order);
void eni_sampler_free(eni_sampler *sampler); /* NULL is fine */

/* The samples of a micro-batch: indices_out (micro->count). Never allocates. */
void eni_sampler_indices(eni_sampler *sampler, const eni_micro *micro, uint32_t *indices_out);

/* order_sha256 of a run: over the sample index (little-endian, 4 bytes) of every position of every step, in
 * the global order; so equal for equal W*B, whatever W. Of a longer run the first ENI_ORDER_POSITIONS_MAX
 * positions are hashed and then the number of samples (8 bytes): all else follows from the same seed, and a
 * run without an end in sight must begin all the same. EN_ENOMEM. Costs the permutation of each epoch. */
enum { ENI_ORDER_POSITIONS_MAX = 1 << 24 }; /* 280 epochs of MNIST; 0.3 s */
en_status eni_sampler_order_sha256(const eni_plan *plan, uint64_t seed, eni_order order,
                                   char hex_out[ENI_DIGEST_HEX]);

#endif
