/* refuse.c - flags that have their place already but no machinery behind them: refused, because a run that
 * takes
 * --checkpoint-every and writes none is found out when it is too late. */
#include "runtime/core/log.h"
#include "worker/worker.h"

en_status eni_refuse_unbuilt(const eni_config *config)
{
    if (config->checkpoint_every > 0)
        eni_error("worker",
                  "--checkpoint-every: there are no checkpoints yet; --save writes the weights at the end");
    else if (config->resume != NULL)
        eni_error("worker", "--resume: there are no checkpoints yet; --init=FILE starts from saved weights");
    else if (config->backend == ENI_BACKEND_NCCL)
        eni_error("worker", "--backend=nccl: there are no GPU collectives yet; use --backend=host");
    else
        return EN_OK;
    return EN_EINVAL;
}
