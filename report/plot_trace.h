/* plot_trace.h - one step, cut out of a run's trace.json (core/trace.h writes it). */
#ifndef REPORT_PLOT_TRACE_H
#define REPORT_PLOT_TRACE_H

#include <stddef.h>

#include "report/report_study.h"

enum { ENI_TRACE_LANES = 32 };

/* A thread of a process, a line of the picture. */
typedef struct eni_trace_lane {
    long pid, tid;
    char name[80]; /* "rank 0 compute" */
} eni_trace_lane;

typedef struct eni_trace_part {
    size_t lane;
    double begin, end; /* ms from the step's begin; may reach over its edges */
    int phase;         /* ENI_PHASE_*; -1: something else */
    char name[32];
} eni_trace_part;

typedef struct eni_trace_step {
    long step;
    double ms; /* from the first begin to the last end of rank 0's spans of this step */
    size_t nlanes, nparts;
    eni_trace_lane lanes[ENI_TRACE_LANES]; /* workers by rank, then the servers */
    eni_trace_part *parts;                 /* longest first, so that nested spans are drawn on top */
} eni_trace_step;

/* Reads `path` and cuts out the step of median length, leaving out the first fifth of the steps (start-up).
 * EN_ENOENT (not logged) when there is no trace or no step in it; EN_EFORMAT, EN_EIO and EN_ENOMEM logged.
 * Freed with eni_trace_step_fini. */
en_status eni_trace_step_load(const char *path, eni_trace_step *step_out);
void eni_trace_step_fini(eni_trace_step *step);

/* The phase that a span's name belongs to, or -1. */
int eni_trace_phase(const char *name);

#endif
