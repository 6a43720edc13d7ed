/* test_host_ranks.c - the host in a world of three processes: mean_step is mean, then step, on every rank
 * alike; collectives and sendrecvs go where they should; misuse and death end in a status. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/log.h"
#include "ops/mean.h"
#include "runtime/host/host.h"
#include "tests/collective/group_fixture.h"

enum { RANKS = 3, COUNT = 128, STEPS = 6 };

static const en_model_tensor tensors[] = {
    {.name = "a", .offset = 0, .count = 64, .ndim = 2, .shape = {8, 8}},
    {.name = "b", .offset = 64, .count = 64, .ndim = 2, .shape = {8, 8}}};

/* ---- the strategy: mean_step, and a vector to receive sendrecvs ---- */

static struct rank_view {
    en_host *table;
    const en_bucket *bucket[2];
    en_req req[2];
    en_vec inbox[2];
} view;

static en_status plan(en_host *host, void *state, const en_bucket *bucket, uint64_t *lo, uint64_t *hi)
{
    (void)state, (void)lo, (void)hi;
    view.table = host;
    view.bucket[bucket->id] = bucket;
    view.inbox[bucket->id] = host->vec(host, "inbox", bucket);
    return view.inbox[bucket->id] == 0 ? EN_ENOMEM : EN_OK;
}

static en_status submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    req[0] = view.req[bucket->id] = host->mean_step(host, bucket);
    return EN_OK;
}

static const en_strategy strategy = {
    .abi = EN_STRATEGY_ABI, .size = sizeof(en_strategy), .name = "mean", .plan = plan, .submit = submit};

/* ---- a rank ---- */

struct rank {
    eni_coll *coll;
    eni_buckets *buckets;
    eni_options *options;
    eni_host *host;
    eni_host_config config;
};

static int rank_open(struct rank *me, int rank, cluster_board *board, struct fixture *fixture)
{
    memset(me, 0, sizeof *me);
    me->coll = fixture_group(fixture, rank, board, 1);
    CLUSTER_CHECK(me->coll != NULL);
    CLUSTER_CHECK(eni_buckets_new(tensors, 2, COUNT, 256, &me->buckets) == EN_OK && me->buckets->n == 2);
    CLUSTER_CHECK(eni_options_new(&strategy, "", &me->options) == EN_OK);
    me->config = (eni_host_config){.strategy = &strategy,
                                   .options = me->options,
                                   .world = {.size = sizeof(en_world),
                                             .epoch = 1,
                                             .rank = rank,
                                             .nranks = RANKS,
                                             .local_rank = rank,
                                             .nlocal = RANKS,
                                             .nhosts = 1},
                                   .buckets = me->buckets,
                                   .arena = fixture->arenas[rank],
                                   .coll = me->coll,
                                   .coll_algorithm = fixture->way->algorithm,
                                   .optimizer = eni_optimizer_find("sgd"),
                                   .hyper = {.momentum = 0.9f, .weight_decay = 0.001f, .nesterov = 1},
                                   .schedule = {.kind = ENI_LR_CONSTANT, .base = 0.1},
                                   .alive_status = cluster_alive,
                                   .alive_user = board};
    CLUSTER_CHECK(eni_host_open(&me->config, &me->host) == EN_OK);
    return 0;
}

static void rank_close(struct rank *me)
{
    eni_host_close(me->host);
    eni_coll_close(me->coll);
    eni_options_free(me->options);
    eni_buckets_free(me->buckets);
}

/* ---- tests ---- */

static uint64_t samples_of(int rank, int step)
{
    return step == 3 ? 0 : (uint64_t)((rank + step) % 4) * 8; /* now and then none, once nobody has any */
}

static void reference(const eni_host_config *config, float *w)
{
    static float g[RANKS][COUNT], mean[COUNT], m[COUNT];
    const float *from[RANKS];
    uint64_t nsamples[RANKS];
    float *slots[] = {m};
    for (int i = 0; i < COUNT; i++)
        w[i] = 0.5f;
    for (int t = 0; t < STEPS; t++) {
        uint64_t total = 0;
        for (int r = 0; r < RANKS; r++) {
            fixture_fill(g[r], r, (uint64_t)t, COUNT);
            from[r] = g[r];
            nsamples[r] = samples_of(r, t);
            total += nsamples[r];
        }
        if (total == 0) continue; /* nothing moves, momentum neither */
        eni_mean_ranks(mean, from, nsamples, RANKS, ENI_SUM_RANK, COUNT, 0, COUNT);
        eni_hyper hyper = config->hyper;
        hyper.lr = 0.1f;
        hyper.step = (uint64_t)t;
        config->optimizer->step(w, slots, mean, COUNT, &hyper);
    }
}

static int trains(int rank, int n, cluster_board *board, void *user)
{
    struct fixture *fixture = user;
    struct rank me;
    (void)n;
    if (rank_open(&me, rank, board, fixture) != 0) return 1;
    float *param = eni_arena_at(fixture->arenas[rank], ENI_SLOT_PARAM, 0), expected[COUNT];
    for (int i = 0; i < COUNT; i++)
        param[i] = 0.5f;
    for (int t = 0; t < STEPS; t++) {
        eni_host_counters count;
        fixture_fill(eni_arena_at(fixture->arenas[rank], ENI_SLOT_GRAD, 0), rank, (uint64_t)t, COUNT);
        CLUSTER_CHECK(eni_host_begin(me.host, (uint64_t)t, samples_of(rank, t), 0) == EN_OK);
        CLUSTER_CHECK(eni_host_submit(me.host, 0) == EN_OK && eni_host_submit(me.host, 1) == EN_OK);
        CLUSTER_CHECK(eni_host_finish(me.host) == EN_OK);
        eni_host_count(me.host, &count);
        CLUSTER_CHECK(count.version == (uint64_t)t + 1 && count.base_version == (uint64_t)t);
        CLUSTER_CHECK(count.send_ns >= 0 && count.wait_ns >= 0 && count.update_ns > 0 &&
                      count.hidden_ns >= 0);
    }
    reference(&me.config, expected);
    CLUSTER_CHECK(memcmp(param, expected, sizeof expected) == 0); /* byte for byte */
    en_host *h = view.table;
    CLUSTER_CHECK(fabs(h->coll_bytes(h, EN_ALLREDUCE, EN_WORLD) - 4.0 / 3) < 1e-12);
    rank_close(&me);
    return 0;
}

/* In parts: a reduction and a step say the same as mean_step, and what a strategy has made of grad
 * itself is stepped, whatever was behind it. */
static int steps_on_nothing(int rank, int n, cluster_board *board, void *user)
{
    struct fixture *fixture = user;
    struct rank me;
    (void)n;
    if (rank_open(&me, rank, board, fixture) != 0) return 1;
    en_host *h = view.table;
    const en_bucket *b = view.bucket[0];
    const uint64_t at = 64; /* where it begins */
    float *param = eni_arena_at(fixture->arenas[rank], ENI_SLOT_PARAM, at);
    fixture_fill(eni_arena_at(fixture->arenas[rank], ENI_SLOT_GRAD, 0), rank, 0, COUNT);
    const int ops[] = {EN_ALLREDUCE, EN_REDUCE};
    for (int i = 0; i < 4; i++) {
        const int has_samples = i % 2;
        param[0] = 0.5f;
        CLUSTER_CHECK(eni_host_begin(me.host, (uint64_t)i, has_samples && rank == 1 ? 8 : 0, 0) == EN_OK);
        CLUSTER_CHECK(h->wait(h, h->coll(h, ops[i / 2], EN_WORLD, EN_GRAD, b, b->grad)) == EN_OK);
        CLUSTER_CHECK(h->step(h, b) == EN_OK);
        if (rank == 0 || ops[i / 2] == EN_ALLREDUCE) CLUSTER_CHECK((param[0] != 0.5f) == has_samples);
    }
    param[0] = 0.5f;
    CLUSTER_CHECK(eni_host_begin(me.host, 4, 0, 0) == EN_OK);
    CLUSTER_CHECK(h->step(h, b) == EN_OK && param[0] == 0.5f); /* its own */
    CLUSTER_CHECK(h->lin(h, b->grad, 1, view.inbox[0], 1) == EN_OK);
    CLUSTER_CHECK(h->step(h, b) == EN_OK && param[0] != 0.5f);
    CLUSTER_CHECK(eni_host_steps_taken(me.host, 0) == 6);
    rank_close(&me);
    return 0;
}

/* Everybody sends bucket 1 of its gradient to the right; then rank 0's goes to all. */
static int moves(int rank, int n, cluster_board *board, void *user)
{
    struct fixture *fixture = user;
    struct rank me;
    if (rank_open(&me, rank, board, fixture) != 0) return 1;
    en_host *h = view.table;
    const en_bucket *bucket = view.bucket[1]; /* elements [0, 64) */
    float *grad = eni_arena_at(fixture->arenas[rank], ENI_SLOT_GRAD, 0);
    fixture_fill(grad, rank, 0, COUNT);
    int left = (rank + n - 1) % n;
    en_req sendrecv =
        h->sendrecv(h, EN_WORLD, EN_WEIGHTS, bucket, (rank + 1) % n, bucket->grad, left, view.inbox[1]);
    CLUSTER_CHECK(h->wait(h, sendrecv) == EN_OK);
    CLUSTER_CHECK(h->wait(h, sendrecv) == EN_OK); /* again is fine */
    CLUSTER_CHECK(h->lin(h, bucket->param, 1, view.inbox[1], 0) == EN_OK);
    const float *param = eni_arena_at(fixture->arenas[rank], ENI_SLOT_PARAM, 0);
    for (uint64_t i = 0; i < 64; i++)
        CLUSTER_CHECK(param[i] == fixture_value(left, 0, i));
    CLUSTER_CHECK(h->wait(h, h->coll(h, EN_BCAST, EN_WORLD, EN_WEIGHTS, bucket, bucket->grad)) == EN_OK);
    for (uint64_t i = 0; i < 64; i++)
        CLUSTER_CHECK(grad[i] == fixture_value(0, 0, i));
    CLUSTER_CHECK(grad[64] == fixture_value(rank, 0, 64)); /* the other bucket stays */
    rank_close(&me);
    return 0;
}

static void keep_quiet(void *user, int level, const char *subsystem, const char *text)
{
    (void)subsystem, (void)text;
    if (level == ENI_LOG_ERROR) ++*(int *)user;
}

/* A plugin's mistakes are answered with a status on the rank that makes them, and leave the group usable. */
static int errs(int rank, int n, cluster_board *board, void *user)
{
    struct rank me;
    int errors = 0;
    if (rank_open(&me, rank, board, user) != 0) return 1;
    en_host *h = view.table;
    const en_bucket *b = view.bucket[0];
    const en_vec foreign = view.bucket[1]->grad;
    eni_log_set_sink(keep_quiet, &errors);
    CLUSTER_CHECK(h->wait(h, h->coll(h, EN_ALLREDUCE, EN_WORLD, EN_GRAD, b, 0)) == EN_EBUG);
    CLUSTER_CHECK(h->wait(h, h->coll(h, EN_ALLREDUCE, EN_WORLD, EN_GRAD, b, foreign)) == EN_EBUG);
    CLUSTER_CHECK(h->wait(h, h->coll(h, EN_ALLREDUCE, EN_WORLD, EN_GRAD, b, UINT32_MAX)) == EN_EBUG);
    CLUSTER_CHECK(h->wait(h, h->sendrecv(h, EN_WORLD, EN_WEIGHTS, b, 0, b->grad, 0, UINT32_MAX)) == EN_EBUG);
    CLUSTER_CHECK(h->wait(h, h->coll(h, 77, EN_WORLD, EN_GRAD, b, b->grad)) == EN_EINVAL);
    CLUSTER_CHECK(h->wait(h, h->sendrecv(h, EN_WORLD, EN_WEIGHTS, b, n, b->grad, 0, view.inbox[0])) ==
                  EN_EINVAL);
    CLUSTER_CHECK(h->wait(h, h->coll(h, EN_ALLREDUCE, EN_GROUP, EN_GRAD, b, b->grad)) == EN_EINVAL);
    CLUSTER_CHECK(h->wait(h, h->coll(h, EN_ALLREDUCE, EN_WORLD, 4, b, b->grad)) == EN_EINVAL);
    CLUSTER_CHECK(h->wait(h, h->sendrecv(h, EN_LOCAL, EN_WEIGHTS, b, 0, b->grad, 0, view.inbox[0])) ==
                  EN_EINVAL);
    CLUSTER_CHECK(h->wait(h, h->call(h, EN_SERVERS, 1, EN_GRAD, b, b->grad, b->param, 7)) == EN_EINVAL);
    CLUSTER_CHECK(errors == 10);
    eni_log_set_sink(NULL, NULL);
    CLUSTER_CHECK(h->wait(h, h->coll(h, EN_ALLREDUCE, EN_WORLD, EN_WEIGHTS, b, b->grad)) == EN_OK);
    rank_close(&me);
    return 0;
}

/* Rank 2 dies in its second step, once nobody is in the first one any more: the others hear EN_EPEER, in this
 * wait and in every later one. */
static int dies(int rank, int n, cluster_board *board, void *user)
{
    struct rank me;
    if (rank_open(&me, rank, board, user) != 0) return 1;
    CLUSTER_CHECK(eni_host_begin(me.host, 0, 8, 0) == EN_OK);
    CLUSTER_CHECK(eni_host_submit(me.host, 0) == EN_OK && eni_host_submit(me.host, 1) == EN_OK);
    CLUSTER_CHECK(eni_host_finish(me.host) == EN_OK);
    atomic_fetch_add(&board->word[0], 1);
    if (rank == 2 && cluster_await(&board->word[0], (uint64_t)n)) raise(SIGKILL);
    CLUSTER_CHECK(eni_host_begin(me.host, 1, 8, 0) == EN_OK);
    CLUSTER_CHECK(eni_host_submit(me.host, 0) == EN_OK);
    CLUSTER_CHECK(view.table->wait(view.table, view.req[0]) == EN_EPEER);
    CLUSTER_CHECK(eni_host_submit(me.host, 1) == EN_OK);
    CLUSTER_CHECK(view.table->wait(view.table, view.req[1]) == EN_EPEER);
    rank_close(&me);
    return 0;
}

static int run(cluster_main main, int is_one_killed)
{
    struct fixture fixture;
    struct cluster cluster;
    assert_int_equal(fixture_open(&fixture, &ways[0], RANKS), 0); /* direct over shm */
    int bad = cluster_run(&cluster, RANKS, main, &fixture, 60000);
    if (is_one_killed) assert_int_equal(cluster.exit_code[2], 128 + SIGKILL);
    fixture_close(&fixture);
    cluster_close(&cluster);
    return bad;
}

static void test_trains(void **state)
{
    (void)state;
    assert_int_equal(run(trains, 0), 0);
}

static void test_steps_on_nothing(void **state)
{
    (void)state;
    assert_int_equal(run(steps_on_nothing, 0), 0);
}

static void test_moves(void **state)
{
    (void)state;
    assert_int_equal(run(moves, 0), 0);
}

static void test_errs(void **state)
{
    (void)state;
    assert_int_equal(run(errs, 0), 0);
}

static void test_dies(void **state)
{
    (void)state;
    assert_int_equal(run(dies, 1), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trains), cmocka_unit_test(test_steps_on_nothing),
        cmocka_unit_test(test_moves),  cmocka_unit_test(test_errs),
        cmocka_unit_test(test_dies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
