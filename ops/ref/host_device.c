/* host_device.c - shared by all host devices: the operations, and the memory calls. libc does at once what
 * other devices do with streams. */
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "ops/ref/ref.h"

static const eni_ref_kernel *const kernels[EN_OP_KINDS] = {
    [EN_OP_CONV2D] = &eni_ref_conv,
    [EN_OP_LINEAR] = &eni_ref_conv,
    [EN_OP_RELU] = &eni_ref_relu,
    [EN_OP_MAXPOOL] = &eni_ref_pool,
    [EN_OP_RELU_MAXPOOL] = &eni_ref_pool,
    [EN_OP_FLATTEN] = &eni_ref_flatten,
    [EN_OP_LOG_SOFTMAX] = &eni_ref_log_softmax,
    [EN_OP_NLL] = &eni_ref_nll,
    [EN_OP_CROSS_ENTROPY] = &eni_ref_cross_entropy,
    [EN_OP_MSE] = &eni_ref_mse,
    [EN_OP_BATCHNORM] = &eni_ref_batchnorm,
    [EN_OP_ADD] = &eni_ref_add,
    [EN_OP_AVGPOOL] = &eni_ref_avgpool,
};

const eni_ref_kernel *eni_ref_kernel_find(uint32_t kind)
{
    return kind < EN_OP_KINDS ? kernels[kind] : NULL;
}

en_op eni_ref_as_conv(const en_op *op)
{
    en_op conv = *op;
    if (op->kind != EN_OP_LINEAR) return conv;
    conv.kind = EN_OP_CONV2D;
    conv.kernel_h = conv.kernel_w = conv.stride_h = conv.stride_w = 1;
    conv.pad_h = conv.pad_w = 0;
    return conv;
}

en_status eni_ref_check(const en_op *op, const char *device)
{
    EN_TRY(eni_ref_check_size(op, device));
    if (op->kind == EN_OP_CAST || op->dtype == EN_BF16 || op->dtype == EN_F16)
        return eni_fail(
            EN_EUNSUPPORTED, device,
            "the device %s has float32 tensors only; bf16 and fp16 tensors need a GPU: --device=cuda",
            device);
    if (!eni_ref_kernel_find(op->kind) || op->dtype != EN_F32)
        return eni_fail(EN_EUNSUPPORTED, device,
                        "no operation of kind %u on type %u; expected float32 and kinds 1 to %d", op->kind,
                        op->dtype, EN_OP_KINDS - 1);
    return eni_ref_check_sense(op, device);
}

void eni_ref_describe(const en_op *op, en_plan_info *info_out)
{
    const eni_ref_kernel *kernel = eni_ref_kernel_find(op->kind);
    const int trains = !(op->flags & EN_OP_FORWARD_ONLY), has_dx = trains && !(op->flags & EN_OP_NO_DX);
    *info_out = (en_plan_info){.size = sizeof *info_out, .forward = "loops"};
    info_out->saved_bytes = trains && kernel->saved_bytes ? kernel->saved_bytes(op) : 0;
    info_out->workspace_bytes = kernel->workspace_bytes ? kernel->workspace_bytes(op) : 0;
    if (trains && kernel->backward_weights) strcpy(info_out->backward_weights, "loops");
    if (has_dx) strcpy(info_out->backward_data, "loops");
}

en_status eni_ref_alloc(en_ctx *ctx, uint64_t bytes, void **memory_out)
{
    (void)ctx;
    void *memory = eni_alloc(bytes);
    if (!memory) return EN_ENOMEM;
    *memory_out = memory;
    return EN_OK;
}

void eni_ref_free(en_ctx *ctx, void *memory)
{
    (void)ctx;
    eni_free(memory);
}

en_status eni_ref_copy(en_ctx *ctx, void *dst, const void *src, uint64_t bytes, int direction)
{
    (void)ctx, (void)direction;
    memcpy(dst, src, bytes);
    return EN_OK;
}

en_status eni_ref_zero(en_ctx *ctx, void *dst, uint64_t bytes)
{
    (void)ctx;
    memset(dst, 0, bytes);
    return EN_OK;
}

en_status eni_ref_sync(en_ctx *ctx)
{
    (void)ctx;
    return EN_OK;
}
