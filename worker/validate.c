/* validate.c - what a rank can find wrong by itself, before it meets anybody: whoever waits for it would
 * learn it later, and from somebody else. */

#include "config/folders.h"
#include "config/outputs.h"
#include "config/units.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/weights.h"
#include "worker/worker.h"

static en_status check_stragglers(const eni_worker *w)
{
    for (int i = 0; i < w->rank.config->straggler.count; i++) {
        int64_t rank;
        double factor;
        if (eni_straggler_parse(w->rank.config->straggler.item[i], &rank, &factor) &&
            rank < w->rank.world.nranks)
            continue;
        eni_error("worker", "--straggler=%s: write RANK:FACTOR with a rank below %d, such as 1:3",
                  w->rank.config->straggler.item[i], w->rank.world.nranks);
        return EN_EINVAL;
    }
    return EN_OK;
}

/* Rank 0's weights become everybody's. A rank that has none yet may become rank 0. */
static en_status read_init(eni_worker *w)
{
    if (w->rank.config->init == NULL || w->rank.world.rank > 0 || w->rank.config->resume != NULL)
        return EN_OK;
    w->rank.job.init = eni_alloc_array(w->rank.job.schema.count, sizeof *w->rank.job.init);
    if (w->rank.job.init == NULL) return EN_ENOMEM;
    return eni_weights_load(w->rank.config->init, &w->rank.job.schema, w->rank.job.init);
}

/* Rank 0 takes it for all ranks, before it meets them; where a launcher has started us, that one has. */
static en_status take_out(eni_worker *w)
{
    const eni_config *c = w->rank.config;
    EN_TRY(eni_folder_check("--out", c->out));
    w->rank.records.out_fd = (int)c->out_fd;
    if (c->out == NULL || c->result_fd >= 0) return EN_OK;
    return w->rank.world.rank == 0 ? eni_out_take(c, c->out, ENI_OUT_RUN, &w->rank.records.out_fd)
                                   : eni_out_ask(c, c->out);
}

en_status eni_validate(eni_worker *w)
{
    EN_TRY(check_stragglers(w));
    EN_TRY(take_out(w));
    if (w->rank.world.rank <= 0) {
        EN_TRY(eni_target_check("--save", w->rank.config->save));
        EN_TRY(eni_target_check("--trace", w->rank.config->trace)); /* may lie in --out */
    }
    return read_init(w);
}

/* Flags that are for GPUs, on a device that is none: refused, because a run that takes them and does nothing
 * is found out when it is too late. What a host does anyway is passed over: it computes in 32 bits, so --tf32
 * has nothing to round; and in the same bits every time, so it is --deterministic. */
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
