/* test_law.c - laws of compute times: read, refused, and drawn with the mean that they name. */
#include "run/law.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static eni_law read_one(const char *text)
{
    eni_law law;
    assert_int_equal(eni_law_read("--compute", "rank", text, 1, &law), EN_OK);
    return law;
}

/* A million draws: mean within 0.5 %, and what the law promises of a quantile. */
static void draws_have_the_mean_and_the_shape(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double at_ms, below; /* the share of draws below at_ms */
    } laws[] = {{"fixed:10ms", 9.999, 0},
                {"exp:10ms", 10, 0.6321},
                {"lognormal:10ms,0.5", 8.825, 0.5}, /* the median is the mean times exp(-sigma^2 / 2) */
                {"pareto:10ms,3", 10, 0.7037},      /* 1 - (2/3)^3 */
                {"shifted-exp:10ms,6ms", 10, 0.6321},
                {"shifted-exp:10ms,6ms", 5.999, 0}};
    enum { DRAWS = 1000000 };
    for (size_t i = 0; i < sizeof laws / sizeof *laws; i++) {
        const eni_law law = read_one(laws[i].text);
        double sum = 0;
        int below = 0;
        for (int k = 0; k < DRAWS; k++) {
            const eni_rng_key key = {7, ENI_RNG_SIM, 0, (uint64_t)k};
            const double ms = eni_law_draw(&law, &key) / 1e6;
            sum += ms;
            below += ms < laws[i].at_ms;
        }
        if (fabs(sum / DRAWS / 10 - 1) > 0.005 || fabs((double)below / DRAWS - laws[i].below) > 0.002)
            fail_msg("%s: mean %g ms, %g of the draws below %g ms", laws[i].text, sum / DRAWS,
                     (double)below / DRAWS, laws[i].at_ms);
    }
}

static void ranks_have_laws_of_their_own(void **state)
{
    (void)state;
    eni_law laws[6];
    assert_int_equal(eni_law_read("--compute", "rank", "1-2=exp:10ms;4=fixed:40ms", 6, laws), EN_OK);
    static const double mean_ms[] = {40, 10, 10, 40, 40, 40}; /* the last law holds for the others */
    for (int r = 0; r < 6; r++) {
        assert_true(laws[r].mean_ns == mean_ms[r] * 1e6);
        assert_int_equal(laws[r].kind, mean_ms[r] == 10 ? ENI_LAW_EXPONENTIAL : ENI_LAW_FIXED);
    }
}

static void samples_are_drawn_alike(void **state)
{
    (void)state;
    const double samples[] = {1, 2, 4};
    const eni_law law = {.kind = ENI_LAW_SAMPLES, .samples = samples, .nsamples = 3};
    int n[5] = {0};
    for (uint64_t k = 0; k < 30000; k++)
        n[(int)eni_law_draw(&law, &(eni_rng_key){7, ENI_RNG_SIM, 0, k})]++;
    assert_true(n[1] > 9700 && n[2] > 9700 && n[4] > 9700);
}

static void traces_are_played_in_order(void **state)
{
    (void)state;
    const double samples[] = {1, 2, 4};
    const eni_law law = {.kind = ENI_LAW_TRACE, .samples = samples, .nsamples = 3};
    for (uint64_t k = 0; k < 9; k++)
        assert_true(eni_law_draw(&law, &(eni_rng_key){7, ENI_RNG_SIM, 1, k}) == samples[k % 3]);
}

static void laws_are_written_as_they_are_read(void **state)
{
    (void)state;
    static const char *const texts[] = {"fixed:10ms", "exp:2500us", "lognormal:1s,0.5", "pareto:10ns,2.5",
                                        "shifted-exp:10ms,6ms"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char text[128];
        const eni_law law = read_one(texts[i]);
        eni_law_text(&law, text, sizeof text);
        assert_string_equal(text, texts[i]);
    }
}

static void a_wrong_law_names_the_right_one(void **state)
{
    (void)state;
    static const char *const texts[][2] = {{"lognorml:1ms,2", "lognormal:10ms,0.5"},
                                           {"shift-exp:1ms,0ms", "shifted-exp:10ms,6ms"},
                                           {"exp:-1ms", "exp:MEAN"},
                                           {"exp:inf", "exp:MEAN"},
                                           {"fixed:1ms,2", "fixed:TIME"},
                                           {"lognormal:1ms,-1", "a sigma of 0 to 10"},
                                           {"0-3=pareto:1ms,nan", "an exponent above 1"},
                                           {"shifted-exp:1ms,2ms", "from 0 to the mean"}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strstr(eni_law_check(texts[i][0]), texts[i][1]) == NULL)
            fail_msg("%s: %s", texts[i][0], eni_law_check(texts[i][0]));
}

static void service_times(void **state)
{
    (void)state;
    static const struct {
        const char *text, *law;
        double ns_per_byte;
    } good[] = {{"200us", "fixed:200us", 0},
                {"exp:200us", "exp:200us", 0},
                {"1ms/MB", "", 1},
                {"0=exp:1ms;1=fixed:2ms+3ms/MB", "0=exp:1ms;1=fixed:2ms", 3},
                {"200us+500us/MB", "fixed:200us", 0.5}};
    static const char *const bad[] = {"",    "20",   "1ms/GB", "+1ms/MB",    "1ms+2ms",
                                      "/MB", "-1ms", "1/MB",   "1ms+exp:1ms"};
    char law[ENI_LAW_TEXT];
    double rate;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (eni_service_split(good[i].text, law, &rate) != NULL || rate != good[i].ns_per_byte)
            fail_msg("%s: %g ns a byte", good[i].text, rate);
        assert_string_equal(law, good[i].law);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (eni_service_split(bad[i], law, &rate) == NULL) fail_msg("\"%s\" is taken", bad[i]);
}

static void other_texts_are_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "fixed",
                                        "fixed:",
                                        "fixed:10ms,3",
                                        "exp:-1ms",
                                        "exp:10",
                                        "lognormal:10ms",
                                        "lognormal:10ms,nan",
                                        "lognormal:10ms,11",
                                        "pareto:10ms,1",
                                        "shifted-exp:10ms,11ms",
                                        "gauss:10ms",
                                        "0-1=exp:1ms;fixed:2ms",
                                        "exp:1ms;2=fixed:2ms",
                                        "3-1=exp:1ms",
                                        "-1=exp:1ms",
                                        "1-=exp:1ms",
                                        "0=exp:1ms;",
                                        "a=exp:1ms",
                                        "0a=exp:1ms",
                                        "0.5=exp:1ms",
                                        "1,2=exp:1ms",
                                        " 1=exp:1ms",
                                        "0- 1=exp:1ms",
                                        "1--2=exp:1ms",
                                        "4294967296=exp:1ms"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (eni_law_check(texts[i]) == NULL && i != 5) fail_msg("\"%s\" is taken", texts[i]);
    eni_law laws[4];
    assert_int_equal(eni_law_read("--compute", "rank", "0-4=exp:1ms", 4, laws), EN_EINVAL);
    assert_int_equal(eni_law_read("--compute", "rank", "0-2=exp:1ms;2=fixed:1ms", 4, laws), EN_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(draws_have_the_mean_and_the_shape),
                                       cmocka_unit_test(ranks_have_laws_of_their_own),
                                       cmocka_unit_test(samples_are_drawn_alike),
                                       cmocka_unit_test(traces_are_played_in_order),
                                       cmocka_unit_test(laws_are_written_as_they_are_read),
                                       cmocka_unit_test(a_wrong_law_names_the_right_one),
                                       cmocka_unit_test(service_times),
                                       cmocka_unit_test(other_texts_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
