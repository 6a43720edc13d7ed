/* psd.c - the parameter server of one run: its shards, the state that it leaves for its successor, its role
 * as leader (psd 0) or member, and the end. */
#include "server/psd.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/env.h"
#include "config/folders.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/try.h"
#include "plugin/plugin.h"
#include "run/units.h"
#include "runtime/client/client.h"
#include "runtime/control/member.h"
#include "runtime/net/host_info.h"
#include "runtime/spec/run_spec.h"
#include "runtime/spec/strategies.h"
#include "server/state.h"

/* The shards of all servers, and our own among them. */
typedef struct shares {
    int32_t server, nservers, nshards, own, first;
} shares;

enum { TOKEN_PATH = 512 };

typedef struct job_token {
    eni_token value;
    char path[TOKEN_PATH]; /* written by us; "" if it is not ours to remove */
    int lock;              /* held on it while we live; -1: none */
} job_token;

/* The leader or member. A shard may fail before main has set it, so all is under `lock`. */
typedef struct lead {
    pthread_mutex_t lock;
    eni_leader *leader; /* psd 0 */
    eni_member *member; /* psd 1 and up */
    char failure[ENI_REASON_MAX];
} lead;

/* With --state. */
typedef struct kept {
    eni_state *state;
    eni_journal *journal;
    eni_run_file *past; /* the previous incarnation; NULL if this is the first */
} kept;

/* One run. The lower half is filled by the thread that opens the shards (the leader's; for psd 1 and up the
 * member's); main reads it after that thread has ended. */
typedef struct eni_psd {
    const eni_config *config;
    const en_strategy *strategy;
    eni_hook_guard *hooks; /* of this process; NULL if unwatched */
    int32_t nranks;        /* that may ever join */
    shares share;
    char name[32];        /* "psd", "psd 1" */
    const char *version;  /* of this program */
    eni_options *options; /* as given to psd itself; NULL: none */
    eni_address listen;   /* the port as bound: known to main only */
    job_token token;
    char host[ENI_HOST_MAX], host_id[ENI_HOST_ID_MAX];
    int signal_fd;
    lead lead;
    kept kept;

    eni_setup setup;
    eni_net *net;
    eni_shaper *shaper;
    eni_trace *trace;
    eni_weights *weights; /* NULL: the workers get copies */
    eni_arenas *arenas;
    eni_shard **shards; /* (share.own) */
    uint8_t *is_client; /* (nranks) */
    eni_run_spec *told; /* sent to the workers */
    char *report;       /* freed with free() */
} eni_psd;

/* The ranks that the run begins with. */
static int32_t first_ranks(const eni_psd *psd)
{
    return (int32_t)psd->config->world_size;
}

/* ---- the shards ---------------------------------------------------------------------------------------- */

static void set_shards(eni_psd *psd, int32_t own_shards)
{
    psd->share.own = own_shards;
    psd->share.nshards = psd->share.nservers * own_shards;
    psd->share.first = psd->share.server * own_shards;
}

/* Adds `key` for shard or server `number` to the data for the workers. */
static en_status tell(eni_psd *psd, const char *key, int32_t number, const char *value)
{
    char numbered[32];
    snprintf(numbered, sizeof numbered, "%s.%d", key, number);
    return eni_run_spec_add(psd->told, numbered, value);
}

/* Under the lock, so that the leader or member cannot be freed meanwhile. */
static void tell_failure(const lead *to)
{
    if (!to->failure[0]) return;
    if (to->leader) eni_leader_abort(to->leader, to->failure);
    if (to->member) eni_member_abort(to->member, to->failure);
}

/* On a shard's thread. If main has not set the leader or member yet, it reports the failure when it does. */
static void on_shard_failure(void *user, const char *reason)
{
    eni_psd *psd = user;
    pthread_mutex_lock(&psd->lead.lock);
    snprintf(psd->lead.failure, sizeof psd->lead.failure, "%s", reason);
    tell_failure(&psd->lead);
    pthread_mutex_unlock(&psd->lead.lock);
}

/* Sets the leader or member, and reports a failure that came before. */
static void set_lead(eni_psd *psd, eni_leader *leader, eni_member *member)
{
    pthread_mutex_lock(&psd->lead.lock);
    psd->lead.leader = leader;
    psd->lead.member = member;
    tell_failure(&psd->lead);
    pthread_mutex_unlock(&psd->lead.lock);
}

/* Shards are bound and announced by number: ZeroMQ takes names for interfaces, and a name may mean another
 * address to a worker. A psd that listens on all interfaces announces the one towards the first worker of
 * another host. */
static en_status choose_host(const eni_psd *psd, const eni_world_info *world, char host_out[ENI_HOST_MAX])
{
    eni_own_address own;
    eni_address worker;
    if (!eni_address_is_anywhere(&psd->listen)) {
        EN_TRY(eni_host_info_address(&psd->listen, &own));
        memcpy(host_out, own.host, sizeof own.host);
        return EN_OK;
    }
    memcpy(host_out, psd->host, sizeof psd->host); /* clients other than workers have no data address */
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

/* One core's loads and stores limit large weights, and the workers' cores are idle while they wait; for small
 * weights a second shard only doubles the messages. Through sockets alone, the threads that copy need two cores
 * first (docs/performance.md). */
static void choose_shards(eni_psd *psd)
{
    enum { LARGE = 4 << 20 /* elements: 16 MiB */ };
    const int taken = psd->config->transport == ENI_TRANSPORT_TCP ? 2 : 0;
    if (psd->config->shards > 0 || psd->share.nservers > 1 || psd->kept.past) return;
    if (psd->setup.elements >= LARGE && eni_host_info_cores() > 1 + taken) set_shards(psd, 2);
}

/* --record-order */
static en_status create_arrivals(const eni_psd *psd, eni_shard_config *config)
{
    const eni_arrivals about = {.shard = config->index,
                                .nshards = psd->share.nshards,
                                .nranks = psd->nranks,
                                .nbuckets = psd->setup.store.nbuckets,
                                .elements = psd->setup.elements};
    return psd->config->record_order ? eni_arrivals_create(psd->config->out, &about, &config->arrivals)
                                     : EN_OK;
}

static en_status open_shard(eni_psd *psd, const eni_world_info *world, int32_t i)
{
    eni_shard_config config = {
        .net = psd->net,
        .is_insecure = psd->config->insecure,
        .setup = &psd->setup,
        .index = psd->share.first + i,
        .nshards = psd->share.nshards,
        .nown = psd->share.own,
        .nranks = psd->nranks,
        .nfirst = first_ranks(psd),
        .is_client = psd->is_client,
        .epoch = world->epoch,
        .incarnation = world->incarnation,
        .token = psd->token.value,
        .arenas = psd->arenas,
        .weights = psd->weights,
        .shaper = psd->shaper,
        .trace = psd->trace,
        .state = psd->kept.state,
        .out = psd->config->out,
        .state_every = (uint64_t)psd->config->state_every,
        .on_failure = on_shard_failure,
        .user = psd,
    };
    eni_address bound;
    char endpoint[ENI_ADDRESS_TEXT], host[ENI_HOST_MAX];
    EN_TRY(choose_host(psd, world, host));
    memcpy(config.listen.host, psd->listen.host, sizeof config.listen.host); /* the port is main's */
    if (!eni_address_is_anywhere(&config.listen)) memcpy(config.listen.host, host, sizeof host);
    EN_TRY(create_arrivals(psd, &config));
    EN_TRY(eni_shard_start(&config, &psd->shards[i], &bound));
    memcpy(bound.host, host, sizeof bound.host);
    eni_address_format(&bound, endpoint);
    return tell(psd, "shard", config.index, endpoint);
}

/* Shares the weights with the workers of this host, if they are in one piece: one psd, no wire to emulate. */
static en_status share_weights(eni_psd *psd)
{
    if (!(psd->strategy->flags & EN_ROUNDS) || psd->config->transport == ENI_TRANSPORT_TCP || psd->shaper)
        return EN_OK;
    if (psd->share.nservers > 1) {
        eni_debug("psd", "%d servers hold the weights in pieces: workers get copies", psd->share.nservers);
        return EN_OK;
    }
    const en_status st = eni_weights_open(psd->setup.elements, &psd->weights);
    return st == EN_EUNSUPPORTED ? EN_OK : st;
}

/* The run goes on without this rank: on_left of leader_config and member_config. */
static void lose(void *user, int32_t rank)
{
    const eni_psd *psd = user;
    for (int32_t i = 0; psd->shards && i < psd->share.own; i++)
        if (psd->shards[i]) eni_shard_leave(psd->shards[i], rank);
}

/* Every byte of every worker passes one of ZeroMQ's threads twice, so one is a limit: workers share them. */
static int copying_threads(const eni_psd *psd)
{
    enum { MOST = 4 };
    const int cores = eni_host_info_cores(), clients = psd->nranks < MOST ? psd->nranks : MOST;
    if (psd->config->transport == ENI_TRANSPORT_SHM) return 1;
    return clients < cores ? clients : cores;
}

static en_status open_all(eni_psd *psd, const eni_world_info *world)
{
    psd->shards = eni_alloc_array((size_t)psd->share.own, sizeof *psd->shards);
    psd->is_client = eni_alloc_array((size_t)psd->nranks, sizeof *psd->is_client);
    psd->told = eni_alloc(sizeof *psd->told);
    if (psd->shards == NULL || psd->is_client == NULL || psd->told == NULL) return EN_ENOMEM;
    /* All ranks, or, where leaders are the clients, the first of every host. */
    for (int32_t r = 0; r < psd->nranks; r++) {
        psd->is_client[r] = 1;
        for (int32_t q = 0; q < r && psd->strategy->flags & EN_LEADERS_ARE_CLIENTS; q++)
            if (strcmp(world->peers[q].host_id, world->peers[r].host_id) == 0) psd->is_client[r] = 0;
    }
    if (psd->config->transport != ENI_TRANSPORT_SHM) eni_memory_keep(); /* payloads come as messages */
    EN_TRY(eni_net_open(copying_threads(psd), &psd->net));
    if (psd->setup.net_bytes_per_s > 0 || psd->setup.net_delay_ns > 0) {
        psd->shaper = eni_shaper_new(psd->setup.net_bytes_per_s, psd->setup.net_delay_ns);
        if (psd->shaper == NULL) return EN_ENOMEM;
    }
    EN_TRY(share_weights(psd));
    const eni_arenas_config arenas = {.nranks = psd->nranks,
                                      .epoch = world->epoch,
                                      .elements = psd->setup.elements,
                                      .token = psd->token.value,
                                      .weights = psd->weights,
                                      .first_shard = psd->share.first,
                                      .own_shards = psd->share.own,
                                      .nshards = psd->share.nshards};
    EN_TRY(eni_arenas_start(&arenas, &psd->arenas));
    for (int32_t i = 0; i < psd->share.own; i++)
        EN_TRY(open_shard(psd, world, i));
    for (int32_t r = 0; psd->kept.past && r < psd->nranks; r++) {
        const eni_revived_rank *was = &psd->kept.past->revived.rank[r];
        if (was->has_left || (was->is_leaving && was->has_said_bye)) lose(psd, r);
    }
    EN_TRY(tell(psd, "host-id", psd->share.server, psd->host_id));
    if (psd->config->transport != ENI_TRANSPORT_TCP)
        EN_TRY(tell(psd, "arena", psd->share.server, eni_arenas_name(psd->arenas)));
    if (psd->share.server > 0) return EN_OK;
    EN_TRY(eni_run_spec_add_whole(psd->told, "shards", (uint64_t)psd->share.nshards));
    EN_TRY(eni_run_spec_add_whole(psd->told, "servers", (uint64_t)psd->share.nservers));
    if (psd->kept.state == NULL) return EN_OK;
    return eni_run_spec_add_whole(psd->told, "state-every", (uint64_t)psd->config->state_every);
}

/* Whether the strategy is a plugin given by its path. */
static bool is_foreign(const eni_psd *psd)
{
    char word[ENI_PLUGIN_WORD_MAX];
    const char *options;
    return eni_plugin_split("--strategy", psd->config->strategy, word, &options) == EN_OK &&
           eni_plugin_is_path(word);
}

static en_status open_shards(eni_psd *psd, const eni_world_info *world, char why_out[ENI_REASON_MAX])
{
    EN_TRY(eni_setup_read(psd->strategy, world->key_values, world->nkey_values, &psd->setup, why_out));
    EN_TRY(eni_psd_agree(psd->config, psd->options, world->key_values, world->nkey_values, &psd->setup,
                         why_out));
    choose_shards(psd);
    psd->setup.store.hooks = psd->hooks;
    psd->setup.store.judges_holds = true;
    psd->setup.store.watch = is_foreign(psd) ? ENI_WATCH_FIRST : ENI_WATCH_NONE;
    const en_status st = open_all(psd, world);
    if (st != EN_OK)
        snprintf(why_out, ENI_REASON_MAX, "psd cannot open its %d shards: %s", psd->share.own,
                 en_status_str(st));
    else
        eni_info("psd", "%d worker%s here: %u bucket%s, %llu elements, %s", first_ranks(psd),
                 first_ranks(psd) == 1 ? " is" : "s are", psd->setup.store.nbuckets,
                 psd->setup.store.nbuckets == 1 ? "" : "s", (unsigned long long)psd->setup.elements,
                 psd->strategy->name);
    return st;
}

static en_status set_epoch(eni_psd *psd, uint32_t epoch)
{
    eni_arenas_set_epoch(psd->arenas, epoch);
    for (int32_t i = 0; i < psd->share.own; i++)
        EN_TRY(eni_shard_set_epoch(psd->shards[i], epoch));
    return EN_OK;
}

/* psd's own figures for the last gather. `others`: the reports of psd 1, 2, .. */
static void add_report(eni_psd *psd, const char *tag, const eni_blob *others, size_t n, eni_blob *own_out)
{
    if (strcmp(tag, "result") != 0) return;
    free(psd->report);
    psd->report = eni_psd_report(psd->shards, psd->share.own, psd->nranks, psd->share.server, others, n);
    if (psd->report != NULL) *own_out = (eni_blob){(const uint8_t *)psd->report, strlen(psd->report)};
}

/* ---- coming back --------------------------------------------------------------------------------------- */

/* Restores the leader's part of the folder's state. */
static en_status revive(eni_psd *psd)
{
    eni_run_file *past = psd->kept.past;
    if (strcmp(past->attributes.strategy, psd->strategy->name) != 0 || past->nranks != psd->nranks ||
        (psd->config->shards > 0 && past->attributes.nshards != psd->share.nshards) ||
        (psd->version && strcmp(past->attributes.version, psd->version) != 0))
        return eni_fail(
            EN_EINVAL, "psd",
            "%s holds the state of another run (%s, workers: %d, shards: %d, by version %s): this psd was "
            "started for %s, workers: %d, shards: %d; remove the folder to start over",
            eni_state_path(psd->kept.state), past->attributes.strategy, past->nranks,
            past->attributes.nshards, past->attributes.version, psd->strategy->name, psd->nranks,
            psd->share.nshards);
    set_shards(psd, past->attributes.nshards);
    EN_TRY(
        eni_journal_open(psd->kept.state, past->revived.incarnation, psd->nranks, false, &psd->kept.journal));
    eni_journal_fold(psd->kept.journal, &past->revived);
    eni_info("psd", "%s: continuing the run of %d worker%s, epoch %u, %llu micro-batches handed out",
             eni_state_path(psd->kept.state), psd->nranks, psd->nranks == 1 ? "" : "s",
             past->revived.epoch + 1, (unsigned long long)past->revived.claimed);
    return EN_OK;
}

/* Opens the folder, and reads the previous incarnation if there was one. EN_EMISMATCH, EN_EFORMAT and others,
 * logged: its state cannot be used. */
static en_status open_state(eni_psd *psd)
{
    if (psd->config->state == NULL) return EN_OK;
    if (psd->share.nservers > 1)
        return eni_fail(
            EN_EINVAL, "psd",
            "--state is not supported with --servers=%d: a psd among several cannot come back yet",
            psd->share.nservers);
    EN_TRY(eni_state_open(psd->config->state, &psd->kept.state));
    const en_status st = eni_run_file_read(psd->kept.state, &psd->kept.past);
    if (st == EN_OK) return revive(psd);
    if (st != EN_ENOENT) return EN_EINVAL;
    eni_state_clear(psd->kept.state); /* left by a run that had not begun */
    return EN_OK;
}

/* The world is known and the shards are open: from here on this psd can come back. */
static en_status write_run(eni_psd *psd, const eni_world_info *world)
{
    const eni_served attributes = {psd->strategy->name, psd->version, psd->share.nshards, psd->token.value};
    if (psd->kept.state == NULL) return EN_OK;
    if (psd->kept.past == NULL)
        EN_TRY(eni_journal_open(psd->kept.state, world->incarnation, psd->nranks, true, &psd->kept.journal));
    return eni_run_file_write(psd->kept.state, &attributes, world);
}

/* leader_config.journal. */
static en_status log_entry(void *user, const eni_entry *entry)
{
    eni_psd *psd = user;
    if (psd->kept.journal) eni_journal_write(psd->kept.journal, entry);
    return EN_OK;
}

/* ---- psd 1 and up -------------------------------------------------------------------------------------- */

/* It joins psd 0, which leads, and serves its share of the shards. */

enum { MEMBER_STOP_MS = 600 };

/* All ranks are there; or psd 0 came back, and the same world has another epoch. */
static en_status on_serve(void *user, const eni_world_info *world, const eni_key_value **member_data_out,
                          size_t *n_out)
{
    eni_psd *psd = user;
    char why[ENI_REASON_MAX] = "";
    const en_status st = psd->shards ? set_epoch(psd, world->epoch) : open_shards(psd, world, why);
    if (st != EN_OK)
        eni_error("psd", "psd %d cannot serve: %s", psd->share.server, why[0] ? why : en_status_str(st));
    if (st != EN_OK) return st;
    *member_data_out = psd->told->key_value;
    *n_out = psd->told->n;
    return EN_OK;
}

static void on_ask(void *user, const char *tag, eni_blob *own_out)
{
    add_report(user, tag, NULL, 0, own_out);
}

/* The path of --token-file, or of the file that psd 0, which listens on `port`, leaves. */
static en_status name_token(const eni_psd *psd, uint16_t port, char path_out[TOKEN_PATH])
{
    char folder[256];
    if (psd->config->token_file != NULL) {
        snprintf(path_out, TOKEN_PATH, "%s", psd->config->token_file);
        return EN_OK;
    }
    EN_TRY(eni_env_runtime_dir(folder, sizeof folder));
    return eni_token_path(folder, port, path_out, TOKEN_PATH);
}

/* Waits for the file, since psd 0 may be started after us. */
static en_status read_token(eni_psd *psd, const eni_address *leader, int64_t deadline_ns)
{
    const eni_config *c = psd->config;
    char path[TOKEN_PATH];
    if (c->token_fd >= 0) return eni_token_read_fd((int)c->token_fd, &psd->token.value);
    EN_TRY(name_token(psd, leader->port, path));
    const en_status st = eni_token_await(path, deadline_ns, psd->signal_fd, &psd->token.value);
    if (st == EN_ENOENT)
        eni_error("psd",
                  "no token at %s: is psd 0 running on this host, as the same user? Else copy its token file "
                  "here and give --token-file",
                  path);
    return st;
}

static en_status join_leader(eni_psd *psd)
{
    const eni_config *c = psd->config;
    const int64_t deadline = eni_now_ns() + c->join_timeout_ns;
    eni_member_config config = {
        .rank = -1,
        .nranks = psd->nranks,
        .server = psd->share.server,
        .nservers = psd->share.nservers,
        .host = psd->host,
        .host_id = psd->host_id,
        .join_deadline_ns = deadline,
        .peer_timeout_ns = c->peer_timeout_ns,
        .abort_fd = psd->signal_fd,
        .stop_grace_ns = MEMBER_STOP_MS * ENI_MILLI,
        .on_serve = on_serve,
        .on_ask = on_ask,
        .on_left = lose,
        .user = psd,
    };
    eni_member *member;
    EN_TRY(eni_address_parse(c->listen, &psd->listen));
    EN_TRY(eni_address_parse(c->leader, &config.leader));
    EN_TRY(read_token(psd, &config.leader, deadline));
    config.token = psd->token.value;
    EN_TRY(eni_member_open(&config, &member));
    set_lead(psd, NULL, member);
    return EN_OK;
}

static en_status await_end(eni_psd *psd)
{
    en_status st = eni_member_await_end(psd->lead.member, INT64_MAX);
    if (eni_member_outcome(psd->lead.member).stop_why[0] != 0) st = EN_EINTR;
    if (st != EN_OK && psd->net) eni_net_abort(psd->net);
    return st;
}

/* ---- the run ------------------------------------------------------------------------------------------- */

enum { MAX_SPANS = 1 << 17, STOP_MS = 500 };

/* On the leader's thread. */
static en_status on_world(void *user, const eni_world_info *world, eni_terms *terms)
{
    eni_psd *p = user;
    EN_TRY(open_shards(p, world, terms->reason));
    const en_status st = write_run(p, world);
    if (st != EN_OK) {
        snprintf(terms->reason, sizeof terms->reason, "psd cannot write into --state=%.200s: %s",
                 p->config->state, en_status_str(st));
        return st;
    }
    const char *loss = eni_key_value_find(world->key_values, world->nkey_values, "on-worker-loss");
    terms->goes_on = p->config->max_workers > 0 || (loss && strcmp(loss, "continue") == 0);
    terms->budget = p->setup.budget;
    terms->member_data = p->told->key_value;
    terms->nmember_data = p->told->n;
    return EN_OK;
}

/* On the leader's thread, like on_world. */
static void on_gather(void *user, const char *tag, const eni_blob *blobs, size_t count, eni_blob *own_out)
{
    const eni_psd *p = user;
    const size_t nranks = (size_t)p->nranks;
    add_report(user, tag, blobs + nranks, count > nranks ? count - nranks : 0, own_out);
}

static en_status find_strategy(eni_psd *p, const char *plugins)
{
    if (p->config->strategy == NULL)
        return eni_fail(EN_EINVAL, "psd",
                        "no strategy: give --strategy=ps-sync, or another of `entrain strategies`");
    const char *options = eni_spec_options(p->config->strategy);
    EN_TRY(eni_strategy_find(plugins, p->config->strategy, &p->strategy));
    if (options[0]) EN_TRY(eni_options_new(p->strategy, options, &p->options));
    if (p->strategy->flags & EN_STORE_ON_SERVERS) return EN_OK;
    return eni_fail(EN_EINVAL, "psd",
                    "%s stores nothing on a server: its workers need no psd, only each other",
                    p->strategy->name);
}

/* Finds the token: inherited, from a file, or a new one that is left where workers of this user look. */
static en_status find_token(eni_psd *p)
{
    const eni_config *c = p->config;
    if (c->token_fd >= 0) EN_TRY(eni_token_read_fd((int)c->token_fd, &p->token.value));
    if (p->kept.past) p->token.value = p->kept.past->attributes.token; /* the workers know only this one */
    if (c->token_fd >= 0 || p->kept.past) return EN_OK;
    if (c->token_file && access(c->token_file, F_OK) == 0)
        return eni_token_read(c->token_file, &p->token.value);
    eni_token_make(&p->token.value);
    return EN_OK;
}

/* Called once the port is known. */
static en_status leave_token(eni_psd *p)
{
    const eni_config *c = p->config;
    char path[TOKEN_PATH];
    /* Newcomers inherit no token, and `entrain join` and `leave` must find it, too. */
    if (c->token_fd >= 0 && c->max_workers == 0 && c->takes == NULL) return EN_OK;
    if (c->token_file != NULL && access(c->token_file, F_OK) == 0) return EN_OK;
    EN_TRY(name_token(p, p->listen.port, path));
    EN_TRY(eni_token_write(&p->token.value, path, &p->token.lock));
    memcpy(p->token.path, path, sizeof path);
    return EN_OK;
}

/* The workers' --server-timeout; a psd that comes back has it in their key-values. */
static int64_t server_timeout(const eni_psd *p)
{
    int64_t ns = 0;
    const char *text = p->kept.past ? eni_key_value_find(p->kept.past->revived.key_values,
                                                         p->kept.past->revived.nkey_values, "server-timeout")
                                    : NULL;
    return text && eni_parse_duration(text, &ns) ? ns : 0;
}

/* leader_config.on_resize. */
static void tell_resize(void *user, int32_t workers, const char *why)
{
    const eni_psd *p = user;
    if (p->config->result_fd >= 0) eni_resize_write((int)p->config->result_fd, workers, why);
}

static en_status start_leader(eni_psd *p)
{
    const eni_config *c = p->config;
    char launcher[24], out[1024], folder[256], places[24] = "", elastic[ENI_WORKER_RANGE_TEXT] = "";
    const bool has_folder = eni_env_has_runtime_dir(folder, sizeof folder);
    snprintf(launcher, sizeof launcher, "%d", c->result_fd >= 0 ? (int)getppid() : 0);
    eni_folder_absolute(c->out, out, sizeof out);
    if (c->max_workers > 0) snprintf(places, sizeof places, "%lld", (long long)c->max_workers);
    const eni_key_value attributes[] = {{"strategy", p->strategy->name},
                                        {"out", out},
                                        {"launcher", launcher},
                                        {"elastic", elastic},
                                        {"max-workers", places}};
    eni_leader_config config = {
        .listen_fd = (int)c->listen_fd,
        .is_insecure = c->insecure,
        .nranks = p->nranks,
        .nfirst = first_ranks(p),
        .nplaces = (int32_t)c->max_workers,
        .nservers = p->share.nservers,
        .rank = -1,
        .host = p->host,
        .host_id = p->host_id,
        .token = p->token.value,
        .join_ns = c->join_timeout_ns,
        .peer_timeout_ns = c->peer_timeout_ns,
        .on_world = on_world,
        .on_gather = on_gather,
        .on_left = lose,
        .journal = log_entry,
        .server_timeout_ns = server_timeout(p),
        .revived = p->kept.past ? &p->kept.past->revived : NULL,
        .status_folder = has_folder ? folder : NULL,
        .attributes = attributes,
        .nattributes = sizeof attributes / sizeof *attributes,
        .on_resize = tell_resize,
        .user = p,
    };
    eni_leader *leader;
    if (c->takes && eni_worker_range_read(c->takes, &config.elastic) == NULL)
        eni_worker_range_text(&config.elastic, elastic);
    EN_TRY(eni_address_parse(c->listen, &p->listen));
    config.listen = p->listen;
    EN_TRY(eni_leader_start(&config, &leader));
    set_lead(p, leader, NULL);
    p->listen.port = eni_leader_address(leader)->port;
    return EN_OK;
}

/* Prints the commands to paste into the other terminals. */
static void print_lines(const eni_psd *p)
{
    char address[ENI_ADDRESS_TEXT], psd[4096], worker[4096], rest[4200];
    const char *token = p->config->token_file;
    if (p->config->quiet || p->config->listen_fd >= 0) return; /* a launcher starts the workers */
    if (eni_folder_program("worker", worker, sizeof worker) != EN_OK) return;
    if (eni_folder_program("psd", psd, sizeof psd) != EN_OK) return;
    eni_address at = p->listen;
    const bool is_anywhere = eni_address_is_anywhere(&at);
    if (is_anywhere) memcpy(at.host, p->host, sizeof at.host);
    eni_address_format(&at, address);
    snprintf(rest, sizeof rest, "%s%s%s", token ? " --token-file=" : "", token ? token : "",
             p->config->insecure ? " --insecure" : "");
    for (int k = 1; k < p->share.nservers; k++)
        printf("%s --leader=%s --server-rank=%d --servers=%d --shards=%d --strategy=%s --world-size=%d%s\n",
               psd, address, k, p->share.nservers, p->share.own, p->config->strategy, first_ranks(p), rest);
    printf("%s --strategy=%s --server=%s --rank=0 --world-size=%d%s\n", worker, p->config->strategy, address,
           first_ranks(p), rest);
    if (first_ranks(p) > 1) printf("(one terminal per worker, --rank=0 to --rank=%d)\n", first_ranks(p) - 1);
    fflush(stdout);
}

/* Reads which psd of how many this is, and which shards are its own. */
static en_status count_servers(eni_psd *p)
{
    const eni_config *c = p->config;
    if (c->world_size < 1)
        return eni_fail(EN_EINVAL, "psd", "unknown number of workers: give --world-size=N");
    if (c->server_rank >= c->servers)
        return eni_fail(EN_EINVAL, "psd",
                        "--server-rank=%lld is out of range: with --servers=%lld the last one is %lld",
                        (long long)c->server_rank, (long long)c->servers, (long long)c->servers - 1);
    if ((c->server_rank > 0) != (c->leader != NULL))
        return eni_fail(
            EN_EINVAL, "psd",
            "--server-rank=%lld, %s: psd 0 leads, every other psd joins it with --leader=tcp://HOST:PORT",
            (long long)c->server_rank, c->leader ? c->leader : "no --leader");
    if (c->servers * c->shards > ENI_SHARDS_MAX)
        return eni_fail(
            EN_EINVAL, "psd",
            "%lld servers with %lld shards each are too many: a worker connects to at most %d shards",
            (long long)c->servers, (long long)c->shards, ENI_SHARDS_MAX);
    p->nranks = eni_config_ranks(c);
    p->share.server = (int32_t)c->server_rank;
    p->share.nservers = (int32_t)c->servers;
    set_shards(p, c->shards > 0 ? (int32_t)c->shards : 1);
    eni_peer_name(-1 - p->share.server, p->name);
    return EN_OK;
}

/* A psd that came back would have to know which of the calls that are repeated it has noted. */
static en_status check_recording(const eni_config *c)
{
    if (!c->record_order || (c->out != NULL && c->state == NULL)) return EN_OK;
    return eni_fail(
        EN_EINVAL, "psd", "--record-order: %s",
        c->out == NULL
            ? "give --out, the folder that it writes into"
            : "omit it with --server-restarts or --state: the order of a psd that came back is not known");
}

static en_status open_psd(eni_psd *p, const char *plugins)
{
    const eni_config *c = p->config;
    EN_TRY(count_servers(p));
    if (p->share.server > 0) eni_log_set_who(p->name);
    EN_TRY(eni_folder_check("--out", c->out)); /* rank 0 makes it too; --trace may be in it */
    EN_TRY(eni_target_check("--trace", c->trace));
    if (c->trace && !(p->trace = eni_trace_new(p->name, p->nranks + p->share.server, MAX_SPANS)))
        return EN_ENOMEM;
    EN_TRY(check_recording(c));
    EN_TRY(find_strategy(p, plugins));
    eni_host_info_name(p->host);
    EN_TRY(eni_host_info_id(c->host_id, p->host_id));
    EN_TRY(open_state(p));
    if (p->share.server > 0) return join_leader(p);
    EN_TRY(find_token(p));
    EN_TRY(start_leader(p));
    EN_TRY(leave_token(p));
    print_lines(p);
    return EN_OK;
}

/* The leader's thread opens shards and asks them for figures; a shard that fails calls the leader. So the
 * leader ends first (by itself, within the seconds of its goodbyes), then the shards, and only then it is
 * freed. A member's thread does the same, but ends only when it is closed: so the shards forget it first. */
static void stop_threads(eni_psd *p)
{
    eni_member *member = p->lead.member;
    set_lead(p, p->lead.leader, NULL);
    eni_member_close(member);
    if (p->lead.leader) {
        eni_leader_abort(p->lead.leader, "psd was stopped");
        eni_leader_wait(p->lead.leader, INT64_MAX, -1);
    }
    for (int32_t i = 0; p->shards && i < p->share.own; i++)
        eni_shard_stop(p->shards[i]);
    eni_leader_stop(p->lead.leader);
}

static void close_psd(eni_psd *p)
{
    eni_arenas_stop(p->arenas);
    eni_weights_close(p->weights);
    eni_net_close(p->net);
    eni_shaper_free(p->shaper);
    eni_setup_fini(&p->setup);
    free(p->report);
    eni_free(p->told);
    eni_free(p->is_client);
    eni_free(p->shards);
    eni_journal_close(p->kept.journal);
    if (p->kept.state && (p->lead.leader || p->kept.past == NULL))
        eni_state_clear(p->kept.state); /* the run is over */
    eni_state_close(p->kept.state);
    eni_run_file_free(p->kept.past);
    eni_options_free(p->options);
    if (p->token.path[0]) eni_token_remove(p->token.path);
    if (p->token.lock >= 0) close(p->token.lock);
    eni_trace_free(p->trace);
    pthread_mutex_destroy(&p->lead.lock);
}

/* A signal requests an early end: in good order if possible, or else at once. */
static en_status end_early(eni_psd *p)
{
    eni_leader_stop_run(p->lead.leader, "psd was asked to end");
    eni_leader_wait(p->lead.leader, eni_now_ns() + STOP_MS * ENI_MILLI, -1);
    if (!eni_leader_is_over(p->lead.leader)) {
        eni_leader_abort(p->lead.leader, "psd was asked to end");
        eni_leader_wait(p->lead.leader, eni_now_ns() + ENI_SECOND / 4, -1);
    }
    return EN_EINTR;
}

/* Waits for the end, and reports how it came. */
static en_status serve(eni_psd *p)
{
    en_status st = eni_leader_wait(p->lead.leader, INT64_MAX, p->signal_fd);
    if (st == EN_EINTR && !eni_leader_is_over(p->lead.leader)) st = end_early(p);
    const eni_run_outcome outcome = eni_leader_outcome(p->lead.leader);
    if (outcome.stop_why[0] != 0) st = EN_EINTR;
    if (st != EN_OK && p->config->result_fd >= 0 && outcome.has_death)
        eni_failure_write((int)p->config->result_fd, &outcome.death);
    if (st != EN_OK && p->net) eni_net_abort(p->net);
    if (st != EN_OK && st != EN_EINTR && outcome.reason[0] == 0)
        eni_error("psd", "%s", en_status_str(st)); /* else the leader has logged it */
    return st;
}

en_status eni_psd_run(const eni_config *config, const char *version, const char *plugins, int signal_fd,
                      eni_hook_guard *hooks)
{
    eni_psd p = {
        .config = config, .version = version, .hooks = hooks, .token.lock = -1, .signal_fd = signal_fd};
    pthread_mutex_init(&p.lead.lock, NULL);
    en_status st = open_psd(&p, plugins);
    if (st == EN_EIO || st == EN_ENOMEM) st = EN_EINVAL; /* nothing has begun: the command must change */
    if (st == EN_OK) st = p.lead.member ? await_end(&p) : serve(&p);
    stop_threads(&p); /* no shard may record while the spans are written */
    if (p.trace && st == EN_OK) st = eni_trace_write(p.trace, config->trace);
    close_psd(&p);
    return st;
}
