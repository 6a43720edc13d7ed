/* conv.c - convolution: cuDNN's three passes; the only file that calls cuDNN.
 *
 *     forward             w to (O, KH, KW, I)  ->  cuDNN, with the bias if supported  ->  relu
 *     backward_weights    mask and sum dy      ->  cuDNN  ->  dw to (O, I, KH, KW), db
 *     backward_data       cuDNN, on the weights that forward left in `saved`
 *
 * It uses the legacy calls, which C can use without describing graphs. The first algorithm named by the
 * heuristic that runs is taken (nothing is timed: all ranks and all runs choose alike): each is tried once,
 * while planning, on memory of its own. Those that transform (FFT, Winograd) are skipped: they round more,
 * and have no NHWC.
 *
 * A pass that no algorithm supports (a type, a layout, the same bits twice) is one matrix product:
 *
 *     x (N, H, W, I)  --unfold-->  windows (N*P*Q, KH*KW*I)       y = windows w^T + b
 *                                                                 dw = dy^T windows
 *     dx  <--fold: adds, in a fixed order--  windows              windows = dy w
 *
 * Weights in (O, KH, KW, I). It costs a copy of x, KH * KW times as large, in the workspace. */
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "ops/cuda/layer_weights.h"
#include "ops/cuda/product.h"

enum { MAX_CHOICES = 16 };
static const uint64_t max_workspace = 256ull << 20;

/* One algorithm of a pass; `algo` is the enum of that pass. */
typedef struct conv_choice {
    int algo;
    bool is_deterministic;
    cudnnMathType_t math;
    size_t bytes;
} conv_choice;

/* A pass as a product of windows. */
typedef struct unfold {
    eni_cuda_product product;
    uint64_t product_at; /* its own workspace, after the windows */
    uint64_t bytes;      /* of workspace; 0: not in use */
} unfold;

typedef struct conv {
    eni_cuda_layer layer;
    cudnnTensorDescriptor_t x, y, bias;
    cudnnFilterDescriptor_t w;
    cudnnActivationDescriptor_t activation;
    cudnnConvolutionDescriptor_t how[ENI_CUDA_PASSES]; /* one each, with its kind of arithmetic */
    conv_choice pass[ENI_CUDA_PASSES];
    unfold unfold[ENI_CUDA_PASSES]; /* in place of cuDNN, if it has bytes */
    bool is_fused;                  /* forward adds the bias, if there is one */
} conv;

/* The memory for trying algorithms, and the addresses of a pass. */
typedef struct conv_memory {
    const void *x, *w, *b, *dy;
    void *y, *dx, *dw, *workspace;
} conv_memory;

static cudnnDataType_t type_of(const en_plan *plan)
{
    return plan->op.dtype == EN_BF16  ? CUDNN_DATA_BFLOAT16
           : plan->op.dtype == EN_F16 ? CUDNN_DATA_HALF
                                      : CUDNN_DATA_FLOAT;
}

/* ---- descriptors --------------------------------------------------------------------------------------- */

static cudnnMathType_t math_of(const en_plan *plan)
{
    if (plan->op.dtype != EN_F32) return CUDNN_TENSOR_OP_MATH;
    return plan->ctx->flags & EN_OPEN_TF32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
}

static cudnnStatus_t describe_pass(const en_plan *plan, cudnnConvolutionDescriptor_t *how)
{
    const en_op *op = &plan->op;
    const int64_t h = op->x.h + 2 * op->pad_h,
                  w = op->x.w + 2 * op->pad_w; /* a larger stride equals this one */
    const int stride_h = (int)(op->stride_h < h ? op->stride_h : h),
              stride_w = (int)(op->stride_w < w ? op->stride_w : w);
    cudnnStatus_t st = cudnnCreateConvolutionDescriptor(how);
    if (!st)
        st = cudnnSetConvolution2dDescriptor(*how, (int)op->pad_h, (int)op->pad_w, stride_h, stride_w, 1, 1,
                                             CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
    return st ? st : cudnnSetConvolutionMathType(*how, math_of(plan));
}

static cudnnStatus_t describe_tensor(const en_plan *plan, en_extent e, cudnnTensorDescriptor_t *tensor)
{
    cudnnStatus_t st = cudnnCreateTensorDescriptor(tensor);
    return st ? st
              : cudnnSetTensor4dDescriptor(*tensor, CUDNN_TENSOR_NHWC, type_of(plan), (int)e.n, (int)e.c,
                                           (int)e.h, (int)e.w);
}

static cudnnStatus_t describe(const en_plan *plan, conv *own)
{
    const en_op *op = &plan->op;
    cudnnStatus_t st = describe_tensor(plan, op->x, &own->x);
    if (!st) st = describe_tensor(plan, plan->y, &own->y);
    if (!st) st = describe_tensor(plan, (en_extent){1, 1, 1, op->channels}, &own->bias);
    if (!st) st = cudnnCreateFilterDescriptor(&own->w);
    if (!st)
        st = cudnnSetFilter4dDescriptor(own->w, type_of(plan), CUDNN_TENSOR_NHWC, (int)op->channels,
                                        (int)op->x.c, (int)op->kernel_h, (int)op->kernel_w);
    if (!st) st = cudnnCreateActivationDescriptor(&own->activation);
    if (!st)
        st = cudnnSetActivationDescriptor(own->activation, CUDNN_ACTIVATION_IDENTITY, CUDNN_NOT_PROPAGATE_NAN,
                                          0.0);
    for (int i = 0; i < ENI_CUDA_PASSES && !st; i++)
        st = describe_pass(plan, &own->how[i]);
    return st;
}

/* ---- running a pass ------------------------------------------------------------------------------------ */

static cudnnStatus_t run_forward(const en_plan *plan, const conv *own, const conv_choice *c,
                                 const conv_memory *m)
{
    const float one = 1.0f, zero = 0.0f;
    if (own->is_fused)
        return cudnnConvolutionBiasActivationForward(
            plan->ctx->dnn, &one, own->x, m->x, own->w, m->w, own->how[ENI_CUDA_FORWARD],
            (cudnnConvolutionFwdAlgo_t)c->algo, m->workspace, c->bytes, &zero, own->y, m->y, own->bias, m->b,
            own->activation, own->y, m->y);
    return cudnnConvolutionForward(plan->ctx->dnn, &one, own->x, m->x, own->w, m->w,
                                   own->how[ENI_CUDA_FORWARD], (cudnnConvolutionFwdAlgo_t)c->algo,
                                   m->workspace, c->bytes, &zero, own->y, m->y);
}

static cudnnStatus_t run_pass(const en_plan *plan, const conv *own, int pass, const conv_choice *c,
                              const conv_memory *m)
{
    const float one = 1.0f, zero = 0.0f;
    cudnnHandle_t dnn = plan->ctx->dnn;
    switch (pass) {
    case ENI_CUDA_FORWARD: return run_forward(plan, own, c, m);
    case ENI_CUDA_WEIGHTS:
        return cudnnConvolutionBackwardFilter(dnn, &one, own->x, m->x, own->y, m->dy, own->how[pass],
                                              (cudnnConvolutionBwdFilterAlgo_t)c->algo, m->workspace,
                                              c->bytes, &zero, own->w, m->dw);
    default:
        return cudnnConvolutionBackwardData(dnn, &one, own->w, m->w, own->y, m->dy, own->how[pass],
                                            (cudnnConvolutionBwdDataAlgo_t)c->algo, m->workspace, c->bytes,
                                            &zero, own->x, m->dx);
    }
}

/* ---- choosing algorithms ------------------------------------------------------------------------------- */

/* The algorithms of each pass that do not transform, by cuDNN's numbers. */
enum { DIRECT = 4 };
static const char *const direct[ENI_CUDA_PASSES][DIRECT] = {
    [ENI_CUDA_FORWARD] = {"implicit_gemm", "implicit_precomp_gemm", "gemm", "direct"},
    [ENI_CUDA_WEIGHTS] = {"algo_0", "algo_1", NULL, "algo_3"},
    [ENI_CUDA_DATA] = {"algo_0", "algo_1"}};

/* The algorithms among these that the heuristic of a pass names, in its order. */
#define LIST(type, ask, from, with, to)                                                                      \
    do {                                                                                                     \
        type found[MAX_CHOICES];                                                                             \
        if (ask(plan->ctx->dnn, from, with, own->how[pass], to, MAX_CHOICES, &nfound, found)) return 0;      \
        for (int i = 0; i < nfound; i++)                                                                     \
            if (!found[i].status && (int)found[i].algo < DIRECT && direct[pass][found[i].algo] != NULL)      \
                list[n++] = (conv_choice){(int)found[i].algo, found[i].determinism == CUDNN_DETERMINISTIC,   \
                                          found[i].mathType, found[i].memory};                               \
    } while (0)

static int list_choices(const en_plan *plan, const conv *own, int pass, conv_choice *list)
{
    int nfound = 0, n = 0;
    switch (pass) {
    case ENI_CUDA_FORWARD:
        LIST(cudnnConvolutionFwdAlgoPerf_t, cudnnGetConvolutionForwardAlgorithm_v7, own->x, own->w, own->y);
        break;
    case ENI_CUDA_WEIGHTS:
        LIST(cudnnConvolutionBwdFilterAlgoPerf_t, cudnnGetConvolutionBackwardFilterAlgorithm_v7, own->x,
             own->y, own->w);
        break;
    default:
        LIST(cudnnConvolutionBwdDataAlgoPerf_t, cudnnGetConvolutionBackwardDataAlgorithm_v7, own->w, own->y,
             own->x);
    }
    return n;
}

static cudnnStatus_t size_of_workspace(const en_plan *plan, const conv *own, int pass, conv_choice *c)
{
    cudnnHandle_t dnn = plan->ctx->dnn;
    switch (pass) {
    case ENI_CUDA_FORWARD:
        return cudnnGetConvolutionForwardWorkspaceSize(dnn, own->x, own->w, own->how[pass], own->y,
                                                       (cudnnConvolutionFwdAlgo_t)c->algo, &c->bytes);
    case ENI_CUDA_WEIGHTS:
        return cudnnGetConvolutionBackwardFilterWorkspaceSize(
            dnn, own->x, own->y, own->how[pass], own->w, (cudnnConvolutionBwdFilterAlgo_t)c->algo, &c->bytes);
    default:
        return cudnnGetConvolutionBackwardDataWorkspaceSize(
            dnn, own->w, own->y, own->how[pass], own->x, (cudnnConvolutionBwdDataAlgo_t)c->algo, &c->bytes);
    }
}

/* EN_EUNSUPPORTED, nothing logged, if this one does not run. */
static en_status try_choice(en_plan *plan, conv *own, int pass, conv_choice *c, conv_memory memory)
{
    en_ctx *ctx = plan->ctx;
    if (ctx->flags & EN_OPEN_DETERMINISTIC && !c->is_deterministic) return EN_EUNSUPPORTED;
    /* Without TF32 we choose the kind of arithmetic, else the heuristic does. */
    const bool is_exact = math_of(plan) == CUDNN_FMA_MATH;
    if (cudnnSetConvolutionMathType(own->how[pass], is_exact ? CUDNN_FMA_MATH : c->math))
        return EN_EUNSUPPORTED;
    if (size_of_workspace(plan, own, pass, c) || c->bytes > max_workspace) return EN_EUNSUPPORTED;
    EN_TRY(
        eni_cuda_check(ctx, cudaMalloc(&memory.workspace, c->bytes ? c->bytes : 1), "trying a convolution"));
    const cudnnStatus_t st = run_pass(plan, own, pass, c, &memory);
    const en_status finished = eni_cuda_finish(ctx, eni_cuda_stream(plan), "trying a convolution");
    if (!ctx->is_hung) cudaFree(memory.workspace);
    EN_TRY(finished);
    return st ? EN_EUNSUPPORTED : EN_OK;
}

static en_status choose(en_plan *plan, conv *own, int pass, const conv_memory *memory)
{
    conv_choice list[MAX_CHOICES];
    if (cudnnSetConvolutionMathType(own->how[pass], math_of(plan))) return EN_EUNSUPPORTED;
    const int n = list_choices(plan, own, pass, list);
    for (int i = 0; i < n; i++) {
        const en_status st = try_choice(plan, own, pass, &list[i], *memory);
        own->pass[pass] = list[i];
        if (st != EN_EUNSUPPORTED) return st;
    }
    return EN_EUNSUPPORTED;
}

/* With the bias inside if some algorithm supports that. A relu inside only takes the option
 * NOT_PROPAGATE_NAN: a separate relu keeps NaN visible, so we run it ourselves. */
static en_status choose_forward(en_plan *plan, conv *own, const conv_memory *memory)
{
    own->is_fused = plan->op.flags & EN_OP_BIAS && !(plan->op.flags & EN_OP_FUSE_RELU);
    if (own->is_fused) {
        const en_status st = choose(plan, own, ENI_CUDA_FORWARD, memory);
        if (st != EN_EUNSUPPORTED) return st;
        own->is_fused = false;
    }
    return choose(plan, own, ENI_CUDA_FORWARD, memory);
}

/* EN_EUNSUPPORTED, nothing logged: more than 2^31 elements of windows. */
static en_status init_unfold(const en_plan *plan, conv *own, int pass)
{
    const int64_t rows = plan->y.n * plan->y.h * plan->y.w;
    const int64_t cols = plan->op.kernel_h * plan->op.kernel_w * plan->op.x.c;
    unfold *u = &own->unfold[pass];
    if (rows > INT32_MAX / cols) return EN_EUNSUPPORTED; /* kernels count in 32 bits */
    EN_TRY(eni_cuda_product_init(plan, pass, rows, cols, false, &u->product));
    u->product_at = eni_round_up((uint64_t)(rows * cols) * en_dtype_bytes(plan->op.dtype), ENI_CUDA_ALIGN);
    u->bytes = u->product_at + u->product.workspace_bytes;
    if (pass == ENI_CUDA_FORWARD) own->is_fused = u->product.has_bias;
    return EN_OK;
}

static void name_pass(const conv *own, int pass, char name[48])
{
    const char *behind = pass == ENI_CUDA_FORWARD && own->is_fused ? "+bias" : "";
    if (own->unfold[pass].bytes > 0)
        snprintf(name, 48, "unfold:%s", own->unfold[pass].product.name);
    else
        snprintf(name, 48, "cudnn:%s%s", direct[pass][own->pass[pass].algo], behind);
}

static void name_shape(const en_plan *plan, int pass, char text[256])
{
    static const char *const names[ENI_CUDA_PASSES] = {"forward", "backward_weights", "backward_data"};
    const en_op *op = &plan->op;
    snprintf(text, 256,
             "cuDNN %zu has no %s%s for a convolution of (%lld, %lld, %lld, %lld) to %lld channels, window "
             "%lld x %lld, type %u",
             cudnnGetVersion(), plan->ctx->flags & EN_OPEN_DETERMINISTIC ? "deterministic " : "", names[pass],
             (long long)op->x.n, (long long)op->x.h, (long long)op->x.w, (long long)op->x.c,
             (long long)op->channels, (long long)op->kernel_h, (long long)op->kernel_w, op->dtype);
}

static en_status fall_back(const en_plan *plan, conv *own, int pass)
{
    char shape[256];
    name_shape(plan, pass, shape);
    const en_status st = init_unfold(plan, own, pass);
    if (st == EN_OK) eni_info("cuda", "%s: using a matrix product, which is slow", shape);
    if (st == EN_EUNSUPPORTED)
        eni_error("cuda", "%s, and it is too large for a matrix product: use a smaller batch", shape);
    return st;
}

static en_status choose_all(en_plan *plan, conv *own, const conv_memory *memory)
{
    char *const names[ENI_CUDA_PASSES] = {plan->info.forward, plan->info.backward_weights,
                                          plan->info.backward_data};
    const uint32_t flags = plan->op.flags;
    const int npasses = flags & EN_OP_FORWARD_ONLY ? 1 : flags & EN_OP_NO_DX ? 2 : 3;
    for (int pass = 0; pass < npasses; pass++) {
        en_status st =
            pass == ENI_CUDA_FORWARD ? choose_forward(plan, own, memory) : choose(plan, own, pass, memory);
        if (st == EN_EUNSUPPORTED) st = fall_back(plan, own, pass);
        if (st != EN_OK) return st;
        name_pass(own, pass, names[pass]);
    }
    return EN_OK;
}

/* Reads zeros and writes zeros, as many as the largest tensor has. */
static en_status choose_on_memory(en_plan *plan, conv *own)
{
    const en_op *op = &plan->op;
    const int64_t counts[] = {en_extent_count(op->x), en_extent_count(plan->y), en_op_weights(op),
                              op->channels};
    int64_t largest = 0;
    for (int i = 0; i < 4; i++)
        if (counts[i] > largest) largest = counts[i];
    const size_t bytes = (size_t)largest * en_dtype_bytes(op->dtype);
    const char *doing = "memory to try convolutions on";
    void *from = NULL, *to = NULL; /* apart: a kernel that reads past one leaves its allocation */
    en_status st = eni_cuda_check(plan->ctx, cudaMalloc(&from, bytes), doing);
    if (st == EN_OK) st = eni_cuda_check(plan->ctx, cudaMalloc(&to, bytes), doing);
    if (st == EN_OK)
        st = eni_cuda_check(plan->ctx, cudaMemsetAsync(from, 0, bytes, eni_cuda_stream(plan)), doing);
    if (st == EN_OK)
        st = eni_cuda_check(plan->ctx, cudaMemsetAsync(to, 0, bytes, eni_cuda_stream(plan)), doing);
    const conv_memory memory = {.x = from, .w = from, .b = from, .dy = from, .y = to, .dx = to, .dw = to};
    if (st == EN_OK) st = choose_all(plan, own, &memory);
    const en_status finished = eni_cuda_finish(plan->ctx, eni_cuda_stream(plan), doing);
    if (st == EN_OK) st = finished;
    if (plan->ctx->is_hung) return st;
    cudaFree(from);
    cudaFree(to);
    return st;
}

/* ---- the kernel ---------------------------------------------------------------------------------------- */

static en_status conv_prepare(en_plan *plan)
{
    conv *own = plan->own = eni_alloc(sizeof *own);
    if (!own) return EN_ENOMEM;
    EN_TRY(eni_cuda_check_dnn(plan->ctx, describe(plan, own), "describing a convolution"));
    EN_TRY(choose_on_memory(plan, own));
    uint64_t scratch = 0;
    for (int i = 0; i < ENI_CUDA_PASSES; i++) {
        const uint64_t bytes = own->unfold[i].bytes > 0 ? own->unfold[i].bytes : own->pass[i].bytes;
        if (bytes > scratch) scratch = bytes;
    }
    const bool is_wide = own->unfold[ENI_CUDA_WEIGHTS].bytes > 0; /* cuDNN gives dw in the type of dy */
    eni_cuda_layer_init(plan, is_wide ? (uint32_t)EN_F32 : plan->op.dtype, scratch, &own->layer);
    return EN_OK;
}

static void conv_discard(en_plan *plan)
{
    conv *own = plan->own;
    if (!own) return;
    for (int i = 0; i < ENI_CUDA_PASSES; i++) {
        if (own->how[i]) cudnnDestroyConvolutionDescriptor(own->how[i]);
        eni_cuda_product_fini(&own->unfold[i].product);
    }
    if (own->activation) cudnnDestroyActivationDescriptor(own->activation);
    if (own->w) cudnnDestroyFilterDescriptor(own->w);
    cudnnTensorDescriptor_t const tensors[] = {own->x, own->y, own->bias};
    for (int i = 0; i < 3; i++)
        if (tensors[i]) cudnnDestroyTensorDescriptor(tensors[i]);
    eni_free(own);
}

static en_status run_unfold(const en_plan *plan, const unfold *u, int pass, const conv_memory *m,
                            const char *doing)
{
    void *windows = m->workspace, *space = (char *)m->workspace + u->product_at;
    const eni_cuda_product *p = &u->product;
    if (pass != ENI_CUDA_DATA) EN_TRY(eni_cuda_unfold_x(plan, m->x, windows));
    switch (pass) {
    case ENI_CUDA_FORWARD:
        return eni_cuda_product_run(plan, p, m->w, windows, p->has_bias ? m->b : NULL, m->y, space, doing);
    case ENI_CUDA_WEIGHTS: return eni_cuda_product_run(plan, p, windows, m->dy, NULL, m->dw, space, doing);
    default: EN_TRY(eni_cuda_product_run(plan, p, m->w, m->dy, NULL, windows, space, doing));
    }
    return eni_cuda_fold_dx(plan, windows, m->dx);
}

static en_status run_chosen(const en_plan *plan, const conv *own, int pass, const conv_memory *m,
                            const char *doing)
{
    if (own->unfold[pass].bytes > 0) return run_unfold(plan, &own->unfold[pass], pass, m, doing);
    return eni_cuda_check_dnn(plan->ctx, run_pass(plan, own, pass, &own->pass[pass], m), doing);
}

static en_status conv_forward(en_plan *plan, const en_args *args)
{
    const conv *own = plan->own;
    conv_memory memory = {.x = args->x, .y = args->y, .workspace = eni_cuda_layer_scratch(&own->layer, args)};
    EN_TRY(eni_cuda_layer_weights(plan, &own->layer, args, true, &memory.w, &memory.b));
    EN_TRY(run_chosen(plan, own, ENI_CUDA_FORWARD, &memory, "forward of conv2d"));
    return eni_cuda_bias_relu(plan, args, own->is_fused);
}

static en_status conv_backward_weights(en_plan *plan, const en_args *args)
{
    const conv *own = plan->own;
    const bool has_bias = (plan->op.flags & EN_OP_BIAS) != 0;
    const conv_memory memory = {.x = args->x,
                                .dy = args->dy,
                                .dw = eni_cuda_layer_dw(&own->layer, args),
                                .workspace = eni_cuda_layer_scratch(&own->layer, args)};
    EN_TRY(eni_cuda_layer_columns(plan, &own->layer, args, has_bias));
    EN_TRY(run_chosen(plan, own, ENI_CUDA_WEIGHTS, &memory, "backward_weights of conv2d"));
    return eni_cuda_layer_out(plan, &own->layer, args, has_bias);
}

static en_status conv_backward_data(en_plan *plan, const en_args *args)
{
    const conv *own = plan->own;
    const void *no_bias;
    conv_memory memory = {
        .dy = args->dy, .dx = args->dx, .workspace = eni_cuda_layer_scratch(&own->layer, args)};
    EN_TRY(eni_cuda_layer_weights(plan, &own->layer, args, false, &memory.w, &no_bias));
    return run_chosen(plan, own, ENI_CUDA_DATA, &memory, "backward_data of conv2d");
}

const eni_cuda_kernel eni_cuda_conv = {
    .prepare = conv_prepare,
    .discard = conv_discard,
    .forward = conv_forward,
    .backward_weights = conv_backward_weights,
    .backward_data = conv_backward_data,
};
