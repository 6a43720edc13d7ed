/* linear.c - y = x w^T + b: a convolution of a 1 x 1 image with a 1 x 1 window, weights (O, I, 1, 1). */
#include "ops/ref/ref.h"

static en_op as_conv(const en_op *op)
{
    en_op conv = *op;
    conv.kind = EN_OP_CONV2D;
    conv.kernel_h = conv.kernel_w = conv.stride_h = conv.stride_w = 1;
    conv.pad_h = conv.pad_w = 0;
    return conv;
}

static en_status linear_forward(const en_op *op, const en_args *args)
{
    const en_op conv = as_conv(op);
    return eni_ref_conv.forward(&conv, args);
}

static en_status linear_backward_weights(const en_op *op, const en_args *args)
{
    const en_op conv = as_conv(op);
    return eni_ref_conv.backward_weights(&conv, args);
}

static en_status linear_backward_data(const en_op *op, const en_args *args)
{
    const en_op conv = as_conv(op);
    return eni_ref_conv.backward_data(&conv, args);
}

static uint64_t linear_workspace(const en_op *op)
{
    return eni_ref_conv.workspace_bytes(op);
}

const eni_ref_kernel eni_ref_linear = {
    .forward = linear_forward,
    .backward_weights = linear_backward_weights,
    .backward_data = linear_backward_data,
    .workspace_bytes = linear_workspace,
};
