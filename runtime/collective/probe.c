#include "runtime/collective/probe.h"

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

static en_status once(eni_coll *coll, uint32_t slot, uint64_t count, double *seconds_out)
{
    const eni_coll_op barrier = {.op = ENI_COLL_BARRIER};
    const eni_coll_op mean = {
        .op = EN_ALLREDUCE, .what = EN_WEIGHTS, .slot = slot, .count = count, .nsamples = 1};
    EN_TRY(eni_coll_run(coll, &barrier));
    const int64_t begin = eni_now_ns();
    EN_TRY(eni_coll_run(coll, &mean));
    *seconds_out = (double)(eni_now_ns() - begin) * 1e-9;
    return EN_OK;
}

/* All ranks make as many rounds: the mean of what each would make is the same number everywhere, for all
 * ranks get the same bytes. It travels in the first element of the slot, which is put back. */
static en_status agree_rounds(eni_coll *coll, uint32_t slot, float *first, int own, int *rounds_out)
{
    const eni_coll_op op = {.op = EN_ALLREDUCE, .what = EN_WEIGHTS, .slot = slot, .count = 1, .nsamples = 1};
    const float kept = *first;
    *first = (float)own;
    EN_TRY(eni_coll_run(coll, &op));
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
    for (int i = 0; i < 2; i++) /* pages, connections, caches; then what a round takes */
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

en_status eni_probe_barrier(eni_coll *coll, int rounds, double *seconds_out)
{
    const eni_coll_op barrier = {.op = ENI_COLL_BARRIER};
    double seconds[ROUNDS_MAX];
    if (rounds > ROUNDS_MAX) rounds = ROUNDS_MAX;
    for (int i = -2; i < rounds; i++) {
        const int64_t begin = eni_now_ns();
        EN_TRY(eni_coll_run(coll, &barrier));
        if (i >= 0) seconds[i] = (double)(eni_now_ns() - begin) * 1e-9;
    }
    *seconds_out = eni_probe_median(seconds, rounds);
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
