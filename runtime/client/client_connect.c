/* client_connect.c - a client's connections to psd: opened, and opened again when psd comes back.
 *
 * Every shard has a socket. A psd on this host is also given the arena and the ring, and gives its weights to
 * map. Whoever is about to wait or to send looks first whether psd came back; so does a thread while the
 * compute thread is elsewhere. Then everything is opened anew, and every partition sends what it kept
 * (client_io.c). */
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"
#include "runtime/client/client_impl.h"
#include "runtime/net/fdpass.h"

enum {
    REST_MS = 20,  /* the thread looks so often whether psd came back */
    BUSY_MS = 1,   /* and leaves the client to others for so long while it sends again */
    RETURN_S = 10, /* a psd that is back answers within this time, or has died again */
    STALLED_S = 5  /* psd answers, but gets nothing onto its disk: then the oldest call is let go */
};

/* What psd gave in return. The descriptors become the client's. */
static en_status take_gifts(eni_client *client, const eni_arena_answer *answer, const int *fds, size_t nfds)
{
    const uint32_t shards = (uint32_t)client->shards;
    size_t at = 0;
    if (nfds != (size_t)(answer->has_weights != 0) + answer->ndoorbells || answer->ndoorbells > shards ||
        answer->first_shard > shards - answer->ndoorbells ||
        (answer->ndoorbells > 0 && client->ring == NULL)) {
        for (; at < nfds; at++)
            close(fds[at]);
        eni_error("client", "psd answered to this rank's memory with %zu descriptors for %u doorbells", nfds,
                  answer->ndoorbells);
        return EN_EPROTO;
    }
    if (answer->has_weights && client->weights_fd < 0 && !client->has_returned)
        client->weights_fd = fds[at++];
    else if (answer->has_weights)
        close(fds[at++]);
    for (uint32_t k = 0; k < answer->ndoorbells; k++)
        eni_shm_ring_set_doorbell(client->ring, answer->first_shard + k, fds[at++]);
    return EN_OK;
}

/* Hands the arena and the ring to one server; afterwards payloads to it need no socket. */
static en_status share_arena(eni_client *client, const char *socket, int64_t deadline_ns)
{
    const eni_client_config *config = &client->config;
    eni_arena_hello hello = {config->rank,
                             client->epoch,
                             config->incarnation,
                             eni_arena_count(config->arena),
                             .shards = (uint32_t)client->shards,
                             .slots = client->ring == NULL ? 0 : eni_shm_ring_slots(client->ring)};
    int fd, mine[] = {eni_arena_fd(config->arena), client->ring == NULL ? -1 : eni_shm_ring_fd(client->ring)};
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
    EN_TRY(take_gifts(client, &answer, fds, nfds));
    if (answer.status == EN_OK) return EN_OK;
    eni_error("client", "psd could not map this rank's memory: %s", en_status_str((en_status)answer.status));
    return (en_status)answer.status;
}

en_status eni_client_connect(eni_client *client, const eni_client_endpoints *psd, int64_t deadline_ns)
{
    en_status st;
    client->epoch = psd->epoch;
    client->greeted = 0;
    for (int k = 0; k < client->shards; k++) {
        eni_address address;
        EN_TRY(eni_address_parse(psd->endpoints[k], &address));
        EN_TRY(eni_dealer_open(client->config.net, &address, 0, &client->dealers[k]));
    }
    if (psd->servers > 0) {
        st = eni_shm_ring_open((uint32_t)client->shards, client->config.buckets->n, &client->ring);
        if (st != EN_OK && st != EN_EUNSUPPORTED) return st;
    }
    for (int k = 0; k < psd->servers; k++)
        EN_TRY(share_arena(client, psd->arena_sockets[k], deadline_ns));
    client->is_shared = psd->servers > 0;
    for (int k = 0; k < client->shards; k++) {
        eni_header header = eni_client_header(client, ENI_MSG_HELLO);
        eni_token_hex(client->config.token, header.text);
        EN_TRY(eni_client_send(client, k, &header, NULL, 0));
    }
    while (client->greeted < client->shards && !eni_client_is_outdated(client)) {
        EN_TRY(eni_client_slice(client));
        EN_TRY(eni_client_take(client));
        if (eni_now_ns() > deadline_ns) return eni_client_too_few(client->greeted, client->shards);
    }
    return EN_OK;
}

void eni_client_disconnect(eni_client *client)
{
    for (uint32_t i = 0; i < client->ndelayed; i++)
        eni_packet_release(&client->delayed[i].packet);
    client->ndelayed = 0;
    for (int k = 0; client->dealers != NULL && k < client->shards; k++) {
        eni_socket_count wire = {0};
        if (client->dealers[k] != NULL) eni_dealer_count(client->dealers[k], &wire);
        client->past_wire += wire.wire_in + wire.wire_out;
        eni_dealer_close(client->dealers[k]);
        client->dealers[k] = NULL;
    }
    eni_shm_ring_close(client->ring);
    client->ring = NULL;
    client->by_socket = 0;
}

/* ---- psd's own weights in place of ours ---- */

void eni_client_forget_weights(eni_client *client)
{
    if (client->weights_fd >= 0) close(client->weights_fd);
    client->weights_fd = -1;
}

en_status eni_client_map_weights(eni_client *client, int *is_mapped_out)
{
    en_status st = EN_OK;
    eni_client_enter(client);
    if (client->weights_fd >= 0) {
        st = eni_arena_cover(client->config.arena, ENI_SLOT_PARAM, client->weights_fd);
        client->is_mapped = st == EN_OK;
    }
    eni_client_forget_weights(client);
    *is_mapped_out = client->is_mapped;
    eni_client_exit(client);
    return st;
}

/* Only buckets with a call in progress can have changed since we read them, and those are answered again: so
 * it does not matter that psd may have died in the middle of a step. */
static en_status unmap_weights(eni_client *client)
{
    eni_client_forget_weights(client);
    client->has_returned = 1;
    if (!client->is_mapped) return EN_OK;
    client->is_mapped = 0;
    eni_info("client", "psd came back: from now on its weights are copied here");
    return eni_arena_uncover(client->config.arena, ENI_SLOT_PARAM);
}

/* ---- psd is back ---- */

static void forget_way(eni_client *client)
{
    eni_client_disconnect(client);
    client->nagain_all = 0;
    for (int k = 0; k < client->shards; k++) {
        client->nagain[k] = 0;
        for (uint32_t b = 0; b < client->config.buckets->n; b++) {
            eni_client_partition *c = eni_client_partition_at(client, b, k);
            c->again = NULL;
            c->is_asking = 0;
            c->is_older = 1;
        }
    }
}

/* It may have died again while we connected: then it comes back again. */
static en_status await_another(eni_client *client, en_status status, int64_t deadline_ns)
{
    while (!eni_client_is_outdated(client)) {
        if (client->config.alive != NULL) EN_TRY(client->config.alive(client->config.user));
        if (eni_now_ns() > deadline_ns) return status;
        eni_sleep_until(eni_now_ns() + ENI_MILLI);
    }
    return EN_OK;
}

static en_status come_back(eni_client *client)
{
    const int64_t deadline = eni_now_ns() + RETURN_S * ENI_SECOND;
    eni_client_endpoints psd;
    client->return_begin_ns = eni_now_ns();
    client->generation = client->config.generation(client->config.user);
    forget_way(client);
    EN_TRY(unmap_weights(client));
    EN_TRY(client->config.locate(client->config.user, &psd));
    if (psd.shards != client->shards) {
        eni_error("client", "psd came back with %d shards, it had %d", psd.shards, client->shards);
        return EN_EPROTO;
    }
    const en_status st = eni_client_connect(client, &psd, deadline);
    if (st != EN_OK) return await_another(client, st, deadline);
    if (eni_client_is_outdated(client)) return EN_OK;
    client->counters.returns++;
    return eni_client_send_all_again(client);
}

en_status eni_client_tend(eni_client *client)
{
    EN_TRY(client->failure);
    while (eni_client_is_outdated(client))
        EN_TRY(come_back(client));
    return EN_OK;
}

/* ---- room for one more call ---- */

static void warn_of_loss(eni_client *client)
{
    if (!client->has_warned)
        eni_warn("client",
                 "psd has not got its state onto its disk for a while: not all calls since then are "
                 "kept, and if psd is lost now it cannot come back");
    client->has_warned = 1;
}

en_status eni_client_make_room(eni_client *client, eni_client_partition *c, const eni_header *about)
{
    int64_t stalled_ns = 0;
    if (client->config.keep == 0 || about->type == ENI_MSG_SNAPSHOT) return EN_OK;
    while (c->nkept >= client->config.keep) {
        const int was_asking = c->is_asking;
        if (!was_asking && c->again == NULL) EN_TRY(eni_client_ask_stable(client, c, about));
        EN_TRY(eni_client_slice(client));
        EN_TRY(eni_client_tend(client));
        EN_TRY(eni_client_take(client));
        if (c->is_asking || c->again != NULL || c->nkept < client->config.keep) continue;
        const int64_t now = eni_now_ns();
        if (stalled_ns == 0) stalled_ns = now;
        if (now - stalled_ns > STALLED_S * ENI_SECOND) {
            warn_of_loss(client);
            eni_client_drop_first(c);
        }
        eni_sleep_until(now + ENI_MILLI);
    }
    return EN_OK;
}

/* ---- the thread ---- */

static en_status look_after(eni_client *client)
{
    EN_TRY(eni_client_tend(client));
    if (client->nagain_all == 0) return EN_OK;
    EN_TRY(eni_client_slice(client));
    return eni_client_take(client);
}

static void *run_thread(void *user)
{
    eni_client *client = user;
    pthread_mutex_lock(&client->lock);
    while (!client->is_stopping) {
        const int64_t rest = (client->nagain_all > 0 ? BUSY_MS : REST_MS) * ENI_MILLI,
                      until = eni_now_ns() + rest;
        const struct timespec at = {until / ENI_SECOND, until % ENI_SECOND};
        pthread_cond_timedwait(&client->stop, &client->lock, &at);
        if (!client->is_stopping && client->failure == EN_OK) client->failure = look_after(client);
    }
    pthread_mutex_unlock(&client->lock);
    return NULL;
}

en_status eni_client_watch_open(eni_client *client)
{
    pthread_condattr_t clock;
    if (client->config.keep == 0) return EN_OK;
    client->generation = 0;
    pthread_mutex_init(&client->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&client->stop, &clock);
    pthread_condattr_destroy(&clock);
    client->has_thread = 1;
    if (pthread_create(&client->thread, NULL, run_thread, client) == 0) return EN_OK;
    client->has_thread = 0;
    pthread_cond_destroy(&client->stop);
    pthread_mutex_destroy(&client->lock);
    eni_error("client", "cannot start the thread that watches for psd's return");
    return EN_EIO;
}

void eni_client_watch_close(eni_client *client)
{
    if (!client->has_thread) return;
    pthread_mutex_lock(&client->lock);
    client->is_stopping = 1;
    pthread_cond_signal(&client->stop);
    pthread_mutex_unlock(&client->lock);
    pthread_join(client->thread, NULL);
    client->has_thread = 0;
    pthread_cond_destroy(&client->stop);
    pthread_mutex_destroy(&client->lock);
}
