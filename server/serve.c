/* serve.c - what a shard does with a message.
 *
 *     HELLO   is checked against the token and this run; from then on the connection speaks for its rank
 *     others  are believed only over that connection, and wait until an emulated wire would deliver them;
 *             CALL, INIT, SNAPSHOT and FINISHED become events of the store, whose actions answer.c sends
 *
 * Members and timers of the store are its events too, so they stand here. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "runtime/store/store_save.h"
#include "server/shard_impl.h"

enum {
    DELAY_MAX_S = 10,    /* no stamp makes us keep a message for longer */
    DELAY_MAX = 1 << 16, /* nor so many at once: those beyond are handled as they come */
    TRY_AGAIN_MS = 5     /* a call that is sent again waits so long for rank 0's INIT to be, too */
};

/* ---- the store ----------------------------------------------------------------------------------------- */

static void step(eni_shard *shard, eni_store_event *event, const eni_header *header)
{
    const uint64_t bytes = event->payload.count * sizeof(float);
    event->now_ns = eni_now_ns();
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
        case ENI_STORE_REPLY:
            eni_shard_reply(shard, action, eni_shard_stable(shard, action->client, action->bucket));
            break;
        case ENI_STORE_REFUSE: eni_shard_refuse_call(shard, action); break;
        case ENI_STORE_TIMER_AT: shard->timer_ns = action->when_ns; break;
        }
    }
}

void eni_shard_tick(eni_shard *shard, int64_t now_ns)
{
    if (now_ns < shard->timer_ns) return;
    shard->timer_ns = INT64_MAX;
    eni_store_event event = {.type = ENI_STORE_TIMER};
    step(shard, &event, NULL);
}

void eni_shard_join_all(eni_shard *shard)
{
    for (int32_t r = 0; r < shard->config.nranks && shard->status == EN_OK; r++) {
        if (!shard->config.is_client[r]) continue;
        eni_store_event event = {.type = ENI_STORE_MEMBER,
                                 .client = r,
                                 .member = EN_MEMBER_JOINED,
                                 .incarnation = shard->config.incarnation};
        step(shard, &event, NULL);
    }
}

void eni_shard_lose(eni_shard *shard, int32_t rank)
{
    if (!shard->config.is_client[rank]) return;
    eni_store_event event = {.type = ENI_STORE_MEMBER,
                             .client = rank,
                             .member = EN_MEMBER_LEFT,
                             .incarnation = shard->config.incarnation};
    step(shard, &event, NULL);
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
static int payload_of_message(eni_shard *shard, eni_packet *packet, eni_payload *payload_out)
{
    eni_box *box = shard->idle;
    if (box)
        shard->idle = box->next;
    else if (!(box = eni_alloc(sizeof *box)))
        return 0;
    *box = (eni_box){.packet = *packet, .shard = shard};
    packet->owner = NULL;
    *payload_out = (eni_payload){.data = (float *)(void *)box->packet.payload,
                                 .count = box->packet.bytes / sizeof(float),
                                 .release = release_box,
                                 .owner = box};
    return 1;
}

/* Finds the payload of a CALL or INIT. 0: refused. */
static int find_payload(eni_shard *shard, eni_packet *packet, eni_payload *payload_out)
{
    const eni_header *h = &packet->header;
    const uint64_t count = eni_store_count(shard->store, h->bucket);
    if (h->bytes == 0 && (h->count == 0 || h->count == count)) return 1;
    if (packet->is_damaged) {
        shard->figures.refusals.damaged++;
        eni_shard_refuse(shard, packet, EN_EPROTO,
                         "call %" PRIu64
                         " of rank %d to bucket %u was damaged on its way (checksum): memory, network "
                         "card or cable; it was not added",
                         h->seq, h->rank, h->bucket);
        return 0;
    }
    if (h->dtype != ENI_DTYPE_F32 || h->codec != ENI_CODEC_NONE || h->bytes != count * sizeof(float) ||
        h->count != count || count == 0) {
        shard->figures.refusals.payload++;
        eni_shard_refuse(shard, packet, EN_EPROTO,
                         "%" PRIu64 " elements in %" PRIu64
                         " bytes (type %u, codec %u) for bucket %u, of which shard %d has %" PRIu64
                         " elements",
                         h->count, h->bytes, h->dtype, h->codec, h->bucket, shard->config.index, count);
        return 0;
    }
    if (!(h->flags & ENI_FLAG_SHM)) {
        if (payload_of_message(shard, packet, payload_out)) return 1;
        eni_shard_refuse(shard, packet, EN_ENOMEM, "psd is out of memory");
        return 0;
    }
    const eni_arena *arena = eni_arenas_find(shard->config.arenas, h->rank);
    if (!arena || h->slot >= eni_arena_nslots(arena)) {
        shard->figures.refusals.payload++;
        eni_shard_refuse(shard, packet, EN_EPROTO, "rank %d names slot %u of a memory that psd does not have",
                         h->rank, h->slot);
        return 0;
    }
    shard->figures.shm_bytes += h->bytes;
    *payload_out = (eni_payload){.data = eni_shard_arena_at(shard, arena, h->slot, h->bucket),
                                 .count = count,
                                 .flags = ENI_PAYLOAD_BORROWED | ENI_PAYLOAD_READ_ONLY};
    return 1;
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
    if (h->rank < 0 || h->rank >= shard->config.nranks || h->epoch != shard->config.epoch ||
        h->incarnation != shard->config.incarnation || (int32_t)h->shard != shard->config.index) {
        shard->figures.refusals.member++;
        eni_shard_refuse(shard, packet, EN_EMEMBER,
                         "HELLO of rank %d, epoch %u, incarnation %" PRIu64
                         " to shard %u: this is shard %d of a run of %d "
                         "ranks in epoch %u",
                         h->rank, h->epoch, h->incarnation, h->shard, shard->config.index,
                         shard->config.nranks, shard->config.epoch);
        return;
    }
    eni_route *route = &shard->route[h->rank];
    route->bytes = packet->route_bytes;
    memcpy(route->route, packet->route, sizeof route->route);
    eni_router_admit(shard->router, packet);
    eni_header header = {.type = ENI_MSG_WELCOME, .rank = h->rank};
    eni_shard_post(shard, packet, &header, NULL);
}

/* Whether the message came over the connection that said HELLO for its rank. */
static int is_believed(const eni_shard *shard, const eni_packet *packet)
{
    const eni_header *h = &packet->header;
    if (h->rank < 0 || h->rank >= shard->config.nranks || h->epoch != shard->config.epoch ||
        h->incarnation != shard->config.incarnation || (int32_t)h->shard != shard->config.index)
        return 0;
    const eni_route *route = &shard->route[h->rank];
    return route->bytes > 0 && route->bytes == packet->route_bytes &&
           memcmp(route->route, packet->route, route->bytes) == 0;
}

static void on_finished(eni_shard *shard, const eni_packet *packet)
{
    const int32_t rank = packet->header.rank;
    eni_store_event event = {.type = ENI_STORE_MEMBER,
                             .client = rank,
                             .member = EN_MEMBER_FINISHED,
                             .incarnation = packet->header.incarnation};
    step(shard, &event, &packet->header);
    if (eni_shard_save_finished(shard, rank))
        eni_shard_goodbye(shard, rank, eni_shard_is_secure(shard, rank));
}

/* ---- calls that are sent again, for this psd may have come back without them --------------------------- */

static void answer_done(eni_shard *shard, const eni_packet *packet)
{
    const eni_header *h = &packet->header;
    eni_header header = {.type = ENI_MSG_REPLY,
                         .flags = ENI_FLAG_REPEAT,
                         .rank = h->rank,
                         .bucket = h->bucket,
                         .seq = h->seq,
                         .count = h->count,
                         .stable = eni_shard_stable(shard, h->rank, h->bucket)};
    eni_store_weights(shard->store, h->bucket, &header.version);
    header.base_version = header.version;
    eni_shard_post(shard, packet, &header, NULL);
}

static int delay(eni_shard *shard, const eni_packet *packet, int64_t ready_ns);

/* What the store need not, or cannot yet, see of them. 1: that was all. */
static int replay(eni_shard *shard, eni_packet *packet)
{
    const eni_header *h = &packet->header;
    const uint64_t taken = eni_store_seq(shard->store, h->rank, h->bucket);
    if (eni_store_count(shard->store, h->bucket) == 0) return 0;
    if (h->seq == 0) { /* the question how far the partition is stable */
        if (eni_shard_stable(shard, h->rank, h->bucket) < taken) eni_shard_save_ask(shard);
        answer_done(shard, packet);
        return 1;
    }
    if (h->seq < taken || (h->seq == taken && eni_shard_has_finished(shard, h->rank))) {
        answer_done(shard, packet);
        return 1;
    }
    if (h->seq > taken + 1) {
        eni_shard_refuse(shard, packet, EN_EPROTO,
                         "psd came back from an older state than it had promised: it has call %" PRIu64
                         " of rank %d to bucket %u, and the next one that the rank has kept is call %" PRIu64,
                         taken, h->rank, h->bucket, h->seq);
        return 1;
    }
    if (eni_store_weights(shard->store, h->bucket, NULL)) return 0;
    if (!delay(shard, packet, eni_now_ns() + TRY_AGAIN_MS * ENI_MILLI)) return 0;
    packet->owner = NULL; /* it has moved */
    return 1;
}

static void on_partition(eni_shard *shard, eni_packet *packet, eni_store_event_type type)
{
    const eni_header h = packet->header;
    eni_store_event event = {
        .type = type,
        .client = h.rank,
        .incarnation = h.incarnation,
        .ticket = eni_shard_ticket(packet),
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
    if (type == ENI_STORE_CALL) eni_shard_save_called(shard, h.rank);
    if (type == ENI_STORE_INIT) eni_shard_save_begun(shard);
}

void eni_shard_handle(eni_shard *shard, eni_packet *packet)
{
    switch (packet->header.type) {
    case ENI_MSG_CALL: on_partition(shard, packet, ENI_STORE_CALL); break;
    case ENI_MSG_SNAPSHOT: on_partition(shard, packet, ENI_STORE_SNAPSHOT); break;
    case ENI_MSG_FINISHED: on_finished(shard, packet); break;
    case ENI_MSG_INIT:
        if (packet->header.rank == 0)
            on_partition(shard, packet, ENI_STORE_INIT);
        else
            eni_shard_refuse(shard, packet, EN_EPROTO, "initial weights are rank 0's to send, not rank %d's",
                             packet->header.rank);
        break;
    default:
        eni_shard_refuse(shard, packet, EN_EPROTO, "a message of type %u is nothing for psd",
                         packet->header.type);
    }
    eni_packet_release(packet); /* unless it moved into a box */
}

static int more_room(eni_shard *shard)
{
    const uint32_t room = shard->delayed_room ? 2 * shard->delayed_room : 64;
    eni_delayed *delayed = room > DELAY_MAX ? NULL : realloc(shard->delayed, room * sizeof *delayed);
    if (!delayed) return 0;
    shard->delayed = delayed;
    shard->delayed_room = room;
    return 1;
}

/* Puts a message where the last to become ready comes first. 0: there is no room. */
static int delay(eni_shard *shard, const eni_packet *packet, int64_t ready_ns)
{
    if (shard->ndelayed == shard->delayed_room && !more_room(shard)) return 0;
    uint32_t at = shard->ndelayed++;
    for (; at > 0 && shard->delayed[at - 1].ready_ns <= ready_ns; at--)
        shard->delayed[at] = shard->delayed[at - 1];
    shard->delayed[at] = (eni_delayed){*packet, ready_ns};
    return 1;
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
        eni_shard_refuse(shard, packet, EN_EDENIED,
                         "a message for rank %d came over a connection that has not said HELLO "
                         "for it in this run",
                         packet->header.rank);
        eni_packet_release(packet);
        return;
    }
    const int64_t now = eni_now_ns(), latest = now + DELAY_MAX_S * ENI_SECOND;
    int64_t ready = 0; /* a stamp means something where a network is emulated, and nowhere else */
    if (shard->config.shaper)
        ready = eni_shaper_recv(shard->config.shaper, packet->header.deliver_ns,
                                packet->bytes + ENI_HEADER_CHARGE);
    if (ready > latest) ready = latest;
    if (ready <= now || !delay(shard, packet, ready)) eni_shard_handle(shard, packet);
}

void eni_shard_take_delayed(eni_shard *shard, int64_t now_ns)
{
    while (shard->ndelayed > 0 && shard->delayed[shard->ndelayed - 1].ready_ns <= now_ns) {
        eni_packet packet = shard->delayed[--shard->ndelayed].packet;
        eni_shard_handle(shard, &packet);
    }
}
