/* device.h - the contract of a device: memory, and operations planned once and run many times.
 *
 * A device library is one table, found through one function, en_device_entry(). `ref` (plain loops, the oracle) is linked
 * in; `cpu` (oneDNN) is a .so, loaded after the thread environment is set; the GPU library is another. All three have files
 * of the same names.
 *
 * The lifetime of an operation:
 *
 *     en_op op = {.size = sizeof op, .kind = EN_OP_LINEAR, .dtype = EN_F32, .flags = EN_OP_BIAS,
 *                 .x = {64, 1, 1, 800}, .channels = 500};
 *     dev->plan(ctx, &op, &plan);              allocates, compiles, picks algorithms; may be slow
 *     dev->plan_info(plan, &info);             the caller provides `saved` and `workspace`
 *     for each step:
 *         dev->forward(plan, &args);           writes y (and saved)
 *         dev->backward_weights(plan, &args);  overwrites dw, db
 *         dev->backward_data(plan, &args);     overwrites dx; the last to read w: its bucket can leave now
 *
 * A plan is for exactly the extents of its op: a smaller last batch, or evaluation with a larger one, needs another plan. The
 * three run calls never allocate and never change the plan; they are enqueued in call order, like copy and zero, on a GPU in
 * EN_STREAM_COMPUTE (gpu.h); on host devices they are complete on return.
 *
 * Layouts. Activations are (N, H, W, C). Weights, biases and their gradients have PyTorch's shapes and order (convolution
 * (O, I, KH, KW), linear (O, I)), because the flat vector is exchanged and saved; a device that prefers another layout
 * converts inside its run calls. All pointers of a run are device addresses, aligned to `align` bytes for tensors and to 4
 * bytes for weights, biases and their gradients (views of the flat vector); callers may add offsets to them but dereference
 * them only if EN_DEVICE_HOST is set.
 *
 * Threads: a context and its plans belong to one thread at a time. One process may hold several contexts.
 *
 * Growth: `abi` is the major version, `size` the minor: tables and structs only grow at their end, and a reader never reads
 * beyond the size that the writer stated. */
#ifndef ENTRAIN_DEVICE_H
#define ENTRAIN_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "entrain/gpu.h"
#include "entrain/op.h"
#include "entrain/status.h"
#include "entrain/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EN_DEVICE_ABI 2u

/* ---- plans --------------------------------------------------------------------------------------------- */

typedef struct en_ctx en_ctx;   /* an opened device: its memory, its stream, its threads */
typedef struct en_plan en_plan; /* one operation for fixed extents */

/* A plan's memory needs, and the implementations chosen. */
typedef struct en_plan_info {
    uint32_t size;            /* in: sizeof(en_plan_info); out: bytes filled */
    uint64_t saved_bytes;     /* written by forward, read by the backward calls of the same step */
    uint64_t workspace_bytes; /* scratch of one call; all plans of a context may share one area */
    char forward[48];         /* the library's name of the implementation: "brgconv:avx512_core", "loops" */
    char backward_weights[48];
    char backward_data[48]; /* empty: no backward_data */
    uint64_t kept_bytes;    /* of what forward and backward_data make of w; 0: nothing worth keeping */
} en_plan_info;

/* The tensors of one run. A call reads only the fields it needs; the others may be NULL. */
typedef struct en_args {
    uint32_t size; /* sizeof(en_args) */
    const void *x; /* forward; backward_weights; backward_data of mse */
    void *y;       /* written by forward; read by backward of relu, log_softmax and with EN_OP_FUSE_RELU */
    const void *w, *b;
    void *dy; /* gradient of y; read only, but see EN_OP_FUSE_RELU */
    void *dx, *dw, *db;
    const void *target; /* losses */
    void *saved, *workspace;
    /* Device address of a power of two, or NULL: 1. A loss multiplies its dx by it; backward_weights divides dw and db by
     * it. Exact, unless something overflows: then dw or db is not finite. */
    const float *loss_scale;
    const void *x2;    /* add, EN_OP_FUSE_ADD: of x's extent and type */
    float *stats;      /* batchnorm */
    const char *label; /* the caller's name of this operation, for messages; or NULL */
    /* For calls of forward, or of backward_data, with the w of this plan's last such call: what that call made of it is still
     * in `kept`, (kept_bytes) of this plan alone, or NULL. */
    void *kept;
    uint32_t is_same_w;
} en_args;

/* ---- the device -------------------------------------------------------------------------------------- */

/* Services of the program that loads a device library. Lives as long as the process. */
typedef struct en_device_host {
    uint32_t abi, size;
    void (*log)(int level /* 0 error .. 4 trace */, const char *subsystem, const char *text);
} en_device_host;

typedef struct en_device_config {
    uint32_t size;
    int32_t index;   /* which one of several devices of this kind: cuda:1 */
    int32_t threads; /* host threads for compute, >= 1; results are repeatable at equal threads */
    const en_device_host *host;
    uint32_t flags; /* EN_OPEN_* */
} en_device_config;

enum {
    EN_OPEN_TF32 = 1,          /* float32 products may round their factors to 10 bits if that is faster */
    EN_OPEN_DETERMINISTIC = 2, /* the same bits in every run; host devices always do */
    /* Host devices: float32 products round their factors to bf16, and sum in 32 bits. open returns EN_EUNSUPPORTED,
     * logged with what is missing, where that is not possible. A GPU has a type of activations for it: op.h. */
    EN_OPEN_BF16 = 4
};

/* Device addresses are host addresses: any memory of the process may be passed. */
enum { EN_DEVICE_HOST = 1 };

enum { EN_COPY_IN = 1, EN_COPY_OUT = 2, EN_COPY_ON = 3 }; /* host to device, device to host, on the device */

typedef struct en_device {
    uint32_t abi, size;
    const char *name; /* ref, cpu, cuda */
    const char *help; /* one line */
    uint32_t flags;
    uint32_t align; /* of tensors and buckets, bytes: 64, on a GPU 256 */

    /* May be slow; logs the cause of a failure. Before close the caller frees memory, plans and the objects of gpu.h. */
    en_status (*open)(const en_device_config *, en_ctx **ctx_out);
    void (*close)(en_ctx *);
    /* One line for people: library, version, instruction set, threads. Valid until close. */
    const char *(*describe)(en_ctx *);

    /* Zeroed for every stream, aligned to `align` bytes; bytes 0 gives a valid address. free takes NULL, and may wait until
     * the memory is unused. */
    en_status (*alloc)(en_ctx *, uint64_t bytes, void **memory_out);
    void (*free)(en_ctx *, void *memory);
    /* Enqueued like operations; areas never overlap. On a GPU, registered host memory (gpu.h) is read or written when the
     * copy's turn comes: leave it alone until an event after it is reached. Other host memory is read during the call, and
     * with EN_COPY_OUT has the data after sync; not allowed during capture. */
    en_status (*copy)(en_ctx *, void *dst, const void *src, uint64_t bytes, int direction);
    en_status (*zero)(en_ctx *, void *dst, uint64_t bytes);
    /* Blocks until all enqueued work is done, in every stream and without a deadline: do not use it where a collective of
     * GPUs may be in progress. Reports errors of that work. Host devices: returns at once. */
    en_status (*sync)(en_ctx *);

    /* EN_EUNSUPPORTED (logged): this device lacks the kind, type or flag. Freed by plan_free. */
    en_status (*plan)(en_ctx *, const en_op *, en_plan **plan_out);
    void (*plan_free)(en_plan *);
    void (*plan_info)(const en_plan *, en_plan_info *info_out);

    /* The step path: no allocation, and logs errors only. backward_weights comes before backward_data. Calls that the op does
     * not have (no weights, EN_OP_NO_DX) return EN_EUNSUPPORTED. A target outside [0, C) is EN_EINVAL on host devices and
     * undefined on others: check labels when reading them. */
    en_status (*forward)(en_plan *, const en_args *);
    en_status (*backward_weights)(en_plan *, const en_args *);
    en_status (*backward_data)(en_plan *, const en_args *);

    const struct en_gpu *gpu; /* NULL exactly if EN_DEVICE_HOST is set */
} en_device;

/* The only symbol that a device library exports. Returns NULL if it does not support that ABI. */
#define EN_DEVICE_ENTRY "en_device_entry"
typedef const en_device *(*en_device_entry_fn)(uint32_t host_abi);

#ifdef __cplusplus
}
#endif
#endif
