/* test_host_plan.c - a plan that leaves the bucket is refused before its range is used as an index. */
#include "runtime/host/host.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/log.h"

enum { COUNT = 64 };

static uint64_t low, high;
static int errors;

static en_status plan(en_host *host, void *state, const en_bucket *bucket, uint64_t *lo, uint64_t *hi)
{
    (void)host, (void)state, (void)bucket;
    *lo = low;
    *hi = high;
    return EN_OK;
}

static en_status submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)host, (void)state, (void)bucket, (void)req;
    return EN_OK;
}

static const en_strategy planner = {
    .abi = EN_STRATEGY_ABI, .size = sizeof(en_strategy), .name = "planner", .plan = plan, .submit = submit};

static en_status alive(void *user)
{
    (void)user;
    return EN_OK;
}

static void count_errors(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)subsystem, (void)text;
    errors += level == ENI_LOG_ERROR;
}

static en_status open_with(uint64_t from, uint64_t to)
{
    static const en_model_tensor tensors[] = {{.name = "w", .count = COUNT}};
    eni_host_config config = {.strategy = &planner,
                              .world = {.size = sizeof(en_world), .nranks = 1, .nlocal = 1, .nhosts = 1},
                              .optimizer = eni_optimizer_find("sgd"),
                              .schedule = {.base = 1},
                              .alive_status = alive};
    eni_arena *arena;
    eni_buckets *buckets;
    eni_options *options;
    eni_host *host = NULL;
    low = from;
    high = to;
    errors = 0;
    assert_int_equal(eni_arena_open(COUNT, 8, 0, &arena), EN_OK);
    assert_int_equal(eni_buckets_new(tensors, 1, COUNT, 4 * COUNT, &buckets), EN_OK);
    assert_int_equal(eni_options_new(&planner, NULL, &options), EN_OK);
    config.arena = arena;
    config.buckets = buckets;
    config.options = options;
    en_status st = eni_host_open(&config, &host);
    if (st == EN_OK) eni_host_close(host);
    eni_options_free(options);
    eni_buckets_free(buckets);
    eni_arena_close(arena);
    return st;
}

static void a_range_lies_in_its_bucket(void **state)
{
    (void)state;
    eni_log_set_sink(count_errors, NULL);
    assert_int_equal(open_with(0, COUNT), EN_OK);
    assert_int_equal(open_with(COUNT, COUNT), EN_OK); /* more ranks than elements */
    assert_int_equal(errors, 0);
    static const uint64_t bad[][2] = {{0, COUNT + 1}, {5, 4}, {COUNT + 5, UINT64_MAX}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(open_with(bad[i][0], bad[i][1]), EN_EBUG);
        assert_int_equal(errors, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_range_lies_in_its_bucket)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
