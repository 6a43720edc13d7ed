/* open_gpu.c - what a rank opens because its device is a GPU, and in which order it goes again.
 *
 *     after the join    which GPU, its context, where vectors lie, the model
 *     with the loader   batches in page-locked memory, and their way to the GPU
 *     at the end        nothing is under way any more; then what the GPU may have read is given back
 *
 * On a host device nothing here does anything. */
#include <string.h>
#include <sys/prctl.h>

#include "config/env.h"
#include "core/log.h"
#include "core/try.h"
#include "models/evaluate.h"
#include "worker/gpus.h"
#include "worker/graph.h"
#include "worker/prefetch.h"
#include "worker/scaler.h"
#include "worker/scores.h"
#include "worker/step.h"
#include "worker/vectors.h"

/* A sleep of Linux lasts 50 us more than was asked, which is a quarter of a small network's step. */
static const unsigned long timer_slack_ns = 1000;

/* ---- after the join ---- */

static en_status gather(void *user, const char *tag, const void *blob, size_t bytes, eni_blobs *blobs_out)
{
    return eni_member_gather(user, tag, blob, bytes, blobs_out, INT64_MAX);
}

/* The same on all ranks. */
static en_status choose_vectors(eni_worker *w)
{
    static const int backend[] = {[ENI_BACKEND_AUTO] = ENI_GPU_BACKEND_AUTO,
                                  [ENI_BACKEND_HOST] = ENI_GPU_BACKEND_HOST,
                                  [ENI_BACKEND_NCCL] = ENI_GPU_BACKEND_NCCL};
    const eni_config *c = w->config;
    const eni_gpu_facts_of_run facts = {.strategy_flags = w->strategy->flags,
                                        .is_solo = (w->strategy->flags & EN_ALONE) != 0,
                                        .has_store = eni_worker_has_store(w),
                                        .accumulate = (int)w->accumulate,
                                        .backend = backend[c->backend],
                                        .allreduce = eni_exchange_asked(c),
                                        .is_shaped = c->net != NULL,
                                        .no_shm = eni_exchange_no_shm(c)};
    EN_TRY(eni_gpus_choose(w->gpus, w->device.ctx, &facts, &w->gpu));
    eni_log(w->world.rank == 0 && !c->check ? ENI_LOG_INFO : ENI_LOG_DEBUG, "gpu", "vectors %s: %s",
            eni_worker_is_on_gpu(w) ? "stay on the GPU" : "are staged through the host", w->gpu.why);
    return EN_OK;
}

static en_status open_context(eni_worker *w)
{
    const eni_config *c = w->config;
    const eni_gpus_config gpus = {.spec = c->device,
                                  .device = w->device.ops,
                                  .host = eni_device_host(),
                                  .world = w->world,
                                  .info = w->info,
                                  .is_told = c->verbose,
                                  .gather = gather,
                                  .user = w->member};
    EN_TRY(eni_gpus_open(&gpus, &w->gpus));
    const uint32_t flags = (c->tf32 ? EN_OPEN_TF32 : 0) | (c->deterministic ? EN_OPEN_DETERMINISTIC : 0);
    const en_device_config config = {.size = sizeof config,
                                     .index = eni_gpus_index(w->gpus),
                                     .threads = w->threads,
                                     .host = eni_device_host(),
                                     .flags = flags};
    return w->device.ops->open(&config, &w->device.ctx);
}

en_status eni_gpu_open(eni_worker *w)
{
    static const uint32_t types[] = {EN_F32, EN_BF16, EN_F16};
    if (!eni_device_is_gpu(w->config->device)) return EN_OK;
    (void)prctl(PR_SET_TIMERSLACK, timer_slack_ns); /* of this thread, which waits for the GPU */
    EN_TRY(open_context(w));
    EN_TRY(choose_vectors(w));
    EN_TRY(eni_scaler_open(w));
    EN_TRY(eni_scores_open(w));
    EN_TRY(eni_graphs_open(w));
    EN_TRY(eni_lag_open(w));
    const en_model_options options = {.size = sizeof options,
                                      .dtype = types[w->config->precision],
                                      .loss_scale = eni_scaler_address(w->scaler)};
    return en_model_new(&w->schema, w->device.ops, w->device.ctx, &options, &w->model);
}

/* ---- batches ---- */

static en_status register_memory(void *user, void *memory, uint64_t bytes)
{
    const eni_device *d = user;
    return d->ops->gpu->register_memory(d->ctx, memory, bytes);
}

static void unregister_memory(void *user, void *memory)
{
    const eni_device *d = user;
    d->ops->gpu->unregister_memory(d->ctx, memory);
}

static en_status await(void *user, en_event *event)
{
    return eni_gpu_wait(user, event, "a batch to be copied");
}

void eni_gpu_loader(eni_worker *w, eni_loader_options *options)
{
    if (w->device.ops->gpu == NULL) return;
    options->hold = 2;
    options->register_memory = register_memory;
    options->unregister_memory = unregister_memory;
    options->pin_user = &w->device;
}

en_status eni_gpu_open_prefetch(eni_worker *w)
{
    const eni_dataset *d = w->dataset;
    const uint64_t count = d->split[ENI_TRAIN].count;
    if (w->device.ops->gpu == NULL) return EN_OK;
    const eni_prefetch_config config = {.device = w->device.ops,
                                        .ctx = w->device.ctx,
                                        .loader = w->loader,
                                        .rows = w->plan.batch < count ? w->plan.batch : count,
                                        .sample_bytes = d->sample_floats * sizeof(float),
                                        .target_bytes =
                                            sizeof(float) * (d->classes > 0 ? 1 : (uint64_t)d->targets),
                                        .await = await,
                                        .user = w};
    return eni_prefetch_open(&config, &w->prefetch);
}

/* ---- the end ---- */

void eni_gpu_close(eni_worker *w)
{
    if (w->device.ctx == NULL || w->device.ops->gpu == NULL) return;
    eni_vectors_settle(w);
    eni_graphs_close(w); /* they hold the group's communicator, and events of the vectors */
    eni_vectors_close(w);
    eni_scores_close(w);
    eni_scaler_close(w);
    eni_lag_close(w);
    if (w->is_stuck) return;
    for (int s = 0; s < ENI_SPLITS; s++)
        eni_evaluation_close(w->evaluation[s]);
    eni_prefetch_close(w->prefetch);
}
