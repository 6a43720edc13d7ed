/* test_host.c - what a strategy may rely on: vectors, arithmetic, requests, and a refusal of everything else.
 */
#include "runtime/host/host.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/log.h"

/* ---- a strategy that does what the test says ---- */

static struct probe {
    char calls[512]; /* "open plan0 plan1 .." */
    en_host *table;  /* as open got it */
    const en_bucket *bucket[2];
    en_vec x[2], y[2], again, late, long_name, extra[8];
    uint64_t narrow;        /* plan narrows bucket 1 to [narrow, count - narrow) */
    int vectors;            /* extra ones to ask for */
    en_status open, submit; /* what the hooks return */
    int eval;
    en_vec eval_vec;
} probe;

static void note(const char *what, int number)
{
    size_t used = strlen(probe.calls);
    snprintf(probe.calls + used, sizeof probe.calls - used, number < 0 ? "%s " : "%s%d ", what, number);
}

static en_status fake_open(en_host *host, void *state)
{
    note("open", -1);
    probe.table = host;
    for (size_t i = 0; i < 8; i++)
        if (((char *)state)[i] != 0) return EN_EBUG;
    return probe.open;
}

static en_status fake_plan(en_host *host, void *state, const en_bucket *bucket, uint64_t *lo, uint64_t *hi)
{
    (void)state;
    note("plan", (int)bucket->id);
    probe.bucket[bucket->id] = bucket;
    probe.x[bucket->id] = host->vec(host, "x", bucket);
    probe.y[bucket->id] = host->vec(host, "y", bucket);
    probe.again = host->vec(host, "x", bucket);
    for (int i = 0; i < probe.vectors; i++) {
        char name[16];
        snprintf(name, sizeof name, "extra%d", i);
        probe.extra[i] = host->vec(host, name, bucket);
    }
    if (bucket->id == 0) {
        probe.long_name =
            host->vec(host, "a name that is far longer than any that a checkpoint would hold", bucket);
    } else if (probe.narrow > 0) {
        *lo = probe.narrow;
        *hi = bucket->count - probe.narrow;
    }
    return EN_OK;
}

static en_status fake_before(en_host *host, void *state, uint64_t step)
{
    (void)host, (void)state;
    note("before", (int)step);
    return EN_OK;
}

static en_status fake_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    note("submit", (int)bucket->id);
    if (probe.submit != EN_OK) return probe.submit;
    req[0] = host->mean_step(host, bucket);
    return EN_OK;
}

static en_status fake_finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    (void)state;
    note("finish", (int)bucket->id);
    return host->wait(host, req[0]);
}

static en_status fake_after(en_host *host, void *state, uint64_t step)
{
    (void)host, (void)state;
    note("after", (int)step);
    return EN_OK;
}

static int fake_eval(en_host *host, void *state, const en_bucket *bucket, en_vec *vec_out)
{
    (void)host, (void)state, (void)bucket;
    *vec_out = probe.eval_vec;
    return probe.eval;
}

static const en_option fake_options[] = {{.size = sizeof(en_option),
                                          .type = EN_OPT_INT,
                                          .key = "bound",
                                          .help = "clocks",
                                          .value = 3,
                                          .min = 0,
                                          .max = 9},
                                         {0}};

static const en_strategy fake = {.abi = EN_STRATEGY_ABI,
                                 .size = sizeof(en_strategy),
                                 .name = "fake",
                                 .state = 8,
                                 .options = fake_options,
                                 .open = fake_open,
                                 .plan = fake_plan,
                                 .before_step = fake_before,
                                 .submit = fake_submit,
                                 .finish = fake_finish,
                                 .after_step = fake_after,
                                 .eval = fake_eval};

/* ---- a world of one ---- */

enum { COUNT = 128, NSLOTS = 8 };

/* Bucket 0 is elements [64, 128), bucket 1 is [0, 64). */
static const en_model_tensor tensors[] = {
    {.name = "a", .offset = 0, .count = 64, .ndim = 2, .shape = {8, 8}},
    {.name = "b", .offset = 64, .count = 40, .ndim = 2, .shape = {1, 40}},
    {.name = "c", .offset = 112, .count = 16, .ndim = 2, .shape = {4, 4}}};

static struct world {
    eni_arena *arena;
    eni_buckets *buckets;
    eni_options *options;
    eni_host *host;
    eni_host_config config;
    en_status alive;
    int errors;
    char said[512];
} world;

static void listen_in(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)subsystem;
    if (level != ENI_LOG_ERROR) return;
    world.errors++;
    snprintf(world.said, sizeof world.said, "%s", text);
}

static en_status alive(void *user)
{
    (void)user;
    return world.alive;
}

static int setup(void **state)
{
    (void)state;
    memset(&probe, 0, sizeof probe);
    memset(&world, 0, sizeof world);
    eni_log_set_sink(listen_in, NULL);
    if (eni_arena_open(COUNT, NSLOTS, 0, &world.arena) != EN_OK) return -1;
    if (eni_buckets_new(tensors, 3, COUNT, 256, &world.buckets) != EN_OK) return -1;
    if (eni_options_new(&fake, "bound=5", &world.options) != EN_OK) return -1;
    world.config = (eni_host_config){
        .strategy = &fake,
        .options = world.options,
        .world = {.size = sizeof(en_world), .rank = 0, .nranks = 1, .nlocal = 1, .nhosts = 1},
        .seed = 7,
        .buckets = world.buckets,
        .arena = world.arena,
        .optimizer = eni_optimizer_find("sgd"),
        .hyper = {.momentum = 0.9f, .weight_decay = 0.01f},
        .schedule = {.kind = ENI_LR_STEP, .base = 1, .gamma = 0.5, .step_samples = 100},
        .alive_status = alive};
    return world.buckets->n == 2 ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    eni_host_close(world.host);
    eni_options_free(world.options);
    eni_buckets_free(world.buckets);
    eni_arena_close(world.arena);
    eni_log_set_sink(NULL, NULL);
    return 0;
}

static en_host *open_host(void)
{
    assert_int_equal(eni_host_open(&world.config, &world.host), EN_OK);
    return probe.table;
}

static float *at(uint32_t slot, uint64_t element)
{
    return eni_arena_at(world.arena, slot, element);
}

static void fill(uint32_t slot, float first)
{
    for (uint64_t i = 0; i < COUNT; i++)
        *at(slot, i) = first + 0.01f * (float)i;
}

static void one_step(uint64_t step, uint64_t samples_before)
{
    assert_int_equal(eni_host_begin(world.host, step, 10, samples_before), EN_OK);
    for (uint32_t b = 0; b < 2; b++)
        assert_int_equal(eni_host_submit(world.host, b), EN_OK);
    assert_int_equal(eni_host_finish(world.host), EN_OK);
}

static void test_hooks_in_order(void **state)
{
    (void)state;
    open_host();
    assert_string_equal(probe.calls, "open plan0 plan1 ");
    probe.calls[0] = 0;
    one_step(4, 40);
    assert_string_equal(probe.calls, "before4 submit0 submit1 finish0 finish1 after4 ");
    assert_int_equal(probe.bucket[1]->step, 4);
    assert_int_equal(probe.bucket[1]->nsamples, 10);
    assert_int_equal(world.errors, 1); /* plan's vector with the long name */
}

/* Who carries on each bucket's weights sees them between two finishes; what is out of order is refused. */
static void test_finish_in_parts(void **state)
{
    (void)state;
    open_host();
    fill(ENI_SLOT_PARAM, 1);
    fill(ENI_SLOT_GRAD, 0.5f);
    probe.calls[0] = 0;
    world.errors = 0;
    assert_int_equal(eni_host_begin(world.host, 2, 10, 0), EN_OK);
    assert_int_equal(eni_host_submit(world.host, 0), EN_OK);
    assert_int_equal(eni_host_submit(world.host, 1), EN_OK);
    assert_int_equal(eni_host_finish_bucket(world.host, 0), EN_OK);
    assert_string_equal(probe.calls, "before2 submit0 submit1 finish0 ");
    assert_true(*at(ENI_SLOT_PARAM, 64) != 1 + 0.01f * 64);
    assert_int_equal(eni_host_finish_bucket(world.host, 0), EN_EBUG);
    assert_int_equal(eni_host_end(world.host), EN_EBUG);
    assert_int_equal(world.errors, 2);
    assert_non_null(strstr(world.said, "bucket 1 is the next"));
    assert_int_equal(eni_host_finish_bucket(world.host, 1), EN_OK);
    assert_int_equal(eni_host_finish_bucket(world.host, 2), EN_EBUG);
    assert_int_equal(eni_host_end(world.host), EN_OK);
    assert_string_equal(probe.calls, "before2 submit0 submit1 finish0 finish1 after2 ");
    eni_host_counters count;
    eni_host_count(world.host, &count);
    assert_int_equal(count.version, 1);
}

/* All micro-batches of a process alone may be left out (fp16): then nothing moves, and the step counts. */
static void test_no_samples_no_step(void **state)
{
    float before[2];
    (void)state;
    open_host();
    fill(ENI_SLOT_PARAM, 1);
    fill(ENI_SLOT_GRAD, 0.5f);
    one_step(0, 0);
    const uint32_t momentum = (probe.table->slot(probe.table, probe.bucket[0], 0) - 1) >> 16;
    before[0] = *at(ENI_SLOT_PARAM, 70);
    before[1] = *at(momentum, 70);
    assert_true(before[1] != 0);
    assert_int_equal(eni_host_begin(world.host, 1, 0, 10), EN_OK);
    for (uint32_t b = 0; b < 2; b++)
        assert_int_equal(eni_host_submit(world.host, b), EN_OK);
    assert_int_equal(eni_host_finish(world.host), EN_OK);
    assert_true(*at(ENI_SLOT_PARAM, 70) == before[0] && *at(momentum, 70) == before[1]);
    eni_host_counters count;
    eni_host_count(world.host, &count);
    assert_true(count.version == 2 && count.steps == 2);
    one_step(2, 10);
    assert_true(*at(ENI_SLOT_PARAM, 70) != before[0] && *at(momentum, 70) != before[1]);
}

static void test_statuses_pass(void **state)
{
    (void)state;
    probe.open = EN_EUNSUPPORTED;
    assert_int_equal(eni_host_open(&world.config, &world.host), EN_EUNSUPPORTED);
    probe.open = EN_OK;
    open_host();
    probe.submit = EN_EMEMBER;
    assert_int_equal(eni_host_begin(world.host, 0, 1, 0), EN_OK);
    assert_int_equal(eni_host_submit(world.host, 0), EN_EMEMBER);
    eni_host_close(NULL);
}

static void test_vectors(void **state)
{
    (void)state;
    en_host *h = open_host();
    assert_true(probe.x[0] != 0 && probe.x[1] != 0 && probe.y[0] != 0);
    assert_true(probe.x[0] != probe.x[1] && probe.x[0] != probe.y[0]); /* bucket and name tell them apart */
    assert_int_equal(probe.again, probe.x[1]);                         /* the same name is the same vector */
    assert_int_equal(probe.long_name, 0);
    /* zeroed, and as long as the bucket */
    *at(ENI_SLOT_PARAM, 64) = 3;
    assert_int_equal(h->lin(h, probe.bucket[0]->param, 1, probe.x[0], 1), EN_OK);
    assert_true(*at(ENI_SLOT_PARAM, 64) == 3);
    /* not after planning */
    world.errors = 0;
    assert_int_equal(h->vec(h, "late", probe.bucket[0]), 0);
    assert_int_equal(world.errors, 1);
    assert_non_null(strstr(world.said, "late"));
    assert_true(h->slot(h, probe.bucket[0], 0) != 0); /* momentum */
    assert_int_equal(h->slot(h, probe.bucket[0], 1), 0);
    assert_int_equal(h->slot(h, probe.bucket[0], -1), 0);
}

/* 8 slots: param, grad, inbox, momentum, x, y: two are left. */
static void test_no_room_for_vectors(void **state)
{
    (void)state;
    probe.vectors = 3;
    open_host();
    assert_true(probe.extra[0] != 0 && probe.extra[1] != 0);
    assert_int_equal(probe.extra[2], 0);
    assert_non_null(strstr(world.said, "extra2"));
}

static void test_lin(void **state)
{
    (void)state;
    en_host *h = open_host();
    fill(ENI_SLOT_PARAM, 1);
    fill(ENI_SLOT_GRAD, NAN);
    const en_vec param = probe.bucket[0]->param, grad = probe.bucket[0]->grad;
    assert_int_equal(h->lin(h, grad, 2, param, 0), EN_OK); /* b 0: y's old contents do not count */
    assert_true(*at(ENI_SLOT_GRAD, 64) == 2 * *at(ENI_SLOT_PARAM, 64));
    assert_true(*at(ENI_SLOT_GRAD, 127) == 2 * *at(ENI_SLOT_PARAM, 127));
    assert_true(isnan(*at(ENI_SLOT_GRAD, 63))); /* the other bucket is not touched */
    float before = *at(ENI_SLOT_GRAD, 100), x = *at(ENI_SLOT_PARAM, 100);
    assert_int_equal(h->lin(h, grad, -1, param, 0.5), EN_OK);
    assert_float_equal(*at(ENI_SLOT_GRAD, 100), 0.5f * before - x, 1e-6);
    world.errors = 0;
    assert_int_equal(h->lin(h, grad, 1, probe.bucket[1]->param, 0), EN_EBUG);
    assert_int_equal(h->lin(h, 0, 1, param, 0), EN_EBUG);
    assert_int_equal(h->lin(h, grad, 1, 0, 0), EN_EBUG);
    assert_int_equal(h->lin(h, UINT32_MAX, 1, param, 0), EN_EBUG);
    assert_int_equal(world.errors, 4);
}

/* What the optimizer alone makes of the same gradient. */
static void expect_steps(const float *lr, int n)
{
    float w[COUNT], m[COUNT] = {0}, g[COUNT], *slots[] = {m};
    for (int i = 0; i < COUNT; i++) {
        w[i] = 1 + 0.01f * (float)i;
        g[i] = -2 + 0.01f * (float)i;
    }
    for (int t = 0; t < n; t++) {
        eni_hyper hyper = world.config.hyper;
        hyper.lr = lr[t];
        hyper.step = (uint64_t)t;
        world.config.optimizer->step(w, slots, g, COUNT, &hyper);
    }
    assert_memory_equal(at(ENI_SLOT_PARAM, 0), w, sizeof w);
}

static void test_step_follows_the_schedule(void **state)
{
    (void)state;
    en_host *h = open_host();
    fill(ENI_SLOT_PARAM, 1);
    fill(ENI_SLOT_GRAD, -2);
    one_step(0, 0);
    assert_true(h->lr(h) == 1);
    one_step(1, 99);
    one_step(2, 100);
    assert_true(h->lr(h) == 0.5);
    expect_steps((const float[]){1, 1, 0.5f}, 3);
    eni_host_counters count;
    eni_host_count(world.host, &count);
    assert_true(count.lr == 0.5f);
    assert_int_equal(count.steps, 3);
    assert_int_equal(count.version, 3);
    assert_int_equal(count.base_version, 2); /* the weights that the last gradient was computed on */
    assert_true(count.update_ns > 0);
}

static void test_step_keeps_to_its_range(void **state)
{
    (void)state;
    probe.narrow = 16;
    open_host();
    fill(ENI_SLOT_PARAM, 1);
    fill(ENI_SLOT_GRAD, -2);
    one_step(0, 0);
    for (uint64_t i = 0; i < 64; i++) {
        int is_stepped = *at(ENI_SLOT_PARAM, i) != 1 + 0.01f * (float)i;
        assert_int_equal(is_stepped, i >= 16 && i < 48);
    }
    assert_true(*at(ENI_SLOT_PARAM, 64) != 1 + 0.64f); /* bucket 0 as a whole */
}

static void test_small_services(void **state)
{
    (void)state;
    en_host *h = open_host();
    assert_true(h->num(h, "bound") == 5);
    assert_int_equal(h->abi, EN_STRATEGY_ABI);
    assert_int_equal(h->size, sizeof(en_host));
    assert_int_equal(h->world->nranks, 1);
    assert_true(isnan(h->cost(h, 0, probe.bucket[0])));
    assert_true(h->coll_bytes(h, EN_ALLREDUCE, EN_WORLD) == 0);
    assert_true(h->now_ns(h) > 0);
    /* random numbers are a function of (seed, rank, step, calls) */
    assert_int_equal(eni_host_begin(world.host, 3, 1, 0), EN_OK);
    uint64_t a = h->rand(h), b = h->rand(h);
    assert_int_equal(eni_host_begin(world.host, 4, 1, 0), EN_OK);
    uint64_t c = h->rand(h);
    assert_int_equal(eni_host_begin(world.host, 3, 1, 0), EN_OK);
    assert_true(a != b && a != c);
    assert_true(h->rand(h) == a && h->rand(h) == b);
}

static void test_requests(void **state)
{
    (void)state;
    en_host *h = open_host();
    const en_bucket *bucket = probe.bucket[0];
    assert_int_equal(h->wait(h, 0), EN_OK);
    assert_int_equal(h->wait(h, 12345), EN_EBUG); /* there never was one */
    /* alone, a collective is the identity and done at once */
    fill(ENI_SLOT_GRAD, 1);
    assert_int_equal(h->coll(h, EN_ALLREDUCE, EN_WORLD, EN_GRAD, bucket, bucket->grad), 0);
    assert_int_equal(h->sendrecv(h, EN_WORLD, EN_WEIGHTS, bucket, 0, bucket->grad, 0, bucket->param), 0);
    assert_true(*at(ENI_SLOT_GRAD, 64) == 1 + 0.64f);
    /* no servers, no store in a worker: refused, and wait says so rather than wait */
    world.errors = 0;
    en_req req = h->call(h, EN_SERVERS, 1, EN_GRAD, bucket, bucket->grad, bucket->param, 0);
    assert_int_equal(world.errors, 1);
    assert_non_null(strstr(world.said, "none"));
    assert_int_equal(h->wait(h, req), EN_EBUG);
    assert_int_equal(h->wait(h, h->call(h, 0, 1, EN_GRAD, bucket, bucket->grad, bucket->param, 0)), EN_EBUG);
    world.alive = EN_EPEER; /* a death explains more than the bug that it may have caused */
    assert_int_equal(h->wait(h, req), EN_EPEER);
}

static void test_eval_and_theory(void **state)
{
    (void)state;
    open_host();
    uint32_t slot = 99;
    int which = -1;
    probe.eval = EN_EVAL_VEC;
    probe.eval_vec = probe.y[0];
    assert_int_equal(eni_host_eval(world.host, &which, &slot), EN_OK);
    assert_int_equal(which, EN_EVAL_VEC);
    assert_int_equal(slot, ENI_SLOT_FREE + 2); /* momentum, x, y */
    const en_vec wrong[] = {0, UINT32_MAX, probe.y[1]};
    for (int i = 0; i < 3; i++) {
        probe.eval_vec = wrong[i];
        assert_int_equal(eni_host_eval(world.host, &which, &slot), EN_EBUG);
    }
    probe.eval = 99;
    assert_int_equal(eni_host_eval(world.host, &which, &slot), EN_EBUG);
    probe.eval = EN_EVAL_STORE; /* of a run without servers */
    assert_int_equal(eni_host_eval(world.host, &which, &slot), EN_EBUG);
    en_theory theory;
    memset(&theory, 0xff, sizeof theory);
    eni_host_theory(world.host, 0, &theory);
    assert_true(theory.sent == 0 && theory.recv == 0 && isinf(theory.max_clocks_behind));
    assert_true(theory.staleness < 0);
}

static void test_defaults(void **state)
{
    (void)state;
    static en_strategy bare;
    bare = (en_strategy){.abi = EN_STRATEGY_ABI, .size = sizeof bare, .name = "bare", .submit = fake_submit};
    world.config.strategy = &bare;
    world.config.options = NULL;
    assert_int_equal(eni_host_open(&world.config, &world.host), EN_OK);
    fill(ENI_SLOT_PARAM, 1);
    fill(ENI_SLOT_GRAD, -2);
    one_step(0, 0);
    expect_steps((const float[]){1}, 1);
    uint32_t slot;
    int which = -1;
    assert_int_equal(eni_host_eval(world.host, &which, &slot), EN_OK);
    assert_int_equal(which, EN_EVAL_PARAM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_hooks_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_finish_in_parts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_samples_no_step, setup, teardown),
        cmocka_unit_test_setup_teardown(test_statuses_pass, setup, teardown),
        cmocka_unit_test_setup_teardown(test_vectors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_room_for_vectors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lin, setup, teardown),
        cmocka_unit_test_setup_teardown(test_step_follows_the_schedule, setup, teardown),
        cmocka_unit_test_setup_teardown(test_step_keeps_to_its_range, setup, teardown),
        cmocka_unit_test_setup_teardown(test_small_services, setup, teardown),
        cmocka_unit_test_setup_teardown(test_requests, setup, teardown),
        cmocka_unit_test_setup_teardown(test_eval_and_theory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_defaults, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
