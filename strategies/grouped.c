/* grouped.c - two levels of neighbours: the ranks of a group are in step, and every `period` steps the groups
 * average their weights (post-local SGD between groups).
 *
 *     group 0   rank 0  g0 --.                          w --.            .--> mean of all --> w
 *               rank 1  g1 --+-- mean of the group --> step +            |
 *     group 1   rank 2  g2 --.                              +-- period --+
 *               rank 3  g3 --+-- mean of the group --> step +            |
 *                                                       w --'            '--> mean of all --> w
 *
 * A group is the ranks of a host, or one of --groups. So each step stays on fast links, and the model crosses
 * between hosts once in `period` steps; `period=0`: never, and the groups train separately. All ranks weigh the
 * same in the mean, so a larger group weighs more. Momentum stays with its group.
 *
 * With one group this is ring, byte for byte. */
#include <math.h>
#include <stdbool.h>

#include "entrain/strategy.h"

static const en_option grouped_options[] = {
    {.size = sizeof(en_option),
     .type = EN_OPT_INT,
     .key = "period",
     .help = "steps between two averagings of all groups; 0: none",
     .value = 8,
     .min = 0,
     .max = 1e9},
    {0},
};

/* 0: never, as where there is one group. */
static uint64_t period_of(en_host *host)
{
    return host->world->ngroups > 1 ? (uint64_t)host->num(host, "period") : 0;
}

/* Starts while backward still computes the gradients of earlier layers. */
static en_status grouped_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    req[0] = host->coll(host, EN_ALLREDUCE, EN_GROUP, EN_GRAD, bucket, bucket->grad);
    return EN_OK;
}

static en_status grouped_finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    (void)state;
    const uint64_t period = period_of(host);
    en_status status = host->wait(host, req[0]);
    if (status == EN_OK) status = host->step(host, bucket);
    if (status != EN_OK || period == 0 || (bucket->step + 1) % period != 0) return status;
    return host->wait(host, host->coll(host, EN_ALLREDUCE, EN_WORLD, EN_WEIGHTS, bucket, bucket->param));
}

/* Between two averagings no rank has the paper's model, which is the mean of all. */
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
                 between = host->coll_bytes(host, EN_ALLREDUCE, EN_WORLD), period = (double)period_of(host);
    const bool is_one = host->world->ngroups <= 1;
    theory_out->sent = theory_out->recv = inside + (period > 0 ? between / period : 0);
    theory_out->max_clocks_behind = is_one ? 0 : period > 0 ? period - 1 : INFINITY;
    theory_out->staleness = is_one ? 0 : -1; /* no gradient is stale: the groups' models differ instead */
}

static const en_strategy grouped_table = {
    .abi = EN_STRATEGY_ABI,
    .size = sizeof(en_strategy),
    .name = "grouped",
    .help = "all-reduce inside each group; every period steps all groups average their weights",
    .paper =
        "Lin'20, Don't use large mini-batches, use local SGD, hierarchical local SGD with one step inside",
    .flags = EN_SYNCHRONOUS | EN_USES_GROUPS,
    .options = grouped_options,
    .submit = grouped_submit,
    .finish = grouped_finish,
    .eval = grouped_eval,
    .theory = grouped_theory,
};

const en_strategy *en_strategy_entry(uint32_t host_abi)
{
    return host_abi == EN_STRATEGY_ABI ? &grouped_table : NULL;
}
