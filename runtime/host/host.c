/* host.c - a host's life, one step through the strategy's hooks, and what checkpoints ask of it (host.h). */
#include <math.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/host/host_state.h"

/* ---- life ---- */

static en_status open_buckets(eni_host *host)
{
    uint32_t n = host->config.buckets->n;
    host->buckets = eni_alloc_array(n, sizeof *host->buckets);
    host->reqs = eni_alloc_array(n, sizeof *host->reqs);
    host->steps_taken = eni_alloc_array(n, sizeof *host->steps_taken);
    host->is_called = eni_alloc_array(n, sizeof *host->is_called);
    host->is_empty = eni_alloc_array(n, sizeof *host->is_empty);
    host->grad_samples = eni_alloc_array(n, sizeof *host->grad_samples);
    host->uncovered = eni_alloc_array(n, sizeof *host->uncovered);
    host->is_stepping = eni_alloc_array(n, sizeof *host->is_stepping);
    host->calling = eni_alloc_array(n, sizeof *host->calling);
    if (host->buckets == NULL || host->reqs == NULL || host->steps_taken == NULL ||
        host->is_called == NULL || host->is_empty == NULL || host->grad_samples == NULL ||
        host->uncovered == NULL || host->is_stepping == NULL || host->calling == NULL)
        return EN_ENOMEM;
    for (uint32_t b = 0; b < n; b++) {
        eni_buckets_fill(host->config.buckets, b, &host->buckets[b]);
        host->buckets[b].param = eni_vec_of(ENI_SLOT_PARAM, b);
        host->buckets[b].grad = eni_vec_of(ENI_SLOT_GRAD, b);
    }
    return EN_OK;
}

/* The optimizer's state lies in arena slots named as in PyTorch's state_dict. */
static en_status open_optimizer(eni_host *host)
{
    host->noptimizer_slots = host->config.optimizer->slots(&host->config.hyper);
    for (int i = 0; i < host->noptimizer_slots; i++) {
        uint32_t slot;
        if (!eni_host_find_slot(host, host->config.optimizer->slot_names[i], &slot)) return EN_ENOMEM;
        if (i == 0) host->optimizer_slot = slot;
    }
    return EN_OK;
}

static en_status open_strategy(eni_host *host)
{
    int which;
    uint32_t slot;
    host->is_planning = true;
    EN_TRY(eni_hook_open(host));
    for (uint32_t b = 0; b < host->config.buckets->n; b++)
        EN_TRY(eni_hook_plan(host, b));
    EN_TRY(host->cost_status);
    EN_TRY(eni_host_eval(host, &which, &slot)); /* known to be in order before step 0 */
    host->is_planning = false;
    return EN_OK;
}

en_status eni_host_open(const eni_host_config *config, eni_host **host_out)
{
    eni_host *host = eni_alloc(sizeof *host);
    if (host == NULL) return EN_ENOMEM;
    host->config = *config;
    host->table = eni_host_operations;
    host->table.world = &host->config.world;
    host->nslots_used = ENI_SLOT_FREE;
    host->next_request = host->requests_base = 1;
    host->transport = config->transport != NULL ? *config->transport : eni_host_net(host);
    en_status st = EN_OK;
    EN_TRY_GOTO(eni_host_gpu_check(host), close_host);
    st = EN_ENOMEM;
    host->state = eni_alloc(config->strategy->state);
    if (host->state == NULL) goto close_host;
    EN_TRY_GOTO(open_buckets(host), close_host);
    EN_TRY_GOTO(open_optimizer(host), close_host);
    EN_TRY_GOTO(open_strategy(host), close_host);
    *host_out = host;
    return EN_OK;
close_host:
    eni_host_close(host);
    return st;
}

void eni_host_close(eni_host *host)
{
    if (host == NULL) return;
    for (int i = 0; i < ENI_HOST_REQUESTS / ENI_HOST_BLOCK; i++)
        eni_free(host->requests[i]);
    eni_free(host->calling);
    eni_free(host->is_stepping);
    eni_free(host->uncovered);
    eni_free(host->grad_samples);
    eni_free(host->is_empty);
    eni_free(host->is_called);
    eni_free(host->steps_taken);
    eni_free(host->reqs);
    eni_free(host->buckets);
    eni_free(host->state);
    eni_free(host);
}

/* ---- one step ---- */

void eni_host_note_samples(eni_host *host, uint64_t local, uint64_t world)
{
    host->has_samples = true;
    host->local_samples = local;
    host->world_samples = world;
}

void eni_host_note_micros(eni_host *host, const uint64_t *samples, int n)
{
    memcpy(host->micros, samples, (size_t)(n < EN_GPU_SOURCES ? n : EN_GPU_SOURCES) * sizeof *samples);
    host->has_micros = true;
}

en_status eni_host_begin(eni_host *host, uint64_t step, uint64_t nsamples, uint64_t samples_before)
{
    host->step = step;
    host->first_request = host->next_request;
    if (host->nrequests == 0) host->requests_base = host->next_request;
    host->samples_before = samples_before;
    host->rand_calls = 0;
    host->nfinished = 0;
    host->next_offer = host->next_request;
    host->npushes = 0;
    host->left_ns = 0;
    host->counters.staleness = 0;
    if (!host->is_called[0]) host->counters.base_version = host->steps_taken[0];
    if (!host->has_samples) {
        host->local_samples = nsamples * (uint64_t)host->config.world.nlocal;
        host->world_samples = nsamples * (uint64_t)host->config.world.nranks;
    }
    /* With a local group this rank pushes for its host; else for itself alone. */
    const uint64_t computed = host->transport.has_local ? host->local_samples : nsamples;
    for (uint32_t b = 0; b < host->config.buckets->n; b++) {
        host->grad_samples[b] = nsamples;
        host->uncovered[b] += computed;
        host->is_empty[b] = nsamples == 0;
        host->buckets[b].step = step;
        host->buckets[b].nsamples = nsamples;
        memset(host->reqs[b], 0, sizeof host->reqs[b]);
    }
    if (host->config.gpu != NULL) EN_TRY(eni_host_gpu_begin(host, nsamples));
    return eni_hook_before_step(host);
}

en_status eni_host_submit(eni_host *host, uint32_t bucket)
{
    eni_host_send_unsent(host, false);
    EN_TRY(eni_hook_submit(host, bucket));
    eni_host_gpu_offer(host);
    return EN_OK;
}

/* Of the store this rank knows what its leader hands on: weights once a step. */
static void note_followed_step(eni_host *host)
{
    host->counters.version = host->step + 1;
    host->counters.lr = eni_schedule_lr(&host->config.schedule, host->samples_before);
}

/* The worker's own order, so a bug: a bucket that is left out would keep its request for ever. */
static en_status refuse_order(const eni_host *host, const char *what, uint32_t bucket)
{
    eni_error("host", "%s %u of step %llu, and bucket %u is the next to finish", what, bucket,
              (unsigned long long)host->step, host->nfinished);
    return EN_EBUG;
}

/* What was computed since the step's first exchange had left hid it. */
static void note_hidden(eni_host *host)
{
    if (host->left_ns == 0) return;
    host->counters.hidden_ns += eni_host_now(host) - host->left_ns - (eni_host_busy(host) - host->busy_ns);
    host->left_ns = 0;
}

en_status eni_host_finish_bucket(eni_host *host, uint32_t bucket)
{
    if (bucket != host->nfinished || bucket >= host->config.buckets->n)
        return refuse_order(host, "finish of bucket", bucket);
    if (bucket == 0) note_hidden(host);
    EN_TRY(eni_hook_finish(host, bucket));
    if (host->is_stepping[bucket]) EN_TRY(eni_host_gpu_settle(host, bucket));
    host->nfinished++;
    return EN_OK;
}

en_status eni_host_finish(eni_host *host)
{
    for (uint32_t b = 0; b < host->config.buckets->n; b++)
        EN_TRY(eni_host_finish_bucket(host, b));
    return eni_host_end(host);
}

en_status eni_host_end(eni_host *host)
{
    if (host->nfinished < host->config.buckets->n)
        return refuse_order(host, "the end before bucket", host->config.buckets->n);
    if (!host->is_called[0]) host->counters.version = host->steps_taken[0];
    if (host->config.has_store && !host->transport.is_client) note_followed_step(host);
    return eni_hook_after_step(host);
}

void eni_host_theory(eni_host *host, en_theory *theory_out)
{
    const en_strategy *s = host->config.strategy;
    *theory_out = (en_theory){.size = sizeof *theory_out, .max_clocks_behind = INFINITY, .staleness = -1};
    if (s->theory != NULL) s->theory(&host->table, host->state, theory_out);
}

void eni_host_count(const eni_host *host, eni_host_counters *counters_out)
{
    *counters_out = host->counters;
}

/* ---- for checkpoints ---- */

int eni_host_vectors(const eni_host *host, eni_host_vector vectors_out[ENI_ARENA_NSLOTS])
{
    int n = 0;
    for (uint32_t s = ENI_SLOT_FREE; s < host->nslots_used; s++) {
        int is_optimizer = host->noptimizer_slots > 0 && s >= host->optimizer_slot &&
                           s < host->optimizer_slot + (uint32_t)host->noptimizer_slots;
        if (!is_optimizer) vectors_out[n++] = (eni_host_vector){host->slot_names[s], s};
    }
    return n;
}

uint32_t eni_host_slots(const eni_host *host)
{
    return host->nslots_used;
}

int eni_host_optimizer_slots(const eni_host *host, uint32_t *first_out)
{
    *first_out = host->optimizer_slot;
    return host->noptimizer_slots;
}

void *eni_host_state(const eni_host *host, size_t *bytes_out)
{
    *bytes_out = host->config.strategy->state;
    return host->state;
}

int eni_host_writes_param(const eni_host *host)
{
    return host->writes_param;
}

uint64_t eni_host_steps_taken(const eni_host *host, uint32_t bucket)
{
    return host->steps_taken[bucket];
}

void eni_host_set_steps_taken(eni_host *host, uint32_t bucket, uint64_t steps)
{
    host->steps_taken[bucket] = steps;
    if (bucket == 0 && !host->transport.is_client) host->counters.version = steps;
}

int eni_host_is_called(const eni_host *host, uint32_t bucket)
{
    return host->is_called[bucket];
}

void eni_host_range(const eni_host *host, uint32_t bucket, uint64_t *lo_out, uint64_t *hi_out)
{
    *lo_out = host->buckets[bucket].lo;
    *hi_out = host->buckets[bucket].hi;
}
