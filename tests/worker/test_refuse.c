/* test_refuse.c - a flag without machinery behind it ends the run instead of being passed over. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/core/log.h"
#include "worker/worker.h"

static void keep_last(void *user, int level, const char *subsystem, const char *text)
{
    (void)level, (void)subsystem;
    snprintf(user, 256, "%s", text);
}

static void refuses(const char *key, const char *value)
{
    char said[256] = "", flag[64];
    eni_config config;
    snprintf(flag, sizeof flag, "--%s", key);
    assert_int_equal(eni_config_init(ENI_WORKER, &config), EN_OK);
    assert_int_equal(eni_refuse_unbuilt(&config), EN_OK);
    assert_int_equal(eni_config_set(&config, key, value, "the test"), EN_OK);
    eni_log_set_sink(keep_last, said);
    assert_int_equal(eni_refuse_unbuilt(&config), EN_EINVAL);
    eni_log_set_sink(NULL, NULL);
    assert_int_equal(strncmp(said, flag, strlen(flag)), 0);
    eni_config_fini(&config);
}

static void what_is_not_built_is_refused_by_name(void **state)
{
    (void)state;
    refuses("backend", "nccl");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_not_built_is_refused_by_name)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
