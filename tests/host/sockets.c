/* sockets.c - what a rank has on sockets, opened, trained and closed; the shards that it calls. */
#include "tests/host/sockets.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "run/rank_groups.h"
#include "runtime/host/host.h"
#include "runtime/net/wire.h"
#include "server/shard.h"

typedef struct world {
    const eni_sim_config *config; /* what the virtual run has, too */
    int nranks, nshards, per_host;
    uint64_t count; /* elements */
    eni_buckets *buckets;
    eni_arena *arenas[SOCKETS_RANKS];
    eni_net *net;
    eni_arenas *taken;
    eni_setup setup;
    eni_shard *shard[SOCKETS_SHARDS];
    eni_token token;
    char endpoint[SOCKETS_SHARDS][64];
    pthread_barrier_t barrier;
    _Atomic int status;            /* the first that is not EN_OK */
    _Atomic uint64_t next_claimed; /* micro-batch */
    int slowest;                   /* -1: no rank sleeps, and no order is recorded */
    char folder[32];
    sockets_outcome *out;
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

static int is_client(const world *w, int rank)
{
    return has_store(w) && (rank % w->per_host == 0 || !meets_at_servers(w));
}

/* The file of the shard's arrivals. */
static eni_arrivals_file record(world *w)
{
    const eni_arrivals about = {
        .nshards = 1, .nranks = w->nranks, .nbuckets = w->buckets->n, .elements = w->count};
    eni_arrivals_file file = {0};
    if (w->slowest < 0 || w->nshards > 1) return file;
    snprintf(w->folder, sizeof w->folder, "/tmp/entrain_XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    assert_int_equal(eni_arrivals_create(w->folder, &about, &file), EN_OK);
    return file;
}

static void read_record(world *w)
{
    char path[64];
    if (w->folder[0] == 0) return;
    assert_int_equal(eni_arrivals_read(w->folder, 0, &w->out->arrivals), EN_OK);
    snprintf(path, sizeof path, "%s/arrivals-0.txt", w->folder);
    remove(path);
    rmdir(w->folder);
}

/* What psd reads from rank 0's JOIN. */
static void set_up(world *w)
{
    const eni_sim_config *c = w->config;
    uint64_t *counts = calloc(w->buckets->n, sizeof *counts),
             *offsets = calloc(w->buckets->n, sizeof *offsets);
    for (uint32_t b = 0; b < w->buckets->n; b++) {
        offsets[b] = w->buckets->bucket[b].lo;
        counts[b] = w->buckets->bucket[b].hi - w->buckets->bucket[b].lo;
    }
    w->setup = (eni_setup){.store = {.strategy = c->strategy,
                                     .options = c->options,
                                     .optimizer = eni_optimizer_find("sgd"),
                                     .hyper = c->hyper,
                                     .schedule = c->schedule,
                                     .nbuckets = w->buckets->n,
                                     .bucket_counts = counts,
                                     .weight_offsets = offsets,
                                     .seed = c->seed},
                           .counts = counts,
                           .offsets = offsets,
                           .elements = w->count};
}

static void open_shards(world *w)
{
    uint8_t client[SOCKETS_RANKS];
    for (int r = 0; r < w->nranks; r++)
        client[r] = (uint8_t)is_client(w, r);
    set_up(w);
    eni_token_make(&w->token);
    const eni_arenas_config arenas = {.nranks = w->nranks,
                                      .epoch = 1,
                                      .elements = w->count,
                                      .token = w->token,
                                      .own_shards = w->nshards,
                                      .nshards = w->nshards};
    assert_int_equal(eni_arenas_start(&arenas, &w->taken), EN_OK);
    for (int k = 0; k < w->nshards; k++) {
        eni_address bound;
        const eni_shard_config config = {.net = w->net,
                                         .listen = {.host = "127.0.0.1"},
                                         .setup = &w->setup,
                                         .index = k,
                                         .nshards = w->nshards,
                                         .nown = w->nshards,
                                         .nranks = w->nranks,
                                         .is_client = client,
                                         .epoch = 1,
                                         .incarnation = 1,
                                         .token = w->token,
                                         .arenas = w->taken,
                                         .arrivals = record(w),
                                         .on_failure = never};
        assert_int_equal(eni_shard_start(&config, &w->shard[k], &bound), EN_OK);
        snprintf(w->endpoint[k], sizeof w->endpoint[k], "tcp://127.0.0.1:%u", (unsigned)bound.port);
    }
}

static en_status open_client(peer *me)
{
    world *w = me->w;
    const eni_endpoints psd = {.epoch = 1, .shards = w->nshards, .tcp = {w->endpoint[0], w->endpoint[1]}};
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
    eni_arena *arenas[SOCKETS_RANKS];
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

/* `hosts` and `groups`: the lowest rank of each rank's. */
static en_status open_colls(peer *me, const int32_t *hosts, const int32_t *groups)
{
    bool all[SOCKETS_RANKS], host[SOCKETS_RANKS], group[SOCKETS_RANKS], leaders[SOCKETS_RANKS];
    for (int r = 0; r < me->w->nranks; r++) {
        all[r] = true;
        host[r] = hosts[r] == hosts[me->rank];
        group[r] = groups[r] == groups[me->rank];
        leaders[r] = groups[r] == r;
    }
    if (meets_at_servers(me->w)) return open_coll(me, host, ENI_AREA_GROUP, &me->group);
    en_status st = open_coll(me, all, ENI_AREA_WORLD, &me->coll);
    if (st != EN_OK || !(me->w->config->strategy->flags & EN_USES_GROUPS)) return st;
    st = open_coll(me, group, ENI_AREA_GROUP, &me->group);
    return st == EN_OK ? open_coll(me, leaders, ENI_AREA_LEADERS, &me->leaders) : st;
}

static en_status open_rank(peer *me)
{
    world *w = me->w;
    int32_t hosts[SOCKETS_RANKS];
    for (int r = 0; r < w->nranks; r++)
        hosts[r] = r - r % w->per_host;
    const int32_t *groups = w->config->groups != NULL ? w->config->groups : hosts;
    en_world place = {.size = sizeof(en_world), .rank = me->rank, .nranks = w->nranks};
    eni_rank_groups_place(hosts, groups, &place);
    en_status st = open_colls(me, hosts, groups);
    if (st == EN_OK && is_client(w, me->rank)) st = open_client(me);
    if (st == EN_OK && has_store(w) && me->rank == 0)
        st = exchange(me, ENI_MSG_INIT, ENI_SLOT_PARAM, ENI_SLOT_NONE);
    pthread_barrier_wait(&w->barrier); /* the weights are there */
    if (st == EN_OK && me->client != NULL) st = exchange(me, ENI_MSG_SNAPSHOT, ENI_SLOT_NONE, ENI_SLOT_PARAM);
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
    static _Thread_local float micro[SOCKETS_ELEMENTS];
    const world *w = me->w;
    const eni_sim_problem *problem = w->config->problem;
    float *grad = eni_arena_at(w->arenas[me->rank], ENI_SLOT_GRAD, 0);
    const int is_alone = w->nranks == 1 && !has_store(w);
    memset(grad, 0, w->count * sizeof *grad);
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

/* The micro-batch of this rank's step; false: it has none left. */
static bool next_batch(peer *me, uint64_t step, uint64_t *micro_batch_out)
{
    world *w = me->w;
    const uint64_t n = (uint64_t)w->nranks, budget = w->config->micro_batches;
    const bool claims = w->config->assign == ENI_SIM_CLAIM;
    *micro_batch_out = claims ? atomic_fetch_add(&w->next_claimed, 1) : step * n + (uint64_t)me->rank;
    return claims ? *micro_batch_out < budget : step < (budget + n - 1) / n;
}

static en_status train(peer *me)
{
    world *w = me->w;
    const uint64_t n = (uint64_t)w->nranks, host = (uint64_t)(me->rank - me->rank % w->per_host);
    en_status st = EN_OK;
    uint64_t own;
    for (uint64_t step = 0; st == EN_OK && next_batch(me, step, &own); step++) {
        const bool claims = w->config->assign == ENI_SIM_CLAIM;
        const uint64_t round = step * n, samples = samples_of(w, own, 1);
        if (meets_at_servers(w))
            eni_host_note_samples(me->host, samples_of(w, round + host, (uint64_t)w->per_host),
                                  samples_of(w, round, n));
        if (w->config->trace != NULL)
            w->config->trace(w->config->trace_user, &(eni_sim_event){.at_ns = eni_now_ns(),
                                                                     .type = ENI_SIM_STEP,
                                                                     .rank = me->rank,
                                                                     .clock = step,
                                                                     .version = own});
        st = eni_host_begin(me->host, step, samples, samples_of(w, 0, claims ? own : round));
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
    memcpy(w->out->model, eni_arena_at(w->arenas[0], slot, 0), w->count * sizeof(float));
    if (which == EN_EVAL_MEAN) {
        const float *from[SOCKETS_RANKS];
        const uint64_t one[SOCKETS_RANKS] = {1, 1, 1, 1};
        for (int r = 0; r < w->nranks; r++)
            from[r] = eni_arena_at(w->arenas[r], ENI_SLOT_PARAM, 0);
        eni_mean_ranks(w->out->model, from, one, w->nranks, ENI_SUM_RANK, w->count, 0, w->count);
    }
    eni_host_theory(me->host, 0, &w->out->theory);
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

static void open_world(world *w)
{
    const eni_sim_problem *problem = w->config->problem;
    assert_true(w->count <= SOCKETS_ELEMENTS && w->nranks <= SOCKETS_RANKS && w->nshards <= SOCKETS_SHARDS);
    assert_int_equal(eni_buckets_new(problem->tensors, problem->ntensors, w->count,
                                     w->config->bucket_cap_bytes, &w->buckets),
                     EN_OK);
    for (int r = 0; r < w->nranks; r++) {
        assert_int_equal(eni_arena_open(w->count, ENI_ARENA_NSLOTS, 1, &w->arenas[r]), EN_OK);
        memcpy(eni_arena_at(w->arenas[r], ENI_SLOT_PARAM, 0), problem->init, w->count * sizeof(float));
    }
    assert_int_equal(eni_net_open(1, &w->net), EN_OK);
    if (has_store(w)) open_shards(w);
    pthread_barrier_init(&w->barrier, NULL, (unsigned)w->nranks);
}

static void close_world(world *w)
{
    pthread_barrier_destroy(&w->barrier);
    for (int k = 0; k < w->nshards; k++)
        eni_shard_stop(w->shard[k]);
    read_record(w);
    if (has_store(w)) eni_arenas_stop(w->taken);
    eni_net_close(w->net);
    for (int r = 0; r < w->nranks; r++)
        eni_arena_close(w->arenas[r]);
    eni_buckets_free(w->buckets);
    free(w->setup.counts);
    free(w->setup.offsets);
}

en_status sockets_run(const eni_sim_config *config, int slowest, sockets_outcome *out)
{
    peer ranks[SOCKETS_RANKS];
    pthread_t threads[SOCKETS_RANKS];
    world w = {.config = config,
               .nranks = config->nranks,
               .nshards = config->nshards > 0 ? config->nshards : 1,
               .per_host = config->local_size > 0 ? config->local_size : config->nranks,
               .count = config->problem->count,
               .slowest = slowest,
               .out = out};
    memset(out, 0, sizeof *out);
    open_world(&w);
    for (int r = 0; r < w.nranks; r++) {
        ranks[r] = (peer){.w = &w, .rank = r};
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < w.nranks; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < w.nranks; r++) {
        eni_host_close(ranks[r].host);
        eni_client_close(ranks[r].client);
        eni_coll_close(ranks[r].leaders);
        eni_coll_close(ranks[r].group);
        eni_coll_close(ranks[r].coll);
    }
    close_world(&w);
    return alive(&w);
}
