/* relu.c - max(x, 0). Written as "x <= 0 ? 0 : x": NaN passes, as in PyTorch. */
#include "ops/multiversion.h"
#include "ops/ref/ref.h"

ENI_MULTIVERSION void eni_ref_clamp(float *y, const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] = x[i] <= 0.0f ? 0.0f : x[i];
}

ENI_MULTIVERSION void eni_ref_mask(float *dx, const float *dy, const float *y, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        dx[i] = y[i] <= 0.0f ? 0.0f : dy[i];
}

static en_status relu_forward(const en_op *op, const en_args *args)
{
    eni_ref_clamp(args->y, args->x, en_extent_count(op->x));
    return EN_OK;
}

static en_status relu_backward_data(const en_op *op, const en_args *args)
{
    eni_ref_mask(args->dx, args->dy, args->y, en_extent_count(op->x));
    return EN_OK;
}

const eni_ref_kernel eni_ref_relu = {.forward = relu_forward, .backward_data = relu_backward_data};
