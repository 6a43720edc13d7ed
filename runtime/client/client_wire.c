/* client_wire.c - a client's messages by socket and by ring (client_wire.h): out, in, waits, connections. */
#include "runtime/client/client_wire.h"

#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/net/fdpass.h"

enum { SLICE_NS = 20000000 /* of a wait, between two checks of the peers' liveness */ };

en_status eni_client_wire_alive(const eni_client_wire *t)
{
    return t->config->alive == NULL ? EN_OK : t->config->alive(t->config->user);
}

bool eni_client_wire_is_outdated(const eni_client_wire *t)
{
    return t->config->keep > 0 && t->config->generation(t->config->user) != t->generation;
}

en_status eni_client_wire_refused(const eni_header *h)
{
    return eni_fail(h->status == EN_OK ? EN_EPROTO : (en_status)h->status, "client",
                    "shard %u of psd refused: %s", h->shard, h->text);
}

/* ---- out ---- */

static void payload_released(void *memory, void *lent)
{
    (void)memory;
    atomic_fetch_sub((atomic_int *)lent, 1);
}

en_status eni_client_wire_send(eni_client_wire *t, int shard, eni_header *header, float *payload,
                               bool is_shared)
{
    const eni_release release = payload != NULL && is_shared ? payload_released : NULL;
    const int64_t now = eni_now_ns(), deadline = now + 60 * ENI_SECOND;
    const bool is_question =
        header->type == ENI_MSG_CALL || header->type == ENI_MSG_INIT || header->type == ENI_MSG_SNAPSHOT;
    const bool is_keep = header->type == ENI_MSG_SNAPSHOT && header->kind == ENI_SNAPSHOT_KEEP;
    if (t->config->shaper != NULL)
        header->deliver_ns =
            eni_shaper_send(t->config->shaper, now, (payload == NULL ? 0 : header->bytes) + 128);
    if (is_question && header->flags & ENI_FLAG_SHM && t->ring != NULL &&
        eni_shm_ring_may_post(t->ring, (uint32_t)shard)) {
        eni_shm_ring_post(t->ring, (uint32_t)shard, header);
        return EN_OK;
    }
    t->by_socket += (uint64_t)(is_question && !is_keep);
    for (;;) {
        if (release != NULL) atomic_fetch_add(t->lent, 1);
        en_status st = eni_dealer_send(t->dealers[shard], header, payload, release, t->lent,
                                       t->config->keep > 0 ? 0 : deadline, t->config->wake_fd);
        if (st != EN_ETIMEOUT || t->config->keep == 0) return st;
        EN_TRY(eni_client_wire_alive(t));
        if (eni_client_wire_is_outdated(t)) return EN_OK;
        eni_sleep_until(eni_now_ns() + ENI_MILLI);
    }
}

/* ---- in ---- */

static bool waits_for_ring_only(const eni_client_wire *t)
{
    return t->ring != NULL && eni_shm_ring_unanswered(t->ring) > 0 && t->by_socket == 0;
}

static en_status next_of_ring(eni_client_wire *t, uint32_t shard, eni_packet *packet_out)
{
    *packet_out = (eni_packet){.source = -1};
    EN_TRY(eni_shm_ring_poll(t->ring, shard, &packet_out->header));
    if (packet_out->header.bytes == 0 || packet_out->header.flags & ENI_FLAG_SHM) return EN_OK;
    return eni_fail(EN_EPROTO, "client", "shard %u of psd answered through shared memory without a slot",
                    shard);
}

/* Answers that are usable later are put aside. */
static en_status next_of_socket(eni_client_wire *t, int shard, eni_packet *packet_out)
{
    for (;;) {
        *packet_out = (eni_packet){0};
        EN_TRY(eni_dealer_recv(t->dealers[shard], packet_out));
        const uint32_t type = packet_out->header.type, room = t->config->buckets->n * (uint32_t)t->shards;
        const int64_t ready =
            eni_shaper_recv(t->config->shaper, packet_out->header.deliver_ns, packet_out->bytes + 128);
        if (ready > eni_now_ns() && t->ndelayed < room) {
            t->delayed[t->ndelayed++] = (eni_delayed_answer){*packet_out, ready};
            continue;
        }
        t->by_socket -= t->by_socket > 0 && (type == ENI_MSG_REPLY || type == ENI_MSG_REFUSED);
        return EN_OK;
    }
}

static en_status next_delayed(eni_client_wire *t, eni_packet *packet_out)
{
    const int64_t now = t->ndelayed > 0 ? eni_now_ns() : 0;
    for (uint32_t i = 0; i < t->ndelayed; i++) {
        if (t->delayed[i].ready_ns > now) continue;
        *packet_out = t->delayed[i].packet;
        t->delayed[i] = t->delayed[--t->ndelayed];
        return EN_OK;
    }
    return EN_ETIMEOUT;
}

/* A round: the ring of every shard, then every socket, then the answers put aside. Reading a socket is a
 * system call, so sockets are skipped while only rings are awaited. */
static en_status next_of_round(eni_client_wire *t, eni_packet *packet_out)
{
    const int n = t->shards;
    if (t->at < 0) {
        t->is_looking = !waits_for_ring_only(t) || t->is_quiet;
        t->is_quiet = false;
        t->at = 0;
    }
    for (; t->at < 2 * n; t->at++) {
        const bool is_ring = t->at < n;
        if (is_ring ? t->ring == NULL : !t->is_looking) continue;
        const en_status st =
            is_ring ? next_of_ring(t, (uint32_t)t->at, packet_out) : next_of_socket(t, t->at - n, packet_out);
        if (st != EN_ETIMEOUT) return st;
    }
    const en_status st = next_delayed(t, packet_out);
    if (st == EN_ETIMEOUT) t->at = -1;
    return st;
}

en_status eni_client_wire_next(eni_client_wire *t, eni_packet *packet_out)
{
    for (;;) {
        EN_TRY(next_of_round(t, packet_out));
        if (packet_out->header.type != ENI_MSG_WELCOME) return EN_OK;
        t->greeted++;
        eni_packet_release(packet_out);
    }
}

/* ---- waits ---- */

en_status eni_client_wire_wait(eni_client_wire *t)
{
    int64_t begin = eni_now_ns(), until = begin + SLICE_NS;
    if (waits_for_ring_only(t)) {
        const eni_alive alive = {t->config->alive, t->config->user, -1};
        const en_status posted = eni_shm_ring_await(t->ring, until, &alive);
        t->wait_ns += eni_now_ns() - begin;
        t->is_quiet = posted == EN_ETIMEOUT;
        return posted == EN_ETIMEOUT ? EN_OK : posted;
    }
    if (t->ring != NULL && eni_shm_ring_unanswered(t->ring) > 0) until = begin + ENI_MILLI;
    for (uint32_t i = 0; i < t->ndelayed; i++)
        if (t->delayed[i].ready_ns < until) until = t->delayed[i].ready_ns;
    en_status st = eni_dealer_poll(t->dealers, (size_t)t->shards, until, t->config->wake_fd, -1, t->is_ready);
    t->wait_ns += eni_now_ns() - begin;
    if (st != EN_OK && st != EN_ETIMEOUT && st != EN_EPEER) return st;
    return eni_client_wire_alive(t);
}

/* ---- connections ---- */

/* Takes psd's descriptors in return, which become ours. */
static en_status take_gifts(eni_client_wire *t, const eni_arena_answer *answer, const int *fds, size_t nfds)
{
    const uint32_t shards = (uint32_t)t->shards;
    size_t at = 0;
    if (nfds != (size_t)(answer->has_weights != 0) + answer->ndoorbells || answer->ndoorbells > shards ||
        answer->first_shard > shards - answer->ndoorbells || (answer->ndoorbells > 0 && t->ring == NULL)) {
        for (; at < nfds; at++)
            close(fds[at]);
        return eni_fail(EN_EPROTO, "client",
                        "psd passed %zu descriptors to this rank, but named %u doorbells", nfds,
                        answer->ndoorbells);
    }
    if (answer->has_weights && t->weights_fd < 0 && t->wants_weights)
        t->weights_fd = fds[at++];
    else if (answer->has_weights)
        close(fds[at++]);
    for (uint32_t k = 0; k < answer->ndoorbells; k++)
        eni_shm_ring_set_doorbell(t->ring, answer->first_shard + k, fds[at++]);
    return EN_OK;
}

/* Passes the arena and the ring to one server; afterwards payloads to it need no socket. */
static en_status share_arena(eni_client_wire *t, const char *socket, int64_t deadline_ns)
{
    const eni_client_config *config = t->config;
    eni_arena_hello hello = {config->rank,
                             t->epoch,
                             config->incarnation,
                             eni_arena_count(config->arena),
                             .shards = (uint32_t)t->shards,
                             .slots = t->ring == NULL ? 0 : eni_shm_ring_slots(t->ring)};
    int fd, mine[] = {eni_arena_fd(config->arena), t->ring == NULL ? -1 : eni_shm_ring_fd(t->ring)};
    int fds[ENI_FDPASS_MAX];
    size_t nfds, bytes;
    eni_arena_answer answer = {0};
    EN_TRY(eni_fdpass_connect(socket, config->token, deadline_ns, config->wake_fd, &fd));
    en_status st = eni_fdpass_send(fd, mine, hello.slots > 0 ? 2 : 1, &hello, sizeof hello, deadline_ns,
                                   config->wake_fd);
    if (st == EN_OK)
        st = eni_fdpass_recv(fd, fds, &nfds, &answer, sizeof answer, &bytes, deadline_ns, config->wake_fd);
    close(fd);
    EN_TRY(st);
    if (bytes != sizeof answer) answer = (eni_arena_answer){.status = EN_EPROTO};
    EN_TRY(take_gifts(t, &answer, fds, nfds));
    if (answer.status == EN_OK) return EN_OK;
    eni_error("client", "psd could not map this rank's memory: %s", en_status_str((en_status)answer.status));
    return (en_status)answer.status;
}

static en_status say_hello(eni_client_wire *t, int shard)
{
    eni_header header = {.type = ENI_MSG_HELLO,
                         .rank = t->config->rank,
                         .shard = (uint32_t)shard,
                         .epoch = t->epoch,
                         .dtype = ENI_DTYPE_F32,
                         .codec = ENI_CODEC_NONE,
                         .incarnation = t->config->incarnation,
                         .seq = t->joins_at};
    eni_token_hex(t->config->token, header.text);
    return eni_client_wire_send(t, shard, &header, NULL, false);
}

/* No call is under way yet: an answer is WELCOME or a refusal. */
static en_status await_welcomes(eni_client_wire *t, int64_t deadline_ns)
{
    eni_packet packet;
    while (t->greeted < t->shards && !eni_client_wire_is_outdated(t)) {
        EN_TRY(eni_client_wire_wait(t));
        en_status st;
        while ((st = eni_client_wire_next(t, &packet)) == EN_OK) {
            if (packet.header.type == ENI_MSG_REFUSED) st = eni_client_wire_refused(&packet.header);
            eni_packet_release(&packet);
            EN_TRY(st);
        }
        if (st != EN_ETIMEOUT) return st;
        if (eni_now_ns() > deadline_ns)
            return eni_fail(
                EN_ETIMEOUT, "client",
                "only %d of %d shards of psd answered in time: check the load of its host and the network",
                t->greeted, t->shards);
    }
    return EN_OK;
}

en_status eni_client_wire_greet(eni_client_wire *t, int64_t deadline_ns)
{
    t->greeted = 0;
    for (int k = 0; k < t->shards; k++)
        EN_TRY(say_hello(t, k));
    return await_welcomes(t, deadline_ns);
}

en_status eni_client_wire_connect(eni_client_wire *t, const eni_endpoints *psd, int64_t deadline_ns)
{
    t->epoch = psd->epoch;
    for (int k = 0; k < t->shards; k++) {
        eni_address address;
        EN_TRY(eni_address_parse(psd->tcp[k], &address));
        EN_TRY(eni_dealer_open(t->config->net, &address, &t->dealers[k]));
    }
    if (psd->servers > 0) {
        const en_status st = eni_shm_ring_open((uint32_t)t->shards, t->config->buckets->n, &t->ring);
        if (st != EN_OK && st != EN_EUNSUPPORTED) return st;
    }
    for (int k = 0; k < psd->servers; k++)
        EN_TRY(share_arena(t, psd->arena_sockets[k], deadline_ns));
    t->is_shared = psd->servers > 0;
    return eni_client_wire_greet(t, deadline_ns);
}

void eni_client_wire_disconnect(eni_client_wire *t)
{
    for (uint32_t i = 0; i < t->ndelayed; i++)
        eni_packet_release(&t->delayed[i].packet);
    t->ndelayed = 0;
    t->past_wire = eni_client_wire_bytes(t);
    for (int k = 0; t->dealers != NULL && k < t->shards; k++) {
        eni_dealer_close(t->dealers[k]);
        t->dealers[k] = NULL;
    }
    eni_shm_ring_close(t->ring);
    t->ring = NULL;
    t->by_socket = 0;
    t->at = -1;
}

void eni_client_wire_forget_weights(eni_client_wire *t)
{
    if (t->weights_fd >= 0) close(t->weights_fd);
    t->weights_fd = -1;
}

uint64_t eni_client_wire_bytes(const eni_client_wire *t)
{
    uint64_t bytes = t->past_wire;
    for (int k = 0; t->dealers != NULL && k < t->shards; k++) {
        eni_socket_count wire = {0};
        if (t->dealers[k] != NULL) eni_dealer_count(t->dealers[k], &wire);
        bytes += wire.wire_in + wire.wire_out;
    }
    return bytes;
}

en_status eni_client_wire_init(eni_client_wire *t, const eni_client_config *config)
{
    const size_t shards = (size_t)config->psd->shards;
    *t = (eni_client_wire){
        .config = config, .shards = config->psd->shards, .at = -1, .weights_fd = -1, .wants_weights = true};
    t->dealers = eni_alloc_array(shards, sizeof *t->dealers);
    t->is_ready = eni_alloc_array(shards, sizeof *t->is_ready);
    t->delayed = eni_alloc_array(config->buckets->n * shards, sizeof *t->delayed);
    t->lent = eni_alloc(sizeof *t->lent);
    return t->dealers != NULL && t->is_ready != NULL && t->delayed != NULL && t->lent != NULL ? EN_OK
                                                                                              : EN_ENOMEM;
}

/* ZeroMQ may read payloads a little longer, and then counts them back. If a peer that takes nothing holds one
 * beyond the sockets' linger, the counter outlives us: it is leaked rather than freed under ZeroMQ. */
void eni_client_wire_fini(eni_client_wire *t)
{
    const int64_t deadline = eni_now_ns() + 3 * ENI_SECOND;
    eni_client_wire_disconnect(t);
    eni_client_wire_forget_weights(t);
    while (t->lent != NULL && atomic_load(t->lent) > 0 && eni_now_ns() < deadline)
        eni_sleep_until(eni_now_ns() + ENI_MILLI);
    if (t->lent == NULL || atomic_load(t->lent) == 0) eni_free(t->lent);
    eni_free(t->delayed);
    eni_free(t->is_ready);
    eni_free(t->dealers);
}
