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
 *
 * The unit is the partition: a gradient may be dropped by one bucket's partition and taken by another's. The papers have one
 * version for the whole model; with one bucket and one shard so has Entrain. */
#include <math.h>

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
    {sizeof(en_option), EN_OPT_INT, "threshold", "delay from which a gradient is dropped; inf: never", 2, 1,
     INFINITY, "2W"},
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
 * run(), read), which is their rate min(1/W, 1/delay) up to a constant; Koloskova's is any rate below 1/delay beyond a delay
 * of W, as many gradients as are computed at once. The power is ours. The weight is on the gradient, so momentum and weight
 * decay stay as they are; the papers have neither. */
static const en_option adaptive_options[] = {
    {sizeof(en_option), EN_OPT_INT, "power", "of min(1, W / delay), the factor of the rate; 0: none", 1, 0,
     64, NULL},
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

/* ---- of all that drop nothing and gather nothing -------------------------------------------------------- */

static void async_theory(en_host *host, void *state, en_theory *theory_out)
{
    (void)state;
    promise(theory_out, host->world->nranks - 1);
}

/* ---- the tables ----------------------------------------------------------------------------------------- */

#define ASYNCHRONOUS .abi = EN_STRATEGY_ABI, .size = sizeof(en_strategy), .submit = push_submit

static const en_strategy delay_adaptive = {
    ASYNCHRONOUS,
    .name = "delay-adaptive",
    .help = "delay-adaptive ASGD: ps-async whose rate shrinks by W / delay for gradients older than W steps",
    .paper =
        "Mishchenko'22, asynchronous SGD beats minibatch SGD under arbitrary delays; Koloskova'22, sharper "
        "convergence guarantees for asynchronous SGD (both NeurIPS)",
    .flags = EN_STORE_ON_SERVERS | EN_PUSH_READ_ONLY,
    .options = adaptive_options,
    .theory = async_theory,
    .on_push = adaptive_push,
};

static const en_strategy ringmaster = {
    ASYNCHRONOUS,
    .name = "ringmaster",
    .help = "Ringmaster ASGD: ps-async that drops gradients with a delay of `threshold` steps or more",
    .paper = "Maranjyan, Tyurin & Richtarik, ICML'25, Ringmaster ASGD, alg. 4 (without calculation stops)",
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
