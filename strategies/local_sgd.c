/* local_sgd.c - local SGD: islands train alone for some steps, then they agree.
 *
 *     island 0   step  step  step --.                .--> step  step ..
 *     island 1   step  step  step --+-- agreement ---+--> step  step ..        once in `period` steps
 *     island 2   step  step  step --'                '--> step  step ..
 *
 *                 an island is       they agree on
 *     local-sgd   a rank             the mean of their weights          Stich, ICLR 2019; Lin et al., ICLR 2020 (post-local)
 *     grouped     a group of ranks   the same                           Lin et al., ICLR 2020 (hierarchical local SGD)
 *     slowmo      a rank             a slow momentum step to that mean  Wang, Tantia, Ballas & Rabbat, ICLR 2020
 *     diloco      a rank or a group  an outer step of SGD (Nesterov)    Douillard et al. 2023
 *
 * The ranks of a group take each step together, on the mean of their gradients. A group is the ranks of a host, or one of
 * --groups. In an agreement all ranks weigh the same, so a larger group weighs more. An optimizer's momentum stays with its
 * island, where nothing else is said.
 *
 * Agreement comes after steps period, 2 period, .. of the run. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "entrain/strategy.h"

/* ---- a step of an island, and an agreement ---------------------------------------------------------------- */

/* Starts what all ranks agree by; NULL: nothing is due. */
typedef en_req (*agreement)(en_host *, const en_bucket *);

static en_req mean_of_weights(en_host *host, const en_bucket *bucket)
{
    return host->coll(host, EN_ALLREDUCE, EN_WORLD, EN_WEIGHTS, bucket, bucket->param);
}

/* `period` 0: never. */
static bool is_due(const en_bucket *bucket, double period)
{
    return period > 0 && (bucket->step + 1) % (uint64_t)period == 0;
}

/* Starts while backward still computes the gradients of earlier layers. */
static en_status island_submit(en_host *host, const en_bucket *bucket, en_req *req, bool is_alone,
                               agreement begin)
{
    if (!is_alone) {
        req[0] = host->coll(host, EN_ALLREDUCE, EN_GROUP, EN_GRAD, bucket, bucket->grad);
        return EN_OK;
    }
    en_status status = host->step(host, bucket);
    if (status == EN_OK && begin != NULL) req[1] = begin(host, bucket);
    return status;
}

static en_status island_finish(en_host *host, const en_bucket *bucket, const en_req *req, bool is_alone,
                               agreement begin)
{
    en_status status = is_alone ? EN_OK : host->wait(host, req[0]);
    if (status == EN_OK && !is_alone) status = host->step(host, bucket);
    if (status != EN_OK || begin == NULL) return status;
    return host->wait(host, is_alone ? req[1] : begin(host, bucket));
}

/* Between two agreements no rank has the paper's model, which is the mean of all. */
static int mean_eval(en_host *host, void *state, const en_bucket *bucket, en_vec *vec_out)
{
    (void)host, (void)state, (void)bucket, (void)vec_out;
    return EN_EVAL_MEAN;
}

static void promise(en_theory *theory_out, double sent, double period)
{
    theory_out->sent = theory_out->recv = sent;
    theory_out->max_clocks_behind = period > 0 ? period - 1 : INFINITY;
    theory_out->staleness = -1; /* no gradient is stale: the islands' models differ instead */
}

/* ---- local-sgd (Stich'19, alg. 1; Lin'20, post-local SGD) ------------------------------------------------- */

/* Post-local: in the first `start` steps the weights are averaged after every step, and then as counted from the first one, as
 * in the authors' code (epfml/LocalSGD-Code, optim/local_sgd.py, read). For period 1 that is the step of ring but for rounding,
 * with momentum too, since momentum is linear. */
static const en_option local_options[] = {
    {sizeof(en_option), EN_OPT_INT, "period", "steps between two averagings of all weights", 8, 1, 1e9, NULL},
    {sizeof(en_option), EN_OPT_INT, "start", "steps at first that are averaged one by one (post-local SGD)",
     0, 0, 1e9, NULL},
    {0},
};

static en_status local_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    const bool due =
        (double)bucket->step < host->num(host, "start") || is_due(bucket, host->num(host, "period"));
    return island_submit(host, bucket, req, true, due ? mean_of_weights : NULL);
}

static en_status local_after_step(en_host *host, void *state, uint64_t step)
{
    uint64_t *steps = state;
    (void)host;
    *steps = step + 1;
    return EN_OK;
}

/* Over the steps so far; of a run that has not begun, the period's. */
static void local_theory(en_host *host, void *state, en_theory *theory_out)
{
    const uint64_t *taken = state;
    const double period = host->num(host, "period"), steps = (double)*taken, start = host->num(host, "start"),
                 first = start < steps ? start : steps;
    const double share = steps > 0 ? (first + (steps - first) / period) / steps : 1 / period;
    promise(theory_out, share * host->coll_bytes(host, EN_ALLREDUCE, EN_WORLD), period);
}

/* ---- grouped (Lin'20, hierarchical local SGD with one step inside) ----------------------------------------- */

/* So each step stays on fast links, and the model crosses between hosts once in `period` steps; 0: never, and the groups train
 * separately. With one group this is ring, byte for byte; with one rank in each it is local-sgd. */
static const en_option grouped_options[] = {
    {sizeof(en_option), EN_OPT_INT, "period", "steps between two averagings of all groups; 0: none", 8, 0,
     1e9, NULL},
    {0},
};

static double grouped_period(en_host *host)
{
    return host->world->ngroups > 1 ? host->num(host, "period") : 0;
}

static en_status grouped_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    const bool due = is_due(bucket, grouped_period(host));
    return island_submit(host, bucket, req, host->world->ngroup == 1, due ? mean_of_weights : NULL);
}

static en_status grouped_finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    (void)state;
    const bool due = is_due(bucket, grouped_period(host));
    return island_finish(host, bucket, req, host->world->ngroup == 1, due ? mean_of_weights : NULL);
}

static int grouped_eval(en_host *host, void *state, const en_bucket *bucket, en_vec *vec_out)
{
    (void)state, (void)bucket, (void)vec_out;
    return host->world->ngroups > 1 ? EN_EVAL_MEAN : EN_EVAL_PARAM;
}

/* For groups as large as this one. */
static void grouped_theory(en_host *host, void *state, en_theory *theory_out)
{
    (void)state;
    const double inside = host->coll_bytes(host, EN_ALLREDUCE, EN_GROUP),
                 between = host->coll_bytes(host, EN_ALLREDUCE, EN_WORLD), period = grouped_period(host);
    promise(theory_out, inside + (period > 0 ? between / period : 0), period);
    if (host->world->ngroups <= 1) theory_out->max_clocks_behind = theory_out->staleness = 0;
}

/* ---- the outer steps: from `start`, the weights of the last agreement -------------------------------------- */

static en_status outer_plan(en_host *host, void *state, const en_bucket *bucket, uint64_t *lo, uint64_t *hi)
{
    (void)state, (void)lo, (void)hi;
    const en_vec start = host->vec(host, "start", bucket);
    return start != 0 && host->vec(host, "outer", bucket) != 0 ? host->lin(host, start, 1, bucket->param, 0)
                                                               : EN_ENOMEM;
}

static int outer_eval(en_host *host, void *state, const en_bucket *bucket, en_vec *vec_out)
{
    (void)state;
    *vec_out = host->vec(host, "start", bucket);
    return EN_EVAL_VEC;
}

/* ---- slowmo (Wang'20, arXiv 1910.00643, alg. 1) ------------------------------------------------------------ */

/* u = beta u + (start - mean) / rate; start -= alpha rate u; all go on from start. Kept is v = rate u, with the rate of that
 * agreement, so nothing is divided by the rate where it is 0, as at the beginning of a warm-up: such an agreement is the mean
 * alone, and v goes on at the rate it had. The rate is that of the last step before the agreement, as in fairscale, whose
 * period and beta are the defaults here; the paper has one rate per period. */
typedef struct slowmo {
    double rate, now; /* of v; of the agreement under way */
    uint64_t nslots;  /* averaged with buffer=average */
} slowmo;

static const en_option slowmo_options[] = {
    {sizeof(en_option), EN_OPT_INT, "period", "steps between two agreements", 48, 1, 1e9, NULL},
    {sizeof(en_option), EN_OPT_REAL, "beta", "slow momentum", 0.5, 0, 0.999999, NULL},
    {sizeof(en_option), EN_OPT_REAL, "alpha", "slow rate", 1, 1e-6, 1e6, NULL},
    {sizeof(en_option), EN_OPT_TEXT, "buffer", "keep, average or reset: optimizer state at an agreement", 0,
     0, 0, "keep"},
    {0},
};

static en_status slowmo_open(en_host *host, void *state)
{
    (void)state;
    const char *buffer = host->text(host, "buffer");
    if (strcmp(buffer, "keep") == 0 || strcmp(buffer, "average") == 0 || strcmp(buffer, "reset") == 0)
        return EN_OK;
    host->log(host, 0, "--strategy=slowmo:buffer=%s is unknown; give keep, average or reset", buffer);
    return EN_EINVAL;
}

static en_status slowmo_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    return island_submit(host, bucket, req, true,
                         is_due(bucket, host->num(host, "period")) ? mean_of_weights : NULL);
}

/* `param` has the mean. */
static en_status slow_step(en_host *host, const slowmo *self, const en_bucket *bucket)
{
    const en_vec start = host->vec(host, "start", bucket), v = host->vec(host, "outer", bucket);
    const double beta = host->num(host, "beta"), alpha = host->num(host, "alpha");
    const bool is_still = self->now == 0;
    en_status status =
        host->lin(host, v, 1, start, is_still || self->rate == 0 ? beta : beta * (self->now / self->rate));
    if (status == EN_OK) status = host->lin(host, v, -1, bucket->param, 1);
    if (is_still) return status == EN_OK ? host->lin(host, start, 1, bucket->param, 0) : status;
    if (status == EN_OK) status = host->lin(host, start, -alpha, v, 1);
    return status == EN_OK ? host->lin(host, bucket->param, 1, start, 0) : status;
}

static en_status treat_buffers(en_host *host, slowmo *self, const en_bucket *bucket)
{
    const char *buffer = host->text(host, "buffer");
    en_status status = EN_OK;
    en_vec slot;
    if (strcmp(buffer, "keep") == 0) return EN_OK;
    for (int i = 0; status == EN_OK && (slot = host->slot(host, bucket, i)) != 0; i++)
        if (strcmp(buffer, "reset") == 0) {
            status = host->lin(host, slot, 0, bucket->param, 0);
        } else {
            status = host->wait(host, host->coll(host, EN_ALLREDUCE, EN_WORLD, EN_WEIGHTS, bucket, slot));
            self->nslots = (uint64_t)i + 1;
        }
    return status;
}

static en_status slowmo_finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    slowmo *self = state;
    if (!is_due(bucket, host->num(host, "period"))) return EN_OK;
    en_status status = island_finish(host, bucket, req, true, mean_of_weights);
    if (status != EN_OK) return status;
    self->now = host->lr(host);
    status = slow_step(host, self, bucket);
    return status == EN_OK ? treat_buffers(host, self, bucket) : status;
}

/* All buckets of an agreement begin with the rate of the one before. */
static en_status slowmo_after_step(en_host *host, void *state, uint64_t step)
{
    slowmo *self = state;
    (void)host, (void)step;
    if (self->now > 0) self->rate = self->now;
    return EN_OK;
}

static void slowmo_theory(en_host *host, void *state, en_theory *theory_out)
{
    const slowmo *self = state;
    const double period = host->num(host, "period");
    promise(theory_out, (1 + (double)self->nslots) * host->coll_bytes(host, EN_ALLREDUCE, EN_WORLD) / period,
            period);
}

/* ---- diloco (Douillard'23, arXiv 2311.08105, alg. 1) -------------------------------------------------------- */

/* delta = mean(start - x); outer SGD with momentum m: m = momentum m + delta; start -= lr (delta + momentum m) with Nesterov's,
 * as PyTorch writes it, else start -= lr m; all go on from start. The inner optimizer is the run's (AdamW in the paper) and
 * keeps its state. The paper's period is 500. Its islands are clusters: with several groups they are the groups, whose ranks
 * take each step together; with one group each rank is an island. */
static const en_option diloco_options[] = {
    {sizeof(en_option), EN_OPT_INT, "period", "inner steps between two outer ones", 100, 1, 1e9, NULL},
    {sizeof(en_option), EN_OPT_REAL, "lr", "rate of the outer step", 0.7, 0, 1e6, NULL},
    {sizeof(en_option), EN_OPT_REAL, "momentum", "of the outer step", 0.9, 0, 0.999999, NULL},
    {sizeof(en_option), EN_OPT_BOOL, "nesterov", "Nesterov's momentum", 1, 0, 1, NULL},
    {0},
};

static bool diloco_is_alone(const en_host *host)
{
    return host->world->ngroups <= 1 || host->world->ngroup == 1;
}

static en_status diloco_plan(en_host *host, void *state, const en_bucket *bucket, uint64_t *lo, uint64_t *hi)
{
    if (host->vec(host, "delta", bucket) == 0) return EN_ENOMEM;
    return outer_plan(host, state, bucket, lo, hi);
}

/* A vector that cannot be written fails the hook by itself. */
static en_req mean_of_deltas(en_host *host, const en_bucket *bucket)
{
    const en_vec delta = host->vec(host, "delta", bucket);
    (void)host->lin(host, delta, 1, host->vec(host, "start", bucket), 0);
    (void)host->lin(host, delta, -1, bucket->param, 1);
    return host->coll(host, EN_ALLREDUCE, EN_WORLD, EN_DELTA, bucket, delta);
}

static en_status diloco_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    const bool due = is_due(bucket, host->num(host, "period"));
    return island_submit(host, bucket, req, diloco_is_alone(host), due ? mean_of_deltas : NULL);
}

static en_status outer_step(en_host *host, const en_bucket *bucket)
{
    const en_vec start = host->vec(host, "start", bucket), m = host->vec(host, "outer", bucket),
                 delta = host->vec(host, "delta", bucket);
    const double lr = host->num(host, "lr"), momentum = host->num(host, "momentum");
    const bool is_ahead = host->num(host, "nesterov") != 0;
    en_status status = host->lin(host, m, 1, delta, momentum);
    if (status == EN_OK) status = host->lin(host, start, is_ahead ? -lr * momentum : -lr, m, 1);
    if (status == EN_OK && is_ahead) status = host->lin(host, start, -lr, delta, 1);
    return status == EN_OK ? host->lin(host, bucket->param, 1, start, 0) : status;
}

static en_status diloco_finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    (void)state;
    const bool due = is_due(bucket, host->num(host, "period"));
    en_status status = island_finish(host, bucket, req, diloco_is_alone(host), due ? mean_of_deltas : NULL);
    return status == EN_OK && due ? outer_step(host, bucket) : status;
}

static void diloco_theory(en_host *host, void *state, en_theory *theory_out)
{
    (void)state;
    const double period = host->num(host, "period"),
                 inside = diloco_is_alone(host) ? 0 : host->coll_bytes(host, EN_ALLREDUCE, EN_GROUP);
    promise(theory_out, inside + host->coll_bytes(host, EN_ALLREDUCE, EN_WORLD) / period, period);
}

/* ---- the tables --------------------------------------------------------------------------------------------- */

#define LOCAL .abi = EN_STRATEGY_ABI, .size = sizeof(en_strategy)

static const en_strategy diloco = {
    LOCAL,
    .name = "diloco",
    .help = "DiLoCo: ranks or groups train alone; every period steps an outer Nesterov step",
    .paper = "Douillard'23, DiLoCo: distributed low-communication training of language models, alg. 1",
    .flags = EN_USES_GROUPS,
    .options = diloco_options,
    .plan = diloco_plan,
    .submit = diloco_submit,
    .finish = diloco_finish,
    .eval = outer_eval,
    .theory = diloco_theory,
};

static const en_strategy slowmo_table = {
    LOCAL,
    .name = "slowmo",
    .help = "SlowMo (BMUF): local SGD with a slow momentum over its averagings",
    .paper = "Wang'20 (ICLR), SlowMo, alg. 1; Chen & Huo'16, BMUF",
    .state = sizeof(slowmo),
    .options = slowmo_options,
    .next = &diloco,
    .open = slowmo_open,
    .plan = outer_plan,
    .submit = slowmo_submit,
    .finish = slowmo_finish,
    .after_step = slowmo_after_step,
    .eval = outer_eval,
    .theory = slowmo_theory,
};

static const en_strategy grouped = {
    LOCAL,
    .name = "grouped",
    .help = "all-reduce inside each group; every period steps all groups average their weights",
    .paper =
        "Lin'20, Don't use large mini-batches, use local SGD, hierarchical local SGD with one step inside",
    .flags = EN_SYNCHRONOUS | EN_USES_GROUPS,
    .options = grouped_options,
    .next = &slowmo_table,
    .submit = grouped_submit,
    .finish = grouped_finish,
    .eval = grouped_eval,
    .theory = grouped_theory,
};

static const en_strategy local_table = {
    LOCAL,
    .name = "local-sgd",
    .help = "local SGD, post-local SGD: ranks train alone; every period steps their weights are averaged",
    .paper = "Stich'19 (ICLR), local SGD converges fast, alg. 1; Lin'20 (ICLR), post-local SGD",
    .state = sizeof(uint64_t),
    .options = local_options,
    .next = &grouped,
    .submit = local_submit,
    .after_step = local_after_step,
    .eval = mean_eval,
    .theory = local_theory,
};

const en_strategy *en_strategy_entry(uint32_t host_abi)
{
    return host_abi == EN_STRATEGY_ABI ? &local_table : NULL;
}
