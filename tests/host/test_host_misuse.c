/* test_host_misuse.c - a strategy that breaks the contract fails in one line with its name, hook, rank, step
 * and bucket, whatever its hook returns; nothing that it hands in is used as an index or an address. */
#include "runtime/host/host.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/log.h"

enum { COUNT = 64 };

typedef en_status (*misdeed)(en_host *, const en_bucket *);
static uint64_t plan_hi;
static misdeed in_plan, in_submit, in_finish;
static en_status returned;

static char said[1200];
static int errors;

static void listen_to(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)subsystem;
    if (level != ENI_LOG_ERROR) return;
    errors++;
    snprintf(said, sizeof said, "%s", text);
}

static en_status plan(en_host *host, void *state, const en_bucket *bucket, uint64_t *lo, uint64_t *hi)
{
    (void)state;
    if (bucket->id == 1 && plan_hi > 0) *hi = plan_hi;
    (void)lo;
    return in_plan != NULL && bucket->id == 1 ? in_plan(host, bucket) : EN_OK;
}

static int wrong_request; /* written by submit; 0: none */

static en_status submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    if (wrong_request > 0 && bucket->id == 1) req[wrong_request] = 1;
    return in_submit != NULL && bucket->id == 1 ? in_submit(host, bucket) : EN_OK;
}

static en_status finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    (void)state, (void)req;
    return in_finish != NULL && bucket->id == 1 ? in_finish(host, bucket) : EN_OK;
}

static const en_strategy bad = {.abi = EN_STRATEGY_ABI,
                                .size = sizeof(en_strategy),
                                .name = "bad",
                                .plan = plan,
                                .submit = submit,
                                .finish = finish};

static en_status alive(void *user)
{
    (void)user;
    return EN_OK;
}

static int is_cut; /* two hosts, and groups of ranks of both */

/* One step of a world of one, with two buckets; the first status that is none. */
static en_status run_step(void)
{
    static const en_model_tensor tensors[] = {{.name = "a", .offset = 0, .count = COUNT},
                                              {.name = "b", .offset = COUNT, .count = COUNT}};
    eni_host_config config = {
        .strategy = &bad,
        .world = {.size = sizeof(en_world), .rank = 2, .nranks = 3, .nlocal = 1, .nhosts = 1 + is_cut},
        .has_own_groups = is_cut,
        .optimizer = eni_optimizer_find("sgd"),
        .schedule = {.base = 1},
        .alive_status = alive};
    eni_arena *arena;
    eni_buckets *buckets;
    eni_options *options;
    eni_host *host = NULL;
    errors = 0;
    said[0] = 0;
    assert_int_equal(eni_arena_open(2 * COUNT, ENI_ARENA_NSLOTS, 0, &arena), EN_OK);
    assert_int_equal(eni_buckets_new(tensors, 2, 2 * COUNT, COUNT * sizeof(float), &buckets), EN_OK);
    assert_int_equal(buckets->n, 2);
    assert_int_equal(eni_options_new(&bad, NULL, &options), EN_OK);
    config.arena = arena;
    config.buckets = buckets;
    config.options = options;
    en_status st = eni_host_open(&config, &host);
    if (st == EN_OK) st = eni_host_begin(host, 7, 1, 0);
    for (uint32_t b = 0; b < 2 && st == EN_OK; b++)
        st = eni_host_submit(host, b);
    if (st == EN_OK) st = eni_host_finish(host);
    eni_host_close(host);
    eni_options_free(options);
    eni_buckets_free(buckets);
    eni_arena_close(arena);
    return st;
}

/* ---- misdeeds: all of them say that they went well ---- */

static en_status no_group(en_host *host, const en_bucket *bucket)
{
    host->coll(host, EN_ALLREDUCE, EN_GROUP, EN_GRAD, bucket, bucket->grad);
    return EN_OK;
}

/* Its hosts are two, and no group of --groups is one of them. */
static en_status cut_otherwise(en_host *host, const en_bucket *bucket)
{
    host->coll(host, EN_ALLREDUCE, EN_LOCAL, EN_GRAD, bucket, bucket->grad);
    return EN_OK;
}

static en_status other_group(en_host *host, const en_bucket *bucket)
{
    host->coll(host, EN_ALLREDUCE, 7, EN_GRAD, bucket, bucket->grad);
    return EN_OK;
}

static en_status local_sendrecv(en_host *host, const en_bucket *bucket)
{
    host->sendrecv(host, EN_LOCAL, EN_WEIGHTS, bucket, 0, bucket->grad, 0, bucket->param);
    return EN_OK;
}

static en_status sendrecv_in_place(en_host *host, const en_bucket *bucket)
{
    const int next = (host->world->rank + 1) % host->world->nranks;
    host->sendrecv(host, EN_WORLD, EN_GRAD, bucket, next, bucket->grad, next, bucket->grad);
    return EN_OK;
}

static en_status carries_nothing(en_host *host, const en_bucket *bucket)
{
    host->sendrecv(host, EN_WORLD, 0, bucket, 0, bucket->grad, 0, bucket->param);
    return EN_OK;
}

static en_status word(en_host *host, const en_bucket *bucket)
{
    host->call(host, EN_SERVERS, 1, EN_GRAD, bucket, bucket->grad, bucket->param, 77);
    return EN_OK;
}

static en_status foreign_bucket(en_host *host, const en_bucket *bucket)
{
    en_bucket copy = *bucket;
    host->step(host, &copy);
    return EN_OK;
}

static en_status no_bucket(en_host *host, const en_bucket *bucket)
{
    (void)bucket;
    host->call(host, EN_SERVERS, 1, EN_GRAD, NULL, 1, 1, 0);
    return EN_OK;
}

static en_status unknown_request(en_host *host, const en_bucket *bucket)
{
    (void)bucket;
    host->wait(host, 4711);
    return EN_OK;
}

static en_status store_of_a_ring(en_host *host, const en_bucket *bucket)
{
    host->call(host, EN_SERVERS, 1, EN_GRAD, bucket, bucket->grad, bucket->param, 0);
    return EN_OK;
}

static en_status kind_0(en_host *host, const en_bucket *bucket)
{
    host->call(host, EN_SERVERS, 0, EN_GRAD, bucket, bucket->grad, bucket->param, 0);
    return EN_OK;
}

static en_status foreign_vector(en_host *host, const en_bucket *bucket)
{
    host->lin(host, bucket->grad, 1, bucket->param + 0x00ff0000u, 0);
    return EN_OK;
}

static en_status vector_like_none(en_host *host, const en_bucket *bucket)
{
    (void)bucket;
    host->vec(host, "x", NULL);
    return EN_OK;
}

static en_status no_key(en_host *host, const en_bucket *bucket)
{
    (void)bucket;
    host->num(host, NULL);
    host->text(host, NULL);
    return EN_OK;
}

static en_status no_operation(en_host *host, const en_bucket *bucket)
{
    host->coll(host, 77, EN_WORLD, EN_GRAD, bucket, bucket->grad);
    return EN_OK;
}

/* Of the host's own, not of the contract. */
static en_status inner_operation(en_host *host, const en_bucket *bucket)
{
    host->coll(host, 8, EN_WORLD, EN_GRAD, bucket, bucket->grad);
    return EN_OK;
}

static en_status far_ranks(en_host *host, const en_bucket *bucket)
{
    host->sendrecv(host, EN_WORLD, EN_WEIGHTS, bucket, 3, bucket->grad, -1, bucket->param);
    return EN_OK;
}

static en_status wait_for_nothing(en_host *host, const en_bucket *bucket)
{
    (void)bucket;
    return host->wait(host, 0);
}

static en_status step_twice(en_host *host, const en_bucket *bucket)
{
    host->step(host, bucket);
    host->mean_step(host, bucket);
    return EN_OK;
}

static en_status return_it(en_host *host, const en_bucket *bucket)
{
    (void)host, (void)bucket;
    return returned;
}

static void expect_refusal(const char *what, en_status st, en_status wanted, const char *hook,
                           const char *place, const char *words)
{
    char begin[128];
    snprintf(begin, sizeof begin, "%s of bad (rank 2%s, bucket 1)", hook, place);
    if (st != wanted || errors < 1 || strncmp(said, begin, strlen(begin)) != 0 || strstr(said, words) == NULL)
        fail_msg("%s: status %d, %d errors; \"%s ..%s\" expected in \"%s\"", what, st, errors, begin, words,
                 said);
}

static void expect_misuse(const char *what, en_status st, const char *hook, const char *place,
                          const char *words)
{
    expect_refusal(what, st, EN_EBUG, hook, place, words);
}

static void test_misuse_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        misdeed misdeed;
        const char *words;
    } cases[] = {{"copy", foreign_bucket, "not the host's"},
                 {"no bucket", no_bucket, "called call"},
                 {"request", unknown_request, "4711"},
                 {"store", store_of_a_ring, "called a store"},
                 {"kind", kind_0, "1 .. 255"},
                 {"vector", foreign_vector, "lin"},
                 {"like", vector_like_none, "called vec"},
                 {"key", no_key, "without a key"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        in_submit = cases[i].misdeed;
        expect_misuse(cases[i].name, run_step(), "submit", ", step 7", cases[i].words);
        in_submit = NULL;
        in_finish = cases[i].misdeed;
        expect_misuse(cases[i].name, run_step(), "finish", ", step 7", cases[i].words);
        in_finish = NULL;
    }
    in_plan = return_it; /* EN_OK */
    plan_hi = UINT64_MAX;
    expect_misuse("range in plan", run_step(), "plan", "", "18446744073709551615");
    plan_hi = 0;
    in_plan = vector_like_none;
    expect_misuse("like in plan", run_step(), "plan", "", "called vec");
    in_plan = NULL;
}

/* Submit never waits; a bucket has EN_REQS requests, and one step. */
static void test_misuse_of_submit(void **state)
{
    (void)state;
    in_submit = wait_for_nothing;
    expect_misuse("wait", run_step(), "submit", ", step 7", "rule 4");
    in_submit = step_twice;
    expect_misuse("step", run_step(), "submit", ", step 7", "after step");
    in_submit = NULL;
    in_finish = step_twice;
    expect_misuse("step", run_step(), "finish", ", step 7", "after step");
    in_finish = NULL;
    for (wrong_request = EN_REQS; wrong_request < EN_REQS + 4; wrong_request++)
        expect_misuse("requests", run_step(), "submit", ", step 7", "EN_REQS");
    wrong_request = EN_REQS - 1;
    in_finish = wait_for_nothing;
    assert_int_equal(run_step(), EN_OK);
    wrong_request = 0;
    in_finish = NULL;
}

/* What version 2 names and no host has yet: one sentence, and the hook fails with EN_EINVAL. */
static void test_what_is_not_there_yet_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        misdeed misdeed;
        const char *words;
    } cases[] = {{"group", no_group, "EN_USES_GROUPS"},
                 {"operation", no_operation, "operation 77"},
                 {"inner", inner_operation, "operation 8"},
                 {"far ranks", far_ranks, "ranks 3 and -1"},
                 {"group 7", other_group, "group 7"},
                 {"local", cut_otherwise, "EN_LOCAL"},
                 {"sendrecv", local_sendrecv, "called sendrecv for a group"},
                 {"in place", sendrecv_in_place, "that it sends"},
                 {"what", carries_nothing, "EN_GRAD"},
                 {"word", word, "word 77"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        in_submit = cases[i].misdeed;
        is_cut = cases[i].misdeed == cut_otherwise;
        expect_refusal(cases[i].name, run_step(), EN_EINVAL, "submit", ", step 7", cases[i].words);
        is_cut = 0;
        assert_int_equal(errors, 1);
    }
    in_submit = NULL;
}

/* ---- a thread of the plugin's own ---- */

typedef struct stray {
    en_host *host;
    const en_bucket *bucket;
    int call;
} stray;

enum { CALLS = 14 };

/* NULL: it was told no. */
static void *call_host(void *stray_)
{
    const stray *s = stray_;
    en_host *h = s->host;
    const en_bucket *b = s->bucket;
    const en_vec grad = b->grad;
    bool is_refused = true;
    switch (s->call) {
    case 0: is_refused = h->wait(h, h->coll(h, EN_ALLREDUCE, EN_WORLD, EN_GRAD, b, grad)) == EN_EBUG; break;
    case 1: is_refused = h->wait(h, h->mean_step(h, b)) == EN_EBUG; break;
    case 2: is_refused = h->sendrecv(h, EN_WORLD, EN_WEIGHTS, b, 0, grad, 0, b->param) != 0; break;
    case 3: is_refused = h->call(h, EN_SERVERS, 1, EN_GRAD, b, grad, b->param, 0) != 0; break;
    case 4: is_refused = h->wait(h, 1) == EN_EBUG; break;
    case 5: is_refused = h->lin(h, grad, 1, b->param, 0) == EN_EBUG; break;
    case 6: is_refused = h->step(h, b) == EN_EBUG; break;
    case 7: is_refused = h->vec(h, "x", b) == 0; break;
    case 8: is_refused = h->slot(h, b, 0) == 0; break;
    case 9: is_refused = h->num(h, "period") == 0; break;
    case 10: is_refused = h->text(h, "period")[0] == 0; break;
    case 11: is_refused = h->rand(h) == 0; break;
    case 12: is_refused = isnan(h->cost(h, EN_ALLREDUCE, b)); break;
    default: h->log(h, 2, "from a thread"); break;
    }
    return is_refused ? NULL : stray_;
}

static int stray_call;

static en_status from_a_thread(en_host *host, const en_bucket *bucket)
{
    stray s = {host, bucket, stray_call};
    pthread_t thread;
    void *taken;
    for (int i = 0; i < 2; i++) { /* which is said once */
        assert_int_equal(pthread_create(&thread, NULL, call_host, &s), 0);
        pthread_join(thread, &taken);
        assert_null(taken);
    }
    return EN_OK;
}

static void test_another_thread_is_refused(void **state)
{
    (void)state;
    static const char *const names[CALLS] = {"coll", "mean_step", "sendrecv", "call", "wait", "lin",  "step",
                                             "vec",  "slot",      "num",      "text", "rand", "cost", "log"};
    for (stray_call = 0; stray_call < CALLS; stray_call++) {
        char sentence[200];
        snprintf(sentence, sizeof sentence,
                 "bad (rank 2) called %s on a thread of its own: call the host in a hook, on the thread that "
                 "calls the hook",
                 names[stray_call]);
        in_submit = from_a_thread;
        assert_int_equal(run_step(), EN_EBUG);
        in_submit = NULL;
        assert_string_equal(said, sentence);
        assert_int_equal(errors, 1);
    }
}

static void test_failures_are_named_once(void **state)
{
    (void)state;
    in_submit = return_it;
    returned = EN_EUNSUPPORTED;
    assert_int_equal(run_step(), EN_EUNSUPPORTED);
    assert_string_equal(said, "submit of bad (rank 2, step 7, bucket 1) failed: "
                              "this device, host or build cannot do that (status 14)");
    assert_int_equal(errors, 1);
    /* The budget is the host's to end: a strategy that says so would end the run as if all were well. */
    returned = EN_ESTOP;
    expect_misuse("EN_ESTOP", run_step(), "submit", ", step 7", "budget");
    assert_int_equal(errors, 1);
    returned = -5;
    expect_misuse("-5", run_step(), "submit", ", step 7", "returned -5");
    /* A death has a line of its own, which blames nobody else. */
    returned = EN_EPEER;
    assert_int_equal(run_step(), EN_EPEER);
    assert_int_equal(errors, 0);
    in_submit = NULL;
    assert_int_equal(run_step(), EN_OK);
}

int main(void)
{
    eni_log_set_sink(listen_to, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_misuse_is_named), cmocka_unit_test(test_misuse_of_submit),
        cmocka_unit_test(test_what_is_not_there_yet_is_refused),
        cmocka_unit_test(test_another_thread_is_refused), cmocka_unit_test(test_failures_are_named_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
