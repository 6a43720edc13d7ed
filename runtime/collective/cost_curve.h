/* cost_curve.h - measured times of one operation over the size of its vector, and what lies in between. */
#ifndef COLLECTIVE_COST_CURVE_H
#define COLLECTIVE_COST_CURVE_H

#include <stdint.h>

enum { ENI_COST_POINTS = 16 };

typedef struct eni_cost_point {
    double bytes, seconds;
} eni_cost_point;

/* By ascending size, no size twice. Plain bytes: it may be sent. */
typedef struct eni_cost_curve {
    int32_t n, unused;
    eni_cost_point point[ENI_COST_POINTS];
} eni_cost_curve;

/* Puts a measurement where it belongs; one of a size that is there replaces it. The curve is full: ignored.
 */
void eni_cost_add(eni_cost_curve *curve, double bytes, double seconds);

/* Linear between two points; below the first one what that took (a latency), above the last one in proportion
 * to the last segment's slope, and at least that of the last point's bytes through zero when there is no
 * other. NAN: no points. */
double eni_cost_at(const eni_cost_curve *curve, double bytes);

/* The line seconds = alpha + beta * bytes through the points, least squares of the relative error, so that 4
 * KB count as much as 64 MB. alpha and beta are at least 0. NAN for no points; one point: alpha 0. */
void eni_cost_line(const eni_cost_curve *curve, double *alpha_out, double *beta_out);

#endif
