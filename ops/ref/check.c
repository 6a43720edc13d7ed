/* check.c - which operations a host device accepts. */
#include <string.h>

#include "ops/ref/ref.h"
#include "runtime/core/log.h"

static const eni_ref_kernel *const kernels[EN_OP_KINDS] = {
    [EN_OP_CONV2D] = &eni_ref_conv,
    [EN_OP_LINEAR] = &eni_ref_linear,
    [EN_OP_RELU] = &eni_ref_relu,
    [EN_OP_MAXPOOL] = &eni_ref_maxpool,
    [EN_OP_RELU_MAXPOOL] = &eni_ref_relu_maxpool,
    [EN_OP_FLATTEN] = &eni_ref_flatten,
    [EN_OP_LOG_SOFTMAX] = &eni_ref_log_softmax,
    [EN_OP_NLL] = &eni_ref_nll,
    [EN_OP_CROSS_ENTROPY] = &eni_ref_cross_entropy,
    [EN_OP_MSE] = &eni_ref_mse,
};

const eni_ref_kernel *eni_ref_kernel_find(uint32_t kind)
{
    return kind < EN_OP_KINDS ? kernels[kind] : NULL;
}

en_status eni_ref_check(const en_op *op, const char *device)
{
    en_extent y;
    if (op->size < sizeof *op) {
        eni_error(device, "op of %u bytes, this library knows %zu: rebuild the older part", op->size,
                  sizeof *op);
        return EN_EVERSION;
    }
    if (op->kind == EN_OP_CAST || op->dtype == EN_BF16 || op->dtype == EN_F16) {
        eni_error(device, "the device %s computes in float32 only; bf16 and fp16 take a GPU: --device=cuda",
                  device);
        return EN_EUNSUPPORTED;
    }
    if (!eni_ref_kernel_find(op->kind) || op->dtype != EN_F32) {
        eni_error(device, "no operation of kind %u on type %u; float32 and kinds 1 to %d are known", op->kind,
                  op->dtype, EN_OP_KINDS - 1);
        return EN_EUNSUPPORTED;
    }
    if (en_op_output(op, &y) != EN_OK) {
        eni_error(device,
                  "op %u makes no sense: input (%lld, %lld, %lld, %lld), %lld channels, window %lld x %lld, "
                  "stride %lld x %lld, padding %lld x %lld",
                  op->kind, (long long)op->x.n, (long long)op->x.h, (long long)op->x.w, (long long)op->x.c,
                  (long long)op->channels, (long long)op->kernel_h, (long long)op->kernel_w,
                  (long long)op->stride_h, (long long)op->stride_w, (long long)op->pad_h,
                  (long long)op->pad_w);
        return EN_EINVAL;
    }
    const uint32_t layer = EN_OP_BIAS | EN_OP_FUSE_RELU, any = EN_OP_NO_DX | EN_OP_FORWARD_ONLY;
    const int has_weights = op->kind == EN_OP_CONV2D || op->kind == EN_OP_LINEAR;
    if (op->flags & ~(has_weights ? layer | any : any)) {
        eni_error(device, "operation %u does not have all of the flags %u", op->kind, op->flags);
        return EN_EUNSUPPORTED;
    }
    const int pools = op->kind == EN_OP_MAXPOOL || op->kind == EN_OP_RELU_MAXPOOL;
    if (pools && op->kernel_h * op->kernel_w > 255) {
        eni_error(device, "a pooling window of %lld x %lld: at most 255 places fit the byte that is saved",
                  (long long)op->kernel_h, (long long)op->kernel_w);
        return EN_EUNSUPPORTED;
    }
    return EN_OK;
}

en_extent eni_ref_output(const en_op *op)
{
    en_extent y = {0};
    (void)en_op_output(op, &y);
    return y;
}

void eni_ref_give_info(const en_plan_info *info, en_plan_info *info_out)
{
    const uint32_t size = info_out->size < sizeof *info ? info_out->size : (uint32_t)sizeof *info;
    memcpy(info_out, info, size);
    info_out->size = size;
}
