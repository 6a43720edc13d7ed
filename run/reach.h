/* reach.h - when a curve counts as having reached a target (docs/measurement.md): one rule for the worker,
 * which schedules evaluations by it, and for the report. */
#ifndef RUN_REACH_H
#define RUN_REACH_H

#include <stdbool.h>
#include <stddef.h>

/* One evaluation. */
typedef struct eni_eval {
    double samples;  /* applied over all workers when the weights were taken, as far as rank 0 knew */
    double t;        /* seconds on the training clock */
    double loss;     /* NAN: not given */
    double accuracy; /* fraction, of the holdout where there is one; NAN: this model has none */
    bool is_bracket; /* evaluated only to enclose the target; not in the grid */
} eni_eval;

typedef struct eni_reach {
    double t, samples; /* interpolated by accuracy between the enclosing points; INFINITY: not reached */
    double low, high;  /* seconds of the enclosing points; low is 0 without an earlier one */
    size_t from, to;   /* if reached: the grid points that enclose it; equal without an earlier one */
} eni_reach;

enum { ENI_REACH_IN_A_ROW = 3 };

/* Finds the first of three consecutive grid points at or above the target. `evals` (n) are in order of samples. */
eni_reach eni_reach_find(const eni_eval *evals, size_t n, double target);

#endif
