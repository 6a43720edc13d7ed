/* store_step.c - events: who may do what, and in which order things happen.
 *
 *     CALL            its sizes, its client and its seq are checked; one from before is answered again; a new
 *                     one moves the client's clock, is held, is pushed (on_push, or staged and stepped), and
 *                     all held ones are offered to the strategy
 *     INIT, SNAPSHOT  store_vector.c
 *     MEMBER, TIMER   store_member.c
 *
 * An event is refused in one line, or changes the store; what is to be done about it is appended to the
 * actions. */
#include "core/mutation.h"
#include "core/try.h"
#include "runtime/store/store_impl.h"

/* Releases what an event brought and the store does not keep. */
static void drop_payload(const eni_store_event *event)
{
    if (event->payload.release) event->payload.release(event->payload.owner);
}

/* ---- CALL ---------------------------------------------------------------------------------------------- */

/* A call that was taken in before: its payload is not looked at. */
static en_status repeat_call(eni_store *store, const eni_store_event *event, eni_partition *part)
{
    const eni_dedupe *dedupe = &part->dedupe[event->client];
    store->stats.repeats++;
    for (eni_call *call = part->held_first; call; call = call->next)
        if (call->msg.src == event->client && call->seq == event->seq && !call->is_snapshot) {
            if (!eni_mutant("old-ticket-answered")) call->ticket = event->ticket;
            return EN_OK;
        }
    if (event->seq < dedupe->seq)
        return REFUSE(EN_EPROTO, "stale: call %llu of rank %d to bucket %u came after its call %llu",
                      (unsigned long long)event->seq, event->client, event->bucket,
                      (unsigned long long)dedupe->seq);
    if (dedupe->outcome == ENI_REFUSED)
        return REFUSE(dedupe->status, "call %llu of rank %d to bucket %u was refused before",
                      (unsigned long long)event->seq, event->client, event->bucket);
    if (dedupe->outcome == ENI_DATA)
        return REFUSE(EN_EUNSUPPORTED,
                      "call %llu of rank %d to bucket %u was answered with its payload, "
                      "which is not kept for a second answer",
                      (unsigned long long)event->seq, event->client, event->bucket);
    eni_store_action *reply =
        eni_store_act(store, ENI_STORE_REPLY, event->client, event->ticket, event->bucket);
    if (!reply) return EN_ENOMEM;
    reply->flags = ENI_STORE_IS_REPEAT;
    reply->version = reply->met = part->pub.version; /* what it met is not kept */
    reply->data = part->pub.w;
    reply->count = part->pub.count;
    return EN_OK;
}

/* Runs on_push (or its default) and books what became of the contribution. */
static en_status push(eni_store *store, eni_partition *part, eni_call *call)
{
    const en_strategy *strategy = store->config.strategy;
    const uint64_t version = part->pub.version;
    store->current = call;
    store->did_touch = 0;
    en_status st;
    if (strategy->on_push)
        st = eni_store_hook_push(store, part, call);
    else if ((st = eni_partition_stage(store, part, call, 1.0)) == EN_OK)
        st = eni_partition_step(store, part);
    if (st != EN_OK && call->is_staged) {
        eni_partition_unstage(store, part, call);
        call->was_absorbed = 0;
    }
    store->current = NULL;
    if (st == EN_OK) /* the hook may have swallowed a mean that was not finite: then nobody is refused */
        for (eni_call *held = part->held_first; held; held = held->next)
            held->pending_error = EN_OK;
    call->pending_error = st;
    if (call->was_absorbed) return EN_OK; /* the step counts it */
    return eni_partition_count(store, call, version, st == EN_OK && store->did_touch);
}

/* The clock and the dedupe entry move, together. */
static void advance(eni_store *store, eni_partition *part, const eni_store_event *event)
{
    eni_dedupe *dedupe = &part->dedupe[event->client];
    eni_partition_used(store, part);
    dedupe->seq = event->seq;
    dedupe->outcome = ENI_HELD;
    dedupe->outstanding++;
    const int was_min = dedupe->clock++ == part->pub.min_clock;
    if (event->payload.data && dedupe->pushes++ == 0) part->nstarted++;
    if (was_min && --part->nmin == 0) eni_partition_recount(store, part);
}

static en_status take_call(eni_store *store, const eni_store_event *event, eni_partition *part)
{
    eni_call *call = eni_store_call_take(store);
    if (!call) return EN_ENOMEM;
    const int is_push = event->payload.data != NULL;
    const int may_edit = !(store->config.strategy->flags & EN_PUSH_READ_ONLY) &&
                         (store->config.strategy->on_push || store->config.strategy->on_pull);
    eni_store_client_stats *stats = &store->client[event->client].stats;
    advance(store, part, event);
    call->payload = event->payload;
    call->ticket = event->ticket;
    call->seq = event->seq;
    call->covered = is_push ? event->covered : 0;
    /* A first push was computed while its client did not count yet: one that starts late would bring the
     * whole head start of the others into the mean. */
    call->is_steady =
        part->nstarted == store->nactive && store->nleft == 0 && part->dedupe[event->client].pushes > 1;
    call->msg = (en_msg){
        .size = sizeof(en_msg),
        .kind = event->kind,
        .src = event->client,
        .what = event->what,
        .clock = part->dedupe[event->client].clock - (uint64_t)eni_mutant("bound-off-by-one"),
        .base_version =
            event->base_version < part->pub.version ? event->base_version : part->pub.version, /* is_replay */
        .nsamples = event->nsamples,
        .data = event->payload.data,
    };
    eni_partition_hold(part, call);
    if (is_push && may_edit && event->payload.flags & ENI_PAYLOAD_READ_ONLY)
        EN_TRY(eni_store_call_detach(store, call));
    stats->pushes += is_push;
    stats->pulls += !is_push;
    stats->bytes_in += event->payload.count * sizeof(float);
    if (is_push) EN_TRY(push(store, part, call));
    return eni_partition_offer(store, part);
}

/* Decides what a call is. *is_taken_out: its payload has moved into the store. */
static en_status on_call(eni_store *store, const eni_store_event *event, eni_partition *part,
                         int *is_taken_out)
{
    const eni_payload *payload = &event->payload;
    const unsigned long long seq = event->seq;
    if ((payload->data != NULL) != (payload->count > 0) ||
        (payload->data && payload->count != part->pub.count && !eni_mutant("half-push")))
        return REFUSE(EN_EPROTO, "the payload for bucket %u, shard %u has %llu elements, not %llu",
                      event->bucket, part->pub.shard, (unsigned long long)payload->count,
                      (unsigned long long)part->pub.count);
    eni_client *client = &store->client[event->client];
    if (client->presence == ENI_ABSENT) return REFUSE(EN_EMEMBER, "rank %d has not joined", event->client);
    if (event->incarnation < client->incarnation && !eni_mutant("dedupe-without-incarnation"))
        return REFUSE(EN_EMEMBER, "fenced: rank %d was restarted, this is its older incarnation",
                      event->client);
    if (event->incarnation > client->incarnation && !eni_mutant("dedupe-without-incarnation"))
        EN_TRY(eni_store_join(store, event->client, event->incarnation, NULL));
    if (client->presence != ENI_ACTIVE)
        return REFUSE(EN_EMEMBER, "rank %d has %s and calls again", event->client,
                      client->presence == ENI_LEFT ? "left" : "finished");
    if (!part->is_initialised)
        return REFUSE(EN_EPROTO, "bucket %u was called before rank 0 sent its initial weights",
                      event->bucket);
    const eni_dedupe *dedupe = &part->dedupe[event->client];
    if (event->seq <= dedupe->seq - (dedupe->seq > 0 && eni_mutant("repeat-applied")))
        return repeat_call(store, event, part);
    if (event->seq > dedupe->seq + 1)
        return REFUSE(EN_EPROTO, "gap: call %llu of rank %d to bucket %u came after its call %llu", seq,
                      event->client, event->bucket, (unsigned long long)dedupe->seq);
    if (event->base_version > part->pub.version && (!event->is_replay || eni_mutant("base-not-clamped")))
        return REFUSE(EN_EPROTO,
                      "rank %d says that it computed on version %llu of bucket %u, which is at %llu",
                      event->client, (unsigned long long)event->base_version, event->bucket,
                      (unsigned long long)part->pub.version);
    if (event->nsamples > ENI_STORE_SAMPLES_MAX)
        return REFUSE(EN_EPROTO, "rank %d says that a gradient for bucket %u stands for %llu samples",
                      event->client, event->bucket, (unsigned long long)event->nsamples);
    if (event->covered > ENI_STORE_SAMPLES_MAX)
        return REFUSE(EN_EPROTO, "rank %d says that a push of bucket %u covers %llu samples", event->client,
                      event->bucket, (unsigned long long)event->covered);
    if (dedupe->outstanding >= ENI_STORE_OUTSTANDING)
        return REFUSE(EN_EPROTO, "rank %d has %u calls to bucket %u unanswered already", event->client,
                      dedupe->outstanding, event->bucket);
    *is_taken_out = 1;
    return take_call(store, event, part);
}

/* ---- step ---------------------------------------------------------------------------------------------- */

/* Events that name a partition. */
static en_status on_partition(eni_store *store, const eni_store_event *event)
{
    int is_taken = 0;
    en_status st;
    if (!eni_store_partition(store, event->bucket)) {
        st = REFUSE(EN_EPROTO, "there is nothing of bucket %u on shard %d: there are %u buckets",
                    event->bucket, store->config.shard, store->config.nbuckets);
    } else {
        eni_partition *part = &store->part[event->bucket];
        if (event->type == ENI_STORE_CALL)
            st = on_call(store, event, part, &is_taken);
        else if (event->type == ENI_STORE_INIT)
            st = eni_store_on_init(store, event, part);
        else
            st = eni_store_on_snapshot(store, event, part);
    }
    if (!is_taken) drop_payload(event);
    return st;
}

/* What the last event's actions pointed at may go now. */
static void free_retired(eni_store *store)
{
    for (eni_call *call = store->retired, *next; call; call = next) {
        next = call->next;
        eni_store_call_give(store, call);
    }
    store->retired = NULL;
}

en_status eni_store_step(eni_store *store, const eni_store_event *event, eni_store_actions *actions)
{
    free_retired(store);
    actions->n = 0;
    store->actions = actions;
    store->now_ns = event->now_ns;
    store->nevents++;
    en_status st;
    if (event->type == ENI_STORE_TIMER) {
        store->timer_told = INT64_MAX; /* used up */
        st = eni_store_on_timer(store);
    } else if (event->client < 0 || event->client >= store->config.world) {
        st = REFUSE(EN_EPROTO, "there is no rank %d in a world of %d", event->client, store->config.world);
        drop_payload(event);
    } else if (event->type == ENI_STORE_MEMBER) {
        st = eni_store_on_member(store, event);
    } else {
        st = on_partition(store, event);
    }
    if (st == EN_OK) st = eni_store_tell_timer(store);
    store->actions = NULL;
    return st;
}
