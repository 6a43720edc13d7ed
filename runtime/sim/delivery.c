/* delivery.c - carries calls to the stores and answers back, in virtual time.
 *
 *     call -> client -> message -> [network] -> store -> message -> [network] -> client -> done
 *
 * Both ends are those of real runs: the ranks' client (runtime/client/client_step.h) decides what to send, and
 * to which call an answer belongs; dedupe, clocks, holds, staleness, sums and steps are the store's
 * (runtime/store). A message has the header of the wire, and takes the time of the network's model.
 *
 * A fault plan acts at three points: where a message leaves (it may be lost, duplicated or late), before a store
 * (it may be down), and beside a client (it resends overdue messages). */
#include <inttypes.h>
#include <string.h>

#include "core/canary.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/sim/world.h"

/* ---- on the way ---------------------------------------------------------------------------------------- */

static void arrived(void *sim, void *message);

static void head_arrived(void *sim_, void *message_)
{
    eni_sim *sim = sim_;
    const eni_sim_message *m = message_;
    const int64_t at = eni_network_arrive(&sim->network, sim->queue.now_ns, m->from, m->to, m->header.bytes);
    eni_sim_post(sim, at, arrived, message_);
}

void eni_delivery_carry(eni_sim *sim, const eni_header *header, const float *data, int64_t late_ns,
                        bool copies, eni_version_buffer *held)
{
    const int32_t rank = header->rank, node = sim->stores.all[header->shard].node;
    const bool is_up = eni_sim_is_to_store(header);
    const uint64_t room = copies ? header->bytes + ENI_CANARY * sizeof(float) : 0;
    eni_sim_message *m = eni_sim_alloc(sim, sizeof *m + room);
    if (m == NULL) {
        eni_sim_fail(sim, EN_ENOMEM);
        return;
    }
    *eni_sim_held(m) = held;
    m->sim = sim;
    m->from = is_up ? rank : node;
    m->to = is_up ? node : rank;
    m->header = *header;
    m->data = copies ? m->copy : (float *)(uintptr_t)data;
    if (copies && header->bytes > 0) memcpy(m->copy, data, header->bytes);
    sim->in_flight++;
    const int64_t at = eni_network_depart(&sim->network, sim->queue.now_ns, m->from, m->to, header->bytes);
    eni_sim_post(sim, at + late_ns, head_arrived, m);
}

/* Faults need copies of all, as a message may arrive twice. */
static void send(eni_sim *sim, const eni_header *header, const float *data, bool copies,
                 eni_version_buffer *held)
{
    if (sim->config->faults != NULL)
        sim->config->faults->send(sim, header, data);
    else
        eni_delivery_carry(sim, header, data, 0, copies, held);
}

/* ---- at the store -------------------------------------------------------------------------------------- */

/* A ticket names the incarnation too: the answer to a dead one's call must not reach its successor. */
enum { TICKET_SEQ_BITS = 40 };

/* Holds the version of the store that an answer is. NULL: the answer is to be copied. It is the client's own vector, or so small
 * that a copy costs less than the store's search for a version that nobody holds, among those of all ranks. */
static eni_version_buffer *hold(const eni_sim_store *store, const eni_store_action *action)
{
    const eni_sim *sim = store->sim;
    const uint64_t least = 4096 + 64 * (uint64_t)sim->nranks;
    if (sim->config->faults != NULL || action->data == NULL || action->count < least ||
        action->data != eni_store_weights(store->core, action->bucket, NULL))
        return NULL;
    return eni_store_acquire(store->core, action->bucket);
}

static void reply(eni_sim_store *store, const eni_store_action *action)
{
    eni_sim *sim = store->sim;
    if (action->ticket == 0) return; /* the answer to INIT */
    eni_header header = {.type = action->type == ENI_STORE_REPLY ? ENI_MSG_REPLY : ENI_MSG_REFUSED,
                         .rank = action->client,
                         .incarnation = action->ticket >> TICKET_SEQ_BITS,
                         .shard = (uint32_t)(store - sim->stores.all),
                         .epoch = store->epoch,
                         .bucket = action->bucket,
                         .seq = action->ticket & ((UINT64_C(1) << TICKET_SEQ_BITS) - 1),
                         .version = action->version,
                         .base_version = action->met,
                         .covered = action->clock,
                         .status = (uint32_t)action->status,
                         .bytes = action->data != NULL ? action->count * sizeof(float) : 0};
    memcpy(header.text, action->text, sizeof action->text);
    eni_sim_log(sim, (eni_sim_event){.type = ENI_SIM_REPLY,
                                     .rank = action->client,
                                     .peer = store->peer,
                                     .bucket = action->bucket,
                                     .clock = header.seq,
                                     .version = action->version});
    eni_version_buffer *held = hold(store, action);
    send(sim, &header, action->data, held == NULL, held);
}

/* A store's timer fires, unless it was replaced. */
static void timer_due(void *sim, void *store_)
{
    eni_sim_store *store = store_;
    (void)sim;
    if (store->timer_ns > store->sim->queue.now_ns) return; /* replaced by a later one */
    store->timer_ns = INT64_MAX;
    eni_sim_fail(store->sim, eni_delivery_handle(store, &(eni_store_event){.type = ENI_STORE_TIMER}));
}

void eni_delivery_set_timer(eni_sim_store *store, int64_t when_ns)
{
    if (store->sim->config->order != NULL) return; /* it was recorded */
    store->timer_ns = when_ns;
    if (when_ns != INT64_MAX) eni_sim_post(store->sim, when_ns, timer_due, store);
}

en_status eni_delivery_handle(eni_sim_store *store, const eni_store_event *event)
{
    eni_sim *sim = store->sim;
    eni_store_event stamped = *event;
    stamped.now_ns = sim->config->order != NULL ? store->replay.now_ns : sim->queue.now_ns;
    eni_store_look(store->core, stamped.now_ns);
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

static void release(void *message_)
{
    eni_sim_message *m = message_;
    eni_sim_free(m->sim, m);
}

/* Beside the log, whose digest is that of earlier versions. */
static void trace_taken(eni_sim_store *store, eni_sim_event event)
{
    const eni_sim_config *c = store->sim->config;
    if (!c->traces_taken || c->trace == NULL) return;
    event.at_ns = store->sim->queue.now_ns;
    event.type = ENI_SIM_TAKEN;
    event.weight = eni_store_last_weight(store->core);
    eni_store_weights(store->core, event.bucket, &event.version);
    c->trace(c->trace_user, &event);
}

/* A call's message lives until the store releases its payload. */
static en_status call_store(eni_sim_store *store, eni_sim_message *m)
{
    const eni_header *h = &m->header;
    const bool is_push = h->bytes > 0;
    uint64_t version = 0;
    eni_store_weights(store->core, h->bucket, &version);
    const eni_sim_event arrival = {.type = ENI_SIM_PUSH,
                                   .rank = h->rank,
                                   .peer = store->peer,
                                   .bucket = h->bucket,
                                   .clock = h->seq,
                                   .version = version,
                                   .base = h->base_version};
    eni_sim_log(store->sim, arrival);
    const eni_store_event event = {.type = ENI_STORE_CALL,
                                   .client = h->rank,
                                   .incarnation = h->incarnation,
                                   .ticket = h->incarnation << TICKET_SEQ_BITS | h->seq,
                                   .bucket = h->bucket,
                                   .seq = h->seq,
                                   .kind = h->kind,
                                   .what = h->what,
                                   .base_version = h->base_version,
                                   .is_replay = (h->flags & ENI_FLAG_REPLAY) != 0,
                                   .nsamples = h->nsamples,
                                   .covered = h->covered,
                                   .payload = {.data = is_push ? m->data : NULL,
                                               .count = h->bytes / sizeof(float),
                                               .flags = m->data == m->copy
                                                            ? ENI_PAYLOAD_HAS_ROOM
                                                            : ENI_PAYLOAD_BORROWED | ENI_PAYLOAD_READ_ONLY,
                                               .release = is_push ? release : NULL,
                                               .owner = m}};
    const en_status st = eni_delivery_handle(store, &event);
    if (is_push && st == EN_OK) trace_taken(store, arrival);
    if (!is_push) release(m);
    return st;
}

static en_status finish_at_store(eni_sim_store *store, eni_sim_message *m)
{
    const eni_store_event event = {.type = ENI_STORE_MEMBER,
                                   .client = m->header.rank,
                                   .incarnation = m->header.incarnation,
                                   .member = EN_MEMBER_FINISHED};
    release(m);
    eni_sim_log(store->sim,
                (eni_sim_event){.type = ENI_SIM_FINISHED, .rank = event.client, .peer = store->peer});
    return eni_delivery_handle(store, &event);
}

en_status eni_delivery_take(eni_sim_store *store, eni_sim_message *message)
{
    return message->header.type == ENI_MSG_CALL ? call_store(store, message)
                                                : finish_at_store(store, message);
}

/* The recorded order decides when. */
static en_status take_in_turn(eni_sim_store *store, eni_sim_message *message)
{
    eni_replay_wait(store, message);
    while (eni_replay_next(store, &message))
        EN_TRY(message != NULL ? eni_delivery_take(store, message)
                               : eni_delivery_handle(store, &(eni_store_event){.type = ENI_STORE_TIMER}));
    return EN_OK;
}

/* ---- the ranks' clients -------------------------------------------------------------------------------- */

/* Copies an answer's vector to the rank. The whole model stays where it is, in the message. */
static void complete(eni_sim_rank *rank, eni_sim_message *answer)
{
    const eni_header *h = &answer->header;
    const eni_sim_call *call = &rank->calls[h->bucket];
    const bool is_whole = h->bytes == rank->sim->config->problem->count * sizeof(float);
    if (call->in != ENI_SLOT_NONE && h->bytes > 0) {
        eni_gradients_await(rank);
        if (call->in == ENI_SLOT_PARAM && is_whole)
            eni_sim_rank_share(rank, answer->data, answer);
        else
            memcpy(eni_sim_rank_at(rank, (uint32_t)call->in, h->bucket) +
                       eni_client_partition_at(&rank->client, h->bucket, (int)h->shard)->lo,
                   answer->data, h->bytes);
        rank->result->recv += h->bytes;
    }
    eni_sim_rank_part_done(rank, call->request, EN_OK);
}

static void refused(eni_sim_rank *rank, const eni_header *h, bool is_call)
{
    eni_sim *sim = rank->sim;
    eni_log(sim->refusals++ ? ENI_LOG_DEBUG : ENI_LOG_WARN, "delivery", "store %d refused rank %d: %s",
            sim->stores.all[h->shard].peer, rank->world.rank, h->text);
    if (is_call)
        eni_sim_rank_part_done(rank, rank->calls[h->bucket].request, (en_status)h->status);
    else
        eni_sim_fail(sim, (en_status)h->status);
}

/* One event into the state machine, its actions out. `answer`: the message of an ANSWER. */
static void step(eni_sim_rank *rank, const eni_client_event *event, eni_sim_message *answer)
{
    eni_sim *sim = rank->sim;
    if (sim->config->faults != NULL) sim->config->faults->watch(rank, event, NULL);
    const en_status st = eni_client_step(&rank->client, event, &sim->client_actions);
    eni_sim_fail(sim, st);
    for (uint32_t i = 0; i < sim->client_actions.n && st == EN_OK; i++) {
        const eni_client_action *action = &sim->client_actions.item[i];
        switch (action->type) {
        case ENI_CLIENT_SEND:
            send(sim, &action->header, action->payload,
                 action->payload == NULL || !rank->calls[action->header.bucket].keeps_out, NULL);
            break;
        case ENI_CLIENT_COMPLETE: complete(rank, answer); break;
        case ENI_CLIENT_REFUSED: refused(rank, &answer->header, action->is_call); break;
        case ENI_CLIENT_RECOVERED: break;
        }
        if (sim->config->faults != NULL) sim->config->faults->watch(rank, event, action);
    }
}

void eni_delivery_event(eni_sim_rank *rank, const eni_client_event *event)
{
    step(rank, event, NULL);
}

/* A message is at its end, and a store has handled it. */
static void handled(void *sim_, void *message_)
{
    eni_sim *sim = sim_;
    eni_sim_message *m = message_;
    const eni_header *h = &m->header;
    sim->in_flight--;
    if (eni_sim_is_to_store(h)) {
        eni_sim_store *store = &sim->stores.all[h->shard];
        const en_status st = sim->config->faults != NULL  ? sim->config->faults->at_store(store, m)
                             : sim->config->order != NULL ? take_in_turn(store, m)
                                                          : eni_delivery_take(store, m);
        if (st != EN_OK) eni_sim_fail(sim, st);
        return;
    }
    eni_sim_rank *rank = &sim->ranks[h->rank];
    if (rank->client.incarnation == h->incarnation)
        step(rank, &(eni_client_event){.type = ENI_CLIENT_ANSWER, .message = h}, m);
    if (rank->answer != m) release(m);
}

/* When a store has handled this call, after those that came before it; the announcement that a rank has finished only queues. */
static int64_t handled_ns(eni_sim_store *store, const eni_header *h)
{
    const eni_sim *sim = store->sim;
    const eni_sim_service *service = &sim->config->service;
    double ns = 0;
    if (h->type == ENI_MSG_CALL) {
        const eni_rng_key key = {sim->config->seed, ENI_RNG_SIM, UINT32_C(1) << 31 | h->shard,
                                 store->nserved++};
        if (service->of_shard != NULL) ns = eni_law_draw(&service->of_shard[h->shard], &key);
        ns += (double)h->bytes * service->ns_per_byte;
    }
    return eni_virtual_occupy(&store->free_ns, sim->queue.now_ns, eni_virtual_span(ns));
}

static void arrived(void *sim_, void *message)
{
    eni_sim *sim = sim_;
    const eni_header *h = &((const eni_sim_message *)message)->header;
    const bool is_served = eni_sim_is_to_store(h) && (int32_t)h->shard < sim->stores.nshards;
    const int64_t at = is_served ? handled_ns(&sim->stores.all[h->shard], h) : 0;
    if (at > sim->queue.now_ns)
        eni_sim_post(sim, at, handled, message);
    else
        handled(sim, message);
}

bool eni_delivery_is_client(const eni_sim_rank *rank)
{
    const uint32_t flags = rank->sim->config->strategy->flags;
    return !(flags & EN_LEADERS_ARE_CLIENTS) || rank->world.local_rank == 0;
}

/* Makes a store known to a rank's client, unless it is already. */
static void meet(eni_sim_rank *rank, int32_t store)
{
    const eni_sim *sim = rank->sim;
    const int32_t nshards = sim->stores.nshards, shard = store < nshards ? store : 0;
    if (rank->client.shards[store].parts != NULL) return;
    step(rank,
         &(eni_client_event){
             .type = ENI_CLIENT_RETURNED, .shard = store, .epoch = sim->stores.all[store].epoch},
         NULL);
    for (uint32_t b = 0; b < sim->buckets->n && sim->status == EN_OK; b++) {
        eni_client_partition *part = eni_client_partition_at(&rank->client, b, store);
        const uint64_t count = sim->buckets->bucket[b].hi - sim->buckets->bucket[b].lo;
        part->lo = eni_slice_lo(count, shard, store < nshards ? nshards : 1);
        part->count = eni_slice_lo(count, shard + 1, store < nshards ? nshards : 1) - part->lo;
    }
}

en_status eni_delivery_open_client(eni_sim_rank *rank, uint64_t incarnation)
{
    eni_sim *sim = rank->sim;
    rank->calls = eni_alloc_array(sim->buckets->n, sizeof *rank->calls);
    if (rank->calls == NULL) return EN_ENOMEM;
    EN_TRY(eni_client_state_init(&rank->client, sim->buckets->n, sim->stores.n, rank->world.rank, incarnation,
                                 sim->config->faults != NULL ? UINT32_MAX : 0));
    for (int32_t k = 0; k < sim->stores.nshards; k++)
        meet(rank, k);
    return sim->status;
}

void eni_delivery_close_client(eni_sim_rank *rank)
{
    eni_client_state_fini(&rank->client);
    eni_free(rank->calls);
    rank->calls = NULL;
}

/* Makes a call on the partitions of stores first .. first + n - 1 that are not empty. */
static en_status call_partitions(eni_sim_rank *rank, const eni_operation *op, int32_t first, int32_t n)
{
    const float *out = op->out == ENI_SLOT_NONE ? NULL : eni_sim_rank_at(rank, (uint32_t)op->out, op->bucket);
    const eni_header header = {.type = ENI_MSG_CALL,
                               .kind = op->call_kind,
                               .what = op->what,
                               .nsamples = op->nsamples,
                               .covered = op->covered,
                               .step = rank->first_batch};
    for (int32_t k = first; k < first + n; k++) {
        const eni_client_partition *part = eni_client_partition_at(&rank->client, op->bucket, k);
        if (part->count == 0) continue;
        if (out != NULL) rank->result->sent += part->count * sizeof(float);
        step(rank,
             &(eni_client_event){.type = ENI_CLIENT_CALL,
                                 .bucket = op->bucket,
                                 .shard = k,
                                 .message = &header,
                                 .payload = out == NULL ? NULL : (float *)(uintptr_t)(out + part->lo)},
             NULL);
    }
    return rank->sim->status;
}

en_status eni_delivery_call(eni_sim_rank *rank, const eni_operation *op, uint64_t *ticket_out)
{
    const eni_sim *sim = rank->sim;
    const int32_t first = op->dest == EN_SERVERS ? 0 : sim->stores.nshards + op->dest;
    const int32_t n = op->dest == EN_SERVERS ? sim->stores.nshards : 1;
    uint32_t parts = 0;
    for (int32_t k = first; k < first + n; k++) {
        meet(rank, k);
        EN_TRY(sim->status);
        parts += eni_client_partition_at(&rank->client, op->bucket, k)->count > 0;
    }
    *ticket_out = eni_sim_rank_begin(rank, parts, "the answer to its call", op->bucket, op->dest);
    if (*ticket_out == 0) return EN_ENOMEM;
    rank->calls[op->bucket] = (eni_sim_call){
        .in = op->in, .keeps_out = op->keeps_out, .request = *ticket_out, .micro_batch = rank->first_batch};
    return call_partitions(rank, op, first, n);
}

/* Queues behind the rank's last push: it must not overtake it. */
void eni_delivery_finished(eni_sim_rank *rank)
{
    if (eni_delivery_is_client(rank)) step(rank, &(eni_client_event){.type = ENI_CLIENT_FINISH}, NULL);
}
