/* pool.c - the largest value of each window, with or without relu, in one pass over memory. The inner loops
 * run over the channels of one output pixel and have no branches, so that they vectorise (which needs
 * -fno-trapping-math). Windows of 2 x 2 that neither overlap nor pad have their own forward, with all four
 * values in registers: twice as fast as oneDNN's pooling and relu at 20 channels. */
#include <string.h>

#include "ops/cpu/cpu.h"
#include "ops/multiversion.h"

enum {
    NOWHERE = 255, /* as in ops/ref/pool.c: no value was positive */
    BLOCK = 2048,  /* output elements at a time */
};

static bool is_square(const en_op *op)
{
    return op->kernel_h == 2 && op->kernel_w == 2 && op->stride_h == 2 && op->stride_w == 2 &&
           op->pad_h == 0 && op->pad_w == 0 && op->x.c <= BLOCK;
}

/* All ones where the second of two is the larger. The first of equal values wins; NaN wins over the values
 * before it, as in PyTorch. */
static inline int32_t second_wins(float first, float second)
{
    return -(int32_t)((second > first) | (second != second));
}

/* By bits: gcc up to 12 turned selects into vectors, 13 and 14 turn them into branches, 30 times slower. */
static inline int32_t position_of_larger(float first, float second, int32_t first_position,
                                         int32_t second_position)
{
    const int32_t wins = second_wins(first, second);
    return (second_position & wins) | (first_position & ~wins);
}

typedef union number {
    float value;
    int32_t bits;
} number;

static inline float larger(float first, float second)
{
    const number a = {first}, b = {second};
    return (number){.bits = position_of_larger(first, second, a.bits, b.bits)}.value;
}

/* One output pixel: v0 v1 above v2 v3, (c) each. `relu` is a constant where this is inlined. */
ENI_ALWAYS_INLINE void pixel_forward(float *restrict y, int32_t *restrict position, const float *restrict v0,
                                     const float *restrict v1, const float *restrict v2,
                                     const float *restrict v3, int64_t c, bool relu)
{
    for (int64_t k = 0; k < c; k++) {
        const float upper = larger(v0[k], v1[k]), lower = larger(v2[k], v3[k]);
        const int32_t upper_position = position_of_larger(v0[k], v1[k], 0, 1);
        const int32_t lower_position = position_of_larger(v2[k], v3[k], 2, 3);
        const float best = larger(upper, lower);
        const int32_t at = position_of_larger(upper, lower, upper_position, lower_position);
        y[k] = relu && best <= 0.0f ? 0.0f : best;
        position[k] = relu && best <= 0.0f ? NOWHERE : at;
    }
}

/* `w` output pixels, (w, c), from two rows of input, (2w, c). Positions are found in 32 bits and narrowed at
 * the end, because vectors do not mix element sizes well. w * c <= BLOCK. */
ENI_ALWAYS_INLINE void block_forward(float *y, uint8_t *position, const float *top, const float *bottom,
                                     int64_t w, int64_t c, bool relu)
{
    int32_t wide[BLOCK];
    for (int64_t q = 0; q < w; q++, y += c, top += 2 * c, bottom += 2 * c)
        pixel_forward(y, wide + q * c, top, top + c, bottom, bottom + c, c, relu);
    for (int64_t k = 0; k < w * c; k++)
        position[k] = (uint8_t)wide[k];
}

ENI_MULTIVERSION_SHORT static void block_max(float *y, uint8_t *position, const float *top,
                                             const float *bottom, int64_t w, int64_t c, bool relu)
{
    if (relu)
        block_forward(y, position, top, bottom, w, c, true);
    else
        block_forward(y, position, top, bottom, w, c, false);
}

/* ---- any window: its positions one after the other, the largest so far in the first-level cache ---- */

ENI_ALWAYS_INLINE void take_first(float *restrict best, int32_t *restrict position, const float *restrict v,
                                  int32_t at, int64_t c)
{
    for (int64_t k = 0; k < c; k++) {
        best[k] = v[k];
        position[k] = at;
    }
}

ENI_ALWAYS_INLINE void take_larger(float *restrict best, int32_t *restrict position, const float *restrict v,
                                   int32_t at, int64_t c)
{
    for (int64_t k = 0; k < c; k++) {
        const float value = larger(best[k], v[k]);
        position[k] = position_of_larger(best[k], v[k], position[k], at);
        best[k] = value;
    }
}

/* Three positions side by side, c apart: reads and writes the largest so far once instead of three times. */
ENI_ALWAYS_INLINE void take_three(float *restrict best, int32_t *restrict position, const float *restrict v,
                                  int64_t c, int32_t at, int64_t channels, bool is_first)
{
    for (int64_t k = 0; k < channels; k++) {
        const float v0 = v[k], v1 = v[c + k], v2 = v[2 * c + k];
        const float one = is_first ? v0 : larger(best[k], v0), two = larger(one, v1);
        const int32_t at_one = is_first ? at : position_of_larger(best[k], v0, position[k], at);
        const int32_t at_two = position_of_larger(one, v1, at_one, at + 1);
        position[k] = position_of_larger(two, v2, at_two, at + 2);
        best[k] = larger(two, v2);
    }
}

ENI_ALWAYS_INLINE void close_below_zero(float *restrict best, int32_t *restrict position, int64_t c)
{
    for (int64_t k = 0; k < c; k++) {
        position[k] = best[k] <= 0.0f ? NOWHERE : position[k];
        best[k] = best[k] <= 0.0f ? 0.0f : best[k];
    }
}

/* The positions [from, to) of a window along one side that lie in the input. */
typedef struct places {
    int64_t from, to;
} places;

static places places_in(int64_t first, int64_t kernel, int64_t limit)
{
    return (places){first < 0 ? -first : 0, first + kernel > limit ? limit - first : kernel};
}

/* Up to BLOCK channels of output row p of an image: y and positions (w, .), image (H, W, .), all with c channels
 * from one pixel to the next. */
ENI_MULTIVERSION_SHORT static void row_forward(float *restrict y, uint8_t *restrict position,
                                               const float *image, const en_op *op, int64_t p, int64_t w,
                                               int64_t channels)
{
    const int64_t c = op->x.c, top = p * op->stride_h - op->pad_h;
    const places rows = places_in(top, op->kernel_h, op->x.h);
    int32_t wide[BLOCK];
    for (int64_t q = 0; q < w; q++, y += c, position += c) {
        const int64_t left = q * op->stride_w - op->pad_w;
        const places columns = places_in(left, op->kernel_w, op->x.w);
        for (int64_t r = rows.from; r < rows.to; r++)
            for (int64_t s = columns.from; s < columns.to; s++) {
                const float *v = image + ((top + r) * op->x.w + left + s) * c;
                const int32_t at = (int32_t)(r * op->kernel_w + s);
                if (columns.to - s >= 3) {
                    if (r == rows.from && s == columns.from)
                        take_three(y, wide, v, c, at, channels, true);
                    else
                        take_three(y, wide, v, c, at, channels, false);
                    s += 2;
                } else if (r == rows.from && s == columns.from)
                    take_first(y, wide, v, at, channels);
                else
                    take_larger(y, wide, v, at, channels);
            }
        if (op->kind == EN_OP_RELU_MAXPOOL) close_below_zero(y, wide, channels);
        for (int64_t k = 0; k < channels; k++)
            position[k] = (uint8_t)wide[k];
    }
}

/* Adds the gradient of an output pixel to the position of its window that was largest. Windows may
 * overlap. */
ENI_ALWAYS_INLINE void add_where(float *restrict dx, const float *restrict dy,
                                 const int32_t *restrict position, int32_t at, int64_t c)
{
    for (int64_t k = 0; k < c; k++)
        dx[k] += position[k] == at ? dy[k] : 0.0f;
}

/* The backward of row_forward, added to dx: in the order of the outputs, as ops/ref/pool.c adds. */
ENI_MULTIVERSION_SHORT static void row_backward(float *image, const float *restrict dy,
                                                const uint8_t *restrict position, const en_op *op, int64_t p,
                                                int64_t w, int64_t channels)
{
    const int64_t c = op->x.c, top = p * op->stride_h - op->pad_h;
    const places rows = places_in(top, op->kernel_h, op->x.h);
    int32_t wide[BLOCK];
    for (int64_t q = 0; q < w; q++, dy += c, position += c) {
        const int64_t left = q * op->stride_w - op->pad_w;
        const places columns = places_in(left, op->kernel_w, op->x.w);
        for (int64_t k = 0; k < channels; k++)
            wide[k] = position[k];
        for (int64_t r = rows.from; r < rows.to; r++)
            for (int64_t s = columns.from; s < columns.to; s++)
                add_where(image + ((top + r) * op->x.w + left + s) * c, dy, wide,
                          (int32_t)(r * op->kernel_w + s), channels);
    }
}

/* Output rows [from, to), numbered through all images. Evaluation does not use the positions: they go to the
 * workspace. */
static void forward_rows(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const en_extent x = plan->op.x, y = plan->y;
    uint8_t *positions = plan->op.flags & EN_OP_FORWARD_ONLY ? args->workspace : args->saved;
    for (int64_t row = from; row < to; row++)
        for (int64_t k = 0; k < x.c; k += BLOCK) {
            const int64_t at = row * y.w * y.c + k;
            row_forward((float *)args->y + at, positions + at,
                        (const float *)args->x + row / y.h * x.h * x.w * x.c + k, &plan->op, row % y.h, y.w,
                        x.c - k < BLOCK ? x.c - k : BLOCK);
        }
}

/* Images [from, to): the output rows of one add to the same rows of dx, which are zeroed shortly before. */
static void backward_images(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const en_extent x = plan->op.x, y = plan->y;
    const int64_t in = x.w * x.c, out = y.w * y.c;
    for (int64_t n = from; n < to; n++) {
        float *image = (float *)args->dx + n * x.h * in;
        int64_t zeroed = 0;
        for (int64_t p = 0; p < y.h; p++) {
            const int64_t below = p * plan->op.stride_h - plan->op.pad_h + plan->op.kernel_h;
            const int64_t rows = p == y.h - 1 || below > x.h ? x.h : below;
            memset(image + zeroed * in, 0, (size_t)((rows - zeroed) * in) * sizeof *image);
            zeroed = rows;
            for (int64_t k = 0; k < x.c; k += BLOCK) {
                const int64_t at = (n * y.h + p) * out + k;
                row_backward(image + k, (const float *)args->dy + at, (const uint8_t *)args->saved + at,
                             &plan->op, p, y.w, x.c - k < BLOCK ? x.c - k : BLOCK);
            }
        }
    }
}

/* ---- windows of 2 x 2 ---- */

static void forward_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const en_extent x = plan->op.x, y = plan->y;
    const int64_t in = x.w * x.c, out = y.w * y.c, step = BLOCK / y.c;
    uint8_t *positions = plan->op.flags & EN_OP_FORWARD_ONLY ? args->workspace : args->saved;
    for (int64_t row = from; row < to; row++) {
        const float *top = (const float *)args->x + (row / y.h * x.h + row % y.h * 2) * in;
        for (int64_t q = 0; q < y.w; q += step) {
            const int64_t w = y.w - q < step ? y.w - q : step, at = row * out + q * y.c;
            const float *corner = top + 2 * q * x.c;
            block_max((float *)args->y + at, positions + at, corner, corner + in, w, y.c,
                      plan->op.kind == EN_OP_RELU_MAXPOOL);
        }
    }
}

static en_status pool_forward(en_plan *plan, const en_args *args)
{
    eni_cpu_split(plan, args, plan->y.n * plan->y.h, 1, is_square(&plan->op) ? forward_part : forward_rows);
    return EN_OK;
}

static en_status pool_backward_data(en_plan *plan, const en_args *args)
{
    eni_cpu_split(plan, args, plan->y.n, 1, backward_images);
    return EN_OK;
}

static en_status pool_prepare(en_plan *plan)
{
    const uint64_t positions = (uint64_t)en_extent_count(plan->y);
    if (plan->op.flags & EN_OP_FORWARD_ONLY)
        plan->info.workspace_bytes = positions;
    else
        plan->info.saved_bytes = positions;
    return EN_OK;
}

const eni_cpu_kernel eni_cpu_pool = {
    .forward = pool_forward, .backward_data = pool_backward_data, .prepare = pool_prepare};
