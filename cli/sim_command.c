/* sim_command.c - `entrain sim`: a strategy on the virtual host, without faults or with (--storm). */
#include "cli/commands.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "core/clock.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/try.h"
#include "run/units.h"
#include "runtime/net/shaper.h"
#include "runtime/sim/faults/faults.h"
#include "runtime/sim/quadratic.h"
#include "virtual/simulation.h"

/* ---- the report ---------------------------------------------------------------------------------------- */

/* As many as `user`, an int64_t, says. */
static void print_event(void *user, const eni_sim_event *e)
{
    static const char *const types[] = {"", "step", "push", "reply", "coll", "sendrecv", "finished"};
    int64_t *left = user;
    if ((*left)-- <= 0) return;
    printf("%12.3f us  rank %-4d %-8s", (double)e->at_ns / 1e3, e->rank, types[e->type]);
    switch (e->type) {
    case ENI_SIM_STEP: printf("%" PRIu64 " on micro-batch %" PRIu64 "\n", e->clock, e->version); break;
    case ENI_SIM_PUSH:
        printf("bucket %u to store %d, clock %" PRIu64 ", from version %" PRIu64 " onto %" PRIu64 "\n",
               e->bucket, e->peer, e->clock, e->base, e->version);
        break;
    case ENI_SIM_REPLY:
        printf("bucket %u from store %d, clock %" PRIu64 ", version %" PRIu64 "\n", e->bucket, e->peer,
               e->clock, e->version);
        break;
    case ENI_SIM_COLL:
        printf("operation %" PRIu64 " of %d ranks, bucket %u\n", e->clock, e->peer, e->bucket);
        break;
    case ENI_SIM_SENDRECV: printf("bucket %u from rank %d\n", e->bucket, e->peer); break;
    default: printf("\n");
    }
}

/* What only a strategy with a store has. */
static void report_store(const eni_sim_result *r)
{
    printf("staleness   mean %.3f, p50 %" PRIu64 ", p95 %" PRIu64 ", max %" PRIu64,
           eni_histogram_mean(&r->staleness), eni_histogram_quantile(&r->staleness, 0.5),
           eni_histogram_quantile(&r->staleness, 0.95), r->staleness.max);
    if (r->has_theory && r->theory.staleness >= 0) printf("; theory %g", r->theory.staleness);
    printf("\nclocks      at most %" PRIu64 " ahead, %" PRIu64 " holds", r->clocks_ahead, r->holds);
    if (r->has_theory) printf("; theory %g", r->theory.max_clocks_behind);
    printf("\n");
}

/* The same report as JSON. A value that is not finite, like the loss of a strategy that diverged, is null. */
static void report_json(const eni_config *given, const eni_sim_config *c, const eni_quadratic *problem,
                        const eni_sim_result *r)
{
    const double model = (double)problem->problem.count * sizeof(float), batches = (double)c->micro_batches;
    json_t *all = json_object(), *ranks = json_array(), *theory = json_object(), *staleness = json_object();
    eni_json_set_int(all, "schema", 1);
    eni_json_set_text(all, "strategy", c->strategy->name);
    eni_json_set_text(all, "options", eni_options_canonical(c->options));
    eni_json_set_number(all, "loss_before", eni_quadratic_loss(problem, problem->init));
    eni_json_set_number(all, "loss", eni_quadratic_loss(problem, c->weights_out));
    eni_json_set_number(all, "seconds", (double)r->virtual_ns * 1e-9);
    eni_json_set_number(all, "step_seconds", (double)r->virtual_ns * 1e-9 / (double)given->steps);
    eni_json_set_number(all, "sent", (double)r->sent / model / batches);
    eni_json_set_number(all, "received", (double)r->recv / model / batches);
    ENI_JSON_SET_INTS(all, {"events", r->events}, {"clocks_ahead", r->clocks_ahead}, {"holds", r->holds},
                      {"pushes", r->pushes});
    if (r->pushes > 0) {
        eni_json_set_number(staleness, "mean", eni_histogram_mean(&r->staleness));
        ENI_JSON_SET_INTS(staleness, {"p50", eni_histogram_quantile(&r->staleness, 0.5)},
                          {"p95", eni_histogram_quantile(&r->staleness, 0.95)}, {"max", r->staleness.max});
    }
    if (r->has_theory) {
        eni_json_set_number(theory, "sent", r->theory.sent);
        eni_json_set_number(theory, "received", r->theory.recv);
        eni_json_set_number(theory, "staleness", r->theory.staleness);
        eni_json_set_number(theory, "max_clocks_behind", r->theory.max_clocks_behind);
    }
    for (int32_t i = 0; i < r->nranks; i++)
        json_array_append_new(ranks, json_integer((json_int_t)r->rank[i].steps));
    json_object_set_new(all, "staleness", staleness);
    json_object_set_new(all, "theory", theory);
    json_object_set_new(all, "equal_ranks", json_boolean(r->has_equal_ranks));
    json_object_set_new(all, "steps", ranks);
    eni_json_set_text(all, "weights_sha256", r->weights_sha256);
    eni_json_set_text(all, "log_sha256", r->log_sha256);
    json_dumpf(all, stdout, JSON_INDENT(1));
    printf("\n");
    json_decref(all);
}

static void report(const eni_config *given, const eni_sim_config *c, const eni_quadratic *problem,
                   const eni_sim_result *r)
{
    char network[96];
    const double model = (double)problem->problem.count * sizeof(float), batches = (double)c->micro_batches;
    const char *chosen = eni_options_canonical(c->options);
    printf("strategy    %s%s%s\n", c->strategy->name, *chosen ? ":" : "", chosen);
    eni_net_describe((uint64_t)c->network.bytes_per_s, c->network.latency_ns, network, sizeof network);
    printf("compute     %s\nnetwork     %s\n", given->compute, network);
    printf("loss        %.6g -> %.6g\n", eni_quadratic_loss(problem, problem->init),
           eni_quadratic_loss(problem, c->weights_out));
    printf("time        %.3f ms, %.4f ms a step, %" PRIu64 " events\n", (double)r->virtual_ns / ENI_MILLI,
           (double)r->virtual_ns / ENI_MILLI / (double)given->steps, r->events);
    printf("payload     %.4f sent, %.4f received, of the model's bytes per step and rank",
           (double)r->sent / model / batches, (double)r->recv / model / batches);
    if (r->has_theory) printf("; theory %.4f, %.4f", r->theory.sent, r->theory.recv);
    printf("\n");
    if (r->pushes > 0) report_store(r);
    printf("ranks       %s at the end; steps", r->has_equal_ranks ? "equal" : "different");
    for (int32_t i = 0; i < r->nranks && i < 16; i++)
        printf(" %" PRIu64, r->rank[i].steps);
    printf("%s\nweights     sha256 %s\nlog         sha256 %s\n", r->nranks > 16 ? " .." : "",
           r->weights_sha256, r->log_sha256);
}

/* ---- the run ------------------------------------------------------------------------------------------- */

static en_status run_quadratic(const eni_command_context *context, eni_virtual *v)
{
    const eni_config *c = context->config;
    int64_t left = c->events;
    eni_quadratic problem;
    eni_sim_result result;
    EN_TRY(eni_quadratic_init(&problem, (uint64_t)c->elements, (uint64_t)c->seed));
    float *weights = eni_alloc_array(problem.problem.count, sizeof *weights);
    v->sim.hooks = context->hooks;
    v->sim.problem = &problem.problem;
    v->sim.trace = c->events > 0 ? print_event : NULL;
    v->sim.trace_user = &left;
    v->sim.weights_out = weights;
    en_status st = EN_ENOMEM;
    if (weights != NULL) {
        st = eni_sim_run(&v->sim, &result);
        if (st == EN_OK) (c->json ? report_json : report)(c, &v->sim, &problem, &result);
        eni_sim_result_fini(&result);
    }
    eni_free(weights);
    eni_quadratic_fini(&problem);
    return st;
}

/* Every seed is tried, so that one line says how many fail. */
static en_status try_faults(const eni_command_context *context, const en_strategy *strategy,
                            const eni_options *options)
{
    enum { SHOWN = 5 };
    const eni_config *c = context->config;
    const eni_promise promise =
        c->promise == ENI_PROMISES_AUTO ? eni_promise_of(strategy->name) : (eni_promise)(c->promise - 1);
    eni_fault_stats f = {0};
    en_status first = EN_OK;
    int64_t failed = 0;
    const int64_t begin = eni_now_ns();
    for (int64_t i = 0; i < c->storms; i++) {
        const en_status st = eni_fault_test(context->hooks, strategy, options, c->strategy, promise,
                                            (uint64_t)(c->seed + i), &f);
        if (st == EN_EINVAL && f.messages == 0) return st; /* refused before it ran: no seed is to blame */
        failed += st != EN_OK;
        if (first == EN_OK) first = st;
        if (failed == SHOWN) eni_log_set_level(-1); /* the others are counted */
    }
    printf("%s: %" PRId64 " seeds, %" PRId64 " failed, %.1f s; messages %" PRIu64 ", dropped %" PRIu64
           ", cut off %" PRIu64 ", doubled %" PRIu64 ", late %" PRIu64 ", of an older life %" PRIu64
           "; resent %" PRIu64 ", replays %" PRIu64 "; states saved %" PRIu64 ", stores died %" PRIu64
           ", ranks died %" PRIu64 "\n",
           c->strategy, c->storms, failed, (double)(eni_now_ns() - begin) * 1e-9, f.messages, f.dropped,
           f.cut, f.doubled, f.delayed, f.stale, f.resends, f.replays, f.saves, f.store_deaths,
           f.rank_deaths);
    return first;
}

en_status eni_command_sim(const eni_command_context *context)
{
    const eni_config *c = context->config;
    eni_virtual v;
    if (c->json && (c->storm || c->events > 0))
        return eni_fail(EN_EINVAL, "sim", "--json is what one run came to; leave it out with --%s",
                        c->storm ? "storm" : "events");
    EN_TRY(eni_virtual_open(c, context->plugin_dir, &v));
    const en_status st =
        c->storm ? try_faults(context, v.sim.strategy, v.options) : run_quadratic(context, &v);
    eni_virtual_close(&v);
    return st;
}
