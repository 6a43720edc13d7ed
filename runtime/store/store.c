/* store.c - the parameter server as a pure function: open and close, step(state, event) -> actions, and
 * queries. The rules, and the order in which things happen:
 *
 *     CALL            its sizes, its client and its seq are checked; a repeat is answered again; a new
 *                     one moves the client's clock, is held, is pushed (on_push, or staged and stepped), and
 *                     all held ones are offered to the strategy
 *     INIT, SNAPSHOT  a partition's vectors come in before its first call, and may be looked at any time
 *     MEMBER, TIMER   who takes part, and what is due, in the order of deadlines, then of buckets
 *
 * An event is refused in one line, or changes the store; what is to be done about it is appended to the
 * actions. */
#include "runtime/store/store.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/store/store_impl.h"
#include "runtime/store/store_save.h"

static en_status check_config(const eni_store_config *config)
{
    if (config->strategy == NULL || config->optimizer == NULL)
        return eni_fail(EN_EINVAL, "store", "a store needs a strategy and an optimizer");
    if (config->world < 1 || config->nshards < 1 || config->shard < 0 || config->shard >= config->nshards)
        return eni_fail(EN_EINVAL, "store", "invalid shard %d of %d for %d clients", config->shard,
                        config->nshards, config->world);
    const int slots = config->optimizer->slots(&config->hyper);
    if (slots < 0 || slots > ENI_MAX_SLOTS)
        return eni_fail(EN_EINVAL, "store", "optimizer %s needs %d slots, but at most %d are possible",
                        config->optimizer->name, slots, ENI_MAX_SLOTS);
    return EN_OK;
}

/* Allocates what depends on the size of a partition. */
static en_status partition_init(eni_store *store, eni_partition *part, uint32_t bucket)
{
    const eni_store_config *config = &store->config;
    const uint64_t whole = config->bucket_counts[bucket];
    const uint64_t hi = eni_slice_lo(whole, config->shard + 1, config->nshards);
    part->whole = whole;
    part->lo = eni_slice_lo(whole, config->shard, config->nshards);
    part->pub = (en_partition){
        .size = sizeof(en_partition),
        .bucket = bucket,
        .shard = (uint32_t)config->shard,
        .count = hi - part->lo,
        .min_clock = UINT64_MAX,
        .nranks = (uint32_t)config->world,
    };
    if (part->pub.count == 0) return EN_OK;
    if (part->pub.count > store->max_count) store->max_count = part->pub.count;
    part->dedupe = eni_alloc_array((size_t)config->world, sizeof *part->dedupe);
    part->state = eni_alloc(config->strategy->partition_state);
    if (config->weights == NULL) part->buffer = eni_version_buffer_new(part->pub.count);
    if (part->dedupe == NULL || part->state == NULL || (config->weights == NULL && part->buffer == NULL))
        return EN_ENOMEM;
    part->at = config->weight_offsets != NULL ? config->weight_offsets[bucket] + part->lo : 0;
    part->pub.w =
        config->weights != NULL ? config->weights + part->at : eni_version_buffer_data(part->buffer);
    for (int i = 0; i < config->optimizer->slots(&config->hyper); i++)
        if ((part->slot[i] = eni_alloc_array(part->pub.count, sizeof(float))) == NULL) return EN_ENOMEM;
    if (config->strategy->peer_vecs > 0)
        if ((part->first = eni_alloc_array(part->pub.count, sizeof(float))) == NULL) return EN_ENOMEM;
    return EN_OK;
}

en_status eni_store_new(const eni_store_config *config, eni_store **store_out)
{
    EN_TRY(check_config(config));
    en_status st = EN_ENOMEM;
    eni_store *store = eni_alloc(sizeof *store);
    if (store == NULL) return EN_ENOMEM;
    store->config = *config;
    store->timer_told = INT64_MAX;
    store->table = eni_store_table;
    uint64_t *counts = eni_alloc_array(config->nbuckets, sizeof *counts);
    store->config.bucket_counts = counts;
    store->part = eni_alloc_array(config->nbuckets, sizeof *store->part);
    store->client = eni_alloc_array((size_t)config->world, sizeof *store->client);
    if (counts == NULL || store->part == NULL || store->client == NULL) goto free_store;
    for (uint32_t b = 0; b < config->nbuckets; b++) {
        counts[b] = config->bucket_counts[b];
        EN_TRY_GOTO(partition_init(store, &store->part[b], b), free_store);
    }
    st = EN_ENOMEM;
    if ((store->mean.sum = eni_alloc_array(store->max_count, sizeof(float))) == NULL) goto free_store;
    *store_out = store;
    return EN_OK;

free_store:
    eni_store_free(store);
    return st;
}

static void free_calls(eni_store *store, eni_call *first)
{
    while (first != NULL) {
        eni_call *next = first->next;
        eni_store_call_free(store, first);
        first = next;
    }
}

static void partition_fini(eni_store *store, eni_partition *part)
{
    /* Staged calls that were answered are not in any other list. */
    for (uint32_t i = 0; i < part->nstaged; i++)
        if (!part->staged[i]->is_held) eni_store_call_free(store, part->staged[i]);
    free_calls(store, part->held.first);
    free(part->staged);
    for (int32_t r = 0; part->dedupe != NULL && r < store->config.world; r++) {
        for (uint32_t i = 0; part->dedupe[r].peer != NULL && i < store->config.strategy->peer_vecs; i++)
            eni_free(part->dedupe[r].peer[i]);
        eni_free(part->dedupe[r].peer);
    }
    eni_free(part->dedupe);
    eni_free(part->state);
    eni_version_buffer_free_all(part->buffer);
    eni_free(part->first);
    for (int i = 0; i < ENI_MAX_SLOTS; i++) {
        eni_free(part->slot[i]);
        eni_free(part->frozen.slot[i]);
    }
}

void eni_store_free(eni_store *store)
{
    if (store == NULL) return;
    for (uint32_t b = 0; store->part != NULL && b < store->config.nbuckets; b++)
        partition_fini(store, &store->part[b]);
    free_calls(store, store->retired);
    free_calls(store, store->idle);
    for (uint32_t i = 0; i < store->pool.n; i++)
        eni_free(store->pool.free[i]);
    free(store->pool.free);
    for (int32_t r = 0; store->client != NULL && r < store->config.world; r++) {
        eni_histogram_fini(&store->client[r].stats.staleness);
        eni_histogram_fini(&store->client[r].stats.steady);
    }
    eni_free(store->client);
    eni_free(store->part);
    eni_free(store->config.bucket_counts);
    eni_free(store->mean.sum);
    free(store->mean.source);
    free(store->mean.scale);
    eni_free(store);
}

void eni_store_actions_fini(eni_store_actions *actions)
{
    eni_free(actions->item);
    *actions = (eni_store_actions){0};
}

/* ---- held calls and their answers ---------------------------------------------------------------------- */

/* The calls of a partition that wait for an answer: they are offered to the strategy (on_pull) in the order of
 * arrival, and answered with weights, with their own payload or with a refusal. A snapshot waits only for INIT,
 * and is answered with the vector that it names. */

/* The dedupe entry moves with the answer. */
static void settle(eni_partition *part, const eni_call *call, eni_outcome outcome, en_status status)
{
    eni_dedupe *dedupe = &part->dedupe[call->msg.src];
    if (call->is_snapshot) return;
    dedupe->outstanding--;
    if (dedupe->seq != call->seq) return;
    dedupe->outcome = outcome;
    dedupe->status = status;
}

static en_status refuse_pending(eni_store *store, eni_partition *part, eni_call *call)
{
    const uint32_t bucket = part->pub.bucket;
    if (call->pending_error == EN_ENONFINITE)
        EN_TRY(eni_store_refuse(store, call->msg.src, call->ticket, bucket, call->pending_error,
                                "the mean gradient of bucket %u, shard %u is not finite at version %llu: the "
                                "update was dropped; lower the learning rate or check the data",
                                bucket, part->pub.shard, (unsigned long long)part->pub.version));
    else if (call->pending_error == EN_EBUG)
        EN_TRY(eni_store_refuse(store, call->msg.src, call->ticket, bucket, call->pending_error, "%s",
                                store->hook.said[0] != '\0'
                                    ? store->hook.said
                                    : "on_push returned EN_EBUG without logging an error"));
    else
        EN_TRY(eni_store_refuse(store, call->msg.src, call->ticket, bucket, call->pending_error,
                                "strategy %s refused the push of rank %d to bucket %u: %s",
                                store->config.strategy->name, call->msg.src, bucket,
                                en_status_str(call->pending_error)));
    settle(part, call, ENI_REFUSED, call->pending_error);
    eni_partition_release(part, call);
    eni_store_call_give(store, call);
    return EN_OK;
}

/* Copies the slots aside; the first time it allocates the memory for them. */
static en_status freeze(eni_partition *part)
{
    for (int i = 0; i < ENI_MAX_SLOTS; i++) {
        if (part->slot[i] == NULL) continue;
        if (part->frozen.slot[i] == NULL)
            part->frozen.slot[i] = eni_alloc_array(part->pub.count, sizeof(float));
        if (part->frozen.slot[i] == NULL) return EN_ENOMEM;
        memcpy(part->frozen.slot[i], part->slot[i], part->pub.count * sizeof(float));
    }
    part->frozen.version = part->pub.version;
    part->frozen.steps = part->steps;
    part->frozen.samples = part->samples;
    return EN_OK;
}

/* Points the answer to a snapshot at the vector it names. */
static en_status show(eni_partition *part, uint32_t kind, eni_store_action *action)
{
    action->steps = part->steps;
    action->samples = part->samples;
    if (kind == ENI_VECTOR_WEIGHTS) return EN_OK;
    if (kind == ENI_VECTOR_FREEZE) return freeze(part);
    if (part->frozen.slot[kind - ENI_VECTOR_SLOT] == NULL) EN_TRY(freeze(part));
    action->data = part->frozen.slot[kind - ENI_VECTOR_SLOT];
    action->version = action->met = part->frozen.version;
    action->steps = part->frozen.steps;
    action->samples = part->frozen.samples;
    return EN_OK;
}

/* Answers a held call with the current weights or with its own payload. */
static en_status answer(eni_store *store, eni_partition *part, eni_call *call, bool with_data)
{
    eni_store_client_stats *stats = &store->client[call->msg.src].stats;
    if (call->is_staged && call->payload.flags & ENI_PAYLOAD_BORROWED)
        EN_TRY(eni_store_call_detach(store, call));
    eni_store_action *action =
        eni_store_act(store, ENI_STORE_REPLY, call->msg.src, call->ticket, part->pub.bucket);
    if (action == NULL) return EN_ENOMEM;
    action->flags = with_data ? ENI_STORE_IS_DATA : 0;
    action->version = part->pub.version;
    action->met = call->is_counted ? call->met : part->pub.version;
    action->data = with_data ? call->msg.data : part->pub.w;
    action->count = part->pub.count;
    if (call->is_snapshot) {
        EN_TRY(show(part, call->msg.kind, action));
        action->clock = eni_store_least_clock(store, part->pub.bucket);
    }
    *(call->is_snapshot ? &stats->bytes_beside : &stats->bytes_out) += part->pub.count * sizeof(float);
    const uint64_t ahead = call->msg.clock > part->pub.min_clock ? call->msg.clock - part->pub.min_clock : 0;
    if (ahead > stats->clocks_ahead) stats->clocks_ahead = ahead; /* of a snapshot: 0 */
    settle(part, call, with_data ? ENI_DATA : ENI_WEIGHTS, EN_OK);
    eni_partition_release(part, call);
    if (call->is_staged) return EN_OK; /* the step that sums it gives it back */
    if (with_data)
        eni_store_call_retire(store, call);
    else
        eni_store_call_give(store, call);
    return EN_OK;
}

static void keep_waiting(eni_store *store, eni_partition *part, eni_call *call, int verdict)
{
    store->client[call->msg.src].stats.holds += !call->was_asked;
    part->held.nwaiting[call->waits_for] -= call->was_asked;
    call->was_asked = true;
    call->waits_for = (uint8_t)(verdict - EN_HOLD);
    part->held.nwaiting[call->waits_for]++;
}

/* Asks on_pull about a held call, and answers it unless it is to wait. */
static en_status offer(eni_store *store, eni_partition *part, eni_call *call)
{
    const en_strategy *strategy = store->config.strategy;
    int verdict = EN_REPLY_WEIGHTS;
    if (call->pending_error == EN_OK && strategy->on_pull != NULL && !call->is_snapshot)
        call->pending_error = eni_store_hook_pull(store, part, call, &verdict);
    if (call->pending_error != EN_OK) return refuse_pending(store, part, call);
    if (verdict >= EN_HOLD) {
        keep_waiting(store, part, call, verdict);
        return EN_OK;
    }
    return answer(store, part, call, verdict == EN_REPLY_DATA && call->msg.data != NULL);
}

/* The first call that is due: of the new ones, which are the last, unless something has come that others wait for. */
static eni_call *first_due(const eni_partition *part, bool is_all_due)
{
    const bool has_due =
        is_all_due || part->held.nwaiting[ENI_WAITS_ANY] > 0 ||
        (part->held.nwaiting[ENI_WAITS_VERSION] > 0 && part->held.asked_version != part->pub.version) ||
        (part->held.nwaiting[ENI_WAITS_CLOCK] > 0 && part->held.asked_clock != part->pub.min_clock);
    if (has_due) return part->held.first;
    eni_call *first = NULL;
    for (eni_call *call = part->held.last; call != NULL && !call->was_asked; call = call->prev)
        first = call;
    return first;
}

/* Offers the held calls that are due to on_pull, in the order of arrival, and answers those that it releases. After a
 * member or timer event (`is_event`) all are due. If it holds every client's call and no timer is set, no push can come
 * that would release one: EN_EBUG. */
static en_status offer_held(eni_store *store, eni_partition *part, bool is_event)
{
    if (!part->is_initialised) return EN_OK;
    eni_call *call = first_due(part, is_event || part->held.has_errors);
    part->held.has_errors = false;
    part->held.asked_version = part->pub.version;
    part->held.asked_clock = part->pub.min_clock;
    for (eni_call *next; call != NULL; call = next) {
        next = call->next;
        EN_TRY(offer(store, part, call));
    }
    const uint32_t nheld = part->held.nwaiting[ENI_WAITS_ANY] + part->held.nwaiting[ENI_WAITS_VERSION] +
                           part->held.nwaiting[ENI_WAITS_CLOCK];
    if (!store->config.judges_holds || nheld == 0 || nheld < part->pub.nclients || part->has_timer)
        return EN_OK;
    char held[200];
    eni_partition_list(store, part, true, held, sizeof held);
    return eni_fail(
        EN_EBUG, "store",
        "on_pull of %s (shard %u, bucket %u, version %llu) holds every client's call (%s), and no "
        "timer is set: no client can ever push again",
        store->config.strategy->name, part->pub.shard, part->pub.bucket,
        (unsigned long long)part->pub.version, held);
}

/* ---- members and timers -------------------------------------------------------------------------------- */

/* Notifies every partition, in the order of buckets. */
static en_status tell_partitions(eni_store *store, int32_t who, int member)
{
    for (uint32_t b = 0; b < store->config.nbuckets; b++) {
        eni_partition *part = &store->part[b];
        if (part->pub.count == 0) continue;
        eni_partition_count_member(store, part, who);
        EN_TRY(eni_store_hook_member(store, part, who, member));
        EN_TRY(offer_held(store, part, true));
    }
    return EN_OK;
}

/* Drops a lost client's unanswered calls: nobody waits for them, and its memory goes away. A contribution
 * that was answered stays staged: its client must be able to rely on the answer. */
static void forget_calls(eni_store *store, eni_partition *part, int32_t who)
{
    for (uint32_t i = part->nstaged; i-- > 0;) {
        eni_call *call = part->staged[i];
        if (call->msg.src != who || !call->is_held) continue;
        store->client[who].stats.dropped += call->covered;
        eni_partition_unstage(store, part, call);
    }
    for (eni_call *call = part->held.first, *next; call != NULL; call = next) {
        next = call->next;
        if (call->msg.src != who) continue;
        eni_partition_release(part, call);
        eni_store_call_give(store, call);
    }
    part->dedupe[who].outstanding = 0;
}

static en_status leave(eni_store *store, int32_t who)
{
    eni_client_record *client = &store->client[who];
    if (client->presence != ENI_ACTIVE && client->presence != ENI_FINISHED) return EN_OK;
    const bool was_active = client->presence == ENI_ACTIVE;
    client->presence = ENI_LEFT;
    for (uint32_t b = 0; b < store->config.nbuckets; b++)
        if (store->part[b].pub.count > 0) forget_calls(store, &store->part[b], who);
    if (!was_active) return EN_OK; /* it has not counted since it finished */
    store->nactive--;
    store->nleft++;
    return tell_partitions(store, who, EN_MEMBER_LEFT);
}

/* Idempotent: a known or older incarnation changes nothing, a newer one leaves first. NULL: least clock. */
static en_status join(eni_store *store, int32_t who, uint64_t incarnation, const uint64_t *clock)
{
    eni_client_record *client = &store->client[who];
    if (client->presence != ENI_ABSENT && incarnation <= client->incarnation) return EN_OK; /* known */
    EN_TRY(leave(store, who));
    store->nleft -= client->presence != ENI_ABSENT;
    client->incarnation = incarnation;
    for (uint32_t b = 0; b < store->config.nbuckets; b++) {
        eni_partition *part = &store->part[b];
        if (part->pub.count == 0) continue;
        eni_dedupe *dedupe = &part->dedupe[who];
        const uint64_t at = clock != NULL ? *clock : eni_store_least_clock(store, b);
        /* The rank's peer vectors and its contributions that wait for a step outlive a restart. */
        *dedupe = (eni_dedupe){.peer = dedupe->peer, .staged = dedupe->staged, .clock = at};
    }
    client->presence = ENI_ACTIVE;
    store->nactive++;
    return tell_partitions(store, who, EN_MEMBER_JOINED);
}

/* Also for a client lost before it joined: its join may still be under way, and is then too late. */
static en_status lose(eni_store *store, int32_t who, uint64_t incarnation)
{
    eni_client_record *client = &store->client[who];
    if (client->presence != ENI_ABSENT) return leave(store, who);
    client->presence = ENI_LEFT;
    client->incarnation = incarnation;
    store->nleft++;
    return EN_OK;
}

static en_status finish(eni_store *store, int32_t who)
{
    eni_client_record *client = &store->client[who];
    if (client->presence != ENI_ACTIVE) return EN_OK;
    client->presence = ENI_FINISHED;
    store->nactive--;
    store->nleft++;
    return tell_partitions(store, who, EN_MEMBER_FINISHED);
}

static en_status on_member(eni_store *store, const eni_store_event *event)
{
    switch (event->member) {
    case EN_MEMBER_JOINED:
        return join(store, event->client, event->incarnation,
                    event->kind == ENI_JOIN_AT_CLOCK ? &event->seq : NULL);
    case EN_MEMBER_FINISHED: return finish(store, event->client);
    case EN_MEMBER_LEFT: return lose(store, event->client, event->incarnation);
    default: eni_error("store", "unknown member event %u", event->member); return EN_EBUG;
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
        if (due == NULL || part->timer_ns < due->timer_ns) due = part;
    }
    return due;
}

/* Runs what is due at store->now_ns, in the order of deadlines, then of buckets. */
static en_status on_timer(eni_store *store)
{
    for (eni_partition *part; (part = due_partition(store)) != NULL;) {
        part->has_timer = false;
        part->fired = store->nevents;
        EN_TRY(eni_store_hook_timer(store, part));
        EN_TRY(offer_held(store, part, true));
    }
    return EN_OK;
}

int64_t eni_store_timer(const eni_store *store)
{
    int64_t when = INT64_MAX;
    for (uint32_t b = 0; b < store->config.nbuckets; b++)
        if (store->part[b].has_timer && store->part[b].timer_ns < when) when = store->part[b].timer_ns;
    return when;
}

/* Appends a TIMER_AT if the next due time has changed. */
static en_status tell_timer(eni_store *store)
{
    if (!store->has_timers) return EN_OK;
    const int64_t when = eni_store_timer(store);
    if (when == store->timer_told) return EN_OK;
    eni_store_action *action = eni_store_act(store, ENI_STORE_TIMER_AT, -1, 0, 0);
    if (action == NULL) return EN_ENOMEM;
    action->when_ns = store->timer_told = when;
    return EN_OK;
}

/* ---- INIT and SNAPSHOT --------------------------------------------------------------------------------- */

/* Limits the versions, steps and samples of a past, so that no count can overflow. */
#define PAST_MAX (UINT64_C(1) << 62)

/* Overwrites one vector; the weights bring their past, and complete the partition's start. */
static void take_in(eni_store *store, const eni_store_event *event, eni_partition *part)
{
    memcpy(eni_partition_vector(part, event->kind), event->payload.data, part->pub.count * sizeof(float));
    store->client[event->client].stats.bytes_beside += part->pub.count * sizeof(float);
    if (event->kind != ENI_VECTOR_WEIGHTS) return;
    part->pub.version = event->base_version;
    part->steps = event->seq;
    part->samples = event->nsamples;
    if (part->first != NULL) memcpy(part->first, part->pub.w, part->pub.count * sizeof(float));
    part->is_initialised = true;
}

/* Answers an event itself, at the current version; data NULL: without a vector. */
static en_status answer_event(eni_store *store, const eni_store_event *event, const eni_partition *part,
                              uint32_t flags, const float *data)
{
    eni_store_action *reply =
        eni_store_act(store, ENI_STORE_REPLY, event->client, event->ticket, event->bucket);
    if (reply == NULL) return EN_ENOMEM;
    reply->flags = flags;
    reply->version = reply->met = part->pub.version;
    reply->data = data;
    reply->count = data != NULL ? part->pub.count : 0;
    return EN_OK;
}

static en_status on_init(eni_store *store, const eni_store_event *event, eni_partition *part)
{
    if (event->payload.count != part->pub.count || event->payload.data == NULL)
        return REFUSE(EN_EPROTO,
                      "the initial weights of bucket %u, shard %u have %llu elements, expected %llu",
                      event->bucket, part->pub.shard, (unsigned long long)event->payload.count,
                      (unsigned long long)part->pub.count);
    if (event->kind == ENI_VECTOR_FREEZE || eni_partition_vector(part, event->kind) == NULL)
        return REFUSE(EN_EPROTO, "optimizer %s has no vector %u to initialise", store->config.optimizer->name,
                      event->kind);
    if (event->base_version > PAST_MAX || event->seq > PAST_MAX || event->nsamples > PAST_MAX)
        return REFUSE(EN_EPROTO,
                      "bucket %u, shard %u: the initial version, steps or samples are out of range",
                      event->bucket, part->pub.shard);
    if (!eni_all_finite(event->payload.data, event->payload.count))
        return REFUSE(EN_ENONFINITE, "an initial weight of bucket %u, shard %u is not finite", event->bucket,
                      part->pub.shard);
    const bool is_repeat = part->is_initialised;
    if (!is_repeat) take_in(store, event, part);
    EN_TRY(answer_event(store, event, part, is_repeat ? ENI_STORE_IS_REPEAT : 0, NULL));
    return offer_held(store, part, false);
}

/* A snapshot is held like a call, so that it waits for INIT in the order of arrival. */
static en_status on_snapshot(eni_store *store, const eni_store_event *event, eni_partition *part)
{
    if (eni_partition_vector(part, event->kind) == NULL)
        return REFUSE(EN_EPROTO, "optimizer %s has no vector %u to send", store->config.optimizer->name,
                      event->kind);
    eni_call *call = eni_store_call_take(store);
    if (call == NULL) return EN_ENOMEM;
    call->msg = (en_msg){.size = sizeof(en_msg), .kind = event->kind, .src = event->client};
    call->ticket = event->ticket;
    call->is_snapshot = true;
    eni_partition_hold(part, call);
    return offer_held(store, part, false);
}

/* ---- calls --------------------------------------------------------------------------------------------- */

/* Releases an event's payload that the store does not keep. */
static void drop_payload(const eni_store_event *event)
{
    if (event->payload.release != NULL) event->payload.release(event->payload.owner);
}

/* A call that was taken in before; its payload is ignored. */
static en_status repeat_call(eni_store *store, const eni_store_event *event, eni_partition *part)
{
    const eni_dedupe *dedupe = &part->dedupe[event->client];
    store->stats.repeats++;
    for (eni_call *call = part->held.first; call != NULL; call = call->next)
        if (call->msg.src == event->client && call->seq == event->seq && !call->is_snapshot) {
            call->ticket = event->ticket;
            return EN_OK;
        }
    if (event->seq < dedupe->seq)
        return REFUSE(EN_EPROTO, "stale: call %llu of rank %d to bucket %u came after its call %llu",
                      (unsigned long long)event->seq, event->client, event->bucket,
                      (unsigned long long)dedupe->seq);
    if (dedupe->outcome == ENI_REFUSED)
        return REFUSE(dedupe->status, "call %llu of rank %d to bucket %u was refused already",
                      (unsigned long long)event->seq, event->client, event->bucket);
    if (dedupe->outcome == ENI_DATA)
        return REFUSE(EN_EUNSUPPORTED,
                      "call %llu of rank %d to bucket %u was answered with its payload, "
                      "which is not kept for a second answer",
                      (unsigned long long)event->seq, event->client, event->bucket);
    return answer_event(store, event, part, ENI_STORE_IS_REPEAT, part->pub.w); /* `met` is not kept */
}

/* Whether a call that is sent again after the store was away lies behind its client's later calls, so that
 * there is nothing left to do; or has seq 0, which only asks for an answer. */
static bool is_past(const eni_store *store, const eni_store_event *event, const eni_partition *part)
{
    const uint64_t last = part->dedupe[event->client].seq;
    const bool has_finished = store->client[event->client].presence == ENI_FINISHED;
    return event->is_replay && (event->seq == 0 || event->seq < last || (event->seq == last && has_finished));
}

/* Runs on_push (or its default) and records the outcome of the contribution. */
static en_status push(eni_store *store, eni_partition *part, eni_call *call)
{
    const en_strategy *strategy = store->config.strategy;
    const uint64_t version = part->pub.version;
    store->current = call;
    store->did_touch = false;
    store->last_weight = NAN;
    en_status st;
    if (strategy->on_push != NULL)
        st = eni_store_hook_push(store, part, call);
    else if ((st = eni_partition_stage(store, part, call, 1.0)) == EN_OK)
        st = eni_partition_step(store, part);
    if (st != EN_OK && call->is_staged) {
        eni_partition_unstage(store, part, call);
        call->was_absorbed = false;
    }
    store->current = NULL;
    if (st == EN_OK &&
        part->held.has_errors) { /* the hook has swallowed a mean that is not finite: no call is refused */
        part->held.has_errors = false;
        for (eni_call *held = part->held.first; held != NULL; held = held->next)
            held->pending_error = EN_OK;
    }
    call->pending_error = st;
    if (call->was_absorbed) return EN_OK; /* the step counts it */
    return eni_partition_count(store, call, version, st == EN_OK && store->did_touch);
}

/* Advances the clock and the dedupe entry, together. */
static void advance(eni_store *store, eni_partition *part, const eni_store_event *event)
{
    eni_dedupe *dedupe = &part->dedupe[event->client];
    eni_partition_used(store, part);
    dedupe->seq = event->seq;
    dedupe->outcome = ENI_HELD;
    dedupe->outstanding++;
    const bool was_min = dedupe->clock++ == part->pub.min_clock;
    if (event->payload.data != NULL && dedupe->pushes++ == 0) part->nstarted++;
    if (was_min && --part->nmin == 0) eni_partition_recount(store, part);
}

static en_status take_call(eni_store *store, const eni_store_event *event, eni_partition *part)
{
    eni_call *call = eni_store_call_take(store);
    if (call == NULL) return EN_ENOMEM;
    const bool is_push = event->payload.data != NULL;
    const bool may_edit =
        !(store->config.strategy->flags & EN_PUSH_READ_ONLY) &&
        (store->config.strategy->on_push != NULL || store->config.strategy->on_pull != NULL);
    eni_store_client_stats *stats = &store->client[event->client].stats;
    advance(store, part, event);
    call->payload = event->payload;
    call->ticket = event->ticket;
    call->seq = event->seq;
    call->since_ns = store->now_ns;
    call->covered = is_push ? event->covered : 0;
    /* A first push was computed while its client did not count yet: a late starter would bring the others'
     * whole head start into the mean. */
    call->is_steady =
        part->nstarted == store->nactive && store->nleft == 0 && part->dedupe[event->client].pushes > 1;
    call->msg = (en_msg){
        .size = sizeof(en_msg),
        .kind = event->kind,
        .src = event->client,
        .what = event->what,
        .clock = part->dedupe[event->client].clock,
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
    return offer_held(store, part, false);
}

/* Checks a call, and takes, repeats or refuses it. *is_taken_out: its payload has moved into the store. */
static en_status on_call(eni_store *store, const eni_store_event *event, eni_partition *part,
                         bool *is_taken_out)
{
    const eni_payload *payload = &event->payload;
    if ((payload->data != NULL) != (payload->count > 0) ||
        (payload->data != NULL && payload->count != part->pub.count))
        return REFUSE(EN_EPROTO, "the payload for bucket %u, shard %u has %llu elements, expected %llu",
                      event->bucket, part->pub.shard, (unsigned long long)payload->count,
                      (unsigned long long)part->pub.count);
    eni_client_record *client = &store->client[event->client];
    if (client->presence == ENI_ABSENT) return REFUSE(EN_EMEMBER, "rank %d has not joined", event->client);
    if (event->incarnation < client->incarnation)
        return REFUSE(EN_EMEMBER, "fenced: rank %d was restarted, and this call is of its older incarnation",
                      event->client);
    if (event->incarnation > client->incarnation)
        EN_TRY(join(store, event->client, event->incarnation, NULL));
    if (is_past(store, event, part)) return answer_event(store, event, part, ENI_STORE_IS_REPEAT, NULL);
    if (client->presence != ENI_ACTIVE)
        return REFUSE(EN_EMEMBER, "rank %d has %s, but calls again", event->client,
                      client->presence == ENI_LEFT ? "left" : "finished");
    if (!part->is_initialised)
        return REFUSE(EN_EPROTO, "bucket %u was called before rank 0 sent its initial weights",
                      event->bucket);
    const eni_dedupe *dedupe = &part->dedupe[event->client];
    if (event->seq <= dedupe->seq) return repeat_call(store, event, part);
    if (event->seq > dedupe->seq + 1)
        return REFUSE(EN_EPROTO, "gap: call %llu of rank %d to bucket %u came after its call %llu",
                      (unsigned long long)event->seq, event->client, event->bucket,
                      (unsigned long long)dedupe->seq);
    if (event->base_version > part->pub.version && !event->is_replay)
        return REFUSE(EN_EPROTO,
                      "rank %d claims to have computed on version %llu of bucket %u, which is at %llu",
                      event->client, (unsigned long long)event->base_version, event->bucket,
                      (unsigned long long)part->pub.version);
    if (event->nsamples > ENI_STORE_SAMPLES_MAX)
        return REFUSE(EN_EPROTO, "rank %d pushed a gradient for bucket %u with too many samples: %llu",
                      event->client, event->bucket, (unsigned long long)event->nsamples);
    if (event->covered > ENI_STORE_SAMPLES_MAX)
        return REFUSE(EN_EPROTO, "rank %d pushed bucket %u with too many covered samples: %llu",
                      event->client, event->bucket, (unsigned long long)event->covered);
    if (dedupe->outstanding >= ENI_STORE_OUTSTANDING)
        return REFUSE(EN_EPROTO, "rank %d already has %u unanswered calls to bucket %u", event->client,
                      dedupe->outstanding, event->bucket);
    *is_taken_out = true;
    return take_call(store, event, part);
}

/* ---- step ---------------------------------------------------------------------------------------------- */

/* Events that name a partition. */
static en_status on_partition(eni_store *store, const eni_store_event *event)
{
    bool is_taken = false;
    en_status st;
    if (eni_store_partition(store, event->bucket) == NULL) {
        st = REFUSE(EN_EPROTO, "bucket %u has no partition on shard %d; there are %u buckets", event->bucket,
                    store->config.shard, store->config.nbuckets);
    } else {
        eni_partition *part = &store->part[event->bucket];
        if (event->type == ENI_STORE_CALL)
            st = on_call(store, event, part, &is_taken);
        else if (event->type == ENI_STORE_INIT)
            st = on_init(store, event, part);
        else
            st = on_snapshot(store, event, part);
    }
    if (!is_taken) drop_payload(event);
    return st;
}

/* Frees the calls that the last event's actions pointed into. */
static void free_retired(eni_store *store)
{
    for (eni_call *call = store->retired, *next; call != NULL; call = next) {
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
        st = on_timer(store);
    } else if (event->client < 0 || event->client >= store->config.world) {
        st = REFUSE(EN_EPROTO, "invalid rank %d in a world of %d", event->client, store->config.world);
        drop_payload(event);
    } else if (event->type == ENI_STORE_MEMBER) {
        st = on_member(store, event);
    } else {
        st = on_partition(store, event);
    }
    if (st == EN_OK) st = tell_timer(store);
    store->actions = NULL;
    return st;
}

/* ---- queries ------------------------------------------------------------------------------------------- */

uint64_t eni_store_count(const eni_store *store, uint32_t bucket)
{
    const eni_partition *part = eni_store_partition(store, bucket);
    return part != NULL ? part->pub.count : 0;
}

uint32_t eni_store_nused(const eni_store *store)
{
    return store->nused;
}

const float *eni_store_weights(const eni_store *store, uint32_t bucket, uint64_t *version_out)
{
    const eni_partition *part = eni_store_partition(store, bucket);
    if (part == NULL || !part->is_initialised) return NULL;
    if (version_out != NULL) *version_out = part->pub.version;
    return part->pub.w;
}

uint64_t eni_store_least_clock(const eni_store *store, uint32_t bucket)
{
    const eni_partition *part = eni_store_partition(store, bucket);
    return part == NULL || part->pub.min_clock == UINT64_MAX ? 0 : part->pub.min_clock;
}

const eni_store_stats *eni_store_totals(const eni_store *store)
{
    return &store->stats;
}

const eni_store_client_stats *eni_store_client(const eni_store *store, int32_t client)
{
    return &store->client[client].stats;
}

bool eni_store_is_initialised(const eni_store *store)
{
    for (uint32_t b = 0; b < store->config.nbuckets; b++)
        if (store->part[b].pub.count > 0 && !store->part[b].is_initialised) return false;
    return true;
}

uint64_t eni_store_seq(const eni_store *store, int32_t client, uint32_t bucket)
{
    if (client < 0 || client >= store->config.world || eni_store_partition(store, bucket) == NULL) return 0;
    return store->part[bucket].dedupe[client].seq;
}

uint64_t eni_store_incarnation(const eni_store *store, int32_t client)
{
    return client < 0 || client >= store->config.world ? 0 : store->client[client].incarnation;
}

bool eni_store_has_finished(const eni_store *store, int32_t client)
{
    return store->client[client].presence == ENI_FINISHED;
}
