/* dnnl2.h - the few calls of oneDNN 3 that dnnl.c makes, for oneDNN 2: there the caller owns the structs that
 * describe memory, and operations are described in a step of their own. Delete this file with the support for
 * version 2. */
#ifndef OPS_CPU_DNNL2_H
#define OPS_CPU_DNNL2_H

#include <oneapi/dnnl/dnnl.h>

#include "core/memory.h"

typedef dnnl_memory_desc_t *eni_desc;
typedef const dnnl_memory_desc_t *eni_const_desc;

static inline dnnl_status_t dnnl_memory_desc_create_with_tag(eni_desc *desc, int rank, const dnnl_dims_t dims,
                                                             dnnl_data_type_t type, dnnl_format_tag_t order)
{
    *desc = eni_alloc(sizeof **desc);
    return *desc == NULL ? dnnl_out_of_memory : dnnl_memory_desc_init_by_tag(*desc, rank, dims, type, order);
}

static inline void dnnl_memory_desc_destroy(eni_desc desc)
{
    eni_free(desc);
}

static inline dnnl_status_t dnnl_convolution_forward_primitive_desc_create(
    dnnl_primitive_desc_t *pd, dnnl_engine_t engine, dnnl_prop_kind_t kind, dnnl_alg_kind_t algorithm,
    eni_const_desc x, eni_const_desc w, eni_const_desc b, eni_const_desc y, const dnnl_dims_t stride,
    const dnnl_dims_t dilation, const dnnl_dims_t pad, const dnnl_dims_t pad_end,
    const_dnnl_primitive_attr_t attr)
{
    dnnl_convolution_desc_t desc;
    const dnnl_status_t status = dnnl_dilated_convolution_forward_desc_init(
        &desc, kind, algorithm, x, w, b, y, stride, dilation, pad, pad_end);
    return status == dnnl_success ? dnnl_primitive_desc_create(pd, &desc, attr, engine, NULL) : status;
}

static inline dnnl_status_t dnnl_convolution_backward_weights_primitive_desc_create(
    dnnl_primitive_desc_t *pd, dnnl_engine_t engine, dnnl_alg_kind_t algorithm, eni_const_desc x,
    eni_const_desc dw, eni_const_desc db, eni_const_desc dy, const dnnl_dims_t stride,
    const dnnl_dims_t dilation, const dnnl_dims_t pad, const dnnl_dims_t pad_end,
    const_dnnl_primitive_desc_t forward, const_dnnl_primitive_attr_t attr)
{
    dnnl_convolution_desc_t desc;
    const dnnl_status_t status = dnnl_dilated_convolution_backward_weights_desc_init(
        &desc, algorithm, x, dw, db, dy, stride, dilation, pad, pad_end);
    return status == dnnl_success ? dnnl_primitive_desc_create(pd, &desc, attr, engine, forward) : status;
}

static inline dnnl_status_t dnnl_convolution_backward_data_primitive_desc_create(
    dnnl_primitive_desc_t *pd, dnnl_engine_t engine, dnnl_alg_kind_t algorithm, eni_const_desc dx,
    eni_const_desc w, eni_const_desc dy, const dnnl_dims_t stride, const dnnl_dims_t dilation,
    const dnnl_dims_t pad, const dnnl_dims_t pad_end, const_dnnl_primitive_desc_t forward,
    const_dnnl_primitive_attr_t attr)
{
    dnnl_convolution_desc_t desc;
    const dnnl_status_t status = dnnl_dilated_convolution_backward_data_desc_init(
        &desc, algorithm, dx, w, dy, stride, dilation, pad, pad_end);
    return status == dnnl_success ? dnnl_primitive_desc_create(pd, &desc, attr, engine, forward) : status;
}

static inline dnnl_status_t dnnl_matmul_primitive_desc_create(dnnl_primitive_desc_t *pd, dnnl_engine_t engine,
                                                              eni_const_desc a, eni_const_desc b,
                                                              eni_const_desc bias, eni_const_desc c,
                                                              const_dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t desc;
    const dnnl_status_t status = dnnl_matmul_desc_init(&desc, a, b, bias, c);
    return status == dnnl_success ? dnnl_primitive_desc_create(pd, &desc, attr, engine, NULL) : status;
}

#endif
