/* ref.h - the reference device: every operation as plain loops, the oracle that other devices are tested
 * against, and the device whose bits are the same on every machine. Three habits keep them the same: no
 * library (exp and log are in math.c), sums of products in double, in an order that the loops fix, and no
 * fused multiply-add (-ffp-contract=off). The cpu device also calls loops that are fast enough as they
 * are. */
#ifndef OPS_REF_REF_H
#define OPS_REF_REF_H

#include "entrain/device.h"

/* One operation. The op was accepted by eni_ref_check; the args are those of the device's calls. */
typedef struct eni_ref_kernel {
    en_status (*forward)(const en_op *op, const en_args *args);
    en_status (*backward_weights)(const en_op *op, const en_args *args); /* NULL without weights */
    en_status (*backward_data)(const en_op *op, const en_args *args);
    uint64_t (*saved_bytes)(const en_op *op);     /* NULL: none */
    uint64_t (*workspace_bytes)(const en_op *op); /* NULL: none */
} eni_ref_kernel;

extern const eni_ref_kernel eni_ref_conv, eni_ref_relu, eni_ref_pool, eni_ref_flatten, eni_ref_log_softmax,
    eni_ref_nll, eni_ref_cross_entropy, eni_ref_mse, eni_ref_batchnorm, eni_ref_add, eni_ref_avgpool;

/* By kind; NULL for a kind that does not exist. A linear layer's takes it as a convolution of 1 x 1 images
 * with a 1 x 1 window: eni_ref_as_conv. */
const eni_ref_kernel *eni_ref_kernel_find(uint32_t kind);
en_op eni_ref_as_conv(const en_op *op);

/* Refuses an op that is invalid or that no host device can do, and logs why in the name of `device`. */
en_status eni_ref_check(const en_op *op, const char *device);

/* Makes the program's log that of a device library, which has its own copy; NULL: no change. Every call of a
 * library that may log without a context begins with it. */
void eni_ref_log_to(const en_device_host *host);

/* Two parts of that check, for every device (operation.c): the struct is not older than ours; the extents,
 * flags and window of an op whose kind and type the device has. */
en_status eni_ref_check_size(const en_op *op, const char *device);
en_status eni_ref_check_sense(const en_op *op, const char *device);

/* The extent of y, of an op that was checked. */
en_extent eni_ref_output(const en_op *op);

/* The bytes and names of a plan of an op that was checked, if the loops run it. */
void eni_ref_describe(const en_op *op, en_plan_info *info_out);

/* Copies as much as the caller's struct has room for: it may be older and smaller, or newer and larger. */
void eni_ref_give_info(const en_plan_info *info, en_plan_info *info_out);

/* y = max(x, 0); NaN stays NaN, as in PyTorch, so that divergence shows. y may be x. */
void eni_ref_clamp(float *y, const float *x, int64_t count);

/* dx = dy, and 0 where y is not positive: the backward of a relu. dx may be dy. */
void eni_ref_mask(float *dx, const float *dy, const float *y, int64_t count);

/* The parts of en_args.stats; and their move towards the mean and the biased variance of a batch, (C) each,
 * unless one of them is not finite or stats is NULL. */
typedef struct eni_running {
    float *mean, *var; /* (C) */
    int64_t *batches;
} eni_running;
eni_running eni_ref_running(const en_op *op, float *stats);
void eni_ref_move_running(const en_op *op, float *stats, const double *mean, const double *var);

/* Natural exponential and logarithm, within two units in the last place of a double, the same bits
 * everywhere. log takes positive normal numbers, as a softmax needs. */
double eni_ref_exp(double x);
double eni_ref_log(double x);

/* y = log softmax of one row: (C). Stable: the largest x is subtracted first. */
void eni_ref_log_softmax_row(double *y, const float *x, int64_t c);

/* The memory calls of a host device; the context is ignored. */
en_status eni_ref_alloc(en_ctx *ctx, uint64_t bytes, void **memory_out);
void eni_ref_free(en_ctx *ctx, void *memory);
en_status eni_ref_copy(en_ctx *ctx, void *dst, const void *src, uint64_t bytes, int direction);
en_status eni_ref_zero(en_ctx *ctx, void *dst, uint64_t bytes);
en_status eni_ref_sync(en_ctx *ctx);

#endif
