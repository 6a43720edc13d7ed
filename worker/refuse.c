/* refuse.c - flags that have their place already but no machinery behind them: refused, because a run that
 * takes them and does nothing is found out when it is too late. */
#include "runtime/core/log.h"
#include "worker/worker.h"

en_status eni_refuse_unbuilt(const eni_config *config)
{
    if (config->backend == ENI_BACKEND_NCCL)
        eni_error("worker", "--backend=nccl: there are no GPU collectives yet; use --backend=host");
    else
        return EN_OK;
    return EN_EINVAL;
}
