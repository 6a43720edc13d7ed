/* host_hooks.c - calls the hooks of a strategy's worker half and holds it to the contract: what it may not do
 * ends the run in one line that names strategy, hook, rank, step and bucket, whatever the hook returns. */
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/host/host_state.h"

static void begin_hook(eni_host *host, const char *hook, const en_bucket *bucket)
{
    host->hook = hook;
    host->hook_bucket = bucket;
    host->verdict = EN_OK;
    host->has_refused = false;
}

/* What the hook has left behind, and how it ended. */
static en_status end_hook(eni_host *host, en_status st)
{
    char place[160];
    if (host->verdict == EN_OK && (st == EN_ESTOP || st < 0 || st > EN_EBUG))
        eni_host_misuse(host, "returned %d, %s", st,
                        st == EN_ESTOP ? "which only the host may say: the budget is used up"
                                       : "which is no status");
    eni_host_place(host, place, sizeof place);
    host->hook = NULL;
    host->hook_bucket = NULL;
    if (host->verdict != EN_OK) return host->verdict;
    /* A death and a signal have a line of their own: the strategy is not to blame. Nor is
     * it for a GPU that has failed, of which the last error, which the other ranks hear, must remain the
     * cause. A refused option is the strategy's own sentence: it knows the remedy. */
    const bool is_refused = host->has_refused && (st == EN_EINVAL || st == EN_EUNSUPPORTED);
    const bool is_said = st == EN_EPEER || st == EN_EINTR || is_refused || eni_host_gpu_has_failed(host);
    if (st != EN_OK && !is_said) eni_error("host", "%s failed: %d, %s", place, st, en_status_str(st));
    return st;
}

en_status eni_hook_open(eni_host *host)
{
    const en_strategy *s = host->config.strategy;
    if (s->open == NULL) return EN_OK;
    begin_hook(host, "open", NULL);
    return end_hook(host, s->open(&host->table, host->state));
}

/* What plan narrows is used as an index from here on; everything else is as it was. */
en_status eni_hook_plan(eni_host *host, uint32_t b)
{
    const en_strategy *s = host->config.strategy;
    en_bucket *bucket = &host->buckets[b];
    uint64_t lo = 0, hi = bucket->count;
    if (s->plan == NULL) return EN_OK;
    begin_hook(host, "plan", bucket);
    const en_status st = s->plan(&host->table, host->state, bucket, &lo, &hi);
    if (lo > hi || hi > bucket->count)
        eni_host_misuse(host, "gave it the range %llu to %llu of %llu elements; keep lo <= hi <= count",
                        (unsigned long long)lo, (unsigned long long)hi, (unsigned long long)bucket->count);
    else if (s->flags & EN_SHARED_PARAMS && (lo != 0 || hi != bucket->count))
        eni_host_misuse(host, "narrowed its range; with EN_SHARED_PARAMS the host divides the step");
    bucket->lo = lo;
    bucket->hi = hi;
    return end_hook(host, st);
}

en_status eni_hook_before_step(eni_host *host)
{
    const en_strategy *s = host->config.strategy;
    if (s->before_step == NULL) return EN_OK;
    begin_hook(host, "before_step", NULL);
    return end_hook(host, s->before_step(&host->table, host->state, host->step));
}

en_status eni_hook_submit(eni_host *host, uint32_t b)
{
    begin_hook(host, "submit", &host->buckets[b]);
    return end_hook(
        host, host->config.strategy->submit(&host->table, host->state, &host->buckets[b], host->reqs[b]));
}

static en_status wait_for_all(eni_host *host, const en_req *req)
{
    for (int i = 0; i < EN_REQS; i++)
        EN_TRY(host->table.wait(&host->table, req[i]));
    return EN_OK;
}

en_status eni_hook_finish(eni_host *host, uint32_t b)
{
    const en_strategy *s = host->config.strategy;
    begin_hook(host, "finish", &host->buckets[b]);
    return end_hook(host, s->finish != NULL
                              ? s->finish(&host->table, host->state, &host->buckets[b], host->reqs[b])
                              : wait_for_all(host, host->reqs[b]));
}

en_status eni_hook_after_step(eni_host *host)
{
    const en_strategy *s = host->config.strategy;
    if (s->after_step == NULL) return EN_OK;
    begin_hook(host, "after_step", NULL);
    return end_hook(host, s->after_step(&host->table, host->state, host->step));
}

en_status eni_host_eval(eni_host *host, int *which_out, uint32_t *slot_out)
{
    const en_strategy *s = host->config.strategy;
    en_vec v = 0;
    int which = s->flags & (EN_STORE_ON_SERVERS | EN_STORE_ON_RANKS) ? EN_EVAL_STORE : EN_EVAL_PARAM;
    begin_hook(host, "eval", &host->buckets[0]);
    if (s->eval != NULL) which = s->eval(&host->table, host->state, &host->buckets[0], &v);
    if (which < EN_EVAL_PARAM || which > EN_EVAL_VEC)
        eni_host_misuse(host, "returned %d, which is none of EN_EVAL_*", which);
    else if (which == EN_EVAL_STORE && !host->transport.is_client && !host->config.has_store)
        eni_host_misuse(host, "returned EN_EVAL_STORE, and this run has no store");
    else if (which == EN_EVAL_VEC && (!eni_vec_is_valid(host, v) || eni_vec_bucket(v) != 0))
        eni_host_misuse(host, "returned EN_EVAL_VEC with %u, which is no vector of its bucket", v);
    EN_TRY(end_hook(host, EN_OK));
    *which_out = which;
    *slot_out = which == EN_EVAL_VEC ? eni_vec_slot(v) : ENI_SLOT_PARAM;
    return EN_OK;
}
