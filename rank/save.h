/* save.h - when a run is saved, and how it resumes.
 *
 *     save.c      when, and the thread that writes
 *     collect.c   one moment of all ranks, gathered at rank 0
 *     resume.c    which checkpoint, whether this run may resume it, and restoring
 *
 * A boundary is the moment between two steps. In synchronous runs all ranks meet there: each rank's vectors
 * are fingerprinted, the fingerprints are gathered, and only differing vectors travel. In runs that claim
 * their micro-batches rank 0 asks only the store, and nobody waits.
 *
 * Rank 0 copies, and a thread hashes and writes: a second of the disk costs training only the copy of a few
 * milliseconds. One write is under way at most; a checkpoint that falls due meanwhile waits for it.
 *
 * Compute thread. All ranks make the same calls in synchronous runs. */
#ifndef RANK_SAVE_H
#define RANK_SAVE_H

#include <stdio.h>

#include "rank/rank.h"

typedef struct eni_saver eni_saver;

/* ---- save.c ---- */

/* Before meeting the others: EN_EINVAL, logged, if --checkpoint-every is impossible: no folder, a strategy
 * whose state a checkpoint cannot hold, or checkpoints of an earlier run that this one would mix with. */
en_status eni_save_check(const eni_rank *self);
/* The same for what shows when its strategy is open; undeclared state shows only in its first step. */
en_status eni_save_check_strategy(const eni_rank *self);

/* Once vectors are open; does nothing without --checkpoint-every. Rank 0 locks the folder and removes the
 * files that killed writers left. */
en_status eni_save_open(eni_rank *self);

/* After each step, with the global samples of this boundary: saves if it is time. */
en_status eni_save_step(eni_rank *self, uint64_t samples);

/* Before a step, the same on all ranks (with claims on rank 0 only): a checkpoint was requested. */
en_status eni_save_wish(eni_rank *self);

/* After the last step, when all have stopped: saves once more if the run was stopped, and waits for the
 * write under way. */
en_status eni_save_finish(eni_rank *self);

void eni_save_close(eni_rank *self); /* waits for the write under way */

/* The vector of an optimizer's slot: "optimizer.momentum_buffer". */
static inline void eni_save_slot_name(const eni_rank *self, int slot, char name_out[ENI_CHECKPOINT_NAME])
{
    snprintf(name_out, ENI_CHECKPOINT_NAME, "optimizer.%s", self->job.optimizer->slot_names[slot]);
}

/* ---- collect.c ---- */

/* Collects the present moment of all ranks, which call it at the same step; in a run that claims rank 0 alone
 * does. Fills an empty checkpoint at rank 0, which the caller frees; the other ranks contribute their state,
 * and their checkpoint stays empty. So does rank 0's on failure. */
en_status eni_collect_moment(eni_rank *self, uint64_t samples, eni_checkpoint *checkpoint_out);

/* Why a checkpoint cannot hold this rank's state, once its strategy is open. NULL: it can. Static. */
const char *eni_collect_obstacle(const eni_rank *self);

/* ---- resume.c ---- */

/* Finds, reads and checks the checkpoint of --resume into self->saving.past: self->saving.is_resumed,
 * self->saving.first_step and self->saving.first_micro follow. Does nothing without --resume, or when auto
 * finds none. EN_EINVAL, logged, with both values, when this run differs from the saved one. */
en_status eni_resume_find(eni_rank *self);

/* Once all are there: EN_EINVAL, logged, if ranks resume weights of their own in other groups than saved. */
en_status eni_resume_groups(const eni_rank *self);

/* The facts that must be equal in a checkpoint and in the run that resumes it. */
uint32_t eni_resume_facts(const eni_rank *self, eni_fact facts_out[ENI_CHECKPOINT_FACTS]);

/* ---- resume.c, too: nothing but EN_OK without self->saving.is_resumed ---- */

/* Rank 0, before all weights become its own: the saved ones into the param slot. */
en_status eni_resume_weights(eni_rank *self);

/* Rank 0, before its weights go to the store: optimizer slots there, and the weights' progress. */
en_status eni_resume_store(eni_rank *self);

/* Once the strategy is open: this rank's optimizer slots, vectors, state and counts. */
en_status eni_resume_state(eni_rank *self);

#endif
