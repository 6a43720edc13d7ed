/* gpu_steps.c - puts mean and step into the GPU's streams (gpu_steps.h).
 *
 * The numbers of a step (rates, scales) lie at one address in device memory, where a graph finds them. They
 * arrive through a ring of registered slots: the host may be eight steps ahead of the GPU before it waits. */
#include "runtime/collective/gpu_steps.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

enum { REGISTERED_SLOTS = 8 };

/* The numbers that one step's kernels read. */
typedef struct numbers {
    float weight; /* GROUP: factor of this rank's gradient: its samples */
    float total;  /* GROUP, if not known: this rank's samples; after their sum all ranks' */
    /* (ngroups x nrates) by the source with which a sum begins; then (ngroups) of en_gpu_adam: adam_at. */
    en_gpu_rates rates[];
} numbers;

struct eni_gpu_steps {
    eni_gpu_steps_config config;
    const en_gpu *gpu;
    float *grads[EN_GPU_SOURCES];
    uint32_t ngroups; /* of the run's rates, at least 1 */
    int nrates;       /* ngrads where sums begin anywhere (ENI_SUM_RING), else 1 */
    size_t bytes;     /* of numbers */
    numbers *there;
    uint8_t *registered; /* (REGISTERED_SLOTS) x bytes */
    bool is_registered;
    en_event *copied[REGISTERED_SLOTS];
    uint64_t ncopied;
    en_event **ready, **done; /* (n) a bucket's gradient is complete, its weights are stepped */

    /* of the step in progress */
    eni_hyper hyper;
    uint64_t samples[EN_GPU_SOURCES];
    bool has_total, has_counted; /* GROUP: total is known; its sum is in the stream */
    bool is_replayed;
    en_status status; /* the first failure; nothing is enqueued after it */
};

/* ---- open and close ---- */

static en_status check_config(const eni_gpu_steps_config *c)
{
    bool is_valid = c->device != NULL && c->device->gpu != NULL && c->ngrads >= 1 &&
                    c->ngrads <= EN_GPU_SOURCES && c->nslots >= 0 && c->nslots <= ENI_MAX_SLOTS &&
                    c->param != NULL && c->rank >= 0 && c->rank < c->nranks;
    for (int i = 0; is_valid && i < c->ngrads; i++)
        is_valid = c->grads[i] != NULL;
    for (int i = 0; is_valid && i < c->nslots; i++)
        is_valid = c->slot[i] != NULL;
    if (c->way == ENI_GPU_ALONE) is_valid = is_valid && c->nranks == 1;
    if (c->way == ENI_GPU_GROUP) is_valid = is_valid && c->group != NULL && c->ngrads == 1;
    if (c->way == ENI_GPU_SHARED) is_valid = is_valid && c->ngrads == c->nranks;
    if (is_valid) return EN_OK;
    return eni_fail(
        EN_EINVAL, "gpu",
        "rank %d of %d cannot step on the GPU (way %d): invalid config of %d gradients and %d slots", c->rank,
        c->nranks, c->way, c->ngrads, c->nslots);
}

static en_status open_numbers(eni_gpu_steps *s)
{
    const eni_gpu_steps_config *c = &s->config;
    s->nrates = c->way == ENI_GPU_ALONE && c->sum_order == ENI_SUM_RING ? c->ngrads : 1;
    s->ngroups = c->groups != NULL ? c->groups->ngroups : 1;
    const size_t group = (size_t)s->nrates * sizeof(en_gpu_rates) + sizeof(en_gpu_adam);
    s->bytes = eni_round_up(sizeof(numbers) + s->ngroups * group, ENI_LINE);
    s->registered = eni_alloc_pages(REGISTERED_SLOTS * s->bytes);
    if (s->registered == NULL) return EN_ENOMEM;
    EN_TRY(c->device->alloc(c->ctx, s->bytes, (void **)&s->there));
    EN_TRY(s->gpu->register_memory(c->ctx, s->registered, REGISTERED_SLOTS * s->bytes));
    s->is_registered = true;
    return EN_OK;
}

static en_status open_events(eni_gpu_steps *s)
{
    const uint32_t n = s->config.buckets->n;
    s->ready = eni_alloc_array(n, sizeof(*s->ready));
    s->done = eni_alloc_array(n, sizeof(*s->done));
    if (s->ready == NULL || s->done == NULL) return EN_ENOMEM;
    for (uint32_t b = 0; b < n; b++) {
        EN_TRY(s->gpu->event_new(s->config.ctx, &s->ready[b]));
        EN_TRY(s->gpu->event_new(s->config.ctx, &s->done[b]));
    }
    for (int i = 0; i < REGISTERED_SLOTS; i++)
        EN_TRY(s->gpu->event_new(s->config.ctx, &s->copied[i]));
    return EN_OK;
}

en_status eni_gpu_steps_open(const eni_gpu_steps_config *config, eni_gpu_steps **steps_out)
{
    EN_TRY(check_config(config));
    eni_gpu_steps *s = eni_alloc(sizeof *s);
    if (s == NULL) return EN_ENOMEM;
    s->config = *config;
    s->gpu = config->device->gpu;
    memcpy(s->grads, config->grads, (size_t)config->ngrads * sizeof s->grads[0]);
    en_status st = open_numbers(s);
    if (st == EN_OK) st = open_events(s);
    if (st == EN_OK)
        *steps_out = s;
    else
        eni_gpu_steps_close(s);
    return st;
}

static void free_events(const eni_gpu_steps *s, en_event **events, uint32_t n)
{
    for (uint32_t i = 0; events != NULL && i < n; i++)
        s->gpu->event_free(events[i]);
}

void eni_gpu_steps_close(eni_gpu_steps *s)
{
    if (s == NULL) return;
    free_events(s, s->copied, REGISTERED_SLOTS);
    free_events(s, s->ready, s->config.buckets->n);
    free_events(s, s->done, s->config.buckets->n);
    if (s->is_registered) s->gpu->unregister_memory(s->config.ctx, s->registered);
    s->config.device->free(s->config.ctx, s->there);
    eni_free(s->registered);
    eni_free(s->ready);
    eni_free(s->done);
    eni_free(s);
}

int eni_gpu_steps_way(const eni_gpu_steps *s)
{
    return s->config.way;
}

/* ---- waits ---- */

/* A kernel often takes less than a sleep: poll for a while first. */
static void pause_for(int64_t waited_ns)
{
    const int64_t sleep = waited_ns / 8, most = 200 * ENI_MICRO;
    if (waited_ns < 50 * ENI_MICRO) {
        sched_yield();
        return;
    }
    const struct timespec rest = {.tv_nsec = sleep < most ? sleep : most};
    nanosleep(&rest, NULL);
}

en_status eni_gpu_await(const en_gpu *gpu, en_event *event, const eni_alive *alive,
                        const eni_gpu_timeout *timeout, const char *what)
{
    const int64_t most = timeout != NULL && timeout->ns > 0 ? timeout->ns : INT64_MAX;
    en_status st = gpu->poll(event);
    for (const int64_t begin = eni_now_ns(); st == EN_ETIMEOUT; st = gpu->poll(event)) {
        const int64_t waited = eni_now_ns() - begin;
        EN_TRY(eni_alive_status(alive));
        if (waited > most) {
            timeout->tell(timeout->user, what);
            return EN_EIO;
        }
        pause_for(waited);
    }
    return st;
}

/* Fails the steps for good: the group may be in the middle of something, so it is aborted. */
static en_status fail(eni_gpu_steps *s, en_status st)
{
    if (s->status == EN_OK) s->status = st;
    if (s->config.group != NULL) s->gpu->group_abort(s->config.group);
    return s->status;
}

/* eni_alive.status: of the run, and of the group, which a peer may have left. */
static en_status is_group_alive(void *user)
{
    const eni_gpu_steps *s = user;
    EN_TRY(eni_alive_status(&s->config.alive));
    return s->config.group == NULL ? EN_OK : s->gpu->group_poll(s->config.group);
}

en_status eni_gpu_steps_await(eni_gpu_steps *s, en_event *event, const char *what)
{
    const eni_alive alive = {.status = is_group_alive, .user = s, .fd = -1};
    const en_status st = eni_gpu_await(s->gpu, event, &alive, &s->config.timeout, what);
    return st == EN_OK ? EN_OK : fail(s, st);
}

/* ---- the numbers of a step ---- */

static en_gpu_adam *adam_at(const eni_gpu_steps *s, numbers *slot, uint32_t group)
{
    return (en_gpu_adam *)(void *)(slot->rates + s->ngroups * (uint32_t)s->nrates) + group;
}

static en_gpu_rates *rates_at(const eni_gpu_steps *s, numbers *slot, uint32_t group, int first)
{
    return &slot->rates[group * (uint32_t)s->nrates + (uint32_t)(s->nrates > 1 ? first : 0)];
}

/* The optimizer's numbers of a step, the same for all its gradients. */
static void set_rates(const eni_gpu_steps *s, numbers *slot)
{
    for (uint32_t g = 0; g < s->ngroups; g++) {
        const eni_hyper hyper = eni_group_rates(&s->hyper, g);
        if (s->config.optimizer->adam != NULL) s->config.optimizer->adam(&hyper, adam_at(s, slot, g));
        for (int i = 0; i < s->nrates; i++)
            *rates_at(s, slot, g, i) = (en_gpu_rates){.lr = hyper.lr,
                                                      .momentum = hyper.momentum,
                                                      .weight_decay = hyper.weight_decay,
                                                      .nesterov = hyper.nesterov,
                                                      .inv = 1}; /* for a mean of nothing, which is 0 */
    }
}

/* The scales of a sum over this rank's own gradients that begins with `first`, as in eni_mean_ranks. */
static void set_scales(const eni_gpu_steps *s, int first, en_gpu_rates *rates)
{
    uint64_t total = 0;
    int n = 0;
    for (int k = 0; k < s->config.ngrads; k++) {
        const uint64_t weight = eni_mean_weight(s->samples[(first + k) % s->config.ngrads], s->config.ngrads);
        if (weight == 0) continue;
        rates->scale[n++] = (float)weight;
        total += weight;
    }
    if (n > 0) rates->inv = 1.0f / (float)total;
}

/* The next registered slot, zeroed, once its former contents are on the device. */
static en_status next_slot(eni_gpu_steps *s, numbers **slot_out)
{
    const uint64_t i = s->ncopied % REGISTERED_SLOTS;
    EN_TRY(eni_gpu_steps_await(s, s->copied[i], "the rates of an earlier step to arrive"));
    *slot_out = (numbers *)(void *)(s->registered + i * s->bytes);
    memset(*slot_out, 0, s->bytes);
    return EN_OK;
}

static en_status copy_slot(eni_gpu_steps *s, const numbers *slot, int stream)
{
    EN_TRY(s->gpu->copy(s->config.ctx, stream, s->there, slot, s->bytes, EN_COPY_IN));
    return s->gpu->event_record(s->copied[s->ncopied++ % REGISTERED_SLOTS], stream);
}

/* A captured graph fits a step only if the same gradients count. */
static en_status check_replay(const eni_gpu_steps *s)
{
    bool is_full = s->config.way != ENI_GPU_GROUP || s->has_total;
    for (int i = 0; i < s->config.ngrads && is_full; i++)
        is_full = s->samples[i] > 0;
    if (!s->is_replayed || is_full) return EN_OK;
    return eni_fail(EN_EBUG, "gpu",
                    "cannot replay a step in which a gradient has no samples, or its samples are unknown");
}

en_status eni_gpu_steps_begin(eni_gpu_steps *s, const eni_hyper *hyper, const uint64_t *samples,
                              uint64_t total)
{
    const int n = s->config.way == ENI_GPU_ALONE ? s->config.ngrads : 1;
    numbers *slot;
    EN_TRY(s->status);
    memcpy(s->samples, samples, (size_t)n * sizeof *samples);
    s->hyper = *hyper;
    s->has_total = total > 0;
    s->has_counted = false;
    if (s->config.way == ENI_GPU_SHARED) return EN_OK; /* take knows who has samples */
    EN_TRY(check_replay(s));
    EN_TRY(next_slot(s, &slot));
    set_rates(s, slot);
    slot->weight = slot->total = (float)eni_mean_weight(samples[0], s->config.nranks);
    for (uint32_t g = 0; g < s->ngroups; g++)
        for (int i = 0; i < s->nrates; i++) {
            en_gpu_rates *rates = rates_at(s, slot, g, i);
            set_scales(s, i, rates);
            if (s->config.way != ENI_GPU_GROUP) continue;
            rates->scale[0] = 1; /* the sum arrives weighted */
            rates->inv = total > 0 ? 1.0f / (float)eni_mean_weight(total, s->config.nranks) : 1;
        }
    return copy_slot(s, slot, EN_STREAM_COMPUTE);
}

void eni_gpu_steps_replay(eni_gpu_steps *s, bool is_replayed)
{
    s->is_replayed = is_replayed;
}

/* ---- a step ---- */

/* Enqueues mean and step of elements [at, at + count) of the flat vector, all of one parameter group. */
static en_status enqueue_group(eni_gpu_steps *s, const float *const *source, int n, int first,
                               const float *total, uint64_t at, uint64_t count, uint32_t group)
{
    const eni_gpu_steps_config *c = &s->config;
    en_gpu_step step = {.size = sizeof step,
                        .optimizer = c->optimizer->name,
                        .nsources = n,
                        .source = source,
                        .w = c->param + at,
                        .count = count,
                        .rates = rates_at(s, s->there, group, first),
                        .total = total,
                        .adam = adam_at(s, s->there, group)};
    for (int i = 0; i < c->nslots; i++)
        step.slot[i] = c->slot[i] + at;
    return s->gpu->mean_step(c->ctx, EN_STREAM_EXCHANGE, &step);
}

/* The same for any range, with the given gradients from `at` on; their sum begins with gradient `first`. */
static en_status enqueue(eni_gpu_steps *s, const float *const *source, int n, int first, const float *total,
                         uint64_t at, uint64_t count)
{
    const float *from[EN_GPU_SOURCES];
    uint32_t group;
    for (uint64_t lo = 0, hi; lo < count; lo = hi) {
        hi = eni_group_end(s->config.groups, at + lo, at + count, &group) - at;
        for (int k = 0; k < n; k++)
            from[k] = source[k] + lo;
        EN_TRY(enqueue_group(s, from, n, first, total, at + lo, hi - lo, group));
    }
    return EN_OK;
}

/* The part [lo, hi) of a bucket, whose sum begins with gradient `first`. Unchanged if none has samples. */
static en_status step_part(eni_gpu_steps *s, int first, uint64_t lo, uint64_t hi)
{
    const float *source[EN_GPU_SOURCES];
    int n = 0;
    for (int k = 0; k < s->config.ngrads; k++) {
        const int i = (first + k) % s->config.ngrads;
        if (s->samples[i] > 0) source[n++] = s->grads[i] + lo;
    }
    return n == 0 ? EN_OK : enqueue(s, source, n, first, NULL, lo, hi - lo);
}

static en_status step_alone(eni_gpu_steps *s, const eni_bucket_range *range)
{
    const uint64_t count = range->hi - range->lo;
    for (int c = 0; c < s->nrates; c++)
        EN_TRY(step_part(s, c, range->lo + eni_slice_lo(count, c, s->nrates),
                         range->lo + eni_slice_lo(count, c + 1, s->nrates)));
    return EN_OK;
}

static en_status step_group(eni_gpu_steps *s, const eni_bucket_range *range)
{
    float *grad = s->grads[0] + range->lo;
    const float *const source[] = {grad};
    const uint64_t count = range->hi - range->lo;
    if (!s->has_total && !s->has_counted)
        EN_TRY(s->gpu->group_sum(s->config.group, &s->there->total, 1, NULL));
    s->has_counted = true;
    if (s->samples[0] == 0) /* it may hold non-finite values, which times 0 are not 0 */
        EN_TRY(s->gpu->zero(s->config.ctx, EN_STREAM_EXCHANGE, grad, count * sizeof *grad));
    EN_TRY(s->gpu->group_sum(s->config.group, grad, count, &s->there->weight));
    return enqueue(s, source, 1, 0, s->has_total ? NULL : &s->there->total, range->lo, count);
}

static en_status submit(eni_gpu_steps *s, uint32_t bucket)
{
    const eni_bucket_range *range = &s->config.buckets->bucket[bucket];
    EN_TRY(s->gpu->event_record(s->ready[bucket], EN_STREAM_COMPUTE));
    if (s->config.way == ENI_GPU_SHARED) return EN_OK;
    EN_TRY(s->gpu->wait_event(s->config.ctx, EN_STREAM_EXCHANGE, s->ready[bucket]));
    EN_TRY(s->config.way == ENI_GPU_ALONE ? step_alone(s, range) : step_group(s, range));
    return s->gpu->event_record(s->done[bucket], EN_STREAM_EXCHANGE);
}

en_status eni_gpu_steps_submit(eni_gpu_steps *s, uint32_t bucket)
{
    EN_TRY(s->status);
    if (s->is_replayed) return EN_OK;
    const en_status st = submit(s, bucket);
    /* a step that cannot be captured was not executed: it is enqueued again, without a capture */
    return st == EN_OK || st == EN_EUNSUPPORTED ? st : fail(s, st);
}

en_status eni_gpu_steps_wait(eni_gpu_steps *s, uint32_t bucket)
{
    return s->is_replayed ? EN_OK : s->gpu->wait_event(s->config.ctx, EN_STREAM_COMPUTE, s->done[bucket]);
}

/* ---- shared ---- */

en_status eni_gpu_steps_ready(eni_gpu_steps *s, uint32_t bucket, bool may_block)
{
    if (s->is_replayed) return EN_OK;
    return may_block ? eni_gpu_steps_await(s, s->ready[bucket], "a gradient")
                     : s->gpu->poll(s->ready[bucket]);
}

/* The same ranks have samples in all buckets of a step: mostly the numbers are there already. */
static en_status send_numbers(eni_gpu_steps *s, const eni_sources *from)
{
    numbers *slot;
    const uint64_t last = (s->ncopied + REGISTERED_SLOTS - 1) % REGISTERED_SLOTS;
    EN_TRY(next_slot(s, &slot));
    set_rates(s, slot);
    for (uint32_t g = 0; g < s->ngroups; g++) {
        en_gpu_rates *rates = rates_at(s, slot, g, 0);
        memcpy(rates->scale, from->scale, (size_t)from->n * sizeof *rates->scale);
        rates->inv = from->inv;
    }
    if (s->ncopied > 0 && memcmp(s->registered + last * s->bytes, slot, s->bytes) == 0) return EN_OK;
    return copy_slot(s, slot, EN_STREAM_EXCHANGE);
}

static en_status take(eni_gpu_steps *s, uint32_t bucket, uint64_t lo, uint64_t hi, const eni_sources *from)
{
    const uint64_t at = s->config.buckets->bucket[bucket].lo + lo;
    const float *source[EN_GPU_SOURCES];
    EN_TRY(send_numbers(s, from));
    for (int k = 0; k < from->n; k++)
        source[k] = s->grads[from->rank[k]] + at;
    EN_TRY(enqueue(s, source, from->n, 0, NULL, at, hi - lo));
    EN_TRY(s->gpu->event_record(s->done[bucket], EN_STREAM_EXCHANGE));
    return eni_gpu_steps_await(s, s->done[bucket], "the step of its slice of the weights");
}

void eni_gpu_steps_take(eni_gpu_steps *s, uint32_t bucket, uint64_t lo, uint64_t hi, const eni_sources *from)
{
    const en_status st = s->status == EN_OK ? take(s, bucket, lo, hi, from) : s->status;
    if (st != EN_OK) fail(s, st);
}

en_status eni_gpu_steps_status(const eni_gpu_steps *s)
{
    return s->status;
}
