/* kernels.h - the operations, and parts of operations, that are kernels of our own. Run calls as in
 * en_device: they enqueue and return. */
#ifndef OPS_CUDA_KERNELS_H
#define OPS_CUDA_KERNELS_H

#include "ops/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

en_status eni_cuda_relu_forward(en_plan *plan, const en_args *args);
en_status eni_cuda_relu_backward(en_plan *plan, const en_args *args);
en_status eni_cuda_cast_forward(en_plan *plan, const en_args *args);
en_status eni_cuda_pool_forward(en_plan *plan, const en_args *args); /* saves a byte per output: its place */
en_status eni_cuda_pool_backward(en_plan *plan, const en_args *args);
en_status eni_cuda_flatten_forward(en_plan *plan, const en_args *args);
en_status eni_cuda_flatten_backward(en_plan *plan, const en_args *args);
en_status eni_cuda_log_softmax_forward(en_plan *plan, const en_args *args);
en_status eni_cuda_log_softmax_backward(en_plan *plan, const en_args *args);

/* Losses: a block reduces its share to two numbers, in the workspace if there are several blocks. */
enum { ENI_LOSS_BLOCKS = 256 };
en_status eni_cuda_nll_forward(en_plan *plan, const en_args *args);
en_status eni_cuda_nll_backward(en_plan *plan, const en_args *args);
en_status eni_cuda_cross_entropy_forward(en_plan *plan,
                                         const en_args *args); /* saves its gradient, float32 */
en_status eni_cuda_cross_entropy_backward(en_plan *plan, const en_args *args);
en_status eni_cuda_mse_forward(en_plan *plan, const en_args *args);
en_status eni_cuda_mse_backward(en_plan *plan, const en_args *args);

/* ---- parts of conv2d and linear ---------------------------------------------------------------------- */

/* Weights (O, I, taps) float32 to (O, taps, I) in the op's type, and the bias, if the op has one, to that
 * type. */
en_status eni_cuda_weights_in(const en_plan *plan, const float *w, const float *b, void *w_to, void *b_to);

/* The way back: dw (O, taps, I) of `dtype` to (O, I, taps) float32, and the sum of `nparts` rows of parts to
 * db; both divided by the loss scale. dw_from NULL, nparts 0: not this one. */
en_status eni_cuda_weights_out(const en_plan *plan, const void *dw_from, uint32_t dtype, const float *parts,
                               int64_t nparts, const en_args *args);

/* With EN_OP_FUSE_RELU zeroes dy where y is not positive. Where `sums` is not NULL, sums dy over each of
 * `nparts` shares of the rows: sums (nparts, O). One part is the gradient of the bias itself: divided by the
 * loss scale. */
en_status eni_cuda_columns(const en_plan *plan, const en_args *args, float *sums, int64_t nparts);
int64_t eni_cuda_columns_parts(const en_plan *plan); /* how many are good for speed */

/* unfold.h: x to windows (N*P*Q, KH*KW*I), and the sum of windows to dx. */
en_status eni_cuda_unfold_x(const en_plan *plan, const void *x, void *windows);
en_status eni_cuda_fold_dx(const en_plan *plan, const void *windows, void *dx);

/* y += b, unless it has the bias, then relu: what of it the op's flags ask for, in place. */
en_status eni_cuda_bias_relu(const en_plan *plan, const en_args *args, int has_bias);

#ifdef __cplusplus
}
#endif
#endif
