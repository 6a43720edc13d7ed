/* test_order.c - the hash of the order of a run that is longer than anybody waits for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "data/plan.h"

static void hash_of(uint64_t steps, uint64_t seed, char hash_out[ENI_DIGEST_HEX])
{
    eni_plan plan;
    eni_plan_options options = {.train_samples = 1000, .world = 2, .batch = 64, .steps = steps};
    assert_int_equal(eni_plan_make(&options, &plan), EN_OK);
    assert_int_equal(eni_sampler_order_sha256(&plan, seed, ENI_ORDER_EACH_EPOCH, hash_out), EN_OK);
}

/* 10^15 steps: without a bound the first of them would come after years. */
static void an_endless_run_has_a_hash(void **state)
{
    (void)state;
    static const uint64_t endless = UINT64_C(1000000000000000);
    char hash[ENI_DIGEST_HEX], again[ENI_DIGEST_HEX], seed[ENI_DIGEST_HEX], longer[ENI_DIGEST_HEX];
    hash_of(endless, 1, hash);
    hash_of(endless, 1, again);
    hash_of(endless, 2, seed);
    hash_of(endless + 1, 1, longer);
    assert_string_equal(hash, again);
    assert_string_not_equal(hash, seed);
    assert_string_not_equal(hash, longer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_endless_run_has_a_hash)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
