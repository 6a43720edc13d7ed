/* advise.c - `entrain advise`: measures this machine for a few seconds, predicts the step time of a ring and of
 * servers for the ranks' placement in question, and shows by real runs how far the prediction is off here.
 *
 * The question: without --net all ranks share this host; with it every rank and every server has a host like this
 * one and a link of that rate. The runs that check the prediction have 1, 2 and 4 workers on this host, over the
 * emulated network if one is given. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/trial.h"
#include "config/outputs.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/registry.h"
#include "report/stats.h"
#include "report/table.h"
#include "run/units.h"
#include "runtime/host/cost_model.h"
#include "runtime/net/host_info.h"

enum { MOST_RANKS = 1024, REPEATS_MAX = 99, ADVICE_MAX = 65, CHECKS_MAX = 8 };

/* One way to run the job. */
typedef struct advice {
    char name[32]; /* "ring", "ps-sync, 2 servers" */
    int servers;   /* 0: the ring */
    eni_cost_step step;
} advice;

/* A prediction beside the measurement. */
typedef struct advice_check {
    const char *strategy;
    int workers;
    double predicted, measured; /* seconds of a step */
} advice_check;

typedef struct advised {
    const eni_config *config;
    eni_cost_machine machine;
    eni_cost_layout place; /* in question; servers is that of each advice */
    double move_one;       /* seconds per byte that one core moves alone */
    double bytes;          /* of the model */
    advice advice[ADVICE_MAX];
    int nadvice, best;
    int crossover[ADVICE_MAX]; /* by servers; 0: none up to `most` */
    int most;
    advice_check check[CHECKS_MAX];
    int nchecks;
    eni_trials trials; /* shows the measurements and watches the machine */
} advised;

/* ---- measuring ---- */

/* With a worker per core and one server: the cost of one of its bytes, from the message to the new weights,
 * on a machine without a spare core. */
static en_status measure_store(const eni_command_context *context, const char *transport, int workers,
                               eni_cost_numbers *store_out)
{
    eni_measured measured = {0};
    const eni_check_job job = {.workers = workers,
                               .shards = 1,
                               .model = context->config->model,
                               .transport = transport,
                               .probe = "call",
                               .measured = &measured,
                               .is_here = true};
    EN_TRY(eni_check_run(context, &job));
    double alpha, beta;
    eni_cost_line(&measured.call, &alpha, &beta);
    if (measured.call.n == 0) return EN_EPROTO;
    *store_out = (eni_cost_numbers){alpha, beta / workers, 0};
    return EN_OK;
}

enum { PARTS = 7, WORKERS_MAX = 64 };

/* models: alone, one on each core, two on each core. */
static en_status measure_part(const eni_command_context *context, advised *a, int part, int all,
                              eni_measured models[3])
{
    const int processes[3] = {1, all, 2 * all};
    const int64_t threads = context->config->threads > 0 ? context->config->threads : 1;
    eni_cost_machine *m = &a->machine;
    eni_measured copies;
    switch (part) {
    case 3:
        EN_TRY(eni_check_measure(context, 1, NULL, "auto", NULL, "copy", &copies));
        a->move_one = copies.move;
        return EN_OK;
    case 4: return eni_check_numbers(context, m->cores, &m->flag, &m->move, &m->tcp);
    case 5: return measure_store(context, "auto", all, &m->store_shm);
    case 6: return measure_store(context, "tcp", all, &m->store_tcp);
    default: return eni_check_compute(context, processes[part], threads, &models[part]);
    }
}

static en_status measure(const eni_command_context *context, advised *a)
{
    eni_cost_machine *m = &a->machine;
    eni_measured *alone = eni_alloc(3 * sizeof *alone), *together = alone + 1, *crowded = alone + 2;
    if (alone == NULL) return EN_ENOMEM;
    m->cores = eni_host_info_cores();
    const int line = eni_live_add(&a->trials.live, "here", "compute, copies, exchanges", PARTS);
    const int all = m->cores < WORKERS_MAX / 2 ? m->cores : WORKERS_MAX / 2;
    en_status st = EN_OK;
    for (int part = 0; part < PARTS && st == EN_OK; part++) {
        eni_live_begin(&a->trials.live, line);
        st = measure_part(context, a, part, all, alone);
        if (st == EN_OK) eni_live_end(&a->trials.live, 0, -1, NAN);
    }
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

static en_status read_place(const eni_config *c, eni_cost_layout *place)
{
    uint64_t rate = 0;
    int64_t delay = 0;
    const int n = (int)c->workers;
    *place = (eni_cost_layout){.ranks = n, .ranks_on_host = n};
    /* on this host, as fast as its cores can feed it */
    place->is_networked = c->transport == ENI_TRANSPORT_TCP;
    if (c->net == NULL) return EN_OK;
    if (!eni_net_parse(c->net, &rate, &delay)) return EN_EINVAL;
    place->is_networked = place->has_own_host = true;
    place->ranks_on_host = 1;
    place->rate = (double)rate;
    place->delay = (double)delay * 1e-9;
    return EN_OK;
}

static void predict(advised *a)
{
    a->most = MOST_RANKS;
    a->advice[0] = (advice){.name = "ring", .step = eni_cost_step_ring(&a->machine, &a->place)};
    a->nadvice = 1;
    for (int s = 1; s <= a->config->servers && a->nadvice < ADVICE_MAX; s++) {
        advice *with = &a->advice[a->nadvice++];
        eni_cost_layout place = a->place;
        place.servers = with->servers = s;
        snprintf(with->name, sizeof with->name, "ps-sync, %d server%s", s, s == 1 ? "" : "s");
        with->step = eni_cost_step_ps(&a->machine, &place);
        a->crossover[s] = eni_cost_crossover(&a->machine, &place, a->most);
    }
    for (int i = 1; i < a->nadvice; i++)
        if (a->advice[i].step.seconds < a->advice[a->best].step.seconds) a->best = i;
}

/* ---- checking ---- */

/* The model's prediction of a run on this one host. */
static double predict_check(const advised *a, const char *strategy, int workers)
{
    eni_cost_layout place = a->place;
    place.ranks = place.ranks_on_host = workers;
    place.has_own_host = false;
    place.servers = 1;
    return strcmp(strategy, "ring") == 0 ? eni_cost_step_ring(&a->machine, &place).seconds
                                         : eni_cost_step_ps(&a->machine, &place).seconds;
}

static en_status run_check(const eni_command_context *context, advised *a, const char *dir,
                           const advice_check *check, int line, int repeat, double *step_out)
{
    char run[128];
    double rate;
    const eni_config *c = context->config;
    const eni_trial trial = {.strategy = check->strategy,
                             .workers = check->workers,
                             .batch = c->batch_size,
                             .servers = 1,
                             .threads = c->threads > 0 ? c->threads : 1};
    snprintf(run, sizeof run, "%s/%s-%d-%d", dir, check->strategy, check->workers, repeat);
    return eni_trials_run(&a->trials, line, context, &trial, run, &rate, step_out);
}

/* Interleaved: other load on the machine affects all alike. */
static en_status check_all(const eni_command_context *context, advised *a, const char *dir)
{
    static const char *const strategies[] = {"ring", "ps-sync"};
    double steps[CHECKS_MAX][REPEATS_MAX];
    const int repeats = (int)context->config->repeats;
    char name[64];
    int lines[CHECKS_MAX];
    for (int w = 1; w <= 4; w *= 2)
        for (int k = 0; k < 2; k++)
            a->check[a->nchecks++] = (advice_check){strategies[k], w, predict_check(a, strategies[k], w), 0};
    for (int i = 0; i < a->nchecks; i++) {
        const advice_check *check = &a->check[i];
        snprintf(name, sizeof name, "%s, %d worker%s", check->strategy, check->workers,
                 check->workers == 1 ? "" : "s");
        lines[i] = eni_live_add(&a->trials.live, "check", name, repeats);
    }
    for (int r = 0; r < repeats; r++)
        for (int i = 0; i < a->nchecks; i++)
            EN_TRY(run_check(context, a, dir, &a->check[i], lines[i], r, &steps[i][r]));
    for (int i = 0; i < a->nchecks; i++) {
        a->check[i].measured = eni_stats_median(steps[i], (size_t)repeats);
        eni_trials_note(&a->trials, steps[i], (size_t)repeats);
    }
    return EN_OK;
}

/* ---- showing ---- */

static void show_machine(const advised *a)
{
    const eni_cost_machine *m = &a->machine;
    printf("Measured on this machine (%d core%s):\n\n", m->cores, m->cores == 1 ? "" : "s");
    printf("  compute         %.2f ms a batch of %lld with the %s,\n"
           "                  %.2f with one on each core, %.2f with two,\n"
           "                  each time until the slowest is done\n",
           m->compute_alone * 1e3, (long long)a->config->batch_size, a->config->model,
           m->compute_together * 1e3, m->compute_crowded * 1e3);
    printf("  update          %.2f ms for the %.2f MB of weights, in %d bucket%s\n", m->update * 1e3,
           a->bytes * 1e-6, m->nbuckets, m->nbuckets == 1 ? "" : "s");
    printf("  copy            one core %.1f GB/s loaded and stored\n", 1e-9 / a->move_one);
    printf("  shared memory   alpha %.2f us a flag exchange,\n"
           "                  beta %.3f ns a byte and core (%.1f GB/s)\n",
           m->flag * 1e6, m->move * 1e9, 1e-9 / m->move);
    printf("  TCP             alpha %.1f us a hop, beta %.3f ns a byte (%.2f GB/s)\n", m->tcp.alpha * 1e6,
           m->tcp.beta * 1e9, 1e-9 / m->tcp.beta);
    printf("  server          %.0f us + %.3f ns a byte in shared memory,\n"
           "                  %.0f us + %.3f ns over TCP\n",
           m->store_shm.alpha * 1e6, m->store_shm.beta * 1e9, m->store_tcp.alpha * 1e6,
           m->store_tcp.beta * 1e9);
}

static const char *bound_of(const advised *a, const advice *with)
{
    if (with->step.is_cpu_bound) return "the cores";
    if (with->step.exposed < 0.05 * with->step.seconds) return "compute";
    if (!a->place.is_networked) return "memory";
    return "the exchange";
}

static en_status show_prediction(const advised *a)
{
    eni_table table;
    char text[ENI_TABLE_TEXT];
    const double samples = (double)a->place.ranks * (double)a->config->batch_size;
    if (a->place.has_own_host)
        printf("\nPredicted for %d worker%s, a host each, over %s (a server has a host of its own):\n\n",
               a->place.ranks, a->place.ranks == 1 ? "" : "s", a->config->net);
    else
        printf("\nPredicted for %d worker%s this host%s:\n\n", a->place.ranks,
               a->place.ranks == 1 ? " that has" : "s that share", a->place.is_networked ? ", over TCP" : "");
    eni_table_begin(&table, "|>step ms|>samples/s|>compute ms|>exchange|>not hidden|bound by");
    for (int i = 0; i < a->nadvice; i++) {
        const advice *with = &a->advice[i];
        eni_text_grouped(eni_table_significant(samples / with->step.seconds, 3), ",", text, sizeof text);
        /* the conclusion names the best */
        eni_table_put(&table, "%s|%.2f|%s|%.2f|%.2f|%.2f|%s", with->name, with->step.seconds * 1e3, text,
                      with->step.compute * 1e3, with->step.exchange * 1e3, with->step.exposed * 1e3,
                      bound_of(a, with));
    }
    return eni_table_print(&table, stdout);
}

/* Prints nothing if the machine was busy: the figures stand without a conclusion. */
static void show_conclusion(const advised *a)
{
    char doubt[256];
    if (eni_trials_doubt(&a->trials, eni_trials_outside(&a->trials), doubt, sizeof doubt)) {
        printf("\n%s\n", doubt);
        return;
    }
    printf("\nBest: %s.\n", a->advice[a->best].name);
    for (int s = 1; s < a->nadvice; s++) {
        const int at = a->crossover[s];
        if (at == 0)
            printf("Crossover with %d server%s: none up to %d workers.\n", s, s == 1 ? "" : "s", a->most);
        else
            printf("Crossover with %d server%s: the ring is as fast with %d or more workers.\n", s,
                   s == 1 ? "" : "s", at);
    }
}

static en_status show_checks(const advised *a)
{
    eni_table table;
    double worst = 0;
    printf("\nThe same formulas and real runs of %lld steps on this host%s%s (medians of %lld):\n\n",
           (long long)a->config->steps, a->config->net != NULL ? ", over emulated " : "",
           a->config->net != NULL ? a->config->net : "", (long long)a->config->repeats);
    eni_table_begin(&table, "strategy|>workers|>predicted ms|>measured ms|>error");
    for (int i = 0; i < a->nchecks; i++) {
        const advice_check *check = &a->check[i];
        const double error = check->predicted / check->measured - 1;
        if (fabs(error) > worst) worst = fabs(error);
        eni_table_put(&table, "%s|%d%s|%.2f|%.2f|%+.0f %%", check->strategy, check->workers,
                      check->workers > a->machine.cores ? " *" : "  ", check->predicted * 1e3,
                      check->measured * 1e3, error * 100);
    }
    EN_TRY(eni_table_print(&table, stdout));
    printf("\nThe largest error is %.0f %%. * more workers than cores.\n", worst * 100);
    return EN_OK;
}

/* ---- the command ---- */

en_status eni_command_advise(const eni_command_context *context)
{
    const eni_config *c = context->config;
    char own[64] = "";
    int out_fd = -1;
    advised *a = eni_alloc(sizeof *a);
    if (a == NULL) return EN_ENOMEM;
    a->config = c;
    const en_network *network; /* found here, before each process reports the error by itself */
    en_status st = eni_network_get("--model", c->model, &network);
    if (st == EN_OK) st = read_place(c, &a->place);
    if (st == EN_OK && c->out != NULL) st = eni_out_take(c, c->out, ENI_OUT_TRIALS, &out_fd);
    eni_trials_begin(&a->trials, c->quiet);
    if (st == EN_OK) st = measure(context, a);
    if (st == EN_OK) {
        predict(a);
        show_machine(a);
        st = show_prediction(a);
        fflush(stdout);
    }
    if (st == EN_OK && c->validate) {
        if (c->out == NULL) st = eni_trial_folder(own);
        if (st == EN_OK) st = check_all(context, a, c->out != NULL ? c->out : own);
        if (st == EN_OK) st = show_checks(a);
        if (own[0] != 0) eni_trial_remove(own);
    }
    if (st == EN_OK) show_conclusion(a);
    if (out_fd >= 0) close(out_fd);
    eni_free(a);
    return st;
}
