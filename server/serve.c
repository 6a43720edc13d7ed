/* serve.c - what a lane does with a message.
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
#include "core/mutation.h"
#include "runtime/store/store_save.h"
#include "server/lane_save.h"

enum {
    LATE_MAX_S = 10,    /* no stamp makes us keep a message for longer */
    LATE_MAX = 1 << 16, /* nor so many at once: those beyond are handled as they come */
    TRY_AGAIN_MS = 5    /* a call that is sent again waits so long for rank 0's INIT to be, too */
};

/* ---- the store ----------------------------------------------------------------------------------------- */

static void step(eni_lane *lane, eni_store_event *event, const eni_header *header)
{
    const uint64_t bytes = event->payload.count * sizeof(float);
    event->now_ns = eni_now_ns();
    lane->status = eni_store_step(lane->store, event, &lane->actions);
    const int64_t end_ns = eni_now_ns();
    lane->figures.update_ns += end_ns - event->now_ns;
    if (bytes > 0)
        eni_trace_span(lane->config.trace, ENI_TRACE_LANE0 + lane->config.shard, "update", event->now_ns,
                       end_ns, (int64_t)header->step, (int)event->bucket, bytes);
    if (lane->status != EN_OK) return;
    for (uint32_t i = 0; i < lane->actions.n; i++) {
        const eni_store_action *action = &lane->actions.item[i];
        switch (action->type) {
        case ENI_STORE_REPLY:
            eni_lane_reply(lane, action, eni_lane_stable(lane, action->client, action->bucket));
            break;
        case ENI_STORE_REFUSE: eni_lane_refuse_call(lane, action); break;
        case ENI_STORE_TIMER_AT: lane->timer_ns = action->when_ns; break;
        }
    }
}

void eni_lane_tick(eni_lane *lane, int64_t now_ns)
{
    if (now_ns < lane->timer_ns) return;
    lane->timer_ns = INT64_MAX;
    eni_store_event event = {.type = ENI_STORE_TIMER};
    step(lane, &event, NULL);
}

void eni_lane_join_all(eni_lane *lane)
{
    for (int32_t r = 0; r < lane->config.nranks && lane->status == EN_OK; r++) {
        if (!lane->config.is_client[r]) continue;
        eni_store_event event = {.type = ENI_STORE_MEMBER,
                                 .client = r,
                                 .member = EN_MEMBER_JOINED,
                                 .incarnation = lane->config.incarnation};
        step(lane, &event, NULL);
    }
}

void eni_lane_lose(eni_lane *lane, int32_t rank)
{
    if (!lane->config.is_client[rank]) return;
    eni_store_event event = {.type = ENI_STORE_MEMBER,
                             .client = rank,
                             .member = EN_MEMBER_LEFT,
                             .incarnation = lane->config.incarnation};
    step(lane, &event, NULL);
}

/* ---- payloads ------------------------------------------------------------------------------------------ */

static void release_box(void *owner)
{
    eni_box *box = owner;
    eni_packet_release(&box->packet);
    box->next = box->lane->idle;
    box->lane->idle = box;
}

/* Moves the packet into a box, so that its payload lives until the store is done with it. */
static int payload_of_message(eni_lane *lane, eni_packet *packet, eni_payload *payload_out)
{
    eni_box *box = lane->idle;
    if (box)
        lane->idle = box->next;
    else if (!(box = eni_alloc(sizeof *box)))
        return 0;
    *box = (eni_box){.packet = *packet, .lane = lane};
    packet->owner = NULL;
    *payload_out = (eni_payload){.data = (float *)(void *)box->packet.payload,
                                 .count = box->packet.bytes / sizeof(float),
                                 .release = release_box,
                                 .owner = box};
    return 1;
}

/* Finds the payload of a CALL or INIT. 0: refused. */
static int find_payload(eni_lane *lane, eni_packet *packet, eni_payload *payload_out)
{
    const eni_header *h = &packet->header;
    const uint64_t count = eni_store_count(lane->store, h->bucket);
    if (h->bytes == 0 && (h->count == 0 || h->count == count)) return 1;
    if (packet->is_damaged) {
        lane->figures.refusals.damaged++;
        eni_lane_refuse(lane, packet, EN_EPROTO,
                        "call %" PRIu64
                        " of rank %d to bucket %u was damaged on its way (checksum): memory, network "
                        "card or cable; it was not added",
                        h->seq, h->rank, h->bucket);
        return 0;
    }
    if (h->dtype != ENI_DTYPE_F32 || h->codec != ENI_CODEC_NONE || h->bytes != count * sizeof(float) ||
        h->count != count || count == 0) {
        lane->figures.refusals.payload++;
        eni_lane_refuse(lane, packet, EN_EPROTO,
                        "%" PRIu64 " elements in %" PRIu64
                        " bytes (type %u, codec %u) for bucket %u, of which shard %d has %" PRIu64
                        " elements",
                        h->count, h->bytes, h->dtype, h->codec, h->bucket, lane->config.shard, count);
        return 0;
    }
    if (!(h->flags & ENI_FLAG_SHM)) {
        if (payload_of_message(lane, packet, payload_out)) return 1;
        eni_lane_refuse(lane, packet, EN_ENOMEM, "psd is out of memory");
        return 0;
    }
    const eni_arena *arena = eni_arenas_find(lane->config.arenas, h->rank);
    if (!arena || h->slot >= eni_arena_nslots(arena)) {
        lane->figures.refusals.payload++;
        eni_lane_refuse(lane, packet, EN_EPROTO, "rank %d names slot %u of a memory that psd does not have",
                        h->rank, h->slot);
        return 0;
    }
    lane->figures.shm_bytes += h->bytes;
    *payload_out = (eni_payload){.data = eni_lane_arena_at(lane, arena, h->slot, h->bucket),
                                 .count = count,
                                 .flags = ENI_PAYLOAD_BORROWED | ENI_PAYLOAD_READ_ONLY};
    return 1;
}

/* ---- messages ------------------------------------------------------------------------------------------ */

static void on_hello(eni_lane *lane, const eni_packet *packet)
{
    const eni_header *h = &packet->header;
    eni_token token;
    if ((eni_token_parse(h->text, &token) != EN_OK || !eni_token_equal(&token, &lane->config.token)) &&
        !eni_mutant("no-token-at-lane")) {
        lane->figures.refusals.token++;
        eni_lane_refuse(lane, packet, EN_EDENIED,
                        "the job token does not match: this psd belongs to another run");
        return;
    }
    if (h->rank < 0 || h->rank >= lane->config.nranks || h->epoch != lane->config.epoch ||
        h->incarnation != lane->config.incarnation || (int32_t)h->shard != lane->config.shard) {
        lane->figures.refusals.member++;
        eni_lane_refuse(lane, packet, EN_EMEMBER,
                        "HELLO of rank %d, epoch %u, incarnation %" PRIu64
                        " to shard %u: this is shard %d of a run of %d "
                        "ranks in epoch %u",
                        h->rank, h->epoch, h->incarnation, h->shard, lane->config.shard, lane->config.nranks,
                        lane->config.epoch);
        return;
    }
    eni_route *route = &lane->route[h->rank];
    route->bytes = packet->route_bytes;
    memcpy(route->route, packet->route, sizeof route->route);
    eni_router_admit(lane->router, packet);
    eni_header header = {.type = ENI_MSG_WELCOME, .rank = h->rank};
    eni_lane_post(lane, packet, &header, NULL);
}

/* Whether the message came over the connection that said HELLO for its rank. */
static int is_believed(const eni_lane *lane, const eni_packet *packet)
{
    const eni_header *h = &packet->header;
    const int is_of_now = h->epoch == lane->config.epoch || eni_mutant("stale-epoch");
    if (h->rank < 0 || h->rank >= lane->config.nranks || !is_of_now ||
        h->incarnation != lane->config.incarnation || (int32_t)h->shard != lane->config.shard)
        return 0;
    const eni_route *route = &lane->route[h->rank];
    return route->bytes > 0 && route->bytes == packet->route_bytes &&
           memcmp(route->route, packet->route, route->bytes) == 0;
}

static void on_finished(eni_lane *lane, const eni_packet *packet)
{
    const int32_t rank = packet->header.rank;
    eni_store_event event = {.type = ENI_STORE_MEMBER,
                             .client = rank,
                             .member = EN_MEMBER_FINISHED,
                             .incarnation = packet->header.incarnation};
    step(lane, &event, &packet->header);
    if (eni_lane_save_finished(lane, rank)) eni_lane_goodbye(lane, rank, eni_lane_is_secure(lane, rank));
}

/* ---- calls that are sent again, for this psd may have come back without them --------------------------- */

static void answer_done(eni_lane *lane, const eni_packet *packet)
{
    const eni_header *h = &packet->header;
    eni_header header = {.type = ENI_MSG_REPLY,
                         .flags = ENI_FLAG_REPEAT,
                         .rank = h->rank,
                         .bucket = h->bucket,
                         .seq = h->seq,
                         .count = h->count,
                         .stable = eni_lane_stable(lane, h->rank, h->bucket)};
    eni_store_weights(lane->store, h->bucket, &header.version);
    header.base_version = header.version;
    eni_lane_post(lane, packet, &header, NULL);
}

static int delay(eni_lane *lane, const eni_packet *packet, int64_t ready_ns);

/* What the store need not, or cannot yet, see of them. 1: that was all. */
static int replay(eni_lane *lane, eni_packet *packet)
{
    const eni_header *h = &packet->header;
    const uint64_t taken = eni_store_seq(lane->store, h->rank, h->bucket);
    if (eni_store_count(lane->store, h->bucket) == 0) return 0;
    if (h->seq == 0) { /* the question how far the cell is stable */
        if (eni_lane_stable(lane, h->rank, h->bucket) < taken) eni_lane_save_ask(lane);
        answer_done(lane, packet);
        return 1;
    }
    if (h->seq < taken || (h->seq == taken && eni_lane_has_finished(lane, h->rank))) {
        answer_done(lane, packet);
        return 1;
    }
    if (h->seq > taken + 1) {
        eni_lane_refuse(lane, packet, EN_EPROTO,
                        "psd came back from an older state than it had promised: it has call %" PRIu64
                        " of rank %d to bucket %u, and the next one that the rank has kept is call %" PRIu64,
                        taken, h->rank, h->bucket, h->seq);
        return 1;
    }
    if (eni_store_weights(lane->store, h->bucket, NULL)) return 0;
    if (!delay(lane, packet, eni_now_ns() + TRY_AGAIN_MS * ENI_MILLI)) return 0;
    packet->owner = NULL; /* it has moved */
    return 1;
}

static void on_cell(eni_lane *lane, eni_packet *packet, eni_store_event_type type)
{
    const eni_header h = packet->header;
    eni_store_event event = {
        .type = type,
        .client = h.rank,
        .incarnation = h.incarnation,
        .ticket = eni_lane_ticket(packet),
        .bucket = h.bucket,
        .seq = type == ENI_STORE_INIT ? h.step : h.seq,
        .kind = h.kind,
        .what = h.what,
        .is_replay = (h.flags & ENI_FLAG_REPLAY) != 0,
        .base_version = h.base_version,
        .nsamples = h.nsamples,
        .covered = h.covered,
    };
    if (type == ENI_STORE_CALL && event.is_replay && replay(lane, packet)) return;
    if (type != ENI_STORE_SNAPSHOT && !find_payload(lane, packet, &event.payload)) return;
    step(lane, &event, &h);
    if (type == ENI_STORE_CALL) eni_lane_save_called(lane, h.rank);
    if (type == ENI_STORE_INIT) eni_lane_save_begun(lane);
}

void eni_lane_handle(eni_lane *lane, eni_packet *packet)
{
    switch (packet->header.type) {
    case ENI_MSG_CALL: on_cell(lane, packet, ENI_STORE_CALL); break;
    case ENI_MSG_SNAPSHOT: on_cell(lane, packet, ENI_STORE_SNAPSHOT); break;
    case ENI_MSG_FINISHED: on_finished(lane, packet); break;
    case ENI_MSG_INIT:
        if (packet->header.rank == 0)
            on_cell(lane, packet, ENI_STORE_INIT);
        else
            eni_lane_refuse(lane, packet, EN_EPROTO, "initial weights are rank 0's to send, not rank %d's",
                            packet->header.rank);
        break;
    default:
        eni_lane_refuse(lane, packet, EN_EPROTO, "a message of type %u is nothing for psd",
                        packet->header.type);
    }
    eni_packet_release(packet); /* unless it moved into a box */
}

static int more_room(eni_lane *lane)
{
    const uint32_t room = lane->late_room ? 2 * lane->late_room : 64;
    eni_late *late = room > LATE_MAX ? NULL : realloc(lane->late, room * sizeof *late);
    if (!late) return 0;
    lane->late = late;
    lane->late_room = room;
    return 1;
}

/* Puts a message where the last to become ready comes first. 0: there is no room. */
static int delay(eni_lane *lane, const eni_packet *packet, int64_t ready_ns)
{
    if (lane->nlate == lane->late_room && !more_room(lane)) return 0;
    uint32_t at = lane->nlate++;
    for (; at > 0 && lane->late[at - 1].ready_ns <= ready_ns; at--)
        lane->late[at] = lane->late[at - 1];
    lane->late[at] = (eni_late){*packet, ready_ns};
    return 1;
}

void eni_lane_take(eni_lane *lane, eni_packet *packet)
{
    if (packet->header.type == ENI_MSG_HELLO) {
        on_hello(lane, packet);
        eni_packet_release(packet);
        return;
    }
    if (!is_believed(lane, packet)) {
        lane->figures.refusals.unknown++;
        eni_lane_refuse(lane, packet, EN_EDENIED,
                        "a message for rank %d came over a connection that has not said HELLO "
                        "for it in this run",
                        packet->header.rank);
        eni_packet_release(packet);
        return;
    }
    const int64_t now = eni_now_ns(), latest = now + LATE_MAX_S * ENI_SECOND;
    int64_t ready = 0; /* a stamp means something where a network is emulated, and nowhere else */
    if (lane->config.shaper)
        ready = eni_shaper_recv(lane->config.shaper, packet->header.deliver_ns,
                                packet->bytes + ENI_HEADER_CHARGE);
    if (ready > latest) ready = latest;
    if (ready <= now || !delay(lane, packet, ready)) eni_lane_handle(lane, packet);
}

void eni_lane_take_late(eni_lane *lane, int64_t now_ns)
{
    while (lane->nlate > 0 && lane->late[lane->nlate - 1].ready_ns <= now_ns) {
        eni_packet packet = lane->late[--lane->nlate].packet;
        eni_lane_handle(lane, &packet);
    }
}
