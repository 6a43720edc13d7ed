/* test_staleness.c - a histogram against the sorted list of its values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/rng.h"
#include "runtime/store/staleness.h"

enum { VALUES = 5000 };

static int ascending(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void quantiles_are_those_of_the_sorted_values(void **state)
{
    (void)state;
    const eni_rng_key key = {.seed = 1, .purpose = ENI_RNG_TEST};
    static uint64_t value[VALUES];
    uint64_t sum = 0;
    eni_histogram all = {0}, part[2] = {{0}, {0}};
    for (uint64_t i = 0; i < VALUES; i++) {
        value[i] = eni_rng_below(&key, i, i % 100 == 0 ? 3000 : 20);
        sum += value[i];
        assert_int_equal(eni_histogram_add(&part[i % 2], value[i]), EN_OK);
    }
    for (int k = 0; k < 2; k++)
        assert_int_equal(eni_histogram_merge(&all, &part[k]), EN_OK);
    qsort(value, VALUES, sizeof *value, ascending);
    const double share[] = {0.0002, 0.25, 0.5, 0.95, 0.99, 1};
    for (int k = 0; k < 6; k++) {
        const size_t at = (size_t)(share[k] * VALUES + 0.999999) - 1;
        assert_int_equal(eni_histogram_quantile(&all, share[k]), value[at]);
    }
    assert_int_equal(all.count, VALUES);
    assert_int_equal(all.max, value[VALUES - 1]);
    assert_true(eni_histogram_mean(&all) == (double)sum / VALUES);
    eni_histogram_fini(&all);
    eni_histogram_fini(&part[0]);
    eni_histogram_fini(&part[1]);
    eni_histogram_fini(&part[1]);
}

static void huge_values_share_the_last_bin(void **state)
{
    (void)state;
    eni_histogram h = {0};
    assert_int_equal(eni_histogram_add(&h, UINT64_C(1) << 40), EN_OK);
    assert_int_equal(eni_histogram_add(&h, ENI_HISTOGRAM_MAX), EN_OK);
    assert_int_equal(eni_histogram_bins(&h), ENI_HISTOGRAM_MAX + 1);
    assert_int_equal(eni_histogram_at(&h, ENI_HISTOGRAM_MAX), 2);
    assert_int_equal(eni_histogram_quantile(&h, 0.5), h.max);
    eni_histogram_fini(&h);
}

static void nothing_has_no_mean(void **state)
{
    (void)state;
    eni_histogram h = {0}, other = {0};
    assert_true(eni_histogram_mean(&h) == 0);
    assert_int_equal(eni_histogram_quantile(&h, 0.5), 0);
    assert_int_equal(eni_histogram_merge(&h, &other), EN_OK);
    assert_null(h.item);
    assert_int_equal(eni_histogram_bins(&h), 0);
}

/* Many values far apart, against an array. */
static void values_take_memory_as_they_come(void **state)
{
    (void)state;
    const eni_rng_key key = {.seed = 2, .purpose = ENI_RNG_TEST};
    enum { WIDE = 60000 };
    static uint64_t want[WIDE];
    eni_histogram h = {0}, copy = {0};
    for (uint64_t i = 0; i < 1000; i++) {
        const uint64_t value = eni_rng_below(&key, i, WIDE);
        want[value]++;
        assert_int_equal(eni_histogram_add(&h, value), EN_OK);
        if (i == 99) assert_true(h.room * sizeof *h.item < 10000); /* 100 values take less than 10 KB */
        if (i % 200 != 99) continue;
        eni_histogram_fini(&copy);
        assert_int_equal(eni_histogram_merge(&copy, &h), EN_OK);
        assert_int_equal(eni_histogram_bins(&copy), eni_histogram_bins(&h));
        for (uint32_t v = 0; v < WIDE; v++)
            assert_true(eni_histogram_at(&h, v) == want[v] && eni_histogram_at(&copy, v) == want[v]);
        assert_int_equal(eni_histogram_quantile(&copy, 0.3), eni_histogram_quantile(&h, 0.3));
        json_t *a = eni_histogram_json(&h, true), *b = eni_histogram_json(&copy, true);
        assert_true(json_equal(a, b) && json_array_size(json_object_get(a, "histogram")) > 90);
        json_decref(a);
        json_decref(b);
    }
    eni_histogram_fini(&h);
    eni_histogram_fini(&copy);
}

/* What result.json has: every value, also of a histogram with few. */
static void json_has_all_values(void **state)
{
    (void)state;
    eni_histogram h = {0};
    uint64_t sum = 0;
    size_t i;
    json_t *pair;
    for (uint64_t value = 0; value < 300; value += 100)
        for (uint64_t n = 0; n <= value; n += 50)
            assert_int_equal(eni_histogram_add(&h, value), EN_OK);
    json_t *o = eni_histogram_json(&h, true), *bins = json_object_get(o, "histogram");
    assert_int_equal(json_array_size(bins), 3);
    json_array_foreach(bins, i, pair)
    {
        const uint64_t value = (uint64_t)json_integer_value(json_array_get(pair, 0));
        const uint64_t n = (uint64_t)json_integer_value(json_array_get(pair, 1));
        assert_int_equal(n, eni_histogram_at(&h, (uint32_t)value));
        sum += n * value;
    }
    assert_int_equal(sum, h.sum);
    json_decref(o);
    eni_histogram_fini(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles_are_those_of_the_sorted_values),
        cmocka_unit_test(huge_values_share_the_last_bin),
        cmocka_unit_test(nothing_has_no_mean),
        cmocka_unit_test(values_take_memory_as_they_come),
        cmocka_unit_test(json_has_all_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
