/* psd_shards.c - the world is complete: the shards of this server, and what the workers are told of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/net/host_info.h"
#include "server/psd_impl.h"
#include "server/psd_report.h"

enum { FACTS = 5 }; /* member data beside the shards */

static void tell(eni_psd *psd, const char *key, int32_t number, const char *value)
{
    char(*text)[ENI_ADDRESS_TEXT] = psd->texts[psd->nmember_data];
    if (number < 0)
        snprintf(text[0], ENI_ADDRESS_TEXT, "%s", key);
    else
        snprintf(text[0], ENI_ADDRESS_TEXT, "%s.%d", key, number);
    snprintf(text[1], ENI_ADDRESS_TEXT, "%s", value);
    psd->member_data[psd->nmember_data++] = (eni_key_value){text[0], text[1]};
}

static void tell_number(eni_psd *psd, const char *key, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    tell(psd, key, -1, text);
}

/* All ranks, or the first of every host where the strategy says that leaders are the clients. */
static void choose_clients(eni_psd *psd, const eni_world_info *world)
{
    for (int32_t r = 0; r < psd->nranks; r++) {
        psd->is_client[r] = 1;
        for (int32_t q = 0; q < r && psd->strategy->flags & EN_LEADERS_ARE_CLIENTS; q++)
            if (strcmp(world->peers[q].host_id, world->peers[r].host_id) == 0) psd->is_client[r] = 0;
    }
}

/* On a shard's thread; main may not know yet whom to tell, and then does it itself. Under the lock, so that
 * who is told is there until he has heard it. */
static void on_shard_failure(void *user, const char *reason)
{
    eni_psd *psd = user;
    pthread_mutex_lock(&psd->lock);
    snprintf(psd->failure, sizeof psd->failure, "%s", reason);
    if (psd->leader) eni_leader_abort(psd->leader, reason);
    if (psd->member) eni_member_abort(psd->member, reason);
    pthread_mutex_unlock(&psd->lock);
}

/* Shards are bound and told by number: ZeroMQ takes names for interfaces, and a name may mean another address
 * to a worker. Who listens on all interfaces tells the one towards the first worker of another host. */
static en_status choose_host(const eni_psd *psd, const eni_world_info *world, char host_out[ENI_HOST_MAX])
{
    eni_own_address own;
    eni_address worker;
    if (!eni_address_is_anywhere(&psd->listen)) {
        EN_TRY(eni_host_info_address(&psd->listen, &own));
        memcpy(host_out, own.host, sizeof own.host);
        return EN_OK;
    }
    memcpy(host_out, psd->host, sizeof psd->host); /* clients that are no workers do not say */
    for (int32_t r = 0; r < world->nranks; r++) {
        const eni_peer *peer = &world->peers[r];
        const char *data = eni_key_value_find(peer->member_data, peer->nmember_data, "data");
        if (data == NULL || eni_address_parse(data, &worker) != EN_OK || eni_address_is_anywhere(&worker))
            continue;
        EN_TRY(eni_host_info_address(&worker, &own));
        memcpy(host_out, own.host, sizeof own.host);
        if (!own.is_remote_here) break;
    }
    return EN_OK;
}

void eni_psd_set_shards(eni_psd *psd, int32_t own_shards)
{
    psd->own_shards = own_shards;
    psd->nshards = psd->nservers * own_shards;
    psd->first_shard = psd->server * own_shards;
}

/* Large weights are bound by what one core loads and stores, and while the workers wait theirs are idle; for
 * small ones a second shard only means twice the messages (docs/performance.md). */
static void choose_shards(eni_psd *psd)
{
    enum { LARGE = 4 << 20 /* elements: 16 MiB */ };
    if (psd->config->shards > 0 || psd->nservers > 1 || psd->past) return;
    if (psd->setup.elements >= LARGE && eni_host_info_cores() > 1) eni_psd_set_shards(psd, 2);
}

static en_status open_shard(eni_psd *psd, const eni_world_info *world, int32_t i)
{
    eni_shard_config config = {
        .net = psd->net,
        .is_insecure = psd->config->insecure,
        .setup = &psd->setup,
        .strategy = psd->strategy,
        .index = psd->first_shard + i,
        .nshards = psd->nshards,
        .nranks = psd->nranks,
        .is_client = psd->is_client,
        .epoch = world->epoch,
        .incarnation = world->incarnation,
        .token = psd->token,
        .arenas = psd->arenas,
        .weights = psd->weights,
        .shaper = psd->shaper,
        .trace = psd->trace,
        .state = psd->state,
        .state_every = (uint64_t)psd->config->state_every,
        .on_failure = on_shard_failure,
        .user = psd,
    };
    eni_address bound;
    char endpoint[ENI_ADDRESS_TEXT], host[ENI_HOST_MAX];
    EN_TRY(choose_host(psd, world, host));
    memcpy(config.listen.host, psd->listen.host, sizeof config.listen.host); /* the port is main's */
    if (!eni_address_is_anywhere(&config.listen)) memcpy(config.listen.host, host, sizeof host);
    EN_TRY(eni_shard_start(&config, &psd->shards[i], &bound));
    memcpy(bound.host, host, sizeof bound.host);
    eni_address_format(&bound, endpoint);
    tell(psd, "lane", config.index, endpoint);
    return EN_OK;
}

/* Workers of this host may read the very weights, where they lie in one piece: one psd, no wire to emulate.
 */
static en_status share_weights(eni_psd *psd)
{
    if (!(psd->strategy->flags & EN_ROUNDS) || psd->config->transport == ENI_TRANSPORT_TCP || psd->shaper)
        return EN_OK;
    if (psd->nservers > 1) {
        eni_debug("psd", "%d servers have the weights in pieces: workers get copies", psd->nservers);
        return EN_OK;
    }
    const en_status st = eni_weights_open(psd->setup.elements, &psd->weights);
    return st == EN_EUNSUPPORTED ? EN_OK : st;
}

static en_status open_all(eni_psd *psd, const eni_world_info *world)
{
    const size_t most = (size_t)psd->own_shards + FACTS;
    psd->shards = eni_alloc_array((size_t)psd->own_shards, sizeof *psd->shards);
    psd->is_client = eni_alloc_array((size_t)psd->nranks, sizeof *psd->is_client);
    psd->member_data = eni_alloc_array(most, sizeof *psd->member_data);
    psd->texts = eni_alloc_array(most, sizeof *psd->texts);
    if (!psd->shards || !psd->is_client || !psd->member_data || !psd->texts) return EN_ENOMEM;
    choose_clients(psd, world);
    if (psd->config->transport != ENI_TRANSPORT_SHM) eni_memory_keep(); /* payloads come as messages */
    EN_TRY(eni_net_open(1, &psd->net));
    if (psd->setup.net_bytes_per_s > 0 || psd->setup.net_delay_ns > 0) {
        psd->shaper = eni_shaper_new(psd->setup.net_bytes_per_s, psd->setup.net_delay_ns);
        if (!psd->shaper) return EN_ENOMEM;
    }
    EN_TRY(share_weights(psd));
    const eni_arenas_config arenas = {.nranks = psd->nranks,
                                      .epoch = world->epoch,
                                      .elements = psd->setup.elements,
                                      .token = psd->token,
                                      .weights = psd->weights,
                                      .first_shard = psd->first_shard,
                                      .own_shards = psd->own_shards,
                                      .nshards = psd->nshards};
    EN_TRY(eni_arenas_start(&arenas, &psd->arenas));
    for (int32_t i = 0; i < psd->own_shards; i++)
        EN_TRY(open_shard(psd, world, i));
    for (int32_t r = 0; psd->past && r < psd->nranks; r++)
        if (psd->revived.rank[r].has_left) eni_psd_lose(psd, r);
    tell(psd, "host-id", psd->server, psd->host_id);
    if (psd->config->transport != ENI_TRANSPORT_TCP)
        tell(psd, "arena", psd->server, eni_arenas_name(psd->arenas));
    if (psd->server > 0) return EN_OK;
    tell_number(psd, "shards", (uint64_t)psd->nshards);
    tell_number(psd, "servers", (uint64_t)psd->nservers);
    if (psd->state) tell_number(psd, "state-every", (uint64_t)psd->config->state_every);
    return EN_OK;
}

en_status eni_psd_open_shards(eni_psd *psd, const eni_world_info *world, char why_out[ENI_REASON_MAX])
{
    EN_TRY(eni_setup_read(psd->strategy, world->key_values, world->nkey_values, &psd->setup, why_out));
    const eni_psd_terms own = {psd->config, psd->version, psd->strategy, psd->options};
    EN_TRY(eni_psd_agree(&own, world->key_values, world->nkey_values, &psd->setup, why_out));
    choose_shards(psd);
    const en_status st = open_all(psd, world);
    if (st != EN_OK)
        snprintf(why_out, ENI_REASON_MAX, "psd cannot open its %d shards: %s", psd->own_shards,
                 en_status_str(st));
    else
        eni_info("psd", "%d worker%s here: %u bucket%s, %llu elements, %s", psd->nranks,
                 psd->nranks == 1 ? " is" : "s are", psd->setup.nbuckets, psd->setup.nbuckets == 1 ? "" : "s",
                 (unsigned long long)psd->setup.elements, psd->strategy->name);
    return st;
}

en_status eni_psd_set_epoch(eni_psd *psd, uint32_t epoch)
{
    eni_arenas_set_epoch(psd->arenas, epoch);
    for (int32_t i = 0; i < psd->own_shards; i++)
        EN_TRY(eni_shard_set_epoch(psd->shards[i], epoch));
    return EN_OK;
}

void eni_psd_lose(eni_psd *psd, int32_t rank)
{
    for (int32_t i = 0; psd->shards && i < psd->own_shards; i++)
        if (psd->shards[i]) eni_shard_leave(psd->shards[i], rank);
}

const char *eni_psd_report(eni_psd *psd, const eni_blob *others, size_t n)
{
    const eni_report_config config = {.shards = psd->shards,
                                      .nshards = psd->own_shards,
                                      .nranks = psd->nranks,
                                      .server = psd->server,
                                      .others = others,
                                      .nothers = n};
    free(psd->report);
    psd->report = eni_report_make(&config);
    return psd->report;
}

void eni_psd_stop_shards(eni_psd *psd)
{
    for (int32_t i = 0; psd->shards && i < psd->own_shards; i++)
        eni_shard_stop(psd->shards[i]);
}

void eni_psd_close_shards(eni_psd *psd)
{
    eni_arenas_stop(psd->arenas);
    eni_weights_close(psd->weights);
    eni_net_close(psd->net);
    eni_shaper_free(psd->shaper);
    eni_setup_fini(&psd->setup);
    free(psd->report);
    eni_free(psd->texts);
    eni_free(psd->member_data);
    eni_free(psd->is_client);
    eni_free(psd->shards);
}
