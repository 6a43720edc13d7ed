/* conv.c - convolution as defined, in double.
 *
 *     y[n,p,q,o] = b[o] + sum over r,s,i of x[n, p*stride_h + r - pad_h, q*stride_w + s - pad_w, i] * w[o,i,r,s]
 *
 * One liberty: the innermost loop runs over neighbouring channels, so weights (and their gradient) are kept
 * in another order in the workspace, which changes no sum. */
#include <string.h>

#include "ops/multiversion.h"
#include "ops/ref/ref.h"

/* acc += a * x, elementwise. */
static inline void add_scaled(double *restrict acc, double a, const float *restrict x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        acc[i] += a * (double)x[i];
}

/* The input row (or column) that an output row reads with kernel row r: -1 outside the input. */
static inline int64_t input_at(int64_t out, int64_t r, int64_t stride, int64_t pad, int64_t limit)
{
    const int64_t in = out * stride + r - pad;
    return in >= 0 && in < limit ? in : -1;
}

/* The output row that reads input row `in` with kernel row r, or -1. */
static inline int64_t output_at(int64_t in, int64_t r, int64_t stride, int64_t pad, int64_t limit)
{
    const int64_t scaled = in + pad - r;
    return scaled >= 0 && scaled % stride == 0 && scaled / stride < limit ? scaled / stride : -1;
}

/* The workspace: sums first, then the weights in the order that this pass needs. */
typedef struct conv_work {
    double *sum;
    float *weights;
} conv_work;

static conv_work work_of(const en_op *op, const en_args *args)
{
    const int64_t widest = op->channels > op->x.c ? op->channels : op->x.c;
    double *sum = args->workspace;
    return (conv_work){sum, (float *)(sum + widest)};
}

static uint64_t conv_workspace(const en_op *op)
{
    const int64_t widest = op->channels > op->x.c ? op->channels : op->x.c;
    return (uint64_t)(widest + en_op_weights(op)) * sizeof(double);
}

ENI_MULTIVERSION static en_status conv_forward(const en_op *op, const en_args *args)
{
    const en_extent x = op->x, y = eni_ref_output(op);
    const int64_t kh = op->kernel_h, kw = op->kernel_w, taps = kh * kw, in = x.c, out = y.c;
    const float *w = args->w, *b = args->b;
    const conv_work work = work_of(op, args);
    for (int64_t o = 0; o < out; o++) /* (O, I, KH, KW) to (KH, KW, I, O) */
        for (int64_t i = 0; i < in; i++)
            for (int64_t k = 0; k < taps; k++)
                work.weights[(k * in + i) * out + o] = w[(o * in + i) * taps + k];

    float *to = args->y;
    for (int64_t n = 0; n < y.n; n++)
        for (int64_t p = 0; p < y.h; p++)
            for (int64_t q = 0; q < y.w; q++, to += out) {
                for (int64_t o = 0; o < out; o++)
                    work.sum[o] = op->flags & EN_OP_BIAS ? (double)b[o] : 0.0;
                for (int64_t k = 0; k < taps; k++) {
                    const int64_t row = input_at(p, k / kw, op->stride_h, op->pad_h, x.h);
                    const int64_t col = input_at(q, k % kw, op->stride_w, op->pad_w, x.w);
                    if (row < 0 || col < 0) continue;
                    const float *from = (const float *)args->x + ((n * x.h + row) * x.w + col) * in;
                    for (int64_t i = 0; i < in; i++)
                        add_scaled(work.sum, (double)from[i], work.weights + (k * in + i) * out, out);
                }
                for (int64_t o = 0; o < out; o++)
                    to[o] = (float)work.sum[o];
            }
    if (op->flags & EN_OP_FUSE_RELU) eni_ref_clamp(args->y, args->y, en_extent_count(y));
    return EN_OK;
}

/* db[o] = sum over n,p,q of dy[n,p,q,o]. */
static void bias_gradient(const en_args *args, en_extent y, double *sum)
{
    const float *dy = args->dy;
    float *db = args->db;
    memset(sum, 0, (size_t)y.c * sizeof *sum);
    for (int64_t at = 0; at < y.n * y.h * y.w; at++)
        add_scaled(sum, 1.0, dy + at * y.c, y.c);
    for (int64_t o = 0; o < y.c; o++)
        db[o] = (float)sum[o];
}

ENI_MULTIVERSION static en_status conv_backward_weights(const en_op *op, const en_args *args)
{
    const en_extent x = op->x, y = eni_ref_output(op);
    const int64_t kh = op->kernel_h, kw = op->kernel_w, taps = kh * kw, in = x.c, out = y.c;
    if (op->flags & EN_OP_FUSE_RELU) eni_ref_mask(args->dy, args->dy, args->y, en_extent_count(y));
    if (op->flags & EN_OP_BIAS) bias_gradient(args, y, args->workspace);

    double *sum = args->workspace; /* (KH, KW, I, O) */
    memset(sum, 0, (size_t)en_op_weights(op) * sizeof *sum);
    const float *dy = args->dy;
    for (int64_t n = 0; n < y.n; n++)
        for (int64_t p = 0; p < y.h; p++)
            for (int64_t q = 0; q < y.w; q++, dy += out)
                for (int64_t k = 0; k < taps; k++) {
                    const int64_t row = input_at(p, k / kw, op->stride_h, op->pad_h, x.h);
                    const int64_t col = input_at(q, k % kw, op->stride_w, op->pad_w, x.w);
                    if (row < 0 || col < 0) continue;
                    const float *from = (const float *)args->x + ((n * x.h + row) * x.w + col) * in;
                    for (int64_t i = 0; i < in; i++)
                        add_scaled(sum + (k * in + i) * out, (double)from[i], dy, out);
                }

    float *dw = args->dw;
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++)
            for (int64_t k = 0; k < taps; k++)
                dw[(o * in + i) * taps + k] = (float)sum[(k * in + i) * out + o];
    return EN_OK;
}

ENI_MULTIVERSION static en_status conv_backward_data(const en_op *op, const en_args *args)
{
    const en_extent x = op->x, y = eni_ref_output(op);
    const int64_t kh = op->kernel_h, kw = op->kernel_w, taps = kh * kw, in = x.c, out = y.c;
    const float *w = args->w;
    const conv_work work = work_of(op, args);
    for (int64_t o = 0; o < out; o++) /* (O, I, KH, KW) to (KH, KW, O, I) */
        for (int64_t i = 0; i < in; i++)
            for (int64_t k = 0; k < taps; k++)
                work.weights[(k * out + o) * in + i] = w[(o * in + i) * taps + k];

    float *to = args->dx;
    for (int64_t n = 0; n < x.n; n++)
        for (int64_t row = 0; row < x.h; row++)
            for (int64_t col = 0; col < x.w; col++, to += in) {
                memset(work.sum, 0, (size_t)in * sizeof *work.sum);
                for (int64_t k = 0; k < taps; k++) {
                    const int64_t p = output_at(row, k / kw, op->stride_h, op->pad_h, y.h);
                    const int64_t q = output_at(col, k % kw, op->stride_w, op->pad_w, y.w);
                    if (p < 0 || q < 0) continue;
                    const float *dy = (const float *)args->dy + ((n * y.h + p) * y.w + q) * out;
                    for (int64_t o = 0; o < out; o++)
                        add_scaled(work.sum, (double)dy[o], work.weights + (k * out + o) * in, in);
                }
                for (int64_t i = 0; i < in; i++)
                    to[i] = (float)work.sum[i];
            }
    return EN_OK;
}

const eni_ref_kernel eni_ref_conv = {
    .forward = conv_forward,
    .backward_weights = conv_backward_weights,
    .backward_data = conv_backward_data,
    .workspace_bytes = conv_workspace,
};
