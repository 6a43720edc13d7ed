/* ps.c - the parameter server in three disciplines: workers push gradients, the server steps, workers pull.
 *
 *     worker   gradient --push-->  server: stage, maybe step  --weights-->  worker
 *
 * One round trip per bucket and step. Two numbers, asked of every push, distinguish the three:
 *
 *                 quorum: gradients per optimizer step    bound: clocks a worker may be ahead of the slowest
 *     ps-sync     all workers                             0 (answered after the step that it is part of)
 *     ps-async    1                                       infinity (answered at once)
 *     ssp         1                                       s (answered when no worker is over s steps behind)
 *
 * ssp with bound 0 keeps the pace of ps-sync, not its arithmetic: stepping on each gradient and stepping on
 * their mean differ, above all with momentum.
 *
 * The unit of the store is the partition: one shard's part of one bucket. Partitions decide
 * independently. */
#include <math.h>

#include "entrain/strategy.h"

enum { PUSH = 1 };

/* ---- worker half: the same for all three --------------------------------------------------------------- */

static en_status ps_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    req[0] = host->call(host, EN_SERVERS, PUSH, EN_GRAD, bucket, bucket->grad, bucket->param, 0);
    return EN_OK;
}

/* Gradients out, weights in: the model once each way, whatever the number of workers. */
static void promise(en_theory *theory_out, double max_clocks_behind, double staleness)
{
    theory_out->sent = theory_out->recv = 1;
    theory_out->max_clocks_behind = max_clocks_behind;
    theory_out->staleness = staleness;
}

/* ---- ps-sync: one step on the mean of everyone (Li'14, sec. 3.4, "sequential"; Valiant'90, BSP) -------- */

static en_status sync_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    en_status status = store->absorb(store, part, msg, 1);
    if (status != EN_OK || part->pending < part->nclients) return status;
    return store->step(store, part);
}

/* A push is answered only with weights newer than those it was computed on. */
static int sync_pull(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)store, (void)state;
    return part->version > msg->base_version ? EN_REPLY_WEIGHTS : EN_HOLD_VERSION;
}

/* A worker that finished or left may be the one that the others wait for. */
static void sync_member(en_store *store, void *state, const en_partition *part, int32_t who, int event)
{
    (void)state, (void)who;
    if (event == EN_MEMBER_JOINED || part->pending == 0 || part->pending < part->nclients) return;
    if (store->step(store, part) != EN_OK)
        store->log(store, 0, "bucket %u shard %u: the step after worker %d ended has failed", part->bucket,
                   part->shard, who);
}

static void sync_theory(en_host *host, void *state, en_theory *theory_out)
{
    (void)host, (void)state;
    promise(theory_out, 0, 0);
}

/* ---- ps-async: every gradient is a step (Dean'12, Downpour SGD, sec. 4.1; Recht'11, Hogwild) ----------- */

/* The store half is the host's default: a push is added and stepped with, and answered at once. */

/* Between two pushes of a worker each other worker pushes once, on average, whatever their speeds: each
 * version is somebody's push, and every worker's own push follows its own pull. */
static void async_theory(en_host *host, void *state, en_theory *theory_out)
{
    (void)state;
    promise(theory_out, INFINITY, host->world->nranks - 1);
}

/* ---- ssp: as ps-async, but nobody runs further than `bound` ahead (Ho'13, sec. 3; Cipar'13) ------------ */

static const en_option ssp_options[] = {
    {sizeof(en_option), EN_OPT_INT, "bound", "steps that a worker may be ahead of the slowest", 3, 0,
     INFINITY, NULL},
    {0},
};

/* A clock counts pushes, this one included: a worker with clock c is answered, and so begins step c, once
 * the slowest has pushed c - bound times. */
static int ssp_pull(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    if (msg->clock <= part->min_clock) return EN_REPLY_WEIGHTS;
    return (double)(msg->clock - part->min_clock) <= store->num(store, "bound") ? EN_REPLY_WEIGHTS
                                                                                : EN_HOLD_CLOCK;
}

static void ssp_theory(en_host *host, void *state, en_theory *theory_out)
{
    (void)state;
    promise(theory_out, host->num(host, "bound"), -1);
}

/* ---- the tables ---------------------------------------------------------------------------------------- */

static const en_strategy ssp = {
    .abi = EN_STRATEGY_ABI,
    .size = sizeof(en_strategy),
    .name = "ssp",
    .help = "server steps on every gradient; fast workers wait for the slowest beyond a bound",
    .paper = "Ho'13, more effective distributed ML via a stale synchronous parallel parameter server, sec. 3",
    .flags = EN_STORE_ON_SERVERS | EN_PUSH_READ_ONLY,
    .options = ssp_options,
    .submit = ps_submit,
    .theory = ssp_theory,
    .on_pull = ssp_pull,
};

static const en_strategy ps_async = {
    .abi = EN_STRATEGY_ABI,
    .size = sizeof(en_strategy),
    .name = "ps-async",
    .help = "server steps on every gradient as it comes; nobody waits",
    .paper = "Dean'12, large scale distributed deep networks, sec. 4.1 (Downpour SGD)",
    .flags = EN_STORE_ON_SERVERS | EN_PUSH_READ_ONLY,
    .next = &ssp,
    .submit = ps_submit,
    .theory = async_theory,
};

static const en_strategy ps_sync = {
    .abi = EN_STRATEGY_ABI,
    .size = sizeof(en_strategy),
    .name = "ps-sync",
    .help = "server steps once per round, on the mean of all workers' gradients",
    .paper = "Li'14, scaling distributed machine learning with the parameter server, sec. 3.4",
    .flags = EN_STORE_ON_SERVERS | EN_SYNCHRONOUS | EN_REPLICATED | EN_STATIC | EN_PUSH_READ_ONLY | EN_ROUNDS,
    .next = &ps_async,
    .submit = ps_submit,
    .theory = sync_theory,
    .on_push = sync_push,
    .on_pull = sync_pull,
    .on_member = sync_member,
};

const en_strategy *en_strategy_entry(uint32_t host_abi)
{
    return host_abi == EN_STRATEGY_ABI ? &ps_sync : NULL;
}
