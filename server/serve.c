/* serve.c - a shard's messages, and their answers, which go the way on which the client asked.
 *
 *     HELLO   is checked against the token and this run; from then on the connection speaks for its rank
 *     others  are believed only over that connection, and wait until an emulated wire would deliver them;
 *             CALL, INIT, SNAPSHOT and FINISHED become events of the store, whose actions become answers
 *
 * Members and timers are events of the store too, so they are here. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/store/store_save.h"
#include "server/shard_impl.h"

enum {
    DELAY_MAX_S = 10,    /* the longest that a stamp can delay a message */
    DELAY_MAX = 1 << 16, /* messages delayed at once; those beyond are handled as they arrive */
    TRY_AGAIN_MS = 5 /* the interval at which a repeated call waits for rank 0's INIT to be repeated, too */
};

/* ---- answers ------------------------------------------------------------------------------------------- */

/* The version buffer of `data`, acquired, if these are a partition's live weights and long enough for ZeroMQ
 * to send them in place. NULL: they are copied. */
static eni_version_buffer *acquire(eni_shard *shard, const eni_header *header, const float *data)
{
    if (data == NULL || header->bytes < ENI_ZEROCOPY_MIN) return NULL;
    if (data != eni_store_weights(shard->store, header->bucket, NULL)) return NULL;
    return eni_store_acquire(shard->store, header->bucket);
}

/* A client's address by socket, as a packet of its own has it. */
static eni_packet socket_of(const eni_shard *shard, int32_t rank)
{
    eni_packet to = {.header = {.rank = rank}, .source = -1, .route_bytes = shard->route[rank].bytes};
    memcpy(to.route, shard->route[rank].route, sizeof to.route);
    return to;
}

static const eni_arena *arena_of(const eni_shard *shard, int32_t rank)
{
    return atomic_load_explicit(&shard->handed[rank].arena, memory_order_acquire);
}

/* Posts to the client's ring. False: it must go by socket. */
static bool post_to_ring(eni_shard *shard, const eni_header *header)
{
    eni_shm_ring *ring = eni_shard_ring(shard, header->rank);
    return ring && eni_shm_ring_answer(ring, (uint32_t)shard->config.index, header) == EN_OK;
}

/* Sends one message; a client that is gone is left to the control plane. `data` is the store's again when
 * this returns: acquired weights keep their bytes, all else is copied. `to` without a route: by ring, to the
 * header's rank. */
static void post(eni_shard *shard, const eni_packet *to, eni_header *header, const float *data)
{
    const uint64_t on_wire = data ? header->bytes : 0;
    header->epoch = shard->config.epoch;
    header->shard = (uint32_t)shard->config.index;
    header->incarnation = shard->config.incarnation;
    header->dtype = ENI_DTYPE_F32;
    header->codec = ENI_CODEC_NONE;
    header->deliver_ns = shard->config.shaper == NULL ? 0
                                                      : eni_shaper_send(shard->config.shaper, eni_now_ns(),
                                                                        on_wire + ENI_HEADER_CHARGE);
    eni_packet by_socket;
    if (to->source == ENI_SHARD_RING) {
        if (data == NULL && post_to_ring(shard, header)) return;
        by_socket = socket_of(shard, header->rank);
        to = &by_socket;
    }
    if (to->route_bytes == 0) return; /* it has not reconnected yet, and will ask again */
    eni_version_buffer *held = acquire(shard, header, data);
    const en_status st =
        eni_router_send(shard->router, to, header, (void *)data, held ? eni_store_release : NULL, held);
    if (st == EN_OK) return;
    eni_debug("shard", "shard %d: no answer to rank %d: %s", shard->config.index, header->rank,
              en_status_str(st));
    if (st == EN_ETIMEOUT && header->type == ENI_MSG_REPLY)
        shard->config.on_failure(shard->config.user,
                                 "a worker does not read its answers: it would wait forever");
}

void eni_shard_refuse(eni_shard *shard, const eni_packet *to, en_status status, const char *fmt, ...)
{
    eni_header header = {.type = ENI_MSG_REFUSED,
                         .rank = to->header.rank,
                         .bucket = to->header.bucket,
                         .seq = to->header.seq,
                         .status = (uint32_t)status};
    va_list args;
    va_start(args, fmt);
    vsnprintf(header.text, sizeof header.text, fmt, args);
    va_end(args);
    shard->figures.refused++;
    eni_log_every(&shard->refused_limit, ENI_LOG_WARN, "shard", "shard %d refused: %s", shard->config.index,
                  header.text);
    post(shard, to, &header, NULL);
}

/* A ticket holds what the answer needs: the call's seq, and the place in shared memory where the worker wants
 * it.
 *
 *     seq: 47 bits | slot: 14 bits, all ones: nowhere | by_ring | is_mapped | is_shared */
enum { TICKET_SLOT = 0x3fff, TICKET_RING = 4, TICKET_MAPPED = 2, TICKET_SHARED = 1 };

static uint64_t ticket_of(const eni_packet *packet)
{
    const eni_header *h = &packet->header;
    const uint64_t slot = h->into < TICKET_SLOT ? h->into : TICKET_SLOT;
    return h->seq << 17 | slot << 3 | (packet->source == ENI_SHARD_RING ? TICKET_RING : 0) |
           (h->flags & ENI_FLAG_MAPPED ? TICKET_MAPPED : 0) | (h->flags & ENI_FLAG_SHM ? TICKET_SHARED : 0);
}

uint64_t eni_shard_old_ticket(uint64_t ticket)
{
    return ticket >> 17 << 17 | (uint64_t)TICKET_SLOT << 3;
}

static uint64_t ticket_seq(uint64_t ticket)
{
    return ticket >> 17;
}

/* The destination of an action's answer. */
static eni_packet address_of(const eni_shard *shard, const eni_store_action *action)
{
    if (action->ticket & TICKET_RING)
        return (eni_packet){.header = {.rank = action->client}, .source = ENI_SHARD_RING};
    return socket_of(shard, action->client);
}

static float *arena_at(const eni_shard *shard, const eni_arena *arena, uint32_t slot, uint32_t bucket)
{
    const eni_setup *setup = shard->config.setup;
    const uint64_t lo = eni_slice_lo(setup->counts[bucket], shard->config.index, shard->config.nshards);
    return eni_arena_at(arena, slot, setup->offsets[bucket] + lo);
}

/* Puts the vector where the worker wants it: the worker maps the live weights already, or they are copied
 * straight into the slot of its call. False: it must travel in the message. */
static bool put_into_arena(eni_shard *shard, const eni_store_action *action, eni_header *header)
{
    const uint64_t ticket = action->ticket;
    const uint32_t slot = (uint32_t)(ticket >> 3) & TICKET_SLOT;
    const eni_arena *arena = NULL;
    if (ticket & TICKET_SHARED) arena = arena_of(shard, action->client);
    if (arena == NULL) return false;
    header->flags |= ENI_FLAG_SHM;
    header->slot = ENI_INTO_NOTHING;
    shard->figures.shm_bytes += header->bytes;
    if (ticket & TICKET_MAPPED && shard->config.weights &&
        action->data == eni_store_weights(shard->store, action->bucket, NULL)) {
        header->flags |= ENI_FLAG_MAPPED;
        return true;
    }
    if (slot >= eni_arena_nslots(arena)) return true; /* not wanted */
    header->slot = slot;
    memmove(arena_at(shard, arena, slot, action->bucket), action->data, header->bytes); /* may be its own */
    return true;
}

static void reply(eni_shard *shard, const eni_store_action *action)
{
    const eni_packet to = address_of(shard, action);
    const float *data = action->data;
    eni_header header = {.type = ENI_MSG_REPLY,
                         .rank = action->client,
                         .bucket = action->bucket,
                         .seq = ticket_seq(action->ticket),
                         .base_version = action->met,
                         .version = action->version,
                         .stable = eni_shard_stable(shard, action->client, action->bucket),
                         .nsamples = action->samples,
                         .covered = action->clock,
                         .step = action->steps,
                         .count = action->count,
                         .bytes = data ? action->count * sizeof(float) : 0};
    if (action->flags & ENI_STORE_IS_REPEAT) header.flags |= ENI_FLAG_REPEAT;
    if (action->flags & ENI_STORE_IS_DATA) header.flags |= ENI_FLAG_DATA;
    if (data && put_into_arena(shard, action, &header)) data = NULL;
    post(shard, &to, &header, data);
}

static void refuse_call(eni_shard *shard, const eni_store_action *action)
{
    eni_packet to = address_of(shard, action);
    to.header.bucket = action->bucket;
    to.header.seq = ticket_seq(action->ticket);
    eni_shard_refuse(shard, &to, action->status, "%s", action->text);
}

static void say_goodbye(eni_shard *shard, int32_t rank)
{
    const eni_packet to = socket_of(shard, rank);
    eni_header header = {
        .type = ENI_MSG_GOODBYE, .rank = rank, .stable = (uint64_t)eni_shard_is_secure(shard, rank)};
    post(shard, &to, &header, NULL);
}

void eni_shard_tend(eni_shard *shard)
{
    if (shard->saves == NULL) return;
    eni_shard_save_tend(shard);
    for (int32_t r; (r = eni_shard_save_finish_due(shard)) >= 0;)
        say_goodbye(shard, r);
}

/* ---- the store ----------------------------------------------------------------------------------------- */

/* --record-order: notes what may change the store. A repeated call was noted before; members are those of the beginning. */
static void note_arrival(eni_shard *shard, const eni_store_event *event)
{
    eni_arrival a = {event->now_ns, event->client, (int32_t)event->bucket};
    switch (event->type) {
    case ENI_STORE_CALL:
        if (event->seq != eni_store_seq(shard->store, event->client, event->bucket) + 1) return;
        break;
    case ENI_STORE_MEMBER:
        if (event->member == EN_MEMBER_JOINED && event->kind != ENI_JOIN_AT_CLOCK) return;
        a.bucket = event->member == EN_MEMBER_FINISHED ? ENI_ARRIVAL_END : ENI_ARRIVAL_VISIT;
        break;
    case ENI_STORE_TIMER: a.bucket = ENI_ARRIVAL_TIMER; break;
    default: return;
    }
    eni_arrivals_add(&shard->config.arrivals, a);
}

static void step(eni_shard *shard, eni_store_event *event, const eni_header *header)
{
    const uint64_t bytes = event->payload.count * sizeof(float);
    event->now_ns = eni_now_ns();
    if (shard->config.arrivals.file != NULL) note_arrival(shard, event);
    shard->status = eni_store_step(shard->store, event, &shard->actions);
    const int64_t end_ns = eni_now_ns();
    shard->figures.update_ns += end_ns - event->now_ns;
    if (bytes > 0)
        eni_trace_span(shard->config.trace, ENI_TRACE_SHARD0 + shard->config.index, "update", event->now_ns,
                       end_ns, (int64_t)header->step, (int)event->bucket, bytes);
    if (shard->status != EN_OK) return;
    for (uint32_t i = 0; i < shard->actions.n; i++) {
        const eni_store_action *action = &shard->actions.item[i];
        switch (action->type) {
        case ENI_STORE_REPLY: reply(shard, action); break;
        case ENI_STORE_REFUSE: refuse_call(shard, action); break;
        case ENI_STORE_TIMER_AT: shard->timer_ns = action->when_ns; break;
        }
    }
}

void eni_shard_tick(eni_shard *shard, int64_t now_ns)
{
    eni_store_look(shard->store, now_ns);
    if (now_ns < shard->timer_ns) return;
    shard->timer_ns = INT64_MAX;
    eni_store_event event = {.type = ENI_STORE_TIMER};
    step(shard, &event, NULL);
}

static void tell_member(eni_shard *shard, int32_t rank, int member)
{
    eni_store_event event = {
        .type = ENI_STORE_MEMBER, .client = rank, .member = member, .incarnation = shard->config.incarnation};
    step(shard, &event, NULL);
}

void eni_shard_join_all(eni_shard *shard)
{
    for (int32_t r = 0; r < shard->config.nfirst && shard->status == EN_OK; r++)
        if (shard->config.is_client[r]) tell_member(shard, r, EN_MEMBER_JOINED);
}

/* A newcomer has chosen its clock. Repeated to a psd that came back, which may know it. */
static void join_late(eni_shard *shard, int32_t rank, uint64_t clock)
{
    eni_store_event event = {.type = ENI_STORE_MEMBER,
                             .client = rank,
                             .member = EN_MEMBER_JOINED,
                             .incarnation = shard->config.incarnation,
                             .kind = ENI_JOIN_AT_CLOCK,
                             .seq = clock};
    step(shard, &event, NULL);
}

void eni_shard_lose(eni_shard *shard, int32_t rank)
{
    if (shard->config.is_client[rank]) tell_member(shard, rank, EN_MEMBER_LEFT);
}

/* ---- payloads ------------------------------------------------------------------------------------------ */

static void release_box(void *owner)
{
    eni_box *box = owner;
    eni_packet_release(&box->packet);
    box->next = box->shard->idle;
    box->shard->idle = box;
}

/* Moves the packet into a box, so that its payload lives until the store is done with it. */
static bool payload_of_message(eni_shard *shard, eni_packet *packet, eni_payload *payload_out)
{
    eni_box *box = shard->idle;
    if (box)
        shard->idle = box->next;
    else if (!(box = eni_alloc(sizeof *box)))
        return false;
    *box = (eni_box){.packet = *packet, .shard = shard};
    packet->owner = NULL;
    *payload_out = (eni_payload){.data = (float *)(void *)box->packet.payload,
                                 .count = box->packet.bytes / sizeof(float),
                                 .release = release_box,
                                 .owner = box};
    return true;
}

/* Finds the payload of a CALL or INIT. False: refused. */
static bool find_payload(eni_shard *shard, eni_packet *packet, eni_payload *payload_out)
{
    const eni_header *h = &packet->header;
    const uint64_t count = eni_store_count(shard->store, h->bucket);
    if (h->bytes == 0 && (h->count == 0 || h->count == count)) return true;
    if (packet->is_damaged) {
        shard->figures.refusals.damaged++;
        eni_shard_refuse(shard, packet, EN_EPROTO,
                         "call %" PRIu64 " of rank %d to bucket %u was damaged in transit (checksum): check "
                         "memory, network card and cable; it was not added",
                         h->seq, h->rank, h->bucket);
        return false;
    }
    if (h->dtype != ENI_DTYPE_F32 || h->codec != ENI_CODEC_NONE || h->bytes != count * sizeof(float) ||
        h->count != count || count == 0) {
        shard->figures.refusals.payload++;
        eni_shard_refuse(shard, packet, EN_EPROTO,
                         "%" PRIu64 " elements in %" PRIu64
                         " bytes (type %u, codec %u) for bucket %u, of which shard %d has %" PRIu64
                         " elements",
                         h->count, h->bytes, h->dtype, h->codec, h->bucket, shard->config.index, count);
        return false;
    }
    if (!(h->flags & ENI_FLAG_SHM)) {
        if (payload_of_message(shard, packet, payload_out)) return true;
        eni_shard_refuse(shard, packet, EN_ENOMEM, "psd is out of memory");
        return false;
    }
    const eni_arena *arena = arena_of(shard, h->rank);
    if (arena == NULL || h->slot >= eni_arena_nslots(arena)) {
        shard->figures.refusals.payload++;
        eni_shard_refuse(shard, packet, EN_EPROTO, "rank %d names slot %u of an arena that psd does not have",
                         h->rank, h->slot);
        return false;
    }
    shard->figures.shm_bytes += h->bytes;
    *payload_out = (eni_payload){.data = arena_at(shard, arena, h->slot, h->bucket),
                                 .count = count,
                                 .flags = ENI_PAYLOAD_BORROWED | ENI_PAYLOAD_READ_ONLY};
    return true;
}

/* ---- messages ------------------------------------------------------------------------------------------ */

static void on_hello(eni_shard *shard, const eni_packet *packet)
{
    const eni_header *h = &packet->header;
    eni_token token;
    if (eni_token_parse(h->text, &token) != EN_OK || !eni_token_equal(&token, &shard->config.token)) {
        shard->figures.refusals.token++;
        eni_shard_refuse(shard, packet, EN_EDENIED,
                         "the job token does not match: this psd belongs to another run");
        return;
    }
    if (!eni_shard_is_meant(shard, h)) {
        shard->figures.refusals.member++;
        eni_shard_refuse(shard, packet, EN_EMEMBER,
                         "HELLO of rank %d, epoch %u, incarnation %" PRIu64
                         " to shard %u: this is shard %d of a run of %d ranks in epoch %u",
                         h->rank, h->epoch, h->incarnation, h->shard, shard->config.index,
                         shard->config.nranks, shard->config.epoch);
        return;
    }
    eni_route *route = &shard->route[h->rank];
    route->bytes = packet->route_bytes;
    memcpy(route->route, packet->route, sizeof route->route);
    eni_router_admit(shard->router, packet);
    if (h->seq > 0 && h->rank >= shard->config.nfirst) join_late(shard, h->rank, h->seq - 1);
    eni_header header = {.type = ENI_MSG_WELCOME, .rank = h->rank};
    post(shard, packet, &header, NULL);
}

/* Whether the message came over the connection that sent HELLO for its rank. */
static bool is_believed(const eni_shard *shard, const eni_packet *packet)
{
    const eni_header *h = &packet->header;
    if (!eni_shard_is_meant(shard, h)) return false;
    const eni_route *route = &shard->route[h->rank];
    return route->bytes > 0 && route->bytes == packet->route_bytes &&
           memcmp(route->route, packet->route, route->bytes) == 0;
}

static void on_finished(eni_shard *shard, const eni_packet *packet)
{
    const int32_t rank = packet->header.rank;
    tell_member(shard, rank, EN_MEMBER_FINISHED);
    if (shard->saves == NULL || eni_shard_save_finished(shard, rank)) say_goodbye(shard, rank);
}

/* ---- messages that an emulated wire has not delivered yet ---------------------------------------------- */

/* Inserts a message by its time; the last to become ready comes first. False: there is no room. */
static bool delay(eni_shard *shard, const eni_packet *packet, int64_t ready_ns, bool is_whole)
{
    eni_delays *d = &shard->delays;
    if (d->n == DELAY_MAX || eni_grow((void **)&d->list, &d->room, d->n + 1, sizeof *d->list) != EN_OK)
        return false;
    uint32_t at = d->n++;
    for (; at > 0 && d->list[at - 1].ready_ns <= ready_ns; at--)
        d->list[at] = d->list[at - 1];
    d->list[at] = (eni_delayed){*packet, ready_ns, is_whole};
    return true;
}

/* ---- repeated calls, which this psd may have lost ------------------------------------------------------ */

/* Handles those that the store need not, or cannot yet, see. True: done. */
static bool replay(eni_shard *shard, eni_packet *packet)
{
    const eni_header *h = &packet->header;
    const uint64_t taken = eni_store_seq(shard->store, h->rank, h->bucket);
    if (eni_store_count(shard->store, h->bucket) == 0) return false;
    if (h->seq == 0) { /* asks how far the partition is stable */
        if (eni_shard_stable(shard, h->rank, h->bucket) < taken) eni_shard_save_ask(shard);
        return false;
    }
    if (h->seq > taken + 1) {
        eni_shard_refuse(shard, packet, EN_EPROTO,
                         "psd came back from an older state than it had promised: it has call %" PRIu64
                         " of rank %d to bucket %u, but the next one that the rank has kept is call %" PRIu64,
                         taken, h->rank, h->bucket, h->seq);
        return true;
    }
    if (eni_store_weights(shard->store, h->bucket, NULL)) return false;
    if (!delay(shard, packet, eni_now_ns() + TRY_AGAIN_MS * ENI_MILLI, true)) return false;
    packet->owner = NULL; /* it was moved */
    return true;
}

static void on_partition(eni_shard *shard, eni_packet *packet, eni_store_event_type type)
{
    const eni_header h = packet->header;
    eni_store_event event = {
        .type = type,
        .client = h.rank,
        .incarnation = h.incarnation,
        .ticket = ticket_of(packet),
        .bucket = h.bucket,
        .seq = type == ENI_STORE_INIT ? h.step : h.seq,
        .kind = h.kind,
        .what = h.what,
        .is_replay = (h.flags & ENI_FLAG_REPLAY) != 0,
        .base_version = h.base_version,
        .nsamples = h.nsamples,
        .covered = h.covered,
    };
    if (type == ENI_STORE_CALL && event.is_replay && replay(shard, packet)) return;
    if (type != ENI_STORE_SNAPSHOT && !find_payload(shard, packet, &event.payload)) return;
    step(shard, &event, &h);
    if (shard->saves == NULL) return;
    if (type == ENI_STORE_CALL) eni_shard_save_called(shard, h.rank);
    if (type == ENI_STORE_INIT) eni_shard_save_begun(shard);
}

/* ---- weights kept for rank 0's curve ---------------------------------------------------------------------
 *
 * The store is not involved: it is read between two events. */

typedef struct eni_kept_past {
    uint64_t version, steps, samples, count;
} eni_kept_past;

static size_t kept_bytes(const eni_shard *shard, uint32_t nbuckets)
{
    size_t bytes = 0;
    for (uint32_t b = 0; b < nbuckets; b++)
        bytes += sizeof(eni_kept_past) + eni_store_count(shard->store, b) * sizeof(float);
    return bytes;
}

static en_status keep(eni_shard *shard, uint32_t number)
{
    const uint32_t n = shard->config.setup->store.nbuckets;
    eni_shard_kept *kept = &shard->kept;
    void *room;
    kept->found = NULL;
    if (kept->copies == NULL) { /* the curve has the other half */
        EN_TRY(eni_copies_open("", shard->config.out, kept_bytes(shard, n), &kept->copies));
        eni_copies_expect(kept->copies, 0, ENI_COPIES_HOST_BYTES / 2 / (uint64_t)shard->config.nshards);
    }
    if (!eni_copies_takes(kept->copies, number)) return EN_OK;
    EN_TRY(eni_copies_add(kept->copies, &(eni_copy_note){.number = number}, &room));
    if (room == NULL) return EN_OK;
    for (uint32_t b = 0; b < n; b++) {
        eni_kept_past past = {.count = eni_store_count(shard->store, b)};
        const float *weights = eni_store_weights(shard->store, b, &past.version);
        eni_store_past(shard->store, b, &past.steps, &past.samples);
        memcpy(room, &past, sizeof past);
        if (weights != NULL) memcpy((char *)room + sizeof past, weights, past.count * sizeof(float));
        room = (char *)room + sizeof past + past.count * sizeof(float);
    }
    return EN_OK;
}

/* The copy of that number; frees older ones. NULL if it is not here. */
static const void *find_kept(eni_shard *shard, uint32_t number)
{
    eni_shard_kept *kept = &shard->kept;
    uint32_t i = 0;
    if (kept->copies == NULL || (kept->found != NULL && kept->number == number)) return kept->found;
    while (i < eni_copies_count(kept->copies) && eni_copies_note(kept->copies, i)->number < number)
        i++;
    eni_copies_forget(kept->copies, 0, i);
    kept->number = number;
    kept->found = NULL;
    if (eni_copies_count(kept->copies) == 0 || eni_copies_note(kept->copies, 0)->number != number)
        return NULL;
    if (kept->room == NULL) kept->room = eni_alloc(kept_bytes(shard, shard->config.setup->store.nbuckets));
    if (kept->room != NULL) kept->found = eni_copies_read(kept->copies, 0, kept->room);
    return kept->found;
}

static void show_kept(eni_shard *shard, const eni_packet *packet)
{
    const eni_header *h = &packet->header;
    eni_store_action action = {.type = ENI_STORE_REPLY,
                               .client = h->rank,
                               .ticket = ticket_of(packet),
                               .bucket = h->bucket,
                               .version = ENI_KEPT_NOWHERE};
    const char *copy = find_kept(shard, (uint32_t)h->step);
    if (copy != NULL) {
        eni_kept_past past;
        copy += kept_bytes(shard, h->bucket);
        memcpy(&past, copy, sizeof past);
        action.version = action.met = past.version;
        action.steps = past.steps;
        action.samples = past.samples;
        action.count = past.count;
        action.data = (const float *)(const void *)(copy + sizeof past);
        shard->figures.kept_bytes += past.count * sizeof(float);
    }
    reply(shard, &action);
}

/* Rank 0 does not wait for an answer, but a ring has a place for each one. */
static void on_keep(eni_shard *shard, const eni_packet *packet)
{
    eni_header header = {.type = ENI_MSG_REPLY,
                         .rank = packet->header.rank,
                         .kind = ENI_SNAPSHOT_KEEP,
                         .bucket = packet->header.bucket};
    (void)!keep(shard, (uint32_t)packet->header.step); /* logged; rank 0 will find that the copy is missing */
    if (packet->source == ENI_SHARD_RING) post(shard, packet, &header, NULL);
}

static void on_kept(eni_shard *shard, const eni_packet *packet)
{
    const eni_header *h = &packet->header;
    if (h->rank != 0)
        eni_shard_refuse(shard, packet, EN_EPROTO,
                         "only rank 0 may ask for copies for the curve, not rank %d", h->rank);
    else if (h->kind == ENI_SNAPSHOT_KEEP)
        on_keep(shard, packet);
    else if (eni_store_count(shard->store, h->bucket) > 0)
        show_kept(shard, packet);
    else
        eni_shard_refuse(shard, packet, EN_EPROTO, "bucket %u has no elements on shard %d", h->bucket,
                         shard->config.index);
}

void eni_shard_handle(eni_shard *shard, eni_packet *packet)
{
    switch (packet->header.type) {
    case ENI_MSG_CALL: on_partition(shard, packet, ENI_STORE_CALL); break;
    case ENI_MSG_SNAPSHOT:
        if (packet->header.kind == ENI_SNAPSHOT_KEEP || packet->header.kind == ENI_SNAPSHOT_KEPT)
            on_kept(shard, packet);
        else
            on_partition(shard, packet, ENI_STORE_SNAPSHOT);
        break;
    case ENI_MSG_FINISHED: on_finished(shard, packet); break;
    case ENI_MSG_INIT:
        if (packet->header.rank == 0)
            on_partition(shard, packet, ENI_STORE_INIT);
        else
            eni_shard_refuse(shard, packet, EN_EPROTO, "only rank 0 may send initial weights, not rank %d",
                             packet->header.rank);
        break;
    default: eni_shard_refuse(shard, packet, EN_EPROTO, "unexpected message (type %u)", packet->header.type);
    }
    eni_packet_release(packet); /* unless it moved into a box */
}

/* Handles a message whose first byte has arrived, as soon as the rest has. */
static void let_in(eni_shard *shard, eni_packet *packet, int64_t now_ns)
{
    const int64_t latest = now_ns + DELAY_MAX_S * ENI_SECOND;
    int64_t ready =
        eni_shaper_recv(shard->config.shaper, packet->header.deliver_ns, packet->bytes + ENI_HEADER_CHARGE);
    if (ready > latest) ready = latest;
    if (ready <= now_ns || !delay(shard, packet, ready, true)) eni_shard_handle(shard, packet);
}

void eni_shard_take(eni_shard *shard, eni_packet *packet)
{
    if (packet->header.type == ENI_MSG_HELLO) {
        on_hello(shard, packet);
        eni_packet_release(packet);
        return;
    }
    if (!is_believed(shard, packet)) {
        shard->figures.refusals.unknown++;
        eni_shard_refuse(
            shard, packet, EN_EDENIED,
            "a message for rank %d came over a connection that has not sent HELLO for it in this run",
            packet->header.rank);
        eni_packet_release(packet);
        return;
    }
    if (shard->config.shaper == NULL) { /* stamps count only where a network is emulated */
        eni_shard_handle(shard, packet);
        return;
    }
    const int64_t now = eni_now_ns();
    const int64_t first =
        eni_shaper_first(shard->config.shaper, packet->header.deliver_ns, packet->bytes + ENI_HEADER_CHARGE);
    const bool is_early = first > now && first <= now + DELAY_MAX_S * ENI_SECOND;
    if (is_early && delay(shard, packet, first, false)) return;
    eni_shard_take_delayed(shard, now); /* those whose first byte was here before */
    let_in(shard, packet, now);
}

void eni_shard_take_delayed(eni_shard *shard, int64_t now_ns)
{
    while (shard->delays.n > 0 && shard->delays.list[shard->delays.n - 1].ready_ns <= now_ns) {
        eni_delayed next = shard->delays.list[--shard->delays.n];
        if (next.is_whole)
            eni_shard_handle(shard, &next.packet);
        else
            let_in(shard, &next.packet, now_ns);
    }
}
