/* probe.c - all-reduces in rounds that all ranks agree on; copies and sums of one core. */
#include "runtime/collective/probe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/try.h"
#include "ops/mean.h"

enum { ROUNDS_MAX = 99 };

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double eni_probe_median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof values[0], by_value);
    return values[n / 2];
}

static int rounds_for(int64_t budget_ns, double once_s)
{
    const double fit = once_s > 0 ? (double)budget_ns * 1e-9 / once_s : ROUNDS_MAX;
    return fit < 1 ? 1 : fit > ROUNDS_MAX ? ROUNDS_MAX : (int)fit;
}

/* ---- among ranks ---- */

static en_status mean(eni_coll *coll, uint32_t slot, uint64_t count)
{
    return eni_coll_run(
        coll,
        &(eni_coll_op){.op = EN_ALLREDUCE, .what = EN_WEIGHTS, .slot = slot, .count = count, .nsamples = 1});
}

static en_status once(eni_coll *coll, uint32_t slot, uint64_t count, double *seconds_out)
{
    EN_TRY(eni_coll_run(coll, &(eni_coll_op){.op = ENI_COLL_BARRIER}));
    const int64_t begin = eni_now_ns();
    EN_TRY(mean(coll, slot, count));
    *seconds_out = (double)(eni_now_ns() - begin) * 1e-9;
    return EN_OK;
}

/* All ranks make the same number of rounds: the mean of what each would make, which is the same everywhere
 * because all ranks get the same bytes. It travels in the slot's first element, which is restored. */
static en_status agree_rounds(eni_coll *coll, uint32_t slot, float *first, int own, int *rounds_out)
{
    const float kept = *first;
    *first = (float)own;
    EN_TRY(mean(coll, slot, 1));
    *rounds_out = *first >= 1 ? (int)*first : 1;
    if (*rounds_out > ROUNDS_MAX) *rounds_out = ROUNDS_MAX;
    *first = kept;
    return EN_OK;
}

static en_status time_size(eni_coll *coll, uint32_t slot, uint64_t bytes, int64_t budget_ns, double *out)
{
    double seconds[ROUNDS_MAX];
    const uint64_t count = bytes / sizeof(float);
    int rounds;
    for (int i = 0; i < 2; i++) /* pages, connections, caches; then the time of a round */
        EN_TRY(once(coll, slot, count, &seconds[0]));
    EN_TRY(agree_rounds(coll, slot, eni_coll_slot(coll, slot), rounds_for(budget_ns, seconds[0]), &rounds));
    for (int i = 0; i < rounds; i++)
        EN_TRY(once(coll, slot, count, &seconds[i]));
    *out = eni_probe_median(seconds, rounds);
    return EN_OK;
}

en_status eni_probe_allreduce(eni_coll *coll, uint32_t slot, const uint64_t *bytes, int nsizes,
                              int64_t budget_ns, eni_cost_curve *curve_out)
{
    eni_cost_curve curve = {0};
    for (int i = 0; i < nsizes; i++) {
        double seconds;
        EN_TRY(time_size(coll, slot, bytes[i], budget_ns, &seconds));
        eni_cost_add(&curve, (double)bytes[i], seconds);
    }
    *curve_out = curve;
    return EN_OK;
}

/* ---- one core ---- */

double eni_probe_copy(float *to, const float *from, uint64_t bytes, int64_t budget_ns)
{
    double seconds[ROUNDS_MAX];
    int n = 0;
    const int64_t deadline = eni_now_ns() + budget_ns;
    memcpy(to, from, bytes);
    do {
        const int64_t begin = eni_now_ns();
        memcpy(to, from, bytes);
        seconds[n++] = (double)(eni_now_ns() - begin) * 1e-9;
    } while (n < ROUNDS_MAX && eni_now_ns() < deadline);
    return eni_probe_median(seconds, n) / (2 * (double)bytes);
}

double eni_probe_sum(float *to, const float *from, uint64_t bytes, int64_t budget_ns)
{
    double seconds[ROUNDS_MAX];
    int n = 0;
    const int64_t deadline = eni_now_ns() + budget_ns;
    eni_mean_first(to, from, 1, bytes / sizeof(float));
    do {
        const int64_t begin = eni_now_ns();
        eni_mean_add(to, from, 1, bytes / sizeof(float));
        seconds[n++] = (double)(eni_now_ns() - begin) * 1e-9;
    } while (n < ROUNDS_MAX && eni_now_ns() < deadline);
    return eni_probe_median(seconds, n) / (double)bytes;
}

/* ---- between the measured sizes ---- */

void eni_cost_add(eni_cost_curve *curve, double bytes, double seconds)
{
    int at = 0;
    while (at < curve->n && curve->point[at].bytes < bytes)
        at++;
    const bool is_there = at < curve->n && curve->point[at].bytes <= bytes;
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
