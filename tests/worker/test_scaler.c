/* test_scaler.c - the rule of the loss scale. Expected values are those of PyTorch's GradScaler with its
 * defaults (torch.amp.grad_scaler, _amp_update_scale_): written down by hand from its text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/gpu/scaler.h"

static void take(eni_scale *s, int steps)
{
    for (int i = 0; i < steps; i++)
        eni_scale_step(s, 0);
}

static void test_an_overflow_halves(void **state)
{
    (void)state;
    eni_scale s = {.scale = ENI_SCALE_FIRST};
    assert_true(s.scale == 65536);
    assert_int_equal(eni_scale_step(&s, 1), 1);
    assert_true(s.scale == 32768);
    assert_int_equal(eni_scale_step(&s, 1), 1);
    assert_true(s.scale == 16384);
    assert_int_equal(s.overflows, 2);
}

static void test_2000_good_steps_double(void **state)
{
    (void)state;
    eni_scale s = {.scale = ENI_SCALE_FIRST};
    take(&s, 1999);
    assert_true(s.scale == 65536);
    assert_int_equal(eni_scale_step(&s, 0), 1);
    assert_true(s.scale == 131072);
    take(&s, 1999);
    assert_true(s.scale == 131072);
    take(&s, 1);
    assert_true(s.scale == 262144);
}

/* They must be in a row: the count begins again with each overflow. */
static void test_the_count_begins_again(void **state)
{
    (void)state;
    eni_scale s = {.scale = ENI_SCALE_FIRST};
    take(&s, 1999);
    eni_scale_step(&s, 1);
    take(&s, 1999);
    assert_true(s.scale == 32768);
    assert_int_equal(eni_scale_step(&s, 0), 1);
    assert_true(s.scale == 65536);
    assert_int_equal(s.overflows, 1);
}

static void test_the_ends(void **state)
{
    (void)state;
    eni_scale s = {.scale = 2};
    assert_int_equal(eni_scale_step(&s, 1), 1);
    assert_int_equal(eni_scale_step(&s, 1), 0); /* 1 it stays */
    assert_true(s.scale == 1);
    assert_int_equal(s.overflows, 2);
    s = (eni_scale){.scale = 0x1p127f, .good = ENI_SCALE_GROWTH - 1};
    assert_int_equal(eni_scale_step(&s, 0), 0); /* no infinity */
    assert_true(s.scale == 0x1p127f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_overflow_halves),
        cmocka_unit_test(test_2000_good_steps_double),
        cmocka_unit_test(test_the_count_begins_again),
        cmocka_unit_test(test_the_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
