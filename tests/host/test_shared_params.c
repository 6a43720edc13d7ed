/* test_shared_params.c - one copy of the weights for all ranks: the same bytes as with a copy each, for any
 * number of ranks, any samples and any kind of SGD; what else would write the copy is misuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/log.h"
#include "ops/mean.h"
#include "runtime/host/host.h"
#include "tests/collective/group_fixture.h"

/* One bucket of several blocks and a ragged one, one with less than a line for every rank. */
enum { MAX_RANKS = 5, FIRST = 48, SECOND = 80011, COUNT = FIRST + SECOND, STEPS = 4, NKINDS = 4 };

static const en_model_tensor tensors[] = {
    {.name = "a", .offset = 0, .count = FIRST, .ndim = 2, .shape = {1, FIRST}},
    {.name = "b", .offset = FIRST, .count = SECOND, .ndim = 2, .shape = {1, SECOND}}};

static const eni_hyper kinds[NKINDS] = {
    {.momentum = 0},
    {.momentum = 0.9f},
    {.momentum = 0.9f, .weight_decay = 0.001f, .nesterov = 1},
    {.weight_decay = 0.01f},
};

static struct rank_view {
    en_host *table;
    const en_bucket *bucket[2];
    en_vec own;
    int narrows;
} view;

static en_status plan(en_host *host, void *state, const en_bucket *bucket, uint64_t *lo, uint64_t *hi)
{
    (void)state;
    view.table = host;
    view.bucket[bucket->id] = bucket;
    view.own = host->vec(host, "own", bucket);
    if (view.narrows) *lo = *hi;
    return EN_OK;
}

static en_status submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    req[0] = host->mean_step(host, bucket);
    return EN_OK;
}

static const en_strategy strategy = {.abi = EN_STRATEGY_ABI,
                                     .size = sizeof(en_strategy),
                                     .name = "one",
                                     .flags = EN_SHARED_PARAMS,
                                     .plan = plan,
                                     .submit = submit};

struct rank {
    eni_coll *coll;
    eni_buckets *buckets;
    eni_options *options;
    eni_host *host;
};

static eni_host_config config_of(const struct rank *me, int rank, int n, const struct fixture *fixture,
                                 cluster_board *board, int kind)
{
    return (eni_host_config){
        .strategy = &strategy,
        .options = me->options,
        .world = {.size = sizeof(en_world), .epoch = 1, .rank = rank, .nranks = n, .nlocal = n, .nhosts = 1},
        .buckets = me->buckets,
        .arena = fixture->arenas[rank],
        .coll = me->coll,
        .coll_algorithm = fixture->way->algorithm,
        .optimizer = eni_optimizer_find("sgd"),
        .hyper = kinds[kind],
        .schedule = {.kind = ENI_LR_CONSTANT, .base = 0.1},
        .alive_status = cluster_alive,
        .alive_user = board};
}

static int rank_open(struct rank *me, int rank, int n, cluster_board *board, struct fixture *fixture,
                     int kind)
{
    memset(me, 0, sizeof *me);
    me->coll = fixture_group(fixture, rank, board, (uint32_t)kind + 1);
    CLUSTER_CHECK(me->coll != NULL);
    CLUSTER_CHECK(eni_buckets_new(tensors, 2, COUNT, 320100, &me->buckets) == EN_OK && me->buckets->n == 2);
    CLUSTER_CHECK(eni_options_new(&strategy, "", &me->options) == EN_OK);
    const eni_host_config config = config_of(me, rank, n, fixture, board, kind);
    CLUSTER_CHECK(eni_host_open(&config, &me->host) == EN_OK);
    return 0;
}

static void rank_close(struct rank *me)
{
    eni_host_close(me->host);
    eni_coll_close(me->coll);
    eni_options_free(me->options);
    eni_buckets_free(me->buckets);
}

static uint64_t samples_of(int rank, int step)
{
    return step == 2 ? 0 : (uint64_t)((rank + step) % 3) * 8; /* now and then none, once nobody has any */
}

static void reference(int n, int kind, float *w)
{
    static float g[MAX_RANKS][COUNT], mean[COUNT], m[COUNT];
    const float *from[MAX_RANKS];
    uint64_t nsamples[MAX_RANKS];
    float *slots[] = {m};
    memset(m, 0, sizeof m);
    for (int i = 0; i < COUNT; i++)
        w[i] = 0.5f;
    for (int t = 0; t < STEPS; t++) {
        uint64_t total = 0;
        for (int r = 0; r < n; r++) {
            fixture_fill(g[r], r, (uint64_t)t, COUNT);
            from[r] = g[r];
            nsamples[r] = samples_of(r, t);
            total += nsamples[r];
        }
        if (total == 0) continue; /* nothing moves, momentum neither */
        eni_mean_ranks(mean, from, nsamples, n, ENI_SUM_RANK, COUNT, 0, COUNT);
        eni_hyper hyper = kinds[kind];
        hyper.lr = 0.1f;
        hyper.step = (uint64_t)t;
        eni_optimizer_find("sgd")->step(w, slots, mean, COUNT, &hyper);
    }
}

static int step_once(struct rank *me, int rank, int t, float *grad)
{
    fixture_fill(grad, rank, (uint64_t)t, COUNT);
    CLUSTER_CHECK(eni_host_begin(me->host, (uint64_t)t, samples_of(rank, t), 0) == EN_OK);
    CLUSTER_CHECK(eni_host_submit(me->host, 0) == EN_OK && eni_host_submit(me->host, 1) == EN_OK);
    CLUSTER_CHECK(eni_host_finish(me->host) == EN_OK);
    return 0;
}

/* Rank 0's start is everybody's, whatever the others hold, unless they keep their own weights; over TCP each steps its own. */
static bool has_own_params;

static int trains(int rank, int n, cluster_board *board, void *user)
{
    static float expected[COUNT];
    struct fixture *fixture = user;
    const int is_one = fixture->way->transport == ENI_OVER_SHM, last = is_one ? NKINDS : 1;
    for (int kind = 0; kind < last; kind++) {
        struct rank me;
        eni_coll_counters before, after;
        eni_host_counters count;
        if (rank_open(&me, rank, n, board, fixture, kind) != 0) return 1;
        float *param = eni_arena_at(fixture->arenas[rank], ENI_SLOT_PARAM, 0);
        float *grad = eni_arena_at(fixture->arenas[rank], ENI_SLOT_GRAD, 0);
        uint32_t slot;
        if (eni_host_optimizer_slots(me.host, &slot) > 0 && (rank == 0 || kind == 1)) /* left by the last */
            memset(eni_arena_at(fixture->arenas[rank], slot, 0), 0, COUNT * sizeof(float));
        const eni_coll_op barrier = {.op = ENI_COLL_BARRIER};
        CLUSTER_CHECK(eni_coll_run(me.coll, &barrier) == EN_OK);
        for (int i = 0; i < COUNT && (rank == 0 || !is_one || has_own_params); i++)
            param[i] = 0.5f;
        CLUSTER_CHECK(eni_host_share_step(me.host, has_own_params) == EN_OK);
        CLUSTER_CHECK(param[COUNT - 1] == 0.5f);
        eni_coll_count(me.coll, &before);
        for (int t = 0; t < STEPS; t++)
            if (step_once(&me, rank, t, grad) != 0) return 1;
        eni_coll_count(me.coll, &after);
        eni_host_count(me.host, &count);
        CLUSTER_CHECK(count.steps == STEPS && count.version == STEPS && count.lr == 0.1f);
        CLUSTER_CHECK(eni_host_steps_taken(me.host, 1) == STEPS && count.update_ns > 0);
        CLUSTER_CHECK(eni_host_writes_param(me.host));
        if (is_one) { /* its slice of the other gradients, and of the weights; its gradient is as it was */
            const uint64_t nweights = has_own_params ? (uint64_t)n - 1 : 1;
            uint64_t slices = 0;
            for (int b = 0; b < 2; b++) {
                const uint64_t length = view.bucket[b]->count;
                slices += eni_slice_lo(length, rank + 1, n) - eni_slice_lo(length, rank, n);
            }
            CLUSTER_CHECK(after.shm_bytes - before.shm_bytes ==
                          STEPS * slices * ((uint64_t)n - 1 + nweights) * sizeof(float));
            if (has_own_params) param[0] += 0.25f * (float)(rank + 1); /* it is this rank's alone */
            CLUSTER_CHECK(grad[COUNT - 1] == fixture_value(rank, STEPS - 1, COUNT - 1));
        }
        reference(n, kind, expected);
        if (is_one && has_own_params) expected[0] += 0.25f * (float)(rank + 1);
        CLUSTER_CHECK(memcmp(param, expected, sizeof expected) == 0);
        CLUSTER_CHECK(eni_coll_run(me.coll, &barrier) == EN_OK); /* until all have compared */
        rank_close(&me);
    }
    return 0;
}

static void keep_quiet(void *user, int level, const char *subsystem, const char *text)
{
    (void)subsystem;
    if (level == ENI_LOG_ERROR && strstr(text, "EN_SHARED_PARAMS") != NULL) ++*(int *)user;
}

static int errs(int rank, int n, cluster_board *board, void *user)
{
    struct rank me;
    int errors = 0;
    if (rank_open(&me, rank, n, board, user, 1) != 0) return 1;
    CLUSTER_CHECK(eni_host_share_step(me.host, false) == EN_OK);
    en_host *h = view.table;
    const en_bucket *b = view.bucket[1];
    eni_log_set_sink(keep_quiet, &errors);
    CLUSTER_CHECK(h->step(h, b) == EN_EBUG);
    CLUSTER_CHECK(h->lin(h, b->param, 1, b->grad, 0) == EN_EBUG);
    CLUSTER_CHECK(h->lin(h, h->slot(h, b, 0), 1, b->grad, 0) == EN_EBUG);
    CLUSTER_CHECK(h->wait(h, h->coll(h, EN_BCAST, EN_WORLD, EN_WEIGHTS, b, b->param)) == EN_EBUG);
    CLUSTER_CHECK(h->wait(h, h->sendrecv(h, EN_WORLD, EN_WEIGHTS, b, 0, b->grad, 0, b->param)) == EN_EBUG);
    CLUSTER_CHECK(errors == 5);
    CLUSTER_CHECK(h->lin(h, view.own, 1, b->param, 0) == EN_OK); /* reading is fine */
    eni_host_close(me.host);
    view.narrows = 1;
    const eni_host_config config = config_of(&me, rank, n, user, board, 1);
    CLUSTER_CHECK(eni_host_open(&config, &me.host) == EN_EBUG && errors == 6);
    me.host = NULL;
    eni_log_set_sink(NULL, NULL);
    rank_close(&me);
    return 0;
}

static int run(cluster_main main, int way, int n)
{
    struct fixture fixture;
    struct cluster cluster;
    assert_int_equal(fixture_open(&fixture, &ways[way], n), 0);
    const int bad = cluster_run(&cluster, n, main, &fixture, 60000);
    fixture_close(&fixture);
    cluster_close(&cluster);
    return bad;
}

static void test_trains(void **state)
{
    (void)state;
    for (int n = 2; n <= MAX_RANKS; n++)
        assert_int_equal(run(trains, 0, n), 0);
    assert_int_equal(run(trains, 3, 3), 0); /* naive over TCP: the same sums, a copy each */
    has_own_params = true;
    for (int n = 2; n <= MAX_RANKS; n++)
        assert_int_equal(run(trains, 0, n), 0);
    has_own_params = false;
}

static void test_errs(void **state)
{
    (void)state;
    assert_int_equal(run(errs, 0, 2), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trains), cmocka_unit_test(test_errs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
