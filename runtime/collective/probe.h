/* probe.h - short measurements: what an all-reduce takes among the ranks of a group, how fast a core copies
 * and adds. Medians of a few rounds after a warm-up, bounded in time; nothing that is measured with is kept,
 * and no result of a run depends on what was measured.
 *
 * What follows from them (how many bytes a second, which algorithm when) is cost_model.h's. */
#ifndef COLLECTIVE_PROBE_H
#define COLLECTIVE_PROBE_H

#include <stdint.h>

#include "runtime/collective/coll.h"

/* ---- measured times of one operation over the size of its vector, and what lies in between ---- */

enum { ENI_COST_POINTS = 16 };

typedef struct eni_cost_point {
    double bytes, seconds;
} eni_cost_point;

/* By ascending size, no size twice. Plain bytes: it may be sent. */
typedef struct eni_cost_curve {
    int32_t n, unused;
    eni_cost_point point[ENI_COST_POINTS];
} eni_cost_curve;

/* Puts a measurement where it belongs; one of a size that is there replaces it. The curve is full: ignored. */
void eni_cost_add(eni_cost_curve *curve, double bytes, double seconds);

/* Linear between two points; below the first one what that took (a latency), above the last one in proportion
 * to the last segment's slope, and at least that of the last point's bytes through zero when there is no
 * other. NAN: no points. */
double eni_cost_at(const eni_cost_curve *curve, double bytes);

/* The line seconds = alpha + beta * bytes through the points, least squares of the relative error, so that 4
 * KB count as much as 64 MB. alpha and beta are at least 0. NAN for no points; one point: alpha 0. */
void eni_cost_line(const eni_cost_curve *curve, double *alpha_out, double *beta_out);

/* ---- measuring ---- */

/* All ranks of the group call it with the same sizes (bytes, multiples of 4, at most what a slot holds) and
 * slot, whose contents are overwritten by their mean: zeros stay zeros. Each size gets about budget_ns, and
 * one round where that is not enough. curve_out is this rank's: medians of the time from a barrier to the
 * end. */
en_status eni_probe_allreduce(eni_coll *coll, uint32_t slot, const uint64_t *bytes, int nsizes,
                              int64_t budget_ns, eni_cost_curve *curve_out);

/* Seconds per byte that this core loads or stores while it copies `bytes` bytes from one place to another: a
 * copy of b bytes moves 2b. `from` and `to` have room for `bytes`. */
double eni_probe_copy(float *to, const float *from, uint64_t bytes, int64_t budget_ns);

/* Seconds per byte of a vector that is added to another one. */
double eni_probe_sum(float *to, const float *from, uint64_t bytes, int64_t budget_ns);

/* Sorts, and returns the middle one. n >= 1. */
double eni_probe_median(double *values, int n);

#endif
