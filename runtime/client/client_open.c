/* client_open.c - a client's connections, and its life. */
#include <unistd.h>

#include "ops/mean.h"
#include "runtime/client/client_impl.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/net/fdpass.h"

/* What psd gave in return. The descriptors become the client's. */
static en_status take_gifts(eni_client *client, const eni_arena_answer *answer, const int *fds, size_t nfds)
{
    const uint32_t lanes = (uint32_t)client->shards;
    size_t at = 0;
    if (nfds != (size_t)(answer->has_weights != 0) + answer->nbells || answer->nbells > lanes ||
        answer->first_lane > lanes - answer->nbells || (answer->nbells > 0 && client->bells == NULL)) {
        for (; at < nfds; at++)
            close(fds[at]);
        eni_error("client", "psd answered to this rank's memory with %zu descriptors for %u bells", nfds,
                  answer->nbells);
        return EN_EPROTO;
    }
    if (answer->has_weights && client->weights_fd < 0 && !client->has_returned)
        client->weights_fd = fds[at++];
    else if (answer->has_weights)
        close(fds[at++]);
    for (uint32_t k = 0; k < answer->nbells; k++)
        eni_bells_set_kick(client->bells, answer->first_lane + k, fds[at++]);
    return EN_OK;
}

/* Hands the arena and the bells to one server; afterwards payloads to it need no socket. */
static en_status share_arena(eni_client *client, const char *socket, int64_t deadline_ns)
{
    const eni_client_config *config = &client->config;
    eni_arena_hello hello = {config->rank,
                             client->epoch,
                             config->incarnation,
                             eni_arena_count(config->arena),
                             .lanes = (uint32_t)client->shards,
                             .slots = client->bells == NULL ? 0 : eni_bells_slots(client->bells)};
    int fd, mine[] = {eni_arena_fd(config->arena), client->bells == NULL ? -1 : eni_bells_fd(client->bells)};
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

/* ---- psd's own weights in place of ours ---- */

static void forget_weights(eni_client *client)
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
    forget_weights(client);
    *is_mapped_out = client->is_mapped;
    eni_client_exit(client);
    return st;
}

/* Only buckets with a call in progress can have changed since we read them, and those are answered again: so
 * it does not matter that psd may have died in the middle of a step. */
en_status eni_client_unmap_weights(eni_client *client)
{
    forget_weights(client);
    client->has_returned = 1;
    if (!client->is_mapped) return EN_OK;
    client->is_mapped = 0;
    eni_info("client", "psd came back: from now on its weights are copied here");
    return eni_arena_uncover(client->config.arena, ENI_SLOT_PARAM);
}

en_status eni_client_connect(eni_client *client, const eni_client_place *place, int64_t deadline_ns)
{
    en_status st;
    client->epoch = place->epoch;
    client->greeted = 0;
    for (int k = 0; k < client->shards; k++) {
        eni_address lane;
        EN_TRY(eni_address_parse(place->endpoints[k], &lane));
        EN_TRY(eni_dealer_open(client->config.net, &lane, 0, &client->dealers[k]));
    }
    if (place->servers > 0) {
        st = eni_bells_open((uint32_t)client->shards, client->config.buckets->n, &client->bells);
        if (st != EN_OK && st != EN_EUNSUPPORTED) return st;
    }
    for (int k = 0; k < place->servers; k++)
        EN_TRY(share_arena(client, place->arena_sockets[k], deadline_ns));
    client->is_shared = place->servers > 0;
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
        eni_lane_count lane = {0};
        if (client->dealers[k] != NULL) eni_dealer_count(client->dealers[k], &lane);
        client->past_wire += lane.wire_in + lane.wire_out;
        eni_dealer_close(client->dealers[k]);
        client->dealers[k] = NULL;
    }
    eni_bells_close(client->bells);
    client->bells = NULL;
    client->by_socket = 0;
}

static void lay_out_cells(eni_client *client)
{
    int shards = client->shards;
    for (uint32_t b = 0; b < client->config.buckets->n; b++) {
        uint64_t count = client->config.buckets->bucket[b].hi - client->config.buckets->bucket[b].lo;
        for (int k = 0; k < shards; k++) {
            eni_client_cell *c = eni_client_cell_at(client, b, k);
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
    client->weights_fd = -1;
    client->shards = config->place.shards;
    size_t shards = (size_t)client->shards, n = config->buckets->n;
    client->dealers = eni_alloc_array(shards, sizeof *client->dealers);
    client->is_ready = eni_alloc_array(shards, sizeof *client->is_ready);
    client->farewell = eni_alloc_array(shards, sizeof *client->farewell);
    client->nagain = eni_alloc_array(shards, sizeof *client->nagain);
    client->cells = eni_alloc_array(n * shards, sizeof *client->cells);
    client->calls = eni_alloc_array(n, sizeof *client->calls);
    client->delayed = eni_alloc_array(n * shards, sizeof *client->delayed);
    en_status st = EN_ENOMEM;
    if (!client->dealers || !client->is_ready || !client->farewell || !client->nagain || !client->cells ||
        !client->calls || !client->delayed)
        goto close_client;
    lay_out_cells(client);
    EN_TRY_GOTO(eni_client_connect(client, &config->place, config->join_deadline_ns), close_client);
    EN_TRY_GOTO(eni_client_return_open(client), close_client);
    *client_out = client;
    return EN_OK;
close_client:
    eni_client_close(client);
    return st;
}

void eni_client_close(eni_client *client)
{
    if (client == NULL) return;
    eni_client_return_close(client);
    eni_client_disconnect(client);
    forget_weights(client);
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
    eni_free(client->nagain);
    eni_free(client->farewell);
    eni_free(client->is_ready);
    eni_free(client->dealers);
    if (!is_lent) eni_free(client);
}
