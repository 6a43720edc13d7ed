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
#include "run/rank_groups.h"
#include "run/units.h"
#include "runtime/net/shaper.h"
#include "runtime/sim/faults/faults.h"
#include "runtime/sim/quadratic.h"
#include "runtime/spec/strategies.h"

/* ---- the report ---------------------------------------------------------------------------------------- */

/* Prints at most as many as `user`, an int64_t, says. */
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

/* Lines that only a strategy with a store has. */
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

/* The same report as JSON. A value that is not finite, such as the loss of a diverged strategy, is null. */
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
    if (given->net != NULL) printf("network     %s\n", network);
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

static eni_sim_network network_of(const eni_config *c)
{
    uint64_t rate = 0;
    int64_t delay_ns = 0;
    if (c->net != NULL) (void)eni_net_parse(c->net, &rate, &delay_ns); /* checked by config/ */
    return (eni_sim_network){.latency_ns = delay_ns > 0 ? delay_ns : (int64_t)(c->latency_us * ENI_MICRO),
                             .bytes_per_s = rate > 0 ? (double)rate : c->rate_mb * 1e6};
}

static en_status take_visits(const char *flag, const eni_list *list, int64_t nranks, int64_t *at_ns)
{
    int64_t rank, at;
    for (int i = 0; i < list->count; i++) {
        (void)eni_visit_parse(list->item[i], &rank, &at); /* checked by config/ */
        if (rank >= nranks)
            return eni_fail(EN_EINVAL, "sim", "%s=%s: ranks are 0 to %lld; give one of them, or a larger -n",
                            flag, list->item[i], (long long)nranks - 1);
        at_ns[rank] = at;
    }
    return EN_OK;
}

static en_status try_strategy(const eni_command_context *context, const en_strategy *strategy,
                              const eni_options *options, const eni_quadratic *problem, float *weights)
{
    const eni_config *c = context->config;
    const double ranks = (double)c->workers * (double)c->accumulate;
    int64_t rank, left = c->events;
    int64_t join_ns[ENI_MEAN_MAX], leave_ns[ENI_MEAN_MAX];
    double factor[ENI_MEAN_MAX], slow;
    int32_t groups[ENI_MEAN_MAX];
    eni_sim_result result;
    if (c->groups != NULL) EN_TRY(eni_rank_groups_read(c->groups, (int32_t)c->workers, groups));
    for (int r = 0; r < c->workers; r++) {
        factor[r] = 1;
        join_ns[r] = 0;
        leave_ns[r] = INT64_MAX;
    }
    EN_TRY(take_visits("--join", &c->join, c->workers, join_ns));
    EN_TRY(take_visits("--leave", &c->leave, c->workers, leave_ns));
    for (int i = 0; i < c->straggler.count; i++)
        if (eni_straggler_parse(c->straggler.item[i], &rank, &slow)) factor[rank] = slow;
    const eni_sim_config config = {
        .strategy = strategy,
        .options = options,
        .hooks = context->hooks,
        .problem = &problem->problem,
        .nranks = (int32_t)c->workers,
        .nshards = (int32_t)c->shards,
        .local_size = (int32_t)c->local_size,
        .groups = c->groups != NULL ? groups : NULL,
        .seed = (uint64_t)c->seed,
        .micro_batches = (uint64_t)fmin((double)c->steps * ranks, 1e18), /* no one waits for more */
        .accumulate = (uint64_t)c->accumulate,
        .bucket_cap_bytes = (uint64_t)c->bucket_cap,
        .hyper = {.momentum = (float)c->momentum, .weight_decay = (float)c->weight_decay},
        .schedule = {.kind = ENI_LR_CONSTANT, .base = c->lr},
        .compute = {.mean_ns = (int64_t)(c->step_ms * ENI_MILLI),
                    .noise = c->sigma > 0 ? ENI_SIM_LOGNORMAL : ENI_SIM_CONSTANT,
                    .sigma = c->sigma,
                    .factor = factor},
        .network = network_of(c),
        .join_ns = c->join.count > 0 ? join_ns : NULL,
        .leave_ns = c->leave.count > 0 ? leave_ns : NULL,
        .trace = c->events > 0 ? print_event : NULL,
        .trace_user = &left,
        .weights_out = weights};
    const en_status st = eni_sim_run(&config, &result);
    if (st == EN_OK) (c->json ? report_json : report)(c, &config, problem, &result);
    eni_sim_result_fini(&result);
    return st;
}

/* Tries every seed, so that one line says how many fail. */
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
        /* refused before it ran: the seed is not the cause */
        if (st == EN_EINVAL && f.messages == 0) return st;
        failed += st != EN_OK;
        if (first == EN_OK) first = st;
        if (failed == SHOWN) eni_log_set_level(-1); /* the rest are only counted */
    }
    printf("%s: %" PRId64 " seeds, %" PRId64 " failed, %.1f s; messages %" PRIu64 ", dropped %" PRIu64
           ", cut off %" PRIu64 ", doubled %" PRIu64 ", late %" PRIu64 ", of an earlier incarnation %" PRIu64
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
    const en_strategy *strategy;
    eni_options *options = NULL;
    eni_quadratic problem = {0};
    float *weights = NULL;
    en_status st = EN_OK;
    if (c->json && (c->storm || c->events > 0))
        return eni_fail(EN_EINVAL, "sim", "--json prints the result of one run; omit it with --%s",
                        c->storm ? "storm" : "events");
    EN_TRY(eni_strategy_find(context->plugin_dir, c->strategy, &strategy));
    EN_TRY(eni_strategy_groups(strategy, c->groups));
    EN_TRY(eni_options_new(strategy, eni_spec_options(c->strategy), &options));
    if (c->storm) {
        st = try_faults(context, strategy, options);
        goto free_all;
    }
    EN_TRY_GOTO(eni_quadratic_init(&problem, (uint64_t)c->elements, (uint64_t)c->seed), free_all);
    weights = eni_alloc_array(problem.problem.count, sizeof *weights);
    st = weights == NULL ? EN_ENOMEM : try_strategy(context, strategy, options, &problem, weights);
free_all:
    eni_free(weights);
    eni_quadratic_fini(&problem);
    eni_options_free(options);
    return st;
}
