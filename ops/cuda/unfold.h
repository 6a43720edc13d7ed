/* unfold.h - a convolution as one matrix product, for what cuDNN does not have (a type, a layout, the same
 * bits twice) on the GPU at hand.
 *
 *     x (N, H, W, I)  --unfold-->  windows (N*P*Q, KH*KW*I)       y = windows w^T + b
 *                                                                 dw = dy^T windows
 *     dx  <--fold: adds, in a fixed order--  windows              windows = dy w
 *
 * Weights in (O, KH, KW, I). It costs a copy of x, KH * KW times as large, in the workspace. */
#ifndef OPS_CUDA_UNFOLD_H
#define OPS_CUDA_UNFOLD_H

#include "ops/cuda/product.h"

typedef struct eni_cuda_unfold {
    eni_cuda_product product;
    uint64_t product_at; /* its own workspace, behind the windows */
    uint64_t bytes;      /* of workspace; 0: there is none of this */
    int is_fused;        /* forward: adds the bias, if there is one */
} eni_cuda_unfold;

/* EN_EUNSUPPORTED, nothing logged: more than 2^31 elements of windows. Passes of weights give float32. */
en_status eni_cuda_unfold_forward_init(const en_plan *plan, eni_cuda_unfold *unfold);
en_status eni_cuda_unfold_weights_init(const en_plan *plan, eni_cuda_unfold *unfold);
en_status eni_cuda_unfold_data_init(const en_plan *plan, eni_cuda_unfold *unfold);
void eni_cuda_unfold_fini(eni_cuda_unfold *unfold); /* safe on zeroed memory */

en_status eni_cuda_unfold_forward(const en_plan *plan, const eni_cuda_unfold *unfold, const void *x,
                                  const void *w, const void *b, void *y, void *workspace);
en_status eni_cuda_unfold_weights(const en_plan *plan, const eni_cuda_unfold *unfold, const void *x,
                                  const void *dy, void *dw, void *workspace);
en_status eni_cuda_unfold_data(const en_plan *plan, const eni_cuda_unfold *unfold, const void *w,
                               const void *dy, void *dx, void *workspace);

#endif
