/* test_setup.c - key-values from a socket: missing or wrong ones are named and refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/net/wire.h"
#include "server/setup.h"
#include "tests/server/key_values.h"

static eni_key_value key_values[KEY_VALUES];

static en_status read_key_values(size_t n, eni_setup *setup, char *why)
{
    why[0] = 0;
    return eni_setup_read(en_strategy_entry(EN_STRATEGY_ABI), key_values, n, setup, why);
}

static void everything_is_read(void **state)
{
    (void)state;
    eni_setup setup;
    char why[ENI_REASON_MAX];
    memcpy(key_values, good_key_values, sizeof good_key_values);
    assert_int_equal(read_key_values(KEY_VALUES, &setup, why), EN_OK);
    assert_int_equal(setup.store.nbuckets, 3);
    assert_int_equal(setup.counts[0], 700);
    assert_int_equal(setup.offsets[2], 0);
    assert_int_equal(setup.elements, 784);
    assert_string_equal(setup.store.optimizer->name, "sgd");
    assert_true(setup.store.hyper.momentum == 0.9f && setup.store.hyper.nesterov == 1);
    assert_int_equal(setup.store.schedule.kind, ENI_LR_STEP);
    assert_true(setup.store.schedule.base == 0.1 && setup.store.schedule.step_samples == 100);
    assert_int_equal(setup.store.sum_order, ENI_SUM_RANK);
    assert_int_equal(setup.budget, 40);
    assert_int_equal(setup.net_delay_ns, 0);
    assert_true(setup.store.seed == 9007199254740993); /* 2^53 + 1: not a double */
    eni_setup_fini(&setup);
    eni_setup_fini(&setup);
}

static void what_is_missing_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < KEY_VALUES; i++) {
        eni_setup setup;
        char why[ENI_REASON_MAX];
        memcpy(key_values, good_key_values, sizeof good_key_values);
        key_values[i].key = "something-else";
        if (strcmp(good_key_values[i].key, "net-rate") == 0) continue; /* the one that is optional */
        assert_int_equal(read_key_values(KEY_VALUES, &setup, why), EN_EPROTO);
        assert_non_null(strstr(why, good_key_values[i].key));
    }
}

static void what_is_wrong_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value, *part;
        en_status status;
    } wrong[] = {
        {"buckets", "700,5", "offsets (3)", EN_EPROTO},
        {"buckets", "700,,64", "entry 1", EN_EPROTO},
        {"buckets", "700,5x,64", "entry 1", EN_EPROTO},
        {"buckets", "700,-5,64", "entry 1", EN_EPROTO},
        {"buckets", "700,0,64", "bucket 1 has 0", EN_EPROTO},
        {"buckets", "700,5,99999999999999999999", "entry 2", EN_EPROTO},
        {"buckets", "900,5,64", "bucket 0 ", EN_EPROTO},
        {"bucket-offsets", "84,64,18446744073709551615", "bucket 2 ", EN_EPROTO},
        {"bucket-offsets", "84,83,0", "overlap", EN_EPROTO},
        {"bucket-offsets", "84,64,60", "overlap", EN_EPROTO},
        {"elements", "-1", "-1", EN_EPROTO},
        {"elements", "1.5", "1.5", EN_EPROTO},
        {"elements", "1e300", "1e300", EN_EPROTO},
        {"lr", "nan", "nan", EN_EPROTO},
        {"lr", "inf", "inf", EN_EPROTO},
        {"lr", "", "'lr'", EN_EPROTO},
        {"momentum", "0.9 ", "0.9 ", EN_EPROTO},
        {"optimizer", "adagrad", "adagrad", EN_EPROTO},
        {"lr-schedule", "zigzag", "zigzag", EN_EPROTO},
        {"sum-order", "random", "random", EN_EPROTO},
        {"strategy-name", "ring", "--strategy=ps-sync", EN_EMISMATCH},
        {"strategy-options", "bound=3", "bound=3", EN_EMISMATCH},
        {"seed", "1.5", "1.5", EN_EPROTO},
        {"seed", "18446744073709551616", "18446744073709551616", EN_EPROTO},
        {"net-rate", "fast", "fast", EN_EPROTO},
        {"net-delay", "18446744073709551615", "18446744073709551615", EN_EPROTO},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        eni_setup setup;
        char why[ENI_REASON_MAX];
        memcpy(key_values, good_key_values, sizeof good_key_values);
        for (size_t k = 0; k < KEY_VALUES; k++)
            if (strcmp(key_values[k].key, wrong[i].key) == 0) key_values[k].value = wrong[i].value;
        const en_status st = read_key_values(KEY_VALUES, &setup, why);
        if (st != wrong[i].status || !strstr(why, wrong[i].part))
            fail_msg("%s '%s': status %d, '%s'", wrong[i].key, wrong[i].value, st, why);
    }
}

static void adam_is_read(void **state)
{
    (void)state;
    eni_key_value with[KEY_VALUES + 3] = {{"beta1", "0.8"}, {"beta2", "0.95"}, {"eps", "1e-07"}};
    char why[ENI_REASON_MAX];
    eni_setup setup;
    memcpy(with + 3, good_key_values, sizeof good_key_values);
    for (size_t k = 3; k < KEY_VALUES + 3; k++)
        if (strcmp(with[k].key, "optimizer") == 0) with[k].value = "adamw";
    const en_strategy *strategy = en_strategy_entry(EN_STRATEGY_ABI);
    assert_int_equal(eni_setup_read(strategy, with, KEY_VALUES + 3, &setup, why), EN_OK);
    assert_string_equal(setup.store.optimizer->name, "adamw");
    const eni_hyper *hyper = &setup.store.hyper;
    assert_true(hyper->beta1 == 0.8 && hyper->beta2 == 0.95 && hyper->eps == 1e-7);
    eni_setup_fini(&setup);
    with[1].value = "1";
    assert_int_equal(eni_setup_read(strategy, with, KEY_VALUES + 3, &setup, why), EN_EPROTO);
    assert_non_null(strstr(why, "0.8 and 1"));
    assert_int_equal(eni_setup_read(strategy, with + 1, KEY_VALUES + 2, &setup, why), EN_EPROTO);
    assert_non_null(strstr(why, "beta1"));
}

static void groups_are_read(void **state)
{
    (void)state;
    eni_key_value with[KEY_VALUES + 1] = {{"groups", "1:0.001,1:0/0:0,512:1"}};
    char why[ENI_REASON_MAX];
    eni_setup setup;
    memcpy(with + 1, good_key_values, sizeof good_key_values);
    const en_strategy *strategy = en_strategy_entry(EN_STRATEGY_ABI);
    assert_int_equal(eni_setup_read(strategy, with, KEY_VALUES + 1, &setup, why), EN_OK);
    assert_non_null(setup.store.hyper.groups);
    assert_int_equal(setup.store.hyper.groups->edge[1].lo, 512);
    eni_setup_fini(&setup);
    with[0].value = "1:0.001/512:0";
    assert_int_equal(eni_setup_read(strategy, with, KEY_VALUES + 1, &setup, why), EN_EPROTO);
    assert_non_null(strstr(why, "1:0.001/512:0"));
}

static void milestones_are_read(void **state)
{
    (void)state;
    eni_key_value with[KEY_VALUES + 1] = {{"lr-milestones", "100,200"}};
    char why[ENI_REASON_MAX];
    eni_setup setup;
    memcpy(with + 1, good_key_values, sizeof good_key_values);
    for (size_t k = 1; k < KEY_VALUES + 1; k++)
        if (strcmp(with[k].key, "lr-schedule") == 0) with[k].value = "multistep";
    const en_strategy *strategy = en_strategy_entry(EN_STRATEGY_ABI);
    assert_int_equal(eni_setup_read(strategy, with, KEY_VALUES + 1, &setup, why), EN_OK);
    assert_int_equal(setup.store.schedule.kind, ENI_LR_MULTISTEP);
    assert_int_equal(setup.store.schedule.nmilestones, 2);
    assert_int_equal(setup.store.schedule.milestone[1], 200);
    eni_setup_fini(&setup);
    with[0].value = "1,2,3,4,5,6,7,8,9";
    assert_int_equal(eni_setup_read(strategy, with, KEY_VALUES + 1, &setup, why), EN_EPROTO);
    assert_non_null(strstr(why, "9 entries"));
}

static void points_are_read(void **state)
{
    (void)state;
    eni_key_value with[KEY_VALUES + 1] = {{"lr-points", "0:1,64:0.5"}};
    char why[ENI_REASON_MAX];
    eni_setup setup;
    memcpy(with + 1, good_key_values, sizeof good_key_values);
    for (size_t k = 1; k < KEY_VALUES + 1; k++)
        if (strcmp(with[k].key, "lr-schedule") == 0) with[k].value = "points";
    const en_strategy *strategy = en_strategy_entry(EN_STRATEGY_ABI);
    assert_int_equal(eni_setup_read(strategy, with, KEY_VALUES + 1, &setup, why), EN_OK);
    assert_int_equal(setup.store.schedule.kind, ENI_LR_POINTS);
    assert_int_equal(setup.store.schedule.points->at[1].samples, 64);
    eni_setup_fini(&setup);
    with[0].value = "0:1,64";
    assert_int_equal(eni_setup_read(strategy, with, KEY_VALUES + 1, &setup, why), EN_EPROTO);
    assert_non_null(strstr(why, "0:1,64"));
    assert_int_equal(eni_setup_read(strategy, with + 1, KEY_VALUES, &setup, why), EN_EPROTO);
    assert_non_null(strstr(why, "no 'lr-points'"));
}

/* Builds are not compared: their protocol and the ABI of strategies are. */
static void another_protocol_is_refused(void **state)
{
    (void)state;
    static const char *const keys[] = {"protocol", "strategy-abi"};
    eni_config config = {0};
    const eni_setup setup = {0};
    for (size_t i = 0; i < 2; i++) {
        const eni_key_value theirs[] = {{"version", "of another build"}, {keys[i], "99"}};
        char why[ENI_REASON_MAX], ours[16];
        snprintf(ours, sizeof ours, "has %u", i == 0 ? ENI_WIRE_VERSION : EN_STRATEGY_ABI);
        assert_int_equal(eni_psd_agree(&config, NULL, theirs, 1, &setup, why), EN_OK);
        assert_int_equal(eni_psd_agree(&config, NULL, theirs, 2, &setup, why), EN_EMISMATCH);
        assert_true(strstr(why, keys[i]) != NULL && strstr(why, ours) != NULL && strstr(why, "99") != NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_is_read),          cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(what_is_wrong_is_refused),    cmocka_unit_test(adam_is_read),
        cmocka_unit_test(milestones_are_read),         cmocka_unit_test(groups_are_read),
        cmocka_unit_test(another_protocol_is_refused), cmocka_unit_test(points_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
