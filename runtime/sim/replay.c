/* replay.c - a recorded order of arrivals (run/arrivals.h): what comes to a store before its turn waits for it. */
#include <inttypes.h>

#include "core/log.h"
#include "core/try.h"
#include "runtime/sim/world.h"

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
    if (order == NULL) return EN_OK;
    for (int32_t k = 0; k < sim->stores.n; k++)
        EN_TRY(check_arrivals(sim, k));
    for (size_t i = 0; sim->claims && i < order->first[sim->nranks]; i++)
        if (order->batches[i] >= (double)sim->config->micro_batches)
            return eni_fail(EN_EINVAL, "sim",
                            "--replay-order: a rank computed micro-batch %.0f, but this run has %" PRIu64
                            ": give the flags of that run (--steps, --epochs, --batch-size)",
                            order->batches[i], sim->config->micro_batches);
    return EN_OK;
}

static const eni_arrivals *order_of(const eni_sim_store *store)
{
    return &store->sim->config->order->arrivals[store - store->sim->stores.all];
}

void eni_replay_wait(eni_sim_store *store, eni_sim_message *message)
{
    message->next = store->replay.waiting;
    store->replay.waiting = message;
}

/* Takes the message that is due from those that wait. */
static eni_sim_message *take(eni_sim_store *store, const eni_arrival *due)
{
    for (eni_sim_message **at = &store->replay.waiting; *at != NULL; at = &(*at)->next) {
        eni_sim_message *m = *at;
        const bool is_call = m->header.type == ENI_MSG_CALL;
        if (m->header.rank != due->rank ||
            (is_call ? (int32_t)m->header.bucket : ENI_ARRIVAL_END) != due->bucket)
            continue;
        *at = m->next;
        return m;
    }
    return NULL;
}

bool eni_replay_next(eni_sim_store *store, eni_sim_message **message_out)
{
    const eni_arrivals *order = order_of(store);
    if (store->replay.next == order->n) return false;
    const eni_arrival *due = &order->item[store->replay.next];
    *message_out = take(store, due);
    if (*message_out == NULL && due->bucket != ENI_ARRIVAL_TIMER) return false;
    store->replay.now_ns = due->ns;
    store->replay.next++;
    return true;
}

en_status eni_replay_end(const eni_sim *sim)
{
    for (int32_t k = 0; sim->config->order != NULL && k < sim->stores.n; k++) {
        const eni_sim_store *store = &sim->stores.all[k];
        const uint64_t next = store->replay.next;
        const eni_arrivals *order = order_of(store);
        if (next == order->n && store->replay.waiting == NULL) continue;
        const eni_arrival past = {.rank =
                                      store->replay.waiting != NULL ? store->replay.waiting->header.rank : 0};
        const eni_arrival *due = next < order->n ? &order->item[next] : &past;
        return eni_fail(EN_EMISMATCH, "sim",
                        "--replay-order: after %" PRIu64 " of %" PRIu64
                        " events of shard %d, %s of rank %d (bucket %d): "
                        "give the flags of the recorded run",
                        next, order->n, k, next < order->n ? "there is no call" : "there is another call",
                        due->rank, due->bucket);
    }
    return EN_OK;
}
