/* cpu.h - the cpu device: convolution and linear layers by oneDNN, the rest by loops of our own.
 *
 * oneDNN freezes the number of threads into a primitive when it is created, and OpenMP reads its settings
 * when it is loaded; so this library is a plugin, loaded by ops/device.c after the environment is set. */
#ifndef OPS_CPU_CPU_H
#define OPS_CPU_CPU_H

#include "ops/cpu/dnnl.h"
#include "ops/ref/ref.h"

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

extern const eni_cpu_kernel eni_cpu_conv, eni_cpu_linear, eni_cpu_relu, eni_cpu_pool, eni_cpu_flatten;

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
