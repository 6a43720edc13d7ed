/* replay.c - a recorded order of arrivals (run/arrivals.h): what comes to a store before its turn waits for it, so
 * virtual time has no influence on the weights. */
#include <inttypes.h>

#include "core/log.h"
#include "core/try.h"
#include "runtime/sim/world.h"

/* ---- before the run ---- */

static en_status check_arrivals(const eni_sim *sim, int32_t k)
{
    const eni_arrivals *a = &sim->config->order->arrivals[k];
    if (a->nranks == sim->nranks && a->nshards == sim->stores.n && a->shard == k &&
        a->nbuckets == sim->buckets->n && a->elements == sim->buckets->count)
        return EN_OK;
    return eni_fail(EN_EINVAL, "sim",
                    "--replay-order: the order is of shard %d of %d, %d ranks, %u buckets of %" PRIu64
                    " elements, but this run has shard %d of %d, %d ranks, %u buckets of %" PRIu64
                    ": give the flags of that run (-n, --shards, --model)",
                    a->shard, a->nshards, a->nranks, a->nbuckets, a->elements, k, sim->stores.n, sim->nranks,
                    sim->buckets->n, sim->buckets->count);
}

en_status eni_replay_check(const eni_sim *sim)
{
    const eni_sim_order *order = sim->config->order;
    for (int32_t k = 0; order != NULL && k < sim->stores.n; k++)
        EN_TRY(check_arrivals(sim, k));
    for (int32_t r = 0; order != NULL && sim->claims && r < sim->nranks; r++)
        for (uint64_t i = 0; i < order->nbatches[r]; i++)
            if (order->batches[r][i] >= sim->config->micro_batches)
                return eni_fail(EN_EINVAL, "sim",
                                "--replay-order: rank %d computed micro-batch %" PRIu64
                                ", but this run has %" PRIu64
                                ": give the flags of that run (--steps, --epochs, --batch-size)",
                                r, order->batches[r][i], sim->config->micro_batches);
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

/* The message that is due, if it is here. */
static eni_sim_message *take_due(eni_sim_store *store, const eni_arrival *due)
{
    for (eni_sim_message **at = &store->replay.waiting; *at != NULL; at = &(*at)->next)
        if (is_of(*at, due)) {
            eni_sim_message *m = *at;
            *at = m->next;
            return m;
        }
    return NULL;
}

en_status eni_replay_take(eni_sim_store *store, eni_sim_message *message)
{
    const eni_arrivals *order = order_of(store);
    message->next = store->replay.waiting;
    store->replay.waiting = message;
    for (; store->replay.next < order->n; store->replay.next++) {
        const eni_arrival *due = &order->item[store->replay.next];
        const bool is_timer = due->bucket == ENI_ARRIVAL_TIMER;
        eni_sim_message *m = is_timer ? NULL : take_due(store, due);
        if (m == NULL && !is_timer) break;
        store->replay.now_ns = due->now_ns;
        EN_TRY(is_timer ? eni_delivery_handle(store, &(eni_store_event){.type = ENI_STORE_TIMER})
                        : eni_delivery_take(store, m));
    }
    return EN_OK;
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
                        "--replay-order: line %" PRIu64
                        " of the order of shard %d is rank %d, bucket %d, which does not "
                        "come: give the flags of the recorded run",
                        store->replay.next + 2, k, due->rank, due->bucket);
    }
    return EN_OK;
}
