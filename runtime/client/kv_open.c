/* kv_open.c - how a program becomes a rank of a psd's run, and how it ceases to be one. */
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/client/endpoints.h"
#include "runtime/client/kv.h"
#include "runtime/net/host_info.h"
#include "runtime/spec/plugin.h"

enum { TOKEN_POLL_MS = 20 };
#define JOIN_TIMEOUT_S    60.0
#define PEER_TIMEOUT_S    5.0
#define LONGEST_TIMEOUT_S 86400.0

/* ---- options ---- */

static en_status invalid(const char *what, const char *remedy)
{
    eni_error("kv", "%s: %s", what, remedy);
    return EN_EINVAL;
}

static int is_at_least(double value, double least)
{
    return isfinite(value) && value >= least;
}

static en_status check_options(const en_client_options *o)
{
    if (o->server == NULL) return invalid("no server", "give psd's address, tcp://HOST:PORT");
    if (o->strategy == NULL) return invalid("no strategy", "give the one that psd was started with");
    if (o->world_size < 1 || o->rank < 0 || o->rank >= o->world_size)
        return invalid("rank and world_size", "ranks are 0 to world_size - 1");
    if (!(o->lr > 0) || !isfinite(o->lr)) return invalid("lr", "give a learning rate above 0");
    if (!is_at_least(o->momentum, 0) || !is_at_least(o->weight_decay, 0))
        return invalid("momentum and weight_decay", "0 or more");
    if (!is_at_least(o->join_timeout, 0) || !is_at_least(o->peer_timeout, 0) ||
        o->join_timeout > LONGEST_TIMEOUT_S || o->peer_timeout > LONGEST_TIMEOUT_S)
        return invalid("join_timeout and peer_timeout", "seconds, at most a day");
    if (o->interrupt_fd < 0) return invalid("interrupt_fd", "a descriptor, or 0 for none");
    return EN_OK;
}

/* A caller's header may be older or newer than ours: what it does not have is 0, what we do not know is left.
 */
static en_status read_options(const en_client_options *given, en_client_options *o)
{
    if (given->abi != EN_CLIENT_ABI || given->size < sizeof(en_client_options)) {
        eni_error(
            "kv",
            "options of abi %u and %u bytes: this library takes abi %u and at least %zu bytes; set both, "
            "and build against its header",
            given->abi, given->size, EN_CLIENT_ABI, sizeof(en_client_options));
        return EN_EVERSION;
    }
    *o = *given;
    if (o->log != NULL) eni_log_set_sink(o->log, o->log_user);
    if (o->optimizer == NULL) o->optimizer = "sgd";
    if (o->lr_schedule == NULL) o->lr_schedule = "constant";
    if (o->join_timeout == 0) o->join_timeout = JOIN_TIMEOUT_S;
    if (o->peer_timeout == 0) o->peer_timeout = PEER_TIMEOUT_S;
    return check_options(o);
}

static en_status read_schedule(const en_client_options *o, eni_schedule *schedule_out)
{
    static const char *const names[] = {"constant", "step", "cosine"}; /* eni_schedule_kind */
    int kind = 0;
    while (kind < 3 && strcmp(names[kind], o->lr_schedule) != 0)
        kind++;
    if (kind == 3) return invalid("lr_schedule", "constant, step or cosine");
    if (kind == ENI_LR_STEP && (o->lr_step == 0 || !is_at_least(o->lr_gamma, 0)))
        return invalid("lr_schedule step", "give lr_step (samples) and lr_gamma");
    if (kind == ENI_LR_COSINE && o->total_samples == 0)
        return invalid("lr_schedule cosine", "give total_samples");
    *schedule_out = (eni_schedule){.kind = (eni_schedule_kind)kind,
                                   .base = o->lr,
                                   .gamma = o->lr_gamma,
                                   .step_samples = o->lr_step,
                                   .warmup = o->lr_warmup,
                                   .total = o->total_samples};
    return EN_OK;
}

/* What all ranks, and psd, must have alike. */
static en_status agree(const en_client *client, const en_client_options *o, eni_run_spec *spec)
{
    char strategy[ENI_STRATEGY_WORD_MAX];
    eni_run_attributes attributes = {.strategy = strategy,
                                     .optimizer = eni_optimizer_find(o->optimizer),
                                     .hyper = {.momentum = (float)o->momentum,
                                               .weight_decay = (float)o->weight_decay,
                                               .nesterov = (o->flags & EN_CLIENT_NESTEROV) != 0},
                                     .sum_order = ENI_SUM_RANK,
                                     .elements = client->elements,
                                     .buckets = &client->buckets};
    if (attributes.optimizer == NULL) return invalid("optimizer", "there is none of that name; sgd is there");
    EN_TRY(read_schedule(o, &attributes.schedule));
    EN_TRY(eni_plugin_split(o->strategy, strategy, &attributes.strategy_options));
    if (eni_plugin_is_path(strategy))
        return invalid("strategy", "give the name that its file declares; the file is psd's business");
    EN_TRY(eni_kv_schema_agree(o, spec));
    return eni_run_spec_add_run(spec, &attributes);
}

/* ---- joining ---- */

/* Where config/env.c and psd put it for worker processes. */
static en_status token_path(const en_client_options *o, uint16_t port, char *path_out, size_t bytes)
{
    char folder[3072];
    int length;
    if (o->token_file != NULL)
        length = snprintf(path_out, bytes, "%s", o->token_file);
    else if (o->runtime_dir != NULL && o->runtime_dir[0] != 0)
        length = snprintf(folder, sizeof folder, "%s/entrain", o->runtime_dir);
    else
        length = snprintf(folder, sizeof folder, "/tmp/entrain-%lu", (unsigned long)getuid());
    if (length < 0 || (size_t)length >= sizeof folder) return invalid("token_file", "the path is too long");
    return o->token_file != NULL ? EN_OK : eni_token_path(folder, port, path_out, bytes);
}

/* A rank may be started before psd: the file is looked for until the deadline. */
static en_status read_token(en_client *client, const en_client_options *o, uint16_t port, int64_t deadline_ns)
{
    char path[4096];
    EN_TRY(token_path(o, port, path, sizeof path));
    while (access(path, F_OK) != 0) {
        struct pollfd interrupt = {.fd = client->interrupt_fd, .events = POLLIN};
        if (eni_now_ns() > deadline_ns) {
            eni_error(
                "kv",
                "no token at %s: is psd running on this host, by the same user? Else copy its token file "
                "here and give token_file",
                path);
            return EN_ENOENT;
        }
        if (poll(&interrupt, 1, TOKEN_POLL_MS) > 0) return EN_EINTR;
    }
    return eni_token_read(path, &client->token);
}

static en_status join(en_client *client, const en_client_options *o, int64_t deadline_ns)
{
    eni_address psd;
    EN_TRY(eni_address_parse(o->server, &psd));
    eni_host_info_name(client->host);
    EN_TRY(eni_host_info_id(NULL, client->host_id));
    eni_run_spec *spec = eni_alloc(sizeof *spec);
    if (spec == NULL) return EN_ENOMEM;
    en_status st = agree(client, o, spec);
    if (st == EN_OK) st = read_token(client, o, psd.port, deadline_ns);
    eni_member_config config = {.leader = psd,
                                .token = client->token,
                                .rank = o->rank,
                                .nranks = o->world_size,
                                .host = client->host,
                                .host_id = client->host_id,
                                .key_values = spec->key_value,
                                .nkey_values = spec->n,
                                .join_deadline_ns = deadline_ns,
                                .peer_timeout_ns = (int64_t)(o->peer_timeout * (double)ENI_SECOND),
                                .abort_fd = client->interrupt_fd};
    if (st == EN_OK) st = eni_member_open(&config, &client->member);
    eni_free(spec);
    return st;
}

/* ---- vectors ---- */

static en_status open_store(en_client *client, uint32_t flags, int64_t deadline_ns)
{
    const eni_world_info *world = eni_member_world(client->member);
    eni_endpoints endpoints;
    EN_TRY(eni_endpoints_find(&world->leader, &endpoints));
    EN_TRY(eni_arena_open(client->elements, ENI_SLOT_FREE, 1, &client->arena));
    EN_TRY(eni_net_open(1, &client->net));
    const char *sharing = flags & EN_CLIENT_TCP ? NULL : client->host_id;
    const eni_client_config config = {.net = client->net,
                                      .psd = eni_endpoints_place(&endpoints, sharing, world->epoch),
                                      .arena = client->arena,
                                      .buckets = &client->buckets,
                                      .token = &client->token,
                                      .rank = world->rank,
                                      .incarnation = world->incarnation,
                                      .alive = eni_kv_alive,
                                      .user = client,
                                      .wake_fd = eni_member_fd(client->member),
                                      .join_deadline_ns = deadline_ns};
    return eni_client_open(&config, &client->store);
}

/* Rank 0 tells the store what it starts from; everybody, rank 0 too, starts from what the store has. */
static en_status start_alike(en_client *client, const en_client_options *o)
{
    for (uint32_t i = 0; o->rank == 0 && i < client->ntensors; i++) {
        const float *initial = eni_kv_declared(o, i)->initial;
        if (initial != NULL)
            memcpy(en_client_param(client, (int)i), initial, client->tensors[i].count * sizeof *initial);
    }
    for (uint32_t b = 0; o->rank == 0 && b < client->buckets.n; b++)
        EN_TRY(eni_client_call(client->store, ENI_MSG_INIT, b, 0, EN_WEIGHTS, ENI_SLOT_PARAM, ENI_SLOT_NONE,
                               0, 0));
    for (uint32_t b = 0; o->rank == 0 && b < client->buckets.n; b++)
        EN_TRY(eni_client_wait(client->store, b));
    EN_TRY(en_client_pull(client, EN_CLIENT_ALL));
    EN_TRY(en_client_wait(client, EN_CLIENT_ALL));
    client->pulls = 0; /* the caller's are counted, not this one */
    return EN_OK;
}

static en_status open_all(en_client *client, const en_client_options *o)
{
    int64_t deadline_ns = eni_now_ns() + (int64_t)(o->join_timeout * (double)ENI_SECOND);
    EN_TRY(eni_kv_schema_make(client, o));
    EN_TRY(join(client, o, deadline_ns));
    EN_TRY(open_store(client, o->flags, deadline_ns));
    return start_alike(client, o);
}

en_status en_client_open(const en_client_options *options, en_client **client_out)
{
    en_client_options o;
    *client_out = NULL;
    EN_TRY(read_options(options, &o));
    en_client *client = eni_alloc(sizeof *client);
    if (client == NULL) return EN_ENOMEM;
    client->interrupt_fd = o.interrupt_fd > 0 ? o.interrupt_fd : -1;
    const en_status st = open_all(client, &o);
    if (st == EN_OK)
        *client_out = client;
    else
        en_client_close(client);
    return st;
}

void en_client_close(en_client *client)
{
    if (client == NULL) return;
    if (!client->is_finished && client->net != NULL) eni_net_abort(client->net);
    eni_client_close(client->store);
    eni_net_close(client->net);
    eni_arena_close(client->arena);
    eni_member_close(client->member);
    eni_kv_schema_fini(client);
    eni_free(client);
}
