/* linear.c - y = x w^T + b: three products of cuBLASLt (product.h), with the bias in the epilogue, then
 * relu.cu; db in the epilogue, or by layer_weights.cu. The relu's own gradient stays with layer_weights.cu:
 * by contract it is applied to this layer's dy, which another operation wrote, so the epilogue DRELU (of the
 * product that writes dy) does not fit. */
#include <stdio.h>

#include "core/memory.h"
#include "core/try.h"
#include "ops/cuda/layer_weights.h"
#include "ops/cuda/product.h"

typedef struct linear {
    eni_cuda_layer layer;
    eni_cuda_product forward, dw, dw_db, dx; /* dw_db: with the bias gradient, if cuBLASLt supports that */
} linear;

/* The epilogue sums dy inside the product, where another algorithm adds in another order. */
static bool wants_db_in_product(const en_plan *plan)
{
    return plan->op.flags & EN_OP_BIAS && !(plan->op.flags & EN_OP_FUSE_RELU) &&
           !(plan->ctx->flags & EN_OPEN_DETERMINISTIC);
}

static en_status prepare_backward(const en_plan *plan, linear *own)
{
    const int64_t n = plan->op.x.n, c = plan->op.x.c;
    EN_TRY(eni_cuda_product_init(plan, ENI_CUDA_WEIGHTS, n, c, false, &own->dw));
    if (wants_db_in_product(plan)) {
        const en_status st = eni_cuda_product_init(plan, ENI_CUDA_WEIGHTS, n, c, true, &own->dw_db);
        if (st != EN_OK && st != EN_EUNSUPPORTED) return st;
    }
    return plan->op.flags & EN_OP_NO_DX ? EN_OK
                                        : eni_cuda_product_init(plan, ENI_CUDA_DATA, n, c, false, &own->dx);
}

static en_status linear_prepare(en_plan *plan)
{
    linear *own = plan->own = eni_alloc(sizeof *own);
    if (!own) return EN_ENOMEM;
    EN_TRY(eni_cuda_product_init(plan, ENI_CUDA_FORWARD, plan->op.x.n, plan->op.x.c, false, &own->forward));
    if (!(plan->op.flags & EN_OP_FORWARD_ONLY)) EN_TRY(prepare_backward(plan, own));
    const eni_cuda_product *const all[] = {&own->forward, &own->dw, &own->dw_db, &own->dx};
    uint64_t scratch = 0;
    for (int i = 0; i < 4; i++)
        if (all[i]->workspace_bytes > scratch) scratch = all[i]->workspace_bytes;
    eni_cuda_layer_init(plan, EN_F32, scratch, &own->layer);
    snprintf(plan->info.forward, sizeof plan->info.forward, "%s", own->forward.name);
    snprintf(plan->info.backward_weights, sizeof plan->info.backward_weights, "%s",
             own->dw_db.product ? own->dw_db.name : own->dw.name);
    snprintf(plan->info.backward_data, sizeof plan->info.backward_data, "%s", own->dx.name);
    return EN_OK;
}

static void linear_discard(en_plan *plan)
{
    linear *own = plan->own;
    if (!own) return;
    eni_cuda_product_fini(&own->forward);
    eni_cuda_product_fini(&own->dw);
    eni_cuda_product_fini(&own->dw_db);
    eni_cuda_product_fini(&own->dx);
    eni_free(own);
}

static en_status linear_forward(en_plan *plan, const en_args *args)
{
    const linear *own = plan->own;
    const void *w, *b;
    EN_TRY(eni_cuda_layer_weights(plan, &own->layer, args, true, &w, &b));
    EN_TRY(eni_cuda_product_run(plan, &own->forward, w, args->x, own->forward.has_bias ? b : NULL, args->y,
                                eni_cuda_layer_scratch(&own->layer, args), "forward of linear"));
    return eni_cuda_bias_relu(plan, args, own->forward.has_bias);
}

static en_status linear_backward_weights(en_plan *plan, const en_args *args)
{
    const linear *own = plan->own;
    const int sums_inside = own->dw_db.product && !args->loss_scale && eni_cuda_lies_well(args->db);
    const int sums = plan->op.flags & EN_OP_BIAS && !sums_inside;
    EN_TRY(eni_cuda_layer_columns(plan, &own->layer, args, sums));
    EN_TRY(eni_cuda_product_run(plan, sums_inside ? &own->dw_db : &own->dw, args->x, args->dy,
                                sums_inside ? args->db : NULL, eni_cuda_layer_dw(&own->layer, args),
                                eni_cuda_layer_scratch(&own->layer, args), "backward_weights of linear"));
    return eni_cuda_layer_out(plan, &own->layer, args, sums);
}

static en_status linear_backward_data(en_plan *plan, const en_args *args)
{
    const linear *own = plan->own;
    const void *w, *b;
    EN_TRY(eni_cuda_layer_weights(plan, &own->layer, args, false, &w, &b));
    return eni_cuda_product_run(plan, &own->dx, w, args->dy, NULL, args->dx,
                                eni_cuda_layer_scratch(&own->layer, args), "backward_data of linear");
}

const eni_cuda_kernel eni_cuda_linear = {
    .prepare = linear_prepare,
    .discard = linear_discard,
    .forward = linear_forward,
    .backward_weights = linear_backward_weights,
    .backward_data = linear_backward_data,
};
