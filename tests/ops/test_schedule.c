/* test_schedule.c - the learning rate as a function of global samples. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ops/optimizer.h"

static void near(float got, double want)
{
    assert_true(fabs((double)got - want) <= 1e-7 * fmax(1, fabs(want)));
}

static void constant(void **state)
{
    (void)state;
    const eni_schedule s = {.kind = ENI_LR_CONSTANT, .base = 0.02};
    near(eni_schedule_lr(&s, 0), 0.02);
    near(eni_schedule_lr(&s, UINT64_MAX), 0.02);
}

static void steps(void **state)
{
    (void)state;
    const eni_schedule s = {.kind = ENI_LR_STEP, .base = 0.1, .gamma = 0.5, .step_samples = 1000};
    near(eni_schedule_lr(&s, 999), 0.1);
    near(eni_schedule_lr(&s, 1000), 0.05);
    near(eni_schedule_lr(&s, 3999), 0.0125);
    const eni_schedule never = {.kind = ENI_LR_STEP, .base = 0.1, .gamma = 0.5};
    near(eni_schedule_lr(&never, 12345), 0.1);
}

static void cosine(void **state)
{
    (void)state;
    const eni_schedule s = {.kind = ENI_LR_COSINE, .base = 0.1, .total = 1000};
    near(eni_schedule_lr(&s, 0), 0.1);
    near(eni_schedule_lr(&s, 500), 0.05);
    near(eni_schedule_lr(&s, 250), 0.05 * (1 + sqrt(0.5)));
    near(eni_schedule_lr(&s, 1000), 0);
    near(eni_schedule_lr(&s, 5000), 0); /* past the end it stays */
}

static void warm_up_is_linear(void **state)
{
    (void)state;
    const eni_schedule s = {.kind = ENI_LR_CONSTANT, .base = 0.4, .warmup = 100};
    near(eni_schedule_lr(&s, 0), 0);
    near(eni_schedule_lr(&s, 25), 0.1);
    near(eni_schedule_lr(&s, 100), 0.4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(constant), cmocka_unit_test(steps),
                                       cmocka_unit_test(cosine), cmocka_unit_test(warm_up_is_linear)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
