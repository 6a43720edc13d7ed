/* dnnl.c - creates oneDNN objects, by the API of version 2. */
#include "ops/cpu/cpu.h"

#include <oneapi/dnnl/dnnl_debug.h>
#include <stdio.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

#if DNNL_VERSION_MAJOR != 2
#error "this file speaks oneDNN 2's API; version 3 needs a sibling of it"
#endif

/* The tensors of a layer as oneDNN sees them in one pass. */
typedef struct layer {
    int is_conv;
    dnnl_memory_desc_t source, weights, bias, target;
    dnnl_memory_desc_t free_weights; /* convolution: the order is left to oneDNN */
    const dnnl_memory_desc_t *bias_or_null;
    dnnl_dims_t stride, pad;
} layer;

#define DNNL(call) eni_dnnl_check((call), #call)

en_status eni_dnnl_check(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success) return EN_OK;
    eni_error("dnnl", "%.60s: %s", what, dnnl_status2str(status));
    if (status == dnnl_out_of_memory) return EN_ENOMEM;
    return status == dnnl_unimplemented ? EN_EUNSUPPORTED : EN_EBUG;
}

en_status eni_dnnl_open(eni_dnnl *dnnl_out)
{
    eni_dnnl dnnl = {0};
    en_status st;
    EN_TRY_GOTO(DNNL(dnnl_engine_create(&dnnl.engine, dnnl_cpu, 0)), close_dnnl);
    EN_TRY_GOTO(DNNL(dnnl_stream_create(&dnnl.stream, dnnl.engine, dnnl_stream_default_flags)), close_dnnl);
    *dnnl_out = dnnl;
    return EN_OK;
close_dnnl:
    eni_dnnl_close(&dnnl);
    return st;
}

void eni_dnnl_close(eni_dnnl *dnnl)
{
    if (dnnl->stream) dnnl_stream_destroy(dnnl->stream);
    if (dnnl->engine) dnnl_engine_destroy(dnnl->engine);
    *dnnl = (eni_dnnl){0};
}

static en_status by_order(dnnl_memory_desc_t *desc, int rank, const dnnl_dims_t dims, dnnl_format_tag_t order)
{
    return DNNL(dnnl_memory_desc_init_by_tag(desc, rank, dims, dnnl_f32, order));
}

/* Names the dims (N, C, H, W) whatever their order in memory. With activations in (N, H, W, C) the weights
 * must be free: for a fixed order oneDNN falls back to its reference loops, 100,000 times slower. */
static en_status describe_conv(const en_op *op, layer *l)
{
    const en_extent y = eni_ref_output(op);
    const dnnl_dims_t source = {op->x.n, op->x.c, op->x.h, op->x.w}, target = {y.n, y.c, y.h, y.w};
    const dnnl_dims_t weights = {y.c, op->x.c, op->kernel_h, op->kernel_w}, bias = {y.c};
    l->stride[0] = op->stride_h, l->stride[1] = op->stride_w;
    l->pad[0] = op->pad_h, l->pad[1] = op->pad_w;
    EN_TRY(by_order(&l->source, 4, source, dnnl_nhwc));
    EN_TRY(by_order(&l->target, 4, target, dnnl_nhwc));
    EN_TRY(by_order(&l->weights, 4, weights, dnnl_oihw));
    EN_TRY(by_order(&l->free_weights, 4, weights, dnnl_format_tag_any));
    return by_order(&l->bias, 1, bias, dnnl_a);
}

/* A linear layer is three matrix products, and a transposed factor is the same memory read as "ba". oneDNN's
 * inner product would want weights in an order of its own (a reorder costs more than it gains), or else takes
 * a slower way that allocates in every call. */
static en_status describe_linear(const en_op *op, int which, layer *l)
{
    const int64_t n = op->x.n, in = op->x.c, out = op->channels;
    const dnnl_dims_t source = {n, in}, target = {n, out}, target_t = {out, n};
    const dnnl_dims_t weights = {out, in}, weights_t = {in, out}, bias = {1, out};
    const int is_forward = which == ENI_FORWARD, is_weights = which == ENI_BACKWARD_WEIGHTS;
    EN_TRY(by_order(&l->source, 2, source, dnnl_ab));
    EN_TRY(by_order(&l->target, 2, is_weights ? target_t : target, is_weights ? dnnl_ba : dnnl_ab));
    EN_TRY(by_order(&l->weights, 2, is_forward ? weights_t : weights, is_forward ? dnnl_ba : dnnl_ab));
    return by_order(&l->bias, 2, bias, dnnl_ab);
}

static dnnl_status_t conv_desc(dnnl_convolution_desc_t *desc, const layer *l, int which)
{
    const dnnl_alg_kind_t algorithm = dnnl_convolution_direct;
    switch (which) {
    case ENI_FORWARD:
        return dnnl_convolution_forward_desc_init(desc, dnnl_forward_training, algorithm, &l->source,
                                                  &l->free_weights, l->bias_or_null, &l->target, l->stride,
                                                  l->pad, l->pad);
    case ENI_BACKWARD_WEIGHTS:
        return dnnl_convolution_backward_weights_desc_init(desc, algorithm, &l->source, &l->free_weights,
                                                           l->bias_or_null, &l->target, l->stride, l->pad,
                                                           l->pad);
    default:
        return dnnl_convolution_backward_data_desc_init(desc, algorithm, &l->source, &l->free_weights,
                                                        &l->target, l->stride, l->pad, l->pad);
    }
}

static dnnl_status_t linear_desc(dnnl_matmul_desc_t *desc, const layer *l, int which)
{
    switch (which) {
    case ENI_FORWARD: /* y = x w^T + b */
        return dnnl_matmul_desc_init(desc, &l->source, &l->weights, l->bias_or_null, &l->target);
    case ENI_BACKWARD_WEIGHTS: /* dw = dy^T x */
        return dnnl_matmul_desc_init(desc, &l->target, &l->source, NULL, &l->weights);
    default: /* dx = dy w */ return dnnl_matmul_desc_init(desc, &l->target, &l->weights, NULL, &l->source);
    }
}

/* `hint` is the forward pass's description, wanted by the backward ones of a convolution; else NULL. */
static en_status primitive_desc(const eni_dnnl *dnnl, const layer *l, int which,
                                const_dnnl_primitive_attr_t attr, const_dnnl_primitive_desc_t hint,
                                dnnl_primitive_desc_t *pd_out)
{
    union {
        dnnl_convolution_desc_t conv;
        dnnl_matmul_desc_t linear;
    } desc;
    EN_TRY(DNNL(l->is_conv ? conv_desc(&desc.conv, l, which) : linear_desc(&desc.linear, l, which)));
    return DNNL(dnnl_primitive_desc_create(pd_out, &desc, attr, dnnl->engine, hint));
}

/* Scratch memory is ours to give (workspace), not hidden in the library. */
static en_status scratch_attr(dnnl_primitive_attr_t *attr_out)
{
    dnnl_primitive_attr_t attr;
    EN_TRY(DNNL(dnnl_primitive_attr_create(&attr)));
    en_status st = DNNL(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    if (st == EN_OK)
        *attr_out = attr;
    else
        dnnl_primitive_attr_destroy(attr);
    return st;
}

static en_status pass_desc(const eni_dnnl *dnnl, const layer *l, int which, dnnl_primitive_desc_t *pd_out)
{
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t hint = NULL;
    en_status st = EN_OK;
    EN_TRY(scratch_attr(&attr));
    if (l->is_conv && which != ENI_FORWARD) st = primitive_desc(dnnl, l, ENI_FORWARD, attr, NULL, &hint);
    if (st == EN_OK) st = primitive_desc(dnnl, l, which, attr, hint, pd_out);
    if (hint) dnnl_primitive_desc_destroy(hint);
    dnnl_primitive_attr_destroy(attr);
    return st;
}

/* A view without data yet: run_plan.c points it at the tensors of each run. */
static en_status view(const eni_dnnl *dnnl, const dnnl_memory_desc_t *desc, dnnl_memory_t *memory_out)
{
    return DNNL(dnnl_memory_create(memory_out, desc, dnnl->engine, DNNL_MEMORY_NONE));
}

/* Memory of the pass for weights in the picked order, and the reorder that fills or empties it. */
static en_status pick_weights(const eni_dnnl *dnnl, const layer *l, int which,
                              const dnnl_memory_desc_t *picked, eni_dnnl_pass *pass)
{
    if (dnnl_memory_desc_equal(picked, &l->weights)) return EN_OK;
    pass->picked_data = eni_alloc(dnnl_memory_desc_get_size(picked));
    if (!pass->picked_data) return EN_ENOMEM;
    EN_TRY(DNNL(dnnl_memory_create(&pass->picked, picked, dnnl->engine, pass->picked_data)));

    const int out = which == ENI_BACKWARD_WEIGHTS;
    dnnl_primitive_desc_t pd;
    dnnl_primitive_attr_t attr;
    EN_TRY(scratch_attr(&attr));
    en_status st = DNNL(dnnl_reorder_primitive_desc_create(&pd, out ? picked : &l->weights, dnnl->engine,
                                                           out ? &l->weights : picked, dnnl->engine, attr));
    dnnl_primitive_attr_destroy(attr);
    if (st != EN_OK) return st;
    const uint64_t scratch =
        dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0));
    if (scratch > 0) {
        eni_error("dnnl", "the reorder of the weights wants %llu bytes of scratch; none was expected",
                  (unsigned long long)scratch);
        st = EN_EUNSUPPORTED;
    } else {
        st = DNNL(dnnl_primitive_create(&pass->reorder, pd));
    }
    dnnl_primitive_desc_destroy(pd);
    return st;
}

static en_status fill_pass(const eni_dnnl *dnnl, const layer *l, int which, const_dnnl_primitive_desc_t pd,
                           eni_dnnl_pass *pass)
{
    const dnnl_query_t weights =
        which == ENI_BACKWARD_WEIGHTS ? dnnl_query_diff_weights_md : dnnl_query_weights_md;
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    const char *name = NULL;
    EN_TRY(DNNL(dnnl_primitive_create(&pass->primitive, pd)));
    EN_TRY(view(dnnl, &l->source, &pass->source));
    EN_TRY(view(dnnl, &l->target, &pass->target));
    EN_TRY(view(dnnl, &l->weights, &pass->weights));
    if (l->bias_or_null) EN_TRY(view(dnnl, &l->bias, &pass->bias));
    EN_TRY(view(dnnl, scratch, &pass->scratch));
    pass->picked = pass->weights;
    if (l->is_conv) EN_TRY(pick_weights(dnnl, l, which, dnnl_primitive_desc_query_md(pd, weights, 0), pass));
    EN_TRY(DNNL(dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&name)));
    pass->scratch_bytes = dnnl_memory_desc_get_size(scratch);
    snprintf(pass->name, sizeof pass->name, "%s", name);
    return EN_OK;
}

en_status eni_dnnl_pass_init(const eni_dnnl *dnnl, const en_op *op, int which, eni_dnnl_pass *pass_out)
{
    dnnl_primitive_desc_t pd;
    eni_dnnl_pass pass = {0};
    *pass_out = pass;
    layer l = {.is_conv = op->kind == EN_OP_CONV2D};
    l.bias_or_null = op->flags & EN_OP_BIAS ? &l.bias : NULL;
    EN_TRY(l.is_conv ? describe_conv(op, &l) : describe_linear(op, which, &l));
    EN_TRY(pass_desc(dnnl, &l, which, &pd));
    en_status st = fill_pass(dnnl, &l, which, pd, &pass);
    dnnl_primitive_desc_destroy(pd);
    if (st != EN_OK) eni_dnnl_pass_fini(&pass);
    *pass_out = pass;
    return st;
}

void eni_dnnl_pass_fini(eni_dnnl_pass *pass)
{
    if (pass->primitive) dnnl_primitive_destroy(pass->primitive);
    if (pass->reorder) dnnl_primitive_destroy(pass->reorder);
    if (pass->picked != pass->weights) dnnl_memory_destroy(pass->picked);
    dnnl_memory_t views[] = {pass->source, pass->weights, pass->bias, pass->target, pass->scratch};
    for (int i = 0; i < 5; i++)
        if (views[i]) dnnl_memory_destroy(views[i]);
    eni_free(pass->picked_data);
    *pass = (eni_dnnl_pass){0};
}

/* ---- products ---- */

static en_status product_attr(int adds, dnnl_primitive_attr_t *attr_out)
{
    dnnl_primitive_attr_t attr;
    EN_TRY(scratch_attr(&attr));
    dnnl_post_ops_t sum = NULL;
    en_status st = DNNL(dnnl_post_ops_create(&sum));
    if (st == EN_OK && adds) st = DNNL(dnnl_post_ops_append_sum(sum, 1.0f));
    if (st == EN_OK) st = DNNL(dnnl_primitive_attr_set_post_ops(attr, sum));
    if (sum) dnnl_post_ops_destroy(sum);
    if (st == EN_OK)
        *attr_out = attr;
    else
        dnnl_primitive_attr_destroy(attr);
    return st;
}

static en_status fill_product(const eni_dnnl *dnnl, const dnnl_memory_desc_t *abc,
                              const_dnnl_primitive_desc_t pd, eni_dnnl_product *product)
{
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    const char *name = NULL;
    EN_TRY(DNNL(dnnl_primitive_create(&product->primitive, pd)));
    EN_TRY(view(dnnl, &abc[0], &product->a));
    EN_TRY(view(dnnl, &abc[1], &product->b));
    EN_TRY(view(dnnl, &abc[2], &product->c));
    EN_TRY(view(dnnl, scratch, &product->scratch));
    EN_TRY(DNNL(dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&name)));
    product->scratch_bytes = dnnl_memory_desc_get_size(scratch);
    snprintf(product->name, sizeof product->name, "%s", name);
    return EN_OK;
}

en_status eni_dnnl_product_init(const eni_dnnl *dnnl, const eni_product_shape *shape,
                                eni_dnnl_product *product_out)
{
    const dnnl_dims_t a = {shape->m, shape->k}, b = {shape->k, shape->n}, c = {shape->m, shape->n};
    dnnl_memory_desc_t abc[3];
    dnnl_matmul_desc_t desc;
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t pd = NULL;
    eni_dnnl_product product = {0};
    *product_out = product;
    EN_TRY(by_order(&abc[0], 2, a, shape->is_transposed ? dnnl_ba : dnnl_ab));
    EN_TRY(by_order(&abc[1], 2, b, dnnl_ab));
    EN_TRY(by_order(&abc[2], 2, c, dnnl_ab));
    EN_TRY(DNNL(dnnl_matmul_desc_init(&desc, &abc[0], &abc[1], NULL, &abc[2])));
    EN_TRY(product_attr(shape->adds, &attr));
    en_status st = DNNL(dnnl_primitive_desc_create(&pd, &desc, attr, dnnl->engine, NULL));
    dnnl_primitive_attr_destroy(attr);
    if (st == EN_OK) st = fill_product(dnnl, abc, pd, &product);
    if (pd) dnnl_primitive_desc_destroy(pd);
    if (st != EN_OK) eni_dnnl_product_fini(&product);
    *product_out = product;
    return st;
}

void eni_dnnl_product_fini(eni_dnnl_product *product)
{
    dnnl_memory_t views[] = {product->a, product->b, product->c, product->scratch};
    if (product->primitive) dnnl_primitive_destroy(product->primitive);
    for (int i = 0; i < 4; i++)
        if (views[i]) dnnl_memory_destroy(views[i]);
    *product = (eni_dnnl_product){0};
}
