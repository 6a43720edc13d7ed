/* kv.c - the key-value library (entrain/client.h): makes a program other than the worker a rank of psd's run.
 *
 * From top to bottom: named tensors as one flat vector and its buckets; open: options, token, JOIN, shards,
 * equal weights; close; pull, push, wait.
 *
 * Every tensor is one bucket or, above PIECE elements, several: so a call on a tensor is a call on its
 * buckets, and calls on two tensors never wait for each other. A pull is a snapshot, past the strategy and
 * its clocks: in ps-sync a pure pull by call would wait for the next step. A push is a call with the
 * gradient, answered when the strategy says so. */
#include "entrain/client.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/try.h"
#include "plugin/plugin.h"
#include "runtime/client/client.h"
#include "runtime/control/member.h"
#include "runtime/net/host_info.h"
#include "runtime/spec/run_spec.h"
#include "runtime/spec/strategies.h"

enum {
    PUSH = 1,        /* the message's kind, the only one in strategies/ps.c */
    PIECE = 1 << 20, /* elements: 4 MiB */
    NAME_MAX_BYTES = 200
};
#define ELEMENTS_MAX      (UINT64_C(1) << 40)
#define JOIN_TIMEOUT_S    60.0
#define PEER_TIMEOUT_S    5.0
#define LONGEST_TIMEOUT_S 86400.0

typedef enum eni_kv_call { ENI_KV_NONE, ENI_KV_PULL, ENI_KV_PUSH, ENI_KV_PUSH_PULL } eni_kv_call;

typedef struct eni_kv_tensor {
    char *name;
    uint64_t offset, count; /* elements of the flat vector */
    uint32_t first_bucket, nbuckets;
    eni_kv_call call; /* in progress */
    uint64_t version; /* of the contents of param: the least over its partitions */
} eni_kv_tensor;

struct en_client {
    int interrupt_fd; /* our copy of the caller's; -1: none */

    /* tensors */
    uint32_t ntensors;
    eni_kv_tensor *tensors; /* (ntensors) */
    uint64_t elements;      /* of the flat vector, padding included */
    eni_buckets buckets;

    /* opened */
    eni_token token;
    char host[ENI_HOST_MAX], host_id[ENI_HOST_ID_MAX];
    eni_member *member;
    eni_net *net;
    eni_arena *arena;
    eni_client *store;

    /* calls */
    atomic_bool is_finished;
    _Atomic en_status failed; /* of the first call that failed for good; EN_OK: none */
    uint64_t pushes, pulls;
    double staleness_sum, staleness_max;
};

/* EN_OK, EN_EINTR, or the status of the control connection; an eni_client_config.alive. */
static en_status alive(void *user)
{
    const en_client *client = user;
    struct pollfd interrupt = {.fd = client->interrupt_fd, .events = POLLIN};
    if (client->interrupt_fd >= 0 && poll(&interrupt, 1, 0) > 0) return EN_EINTR;
    return client->member == NULL ? EN_OK : eni_member_status(client->member);
}

/* ---- named tensors ---- */

static const en_client_tensor *declared_at(const en_client_options *options, uint32_t i)
{
    const char *table = (const char *)options->tensors;
    return (const en_client_tensor *)(const void *)(table + (size_t)i * options->tensors->size);
}

/* The product of the shape; 0 if it is more than ELEMENTS_MAX. */
static uint64_t count_of(const en_client_tensor *tensor)
{
    uint64_t count = 1;
    for (int i = 0; i < EN_CLIENT_DIMS && tensor->shape[i] > 0; i++) {
        if (tensor->shape[i] > ELEMENTS_MAX / count) return 0;
        count *= tensor->shape[i];
    }
    return count;
}

static en_status check_name(const en_client *client, uint32_t i, const char *name)
{
    if (name == NULL || name[0] == 0 || strnlen(name, NAME_MAX_BYTES + 1) > NAME_MAX_BYTES)
        return eni_fail(EN_EINVAL, "kv", "invalid name of tensor %u: expected 1 to %d bytes", i,
                        NAME_MAX_BYTES);
    if (!eni_is_text(name))
        return eni_fail(EN_EINVAL, "kv",
                        "invalid name of tensor %u, \"%s\": expected UTF-8 without control characters", i,
                        name);
    for (uint32_t k = 0; k < i; k++)
        if (strcmp(client->tensors[k].name, name) == 0)
            return eni_fail(EN_EINVAL, "kv", "tensors %u and %u are both named %s", k, i, name);
    return EN_OK;
}

static en_status lay_out(en_client *client, const en_client_options *options)
{
    uint32_t nbuckets = 0;
    for (uint32_t i = 0; i < client->ntensors; i++) {
        const en_client_tensor *declared = declared_at(options, i);
        eni_kv_tensor *tensor = &client->tensors[i];
        EN_TRY(check_name(client, i, declared->name));
        if (declared->reserved != 0)
            return eni_fail(EN_EINVAL, "kv", "tensor %s: reserved is %u, expected 0: zero the struct first",
                            declared->name, declared->reserved);
        tensor->name = eni_strdup(declared->name);
        if (tensor->name == NULL) return EN_ENOMEM;
        tensor->offset = client->elements;
        tensor->count = count_of(declared);
        if (tensor->count == 0 || tensor->count > ELEMENTS_MAX - tensor->offset)
            return eni_fail(EN_EINVAL, "kv", "tensor %s is too large: a run has at most %" PRIu64 " elements",
                            tensor->name, ELEMENTS_MAX);
        tensor->first_bucket = nbuckets;
        tensor->nbuckets = (uint32_t)((tensor->count + PIECE - 1) / PIECE);
        nbuckets += tensor->nbuckets;
        client->elements = eni_round_up(tensor->offset + tensor->count, ENI_LINE_FLOATS);
    }
    client->buckets.n = nbuckets;
    client->buckets.count = client->elements;
    return EN_OK;
}

static void cut(en_client *client)
{
    for (uint32_t i = 0; i < client->ntensors; i++) {
        const eni_kv_tensor *tensor = &client->tensors[i];
        uint64_t at = tensor->offset, end = tensor->offset + tensor->count;
        for (uint32_t b = 0; b < tensor->nbuckets; b++, at += PIECE)
            client->buckets.bucket[tensor->first_bucket + b] = (eni_bucket_range){
                .lo = at, .hi = end - at < PIECE ? end : at + PIECE, .first = i, .last = i};
    }
}

static en_status make_schema(en_client *client, const en_client_options *options)
{
    if (options->tensors == NULL || options->ntensors < 1 || options->ntensors > EN_CLIENT_TENSORS)
        return eni_fail(EN_EINVAL, "kv", "invalid number of tensors, %u: declare 1 to %d", options->ntensors,
                        EN_CLIENT_TENSORS);
    if (options->tensors->size < sizeof(en_client_tensor))
        return eni_fail(EN_EINVAL, "kv",
                        "the first tensor has size %u: set size to sizeof(en_client_tensor), %zu",
                        options->tensors->size, sizeof(en_client_tensor));
    client->tensors = eni_alloc_array(options->ntensors, sizeof *client->tensors);
    if (client->tensors == NULL) return EN_ENOMEM;
    client->ntensors = options->ntensors;
    EN_TRY(lay_out(client, options));
    client->buckets.bucket = eni_alloc_array(client->buckets.n, sizeof *client->buckets.bucket);
    if (client->buckets.bucket == NULL) return EN_ENOMEM;
    cut(client);
    return EN_OK;
}

static void free_schema(en_client *client)
{
    for (uint32_t i = 0; i < client->ntensors; i++)
        eni_free(client->tensors[i].name);
    eni_free(client->tensors);
    eni_free(client->buckets.bucket);
}

static en_status agree_schema(const en_client_options *options, eni_run_spec *spec)
{
    for (uint32_t i = 0; i < options->ntensors; i++) {
        const en_client_tensor *tensor = declared_at(options, i);
        char key[NAME_MAX_BYTES + 16], shape[EN_CLIENT_DIMS * 22 + 32];
        int at = snprintf(shape, sizeof shape, "number %u, shape (", i);
        for (int d = 0; d < EN_CLIENT_DIMS && tensor->shape[d] > 0; d++)
            at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%" PRIu64, d > 0 ? ", " : "",
                           tensor->shape[d]);
        snprintf(shape + at, sizeof shape - (size_t)at, ")");
        snprintf(key, sizeof key, "tensor %s", tensor->name);
        EN_TRY(eni_run_spec_add(spec, key, shape));
    }
    return EN_OK;
}

/* ---- options ---- */

static en_status invalid(const char *what, const char *remedy)
{
    return eni_fail(EN_EINVAL, "kv", "%s: %s", what, remedy);
}

static bool is_at_least(double value, double least)
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
        return invalid("momentum and weight_decay", "expected 0 or more");
    if (!(o->beta1 >= 0 && o->beta1 < 1 && o->beta2 >= 0 && o->beta2 < 1) || !is_at_least(o->eps, 0))
        return invalid("beta1, beta2 and eps",
                       "expected betas from 0 to below 1, eps 0 or more; 0 is the default");
    if (!is_at_least(o->join_timeout, 0) || !is_at_least(o->peer_timeout, 0) ||
        o->join_timeout > LONGEST_TIMEOUT_S || o->peer_timeout > LONGEST_TIMEOUT_S)
        return invalid("join_timeout and peer_timeout", "expected seconds, at most a day");
    if (o->interrupt_fd < 0) return invalid("interrupt_fd", "expected a descriptor, or 0 for none");
    if (o->flags & ~(uint32_t)(EN_CLIENT_NESTEROV | EN_CLIENT_TCP))
        return invalid("flags", "unknown flag; expected EN_CLIENT_NESTEROV or EN_CLIENT_TCP");
    return EN_OK;
}

/* A caller's header may be older or newer than ours: missing fields are 0, unknown ones are ignored. */
#define FIRST_SIZE offsetof(en_client_options, beta1) /* of the first header with this abi */
static en_status read_options(const en_client_options *given, en_client_options *o)
{
    if (given == NULL) return invalid("no options", "give en_client_open an en_client_options");
    if (given->abi != EN_CLIENT_ABI || given->size < FIRST_SIZE)
        return eni_fail(EN_EVERSION, "kv",
                        "unsupported options of abi %u and %u bytes: this library expects abi %u and at "
                        "least %zu bytes; set both, and build against its header",
                        given->abi, given->size, EN_CLIENT_ABI, FIRST_SIZE);
    *o = (en_client_options){0};
    memcpy(o, given, given->size < sizeof *o ? given->size : sizeof *o);
    if (o->log != NULL) eni_log_set_sink(o->log, o->log_user);
    if (o->optimizer == NULL) o->optimizer = "sgd";
    if (o->beta1 == 0) o->beta1 = 0.9;
    if (o->beta2 == 0) o->beta2 = 0.999;
    if (o->eps == 0) o->eps = 1e-8;
    if (o->lr_schedule == NULL) o->lr_schedule = "constant";
    if (o->join_timeout == 0) o->join_timeout = JOIN_TIMEOUT_S;
    if (o->peer_timeout == 0) o->peer_timeout = PEER_TIMEOUT_S;
    return check_options(o);
}

static bool has_milestones(const en_client_options *o)
{
    bool rises = o->lr_milestones != NULL && o->nlr_milestones >= 1 && o->nlr_milestones <= ENI_MILESTONES;
    for (uint32_t i = 1; rises && i < o->nlr_milestones; i++)
        rises = o->lr_milestones[i] > o->lr_milestones[i - 1];
    return rises;
}

static en_status read_schedule(const en_client_options *o, eni_schedule *schedule_out)
{
    int kind = 0;
    while (kind < ENI_LR_POINTS && strcmp(eni_schedule_names[kind], o->lr_schedule) != 0)
        kind++;
    if (kind == ENI_LR_POINTS)
        return invalid("lr_schedule", "expected constant, step, cosine, multistep or linear");
    if (kind == ENI_LR_STEP && (o->lr_step == 0 || !is_at_least(o->lr_gamma, 0)))
        return invalid("lr_schedule step", "give lr_step (samples) and lr_gamma");
    if ((kind == ENI_LR_COSINE || kind == ENI_LR_LINEAR) && o->total_samples == 0)
        return invalid("lr_schedule cosine and linear", "give total_samples");
    if (kind == ENI_LR_MULTISTEP && !(has_milestones(o) && is_at_least(o->lr_gamma, 0)))
        return invalid("lr_schedule multistep",
                       "give one to eight lr_milestones (samples, rising) and lr_gamma");
    *schedule_out = (eni_schedule){.kind = (eni_schedule_kind)kind,
                                   .base = o->lr,
                                   .gamma = o->lr_gamma,
                                   .step_samples = o->lr_step,
                                   .warmup = o->lr_warmup,
                                   .total = o->total_samples};
    for (uint32_t i = 0; kind == ENI_LR_MULTISTEP && i < o->nlr_milestones; i++)
        schedule_out->milestone[schedule_out->nmilestones++] = o->lr_milestones[i];
    return EN_OK;
}

/* The settings that must be equal on all ranks and psd. */
static en_status agree(const en_client *client, const en_client_options *o, eni_run_spec *spec)
{
    char strategy[ENI_PLUGIN_WORD_MAX];
    eni_run_attributes attributes = {.strategy = strategy,
                                     .optimizer = eni_optimizer_find(o->optimizer),
                                     .hyper = {.momentum = (float)o->momentum,
                                               .weight_decay = (float)o->weight_decay,
                                               .nesterov = (o->flags & EN_CLIENT_NESTEROV) != 0,
                                               .beta1 = o->beta1,
                                               .beta2 = o->beta2,
                                               .eps = o->eps},
                                     .sum_order = ENI_SUM_RANK,
                                     .elements = client->elements,
                                     .buckets = &client->buckets};
    if (attributes.optimizer == NULL) return invalid("optimizer", "unknown name; expected " ENI_OPTIMIZERS);
    EN_TRY(read_schedule(o, &attributes.schedule));
    EN_TRY(eni_plugin_split("strategy", o->strategy, strategy, &attributes.strategy_options));
    if (eni_plugin_is_path(strategy))
        return invalid("strategy",
                       "expected the name that the plugin file declares; only psd takes the file itself");
    EN_TRY(eni_run_spec_add_method(spec, &attributes));
    EN_TRY(agree_schema(o, spec));
    return eni_run_spec_add_run(spec, &attributes);
}

/* ---- joining ---- */

/* The token's path, as config/env.c and psd set it for worker processes. */
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
    const en_status st = eni_token_await(path, deadline_ns, client->interrupt_fd, &client->token);
    if (st == EN_ENOENT)
        eni_error("kv",
                  "no token at %s: start psd on this host as the same user, or copy its token file here and "
                  "set token_file",
                  path);
    return st;
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
    const char *sharing = flags & EN_CLIENT_TCP ? NULL : client->host_id;
    EN_TRY(eni_endpoints_find(&world->leader, world->epoch, sharing, &endpoints));
    EN_TRY(eni_arena_open(client->elements, ENI_SLOT_FREE, true, &client->arena));
    EN_TRY(eni_net_open(1, &client->net));
    const eni_client_config config = {.net = client->net,
                                      .psd = &endpoints,
                                      .arena = client->arena,
                                      .buckets = &client->buckets,
                                      .token = &client->token,
                                      .rank = world->rank,
                                      .incarnation = world->incarnation,
                                      .alive = alive,
                                      .user = client,
                                      .wake_fd = eni_member_fd(client->member),
                                      .join_deadline_ns = deadline_ns};
    return eni_client_open(&config, &client->store);
}

/* Rank 0 sends its weights to the store; then all ranks, rank 0 too, start from the store's. */
static en_status start_alike(en_client *client, const en_client_options *o)
{
    for (uint32_t i = 0; o->rank == 0 && i < client->ntensors; i++) {
        const float *initial = declared_at(o, i)->initial;
        if (initial != NULL)
            memcpy(en_client_param(client, (int)i), initial, client->tensors[i].count * sizeof *initial);
    }
    for (uint32_t b = 0; o->rank == 0 && b < client->buckets.n; b++)
        EN_TRY(eni_client_call(client->store, b, ENI_SLOT_PARAM, ENI_SLOT_NONE,
                               &(eni_header){.type = ENI_MSG_INIT, .what = EN_WEIGHTS}));
    for (uint32_t b = 0; o->rank == 0 && b < client->buckets.n; b++)
        EN_TRY(eni_client_wait(client->store, b));
    EN_TRY(en_client_pull(client, EN_CLIENT_ALL));
    EN_TRY(en_client_wait(client, EN_CLIENT_ALL));
    client->pulls = 0; /* counts the caller's only */
    return EN_OK;
}

static en_status open_all(en_client *client, const en_client_options *o)
{
    int64_t deadline_ns = eni_now_ns() + (int64_t)(o->join_timeout * (double)ENI_SECOND);
    EN_TRY(make_schema(client, o));
    EN_TRY(join(client, o, deadline_ns));
    EN_TRY(open_store(client, o->flags, deadline_ns));
    return start_alike(client, o);
}

/* A copy, since the caller may close its own, whose number may then become another file's. */
static en_status copy_interrupt(en_client *client, const en_client_options *o)
{
    client->interrupt_fd = o->interrupt_fd > 0 ? fcntl(o->interrupt_fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (o->interrupt_fd == 0 || client->interrupt_fd >= 0) return EN_OK;
    if (errno == EBADF) return invalid("interrupt_fd", "not an open descriptor; give one, or 0 for none");
    return eni_fail(EN_EIO, "kv", "cannot copy interrupt_fd: %s", strerror(errno));
}

en_status en_client_open(const en_client_options *options, en_client **client_out)
{
    en_client_options o;
    *client_out = NULL;
    EN_TRY(read_options(options, &o));
    en_client *client = eni_alloc(sizeof *client);
    if (client == NULL) return EN_ENOMEM;
    en_status st = copy_interrupt(client, &o);
    if (st == EN_OK) st = open_all(client, &o);
    if (st == EN_OK)
        *client_out = client;
    else
        en_client_close(client);
    return st;
}

void en_client_close(en_client *client)
{
    if (client == NULL) return;
    if (!atomic_load(&client->is_finished) && client->net != NULL) eni_net_abort(client->net);
    eni_client_close(client->store);
    eni_net_close(client->net);
    eni_arena_close(client->arena);
    eni_member_close(client->member);
    if (client->interrupt_fd >= 0) close(client->interrupt_fd);
    free_schema(client);
    eni_free(client);
}

/* ---- status ---- */

en_status en_client_status(const en_client *client)
{
    const en_status failed = atomic_load(&client->failed);
    if (failed != EN_OK) return failed;
    return atomic_load(&client->is_finished) ? EN_OK : alive((void *)client);
}

/* A call that failed half-way cannot be resumed. */
static en_status keep(en_client *client, en_status status)
{
    en_status none = EN_OK;
    atomic_compare_exchange_strong(&client->failed, &none, status);
    return status;
}

/* ---- tensors ---- */

static bool has(const en_client *client, int tensor)
{
    return tensor >= 0 && (uint32_t)tensor < client->ntensors;
}

static float *vector_at(const en_client *client, uint32_t slot, int tensor)
{
    return has(client, tensor) ? eni_arena_at(client->arena, slot, client->tensors[tensor].offset) : NULL;
}

float *en_client_param(en_client *client, int tensor)
{
    return vector_at(client, ENI_SLOT_PARAM, tensor);
}

float *en_client_grad(en_client *client, int tensor)
{
    return vector_at(client, ENI_SLOT_GRAD, tensor);
}

uint64_t en_client_elements(const en_client *client, int tensor)
{
    return has(client, tensor) ? client->tensors[tensor].count : 0;
}

/* The range [*first, *last) of tensors that `tensor` stands for. */
static en_status range_of(const en_client *client, int tensor, uint32_t *first, uint32_t *last)
{
    if (tensor != EN_CLIENT_ALL && !has(client, tensor))
        return eni_fail(EN_EINVAL, "kv", "tensor %d does not exist: %u were declared", tensor,
                        client->ntensors);
    *first = tensor == EN_CLIENT_ALL ? 0 : (uint32_t)tensor;
    *last = tensor == EN_CLIENT_ALL ? client->ntensors : *first + 1;
    return EN_OK;
}

/* ---- calls ---- */

static en_status check_idle(const en_client *client, uint32_t first, uint32_t last)
{
    if (atomic_load(&client->is_finished))
        return eni_fail(EN_EINVAL, "kv", "no call may follow en_client_finish");
    for (uint32_t i = first; i < last; i++)
        if (client->tensors[i].call != ENI_KV_NONE)
            return eni_fail(EN_EINVAL, "kv", "tensor %s has a call in progress: en_client_wait for it first",
                            client->tensors[i].name);
    return EN_OK;
}

static en_status start_one(en_client *client, eni_kv_tensor *tensor, eni_kv_call call, uint64_t nsamples)
{
    const bool is_pull = call == ENI_KV_PULL;
    const int out_slot = is_pull ? ENI_SLOT_NONE : ENI_SLOT_GRAD;
    const int in_slot = call == ENI_KV_PUSH ? ENI_SLOT_NONE : ENI_SLOT_PARAM;
    tensor->call = call;
    for (uint32_t b = tensor->first_bucket; b < tensor->first_bucket + tensor->nbuckets; b++)
        EN_TRY(eni_client_call(client->store, b, out_slot, in_slot,
                               &(eni_header){.type = is_pull ? ENI_MSG_SNAPSHOT : ENI_MSG_CALL,
                                             .kind = is_pull ? 0 : PUSH,
                                             .what = is_pull ? EN_WEIGHTS : EN_GRAD,
                                             .nsamples = nsamples,
                                             .covered = nsamples,
                                             .step = client->pushes}));
    return EN_OK;
}

static en_status start(en_client *client, int tensor, eni_kv_call call, uint64_t nsamples)
{
    uint32_t first, last;
    en_status alive = en_client_status(client);
    if (alive != EN_OK) return keep(client, alive);
    EN_TRY(range_of(client, tensor, &first, &last));
    EN_TRY(check_idle(client, first, last));
    for (uint32_t i = first; i < last; i++) {
        en_status st = start_one(client, &client->tensors[i], call, nsamples);
        if (st != EN_OK) return keep(client, st);
    }
    return EN_OK;
}

en_status en_client_pull(en_client *client, int tensor)
{
    return start(client, tensor, ENI_KV_PULL, 0);
}

en_status en_client_push(en_client *client, int tensor, uint64_t nsamples)
{
    return start(client, tensor, ENI_KV_PUSH, nsamples);
}

en_status en_client_push_pull(en_client *client, int tensor, uint64_t nsamples)
{
    return start(client, tensor, ENI_KV_PUSH_PULL, nsamples);
}

/* ---- answers ---- */

static void count_push(en_client *client, const eni_kv_tensor *tensor)
{
    double staleness = 0;
    for (uint32_t b = 0; b < tensor->nbuckets; b++)
        staleness +=
            eni_client_answered(client->store, tensor->first_bucket + b).staleness / tensor->nbuckets;
    client->pushes++;
    client->staleness_sum += staleness;
    if (staleness > client->staleness_max) client->staleness_max = staleness;
}

static uint64_t answered_version(const en_client *client, const eni_kv_tensor *tensor)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t b = 0; b < tensor->nbuckets; b++) {
        uint64_t version = eni_client_answered(client->store, tensor->first_bucket + b).version;
        if (version < least) least = version;
    }
    return least;
}

static en_status wait_one(en_client *client, eni_kv_tensor *tensor)
{
    if (tensor->call == ENI_KV_NONE) return EN_OK;
    for (uint32_t b = 0; b < tensor->nbuckets; b++)
        EN_TRY(eni_client_wait(client->store, tensor->first_bucket + b));
    if (tensor->call == ENI_KV_PULL)
        client->pulls++;
    else
        count_push(client, tensor);
    if (tensor->call != ENI_KV_PUSH) tensor->version = answered_version(client, tensor);
    tensor->call = ENI_KV_NONE;
    return EN_OK;
}

en_status en_client_wait(en_client *client, int tensor)
{
    uint32_t first, last;
    EN_TRY(atomic_load(&client->failed));
    EN_TRY(range_of(client, tensor, &first, &last));
    for (uint32_t i = first; i < last; i++) {
        en_status st = wait_one(client, &client->tensors[i]);
        if (st != EN_OK) return keep(client, st);
    }
    return EN_OK;
}

en_status en_client_finish(en_client *client)
{
    if (atomic_load(&client->is_finished)) return atomic_load(&client->failed);
    EN_TRY(en_client_wait(client, EN_CLIENT_ALL));
    en_status st = eni_client_finished(client->store);
    if (st == EN_OK) st = eni_member_bye(client->member, eni_now_ns() + 10 * ENI_SECOND);
    if (st != EN_OK) return keep(client, st);
    atomic_store(&client->is_finished, true);
    return EN_OK;
}

/* ---- figures ---- */

uint64_t en_client_version(const en_client *client, int tensor)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < client->ntensors; i++)
        if ((tensor == EN_CLIENT_ALL || tensor == (int)i) && client->tensors[i].version < least)
            least = client->tensors[i].version;
    return least == UINT64_MAX ? 0 : least;
}

en_status en_client_count(const en_client *client, en_client_counters *counters)
{
    eni_client_counters moved;
    uint32_t size = counters->size;
    if (size < sizeof *counters)
        return eni_fail(EN_EINVAL, "kv", "counters of %u bytes: set size to sizeof(en_client_counters), %zu",
                        size, sizeof *counters);
    eni_client_count(client->store, &moved);
    *counters = (en_client_counters){
        .size = size,
        .is_shared = (uint32_t)eni_client_is_shared(client->store),
        .pushes = client->pushes,
        .pulls = client->pulls,
        .staleness_mean = client->pushes > 0 ? client->staleness_sum / (double)client->pushes : 0,
        .staleness_max = client->staleness_max,
        .payload_sent = moved.payload_sent,
        .payload_received = moved.payload_received,
        .wire_bytes = moved.wire_bytes,
        .shm_bytes = moved.shm_bytes,
        .wait_ns = moved.wait_ns};
    return EN_OK;
}
