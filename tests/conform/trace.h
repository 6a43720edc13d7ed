/* trace.h - runs of one weight, written by hand, for the judge. The weight begins at 0, the rate is 0.5, and the gradient of
 * micro-batch b is the b-th number of `gradients`, wherever it is computed, unless there is a slope. A trace has a line per event:
 *
 *     step RANK STEP BATCH WEIGHT      the rank begins a step with that weight
 *     push RANK VERSION BASE           its message arrives
 *     reply RANK VERSION               .. a rank is answered
 *     taken RANK VERSION WEIGHT        .. what the push has made: the version after it; nan: not absorbed
 *     gone RANK                        the rank makes no more calls */
#ifndef TESTS_CONFORM_TRACE_H
#define TESTS_CONFORM_TRACE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "conform/conform.h"

enum { HAND_EVENTS = 128, HAND_BATCHES = 16 };

typedef struct hand_trace {
    const char *strategy, *options;
    int nranks;
    float gradients[HAND_BATCHES];
    const char *lines; /* separated by ';' */
    double model;      /* at the end; NAN: not compared */
    float slope;       /* a gradient at x is slope * x larger */
    int together;      /* ranks of a host, or of a group; 0: 1 */
} hand_trace;

static uint64_t hand_samples(void *user, uint64_t micro_batch)
{
    (void)user, (void)micro_batch;
    return 1;
}

static float hand_gradient(void *user, uint64_t micro_batch, uint64_t element, float x)
{
    const hand_trace *t = user;
    (void)element;
    return t->slope * x + t->gradients[micro_batch];
}

static inline void hand_event(const char *line, eni_sim_event *e, float *weight, int *has_weight)
{
    char type[16];
    double a = 0, b = 0, c = 0, d = 0;
    assert_true(sscanf(line, " %15s %lf %lf %lf %lf", type, &a, &b, &c, &d) >= 2);
    *e = (eni_sim_event){.rank = (int32_t)a};
    *has_weight = strcmp(type, "step") == 0;
    *weight = (float)d;
    if (strcmp(type, "step") == 0) {
        e->type = ENI_SIM_STEP;
        e->clock = (uint64_t)b;
        e->version = (uint64_t)c;
    } else if (strcmp(type, "gone") == 0) {
        e->type = ENI_SIM_FINISHED;
    } else {
        e->type = strcmp(type, "push") == 0    ? ENI_SIM_PUSH
                  : strcmp(type, "reply") == 0 ? ENI_SIM_REPLY
                                               : ENI_SIM_TAKEN;
        e->version = (uint64_t)b;
        e->base = e->type == ENI_SIM_PUSH ? (uint64_t)c : 0;
        e->weight = c;
    }
}

/* The events of a trace, and the weights with which steps begin; returns their number. */
static inline uint64_t hand_events(const char *lines, eni_sim_event event[HAND_EVENTS],
                                   float weight[HAND_EVENTS])
{
    uint64_t n = 0;
    for (const char *line = lines; line != NULL && *line != '\0';
         line = strchr(line, ';'), line += line != NULL) {
        int has_weight;
        assert_true(n < HAND_EVENTS);
        hand_event(line, &event[n], &weight[n], &has_weight);
        event[n].at_ns = (int64_t)n * 1000000;
        n++;
    }
    return n;
}

/* Judges a trace. */
static inline eni_judgement hand_judge(const hand_trace *t)
{
    static const float init[1];
    static const eni_bucket_range bucket = {.lo = 0, .hi = 1};
    eni_sim_event event[HAND_EVENTS];
    float weight[HAND_EVENTS], model = (float)t->model;
    const float *seen[HAND_EVENTS] = {NULL};
    const uint64_t n = hand_events(t->lines, event, weight);
    uint64_t batches = 0;
    const int together = t->together > 0 ? t->together : 1;
    const eni_reference *reference = eni_reference_find(t->strategy);
    eni_judgement judgement = {0};
    assert_non_null(reference);
    for (uint64_t i = 0; i < n; i++) {
        if (event[i].type != ENI_SIM_STEP) continue;
        seen[i] = &weight[i];
        if (event[i].version >= batches) batches = event[i].version + 1;
    }
    eni_recording r = {.nranks = t->nranks,
                       .per_host = reference->flags & ENI_PAPER_HOSTS ? together : 1,
                       .nshards = 1,
                       .claims = true,
                       .micro_batches = batches,
                       .samples = hand_samples,
                       .gradient = hand_gradient,
                       .user = (void *)(uintptr_t)t,
                       .rates = {.lr = 0.5},
                       .count = 1,
                       .init = init,
                       .model = isnan(t->model) ? NULL : &model,
                       .nbuckets = 1,
                       .bucket = &bucket,
                       .event = event,
                       .seen = seen,
                       .nevents = n,
                       .has_ended = true};
    for (int i = 0; i < ENI_PAPER_RANKS; i++)
        r.group[i] = i - i % together;
    eni_judge(&r, reference, t->options, &judgement);
    return judgement;
}

static inline void hand_agrees(const hand_trace *traces, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const eni_judgement j = hand_judge(&traces[i]);
        if (!j.agrees) fail_msg("%s:%s: %s", traces[i].strategy, traces[i].options, j.finding);
        assert_true(j.vectors > 0 && j.decisions > 0);
    }
}

#endif
