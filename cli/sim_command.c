/* sim_command.c - `entrain sim`: a strategy on the virtual host, without faults or with (--storm). */
#include "cli/commands.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/hook.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/try.h"
#include "config/units.h"
#include "runtime/sim/faults/faults.h"
#include "runtime/sim/quadratic.h"
#include "runtime/spec/plugin.h"

/* ---- the words ----------------------------------------------------------------------------------------- */

typedef struct sim_trial {
    const char *strategy, *straggler, *promise, *net;
    double workers, local_size, shards, steps, accumulate, elements, bucket_cap;
    double lr, momentum, weight_decay, seed;
    double step_ms, sigma, latency_us, rate_mb, events, seeds, hook_timeout;
    int wants_help, wants_faults;
} sim_trial;

static const struct option_word {
    const char *key;
    size_t at; /* of a double in sim_trial */
    bool is_whole;
    double value, min, max;
    const char *help;
} words[] = {
    {"workers", offsetof(sim_trial, workers), true, 4, 1, 1024, "ranks"},
    {"local-size", offsetof(sim_trial, local_size), true, 0, 0, 1024,
     "ranks per virtual machine; 0: all on one"},
    {"shards", offsetof(sim_trial, shards), true, 1, 1, 1024, "server shards"},
    {"steps", offsetof(sim_trial, steps), true, 100, 1, 1e9, "steps a rank, on average"},
    {"accumulate", offsetof(sim_trial, accumulate), true, 1, 1, 1024,
     "micro-batches a step of one worker alone"},
    {"elements", offsetof(sim_trial, elements), true, 1000, 48, 1e8, "weights of the quadratic problem"},
    {"bucket-cap", offsetof(sim_trial, bucket_cap), true, 1024, 64, 67108864, "bytes of a bucket at most"},
    {"lr", offsetof(sim_trial, lr), false, 0.01, 0, 1e6, "learning rate"},
    {"momentum", offsetof(sim_trial, momentum), false, 0, 0, 1, "momentum"},
    {"weight-decay", offsetof(sim_trial, weight_decay), false, 0, 0, 1, "weight decay"},
    {"seed", offsetof(sim_trial, seed), true, 1, 0, 9007199254740992.,
     "of gradients, noise and the strategy's numbers"},
    {"step-ms", offsetof(sim_trial, step_ms), false, 1, 0, 1e9, "milliseconds of one gradient"},
    {"sigma", offsetof(sim_trial, sigma), false, 0, 0, 10,
     "noise of that time: sigma of the lognormal, 0: none"},
    {"latency-us", offsetof(sim_trial, latency_us), false, 50, 0, 1e9,
     "microseconds of latency of a message"},
    {"rate-mb", offsetof(sim_trial, rate_mb), false, 1000, 0, 1e9,
     "megabytes a second of a link, 0: infinite"},
    {"events", offsetof(sim_trial, events), true, 0, 0, 1e9, "how many lines of the event log to show"},
    {"seeds", offsetof(sim_trial, seeds), true, 1, 1, 1e9, "with --storm: how many, from --seed on"},
    {"hook-timeout", offsetof(sim_trial, hook_timeout), false, 30, 0, 86400,
     "seconds in which a function of the plugin must return, 0: no limit"},
};
enum { WORDS = sizeof words / sizeof *words };

static void print_help(FILE *out)
{
    fprintf(out, "entrain sim --strategy=NAME|FILE.so[:key=value,..] [options]\n\n"
                 "Runs a strategy in virtual time on a noisy quadratic problem.\n\n"
                 "  --straggler=RANK:FACTOR  one slower worker\n"
                 "  --net=rate:R,delay:T     the network, as of `entrain run`: rate:1Gbit,delay:50us\n"
                 "  --storm                  inject faults: everything else is drawn from the seed\n"
                 "  --promise=WORD           what must hold in it: ends, may-drop, exact or at-once\n");
    for (int i = 0; i < WORDS; i++)
        fprintf(out, "  --%-22s %s (%g .. %g, default %g)\n", words[i].key, words[i].help, words[i].min,
                words[i].max, words[i].value);
}

typedef struct sim_flag {
    const char *name, *value; /* `--lr 0.1` has the value in the next word */
    size_t length;            /* of the name */
} sim_flag;

static bool is_named(const sim_flag *flag, const char *name)
{
    if (strlen(name) != flag->length) return false;
    for (size_t i = 0; i < flag->length; i++) /* dashes and underscores are alike */
        if (name[i] != (flag->name[i] == '_' ? '-' : flag->name[i])) return false;
    return true;
}

/* -1: no number has this name. */
static int number_of(const sim_flag *flag)
{
    for (int i = 0; i < WORDS; i++)
        if (is_named(flag, words[i].key) || (i == 0 && is_named(flag, "n"))) return i;
    return -1;
}

static en_status parse_number(sim_trial *t, const sim_flag *flag)
{
    const struct option_word *word = &words[number_of(flag)];
    char *end;
    const double number = strtod(flag->value, &end);
    const bool is_read = end != flag->value && !*end && (!word->is_whole || number == floor(number));
    if (!is_read || !(number >= word->min && number <= word->max))
        return eni_fail(EN_EINVAL, "sim", "--%s cannot be '%s': %s, %g .. %g", word->key, flag->value,
                        word->is_whole ? "a whole number" : "a number", word->min, word->max);
    *(double *)(void *)((char *)t + word->at) = number;
    return EN_OK;
}

/* As of `entrain run`. */
static en_status parse_net(sim_trial *t, const char *text)
{
    uint64_t rate = 0;
    int64_t delay_ns = 0;
    if (!eni_net_parse(text, &rate, &delay_ns))
        return eni_fail(
            EN_EINVAL, "sim",
            "--net cannot be '%s': rate:RATE,delay:TIME, or one of them, as rate:200MB,delay:50us; a "
            "rate ends in B (bytes a second) or bit",
            text);
    t->net = text;
    if (rate > 0) t->rate_mb = (double)rate / 1e6;
    if (delay_ns > 0) t->latency_us = (double)delay_ns / ENI_MICRO;
    return EN_OK;
}

static en_status take_flag(sim_trial *t, const sim_flag *flag)
{
    if (is_named(flag, "strategy"))
        t->strategy = flag->value;
    else if (is_named(flag, "straggler"))
        t->straggler = flag->value;
    else if (is_named(flag, "promise"))
        t->promise = flag->value;
    else if (is_named(flag, "net"))
        return parse_net(t, flag->value);
    else
        return parse_number(t, flag);
    return EN_OK;
}

static en_status parse(sim_trial *t, int argc, char **argv)
{
    for (int i = 0; i < WORDS; i++)
        *(double *)(void *)((char *)t + words[i].at) = words[i].value;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        const size_t dashes = strspn(word, "-");
        sim_flag flag = {.name = word + dashes, .length = strcspn(word + dashes, "=")};
        if (dashes == 1 && flag.length > 1) flag.length = 1; /* -n4 */
        if (dashes < 1 || dashes > 2 || flag.length == 0)
            return eni_fail(EN_EINVAL, "sim",
                            "\"%.200s\" is no flag; flags are written --key=value, and --help "
                            "lists them",
                            word);
        const bool is_help = (dashes == 1 && *flag.name == 'h') || is_named(&flag, "help");
        if (is_help) t->wants_help = 1;
        const bool is_storm =
            is_named(&flag, "storm") && flag.name[flag.length] == '\0'; /* it has no value */
        if (is_storm) t->wants_faults = 1;
        if (is_help || is_storm) continue;
        const bool is_text = is_named(&flag, "strategy") || is_named(&flag, "straggler") ||
                             is_named(&flag, "promise") || is_named(&flag, "net");
        if (!is_text && number_of(&flag) < 0)
            return eni_fail(
                EN_EINVAL, "sim",
                "%.200s: entrain sim has no such flag; in virtual time there is no model, no data, no "
                "device and no file, its length is --steps, and --help lists what there is",
                word);
        const char *behind = flag.name + flag.length;
        flag.value = *behind != '\0' ? behind + (*behind == '=') : i + 1 < argc ? argv[i + 1] : NULL;
        if (flag.value == NULL || (*behind == '\0' && strncmp(flag.value, "--", 2) == 0))
            return eni_fail(EN_EINVAL, "sim", "%.200s needs a value; --help lists the flags", word);
        EN_TRY(take_flag(t, &flag));
        i += *behind == '\0';
    }
    if (t->strategy || t->wants_help) return EN_OK;
    return eni_fail(EN_EINVAL, "sim", "no strategy to try: --strategy=NAME or --strategy=./mine.so");
}

/* "RANK:FACTOR" into factor (workers). */
static en_status parse_straggler(const sim_trial *t, double *factor)
{
    int rank = -1, used = 0;
    double slow = 0;
    for (int r = 0; r < (int)t->workers; r++)
        factor[r] = 1;
    if (!t->straggler) return EN_OK;
    if (sscanf(t->straggler, "%d:%lf%n", &rank, &slow, &used) != 2 || t->straggler[used] || rank < 0 ||
        rank >= (int)t->workers || !(slow > 0 && slow < 1e6))
        return eni_fail(EN_EINVAL, "sim", "--straggler cannot be '%s': RANK:FACTOR with a rank below %g",
                        t->straggler, t->workers);
    factor[rank] = slow;
    return EN_OK;
}

/* ---- the report ---------------------------------------------------------------------------------------- */

typedef struct printer {
    FILE *out;
    double left;
} printer;

static void print_event(void *user, const eni_sim_event *e)
{
    static const char *const types[] = {"", "step", "push", "reply", "coll", "sendrecv", "finished"};
    printer *p = user;
    if (p->left-- <= 0) return;
    fprintf(p->out, "%12.3f us  rank %-4d %-8s", (double)e->at_ns / 1e3, e->rank, types[e->type]);
    switch (e->type) {
    case ENI_SIM_STEP:
        fprintf(p->out, "%" PRIu64 " on micro-batch %" PRIu64 "\n", e->clock, e->version);
        break;
    case ENI_SIM_PUSH:
        fprintf(p->out,
                "bucket %u to store %d, clock %" PRIu64 ", from version %" PRIu64 " onto %" PRIu64 "\n",
                e->bucket, e->peer, e->clock, e->base, e->version);
        break;
    case ENI_SIM_REPLY:
        fprintf(p->out, "bucket %u from store %d, clock %" PRIu64 ", version %" PRIu64 "\n", e->bucket,
                e->peer, e->clock, e->version);
        break;
    case ENI_SIM_COLL:
        fprintf(p->out, "operation %" PRIu64 " of %d ranks, bucket %u\n", e->clock, e->peer, e->bucket);
        break;
    case ENI_SIM_SENDRECV: fprintf(p->out, "bucket %u from rank %d\n", e->bucket, e->peer); break;
    default: fprintf(p->out, "\n");
    }
}

/* What only a strategy with a store has. */
static void report_store(FILE *out, const eni_sim_result *r)
{
    fprintf(out, "staleness   mean %.3f, p50 %" PRIu64 ", p95 %" PRIu64 ", max %" PRIu64,
            eni_histogram_mean(&r->staleness), eni_histogram_quantile(&r->staleness, 0.5),
            eni_histogram_quantile(&r->staleness, 0.95), r->staleness.max);
    if (r->has_theory && r->theory.staleness >= 0) fprintf(out, "; theory %g", r->theory.staleness);
    fprintf(out, "\nclocks      at most %" PRIu64 " ahead, %" PRIu64 " holds", r->clocks_ahead, r->holds);
    if (r->has_theory) fprintf(out, "; theory %g", r->theory.max_clocks_behind);
    fprintf(out, "\n");
}

static void report(FILE *out, const sim_trial *t, const eni_sim_config *c, const eni_quadratic *problem,
                   const eni_sim_result *r)
{
    const double model = (double)problem->problem.count * sizeof(float), batches = (double)c->micro_batches;
    const char *chosen = eni_options_canonical(c->options);
    fprintf(out, "strategy    %s%s%s\n", c->strategy->name, *chosen ? ":" : "", chosen);
    if (t->net != NULL)
        fprintf(out, "network     %g MB/s (%g Mbit/s) a link, %g us of latency\n", t->rate_mb, 8 * t->rate_mb,
                t->latency_us);
    fprintf(out, "loss        %.6g -> %.6g\n", eni_quadratic_loss(problem, problem->init),
            eni_quadratic_loss(problem, c->weights_out));
    fprintf(out, "time        %.3f ms, %.4f ms a step, %" PRIu64 " events\n",
            (double)r->virtual_ns / ENI_MILLI, (double)r->virtual_ns / ENI_MILLI / t->steps, r->events);
    fprintf(out, "payload     %.4f sent, %.4f received, of the model's bytes per step and rank",
            (double)r->sent / model / batches, (double)r->recv / model / batches);
    if (r->has_theory) fprintf(out, "; theory %.4f, %.4f", r->theory.sent, r->theory.recv);
    fprintf(out, "\n");
    if (r->pushes > 0) report_store(out, r);
    fprintf(out, "ranks       %s at the end; steps", r->has_equal_ranks ? "equal" : "different");
    for (int32_t i = 0; i < r->nranks && i < 16; i++)
        fprintf(out, " %" PRIu64, r->rank[i].steps);
    fprintf(out, "%s\nweights     sha256 %s\nlog         sha256 %s\n", r->nranks > 16 ? " .." : "",
            r->weights_sha256, r->log_sha256);
}

/* ---- the run ------------------------------------------------------------------------------------------- */

static en_status try_strategy(const sim_trial *t, eni_hook_guard *hooks, const en_strategy *strategy,
                              const eni_options *options, const eni_quadratic *problem, float *weights,
                              FILE *out)
{
    double factor[1024];
    printer printed = {out, t->events};
    eni_sim_result result;
    EN_TRY(parse_straggler(t, factor));
    const eni_sim_config config = {
        .strategy = strategy,
        .options = options,
        .hooks = hooks,
        .problem = &problem->problem,
        .nranks = (int32_t)t->workers,
        .nshards = (int32_t)t->shards,
        .local_size = (int32_t)t->local_size,
        .seed = (uint64_t)t->seed,
        .micro_batches = (uint64_t)(t->steps * t->workers * t->accumulate),
        .accumulate = (uint64_t)t->accumulate,
        .bucket_cap_bytes = (uint64_t)t->bucket_cap,
        .hyper = {.momentum = (float)t->momentum, .weight_decay = (float)t->weight_decay},
        .schedule = {.kind = ENI_LR_CONSTANT, .base = t->lr},
        .compute = {.mean_ns = (int64_t)(t->step_ms * ENI_MILLI),
                    .noise = t->sigma > 0 ? ENI_SIM_LOGNORMAL : ENI_SIM_CONSTANT,
                    .sigma = t->sigma,
                    .factor = factor},
        .network = {.latency_ns = (int64_t)(t->latency_us * ENI_MICRO), .bytes_per_s = t->rate_mb * 1e6},
        .trace = t->events > 0 ? print_event : NULL,
        .trace_user = &printed,
        .weights_out = weights};
    const en_status st = eni_sim_run(&config, &result);
    if (st == EN_OK) report(out, t, &config, problem, &result);
    eni_sim_result_fini(&result);
    return st;
}

/* Every seed is tried, so that one line says how many fail. */
static en_status try_faults(const sim_trial *t, eni_hook_guard *hooks, const en_strategy *strategy,
                            const eni_options *options, FILE *out)
{
    enum { SHOWN = 5 };
    const int promise = eni_promise_parse(t->promise, strategy->name);
    eni_fault_stats f = {0};
    en_status first = EN_OK;
    uint64_t failed = 0;
    if (promise < 0)
        return eni_fail(EN_EINVAL, "sim", "--promise cannot be '%s': ends, may-drop, exact or at-once",
                        t->promise);
    const int64_t begin = eni_now_ns();
    for (uint64_t i = 0; i < (uint64_t)t->seeds; i++) {
        const en_status st = eni_fault_test(hooks, strategy, options, t->strategy, (eni_promise)promise,
                                            (uint64_t)t->seed + i, &f);
        if (st == EN_EINVAL && f.messages == 0) return st; /* refused before it ran: no seed is to blame */
        failed += st != EN_OK;
        if (first == EN_OK) first = st;
        if (failed == SHOWN) eni_log_set_level(-1); /* the others are counted */
    }
    eni_log_set_level(ENI_LOG_INFO);
    fprintf(out,
            "%s: %.0f seeds, %" PRIu64 " failed, %.1f s; messages %" PRIu64 ", dropped %" PRIu64
            ", cut off %" PRIu64 ", doubled %" PRIu64 ", late %" PRIu64 ", of an older life %" PRIu64
            "; resent %" PRIu64 ", replays %" PRIu64 "; states saved %" PRIu64 ", stores died %" PRIu64
            ", ranks died %" PRIu64 "\n",
            t->strategy, t->seeds, failed, (double)(eni_now_ns() - begin) * 1e-9, f.messages, f.dropped,
            f.cut, f.doubled, f.delayed, f.stale, f.resends, f.replays, f.saves, f.store_deaths,
            f.rank_deaths);
    return first;
}

/* A plugin ends this process. */
static void tell_end(void *user, const char *sentence)
{
    (void)user;
    eni_log_set_level(ENI_LOG_INFO); /* a storm shows some of its seeds only */
    eni_error("sim", "%s", sentence);
}

en_status eni_sim_cli(int argc, char **argv, const char *plugin_folder, FILE *out)
{
    sim_trial t = {0};
    const en_strategy *strategy;
    eni_options *options = NULL;
    eni_quadratic problem = {0};
    float *weights = NULL;
    en_status st = EN_OK;
    EN_TRY(parse(&t, argc, argv));
    if (t.wants_help) {
        print_help(out);
        return EN_OK;
    }
    const eni_hook_guard_config guard = {(int64_t)(t.hook_timeout * ENI_SECOND), tell_end, NULL};
    eni_hook_guard *hooks = eni_hook_guard_begin(&guard);
    EN_TRY_GOTO(eni_plugin_find(plugin_folder, t.strategy, &strategy), free_all);
    EN_TRY_GOTO(eni_options_new(strategy, eni_spec_options(t.strategy), &options), free_all);
    if (t.wants_faults) {
        st = try_faults(&t, hooks, strategy, options, out);
        goto free_all;
    }
    EN_TRY_GOTO(eni_quadratic_init(&problem, (uint64_t)t.elements, (uint64_t)t.seed), free_all);
    weights = eni_alloc_array(problem.problem.count, sizeof *weights);
    EN_TRY_GOTO(weights ? EN_OK : EN_ENOMEM, free_all);
    st = try_strategy(&t, hooks, strategy, options, &problem, weights, out);
free_all:
    eni_hook_guard_end(hooks);
    eni_free(weights);
    eni_quadratic_fini(&problem);
    eni_options_free(options);
    return st;
}
