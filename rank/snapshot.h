/* snapshot.h - the models of the curve (curve.h): copies on the clock, whole models after it. Compute
 * thread. */
#ifndef RANK_SNAPSHOT_H
#define RANK_SNAPSHOT_H

#include "core/copies.h"
#include "rank/step.h"

typedef struct eni_looks {
    uint64_t points; /* of the curve, still to come when the run begins */
    eni_copies *own; /* this rank's parts of points that are not whole yet; NULL: it has none, or the whole */
    uint64_t taken, lost; /* came due on this rank; of these, parts of points that could not be made whole */
    int64_t clock_ns, after_ns;        /* taken from the training clock, and after it */
    uint64_t clock_bytes, after_bytes; /* payload of making points whole, on it and after it */
} eni_looks;

/* Once the strategy is open, before the clock begins: memory for what this rank keeps. */
en_status eni_snapshots_open(eni_rank *self);

/* After each step, with the global samples then: copies what this rank keeps, if a point of the curve is due. */
en_status eni_snapshot_if_due(eni_rank *self, uint64_t samples);

/* Rank 0 makes points of the copies: all ranks together if each has a part of them (not if batches are
 * claimed). At the end of training, and before a checkpoint. `is_called_off` on any of them: the parts are
 * given up. */
en_status eni_snapshots_finish(eni_rank *self, bool is_called_off);

/* Points of this rank's that the curve lacks. */
uint64_t eni_snapshots_left_out(const eni_rank *self);

/* The weights that the strategy names, copied into slot ENI_SLOT_EVAL of the arena; with EN_EVAL_MEAN all
 * ranks must call it at the same step. */
en_status eni_snapshot(eni_rank *self);

/* Makes job.state of job.states: with --bn-stats=mean the mean of those floats that are not each rank's own (EN_TENSOR_OWN);
 * all else is rank 0's, as are numbers of batches. */
struct eni_job;
void eni_snapshot_mean_of_states(struct eni_job *job);

/* The present running statistics to evaluate the weights with, into job.state at rank 0. With --bn-stats=mean all
 * ranks call it together; else only rank 0's count, and it does nothing on the others. */
en_status eni_snapshot_state(eni_rank *self);

/* The same, and those of all ranks in job.states, if the run keeps them: for a checkpoint. All ranks call it together. */
en_status eni_snapshot_all_states(eni_rank *self);

#endif
