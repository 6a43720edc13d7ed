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
    double accuracy; /* fraction, of the holdout if there is one; NAN: not defined for this model */
    bool is_bracket; /* evaluated only to enclose the target; not in the grid */
} eni_eval;

/* An accuracy to rise to, or a loss to fall to. Zeroed: none. */
typedef struct eni_target {
    double value; /* of an accuracy a fraction; 0: none */
    bool is_loss;
} eni_target;

/* "75", which is percent, or "loss:2.5"; with "0" there is no target. */
bool eni_target_parse(const char *text, eni_target *target_out);

/* "75 %", with `unit` behind the number, or "loss 2.5", with `mark` before it. As a flag's value: "" and ':'. */
enum { ENI_TARGET_TEXT = 48 };
const char *eni_target_text(const eni_target *target, const char *unit, char mark,
                            char text_out[ENI_TARGET_TEXT]);

static inline bool eni_target_is_set(const eni_target *target)
{
    return target->is_loss || target->value > 0;
}

static inline bool eni_target_is_same(const eni_target *a, const eni_target *b)
{
    return a->is_loss == b->is_loss && !(a->value - b->value > 1e-9) && !(b->value - a->value > 1e-9);
}

typedef struct eni_reach {
    double t, samples; /* interpolated between the enclosing points; INFINITY: not reached */
    double low, high;  /* seconds of the enclosing points; low is 0 without an earlier one */
    size_t from, to;   /* if reached: the grid points that enclose it; equal without an earlier one */
} eni_reach;

enum { ENI_REACH_IN_A_ROW = 3 };

/* Finds the first of three consecutive grid points that are as good as the target. `evals` (n) are in order of samples. */
eni_reach eni_reach_find(const eni_eval *evals, size_t n, const eni_target *target);

#endif
