/* flatten.c - (N, H, W, C) to (N, C * H * W) in PyTorch's order, and back: a small transpose per image. */
#include "ops/cpu/cpu.h"
#include "ops/multiversion.h"

/* (rows, cols) to (cols, rows). Writes run along memory, reads jump: a small image stays in the cache. */
ENI_MULTIVERSION static void transpose(float *restrict to, const float *restrict from, int64_t rows,
                                       int64_t cols)
{
    for (int64_t c = 0; c < cols; c++)
        for (int64_t r = 0; r < rows; r++)
            to[c * rows + r] = from[r * cols + c];
}

static void forward_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const int64_t pixels = plan->op.x.h * plan->op.x.w, channels = plan->op.x.c;
    for (int64_t at = from * pixels * channels; from < to; from++, at += pixels * channels)
        transpose((float *)args->y + at, (const float *)args->x + at, pixels, channels);
}

static void backward_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const int64_t pixels = plan->op.x.h * plan->op.x.w, channels = plan->op.x.c;
    for (int64_t at = from * pixels * channels; from < to; from++, at += pixels * channels)
        transpose((float *)args->dx + at, (const float *)args->dy + at, channels, pixels);
}

static en_status flatten_forward(en_plan *plan, const en_args *args)
{
    eni_cpu_split(plan, args, plan->op.x.n, 8, forward_part);
    return EN_OK;
}

static en_status flatten_backward_data(en_plan *plan, const en_args *args)
{
    eni_cpu_split(plan, args, plan->op.x.n, 8, backward_part);
    return EN_OK;
}

const eni_cpu_kernel eni_cpu_flatten = {.forward = flatten_forward, .backward_data = flatten_backward_data};
