/* reach.c - three points in a row at the target or beyond it; the moment is interpolated. */
#include "run/reach.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "run/units.h"

bool eni_target_parse(const char *text, eni_target *target_out)
{
    eni_target target = {.is_loss = strncmp(text, "loss:", 5) == 0};
    if (!eni_parse_real(target.is_loss ? text + 5 : text, &target.value)) return false;
    if (!target.is_loss && (target.value < 0 || target.value > 100)) return false;
    if (!target.is_loss) target.value = target.value / 100 + 0.0; /* no negative zero */
    *target_out = target;
    return true;
}

const char *eni_target_text(const eni_target *target, const char *unit, char mark,
                            char text_out[ENI_TARGET_TEXT])
{
    if (target->is_loss)
        snprintf(text_out, ENI_TARGET_TEXT, "loss%c%.12g", mark, target->value);
    else
        snprintf(text_out, ENI_TARGET_TEXT, "%.12g%s", 100 * target->value, unit);
    return text_out;
}

/* The number that rises to the target: the accuracy, or the loss with its sign changed. NAN counts as below. */
static double height_of(const eni_eval *eval, const eni_target *target)
{
    return target->is_loss ? -eval->loss : eval->accuracy;
}

static bool is_there(const eni_eval *eval, const eni_target *target)
{
    return height_of(eval, target) >= (target->is_loss ? -target->value : target->value);
}

/* Interpolates between two points, the first below the target and the second not. */
static void interpolate(const eni_eval *a, const eni_eval *b, const eni_target *target, eni_reach *reach)
{
    const double low = height_of(a, target), high = height_of(b, target),
                 wanted = target->is_loss ? -target->value : target->value,
                 part = isnan(low) ? 1 : (wanted - low) / (high - low);
    reach->t = a->t + part * (b->t - a->t);
    reach->samples = a->samples + part * (b->samples - a->samples);
    reach->low = a->t;
    reach->high = b->t;
}

/* Finds [from, to] of the reach: the grid points that enclose the moment. */
static bool find_in_grid(const eni_eval *evals, size_t n, const eni_target *target, eni_reach *reach)
{
    size_t before = n; /* the last grid point below the target; n: none */
    int row = 0;
    for (size_t i = 0; i < n; i++) {
        if (evals[i].is_bracket) continue;
        if (!is_there(&evals[i], target)) {
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

eni_reach eni_reach_find(const eni_eval *evals, size_t n, const eni_target *target)
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
    while (!is_there(&evals[at], target))
        at++;
    interpolate(&evals[at - 1], &evals[at], target, &reach);
    return reach;
}
