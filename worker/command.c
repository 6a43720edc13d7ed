/* command.c - flags that this rank cannot follow. It finds that alone, before it connects to anybody, since its
 * peers would learn of it later and from somebody else. */
#include "core/log.h"
#include "run/units.h"
#include "worker/worker.h"

en_status eni_check_stragglers(const eni_worker *w)
{
    for (int i = 0; i < w->config->straggler.count; i++) {
        int64_t rank;
        double factor;
        if (eni_straggler_parse(w->config->straggler.item[i], &rank, &factor) && rank < w->rank.world.nranks)
            continue;
        return eni_fail(EN_EINVAL, "worker",
                        "--straggler=%s: write RANK:FACTOR with a rank below %d, such as 1:3",
                        w->config->straggler.item[i], w->rank.world.nranks);
    }
    return EN_OK;
}

/* Refuses flags that only a GPU can follow on a device that is not a GPU: a run that ignored them would be
 * found out too late. Flags that every host satisfies pass: it computes in 32 bits, so --tf32 has nothing to
 * round, and always in the same bits, so it is --deterministic. Whether it has bf16 it says when it is opened. */
en_status eni_refuse_without_gpu(const eni_config *config)
{
    if (eni_device_is_gpu(config->device)) return EN_OK;
    if (config->backend == ENI_BACKEND_NCCL)
        eni_error("worker",
                  "--backend=nccl moves gradients between GPUs, but --device=%s is not a GPU: use "
                  "--device=cuda, or --backend=host",
                  config->device);
    else if (config->precision == ENI_PRECISION_FP16)
        eni_error("worker",
                  "--precision=fp16 needs a GPU, but --device=%s is not a GPU: use --device=cuda, or "
                  "--precision=bf16, which --device=cpu may have",
                  config->device);
    else
        return EN_OK;
    return EN_EINVAL;
}
