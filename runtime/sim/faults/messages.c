/* messages.c - messages between ranks and stores under faults: they are lost, duplicated, delayed or stopped by a
 * broken link, find a store that is down, and are resent if no answer comes. delivery.c handles their contents.
 *
 * From top to bottom: draws from the seed, a message that leaves, one that arrives at a store, the clients of
 * the ranks. */
#include "core/try.h"
#include "runtime/sim/faults/faults_impl.h"
#include "runtime/store/store_save.h"

/* ---- draws, events, members ---------------------------------------------------------------------------- */

uint64_t eni_faults_draw(eni_fault_state *state, uint64_t below)
{
    return below == 0 ? 0 : eni_rng_below(&state->key, state->draws++, below);
}

int64_t eni_faults_draw_ns(eni_fault_state *state, int64_t below)
{
    return (int64_t)eni_faults_draw(state, (uint64_t)below);
}

static bool happens(eni_fault_state *state, double share)
{
    return eni_rng_unit(&state->key, state->draws++) < share;
}

void eni_faults_post(eni_sim *sim, int64_t delay_ns, void (*happen)(void *, void *), void *subject)
{
    eni_sim_post(sim, sim->queue.now_ns + delay_ns, happen, subject);
}

en_status eni_faults_member(eni_sim_store *store, int32_t rank, uint64_t incarnation, uint32_t member)
{
    return eni_delivery_handle(store, &(eni_store_event){.type = ENI_STORE_MEMBER,
                                                         .client = rank,
                                                         .incarnation = incarnation,
                                                         .member = member,
                                                         .kind = ENI_JOIN_AT_CLOCK,
                                                         .seq = store->sim->fault_state->member[rank].clock});
}

/* ---- messages that leave ------------------------------------------------------------------------------- */

static bool is_cut(const eni_sim *sim, const eni_header *h)
{
    const eni_fault_state *w = sim->fault_state;
    const int way = eni_sim_is_to_store(h) ? 1 : 2;
    for (int32_t i = 0; i < w->plan->cuts; i++) {
        const eni_cut *cut = &w->cut[i];
        if (cut->rank == h->rank && cut->store == (int32_t)h->shard && cut->ways & way &&
            cut->from_ns <= sim->queue.now_ns && sim->queue.now_ns < cut->to_ns)
            return true;
    }
    return false;
}

/* The `stable` of an answer: the last call of this client in the last saved state. GOODBYE: whether that
 * state has FINISHED, hence all calls before. */
static uint64_t stable_of(const eni_sim *sim, const eni_header *h)
{
    const eni_snapshot *safe = &sim->fault_state->fault[h->shard].safe;
    if (eni_sim_is_to_store(h) || safe->incarnation[h->rank] != h->incarnation) return 0;
    return h->type == ENI_MSG_GOODBYE ? safe->has_finished[h->rank]
                                      : safe->seq[(uint64_t)h->rank * sim->buckets->n + h->bucket];
}

void eni_faults_send(eni_sim *sim, const eni_header *header, const float *data)
{
    eni_fault_state *w = sim->fault_state;
    const eni_fault_plan *plan = w->plan;
    eni_header stamped = *header;
    stamped.stable = stable_of(sim, header);
    w->figures->messages++;
    if (sim->queue.now_ns >= plan->quiet_ns) {
        eni_delivery_carry(sim, &stamped, data, 0, true, NULL);
        return;
    }
    if (is_cut(sim, header)) {
        w->figures->cut++;
        return;
    }
    if (happens(w, plan->drop)) {
        w->figures->dropped++;
        return;
    }
    const int copies = 1 + happens(w, plan->twice);
    w->figures->doubled += copies > 1;
    for (int i = 0; i < copies; i++) {
        const bool is_slow = happens(w, plan->slow);
        w->figures->delayed += (uint64_t)is_slow;
        const int64_t late_ns = eni_faults_draw_ns(w, sim->network.links[0].latency_ns);
        eni_delivery_carry(sim, &stamped, data,
                           late_ns + (is_slow ? eni_faults_draw_ns(w, plan->slow_ns) : 0), true, NULL);
    }
}

/* ---- at a store ---------------------------------------------------------------------------------------- */

en_status eni_faults_at_store(eni_sim_store *store, eni_sim_message *m)
{
    eni_sim *sim = store->sim;
    const eni_header h = m->header;
    eni_fault_store *fault = &sim->fault_state->fault[h.shard];
    uint64_t version = 0;
    if (store->core == NULL || store->epoch != h.epoch) { /* psd refuses it before the store sees it */
        sim->fault_state->figures->stale++;
        eni_sim_free(sim, m);
        return EN_OK;
    }
    const uint64_t before = eni_store_seq(store->core, h.rank, h.bucket);
    eni_store_weights(store->core, h.bucket, &version);
    EN_TRY(eni_delivery_take(store, m));
    if (h.type == ENI_MSG_FINISHED)
        eni_faults_send(sim,
                        &(eni_header){.type = ENI_MSG_GOODBYE,
                                      .rank = h.rank,
                                      .incarnation = h.incarnation,
                                      .shard = h.shard,
                                      .epoch = h.epoch},
                        NULL);
    if (h.nsamples > 0 && h.seq == before + 1 && eni_store_seq(store->core, h.rank, h.bucket) == h.seq) {
        fault->behind += version - (h.base_version < version ? h.base_version : version);
        fault->counted++;
    }
    return EN_OK;
}

/* ---- the clients of the ranks -------------------------------------------------------------------------- */

static void tell(const eni_sim_rank *rank, eni_news news)
{
    const eni_fault_plan *plan = rank->sim->fault_state->plan;
    news.rank = rank->world.rank;
    if (plan->news != NULL) plan->news(plan->user, &news);
}

/* Fires when an answer is overdue, unless the message was resent meanwhile. */
typedef struct alarm {
    int32_t rank;
    uint64_t incarnation, attempt;
    eni_client_event overdue;
} alarm;

/* The number of times that a partition's awaited message, or (ENI_CLIENT_ALL) FINISHED, was sent. */
static uint64_t *attempts_of(const eni_sim_rank *rank, uint32_t bucket, int store)
{
    const eni_sim *sim = rank->sim;
    const uint64_t row = (uint64_t)rank->world.rank * (uint64_t)sim->stores.n + (uint64_t)store;
    const uint32_t column = bucket == ENI_CLIENT_ALL ? sim->buckets->n : bucket;
    return &sim->fault_state->attempt[row * (sim->buckets->n + 1) + column];
}

static void alarm_rings(void *sim_, void *alarm_)
{
    eni_sim *sim = sim_;
    const alarm a = *(alarm *)alarm_;
    eni_sim_rank *rank = &sim->ranks[a.rank];
    eni_sim_free(sim, alarm_);
    if (rank->client.incarnation == a.incarnation &&
        *attempts_of(rank, a.overdue.bucket, a.overdue.shard) == a.attempt)
        eni_delivery_event(rank, &a.overdue);
}

static void set_alarm(const eni_sim_rank *rank, const eni_header *h)
{
    eni_sim *sim = rank->sim;
    const uint32_t bucket = h->type == ENI_MSG_FINISHED ? ENI_CLIENT_ALL : h->bucket;
    alarm *a = eni_sim_alloc(sim, sizeof *a);
    if (a == NULL) {
        eni_sim_fail(sim, EN_ENOMEM);
        return;
    }
    *a = (alarm){.rank = rank->world.rank,
                 .incarnation = rank->client.incarnation,
                 .attempt = ++*attempts_of(rank, bucket, (int)h->shard),
                 .overdue = {.type = ENI_CLIENT_OVERDUE, .bucket = bucket, .shard = (int)h->shard}};
    eni_faults_post(sim, sim->fault_state->plan->resend_ns, alarm_rings, a);
}

void eni_faults_watch(eni_sim_rank *rank, const eni_client_event *event, const eni_client_action *action)
{
    eni_fault_stats *figures = rank->sim->fault_state->figures;
    if (action == NULL && event->type == ENI_CLIENT_FINISH) tell(rank, (eni_news){.type = ENI_NEWS_FINISHED});
    if (action == NULL && event->type == ENI_CLIENT_CALL)
        tell(rank,
             (eni_news){.type = ENI_NEWS_CALLED,
                        .store = event->shard,
                        .bucket = event->bucket,
                        .seq = eni_client_partition_at(&rank->client, event->bucket, event->shard)->seq + 1,
                        .micro_batch = event->message->step});
    if (action != NULL && action->type == ENI_CLIENT_COMPLETE)
        tell(rank, (eni_news){.type = ENI_NEWS_ANSWERED,
                              .store = action->shard,
                              .bucket = action->bucket,
                              .seq = event->message->seq,
                              .micro_batch = rank->calls[action->bucket].micro_batch});
    if (action == NULL || action->type != ENI_CLIENT_SEND) return;
    figures->resends += event->type == ENI_CLIENT_OVERDUE;
    figures->replays += event->type == ENI_CLIENT_RETURNED && action->is_replay;
    set_alarm(rank, &action->header);
}

void eni_faults_new_epoch(eni_sim *sim, int32_t rank, int32_t store, uint32_t epoch)
{
    const eni_client_state *client = &sim->ranks[rank].client;
    if (client->shards == NULL || epoch <= client->shards[store].epoch) return;
    eni_delivery_event(&sim->ranks[rank],
                       &(eni_client_event){.type = ENI_CLIENT_RETURNED, .shard = store, .epoch = epoch});
}

/* The calls it kept die with it: those answered and not durable may be lost with a store. */
void eni_faults_client_dies(eni_sim_rank *rank)
{
    for (int k = 0; k < rank->client.nshards; k++)
        for (uint32_t b = 0; b < rank->client.nbuckets; b++) {
            const eni_client_partition *part = eni_client_partition_at(&rank->client, b, k);
            for (const eni_client_kept *kept = part->first; kept != NULL; kept = kept->next)
                if (kept->header.seq > part->durable &&
                    !(part->in_flight && kept->header.seq == part->awaited))
                    tell(rank, (eni_news){.type = ENI_NEWS_ORPHANED,
                                          .store = k,
                                          .bucket = b,
                                          .seq = kept->header.seq,
                                          .micro_batch = kept->header.step});
        }
    eni_delivery_close_client(rank);
}

bool eni_faults_is_done(const eni_sim_rank *rank)
{
    const eni_sim *sim = rank->sim;
    if (!eni_delivery_is_client(rank)) return true;
    for (int32_t k = 0; k < sim->stores.n; k++) {
        const eni_client_shard *shard = &rank->client.shards[k]; /* it runs no more, so it is not dead */
        if (shard->goodbye == ENI_CLIENT_NO_GOODBYE || sim->stores.all[k].core == NULL ||
            shard->epoch != sim->stores.all[k].epoch)
            return false; /* the GOODBYE was that of the previous incarnation */
    }
    return true;
}
