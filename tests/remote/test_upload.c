/* test_upload.c - the size of a part, and files that are too large for any number of them.
 * tests/system/test_buckets.py uploads to a service. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/log.h"
#include "remote/upload.h"

/* Promise: Files up to 48.8 TiB are divided into parts that the services accept. */

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

_Static_assert(ENI_PART_BYTES >= 5 * (UINT64_C(1) << 20) && ENI_PART_BYTES <= ENI_PUT_MAX,
               "the services' limits");

static uint64_t count(uint64_t bytes, uint64_t part)
{
    return (bytes + part - 1) / part;
}

static void parts_have_a_least_size(void **state)
{
    (void)state;
    assert_int_equal(eni_upload_part(ENI_PUT_MAX + 1, ENI_PART_BYTES), 128 * MIB);
    assert_int_equal(eni_upload_part(0, ENI_PART_BYTES), 128 * MIB);
    assert_int_equal(eni_upload_part(3, 1), 1);
}

static void there_are_ten_thousand_at_most(void **state)
{
    (void)state;
    const uint64_t full = 10000 * 128 * MIB;
    assert_int_equal(eni_upload_part(full, ENI_PART_BYTES), 128 * MIB);
    assert_int_equal(eni_upload_part(full + 1, ENI_PART_BYTES), 129 * MIB);
    for (uint64_t bytes = 5 * GIB; bytes <= 10000 * ENI_PUT_MAX; bytes += bytes / 7) {
        const uint64_t part = eni_upload_part(bytes, ENI_PART_BYTES);
        assert_true(part >= ENI_PART_BYTES && part % MIB == 0);
        assert_in_range(count(bytes, part), 1, ENI_PARTS_MAX);
    }
    assert_int_equal(eni_upload_part(10000 * ENI_PUT_MAX, ENI_PART_BYTES), ENI_PUT_MAX);
}

/* Refused before any request: there is no service here. */
static void what_no_parts_can_hold(void **state)
{
    (void)state;
    eni_remote_url url;
    eni_remote_endpoint place;
    const eni_keys keys = {.is_none = true};
    const eni_remote_options options = {.url = &url, .place = &place, .keys = &keys};
    const eni_upload_sizes sizes = {ENI_PUT_MAX, ENI_PART_BYTES};
    eni_remote *bucket;
    char said[400];
    assert_int_equal(eni_remote_url_parse("--save", "s3://bucket/key", &url), EN_OK);
    assert_int_equal(eni_remote_endpoint_find(&url, "", "http://127.0.0.1:1", NULL, &place), EN_OK);
    assert_int_equal(eni_remote_open(&options, &bucket), EN_OK);
    assert_int_equal(eni_upload(bucket, "key", -1, 10000 * ENI_PUT_MAX + 1, &sizes), EN_EUNSUPPORTED);
    assert_true(eni_log_last_error(said, sizeof said));
    assert_non_null(strstr(said, "s3://bucket/key"));
    assert_non_null(strstr(said, "53687091200001 bytes"));
    eni_remote_close(bucket);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_have_a_least_size),
                                       cmocka_unit_test(there_are_ten_thousand_at_most),
                                       cmocka_unit_test(what_no_parts_can_hold)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
