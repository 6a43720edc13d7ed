/* probe.h - short measurements: the time of an all-reduce in a group of ranks, the speed at which a core
 * copies and adds. Medians of a few rounds after a warm-up, bounded in time; measured data is not kept, and no
 * result of a run depends on it.
 *
 * The conclusions (how many bytes a second, which algorithm when) are cost_model.h's. */
#ifndef COLLECTIVE_PROBE_H
#define COLLECTIVE_PROBE_H

#include <stdint.h>

#include "runtime/collective/coll.h"

/* ---- measured times of one operation by the size of its vector, interpolated ---- */

enum { ENI_COST_POINTS = 16 };

typedef struct eni_cost_point {
    double bytes, seconds;
} eni_cost_point;

/* By ascending size, no size twice. Plain bytes: it may be sent. */
typedef struct eni_cost_curve {
    int32_t n, unused;
    eni_cost_point point[ENI_COST_POINTS];
} eni_cost_curve;

/* Inserts a measurement, or replaces the one of that size. Ignored if the curve is full. */
void eni_cost_add(eni_cost_curve *curve, double bytes, double seconds);

/* Linear between two points. Below the first: its time (a latency). Above the last: the last segment's slope,
 * if it rises; a single point: in proportion to its bytes. NAN: no points. */
double eni_cost_at(const eni_cost_curve *curve, double bytes);

/* The line seconds = alpha + beta * bytes through the points, least squares of the relative error, so that 4
 * KB count as much as 64 MB. alpha and beta are at least 0. NAN for no points; one point: alpha 0. */
void eni_cost_line(const eni_cost_curve *curve, double *alpha_out, double *beta_out);

/* ---- measuring ---- */

/* All ranks of the group call it with the same sizes (bytes, multiples of 4, at most what a slot holds) and
 * slot, whose contents are overwritten by their mean: zeros stay zeros. Each size gets about budget_ns, at
 * least one round. curve_out is this rank's: medians of the time from a barrier to the end. */
en_status eni_probe_allreduce(eni_coll *coll, uint32_t slot, const uint64_t *bytes, int nsizes,
                              int64_t budget_ns, eni_cost_curve *curve_out);

/* Seconds per byte that this core loads or stores while it copies `bytes` bytes, which moves twice as many. */
double eni_probe_copy(float *to, const float *from, uint64_t bytes, int64_t budget_ns);

/* Seconds per byte of a vector that is added to another one. */
double eni_probe_sum(float *to, const float *from, uint64_t bytes, int64_t budget_ns);

/* Sorts, and returns the middle one. n >= 1. */
double eni_probe_median(double *values, int n);

#endif
