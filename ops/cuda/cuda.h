/* cuda.h - the cuda device: convolutions by cuDNN (conv.c alone), products by cuBLASLt (product.c alone), the
 * rest by our own kernels (*.cu).
 *
 *     device.c         the tables; a context's lifetime; memory, of other processes too
 *     context.c        below all others: selecting a thread's GPU, logging the libraries' errors
 *     streams.c        streams, events, copies
 *     registered.c staging.c   host memory that the GPU reaches, and copies of memory that it does not
 *     capture.c        captured work
 *     facts.c          the GPUs of this host, and their facts
 *     nccl_group.c     collectives: libnccl, loaded on first use
 *     op_plan.c        one operation: finds its kernel
 *     conv.c linear.c  computed by libraries (layer_weights.c, layer_weights.cu: around them; conv.cu: a
 *                      convolution without cuDNN; product.cu: a product without cuBLASLt)
 *     batchnorm.cu relu.cu (cast too) add.cu pool.cu flatten.cu softmax.cu loss.cu   computed by our own
 *                      kernels
 *     pixels.cu        images from stored bytes
 *     flat.cu          mean, step, lin, finite: the bits of ops/mean.c and ops/optimizer.c; ticks
 *
 * Every call enqueues and returns. C files include cuda_runtime_api.h; kernels are started through element.h,
 * so that they also compile for the CPU (tests/fake_gpu). */
#ifndef OPS_CUDA_CUDA_H
#define OPS_CUDA_CUDA_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <stdbool.h>

#include "entrain/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ENI_CUDA_ALIGN = 256 };

typedef struct eni_cuda_events eni_cuda_events;         /* state of events in graphs: streams.c */
typedef struct eni_cuda_registered eni_cuda_registered; /* ranges of page-locked host memory: registered.c */
typedef struct eni_cuda_staging eni_cuda_staging;       /* copies of memory that is not: staging.c */

struct en_ctx {
    int index;      /* for cudaSetDevice, before anything else: a process may hold contexts on several GPUs */
    uint32_t flags; /* EN_OPEN_* */
    cudaStream_t stream[EN_STREAMS];
    cublasLtHandle_t blas;
    cudnnHandle_t dnn; /* bound to stream[EN_STREAM_COMPUTE] */
    int cores;         /* multiprocessors: limit a kernel's grid */
    bool is_hung;      /* it did not answer in time: memory that it may still reach is not freed */
    bool has_failed;   /* a device error was logged: see eni_cuda_check */
    bool is_capturing;
    bool is_capture_broken; /* a call in it failed: it will not become a graph */
    uint32_t captured;      /* bit q: stream q is in the capture */
    uint64_t capture;       /* number of the latest capture; an event remembers its own */
    eni_cuda_events *events;
    eni_cuda_registered *registered;
    eni_cuda_staging *staging;
    char name[88]; /* "cuda:0 (NVIDIA H100 80GB HBM3)": for errors */
    char description[256];
};

/* The memory that a kernel keeps for a plan of one operation: `own`. */
typedef struct eni_cuda_kernel eni_cuda_kernel;

struct en_plan {
    en_op op;
    en_extent y;
    en_ctx *ctx; /* borrowed; outlives the plan */
    const eni_cuda_kernel *kernel;
    void *own;
    en_plan_info info;
};

/* One operation on this device. Run calls as in en_device. */
struct eni_cuda_kernel {
    /* Fills plan->own and plan->info; discard also cleans up after its failure. NULL: nothing to prepare. */
    en_status (*prepare)(en_plan *plan);
    void (*discard)(en_plan *plan); /* NULL: nothing to free; plan->own may be NULL */
    en_status (*forward)(en_plan *plan, const en_args *args);
    en_status (*backward_weights)(en_plan *plan, const en_args *args); /* NULL without weights */
    en_status (*backward_data)(en_plan *plan, const en_args *args);
};

extern const eni_cuda_kernel eni_cuda_conv, eni_cuda_linear, eni_cuda_relu, eni_cuda_pool, eni_cuda_flatten,
    eni_cuda_log_softmax, eni_cuda_nll, eni_cuda_cross_entropy, eni_cuda_mse, eni_cuda_cast,
    eni_cuda_batchnorm, eni_cuda_add, eni_cuda_avgpool;

/* op_plan.c: the six functions of en_device that concern plans. */
en_status eni_cuda_plan(en_ctx *ctx, const en_op *op, en_plan **plan_out);
void eni_cuda_plan_free(en_plan *plan);
void eni_cuda_plan_info(const en_plan *plan, en_plan_info *info_out);
en_status eni_cuda_forward(en_plan *plan, const en_args *args);
en_status eni_cuda_backward_weights(en_plan *plan, const en_args *args);
en_status eni_cuda_backward_data(en_plan *plan, const en_args *args);

/* EN_OK, or logs the failure with the library's name for it ("forward of conv2d: CUDA error 700, an illegal
 * memory access was encountered, on cuda:0 (NVIDIA H100)") and returns EN_EIO, or EN_ENOMEM. After the first
 * error nothing more is logged, and all calls fail. While work is captured only the capture fails, not the
 * device: EN_EUNSUPPORTED, also from eni_cuda_capture_end. context.c. */
en_status eni_cuda_check(en_ctx *ctx, cudaError_t error, const char *doing);
en_status eni_cuda_check_dnn(en_ctx *ctx, cudnnStatus_t status, const char *doing);
en_status eni_cuda_check_blas(en_ctx *ctx, cublasStatus_t status, const char *doing);
/* The same for a library without a function of its own; `text` is its message. */
en_status eni_cuda_fail(en_ctx *ctx, const char *library, int code, const char *text, const char *doing);

/* Makes room for one more element of `size` bytes after the `used` ones; there is room for *room. */
en_status eni_cuda_grow(void **array, int used, int *room, size_t size);

/* eni_error("cuda", ..) for .cu files, where log.h does not compile. */
void eni_cuda_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The stream of the run calls. */
static inline cudaStream_t eni_cuda_stream(const en_plan *plan)
{
    return plan->ctx->stream[EN_STREAM_COMPUTE];
}

/* Selects this context's GPU on the calling thread; cheap if it is selected already. context.c. */
en_status eni_cuda_select(en_ctx *ctx);

/* staging.c: copies from and to host memory that is not page-locked, through memory that is. Data on the way
 * out arrives at eni_cuda_staging_drain, which waits for COMPUTE. */
en_status eni_cuda_staging_copy(en_ctx *ctx, void *dst, const void *src, uint64_t bytes, int direction);
en_status eni_cuda_staging_drain(en_ctx *ctx);
void eni_cuda_staging_close(en_ctx *ctx);

/* registered.c: how many bytes from `memory` on, at most `bytes`, lie in one registration. A copy must not
 * cross from one into the next. */
uint64_t eni_cuda_registered_part(const en_ctx *ctx, const void *memory, uint64_t bytes);
en_status eni_cuda_register_memory(en_ctx *ctx, void *memory, uint64_t bytes);
void eni_cuda_unregister_memory(en_ctx *ctx, void *memory);
void eni_cuda_registered_close(en_ctx *ctx);

/* streams.c */
en_status eni_cuda_stream_copy(en_ctx *ctx, int stream, void *dst, const void *src, uint64_t bytes,
                               int direction);
en_status eni_cuda_stream_zero(en_ctx *ctx, int stream, void *dst, uint64_t bytes);
en_status eni_cuda_event_new(en_ctx *ctx, en_event **event_out);
en_status eni_cuda_timer_new(en_ctx *ctx, en_event **event_out);
en_status eni_cuda_elapsed(en_event *begin, en_event *end, int64_t *ns_out);
void eni_cuda_event_free(en_event *event);
en_status eni_cuda_event_record(en_event *event, int stream);
en_status eni_cuda_wait_event(en_ctx *ctx, int stream, en_event *event);
en_status eni_cuda_poll(en_event *event);
/* Blocks until the stream has done all its work, for five minutes at most; errors as eni_cuda_check.
 * cudaStreamSynchronize would wait forever for a GPU that hangs. */
en_status eni_cuda_finish(en_ctx *ctx, cudaStream_t stream, const char *doing);

en_status eni_cuda_events_open(en_ctx *ctx);
void eni_cuda_events_close(en_ctx *ctx);
void eni_cuda_events_begin(en_ctx *ctx); /* a capture begins */
/* The events that were set in the capture that has just ended, each as often as it was set; the caller frees
 * them with eni_free. A launch of the graph updates them. */
typedef struct eni_cuda_set {
    en_event *event;
    bool is_ticked;
} eni_cuda_set;
eni_cuda_set *eni_cuda_events_take(en_ctx *ctx, int *n_out); /* NULL if it set none */
void eni_cuda_events_launched(const eni_cuda_set *set, int n, cudaEvent_t behind);
/* Called before the graph with these events is freed. */
void eni_cuda_events_let_go(en_ctx *ctx, const eni_cuda_set *set, int n, cudaEvent_t behind);
/* flat.cu: *word += 1, seen by the host. */
en_status eni_cuda_tick(en_ctx *ctx, cudaStream_t stream, uint32_t *word);

/* flat.cu */
en_status eni_cuda_mean_step(en_ctx *ctx, int stream, const en_gpu_step *step);
en_status eni_cuda_lin(en_ctx *ctx, int stream, float *y, float a, const float *x, float b, uint64_t count);
en_status eni_cuda_check_finite(en_ctx *ctx, int stream, const float *v, uint64_t count, uint32_t *flag);

/* pixels.cu */
en_status eni_cuda_pixels(en_ctx *ctx, int stream, const en_gpu_pixels *given);

/* capture.c */
en_status eni_cuda_capture_begin(en_ctx *ctx);
en_status eni_cuda_capture_end(en_ctx *ctx, en_capture **graph_out);
en_status eni_cuda_launch(en_capture *graph);
void eni_cuda_graph_free(en_capture *graph);

/* facts.c */
en_status eni_cuda_count(const en_device_host *host, int32_t *n_out);
en_status eni_cuda_facts(const en_device_host *host, int32_t index, en_gpu_facts *facts_out);

/* nccl_group.c */
en_status eni_cuda_group_id(const en_device_host *host, uint8_t id_out[EN_GPU_GROUP_ID]);
en_status eni_cuda_group_open(en_ctx *ctx, const uint8_t id[EN_GPU_GROUP_ID], int rank, int nranks,
                              en_status (*alive)(void *user), void *user, en_group **group_out);
en_status eni_cuda_group_sum(en_group *group, float *data, uint64_t count, const float *scale);
en_status eni_cuda_group_broadcast(en_group *group, float *data, uint64_t count);
en_status eni_cuda_group_poll(en_group *group);
void eni_cuda_group_abort(en_group *group);
void eni_cuda_group_close(en_group *group);
const char *eni_cuda_group_version(void);

/* ---- parts of conv2d and linear: layer_weights.cu, relu.cu, conv.cu ---- */

/* Weights (O, I, taps) float32 to (O, taps, I) in the op's type, and the bias, if the op has one, to that
 * type. */
en_status eni_cuda_weights_in(const en_plan *plan, const float *w, const float *b, void *w_to, void *b_to);

/* The way back: dw (O, taps, I) of `dtype` to (O, I, taps) float32, and the sum of `nparts` rows of parts to
 * db; both divided by the loss scale. dw_from NULL, nparts 0: skips that one. */
en_status eni_cuda_weights_out(const en_plan *plan, const void *dw_from, uint32_t dtype, const float *parts,
                               int64_t nparts, const en_args *args);

/* With EN_OP_FUSE_RELU zeroes dy where y is not positive. If `sums` is not NULL, sums dy over each of
 * `nparts` shares of the rows: sums (nparts, O). One part is the gradient of the bias itself: divided by the
 * loss scale. */
en_status eni_cuda_columns(const en_plan *plan, const en_args *args, float *sums, int64_t nparts);
int64_t eni_cuda_columns_parts(const en_plan *plan); /* a good number for speed */

/* conv.cu: x to windows (N*P*Q, KH*KW*I), and the sum of windows to dx. */
en_status eni_cuda_unfold_x(const en_plan *plan, const void *x, void *windows);
en_status eni_cuda_fold_dx(const en_plan *plan, const void *windows, void *dx);

/* y += b, unless it has the bias, then relu: as far as the op's flags ask for them, in place. */
en_status eni_cuda_bias_relu(const en_plan *plan, const en_args *args, bool has_bias);

#ifdef __cplusplus
}
#endif
#endif
