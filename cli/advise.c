/* advise.c - `entrain advise`: measures this machine for a few seconds, predicts the step time of a ring and
 * of servers where the question puts the ranks, and shows with real runs how far the prediction is off here.
 *
 * The question: without --net all ranks share this host; with it every rank and every server has a host like
 * this one and a card of that rate. The runs that it is checked with have 1, 2 and 4 workers on this one
 * host, over the emulated network if one was given. */
#include "cli/advise.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/check.h"
#include "cli/lab.h"
#include "report/stats.h"
#include "cli/trial.h"
#include "config/outputs.h"
#include "config/units.h"
#include "models/registry.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/net/place.h"

enum { MOST_RANKS = 1024, REPEATS_MAX = 99 };

/* ---- measuring ---- */

/* A worker per core and one server: what the bytes of one of them cost, from the message to the new weights,
 * on a machine that has no core to spare. */
static en_status measure_store(const eni_command_context *context, const char *transport, int workers,
                               eni_cost_numbers *store_out)
{
    eni_costs costs = {0};
    const eni_check_job job = {.workers = workers,
                               .shards = 1,
                               .model = context->config->model,
                               .transport = transport,
                               .costs = &costs};
    EN_TRY(eni_check_run(context, &job));
    double alpha, beta;
    eni_cost_line(&costs.call, &alpha, &beta);
    if (costs.call.n == 0) return EN_EPROTO;
    *store_out = (eni_cost_numbers){alpha, beta / workers, 0};
    return EN_OK;
}

static en_status measure(const eni_command_context *context, eni_advised *a)
{
    eni_cost_machine *m = &a->machine;
    eni_lab_model *alone = eni_alloc(3 * sizeof *alone), *together = alone + 1, *crowded = alone + 2;
    const int threads = context->config->threads > 0 ? (int)context->config->threads : 1;
    double unused;
    if (alone == NULL) return EN_ENOMEM;
    m->cores = eni_place_cores();
    const int64_t budget = ENI_SECOND;
    en_status st = eni_lab_compute(1, context->config, context->plugin_dir, threads, budget, alone);
    const int all = m->cores < ENI_LAB_MAX / 2 ? m->cores : ENI_LAB_MAX / 2;
    if (st == EN_OK)
        st = eni_lab_compute(all, context->config, context->plugin_dir, threads, budget, together);
    if (st == EN_OK)
        st = eni_lab_compute(2 * all, context->config, context->plugin_dir, threads, budget, crowded);
    if (st == EN_OK) st = eni_lab_copy(1, 32 << 20, &a->move_one, &unused);
    if (st == EN_OK) st = eni_lab_numbers(m->cores, &m->flag, &m->move, &m->tcp);
    if (st == EN_OK) st = measure_store(context, "auto", all, &m->store_shm);
    if (st == EN_OK) st = measure_store(context, "tcp", all, &m->store_tcp);
    m->compute_alone = alone->compute;
    m->compute_together = together->compute;
    m->compute_crowded = crowded->compute;
    m->update = together->update;
    m->nbuckets = alone->nbuckets;
    memcpy(m->bytes, alone->bytes, sizeof m->bytes);
    memcpy(m->ready, alone->ready, sizeof m->ready);
    for (int b = 0; b < m->nbuckets; b++)
        a->bytes += m->bytes[b];
    if (!context->config->overlap)
        for (int b = 0; b < m->nbuckets; b++)
            m->ready[b] = 1;
    eni_free(alone);
    return st;
}

/* ---- predicting ---- */

static en_status read_place(const eni_config *c, eni_cost_place *place)
{
    uint64_t rate = 0;
    int64_t delay = 0;
    const char *wrong;
    const int n = (int)c->workers;
    *place = (eni_cost_place){.ranks = n, .ranks_on_host = n};
    place->is_networked = c->transport == ENI_TRANSPORT_TCP; /* on this host, as fast as its cores feed it */
    if (c->net == NULL) return EN_OK;
    if (!eni_net_parse(c->net, &rate, &delay, &wrong)) return EN_EINVAL;
    place->is_networked = place->has_own_host = true;
    place->ranks_on_host = 1;
    place->rate = (double)rate;
    place->delay = (double)delay * 1e-9;
    return EN_OK;
}

static void predict(eni_advised *a)
{
    a->most = MOST_RANKS;
    a->advice[0] = (eni_advice){.name = "ring", .step = eni_cost_step_ring(&a->machine, &a->place)};
    a->nadvice = 1;
    for (int s = 1; s <= a->config->servers && a->nadvice < ENI_ADVICE_MAX; s++) {
        eni_advice *advice = &a->advice[a->nadvice++];
        eni_cost_place place = a->place;
        place.servers = advice->servers = s;
        snprintf(advice->name, sizeof advice->name, "ps-sync, %d server%s", s, s == 1 ? "" : "s");
        advice->step = eni_cost_step_ps(&a->machine, &place);
        a->crossover[s] = eni_cost_crossover(&a->machine, &place, a->most);
    }
    for (int i = 1; i < a->nadvice; i++)
        if (a->advice[i].step.seconds < a->advice[a->best].step.seconds) a->best = i;
}

/* ---- checking ---- */

/* What the model says of a run on this one host. */
static double predict_check(const eni_advised *a, const char *strategy, int workers)
{
    eni_cost_place place = a->place;
    place.ranks = place.ranks_on_host = workers;
    place.has_own_host = false;
    place.servers = 1;
    return strcmp(strategy, "ring") == 0 ? eni_cost_step_ring(&a->machine, &place).seconds
                                         : eni_cost_step_ps(&a->machine, &place).seconds;
}

static en_status run_check(const eni_command_context *context, const char *dir, const eni_advice_check *check,
                           int repeat, double *step_out)
{
    char run[128];
    eni_trial_result result;
    const eni_config *c = context->config;
    const eni_trial trial = {.strategy = check->strategy,
                             .workers = check->workers,
                             .batch = c->batch_size,
                             .servers = 1,
                             .threads = c->threads > 0 ? c->threads : 1};
    snprintf(run, sizeof run, "%s/%s-%d-%d", dir, check->strategy, check->workers, repeat);
    EN_TRY(eni_trial_run(context, &trial, run, &result));
    *step_out = result.step;
    return EN_OK;
}

/* In turns: what else the machine does hits all alike. */
static en_status check_all(const eni_command_context *context, eni_advised *a, const char *dir)
{
    static const char *const strategies[] = {"ring", "ps-sync"};
    static double steps[ENI_CHECKS_MAX][REPEATS_MAX];
    const int repeats = (int)context->config->repeats;
    for (int w = 1; w <= 4; w *= 2)
        for (int k = 0; k < 2; k++)
            a->check[a->nchecks++] =
                (eni_advice_check){strategies[k], w, predict_check(a, strategies[k], w), 0};
    for (int r = 0; r < repeats; r++)
        for (int i = 0; i < a->nchecks; i++)
            EN_TRY(run_check(context, dir, &a->check[i], r, &steps[i][r]));
    for (int i = 0; i < a->nchecks; i++)
        a->check[i].measured = eni_stats_median(steps[i], (size_t)repeats);
    return EN_OK;
}

en_status eni_command_advise(const eni_command_context *context)
{
    const eni_config *c = context->config;
    char own[64] = "";
    int out_fd = -1;
    eni_advised *a = eni_alloc(sizeof *a);
    if (a == NULL) return EN_ENOMEM;
    a->config = c;
    const en_network *network; /* found out before processes say so, each for itself */
    en_status st = eni_network_get("--model", c->model, &network);
    if (st == EN_OK) st = read_place(c, &a->place);
    if (st == EN_OK && c->out != NULL) st = eni_out_take(c, c->out, ENI_OUT_TRIALS, &out_fd);
    if (st == EN_OK) st = measure(context, a);
    if (st == EN_OK) {
        predict(a);
        eni_advise_show_machine(a, stdout);
        eni_advise_show_prediction(a, stdout);
        fflush(stdout);
    }
    if (st == EN_OK && c->validate) {
        if (c->out == NULL) st = eni_trial_folder(own);
        if (st == EN_OK) st = check_all(context, a, c->out != NULL ? c->out : own);
        if (st == EN_OK) eni_advise_show_checks(a, stdout);
        if (own[0] != 0) eni_trial_remove(own);
    }
    if (out_fd >= 0) close(out_fd);
    eni_free(a);
    return st;
}
