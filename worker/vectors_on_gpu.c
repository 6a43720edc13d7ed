/* vectors_on_gpu.c - weights and gradients that stay on the GPU, and who reaches whose:
 *
 *     ALONE    own weights, one gradient per micro-batch
 *     GROUP    own weights, own gradient; NCCL adds the gradients up
 *     SHARED   rank 0's weights and optimizer slots on all ranks, and everybody's gradients
 *
 * The last two meet the other ranks: eni_gpus_join. */
#include <string.h>

#include "runtime/core/memory.h"
#include "runtime/core/try.h"
#include "worker/gpus.h"
#include "worker/vectors_state.h"

static en_status alloc_own(eni_worker *w, eni_vectors *v)
{
    const uint64_t bytes = w->schema.count * sizeof(float);
    const int is_alone = w->gpu.way == ENI_GPU_ALONE;
    const int is_guest = w->gpu.way == ENI_GPU_SHARED && w->world.rank > 0;
    const int n = is_alone ? (int)w->accumulate : 1;
    v->grads = eni_alloc_array((size_t)n, sizeof *v->grads);
    if (v->grads == NULL) return EN_ENOMEM;
    v->ngrads = n;
    for (int i = 0; i < n; i++)
        EN_TRY(w->device.ops->alloc(w->device.ctx, bytes, (void **)&v->grads[i]));
    if (is_guest) return EN_OK;
    EN_TRY(w->device.ops->alloc(w->device.ctx, bytes, (void **)&v->param));
    for (int i = 0; i < v->nslots; i++)
        EN_TRY(w->device.ops->alloc(w->device.ctx, bytes, (void **)&v->slot[i]));
    return EN_OK;
}

en_status eni_vectors_open_on_gpu(eni_worker *w, eni_vectors *v)
{
    EN_TRY(alloc_own(w, v));
    eni_gpu_steps_config config = {.device = w->device.ops,
                                   .ctx = w->device.ctx,
                                   .buckets = w->buckets,
                                   .optimizer = w->optimizer,
                                   .sum_order = (eni_sum_order)w->config->sum_order,
                                   .nslots = v->nslots,
                                   .param = v->param,
                                   .grads = v->grads,
                                   .ngrads = v->ngrads};
    memcpy(config.slot, v->slot, sizeof config.slot);
    v->is_guest = v->param == NULL;
    config.way = ENI_GPU_ALONE;
    config.nranks = 1;
    config.alive = (eni_alive){eni_worker_alive, w, -1};
    v->param = config.param;
    memcpy(v->slot, config.slot, sizeof v->slot);
    return eni_gpu_steps_open(&config, &v->steps);
}

/* What is rank 0's is not ours to free: eni_gpus_close has given it back. */
void eni_vectors_close_on_gpu(eni_worker *w, eni_vectors *v)
{
    (void)w;
    eni_gpu_steps_close(v->steps);
    v->steps = NULL;
    if (!v->is_guest) return;
    v->param = NULL;
    memset(v->slot, 0, sizeof v->slot);
}
