/* test_skewed.c - the problem of `entrain sim` without --model: its gradient, its minimum, and what it makes visible. */
#include "runtime/sim/skewed.h"

#include "tests/strategies/sim_rig.h"

/* Promise: the loss of `entrain sim` shows an averaging that does not average. */

enum { COUNT = 200 };

/* The slope of the loss is the mean gradient of all parts, and the loss is 0 where it vanishes. */
static void the_gradient_is_the_slope_of_the_loss(void **state)
{
    (void)state;
    for (uint64_t parts = 1; parts <= 37; parts += 4) {
        eni_skewed s;
        float w[COUNT], grad[COUNT], mean[COUNT], up[COUNT];
        assert_int_equal(eni_skewed_init(&s, COUNT, 5, parts), EN_OK);
        s.noise = 0;
        for (int i = 0; i < COUNT; i++)
            w[i] = (float)(i % 13) / 4;
        for (int round = 0; round < 3000; round++) {
            memset(mean, 0, sizeof mean);
            for (uint64_t m = 0; m < parts; m++) {
                assert_int_equal(s.problem.grad(&s, 0, 3 * parts + m, w, grad), EN_OK);
                for (int i = 0; i < COUNT; i++)
                    mean[i] += grad[i] / (float)parts;
            }
            for (int i = 0; round == 0 && i < COUNT; i++) {
                memcpy(up, w, sizeof w);
                up[i] += 0x1p-6f;
                const double high = eni_skewed_loss(&s, up);
                up[i] -= 0x1p-5f;
                assert_true(fabs((high - eni_skewed_loss(&s, up)) / 0x1p-5 - (double)mean[i]) < 2e-3);
            }
            for (int i = 0; i < COUNT; i++)
                w[i] -= mean[i] / 4;
        }
        const double loss = eni_skewed_loss(&s, w);
        if (!(loss > -1e-9 && loss < 1e-9)) fail_msg("%d parts: %g at the minimum", (int)parts, loss);
        eni_skewed_fini(&s);
    }
}

/* 16 ranks, plain SGD. */
static double loss_of(const char *spec, bool is_skewed, eni_sim_result *out)
{
    rig r;
    eni_skewed s;
    float weights[COUNT];
    rig_init(&r, spec, 16, 16 * 200);
    assert_int_equal(eni_skewed_init(&s, COUNT, 1, 16), EN_OK);
    if (is_skewed) r.config.problem = &s.problem;
    r.config.hyper = (eni_hyper){0};
    r.config.weights_out = weights;
    *out = *rig_run(&r);
    const double loss = is_skewed ? eni_skewed_loss(&s, weights) : eni_quadratic_loss(&r.problem, weights);
    eni_skewed_fini(&s);
    rig_fini(&r);
    return loss;
}

static void an_averaging_that_does_not_average_shows(void **state)
{
    (void)state;
    eni_sim_result out;
    const double blind[] = {loss_of(RIG_ZOO "gossip", false, &out),
                            loss_of(RIG_ZOO "forgetful", false, &out)};
    assert_true(fabs(blind[1] / blind[0] - 1) < 1e-5); /* so a quadratic does not do */
    const double right = loss_of(RIG_ZOO "gossip", true, &out), ring = loss_of("ring", true, &out),
                 wrong = loss_of(RIG_ZOO "forgetful", true, &out);
    assert_true(wrong > 50 * right && wrong > 50 * ring);
    printf("PROMISE entrain sim, 16 ranks, 200 steps: gossip ends with a loss of %.3g, as ring does with "
           "%.3g; a "
           "gossip that forgets to mix with %.3g (on a quadratic: with %.7g and %.7g)\n",
           right, ring, wrong, blind[0], blind[1]);
}

/* The same on every machine. */
static void the_weights_are_known(void **state)
{
    (void)state;
    eni_sim_result out;
    (void)loss_of("ring", true, &out);
    assert_string_equal(out.weights_sha256,
                        "57b4d7a62003d33fda486e93fac86ea5c8006db1011c438e540589429412cf54");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_gradient_is_the_slope_of_the_loss),
                                       cmocka_unit_test(an_averaging_that_does_not_average_shows),
                                       cmocka_unit_test(the_weights_are_known)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
