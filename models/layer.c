/* layer.c - see layer.h. */
#include "models/layer.h"

en_op eni_layer_op(const en_layer *layer, en_extent x, uint32_t dtype)
{
    return (en_op){
        .size = sizeof(en_op),
        .kind = layer->op,
        .dtype = dtype,
        .flags = layer->flags,
        .x = x,
        .channels = layer->channels,
        .kernel_h = layer->kernel,
        .kernel_w = layer->kernel,
        .stride_h = layer->stride,
        .stride_w = layer->stride,
        .pad_h = layer->pad,
        .pad_w = layer->pad,
    };
}

en_op eni_cast_op(en_extent x, uint32_t dtype)
{
    return (en_op){.size = sizeof(en_op), .kind = EN_OP_CAST, .dtype = dtype, .flags = EN_OP_NO_DX, .x = x};
}

uint32_t eni_op_x_dtype(const en_op *op)
{
    return op->kind == EN_OP_CAST ? (uint32_t)EN_F32 : op->dtype;
}

static int is_loss(uint32_t kind)
{
    return kind == EN_OP_NLL || kind == EN_OP_CROSS_ENTROPY || kind == EN_OP_MSE;
}

uint32_t eni_op_y_dtype(const en_op *op)
{
    return op->kind == EN_OP_LOG_SOFTMAX || is_loss(op->kind) ? (uint32_t)EN_F32 : op->dtype;
}

int eni_layer_is_loss(const en_layer *layer)
{
    return is_loss(layer->op);
}

int eni_layer_is_view(const en_layer *layer, en_extent x)
{
    return layer->op == EN_OP_FLATTEN && (x.c == 1 || (x.h == 1 && x.w == 1));
}

const char *eni_layer_op_name(uint32_t op)
{
    switch (op) {
    case EN_OP_CONV2D: return "conv2d";
    case EN_OP_LINEAR: return "linear";
    case EN_OP_RELU: return "relu";
    case EN_OP_MAXPOOL: return "maxpool";
    case EN_OP_RELU_MAXPOOL: return "relu-maxpool";
    case EN_OP_FLATTEN: return "flatten";
    case EN_OP_LOG_SOFTMAX: return "log-softmax";
    case EN_OP_NLL: return "nll";
    case EN_OP_CROSS_ENTROPY: return "cross-entropy";
    case EN_OP_MSE: return "mse";
    case EN_OP_CAST: return "cast";
    default: return "unknown";
    }
}
