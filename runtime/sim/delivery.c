/* delivery.c - carries calls to the stores and answers back, in virtual time.
 *
 *     call -> message -> [network] -> store core: step(event) -> actions -> message -> [network] -> request
 * done
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
    eni_rank *rank;
    uint32_t bucket, kind, what;
    uint64_t count, bytes; /* bytes: of what is on the way now */
    uint64_t seq, base_version, nsamples, covered, version;
    float *in; /* where the answer goes */
    en_req request;
    int is_finished_notice; /* no call: the rank calls no more */
    int has_payload;
    int payload_is_lent; /* the store reads it still */
    int is_answered;
    en_status status;
    float payload[];
} message;

static void post(eni_sim *sim, int64_t at_ns, void (*happen)(void *, void *), message *p)
{
    const en_status st = eni_event_queue_post(&sim->queue, at_ns, happen, sim, p);
    if (st != EN_OK) eni_sim_fail(sim, st);
}

/* A message lives until it has been answered and the store has let go of its payload. */
static void maybe_free(message *p)
{
    if (!p->payload_is_lent && p->is_answered) eni_sim_free(p->rank->sim, p);
}

static void release_payload(void *owner)
{
    message *p = owner;
    p->payload_is_lent = 0;
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
        eni_partition_client *part = &p->rank->parts[p->store - sim->stores][p->bucket];
        if (a->version > part->base_version) part->base_version = a->version;
    }
    eni_rank_part_done(p->rank, p->request, a->status);
    p->is_answered = 1;
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
    const en_status st = eni_event_queue_post(&sim->queue, at, answer_arrived, sim, answer_);
    if (st != EN_OK) eni_sim_fail(sim, st);
}

static void reply(eni_sim_store *store, const eni_store_action *action)
{
    eni_sim *sim = store->sim;
    if (sim->faults) {
        sim->faults->reply(store, action);
        return;
    }
    message *p = (message *)(uintptr_t)action->ticket;
    if (!p) return; /* the answer to INIT */
    const uint64_t count = action->data && action->type == ENI_STORE_REPLY ? action->count : 0;
    answer *a = eni_sim_alloc(sim, sizeof *a + count * sizeof(float));
    if (!a) {
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
    const en_status st = eni_event_queue_post(&sim->queue, at, answer_head, sim, a);
    if (st != EN_OK) eni_sim_fail(sim, st);
}

/* ---- at the store -------------------------------------------------------------------------------------- */

void eni_delivery_timer_due(void *sim, void *store_)
{
    eni_sim_store *store = store_;
    (void)sim;
    if (store->timer_ns > store->sim->queue.now_ns) return; /* replaced by a later one */
    store->timer_ns = INT64_MAX;
    const en_status st = eni_delivery_handle(store, &(eni_store_event){.type = ENI_STORE_TIMER});
    if (st != EN_OK) eni_sim_fail(store->sim, st);
}

static en_status set_timer(eni_sim_store *store, int64_t when_ns)
{
    store->timer_ns = when_ns;
    if (when_ns == INT64_MAX) return EN_OK;
    return eni_event_queue_post(&store->sim->queue, when_ns, eni_delivery_timer_due, store->sim, store);
}

en_status eni_delivery_handle(eni_sim_store *store, const eni_store_event *event)
{
    eni_sim *sim = store->sim;
    eni_store_event stamped = *event;
    stamped.now_ns = sim->queue.now_ns;
    EN_TRY(eni_store_step(store->core, &stamped, &sim->actions));
    for (uint32_t i = 0; i < sim->actions.n; i++) {
        const eni_store_action *action = &sim->actions.item[i];
        if (action->type == ENI_STORE_TIMER_AT)
            EN_TRY(set_timer(store, action->when_ns));
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
    post(sim, at, message_arrived, p);
}

static void send(message *p)
{
    eni_sim *sim = p->rank->sim;
    sim->in_flight++;
    p->rank->result->sent += p->bytes;
    const int64_t at =
        eni_network_depart(&sim->network, sim->queue.now_ns, p->rank->world.rank, p->store->node, p->bytes);
    post(sim, at, message_head, p);
}

/* ---- the call ------------------------------------------------------------------------------------------ */

int eni_delivery_is_client(const eni_rank *rank)
{
    const uint32_t flags = rank->sim->config->strategy->flags;
    return !(flags & EN_LEADERS_ARE_CLIENTS) || rank->world.local_rank == 0;
}

static eni_partition_client *partition_of(eni_rank *rank, int32_t store, uint32_t bucket)
{
    eni_partition_client **row = &rank->parts[store];
    if (!*row) *row = eni_alloc_array(rank->sim->buckets->n, sizeof **row);
    return *row ? &(*row)[bucket] : NULL;
}

/* The part of a call that concerns one store: elements [lo, lo + count) of the bucket. */
static en_status send_part(eni_rank *rank, int32_t store, const message *like, const float *out, float *in,
                           uint64_t lo)
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
    if (!p) return EN_ENOMEM;
    *p = *like;
    p->store = &rank->sim->stores[store];
    p->has_payload = out != NULL;
    p->bytes = bytes;
    p->seq = ++part->seq;
    p->base_version = part->base_version;
    p->in = in ? in + lo : NULL;
    if (out) memcpy(p->payload, out + lo, bytes);
    send(p);
    return EN_OK;
}

static en_status refuse_call(const eni_rank *rank, int dest)
{
    const eni_sim *sim = rank->sim;
    const char *why = "is none of the ranks";
    if (!eni_delivery_is_client(rank))
        why = "may not be called by this rank: only local rank 0 is a client (EN_LEADERS_ARE_CLIENTS)";
    else if (dest == EN_SERVERS && sim->nshards == 0)
        why = "are the servers, and the strategy has no EN_STORE_ON_SERVERS";
    else if (dest >= 0 && sim->nstores == sim->nshards)
        why = "has no store: the strategy has no EN_STORE_ON_RANKS";
    else if (dest >= EN_SERVERS && dest < sim->nranks)
        return EN_OK;
    eni_error("delivery", "strategy %s on rank %d calls %d, which %s", sim->config->strategy->name,
              rank->world.rank, dest, why);
    return EN_EINVAL;
}

/* A call that has been made. */
struct eni_unsent_call {
    eni_unsent_call *next;
    en_vec out;
    const float *from;
    float *to;
    int32_t first, n; /* stores */
    int is_grad;      /* what it sends stands for the samples behind the gradient, a whole group's perhaps */
    uint32_t bucket, kind, what;
    uint64_t count, nsamples, covered;
    en_req request;
};

static void send_parts(eni_rank *rank, const eni_unsent_call *call)
{
    message like = {.rank = rank,
                   .bucket = call->bucket,
                   .kind = call->kind,
                   .what = call->what,
                   .nsamples = call->is_grad ? rank->grad_samples[call->bucket] : call->nsamples,
                   .covered = call->covered,
                   .request = call->request};
    en_status st = EN_OK;
    for (int32_t k = 0; k < call->n && st == EN_OK; k++) {
        const uint64_t lo = eni_slice_lo(call->count, k, call->n);
        like.count = eni_slice_lo(call->count, k + 1, call->n) - lo;
        if (like.count > 0) st = send_part(rank, call->first + k, &like, call->from, call->to, lo);
    }
    if (st != EN_OK) eni_sim_fail(rank->sim, st);
}

/* Contents change in call order: what is still being reduced is sent once it is. */
static void send_later(eni_rank *rank, const eni_unsent_call *call)
{
    eni_unsent_call *unsent = eni_sim_alloc(rank->sim, sizeof *unsent), **end = &rank->unsent;
    if (!unsent) {
        eni_sim_fail(rank->sim, EN_ENOMEM);
        return;
    }
    *unsent = *call;
    while (*end)
        end = &(*end)->next;
    *end = unsent;
}

void eni_delivery_release(eni_rank *rank, en_vec vector)
{
    for (eni_unsent_call **at = &rank->unsent; *at;) {
        eni_unsent_call *unsent = *at;
        if (unsent->out != vector) {
            at = &unsent->next;
            continue;
        }
        *at = unsent->next;
        send_parts(rank, unsent);
        eni_sim_free(rank->sim, unsent);
    }
}

/* What a push covers: what was computed since the last one, by the rank or, if it pushes for them, by all
 * ranks of its host. */
static uint64_t take_uncovered(eni_rank *rank, uint32_t bucket)
{
    const int is_leader = (rank->sim->config->strategy->flags & EN_LEADERS_ARE_CLIENTS) != 0;
    eni_rank *first = is_leader ? rank - rank->world.local_rank : rank;
    uint64_t covered = 0;
    for (int32_t i = 0; i < (is_leader ? rank->world.nlocal : 1); i++) {
        covered += first[i].uncovered[bucket];
        first[i].uncovered[bucket] = 0;
    }
    return covered;
}

en_req eni_delivery_call(en_host *host, int dest, uint32_t kind, int what, en_bucket *bucket, en_vec out,
                        en_vec in)
{
    eni_rank *rank = (eni_rank *)(void *)host;
    eni_sim *sim = rank->sim;
    const eni_vector *from = out ? eni_rank_vector(rank, out, bucket->count) : NULL;
    const eni_vector *to = in ? eni_rank_vector(rank, in, bucket->count) : NULL;
    if ((out && !from) || (in && !to)) return 0;
    const en_status st = refuse_call(rank, dest);
    if (st != EN_OK) {
        eni_sim_fail(sim, st);
        return 0;
    }
    eni_unsent_call call = {.out = out,
                          .from = from ? from->data : NULL,
                          .to = to ? to->data : NULL,
                          .first = dest == EN_SERVERS ? 0 : sim->nshards + dest,
                          .n = dest == EN_SERVERS ? sim->nshards : 1,
                          .is_grad = what != EN_WEIGHTS && out == bucket->grad,
                          .bucket = bucket->id,
                          .kind = kind,
                          .what = (uint32_t)what,
                          .count = bucket->count,
                          .nsamples = bucket->nsamples,
                          .covered = from ? take_uncovered(rank, bucket->id) : 0};
    uint32_t parts = 0;
    if (to) eni_rank_note_write(rank, to->data);
    for (int32_t k = 0; k < call.n; k++)
        parts += eni_slice_lo(bucket->count, k + 1, call.n) > eni_slice_lo(bucket->count, k, call.n);
    call.request = eni_rank_begin(rank, parts, "the answer to its call", bucket->id, dest);
    if (from && from->busy > 0)
        send_later(rank, &call);
    else
        send_parts(rank, &call);
    return call.request;
}

/* Queues behind the rank's last push: it must not overtake it. */
void eni_delivery_finished(eni_rank *rank)
{
    eni_sim *sim = rank->sim;
    if (!eni_delivery_is_client(rank)) return;
    if (sim->faults) {
        sim->faults->finished(rank);
        return;
    }
    for (int32_t k = 0; k < sim->nstores; k++) {
        message *p = eni_sim_alloc(sim, sizeof *p);
        if (!p) {
            eni_sim_fail(sim, EN_ENOMEM);
            return;
        }
        p->rank = rank;
        p->store = &sim->stores[k];
        p->is_finished_notice = 1;
        send(p);
    }
}
