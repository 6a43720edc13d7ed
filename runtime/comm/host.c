/* host.c - see host.h: a host's life, and one step through the strategy's hooks. */
#include <math.h>
#include <string.h>

#include "runtime/comm/host_state.h"
#include "runtime/core/log.h"
#include "runtime/core/memory.h"
#include "runtime/core/try.h"

/* ---- life ---- */

static en_status open_buckets(eni_host *host)
{
    uint32_t n = host->config.buckets->n;
    host->buckets = eni_alloc_array(n, sizeof *host->buckets);
    host->steps_taken = eni_alloc_array(n, sizeof *host->steps_taken);
    if (host->buckets == NULL || host->steps_taken == NULL) return EN_ENOMEM;
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

/* What plan narrows is used as an index from here on. */
static en_status plan_bucket(eni_host *host, en_bucket *bucket)
{
    const en_strategy *s = host->config.strategy;
    EN_TRY(s->plan(&host->table, host->state, bucket));
    if (bucket->lo <= bucket->hi && bucket->hi <= bucket->count) return EN_OK;
    eni_error("host",
              "plan of %s gave bucket %u the range %llu to %llu of %llu elements; keep lo <= hi <= count",
              s->name, bucket->id, (unsigned long long)bucket->lo, (unsigned long long)bucket->hi,
              (unsigned long long)bucket->count);
    return EN_EBUG;
}

static en_status open_strategy(eni_host *host)
{
    const en_strategy *s = host->config.strategy;
    host->is_planning = 1;
    if (s->open != NULL) EN_TRY(s->open(&host->table, host->state));
    for (uint32_t b = 0; b < host->config.buckets->n && s->plan != NULL; b++)
        EN_TRY(plan_bucket(host, &host->buckets[b]));
    host->is_planning = 0;
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
    host->next_request = 1;
    en_status st = EN_ENOMEM;
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
    eni_free(host->steps_taken);
    eni_free(host->buckets);
    eni_free(host->state);
    eni_free(host);
}

/* ---- one step ---- */

en_status eni_host_begin(eni_host *host, uint64_t step, uint64_t nsamples, uint64_t samples_before)
{
    const en_strategy *s = host->config.strategy;
    host->step = step;
    host->samples_before = samples_before;
    host->rand_calls = 0;
    host->npushes = 0;
    host->counters.staleness = 0;
    if (host->config.client == NULL) host->counters.base_version = host->steps_taken[0];
    for (uint32_t b = 0; b < host->config.buckets->n; b++) {
        host->buckets[b].step = step;
        host->buckets[b].nsamples = nsamples;
        memset(host->buckets[b].req, 0, sizeof host->buckets[b].req);
    }
    return s->before_step == NULL ? EN_OK : s->before_step(&host->table, host->state, step);
}

en_status eni_host_submit(eni_host *host, uint32_t bucket)
{
    return host->config.strategy->submit(&host->table, host->state, &host->buckets[bucket]);
}

static en_status finish_bucket(eni_host *host, en_bucket *bucket)
{
    const en_strategy *s = host->config.strategy;
    if (s->finish != NULL) return s->finish(&host->table, host->state, bucket);
    for (int i = 0; i < 3; i++)
        EN_TRY(host->table.wait(&host->table, bucket->req[i]));
    return EN_OK;
}

en_status eni_host_finish(eni_host *host)
{
    const en_strategy *s = host->config.strategy;
    for (uint32_t b = 0; b < host->config.buckets->n; b++)
        EN_TRY(finish_bucket(host, &host->buckets[b]));
    if (host->config.client == NULL) host->counters.version = host->steps_taken[0];
    return s->after_step == NULL ? EN_OK : s->after_step(&host->table, host->state, host->step);
}

int eni_host_eval(eni_host *host, uint32_t *slot_out)
{
    const en_strategy *s = host->config.strategy;
    en_vec v = 0;
    int which = s->flags & EN_STORE_ON_SERVERS ? EN_EVAL_STORE : EN_EVAL_PARAM;
    if (s->eval != NULL) which = s->eval(&host->table, host->state, &host->buckets[0], &v);
    *slot_out = which == EN_EVAL_VEC && eni_vec_is_valid(host, v) ? eni_vec_slot(v) : ENI_SLOT_PARAM;
    return which;
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
