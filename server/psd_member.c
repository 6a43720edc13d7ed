/* psd_member.c - psd 1 and up: it joins psd 0, which leads, and serves its share of the shards. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/env.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"
#include "server/psd_impl.h"

enum { STOP_MS = 600, RETRY_MS = 20 };

/* All ranks are there; or psd 0 came back, and the same world has another epoch. */
static en_status on_serve(void *user, const eni_world_info *world, const eni_key_value **member_data_out,
                          size_t *n_out)
{
    eni_psd *psd = user;
    char why[ENI_REASON_MAX] = "";
    const en_status st =
        psd->shards ? eni_psd_set_epoch(psd, world->epoch) : eni_psd_open_shards(psd, world, why);
    if (st != EN_OK)
        eni_error("psd", "psd %d cannot serve: %s", psd->server, why[0] ? why : en_status_str(st));
    *member_data_out = psd->member_data;
    *n_out = psd->nmember_data;
    return st;
}

/* psd 0 tells its own shards; these are ours. */
static void on_left(void *user, int32_t rank)
{
    eni_psd_lose(user, rank);
}

static void on_ask(void *user, const char *tag, eni_blob *own_out)
{
    eni_psd *psd = user;
    if (strcmp(tag, "result") != 0) return;
    const char *report = eni_psd_report(psd, NULL, 0);
    if (report) *own_out = (eni_blob){(const uint8_t *)report, strlen(report)};
}

/* psd 0 leaves it under its port; it may be started after us. */
static en_status read_token(eni_psd *psd, const eni_address *leader, int64_t deadline_ns)
{
    const eni_config *c = psd->config;
    char folder[256], path[512];
    if (c->token_fd >= 0) return eni_token_read_fd((int)c->token_fd, &psd->token);
    if (c->token_file) {
        snprintf(path, sizeof path, "%s", c->token_file);
    } else {
        EN_TRY(eni_env_runtime_dir(folder, sizeof folder));
        EN_TRY(eni_token_path(folder, leader->port, path, sizeof path));
    }
    while (access(path, F_OK) != 0) {
        if (eni_now_ns() > deadline_ns) {
            eni_error("psd",
                      "no token at %s: is psd 0 running on this host, by the same user? Else copy its token "
                      "file here and give --token-file",
                      path);
            return EN_ENOENT;
        }
        eni_sleep_until(eni_now_ns() + RETRY_MS * ENI_MILLI);
    }
    return eni_token_read(path, &psd->token);
}

en_status eni_psd_join(eni_psd *psd)
{
    const eni_config *c = psd->config;
    const int64_t deadline = eni_now_ns() + c->join_timeout_ns;
    eni_member_config config = {
        .rank = -1,
        .nranks = psd->nranks,
        .server = psd->server,
        .nservers = psd->nservers,
        .host = psd->host,
        .host_id = psd->host_id,
        .join_deadline_ns = deadline,
        .peer_timeout_ns = c->peer_timeout_ns,
        .abort_fd = psd->signal_fd,
        .stop_grace_ns = STOP_MS * ENI_MILLI,
        .on_serve = on_serve,
        .on_ask = on_ask,
        .on_left = on_left,
        .user = psd,
    };
    eni_member *member;
    EN_TRY(eni_address_parse(c->listen, &psd->listen));
    EN_TRY(eni_address_parse(c->leader, &config.leader));
    EN_TRY(read_token(psd, &config.leader, deadline));
    config.token = psd->token;
    EN_TRY(eni_member_open(&config, &member));
    pthread_mutex_lock(&psd->lock);
    psd->member = member;
    const int has_failed = psd->failure[0] != 0;
    pthread_mutex_unlock(&psd->lock);
    if (has_failed) eni_member_abort(member, psd->failure);
    return EN_OK;
}

en_status eni_psd_await_end(eni_psd *psd)
{
    char reason[ENI_REASON_MAX];
    en_status st = eni_member_await_end(psd->member, INT64_MAX);
    if (eni_member_is_stopping(psd->member, reason)) st = EN_EINTR;
    if (st != EN_OK && psd->net) eni_net_abort(psd->net);
    return st;
}
