/* test_bucket_cap.c - --bucket-cap-mb=auto: few enough buckets for any model, and those of 1 MiB for small ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "job/job.h"
#include "runtime/collective/coll.h"
#include "runtime/spec/buckets.h"

/* Promise: A program with 100 M parameters has few enough buckets without a flag (--bucket-cap-mb=auto). */

/* The number of buckets of a model of equal tensors. */
static uint32_t buckets_of(const eni_config *config, uint32_t ntensors, uint64_t each)
{
    static en_model_tensor tensors[512];
    eni_buckets *buckets;
    for (uint32_t t = 0; t < ntensors; t++)
        tensors[t] = (en_model_tensor){
            .name = "t", .ndim = 1, .shape = {(int64_t)each}, .offset = t * each, .count = each};
    const en_schema schema = {.ntensors = ntensors, .tensors = tensors, .count = ntensors * each};
    const uint64_t cap = eni_job_bucket_cap(&schema, config);
    assert_int_equal(eni_buckets_new(tensors, ntensors, schema.count, cap, &buckets), EN_OK);
    const uint32_t n = buckets->n;
    assert_true(cap <= 32 << 20);
    eni_buckets_free(buckets);
    return n;
}

static void auto_fits_every_model(void **state)
{
    (void)state;
    eni_config program, worker;
    assert_int_equal(eni_config_init(ENI_RANK, &program), EN_OK);
    assert_int_equal(eni_config_init(ENI_WORKER, &worker), EN_OK);
    const uint64_t million = 1000000;
    for (uint32_t n = 1; n <= 512; n *= 2) {
        assert_in_range(buckets_of(&program, n, 100 * million / n / 16 * 16), 100, ENI_COLL_DEPTH);
        assert_in_range(buckets_of(&program, n, 1000 * million / n / 16 * 16), 100, ENI_COLL_DEPTH);
        const uint64_t small = 11 * million / n / 16 * 16;
        assert_int_equal(buckets_of(&program, n, small), buckets_of(&worker, n, small));
    }
    assert_true(buckets_of(&worker, 64, 100 * million / 64 / 16 * 16) > ENI_COLL_DEPTH);
    assert_int_equal(eni_config_set(&worker, "bucket-cap-mb", "auto", "test"), EN_OK);
    assert_in_range(buckets_of(&worker, 64, 100 * million / 64 / 16 * 16), 100, ENI_COLL_DEPTH);
    eni_config_fini(&program);
    eni_config_fini(&worker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(auto_fits_every_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
