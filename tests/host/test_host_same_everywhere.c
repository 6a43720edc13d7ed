/* test_host_same_everywhere.c - a strategy cannot tell virtual time from sockets: every strategy of the tree
 * runs on both, on the same problem, and makes the same requests with the same answers at the same rates;
 * refusals are the same; and where the result does not depend on who was first, so are the weights, byte for
 * byte.
 *
 * On the one side `eni_sim_run`. On the other a thread per rank with its arena in shared memory, a group of
 * the direct all-reduce and a store client, and psd's shard behind a real socket: what a worker has, without
 * its model. Between host and strategy stands a recorder, the same on both sides.
 *
 * Where the result does depend on who was first, the order is recorded: psd's shard notes in which order calls,
 * timers and the ends of ranks reached its store, as the ranks' speeds made it, and virtual time plays it. Then
 * what the store saw and the weights are the same, too. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "run/rank_groups.h"
#include "run/arrivals.h"
#include "runtime/host/host.h"
#include "runtime/net/wire.h"
#include "server/shard.h"
#include "tests/heard.h"
#include "tests/host/recorder.h"
#include "tests/strategies/sim_rig.h"

/* Promise: A strategy cannot tell virtual time from sockets: requests, refusals and rates are the same,
 * and so are weights where the order determines them.
 * Promise: With a server, virtual time ends with the bytes of sockets when it plays the order that was recorded
 * there. */

enum { STEPS = 8, COUNT = 200 };

/* ---- sockets and shared memory ---------------------------------------------------------------------------
 */

typedef struct world {
    const eni_sim_config *config; /* what the virtual run has, too */
    int nranks;
    eni_buckets *buckets;
    eni_arena *arenas[RECORDER_RANKS];
    eni_net *net;
    eni_arenas *taken;
    eni_setup setup;
    eni_shard *shard;
    eni_token token;
    char endpoint[64];
    pthread_barrier_t barrier;
    _Atomic int status; /* the first that is not EN_OK */
    float model[COUNT];
    en_theory theory;
    int slowest; /* this rank sleeps in its steps; -1: none, and no order is recorded */
    char folder[32];
    eni_arrivals arrivals; /* of the shard */
} world;

typedef struct peer {
    world *w;
    int rank;
    eni_coll *coll, *group, *leaders; /* group: of some, or where hosts meet at the servers of all */
    eni_client *client;
    eni_host *host;
} peer;

static en_status alive(void *user)
{
    return atomic_load(&((world *)user)->status);
}

static int has_store(const world *w)
{
    return (w->config->strategy->flags & EN_STORE_ON_SERVERS) != 0;
}

static int meets_at_servers(const world *w)
{
    return (w->config->strategy->flags & EN_LEADERS_ARE_CLIENTS) != 0;
}

static void never(void *user, const char *reason)
{
    (void)user;
    fprintf(stderr, "the shard failed: %s\n", reason);
    abort();
}

/* The file of the shard's arrivals. */
static eni_arrivals_file record(world *w)
{
    const eni_arrivals about = {
        .nshards = 1, .nranks = w->nranks, .nbuckets = w->buckets->n, .elements = COUNT};
    eni_arrivals_file file = {0};
    if (w->slowest < 0) return file;
    snprintf(w->folder, sizeof w->folder, "/tmp/entrain_XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    assert_int_equal(eni_arrivals_create(w->folder, &about, &file), EN_OK);
    return file;
}

static void read_record(world *w)
{
    char path[64];
    if (w->folder[0] == 0) return;
    assert_int_equal(eni_arrivals_read(w->folder, 0, &w->arrivals), EN_OK);
    snprintf(path, sizeof path, "%s/arrivals-0.txt", w->folder);
    remove(path);
    rmdir(w->folder);
}

static void open_shard(world *w)
{
    const uint8_t is_client[RECORDER_RANKS] = {1, !meets_at_servers(w), !meets_at_servers(w)};
    eni_address bound;
    eni_token_make(&w->token);
    uint64_t *counts = calloc(w->buckets->n, sizeof *counts),
             *offsets = calloc(w->buckets->n, sizeof *offsets);
    w->setup = (eni_setup){.store = {.strategy = w->config->strategy,
                                     .options = w->config->options,
                                     .optimizer = eni_optimizer_find("sgd"),
                                     .hyper = w->config->hyper,
                                     .schedule = w->config->schedule,
                                     .nbuckets = w->buckets->n,
                                     .bucket_counts = counts,
                                     .weight_offsets = offsets,
                                     .seed = w->config->seed},
                           .counts = counts,
                           .offsets = offsets,
                           .elements = COUNT};
    for (uint32_t b = 0; b < w->buckets->n; b++) {
        w->setup.offsets[b] = w->buckets->bucket[b].lo;
        w->setup.counts[b] = w->buckets->bucket[b].hi - w->buckets->bucket[b].lo;
    }
    const eni_arenas_config arenas = {
        .nranks = w->nranks, .epoch = 1, .elements = COUNT, .token = w->token, .own_shards = 1, .nshards = 1};
    assert_int_equal(eni_arenas_start(&arenas, &w->taken), EN_OK);
    const eni_shard_config config = {.net = w->net,
                                     .listen = {.host = "127.0.0.1"},
                                     .setup = &w->setup,
                                     .nshards = 1,
                                     .nranks = w->nranks,
                                     .is_client = is_client,
                                     .epoch = 1,
                                     .incarnation = 1,
                                     .token = w->token,
                                     .arenas = w->taken,
                                     .arrivals = record(w),
                                     .on_failure = never};
    assert_int_equal(eni_shard_start(&config, &w->shard, &bound), EN_OK);
    snprintf(w->endpoint, sizeof w->endpoint, "tcp://127.0.0.1:%u", (unsigned)bound.port);
}

static en_status open_client(peer *me)
{
    world *w = me->w;
    const eni_endpoints psd = {.epoch = 1, .shards = 1, .tcp = {w->endpoint}};
    const eni_client_config config = {.net = w->net,
                                      .psd = &psd,
                                      .arena = w->arenas[me->rank],
                                      .buckets = w->buckets,
                                      .token = &w->token,
                                      .rank = me->rank,
                                      .incarnation = 1,
                                      .alive = alive,
                                      .user = w,
                                      .wake_fd = -1,
                                      .join_deadline_ns = eni_now_ns() + 10 * ENI_SECOND};
    return eni_client_open(&config, &me->client);
}

static en_status exchange(peer *me, uint32_t type, int out, int in)
{
    for (uint32_t b = 0; b < me->w->buckets->n; b++) {
        en_status st =
            eni_client_call(me->client, b, out, in, &(eni_header){.type = type, .what = EN_WEIGHTS});
        if (st == EN_OK) st = eni_client_wait(me->client, b);
        if (st != EN_OK) return st;
    }
    return EN_OK;
}

/* Of the ranks that are said to be in it, where this one is. */
static en_status open_coll(peer *me, const bool *takes_part, int area, eni_coll **coll_out)
{
    world *w = me->w;
    eni_arena *arenas[RECORDER_RANKS];
    eni_coll_config config = {.epoch = 1,
                              .algorithm = ENI_COLL_DIRECT,
                              .transport = ENI_OVER_SHM,
                              .arenas = arenas,
                              .area = area,
                              .alive = {alive, w, -1}};
    for (int r = 0; r < w->nranks; r++) {
        if (!takes_part[r]) continue;
        if (r == me->rank) config.rank = config.nranks;
        arenas[config.nranks++] = w->arenas[r];
    }
    return takes_part[me->rank] && config.nranks > 1 ? eni_coll_open(&config, coll_out) : EN_OK;
}

static en_status open_colls(peer *me, const int32_t *groups)
{
    bool all[RECORDER_RANKS], group[RECORDER_RANKS], leaders[RECORDER_RANKS];
    for (int r = 0; r < me->w->nranks; r++) {
        all[r] = true;
        group[r] = groups[r] == groups[me->rank];
        leaders[r] = groups[r] == r;
    }
    if (meets_at_servers(me->w)) return open_coll(me, all, ENI_AREA_GROUP, &me->group);
    en_status st = open_coll(me, all, ENI_AREA_WORLD, &me->coll);
    if (st != EN_OK || !(me->w->config->strategy->flags & EN_USES_GROUPS)) return st;
    st = open_coll(me, group, ENI_AREA_GROUP, &me->group);
    return st == EN_OK ? open_coll(me, leaders, ENI_AREA_LEADERS, &me->leaders) : st;
}

static en_status open_rank(peer *me)
{
    static const int32_t one_host[RECORDER_RANKS];
    world *w = me->w;
    const int32_t *groups = w->config->groups != NULL ? w->config->groups : one_host;
    en_world place = {.size = sizeof(en_world), .rank = me->rank, .nranks = w->nranks};
    eni_rank_groups_place(one_host, groups, &place);
    en_status st = open_colls(me, groups);
    const int is_client = has_store(w) && (me->rank == 0 || !meets_at_servers(w));
    if (st == EN_OK && is_client) st = open_client(me);
    if (st == EN_OK && is_client && me->rank == 0)
        st = exchange(me, ENI_MSG_INIT, ENI_SLOT_PARAM, ENI_SLOT_NONE);
    pthread_barrier_wait(&w->barrier); /* the weights are there */
    if (st == EN_OK && is_client) st = exchange(me, ENI_MSG_SNAPSHOT, ENI_SLOT_NONE, ENI_SLOT_PARAM);
    const eni_host_config config = {.strategy = w->config->strategy,
                                    .options = w->config->options,
                                    .world = place,
                                    .seed = w->config->seed,
                                    .buckets = w->buckets,
                                    .arena = w->arenas[me->rank],
                                    .coll = me->coll,
                                    .coll_algorithm = ENI_COLL_DIRECT,
                                    .group = me->group,
                                    .group_algorithm = ENI_COLL_DIRECT,
                                    .leaders = me->leaders,
                                    .leaders_algorithm = ENI_COLL_DIRECT,
                                    .has_own_groups = w->config->groups != NULL,
                                    .client = me->client,
                                    .has_store = has_store(w),
                                    .optimizer = eni_optimizer_find("sgd"),
                                    .hyper = w->config->hyper,
                                    .schedule = w->config->schedule,
                                    .alive_status = alive,
                                    .alive_user = w};
    return st == EN_OK ? eni_host_open(&config, &me->host) : st;
}

static uint64_t samples_of(const world *w, uint64_t first, uint64_t n)
{
    const eni_sim_problem *problem = w->config->problem;
    uint64_t samples = 0;
    for (uint64_t m = first; m < first + n && m < w->config->micro_batches; m++)
        samples += problem->samples(problem->user, m);
    return samples;
}

/* The gradient of this rank's micro-batch of a step; one that trains alone takes the mean of it alone. */
static void compute(const peer *me, uint64_t micro_batch, uint64_t samples)
{
    static _Thread_local float micro[COUNT];
    const world *w = me->w;
    const eni_sim_problem *problem = w->config->problem;
    float *grad = eni_arena_at(w->arenas[me->rank], ENI_SLOT_GRAD, 0);
    const int is_alone = w->nranks == 1 && !has_store(w);
    memset(grad, 0, COUNT * sizeof *grad);
    if (samples == 0) return;
    assert_int_equal(problem->grad(problem->user, me->rank, micro_batch,
                                   eni_arena_at(w->arenas[me->rank], ENI_SLOT_PARAM, 0),
                                   is_alone ? micro : grad),
                     EN_OK);
    for (uint32_t b = 0; is_alone && b < w->buckets->n; b++) {
        const uint64_t lo = w->buckets->bucket[b].lo, count = w->buckets->bucket[b].hi - lo;
        eni_mean_ranks(grad + lo, &(const float *){micro + lo}, &samples, 1, ENI_SUM_RANK, count, 0, count);
    }
}

static en_status train(peer *me)
{
    world *w = me->w;
    const uint64_t n = (uint64_t)w->nranks;
    en_status st = EN_OK;
    for (uint64_t step = 0; step < STEPS && st == EN_OK; step++) {
        const uint64_t round = step * n, own = round + (uint64_t)me->rank, samples = samples_of(w, own, 1);
        const uint64_t all = samples_of(w, round, n);
        if (meets_at_servers(w)) eni_host_note_samples(me->host, all, all);
        st = eni_host_begin(me->host, step, samples, samples_of(w, 0, round));
        if (w->slowest >= 0)
            eni_sleep_until(eni_now_ns() + (me->rank == w->slowest ? 2600 : 1000) *
                                               (1 + (int64_t)(own * 7 % 5)) * ENI_MICRO / 5);
        if (st == EN_OK) compute(me, own, samples);
        for (uint32_t b = 0; b < w->buckets->n && st == EN_OK; b++)
            st = eni_host_submit(me->host, b);
        if (st == EN_OK) st = eni_host_finish(me->host);
    }
    return st;
}

/* The model that the strategy names, and what it promises: rank 0's to say, once all have trained. */
static en_status conclude(peer *me)
{
    world *w = me->w;
    int which;
    uint32_t slot;
    en_status st = eni_host_eval(me->host, &which, &slot);
    if (st == EN_OK && which == EN_EVAL_STORE) {
        slot = ENI_SLOT_GRAD;
        st = exchange(me, ENI_MSG_SNAPSHOT, ENI_SLOT_NONE, ENI_SLOT_GRAD);
    }
    memcpy(w->model, eni_arena_at(w->arenas[0], slot, 0), sizeof w->model);
    if (which == EN_EVAL_MEAN) {
        const float *from[RECORDER_RANKS];
        const uint64_t one[RECORDER_RANKS] = {1, 1, 1};
        for (int r = 0; r < w->nranks; r++)
            from[r] = eni_arena_at(w->arenas[r], ENI_SLOT_PARAM, 0);
        eni_mean_ranks(w->model, from, one, w->nranks, ENI_SUM_RANK, COUNT, 0, COUNT);
    }
    eni_host_theory(me->host, 0, &w->theory);
    return st;
}

static void *run_rank(void *user)
{
    peer *me = user;
    world *w = me->w;
    int none = EN_OK;
    en_status st = open_rank(me);
    pthread_barrier_wait(&w->barrier); /* all are there: from here on one that fails ends the others */
    if (st == EN_OK) st = train(me);
    if (st != EN_OK) atomic_compare_exchange_strong(&w->status, &none, st);
    if (st == EN_OK && me->client != NULL) st = eni_client_finished(me->client);
    pthread_barrier_wait(&w->barrier); /* all have trained */
    if (me->rank == 0 && w->slowest >= 0 && w->config->strategy->on_timer != NULL)
        eni_sleep_until(eni_now_ns() + 30 * ENI_MILLI); /* none of its timers is still to come */
    if (me->rank == 0 && alive(w) == EN_OK) st = conclude(me);
    if (st != EN_OK) atomic_compare_exchange_strong(&w->status, &none, st);
    pthread_barrier_wait(&w->barrier);
    return NULL;
}

static en_status run_on_sockets(const eni_sim_config *config, int slowest, world *w)
{
    peer ranks[RECORDER_RANKS];
    pthread_t threads[RECORDER_RANKS];
    memset(w, 0, sizeof *w);
    w->config = config;
    w->slowest = slowest;
    w->nranks = config->nranks;
    assert_int_equal(eni_buckets_new(config->problem->tensors, config->problem->ntensors, COUNT,
                                     config->bucket_cap_bytes, &w->buckets),
                     EN_OK);
    for (int r = 0; r < w->nranks; r++) {
        assert_int_equal(eni_arena_open(COUNT, ENI_ARENA_NSLOTS, 1, &w->arenas[r]), EN_OK);
        memcpy(eni_arena_at(w->arenas[r], ENI_SLOT_PARAM, 0), config->problem->init, COUNT * sizeof(float));
    }
    assert_int_equal(eni_net_open(&w->net), EN_OK);
    if (has_store(w)) open_shard(w);
    pthread_barrier_init(&w->barrier, NULL, (unsigned)w->nranks);
    for (int r = 0; r < w->nranks; r++) {
        ranks[r] = (peer){.w = w, .rank = r};
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < w->nranks; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < w->nranks; r++) {
        eni_host_close(ranks[r].host);
        eni_client_close(ranks[r].client);
        eni_coll_close(ranks[r].leaders);
        eni_coll_close(ranks[r].group);
        eni_coll_close(ranks[r].coll);
    }
    pthread_barrier_destroy(&w->barrier);
    eni_shard_stop(w->shard);
    read_record(w);
    if (has_store(w)) eni_arenas_stop(w->taken);
    eni_net_close(w->net);
    for (int r = 0; r < w->nranks; r++)
        eni_arena_close(w->arenas[r]);
    eni_buckets_free(w->buckets);
    free(w->setup.counts);
    free(w->setup.offsets);
    return alive(w);
}

/* ---- both ------------------------------------------------------------------------------------------------
 */

typedef struct outcome {
    en_status status;
    char *text[RECORDER_RANKS + 1]; /* the last: of the store */
    float model[COUNT];
    bool has_theory;
    en_theory theory;
    int arrivals;
} outcome;

static void take_records(outcome *out)
{
    for (int r = 0; r <= RECORDER_RANKS; r++)
        out->text[r] = recorder_take(r);
}

/* `slowest`: virtual time plays the order that this rank's slowness makes on sockets; -1: each as it comes. */
static void run_both(const char *spec, const en_strategy *given, int nranks, const char *groups, int slowest,
                     outcome out[2])
{
    static world w;
    int32_t first[RECORDER_RANKS];
    rig r;
    rig_init(&r, given == NULL ? spec : "ring", nranks, (uint64_t)nranks * STEPS - (nranks > 1 ? 1 : 0));
    if (given != NULL) {
        eni_options_free(r.options);
        assert_int_equal(eni_options_new(given, NULL, &r.options), EN_OK);
    }
    for (int i = 0; i < COUNT; i++)
        r.problem.init[i] = 0.01f * (float)i;
    r.problem.last_batch = r.config.micro_batches - 1;
    r.problem.last_samples = 3;
    r.config.strategy = recorder_open(given == NULL ? r.config.strategy : given);
    r.config.options = r.options;
    if (groups != NULL && nranks == RECORDER_RANKS) {
        assert_int_equal(eni_rank_groups_read(groups, nranks, first), EN_OK);
        r.config.groups = first;
    }
    r.config.assign = ENI_SIM_FIXED;
    r.config.schedule = (eni_schedule){
        .kind = ENI_LR_STEP, .base = 0.02, .gamma = 0.5, .step_samples = (uint64_t)nranks * 16};
    r.config.weights_out = out[0].model;
    out[1].status = run_on_sockets(&r.config, slowest, &w);
    out[1].theory = w.theory;
    out[1].arrivals = (int)w.arrivals.n;
    memcpy(out[1].model, w.model, sizeof w.model);
    take_records(&out[1]);
    const eni_sim_order order = {.arrivals = &w.arrivals};
    if (w.arrivals.n > 0) r.config.order = &order;
    out[0].status = eni_sim_run(&r.config, &r.result);
    out[0].theory = r.result.theory;
    out[0].has_theory = r.result.has_theory;
    take_records(&out[0]);
    rig_fini(&r);
    eni_arrivals_fini(&w.arrivals);
    recorder_close();
}

static void free_both(outcome out[2])
{
    for (int i = 0; i < 2; i++)
        for (int r = 0; r <= RECORDER_RANKS; r++)
            free(out[i].text[r]);
}

static void expect_same_text(const char *spec, int rank, const char *virtual_time, const char *sockets)
{
    size_t at = 0;
    int line = 1;
    if (strcmp(virtual_time, sockets) == 0) return;
    for (size_t i = 0; virtual_time[i] != 0 && virtual_time[i] == sockets[i]; i++)
        if (virtual_time[i] == '\n') {
            at = i + 1;
            line++;
        }
    fail_msg("%s, rank %d, line %d: in virtual time \"%.80s\", on sockets \"%.80s\"", spec, rank, line,
             virtual_time + at, sockets + at);
}

/* How many arrivals were recorded. */
static int compare(const char *spec, int nranks, const char *groups, int slowest, bool is_determined)
{
    outcome out[2];
    memset(out, 0, sizeof out);
    run_both(spec, NULL, nranks, groups, slowest, out);
    if (out[0].status != EN_OK || out[1].status != EN_OK)
        fail_msg("%s with %d: %d in virtual time, %d on sockets", spec, nranks, out[0].status, out[1].status);
    for (int r = 0; r < nranks; r++) {
        expect_same_text(spec, r, out[0].text[r], out[1].text[r]);
        assert_true(strlen(out[0].text[r]) > 100);
    }
    if (out[1].arrivals > 0)
        expect_same_text(spec, RECORDER_RANKS, out[0].text[RECORDER_RANKS], out[1].text[RECORDER_RANKS]);
    if (is_determined && memcmp(out[0].model, out[1].model, sizeof out[0].model) != 0)
        fail_msg("%s with %d: other weights on sockets: %.9g, %.9g", spec, nranks, (double)out[0].model[0],
                 (double)out[1].model[0]);
    if (out[0].has_theory) {
        assert_true(out[0].theory.sent == out[1].theory.sent && out[0].theory.recv == out[1].theory.recv);
        assert_true(out[0].theory.staleness == out[1].theory.staleness);
    }
    free_both(out);
    return out[1].arrivals;
}

static const struct {
    const char *spec;
    int is_lock_step;   /* the weights of three ranks do not depend on who is first */
    const char *groups; /* of three ranks; NULL: the ranks of the one host */
} everyone[] = {{"ring", 1},
                {"ps-sync", 1},
                {"ps-async", 0},
                {"ssp:bound=2", 0},
                {"hierarchical", 1},
                {"hierarchical:bound=1", 1}, /* of one host: it waits for itself only */
                {"hybrid:ps=c", 1},
                {RIG_PLUGINS "/localsgd.so:period=4", 1},
                {EN_BUILD_DIR "/test/plugins/short.so:period=2", 1},
                {"grouped:period=3", 1, "0,2;1"},
                {"grouped:period=3", 1, "1"},
                {RIG_ZOO "two-level", 1, "0-1;2"},
                {RIG_ZOO "zero1", 1},
                {RIG_ZOO "gossip", 1},
                {RIG_ZOO "pairs", 1}, /* of three: at least one sits out */
                {RIG_ZOO "hier", 1},
                {RIG_ZOO "late", 0},
                {RIG_ZOO "softsync", 0},
                {RIG_ZOO "backup", 0},
                {RIG_ZOO "moody", 0},
                {"ringmaster:threshold=2", 0},
                {"delay-adaptive", 0},
                {"softsync:splits=1", 0},
                {"dc-asgd", 0},
                {"dc-asgd:adaptive", 0},
                {"easgd:period=2", 0},
                {"easgd:period=1,momentum=0.9", 0},
                {"local-sgd:period=3,start=2", 1},
                {"slowmo:period=2,buffer=average", 1},
                {"diloco:period=3", 1},
                {"diloco:period=2", 1, "0,2;1"},
                {"d-psgd", 1},
                {"d-psgd:graph=complete", 1},
                {RIG_LOCAL "easgd", 0},
                {RIG_LOCAL "downpour:period=2,drop=3", 0}};
enum { EVERYONE = sizeof everyone / sizeof *everyone };

static void strategies_do_the_same(void **state)
{
    (void)state;
    compare("solo", 1, NULL, -1, true);
    for (int i = 0; i < EVERYONE; i++) {
        compare(everyone[i].spec, 1, NULL, 0, true);
        compare(everyone[i].spec, 3, everyone[i].groups, -1, everyone[i].is_lock_step);
    }
    printf("PROMISE one host: %d strategies make the same requests at the same rates in virtual time and on "
           "sockets, "
           "with 1 and 3 ranks\n",
           EVERYONE + 1);
}

static void a_recorded_order_determines_the_weights(void **state)
{
    (void)state;
    int strategies = 0, arrivals = 0;
    for (int i = 0; i < EVERYONE; i++) {
        int own = 0;
        for (int slowest = 0; slowest < RECORDER_RANKS; slowest++)
            own += compare(everyone[i].spec, RECORDER_RANKS, everyone[i].groups, slowest, true);
        strategies += own > 0;
        arrivals += own;
    }
    printf(
        "PROMISE recorded order: %d strategies with a server end with the same bytes in virtual time and on "
        "sockets under %d orders of arrival each (%d arrivals)\n",
        strategies, RECORDER_RANKS, arrivals);
}

/* ---- what is refused -------------------------------------------------------------------------------------
 */

static int misdeed;

enum {
    KIND_0,
    NO_STORE,
    FAR_RANK,
    NO_OPERATION,
    FOREIGN_VECTOR,
    TWO_BUCKETS,
    NO_REQUEST,
    NO_GROUP,
    NO_LEADERS,
    NO_SUCH_GROUP,
    A_WORD,
    TWO_CALLS,
    NOT_FIRST, /* these two of ranks in groups */
    TWO_GROUPS,
    MISDEEDS
};

static en_status rude_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    en_vec grad = bucket->grad, foreign = bucket->id == 0 ? grad + 1 : grad - 1;
    switch (misdeed) {
    case KIND_0:
        host->wait(host, host->call(host, EN_SERVERS, 0, EN_GRAD, bucket, grad, bucket->param, 0));
        break;
    case NO_STORE:
        host->wait(host, host->call(host, EN_SERVERS, 1, EN_GRAD, bucket, grad, bucket->param, 0));
        break;
    case FAR_RANK:
        return host->wait(host,
                          host->sendrecv(host, EN_WORLD, EN_WEIGHTS, bucket, 99, grad, 99, bucket->param));
    case NO_OPERATION: return host->wait(host, host->coll(host, 77, EN_WORLD, EN_GRAD, bucket, grad));
    case FOREIGN_VECTOR:
        host->wait(host, host->coll(host, EN_ALLREDUCE, EN_WORLD, EN_GRAD, bucket, foreign));
        break;
    case TWO_BUCKETS: host->lin(host, grad, 1, foreign, 0); break;
    case NO_REQUEST: host->wait(host, 12345); break;
    case NO_GROUP: host->coll(host, EN_ALLREDUCE, EN_GROUP, EN_GRAD, bucket, grad); break;
    case NO_LEADERS: host->coll(host, EN_ALLREDUCE, EN_LEADERS, EN_GRAD, bucket, grad); break;
    case NO_SUCH_GROUP: host->coll(host, EN_ALLREDUCE, 9, EN_GRAD, bucket, grad); break;
    case A_WORD: host->call(host, EN_SERVERS, 1, EN_GRAD, bucket, grad, bucket->param, 77); break;
    case NOT_FIRST: req[0] = host->coll(host, EN_ALLREDUCE, EN_LEADERS, EN_GRAD, bucket, grad); break;
    case TWO_GROUPS:
        req[0] = host->coll(host, EN_ALLREDUCE, EN_GROUP, EN_GRAD, bucket, grad);
        req[1] = host->coll(host, EN_ALLREDUCE, EN_WORLD, EN_GRAD, bucket, grad);
        break;
    default:
        req[0] = host->call(host, EN_SERVERS, 1, EN_GRAD, bucket, grad, bucket->param, 0);
        host->wait(host, host->call(host, EN_SERVERS, 1, EN_GRAD, bucket, grad, bucket->param, 0));
    }
    return EN_OK;
}

static const en_strategy rude = {
    .abi = EN_STRATEGY_ABI, .size = sizeof(en_strategy), .name = "rude", .submit = rude_submit};
static const en_strategy rude_client = {.abi = EN_STRATEGY_ABI,
                                        .size = sizeof(en_strategy),
                                        .name = "rude-client",
                                        .flags = EN_STORE_ON_SERVERS,
                                        .submit = rude_submit};

static const en_strategy rude_member = {.abi = EN_STRATEGY_ABI,
                                        .size = sizeof(en_strategy),
                                        .name = "rude-member",
                                        .flags = EN_USES_GROUPS,
                                        .submit = rude_submit};

static void refusals_are_the_same(void **state)
{
    (void)state;
    eni_log_set_sink(hear, NULL);
    for (misdeed = 0; misdeed < MISDEEDS; misdeed++)
        for (int nranks = misdeed >= NOT_FIRST ? 3 : 1; nranks <= 3; nranks += 2) {
            outcome out[2];
            memset(out, 0, sizeof out);
            run_both(NULL,
                     misdeed >= NOT_FIRST   ? &rude_member
                     : misdeed == TWO_CALLS ? &rude_client
                                            : &rude,
                     nranks, "0-1;2", -1, out);
            if (out[0].status != out[1].status || out[0].status == EN_OK)
                fail_msg("misdeed %d with %d: %d in virtual time, %d on sockets", misdeed, nranks,
                         out[0].status, out[1].status);
            const int who =
                misdeed == NOT_FIRST; /* the others do nothing wrong, and get as far as they get */
            expect_same_text("a misdeed", who, out[0].text[who], out[1].text[who]);
            free_both(out);
        }
    eni_log_set_sink(NULL, NULL);
    printf("PROMISE one host: %d breaches of the contract are refused alike in virtual time and on sockets\n",
           MISDEEDS);
}

/* ---- a known vector -------------------------------------------------------------------------------------
 */

static en_status finder_plan(en_host *host, void *state, const en_bucket *bucket, uint64_t *lo, uint64_t *hi)
{
    (void)state, (void)lo, (void)hi;
    return host->vec(host, "memory", bucket) != 0 ? EN_OK : EN_ENOMEM;
}

/* By its name in a step: the handle of plan; a new name: none. */
static en_status finder_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state, (void)req;
    const en_vec memory = host->vec(host, "memory", bucket);
    if (memory == 0 || host->vec(host, "too late", bucket) != 0) return EN_EBUG;
    const en_status st = host->lin(host, memory, 1, bucket->grad, 0.5);
    return st == EN_OK ? host->lin(host, bucket->param, -0.01, memory, 1) : st;
}

static const en_strategy finder = {.abi = EN_STRATEGY_ABI,
                                   .size = sizeof(en_strategy),
                                   .name = "finder",
                                   .plan = finder_plan,
                                   .submit = finder_submit};

static void a_known_vector_is_found_in_a_step(void **state)
{
    (void)state;
    eni_log_set_sink(hear, NULL);
    outcome out[2];
    memset(out, 0, sizeof out);
    run_both(NULL, &finder, 3, NULL, -1, out);
    eni_log_set_sink(NULL, NULL);
    assert_int_equal(out[0].status, EN_OK);
    assert_int_equal(out[1].status, EN_OK);
    for (int r = 0; r < RECORDER_RANKS; r++) {
        assert_non_null(strstr(out[0].text[r], "vec too late of 0: 0\n"));
        expect_same_text("finder", r, out[0].text[r], out[1].text[r]);
    }
    assert_memory_equal(out[0].model, out[1].model, sizeof out[0].model);
    free_both(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strategies_do_the_same), cmocka_unit_test(a_recorded_order_determines_the_weights),
        cmocka_unit_test(refusals_are_the_same), cmocka_unit_test(a_known_vector_is_found_in_a_step)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
