/* gossip.c - d-psgd: no server and no collective; each rank mixes its weights with those of its neighbours (Lian et al.,
 * NeurIPS 2017, arXiv 1705.09056, alg. 1).
 *
 *     rank i   x(i) --> to its neighbours ---.
 *              g(x(i)), at the same time     +--> x(i) = sum over j of w(i, j) x(j) - rate g(x(i))
 *
 * The weights that are mixed are those before the step, and the gradient is that of the rank's own: mixing what comes out of a
 * step is another algorithm, with another fixed point. All w(i, j) of a rank are equal, 1 / (neighbours + 1), so w is doubly
 * stochastic and the mean of all ranks moves as in one step on the mean of their gradients.
 *
 *     graph         neighbours of a rank, of W on a circle
 *     ring          the next and the last one (the paper's)
 *     complete      all others: every step begins with the mean
 *     exponential   one a step, 1, 2, 4, .. W/2 places ahead in turn: it sends there and receives from as far behind (one-peer
 *                   exponential graph, Assran et al., ICML 2019; Ying et al., NeurIPS 2021). After log2 W steps all have mixed
 *                   to the exact mean, which only a power of two allows; so another W is refused.
 *
 * The paper has plain SGD; with --momentum each rank has its own. The model is the mean of all ranks. */
#include <stdbool.h>
#include <string.h>

#include "entrain/strategy.h"

enum { AHEAD = 2 }; /* exchanges that are started before the step; each has a vector to receive into */

static const char *const inbox[AHEAD] = {"neighbour", "neighbour-2"};

static const en_option gossip_options[] = {
    {sizeof(en_option), EN_OPT_TEXT, "graph", "ring, complete or exponential", 0, 0, 0, "ring"},
    {0},
};

static bool is_graph(en_host *host, const char *name)
{
    return strcmp(host->text(host, "graph"), name) == 0;
}

static int degree(en_host *host)
{
    const int n = host->world->nranks;
    if (is_graph(host, "complete")) return n - 1;
    return is_graph(host, "ring") && n > 2 ? 2 : n > 1;
}

static int log2_of(int n)
{
    int log = 0;
    while (2 << log <= n)
        log++;
    return log;
}

/* How far ahead on the circle is the rank to which exchange i of a step goes. */
static int distance(en_host *host, uint64_t step, int i)
{
    const int n = host->world->nranks;
    if (is_graph(host, "exponential")) return 1 << step % (uint64_t)log2_of(n);
    return i == 0 ? 1 : is_graph(host, "ring") ? n - 1 : i + 1;
}

static en_status gossip_open(en_host *host, void *state)
{
    (void)state;
    const int n = host->world->nranks;
    const bool is_exponential = is_graph(host, "exponential");
    if (is_exponential ? (n & (n - 1)) == 0 : is_graph(host, "ring") || is_graph(host, "complete"))
        return EN_OK;
    if (is_exponential)
        host->log(host, 0, "--strategy=d-psgd:graph=exponential of %d workers: give a power of two, or ring",
                  n);
    else
        host->log(host, 0, "--strategy=d-psgd:graph=%s is unknown; give ring, complete or exponential",
                  host->text(host, "graph"));
    return EN_EINVAL;
}

static en_status gossip_plan(en_host *host, void *state, const en_bucket *bucket, uint64_t *lo, uint64_t *hi)
{
    (void)state, (void)lo, (void)hi;
    if (host->vec(host, "before", bucket) == 0) return EN_ENOMEM;
    for (int i = 0; i < AHEAD && i < degree(host); i++)
        if (host->vec(host, inbox[i], bucket) == 0) return EN_ENOMEM;
    return EN_OK;
}

static en_req exchange(en_host *host, const en_bucket *bucket, int i)
{
    const int n = host->world->nranks, rank = host->world->rank, far = distance(host, bucket->step, i);
    return host->sendrecv(host, EN_WORLD, EN_WEIGHTS, bucket, (rank + far) % n,
                          host->vec(host, "before", bucket), (rank + n - far) % n,
                          host->vec(host, inbox[i % AHEAD], bucket));
}

static en_status gossip_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    en_status status = host->lin(host, host->vec(host, "before", bucket), 1, bucket->param, 0);
    for (int i = 0; status == EN_OK && i < AHEAD && i < degree(host); i++)
        req[i] = exchange(host, bucket, i);
    return status;
}

static en_status gossip_finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    (void)state;
    const int neighbours = degree(host);
    const double w = 1.0 / (neighbours + 1);
    en_status status = host->step(host, bucket);
    if (status == EN_OK) status = host->lin(host, bucket->param, w - 1, host->vec(host, "before", bucket), 1);
    for (int i = 0; status == EN_OK && i < neighbours; i++) {
        status = host->wait(host, i < AHEAD ? req[i] : exchange(host, bucket, i));
        if (status == EN_OK)
            status = host->lin(host, bucket->param, w, host->vec(host, inbox[i % AHEAD], bucket), 1);
    }
    return status;
}

static int gossip_eval(en_host *host, void *state, const en_bucket *bucket, en_vec *vec_out)
{
    (void)host, (void)state, (void)bucket, (void)vec_out;
    return EN_EVAL_MEAN;
}

/* A rank may be a step ahead of those that it waits for, so as many as the graph is wide. */
static void gossip_theory(en_host *host, void *state, en_theory *theory_out)
{
    (void)state;
    const int n = host->world->nranks, width = is_graph(host, "ring")          ? n / 2
                                               : is_graph(host, "exponential") ? log2_of(n)
                                                                               : n > 1;
    theory_out->sent = theory_out->recv = degree(host);
    theory_out->max_clocks_behind = width;
    theory_out->staleness = -1; /* no gradient is stale: the ranks' models differ instead */
}

static const en_strategy d_psgd = {
    .abi = EN_STRATEGY_ABI,
    .size = sizeof(en_strategy),
    .name = "d-psgd",
    .help = "decentralized SGD (gossip): ranks mix their weights with their neighbours'",
    .paper = "Lian'17 (NeurIPS), decentralized parallel SGD, alg. 1; Assran'19, Ying'21 (exponential)",
    .flags = EN_SYNCHRONOUS,
    .options = gossip_options,
    .open = gossip_open,
    .plan = gossip_plan,
    .submit = gossip_submit,
    .finish = gossip_finish,
    .eval = gossip_eval,
    .theory = gossip_theory,
};

const en_strategy *en_strategy_entry(uint32_t host_abi)
{
    return host_abi == EN_STRATEGY_ABI ? &d_psgd : NULL;
}
