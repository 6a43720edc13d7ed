/* program_schedule.c - a program's schedule of the rate as few points, because servers and the other ranks learn it when they
 * meet. A line is drawn out from a point as long as it passes all steps closely: each step bounds its slope
 * (Bristol's swinging door). */
#include "job/job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

enum { MOST_STEPS = 1 << 22 };

/* A step, exactly: a point has its factor as float, and rounding must not look like a bend. */
typedef struct rate_at {
    double samples, factor;
} rate_at;

/* The line from the last point to `end`, the newest step. */
typedef struct line {
    rate_at from, end;
    double least, most; /* slopes that pass all steps in between closely */
    bool has_end;
} line;

static void add_point(eni_rate_points *points, rate_at at)
{
    points->at[points->n++] = (eni_rate_point){(uint64_t)at.samples, (float)at.factor};
}

/* False: no room for the point. */
static bool draw_on(eni_rate_points *points, line *l, rate_at next, double close)
{
    const double slope = (next.factor - l->from.factor) / (next.samples - l->from.samples);
    if (l->has_end && !(slope >= l->least && slope <= l->most)) { /* the end becomes a point */
        if (points->n == ENI_RATE_POINTS_MAX - 1) return false;   /* one is for the last step */
        add_point(points, l->end);
        *l = (line){.from = l->end};
    }
    const double dx = next.samples - l->from.samples, dy = next.factor - l->from.factor;
    l->least = l->has_end ? fmax(l->least, (dy - close) / dx) : (dy - close) / dx;
    l->most = l->has_end ? fmin(l->most, (dy + close) / dx) : (dy + close) / dx;
    l->end = next;
    l->has_end = true;
    return true;
}

static en_status read_all(const eni_plan *plan, eni_factor_of factor_of, void *user, double *factors_out)
{
    for (uint64_t step = 0; step < plan->steps; step++) {
        const double factor = factor_of(user, step, step / plan->epoch_steps) + 0.0; /* not -0 */
        factors_out[step] = factor;
        if (factor >= 0 && factor <= 1e6) continue;
        return eni_fail(EN_EINVAL, "rank",
                        "the program's schedule gives %g for step %llu: a factor of lr is 0 to 1e6", factor,
                        (unsigned long long)step);
    }
    return EN_OK;
}

static en_status join_points(const eni_plan *plan, const double *factors, eni_rate_points *points)
{
    line l = {.from = {0, factors[0]}};
    double most = 0;
    for (uint64_t step = 0; step < plan->steps; step++)
        most = fmax(most, factors[step]);
    add_point(points, l.from);
    for (uint64_t step = 1; step < plan->steps; step++)
        if (!draw_on(points, &l, (rate_at){(double)eni_plan_samples_before(plan, step), factors[step]},
                     1e-7 * most))
            return eni_fail(
                EN_EINVAL, "rank",
                "the program's schedule bends more than %d times until step %llu of %llu: let it change "
                "once an epoch, or more evenly",
                ENI_RATE_POINTS_MAX, (unsigned long long)step, (unsigned long long)plan->steps);
    if (l.has_end) add_point(points, l.end);
    return EN_OK;
}

en_status eni_program_schedule(eni_job *job, const eni_config *c, eni_factor_of factor_of, void *user)
{
    const eni_plan *plan = &job->plan;
    if (factor_of == NULL) return EN_OK;
    if (c->lr_schedule != ENI_SCHEDULE_CONSTANT)
        return eni_fail(EN_EINVAL, "rank",
                        "the program has a schedule of its own: omit lr-schedule, or that");
    if (plan->steps > MOST_STEPS)
        return eni_fail(
            EN_EINVAL, "rank",
            "the program's schedule is read for each of %llu steps: give at most %d, or lr-schedule",
            (unsigned long long)plan->steps, MOST_STEPS);
    job->points = eni_rate_points_new();
    double *factors = eni_alloc_array(plan->steps, sizeof *factors);
    en_status st = job->points == NULL || factors == NULL ? EN_ENOMEM : EN_OK;
    if (st == EN_OK) st = read_all(plan, factor_of, user, factors);
    if (st == EN_OK) st = join_points(plan, factors, job->points);
    eni_free(factors);
    char *text = st == EN_OK ? eni_rate_points_text(job->points) : NULL;
    if (st == EN_OK && text == NULL) st = EN_ENOMEM;
    if (st == EN_OK) eni_digest_of(text, strlen(text), job->points_sha256);
    eni_free(text);
    return st;
}
