/* cost_model.c - one function per formula: ring, naive, direct, the server; then a step with overlap. */
#include "runtime/host/cost_model.h"

static double max(double a, double b)
{
    return a > b ? a : b;
}

static double min(double a, double b)
{
    return a < b ? a : b;
}

/* ---- one exchange ---- */

double eni_cost_ring(int p, double bytes, const eni_cost_numbers *link)
{
    const double hops = p - 1;
    return 2 * hops * link->alpha + 2 * hops / p * bytes * link->beta + hops / p * bytes * link->gamma;
}

double eni_cost_naive(int p, double bytes, const eni_cost_numbers *link)
{
    const double others = p - 1;
    return others > 0 ? link->alpha + others * bytes * (link->beta + link->gamma) : 0;
}

double eni_cost_direct(int p, int cores, double bytes, double alpha, double move)
{
    if (p <= 1) return 0;
    const double turns = max(1, (double)p / cores); /* a flag is seen when its rank has a core */
    return 2 * alpha * turns + 2 * p * bytes * move / min(p, cores);
}

double eni_cost_fused(int p, int cores, double bytes, double alpha, double move)
{
    const double turns = max(1, (double)p / cores);
    return 2 * alpha * turns + (p + 4) * bytes * move / min(p, cores);
}

double eni_cost_push(int p, int servers, double bytes, const eni_cost_numbers *link)
{
    return max(1, (double)p / servers) * bytes * link->beta;
}

/* ---- a step ---- */

double eni_cost_pipeline(int n, const double *ready, int nstages, const double *const *stage,
                         const double *lag)
{
    double free_at[ENI_COST_STAGES] = {0}, end = 0;
    for (int b = 0; b < n; b++) {
        double at = ready[b];
        for (int k = 0; k < nstages; k++) {
            at = max(at, free_at[k]) + stage[k][b];
            free_at[k] = at;
            at += lag[k];
        }
        end = max(end, at);
    }
    return end;
}

/* How much longer a micro-batch takes while `busy` processes of a host compute one each. Neighbours share
 * memory and clock, and all wait for the slowest; more processes than cores also pay for switching. Linear
 * between the three measured points, and in proportion beyond them. */
static double slowness(const eni_cost_machine *m, int busy)
{
    const double k = m->cores, alone = m->compute_alone;
    const double together = max(1, m->compute_together / alone), crowded = max(2, m->compute_crowded / alone);
    if (busy <= 1) return 1;
    if (busy >= 2 * k) return crowded * busy / (2 * k);
    if (busy >= k) return together + (crowded - together) * (busy - k) / k;
    return 1 + (together - 1) * (busy - 1) / (k - 1);
}

static double total_bytes(const eni_cost_machine *m)
{
    double sum = 0;
    for (int b = 0; b < m->nbuckets; b++)
        sum += m->bytes[b];
    return sum;
}

/* A link is as fast as its slower end: the wire, or the core that feeds it. */
static eni_cost_numbers link_of(const eni_cost_numbers *core, const eni_cost_layout *place)
{
    eni_cost_numbers link = *core;
    link.alpha += place->delay;
    if (place->rate > 0) link.beta = max(link.beta, 1 / place->rate);
    return link;
}

/* `end`: when the last bucket is back, with all ranks computing at the pace of `busy` ranks. `work`: core
 * seconds of the whole host in this step. */
static eni_cost_step conclude(const eni_cost_machine *m, double compute, double update, double end,
                              double exchange, double work)
{
    eni_cost_step step = {.compute = compute, .exchange = exchange, .seconds = max(compute, end) + update};
    const double bound = work / m->cores;
    if (bound > step.seconds) {
        step.is_cpu_bound = true;
        step.seconds = bound;
    }
    step.exposed = max(0, step.seconds - compute - update);
    return step;
}

static void times_of(const eni_cost_machine *m, double compute, double ready[])
{
    for (int b = 0; b < m->nbuckets; b++)
        ready[b] = m->ready[b] * compute;
}

/* In shared memory the ranks themselves load and store: nothing is hidden, they share the cores, and the
 * optimizer's step is included. */
static eni_cost_step direct_step(const eni_cost_machine *m, const eni_cost_layout *place, double compute)
{
    double exchange = 0;
    for (int b = 0; b < m->nbuckets; b++)
        exchange += eni_cost_fused(place->ranks, m->cores, m->bytes[b], m->flag, m->move);
    return conclude(m, compute, 0, compute + exchange, exchange, 0);
}

eni_cost_step eni_cost_step_ring(const eni_cost_machine *m, const eni_cost_layout *place)
{
    static const double none[ENI_COST_STAGES];
    double ready[ENI_COST_BUCKETS], cost[ENI_COST_BUCKETS], exchange = 0;
    const int r = place->ranks_on_host, p = place->ranks;
    const double slow = slowness(m, r), compute = m->compute_alone * slow, update = m->update * slow;
    if (p <= 1) return conclude(m, compute, update, 0, 0, 0);
    if (!place->is_networked) return direct_step(m, place, compute);
    const eni_cost_numbers link = link_of(&m->tcp, place);
    times_of(m, compute, ready);
    for (int b = 0; b < m->nbuckets; b++)
        exchange += cost[b] = eni_cost_ring(p, m->bytes[b], &link);
    const double *const stages[] = {cost};
    const double end = eni_cost_pipeline(m->nbuckets, ready, 1, stages, none);
    /* sending and receiving are work, whatever the wire does meanwhile */
    const eni_cost_numbers core = {0, m->tcp.beta, m->tcp.gamma};
    const double own = eni_cost_ring(p, total_bytes(m), &core);
    const double together = slowness(m, r) * m->cores / max(r, m->cores);
    return conclude(m, compute, update, end, exchange, r * ((m->compute_alone + m->update) * together + own));
}

eni_cost_step eni_cost_step_ps(const eni_cost_machine *m, const eni_cost_layout *place)
{
    double ready[ENI_COST_BUCKETS], push[ENI_COST_BUCKETS], pull[ENI_COST_BUCKETS], serve[ENI_COST_BUCKETS];
    const int r = place->ranks_on_host, p = place->ranks, s = place->servers;
    const eni_cost_numbers *store = place->is_networked ? &m->store_tcp : &m->store_shm;
    const double slow = slowness(m, r), compute = m->compute_alone * slow, bytes = total_bytes(m);
    const double rate = place->rate > 0 ? 1 / place->rate : 0;
    /* shards on the ranks' host serve in parallel only on cores that the ranks leave idle */
    const double shards = place->has_own_host ? s : max(1, min(s, m->cores - r));
    const eni_cost_numbers wire = {0, rate, 0};
    double exchange = 0;
    times_of(m, compute, ready);
    for (int b = 0; b < m->nbuckets; b++) {
        push[b] = pull[b] = place->is_networked ? eni_cost_push(p, s, m->bytes[b], &wire) : 0;
        serve[b] = p / shards * m->bytes[b] * store->beta;
        exchange += push[b] + serve[b] + pull[b];
    }
    const double *const stages[] = {push, serve, pull};
    const double lag[] = {place->delay, 0, place->delay + store->alpha};
    const double end = eni_cost_pipeline(m->nbuckets, ready, 3, stages, lag);
    const double served = p / shards * bytes * store->beta;
    /* a server that finds no idle core takes its time from a worker, and in each round all wait for that one */
    const double shared = place->has_own_host || r + s <= m->cores ? 0 : compute + served;
    return conclude(m, compute, 0, end, exchange + 2 * place->delay + store->alpha, shared * m->cores);
}

int eni_cost_crossover(const eni_cost_machine *m, const eni_cost_layout *place, int most)
{
    int first = 0;
    for (int p = 2; p <= most; p++) {
        eni_cost_layout at = *place;
        at.ranks = p;
        at.ranks_on_host = place->ranks_on_host < place->ranks ? place->ranks_on_host : p;
        const double ring = eni_cost_step_ring(m, &at).seconds, ps = eni_cost_step_ps(m, &at).seconds;
        if (ring > ps)
            first = 0;
        else if (first == 0)
            first = p;
    }
    return first;
}
