/* run_plan.c - what convolution and linear layers share: making the passes of a plan, running one, the relu
 * behind it; and loops of our own over the threads of the device. */
#include <stdio.h>

#include "core/try.h"
#include "ops/cpu/cpu.h"

static en_status prepare_pass(en_plan *plan, int which)
{
    char *const names[ENI_PASSES] = {plan->info.forward, plan->info.backward_weights,
                                     plan->info.backward_data};
    eni_dnnl_pass *pass = &plan->pass[which];
    EN_TRY(eni_dnnl_pass_init(&plan->ctx->dnnl, &plan->op, which, pass));
    if (pass->scratch_bytes > plan->info.workspace_bytes) plan->info.workspace_bytes = pass->scratch_bytes;
    snprintf(names[which], sizeof plan->info.forward, "%s", pass->name);
    return EN_OK;
}

en_status eni_cpu_prepare_forward(en_plan *plan)
{
    return prepare_pass(plan, ENI_FORWARD);
}

en_status eni_cpu_prepare_passes(en_plan *plan)
{
    EN_TRY(prepare_pass(plan, ENI_FORWARD));
    if (plan->op.flags & EN_OP_FORWARD_ONLY) return EN_OK;
    EN_TRY(prepare_pass(plan, ENI_BACKWARD_WEIGHTS));
    return plan->op.flags & EN_OP_NO_DX ? EN_OK : prepare_pass(plan, ENI_BACKWARD_DATA);
}

/* Steps mostly run on the same memory: then nothing happens. */
en_status eni_cpu_aim_view(dnnl_memory_t view, const void *data)
{
    void *old;
    dnnl_status_t status = dnnl_memory_get_data_handle(view, &old);
    if (status == dnnl_success && old != data) status = dnnl_memory_set_data_handle(view, (void *)data);
    return status == dnnl_success ? EN_OK : eni_dnnl_check(status, "aiming a view");
}

en_status eni_cpu_aim(const en_plan *plan, const eni_dnnl_pass *pass, const void *source, const void *weights,
                      const void *bias, const void *target, void *workspace)
{
    EN_TRY(eni_cpu_aim_view(pass->source, source));
    EN_TRY(eni_cpu_aim_view(pass->weights, weights));
    EN_TRY(eni_cpu_aim_view(pass->target, target));
    EN_TRY(eni_cpu_aim_view(pass->scratch, workspace));
    return plan->op.flags & EN_OP_BIAS ? eni_cpu_aim_view(pass->bias, bias) : EN_OK;
}

en_status eni_cpu_execute(const en_plan *plan, dnnl_primitive_t primitive, int nargs,
                          const dnnl_exec_arg_t *args)
{
    dnnl_status_t status = dnnl_primitive_execute(primitive, plan->ctx->dnnl.stream, nargs, args);
    return status == dnnl_success ? EN_OK : eni_dnnl_check(status, "running a primitive");
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
    eni_cpu_split(plan, args, en_extent_count(plan->y), GRAIN, clamp_part);
}

void eni_cpu_relu_mask(const en_plan *plan, const en_args *args)
{
    eni_cpu_split(plan, args, en_extent_count(plan->y), GRAIN, mask_part);
}
