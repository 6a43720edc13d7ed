/* run_plan.c - what convolution and linear layers share: naming the passes of a plan, running one, the relu
 * behind it; and loops of our own over the threads of the device. */
#include <stdio.h>

#include "ops/cpu/cpu.h"

int eni_cpu_passes(const en_plan *plan)
{
    return plan->op.flags & EN_OP_FORWARD_ONLY ? 1 : plan->op.flags & EN_OP_NO_DX ? 2 : ENI_PASSES;
}

void eni_cpu_describe_pass(en_plan *plan, int which, const char *prefix, const char *name, uint64_t workspace)
{
    char *const names[ENI_PASSES] = {plan->info.forward, plan->info.backward_weights,
                                     plan->info.backward_data};
    snprintf(names[which], sizeof plan->info.forward, "%s%s", prefix, name);
    if (workspace > plan->info.workspace_bytes) plan->info.workspace_bytes = workspace;
}

/* Steps mostly run on the same memory: then no view is pointed anywhere else. */
en_status eni_cpu_run(const en_plan *plan, const eni_dnnl_primitive *primitive, const void *const *at)
{
    for (int i = 0; i < primitive->nviews; i++) {
        const dnnl_memory_t view = primitive->view[i].memory;
        void *old;
        dnnl_status_t status = dnnl_memory_get_data_handle(view, &old);
        if (status == dnnl_success && old != at[i])
            status = dnnl_memory_set_data_handle(view, (void *)(uintptr_t)at[i]);
        if (status != dnnl_success) return eni_dnnl_check(status, "aiming a view");
    }
    return eni_dnnl_check(dnnl_primitive_execute(primitive->primitive, plan->ctx->dnnl.stream,
                                                 primitive->nviews, primitive->view),
                          "running a primitive");
}

/* ---- loops over the threads of the device ----------------------------------------------------------------
 */

/* The start of part i of n, on a multiple of `grain`. */
static int64_t part_start(int64_t count, int64_t grain, int i, int n)
{
    const int64_t grains = (count + grain - 1) / grain, at = grains * i / n * grain;
    return at < count ? at : count;
}

void eni_cpu_split(const en_plan *plan, const en_args *args, int64_t count, int64_t grain,
                   eni_cpu_part_fn part)
{
    const int threads = plan->ctx->threads;
    if (threads == 1 || count <= grain) {
        part(plan, args, 0, count);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int i = 0; i < threads; i++)
        part(plan, args, part_start(count, grain, i, threads), part_start(count, grain, i + 1, threads));
}

enum { GRAIN = 4096 }; /* elements below which a second thread does not pay */

static void clamp_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    (void)plan;
    eni_ref_clamp((float *)args->y + from, (float *)args->y + from, to - from);
}

static void mask_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    (void)plan;
    float *dy = (float *)args->dy + from;
    eni_ref_mask(dy, dy, (const float *)args->y + from, to - from);
}

void eni_cpu_relu_in_place(const en_plan *plan, const en_args *args)
{
    if (plan->op.flags & EN_OP_FUSE_RELU)
        eni_cpu_split(plan, args, en_extent_count(plan->y), GRAIN, clamp_part);
}

void eni_cpu_relu_mask(const en_plan *plan, const en_args *args)
{
    if (plan->op.flags & EN_OP_FUSE_RELU)
        eni_cpu_split(plan, args, en_extent_count(plan->y), GRAIN, mask_part);
}
