/* servers.c - the strategies with a server. w: its weights; x_r: worker r's; eta: the rate; delay: the server's version
 * less that of the weights behind a gradient. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "conform/paper.h"

static uint64_t delay_of(const eni_paper *p, int r)
{
    return p->version - p->worker[r].base;
}

/* ---- ps-async: w -= eta g as g arrives; its worker goes on from w (Dean'12, sec. 4.1) -------------------- */

static void async_push(eni_paper *p, int r)
{
    eni_paper_apply(p, p->worker[r].g, 1, p->worker[r].samples);
    eni_paper_answer(p, r);
}

/* ---- ssp: a worker with c clocks goes on when every other has at least c - s (Ho'13, sec. 3) ------------- */

static uint64_t least_clock(const eni_paper *p)
{
    uint64_t least = UINT64_MAX;
    for (int r = 0; r < p->nranks; r++)
        if (p->worker[r].is_client && p->worker[r].clock < least) least = p->worker[r].clock;
    return least;
}

static void ssp_release(eni_paper *p, double bound)
{
    const double least = (double)least_clock(p);
    for (int r = 0; r < p->nranks; r++) {
        if (!p->worker[r].waits) continue;
        if ((double)p->worker[r].clock - bound <= least)
            eni_paper_answer(p, r);
        else
            snprintf(p->why, sizeof p->why, "rank %d is at clock %g, the slowest at %g, bound %g", r,
                     (double)p->worker[r].clock, least, bound);
    }
}

static void ssp_push(eni_paper *p, int r)
{
    eni_paper_apply(p, p->worker[r].g, 1, p->worker[r].samples);
    p->worker[r].waits = true;
    ssp_release(p, eni_paper_num(p, "bound", 3));
}

static void ssp_gone(eni_paper *p, int r)
{
    (void)r;
    ssp_release(p, eni_paper_num(p, "bound", 3));
}

/* ---- ps-sync: w -= eta mean of all g, once all are there; all go on (Li'14, sec. 3.4; Valiant'90) -------- */

static void sync_step(eni_paper *p, int r)
{
    eni_paper_vec mean;
    uint32_t here = 0, missing = 0;
    (void)r;
    for (int i = 0; i < p->nranks; i++) {
        if (p->worker[i].waits) here |= eni_paper_one(i);
        if (p->worker[i].is_client && !p->worker[i].waits) missing |= eni_paper_one(i);
    }
    if (here == 0 || missing != 0) return;
    const uint64_t samples = eni_paper_mean_gradient(p, here, mean);
    eni_paper_apply(p, mean, 1, samples);
    for (int i = 0; i < p->nranks; i++)
        if (here & eni_paper_one(i)) eni_paper_answer(p, i);
}

static void sync_push(eni_paper *p, int r)
{
    p->worker[r].waits = true;
    sync_step(p, r);
}

/* ---- hierarchical: a host's mean gradient is its leader's; then ps-sync, or ssp with a bound (Jiang'20) --- */

static void hierarchical_push(eni_paper *p, int r)
{
    eni_paper_vec mean;
    uint32_t host = 0;
    for (int i = r; i < r + p->per_host; i++)
        host |= eni_paper_one(i);
    p->worker[r].samples = eni_paper_mean_gradient(p, host, mean);
    memcpy(p->worker[r].g, mean, sizeof mean);
    const double bound = eni_paper_num(p, "bound", -1);
    if (bound < 0) {
        sync_push(p, r);
        return;
    }
    eni_paper_apply(p, mean, 1, p->worker[r].samples);
    p->worker[r].waits = true;
    ssp_release(p, bound);
}

static void hierarchical_gone(eni_paper *p, int r)
{
    const double bound = eni_paper_num(p, "bound", -1);
    if (bound < 0)
        sync_step(p, r);
    else
        ssp_release(p, bound);
}

/* ---- ringmaster: w -= eta g if delay < R, else g is ignored; its worker goes on from w (Maranjyan'25) ----- */

static void ringmaster_push(eni_paper *p, int r)
{
    const double threshold = eni_paper_num(p, "threshold", 2 * p->nranks), delay = (double)delay_of(p, r);
    p->drops = delay >= threshold;
    snprintf(p->why, sizeof p->why, "delay %g %s %g", delay, p->drops ? ">=" : "<", threshold);
    if (!p->drops) eni_paper_apply(p, p->worker[r].g, 1, p->worker[r].samples);
    eni_paper_answer(p, r);
}

/* ---- delay-adaptive: eta min(1, W / delay)^power (Koloskova'22, thm. 8: eta while delay <= tau_C, else below
 * 1/(4 L delay); with eta up to 1/(4 L tau_C) and W gradients in progress power 1 is such a rate) ------------------ */

static void adaptive_push(eni_paper *p, int r)
{
    const double delay = (double)delay_of(p, r), power = eni_paper_num(p, "power", 1);
    const double weight = delay > p->nranks ? pow(p->nranks / delay, power) : 1;
    snprintf(p->why, sizeof p->why, "delay %g, %d workers, power %g", delay, p->nranks, power);
    eni_paper_apply(p, p->worker[r].g, weight, p->worker[r].samples);
    eni_paper_answer(p, r);
}

/* ---- softsync: w -= eta mean of c = floor(W / splits) gradients as they come, each times 1 / delay if delay > 0; every
 * worker goes on at once (Zhang'16, eq. 3 to 5). When the last worker ends, the rest is one more step (ours) ----------- */

static void softsync_step(eni_paper *p)
{
    for (uint64_t e = 0; e < p->n && p->collected > 0; e++)
        p->own[e] /= (double)p->collected;
    eni_paper_apply(p, p->own, 1, p->collected);
    p->collected = p->ncollected = 0;
}

static void softsync_push(eni_paper *p, int r)
{
    const eni_paper_worker *worker = &p->worker[r];
    const double delay = (double)delay_of(p, r), splits = eni_paper_num(p, "splits", p->nranks);
    const double c = fmax(1, floor(p->nranks / splits));
    const bool is_aware = eni_paper_is(p, "rate", "staleness", "staleness");
    const double weight = is_aware && delay > 0 ? 1 / delay : 1;
    if (p->ncollected == 0) memset(p->own, 0, sizeof p->own);
    for (uint64_t e = 0; e < p->n; e++)
        p->own[e] += weight * (double)worker->samples * worker->g[e];
    p->collected += worker->samples;
    p->ncollected++;
    snprintf(p->why, sizeof p->why, "gradient %g of %g, delay %g", (double)p->ncollected, c, delay);
    if ((double)p->ncollected >= c) softsync_step(p);
    p->weight = weight;
    eni_paper_answer(p, r);
}

static void softsync_gone(eni_paper *p, int r)
{
    (void)r;
    for (int i = 0; i < p->nranks; i++)
        if (p->worker[i].is_client) return;
    if (p->ncollected > 0) softsync_step(p);
}

/* ---- dc-asgd: w -= eta (g + lambda g g (w - bak_r)), bak_r: what worker r was sent (Zheng'17, eq. 10, alg. 1, 2).
 * Adaptive: s = decay s + (1 - decay) g g; lambda = lambda0 / sqrt(s + eps) ---------------------------------- */

static void dc_push(eni_paper *p, int r)
{
    eni_paper_worker *worker = &p->worker[r];
    eni_paper_vec d;
    const bool is_adaptive = eni_paper_num(p, "adaptive", 0) != 0;
    const double lambda0 = is_adaptive ? eni_paper_num(p, "lambda0", 2) : eni_paper_num(p, "lambda", 0.04);
    const double decay = eni_paper_num(p, "decay", 0.95);
    for (uint64_t e = 0; e < p->n; e++) {
        const double g = worker->g[e];
        p->own[e] = decay * p->own[e] + (1 - decay) * g * g;
        const double lambda = is_adaptive ? lambda0 / sqrt(p->own[e] + 1e-7) : lambda0;
        d[e] = g + lambda * g * g * (p->w[e] - worker->own[e]);
    }
    eni_paper_apply(p, d, 1, worker->samples);
    eni_paper_answer(p, r);
    memcpy(worker->own, p->w, sizeof p->w);
}

/* ---- easgd: if period divides t: d = alpha (x_r - w), x_r -= d, w += d; then v_r = momentum v_r - eta g(x_r + momentum
 * v_r), x_r += v_r, where g was computed before the exchange (Zhang'15, alg. 1 and 2) ------------------------ */

static bool easgd_calls(const eni_paper *p, int r)
{
    return p->worker[r].step % (uint64_t)eni_paper_num(p, "period", 10) == 0;
}

static void easgd_push(eni_paper *p, int r)
{
    const double alpha = eni_paper_num(p, "alpha", 0.9 / p->nranks);
    for (uint64_t e = 0; e < p->n; e++) {
        const double d = alpha * (p->worker[r].own[e] - p->w[e]);
        p->worker[r].own[e] -= d;
        p->w[e] += d;
    }
    p->version++;
    p->worker[r].base = p->version;
    p->answered |= eni_paper_one(r);
}

static void easgd_finish(eni_paper *p, int r)
{
    eni_paper_worker *worker = &p->worker[r];
    const double momentum = eni_paper_num(p, "momentum", 0);
    for (uint64_t e = 0; e < p->n; e++) {
        if (worker->samples > 0) {
            worker->m[e] = momentum * worker->m[e] - worker->rate * worker->g[e];
            worker->own[e] += worker->m[e];
        }
        worker->x[e] = worker->own[e] + momentum * worker->m[e];
    }
}

/* ---- the table ---- */

/* easgd: a worker that is answered with w knows d as alpha / (1 - alpha) (x_r - w), rounded 9 times as much for alpha 0.9. */

const eni_reference eni_paper_servers[] = {
    {"ps-sync", "Li'14, sec. 3.4 (sequential consistency); Valiant'90 (BSP)", OPTIONS(""),
     .flags = ENI_PAPER_MOMENTUM | ENI_PAPER_SCHEDULE, .push = sync_push, .gone = sync_step},
    {"ps-async", "Dean'12, sec. 4.1 (Downpour SGD)", OPTIONS(""),
     .flags = ENI_PAPER_MOMENTUM | ENI_PAPER_SCHEDULE, .push = async_push},
    {"ssp", "Ho'13, sec. 3 (a read at clock c sees all updates of clocks < c - s)",
     OPTIONS("", "bound=0", "bound=1", "bound=2", "bound=5"),
     .flags = ENI_PAPER_MOMENTUM | ENI_PAPER_SCHEDULE, .push = ssp_push, .gone = ssp_gone},
    {"hierarchical", "Li'14, sec. 3 (worker groups); Jiang'20, sec. 3 (local aggregation)",
     OPTIONS("", "", "bound=0", "bound=2"),
     .flags = ENI_PAPER_MOMENTUM | ENI_PAPER_SCHEDULE | ENI_PAPER_HOSTS, .push = hierarchical_push,
     .gone = hierarchical_gone},
    {"ringmaster", "Maranjyan'25, alg. 4 (without calculation stops)",
     OPTIONS("", "threshold=1", "threshold=2", "threshold=4", "threshold=W", "threshold=inf"),
     .push = ringmaster_push},
    {"delay-adaptive", "Koloskova'22, thm. 8 (delay-adaptive rate); Mishchenko'22",
     OPTIONS("", "power=0", "power=1", "power=2"), .push = adaptive_push},
    {"softsync", "Zhang'16, sec. 3 (n-softsync, staleness-dependent rate)",
     OPTIONS("", "rate=none", "splits=1", "splits=2", "splits=1,rate=none"), .least_ranks = 2,
     .push = softsync_push, .gone = softsync_gone},
    {"dc-asgd", "Zheng'17, eq. 10, alg. 1 and 2",
     OPTIONS("", "lambda=0", "lambda=1", "adaptive=on", "adaptive,lambda0=0.5,decay=0.8"),
     .flags = ENI_PAPER_SCHEDULE, .push = dc_push},
    {"easgd", "Zhang'15, alg. 1 and 2 (EAMSGD)",
     OPTIONS("", "period=1", "period=3,alpha=0.5/W", "period=4,alpha=0.5", "period=2,alpha=0.1,momentum=0.5"),
     .flags = ENI_PAPER_SCHEDULE, .rounding = 8, .calls = easgd_calls, .push = easgd_push,
     .finish = easgd_finish},
    {0},
};
