/* device.c - the table of the cpu device. Operations without a file here run the reference loops: they are
 * small (losses), or already bound by memory. */
#include "entrain/device.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl_debug.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/files.h"
#include "core/memory.h"
#include "core/try.h"
#include "ops/cpu/cpu.h"

static en_status cpu_open(const en_device_config *config, en_ctx **ctx_out)
{
    eni_ref_log_to(config->host);
    en_ctx *ctx = eni_alloc(sizeof *ctx);
    if (ctx == NULL) return EN_ENOMEM;
    ctx->threads = config->threads;
    omp_set_dynamic(0);
    omp_set_num_threads(ctx->threads);
    en_status st = eni_threads_need(ctx->threads - 1, "the device cpu");
    if (st == EN_OK) st = eni_dnnl_open((config->flags & EN_OPEN_BF16) != 0, &ctx->dnnl);
    if (st != EN_OK) {
        eni_free(ctx);
        return st;
    }
    const dnnl_version_t *version = dnnl_version();
    snprintf(ctx->description, sizeof ctx->description, "oneDNN %d.%d.%d, %s, OpenMP, %d thread%s%s",
             version->major, version->minor, version->patch, dnnl_cpu_isa2str(dnnl_get_effective_cpu_isa()),
             ctx->threads, ctx->threads == 1 ? "" : "s", ctx->dnnl.is_bf16 ? ", bf16" : "");
    *ctx_out = ctx;
    return EN_OK;
}

static void cpu_close(en_ctx *ctx)
{
    eni_dnnl_close(&ctx->dnnl);
    omp_pause_resource_all(
        omp_pause_hard); /* ends the caller's idle threads; the next region starts new ones */
    eni_free(ctx);
}

static const char *cpu_describe(en_ctx *ctx)
{
    return ctx->description;
}

/* ---- the reference loops, on each thread a part of the images, independent of the others ---- */

static void run_images(const en_plan *plan, const en_args *args, int64_t from, int64_t to,
                       en_status (*pass)(const en_op *op, const en_args *args))
{
    const int64_t at_x = en_extent_count(plan->op.x) / plan->op.x.n * from;
    const int64_t at_y = en_extent_count(plan->y) / plan->op.x.n * from;
    en_op op = plan->op;
    en_args part = *args;
    op.x.n = to - from;
    if (op.x.n == 0) return;
    if (part.x != NULL) part.x = (const float *)part.x + at_x;
    if (part.x2 != NULL) part.x2 = (const float *)part.x2 + at_x;
    if (part.dx != NULL) part.dx = (float *)part.dx + at_x;
    if (part.y != NULL) part.y = (float *)part.y + at_y;
    if (part.dy != NULL) part.dy = (float *)part.dy + at_y;
    (void)pass(&op, &part); /* they cannot fail */
}

static void forward_images(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    run_images(plan, args, from, to, eni_ref_kernel_find(plan->op.kind)->forward);
}

static void backward_images(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    run_images(plan, args, from, to, eni_ref_kernel_find(plan->op.kind)->backward_data);
}

/* A second thread does not pay below this many images. */
static int64_t grain(const en_plan *plan)
{
    const int64_t each = en_extent_count(plan->op.x) / plan->op.x.n;
    return each < 4096 ? 4096 / each : 1;
}

static en_status images_forward(en_plan *plan, const en_args *args)
{
    eni_cpu_split(plan, args, plan->op.x.n, grain(plan), forward_images);
    return EN_OK;
}

static en_status images_backward_data(en_plan *plan, const en_args *args)
{
    eni_cpu_split(plan, args, plan->op.x.n, grain(plan), backward_images);
    return EN_OK;
}

static const eni_cpu_kernel images = {.forward = images_forward, .backward_data = images_backward_data};

/* ---- the table ----------------------------------------------------------------------------------------- */

static const eni_cpu_kernel *find_kernel(const en_op *op, bool is_bf16)
{
    switch (op->kind) {
    case EN_OP_CONV2D:
        if (eni_cpu_one_window_fit(op)) /* weights of 1 x 1 are laid out as a linear layer's */
            return op->kernel_h * op->kernel_w == 1 ? &eni_cpu_linear : &eni_cpu_one_window;
        if (eni_cpu_columns_fit(op)) return is_bf16 ? &eni_cpu_linear : &eni_cpu_columns;
        return eni_cpu_winograd_fit(op) && !is_bf16 ? &eni_cpu_winograd : &eni_cpu_conv;
    case EN_OP_LINEAR: return &eni_cpu_linear;
    case EN_OP_BATCHNORM: return &eni_cpu_batchnorm;
    case EN_OP_RELU:
    case EN_OP_ADD:
    case EN_OP_AVGPOOL:
    case EN_OP_FLATTEN: return &images;
    case EN_OP_MAXPOOL:
    case EN_OP_RELU_MAXPOOL: return &eni_cpu_pool;
    default: return NULL;
    }
}

/* oneDNN's gemm allocates memory in every call and frees it; no attribute changes that. While glibc's cache
 * of small blocks takes the slivers beside an aligned block, glibc does not merge them with it, so the next
 * call's block would lie elsewhere and every step would touch new pages. A full cache takes none. */
static void fill_cache_of_small_blocks(void)
{
#ifdef __GLIBC__
    enum { SMALLEST = 24, LARGEST = 1032, APART = 16, EACH = 7, SIZES = (LARGEST - SMALLEST) / APART + 1 };
    void *volatile blocks[SIZES * EACH]; /* volatile: or the compiler would optimise it away */
    for (int i = 0; i < SIZES * EACH; i++)
        blocks[i] = malloc(SMALLEST + (size_t)(i / EACH) * APART);
    for (int i = 0; i < SIZES * EACH; i++)
        free(blocks[i]);
#endif
}

/* Fills the caches so that every thread finds the memory of such a plan where it was. */
static void keep_memory(const en_plan *plan)
{
    const en_plan_info *info = &plan->info;
    if (strstr(info->forward, "gemm:jit") == NULL && strstr(info->backward_weights, "gemm:jit") == NULL &&
        strstr(info->backward_data, "gemm:jit") == NULL)
        return;
    eni_memory_keep();
#pragma omp parallel num_threads(plan->ctx->threads)
    fill_cache_of_small_blocks();
}

static void cpu_plan_free(en_plan *plan)
{
    if (!plan) return;
    for (int which = 0; which < ENI_PASSES; which++) {
        eni_dnnl_conv_fini(&plan->pass[which]);
        eni_dnnl_primitive_fini(&plan->product[which]);
    }
    eni_free(plan);
}

static en_status cpu_plan(en_ctx *ctx, const en_op *op, en_plan **plan_out)
{
    EN_TRY(eni_ref_check(op, "cpu"));
    en_plan *plan = eni_alloc(sizeof *plan);
    if (!plan) return EN_ENOMEM;
    plan->op = *op;
    plan->y = eni_ref_output(op);
    plan->ctx = ctx;
    plan->kernel = find_kernel(op, ctx->dnnl.is_bf16);
    eni_ref_describe(op, &plan->info);
    if (plan->kernel) plan->info.saved_bytes = plan->info.workspace_bytes = 0; /* it has its own */
    omp_set_num_threads(ctx->threads); /* per calling thread, and frozen into what is created now */
    const en_status st = plan->kernel && plan->kernel->prepare ? plan->kernel->prepare(plan) : EN_OK;
    if (st != EN_OK) {
        cpu_plan_free(plan);
        return st;
    }
    keep_memory(plan);
    *plan_out = plan;
    return EN_OK;
}

static void cpu_plan_info(const en_plan *plan, en_plan_info *info_out)
{
    eni_ref_give_info(&plan->info, info_out);
}

static en_status cpu_forward(en_plan *plan, const en_args *args)
{
    if (!plan->kernel) return eni_ref_kernel_find(plan->op.kind)->forward(&plan->op, args);
    return plan->kernel->forward(plan, args);
}

static en_status cpu_backward_weights(en_plan *plan, const en_args *args)
{
    const bool has_weights = plan->kernel && plan->kernel->backward_weights;
    if (!has_weights || plan->op.flags & EN_OP_FORWARD_ONLY) return EN_EUNSUPPORTED;
    return plan->kernel->backward_weights(plan, args);
}

static en_status cpu_backward_data(en_plan *plan, const en_args *args)
{
    if (plan->op.flags & (EN_OP_FORWARD_ONLY | EN_OP_NO_DX)) return EN_EUNSUPPORTED;
    if (!plan->kernel) return eni_ref_kernel_find(plan->op.kind)->backward_data(&plan->op, args);
    return plan->kernel->backward_data(plan, args);
}

static const en_device cpu = {
    .abi = EN_DEVICE_ABI,
    .size = sizeof cpu,
    .name = "cpu",
    .help = "oneDNN, with loops of our own where they are faster",
    .flags = EN_DEVICE_HOST,
    .align = ENI_LINE,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .alloc = eni_ref_alloc,
    .free = eni_ref_free,
    .copy = eni_ref_copy,
    .zero = eni_ref_zero,
    .sync = eni_ref_sync,
    .plan = cpu_plan,
    .plan_free = cpu_plan_free,
    .plan_info = cpu_plan_info,
    .forward = cpu_forward,
    .backward_weights = cpu_backward_weights,
    .backward_data = cpu_backward_data,
    .gpu = NULL,
};

__attribute__((visibility("default"))) const en_device *en_device_entry(uint32_t host_abi);

const en_device *en_device_entry(uint32_t host_abi)
{
    return host_abi == EN_DEVICE_ABI ? &cpu : NULL;
}
