/* client_io.c - a client's messages: how they are sent, kept until psd has them on disk, sent again, and
 * answered. The other files of the client call this one; it calls none of them.
 *
 * Order of things. A partition has at most one message in flight, so (bucket, shard) identifies a reply.
 * Replies of different partitions come in any order. An emulated wire (--net) makes a reply usable later than
 * it arrives: such replies wait in `delayed` until their time.
 *
 * What is kept for a psd that comes back. A partition is in one of two states. Normally a call is kept, sent
 * and answered. When psd has come back, `again` is the kept call whose answer is awaited; each answer sends
 * the next one, and a new call only joins the queue. The answer to the last kept one, if a call of the user's
 * still waits for it, is that call's answer.
 *
 *     kept:   #7 -> #8 -> #9 -> #10      stable 6 before psd died
 *                   ^again      ^last, in flight
 *
 * The idea is upstream backup (Hwang'05): what a consumer has not secured, its producers keep. */
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/mutation.h"
#include "core/try.h"
#include "runtime/client/client_impl.h"

enum { SLICE_NS = 20000000 }; /* how long a wait goes without looking whether the peers live */

static en_status alive(const eni_client *client)
{
    return client->config.alive == NULL ? EN_OK : client->config.alive(client->config.user);
}

void eni_client_enter(const eni_client *client)
{
    if (client->has_thread) pthread_mutex_lock((pthread_mutex_t *)&client->lock);
}

void eni_client_exit(const eni_client *client)
{
    if (client->has_thread) pthread_mutex_unlock((pthread_mutex_t *)&client->lock);
}

int eni_client_is_outdated(const eni_client *client)
{
    return client->config.keep > 0 && client->config.generation(client->config.user) != client->generation;
}

en_status eni_client_too_few(int answers, int shards)
{
    eni_error("client", "%d of %d shards of psd answered in time", answers, shards);
    return EN_ETIMEOUT;
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
    if (is_question && header->flags & ENI_FLAG_SHM && client->ring != NULL &&
        eni_shm_ring_may_post(client->ring, (uint32_t)shard)) {
        eni_shm_ring_post(client->ring, (uint32_t)shard, header);
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

/* ---- keeping ---- */

void eni_client_drop_first(eni_client_partition *c)
{
    eni_kept *kept = c->first;
    c->first = kept->next;
    if (c->first == NULL) c->last = NULL;
    kept->next = c->idle;
    c->idle = kept;
    c->nkept--;
}

/* An INIT is stable when any call is: the store takes none before it. */
static int is_stable(const eni_kept *kept, uint64_t stable)
{
    return kept->header.type == ENI_MSG_CALL ? kept->header.seq <= stable : stable > 0;
}

/* The last stable one stays, and is asked again before the others: the state may have it in a round that is
 * yet to be made up, and what follows must not get into that round (store_save.h). */
static void let_go_stable(eni_client_partition *c, uint64_t stable)
{
    while (c->first != c->last && c->first != c->again &&
           is_stable(eni_mutant("replay-after-stable") ? c->first : c->first->next, stable))
        eni_client_drop_first(c);
}

/* All that a shard was sent is on its disk. */
static void let_go(eni_client *client, int shard)
{
    for (uint32_t b = 0; b < client->config.buckets->n; b++) {
        eni_client_partition *c = eni_client_partition_at(client, b, shard);
        while (c->first != NULL)
            eni_client_drop_first(c);
    }
}

void eni_client_free_kept(eni_client *client)
{
    const uint64_t n =
        client->parts == NULL ? 0 : (uint64_t)client->config.buckets->n * (uint64_t)client->shards;
    for (uint64_t i = 0; i < n; i++) {
        eni_client_partition *c = &client->parts[i];
        while (c->first != NULL)
            eni_client_drop_first(c);
        for (eni_kept *kept = c->idle, *next; kept != NULL; kept = next) {
            next = kept->next;
            eni_free(kept->data);
            eni_free(kept);
        }
    }
}

/* The answer is a REPLY with seq 0, and psd sees to it that it soon is. */
en_status eni_client_ask_stable(eni_client *client, eni_client_partition *c, const eni_header *about)
{
    eni_header header = eni_client_header(client, ENI_MSG_CALL);
    header.flags = ENI_FLAG_REPLAY;
    header.bucket = about->bucket;
    header.count = c->count;
    c->is_asking = 1;
    return eni_client_send(client, (int)about->shard, &header, NULL, 0);
}

static eni_kept *kept_new(eni_client_partition *c, int has_data)
{
    eni_kept *kept = c->idle;
    if (kept != NULL)
        c->idle = kept->next;
    else if ((kept = eni_alloc(sizeof *kept)) == NULL)
        return NULL;
    if (has_data && kept->data == NULL) kept->data = eni_alloc_array(c->count, sizeof *kept->data);
    if (!has_data || kept->data != NULL) return kept;
    eni_free(kept);
    return NULL;
}

en_status eni_client_keep(eni_client *client, eni_client_partition *c, const eni_header *header,
                          const float *payload)
{
    if (client->config.keep == 0) return EN_OK;
    if (header->type == ENI_MSG_SNAPSHOT) {
        c->snapshot = *header;
        return EN_OK;
    }
    eni_kept *kept = kept_new(c, payload != NULL);
    if (kept == NULL) return EN_ENOMEM;
    if (payload != NULL) memcpy(kept->data, payload, c->count * sizeof *payload);
    kept->header = *header;
    kept->order = ++c->order;
    kept->next = NULL;
    if (c->last != NULL)
        c->last->next = kept;
    else
        c->first = kept;
    c->last = kept;
    c->nkept++;
    return EN_OK;
}

/* ---- sending again ---- */

static en_status send_kept(eni_client *client, int shard, const eni_kept *kept)
{
    eni_header header = kept->header;
    header.flags |= ENI_FLAG_REPLAY;
    client->counters.replayed++;
    return eni_client_send(client, shard, &header, header.bytes > 0 ? kept->data : NULL, 0);
}

/* Once it has what is sent again. */
en_status eni_client_say_finished(eni_client *client, int shard)
{
    eni_header header = eni_client_header(client, ENI_MSG_FINISHED);
    if (client->nagain[shard] > 0 || client->finished[shard] == ENI_FINISHED_STABLE) return EN_OK;
    return eni_client_send(client, shard, &header, NULL, 0);
}

static void note_returned(eni_client *client)
{
    const int64_t took = eni_now_ns() - client->return_begin_ns;
    if (took > client->counters.return_ns) client->counters.return_ns = took;
    eni_debug("client", "psd has all calls again after %.0f ms", (double)took / 1e6);
}

/* Sends kept call c->again, or what waits for the end of these. */
static en_status send_next(eni_client *client, eni_client_partition *c, int shard)
{
    if (c->again != NULL) return send_kept(client, shard, c->again);
    if (c->snapshot.type == 0) return EN_OK;
    eni_header header = c->snapshot;
    return eni_client_send(client, shard, &header, NULL, 0);
}

/* A partition has nothing more to send again. */
static en_status partition_is_back(eni_client *client, int shard)
{
    client->nagain[shard]--;
    if (--client->nagain_all == 0) note_returned(client);
    return client->is_finishing ? eni_client_say_finished(client, shard) : EN_OK;
}

/* The answer to a kept call that was sent again. */
static en_status heard_again(eni_client *client, eni_client_partition *c, const eni_header *header,
                             int *is_awaited)
{
    const eni_kept *done = c->again;
    const uint64_t order = done->order;
    *is_awaited = c->in_flight && done == c->last && c->snapshot.type == 0;
    c->again = NULL;
    let_go_stable(c, header->stable);
    for (eni_kept *kept = c->first; kept != NULL && c->again == NULL; kept = kept->next)
        if (kept->order > order) c->again = kept;
    EN_TRY(send_next(client, c, (int)header->shard));
    return c->again == NULL ? partition_is_back(client, (int)header->shard) : EN_OK;
}

/* A reply: lets go of what is stable, sends what comes next. *is_awaited_out 0: no call waits for it. */
static en_status heard(eni_client *client, eni_client_partition *c, const eni_header *header,
                       int *is_awaited_out)
{
    if (client->config.keep == 0) return EN_OK;
    if (c->again != NULL) {
        *is_awaited_out = 0;
        return header->seq == c->again->header.seq ? heard_again(client, c, header, is_awaited_out) : EN_OK;
    }
    let_go_stable(c, header->stable);
    if (c->is_asking && header->seq == 0) {
        c->is_asking = *is_awaited_out = 0;
        return EN_OK;
    }
    if (header->seq == 0) c->snapshot.type = 0;
    return EN_OK;
}

en_status eni_client_send_all_again(eni_client *client)
{
    for (int k = 0; k < client->shards; k++) {
        for (uint32_t b = 0; b < client->config.buckets->n; b++) {
            eni_client_partition *c = eni_client_partition_at(client, b, k);
            c->again = c->first;
            client->nagain[k] += c->again != NULL;
            client->nagain_all += c->again != NULL;
        }
        for (uint32_t b = 0; b < client->config.buckets->n; b++)
            EN_TRY(send_next(client, eni_client_partition_at(client, b, k), k));
        if (client->is_finishing) EN_TRY(eni_client_say_finished(client, k));
    }
    if (client->nagain_all == 0) note_returned(client);
    return EN_OK;
}

/* ---- receiving ---- */

/* Puts a reply's weights where the call wants them, unless they are there. */
static en_status take_vector(eni_client *client, const eni_packet *packet, const eni_client_partition *c)
{
    const eni_header *h = &packet->header;
    const int in_slot = client->calls[h->bucket].in_slot, is_in_arena = (h->flags & ENI_FLAG_SHM) != 0;
    const uint32_t into = in_slot == ENI_SLOT_NONE ? ENI_INTO_NOTHING : (uint32_t)in_slot;
    const int is_read_there = client->is_mapped && in_slot == ENI_SLOT_PARAM,
              was_left_there = (h->flags & ENI_FLAG_MAPPED) != 0;
    if (h->bytes != c->count * sizeof(float)) {
        eni_error("client", "shard %u sent %llu bytes for a partition of %llu", h->shard,
                  (unsigned long long)h->bytes, (unsigned long long)(c->count * sizeof(float)));
        return EN_EPROTO;
    }
    if (is_in_arena && (!client->is_shared || (!was_left_there && h->slot != into))) {
        eni_error("client", "shard %u answered through shared memory that it was not given", h->shard);
        return EN_EPROTO;
    }
    if (is_read_there != was_left_there) {
        eni_error("client", "shard %u %s", h->shard,
                  was_left_there ? "says that its weights are mapped here, which they are not"
                                 : "copied what is mapped here: does the store of a strategy with EN_ROUNDS "
                                   "answer with something else than its weights?");
        return EN_EPROTO;
    }
    if (!is_in_arena && in_slot != ENI_SLOT_NONE)
        memcpy(eni_client_partition_address(client, in_slot, h->bucket, c), packet->payload, h->bytes);
    client->counters.payload_received += h->bytes;
    if (is_in_arena) client->counters.shm_bytes += h->bytes;
    return EN_OK;
}

static en_status accept_reply(eni_client *client, const eni_packet *packet)
{
    const eni_header *h = &packet->header;
    if (h->bucket >= client->config.buckets->n || h->shard >= (uint32_t)client->shards) {
        eni_error("client", "shard %u answered for bucket %u of %u", h->shard, h->bucket,
                  client->config.buckets->n);
        return EN_EPROTO;
    }
    eni_client_partition *c = eni_client_partition_at(client, h->bucket, (int)h->shard);
    eni_bucket_call *waiting = &client->calls[h->bucket];
    int is_awaited = 1;
    EN_TRY(heard(client, c, h, &is_awaited));
    if (!is_awaited || !c->in_flight || h->seq != c->awaited)
        return EN_OK; /* the second answer to an earlier call */
    if (packet->is_damaged) {
        eni_error("client",
                  "the weights of bucket %u from shard %u were damaged on their way (checksum): memory, "
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

/* stable: all that was sent to the shard is on disk. Else it would be sent again. */
static en_status accept_goodbye(eni_client *client, uint32_t shard, uint64_t stable)
{
    if (shard >= (uint32_t)client->shards) {
        eni_error("client", "shard %u of %d said goodbye", shard, client->shards);
        return EN_EPROTO;
    }
    client->nfinished += client->finished[shard] == ENI_FINISHED_UNHEARD;
    client->finished[shard] = stable > 0 ? ENI_FINISHED_STABLE : ENI_FINISHED;
    if (stable > 0) let_go(client, (int)shard);
    return EN_OK;
}

static en_status accept_packet(eni_client *client, const eni_packet *packet)
{
    switch (packet->header.type) {
    case ENI_MSG_WELCOME: client->greeted++; return EN_OK;
    case ENI_MSG_GOODBYE: return accept_goodbye(client, packet->header.shard, packet->header.stable);
    case ENI_MSG_REPLY: return accept_reply(client, packet);
    case ENI_MSG_REFUSED:
        eni_error("client", "shard %u of psd refused: %s", packet->header.shard, packet->header.text);
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

static en_status take_ring(eni_client *client)
{
    eni_packet packet = {.source = -1};
    for (uint32_t k = 0; k < (uint32_t)client->shards; k++)
        for (en_status st; (st = eni_shm_ring_poll(client->ring, k, &packet.header)) != EN_ETIMEOUT;) {
            EN_TRY(st);
            if (packet.header.bytes > 0 && !(packet.header.flags & ENI_FLAG_SHM)) {
                eni_error("client", "shard %u posted an answer whose payload is nowhere", k);
                return EN_EPROTO;
            }
            EN_TRY(accept_packet(client, &packet));
        }
    return EN_OK;
}

static int waits_for_ring_only(const eni_client *client)
{
    return client->ring != NULL && eni_shm_ring_unanswered(client->ring) > 0 && client->by_socket == 0;
}

/* A look at a socket is a system call: not while ring are all that we wait for. */
en_status eni_client_take(eni_client *client)
{
    const int is_looking = !waits_for_ring_only(client) || client->is_quiet;
    client->is_quiet = 0;
    if (client->ring != NULL) EN_TRY(take_ring(client));
    for (int k = 0; k < client->shards && is_looking; k++)
        EN_TRY(take_from(client, client->dealers[k]));
    return take_due(client);
}

/* ---- waiting ---- */

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
    if (waits_for_ring_only(client)) {
        const slice_end end = {client, until};
        const eni_alive watch = {alive_until, (void *)(uintptr_t)&end, -1};
        const en_status rung = eni_shm_ring_await(client->ring, &watch);
        client->counters.wait_ns += eni_now_ns() - begin;
        client->is_quiet = rung == EN_ETIMEOUT;
        return rung == EN_ETIMEOUT ? EN_OK : rung;
    }
    if (client->ring != NULL && eni_shm_ring_unanswered(client->ring) > 0) until = begin + ENI_MILLI;
    for (uint32_t i = 0; i < client->ndelayed; i++)
        if (client->delayed[i].ready_ns < until) until = client->delayed[i].ready_ns;
    en_status st = eni_dealer_poll(client->dealers, (size_t)client->shards, until, client->config.wake_fd, -1,
                                   client->is_ready);
    client->counters.wait_ns += eni_now_ns() - begin;
    if (st != EN_OK && st != EN_ETIMEOUT && st != EN_EPEER) return st;
    return alive(client);
}
