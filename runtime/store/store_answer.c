/* store_answer.c - the calls of a partition that wait for an answer: they are offered to the strategy
 * (on_pull) in the order of arrival, and answered with weights, with their own payload or with a refusal. A
 * snapshot waits only for INIT, and is shown what it asked for. */
#include <string.h>

#include "core/memory.h"
#include "core/try.h"
#include "runtime/store/store_impl.h"

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
                                "update was dropped; lower the learning rate or look at the data",
                                bucket, part->pub.shard, (unsigned long long)part->pub.version));
    else if (call->pending_error == EN_EBUG)
        EN_TRY(eni_store_refuse(store, call->msg.src, call->ticket, bucket, call->pending_error,
                                "strategy %s broke the contract with the call of rank %d to bucket %u; psd's "
                                "line says how",
                                store->config.strategy->name, call->msg.src, bucket));
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

/* Copies the slots aside: the first time it takes the memory for them. */
static en_status freeze(eni_partition *part)
{
    for (int i = 0; i < ENI_MAX_SLOTS; i++) {
        if (!part->slot[i]) continue;
        if (!part->frozen[i]) part->frozen[i] = eni_alloc_array(part->pub.count, sizeof(float));
        if (!part->frozen[i]) return EN_ENOMEM;
        memcpy(part->frozen[i], part->slot[i], part->pub.count * sizeof(float));
    }
    part->frozen_version = part->pub.version;
    part->frozen_steps = part->steps;
    part->frozen_samples = part->samples;
    return EN_OK;
}

/* Points the answer to a snapshot at what was asked for. */
static en_status show(eni_partition *part, uint32_t kind, eni_store_action *action)
{
    action->steps = part->steps;
    action->samples = part->samples;
    if (kind == ENI_VECTOR_WEIGHTS) return EN_OK;
    if (kind == ENI_VECTOR_FREEZE) return freeze(part);
    if (!part->frozen[kind - ENI_VECTOR_SLOT]) EN_TRY(freeze(part));
    action->data = part->frozen[kind - ENI_VECTOR_SLOT];
    action->version = action->met = part->frozen_version;
    action->steps = part->frozen_steps;
    action->samples = part->frozen_samples;
    return EN_OK;
}

/* Answers a held call with the weights of now or with its own payload. */
static en_status answer(eni_store *store, eni_partition *part, eni_call *call, int with_data)
{
    eni_store_client_stats *stats = &store->client[call->msg.src].stats;
    if (call->is_staged && call->payload.flags & ENI_PAYLOAD_BORROWED)
        EN_TRY(eni_store_call_detach(store, call));
    eni_store_action *action =
        eni_store_act(store, ENI_STORE_REPLY, call->msg.src, call->ticket, part->pub.bucket);
    if (!action) return EN_ENOMEM;
    action->flags = with_data ? ENI_STORE_IS_DATA : 0;
    action->version = part->pub.version;
    action->met = call->is_counted ? call->met : part->pub.version;
    action->data = with_data ? call->msg.data : part->pub.w;
    action->count = part->pub.count;
    if (call->is_snapshot) EN_TRY(show(part, call->msg.kind, action));
    *(call->is_snapshot ? &stats->bytes_beside : &stats->bytes_out) += part->pub.count * sizeof(float);
    if (part->pub.min_clock != UINT64_MAX && !call->is_snapshot && call->msg.clock > part->pub.min_clock &&
        call->msg.clock - part->pub.min_clock > stats->clocks_ahead)
        stats->clocks_ahead = call->msg.clock - part->pub.min_clock;
    settle(part, call, with_data ? ENI_DATA : ENI_WEIGHTS, EN_OK);
    eni_partition_release(part, call);
    if (call->is_staged) return EN_OK; /* the step that sums it gives it back */
    if (with_data)
        eni_store_call_retire(store, call);
    else
        eni_store_call_give(store, call);
    return EN_OK;
}

en_status eni_partition_offer(eni_store *store, eni_partition *part)
{
    const en_strategy *strategy = store->config.strategy;
    if (!part->is_initialised) return EN_OK;
    for (eni_call *call = part->held_first, *next; call; call = next) {
        next = call->next;
        int verdict = EN_REPLY_WEIGHTS;
        if (call->pending_error == EN_OK && strategy->on_pull && !call->is_snapshot)
            call->pending_error = eni_store_hook_pull(store, part, call, &verdict);
        if (call->pending_error != EN_OK) {
            EN_TRY(refuse_pending(store, part, call));
            continue;
        }
        if (verdict == EN_REPLY_DATA && call->msg.data) {
            EN_TRY(answer(store, part, call, 1));
        } else if (verdict == EN_HOLD) {
            store->client[call->msg.src].stats.holds += !call->was_asked;
            call->was_asked = 1;
        } else {
            EN_TRY(answer(store, part, call, 0));
        }
    }
    return EN_OK;
}
