/* vectors_on_gpu.c - weights and gradients that stay on the GPU, and who reaches whose:
 *
 *     ALONE    own weights, one gradient per micro-batch
 *     GROUP    own weights, own gradient; NCCL adds the gradients up. Rank 0's id opens the group
 *     SHARED   rank 0's weights and optimizer slots on all ranks, and everybody's gradients, by handles
 *              (CUDA IPC) that are gathered */
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "worker/vectors_state.h"

/* ---- memory ---- */

static en_status take(const eni_worker *w, float **vector_out)
{
    uint64_t bytes = w->schema.count * sizeof(float);
    if (w->gpu.way == ENI_GPU_SHARED && bytes < EN_GPU_EXPORT_MIN) bytes = EN_GPU_EXPORT_MIN;
    return w->device.ops->alloc(w->device.ctx, bytes, (void **)vector_out);
}

static en_status take_own(eni_worker *w, eni_vectors *v)
{
    const int is_shared = w->gpu.way == ENI_GPU_SHARED;
    v->ngrads = is_shared ? w->world.nranks : w->gpu.way == ENI_GPU_ALONE ? (int)w->accumulate : 1;
    v->is_guest = is_shared && w->world.rank > 0;
    v->grads = eni_alloc_array((size_t)v->ngrads, sizeof *v->grads);
    if (v->grads == NULL) return EN_ENOMEM;
    for (int i = 0; i < v->ngrads; i++)
        if (!is_shared || i == w->world.rank) EN_TRY(take(w, &v->grads[i]));
    if (v->is_guest) return EN_OK;
    EN_TRY(take(w, &v->param));
    for (int i = 0; i < v->nslots; i++)
        EN_TRY(take(w, &v->slot[i]));
    return EN_OK;
}

/* ---- GROUP ---- */

static en_status open_group(eni_worker *w, eni_vectors *v)
{
    uint8_t id[EN_GPU_GROUP_ID] = {0};
    eni_blobs blobs = {0};
    const int is_first = w->world.rank == 0;
    if (is_first) EN_TRY(v->gpu->group_id(eni_device_host(), id));
    EN_TRY(eni_member_gather(w->member, "group of GPUs", id, is_first ? sizeof id : 0, &blobs,
                             eni_now_ns() + w->config->join_timeout_ns));
    en_status st = blobs.blob[0].bytes == sizeof id ? EN_OK : EN_EPROTO;
    if (st == EN_OK) memcpy(id, blobs.blob[0].data, sizeof id);
    eni_blobs_fini(&blobs);
    EN_TRY(st);
    eni_member_wait_begin(w->member, "group", "GPUs", 0, 1);
    st =
        v->gpu->group_open(w->device.ctx, id, w->world.rank, w->world.nranks, eni_worker_alive, w, &v->group);
    eni_member_wait_end(w->member);
    return st;
}

/* ---- SHARED ---- */

/* What a rank lets the others reach. */
typedef struct lent {
    uint8_t grad[EN_GPU_HANDLE];
    uint8_t param[EN_GPU_HANDLE], slot[ENI_MAX_SLOTS][EN_GPU_HANDLE]; /* rank 0's */
} lent;

static en_status lend(eni_worker *w, eni_vectors *v, lent *own)
{
    EN_TRY(v->gpu->export_memory(w->device.ctx, v->grads[w->world.rank], own->grad));
    if (v->is_guest) return EN_OK;
    EN_TRY(v->gpu->export_memory(w->device.ctx, v->param, own->param));
    for (int i = 0; i < v->nslots; i++)
        EN_TRY(v->gpu->export_memory(w->device.ctx, v->slot[i], own->slot[i]));
    return EN_OK;
}

static en_status borrow(eni_worker *w, eni_vectors *v, const lent *theirs, int rank)
{
    EN_TRY(v->gpu->import_memory(w->device.ctx, theirs->grad, (void **)&v->grads[rank]));
    if (rank != 0) return EN_OK;
    EN_TRY(v->gpu->import_memory(w->device.ctx, theirs->param, (void **)&v->param));
    for (int i = 0; i < v->nslots; i++)
        EN_TRY(v->gpu->import_memory(w->device.ctx, theirs->slot[i], (void **)&v->slot[i]));
    return EN_OK;
}

/* Sharing was tried before it was chosen (gpus.h), so it works, or the machine has run out of something. */
static en_status reach_others(eni_worker *w, eni_vectors *v)
{
    lent own = {0}, theirs;
    eni_blobs blobs = {0};
    en_status st = lend(w, v, &own);
    if (st == EN_OK)
        st = eni_member_gather(w->member, "memory of GPUs", &own, sizeof own, &blobs,
                               eni_now_ns() + w->config->join_timeout_ns);
    for (int r = 0; r < w->world.nranks && st == EN_OK; r++) {
        if (r == w->world.rank) continue;
        if (blobs.blob[r].bytes != sizeof theirs) st = EN_EPROTO;
        if (st != EN_OK) break;
        memcpy(&theirs, blobs.blob[r].data, sizeof theirs);
        st = borrow(w, v, &theirs, r);
    }
    eni_blobs_fini(&blobs);
    if (st != EN_OK && st != EN_EINTR && st != EN_EPEER)
        eni_error("gpu", "rank %d cannot share its GPU's memory: %s; --backend=host goes through the host",
                  w->world.rank, en_status_str(st));
    return st;
}

/* What was imported; own memory stays. */
static void give_back(eni_worker *w, float **vector)
{
    if (*vector != NULL) w->device.ops->gpu->release_memory(w->device.ctx, *vector);
    *vector = NULL;
}

static void give_all_back(eni_worker *w, eni_vectors *v)
{
    if (!eni_worker_is_on_gpu(w) || w->gpu.way != ENI_GPU_SHARED) return;
    for (int r = 0; v->grads != NULL && r < v->ngrads; r++)
        if (r != w->world.rank) give_back(w, &v->grads[r]);
    if (!v->is_guest) return;
    give_back(w, &v->param);
    for (int i = 0; i < v->nslots; i++)
        give_back(w, &v->slot[i]);
}

en_status eni_vectors_leave(eni_worker *w)
{
    eni_vectors *v = w->vectors;
    if (v == NULL || !eni_worker_is_on_gpu(w) || w->gpu.way == ENI_GPU_ALONE) return EN_OK;
    EN_TRY(v->gpu->event_record(v->computed, EN_STREAM_COMPUTE)); /* behind the last collective */
    EN_TRY(eni_gpu_wait(w, v->computed, "its last step"));
    give_all_back(w, v);
    return eni_member_gather(w->member, "GPUs are done", NULL, 0, NULL, INT64_MAX);
}

/* ---- life ---- */

en_status eni_vectors_open_on_gpu(eni_worker *w, eni_vectors *v)
{
    EN_TRY(take_own(w, v));
    if (w->gpu.way == ENI_GPU_GROUP) EN_TRY(open_group(w, v));
    if (w->gpu.way == ENI_GPU_SHARED) EN_TRY(reach_others(w, v));
    eni_gpu_steps_config config = {.way = w->gpu.way,
                                   .rank = w->world.rank,
                                   .nranks = w->world.nranks,
                                   .device = w->device.ops,
                                   .ctx = w->device.ctx,
                                   .buckets = w->buckets,
                                   .optimizer = w->optimizer,
                                   .sum_order = (eni_sum_order)w->config->sum_order,
                                   .nslots = v->nslots,
                                   .param = v->param,
                                   .grads = v->grads,
                                   .ngrads = v->ngrads,
                                   .group = v->group,
                                   .alive = {eni_worker_alive, w, -1},
                                   .timeout = eni_gpu_timeout_of(w)};
    memcpy(config.slot, v->slot, sizeof config.slot);
    return eni_gpu_steps_open(&config, &v->steps);
}

void eni_vectors_abort(const eni_worker *w)
{
    const eni_vectors *v = w->vectors;
    if (v != NULL && v->group != NULL) v->gpu->group_abort(v->group);
}

void eni_vectors_close_on_gpu(eni_worker *w, eni_vectors *v)
{
    eni_gpu_steps_close(v->steps);
    v->steps = NULL;
    give_all_back(w, v); /* after a death; else they have it already */
}
