#include "runtime/collective/cost_curve.h"

#include <math.h>
#include <string.h>

void eni_cost_add(eni_cost_curve *curve, double bytes, double seconds)
{
    int at = 0;
    while (at < curve->n && curve->point[at].bytes < bytes)
        at++;
    const int is_there = at < curve->n && curve->point[at].bytes <= bytes;
    if (!is_there) {
        if (curve->n == ENI_COST_POINTS) return;
        memmove(&curve->point[at + 1], &curve->point[at], (size_t)(curve->n - at) * sizeof curve->point[0]);
        curve->n++;
    }
    curve->point[at] = (eni_cost_point){bytes, seconds};
}

static double slope(const eni_cost_point *a, const eni_cost_point *b)
{
    return (b->seconds - a->seconds) / (b->bytes - a->bytes);
}

double eni_cost_at(const eni_cost_curve *curve, double bytes)
{
    const eni_cost_point *p = curve->point;
    const int n = curve->n;
    if (n == 0) return NAN;
    if (bytes <= p[0].bytes) return p[0].seconds;
    for (int i = 1; i < n; i++)
        if (bytes <= p[i].bytes) return p[i - 1].seconds + slope(&p[i - 1], &p[i]) * (bytes - p[i - 1].bytes);
    const double last = p[n - 1].seconds;
    if (n == 1) return p[0].bytes > 0 ? last * bytes / p[0].bytes : last;
    const double more = slope(&p[n - 2], &p[n - 1]) * (bytes - p[n - 1].bytes);
    return last + (more > 0 ? more : 0);
}

void eni_cost_line(const eni_cost_curve *curve, double *alpha_out, double *beta_out)
{
    /* weights 1 / seconds^2: minimises the sum of ((alpha + beta x - y) / y)^2 */
    double s = 0, sx = 0, sxx = 0, sy = 0, sxy = 0;
    *alpha_out = *beta_out = NAN;
    for (int i = 0; i < curve->n; i++) {
        const double x = curve->point[i].bytes, y = curve->point[i].seconds;
        if (!(y > 0)) continue;
        const double w = 1 / (y * y);
        s += w, sx += w * x, sxx += w * x * x, sy += w * y, sxy += w * x * y;
    }
    if (s <= 0) return;
    const double d = s * sxx - sx * sx;
    double beta = d > 1e-12 * s * sxx ? (s * sxy - sx * sy) / d : -1;
    double alpha = d > 1e-12 * s * sxx ? (sxx * sy - sx * sxy) / d : -1;
    if (beta < 0 && alpha >= 0) beta = 0, alpha = sy / s;
    if (alpha < 0) alpha = 0, beta = sxx > 0 ? sxy / sxx : 0;
    *alpha_out = alpha;
    *beta_out = beta;
}
