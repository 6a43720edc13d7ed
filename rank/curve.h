/* curve.h - accuracy over time without making a straggler: whole models, which are evaluated after training,
 * off the clock.
 *
 *     in memory     the newest copies, up to a byte budget; the oldest leaves for each that does not fit
 *     OUT/snapshots those, and all of them at a checkpoint: they outlive this process, and a resumed run has
 *                   its curve from the start (core/copies.h). Removed once the curve is written. Without a
 *                   folder: a file in /tmp that has no name.
 *
 * rank/snapshot.c makes the models, on the clock and after it.
 *
 * The grid is every ceil(K/12)-th of K points and the last. With a target the grid and the points that
 * enclose the moment it was reached are evaluated (run/reach.h), else all. Owned by the compute thread. */
#ifndef RANK_CURVE_H
#define RANK_CURVE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/copies.h"
#include "entrain/status.h"
#include "rank/record.h"
#include "run/reach.h"

typedef struct eni_curve eni_curve;

/* Evaluates `flat` with its state on the whole set of the curve: mean loss, share of correct predictions. */
typedef en_status (*eni_evaluate)(void *user, const float *flat, const float *state, double *loss_out,
                                  double *accuracy_out);

typedef struct eni_curve_config {
    const char *dir;  /* eval.jsonl and snapshots are written here; NULL or "": nowhere */
    const char *set;  /* "test" or "holdout": eval.jsonl has test_loss or holdout_loss */
    uint64_t count;   /* elements of the flat vector */
    uint64_t nstate;  /* of the running statistics that are kept with it; 0: none */
    uint64_t every;   /* global samples between two points; 0: only points added explicitly */
    uint64_t resumed; /* samples of the checkpoint that the run goes on from; 0: a new run */
    double resumed_t; /* .. and its seconds on the clock, where they matter (record.h); 0: they do not */
    eni_target target;
    eni_evaluate evaluate;
    void (*on_point)(void *user, const eni_point *point); /* evaluated; NULL: not reported */
    void *user;
} eni_curve_config;

/* The result of a finished curve. */
typedef struct eni_curve_end {
    eni_point last;
    eni_reach reach; /* of the target, if there is one */
    bool is_whole;   /* `reach` is of the whole run; else an earlier run has evaluated its beginning */
} eni_curve_end;

/* Global samples between two points of a run of `samples`: as asked, or by the number of `points`; the same in every arm of a
 * comparison. Warns of a curve with so few that it cannot reach a target (NULL: none). */
uint64_t eni_curve_every(uint64_t every, uint64_t points, uint64_t samples, const eni_target *target);

/* Takes over an earlier run's points up to `resumed`, and drops the rest. EN_EIO, logged. */
en_status eni_curve_open(const eni_curve_config *config, eni_curve **curve_out);

/* Whether `samples` global samples call for a new point. */
bool eni_curve_is_due(const eni_curve *curve, uint64_t samples);

/* Its number among the points, alike on all ranks and servers: for its note. */
uint32_t eni_curve_number(const eni_curve *curve, uint64_t samples);

/* Copies `flat` and `state`; points come in order of samples, and one with the samples of the last replaces
 * it. Thinned-out points are not taken, number 0 always is. EN_EIO, logged: it had to go to the file, but
 * could not. */
en_status eni_curve_add(eni_curve *curve, const eni_copy_note *note, const float *flat, const float *state);

/* Announces `n` points while training, with at most `budget` bytes in memory (core/copies.h). */
void eni_curve_expect(eni_curve *curve, uint64_t n, uint64_t budget);

/* Moves on past a point that is not here yet, or that another rank keeps. */
void eni_curve_skip(eni_curve *curve, uint64_t samples);

/* Points for which there was no room. */
uint64_t eni_curve_left_out(const eni_curve *curve);

/* At a checkpoint: writes the points in memory to the file, for a run that resumes this one if it is killed.
 * Those that cannot be written stay in memory, with a warning. */
void eni_curve_keep(eni_curve *curve);

/* Evaluates the points of the rule, and writes them. Ends early with `evaluate`'s status; then the points
 * evaluated so far are written, and those kept for a resume stay. */
en_status eni_curve_finish(eni_curve *curve, eni_curve_end *end_out);

void eni_curve_close(eni_curve *curve); /* NULL is fine */

#endif
