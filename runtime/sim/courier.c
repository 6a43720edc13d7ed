/* courier.c - carries calls to the stores and answers back, in virtual time.
 *
 *     call -> parcel -> [network] -> store core: step(event) -> actions -> parcel -> [network] -> request
 * done
 *
 * The store is the one that runs in psd: dedupe, clocks, holds, staleness, sums and steps are its own. */
#include <inttypes.h>
#include <string.h>

#include "runtime/core/log.h"
#include "runtime/core/memory.h"
#include "runtime/core/try.h"
#include "runtime/sim/world.h"

/* A call on its way to a store and its answer on the way back. */
typedef struct parcel {
    eni_sim_store *store;
    eni_rank *rank;
    uint32_t bucket, kind, what;
    uint64_t count, bytes; /* bytes: of what is on the way now */
    uint64_t seq, base_version, nsamples, version;
    float *in; /* where the answer goes */
    en_req request;
    int is_finished_notice; /* no call: the rank calls no more */
    int has_payload;
    int payload_is_lent; /* the store reads it still */
    int is_answered;
    en_status status;
    float payload[];
} parcel;

enum { INCARNATION = 1 };

static en_status handle(eni_sim_store *store, const eni_store_event *event);

static void post(eni_sim *sim, int64_t at_ns, void (*happen)(void *, void *), parcel *p)
{
    const en_status st = eni_agenda_post(&sim->agenda, at_ns, happen, sim, p);
    if (st != EN_OK) eni_sim_fail(sim, st);
}

/* A parcel lives until it has been answered and the store has let go of its payload. */
static void maybe_free(parcel *p)
{
    if (!p->payload_is_lent && p->is_answered) eni_sim_free(p->rank->sim, p);
}

static void release_payload(void *owner)
{
    parcel *p = owner;
    p->payload_is_lent = 0;
    maybe_free(p);
}

/* ---- the way back -------------------------------------------------------------------------------------- */

/* An answer holds its own copy: the store's may change before it arrives. */
typedef struct answer {
    parcel *call;
    uint64_t count, version;
    en_status status;
    float data[];
} answer;

static void answer_arrived(void *sim_, void *answer_)
{
    eni_sim *sim = sim_;
    answer *a = answer_;
    parcel *p = a->call;
    if (a->status == EN_OK && p->in && a->count > 0) {
        memcpy(p->in, a->data, a->count * sizeof(float));
        p->rank->result->recv += a->count * sizeof(float);
        eni_cell_client *cell = &p->rank->cells[p->store - sim->stores][p->bucket];
        if (a->version > cell->base_version) cell->base_version = a->version;
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
    const int64_t at = eni_network_arrive(&sim->network, sim->agenda.now_ns, a->call->store->node,
                                          a->call->rank->world.rank, a->count * sizeof(float));
    const en_status st = eni_agenda_post(&sim->agenda, at, answer_arrived, sim, answer_);
    if (st != EN_OK) eni_sim_fail(sim, st);
}

static void reply(eni_sim_store *store, const eni_store_action *action)
{
    eni_sim *sim = store->sim;
    parcel *p = (parcel *)(uintptr_t)action->ticket;
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
        eni_log(sim->refusals++ ? ENI_LOG_DEBUG : ENI_LOG_WARN, "courier", "store %d refused rank %d: %s",
                store->peer, p->rank->world.rank, action->text);
    }
    if (count > 0) memcpy(a->data, action->data, count * sizeof(float));
    eni_journal_add(&sim->journal, &(eni_sim_event){.at_ns = sim->agenda.now_ns,
                                                    .type = ENI_SIM_REPLY,
                                                    .rank = p->rank->world.rank,
                                                    .peer = store->peer,
                                                    .bucket = p->bucket,
                                                    .clock = p->seq,
                                                    .version = action->version});
    sim->in_flight++;
    const int64_t at = eni_network_depart(&sim->network, sim->agenda.now_ns, store->node, p->rank->world.rank,
                                          count * sizeof(float));
    const en_status st = eni_agenda_post(&sim->agenda, at, answer_head, sim, a);
    if (st != EN_OK) eni_sim_fail(sim, st);
}

/* ---- at the store -------------------------------------------------------------------------------------- */

static void timer_due(void *sim, void *store_)
{
    eni_sim_store *store = store_;
    (void)sim;
    if (store->timer_ns > store->sim->agenda.now_ns) return; /* replaced by a later one */
    store->timer_ns = INT64_MAX;
    const en_status st = handle(store, &(eni_store_event){.type = ENI_STORE_TIMER});
    if (st != EN_OK) eni_sim_fail(store->sim, st);
}

static en_status set_timer(eni_sim_store *store, int64_t when_ns)
{
    store->timer_ns = when_ns;
    if (when_ns == INT64_MAX) return EN_OK;
    return eni_agenda_post(&store->sim->agenda, when_ns, timer_due, store->sim, store);
}

/* One event into the core, its actions out. */
static en_status handle(eni_sim_store *store, const eni_store_event *event)
{
    eni_sim *sim = store->sim;
    eni_store_event stamped = *event;
    stamped.now_ns = sim->agenda.now_ns;
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

static en_status call_arrived_at(eni_sim_store *store, parcel *p)
{
    uint64_t version = 0;
    eni_store_weights(store->core, p->bucket, &version);
    eni_journal_add(&store->sim->journal, &(eni_sim_event){.at_ns = store->sim->agenda.now_ns,
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
                                   .incarnation = INCARNATION,
                                   .ticket = (uintptr_t)p,
                                   .bucket = p->bucket,
                                   .seq = p->seq,
                                   .kind = p->kind,
                                   .what = p->what,
                                   .base_version = p->base_version,
                                   .nsamples = p->nsamples,
                                   .payload = {.data = p->has_payload ? p->payload : NULL,
                                               .count = p->has_payload ? p->count : 0,
                                               .release = p->has_payload ? release_payload : NULL,
                                               .owner = p}};
    return handle(store, &event);
}

static en_status notice_arrived(eni_sim_store *store, parcel *p)
{
    const int32_t rank = p->rank->world.rank;
    eni_sim_free(store->sim, p);
    eni_journal_add(&store->sim->journal, &(eni_sim_event){.at_ns = store->sim->agenda.now_ns,
                                                           .type = ENI_SIM_FINISHED,
                                                           .rank = rank,
                                                           .peer = store->peer});
    return handle(store, &(eni_store_event){.type = ENI_STORE_MEMBER,
                                            .client = rank,
                                            .incarnation = INCARNATION,
                                            .member = EN_MEMBER_FINISHED});
}

static void parcel_arrived(void *sim_, void *parcel_)
{
    eni_sim *sim = sim_;
    parcel *p = parcel_;
    sim->in_flight--;
    const en_status st = p->is_finished_notice ? notice_arrived(p->store, p) : call_arrived_at(p->store, p);
    if (st != EN_OK) eni_sim_fail(sim, st);
}

static void parcel_head(void *sim_, void *parcel_)
{
    eni_sim *sim = sim_;
    parcel *p = parcel_;
    const int64_t at =
        eni_network_arrive(&sim->network, sim->agenda.now_ns, p->rank->world.rank, p->store->node, p->bytes);
    post(sim, at, parcel_arrived, p);
}

static void send(parcel *p)
{
    eni_sim *sim = p->rank->sim;
    sim->in_flight++;
    p->rank->result->sent += p->bytes;
    const int64_t at =
        eni_network_depart(&sim->network, sim->agenda.now_ns, p->rank->world.rank, p->store->node, p->bytes);
    post(sim, at, parcel_head, p);
}

/* ---- the call ------------------------------------------------------------------------------------------ */

int eni_courier_is_client(const eni_rank *rank)
{
    const uint32_t flags = rank->sim->config->strategy->flags;
    return !(flags & EN_LEADERS_ARE_CLIENTS) || rank->world.local_rank == 0;
}

static eni_cell_client *cell_of(eni_rank *rank, int32_t store, uint32_t bucket)
{
    eni_cell_client **row = &rank->cells[store];
    if (!*row) *row = eni_alloc_array(rank->sim->buckets->n, sizeof **row);
    return *row ? &(*row)[bucket] : NULL;
}

/* The part of a call that concerns one store: elements [lo, lo + count) of the bucket. */
static en_status send_part(eni_rank *rank, int32_t store, const parcel *like, const float *out, float *in,
                           uint64_t lo)
{
    eni_cell_client *cell = cell_of(rank, store, like->bucket);
    const uint64_t bytes = out ? like->count * sizeof(float) : 0;
    parcel *p = cell ? eni_sim_alloc(rank->sim, sizeof *p + bytes) : NULL;
    if (!p) return EN_ENOMEM;
    *p = *like;
    p->store = &rank->sim->stores[store];
    p->has_payload = out != NULL;
    p->bytes = bytes;
    p->seq = ++cell->seq;
    p->base_version = cell->base_version;
    p->in = in ? in + lo : NULL;
    if (out) memcpy(p->payload, out + lo, bytes);
    send(p);
    return EN_OK;
}

static en_status refuse_call(const eni_rank *rank, int dest)
{
    const eni_sim *sim = rank->sim;
    const char *why = "is none of the ranks";
    if (!eni_courier_is_client(rank))
        why = "may not be called by this rank: only local rank 0 is a client (EN_LEADERS_ARE_CLIENTS)";
    else if (dest == EN_SERVERS && sim->nshards == 0)
        why = "are the servers, and the strategy has no EN_STORE_ON_SERVERS";
    else if (dest >= 0 && sim->nstores == sim->nshards)
        why = "has no store: the strategy has no EN_STORE_ON_RANKS";
    else if (dest >= EN_SERVERS && dest < sim->nranks)
        return EN_OK;
    eni_error("courier", "strategy %s on rank %d calls %d, which %s", sim->config->strategy->name,
              rank->world.rank, dest, why);
    return EN_EINVAL;
}

en_req eni_courier_call(en_host *host, int dest, uint32_t kind, int what, en_bucket *bucket, en_vec out,
                        en_vec in)
{
    eni_rank *rank = (eni_rank *)(void *)host;
    eni_sim *sim = rank->sim;
    const eni_vector *from = out ? eni_rank_vector(rank, out, bucket->count) : NULL;
    const eni_vector *to = in ? eni_rank_vector(rank, in, bucket->count) : NULL;
    if ((out && !from) || (in && !to)) return 0;
    en_status st = refuse_call(rank, dest);
    if (st != EN_OK) {
        eni_sim_fail(sim, st);
        return 0;
    }
    const int32_t first = dest == EN_SERVERS ? 0 : sim->nshards + dest;
    const int32_t n = dest == EN_SERVERS ? sim->nshards : 1;
    uint32_t parts = 0;
    for (int32_t k = 0; k < n; k++)
        parts += eni_slice_lo(bucket->count, k + 1, n) > eni_slice_lo(bucket->count, k, n);
    const en_req request = eni_rank_begin(rank, parts, "the answer to its call", bucket->id, dest);
    parcel like = {.rank = rank,
                   .bucket = bucket->id,
                   .kind = kind,
                   .what = (uint32_t)what,
                   .nsamples = bucket->nsamples,
                   .request = request};
    for (int32_t k = 0; k < n && st == EN_OK; k++) {
        const uint64_t lo = eni_slice_lo(bucket->count, k, n);
        like.count = eni_slice_lo(bucket->count, k + 1, n) - lo;
        if (like.count > 0)
            st = send_part(rank, first + k, &like, from ? from->data : NULL, to ? to->data : NULL, lo);
    }
    if (st != EN_OK) eni_sim_fail(sim, st);
    return request;
}

/* Queues behind the rank's last push: it must not overtake it. */
void eni_courier_finished(eni_rank *rank)
{
    eni_sim *sim = rank->sim;
    if (!eni_courier_is_client(rank)) return;
    for (int32_t k = 0; k < sim->nstores; k++) {
        parcel *p = eni_sim_alloc(sim, sizeof *p);
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

/* ---- life ---------------------------------------------------------------------------------------------- */

static en_status fill_store(eni_sim_store *store, int32_t shard, int32_t nshards)
{
    eni_sim *sim = store->sim;
    const float *init = sim->config->problem->init;
    for (int32_t r = 0; r < sim->nranks; r++) {
        if (!eni_courier_is_client(&sim->ranks[r])) continue;
        EN_TRY(handle(store, &(eni_store_event){.type = ENI_STORE_MEMBER,
                                                .client = r,
                                                .incarnation = INCARNATION,
                                                .member = EN_MEMBER_JOINED}));
    }
    for (uint32_t b = 0; b < sim->buckets->n; b++) {
        const eni_bucket_range *range = &sim->buckets->bucket[b];
        const uint64_t count = range->hi - range->lo, lo = eni_slice_lo(count, shard, nshards);
        const uint64_t cell = eni_slice_lo(count, shard + 1, nshards) - lo;
        if (cell == 0) continue;
        const eni_payload payload = {.data = (float *)(uintptr_t)(init + range->lo + lo),
                                     .count = cell,
                                     .flags = ENI_PAYLOAD_READ_ONLY};
        EN_TRY(handle(store, &(eni_store_event){.type = ENI_STORE_INIT, .bucket = b, .payload = payload}));
    }
    return EN_OK;
}

static en_status open_store(eni_sim *sim, int32_t index, const uint64_t *bucket_counts)
{
    const int is_shard = index < sim->nshards;
    eni_sim_store *store = &sim->stores[index];
    const int32_t shard = is_shard ? index : 0, nshards = is_shard ? sim->nshards : 1;
    *store = (eni_sim_store){.sim = sim,
                             .node = is_shard ? sim->nranks + index : index - sim->nshards,
                             .peer = is_shard ? index : sim->nshards - index - 1,
                             .timer_ns = INT64_MAX};
    const eni_store_config config = {.strategy = sim->config->strategy,
                                     .options = sim->options,
                                     .optimizer = sim->optimizer,
                                     .hyper = sim->config->hyper,
                                     .schedule = sim->config->schedule,
                                     .sum_order = sim->config->sum_order,
                                     .nbuckets = sim->buckets->n,
                                     .bucket_counts = bucket_counts,
                                     .shard = shard,
                                     .nshards = nshards,
                                     .world = sim->nranks,
                                     .seed = sim->config->seed,
                                     .stream = is_shard ? (uint32_t)index : 0x10000u + (uint32_t)store->node};
    EN_TRY(eni_store_new(&config, &store->core));
    return fill_store(store, shard, nshards);
}

en_status eni_courier_open(eni_sim *sim)
{
    const uint32_t flags = sim->config->strategy->flags;
    sim->nshards = flags & EN_STORE_ON_SERVERS ? sim->config->nshards : 0;
    sim->nstores = sim->nshards + (flags & EN_STORE_ON_RANKS ? sim->nranks : 0);
    sim->stores = eni_alloc_array((size_t)sim->nstores, sizeof *sim->stores);
    uint64_t *counts = eni_alloc_array(sim->buckets->n, sizeof *counts);
    en_status st = sim->stores && counts ? EN_OK : EN_ENOMEM;
    for (uint32_t b = 0; st == EN_OK && b < sim->buckets->n; b++)
        counts[b] = sim->buckets->bucket[b].hi - sim->buckets->bucket[b].lo;
    for (int32_t i = 0; i < sim->nranks && st == EN_OK; i++) {
        sim->ranks[i].cells = eni_alloc_array((size_t)sim->nstores, sizeof *sim->ranks[i].cells);
        if (!sim->ranks[i].cells) st = EN_ENOMEM;
    }
    for (int32_t k = 0; k < sim->nstores && st == EN_OK; k++)
        st = open_store(sim, k, counts);
    eni_free(counts);
    return st;
}

void eni_courier_collect(const eni_sim *sim, float *flat_out)
{
    for (uint32_t b = 0; b < sim->buckets->n; b++) {
        const eni_bucket_range *range = &sim->buckets->bucket[b];
        const int32_t nshards = sim->nshards ? sim->nshards : 1; /* stores on ranks: rank 0's */
        for (int32_t k = 0; k < nshards; k++) {
            const float *weights = eni_store_weights(sim->stores[k].core, b, NULL);
            if (!weights) continue;
            memcpy(flat_out + range->lo + eni_slice_lo(range->hi - range->lo, k, nshards), weights,
                   eni_store_count(sim->stores[k].core, b) * sizeof(float));
        }
    }
}

void eni_courier_close(eni_sim *sim)
{
    for (int32_t k = 0; sim->stores && k < sim->nstores; k++)
        eni_store_free(sim->stores[k].core);
    eni_free(sim->stores);
    sim->stores = NULL;
    eni_store_actions_fini(&sim->actions);
}
