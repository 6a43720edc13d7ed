/* client.c - see client.h.
 *
 * Order of things. A cell has at most one message in flight, so (bucket, shard) identifies a reply. Replies
 * of different cells come in any order. An emulated wire (--net) makes a reply usable later than it arrives:
 * such replies wait in `delayed` until their time. */
#include "runtime/comm/client.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "ops/mean.h"
#include "runtime/core/clock.h"
#include "runtime/core/log.h"
#include "runtime/core/memory.h"
#include "runtime/core/try.h"
#include "runtime/net/fdpass.h"

enum { SLICE_NS = 20000000 }; /* how long a wait goes without looking whether the peers live */

/* One part of a bucket on one lane. */
typedef struct cell {
    uint64_t lo, count; /* elements, relative to the bucket */
    uint64_t seq;       /* of the last call */
    uint64_t awaited;   /* the seq that the answer must carry; 0 for what is no call */
    uint64_t version;   /* of the last reply: what the next gradient is computed on */
    uint64_t behind;    /* staleness of the last push that was answered */
    int in_flight, is_push;
} cell;

typedef struct call {
    int pending; /* cells not answered yet */
    int in_slot;
    int is_aside; /* a look at the store's weights, on which no gradient will be computed */
} call;

typedef struct delayed_reply {
    eni_packet packet;
    int64_t ready_ns;
} delayed_reply;

struct eni_client {
    eni_client_config config;
    eni_dealer **dealers;   /* (shards) */
    bool *is_ready;         /* (shards) scratch of poll */
    cell *cells;            /* (buckets, shards) */
    call *calls;            /* (buckets) */
    delayed_reply *delayed; /* (buckets * shards) */
    uint32_t ndelayed;
    int is_shared;
    int greeted, farewells; /* lanes that have answered HELLO, FINISHED */
    atomic_int lent;        /* payloads that ZeroMQ still reads */
    eni_client_counters counters;
};

static cell *cell_at(const eni_client *client, uint32_t bucket, int shard)
{
    return &client->cells[(uint64_t)bucket * (uint64_t)client->config.shards + (uint64_t)shard];
}

static float *cell_address(const eni_client *client, int slot, uint32_t bucket, const cell *c)
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

static eni_header header_of(const eni_client *client, uint32_t type)
{
    return (eni_header){.type = type,
                        .epoch = client->config.epoch,
                        .rank = client->config.rank,
                        .dtype = ENI_DTYPE_F32,
                        .codec = ENI_CODEC_NONE,
                        .incarnation = client->config.incarnation};
}

static en_status send_header(eni_client *client, int shard, eni_header *header, float *payload)
{
    uint64_t on_wire = payload == NULL ? 0 : header->bytes;
    header->shard = (uint32_t)shard;
    header->deliver_ns = eni_shaper_send(client->config.shaper, eni_now_ns(), on_wire + 128);
    if (payload != NULL) atomic_fetch_add(&client->lent, 1);
    return eni_dealer_send(client->dealers[shard], header, payload, payload == NULL ? NULL : payload_released,
                           client, eni_now_ns() + 60 * ENI_SECOND, client->config.wake_fd);
}

static en_status send_cell(eni_client *client, eni_header header, uint32_t bucket, int shard, int out_slot)
{
    cell *c = cell_at(client, bucket, shard);
    float *payload = NULL;
    header.bucket = bucket;
    header.count = c->count;
    header.base_version = c->version;
    if (header.type == ENI_MSG_CALL) header.seq = ++c->seq;
    if (client->is_shared) header.flags |= ENI_FLAG_SHM;
    if (out_slot != ENI_SLOT_NONE) {
        header.bytes = c->count * sizeof(float);
        header.slot = (uint32_t)out_slot;
        if (!client->is_shared) payload = cell_address(client, out_slot, bucket, c);
        client->counters.payload_sent += header.bytes;
        if (client->is_shared) client->counters.shm_bytes += header.bytes;
    }
    c->is_push = header.type == ENI_MSG_CALL && out_slot != ENI_SLOT_NONE;
    c->awaited = header.seq;
    c->in_flight = 1;
    client->calls[bucket].pending++;
    return send_header(client, shard, &header, payload);
}

en_status eni_client_call(eni_client *client, uint32_t type, uint32_t bucket, uint32_t kind, uint32_t what,
                          int out_slot, int in_slot, uint64_t nsamples, uint64_t step)
{
    if (client->calls[bucket].pending > 0) {
        eni_error("client", "bucket %u already has a call in progress", bucket);
        return EN_EBUG;
    }
    eni_header header = header_of(client, type);
    header.kind = kind;
    header.what = what;
    header.nsamples = nsamples;
    header.step = step;
    client->calls[bucket].in_slot = in_slot;
    client->calls[bucket].is_aside = type == ENI_MSG_SNAPSHOT && in_slot != ENI_SLOT_PARAM;
    for (int k = 0; k < client->config.shards; k++)
        if (cell_at(client, bucket, k)->count > 0) EN_TRY(send_cell(client, header, bucket, k, out_slot));
    return EN_OK;
}

/* ---- receiving ---- */

/* Puts a reply's weights where the call wants them. */
static en_status accept_reply(eni_client *client, const eni_packet *packet)
{
    const eni_header *h = &packet->header;
    if (h->bucket >= client->config.buckets->n || h->shard >= (uint32_t)client->config.shards) {
        eni_error("client", "lane %u answered for bucket %u of %u", h->shard, h->bucket,
                  client->config.buckets->n);
        return EN_EPROTO;
    }
    cell *c = cell_at(client, h->bucket, (int)h->shard);
    call *waiting = &client->calls[h->bucket];
    if (!c->in_flight || h->seq != c->awaited) return EN_OK; /* the second answer to an earlier call */
    if (h->bytes > 0) {
        if (h->bytes != c->count * sizeof(float)) {
            eni_error("client", "lane %u sent %llu bytes for a cell of %llu", h->shard,
                      (unsigned long long)h->bytes, (unsigned long long)(c->count * sizeof(float)));
            return EN_EPROTO;
        }
        if (h->flags & ENI_FLAG_SHM && !client->is_shared) {
            eni_error("client", "lane %u answered through shared memory that it was not given", h->shard);
            return EN_EPROTO;
        }
        const float *from = h->flags & ENI_FLAG_SHM ? cell_address(client, ENI_SLOT_INBOX, h->bucket, c)
                                                    : (const float *)(const void *)packet->payload;
        if (waiting->in_slot != ENI_SLOT_NONE)
            memcpy(cell_address(client, waiting->in_slot, h->bucket, c), from, h->bytes);
        client->counters.payload_received += h->bytes;
        if (h->flags & ENI_FLAG_SHM) client->counters.shm_bytes += h->bytes;
    }
    if (c->is_push) c->behind = h->base_version > c->version ? h->base_version - c->version : 0;
    if (!waiting->is_aside) c->version = h->version;
    c->in_flight = 0;
    waiting->pending--;
    return EN_OK;
}

static en_status accept_packet(eni_client *client, const eni_packet *packet)
{
    switch (packet->header.type) {
    case ENI_MSG_WELCOME: client->greeted++; return EN_OK;
    case ENI_MSG_GOODBYE: client->farewells++; return EN_OK;
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
        uint32_t room = client->config.buckets->n * (uint32_t)client->config.shards;
        if (ready > eni_now_ns() && client->ndelayed < room) {
            client->delayed[client->ndelayed++] = (delayed_reply){packet, ready};
            continue;
        }
        st = accept_packet(client, &packet);
        eni_packet_release(&packet);
        EN_TRY(st);
    }
}

en_status eni_client_progress(eni_client *client)
{
    for (int k = 0; k < client->config.shards; k++)
        EN_TRY(take_from(client, client->dealers[k]));
    return take_due(client);
}

/* Blocks until something may have changed, at most SLICE_NS. */
static en_status wait_slice(eni_client *client)
{
    int64_t begin = eni_now_ns(), until = begin + SLICE_NS;
    for (uint32_t i = 0; i < client->ndelayed; i++)
        if (client->delayed[i].ready_ns < until) until = client->delayed[i].ready_ns;
    en_status st = eni_dealer_poll(client->dealers, (size_t)client->config.shards, until,
                                   client->config.wake_fd, -1, client->is_ready);
    client->counters.wait_ns += eni_now_ns() - begin;
    if (st != EN_OK && st != EN_ETIMEOUT && st != EN_EPEER) return st;
    EN_TRY(alive(client));
    return EN_OK;
}

en_status eni_client_wait(eni_client *client, uint32_t bucket)
{
    EN_TRY(eni_client_progress(client));
    while (client->calls[bucket].pending > 0) {
        EN_TRY(wait_slice(client));
        EN_TRY(eni_client_progress(client));
    }
    return EN_OK;
}

/* Sends one message without a cell to every lane and waits until `*answers` has counted all of them. */
static en_status say_to_all(eni_client *client, uint32_t type, const int *answers, int64_t deadline_ns)
{
    for (int k = 0; k < client->config.shards; k++) {
        eni_header header = header_of(client, type);
        if (type == ENI_MSG_HELLO) eni_token_hex(client->config.token, header.text);
        EN_TRY(send_header(client, k, &header, NULL));
    }
    while (*answers < client->config.shards) {
        EN_TRY(wait_slice(client));
        EN_TRY(eni_client_progress(client));
        if (eni_now_ns() > deadline_ns) {
            eni_error("client", "%d of %d lanes of psd answered in time", *answers, client->config.shards);
            return EN_ETIMEOUT;
        }
    }
    return EN_OK;
}

en_status eni_client_finished(eni_client *client)
{
    return say_to_all(client, ENI_MSG_FINISHED, &client->farewells, eni_now_ns() + 60 * ENI_SECOND);
}

/* ---- life ---- */

/* Hands the arena to psd; afterwards payloads need no socket. */
static en_status share_arena(eni_client *client)
{
    const eni_client_config *config = &client->config;
    eni_arena_hello hello = {config->rank, config->epoch, config->incarnation,
                             eni_arena_count(config->arena)};
    int fd, mine = eni_arena_fd(config->arena), fds[ENI_FDPASS_MAX];
    size_t nfds, bytes;
    int32_t answer = EN_EPROTO;
    EN_TRY(eni_fdpass_connect(config->arena_socket, config->token, config->join_deadline_ns, config->wake_fd,
                              &fd));
    en_status st =
        eni_fdpass_send(fd, &mine, 1, &hello, sizeof hello, config->join_deadline_ns, config->wake_fd);
    if (st == EN_OK)
        st = eni_fdpass_recv(fd, fds, &nfds, &answer, sizeof answer, &bytes, config->join_deadline_ns,
                             config->wake_fd);
    close(fd);
    if (st == EN_OK && answer != EN_OK) {
        eni_error("client", "psd could not map this rank's memory: %s", en_status_str(answer));
        return answer;
    }
    client->is_shared = st == EN_OK;
    return st;
}

static void lay_out_cells(eni_client *client)
{
    int shards = client->config.shards;
    for (uint32_t b = 0; b < client->config.buckets->n; b++) {
        uint64_t count = client->config.buckets->bucket[b].hi - client->config.buckets->bucket[b].lo;
        for (int k = 0; k < shards; k++) {
            cell *c = cell_at(client, b, k);
            c->lo = eni_slice_lo(count, k, shards);
            c->count = eni_slice_lo(count, k + 1, shards) - c->lo;
        }
    }
}

en_status eni_client_open(const eni_client_config *config, eni_client **client_out)
{
    eni_client *client = eni_alloc(sizeof *client);
    if (client == NULL) return EN_ENOMEM;
    client->config = *config;
    size_t shards = (size_t)config->shards, n = config->buckets->n;
    client->dealers = eni_alloc_array(shards, sizeof *client->dealers);
    client->is_ready = eni_alloc_array(shards, sizeof *client->is_ready);
    client->cells = eni_alloc_array(n * shards, sizeof *client->cells);
    client->calls = eni_alloc_array(n, sizeof *client->calls);
    client->delayed = eni_alloc_array(n * shards, sizeof *client->delayed);
    en_status st = EN_ENOMEM;
    if (!client->dealers || !client->is_ready || !client->cells || !client->calls || !client->delayed)
        goto close_client;
    lay_out_cells(client);
    for (int k = 0; k < config->shards; k++) {
        eni_address lane;
        EN_TRY_GOTO(eni_address_parse(config->endpoints[k], &lane), close_client);
        EN_TRY_GOTO(eni_dealer_open(config->net, &lane, 0, &client->dealers[k]), close_client);
    }
    if (config->arena_socket != NULL && config->arena_socket[0] != 0)
        EN_TRY_GOTO(share_arena(client), close_client);
    EN_TRY_GOTO(say_to_all(client, ENI_MSG_HELLO, &client->greeted, config->join_deadline_ns), close_client);
    *client_out = client;
    return EN_OK;
close_client:
    eni_client_close(client);
    return st;
}

void eni_client_close(eni_client *client)
{
    if (client == NULL) return;
    for (uint32_t i = 0; i < client->ndelayed; i++)
        eni_packet_release(&client->delayed[i].packet);
    for (int k = 0; client->dealers != NULL && k < client->config.shards; k++)
        eni_dealer_close(client->dealers[k]);
    /* ZeroMQ may read what was lent a little longer, and then counts it back here. If a peer that takes
     * nothing keeps it beyond the sockets' linger, the count outlives us: it is left behind, not freed under
     * it. */
    int64_t deadline = eni_now_ns() + 3 * ENI_SECOND;
    while (atomic_load(&client->lent) > 0 && eni_now_ns() < deadline)
        eni_sleep_until(eni_now_ns() + ENI_MILLI);
    int is_lent = atomic_load(&client->lent) > 0;
    eni_free(client->delayed);
    eni_free(client->calls);
    eni_free(client->cells);
    eni_free(client->is_ready);
    eni_free(client->dealers);
    if (!is_lent) eni_free(client);
}

void eni_client_count(const eni_client *client, eni_client_counters *counters_out)
{
    *counters_out = client->counters;
    for (int k = 0; k < client->config.shards; k++) {
        eni_lane_count lane;
        eni_dealer_count(client->dealers[k], &lane);
        counters_out->wire_bytes += lane.wire_in + lane.wire_out;
    }
}

uint64_t eni_client_version(const eni_client *client, uint32_t bucket)
{
    uint64_t least = UINT64_MAX;
    for (int k = 0; k < client->config.shards; k++) {
        const cell *c = cell_at(client, bucket, k);
        if (c->count > 0 && c->version < least) least = c->version;
    }
    return least == UINT64_MAX ? 0 : least;
}

double eni_client_staleness(const eni_client *client, uint32_t bucket)
{
    double sum = 0;
    int n = 0;
    for (int k = 0; k < client->config.shards; k++) {
        const cell *c = cell_at(client, bucket, k);
        if (c->count == 0) continue;
        sum += (double)c->behind;
        n++;
    }
    return n > 0 ? sum / n : 0;
}

int eni_client_is_shared(const eni_client *client)
{
    return client->is_shared;
}
