/* flatten.c - (N, H, W, C) to (N, C * H * W) in PyTorch's order, and back. */
#include "ops/multiversion.h"
#include "ops/ref/ref.h"

/* Transposes a (rows, cols) matrix per image. Writes are contiguous, reads jump: a small image stays in the
 * cache. */
ENI_MULTIVERSION static void transpose_images(float *restrict to, const float *restrict from, int64_t n,
                                              int64_t rows, int64_t cols)
{
    for (int64_t image = 0; image < n; image++, to += rows * cols, from += rows * cols)
        for (int64_t c = 0; c < cols; c++)
            for (int64_t r = 0; r < rows; r++)
                to[c * rows + r] = from[r * cols + c];
}

static en_status flatten_forward(const en_op *op, const en_args *args)
{
    transpose_images(args->y, args->x, op->x.n, op->x.h * op->x.w, op->x.c);
    return EN_OK;
}

static en_status flatten_backward_data(const en_op *op, const en_args *args)
{
    transpose_images(args->dx, args->dy, op->x.n, op->x.c, op->x.h * op->x.w);
    return EN_OK;
}

const eni_ref_kernel eni_ref_flatten = {.forward = flatten_forward, .backward_data = flatten_backward_data};
