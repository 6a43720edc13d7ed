/* join.c - how a rank gets into a run: where it meets (rendezvous.h), what it tells the others, JOIN. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/env.h"
#include "config/units.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/spec/run_spec.h"
#include "worker/rendezvous.h"

/* Keys that psd reads are written resolved (the rate after --lr-scale), so the raw ones stay out; so does the
 * text of --data, which is a folder's path on one host. */
static en_status add_config_key(void *user, const char *key, const char *value)
{
    static const char *const resolved[] = {"optimizer", "momentum",    "nesterov",  "weight-decay",
                                           "lr",        "lr-schedule", "lr-warmup", "lr-step",
                                           "lr-gamma",  "sum-order",   "data"};
    for (size_t i = 0; i < sizeof resolved / sizeof *resolved; i++)
        if (strcmp(key, resolved[i]) == 0) return EN_OK;
    return eni_run_spec_add(user, key, value);
}

/* What is trained, by content: a name can stand for different things on two hosts. */
static en_status add_contents(const eni_worker *w, eni_run_spec *spec)
{
    EN_TRY(eni_run_spec_add(spec, "schema-sha256", w->schema_sha256));
    EN_TRY(eni_run_spec_add(spec, "data", w->dataset->name));
    EN_TRY(eni_run_spec_add(spec, "data-sha256", w->data_sha256));
    EN_TRY(eni_run_spec_add_whole(spec, "checkpoint-every", (uint64_t)w->config->checkpoint_every));
    EN_TRY(eni_run_spec_add(spec, "resume", w->is_resumed ? w->past.digest : "from the start"));
    return eni_run_spec_add(spec, "device-type", w->device.ops->name);
}

static en_status agree(const eni_worker *w, eni_run_spec *spec)
{
    const eni_config *c = w->config;
    uint64_t net_rate = 0;
    int64_t net_delay = 0;
    const char *wrong;
    if (c->net != NULL && !eni_net_parse(c->net, &net_rate, &net_delay, &wrong)) return EN_EINVAL;
    const eni_run_attributes attributes = {.strategy = w->strategy->name,
                                           .strategy_options = eni_options_canonical(w->options),
                                           .optimizer = w->optimizer,
                                           .hyper = w->hyper,
                                           .schedule = w->schedule,
                                           .sum_order = (eni_sum_order)c->sum_order,
                                           .seed = (uint64_t)c->seed,
                                           .budget = w->plan.micro_batches - w->first_micro,
                                           .elements = w->schema.count,
                                           .net_bytes_per_s = net_rate,
                                           .net_delay_ns = net_delay,
                                           .buckets = w->buckets};
    EN_TRY(eni_run_spec_add_build(spec, w->version));
    EN_TRY(eni_config_match(c, add_config_key, spec));
    EN_TRY(add_contents(w, spec));
    return eni_run_spec_add_run(spec, &attributes);
}

/* ---- which address the others are told ---- */

/* Ours on the route to the leader. Who leads on all interfaces is reached like the leader (mesh.h). */
static en_status open_mesh(eni_worker *w, const eni_address *leader)
{
    eni_own_address own;
    if (eni_worker_leads_everywhere(w)) {
        eni_info("join", "rank 0 on %s: all interfaces (leads at port %u)", w->host, leader->port);
        return eni_mesh_open("0.0.0.0", leader->host, w->config->insecure, &w->mesh);
    }
    EN_TRY(eni_host_info_address(leader, &own));
    /* On one host, started by us, there is no choice and nothing to tell. */
    eni_log(own.is_loopback && w->config->token_fd >= 0 ? ENI_LOG_DEBUG : ENI_LOG_INFO, "join",
            "rank %d on %s: %s via %s (%s %s:%u%s)", w->world.rank, w->host, own.host, own.interface,
            w->leader != NULL ? "leads at" : "route to", leader->host, leader->port,
            w->leader != NULL ? eni_env_rendezvous_note(w->config) : "");
    return eni_mesh_open(own.host, leader->host, w->config->insecure, &w->mesh);
}

/* Told now, for all of them, and not by a connection that is refused much later. --host-id is for playing. */
static en_status check_reach(const eni_worker *w)
{
    const eni_peer *self = &w->info->peers[w->info->rank];
    for (int r = 0; r < w->info->nranks && w->config->host_id == NULL; r++) {
        const eni_peer *peer = &w->info->peers[r];
        const char *data = eni_key_value_find(peer->member_data, peer->nmember_data, "data");
        eni_address address;
        if (data == NULL || strcmp(peer->host_id, self->host_id) == 0) continue;
        EN_TRY(eni_address_parse(data, &address));
        if (!eni_address_is_loopback(&address)) continue;
        eni_error("join",
                  "rank %d on %s takes part by its loopback (%s), but rank %d is on another host (%s): start it "
                  "with the address of rank 0 that the others use, not with localhost",
                  r, peer->host, address.host, self->rank, self->host);
        return EN_EINVAL;
    }
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
    char who[ENI_HOST_MAX + 16];
    eni_host_info_name(w->host);
    EN_TRY(eni_host_info_id(c->host_id, w->host_id));
    EN_TRY(eni_worker_rendezvous(w, deadline, &leader));
    EN_TRY(open_mesh(w, &leader));
    eni_run_spec *spec = eni_alloc(sizeof *spec);
    if (spec == NULL) return EN_ENOMEM;
    en_status st = agree(w, spec);
    eni_key_value member_data[] = {{"data", w->mesh.address}, {"arena", w->mesh.name}};
    eni_member_config config = {.leader = leader,
                                .token = w->token,
                                .rank = w->world.rank,
                                .nranks = w->world.nranks,
                                .host = w->host,
                                .host_id = w->host_id,
                                .key_values = spec->key_value,
                                .nkey_values = spec->n,
                                .member_data = member_data,
                                .nmember_data = 2,
                                .join_deadline_ns = deadline,
                                .peer_timeout_ns = c->peer_timeout_ns,
                                .is_slowed = c->net != NULL,
                                .server_timeout_ns = c->server_timeout_ns,
                                .abort_fd = w->abort_fd};
    if (st == EN_OK) st = eni_member_open(&config, &w->member);
    eni_free(spec);
    EN_TRY(st);
    w->info = eni_member_world(w->member);
    EN_TRY(check_reach(w));
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
