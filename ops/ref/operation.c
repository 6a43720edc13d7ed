/* operation.c - checks an operation's shape, type and flags, and passes the messages of a device library on. It has none
 * of ref's loops, so that the cuda device can compile this file alone. */
#include <stdbool.h>
#include <string.h>

#include "core/log.h"
#include "core/try.h"
#include "ops/ref/ref.h"

static en_status check_shape(const en_op *op, const char *device)
{
    en_extent y;
    if (en_op_output(op, &y) == EN_OK) return EN_OK;
    return eni_fail(EN_EINVAL, device,
                    "invalid op %u: input (%lld, %lld, %lld, %lld), %lld channels, window %lld x %lld, "
                    "stride %lld x %lld, padding %lld x %lld",
                    op->kind, (long long)op->x.n, (long long)op->x.h, (long long)op->x.w, (long long)op->x.c,
                    (long long)op->channels, (long long)op->kernel_h, (long long)op->kernel_w,
                    (long long)op->stride_h, (long long)op->stride_w, (long long)op->pad_h,
                    (long long)op->pad_w);
}

static en_status check_batchnorm(const en_op *op, const char *device)
{
    if (!(op->flags & EN_OP_BIAS))
        return eni_fail(EN_EINVAL, device,
                        "a batch normalisation always has weights and biases: set the flag %d", EN_OP_BIAS);
    if (!(op->eps >= 0 && op->momentum >= 0 && op->momentum <= 1))
        return eni_fail(EN_EINVAL, device,
                        "invalid batch normalisation with eps %g and momentum %g: 1e-5 and 0.1 are usual",
                        (double)op->eps, (double)op->momentum);
    if (op->x.n * op->x.h * op->x.w == 1 && !(op->flags & EN_OP_FORWARD_ONLY))
        return eni_fail(EN_EINVAL, device,
                        "a batch normalisation of one value per channel (1 sample of 1 x 1, %lld channels) "
                        "has no variance; train on larger batches, or drop the last one (--drop-last)",
                        (long long)op->x.c);
    return EN_OK;
}

en_status eni_ref_check_sense(const en_op *op, const char *device)
{
    EN_TRY(check_shape(op, device));
    if (op->flags & ~(en_op_flags(op->kind) | EN_OP_NO_DX | EN_OP_FORWARD_ONLY))
        return eni_fail(EN_EUNSUPPORTED, device, "operation %u does not support all of the flags %u",
                        op->kind, op->flags);
    if (op->kind == EN_OP_BATCHNORM) EN_TRY(check_batchnorm(op, device));
    const bool has_positions = op->kind == EN_OP_MAXPOOL || op->kind == EN_OP_RELU_MAXPOOL;
    if (has_positions && op->kernel_h * op->kernel_w > 255)
        return eni_fail(
            EN_EUNSUPPORTED, device,
            "a pooling window of %lld x %lld is too large: at most 255 positions fit the saved byte",
            (long long)op->kernel_h, (long long)op->kernel_w);
    return EN_OK;
}

en_status eni_ref_check_size(const en_op *op, const char *device)
{
    if (op->size >= sizeof *op) return EN_OK;
    return eni_fail(EN_EVERSION, device,
                    "op of %u bytes, but this library expects %zu: rebuild the older part", op->size,
                    sizeof *op);
}

en_extent eni_ref_output(const en_op *op)
{
    en_extent y = {0};
    (void)en_op_output(op, &y);
    return y;
}

static void log_to_host(void *user, int level, const char *subsystem, const char *text)
{
    const en_device_host *host = user;
    host->log(level, subsystem, text);
}

void eni_ref_log_to(const en_device_host *host)
{
    if (host == NULL) return;
    eni_log_set_sink(log_to_host, (void *)host);
    eni_log_set_level(ENI_LOG_TRACE); /* the program filters by its own level */
}

void eni_ref_give_info(const en_plan_info *info, en_plan_info *info_out)
{
    const uint32_t size = info_out->size < sizeof *info ? info_out->size : (uint32_t)sizeof *info;
    memcpy(info_out, info, size);
    info_out->size = size;
}
