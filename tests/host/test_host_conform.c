/* test_host_conform.c - is a strategy its paper on real ranks, too? Threads with shared memory and sockets (sockets.h) run each
 * built-in strategy that has a reference. Who computed what, what arrived when and what the store made of it is recorded, and
 * judged as a run in virtual time is (conform/judge.c).
 *
 * Several threads record. A call and what follows from it, its answers and what it has changed, are one group of events; the
 * groups stand in the order in which they began, so that of each partition and of each rank the log is in order. */
#include <pthread.h>

#include "conform/conform.h"
#include "runtime/store/store_impl.h"
#include "tests/host/sockets.h"
#include "tests/strategies/sim_rig.h"

/* Promise: Every built-in strategy that has a reference is its paper's on real ranks: three schedules of threads and sockets. */

enum { STEPS = 14, SCHEDULES = 3, COUNT = 176, CAP_BYTES = ENI_PAPER_ELEMENTS * sizeof(float) };

typedef struct entry {
    uint64_t group, place, at; /* 1, 2, ..; in its group: call, answers, outcome; as recorded */
    eni_sim_event event;
    float *seen;
} entry;

typedef struct trial {
    rig r;
    const en_strategy *real; /* the hooks of r.config.strategy record, and call its */
    en_strategy wrapped;
    const char *options;
    int32_t group[ENI_PAPER_RANKS];
    pthread_mutex_t lock;
    int64_t begin_ns;
    entry *log;
    uint64_t n, room, ngroups;
    uint64_t current[SOCKETS_SHARDS]; /* the group of the event that a shard handles */
    int32_t finished[SOCKETS_SHARDS]; /* the rank whose end a shard tells its partitions */
    uint64_t begun[SOCKETS_RANKS];    /* the last STEP in log */
} trial;

static trial *t; /* the present one: hooks know no other */

/* ---- the recording ---- */

/* group 0: the next one. Returns it. */
static uint64_t add(uint64_t group, uint64_t place, eni_sim_event event)
{
    pthread_mutex_lock(&t->lock);
    if (t->n == t->room) {
        t->room = t->room > 0 ? 2 * t->room : 1024;
        t->log = realloc(t->log, t->room * sizeof *t->log);
        assert_non_null(t->log);
    }
    if (group == 0) group = ++t->ngroups;
    event.at_ns = eni_now_ns() - t->begin_ns;
    if (event.type == ENI_SIM_STEP) t->begun[event.rank] = t->n;
    t->log[t->n] = (entry){.group = group, .place = place, .at = t->n, .event = event};
    t->n++;
    pthread_mutex_unlock(&t->lock);
    return group;
}

static void note_step(void *user, const eni_sim_event *event)
{
    (void)user;
    add(0, 0, *event);
}

static en_status note_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    eni_sim_event event = {.type = ENI_SIM_PUSH,
                           .rank = msg->src,
                           .peer = (int32_t)part->shard,
                           .bucket = part->bucket,
                           .clock = msg->clock,
                           .version = part->version,
                           .base = msg->base_version};
    en_status st;
    t->current[part->shard] = add(0, 0, event);
    if (t->real->on_push != NULL) {
        st = t->real->on_push(store, state, part, msg);
    } else {
        st = store->absorb(store, part, msg, 1);
        if (st == EN_OK) st = store->step(store, part);
    }
    event.type = ENI_SIM_TAKEN;
    event.version = part->version;
    event.weight = eni_store_last_weight((const eni_store *)store);
    add(t->current[part->shard], 2, event);
    return st;
}

static int note_pull(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    const int verdict =
        t->real->on_pull != NULL ? t->real->on_pull(store, state, part, msg) : EN_REPLY_WEIGHTS;
    if (verdict < EN_HOLD)
        add(t->current[part->shard], 1,
            (eni_sim_event){.type = ENI_SIM_REPLY,
                            .rank = msg->src,
                            .peer = (int32_t)part->shard,
                            .bucket = part->bucket,
                            .clock = msg->clock,
                            .version = part->version});
    return verdict;
}

/* Once for each partition of the shard, between which it answers. */
static void note_member(en_store *store, void *state, const en_partition *part, int32_t who, int event)
{
    if (event == EN_MEMBER_FINISHED && t->finished[part->shard] != who) {
        t->finished[part->shard] = who;
        t->current[part->shard] =
            add(0, 0, (eni_sim_event){.type = ENI_SIM_FINISHED, .rank = who, .peer = (int32_t)part->shard});
    }
    if (t->real->on_member != NULL) t->real->on_member(store, state, part, who, event);
}

static void wrap(const en_strategy *strategy)
{
    t->real = strategy;
    t->wrapped = *strategy;
    t->wrapped.next = NULL;
    t->wrapped.on_push = note_push;
    t->wrapped.on_pull = note_pull;
    t->wrapped.on_member = note_member;
    t->r.config.strategy = &t->wrapped;
    t->r.config.trace = note_step;
}

/* ---- the problem: rig's quadratic, by element ---- */

static float slope(void *user, uint64_t micro_batch, uint64_t element, float x)
{
    const eni_quadratic *q = user;
    const eni_rng_key key = {q->seed, ENI_RNG_SYNTHETIC, 0, micro_batch};
    const double noise = q->noise * (2 * eni_rng_unit(&key, element) - 1);
    return (float)(eni_quadratic_curvature(element) * ((double)x - 1 - noise));
}

static en_status gradient(void *user, int rank, uint64_t micro_batch, const float *param, float *grad)
{
    float *seen = malloc(COUNT * sizeof *seen);
    assert_non_null(seen);
    memcpy(seen, param, COUNT * sizeof *seen);
    pthread_mutex_lock(&t->lock);
    t->log[t->begun[rank]].seen = seen;
    pthread_mutex_unlock(&t->lock);
    for (uint64_t e = 0; e < COUNT; e++)
        grad[e] = slope(user, micro_batch, e, param[e]);
    return EN_OK;
}

/* ---- a schedule: 3 ranks; 4 on two hosts or in two groups, two shards; 2 that claim ---- */

/* A strategy that poses as another one runs with its own defaults. */
static void draw(const char *strategy, const eni_reference *reference, int schedule)
{
    static const int ranks[SCHEDULES] = {3, 4, 2}, per_host[SCHEDULES] = {3, 2, 1};
    static const float momenta[SCHEDULES] = {0, 0.9f, 0.5f};
    char spec[128];
    size_t n = 0;
    while (reference->options[n] != NULL)
        n++;
    t->options = reference->options[(size_t)(2 * schedule + 1) % n];
    const bool has_options = t->options[0] != '\0' && strcmp(strategy, reference->name) == 0;
    snprintf(spec, sizeof spec, "%s%s%s", strategy, has_options ? ":" : "", has_options ? t->options : "");
    const int w = ranks[schedule];
    rig_init(&t->r, spec, w, (uint64_t)w * STEPS - 1);
    eni_quadratic_fini(&t->r.problem);
    assert_int_equal(eni_quadratic_init(&t->r.problem, COUNT, 7), EN_OK);
    eni_sim_config *c = &t->r.config;
    const uint32_t flags = c->strategy->flags;
    t->r.problem.last_batch = c->micro_batches - 1;
    t->r.problem.last_samples = 3;
    t->r.problem.problem.grad = gradient;
    for (int i = 0; i < w; i++)
        t->group[i] = reference->flags & ENI_PAPER_GROUPS ? i - i % per_host[schedule] : i;
    c->groups = flags & EN_USES_GROUPS ? t->group : NULL;
    c->local_size = reference->flags & ENI_PAPER_HOSTS ? per_host[schedule] : 0;
    c->nshards = flags & EN_STORE_ON_SERVERS && schedule == 1 ? 2 : 1;
    c->assign = flags & EN_STORE_ON_SERVERS && !(flags & EN_SYNCHRONOUS) && schedule == 2 ? ENI_SIM_CLAIM
                                                                                          : ENI_SIM_FIXED;
    c->bucket_cap_bytes = CAP_BYTES;
    c->hyper = (eni_hyper){0};
    if (reference->flags & ENI_PAPER_MOMENTUM)
        c->hyper = (eni_hyper){.momentum = momenta[schedule],
                               .nesterov = schedule == 1,
                               .weight_decay = schedule == 1 ? 1e-3f : 0};
    c->schedule = (eni_schedule){
        .kind = reference->flags & ENI_PAPER_SCHEDULE && schedule > 0 ? ENI_LR_LINEAR : ENI_LR_CONSTANT,
        .base = 0.04 * (1 - (double)c->hyper.momentum)};
    for (uint64_t i = 0; i < c->micro_batches; i++)
        c->schedule.total += eni_quadratic_samples(&t->r.problem, i);
    wrap(c->strategy);
}

/* ---- the judgement ---- */

static int by_group(const void *a_, const void *b_)
{
    const entry *a = a_, *b = b_;
    const uint64_t x[] = {a->group, a->place, a->at}, y[] = {b->group, b->place, b->at};
    for (int i = 0; i < 3; i++)
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    return 0;
}

static void judge(const sockets_outcome *out, const eni_reference *reference, eni_judgement *j)
{
    const eni_sim_config *c = &t->r.config;
    eni_buckets *buckets;
    eni_sim_event *event = calloc(t->n, sizeof *event);
    const float **seen = calloc(t->n, sizeof *seen);
    assert_true(event != NULL && seen != NULL);
    assert_int_equal(eni_buckets_new(c->problem->tensors, c->problem->ntensors, COUNT, CAP_BYTES, &buckets),
                     EN_OK);
    qsort(t->log, t->n, sizeof *t->log, by_group);
    for (uint64_t i = 0; i < t->n; i++) {
        event[i] = t->log[i].event;
        seen[i] = t->log[i].seen;
    }
    eni_recording recording = {.nranks = c->nranks,
                               .per_host = c->local_size > 0 ? c->local_size : 1,
                               .nshards = c->nshards,
                               .claims = c->assign == ENI_SIM_CLAIM,
                               .micro_batches = c->micro_batches,
                               .samples = eni_quadratic_samples,
                               .gradient = slope,
                               .user = &t->r.problem,
                               .rates = {.lr = c->schedule.base,
                                         .momentum = (double)c->hyper.momentum,
                                         .decay = (double)c->hyper.weight_decay,
                                         .is_nesterov = c->hyper.nesterov != 0,
                                         .falls = c->schedule.kind == ENI_LR_LINEAR,
                                         .total = c->schedule.total},
                               .count = COUNT,
                               .init = c->problem->init,
                               .model = out->model,
                               .nbuckets = buckets->n,
                               .bucket = buckets->bucket,
                               .event = event,
                               .seen = seen,
                               .nevents = t->n,
                               .has_ended = true};
    memcpy(recording.group, t->group, sizeof recording.group);
    eni_judge(&recording, reference, t->options, j);
    eni_buckets_free(buckets);
    free(event);
    free(seen);
}

/* Runs a schedule of `strategy`, and judges it as `as`. */
static eni_judgement try_schedule(const char *strategy, const char *as, int schedule)
{
    static trial all;
    sockets_outcome out;
    eni_judgement j = {.agrees = true};
    const eni_reference *reference = eni_reference_find(as);
    assert_non_null(reference);
    all = (trial){.lock = PTHREAD_MUTEX_INITIALIZER, .begin_ns = eni_now_ns(), .finished = {-1, -1}};
    t = &all;
    draw(strategy, reference, schedule);
    assert_int_equal(sockets_run(&t->r.config, schedule, &out), EN_OK);
    judge(&out, reference, &j);
    for (uint64_t i = 0; i < t->n; i++)
        free(t->log[i].seen);
    free(t->log);
    eni_arrivals_fini(&out.arrivals);
    rig_fini(&t->r);
    return j;
}

static eni_judgement total;
static int nstrategies;

static void judge_built_in(void *user, const en_strategy *strategy, const char *path)
{
    (void)user, (void)path;
    if (eni_reference_find(strategy->name) == NULL) return;
    nstrategies++;
    for (int schedule = 0; schedule < SCHEDULES; schedule++) {
        const eni_judgement j = try_schedule(strategy->name, strategy->name, schedule);
        for (int i = 0; i < ENI_FINDING_LINES && !j.agrees; i++)
            printf("    %s\n", j.before[i]);
        if (!j.agrees) fail_msg("%s:%s, schedule %d: %s", strategy->name, t->options, schedule, j.finding);
        assert_true(j.decisions >= STEPS && j.vectors >= STEPS);
        total.decisions += j.decisions;
        total.vectors += j.vectors;
        total.worst = fmax(total.worst, j.worst);
    }
}

static void built_in_strategies_are_their_papers(void **state)
{
    (void)state;
    assert_int_equal(eni_strategy_list(RIG_PLUGINS, judge_built_in, NULL), EN_OK);
    assert_true(nstrategies >= 15);
    printf("PROMISE conform: %d strategies as in their papers on real ranks, %d schedules each: %llu "
           "decisions and %llu "
           "weight vectors, within %.1e\n",
           nstrategies, SCHEDULES, (unsigned long long)total.decisions, (unsigned long long)total.vectors,
           total.worst);
}

static void impostors_are_found(void **state)
{
    (void)state;
    static const struct {
        const char *strategy, *as, *words;
        int schedule;
    } all[] = {{"ps-async", "ps-sync", "keeps it", 0},
               {"ps-sync", "ps-async", "applies it", 0},
               {"ps-async", "ringmaster", "drops it", 0},
               {"ring", "local-sgd", "begins step", 1}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const eni_judgement j = try_schedule(all[i].strategy, all[i].as, all[i].schedule);
        if (j.agrees || strstr(j.finding, all[i].words) == NULL)
            fail_msg("%s as %s: \"%s\" expected: %s", all[i].strategy, all[i].as, all[i].words, j.finding);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(built_in_strategies_are_their_papers),
                                       cmocka_unit_test(impostors_are_found)};
    eni_log_set_level(0); /* it is warned of one alpha */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
