/* rendezvous.c - see rendezvous.h.
 *
 * The token comes, in this order, from the launcher's descriptor; with --rendezvous=file:// from that file;
 * from
 * --token-file; or, on one host, from the file that the leader of the same user leaves under its port. Across
 * hosts one of the first three must be given. It is never an argument. */
#include "worker/rendezvous.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/env.h"
#include "config/folders.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"
#include "runtime/control/file_rendezvous.h"

static int has_servers(const eni_worker *w)
{
    return (w->strategy->flags & EN_STORE_ON_SERVERS) != 0;
}

static int is_file(const eni_worker *w)
{
    return strncmp(w->config->rendezvous, "file://", 7) == 0;
}

int eni_worker_leads_everywhere(const eni_worker *w)
{
    return w->leader != NULL && eni_address_is_anywhere(eni_leader_address(w->leader));
}

/* ---- rank 0 ---- */

static en_status choose_token(eni_worker *w)
{
    const eni_config *c = w->config;
    if (c->token_fd >= 0) return eni_token_read_fd((int)c->token_fd, &w->token);
    if (c->token_file != NULL && access(c->token_file, F_OK) == 0)
        return eni_token_read(c->token_file, &w->token);
    eni_token_make(&w->token);
    return EN_OK;
}

static en_status start_leader(eni_worker *w, const eni_address *listen)
{
    const eni_config *c = w->config;
    char launcher[24], out[1024], folder[256];
    const bool has_folder = eni_env_runtime_dir(folder, sizeof folder) == EN_OK;
    snprintf(launcher, sizeof launcher, "%d", c->result_fd >= 0 ? (int)getppid() : 0);
    eni_folder_absolute(c->out, out, sizeof out);
    const eni_key_value attributes[] = {{"strategy", w->strategy->name},
                                        {"model", w->schema.network->name},
                                        {"out", out},
                                        {"launcher", launcher}};
    eni_leader_config config = {.listen = *listen,
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
                                .budget = w->plan.micro_batches - w->first_micro,
                                .status_folder = has_folder ? folder : NULL,
                                .attributes = attributes,
                                .nattributes = sizeof attributes / sizeof *attributes};
    return eni_leader_start(&config, &w->leader);
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

static en_status leave_token(eni_worker *w, uint16_t port)
{
    char path[sizeof w->token_path];
    if (w->config->token_fd >= 0 || w->world.nranks == 1) return EN_OK;
    if (w->config->token_file != NULL && access(w->config->token_file, F_OK) == 0)
        return EN_OK; /* the user's */
    EN_TRY(token_file(w, port, path, sizeof path));
    EN_TRY(eni_token_write_held(&w->token, path, &w->token_lock));
    memcpy(w->token_path, path, sizeof path); /* only now is it ours to remove */
    return EN_OK;
}

/* All addresses where other hosts may reach us; without --insecure the loopback only. */
static en_status lead_by_file(eni_worker *w)
{
    eni_address listen = {.host = "127.0.0.1"};
    eni_file_rendezvous rendezvous = {.pid = getpid()};
    char path[sizeof w->token_path];
    EN_TRY(eni_file_rendezvous_parse(w->config->rendezvous, path, sizeof path, &listen.port));
    EN_TRY(eni_file_rendezvous_check_free(path, w->host_id));
    if (w->config->insecure) snprintf(listen.host, sizeof listen.host, "0.0.0.0");
    EN_TRY(start_leader(w, &listen));
    uint16_t port = eni_leader_address(w->leader)->port;
    if (w->config->insecure)
        rendezvous.naddresses =
            eni_host_info_addresses(rendezvous.address, ENI_FILE_RENDEZVOUS_ADDRESSES - 1);
    snprintf(rendezvous.address[rendezvous.naddresses++].host, ENI_HOST_MAX, "127.0.0.1");
    for (int i = 0; i < rendezvous.naddresses; i++)
        rendezvous.address[i].port = port;
    rendezvous.token = w->token;
    memcpy(rendezvous.host, w->host, sizeof rendezvous.host);
    memcpy(rendezvous.host_id, w->host_id, sizeof rendezvous.host_id);
    EN_TRY(eni_file_rendezvous_write(&rendezvous, path, &w->token_lock)); /* the lock: as for the token */
    memcpy(w->token_path, path, sizeof path);
    return EN_OK;
}

/* A launcher has put ranks on several hosts, and this one is to be found by them. */
static en_status check_reachable(const eni_worker *w, const eni_address *listen)
{
    const eni_config *c = w->config;
    eni_own_address own;
    if (!eni_config_is_from_env(c, "local-size") || c->local_size >= w->world.nranks || c->host_id != NULL)
        return EN_OK;
    if (!eni_config_is_given(c, "rendezvous")) {
        eni_error("join",
                  "%lld of %d ranks are on this host, and their launcher does not say where rank 0 is: give "
                  "--rendezvous=tcp://HOST:PORT, or file:///PATH on a disk that all hosts share",
                  (long long)c->local_size, w->world.nranks);
        return EN_EINVAL;
    }
    if (is_file(w) || w->world.rank != 0 || eni_address_is_anywhere(listen)) return EN_OK;
    EN_TRY(eni_host_info_address(listen, &own));
    if (!own.is_loopback) return EN_OK;
    eni_error(
        "join",
        "rank 0 is to listen on %s, which is the loopback of this host (%s): %d of %d ranks are on other "
        "hosts and cannot reach it; give --rendezvous=tcp://ADDRESS:PORT, or correct /etc/hosts",
        listen->host, w->host, w->world.nranks - (int)c->local_size, w->world.nranks);
    return EN_EINVAL;
}

static en_status lead(eni_worker *w)
{
    EN_TRY(choose_token(w));
    if (is_file(w)) return lead_by_file(w);
    eni_address listen;
    EN_TRY(eni_address_parse(w->config->rendezvous, &listen));
    EN_TRY(check_reachable(w, &listen));
    /* Alone there is nobody to meet: any free port will do. */
    if (w->world.nranks == 1 && !eni_config_is_given(w->config, "rendezvous")) listen.port = 0;
    EN_TRY(start_leader(w, &listen));
    return leave_token(w, eni_leader_address(w->leader)->port);
}

/* ---- the others ---- */

/* Either nobody is there yet, or who is there does not mean us. */
static void say_no_token(int level, const eni_worker *w, const eni_address *leader, const char *path,
                         int64_t begin_ns)
{
    int fd = -1, error = 0;
    const char *who = has_servers(w) ? "psd" : "rank 0";
    const double seconds = (double)(eni_now_ns() - begin_ns) / (double)ENI_SECOND;
    if (eni_tcp_attempt(leader, eni_now_ns() + ENI_SECOND, -1, &fd, &error) == EN_OK) {
        close(fd);
        eni_log(level, "join",
                "no token at %s in %.1f s, though somebody listens at %s:%u: is that %s, started by the same "
                "user? Else copy its token file here and give --token-file",
                path, seconds, leader->host, leader->port, who);
    } else {
        eni_log(level, "join", "no token at %s in %.1f s, and %s:%u: %s", path, seconds, leader->host,
                leader->port, eni_tcp_failure(error));
    }
}

/* A file under a port says nothing about another host's port. */
static en_status check_near(const eni_worker *w, const eni_address *leader)
{
    eni_own_address own;
    if (w->config->token_file != NULL) return EN_OK;
    EN_TRY(eni_host_info_address(leader, &own));
    if (own.is_remote_here) return EN_OK;
    eni_error("join",
              "no token for %s:%u, which is another host: copy the token file of %s here and give "
              "--token-file=FILE (or ENTRAIN_TOKEN_FILE)%s",
              leader->host, leader->port, has_servers(w) ? "psd" : "rank 0",
              has_servers(w) ? "" : ", or meet by --rendezvous=file:///PATH on a disk that all hosts share");
    return EN_ENOENT;
}

/* A member may be started before its leader: the file is looked for until the deadline. */
static en_status read_token(eni_worker *w, const eni_address *leader, int64_t deadline_ns)
{
    char path[512];
    const int64_t begin = eni_now_ns();
    const int is_users = w->config->token_file != NULL;
    int64_t say = begin + 5 * ENI_SECOND;
    if (w->config->token_fd >= 0) return eni_token_read_fd((int)w->config->token_fd, &w->token);
    EN_TRY(check_near(w, leader));
    EN_TRY(token_file(w, leader->port, path, sizeof path));
    while (access(path, F_OK) != 0 || (!is_users && eni_token_is_stale(path))) {
        EN_TRY(eni_worker_alive(w));
        const int64_t now = eni_now_ns();
        if (now > deadline_ns) {
            say_no_token(ENI_LOG_ERROR, w, leader, path, begin);
            return EN_ENOENT;
        }
        if (now > say) {
            say_no_token(ENI_LOG_WARN, w, leader, path, begin);
            say = now + 30 * ENI_SECOND;
        }
        eni_sleep_until(now + 20 * ENI_MILLI);
    }
    return eni_token_read(path, &w->token);
}

static en_status follow(eni_worker *w, int64_t deadline_ns, eni_address *leader_out)
{
    const eni_config *c = w->config;
    if (!has_servers(w) && is_file(w)) {
        char path[sizeof w->token_path];
        uint16_t port;
        EN_TRY(eni_file_rendezvous_parse(c->rendezvous, path, sizeof path, &port));
        return eni_file_rendezvous_find(path, w->host_id, deadline_ns, eni_worker_alive, w, &w->token,
                                        leader_out);
    }
    if (!has_servers(w)) EN_TRY(check_reachable(w, NULL));
    EN_TRY(eni_address_parse(has_servers(w) ? c->server : c->rendezvous, leader_out));
    return read_token(w, leader_out, deadline_ns);
}

static en_status check_asked(const eni_worker *w)
{
    if (has_servers(w) && w->config->server == NULL) {
        eni_error("join",
                  "%s keeps its weights on a server: start psd --strategy=%s --world-size=%d, and give its "
                  "address by --server=tcp://HOST:PORT",
                  w->strategy->name, w->strategy->name, w->world.nranks);
        return EN_EINVAL;
    }
    if (has_servers(w) || w->world.rank >= 0) return EN_OK;
    eni_error("join",
              "which of the %d ranks is this? Give --rank=0 to --rank=%d, or start it with a launcher",
              w->world.nranks, w->world.nranks - 1);
    return EN_EINVAL;
}

en_status eni_worker_rendezvous(eni_worker *w, int64_t deadline_ns, eni_address *leader_out)
{
    EN_TRY(check_asked(w));
    if (has_servers(w) || w->world.rank > 0) return follow(w, deadline_ns, leader_out);
    EN_TRY(lead(w));
    *leader_out = *eni_leader_address(w->leader);
    if (eni_worker_leads_everywhere(w)) snprintf(leader_out->host, sizeof leader_out->host, "127.0.0.1");
    return EN_OK;
}
