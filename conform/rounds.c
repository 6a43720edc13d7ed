/* rounds.c - the strategies whose workers are in step. x_r: worker r's weights; eta: the rate; step t counts from 0. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "conform/paper.h"

/* Worker r steps along the mean gradient of a set. Without samples it stays where it is. */
static void step_along(eni_paper *p, int r, uint32_t who)
{
    eni_paper_vec mean;
    if (eni_paper_mean_gradient(p, who, mean) > 0)
        eni_paper_descend(p, p->worker[r].rate, p->worker[r].x, p->worker[r].m, mean);
}

static void set_all(eni_paper *p, const double *x)
{
    for (int r = 0; r < p->nranks; r++)
        memcpy(p->worker[r].x, x, sizeof(eni_paper_vec));
}

static void average(eni_paper *p)
{
    eni_paper_vec mean;
    eni_paper_mean_weights(p, eni_paper_all(p), mean);
    set_all(p, mean);
}

/* Steps taken when the present round ends. */
static uint64_t steps_of(const eni_paper *p)
{
    return p->worker[0].step + 1;
}

/* Whether the option `period`, or else this one, divides the steps taken. */
static bool ends_period(const eni_paper *p, double otherwise)
{
    const double period = eni_paper_num(p, "period", otherwise);
    return period > 0 && fmod((double)steps_of(p), period) == 0;
}

/* ---- ring: x -= eta mean of all g (Goyal'17, eq. 2; Sergeev'18) ------------------------------------------- */

static void ring_round(eni_paper *p)
{
    for (int r = 0; r < p->nranks; r++)
        step_along(p, r, eni_paper_all(p));
}

/* ---- grouped: x_r -= eta mean of the group's g; every `period` steps x_r = mean of all x (Lin'20, hierarchical local
 * SGD with one local step) ------------------------------------------------------------------------------------ */

static void grouped_round(eni_paper *p)
{
    for (int r = 0; r < p->nranks; r++)
        step_along(p, r, eni_paper_group(p, r));
    if (ends_period(p, 8)) average(p);
}

/* ---- local-sgd: x_r -= eta g_r; after steps period, 2 period, .. x_r = mean of all x (Stich'19, alg. 1), and after each
 * of the first `start` (Lin'20, post-local SGD; counted as in the authors' optim/local_sgd.py) -------------------- */

static void local_round(eni_paper *p)
{
    const double steps = (double)steps_of(p), start = eni_paper_num(p, "start", 0);
    for (int r = 0; r < p->nranks; r++)
        step_along(p, r, eni_paper_one(r));
    const bool averages = steps <= start || fmod(steps, eni_paper_num(p, "period", 8)) == 0;
    snprintf(p->why, sizeof p->why, "step %g ends %s an average", steps - 1, averages ? "with" : "without");
    if (averages) average(p);
}

/* ---- slowmo: tau local steps from x0, then the mean x; u = beta u + (x0 - x) / eta; x0 -= alpha eta u (Wang'20, alg. 1).
 * The workers' own momentum is kept, cleared or averaged (line 2, sec. 2). u: own; x0: before ------------------ */

enum { SLOWMO_PERIOD = 48 };

static void treat_buffers(eni_paper *p)
{
    eni_paper_vec mean = {0};
    if (eni_paper_is(p, "buffer", "keep", "keep")) return;
    for (int r = 0; r < p->nranks && eni_paper_is(p, "buffer", "average", "keep"); r++)
        for (uint64_t e = 0; e < p->n; e++)
            mean[e] += p->worker[r].m[e] / p->nranks;
    for (int r = 0; r < p->nranks; r++)
        memcpy(p->worker[r].m, mean, sizeof mean);
}

static void slowmo_round(eni_paper *p)
{
    const double beta = eni_paper_num(p, "beta", 0.5), alpha = eni_paper_num(p, "alpha", 1),
                 eta = p->worker[0].rate;
    eni_paper_vec mean;
    for (int r = 0; r < p->nranks; r++)
        step_along(p, r, eni_paper_one(r));
    if (!ends_period(p, SLOWMO_PERIOD)) return;
    eni_paper_mean_weights(p, eni_paper_all(p), mean);
    for (uint64_t e = 0; e < p->n; e++) {
        p->own[e] = beta * p->own[e] + (p->before[e] - mean[e]) / eta;
        p->before[e] -= alpha * eta * p->own[e];
    }
    set_all(p, p->before);
    treat_buffers(p);
}

/* Between two slow steps the paper has no model. */
static const double *slowmo_model(eni_paper *p)
{
    return ends_period(p, SLOWMO_PERIOD) ? p->before : NULL;
}

/* ---- diloco: H inner steps of each island from theta; Delta = theta - mean of the islands' weights; m = momentum m +
 * Delta; theta -= lr (Delta + momentum m, or m without Nesterov) (Douillard'23, alg. 1; the outer optimizer as in PyTorch).
 * An island is a group of ranks that average gradients, or a rank where all are in one group. m: own; theta: before - */

enum { DILOCO_PERIOD = 100 };

static void diloco_round(eni_paper *p)
{
    const double lr = eni_paper_num(p, "lr", 0.7), momentum = eni_paper_num(p, "momentum", 0.9);
    const bool is_nesterov = eni_paper_num(p, "nesterov", 1) != 0;
    const bool has_islands = eni_paper_group(p, 0) != eni_paper_all(p);
    uint32_t islands = 0;
    eni_paper_vec mean;
    for (int r = 0; r < p->nranks; r++) {
        step_along(p, r, has_islands ? eni_paper_group(p, r) : eni_paper_one(r));
        if (p->group[r] == r || !has_islands) islands |= eni_paper_one(r);
    }
    if (!ends_period(p, DILOCO_PERIOD)) return;
    eni_paper_mean_weights(p, islands, mean);
    for (uint64_t e = 0; e < p->n; e++) {
        const double delta = p->before[e] - mean[e];
        p->own[e] = momentum * p->own[e] + delta;
        p->before[e] -= lr * (is_nesterov ? delta + momentum * p->own[e] : p->own[e]);
    }
    set_all(p, p->before);
}

static const double *diloco_model(eni_paper *p)
{
    return ends_period(p, DILOCO_PERIOD) ? p->before : NULL;
}

/* ---- d-psgd: x_r = sum over j of W_rj x_j - eta g_r(x_r) (Lian'17, alg. 1). ring: 1/3 each for itself and both
 * neighbours, 1/2 where they are one; complete: 1/W; exponential: 1/2 for itself and for the rank 2^(t mod log2 W)
 * before it (Assran'19, app. A: rank i sends to i + 2^k; Ying'21) ------------------------------------------------- */

/* Adds what x_j brings rank r: W_rj x_j. */
static void mix(const eni_paper *p, double *x, double weight, const double *from)
{
    for (uint64_t e = 0; e < p->n; e++)
        x[e] += weight * from[e];
}

static void dpsgd_round(eni_paper *p)
{
    eni_paper_vec old[ENI_PAPER_RANKS];
    const int n = p->nranks, hops = n > 1 ? (int)ceil(log2(n)) : 1;
    const int peer = 1 << (int)(p->worker[0].step % (uint64_t)hops);
    for (int r = 0; r < n; r++)
        memcpy(old[r], p->worker[r].x, sizeof old[r]);
    for (int r = 0; r < n; r++) {
        double *x = p->worker[r].x;
        memset(x, 0, sizeof(eni_paper_vec));
        if (n == 1) {
            mix(p, x, 1, old[0]);
        } else if (eni_paper_is(p, "graph", "ring", "ring") && n > 2) {
            mix(p, x, 1. / 3, old[r]);
            mix(p, x, 1. / 3, old[(r + 1) % n]);
            mix(p, x, 1. / 3, old[(r + n - 1) % n]);
        } else if (n == 2 || eni_paper_is(p, "graph", "complete", "ring")) {
            for (int j = 0; j < n; j++)
                mix(p, x, 1. / n, old[j]);
        } else {
            mix(p, x, 0.5, old[r]);
            mix(p, x, 0.5, old[(r + n - peer) % n]);
        }
        step_along(p, r, eni_paper_one(r));
    }
}

/* ---- the table ---- */

/* slowmo: u adds up the rounding of its periods, up to 1 / (1 - beta) times. */

const eni_reference eni_paper_rounds[] = {
    {"ring", "Goyal'17, eq. 2 (mini-batch SGD over all workers); Patarasuk'09", OPTIONS(""),
     .flags = ENI_PAPER_MOMENTUM | ENI_PAPER_SCHEDULE, .round = ring_round},
    {"grouped", "Lin'20, hierarchical local SGD, one step inside a block",
     OPTIONS("", "period=0", "period=1", "period=3", "period=4"),
     .flags = ENI_PAPER_MOMENTUM | ENI_PAPER_SCHEDULE | ENI_PAPER_GROUPS | ENI_PAPER_UNEQUAL,
     .round = grouped_round},
    {"local-sgd", "Stich'19, alg. 1; Lin'20, sec. 3 (post-local SGD)",
     OPTIONS("", "period=1", "period=3", "period=4,start=6", "period=3,start=4"),
     .flags = ENI_PAPER_MOMENTUM | ENI_PAPER_SCHEDULE, .round = local_round},
    {"slowmo", "Wang'20, alg. 1",
     OPTIONS("period=1", "period=4", "period=3,beta=0.7,alpha=0.5", "period=4,beta=0",
             "period=4,buffer=average", "period=3,buffer=reset"),
     .flags = ENI_PAPER_MOMENTUM | ENI_PAPER_SCHEDULE, .rounding = 2, .round = slowmo_round,
     .model = slowmo_model},
    {"diloco", "Douillard'23, alg. 1",
     OPTIONS("period=1", "period=4", "period=3,lr=1,momentum=0", "period=4,nesterov=0",
             "period=5,lr=0.4,momentum=0.6"),
     .flags = ENI_PAPER_MOMENTUM | ENI_PAPER_SCHEDULE | ENI_PAPER_GROUPS, .round = diloco_round,
     .model = diloco_model},
    {"d-psgd", "Lian'17, alg. 1; Assran'19, app. A (exponential)",
     OPTIONS("", "graph=ring", "graph=complete", "graph=exponential"), .flags = ENI_PAPER_SCHEDULE,
     .least_ranks = 2, .round = dpsgd_round},
    {0},
};
