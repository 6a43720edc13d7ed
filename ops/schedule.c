/* schedule.c - the learning rate of a step, and schedules as text (schedule.h). */
#include "ops/schedule.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/memory.h"
#include "ops/numbers.h"

const char *const eni_schedule_names[ENI_SCHEDULES] = {"constant",  "step",   "cosine",
                                                       "multistep", "linear", "points"};

/* The share of the run that is done. */
static double done(const eni_schedule *schedule, uint64_t samples)
{
    return samples < schedule->total ? (double)samples / (double)schedule->total : schedule->total > 0;
}

static double between_points(const eni_rate_points *points, uint64_t samples)
{
    uint32_t from = 0, to = points->n; /* the last point not behind `samples` is in [from, to) */
    while (to - from > 1) {
        const uint32_t middle = from + (to - from) / 2;
        if (points->at[middle].samples <= samples)
            from = middle;
        else
            to = middle;
    }
    const eni_rate_point *a = &points->at[from], *b = a + (to < points->n);
    if (a == b) return (double)a->factor;
    return (double)a->factor + ((double)b->factor - (double)a->factor) * (double)(samples - a->samples) /
                                   (double)(b->samples - a->samples);
}

float eni_schedule_lr(const eni_schedule *schedule, uint64_t samples)
{
    double lr = schedule->base;
    switch (schedule->kind) {
    case ENI_LR_CONSTANT: break;
    case ENI_LR_STEP:
        if (schedule->step_samples > 0) lr *= eni_power(schedule->gamma, samples / schedule->step_samples);
        break;
    case ENI_LR_COSINE: lr *= 0.5 * (1 + cos(acos(-1.0) * done(schedule, samples))); break;
    case ENI_LR_MULTISTEP:
        for (int i = 0; i < schedule->nmilestones && samples >= schedule->milestone[i]; i++)
            lr *= schedule->gamma;
        break;
    case ENI_LR_LINEAR: lr *= 1 - done(schedule, samples); break;
    case ENI_LR_POINTS: lr *= between_points(schedule->points, samples); break;
    }
    if (samples < schedule->warmup) lr *= (double)samples / (double)schedule->warmup;
    return (float)lr;
}

void eni_schedule_milestones(const eni_schedule *schedule, char *text_out, size_t bytes)
{
    size_t used = 0;
    text_out[0] = 0;
    for (int i = 0; i < schedule->nmilestones && used < bytes; i++)
        used += (size_t)snprintf(text_out + used, bytes - used, "%s%" PRIu64, i > 0 ? "," : "",
                                 schedule->milestone[i]);
}

eni_rate_points *eni_rate_points_new(void)
{
    eni_rate_points *points = eni_alloc(sizeof *points);
    if (points != NULL) points->at = eni_alloc_array(ENI_RATE_POINTS_MAX, sizeof *points->at);
    if (points != NULL && points->at != NULL) return points;
    eni_rate_points_free(points);
    return NULL;
}

void eni_rate_points_free(eni_rate_points *points)
{
    if (points != NULL) eni_free(points->at);
    eni_free(points);
}

char *eni_rate_points_text(const eni_rate_points *points)
{
    const size_t room = (size_t)points->n * 40 + 1;
    char *text = eni_alloc(room);
    size_t used = 0;
    for (uint32_t i = 0; text != NULL && i < points->n; i++)
        used += (size_t)snprintf(text + used, room - used, "%s%" PRIu64 ":%.9g", i > 0 ? "," : "",
                                 points->at[i].samples, (double)points->at[i].factor);
    return text;
}

static bool read_points(const char *text, eni_rate_points *points)
{
    for (char mark = ','; mark == ','; mark = *text++) {
        eni_rate_point *point = &points->at[points->n];
        if (points->n == ENI_RATE_POINTS_MAX || !eni_read_whole(&text, &point->samples) || *text++ != ':' ||
            !eni_read_rate(&text, &point->factor) || (*text != ',' && *text != 0) ||
            (points->n == 0 ? point->samples != 0 : point->samples <= point[-1].samples))
            return false;
        points->n++;
    }
    return true;
}

eni_rate_points *eni_rate_points_parse(const char *text)
{
    eni_rate_points *points = eni_rate_points_new();
    if (points == NULL || read_points(text, points)) return points;
    eni_rate_points_free(points);
    return NULL;
}
