/* psd_return.c - psd comes back: what it writes down of a run, and how it begins from that. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/env.h"
#include "config/folders.h"
#include "config/units.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/client/endpoints.h"
#include "runtime/control/control.h"
#include "runtime/net/host_info.h"
#include "runtime/spec/plugin.h"
#include "server/psd.h"
#include "server/psd_impl.h"

/* ---- how psd comes back -------------------------------------------------------------------------------- */

static en_status other_run(const eni_psd *psd)
{
    const eni_run_file *past = psd->past;
    eni_error("psd",
              "%s holds the state of another run (%s, %d workers, %d shards, by version %s): this psd was "
              "started for %s, %d workers, %d shards; take the folder away to begin anew",
              eni_state_path(psd->state), past->attributes.strategy, past->nranks, past->attributes.nshards,
              past->attributes.version, psd->strategy->name, psd->nranks, psd->nshards);
    return EN_EINVAL;
}

/* What the folder says, as the leader wants it. */
static en_status revive(eni_psd *psd)
{
    const eni_run_file *past = psd->past;
    if (strcmp(past->attributes.strategy, psd->strategy->name) != 0 || past->nranks != psd->nranks ||
        (psd->config->shards > 0 && past->attributes.nshards != psd->nshards) ||
        (psd->version && strcmp(past->attributes.version, psd->version) != 0))
        return other_run(psd);
    psd->revived = (eni_revived){.key_values = past->key_values,
                                 .nkey_values = past->nkey_values,
                                 .peers = past->peers,
                                 .epoch = past->epoch,
                                 .incarnation = past->incarnation,
                                 .stop_step = ENI_STEP_NEVER};
    psd->revived.rank = eni_alloc_array((size_t)psd->nranks, sizeof *psd->revived.rank);
    if (!psd->revived.rank) return EN_ENOMEM;
    eni_psd_set_shards(psd, past->attributes.nshards);
    EN_TRY(eni_journal_open(psd->state, past->incarnation, psd->nranks, 0, &psd->journal));
    EN_TRY(eni_journal_fold(psd->journal, &psd->revived));
    eni_info("psd", "%s: going on with the run of %d workers, epoch %u, %llu micro-batches handed out",
             eni_state_path(psd->state), psd->nranks, past->epoch + 1,
             (unsigned long long)psd->revived.claimed);
    return EN_OK;
}

/* Opens the folder, and reads the previous incarnation if there was one. EN_EMISMATCH, EN_EFORMAT and others, logged:
 * there is something of no use. */
static en_status open_state(eni_psd *psd)
{
    if (!psd->config->state) return EN_OK;
    if (psd->nservers > 1) {
        eni_error("psd", "--state with --servers=%d: a psd among several cannot come back yet",
                  psd->nservers);
        return EN_EINVAL;
    }
    EN_TRY(eni_state_open(psd->config->state, &psd->state));
    const en_status st = eni_run_file_read(psd->state, &psd->past);
    if (st == EN_OK) return revive(psd);
    if (st != EN_ENOENT) return EN_EINVAL;
    eni_state_clear(psd->state); /* of a run that had not begun */
    return EN_OK;
}

/* The world is known and the shards are open: from here on this psd can come back. */
static en_status write_run(eni_psd *psd, const eni_world_info *world)
{
    const eni_served attributes = {psd->strategy->name, psd->version, psd->nshards, psd->token};
    if (!psd->state) return EN_OK;
    if (!psd->past) EN_TRY(eni_journal_open(psd->state, world->incarnation, psd->nranks, 1, &psd->journal));
    return eni_run_file_write(psd->state, &attributes, world);
}

/* leader_config.journal. */
static en_status log_entry(void *user, const eni_entry *entry)
{
    eni_psd *psd = user;
    if (psd->journal) eni_journal_write(psd->journal, entry);
    return EN_OK;
}

/* The run is over: nothing to come back to. */
static void close_state(eni_psd *psd)
{
    eni_journal_close(psd->journal);
    if (psd->state && (psd->leader || !psd->past)) eni_state_clear(psd->state);
    eni_state_close(psd->state);
    eni_run_file_free(psd->past);
    eni_free(psd->revived.rank);
}

/* ---- psd 1 and up -------------------------------------------------------------------------------------- */

/* Psd 1 and up: it joins psd 0, which leads, and serves its share of the shards. */

enum { MEMBER_STOP_MS = 600, RETRY_MS = 20 };

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
static void on_rank_left(void *user, int32_t rank)
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

/* ---- psd_member.c: psd 1 and up, instead of a leader */
static en_status join_leader(eni_psd *psd)
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
        .stop_grace_ns = MEMBER_STOP_MS * ENI_MILLI,
        .on_serve = on_serve,
        .on_ask = on_ask,
        .on_left = on_rank_left,
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

static en_status await_end(eni_psd *psd)
{
    char reason[ENI_REASON_MAX];
    en_status st = eni_member_await_end(psd->member, INT64_MAX);
    if (eni_member_is_stopping(psd->member, reason)) st = EN_EINTR;
    if (st != EN_OK && psd->net) eni_net_abort(psd->net);
    return st;
}

/* ---- the run ------------------------------------------------------------------------------------------- */

enum { MAX_SPANS = 1 << 17, STOP_MS = 500 };

/* On the leader's thread. */
static en_status on_world(void *user, const eni_world_info *world, eni_terms *terms)
{
    eni_psd *p = user;
    EN_TRY(eni_psd_open_shards(p, world, terms->reason));
    const en_status st = write_run(p, world);
    if (st != EN_OK) {
        snprintf(terms->reason, sizeof terms->reason, "psd cannot write into --state=%.200s: %s",
                 p->config->state, en_status_str(st));
        return st;
    }
    const char *loss = eni_key_value_find(world->key_values, world->nkey_values, "on-worker-loss");
    terms->goes_on = loss && strcmp(loss, "continue") == 0;
    terms->budget = p->setup.budget;
    terms->member_data = p->member_data;
    terms->nmember_data = p->nmember_data;
    return EN_OK;
}

/* On the leader's thread: the run goes on without this rank. */
static void on_left(void *user, int32_t rank, uint64_t incarnation)
{
    (void)incarnation;
    eni_psd_lose(user, rank);
}

/* On the leader's thread: the last gather gets psd's own figures. */
static void on_gather(void *user, const char *tag, const eni_blob *blobs, size_t count, eni_blob *own_out)
{
    eni_psd *p = user;
    const size_t nranks = (size_t)p->nranks;
    if (strcmp(tag, "result") != 0) return;
    const char *report = eni_psd_report(p, blobs + nranks, count > nranks ? count - nranks : 0);
    if (report) *own_out = (eni_blob){(const uint8_t *)report, strlen(report)};
}

/* ---- the run ------------------------------------------------------------------------------------------- */

static en_status find_strategy(eni_psd *p, const char *plugins)
{
    char word[ENI_STRATEGY_WORD_MAX];
    const char *options;
    if (!p->config->strategy) {
        eni_error("psd", "which strategy? Give --strategy=ps-sync, or another of `entrain strategies`");
        return EN_EINVAL;
    }
    EN_TRY(eni_plugin_split(p->config->strategy, word, &options));
    EN_TRY(eni_plugin_find(plugins, word, &p->strategy));
    if (options[0]) EN_TRY(eni_options_new(p->strategy, options, &p->options));
    if (p->strategy->flags & EN_STORE_ON_SERVERS) return EN_OK;
    eni_error("psd", "%s keeps nothing on a server: its workers need no psd, only each other",
              p->strategy->name);
    return EN_EINVAL;
}

/* The token: inherited, from a file, or a fresh one that is left where workers of this user look. */
static en_status find_token(eni_psd *p)
{
    const eni_config *c = p->config;
    if (c->token_fd >= 0) EN_TRY(eni_token_read_fd((int)c->token_fd, &p->token));
    if (p->past) p->token = p->past->attributes.token; /* the workers know no other */
    if (c->token_fd >= 0 || p->past) return EN_OK;
    if (c->token_file && access(c->token_file, F_OK) == 0) return eni_token_read(c->token_file, &p->token);
    eni_token_make(&p->token);
    return EN_OK;
}

/* Written when the port is known. */
static en_status leave_token(eni_psd *p)
{
    const eni_config *c = p->config;
    char folder[256], path[sizeof p->token_path];
    if (c->token_fd >= 0) return EN_OK;
    if (c->token_file) {
        if (access(c->token_file, F_OK) == 0) return EN_OK;
        snprintf(path, sizeof path, "%s", c->token_file);
    } else {
        EN_TRY(eni_env_runtime_dir(folder, sizeof folder));
        EN_TRY(eni_token_path(folder, p->listen.port, path, sizeof path));
    }
    EN_TRY(eni_token_write_held(&p->token, path, &p->token_lock));
    memcpy(p->token_path, path, sizeof path);
    return EN_OK;
}

/* The workers' --server-timeout, which a psd that comes back knows from their key-values. */
static int64_t server_timeout(const eni_psd *p)
{
    int64_t ns = 0;
    const char *text =
        p->past ? eni_key_value_find(p->past->key_values, p->past->nkey_values, "server-timeout") : NULL;
    return text && eni_parse_duration(text, &ns) ? ns : 0;
}

static en_status start_leader(eni_psd *p)
{
    const eni_config *c = p->config;
    char launcher[24], out[1024], folder[256];
    const bool has_folder = eni_env_runtime_dir(folder, sizeof folder) == EN_OK;
    snprintf(launcher, sizeof launcher, "%d", c->result_fd >= 0 ? (int)getppid() : 0);
    eni_folder_absolute(c->out, out, sizeof out);
    const eni_key_value attributes[] = {
        {"strategy", p->strategy->name}, {"out", out}, {"launcher", launcher}};
    eni_leader_config config = {
        .listen_fd = (int)c->listen_fd,
        .is_insecure = c->insecure,
        .nranks = p->nranks,
        .nservers = p->nservers,
        .rank = -1,
        .host = p->host,
        .host_id = p->host_id,
        .token = p->token,
        .epoch = 1,
        .join_ns = c->join_timeout_ns,
        .peer_timeout_ns = c->peer_timeout_ns,
        .on_world = on_world,
        .on_gather = on_gather,
        .on_left = on_left,
        .journal = log_entry,
        .server_timeout_ns = server_timeout(p),
        .revived = p->past ? &p->revived : NULL,
        .status_folder = has_folder ? folder : NULL,
        .attributes = attributes,
        .nattributes = sizeof attributes / sizeof *attributes,
        .user = p,
    };
    eni_leader *leader;
    EN_TRY(eni_address_parse(c->listen, &p->listen));
    config.listen = p->listen;
    EN_TRY(eni_leader_start(&config, &leader));
    pthread_mutex_lock(&p->lock);
    p->leader = leader;
    const int has_failed = p->failure[0] != 0;
    pthread_mutex_unlock(&p->lock);
    if (has_failed) eni_leader_abort(leader, p->failure);
    p->listen.port = eni_leader_address(leader)->port;
    return EN_OK;
}

/* What to paste in the other terminals. */
static void print_lines(const eni_psd *p)
{
    char address[ENI_ADDRESS_TEXT], psd[4096], worker[4096], rest[4200];
    const char *token = p->config->token_file;
    if (p->config->quiet || p->config->listen_fd >= 0) return; /* a launcher starts the workers */
    if (eni_folder_program("worker", worker, sizeof worker) != EN_OK) return;
    if (eni_folder_program("psd", psd, sizeof psd) != EN_OK) return;
    eni_address at = p->listen;
    const int is_anywhere = eni_address_is_anywhere(&at);
    if (is_anywhere) memcpy(at.host, p->host, sizeof at.host);
    eni_address_format(&at, address);
    snprintf(rest, sizeof rest, "%s%s%s", token ? " --token-file=" : "", token ? token : "",
             p->config->insecure ? " --insecure" : "");
    for (int k = 1; k < p->nservers; k++)
        printf("%s --leader=%s --server-rank=%d --servers=%d --shards=%d --strategy=%s --world-size=%d%s\n",
               psd, address, k, p->nservers, p->own_shards, p->config->strategy, p->nranks, rest);
    printf("%s --strategy=%s --server=%s --rank=0 --world-size=%d%s\n", worker, p->config->strategy, address,
           p->nranks, rest);
    if (p->nranks > 1) printf("(one terminal a worker, --rank=0 to --rank=%d)\n", p->nranks - 1);
    fflush(stdout);
}

/* Which psd of how many, and which shards are its own. */
static en_status count_servers(eni_psd *p)
{
    const eni_config *c = p->config;
    if (c->world_size < 1) {
        eni_error("psd", "how many workers? Give --world-size=N");
        return EN_EINVAL;
    }
    if (c->server_rank >= c->servers) {
        eni_error("psd", "--server-rank=%lld: with --servers=%lld the last one is %lld",
                  (long long)c->server_rank, (long long)c->servers, (long long)c->servers - 1);
        return EN_EINVAL;
    }
    if ((c->server_rank > 0) != (c->leader != NULL)) {
        eni_error("psd",
                  "--server-rank=%lld, %s: psd 0 leads, every other psd joins it by "
                  "--leader=tcp://HOST:PORT",
                  (long long)c->server_rank, c->leader ? c->leader : "no --leader");
        return EN_EINVAL;
    }
    if (c->servers * c->shards > ENI_SHARDS_MAX) {
        eni_error("psd",
                  "%lld servers with %lld shards each are too many: a worker connects to at most %d shards",
                  (long long)c->servers, (long long)c->shards, ENI_SHARDS_MAX);
        return EN_EINVAL;
    }
    p->nranks = (int32_t)c->world_size;
    p->server = (int32_t)c->server_rank;
    p->nservers = (int32_t)c->servers;
    eni_psd_set_shards(p, c->shards > 0 ? (int32_t)c->shards : 1);
    eni_peer_name(-1 - p->server, p->name);
    return EN_OK;
}

static en_status open_psd(eni_psd *p, const char *plugins)
{
    const eni_config *c = p->config;
    EN_TRY(count_servers(p));
    if (p->server > 0) eni_log_set_who(p->name);
    EN_TRY(eni_folder_check("--out", c->out)); /* rank 0 makes it too; --trace may lie in it */
    EN_TRY(eni_target_check("--trace", c->trace));
    if (c->trace && !(p->trace = eni_trace_new(p->name, p->nranks + p->server, MAX_SPANS))) return EN_ENOMEM;
    EN_TRY(find_strategy(p, plugins));
    eni_host_info_name(p->host);
    EN_TRY(eni_host_info_id(c->host_id, p->host_id));
    EN_TRY(open_state(p));
    if (p->server > 0) return join_leader(p);
    EN_TRY(find_token(p));
    EN_TRY(start_leader(p));
    EN_TRY(leave_token(p));
    print_lines(p);
    return EN_OK;
}

/* The leader's thread opens shards and asks them for figures; a shard that fails calls the leader. So the
 * leader ends first (by itself, within the seconds of its goodbyes), then the shards, and only then it is
 * freed. A member's thread does the same as the leader's, but ends only when it is closed: the shards forget
 * it before. */
static void stop_threads(eni_psd *p)
{
    pthread_mutex_lock(&p->lock);
    eni_member *member = p->member;
    p->member = NULL;
    pthread_mutex_unlock(&p->lock);
    eni_member_close(member);
    if (p->leader) {
        eni_leader_abort(p->leader, "psd was stopped");
        eni_leader_wait(p->leader, INT64_MAX, -1);
    }
    eni_psd_stop_shards(p);
    eni_leader_stop(p->leader);
}

static void close_psd(eni_psd *p)
{
    eni_psd_close_shards(p);
    close_state(p);
    eni_options_free(p->options);
    if (p->token_path[0]) eni_token_remove(p->token_path);
    if (p->token_lock >= 0) close(p->token_lock);
    eni_trace_free(p->trace);
    pthread_mutex_destroy(&p->lock);
}

/* A signal is a wish: the run ends early and in good order, or else at once. */
static en_status end_early(eni_psd *p)
{
    eni_leader_stop_run(p->leader, "psd was told to end");
    eni_leader_wait(p->leader, eni_now_ns() + STOP_MS * ENI_MILLI, -1);
    if (!eni_leader_is_over(p->leader)) {
        eni_leader_abort(p->leader, "psd was told to end");
        eni_leader_wait(p->leader, eni_now_ns() + ENI_SECOND / 4, -1);
    }
    return EN_EINTR;
}

/* Waits for the end, and says how it came. */
static en_status serve(eni_psd *p, int signal_fd)
{
    char reason[ENI_REASON_MAX];
    eni_death death;
    en_status st = eni_leader_wait(p->leader, INT64_MAX, signal_fd);
    if (st == EN_EINTR && !eni_leader_is_over(p->leader)) st = end_early(p);
    if (eni_leader_is_stopping(p->leader, reason)) st = EN_EINTR;
    if (st != EN_OK && p->config->result_fd >= 0 && eni_leader_death(p->leader, &death) == EN_OK)
        eni_failure_write((int)p->config->result_fd, &death);
    if (st != EN_OK && p->net) eni_net_abort(p->net);
    eni_leader_reason(p->leader, reason);
    if (st != EN_OK && st != EN_EINTR && reason[0] == 0)
        eni_error("psd", "%s", en_status_str(st)); /* else the leader has said it */
    return st;
}

en_status eni_psd_run(const eni_config *config, const char *version, const char *plugins, int signal_fd)
{
    eni_psd p = {.config = config, .version = version, .token_lock = -1, .signal_fd = signal_fd};
    pthread_mutex_init(&p.lock, NULL);
    en_status st = open_psd(&p, plugins);
    if (st == EN_EIO || st == EN_ENOMEM) st = EN_EINVAL; /* nothing has begun: another command is needed */
    if (st == EN_OK) st = p.member ? await_end(&p) : serve(&p, signal_fd);
    stop_threads(&p); /* no shard may record while the spans are written */
    if (p.trace && st == EN_OK) st = eni_trace_write(p.trace, config->trace);
    close_psd(&p);
    return st;
}
