/* hierarchical.c - two levels: the ranks of a host reduce in its memory, and one of them, its leader, talks
 * to the parameter server for all.
 *
 *     host a   rank 0  g0 --.
 *              rank 1  g1 --+--> leader: mean of the host --push-->  server: mean of the hosts, step
 *                                leader  <------weights----------    '
 *              rank 1  <----broadcast-'
 *
 * A host's link carries the model once each way, however many ranks the host has: with L ranks 1/L of what
 * ps-sync sends. A leader's push stands for the samples of its whole host, so the mean of hosts is the mean
 * of ranks; only the order of the sum differs: within hosts in rank order, then the hosts in the order of
 * their leaders. With one host, or one rank on each, that is the order of ring and ps-sync; a mean of means
 * is rounded once more per host.
 *
 * `bound` makes the outer level stale: the server steps on the gradient of each host as it comes, and no host
 * begins a step more than `bound` steps ahead of the slowest, as ssp's workers. The ranks of a host stay in
 * step. */
#include <stdbool.h>

#include "entrain/strategy.h"

enum { PUSH = 1 };

static const en_option hierarchical_options[] = {
    {sizeof(en_option), EN_OPT_INT, "bound",
     "steps that a host may be ahead of the slowest; -1: all hosts step together", -1, -1, 1e9, NULL},
    {0},
};

/* ---- worker half --------------------------------------------------------------------------------------- */

/* Pushes the reduced gradient once it is there: operations on a vector run in the order of call. */
static en_status hierarchical_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    req[0] = host->coll(host, EN_REDUCE, EN_LOCAL, EN_GRAD, bucket, bucket->grad);
    req[1] = 0;
    if (host->world->local_rank == 0)
        req[1] = host->call(host, EN_SERVERS, PUSH, EN_GRAD, bucket, bucket->grad, bucket->param, 0);
    return EN_OK;
}

static en_status hierarchical_finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    (void)state;
    en_status status = host->wait(host, req[0]);
    if (status == EN_OK) status = host->wait(host, req[1]);
    if (status != EN_OK) return status;
    return host->wait(host, host->coll(host, EN_BCAST, EN_LOCAL, EN_WEIGHTS, bucket, bucket->param));
}

/* Averaged over the ranks, for hosts with as many ranks as this one: two collectives inside a host, and the
 * model once each way for its leader. */
static void hierarchical_theory(en_host *host, void *state, en_theory *theory_out)
{
    (void)state;
    const double bound = host->num(host, "bound"),
                 leaders = (double)host->world->nhosts / host->world->nranks;
    const double inside =
        host->coll_bytes(host, EN_REDUCE, EN_LOCAL) + host->coll_bytes(host, EN_BCAST, EN_LOCAL);
    theory_out->sent = theory_out->recv = inside + leaders;
    theory_out->max_clocks_behind = bound < 0 ? 0 : bound;
    theory_out->staleness = bound < 0 ? 0 : -1;
}

/* ---- store half: its clients are leaders --------------------------------------------------------------- */

static bool is_stale(en_store *store)
{
    return store->num(store, "bound") >= 0;
}

static en_status hierarchical_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    en_status status = store->absorb(store, part, msg, 1);
    if (status != EN_OK || (!is_stale(store) && part->pending < part->nclients)) return status;
    return store->step(store, part);
}

static int hierarchical_pull(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    if (!is_stale(store)) return part->version > msg->base_version ? EN_REPLY_WEIGHTS : EN_HOLD_VERSION;
    if (msg->clock <= part->min_clock) return EN_REPLY_WEIGHTS;
    return (double)(msg->clock - part->min_clock) <= store->num(store, "bound") ? EN_REPLY_WEIGHTS
                                                                                : EN_HOLD_CLOCK;
}

/* A host that finished or left may be the one that the others wait for. */
static void hierarchical_member(en_store *store, void *state, const en_partition *part, int32_t who,
                                int event)
{
    (void)state;
    if (event == EN_MEMBER_JOINED || part->pending == 0 || part->pending < part->nclients) return;
    if (store->step(store, part) != EN_OK)
        store->log(store, 0, "bucket %u shard %u: the step after the host of worker %d ended has failed",
                   part->bucket, part->shard, who);
}

/* ---- the table ----------------------------------------------------------------------------------------- */

static const en_strategy hierarchical = {
    .abi = EN_STRATEGY_ABI,
    .size = sizeof(en_strategy),
    .name = "hierarchical",
    .help = "all-reduce inside a host, the parameter server between hosts: one client per host",
    .paper = "Li'14, sec. 3 (server and worker groups); Jiang'20, BytePS, sec. 3 (local aggregation)",
    .flags = EN_STORE_ON_SERVERS | EN_LEADERS_ARE_CLIENTS | EN_SYNCHRONOUS | EN_SYNCHRONOUS_BY_DEFAULT |
             EN_STATIC | EN_PUSH_READ_ONLY,
    .options = hierarchical_options,
    .submit = hierarchical_submit,
    .finish = hierarchical_finish,
    .theory = hierarchical_theory,
    .on_push = hierarchical_push,
    .on_pull = hierarchical_pull,
    .on_member = hierarchical_member,
};

const en_strategy *en_strategy_entry(uint32_t host_abi)
{
    return host_abi == EN_STRATEGY_ABI ? &hierarchical : NULL;
}
