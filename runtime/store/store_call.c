/* store_call.c - the cellar of the store: calls and what they hold, the calls of a partition that wait, and
 * the actions of an event. It calls no other file of the store.
 *
 * A call is taken when an event brings it, waits among its partition's held ones until it is answered, and
 * may stay staged after that; then it is given back, at once or (retired) when the next event begins, because
 * an action may point into its payload. A payload that must outlive its event is copied into a pooled buffer.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "runtime/store/store_impl.h"

en_status eni_store_grow(void **array, uint32_t *room, uint32_t wanted, size_t size)
{
    if (wanted <= *room) return EN_OK;
    uint32_t more = *room ? *room : 8;
    while (more < wanted)
        more *= 2;
    void *grown = realloc(*array, more * size);
    if (!grown) {
        eni_error("store", "out of memory for %u entries of %zu bytes", more, size);
        return EN_ENOMEM;
    }
    *array = grown;
    *room = more;
    return EN_OK;
}

/* ---- calls --------------------------------------------------------------------------------------------- */

/* Releases what a call holds; the call itself stays. */
static void call_empty(eni_store *store, eni_call *call)
{
    if (call->payload.release) call->payload.release(call->payload.owner);
    call->payload = (eni_payload){0};
    if (call->pooled) store->pool[store->npool++] = call->pooled; /* room: made when the buffer was */
    call->pooled = NULL;
}

eni_call *eni_store_call_take(eni_store *store)
{
    eni_call *call = store->idle;
    if (!call) return eni_alloc(sizeof *call);
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
    call->is_held = 1;
    call->next = NULL;
    call->prev = part->held_last;
    if (part->held_last)
        part->held_last->next = call;
    else
        part->held_first = call;
    part->held_last = call;
}

void eni_partition_release(eni_partition *part, eni_call *call)
{
    if (call->prev)
        call->prev->next = call->next;
    else
        part->held_first = call->next;
    if (call->next)
        call->next->prev = call->prev;
    else
        part->held_last = call->prev;
    call->prev = call->next = NULL;
    call->is_held = 0;
}

/* ---- payloads ------------------------------------------------------------------------------------------ */

/* A buffer of max_count elements, and room in the pool for the day when it comes back. */
static float *pool_take(eni_store *store)
{
    if (store->npool > 0) return store->pool[--store->npool];
    const uint32_t made = store->nbuffers + 1;
    if (eni_store_grow((void **)&store->pool, &store->pool_room, made, sizeof *store->pool) != EN_OK)
        return NULL;
    float *buffer = eni_alloc_array(store->max_count, sizeof(float));
    if (buffer) store->nbuffers++;
    return buffer;
}

en_status eni_store_call_detach(eni_store *store, eni_call *call)
{
    float *copy = pool_take(store);
    if (!copy) return EN_ENOMEM;
    memcpy(copy, call->msg.data, call->payload.count * sizeof(float));
    if (call->payload.release) call->payload.release(call->payload.owner);
    call->payload = (eni_payload){.data = copy, .count = call->payload.count};
    call->pooled = copy;
    call->msg.data = copy;
    store->stats.detached++;
    return EN_OK;
}

en_status eni_store_call_fill(eni_store *store, const eni_partition *part, eni_call *call, const void *raw)
{
    float *copy = pool_take(store);
    if (!copy) return EN_ENOMEM;
    memcpy(copy, raw, part->pub.count * sizeof(float));
    call->payload = (eni_payload){.data = copy, .count = part->pub.count};
    call->pooled = copy;
    call->msg.data = copy;
    return EN_OK;
}

/* ---- actions ------------------------------------------------------------------------------------------- */

eni_store_action *eni_store_act(eni_store *store, eni_store_action_type type, int32_t client, uint64_t ticket,
                                uint32_t bucket)
{
    eni_store_actions *actions = store->actions;
    if (actions->n == actions->room) {
        const uint32_t room = actions->room ? 2 * actions->room : 16;
        eni_store_action *item = realloc(actions->item, room * sizeof *item);
        if (!item) {
            eni_error("store", "out of memory for %u actions", room);
            return NULL;
        }
        actions->item = item;
        actions->room = room;
    }
    eni_store_action *action = &actions->item[actions->n++];
    *action = (eni_store_action){.type = type, .client = client, .ticket = ticket, .bucket = bucket};
    return action;
}

en_status eni_store_refuse(eni_store *store, int32_t client, uint64_t ticket, uint32_t bucket,
                           en_status status, const char *fmt, ...)
{
    eni_store_action *action = eni_store_act(store, ENI_STORE_REFUSE, client, ticket, bucket);
    if (!action) return EN_ENOMEM;
    va_list args;
    va_start(args, fmt);
    vsnprintf(action->text, sizeof action->text, fmt, args);
    va_end(args);
    action->status = status;
    store->stats.refused++;
    return EN_OK;
}
