/* client.c - see client.h.
 *
 * Order of things. A cell has at most one message in flight, so (bucket, shard) identifies a reply. Replies
 * of different cells come in any order. An emulated wire (--net) makes a reply usable later than it arrives:
 * such replies wait in `delayed` until their time. */
#include <string.h>

#include "ops/mean.h"
#include "runtime/client/client_impl.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

enum { SLICE_NS = 20000000 }; /* how long a wait goes without looking whether the peers live */

static float *cell_address(const eni_client *client, int slot, uint32_t bucket, const eni_client_cell *c)
{
    return eni_arena_at(client->config.arena, (uint32_t)slot,
                        client->config.buckets->bucket[bucket].lo + c->lo);
}

static en_status alive(const eni_client *client)
{
    return client->config.alive == NULL ? EN_OK : client->config.alive(client->config.user);
}

/* ---- sending ---- */

static void payload_released(void *memory, void *hint)
{
    (void)memory;
    eni_client *client = hint;
    atomic_fetch_sub(&client->lent, 1);
}

eni_header eni_client_header(const eni_client *client, uint32_t type)
{
    return (eni_header){.type = type,
                        .rank = client->config.rank,
                        .dtype = ENI_DTYPE_F32,
                        .codec = ENI_CODEC_NONE,
                        .incarnation = client->config.incarnation};
}

/* With `keep` a dealer that takes nothing may be one whose psd is gone: the message is among those that are
 * sent again. */
en_status eni_client_send(eni_client *client, int shard, eni_header *header, float *payload, int is_lent)
{
    const eni_release release = payload != NULL && is_lent ? payload_released : NULL;
    const int64_t now = eni_now_ns(), deadline = now + 60 * ENI_SECOND;
    uint64_t on_wire = payload == NULL ? 0 : header->bytes;
    header->shard = (uint32_t)shard;
    header->epoch = client->epoch;
    header->deliver_ns = eni_shaper_send(client->config.shaper, now, on_wire + 128);
    const int is_question =
        header->type == ENI_MSG_CALL || header->type == ENI_MSG_INIT || header->type == ENI_MSG_SNAPSHOT;
    if (is_question && header->flags & ENI_FLAG_SHM && client->bells != NULL &&
        eni_bells_may_ask(client->bells, (uint32_t)shard)) {
        eni_bells_ask(client->bells, (uint32_t)shard, header);
        return EN_OK;
    }
    client->by_socket += (uint64_t)is_question;
    for (;;) {
        if (release != NULL) atomic_fetch_add(&client->lent, 1);
        en_status st = eni_dealer_send(client->dealers[shard], header, payload, release, client,
                                       client->config.keep > 0 ? 0 : deadline, client->config.wake_fd);
        if (st != EN_ETIMEOUT || client->config.keep == 0) return st;
        EN_TRY(alive(client));
        if (eni_client_is_outdated(client)) return EN_OK;
        eni_sleep_until(eni_now_ns() + ENI_MILLI);
    }
}

/* Which memory of ours is read, and where the answer goes. What is sent again has nothing of this and travels
 * as a message: its answer may come when nobody waits for it. */
static void point_into_arena(eni_client *client, eni_header *header, int in_slot)
{
    header->flags |= ENI_FLAG_SHM;
    header->into = in_slot == ENI_SLOT_NONE ? ENI_INTO_NOTHING : (uint32_t)in_slot;
    if (client->is_mapped && in_slot == ENI_SLOT_PARAM) header->flags |= ENI_FLAG_MAPPED;
    client->counters.shm_bytes += header->bytes;
}

static en_status send_cell(eni_client *client, eni_header header, uint32_t bucket, int shard, int out_slot)
{
    eni_client_cell *c = eni_client_cell_at(client, bucket, shard);
    float *payload = NULL;
    const float *data = NULL;
    header.bucket = bucket;
    header.shard = (uint32_t)shard;
    header.count = c->count;
    header.base_version = c->version;
    if (out_slot != ENI_SLOT_NONE) {
        data = payload = cell_address(client, out_slot, bucket, c);
        header.bytes = c->count * sizeof(float);
        header.slot = (uint32_t)out_slot;
        client->counters.payload_sent += header.bytes;
    }
    if (header.type == ENI_MSG_CALL) header.seq = c->seq + 1;
    if (header.type == ENI_MSG_INIT) {
        header.base_version = c->past_version;
        header.step = c->past_steps;
        header.nsamples = c->past_samples;
    }
    EN_TRY(eni_client_keep(client, c, &header, data));
    if (c->is_older) header.flags |= ENI_FLAG_REPLAY;
    if (header.type == ENI_MSG_CALL) c->seq++;
    if (client->is_shared) {
        point_into_arena(client, &header, client->calls[bucket].in_slot);
        payload = NULL;
    }
    c->is_push = header.type == ENI_MSG_CALL && out_slot != ENI_SLOT_NONE;
    c->awaited = header.seq;
    c->in_flight = 1;
    client->calls[bucket].pending++;
    if (c->again != NULL) return EN_OK; /* goes out when its turn comes */
    return eni_client_send(client, shard, &header, payload, 1);
}

static en_status call(eni_client *client, const eni_header *header, uint32_t bucket, int out_slot,
                      int in_slot)
{
    if (client->calls[bucket].pending > 0) {
        eni_error("client", "bucket %u already has a call in progress", bucket);
        return EN_EBUG;
    }
    EN_TRY(eni_client_tend(client));
    client->calls[bucket].in_slot = in_slot;
    client->calls[bucket].is_snapshot = header->type == ENI_MSG_SNAPSHOT;
    client->calls[bucket].is_aside = header->type == ENI_MSG_SNAPSHOT && in_slot != ENI_SLOT_PARAM;
    for (int k = 0; k < client->shards; k++)
        if (eni_client_cell_at(client, bucket, k)->count > 0)
            EN_TRY(send_cell(client, *header, bucket, k, out_slot));
    return EN_OK;
}

static en_status start(eni_client *client, eni_header header, uint32_t bucket, int out_slot, int in_slot)
{
    eni_client_enter(client);
    const en_status st = call(client, &header, bucket, out_slot, in_slot);
    eni_client_exit(client);
    return st;
}

en_status eni_client_push(eni_client *client, uint32_t bucket, uint32_t kind, uint32_t what, int out_slot,
                          int in_slot, uint64_t nsamples, uint64_t covered, uint64_t step)
{
    eni_header header = eni_client_header(client, ENI_MSG_CALL);
    header.kind = kind;
    header.what = what;
    header.nsamples = nsamples;
    header.covered = covered;
    header.step = step;
    return start(client, header, bucket, out_slot, in_slot);
}

en_status eni_client_call(eni_client *client, uint32_t type, uint32_t bucket, uint32_t kind, uint32_t what,
                          int out_slot, int in_slot, uint64_t nsamples, uint64_t step)
{
    eni_header header = eni_client_header(client, type);
    header.kind = kind;
    header.what = what;
    header.nsamples = header.covered = nsamples;
    header.step = step;
    return start(client, header, bucket, out_slot, in_slot);
}

/* ---- receiving ---- */

/* Puts a reply's weights where the call wants them, unless they are there. */
static en_status take_vector(eni_client *client, const eni_packet *packet, const eni_client_cell *c)
{
    const eni_header *h = &packet->header;
    const int in_slot = client->calls[h->bucket].in_slot, is_in_arena = (h->flags & ENI_FLAG_SHM) != 0;
    const uint32_t into = in_slot == ENI_SLOT_NONE ? ENI_INTO_NOTHING : (uint32_t)in_slot;
    const int is_read_there = client->is_mapped && in_slot == ENI_SLOT_PARAM,
              was_left_there = (h->flags & ENI_FLAG_MAPPED) != 0;
    if (h->bytes != c->count * sizeof(float)) {
        eni_error("client", "lane %u sent %llu bytes for a cell of %llu", h->shard,
                  (unsigned long long)h->bytes, (unsigned long long)(c->count * sizeof(float)));
        return EN_EPROTO;
    }
    if (is_in_arena && (!client->is_shared || (!was_left_there && h->slot != into))) {
        eni_error("client", "lane %u answered through shared memory that it was not given", h->shard);
        return EN_EPROTO;
    }
    if (is_read_there != was_left_there) {
        eni_error("client", "lane %u %s", h->shard,
                  was_left_there ? "says that its weights are mapped here, which they are not"
                                 : "copied what is mapped here: does the store of a strategy with EN_ROUNDS "
                                   "answer with something else than its weights?");
        return EN_EPROTO;
    }
    if (!is_in_arena && in_slot != ENI_SLOT_NONE)
        memcpy(cell_address(client, in_slot, h->bucket, c), packet->payload, h->bytes);
    client->counters.payload_received += h->bytes;
    if (is_in_arena) client->counters.shm_bytes += h->bytes;
    return EN_OK;
}

static en_status accept_reply(eni_client *client, const eni_packet *packet)
{
    const eni_header *h = &packet->header;
    if (h->bucket >= client->config.buckets->n || h->shard >= (uint32_t)client->shards) {
        eni_error("client", "lane %u answered for bucket %u of %u", h->shard, h->bucket,
                  client->config.buckets->n);
        return EN_EPROTO;
    }
    eni_client_cell *c = eni_client_cell_at(client, h->bucket, (int)h->shard);
    eni_bucket_call *waiting = &client->calls[h->bucket];
    int is_awaited = 1;
    EN_TRY(eni_client_heard(client, c, h, &is_awaited));
    if (!is_awaited || !c->in_flight || h->seq != c->awaited)
        return EN_OK; /* the second answer to an earlier call */
    if (packet->is_damaged) {
        eni_error("client",
                  "the weights of bucket %u from lane %u were damaged on their way (checksum): memory, "
                  "network card or cable",
                  h->bucket, h->shard);
        return EN_EPROTO;
    }
    if (h->bytes > 0) EN_TRY(take_vector(client, packet, c));
    if (c->is_push) c->behind = h->base_version > c->version ? h->base_version - c->version : 0;
    if (!waiting->is_aside) {
        c->version = h->version;
        c->is_older = 0;
    }
    if (waiting->is_snapshot) {
        c->past_version = h->version;
        c->past_steps = h->step;
        c->past_samples = h->nsamples;
    }
    c->in_flight = 0;
    waiting->pending--;
    return EN_OK;
}

/* stable: all that was sent to the lane is on disk. Else it would be sent again. */
static en_status accept_farewell(eni_client *client, uint32_t shard, uint64_t stable)
{
    if (shard >= (uint32_t)client->shards) {
        eni_error("client", "lane %u of %d said goodbye", shard, client->shards);
        return EN_EPROTO;
    }
    client->farewells += client->farewell[shard] == ENI_NO_FAREWELL;
    client->farewell[shard] = stable > 0 ? ENI_FAREWELL_STABLE : ENI_FAREWELL;
    if (stable > 0) eni_client_let_go(client, (int)shard);
    return EN_OK;
}

static en_status accept_packet(eni_client *client, const eni_packet *packet)
{
    switch (packet->header.type) {
    case ENI_MSG_WELCOME: client->greeted++; return EN_OK;
    case ENI_MSG_GOODBYE: return accept_farewell(client, packet->header.shard, packet->header.stable);
    case ENI_MSG_REPLY: return accept_reply(client, packet);
    case ENI_MSG_REFUSED:
        eni_error("client", "lane %u of psd refused: %s", packet->header.shard, packet->header.text);
        return packet->header.status == EN_OK ? EN_EPROTO : (en_status)packet->header.status;
    default:
        eni_error("client", "psd sent a message of type %u, which only workers send", packet->header.type);
        return EN_EPROTO;
    }
}

static en_status take_due(eni_client *client)
{
    int64_t now = eni_now_ns();
    for (uint32_t i = 0; i < client->ndelayed;) {
        if (client->delayed[i].ready_ns > now) {
            i++;
            continue;
        }
        eni_packet packet = client->delayed[i].packet;
        client->delayed[i] = client->delayed[--client->ndelayed];
        en_status st = accept_packet(client, &packet);
        eni_packet_release(&packet);
        if (st != EN_OK) return st;
    }
    return EN_OK;
}

static en_status take_from(eni_client *client, eni_dealer *dealer)
{
    for (;;) {
        eni_packet packet = {0};
        en_status st = eni_dealer_recv(dealer, &packet);
        if (st == EN_ETIMEOUT) return EN_OK;
        EN_TRY(st);
        int64_t ready = eni_shaper_recv(client->config.shaper, packet.header.deliver_ns, packet.bytes + 128);
        uint32_t room = client->config.buckets->n * (uint32_t)client->shards;
        if (ready > eni_now_ns() && client->ndelayed < room) {
            client->delayed[client->ndelayed++] = (eni_delayed_reply){packet, ready};
            continue;
        }
        const uint32_t type = packet.header.type;
        client->by_socket -= client->by_socket > 0 && (type == ENI_MSG_REPLY || type == ENI_MSG_REFUSED);
        st = accept_packet(client, &packet);
        eni_packet_release(&packet);
        EN_TRY(st);
    }
}

static en_status take_bells(eni_client *client)
{
    eni_packet packet = {.source = -1};
    for (uint32_t k = 0; k < (uint32_t)client->shards; k++)
        for (en_status st; (st = eni_bells_hear(client->bells, k, &packet.header)) != EN_ETIMEOUT;) {
            EN_TRY(st);
            if (packet.header.bytes > 0 && !(packet.header.flags & ENI_FLAG_SHM)) {
                eni_error("client", "lane %u rang its bell for a payload that is nowhere", k);
                return EN_EPROTO;
            }
            EN_TRY(accept_packet(client, &packet));
        }
    return EN_OK;
}

static int waits_for_bells_only(const eni_client *client)
{
    return client->bells != NULL && eni_bells_unanswered(client->bells) > 0 && client->by_socket == 0;
}

/* A look at a socket is a system call: not while bells are all that we wait for. */
en_status eni_client_take(eni_client *client)
{
    const int is_looking = !waits_for_bells_only(client) || client->is_quiet;
    client->is_quiet = 0;
    if (client->bells != NULL) EN_TRY(take_bells(client));
    for (int k = 0; k < client->shards && is_looking; k++)
        EN_TRY(take_from(client, client->dealers[k]));
    return take_due(client);
}

typedef struct slice_end {
    const eni_client *client;
    int64_t at_ns;
} slice_end;

static en_status alive_until(void *user)
{
    const slice_end *end = user;
    EN_TRY(alive(end->client));
    return eni_client_is_outdated(end->client) || eni_now_ns() >= end->at_ns ? EN_ETIMEOUT : EN_OK;
}

en_status eni_client_slice(eni_client *client)
{
    int64_t begin = eni_now_ns(), until = begin + SLICE_NS;
    if (waits_for_bells_only(client)) {
        const slice_end end = {client, until};
        const eni_alive watch = {alive_until, (void *)(uintptr_t)&end, -1};
        const en_status rung = eni_bells_await(client->bells, &watch);
        client->counters.wait_ns += eni_now_ns() - begin;
        client->is_quiet = rung == EN_ETIMEOUT;
        return rung == EN_ETIMEOUT ? EN_OK : rung;
    }
    if (client->bells != NULL && eni_bells_unanswered(client->bells) > 0) until = begin + ENI_MILLI;
    for (uint32_t i = 0; i < client->ndelayed; i++)
        if (client->delayed[i].ready_ns < until) until = client->delayed[i].ready_ns;
    en_status st = eni_dealer_poll(client->dealers, (size_t)client->shards, until, client->config.wake_fd, -1,
                                   client->is_ready);
    client->counters.wait_ns += eni_now_ns() - begin;
    if (st != EN_OK && st != EN_ETIMEOUT && st != EN_EPEER) return st;
    return alive(client);
}

/* Until the bucket's call is done. */
static en_status wait_for(eni_client *client, uint32_t bucket)
{
    EN_TRY(eni_client_tend(client));
    EN_TRY(eni_client_take(client));
    while (client->calls[bucket].pending > 0) {
        EN_TRY(eni_client_slice(client));
        EN_TRY(eni_client_tend(client));
        EN_TRY(eni_client_take(client));
    }
    return EN_OK;
}

en_status eni_client_wait(eni_client *client, uint32_t bucket)
{
    eni_client_enter(client);
    const en_status st = wait_for(client, bucket);
    eni_client_exit(client);
    return st;
}

en_status eni_client_progress(eni_client *client)
{
    eni_client_enter(client);
    en_status st = eni_client_tend(client);
    if (st == EN_OK) st = eni_client_take(client);
    eni_client_exit(client);
    return st;
}

en_status eni_client_too_few(int answers, int shards)
{
    eni_error("client", "%d of %d lanes of psd answered in time", answers, shards);
    return EN_ETIMEOUT;
}

static en_status finish(eni_client *client)
{
    const int64_t deadline = eni_now_ns() + 60 * ENI_SECOND;
    EN_TRY(eni_client_tend(client));
    client->is_finishing = 1;
    for (int k = 0; k < client->shards; k++)
        EN_TRY(eni_client_say_finished(client, k));
    while (client->farewells < client->shards) {
        EN_TRY(eni_client_slice(client));
        EN_TRY(eni_client_tend(client));
        EN_TRY(eni_client_take(client));
        /* With `keep` psd may be away, which alive() bounds, or wait for a slow disk. */
        if (client->config.keep == 0 && eni_now_ns() > deadline)
            return eni_client_too_few(client->farewells, client->shards);
    }
    return EN_OK;
}

en_status eni_client_finished(eni_client *client)
{
    eni_client_enter(client);
    const en_status st = finish(client);
    eni_client_exit(client);
    return st;
}

/* ---- questions ---- */

void eni_client_count(const eni_client *client, eni_client_counters *counters_out)
{
    eni_client_enter(client);
    *counters_out = client->counters;
    counters_out->wire_bytes += client->past_wire;
    for (int k = 0; k < client->shards; k++) {
        eni_lane_count lane = {0};
        if (client->dealers[k] != NULL) eni_dealer_count(client->dealers[k], &lane);
        counters_out->wire_bytes += lane.wire_in + lane.wire_out;
    }
    eni_client_exit(client);
}

int eni_client_shards(const eni_client *client)
{
    return client->shards;
}

void eni_client_past(const eni_client *client, uint32_t bucket, int shard, eni_cell_past *past_out)
{
    eni_client_enter(client);
    const eni_client_cell *c = eni_client_cell_at(client, bucket, shard);
    *past_out = (eni_cell_past){client->config.buckets->bucket[bucket].lo + c->lo, c->count, c->past_version,
                                c->past_steps, c->past_samples};
    eni_client_exit(client);
}

void eni_client_set_past(eni_client *client, uint32_t bucket, int shard, const eni_cell_past *past)
{
    eni_client_enter(client);
    eni_client_cell *c = eni_client_cell_at(client, bucket, shard);
    c->past_version = past->version;
    c->past_steps = past->steps;
    c->past_samples = past->samples;
    eni_client_exit(client);
}

uint64_t eni_client_version(const eni_client *client, uint32_t bucket)
{
    uint64_t least = UINT64_MAX;
    eni_client_enter(client);
    for (int k = 0; k < client->shards; k++) {
        const eni_client_cell *c = eni_client_cell_at(client, bucket, k);
        if (c->count > 0 && c->version < least) least = c->version;
    }
    eni_client_exit(client);
    return least == UINT64_MAX ? 0 : least;
}

double eni_client_staleness(const eni_client *client, uint32_t bucket)
{
    double sum = 0;
    int n = 0;
    eni_client_enter(client);
    for (int k = 0; k < client->shards; k++) {
        const eni_client_cell *c = eni_client_cell_at(client, bucket, k);
        if (c->count == 0) continue;
        sum += (double)c->behind;
        n++;
    }
    eni_client_exit(client);
    return n > 0 ? sum / n : 0;
}

int eni_client_is_shared(const eni_client *client)
{
    return client->is_shared;
}
