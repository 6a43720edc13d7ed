/* fault_test.c - one strategy under faults drawn from a seed, and the check of its promises (faults.h). */
#include "runtime/sim/faults/faults.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/try.h"
#include "runtime/sim/skewed.h"
#include "runtime/sim/sim.h"

enum { TENSORS_MAX = 3, RANKS_MAX = 6, SHARDS_MAX = 2, STREAM = 0x7e3e57 };

/* The state of a push to a partition. */
enum { UNKNOWN = 0, CALLED, ANSWERED, ORPHANED };

typedef struct trial {
    const en_strategy *strategy;
    eni_hook_guard *hooks;
    const eni_options *options;
    eni_promise promise;
    eni_rng_key key;
    uint64_t draws;
    int32_t ranks, shards, tensors;
    uint64_t batches, piece, count; /* piece: elements of a partition; count: of the vector */
    en_model_tensor tensor[TENSORS_MAX];
    float *init, *weights;
    uint8_t *told; /* (buckets, shards, batches) */
    uint64_t seq[RANKS_MAX][TENSORS_MAX][SHARDS_MAX];
    bool has_finished[RANKS_MAX];
    double bound; /* infinity: none */
    eni_fault_plan plan;
    eni_sim_config config;
    eni_net_link link;
    eni_fault_stats figures; /* of the last run with faults */
    const char *broken;      /* the first promise that was not kept */
} trial;

static uint64_t draw(trial *t, uint64_t below)
{
    return eni_rng_below(&t->key, t->draws++, below);
}

/* Off in half of the cases, so that each fault also occurs alone. */
static double draw_share(trial *t, double most)
{
    return draw(t, 2) ? 0 : most * eni_rng_unit(&t->key, t->draws++);
}

static void broken(trial *t, const char *what)
{
    if (t->broken == NULL) t->broken = what;
}

/* ---- the oracle ---------------------------------------------------------------------------------------- */

/* Buckets are numbered from the end of the vector. */
static uint64_t element_of(const trial *t, uint32_t bucket, int32_t store, uint64_t micro_batch)
{
    const uint64_t tensor = (uint64_t)t->tensors - 1 - bucket;
    return (tensor * (uint64_t)t->shards + (uint64_t)store) * t->piece + micro_batch;
}

static uint64_t one_sample(void *user, uint64_t micro_batch)
{
    (void)user, (void)micro_batch;
    return 1;
}

static en_status one_hot(void *user, int rank, uint64_t micro_batch, const float *param, float *grad)
{
    const trial *t = user;
    (void)rank, (void)param;
    memset(grad, 0, t->count * sizeof *grad);
    for (uint32_t b = 0; b < (uint32_t)t->tensors; b++)
        for (int32_t k = 0; k < t->shards; k++)
            grad[element_of(t, b, k, micro_batch)] = -1;
    return EN_OK;
}

static uint8_t *told_of(trial *t, uint32_t bucket, int32_t store, uint64_t micro_batch)
{
    return &t->told[((uint64_t)bucket * (uint64_t)t->shards + (uint64_t)store) * t->batches + micro_batch];
}

/* On an answer: no client that still works may be more than `bound` calls behind. */
static void check_bound(trial *t, const eni_news *n)
{
    const int32_t next = t->config.local_size > 0 ? t->config.local_size : 1; /* of leaders, or of ranks */
    if (t->plan.rank_deaths > 0) return; /* clocks restart: only the store's own count is checked */
    for (int32_t r = 0; r < t->ranks; r += next)
        if (!t->has_finished[r] && (double)n->seq > (double)t->seq[r][n->bucket][n->store] + t->bound)
            broken(t, "a rank ran further ahead than the bound");
}

static void listen(void *user, const eni_news *n)
{
    trial *t = user;
    if (n->type == ENI_NEWS_FINISHED) {
        t->has_finished[n->rank] = true;
        return;
    }
    if (n->type == ENI_NEWS_CALLED) t->seq[n->rank][n->bucket][n->store] = n->seq;
    if (n->type == ENI_NEWS_ANSWERED) check_bound(t, n);
    if (n->micro_batch >= t->batches) return; /* a rank without a batch takes part with 0 samples */
    uint8_t *told = told_of(t, n->bucket, n->store, n->micro_batch);
    *told = n->type == ENI_NEWS_CALLED ? CALLED : n->type == ENI_NEWS_ANSWERED ? ANSWERED : ORPHANED;
}

/* 1 / (the number of pushes in a step). */
static bool is_share(const trial *t, float value)
{
    const double pushes = 1 / (double)value;
    if (t->promise == ENI_PROMISE_AT_ONCE) return value == 1;
    if (t->strategy->flags & EN_SYNCHRONOUS) return value == 1.0f / (float)t->ranks; /* a power of two */
    return pushes > 0.99 && fabs(pushes - round(pushes)) < 1e-3;
}

static void check_weights(trial *t, const eni_sim_result *result)
{
    double sum = 0;
    uint64_t applied = 0;
    for (uint32_t b = 0; b < (uint32_t)t->tensors; b++)
        for (int32_t k = 0; k < t->shards; k++)
            for (uint64_t m = 0; m < t->batches; m++) {
                const float value = t->weights[element_of(t, b, k, m)];
                const int told = *told_of(t, b, k, m);
                sum += value;
                applied += value != 0;
                if (value != 0 && told == UNKNOWN) broken(t, "a push was applied that was never made");
                if (value != 0 && !is_share(t, value)) broken(t, "a push was applied more than once");
                if (value == 0 && told == ANSWERED && t->promise >= ENI_PROMISE_EXACT)
                    broken(t, "a push that was answered is lost");
            }
    if (fabs(sum - (double)result->updates) > 1e-3)
        broken(t, "the sum of the weights is not the number of steps");
    if (applied != t->figures.applied) broken(t, "the store's count of applied samples is wrong");
}

/* ---- drawn from the seed ------------------------------------------------------------------------------- */

static void draw_faults(trial *t)
{
    const bool may_die = !(t->strategy->flags & (EN_SYNCHRONOUS | EN_LEADERS_ARE_CLIENTS));
    t->plan = (eni_fault_plan){
        .figures = &t->figures,
        .quiet_ns = (int64_t)(2 + draw(t, 18)) * ENI_MILLI,
        .limit_ns = 3 * ENI_SECOND,
        .drop = draw_share(t, 0.4),
        .twice = draw_share(t, 0.4),
        .slow = draw_share(t, 0.5),
        .slow_ns = (int64_t)(1 + draw(t, 4000)) * ENI_MICRO,
        .resend_ns = (int64_t)(200 + draw(t, 1500)) * ENI_MICRO,
        .save_ns = (int64_t)(300 + draw(t, 5000)) * ENI_MICRO,
        .write_ns = (int64_t)(1 + draw(t, 2000)) * ENI_MICRO,
        .outage_ns = (int64_t)(100 + draw(t, 5000)) * ENI_MICRO,
        .cuts = draw(t, 2) ? (int32_t)draw(t, 4) : 0,
        .store_deaths = draw(t, 4) ? (int32_t)draw(t, 5) : 0,
        .rank_deaths = may_die && draw(t, 2) ? (int32_t)draw(t, 4) : 0,
        .steps_at_once = t->promise == ENI_PROMISE_AT_ONCE,
        .news = listen,
        .user = t,
    };
}

static void draw_run(trial *t)
{
    const bool is_even = (t->strategy->flags & EN_SYNCHRONOUS) != 0;
    t->ranks = is_even ? 2 << draw(t, 2) : 2 + (int32_t)draw(t, RANKS_MAX - 1);
    t->shards = 1 + (int32_t)draw(t, SHARDS_MAX);
    t->tensors = 1 + (int32_t)draw(t, TENSORS_MAX);
    t->batches = (uint64_t)t->ranks * (3 + draw(t, 10));
    t->piece = eni_round_up(t->batches, ENI_LINE_FLOATS);
    t->count = t->piece * (uint64_t)t->shards * (uint64_t)t->tensors;
    for (int i = 0; i < t->tensors; i++) {
        const uint64_t each = t->piece * (uint64_t)t->shards;
        t->tensor[i] = (en_model_tensor){.name = "t", .offset = each * (uint64_t)i, .count = each};
    }
    static const eni_law law = {ENI_LAW_LOGNORMAL, ENI_MILLI, .spread = 0.5};
    t->link = (eni_net_link){.delay_ns = (int64_t)(5 + draw(t, 100)) * ENI_MICRO};
    t->config = (eni_sim_config){
        .strategy = t->strategy,
        .options = t->options,
        .hooks = t->hooks,
        .nranks = t->ranks,
        .nshards = t->shards,
        .local_size = t->strategy->flags & EN_LEADERS_ARE_CLIENTS ? t->ranks / 2 : 0,
        .seed = t->key.seed,
        .micro_batches = t->batches,
        .bucket_cap_bytes = t->piece * (uint64_t)t->shards * sizeof(float),
        .schedule = {.kind = ENI_LR_CONSTANT, .base = 1},
        .compute = {.laws = &law, .nlaws = 1},
        .network = {.links = &t->link, .nlinks = 1},
        .max_events = 5000000,
        .faults = &eni_faults,
        .faults_config = &t->plan,
        .weights_out = t->weights,
    };
}

/* ---- the runs ------------------------------------------------------------------------------------------ */

static void add_figures(eni_fault_stats *into, const eni_fault_stats *from)
{
    uint64_t *to = (uint64_t *)into;
    const uint64_t *add = (const uint64_t *)from;
    for (size_t i = 0; i < sizeof *into / sizeof *to; i++)
        to[i] += add[i];
}

static en_status run_oracle(trial *t, eni_fault_stats *figures)
{
    const eni_sim_problem problem = {.count = t->count,
                                     .tensors = t->tensor,
                                     .ntensors = (uint32_t)t->tensors,
                                     .init = t->init,
                                     .samples = one_sample,
                                     .grad = one_hot,
                                     .user = t};
    eni_sim_result result;
    t->config.problem = &problem;
    t->config.weights_out = t->weights;
    const en_status st = eni_sim_run(&t->config, &result);
    add_figures(figures, &t->figures);
    if (st == EN_OK && t->promise >= ENI_PROMISE_MAY_DROP) check_weights(t, &result);
    if (st == EN_OK && (double)result.clocks_ahead > t->bound)
        broken(t, "the store answered a rank further ahead than the bound");
    eni_sim_result_fini(&result);
    return st;
}

/* The same run twice, with faults and without. */
static en_status run_twice(trial *t, eni_fault_stats *figures)
{
    eni_skewed problem = {0};
    eni_sim_result faulty, undisturbed;
    EN_TRY(eni_skewed_init(&problem, t->count < 48 ? 48 : t->count, t->key.seed, (uint64_t)t->ranks));
    t->plan.news = NULL;
    t->config.problem = &problem.problem;
    t->config.weights_out = NULL;
    t->config.hyper = (eni_hyper){.momentum = 0.9f, .nesterov = 1, .weight_decay = 1e-3f};
    t->config.schedule.base = 0.02;
    en_status st = eni_sim_run(&t->config, &faulty);
    add_figures(figures, &t->figures);
    t->config.faults = NULL;
    if (st == EN_OK) {
        st = eni_sim_run(&t->config, &undisturbed);
        if (st == EN_OK && strcmp(faulty.weights_sha256, undisturbed.weights_sha256) != 0)
            broken(t, "the weights are not those of the undisturbed run");
        if (st == EN_OK && !faulty.has_equal_ranks) broken(t, "the ranks end with different weights");
        eni_sim_result_fini(&undisturbed);
    }
    eni_sim_result_fini(&faulty);
    eni_skewed_fini(&problem);
    return st;
}

static en_status open_trial(trial *t)
{
    t->bound = INFINITY;
    draw_run(t);
    draw_faults(t);
    for (const en_option *o = t->strategy->options; o != NULL && o->size; o = eni_option_next(o))
        if (strcmp(o->key, "bound") == 0 && eni_options_num(t->options, "bound", t->ranks) >= 0)
            t->bound = eni_options_num(t->options, "bound", t->ranks);
    t->plan.seed = t->key.seed;
    t->init = eni_alloc_array(t->count, sizeof(float));
    t->weights = eni_alloc_array(t->count, sizeof(float));
    t->told = eni_alloc_array(t->batches * (uint64_t)t->tensors, (size_t)t->shards);
    return t->init != NULL && t->weights != NULL && t->told != NULL ? EN_OK : EN_ENOMEM;
}

static const char *const promises[] = {"ends", "may-drop", "exact", "at-once"};

eni_promise eni_promise_of(const char *strategy_name)
{
    static const struct {
        const char *name;
        eni_promise promise;
    } of[] = {{"ps-sync", ENI_PROMISE_EXACT},
              {"ps-async", ENI_PROMISE_AT_ONCE},
              {"ssp", ENI_PROMISE_AT_ONCE},
              {"dc-asgd", ENI_PROMISE_AT_ONCE},
              {"ringmaster", ENI_PROMISE_MAY_DROP}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (strcmp(strategy_name, of[i].name) == 0) return of[i].promise;
    return ENI_PROMISE_ENDS;
}

en_status eni_fault_test(eni_hook_guard *hooks, const en_strategy *strategy, const eni_options *options,
                         const char *spec, eni_promise promise, uint64_t seed, eni_fault_stats *figures)
{
    trial t = {.strategy = strategy,
               .hooks = hooks,
               .options = options,
               .promise = promise,
               .key = {.seed = seed, .purpose = ENI_RNG_SIM, .rank = STREAM}};
    const uint64_t before = figures->messages;
    en_status st = open_trial(&t);
    if (st == EN_OK) st = run_oracle(&t, figures);
    if (st == EN_OK && t.broken == NULL && strategy->flags & EN_SYNCHRONOUS && isinf(t.bound))
        st = run_twice(&t, figures);
    if (st == EN_OK && t.broken != NULL) st = EN_EBUG;
    const bool is_refused = st == EN_EINVAL && figures->messages == before; /* no seed is to blame */
    if (st != EN_OK && !is_refused)
        eni_error("storm", "%s; repeat: entrain sim --storm --seed=%" PRIu64 " --strategy=%s --promise=%s",
                  t.broken != NULL ? t.broken : en_status_str(st), seed, spec, promises[promise]);
    eni_free(t.init);
    eni_free(t.weights);
    eni_free(t.told);
    return st;
}
