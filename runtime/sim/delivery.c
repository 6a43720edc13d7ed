/* delivery.c - carries calls to the stores and answers back, in virtual time.
 *
 *     call -> message -> [network] -> store core: step(event) -> actions -> message -> [network] -> done
 *
 * The store is the one that runs in psd: dedupe, clocks, holds, staleness, sums and steps are its own. */
#include <inttypes.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/sim/world.h"

/* A call on its way to a store and its answer on the way back. */
typedef struct message {
    eni_sim_store *store;
    eni_sim_rank *rank;
    uint32_t bucket, kind, what;
    uint64_t count, bytes; /* bytes: of what is on the way now */
    uint64_t seq, base_version, nsamples, covered, version;
    float *in;               /* where the answer goes */
    uint64_t request;        /* ticket */
    bool is_finished_notice; /* no call: the rank calls no more */
    bool has_payload;
    bool payload_is_lent; /* the store reads it still */
    bool is_answered;
    en_status status;
    float payload[];
} message;

/* A message lives until it has been answered and the store has let go of its payload. */
static void maybe_free(message *p)
{
    if (!p->payload_is_lent && p->is_answered) eni_sim_free(p->rank->sim, p);
}

static void release_payload(void *owner)
{
    message *p = owner;
    p->payload_is_lent = false;
    maybe_free(p);
}

/* ---- the way back -------------------------------------------------------------------------------------- */

/* An answer holds its own copy: the store's may change before it arrives. */
typedef struct answer {
    message *call;
    uint64_t count, version;
    en_status status;
    float data[];
} answer;

static void answer_arrived(void *sim_, void *answer_)
{
    eni_sim *sim = sim_;
    answer *a = answer_;
    message *p = a->call;
    if (a->status == EN_OK && p->in && a->count > 0) {
        memcpy(p->in, a->data, a->count * sizeof(float));
        p->rank->result->recv += a->count * sizeof(float);
        eni_partition_client *part = &p->rank->parts[p->store - sim->stores.all][p->bucket];
        if (a->version > part->base_version) part->base_version = a->version;
    }
    eni_sim_rank_part_done(p->rank, p->request, a->status);
    p->is_answered = true;
    maybe_free(p);
    eni_sim_free(sim, a);
    sim->in_flight--;
}

static void answer_head(void *sim_, void *answer_)
{
    eni_sim *sim = sim_;
    const answer *a = answer_;
    const int64_t at = eni_network_arrive(&sim->network, sim->queue.now_ns, a->call->store->node,
                                          a->call->rank->world.rank, a->count * sizeof(float));
    eni_sim_post(sim, at, answer_arrived, answer_);
}

static void reply(eni_sim_store *store, const eni_store_action *action)
{
    eni_sim *sim = store->sim;
    if (sim->faults) {
        sim->faults->reply(store, action);
        return;
    }
    message *p = (message *)(uintptr_t)action->ticket;
    if (p == NULL) return; /* the answer to INIT */
    const uint64_t count = action->data && action->type == ENI_STORE_REPLY ? action->count : 0;
    answer *a = eni_sim_alloc(sim, sizeof *a + count * sizeof(float));
    if (a == NULL) {
        eni_sim_fail(sim, EN_ENOMEM);
        return;
    }
    *a = (answer){.call = p, .count = count, .version = action->version};
    if (action->type == ENI_STORE_REFUSE) {
        a->status = action->status;
        eni_log(sim->refusals++ ? ENI_LOG_DEBUG : ENI_LOG_WARN, "delivery", "store %d refused rank %d: %s",
                store->peer, p->rank->world.rank, action->text);
    }
    if (count > 0) memcpy(a->data, action->data, count * sizeof(float));
    eni_event_trace_add(&sim->events, &(eni_sim_event){.at_ns = sim->queue.now_ns,
                                                       .type = ENI_SIM_REPLY,
                                                       .rank = p->rank->world.rank,
                                                       .peer = store->peer,
                                                       .bucket = p->bucket,
                                                       .clock = p->seq,
                                                       .version = action->version});
    sim->in_flight++;
    const int64_t at = eni_network_depart(&sim->network, sim->queue.now_ns, store->node, p->rank->world.rank,
                                          count * sizeof(float));
    eni_sim_post(sim, at, answer_head, a);
}

/* ---- at the store -------------------------------------------------------------------------------------- */

/* A store's timer rings, unless it was replaced. */
static void timer_due(void *sim, void *store_)
{
    eni_sim_store *store = store_;
    (void)sim;
    if (store->timer_ns > store->sim->queue.now_ns) return; /* replaced by a later one */
    store->timer_ns = INT64_MAX;
    const en_status st = eni_delivery_handle(store, &(eni_store_event){.type = ENI_STORE_TIMER});
    if (st != EN_OK) eni_sim_fail(store->sim, st);
}

void eni_delivery_set_timer(eni_sim_store *store, int64_t when_ns)
{
    store->timer_ns = when_ns;
    if (when_ns != INT64_MAX) eni_sim_post(store->sim, when_ns, timer_due, store);
}

en_status eni_delivery_handle(eni_sim_store *store, const eni_store_event *event)
{
    eni_sim *sim = store->sim;
    eni_store_event stamped = *event;
    stamped.now_ns = sim->queue.now_ns;
    EN_TRY(eni_store_step(store->core, &stamped, &sim->stores.actions));
    for (uint32_t i = 0; i < sim->stores.actions.n; i++) {
        const eni_store_action *action = &sim->stores.actions.item[i];
        if (action->type == ENI_STORE_TIMER_AT)
            eni_delivery_set_timer(store, action->when_ns);
        else
            reply(store, action);
    }
    return EN_OK;
}

static en_status call_arrived_at(eni_sim_store *store, message *p)
{
    uint64_t version = 0;
    eni_store_weights(store->core, p->bucket, &version);
    eni_event_trace_add(&store->sim->events, &(eni_sim_event){.at_ns = store->sim->queue.now_ns,
                                                              .type = ENI_SIM_PUSH,
                                                              .rank = p->rank->world.rank,
                                                              .peer = store->peer,
                                                              .bucket = p->bucket,
                                                              .clock = p->seq,
                                                              .version = version,
                                                              .base = p->base_version});
    p->payload_is_lent = p->has_payload;
    const eni_store_event event = {.type = ENI_STORE_CALL,
                                   .client = p->rank->world.rank,
                                   .incarnation = ENI_SIM_INCARNATION,
                                   .ticket = (uintptr_t)p,
                                   .bucket = p->bucket,
                                   .seq = p->seq,
                                   .kind = p->kind,
                                   .what = p->what,
                                   .base_version = p->base_version,
                                   .nsamples = p->nsamples,
                                   .covered = p->covered,
                                   .payload = {.data = p->has_payload ? p->payload : NULL,
                                               .count = p->has_payload ? p->count : 0,
                                               .release = p->has_payload ? release_payload : NULL,
                                               .owner = p}};
    return eni_delivery_handle(store, &event);
}

static en_status notice_arrived(eni_sim_store *store, message *p)
{
    const int32_t rank = p->rank->world.rank;
    eni_sim_free(store->sim, p);
    eni_event_trace_add(&store->sim->events, &(eni_sim_event){.at_ns = store->sim->queue.now_ns,
                                                              .type = ENI_SIM_FINISHED,
                                                              .rank = rank,
                                                              .peer = store->peer});
    return eni_delivery_handle(store, &(eni_store_event){.type = ENI_STORE_MEMBER,
                                                         .client = rank,
                                                         .incarnation = ENI_SIM_INCARNATION,
                                                         .member = EN_MEMBER_FINISHED});
}

static void message_arrived(void *sim_, void *parcel_)
{
    eni_sim *sim = sim_;
    message *p = parcel_;
    sim->in_flight--;
    const en_status st = p->is_finished_notice ? notice_arrived(p->store, p) : call_arrived_at(p->store, p);
    if (st != EN_OK) eni_sim_fail(sim, st);
}

static void message_head(void *sim_, void *parcel_)
{
    eni_sim *sim = sim_;
    message *p = parcel_;
    const int64_t at =
        eni_network_arrive(&sim->network, sim->queue.now_ns, p->rank->world.rank, p->store->node, p->bytes);
    eni_sim_post(sim, at, message_arrived, p);
}

static void send(message *p)
{
    eni_sim *sim = p->rank->sim;
    sim->in_flight++;
    p->rank->result->sent += p->bytes;
    const int64_t at =
        eni_network_depart(&sim->network, sim->queue.now_ns, p->rank->world.rank, p->store->node, p->bytes);
    eni_sim_post(sim, at, message_head, p);
}

/* ---- the call ------------------------------------------------------------------------------------------ */

bool eni_delivery_is_client(const eni_sim_rank *rank)
{
    const uint32_t flags = rank->sim->config->strategy->flags;
    return !(flags & EN_LEADERS_ARE_CLIENTS) || rank->world.local_rank == 0;
}

static eni_partition_client *partition_of(eni_sim_rank *rank, int32_t store, uint32_t bucket)
{
    eni_partition_client **row = &rank->parts[store];
    if (*row == NULL) *row = eni_alloc_array(rank->sim->buckets->n, sizeof **row);
    return *row ? &(*row)[bucket] : NULL;
}

/* The part of a call that concerns one store: elements [lo, lo + count) of the bucket. */
static en_status send_part(eni_sim_rank *rank, int32_t store, const message *like, const float *out,
                           float *in, uint64_t lo)
{
    if (rank->sim->faults)
        return rank->sim->faults->call(rank, &(eni_sim_call){.store = store,
                                                             .bucket = like->bucket,
                                                             .kind = like->kind,
                                                             .what = like->what,
                                                             .nsamples = like->nsamples,
                                                             .covered = like->covered,
                                                             .count = like->count,
                                                             .out = out ? out + lo : NULL,
                                                             .in = in ? in + lo : NULL,
                                                             .request = like->request});
    eni_partition_client *part = partition_of(rank, store, like->bucket);
    const uint64_t bytes = out ? like->count * sizeof(float) : 0;
    message *p = part ? eni_sim_alloc(rank->sim, sizeof *p + bytes) : NULL;
    if (p == NULL) return EN_ENOMEM;
    *p = *like;
    p->store = &rank->sim->stores.all[store];
    p->has_payload = out != NULL;
    p->bytes = bytes;
    p->seq = ++part->seq;
    p->base_version = part->base_version;
    p->in = in ? in + lo : NULL;
    if (out) memcpy(p->payload, out + lo, bytes);
    send(p);
    return EN_OK;
}

en_status eni_delivery_call(eni_sim_rank *rank, const eni_operation *op, uint64_t *ticket_out)
{
    const eni_sim *sim = rank->sim;
    const eni_bucket_range *range = &sim->buckets->bucket[op->bucket];
    const int32_t first = op->dest == EN_SERVERS ? 0 : sim->stores.nshards + op->dest;
    const int32_t n = op->dest == EN_SERVERS ? sim->stores.nshards : 1;
    const uint64_t count = range->hi - range->lo;
    const float *out = op->out == ENI_SLOT_NONE ? NULL : eni_sim_rank_at(rank, (uint32_t)op->out, op->bucket);
    float *in = op->in == ENI_SLOT_NONE ? NULL : eni_sim_rank_at(rank, (uint32_t)op->in, op->bucket);
    uint32_t parts = 0;
    for (int32_t k = 0; k < n; k++)
        parts += eni_slice_lo(count, k + 1, n) > eni_slice_lo(count, k, n);
    *ticket_out = eni_sim_rank_begin(rank, parts, "the answer to its call", op->bucket, op->dest);
    if (*ticket_out == 0) return EN_ENOMEM;
    message like = {.rank = rank,
                    .bucket = op->bucket,
                    .kind = op->call_kind,
                    .what = op->what,
                    .nsamples = op->nsamples,
                    .covered = op->covered,
                    .request = *ticket_out};
    for (int32_t k = 0; k < n; k++) {
        const uint64_t lo = eni_slice_lo(count, k, n);
        like.count = eni_slice_lo(count, k + 1, n) - lo;
        if (like.count > 0) EN_TRY(send_part(rank, first + k, &like, out, in, lo));
    }
    return EN_OK;
}

/* Queues behind the rank's last push: it must not overtake it. */
void eni_delivery_finished(eni_sim_rank *rank)
{
    eni_sim *sim = rank->sim;
    if (!eni_delivery_is_client(rank)) return;
    if (sim->faults) {
        sim->faults->finished(rank);
        return;
    }
    for (int32_t k = 0; k < sim->stores.n; k++) {
        message *p = eni_sim_alloc(sim, sizeof *p);
        if (p == NULL) {
            eni_sim_fail(sim, EN_ENOMEM);
            return;
        }
        p->rank = rank;
        p->store = &sim->stores.all[k];
        p->is_finished_notice = true;
        send(p);
    }
}
