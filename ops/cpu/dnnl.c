/* dnnl.c - creates oneDNN objects, by the API of version 2. */
#include "ops/cpu/dnnl.h"

#include <oneapi/dnnl/dnnl_debug.h>
#include <stdio.h>
#include <string.h>

#include "runtime/core/log.h"
#include "runtime/core/memory.h"
#include "runtime/core/try.h"

#if DNNL_VERSION_MAJOR != 2
#error "this file speaks oneDNN 2's API; version 3 needs a sibling of it"
#endif

/* The tensors of a layer as oneDNN sees them. `free_weights` leaves the order to oneDNN: with activations in
 * (N, H, W, C) and weights in a fixed order it would fall back to its reference loops, 100,000 times slower.
 * Linear layers keep PyTorch's order: reordering fc1's 400,000 weights costs more than it gains. */
typedef struct layer {
    dnnl_memory_desc_t source, free_weights, weights, bias, target;
    const dnnl_memory_desc_t *bias_or_null;
    dnnl_dims_t stride, pad;
    int is_conv;
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

static en_status describe_tensor(dnnl_memory_desc_t *desc, int rank, const dnnl_dims_t dims,
                                 dnnl_format_tag_t order)
{
    return DNNL(dnnl_memory_desc_init_by_tag(desc, rank, dims, dnnl_f32, order));
}

static en_status describe_layer(const en_op *op, layer *l)
{
    en_extent y;
    EN_TRY(en_op_output(op, &y));
    l->is_conv = op->kind == EN_OP_CONV2D;
    l->bias_or_null = op->flags & EN_OP_BIAS ? &l->bias : NULL;
    l->stride[0] = op->stride_h, l->stride[1] = op->stride_w;
    l->pad[0] = op->pad_h, l->pad[1] = op->pad_w;

    const int rank = l->is_conv ? 4 : 2; /* dims are always named (N, C, H, W); the tag says how they lie */
    const dnnl_format_tag_t activations = l->is_conv ? dnnl_nhwc : dnnl_ab;
    const dnnl_format_tag_t plain = l->is_conv ? dnnl_oihw : dnnl_ab;
    const dnnl_dims_t source = {op->x.n, op->x.c, op->x.h, op->x.w}, target = {y.n, y.c, y.h, y.w};
    const dnnl_dims_t weights = {y.c, op->x.c, op->kernel_h, op->kernel_w}, bias = {y.c};
    EN_TRY(describe_tensor(&l->source, rank, source, activations));
    EN_TRY(describe_tensor(&l->target, rank, target, activations));
    EN_TRY(describe_tensor(&l->weights, rank, weights, plain));
    EN_TRY(describe_tensor(&l->free_weights, rank, weights, l->is_conv ? dnnl_format_tag_any : plain));
    return describe_tensor(&l->bias, 1, bias, dnnl_a);
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

static dnnl_status_t linear_desc(dnnl_inner_product_desc_t *desc, const layer *l, int which)
{
    switch (which) {
    case ENI_FORWARD:
        return dnnl_inner_product_forward_desc_init(desc, dnnl_forward_training, &l->source, &l->free_weights,
                                                    l->bias_or_null, &l->target);
    case ENI_BACKWARD_WEIGHTS:
        return dnnl_inner_product_backward_weights_desc_init(desc, &l->source, &l->free_weights,
                                                             l->bias_or_null, &l->target);
    default:
        return dnnl_inner_product_backward_data_desc_init(desc, &l->source, &l->free_weights, &l->target);
    }
}

/* `hint` is the forward pass's description, wanted by the backward ones; NULL for forward. */
static en_status primitive_desc(const eni_dnnl *dnnl, const layer *l, int which,
                                const_dnnl_primitive_attr_t attr, const_dnnl_primitive_desc_t hint,
                                dnnl_primitive_desc_t *pd_out)
{
    union {
        dnnl_convolution_desc_t conv;
        dnnl_inner_product_desc_t linear;
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
    dnnl_primitive_desc_t forward = NULL;
    EN_TRY(scratch_attr(&attr));
    en_status st = primitive_desc(dnnl, l, ENI_FORWARD, attr, NULL, &forward);
    if (st == EN_OK && which == ENI_FORWARD) {
        *pd_out = forward;
        forward = NULL;
    } else if (st == EN_OK) {
        st = primitive_desc(dnnl, l, which, attr, forward, pd_out);
    }
    if (forward) dnnl_primitive_desc_destroy(forward);
    dnnl_primitive_attr_destroy(attr);
    return st;
}

/* A view without data yet: conv.c points it at the tensors of each run. */
static en_status view(const eni_dnnl *dnnl, const dnnl_memory_desc_t *desc, dnnl_memory_t *memory_out)
{
    return DNNL(dnnl_memory_create(memory_out, desc, dnnl->engine, DNNL_MEMORY_NONE));
}

/* Memory of the pass for weights in the picked order, and the reorder that fills or empties it. */
static en_status pick_weights(const eni_dnnl *dnnl, const layer *l, int which,
                              const dnnl_memory_desc_t *picked, eni_dnnl_pass *pass)
{
    if (dnnl_memory_desc_equal(picked, &l->weights)) {
        pass->picked = pass->weights;
        return EN_OK;
    }
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
    EN_TRY(pick_weights(dnnl, l, which, dnnl_primitive_desc_query_md(pd, weights, 0), pass));
    EN_TRY(DNNL(dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&name)));
    pass->scratch_bytes = dnnl_memory_desc_get_size(scratch);
    snprintf(pass->name, sizeof pass->name, "%s", name);
    return EN_OK;
}

en_status eni_dnnl_pass_init(const eni_dnnl *dnnl, const en_op *op, int which, eni_dnnl_pass *pass_out)
{
    layer l;
    dnnl_primitive_desc_t pd;
    eni_dnnl_pass pass = {0};
    memset(&l, 0, sizeof l);
    EN_TRY(describe_layer(op, &l));
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
    if (pass->picked && pass->picked != pass->weights) dnnl_memory_destroy(pass->picked);
    dnnl_memory_t views[] = {pass->source, pass->weights, pass->bias, pass->target, pass->scratch};
    for (int i = 0; i < 5; i++)
        if (views[i]) dnnl_memory_destroy(views[i]);
    eni_free(pass->picked_data);
    *pass = (eni_dnnl_pass){0};
}
