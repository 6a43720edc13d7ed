/* pool.c - the largest value of each window; a byte per output says which position of the window it was. */
#include <math.h>
#include <string.h>

#include "ops/ref/ref.h"

enum { NOWHERE = 255 }; /* with relu: no value was positive, no input gets the gradient */

/* One window: the largest value and its position (row by row). As in PyTorch the first of equal values wins,
 * and NaN wins over the values before it. */
static float window_max(const en_op *op, const float *image, int64_t p, int64_t q, int64_t c,
                        uint8_t *position_out)
{
    float best = -INFINITY;
    int64_t position = -1;
    for (int64_t r = 0; r < op->kernel_h; r++)
        for (int64_t s = 0; s < op->kernel_w; s++) {
            const int64_t row = p * op->stride_h + r - op->pad_h, col = q * op->stride_w + s - op->pad_w;
            if (row < 0 || row >= op->x.h || col < 0 || col >= op->x.w) continue;
            const float value = image[(row * op->x.w + col) * op->x.c + c];
            if (position >= 0 && !(value > best) && value == value) continue;
            best = value;
            position = r * op->kernel_w + s;
        }
    *position_out = (uint8_t)position;
    return best;
}

static en_status pool_forward(const en_op *op, const en_args *args)
{
    const en_extent x = op->x, y = eni_ref_output(op);
    float *to = args->y;
    uint8_t *saved = op->flags & EN_OP_FORWARD_ONLY ? NULL : args->saved;
    for (int64_t n = 0; n < y.n; n++) {
        const float *image = (const float *)args->x + n * x.h * x.w * x.c;
        for (int64_t p = 0; p < y.h; p++)
            for (int64_t q = 0; q < y.w; q++)
                for (int64_t c = 0; c < y.c; c++) {
                    uint8_t position;
                    float value = window_max(op, image, p, q, c, &position);
                    if (op->kind == EN_OP_RELU_MAXPOOL && value <= 0.0f) {
                        value = 0.0f;
                        position = NOWHERE;
                    }
                    *to++ = value;
                    if (saved) *saved++ = position;
                }
    }
    return EN_OK;
}

static en_status pool_backward_data(const en_op *op, const en_args *args)
{
    const en_extent x = op->x, y = eni_ref_output(op);
    const float *dy = args->dy;
    const uint8_t *saved = args->saved;
    memset(args->dx, 0, (size_t)en_extent_count(x) * sizeof(float));
    for (int64_t n = 0; n < y.n; n++) {
        float *image = (float *)args->dx + n * x.h * x.w * x.c;
        for (int64_t p = 0; p < y.h; p++)
            for (int64_t q = 0; q < y.w; q++)
                for (int64_t c = 0; c < y.c; c++, dy++, saved++) {
                    if (*saved == NOWHERE) continue;
                    const int64_t row = p * op->stride_h + *saved / op->kernel_w - op->pad_h;
                    const int64_t col = q * op->stride_w + *saved % op->kernel_w - op->pad_w;
                    image[(row * x.w + col) * x.c + c] += *dy; /* windows may overlap */
                }
    }
    return EN_OK;
}

static uint64_t pool_saved(const en_op *op)
{
    return (uint64_t)en_extent_count(eni_ref_output(op));
}

const eni_ref_kernel eni_ref_pool = {
    .forward = pool_forward, .backward_data = pool_backward_data, .saved_bytes = pool_saved};
