/* curve.h - accuracy over time without making a straggler: whole models, which are evaluated after training, off the
 * clock.
 *
 *     in memory     the newest copies, up to a byte budget; the oldest leaves for each that does not fit
 *     OUT/snapshots those, and all of them at a checkpoint: they outlive this process, and a run
 *                   that goes on from there has its curve from the start (core/copies.h).
 *                   Removed once the curve is written. Without a folder: a file in /tmp that has no name.
 *
 * How a model comes to be, and on which side of the clock, is rank/snapshot.c's business.
 *
 * Of K points every ceil(K/12)-th and the last are evaluated, which is the grid, and with a target those that
 * enclose the moment it was reached (run/reach.h); without a target, all. Owned by the compute thread. */
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
    uint64_t every;   /* global samples between two points; 0: only what is added by force */
    uint64_t resumed; /* samples of the checkpoint that the run goes on from; 0: a new run */
    double resumed_t; /* .. and its seconds on the clock, where they matter (record.h); 0: they do not */
    double target;    /* fraction; 0: none */
    eni_evaluate evaluate;
    void (*on_point)(void *user, const eni_point *point); /* evaluated; NULL: nobody listens */
    void *user;
} eni_curve_config;

/* What a finished curve says. */
typedef struct eni_curve_end {
    eni_point last;
    eni_reach reach; /* of the target, if there is one */
    bool is_whole;   /* `reach` is of the whole run; else an earlier run has evaluated its beginning */
} eni_curve_end;

/* Takes what an earlier run has left up to `resumed`, and forgets the rest. EN_EIO, logged. */
en_status eni_curve_open(const eni_curve_config *config, eni_curve **curve_out);

/* Whether `samples` global samples call for a new point. */
bool eni_curve_is_due(const eni_curve *curve, uint64_t samples);

/* Its place among the points, alike on all ranks and servers: for its note. */
uint32_t eni_curve_number(const eni_curve *curve, uint64_t samples);

/* Copies `flat` and `state`; points come in order of samples, and one with the samples of the last takes its place. What is
 * thinned out is not taken; number 0 always is. EN_EIO, logged: it had to go to the file, and could not. */
en_status eni_curve_add(eni_curve *curve, const eni_copy_note *note, const float *flat, const float *state);

/* So many are added while training, and so many bytes may be in memory (core/copies.h). */
void eni_curve_expect(eni_curve *curve, uint64_t n, uint64_t budget);

/* A point that is not here yet, or that another rank keeps: only the next one moves on. */
void eni_curve_skip(eni_curve *curve, uint64_t samples);

/* Points for which there was no room. */
uint64_t eni_curve_left_out(const eni_curve *curve);

/* At a checkpoint: what is in memory goes to the file, which a killed run leaves for the one that goes on.
 * What cannot be written (a warning says so) stays in memory. */
void eni_curve_keep(eni_curve *curve);

/* Evaluates what has to be, and writes it. Ends early with what `evaluate` said; what was evaluated by then
 * is written, and what was kept for a resume stays. */
en_status eni_curve_finish(eni_curve *curve, eni_curve_end *end_out);

void eni_curve_close(eni_curve *curve); /* NULL is fine */

#endif
