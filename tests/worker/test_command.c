/* test_command.c - a flag for GPUs ends a run on a host instead of being passed over. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/log.h"
#include "tests/heard.h"
#include "worker/worker.h"

static void refuses(const char *key, const char *value)
{
    char flag[64];
    heard said = {0};
    eni_config config;
    snprintf(flag, sizeof flag, "--%s", key);
    assert_int_equal(eni_config_init(ENI_WORKER, &config), EN_OK);
    assert_int_equal(eni_refuse_without_gpu(&config), EN_OK);
    assert_int_equal(eni_config_set(&config, key, value, "the test"), EN_OK);
    eni_log_set_sink(hear, &said);
    assert_int_equal(eni_refuse_without_gpu(&config), EN_EINVAL);
    eni_log_set_sink(NULL, NULL);
    assert_int_equal(strncmp(said.text, flag, strlen(flag)), 0);
    assert_non_null(strstr(said.text, value));
    assert_non_null(strstr(said.text, "--device=auto"));
    assert_int_equal(eni_config_set(&config, "device", "cuda:1", "the test"), EN_OK);
    assert_int_equal(eni_refuse_without_gpu(&config), EN_OK);
    eni_config_fini(&config);
}

static void what_takes_a_gpu_is_refused_by_name(void **state)
{
    (void)state;
    refuses("backend", "nccl");
    refuses("precision", "fp16");
}

static void what_a_host_does_anyway_is_not(void **state)
{
    (void)state;
    eni_config config;
    assert_int_equal(eni_config_init(ENI_WORKER, &config), EN_OK);
    assert_int_equal(eni_config_set(&config, "tf32", "true", "the test"), EN_OK);
    assert_int_equal(eni_config_set(&config, "deterministic", "true", "the test"), EN_OK);
    assert_int_equal(eni_config_set(&config, "graph", "false", "the test"), EN_OK);
    assert_int_equal(eni_config_set(&config, "precision", "bf16", "the test"),
                     EN_OK); /* or its device refuses */
    assert_int_equal(eni_refuse_without_gpu(&config), EN_OK);
    eni_config_fini(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_takes_a_gpu_is_refused_by_name),
                                       cmocka_unit_test(what_a_host_does_anyway_is_not)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
