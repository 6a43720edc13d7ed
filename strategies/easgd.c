/* easgd.c - easgd: workers train alone, and every `period` steps each pulls the center a little towards itself and itself
 * towards the center (Zhang, Choromanska & LeCun, NeurIPS 2015, arXiv 1412.6651, alg. 1 and 2, asynchronous).
 *
 *     worker i   x(i) --.            .--> x(i) -= alpha (x(i) - z), then its step with the gradient at the x(i) before
 *                       |            |
 *     server            z += alpha (x(i) - z)
 *
 * The exchange is at steps 0, period, 2 period, ..; it takes the weights before the step, and the gradient is that of those
 * weights. One exchange is atomic at the server, partition by partition, so the sum of all x(i) and z stands still in it.
 * (The authors' own code, sixin-zh/mpiT, reads z and sends alpha (x - z) later.) The model is z.
 *
 * The answer is the new center z' = z + alpha (x - z), and alpha (x - z) = alpha / (1 - alpha) (x - z'). An answer that is
 * lost and repeated is then a center too, if a later one; a difference could not be given twice.
 *
 * With `momentum` a worker has Nesterov's (alg. 2, EAMSGD): v = momentum v - rate g(x + momentum v), x += v. `param` is
 * x + momentum v between the steps, where the gradient is due, and x is exchanged. The v keeps the rate of its time, as in the
 * paper. Weight decay, where the run has it, is part of g. For --momentum the exchanged weights are those of the optimizer,
 * which for Nesterov's are the point ahead: give the strategy's momentum for alg. 2, and --momentum=0. */
#include <math.h>

#include "entrain/strategy.h"

enum { EXCHANGE = 1 };

static const en_option easgd_options[] = {
    {sizeof(en_option), EN_OPT_REAL, "alpha", "moving rate", 0.9, 1e-6, 0.999999, "0.9/W"},
    {sizeof(en_option), EN_OPT_INT, "period", "steps between two exchanges", 10, 1, 1e9, NULL},
    {sizeof(en_option), EN_OPT_REAL, "momentum", "Nesterov's, of a worker (EAMSGD)", 0, 0, 0.999999, NULL},
    {0},
};

static en_status easgd_open(en_host *host, void *state)
{
    (void)state;
    const double alpha = host->num(host, "alpha"), most = 2.0 / (host->world->nranks + 1);
    if (alpha > most && host->world->rank == 0)
        host->log(host, 1,
                  "--strategy=easgd:alpha=%.3g with %d workers is beyond 2 / (W + 1) = %.3g, where exchanges "
                  "at once overshoot (Zhang'15: (4 - 2 rate) / (4 - rate) in turn); give less, say 0.9/W",
                  alpha, host->world->nranks, most);
    return EN_OK;
}

static en_status easgd_plan(en_host *host, void *state, const en_bucket *bucket, uint64_t *lo, uint64_t *hi)
{
    (void)state, (void)lo, (void)hi;
    const double momentum = host->num(host, "momentum");
    if (host->vec(host, "center", bucket) == 0 || host->vec(host, "exchanged", bucket) == 0) return EN_ENOMEM;
    return momentum > 0 && host->vec(host, "velocity", bucket) == 0 ? EN_ENOMEM : EN_OK;
}

static en_status easgd_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    const double momentum = host->num(host, "momentum");
    if (bucket->step % (uint64_t)host->num(host, "period") != 0) return EN_OK;
    const en_vec x = host->vec(host, "exchanged", bucket);
    en_status status = host->lin(host, x, 1, bucket->param, 0);
    if (status == EN_OK && momentum > 0)
        status = host->lin(host, x, -momentum, host->vec(host, "velocity", bucket), 1);
    if (status == EN_OK)
        req[0] = host->call(host, EN_SERVERS, EXCHANGE, EN_WEIGHTS, bucket, x,
                            host->vec(host, "center", bucket), 0);
    return status;
}

/* The step turns x + momentum v into x + momentum v - rate g, which is the new x. */
static en_status nesterov(en_host *host, const en_bucket *bucket, double momentum)
{
    const en_vec v = host->vec(host, "velocity", bucket);
    en_status status = host->lin(host, v, -1, bucket->param, momentum);
    if (status == EN_OK) status = host->step(host, bucket);
    if (status == EN_OK) status = host->lin(host, v, 1, bucket->param, 1);
    return status == EN_OK ? host->lin(host, bucket->param, momentum, v, 1) : status;
}

static en_status easgd_finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    (void)state;
    const double momentum = host->num(host, "momentum"), alpha = host->num(host, "alpha"),
                 pull = alpha / (1 - alpha);
    en_status status = host->wait(host, req[0]);
    if (status == EN_OK) status = momentum > 0 ? nesterov(host, bucket, momentum) : host->step(host, bucket);
    if (req[0] == 0 || status != EN_OK) return status;
    status = host->lin(host, bucket->param, -pull, host->vec(host, "exchanged", bucket), 1);
    return status == EN_OK ? host->lin(host, bucket->param, pull, host->vec(host, "center", bucket), 1)
                           : status;
}

static void easgd_theory(en_host *host, void *state, en_theory *theory_out)
{
    (void)state;
    theory_out->sent = theory_out->recv = 1 / host->num(host, "period");
    theory_out->max_clocks_behind = INFINITY;
    theory_out->staleness = -1; /* no gradient meets foreign weights: the models differ instead */
}

/* ---- store half: the center ------------------------------------------------------------------------------- */

static en_status easgd_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    const float alpha = (float)store->num(store, "alpha");
    for (uint64_t i = 0; i < part->count; i++)
        part->w[i] += alpha * (msg->data[i] - part->w[i]);
    store->touch(store, part);
    return EN_OK;
}

static const en_strategy easgd = {
    .abi = EN_STRATEGY_ABI,
    .size = sizeof(en_strategy),
    .name = "easgd",
    .help = "elastic averaging: workers train alone, each tied to a center on the server (EASGD, EAMSGD)",
    .paper = "Zhang'15 (NeurIPS), deep learning with elastic averaging SGD, alg. 1 and 2",
    .flags = EN_STORE_ON_SERVERS | EN_PUSH_READ_ONLY,
    .options = easgd_options,
    .open = easgd_open,
    .plan = easgd_plan,
    .submit = easgd_submit,
    .finish = easgd_finish,
    .theory = easgd_theory,
    .on_push = easgd_push,
};

const en_strategy *en_strategy_entry(uint32_t host_abi)
{
    return host_abi == EN_STRATEGY_ABI ? &easgd : NULL;
}
