/* plan.h - which samples a run applies, in which order and by which worker: arithmetic, without a thread; and the sampler,
 * which holds one epoch.
 *
 * An epoch is a sequence of N positions; the sampler maps a position to a sample. Epochs follow each other, and a step never
 * straddles two of them. A full step takes W*B positions, B per worker; the last step of an epoch, and the last of the run,
 * may take fewer (n, "ragged"). Worker r takes every W-th:
 *
 *     positions    s*WB                                    s*WB + n        (step s of its epoch)
 *                  | 0 1 .. W-1 | 0 1 .. W-1 | ...  | 0 1 |                worker
 *
 * so sample i of worker r is position s*WB + i*W + r, and the workers of a ragged step have ceil((n - r) / W) samples each:
 * sizes differ by at most one, and are 0 for r >= n. Means are weighted by nsamples, so the ragged step is exactly the mean
 * over its n samples. Nothing is lost. With --drop-last such steps are skipped instead, at a cost of `dropped_per_epoch` and
 * `dropped_at_end` samples.
 *
 * Micro-batches are numbered m = t*W + r, t the global step. With fixed assignment rank r runs m = r, r+W, ..; with claims
 * the store hands out 0, 1, 2, .. on request; solo --accumulate=W runs all of them in order. Each number means the same
 * samples for all. The order of positions does not depend on W, so runs with equal W*B take the same steps.
 *
 * Budgets count samples applied over all workers. The first limit reached ends the run: --epochs=E is E times the samples of
 * an epoch, --steps=N is N steps (N*W micro-batches), --max-samples=N is N samples; a limit inside a step makes the step
 * ragged (with --drop-last: skips it). */
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
    uint64_t epochs, steps, max_samples; /* 0: no limit; at least one must be given */
    bool drop_last;
} eni_plan_options;

typedef struct eni_plan {
    uint64_t train_samples, world, batch, global_batch; /* N, W, B, W*B */
    uint64_t epoch_samples;                             /* N, or less with drop_last */
    uint64_t epoch_steps;                               /* steps of a whole epoch */
    uint64_t samples;                                   /* of the run, over all workers */
    uint64_t steps;                                     /* of the run */
    uint64_t micro_batches;                             /* steps * W; a ragged step may have empty ones */
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

/* Chunk c of n of a micro-batch: its samples c, c + n, .., as ranks share a step; a micro-batch by itself. */
static inline eni_micro eni_micro_chunk(const eni_micro *micro, uint64_t n, uint64_t c)
{
    eni_micro chunk = *micro;
    chunk.position += c * micro->stride;
    chunk.stride *= n;
    chunk.count = c < micro->count ? (micro->count - c + n - 1) / n : 0;
    return chunk;
}

/* Samples of all steps before step t (t <= steps): the learning rate's argument. */
uint64_t eni_plan_samples_before(const eni_plan *plan, uint64_t step);

/* Samples of step t over all workers. */
uint64_t eni_plan_step_samples(const eni_plan *plan, uint64_t step);

/* The step that begins when `samples` samples are applied. EN_ENOENT (not logged): the position is inside a step of this W*B,
 * or beyond the run. */
en_status eni_plan_step_at(const eni_plan *plan, uint64_t samples, uint64_t *step_out);

/* The first micro-batch to hand out after `samples` are applied, in whatever order: the ones before it hold at most that many
 * samples, and one more would hold more. */
uint64_t eni_plan_micro_at(const eni_plan *plan, uint64_t samples);

/* ---- the sampler: maps a position of an epoch to a sample, a function of (seed, epoch, position) alone ----
 *
 * Shuffled, an epoch is a Fisher-Yates permutation (Durstenfeld 1964) whose draws are counter-based numbers of (seed,
 * ENI_RNG_ORDER, epoch): every process that knows the seed builds the same one, and any epoch can be built without the ones
 * before it. Built when the first position of an epoch is requested (about 1 ms for 60,000 samples). One thread at a
 * time. */
typedef struct eni_sampler eni_sampler;

/* The file's order; a new permutation every epoch; or the first epoch's permutation in all of them. */
typedef enum eni_order { ENI_ORDER_FILE, ENI_ORDER_EACH_EPOCH, ENI_ORDER_ONCE } eni_order;

/* For epochs of `count` samples; takes 4 * count bytes. NULL when out of memory. */
eni_sampler *eni_sampler_new(uint64_t count, uint64_t seed, eni_order order);
void eni_sampler_free(eni_sampler *sampler); /* NULL is fine */

/* The samples of a micro-batch: indices_out (micro->count). Never allocates. */
void eni_sampler_indices(eni_sampler *sampler, const eni_micro *micro, uint32_t *indices_out);

/* order_sha256 of a run: hashes the sample index (little-endian, 4 bytes) of every position of every step, in global order;
 * so it is equal for equal W*B, whatever W. For longer runs, the first ENI_ORDER_POSITIONS_MAX positions and then the number
 * of samples (8 bytes): the rest follows from the same seed, and an almost unlimited run must start quickly. EN_ENOMEM. Costs
 * the permutation of each epoch. */
enum { ENI_ORDER_POSITIONS_MAX = 1 << 24 }; /* 280 epochs of MNIST; 0.3 s */
en_status eni_sampler_order_sha256(const eni_plan *plan, uint64_t seed, eni_order order,
                                   char hex_out[ENI_DIGEST_HEX]);

#endif
