/* relu.c - max(x, 0). Written as "x <= 0 ? 0 : x": a value that is not a number passes, as in PyTorch. */
#include "ops/ref/ref.h"

void eni_ref_relu_in_place(float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        x[i] = x[i] <= 0.0f ? 0.0f : x[i];
}

void eni_ref_relu_mask(float *dy, const float *y, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        dy[i] = y[i] <= 0.0f ? 0.0f : dy[i];
}

static en_status relu_forward(const en_op *op, const en_args *args)
{
    const int64_t count = en_extent_count(op->x);
    const float *x = args->x;
    float *y = args->y;
    for (int64_t i = 0; i < count; i++)
        y[i] = x[i] <= 0.0f ? 0.0f : x[i];
    return EN_OK;
}

static en_status relu_backward_data(const en_op *op, const en_args *args)
{
    const int64_t count = en_extent_count(op->x);
    const float *y = args->y, *dy = args->dy;
    float *dx = args->dx;
    for (int64_t i = 0; i < count; i++)
        dx[i] = y[i] <= 0.0f ? 0.0f : dy[i];
    return EN_OK;
}

const eni_ref_kernel eni_ref_relu = {.forward = relu_forward, .backward_data = relu_backward_data};
