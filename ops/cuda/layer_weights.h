/* layer_weights.h - shared by convolution and linear layers: weights in, gradients out.
 *
 *     flat vector, float32, PyTorch's order        library: its order, the op's type, 16 byte bounds
 *
 *     w, b    --- as they are, or by a kernel -->  saved (if backward_data reads them too) or workspace
 *     dw      <-- as they are, or by a kernel ---  dw, or workspace
 *     db      <-- dy summed over the rows (layer_weights.cu), in one part or several
 *
 * Workspace: [ weights | dw | parts of db | the library's own ]. */
#ifndef OPS_CUDA_LAYER_H
#define OPS_CUDA_LAYER_H

#include "ops/cuda/cuda.h"

typedef struct eni_cuda_layer {
    uint32_t dw_dtype; /* of the library's dw */
    bool is_plain;     /* w goes in as it is, if it is aligned */
    bool is_plain_dw;  /* dw comes out as it is, likewise */
    bool is_saved;     /* forward keeps the converted weights for backward_data */
    int64_t nparts;
    uint64_t bias_at;                     /* after the converted weights */
    uint64_t dw_at, parts_at, scratch_at; /* in the workspace; weights are at its start */
} eni_cuda_layer;

/* Fills plan->info.saved_bytes and workspace_bytes, the latter with `scratch_bytes` for the library. */
void eni_cuda_layer_init(en_plan *plan, uint32_t dw_dtype, uint64_t scratch_bytes, eni_cuda_layer *layer);

/* Weights and bias for a pass. backward_data does not use b: NULL is fine there. */
en_status eni_cuda_layer_weights(const en_plan *plan, const eni_cuda_layer *layer, const en_args *args,
                                 bool is_forward, const void **w_out, const void **b_out);

/* The library's address for dw. */
void *eni_cuda_layer_dw(const eni_cuda_layer *layer, const en_args *args);

/* Masks dy and sums it, as far as the op asks for either. has_bias: db is wanted from here. */
en_status eni_cuda_layer_columns(const en_plan *plan, const eni_cuda_layer *layer, const en_args *args,
                                 bool has_bias);

/* Copies out any rest of dw and db. has_bias as above. */
en_status eni_cuda_layer_out(const en_plan *plan, const eni_cuda_layer *layer, const en_args *args,
                             bool has_bias);

static inline void *eni_cuda_layer_scratch(const eni_cuda_layer *layer, const en_args *args)
{
    return (char *)args->workspace + layer->scratch_at;
}

/* True for addresses that the libraries' vector loads accept. */
static inline bool eni_cuda_lies_well(const void *address)
{
    return (uintptr_t)address % 16 == 0;
}

#endif
