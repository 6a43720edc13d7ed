/* dnnl.c - creates oneDNN objects, by the API of version 3; dnnl2.h maps it to version 2. */
#include "ops/cpu/cpu.h"

#include <oneapi/dnnl/dnnl_debug.h>
#include <stdbool.h>
#include <stdio.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

#if DNNL_VERSION_MAJOR == 2
#include "ops/cpu/dnnl2.h"
#else
typedef dnnl_memory_desc_t eni_desc;
typedef const_dnnl_memory_desc_t eni_const_desc;
#endif

en_status eni_dnnl_check(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success) return EN_OK;
    eni_debug("dnnl", "oneDNN's status for %s is %s", what, dnnl_status2str(status));
    if (status == dnnl_out_of_memory) return eni_fail(EN_ENOMEM, "dnnl", "oneDNN has no memory for %s", what);
    if (status == dnnl_unimplemented)
        return eni_fail(
            EN_EUNSUPPORTED, "dnnl",
            "oneDNN does not support %s of this shape on this CPU; --device=ref works without oneDNN", what);
    return eni_fail(EN_EBUG, "dnnl", "oneDNN failed at %s; --device=ref works without oneDNN", what);
}

/* oneDNN writes a kernel's code into mapped memory; if it gets none it writes to address 0, and the process
 * dies. The first product of a process generates 16 kernels of 320 KB, a primitive a few of 256 KB. So this
 * checks for several times that room, and generates the 16 here. */
enum { FIRST_ROOM = 32 << 20, PRIMITIVE_ROOM = 16 << 20 };
static const char kernels[] = "oneDNN's generated code";

static en_status write_kernels(void)
{
    enum { N = 32 };
    static bool is_written;
    const float a[N * N] = {0};
    float c[N * N];
    if (is_written) return EN_OK;
    EN_TRY(eni_memory_room(FIRST_ROOM, kernels));
    EN_TRY(eni_dnnl_check(dnnl_sgemm('N', 'N', N, N, N, 1, a, N, a, N, 0, c, N), "a product of matrices"));
    is_written = true;
    return EN_OK;
}

static en_status check_bf16(void)
{
    const unsigned has = dnnl_get_effective_cpu_isa(), needs = dnnl_cpu_isa_avx512_core_bf16;
    if ((has & needs) == needs) return EN_OK;
    return eni_fail(EN_EUNSUPPORTED, "cpu",
                    "bf16 needs the instructions avx512_bf16, but this CPU lacks them, or DNNL_MAX_CPU_ISA "
                    "turns them off (oneDNN uses %s); omit --precision=bf16, or give --device=cuda",
                    dnnl_cpu_isa2str((dnnl_cpu_isa_t)has));
}

en_status eni_dnnl_open(bool is_bf16, eni_dnnl *dnnl_out)
{
    eni_dnnl dnnl = {.is_bf16 = is_bf16};
    en_status st;
    if (is_bf16) EN_TRY(check_bf16());
    EN_TRY(write_kernels());
    EN_TRY_GOTO(eni_dnnl_check(dnnl_engine_create(&dnnl.engine, dnnl_cpu, 0), "startup"), close_dnnl);
    EN_TRY_GOTO(
        eni_dnnl_check(dnnl_stream_create(&dnnl.stream, dnnl.engine, dnnl_stream_default_flags), "startup"),
        close_dnnl);
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

/* A description of a tensor; forget destroys it. */
static en_status by_order(eni_desc *desc, int rank, const dnnl_dims_t dims, dnnl_data_type_t type,
                          dnnl_format_tag_t order)
{
    return eni_dnnl_check(dnnl_memory_desc_create_with_tag(desc, rank, dims, type, order), "a layer");
}

/* The type of a factor; what a pass writes is float32. */
static dnnl_data_type_t factor_type(const eni_dnnl *dnnl, bool is_written)
{
    return dnnl->is_bf16 && !is_written ? dnnl_bf16 : dnnl_f32;
}

/* Scratch memory comes from us (workspace), not from inside the library. */
static en_status make_attr(dnnl_primitive_attr_t *attr_out)
{
    EN_TRY(eni_dnnl_check(dnnl_primitive_attr_create(attr_out), "a layer"));
    const en_status st = eni_dnnl_check(
        dnnl_primitive_attr_set_scratchpad_mode(*attr_out, dnnl_scratchpad_mode_user), "a layer");
    if (st != EN_OK) dnnl_primitive_attr_destroy(*attr_out);
    return st;
}

/* ---- a primitive and its views ---- */

typedef struct view_of {
    int arg; /* DNNL_ARG_* */
    eni_const_desc desc;
} view_of;

static eni_const_desc scratch_of(const_dnnl_primitive_desc_t pd)
{
    return dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
}

/* Views without data yet: eni_cpu_run points them to the tensors of each run. */
static en_status fill(const eni_dnnl *dnnl, const_dnnl_primitive_desc_t pd, const view_of *tensors, int n,
                      eni_dnnl_primitive *primitive)
{
    const char *name = NULL;
    EN_TRY(eni_memory_room(PRIMITIVE_ROOM, kernels));
    EN_TRY(eni_dnnl_check(dnnl_primitive_create(&primitive->primitive, pd), "a layer"));
    for (int i = 0; i < n; i++) {
        dnnl_exec_arg_t *view = &primitive->view[i];
        EN_TRY(eni_dnnl_check(
            dnnl_memory_create(&view->memory, tensors[i].desc, dnnl->engine, DNNL_MEMORY_NONE), "a layer"));
        view->arg = tensors[i].arg;
        primitive->nviews++;
    }
    EN_TRY(
        eni_dnnl_check(dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&name), "a layer"));
    primitive->scratch_bytes = dnnl_memory_desc_get_size(scratch_of(pd));
    snprintf(primitive->name, sizeof primitive->name, "%s", name);
    return EN_OK;
}

void eni_dnnl_primitive_fini(eni_dnnl_primitive *primitive)
{
    if (primitive->primitive != NULL) dnnl_primitive_destroy(primitive->primitive);
    for (int i = 0; i < primitive->nviews; i++)
        dnnl_memory_destroy(primitive->view[i].memory);
    *primitive = (eni_dnnl_primitive){0};
}

/* ---- layers ---- */

/* The tensors of a convolution, or of a product target = source weights, in oneDNN's terms. */
typedef struct layer_tensors {
    eni_desc source, weights, bias, target; /* bias: NULL without one */
    eni_desc free_weights;                  /* of a convolution: in an order of oneDNN's choice */
    dnnl_dims_t stride, pad;
} layer_tensors;

static void forget(layer_tensors *l)
{
    const eni_desc all[] = {l->source, l->weights, l->bias, l->target, l->free_weights};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] != NULL) dnnl_memory_desc_destroy(all[i]);
}

/* A product of any pass is a forward one here. */
static en_status fill_layer(const eni_dnnl *dnnl, const layer_tensors *l, int which, eni_const_desc weights,
                            const_dnnl_primitive_desc_t pd, eni_dnnl_primitive *primitive)
{
    static const int args[ENI_PASSES][4] = {
        [ENI_FORWARD] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
        [ENI_BACKWARD_WEIGHTS] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_BIAS},
        [ENI_BACKWARD_DATA] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST, 0}};
    const int *arg = args[which];
    const bool has_bias = l->bias != NULL && which != ENI_BACKWARD_DATA;
    const view_of tensors[] = {{arg[0], l->source},
                               {arg[1], weights},
                               {arg[2], l->target},
                               {DNNL_ARG_SCRATCHPAD, scratch_of(pd)},
                               {arg[3], l->bias}};
    return fill(dnnl, pd, tensors, has_bias ? 5 : 4, primitive);
}

/* ---- convolutions ---- */

/* Names the dims (N, C, H, W) whatever their order in memory. With activations in (N, H, W, C) the weights
 * must be free: for a fixed order oneDNN falls back to its reference loops, 100,000 times slower. After a failure, forget cleans up. */
static en_status describe_conv(const eni_dnnl *dnnl, const en_op *op, int which, layer_tensors *l)
{
    const en_extent y = eni_ref_output(op);
    const dnnl_dims_t source = {op->x.n, op->x.c, op->x.h, op->x.w}, target = {y.n, y.c, y.h, y.w};
    const dnnl_dims_t weights = {y.c, op->x.c, op->kernel_h, op->kernel_w}, bias = {y.c};
    *l = (layer_tensors){.stride = {op->stride_h, op->stride_w}, .pad = {op->pad_h, op->pad_w}};
    EN_TRY(by_order(&l->source, 4, source, factor_type(dnnl, which == ENI_BACKWARD_DATA), dnnl_nhwc));
    EN_TRY(by_order(&l->target, 4, target, factor_type(dnnl, which == ENI_FORWARD), dnnl_nhwc));
    EN_TRY(by_order(&l->weights, 4, weights, dnnl_f32, dnnl_oihw));
    EN_TRY(by_order(&l->free_weights, 4, weights, factor_type(dnnl, which == ENI_BACKWARD_WEIGHTS),
                    dnnl_format_tag_any));
    return op->flags & EN_OP_BIAS ? by_order(&l->bias, 1, bias, dnnl_f32, dnnl_a) : EN_OK;
}

/* `hint` is the forward pass's description for the backward ones; else NULL. */
static en_status primitive_desc(const eni_dnnl *dnnl, const layer_tensors *l, int which,
                                const_dnnl_primitive_attr_t attr, const_dnnl_primitive_desc_t hint,
                                dnnl_primitive_desc_t *pd_out)
{
    static const dnnl_dims_t apart = {0}; /* no dilation */
    const dnnl_alg_kind_t algorithm = dnnl_convolution_direct;
    dnnl_status_t status;
    if (which == ENI_FORWARD)
        status = dnnl_convolution_forward_primitive_desc_create(
            pd_out, dnnl->engine, dnnl_forward_training, algorithm, l->source, l->free_weights, l->bias,
            l->target, l->stride, apart, l->pad, l->pad, attr);
    else if (which == ENI_BACKWARD_WEIGHTS)
        status = dnnl_convolution_backward_weights_primitive_desc_create(
            pd_out, dnnl->engine, algorithm, l->source, l->free_weights, l->bias, l->target, l->stride, apart,
            l->pad, l->pad, hint, attr);
    else
        status = dnnl_convolution_backward_data_primitive_desc_create(
            pd_out, dnnl->engine, algorithm, l->source, l->free_weights, l->target, l->stride, apart, l->pad,
            l->pad, hint, attr);
    return eni_dnnl_check(status, "a convolution");
}

static en_status forward_desc(const eni_dnnl *dnnl, const en_op *op, const_dnnl_primitive_attr_t attr,
                              dnnl_primitive_desc_t *pd_out)
{
    layer_tensors l;
    en_status st = describe_conv(dnnl, op, ENI_FORWARD, &l);
    if (st == EN_OK) st = primitive_desc(dnnl, &l, ENI_FORWARD, attr, NULL, pd_out);
    forget(&l);
    return st;
}

static en_status pass_desc(const eni_dnnl *dnnl, const en_op *op, const layer_tensors *l, int which,
                           dnnl_primitive_desc_t *pd_out)
{
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t hint = NULL;
    en_status st = EN_OK;
    EN_TRY(make_attr(&attr));
    if (which != ENI_FORWARD) st = forward_desc(dnnl, op, attr, &hint);
    if (st == EN_OK) st = primitive_desc(dnnl, l, which, attr, hint, pd_out);
    if (hint != NULL) dnnl_primitive_desc_destroy(hint);
    dnnl_primitive_attr_destroy(attr);
    return st;
}

/* Memory for weights in the picked order, and the reorder that fills it or reads it back. */
static en_status pick_weights(const eni_dnnl *dnnl, const layer_tensors *l, int which, eni_const_desc picked,
                              eni_dnnl_conv *pass)
{
    if (dnnl_memory_desc_equal(picked, l->weights)) return EN_OK;
    pass->picked_bytes = dnnl_memory_desc_get_size(picked);
    pass->picked = eni_alloc(pass->picked_bytes + ENI_CANARY_BYTES);
    if (pass->picked == NULL) return EN_ENOMEM;

    const bool out = which == ENI_BACKWARD_WEIGHTS;
    const view_of tensors[] = {{DNNL_ARG_FROM, out ? picked : l->weights},
                               {DNNL_ARG_TO, out ? l->weights : picked}};
    dnnl_primitive_desc_t pd;
    dnnl_primitive_attr_t attr;
    EN_TRY(make_attr(&attr));
    en_status st = eni_dnnl_check(dnnl_reorder_primitive_desc_create(&pd, tensors[0].desc, dnnl->engine,
                                                                     tensors[1].desc, dnnl->engine, attr),
                                  "the order of a convolution's weights");
    dnnl_primitive_attr_destroy(attr);
    if (st != EN_OK) return st;
    st = fill(dnnl, pd, tensors, 2, &pass->reorder);
    if (st == EN_OK && pass->reorder.scratch_bytes > 0)
        st = eni_fail(EN_EUNSUPPORTED, "dnnl",
                      "reordering the weights needs %llu bytes of scratch, expected 0",
                      (unsigned long long)pass->reorder.scratch_bytes);
    dnnl_primitive_desc_destroy(pd);
    return st;
}

static en_status fill_pass(const eni_dnnl *dnnl, const layer_tensors *l, int which,
                           const_dnnl_primitive_desc_t pd, eni_dnnl_conv *pass)
{
    const eni_const_desc picked = dnnl_primitive_desc_query_md(
        pd, which == ENI_BACKWARD_WEIGHTS ? dnnl_query_diff_weights_md : dnnl_query_weights_md, 0);
    EN_TRY(fill_layer(dnnl, l, which, picked, pd, &pass->run));
    return pick_weights(dnnl, l, which, picked, pass);
}

en_status eni_dnnl_conv_init(const eni_dnnl *dnnl, const en_op *op, int which, eni_dnnl_conv *pass)
{
    dnnl_primitive_desc_t pd;
    layer_tensors l;
    pass->run.which = pass->reorder.which = which;
    en_status st = describe_conv(dnnl, op, which, &l);
    if (st == EN_OK) st = pass_desc(dnnl, op, &l, which, &pd);
    if (st == EN_OK) {
        st = fill_pass(dnnl, &l, which, pd, pass);
        dnnl_primitive_desc_destroy(pd);
    }
    forget(&l);
    return st;
}

void eni_dnnl_conv_fini(eni_dnnl_conv *pass)
{
    eni_dnnl_primitive_fini(&pass->run);
    eni_dnnl_primitive_fini(&pass->reorder);
    eni_free(pass->picked);
    *pass = (eni_dnnl_conv){0};
}

/* ---- products ---- */

/* After a failure, forget cleans up. */
static en_status describe_product(const eni_dnnl *dnnl, const eni_product_shape *shape, layer_tensors *l)
{
    const dnnl_dims_t a = {shape->m, shape->k}, b = {shape->k, shape->n}, c = {shape->m, shape->n};
    const dnnl_dims_t bias = {1, shape->n};
    const dnnl_data_type_t type = factor_type(dnnl, false);
    EN_TRY(by_order(&l->source, 2, a, type, shape->is_a_transposed ? dnnl_ba : dnnl_ab));
    EN_TRY(by_order(&l->weights, 2, b, type, shape->is_b_transposed ? dnnl_ba : dnnl_ab));
    EN_TRY(by_order(&l->target, 2, c, dnnl_f32, dnnl_ab));
    return shape->has_bias ? by_order(&l->bias, 2, bias, dnnl_f32, dnnl_ab) : EN_OK;
}

static en_status fill_product(const eni_dnnl *dnnl, const layer_tensors *l, eni_dnnl_primitive *product)
{
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t pd;
    EN_TRY(make_attr(&attr));
    en_status st = eni_dnnl_check(
        dnnl_matmul_primitive_desc_create(&pd, dnnl->engine, l->source, l->weights, l->bias, l->target, attr),
        "a product of matrices");
    dnnl_primitive_attr_destroy(attr);
    if (st != EN_OK) return st;
    st = fill_layer(dnnl, l, ENI_FORWARD, l->weights, pd, product);
    dnnl_primitive_desc_destroy(pd);
    return st;
}

en_status eni_dnnl_product_init(const eni_dnnl *dnnl, const eni_product_shape *shape, int which,
                                eni_dnnl_primitive *product)
{
    layer_tensors l = {0};
    product->which = which;
    en_status st = describe_product(dnnl, shape, &l);
    if (st == EN_OK) st = fill_product(dnnl, &l, product);
    forget(&l);
    return st;
}
