/* store_hooks.c - calls the hooks of a strategy's store half and holds it to the contract: what it may not
 * write is put back, and what it may not do fails the hook in one line with its place. */
#include <stdarg.h>
#include <stdio.h>

#include "runtime/store/store_impl.h"
#include "core/log.h"
#include "core/try.h"

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

/* Puts back what is not the strategy's, before the store relies on it. 0, said, if there was anything. */
static int is_untouched(eni_store *store)
{
    en_cell *cell = &store->hook_cell->pub;
    eni_call *call = store->hook_call;
    const int has_cell = !same_cell(cell, &store->hook_given),
              has_msg = call && !same_message(&call->msg, &store->hook_msg);
    if (has_cell) {
        store->hook_given.pending = cell->pending; /* these two move with absorb, step and touch */
        store->hook_given.version = cell->version;
        *cell = store->hook_given;
        eni_store_misuse(store, "changed its cell; only what w points at is the strategy's");
    }
    if (has_msg) {
        call->msg = store->hook_msg;
        eni_store_misuse(store, "changed its message; only what data points at is the strategy's");
    }
    return !has_cell && !has_msg;
}

int eni_store_knows(eni_store *store, const char *operation, const en_cell *cell)
{
    if (store->hook != NULL && cell == &store->hook_cell->pub) return is_untouched(store);
    eni_store_misuse(store, "called %s with a cell that is not the hook's", operation);
    return 0;
}

/* A hook may write the weights, but where they change in rounds only a step does, and that looks itself. */
static en_status begin_hook(eni_store *store, const char *hook, eni_cell *cell, eni_call *call,
                            int32_t client)
{
    if (!(store->config.strategy->flags & EN_ROUNDS)) EN_TRY(eni_cell_own(store, cell));
    store->hook = hook;
    store->hook_cell = cell;
    store->hook_call = call;
    store->hook_client = client;
    store->hook_given = cell->pub;
    if (call) store->hook_msg = call->msg;
    store->has_misused = 0;
    return EN_OK;
}

/* EN_EBUG after misuse; cell and message are as they were. */
static en_status end_hook(eni_store *store)
{
    is_untouched(store);
    store->hook = NULL;
    store->hook_cell = NULL;
    return store->has_misused ? EN_EBUG : EN_OK;
}

en_status eni_store_hook_push(eni_store *store, eni_cell *cell, eni_call *call)
{
    EN_TRY(begin_hook(store, "on_push", cell, call, call->msg.src));
    en_status st = store->config.strategy->on_push(&store->table, cell->state, &cell->pub, &call->msg);
    if (st < 0 || st > EN_EBUG || st == EN_ESTOP || st == EN_EINTR || st == EN_EPEER || st == EN_EMEMBER) {
        eni_store_misuse(store, "returned %d, which only the host may say", st);
        st = EN_EBUG;
    }
    const en_status judged = end_hook(store);
    return judged != EN_OK ? judged : st;
}

en_status eni_store_hook_pull(eni_store *store, eni_cell *cell, eni_call *call, int *verdict_out)
{
    EN_TRY(begin_hook(store, "on_pull", cell, call, call->msg.src));
    const int verdict = store->config.strategy->on_pull(&store->table, cell->state, &cell->pub, &call->msg);
    if (verdict != EN_REPLY_WEIGHTS && verdict != EN_REPLY_DATA && verdict != EN_HOLD)
        eni_store_misuse(store,
                         "returned %d, which is no answer; EN_REPLY_WEIGHTS, EN_REPLY_DATA and EN_HOLD are",
                         verdict);
    *verdict_out = verdict;
    return end_hook(store);
}

en_status eni_store_hook_timer(eni_store *store, eni_cell *cell)
{
    const en_strategy *strategy = store->config.strategy;
    if (!strategy->on_timer) return EN_OK;
    EN_TRY(begin_hook(store, "on_timer", cell, NULL, -1));
    strategy->on_timer(&store->table, cell->state, &cell->pub);
    return end_hook(store);
}

en_status eni_store_hook_member(eni_store *store, eni_cell *cell, int32_t who, int member)
{
    const en_strategy *strategy = store->config.strategy;
    if (!strategy->on_member) return EN_OK;
    EN_TRY(begin_hook(store, "on_member", cell, NULL, who));
    strategy->on_member(&store->table, cell->state, &cell->pub, who, member);
    return end_hook(store);
}
