/* run_plan.c - shared by convolution and linear layers: naming the passes of a plan, running one, products on
 * one thread each, the relu after it; and our own loops over the device's threads. */
#include <omp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/try.h"
#include "ops/cpu/cpu.h"
#include "ops/multiversion.h"

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

/* ---- the same weights again ---- */

static bool has_kept(const en_args *args)
{
    return args->size >= offsetof(en_args, is_same_w) + sizeof args->is_same_w;
}

void *eni_cpu_kept(const en_args *args)
{
    return has_kept(args) ? args->kept : NULL;
}

bool eni_cpu_is_same_w(const en_args *args)
{
    return has_kept(args) && args->is_same_w != 0;
}

/* ---- canaries ---- */

static const char canary[ENI_CANARY_BYTES] = "Entrain: canary";

void eni_cpu_canary_set(void *memory, uint64_t bytes)
{
    memcpy((char *)memory + bytes, canary, sizeof canary);
}

en_status eni_cpu_canary_check(const en_args *args, const eni_dnnl_primitive *primitive, const void *memory,
                               uint64_t bytes)
{
    static const char *const passes[ENI_PASSES] = {"forward", "backward by weights", "backward by data"};
    if (memcmp((const char *)memory + bytes, canary, sizeof canary) == 0) return EN_OK;
    const bool has_label = args->size >= offsetof(en_args, label) + sizeof args->label &&
                           args->label != NULL && args->label[0] != '\0';
    return eni_fail(EN_EBUG, "cpu",
                    "layer %s, %s: oneDNN's %s wrote past the %llu bytes that it had asked for, so its "
                    "results cannot be trusted; --device=ref works without oneDNN",
                    has_label ? args->label : "without a name", passes[primitive->which], primitive->name,
                    (unsigned long long)bytes);
}

uint64_t eni_cpu_workspace(const eni_dnnl_primitive *primitive)
{
    return primitive->scratch_bytes > 0 ? primitive->scratch_bytes + ENI_CANARY_BYTES : 0;
}

/* Most steps run on the same memory, so no view needs a new address. The canary is checked in every run: that
 * costs nothing beside any layer, and the message names the run that did the damage. */
en_status eni_cpu_run(const en_plan *plan, const en_args *args, const eni_dnnl_primitive *primitive,
                      const void *const *at)
{
    enum { SCRATCH = 3 }; /* index in `at`, if it has any */
    void *scratch = primitive->scratch_bytes > 0 ? (void *)(uintptr_t)at[SCRATCH] : NULL;
    for (int i = 0; i < primitive->nviews; i++) {
        const dnnl_memory_t view = primitive->view[i].memory;
        void *old;
        dnnl_status_t status = dnnl_memory_get_data_handle(view, &old);
        if (status == dnnl_success && old != at[i])
            status = dnnl_memory_set_data_handle(view, (void *)(uintptr_t)at[i]);
        if (status != dnnl_success) return eni_dnnl_check(status, "a layer");
    }
    if (scratch != NULL) eni_cpu_canary_set(scratch, primitive->scratch_bytes);
    EN_TRY(eni_dnnl_check(dnnl_primitive_execute(primitive->primitive, plan->ctx->dnnl.stream,
                                                 primitive->nviews, primitive->view),
                          "a layer"));
    return scratch == NULL ? EN_OK : eni_cpu_canary_check(args, primitive, scratch, primitive->scratch_bytes);
}

/* ---- products on one thread each ---- */

void eni_cpu_products_begin(eni_cpu_products *products_out)
{
    products_out->threads = omp_get_max_threads();
    atomic_init(&products_out->status, (int)dnnl_success);
    omp_set_num_threads(1);
}

en_status eni_cpu_products_end(eni_cpu_products *products)
{
    omp_set_num_threads(products->threads);
    return eni_dnnl_check((dnnl_status_t)atomic_load(&products->status), "a product of matrices");
}

void eni_cpu_multiply(eni_cpu_products *products, int64_t m, int64_t n, int64_t k, eni_cpu_factor a,
                      eni_cpu_factor b, float *c, int64_t c_stride, bool adds)
{
    const dnnl_status_t status = dnnl_sgemm(a.is_turned ? 'T' : 'N', b.is_turned ? 'T' : 'N', m, n, k, 1.0f,
                                            a.at, a.stride, b.at, b.stride, adds ? 1.0f : 0.0f, c, c_stride);
    int none = (int)dnnl_success;
    if (status != dnnl_success) atomic_compare_exchange_strong(&products->status, &none, (int)status);
}

ENI_MULTIVERSION void eni_cpu_add(float *restrict sum, const float *restrict x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        sum[i] += x[i];
}

/* ---- loops over the threads of the device ---- */

/* The start of part i of n, on a multiple of `grain`. */
static int64_t part_start(int64_t count, int64_t grain, int i, int n)
{
    const int64_t at = eni_cpu_parts(count, grain) * i / n * grain;
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

enum { GRAIN = 4096 }; /* a second thread does not pay below this many elements */

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
