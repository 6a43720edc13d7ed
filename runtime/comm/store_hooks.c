/* store_hooks.c - calls the hooks of a strategy's store half and holds it to the contract: what it may not
 * write is put back, and what it may not do fails the hook in one line with its place. */
#include <stdarg.h>
#include <stdio.h>

#include "runtime/comm/store_impl.h"
#include "runtime/core/log.h"

void eni_store_misuse(eni_store *store, const char *fmt, ...)
{
    char text[320];
    const eni_cell *cell = store->hook_cell;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    store->has_misused = 1;
    if (store->hook == NULL) {
        eni_error("store", "%s, outside of a hook, %s", store->config.strategy->name, text);
        return;
    }
    eni_error("store", "%s of %s (shard %u, bucket %u, version %llu, rank %d) %s", store->hook,
              store->config.strategy->name, cell->pub.shard, cell->pub.bucket,
              (unsigned long long)cell->pub.version, store->hook_client, text);
}

int eni_store_knows(eni_store *store, const char *operation, const en_cell *cell)
{
    if (store->hook != NULL && cell == &store->hook_cell->pub) return 1;
    eni_store_misuse(store, "called %s with a cell that is not the hook's", operation);
    return 0;
}

/* What cuts copies and sums. */
static int same_cell(const en_cell *a, const en_cell *b)
{
    return a->size == b->size && a->bucket == b->bucket && a->shard == b->shard &&
           a->nclients == b->nclients && a->count == b->count && a->min_clock == b->min_clock && a->w == b->w;
}

static int same_message(const en_msg *a, const en_msg *b)
{
    return a->size == b->size && a->kind == b->kind && a->src == b->src && a->what == b->what &&
           a->clock == b->clock && a->base_version == b->base_version && a->nsamples == b->nsamples &&
           a->data == b->data;
}

static void begin_hook(eni_store *store, const char *hook, eni_cell *cell, int32_t client)
{
    store->hook = hook;
    store->hook_cell = cell;
    store->hook_client = client;
    store->has_misused = 0;
}

/* EN_EBUG after misuse; cell and message are as they were. */
static en_status end_hook(eni_store *store, const en_cell *cell, eni_call *call, const en_msg *message)
{
    en_cell *now = &store->hook_cell->pub;
    if (!same_cell(now, cell)) {
        const uint32_t pending = now->pending;
        const uint64_t version = now->version;
        *now = *cell;
        now->pending = pending;
        now->version = version;
        eni_store_misuse(store, "changed its cell; only what w points at is the strategy's");
    }
    if (call != NULL && !same_message(&call->msg, message)) {
        call->msg = *message;
        eni_store_misuse(store, "changed its message; only what data points at is the strategy's");
    }
    store->hook = NULL;
    return store->has_misused ? EN_EBUG : EN_OK;
}

en_status eni_store_hook_push(eni_store *store, eni_cell *cell, eni_call *call)
{
    const en_cell as_given = cell->pub;
    const en_msg message = call->msg;
    begin_hook(store, "on_push", cell, call->msg.src);
    en_status st = store->config.strategy->on_push(&store->table, cell->state, &cell->pub, &call->msg);
    if (st < 0 || st > EN_EBUG || st == EN_ESTOP || st == EN_EINTR || st == EN_EPEER || st == EN_EMEMBER) {
        eni_store_misuse(store, "returned %d, which only the host may say", st);
        st = EN_EBUG;
    }
    const en_status judged = end_hook(store, &as_given, call, &message);
    return judged != EN_OK ? judged : st;
}

en_status eni_store_hook_pull(eni_store *store, eni_cell *cell, eni_call *call, int *verdict_out)
{
    const en_cell as_given = cell->pub;
    const en_msg message = call->msg;
    begin_hook(store, "on_pull", cell, call->msg.src);
    const int verdict = store->config.strategy->on_pull(&store->table, cell->state, &cell->pub, &call->msg);
    if (verdict != EN_REPLY_WEIGHTS && verdict != EN_REPLY_DATA && verdict != EN_HOLD)
        eni_store_misuse(store,
                         "returned %d, which is no answer; EN_REPLY_WEIGHTS, EN_REPLY_DATA and EN_HOLD are",
                         verdict);
    *verdict_out = verdict;
    return end_hook(store, &as_given, call, &message);
}

en_status eni_store_hook_timer(eni_store *store, eni_cell *cell)
{
    const en_strategy *strategy = store->config.strategy;
    const en_cell as_given = cell->pub;
    if (!strategy->on_timer) return EN_OK;
    begin_hook(store, "on_timer", cell, -1);
    strategy->on_timer(&store->table, cell->state, &cell->pub);
    return end_hook(store, &as_given, NULL, NULL);
}

en_status eni_store_hook_member(eni_store *store, eni_cell *cell, int32_t who, int member)
{
    const en_strategy *strategy = store->config.strategy;
    const en_cell as_given = cell->pub;
    if (!strategy->on_member) return EN_OK;
    begin_hook(store, "on_member", cell, who);
    strategy->on_member(&store->table, cell->state, &cell->pub, who, member);
    return end_hook(store, &as_given, NULL, NULL);
}
