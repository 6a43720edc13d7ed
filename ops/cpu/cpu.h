/* cpu.h - the cpu device: convolution and linear layers by oneDNN, the rest by our own loops. oneDNN freezes
 * the number of threads into a primitive when it is created, and OpenMP reads its settings when it is loaded;
 * so this library is a plugin, loaded by ops/device.c after the environment is set. */
#ifndef OPS_CPU_CPU_H
#define OPS_CPU_CPU_H

#include <oneapi/dnnl/dnnl.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "ops/ref/ref.h"

/* ---- oneDNN in terms that do not depend on its version: only dnnl.c creates its objects ---- */

typedef struct eni_dnnl {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    bool is_bf16; /* the factors of layers created here are bf16, their results float32 */
} eni_dnnl;

enum { ENI_FORWARD, ENI_BACKWARD_WEIGHTS, ENI_BACKWARD_DATA, ENI_PASSES };

/* A primitive, ready to run, with a view of each of its tensors, in the order of eni_cpu_run. */
enum { ENI_DNNL_VIEWS = 5 };
typedef struct eni_dnnl_primitive {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t view[ENI_DNNL_VIEWS];
    int nviews;
    uint64_t scratch_bytes; /* as it reports */
    int which;              /* of a plan's passes */
    char name[40];          /* oneDNN's name of the implementation */
} eni_dnnl_primitive;

/* One pass of a convolution. If oneDNN picked an order of its own for the weights, they lie in `picked`, and
 * `reorder` copies them there (or dw back to PyTorch's order). */
typedef struct eni_dnnl_conv {
    eni_dnnl_primitive run, reorder;
    void *picked; /* owned, with a canary behind it; NULL if the order is PyTorch's already */
    uint64_t picked_bytes;
} eni_dnnl_conv;

/* One product of matrices, c (m, n) = a b, all packed. */
typedef struct eni_product_shape {
    int64_t m, n, k;
    bool is_a_transposed, is_b_transposed; /* a is (k, m) in memory; b (n, k) */
    bool has_bias;                         /* (n), added to each row */
} eni_product_shape;

/* EN_OK, or logs the failure of `what` ("a convolution"). */
en_status eni_dnnl_check(dnnl_status_t status, const char *what);

/* EN_EUNSUPPORTED, logged with the instructions that are missing: this CPU has no bf16. */
en_status eni_dnnl_open(bool is_bf16, eni_dnnl *dnnl_out);
void eni_dnnl_close(eni_dnnl *dnnl);

/* Creates pass `which` of a checked conv2d op, or a product for that pass, in zeroed memory. The calling
 * thread's OpenMP thread count is frozen into it. fini also cleans up after a failure. */
en_status eni_dnnl_conv_init(const eni_dnnl *dnnl, const en_op *op, int which, eni_dnnl_conv *conv);
void eni_dnnl_conv_fini(eni_dnnl_conv *conv);
en_status eni_dnnl_product_init(const eni_dnnl *dnnl, const eni_product_shape *shape, int which,
                                eni_dnnl_primitive *product);
void eni_dnnl_primitive_fini(eni_dnnl_primitive *primitive);

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
    en_ctx *ctx; /* borrowed; outlives the plan */
    const eni_cpu_kernel *kernel;
    eni_dnnl_conv pass[ENI_PASSES];         /* of a conv2d; zero for others */
    eni_dnnl_primitive product[ENI_PASSES]; /* of a linear, or a conv2d of one window */
    bool has_columns;                       /* a conv2d with its backward passes in columns.c */
    en_plan_info info;
};

/* One operation on this device. Run calls as in en_device. */
struct eni_cpu_kernel {
    en_status (*forward)(en_plan *plan, const en_args *args);
    en_status (*backward_weights)(en_plan *plan, const en_args *args); /* NULL without weights */
    en_status (*backward_data)(en_plan *plan, const en_args *args);
    en_status (*prepare)(en_plan *plan); /* NULL: nothing to prepare; fills plan->info's bytes and names */
};

extern const eni_cpu_kernel eni_cpu_conv, eni_cpu_columns, eni_cpu_winograd, eni_cpu_one_window,
    eni_cpu_linear, eni_cpu_pool, eni_cpu_batchnorm;

/* The number of passes by the plan's flags: forward, backward_weights, backward_data. */
int eni_cpu_passes(const en_plan *plan);

/* Writes a pass into plan->info: PREFIX NAME, and the workspace that it needs. */
void eni_cpu_describe_pass(en_plan *plan, int which, const char *prefix, const char *name,
                           uint64_t workspace);

/* The conv2d that eni_cpu_conv leaves to others: eni_cpu_one_window (linear.c) runs those with one window,
 * which covers the image; eni_cpu_columns 1 x 1 with a stride; eni_cpu_winograd 3 x 3 of stride 1, with
 * enough channels and pixels. */
bool eni_cpu_one_window_fit(const en_op *op);
bool eni_cpu_columns_fit(const en_op *op);
bool eni_cpu_winograd_fit(const en_op *op);

/* columns.c also has the backward passes of some others: describe fills plan->info as describe_pass does. dy
 * must be masked already. */
bool eni_cpu_columns_backward_fit(const en_op *op);
void eni_cpu_columns_describe(en_plan *plan, int which);
en_status eni_cpu_columns_backward_weights(en_plan *plan, const en_args *args);
en_status eni_cpu_columns_backward_data(en_plan *plan, const en_args *args);

/* A canary is a fixed pattern of bytes behind memory that oneDNN writes. oneDNN has written past its own
 * workspace before (columns.c), and only wrong gradients showed it. */
enum { ENI_CANARY_BYTES = 16 };
void eni_cpu_canary_set(void *memory, uint64_t bytes);

/* EN_EBUG, logged with layer, pass and implementation, if `primitive` has overwritten it. */
en_status eni_cpu_canary_check(const en_args *args, const eni_dnnl_primitive *primitive, const void *memory,
                               uint64_t bytes);

/* Bytes of workspace for a primitive: its own, and the canary that eni_cpu_run checks. */
uint64_t eni_cpu_workspace(const eni_dnnl_primitive *primitive);

/* Runs a primitive on tensors at these addresses, and checks that it kept to its workspace. For a
 * convolution: x or dx, w or dw in the picked order, y or dy, scratch, b or db; for a product: a, b, c,
 * scratch, bias (both without the last if it has no bias); for a reorder: from, to. */
en_status eni_cpu_run(const en_plan *plan, const en_args *args, const eni_dnnl_primitive *primitive,
                      const void *const *at);

/* ---- bf16 (bf16.c): tensors stay float32, and the factors of a product are rounded in front of it ---- */

/* to = x in bf16, to nearest, of equally near ones the even one; NaN stays NaN. */
void eni_cpu_round(uint16_t *restrict to, const float *restrict x, int64_t count);

/* A factor of `count` floats as the plan's primitives take it: x itself; with bf16 a rounded copy, at the
 * start of *area, which moves behind it. Bytes of that copy: 0 without bf16. */
const void *eni_cpu_factor_in(const en_plan *plan, const void *x, int64_t count, void **area);
uint64_t eni_cpu_factor_bytes(const en_plan *plan, int64_t count);

/* Products of matrices whose bits do not depend on the number of threads, because each runs on the thread
 * that calls it. Between begin and end any thread of the device may call multiply; end returns their first
 * failure. A product allocates some memory, which may fail. */
typedef struct eni_cpu_products {
    int threads; /* the caller's setting */
    atomic_int status;
} eni_cpu_products;

/* Row by row, `stride` floats from one row to the next. */
typedef struct eni_cpu_factor {
    const float *at;
    int64_t stride;
    bool is_turned; /* transposed: columns lie where rows would */
} eni_cpu_factor;

void eni_cpu_products_begin(eni_cpu_products *products_out);
en_status eni_cpu_products_end(eni_cpu_products *products);

/* c (m, n) = a (m, k) b (k, n), or c += a b. */
void eni_cpu_multiply(eni_cpu_products *products, int64_t m, int64_t n, int64_t k, eni_cpu_factor a,
                      eni_cpu_factor b, float *c, int64_t c_stride, bool adds);

/* sum += x, elementwise. */
void eni_cpu_add(float *restrict sum, const float *restrict x, int64_t count);

/* The number of parts of `each` that cover `count`. */
static inline int64_t eni_cpu_parts(int64_t count, int64_t each)
{
    return (count + each - 1) / each;
}

/* en_args.kept and is_same_w of a caller that knows them; else NULL and false. */
void *eni_cpu_kept(const en_args *args);
bool eni_cpu_is_same_w(const en_args *args);

/* y = relu(y), and dy = 0 where y is not positive, if the op has EN_OP_FUSE_RELU. */
void eni_cpu_relu_in_place(const en_plan *plan, const en_args *args);
void eni_cpu_relu_mask(const en_plan *plan, const en_args *args);

/* Splits [0, count) over the plan's threads, each part starting on a multiple of `grain`. The parts are
 * elementwise independent, so the bits do not depend on the number of threads. */
typedef void (*eni_cpu_part_fn)(const en_plan *plan, const en_args *args, int64_t from, int64_t to);
void eni_cpu_split(const en_plan *plan, const en_args *args, int64_t count, int64_t grain,
                   eni_cpu_part_fn part);

#endif
