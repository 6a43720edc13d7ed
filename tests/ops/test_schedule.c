/* test_schedule.c - the learning rate as a function of global samples. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/memory.h"
#include "ops/schedule.h"

/* Promise: Learning rates are torch.optim.lr_scheduler's at the edges of epochs, to 1e-7: step, cosine,
 * multistep, linear. */

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

static void multistep(void **state)
{
    (void)state;
    const eni_schedule s = {
        .kind = ENI_LR_MULTISTEP, .base = 0.1, .gamma = 0.5, .milestone = {1000, 1500}, .nmilestones = 2};
    char text[64];
    near(eni_schedule_lr(&s, 999), 0.1);
    near(eni_schedule_lr(&s, 1000), 0.05);
    near(eni_schedule_lr(&s, 1499), 0.05);
    near(eni_schedule_lr(&s, UINT64_MAX), 0.025);
    eni_schedule_milestones(&s, text, sizeof text);
    assert_string_equal(text, "1000,1500");
}

static void linear(void **state)
{
    (void)state;
    const eni_schedule s = {.kind = ENI_LR_LINEAR, .base = 0.1, .total = 1000};
    near(eni_schedule_lr(&s, 0), 0.1);
    near(eni_schedule_lr(&s, 250), 0.075);
    near(eni_schedule_lr(&s, 1000), 0);
    near(eni_schedule_lr(&s, 5000), 0);
}

static void points(void **state)
{
    (void)state;
    eni_rate_point at[] = {{0, 0}, {100, 1}, {300, 0.5f}};
    const eni_rate_points three = {3, at};
    const eni_schedule s = {.kind = ENI_LR_POINTS, .base = 0.1, .points = &three};
    near(eni_schedule_lr(&s, 0), 0);
    near(eni_schedule_lr(&s, 50), 0.05);
    near(eni_schedule_lr(&s, 100), 0.1);
    near(eni_schedule_lr(&s, 200), 0.075);
    near(eni_schedule_lr(&s, UINT64_MAX), 0.05); /* past the end it stays */
    at[1].factor = 1.0f / 3;
    char *text = eni_rate_points_text(&three);
    assert_string_equal(text, "0:0,100:0.333333343,300:0.5");
    eni_rate_points *again = eni_rate_points_parse(text);
    assert_non_null(again);
    assert_int_equal(again->n, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(again->at[i].samples == at[i].samples && again->at[i].factor <= at[i].factor &&
                    again->at[i].factor >= at[i].factor);
    eni_rate_points_free(again);
    eni_free(text);
    static const char *const wrong[] = {"",
                                        "1:1",
                                        "0",
                                        "0:",
                                        "0:1,",
                                        "0:1,0:1",
                                        "0:-1",
                                        "0:nan",
                                        "0:x",
                                        "0:1/2",
                                        "0:1,2:1x",
                                        "0:1e9",
                                        "-0:1",
                                        "0:1;2:1",
                                        " 0:1",
                                        "0:1 ",
                                        "0:1,5:1,4:1",
                                        "0:+1",
                                        "0: 1",
                                        "0:0x1",
                                        "0:0x1p-3",
                                        "0:.5",
                                        "0:1e",
                                        "0:inf",
                                        "0:1e99",
                                        "0:1,18446744073709551616:1",
                                        "0:1,99999999999999999999999:1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (eni_rate_points_parse(wrong[i]) != NULL) fail_msg("\"%s\" was taken", wrong[i]);
}

/* torch.optim.lr_scheduler's at the edges of 12 epochs (tools/make_goldens.py). */
static void agree_with_torch(void **state)
{
    (void)state;
    enum { EPOCH = 937 };
    const eni_schedule ours[] = {
        {.kind = ENI_LR_STEP, .gamma = 0.5, .step_samples = 3 * EPOCH},
        {.kind = ENI_LR_COSINE},
        {.kind = ENI_LR_MULTISTEP, .gamma = 0.1, .milestone = {4 * EPOCH, 9 * EPOCH}, .nmilestones = 2},
        {.kind = ENI_LR_LINEAR}};
    json_t *goldens = json_load_file(EN_SOURCE_DIR "/tests/goldens/optimizers.json", 0, NULL);
    for (size_t k = 0; k < sizeof ours / sizeof *ours; k++) {
        const char *name = eni_schedule_names[ours[k].kind];
        const json_t *rates = json_object_get(json_object_get(goldens, "schedules"), name);
        eni_schedule s = ours[k];
        s.base = 0.1;
        s.total = 12 * EPOCH;
        assert_int_equal(json_array_size(rates), 13);
        for (size_t e = 0; e <= 12; e++) {
            const double want = json_number_value(json_array_get(rates, e)),
                         got = (double)eni_schedule_lr(&s, e * EPOCH);
            if (!(fabs(got - want) <= 1e-7 * 0.1))
                fail_msg("%s, epoch %zu: %.9g, not %.9g", name, e, got, want);
        }
    }
    json_decref(goldens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(constant),  cmocka_unit_test(steps),
                                       cmocka_unit_test(cosine),    cmocka_unit_test(warm_up_is_linear),
                                       cmocka_unit_test(multistep), cmocka_unit_test(linear),
                                       cmocka_unit_test(points),    cmocka_unit_test(agree_with_torch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
