/* op.h - an operation of a device: what it computes, on which extents, from what.
 *
 * Everything here is arithmetic on a description; device.h runs it. A new kind needs: its number and
 * its extent (en_op_output) here; loops that define it in ops/ref/KIND.c, and their line in the table of
 * ops/ref/host_device.c (the cpu device falls back on them; ops/cpu/device.c says where it does better); a
 * kernel in ops/cuda/KIND.cu and its line in ops/cuda/op_plan.c; a trial in tests/ops/trial.c, from which all
 * devices are tested, and its definition in tests/ops/test_gradients.c. For networks: entrain/graph.h. */
#ifndef ENTRAIN_OP_H
#define ENTRAIN_OP_H

#include <stdint.h>

#include "entrain/status.h"
#include "entrain/tensor.h"

/* Kinds. x is the input, y the output; (N, H, W, C) unless said otherwise. Append, never renumber. */
enum {
    EN_OP_CONV2D = 1,  /* cross-correlation; weights (O, I, KH, KW), O = op.channels */
    EN_OP_LINEAR = 2,  /* y = x w^T + b; x (N, C), weights (O, C), O = op.channels */
    EN_OP_RELU = 3,    /* y may be x, dx may be dy */
    EN_OP_MAXPOOL = 4, /* padding never wins; of equal values the first (row by row) takes the gradient */
    EN_OP_RELU_MAXPOOL = 5, /* maxpool(relu(x)) in one pass */
    EN_OP_FLATTEN = 6,      /* (N, H, W, C) to (N, C*H*W) in PyTorch's order: C slowest, W fastest */
    EN_OP_LOG_SOFTMAX = 7,  /* over C; x (N, C) */
    /* Losses: y is float[2] = {mean loss over the batch, samples whose largest x is the target's}; backward
     * gives the gradient of that mean and reads no dy. */
    EN_OP_NLL = 8,           /* x (N, C) log-probabilities, target int32 (N) */
    EN_OP_CROSS_ENTROPY = 9, /* log_softmax and nll in one pass; x (N, C) logits, target int32 (N) */
    EN_OP_MSE = 10,          /* mean over all elements; target of x's extent, float32; y[1] is 0 */
    EN_OP_CAST = 11,         /* x is float32, y and dy are op.dtype; EN_OP_NO_DX only */
    EN_OP_BATCHNORM = 12,    /* y = w (x - mean) / sqrt(var + eps) + b per channel; see below */
    EN_OP_ADD = 13, /* y = x + x2; y may be x or x2. Backward: dx = dy, which dx may be; x2's is the same */
    EN_OP_AVGPOOL = 14, /* mean of a window with padding as zeros; kernel 0: of the image, to (N, 1, 1, C) */
    EN_OP_KINDS         /* one past the last that this header knows */
};

/* Flags of an op. */
enum {
    EN_OP_BIAS = 1, /* conv2d, linear: adds b to each output channel */
    /* conv2d, linear, batchnorm: y = relu(...); backward_weights zeroes dy in place where y is not positive, and
     * backward_data reads that dy. add: y = relu(x + x2), and dx is dy masked in the same way. */
    EN_OP_FUSE_RELU = 2,
    EN_OP_NO_DX = 4,        /* backward_data will not be called (a first layer) */
    EN_OP_FORWARD_ONLY = 8, /* no backward at all (evaluation): saved_bytes is 0 */
    /* batchnorm: x2 is added before the relu; the gradient of x2 is dy as backward_weights leaves it. */
    EN_OP_FUSE_ADD = 16,
};

/* Batch normalisation (Ioffe and Szegedy, ICML'15; torch.nn.BatchNorm2d). Over M = N H W values of a channel;
 * w and b, (C), are always there: EN_OP_BIAS is set, and op.channels is C. M >= 2 in training.
 *
 * Training: mean and biased variance of the batch normalise. `stats`, unless NULL, then move towards them:
 * running = (1 - momentum) running + momentum batch, the variance unbiased (times M / (M - 1)), batches += 1.
 * If any channel's mean or variance is not finite, `stats` do not change at all: one overflow of fp16
 * would poison them forever. With EN_OP_FORWARD_ONLY `stats` normalise and are only read; y may be x.
 * `saved` has forward's mean and 1 / sqrt(var + eps), and backward_weights' additions for backward_data.
 *
 *     db = sum dy,  dw = sum dy xh,  dx = w / sqrt(var + eps) (dy - db / M - xh dw / M);  dx may be dy
 *
 * Statistics, parameters and sums are float32 or wider whatever the type. The bits do not depend on the number
 * of threads. `stats`, float32 device memory of en_op_stats elements, aligned to 64 bytes: mean (C), var (C), each
 * padded to 16, then batches, an int64. */

/* Types. dtype is that of x, y, dy and dx. Weights, biases and their gradients are float32 always, and sums
 * are taken in float32. With EN_BF16 and EN_F16 (which host devices refuse) two results are float32 all the
 * same: y and dy of log_softmax, so that nll is an EN_F32 op; and the two numbers of a loss. */
typedef struct en_op {
    uint32_t size; /* sizeof(en_op) */
    uint32_t kind, dtype, flags;
    en_extent x;      /* the input */
    int64_t channels; /* conv2d, linear: output channels (features) */
    int64_t kernel_h, kernel_w;
    int64_t stride_h, stride_w;
    int64_t pad_h, pad_w; /* on both sides */
    float eps, momentum;  /* batchnorm: 1e-5, 0.1 */
} en_op;

/* The extent of y. EN_EINVAL if the op is invalid (an empty side, a window larger than the padded
 * input, a matrix operation on an image); nothing is logged. */
static inline en_status en_op_output(const en_op *op, en_extent *y_out)
{
    en_extent y = op->x;
    if (en_extent_count(op->x) == 0) return EN_EINVAL;
    switch (op->kind) {
    case EN_OP_CONV2D:
    case EN_OP_MAXPOOL:
    case EN_OP_RELU_MAXPOOL:
    case EN_OP_AVGPOOL: {
        if (op->kind == EN_OP_AVGPOOL && op->kernel_h == 0 && op->kernel_w == 0) {
            y.h = y.w = 1;
            break;
        }
        if (op->pad_h > INT32_MAX || op->pad_w > INT32_MAX) return EN_EINVAL;
        const int64_t h = op->x.h + 2 * op->pad_h - op->kernel_h, w = op->x.w + 2 * op->pad_w - op->kernel_w;
        if (op->kernel_h < 1 || op->kernel_w < 1 || op->stride_h < 1 || op->stride_w < 1) return EN_EINVAL;
        if (op->pad_h < 0 || op->pad_w < 0 || h < 0 || w < 0) return EN_EINVAL;
        if (op->kind != EN_OP_CONV2D && (2 * op->pad_h > op->kernel_h || 2 * op->pad_w > op->kernel_w))
            return EN_EINVAL; /* a pooling window could lie in the padding alone */
        y.h = h / op->stride_h + 1;
        y.w = w / op->stride_w + 1;
        if (op->kind == EN_OP_CONV2D) y.c = op->channels;
        break;
    }
    case EN_OP_BATCHNORM:
        if (op->channels != op->x.c) return EN_EINVAL;
        break;
    case EN_OP_RELU:
    case EN_OP_ADD:
    case EN_OP_CAST: break;
    case EN_OP_FLATTEN:
        y.c = op->x.h * op->x.w * op->x.c;
        y.h = y.w = 1;
        break;
    case EN_OP_LINEAR:
    case EN_OP_LOG_SOFTMAX:
        if (op->x.h != 1 || op->x.w != 1) return EN_EINVAL;
        if (op->kind == EN_OP_LINEAR) y.c = op->channels;
        break;
    case EN_OP_NLL:
    case EN_OP_CROSS_ENTROPY:
        if (op->x.h != 1 || op->x.w != 1) return EN_EINVAL;
        y.n = y.h = y.w = 1;
        y.c = 2;
        break;
    case EN_OP_MSE:
        y.n = y.h = y.w = 1;
        y.c = 2;
        break;
    default: return EN_EINVAL;
    }
    if (en_extent_count(y) == 0) return EN_EINVAL;
    if (op->kind == EN_OP_CONV2D || op->kind == EN_OP_LINEAR) { /* the weights must be countable too */
        const int is_conv = op->kind == EN_OP_CONV2D;
        const en_extent w = {op->channels, is_conv ? op->kernel_h : 1, is_conv ? op->kernel_w : 1, op->x.c};
        if (en_extent_count(w) == 0) return EN_EINVAL;
    }
    *y_out = y;
    return EN_OK;
}

/* Elements of the weights; 0 for an op without. The bias, if any, has op->channels. */
static inline int64_t en_op_weights(const en_op *op)
{
    switch (op->kind) {
    case EN_OP_CONV2D: return op->channels * op->x.c * op->kernel_h * op->kernel_w;
    case EN_OP_LINEAR: return op->channels * op->x.c;
    case EN_OP_BATCHNORM: return op->channels;
    default: return 0;
    }
}

/* The flags of a kind that define what is computed; any op may also have EN_OP_NO_DX and EN_OP_FORWARD_ONLY. */
static inline uint32_t en_op_flags(uint32_t kind)
{
    switch (kind) {
    case EN_OP_CONV2D:
    case EN_OP_LINEAR: return EN_OP_BIAS | EN_OP_FUSE_RELU;
    case EN_OP_BATCHNORM: return EN_OP_BIAS | EN_OP_FUSE_RELU | EN_OP_FUSE_ADD;
    case EN_OP_ADD: return EN_OP_FUSE_RELU;
    default: return 0;
    }
}

/* Elements of en_args.stats; 0 for an op without. */
static inline int64_t en_op_stats(const en_op *op)
{
    return op->kind == EN_OP_BATCHNORM ? 2 * ((op->channels + 15) / 16 * 16) + 16 : 0;
}

/* The tensors of forward that backward reads: an output without readers may be freed. */
enum { EN_OP_READS_X = 1, EN_OP_READS_Y = 2 };
static inline unsigned en_op_backward_reads(const en_op *op)
{
    switch (op->kind) {
    case EN_OP_CONV2D:
    case EN_OP_LINEAR:
    case EN_OP_BATCHNORM: return EN_OP_READS_X | (op->flags & EN_OP_FUSE_RELU ? EN_OP_READS_Y : 0);
    case EN_OP_ADD: return op->flags & EN_OP_FUSE_RELU ? EN_OP_READS_Y : 0;
    case EN_OP_RELU:
    case EN_OP_LOG_SOFTMAX: return EN_OP_READS_Y;
    case EN_OP_MSE: return EN_OP_READS_X;
    default: return 0;
    }
}

#endif
