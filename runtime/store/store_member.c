/* store_member.c - who takes part, and when timers fire. */
#include "core/log.h"
#include "core/mutation.h"
#include "core/try.h"
#include "runtime/store/store_impl.h"

/* ---- MEMBER -------------------------------------------------------------------------------------------- */

/* Tells every cell, in the order of buckets. */
static en_status tell_cells(eni_store *store, int32_t who, int member)
{
    for (uint32_t b = 0; b < store->config.nbuckets; b++) {
        eni_cell *cell = &store->cell[b];
        if (cell->pub.count == 0) continue;
        eni_cell_recount(store, cell);
        EN_TRY(eni_store_hook_member(store, cell, who, member));
        EN_TRY(eni_cell_offer(store, cell));
    }
    return EN_OK;
}

/* Forgets what a lost client has not been answered: nobody waits for it, and its memory goes away. A
 * contribution that was answered stays staged: who was told that it has arrived must be able to rely on it.
 */
static void forget_calls(eni_store *store, eni_cell *cell, int32_t who)
{
    for (uint32_t i = cell->nstaged; i-- > 0;) {
        eni_call *call = cell->staged[i];
        if (call->msg.src != who || !(call->is_held || eni_mutant("answered-forgotten"))) continue;
        store->client[who].stats.dropped += call->covered;
        eni_cell_unstage(store, cell, call);
    }
    for (eni_call *call = cell->held_first, *next; call; call = next) {
        next = call->next;
        if (call->msg.src != who) continue;
        eni_cell_release(cell, call);
        eni_store_call_give(store, call);
    }
    cell->seat[who].outstanding = 0;
}

static en_status leave(eni_store *store, int32_t who)
{
    eni_client *client = &store->client[who];
    if (client->presence != ENI_ACTIVE && client->presence != ENI_FINISHED) return EN_OK;
    const int was_active = client->presence == ENI_ACTIVE;
    client->presence = ENI_LEFT;
    for (uint32_t b = 0; b < store->config.nbuckets; b++)
        if (store->cell[b].pub.count > 0) forget_calls(store, &store->cell[b], who);
    if (!was_active) return EN_OK; /* it had stopped to count when it finished */
    store->nactive--;
    store->nleft++;
    return tell_cells(store, who, EN_MEMBER_LEFT);
}

en_status eni_store_join(eni_store *store, int32_t who, uint64_t incarnation, const uint64_t *clock)
{
    eni_client *client = &store->client[who];
    if (client->presence != ENI_ABSENT && incarnation <= client->incarnation) return EN_OK; /* heard before */
    EN_TRY(leave(store, who));
    store->nleft -= client->presence != ENI_ABSENT;
    client->incarnation = incarnation;
    for (uint32_t b = 0; b < store->config.nbuckets; b++) {
        eni_cell *cell = &store->cell[b];
        if (cell->pub.count == 0) continue;
        eni_seat *seat = &cell->seat[who];
        const uint64_t least = cell->pub.min_clock == UINT64_MAX ? 0 : cell->pub.min_clock;
        /* What the cell knows of the rank, and what of it waits for a step, outlives a restart. */
        *seat = (eni_seat){.peer = seat->peer, .staged = seat->staged, .clock = clock ? *clock : least};
    }
    client->presence = ENI_ACTIVE;
    store->nactive++;
    return tell_cells(store, who, EN_MEMBER_JOINED);
}

static en_status finish(eni_store *store, int32_t who)
{
    eni_client *client = &store->client[who];
    if (client->presence != ENI_ACTIVE) return EN_OK;
    client->presence = ENI_FINISHED;
    store->nactive--;
    store->nleft++;
    return tell_cells(store, who, EN_MEMBER_FINISHED);
}

en_status eni_store_on_member(eni_store *store, const eni_store_event *event)
{
    switch (event->member) {
    case EN_MEMBER_JOINED:
        return eni_store_join(store, event->client, event->incarnation,
                              event->kind == ENI_JOIN_AT_CLOCK ? &event->seq : NULL);
    case EN_MEMBER_FINISHED: return finish(store, event->client);
    case EN_MEMBER_LEFT: return leave(store, event->client);
    default: eni_error("store", "there is no member event %u", event->member); return EN_EBUG;
    }
}

/* ---- TIMER --------------------------------------------------------------------------------------------- */

/* The cell whose timer is due first and has not run in this event; NULL: none is due. */
static eni_cell *due_cell(const eni_store *store)
{
    eni_cell *due = NULL;
    for (uint32_t b = 0; b < store->config.nbuckets; b++) {
        eni_cell *cell = &store->cell[b];
        if (!cell->has_timer || cell->timer_ns > store->now_ns || cell->fired == store->nevents) continue;
        if (!due || cell->timer_ns < due->timer_ns) due = cell;
    }
    return due;
}

en_status eni_store_on_timer(eni_store *store)
{
    for (eni_cell *cell; (cell = due_cell(store)) != NULL;) {
        cell->has_timer = 0;
        cell->fired = store->nevents;
        EN_TRY(eni_store_hook_timer(store, cell));
        EN_TRY(eni_cell_offer(store, cell));
    }
    return EN_OK;
}

/* Says when the next TIMER event is due, if that changed. */
en_status eni_store_tell_timer(eni_store *store)
{
    int64_t when = INT64_MAX;
    if (!store->has_timers) return EN_OK;
    for (uint32_t b = 0; b < store->config.nbuckets; b++)
        if (store->cell[b].has_timer && store->cell[b].timer_ns < when) when = store->cell[b].timer_ns;
    if (when == store->timer_told) return EN_OK;
    eni_store_action *action = eni_store_act(store, ENI_STORE_TIMER_AT, -1, 0, 0);
    if (!action) return EN_ENOMEM;
    action->when_ns = store->timer_told = when;
    return EN_OK;
}
