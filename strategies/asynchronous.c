/* asynchronous.c - four asynchronous servers that look at the delay of a gradient before they step with it.
 *
 *     worker   gradient --push-->  server: delay = version - base --> drop, shrink, gather or correct --> step
 *              weights  <---------  at once: nobody waits
 *
 * `base` is the version of the weights that the gradient was computed on, so the delay counts the steps that were taken
 * since. Each of the four is ps-async as long as its rule does nothing, in log and bytes.
 *
 *     ringmaster       drops what is too old                Maranjyan, Tyurin & Richtarik, ICML 2025
 *     delay-adaptive   shrinks the rate of what is old      Mishchenko, Bach, Even & Woodworth, NeurIPS 2022; Koloskova,
 *                                                           Stich & Jaggi, NeurIPS 2022
 *     softsync         gathers some, and shrinks each       Zhang, Gupta, Lian & Liu, IJCAI 2016
 *     dc-asgd          corrects it for the delay            Zheng, Meng, Wang, Chen, Yu, Ma & Liu, ICML 2017
 *
 * The unit is the partition: a gradient may be dropped by one bucket's partition and taken by another's. The papers have one
 * version for the whole model; with one bucket and one shard so has Entrain. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "entrain/strategy.h"

enum { PUSH = 1 };

/* ---- worker half: the same for all ---------------------------------------------------------------------- */

static en_status push_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    req[0] = host->call(host, EN_SERVERS, PUSH, EN_GRAD, bucket, bucket->grad, bucket->param, 0);
    return EN_OK;
}

static void promise(en_theory *theory_out, double staleness)
{
    theory_out->sent = theory_out->recv = 1;
    theory_out->max_clocks_behind = INFINITY;
    theory_out->staleness = staleness;
}

static uint64_t delay_of(const en_partition *part, const en_msg *msg)
{
    return part->version - msg->base_version;
}

static en_status step_with(en_store *store, const en_partition *part, const en_msg *msg, double weight)
{
    en_status status = store->absorb(store, part, msg, weight);
    return status == EN_OK ? store->step(store, part) : status;
}

/* ---- ringmaster (Maranjyan'25, arXiv 2501.16168, alg. 4) -------------------------------------------------- */

/* x(k+1) = x(k) - rate g if the delay is below R, else x(k) stays; the worker goes on from the newest weights in both cases.
 * R = max(1, ceil(sigma^2 / eps)) in the paper depends on the problem; the default 2W is ours. Alg. 5, which stops workers
 * whose gradient would be dropped, needs a cancellation that the contract has not. */
static const en_option ringmaster_options[] = {
    {sizeof(en_option), EN_OPT_INT, "threshold", "delay that is dropped; inf: none", 2, 1, INFINITY, "2W"},
    {0},
};

static en_status ringmaster_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    if ((double)delay_of(part, msg) >= store->num(store, "threshold")) return EN_OK;
    return step_with(store, part, msg, 1);
}

static void ringmaster_theory(en_host *host, void *state, en_theory *theory_out)
{
    (void)state;
    promise(theory_out, isinf(host->num(host, "threshold")) ? host->world->nranks - 1 : -1);
}

/* ---- delay-adaptive (Mishchenko'22, arXiv 2206.07638; Koloskova'22, arXiv 2206.08307) ------------------------ */

/* x(k+1) = x(k) - rate min(1, W / delay)^power g: the authors' code has rate W / max(W, delay) (konstmish/asynchronous_sgd,
 * run(), read), which is their rate min(1/W, 1/delay) up to a constant; Koloskova's theorem 8 (eq. 11) allows any rate below
 * 1 / (4 L delay) beyond a delay of W, as many gradients as are computed at once. The power is ours. The weight is on the
 * gradient, so momentum and weight decay stay as they are; the papers have neither. */
static const en_option adaptive_options[] = {
    {sizeof(en_option), EN_OPT_INT, "power", "of min(1, W / delay), the factor of the rate", 1, 0, 64, NULL},
    {0},
};

static en_status adaptive_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    const uint64_t delay = delay_of(part, msg);
    const double factor = delay > part->nranks ? part->nranks / (double)delay : 1;
    double weight = 1;
    for (double power = store->num(store, "power"); power > 0; power--)
        weight *= factor;
    return step_with(store, part, msg, weight);
}

/* ---- softsync (Zhang'16, arXiv 1511.05950, n-softsync with the staleness-dependent rate) ------------------- */

/* x(k+1) = x(k) - 1/c sum over c gradients of (rate / max(1, delay)) g, where c = floor(W / splits): `splits` is the paper's n,
 * the number of steps in the time of W gradients. c counts gradients, also two of one worker. The mean weighs by samples,
 * which are equal in the paper. The end of the last worker steps with what is gathered, so that no answered gradient is lost;
 * the paper's servers never end. */
static const en_option softsync_options[] = {
    {sizeof(en_option), EN_OPT_INT, "splits", "steps per W gradients, 1 to W", 1, 1, 1e6, "W"},
    {sizeof(en_option), EN_OPT_TEXT, "rate", "staleness: the rate over the delay; or none", 0, 0, 0,
     "staleness"},
    {0},
};

static en_status softsync_open(en_host *host, void *state)
{
    (void)state;
    const char *rate = host->text(host, "rate");
    const int splits = (int)host->num(host, "splits"), workers = host->world->nranks;
    const bool is_known = strcmp(rate, "staleness") == 0 || strcmp(rate, "none") == 0;
    if (is_known && splits <= workers) return EN_OK;
    if (is_known)
        host->log(
            host, 0,
            "--strategy=softsync:splits=%d with %d workers: a step needs at least one gradient; give 1 to %d",
            splits, workers, workers);
    else
        host->log(host, 0, "--strategy=softsync:rate=%s is unknown; give staleness or none", rate);
    return EN_EINVAL;
}

static en_status softsync_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    uint64_t *gathered = state;
    const uint64_t delay = delay_of(part, msg), splits = (uint64_t)store->num(store, "splits");
    const bool is_modulated = strcmp(store->text(store, "rate"), "staleness") == 0;
    en_status status = store->absorb(store, part, msg, is_modulated && delay > 1 ? 1 / (double)delay : 1);
    if (status != EN_OK || ++*gathered < part->nranks / splits) return status;
    *gathered = 0;
    return store->step(store, part);
}

static void softsync_member(en_store *store, void *state, const en_partition *part, int32_t who, int event)
{
    uint64_t *gathered = state;
    if (event == EN_MEMBER_JOINED || part->nclients > 0 || *gathered == 0) return;
    *gathered = 0;
    if (store->step(store, part) != EN_OK)
        store->log(store, 0, "bucket %u shard %u: the step after worker %d ended has failed", part->bucket,
                   part->shard, who);
}

/* W - 1 gradients of others come between two of a worker, and c of them are a version. */
static void softsync_theory(en_host *host, void *state, en_theory *theory_out)
{
    (void)state;
    const int gradients = host->world->nranks / (int)host->num(host, "splits"); /* 0: ranks were lost */
    promise(theory_out, (host->world->nranks - 1) / (double)(gradients > 0 ? gradients : 1));
}

/* ---- dc-asgd (Zheng'17, arXiv 1609.08326, eq. 10, alg. 1 and 2) ---------------------------------------------- */

/* x -= rate (g + lambda g g (x - backup(m))), where backup(m) is what worker m was sent last: the diagonal of the gradient's
 * outer product stands for the Hessian. With `adaptive` lambda is, element by element, lambda0 / sqrt(MS + 1e-7), where
 * MS = 0.95 MS + 0.05 g g over the gradients of all workers. (The authors' Multiverso code, dcasgda_updater.h, has an MS for
 * each worker; its lambda0 2, 0.95 and 1e-7 are these.) An answer that is lost and sent again carries newer weights than the
 * backup. The backup of a worker that comes back is the weights at its return. */
enum { BACKUP = 0, MEAN_SQUARE = 1, DC_VECS }; /* a worker's, and in worker 0's place the partition's own */

static const en_option dc_options[] = {
    {sizeof(en_option), EN_OPT_REAL, "lambda", "of the correction; 0: none", 0.04, 0, 1e6, NULL},
    {sizeof(en_option), EN_OPT_BOOL, "adaptive", "lambda0 / sqrt(mean square) for lambda", 0, 0, 1, NULL},
    {sizeof(en_option), EN_OPT_REAL, "lambda0", "of adaptive", 2, 0, 1e6, NULL},
    {sizeof(en_option), EN_OPT_REAL, "decay", "of adaptive's mean square", 0.95, 0, 1, NULL},
    {0},
};

/* Nothing where the weights have not moved: g + 0 is another zero than g = -0. `square` NULL: not adaptive. */
static void correct(float *g, const float *w, const float *backup, float *square, uint64_t count,
                    float lambda, float decay)
{
    for (uint64_t i = 0; i < count; i++) {
        const float moved = w[i] - backup[i];
        float scale = lambda;
        if (square != NULL) {
            square[i] = decay * square[i] + (1 - decay) * g[i] * g[i];
            scale = lambda / sqrtf(square[i] + 1e-7f);
        }
        g[i] = moved != 0 ? g[i] + scale * g[i] * g[i] * moved : g[i];
    }
}

static en_status dc_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    uint64_t *has_mean_square = state;
    const bool is_adaptive = store->num(store, "adaptive") != 0;
    const float lambda = (float)store->num(store, is_adaptive ? "lambda0" : "lambda"),
                decay = (float)store->num(store, "decay");
    if (lambda == 0) return step_with(store, part, msg, 1);
    const float *backup = store->peer(store, part, msg->src, BACKUP);
    float *square = is_adaptive ? store->peer(store, part, 0, MEAN_SQUARE) : NULL;
    if (backup == NULL || (is_adaptive && square == NULL)) return EN_ENOMEM;
    if (is_adaptive && !*has_mean_square) memset(square, 0, part->count * sizeof *square);
    *has_mean_square = is_adaptive;
    correct(msg->data, part->w, backup, square, part->count, lambda, decay);
    return step_with(store, part, msg, 1);
}

static void dc_back_up(en_store *store, const en_partition *part, int32_t who)
{
    float *backup = store->peer(store, part, who, BACKUP);
    if (backup != NULL) memcpy(backup, part->w, part->count * sizeof *backup);
}

static int dc_pull(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    dc_back_up(store, part, msg->src);
    return EN_REPLY_WEIGHTS;
}

/* Before the first version everybody has the initial weights, which a backup is by itself. */
static void dc_member(en_store *store, void *state, const en_partition *part, int32_t who, int event)
{
    (void)state;
    if (event == EN_MEMBER_JOINED && part->version > 0) dc_back_up(store, part, who);
}

/* ---- of all that drop nothing and gather nothing -------------------------------------------------------- */

static void async_theory(en_host *host, void *state, en_theory *theory_out)
{
    (void)state;
    promise(theory_out, host->world->nranks - 1);
}

/* ---- the tables ----------------------------------------------------------------------------------------- */

#define ASYNCHRONOUS .abi = EN_STRATEGY_ABI, .size = sizeof(en_strategy), .submit = push_submit

static const en_strategy dc_table = {
    ASYNCHRONOUS,
    .name = "dc-asgd",
    .help = "delay-compensated ASGD: ps-async that corrects a gradient by the way the weights went since",
    .paper = "Zheng'17 (ICML), asynchronous SGD with delay compensation, eq. 10, alg. 1 and 2",
    .flags = EN_STORE_ON_SERVERS,
    .peer_vecs = DC_VECS,
    .partition_state = sizeof(uint64_t),
    .options = dc_options,
    .theory = async_theory,
    .on_push = dc_push,
    .on_pull = dc_pull,
    .on_member = dc_member,
};

static const en_strategy softsync_table = {
    ASYNCHRONOUS,
    .name = "softsync",
    .help = "staleness-aware ASGD: a step on every floor(W / splits) gradients, each over its delay",
    .paper = "Zhang'16 (IJCAI), staleness-aware async-SGD for distributed deep learning, n-softsync",
    .flags = EN_STORE_ON_SERVERS | EN_PUSH_READ_ONLY,
    .partition_state = sizeof(uint64_t),
    .options = softsync_options,
    .next = &dc_table,
    .open = softsync_open,
    .theory = softsync_theory,
    .on_push = softsync_push,
    .on_member = softsync_member,
};

static const en_strategy delay_adaptive = {
    ASYNCHRONOUS,
    .name = "delay-adaptive",
    .help = "delay-adaptive ASGD: ps-async whose rate shrinks by W / delay for gradients older than W steps",
    .paper = "Mishchenko'22, asynchronous SGD beats minibatch SGD; Koloskova'22 (both NeurIPS)",
    .flags = EN_STORE_ON_SERVERS | EN_PUSH_READ_ONLY,
    .options = adaptive_options,
    .next = &softsync_table,
    .theory = async_theory,
    .on_push = adaptive_push,
};

static const en_strategy ringmaster = {
    ASYNCHRONOUS,
    .name = "ringmaster",
    .help = "Ringmaster ASGD: ps-async that drops gradients with a delay of `threshold` steps or more",
    .paper = "Maranjyan'25 (ICML), Ringmaster ASGD, alg. 4 (without calculation stops)",
    .flags = EN_STORE_ON_SERVERS | EN_PUSH_READ_ONLY,
    .options = ringmaster_options,
    .next = &delay_adaptive,
    .theory = ringmaster_theory,
    .on_push = ringmaster_push,
};

const en_strategy *en_strategy_entry(uint32_t host_abi)
{
    return host_abi == EN_STRATEGY_ABI ? &ringmaster : NULL;
}
