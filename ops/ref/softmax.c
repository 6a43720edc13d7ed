/* softmax.c - log-softmax over the channels. */
#include "ops/ref/ref.h"

void eni_ref_log_softmax_row(double *y, const float *x, int64_t c)
{
    double largest = (double)x[0], sum = 0.0;
    for (int64_t k = 1; k < c; k++)
        if ((double)x[k] > largest) largest = (double)x[k];
    for (int64_t k = 0; k < c; k++)
        sum += eni_ref_exp((double)x[k] - largest);
    const double log_sum = eni_ref_log(sum);
    for (int64_t k = 0; k < c; k++)
        y[k] = ((double)x[k] - largest) - log_sum;
}

static en_status log_softmax_forward(const en_op *op, const en_args *args)
{
    const int64_t c = op->x.c;
    double *row = args->workspace;
    for (int64_t n = 0; n < op->x.n; n++) {
        eni_ref_log_softmax_row(row, (const float *)args->x + n * c, c);
        for (int64_t k = 0; k < c; k++)
            ((float *)args->y)[n * c + k] = (float)row[k];
    }
    return EN_OK;
}

/* dx = dy - softmax(x) * sum(dy), softmax(x) = exp(y). */
static en_status log_softmax_backward_data(const en_op *op, const en_args *args)
{
    const int64_t c = op->x.c;
    for (int64_t n = 0; n < op->x.n; n++) {
        const float *y = (const float *)args->y + n * c, *dy = (const float *)args->dy + n * c;
        float *dx = (float *)args->dx + n * c;
        double sum = 0.0;
        for (int64_t k = 0; k < c; k++)
            sum += (double)dy[k];
        for (int64_t k = 0; k < c; k++)
            dx[k] = (float)((double)dy[k] - eni_ref_exp((double)y[k]) * sum);
    }
    return EN_OK;
}

static uint64_t log_softmax_workspace(const en_op *op)
{
    return (uint64_t)op->x.c * sizeof(double);
}

const eni_ref_kernel eni_ref_log_softmax = {.forward = log_softmax_forward,
                                            .backward_data = log_softmax_backward_data,
                                            .workspace_bytes = log_softmax_workspace};
