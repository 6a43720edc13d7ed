/* test_units.c - numbers with units, there and back, and the distance between words. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "config/keys.h"
#include "core/options.h"
#include "run/units.h"

static void rates(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"200MB", 200000000}, {"200mB", 200000000},    {"1.5GiB", 1610612736},
                {"10kB/s", 10000},    {"1Gbit", 125000000},    {"8kbit", 1000},
                {"1000B", 1000},      {"100Mbit/s", 12500000}, {"64KiB", 65536}};
    static const char *const wrong[] = {"",     "MB",   "-1MB", "0",      "nan",  "inf", "1XB",
                                        "10gb", "1000", "1 MB", "1e30GB", "0x10", "+5"};
    uint64_t bytes;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(eni_parse_rate(good[i].text, &bytes));
        assert_int_equal(bytes, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(eni_parse_rate(wrong[i], &bytes));
}

static void durations(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t ns;
    } good[] = {{"50us", 50000},        {"1.5ms", 1500000},    {"5", 5000000000}, {"5s", 5000000000},
                {"2min", 120000000000}, {"1h", 3600000000000}, {"7ns", 7},        {"0", 0}};
    static const char *const wrong[] = {"", "s", "-1s", "1m", "nan", "1e300s", "5 s"};
    int64_t ns;
    char text[64];
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(eni_parse_duration(good[i].text, &ns));
        assert_int_equal(ns, good[i].ns);
        eni_format_duration(ns, text, sizeof text);
        assert_true(eni_parse_duration(text, &ns));
        assert_int_equal(ns, good[i].ns);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(eni_parse_duration(wrong[i], &ns));
}

static void amounts(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t amount;
        uint64_t samples; /* with 600 an epoch */
    } good[] = {{"20000", 20000, 20000}, {"0", 0, 0}, {"10epochs", -10, 6000}, {"1epoch", -1, 600}};
    static const char *const wrong[] = {
        "",   "epochs",  "-1", "-1epochs", "1.5epochs",        "10weeks",
        "1k", "1 epoch", "+1", "0x10",     "2000000000epochs", "99999999999999999999"};
    static const char *const lists[] = {"60epochs,80epochs", "60epochs+80epochs", "100,200,300",
                                        "1epoch,1000"};
    static const char *const no_lists[] = {
        "", "1,,2", "2,1", "2epochs,2epochs", "0,1", "1,", "1,2,3,4,5,6,7,8,9"};
    int64_t amount, many[ENI_AMOUNTS_MAX];
    char text[32];
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(eni_parse_amount(good[i].text, &amount));
        assert_int_equal(amount, good[i].amount);
        assert_int_equal(eni_amount_samples(amount, 600), good[i].samples);
        eni_format_amount(amount, text, sizeof text);
        assert_string_equal(text, good[i].text);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(eni_parse_amount(wrong[i], &amount));
    assert_int_equal(eni_parse_amounts(lists[0], many), 2);
    assert_true(many[0] == -60 && many[1] == -80);
    for (size_t i = 1; i < sizeof lists / sizeof lists[0]; i++)
        assert_true(eni_parse_amounts(lists[i], many) > 1);
    for (size_t i = 0; i < sizeof no_lists / sizeof no_lists[0]; i++)
        assert_int_equal(eni_parse_amounts(no_lists[i], many), 0);
}

static void reals_come_back_exactly(void **state)
{
    (void)state;
    static const double values[] = {0, 0.1, 0.01, 1.0 / 3, 0.30000000000000004, 1e-300, 123456789.125, 1e6};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        char text[64];
        double back;
        eni_format_real(values[i], text, sizeof text);
        assert_true(eni_parse_real(text, &back));
        assert_true(back == values[i]);
    }
    char text[64];
    eni_format_real(0.01, text, sizeof text);
    assert_string_equal(text, "0.01");
    eni_format_real(70, text, sizeof text);
    assert_string_equal(text, "70");
}

static void net_texts(void **state)
{
    (void)state;
    uint64_t rate;
    int64_t delay;
    assert_true(eni_net_parse("rate:200MB,delay:50us", &rate, &delay));
    assert_true(rate == 200000000 && delay == 50000);
    assert_true(eni_net_parse("delay:0", &rate, &delay));
    assert_true(rate == 0 && delay == 0);
    assert_true(eni_net_parse("none", &rate, &delay));
    assert_false(eni_net_parse("rate:1MB,speed:2", &rate, &delay));
    assert_false(eni_net_parse("rate:1MB,", &rate, &delay));
    assert_false(eni_net_parse("", &rate, &delay));
    assert_true(eni_net_parse("rate:200B", &rate, &delay));
    assert_int_equal(rate, 200);
    static const char *const none[] = {"delay:1s,delay:1s", "rate",      "rate:",      "rate:MB",
                                       "rate:0MB",          "rate:-1MB", "speed:1MB",  "rate:1MB;delay:1ms",
                                       "delay:1m",          "delay:5",   "rate:nanMB", "rate:1e300GB"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        assert_false(eni_net_parse(none[i], &rate, &delay));
}

static void sweeps(void **state)
{
    (void)state;
    double values[ENI_TUNE_MAX];
    static const char *const none[] = {
        "lr",         "lr=",          "lr=0.1",      "lr=0.1,",     "lr=0.1,0.1", "lr=0.2,0.1",
        "lr=0,0.1",   "lr=-0.1,0.1",  "lr=0.1,nan",  "lr=0.1;0.2",  "0.1,0.2",    "lr=,0.1",
        "lr=0.1,0x2", "beta=0.1,0.2", "lr=0.1,0.2 ", "lr=0.1,,0.2", "LR=0.1,0.2", ""};
    assert_int_equal(eni_tune_parse("lr=0.005,1e-2,5", values), 3);
    assert_true(values[0] == 0.005 && values[1] == 0.01 && values[2] == 5);
    assert_int_equal(eni_tune_parse("lr=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16", values), 16);
    assert_int_equal(eni_tune_parse("lr=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17", values), 0);
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        assert_int_equal(eni_tune_parse(none[i], values), 0);
}

static void distances(void **state)
{
    (void)state;
    assert_int_equal(eni_edit_distance("ring", "ring"), 0);
    assert_int_equal(eni_edit_distance("rnig", "ring"), 1); /* neighbours swapped */
    assert_int_equal(eni_edit_distance("rinng", "ring"), 1);
    assert_int_equal(eni_edit_distance("", "abc"), 3);
    assert_int_equal(eni_edit_distance("kitten", "sitting"), 3);
    assert_string_equal(eni_key_nearest(ENI_RUN, "epoch"), "epochs");
    assert_null(eni_key_nearest(ENI_RUN, "xyzzy-plugh"));
    assert_null(eni_key_nearest(ENI_PSD, "momentum"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rates),     cmocka_unit_test(durations),
                                       cmocka_unit_test(amounts),   cmocka_unit_test(reals_come_back_exactly),
                                       cmocka_unit_test(net_texts), cmocka_unit_test(sweeps),
                                       cmocka_unit_test(distances)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
