/* curve.h - accuracy over time without making a straggler: weights are copied at step boundaries and
 * evaluated after training, off the clock.
 *
 * Copies are bounded by a byte budget. When it is full, what is stored is evaluated on the spot; the caller
 * takes that time off the training clock. Owned by the compute thread. */
#ifndef WORKER_CURVE_H
#define WORKER_CURVE_H

#include <stdint.h>

#include "entrain/status.h"

typedef struct eni_curve eni_curve;

/* Evaluates `flat` on the whole test set: mean loss, share of correct predictions. */
typedef en_status (*eni_evaluate)(void *user, const float *flat, double *loss_out, double *accuracy_out);

typedef struct eni_point {
    uint64_t samples, update;
    double t; /* seconds on the training clock */
    double loss, accuracy;
} eni_point;

typedef struct eni_curve_config {
    const char *dir;  /* eval.jsonl is written here; NULL or "": nowhere */
    uint64_t count;   /* elements of the flat vector */
    uint64_t every;   /* global samples between two points; 0: only what is added by force */
    uint64_t budget;  /* bytes of copies */
    uint64_t resumed; /* samples of the checkpoint that the run goes on from; 0: a new run */
    eni_evaluate evaluate;
    void (*on_point)(void *user, const eni_point *point); /* evaluated; NULL: nobody listens */
    void *user;
} eni_curve_config;

en_status eni_curve_open(const eni_curve_config *config, eni_curve **curve_out);

/* 1 if `samples` global samples call for a new point. */
int eni_curve_is_due(const eni_curve *curve, uint64_t samples);

/* Copies `flat`. May evaluate stored points first when the budget is full (*evaluated_ns_out > 0). */
en_status eni_curve_add(eni_curve *curve, uint64_t samples, uint64_t update, double t, const float *flat,
                        int64_t *evaluated_ns_out);

/* A point that another rank keeps, where all ranks make the model together: only the next one moves on. */
void eni_curve_skip(eni_curve *curve, uint64_t samples);

/* Evaluates what is stored and hands the file to the system, where it survives this process. */
en_status eni_curve_flush(eni_curve *curve, int64_t *evaluated_ns_out);

/* Evaluates what is stored and writes it. *last_out (may be NULL) is the last point of the run. */
en_status eni_curve_finish(eni_curve *curve, eni_point *last_out);

void eni_curve_close(eni_curve *curve); /* NULL is fine */

#endif
