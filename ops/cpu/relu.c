/* relu.c - max(x, 0), alone and fused to the layer before it; see ops/ref/relu.c for the values. */
#include "ops/cpu/cpu.h"
#include "ops/multiversion.h"

enum { GRAIN = 4096 }; /* elements below which a second thread does not pay */

ENI_MULTIVERSION static void clamp(float *y, const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] = x[i] <= 0.0f ? 0.0f : x[i];
}

ENI_MULTIVERSION static void mask(float *dx, const float *dy, const float *y, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        dx[i] = y[i] <= 0.0f ? 0.0f : dy[i];
}

static void clamp_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    (void)plan;
    clamp((float *)args->y + from, (const float *)args->x + from, to - from);
}

static void clamp_y_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    (void)plan;
    clamp((float *)args->y + from, (const float *)args->y + from, to - from);
}

static void mask_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    (void)plan;
    mask((float *)args->dx + from, (const float *)args->dy + from, (const float *)args->y + from, to - from);
}

static void mask_dy_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    (void)plan;
    mask((float *)args->dy + from, (const float *)args->dy + from, (const float *)args->y + from, to - from);
}

void eni_cpu_relu_in_place(const en_plan *plan, const en_args *args)
{
    eni_cpu_split(plan, args, en_extent_count(plan->y), GRAIN, clamp_y_part);
}

void eni_cpu_relu_mask(const en_plan *plan, const en_args *args)
{
    eni_cpu_split(plan, args, en_extent_count(plan->y), GRAIN, mask_dy_part);
}

static en_status relu_forward(en_plan *plan, const en_args *args)
{
    eni_cpu_split(plan, args, en_extent_count(plan->y), GRAIN, clamp_part);
    return EN_OK;
}

static en_status relu_backward_data(en_plan *plan, const en_args *args)
{
    eni_cpu_split(plan, args, en_extent_count(plan->y), GRAIN, mask_part);
    return EN_OK;
}

const eni_cpu_kernel eni_cpu_relu = {.forward = relu_forward, .backward_data = relu_backward_data};
