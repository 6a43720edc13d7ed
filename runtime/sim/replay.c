/* replay.c - a recorded order of arrivals (run/arrivals.h): what comes to a store before its turn waits for it, so
 * virtual time has no influence on the weights. */
#include <inttypes.h>

#include "core/log.h"
#include "core/try.h"
#include "runtime/sim/world.h"

/* ---- before the run ---- */

en_status eni_replay_check(const eni_sim *sim)
{
    const eni_sim_config *c = sim->config;
    for (int32_t k = 0; c->order != NULL && k < sim->stores.n; k++) {
        const eni_arrivals *a = &c->order->arrivals[k];
        if (a->nranks == sim->nranks && a->nshards == sim->stores.n && a->shard == k &&
            a->nbuckets == sim->buckets->n && a->elements == sim->buckets->count)
            continue;
        return eni_fail(EN_EINVAL, "sim",
                        "--replay-order: the order is of shard %d of %d, %d ranks, %u buckets of %" PRIu64
                        " elements, but this run has shard %d of %d, %d ranks, %u buckets of %" PRIu64
                        ": give the flags of that run (-n, --shards, --model)",
                        a->shard, a->nshards, a->nranks, a->nbuckets, a->elements, k, sim->stores.n, sim->nranks,
                        sim->buckets->n, sim->buckets->count);
    }
    return EN_OK;
}

/* ---- at a store ---- */

static const eni_arrivals *order_of(const eni_sim_store *store)
{
    return &store->sim->config->order->arrivals[store - store->sim->stores.all];
}

static bool is_of(const eni_sim_message *m, const eni_arrival *due)
{
    return m->header.rank == due->rank &&
           (m->header.type == ENI_MSG_CALL ? (int32_t)m->header.bucket == due->bucket
                                           : due->bucket == ENI_ARRIVAL_END);
}

/* The event that is due, if it is here: a message, or the timer (*is_timer_out). */
static eni_sim_message *take_due(eni_sim_store *store, bool *is_timer_out)
{
    const eni_arrivals *order = order_of(store);
    *is_timer_out = false;
    if (store->replay.next == order->n) return NULL;
    const eni_arrival *due = &order->item[store->replay.next];
    if (due->bucket == ENI_ARRIVAL_TIMER) {
        *is_timer_out = store->replay.is_timer_due;
        return NULL;
    }
    for (eni_sim_message **at = &store->replay.waiting; *at != NULL; at = &(*at)->next)
        if (is_of(*at, due)) {
            eni_sim_message *m = *at;
            *at = m->next;
            return m;
        }
    return NULL;
}

static en_status go_on(eni_sim_store *store)
{
    for (;;) {
        bool is_timer;
        eni_sim_message *m = take_due(store, &is_timer);
        if (m == NULL && !is_timer) return EN_OK;
        store->replay.next++;
        if (is_timer) store->replay.is_timer_due = false;
        EN_TRY(is_timer ? eni_delivery_handle(store, &(eni_store_event){.type = ENI_STORE_TIMER})
                        : eni_delivery_take(store, m));
    }
}

en_status eni_replay_take(eni_sim_store *store, eni_sim_message *m)
{
    m->next = store->replay.waiting;
    store->replay.waiting = m;
    return go_on(store);
}

en_status eni_replay_timer(eni_sim_store *store)
{
    store->replay.is_timer_due = true;
    return go_on(store);
}

/* ---- after the run ---- */

en_status eni_replay_end(const eni_sim *sim)
{
    for (int32_t k = 0; sim->config->order != NULL && k < sim->stores.n; k++) {
        const eni_sim_store *store = &sim->stores.all[k];
        const eni_arrivals *order = order_of(store);
        const eni_sim_message *m = store->replay.waiting;
        if (store->replay.next == order->n && m == NULL) continue;
        if (store->replay.next == order->n)
            return eni_fail(EN_EMISMATCH, "sim",
                            "--replay-order: the order of shard %d ends after %" PRIu64
                            " events, but rank %d calls once more: give the flags of the recorded run",
                            k, order->n, m->header.rank);
        const eni_arrival *due = &order->item[store->replay.next];
        return eni_fail(EN_EMISMATCH, "sim",
                        "--replay-order: line %" PRIu64 " of the order of shard %d is rank %d, bucket %d, which does not "
                        "come: give the flags of the recorded run",
                        store->replay.next + 2, k, due->rank, due->bucket);
    }
    return EN_OK;
}
