/* vectors.c - see vectors.h. */
#include "worker/vectors_state.h"

#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "worker/gpus.h"

/* ---- waiting for a GPU ---- */

static int is_group(const eni_worker *w)
{
    return eni_worker_is_on_gpu(w) && w->gpu.way == ENI_GPU_GROUP;
}

static void tell_late(void *user, const char *what)
{
    const eni_worker *w = user;
    const en_gpu_facts *facts = eni_gpus_facts(w->gpus);
    eni_error("gpu",
              "cuda:%d (%.40s) of rank %d has not answered for %.3g s: step %llu waits for %s; see what "
              "nvidia-smi and the kernel's log (Xid) say of it",
              (int)facts->index, facts->name, w->world.rank, (double)w->config->gpu_timeout_ns * 1e-9,
              (unsigned long long)w->step, what);
}

eni_gpu_timeout eni_gpu_timeout_of(eni_worker *w)
{
    return (eni_gpu_timeout){is_group(w) ? 0 : w->config->gpu_timeout_ns, tell_late, w};
}

static en_status wait_alone(eni_worker *w, en_event *event, const char *what)
{
    eni_gpu_steps *steps = eni_vectors_steps(w);
    const eni_alive alive = {eni_worker_alive, w, -1};
    const eni_gpu_timeout timeout = eni_gpu_timeout_of(w);
    return steps != NULL ? eni_gpu_steps_await(steps, event, what)
                         : eni_gpu_await(w->device.ops->gpu, event, &alive, &timeout, what);
}

en_status eni_gpu_wait(eni_worker *w, en_event *event, const char *what)
{
    if (!is_group(w)) return wait_alone(w, event, what);
    eni_member_wait_device(w->member, "NCCL", "all gradients", w->schema.count * sizeof(float), 1);
    const en_status st = wait_alone(w, event, what);
    eni_member_wait_end(w->member);
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
    if (!w->is_stuck) w->device.ops->gpu->unregister_memory(w->device.ctx, memory);
    if (!w->is_stuck) eni_free(memory); /* what a stuck GPU may still write stays */
}

/* ---- which ---- */

int eni_vectors_where(const eni_worker *w)
{
    return w->vectors == NULL ? ENI_VECTORS_ON_HOST : w->gpu.vectors;
}

const eni_gpu_choice *eni_vectors_choice(const eni_worker *w)
{
    return w->vectors == NULL ? NULL : &w->gpu;
}

eni_gpu_steps *eni_vectors_steps(const eni_worker *w)
{
    return w->vectors == NULL ? NULL : w->vectors->steps;
}

static int is_staged(const eni_worker *w)
{
    return eni_vectors_where(w) == ENI_VECTORS_STAGED;
}

/* ---- life ---- */

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
    const uint64_t bytes = w->schema.count * sizeof(float);
    v->grads = eni_alloc_array(1, sizeof *v->grads);
    if (v->grads == NULL) return EN_ENOMEM;
    v->ngrads = 1;
    EN_TRY(w->device.ops->alloc(w->device.ctx, bytes, (void **)&v->param));
    EN_TRY(w->device.ops->alloc(w->device.ctx, bytes, (void **)&v->grads[0]));
    for (int64_t i = 0; w->micro_grads != NULL && i < w->accumulate; i++)
        EN_TRY(v->gpu->register_memory(w->device.ctx, w->micro_grads[i], bytes));
    return EN_OK;
}

en_status eni_vectors_open(eni_worker *w)
{
    if (w->device.ops->gpu == NULL) return EN_OK;
    eni_vectors *v = eni_alloc(sizeof *v);
    if (v == NULL) return EN_ENOMEM;
    w->vectors = v;
    v->gpu = w->device.ops->gpu;
    v->nslots = w->optimizer->slots(&w->hyper);
    v->nbuckets = w->buckets->n;
    EN_TRY(new_events(w, v));
    return w->gpu.vectors == ENI_VECTORS_STAGED ? open_staged(w, v) : eni_vectors_open_on_gpu(w, v);
}

static en_status pin_slot(eni_worker *w, uint32_t slot)
{
    eni_vectors *v = w->vectors;
    void *memory = eni_arena_at(w->arena, slot, 0);
    EN_TRY(v->gpu->register_memory(w->device.ctx, memory, w->schema.count * sizeof(float)));
    v->registered[v->nregistered++] = memory;
    return EN_OK;
}

en_status eni_vectors_start(eni_worker *w)
{
    eni_vectors *v = w->vectors;
    uint32_t first;
    if (v == NULL) return EN_OK;
    EN_TRY(pin_slot(w, ENI_SLOT_PARAM));
    EN_TRY(pin_slot(w, ENI_SLOT_GRAD));
    if (!is_staged(w)) {
        eni_host_optimizer_slots(w->strategy_host, &first);
        for (int i = 0; i < v->nslots; i++)
            EN_TRY(pin_slot(w, first + (uint32_t)i));
    }
    return eni_vectors_send(w);
}

/* eni_alive.status: until a deadline. */
static en_status is_early(void *deadline_ns)
{
    return eni_now_ns() < *(const int64_t *)deadline_ns ? EN_OK : EN_ETIMEOUT;
}

/* What was put into the streams may still read and write what is about to go. */
static int has_settled(const eni_vectors *v)
{
    en_event *const events[EN_STREAMS] = {v->computed, v->left, v->taken};
    int64_t deadline = eni_now_ns() + 2 * ENI_SECOND;
    const eni_alive alive = {is_early, &deadline, -1};
    for (int q = 0; q < EN_STREAMS; q++) {
        if (events[q] == NULL) return 1; /* nothing can be under way yet */
        if (v->gpu->event_record(events[q], q) == EN_OK && eni_gpu_await(v->gpu, events[q], &alive, NULL, "") == EN_ETIMEOUT)
            return 0;
    }
    return 1;
}

void eni_vectors_settle(eni_worker *w)
{
    eni_vectors *v = w->vectors;
    if (v == NULL) return;
    w->is_stuck = !has_settled(v); /* what waited for a peer who is gone has been aborted (give_up) */
    if (w->is_stuck)
        eni_warn("gpu", "the GPU does not answer: its memory is given back when the process ends");
}

void eni_vectors_close(eni_worker *w)
{
    eni_vectors *v = w->vectors;
    if (v == NULL || w->is_stuck) return;
    if (v->group != NULL) v->gpu->group_close(v->group);
    eni_vectors_close_on_gpu(w, v);
    for (int i = 0; i < v->nregistered; i++)
        v->gpu->unregister_memory(w->device.ctx, v->registered[i]);
    for (int64_t i = 0; is_staged(w) && w->micro_grads != NULL && i < w->accumulate; i++)
        if (w->micro_grads[i] != NULL) v->gpu->unregister_memory(w->device.ctx, w->micro_grads[i]);
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
    w->vectors = NULL;
}

/* ---- addresses ---- */

static int own_grad(const eni_worker *w, int64_t micro)
{
    if (is_staged(w)) return 0;
    return w->gpu.way == ENI_GPU_SHARED ? w->world.rank : (int)micro;
}

const float *eni_vectors_param(const eni_worker *w)
{
    return w->vectors == NULL ? eni_arena_at(w->arena, ENI_SLOT_PARAM, 0) : w->vectors->param;
}

float *eni_vectors_grad(const eni_worker *w, int64_t micro)
{
    if (w->vectors != NULL) return w->vectors->grads[own_grad(w, micro)];
    return w->micro_grads != NULL ? w->micro_grads[micro] : eni_arena_at(w->arena, ENI_SLOT_GRAD, 0);
}

en_status eni_vectors_zero_grad(eni_worker *w, int64_t micro)
{
    const uint64_t bytes = w->schema.count * sizeof(float);
    if (w->vectors == NULL || is_staged(w)) memset(eni_arena_at(w->arena, ENI_SLOT_GRAD, 0), 0, bytes);
    if (w->vectors == NULL) return EN_OK;
    return w->vectors->gpu->zero(w->device.ctx, EN_STREAM_COMPUTE, eni_vectors_grad(w, micro), bytes);
}

/* ---- gradients go out ---- */

/* What is put into EXCHANGE from now on begins behind what is in COMPUTE. */
static en_status exchange_behind_compute(eni_worker *w)
{
    eni_vectors *v = w->vectors;
    EN_TRY(v->gpu->event_record(v->computed, EN_STREAM_COMPUTE));
    return v->gpu->wait_event(w->device.ctx, EN_STREAM_EXCHANGE, v->computed);
}

en_status eni_vectors_send_out(eni_worker *w, uint32_t bucket)
{
    eni_vectors *v = w->vectors;
    const eni_bucket_range *range = &w->buckets->bucket[bucket];
    const uint64_t bytes = (range->hi - range->lo) * sizeof(float);
    EN_TRY(exchange_behind_compute(w));
    EN_TRY(v->gpu->copy(w->device.ctx, EN_STREAM_EXCHANGE, eni_arena_at(w->arena, ENI_SLOT_GRAD, range->lo),
                        eni_vectors_grad(w, 0) + range->lo, bytes, EN_COPY_OUT));
    return v->gpu->event_record(v->arrived[bucket], EN_STREAM_EXCHANGE);
}

en_status eni_vectors_await(eni_worker *w, uint32_t bucket)
{
    const eni_bucket_range *range = &w->buckets->bucket[bucket];
    EN_TRY(eni_gpu_wait(w, w->vectors->arrived[bucket], "a gradient"));
    w->vectors->copied += (range->hi - range->lo) * sizeof(float);
    return EN_OK;
}

en_status eni_vectors_join(eni_worker *w)
{
    eni_vectors *v = w->vectors;
    if (!is_staged(w)) return EN_OK;
    EN_TRY(v->gpu->event_record(v->left, EN_STREAM_EXCHANGE));
    return v->gpu->wait_event(w->device.ctx, EN_STREAM_COMPUTE, v->left);
}

en_status eni_vectors_send_micro(eni_worker *w, int64_t micro)
{
    eni_vectors *v = w->vectors;
    const uint64_t bytes = w->schema.count * sizeof(float);
    if (!is_staged(w)) return EN_OK;
    EN_TRY(exchange_behind_compute(w));
    EN_TRY(v->gpu->copy(w->device.ctx, EN_STREAM_EXCHANGE, w->micro_grads[micro], v->grads[0], bytes,
                        EN_COPY_OUT));
    v->copied += bytes;
    return eni_vectors_join(w);
}

en_status eni_vectors_await_micros(eni_worker *w)
{
    return is_staged(w) ? eni_gpu_wait(w, w->vectors->left, "the gradients of its micro-batches") : EN_OK;
}

/* ---- weights come in ---- */

static en_status take_in(eni_worker *w, uint32_t bucket)
{
    eni_vectors *v = w->vectors;
    const eni_bucket_range *range = &w->buckets->bucket[bucket];
    const uint64_t bytes = (range->hi - range->lo) * sizeof(float);
    v->copied += bytes;
    return v->gpu->copy(w->device.ctx, EN_STREAM_EXCHANGE, v->param + range->lo,
                        eni_arena_at(w->arena, ENI_SLOT_PARAM, range->lo), bytes, EN_COPY_IN);
}

/* What is put into COMPUTE from now on begins behind them. */
static en_status have_taken(eni_worker *w)
{
    eni_vectors *v = w->vectors;
    EN_TRY(v->gpu->event_record(v->taken, EN_STREAM_EXCHANGE));
    return v->gpu->wait_event(w->device.ctx, EN_STREAM_COMPUTE, v->taken);
}

static en_status take_in_all(eni_worker *w)
{
    for (uint32_t b = 0; b < w->buckets->n; b++)
        EN_TRY(take_in(w, b));
    return have_taken(w);
}

/* Bucket by bucket, each while the next is waited for. What after_step may change, nobody has before it. */
en_status eni_vectors_finish(eni_worker *w)
{
    const int is_late = w->strategy->after_step != NULL;
    if (!is_staged(w)) return eni_host_finish(w->strategy_host);
    for (uint32_t b = 0; b < w->buckets->n; b++) {
        EN_TRY(eni_host_finish_bucket(w->strategy_host, b));
        if (!is_late) EN_TRY(take_in(w, b));
    }
    EN_TRY(eni_host_end(w->strategy_host));
    if (is_late) return take_in_all(w);
    EN_TRY(have_taken(w));
    /* before_step may write what is being read */
    return w->strategy->before_step != NULL ? eni_gpu_wait(w, w->vectors->taken, "its weights to arrive") : EN_OK;
}

en_status eni_vectors_begun(eni_worker *w)
{
    return is_staged(w) && w->strategy->before_step != NULL ? take_in_all(w) : EN_OK;
}

/* ---- all of it, now and then ---- */

/* Every vector of this rank, as `direction` says; in COMPUTE, which is behind all steps. */
static en_status copy_all(eni_worker *w, int direction, int and_slots)
{
    eni_vectors *v = w->vectors;
    const uint64_t bytes = w->schema.count * sizeof(float);
    uint32_t first;
    eni_host_optimizer_slots(w->strategy_host, &first);
    for (int i = -1; i < (and_slots ? v->nslots : 0); i++) {
        float *there = i < 0 ? v->param : v->slot[i];
        float *here = eni_arena_at(w->arena, i < 0 ? ENI_SLOT_PARAM : first + (uint32_t)i, 0);
        const int is_in = direction == EN_COPY_IN;
        EN_TRY(v->gpu->copy(w->device.ctx, EN_STREAM_COMPUTE, is_in ? there : here, is_in ? here : there,
                            bytes, direction));
    }
    EN_TRY(v->gpu->event_record(v->computed, EN_STREAM_COMPUTE));
    return eni_gpu_wait(w, v->computed, "a copy of its vectors");
}

en_status eni_vectors_bring(eni_worker *w, int and_slots)
{
    return eni_worker_is_on_gpu(w) ? copy_all(w, EN_COPY_OUT, and_slots) : EN_OK;
}

en_status eni_vectors_send(eni_worker *w)
{
    eni_vectors *v = w->vectors;
    if (v == NULL) return EN_OK;
    if (is_staged(w)) {
        EN_TRY(take_in_all(w));
        return eni_gpu_wait(w, v->taken, "its weights to arrive");
    }
    if (!v->is_guest) EN_TRY(copy_all(w, EN_COPY_IN, 1));
    if (w->gpu.way != ENI_GPU_SHARED) return EN_OK;
    /* the others compute with rank 0's: not before they are there */
    return eni_member_gather(w->member, "weights on the GPU", NULL, 0, NULL, INT64_MAX);
}

en_status eni_vectors_send_grad(eni_worker *w)
{
    const uint64_t bytes = w->schema.count * sizeof(float);
    eni_vectors *v = w->vectors;
    float *here = eni_arena_at(w->arena, ENI_SLOT_GRAD, 0);
    if (v == NULL) return EN_OK;
    EN_TRY(v->gpu->copy(w->device.ctx, EN_STREAM_COMPUTE, eni_vectors_grad(w, 0), here, bytes, EN_COPY_IN));
    EN_TRY(v->gpu->event_record(v->computed, EN_STREAM_COMPUTE));
    EN_TRY(eni_gpu_wait(w, v->computed, "a copy of its vectors"));
    if (is_staged(w)) memset(here, 0, bytes);
    return EN_OK;
}

en_status eni_vectors_fetch_param(eni_worker *w)
{
    eni_vectors *v = w->vectors;
    EN_TRY(v->gpu->copy(w->device.ctx, EN_STREAM_COMPUTE, eni_arena_at(w->arena, ENI_SLOT_GRAD, 0), v->param,
                        w->schema.count * sizeof(float), EN_COPY_OUT));
    EN_TRY(v->gpu->event_record(v->computed, EN_STREAM_COMPUTE));
    return eni_gpu_wait(w, v->computed, "a copy of its vectors");
}

uint64_t eni_vectors_copied(const eni_worker *w)
{
    return w->vectors == NULL ? 0 : w->vectors->copied;
}
