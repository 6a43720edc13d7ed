/* run.h - the run of a rank that has joined and whose trainer is open, call by call: the worker's loop
 * (worker/train.c) makes them, and so does a program of the user's (job/program.c).
 *
 *     eni_run_vectors   arena
 *     eni_run_open      exchange, the first weights everywhere, strategy, records
 *     eni_run_begin     all leave together: zero on the clock
 *     eni_run_enter     a step begins; EN_ESTOP: the run ends before it, on all ranks alike
 *         ..            the gradient, by the calls of step.h
 *     eni_run_finish    the weights of the next step; record, snapshot, checkpoint
 *     eni_run_end       all have trained: result.json
 *     eni_run_leave     goodbye
 *
 * After an error: eni_rank_cause, eni_rank_give_up, then close. Compute thread. */
#ifndef RANK_RUN_H
#define RANK_RUN_H

#include "rank/rank.h"

/* After the join: an arena of vectors of `room` elements, or of as many as the model needs. With `has_micros`
 * a world of one without servers also gets exchange.micros. */
en_status eni_run_vectors(eni_rank *self, uint64_t room, bool has_micros);

/* Once rank 0's arena has the first weights, and --out is this run's. */
en_status eni_run_open(eni_rank *self);

/* An eni_loader_claim: the next micro-batch of a rank that claims; `rank` is the eni_rank. */
en_status eni_run_claim(void *rank, uint64_t *micro_batch_out);

en_status eni_run_begin(eni_rank *self);
en_status eni_run_enter(eni_rank *self, eni_step_run *run_out);
en_status eni_run_finish(eni_step_run *run);
/* Part of eni_run_finish; of a trainer that steps itself the caller's, once it has. */
en_status eni_run_stepped(const eni_step_run *run);

/* `st`: the status that ended the steps, EN_ESTOP at the end of the budget. Others are returned, once the steps
 * that have arrived are recorded. */
en_status eni_run_end(eni_rank *self, en_status st);
en_status eni_run_leave(eni_rank *self);

/* Closes what eni_run_vectors and eni_run_open have opened: first the exchange and the saver, later the memory.
 * Between the two nobody else reads the vectors. `is_stuck`: a device may still write to them, so they stay. */
void eni_run_close_exchange(eni_rank *self);
void eni_run_close_vectors(eni_rank *self, bool is_stuck);

#endif
