/* loss.c - the mean loss of a batch, the number of samples classified right, and the gradient of the mean. */
#include <string.h>

#include "core/log.h"
#include "ops/ref/ref.h"

static en_status check_targets(const int32_t *target, int64_t n, int64_t c)
{
    for (int64_t i = 0; i < n; i++)
        if (target[i] < 0 || target[i] >= c)
            return eni_fail(EN_EINVAL, "loss",
                            "sample %lld of the batch has label %d, but the model has %lld classes",
                            (long long)i, target[i], (long long)c);
    return EN_OK;
}

/* 1 if the target has the largest x of the row; the first of equal values counts. */
static int is_correct(const float *x, int64_t c, int32_t target)
{
    int64_t best = 0;
    for (int64_t k = 1; k < c; k++)
        if (x[k] > x[best]) best = k;
    return best == target;
}

static void report(const en_args *args, double loss, int64_t correct)
{
    float *y = args->y;
    y[0] = (float)loss;
    y[1] = (float)correct;
}

static en_status nll_forward(const en_op *op, const en_args *args)
{
    const int64_t batch = op->x.n, c = op->x.c;
    const float *x = args->x;
    const int32_t *target = args->target;
    en_status st = check_targets(target, batch, c);
    if (st != EN_OK) return st;
    double sum = 0.0;
    int64_t correct = 0;
    for (int64_t n = 0; n < batch; n++) {
        sum -= (double)x[n * c + target[n]];
        correct += is_correct(x + n * c, c, target[n]);
    }
    report(args, sum / (double)batch, correct);
    return EN_OK;
}

static en_status nll_backward_data(const en_op *op, const en_args *args)
{
    const int64_t batch = op->x.n, c = op->x.c;
    const int32_t *target = args->target;
    float *dx = args->dx;
    memset(dx, 0, (size_t)(batch * c) * sizeof *dx);
    for (int64_t n = 0; n < batch; n++)
        dx[n * c + target[n]] = (float)(-1.0 / (double)batch);
    return EN_OK;
}

/* Saves the gradient, (softmax(x) - one_hot(target)) / N, since the exponentials are at hand. */
static en_status cross_entropy_forward(const en_op *op, const en_args *args)
{
    const int64_t batch = op->x.n, c = op->x.c;
    const float *x = args->x;
    const int32_t *target = args->target;
    en_status st = check_targets(target, batch, c);
    if (st != EN_OK) return st;
    double *log_p = args->workspace, sum = 0.0;
    int64_t correct = 0;
    for (int64_t n = 0; n < batch; n++) {
        eni_ref_log_softmax_row(log_p, x + n * c, c);
        sum -= log_p[target[n]];
        correct += is_correct(x + n * c, c, target[n]);
        if (op->flags & EN_OP_FORWARD_ONLY) continue;
        float *dx = (float *)args->saved + n * c;
        for (int64_t k = 0; k < c; k++)
            dx[k] = (float)((eni_ref_exp(log_p[k]) - (k == target[n] ? 1.0 : 0.0)) / (double)batch);
    }
    report(args, sum / (double)batch, correct);
    return EN_OK;
}

static en_status cross_entropy_backward_data(const en_op *op, const en_args *args)
{
    memcpy(args->dx, args->saved, (size_t)en_extent_count(op->x) * sizeof(float));
    return EN_OK;
}

static uint64_t cross_entropy_saved(const en_op *op)
{
    return (uint64_t)en_extent_count(op->x) * sizeof(float);
}

static uint64_t cross_entropy_workspace(const en_op *op)
{
    return (uint64_t)op->x.c * sizeof(double);
}

static en_status mse_forward(const en_op *op, const en_args *args)
{
    const int64_t count = en_extent_count(op->x);
    const float *x = args->x, *target = args->target;
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        const double gap = (double)x[i] - (double)target[i];
        sum += gap * gap;
    }
    report(args, sum / (double)count, 0);
    return EN_OK;
}

static en_status mse_backward_data(const en_op *op, const en_args *args)
{
    const int64_t count = en_extent_count(op->x);
    const float *x = args->x, *target = args->target;
    float *dx = args->dx;
    for (int64_t i = 0; i < count; i++)
        dx[i] = (float)(2.0 * ((double)x[i] - (double)target[i]) / (double)count);
    return EN_OK;
}

const eni_ref_kernel eni_ref_nll = {.forward = nll_forward, .backward_data = nll_backward_data};

const eni_ref_kernel eni_ref_cross_entropy = {.forward = cross_entropy_forward,
                                              .backward_data = cross_entropy_backward_data,
                                              .saved_bytes = cross_entropy_saved,
                                              .workspace_bytes = cross_entropy_workspace};

const eni_ref_kernel eni_ref_mse = {.forward = mse_forward, .backward_data = mse_backward_data};
