/* calls.c - the calls of a store and the actions that answer them. A call is taken when an event brings it and
 * held until it is answered; it may stay staged after that. It is given back at once or (retired) when the next
 * event begins, because an action may point into its payload. A payload that must outlive its event is copied
 * into a pooled buffer. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/canary.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/store/store_impl.h"

/* A call held for long_ns is logged; the next line comes next_ns later at the earliest. */
static const int64_t long_ns = 5 * ENI_SECOND, next_ns = 30 * ENI_SECOND;

/* ---- calls ---- */

/* Releases what a call holds; the call itself stays. */
static void call_empty(eni_store *store, eni_call *call)
{
    if (call->payload.release != NULL) call->payload.release(call->payload.owner);
    call->payload = (eni_payload){0};
    if (call->pooled != NULL) store->pool.free[store->pool.n++] = call->pooled; /* pool_take made the room */
    call->pooled = NULL;
}

eni_call *eni_store_call_take(eni_store *store)
{
    eni_call *call = store->idle;
    if (call == NULL) return eni_alloc(sizeof *call);
    store->idle = call->next;
    *call = (eni_call){0};
    return call;
}

void eni_store_call_give(eni_store *store, eni_call *call)
{
    call_empty(store, call);
    call->next = store->idle;
    store->idle = call;
}

void eni_store_call_retire(eni_store *store, eni_call *call)
{
    call->next = store->retired;
    store->retired = call;
}

void eni_store_call_free(eni_store *store, eni_call *call)
{
    call_empty(store, call);
    eni_free(call);
}

void eni_partition_hold(eni_partition *part, eni_call *call)
{
    call->is_held = true;
    part->held.nwaiting[ENI_WAITS_ANY] += call->was_asked;
    call->next = NULL;
    call->prev = part->held.last;
    if (part->held.last != NULL)
        part->held.last->next = call;
    else
        part->held.first = call;
    part->held.last = call;
}

void eni_partition_release(eni_partition *part, eni_call *call)
{
    if (call->prev != NULL)
        call->prev->next = call->next;
    else
        part->held.first = call->next;
    if (call->next != NULL)
        call->next->prev = call->prev;
    else
        part->held.last = call->prev;
    call->prev = call->next = NULL;
    call->is_held = false;
    part->held.nwaiting[call->waits_for] -= call->was_asked;
}

/* ---- calls that are held for long ---- */

static bool is_held(const eni_partition *part, int32_t client)
{
    for (const eni_call *call = part->held.first; call != NULL; call = call->next)
        if (call->msg.src == client && !call->is_snapshot) return true;
    return false;
}

void eni_partition_list(const eni_store *store, const eni_partition *part, bool are_held, char *text_out,
                        size_t bytes)
{
    size_t n = 0;
    text_out[0] = '\0';
    for (int32_t r = 0; r < store->config.world && n < bytes; r++)
        if (store->client[r].presence == ENI_ACTIVE && is_held(part, r) == are_held)
            n += (size_t)snprintf(text_out + n, bytes - n, "%srank %d at clock %llu", n > 0 ? ", " : "", r,
                                  (unsigned long long)part->dedupe[r].clock);
}

/* The longest held call of those due and not logged yet, or NULL; *n_out: how many; *of_out: its partition. */
static const eni_call *longest_held(eni_store *store, int64_t now_ns, uint32_t *n_out,
                                    const eni_partition **of_out)
{
    const eni_call *longest = NULL;
    *n_out = 0;
    for (uint32_t b = 0; b < store->config.nbuckets; b++)
        for (eni_call *call = store->part[b].held.first; call != NULL; call = call->next) {
            if (!call->was_asked || call->was_named) continue;
            if (call->since_ns == 0) call->since_ns = now_ns;
            const int64_t due_ns = call->since_ns + long_ns;
            if (due_ns > now_ns) {
                if (due_ns < store->look_ns) store->look_ns = due_ns;
                continue;
            }
            call->was_named = true;
            ++*n_out;
            if (longest != NULL && longest->since_ns <= call->since_ns) continue;
            longest = call;
            *of_out = &store->part[b];
        }
    return longest;
}

void eni_store_look(eni_store *store, int64_t now_ns)
{
    char others[160], more[48] = "";
    uint32_t n;
    const eni_partition *part;
    if (!store->config.judges_holds || now_ns < store->look_ns) return;
    store->look_ns = now_ns + long_ns;
    const eni_call *call = longest_held(store, now_ns, &n, &part);
    if (call == NULL) return;
    store->look_ns = now_ns + next_ns;
    eni_partition_list(store, part, false, others, sizeof others);
    if (n > 1) snprintf(more, sizeof more, ", and %u more call%s", n - 1, n == 2 ? "" : "s");
    eni_info("store",
             "on_pull of %s (shard %u, bucket %u, version %llu) has held the %s of rank %d at clock "
             "%llu for %.1f s%s; not held: %s",
             store->config.strategy->name, part->pub.shard, part->pub.bucket,
             (unsigned long long)part->pub.version, call->msg.data != NULL ? "push" : "pull", call->msg.src,
             (unsigned long long)call->msg.clock, (double)(now_ns - call->since_ns) / (double)ENI_SECOND,
             more, others[0] != '\0' ? others : "nobody, a timer is set");
}

/* ---- payloads ---- */

/* A buffer of max_count elements and a canary, and room in the pool for its return. */
static float *pool_take(eni_store *store)
{
    if (store->pool.n > 0) return store->pool.free[--store->pool.n];
    const uint32_t made = store->pool.nmade + 1;
    if (eni_grow((void **)&store->pool.free, &store->pool.room, made, sizeof *store->pool.free) != EN_OK)
        return NULL;
    float *buffer = eni_alloc_array(store->max_count + ENI_CANARY, sizeof(float));
    if (buffer != NULL) store->pool.nmade++;
    return buffer;
}

en_status eni_store_call_fill(eni_store *store, eni_call *call, const void *raw, uint64_t count)
{
    float *copy = pool_take(store);
    if (copy == NULL) return EN_ENOMEM;
    memcpy(copy, raw, count * sizeof(float));
    if (call->payload.release != NULL) call->payload.release(call->payload.owner);
    call->payload = (eni_payload){.data = copy, .count = count, .flags = ENI_PAYLOAD_HAS_ROOM};
    call->pooled = call->msg.data = copy;
    return EN_OK;
}

en_status eni_store_call_detach(eni_store *store, eni_call *call)
{
    EN_TRY(eni_store_call_fill(store, call, call->msg.data, call->payload.count));
    store->stats.detached++;
    return EN_OK;
}

/* ---- actions ---- */

eni_store_action *eni_store_act(eni_store *store, eni_store_action_type type, int32_t client, uint64_t ticket,
                                uint32_t bucket)
{
    eni_store_actions *actions = store->actions;
    if (eni_grow((void **)&actions->item, &actions->room, actions->n + 1, sizeof *actions->item) != EN_OK)
        return NULL;
    eni_store_action *action = &actions->item[actions->n++];
    *action = (eni_store_action){.type = type, .client = client, .ticket = ticket, .bucket = bucket};
    return action;
}

en_status eni_store_refuse(eni_store *store, int32_t client, uint64_t ticket, uint32_t bucket,
                           en_status status, const char *fmt, ...)
{
    eni_store_action *action = eni_store_act(store, ENI_STORE_REFUSE, client, ticket, bucket);
    if (action == NULL) return EN_ENOMEM;
    va_list args;
    va_start(args, fmt);
    vsnprintf(action->text, sizeof action->text, fmt, args);
    va_end(args);
    action->status = status;
    store->stats.refused++;
    return EN_OK;
}
