/* avgpool.c - the mean of each window, padding counted as zeros; a window of 0 is the whole image. Both
 * passes are sums over a box of an image: of the inputs that an output reads, and of the outputs that read an
 * input. */
#include <string.h>

#include "ops/multiversion.h"
#include "ops/ref/ref.h"

/* Rows and columns [from, to). */
typedef struct range {
    int64_t from, to;
} range;

/* The windows along one side, in one direction. */
typedef struct pool_side {
    int64_t span, stride, pad, in, out;
} pool_side;

static pool_side rows_of(const en_op *op)
{
    if (op->kernel_h == 0) return (pool_side){op->x.h, 1, 0, op->x.h, 1};
    return (pool_side){op->kernel_h, op->stride_h, op->pad_h, op->x.h, eni_ref_output(op).h};
}

static pool_side columns_of(const en_op *op)
{
    if (op->kernel_w == 0) return (pool_side){op->x.w, 1, 0, op->x.w, 1};
    return (pool_side){op->kernel_w, op->stride_w, op->pad_w, op->x.w, eni_ref_output(op).w};
}

/* The inputs that an output reads; padding is left out. */
static range read_by(pool_side s, int64_t out)
{
    const int64_t first = out * s.stride - s.pad, end = first + s.span;
    return (range){first < 0 ? 0 : first, end > s.in ? s.in : end};
}

/* The outputs that read an input. */
static range readers_of(pool_side s, int64_t in)
{
    const int64_t at = in + s.pad, end = at / s.stride + 1;
    return (range){at < s.span ? 0 : (at - s.span) / s.stride + 1, end > s.out ? s.out : end};
}

enum { BLOCK = 256 }; /* channels whose sums are kept at a time */

/* to (channels) = the sum over a box of an image, (., width, c), divided by `places`. */
ENI_MULTIVERSION static void sum_box(float *restrict to, const float *restrict image, int64_t channels,
                                     int64_t width, int64_t c, const range box[2], double places)
{
    double sum[BLOCK];
    memset(sum, 0, (size_t)channels * sizeof *sum);
    for (int64_t row = box[0].from; row < box[0].to; row++)
        for (int64_t col = box[1].from; col < box[1].to; col++) {
            const float *from = image + (row * width + col) * c;
            for (int64_t k = 0; k < channels; k++)
                sum[k] += (double)from[k];
        }
    for (int64_t k = 0; k < channels; k++)
        to[k] = (float)(sum[k] / places);
}

/* Computes every pixel of `to` from the pixels of `from` in its box. */
static void sum_boxes(const en_op *op, float *to, en_extent to_extent, const float *from,
                      en_extent from_extent, range (*box_of)(pool_side, int64_t))
{
    const pool_side rows = rows_of(op), columns = columns_of(op);
    const double places = (double)(rows.span * columns.span);
    const int64_t c = op->x.c;
    for (int64_t n = 0; n < op->x.n; n++, from += from_extent.h * from_extent.w * c)
        for (int64_t row = 0; row < to_extent.h; row++)
            for (int64_t col = 0; col < to_extent.w; col++, to += c) {
                const range box[2] = {box_of(rows, row), box_of(columns, col)};
                for (int64_t k = 0; k < c; k += BLOCK)
                    sum_box(to + k, from + k, c - k < BLOCK ? c - k : BLOCK, from_extent.w, c, box, places);
            }
}

static en_status avgpool_forward(const en_op *op, const en_args *args)
{
    sum_boxes(op, args->y, eni_ref_output(op), args->x, op->x, read_by);
    return EN_OK;
}

static en_status avgpool_backward_data(const en_op *op, const en_args *args)
{
    sum_boxes(op, args->dx, op->x, args->dy, eni_ref_output(op), readers_of);
    return EN_OK;
}

const eni_ref_kernel eni_ref_avgpool = {.forward = avgpool_forward, .backward_data = avgpool_backward_data};
