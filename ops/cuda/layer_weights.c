/* layer_weights.c - weights in, gradients out: see layer_weights.h. */
#include "ops/cuda/layer_weights.h"

#include "core/memory.h"

static uint64_t area(uint64_t bytes)
{
    return eni_round_up(bytes, ENI_CUDA_ALIGN);
}

void eni_cuda_layer_init(en_plan *plan, uint32_t dw_dtype, uint64_t scratch_bytes, eni_cuda_layer *layer)
{
    const en_op *op = &plan->op;
    const bool is_conv = op->kind == EN_OP_CONV2D, trains = !(op->flags & EN_OP_FORWARD_ONLY);
    const bool same_order = !is_conv || op->x.c == 1 || op->kernel_h * op->kernel_w == 1;
    const uint64_t count = (uint64_t)en_op_weights(op), size = en_dtype_bytes(op->dtype);
    *layer = (eni_cuda_layer){.dw_dtype = dw_dtype,
                              .is_plain = same_order && op->dtype == EN_F32,
                              .is_plain_dw = same_order && dw_dtype == EN_F32,
                              .nparts = trains && op->flags & EN_OP_BIAS ? eni_cuda_columns_parts(plan) : 0};
    layer->is_saved = !layer->is_plain && trains && !(op->flags & EN_OP_NO_DX);
    layer->bias_at = area(count * size);
    const uint64_t weights_bytes = layer->bias_at + area((uint64_t)op->channels * size);
    if (layer->is_saved) plan->info.saved_bytes = weights_bytes;
    layer->dw_at = layer->is_saved ? 0 : weights_bytes;
    layer->parts_at = layer->dw_at + (trains ? area(count * en_dtype_bytes(dw_dtype)) : 0);
    layer->scratch_at =
        layer->parts_at + area((uint64_t)layer->nparts * (uint64_t)op->channels * sizeof(float));
    plan->info.workspace_bytes = layer->scratch_at + scratch_bytes;
}

en_status eni_cuda_layer_weights(const en_plan *plan, const eni_cuda_layer *layer, const en_args *args,
                                 bool is_forward, const void **w_out, const void **b_out)
{
    const float *b = is_forward && plan->op.flags & EN_OP_BIAS ? args->b : NULL;
    *w_out = args->w;
    *b_out = b;
    if (layer->is_plain && eni_cuda_lies_well(args->w) && eni_cuda_lies_well(b)) return EN_OK;
    char *to = layer->is_saved ? args->saved : args->workspace;
    *w_out = to;
    *b_out = b ? to + layer->bias_at : NULL;
    if (layer->is_saved && !is_forward) return EN_OK;
    return eni_cuda_weights_in(plan, args->w, b, to, to + layer->bias_at);
}

static bool writes_dw_itself(const eni_cuda_layer *layer, const en_args *args)
{
    return layer->is_plain_dw && !args->loss_scale && eni_cuda_lies_well(args->dw);
}

void *eni_cuda_layer_dw(const eni_cuda_layer *layer, const en_args *args)
{
    return writes_dw_itself(layer, args) ? args->dw : (char *)args->workspace + layer->dw_at;
}

en_status eni_cuda_layer_columns(const en_plan *plan, const eni_cuda_layer *layer, const en_args *args,
                                 bool has_bias)
{
    if (!has_bias && !(plan->op.flags & EN_OP_FUSE_RELU)) return EN_OK;
    float *parts = (float *)(void *)((char *)args->workspace + layer->parts_at);
    float *sums = !has_bias ? NULL : layer->nparts == 1 ? args->db : parts;
    return eni_cuda_columns(plan, args, sums, has_bias ? layer->nparts : eni_cuda_columns_parts(plan));
}

en_status eni_cuda_layer_out(const en_plan *plan, const eni_cuda_layer *layer, const en_args *args,
                             bool has_bias)
{
    const char *work = args->workspace;
    const void *dw = writes_dw_itself(layer, args) ? NULL : work + layer->dw_at;
    const int64_t nparts = has_bias && layer->nparts > 1 ? layer->nparts : 0;
    if (!dw && nparts == 0) return EN_OK;
    return eni_cuda_weights_out(plan, dw, layer->dw_dtype,
                                (const float *)(const void *)(work + layer->parts_at), nparts, args);
}
