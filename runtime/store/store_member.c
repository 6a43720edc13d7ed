/* store_member.c - who takes part, and when timers fire. */
#include "core/log.h"
#include "core/mutation.h"
#include "core/try.h"
#include "runtime/store/store_impl.h"

/* ---- MEMBER -------------------------------------------------------------------------------------------- */

/* Tells every partition, in the order of buckets. */
static en_status tell_partitions(eni_store *store, int32_t who, int member)
{
    for (uint32_t b = 0; b < store->config.nbuckets; b++) {
        eni_partition *part = &store->part[b];
        if (part->pub.count == 0) continue;
        eni_partition_recount(store, part);
        EN_TRY(eni_store_hook_member(store, part, who, member));
        EN_TRY(eni_partition_offer(store, part));
    }
    return EN_OK;
}

/* Forgets what a lost client has not been answered: nobody waits for it, and its memory goes away. A
 * contribution that was answered stays staged: who was told that it has arrived must be able to rely on it.
 */
static void forget_calls(eni_store *store, eni_partition *part, int32_t who)
{
    for (uint32_t i = part->nstaged; i-- > 0;) {
        eni_call *call = part->staged[i];
        if (call->msg.src != who || !(call->is_held || eni_mutant("answered-forgotten"))) continue;
        store->client[who].stats.dropped += call->covered;
        eni_partition_unstage(store, part, call);
    }
    for (eni_call *call = part->held_first, *next; call; call = next) {
        next = call->next;
        if (call->msg.src != who) continue;
        eni_partition_release(part, call);
        eni_store_call_give(store, call);
    }
    part->dedupe[who].outstanding = 0;
}

static en_status leave(eni_store *store, int32_t who)
{
    eni_client *client = &store->client[who];
    if (client->presence != ENI_ACTIVE && client->presence != ENI_FINISHED) return EN_OK;
    const int was_active = client->presence == ENI_ACTIVE;
    client->presence = ENI_LEFT;
    for (uint32_t b = 0; b < store->config.nbuckets; b++)
        if (store->part[b].pub.count > 0) forget_calls(store, &store->part[b], who);
    if (!was_active) return EN_OK; /* it had stopped to count when it finished */
    store->nactive--;
    store->nleft++;
    return tell_partitions(store, who, EN_MEMBER_LEFT);
}

en_status eni_store_join(eni_store *store, int32_t who, uint64_t incarnation, const uint64_t *clock)
{
    eni_client *client = &store->client[who];
    if (client->presence != ENI_ABSENT && incarnation <= client->incarnation) return EN_OK; /* heard before */
    EN_TRY(leave(store, who));
    store->nleft -= client->presence != ENI_ABSENT;
    client->incarnation = incarnation;
    for (uint32_t b = 0; b < store->config.nbuckets; b++) {
        eni_partition *part = &store->part[b];
        if (part->pub.count == 0) continue;
        eni_dedupe *dedupe = &part->dedupe[who];
        const uint64_t least = part->pub.min_clock == UINT64_MAX ? 0 : part->pub.min_clock;
        /* What the partition knows of the rank, and what of it waits for a step, outlives a restart. */
        *dedupe =
            (eni_dedupe){.peer = dedupe->peer, .staged = dedupe->staged, .clock = clock ? *clock : least};
    }
    client->presence = ENI_ACTIVE;
    store->nactive++;
    return tell_partitions(store, who, EN_MEMBER_JOINED);
}

static en_status finish(eni_store *store, int32_t who)
{
    eni_client *client = &store->client[who];
    if (client->presence != ENI_ACTIVE) return EN_OK;
    client->presence = ENI_FINISHED;
    store->nactive--;
    store->nleft++;
    return tell_partitions(store, who, EN_MEMBER_FINISHED);
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

/* The partition whose timer is due first and has not run in this event; NULL: none is due. */
static eni_partition *due_partition(const eni_store *store)
{
    eni_partition *due = NULL;
    for (uint32_t b = 0; b < store->config.nbuckets; b++) {
        eni_partition *part = &store->part[b];
        if (!part->has_timer || part->timer_ns > store->now_ns || part->fired == store->nevents) continue;
        if (!due || part->timer_ns < due->timer_ns) due = part;
    }
    return due;
}

en_status eni_store_on_timer(eni_store *store)
{
    for (eni_partition *part; (part = due_partition(store)) != NULL;) {
        part->has_timer = 0;
        part->fired = store->nevents;
        EN_TRY(eni_store_hook_timer(store, part));
        EN_TRY(eni_partition_offer(store, part));
    }
    return EN_OK;
}

/* Says when the next TIMER event is due, if that changed. */
en_status eni_store_tell_timer(eni_store *store)
{
    int64_t when = INT64_MAX;
    if (!store->has_timers) return EN_OK;
    for (uint32_t b = 0; b < store->config.nbuckets; b++)
        if (store->part[b].has_timer && store->part[b].timer_ns < when) when = store->part[b].timer_ns;
    if (when == store->timer_told) return EN_OK;
    eni_store_action *action = eni_store_act(store, ENI_STORE_TIMER_AT, -1, 0, 0);
    if (!action) return EN_ENOMEM;
    action->when_ns = store->timer_told = when;
    return EN_OK;
}
