/* loader.c - see loader.h.
 *
 * One mutex guards how many batches were begun and taken, which are ready, and how the stream ended. Batch i lies in slot
 * i % nslots: a thread owns the slot from the batch's begin until it is ready, the consumer from taking it until it has taken
 * `hold` more. So batch `begun` may be begun while begun + hold < taken + nslots: all slots except the consumer's. The number
 * and the samples of a micro-batch are chosen under a separate mutex, so that their order is that of the slots, whatever the
 * number of threads. */
#include "data/loader.h"

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

enum { DEPTH = 2, DEPTH_MAX = ENI_LOADER_THREADS, HOLD_MAX = 8 };

typedef struct loader_slot {
    eni_batch batch;
    void *memory; /* holds the arrays below */
    bool is_registered;
    float *x; /* (B, H, W, C) */
    void *target;
    uint32_t *indices; /* (B) */
    bool is_ready;     /* under the mutex */
} loader_slot;

struct eni_loader {
    eni_loader_options options;
    eni_plan plan;
    loader_slot slots[DEPTH_MAX + HOLD_MAX];
    uint64_t nslots; /* depth + those of the consumer */
    uint64_t hold;

    pthread_t thread[ENI_LOADER_THREADS];
    int nthreads;             /* running */
    pthread_mutex_t choosing; /* locked before `mutex`; guards these two */
    eni_sampler *sampler;
    uint64_t next; /* m of a fixed assignment */

    pthread_mutex_t mutex; /* guards the rest */
    pthread_cond_t ready, room;
    uint64_t begun; /* batches that threads have begun */
    uint64_t taken; /* batches given to the consumer; it still uses the last `hold` */
    bool is_aborted;
    en_status end; /* EN_OK while the stream continues; applies after batch `begun` */
};

/* Chooses the next micro-batch, or returns the reason for the stream's end. */
static en_status choose(eni_loader *loader, eni_micro *micro_out)
{
    const eni_loader_options *o = &loader->options;
    uint64_t m = loader->next;
    if (o->claim == NULL) {
        loader->next = m > UINT64_MAX - o->stride ? UINT64_MAX : m + o->stride;
        return eni_plan_micro(&loader->plan, m, micro_out);
    }
    do {
        EN_TRY(o->claim(o->user, &m));
        EN_TRY(eni_plan_micro(&loader->plan, m, micro_out));
    } while (micro_out->count == 0);
    return EN_OK;
}

/* Waits for a slot that is neither begun nor the consumer's. False: aborted, or the stream has ended. Without a deadline:
 * the consumer may compute for as long as it likes, and an abort always wakes. */
static bool wait_for_room(eni_loader *loader, loader_slot **slot_out)
{
    pthread_mutex_lock(&loader->mutex);
    while (!loader->is_aborted && loader->end == EN_OK &&
           loader->begun + loader->hold >= loader->taken + loader->nslots)
        pthread_cond_wait(&loader->room, &loader->mutex);
    const bool go_on = !loader->is_aborted && loader->end == EN_OK;
    *slot_out = &loader->slots[loader->begun % loader->nslots];
    pthread_mutex_unlock(&loader->mutex);
    return go_on;
}

/* Chooses the samples of a micro-batch, in storage order. */
static void choose_samples(eni_loader *loader, const eni_micro *micro, uint32_t *indices)
{
    const uint64_t n = loader->options.chunks > 1 ? loader->options.chunks : 1;
    for (uint64_t c = 0, at = 0; c < n && at < micro->count; c++) {
        const eni_micro chunk = eni_micro_chunk(micro, n, c);
        eni_sampler_indices(loader->sampler, &chunk, indices + at);
        at += chunk.count;
    }
}

/* Assigns the next batch to this thread: its slot and its samples. False if there are no more. */
static bool begin(eni_loader *loader, loader_slot **slot_out)
{
    eni_micro micro;
    pthread_mutex_lock(&loader->choosing);
    bool go_on = wait_for_room(loader, slot_out);
    const en_status st = go_on ? choose(loader, &micro) : EN_EINTR;
    if (st == EN_OK) {
        choose_samples(loader, &micro, (*slot_out)->indices);
        (*slot_out)->batch = (eni_batch){micro, (*slot_out)->x, (*slot_out)->target};
    }
    pthread_mutex_lock(&loader->mutex);
    if (st == EN_OK) {
        (*slot_out)->is_ready = false;
        loader->begun++;
    } else if (loader->end == EN_OK) {
        loader->end = st;
    }
    pthread_cond_signal(&loader->ready);
    pthread_mutex_unlock(&loader->mutex);
    pthread_mutex_unlock(&loader->choosing);
    return st == EN_OK;
}

static void *loader_main(void *user)
{
    eni_loader *loader = user;
    loader_slot *slot;
    while (begin(loader, &slot)) {
        const eni_micro *micro = &slot->batch.micro;
        eni_dataset_gather_as(loader->options.dataset, loader->options.form, ENI_TRAIN, micro->epoch,
                              slot->indices, micro->count, slot->x, slot->target);
        pthread_mutex_lock(&loader->mutex);
        slot->is_ready = true;
        pthread_cond_signal(&loader->ready);
        pthread_mutex_unlock(&loader->mutex);
    }
    return NULL;
}

/* Claimed batches that wait here are out of reach for faster ranks, so more threads do not raise the depth. */
static int depth_of(const eni_loader_options *o)
{
    if (o->depth != 0) return o->depth;
    return o->claim == NULL && o->threads > DEPTH ? o->threads : DEPTH;
}

static en_status check_options(const eni_loader_options *o)
{
    if (o->plan->train_samples != o->dataset->split[ENI_TRAIN].count)
        return eni_fail(EN_EINVAL, "loader", "the plan is for %llu training samples, but the set has %llu",
                        (unsigned long long)o->plan->train_samples,
                        (unsigned long long)o->dataset->split[ENI_TRAIN].count);
    if (o->hold < 0 || o->hold > HOLD_MAX || (o->register_memory == NULL) != (o->unregister_memory == NULL))
        return eni_fail(
            EN_EINVAL, "loader",
            "hold is %d; expected 1 to %d, and both or neither of register_memory and unregister_memory",
            o->hold, HOLD_MAX);
    if (o->depth >= 0 && o->depth <= DEPTH_MAX && o->threads >= 0 && o->threads <= ENI_LOADER_THREADS &&
        (o->claim != NULL || o->stride >= 1))
        return EN_OK;
    return eni_fail(EN_EINVAL, "loader",
                    "depth %d, %d threads and stride %llu; expected a depth of 0 to %d, as many threads and "
                    "a stride of at least 1",
                    o->depth, o->threads, (unsigned long long)o->stride, DEPTH_MAX);
}

/* Allocates one block: x, then the targets, on a cache line of their own. */
static en_status take_buffer(eni_loader *loader, uint64_t rows, loader_slot *slot)
{
    const eni_loader_options *o = &loader->options;
    const eni_dataset *set = o->dataset;
    uint64_t x_bytes, target_bytes, bytes;
    if (__builtin_mul_overflow(rows, eni_dataset_sample_bytes(set, o->form), &x_bytes) ||
        __builtin_mul_overflow(rows, eni_dataset_target_bytes(set), &target_bytes) ||
        __builtin_add_overflow(x_bytes, target_bytes, &bytes) || bytes > UINT64_MAX - ENI_LINE)
        return eni_fail(EN_ENOMEM, "loader",
                        "batches of %llu samples do not fit into memory; give a smaller --batch-size",
                        (unsigned long long)rows);
    x_bytes = eni_round_up(x_bytes, ENI_LINE);
    bytes = x_bytes + target_bytes;
    slot->memory = o->register_memory != NULL ? eni_alloc_pages(bytes) : eni_alloc(bytes);
    if (slot->memory == NULL) return EN_ENOMEM;
    slot->x = slot->memory;
    slot->target = (char *)slot->memory + x_bytes;
    slot->indices = eni_alloc_array(rows, sizeof *slot->indices);
    if (slot->indices == NULL) return EN_ENOMEM;
    if (o->register_memory == NULL) return EN_OK;
    EN_TRY(o->register_memory(o->pin_user, slot->memory, bytes));
    slot->is_registered = true;
    return EN_OK;
}

static en_status take_memory(eni_loader *loader)
{
    /* no micro-batch is larger than the set, whatever --batch-size is */
    size_t rows =
        loader->plan.batch < loader->plan.train_samples ? loader->plan.batch : loader->plan.train_samples;
    loader->sampler =
        eni_sampler_new(loader->plan.train_samples, loader->options.seed, loader->options.order);
    if (loader->sampler == NULL) return EN_ENOMEM;
    for (uint64_t i = 0; i < loader->nslots; i++)
        EN_TRY(take_buffer(loader, rows, &loader->slots[i]));
    return EN_OK;
}

en_status eni_loader_start(const eni_loader_options *options, eni_loader **loader_out)
{
    en_status st;
    EN_TRY(check_options(options));
    eni_loader *loader = eni_alloc(sizeof *loader);
    if (loader == NULL) return EN_ENOMEM;
    loader->options = *options;
    loader->plan = *options->plan;
    loader->options.plan = NULL; /* the copy is used */
    loader->next = options->first;
    loader->hold = options->hold > 0 ? (uint64_t)options->hold : 1;
    loader->nslots = (uint64_t)depth_of(options) + loader->hold;
    pthread_mutex_init(&loader->choosing, NULL);
    pthread_mutex_init(&loader->mutex, NULL);
    pthread_cond_init(&loader->ready, NULL);
    pthread_cond_init(&loader->room, NULL);
    EN_TRY_GOTO(take_memory(loader), stop_loader);
    for (const int n = options->threads > 0 ? options->threads : 1; loader->nthreads < n;
         loader->nthreads++) {
        const int code = pthread_create(&loader->thread[loader->nthreads], NULL, loader_main, loader);
        if (code == 0) continue;
        st = eni_fail(EN_EIO, "loader", "cannot start a loader thread: %s", strerror(code));
        goto stop_loader;
    }
    *loader_out = loader;
    return EN_OK;
stop_loader:
    eni_loader_stop(loader);
    return st;
}

static bool has_ready(const eni_loader *loader)
{
    return loader->begun > loader->taken && loader->slots[loader->taken % loader->nslots].is_ready;
}

/* Called with the mutex held. Waits until a batch is ready, the stream has ended or the deadline has passed. */
static en_status wait_for_batch(eni_loader *loader, int64_t deadline_ns)
{
    const struct timespec until = eni_timespec(deadline_ns);
    int code = 0;
    while (!loader->is_aborted && !has_ready(loader) && code == 0 &&
           (loader->end == EN_OK || loader->begun > loader->taken))
        code = pthread_cond_clockwait(&loader->ready, &loader->mutex, CLOCK_MONOTONIC, &until);
    if (loader->is_aborted) return EN_EINTR;
    if (has_ready(loader)) return EN_OK;
    return loader->end != EN_OK && loader->begun == loader->taken ? loader->end : EN_ETIMEOUT;
}

en_status eni_loader_next(eni_loader *loader, int64_t deadline_ns, const eni_batch **batch_out)
{
    pthread_mutex_lock(&loader->mutex);
    en_status st = wait_for_batch(loader, deadline_ns);
    if (st == EN_OK) {
        *batch_out = &loader->slots[loader->taken % loader->nslots].batch;
        loader->taken++;
        pthread_cond_signal(&loader->room);
    }
    pthread_mutex_unlock(&loader->mutex);
    return st;
}

void eni_loader_abort(eni_loader *loader)
{
    pthread_mutex_lock(&loader->mutex);
    loader->is_aborted = true;
    pthread_cond_signal(&loader->ready);
    pthread_cond_broadcast(&loader->room);
    pthread_mutex_unlock(&loader->mutex);
}

void eni_loader_halt(eni_loader *loader)
{
    if (loader == NULL) return;
    eni_loader_abort(loader);
    while (loader->nthreads > 0)
        pthread_join(loader->thread[--loader->nthreads], NULL);
}

void eni_loader_stop(eni_loader *loader)
{
    if (loader == NULL) return;
    eni_loader_halt(loader);
    pthread_cond_destroy(&loader->room);
    pthread_cond_destroy(&loader->ready);
    pthread_mutex_destroy(&loader->mutex);
    pthread_mutex_destroy(&loader->choosing);
    for (uint64_t i = 0; i < loader->nslots; i++) {
        loader_slot *slot = &loader->slots[i];
        if (slot->is_registered) loader->options.unregister_memory(loader->options.pin_user, slot->memory);
        eni_free(slot->memory);
        eni_free(slot->indices);
    }
    eni_sampler_free(loader->sampler);
    eni_free(loader);
}
