/* schedule.c - draws a run from a seed (world, speeds, links, batches, rates, options), runs the plugin in it on the
 * virtual host, and records what happened. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "conform/conform.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/rng.h"
#include "core/try.h"
#include "runtime/spec/buckets.h"

enum {
    COUNT = 176,     /* elements: of three tensors, in buckets of at most .. */
    CAP_BYTES = 256, /* .. ENI_PAPER_ELEMENTS elements */
    TENSORS = 3,
};
_Static_assert(CAP_BYTES == ENI_PAPER_ELEMENTS * sizeof(float), "a partition fits an eni_paper_vec");

/* A schedule, its problem, and the recording of its run. */
typedef struct trial {
    eni_rng_key key;
    uint64_t drawn; /* numbers so far */
    en_model_tensor tensors[TENSORS];
    float init[COUNT], model[COUNT];
    eni_sim_problem problem;
    eni_slowdown slow[ENI_PAPER_RANKS];
    int64_t leave_ns[ENI_PAPER_RANKS];
    eni_sim_config sim;
    eni_net_link link;
    const char *options, *reference_options;
    eni_buckets *buckets;
    eni_recording recording;
    eni_sim_event *event;
    float **seen;
    uint32_t event_room, seen_room;
    uint64_t begun[ENI_PAPER_RANKS]; /* 1 + the event of its last STEP */
    en_status status;
} trial;

/* ---- the problem: a noisy quadratic; micro-batches of 1 to 8 samples ---- */

static uint64_t samples_of(void *user, uint64_t micro_batch)
{
    const trial *t = user;
    const eni_rng_key key = {t->key.seed, ENI_RNG_TEST, 1, micro_batch};
    return 1 + eni_rng_below(&key, 0, 8);
}

static float gradient_at(void *user, uint64_t micro_batch, uint64_t element, float x)
{
    const trial *t = user;
    const eni_rng_key key = {t->key.seed, ENI_RNG_TEST, 2, micro_batch};
    const double curvature = 0.5 + (double)(element % 11) / 10, noise = eni_rng_unit(&key, element) - 0.5;
    return (float)(curvature * ((double)x - 0.25 - noise));
}

/* The virtual host computes a gradient: these are the weights with which the step begins. */
static en_status gradient(void *user, int rank, uint64_t micro_batch, const float *param, float *grad)
{
    trial *t = user;
    if (t->status != EN_OK) return t->status; /* its STEP was not recorded */
    float *seen = eni_alloc_array(COUNT, sizeof *seen);
    if (seen == NULL) return EN_ENOMEM;
    memcpy(seen, param, COUNT * sizeof *seen);
    t->seen[t->begun[rank] - 1] = seen;
    for (uint64_t e = 0; e < COUNT; e++)
        grad[e] = gradient_at(user, micro_batch, e, param[e]);
    return EN_OK;
}

/* ---- the draw ---- */

static uint64_t below(trial *t, uint64_t bound)
{
    return eni_rng_below(&t->key, t->drawn++, bound);
}

static double between(trial *t, double lo, double hi)
{
    return lo + (hi - lo) * eni_rng_unit(&t->key, t->drawn++);
}

/* Options that the plugin does not take are left at its defaults, and counted. */
static void draw_options(trial *t, const eni_conform_config *c, eni_judgement *judgement)
{
    uint64_t n = 0;
    while (c->reference->options[n] != NULL)
        n++;
    const char *options = c->reference->options[below(t, n)];
    const bool is_given = c->options != NULL && c->options[0] != '\0';
    if (is_given) options = c->options;
    const bool is_taken = is_given || eni_options_check(c->strategy, options) == EN_OK;
    judgement->defaults += !is_taken;
    t->options = t->reference_options = is_taken ? options : "";
    if (c->reference_options != NULL) t->reference_options = c->reference_options;
}

static void draw_world(trial *t, const eni_reference *reference)
{
    eni_recording *r = &t->recording;
    const int least = reference->least_ranks > 0 ? reference->least_ranks : 1;
    r->per_host = reference->flags & ENI_PAPER_HOSTS ? 1 + (int)below(t, 3) : 1;
    r->nranks = least + (int)below(t, (uint64_t)(ENI_PAPER_RANKS - least + 1));
    if (eni_paper_is(&(eni_paper){.options = t->reference_options}, "graph", "exponential", "ring"))
        r->nranks = 2 << below(t, 3);
    if (r->nranks < r->per_host) r->per_host = 1;
    r->nranks -= r->nranks % r->per_host;
    int size = 1;
    for (int i = 0; i < r->nranks; i++) /* groups of neighbours */
        r->group[i] = i;
    if (!(reference->flags & ENI_PAPER_GROUPS)) return;
    if (reference->flags & ENI_PAPER_UNEQUAL) {
        for (int i = 1; i < r->nranks; i++)
            if (below(t, 2) == 0) r->group[i] = r->group[i - 1];
        return;
    }
    while (r->nranks % (size = 1 + (int)below(t, (uint64_t)r->nranks)) != 0)
        ;
    for (int i = 0; i < r->nranks; i++)
        r->group[i] = i - i % size;
}

/* Times: a law for all, often one straggler, a network; in some runs a rank that leaves. */
static void draw_times(trial *t)
{
    eni_sim_config *sim = &t->sim;
    static const eni_law laws[] = {{.kind = ENI_LAW_FIXED, .mean_ns = ENI_MILLI},
                                   {.kind = ENI_LAW_EXPONENTIAL, .mean_ns = ENI_MILLI},
                                   {.kind = ENI_LAW_LOGNORMAL, .mean_ns = ENI_MILLI, .spread = 0.6},
                                   {.kind = ENI_LAW_PARETO, .mean_ns = ENI_MILLI, .spread = 2.2}};
    static const int64_t latencies[] = {0, 20 * ENI_MICRO, ENI_MILLI};
    static const double rates[] = {0, 1e9, 2e6};
    sim->compute = (eni_sim_compute){.laws = &laws[below(t, 4)], .nlaws = 1, .slow = t->slow};
    for (int i = 0; i < sim->nranks; i++)
        if (below(t, 4) == 0)
            t->slow[sim->compute.nslow++] =
                (eni_slowdown){.kind = ENI_SLOW_ALWAYS, .lo = i, .hi = i, .factor = between(t, 1, 6)};
    t->link.delay_ns = latencies[below(t, 3)];
    t->link.bytes_per_s = rates[below(t, 3)];
    sim->network = (eni_sim_network){.links = &t->link, .nlinks = 1};
    if (!t->recording.claims || sim->nranks == 1 || below(t, 3) > 0) return;
    for (int i = 0; i < sim->nranks; i++)
        t->leave_ns[i] = INT64_MAX;
    const uint64_t leaver = 1 + below(t, (uint64_t)sim->nranks - 1);
    t->leave_ns[leaver] = (int64_t)between(t, ENI_MILLI, 12 * ENI_MILLI);
    sim->leave_ns = t->leave_ns;
}

static void draw_rates(trial *t, const eni_reference *reference)
{
    static const float momenta[] = {0, 0.5f, 0.9f};
    eni_sim_config *sim = &t->sim;
    eni_paper_rates *rates = &t->recording.rates;
    for (uint64_t i = 0; i < sim->micro_batches; i++)
        sim->schedule.total += samples_of(t, i);
    if (reference->flags & ENI_PAPER_SCHEDULE && below(t, 2) == 0) sim->schedule.kind = ENI_LR_LINEAR;
    if (reference->flags & ENI_PAPER_MOMENTUM) {
        sim->hyper.momentum = momenta[below(t, 3)];
        sim->hyper.nesterov = sim->hyper.momentum > 0 && below(t, 2) == 0;
        sim->hyper.weight_decay = below(t, 2) == 0 ? 1e-3f : 0;
    }
    /* Stable at eight stale workers: descent must forget rounding faster than it adds up. */
    sim->schedule.base = between(t, 0.02, 0.04) * (1 - (double)sim->hyper.momentum);
    *rates = (eni_paper_rates){.lr = sim->schedule.base,
                               .momentum = (double)sim->hyper.momentum,
                               .decay = (double)sim->hyper.weight_decay,
                               .is_nesterov = sim->hyper.nesterov != 0,
                               .falls = sim->schedule.kind == ENI_LR_LINEAR,
                               .total = sim->schedule.total};
}

static void draw_problem(trial *t)
{
    const uint64_t first = 16 * (1 + below(t, 5)), second = 16 * (1 + below(t, 4));
    const uint64_t edge[TENSORS + 1] = {0, first, first + second, COUNT};
    for (int i = 0; i < TENSORS; i++)
        t->tensors[i] =
            (en_model_tensor){.name = {(char)('a' + i)}, .offset = edge[i], .count = edge[i + 1] - edge[i]};
    for (uint64_t e = 0; e < COUNT; e++)
        t->init[e] = (float)between(t, -0.5, 0.5);
    t->problem = (eni_sim_problem){.count = COUNT,
                                   .tensors = t->tensors,
                                   .ntensors = TENSORS,
                                   .init = t->init,
                                   .samples = samples_of,
                                   .grad = gradient,
                                   .user = t};
}

/* ---- the recording ---- */

static void record(void *user, const eni_sim_event *event)
{
    trial *t = user;
    eni_recording *r = &t->recording;
    const uint32_t n = (uint32_t)r->nevents + 1;
    if (t->status == EN_OK) t->status = eni_grow((void **)&t->event, &t->event_room, n, sizeof *t->event);
    if (t->status == EN_OK) t->status = eni_grow((void **)&t->seen, &t->seen_room, n, sizeof(float *));
    if (t->status != EN_OK) return;
    t->event[r->nevents] = *event;
    t->seen[r->nevents++] = NULL;
    if (event->type == ENI_SIM_STEP) t->begun[event->rank] = r->nevents;
}

static void describe(const trial *t, uint64_t seed, char text_out[ENI_SCHEDULE_TEXT])
{
    const eni_sim_config *sim = &t->sim;
    const int hosts = sim->nranks / t->recording.per_host;
    int groups = 0;
    for (int i = 0; i < sim->nranks; i++)
        groups += t->recording.group[i] == i;
    int n = snprintf(text_out, ENI_SCHEDULE_TEXT,
                     "seed %" PRIu64 ": %s%s%s, %d ranks, %d shards, %u buckets, %" PRIu64 " micro-batches",
                     seed, sim->strategy->name, t->options[0] != '\0' ? ":" : "", t->options, sim->nranks,
                     sim->nshards, t->buckets->n, sim->micro_batches);
    if (hosts < sim->nranks) n += snprintf(text_out + n, ENI_SCHEDULE_TEXT - (size_t)n, ", %d hosts", hosts);
    if (groups < sim->nranks)
        n += snprintf(text_out + n, ENI_SCHEDULE_TEXT - (size_t)n, ", %d groups", groups);
    if (sim->leave_ns != NULL) n += snprintf(text_out + n, ENI_SCHEDULE_TEXT - (size_t)n, ", a rank leaves");
    snprintf(text_out + n, ENI_SCHEDULE_TEXT - (size_t)n, ", rate %.4g%s, momentum %g%s", sim->schedule.base,
             t->recording.rates.falls ? " falling" : "", t->recording.rates.momentum,
             t->recording.rates.is_nesterov ? " (Nesterov)" : "");
}

static void draw(trial *t, const eni_conform_config *c, eni_judgement *judgement)
{
    const uint32_t flags = c->strategy->flags;
    const bool has_store = (flags & EN_STORE_ON_SERVERS) != 0;
    eni_recording *r = &t->recording;
    draw_options(t, c, judgement);
    draw_world(t, c->reference);
    draw_problem(t);
    /* One draw a statement: the order within an expression is the compiler's. */
    r->nshards = has_store ? 1 + (int)below(t, 3) : 1;
    r->micro_batches = (uint64_t)r->nranks * (6 + below(t, 20));
    r->micro_batches += below(t, (uint64_t)r->nranks); /* the last round of a fixed assignment is ragged */
    r->claims = has_store && !(flags & EN_SYNCHRONOUS) && below(t, 4) > 0;
    t->sim = (eni_sim_config){.strategy = c->strategy,
                              .hooks = c->hooks,
                              .problem = &t->problem,
                              .nranks = r->nranks,
                              .nshards = r->nshards,
                              .local_size = flags & EN_LEADERS_ARE_CLIENTS ? r->per_host : 0,
                              .groups = flags & EN_USES_GROUPS ? r->group : NULL,
                              .seed = t->key.seed,
                              .micro_batches = r->micro_batches,
                              .assign = r->claims ? ENI_SIM_CLAIM : ENI_SIM_FIXED,
                              .bucket_cap_bytes = CAP_BYTES,
                              .trace = record,
                              .trace_user = t,
                              .traces_taken = true,
                              .max_events = 1000000,
                              .weights_out = t->model};
    draw_times(t);
    draw_rates(t, c->reference);
    r->samples = samples_of;
    r->gradient = gradient_at;
    r->user = t;
    r->count = COUNT;
    r->init = t->init;
}

/* A run that failed: how it ended is the finding, unless it went astray before. */
static void judge_failure(en_status status, eni_judgement *judgement, uint64_t event)
{
    char why[ENI_FINDING_TEXT - 64] = "";
    if (!judgement->agrees) return;
    eni_log_last_error(why, sizeof why);
    judgement->agrees = false;
    judgement->event = event;
    snprintf(judgement->finding, sizeof judgement->finding, "the run ended with %s: %s",
             en_status_str(status), why);
}

static en_status run(trial *t, const eni_conform_config *c, uint64_t seed, char *schedule_out,
                     eni_judgement *judgement)
{
    eni_options *options = NULL;
    eni_sim_result result;
    eni_recording *r = &t->recording;
    draw(t, c, judgement);
    EN_TRY(eni_options_new(c->strategy, t->options, &options));
    t->sim.options = options;
    en_status st = eni_buckets_new(t->tensors, TENSORS, COUNT, CAP_BYTES, &t->buckets);
    if (st == EN_OK) {
        describe(t, seed, schedule_out);
        const en_status ended = eni_sim_run(&t->sim, &result);
        r->has_ended = ended == EN_OK;
        r->model = r->has_ended ? t->model : NULL;
        r->nbuckets = t->buckets->n;
        r->bucket = t->buckets->bucket;
        r->event = t->event;
        r->seen = (const float *const *)t->seen;
        const bool is_refused =
            ended == EN_EINVAL && r->nevents == 0 && c->options != NULL; /* with these ranks */
        st = t->status != EN_OK                                      ? t->status
             : ended == EN_ENOMEM || ended == EN_EINTR || is_refused ? ended
                                                                     : EN_OK;
        if (st == EN_OK) eni_judge(r, c->reference, t->reference_options, judgement);
        if (st == EN_OK && ended != EN_OK) judge_failure(ended, judgement, r->nevents);
        eni_sim_result_fini(&result);
    }
    eni_options_free(options);
    return st;
}

en_status eni_conform_run(const eni_conform_config *config, uint64_t seed,
                          char schedule_out[ENI_SCHEDULE_TEXT], eni_judgement *judgement)
{
    trial *t = eni_alloc(sizeof *t);
    if (t == NULL) return EN_ENOMEM;
    t->key = (eni_rng_key){.seed = seed, .purpose = ENI_RNG_TEST};
    schedule_out[0] = '\0';
    const en_status st = run(t, config, seed, schedule_out, judgement);
    for (uint64_t i = 0; i < t->recording.nevents; i++)
        eni_free(t->seen[i]);
    eni_free(t->seen);
    eni_free(t->event);
    eni_buckets_free(t->buckets);
    eni_free(t);
    return st;
}

const eni_reference *eni_reference_find(const char *name)
{
    for (const eni_reference *r = eni_paper_servers; r->name != NULL; r++)
        if (strcmp(r->name, name) == 0) return r;
    for (const eni_reference *r = eni_paper_rounds; r->name != NULL; r++)
        if (strcmp(r->name, name) == 0) return r;
    return NULL;
}
