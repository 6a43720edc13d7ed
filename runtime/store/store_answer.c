/* store_answer.c - the calls of a cell that wait for an answer: they are offered to the strategy (on_pull) in
 * the order of arrival, and answered with weights, with their own payload or with a refusal. A snapshot waits
 * only for INIT, and is shown what it asked for. */
#include <string.h>

#include "core/memory.h"
#include "core/try.h"
#include "runtime/store/store_impl.h"

/* The dedupe entry moves with the answer. */
static void settle(eni_cell *cell, const eni_call *call, eni_outcome outcome, en_status status)
{
    eni_seat *seat = &cell->seat[call->msg.src];
    if (call->is_snapshot) return;
    seat->outstanding--;
    if (seat->seq != call->seq) return;
    seat->outcome = outcome;
    seat->status = status;
}

static en_status refuse_pending(eni_store *store, eni_cell *cell, eni_call *call)
{
    const uint32_t bucket = cell->pub.bucket;
    if (call->pending_error == EN_ENONFINITE)
        EN_TRY(eni_store_refuse(store, call->msg.src, call->ticket, bucket, call->pending_error,
                                "the mean gradient of bucket %u, shard %u is not finite at version %llu: the "
                                "update was dropped; lower the learning rate or look at the data",
                                bucket, cell->pub.shard, (unsigned long long)cell->pub.version));
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
    settle(cell, call, ENI_REFUSED, call->pending_error);
    eni_cell_release(cell, call);
    eni_store_call_give(store, call);
    return EN_OK;
}

/* Copies the slots aside: the first time it takes the memory for them. */
static en_status freeze(eni_cell *cell)
{
    for (int i = 0; i < ENI_MAX_SLOTS; i++) {
        if (!cell->slot[i]) continue;
        if (!cell->frozen[i]) cell->frozen[i] = eni_alloc_array(cell->pub.count, sizeof(float));
        if (!cell->frozen[i]) return EN_ENOMEM;
        memcpy(cell->frozen[i], cell->slot[i], cell->pub.count * sizeof(float));
    }
    cell->frozen_version = cell->pub.version;
    cell->frozen_steps = cell->steps;
    cell->frozen_samples = cell->samples;
    return EN_OK;
}

/* Points the answer to a snapshot at what was asked for. */
static en_status show(eni_cell *cell, uint32_t kind, eni_store_action *action)
{
    action->steps = cell->steps;
    action->samples = cell->samples;
    if (kind == ENI_VECTOR_WEIGHTS) return EN_OK;
    if (kind == ENI_VECTOR_FREEZE) return freeze(cell);
    if (!cell->frozen[kind - ENI_VECTOR_SLOT]) EN_TRY(freeze(cell));
    action->data = cell->frozen[kind - ENI_VECTOR_SLOT];
    action->version = action->met = cell->frozen_version;
    action->steps = cell->frozen_steps;
    action->samples = cell->frozen_samples;
    return EN_OK;
}

/* Answers a held call with the weights of now or with its own payload. */
static en_status answer(eni_store *store, eni_cell *cell, eni_call *call, int with_data)
{
    eni_store_client_stats *stats = &store->client[call->msg.src].stats;
    if (call->is_staged && call->payload.flags & ENI_PAYLOAD_BORROWED)
        EN_TRY(eni_store_call_detach(store, call));
    eni_store_action *action =
        eni_store_act(store, ENI_STORE_REPLY, call->msg.src, call->ticket, cell->pub.bucket);
    if (!action) return EN_ENOMEM;
    action->flags = with_data ? ENI_STORE_IS_DATA : 0;
    action->version = cell->pub.version;
    action->met = call->is_counted ? call->met : cell->pub.version;
    action->data = with_data ? call->msg.data : cell->pub.w;
    action->count = cell->pub.count;
    if (call->is_snapshot) EN_TRY(show(cell, call->msg.kind, action));
    *(call->is_snapshot ? &stats->bytes_beside : &stats->bytes_out) += cell->pub.count * sizeof(float);
    if (cell->pub.min_clock != UINT64_MAX && !call->is_snapshot && call->msg.clock > cell->pub.min_clock &&
        call->msg.clock - cell->pub.min_clock > stats->clocks_ahead)
        stats->clocks_ahead = call->msg.clock - cell->pub.min_clock;
    settle(cell, call, with_data ? ENI_DATA : ENI_WEIGHTS, EN_OK);
    eni_cell_release(cell, call);
    if (call->is_staged) return EN_OK; /* the step that sums it gives it back */
    if (with_data)
        eni_store_call_retire(store, call);
    else
        eni_store_call_give(store, call);
    return EN_OK;
}

en_status eni_cell_offer(eni_store *store, eni_cell *cell)
{
    const en_strategy *strategy = store->config.strategy;
    if (!cell->is_initialised) return EN_OK;
    for (eni_call *call = cell->held_first, *next; call; call = next) {
        next = call->next;
        int verdict = EN_REPLY_WEIGHTS;
        if (call->pending_error == EN_OK && strategy->on_pull && !call->is_snapshot)
            call->pending_error = eni_store_hook_pull(store, cell, call, &verdict);
        if (call->pending_error != EN_OK) {
            EN_TRY(refuse_pending(store, cell, call));
            continue;
        }
        if (verdict == EN_REPLY_DATA && call->msg.data) {
            EN_TRY(answer(store, cell, call, 1));
        } else if (verdict == EN_HOLD) {
            store->client[call->msg.src].stats.holds += !call->was_asked;
            call->was_asked = 1;
        } else {
            EN_TRY(answer(store, cell, call, 0));
        }
    }
    return EN_OK;
}
