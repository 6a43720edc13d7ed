/* refuse.c - flags that are for GPUs, on a device that is none: refused, because a run that takes them and
 * does nothing is found out when it is too late. What a host does anyway is passed over: it computes in 32
 * bits, so --tf32 has nothing to round; and in the same bits every time, so it is --deterministic. */
#include "core/log.h"
#include "worker/worker.h"

en_status eni_refuse_without_gpu(const eni_config *config)
{
    static const char *const precisions[] = {"fp32", "bf16", "fp16"};
    if (eni_device_is_gpu(config->device)) return EN_OK;
    if (config->backend == ENI_BACKEND_NCCL)
        eni_error("worker",
                  "--backend=nccl moves gradients between GPUs, and --device=%s is none: use --device=cuda, "
                  "or --backend=host",
                  config->device);
    else if (config->precision != ENI_PRECISION_FP32)
        eni_error("worker",
                  "--precision=%s is for GPUs, and --device=%s is none: use --device=cuda, or leave it away",
                  precisions[config->precision], config->device);
    else
        return EN_OK;
    return EN_EINVAL;
}
