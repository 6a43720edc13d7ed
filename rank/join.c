/* join.c - how a rank enters and leaves a run: where it meets the others, with which token, what it announces
 * (JOIN); how it leaves.
 *
 * The leader is psd at --server when the strategy keeps its store on servers, else rank 0 at --rendezvous,
 * which starts it here. The token comes, in this order, from the launcher's descriptor; with
 * --rendezvous=file:// from that file; from --token-file; or, on one host, from the file that the leader of the
 * same user leaves under its port. Across hosts one of the first three must be given. It is never an
 * argument. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/formats/rows.h"
#include "models/formats/weights.h"
#include "rank/rank.h"
#include "run/rank_groups.h"
#include "runtime/control/file_rendezvous.h"
#include "runtime/spec/run_spec.h"

/* ---- where a run meets, and with which token ---- */

static bool is_file(const eni_rank *self)
{
    return strncmp(self->asked.rendezvous, "file://", 7) == 0;
}

static bool leads_everywhere(const eni_rank *self)
{
    return self->leader != NULL && eni_address_is_anywhere(eni_leader_address(self->leader));
}

/* ---- rank 0 ---- */

static en_status choose_token(eni_rank *self)
{
    const eni_join_options *c = &self->asked;
    if (c->token_fd >= 0) return eni_token_read_fd(c->token_fd, &self->token.value);
    if (c->token_file != NULL && access(c->token_file, F_OK) == 0)
        return eni_token_read(c->token_file, &self->token.value);
    eni_token_make(&self->token.value);
    return EN_OK;
}

static void tell_resize(void *user, int32_t workers, const char *why)
{
    const eni_rank *self = user;
    if (self->asked.launcher_fd >= 0) eni_resize_write(self->asked.launcher_fd, workers, why);
}

static en_status start_leader(eni_rank *self, const eni_address *listen)
{
    const eni_join_options *c = &self->asked;
    char launcher[24], elastic[ENI_WORKER_RANGE_TEXT] = "";
    snprintf(launcher, sizeof launcher, "%d", c->launcher_fd >= 0 ? (int)getppid() : 0);
    if (c->elastic.max > 0) eni_worker_range_text(&c->elastic, elastic);
    const eni_key_value attributes[] = {{"strategy", self->job.strategy->name},
                                        {"model", self->trainer.about.model},
                                        {"out", c->out},
                                        {"launcher", launcher},
                                        {"elastic", elastic}};
    eni_leader_config config = {.listen = *listen,
                                .listen_fd = c->listen_fd,
                                .is_insecure = c->is_insecure,
                                .nranks = self->world.nranks,
                                .rank = 0,
                                .host = self->host,
                                .host_id = self->host_id,
                                .token = self->token.value,
                                .join_ns = c->join_timeout_ns,
                                .peer_timeout_ns = c->peer_timeout_ns,
                                .budget = self->job.plan.micro_batches - self->saving.first_micro,
                                .status_folder = c->private_folder[0] != 0 ? c->private_folder : NULL,
                                .attributes = attributes,
                                .nattributes = sizeof attributes / sizeof *attributes,
                                .elastic = c->elastic,
                                .on_resize = tell_resize,
                                .user = self};
    return eni_leader_start(&config, &self->leader);
}

static en_status token_file(const eni_rank *self, uint16_t port, char *path_out, size_t bytes)
{
    if (self->asked.token_file != NULL) {
        snprintf(path_out, bytes, "%s", self->asked.token_file);
        return EN_OK;
    }
    if (self->asked.private_folder[0] == 0)
        return eni_fail(EN_EINVAL, "join", "XDG_RUNTIME_DIR is longer than %zu bytes; shorten or unset it",
                        sizeof self->asked.private_folder);
    return eni_token_path(self->asked.private_folder, port, path_out, bytes);
}

/* Leaves the token where ranks that join can find it, and programs that may request other workers. */
static en_status leave_token(eni_rank *self, uint16_t port)
{
    char path[sizeof self->token.path];
    const bool is_elastic = self->asked.elastic.max > 0;
    if (!is_elastic && (self->asked.token_fd >= 0 || self->world.nranks == 1)) return EN_OK;
    if (self->asked.token_file != NULL && access(self->asked.token_file, F_OK) == 0)
        return EN_OK; /* the user's */
    EN_TRY(token_file(self, port, path, sizeof path));
    EN_TRY(eni_token_write(&self->token.value, path, &self->token.lock));
    memcpy(self->token.path, path, sizeof path); /* ours to remove from now on */
    return EN_OK;
}

/* All addresses where other hosts may reach us; without --insecure the loopback only. */
static en_status lead_by_file(eni_rank *self)
{
    eni_address listen = {.host = "127.0.0.1"};
    eni_file_rendezvous rendezvous = {.pid = getpid()};
    char path[sizeof self->token.path];
    EN_TRY(eni_file_rendezvous_parse(self->asked.rendezvous, path, sizeof path, &listen.port));
    EN_TRY(eni_file_rendezvous_check_free(path, self->host_id));
    if (self->asked.is_insecure) snprintf(listen.host, sizeof listen.host, "0.0.0.0");
    EN_TRY(start_leader(self, &listen));
    uint16_t port = eni_leader_address(self->leader)->port;
    if (self->asked.is_insecure)
        rendezvous.naddresses =
            eni_host_info_addresses(rendezvous.address, ENI_FILE_RENDEZVOUS_ADDRESSES - 1);
    snprintf(rendezvous.address[rendezvous.naddresses++].host, ENI_HOST_MAX, "127.0.0.1");
    for (int i = 0; i < rendezvous.naddresses; i++)
        rendezvous.address[i].port = port;
    rendezvous.token = self->token.value;
    memcpy(rendezvous.host, self->host, sizeof rendezvous.host);
    memcpy(rendezvous.host_id, self->host_id, sizeof rendezvous.host_id);
    EN_TRY(eni_file_rendezvous_write(&rendezvous, path, &self->token.lock)); /* the lock: as for the token */
    memcpy(self->token.path, path, sizeof path);
    return EN_OK;
}

/* If a launcher has placed ranks on several hosts, rank 0 must be reachable from them. */
static en_status check_reachable(const eni_rank *self, const eni_address *listen)
{
    const eni_join_options *c = &self->asked;
    eni_own_address own;
    if (c->local_size == 0 || c->local_size >= self->world.nranks || c->host_id != NULL) return EN_OK;
    if (!c->has_rendezvous)
        return eni_fail(EN_EINVAL, "join",
                        "%lld of %d ranks are on this host, but their launcher does not say where rank 0 is: "
                        "use --rendezvous=tcp://HOST:PORT, or file:///PATH on a disk that all hosts share",
                        (long long)c->local_size, self->world.nranks);
    if (is_file(self) || self->world.rank != 0 || eni_address_is_anywhere(listen)) return EN_OK;
    EN_TRY(eni_host_info_address(listen, &own));
    if (!own.is_loopback) return EN_OK;
    return eni_fail(
        EN_EINVAL, "join",
        "rank 0 would listen on %s, which is the loopback of this host (%s): %d of %d ranks are on other "
        "hosts and cannot reach it; use --rendezvous=tcp://ADDRESS:PORT, or correct /etc/hosts",
        listen->host, self->host, self->world.nranks - (int)c->local_size, self->world.nranks);
}

static en_status lead(eni_rank *self)
{
    EN_TRY(choose_token(self));
    if (is_file(self)) return lead_by_file(self);
    eni_address listen;
    EN_TRY(eni_address_parse(self->asked.rendezvous, &listen));
    EN_TRY(check_reachable(self, &listen));
    /* Alone there is nobody to meet: any free port will do. */
    if (self->world.nranks == 1 && !self->asked.has_rendezvous) listen.port = 0;
    EN_TRY(start_leader(self, &listen));
    return leave_token(self, eni_leader_address(self->leader)->port);
}

/* ---- the others ---- */

/* Either nobody listens there yet, or the listener is not ours. */
static void say_no_token(int level, const eni_rank *self, const eni_address *leader, const char *path,
                         int64_t begin_ns)
{
    int fd = -1, error = 0;
    char at[ENI_ADDRESS_TEXT];
    const char *who = eni_rank_has_store(self) ? "psd" : "rank 0";
    const double seconds = (double)(eni_now_ns() - begin_ns) / (double)ENI_SECOND;
    eni_address_format(leader, at);
    if (eni_tcp_attempt(leader, eni_now_ns() + ENI_SECOND, -1, &fd, &error) == EN_OK) {
        close(fd);
        eni_log(
            level, "join",
            "no token at %s after %.1f s, although a process listens at %s: check that it is %s of the same "
            "user, or copy its token file here and use --token-file",
            path, seconds, at, who);
    } else {
        eni_log(level, "join", "no token at %s after %.1f s, and %s: %s", path, seconds, at,
                eni_tcp_failure(error));
    }
}

/* A token file under a port belongs to this host's port only. */
static en_status check_near(const eni_rank *self, const eni_address *leader)
{
    eni_own_address own;
    char at[ENI_ADDRESS_TEXT];
    if (self->asked.token_file != NULL) return EN_OK;
    EN_TRY(eni_host_info_address(leader, &own));
    if (own.is_remote_here) return EN_OK;
    eni_address_format(leader, at);
    return eni_fail(EN_ENOENT, "join",
                    "no token for %s, which is another host: copy the token file of %s here and use "
                    "--token-file=FILE (or ENTRAIN_TOKEN_FILE)%s",
                    at, eni_rank_has_store(self) ? "psd" : "rank 0",
                    eni_rank_has_store(self)
                        ? ""
                        : ", or meet by --rendezvous=file:///PATH on a disk that all hosts share");
}

/* A member may be started before its leader: the file is looked for until the deadline. */
static en_status read_token(eni_rank *self, const eni_address *leader, int64_t deadline_ns)
{
    char path[512];
    const int64_t begin = eni_now_ns();
    const bool is_users = self->asked.token_file != NULL;
    int64_t say = begin + 5 * ENI_SECOND;
    if (self->asked.token_fd >= 0) return eni_token_read_fd(self->asked.token_fd, &self->token.value);
    EN_TRY(check_near(self, leader));
    EN_TRY(token_file(self, leader->port, path, sizeof path));
    while (access(path, F_OK) != 0 || (!is_users && eni_writer_look(path) == ENI_WRITER_ENDED)) {
        EN_TRY(eni_rank_alive(self));
        const int64_t now = eni_now_ns();
        if (now > deadline_ns) {
            say_no_token(ENI_LOG_ERROR, self, leader, path, begin);
            return EN_ENOENT;
        }
        if (now > say) {
            say_no_token(ENI_LOG_WARN, self, leader, path, begin);
            say = now + 30 * ENI_SECOND;
        }
        eni_sleep_until(now + 20 * ENI_MILLI);
    }
    return eni_token_read(path, &self->token.value);
}

static en_status follow(eni_rank *self, int64_t deadline_ns, eni_address *leader_out)
{
    const eni_join_options *c = &self->asked;
    if (!eni_rank_has_store(self) && is_file(self)) {
        char path[sizeof self->token.path];
        uint16_t port;
        EN_TRY(eni_file_rendezvous_parse(c->rendezvous, path, sizeof path, &port));
        return eni_file_rendezvous_find(path, self->host_id, deadline_ns, eni_rank_alive, self,
                                        &self->token.value, leader_out);
    }
    if (!eni_rank_has_store(self)) EN_TRY(check_reachable(self, NULL));
    EN_TRY(eni_address_parse(eni_rank_has_store(self) ? c->server : c->rendezvous, leader_out));
    return read_token(self, leader_out, deadline_ns);
}

static en_status check_asked(const eni_rank *self)
{
    if (eni_rank_has_store(self) && self->asked.server == NULL)
        return eni_fail(EN_EINVAL, "join",
                        "%s keeps its weights on a server: start entrain psd --strategy=%s --world-size=%d, "
                        "and give its address with --server=tcp://HOST:PORT",
                        self->job.strategy->name, self->job.strategy->name, self->world.nranks);
    if (eni_rank_has_store(self) || self->world.rank >= 0) return EN_OK;
    return eni_fail(
        EN_EINVAL, "join",
        "this is one of %d ranks, but --rank is missing: use --rank=0 to --rank=%d, or a launcher",
        self->world.nranks, self->world.nranks - 1);
}

static en_status rendezvous(eni_rank *self, int64_t deadline_ns, eni_address *leader_out)
{
    EN_TRY(check_asked(self));
    if (eni_rank_has_store(self) || self->world.rank > 0) return follow(self, deadline_ns, leader_out);
    EN_TRY(lead(self));
    *leader_out = *eni_leader_address(self->leader);
    if (leads_everywhere(self)) snprintf(leader_out->host, sizeof leader_out->host, "127.0.0.1");
    return EN_OK;
}

/* A program's tensors and memories one by one, as far as there is room: the first one that differs is named. */
static en_status add_tensors(const eni_job *job, eni_run_spec *spec)
{
    const en_schema *schema = &job->schema;
    const uint32_t n = schema->ntensors + schema->nbuffers;
    for (uint32_t t = 0; t < n && spec->n < ENI_RUN_SPEC_MAX / 2 && spec->used < ENI_RUN_SPEC_BYTES / 4;
         t++) {
        const en_model_tensor *tensor = eni_schema_tensor(schema, t);
        const bool is_memory = t >= schema->ntensors;
        char key[EN_MAX_TENSOR_NAME + 8], shape[ENI_ST_SHAPE_TEXT], value[2 * ENI_ST_SHAPE_TEXT];
        int64_t order[EN_MAX_DIMS];
        uint32_t group = 0;
        snprintf(key, sizeof key, "%s %s", is_memory ? "memory" : "tensor", tensor->name);
        snprintf(value, sizeof value, "%s %s", eni_st_dtype_text(tensor->dtype),
                 eni_st_shape_text(tensor->shape, tensor->ndim, shape));
        for (uint32_t d = 0; d < tensor->ndim; d++)
            order[d] = tensor->order[d];
        if (eni_rows_differ(tensor))
            eni_text_add(value, sizeof value, " with dimensions in the order %s",
                         eni_st_shape_text(order, tensor->ndim, shape));
        if (tensor->kind == EN_TENSOR_OWN) eni_text_add(value, sizeof value, " of each rank");
        if (!is_memory) (void)eni_group_end(job->groups, tensor->offset, tensor->offset + 1, &group);
        if (group > 0)
            eni_text_add(value, sizeof value, " with lr_factor %.9g and weight_decay %.9g",
                         (double)job->groups->group[group].lr_factor,
                         (double)job->groups->group[group].weight_decay);
        eni_text_add(value, sizeof value, " at place %u", is_memory ? t - schema->ntensors : t);
        EN_TRY(eni_run_spec_add(spec, key, value));
    }
    return EN_OK;
}

/* The orders of all tensors, if not all are row-major. schema-sha256 lacks them: checkpoints may be resumed with others. */
static en_status add_orders(const en_schema *schema, eni_run_spec *spec)
{
    char hex[ENI_DIGEST_HEX];
    eni_digest digest;
    bool differ = false;
    eni_digest_begin(&digest);
    for (uint32_t t = 0; t < schema->ntensors + schema->nbuffers; t++) {
        const en_model_tensor *tensor = eni_schema_tensor(schema, t);
        differ = differ || eni_rows_differ(tensor);
        eni_digest_add(&digest, tensor->order, sizeof tensor->order);
    }
    eni_digest_end(&digest, hex);
    return differ ? eni_run_spec_add(spec, "tensor-orders-sha256", hex) : EN_OK;
}

/* Identifies the training by contents: a name can stand for different things on two hosts. */
static en_status add_contents(const eni_rank *self, eni_run_spec *spec)
{
    const bool is_program = self->job.schema.nnodes == 0;
    if (is_program) EN_TRY(eni_run_spec_add(spec, "model", self->trainer.about.model));
    if (is_program) EN_TRY(add_tensors(&self->job, spec));
    EN_TRY(eni_run_spec_add(spec, "schema-sha256", self->job.schema_sha256));
    EN_TRY(add_orders(&self->job.schema, spec));
    EN_TRY(eni_run_spec_add(spec, "data", self->trainer.about.data));
    EN_TRY(eni_run_spec_add(spec, "data-sha256", self->job.data_sha256));
    if (is_program) EN_TRY(eni_run_spec_add_whole(spec, "train-samples", self->job.plan.train_samples));
    EN_TRY(
        eni_run_spec_add(spec, "pixels", self->trainer.about.pixels.normalize)); /* of the set, by default */
    EN_TRY(eni_run_spec_add_whole(spec, "checkpoint-every", self->saving.asked.every));
    EN_TRY(eni_run_spec_add(spec, "resume",
                            self->saving.is_resumed ? self->saving.past.digest : "from the start"));
    if (self->trainer.writes_arena)
        EN_TRY(eni_run_spec_add(spec, "weights",
                                self->trainer.steps_itself || self->trainer.ops->step != NULL
                                    ? "stepped by the program"
                                    : "of each rank"));
    return eni_run_spec_add(spec, "device-type", self->trainer.about.device);
}

/* Groups in explicit form: --groups=2 is 0-1;2-3 of four ranks. Hosts are known only when all are there. */
static en_status add_groups(const eni_rank *self, eni_run_spec *spec)
{
    const char *asked = self->exchange.asked.groups;
    char text[ENI_RANK_GROUPS_TEXT];
    if (!eni_rank_uses_groups(self)) return EN_OK;
    if (asked == NULL) return eni_run_spec_add(spec, "rank-groups", "hosts");
    int32_t *groups = eni_alloc_array((size_t)self->world.nranks, sizeof *groups);
    en_status st = groups == NULL ? EN_ENOMEM : eni_rank_groups_read(asked, self->world.nranks, groups);
    if (st == EN_OK) eni_rank_groups_text(groups, self->world.nranks, text, sizeof text);
    if (st == EN_OK) st = eni_run_spec_add(spec, "rank-groups", text);
    eni_free(groups);
    return st;
}

/* After the build and the flags, which are in it (rank_options.h). */
static en_status agree(const eni_rank *self, eni_run_spec *spec)
{
    const eni_exchange_options *asked = &self->exchange.asked;
    const eni_run_attributes attributes = {.strategy = self->job.strategy->name,
                                           .strategy_options = eni_options_canonical(self->job.options),
                                           .optimizer = self->job.optimizer,
                                           .hyper = self->job.hyper,
                                           .schedule = self->job.schedule,
                                           .sum_order = asked->sum_order,
                                           .seed = self->job.seed,
                                           .budget = self->job.plan.micro_batches - self->saving.first_micro,
                                           .elements = self->job.schema.count,
                                           .net_bytes_per_s = asked->net_bytes_per_s,
                                           .net_delay_ns = asked->net_delay_ns,
                                           .buckets = self->job.buckets};
    EN_TRY(eni_run_spec_add_method(spec, &attributes));
    EN_TRY(add_contents(self, spec));
    EN_TRY(add_groups(self, spec));
    return eni_run_spec_add_run(spec, &attributes);
}

/* ---- the address announced to the others ---- */

/* Ours on the route to the leader. A leader on all interfaces is reached as in mesh.h. */
static en_status open_mesh(eni_rank *self, const eni_address *leader)
{
    eni_own_address own;
    char name[32];
    if (leads_everywhere(self)) {
        eni_info("join", "rank 0 on %s: all interfaces (leads at port %u)", self->host, leader->port);
        return eni_mesh_open("0.0.0.0", leader->host, self->asked.is_insecure, &self->mesh);
    }
    EN_TRY(eni_host_info_address(leader, &own));
    snprintf(name, sizeof name, self->is_newcomer ? "a newcomer" : "rank %d", self->world.rank);
    /* On one host, started by us, the address needs no line. */
    eni_log(own.is_loopback && self->asked.token_fd >= 0 ? ENI_LOG_DEBUG : ENI_LOG_INFO, "join",
            "%s on %s: %s via %s (%s %s:%u%s)", name, self->host, own.host, own.interface,
            self->leader != NULL ? "leads at" : "route to", leader->host, leader->port,
            self->leader != NULL ? self->asked.rendezvous_note : "");
    return eni_mesh_open(own.host, leader->host, self->asked.is_insecure, &self->mesh);
}

/* Fails now, on all ranks, instead of at a connection refused much later. --host-id only simulates hosts. */
static en_status check_reach(const eni_rank *self)
{
    const eni_peer *own = &self->info->peers[self->info->rank];
    for (int r = 0; r < self->info->nranks && self->asked.host_id == NULL; r++) {
        const eni_peer *peer = &self->info->peers[r];
        const char *data = eni_key_value_find(peer->member_data, peer->nmember_data, "data");
        eni_address address;
        if (data == NULL || strcmp(peer->host_id, own->host_id) == 0) continue;
        EN_TRY(eni_address_parse(data, &address));
        if (!eni_address_is_loopback(&address)) continue;
        return eni_fail(
            EN_EINVAL, "join",
            "rank %d on %s takes part with its loopback address (%s), but rank %d is on another host (%s): "
            "start it with the address of rank 0 that the others use, not with localhost",
            r, peer->host, address.host, own->rank, own->host);
    }
    return EN_OK;
}

/* Containers of one machine each have a network namespace, unless they are set up to share one. */
static void tell_apart(const eni_rank *self)
{
    const eni_peer *own = &self->info->peers[self->info->rank];
    for (int r = 0; r < self->info->nranks; r++) {
        const eni_peer *peer = &self->info->peers[r];
        const char *why = eni_host_info_apart(own->host_id, peer->host_id);
        if (why == NULL) continue;
        eni_info("join",
                 "rank %d is on this machine, but %s: it cannot share memory with rank %d, so they use TCP",
                 r, why, own->rank);
        return;
    }
}

/* ---- the world as the strategy sees it ---- */

static en_status describe_world(eni_rank *self)
{
    const eni_world_info *info = self->info;
    const char *asked = self->exchange.asked.groups;
    const size_t bytes = (size_t)info->nranks * sizeof(int32_t);
    int32_t *hosts = eni_alloc(bytes);
    self->groups = eni_alloc(bytes);
    en_status st = hosts == NULL || self->groups == NULL ? EN_ENOMEM : EN_OK;
    for (int r = 0; st == EN_OK && r < info->nranks; r++)
        while (strcmp(info->peers[hosts[r]].host_id, info->peers[r].host_id) != 0)
            hosts[r]++;
    if (st == EN_OK && asked != NULL) st = eni_rank_groups_read(asked, info->nranks, self->groups);
    if (st == EN_OK && asked == NULL) memcpy(self->groups, hosts, bytes);
    if (st == EN_OK) {
        self->world = (en_world){
            .size = sizeof self->world, .epoch = info->epoch, .rank = info->rank, .nranks = info->nranks};
        self->has_own_groups = memcmp(self->groups, hosts, bytes) != 0;
        eni_rank_groups_place(hosts, self->groups, &self->world);
    }
    eni_free(hosts);
    return st;
}

en_status eni_rank_join(eni_rank *self)
{
    const eni_join_options *c = &self->asked;
    int64_t deadline = eni_now_ns() + c->join_timeout_ns;
    eni_address leader;
    char who[ENI_HOST_MAX + 16];
    eni_host_info_name(self->host);
    EN_TRY(eni_host_info_id(c->host_id, self->host_id));
    EN_TRY(rendezvous(self, deadline, &leader));
    EN_TRY(open_mesh(self, &leader));
    EN_TRY(agree(self, c->spec));
    char shown_every[24];
    snprintf(shown_every, sizeof shown_every, "%llu", (unsigned long long)eni_records_shown_every(self));
    eni_key_value member_data[] = {
        {"data", self->mesh.address}, {"arena", self->mesh.name}, {"shown-every", shown_every}};
    eni_member_config config = {.leader = leader,
                                .token = self->token.value,
                                .rank = self->world.rank,
                                .nranks = self->world.nranks,
                                .host = self->host,
                                .host_id = self->host_id,
                                .key_values = c->spec->key_value,
                                .nkey_values = c->spec->n,
                                .member_data = member_data,
                                .nmember_data = 3,
                                .join_deadline_ns = deadline,
                                .peer_timeout_ns = c->peer_timeout_ns,
                                .is_slowed = self->exchange.asked.net != NULL,
                                .server_timeout_ns = c->server_timeout_ns,
                                .abort_fd = self->abort_fd,
                                .ended = &self->ended};
    EN_TRY(eni_member_open(&config, &self->member));
    self->info = eni_member_world(self->member);
    if (self->is_newcomer) { /* micro-batches are counted from where the others began */
        self->saving.first_micro = self->job.plan.micro_batches - self->info->budget;
        self->records.stats.before_ns = eni_member_came_after(self->member) - eni_now_ns();
    }
    const eni_peer *first = &self->info->peers[0]; /* rank 0, which shows the scores, sets the interval */
    const char *every = eni_key_value_find(first->member_data, first->nmember_data, "shown-every");
    self->records.shown_every = every == NULL ? 0 : strtoull(every, NULL, 10);
    EN_TRY(check_reach(self));
    EN_TRY(describe_world(self));
    snprintf(who, sizeof who, "%s:%d", self->host, self->world.rank);
    eni_log_set_who(who);
    tell_apart(self);
    eni_debug("join", "[%" PRId64 "] world size %d, rank %d, leader %s:%u, this rank at %s",
              (int64_t)getpid(), self->world.nranks, self->world.rank, leader.host, leader.port,
              self->mesh.address);
    return EN_OK;
}

/* ---- the end: in good order, or because this rank has failed, for a reason sent to the others ---- */

/* The cause of a failed wait. If a peer is gone, a process died, and the leader, which knows which, reports
 * it soon after the broken data socket; or the user stopped all of us, and we are not the first to go. An
 * address or file that fails may be left by a dead process: then its death is the cause. */
en_status eni_rank_cause(eni_rank *self, en_status st)
{
    const bool is_alone = st == EN_EPEER;
    const int64_t patience_ns = is_alone ? 2 * ENI_SECOND : 300 * ENI_MILLI;
    if (is_alone && eni_shutdown_is_asked(self->shutdown)) return EN_EINTR;
    if (!is_alone && st != EN_ENOENT && st != EN_EIO && st != EN_EDENIED && st != EN_EPROTO) return st;
    if (self->member == NULL) return st;
    const en_status verdict = eni_member_verdict(self->member, eni_now_ns() + patience_ns);
    if (is_alone) return eni_shutdown_is_asked(self->shutdown) ? EN_EINTR : EN_EPEER;
    return verdict == EN_EPEER ? EN_EPEER : st;
}

void eni_rank_give_up(eni_rank *self, en_status st)
{
    char reason[ENI_REASON_MAX] = "", said[ENI_REASON_MAX];
    /* The exact sentence that this rank has logged: the survivors get the cause, not its class. */
    const char *why = st != EN_EINTR && eni_log_last_error(said, sizeof said) ? said : en_status_str(st);
    eni_shutdown_heard(self->shutdown);
    if (self->exchange.net != NULL)
        eni_net_abort(self->exchange.net); /* the peers may be gone: unsent messages would cost 2 s */
    if (self->member != NULL) {
        memcpy(reason, eni_member_outcome(self->member).reason, sizeof reason);
        if (reason[0] == 0) eni_member_abort(self->member, why);
    } else if (self->leader != NULL) {
        snprintf(reason, sizeof reason, "rank %d gave up: %.480s", self->world.rank, why);
        eni_leader_abort(self->leader, reason);
    }
    /* The leader names the rank that gave up; if it were stopped before, the others would only see it end. */
    if (self->leader != NULL) eni_leader_wait(self->leader, eni_now_ns() + 2 * ENI_SECOND, -1);
    const eni_run_outcome outcome =
        self->leader != NULL ? eni_leader_outcome(self->leader) : (eni_run_outcome){0};
    if (outcome.has_death && self->asked.launcher_fd >= 0)
        eni_failure_write(self->asked.launcher_fd, &outcome.death); /* also without a member */
    if (st == EN_EINTR)
        eni_result_cut_short(self, "interrupted", "");
    else
        eni_result_cut_short(self, "failed", reason[0] != 0 ? reason : why);
}

void eni_rank_close_door(const eni_rank *self)
{
    if (self->token.path[0] != 0) eni_token_remove(self->token.path);
}

/* The token goes first: once the port is free, another leader may write its own there. */
static void stop_leading(eni_rank *self)
{
    eni_rank_close_door(self);
    self->token.path[0] = 0;
    eni_leader_stop(self->leader);
    self->leader = NULL;
}

en_status eni_rank_bye(eni_rank *self)
{
    EN_TRY(eni_member_bye(self->member, eni_rank_answer_by(self, 10 * ENI_SECOND)));
    /* The leader stays until the last has left: its end would look like a death to the others. */
    if (self->leader == NULL) return EN_OK;
    EN_TRY(eni_leader_wait(self->leader, eni_now_ns() + 60 * ENI_SECOND, self->abort_fd));
    stop_leading(self);
    return EN_OK;
}

void eni_rank_leave(eni_rank *self)
{
    eni_member_close(self->member);
    self->member = NULL;
    eni_mesh_close(&self->mesh);
    eni_free(self->groups);
    self->groups = NULL;
    stop_leading(self);
    if (self->token.lock >= 0) close(self->token.lock);
}
