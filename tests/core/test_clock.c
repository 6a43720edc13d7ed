/* test_clock.c - deadlines as points of monotonic time. */
#include "core/clock.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static void test_never_goes_back(void **state)
{
    (void)state;
    int64_t last = eni_now_ns();
    for (int i = 0; i < 10000; i++) {
        int64_t now = eni_now_ns();
        assert_true(now >= last);
        last = now;
    }
}

/* poll(2) with a timeout of 0 would spin over the last fraction of a millisecond: round up. */
static void test_ms_left(void **state)
{
    (void)state;
    assert_int_equal(eni_ms_left(eni_now_ns() - 1, 1000), 0);
    assert_int_equal(eni_ms_left(INT64_MIN / 2, 1000), 0);
    assert_int_equal(eni_ms_left(INT64_MAX, 1000), 1000);
    assert_in_range(eni_ms_left(eni_now_ns() + 3600 * ENI_SECOND, INT_MAX), 3000 * 1000, 3600 * 1000);
    int64_t soon = eni_now_ns() + ENI_MILLI / 2;
    int left = eni_ms_left(soon, 1000);
    if (eni_now_ns() < soon) assert_int_equal(left, 1);
}

static void test_sleep_until(void **state)
{
    (void)state;
    int64_t when = eni_now_ns() + 2 * ENI_MILLI;
    eni_sleep_until(when);
    assert_true(eni_now_ns() >= when);
    eni_sleep_until(when - ENI_SECOND); /* long ago: at once */
    eni_sleep_until(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_never_goes_back),
        cmocka_unit_test(test_ms_left),
        cmocka_unit_test(test_sleep_until),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
