/* host_ops.c - the strategy's calls, on an arena and a transport (host.h): the same code on sockets, in shared
 * memory and in virtual time.
 *
 * From top to bottom: vectors, small services, arithmetic on vectors; then requests, which coll, sendrecv,
 * mean_step and call start and wait ends; last their table. host_state.c has what the GPU shares, host_gpu.c
 * what differs there. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/try.h"
#include "runtime/host/host_state.h"

/* An invalid call has no request: its wait is EN_EBUG, or the status that ends the run. */
#define REQUEST_REFUSED UINT64_MAX

static eni_host *host_of(en_host *table)
{
    return (eni_host *)(void *)table;
}

/* ---- vectors ---- */

static float *vec_address(const eni_host *host, en_vec v)
{
    const uint64_t lo = host->config.buckets->bucket[eni_vec_bucket(v)].lo;
    return eni_vec_slot(v) == ENI_SLOT_PARAM ? eni_host_weights(host, lo, true)
                                             : eni_arena_at(host->config.arena, eni_vec_slot(v), lo);
}

static en_vec host_vec(en_host *table, const char *name, const en_bucket *like)
{
    eni_host *host = host_of(table);
    uint32_t slot;
    if (!eni_host_knows(host, "vec", like)) return 0;
    if (name == NULL || name[0] == 0 || strlen(name) >= ENI_HOST_NAME) {
        eni_error("host", "%s asked for the vector \"%.60s\": a name has 1 to %d characters",
                  host->config.strategy->name, name == NULL ? "(NULL)" : name, ENI_HOST_NAME - 1);
        return 0;
    }
    if (eni_host_has_slot(host, name, &slot)) return eni_vec_of(slot, like->id);
    if (!host->is_planning) {
        eni_error("host", "%s asked for the new vector \"%s\" in a step: do it in open or plan",
                  host->config.strategy->name, name);
        return 0;
    }
    if (!eni_host_find_slot(host, name, &slot)) {
        eni_error("host", "%s asked for more than %d vectors; \"%s\" has no room",
                  host->config.strategy->name, ENI_ARENA_NSLOTS - ENI_SLOT_FREE, name);
        return 0;
    }
    return eni_vec_of(slot, like->id);
}

static en_vec host_slot(en_host *table, const en_bucket *bucket, int i)
{
    eni_host *host = host_of(table);
    if (!eni_host_knows(host, "slot", bucket) || i < 0 || i >= host->slots.noptimizer) return 0;
    return eni_vec_of(host->slots.optimizer + (uint32_t)i, bucket->id);
}

/* ---- small services ---- */

static bool has_key(eni_host *host, const char *operation, const char *key, bool is_text)
{
    if (!eni_host_is_on_thread(host, operation)) return false;
    if (key == NULL)
        eni_host_misuse(host, "called %s without a key", operation);
    else if (!eni_options_has(host->config.options, key, is_text))
        eni_host_misuse(host, "called %s for '%s', which its table of options does not declare as a %s",
                        operation, key, is_text ? "text" : "number");
    else
        return true;
    return false;
}

static double host_num(en_host *table, const char *key)
{
    eni_host *host = host_of(table);
    return has_key(host, "num", key, false)
               ? eni_options_num(host->config.options, key, host->config.world.nranks)
               : 0;
}

static const char *host_text(en_host *table, const char *key)
{
    eni_host *host = host_of(table);
    return has_key(host, "text", key, true) ? eni_options_text(host->config.options, key) : "";
}

static uint64_t host_rand(en_host *table)
{
    eni_host *host = host_of(table);
    if (!eni_host_is_on_thread(host, "rand")) return 0;
    eni_rng_key key = {host->config.seed, ENI_RNG_STRATEGY, (uint32_t)host->config.world.rank,
                       host->now.step};
    return eni_rng_u64(&key, host->rand_calls++);
}

static int64_t host_now(en_host *table)
{
    return eni_host_now(host_of(table));
}

__attribute__((format(printf, 3, 4))) static void host_log(en_host *table, int level, const char *fmt, ...)
{
    char text[512];
    va_list args;
    if (!eni_host_is_on_thread(host_of(table), "log")) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (level <= 0) host_of(table)->hook.has_refused = true;
    eni_host_leave_hook(host_of(table)); /* its reader may be slow */
    eni_log(level < 0 ? 0 : level, host_of(table)->config.strategy->name, "%s", text);
    eni_host_return_to_hook(host_of(table));
}

static double host_lr(en_host *table)
{
    return (double)host_of(table)->now.lr;
}

/* Maps a group to EN_WORLD, EN_GROUP or EN_LEADERS, the widest that has the same ranks. */
static int plain_group(const en_world *world, int group)
{
    if (group == EN_LOCAL) group = world->nhosts > 1 ? EN_GROUP : EN_WORLD;
    if (group == EN_GROUP && world->ngroups <= 1) return EN_WORLD;
    return group == EN_LEADERS && world->ngroups == world->nranks ? EN_WORLD : group;
}

static int size_of(const en_world *world, int group)
{
    return group == EN_GROUP ? world->ngroup : group == EN_LEADERS ? world->ngroups : world->nranks;
}

static double host_coll_bytes(en_host *table, int op, int group)
{
    const eni_host_config *c = &host_of(table)->config;
    const eni_transport *t = &host_of(table)->transport;
    const int all = plain_group(&c->world, t->has_world ? group : EN_LOCAL);
    const int algorithm = all == EN_LEADERS                 ? c->leaders_algorithm
                          : t->has_world && all == EN_WORLD ? c->coll_algorithm
                          : t->has_group                    ? c->group_algorithm
                                                            : ENI_COLL_DIRECT;
    return eni_coll_bytes(algorithm, op, size_of(&c->world, all));
}

/* Measured when it is first asked for, which is before step 0. */
static double host_cost(en_host *table, int op, const en_bucket *bucket)
{
    eni_host *host = host_of(table);
    const eni_transport *t = &host->transport;
    if (!eni_host_knows(host, "cost", bucket)) return NAN;
    if (t->cost != NULL) return t->cost(t->user, op, bucket->count * sizeof(float));
    if (!host->measured.is_done && host->is_planning && host->config.measure != NULL) {
        host->measured.is_done = true;
        eni_host_leave_hook(host);
        host->measured.status = host->config.measure(host->config.measure_user, &host->measured.costs);
        eni_host_return_to_hook(host);
    }
    if (!host->measured.is_done || host->measured.status != EN_OK) return NAN; /* a rule must not guess */
    return eni_costs_of(&host->measured.costs, op, host->config.world.nranks, bucket->count * sizeof(float));
}

/* ---- arithmetic ---- */

/* Notes that the strategy writes into a vector: a written gradient may stand for any samples. */
static void note_write(eni_host *host, en_vec v)
{
    if (eni_vec_slot(v) == ENI_SLOT_PARAM) host->writes_param = true;
    if (eni_vec_slot(v) == ENI_SLOT_GRAD) host->of[eni_vec_bucket(v)].is_empty = false;
}

/* Whether anything other than mean_step may write `v`; else misuse of `operation`. */
static bool may_write(eni_host *host, const char *operation, en_vec v)
{
    const uint32_t slot = eni_vec_slot(v);
    if (host->config.strategy->flags & EN_ROUNDS && slot == ENI_SLOT_PARAM &&
        strcmp(operation, "call") != 0) {
        eni_host_misuse(host, "called %s on the weights, which with EN_ROUNDS only call changes", operation);
        return false;
    }
    const bool is_optimizer = eni_host_is_optimizer_slot(host, slot);
    if (!(host->config.strategy->flags & EN_SHARED_PARAMS) || (slot != ENI_SLOT_PARAM && !is_optimizer))
        return true;
    eni_host_misuse(host, "called %s on %s, which with EN_SHARED_PARAMS only mean_step changes", operation,
                    is_optimizer ? "optimizer state" : "the weights");
    return false;
}

/* Whether an operation that the strategy has not waited for works on the vector, a misuse: whether it is done by now
 * depends on the network. A vector that is only sent may still be read. */
static bool is_in_use(eni_host *host, const char *operation, en_vec v, bool writes)
{
    const int slot = (int)eni_vec_slot(v);
    uint32_t left = host->requests.n;
    for (en_req id = host->requests.next; left > 0 && id-- > host->requests.base;) {
        const eni_request *r = eni_host_request(host, id);
        left -= r != NULL;
        if (r == NULL || r->kind == REQ_GPU || r->bucket->id != eni_vec_bucket(v)) continue;
        const bool is_call = r->kind == REQ_CALL, is_sendrecv = r->op.coll.op == ENI_COLL_SENDRECV;
        const int out = is_call ? r->op.out : (int)r->op.coll.slot;
        const int in = is_call ? r->op.in : is_sendrecv ? (int)r->op.coll.slot_in : out;
        if (slot != in && !(writes && slot == out) && !(r->then_step && slot == ENI_SLOT_PARAM)) continue;
        eni_host_misuse(
            host, "called %s on a vector of bucket %u on which its %s works; wait for that first (rule 2)",
            operation, r->bucket->id, r->what);
        return true;
    }
    return false;
}

/* Whether this bucket's step was taken already: mean_step is a step. */
static bool is_second_step(eni_host *host, const char *operation, const en_bucket *bucket)
{
    const char **stepped = &host->of[bucket->id].stepped_by;
    const bool is_second =
        *stepped != NULL && (strcmp(*stepped, "mean_step") == 0 || strcmp(operation, "mean_step") == 0);
    if (is_second)
        eni_host_misuse(host,
                        "called %s on bucket %u after %s: mean_step averages and steps, so that one call is "
                        "the step (rule 6)",
                        operation, bucket->id, *stepped);
    *stepped = operation;
    return is_second;
}

/* Whether the vectors are in the arena; else misuse of `operation`. */
static bool is_in_arena(eni_host *host, const char *operation)
{
    if (host->config.gpu == NULL) return true;
    eni_host_misuse(host,
                    "called %s, but its vectors lie on the GPU, where only mean_step and step change them; "
                    "run it with --backend=host",
                    operation);
    return false;
}

static en_status host_lin(en_host *table, en_vec y, double a, en_vec x, double b)
{
    eni_host *host = host_of(table);
    if (!eni_host_is_on_thread(host, "lin")) return EN_EBUG;
    if (!eni_vec_is_valid(host, x) || !eni_vec_is_valid(host, y) || eni_vec_bucket(x) != eni_vec_bucket(y)) {
        eni_host_misuse(host, "called lin on vectors that are not of one bucket");
        return EN_EBUG;
    }
    if (!may_write(host, "lin", y) || !is_in_arena(host, "lin")) return EN_EBUG;
    if (is_in_use(host, "lin", y, true) || is_in_use(host, "lin", x, false)) return EN_EBUG;
    note_write(host, y);
    const int64_t begin = eni_host_now(host);
    eni_lin(vec_address(host, y), (float)a, vec_address(host, x), (float)b,
            host->buckets[eni_vec_bucket(x)].count);
    host->counters.update_ns += eni_host_now(host) - begin;
    return EN_OK;
}

/* A mean of no samples moves nothing. */
static void step_bucket(eni_host *host, const en_bucket *bucket, const eni_hyper *hyper)
{
    const int64_t begin = eni_host_now(host);
    float *slots[ENI_MAX_SLOTS] = {NULL};
    for (int i = 0; i < host->slots.noptimizer; i++)
        slots[i] =
            vec_address(host, eni_vec_of(host->slots.optimizer + (uint32_t)i, bucket->id)) + bucket->lo;
    if (!host->of[bucket->id].is_empty)
        eni_step_range(host->config.optimizer, host->config.buckets->bucket[bucket->id].lo + bucket->lo,
                       vec_address(host, bucket->param) + bucket->lo, slots,
                       vec_address(host, bucket->grad) + bucket->lo, bucket->hi - bucket->lo, hyper);
    eni_host_updated(host, bucket->id, begin);
}

static void step_by_caller(eni_host *host, uint32_t bucket)
{
    const int64_t begin = eni_host_now(host);
    if (host->of[bucket].is_empty) return;
    eni_host_leave_hook(host);
    const en_status st = host->config.step(host->config.step_user, bucket);
    eni_host_return_to_hook(host);
    if (st != EN_OK) host->hook.verdict = st;
    eni_host_updated(host, bucket, begin);
}

/* The step counts even if nothing moves: replicas and stores count alike. */
static void take_step(eni_host *host, const en_bucket *bucket)
{
    const eni_hyper hyper = eni_host_begin_step(host, bucket->id);
    if (host->config.step != NULL)
        step_by_caller(host, bucket->id);
    else if (!host->config.steps_outside)
        step_bucket(host, bucket, &hyper);
    eni_host_stepped(host, bucket->id, &hyper);
}

void eni_host_step_all(eni_host *host)
{
    for (uint32_t b = 0; b < host->config.buckets->n; b++) {
        eni_hyper hyper = eni_host_rates(host, b);
        hyper.step--; /* it is counted */
        step_bucket(host, &host->buckets[b], &hyper);
    }
}

static en_status host_step(en_host *table, const en_bucket *bucket)
{
    eni_host *host = host_of(table);
    if (!eni_host_knows(host, "step", bucket)) return EN_EBUG;
    if (!may_write(host, "step", bucket->param) || is_second_step(host, "step", bucket) ||
        is_in_use(host, "step", bucket->param, true) || is_in_use(host, "step", bucket->grad, false))
        return EN_EBUG;
    for (int i = 0; i < host->slots.noptimizer; i++)
        if (is_in_use(host, "step", host_slot(table, bucket, i), true)) return EN_EBUG;
    if (host->config.gpu != NULL) return eni_host_gpu_step(host, bucket);
    take_step(host, bucket);
    return EN_OK;
}

/* ---- requests ---- */

static eni_request *request_new(eni_host *host, eni_request_kind kind, const en_bucket *bucket)
{
    const en_req id = host->requests.next++;
    const uint64_t at = (id - host->requests.base) % ENI_HOST_REQUESTS;
    eni_request **block = &host->requests.block[at / ENI_HOST_BLOCK];
    if (*block == NULL) *block = eni_alloc_array(ENI_HOST_BLOCK, sizeof **block);
    eni_request *r = *block == NULL ? NULL : &(*block)[at % ENI_HOST_BLOCK];
    if (r == NULL || r->kind != REQ_FREE) {
        eni_host_misuse(host, "has more than %d requests in progress; wait for some", ENI_HOST_REQUESTS);
        return NULL;
    }
    *r = (eni_request){.kind = kind, .host = host, .id = id, .bucket = bucket};
    host->requests.n++;
    return r;
}

/* Handles come from a plugin: an invalid one, or one of another bucket, would reach past the arena. */
static bool is_vector_of(eni_host *host, const char *operation, const en_bucket *bucket, en_vec v)
{
    if (eni_vec_is_valid(host, v) && eni_vec_bucket(v) == bucket->id) return true;
    eni_host_misuse(host, "called %s with a vector that is not of bucket %u", operation, bucket->id);
    return false;
}

/* ---- parameters shared by the ranks of a host (EN_SHARED_PARAMS) ---- */

/* Replicas that only mean_step changes are the same bytes on every rank: p copies are p times the memory and
 * p times the work. So the ranks map rank 0's, and mean_step is one pass: the owner of a slice reads it from
 * all gradients, averages it in registers, and steps that part of the one copy (ops/mean.h). Ranks that need
 * weights of their own share the optimizer's state, and the owner copies what it has stepped to the others.
 *
 *     apart         read 2 slices, write the mean twice; then each rank reads it all, and steps all its weights
 *     shared        read 2 slices, step one
 *     own weights   read 2 slices, step one, copy its weights
 *
 * This is safe because a rank submits a bucket only when its backward needs neither its gradient nor its
 * weights any more, the pass over a bucket begins when all have submitted it, and finish waits for all. */
en_status eni_host_share_step(eni_host *host, bool has_own_params)
{
    const eni_host_config *c = &host->config;
    eni_host_note_start(host); /* off the clock */
    if (!(c->strategy->flags & EN_SHARED_PARAMS) || c->coll == NULL || !eni_coll_can_share(c->coll) ||
        c->steps_outside)
        return EN_OK;
    if (!has_own_params) EN_TRY(eni_coll_share(c->coll, ENI_SLOT_PARAM));
    for (int i = 0; i < host->slots.noptimizer; i++)
        EN_TRY(eni_coll_share(c->coll, host->slots.optimizer + (uint32_t)i));
    host->steps_slices = true;
    host->has_own_params = has_own_params;
    return EN_OK;
}

/* This rank's slice, on the compute thread. The update's time is that of the pass: reading the gradients has
 * none of its own. */
static void step_slice(void *user, uint64_t lo, uint64_t hi, const eni_sources *from)
{
    eni_request *r = user;
    eni_host *host = r->host;
    const eni_host_config *c = &host->config;
    const uint64_t at = c->buckets->bucket[r->bucket->id].lo + lo;
    float *slots[ENI_MAX_SLOTS] = {NULL};
    const int64_t begin = eni_host_now(host);
    for (int i = 0; i < host->slots.noptimizer; i++)
        slots[i] = eni_arena_at(c->arena, host->slots.optimizer + (uint32_t)i, at);
    eni_mean_step_range(c->optimizer, at, eni_arena_at(c->arena, ENI_SLOT_PARAM, at), slots, from, hi - lo,
                        &r->hyper);
    if (r->stepped_ns == 0) r->stepping_ns = begin;
    r->stepped_ns = eni_host_now(host);
    host->counters.update_ns += r->stepped_ns - begin;
}

/* Makes the request's all-reduce the pass that averages and steps. */
static void fuse(eni_host *host, eni_request *r)
{
    r->is_fused = true;
    r->hyper = eni_host_begin_step(host, r->bucket->id);
    r->op.coll.op = ENI_COLL_MEAN_STEP;
    r->op.coll.on_reduced = step_slice;
    r->op.coll.on_reduced_user = r;
    r->op.coll.copies = host->has_own_params;
    r->op.coll.slot_in = ENI_SLOT_PARAM;
}

/* ---- collectives ---- */

/* A request that could not start is kept, and its wait returns why. */
static en_req start_coll(eni_host *host, int group, const eni_coll_op *op, const en_bucket *bucket,
                         bool then_step)
{
    eni_request *r = request_new(host, REQ_COLL, bucket);
    if (r == NULL) return REQUEST_REFUSED;
    r->op = (eni_operation){.kind = ENI_OPERATION_COLL, .group = group, .coll = *op};
    r->then_step = then_step;
    r->is_mean = op->slot == ENI_SLOT_GRAD && op->what == EN_GRAD && eni_coll_is_reduction(op);
    if (op->slot == ENI_SLOT_GRAD && op->op != ENI_COLL_SENDRECV)
        host->of[bucket->id].is_empty = false; /* until it is known */
    r->what = eni_coll_op_name(op->op);
    if (then_step && host->steps_slices) fuse(host, r);
    const int64_t begin = eni_host_now(host), updated = host->counters.update_ns;
    r->failed = eni_operation_start(host, &r->op);
    const int64_t end = eni_host_now(host);
    host->counters.send_ns += end - begin - (host->counters.update_ns - updated);
    eni_host_has_left(host, end);
    return r->id;
}

/* The participants: EN_WORLD, EN_GROUP or EN_LEADERS as the transport has them; ALONE where this rank is its
 * own group, and the operation the identity; NONE, a misuse. */
enum { ALONE = -1, NONE = -2 };
static int find_group(eni_host *host, int group)
{
    const en_world *world = &host->config.world;
    const eni_transport *t = &host->transport;
    const int all = plain_group(world, group);
    if (size_of(world, all) <= 1) return ALONE;
    if (all == EN_WORLD ? t->has_world : all == EN_GROUP ? t->has_group : t->has_leaders) return all;
    if (all == EN_WORLD && world->nhosts <= 1 && t->has_group) return EN_GROUP;
    eni_host_misuse(host, all == EN_WORLD ? "asked for a collective of all ranks: with "
                                            "EN_LEADERS_ARE_CLIENTS hosts meet at the servers only"
                                          : "asked for a collective inside one of several hosts, which "
                                            "requires EN_LEADERS_ARE_CLIENTS or EN_USES_GROUPS");
    return NONE;
}

static en_req host_mean_step(en_host *table, const en_bucket *bucket)
{
    eni_host *host = host_of(table);
    if (!eni_host_knows(host, "mean_step", bucket)) return REQUEST_REFUSED;
    if (host->config.strategy->flags & EN_ROUNDS && !may_write(host, "mean_step", bucket->param))
        return REQUEST_REFUSED;
    if (is_second_step(host, "mean_step", bucket)) return REQUEST_REFUSED;
    if (host->config.gpu != NULL) {
        eni_request *r = request_new(host, REQ_GPU, bucket);
        if (r == NULL) return REQUEST_REFUSED;
        eni_host_gpu_mean_step(host, r);
        return r->id;
    }
    const int group = find_group(host, EN_WORLD);
    if (group == NONE) return REQUEST_REFUSED;
    if (group == ALONE) { /* the worker has already averaged (coll in host.h) */
        take_step(host, bucket);
        return 0;
    }
    const eni_coll_op op = eni_host_bucket_op(host, EN_ALLREDUCE, EN_GRAD, bucket, bucket->grad);
    return start_coll(host, group, &op, bucket, true);
}

static bool is_collective(eni_host *host, int op, const en_bucket *bucket)
{
    if (op >= EN_ALLREDUCE && op <= EN_BCAST) return true;
    eni_host_misuse(host,
                    "called coll on bucket %u with unknown operation %d; EN_ALLREDUCE, EN_REDUCE_SCATTER, "
                    "EN_ALLGATHER, EN_REDUCE and EN_BCAST are %d to %d",
                    bucket->id, op, EN_ALLREDUCE, EN_BCAST);
    host->hook.verdict = EN_EINVAL;
    return false;
}

/* Whether another group works on the vector, a misuse: the operations of two groups have no common order. */
static bool is_with_another(eni_host *host, int group, const en_bucket *bucket, en_vec v)
{
    uint32_t left = host->config.strategy->flags & EN_USES_GROUPS ? host->requests.n : 0;
    for (en_req id = host->requests.next; left > 0 && id-- > host->requests.base;) {
        const eni_request *c = eni_host_request(host, id);
        left -= c != NULL;
        if (c == NULL || c->kind != REQ_COLL || c->bucket != bucket || c->op.group == group ||
            c->op.coll.slot != eni_vec_slot(v))
            continue;
        eni_host_misuse(
            host, "called coll on a vector of bucket %u that another group works on; wait for that first",
            bucket->id);
        return true;
    }
    return false;
}

static en_req host_coll(en_host *table, int op, int group, int what, const en_bucket *bucket, en_vec inout)
{
    eni_host *host = host_of(table);
    if (!eni_host_knows(host, "coll", bucket) || !is_collective(host, op, bucket) ||
        !eni_host_serves(host, "coll", group, what, 0))
        return REQUEST_REFUSED;
    const int who = find_group(host, group);
    if (who == NONE || !is_vector_of(host, "coll", bucket, inout)) return REQUEST_REFUSED;
    if (who == ALONE) return 0;
    if (!is_in_arena(host, "coll") || !may_write(host, "coll", inout)) return REQUEST_REFUSED;
    if (is_with_another(host, who, bucket, inout)) return REQUEST_REFUSED;
    const uint32_t slot = eni_vec_slot(inout);
    if (slot == ENI_SLOT_PARAM && op != EN_BCAST)
        host->writes_param = true; /* a broadcast copy does not count */
    eni_coll_op in_place = eni_host_bucket_op(host, op, what, bucket, inout);
    if (slot == ENI_SLOT_GRAD && who == EN_LEADERS) in_place.nsamples = host->of[bucket->id].grad_samples;
    if (slot == ENI_SLOT_GRAD && what == EN_GRAD && (op == EN_ALLREDUCE || op == EN_REDUCE))
        host->of[bucket->id].grad_samples =
            group == EN_LOCAL ? host->now.local_samples : host->now.world_samples;
    return start_coll(host, who, &in_place, bucket, false);
}

/* Other processes read this rank's own memory, which with EN_ROUNDS may not hold the weights. */
static bool may_send(eni_host *host, const char *operation, en_vec v)
{
    if (!(host->config.strategy->flags & EN_ROUNDS) || eni_vec_slot(v) != ENI_SLOT_PARAM) return true;
    eni_host_misuse(host, "called %s to send the weights, which with EN_ROUNDS are the store's own",
                    operation);
    return false;
}

static en_req host_sendrecv(en_host *table, int group, int what, const en_bucket *bucket, int to, en_vec out,
                            int from, en_vec in)
{
    eni_host *host = host_of(table);
    if (!eni_host_knows(host, "sendrecv", bucket) || !eni_host_serves(host, "sendrecv", group, what, 0))
        return REQUEST_REFUSED;
    if (group != EN_WORLD) {
        eni_host_misuse(host, "called sendrecv for a group, but only ranks of EN_WORLD exchange vectors");
        host->hook.verdict = EN_EINVAL;
        return REQUEST_REFUSED;
    }
    const int nranks = host->config.world.nranks;
    if (to < 0 || to >= nranks || from < 0 || from >= nranks) {
        eni_host_misuse(host, "called sendrecv on bucket %u with ranks %d and %d of a world of %d",
                        bucket->id, to, from, nranks);
        host->hook.verdict = EN_EINVAL;
        return REQUEST_REFUSED;
    }
    const int self = host->config.world.rank;
    if (in == out && to != self && from != self) {
        eni_host_misuse(host, "called sendrecv to receive into the vector of bucket %u that it sends",
                        bucket->id);
        host->hook.verdict = EN_EINVAL;
        return REQUEST_REFUSED;
    }
    const int who = find_group(host, EN_WORLD);
    if (who == NONE || !is_in_arena(host, "sendrecv")) return REQUEST_REFUSED;
    if (!is_vector_of(host, "sendrecv", bucket, out) || !is_vector_of(host, "sendrecv", bucket, in) ||
        !may_write(host, "sendrecv", in) || !may_send(host, "sendrecv", out))
        return REQUEST_REFUSED;
    note_write(host, in);
    if (who == ALONE) return host_lin(table, in, 1, out, 0) == EN_OK ? 0 : REQUEST_REFUSED;
    eni_coll_op op = eni_host_bucket_op(host, ENI_COLL_SENDRECV, what, bucket, out);
    op.to = to;
    op.from = from;
    op.slot_in = eni_vec_slot(in);
    return start_coll(host, who, &op, bucket, false);
}

/* ---- calls to the store ---- */

/* A call leaves at once, or when the collectives on its vector are done.
 *
 * Contents change in the order of call. A leader that reduces the gradients of its host and pushes the mean
 * says so in submit, one after the other, and backward goes on. The collective is done some time later, so
 * the push stays unsent: it leaves at the next submit, or in the next wait, whichever comes first after that.
 * Unsent calls leave in their order. Whoever waits for an answer sends all of them first, and waits for their
 * collectives: the other ranks have made, or will make before anything else, the same calls. */
static void send_call(eni_host *host, eni_request *r)
{
    const en_bucket *bucket = r->bucket;
    r->op.nsamples = r->is_grad ? host->of[bucket->id].grad_samples : bucket->nsamples;
    r->op.step = host->now.step;
    r->is_unsent = false;
    const int64_t begin = eni_host_now(host);
    r->failed = eni_operation_start(host, &r->op);
    const int64_t end = eni_host_now(host);
    if (bucket->id == 0) host->counters.base_version = r->op.version;
    host->counters.send_ns += end - begin;
    eni_host_has_left(host, end);
    eni_trace_span(host->config.trace, ENI_TRACE_COMPUTE, "push", begin, end, (int64_t)host->now.step,
                   (int)bucket->id, bucket->count * sizeof(float));
}

static bool is_done(eni_host *host, const eni_request *r)
{
    return r->is_complete || r->failed != EN_OK || eni_operation_test(host, &r->op);
}

/* The collective under way on the vector that the call sends, or NULL. */
static eni_request *holds_up(eni_host *host, const eni_request *r)
{
    for (en_req id = r->id; id-- > host->requests.first;) {
        eni_request *c = eni_host_request(host, id);
        if (c == NULL || c->kind != REQ_COLL || c->bucket != r->bucket || (int)c->op.coll.slot != r->op.out)
            continue;
        return c->failed == EN_OK && is_done(host, c) ? NULL : c;
    }
    return NULL;
}

/* true: r waits for a collective on its vector, and is queued. */
static bool delay_call(eni_host *host, eni_request *r)
{
    const eni_request *before = holds_up(host, r);
    if (before == NULL) return false;
    r->failed = before->failed;
    if (r->failed != EN_OK) return true; /* never sent */
    if (host->unsent.req == NULL)
        host->unsent.req = eni_alloc_array(ENI_HOST_REQUESTS, sizeof *host->unsent.req);
    r->failed = host->unsent.req == NULL ? EN_ENOMEM : EN_OK;
    if (r->failed != EN_OK) return true;
    r->is_unsent = true;
    r->after = before->id;
    host->unsent.req[host->unsent.end++ % ENI_HOST_REQUESTS] = r->id;
    return true;
}

void eni_host_send_unsent(eni_host *host, bool may_block)
{
    for (; host->unsent.begin < host->unsent.end; host->unsent.begin++) {
        eni_request *r = eni_host_request(host, host->unsent.req[host->unsent.begin % ENI_HOST_REQUESTS]);
        if (r == NULL || r->kind != REQ_CALL || !r->is_unsent) continue;
        eni_request *before = eni_host_request(host, r->after);
        if (before != NULL && !may_block && !is_done(host, before)) return;
        const en_status st = before != NULL ? eni_host_complete(host, before) : EN_OK;
        if (st == EN_OK) {
            send_call(host, r);
        } else {
            r->failed = st;
            r->is_unsent = false;
        }
    }
}

/* Whether this rank may call that store, now: one call of a bucket at a time. */
static bool may_call(eni_host *host, int dest, uint32_t kind, const en_bucket *bucket)
{
    const eni_transport *t = &host->transport;
    if (kind < 1 || kind > 255)
        eni_host_misuse(host, "called a store with kind %u; expected 1 .. 255", kind);
    else if (dest != EN_SERVERS && !t->has_rank_stores)
        eni_host_misuse(host, "called a store inside a worker, which this host does not have");
    else if (dest != EN_SERVERS && (dest < 0 || dest >= host->config.world.nranks))
        eni_host_misuse(host, "called the store of rank %d of %d", dest, host->config.world.nranks);
    else if (dest == EN_SERVERS && !t->is_client)
        eni_host_misuse(host, "called a store %s",
                        host->config.has_store
                            ? "on servers, of which only local rank 0 of a host is a client"
                            : "on servers, but this run has none");
    else if (eni_host_request(host, host->of[bucket->id].calling) != NULL)
        eni_host_misuse(host, "called a store for bucket %u, whose last call has not been waited for",
                        bucket->id);
    else
        return true;
    return false;
}

/* Whether the gradient stays as it is until the call is waited for: backward begins only after the default finish, which waits
 * for all calls of the step. A finish or a hook of the strategy's own may leave one for a later step. */
static bool keeps_gradient(const eni_host *host)
{
    const en_strategy *s = host->config.strategy;
    return s->finish == NULL && s->before_step == NULL && s->after_step == NULL;
}

static en_req host_call(en_host *table, int dest, uint32_t kind, int what, const en_bucket *bucket,
                        en_vec out, en_vec in, uint64_t word)
{
    eni_host *host = host_of(table);
    if (!eni_host_knows(host, "call", bucket) || !is_in_arena(host, "call") ||
        !eni_host_serves(host, "call", EN_WORLD, what, word) || !may_call(host, dest, kind, bucket))
        return REQUEST_REFUSED;
    if ((out != 0 && (!is_vector_of(host, "call", bucket, out) || !may_send(host, "call", out))) ||
        (in != 0 && (!is_vector_of(host, "call", bucket, in) || !may_write(host, "call", in))))
        return REQUEST_REFUSED;
    eni_request *r = request_new(host, REQ_CALL, bucket);
    if (r == NULL) return REQUEST_REFUSED;
    host->of[bucket->id].is_called = true;
    host->of[bucket->id].calling = r->id;
    if (in == bucket->grad) host->of[bucket->id].is_empty = false;
    r->op = (eni_operation){.kind = ENI_OPERATION_CALL,
                            .dest = dest,
                            .bucket = bucket->id,
                            .call_kind = kind,
                            .what = (uint32_t)what,
                            .out = out == 0 ? ENI_SLOT_NONE : (int)eni_vec_slot(out),
                            .in = in == 0 ? ENI_SLOT_NONE : (int)eni_vec_slot(in),
                            .keeps_out = out == bucket->grad && keeps_gradient(host)};
    r->is_push = out != 0;
    if (r->is_push) {
        r->op.covered = host->of[bucket->id].uncovered;
        host->of[bucket->id].uncovered = 0;
    }
    r->is_grad = what == EN_GRAD && out == bucket->grad;
    r->what = out == 0 ? "pull" : in == 0 ? "push" : "push-pull";
    if (!delay_call(host, r)) send_call(host, r);
    return r->id;
}

/* ---- waits ---- */

static en_status wait_coll(eni_host *host, eni_request *r)
{
    EN_TRY(eni_host_await(host, r, "all-reduce", eni_host_now(host), host->counters.update_ns));
    if (r->is_mean) host->of[r->bucket->id].is_empty = r->op.samples == 0;
    if (r->is_mean && r->op.samples != UINT64_MAX) host->of[r->bucket->id].grad_samples = r->op.samples;
    if (r->is_fused) eni_host_stepped(host, r->bucket->id, &r->hyper);
    if (r->stepped_ns != 0) eni_host_trace_update(host, r->bucket->id, r->stepping_ns, r->stepped_ns);
    if (r->then_step && !r->is_fused) take_step(host, r->bucket);
    return EN_OK;
}

static en_status wait_call(eni_host *host, eni_request *r)
{
    eni_host_send_unsent(host, true);
    if (r->failed != EN_OK) { /* woken by a death, perhaps: then that is the reason */
        EN_TRY(host->config.alive_status(host->config.alive_user));
        return r->failed;
    }
    EN_TRY(eni_host_await(host, r, "pull", eni_host_now(host), host->counters.update_ns));
    host->counters.lr = host->now.lr;
    if (r->bucket->id == 0) {
        host->counters.version = r->op.version;
        if (!host->progress.has_answer) host->progress.first_version = r->op.version;
        host->progress.has_answer = true;
    }
    if (r->is_push) /* the mean over the step's pushes so far */
        host->counters.staleness +=
            (r->op.staleness - host->counters.staleness) / (double)++host->now.npushes;
    return EN_OK;
}

en_status eni_host_wait(eni_host *host, en_req req)
{
    if (req == 0) return EN_OK;
    if (req == REQUEST_REFUSED) {
        EN_TRY(host->config.alive_status(host->config.alive_user));
        return host->hook.verdict != EN_OK ? host->hook.verdict : EN_EBUG;
    }
    if (req >= host->requests.next) {
        eni_host_misuse(host, "waits for request %llu, which does not exist", (unsigned long long)req);
        return EN_EBUG;
    }
    eni_request *r = eni_host_request(host, req);
    if (r == NULL) return EN_OK;
    en_status st = r->kind == REQ_COLL  ? wait_coll(host, r)
                   : r->kind == REQ_GPU ? eni_host_gpu_wait(host, r)
                                        : wait_call(host, r);
    if (r->kind == REQ_COLL && st == EN_OK) eni_host_send_unsent(host, false);
    r->kind = REQ_FREE;
    host->requests.n--;
    return st;
}

static en_status host_wait(en_host *table, en_req req)
{
    eni_host *host = host_of(table);
    if (!eni_host_is_on_thread(host, "wait")) return EN_EBUG;
    const bool is_submit = host->hook.place.hook != NULL && strcmp(host->hook.place.hook, "submit") == 0;
    if (!is_submit || (req >= host->requests.next && req != REQUEST_REFUSED)) return eni_host_wait(host, req);
    eni_host_misuse(host, "called wait, while backward goes on: wait in finish (rule 4)");
    return EN_EBUG;
}

/* No transport carries a word yet: every answer's is 0. */
static uint64_t host_answer(en_host *table, en_req req)
{
    (void)table, (void)req;
    return 0;
}

/* ---- the table ---- */

const en_host eni_host_operations = {
    .abi = EN_STRATEGY_ABI,
    .size = sizeof(en_host),
    .num = host_num,
    .text = host_text,
    .rand = host_rand,
    .now_ns = host_now,
    .log = host_log,
    .vec = host_vec,
    .slot = host_slot,
    .lin = host_lin,
    .step = host_step,
    .lr = host_lr,
    .cost = host_cost,
    .coll_bytes = host_coll_bytes,
    .mean_step = host_mean_step,
    .coll = host_coll,
    .sendrecv = host_sendrecv,
    .call = host_call,
    .wait = host_wait,
    .answer = host_answer,
};
