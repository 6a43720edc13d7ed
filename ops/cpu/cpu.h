/* cpu.h - the cpu device: convolution and linear layers by oneDNN, the rest by loops of our own.
 *
 * oneDNN freezes the number of threads into a primitive when it is created, and OpenMP reads its settings
 * when it is loaded; so this library is a plugin, loaded by ops/device.c after the environment is set. */
#ifndef OPS_CPU_CPU_H
#define OPS_CPU_CPU_H

#include <oneapi/dnnl/dnnl.h>

#include "ops/ref/ref.h"

/* ---- the part of oneDNN that this device uses, in words that do not depend on its version: dnnl.c is the
 * only file that creates its objects (version 3, Debian 13's, changed those calls and no others)
 * ---------------- */

typedef struct eni_dnnl {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
} eni_dnnl;

enum { ENI_FORWARD, ENI_BACKWARD_WEIGHTS, ENI_BACKWARD_DATA, ENI_PASSES };

/* One pass of a convolution or a linear layer, ready to run. `source` is x or dx, `weights` w or dw, `bias`
 * b or db, `target` y or dy. Weights in the order that oneDNN picked lie in memory of the pass; `reorder`
 * brings them there (or, for dw, back to PyTorch's order), and is NULL where that is the order already. */
typedef struct eni_dnnl_pass {
    dnnl_primitive_t primitive, reorder;
    dnnl_memory_t source, weights, bias, target;
    dnnl_memory_t picked; /* the weights in the picked order; the same object as `weights` without reorder */
    dnnl_memory_t scratch;
    void *picked_data; /* owned */
    uint64_t scratch_bytes;
    char name[48]; /* as oneDNN names the implementation */
} eni_dnnl_pass;

/* One product of matrices, c = a b or c += a b, ready to run. Rows of b and c are `stride` apart; a is
 * packed, as (m, k) or transposed, (k, m). */
typedef struct eni_product_shape {
    int64_t m, n, k;
    int is_transposed; /* a is (k, m) in memory */
    int adds;          /* to what c holds */
} eni_product_shape;

typedef struct eni_dnnl_product {
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c, scratch;
    uint64_t scratch_bytes;
    char name[40];
} eni_dnnl_product;

/* EN_OK, or the failure logged with oneDNN's own word for it. */
en_status eni_dnnl_check(dnnl_status_t status, const char *what);

en_status eni_dnnl_open(eni_dnnl *dnnl_out);
void eni_dnnl_close(eni_dnnl *dnnl);

/* Creates pass `which` of a checked conv2d or linear op. The calling thread's OpenMP thread count is frozen
 * into it. On failure pass_out is left zeroed. */
en_status eni_dnnl_pass_init(const eni_dnnl *dnnl, const en_op *op, int which, eni_dnnl_pass *pass_out);
void eni_dnnl_pass_fini(eni_dnnl_pass *pass);

/* The same for a product. */
en_status eni_dnnl_product_init(const eni_dnnl *dnnl, const eni_product_shape *shape,
                                eni_dnnl_product *product_out);
void eni_dnnl_product_fini(eni_dnnl_product *product);

/* ---- the device ---------------------------------------------------------------------------------------- */

struct en_ctx {
    eni_dnnl dnnl;
    int threads;
    char description[160];
};

typedef struct eni_cpu_kernel eni_cpu_kernel;

struct en_plan {
    en_op op;
    en_extent y;
    en_ctx *ctx; /* borrowed; outlives us */
    const eni_cpu_kernel *kernel;
    eni_dnnl_pass pass[ENI_PASSES]; /* conv2d and linear; others leave them zeroed */
    eni_dnnl_product
        product[ENI_PASSES]; /* of a conv2d whose backward passes run in columns.c, else zeroed */
    int64_t images;          /* and how many images it takes at a time; 0: it does not */
    en_plan_info info;
};

/* One operation on this device. Run calls as in en_device. */
struct eni_cpu_kernel {
    en_status (*forward)(en_plan *plan, const en_args *args);
    en_status (*backward_weights)(en_plan *plan, const en_args *args); /* NULL: has no weights */
    en_status (*backward_data)(en_plan *plan, const en_args *args);
    en_status (*prepare)(en_plan *plan); /* NULL: nothing to prepare; fills plan->info's bytes and names */
};

extern const eni_cpu_kernel eni_cpu_conv, eni_cpu_linear, eni_cpu_pool;

/* Creates the passes that a plan's flags leave. On failure cpu_plan_free frees what was made. */
en_status eni_cpu_prepare_passes(en_plan *plan);
en_status eni_cpu_prepare_forward(en_plan *plan); /* the first of them alone */

/* columns.c: the backward passes of a convolution whose channels fill oneDNN's registers badly. Its workspace
 * does not overlap anything that the caller reads. */
int eni_cpu_columns_fit(const en_op *op);
en_status eni_cpu_columns_prepare(en_plan *plan);
en_status eni_cpu_columns_backward_weights(en_plan *plan, const en_args *args);
en_status eni_cpu_columns_backward_data(en_plan *plan, const en_args *args);

/* Points a view at memory. */
en_status eni_cpu_aim_view(dnnl_memory_t view, const void *data);

/* Points a pass at the tensors of this run; the bias is looked at only with EN_OP_BIAS. */
en_status eni_cpu_aim(const en_plan *plan, const eni_dnnl_pass *pass, const void *source, const void *weights,
                      const void *bias, const void *target, void *workspace);

en_status eni_cpu_execute(const en_plan *plan, dnnl_primitive_t primitive, int nargs,
                          const dnnl_exec_arg_t *args);

/* y = relu(y), and dy = 0 where y is not positive: what EN_OP_FUSE_RELU asks of a layer. */
void eni_cpu_relu_in_place(const en_plan *plan, const en_args *args);
void eni_cpu_relu_mask(const en_plan *plan, const en_args *args);

/* True where eni_cpu_pool has its fast loops: windows of 2 x 2 that neither overlap nor pad. */
int eni_cpu_pool_fits(const en_op *op);

/* Splits [0, count) over the plan's threads, each part starting on a multiple of `grain`. The parts are
 * elementwise independent, so the bits do not depend on the number of threads. */
typedef void (*eni_cpu_part_fn)(const en_plan *plan, const en_args *args, int64_t from, int64_t to);
void eni_cpu_split(const en_plan *plan, const en_args *args, int64_t count, int64_t grain,
                   eni_cpu_part_fn part);

#endif
