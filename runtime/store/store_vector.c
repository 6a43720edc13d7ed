/* store_vector.c - INIT and SNAPSHOT: a partition's vectors come in before its first call and may be looked
 * at any time. */
#include <string.h>

#include "runtime/store/store_impl.h"

/* No version, step or sample count that a past may have is near an overflow. */
#define PAST_MAX (UINT64_C(1) << 62)

/* The vector of `kind`, or NULL. */
static float *vector_of(const eni_partition *part, uint32_t kind)
{
    if (kind == ENI_VECTOR_WEIGHTS || kind == ENI_VECTOR_FREEZE) return part->pub.w;
    return kind - ENI_VECTOR_SLOT < ENI_MAX_SLOTS ? part->slot[kind - ENI_VECTOR_SLOT] : NULL;
}

/* Overwrites one vector; the weights say what is behind them, and end the start. */
static void take_in(eni_store *store, const eni_store_event *event, eni_partition *part)
{
    memcpy(vector_of(part, event->kind), event->payload.data, part->pub.count * sizeof(float));
    store->client[event->client].stats.bytes_beside += part->pub.count * sizeof(float);
    if (event->kind != ENI_VECTOR_WEIGHTS) return;
    part->pub.version = event->base_version;
    part->steps = event->seq;
    part->samples = event->nsamples;
    if (part->first) memcpy(part->first, part->pub.w, part->pub.count * sizeof(float));
    part->is_initialised = 1;
}

en_status eni_store_on_init(eni_store *store, const eni_store_event *event, eni_partition *part)
{
    if (event->payload.count != part->pub.count || !event->payload.data)
        return REFUSE(EN_EPROTO, "the initial weights of bucket %u, shard %u have %llu elements, not %llu",
                      event->bucket, part->pub.shard, (unsigned long long)event->payload.count,
                      (unsigned long long)part->pub.count);
    if (event->kind == ENI_VECTOR_FREEZE || !vector_of(part, event->kind))
        return REFUSE(EN_EPROTO, "optimizer %s has no vector %u to begin with", store->config.optimizer->name,
                      event->kind);
    if (event->base_version > PAST_MAX || event->seq > PAST_MAX || event->nsamples > PAST_MAX)
        return REFUSE(EN_EPROTO, "bucket %u, shard %u: nothing has a past that long", event->bucket,
                      part->pub.shard);
    if (!eni_all_finite(event->payload.data, event->payload.count))
        return REFUSE(EN_ENONFINITE, "an initial weight of bucket %u, shard %u is not finite", event->bucket,
                      part->pub.shard);
    const int is_repeat = part->is_initialised;
    if (!is_repeat) take_in(store, event, part);
    eni_store_action *reply =
        eni_store_act(store, ENI_STORE_REPLY, event->client, event->ticket, event->bucket);
    if (!reply) return EN_ENOMEM;
    reply->version = reply->met = part->pub.version;
    reply->flags = is_repeat ? ENI_STORE_IS_REPEAT : 0;
    return eni_partition_offer(store, part);
}

/* A snapshot is held like a call, so that it waits for INIT in the order of arrival. */
en_status eni_store_on_snapshot(eni_store *store, const eni_store_event *event, eni_partition *part)
{
    if (!vector_of(part, event->kind))
        return REFUSE(EN_EPROTO, "optimizer %s has no vector %u to show", store->config.optimizer->name,
                      event->kind);
    eni_call *call = eni_store_call_take(store);
    if (!call) return EN_ENOMEM;
    call->msg = (en_msg){.size = sizeof(en_msg), .kind = event->kind, .src = event->client};
    call->ticket = event->ticket;
    call->is_snapshot = 1;
    eni_partition_hold(part, call);
    return eni_partition_offer(store, part);
}
