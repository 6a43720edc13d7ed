/* evaluation.c - runs batches through a forward context, accumulating in order; on a GPU two buffers alternate. */
#include "models/evaluation.h"

#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

enum { SLOTS = 2, SPINS = 200, NAP_NS = 50000 };
enum { TIMEOUT_S = 60, TIMEOUT_AT_CLOSE_S = 2 }; /* at close, when the run may be over */

struct eni_evaluation {
    en_model *model; /* borrowed, like the contents of `device` */
    const en_schema *schema;
    eni_device device;
    eni_set set;
    uint64_t target_at, pair_at, outputs_at, slot_bytes; /* in a slot: x, target, the two numbers, outputs */
    int nslots;
    bool is_registered;
    unsigned char *host;  /* (nslots) slots */
    unsigned char *batch; /* device memory of x and target; `host` on host devices */
    float *param;         /* device memory for the weights, then the state, or NULL */
    en_event *event;      /* after the batch in progress; NULL on host devices */
    bool has_event;
    unsigned char *pending; /* the slot of the batch in progress, or NULL */
    uint64_t pending_first, pending_n;
};

/* ---- waiting ----------------------------------------------------------------------------------------- */

static en_status ask_alive(const eni_set *set)
{
    return set->alive != NULL ? set->alive(set->alive_user) : EN_OK;
}

/* Waits until the device has reached the event; `asks`: and asks meanwhile whether the run is alive. en_device.sync
 * would wait for the other streams as well, and would not ask. */
static en_status await(const eni_evaluation *e, bool asks)
{
    const struct timespec nap = {0, NAP_NS};
    const int seconds = asks ? TIMEOUT_S : TIMEOUT_AT_CLOSE_S;
    const int64_t begin = eni_now_ns(), deadline = begin + seconds * ENI_SECOND;
    en_status st;
    if (!e->has_event) return EN_OK;
    for (int spins = 0; (st = e->device.ops->gpu->poll(e->event)) == EN_ETIMEOUT; spins++) {
        if (spins < SPINS) continue;
        if (asks) EN_TRY(ask_alive(&e->set));
        if ((!asks || e->set.alive == NULL) && eni_now_ns() > deadline)
            return eni_fail(EN_ETIMEOUT, "evaluate",
                            "the GPU did not finish a batch of %llu samples within %d s",
                            (unsigned long long)e->set.batch, seconds);
        if (asks && e->set.timeout_ns > 0 && eni_now_ns() - begin > e->set.timeout_ns) {
            e->set.tell(e->set.alive_user, "a batch of the evaluation");
            return EN_EIO;
        }
        nanosleep(&nap, NULL);
    }
    return st;
}

static en_status set_event(eni_evaluation *e)
{
    if (e->event == NULL) return EN_OK;
    e->has_event = true;
    return e->device.ops->gpu->event_record(e->event, EN_STREAM_COMPUTE);
}

/* ---- memory ------------------------------------------------------------------------------------------ */

static en_status take_host(eni_evaluation *e)
{
    const en_device *ops = e->device.ops;
    const uint64_t align = ops->align;
    const eni_set *set = &e->set;
    const uint64_t row = set->take != NULL ? (uint64_t)e->schema->outputs * sizeof(float) : 0;
    uint64_t x_bytes, target_bytes, total;
    if (__builtin_mul_overflow(set->batch, set->sample_bytes, &x_bytes) ||
        __builtin_mul_overflow(set->batch, set->target_bytes, &target_bytes) ||
        __builtin_add_overflow(x_bytes, target_bytes, &total) || total > UINT64_MAX / 4)
        return eni_fail(EN_ENOMEM, "evaluate",
                        "batches of %llu samples do not fit into memory; give a smaller --eval-batch-size",
                        (unsigned long long)set->batch);
    e->target_at = eni_round_up(x_bytes, align);
    e->pair_at = e->target_at + eni_round_up(target_bytes, align);
    e->outputs_at = e->pair_at + align;
    e->slot_bytes = e->outputs_at + eni_round_up(set->batch * row, align);
    total = (uint64_t)e->nslots * e->slot_bytes;
    e->host = eni_alloc_pages(total);
    if (e->host == NULL) return EN_ENOMEM;
    if (ops->gpu == NULL) return EN_OK;
    EN_TRY(ops->gpu->register_memory(e->device.ctx, e->host, total));
    e->is_registered = true;
    return EN_OK;
}

static en_status take_memory(eni_evaluation *e, bool takes_host_param)
{
    const en_device *ops = e->device.ops;
    EN_TRY(take_host(e));
    if (ops->gpu == NULL) {
        e->batch = e->host;
        return EN_OK;
    }
    EN_TRY(ops->alloc(e->device.ctx, e->pair_at, (void **)&e->batch));
    EN_TRY(ops->gpu->event_new(e->device.ctx, &e->event));
    if (!takes_host_param) return EN_OK;
    return ops->alloc(e->device.ctx, (e->schema->count + e->schema->nstate) * sizeof *e->param,
                      (void **)&e->param);
}

en_status eni_evaluation_open(en_model *model, const eni_set *set, bool takes_host_param,
                              eni_evaluation **evaluation_out)
{
    eni_evaluation *e = eni_alloc(sizeof *e);
    if (e == NULL) return EN_ENOMEM;
    *e = (eni_evaluation){.model = model, .set = *set};
    e->schema = eni_model_device(model, &e->device);
    e->nslots = e->device.ops->gpu != NULL ? SLOTS : 1;
    if (set->count < set->batch) e->set.batch = set->count > 0 ? set->count : 1;
    const en_status st = take_memory(e, takes_host_param);
    if (st != EN_OK)
        eni_evaluation_close(e);
    else
        *evaluation_out = e;
    return st;
}

/* Memory that a hung GPU may still read is not freed. */
void eni_evaluation_close(eni_evaluation *e)
{
    if (e == NULL) return;
    if (await(e, false) == EN_ETIMEOUT) return;
    const en_device *ops = e->device.ops;
    if (ops->gpu != NULL) {
        ops->gpu->event_free(e->event);
        ops->free(e->device.ctx, e->batch);
        ops->free(e->device.ctx, e->param);
        if (e->is_registered) ops->gpu->unregister_memory(e->device.ctx, e->host);
    }
    eni_free(e->host);
    eni_free(e);
}

/* ---- evaluating -------------------------------------------------------------------------------------- */

/* Copies unregistered host memory through the slots, a piece at a time. */
static en_status upload(eni_evaluation *e, float *to, const float *from, uint64_t count)
{
    const en_device *ops = e->device.ops;
    const uint64_t most = (uint64_t)e->nslots * e->slot_bytes / sizeof *from;
    for (uint64_t lo = 0; lo < count; lo += most) {
        const uint64_t bytes = (count - lo < most ? count - lo : most) * sizeof *from;
        memcpy(e->host, from + lo, bytes);
        EN_TRY(ops->copy(e->device.ctx, to + lo, e->host, bytes, EN_COPY_IN));
        EN_TRY(set_event(e));
        EN_TRY(await(e, true));
    }
    return EN_OK;
}

static en_status enqueue(eni_evaluation *e, const float *param, const float *state, unsigned char *slot,
                         uint64_t first, uint64_t n)
{
    const en_device *ops = e->device.ops;
    en_ctx *ctx = e->device.ctx;
    float *pair = (float *)(void *)(slot + e->pair_at);
    if (ops->gpu != NULL) {
        EN_TRY(ops->copy(ctx, e->batch, slot, n * e->set.sample_bytes, EN_COPY_IN));
        EN_TRY(ops->copy(ctx, e->batch + e->target_at, slot + e->target_at, n * e->set.target_bytes,
                         EN_COPY_IN));
    }
    const en_batch batch = {
        .n = (int64_t)n, .x = (const float *)(void *)e->batch, .target = e->batch + e->target_at};
    EN_TRY(eni_model_forward_only(e->model, param, state, &batch));
    EN_TRY(en_model_fetch(e->model, pair));
    if (e->set.take != NULL) EN_TRY(eni_model_outputs(e->model, (float *)(void *)(slot + e->outputs_at)));
    EN_TRY(set_event(e));
    e->pending = slot;
    e->pending_first = first;
    e->pending_n = n;
    return EN_OK;
}

/* Waits for the batch in progress and adds it to the sum. */
static en_status collect(eni_evaluation *e, eni_set_score *sum)
{
    if (e->pending == NULL) return EN_OK;
    const float *pair = (const float *)(const void *)(e->pending + e->pair_at);
    EN_TRY(await(e, true));
    sum->loss += (double)pair[0] * (double)e->pending_n;
    sum->correct += (uint64_t)pair[1];
    if (e->set.take != NULL)
        e->set.take(e->set.user, e->pending_first, e->pending_n, pair,
                    (const float *)(const void *)(e->pending + e->outputs_at));
    e->pending = NULL;
    return EN_OK;
}

static en_status evaluate_all(eni_evaluation *e, const float *param, const float *state, eni_set_score *sum)
{
    const eni_set *set = &e->set;
    int turn = 0;
    for (uint64_t at = 0, first;; at++) {
        first = (set->next != NULL ? set->next(set->user) : at) * set->batch;
        if (first >= set->count) return collect(e, sum);
        const uint64_t n = set->count - first < set->batch ? set->count - first : set->batch;
        unsigned char *slot = e->host + (uint64_t)turn * e->slot_bytes;
        EN_TRY(ask_alive(set));
        set->fill(set->user, first, n, (float *)(void *)slot, slot + e->target_at);
        EN_TRY(collect(e, sum));
        EN_TRY(enqueue(e, param, state, slot, first, n));
        turn = (turn + 1) % e->nslots;
    }
}

en_status eni_evaluation_run(eni_evaluation *e, const float *param, const float *state,
                             eni_set_score *score_out)
{
    eni_set_score sum = {.count = e->set.count};
    EN_TRY(await(e, true)); /* the last run may have ended early */
    e->pending = NULL;
    if (e->param != NULL) {
        EN_TRY(upload(e, e->param, param, e->schema->count));
        EN_TRY(upload(e, e->param + e->schema->count, state, state != NULL ? e->schema->nstate : 0));
        param = e->param;
        state = state != NULL ? e->param + e->schema->count : NULL;
    }
    EN_TRY(evaluate_all(e, param, state, &sum));
    const double n = sum.count > 0 ? (double)sum.count : 1;
    sum.loss /= n;
    sum.accuracy = (double)sum.correct / n;
    *score_out = sum;
    return EN_OK;
}

en_status eni_model_evaluate_set(en_model *model, const float *param, const float *state, const eni_set *set,
                                 eni_set_score *score_out)
{
    eni_evaluation *e;
    EN_TRY(eni_evaluation_open(model, set, true, &e));
    const en_status st = eni_evaluation_run(e, param, state, score_out);
    eni_evaluation_close(e);
    return st;
}
