/* dnnl.h - the part of oneDNN that this device uses, in words that do not depend on oneDNN's version.
 *
 * dnnl.c is the only file that creates oneDNN objects: version 3 (Debian 13) changed those calls and no
 * others. Running a pass is in run_plan.c, conv.c and linear.c. */
#ifndef OPS_CPU_DNNL_H
#define OPS_CPU_DNNL_H

#include <oneapi/dnnl/dnnl.h>

#include "entrain/device.h"

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

#endif
