/* test_program_schedule.c - a program's schedule becomes few points, and no step's rate moves. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/log.h"
#include "core/memory.h"
#include "job/job.h"

/* Promise: A program's schedule of the rate reaches ranks and servers as at most 4,096 points, and each of up to 4 million
 *          steps has its own rate to 2e-7. */

static double cosine(void *user, uint64_t step, uint64_t epoch)
{
    (void)epoch;
    return 0.5 * (1 + cos(acos(-1.0) * (double)step / (double)*(const uint64_t *)user));
}

static double stairs(void *user, uint64_t step, uint64_t epoch)
{
    (void)user, (void)step;
    return epoch < 60 ? ldexp(1, -(int)epoch) : 0;
}

/* Every step has another rate than a line would give. */
static double noise(void *user, uint64_t step, uint64_t epoch)
{
    (void)user, (void)epoch;
    return (double)(step * 2654435761u % 1000) / 1000;
}

static double negative(void *user, uint64_t step, uint64_t epoch)
{
    (void)user, (void)epoch;
    return 3 - (double)step;
}

/* Steps of 12, and ragged epochs: each ends with a step of 7. */
static eni_job job_of(uint64_t steps, uint64_t per_epoch)
{
    eni_job job = {0};
    const eni_plan_options options = {
        .train_samples = 12 * per_epoch - 5, .world = 2, .batch = 6, .steps = steps};
    assert_int_equal(eni_plan_make(&options, &job.plan), EN_OK);
    assert_int_equal(job.plan.steps, steps);
    return job;
}

static void no_rate_moves(void **state)
{
    const struct {
        eni_factor_of factor_of;
        uint64_t steps, per_epoch;
        uint32_t most;
    } cases[] = {{cosine, 1, 9, 1},
                 {cosine, 2, 9, 2},
                 {cosine, 1000, 9, 1000},
                 {cosine, 5000, 1000, 4000},
                 {cosine, 200000, 1000, 4000},
                 {stairs, 90, 9, 20},
                 {stairs, 4000000, 9, 120},
                 {noise, 4000, 9, 4000}};
    eni_config config;
    (void)state;
    assert_int_equal(eni_config_init(ENI_RANK, &config), EN_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t steps = cases[i].steps;
        eni_job job = job_of(steps, cases[i].per_epoch);
        assert_int_equal(eni_program_schedule(&job, &config, cases[i].factor_of, &steps), EN_OK);
        if (job.points->n > cases[i].most) fail_msg("case %zu has %u points", i, job.points->n);
        char *text = eni_rate_points_text(job.points);
        eni_rate_points *again = eni_rate_points_parse(text);
        const eni_schedule schedule = {.kind = ENI_LR_POINTS, .base = 1, .points = again};
        for (uint64_t step = 0; step < steps; step++) {
            const double want = cases[i].factor_of(&steps, step, step / job.plan.epoch_steps),
                         got = (double)eni_schedule_lr(&schedule, eni_plan_samples_before(&job.plan, step));
            if (!(fabs(got - want) <= 2e-7))
                fail_msg("case %zu, step %llu: %.9g, not %.9g", i, (unsigned long long)step, got, want);
        }
        eni_free(text);
        eni_rate_points_free(again);
        eni_rate_points_free(job.points);
    }
    eni_config_fini(&config);
}

static void keep(void *user, int level, const char *subsystem, const char *text)
{
    (void)subsystem;
    if (level == ENI_LOG_ERROR) strncpy(user, text, 300);
}

static void what_is_wrong_is_refused(void **state)
{
    const struct {
        eni_factor_of factor_of;
        uint64_t steps;
        const char *lr_schedule, *says[2];
    } wrong[] = {{negative, 9, "constant", {"-1 for step 4", "0 to 1e6"}},
                 {noise, 9000, "constant", {"4096 times", "once an epoch"}},
                 {stairs, 5000000, "constant", {"5000000 steps", "lr-schedule"}},
                 {stairs, 9, "cosine", {"schedule of its own", "omit lr-schedule"}}};
    char said[301] = "";
    (void)state;
    eni_log_set_sink(keep, said);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        eni_config config;
        eni_job job = job_of(wrong[i].steps, 9);
        assert_int_equal(eni_config_init(ENI_RANK, &config), EN_OK);
        assert_int_equal(eni_config_set(&config, "lr-schedule", wrong[i].lr_schedule, "test"), EN_OK);
        assert_int_equal(eni_program_schedule(&job, &config, wrong[i].factor_of, NULL), EN_EINVAL);
        if (strstr(said, wrong[i].says[0]) == NULL || strstr(said, wrong[i].says[1]) == NULL)
            fail_msg("case %zu: %s", i, said);
        eni_rate_points_free(job.points);
        eni_config_fini(&config);
    }
    eni_log_set_sink(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_rate_moves),
                                       cmocka_unit_test(what_is_wrong_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
