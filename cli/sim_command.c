/* sim_command.c - `entrain sim`: a strategy on the virtual host, without faults or with (--storm). */
#include "cli/commands.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/try.h"
#include "models/evaluation.h"
#include "models/formats/weights.h"
#include "runtime/sim/faults/faults.h"
#include "runtime/sim/skewed.h"
#include "virtual/experiment.h"

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
    printf("; samples dropped %.4g %%\n",
           r->dropped > 0 ? 100 * (double)r->dropped / (double)(r->applied + r->dropped) : 0);
    printf("clocks      at most %" PRIu64 " ahead, %" PRIu64 " holds", r->clocks_ahead, r->holds);
    if (r->has_theory) printf("; theory %g", r->theory.max_clocks_behind);
    printf("\n");
}

/* One run: what is trained, and its curve. */
typedef struct sim_trial {
    const eni_command_context *context;
    eni_virtual v;
    eni_skewed skewed;            /* without --model */
    eni_virtual_network *network; /* with it */
    eni_experiment *experiment;   /* of that */
    json_t *curve;                /* [[samples, seconds, loss, accuracy or null], ..] */
    eni_set_score first, last;    /* of it; accuracy NAN: none */
    eni_experiment_end end;       /* of the experiment */
    float *weights;               /* at the end */
} sim_trial;

static bool has_accuracy(const sim_trial *t)
{
    return !isnan(t->last.accuracy);
}

static uint64_t steps_of(const sim_trial *t)
{
    return t->v.sim.micro_batches / ((uint64_t)t->v.sim.nranks * t->v.sim.accumulate);
}

/* "compute     ranks 0-3 exp:10ms; rank 4 fixed:40ms", and so on. */
static void print_timing(const sim_trial *t)
{
    enum { SHOWN = 8 };
    json_t *timing = eni_virtual_timing(&t->v), *list;
    const char *kind;
    json_object_foreach(timing, kind, list)
    {
        size_t i;
        json_t *group;
        if (json_array_size(list) == 0) continue;
        printf("%-11s", strcmp(kind, "server_time") == 0 ? "server time" : kind);
        json_array_foreach(list, i, group)
        {
            if (i < SHOWN)
                printf("%s %s %s", i > 0 ? ";" : "", json_string_value(json_array_get(group, 0)),
                       json_string_value(json_array_get(group, 1)));
        }
        if (json_array_size(list) > SHOWN) printf("; and %zu more", json_array_size(list) - SHOWN);
        printf("\n");
    }
    json_decref(timing);
}

/* The same report as JSON. A value that is not finite, such as the loss of a diverged strategy, is null. */
static void report_json(const sim_trial *t, const eni_sim_result *r)
{
    const eni_sim_config *c = &t->v.sim;
    const double model = (double)c->problem->count * sizeof(float), batches = (double)c->micro_batches;
    json_t *all = json_object(), *ranks = json_array(), *theory = json_object(), *staleness = json_object();
    eni_json_set_int(all, "schema", 1);
    eni_json_set_text(all, "strategy", c->strategy->name);
    eni_json_set_text(all, "options", eni_options_canonical(c->options));
    eni_json_set_number(all, "loss_before", t->first.loss);
    eni_json_set_number(all, "loss", t->last.loss);
    if (has_accuracy(t)) eni_json_set_number(all, "accuracy", t->last.accuracy);
    eni_json_set_number(all, "seconds", (double)r->virtual_ns * 1e-9);
    eni_json_set_number(all, "step_seconds", (double)r->virtual_ns * 1e-9 / (double)steps_of(t));
    eni_json_set_number(all, "sent", (double)r->sent / model / batches);
    eni_json_set_number(all, "received", (double)r->recv / model / batches);
    ENI_JSON_SET_INTS(all, {"events", r->events}, {"clocks_ahead", r->clocks_ahead}, {"holds", r->holds},
                      {"pushes", r->pushes}, {"samples_applied", r->applied},
                      {"samples_dropped", r->dropped});
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
    json_object_set_new(all, "timing", eni_virtual_timing(&t->v));
    json_object_set_new(all, "staleness", staleness);
    json_object_set_new(all, "theory", theory);
    json_object_set_new(all, "equal_ranks", json_boolean(r->has_equal_ranks));
    json_object_set_new(all, "steps", ranks);
    json_object_set(all, "curve", t->curve);
    if (t->network != NULL) {
        char params[ENI_DIGEST_HEX];
        eni_json_set_text(all, "model", t->network->job.schema.spec);
        eni_json_set_text(all, "data", t->network->dataset->name);
        if (eni_weights_digest(&t->network->job.schema, t->weights, params) == EN_OK)
            eni_json_set_text(all, "params_sha256", params);
    }
    eni_json_set_text(all, "weights_sha256", r->weights_sha256);
    eni_json_set_text(all, "log_sha256", r->log_sha256);
    (void)eni_json_print(all);
}

/* Loss over time, where it was asked for more than at the ends. */
static void report_curve(const sim_trial *t)
{
    size_t i;
    const json_t *point;
    if (json_array_size(t->curve) <= 2) return;
    printf("\n%12s %12s %12s%s\n", "samples", "seconds", "loss", has_accuracy(t) ? "     accuracy" : "");
    json_array_foreach(t->curve, i, point)
    {
        printf("%12" JSON_INTEGER_FORMAT " %12.4f %12.6g", json_integer_value(json_array_get(point, 0)),
               json_number_value(json_array_get(point, 1)), json_number_value(json_array_get(point, 2)));
        if (has_accuracy(t)) printf(" %11.2f%%", 100 * json_number_value(json_array_get(point, 3)));
        printf("\n");
    }
    printf("\n");
}

static void report(const sim_trial *t, const eni_sim_result *r)
{
    const eni_sim_config *c = &t->v.sim;
    const double model = (double)c->problem->count * sizeof(float), batches = (double)c->micro_batches;
    const char *chosen = eni_options_canonical(c->options);
    printf("strategy    %s%s%s\n", c->strategy->name, *chosen ? ":" : "", chosen);
    print_timing(t);
    if (t->network != NULL)
        printf("trained     %s on %s\n", t->network->job.schema.spec, t->network->dataset->name);
    report_curve(t);
    printf("loss        %.6g -> %.6g\n", t->first.loss, t->last.loss);
    if (has_accuracy(t))
        printf("accuracy    %.2f%% -> %.2f%%\n", 100 * t->first.accuracy, 100 * t->last.accuracy);
    if (t->experiment != NULL && t->network->split == ENI_HOLDOUT)
        printf(isnan(t->end.test.accuracy) ? "test set    loss %.6g\n"
                                           : "test set    loss %.6g, accuracy %.2f%%\n",
               t->end.test.loss, 100 * t->end.test.accuracy);
    printf("time        %.3f ms, %.4f ms a step, %" PRIu64 " events\n", (double)r->virtual_ns / ENI_MILLI,
           (double)r->virtual_ns / ENI_MILLI / (double)steps_of(t), r->events);
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

static void add_point(sim_trial *t, uint64_t samples, double seconds, double loss, double accuracy)
{
    json_t *point = json_pack("[I, f]", (json_int_t)samples, seconds);
    json_array_append_new(point, isfinite(loss) ? json_real(loss) : json_null());
    json_array_append_new(point, isnan(accuracy) ? json_null() : json_real(accuracy));
    json_array_append_new(t->curve, point);
}

/* The made-up problem at this moment. */
static en_status evaluate(void *user, uint64_t samples, int64_t virtual_ns, const float *param)
{
    sim_trial *t = user;
    t->last = (eni_set_score){.loss = eni_skewed_loss(&t->skewed, param), .accuracy = NAN};
    if (json_array_size(t->curve) == 0) t->first = t->last;
    add_point(t, samples, (double)virtual_ns * 1e-9, t->last.loss, NAN);
    return EN_OK;
}

/* A point of a network, once the run has ended. */
static void take_point(void *user, const eni_point *point)
{
    add_point(user, point->samples, point->t, point->loss, point->accuracy);
}

static en_status open_skewed(sim_trial *t)
{
    const eni_config *c = t->context->config;
    if (c->out != NULL || c->save != NULL)
        return eni_fail(EN_EINVAL, "sim",
                        "--%s is for a network, and without --model none is trained; give "
                        "--model=mlp, or omit it",
                        c->out != NULL ? "out" : "save");
    t->v.sim.problem = &t->skewed.problem;
    t->v.sim.evaluate = evaluate;
    t->v.sim.evaluate_user = t;
    return eni_skewed_init(&t->skewed, (uint64_t)c->elements, (uint64_t)c->seed,
                           (uint64_t)t->v.sim.nranks * t->v.sim.accumulate);
}

static en_status open_problem(sim_trial *t)
{
    const eni_command_context *context = t->context;
    if (!eni_config_is_given(context->config, "model")) return open_skewed(t);
    EN_TRY(eni_virtual_network_open(context->config, context->plugin_dir, &t->v, &t->network));
    const eni_experiment_config experiment = {.config = context->config,
                                              .version = context->version,
                                              .argc = context->argc,
                                              .argv = context->argv,
                                              .simulation = &t->v,
                                              .network = t->network,
                                              .on_point = take_point,
                                              .user = t};
    return eni_experiment_open(&experiment, &t->experiment);
}

static en_status finish_experiment(sim_trial *t, const eni_sim_result *result)
{
    eni_experiment_end *end = &t->end;
    if (t->experiment == NULL) return EN_OK;
    EN_TRY(eni_experiment_finish(t->experiment, result, t->weights, end));
    t->first = end->first;
    t->last = (eni_set_score){.loss = end->curve.last.loss, .accuracy = end->curve.last.accuracy};
    if (json_integer_value(json_array_get(json_array_get(t->curve, 0), 0)) == 0) return EN_OK;
    json_t *later = t->curve; /* the run itself has no point at the start */
    t->curve = json_array();
    add_point(t, 0, 0, t->first.loss, t->first.accuracy);
    json_array_extend(t->curve, later);
    json_decref(later);
    return EN_OK;
}

/* --replay-order: whether the run ended with these weights. */
static en_status verify_replay(const sim_trial *t)
{
    char path[4200], params[ENI_DIGEST_HEX] = "";
    if (t->network != NULL) EN_TRY(eni_weights_digest(&t->network->job.schema, t->weights, params));
    snprintf(path, sizeof path, "%s/result.json", t->context->config->replay_order);
    json_t *result = eni_json_file(path, NULL);
    const char *theirs = json_string_value(json_object_get(result, "params_sha256"));
    const bool is_equal = theirs != NULL && strcmp(theirs, params) == 0;
    json_decref(result);
    if (is_equal) eni_info("sim", "the weights are those of %s, byte for byte", path);
    if (is_equal) return EN_OK;
    return eni_fail(
        EN_EMISMATCH, "sim",
        "--replay-order: the order was played, but the weights (params_sha256 %.12s..) are not those of %s: "
        "give the flags of that run (--config=%s/config.yaml), and its device",
        params, path, t->context->config->replay_order);
}

static en_status run_trial(sim_trial *t)
{
    int64_t left = t->context->config->events;
    eni_sim_config *sim = &t->v.sim;
    eni_sim_result result;
    t->curve = json_array();
    EN_TRY(open_problem(t));
    t->weights = eni_alloc_array(sim->problem->count, sizeof *t->weights);
    if (t->weights == NULL || t->curve == NULL) return EN_ENOMEM;
    sim->hooks = t->context->hooks;
    sim->trace = left > 0 ? print_event : NULL;
    sim->trace_user = &left;
    sim->weights_out = t->weights;
    en_status st = eni_sim_run(sim, &result);
    if (st == EN_OK) st = finish_experiment(t, &result);
    if (st == EN_OK) (t->context->config->json ? report_json : report)(t, &result);
    if (st == EN_OK && sim->order != NULL) st = verify_replay(t);
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
           ", cut off %" PRIu64 ", duplicated %" PRIu64 ", late %" PRIu64
           ", of an earlier incarnation %" PRIu64 "; resent %" PRIu64 ", replays %" PRIu64
           "; states saved %" PRIu64 ", stores died %" PRIu64 ", ranks died %" PRIu64 "\n",
           c->strategy, c->storms, failed, (double)(eni_now_ns() - begin) * 1e-9, f.messages, f.dropped,
           f.cut, f.doubled, f.delayed, f.stale, f.resends, f.replays, f.saves, f.store_deaths,
           f.rank_deaths);
    return first;
}

en_status eni_command_sim(const eni_command_context *context)
{
    const eni_config *c = context->config;
    sim_trial t = {.context = context};
    if (c->json && (c->storm || c->events > 0))
        return eni_fail(EN_EINVAL, "sim", "--json prints the result of one run; omit it with --%s",
                        c->storm ? "storm" : "events");
    EN_TRY(eni_virtual_open(c, context->plugin_dir, &t.v));
    const en_status st = c->storm ? try_faults(context, t.v.sim.strategy, t.v.options) : run_trial(&t);
    json_decref(t.curve);
    eni_free(t.weights);
    eni_experiment_close(t.experiment);
    eni_virtual_network_close(t.network);
    eni_skewed_fini(&t.skewed);
    eni_virtual_close(&t.v);
    return st;
}
