#include "server/psd.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/env.h"
#include "config/folders.h"
#include "runtime/comm/plugin.h"
#include "runtime/core/clock.h"
#include "runtime/core/log.h"
#include "runtime/core/memory.h"
#include "runtime/core/try.h"
#include "runtime/net/obituary.h"
#include "runtime/net/place.h"
#include "server/agree.h"
#include "server/lane.h"
#include "server/report.h"

enum { MAX_SHARDS = 256, MAX_SPANS = 1 << 17, STOP_MS = 600 };

/* One run. The leader's thread fills the lower half in on_world; main reads it after the leader has ended. */
typedef struct psd {
    const eni_config *config;
    const en_strategy *strategy;
    int32_t nranks, nshards;
    const char *version;  /* of this program */
    eni_options *options; /* as given to psd itself; NULL: none */
    eni_address listen;  /* the port as bound: known to main only */
    eni_token token;
    char token_path[512]; /* written by us; "": not ours to remove */
    int token_lock;       /* on it while we live; -1: none */
    char host[ENI_HOST_MAX], host_id[ENI_HOST_ID_MAX];
    _Atomic(eni_leader *) leader; /* a lane that fails may be faster than main */

    eni_setup setup;
    eni_net *net;
    eni_shaper *shaper;
    eni_trace *trace;
    eni_arenas *arenas;
    eni_lane **lanes;                   /* (nshards) */
    uint8_t *is_client;                 /* (nranks) */
    eni_pair *privates;                 /* (nshards + 2) what the workers are told */
    char (*texts)[2][ENI_ADDRESS_TEXT]; /* (nshards + 2) their keys and values */
    size_t nprivates;
    char *report; /* freed with free() */
} psd;

/* ---- the world is complete: open everything ------------------------------------------------------------ */

static void tell(psd *p, const char *key, const char *value)
{
    char(*text)[ENI_ADDRESS_TEXT] = p->texts[p->nprivates];
    snprintf(text[0], ENI_ADDRESS_TEXT, "%s", key);
    snprintf(text[1], ENI_ADDRESS_TEXT, "%s", value);
    p->privates[p->nprivates++] = (eni_pair){text[0], text[1]};
}

/* All ranks, or the first of every host where the strategy says that leaders are the clients. */
static void choose_clients(psd *p, const eni_world_info *world)
{
    for (int32_t r = 0; r < p->nranks; r++) {
        p->is_client[r] = 1;
        for (int32_t q = 0; q < r && p->strategy->flags & EN_LEADERS_ARE_CLIENTS; q++)
            if (strcmp(world->peers[q].host_id, world->peers[r].host_id) == 0) p->is_client[r] = 0;
    }
}

static void on_lane_failure(void *user, const char *reason)
{
    psd *p = user;
    eni_leader *leader = atomic_load(&p->leader);
    if (leader) eni_leader_abort(leader, reason);
}

static en_status open_lane(psd *p, const eni_world_info *world, int32_t shard)
{
    const eni_lane_config config = {
        .net = p->net,
        .listen = {.port = 0},
        .is_insecure = p->config->insecure,
        .setup = &p->setup,
        .strategy = p->strategy,
        .shard = shard,
        .nshards = p->nshards,
        .nranks = p->nranks,
        .is_client = p->is_client,
        .epoch = world->epoch,
        .incarnation = world->incarnation,
        .token = p->token,
        .arenas = p->arenas,
        .shaper = p->shaper,
        .trace = p->trace,
        .on_failure = on_lane_failure,
        .user = p,
    };
    eni_lane_config here = config;
    eni_address bound;
    char key[24], endpoint[ENI_ADDRESS_TEXT];
    memcpy(here.listen.host, p->listen.host, sizeof here.listen.host);
    EN_TRY(eni_lane_start(&here, &p->lanes[shard], &bound));
    if (strcmp(bound.host, "0.0.0.0") == 0 || strcmp(bound.host, "::") == 0)
        memcpy(bound.host, p->host, sizeof bound.host); /* a name that others can connect to */
    snprintf(key, sizeof key, "lane.%d", shard);
    eni_address_format(&bound, endpoint);
    tell(p, key, endpoint);
    return EN_OK;
}

static en_status open_all(psd *p, const eni_world_info *world)
{
    char shards[16];
    choose_clients(p, world);
    EN_TRY(eni_net_open(1, &p->net));
    if (p->setup.net_bytes_per_s > 0 || p->setup.net_delay_ns > 0) {
        p->shaper = eni_shaper_new(p->setup.net_bytes_per_s, p->setup.net_delay_ns);
        if (!p->shaper) return EN_ENOMEM;
    }
    EN_TRY(eni_arenas_start(p->nranks, world->epoch, p->setup.elements, &p->token, &p->arenas));
    for (int32_t k = 0; k < p->nshards; k++)
        EN_TRY(open_lane(p, world, k));
    snprintf(shards, sizeof shards, "%d", p->nshards);
    tell(p, "shards", shards);
    tell(p, "servers", "1");
    tell(p, "host-id.0", p->host_id);
    if (p->config->transport != ENI_TRANSPORT_TCP) tell(p, "arena.0", eni_arenas_name(p->arenas));
    return EN_OK;
}

/* On the leader's thread. */
static en_status on_world(void *user, const eni_world_info *world, eni_terms *terms)
{
    psd *p = user;
    EN_TRY(eni_setup_read(p->strategy, world->pairs, world->npairs, &p->setup, terms->reason));
    const eni_psd_terms own = {p->config, p->version, p->strategy, p->options};
    EN_TRY(eni_psd_agree(&own, world->pairs, world->npairs, &p->setup, terms->reason));
    const en_status st = open_all(p, world);
    if (st != EN_OK) {
        snprintf(terms->reason, sizeof terms->reason, "psd cannot open its %d lanes: %s", p->nshards,
                 en_status_str(st));
        return st;
    }
    terms->budget = p->setup.budget;
    terms->privates = p->privates;
    terms->nprivates = p->nprivates;
    eni_info("psd", "%d workers are here: %u buckets, %llu elements, %s", p->nranks, p->setup.nbuckets,
             (unsigned long long)p->setup.elements, p->strategy->name);
    return EN_OK;
}

/* On the leader's thread: the run goes on without this rank. */
static void on_left(void *user, int32_t rank, uint64_t incarnation)
{
    psd *p = user;
    (void)incarnation;
    for (int32_t k = 0; k < p->nshards; k++)
        if (p->lanes[k]) eni_lane_leave(p->lanes[k], rank);
}

/* On the leader's thread: the last gather gets psd's own figures. */
static void on_gather(void *user, const char *tag, const eni_blob *blobs, size_t count, eni_blob *own_out)
{
    psd *p = user;
    (void)blobs;
    (void)count;
    if (strcmp(tag, "result") != 0) return;
    free(p->report);
    p->report = eni_report_make(p->lanes, p->nshards, p->nranks);
    if (p->report) *own_out = (eni_blob){(const uint8_t *)p->report, strlen(p->report)};
}

/* ---- the run ------------------------------------------------------------------------------------------- */

static en_status find_strategy(psd *p, const char *plugins)
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
static en_status find_token(psd *p)
{
    const eni_config *c = p->config;
    if (c->token_fd >= 0) return eni_token_read_fd((int)c->token_fd, &p->token);
    if (c->token_file && access(c->token_file, F_OK) == 0) return eni_token_read(c->token_file, &p->token);
    eni_token_make(&p->token);
    return EN_OK;
}

/* Written when the port is known. */
static en_status leave_token(psd *p)
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

static en_status start_leader(psd *p)
{
    const eni_config *c = p->config;
    char launcher[24], out[1024];
    snprintf(launcher, sizeof launcher, "%d", c->result_fd >= 0 ? (int)getppid() : 0);
    eni_folder_absolute(c->out, out, sizeof out);
    const eni_pair facts[] = {{"strategy", p->strategy->name}, {"out", out}, {"launcher", launcher}};
    eni_leader_config config = {
        .listen_fd = (int)c->listen_fd,
        .is_insecure = c->insecure,
        .nranks = p->nranks,
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
        .facts = facts,
        .nfacts = sizeof facts / sizeof *facts,
        .user = p,
    };
    eni_leader *leader;
    EN_TRY(eni_address_parse(c->listen, &p->listen));
    config.listen = p->listen;
    EN_TRY(eni_leader_start(&config, &leader));
    atomic_store(&p->leader, leader);
    p->listen.port = eni_leader_address(leader)->port;
    return EN_OK;
}

/* What to paste in the other terminals. */
static void print_worker_line(const psd *p)
{
    char address[ENI_ADDRESS_TEXT], worker[4096];
    if (p->config->quiet || p->config->listen_fd >= 0) return; /* a launcher starts the workers */
    if (eni_folder_program("worker", worker, sizeof worker) != EN_OK) return;
    eni_address_format(&p->listen, address);
    printf("%s --strategy=%s --server=%s --rank=0 --world-size=%d%s%s\n", worker, p->config->strategy,
           address, p->nranks, p->config->token_file ? " --token-file=" : "",
           p->config->token_file ? p->config->token_file : "");
    if (p->nranks > 1) printf("(one terminal a worker, --rank=0 to --rank=%d)\n", p->nranks - 1);
    fflush(stdout);
}

static en_status open_psd(psd *p, const char *plugins)
{
    const eni_config *c = p->config;
    if (c->world_size < 1) {
        eni_error("psd", "how many workers? Give --world-size=N");
        return EN_EINVAL;
    }
    if (c->shards > MAX_SHARDS) {
        eni_error("psd", "%lld shards are too many: a worker connects to at most %d lanes",
                  (long long)c->shards, MAX_SHARDS);
        return EN_EINVAL;
    }
    p->nranks = (int32_t)c->world_size;
    p->nshards = (int32_t)c->shards;
    p->lanes = eni_alloc_array((size_t)p->nshards, sizeof *p->lanes);
    p->is_client = eni_alloc_array((size_t)p->nranks, sizeof *p->is_client);
    p->privates = eni_alloc_array((size_t)p->nshards + 4, sizeof *p->privates);
    p->texts = eni_alloc_array((size_t)p->nshards + 4, sizeof *p->texts);
    if (!p->lanes || !p->is_client || !p->privates || !p->texts) return EN_ENOMEM;
    if (c->trace && !(p->trace = eni_trace_new("psd", p->nranks, MAX_SPANS))) return EN_ENOMEM;
    EN_TRY(find_strategy(p, plugins));
    eni_place_host(p->host);
    EN_TRY(eni_place_host_id(c->host_id, p->host_id));
    EN_TRY(find_token(p));
    EN_TRY(start_leader(p));
    EN_TRY(leave_token(p));
    print_worker_line(p);
    return EN_OK;
}

/* The leader's thread opens lanes and asks them for figures; a lane that fails calls the leader. So the
 * leader ends first (by itself, within the seconds of its farewell), then the lanes, and only then it is
 * freed. */
static void stop_threads(psd *p)
{
    if (p->leader) {
        eni_leader_abort(p->leader, "psd was stopped");
        eni_leader_wait(p->leader, INT64_MAX, -1);
    }
    for (int32_t k = 0; p->lanes && k < p->nshards; k++)
        eni_lane_stop(p->lanes[k]);
    eni_leader_stop(p->leader);
}

static void close_psd(psd *p)
{
    eni_arenas_stop(p->arenas);
    eni_net_close(p->net);
    eni_shaper_free(p->shaper);
    eni_setup_fini(&p->setup);
    eni_options_free(p->options);
    if (p->token_path[0]) eni_token_remove(p->token_path);
    if (p->token_lock >= 0) close(p->token_lock);
    eni_trace_free(p->trace);
    free(p->report);
    eni_free(p->texts);
    eni_free(p->privates);
    eni_free(p->is_client);
    eni_free(p->lanes);
}

/* A signal is a wish: the run ends early and in good order, or else at once. */
static en_status end_early(psd *p)
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
static en_status serve(psd *p, int signal_fd)
{
    char reason[ENI_REASON_MAX];
    eni_death death;
    en_status st = eni_leader_wait(p->leader, INT64_MAX, signal_fd);
    if (st == EN_EINTR && !eni_leader_is_over(p->leader)) st = end_early(p);
    if (eni_leader_is_stopping(p->leader, reason)) st = EN_EINTR;
    if (st != EN_OK && p->config->result_fd >= 0 && eni_leader_death(p->leader, &death) == EN_OK)
        eni_obituary_write((int)p->config->result_fd, &death);
    if (st != EN_OK && p->net) eni_net_abort(p->net);
    eni_leader_reason(p->leader, reason);
    if (st != EN_OK && st != EN_EINTR && reason[0] == 0)
        eni_error("psd", "%s", en_status_str(st)); /* else the leader has said it */
    return st;
}

en_status eni_psd_run(const eni_config *config, const char *version, const char *plugins, int signal_fd)
{
    psd p = {.config = config, .version = version, .token_lock = -1};
    en_status st = open_psd(&p, plugins);
    if (st == EN_OK) st = serve(&p, signal_fd);
    stop_threads(&p); /* no lane may record while the spans are written */
    if (p.trace && st == EN_OK) st = eni_trace_write(p.trace, config->trace);
    close_psd(&p);
    return st;
}
