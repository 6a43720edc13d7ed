/* join.c - how a rank gets into a run: token, leader if it is rank 0 of a run without servers, JOIN.
 *
 * Where the leader is: psd at --server when the strategy keeps its store on servers, else rank 0 at
 * --rendezvous. The token comes from the launcher's descriptor, from --token-file, or from the file that the
 * leader of the same user leaves under its port. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/env.h"
#include "config/units.h"
#include "runtime/comm/agreement.h"
#include "runtime/core/clock.h"
#include "runtime/core/log.h"
#include "runtime/core/memory.h"
#include "runtime/core/try.h"
#include "worker/worker.h"

/* Keys that psd reads are written resolved (the rate after --lr-scale), so the raw ones stay out; so does the
 * text of --data, which is a folder's path on one host. */
static en_status add_config_pair(void *user, const char *key, const char *value)
{
    static const char *const resolved[] = {"optimizer", "momentum",    "nesterov",  "weight-decay",
                                           "lr",        "lr-schedule", "lr-warmup", "lr-step",
                                           "lr-gamma",  "sum-order",   "seed",      "data"};
    for (size_t i = 0; i < sizeof resolved / sizeof *resolved; i++)
        if (strcmp(key, resolved[i]) == 0) return EN_OK;
    return eni_agreement_add(user, key, value);
}

/* What is trained, by content: a name can stand for different things on two hosts. */
static en_status add_contents(const eni_worker *w, eni_agreement *agreement)
{
    EN_TRY(eni_agreement_add(agreement, "schema-sha256", w->schema_sha256));
    EN_TRY(eni_agreement_add(agreement, "data", w->dataset->name));
    EN_TRY(eni_agreement_add(agreement, "data-sha256", w->data_sha256));
    return eni_agreement_add(agreement, "device-type", w->device.ops->name);
}

static en_status agree(const eni_worker *w, eni_agreement *agreement)
{
    const eni_config *c = w->config;
    uint64_t net_rate = 0;
    int64_t net_delay = 0;
    const char *wrong;
    if (c->net != NULL && !eni_net_parse(c->net, &net_rate, &net_delay, &wrong)) return EN_EINVAL;
    const eni_run_facts facts = {.strategy = w->strategy->name,
                                 .strategy_options = eni_options_canonical(w->options),
                                 .optimizer = w->optimizer,
                                 .hyper = w->hyper,
                                 .schedule = w->schedule,
                                 .sum_order = (eni_sum_order)c->sum_order,
                                 .seed = (uint64_t)c->seed,
                                 .budget = w->plan.micro_batches,
                                 .elements = w->schema.count,
                                 .net_bytes_per_s = net_rate,
                                 .net_delay_ns = net_delay,
                                 .buckets = w->buckets};
    EN_TRY(eni_agreement_add_build(agreement, w->version));
    EN_TRY(eni_config_match(c, add_config_pair, agreement));
    EN_TRY(add_contents(w, agreement));
    return eni_agreement_add_run(agreement, &facts);
}

/* ---- where, and with which token ---- */

static int has_servers(const eni_worker *w)
{
    return (w->strategy->flags & EN_STORE_ON_SERVERS) != 0;
}

static en_status leader_address(const eni_worker *w, eni_address *address_out)
{
    const eni_config *c = w->config;
    if (has_servers(w)) {
        if (c->server != NULL) return eni_address_parse(c->server, address_out);
        eni_error("join",
                  "%s keeps its weights on a server: start psd --strategy=%s --world-size=%d, and give its "
                  "address by --server=tcp://HOST:PORT",
                  w->strategy->name, w->strategy->name, w->world.nranks);
        return EN_EINVAL;
    }
    EN_TRY(eni_address_parse(c->rendezvous, address_out));
    /* Alone there is nobody to meet: any free port will do. */
    if (w->world.nranks == 1 && !eni_config_is_given(c, "rendezvous")) address_out->port = 0;
    return EN_OK;
}

static en_status token_file(const eni_worker *w, uint16_t port, char *path_out, size_t bytes)
{
    char dir[256];
    if (w->config->token_file != NULL) {
        snprintf(path_out, bytes, "%s", w->config->token_file);
        return EN_OK;
    }
    EN_TRY(eni_env_runtime_dir(dir, sizeof dir));
    return eni_token_path(dir, port, path_out, bytes);
}

/* The file that a killed leader left under its port is not the next one's. One that was copied here by hand
 * is held by nobody either, and is believed. */
static int is_there(const eni_worker *w, const char *path)
{
    return access(path, F_OK) == 0 && (w->config->token_file != NULL || !eni_token_is_stale(path));
}

/* A member may be started before its leader: the file is looked for until the deadline. */
static en_status read_token(eni_worker *w, const eni_address *leader, int64_t deadline_ns)
{
    char path[512];
    if (w->config->token_fd >= 0) return eni_token_read_fd((int)w->config->token_fd, &w->token);
    EN_TRY(token_file(w, leader->port, path, sizeof path));
    while (!is_there(w, path)) {
        EN_TRY(eni_worker_alive(w));
        if (eni_now_ns() > deadline_ns) {
            eni_error(
                "join",
                "no token at %s: is %s running on this host, by the same user? Else copy its token file "
                "here and give --token-file",
                path, has_servers(w) ? "psd" : "rank 0");
            return EN_ENOENT;
        }
        eni_sleep_until(eni_now_ns() + 20 * ENI_MILLI);
    }
    return eni_token_read(path, &w->token);
}

/* Rank 0 of a run without servers leads: the port is bound first, then the token is written under it. */
static en_status start_leader(eni_worker *w, eni_address *address)
{
    const eni_config *c = w->config;
    int is_given = c->token_fd >= 0 || (c->token_file != NULL && access(c->token_file, F_OK) == 0);
    if (c->token_fd >= 0)
        EN_TRY(eni_token_read_fd((int)c->token_fd, &w->token));
    else if (is_given)
        EN_TRY(eni_token_read(c->token_file, &w->token));
    else
        eni_token_make(&w->token);
    eni_leader_config config = {.listen = *address,
                                .listen_fd = (int)c->listen_fd,
                                .is_insecure = c->insecure,
                                .nranks = w->world.nranks,
                                .rank = 0,
                                .host = w->host,
                                .host_id = w->host_id,
                                .token = w->token,
                                .epoch = 1,
                                .join_ns = c->join_timeout_ns,
                                .peer_timeout_ns = c->peer_timeout_ns,
                                .budget = w->plan.micro_batches};
    EN_TRY(eni_leader_start(&config, &w->leader));
    address->port = eni_leader_address(w->leader)->port;
    if (is_given || w->world.nranks == 1) return EN_OK; /* a file of the user's stays when we leave */
    char path[sizeof w->token_path];
    EN_TRY(token_file(w, address->port, path, sizeof path));
    EN_TRY(eni_token_write_held(&w->token, path, &w->token_lock));
    memcpy(w->token_path, path, sizeof path); /* only now is it ours to remove */
    return EN_OK;
}

/* ---- the world as the strategy sees it ---- */

static void describe_world(eni_worker *w)
{
    const eni_world_info *info = w->info;
    en_world world = {.size = sizeof world, .epoch = info->epoch, .rank = info->rank, .nranks = info->nranks};
    for (int r = 0; r < info->nranks; r++) {
        int is_first = 1;
        for (int q = 0; q < r && is_first; q++)
            is_first = strcmp(info->peers[q].host_id, info->peers[r].host_id) != 0;
        world.nhosts += is_first;
        if (strcmp(info->peers[r].host_id, info->peers[info->rank].host_id) == 0) {
            if (r < info->rank) world.local_rank++;
            world.nlocal++;
        }
    }
    w->world = world;
}

en_status eni_worker_join(eni_worker *w)
{
    const eni_config *c = w->config;
    int64_t deadline = eni_now_ns() + c->join_timeout_ns;
    eni_address leader;
    eni_own_address own;
    char who[ENI_HOST_MAX + 16];
    eni_place_host(w->host);
    EN_TRY(eni_place_host_id(c->host_id, w->host_id));
    EN_TRY(leader_address(w, &leader));
    if (!has_servers(w) && w->world.rank <= 0)
        EN_TRY(start_leader(w, &leader));
    else
        EN_TRY(read_token(w, &leader, deadline));
    EN_TRY(eni_place_address(&leader, &own));
    EN_TRY(eni_mesh_open(own.host, c->insecure, &w->mesh));
    eni_agreement *agreement = eni_alloc(sizeof *agreement);
    if (agreement == NULL) return EN_ENOMEM;
    en_status st = agree(w, agreement);
    eni_pair privates[] = {{"data", w->mesh.address}, {"arena", w->mesh.name}};
    eni_member_config config = {.leader = leader,
                                .token = w->token,
                                .rank = w->world.rank,
                                .nranks = w->world.nranks,
                                .host = w->host,
                                .host_id = w->host_id,
                                .pairs = agreement->pair,
                                .npairs = agreement->n,
                                .privates = privates,
                                .nprivates = 2,
                                .join_deadline_ns = deadline,
                                .peer_timeout_ns = c->peer_timeout_ns,
                                .abort_fd = w->abort_fd};
    if (st == EN_OK) st = eni_member_open(&config, &w->member);
    eni_free(agreement);
    EN_TRY(st);
    w->info = eni_member_world(w->member);
    describe_world(w);
    snprintf(who, sizeof who, "%s:%d", w->host, w->world.rank);
    eni_log_set_who(who);
    eni_debug("join", "[%" PRId64 "] world size %d, rank %d, leader %s:%u, this rank at %s",
              (int64_t)getpid(), w->world.nranks, w->world.rank, leader.host, leader.port, w->mesh.address);
    return EN_OK;
}

void eni_worker_leave(eni_worker *w)
{
    eni_member_close(w->member);
    w->member = NULL;
    eni_mesh_close(&w->mesh);
    eni_leader_stop(w->leader);
    w->leader = NULL;
    if (w->token_path[0] != 0) eni_token_remove(w->token_path);
    if (w->token_lock >= 0) close(w->token_lock);
}
