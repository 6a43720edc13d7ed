/* cuda.h - the cuda device: convolutions by cuDNN (conv.c alone), products by cuBLASLt (product.c alone), the
 * rest by kernels of our own (*.cu).
 *
 *     device.c     the table; a context's life; memory
 *     queues.c     queues, marks, copies, pinned memory
 *     graph.c      recorded work
 *     share.c      memory of other processes
 *     facts.c      which GPUs there are, their links, who uses them (nvml.c)
 *     group.c      collectives (nccl.c: libnccl, loaded when it is first needed)
 *     plan.c       one operation: finds its kernel
 *     conv.c linear.c relu.c pool.c flatten.c softmax.c loss.c cast.c
 *                  one file an operation, as in ops/ref and ops/cpu; X.c plans, X.cu has the kernels
 *     flat.cu      mean, step, lin, finite: the bits of ops/mean.c and ops/optimizer.c
 *
 * Every call enqueues and returns. C files include cuda_runtime_api.h; kernels are started through launch.h,
 * so that they can also be compiled for the CPU (tests/fake_gpu). */
#ifndef OPS_CUDA_CUDA_H
#define OPS_CUDA_CUDA_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include "entrain/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ENI_CUDA_ALIGN = 256 };

struct en_ctx {
    int index; /* cudaSetDevice before anything else: a process may hold contexts on several GPUs */
    uint32_t flags; /* EN_OPEN_* */
    cudaStream_t queue[EN_QUEUES];
    cublasLtHandle_t blas;
    cudnnHandle_t dnn; /* bound to queue[EN_QUEUE_COMPUTE] */
    int has_failed; /* a device error was logged: see eni_cuda_check */
    int is_capturing;
    char description[160];
};

/* What a plan of one operation keeps is its kernel's: `own`. */
typedef struct eni_cuda_kernel eni_cuda_kernel;

struct en_plan {
    en_op op;
    en_extent y;
    en_ctx *ctx; /* borrowed; outlives us */
    const eni_cuda_kernel *kernel;
    void *own;
    en_plan_info info;
};

/* One operation on this device. Run calls as in en_device. */
struct eni_cuda_kernel {
    en_status (*prepare)(en_plan *plan); /* fills plan->own and plan->info; what it leaves behind on failure,
                                            discard frees. NULL: nothing to prepare */
    void (*discard)(en_plan *plan);      /* NULL: nothing to free; plan->own may be NULL */
    en_status (*forward)(en_plan *plan, const en_args *args);
    en_status (*backward_weights)(en_plan *plan, const en_args *args); /* NULL: has no weights */
    en_status (*backward_data)(en_plan *plan, const en_args *args);
};

extern const eni_cuda_kernel eni_cuda_conv, eni_cuda_linear, eni_cuda_relu, eni_cuda_pool, eni_cuda_flatten,
    eni_cuda_log_softmax, eni_cuda_nll, eni_cuda_cross_entropy, eni_cuda_mse, eni_cuda_cast;

/* plan.c: the six functions of en_device that have to do with plans. */
en_status eni_cuda_plan(en_ctx *ctx, const en_op *op, en_plan **plan_out);
void eni_cuda_plan_free(en_plan *plan);
void eni_cuda_plan_info(const en_plan *plan, en_plan_info *info_out);
en_status eni_cuda_forward(en_plan *plan, const en_args *args);
en_status eni_cuda_backward_weights(en_plan *plan, const en_args *args);
en_status eni_cuda_backward_data(en_plan *plan, const en_args *args);

/* EN_OK, or logs what failed with the library's name for it ("forward of conv2d: CUDA error 700, an illegal
 * memory access was encountered, on cuda:0 (NVIDIA H100)") and returns EN_EIO, or EN_ENOMEM. After a first
 * error nothing more is logged. errors.c. */
en_status eni_cuda_check(en_ctx *ctx, cudaError_t error, const char *doing);
en_status eni_cuda_check_dnn(en_ctx *ctx, cudnnStatus_t status, const char *doing);
en_status eni_cuda_check_blas(en_ctx *ctx, cublasStatus_t status, const char *doing);

/* The stream that the run calls use. */
static inline cudaStream_t eni_cuda_stream(const en_plan *plan)
{
    return plan->ctx->queue[EN_QUEUE_COMPUTE];
}

extern const struct en_gpu eni_cuda_gpu; /* gpu.c */

#ifdef __cplusplus
}
#endif
#endif
