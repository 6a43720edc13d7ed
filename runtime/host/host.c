/* host.c - a host: calls the strategy's hooks and holds each to the contract, opens and closes, drives one
 * step, and answers what checkpoints ask (host.h). */
#include <math.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/host/host_state.h"

/* ---- hooks ---- */

/* A breach of the contract ends the run with one line that names strategy, hook, rank, step and bucket,
 * whatever the hook returns. */

static void begin_hook(eni_host *host, const char *hook, const en_bucket *bucket)
{
    eni_hook_site *place = &host->hook.place;
    int n = 0;
    *place = (eni_hook_site){.hook = hook, .plugin = host->config.strategy->name};
    place->number[n].what = "rank";
    place->number[n++].value = host->config.world.rank;
    if (!host->is_planning) {
        place->number[n].what = "step";
        place->number[n++].value = (int64_t)host->now.step;
    }
    if (bucket != NULL) {
        place->number[n].what = "bucket";
        place->number[n++].value = bucket->id;
    }
    host->hook.verdict = EN_OK;
    host->hook.has_refused = false;
    atomic_store_explicit(&host->hook.thread, pthread_self(), memory_order_relaxed);
    eni_hook_enter(host->config.hooks, place);
}

/* Ends a hook: checks its status and what it did. */
static en_status end_hook(eni_host *host, en_status st)
{
    eni_hook_leave(host->config.hooks);
    if (atomic_load(&host->hook.is_called_beside)) host->hook.verdict = EN_EBUG;
    if (host->hook.verdict == EN_OK && (st == EN_ESTOP || st < 0 || st > EN_EBUG))
        eni_host_misuse(host, "returned %d, %s", st,
                        st == EN_ESTOP ? "which only the host may return: the budget is used up"
                                       : "which is not an en_status");
    /* A death and a signal have a line of their own: the strategy is not to blame. Nor is it for a failed GPU,
     * whose error must stay the last, because the other ranks get it as the cause. A refused option is the
     * strategy's own sentence: it knows the remedy. */
    const bool is_refused = host->hook.has_refused && (st == EN_EINVAL || st == EN_EUNSUPPORTED);
    const bool is_said = host->hook.verdict != EN_OK || st == EN_EPEER || st == EN_EINTR || is_refused ||
                         (host->config.gpu != NULL && eni_gpu_steps_status(host->config.gpu) != EN_OK);
    if (st != EN_OK && !is_said) {
        char place[160], why[400];
        eni_host_site(host, place, sizeof place);
        if (st != EN_EBUG)
            eni_error("host", "%s failed: %s (status %d)", place, en_status_str(st), st);
        else if (eni_log_last_error(why, sizeof why)) /* such as a store's refusal */
            eni_error("host", "%s failed: %s", place, why);
        else
            eni_error("host", "%s returned EN_EBUG without logging an error", place);
    }
    host->hook.place.hook = NULL;
    return host->hook.verdict != EN_OK ? host->hook.verdict : st;
}

static en_status hook_open(eni_host *host)
{
    const en_strategy *s = host->config.strategy;
    if (s->open == NULL) return EN_OK;
    begin_hook(host, "open", NULL);
    return end_hook(host, s->open(&host->table, host->state));
}

/* The range narrowed by plan is an index from here on, so it is checked; plan changes nothing else. */
static en_status hook_plan(eni_host *host, uint32_t b)
{
    const en_strategy *s = host->config.strategy;
    en_bucket *bucket = &host->buckets[b];
    uint64_t lo = 0, hi = bucket->count;
    if (s->plan == NULL) return EN_OK;
    begin_hook(host, "plan", bucket);
    const en_status st = s->plan(&host->table, host->state, bucket, &lo, &hi);
    if (lo > hi || hi > bucket->count)
        eni_host_misuse(host, "set the range %llu to %llu of %llu elements; keep lo <= hi <= count",
                        (unsigned long long)lo, (unsigned long long)hi, (unsigned long long)bucket->count);
    else if (s->flags & EN_SHARED_PARAMS && (lo != 0 || hi != bucket->count))
        eni_host_misuse(host, "narrowed its range; with EN_SHARED_PARAMS the host divides the step");
    bucket->lo = lo;
    bucket->hi = hi;
    return end_hook(host, st);
}

/* before_step and after_step. */
static en_status hook_step(eni_host *host, const char *name,
                           en_status (*hook)(en_host *, void *state, uint64_t step))
{
    if (hook == NULL) return EN_OK;
    begin_hook(host, name, NULL);
    return end_hook(host, hook(&host->table, host->state, host->now.step));
}

static en_status hook_submit(eni_host *host, uint32_t b)
{
    en_req *req = host->of[b].reqs;
    begin_hook(host, "submit", &host->buckets[b]);
    const en_status st = host->config.strategy->submit(&host->table, host->state, &host->buckets[b], req);
    for (int i = EN_REQS; i < EN_REQS + ENI_HOST_FENCE; i++)
        if (req[i] != ENI_HOST_FENCED) {
            eni_host_misuse(
                host,
                "wrote req[%d], but a bucket has EN_REQS = %d requests a step: req[0] to req[%d] (rule 4)", i,
                EN_REQS, EN_REQS - 1);
            req[i] = ENI_HOST_FENCED;
        }
    return end_hook(host, st);
}

static en_status wait_for_all(eni_host *host, const en_req *req)
{
    for (int i = 0; i < EN_REQS; i++)
        EN_TRY(eni_host_wait(host, req[i]));
    return EN_OK;
}

static en_status hook_finish(eni_host *host, uint32_t b)
{
    const en_strategy *s = host->config.strategy;
    begin_hook(host, "finish", &host->buckets[b]);
    return end_hook(host, s->finish != NULL
                              ? s->finish(&host->table, host->state, &host->buckets[b], host->of[b].reqs)
                              : wait_for_all(host, host->of[b].reqs));
}

en_status eni_host_eval(eni_host *host, int *which_out, uint32_t *slot_out)
{
    const en_strategy *s = host->config.strategy;
    en_vec v = 0;
    int which = s->flags & (EN_STORE_ON_SERVERS | EN_STORE_ON_RANKS) ? EN_EVAL_STORE : EN_EVAL_PARAM;
    begin_hook(host, "eval", &host->buckets[0]);
    if (s->eval != NULL) which = s->eval(&host->table, host->state, &host->buckets[0], &v);
    if (which < EN_EVAL_PARAM || which > EN_EVAL_VEC)
        eni_host_misuse(host, "returned %d, which is not one of EN_EVAL_*", which);
    else if (which == EN_EVAL_STORE && !host->transport.is_client && !host->config.has_store)
        eni_host_misuse(host, "returned EN_EVAL_STORE, but this run has no store");
    else if (which == EN_EVAL_VEC && (!eni_vec_is_valid(host, v) || eni_vec_bucket(v) != 0))
        eni_host_misuse(host, "returned EN_EVAL_VEC with %u, which is not a vector of its bucket", v);
    EN_TRY(end_hook(host, EN_OK));
    *which_out = which;
    *slot_out = which == EN_EVAL_VEC ? eni_vec_slot(v) : ENI_SLOT_PARAM;
    return EN_OK;
}

/* ---- open and close ---- */

static en_status open_buckets(eni_host *host)
{
    uint32_t n = host->config.buckets->n;
    host->buckets = eni_alloc_array(n, sizeof *host->buckets);
    host->of = eni_alloc_array(n, sizeof *host->of);
    if (host->buckets == NULL || host->of == NULL) return EN_ENOMEM;
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
    host->slots.noptimizer = host->config.optimizer->slots(&host->config.hyper);
    for (int i = 0; i < host->slots.noptimizer; i++) {
        uint32_t slot;
        if (!eni_host_find_slot(host, host->config.optimizer->slot_names[i], &slot)) return EN_ENOMEM;
        if (i == 0) host->slots.optimizer = slot;
    }
    return EN_OK;
}

static en_status open_strategy(eni_host *host)
{
    int which;
    uint32_t slot;
    host->is_planning = true;
    EN_TRY(hook_open(host));
    for (uint32_t b = 0; b < host->config.buckets->n; b++)
        EN_TRY(hook_plan(host, b));
    EN_TRY(host->measured.status);
    EN_TRY(eni_host_eval(host, &which, &slot)); /* checked before step 0 */
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
    host->slots.n = ENI_SLOT_FREE;
    host->now.lr = eni_schedule_lr(&config->schedule, 0);
    host->requests.next = host->requests.base = 1;
    host->transport = config->transport != NULL ? *config->transport
                                                : (eni_transport){.has_world = config->coll != NULL,
                                                                  .has_group = config->group != NULL,
                                                                  .has_leaders = config->leaders != NULL,
                                                                  .is_client = config->client != NULL};
    en_status st = EN_OK;
    EN_TRY_GOTO(eni_host_gpu_check(host), close_host);
    host->state = eni_alloc(config->strategy->state);
    EN_TRY_GOTO(host->state == NULL ? EN_ENOMEM : EN_OK, close_host);
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
        eni_free(host->requests.block[i]);
    eni_free(host->unsent.req);
    eni_free(host->of);
    eni_free(host->buckets);
    eni_free(host->state);
    eni_free(host);
}

/* ---- one step ---- */

void eni_host_note_samples(eni_host *host, uint64_t local, uint64_t world)
{
    host->now.has_samples = true;
    host->now.local_samples = local;
    host->now.world_samples = world;
}

void eni_host_note_micros(eni_host *host, const uint64_t *samples, int n)
{
    memcpy(host->now.micros, samples, (size_t)(n < EN_GPU_SOURCES ? n : EN_GPU_SOURCES) * sizeof *samples);
    host->now.has_micros = true;
}

/* Looks until one gradient is not 0: in most runs it is the first element. */
static void look_at_gradient(eni_host *host, uint32_t bucket)
{
    const eni_bucket_range *range = &host->config.buckets->bucket[bucket];
    const float *grad = eni_arena_at(host->config.arena, ENI_SLOT_GRAD, range->lo);
    if (host->config.gpu != NULL || host->now.lr <= 0 || host->buckets[bucket].nsamples == 0) return;
    for (uint64_t i = 0; i < range->hi - range->lo && !host->progress.has_gradient; i++)
        host->progress.has_gradient = grad[i] != 0;
}

en_status eni_host_begin(eni_host *host, uint64_t step, uint64_t nsamples, uint64_t samples_before)
{
    if (host->progress.steps++ == 0) eni_host_note_start(host);
    host->now.step = step;
    host->requests.first = host->requests.next;
    if (host->requests.n == 0) host->requests.base = host->requests.next;
    host->now.lr = eni_schedule_lr(&host->config.schedule, samples_before);
    host->rand_calls = 0;
    host->now.nfinished = 0;
    host->next_offer = host->requests.next;
    host->now.npushes = 0;
    host->now.left_ns = 0;
    host->counters.staleness = 0;
    if (!host->of[0].is_called) host->counters.base_version = host->of[0].steps_taken;
    if (!host->now.has_samples) {
        host->now.local_samples = nsamples * (uint64_t)host->config.world.nlocal;
        host->now.world_samples = nsamples * (uint64_t)host->config.world.nranks;
    }
    const bool is_for_host = (host->config.strategy->flags & EN_LEADERS_ARE_CLIENTS) != 0;
    const uint64_t computed = is_for_host ? host->now.local_samples : nsamples; /* that this rank pushes */
    for (uint32_t b = 0; b < host->config.buckets->n; b++) {
        host->of[b].grad_samples = nsamples;
        host->of[b].uncovered += computed;
        host->of[b].is_empty = nsamples == 0;
        host->buckets[b].step = step;
        host->buckets[b].nsamples = nsamples;
        host->of[b].stepped_by = NULL;
        for (int i = 0; i < EN_REQS + ENI_HOST_FENCE; i++)
            host->of[b].reqs[i] = i < EN_REQS ? 0 : ENI_HOST_FENCED;
    }
    if (host->config.gpu != NULL) EN_TRY(eni_host_gpu_begin(host, nsamples));
    return hook_step(host, "before_step", host->config.strategy->before_step);
}

en_status eni_host_submit(eni_host *host, uint32_t bucket)
{
    eni_host_send_unsent(host, false);
    if (!host->progress.has_gradient) look_at_gradient(host, bucket);
    EN_TRY(hook_submit(host, bucket));
    if (host->config.gpu != NULL) eni_host_gpu_offer(host);
    return EN_OK;
}

/* A wrong order is the worker's bug: a skipped bucket would keep its request without end. */
static en_status refuse_order(const eni_host *host, const char *what, uint32_t bucket)
{
    return eni_fail(EN_EBUG, "host", "unexpected %s %u of step %llu: bucket %u is the next to finish", what,
                    bucket, (unsigned long long)host->now.step, host->now.nfinished);
}

/* Computation since the step's first exchange left has hidden that exchange. */
static void note_hidden(eni_host *host)
{
    if (host->now.left_ns == 0) return;
    host->counters.hidden_ns +=
        eni_host_now(host) - host->now.left_ns - (eni_host_busy(host) - host->now.busy_ns);
    host->now.left_ns = 0;
}

en_status eni_host_finish_bucket(eni_host *host, uint32_t bucket)
{
    if (bucket != host->now.nfinished || bucket >= host->config.buckets->n)
        return refuse_order(host, "finish of bucket", bucket);
    if (bucket == 0) note_hidden(host);
    EN_TRY(hook_finish(host, bucket));
    if (host->of[bucket].is_stepping) EN_TRY(eni_host_gpu_settle(host, bucket));
    host->now.nfinished++;
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
    if (host->now.nfinished < host->config.buckets->n)
        return refuse_order(host, "end before bucket", host->config.buckets->n);
    if (!host->of[0].is_called) host->counters.version = host->of[0].steps_taken;
    if (host->config.has_store && !host->transport.is_client) { /* its leader sends weights, once a step */
        host->counters.version = host->now.step + 1;
        host->counters.lr = host->now.lr;
    }
    return hook_step(host, "after_step", host->config.strategy->after_step);
}

/* The oldest request in progress from before the last two steps: nobody will wait for it. */
static const eni_request *forgotten(eni_host *host)
{
    for (en_req id = host->requests.base; id < host->requests.next; id++) {
        const eni_request *r = eni_host_request(host, id);
        const uint64_t step = r == NULL ? 0 : r->op.kind == ENI_OPERATION_CALL ? r->op.step : r->op.coll.step;
        if (r != NULL && r->kind != REQ_GPU && step + 1 < host->now.step) return r;
    }
    return NULL;
}

/* A synchronous strategy that never exchanges is as many models as ranks. Those with EN_REPLICATED are compared at the end,
 * and a group may be all that a rank ever exchanges with. */
static en_status has_exchanged(const eni_host *host)
{
    const en_strategy *s = host->config.strategy;
    const bool must = (s->flags & (EN_SYNCHRONOUS | EN_REPLICATED | EN_USES_GROUPS)) == EN_SYNCHRONOUS;
    if (!must || host->config.world.nranks == 1 || host->requests.next > 1) return EN_OK;
    return eni_fail(EN_EBUG, "host",
                    "%s (rank %d) sets EN_SYNCHRONOUS, one update a step of all ranks, but has exchanged "
                    "nothing in %llu steps: average in submit, or omit the flag (rule 6)",
                    s->name, host->config.world.rank, (unsigned long long)host->progress.steps);
}

en_status eni_host_over(eni_host *host, bool is_early)
{
    const en_strategy *s = host->config.strategy;
    const int rank = host->config.world.rank;
    const eni_request *left = host->requests.n > 0 ? forgotten(host) : NULL;
    if (left != NULL)
        return eni_fail(EN_EBUG, "host",
                        "%s (rank %d) has started %u operations that it never waited for, first the %s of "
                        "bucket %u: wait for every request, in the next step at the latest",
                        s->name, rank, host->requests.n, left->what, left->bucket->id);
    if (atomic_load(&host->hook.is_called_beside)) return EN_EBUG; /* after the last hook */
    if (host->config.gpu != NULL || host->progress.steps == 0) return EN_OK;
    host->counters.param_crc = eni_host_param_crc(host);
    host->counters.is_unchanged = !is_early && host->progress.has_gradient && host->progress.steps > 1 &&
                                  host->counters.param_crc == host->progress.first_crc;
    /* a store that has answered no later version may have dropped this rank's gradients, or wait for more, or
     * have died and come back: then all ranks are asked */
    if (!host->counters.is_unchanged) return has_exchanged(host);
    if (host->progress.has_answer && host->counters.version <= host->progress.first_version) return EN_OK;
    return eni_fail(EN_EBUG, "host",
                    "%s (rank %d) has not changed the weights in %llu steps, though gradients were not 0: "
                    "after finish, bucket->param must hold the weights of the next step",
                    s->name, rank, (unsigned long long)host->progress.steps);
}

en_status eni_host_unchanged(const en_strategy *strategy)
{
    return eni_fail(EN_EBUG, "host",
                    "%s has not changed the weights of any rank, though gradients were not 0: on_push or "
                    "on_timer must call step, or write the weights and call touch",
                    strategy->name);
}

en_status eni_host_not_replicated(const en_strategy *strategy)
{
    return eni_fail(EN_EBUG, "host",
                    "%s sets EN_REPLICATED, but its ranks end with different weights: make finish leave the "
                    "same weights on all of them, or omit the flag",
                    strategy->name);
}

void eni_host_theory(eni_host *host, int32_t nranks, en_theory *theory_out)
{
    const en_strategy *s = host->config.strategy;
    const int32_t all = host->config.world.nranks;
    *theory_out = (en_theory){.size = sizeof *theory_out, .max_clocks_behind = INFINITY, .staleness = -1};
    if (s->theory == NULL) return;
    if (nranks > 0) host->config.world.nranks = nranks;
    begin_hook(host, "theory", NULL);
    s->theory(&host->table, host->state, theory_out);
    end_hook(host, EN_OK);
    host->config.world.nranks = all;
}

void eni_host_count(const eni_host *host, eni_host_counters *counters_out)
{
    *counters_out = host->counters;
}

/* ---- for checkpoints ---- */

int eni_host_vectors(const eni_host *host, eni_host_vector vectors_out[ENI_ARENA_NSLOTS])
{
    int n = 0;
    for (uint32_t s = ENI_SLOT_FREE; s < host->slots.n; s++)
        if (!eni_host_is_optimizer_slot(host, s))
            vectors_out[n++] = (eni_host_vector){host->slots.names[s], s};
    return n;
}

uint32_t eni_host_slots(const eni_host *host)
{
    return host->slots.n;
}

int eni_host_optimizer_slots(const eni_host *host, uint32_t *first_out)
{
    *first_out = host->slots.optimizer;
    return host->slots.noptimizer;
}

void *eni_host_state(const eni_host *host, size_t *bytes_out)
{
    *bytes_out = host->config.strategy->state;
    return host->state;
}

bool eni_host_writes_param(const eni_host *host)
{
    return host->writes_param;
}

uint64_t eni_host_steps_taken(const eni_host *host, uint32_t bucket)
{
    return host->of[bucket].steps_taken;
}

void eni_host_set_steps_taken(eni_host *host, uint32_t bucket, uint64_t steps)
{
    host->of[bucket].steps_taken = host->of[bucket].steps_begun = steps;
    if (bucket == 0 && !host->transport.is_client) host->counters.version = steps;
}

bool eni_host_is_called(const eni_host *host, uint32_t bucket)
{
    return host->of[bucket].is_called;
}

void eni_host_range(const eni_host *host, uint32_t bucket, uint64_t *lo_out, uint64_t *hi_out)
{
    *lo_out = host->buckets[bucket].lo;
    *hi_out = host->buckets[bucket].hi;
}
