/* add.c - the sum of two tensors, with or without relu. Both have the same gradient. */
#include <string.h>

#include "ops/multiversion.h"
#include "ops/ref/ref.h"

ENI_MULTIVERSION static void add(float *y, const float *x, const float *x2, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] = x[i] + x2[i];
}

/* As eni_ref_clamp: NaN passes. */
ENI_MULTIVERSION static void add_relu(float *y, const float *x, const float *x2, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const float sum = x[i] + x2[i];
        y[i] = sum <= 0.0f ? 0.0f : sum;
    }
}

static en_status add_forward(const en_op *op, const en_args *args)
{
    (op->flags & EN_OP_FUSE_RELU ? add_relu : add)(args->y, args->x, args->x2, en_extent_count(op->x));
    return EN_OK;
}

static en_status add_backward_data(const en_op *op, const en_args *args)
{
    const int64_t count = en_extent_count(op->x);
    if (op->flags & EN_OP_FUSE_RELU)
        eni_ref_mask(args->dx, args->dy, args->y, count);
    else if (args->dx != args->dy)
        memcpy(args->dx, args->dy, (size_t)count * sizeof(float));
    return EN_OK;
}

const eni_ref_kernel eni_ref_add = {.forward = add_forward, .backward_data = add_backward_data};
