/* vectors.c - a rank's weights and gradients on a GPU: waiting for it, sharing, copies to and from the
 * arena. */
#include "worker/gpu/vectors.h"

#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "worker/gpu/gpus.h"

struct eni_vectors {
    const en_gpu *gpu;
    int nslots; /* of the optimizer */
    uint32_t nbuckets;

    /* device memory: own, or, SHARED, rank 0's */
    float *param, *slot[ENI_MAX_SLOTS];
    float **grads; /* (ngrads) ALONE: by micro-batch; SHARED: by rank */
    int ngrads;
    bool is_guest; /* param and slots are rank 0's */

    en_group *group;

    /* the host's side of a copy */
    void *registered[2 + ENI_MAX_SLOTS]; /* of the arena */
    int nregistered;

    en_event *computed; /* in COMPUTE: copies begin after it */
    en_event *left;  /* in EXCHANGE: gradients have left; elsewhere: everything that was enqueued is done */
    en_event *taken; /* in EXCHANGE: new weights have been copied in */
    en_event **arrived; /* (nbuckets) a gradient is where the strategy reads it */
};

/* ---- waiting for a GPU ---- */

static bool is_group(const eni_worker *w)
{
    return eni_vectors_are_on_gpu(w) && w->gpu.choice.way == ENI_GPU_GROUP;
}

static void log_late(void *user, const char *what)
{
    const eni_worker *w = user;
    const en_gpu_facts *facts = &w->gpu.gpus->facts;
    eni_error("gpu",
              "cuda:%d (%.40s) of rank %d has not answered for %.3g s: step %llu waits for %s; see "
              "nvidia-smi and the kernel's log (Xid)",
              (int)facts->index, facts->name, w->rank.world.rank, (double)w->config->gpu_timeout_ns * 1e-9,
              (unsigned long long)w->rank.step, what);
}

eni_gpu_timeout eni_gpu_timeout_of(eni_worker *w)
{
    return (eni_gpu_timeout){is_group(w) ? 0 : w->config->gpu_timeout_ns, log_late, w};
}

static en_status wait_alone(eni_worker *w, en_event *event, const char *what)
{
    eni_gpu_steps *steps = w->rank.trainer.steps;
    const eni_alive alive = {eni_rank_alive, &w->rank, -1};
    const eni_gpu_timeout timeout = eni_gpu_timeout_of(w);
    return steps != NULL ? eni_gpu_steps_await(steps, event, what)
                         : eni_gpu_await(w->device.ops->gpu, event, &alive, &timeout, what);
}

en_status eni_gpu_wait(eni_worker *w, en_event *event, const char *what)
{
    if (!is_group(w)) return wait_alone(w, event, what);
    eni_member_wait_device(w->rank.member, "NCCL", "all gradients", w->rank.job.schema.count * sizeof(float),
                           1);
    const en_status st = wait_alone(w, event, what);
    eni_member_wait_end(w->rank.member);
    return st;
}

/* ---- memory that both sides reach ---- */

void *eni_gpu_host_alloc(eni_worker *w, uint64_t bytes)
{
    void *memory = eni_alloc_pages(bytes);
    if (memory == NULL) return NULL;
    if (w->device.ops->gpu->register_memory(w->device.ctx, memory, bytes) == EN_OK) return memory;
    eni_free(memory);
    return NULL;
}

void eni_gpu_host_free(eni_worker *w, void *memory)
{
    if (memory == NULL) return;
    if (!w->gpu.is_stuck) w->device.ops->gpu->unregister_memory(w->device.ctx, memory);
    if (!w->gpu.is_stuck) eni_free(memory); /* a stuck GPU may still write to it */
}

/* ---- placement ---- */

bool eni_vectors_are_on_gpu(const eni_worker *w)
{
    return w->gpu.choice.vectors == ENI_VECTORS_ON_GPU;
}

/* ---- vectors that stay on the GPU ---- */

/* The vectors of each way:
 *
 *     ALONE    own weights, one gradient per micro-batch
 *     GROUP    own weights, own gradient; NCCL adds the gradients up. Rank 0's id opens the group
 *     SHARED   rank 0's weights and optimizer slots on all ranks, and everybody's gradients, by handles
 *              (CUDA IPC) that are gathered */

static en_status take(const eni_worker *w, float **vector_out)
{
    uint64_t bytes = w->rank.job.schema.count * sizeof(float);
    if (w->gpu.choice.way == ENI_GPU_SHARED && bytes < EN_GPU_EXPORT_MIN) bytes = EN_GPU_EXPORT_MIN;
    return w->device.ops->alloc(w->device.ctx, bytes, (void **)vector_out);
}

static en_status take_own(eni_worker *w, eni_vectors *v)
{
    const bool is_shared = w->gpu.choice.way == ENI_GPU_SHARED;
    v->ngrads = is_shared                            ? w->rank.world.nranks
                : w->gpu.choice.way == ENI_GPU_ALONE ? (int)w->rank.job.accumulate
                                                     : 1;
    v->is_guest = is_shared && w->rank.world.rank > 0;
    v->grads = eni_alloc_array((size_t)v->ngrads, sizeof *v->grads);
    if (v->grads == NULL) return EN_ENOMEM;
    for (int i = 0; i < v->ngrads; i++)
        if (!is_shared || i == w->rank.world.rank) EN_TRY(take(w, &v->grads[i]));
    if (v->is_guest) return EN_OK;
    EN_TRY(take(w, &v->param));
    for (int i = 0; i < v->nslots; i++)
        EN_TRY(take(w, &v->slot[i]));
    return EN_OK;
}

static en_status open_group(eni_worker *w, eni_vectors *v)
{
    uint8_t id[EN_GPU_GROUP_ID] = {0};
    eni_blobs blobs = {0};
    const bool is_first = w->rank.world.rank == 0;
    if (is_first) EN_TRY(v->gpu->group_id(eni_device_host(), id));
    EN_TRY(eni_member_gather(w->rank.member, "group of GPUs", id, is_first ? sizeof id : 0, &blobs,
                             eni_now_ns() + w->config->join_timeout_ns));
    en_status st = blobs.blob[0].bytes == sizeof id ? EN_OK : EN_EPROTO;
    if (st == EN_OK) memcpy(id, blobs.blob[0].data, sizeof id);
    eni_blobs_fini(&blobs);
    EN_TRY(st);
    eni_member_wait_begin(w->rank.member, "group", "GPUs", 0, 1);
    st = v->gpu->group_open(w->device.ctx, id, w->rank.world.rank, w->rank.world.nranks, eni_rank_alive,
                            &w->rank, &v->group);
    eni_member_wait_end(w->rank.member);
    return st;
}

/* The handles by which other ranks reach this rank's memory. */
typedef struct handles {
    uint8_t grad[EN_GPU_HANDLE];
    uint8_t param[EN_GPU_HANDLE], slot[ENI_MAX_SLOTS][EN_GPU_HANDLE]; /* rank 0's */
} handles;

static en_status export_own(eni_worker *w, eni_vectors *v, handles *own)
{
    EN_TRY(v->gpu->export_memory(w->device.ctx, v->grads[w->rank.world.rank], own->grad));
    if (v->is_guest) return EN_OK;
    EN_TRY(v->gpu->export_memory(w->device.ctx, v->param, own->param));
    for (int i = 0; i < v->nslots; i++)
        EN_TRY(v->gpu->export_memory(w->device.ctx, v->slot[i], own->slot[i]));
    return EN_OK;
}

static en_status import_from(eni_worker *w, eni_vectors *v, const handles *theirs, int rank)
{
    EN_TRY(v->gpu->import_memory(w->device.ctx, theirs->grad, (void **)&v->grads[rank]));
    if (rank != 0) return EN_OK;
    EN_TRY(v->gpu->import_memory(w->device.ctx, theirs->param, (void **)&v->param));
    for (int i = 0; i < v->nslots; i++)
        EN_TRY(v->gpu->import_memory(w->device.ctx, theirs->slot[i], (void **)&v->slot[i]));
    return EN_OK;
}

/* Sharing was tried before it was chosen (gpus.h), so it fails only if the machine has run out of
 * something. */
static en_status reach_others(eni_worker *w, eni_vectors *v)
{
    handles own = {0}, theirs;
    eni_blobs blobs = {0};
    en_status st = export_own(w, v, &own);
    if (st == EN_OK)
        st = eni_member_gather(w->rank.member, "memory of GPUs", &own, sizeof own, &blobs,
                               eni_now_ns() + w->config->join_timeout_ns);
    for (int r = 0; r < w->rank.world.nranks && st == EN_OK; r++) {
        if (r == w->rank.world.rank) continue;
        if (blobs.blob[r].bytes != sizeof theirs) st = EN_EPROTO;
        if (st != EN_OK) break;
        memcpy(&theirs, blobs.blob[r].data, sizeof theirs);
        st = import_from(w, v, &theirs, r);
    }
    eni_blobs_fini(&blobs);
    if (st != EN_OK && st != EN_EINTR && st != EN_EPEER)
        eni_error(
            "gpu",
            "rank %d cannot share its GPU's memory: %s; use --backend=host, which goes through the host",
            w->rank.world.rank, en_status_str(st));
    return st;
}

/* Releases imported memory; own memory stays. */
static void release(eni_worker *w, float **vector)
{
    if (*vector != NULL) w->device.ops->gpu->release_memory(w->device.ctx, *vector);
    *vector = NULL;
}

static void release_imported(eni_worker *w, eni_vectors *v)
{
    if (!eni_vectors_are_on_gpu(w) || w->gpu.choice.way != ENI_GPU_SHARED) return;
    for (int r = 0; v->grads != NULL && r < v->ngrads; r++)
        if (r != w->rank.world.rank) release(w, &v->grads[r]);
    if (!v->is_guest) return;
    release(w, &v->param);
    for (int i = 0; i < v->nslots; i++)
        release(w, &v->slot[i]);
}

/* Everything enqueued in COMPUTE so far. */
static en_status await_computed(eni_worker *w, const char *what)
{
    eni_vectors *v = w->gpu.vectors;
    EN_TRY(v->gpu->event_record(v->computed, EN_STREAM_COMPUTE));
    return eni_gpu_wait(w, v->computed, what);
}

en_status eni_vectors_leave(void *worker)
{
    eni_worker *w = worker;
    eni_vectors *v = w->gpu.vectors;
    if (!eni_vectors_are_on_gpu(w) || w->gpu.choice.way == ENI_GPU_ALONE) return EN_OK;
    EN_TRY(await_computed(w, "its last step")); /* after the last collective */
    release_imported(w, v);
    return eni_member_gather(w->rank.member, "GPUs are done", NULL, 0, NULL, INT64_MAX);
}

static en_status open_on_gpu(eni_worker *w, eni_vectors *v)
{
    EN_TRY(take_own(w, v));
    if (w->gpu.choice.way == ENI_GPU_GROUP) EN_TRY(open_group(w, v));
    if (w->gpu.choice.way == ENI_GPU_SHARED) EN_TRY(reach_others(w, v));
    eni_gpu_steps_config config = {.way = w->gpu.choice.way,
                                   .rank = w->rank.world.rank,
                                   .nranks = w->rank.world.nranks,
                                   .device = w->device.ops,
                                   .ctx = w->device.ctx,
                                   .buckets = w->rank.job.buckets,
                                   .optimizer = w->rank.job.optimizer,
                                   .groups = w->rank.job.hyper.groups,
                                   .sum_order = (eni_sum_order)w->config->sum_order,
                                   .nslots = v->nslots,
                                   .param = v->param,
                                   .grads = v->grads,
                                   .ngrads = v->ngrads,
                                   .group = v->group,
                                   .alive = {eni_rank_alive, &w->rank, -1},
                                   .timeout = eni_gpu_timeout_of(w)};
    memcpy(config.slot, v->slot, sizeof config.slot);
    return eni_gpu_steps_open(&config, &w->rank.trainer.steps);
}

void eni_vectors_abort(void *worker)
{
    const eni_worker *w = worker;
    const eni_vectors *v = w->gpu.vectors;
    if (v != NULL && v->group != NULL) v->gpu->group_abort(v->group);
}

/* ---- lifetime ---- */

static en_status new_events(eni_worker *w, eni_vectors *v)
{
    EN_TRY(v->gpu->event_new(w->device.ctx, &v->computed));
    EN_TRY(v->gpu->event_new(w->device.ctx, &v->left));
    EN_TRY(v->gpu->event_new(w->device.ctx, &v->taken));
    v->arrived = eni_alloc_array(v->nbuckets, sizeof *v->arrived);
    if (v->arrived == NULL) return EN_ENOMEM;
    for (uint32_t b = 0; b < v->nbuckets; b++)
        EN_TRY(v->gpu->event_new(w->device.ctx, &v->arrived[b]));
    return EN_OK;
}

static en_status open_staged(eni_worker *w, eni_vectors *v)
{
    const uint64_t bytes = w->rank.job.schema.count * sizeof(float);
    v->grads = eni_alloc_array(1, sizeof *v->grads);
    if (v->grads == NULL) return EN_ENOMEM;
    v->ngrads = 1;
    EN_TRY(w->device.ops->alloc(w->device.ctx, bytes, (void **)&v->param));
    EN_TRY(w->device.ops->alloc(w->device.ctx, bytes, (void **)&v->grads[0]));
    for (int64_t i = 0; w->rank.exchange.micros != NULL && i < w->rank.job.accumulate; i++)
        EN_TRY(v->gpu->register_memory(w->device.ctx, w->rank.exchange.micros[i], bytes));
    return EN_OK;
}

en_status eni_vectors_open(void *worker)
{
    eni_worker *w = worker;
    eni_vectors *v = eni_alloc(sizeof *v);
    if (v == NULL) return EN_ENOMEM;
    w->gpu.vectors = v;
    v->gpu = w->device.ops->gpu;
    v->nslots = w->rank.job.optimizer->slots(&w->rank.job.hyper);
    v->nbuckets = w->rank.job.buckets->n;
    EN_TRY(new_events(w, v));
    return w->gpu.choice.vectors == ENI_VECTORS_STAGED ? open_staged(w, v) : open_on_gpu(w, v);
}

/* An eni_alive.status that ends at a deadline. */
static en_status is_early(void *deadline_ns)
{
    return eni_now_ns() < *(const int64_t *)deadline_ns ? EN_OK : EN_ETIMEOUT;
}

/* Waits, with a deadline: enqueued work may still read and write the memory that is about to be freed. */
static bool has_settled(const eni_vectors *v)
{
    en_event *const events[EN_STREAMS] = {v->computed, v->left, v->taken};
    int64_t deadline = eni_now_ns() + 2 * ENI_SECOND;
    const eni_alive alive = {is_early, &deadline, -1};
    for (int q = 0; q < EN_STREAMS; q++) {
        if (events[q] == NULL) return true; /* nothing can be in flight yet */
        if (v->gpu->event_record(events[q], q) == EN_OK &&
            eni_gpu_await(v->gpu, events[q], &alive, NULL, "") == EN_ETIMEOUT)
            return false;
    }
    return true;
}

void eni_vectors_settle(eni_worker *w)
{
    eni_vectors *v = w->gpu.vectors;
    if (v == NULL) return;
    w->gpu.is_stuck = !has_settled(v); /* work that waited for a lost peer has been aborted (give_up) */
    if (w->gpu.is_stuck)
        eni_warn("gpu", "the GPU does not answer: its memory is freed when the process ends");
}

void eni_vectors_close(eni_worker *w)
{
    eni_vectors *v = w->gpu.vectors;
    if (v == NULL || w->gpu.is_stuck) return;
    if (v->group != NULL) v->gpu->group_close(v->group);
    eni_gpu_steps_close(w->rank.trainer.steps);
    w->rank.trainer.steps = NULL;
    release_imported(w, v); /* after a death; otherwise they have been released already */
    for (int i = 0; i < v->nregistered; i++)
        v->gpu->unregister_memory(w->device.ctx, v->registered[i]);
    for (int64_t i = 0;
         eni_vectors_are_staged(w) && w->rank.exchange.micros != NULL && i < w->rank.job.accumulate; i++)
        if (w->rank.exchange.micros[i] != NULL)
            v->gpu->unregister_memory(w->device.ctx, w->rank.exchange.micros[i]);
    if (!v->is_guest) {
        w->device.ops->free(w->device.ctx, v->param);
        for (int i = 0; i < ENI_MAX_SLOTS; i++)
            w->device.ops->free(w->device.ctx, v->slot[i]);
    }
    for (int i = 0; v->grads != NULL && i < v->ngrads; i++)
        w->device.ops->free(w->device.ctx, v->grads[i]);
    eni_free(v->grads);
    for (uint32_t b = 0; v->arrived != NULL && b < v->nbuckets; b++)
        v->gpu->event_free(v->arrived[b]);
    eni_free(v->arrived);
    v->gpu->event_free(v->computed);
    v->gpu->event_free(v->left);
    v->gpu->event_free(v->taken);
    eni_free(v);
    w->gpu.vectors = NULL;
}

/* ---- addresses ---- */

const float *eni_vectors_param(const eni_worker *w)
{
    return w->gpu.vectors == NULL ? eni_arena_at(w->rank.exchange.arena, ENI_SLOT_PARAM, 0)
                                  : w->gpu.vectors->param;
}

float *eni_vectors_grad(const eni_worker *w, int64_t micro)
{
    if (eni_vectors_are_staged(w)) return w->gpu.vectors->grads[0];
    return w->gpu.vectors->grads[w->gpu.choice.way == ENI_GPU_SHARED ? w->rank.world.rank : micro];
}

en_status eni_vectors_zero_grad(eni_worker *w, int64_t micro)
{
    const uint64_t bytes = w->rank.job.schema.count * sizeof(float);
    if (eni_vectors_are_staged(w)) memset(eni_arena_at(w->rank.exchange.arena, ENI_SLOT_GRAD, 0), 0, bytes);
    return w->gpu.vectors->gpu->zero(w->device.ctx, EN_STREAM_COMPUTE, eni_vectors_grad(w, micro), bytes);
}

/* ---- gradients go out ---- */

/* Work enqueued in `stream` from now on begins after the work in `other`. */
static en_status put_behind(eni_worker *w, int stream, int other, en_event *event)
{
    EN_TRY(w->gpu.vectors->gpu->event_record(event, other));
    return w->gpu.vectors->gpu->wait_event(w->device.ctx, stream, event);
}

en_status eni_vectors_send_out(eni_worker *w, uint32_t bucket)
{
    eni_vectors *v = w->gpu.vectors;
    const eni_bucket_range *range = &w->rank.job.buckets->bucket[bucket];
    const uint64_t bytes = (range->hi - range->lo) * sizeof(float);
    EN_TRY(put_behind(w, EN_STREAM_EXCHANGE, EN_STREAM_COMPUTE, v->computed));
    EN_TRY(v->gpu->copy(w->device.ctx, EN_STREAM_EXCHANGE,
                        eni_arena_at(w->rank.exchange.arena, ENI_SLOT_GRAD, range->lo),
                        eni_vectors_grad(w, 0) + range->lo, bytes, EN_COPY_OUT));
    return v->gpu->event_record(v->arrived[bucket], EN_STREAM_EXCHANGE);
}

en_status eni_vectors_await(eni_worker *w, uint32_t bucket)
{
    const eni_bucket_range *range = &w->rank.job.buckets->bucket[bucket];
    EN_TRY(eni_gpu_wait(w, w->gpu.vectors->arrived[bucket], "a gradient"));
    w->gpu.copied += (range->hi - range->lo) * sizeof(float);
    return EN_OK;
}

en_status eni_vectors_join(eni_worker *w)
{
    return eni_vectors_are_staged(w)
               ? put_behind(w, EN_STREAM_COMPUTE, EN_STREAM_EXCHANGE, w->gpu.vectors->left)
               : EN_OK;
}

en_status eni_vectors_send_micro(eni_worker *w, int64_t micro)
{
    eni_vectors *v = w->gpu.vectors;
    const uint64_t bytes = w->rank.job.schema.count * sizeof(float);
    if (!eni_vectors_are_staged(w)) return EN_OK;
    EN_TRY(put_behind(w, EN_STREAM_EXCHANGE, EN_STREAM_COMPUTE, v->computed));
    EN_TRY(v->gpu->copy(w->device.ctx, EN_STREAM_EXCHANGE, w->rank.exchange.micros[micro], v->grads[0], bytes,
                        EN_COPY_OUT));
    w->gpu.copied += bytes;
    return eni_vectors_join(w);
}

en_status eni_vectors_await_micros(eni_worker *w)
{
    return eni_vectors_are_staged(w)
               ? eni_gpu_wait(w, w->gpu.vectors->left, "the gradients of its micro-batches")
               : EN_OK;
}

/* ---- weights come in ---- */

static en_status take_in(eni_worker *w, uint32_t bucket)
{
    eni_vectors *v = w->gpu.vectors;
    const eni_bucket_range *range = &w->rank.job.buckets->bucket[bucket];
    const uint64_t bytes = (range->hi - range->lo) * sizeof(float);
    w->gpu.copied += bytes;
    return v->gpu->copy(w->device.ctx, EN_STREAM_EXCHANGE, v->param + range->lo,
                        eni_arena_at(w->rank.exchange.arena, ENI_SLOT_PARAM, range->lo), bytes, EN_COPY_IN);
}

/* Work enqueued in COMPUTE from now on begins after the new weights. */
static en_status have_taken(eni_worker *w)
{
    return put_behind(w, EN_STREAM_COMPUTE, EN_STREAM_EXCHANGE, w->gpu.vectors->taken);
}

static en_status take_in_all(eni_worker *w)
{
    for (uint32_t b = 0; b < w->rank.job.buckets->n; b++)
        EN_TRY(take_in(w, b));
    return have_taken(w);
}

/* Bucket by bucket, each while the next is awaited; but only after after_step, which may change the
 * weights. */
en_status eni_vectors_finish(void *worker, eni_step_run *run)
{
    eni_worker *w = worker;
    (void)run;
    const bool is_late = w->rank.job.strategy->after_step != NULL;
    if (!eni_vectors_are_staged(w)) return eni_host_finish(w->rank.exchange.host);
    for (uint32_t b = 0; b < w->rank.job.buckets->n; b++) {
        EN_TRY(eni_host_finish_bucket(w->rank.exchange.host, b));
        if (!is_late) EN_TRY(take_in(w, b));
    }
    EN_TRY(eni_host_end(w->rank.exchange.host));
    if (is_late) return take_in_all(w);
    EN_TRY(have_taken(w));
    /* before_step may write what is being read */
    return w->rank.job.strategy->before_step != NULL
               ? eni_gpu_wait(w, w->gpu.vectors->taken, "its weights to arrive")
               : EN_OK;
}

en_status eni_vectors_begun(eni_worker *w)
{
    return eni_vectors_are_staged(w) && w->rank.job.strategy->before_step != NULL ? take_in_all(w) : EN_OK;
}

/* ---- all at once, now and then ---- */

/* One vector, in COMPUTE, after all steps; blocks. */
static en_status copy_now(eni_worker *w, float *to, const float *from, int direction)
{
    EN_TRY(w->gpu.vectors->gpu->copy(w->device.ctx, EN_STREAM_COMPUTE, to, from,
                                     w->rank.job.schema.count * sizeof(float), direction));
    return await_computed(w, "a copy of its vectors");
}

/* Every vector of this rank, in the given direction. */
static en_status copy_all(eni_worker *w, int direction, bool and_slots)
{
    eni_vectors *v = w->gpu.vectors;
    uint32_t first;
    eni_host_optimizer_slots(w->rank.exchange.host, &first);
    for (int i = -1; i < (and_slots ? v->nslots : 0); i++) {
        float *there = i < 0 ? v->param : v->slot[i];
        float *here = eni_arena_at(w->rank.exchange.arena, i < 0 ? ENI_SLOT_PARAM : first + (uint32_t)i, 0);
        const bool is_in = direction == EN_COPY_IN;
        EN_TRY(copy_now(w, is_in ? there : here, is_in ? here : there, direction));
    }
    return EN_OK;
}

en_status eni_vectors_bring(void *worker, bool and_slots)
{
    eni_worker *w = worker;
    return eni_vectors_are_on_gpu(w) ? copy_all(w, EN_COPY_OUT, and_slots) : EN_OK;
}

en_status eni_vectors_send_grad(eni_worker *w)
{
    float *here = eni_arena_at(w->rank.exchange.arena, ENI_SLOT_GRAD, 0);
    if (w->gpu.vectors == NULL) return EN_OK;
    EN_TRY(copy_now(w, eni_vectors_grad(w, 0), here, EN_COPY_IN));
    if (eni_vectors_are_staged(w)) memset(here, 0, w->rank.job.schema.count * sizeof(float));
    return EN_OK;
}

en_status eni_vectors_fetch_param(eni_worker *w)
{
    return copy_now(w, eni_arena_at(w->rank.exchange.arena, ENI_SLOT_GRAD, 0), w->gpu.vectors->param,
                    EN_COPY_OUT);
}

static en_status pin_slot(eni_worker *w, uint32_t slot)
{
    eni_vectors *v = w->gpu.vectors;
    void *memory = eni_arena_at(w->rank.exchange.arena, slot, 0);
    EN_TRY(v->gpu->register_memory(w->device.ctx, memory, w->rank.job.schema.count * sizeof(float)));
    v->registered[v->nregistered++] = memory;
    return EN_OK;
}

en_status eni_vectors_start(void *worker)
{
    eni_worker *w = worker;
    eni_vectors *v = w->gpu.vectors;
    uint32_t first;
    EN_TRY(pin_slot(w, ENI_SLOT_PARAM));
    EN_TRY(pin_slot(w, ENI_SLOT_GRAD));
    if (eni_vectors_are_staged(w)) {
        EN_TRY(take_in_all(w));
        return eni_gpu_wait(w, v->taken, "its weights to arrive");
    }
    eni_host_optimizer_slots(w->rank.exchange.host, &first);
    for (int i = 0; i < v->nslots; i++)
        EN_TRY(pin_slot(w, first + (uint32_t)i));
    if (!v->is_guest) EN_TRY(copy_all(w, EN_COPY_IN, true));
    if (w->gpu.choice.way != ENI_GPU_SHARED) return EN_OK;
    /* the others compute with rank 0's weights, so they wait for them */
    return eni_member_gather(w->rank.member, "weights on the GPU", NULL, 0, NULL, INT64_MAX);
}
