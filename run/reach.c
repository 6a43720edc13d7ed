/* reach.c - three points in a row at or above the target; the moment is interpolated. */
#include "run/reach.h"

#include <math.h>

/* Interpolates between two points, the first below the target and the second not. */
static void interpolate(const eni_eval *a, const eni_eval *b, double target, eni_reach *reach)
{
    const double part = isnan(a->accuracy) ? 1 : (target - a->accuracy) / (b->accuracy - a->accuracy);
    reach->t = a->t + part * (b->t - a->t);
    reach->samples = a->samples + part * (b->samples - a->samples);
    reach->low = a->t;
    reach->high = b->t;
}

/* Finds [from, to] of the reach: the grid points that enclose the moment. */
static bool find_in_grid(const eni_eval *evals, size_t n, double target, eni_reach *reach)
{
    size_t before = n; /* the last grid point below the target; n: none */
    int row = 0;
    for (size_t i = 0; i < n; i++) {
        if (evals[i].is_bracket) continue;
        if (!(evals[i].accuracy >= target)) { /* NAN counts as below */
            before = i;
            row = 0;
            continue;
        }
        if (row == 0) reach->to = i;
        if (++row == ENI_REACH_IN_A_ROW) {
            reach->from = before < n ? before : reach->to;
            return true;
        }
    }
    return false;
}

eni_reach eni_reach_find(const eni_eval *evals, size_t n, double target)
{
    eni_reach reach = {.t = INFINITY, .samples = INFINITY, .low = INFINITY, .high = INFINITY};
    if (!find_in_grid(evals, n, target, &reach)) return reach;
    if (reach.from == reach.to) { /* no earlier point: it may have been any time before */
        const eni_eval *first = &evals[reach.to];
        reach.t = reach.high = first->t;
        reach.samples = first->samples;
        reach.low = 0;
        return reach;
    }
    size_t at = reach.from + 1;
    while (!(evals[at].accuracy >= target))
        at++;
    interpolate(&evals[at - 1], &evals[at], target, &reach);
    return reach;
}
