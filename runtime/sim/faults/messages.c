/* messages.c - messages between ranks and stores under faults: they are lost, doubled, delayed or cut off. On
 * a rank's side they are those of the client that workers run (runtime/client/client_step.h); this file
 * drives it with virtual time in place of sockets, and raises OVERDUE where an answer does not come.
 *
 * From top to bottom: draws from the seed, a message on its way, what a store does with it, the clients of
 * the ranks. */
#include <inttypes.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
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

int eni_faults_happens(eni_fault_state *state, double share)
{
    return eni_rng_unit(&state->key, state->draws++) < share;
}

int eni_faults_is_quiet(const eni_sim *sim)
{
    return sim->queue.now_ns >= sim->fault_state->plan->quiet_ns;
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

/* ---- messages ------------------------------------------------------------------------------------------ */

/* One message on its way. It is freed when it has arrived, a call's when the store has let go of its payload.
 */
typedef struct fault_message {
    eni_sim *sim;
    eni_header header;
    float data[]; /* (header.bytes / 4) */
} fault_message;

/* ---- on their way -------------------------------------------------------------------------------------- */

static void arrived(void *sim, void *message);
static void received(eni_sim *sim, const fault_message *m);

static int is_to_store(const eni_header *h)
{
    return h->type == ENI_MSG_CALL || h->type == ENI_MSG_FINISHED;
}

static int is_cut(const eni_sim *sim, const eni_header *h)
{
    const eni_fault_state *w = sim->fault_state;
    const int way = is_to_store(h) ? 1 : 2;
    for (int32_t i = 0; i < w->plan->cuts; i++) {
        const eni_cut *cut = &w->cut[i];
        if (cut->rank == h->rank && cut->store == (int32_t)h->shard && cut->ways & way &&
            cut->from_ns <= sim->queue.now_ns && sim->queue.now_ns < cut->to_ns)
            return 1;
    }
    return 0;
}

static void send_copy(eni_sim *sim, const eni_header *header, const float *data, int64_t delay_ns)
{
    fault_message *m = eni_sim_alloc(sim, sizeof *m + header->bytes);
    if (m == NULL) {
        eni_sim_fail(sim, EN_ENOMEM);
        return;
    }
    m->sim = sim;
    m->header = *header;
    if (header->bytes > 0) memcpy(m->data, data, header->bytes);
    eni_faults_post(sim, delay_ns, arrived, m);
}

static void send(eni_sim *sim, const eni_header *header, const float *data)
{
    eni_fault_state *w = sim->fault_state;
    const eni_fault_plan *plan = w->plan;
    const int64_t latency = sim->network.latency_ns;
    w->figures->messages++;
    if (eni_faults_is_quiet(sim)) {
        send_copy(sim, header, data, latency);
        return;
    }
    if (is_cut(sim, header)) {
        w->figures->cut++;
        return;
    }
    if (eni_faults_happens(w, plan->drop)) {
        w->figures->dropped++;
        return;
    }
    const int copies = 1 + eni_faults_happens(w, plan->twice);
    w->figures->doubled += copies > 1;
    for (int i = 0; i < copies; i++) {
        const int is_slow = eni_faults_happens(w, plan->slow);
        w->figures->delayed += (uint64_t)is_slow;
        send_copy(sim, header, data,
                  latency + eni_faults_draw_ns(w, latency) +
                      (is_slow ? eni_faults_draw_ns(w, plan->slow_ns) : 0));
    }
}

/* ---- at a store ---------------------------------------------------------------------------------------- */

static void release(void *message_)
{
    fault_message *m = message_;
    eni_sim_free(m->sim, m);
}

/* The header of an answer. `stable`: the last call of this client that the last saved state has. */
static eni_header answer_to(const eni_sim *sim, uint32_t type, int32_t rank, uint64_t incarnation,
                            int32_t store, uint32_t bucket)
{
    const eni_fault_store *fault = &sim->fault_state->fault[store];
    const int is_saved = fault->safe.incarnation[rank] == incarnation;
    return (eni_header){.type = type,
                        .rank = rank,
                        .incarnation = incarnation,
                        .shard = (uint32_t)store,
                        .epoch = fault->epoch,
                        .bucket = bucket,
                        .stable = is_saved ? fault->safe.seq[(uint64_t)rank * sim->buckets->n + bucket] : 0};
}

/* A replay that the store has taken in before the call that it has last: as in server/serve.c. 1: answered.
 */
static int was_taken_before(const eni_sim_store *store, const eni_header *h)
{
    const eni_fault_store *fault = &store->sim->fault_state->fault[h->shard];
    const uint64_t taken = eni_store_seq(store->core, h->rank, h->bucket);
    if (!(h->flags & ENI_FLAG_REPLAY) || eni_store_incarnation(store->core, h->rank) != h->incarnation)
        return 0;
    if (h->seq > taken || (h->seq == taken && fault->finished[h->rank] != h->incarnation)) return 0;
    eni_header answer =
        answer_to(store->sim, ENI_MSG_REPLY, h->rank, h->incarnation, (int32_t)h->shard, h->bucket);
    answer.seq = h->seq;
    answer.flags = ENI_FLAG_REPEAT;
    eni_store_weights(store->core, h->bucket, &answer.version);
    answer.base_version = answer.version;
    send(store->sim, &answer, NULL);
    return 1;
}

/* Tickets name the incarnation too: the answer to a dead one's call must not reach its successor. */
static uint64_t ticket_of(const eni_header *h)
{
    return h->incarnation << 40 | h->seq;
}

static en_status call_store(eni_sim_store *store, fault_message *m)
{
    const eni_header h = m->header;
    eni_fault_store *fault = &m->sim->fault_state->fault[h.shard];
    const uint64_t before = eni_store_seq(store->core, h.rank, h.bucket);
    uint64_t version = 0;
    eni_store_weights(store->core, h.bucket, &version);
    eni_event_trace_add(&m->sim->events, &(eni_sim_event){.at_ns = m->sim->queue.now_ns,
                                                          .type = ENI_SIM_PUSH,
                                                          .rank = h.rank,
                                                          .peer = store->peer,
                                                          .bucket = h.bucket,
                                                          .clock = h.seq,
                                                          .version = version,
                                                          .base = h.base_version});
    if (was_taken_before(store, &h)) {
        release(m);
        return EN_OK;
    }
    const uint64_t base = h.base_version < version ? h.base_version : version;
    const eni_store_event event = {.type = ENI_STORE_CALL,
                                   .client = h.rank,
                                   .incarnation = h.incarnation,
                                   .ticket = ticket_of(&h),
                                   .bucket = h.bucket,
                                   .seq = h.seq,
                                   .kind = h.kind,
                                   .what = h.what,
                                   .base_version = h.base_version,
                                   .is_replay = (h.flags & ENI_FLAG_REPLAY) != 0,
                                   .nsamples = h.nsamples,
                                   .covered = h.covered,
                                   .payload = {.data = h.bytes > 0 ? m->data : NULL,
                                               .count = h.bytes / sizeof(float),
                                               .release = h.bytes > 0 ? release : NULL,
                                               .owner = m}};
    const en_status st = eni_delivery_handle(store, &event);
    if (h.nsamples > 0 && h.seq == before + 1 && eni_store_seq(store->core, h.rank, h.bucket) == h.seq) {
        fault->behind += version - base;
        fault->counted++;
    }
    if (h.bytes == 0) release(m);
    return st;
}

/* GOODBYE is durable if the saved state has heard FINISHED, hence all calls before it. */
static en_status finish_at_store(eni_sim_store *store, fault_message *m)
{
    const eni_header h = m->header;
    eni_sim *sim = m->sim;
    eni_fault_store *fault = &sim->fault_state->fault[h.shard];
    eni_header goodbye = answer_to(sim, ENI_MSG_GOODBYE, h.rank, h.incarnation, (int32_t)h.shard, 0);
    const en_status st = eni_faults_member(store, h.rank, h.incarnation, EN_MEMBER_FINISHED);
    release(m);
    if (eni_store_incarnation(store->core, h.rank) == h.incarnation) fault->finished[h.rank] = h.incarnation;
    goodbye.stable = fault->safe.finished[h.rank] == h.incarnation;
    send(sim, &goodbye, NULL);
    return st;
}

static void arrived(void *sim_, void *message_)
{
    eni_sim *sim = sim_;
    fault_message *m = message_;
    if (!is_to_store(&m->header)) {
        received(sim, m);
        release(m);
        return;
    }
    const eni_fault_store *fault = &sim->fault_state->fault[m->header.shard];
    if (fault->is_down || fault->epoch != m->header.epoch) { /* psd refuses it without a look at the store */
        sim->fault_state->figures->stale++;
        release(m);
        return;
    }
    eni_sim_store *store = &sim->stores.all[m->header.shard];
    const en_status st = m->header.type == ENI_MSG_CALL ? call_store(store, m) : finish_at_store(store, m);
    if (st != EN_OK) eni_sim_fail(sim, st);
}

void eni_faults_reply(eni_sim_store *store, const eni_store_action *action)
{
    eni_sim *sim = store->sim;
    eni_header header =
        answer_to(sim, action->type == ENI_STORE_REPLY ? ENI_MSG_REPLY : ENI_MSG_REFUSED, action->client,
                  action->ticket >> 40, (int32_t)(store - sim->stores.all), action->bucket);
    header.seq = action->ticket & ((UINT64_C(1) << 40) - 1);
    header.version = action->version;
    header.base_version = action->met;
    header.status = (uint32_t)action->status;
    header.bytes = action->data != NULL ? action->count * sizeof(float) : 0;
    memcpy(header.text, action->text, sizeof action->text);
    send(sim, &header, action->data);
}

/* ---- the clients of the ranks -------------------------------------------------------------------------- */

static eni_fault_call *call_at(const eni_fault_client *c, uint32_t bucket, int store)
{
    return &c->call[(uint64_t)bucket * (uint64_t)c->state.nshards + (uint64_t)store];
}

static void tell(const eni_fault_client *c, int type, const eni_header *h, uint64_t micro_batch,
                 uint64_t nsamples)
{
    const eni_fault_plan *plan = c->sim->fault_state->plan;
    const eni_news news = {.type = type,
                           .rank = c->state.rank,
                           .store = (int32_t)h->shard,
                           .bucket = h->bucket,
                           .seq = h->seq,
                           .micro_batch = micro_batch,
                           .nsamples = nsamples};
    if (plan->news != NULL) plan->news(plan->user, &news);
}

static void step(eni_fault_client *c, const eni_client_event *event, const fault_message *answer);

/* Rings when an answer is overdue, unless that was sent again meanwhile. */
typedef struct alarm {
    int32_t rank;
    uint64_t incarnation, attempt;
    eni_client_event overdue;
} alarm;

static uint64_t *attempts_of(const eni_fault_client *c, uint32_t bucket, int store)
{
    return bucket == ENI_CLIENT_ALL ? &c->finished_attempt[store] : &call_at(c, bucket, store)->attempt;
}

static void alarm_rings(void *sim_, void *alarm_)
{
    eni_sim *sim = sim_;
    const alarm a = *(alarm *)alarm_;
    eni_fault_client *c = &sim->fault_state->client[a.rank];
    eni_sim_free(sim, alarm_);
    if (c->is_open && c->state.incarnation == a.incarnation &&
        *attempts_of(c, a.overdue.bucket, a.overdue.shard) == a.attempt)
        step(c, &a.overdue, NULL);
}

static void set_alarm(const eni_fault_client *c, const eni_header *h)
{
    const uint32_t bucket = h->type == ENI_MSG_FINISHED ? ENI_CLIENT_ALL : h->bucket;
    alarm *a = eni_sim_alloc(c->sim, sizeof *a);
    if (a == NULL) {
        eni_sim_fail(c->sim, EN_ENOMEM);
        return;
    }
    *a = (alarm){.rank = c->state.rank,
                 .incarnation = c->state.incarnation,
                 .attempt = ++*attempts_of(c, bucket, (int)h->shard),
                 .overdue = {.type = ENI_CLIENT_OVERDUE, .bucket = bucket, .shard = (int)h->shard}};
    eni_faults_post(c->sim, c->sim->fault_state->plan->resend_ns, alarm_rings, a);
}

/* The vector of an answer is the rank's. */
static void complete(const eni_fault_client *c, const fault_message *answer)
{
    const eni_header *h = &answer->header;
    const eni_fault_call *call = call_at(c, h->bucket, (int)h->shard);
    eni_sim_rank *rank = &c->sim->ranks[c->state.rank];
    if (call->in != NULL && h->bytes > 0) {
        memcpy(call->in, answer->data, h->bytes);
        rank->result->recv += h->bytes;
    }
    tell(c, ENI_NEWS_ANSWERED, h, call->micro_batch, call->nsamples);
    eni_sim_rank_part_done(rank, call->request, EN_OK);
}

static void refused(const eni_fault_client *c, const eni_header *h, int is_call)
{
    eni_warn("faults", "store %u refused rank %d: %s", h->shard, c->state.rank, h->text);
    if (is_call)
        eni_sim_rank_part_done(&c->sim->ranks[c->state.rank], call_at(c, h->bucket, (int)h->shard)->request,
                               (en_status)h->status);
    else
        eni_sim_fail(c->sim, (en_status)h->status);
}

/* One event into the state machine, its actions out. `answer`: the message of an ANSWER. */
static void step(eni_fault_client *c, const eni_client_event *event, const fault_message *answer)
{
    eni_fault_state *w = c->sim->fault_state;
    const en_status st = eni_client_step(&c->state, event, &w->actions);
    if (st != EN_OK) eni_sim_fail(c->sim, st);
    for (uint32_t i = 0; i < w->actions.n && st == EN_OK; i++) {
        const eni_client_action *action = &w->actions.item[i];
        switch (action->type) {
        case ENI_CLIENT_SEND:
            w->figures->resends += event->type == ENI_CLIENT_OVERDUE;
            w->figures->replays += event->type == ENI_CLIENT_RETURNED && action->is_replay;
            send(c->sim, &action->header, action->payload);
            set_alarm(c, &action->header);
            break;
        case ENI_CLIENT_COMPLETE: complete(c, answer); break;
        case ENI_CLIENT_REFUSED: refused(c, &answer->header, action->is_call); break;
        case ENI_CLIENT_RECOVERED: break;
        }
    }
}

static void received(eni_sim *sim, const fault_message *m)
{
    eni_fault_client *c = &sim->fault_state->client[m->header.rank];
    if (c->is_open && c->state.incarnation == m->header.incarnation)
        step(c, &(eni_client_event){.type = ENI_CLIENT_ANSWER, .message = &m->header}, m);
}

en_status eni_faults_call(eni_sim_rank *rank, const eni_sim_call *order)
{
    eni_fault_client *c = &rank->sim->fault_state->client[rank->world.rank];
    eni_client_partition *part = eni_client_partition_at(&c->state, order->bucket, order->store);
    eni_fault_call *call = call_at(c, order->bucket, order->store);
    const eni_header header = {.type = ENI_MSG_CALL,
                               .kind = order->kind,
                               .what = order->what,
                               .nsamples = order->nsamples,
                               .covered = order->covered,
                               .step = rank->first_batch};
    call->in = order->in;
    call->request = order->request;
    call->micro_batch = rank->first_batch;
    call->nsamples = order->nsamples;
    part->count = order->count;
    if (order->out != NULL) rank->result->sent += order->count * sizeof(float);
    tell(c, ENI_NEWS_CALLED,
         &(eni_header){.shard = (uint32_t)order->store, .bucket = order->bucket, .seq = part->seq + 1},
         call->micro_batch, call->nsamples);
    step(c,
         &(eni_client_event){.type = ENI_CLIENT_CALL,
                             .bucket = order->bucket,
                             .shard = order->store,
                             .message = &header,
                             .payload = (float *)(uintptr_t)order->out},
         NULL);
    return rank->sim->status;
}

void eni_faults_finished(eni_sim_rank *rank)
{
    eni_fault_client *c = &rank->sim->fault_state->client[rank->world.rank];
    tell(c, ENI_NEWS_FINISHED, &(eni_header){0}, 0, 0);
    step(c, &(eni_client_event){.type = ENI_CLIENT_FINISH}, NULL);
}

void eni_faults_new_epoch(eni_sim *sim, int32_t rank, int32_t store, uint32_t epoch)
{
    eni_fault_client *c = &sim->fault_state->client[rank];
    if (!c->is_open || epoch <= c->state.shards[store].epoch) return;
    step(c, &(eni_client_event){.type = ENI_CLIENT_RETURNED, .shard = store, .epoch = epoch}, NULL);
}

en_status eni_faults_open_client(eni_sim *sim, int32_t rank)
{
    eni_fault_state *w = sim->fault_state;
    eni_fault_client *c = &w->client[rank];
    const size_t stores = (size_t)sim->stores.n;
    c->sim = sim;
    c->is_open = 1;
    c->call = eni_alloc_array(stores * sim->buckets->n, sizeof *c->call);
    c->finished_attempt = eni_alloc_array(stores, sizeof *c->finished_attempt);
    if (c->call == NULL || c->finished_attempt == NULL) return EN_ENOMEM;
    EN_TRY(eni_client_state_init(&c->state, sim->buckets->n, sim->stores.n, rank, w->member[rank].incarnation,
                                 UINT32_MAX));
    for (int32_t k = 0; k < sim->stores.n; k++)
        step(c, &(eni_client_event){.type = ENI_CLIENT_RETURNED, .shard = k, .epoch = w->fault[k].epoch},
             NULL);
    return sim->status;
}

void eni_faults_close_client(eni_sim *sim, int32_t rank)
{
    eni_fault_client *c = &sim->fault_state->client[rank];
    eni_client_state_fini(&c->state);
    eni_free(c->call);
    eni_free(c->finished_attempt);
    *c = (eni_fault_client){0};
}

/* What it kept dies with it: what was answered and is not durable may be lost with a store. */
void eni_faults_client_dies(eni_sim *sim, int32_t rank)
{
    const eni_fault_client *c = &sim->fault_state->client[rank];
    for (int k = 0; k < c->state.nshards; k++)
        for (uint32_t b = 0; b < c->state.nbuckets; b++) {
            const eni_client_partition *part = eni_client_partition_at(&c->state, b, k);
            for (const eni_client_kept *kept = part->first; kept != NULL; kept = kept->next)
                if (kept->header.seq > part->durable &&
                    !(part->in_flight && kept->header.seq == part->awaited))
                    tell(c, ENI_NEWS_ORPHANED, &kept->header, kept->header.step, kept->header.nsamples);
        }
    eni_faults_close_client(sim, rank);
}

int eni_faults_is_done(const eni_sim *sim, int32_t rank)
{
    const eni_fault_client *c = &sim->fault_state->client[rank];
    if (!eni_delivery_is_client(&sim->ranks[rank])) return 1;
    for (int32_t k = 0; k < sim->stores.n; k++) {
        const eni_fault_store *fault = &sim->fault_state->fault[k];
        if (!c->is_open || c->state.shards[k].goodbye == ENI_CLIENT_NO_GOODBYE || fault->is_down ||
            c->state.shards[k].epoch != fault->epoch)
            return 0; /* the GOODBYE was that of the previous incarnation */
    }
    return 1;
}
