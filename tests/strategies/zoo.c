/* zoo.c - strategies that use what the built-in ones do not: every collective, sendrecvs, stores on ranks,
 * peer vectors, timers, edited answers. They exist to try the hosts of strategy.h. */
#include <stdbool.h>
#include <string.h>

#include "entrain/strategy.h"

enum { GRADIENT = 1, EXCHANGE = 2, BUCKETS_MAX = 64 };

/* ---- zero1: reduce-scatter, step on a slice, all-gather (Rajbhandari'20, ZeRO stage 1) ----------------- */

static en_status zero1_plan(en_host *host, void *state, const en_bucket *bucket, uint64_t *lo, uint64_t *hi)
{
    (void)state;
    const uint64_t n = (uint64_t)host->world->nranks, rank = (uint64_t)host->world->rank;
    *lo = bucket->count * rank / n;
    *hi = bucket->count * (rank + 1) / n;
    return EN_OK;
}

static en_status zero1_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    req[0] = host->coll(host, EN_REDUCE_SCATTER, EN_WORLD, EN_GRAD, bucket, bucket->grad);
    return EN_OK;
}

static en_status zero1_finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    (void)state;
    en_status status = host->wait(host, req[0]);
    if (status == EN_OK) status = host->step(host, bucket);
    if (status != EN_OK) return status;
    return host->wait(host, host->coll(host, EN_ALLGATHER, EN_WORLD, EN_WEIGHTS, bucket, bucket->param));
}

/* ---- two-level: reduce within a group, all-reduce among the first ranks of groups, broadcast back -------- */

static en_status two_level_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    req[0] = host->coll(host, EN_REDUCE, EN_GROUP, EN_GRAD, bucket, bucket->grad);
    return EN_OK;
}

static en_status two_level_finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    (void)state;
    en_status status = host->wait(host, req[0]);
    if (status == EN_OK && host->world->group_rank == 0)
        status = host->wait(host, host->coll(host, EN_ALLREDUCE, EN_LEADERS, EN_GRAD, bucket, bucket->grad));
    if (status == EN_OK)
        status = host->wait(host, host->coll(host, EN_BCAST, EN_GROUP, EN_GRAD, bucket, bucket->grad));
    return status == EN_OK ? host->step(host, bucket) : status;
}

/* ---- hier: reduce within a machine, its leader talks to the server, broadcast back --------------------- */

static en_status hier_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    req[0] = host->coll(host, EN_REDUCE, EN_LOCAL, EN_GRAD, bucket, bucket->grad);
    return EN_OK;
}

static en_status hier_finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    (void)state;
    en_status status = host->wait(host, req[0]);
    if (status == EN_OK && host->world->local_rank == 0)
        status = host->wait(
            host, host->call(host, EN_SERVERS, GRADIENT, EN_GRAD, bucket, bucket->grad, bucket->param, 0));
    if (status != EN_OK) return status;
    return host->wait(host, host->coll(host, EN_BCAST, EN_LOCAL, EN_WEIGHTS, bucket, bucket->param));
}

static en_status round_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    en_status status = store->absorb(store, part, msg, 1);
    return status == EN_OK && part->pending >= part->nclients ? store->step(store, part) : status;
}

static int round_pull(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)store;
    (void)state;
    return part->version > msg->base_version ? EN_REPLY_WEIGHTS : EN_HOLD;
}

/* ---- gossip: symmetric averaging with both neighbours of a ring (Lian'17, D-PSGD, alg. 1) -------------- */

typedef struct gossip {
    en_vec left[BUCKETS_MAX], right[BUCKETS_MAX];
} gossip;

static en_status gossip_plan(en_host *host, void *state, const en_bucket *bucket, uint64_t *lo, uint64_t *hi)
{
    (void)lo, (void)hi;
    gossip *self = state;
    if (bucket->id >= BUCKETS_MAX) return EN_EUNSUPPORTED;
    self->left[bucket->id] = host->vec(host, "left", bucket);
    self->right[bucket->id] = host->vec(host, "right", bucket);
    return self->right[bucket->id] ? EN_OK : EN_ENOMEM;
}

static en_status gossip_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    const gossip *self = state;
    const int n = host->world->nranks, rank = host->world->rank;
    const int right = (rank + 1) % n, left = (rank + n - 1) % n;
    req[0] = host->sendrecv(host, EN_WORLD, EN_WEIGHTS, bucket, right, bucket->param, left,
                            self->left[bucket->id]);
    req[1] = host->sendrecv(host, EN_WORLD, EN_WEIGHTS, bucket, left, bucket->param, right,
                            self->right[bucket->id]);
    return EN_OK;
}

static en_status gossip_finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    const gossip *self = state;
    en_status status = host->wait(host, req[0]);
    if (status == EN_OK) status = host->wait(host, req[1]);
    if (status == EN_OK) status = host->lin(host, bucket->param, 0.25, self->left[bucket->id], 0.5);
    if (status == EN_OK) status = host->lin(host, bucket->param, 0.25, self->right[bucket->id], 1);
    return status == EN_OK ? host->step(host, bucket) : status;
}

/* forgetful: the same messages, and nobody mixes what comes */
static en_status forgetful_finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    (void)state;
    en_status status = host->wait(host, req[0]);
    if (status == EN_OK) status = host->wait(host, req[1]);
    return status == EN_OK ? host->step(host, bucket) : status;
}

static int mean_eval(en_host *host, void *state, const en_bucket *bucket, en_vec *vec_out)
{
    (void)host;
    (void)state;
    (void)bucket;
    (void)vec_out;
    return EN_EVAL_MEAN;
}

/* prying: eval exchanges, so the ranks would wait for each other between their steps */
static en_status prying_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    req[0] = host->mean_step(host, bucket);
    return EN_OK;
}

static int prying_eval(en_host *host, void *state, const en_bucket *bucket, en_vec *vec_out)
{
    (void)state, (void)vec_out;
    host->wait(host, host->coll(host, EN_ALLREDUCE, EN_WORLD, EN_WEIGHTS, bucket, bucket->param));
    return EN_EVAL_PARAM;
}

/* ---- pairs: random matchings of ranks, of which some sit out; now and then a mean of all ---------------- */

static en_status pairs_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    const gossip *self = state;
    const uint64_t n = (uint64_t)host->world->nranks, rank = (uint64_t)host->world->rank;
    uint64_t draw = (bucket->step * 64 + bucket->id + 1) * UINT64_C(0x9e3779b97f4a7c15);
    draw ^= draw >> 29;
    const uint64_t one = draw % n, other = (one + 1 + draw / n % n) % n; /* sometimes nobody meets */
    if (bucket->step % 3 == 2 && bucket->id == 0)
        req[1] = host->coll(host, EN_ALLREDUCE, EN_WORLD, EN_WEIGHTS, bucket, bucket->param);
    if (one == other || (rank != one && rank != other) || (bucket->step % 3 == 2 && bucket->id == 0))
        return EN_OK;
    const uint64_t partner = one + other - rank;
    const bool is_one_way = draw >> 63;
    req[0] = host->sendrecv(host, EN_WORLD, EN_WEIGHTS, bucket,
                            (int)(is_one_way && rank == one ? rank : partner), bucket->param,
                            (int)(is_one_way && rank == other ? rank : partner), self->left[bucket->id]);
    return EN_OK;
}

static en_status pairs_finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    const gossip *self = state;
    en_status status = host->wait(host, req[0]);
    if (status == EN_OK) status = host->wait(host, req[1]);
    if (status == EN_OK && req[0] != 0)
        status = host->lin(host, bucket->param, 0.5, self->left[bucket->id], 0.5);
    return status == EN_OK ? host->step(host, bucket) : status;
}

/* ---- visit: even ranks average with the store inside a random odd rank (Lian'18, AD-PSGD) -------------- */

typedef struct visit {
    int peer;
} visit;

static en_status visit_before_step(en_host *host, void *state, uint64_t step)
{
    visit *self = state;
    (void)step;
    self->peer = 1 + 2 * (int)(host->rand(host) % (uint64_t)(host->world->nranks / 2));
    return EN_OK;
}

static en_status visit_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    const visit *self = state;
    const int rank = host->world->rank;
    req[0] = rank % 2 ? host->call(host, rank, GRADIENT, EN_GRAD, bucket, bucket->grad, bucket->param, 0)
                      : host->call(host, self->peer, EXCHANGE, EN_WEIGHTS, bucket, bucket->param,
                                   bucket->param, 0);
    return EN_OK;
}

static en_status visit_finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    (void)state;
    en_status status = host->wait(host, req[0]);
    return status == EN_OK && host->world->rank % 2 == 0 ? host->step(host, bucket) : status;
}

static en_status visit_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    if (msg->kind == GRADIENT) {
        en_status status = store->absorb(store, part, msg, 1);
        return status == EN_OK ? store->step(store, part) : status;
    }
    for (uint64_t i = 0; i < part->count; i++)
        msg->data[i] = part->w[i] = 0.5f * (part->w[i] + msg->data[i]);
    store->touch(store, part);
    return EN_OK;
}

static int visit_pull(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)store;
    (void)state;
    (void)part;
    return msg->kind == EXCHANGE ? EN_REPLY_DATA : EN_REPLY_WEIGHTS;
}

/* ---- late: holds every answer until a timer has rung --------------------------------------------------- */

typedef struct late {
    uint64_t rung;
} late;

static en_status late_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    en_status status = store->absorb(store, part, msg, 1);
    store->timer(store, part, 1000000);
    return status;
}

static void late_timer(en_store *store, void *state, const en_partition *part)
{
    late *self = state;
    self->rung++;
    if (part->pending > 0) store->step(store, part);
}

/* ---- stuck: never answers; lonely: rank 0 meets nobody; mixed: ranks disagree about the collective ------ */

static en_status push_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    req[0] = host->call(host, EN_SERVERS, GRADIENT, EN_GRAD, bucket, bucket->grad, bucket->param, 0);
    return EN_OK;
}

static int never_pull(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)store;
    (void)state;
    (void)part;
    (void)msg;
    return EN_HOLD;
}

static en_status mixed_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    const int op = host->world->rank == 0 ? EN_ALLREDUCE : EN_BCAST;
    req[0] = host->coll(host, op, EN_WORLD, EN_GRAD, bucket, bucket->grad);
    return EN_OK;
}

static en_status lonely_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    if (host->world->rank != 0) return host->step(host, bucket);
    req[0] = host->sendrecv(host, EN_WORLD, EN_GRAD, bucket, 1, bucket->grad, 1, bucket->param);
    return EN_OK;
}

static en_status failing_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state, (void)req;
    return host->world->rank == 1 && bucket->step == 3 ? EN_EPEER : EN_OK;
}

/* ---- beyond: one of its hooks writes the element behind a vector ------------------------------------------ */

static const en_option where_options[] = {
    {.size = sizeof(en_option),
     .type = EN_OPT_INT,
     .key = "where",
     .help = "0: weights, in on_push; 1: the message, in on_push; 2: weights, in on_pull",
     .max = 2},
    {0},
};

static en_status beyond_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    const double where = store->num(store, "where");
    if (where == 0) part->w[part->count] = 1;
    if (where == 1) msg->data[part->count + 7] = 1;
    return EN_OK;
}

static int beyond_pull(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state, (void)msg;
    if (store->num(store, "where") == 2) part->w[part->count + 1] = 1;
    return EN_REPLY_WEIGHTS;
}

/* ---- softsync: a step on every `quorum` gradients, nobody waits (Zhang'16, n-softsync) ----------------- */

static const en_option quorum_options[] = {
    {.size = sizeof(en_option),
     .type = EN_OPT_INT,
     .key = "quorum",
     .help = "gradients a step",
     .value = 2,
     .min = 1,
     .max = 1024},
    {0},
};

static int has_quorum(en_store *store, const en_partition *part)
{
    const double wanted = store->num(store, "quorum");
    return part->pending > 0 && (part->pending >= wanted || part->pending >= part->nclients);
}

static en_status quorum_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    en_status status = store->absorb(store, part, msg, 1);
    return status == EN_OK && has_quorum(store, part) ? store->step(store, part) : status;
}

static void quorum_member(en_store *store, void *state, const en_partition *part, int32_t who, int event)
{
    (void)state;
    if (event == EN_MEMBER_JOINED || !has_quorum(store, part)) return;
    if (store->step(store, part) != EN_OK) store->log(store, 0, "no step after worker %d ended", who);
}

static int at_once(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)store;
    (void)state;
    (void)part;
    (void)msg;
    return EN_REPLY_WEIGHTS;
}

/* ---- backup: a step on the first `quorum` gradients of a round, late ones dropped (Chen'16, sec. 2) ---- */

/* Partitions drop for themselves: two ranks may each be late where the other waits. So a round also has a
 * limit.
 */
static en_status backup_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    if (msg->base_version < part->version) return EN_OK;
    store->timer(store, part, 2000000);
    return quorum_push(store, state, part, msg);
}

static void backup_timer(en_store *store, void *state, const en_partition *part)
{
    (void)state;
    if (part->pending > 0) store->step(store, part);
}

/* ---- moody: peer vectors, touches, random numbers, edited answers: all that a saved store must keep -----
 */

typedef struct moody {
    uint64_t pushes;
} moody;

static en_status moody_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    moody *self = state;
    float *peer = store->peer(store, part, msg->src, (int)(store->rand(store) % 2));
    if (!peer) return EN_ENOMEM;
    if (++self->pushes % 3 == 0) return store->absorb(store, part, msg, 0.5);
    for (uint64_t i = 0; i < part->count; i++) {
        peer[i] += 0.25f * msg->data[i];
        part->w[i] -= 0.01f * peer[i];
        msg->data[i] -= peer[i];
    }
    store->touch(store, part);
    store->timer(store, part, (int64_t)(store->rand(store) % 50));
    return EN_OK;
}

static int moody_pull(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    if (part->min_clock != UINT64_MAX && msg->clock > part->min_clock + 2) return EN_HOLD;
    return store->rand(store) % 3 ? EN_REPLY_DATA : EN_REPLY_WEIGHTS;
}

/* ---- overlap: a round's push is answered while the next gradient is computed ----------------------------------- */

static const en_option overlap_options[] = {
    {.size = sizeof(en_option), .type = EN_OPT_INT, .key = "copies", .help = "1: pushes a copy", .max = 1},
    {0},
};

typedef struct overlap {
    en_req last[16]; /* by bucket */
    en_vec copy[16];
} overlap;

static en_status overlap_plan(en_host *host, void *state, const en_bucket *bucket, uint64_t *lo, uint64_t *hi)
{
    overlap *self = state;
    (void)lo, (void)hi;
    if (host->num(host, "copies") == 1) self->copy[bucket->id] = host->vec(host, "copy", bucket);
    return EN_OK;
}

static en_status overlap_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)host, (void)state, (void)bucket, (void)req;
    return EN_OK;
}

static en_status overlap_finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    overlap *self = state;
    const en_vec copy = self->copy[bucket->id];
    (void)req;
    en_status status = host->wait(host, self->last[bucket->id]);
    if (status == EN_OK && copy != 0) status = host->lin(host, copy, 1, bucket->grad, 0);
    self->last[bucket->id] =
        host->call(host, EN_SERVERS, 1, EN_GRAD, bucket, copy != 0 ? copy : bucket->grad, bucket->param, 0);
    return status;
}

static void overlap_member(en_store *store, void *state, const en_partition *part, int32_t who, int event)
{
    (void)state, (void)who;
    if (event != EN_MEMBER_JOINED && part->pending > 0 && part->pending >= part->nclients)
        (void)store->step(store, part);
}

/* ---- tables -------------------------------------------------------------------------------------------- */

#define HEAD(text) .abi = EN_STRATEGY_ABI, .size = sizeof(en_strategy), .name = text, .help = "for the tests"

static const en_strategy moody_table = {HEAD("moody"),         .flags = EN_STORE_ON_SERVERS,
                                        .peer_vecs = 2,        .partition_state = sizeof(moody),
                                        .submit = push_submit, .on_push = moody_push,
                                        .on_pull = moody_pull, .on_timer = late_timer};
static const en_strategy overlap_table = {HEAD("overlap"),
                                          .flags = EN_STORE_ON_SERVERS | EN_PUSH_READ_ONLY,
                                          .options = overlap_options,
                                          .state = sizeof(overlap),
                                          .next = &moody_table,
                                          .plan = overlap_plan,
                                          .submit = overlap_submit,
                                          .finish = overlap_finish,
                                          .on_push = round_push,
                                          .on_pull = round_pull,
                                          .on_member = overlap_member};
static const en_strategy backup = {HEAD("backup"),
                                   .flags = EN_STORE_ON_SERVERS | EN_PUSH_READ_ONLY,
                                   .options = quorum_options,
                                   .next = &overlap_table,
                                   .submit = push_submit,
                                   .on_push = backup_push,
                                   .on_pull = round_pull,
                                   .on_timer = backup_timer,
                                   .on_member = quorum_member};
static const en_strategy softsync = {
    HEAD("softsync"),          .flags = EN_STORE_ON_SERVERS | EN_PUSH_READ_ONLY,
    .options = quorum_options, .next = &backup,
    .submit = push_submit,     .on_push = quorum_push,
    .on_pull = at_once,        .on_member = quorum_member};
static const en_strategy beyond = {
    HEAD("beyond"),        .flags = EN_STORE_ON_SERVERS, .options = where_options, .next = &softsync,
    .submit = push_submit, .on_push = beyond_push,       .on_pull = beyond_pull};
static const en_strategy failing = {HEAD("failing"), .next = &beyond, .submit = failing_submit};
static const en_strategy lonely = {HEAD("lonely"), .next = &failing, .submit = lonely_submit};
static const en_strategy mixed = {HEAD("mixed"), .next = &lonely, .submit = mixed_submit};
static const en_strategy stuck = {HEAD("stuck"), .flags = EN_STORE_ON_SERVERS, .next = &mixed,
                                  .submit = push_submit, .on_pull = never_pull};
static const en_strategy late_table = {
    HEAD("late"),          .flags = EN_STORE_ON_SERVERS, .partition_state = sizeof(late),
    .next = &stuck,        .submit = push_submit,        .on_push = late_push,
    .on_pull = round_pull, .on_timer = late_timer};
static const en_strategy visit_table = {HEAD("visit"),
                                        .flags = EN_STORE_ON_RANKS,
                                        .state = sizeof(visit),
                                        .next = &late_table,
                                        .before_step = visit_before_step,
                                        .submit = visit_submit,
                                        .finish = visit_finish,
                                        .eval = mean_eval,
                                        .on_push = visit_push,
                                        .on_pull = visit_pull};
static const en_strategy prying = {HEAD("prying"), .next = &visit_table, .submit = prying_submit,
                                   .eval = prying_eval};
static const en_strategy forgetful = {
    HEAD("forgetful"),       .state = sizeof(gossip),    .next = &prying,  .plan = gossip_plan,
    .submit = gossip_submit, .finish = forgetful_finish, .eval = mean_eval};
static const en_strategy pairs = {HEAD("pairs"),       .state = sizeof(gossip), .next = &forgetful,
                                  .plan = gossip_plan, .submit = pairs_submit,  .finish = pairs_finish,
                                  .eval = mean_eval};
static const en_strategy gossip_table = {
    HEAD("gossip"),          .state = sizeof(gossip), .next = &pairs,   .plan = gossip_plan,
    .submit = gossip_submit, .finish = gossip_finish, .eval = mean_eval};
static const en_strategy hier = {
    HEAD("hier"),          .flags = EN_STORE_ON_SERVERS | EN_LEADERS_ARE_CLIENTS | EN_SYNCHRONOUS,
    .next = &gossip_table, .submit = hier_submit,
    .finish = hier_finish, .on_push = round_push,
    .on_pull = round_pull};
static const en_strategy two_level = {HEAD("two-level"),
                                      .flags = EN_SYNCHRONOUS | EN_REPLICATED | EN_USES_GROUPS, .next = &hier,
                                      .submit = two_level_submit, .finish = two_level_finish};
static const en_strategy zero1 = {HEAD("zero1"),      .flags = EN_SYNCHRONOUS, .next = &two_level,
                                  .plan = zero1_plan, .submit = zero1_submit,  .finish = zero1_finish};

EN_EXPORT const en_strategy *en_strategy_entry(uint32_t host_abi)
{
    return host_abi == EN_STRATEGY_ABI ? &zero1 : NULL;
}
